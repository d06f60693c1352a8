//! The CPU executor: a thread team, kernels for each instruction set, and plans turned into lists of calls.

mod arch;
mod isa;
pub mod kernels;
pub mod simd;
pub mod team;

pub use isa::{ISA_VARIABLE, Isa, IsaError};
pub use team::Team;
