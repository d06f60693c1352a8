//! Orate's graph: what a network computes, without saying where.
//!
//! A network describes itself as a [`Graph`] of typed [`Op`]s for fixed sizes. [`Plan::compile`] fuses,
//! chooses kernels from a device's table ([`Target`]) and lays out memory; the [`Plan`] prints with
//! [`Plan::explain`] and is run by an executor. Nothing here touches data, except [`Weight`]s, which are
//! evaluated once at load.
//!
//! Axis letters: `B` batch, `T` time, `C` channels, `K` inner and `N` outer width of a matmul, `H` heads, `D`
//! head width, `V` rows of a table. Slowest axis first.
//!
//! ```
//! use orate_graph::{Activation, DType, Graph, Weight};
//! let mut g = Graph::new("mlp");
//! let x = g.input("x", DType::F32, [1, 10, 64])?;
//! let h = g.linear(x, Weight::named("up", [64, 256]), Weight::named("up_bias", [256]))?;
//! let h = g.activate(h, Activation::Gelu)?;
//! g.output("h", h)?;
//! assert_eq!(g.shape(h).to_string(), "[1, 10, 256]");
//! # Ok::<(), orate_graph::GraphError>(())
//! ```

#[macro_use]
mod named;

mod activation;
pub mod blocks;
pub mod device;
mod error;
mod format;
mod fusion;
mod graph;
mod memory;
mod op;
pub mod passes;
mod pending;
mod plan;
mod precision;
mod process;
mod shape;
mod weight;

pub use activation::Activation;
pub use device::{
    COOPERATIVE_MATRICES, Counters, Device, DeviceClass, DeviceInfo, DeviceKind, Executable, MATRIX_TILES,
    Memory, ModelOnDevice, Pacing, Part, SharedFloats, extended, fitting,
};
pub use error::{DeviceError, GraphError, Result};
pub use format::Precision;
pub use fusion::{
    AttendedOutputs, FeedForward, FollowedResiduals, Fused, Fusions, Head, LayerNorms, MOST_HEADS,
    MOST_PARTS, ManyRows, NormedResiduals, Pattern, Rounding, RowNorm, Run,
};
pub use graph::{Buffer, BufferKind, Draw, Graph, Node, Pieces, Rows, TAP_PREFIX, Value};
pub use memory::{ALIGNMENT, Place, Span};
pub use op::{
    AttentionMask, ControlIds, ConvGeometry, Cost, Edges, Epilogue, Factor, First, NO_ID, Norm, Op, Padding,
    RelativePositions, RopeScaling, SAMPLE_SETTINGS, SampleRules, Scalar, rope_frequencies, sample_settings,
};
pub use pending::{Pending, Ticket};
pub use plan::{Plan, Roofline, Step, Target, launches_of, several};
pub use precision::{CacheFormat, PrecisionPolicy, name_matches};
pub use process::{AtHome, HomeProcess};
pub use shape::{DType, Shape, ValueInfo};
pub use weight::{Blocks, Halves, Tensor, Weight, WeightLoader};
