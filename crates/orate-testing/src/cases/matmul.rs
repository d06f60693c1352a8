//! Matmuls: sizes around tile boundaries, weight layouts of the networks, and fused epilogues.

use super::{Case, WIDTHS, activations, unary};
use orate_graph::{Activation, DType, Graph, Result, Value, Weight};

pub(super) fn matmul(cases: &mut Vec<Case>) -> Result<()> {
    let w = |k: usize, n: usize| Weight::named("w", [k, n]);
    for n in WIDTHS {
        for (rows, k) in [(1, 7), (1, 96), (3, 16), (9, 33)] {
            unary(cases, format!("MatMul [1, {rows}, {k}] · [{k}, {n}]"), [1, rows, k], |g, x| {
                g.matmul(x, w(k, n))
            })?;
        }
    }
    for k in WIDTHS.into_iter().chain([256, 513, 2048]) {
        unary(cases, format!("MatMul [2, 5, {k}] · [{k}, 19]"), [2, 5, k], |g, x| g.matmul(x, w(k, 19)))?;
    }
    for rows in [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 16, 17, 65] {
        unary(cases, format!("MatMul [{rows}, 24] · [24, 35]"), [rows, 24], |g, x| g.matmul(x, w(24, 35)))?;
    }
    unary(cases, "MatMul of a vector".into(), [24], |g, x| g.matmul(x, w(24, 35)))?;
    for batch in [1, 2, 3] {
        unary(cases, format!("MatMul [{batch}, 37, 64] · [64, 144]"), [batch, 37, 64], |g, x| {
            g.matmul(x, w(64, 144))
        })?;
    }
    // Layouts that the networks use: stored [out, in] or [out, in, 1], with scaled rows or columns.
    let stored = Weight::named("w", [35, 24, 1]).reshape([35, 24]);
    let gamma = Weight::named("gamma", [1, 35, 1]);
    let layouts = [
        ("transposed", Weight::named("w", [35, 24]).transpose()),
        ("stored as a 1×1 convolution", stored.transpose()),
        ("with gamma", stored.transpose().mul(&gamma.reshape([1, 35]))),
        ("scaled", stored.transpose().scale(0.125)),
        ("rows scaled", w(24, 35).mul(&Weight::named("s", [24, 1]))),
        ("filled", Weight::fill(0.25, [24, 35])),
    ];
    for (what, weight) in layouts {
        unary(cases, format!("MatMul, weight {what}"), [2, 9, 24], |g, x| g.matmul(x, weight))?;
    }
    // One row from each of several sequences; devices may merge these into one matmul.
    for batch in [2, 3, 4, 5, 8, 9, 13, 16, 17, 32, 33] {
        let name = format!("MatMul [{batch}, 1, 64] · [64, 96]");
        unary(cases, name, [batch, 1, 64], |g, x| g.matmul(x, w(64, 96)))?;
        let name = format!("MatMul, gate and up, and three that read them, of {batch} rows");
        unary(cases, name, [batch, 1, 32], |g, x| {
            let part = |name: &str, n: usize| Weight::named(name, [32, n]);
            let gate = g.matmul(x, part("gate", 32))?;
            let gate = g.activate(gate, Activation::Silu)?;
            let up = g.matmul(x, part("up", 32))?;
            let y = g.mul(gate, up)?;
            let parts =
                [g.matmul(y, part("v", 64))?, g.matmul(y, part("q", 32))?, g.matmul(y, part("k", 96))?];
            g.concat(&parts, 2)
        })?;
    }
    epilogues(cases, "MatMul [6, 1, 64] · [64, 36]", [6, 1, 64], 36, |g, x| g.matmul(x, w(64, 36)))?;
    epilogues(cases, "MatMul [2, 7, 20] · [20, 37]", [2, 7, 20], 37, |g, x| g.matmul(x, w(20, 37)))?;
    epilogues(cases, "MatMul [1, 1, 65] · [65, 16]", [1, 1, 65], 16, |g, x| g.matmul(x, w(65, 16)))?;
    unary(cases, "MatMul that adds its own operand".into(), [1, 9, 33], |g, x| {
        let y = g.linear(x, w(33, 33), Weight::named("bias", [33]))?;
        g.add(x, y)
    })
}

/// All combinations of bias, activation and residual after an op.
pub(super) fn epilogues(
    cases: &mut Vec<Case>,
    name: &str,
    [b, t, c]: [usize; 3],
    n: usize,
    product: impl Fn(&mut Graph, Value) -> Result<Value>,
) -> Result<()> {
    let mut all: Vec<Option<Activation>> = vec![None];
    all.extend(activations().into_iter().map(Some));
    for (activation, bias, residual) in
        all.iter().flat_map(|a| [(a, false, false), (a, true, false), (a, false, true), (a, true, true)])
    {
        let name = format!(
            "{name}{}{}{}",
            if bias { " + bias" } else { "" },
            activation.as_ref().map_or(String::new(), |a| format!(" {}", a.name())),
            if residual { " + residual" } else { "" }
        );
        unary(cases, name, [b, t, c], |g, x| {
            let mut y = product(g, x)?;
            if bias {
                y = g.add_bias(y, Weight::named("bias", [n]))?;
            }
            if let Some(a) = activation {
                y = g.activate(y, a.clone())?;
            }
            if residual {
                let r = g.input("residual", DType::F32, [b, t, n])?;
                y = g.add(r, y)?;
            }
            Ok(y)
        })?;
    }
    Ok(())
}
