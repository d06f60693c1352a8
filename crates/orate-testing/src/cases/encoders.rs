//! Cases for the encoders of voices, padding, statistics over time, and codes; and for both ends of a
//! vocoder.

use super::{Case, unary};
use crate::random::Random;
use orate_graph::{ConvGeometry, DType, Graph, Padding, Result, Shape, Weight};

pub(super) fn pad(cases: &mut Vec<Case>) -> Result<()> {
    for padding in [Padding::Zero, Padding::Repeat, Padding::Reflect] {
        for (shape, before, after) in [
            ([1, 1, 1], 0, 0),
            ([1, 5, 17], 4, 4),
            ([2, 7, 8], 0, 3),
            ([3, 2, 33], 1, 0),
            ([1, 39, 512], 2, 1),
            ([2, 1, 5], 3, 2),
        ] {
            if padding == Padding::Reflect && before.max(after) >= shape[1] {
                continue; // refused by shape inference
            }
            let name = format!("Pad {} {} by {before} and {after}", padding.name(), Shape::from(shape));
            unary(cases, name, shape, |g, x| g.pad(x, padding, before, after))?;
        }
    }
    // A convolution whose edges are mirrored, with as many output as input rows.
    unary(cases, "Pad that mirrors the edges of a convolution".into(), [1, 9, 16], |g, x| {
        let padded = g.pad(x, Padding::Reflect, 3, 3)?;
        let history = g.slice(padded, 1, 0, 6)?;
        let x = g.slice(padded, 1, 6, 9)?;
        g.conv1d_after(history, x, Weight::named("w", [48, 7]), ConvGeometry::streaming(3, 3))
    })
}

pub(super) fn statistics(cases: &mut Vec<Case>) -> Result<()> {
    for scores in [false, true] {
        for (b, t, c) in
            [(1, 1, 1), (1, 2, 7), (2, 9, 16), (1, 143, 48), (3, 64, 17), (1, 700, 33), (1, 94, 1536)]
        {
            let name = format!("Statistics [{b}, {t}, {c}]{}", if scores { " by scores" } else { "" });
            unary(cases, name, [b, t, c], |g, x| {
                let scores = if scores { Some(g.input("scores", DType::F32, [b, t, c])?) } else { None };
                g.statistics(x, scores, 1e-12)
            })?;
        }
    }
    let mut g = Graph::new("Statistics");
    let x = g.input("x", DType::F32, [1, 5, 9])?;
    let y = g.statistics(x, None, 1e-2)?;
    g.output("y", y)?;
    cases.push(
        Case::new("Statistics of equal numbers, whose variance is the floor", g).with("x", vec![0.5; 45]),
    );
    // One row dominates, and exponentials must not overflow.
    let mut g = Graph::new("Statistics");
    let x = g.input("x", DType::F32, [1, 19, 8])?;
    let scores = g.input("scores", DType::F32, [1, 19, 8])?;
    let y = g.statistics(x, Some(scores), 1e-12)?;
    g.output("y", y)?;
    let far: Vec<f32> = (0..152).map(|i| ((i * 37) % 152) as f32 * 4.0 - 300.0).collect();
    cases.push(Case::new("Statistics by scores in the hundreds", g).with("scores", far));
    Ok(())
}

pub(super) fn residual_codes(cases: &mut Vec<Case>) -> Result<()> {
    for (b, t, e, q, v) in
        [(1, 1, 1, 1, 1), (1, 20, 16, 1, 128), (2, 3, 17, 4, 9), (1, 7, 256, 3, 100), (3, 5, 33, 15, 40)]
    {
        let name = format!("ResidualCodes [{b}, {t}, {e}] by [{q}, {v}, {e}]");
        unary(cases, name, [b, t, e], |g, x| g.residual_codes(x, Weight::named("books", [q, v, e])))?;
    }
    // All entries are equally far: the first one counts, also in the second book.
    unary(cases, "ResidualCodes among equal entries".into(), [1, 3, 8], |g, x| {
        g.residual_codes(x, Weight::fill(0.25, [2, 33, 8]))
    })?;
    // Codebook entries are assigned sums divided by usage counts; an unused entry is far away.
    let sums = Weight::named("sums", [11, 8]);
    let usage = Weight::named("usage", [11, 1]).at_least(1e-5).reciprocal();
    unary(cases, "ResidualCodes by a codebook".into(), [1, 7, 8], |g, x| {
        g.residual_codes(x, sums.mul(&usage).reshape([1, 11, 8]))
    })
}

/// Segments that divide the sequence, do not, and exceed it; those of Chatterbox have 100 rows.
pub(super) fn segment_mean(cases: &mut Vec<Case>) -> Result<()> {
    for (b, t, c, rows) in [
        (1, 1, 1, 1),
        (1, 500, 128, 100),
        (1, 501, 128, 100),
        (1, 99, 128, 100),
        (2, 7, 33, 3),
        (3, 8, 17, 8),
        (2, 5, 9, 1),
    ] {
        let name = format!("SegmentMean [{b}, {t}, {c}] of {rows} rows");
        unary(cases, name, [b, t, c], |g, x| g.segment_mean(x, rows))?;
    }
    Ok(())
}

/// Voiced and unvoiced frames, long sums, and few harmonics; Chatterbox has 9.
pub(super) fn harmonic_source(cases: &mut Vec<Case>) -> Result<()> {
    for (b, t, hop, h) in
        [(1, 1, 1, 1), (1, 60, 480, 9), (2, 9, 65, 3), (3, 40, 7, 1), (1, 3, 480, 17), (1, 1200, 480, 2)]
    {
        let name = format!("HarmonicSource [{b}, {t} · {hop}, {h}]");
        let mut g = Graph::new(&*name);
        let f0 = g.input("f0", DType::F32, [b, t, 1])?;
        let phases = g.input("phases", DType::F32, [b, h])?;
        let noise = g.input("noise", DType::F32, [b, t * hop, h])?;
        let y = g.harmonic_source(f0, phases, noise, hop, 24_000)?;
        g.output("y", y)?;
        let mut random = Random::named(11, &name);
        // Runs of voiced frames, and some without a voice: silent, and below the limit.
        let pitch = (0..b * t).map(|i| match i / 5 % 4 {
            3 => random.uniform(0.0, 10.0),
            2 if i % 5 == 0 => 0.0,
            _ => random.uniform(60.0, 400.0),
        });
        let pitch: Vec<f32> = pitch.collect();
        let phases = random.floats(b * h, -3.1, 3.1);
        cases.push(Case::new(name, g).with("f0", pitch).with("phases", phases));
    }
    Ok(())
}

/// LSTMs: of Chatterbox's voice encoder, and of sizes around tiles and vectors.
pub(super) fn lstm(cases: &mut Vec<Case>) -> Result<()> {
    for (batch, time, units) in
        [(1, 1, 1), (1, 160, 256), (13, 20, 256), (40, 7, 32), (2, 9, 17), (7, 5, 100), (3, 33, 8)]
    {
        // Stored [4H, H].
        let weight = Weight::named("weight_hh", [4 * units, units]).transpose();
        let name = format!("Lstm [{batch}, {time}, 4 · {units}]");
        unary(cases, name, [batch, time, 4 * units], |g, x| g.lstm(x, weight))?;
    }
    let name = "Lstm of a matmul, with gates far from zero";
    let mut g = Graph::new(name);
    let x = g.input("x", DType::F32, [2, 12, 40])?;
    let bias = Weight::named("bias_ih", [64]).add(&Weight::named("bias_hh", [64])).scale(6.0);
    let gates = g.linear(x, Weight::named("weight_ih", [64, 40]).transpose(), bias)?;
    let y = g.lstm(gates, Weight::named("weight_hh", [64, 16]).transpose())?;
    g.output("y", y)?;
    cases.push(Case::new(name, g));
    Ok(())
}

/// Frames of an inverse STFT: those of Chatterbox's vocoder, hops that do not divide the frame, and frames
/// that do not overlap.
pub(super) fn overlap_add(cases: &mut Vec<Case>) -> Result<()> {
    for (batch, frames, n, hop) in
        [(1, 121, 16, 4), (2, 2, 16, 4), (3, 9, 20, 7), (1, 5, 2, 1), (2, 40, 64, 64), (1, 33, 1024, 256)]
    {
        let name = format!("OverlapAdd [{batch}, {frames}, {n}] hop {hop}");
        unary(cases, name, [batch, frames, n], |g, x| g.overlap_add(x, Weight::named("window", [n]), hop))?;
    }
    Ok(())
}
