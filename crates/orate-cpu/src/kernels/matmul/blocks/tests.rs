//! Block matmuls compared with the formula, on every instruction set of this machine.

use super::*;
use crate::kernels::activation::Activation;
use crate::kernels::matmul::pack::Strided;
use crate::kernels::matmul::tests::numbers;
use crate::kernels::matmul::{Columns, Edges};
use half::f16;
use orate_graph::blocks::SuperBlock;

/// x as the matmul sees it, `[M, K]`: gathered, then rounded by definition.
fn rounded(rows: Rows<'_>, m: usize, k: usize) -> Vec<f64> {
    // A matmul with the identity matrix gathers the rows of a convolution.
    let mut unit = vec![0.0; k * k];
    (0..k).for_each(|i| unit[i * k + i] = 1.0);
    let mut x = vec![0.0; m * k];
    let w = Strided { data: &unit, k_stride: k, n_stride: 1 };
    super::super::plain(rows, k, k, w, &Epilogue::NONE, &mut x);
    let channels = if let Rows::Conv { channels, .. } = rows { channels } else { k };
    let mut out = vec![];
    for row in x.chunks_exact(channels) {
        for block in row.chunks(BLOCK) {
            let largest = block.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            let scale = f64::from(largest / 127.0);
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            out.extend(block.iter().map(|x| scale * f64::from((x * inverse).round_ties_even())));
        }
    }
    out
}

struct Case<'a> {
    name: &'a str,
    rows: Rows<'a>,
    m: usize,
    k: usize,
    n: usize,
}

fn check(format: BlockFormat, case: &Case<'_>) {
    check_with(format, case, &numbers(case.k * case.n, 2), 2.0 * (case.k as f64).sqrt());
}

/// With these weights, whose partial sums stay below `largest`.
fn check_with(format: BlockFormat, case: &Case<'_>, weights: &[f32], largest: f64) {
    let &Case { name, rows, m, k, n } = case;
    let (bias, residual) = (numbers(n, 3), numbers(m * n, 4));
    let full = (m + n).is_multiple_of(2);
    let epilogue = match full {
        true => Epilogue { bias: Some(&bias), activation: Some(Activation::Silu), residual: Some(&residual) },
        false => Epilogue::NONE,
    };
    let x = rounded(rows, m, k);
    let one = Team::new(1).unwrap();
    let w = Strided { data: weights, k_stride: 1, n_stride: k };
    let packed = PackedBlocks::pack(Isa::PORTABLE, format, &one, (k, n), w);
    let mut expected = vec![];
    for row in x.chunks_exact(k) {
        for col in 0..n {
            let sum: f64 = row.iter().enumerate().map(|(i, x)| x * packed.weight(i, col)).sum();
            expected.push(sum);
        }
    }
    if full {
        for (i, e) in expected.iter_mut().enumerate() {
            let sum = *e + f64::from(bias[i % n]);
            *e = sum / (1.0 + (-sum).exp()) + f64::from(residual[i]);
        }
    }
    // One rounding for each of the K/32 partial sums.
    let tolerance = 1e-6 + 6e-8 * largest * (k as f64 / 32.0 + 4.0);
    let (source, channels) = match rows {
        Rows::Dense { .. } => (m, k),
        Rows::Conv { x, channels, edges, .. } => ((x.len() + edges.rows().len()) / channels, channels),
    };
    for isa in Isa::available() {
        let mut first: Option<Vec<f32>> = None;
        for threads in [1, 2, 3] {
            let team = Team::new(threads).unwrap();
            let mut y = vec![f32::NAN; m * n];
            let mut scratch = vec![f32::NAN; scratch_len(source, channels)];
            matmul(isa, &team, rows, &packed, &epilogue, &mut y, &mut scratch);
            for (i, (&got, want)) in y.iter().zip(&expected).enumerate() {
                assert!(
                    (f64::from(got) - want).abs() <= tolerance,
                    "{name} [{m}, {k}] x [{k}, {n}] in {} on {isa}, {threads} threads: ({}, {}) is {got}, not {want}",
                    format.name(),
                    i / n,
                    i % n,
                );
            }
            let first = first.get_or_insert_with(|| y.clone());
            assert!(first.iter().zip(&y).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}: threads differ");
        }
    }
}

#[test]
fn products() {
    for format in BlockFormat::ALL {
        for (m, k, n) in [
            (1, 1_usize, 1),
            (1, 32, 32),
            (1, 33, 31),
            (2, 64, 33),
            (3, 31, 17),
            (5, 1024, 96),
            (1, 1024, 3072),
            (1, 3072, 1024),
            (7, 100, 65),
            (13, 256, 40),
            (200, 96, 70),
            (97, 512, 64),
            (4, 256, 1),
        ] {
            if format.block_len() > BLOCK && !k.is_multiple_of(format.block_len()) {
                continue;
            }
            let x = numbers(m * k, 1);
            check(format, &Case { name: "dense", rows: Rows::Dense { x: &x, chosen_for: m }, m, k, n });
        }
    }
}

/// Integers as large as a format has, with those of x, all of one sign: sums of products must not leave the
/// width in which a set adds them.
#[test]
fn the_largest_integers() {
    let (k, n) = (256, 48);
    for format in BlockFormat::ALL {
        for (sign, x_sign) in [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)] {
            // One of every 16 makes the range a format's own; the others are at its other end.
            let weight = |i: usize| sign * if i % 16 == i / 16 % 16 { -1.0 } else { 31.0 / 32.0 };
            let weights: Vec<f32> = (0..k * n).map(weight).collect();
            for m in [1, 2, 3, 4, 6, 11] {
                let x = vec![x_sign; m * k];
                let rows = Rows::Dense { x: &x, chosen_for: m };
                let case = Case { name: "largest", rows, m, k, n };
                check_with(format, &case, &weights, k as f64);
            }
        }
    }
}

#[test]
fn convolutions() {
    for (batch, time, channels, taps, dilation, left, with_history) in [
        (1, 1, 32, 3, 1, 2, true),
        (2, 9, 64, 7, 3, 18, true),
        (2, 9, 32, 7, 1, 3, false),
        (1, 40, 96, 3, 9, 18, true),
        (3, 5, 32, 1, 1, 0, false),
        (2, 9, 256, 3, 3, 2, true),
    ] {
        let (m, k, n) = (batch * time, taps * channels, 48);
        let x = numbers(m * channels, 1);
        let before = numbers(batch * left * channels, 5);
        let zeros = vec![0.0; channels];
        let other = if with_history { Edges::History(&before) } else { Edges::Repeat };
        for edges in [other, Edges::Zeros(&zeros)] {
            let rows =
                Rows::Conv { x: &x, batch, time, chosen_for: time, channels, taps, dilation, left, edges };
            let case = Case { name: "convolution", rows, m, k, n };
            for format in BlockFormat::ALL.into_iter().filter(|f| channels.is_multiple_of(f.block_len())) {
                check(format, &case);
            }
        }
    }
}

/// Zeros, one large value among small ones, and values too small for an f16 scale do no harm.
#[test]
fn odd_numbers() {
    let team = Team::new(1).unwrap();
    let (k, n) = (512, 3);
    let mut weights = vec![0.0; k * n];
    weights[0] = 1e-9;
    weights[k] = 5.0;
    weights[2 * k..].copy_from_slice(&numbers(k, 1));
    let w = Strided { data: &weights, k_stride: 1, n_stride: k };
    for format in BlockFormat::ALL {
        let packed = PackedBlocks::pack(Isa::PORTABLE, format, &team, (k, n), w);
        for isa in Isa::available() {
            for x in [vec![0.0; k], vec![1e-30; k], vec![1e30; k]] {
                let (mut y, mut scratch) = (vec![f32::NAN; n], vec![0.0; scratch_len(1, k)]);
                matmul(
                    isa,
                    &team,
                    Rows::Dense { x: &x, chosen_for: 1 },
                    &packed,
                    &Epilogue::NONE,
                    &mut y,
                    &mut scratch,
                );
                assert!(y.iter().all(|y| y.is_finite()), "{isa} {}: {y:?} of {}", format.name(), x[0]);
                assert!((y[1] - 5.0 * x[0]).abs() <= 0.01 * x[0], "{isa} {}: {y:?}", format.name());
            }
        }
    }
}

/// Signal-to-noise ratio of the rounding in dB, for random values.
#[test]
fn rounding_is_as_fine_as_the_format() {
    let (m, k, n) = (4, 1024, 64);
    let (x, weights) = (numbers(m * k, 1), numbers(k * n, 2));
    let team = Team::new(1).unwrap();
    let w = Strided { data: &weights, k_stride: n, n_stride: 1 };
    let mut exact = vec![0.0; m * n];
    super::super::plain(Rows::Dense { x: &x, chosen_for: m }, k, n, w, &Epilogue::NONE, &mut exact);
    for (format, least) in BlockFormat::ALL.into_iter().zip([42.0, 34.0, 28.0, 22.0, 20.0]) {
        let packed = PackedBlocks::pack(Isa::PORTABLE, format, &team, (k, n), w);
        let (mut y, mut scratch) = (vec![0.0; m * n], vec![0.0; scratch_len(m, k)]);
        let rows = Rows::Dense { x: &x, chosen_for: m };
        matmul(Isa::PORTABLE, &team, rows, &packed, &Epilogue::NONE, &mut y, &mut scratch);
        let power: f32 = exact.iter().map(|e| e * e).sum();
        let noise: f32 = exact.iter().zip(&y).map(|(e, y)| (e - y) * (e - y)).sum();
        let snr = 10.0 * (power / noise).log10();
        assert!(snr > least, "{}: {snr} dB", format.name());
    }
}

/// The bytes do not depend on the instruction set, on the order of the matrix, or on packing column by
/// column.
#[test]
fn packing_gives_the_same_bytes_everywhere() {
    let team = Team::new(2).unwrap();
    for (k, n) in [(1, 1), (31, 33), (64, 32), (100, 70), (512, 70)] {
        let by_column = numbers(k * n, 5);
        let by_row: Vec<f32> = (0..k * n).map(|i| by_column[i % n * k + i / n]).collect();
        for format in
            BlockFormat::ALL.into_iter().filter(|f| f.block_len() == BLOCK || k.is_multiple_of(f.block_len()))
        {
            let columns = Strided { data: &by_column, k_stride: 1, n_stride: k };
            let rows = Strided { data: &by_row, k_stride: n, n_stride: 1 };
            let expected = PackedBlocks::pack(Isa::PORTABLE, format, &team, (k, n), columns);
            let read = |j: usize, out: &mut [f32]| out.copy_from_slice(&by_column[j * k..][..k]);
            for isa in Isa::available() {
                for w in [Columns::Matrix(columns), Columns::Matrix(rows), Columns::Each(&read)] {
                    let packed = PackedBlocks::pack_columns(isa, format, &team, (k, n), w);
                    assert_eq!(packed.all(), expected.all(), "[{k}, {n}] in {} by {isa}", format.name());
                }
            }
        }
    }
}

/// Blocks of a file stay what they are, also those that no encoder writes: any bytes whose scales are finite.
#[test]
fn stored_blocks_are_kept() {
    let team = Team::new(2).unwrap();
    for format in BlockFormat::ALL {
        for (k, n) in [(256, 1), (512, 33), (768, 64)] {
            let (mut bytes, mut weights) = (vec![], vec![]);
            let mut seed = 77_u32;
            let mut byte = || {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 24) as u8
            };
            let half = |byte: u8| f16::from_f32(f32::from(byte as i8) / 512.0);
            for _ in 0..n * k / format.block_len() {
                let d = half(byte());
                match format {
                    BlockFormat::Super(f) => {
                        let random: Vec<u8> = (0..f.bytes()).map(|_| byte()).collect();
                        let block = SuperBlock { d, e: half(byte()), ..SuperBlock::read(f, &random) };
                        let block = SuperBlock {
                            e: if f == SuperFormat::Q6K { f16::ZERO } else { block.e },
                            ..block
                        };
                        let mut values = [0.0; 256];
                        block.write(f, &mut bytes);
                        block.weights(f, &mut values);
                        weights.extend(values.map(f64::from));
                    }
                    _ => {
                        bytes.extend(d.to_le_bytes());
                        let numbers: Vec<u8> = (0..format.block_len()).map(|_| byte()).collect();
                        let number = |i: usize| match format {
                            BlockFormat::Q8_0 => f64::from(numbers[i] as i8),
                            _ if i < 16 => f64::from(numbers[i] & 15) - 8.0,
                            _ => f64::from(numbers[i - 16] >> 4) - 8.0,
                        };
                        weights.extend((0..format.block_len()).map(|i| f64::from(d.to_f32()) * number(i)));
                        bytes.extend(&numbers[..if format == BlockFormat::Q8_0 { 32 } else { 16 }]);
                    }
                }
            }
            let packed = PackedBlocks::pack_stored(format, &team, (k, n), &bytes);
            for (i, want) in weights.into_iter().enumerate() {
                let got = packed.weight(i % k, i / k);
                let close = (got - want).abs() <= 1e-6 * want.abs().max(0.1);
                assert!(close, "{}: ({}, {}) is {got}, not {want}", format.name(), i % k, i / k);
            }
        }
    }
}

/// Blocks of a column of weights as the format defines them.
fn by_definition(format: BlockFormat, block: &[f32]) -> Vec<f64> {
    let (mut largest, scale) = (0.0_f32, if format == BlockFormat::Q8_0 { 127.0 } else { -8.0 });
    for w in block {
        if w.abs() > largest.abs() {
            largest = if format == BlockFormat::Q8_0 { w.abs() } else { *w };
        }
    }
    let d = largest / scale;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let whole = |w: f32| match format {
        BlockFormat::Q8_0 => f64::from((w * inverse).round() as i8),
        _ => f64::from((w * inverse + 8.5).clamp(0.0, 15.0) as u8) - 8.0,
    };
    block.iter().map(|w| f64::from(f16::from_f32(d).to_f32()) * whole(*w)).collect()
}

/// Also of zeros, ties, numbers that are not finite, and those whose scale is none of f16.
#[test]
fn packing_rounds_by_definition() {
    let team = Team::new(2).unwrap();
    for (k, n) in [(32, 32), (70, 300), (64, 513)] {
        let mut weights = numbers(k * n, 7);
        let odd =
            [0.0, -0.0, 1.0, -1.0, 0.5 / 127.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, 1e30];
        for (i, w) in weights.iter_mut().enumerate() {
            match i % n {
                1 => *w = 0.0,
                2 => *w = [1.0, -1.0][i / n % 2],
                3 => *w = (i / n) as f32 / 2.0,
                column @ 4.. if i / n == column % k => *w = odd[column % odd.len()],
                _ => {}
            }
        }
        let by_column: Vec<f32> = (0..k * n).map(|i| weights[i % k * n + i / k]).collect();
        let rows = Strided { data: &weights, k_stride: n, n_stride: 1 };
        let columns = Strided { data: &by_column, k_stride: 1, n_stride: k };
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_0] {
            for (isa, w) in Isa::available().into_iter().flat_map(|isa| [(isa, rows), (isa, columns)]) {
                let packed = PackedBlocks::pack(isa, format, &team, (k, n), w);
                for (column, weights) in by_column.chunks_exact(k).enumerate() {
                    let expected = weights.chunks(BLOCK).flat_map(|block| by_definition(format, block));
                    for (i, want) in expected.enumerate() {
                        let got = packed.weight(i, column);
                        assert!(
                            got == want || got.is_nan() && want.is_nan(),
                            "{} by {isa}: ({i}, {column}) of [{k}, {n}] is {got}, not {want}",
                            format.name()
                        );
                    }
                }
            }
        }
    }
}
