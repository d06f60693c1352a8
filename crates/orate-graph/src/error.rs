//! What can go wrong while a graph is built, compiled or given its weights, and on devices.

use crate::Shape;

/// An error of the graph crate. Each names the graph and node it is about.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum GraphError {
    /// An op was given operands it cannot take.
    #[error("graph `{graph}`, node {node}: got {got}, needs {needed}")]
    Shape { graph: String, node: String, got: String, needed: String },
    /// A name was declared twice with different shapes or types.
    #[error("graph `{graph}`: `{name}` is declared as {first} and as {second}")]
    Redeclared { graph: String, name: String, first: String, second: String },
    /// The device has no kernel for an op.
    #[error("device `{device}` cannot run op {op} of graph `{graph}` (node {node}): {reason}")]
    Unsupported { device: String, graph: String, node: String, op: String, reason: String },
    /// A weight could not be read.
    #[error("weight `{name}`: {problem}")]
    Weight { name: String, problem: String },
    /// A weight has another shape than the network needs.
    #[error(
        "weight `{name}` is {got} but the network needs {needed}; check that config and weights come from \
         the same model"
    )]
    WeightShape { name: String, got: Shape, needed: Shape },
}

/// A run failed, or was asked for something impossible.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum DeviceError {
    /// The plan or its weights.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A buffer was read or used before anything wrote it, or with another shape. `plan` may also be what the
    /// host does with the buffer.
    #[error("buffer `{name}` of plan `{plan}`: got {got}, needs {needed}")]
    Buffer { name: String, plan: String, got: String, needed: String },
    /// A run-time scalar was never set.
    #[error("scalar `{name}` of plan `{plan}` was never set")]
    Scalar { name: String, plan: String },
    /// Plan, weights or memory belong to another device.
    #[error("plan `{plan}` was made for device `{made_for}` but was given memory of `{got}`")]
    Mixed { plan: String, made_for: String, got: String },
    /// An operand holds a value that the op cannot take.
    #[error("plan `{plan}`, step {step}: {problem}")]
    Operand { plan: String, step: usize, problem: String },
    /// The device could not be set up.
    #[error("device `{device}`: {problem}")]
    Setup { device: String, problem: String },
    /// The device has no room.
    #[error(
        "device `{device}` is out of memory: {what}; use shorter pieces, close other programs or choose \
         another device"
    )]
    OutOfMemory { device: String, what: String },
    /// The device was opened before the process forked, and this is the child.
    #[error(
        "device `{device}` was opened in process {opened_in} and does not work in this one, which was forked \
         from it: threads and drivers do not survive a fork; open the model anew in this process"
    )]
    Forked { device: String, opened_in: u32 },
    /// The device was lost or its driver reported a failure. Nothing that lives on it can be used any more.
    #[error("device `{device}` failed: {problem}; open the model anew or choose another device")]
    Failed { device: String, problem: String },
}

impl DeviceError {
    /// A [`DeviceError::Buffer`].
    pub fn buffer(
        name: &str,
        plan: impl Into<String>,
        got: impl Into<String>,
        needed: impl Into<String>,
    ) -> Self {
        let (name, plan, got, needed) = (name.to_owned(), plan.into(), got.into(), needed.into());
        DeviceError::Buffer { name, plan, got, needed }
    }
}

/// Result of graph calls.
pub type Result<T, E = GraphError> = std::result::Result<T, E>;
