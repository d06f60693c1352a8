//! Runs a graph slowly and plainly: the definition that every executor is compared with.
//!
//! Ops compute in double precision, fused epilogues included; values between ops are f32, as on devices.
//! Accepts graphs before or after passes. Buffers keep their content until the run ends: an output that
//! stores a state's value gets the old content, whatever is written to the state. A write in place creates a
//! new value here, which becomes the state's content at the end.

use crate::compact;
use crate::formulas::{self as f, Attention};
use crate::sampling;
use orate_graph::{
    Activation, AttentionMask, BufferKind, ConvGeometry, DType, Edges, Epilogue, Factor, First, Graph,
    GraphError, NO_ID, Node, Op, Scalar, Shape, Value, Weight, WeightLoader, sample_settings,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// Elements of a buffer or value.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Floats.
    F32(Vec<f32>),
    /// Integers.
    I32(Vec<i32>),
    /// Rows of a compact type, as bytes.
    Compact(DType, Vec<u8>),
}

impl Data {
    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Data::F32(x) => 4 * x.len(),
            Data::I32(x) => 4 * x.len(),
            Data::Compact(_, bytes) => bytes.len(),
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::I32(_) => DType::I32,
            Data::Compact(dtype, _) => *dtype,
        }
    }

    /// Whether this is exactly the content of a value of this type and shape.
    pub fn fills(&self, dtype: DType, shape: &Shape) -> bool {
        self.dtype() == dtype && self.bytes() == dtype.bytes_of(shape)
    }

    /// The floats, or `None` for other types.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match self {
            Data::F32(x) => Some(x),
            Data::I32(_) | Data::Compact(..) => None,
        }
    }

    /// The integers, or `None` for other types.
    pub fn as_i32(&self) -> Option<&[i32]> {
        match self {
            Data::I32(x) => Some(x),
            Data::F32(_) | Data::Compact(..) => None,
        }
    }
}

impl From<Vec<f32>> for Data {
    fn from(x: Vec<f32>) -> Self {
        Data::F32(x)
    }
}

impl From<Vec<i32>> for Data {
    fn from(x: Vec<i32>) -> Self {
        Data::I32(x)
    }
}

/// Named buffers.
pub type Buffers = BTreeMap<String, Data>;

/// Value of a run-time scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarValue {
    /// A factor.
    F32(f32),
    /// A seed or a row index.
    U64(u64),
}

/// Named scalars.
pub type Scalars = BTreeMap<String, ScalarValue>;

/// Error of interpreting a graph.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InterpretError {
    /// An input or state was not given, or its type or size differs from the declaration.
    #[error("graph `{graph}` needs buffer `{name}` with {needed}, got {got}")]
    Buffer {
        /// Graph name.
        graph: String,
        /// Buffer name.
        name: String,
        /// Declared type and shape.
        needed: String,
        /// What was given.
        got: String,
    },
    /// A scalar was not given, or has the wrong kind.
    #[error("graph `{graph}` needs scalar `{name}` as {needed}, got {got:?}")]
    Scalar {
        /// Graph name.
        graph: String,
        /// Scalar name.
        name: String,
        /// Kind that the op reads.
        needed: &'static str,
        /// What was given.
        got: Option<ScalarValue>,
    },
    /// An id or row index is outside of its table.
    #[error("graph `{graph}`, node #{node} {op}: index {index} is outside of {rows} rows")]
    Index {
        /// Graph name.
        graph: String,
        /// Node number.
        node: usize,
        /// Op name.
        op: &'static str,
        /// The id or index.
        index: i64,
        /// Number of rows.
        rows: usize,
    },
    /// Rows of a cache are said to begin alike, and do not.
    #[error("graph `{graph}`, node #{node}: {keys} keys or values of rows {rows:?} are not the same")]
    Common {
        /// Graph name.
        graph: String,
        /// Node number.
        node: usize,
        /// A row, and the one that it is said to begin like.
        rows: [usize; 2],
        /// How many are said to be the same.
        keys: usize,
    },
    /// A node reads a value that no node produced, or with the wrong type: the graph is broken.
    #[error("graph `{graph}`: value {value} is read as {dtype} but is not there in this type")]
    Value {
        /// Graph name.
        graph: String,
        /// Index of the value.
        value: usize,
        /// Type it was read as.
        dtype: DType,
    },
    /// A weight could not be evaluated.
    #[error(transparent)]
    Weight(#[from] GraphError),
}

/// Runs `graph` once and returns all buffers as they are afterwards. Buffers unknown to the graph are
/// returned unchanged.
///
/// # Errors
/// An input, state, scalar or weight is missing or does not fit, or an index is out of range.
pub fn interpret(
    graph: &Graph,
    weights: &dyn WeightLoader,
    buffers: &Buffers,
    scalars: &Scalars,
) -> Result<Buffers, InterpretError> {
    for b in graph.buffers().iter().filter(|b| b.kind != BufferKind::Output) {
        let given = buffers.get(&b.name);
        if !given.is_some_and(|d| d.fills(b.dtype, &b.shape)) {
            return Err(InterpretError::Buffer {
                graph: graph.name().to_owned(),
                name: b.name.clone(),
                needed: format!("{} {}", b.dtype, b.shape),
                got: given.map_or("nothing".to_owned(), |d| match d {
                    Data::Compact(dtype, bytes) => format!("{} bytes of {dtype}", bytes.len()),
                    _ => format!("{} elements of {}", d.bytes() / 4, d.dtype()),
                }),
            });
        }
    }
    let mut run = Run { graph, weights, buffers, scalars, values: HashMap::new() };
    for (i, node) in graph.nodes().iter().enumerate() {
        let dtype = graph.info(node.output).dtype;
        if dtype.is_compact() {
            let y = run.compact_rows(i, node)?;
            run.values.insert(node.output, y);
            continue;
        }
        let y = run.node(i, node)?;
        debug_assert_eq!(y.len(), graph.shape(node.output).len(), "node #{i} {}", node.op.name());
        let y = match dtype {
            DType::I32 => Data::I32(y.into_iter().map(|x| x as i32).collect()),
            _ => Data::F32(y.into_iter().map(|x| x as f32).collect()),
        };
        run.values.insert(node.output, y);
    }
    let mut after = buffers.clone();
    for node in graph.nodes().iter().filter(|n| n.op.in_place()) {
        let state = graph.info(node.output).buffer.expect("a state is what can be written in place");
        after.insert(graph.buffers()[state].name.clone(), run.values[&node.output].clone());
    }
    for &(b, v) in graph.stores() {
        let data = run.data(v).cloned().ok_or_else(|| run.broken(v, graph.info(v).dtype))?;
        after.insert(graph.buffers()[b].name.clone(), data);
    }
    Ok(after)
}

struct Run<'a> {
    graph: &'a Graph,
    weights: &'a dyn WeightLoader,
    /// Content before the run.
    buffers: &'a Buffers,
    scalars: &'a Scalars,
    /// Results of nodes.
    values: HashMap<Value, Data>,
}

impl Run<'_> {
    fn buffer_of(&self, v: Value) -> Option<&Data> {
        self.graph.info(v).buffer.and_then(|b| self.buffers.get(&self.graph.buffers()[b].name))
    }

    fn floats(&self, v: Value) -> Result<&[f32], InterpretError> {
        self.data(v).and_then(Data::as_f32).ok_or_else(|| self.broken(v, DType::F32))
    }

    fn integers(&self, v: Value) -> Result<&[i32], InterpretError> {
        self.data(v).and_then(Data::as_i32).ok_or_else(|| self.broken(v, DType::I32))
    }

    fn data(&self, v: Value) -> Option<&Data> {
        self.values.get(&v).or_else(|| self.buffer_of(v))
    }

    /// Floats or integers as doubles, which hold both exactly.
    fn numbers(&self, v: Value) -> Result<Vec<f64>, InterpretError> {
        match self.data(v) {
            Some(Data::F32(x)) => Ok(x.iter().map(|x| f64::from(*x)).collect()),
            Some(Data::I32(x)) => Ok(x.iter().map(|x| f64::from(*x)).collect()),
            Some(Data::Compact(..)) | None => Err(self.broken(v, self.graph.info(v).dtype)),
        }
    }

    /// Floats of any width, as f32.
    fn kept(&self, v: Value) -> Result<Cow<'_, [f32]>, InterpretError> {
        match self.data(v) {
            Some(Data::Compact(dtype, bytes)) => {
                Ok(compact::decode(*dtype, self.graph.shape(v).last(), bytes).into())
            }
            _ => Ok(self.floats(v)?.into()),
        }
    }

    /// `WriteRows` to a state of a compact type: rows that are not replaced stay bit for bit.
    fn compact_rows(&self, i: usize, node: &Node) -> Result<Data, InterpretError> {
        let (state, rows) = (node.inputs[0], node.inputs[1]);
        let Op::WriteRows { first } = &node.op else { return Err(self.broken(state, DType::F32)) };
        let Some(Data::Compact(dtype, bytes)) = self.data(state) else {
            return Err(self.broken(state, self.graph.info(state).dtype));
        };
        let (&[batch, n, c], time) = (self.graph.shape(state).dims(), self.graph.shape(rows).dims()[1])
        else {
            unreachable!("three axes by shape inference")
        };
        let (mut bytes, row) = (bytes.clone(), dtype.row_bytes(c));
        for (b, first) in self.firsts((i, node), (batch, time, n), *first)?.into_iter().enumerate() {
            let rows = compact::encode(*dtype, c, &self.floats(rows)?[b * time * c..][..time * c]);
            bytes[(b * n + first) * row..][..time * row].copy_from_slice(&rows);
        }
        Ok(Data::Compact(*dtype, bytes))
    }

    /// First position of `rows` rows of each batch row, in a cache of `most`: from the last operand if there
    /// is one.
    fn firsts(
        &self,
        (i, node): (usize, &Node),
        (batch, rows, most): (usize, usize, usize),
        first: First,
    ) -> Result<Vec<usize>, InterpretError> {
        // Of attention, what rows have in common may follow.
        let operand = match node.op {
            Op::Attention { .. } => node.inputs.get(3).copied(),
            _ => node.inputs.last().copied(),
        };
        let given = match (first, operand) {
            (First::Const(first), _) => vec![first as i32; batch],
            (First::Operand, Some(v)) => self.integers(v)?.to_vec(),
            (First::Operand, None) => unreachable!("there by shape inference"),
        };
        let one = |first: i32| match usize::try_from(first) {
            Ok(first) if first <= most && rows <= most - first => Ok(first),
            _ => Err(self.out_of_range(i, &node.op, i64::from(first) + rows as i64 - 1, most)),
        };
        given.into_iter().map(one).collect()
    }

    /// Checks what rows of a cache are said to have in common before `positions`.
    fn check_common(&self, node: usize, inputs: &[Value], positions: &[i32]) -> Result<(), InterpretError> {
        let Some(shared) = inputs.get(4) else { return Ok(()) };
        let dims = self.graph.shape(inputs[1]).dims();
        for (row, said) in self.integers(*shared)?.chunks_exact(2).enumerate() {
            let (first, keys) = (said[0] as usize, said[1].max(0) as usize);
            let is_there = first < dims[0] && keys as i32 <= positions[row];
            let are_same = |v: &Value| -> Result<bool, InterpretError> {
                let all = self.kept(*v)?;
                let begin = |row: usize| &all[row * dims[1] * dims[2]..][..keys * dims[2]];
                Ok(begin(first) == begin(row))
            };
            if !(is_there && are_same(&inputs[1])? && are_same(&inputs[2])?) {
                let graph = self.graph.name().to_owned();
                return Err(InterpretError::Common { graph, node, rows: [row, first], keys });
            }
        }
        Ok(())
    }

    fn broken(&self, v: Value, dtype: DType) -> InterpretError {
        InterpretError::Value { graph: self.graph.name().to_owned(), value: v.index(), dtype }
    }

    fn weight(&self, w: &Weight) -> Result<Vec<f32>, InterpretError> {
        Ok(w.evaluate(self.weights)?.contiguous().data.into_owned())
    }

    fn scalar(&self, s: Scalar, needed: &'static str) -> Result<ScalarValue, InterpretError> {
        let name = &self.graph.scalars()[s.index()];
        let got = self.scalars.get(name).copied();
        match (got, needed) {
            (Some(v @ ScalarValue::F32(_)), "f32") | (Some(v @ ScalarValue::U64(_)), "u64") => Ok(v),
            _ => Err(InterpretError::Scalar {
                graph: self.graph.name().to_owned(),
                name: name.clone(),
                needed,
                got,
            }),
        }
    }

    fn factor(&self, x: Factor) -> Result<f64, InterpretError> {
        Ok(f64::from(match x {
            Factor::Const(x) => x,
            Factor::Scalar(s) => match self.scalar(s, "f32")? {
                ScalarValue::F32(x) => x,
                ScalarValue::U64(_) => unreachable!("kind was checked"),
            },
        }))
    }

    fn whole(&self, s: Scalar) -> Result<u64, InterpretError> {
        match self.scalar(s, "u64")? {
            ScalarValue::U64(x) => Ok(x),
            ScalarValue::F32(_) => unreachable!("kind was checked"),
        }
    }

    fn out_of_range(&self, i: usize, op: &Op, index: i64, rows: usize) -> InterpretError {
        InterpretError::Index { graph: self.graph.name().to_owned(), node: i, op: op.name(), index, rows }
    }

    /// `residual + activation(y + bias)`
    fn epilogue(&self, mut y: Vec<f64>, e: &Epilogue, node: &Node) -> Result<Vec<f64>, InterpretError> {
        if let Some(bias) = &e.bias {
            let bias = self.weight(bias)?;
            y.iter_mut().enumerate().for_each(|(i, y)| *y += f64::from(bias[i % bias.len()]));
        }
        if let Some(a) = &e.activation {
            y = self.activation(y, a)?;
        }
        if e.residual {
            let residual = self.floats(node.inputs[node.inputs.len() - 1])?;
            y.iter_mut().zip(residual).for_each(|(y, r)| *y += f64::from(*r));
        }
        Ok(y)
    }

    fn activation(&self, mut x: Vec<f64>, a: &Activation) -> Result<Vec<f64>, InterpretError> {
        let slope = a.slope().map(|w| self.weight(w)).transpose()?.map_or(0.0, |w| f64::from(w[0]));
        for x in &mut x {
            *x = match a {
                Activation::Relu => x.max(0.0),
                Activation::PRelu(_) if *x > 0.0 => *x,
                Activation::PRelu(_) => slope * *x,
                Activation::Gelu => f::gelu(*x),
                Activation::Mish => f::mish(*x),
                Activation::Tanh => x.tanh(),
                Activation::Exp => x.exp(),
                Activation::Silu => f::silu(*x),
                Activation::Clip => x.clamp(-1.0, 1.0),
                Activation::Sigmoid => 1.0 / (1.0 + (-*x).exp()),
                Activation::Elu => f::elu(*x),
                Activation::GeluTanh => f::gelu_tanh(*x),
                Activation::Sin => x.sin(),
                Activation::Cos => x.cos(),
            };
        }
        Ok(x)
    }

    /// Input of a convolution.
    fn sequence(&self, node: &Node, g: &ConvGeometry) -> Result<f::Sequence<'_>, InterpretError> {
        let dims = self.graph.shape(node.inputs[0]).dims();
        Ok(f::Sequence {
            x: self.floats(node.inputs[0])?,
            history: if g.has_history() { self.floats(node.inputs[1])? } else { &[] },
            lengths: if g.edges == Edges::Lengths { self.integers(node.inputs[1])? } else { &[] },
            time: dims[1],
            channels: dims[2],
        })
    }

    fn node(&self, i: usize, node: &Node) -> Result<Vec<f64>, InterpretError> {
        let shape = |n: usize| self.graph.shape(node.inputs[n]);
        let dims = |n: usize| shape(n).dims();
        let x = |n: usize| self.floats(node.inputs[n]);
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let out = self.graph.shape(node.output);
        Ok(match &node.op {
            Op::Embedding { table } => {
                let (rows, c) = (table.shape().dims()[0], table.shape().dims()[1]);
                let table = self.weight(table)?;
                let mut y = vec![];
                for &id in self.integers(node.inputs[0])? {
                    let row = if id < 0 { i64::from(id) + rows as i64 } else { i64::from(id) };
                    if !(0..rows as i64).contains(&row) {
                        return Err(self.out_of_range(i, &node.op, i64::from(id), rows));
                    }
                    y.extend(wide(&table[row as usize * c..][..c]));
                }
                y
            }
            Op::EmbeddingSum { tables, first } => {
                let &[q, rows, c] = tables.shape().dims() else {
                    unreachable!("three axes by shape inference")
                };
                let tables = self.weight(tables)?;
                let mut y = vec![];
                for ids in self.integers(node.inputs[0])?.chunks_exact(dims(0)[2]) {
                    let mut sum = vec![0.0; c];
                    for (book, &id) in ids[*first..][..q].iter().enumerate() {
                        let row = usize::try_from(id).ok().filter(|row| *row < rows);
                        let row = row.ok_or_else(|| self.out_of_range(i, &node.op, i64::from(id), rows))?;
                        let row = &tables[(book * rows + row) * c..][..c];
                        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
                    }
                    y.extend(sum);
                }
                y
            }
            Op::Constant { weight } => {
                let w = wide(&self.weight(weight)?);
                (0..out.len()).map(|i| w[i % w.len()]).collect()
            }
            Op::MatMul { weight, epilogue } => {
                let (k, n) = (weight.shape().dims()[0], weight.shape().dims()[1]);
                self.epilogue(f::matmul(x(0)?, &self.weight(weight)?, k, n), epilogue, node)?
            }
            Op::Conv1d { weight, geometry, epilogue } => {
                let n = weight.shape().dims()[1];
                let y = f::conv1d(&self.sequence(node, geometry)?, &self.weight(weight)?, geometry, n);
                self.epilogue(y, epilogue, node)?
            }
            Op::DepthwiseConv1d { weight, bias, geometry, norm } => {
                let (w, bias) = (self.weight(weight)?, self.weight(bias)?);
                let y = f::depthwise(&self.sequence(node, geometry)?, &w, &bias, geometry);
                match norm {
                    Some(n) => f::layer_norm(&y, &self.weight(&n.weight)?, &self.weight(&n.bias)?, n.eps),
                    None => y,
                }
            }
            Op::LayerNorm(n) => {
                f::layer_norm(&wide(x(0)?), &self.weight(&n.weight)?, &self.weight(&n.bias)?, n.eps)
            }
            Op::RmsNorm { weight, eps } => f::rms_norm(x(0)?, &self.weight(weight)?, *eps),
            Op::Snake { frequency, gain } => f::snake(x(0)?, &self.weight(frequency)?, &self.weight(gain)?),
            Op::AddBias { bias } => {
                let bias = self.weight(bias)?;
                wide(x(0)?).iter().enumerate().map(|(i, x)| x + f64::from(bias[i % bias.len()])).collect()
            }
            Op::Affine { scale, shift } => {
                let (scale, shift) = (self.weight(scale)?, self.weight(shift)?);
                let at = |w: &[f32], i: usize| f64::from(w[i % w.len()]);
                wide(x(0)?).iter().enumerate().map(|(i, x)| x * at(&scale, i) + at(&shift, i)).collect()
            }
            Op::Activate(a) => self.activation(wide(x(0)?), a)?,
            Op::Add => wide(x(0)?).iter().zip(x(1)?).map(|(a, b)| a + f64::from(*b)).collect(),
            Op::Mul => wide(x(0)?).iter().zip(x(1)?).map(|(a, b)| a * f64::from(*b)).collect(),
            Op::AddRow => {
                let row = x(1)?;
                wide(x(0)?).iter().enumerate().map(|(i, x)| x + f64::from(row[i % row.len()])).collect()
            }
            Op::MulRow => {
                let row = x(1)?;
                wide(x(0)?).iter().enumerate().map(|(i, x)| x * f64::from(row[i % row.len()])).collect()
            }
            Op::Combine { a, b } => {
                let (a, b) = (self.factor(*a)?, self.factor(*b)?);
                wide(x(0)?).iter().zip(x(1)?).map(|(x, y)| a * x + b * f64::from(*y)).collect()
            }
            Op::Scale { factor } => {
                let factor = self.factor(*factor)?;
                wide(x(0)?).iter().map(|x| factor * x).collect()
            }
            Op::Attention { heads, scale, mask, relative, bias, .. } => {
                let tables = match relative {
                    Some(r) => Some((self.weight(&r.key)?, self.weight(&r.value)?, r.window)),
                    None => None,
                };
                f::attention(&Attention {
                    q: x(0)?,
                    k: &self.kept(node.inputs[1])?,
                    v: &self.kept(node.inputs[2])?,
                    lens: match node.inputs.get(if *bias { 4 } else { 3 }) {
                        Some(v) if !mask.has_positions() => Some(self.integers(*v)?),
                        _ => None,
                    },
                    positions: match (mask, node.inputs.get(3)) {
                        (AttentionMask::Cached(first), Some(v)) => {
                            self.firsts((i, node), (dims(0)[0], dims(0)[1], dims(1)[1]), *first)?;
                            let positions = self.integers(*v)?;
                            if !*bias {
                                self.check_common(i, &node.inputs, positions)?;
                            }
                            Some(positions)
                        }
                        (AttentionMask::Stream(_), Some(v)) => {
                            self.firsts((i, node), (dims(0)[0], 0, i32::MAX as usize), First::Operand)?;
                            Some(self.integers(*v)?)
                        }
                        _ => None,
                    },
                    sizes: [dims(0)[0], dims(0)[1], dims(1)[0], dims(1)[1]],
                    heads: (*heads, dims(0)[2] / heads),
                    scale: *scale,
                    mask: *mask,
                    relative: tables.as_ref().map(|(k, v, w)| (k.as_slice(), v.as_slice(), *w)),
                    bias: if *bias { Some(x(3)?) } else { None },
                })
            }
            Op::RelativeScores { heads, scale } => {
                let sizes = [dims(0)[0], dims(0)[1], dims(0)[2]];
                f::relative_scores(x(0)?, x(1)?, sizes, *heads, *scale)
            }
            Op::RotaryTable { theta } => {
                let lens = match node.inputs.first() {
                    Some(v) => Some(self.integers(*v)?),
                    None => None,
                };
                f::rotary_table(&self.weight(theta)?, out.dims()[0], out.dims()[2], lens)
            }
            Op::RopeTable { base, scaling, first } => {
                let first = self.firsts((i, node), (out.dims()[0], 0, i32::MAX as usize), *first)?;
                f::rope_table(*base, *scaling, &first, out.dims()[2], out.dims()[3])
            }
            Op::Rotary { heads } => {
                let (b, t, c) = (dims(0)[0], dims(0)[1], dims(0)[2]);
                f::rotary(x(0)?, x(1)?, [b, t, *heads, c / heads])
            }
            Op::MaskRows => {
                let (t, c) = (dims(0)[1], dims(0)[2]);
                let (x, lens) = (x(0)?, self.integers(node.inputs[1])?);
                let kept = |i: usize| ((i / c % t) as i64) < i64::from(lens[i / (t * c)]);
                (0..x.len()).map(|i| if kept(i) { f64::from(x[i]) } else { 0.0 }).collect()
            }
            Op::Concat { axis } => {
                let all = node.inputs.iter().map(|v| self.numbers(*v)).collect::<Result<Vec<_>, _>>()?;
                let one = |flat| {
                    let mut at = f::index_of(flat, out.dims());
                    let mut operand = 0;
                    while at[*axis] >= dims(operand)[*axis] {
                        at[*axis] -= dims(operand)[*axis];
                        operand += 1;
                    }
                    all[operand][at.iter().zip(dims(operand)).fold(0, |flat, (i, d)| flat * d + i)]
                };
                (0..out.len()).map(one).collect()
            }
            Op::Slice { axis, start, .. } => {
                f::gather(&self.numbers(node.inputs[0])?, dims(0), out.dims(), |at| {
                    let mut at = at.to_vec();
                    at[*axis] += start;
                    at
                })
            }
            Op::Pad { padding, before, .. } => f::pad(x(0)?, dims(0), out.dims(), *padding, *before),
            Op::Statistics { floor } => {
                let scores = node.inputs.get(1).map(|v| self.floats(*v)).transpose()?;
                f::statistics(x(0)?, scores, [dims(0)[0], dims(0)[1], dims(0)[2]], *floor)
            }
            Op::ResidualCodes { codebooks } => {
                let [q, v, _] = codebooks.shape().dims() else {
                    unreachable!("three axes by shape inference")
                };
                f::residual_codes(x(0)?, &self.weight(codebooks)?, *q, *v, dims(0)[2])
            }
            Op::OverlapAdd { window, hop } => f::overlap_add(x(0)?, &self.weight(window)?, dims(0)[1], *hop),
            Op::Lstm { weight } => f::lstm(x(0)?, &self.weight(weight)?, dims(0)[1], out.dims()[2]),
            Op::SegmentMean { rows } => f::segment_mean(x(0)?, [dims(0)[1], dims(0)[2]], *rows),
            Op::HarmonicSource { hop, rate } => {
                let sizes = [dims(0)[0], dims(0)[1], dims(1)[1]];
                f::harmonic_source([x(0)?, x(1)?, x(2)?], sizes, *hop, *rate)
            }
            Op::Reshape => self.numbers(node.inputs[0])?,
            Op::Permute { perm } => f::gather(&wide(x(0)?), dims(0), out.dims(), |at| {
                let mut from = vec![0; at.len()];
                perm.iter().zip(at).for_each(|(p, i)| from[*p] = *i);
                from
            }),
            Op::TimeEmbedding { dim } => f::time_embedding(x(0)?, *dim),
            Op::SelectRow { index } => {
                let (rows, c) = (dims(0)[0], dims(0)[1]);
                let row = self.whole(*index)?;
                if row >= rows as u64 {
                    return Err(self.out_of_range(i, &node.op, row as i64, rows));
                }
                wide(&x(0)?[row as usize * c..][..c])
            }
            Op::RandomNormal { seed, scale } => {
                let numbers = f::random_normal(self.whole(*seed)?, out.len());
                numbers.iter().map(|x| f64::from(*scale) * x).collect()
            }
            Op::RowAt => {
                let &[batch, rows, c] = dims(0) else { unreachable!("three axes by shape inference") };
                let all = (batch, 0, i32::MAX as usize);
                let index = self.firsts((i, node), all, First::Operand)?;
                let x = x(0)?;
                let row = |(b, row): (usize, usize)| &x[(b * rows + row.min(rows - 1)) * c..][..c];
                index.into_iter().enumerate().map(row).flat_map(wide).collect()
            }
            Op::Increment { by } => {
                self.integers(node.inputs[0])?.iter().map(|x| f64::from(x.wrapping_add(*by))).collect()
            }
            Op::WriteRows { first } => {
                let (&[batch, n, c], time) = (dims(0), dims(1)[1]) else {
                    unreachable!("three axes by shape inference")
                };
                let mut state = wide(x(0)?);
                for (b, first) in self.firsts((i, node), (batch, time, n), *first)?.into_iter().enumerate() {
                    let rows = wide(&x(1)?[b * time * c..][..time * c]);
                    state[(b * n + first) * c..][..time * c].copy_from_slice(&rows);
                }
                state
            }
            Op::Mark => {
                let (mut seen, rows) = (wide(x(0)?), dims(0)[1]);
                for (b, id) in self.integers(node.inputs[1])?.iter().enumerate() {
                    if *id == NO_ID {
                        continue;
                    }
                    let at = usize::try_from(*id).ok().filter(|id| *id < rows);
                    let at = at.ok_or_else(|| self.out_of_range(i, &node.op, i64::from(*id), rows))?;
                    seen[b * rows + at] = 1.0;
                }
                seen
            }
            Op::Sample(rules) => {
                let width = dims(0)[dims(0).len() - 1];
                let (lanes, of_row) = (dims(0).len() - 1, dims(1)[1]);
                let (logits, settings) = (x(0)?, x(1)?);
                let (seed, number) = (self.integers(node.inputs[2])?, self.integers(node.inputs[3])?);
                let seen = if node.inputs.len() == 5 { Some(x(4)?) } else { None };
                let mut ids = vec![];
                for (b, logits) in logits.chunks_exact(lanes * width).enumerate() {
                    let broken = logits.iter().any(|x| x.is_nan());
                    let (logits, unconditional) = logits.split_at(width);
                    let draw = sampling::Draw {
                        unconditional: (lanes == 2).then_some(unconditional),
                        settings: sample_settings(&settings[of_row * b..][..of_row]),
                        seed: [seed[2 * b], seed[2 * b + 1]],
                        number: number[b],
                        seen: seen.map(|seen| &seen[b * width..][..width]),
                        rules: *rules,
                    };
                    let id = if broken { None } else { sampling::draw(logits, &draw) };
                    ids.push(id.map_or(f64::from(NO_ID), |id| id as f64));
                }
                ids
            }
        })
    }
}
