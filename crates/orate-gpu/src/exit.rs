//! Exit of the process while threads still use a device.
//!
//! `exit` runs handlers that drivers have registered. Mesa's software rasterizer then stops its threads and
//! frees its compiler even if another thread is submitting work, which corrupts the heap or crashes. So a
//! handler of our own, which runs before those because it is registered after them, keeps threads from
//! entering the driver, and waits until those inside have left and the devices are idle.
//!
//! A compiler registers handlers while it is at work, and `exit` may come before ours is registered again. On
//! Linux, `exit` drops values of its thread before it runs any handler, so a value of the main thread, from
//! which programs usually exit, calls ours first.

use crate::failure::polled;
use crate::gpu::Gpu;
use orate_graph::{DeviceClass, DeviceError, HomeProcess};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use wgpu::{
    BufferUsages, CommandEncoderDescriptor, ComputePassDescriptor, ComputePipelineDescriptor,
    PipelineCompilationOptions, PollType, ShaderModuleDescriptor, ShaderSource,
};

/// Maximum time that the process waits for threads and devices at exit. A GPU may hang; a software rasterizer
/// is only slow where the machine is busy.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
const LONGEST_WAIT_FOR_SOFTWARE: Duration = Duration::from_secs(60);

/// Devices to wait for, and the process in which they were opened.
static OPEN: Mutex<Option<(HomeProcess, Vec<Open>)>> = Mutex::new(None);

/// A device to wait for.
struct Open {
    gpu: Weak<Gpu>,
    class: DeviceClass,
}

/// Whether the process is exiting.
static ENDING: AtomicBool = AtomicBool::new(false);

/// How often a thread that leaves the driver still registers the handler again; see [`compiled`].
static AGAIN: AtomicUsize = AtomicUsize::new(0);

/// Calls of the driver in which new kernels are compiled and first run.
const FIRST_CALLS: usize = 64;

/// Number of threads in the driver.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Number of [`Inside`] values of this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

#[cfg(target_os = "linux")]
mod first {
    thread_local! {
        static FIRST: First = const { First };
    }

    /// Calls [`super::end`] when it is dropped.
    struct First;

    impl Drop for First {
        fn drop(&mut self) {
            super::end();
        }
    }

    /// Makes the end of this thread call [`super::end`], if it is the main thread: then the process exits,
    /// too, unless a program in C ends that thread alone.
    pub fn run() {
        // SAFETY: both only return numbers; those of the main thread are equal.
        if unsafe { libc::gettid() == libc::getpid() } {
            FIRST.with(|_| ());
        }
    }
}

/// While it lives, the process does not exit: its thread may be in the driver.
pub(crate) struct Inside(());

impl Inside {
    /// Returns only if the process is not exiting; otherwise blocks forever.
    pub fn enter() -> Inside {
        let depth = DEPTH.get();
        if depth == 0 {
            INSIDE.fetch_add(1, Ordering::SeqCst);
            if ENDING.load(Ordering::SeqCst) {
                INSIDE.fetch_sub(1, Ordering::SeqCst);
                loop {
                    std::thread::park();
                }
            }
        }
        DEPTH.set(depth + 1);
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 {
            if AGAIN.load(Ordering::Relaxed) > 0
                && AGAIN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
            {
                // Without memory for it, the first one remains.
                register();
            }
            INSIDE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// To be called when kernels were compiled. A compiler may have registered handlers for what it needed for
/// the first time. Handlers run in reverse order, so ours is registered again.
pub(crate) fn compiled() {
    AGAIN.store(FIRST_CALLS, Ordering::Relaxed);
}

/// A kernel that makes a software rasterizer start its compiler.
const SMALL_KERNEL: &str = "
    @group(0) @binding(0) var<storage, read_write> x: array<f32>;
    @compute @workgroup_size(8) fn main(@builtin(global_invocation_id) at: vec3<u32>) { x[at.x] = exp(x[at.x]); }";

/// Handlers run in reverse order, and a compiler registers handlers when it is first used.
fn start_compiler(gpu: &Gpu) -> Result<(), DeviceError> {
    let module =
        ShaderModuleDescriptor { label: Some("small"), source: ShaderSource::Wgsl(SMALL_KERNEL.into()) };
    let pipeline = gpu.device.create_compute_pipeline(&ComputePipelineDescriptor {
        label: Some("small"),
        layout: None,
        module: &gpu.device.create_shader_module(module),
        entry_point: Some("main"),
        compilation_options: PipelineCompilationOptions::default(),
        cache: None,
    });
    let x = gpu.buffer("small", 32, BufferUsages::STORAGE)?;
    let bound = gpu.bind("small", &pipeline.get_bind_group_layout(0), &[&x]);
    let mut encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor { label: Some("small") });
    let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &bound, &[]);
    pass.dispatch_workgroups(1, 1, 1);
    drop(pass);
    gpu.queue.submit([encoder.finish()]);
    gpu.wait()
}

/// Makes `exit` call [`end`]. Returns false if there is no memory for it.
#[cfg(not(target_os = "wasi"))]
fn register() -> bool {
    // SAFETY: the handler takes and returns nothing, and does not unwind.
    unsafe { libc::atexit(end) == 0 }
}

/// A page is closed without handlers, and its browser owns the driver.
#[cfg(target_os = "wasi")]
fn register() -> bool {
    let _unused: extern "C" fn() = end;
    true
}

/// Makes the exit of the process wait for a device that was just opened.
pub(crate) fn wait_for_at_exit(gpu: &Arc<Gpu>) -> Result<(), DeviceError> {
    if gpu.info.class == DeviceClass::Software && cfg!(not(target_os = "wasi")) {
        start_compiler(gpu)?;
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if open.as_ref().is_none_or(|(home, _)| !home.is_here()) {
        if !register() {
            return Err(gpu.failed("cannot register an exit handler: out of memory".to_owned()));
        }
        // A forked process inherits the count of its parent's threads, but not the threads.
        INSIDE.store(0, Ordering::SeqCst);
        *open = Some((HomeProcess::current(), vec![]));
    }
    #[cfg(target_os = "linux")]
    first::run();
    if let Some((_, devices)) = open.as_mut() {
        devices.retain(|open| open.gpu.strong_count() > 0);
        devices.push(Open { gpu: Arc::downgrade(gpu), class: gpu.info.class });
    }
    Ok(())
}

extern "C" fn end() {
    let open = OPEN.try_lock().ok().and_then(|mut open| open.take());
    // Forked processes inherit handlers, but neither threads nor devices.
    let Some((_, devices)) = open.filter(|(home, _)| home.is_here()) else { return };
    // Handlers that run after this one may still use devices on this thread.
    DEPTH.set(1);
    ENDING.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let is_software = devices.iter().any(|open| open.class == DeviceClass::Software);
    let longest = if is_software { LONGEST_WAIT_FOR_SOFTWARE } else { LONGEST_WAIT };
    while INSIDE.load(Ordering::SeqCst) > 0 {
        if start.elapsed() > longest {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // On a thread of its own: thread-local values of this one, which wgpu uses, may be gone already.
    let wait = move || {
        DEPTH.set(1);
        for gpu in devices.iter().filter_map(|open| open.gpu.upgrade()) {
            let timeout = Some(longest.saturating_sub(start.elapsed()));
            let _ = polled(|| gpu.device.poll(PollType::Wait { submission_index: None, timeout }));
        }
    };
    if let Ok(waiting) = std::thread::Builder::new().spawn(wait) {
        let _ = waiting.join();
    }
}
