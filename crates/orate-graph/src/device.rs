//! What an executor offers: the contract between pipelines and devices.
//!
//! A [`Device`] opens a model's weights and makes [`Memory`] for sessions. [`ModelOnDevice::load`] turns a
//! [`Plan`] into an [`Executable`], uploading each weight once however many plans use it. Everything carries
//! its device, and mixing devices is an error.

use crate::{DType, DeviceError, Graph, Plan, Precision, Shape, Target, Ticket, WeightLoader};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

named! {
    /// What kind of driver runs a device.
    pub enum DeviceKind {
        /// The processor.
        Cpu = "cpu",
        /// NVIDIA's CUDA.
        Cuda = "cuda",
        /// Vulkan through wgpu.
        Vulkan = "vulkan",
        /// Metal through wgpu.
        Metal = "metal",
        /// Direct3D 12 through wgpu.
        Dx12 = "dx12",
        /// WebGPU of a browser.
        WebGpu = "webgpu",
    }
}

/// How a device is built, from the most to the least wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceClass {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// The processor.
    Cpu,
    /// A software rasterizer, such as Mesa's lavapipe.
    Software,
}

/// How the feature of devices begins that multiply `f16` on matrices which a group of threads holds together.
pub const COOPERATIVE_MATRICES: &str = "cooperative matrices";

/// The feature of CPUs whose matmuls run on matrix tiles.
pub const MATRIX_TILES: &str = "matrix tiles";

/// What there is to know about a device before it is opened.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Driver family.
    pub kind: DeviceKind,
    /// Number among the devices of its kind.
    pub index: usize,
    /// Name that its maker gave it.
    pub name: String,
    /// How it is built.
    pub class: DeviceClass,
    /// Bytes of memory, where known.
    pub memory: Option<u64>,
    /// Bytes of free memory, where known.
    pub free_memory: Option<u64>,
    /// Driver and its version.
    pub driver: String,
    /// What of it is used, such as `tensor cores` or `subgroups`.
    pub features: Vec<String>,
    /// Identity of the physical card (PCI address), where known: one card may be seen through several
    /// drivers.
    pub card: Option<String>,
}

impl DeviceInfo {
    /// What `--device` calls it, such as `cuda:0`.
    pub fn id(&self) -> String {
        match self.kind {
            DeviceKind::Cpu => "cpu".to_owned(),
            kind => format!("{}:{}", kind.name(), self.index),
        }
    }

    /// Whether this is a CPU whose matmuls run on matrix tiles.
    pub fn has_matrix_tiles(&self) -> bool {
        self.features.iter().any(|f| f == MATRIX_TILES)
    }

    /// Whether cooperative matrices are among the features; a device that was opened has them if its
    /// precision uses them.
    pub fn has_cooperative_matrices(&self) -> bool {
        self.features.iter().any(|f| f.starts_with(COOPERATIVE_MATRICES))
    }

    /// Whether matmuls of many rows round both operands in this format, and not the weights alone.
    pub fn rounds_operands(&self, precision: Precision) -> bool {
        match precision {
            Precision::F32 => false,
            Precision::Tf32 | Precision::Bf16 => self.kind == DeviceKind::Cuda,
            _ if self.has_cooperative_matrices() => true,
            _ => self.kind == DeviceKind::Cuda,
        }
    }
}

/// What a session asked of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Plans submitted.
    pub submissions: u64,
    /// Times that data were copied to the host, which may wait for them later.
    pub read_backs: u64,
    /// Bytes copied to the device.
    pub bytes_up: u64,
    /// Bytes copied to the host.
    pub bytes_down: u64,
    /// Buffers that a GPU made for the session, on the device or for copies to the host. None once it has
    /// warmed up.
    pub allocations: u64,
}

impl Counters {
    fn zip(self, other: Counters, f: fn(u64, u64) -> u64) -> Counters {
        Counters {
            submissions: f(self.submissions, other.submissions),
            read_backs: f(self.read_backs, other.read_backs),
            bytes_up: f(self.bytes_up, other.bytes_up),
            bytes_down: f(self.bytes_down, other.bytes_down),
            allocations: f(self.allocations, other.allocations),
        }
    }
}

impl std::ops::Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        self.zip(before, |now, before| now - before)
    }
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, more: Counters) {
        *self = self.zip(more, |a, b| a + b);
    }
}

/// How work that proceeds step by step, such as autoregressive decoding, is best spread over a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// Utterances decoded in one batch at most.
    pub batch: usize,
    /// Submit the next step before the host reads the results of the last one, so that the device never waits
    /// for the host. It costs one superfluous step for each utterance that ends by itself.
    pub look_ahead: bool,
    /// Run networks that can run side by side, such as a codec and the network that makes its codes, on
    /// threads of their own.
    pub side_by_side: bool,
    /// How long work waits for other work to share a pass with. `None`: passes are not shared, since one of
    /// many rows takes as long as its rows one by one.
    pub coalescing_wait: Option<Duration>,
    /// With many utterances, run a single prompt or codec chunk in a shared workspace instead of the
    /// utterance's own memory. Set where each memory records the plans that it runs, as CUDA graphs:
    /// recording takes longer than the run.
    pub shared_workspaces: bool,
    /// Maximum texts that are spoken side by side although they come one after the other, in place of waiting
    /// for a run that they can share: more where kernels of several runs overlap.
    pub runs_apart: usize,
    /// Prompts are padded to a multiple of this many rows, so that prompts of all lengths need few plans.
    pub prompt_step: usize,
    /// Run a chunk of codes that is not full as a full one: a run costs more than the frames in it.
    pub fills_chunks: bool,
    /// Frames of the first chunk of sound.
    pub first_chunk: usize,
    /// Factor by which each chunk is longer than the one before it. Larger chunks cost less, but have to be
    /// there when the chunk before them has been played.
    pub chunk_growth: usize,
}

impl Pacing {
    /// Runs share the same host threads, as on a CPU. There a prompt row of a 0.6B model in `q8_0` costs 2
    /// ms, as much as compiling a plan.
    pub const SHARED_THREADS: Pacing = Pacing {
        batch: 16,
        look_ahead: false,
        side_by_side: false,
        coalescing_wait: None,
        shared_workspaces: false,
        runs_apart: 1,
        prompt_step: 4,
        fills_chunks: false,
        first_chunk: 4,
        chunk_growth: 2,
    };

    /// Each memory has a queue of its own, as on a GPU: runs in two memories proceed side by side, and a
    /// thread that waits for one costs the other nothing. Frames take a small part of the time they play.
    pub const QUEUES: Pacing = Pacing {
        batch: 256,
        look_ahead: true,
        side_by_side: true,
        coalescing_wait: Some(Duration::from_millis(5)),
        shared_workspaces: false,
        runs_apart: 2,
        prompt_step: 32,
        fills_chunks: true,
        first_chunk: 2,
        chunk_growth: 4,
    };
}

/// A place that runs plans.
pub trait Device: Target + Send + Sync {
    /// Takes a model's weights; they are read when the first plan needs them.
    fn open(&self, weights: Arc<dyn WeightLoader + Send + Sync>) -> Box<dyn ModelOnDevice>;

    /// Compiles in parallel the kernels that plans of `graphs` need, if the device compiles kernels and has
    /// not done so before for the model that `what` identifies, also in earlier processes. Without it, each
    /// plan waits for the slowest of its own. Reports nothing: what fails here fails again when a plan is
    /// loaded.
    fn prepare(
        &self,
        what: &dyn Fn() -> String,
        graphs: &dyn Fn() -> Vec<Graph>,
        weights: &dyn WeightLoader,
    ) {
        let _ = (what, graphs, weights);
    }

    /// Compiles, in parallel, all kernels that plans for the device's precisions may need, if the device
    /// compiles kernels: for servers, which should not wait for one while they speak.
    ///
    /// # Errors
    /// The device's compiler is missing, or refuses a kernel.
    fn prepare_all(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Memory for one session: its buffers, scalars and temporaries.
    fn memory(&self) -> Box<dyn Memory>;

    /// Memory whose runs give way to those of other memories, where the device can tell them apart: for work
    /// that others run beside and nothing waits for.
    fn background_memory(&self) -> Box<dyn Memory> {
        self.memory()
    }

    /// Threads that take part in a run; 0 where that means nothing.
    fn threads(&self) -> usize;

    /// How work that proceeds step by step is spread over this device. By default [`Pacing::SHARED_THREADS`].
    fn pacing(&self) -> Pacing {
        Pacing::SHARED_THREADS
    }

    /// Bytes of a session's memory that are worth keeping for the next session.
    fn memory_kept(&self) -> usize;

    /// Bytes that the weights of `plans`, as `source` has them, would take on the device, each counted once.
    /// Nothing is read for it.
    fn weight_bytes(&self, plans: &[Plan], source: &dyn WeightLoader) -> u64;

    /// What was resolved: which device this is.
    fn info(&self) -> DeviceInfo;

    /// Why compiled kernels could not be kept for the next process, as far as that was tried: which folder,
    /// and what the system says. The device works all the same.
    fn cache_problem(&self) -> Option<String> {
        None
    }

    /// What [`Device::describe`] puts in brackets.
    fn details(&self) -> Vec<String> {
        vec![self.info().name]
    }

    /// One line for logs and results, such as `cuda:0 (NVIDIA H200)`.
    fn describe(&self) -> String {
        format!("{} ({})", self.info().id(), self.details().join(", "))
    }
}

/// A model's weights on a device, each kept once in the form that its kernels want.
pub trait ModelOnDevice: Send + Sync {
    /// Makes a plan runnable.
    ///
    /// # Errors
    /// A weight is missing, has another shape, or does not fit.
    fn load(&self, plan: Plan) -> Result<Arc<dyn Executable>, DeviceError>;

    /// Bytes that the weights take on the device.
    fn weight_bytes(&self) -> u64;
}

/// A plan bound to its weights. Shared by threads; each run has its own [`Memory`].
pub trait Executable: Send + Sync {
    /// What is run.
    fn plan(&self) -> &Plan;

    /// Runs all steps once.
    ///
    /// # Errors
    /// A buffer or scalar is missing or does not fit, or an operand is out of range.
    fn run(&self, memory: &mut dyn Memory) -> Result<(), DeviceError>;

    /// Runs all steps `times` times, with the scalar `counter` at 0, 1, 2 …
    ///
    /// A device that can count by itself does this in one submission. Where the host is in the loop, it asks
    /// `go_on` before each run, and stops when the answer is no.
    ///
    /// # Errors
    /// As [`Executable::run`].
    fn run_times(
        &self,
        memory: &mut dyn Memory,
        counter: &str,
        times: usize,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), DeviceError> {
        for i in (0..times).take_while(|_| go_on()) {
            memory.set_index(counter, i as u64);
            self.run(memory)?;
        }
        Ok(())
    }

    /// Launches of each step, then of each copy at the end.
    fn launches(&self) -> Vec<usize> {
        vec![1; self.plan().steps().len() + self.plan().copies().len()]
    }

    /// Runs all steps once and returns the time of each, in seconds.
    ///
    /// # Errors
    /// As [`Executable::run`].
    fn profile(&self, memory: &mut dyn Memory) -> Result<Vec<f64>, DeviceError>;
}

/// Checks that a buffer of some shape can become one of `wanted`, and returns the bytes of a batch row of
/// either.
///
/// # Errors
/// There is no buffer, or more than the number of rows differs, or there are more than wanted.
pub fn extended(
    name: &str,
    found: Option<(DType, &Shape)>,
    wanted: &Shape,
) -> Result<(usize, usize), DeviceError> {
    let fits = |(_, s): &(DType, &Shape)| {
        let (old, new) = (s.dims(), wanted.dims());
        s.rank() >= 2
            && old.len() == new.len()
            && old[0] == new[0]
            && old[1] <= new[1]
            && old[2..] == new[2..]
    };
    match found.filter(fits) {
        Some((dtype, shape)) => {
            let batch = shape.dims()[0].max(1);
            Ok((dtype.bytes_of(shape) / batch, dtype.bytes_of(wanted) / batch))
        }
        None => {
            let got = found.map_or("no such buffer".to_owned(), |(_, shape)| shape.to_string());
            Err(DeviceError::buffer(name, "extended", got, format!("{wanted}, or fewer rows")))
        }
    }
}

/// Checks that there are as many bytes as a buffer takes.
///
/// # Errors
/// There are not.
pub fn fitting(name: &str, dtype: DType, shape: &Shape, bytes: &[u8]) -> Result<(), DeviceError> {
    let needed = dtype.bytes_of(shape);
    if bytes.len() == needed {
        return Ok(());
    }
    let (got, needed) = (format!("{} bytes", bytes.len()), format!("{needed} bytes for {dtype} {shape}"));
    Err(DeviceError::buffer(name, "written by the host", got, needed))
}

/// What [`Memory::copy_from`] copies: elements of one buffer to another, whole rows of those of compact
/// types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// A buffer of the other memory, and the first element.
    pub from: (&'a str, usize),
    /// A buffer of this memory of the same type, and where the first element goes.
    pub to: (&'a str, usize),
    /// Number of elements.
    pub len: usize,
}

impl Part<'_> {
    /// Checks the part against the two buffers.
    ///
    /// # Errors
    /// A buffer is missing, they differ in type, the part is not inside of both, or it is not whole
    /// rows of compact elements.
    pub fn check(
        &self,
        from: Option<(DType, &Shape)>,
        to: Option<(DType, &Shape)>,
    ) -> Result<(), DeviceError> {
        if let (Some((a, source)), Some((b, target))) = (from, to)
            && a == b
            && self.from.1 + self.len <= source.len()
            && self.to.1 + self.len <= target.len()
            && (!a.is_compact() || self.is_whole_rows(source, target))
        {
            return Ok(());
        }
        let say = |buffer: Option<(DType, &Shape)>| match buffer {
            Some((dtype, shape)) => format!("{dtype} {shape}"),
            None => "no buffer".to_owned(),
        };
        let (got, plan) = (format!("{} and {}", say(from), say(to)), format!("copied to `{}`", self.to.0));
        let mut needed = format!("{} elements from {} to {}", self.len, self.from.1, self.to.1);
        if from.is_some_and(|(dtype, _)| dtype.is_compact()) {
            needed += ", whole rows";
        }
        Err(DeviceError::buffer(self.from.0, plan, got, needed))
    }

    fn is_whole_rows(&self, source: &Shape, target: &Shape) -> bool {
        let width = source.last();
        let whole = |elements: &usize| elements.is_multiple_of(width);
        width == target.last() && [self.from.1, self.to.1, self.len].iter().all(whole)
    }

    /// Where a part that was checked begins in either buffer, and its length, in bytes. `shape` is that of
    /// one of them.
    pub fn bytes(&self, dtype: DType, shape: &Shape) -> [usize; 3] {
        let width = if dtype.is_compact() { shape.last().max(1) } else { 1 };
        [self.from.1, self.to.1, self.len].map(|elements| elements / width * dtype.row_bytes(width))
    }
}

/// Floats on the host that several threads read; see [`Memory::read_shared`].
pub type SharedFloats = Arc<dyn AsRef<[f32]> + Send + Sync>;

/// Named buffers and scalars of one session, on the device. Calls fail if the device has no room or failed;
/// what else can go wrong is said at each.
pub trait Memory: Send + Any {
    /// Device name.
    fn device(&self) -> &str;

    /// Shape of a buffer, if there is one.
    fn shape_of(&self, name: &str) -> Option<&Shape>;

    /// Sets a float buffer, making it if need be. `data` has `shape.len()` elements.
    fn write_f32(&mut self, name: &str, shape: &Shape, data: &[f32]) -> Result<(), DeviceError>;

    /// Sets an integer buffer, making it if need be. `data` has `shape.len()` elements.
    fn write_i32(&mut self, name: &str, shape: &Shape, data: &[i32]) -> Result<(), DeviceError>;

    /// Sets a buffer of any type, making it if need be. `bytes` are those of the elements,
    /// [`DType::bytes_of`] the shape.
    ///
    /// # Errors
    /// There are more or fewer bytes.
    fn write_bytes(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &Shape,
        bytes: &[u8],
    ) -> Result<(), DeviceError>;

    /// Copies the bytes of a buffer of any type to the host, replacing the content of `out`.
    ///
    /// # Errors
    /// There is no such buffer.
    fn read_bytes(&mut self, name: &str, out: &mut Vec<u8>) -> Result<(DType, Shape), DeviceError>;

    /// Copies a float buffer to the host, replacing the content of `out`.
    ///
    /// # Errors
    /// There is no such float buffer.
    fn read_f32(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, DeviceError>;

    /// Copies a float buffer to the host for several threads to read. A device may give out what it copies
    /// to: it is not written again while somebody has it.
    ///
    /// # Errors
    /// There is no such float buffer.
    fn read_shared(&mut self, name: &str) -> Result<(Shape, SharedFloats), DeviceError> {
        let mut floats = vec![];
        let shape = self.read_f32(name, &mut floats)?;
        Ok((shape, Arc::new(floats)))
    }

    /// Copies an integer buffer to the host, replacing the content of `out`.
    ///
    /// # Errors
    /// There is no such integer buffer.
    fn read_i32(&mut self, name: &str, out: &mut Vec<i32>) -> Result<Shape, DeviceError>;

    /// Queues a copy of an integer buffer to the host, after what was submitted and before what will be, and
    /// does not wait for it. So the host can submit a run before it reads what the one before it has made. It
    /// counts as a read-back now, whatever becomes of it.
    ///
    /// # Errors
    /// There is no such integer buffer, or [`crate::Pending::MOST`] copies are under way.
    fn read_later(&mut self, name: &str) -> Result<Ticket, DeviceError>;

    /// Waits for a copy, and for nothing after it, and replaces the content of `out` by it.
    ///
    /// # Errors
    /// The ticket is not of this memory.
    fn finish(&mut self, ticket: Ticket, out: &mut Vec<i32>) -> Result<Shape, DeviceError>;

    /// Gives up a copy that is no longer wanted, without waiting for it.
    fn discard(&mut self, ticket: Ticket);

    /// Makes a buffer of zeros, or makes one of this shape all zeros, without sending them.
    fn clear(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<(), DeviceError>;

    /// As [`Memory::clear`] for several buffers, in one go where the device can.
    fn clear_all(&mut self, buffers: &[(&str, DType, &Shape)]) -> Result<(), DeviceError> {
        buffers.iter().try_for_each(|(name, dtype, shape)| self.clear(name, *dtype, shape))
    }

    /// Makes a buffer of this shape, whose content may be anything: for what is written before it is read.
    fn reserve(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<(), DeviceError> {
        self.clear(name, dtype, shape)
    }

    /// As [`Memory::reserve`] for several buffers, in one go where the device can.
    fn reserve_all(&mut self, buffers: &[(&str, DType, &Shape)]) -> Result<(), DeviceError> {
        buffers.iter().try_for_each(|(name, dtype, shape)| self.reserve(name, *dtype, shape))
    }

    /// Makes each buffer `[B, N, …]` one of `[B, M, …]`, M not below N, on the device: each batch row keeps
    /// its N rows, and what stands after them may be anything.
    ///
    /// # Errors
    /// There is no such buffer, or its other extents differ.
    fn extend(&mut self, buffers: &[(&str, &Shape)]) -> Result<(), DeviceError>;

    /// Copies elements of buffers of another memory of this device to buffers that are there, without the
    /// host: after what was submitted for either memory, and before what will be. Parts are copied in any
    /// order, so what they write must not overlap.
    ///
    /// # Errors
    /// A memory of another device, or a buffer that is not there or too small.
    fn copy_from(&mut self, source: &mut dyn Memory, parts: &[Part<'_>]) -> Result<(), DeviceError>;

    /// Waits until everything that was submitted for this session is done. Reading waits by itself.
    fn wait(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Drops the buffers whose names begin with `prefix`.
    fn forget(&mut self, prefix: &str);

    /// Sets a scalar that is a number.
    fn set_scalar(&mut self, name: &str, value: f32);

    /// Sets a scalar that is an index or a seed.
    fn set_index(&mut self, name: &str, value: u64);

    /// Work done for this session.
    fn counters(&self) -> Counters;

    /// Whether runs in this memory take precedence from now on, as in [`Device::memory`], or give way, as in
    /// [`Device::background_memory`]; nothing where the device cannot tell them apart.
    fn set_urgent(&mut self, _urgent: bool) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Bytes of the device that it takes.
    fn bytes(&self) -> usize;

    /// Gives all of it back if it takes more than `bytes`, after an unusually large run.
    fn shrink_to(&mut self, bytes: usize);

    /// For executors, to find their own memory again.
    fn as_any(&mut self) -> &mut dyn Any;
}
