//! Matmuls of all sizes compared with the formula, on every instruction set of this machine.

use super::*;

/// Pseudorandom numbers between -1 and 1.
pub(super) fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Relative rounding error of one f32 operation.
const EPS: f64 = 6e-8;

struct Case {
    m: usize,
    k: usize,
    n: usize,
    activation: Option<Activation>,
    bias: bool,
    residual: bool,
    /// Weights as [out, in].
    transposed: bool,
}

impl Case {
    fn new(m: usize, k: usize, n: usize) -> Case {
        // Variety without testing all combinations.
        let activations = [
            None,
            Some(Activation::Relu),
            Some(Activation::PRelu(0.25)),
            Some(Activation::Gelu),
            Some(Activation::Mish),
            Some(Activation::Tanh),
        ];
        let pick = m + 3 * k + 7 * n;
        Case {
            m,
            k,
            n,
            activation: activations[pick % activations.len()],
            bias: !pick.is_multiple_of(3),
            residual: pick.is_multiple_of(2),
            transposed: pick % 5 < 3,
        }
    }
}

/// Runs a matmul on all instruction sets and with several team sizes, compares with the formula and asserts
/// that the number of threads changes no bit.
fn check(teams: &[Team], name: &str, rows: Rows<'_>, case: &Case) {
    let Case { m, k, n, .. } = *case;
    // Few digits, so that 16-bit formats represent them exactly.
    let weights: Vec<f32> = numbers(k * n, 2).iter().map(|w| (w * 64.0).round() / 64.0).collect();
    let w = match case.transposed {
        true => Strided { data: &weights, k_stride: 1, n_stride: k },
        false => Strided { data: &weights, k_stride: n, n_stride: 1 },
    };
    let (bias, residual) = (numbers(n, 3), numbers(m * n, 4));
    let epilogue = Epilogue {
        bias: case.bias.then_some(&bias),
        activation: case.activation,
        residual: case.residual.then_some(&residual),
    };
    let mut expected = vec![0.0; m * n];
    // The reference takes weights as [in, out].
    let in_out: Vec<f32> = (0..k * n).map(|i| weights[i / n * w.k_stride + i % n * w.n_stride]).collect();
    plain(rows, k, n, Strided { data: &in_out, k_stride: n, n_stride: 1 }, &epilogue, &mut expected);
    // Sums of K products of numbers below 1 stay below 2 sqrt(K) here. K roundings of such sums, half up and
    // half down, add up to about sqrt(K) times EPS of that. The activations have slopes up to 1.1 and errors
    // of about 3e-7.
    let tolerance = 2.0 * EPS * k as f64 + 1e-6;
    let elements = [Element::F32, Element::F16, Element::Bf16];
    for (isa, element) in Isa::available().into_iter().flat_map(|isa| elements.map(|e| (isa, e))) {
        let mut first: Option<Vec<f32>> = None;
        for team in teams {
            let packed = PackedWeights::pack(isa, team, element, (k, n), w);
            let mut y = vec![f32::NAN; m * n];
            let mut scratch =
                vec![f32::NAN; scratch_len(isa, team.threads(), [m, k, n], rows.chosen_for(), rows.taps())];
            matmul(isa, team, rows, &packed, &epilogue, &mut y, &mut scratch);
            for (i, (&got, &want)) in y.iter().zip(&expected).enumerate() {
                let error = (got as f64 - want as f64).abs();
                assert!(
                    error <= tolerance,
                    "{name} [{m}, {k}] x [{k}, {n}] in {element:?} on {isa}, {} threads, {:?}: \
                     element ({}, {}) is {got}, not {want}",
                    team.threads(),
                    case.activation,
                    i / n,
                    i % n
                );
            }
            let first = first.get_or_insert_with(|| y.clone());
            assert!(
                first.iter().zip(&y).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{name} [{m}, {k}] x [{k}, {n}] on {isa} differs between 1 and {} threads",
                team.threads()
            );
        }
    }
}

fn teams() -> Vec<Team> {
    [1, 2, 3].map(|n| Team::new(n).unwrap()).into()
}

fn check_dense(teams: &[Team], name: &str, m: usize, k: usize, n: usize) {
    let x = numbers(m * k, 1);
    check(teams, name, Rows::Dense { x: &x, chosen_for: m }, &Case::new(m, k, n));
}

#[test]
fn shapes_of_the_models() {
    let teams = teams();
    let shapes = [
        ("vector estimator, up", 72, 512, 1024),
        ("vector estimator, down", 72, 1024, 512),
        ("vector estimator 3, up", 144, 512, 2048),
        ("vector estimator 3, down", 144, 2048, 512),
        ("attention in", 72, 512, 256),
        ("attention out", 72, 256, 512),
        ("latent in", 72, 144, 512),
        ("latent out", 72, 512, 144),
        ("vocoder, up", 432, 512, 2048),
        ("vocoder, down", 432, 2048, 512),
        ("text, up", 80, 256, 1024),
        ("text, down", 80, 1024, 256),
        ("text", 80, 256, 256),
        ("duration, up", 80, 64, 256),
        ("duration, down", 80, 256, 64),
        ("one row", 1, 512, 512),
        ("built-in voice", 33, 384, 1024),
        ("tiny voice", 50, 48, 24),
    ];
    for (name, m, k, n) in shapes {
        check_dense(&teams, name, m, k, n);
    }
}

#[test]
fn lengths_around_every_edge() {
    let teams = teams();
    for m in (1..=18).chain([31, 33]) {
        check_dense(&teams, "rows", m, 37, 50);
    }
    for k in (1..=9).chain([15, 16, 17, 63, 64, 65, 511, 512, 513, 514, 1023, 1025, 1537]) {
        check_dense(&teams, "inputs", 5, k, 40);
        check_dense(&teams, "inputs", 40, k, 70);
    }
    for n in (1..=50).chain([63, 64, 65, 95, 96, 97, 112, 113, 128, 160]) {
        check_dense(&teams, "outputs", 9, 19, n);
    }
    // Long enough for several threads and blocks of rows.
    for (m, k, n) in [(193, 129, 113), (400, 65, 31), (7, 3000, 47), (65, 3000, 17), (1, 700, 900)] {
        check_dense(&teams, "large and odd", m, k, n);
    }
}

#[test]
fn nothing_to_do() {
    let team = Team::new(2).unwrap();
    for isa in Isa::available() {
        let mut scratch = vec![0.0; scratch_len(isa, 2, [4, 4, 4], 4, None)];
        for (m, k, n) in [(0, 4, 4), (4, 4, 0)] {
            let data = numbers(k * n, 1);
            let w = PackedWeights::pack(
                isa,
                &team,
                Element::F32,
                (k, n),
                Strided { data: &data, k_stride: n, n_stride: 1 },
            );
            let x = numbers(m * k, 2);
            matmul(
                isa,
                &team,
                Rows::Dense { x: &x, chosen_for: m },
                &w,
                &Epilogue::NONE,
                &mut [],
                &mut scratch,
            );
        }
        // An empty sum is zero.
        let w = PackedWeights::pack(
            isa,
            &team,
            Element::F32,
            (0, 3),
            Strided { data: &[], k_stride: 3, n_stride: 1 },
        );
        let (mut y, bias) = ([9.0; 6], [1.0, 2.0, 3.0]);
        let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::NONE };
        matmul(isa, &team, Rows::Dense { x: &[], chosen_for: 0 }, &w, &epilogue, &mut y, &mut scratch);
        assert_eq!(y, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    }
}

#[test]
fn convolutions() {
    let teams = teams();
    // (batch, time, channels, taps, dilation, left, n)
    let cases = [
        (1, 432, 512, 3, 1, 2, 64),
        (1, 432, 24, 7, 1, 6, 512),
        (1, 432, 24, 7, 1, 3, 64),
        (2, 20, 24, 7, 1, 6, 33),
        (3, 11, 16, 5, 2, 4, 20),
        (2, 30, 300, 5, 2, 8, 20),
        (1, 1, 8, 7, 1, 6, 5),
        (2, 2, 8, 7, 3, 9, 5),
        (1, 40, 600, 3, 4, 0, 17),
        (1, 40, 7, 3, 4, 8, 17),
        (4, 9, 3, 1, 1, 0, 17),
        (1, 64, 5, 4, 1, 1, 6),
        // Whole steps of channels, whose rows are split once for all taps: a few rows, and more than a group
        // of them.
        (1, 48, 32, 2, 1, 1, 64),
        (1, 61, 64, 7, 9, 54, 96),
        (1, 130, 96, 7, 3, 9, 70),
        (1, 1100, 32, 3, 1, 2, 64),
        (1, 320, 768, 3, 5, 10, 65),
        (2, 60, 64, 3, 1, 2, 64),
        (1, 70, 70, 5, 3, 6, 40),
    ];
    for (batch, time, channels, taps, dilation, left, n) in cases {
        let x = numbers(batch * time * channels, 1);
        let rows = Rows::Conv {
            x: &x,
            batch,
            time,
            chosen_for: time,
            channels,
            taps,
            dilation,
            left,
            edges: Edges::Repeat,
        };
        let name = format!("{taps} taps {dilation} apart, {left} left, {batch} x {time}");
        check(&teams, &name, rows, &Case::new(batch * time, taps * channels, n));
        let before = numbers(batch * left * channels, 5);
        let zeros = vec![0.0; channels];
        for (what, edges) in [("a history", Edges::History(&before)), ("zeros", Edges::Zeros(&zeros))] {
            let rows =
                Rows::Conv { x: &x, batch, time, chosen_for: time, channels, taps, dilation, left, edges };
            check(
                &teams,
                &format!("{name}, with {what}"),
                rows,
                &Case::new(batch * time, taps * channels, n),
            );
        }
    }
}

#[test]
fn the_reference_knows_a_convolution_by_hand() {
    // Two sequences of three rows with one channel, three taps, all padding before the first row.
    let x = [1.0, 2.0, 3.0, 10.0, 20.0, 30.0];
    let rows = Rows::Conv {
        x: &x,
        batch: 2,
        time: 3,
        chosen_for: 3,
        channels: 1,
        taps: 3,
        dilation: 1,
        left: 2,
        edges: Edges::Repeat,
    };
    let w = Strided { data: &[100.0, 10.0, 1.0], k_stride: 1, n_stride: 1 };
    let mut y = [0.0; 6];
    plain(rows, 3, 1, w, &Epilogue::NONE, &mut y);
    assert_eq!(y, [111.0, 112.0, 123.0, 1110.0, 1120.0, 1230.0]);
}

#[test]
fn panels_cover_all_columns() {
    for isa in Isa::available() {
        let shape = Shape::of(isa);
        for n in 1..400 {
            let mut at = 0;
            for panel in 0..shape.panels(n) {
                let (first, vectors) = shape.panel(n, panel);
                assert_eq!(first, at, "{n} columns on {isa}");
                assert!((1..=shape.vectors).contains(&vectors));
                at += vectors;
            }
            assert_eq!(at, n.div_ceil(shape.lanes));
        }
    }
}

#[test]
fn every_tile_is_in_one_piece() {
    for isa in Isa::available() {
        for threads in [1, 2, 3, 16, 64] {
            for (m, k, n) in
                [(1, 4000, 4000), (72, 512, 512), (432, 2048, 512), (80, 256, 64), (9, 512, 1024)]
            {
                let work = Division::new(Shape::of(isa), threads, m, k, n);
                let mut seen = vec![0; work.tiles * work.panels];
                for piece in 0..work.pieces() {
                    let (panel, tiles) = work.piece(piece);
                    assert!(!tiles.is_empty(), "{m} {k} {n} {threads}");
                    assert!(work.row(tiles.end) - work.row(tiles.start) <= BLOCK_ROWS);
                    tiles.for_each(|tile| seen[panel * work.tiles + tile] += 1);
                }
                assert!(seen.iter().all(|&s| s == 1), "{m} {k} {n} {threads}");
            }
        }
    }
}

/// Largest errors of a matmul and of a plain f32 loop, relative to the largest element.
fn errors(isa: Isa, x: &[f32], w: &[f32], m: usize, k: usize, n: usize) -> (f64, f64) {
    let team = Team::new(1).unwrap();
    let w = Strided { data: w, k_stride: n, n_stride: 1 };
    let packed = PackedWeights::pack(isa, &team, Element::F32, (k, n), w);
    let (mut y, mut scratch) = (vec![0.0; m * n], vec![0.0; scratch_len(isa, 1, [m, k, n], m, None)]);
    matmul(isa, &team, Rows::Dense { x, chosen_for: m }, &packed, &Epilogue::NONE, &mut y, &mut scratch);
    let (mut ours, mut plain, mut largest) = (0f64, 0f64, 0f64);
    for (i, &got) in y.iter().enumerate() {
        let terms = || x[i / n * k..][..k].iter().zip(w.data[i % n..].iter().step_by(n));
        let sum: f64 = terms().map(|(&x, &w)| x as f64 * w as f64).sum();
        let float = terms().fold(0f32, |sum, (&x, &w)| x.mul_add(w, sum));
        ours = ours.max((got as f64 - sum).abs());
        plain = plain.max((float as f64 - sum).abs());
        largest = largest.max(sum.abs());
    }
    (ours / largest, plain / largest)
}

#[test]
fn as_exact_as_a_loop_over_floats() {
    let (m, n) = (50, 64);
    for k in [64, 100, 512, 2048] {
        let (x, w) = (numbers(m * k, 1), numbers(k * n, 2));
        // All positive, so that the terms that tiles omit cannot cancel; and with very different magnitudes.
        let positive = |v: &[f32]| v.iter().map(|x| x.abs()).collect::<Vec<_>>();
        let wild = |v: &[f32]| v.iter().map(|x| x * (x * 20.0).exp2()).collect::<Vec<_>>();
        let cases = [
            ("plain", x.clone(), w.clone()),
            ("positive", positive(&x), positive(&w)),
            ("wild", wild(&x), wild(&w)),
        ];
        // The portable path rounds twice per term.
        for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::PORTABLE) {
            for (name, x, w) in &cases {
                let (ours, limit) = errors(isa, x, w, m, k, n);
                println!("K {k}, {name} numbers on {isa}: {ours:.2e}, a loop has {limit:.2e}");
                assert!(
                    ours <= 1.5 * limit,
                    "K {k}, {name} numbers on {isa}: {ours:.2e}, a loop has {limit:.2e}"
                );
            }
        }
    }
}

/// Packing column by column gives the same result as packing a matrix.
#[test]
fn columns_are_packed_as_a_matrix_is() {
    let team = Team::new(2).unwrap();
    for (k, n) in [(3, 2), (40, 9), (64, 100), (33, 257)] {
        let weights = numbers(k * n, 6);
        let w = Strided { data: &weights, k_stride: 1, n_stride: k };
        let read = |j: usize, out: &mut [f32]| out.copy_from_slice(&weights[j * k..][..k]);
        let x = numbers(2 * k, 7);
        for isa in Isa::available() {
            for element in [Element::F32, Element::F16, Element::Bf16] {
                let product = |packed: &PackedWeights| {
                    let (mut y, mut scratch) =
                        (vec![0.0; 2 * n], vec![0.0; scratch_len(isa, 2, [2, k, n], 2, None)]);
                    matmul(
                        isa,
                        &team,
                        Rows::Dense { x: &x, chosen_for: 2 },
                        packed,
                        &Epilogue::NONE,
                        &mut y,
                        &mut scratch,
                    );
                    y
                };
                let whole = product(&PackedWeights::pack(isa, &team, element, (k, n), w));
                let each =
                    product(&PackedWeights::pack_columns(isa, &team, element, (k, n), Columns::Each(&read)));
                assert!(whole.iter().any(|y| *y != 0.0));
                assert_eq!(whole, each, "[{k}, {n}] in {element:?} on {isa}");
            }
        }
    }
}

/// Rows are the same to the last bit however a sequence is split, if the kernel is chosen for the same number
/// of rows.
#[test]
fn pieces_chosen_for_one_size_are_the_whole_byte_for_byte() {
    let (m, n, channels, taps) = (61, 130, 96, 3);
    let k = taps * channels;
    let weights = numbers(k * n, 8);
    let w = Strided { data: &weights, k_stride: n, n_stride: 1 };
    let x = numbers((m + taps - 1) * channels, 9);
    let team = Team::new(2).unwrap();
    for isa in Isa::available() {
        for element in [Element::F32, Element::F16, Element::Bf16] {
            let packed = PackedWeights::pack(isa, &team, element, (k, n), w);
            let run = |rows: Rows<'_>, m: usize| {
                let mut y = vec![0.0; m * n];
                let needed = scratch_len(isa, 2, [m, k, n], rows.chosen_for(), rows.taps());
                matmul(isa, &team, rows, &packed, &Epilogue::NONE, &mut y, &mut vec![0.0; needed]);
                y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            // As matrices, with the rows of all taps side by side; as convolutions, with the earlier rows as
            // history.
            for (chosen_for, dense) in [(4, true), (4, false), (16, true), (16, false)] {
                let piece = |from: usize, until: usize| {
                    let time = until - from;
                    let (history, own) =
                        x[from * channels..(until + taps - 1) * channels].split_at((taps - 1) * channels);
                    let gathered: Vec<f32> =
                        (from..until).flat_map(|row| x[row * channels..][..k].to_vec()).collect();
                    let (left, edges) = (taps - 1, Edges::History(history));
                    let conv = Rows::Conv {
                        x: own,
                        batch: 1,
                        time,
                        chosen_for,
                        channels,
                        taps,
                        dilation: 1,
                        left,
                        edges,
                    };
                    run(if dense { Rows::Dense { x: &gathered, chosen_for } } else { conv }, time)
                };
                let whole = piece(0, m);
                let pieces: Vec<u32> =
                    [0, 1, 3, 6, 14, 30, m].windows(2).flat_map(|ends| piece(ends[0], ends[1])).collect();
                assert!(pieces == whole, "{isa}, {element:?}, chosen for {chosen_for}, matrix {dense}");
            }
        }
    }
}

/// Elements of all panels are those of the matrix, nearest in the format; missing columns are zero.
#[test]
fn packing_copies_every_element() {
    let team = Team::new(2).unwrap();
    for (k, n) in [(1, 17), (33, 48), (40, 100), (31, 500), (64, 1000)] {
        let weights = numbers(k * n, 3);
        let by_column: Vec<f32> = (0..k * n).map(|i| weights[i % k * n + i / k]).collect();
        let rows = Strided { data: &weights, k_stride: n, n_stride: 1 };
        let columns = Strided { data: &by_column, k_stride: 1, n_stride: k };
        let read = |j: usize, out: &mut [f32]| out.copy_from_slice(&by_column[j * k..][..k]);
        let sources = [Columns::Matrix(rows), Columns::Matrix(columns), Columns::Each(&read)];
        for (isa, w) in Isa::available().into_iter().flat_map(|isa| sources.map(|w| (isa, w))) {
            for element in [Element::F32, Element::F16, Element::Bf16] {
                let packed = PackedWeights::pack_columns(isa, &team, element, (k, n), w);
                for panel in 0..packed.shape().panels(n) {
                    let Panel { data, first_column, vectors } = packed.panel(panel);
                    let width = vectors * packed.shape().lanes;
                    for (i, column) in (0..k * width).map(|i| (i, first_column + i % width)) {
                        // SAFETY: the panel has `k` rows of `width` elements.
                        let got = unsafe {
                            match element {
                                Element::F32 => *data.cast::<f32>().add(i),
                                Element::F16 => (*data.cast::<half::f16>().add(i)).to_f32(),
                                Element::Bf16 => (*data.cast::<half::bf16>().add(i)).to_f32(),
                            }
                        };
                        let want = if column < n { weights[i / width * n + column] } else { 0.0 };
                        let want = match element {
                            Element::F32 => want,
                            Element::F16 => half::f16::from_f32(want).to_f32(),
                            Element::Bf16 => half::bf16::from_f32(want).to_f32(),
                        };
                        assert_eq!(
                            got,
                            want,
                            "{element:?} on {isa}: ({}, {column}) of [{k}, {n}]",
                            i / width
                        );
                    }
                }
            }
        }
    }
}

/// Bytes of weights in f32 that are packed in a second, from a file's order of rows and from that of columns.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_packing() {
    use blocks::{BlockFormat, PackedBlocks};
    let (k, n) = (1024, 4096);
    let weights = numbers(k * n, 1);
    let team = Team::new(1).unwrap();
    let orders = [
        ("[K, N]", Strided { data: &weights, k_stride: n, n_stride: 1 }),
        ("[N, K]", Strided { data: &weights, k_stride: 1, n_stride: k }),
    ];
    for isa in Isa::available() {
        let time = |name: &str, order: &str, f: &mut dyn FnMut()| {
            let t = crate::kernels::elementwise::testing::best_of(20, f);
            println!("{isa} {name} from {order}: {:.1} GB/s", 4.0 * (k * n) as f64 / t / 1e9);
        };
        for (order, w) in orders {
            for element in [Element::F32, Element::F16, Element::Bf16] {
                let mut pack = || drop(PackedWeights::pack(isa, &team, element, (k, n), w));
                time(&format!("{element:?}"), order, &mut pack);
            }
            for format in [BlockFormat::Q8_0, BlockFormat::Q4_0] {
                let mut pack = || drop(PackedBlocks::pack(isa, format, &team, (k, n), w));
                time(format.name(), order, &mut pack);
            }
        }
    }
}
