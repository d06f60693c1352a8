//! The graph and its builder.
//!
//! A graph is a list of nodes in the order they run, each making one value (SSA). Its edges to the outside are
//! named *buffers*: inputs, outputs and states. A buffer of one name is the same memory in every plan that uses
//! it, so values pass from network to network without leaving the device.

use crate::op::*;
use crate::{DType, GraphError, Result, Shape, Weight};
use std::collections::HashMap;

/// A value of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub(crate) u32);

impl Value {
    /// Index into the graph's values.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One op applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Operands.
    pub inputs: Vec<Value>,
    /// Result.
    pub output: Value,
}

/// Type and shape of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
    /// The buffer whose content this is, for inputs and states.
    pub buffer: Option<usize>,
}

/// How a graph uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// Only read: written by the host or by another plan.
    Input,
    /// Only written.
    Output,
    /// Read, and replaced when the run ends.
    State,
}

/// A named piece of device memory that outlives a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name, shared by all plans of a session.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
    /// Use in this graph.
    pub kind: BufferKind,
}

/// A network for fixed sizes, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) nodes: Vec<Node>,
    pub(crate) values: Vec<ValueInfo>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) stores: Vec<(usize, Value)>,
    pub(crate) scalars: Vec<String>,
    /// For each value that lies in a state: the state, and how often it had been written in place before.
    versions: HashMap<Value, (usize, usize)>,
    /// How often each buffer is written in place.
    writes: HashMap<usize, usize>,
    taps: bool,
}

/// Prefix of the output buffers that [`Graph::tap`] makes.
pub const TAP_PREFIX: &str = "tap/";

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Graph {
            name: name.into(),
            nodes: vec![],
            values: vec![],
            buffers: vec![],
            stores: vec![],
            scalars: vec![],
            versions: HashMap::new(),
            writes: HashMap::new(),
            taps: false,
        }
    }

    /// Makes [`Graph::tap`] record values, for comparisons with a reference.
    pub fn with_taps(mut self) -> Self {
        self.taps = true;
        self
    }

    /// Name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Nodes in the order they run.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Buffers, in order of declaration.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// Which value each written buffer holds after a run.
    pub fn stores(&self) -> &[(usize, Value)] {
        &self.stores
    }

    /// Names of the run-time scalars.
    pub fn scalars(&self) -> &[String] {
        &self.scalars
    }

    /// Type and shape of a value.
    pub fn info(&self, v: Value) -> &ValueInfo {
        &self.values[v.index()]
    }

    /// Shape of a value.
    pub fn shape(&self, v: Value) -> &Shape {
        &self.info(v).shape
    }

    fn value(&mut self, dtype: DType, shape: Shape, buffer: Option<usize>) -> Value {
        self.values.push(ValueInfo { dtype, shape, buffer });
        Value((self.values.len() - 1) as u32)
    }

    fn declare(&mut self, name: &str, dtype: DType, shape: Shape, kind: BufferKind) -> Result<usize> {
        if let Some(i) = self.buffers.iter().position(|b| b.name == name) {
            let b = &self.buffers[i];
            return Err(GraphError::Redeclared {
                graph: self.name.clone(),
                name: name.to_owned(),
                first: format!("{:?} {} {}", b.kind, b.dtype, b.shape),
                second: format!("{kind:?} {dtype} {shape}"),
            });
        }
        if !shape.last().is_multiple_of(dtype.width_step()) {
            return Err(GraphError::Shape {
                graph: self.name.clone(),
                node: format!("buffer `{name}`"),
                got: format!("{dtype} {shape}"),
                needed: format!("rows of a multiple of {} elements for {dtype}", dtype.width_step()),
            });
        }
        self.buffers.push(Buffer { name: name.to_owned(), dtype, shape, kind });
        Ok(self.buffers.len() - 1)
    }

    /// A buffer that the run reads.
    ///
    /// # Errors
    /// The name is taken.
    pub fn input(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value> {
        let shape = shape.into();
        let b = self.declare(name, dtype, shape.clone(), BufferKind::Input)?;
        Ok(self.value(dtype, shape, Some(b)))
    }

    /// A buffer that lives across runs; give it its next content with [`Graph::update`].
    ///
    /// # Errors
    /// The name is taken.
    pub fn state(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value> {
        let shape = shape.into();
        let b = self.declare(name, dtype, shape.clone(), BufferKind::State)?;
        let v = self.value(dtype, shape, Some(b));
        self.versions.insert(v, (b, 0));
        Ok(v)
    }

    /// The state in which a value lies, if it does and if the value is still there.
    fn state_of(&self, v: Value) -> Option<usize> {
        let (state, version) = *self.versions.get(&v)?;
        (self.writes.get(&state).copied().unwrap_or(0) == version).then_some(state)
    }

    /// Refuses a value that was in a state before the state was written in place.
    fn still_there(&self, v: Value, node: impl FnOnce() -> String) -> Result<()> {
        match self.versions.get(&v) {
            Some((state, _)) if self.state_of(v).is_none() => Err(GraphError::Shape {
                graph: self.name.clone(),
                node: node(),
                got: format!(
                    "what state `{}` held before it was written in place",
                    self.buffers[*state].name
                ),
                needed: "what it holds now, the result of the last write".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether a state is written in place.
    pub(crate) fn is_written_in_place(&self, buffer: usize) -> bool {
        self.writes.contains_key(&buffer)
    }

    /// The state in which a value lies or lay.
    pub(crate) fn lies_in(&self, v: Value) -> Option<usize> {
        self.versions.get(&v).map(|(state, _)| *state)
    }

    /// Stores `v` in a state when the run ends.
    ///
    /// # Errors
    /// There is no such state, or its shape differs.
    pub fn update(&mut self, name: &str, v: Value) -> Result<()> {
        self.still_there(v, || format!("update of state `{name}`"))?;
        let found = self.buffers.iter().position(|b| b.name == name && b.kind == BufferKind::State);
        if found.is_some_and(|b| self.is_written_in_place(b) || self.buffers[b].dtype.is_compact()) {
            return Err(GraphError::Shape {
                graph: self.name.clone(),
                node: format!("update of state `{name}`"),
                got: "a state that is written in place".to_owned(),
                needed: "one or the other".to_owned(),
            });
        }
        let info = self.info(v);
        let got = format!("{} {}", info.dtype, info.shape);
        let needed = match found.map(|i| &self.buffers[i]) {
            Some(b) if (b.dtype, &b.shape) == (info.dtype, &info.shape) => None,
            Some(b) => Some(format!("{} {}", b.dtype, b.shape)),
            None => Some("a state declared under this name".to_owned()),
        };
        match (needed, found) {
            (None, Some(i)) => {
                self.stores.push((i, v));
                Ok(())
            }
            (needed, _) => Err(GraphError::Shape {
                graph: self.name.clone(),
                node: format!("update of state `{name}`"),
                got,
                needed: needed.unwrap_or_default(),
            }),
        }
    }

    /// Stores `v` in a new buffer that others can read.
    ///
    /// # Errors
    /// The name is taken.
    pub fn output(&mut self, name: &str, v: Value) -> Result<()> {
        self.still_there(v, || format!("output `{name}`"))?;
        let ValueInfo { dtype, shape, .. } = self.info(v).clone();
        let b = self.declare(name, dtype, shape, BufferKind::Output)?;
        self.stores.push((b, v));
        Ok(())
    }

    /// Whether [`Graph::tap`] records.
    pub fn has_taps(&self) -> bool {
        self.taps
    }

    /// Records an intermediate value as output `tap/<name>` when taps are on; otherwise does nothing.
    ///
    /// # Errors
    /// The name is taken.
    pub fn tap(&mut self, name: &str, v: Value) -> Result<()> {
        if self.taps { self.output(&format!("{TAP_PREFIX}{name}"), v) } else { Ok(()) }
    }

    /// A number read at run time. Asking twice for a name gives the same scalar.
    pub fn scalar(&mut self, name: &str) -> Scalar {
        let i = self.scalars.iter().position(|s| s == name).unwrap_or_else(|| {
            self.scalars.push(name.to_owned());
            self.scalars.len() - 1
        });
        Scalar(i as u32)
    }

    /// Adds a node after checking its operands.
    ///
    /// # Errors
    /// The operands do not fit the op.
    pub fn push(&mut self, op: Op, inputs: &[Value], out: Option<Shape>) -> Result<Value> {
        let name = || node_name(self.nodes.len(), &op);
        for v in inputs {
            self.still_there(*v, name)?;
        }
        let infos: Vec<&ValueInfo> = inputs.iter().map(|v| self.info(*v)).collect();
        let shape = infer(&op, &infos, out).map_err(|needed| GraphError::Shape {
            graph: self.name.clone(),
            node: name(),
            got: if infos.is_empty() {
                "no operands".to_owned()
            } else {
                infos.iter().map(|i| format!("{} {}", i.dtype, i.shape)).collect::<Vec<_>>().join(", ")
            },
            needed,
        })?;
        let dtype = result_type(&op, &infos);
        let state = if op.in_place() { Some(self.written(&op, inputs)?) } else { None };
        let output = self.value(dtype, shape, state);
        if let Some(state) = state {
            let writes = self.writes.entry(state).or_insert(0);
            *writes += 1;
            self.versions.insert(output, (state, *writes));
        } else if op == Op::Reshape
            && let Some(version) = self.versions.get(&inputs[0])
        {
            self.versions.insert(output, *version);
        }
        self.nodes.push(Node { op, inputs: inputs.to_vec(), output });
        Ok(output)
    }

    /// The state that an op writes in place, if it may.
    fn written(&self, op: &Op, inputs: &[Value]) -> Result<usize> {
        let refused = |got: String, needed: &str| GraphError::Shape {
            graph: self.name.clone(),
            node: node_name(self.nodes.len(), op),
            got,
            needed: needed.to_owned(),
        };
        let state = self.info(inputs[0]).buffer.and(self.state_of(inputs[0])).ok_or_else(|| {
            refused("a temporary or an input as operand 0".to_owned(), "a state to write in")
        })?;
        let name = &self.buffers[state].name;
        if inputs[1..].iter().any(|v| self.lies_in(*v) == Some(state)) {
            return Err(refused(format!("state `{name}` twice"), "other operands than what is written"));
        }
        // Stores happen when the run ends, and would then find the new content.
        if self.stores.iter().any(|(b, v)| *b == state || self.lies_in(*v) == Some(state)) {
            return Err(refused(
                format!("state `{name}`, which is stored or updated"),
                "a state that is not stored before it is written, and not updated as well",
            ));
        }
        Ok(state)
    }

    // ---- one method per op, in the order of `Op` ------------------------------------------------

    /// Rows of a table: ids `[B, T]` → `[B, T, C]`.
    pub fn embedding(&mut self, ids: Value, table: Weight) -> Result<Value> {
        self.push(Op::Embedding { table }, &[ids], None)
    }

    /// The sum of a row of each of several tables; see [`Op::EmbeddingSum`].
    pub fn embedding_sum(&mut self, ids: Value, tables: Weight, first: usize) -> Result<Value> {
        self.push(Op::EmbeddingSum { tables, first }, &[ids], None)
    }

    /// A weight `[1, …]` as a value, repeated `batch` times along its first axis.
    pub fn constant(&mut self, weight: Weight, batch: usize) -> Result<Value> {
        let mut dims = weight.shape().dims().to_vec();
        if let Some(first) = dims.first_mut() {
            *first *= batch;
        }
        self.push(Op::Constant { weight }, &[], Some(dims.into()))
    }

    /// `[…, K]` · `[K, N]` → `[…, N]`
    pub fn matmul(&mut self, x: Value, weight: Weight) -> Result<Value> {
        self.push(Op::MatMul { weight, epilogue: Epilogue::default() }, &[x], None)
    }

    /// `x · weight + bias`
    pub fn linear(&mut self, x: Value, weight: Weight, bias: Weight) -> Result<Value> {
        let y = self.matmul(x, weight)?;
        self.add_bias(y, bias)
    }

    /// Convolution along time, weight `[taps · C, N]`: `[B, T, C]` → `[B, T, N]`.
    pub fn conv1d(&mut self, x: Value, weight: Weight, geometry: ConvGeometry) -> Result<Value> {
        self.push(Op::Conv1d { weight, geometry, epilogue: Epilogue::default() }, &[x], None)
    }

    /// Convolution along time behind the rows of `history`, `[B, left, C]`; `geometry` is
    /// [`ConvGeometry::streaming`].
    pub fn conv1d_after(
        &mut self,
        history: Value,
        x: Value,
        weight: Weight,
        geometry: ConvGeometry,
    ) -> Result<Value> {
        self.push(Op::Conv1d { weight, geometry, epilogue: Epilogue::default() }, &[x, history], None)
    }

    /// Convolution of each channel with its own taps, weight `[taps, C]`.
    pub fn depthwise_conv1d(
        &mut self,
        x: Value,
        weight: Weight,
        bias: Weight,
        geometry: ConvGeometry,
    ) -> Result<Value> {
        self.push(Op::DepthwiseConv1d { weight, bias, geometry, norm: None }, &[x], None)
    }

    /// As [`Graph::depthwise_conv1d`], behind the rows of `history`; `geometry` is [`ConvGeometry::streaming`].
    pub fn depthwise_conv1d_after(
        &mut self,
        history: Value,
        x: Value,
        weight: Weight,
        bias: Weight,
        geometry: ConvGeometry,
    ) -> Result<Value> {
        self.push(Op::DepthwiseConv1d { weight, bias, geometry, norm: None }, &[x, history], None)
    }

    /// Layer norm over the last axis.
    pub fn layer_norm(&mut self, x: Value, norm: Norm) -> Result<Value> {
        self.push(Op::LayerNorm(norm), &[x], None)
    }

    /// `x / √(mean(x²) + eps) · weight` over the last axis.
    pub fn rms_norm(&mut self, x: Value, weight: Weight, eps: f32) -> Result<Value> {
        self.push(Op::RmsNorm { weight, eps }, &[x], None)
    }

    /// `x + gain · sin²(frequency · x)`, both `[C]`.
    pub fn snake(&mut self, x: Value, frequency: Weight, gain: Weight) -> Result<Value> {
        self.push(Op::Snake { frequency, gain }, &[x], None)
    }

    /// Adds `[C]` to every row.
    pub fn add_bias(&mut self, x: Value, bias: Weight) -> Result<Value> {
        self.push(Op::AddBias { bias }, &[x], None)
    }

    /// `x · scale + shift`, both `[C]`.
    pub fn affine(&mut self, x: Value, scale: Weight, shift: Weight) -> Result<Value> {
        self.push(Op::Affine { scale, shift }, &[x], None)
    }

    /// Applies a function to every element.
    pub fn activate(&mut self, x: Value, f: Activation) -> Result<Value> {
        self.push(Op::Activate(f), &[x], None)
    }

    /// Sum of two values of one shape.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value> {
        self.push(Op::Add, &[a, b], None)
    }

    /// The product of two values, element by element.
    pub fn mul(&mut self, a: Value, b: Value) -> Result<Value> {
        self.push(Op::Mul, &[a, b], None)
    }

    /// Adds the row `[1, C]` to every row of x.
    pub fn add_row(&mut self, x: Value, row: Value) -> Result<Value> {
        self.push(Op::AddRow, &[x, row], None)
    }

    /// Multiplies every row of x by the row `[1, C]`.
    pub fn mul_row(&mut self, x: Value, row: Value) -> Result<Value> {
        self.push(Op::MulRow, &[x, row], None)
    }

    /// `a · x + b · y`
    pub fn combine(&mut self, a: Factor, x: Value, b: Factor, y: Value) -> Result<Value> {
        self.push(Op::Combine { a, b }, &[x, y], None)
    }

    /// `factor · x`
    pub fn scale(&mut self, x: Value, factor: Factor) -> Result<Value> {
        self.push(Op::Scale { factor }, &[x], None)
    }

    /// Attention; see [`Op::Attention`]. `lens` hides keys past each row's length, or is what a mask with positions reads.
    pub fn attention(&mut self, op: Op, q: Value, k: Value, v: Value, lens: Option<Value>) -> Result<Value> {
        let mut inputs = vec![q, k, v];
        inputs.extend(lens);
        self.push(op, &inputs, None)
    }

    /// Cosines and sines for [`Graph::rotary`] over `time` positions.
    pub fn rotary_table(
        &mut self,
        theta: Weight,
        batch: usize,
        time: usize,
        lens: Option<Value>,
    ) -> Result<Value> {
        let inputs: Vec<Value> = lens.into_iter().collect();
        let half = theta.shape().len();
        self.push(Op::RotaryTable { theta }, &inputs, Some([batch, 2, time, half].into()))
    }

    /// Cosines and sines for [`Graph::rotary`] at whole positions; see [`Op::RopeTable`].
    pub fn rope_table(&mut self, base: f64, time: usize, head_dim: usize, first: Rows) -> Result<Value> {
        let batch = first.operand().map_or(1, |v| self.shape(v).len());
        let op = Op::RopeTable { base, first: first.kind() };
        self.push(op, &first.operands(&[]), Some([batch, 2, time, head_dim / 2].into()))
    }

    /// Turns the halves of each head by the angles of `table`.
    pub fn rotary(&mut self, x: Value, table: Value, heads: usize) -> Result<Value> {
        self.push(Op::Rotary { heads }, &[x, table], None)
    }

    /// Zeroes rows at or past each row's length; does nothing without lengths.
    pub fn mask_rows(&mut self, x: Value, lens: Option<Value>) -> Result<Value> {
        match lens {
            Some(lens) => self.push(Op::MaskRows, &[x, lens], None),
            None => Ok(x),
        }
    }

    /// Joins values along `axis`.
    pub fn concat(&mut self, values: &[Value], axis: usize) -> Result<Value> {
        self.push(Op::Concat { axis }, values, None)
    }

    /// `start … start + len` of `axis`.
    pub fn slice(&mut self, x: Value, axis: usize, start: usize, len: usize) -> Result<Value> {
        self.push(Op::Slice { axis, start, len }, &[x], None)
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, x: Value, shape: impl Into<Shape>) -> Result<Value> {
        self.push(Op::Reshape, &[x], Some(shape.into()))
    }

    /// `before` rows in front of each sequence and `after` behind: `[B, T, C]` → `[B, before + T + after, C]`.
    pub fn pad(&mut self, x: Value, padding: Padding, before: usize, after: usize) -> Result<Value> {
        self.push(Op::Pad { padding, before, after }, &[x], None)
    }

    /// Mean and deviation over time, `[B, T, C]` → `[B, 2C]`; see [`Op::Statistics`].
    pub fn statistics(&mut self, x: Value, scores: Option<Value>, floor: f32) -> Result<Value> {
        let mut inputs = vec![x];
        inputs.extend(scores);
        self.push(Op::Statistics { floor }, &inputs, None)
    }

    /// Nearest entries of codebooks `[Q, V, E]`, `[B, T, E]` → `[B, T, Q]`; see [`Op::ResidualCodes`].
    pub fn residual_codes(&mut self, x: Value, codebooks: Weight) -> Result<Value> {
        self.push(Op::ResidualCodes { codebooks }, &[x], None)
    }

    /// Output axis `i` is input axis `perm[i]`.
    pub fn permute(&mut self, x: Value, perm: &[usize]) -> Result<Value> {
        self.push(Op::Permute { perm: perm.to_vec() }, &[x], None)
    }

    /// Sines and cosines of times `[N]`.
    pub fn time_embedding(&mut self, times: Value, dim: usize) -> Result<Value> {
        self.push(Op::TimeEmbedding { dim }, &[times], None)
    }

    /// The row of `[N, C]` that a scalar names.
    pub fn select_row(&mut self, x: Value, index: Scalar) -> Result<Value> {
        self.push(Op::SelectRow { index }, &[x], None)
    }

    /// Normal numbers.
    pub fn random_normal(&mut self, shape: impl Into<Shape>, seed: Scalar, scale: f32) -> Result<Value> {
        self.push(Op::RandomNormal { seed, scale }, &[], Some(shape.into()))
    }

    /// Row `index` of each batch row of x, past the end the last one: `[B, N, C]`, i32 `[B]` → `[B, 1, C]`.
    pub fn row_at(&mut self, x: Value, index: Value) -> Result<Value> {
        self.push(Op::RowAt, &[x, index], None)
    }

    /// `x + by` of integers.
    pub fn increment(&mut self, x: Value, by: i32) -> Result<Value> {
        self.push(Op::Increment { by }, &[x], None)
    }

    /// Replaces rows of a state in place; see [`Op::WriteRows`]. What the state held before cannot be read any more.
    ///
    /// # Errors
    /// `state` is none, or not what it holds now; it is updated or stored as well; or the rows do not fit.
    pub fn write_rows(&mut self, state: Value, rows: Value, first: Rows) -> Result<Value> {
        self.push(Op::WriteRows { first: first.kind() }, &first.operands(&[state, rows]), None)
    }

    /// Sets `seen[b, ids[b]]` to 1 in place; see [`Op::Mark`].
    ///
    /// # Errors
    /// As [`Graph::write_rows`].
    pub fn mark(&mut self, seen: Value, ids: Value) -> Result<Value> {
        self.push(Op::Mark, &[seen, ids], None)
    }

    /// Draws an id for each batch row; see [`Op::Sample`].
    pub fn sample(&mut self, op: Op, logits: Value, from: Draw, seen: Option<Value>) -> Result<Value> {
        let mut inputs = vec![logits, from.settings, from.seed, from.number];
        inputs.extend(seen);
        self.push(op, &inputs, None)
    }
}

/// Where the first of several rows stands: a [`First`] with its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Here, in every batch row.
    From(usize),
    /// Where these say, i32 `[B]`.
    At(Value),
}

impl Rows {
    /// The same without the operand.
    pub fn kind(self) -> First {
        match self {
            Rows::From(first) => First::Const(first),
            Rows::At(_) => First::Operand,
        }
    }

    /// The operand, if there is one.
    pub fn operand(self) -> Option<Value> {
        match self {
            Rows::From(_) => None,
            Rows::At(v) => Some(v),
        }
    }

    fn operands(self, others: &[Value]) -> Vec<Value> {
        others.iter().copied().chain(self.operand()).collect()
    }
}

/// How ids are drawn: operands of [`Op::Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// `[B, 4]`: temperature, k, p, penalty.
    pub settings: Value,
    /// i32 `[B, 2]`
    pub seed: Value,
    /// i32 `[B]`
    pub number: Value,
}

/// Element type of a result; operands fit.
fn result_type(op: &Op, inputs: &[&ValueInfo]) -> DType {
    match op {
        Op::Sample { .. } | Op::Increment { .. } | Op::ResidualCodes { .. } => DType::I32,
        Op::Concat { .. } | Op::Slice { .. } | Op::Reshape | Op::WriteRows { .. } => inputs[0].dtype,
        _ => DType::F32,
    }
}

/// `#12 MatMul (weight name)`
pub(crate) fn node_name(index: usize, op: &Op) -> String {
    match op.label() {
        Some(label) => format!("#{index} {} ({label})", op.describe()),
        None => format!("#{index} {}", op.describe()),
    }
}

/// Output shape, or what the op needs.
fn infer(op: &Op, inputs: &[&ValueInfo], out: Option<Shape>) -> Result<Shape, String> {
    let count = |n: usize| {
        if inputs.len() == n { Ok(()) } else { Err(format!("{n} operands")) }
    };
    let float = |i: usize| match inputs.get(i) {
        Some(v) if v.dtype == DType::F32 => Ok(&v.shape),
        _ => Err(format!("f32 as operand {i}")),
    };
    // Floats of any number of bits.
    let kept = |i: usize| match inputs.get(i) {
        Some(v) if v.dtype != DType::I32 => Ok(&v.shape),
        _ => Err(format!("floats as operand {i}")),
    };
    // Ops that only move elements take integers too.
    let any = |i: usize| match inputs.get(i) {
        Some(v) if v.dtype.is_compact() => Err(format!("f32 or i32 as operand {i}")),
        Some(v) if v.dtype == inputs[0].dtype => Ok(&v.shape),
        Some(_) => Err(format!("{} as operand {i}", inputs[0].dtype)),
        None => Err("an operand".to_owned()),
    };
    let lens = |i: usize, batch: usize| match inputs.get(i) {
        Some(v) if v.dtype == DType::I32 && v.shape.dims() == [batch] => Ok(()),
        _ => Err(format!("lengths i32 [{batch}] as operand {i}")),
    };
    let first = |i: usize, batch: usize| match inputs.get(i) {
        Some(v) if v.dtype == DType::I32 && v.shape.dims() == [batch] && inputs.len() == i + 1 => Ok(()),
        _ => Err(format!("positions i32 [{batch}] as operand {i}, the last one")),
    };
    let vector = |w: &Weight, n: usize| {
        if w.shape().dims() == [n] {
            Ok(())
        } else {
            Err(format!("a last axis of {} for weight {w:?}", w.shape()))
        }
    };
    let bias_fits = |e: &Epilogue, n: usize, shape: &Shape, residual: usize| -> Result<(), String> {
        if let Some(b) = &e.bias {
            vector(b, n)?;
        }
        if e.residual && float(residual)? != shape {
            return Err(format!("a residual of {shape}"));
        }
        Ok(())
    };
    // Operands in front of a residual: the sequence, and its history if the geometry asks for one.
    let sequence = |g: &ConvGeometry| -> Result<usize, String> {
        if !g.history {
            return Ok(1);
        }
        match float(0)?.dims() {
            [b, _, c] if float(1)?.dims() == [*b, g.left, *c] => Ok(2),
            [b, _, c] => Err(format!("a history [{b}, {}, {c}] as operand 1", g.left)),
            _ => Err("[B, T, C]".to_owned()),
        }
    };
    match op {
        Op::Embedding { table } => {
            count(1)?;
            match (inputs[0].dtype, inputs[0].shape.dims(), table.shape().dims()) {
                (DType::I32, [b, t], [_, c]) => Ok([*b, *t, *c].into()),
                _ => Err("ids i32 [B, T] and a table [V, C]".to_owned()),
            }
        }
        Op::EmbeddingSum { tables, first } => {
            count(1)?;
            match (inputs[0].dtype, inputs[0].shape.dims(), tables.shape().dims()) {
                (DType::I32, [b, t, n], [q, _, c]) if first + q <= *n => Ok([*b, *t, *c].into()),
                _ => Err(format!("ids i32 [B, T, N] and tables [Q, V, C] with {first} + Q ≤ N")),
            }
        }
        Op::Constant { weight } => {
            count(0)?;
            let out = out.ok_or("an output shape")?;
            let (w, o) = (weight.shape().dims(), out.dims());
            let fits = !w.is_empty() && w.len() == o.len() && o[0] % w[0].max(1) == 0 && w[1..] == o[1..];
            if fits { Ok(out) } else { Err(format!("an output that repeats {}", weight.shape())) }
        }
        Op::MatMul { weight, epilogue } => {
            count(1 + usize::from(epilogue.residual))?;
            let x = float(0)?;
            match weight.shape().dims() {
                [k, n] if x.rank() > 0 && x.last() == *k => {
                    let y = x.with_last(*n);
                    bias_fits(epilogue, *n, &y, 1)?;
                    Ok(y)
                }
                _ => Err(format!("a last axis equal to the first of weight {weight:?}")),
            }
        }
        Op::Conv1d { weight, geometry, epilogue } => {
            let before = sequence(geometry)?;
            count(before + usize::from(epilogue.residual))?;
            match (float(0)?.dims(), weight.shape().dims()) {
                ([b, t, c], [k, n])
                    if *k == c * geometry.taps
                        && geometry.left <= (geometry.taps - 1) * geometry.dilation =>
                {
                    let y = Shape::from([*b, *t, *n]);
                    bias_fits(epilogue, *n, &y, before)?;
                    Ok(y)
                }
                _ => Err(format!("[B, T, C] with {} taps times C rows in weight {weight:?}", geometry.taps)),
            }
        }
        Op::DepthwiseConv1d { weight, bias, geometry, norm } => {
            count(sequence(geometry)?)?;
            let x = float(0)?;
            let ok = x.rank() == 3
                && weight.shape().dims() == [geometry.taps, x.last()]
                && geometry.left <= (geometry.taps - 1) * geometry.dilation;
            if !ok {
                return Err(format!("[B, T, C] for {} taps of weight {weight:?}", geometry.taps));
            }
            vector(bias, x.last())?;
            if let Some(n) = norm {
                vector(&n.weight, x.last())?;
                vector(&n.bias, x.last())?;
            }
            Ok(x.clone())
        }
        Op::LayerNorm(n) => {
            count(1)?;
            let x = float(0)?;
            vector(&n.weight, x.last())?;
            vector(&n.bias, x.last())?;
            Ok(x.clone())
        }
        Op::RmsNorm { weight, .. } => {
            count(1)?;
            let x = float(0)?;
            vector(weight, x.last())?;
            Ok(x.clone())
        }
        Op::Snake { frequency, gain } => {
            count(1)?;
            let x = float(0)?;
            vector(frequency, x.last())?;
            vector(gain, x.last())?;
            Ok(x.clone())
        }
        Op::AddBias { bias } => {
            count(1)?;
            let x = float(0)?;
            vector(bias, x.last())?;
            Ok(x.clone())
        }
        Op::Affine { scale, shift } => {
            count(1)?;
            let x = float(0)?;
            vector(scale, x.last())?;
            vector(shift, x.last())?;
            Ok(x.clone())
        }
        Op::Activate(a) => {
            count(1)?;
            if let Activation::PRelu(w) = a
                && w.shape().len() != 1
            {
                return Err("one slope".to_owned());
            }
            Ok(float(0)?.clone())
        }
        Op::Add | Op::Mul | Op::Combine { .. } => {
            count(2)?;
            if float(0)? == float(1)? {
                Ok(float(0)?.clone())
            } else {
                Err("two values of one shape".to_owned())
            }
        }
        Op::AddRow | Op::MulRow => {
            count(2)?;
            let (x, row) = (float(0)?, float(1)?);
            if row.len() == x.last() && x.rank() > 0 {
                Ok(x.clone())
            } else {
                Err(format!("a row of {} elements", x.last()))
            }
        }
        Op::Scale { .. } => {
            count(1)?;
            Ok(float(0)?.clone())
        }
        Op::Attention { heads, relative, mask, .. } => {
            if inputs.len() != 3 && inputs.len() != 4 {
                return Err("q, k, v and perhaps lengths".to_owned());
            }
            let (q, k, v) = (float(0)?, kept(1)?, kept(2)?);
            let dtype = inputs[1].dtype;
            if inputs[2].dtype != dtype {
                return Err("keys and values of one type".to_owned());
            }
            if dtype.is_compact() && (!matches!(mask, AttentionMask::Cached(_)) || relative.is_some()) {
                return Err(format!("the mask of a cache and no relative terms for keys in {dtype}"));
            }
            if dtype == DType::Q8_0 && !(q.last() / (*heads).max(1)).is_multiple_of(32) {
                return Err("heads of a multiple of 32 for keys in q8_0".to_owned());
            }
            match (q.dims(), k.dims()) {
                ([b, _, c], [bk, _, ck])
                    if (bk == b || *bk == 1)
                        && k == v
                        && *heads > 0
                        && c % heads == 0
                        && *ck > 0
                        && ck.is_multiple_of((c / heads).max(1))
                        && c.is_multiple_of(*ck) =>
                {
                    if mask.has_positions() {
                        first(3, *b)?;
                    } else if inputs.len() == 4 {
                        lens(3, *bk)?;
                    }
                    let (tq, tk) = (q.dims()[1], k.dims()[1]);
                    if *mask != AttentionMask::None && tq > tk {
                        return Err("at least as many keys as queries for a causal mask".to_owned());
                    }
                    match mask {
                        AttentionMask::Window(0) | AttentionMask::Stream(0) => {
                            return Err("a window of at least one key".to_owned());
                        }
                        AttentionMask::Cached(First::Const(at)) if at + tq > tk => {
                            return Err(format!("a cache of at least {} keys", at + tq));
                        }
                        AttentionMask::Cached(First::Const(_)) => count(3)?,
                        _ => {}
                    }
                    if mask.has_positions() && relative.is_some() {
                        return Err("no relative terms with positions".to_owned());
                    }
                    if let Some(r) = relative {
                        let want = [2 * r.window + 1, c / heads];
                        if r.key.shape().dims() != want || r.value.shape().dims() != want {
                            return Err(format!("relative tables [{}, {}]", want[0], want[1]));
                        }
                    }
                    Ok(q.clone())
                }
                _ => Err(format!(
                    "q [B, Tq, {heads} · D], k and v [B or 1, Tk, Hkv · D] with Hkv a divisor of {heads}"
                )),
            }
        }
        Op::RotaryTable { theta } => {
            let out = out.ok_or("an output shape")?;
            match out.dims() {
                [b, 2, _, half] if *half == theta.shape().len() && inputs.len() <= 1 => {
                    if inputs.len() == 1 {
                        lens(0, *b)?;
                    }
                    Ok(out)
                }
                _ => Err(format!("an output [B, 2, T, {}]", theta.shape().len())),
            }
        }
        Op::RopeTable { first: from, .. } => {
            let out = out.ok_or("an output shape")?;
            match (out.dims(), from) {
                ([1, 2, _, half], First::Const(_)) if *half > 0 => count(0)?,
                ([b, 2, _, half], First::Operand) if *half > 0 => first(0, *b)?,
                _ => return Err("an output [B or 1, 2, T, D / 2]".to_owned()),
            }
            Ok(out)
        }
        Op::Rotary { heads } => {
            count(2)?;
            match (float(0)?.dims(), float(1)?.dims()) {
                ([b, t, c], [bt, 2, tt, half])
                    if (bt == b || *bt == 1) && tt == t && *c == heads * 2 * half =>
                {
                    Ok([*b, *t, *c].into())
                }
                _ => Err(format!("x [B, T, {heads} · D] and a table [B or 1, 2, T, D / 2]")),
            }
        }
        Op::MaskRows => {
            count(2)?;
            let x = float(0)?;
            if x.rank() != 3 {
                return Err("[B, T, C]".to_owned());
            }
            lens(1, x.dims()[0])?;
            Ok(x.clone())
        }
        Op::Concat { axis } => {
            let first = any(0)?.dims().to_vec();
            if *axis >= first.len() {
                return Err(format!("more than {axis} axes"));
            }
            let mut total = 0;
            for i in 0..inputs.len() {
                let d = any(i)?.dims();
                let fits = d.len() == first.len() && (0..d.len()).all(|a| a == *axis || d[a] == first[a]);
                if !fits {
                    return Err(format!("operands that differ only in axis {axis}"));
                }
                total += d[*axis];
            }
            let mut dims = first;
            dims[*axis] = total;
            Ok(dims.into())
        }
        Op::Slice { axis, start, len } => {
            count(1)?;
            let mut dims = any(0)?.dims().to_vec();
            match dims.get_mut(*axis) {
                Some(d) if start + len <= *d => {
                    *d = *len;
                    Ok(dims.into())
                }
                _ => Err(format!("at least {} indices in axis {axis}", start + len)),
            }
        }
        Op::Reshape => {
            count(1)?;
            let out = out.ok_or("an output shape")?;
            if out.len() == any(0)?.len() {
                Ok(out)
            } else {
                Err(format!("{} elements for {out}", out.len()))
            }
        }
        Op::Pad { padding, before, after } => {
            count(1)?;
            let least = match padding {
                Padding::Zero => 0,
                Padding::Repeat => usize::from(before + after > 0),
                Padding::Reflect => before.max(after) + 1,
            };
            match float(0)?.dims() {
                [b, t, c] if *t >= least => Ok([*b, before + t + after, *c].into()),
                _ => Err(format!("[B, T, C] of at least {least} rows to pad by {}", padding.name())),
            }
        }
        Op::Statistics { .. } => {
            let x = float(0)?;
            if inputs.len() > 2 || (inputs.len() == 2 && float(1)? != x) {
                return Err(format!("a value, and perhaps scores of {x}"));
            }
            match x.dims() {
                [b, t, c] if *t > 0 => Ok([*b, 2 * c].into()),
                _ => Err("[B, T, C] with at least one row".to_owned()),
            }
        }
        Op::ResidualCodes { codebooks } => {
            count(1)?;
            match (float(0)?.dims(), codebooks.shape().dims()) {
                ([b, t, e], [q, v, width]) if e == width && *v > 0 => Ok([*b, *t, *q].into()),
                _ => Err("[B, T, E] for codebooks [Q, V, E]".to_owned()),
            }
        }
        Op::Permute { perm } => {
            count(1)?;
            let x = float(0)?.dims();
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if sorted.iter().copied().eq(0..x.len()) {
                Ok(perm.iter().map(|&p| x[p]).collect::<Vec<_>>().into())
            } else {
                Err(format!("as many axes as the permutation {perm:?}"))
            }
        }
        Op::TimeEmbedding { dim } => {
            count(1)?;
            match float(0)?.dims() {
                [n] if *dim >= 4 && dim % 2 == 0 => Ok([*n, *dim].into()),
                _ => Err("times [N] and an even width of at least 4".to_owned()),
            }
        }
        Op::SelectRow { .. } => {
            count(1)?;
            match float(0)?.dims() {
                [_, c] => Ok([1, *c].into()),
                _ => Err("[N, C]".to_owned()),
            }
        }
        Op::RandomNormal { .. } => {
            count(0)?;
            out.ok_or_else(|| "an output shape".to_owned())
        }
        Op::RowAt => match float(0)?.dims() {
            [b, n, c] if *n > 0 => {
                first(1, *b)?;
                Ok([*b, 1, *c].into())
            }
            _ => Err("[B, N, C] with at least one row".to_owned()),
        },
        Op::Increment { .. } => {
            count(1)?;
            match inputs[0].dtype {
                DType::I32 => Ok(inputs[0].shape.clone()),
                _ => Err("i32 as operand 0".to_owned()),
            }
        }
        Op::WriteRows { first: from } => match (kept(0)?.dims(), float(1)?.dims()) {
            ([b, n, c], [br, t, cr]) if b == br && c == cr && t <= n => {
                match from {
                    First::Operand => first(2, *b)?,
                    First::Const(at) if at + t <= *n => count(2)?,
                    First::Const(at) => return Err(format!("a state of at least {} rows", at + t)),
                }
                Ok(kept(0)?.clone())
            }
            _ => Err("a state [B, N, C] and rows [B, T, C] with T ≤ N".to_owned()),
        },
        Op::Mark => {
            count(2)?;
            match (float(0)?.dims(), inputs[1].dtype, inputs[1].shape.dims()) {
                ([b, _], DType::I32, [bi, 1]) if b == bi => Ok(float(0)?.clone()),
                _ => Err("a state [B, V] and ids i32 [B, 1]".to_owned()),
            }
        }
        Op::Sample { controls, .. } => {
            let logits = float(0)?.dims();
            let integers = |i: usize| match inputs.get(i) {
                Some(v) if v.dtype == DType::I32 => Ok(v.shape.dims()),
                _ => Err(format!("i32 as operand {i}")),
            };
            let seen = inputs.len() < 5 || float(4)?.dims() == logits;
            let inside = |c: &ControlIds| logits.last().is_some_and(|v| c.first <= *v && c.end < *v);
            match logits {
                [b, v]
                    if *v > 0
                        && float(1)?.dims() == [*b, 4]
                        && integers(2)? == [*b, 2]
                        && integers(3)? == [*b]
                        && inputs.len() <= 5
                        && seen
                        && controls.as_ref().is_none_or(inside) =>
                {
                    Ok([*b, 1].into())
                }
                _ => Err(
                    "logits [B, V], settings [B, 4], seed i32 [B, 2], draw i32 [B] and perhaps seen [B, V], \
                          with control ids below V"
                        .to_owned(),
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_node_what_it_got_and_what_it_needed() {
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [1, 7, 12]).expect("first use of the name");
        let e = g.matmul(x, Weight::named("w.weight", [16, 4])).expect_err("12 is not 16");
        assert_eq!(
            e.to_string(),
            "graph `demo`, node #0 MatMul (w.weight): got f32 [1, 7, 12], \
             needs a last axis equal to the first of weight w.weight: [16, 4]"
        );
    }

    #[test]
    fn names_are_declared_once() {
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [1]).expect("first");
        assert!(matches!(g.output("x", x), Err(GraphError::Redeclared { .. })));
        assert!(g.update("missing", x).is_err());
        assert_eq!(g.scalar("t"), g.scalar("t"));
    }

    #[test]
    fn a_history_has_as_many_rows_as_the_taps_reach_back() {
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [2, 5, 8]).expect("declares");
        let history = g.input("history", DType::F32, [2, 6, 8]).expect("declares");
        let w = Weight::named("w", [24, 4]);
        let y = g.conv1d_after(history, x, w.clone(), ConvGeometry::streaming(3, 3)).expect("6 rows");
        assert_eq!(g.shape(y).dims(), [2, 5, 4]);
        let e = g.conv1d_after(history, x, w.clone(), ConvGeometry::streaming(3, 1)).expect_err("2 rows");
        assert!(e.to_string().contains("needs a history [2, 2, 8] as operand 1"), "{e}");
        assert!(g.conv1d(x, w.clone(), ConvGeometry::streaming(3, 3)).is_err(), "no history");
        assert!(g.conv1d_after(history, x, w, ConvGeometry::causal(3, 3)).is_err(), "one too many");
    }

    #[test]
    fn heads_of_keys_divide_those_of_queries() {
        let mut g = Graph::new("demo");
        let q = g.input("q", DType::F32, [1, 5, 24]).expect("declares");
        let mut with = |name: &str, keys: usize, heads: usize, mask| {
            let k = g.input(name, DType::F32, [1, 7, keys]).expect("declares");
            g.attention(Op::Attention { heads, scale: 1.0, mask, relative: None }, q, k, k, None).is_ok()
        };
        assert!(with("a", 24, 6, AttentionMask::None));
        assert!(with("b", 8, 6, AttentionMask::Causal));
        assert!(with("c", 4, 6, AttentionMask::Window(3)));
        assert!(!with("d", 4, 6, AttentionMask::Window(0)), "an empty window");
        assert!(!with("e", 16, 6, AttentionMask::None), "6 heads on 4");
        assert!(!with("f", 6, 6, AttentionMask::None), "a head and a half");
    }

    #[test]
    fn sums_of_table_rows_need_an_id_for_each_table() {
        let mut g = Graph::new("demo");
        let ids = g.input("ids", DType::I32, [1, 5, 16]).expect("declares");
        let tables = Weight::named("w", [15, 9, 8]);
        let y = g.embedding_sum(ids, tables.clone(), 1).expect("ids 1 to 15");
        assert_eq!(g.shape(y).dims(), [1, 5, 8]);
        assert!(g.embedding_sum(ids, tables, 2).is_err());
    }

    #[test]
    fn what_a_state_held_before_a_write_cannot_be_read() {
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [1, 2, 4]).expect("declares");
        let old = g.state("cache", DType::F32, [1, 6, 4]).expect("declares");
        let flat = g.reshape(old, [6, 4]).expect("builds");
        let new = g.write_rows(old, x, Rows::From(0)).expect("fits");
        assert_eq!(g.info(new).buffer, g.info(old).buffer);
        for stale in [old, flat] {
            let e = g.scale(stale, Factor::Const(1.0)).expect_err("is gone").to_string();
            assert!(e.contains("what state `cache` held before it was written in place"), "{e}");
        }
        assert!(g.write_rows(old, x, Rows::From(0)).is_err());
        assert!(g.output("y", old).is_err());
        g.state("other", DType::F32, [1, 6, 4]).expect("declares");
        assert!(g.update("other", old).is_err());
        let newer = g.write_rows(new, x, Rows::From(4)).expect("fits");
        assert!(g.scale(new, Factor::Const(1.0)).is_err());
        g.scale(newer, Factor::Const(1.0)).expect("is what the state holds");
        g.output("y", newer).expect("is what the state holds");
        assert!(g.write_rows(newer, x, Rows::From(0)).is_err(), "is stored when the run ends");
    }

    #[test]
    fn a_write_needs_a_state_that_is_not_updated() {
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [1, 2, 4]).expect("declares");
        let twice = g.scale(x, Factor::Const(2.0)).expect("builds");
        for no_state in [x, twice] {
            let e = g.write_rows(no_state, x, Rows::From(0)).expect_err("no state").to_string();
            assert!(e.contains("needs a state to write in"), "{e}");
        }
        let a = g.state("a", DType::F32, [1, 2, 4]).expect("declares");
        g.update("a", twice).expect("fits");
        assert!(g.write_rows(a, x, Rows::From(0)).is_err(), "is updated");
        let b = g.state("b", DType::F32, [1, 2, 4]).expect("declares");
        assert!(g.write_rows(b, b, Rows::From(0)).is_err(), "from itself");
        let flat = g.reshape(b, [1, 1, 8]).expect("builds");
        assert!(g.write_rows(flat, x, Rows::From(0)).is_err(), "another shape than the state's");
        g.write_rows(b, x, Rows::From(0)).expect("fits");
        let e = g.update("b", twice).expect_err("is written").to_string();
        assert!(e.contains("a state that is written in place"), "{e}");
    }

    #[test]
    fn compact_states_take_rows_and_give_them_to_attention_alone() {
        for dtype in DType::COMPACT {
            let mut g = Graph::new("demo");
            let x = g.input("x", DType::F32, [2, 3, 64]).expect("declares");
            let cache = g.state("cache", dtype, [2, 5, 64]).expect("whole rows");
            let other = g.state("other", DType::F32, [2, 5, 64]).expect("declares");
            let written = g.write_rows(cache, x, Rows::From(1)).expect("fits");
            assert_eq!(g.info(written).dtype, dtype);
            let op = |mask| Op::Attention { heads: 2, scale: 1.0, mask, relative: None };
            let cached = AttentionMask::Cached(First::Const(1));
            let y = g.attention(op(cached), x, written, written, None).expect("reads it");
            assert_eq!(g.info(y).dtype, DType::F32);
            for (mask, values) in [(AttentionMask::Causal, written), (cached, other)] {
                assert!(g.attention(op(mask), x, written, values, None).is_err(), "{mask:?}");
            }
            let e = g.scale(written, Factor::Const(2.0)).expect_err("is not f32").to_string();
            assert!(e.contains(&format!("got {dtype} [2, 5, 64]")), "{e}");
            assert!(g.slice(written, 1, 0, 2).is_err() && g.reshape(written, [10, 64]).is_err());
            assert!(g.concat(&[written, written], 1).is_err() && g.update("cache", written).is_err());
            assert!(g.write_rows(other, written, Rows::From(0)).is_err(), "rows are f32");
            g.output("kept", written).expect("is copied as it is");
            let e = g.state("narrow", dtype, [2, 5, 33]).expect_err("not whole words").to_string();
            assert!(e.contains("buffer `narrow`") && e.contains("rows of a multiple of"), "{e}");
        }
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [1, 1, 64]).expect("declares");
        let cache = g.state("cache", DType::Q8_0, [1, 5, 64]).expect("whole rows");
        let mask = AttentionMask::Cached(First::Const(1));
        let op = Op::Attention { heads: 4, scale: 1.0, mask, relative: None };
        let e = g.attention(op, x, cache, cache, None).expect_err("heads of 16").to_string();
        assert!(e.contains("needs heads of a multiple of 32 for keys in q8_0"), "{e}");
    }

    #[test]
    fn rows_and_positions_fit() {
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [2, 3, 8]).expect("declares");
        let cache = g.state("cache", DType::F32, [2, 5, 8]).expect("declares");
        let first = g.input("first", DType::I32, [2]).expect("declares");
        let one = g.input("one", DType::I32, [1]).expect("declares");
        assert!(g.write_rows(cache, x, Rows::From(3)).is_err(), "3 + 3 > 5");
        assert!(g.write_rows(cache, x, Rows::At(one)).is_err(), "two batch rows");
        let mut attention = |mask, first: Option<Value>| {
            let op = Op::Attention { heads: 2, scale: 1.0, mask, relative: None };
            g.attention(op, x, cache, cache, first).is_ok()
        };
        assert!(attention(AttentionMask::Cached(First::Const(2)), None));
        assert!(!attention(AttentionMask::Cached(First::Const(3)), None));
        assert!(!attention(AttentionMask::Cached(First::Const(2)), Some(first)));
        assert!(attention(AttentionMask::Cached(First::Operand), Some(first)));
        assert!(!attention(AttentionMask::Cached(First::Operand), None));
        assert!(attention(AttentionMask::Stream(3), Some(first)));
        assert!(!attention(AttentionMask::Stream(0), Some(first)));
        let next = g.increment(first, 1).expect("integers");
        assert_eq!(g.info(next).dtype, DType::I32);
        let both = g.concat(&[next, one], 0).expect("integers");
        assert_eq!((g.info(both).dtype, g.shape(both).len()), (DType::I32, 3));
        assert!(g.increment(x, 1).is_err() && g.push(Op::Concat { axis: 0 }, &[first, x], None).is_err());
    }

    #[test]
    fn shapes_of_every_family() {
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [2, 5, 8]).expect("declares");
        let lens = g.input("lens", DType::I32, [2]).expect("declares");
        let one =
            |g: &mut Graph, op, inputs: &[Value]| g.push(op, inputs, None).map(|v| g.shape(v).to_string());
        assert_eq!(one(&mut g, Op::Concat { axis: 1 }, &[x, x]).as_deref(), Ok("[2, 10, 8]"));
        assert_eq!(one(&mut g, Op::Slice { axis: 1, start: 1, len: 3 }, &[x]).as_deref(), Ok("[2, 3, 8]"));
        assert_eq!(one(&mut g, Op::Permute { perm: vec![2, 0, 1] }, &[x]).as_deref(), Ok("[8, 2, 5]"));
        assert_eq!(one(&mut g, Op::MaskRows, &[x, lens]).as_deref(), Ok("[2, 5, 8]"));
        assert!(one(&mut g, Op::MaskRows, &[x, x]).is_err());
        assert!(one(&mut g, Op::Slice { axis: 1, start: 3, len: 3 }, &[x]).is_err());
        assert!(one(&mut g, Op::Permute { perm: vec![0, 0, 1] }, &[x]).is_err());
        assert!(one(&mut g, Op::Add, &[x, lens]).is_err());
    }
}
