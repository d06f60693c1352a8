//! What can go wrong while a graph is built, compiled or given its weights.

use crate::Shape;

/// An error of the graph crate. Each names the graph and node it is about.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// An op was given operands it cannot take.
    #[error("graph `{graph}`, node {node}: got {got}, needs {needed}")]
    Shape {
        /// Graph name.
        graph: String,
        /// Node number, op and label.
        node: String,
        /// What was passed.
        got: String,
        /// What the op needs.
        needed: String,
    },
    /// A name was declared twice with different shapes or types.
    #[error("graph `{graph}`: `{name}` is declared as {first} and as {second}")]
    Redeclared {
        /// Graph name.
        graph: String,
        /// Name of the input, output, state or scalar.
        name: String,
        /// First declaration.
        first: String,
        /// Second declaration.
        second: String,
    },
    /// The device has no kernel for an op.
    #[error("device `{device}` cannot run op {op} of graph `{graph}` (node {node}): {reason}")]
    Unsupported {
        /// Device name.
        device: String,
        /// Graph name.
        graph: String,
        /// Node number and label.
        node: String,
        /// Op name.
        op: String,
        /// Why not.
        reason: String,
    },
    /// A weight could not be read.
    #[error("weight `{name}`: {problem}")]
    Weight {
        /// Name in the source.
        name: String,
        /// What the source said.
        problem: String,
    },
    /// A weight has another shape than the network needs.
    #[error(
        "weight `{name}` is {got} but the network needs {needed}; check that config and weights come from the same model"
    )]
    WeightShape {
        /// Name in the source.
        name: String,
        /// Shape in the source.
        got: Shape,
        /// Shape declared by the network.
        needed: Shape,
    },
}

/// Result of graph calls.
pub type Result<T, E = GraphError> = std::result::Result<T, E>;
