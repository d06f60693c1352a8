//! Cases for decoding: positions in device memory, caches written in place, integers computed by steps,
//! sampling.

use super::Case;
use super::compact::spoil_bytes;
use crate::interpreter::Data;
use crate::random::Random;
use orate_graph::{
    Activation, AttentionMask, ControlIds, DType, Draw, Factor, First, Graph, NO_ID, Norm, Op, Result, Rows,
    SampleRules, Value, Weight,
};
use std::collections::BTreeSet;

/// Sizes of attention over a cache: batch, queries, keys, query heads, query heads per key/value head, head
/// width.
pub(super) type Sizes = [usize; 6];

pub(super) fn cached_attention(
    name: &str,
    [b, tq, tk, heads, group, d]: Sizes,
    (mask, dtype): (AttentionMask, DType),
    shared_keys: bool,
) -> Result<Graph> {
    let mut g = Graph::new(name);
    let kv_batch = if shared_keys { 1 } else { b };
    let q = g.input("q", DType::F32, [b, tq, heads * d])?;
    let k = g.input("k", dtype, [kv_batch, tk, heads / group * d])?;
    let v = g.input("v", dtype, [kv_batch, tk, heads / group * d])?;
    let first = if mask.has_positions() { Some(g.input("first", DType::I32, [b])?) } else { None };
    let op = Op::Attention {
        heads,
        scale: 1.0 / (d as f32).sqrt(),
        mask,
        relative: None,
        bias: false,
        follows_weights: false,
    };
    let y = g.attention(op, q, k, v, first)?;
    g.output("y", y)?;
    Ok(g)
}

/// Fills keys and values that no query may see with NaN.
pub(super) fn spoil(case: &mut Case, batch: usize, keys: usize, unseen: impl Fn(usize, usize) -> bool) {
    let rows = batch * keys;
    for name in ["k", "v"] {
        for row in (0..rows).filter(|row| unseen(row / keys, row % keys)) {
            match case.buffers.get_mut(name) {
                Some(Data::F32(x)) => {
                    let width = x.len() / rows;
                    x[row * width..][..width].fill([f32::NAN, f32::INFINITY, 1e30][row % 3]);
                }
                Some(Data::Compact(_, x)) => {
                    let width = x.len() / rows;
                    spoil_bytes(&mut x[row * width..][..width], row);
                }
                _ => unreachable!("keys and values are inputs"),
            }
        }
    }
}

/// The feed-forward half of a transformer layer, which devices fuse: for one row, several, a full batch, and
/// one more.
pub(super) fn feed_forward(cases: &mut Vec<Case>) -> Result<()> {
    let sizes =
        [(1, 64, 96), (1, 48, 32), (1, 20, 12), (3, 64, 96), (8, 64, 32), (16, 128, 64), (17, 64, 96)];
    for (rows, d, inner) in sizes.into_iter().chain([(1, 1024, 3072), (1, 2048, 6144)]) {
        let name = format!("Norm, gate and up, down [1, {rows}, {d}] → {inner}");
        let mut g = Graph::new(&*name);
        let x = g.input("x", DType::F32, [1, rows, d])?;
        let y = g.rms_norm(x, Weight::named("norm", [d]), 1e-6)?;
        let gate = g.matmul(y, Weight::named("gate", [d, inner]))?;
        let gate = g.activate(gate, Activation::Silu)?;
        let up = g.matmul(y, Weight::named("up", [d, inner]))?;
        let y = g.mul(gate, up)?;
        let y = g.matmul(y, Weight::named("down", [inner, d]))?;
        let y = g.add(x, y)?;
        g.output("y", y)?;
        cases.push(Case::new(name, g));
    }
    Ok(())
}

/// Attention over a cache: queries at every position, and arbitrary memory after them.
pub(super) fn cached(cases: &mut Vec<Case>) -> Result<()> {
    let sizes = [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 7, 2, 1, 6],
        [1, 1, 16, 16, 2, 128], // the code predictor
        [1, 2, 16, 4, 2, 32],
        [1, 1, 300, 16, 2, 128], // a frame of the talker
        [2, 1, 129, 4, 2, 32],
        [1, 1, 40, 4, 4, 16],
        [3, 1, 300, 3, 1, 12],
        [3, 1, 70, 6, 3, 20],
        [3, 2, 33, 3, 1, 17],
        [2, 5, 40, 4, 4, 16],
        [1, 30, 64, 4, 2, 64], // a prompt after a cached prefix
        [2, 130, 170, 4, 2, 64],
        [1, 128, 150, 2, 1, 128],
        [2, 25, 25, 2, 1, 33],
    ];
    for s in sizes {
        let [b, tq, tk, ..] = s;
        let room = tk - tq;
        let name = |what: &str| format!("Attention over a cache, {what}, {s:?}");
        for at in BTreeSet::from([0, room / 2, room]) {
            let mask = AttentionMask::Cached(First::Const(at));
            let mut case = Case::new(
                name(&format!("from {at} on")),
                cached_attention("cached", s, (mask, DType::F32), false)?,
            );
            spoil(&mut case, b, tk, |_, j| j >= at + tq);
            cases.push(case);
        }
        let mask = AttentionMask::Cached(First::Operand);
        let places: [(&str, Vec<usize>); 3] = [
            ("at the start", vec![0; b]),
            ("at the end", vec![room; b]),
            ("here and there", (0..b).map(|i| room * (2 * i + 1) / (2 * b)).collect()),
        ];
        for (what, at) in places {
            let first: Vec<i32> = at.iter().map(|x| *x as i32).collect();
            let mut case = Case::new(name(what), cached_attention("cached", s, (mask, DType::F32), false)?)
                .with("first", first);
            spoil(&mut case, b, tk, |row, j| j >= at[row] + tq);
            cases.push(case);
        }
    }
    let mask = AttentionMask::Cached(First::Operand);
    let g = cached_attention("cached", [3, 2, 21, 4, 2, 8], (mask, DType::F32), true)?;
    cases.push(Case::new("Attention over a cache that batch rows share", g));
    Ok(())
}

/// Streaming attention over a sliding window, including a window that begins before the stream.
pub(super) fn stream(cases: &mut Vec<Case>) -> Result<()> {
    for s in [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 72, 16, 1, 64], // the codec, a frame at a time
        [1, 4, 75, 16, 1, 64],
        [1, 25, 96, 4, 1, 32],
        [2, 130, 202, 2, 1, 64],
        [2, 3, 9, 4, 2, 12],
        [3, 7, 27, 2, 1, 17],
    ] {
        let [b, tq, tk, ..] = s;
        let history = tk - tq;
        for window in BTreeSet::from([1, history + 1, 20]) {
            let mask = AttentionMask::Stream(window);
            for (what, passed) in [
                ("at its start", vec![0; b]),
                ("inside the window", (0..b).map(|i| (history * (i + 1) / (b + 1)) as i32).collect()),
                ("far on", vec![1000; b]),
            ] {
                let name = format!("Attention of a stream {what}, window {window}, {s:?}");
                let mut case = Case::new(name, cached_attention("stream", s, (mask, DType::F32), false)?);
                case = case.with("first", passed.clone());
                spoil(&mut case, b, tk, |row, j| j + (passed[row] as usize) < history);
                cases.push(case);
            }
        }
    }
    Ok(())
}

/// Integers that are moved, incremented and read.
pub(super) fn integers(cases: &mut Vec<Case>) -> Result<()> {
    let mut case = |name: &str, build: &dyn Fn(&mut Graph, Value) -> Result<Value>| -> Result<()> {
        let mut g = Graph::new(name);
        let x = g.input("x", DType::I32, [2, 3, 5])?;
        let y = build(&mut g, x)?;
        g.output("y", y)?;
        let mut random = Random::named(7, name);
        let x: Vec<i32> = (0..30).map(|_| random.bits() as i32).collect();
        cases.push(Case::new(name, g).with("x", x));
        Ok(())
    };
    case("Increment by 1", &|g, x| g.increment(x, 1))?;
    case("Increment by −7", &|g, x| g.increment(x, -7))?;
    case("Increment past the end", &|g, x| g.increment(x, i32::MAX))?;
    for axis in 0..3 {
        case(&format!("Concat of integers, axis {axis}"), &|g, x| g.concat(&[x, x, x], axis))?;
        case(&format!("Slice of integers, axis {axis}"), &|g, x| g.slice(x, axis, 1, 1))?;
        // More than a kernel takes at a time.
        case(&format!("Concat of 30 values, axis {axis}"), &|g, x| {
            let parts = (0..30).map(|i| g.increment(x, i)).collect::<Result<Vec<_>>>()?;
            g.concat(&parts, axis)
        })?;
    }
    case("Reshape of integers between steps", &|g, x| {
        let y = g.increment(x, 3)?;
        let y = g.reshape(y, [5, 6])?;
        let y = g.slice(y, 0, 1, 2)?;
        g.increment(y, -1)
    })?;
    // Temporaries of both types in one arena.
    let mut g = Graph::new("integers");
    let ids = g.input("ids", DType::I32, [1, 4])?;
    let table = Weight::named("table", [9, 17]);
    let mut sum = g.embedding(ids, table.clone())?;
    for _ in 0..3 {
        let next = g.increment(ids, 1)?;
        let row = g.embedding(next, table.clone())?;
        sum = g.add(sum, row)?;
    }
    g.output("y", sum)?;
    cases.push(Case::new("Embedding of ids that a step made", g).with("ids", vec![0, 3, 7, -3]));
    let mut g = Graph::new("integers");
    let x = g.input("x", DType::F32, [1, 2])?;
    let old = g.state("position", DType::I32, [2])?;
    let new = g.increment(old, 1)?;
    g.update("position", new)?;
    g.output("before", old)?;
    let y = g.scale(x, Factor::Const(2.0))?;
    g.output("y", y)?;
    cases.push(Case::new("Increment of a state, and its old content stored", g));
    Ok(())
}

/// Rows selected by index, and tables at positions.
pub(super) fn rows(cases: &mut Vec<Case>) -> Result<()> {
    for (b, n, c) in [(1, 1, 1), (1, 9, 64), (2, 5, 17), (3, 40, 1024)] {
        let mut g = Graph::new("rows");
        let x = g.input("x", DType::F32, [b, n, c])?;
        let index = g.input("index", DType::I32, [b])?;
        let y = g.row_at(x, index)?;
        g.output("y", y)?;
        let name = |what: &str| format!("RowAt {what} of [{b}, {n}, {c}]");
        cases.push(Case::new(name("somewhere"), g.clone()));
        cases.push(Case::new(name("the start"), g.clone()).with("index", vec![0; b]));
        cases.push(Case::new(name("past the end"), g.clone()).with("index", vec![n as i32; b]));
        cases.push(Case::new(name("far past the end"), g).with("index", vec![i32::MAX; b]));
    }
    for (base, b, time, d) in [(1e4, 1, 1, 2), (1e6, 1, 1, 128), (1e6, 3, 1, 128), (1e4, 2, 33, 34)] {
        let mut g = Graph::new("rope");
        let first = g.input("first", DType::I32, [b])?;
        let y = g.rope_table(base, time, d, Rows::At(first))?;
        g.output("y", y)?;
        let name = format!("RopeTable [{b}, {time}, {d}] to base {base}, from operands on");
        cases.push(Case::new(name, g));
    }
    Ok(())
}

/// States that are written in place.
pub(super) fn in_place(cases: &mut Vec<Case>) -> Result<()> {
    // Batch, capacity, rows, width.
    let sizes = [(1, 1, 1, 1), (1, 16, 1, 1024), (1, 40, 13, 64), (2, 9, 1, 17), (3, 33, 5, 8), (2, 4, 4, 3)];
    for (b, n, t, c) in sizes {
        let build = |operand: bool, at: usize| -> Result<Graph> {
            let mut g = Graph::new("cache");
            let cache = g.state("cache", DType::F32, [b, n, c])?;
            let rows = g.input("rows", DType::F32, [b, t, c])?;
            let first = if operand { Rows::At(g.input("first", DType::I32, [b])?) } else { Rows::From(at) };
            let y = g.write_rows(cache, rows, first)?;
            g.output("y", y)?;
            Ok(g)
        };
        for at in BTreeSet::from([0, (n - t) / 2, n - t]) {
            let name = format!("WriteRows [{b}, {t}, {c}] from {at} on, of {n}");
            cases.push(Case::new(name, build(false, at)?));
        }
        let name = |what: &str| format!("WriteRows [{b}, {t}, {c}] {what}, of {n}");
        cases.push(Case::new(name("at the end"), build(true, 0)?).with("first", vec![(n - t) as i32; b]));
        let first = (0..b).map(|i| ((n - t) * i / b) as i32).collect::<Vec<_>>();
        let case = Case::new(name("here and there"), build(true, 0)?).with("first", first);
        // Rows that are not replaced may hold anything.
        cases.push(case.with("cache", vec![1e30; b * n * c]));
    }
    for (b, v) in [(1, 1), (1, 3072), (3, 17)] {
        let mut g = Graph::new("mark");
        let seen = g.state("seen", DType::F32, [b, v])?;
        let ids = g.input("ids", DType::I32, [b, 1])?;
        let y = g.mark(seen, ids)?;
        g.output("y", y)?;
        let name = format!("Mark of [{b}, {v}]");
        cases.push(Case::new(&*name, g.clone()));
        cases.push(Case::new(format!("{name}, the last"), g.clone()).with("ids", vec![v as i32 - 1; b]));
        cases.push(Case::new(format!("{name}, none"), g).with("ids", vec![NO_ID; b]));
    }
    // Two writes and reads between them, with temporaries around.
    let mut g = Graph::new("cache");
    let x = g.input("x", DType::F32, [1, 2, 8])?;
    let cache = g.state("cache", DType::F32, [1, 6, 8])?;
    let twice = g.scale(x, Factor::Const(2.0))?;
    let cache = g.write_rows(cache, twice, Rows::From(1))?;
    let middle = g.slice(cache, 1, 0, 4)?;
    let again = g.scale(middle, Factor::Const(3.0))?;
    let cache = g.write_rows(cache, again, Rows::From(2))?;
    let flat = g.reshape(cache, [48])?;
    let y = g.scale(flat, Factor::Const(-1.0))?;
    g.output("y", y)?;
    cases.push(Case::new("WriteRows twice, with reads between", g));
    // A write for a later run: nothing reads it in this one.
    let mut g = Graph::new("cache");
    let x = g.input("x", DType::F32, [2, 3, 8])?;
    let cache = g.state("cache", DType::F32, [2, 6, 8])?;
    let rows = g.scale(x, Factor::Const(0.5))?;
    g.write_rows(cache, rows, Rows::From(3))?;
    g.output("y", x)?;
    cases.push(Case::new("WriteRows for the next run", g));
    // A matmul that reads a state before it is written, and its bias after.
    let mut g = Graph::new("cache");
    let x = g.input("x", DType::F32, [1, 1, 8])?;
    let cache = g.state("cache", DType::F32, [1, 3, 8])?;
    let y = g.matmul(cache, Weight::named("w", [8, 5]))?;
    g.write_rows(cache, x, Rows::From(1))?;
    let y = g.add_bias(y, Weight::named("bias", [5]))?;
    g.output("y", y)?;
    cases.push(Case::new("WriteRows between a product and its bias", g));
    Ok(())
}

/// Norms of few rows before matmuls, as T3 has them.
pub(super) fn normed(cases: &mut Vec<Case>) -> Result<()> {
    for (rows, width) in [(1, 1024), (1, 96), (1, 16), (2, 1024), (2, 80), (3, 64)] {
        let mut g = Graph::new("rms norm");
        let x = g.input("x", DType::F32, [rows, 1, width])?;
        let y = g.rms_norm(x, Weight::named("norm", [width]), 1e-5)?;
        let y = g.matmul(y, Weight::named("w", [width, 96]))?;
        g.output("y", y)?;
        cases.push(Case::new(format!("RmsNorm and a matmul of {rows} rows of {width}"), g));
    }
    // Some rows have a mean far from zero, and one large number.
    for (rows, width, n) in [
        (1, 1024, 96),
        (2, 80, 96),
        (3, 1024, 96),
        (4, 16, 40),
        (8, 96, 33),
        (9, 1024, 3072),
        (13, 48, 96),
        (16, 1024, 96),
        (16, 4096, 64),
        (17, 1024, 96),
    ] {
        let mut g = Graph::new("layer norm");
        let x = g.input("x", DType::F32, [rows, 1, width])?;
        let [weight, bias] = ["gain", "shift"].map(|name| Weight::named(name, [width]));
        let y = g.layer_norm(x, Norm { weight, bias, eps: 1e-5 })?;
        let y = g.linear(y, Weight::named("w", [width, n]), Weight::named("bias", [n]))?;
        let y = g.activate(y, Activation::GeluTanh)?;
        g.output("y", y)?;
        let mut numbers = Random::new(7);
        let mut x = numbers.floats(rows * width, -2.0, 2.0);
        for (i, row) in x.chunks_exact_mut(width).enumerate() {
            row.iter_mut().for_each(|x| *x += [0.0, 3.0, -1.0][i % 3]);
            row[i] += [0.0, 40.0][i % 2];
        }
        let name = format!("LayerNorm and a matmul of {rows} rows of {width} to {n}");
        cases.push(Case::new(name, g).with("x", x));
    }
    Ok(())
}

/// What the alignment guard of Chatterbox adds to T3: rotated queries and keys of a head are read besides
/// their attention, and one logit is changed.
pub(super) fn watched(cases: &mut Vec<Case>) -> Result<()> {
    for (dtype, time) in [(DType::F32, 1), (DType::F16, 1), (DType::F32, 5)] {
        let (heads, d, capacity) = (16, 64, 12);
        let mut g = Graph::new("watched");
        let x = g.input("x", DType::F32, [2, time, 32])?;
        let at = g.input("at", DType::I32, [2])?;
        let table = g.rope_table(5e5, time, d, Rows::At(at))?;
        let [q, k, v] = ["q", "k", "v"].map(|w| g.matmul(x, Weight::named(w, [32, heads * d])));
        let (q, k) = (g.rotary(q?, table, heads)?, g.rotary(k?, table, heads)?);
        let keys = g.cache("keys", dtype, [2, capacity, heads * d])?;
        let values = g.cache("values", dtype, [2, capacity, heads * d])?;
        let keys = g.write_rows(keys, k, Rows::At(at))?;
        let values = g.write_rows(values, v?, Rows::At(at))?;
        let op = Op::Attention {
            heads,
            scale: 0.125,
            mask: AttentionMask::Cached(First::Operand),
            relative: None,
            bias: false,
            follows_weights: false,
        };
        let y = g.attention(op, q, keys, values, Some(at))?;
        g.output("y", y)?;
        let mut joined = |x: Value| {
            let heads = [15, 11, 2].into_iter().map(|head| g.slice(x, 2, head * d, d));
            let heads = heads.collect::<Result<Vec<_>>>()?;
            g.concat(&heads, 2)
        };
        let (q, k) = (joined(q)?, joined(k)?);
        let watched = g.cache("watched keys", DType::F32, [2, capacity, 3 * d])?;
        g.write_rows(watched, k, Rows::At(at))?;
        let both = g.concat(&[q, k], 2)?;
        g.output("watched", both)?;
        let tolerance = if dtype == DType::F32 { crate::tolerance::NETWORK } else { 1e-2 };
        let name = format!("watched heads, {time} rows, {dtype} caches");
        cases.push(Case { tolerance, ..Case::new(name, g).with("at", vec![3, 5]) });
    }
    for (v, end) in [(8194, 6562), (5, 0)] {
        let mut g = Graph::new("logits");
        let logits = g.state("logits", DType::F32, [2, 1, v])?;
        let bias = g.input("bias", DType::F32, [2, 1, 1])?;
        let of_end = g.slice(logits, 2, end, 1)?;
        let of_end = g.add(of_end, bias)?;
        let before = if end > 0 { Some(g.slice(logits, 2, 0, end)?) } else { None };
        let after = g.slice(logits, 2, end + 1, v - end - 1)?;
        let parts: Vec<Value> = before.into_iter().chain([of_end, after]).collect();
        let y = g.concat(&parts, 2)?;
        g.output("y", y)?;
        cases.push(Case::new(format!("logit {end} of {v} changed"), g));
    }
    Ok(())
}

/// Rows of which some have the first keys and values in common: all, within sixteen and across, of two
/// voices, and none.
pub(super) fn in_common(cases: &mut Vec<Case>) -> Result<()> {
    let voice = |first: i32, keys: i32| [first, keys];
    let alone = |row: i32| [row, 0];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        cases.push(rows_in_common(2, 64, 40, dtype, &[voice(0, 13); 4])?);
        cases.push(rows_in_common(1, 64, 600, dtype, &[voice(0, 540); 5])?);
        let mixed = (0..35).map(|row| match row {
            3 => voice(3, 1),
            7 | 33 => alone(row),
            _ if row % 4 == 1 => voice(1, 120),
            _ => voice(0, 376),
        });
        cases.push(rows_in_common(3, 64, 400, dtype, &mixed.collect::<Vec<_>>())?);
        cases.push(rows_in_common(2, 64, 24, dtype, &(0..9).map(alone).collect::<Vec<_>>())?);
        cases.push(rows_in_common(2, 32, 24, dtype, &[voice(0, 8); 4])?);
    }
    Ok(())
}

/// Attention of one query per row, as in GPT-2, over caches of `capacity` rows. `shared` is what rows have in
/// common, and says how many there are.
pub fn rows_in_common(
    heads: usize,
    width: usize,
    capacity: usize,
    dtype: DType,
    shared: &[[i32; 2]],
) -> Result<Case> {
    let (batch, d) = (shared.len(), heads * width);
    let mut g = Graph::new("rows in common");
    let x = g.input("x", DType::F32, [batch, 1, 32])?;
    let at = g.input("at", DType::I32, [batch])?;
    let common = g.input("shared", DType::I32, [batch, 2])?;
    let y = g.matmul(x, Weight::named("qkv", [32, 3 * d]))?;
    let [q, k, v] = [0, d, 2 * d].map(|start| g.slice(y, 2, start, d));
    let keys = g.cache("keys", dtype, [batch, capacity, d])?;
    let values = g.cache("values", dtype, [batch, capacity, d])?;
    let keys = g.write_rows(keys, k?, Rows::At(at))?;
    let values = g.write_rows(values, v?, Rows::At(at))?;
    let op = Op::Attention {
        heads,
        scale: 1.0 / (width as f32).sqrt(),
        mask: AttentionMask::Cached(First::Operand),
        relative: None,
        bias: false,
        follows_weights: false,
    };
    let y = g.attention_in_common(op, [q?, keys, values], at, common)?;
    let y = g.matmul(y, Weight::named("out", [d, 16]))?;
    g.output("y", y)?;
    let name = format!("{batch} rows of {heads} heads of {width} and {capacity} keys in common, {dtype}");
    // From the end of what is shared to the last row.
    let at = |(row, [_, keys]): (usize, &[i32; 2])| keys + row as i32 * 7 % (capacity as i32 - keys);
    let ats: Vec<i32> = shared.iter().enumerate().map(at).collect();
    let tolerance = match dtype {
        DType::F32 => crate::tolerance::NETWORK,
        // A key of the row itself may be rounded to the other side.
        _ => 1e-2,
    };
    let mut case = Case { tolerance, ..Case::new(name, g).with("at", ats).with("shared", shared.concat()) };
    for name in ["keys", "values"] {
        for (row, [first, keys]) in shared.iter().enumerate() {
            let [from, to] = [*first as usize, row].map(|row| row * capacity * d);
            case.copy_within(name, from..from + *keys as usize * d, to);
        }
    }
    Ok(case)
}

/// Temperature, k, p and penalty: those of the released models, and others.
const SETTINGS: [[f32; 4]; 8] = [
    [0.9, 50.0, 1.0, 1.05],
    [0.0, 50.0, 1.0, 1.05],
    [1.0, 0.0, 1.0, 1.0],
    [0.7, 20.0, 0.8, 1.05],
    [1.0, 0.0, 0.5, 1.3],
    [0.9, 1.0, 1.0, 1.0],
    [0.6, 0.0, 1e-9, 1.0],
    [2.0, 1e6, 0.99, 0.8],
];

/// Settings with min-p and guidance.
const MORE_SETTINGS: [[f32; 6]; 6] = [
    [0.8, 0.0, 1.0, 1.2, 0.05, 0.5],
    [0.8, 0.0, 1.0, 2.0, 0.05, 0.0],
    [0.8, 1000.0, 0.95, 1.2, 0.0, 1.5],
    [1.3, 20.0, 0.9, 1.0, 0.3, 0.5],
    [1.0, 0.0, 1.0, 1.0, 1.0, 0.0],
    [0.0, 0.0, 1.0, 1.2, 0.05, 0.7],
];

/// Sampling settings of batch row `b`.
pub(super) fn settings(b: usize) -> [f32; 4] {
    SETTINGS[b % SETTINGS.len()]
}

pub(super) fn sample(cases: &mut Vec<Case>) -> Result<()> {
    let rules = |codebook, controls| SampleRules { codebook, controls, ..SampleRules::default() };
    let talker = |v: usize| Some(ControlIds { first: v - v / 3, end: v - v / 3 + 2, min_draws: 2 });
    let codec = Some(ControlIds { first: 6561, end: 6562, min_draws: 0 });
    let last = |rules| SampleRules { penalty_last: true, ..rules };
    for (b, v, rules, seen) in [
        (1, 1, rules(0, None), false),
        (1, 3072, rules(0, Some(ControlIds { first: 2048, end: 2150, min_draws: 2 })), true),
        (1, 2048, rules(7, None), false),
        (3, 1152, rules(0, talker(1152)), true),
        (2, 33, rules(3, None), true),
        (8, 100, rules(15, talker(100)), false),
        // Chatterbox, and the smaller variants of it.
        (1, 8194, rules(0, codec), true),
        (2, 6563, last(SampleRules { start: Some(6561), ..rules(0, codec) }), true),
        (3, 100, last(SampleRules { start: Some(40), ..rules(0, talker(100)) }), true),
        (2, 33, SampleRules { start: Some(7), ..rules(0, None) }, false),
        (1, 1, last(rules(0, None)), true),
    ] {
        let SampleRules { codebook, penalty_last, start, .. } = rules;
        let what = format!("[{b}, {v}], codebook {codebook}, penalty last {penalty_last}, start {start:?}");
        let mut g = Graph::new("sample");
        let logits = g.input("logits", DType::F32, [b, v])?;
        let from = Draw {
            settings: g.input("settings", DType::F32, [b, 4])?,
            seed: g.input("seed", DType::I32, [b, 2])?,
            number: g.input("number", DType::I32, [b])?,
        };
        let marks = if seen { Some(g.state("seen", DType::F32, [b, v])?) } else { None };
        let y = g.sample(Op::Sample(rules), logits, from, marks)?;
        g.output("y", y)?;
        for (i, first) in SETTINGS.iter().enumerate() {
            for number in [0, 1, 2, 250] {
                let name = format!("Sample {what}, {first:?}, draw {number}");
                let mut random = Random::named(5, &name);
                let logits: Vec<f32> = (0..b * v).map(|_| random.uniform(-9.0, 9.0)).collect();
                let settings: Vec<f32> = (0..b).flat_map(|row| settings(i + row)).collect();
                let case = Case::new(name, g.clone()).with("logits", logits).with("settings", settings);
                cases.push(case.with("number", (0..b).map(|row| number + row as i32).collect::<Vec<_>>()));
            }
        }
        // A row with NaN among valid ones, at the first and last index of a thread.
        for (which, at, first) in [("first", 0, &SETTINGS[0]), ("last", v - 1, &SETTINGS[1])] {
            let name = format!("Sample {what} whose {which} logit is not a number, {first:?}");
            let mut random = Random::named(7, &name);
            let mut logits: Vec<f32> = (0..b * v).map(|_| random.uniform(-9.0, 9.0)).collect();
            logits[(b - 1) * v + at] = f32::NAN;
            cases.push(Case::new(name, g.clone()).with("logits", logits).with("settings", first.repeat(b)));
        }
        // Few distinct values, so that many ids have equal logits, also at the cut-offs.
        for (i, first) in SETTINGS.iter().enumerate() {
            let name = format!("Sample of equal logits {what}, {first:?}");
            let mut random = Random::named(6, &name);
            let logits: Vec<f32> = (0..b * v).map(|_| random.below(5) as f32 - 3.0).collect();
            let settings: Vec<f32> = (0..b).flat_map(|row| settings(i + row)).collect();
            cases.push(Case::new(name, g.clone()).with("logits", logits).with("settings", settings));
        }
    }
    sample_and_read(cases)?;
    sample_with_more_settings(cases)
}

/// Draws, the rows of a table that they select, and sums with these.
fn sample_and_read(cases: &mut Vec<Case>) -> Result<()> {
    for (b, v, width, table) in [
        (1, 50, 8, "table"),
        (1, 2048, 1024, "table.bf16"),
        (1, 33, 6, "table.f16"),
        (2, 50, 8, "table"),
        (20, 2048, 1024, "table.bf16"),
    ] {
        for sum in ["none", "first", "second", "twice"] {
            let name = format!("Sample [{b}, {v}], rows of {table} [{v}, {width}], sum {sum}");
            let mut g = Graph::new(&*name);
            let logits = g.input("logits", DType::F32, [b, v])?;
            let from = Draw {
                settings: g.input("settings", DType::F32, [b, 4])?,
                seed: g.input("seed", DType::I32, [b, 2])?,
                number: g.input("number", DType::I32, [b])?,
            };
            let before = g.input("before", DType::F32, [b, 1, width])?;
            let before = g.scale(before, Factor::Const(2.0))?;
            let id = g.sample(Op::Sample(SampleRules::default()), logits, from, None)?;
            let row = g.embedding(id, Weight::named(table, [v, width]))?;
            let y = match sum {
                "first" => g.add(row, before)?,
                "second" => g.add(before, row)?,
                "twice" => g.add(row, row)?,
                _ => g.scale(row, Factor::Const(3.0))?,
            };
            g.output("id", id)?;
            g.output("y", y)?;
            let mut random = Random::named(8, &name);
            let settings: Vec<f32> = (0..b).flat_map(settings).collect();
            let mut logits: Vec<f32> = (0..b * v).map(|_| random.uniform(-9.0, 9.0)).collect();
            let case = Case::new(&*name, g).with("settings", settings);
            cases.push(case.clone().with("logits", logits.clone()));
            // Nothing is drawn, and −1 selects the last row.
            logits[v - 1] = f32::NAN;
            let case = Case { name: format!("{name}, not a number"), ..case };
            cases.push(case.with("logits", logits));
        }
    }
    Ok(())
}

/// Min-p, and guidance by unconditional logits.
fn sample_with_more_settings(cases: &mut Vec<Case>) -> Result<()> {
    let turbo = SampleRules { penalty_last: true, start: Some(3), ..SampleRules::default() };
    for (b, v, settings, guided, rules) in [
        (1, 3072, 6, true, SampleRules::default()),
        (3, 33, 6, true, SampleRules::default()),
        (2, 700, 5, false, SampleRules::default()),
        (2, 6, 6, false, SampleRules::default()),
        (1, 8194, 6, true, SampleRules::default()),
        (2, 700, 5, false, turbo),
        (3, 40, 6, true, turbo),
    ] {
        let mut g = Graph::new("sample");
        let shape = if guided { vec![b, 2, v] } else { vec![b, v] };
        let count: usize = shape.iter().product();
        let logits = g.input("logits", DType::F32, &*shape)?;
        let from = Draw {
            settings: g.input("settings", DType::F32, [b, settings])?,
            seed: g.input("seed", DType::I32, [b, 2])?,
            number: g.input("number", DType::I32, [b])?,
        };
        let seen = g.state("seen", DType::F32, [b, v])?;
        let y = g.sample(Op::Sample(rules), logits, from, Some(seen))?;
        g.output("y", y)?;
        for (i, first) in MORE_SETTINGS.iter().enumerate() {
            for number in [0, 3] {
                let last = rules.penalty_last;
                let name = format!(
                    "Sample {shape:?} of {settings} settings, {first:?}, penalty last {last}, draw {number}"
                );
                let mut random = Random::named(8, &name);
                let logits: Vec<f32> = (0..count).map(|_| random.uniform(-9.0, 9.0)).collect();
                let row = |b: usize| MORE_SETTINGS[(i + b) % MORE_SETTINGS.len()];
                let values: Vec<f32> = (0..b).flat_map(|b| row(b)[..settings].to_vec()).collect();
                let case = Case::new(name, g.clone()).with("logits", logits).with("settings", values);
                cases.push(case.with("number", vec![number; b]));
            }
        }
        if guided {
            let name = format!("Sample {shape:?} whose last unconditional logit is not a number");
            let mut random = Random::named(9, &name);
            let mut logits: Vec<f32> = (0..count).map(|_| random.uniform(-9.0, 9.0)).collect();
            logits[count - 1] = f32::NAN;
            let values = MORE_SETTINGS[0].repeat(b);
            cases.push(Case::new(name, g.clone()).with("logits", logits).with("settings", values));
        }
    }
    Ok(())
}
