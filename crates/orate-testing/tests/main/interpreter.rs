//! The interpreter against independent numbers: `reference/ops.py` for arithmetic, and computed by hand for
//! ops that move or select.

use orate_graph::*;
use orate_testing::{
    Buffers, Data, InterpretError, RandomWeights, ScalarValue, Scalars, assert_close, interpret,
};
use std::collections::BTreeMap;

// ---- computed by reference/ops.py -----------------------------------------------------------------

/// Results are rounded to f32 once, the reference never.
const ONE_ROUNDING: f64 = 1.0 / (1u64 << 24) as f64;
/// Two ops in sequence: their roundings add up.
const TWO_OPS: f64 = 4.0 * ONE_ROUNDING;

/// Tensors of one case in `ops.txt`, with shape and numbers, by kind and name.
struct Reference {
    case: &'static str,
    tensors: BTreeMap<(&'static str, &'static str), (Shape, Vec<f64>)>,
}

fn reference(case: &'static str) -> Reference {
    let mut tensors = BTreeMap::new();
    for line in include_str!("../reference/ops.txt").lines() {
        let (head, numbers) = line.split_once(" = ").expect("a line is `name shape = numbers`");
        let mut head = head.split(' ');
        let mut path = head.next().expect("a name").split('/');
        if path.next() != Some(case) {
            continue;
        }
        let shape: Vec<usize> = head.map(|d| d.parse().expect("an extent")).collect();
        let numbers: Vec<f64> = numbers.split(' ').map(|x| x.parse().expect("a number")).collect();
        let (kind, name) = (path.next().expect("a kind"), path.next().expect("a tensor"));
        tensors.insert((kind, name), (Shape::from(shape), numbers));
    }
    assert!(!tensors.is_empty(), "ops.txt has no case `{case}`");
    Reference { case, tensors }
}

impl Reference {
    fn get(&self, kind: &'static str, name: &'static str) -> &(Shape, Vec<f64>) {
        let found = self.tensors.get(&(kind, name));
        found.unwrap_or_else(|| panic!("ops.txt has no {kind}/{name} for `{}`", self.case))
    }

    fn input(&self, g: &mut Graph, name: &'static str) -> Value {
        let dtype = if ["lens", "ids"].contains(&name) { DType::I32 } else { DType::F32 };
        g.input(name, dtype, self.get("in", name).0.clone()).expect("declares")
    }

    fn weight(&self, name: &'static str) -> Weight {
        Weight::named(name, self.get("w", name).0.clone())
    }

    fn norm(&self, eps: f32) -> Norm {
        Norm { weight: self.weight("norm_weight"), bias: self.weight("norm_bias"), eps }
    }

    /// Builds the graph, runs it and compares; if `fused`, after all passes.
    fn check(&self, tolerance: f64, build: impl Fn(&mut Graph) -> Result<Value>) {
        for fused in [false, true] {
            let mut g = Graph::new(self.case);
            let y = build(&mut g).expect("builds");
            g.output("y", y).expect("declares");
            if fused {
                passes::ALL.iter().for_each(|(_, run)| run(&mut g));
                assert!(g.nodes().len() <= 2, "{}: {:?}", self.case, g.nodes());
            }
            let mut weights = RandomWeights::default();
            let mut buffers = Buffers::new();
            for (&(kind, name), (shape, x)) in &self.tensors {
                let floats: Vec<f32> = x.iter().map(|x| *x as f32).collect();
                match (kind, name) {
                    ("w", _) => weights.set(name, shape.clone(), floats),
                    ("in", "lens" | "ids") => {
                        buffers.insert(name.into(), x.iter().map(|x| *x as i32).collect::<Vec<_>>().into());
                    }
                    ("in", _) => {
                        buffers.insert(name.into(), floats.into());
                    }
                    _ => {}
                }
            }
            let scalars = Scalars::from([
                ("seed".to_owned(), ScalarValue::U64(0x0123_4567_89AB_CDEF)),
                ("first".to_owned(), ScalarValue::U64(5)),
            ]);
            let after = interpret(&g, &weights, &buffers, &scalars).expect("runs");
            let (shape, want) = self.get("out", "y");
            assert_eq!(g.shape(g.stores()[0].1), shape, "{}", self.case);
            let want: Vec<f32> = want.iter().map(|x| *x as f32).collect();
            let got = match &after["y"] {
                Data::F32(x) => x.clone(),
                Data::I32(x) => x.iter().map(|x| *x as f32).collect(),
                Data::Compact(dtype, _) => panic!("{}: a result in {dtype}", self.case),
            };
            assert_close(self.case, &got, &want, tolerance);
        }
    }
}

#[test]
fn products_and_epilogues() {
    let r = reference("matmul");
    r.check(ONE_ROUNDING, |g| {
        let x = r.input(g, "x");
        g.matmul(x, r.weight("w"))
    });
    for case in [
        "matmul_relu",
        "matmul_prelu",
        "matmul_gelu",
        "matmul_mish",
        "matmul_tanh",
        "matmul_exp",
        "matmul_silu",
        "matmul_clip",
    ] {
        let r = reference(case);
        let f = match case {
            "matmul_relu" => Activation::Relu,
            "matmul_prelu" => Activation::PRelu(r.weight("slope")),
            "matmul_gelu" => Activation::Gelu,
            "matmul_mish" => Activation::Mish,
            "matmul_tanh" => Activation::Tanh,
            "matmul_silu" => Activation::Silu,
            "matmul_clip" => Activation::Clip,
            _ => Activation::Exp,
        };
        r.check(TWO_OPS, |g| {
            let (x, residual) = (r.input(g, "x"), r.input(g, "residual"));
            let y = g.linear(x, r.weight("w"), r.weight("bias"))?;
            let y = g.activate(y, f.clone())?;
            g.add(y, residual)
        });
    }
}

#[test]
fn convolutions_repeat_the_edge() {
    for (case, geometry) in
        [("conv1d_causal", ConvGeometry::causal(3, 2)), ("conv1d_symmetric", ConvGeometry::symmetric(3, 1))]
    {
        let r = reference(case);
        r.check(ONE_ROUNDING, |g| {
            let x = r.input(g, "x");
            g.conv1d(x, r.weight("w"), geometry)
        });
    }
    let r = reference("depthwise");
    let conv = |r: &Reference, g: &mut Graph| {
        let x = r.input(g, "x");
        g.depthwise_conv1d(x, r.weight("w"), r.weight("bias"), ConvGeometry::symmetric(5, 2))
    };
    r.check(ONE_ROUNDING, |g| conv(&r, g));
    let r = reference("depthwise_norm");
    r.check(TWO_OPS, |g| {
        let y = conv(&r, g)?;
        g.layer_norm(y, r.norm(1e-6))
    });
}

#[test]
fn convolutions_behind_a_history() {
    let geometry = ConvGeometry::streaming(3, 2);
    let r = reference("conv1d_history");
    r.check(ONE_ROUNDING, |g| {
        let (x, history) = (r.input(g, "x"), r.input(g, "history"));
        g.conv1d_after(history, x, r.weight("w"), geometry)
    });
    let r = reference("depthwise_history");
    r.check(ONE_ROUNDING, |g| {
        let (x, history) = (r.input(g, "x"), r.input(g, "history"));
        g.depthwise_conv1d_after(history, x, r.weight("w"), r.weight("bias"), geometry)
    });
    // A transposed convolution, stored [in, out, taps], equals one with two taps and three times the outputs.
    let r = reference("conv1d_transposed");
    r.check(ONE_ROUNDING, |g| {
        let (x, history) = (r.input(g, "x"), r.input(g, "history"));
        let w = r.weight("w").reshape([2, 4, 2, 3]).permute(&[2, 0, 3, 1]).flip().reshape([4, 12]);
        let y = g.conv1d_after(history, x, w, ConvGeometry::streaming(2, 1))?;
        g.reshape(y, [1, 9, 4])
    });
}

#[test]
fn convolutions_with_zeros_beyond_the_ends() {
    for (case, taps, left) in [("conv1d_ahead", 4, 0), ("conv1d_zeros", 3, 1)] {
        let r = reference(case);
        r.check(ONE_ROUNDING, |g| {
            let x = r.input(g, "x");
            g.conv1d(x, r.weight("w"), ConvGeometry { left, ..ConvGeometry::causal(taps, 1).with_zeros() })
        });
    }
    let r = reference("depthwise_zeros");
    r.check(ONE_ROUNDING, |g| {
        let x = r.input(g, "x");
        let geometry = ConvGeometry::symmetric(5, 2).with_zeros();
        g.depthwise_conv1d(x, r.weight("w"), r.weight("bias"), geometry)
    });
}

#[test]
fn recurrence() {
    let r = reference("lstm");
    r.check(ONE_ROUNDING, |g| {
        let gates = r.input(g, "gates");
        g.lstm(gates, r.weight("w").transpose())
    });
}

#[test]
fn means_of_segments() {
    let r = reference("segment_mean");
    r.check(ONE_ROUNDING, |g| {
        let x = r.input(g, "x");
        g.segment_mean(x, 3)
    });
}

#[test]
fn sources_of_vocoders() {
    let r = reference("harmonic_source");
    r.check(ONE_ROUNDING, |g| {
        let (f0, phases, noise) = (r.input(g, "f0"), r.input(g, "phases"), r.input(g, "noise"));
        g.harmonic_source(f0, phases, noise, 4, 24_000)
    });
}

#[test]
fn relative_positions_as_a_bias() {
    let r = reference("relative_scores");
    r.check(ONE_ROUNDING, |g| {
        let (q, p) = (r.input(g, "q"), r.input(g, "p"));
        g.relative_scores(q, p, 2, 0.5)
    });
    let r = reference("attention_bias");
    r.check(ONE_ROUNDING, |g| {
        let [q, k, v, bias] = ["q", "k", "v", "bias"].map(|name| r.input(g, name));
        let op = Op::Attention {
            heads: 2,
            scale: 0.5,
            mask: AttentionMask::None,
            relative: None,
            bias: true,
            follows_weights: false,
        };
        g.attention(op, q, k, v, Some(bias))
    });
}

#[test]
fn tables_of_codebooks() {
    let r = reference("embedding_sum");
    r.check(ONE_ROUNDING, |g| {
        let ids = r.input(g, "ids");
        g.embedding_sum(ids, r.weight("tables"), 1)
    });
}

#[test]
fn rows() {
    let r = reference("rms_norm");
    r.check(ONE_ROUNDING, |g| {
        let x = r.input(g, "x");
        g.rms_norm(x, r.weight("w"), 1e-5)
    });
    let r = reference("snake");
    r.check(ONE_ROUNDING, |g| {
        let x = r.input(g, "x");
        g.snake(x, r.weight("frequency"), r.weight("gain"))
    });
    let r = reference("mul");
    r.check(ONE_ROUNDING, |g| {
        let (x, z) = (r.input(g, "x"), r.input(g, "z"));
        g.mul(x, z)
    });
    let r = reference("layer_norm");
    r.check(TWO_OPS, |g| {
        let x = r.input(g, "x");
        g.layer_norm(x, r.norm(1e-5))
    });
    let r = reference("affine");
    r.check(ONE_ROUNDING, |g| {
        let x = r.input(g, "x");
        g.affine(x, r.weight("a"), r.weight("b"))
    });
}

#[test]
fn edges_and_statistics() {
    for (name, padding) in
        [("pad_zero", Padding::Zero), ("pad_repeat", Padding::Repeat), ("pad_reflect", Padding::Reflect)]
    {
        let r = reference(name);
        r.check(ONE_ROUNDING, |g| {
            let x = r.input(g, "x");
            g.pad(x, padding, 1, 2)
        });
    }
    let r = reference("mul_row");
    r.check(ONE_ROUNDING, |g| {
        let (x, row) = (r.input(g, "x"), r.input(g, "row"));
        g.mul_row(x, row)
    });
    let r = reference("statistics");
    r.check(ONE_ROUNDING, |g| {
        let x = r.input(g, "x");
        g.statistics(x, None, 1e-12)
    });
    let r = reference("statistics_weighted");
    r.check(ONE_ROUNDING, |g| {
        let (x, scores) = (r.input(g, "x"), r.input(g, "scores"));
        g.statistics(x, Some(scores), 1e-12)
    });
    let r = reference("residual_codes");
    r.check(0.0, |g| {
        let x = r.input(g, "x");
        g.residual_codes(x, r.weight("books"))
    });
    let r = reference("overlap_add");
    r.check(ONE_ROUNDING, |g| {
        let x = r.input(g, "x");
        g.overlap_add(x, r.weight("window"), 3)
    });
    for (name, f) in [
        ("sigmoid", Activation::Sigmoid),
        ("elu", Activation::Elu),
        ("gelu_tanh", Activation::GeluTanh),
        ("sin", Activation::Sin),
        ("cos", Activation::Cos),
    ] {
        let r = reference(name);
        r.check(ONE_ROUNDING, |g| {
            let x = r.input(g, "x");
            g.activate(x, f.clone())
        });
    }
}

#[test]
fn attention() {
    for (case, heads, scale, mask, lens) in [
        ("attention", 2, 0.5, AttentionMask::None, false),
        ("attention_lens", 2, 0.5, AttentionMask::None, true),
        ("attention_causal", 2, 0.5, AttentionMask::Causal, false),
        ("attention_shared", 1, 0.25, AttentionMask::None, false),
        ("attention_grouped", 4, 0.5, AttentionMask::Causal, false),
        ("attention_window", 2, 0.5, AttentionMask::Window(2), false),
        ("attention_relative", 2, 0.5, AttentionMask::None, false),
    ] {
        let r = reference(case);
        r.check(ONE_ROUNDING, |g| {
            let (q, k, v) = (r.input(g, "q"), r.input(g, "k"), r.input(g, "v"));
            let lens = lens.then(|| r.input(g, "lens"));
            let relative = (case == "attention_relative").then(|| RelativePositions {
                key: r.weight("rk"),
                value: r.weight("rv"),
                window: 1,
            });
            g.attention(
                Op::Attention { heads, scale, mask, relative, bias: false, follows_weights: false },
                q,
                k,
                v,
                lens,
            )
        });
    }
}

#[test]
fn positions_times_and_random_numbers() {
    let r = reference("rotary_table");
    r.check(ONE_ROUNDING, |g| {
        let lens = r.input(g, "lens");
        g.rotary_table(r.weight("theta"), 2, 4, Some(lens))
    });
    let r = reference("rotary");
    r.check(TWO_OPS, |g| {
        let (x, lens) = (r.input(g, "x"), r.input(g, "lens"));
        let table = g.rotary_table(r.weight("theta"), 2, 4, Some(lens))?;
        g.rotary(x, table, 2)
    });
    let r = reference("rope_table");
    r.check(ONE_ROUNDING, |g| g.rope_table(10_000.0, 4, 6, Rows::From(5)));
    let r = reference("rope_scaled");
    let scaling = RopeScaling { factor: 8.0, low: 0.5, high: 4.0, length: 300 };
    r.check(ONE_ROUNDING, |g| g.rope_table_scaled(500_000.0, scaling, 4, 6, Rows::From(5)));
    let r = reference("time_embedding");
    r.check(ONE_ROUNDING, |g| {
        let times = r.input(g, "times");
        g.time_embedding(times, 6)
    });
    let r = reference("random_normal");
    r.check(ONE_ROUNDING, |g| {
        let seed = g.scalar("seed");
        g.random_normal([10], seed, 0.5)
    });
}

// ---- computed by hand -----------------------------------------------------------------------------

/// Runs a graph on `x` and weights `w`, and returns output `y`.
fn run(
    x: (&[usize], impl Into<Data>),
    w: (&[usize], &[f32]),
    build: impl FnOnce(&mut Graph, Value, Weight) -> Result<Value>,
) -> Vec<f32> {
    let mut g = Graph::new("by hand");
    let data: Data = x.1.into();
    let v = g.input("x", data.dtype(), x.0).expect("declares");
    let y = build(&mut g, v, Weight::named("w", w.0)).expect("builds");
    g.output("y", y).expect("declares");
    let mut weights = RandomWeights::default();
    weights.set("w", w.0, w.1.to_vec());
    let mut buffers = Buffers::from([("x".to_owned(), data)]);
    buffers.insert("lens".into(), vec![2, 0].into());
    let scalars =
        Scalars::from([("half".to_owned(), ScalarValue::F32(0.5)), ("row".to_owned(), ScalarValue::U64(1))]);
    let after = interpret(&g, &weights, &buffers, &scalars).expect("runs");
    after["y"].as_f32().expect("floats").to_vec()
}

const NO_WEIGHT: (&[usize], &[f32]) = (&[1], &[0.0]);

#[test]
fn rows_of_tables() {
    let table: (&[usize], &[f32]) = (&[3, 2], &[1., 2., 3., 4., 5., 6.]);
    let y = run((&[1, 4], vec![0, 2, -1, -3]), table, |g, x, w| g.embedding(x, w));
    assert_eq!(y, [1., 2., 5., 6., 5., 6., 1., 2.]);
    let y = run((&[2, 3], vec![1., 2., 3., 4., 5., 6.]), NO_WEIGHT, |g, x, _| {
        let row = g.scalar("row");
        g.select_row(x, row)
    });
    assert_eq!(y, [4., 5., 6.]);
    let y = run((&[1], vec![0.0]), (&[1, 2], &[7., 8.]), |g, _, w| g.constant(w, 3));
    assert_eq!(y, [7., 8., 7., 8., 7., 8.]);
}

#[test]
fn sums_and_factors() {
    let x = || (&[2usize, 2][..], vec![1.0f32, -2.0, 3.0, -4.0]);
    let w: (&[usize], &[f32]) = (&[2], &[10., 20.]);
    assert_eq!(run(x(), w, |g, x, w| g.add_bias(x, w)), [11., 18., 13., 16.]);
    assert_eq!(run(x(), w, |g, x, _| g.add(x, x)), [2., -4., 6., -8.]);
    assert_eq!(run(x(), w, |g, x, _| g.scale(x, Factor::Const(-3.0))), [-3., 6., -9., 12.]);
    let y = run(x(), (&[1, 2], &[10., 20.]), |g, x, w| {
        let row = g.constant(w, 1)?;
        g.add_row(x, row)
    });
    assert_eq!(y, [11., 18., 13., 16.]);
    let y = run(x(), w, |g, x, _| {
        let half = g.scalar("half");
        let twice = g.scale(x, Factor::Const(2.0))?;
        g.combine(Factor::Const(4.0), x, Factor::Scalar(half), twice)
    });
    assert_eq!(y, [5., -10., 15., -20.]);
}

#[test]
fn movement() {
    let x = || (&[2usize, 3][..], vec![1.0f32, 2., 3., 4., 5., 6.]);
    assert_eq!(run(x(), NO_WEIGHT, |g, x, _| g.permute(x, &[1, 0])), [1., 4., 2., 5., 3., 6.]);
    assert_eq!(run(x(), NO_WEIGHT, |g, x, _| g.slice(x, 1, 1, 2)), [2., 3., 5., 6.]);
    assert_eq!(run(x(), NO_WEIGHT, |g, x, _| g.slice(x, 0, 1, 1)), [4., 5., 6.]);
    assert_eq!(run(x(), NO_WEIGHT, |g, x, _| g.reshape(x, [3, 2])), [1., 2., 3., 4., 5., 6.]);
    let y = run(x(), NO_WEIGHT, |g, x, _| {
        let first = g.slice(x, 1, 0, 1)?;
        g.concat(&[x, first], 1)
    });
    assert_eq!(y, [1., 2., 3., 1., 4., 5., 6., 4.]);
    // [1, 2, 3] → [3, 1, 2]: y[i, 0, j] = x[0, j, i]
    let y = run((&[1, 2, 3], x().1), NO_WEIGHT, |g, x, _| g.permute(x, &[2, 0, 1]));
    assert_eq!(y, [1., 4., 2., 5., 3., 6.]);
    let y = run((&[2, 3, 1], vec![1.0f32, 2., f32::NAN, f32::NAN, 5., 6.]), NO_WEIGHT, |g, x, _| {
        let lens = g.input("lens", DType::I32, [2])?;
        g.mask_rows(x, Some(lens))
    });
    assert_eq!(y, [1., 2., 0., 0., 0., 0.]);
}

#[test]
fn functions_at_points_one_can_check() {
    let at = |x: f32, f: Activation| run((&[1], vec![x]), (&[1], &[0.25]), |g, x, _| g.activate(x, f))[0];
    assert_eq!(at(-4.0, Activation::Relu), 0.0);
    assert_eq!(at(-4.0, Activation::PRelu(Weight::named("w", [1]))), -1.0);
    assert_eq!(at(4.0, Activation::PRelu(Weight::named("w", [1]))), 4.0);
    assert_eq!(at(0.0, Activation::Gelu), 0.0);
    assert_eq!(at(100.0, Activation::Gelu), 100.0);
    // Φ(1) = 0.841344746
    assert!((at(1.0, Activation::Gelu) - 0.841_344_7).abs() < 1e-7);
    // tanh(ln 2) = 3/5
    assert_eq!(at(0.0, Activation::Mish), 0.0);
    assert!((at(1000.0, Activation::Mish) - 1000.0).abs() < 1e-3);
    assert!((at(std::f32::consts::LN_2, Activation::Tanh) - 0.6).abs() < 1e-7);
    assert!((at(std::f32::consts::LN_2, Activation::Exp) - 2.0).abs() < 1e-6);
}

#[test]
fn a_query_that_sees_no_key_gets_zeros() {
    // `lens` is [2, 0]: the second row of the batch has no keys.
    let y = run((&[2, 2, 1], vec![3.0, 4.0, 5.0, 6.0]), NO_WEIGHT, |g, q, _| {
        let lens = g.input("lens", DType::I32, [2])?;
        let op = Op::Attention {
            heads: 1,
            scale: 1.0,
            mask: AttentionMask::Causal,
            relative: None,
            bias: false,
            follows_weights: false,
        };
        g.attention(op, q, q, q, Some(lens))
    });
    assert_eq!((y[0], &y[2..]), (3.0, &[0.0, 0.0][..]));
}

// ---- buffers and errors ---------------------------------------------------------------------------

#[test]
fn states_change_when_the_run_ends() {
    let mut g = Graph::new("swap");
    let a = g.state("a", DType::F32, [1]).expect("declares");
    let b = g.state("b", DType::F32, [1]).expect("declares");
    g.update("a", b).expect("fits");
    g.update("b", a).expect("fits");
    g.output("old a", a).expect("declares");
    let mut buffers = Buffers::from([("a".into(), vec![1.0].into()), ("b".into(), vec![2.0].into())]);
    buffers.insert("someone else's".into(), vec![5].into());
    let after = interpret(&g, &RandomWeights::default(), &buffers, &Scalars::new()).expect("runs");
    assert_eq!(after["a"], Data::F32(vec![2.0]));
    assert_eq!(after["b"], Data::F32(vec![1.0]));
    assert_eq!(after["old a"], Data::F32(vec![1.0]));
    assert_eq!(after["someone else's"], Data::I32(vec![5]));
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let mut g = Graph::new("net");
    let ids = g.input("ids", DType::I32, [1, 2]).expect("declares");
    let s = g.scalar("s");
    let y = g.embedding(ids, Weight::named("table", [3, 2])).expect("builds");
    let y = g.scale(y, Factor::Scalar(s)).expect("builds");
    g.output("y", y).expect("declares");
    let weights = RandomWeights::of_graph(&g, 1);
    let ids = |x: Vec<i32>| Buffers::from([("ids".to_owned(), Data::I32(x))]);
    let s = |v| Scalars::from([("s".to_owned(), v)]);
    let number = || s(ScalarValue::F32(1.0));
    let error = |weights: &RandomWeights, buffers: &Buffers, scalars: &Scalars| {
        interpret(&g, weights, buffers, scalars).expect_err("something is wrong").to_string()
    };
    assert!(interpret(&g, &weights, &ids(vec![0, -3]), &number()).is_ok());
    assert_eq!(
        error(&weights, &Buffers::new(), &number()),
        "graph `net` needs buffer `ids` with i32 [1, 2], got nothing"
    );
    assert_eq!(
        error(&weights, &ids(vec![0]), &number()),
        "graph `net` needs buffer `ids` with i32 [1, 2], got 1 elements of i32"
    );
    assert_eq!(
        error(&weights, &ids(vec![0, 3]), &number()),
        "graph `net`, node #0 Embedding: index 3 is outside of 3 rows"
    );
    assert_eq!(
        error(&weights, &ids(vec![0, -4]), &number()),
        "graph `net`, node #0 Embedding: index -4 is outside of 3 rows"
    );
    assert_eq!(
        error(&weights, &ids(vec![0, 0]), &Scalars::new()),
        "graph `net` needs scalar `s` as f32, got None"
    );
    assert!(error(&weights, &ids(vec![0, 0]), &s(ScalarValue::U64(1))).contains("got Some(U64(1))"));
    assert!(error(&RandomWeights::default(), &ids(vec![0, 0]), &number()).contains("weight `table`"));

    let mut g = Graph::new("rows");
    let x = g.input("x", DType::F32, [3, 1]).expect("declares");
    let row = g.scalar("row");
    let y = g.select_row(x, row).expect("builds");
    g.output("y", y).expect("declares");
    let buffers = Buffers::from([("x".to_owned(), vec![1.0, 2.0, 3.0].into())]);
    let scalars = Scalars::from([("row".to_owned(), ScalarValue::U64(3))]);
    let e = interpret(&g, &weights, &buffers, &scalars).expect_err("rows are 0 to 2");
    assert!(matches!(e, InterpretError::Index { index: 3, rows: 3, .. }), "{e}");
}
