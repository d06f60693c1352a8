//! Convolutions: all shipped geometries, dense and depthwise, in one pass and after a history.

use super::matmul::epilogues;
use super::rows::norm;
use super::{Case, WIDTHS, unary};
use orate_graph::{Activation, ConvGeometry, DType, Result, Weight};

/// Shipped geometries, and some with unusual padding.
fn geometries() -> Vec<(String, ConvGeometry)> {
    let mut all = vec![];
    for taps in [1, 3, 5, 7] {
        for dilation in [1, 2, 4, 8] {
            all.push((format!("k{taps} d{dilation} symmetric"), ConvGeometry::symmetric(taps, dilation)));
            all.push((format!("k{taps} d{dilation} causal"), ConvGeometry::causal(taps, dilation)));
            let zeros = ConvGeometry::symmetric(taps, dilation).with_zeros();
            all.push((format!("k{taps} d{dilation} symmetric zeros"), zeros));
        }
    }
    // Those of Chatterbox's token encoder and speech tokenizer among them.
    for (taps, dilation, left) in [(4, 1, 1), (3, 2, 0), (4, 1, 0), (3, 1, 2), (5, 1, 4), (31, 1, 15)] {
        let repeat = ConvGeometry { left, ..ConvGeometry::causal(taps, dilation) };
        for (what, geometry) in [("", repeat), (" zeros", repeat.with_zeros())] {
            all.push((format!("k{taps} d{dilation} left {left}{what}"), geometry));
        }
    }
    all
}

pub(super) fn conv1d(cases: &mut Vec<Case>) -> Result<()> {
    let mut one = |b: usize, t: usize, c: usize, n: usize, name: &str, geometry: ConvGeometry| {
        let weight = Weight::named("w", [geometry.taps * c, n]);
        unary(cases, format!("Conv1d {name} [{b}, {t}, {c}] → {n}"), [b, t, c], |g, x| {
            g.conv1d(x, weight, geometry)
        })
    };
    for (i, (name, geometry)) in geometries().into_iter().enumerate() {
        // Lengths shorter and longer than the padding.
        one(1 + i % 3, 1 + i % 4, 5, 9, &name, geometry)?;
        one(1 + i % 2, 23, 8, 17, &name, geometry)?;
    }
    for width in WIDTHS {
        one(2, 6, width, 12, "k3 d1 causal", ConvGeometry::causal(3, 1))?;
        one(1, 13, 6, width, "k7 d1 causal", ConvGeometry::causal(7, 1))?;
    }
    // To one channel, as at the end of a vocoder.
    for (t, c) in [(5, 32), (32, 64), (70, 96), (33, 128), (1000, 96), (40, 160)] {
        one(2, t, c, 1, "k7 d1 causal", ConvGeometry::causal(7, 1))?;
        one(1, t, c, 1, "k7 d1 symmetric", ConvGeometry::symmetric(7, 1))?;
    }
    // Zeros beyond the ends: sequences shorter than the padding, tiles of rows, odd and narrow ones.
    for (b, t, c, n) in [(1, 2, 32, 64), (2, 61, 32, 70), (1, 300, 64, 256), (1, 700, 80, 64), (2, 33, 6, 1)]
    {
        for (name, geometry) in [
            ("k3 d1 causal zeros", ConvGeometry::causal(3, 1).with_zeros()),
            ("k3 d5 symmetric zeros", ConvGeometry::symmetric(3, 5).with_zeros()),
            ("k7 d1 left 0 zeros", ConvGeometry { left: 0, ..ConvGeometry::causal(7, 1).with_zeros() }),
        ] {
            one(b, t, c, n, name, geometry)?;
        }
    }
    unary(cases, "Conv1d k7 d1 causal [2, 37, 32] → 1 + bias PReLU".into(), [2, 37, 32], |g, x| {
        let y = g.conv1d(x, Weight::named("w", [224, 1]), ConvGeometry::causal(7, 1))?;
        let y = g.add_bias(y, Weight::named("bias", [1]))?;
        g.activate(y, Activation::PRelu(Weight::named("slope", [1])))
    })?;
    epilogues(cases, "Conv1d k3 d2 causal [2, 7, 6] → 19", [2, 7, 6], 19, |g, x| {
        g.conv1d(x, Weight::named("w", [18, 19]), ConvGeometry::causal(3, 2))
    })?;
    epilogues(cases, "Conv1d k3 d2 causal zeros [2, 7, 6] → 19", [2, 7, 6], 19, |g, x| {
        g.conv1d(x, Weight::named("w", [18, 19]), ConvGeometry::causal(3, 2).with_zeros())
    })
}

pub(super) fn depthwise_conv1d(cases: &mut Vec<Case>) -> Result<()> {
    let mut one = |b: usize, t: usize, c: usize, name: &str, geometry: ConvGeometry, normed: bool| {
        let (w, bias) = (Weight::named("w", [geometry.taps, c]), Weight::named("bias", [c]));
        let suffix = if normed { " + norm" } else { "" };
        unary(cases, format!("DepthwiseConv1d {name} [{b}, {t}, {c}]{suffix}"), [b, t, c], |g, x| {
            let y = g.depthwise_conv1d(x, w, bias, geometry)?;
            if normed { g.layer_norm(y, norm(c)) } else { Ok(y) }
        })
    };
    for (i, (name, geometry)) in geometries().into_iter().enumerate() {
        for normed in [false, true] {
            one(1 + i % 3, 1 + i % 4, 9, &name, geometry, normed)?;
            one(1 + i % 2, 37, 16, &name, geometry, normed)?;
        }
    }
    for c in WIDTHS {
        one(2, 11, c, "k5 d2 symmetric", ConvGeometry::symmetric(5, 2), false)?;
        one(1, 11, c, "k7 d1 causal", ConvGeometry::causal(7, 1), false)?;
        // Normalizing one or two channels leaves only signs, which rounding could flip.
        if c > 2 {
            one(2, 11, c, "k5 d2 symmetric", ConvGeometry::symmetric(5, 2), true)?;
            one(1, 11, c, "k7 d1 causal", ConvGeometry::causal(7, 1), true)?;
        }
    }
    // The memory of the speech tokenizer of Chatterbox.
    one(1, 50, 1280, "k31 d1 zeros", ConvGeometry::symmetric(31, 1).with_zeros(), false)?;
    lengths(cases)?;
    // Stored [C, 1, taps], as in the checkpoints.
    unary(cases, "DepthwiseConv1d, weight transposed".into(), [1, 9, 24], |g, x| {
        let w = Weight::named("w", [24, 1, 5]).reshape([24, 5]).transpose();
        g.depthwise_conv1d(x, w, Weight::named("bias", [24]), ConvGeometry::symmetric(5, 1))
    })
}

/// Depthwise convolutions of sequences with lengths of their own, the blocks of Supertonic among them.
fn lengths(cases: &mut Vec<Case>) -> Result<()> {
    for (taps, dilation) in [(5, 1), (5, 2), (5, 8), (7, 1), (3, 1), (4, 2), (31, 1)] {
        let geometry = ConvGeometry::symmetric(taps, dilation).with_lengths();
        for (lengths, t, c) in [
            (vec![1], 1, 9),
            (vec![9, 37], 37, 16),
            (vec![72, 1, 20], 72, 512),
            (vec![4], 13, 33),
            (vec![40, 39], 64, 700),
            (vec![300, 400, 17], 400, 256),
        ] {
            for normed in [false, true] {
                let suffix = if normed { " + norm" } else { "" };
                let name =
                    format!("DepthwiseConv1d k{taps} d{dilation} of {lengths:?} of {t} rows of {c}{suffix}");
                unary(cases, name, [lengths.len(), t, c], |g, x| {
                    let lens = g.input("lengths", DType::I32, [lengths.len()])?;
                    let (w, bias) = (Weight::named("w", [taps, c]), Weight::named("bias", [c]));
                    let y = g.depthwise_conv1d_of(lens, x, w, bias, geometry)?;
                    if normed { g.layer_norm(y, norm(c)) } else { Ok(y) }
                })?;
                let case = cases.pop().expect("just made").with("lengths", lengths.clone());
                cases.push(case);
            }
        }
    }
    Ok(())
}

/// Convolutions after a history: inputs shorter and longer than it, alone and with all fused ops.
pub(super) fn streaming(cases: &mut Vec<Case>) -> Result<()> {
    for (taps, dilation) in [(2, 1), (3, 1), (7, 1), (7, 3), (7, 9), (4, 2), (1, 1)] {
        let geometry = ConvGeometry::streaming(taps, dilation);
        for (b, t, c, n) in [(1, 1, 5, 9), (2, 3, 8, 17), (1, 61, 16, 12), (2, 33, 33, 6), (2, 45, 96, 1)] {
            let mut name = format!("Conv1d k{taps} d{dilation} behind a history [{b}, {t}, {c}] → {n}");
            unary(cases, name, [b, t, c], |g, x| {
                let h = g.input("history", DType::F32, [b, geometry.left, c])?;
                g.conv1d_after(h, x, Weight::named("w", [taps * c, n]), geometry)
            })?;
            name = format!("DepthwiseConv1d k{taps} d{dilation} behind a history [{b}, {t}, {c}]");
            unary(cases, name, [b, t, c], |g, x| {
                let h = g.input("history", DType::F32, [b, geometry.left, c])?;
                let (w, bias) = (Weight::named("w", [taps, c]), Weight::named("bias", [c]));
                let y = g.depthwise_conv1d_after(h, x, w, bias, geometry)?;
                if t == 61 { g.layer_norm(y, norm(c)) } else { Ok(y) }
            })?;
        }
    }
    let geometry = ConvGeometry::streaming(7, 3);
    epilogues(cases, "Conv1d k7 d3 behind a history [2, 9, 6] → 19", [2, 9, 6], 19, |g, x| {
        let h = g.input("history", DType::F32, [2, 18, 6])?;
        g.conv1d_after(h, x, Weight::named("w", [42, 19]), geometry)
    })?;
    // A transposed convolution of stride 3 and 6 taps, stored `[in, out, taps]`: each row and the one before
    // it give 3 output rows. The first row starts a stream.
    unary(cases, "Conv1d that is a transposed convolution".into(), [1, 7, 10], |g, x| {
        let w = Weight::named("w", [10, 4, 6]).reshape([10, 4, 2, 3]).permute(&[2, 0, 3, 1]).flip();
        let zeros = g.constant(Weight::fill(0.0, [1, 1, 10]), 1)?;
        let y = g.conv1d_after(zeros, x, w.reshape([20, 12]), ConvGeometry::streaming(2, 1))?;
        g.reshape(y, [1, 21, 4])
    })?;
    for (t, c, dilation) in [(33, 16, 3), (9, 6, 1)] {
        unary(
            cases,
            format!("Conv1d d{dilation} between two Snakes [2, {t}, {c}] → 20"),
            [2, t, c],
            |g, x| {
                let geometry = ConvGeometry::streaming(3, dilation);
                let vector = |name: &str, n: usize| Weight::named(name, [n]);
                let x = g.snake(x, vector("before.f", c), vector("before.g", c))?;
                let h = g.state("history", DType::F32, [2, geometry.left, c])?;
                let end = g.slice(x, 1, t - geometry.left, geometry.left)?;
                g.update("history", end)?;
                let y = g.conv1d_after(h, x, Weight::named("w", [3 * c, 20]), geometry)?;
                let y = g.add_bias(y, vector("bias", 20))?;
                g.snake(y, vector("after.f", 20), vector("after.g", 20))
            },
        )?;
    }
    // A stream: the last input rows become the new history state.
    unary(cases, "Conv1d that keeps its history".into(), [1, 5, 8], |g, x| {
        let h = g.state("history", DType::F32, [1, 2, 8])?;
        let y = g.conv1d_after(h, x, Weight::named("w", [24, 7]), ConvGeometry::streaming(3, 1))?;
        let end = g.slice(x, 1, 3, 2)?;
        g.update("history", end)?;
        Ok(y)
    })
}
