//! Cases for caches with compact elements (16-bit floats or q8_0): writing rows, and attention over them.

use super::Case;
use super::decoding::{Sizes, cached_attention, spoil};
use crate::compact;
use crate::interpreter::Data;
use crate::random::Random;
use crate::tolerance::{ROUNDING, compact_step};
use orate_graph::{AttentionMask, DType, First, Graph, Op, Result, Rows, Value, Weight};
use std::collections::BTreeSet;

/// Whether a type can hold rows of `kv_heads` heads of width `d`.
fn fits(dtype: DType, kv_heads: usize, d: usize) -> bool {
    (kv_heads * d).is_multiple_of(dtype.width_step()) && (dtype != DType::Q8_0 || d.is_multiple_of(32))
}

/// Attention over a cache. Keys after the queries may be anything.
pub(super) fn attention(cases: &mut Vec<Case>) -> Result<()> {
    let sizes: [Sizes; 21] = [
        [1, 1, 1, 1, 1, 2],
        [1, 1, 1, 2, 1, 32],
        [1, 1, 300, 16, 2, 128], // a frame of the talker
        [16, 1, 40, 16, 2, 128], // a batch of frames
        [1, 1, 4096, 16, 2, 128],
        [1, 37, 300, 4, 2, 128], // a prompt after a cached prefix
        [1, 5, 60, 16, 2, 128],
        [2, 3, 70, 16, 2, 128],
        [2, 1, 129, 4, 2, 32],
        [2, 5, 40, 4, 2, 32],
        [1, 30, 64, 4, 2, 64],
        [3, 1, 70, 6, 3, 20],
        [3, 2, 33, 4, 2, 34],
        [2, 26, 60, 4, 2, 17],
        [1, 1, 50, 8, 2, 96],
        [2, 4, 9, 2, 1, 64],
        [1, 150, 300, 16, 2, 128], // a long prompt
        [16, 20, 70, 16, 2, 128],  // prompts of a batch
        [2, 140, 200, 4, 1, 64],
        [7, 39, 100, 2, 1, 48],
        [2, 1, 45, 4, 2, 20],
    ];
    for dtype in DType::COMPACT {
        for s in sizes {
            let [b, tq, tk, heads, group, d] = s;
            if !fits(dtype, heads / group, d) {
                continue;
            }
            let room = tk - tq;
            let name = |what: &str| format!("Attention over a cache in {dtype}, {what}, {s:?}");
            let at = room / 2;
            let mask = AttentionMask::Cached(First::Const(at));
            let graph = cached_attention("cached", s, (mask, dtype), false)?;
            let mut case = Case::new(name(&format!("from {at} on")), graph);
            spoil(&mut case, b, tk, |_, j| j >= at + tq);
            cases.push(case);
            let mask = AttentionMask::Cached(First::Operand);
            let places: [(&str, Vec<usize>); 3] = [
                ("at the start", vec![0; b]),
                ("at the end", vec![room; b]),
                ("here and there", (0..b).map(|i| room * (2 * i + 1) / (2 * b)).collect()),
            ];
            for (what, at) in places {
                let first: Vec<i32> = at.iter().map(|x| *x as i32).collect();
                let graph = cached_attention("cached", s, (mask, dtype), false)?;
                let mut case = Case::new(name(what), graph).with("first", first);
                spoil(&mut case, b, tk, |row, j| j >= at[row] + tq);
                cases.push(case);
            }
        }
        let mask = AttentionMask::Cached(First::Operand);
        let g = cached_attention("cached", [3, 2, 21, 4, 2, 32], (mask, dtype), true)?;
        cases.push(Case::new(format!("Attention over a cache in {dtype} that batch rows share"), g));
    }
    Ok(())
}

/// Numbers that every device rounds alike, however it divides: q8_0 blocks have a power of two as step, and
/// no value is near the midpoint of two steps. For 16-bit floats, exact midpoints and limits are included.
fn sure_numbers(dtype: DType, n: usize, random: &mut Random) -> Vec<f32> {
    const HARD: [f32; 12] = [
        1.000_488_3,  // a midpoint in f16: 1 + 2⁻¹¹
        1.001_464_8,  // 1 + 3 · 2⁻¹¹
        -1.003_906_3, // in bf16: 1 + 2⁻⁸
        1.011_718_8,  // 1 + 3 · 2⁻⁸
        65_519.0,
        -65_520.0, // overflows to −∞ in f16
        3.0e38,
        2.980_232_2e-8, // half of the smallest f16
        8.940_697e-8,   // 1.5 times the smallest f16
        6.1e-5,
        -0.0,
        1e-20,
    ];
    if dtype != DType::Q8_0 {
        return (0..n)
            .map(|i| match i % 3 {
                0 => HARD[random.below(HARD.len())],
                _ => random.uniform(-4.0, 4.0),
            })
            .collect();
    }
    let block = |i: usize, random: &mut Random| -> Vec<f32> {
        let largest = random.below(32);
        // Zeros, values rounded to zero, tiny values, and ordinary ones.
        let step = match i % 7 {
            3 => return vec![0.0; 32],
            4 => return (0..32).map(|j| if j == largest { -1e30 } else { 1e9 }).collect(),
            5 => return (0..32).map(|j| if j == largest { 1e-7 } else { 0.0 }).collect(),
            i => 2f32.powi(3 - 2 * i as i32),
        };
        let one = |j: usize, random: &mut Random| {
            if j == largest {
                return if random.below(2) == 0 { 127.0 } else { -127.0 };
            }
            random.below(253) as f32 - 126.0 + random.uniform(-0.4, 0.4)
        };
        (0..32).map(|j| step * one(j, random)).collect()
    };
    (0..n / 32).flat_map(|i| block(i, random)).collect()
}

/// Writes of rows of every width, with rounding.
pub(super) fn writes(cases: &mut Vec<Case>) -> Result<()> {
    // Batch, capacity, rows, width.
    let sizes = [
        (1usize, 1usize, 1usize, 2usize),
        (1, 16, 1, 1024),
        (16, 9, 1, 1024),
        (1, 40, 13, 64),
        (2, 9, 1, 18),
        (3, 33, 5, 128),
        (2, 4, 4, 6),
        (2, 4, 4, 64),
        (1, 60, 50, 1024),
    ];
    for dtype in DType::COMPACT {
        for (b, n, t, c) in sizes {
            if !c.is_multiple_of(dtype.width_step()) {
                continue;
            }
            let build = |operand: bool, at: usize| -> Result<Graph> {
                let mut g = Graph::new("cache");
                let cache = g.state("cache", dtype, [b, n, c])?;
                let rows = g.input("rows", DType::F32, [b, t, c])?;
                let first =
                    if operand { Rows::At(g.input("first", DType::I32, [b])?) } else { Rows::From(at) };
                let y = g.write_rows(cache, rows, first)?;
                g.output("y", y)?;
                Ok(g)
            };
            let before = Data::Compact(dtype, vec![0xff; dtype.bytes_of(&[b, n, c].into())]);
            let sure = |case: Case| {
                let rows = sure_numbers(dtype, b * t * c, &mut Random::named(3, &case.name));
                case.with("rows", rows).with("cache", before.clone())
            };
            for at in BTreeSet::from([0, (n - t) / 2, n - t]) {
                let name = format!("WriteRows [{b}, {t}, {c}] from {at} on, of {n} in {dtype}");
                cases.push(sure(Case::new(name, build(false, at)?)));
            }
            let name = |what: &str| format!("WriteRows [{b}, {t}, {c}] {what}, of {n} in {dtype}");
            let at_end = Case::new(name("at the end"), build(true, 0)?);
            cases.push(sure(at_end).with("first", vec![(n - t) as i32; b]));
            let first = (0..b).map(|i| ((n - t) * i / b) as i32).collect::<Vec<_>>();
            let case = Case::new(name("here and there"), build(true, 0)?).with("first", first.clone());
            cases.push(sure(case));
            // Arbitrary numbers: devices may differ by one step where a division decides which one is
            // nearest.
            let case = Case::new(name("of any numbers, here and there"), build(true, 0)?);
            let mut case = case.with("first", first);
            if dtype == DType::Q8_0 {
                case.tolerance = compact_step(dtype);
            }
            cases.push(case);
        }
        for s in [[1, 1, 9, 4, 2, 32], [1, 1, 40, 16, 2, 128], [2, 5, 9, 4, 2, 64], [3, 1, 7, 2, 1, 128]] {
            cases.push(layer(dtype, s)?);
        }
        cases.push(layer(dtype, many_heads(32))?);
    }
    cases.push(layer(DType::F32, many_heads(128))?);
    Ok(())
}

/// More heads, of width `d`, than GPUs have places for at once.
fn many_heads(d: usize) -> Sizes {
    [70, 1, 40, 16, 2, d]
}

/// Queries, keys and values as a transformer layer computes, stores and reads them.
fn layer(dtype: DType, s: Sizes) -> Result<Case> {
    let [b, t, n, heads, group, d] = s;
    let mut g = Graph::new("layer");
    let x = g.input("x", DType::F32, [b, t, 64])?;
    let at = g.input("at", DType::I32, [b])?;
    let kv = heads / group;
    let [keys, values] = ["keys", "values"].map(|name| g.state(name, dtype, [b, n, kv * d]));
    let table = g.rope_table(1e4, t, d, Rows::At(at))?;
    let product = |g: &mut Graph, name: &str, heads: usize| {
        g.matmul(x, Weight::named(name, [heads * d, 64]).transpose())
    };
    let turned = |g: &mut Graph, name: &str, heads: usize| -> Result<Value> {
        let y = product(g, name, heads)?;
        let y = g.reshape(y, [b, t, heads, d])?;
        let y = g.rms_norm(y, Weight::named(format!("{name}.norm"), [d]), 1e-6)?;
        let y = g.reshape(y, [b, t, heads * d])?;
        g.rotary(y, table, heads)
    };
    let v = product(&mut g, "v", kv)?;
    let (q, k) = (turned(&mut g, "q", heads)?, turned(&mut g, "k", kv)?);
    let keys = g.write_rows(keys?, k, Rows::At(at))?;
    let values = g.write_rows(values?, v, Rows::At(at))?;
    let mask = AttentionMask::Cached(First::Operand);
    let op = Op::Attention {
        heads,
        scale: 1.0 / (d as f32).sqrt(),
        mask,
        relative: None,
        bias: false,
        follows_weights: false,
    };
    let y = g.attention(op, q, keys, values, Some(at))?;
    g.output("y", y)?;
    let first = (0..b).map(|i| ((n - t) * (i + 1) / b) as i32).collect::<Vec<_>>();
    let mut case = Case::new(format!("A layer with its cache in {dtype}, {s:?}"), g).with("at", first);
    // A rounding difference before the cache may select the neighboring step.
    case.tolerance = case.tolerance.max(compact_step(dtype) + ROUNDING);
    Ok(case)
}

/// Fills a row of a cache with NaN.
pub(super) fn spoil_bytes(bytes: &mut [u8], row: usize) {
    bytes.fill([0xff, 0x7c, 0x7f][row % 3]);
}

/// Random rows of a state.
pub(super) fn random(dtype: DType, width: usize, x: &[f32]) -> Data {
    Data::Compact(dtype, compact::encode(dtype, width, x))
}
