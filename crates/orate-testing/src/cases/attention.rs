//! Attention over whole sequences: masks, lengths, relative positions, and stale keys that no result may
//! depend on.

use super::Case;
use crate::interpreter::Data;
use crate::random::Random;
use crate::tolerance;
use orate_graph::{AttentionMask, DType, Graph, Op, RelativePositions, Result, Rows, Weight};

/// Sizes of an attention case.
struct Heads {
    batch: usize,
    kv_batch: usize,
    tq: usize,
    tk: usize,
    heads: usize,
    /// Query heads that share one key/value head.
    group: usize,
    d: usize,
}

fn attention_graph(
    name: &str,
    s: &Heads,
    mask: AttentionMask,
    window: Option<usize>,
    lens: bool,
) -> Result<Graph> {
    let (c, kv) = (s.heads * s.d, s.heads / s.group * s.d);
    let mut g = Graph::new(name);
    let q = g.input("q", DType::F32, [s.batch, s.tq, c])?;
    let k = g.input("k", DType::F32, [s.kv_batch, s.tk, kv])?;
    let v = g.input("v", DType::F32, [s.kv_batch, s.tk, kv])?;
    let lens = if lens { Some(g.input("lens", DType::I32, [s.kv_batch])?) } else { None };
    let relative = window.map(|window| RelativePositions {
        key: Weight::named("emb_rel_k", [2 * window + 1, s.d]),
        value: Weight::named("emb_rel_v", [2 * window + 1, s.d]),
        window,
    });
    let op = Op::Attention {
        heads: s.heads,
        scale: 1.0 / (s.d as f32).sqrt(),
        mask,
        relative,
        bias: false,
        follows_weights: false,
    };
    let y = g.attention(op, q, k, v, lens)?;
    g.output("y", y)?;
    Ok(g)
}

pub(super) fn attention(cases: &mut Vec<Case>) -> Result<()> {
    let masks = [
        AttentionMask::None,
        AttentionMask::Causal,
        AttentionMask::Window(1),
        AttentionMask::Window(20),
        AttentionMask::Window(72),
    ];
    let size = |batch, kv_batch, tq, tk, heads, d| Heads { batch, kv_batch, tq, tk, heads, group: 1, d };
    let grouped = |group, size: Heads| Heads { group, ..size };
    let sizes = [
        size(1, 1, 1, 1, 1, 1),
        size(1, 1, 1, 1, 2, 4),
        size(1, 1, 3, 3, 2, 32),
        size(1, 1, 5, 7, 1, 6),
        size(1, 1, 1, 33, 2, 16),
        size(1, 1, 17, 17, 4, 64),
        size(1, 1, 9, 50, 2, 128),
        size(1, 1, 65, 129, 2, 33),
        size(2, 2, 8, 8, 3, 8),
        size(3, 3, 7, 15, 2, 20),
        size(2, 1, 16, 31, 2, 32),
        size(3, 1, 4, 50, 2, 24),
        size(2, 2, 33, 33, 8, 64),
        size(1, 1, 12, 5, 2, 8),
        grouped(2, size(1, 1, 10, 10, 4, 32)),
        grouped(2, size(2, 2, 1, 40, 4, 16)),
        grouped(3, size(2, 1, 33, 70, 6, 24)),
        grouped(4, size(1, 1, 2, 9, 4, 128)),
        // Enough queries for tiles.
        size(1, 1, 130, 140, 2, 64),
        size(2, 1, 129, 131, 2, 128),
        size(2, 2, 128, 129, 2, 48),
        grouped(2, size(2, 2, 133, 150, 4, 32)),
        // Few queries in each of many rows.
        size(16, 16, 17, 20, 2, 64),
        size(5, 1, 72, 50, 1, 32),
    ];
    for s in &sizes {
        for mask in masks {
            if mask != AttentionMask::None && s.tq > s.tk {
                continue; // refused by shape inference
            }
            let name = |what: &str| {
                format!(
                    "Attention {mask:?}{what} B {} kv {} Tq {} Tk {} H {} of {} D {}",
                    s.batch, s.kv_batch, s.tq, s.tk, s.heads, s.group, s.d
                )
            };
            cases.push(Case::new(name(""), attention_graph("attention", s, mask, None, false)?));
            // Random lengths, full lengths, and rows that see no key.
            let g = attention_graph("attention", s, mask, None, true)?;
            let last = s.kv_batch - 1;
            cases.push(Case::new(name(" lens"), g.clone()));
            cases.push(Case::new(name(" full lens"), g.clone()).with("lens", vec![s.tk as i32; s.kv_batch]));
            let mut lens = vec![s.tk as i32; s.kv_batch];
            lens[last] = 0;
            cases.push(Case::new(name(" a length of 0"), g.clone()).with("lens", lens));
            for window in [1, 4] {
                let g = attention_graph("attention", s, mask, Some(window), false)?;
                cases.push(Case::new(name(&format!(" window {window}")), g));
                let g = attention_graph("attention", s, mask, Some(window), true)?;
                cases.push(Case::new(name(&format!(" window {window} lens")), g));
            }
        }
    }
    // The perceiver of Chatterbox.
    for keys in [32, 150] {
        let s = size(1, 1, 32, keys, 4, 256);
        let g = attention_graph("attention", &s, AttentionMask::None, None, false)?;
        cases.push(Case::new(format!("Attention of a perceiver to {keys} keys"), g));
    }
    // Keys and values past the length may hold anything, NaN included.
    let s = size(2, 2, 6, 21, 2, 16);
    for (what, stale) in [("not a number", f32::NAN), ("infinite", f32::INFINITY), ("huge", 1e30)] {
        let lens = [13usize, 4];
        let mut case = Case::new(
            format!("Attention with stale keys that are {what}"),
            attention_graph("attention", &s, AttentionMask::None, Some(4), true)?,
        )
        .with("lens", lens.map(|l| l as i32).to_vec());
        for name in ["k", "v"] {
            let Some(Data::F32(x)) = case.buffers.get_mut(name) else { unreachable!("a float input") };
            for (b, len) in lens.into_iter().enumerate() {
                x[(b * s.tk + len) * 32..(b + 1) * s.tk * 32].fill(stale);
            }
        }
        cases.push(case);
    }
    // Scores far apart: one key dominates, and exponentials must not overflow.
    let s = size(1, 1, 5, 19, 1, 8);
    let g = attention_graph("attention", &s, AttentionMask::None, None, false)?;
    let mut random = Random::new(3);
    let mut case = Case::new("Attention with scores in the hundreds", g);
    case.buffers.insert("q".into(), random.floats(5 * 8, -20.0, 20.0).into());
    case.buffers.insert("k".into(), random.floats(19 * 8, -20.0, 20.0).into());
    // A score of 400 has a rounding error of 400 ulps, which its exponential turns into a relative error.
    case.tolerance += 1000.0 * tolerance::ROUNDING;
    cases.push(case);
    Ok(())
}

/// Attention of many queries, as in Chatterbox's estimator (8 heads of 64, one row or two), with all that
/// tiles of queries and keys depend on; computed as weights are, or not.
pub(super) fn many_queries(cases: &mut Vec<Case>) -> Result<()> {
    for (b, kv, tq, tk, heads, group, d) in [
        (1, 1, 300, 300, 8, 1, 64),
        (2, 2, 197, 197, 2, 1, 64),
        (2, 1, 257, 40, 4, 2, 36),
        (1, 1, 270, 31, 2, 1, 128),
        (1, 1, 701, 701, 1, 1, 64),
        (1, 1, 128, 1, 2, 1, 64),
        (1, 1, 129, 65, 2, 1, 32),
        (2, 1, 160, 64, 4, 2, 48),
        (1, 1, 140, 200, 2, 1, 80),
        (1, 1, 127, 97, 2, 1, 96),
        (2, 2, 130, 70, 3, 3, 112),
        (1, 1, 128, 129, 2, 1, 128),
        // Enough of them for every multiprocessor of a large GPU.
        (12, 12, 130, 70, 4, 1, 64),
        (8, 1, 129, 200, 6, 2, 48),
    ] {
        for [bias, follows_weights] in [[false, false], [false, true], [true, false], [true, true]] {
            let what = match [bias, follows_weights] {
                [false, false] => "",
                [false, true] => " as weights",
                [true, false] => " with a bias",
                [true, true] => " with a bias as weights",
            };
            let name = format!(
                "Attention of many queries{what}, B {b} kv {kv} Tq {tq} Tk {tk} H {heads} of {group} D {d}"
            );
            let mut g = Graph::new(&*name);
            let q = g.input("q", DType::F32, [b, tq, heads * d])?;
            let k = g.input("k", DType::F32, [kv, tk, heads / group * d])?;
            let v = g.input("v", DType::F32, [kv, tk, heads / group * d])?;
            let scores = if bias { Some(g.input("bias", DType::F32, [b, heads, tq, tk])?) } else { None };
            let (scale, mask) = (1.0 / (d as f32).sqrt(), AttentionMask::None);
            let y = g.attention(
                Op::Attention { heads, scale, mask, relative: None, bias, follows_weights },
                q,
                k,
                v,
                scores,
            )?;
            g.output("y", y)?;
            cases.push(Case::new(name, g));
        }
    }
    for (b, kv, tq, tk, group, d) in [(2, 2, 300, 300, 1, 64), (2, 1, 259, 70, 2, 20), (3, 3, 128, 90, 2, 32)]
    {
        let s = Heads { batch: b, kv_batch: kv, tq, tk, heads: 2, group, d };
        let name = format!("Attention of many queries lens, B {b} kv {kv} Tq {tq} Tk {tk} of {group} D {d}");
        let g = attention_graph("attention", &s, AttentionMask::None, None, true)?;
        let mut lens = vec![tk as i32 - 1; kv];
        lens[kv - 1] = if kv > 1 { 0 } else { 33 };
        cases.push(Case::new(name, g).with("lens", lens));
    }
    cases.extend(growing_scores(false)?);
    // With a bias too, as in Chatterbox's token encoder.
    for (b, kv, tq, tk, heads, d) in
        [(2, 2, 352, 352, 8, 64), (3, 3, 128, 90, 1, 32), (2, 1, 260, 33, 2, 20), (2, 2, 64, 64, 2, 7)]
    {
        let name = format!("Attention with a bias and lens, B {b} kv {kv} Tq {tq} Tk {tk} H {heads} D {d}");
        let mut g = Graph::new(&*name);
        let q = g.input("q", DType::F32, [b, tq, heads * d])?;
        let [k, v] = ["k", "v"].map(|name| g.input(name, DType::F32, [kv, tk, heads * d]));
        let bias = g.input("bias", DType::F32, [b, heads, tq, tk])?;
        let lens = g.input("lens", DType::I32, [kv])?;
        let (scale, mask) = (1.0 / (d as f32).sqrt(), AttentionMask::None);
        let op = Op::Attention { heads, scale, mask, relative: None, bias: true, follows_weights: false };
        let y = g.biased_attention(op, [q, k?, v?, bias], Some(lens))?;
        g.output("y", y)?;
        let mut lens = vec![tk as i32 - 7; kv];
        lens[kv - 1] = 30;
        let bias = Random::named(17, &name).floats(b * heads * tq * tk, -3.0, 3.0);
        cases.push(Case::new(name, g).with("bias", bias).with("lens", lens));
    }
    // Queries that are rotated on the way.
    for (b, t, heads, d, mask) in [
        (2, 150, 4, 32, AttentionMask::None),
        (1, 170, 2, 64, AttentionMask::Causal),
        (1, 200, 2, 80, AttentionMask::Window(20)),
        (1, 140, 1, 128, AttentionMask::None),
    ] {
        let name = format!("Attention of rotated queries {mask:?} [{b}, {t}, {heads} of {d}]");
        let mut g = Graph::new(&*name);
        let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, DType::F32, [b, t, heads * d]));
        let table = g.rope_table(1e4, t, d, Rows::From(3))?;
        let (q, k) = (g.rotary(q?, table, heads)?, g.rotary(k?, table, heads)?);
        let scale = 1.0 / (d as f32).sqrt();
        let op = Op::Attention { heads, scale, mask, relative: None, bias: false, follows_weights: false };
        let y = g.attention(op, q, k, v?, None)?;
        g.output("y", y)?;
        cases.push(Case::new(name, g));
    }
    Ok(())
}

/// Attention of many queries whose largest score grows along the keys, from about 1 to 90; bf16 holds queries
/// and keys exactly. Executors that round `scale · q` exceed the limits of these cases.
///
/// # Errors
/// None, unless the op's shape rules change.
pub fn growing_scores(follows_weights: bool) -> Result<Vec<Case>> {
    let mut cases = vec![];
    for (b, kv, tq, tk, heads, d, lens) in
        [(1, 1, 130, 300, 2, 64, false), (2, 2, 140, 200, 1, 32, true), (1, 1, 300, 333, 1, 64, false)]
    {
        let name =
            format!("Attention of many queries with growing scores, B {b} Tq {tq} Tk {tk} H {heads} D {d}");
        let mut g = Graph::new(&*name);
        let q = g.input("q", DType::F32, [b, tq, heads * d])?;
        let [k, v] = ["k", "v"].map(|name| g.input(name, DType::F32, [kv, tk, heads * d]));
        let lengths = if lens { Some(g.input("lens", DType::I32, [kv])?) } else { None };
        let (scale, mask) = (0.125, AttentionMask::None);
        let op = Op::Attention { heads, scale, mask, relative: None, bias: false, follows_weights };
        let y = g.attention(op, q, k?, v?, lengths)?;
        g.output("y", y)?;
        let mut random = Random::named(18, &name);
        let mut eighths = |n: usize, power: &dyn Fn(usize) -> i32| -> Vec<f32> {
            let x = random.floats(n, -2.0, 2.0);
            x.into_iter().enumerate().map(|(i, x)| (x * 8.0).round() / 8.0 * 2f32.powi(power(i))).collect()
        };
        let queries = eighths(b * tq * heads * d, &|_| 0);
        let keys = eighths(kv * tk * heads * d, &|i| (i / (heads * d) % tk * 7 / tk) as i32 - 2);
        let mut case = Case::new(name, g).with("q", queries).with("k", keys);
        // A score of 100 has a rounding error of 100 ulps, which its exponential turns into a relative error.
        case.tolerance += 250.0 * tolerance::ROUNDING;
        cases.push(if lens { case.with("lens", vec![tk as i32 - 9; kv]) } else { case });
    }
    Ok(cases)
}

/// Scores of relative positions, and attention with them: Chatterbox's token encoder has 8 heads of 64.
pub(super) fn relative_scores(cases: &mut Vec<Case>) -> Result<()> {
    for (b, t, heads, d) in [
        (1, 1, 1, 1),
        (1, 2, 2, 4),
        (2, 3, 1, 7),
        (1, 24, 2, 16),
        (1, 25, 3, 33),
        (2, 33, 2, 8),
        (1, 150, 8, 64),
        (1, 65, 2, 64),
    ] {
        let name = format!("RelativeScores [{b}, {t}, {heads}·{d}]");
        let mut g = Graph::new(&*name);
        let q = g.input("q", DType::F32, [b, t, heads * d])?;
        let p = g.input("p", DType::F32, [1, 2 * t - 1, heads * d])?;
        let y = g.relative_scores(q, p, heads, 1.0 / (d as f32).sqrt())?;
        g.output("y", y)?;
        cases.push(Case::new(name, g));
    }
    for (b, kv, tq, tk, heads, group, d) in [
        (1, 1, 1, 1, 1, 1, 1),
        (1, 1, 5, 5, 2, 1, 64),
        (2, 2, 3, 40, 2, 1, 16),
        (2, 1, 33, 65, 2, 1, 64),
        (1, 1, 1, 50, 4, 2, 16),
        (2, 2, 2, 33, 4, 4, 8),
        (1, 1, 100, 100, 8, 1, 64),
        (1, 1, 70, 31, 2, 1, 33),
        (1, 1, 9, 9, 2, 1, 128),
        (1, 1, 32, 150, 4, 1, 256),
    ] {
        let name = format!("Attention with a bias, B {b} kv {kv} Tq {tq} Tk {tk} H {heads} of {group} D {d}");
        let mut g = Graph::new(&*name);
        let q = g.input("q", DType::F32, [b, tq, heads * d])?;
        let k = g.input("k", DType::F32, [kv, tk, heads / group * d])?;
        let v = g.input("v", DType::F32, [kv, tk, heads / group * d])?;
        let bias = g.input("bias", DType::F32, [b, heads, tq, tk])?;
        let scale = 1.0 / (d as f32).sqrt();
        let op = Op::Attention {
            heads,
            scale,
            mask: AttentionMask::None,
            relative: None,
            bias: true,
            follows_weights: false,
        };
        let y = g.attention(op, q, k, v, Some(bias))?;
        g.output("y", y)?;
        let bias = Random::named(13, &name).floats(b * heads * tq * tk, -3.0, 3.0);
        cases.push(Case::new(name, g).with("bias", bias));
    }
    Ok(())
}
