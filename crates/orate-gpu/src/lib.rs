//! The GPU executor: plans on Vulkan, Metal and DX12 through wgpu, and on WebGPU of the page around a
//! WebAssembly module.
//!
//! [`devices`] lists devices, [`GpuDevice`] opens one. A plan becomes a list of dispatches with pipelines,
//! weights and parameters; a run encodes them into one command buffer and submits it once.
//!
//! * **Memory.** A session has one buffer: its named values and the arena of temporaries are ranges of it,
//!   and kernels get their offsets as parameters. So there is one bind group for a session and one for the
//!   weights, and a plan for new lengths needs neither new pipelines nor new bind groups.
//! * **Kernels** are WGSL files in `kernels/`, one op or family each, named as in the other executors. Tile
//!   shapes and fused functions are substituted as text (`template`), extents are parameters.
//! * **Precision** is f32, or per weight f16, bf16, q8_0 or q4_0. Such weights take a half, a quarter or an
//!   eighth of the memory and are widened to f32 when a matmul reads them. Activations and accumulation are
//!   f32 in any case, so devices need not compute in f16.
//! * **Scalars** are parameters as well. wgpu uses command buffers only once, so a run encodes the current
//!   values of its scalars, and a loop over steps is one command buffer with the counter filled in.

mod adapters;
mod allocator;
mod angles;
mod cache_file;
mod device;
mod dispatch;
mod executable;
mod exit;
mod failure;
mod gpu;
mod kernels;
mod memory;
mod parallel;
mod pipelines;
mod places;
mod sources;
#[cfg(not(any(target_os = "wasi", target_vendor = "apple")))]
mod spirv;
mod staging;
mod template;
mod variant;
#[cfg(target_os = "wasi")]
mod webgpu;
mod weights;

pub use adapters::devices;
pub use device::GpuDevice;
pub use memory::GpuMemory;
