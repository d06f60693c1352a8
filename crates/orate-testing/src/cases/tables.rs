//! Rotary positions, time embeddings and random numbers: everything computed from angles.

use super::{Case, unary};
use crate::interpreter::ScalarValue;
use orate_graph::{DType, Graph, Result, RopeScaling, Rows, Shape, Weight};

pub(super) fn rotary(cases: &mut Vec<Case>) -> Result<()> {
    for (b, t, half) in [(1, 1, 1), (1, 72, 32), (2, 9, 5), (3, 33, 8), (1, 1000, 16)] {
        for lens in [false, true] {
            let name = format!("RotaryTable [{b}, 2, {t}, {half}]{}", if lens { " lens" } else { "" });
            let mut g = Graph::new(&*name);
            let lens = if lens { Some(g.input("lens", DType::I32, [b])?) } else { None };
            let theta = Weight::named("theta", [1, 1, half]).reshape([half]).scale(10.0);
            let y = g.rotary_table(theta, b, t, lens)?;
            g.output("y", y)?;
            let case = Case::new(name, g);
            cases.push(if lens.is_some() { case.with("lens", vec![t as i32; b]) } else { case });
        }
    }
    for (b, tb, t, heads, d) in [
        (1, 1, 1, 1, 2),
        (1, 1, 7, 4, 64),
        (2, 2, 5, 3, 10),
        (2, 1, 9, 8, 64),
        (3, 3, 17, 1, 16),
        (3, 1, 2, 2, 34),
    ] {
        unary(
            cases,
            format!("Rotary [{b}, {t}, {heads}·{d}] by [{tb}, 2, {t}, {}]", d / 2),
            [b, t, heads * d],
            |g, x| {
                let table = g.input("table", DType::F32, [tb, 2, t, d / 2])?;
                g.rotary(x, table, heads)
            },
        )?;
    }
    Ok(())
}

pub(super) fn rope_table(cases: &mut Vec<Case>) -> Result<()> {
    // Chatterbox, and numbers that put most frequencies between the two ends.
    let llama = RopeScaling { factor: 8.0, low: 1.0, high: 4.0, length: 8192 };
    let between = RopeScaling { factor: 3.0, low: 0.01, high: 50.0, length: 100 };
    for (base, scaling, d, first) in
        [(5e5, llama, 64, 0), (5e5, llama, 64, 1000), (1e4, between, 34, 7), (1e4, llama, 2, 0)]
    {
        let name = format!("RopeTable [40, {d}] to base {base} from {first} on, {scaling:?}");
        let mut g = Graph::new(&*name);
        let y = g.rope_table_scaled(base, scaling, 40, d, Rows::From(first))?;
        g.output("y", y)?;
        cases.push(Case::new(name, g));
    }
    for (base, time, d) in [(1e4, 1, 2), (1e4, 300, 64), (1e6, 33, 128), (1e4, 7, 34)] {
        for first in [0, 1234] {
            let name = format!("RopeTable [{time}, {d}] to base {base} from {first} on");
            let mut g = Graph::new(&*name);
            let y = g.rope_table(base, time, d, Rows::From(first))?;
            g.output("y", y)?;
            cases.push(Case::new(name, g));
        }
    }
    Ok(())
}

pub(super) fn generators(cases: &mut Vec<Case>) -> Result<()> {
    for (n, dim) in [(1, 4), (5, 64), (8, 64), (3, 34), (2, 6)] {
        let mut g = Graph::new("TimeEmbedding");
        let times = g.input("times", DType::F32, [n])?;
        let y = g.time_embedding(times, dim)?;
        g.output("y", y)?;
        let times: Vec<f32> = (0..n).map(|i| i as f32 / n as f32).collect();
        cases.push(Case::new(format!("TimeEmbedding of {n} steps, width {dim}"), g).with("times", times));
    }
    for shape in [vec![1], vec![3], vec![4], vec![5], vec![1, 7, 24], vec![2, 33, 144], vec![1009]] {
        for seed in [0, 42, 0x0123_4567_89AB_CDEF, u64::MAX] {
            let mut g = Graph::new("RandomNormal");
            let s = g.scalar("seed");
            let y = g.random_normal(shape.clone(), s, if seed == 42 { 0.5 } else { 1.0 })?;
            g.output("y", y)?;
            let case = Case::new(format!("RandomNormal {}, seed {seed}", Shape::from(shape.clone())), g);
            cases.push(case.with_scalar("seed", ScalarValue::U64(seed)));
        }
    }
    Ok(())
}
