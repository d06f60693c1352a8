//! The CPU executor: a thread team, kernels for each instruction set, and plans as lists of calls.
//!
//! [`CpuDevice`] is the entry point. An [`Isa`] is detected at run time or forced; a [`Team`] shares the work
//! of each step.

mod arch;
mod device;
mod executable;
mod isa;
#[doc(hidden)]
pub mod kernels;
mod memory;
mod moments;
mod op;
mod operands;
#[doc(hidden)]
pub mod simd;
mod table;
mod team;
mod weights;

pub use device::CpuDevice;
pub use isa::{ISA_VARIABLE, Isa, IsaError, uses_tiles};
pub use memory::CpuMemory;
pub use moments::Moments;
pub use team::Team;
