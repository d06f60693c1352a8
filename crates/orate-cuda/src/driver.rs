//! Safe wrappers of the CUDA driver: owned resources, and errors instead of codes.

use cudarc::driver::sys;
use orate_graph::{DeviceError, HomeProcess};
use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::time::Instant;

/// Address in device memory.
pub(crate) type DevicePointer = sys::CUdeviceptr;

/// All functions that this crate calls, checked when the driver is opened: calling one that an old driver
/// lacks would panic.
const NEEDED: [&str; 45] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuLaunchKernelEx",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuEventDestroy_v2",
    "cuTensorMapEncodeTiled",
];

/// Oldest supported driver API, as the driver reports it.
const OLDEST: i32 = 12000;

/// Proof that the driver is loaded and initialized.
#[derive(Clone, Copy)]
pub(crate) struct Driver {
    pub version: i32,
}

fn no_driver(problem: String) -> DeviceError {
    DeviceError::Setup { device: "cuda".to_owned(), problem }
}

/// The driver's description of a code.
fn describe(code: sys::CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: only called with codes that the driver returned, and writes one pointer to a constant string.
    unsafe {
        if sys::cuGetErrorString(code, &mut text) == sys::CUresult::CUDA_SUCCESS && !text.is_null() {
            return format!("{} ({:?})", CStr::from_ptr(text).to_string_lossy(), code);
        }
    }
    format!("{code:?}")
}

impl Driver {
    /// Loads the driver, once per process.
    pub fn open() -> Result<Driver, DeviceError> {
        let start = Instant::now();
        // SAFETY: loads a system library and runs its initializers, as any program that uses CUDA does.
        if !unsafe { sys::is_culib_present() } {
            return Err(no_driver(
                "NVIDIA's driver library (libcuda.so.1, nvcuda.dll) was not found; install the NVIDIA driver, or \
                 in a container pass the GPU through"
                    .to_owned(),
            ));
        }
        // SAFETY: the library exists, as just checked. Symbols are looked up and not called.
        let missing = unsafe {
            let library = sys::culib();
            NEEDED.into_iter().find(|n| library.get::<unsafe extern "C" fn()>(n.as_bytes()).is_err())
        };
        if let Some(name) = missing {
            return Err(no_driver(format!(
                "the NVIDIA driver is too old: it lacks {name}; install one for CUDA 12 or later (525 or later)"
            )));
        }
        let mut version = 0;
        // SAFETY: both functions exist, as just checked; the second writes one integer.
        let code = unsafe {
            match sys::cuInit(0) {
                sys::CUresult::CUDA_SUCCESS => sys::cuDriverGetVersion(&mut version),
                code => code,
            }
        };
        tracing::debug!(version, elapsed = ?start.elapsed(), "the driver is there");
        match code {
            sys::CUresult::CUDA_SUCCESS if version >= OLDEST => Ok(Driver { version }),
            sys::CUresult::CUDA_SUCCESS => Err(no_driver(format!(
                "the NVIDIA driver is for CUDA {}.{}; install one for CUDA 12 or later (525 or later)",
                version / 1000,
                version % 1000 / 10
            ))),
            sys::CUresult::CUDA_ERROR_NO_DEVICE => Err(no_driver("the driver sees no NVIDIA GPU".to_owned())),
            code => Err(no_driver(format!("the NVIDIA driver does not start: {}", describe(code)))),
        }
    }

    /// Version of the driver's API.
    pub fn describe(self) -> String {
        format!("CUDA {}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// Number of devices.
    pub fn count(self) -> Result<usize, DeviceError> {
        let mut n = 0;
        // SAFETY: writes one integer.
        check("cuda", unsafe { sys::cuDeviceGetCount(&mut n) })?;
        Ok(usize::try_from(n).unwrap_or(0))
    }
}

/// Converts a code to a result. `device` is its name for messages.
pub(crate) fn check(device: &str, code: sys::CUresult) -> Result<(), DeviceError> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(DeviceError::OutOfMemory {
            device: device.to_owned(),
            what: "the driver itself needs more".to_owned(),
        }),
        code => Err(DeviceError::Failed { device: device.to_owned(), problem: describe(code) }),
    }
}

/// A tensor of which the hardware copies boxes to shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tensor {
    /// Elements of three dimensions, the innermost first, and those of a box.
    pub sizes: [usize; 3],
    pub part: [usize; 3],
    pub elements: Elements,
}

/// Elements of a [`Tensor`], and the order of their bytes in shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Elements {
    /// Of four bytes, one after the other.
    Words,
    /// Of two bytes in lines of 128: eight neighboring lines have no bank in common.
    Lines,
    /// Likewise, in lines of 64.
    NarrowLines,
    /// Likewise, of four bytes.
    Floats,
}

/// A kernel's description of a tensor.
pub(crate) type Described = [u64; 16];

impl Tensor {
    /// Describes the tensor at an address. A box may reach beyond it, and has zeros there.
    pub fn at(&self, pointer: DevicePointer) -> Result<Described, DeviceError> {
        use sys::{CUtensorMapDataType as Type, CUtensorMapSwizzle as Swizzle};
        let (element, bytes, swizzle) = match self.elements {
            Elements::Words => (Type::CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE),
            Elements::Lines => (Type::CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, Swizzle::CU_TENSOR_MAP_SWIZZLE_128B),
            Elements::NarrowLines => {
                (Type::CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, Swizzle::CU_TENSOR_MAP_SWIZZLE_64B)
            }
            Elements::Floats => {
                (Type::CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, Swizzle::CU_TENSOR_MAP_SWIZZLE_128B)
            }
        };
        let sizes = self.sizes.map(|n| n as u64);
        let strides = [bytes * sizes[0], bytes * sizes[0] * sizes[1]];
        let part = self.part.map(|n| n as u32);
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: all arrays have as many numbers as the driver reads for three dimensions; it writes `map`.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                element,
                3,
                pointer as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                part.as_ptr(),
                [1; 3].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check("cuda", code)?;
        Ok(map.opaque)
    }
}

/// Properties of a device that are known before it is opened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Facts {
    /// Marketing name.
    pub name: String,
    /// PCI address, `0000:18:00.0`.
    pub card: Option<String>,
    pub memory: u64,
    /// Compute capability times ten.
    pub arch: u32,
    pub multiprocessors: u32,
    /// Maximum shared memory of a block in bytes.
    pub shared: u32,
    /// Second-level cache in bytes.
    pub cache: u32,
    pub integrated: bool,
}

/// Reads the facts of device `index`, which exists.
pub(crate) fn facts(_: Driver, index: usize) -> Result<(sys::CUdevice, Facts), DeviceError> {
    let label = format!("cuda:{index}");
    let (mut device, mut text, mut bytes) = (0, [0; 128], 0);
    let mut address = [0; 32];
    // SAFETY: each call writes to the variable it is given, of the length it is told.
    let card = unsafe {
        check(&label, sys::cuDeviceGet(&mut device, i32::try_from(index).unwrap_or(i32::MAX)))?;
        check(&label, sys::cuDeviceGetName(text.as_mut_ptr(), 127, device))?;
        check(&label, sys::cuDeviceTotalMem_v2(&mut bytes, device))?;
        sys::cuDeviceGetPCIBusId(address.as_mut_ptr(), 31, device) == sys::CUresult::CUDA_SUCCESS
    };
    let attribute = |which: sys::CUdevice_attribute| -> Result<u32, DeviceError> {
        let mut value = 0;
        // SAFETY: writes one integer.
        check(&label, unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    use sys::CUdevice_attribute as A;
    // SAFETY: both texts are terminated by zero, since the buffers were zeroed and are never filled
    // completely.
    let string =
        |text: &[std::ffi::c_char]| unsafe { CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned() };
    let facts = Facts {
        name: string(&text),
        card: card.then(|| string(&address).to_lowercase()),
        memory: bytes as u64,
        arch: 10 * attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        cache: attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        integrated: attribute(A::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
    };
    Ok((device, facts))
}

/// Context of a device. Everything on the device keeps it alive.
pub(crate) struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    /// Name in plans and errors, such as `cuda:0`.
    pub name: String,
    pub facts: Facts,
    home: HomeProcess,
}

// SAFETY: contexts may be used by any thread that makes them current, as every function here does.
unsafe impl Send for Context {}
// SAFETY: the driver is thread-safe.
unsafe impl Sync for Context {}

impl Context {
    /// Returns the primary context of device `index`, which must exist; the whole process shares it.
    pub fn new(driver: Driver, index: usize) -> Result<Context, DeviceError> {
        let start = Instant::now();
        let (device, facts) = facts(driver, index)?;
        let (name, mut raw) = (format!("cuda:{index}"), std::ptr::null_mut());
        // SAFETY: the device exists; released when the context is dropped.
        check(&name, unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) })?;
        tracing::debug!(device = name, elapsed = ?start.elapsed(), "the context is there");
        Ok(Context { device, raw, name, facts, home: HomeProcess::current() })
    }

    /// Converts a code to a result. A failed context stays failed, and reopening the device returns the same
    /// context as long as anything holds it.
    pub fn check(&self, code: sys::CUresult) -> Result<(), DeviceError> {
        check(&self.name, code).map_err(|e| match e {
            DeviceError::Failed { device, problem } => DeviceError::Failed {
                device,
                problem: format!("{problem}; drop all engines on it, which share its context"),
            },
            e => e,
        })
    }

    /// Makes this the current context of the thread; every function that calls the driver does so first. In a
    /// forked process it returns an error, so that nothing is run or released there.
    pub fn bind(&self) -> Result<(), DeviceError> {
        self.home.check(&self.name)?;
        // SAFETY: the context lives as long as `self`.
        self.check(unsafe { sys::cuCtxSetCurrent(self.raw) })
    }

    /// Free and total memory in bytes.
    pub fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        self.check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Converts the code of an allocation to a result.
    fn allocation(&self, code: sys::CUresult, bytes: usize) -> Result<(), DeviceError> {
        match code {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(DeviceError::OutOfMemory {
                device: self.name.clone(),
                what: format!("{bytes} bytes more are needed"),
            }),
            code => self.check(code),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        // SAFETY: retained in `new`. An error, as at process exit, needs no handling.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Device memory.
pub(crate) struct DeviceBuffer {
    context: Arc<Context>,
    pointer: DevicePointer,
    bytes: usize,
    /// What it is a part of.
    whole: Option<Arc<DeviceBuffer>>,
}

impl DeviceBuffer {
    /// No memory.
    pub fn empty(context: &Arc<Context>) -> Self {
        DeviceBuffer { context: context.clone(), pointer: 0, bytes: 0, whole: None }
    }

    /// Allocates at least `bytes`, uninitialized.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        let mut buffer = Self::empty(context);
        if bytes > 0 {
            context.bind()?;
            // SAFETY: writes the address; freed when dropped.
            context.allocation(unsafe { sys::cuMemAlloc_v2(&mut buffer.pointer, bytes) }, bytes)?;
            buffer.bytes = bytes;
        }
        Ok(buffer)
    }

    /// Buffers of these sizes, one after the other in one allocation, which is freed with the last of them:
    /// the driver allocates for one thread at a time, and dozens of times take milliseconds.
    pub fn parts(context: &Arc<Context>, sizes: &[usize]) -> Result<Vec<Self>, DeviceError> {
        let whole = Arc::new(Self::new(context, sizes.iter().sum())?);
        let mut pointer = whole.pointer;
        let part = |bytes: &usize| {
            let part =
                DeviceBuffer { context: context.clone(), pointer, bytes: *bytes, whole: Some(whole.clone()) };
            pointer += *bytes as u64;
            part
        };
        Ok(sizes.iter().map(part).collect())
    }

    pub fn pointer(&self) -> DevicePointer {
        self.pointer
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where its allocation begins.
    pub fn allocation(&self) -> DevicePointer {
        self.whole.as_ref().map_or(self.pointer, |whole| whole.pointer)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.whole.is_none() && self.pointer != 0 && self.context.bind().is_ok() {
            // SAFETY: allocated in `new`. The driver waits for work that uses it.
            unsafe { sys::cuMemFree_v2(self.pointer) };
        }
    }
}

/// Pinned host memory, which the device accesses without an intermediate copy.
pub(crate) struct Pinned {
    context: Arc<Context>,
    pointer: *mut c_void,
    bytes: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for Pinned {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Pinned {}

/// Minimum size of pinned memory, in bytes. Freeing it synchronizes the device, so it should rarely grow.
const LEAST_PINNED: usize = 1 << 18;

impl Pinned {
    pub fn empty(context: &Arc<Context>) -> Self {
        Pinned { context: context.clone(), pointer: std::ptr::null_mut(), bytes: 0 }
    }

    /// Makes room for `bytes`; the content is lost if it has to grow.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), DeviceError> {
        if bytes > self.bytes {
            let bytes = bytes.next_power_of_two().max(LEAST_PINNED);
            self.release();
            self.context.bind()?;
            // SAFETY: writes the address; freed in `release`.
            let code = unsafe { sys::cuMemAllocHost_v2(&mut self.pointer, bytes) };
            if code != sys::CUresult::CUDA_SUCCESS {
                self.pointer = std::ptr::null_mut();
            }
            self.context.allocation(code, bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }

    pub fn release(&mut self) {
        if !self.pointer.is_null() && self.context.bind().is_ok() {
            // SAFETY: allocated in `reserve`; the caller that started copies has waited for them.
            unsafe { sys::cuMemFreeHost(self.pointer) };
        }
        (self.pointer, self.bytes) = (std::ptr::null_mut(), 0);
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first `n` floats.
    ///
    /// # Safety
    /// They were written, and no copy to them is in progress.
    pub unsafe fn floats(&self, n: usize) -> &[f32] {
        assert!(n * 4 <= self.bytes, "as many floats as were reserved");
        if n == 0 {
            return &[];
        }
        // SAFETY: within the allocation, which is aligned to a page.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), n) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.release();
    }
}

/// A queue of work.
pub(crate) struct Stream {
    pub context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: a stream may be used by one thread after another.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes the handle; destroyed when dropped.
        context.check(unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        Ok(Stream { context: context.clone(), raw })
    }

    /// Creates a stream whose kernels, and graphs launched on it, take precedence over those of other
    /// streams.
    pub fn urgent(context: &Arc<Context>) -> Result<Self, DeviceError> {
        context.bind()?;
        let (mut least, mut greatest, mut raw) = (0, 0, std::ptr::null_mut());
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes two integers, both 0 if there are no priorities, and the handle; destroyed when
        // dropped.
        unsafe {
            context.check(sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
            context.check(sys::cuStreamCreateWithPriority(&mut raw, flags, greatest))?;
        }
        Ok(Stream { context: context.clone(), raw })
    }

    /// Waits for all work and returns its errors.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the stream lives.
        self.context.check(unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Copies to the device. `data` may be changed after this returns, as the driver copies it first.
    ///
    /// # Safety
    /// `to` is valid for `data.len()` bytes.
    pub unsafe fn upload(&self, to: DevicePointer, data: &[u8]) -> Result<(), DeviceError> {
        self.context.bind()?;
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: `data` is pageable memory, which the driver copies before it returns.
        self.context
            .check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, data.as_ptr().cast(), data.len(), self.raw) })
    }

    /// Copies `bytes` to the host and waits for `done`, recorded after the copy, or for the stream.
    ///
    /// # Safety
    /// `from` holds `bytes` bytes.
    pub unsafe fn download(
        &self,
        from: DevicePointer,
        to: &mut Pinned,
        bytes: usize,
        done: Option<&Event>,
    ) -> Result<(), DeviceError> {
        to.reserve(bytes)?;
        // SAFETY: `to` has room, and the copy is waited for; the caller guarantees the rest.
        unsafe { self.copy_to_host(from, to, bytes)? };
        match done.map(|done| done.record(self).and_then(|()| done.wait())) {
            Some(Ok(())) => Ok(()),
            // If the event fails, wait for the stream instead.
            Some(Err(e)) => self.synchronize().and(Err(e)),
            None => self.synchronize(),
        }
    }

    /// Enqueues a copy of `bytes` to the host.
    ///
    /// # Safety
    /// `from` holds `bytes` bytes and `to` has room for them; `to` is neither read nor freed before the copy
    /// is done.
    pub unsafe fn copy_to_host(
        &self,
        from: DevicePointer,
        to: &mut Pinned,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        assert!(bytes <= to.bytes, "as many bytes as were reserved");
        self.context.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller guarantees it.
        self.context.check(unsafe { sys::cuMemcpyDtoHAsync_v2(to.pointer, from, bytes, self.raw) })
    }

    /// Clears memory.
    ///
    /// # Safety
    /// `at` is valid for `bytes` bytes.
    pub unsafe fn clear(&self, at: DevicePointer, bytes: usize) -> Result<(), DeviceError> {
        self.context.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller guarantees it.
        self.context.check(unsafe { sys::cuMemsetD8Async(at, 0, bytes, self.raw) })
    }

    /// Copies bytes on the device.
    ///
    /// # Safety
    /// Both places hold `bytes` bytes and do not overlap.
    pub unsafe fn copy(
        &self,
        from: DevicePointer,
        to: DevicePointer,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.context.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller guarantees it.
        self.context.check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw) })
    }

    /// Makes later work on this stream wait for an event of another one.
    pub fn wait_for(&self, event: &Event) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: both live, and belong to one context.
        self.context.check(unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }

    /// Records the launches of `work` on this stream as a graph.
    pub fn capture(
        &self,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<ExecutableGraph, DeviceError> {
        self.context.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream lives, and capture is ended below in any case.
        self.context.check(unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) })?;
        let done = work();
        let (mut graph, mut raw) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: ends what was begun; the graph is destroyed once its executable form exists.
        let ended = self.context.check(unsafe { sys::cuStreamEndCapture(self.raw, &mut graph) });
        let made = done.and(ended).and_then(|()| {
            // SAFETY: `graph` is the one just captured.
            self.context.check(unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) })
        });
        if !graph.is_null() {
            // SAFETY: made above, and not used afterwards.
            unsafe { sys::cuGraphDestroy(graph) };
        }
        made?;
        Ok(ExecutableGraph { context: self.context.clone(), raw })
    }

    /// Starts a graph.
    pub fn launch(&self, graph: &ExecutableGraph) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: both live; the owner of the graph keeps everything that its kernels use.
        self.context.check(unsafe { sys::cuGraphLaunch(graph.raw, self.raw) })
    }

    /// Starts a kernel.
    ///
    /// # Safety
    /// `arguments` is the struct that the kernel takes, and its pointers are valid.
    pub unsafe fn start(&self, launch: &Launch<'_>, arguments: &[u64]) -> Result<(), DeviceError> {
        // SAFETY: all zeros is a valid attribute of every kind.
        let mut attributes: [sys::CUlaunchAttribute; 3] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        if launch.early {
            attributes[count].id =
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count].value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        if launch.cluster > 1 {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[count].value.clusterDim.x = 1;
            attributes[count].value.clusterDim.y = 1;
            attributes[count].value.clusterDim.z = launch.cluster;
            count += 1;
        }
        if launch.cooperative {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attributes[count].value.cooperative = 1;
            count += 1;
        }
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: self.raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        let mut parameters = [arguments.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the caller vouches for the arguments; the driver copies them before it returns.
        self.context.check(unsafe {
            sys::cuLaunchKernelEx(&config, launch.function.raw, parameters.as_mut_ptr(), std::ptr::null_mut())
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `new`. Waiting first keeps memory that its work uses from being freed too
            // early.
            unsafe {
                sys::cuStreamSynchronize(self.raw);
                sys::cuStreamDestroy_v2(self.raw);
            }
        }
    }
}

/// A point on a stream.
pub(crate) struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: an event may be used by one thread after another.
unsafe impl Send for Event {}

impl Event {
    /// Creates an event that records its time.
    pub fn new(context: &Arc<Context>) -> Result<Event, DeviceError> {
        Self::with_flags(context, 0)
    }

    /// Creates an event whose waiting thread sleeps. Waking takes some microseconds, but the core is free
    /// until then.
    pub fn to_sleep_for(context: &Arc<Context>) -> Result<Event, DeviceError> {
        use sys::CUevent_flags as F;
        let flags = F::CU_EVENT_BLOCKING_SYNC as u32 | F::CU_EVENT_DISABLE_TIMING as u32;
        Self::with_flags(context, flags)
    }

    /// Creates an event that orders streams. It has no time.
    pub fn to_wait_for(context: &Arc<Context>) -> Result<Event, DeviceError> {
        Self::with_flags(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    fn with_flags(context: &Arc<Context>, flags: u32) -> Result<Event, DeviceError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes the handle; destroyed when dropped.
        context.check(unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Event { context: context.clone(), raw })
    }

    /// Records the current end of the stream.
    pub fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: both live, and belong to one context.
        self.context.check(unsafe { sys::cuEventRecord(self.raw, stream.raw) })
    }

    /// Waits until the stream reaches the last recorded point; returns at once if nothing was recorded.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the event lives.
        self.context.check(unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Waits for this event and returns the seconds since an earlier one.
    pub fn seconds_since(&self, earlier: &Event) -> Result<f64, DeviceError> {
        let mut milliseconds = 0.0;
        // SAFETY: both live and were recorded; writes one number.
        unsafe {
            self.context.check(sys::cuEventSynchronize(self.raw))?;
            self.context.check(sys::cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw))?;
        }
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `new`.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

/// Parameters of a kernel launch.
#[derive(Clone, Copy)]
pub(crate) struct Launch<'a> {
    pub function: &'a Function,
    pub grid: [u32; 3],
    pub threads: u32,
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Blocks of a cluster, along the third axis.
    pub cluster: u32,
    /// Whether it may start while the previous kernel still runs.
    pub early: bool,
    /// Whether all blocks must run at once.
    pub cooperative: bool,
}

/// A recorded graph, ready to launch.
pub(crate) struct ExecutableGraph {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

// SAFETY: used by one thread at a time, with the memory that owns it.
unsafe impl Send for ExecutableGraph {}

impl Drop for ExecutableGraph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made in `capture`. The driver keeps what a running launch needs.
            unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}

/// Loaded machine code.
pub(crate) struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

// SAFETY: only read after loading.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel. Valid as long as its module, which the holder keeps alive.
pub(crate) struct Function {
    raw: sys::CUfunction,
}

// SAFETY: a read-only handle.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads machine code for this device.
    pub fn load(context: &Arc<Context>, cubin: &[u8]) -> Result<Module, DeviceError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver validates the image and returns an error if it is damaged.
        context.check(unsafe { sys::cuModuleLoadData(&mut raw, cubin.as_ptr().cast()) })?;
        Ok(Module { context: context.clone(), raw })
    }

    /// Returns a kernel by name, and allows it as much shared memory as the device has.
    pub fn function(&self, name: &CStr) -> Result<Function, DeviceError> {
        self.context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module lives; the handle lives as long.
        self.context.check(unsafe { sys::cuModuleGetFunction(&mut raw, self.raw, name.as_ptr()) })?;
        use sys::CUfunction_attribute as Attribute;
        // Static shared memory of the kernel counts as well.
        let mut fixed = 0;
        let which = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        // SAFETY: the handle was just returned by the driver.
        self.context.check(unsafe { sys::cuFuncGetAttribute(&mut fixed, which, raw) })?;
        let all = i32::try_from(self.context.facts.shared).unwrap_or(i32::MAX);
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        self.context.check(unsafe { sys::cuFuncSetAttribute(raw, which, (all - fixed).max(0)) })?;
        Ok(Function { raw })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded in `load`; its launcher has waited or dropped the stream.
            unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn functions_that_are_called_are_those_that_are_checked() {
        let calls = include_str!("driver.rs").split("sys::cu").skip(1);
        let names = calls.filter_map(|call| Some(format!("cu{}", call.split_once('(')?.0)));
        let is_name = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let called: BTreeSet<String> = names.filter(is_name).filter(|name| name != "culib").collect();
        assert_eq!(called, NEEDED.map(str::to_owned).into());
    }

    /// Without a driver, the message says what to install; with one, it has the version.
    #[test]
    fn a_missing_driver_is_an_error_that_helps() {
        match Driver::open() {
            Ok(driver) => assert!(driver.describe().starts_with("CUDA 1")),
            Err(e) => {
                let text = e.to_string();
                assert!(text.contains("driver") && text.contains("cuda"), "{text}");
            }
        }
    }
}
