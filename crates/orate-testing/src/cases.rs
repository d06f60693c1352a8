//! Cases for every op: hand-written edges, and whatever shapes the networks have.
//!
//! A case is a small graph with everything it reads. Cases hold graphs as the builder makes them; executors
//! compile them, so a case with an epilogue becomes one fused step.

use crate::compact_cases;
use crate::decoding_cases as decoding;
use crate::interpreter::{Buffers, Data, ScalarValue, Scalars};
use crate::random::{Random, RandomWeights};
use crate::tolerance;
use orate_graph::{
    Activation, AttentionMask, BufferKind, ConvGeometry, DType, Factor, Graph, Norm, Op, Padding, Plan,
    RelativePositions, Result, Rows, Shape, Target, Value, ValueInfo, Weight, passes,
};
use std::collections::BTreeSet;

/// A graph with inputs, scalars and weights.
#[derive(Clone, Debug)]
pub struct Case {
    /// Op and what is special, for reports.
    pub name: String,
    /// What is run.
    pub graph: Graph,
    /// Inputs and states before the run.
    pub buffers: Buffers,
    /// Scalars.
    pub scalars: Scalars,
    /// Weights.
    pub weights: RandomWeights,
    /// Limit for all outputs, as in [`crate::tolerance`].
    pub tolerance: f64,
}

impl Case {
    /// A case with random inputs that fit what the graph does with them: ids within their table (negative ones
    /// too), lengths from 1 to what the row holds, indices within their rows.
    pub fn new(name: impl Into<String>, graph: Graph) -> Case {
        let name = name.into();
        let buffers = random_buffers(&graph, &name);
        let scalars = random_scalars(&graph, &name);
        let weights = RandomWeights::of_graph(&graph, 17);
        let tolerance = tolerance::of_graph(&graph);
        Case { name, graph, buffers, scalars, weights, tolerance }
    }

    /// With another content of an input or state.
    ///
    /// # Panics
    /// The graph has no such buffer, or of another type or size.
    pub fn with(mut self, buffer: &str, data: impl Into<Data>) -> Case {
        let data = data.into();
        let old = self.buffers.get(buffer).unwrap_or_else(|| panic!("{}: no buffer `{buffer}`", self.name));
        assert_eq!((old.bytes(), old.dtype()), (data.bytes(), data.dtype()), "{}: `{buffer}`", self.name);
        self.buffers.insert(buffer.to_owned(), data);
        self
    }

    /// With another value of a scalar.
    ///
    /// # Panics
    /// The graph has no such scalar.
    pub fn with_scalar(mut self, scalar: &str, value: ScalarValue) -> Case {
        let old = self.scalars.insert(scalar.to_owned(), value);
        assert!(old.is_some(), "{}: no scalar `{scalar}`", self.name);
        self
    }
}

fn random_buffers(graph: &Graph, case: &str) -> Buffers {
    let mut buffers = Buffers::new();
    for (i, b) in graph.buffers().iter().enumerate().filter(|(_, b)| b.kind != BufferKind::Output) {
        let mut random = Random::named(29, &format!("{case}/{}", b.name));
        let n = b.shape.len();
        let read_by_sample = |operand: usize| {
            let nodes = graph.nodes().iter().filter(|n| matches!(n.op, Op::Sample { .. }));
            let mut read = nodes.filter_map(|n| n.inputs.get(operand));
            read.any(|v| graph.info(*v).buffer == Some(i))
        };
        let data = match b.dtype {
            DType::F32 if read_by_sample(1) => Data::F32((0..n / 4).flat_map(decoding::settings).collect()),
            DType::F32 if read_by_sample(4) => Data::F32((0..n).map(|_| random.below(2) as f32).collect()),
            DType::F32 => Data::F32(random.floats(n, -1.0, 1.0)),
            DType::I32 => {
                let (low, high) = integer_range(graph, i);
                let span = (high - low + 1) as usize;
                Data::I32((0..n).map(|_| low + random.below(span) as i32).collect())
            }
            dtype => compact_cases::random(dtype, b.shape.last(), &random.floats(n, -1.0, 1.0)),
        };
        buffers.insert(b.name.clone(), data);
    }
    buffers
}

/// What an integer buffer may hold, from the ops that read it.
fn integer_range(graph: &Graph, buffer: usize) -> (i32, i32) {
    let (mut low, mut high) = (i32::MIN, i32::MAX);
    let mut narrow = |l: usize, h: usize, negative: bool| {
        low = low.max(if negative { -(l as i32) } else { l as i32 });
        high = high.min(h as i32);
    };
    for node in graph.nodes() {
        for (operand, _) in
            node.inputs.iter().enumerate().filter(|(_, v)| graph.info(**v).buffer == Some(buffer))
        {
            match &node.op {
                Op::Embedding { table } => {
                    let rows = table.shape().dims()[0];
                    narrow(rows, rows - 1, true);
                }
                Op::Attention { mask: AttentionMask::Stream(_), .. } => narrow(0, 100, false),
                Op::Attention { mask, .. } if mask.has_positions() => {
                    let [q, k] = [0, 1].map(|i| graph.shape(node.inputs[i]).dims()[1]);
                    narrow(0, k - q, false);
                }
                Op::Attention { .. } if operand == 3 => {
                    narrow(1, graph.shape(node.inputs[1]).dims()[1], false)
                }
                Op::WriteRows { .. } => {
                    let [state, rows] = [0, 1].map(|i| graph.shape(node.inputs[i]).dims()[1]);
                    narrow(0, state - rows, false);
                }
                Op::RowAt => narrow(0, graph.shape(node.inputs[0]).dims()[1] + 1, false),
                Op::Mark => narrow(0, graph.shape(node.inputs[0]).last() - 1, false),
                Op::RopeTable { .. } => narrow(0, 5000, false),
                Op::Sample { .. } if operand == 2 => narrow(0, 1 << 30, false),
                Op::Sample { .. } => narrow(0, 300, false),
                Op::EmbeddingSum { tables, .. } => narrow(0, tables.shape().dims()[1] - 1, false),
                Op::MaskRows => narrow(1, graph.shape(node.inputs[0]).dims()[1], false),
                Op::RotaryTable { .. } => narrow(1, graph.shape(node.output).dims()[2], false),
                _ => {}
            }
        }
    }
    if low == i32::MIN { (0, 3) } else { (low.min(high), high) }
}

fn random_scalars(graph: &Graph, case: &str) -> Scalars {
    let mut scalars = Scalars::new();
    for (i, name) in graph.scalars().iter().enumerate() {
        let mut random = Random::named(31, &format!("{case}/{name}"));
        let mut value = ScalarValue::F32(random.uniform(-2.0, 2.0));
        for node in graph.nodes() {
            match &node.op {
                Op::SelectRow { index } if index.index() == i => {
                    let rows = graph.shape(node.inputs[0]).dims()[0];
                    value = ScalarValue::U64(random.below(rows) as u64);
                }
                Op::RandomNormal { seed, .. } if seed.index() == i => value = ScalarValue::U64(random.bits()),
                _ => {}
            }
        }
        scalars.insert(name.clone(), value);
    }
    scalars
}

// ---- cases from networks ------------------------------------------------------------------------

/// One case for each distinct node of a network after all passes: the same op, operand shapes and weight
/// expressions (so that layouts are those that ship), whatever the weights are called.
pub fn harvest(graph: &Graph) -> Vec<Case> {
    let mut g = graph.clone();
    passes::ALL.iter().for_each(|(_, run)| run(&mut g));
    let mut seen = BTreeSet::new();
    let mut cases = vec![];
    for node in g.nodes() {
        let inputs: Vec<_> = node.inputs.iter().map(|v| g.info(*v)).collect();
        // `x + x` and `x + y` are different to an executor that works in place.
        let first = |v: &Value| node.inputs.iter().position(|w| w == v).expect("is there");
        let same: Vec<usize> = node.inputs.iter().map(first).collect();
        let operands: Vec<String> = inputs.iter().map(|i| format!("{} {}", i.dtype, i.shape)).collect();
        let out = g.shape(node.output);
        if !seen.insert((anonymous(&node.op), operands.clone(), same.clone(), out.to_string())) {
            continue;
        }
        let label = node.op.label().unwrap_or("-");
        let name =
            format!("{}: {} ({}) → {out}, {label}", graph.name(), node.op.describe(), operands.join(", "));
        cases.push(Case::new(name, single(g.name(), g.scalars(), &node.op, &inputs, &same, out)));
    }
    cases
}

/// The op's text with every tensor name replaced by one letter.
fn anonymous(op: &Op) -> String {
    let mut text = format!("{op:?}");
    let mut names = vec![];
    op.weights().into_iter().for_each(|w| w.collect_names(&mut names));
    // Longest first, as one name may be part of another.
    names.sort_unstable_by_key(|n| std::cmp::Reverse(n.len()));
    names.iter().for_each(|n| text = text.replace(n, "w"));
    text
}

/// A graph of one op on inputs `in0`, `in1`, …, stored as `out`. Ops name scalars by number, so the new graph
/// declares the same `scalars` in the same order.
///
/// # Panics
/// The op does not take such operands.
pub fn single_op(name: &str, scalars: &[String], op: &Op, inputs: &[&ValueInfo], out: &Shape) -> Graph {
    let distinct: Vec<usize> = (0..inputs.len()).collect();
    single(name, scalars, op, inputs, &distinct, out)
}

/// [`single_op`], where operand `i` is the same value as operand `first[i]`.
fn single(
    name: &str,
    scalars: &[String],
    op: &Op,
    inputs: &[&ValueInfo],
    first: &[usize],
    out: &Shape,
) -> Graph {
    let mut s = Graph::new(name);
    scalars.iter().for_each(|name| {
        s.scalar(name);
    });
    let mut values: Vec<Value> = vec![];
    for (i, info) in inputs.iter().enumerate() {
        let v = if first[i] < i {
            values[first[i]]
        } else if i == 0 && op.in_place() {
            s.state("in0", info.dtype, info.shape.clone()).expect("names are numbered")
        } else {
            s.input(&format!("in{i}"), info.dtype, info.shape.clone()).expect("names are numbered")
        };
        values.push(v);
    }
    let y = s.push(op.clone(), &values, Some(out.clone())).expect("the op takes these operands");
    s.output("out", y).expect("the only output");
    s
}

// ---- hand-written cases -------------------------------------------------------------------------

/// Widths around those of vectors: 1, odd, and one less and more than 8, 16 and 32.
const WIDTHS: [usize; 14] = [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100];

/// Activations with a name for their slope.
fn activations() -> [Activation; 10] {
    [
        Activation::Relu,
        Activation::PRelu(Weight::named("slope", [1])),
        Activation::Gelu,
        Activation::Mish,
        Activation::Tanh,
        Activation::Exp,
        Activation::Silu,
        Activation::Clip,
        Activation::Sigmoid,
        Activation::Elu,
    ]
}

/// Cases for every op, and for what surrounds them: states, shared values, reshapes.
pub fn op_cases() -> Vec<Case> {
    type Family = fn(&mut Vec<Case>) -> Result<()>;
    let families: [Family; 33] = [
        embedding,
        embedding_sum,
        constant,
        constants_of_one_number,
        matmul,
        conv1d,
        depthwise_conv1d,
        streaming,
        layer_norm,
        rms_norm,
        snake,
        rows,
        pointwise,
        sums,
        attention,
        rotary,
        rope_table,
        mask_rows,
        movement,
        pad,
        statistics,
        residual_codes,
        generators,
        buffers,
        decoding::feed_forward,
        decoding::cached,
        decoding::stream,
        decoding::integers,
        decoding::rows,
        decoding::in_place,
        decoding::sample,
        compact_cases::attention,
        compact_cases::writes,
    ];
    let mut cases = vec![];
    for family in families {
        family(&mut cases).expect("hand-written cases fit the ops' shape rules");
    }
    cases
}

/// The [`op_cases`] that a device can run. `lacking` are words from the reasons of the others: a device that refuses a
/// case for another reason keeps it, and so fails it.
///
/// # Panics
/// No case is refused for one of the reasons, which means that it is built by now and has to go from the list.
pub fn op_cases_built(target: &dyn Target, lacking: &[&str]) -> Vec<Case> {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut cases = op_cases();
    cases.retain(|case| match Plan::compile(case.graph.clone(), target) {
        Ok(_) => true,
        Err(e) => {
            let reason = e.to_string();
            let known = lacking.iter().find(|l| reason.contains(**l));
            seen.extend(known);
            known.is_none()
        }
    });
    let built: Vec<&&str> = lacking.iter().filter(|l| !seen.contains(*l)).collect();
    assert!(built.is_empty(), "{} runs {built:?} now: take them off the list", target.name());
    cases
}

/// What GPUs do not run yet, in words of their reasons.
pub const NOT_BUILT_ON_GPUS: [&str; 0] = [];

/// A graph with input `x`, whose `build` makes output `y`.
fn unary(
    cases: &mut Vec<Case>,
    name: String,
    shape: impl Into<Shape>,
    build: impl FnOnce(&mut Graph, Value) -> Result<Value>,
) -> Result<()> {
    let mut g = Graph::new(&*name);
    let x = g.input("x", DType::F32, shape)?;
    let y = build(&mut g, x)?;
    g.output("y", y)?;
    cases.push(Case::new(name, g));
    Ok(())
}

fn embedding(cases: &mut Vec<Case>) -> Result<()> {
    for (b, t, rows, c) in [(1, 1, 1, 1), (1, 7, 163, 64), (2, 5, 9, 17), (3, 33, 50, 8)] {
        let name = format!("Embedding [{b}, {t}] of [{rows}, {c}]");
        let mut g = Graph::new(&*name);
        let ids = g.input("ids", DType::I32, [b, t])?;
        let y = g.embedding(ids, Weight::named("table", [rows, c]))?;
        g.output("y", y)?;
        cases.push(Case::new(&*name, g.clone()));
        cases.push(Case::new(format!("{name}, last row as −1"), g).with("ids", vec![-1; b * t]));
    }
    Ok(())
}

fn embedding_sum(cases: &mut Vec<Case>) -> Result<()> {
    // Batch, time, ids of a position, first id, tables, rows, width.
    let sizes = [
        (1, 1, 1, 0, 1, 1, 1),
        (1, 5, 16, 0, 1, 128, 17),
        (1, 5, 16, 1, 15, 128, 16),
        (2, 3, 4, 1, 2, 9, 33),
    ];
    for (b, t, n, first, q, v, c) in sizes {
        let name = format!("EmbeddingSum [{b}, {t}, {n}] from {first} of [{q}, {v}, {c}]");
        let mut g = Graph::new(&*name);
        let ids = g.input("ids", DType::I32, [b, t, n])?;
        let y = g.embedding_sum(ids, Weight::named("tables", [q, v, c]), first)?;
        g.output("y", y)?;
        cases.push(Case::new(name, g));
    }
    // Codebooks of a residual quantiser: sums divided by how often an entry was used, if ever.
    let book = |i: usize| {
        let usage = Weight::named(format!("{i}.usage"), [11, 1]).at_least(1e-5);
        Weight::named(format!("{i}.sum"), [11, 8]).mul(&usage.reciprocal())
    };
    let mut g = Graph::new("EmbeddingSum");
    let ids = g.input("ids", DType::I32, [1, 7, 3])?;
    let y = g.embedding_sum(ids, Weight::concat(&[book(0), book(1), book(2)]).reshape([3, 11, 8]), 0)?;
    g.output("y", y)?;
    cases.push(Case::new("EmbeddingSum of codebooks", g));
    Ok(())
}

fn constant(cases: &mut Vec<Case>) -> Result<()> {
    for (shape, batch) in [(vec![1, 1, 1], 1), (vec![1, 50, 17], 1), (vec![1, 3, 33], 3), (vec![2, 5], 2)] {
        let name = format!("Constant {} × {batch}", Shape::from(shape.clone()));
        let mut g = Graph::new(&*name);
        let y = g.constant(Weight::named("w", shape.clone()), batch)?;
        g.output("y", y)?;
        let mut key = Graph::new(format!("{name}, expression"));
        let w = Weight::named("w", shape.clone()).scale(0.5).tanh();
        let y = key.constant(w, batch)?;
        key.output("y", y)?;
        cases.push(Case::new(name, g));
        // The expression is evaluated at load, by the same code everywhere.
        cases.push(Case::new(key.name().to_owned(), key));
    }
    Ok(())
}

/// Weights that differ only in size.
fn constants_of_one_number(cases: &mut Vec<Case>) -> Result<()> {
    let mut g = Graph::new("Constant");
    for (i, shape) in [[1, 2, 8], [1, 6, 8], [1, 1, 3]].into_iter().enumerate() {
        let y = g.constant(Weight::fill(0.5, shape), 2)?;
        g.output(["y", "y2", "y3"][i], y)?;
    }
    cases.push(Case::new("Constant: one number in three sizes", g));
    Ok(())
}

fn matmul(cases: &mut Vec<Case>) -> Result<()> {
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
    // Layouts that networks use: stored [out, in] or [out, in, 1], with a factor on rows or columns.
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
    // A row of each of several sequences, which devices may multiply together.
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

/// All combinations of bias, activation and residual after a product.
fn epilogues(
    cases: &mut Vec<Case>,
    name: &str,
    [b, t, c]: [usize; 3],
    n: usize,
    product: impl Fn(&mut Graph, Value) -> Result<Value>,
) -> Result<()> {
    let mut all: Vec<Option<Activation>> = vec![None];
    all.extend(activations().map(Some));
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

/// Geometries that ship, and one with padding of its own.
fn geometries() -> Vec<(String, ConvGeometry)> {
    let mut all = vec![];
    for taps in [1, 3, 5, 7] {
        for dilation in [1, 2, 4, 8] {
            all.push((format!("k{taps} d{dilation} symmetric"), ConvGeometry::symmetric(taps, dilation)));
            all.push((format!("k{taps} d{dilation} causal"), ConvGeometry::causal(taps, dilation)));
        }
    }
    all.push(("k4 d1 left 1".into(), ConvGeometry { taps: 4, dilation: 1, left: 1, history: false }));
    all.push(("k3 d2 left 0".into(), ConvGeometry { taps: 3, dilation: 2, left: 0, history: false }));
    all
}

fn conv1d(cases: &mut Vec<Case>) -> Result<()> {
    let mut one = |b: usize, t: usize, c: usize, n: usize, name: &str, geometry: ConvGeometry| {
        let weight = Weight::named("w", [geometry.taps * c, n]);
        unary(cases, format!("Conv1d {name} [{b}, {t}, {c}] → {n}"), [b, t, c], |g, x| {
            g.conv1d(x, weight, geometry)
        })
    };
    for (i, (name, geometry)) in geometries().into_iter().enumerate() {
        // A length shorter than the padding, and one longer.
        one(1 + i % 3, 1 + i % 4, 5, 9, &name, geometry)?;
        one(1 + i % 2, 23, 8, 17, &name, geometry)?;
    }
    for width in WIDTHS {
        one(2, 6, width, 12, "k3 d1 causal", ConvGeometry::causal(3, 1))?;
        one(1, 13, 6, width, "k7 d1 causal", ConvGeometry::causal(7, 1))?;
    }
    epilogues(cases, "Conv1d k3 d2 causal [2, 7, 6] → 19", [2, 7, 6], 19, |g, x| {
        g.conv1d(x, Weight::named("w", [18, 19]), ConvGeometry::causal(3, 2))
    })
}

fn norm(c: usize) -> Norm {
    Norm { weight: Weight::named("norm.weight", [c]), bias: Weight::named("norm.bias", [c]), eps: 1e-6 }
}

fn depthwise_conv1d(cases: &mut Vec<Case>) -> Result<()> {
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
        // The norm of one or two channels is all sign and no size: rounding could turn it over.
        if c > 2 {
            one(2, 11, c, "k5 d2 symmetric", ConvGeometry::symmetric(5, 2), true)?;
            one(1, 11, c, "k7 d1 causal", ConvGeometry::causal(7, 1), true)?;
        }
    }
    // Stored [C, 1, taps], as networks have it.
    unary(cases, "DepthwiseConv1d, weight transposed".into(), [1, 9, 24], |g, x| {
        let w = Weight::named("w", [24, 1, 5]).reshape([24, 5]).transpose();
        g.depthwise_conv1d(x, w, Weight::named("bias", [24]), ConvGeometry::symmetric(5, 1))
    })
}

/// Convolutions behind a history: shorter and longer than it, alone and with everything that is fused into them.
fn streaming(cases: &mut Vec<Case>) -> Result<()> {
    for (taps, dilation) in [(2, 1), (3, 1), (7, 1), (7, 3), (7, 9), (4, 2), (1, 1)] {
        let geometry = ConvGeometry::streaming(taps, dilation);
        for (b, t, c, n) in [(1, 1, 5, 9), (2, 3, 8, 17), (1, 61, 16, 12), (2, 33, 33, 6)] {
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
    // A transposed convolution of stride 3 and 6 taps, stored `[in, out, taps]`: 3 results a row from it and the row
    // before it, the beginning of a stream.
    unary(cases, "Conv1d that is a transposed convolution".into(), [1, 7, 10], |g, x| {
        let w = Weight::named("w", [10, 4, 6]).reshape([10, 4, 2, 3]).permute(&[2, 0, 3, 1]).flip();
        let zeros = g.constant(Weight::fill(0.0, [1, 1, 10]), 1)?;
        let y = g.conv1d_after(zeros, x, w.reshape([20, 12]), ConvGeometry::streaming(2, 1))?;
        g.reshape(y, [1, 21, 4])
    })?;
    // A stream: the history is a state that becomes the end of what was seen.
    unary(cases, "Conv1d that keeps its history".into(), [1, 5, 8], |g, x| {
        let h = g.state("history", DType::F32, [1, 2, 8])?;
        let y = g.conv1d_after(h, x, Weight::named("w", [24, 7]), ConvGeometry::streaming(3, 1))?;
        let end = g.slice(x, 1, 3, 2)?;
        g.update("history", end)?;
        Ok(y)
    })
}

fn rms_norm(cases: &mut Vec<Case>) -> Result<()> {
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

fn snake(cases: &mut Vec<Case>) -> Result<()> {
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

fn layer_norm(cases: &mut Vec<Case>) -> Result<()> {
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

fn rows(cases: &mut Vec<Case>) -> Result<()> {
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

fn pointwise(cases: &mut Vec<Case>) -> Result<()> {
    for f in activations() {
        for n in WIDTHS {
            unary(cases, format!("Activate {} [{n}]", f.name()), [n], |g, x| g.activate(x, f.clone()))?;
        }
        for (what, low, high) in [
            ("near zero", -1e-3f32, 1e-3f32),
            ("moderate", -6.0, 6.0),
            ("negative", -90.0, 0.0),
            ("wide", -40.0, 40.0),
        ] {
            let name = format!("Activate {} of {what} numbers", f.name());
            let mut g = Graph::new(&*name);
            let x = g.input("x", DType::F32, [3, 67])?;
            let y = g.activate(x, f.clone())?;
            g.output("y", y)?;
            let ramp = (0..201).map(|i| low + (high - low) * i as f32 / 200.0);
            let mut case = Case::new(name, g).with("x", ramp.collect::<Vec<_>>());
            if f == Activation::Exp {
                // The argument's own rounding is worth |x| roundings of the result.
                case.tolerance += f64::from(high) * tolerance::ROUNDING;
            }
            cases.push(case);
        }
    }
    Ok(())
}

fn sums(cases: &mut Vec<Case>) -> Result<()> {
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

/// Sizes of an attention case.
struct Heads {
    batch: usize,
    kv_batch: usize,
    tq: usize,
    tk: usize,
    heads: usize,
    /// Heads of q that share one of k and v.
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
    let op = Op::Attention { heads: s.heads, scale: 1.0 / (s.d as f32).sqrt(), mask, relative };
    let y = g.attention(op, q, k, v, lens)?;
    g.output("y", y)?;
    Ok(g)
}

fn attention(cases: &mut Vec<Case>) -> Result<()> {
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
            // Random lengths, full ones, and rows that see nothing.
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
    // Keys and values past the length may hold anything.
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
    // Scores far apart: one key takes all, and exponentials must not overflow.
    let s = size(1, 1, 5, 19, 1, 8);
    let g = attention_graph("attention", &s, AttentionMask::None, None, false)?;
    let mut random = Random::new(3);
    let mut case = Case::new("Attention with scores in the hundreds", g);
    case.buffers.insert("q".into(), random.floats(5 * 8, -20.0, 20.0).into());
    case.buffers.insert("k".into(), random.floats(19 * 8, -20.0, 20.0).into());
    // A score of 400 carries a rounding of 400 in its exponential.
    case.tolerance += 1000.0 * tolerance::ROUNDING;
    cases.push(case);
    Ok(())
}

fn rotary(cases: &mut Vec<Case>) -> Result<()> {
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

fn rope_table(cases: &mut Vec<Case>) -> Result<()> {
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

fn mask_rows(cases: &mut Vec<Case>) -> Result<()> {
    for (b, t, c) in [(1, 1, 1), (1, 9, 17), (2, 5, 8), (3, 33, 7)] {
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
        // Zeros, not products with zero.
        let case = Case::new(name("not a number"), g).with("lens", vec![0; b]);
        cases.push(case.with("x", vec![f32::NAN; b * t * c]));
    }
    Ok(())
}

fn movement(cases: &mut Vec<Case>) -> Result<()> {
    for shape in [vec![2, 3, 5], vec![1, 7, 33], vec![3, 1, 16], vec![4], vec![2, 3, 4, 5]] {
        let text = Shape::from(shape.clone());
        for axis in 0..shape.len() {
            let mut longer = shape.clone();
            longer[axis] += 2;
            unary(cases, format!("Concat {text} and longer, axis {axis}"), shape.clone(), |g, x| {
                let y = g.input("y2", DType::F32, longer.clone())?;
                g.concat(&[x, y, x], axis)
            })?;
            unary(cases, format!("Concat of one, {text}, axis {axis}"), shape.clone(), |g, x| {
                g.concat(&[x], axis)
            })?;
            for (what, start, len) in [
                ("first", 0, 1),
                ("last", shape[axis] - 1, 1),
                ("all", 0, shape[axis]),
                ("rest", 1, shape[axis] - 1),
            ] {
                if len > 0 {
                    unary(cases, format!("Slice {what} of {text}, axis {axis}"), shape.clone(), |g, x| {
                        g.slice(x, axis, start, len)
                    })?;
                }
            }
        }
        for perm in permutations(shape.len()) {
            unary(cases, format!("Permute {text} by {perm:?}"), shape.clone(), |g, x| g.permute(x, &perm))?;
        }
        unary(cases, format!("Reshape {text} of an input"), shape.clone(), |g, x| {
            let n = g.shape(x).len();
            g.reshape(x, [1, n])
        })?;
        unary(cases, format!("Reshape {text} between steps"), shape.clone(), |g, x| {
            let n = g.shape(x).len();
            let y = g.permute(x, &(0..g.shape(x).rank()).rev().collect::<Vec<_>>())?;
            let y = g.reshape(y, [n])?;
            let y = g.reshape(y, [1, n])?;
            g.slice(y, 1, 0, n)
        })?;
    }
    // The vocoder's un-chunking: channel c·6 + k of frame l to channel c at time 6l + k.
    unary(cases, "Permute that un-chunks a latent".into(), [1, 4, 24], |g, x| {
        let y = g.reshape(x, [4, 4, 6])?;
        let y = g.permute(y, &[0, 2, 1])?;
        g.reshape(y, [1, 24, 4])
    })?;
    for (n, c) in [(1, 1), (5, 64), (8, 17)] {
        for row in BTreeSet::from([0, n / 2, n - 1]) {
            let mut g = Graph::new("SelectRow");
            let x = g.input("x", DType::F32, [n, c])?;
            let index = g.scalar("step");
            let y = g.select_row(x, index)?;
            g.output("y", y)?;
            let case = Case::new(format!("SelectRow {row} of [{n}, {c}]"), g);
            cases.push(case.with_scalar("step", ScalarValue::U64(row as u64)));
        }
    }
    Ok(())
}

fn pad(cases: &mut Vec<Case>) -> Result<()> {
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
    // A convolution with as many rows as it reads, whose edges are mirrored.
    unary(cases, "Pad that mirrors the edges of a convolution".into(), [1, 9, 16], |g, x| {
        let padded = g.pad(x, Padding::Reflect, 3, 3)?;
        let history = g.slice(padded, 1, 0, 6)?;
        let x = g.slice(padded, 1, 6, 9)?;
        g.conv1d_after(history, x, Weight::named("w", [48, 7]), ConvGeometry::streaming(3, 3))
    })
}

fn statistics(cases: &mut Vec<Case>) -> Result<()> {
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
    // One row takes all, and exponentials must not overflow.
    let mut g = Graph::new("Statistics");
    let x = g.input("x", DType::F32, [1, 19, 8])?;
    let scores = g.input("scores", DType::F32, [1, 19, 8])?;
    let y = g.statistics(x, Some(scores), 1e-12)?;
    g.output("y", y)?;
    let far: Vec<f32> = (0..152).map(|i| ((i * 37) % 152) as f32 * 4.0 - 300.0).collect();
    cases.push(Case::new("Statistics by scores in the hundreds", g).with("scores", far));
    Ok(())
}

fn residual_codes(cases: &mut Vec<Case>) -> Result<()> {
    for (b, t, e, q, v) in
        [(1, 1, 1, 1, 1), (1, 20, 16, 1, 128), (2, 3, 17, 4, 9), (1, 7, 256, 3, 100), (3, 5, 33, 15, 40)]
    {
        let name = format!("ResidualCodes [{b}, {t}, {e}] by [{q}, {v}, {e}]");
        unary(cases, name, [b, t, e], |g, x| g.residual_codes(x, Weight::named("books", [q, v, e])))?;
    }
    // All entries are equally far: the first counts, also of the second book.
    unary(cases, "ResidualCodes among equal entries".into(), [1, 3, 8], |g, x| {
        g.residual_codes(x, Weight::fill(0.25, [2, 33, 8]))
    })?;
    // Sums of what was assigned to an entry, divided by how often; an entry that never was is far away.
    let sums = Weight::named("sums", [11, 8]);
    let usage = Weight::named("usage", [11, 1]).at_least(1e-5).reciprocal();
    unary(cases, "ResidualCodes by a codebook".into(), [1, 7, 8], |g, x| {
        g.residual_codes(x, sums.mul(&usage).reshape([1, 11, 8]))
    })
}

/// All orders of `0 … n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![vec![]];
    }
    let insert = |p: Vec<usize>| {
        (0..n).map(move |at| {
            let mut p = p.clone();
            p.insert(at, n - 1);
            p
        })
    };
    permutations(n - 1).into_iter().flat_map(insert).collect()
}

fn generators(cases: &mut Vec<Case>) -> Result<()> {
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

/// What an executor must get right around its kernels.
fn buffers(cases: &mut Vec<Case>) -> Result<()> {
    let shape = [1, 3, 9];
    unary(cases, "Buffers: an input stored as it is".into(), shape, |_, x| Ok(x))?;
    unary(cases, "Buffers: one value in two outputs".into(), shape, |g, x| {
        let y = g.scale(x, Factor::Const(2.0))?;
        g.output("again", y)?;
        let flat = g.reshape(y, [27])?;
        g.output("flat", flat)?;
        Ok(y)
    })?;
    unary(cases, "Buffers: an output that a later step reads".into(), shape, |g, x| {
        let y = g.scale(x, Factor::Const(2.0))?;
        g.output("first", y)?;
        let z = g.activate(y, Activation::Relu)?;
        g.add(z, y)
    })?;
    unary(cases, "Buffers: an Euler step on a state".into(), shape, |g, v| {
        let dt = g.scalar("dt");
        let latent = g.state("latent", DType::F32, shape)?;
        let next = g.combine(Factor::Const(1.0), latent, Factor::Scalar(dt), v)?;
        g.update("latent", next)?;
        g.scale(latent, Factor::Const(3.0))
    })?;
    unary(cases, "Buffers: the old content of a state, stored".into(), shape, |g, v| {
        let x = g.state("state", DType::F32, shape)?;
        let next = g.add(x, v)?;
        g.update("state", next)?;
        Ok(x)
    })?;
    unary(cases, "Buffers: a state that becomes another, in a chain".into(), shape, |g, v| {
        let a = g.state("a", DType::F32, shape)?;
        let b = g.state("b", DType::F32, shape)?;
        g.state("c", DType::F32, shape)?;
        g.update("a", v)?;
        g.update("b", a)?;
        g.update("c", b)?;
        g.add(a, b)
    })?;
    unary(cases, "Buffers: two states that change places".into(), shape, |g, v| {
        let a = g.state("a", DType::F32, shape)?;
        let b = g.state("b", DType::F32, shape)?;
        g.update("a", b)?;
        g.update("b", a)?;
        g.add(a, v)
    })?;
    unary(cases, "Buffers: a history that moves along".into(), [1, 2, 5], |g, x| {
        let past = g.state("past", DType::F32, [1, 4, 5])?;
        let all = g.concat(&[past, x], 1)?;
        let kept = g.slice(all, 1, 2, 4)?;
        g.update("past", kept)?;
        Ok(all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every op, by name. [`tolerance::of_op`] stops compiling when an op is added; then add it here too.
    const OPS: [&str; 38] = [
        "Embedding",
        "EmbeddingSum",
        "Constant",
        "MatMul",
        "Conv1d",
        "DepthwiseConv1d",
        "LayerNorm",
        "RmsNorm",
        "Snake",
        "AddBias",
        "Affine",
        "Activate",
        "Add",
        "Mul",
        "AddRow",
        "MulRow",
        "Combine",
        "Scale",
        "Attention",
        "RotaryTable",
        "RopeTable",
        "Rotary",
        "MaskRows",
        "Concat",
        "Slice",
        "Reshape",
        "Pad",
        "Statistics",
        "ResidualCodes",
        "Permute",
        "TimeEmbedding",
        "SelectRow",
        "RandomNormal",
        "RowAt",
        "Increment",
        "WriteRows",
        "Mark",
        "Sample",
    ];

    #[test]
    fn every_op_has_cases() {
        let cases = op_cases();
        let used: BTreeSet<&str> = cases.iter().flat_map(|c| c.graph.nodes()).map(|n| n.op.name()).collect();
        assert_eq!(used, OPS.into_iter().collect());
        assert!(cases.len() > 500, "{} cases", cases.len());
    }

    #[test]
    fn names_are_distinct() {
        let mut names = BTreeSet::new();
        for c in op_cases() {
            assert!(names.insert(c.name.clone()), "two cases are called `{}`", c.name);
        }
    }

    #[test]
    fn harvest_takes_each_shape_once_and_keeps_layouts() {
        let mut g = Graph::new("net");
        let mut x = g.input("x", DType::F32, [1, 5, 8]).expect("declares");
        for i in 0..3 {
            let w = |n: &str| Weight::named(format!("layer.{i}.{n}"), [8, 8, 1]).reshape([8, 8]).transpose();
            let y = g.matmul(x, w("w")).expect("builds");
            let y = g.activate(y, Activation::Gelu).expect("builds");
            x = g.add(x, y).expect("builds");
        }
        let y = g.matmul(x, Weight::named("out", [8, 8])).expect("builds");
        g.output("y", y).expect("declares");
        let cases = harvest(&g);
        let names: Vec<&str> = cases.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "net: MatMul+gelu+residual (f32 [1, 5, 8], f32 [1, 5, 8]) → [1, 5, 8], layer.0.w",
                "net: MatMul (f32 [1, 5, 8]) → [1, 5, 8], out"
            ]
        );
    }

    #[test]
    fn random_inputs_fit_what_reads_them() {
        let mut g = Graph::new("net");
        let ids = g.input("ids", DType::I32, [4, 64]).expect("declares");
        let lens = g.input("lens", DType::I32, [4]).expect("declares");
        let x = g.embedding(ids, Weight::named("table", [10, 6])).expect("builds");
        let x = g.mask_rows(x, Some(lens)).expect("builds");
        g.output("y", x).expect("declares");
        let c = Case::new("c", g);
        let ids = c.buffers["ids"].as_i32().expect("integers");
        assert!(ids.iter().all(|i| (-10..10).contains(i)) && ids.iter().any(|i| *i < 0));
        assert!(c.buffers["lens"].as_i32().expect("integers").iter().all(|l| (1..=64).contains(l)));
    }
}
