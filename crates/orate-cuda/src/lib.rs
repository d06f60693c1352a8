//! Orate's executor for NVIDIA GPUs: plans become captured CUDA graphs.
//!
//! Nothing of CUDA is linked or loaded before [`devices`] or [`CudaDevice::new`] asks for it. Kernels are
//! CUDA C++ in `kernels/`, one file per op with the name it has in every backend. NVIDIA's run-time compiler
//! (NVRTC) makes machine code of them for the device found, once: it is kept in a folder.
//!
//! | file | answers |
//! | --- | --- |
//! | `driver` | the driver, safely: contexts, memory, streams, graphs |
//! | `discover` | which devices there are |
//! | `nvrtc`, `cache`, `kernels` | source to machine code, kept on disk |
//! | `weights` | weights in the form that kernels want, each once |
//! | `lower` | a plan as a list of launches |
//! | `executable`, `memory` | running it |
//!
//! ```no_run
//! use orate_cuda::{CudaDevice, devices};
//! use orate_graph::PrecisionPolicy;
//! for d in devices()? {
//!     println!("{} {}", d.id(), d.name);
//! }
//! let device = CudaDevice::new(0, PrecisionPolicy::default(), None)?;
//! # Ok::<(), orate_graph::DeviceError>(())
//! ```

mod cache;
mod copies;
mod device;
mod discover;
mod driver;
mod executable;
mod kernels;
mod lower;
mod memory;
mod nvrtc;
mod shared;
mod weights;

pub use device::CudaDevice;
pub use discover::devices;
pub use kernels::{Compiled, compile_kernels};
