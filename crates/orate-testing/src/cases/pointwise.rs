//! Element-wise ops: activations, sums and products, broadcast vectors and rows, masks.

use super::{Case, WIDTHS, activations, unary};
use crate::tolerance;
use orate_graph::{Activation, DType, Factor, Graph, Result, Shape, Value, Weight};

pub(super) fn snake(cases: &mut Vec<Case>) -> Result<()> {
    let logarithms = |c: usize| {
        let beta = Weight::named("beta", [c]).exp().add(&Weight::fill(1e-9, [1])).reciprocal();
        (Weight::named("alpha", [c]).exp(), beta)
    };
    for c in WIDTHS.into_iter().chain([96, 192]) {
        let (frequency, gain) = logarithms(c);
        unary(cases, format!("Snake [2, 3, {c}]"), [2, 3, c], |g, x| g.snake(x, frequency, gain))?;
    }
    for most in [1e-3f32, 6.0, 100.0] {
        let name = format!("Snake of numbers up to {most}");
        let mut g = Graph::new(&*name);
        let x = g.input("x", DType::F32, [67, 6])?;
        let (frequency, gain) = logarithms(6);
        let y = g.snake(x, frequency, gain)?;
        g.output("y", y)?;
        let ramp = (0..402).map(|i| most * (i as f32 / 200.0 - 1.0));
        cases.push(Case::new(name, g).with("x", ramp.collect::<Vec<_>>()));
    }
    Ok(())
}

pub(super) fn spread(cases: &mut Vec<Case>) -> Result<()> {
    for c in WIDTHS {
        let (a, b) = (Weight::named("a", [c]), Weight::named("b", [c]));
        unary(cases, format!("AddBias [2, 3, {c}]"), [2, 3, c], |g, x| g.add_bias(x, a.clone()))?;
        unary(cases, format!("Affine [2, 3, {c}]"), [2, 3, c], |g, x| g.affine(x, a, b))?;
        for row in [vec![1, c], vec![c]] {
            let text = Shape::from(row.clone());
            unary(cases, format!("AddRow [2, 3, {c}] + {text}"), [2, 3, c], |g, x| {
                let row = g.input("row", DType::F32, row.clone())?;
                g.add_row(x, row)
            })?;
            unary(cases, format!("MulRow [2, 3, {c}] · {text}"), [2, 3, c], |g, x| {
                let row = g.input("row", DType::F32, row)?;
                g.mul_row(x, row)
            })?;
        }
    }
    unary(cases, "Affine of a folded batch norm".into(), [1, 7, 20], |g, x| {
        let v = |name: &str| Weight::named(name, [20]);
        let scale = v("weight").mul(&v("var").add(&Weight::fill(1e-5, [1])).sqrt().reciprocal());
        let shift = v("bias").add(&v("mean").scale(-1.0).mul(&scale));
        g.affine(x, scale, shift)
    })?;
    unary(cases, "AddBias of a vector".into(), [9], |g, x| g.add_bias(x, Weight::named("a", [9])))
}

pub(super) fn activate(cases: &mut Vec<Case>) -> Result<()> {
    for f in activations() {
        for n in WIDTHS {
            unary(cases, format!("Activate {} [{n}]", f.name()), [n], |g, x| g.activate(x, f.clone()))?;
        }
        for (what, low, high) in [
            ("near zero", -1e-3f32, 1e-3f32),
            ("moderate", -6.0, 6.0),
            ("negative", -90.0, 0.0),
            ("wide", -40.0, 40.0),
            ("large", -1e4, 1e4),
        ] {
            if what == "large" && !matches!(f, Activation::Sin | Activation::Cos) {
                continue;
            }
            let name = format!("Activate {} of {what} numbers", f.name());
            let mut g = Graph::new(&*name);
            let x = g.input("x", DType::F32, [3, 67])?;
            let y = g.activate(x, f.clone())?;
            g.output("y", y)?;
            let ramp = (0..201).map(|i| low + (high - low) * i as f32 / 200.0);
            let mut case = Case::new(name, g).with("x", ramp.collect::<Vec<_>>());
            if f == Activation::Exp {
                // The rounding of the argument costs |x| roundings of the result.
                case.tolerance += f64::from(high) * tolerance::ROUNDING;
            }
            cases.push(case);
        }
    }
    Ok(())
}

pub(super) fn sums(cases: &mut Vec<Case>) -> Result<()> {
    for n in WIDTHS {
        let shape = [1, 3, n];
        let two =
            |cases: &mut Vec<Case>, name: String, op: &dyn Fn(&mut Graph, Value, Value) -> Result<Value>| {
                unary(cases, name, shape, |g, x| {
                    let y = g.input("other", DType::F32, shape)?;
                    op(g, x, y)
                })
            };
        two(cases, format!("Add [1, 3, {n}]"), &|g, x, y| g.add(x, y))?;
        two(cases, format!("Mul [1, 3, {n}]"), &|g, x, y| g.mul(x, y))?;
        two(cases, format!("Combine 4x − 3y [1, 3, {n}]"), &|g, x, y| {
            g.combine(Factor::Const(4.0), x, Factor::Const(-3.0), y)
        })?;
        two(cases, format!("Combine x + s·y [1, 3, {n}]"), &|g, x, y| {
            let s = g.scalar("s");
            g.combine(Factor::Const(1.0), x, Factor::Scalar(s), y)
        })?;
        two(cases, format!("Combine s·x + t·y [1, 3, {n}]"), &|g, x, y| {
            let (s, t) = (g.scalar("s"), g.scalar("t"));
            g.combine(Factor::Scalar(s), x, Factor::Scalar(t), y)
        })?;
        unary(cases, format!("Scale by 0.3 [1, 3, {n}]"), shape, |g, x| g.scale(x, Factor::Const(0.3)))?;
        unary(cases, format!("Scale by a scalar [1, 3, {n}]"), shape, |g, x| {
            let s = g.scalar("s");
            g.scale(x, Factor::Scalar(s))
        })?;
    }
    unary(cases, "Add of a value to itself".into(), [2, 33], |g, x| g.add(x, x))?;
    unary(cases, "Mul of a value by itself".into(), [2, 33], |g, x| g.mul(x, x))?;
    unary(cases, "Mul that gates".into(), [1, 5, 24], |g, x| {
        let gate = g.matmul(x, Weight::named("gate", [32, 24]).transpose())?;
        let gate = g.activate(gate, Activation::Silu)?;
        let up = g.matmul(x, Weight::named("up", [32, 24]).transpose())?;
        g.mul(gate, up)
    })?;
    unary(cases, "Combine of a value with itself".into(), [2, 33], |g, x| {
        g.combine(Factor::Const(2.0), x, Factor::Const(0.5), x)
    })
}

pub(super) fn mask_rows(cases: &mut Vec<Case>) -> Result<()> {
    for (b, t, c) in [(1, 1, 1), (1, 9, 17), (2, 5, 8), (3, 33, 7), (32, 1, 1024)] {
        let mut g = Graph::new("MaskRows");
        let x = g.input("x", DType::F32, [b, t, c])?;
        let lens = g.input("lens", DType::I32, [b])?;
        let y = g.mask_rows(x, Some(lens))?;
        g.output("y", y)?;
        let name = |what: &str| format!("MaskRows [{b}, {t}, {c}] {what}");
        cases.push(Case::new(name("random"), g.clone()));
        cases.push(Case::new(name("all"), g.clone()).with("lens", vec![t as i32; b]));
        cases.push(Case::new(name("longer than there is"), g.clone()).with("lens", vec![t as i32 + 3; b]));
        cases.push(Case::new(name("none"), g.clone()).with("lens", vec![0; b]));
        // Masked rows are set to zero, not multiplied by it.
        let case = Case::new(name("not a number"), g).with("lens", vec![0; b]);
        cases.push(case.with("x", vec![f32::NAN; b * t * c]));
    }
    Ok(())
}
