//! Norms of rows.

use super::{Case, WIDTHS, unary};
use orate_graph::{DType, Graph, Norm, Result, Weight};

pub(super) fn norm(c: usize) -> Norm {
    Norm { weight: Weight::named("norm.weight", [c]), bias: Weight::named("norm.bias", [c]), eps: 1e-6 }
}

pub(super) fn layer_norm(cases: &mut Vec<Case>) -> Result<()> {
    for c in WIDTHS.into_iter().chain([64, 256, 512, 513]) {
        unary(cases, format!("LayerNorm [2, 3, {c}]"), [2, 3, c], |g, x| g.layer_norm(x, norm(c)))?;
    }
    for rows in [1, 5, 64] {
        unary(cases, format!("LayerNorm [{rows}, 48]"), [rows, 48], |g, x| g.layer_norm(x, norm(48)))?;
    }
    let mut g = Graph::new("LayerNorm");
    let x = g.input("x", DType::F32, [4, 33])?;
    let y = g.layer_norm(x, Norm { eps: 1e-5, ..norm(33) })?;
    g.output("y", y)?;
    let ramp: Vec<f32> = (0..132).map(|i| 2.0 + (i * 37 % 33) as f32 / 16.0).collect();
    cases.push(Case::new("LayerNorm of equal numbers", g.clone()).with("x", vec![0.5; 132]));
    cases.push(Case::new("LayerNorm of zeros", g.clone()).with("x", vec![0.0; 132]));
    cases.push(Case::new("LayerNorm with a mean of 3 deviations, epsilon 1e-5", g).with("x", ramp));
    Ok(())
}

pub(super) fn rms_norm(cases: &mut Vec<Case>) -> Result<()> {
    for c in WIDTHS.into_iter().chain([64, 128, 512, 513, 1024]) {
        unary(cases, format!("RmsNorm [2, 3, {c}]"), [2, 3, c], |g, x| {
            g.rms_norm(x, Weight::named("weight", [c]), 1e-6)
        })?;
    }
    let mut g = Graph::new("RmsNorm");
    let x = g.input("x", DType::F32, [4, 33])?;
    let y = g.rms_norm(x, Weight::named("weight", [33]), 1e-5)?;
    g.output("y", y)?;
    cases.push(Case::new("RmsNorm of zeros, epsilon 1e-5", g.clone()).with("x", vec![0.0; 132]));
    cases.push(Case::new("RmsNorm of small numbers, epsilon 1e-5", g).with("x", vec![1e-3; 132]));
    // Each head of a row has its own norm, with one weight.
    unary(cases, "RmsNorm of heads".into(), [1, 5, 4 * 32], |g, x| {
        let x = g.reshape(x, [1, 5, 4, 32])?;
        let y = g.rms_norm(x, Weight::named("q_norm.weight", [32]), 1e-6)?;
        g.reshape(y, [1, 5, 128])
    })
}
