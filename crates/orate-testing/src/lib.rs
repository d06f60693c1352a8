//! Shared parts of tests and benches: reference interpreter, op cases, random inputs, comparisons and
//! tolerances.
//!
//! To test a device, run [`check_all`] of [`OnDevice`] with [`op_cases`] and with [`harvest`] of the shipped
//! networks, then [`Report::assert`]. Expected values come from [`interpret`], which is slow and written to
//! be compared with the documentation of [`orate_graph::Op`].

pub mod cases;
pub mod check;
pub mod checkpoints;
pub mod compact;
pub mod compare;
mod copies;
pub mod counting;
pub mod device;
mod formulas;
pub mod fuzz;
pub mod gguf;
pub mod interpreter;
pub mod layouts;
pub mod random;
pub mod sampling;
pub mod shapes;
mod stored_blocks;
pub mod tolerance;

pub use cases::{
    Case, DECODERS, NOT_BUILT_ON_GPUS, codec_units, decoder, feed_forward, fused_cases, growing_scores,
    harvest, op_cases, op_cases_built, relative_attention, residual_block, rows_in_common, transformer,
};
pub use check::{Executor, Failure, OnDevice, Report, check_all};
pub use compare::{Comparison, Mismatch, assert_close, compare, snr_db};
pub use copies::{
    check_clearing, check_compact_rows, check_copies, check_extensions, check_foreign_copy,
    check_later_reads, check_shared_reads,
};
pub use counting::Counting;
pub use device::{FusingDevice, ReferenceDevice};
pub use interpreter::{Buffers, Data, InterpretError, ScalarValue, Scalars, interpret};
pub use random::{Random, RandomWeights};
pub use shapes::ShapesOnly;
pub use stored_blocks::{check_stored_blocks, check_stored_layer};
