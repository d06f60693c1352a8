//! Orate's executor for NVIDIA GPUs: plans become captured CUDA graphs.
//!
//! No CUDA library is linked, and none is loaded before [`devices`] or [`CudaDevice::new`]. Kernels are CUDA
//! C++ in `kernels/`, one file per op, named as in every backend. NVIDIA's run-time compiler (NVRTC) compiles
//! those that plans need for the device found; the machine code is stored in a folder.
//!
//! | file | content |
//! | --- | --- |
//! | `driver` | safe wrappers of the driver: contexts, memory, streams, graphs |
//! | `discover` | list of devices |
//! | `kernels`, `machine_code`, `nvrtc`, `cache` | source to machine code when plans need it, cached on disk |
//! | `weights` | weights in kernel layouts, each once |
//! | `lower` | a plan as a list of launches |
//! | `executable`, `memory` | running plans |
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
mod machine_code;
mod memory;
mod nvrtc;
mod shared;
mod weights;

pub use device::CudaDevice;
pub use discover::devices;
pub use kernels::{Compiled, compile_kernels};
