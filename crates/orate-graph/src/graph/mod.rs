//! The graph and its builder.
//!
//! A graph is a list of nodes in the order they run, each making one value (SSA). Its edges to the outside
//! are named *buffers*: inputs, outputs and states. A buffer of one name is the same memory in every plan
//! that uses it, so values pass from network to network without leaving the device.
//!
//! Here are values, buffers and what may be done with states. `ops` has the methods that add each op,
//! `shapes` what an op makes of its operands, `operands` the checks that these have in common.

mod operands;
mod ops;
mod shapes;

pub use ops::{Draw, Rows};

use crate::op::{Op, Scalar};
use crate::{DType, GraphError, Result, Shape, ValueInfo};
use shapes::infer;
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

/// How a graph uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// Only read: written by the host or by another plan.
    Input,
    /// Only written.
    Output,
    /// Carried from run to run: read, and replaced when the run ends. Zeros before the first run.
    State,
    /// Rows along axis 1, `[B, N, …]`, such as keys and values: carried from run to run, and each row is
    /// written before it is read. It may grow along axis 1, and its content need not be cleared.
    Cache,
    /// Written in place and read within one run. Nothing is carried to the next.
    Scratch,
}

impl BufferKind {
    /// Whether a graph reads and writes the buffer.
    pub fn is_state(self) -> bool {
        matches!(self, BufferKind::State | BufferKind::Cache | BufferKind::Scratch)
    }
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

/// A network for fixed sizes, as data. Declaring a buffer fails if its name is taken.
#[derive(Clone, Debug, Default, PartialEq)]
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
    pub(crate) pieces: Option<Pieces>,
}

/// A graph is for one of the lengths in which a sequence is computed piece by piece.
///
/// A device may choose kernels by the number of rows, and kernels may round differently. All pieces choose as
/// those of one length do, so that pieces joined are the same whatever their lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Frames of this piece; the rows of its matmuls are multiples of them.
    pub frames: usize,
    /// Frames of the pieces that kernels are chosen for.
    pub chosen_for: usize,
}

impl Pieces {
    /// What `rows` rows of a sequence in this piece are in one that kernels are chosen for.
    pub fn rows_to_choose_for(self, rows: usize) -> usize {
        rows * self.chosen_for / self.frames.max(1)
    }
}

/// Prefix of the output buffers that [`Graph::tap`] makes.
pub const TAP_PREFIX: &str = "tap/";

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Says that this is a piece of a sequence; pieces of all lengths are to be computed alike.
    pub fn in_pieces(&mut self, pieces: Pieces) {
        self.pieces = Some(pieces);
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

    /// Type and shape of each operand.
    pub(crate) fn operands(&self, node: &Node) -> Vec<&ValueInfo> {
        node.inputs.iter().map(|v| self.info(*v)).collect()
    }

    /// Type and shape, for messages.
    fn describe(&self, v: Value) -> String {
        let ValueInfo { dtype, shape, .. } = self.info(v);
        format!("{dtype} {shape}")
    }

    fn value(&mut self, dtype: DType, shape: Shape, buffer: Option<usize>) -> Value {
        self.values.push(ValueInfo { dtype, shape, buffer });
        Value((self.values.len() - 1) as u32)
    }

    /// An error about a node or something else of this graph.
    fn wrong(&self, node: String, got: String, needed: impl Into<String>) -> GraphError {
        GraphError::Shape { graph: self.name.clone(), node, got, needed: needed.into() }
    }

    fn declare(&mut self, name: &str, dtype: DType, shape: Shape, kind: BufferKind) -> Result<usize> {
        if let Some(b) = self.buffers.iter().find(|b| b.name == name) {
            return Err(GraphError::Redeclared {
                graph: self.name.clone(),
                name: name.to_owned(),
                first: format!("{:?} {} {}", b.kind, b.dtype, b.shape),
                second: format!("{kind:?} {dtype} {shape}"),
            });
        }
        let step = dtype.width_step();
        if !shape.last().is_multiple_of(step) {
            let needed = format!("rows of a multiple of {step} elements for {dtype}");
            return Err(self.wrong(format!("buffer `{name}`"), format!("{dtype} {shape}"), needed));
        }
        self.buffers.push(Buffer { name: name.to_owned(), dtype, shape, kind });
        Ok(self.buffers.len() - 1)
    }

    /// A buffer that the run reads.
    pub fn input(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value> {
        self.named(name, dtype, shape.into(), BufferKind::Input)
    }

    /// A buffer that lives across runs; give it its next content with [`Graph::update`].
    pub fn state(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value> {
        self.named(name, dtype, shape.into(), BufferKind::State)
    }

    /// A [`BufferKind::Cache`], which [`Graph::write_rows`] fills.
    pub fn cache(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value> {
        self.named(name, dtype, shape.into(), BufferKind::Cache)
    }

    /// A [`BufferKind::Scratch`]: a buffer that is written in place before it is read.
    pub fn scratch(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value> {
        self.named(name, dtype, shape.into(), BufferKind::Scratch)
    }

    /// Stores caches of f32 that live as long as a run in another type, if only attention reads them and only
    /// [`Graph::write_rows`] writes them.
    pub(crate) fn store_scratch_as(&mut self, dtype: DType) {
        for (i, buffer) in self.buffers.iter_mut().enumerate() {
            let is_own = |v: &Value| self.values[v.index()].buffer == Some(i);
            let allows = |node: &Node| {
                matches!(node.op, Op::WriteRows { .. } | Op::Attention { .. })
                    || !node.inputs.iter().any(is_own)
            };
            let is_scratch = buffer.kind == BufferKind::Scratch && buffer.dtype == DType::F32;
            if is_scratch && self.nodes.iter().all(allows) {
                buffer.dtype = dtype;
                self.values.iter_mut().filter(|v| v.buffer == Some(i)).for_each(|v| v.dtype = dtype);
            }
        }
    }

    fn named(&mut self, name: &str, dtype: DType, shape: Shape, kind: BufferKind) -> Result<Value> {
        let b = self.declare(name, dtype, shape.clone(), kind)?;
        let v = self.value(dtype, shape, Some(b));
        if kind.is_state() {
            self.versions.insert(v, (b, 0));
        }
        Ok(v)
    }

    /// The state in which a value lies, if it does and if the value is still there.
    fn state_of(&self, v: Value) -> Option<usize> {
        let (state, version) = *self.versions.get(&v)?;
        (self.writes.get(&state).copied().unwrap_or(0) == version).then_some(state)
    }

    /// Refuses a value that was in a state before the state was written in place.
    fn still_there(&self, v: Value, node: impl FnOnce() -> String) -> Result<()> {
        let Some(state) = self.lies_in(v).filter(|_| self.state_of(v).is_none()) else { return Ok(()) };
        let got = format!("what state `{}` held before it was written in place", self.buffers[state].name);
        Err(self.wrong(node(), got, "what it holds now, the result of the last write"))
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
        let node = || format!("update of state `{name}`");
        self.still_there(v, node)?;
        let (info, value) = (self.info(v), self.describe(v));
        let is_it = |b: &Buffer| b.name == name && b.kind == BufferKind::State;
        let Some(state) = self.buffers.iter().position(is_it) else {
            return Err(self.wrong(node(), value, "a state declared under this name"));
        };
        let b = &self.buffers[state];
        if self.is_written_in_place(state) || b.dtype.is_compact() {
            return Err(self.wrong(
                node(),
                "a state that is written in place".to_owned(),
                "one or the other",
            ));
        }
        if (b.dtype, &b.shape) != (info.dtype, &info.shape) {
            return Err(self.wrong(node(), value, format!("{} {}", b.dtype, b.shape)));
        }
        self.stores.push((state, v));
        Ok(())
    }

    /// Stores `v` in a new buffer that others can read.
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
        let shape = infer(&op, &infos, out).map_err(|needed| {
            let given: Vec<String> = inputs.iter().map(|v| self.describe(*v)).collect();
            let got = if given.is_empty() { "no operands".to_owned() } else { given.join(", ") };
            self.wrong(name(), got, needed)
        })?;
        let dtype = op.result_type(&infos);
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
        let refused = |got: String, needed: &str| self.wrong(node_name(self.nodes.len(), op), got, needed);
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
}

/// `#12 MatMul (weight name)`
pub(crate) fn node_name(index: usize, op: &Op) -> String {
    match op.label() {
        Some(label) => format!("#{index} {} ({label})", op.describe()),
        None => format!("#{index} {}", op.describe()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Factor, Weight};

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
}
