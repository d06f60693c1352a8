//! State of an open device, shared by models, memories and executables.

use crate::adapters::{self, Matrices};
use crate::dispatch::IMMEDIATE_BYTES;
use crate::exit::Inside;
use crate::failure::{Failure, Problem, attempt, polled};
use crate::pipelines::Pipelines;
use orate_graph::{AtHome, DeviceError, DeviceInfo, Precision, PrecisionPolicy};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wgpu::{
    Adapter, BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingType, Buffer, BufferBindingType, BufferDescriptor, BufferUsages,
    DeviceDescriptor, ExperimentalFeatures, Features, MemoryHints, PipelineLayout, PipelineLayoutDescriptor,
    PollType, ShaderStages, SubmissionIndex, Trace,
};

/// An open device. In a forked process, objects of the driver are not touched.
pub(crate) struct Gpu {
    pub device: AtHome<wgpu::Device>,
    pub queue: AtHome<wgpu::Queue>,
    /// Name in plans and messages, such as `vulkan:0`.
    pub name: String,
    pub info: DeviceInfo,
    /// Precision of matmuls.
    pub policy: PrecisionPolicy,
    pub subgroups: bool,
    /// Threads per subgroup, if kernels may use subgroups and all have the same size.
    pub lanes: Option<usize>,
    /// Cooperative matrices for f16 matmuls, if the policy asks for f16 or blocks.
    pub matrices: Option<Matrices>,
    pub timestamps: bool,
    /// Largest buffer that a kernel can access.
    pub largest_buffer: u64,
    /// Workgroup memory in bytes.
    pub workgroup_bytes: u32,
    /// Most threads of a workgroup.
    pub workgroup_threads: u32,
    /// Layout of a session's bind group: its one buffer.
    pub session_layout: AtHome<BindGroupLayout>,
    /// Layout of the bind group of a step's weights: matrices, vectors.
    pub weights_layout: AtHome<BindGroupLayout>,
    pub pipelines: AtHome<Pipelines>,
    failure: Arc<Failure>,
    executables: AtomicU64,
}

impl Gpu {
    pub fn open(
        adapter: &Adapter,
        mut info: DeviceInfo,
        policy: PrecisionPolicy,
        cache: Option<&Path>,
    ) -> Result<Gpu, DeviceError> {
        let name = info.id();
        let setup = |problem: String| DeviceError::Setup { device: name.clone(), problem };
        let has = adapter.features();
        if !has.contains(Features::IMMEDIATES) {
            return Err(setup(
                "its driver has no push constants; update the driver or choose another device".into(),
            ));
        }
        let limits = adapter.limits();
        let found = Matrices::of(adapter);
        let matrices = found.filter(|_| policy.precision == Precision::F16 || policy.precision.block() > 1);
        if let (Some(unused), None) = (found, matrices) {
            info.features.retain(|f| *f != unused.feature());
        }
        let mut features = (adapters::wanted() & has) | Features::IMMEDIATES;
        let mut experimental = ExperimentalFeatures::disabled();
        if matrices.is_some() {
            features |= Matrices::FEATURES | (Features::PASSTHROUGH_SHADERS & has);
            // SAFETY: this acknowledges that wgpu checks experimental features less than others. Only
            // cooperative matrices are requested; kernels load and store them inside of arrays whose sizes
            // follow from the same tile.
            experimental = unsafe { ExperimentalFeatures::enabled() };
        }
        let descriptor = DeviceDescriptor {
            label: Some("orate"),
            required_features: features,
            required_limits: limits.clone(),
            experimental_features: experimental,
            memory_hints: MemoryHints::MemoryUsage,
            trace: Trace::Off,
        };
        let (device, queue) =
            pollster::block_on(adapter.request_device(&descriptor)).map_err(|e| setup(e.to_string()))?;
        let failure = Arc::new(Failure::default());
        let seen = failure.clone();
        device.on_uncaptured_error(Arc::new(move |e| seen.hear(e)));
        let seen = failure.clone();
        device.set_device_lost_callback(move |_, text| seen.set(Problem::Lost(text)));
        let entry = |binding: u32, read_only: bool| BindGroupLayoutEntry {
            binding,
            visibility: ShaderStages::COMPUTE,
            ty: BindingType::Buffer {
                ty: BufferBindingType::Storage { read_only },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let layout = |label: &str, entries: &[BindGroupLayoutEntry]| {
            device.create_bind_group_layout(&BindGroupLayoutDescriptor { label: Some(label), entries })
        };
        let session_layout = layout("session", &[entry(0, false)]);
        let weights_layout = layout("weights", &[entry(0, true), entry(1, true)]);
        let pipeline_layout: PipelineLayout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: Some("all kernels"),
            bind_group_layouts: &[Some(&session_layout), Some(&weights_layout)],
            immediate_size: IMMEDIATE_BYTES,
        });
        let cached = features.contains(Features::PIPELINE_CACHE);
        let pipelines =
            Pipelines::new(&device, pipeline_layout, &adapter.get_info(), cache.filter(|_| cached));
        let gpu = Gpu {
            policy,
            matrices,
            subgroups: features.contains(Features::SUBGROUP),
            lanes: adapters::lanes(adapter).filter(|_| features.contains(Features::SUBGROUP)),
            timestamps: features.contains(Features::TIMESTAMP_QUERY),
            // Kernels index elements of 4 bytes with 32 bits.
            largest_buffer: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size).min(8 << 30)
                / 256
                * 256,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            workgroup_threads: limits
                .max_compute_invocations_per_workgroup
                .min(limits.max_compute_workgroup_size_x),
            device: AtHome::new(device),
            queue: AtHome::new(queue),
            name,
            info,
            session_layout: AtHome::new(session_layout),
            weights_layout: AtHome::new(weights_layout),
            pipelines: AtHome::new(pipelines),
            failure,
            executables: AtomicU64::new(0),
        };
        gpu.check()?;
        Ok(gpu)
    }

    /// Returns an id that is unique among executables of this device.
    pub fn next_executable(&self) -> u64 {
        self.executables.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the first failure so far; also an error in a forked process.
    pub fn check(&self) -> Result<(), DeviceError> {
        AtHome::home(&self.device).check(&self.name)?;
        let mut problem = self.failure.get();
        if let Some(Problem::NoRoom | Problem::Refused(_)) = problem {
            // A lost device rejects everything.
            if self.is_lost() {
                self.failure.set(Problem::Lost(String::new()));
                problem = self.failure.get();
            }
        }
        match problem {
            None => Ok(()),
            Some(Problem::NoRoom) => Err(DeviceError::OutOfMemory {
                device: self.name.clone(),
                what: "the driver itself needs more".to_owned(),
            }),
            Some(Problem::Lost(text)) if text.is_empty() => Err(self.failed("it was lost".to_owned())),
            Some(Problem::Lost(text)) => Err(self.failed(format!("it was lost ({text})"))),
            Some(Problem::Refused(text)) => Err(self.failed(text)),
        }
    }

    /// [`Self::check`], and keeps the process from exiting while the driver is at work.
    pub fn enter(&self) -> Result<Inside, DeviceError> {
        self.check()?;
        Ok(Inside::enter())
    }

    /// [`Self::check`], which also detects a loss that was not reported yet.
    pub fn check_alive(&self) -> Result<(), DeviceError> {
        self.check()?;
        if self.is_lost() {
            self.failure.set(Problem::Lost(String::new()));
        }
        self.check()
    }

    /// Whether the device is lost. wgpu reports that when the queue is empty, to one of the polling threads;
    /// until then a lost device silently does nothing. But a working device rejects an invalid buffer with an
    /// error, and a lost one does not.
    fn is_lost(&self) -> bool {
        let nothing = BufferDescriptor {
            label: None,
            size: 4,
            usage: BufferUsages::empty(),
            mapped_at_creation: false,
        };
        let (_, told) = attempt(|| self.device.create_buffer(&nothing));
        !told.iter().any(|e| matches!(e, wgpu::Error::Validation { .. }))
    }

    pub fn failed(&self, problem: String) -> DeviceError {
        DeviceError::Failed { device: self.name.clone(), problem }
    }

    pub fn out_of_memory(&self, bytes: u64) -> DeviceError {
        DeviceError::OutOfMemory { device: self.name.clone(), what: format!("{bytes} bytes more are needed") }
    }

    /// Waits until all submitted work is done.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.poll(PollType::wait_indefinitely())
    }

    /// Waits for a submission and earlier ones, but not for later submissions of other threads.
    pub fn wait_for(&self, submission: SubmissionIndex) -> Result<(), DeviceError> {
        self.poll(PollType::Wait { submission_index: Some(submission), timeout: None })
    }

    fn poll(&self, wait: PollType) -> Result<(), DeviceError> {
        AtHome::home(&self.device).check(&self.name)?;
        let _inside = Inside::enter();
        let done = polled(|| self.device.poll(wait));
        self.check()?;
        done.map_err(|problem| self.refused(problem))
    }

    /// Returns the error of a rejected call, or that of a lost device if that is the cause.
    pub fn refused(&self, problem: String) -> DeviceError {
        self.failure.set(Problem::Refused(problem.clone()));
        self.check().err().unwrap_or_else(|| self.failed(problem))
    }

    /// Creates a buffer; returns an error if memory is full.
    pub fn buffer(&self, label: &str, size: u64, usage: BufferUsages) -> Result<Buffer, DeviceError> {
        let descriptor = BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        self.with_room(size, || self.device.create_buffer(&descriptor))
    }

    /// Writes bytes to a buffer before the next submission.
    pub fn write(&self, to: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.with_room(bytes.len() as u64, || self.queue.write_buffer(to, offset, bytes))
    }

    /// Runs `work`, which needs `bytes` bytes of memory. Only this call gets an out-of-memory error.
    fn with_room<T>(&self, bytes: u64, work: impl FnOnce() -> T) -> Result<T, DeviceError> {
        let (done, told) = attempt(work);
        let (full, others): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|e| matches!(e, wgpu::Error::OutOfMemory { .. }));
        others.iter().for_each(|e| self.failure.set(Problem::of(e)));
        match full.is_empty() {
            false => Err(self.out_of_memory(bytes)),
            true => self.check().map(|()| done),
        }
    }

    pub fn bind(&self, label: &str, layout: &BindGroupLayout, buffers: &[&Buffer]) -> BindGroup {
        let entries: Vec<BindGroupEntry<'_>> = buffers
            .iter()
            .zip(0..)
            .map(|(b, binding)| BindGroupEntry { binding, resource: b.as_entire_binding() })
            .collect();
        self.device.create_bind_group(&BindGroupDescriptor { label: Some(label), layout, entries: &entries })
    }
}

/// Waits for work in flight before its resources are dropped.
impl Drop for Gpu {
    fn drop(&mut self) {
        if !AtHome::home(&self.device).is_here() {
            return;
        }
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asynchronous errors of wgpu are returned by the next call.
    #[test]
    fn what_wgpu_refuses_is_an_error() {
        let policy = PrecisionPolicy::default();
        let device = crate::GpuDevice::new(Some(orate_graph::DeviceKind::Vulkan), 0, policy, None)
            .expect("a GPU or a rasterizer; on Debian and Ubuntu: apt-get install mesa-vulkan-drivers");
        let gpu = &device.gpu;
        gpu.check().expect("all is well");
        // A copy into a buffer without COPY_DST.
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
        let buffer = gpu.buffer("test", 256, usage).expect("room");
        gpu.queue.write_buffer(&buffer, 0, &[0; 16]);
        let e = gpu.check().expect_err("was refused");
        assert!(matches!(&e, DeviceError::Failed { device, .. } if *device == gpu.name), "{e}");
        assert!(e.to_string().contains("COPY_DST") && e.to_string().contains("open the model anew"), "{e}");
        assert_eq!(gpu.wait(), Err(e), "and stays so");
    }
}
