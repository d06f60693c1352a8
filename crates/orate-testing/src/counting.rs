//! A counting allocator, for tests of allocations and leaks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator with counters: `#[global_allocator] static ALLOCATOR: Counting = Counting;`. In a
/// program without that line all counts are 0.
pub struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static ASKED_HERE: Cell<usize> = const { Cell::new(0) };
    // May be negative: this thread may free memory that others allocated.
    static BYTES_HERE: Cell<isize> = const { Cell::new(0) };
    static PEAK_HERE: Cell<isize> = const { Cell::new(0) };
}

impl Counting {
    /// Number of allocations so far by all threads; a reallocation counts again.
    pub fn asked() -> usize {
        ASKED.load(Relaxed)
    }

    /// Number of allocations so far by this thread.
    pub fn asked_here() -> usize {
        ASKED_HERE.get()
    }

    /// Number of live allocations.
    pub fn blocks() -> usize {
        BLOCKS.load(Relaxed)
    }

    /// Peak of allocated bytes during `run`, over all threads.
    pub fn peak(run: impl FnOnce()) -> usize {
        let before = BYTES.load(Relaxed);
        PEAK.store(before, Relaxed);
        run();
        PEAK.load(Relaxed) - before
    }

    /// Peak of bytes allocated by this thread during `run`, so that tests can run in parallel.
    pub fn peak_here(run: impl FnOnce()) -> usize {
        let before = BYTES_HERE.get();
        PEAK_HERE.set(before);
        run();
        (PEAK_HERE.get() - before) as usize
    }
}

fn ask() {
    ASKED.fetch_add(1, Relaxed);
    // A thread that is ending has no counter any more.
    let _ = ASKED_HERE.try_with(|n| n.set(n.get() + 1));
}

fn take(bytes: usize) {
    PEAK.fetch_max(BYTES.fetch_add(bytes, Relaxed) + bytes, Relaxed);
    let _ = BYTES_HERE.try_with(|here| {
        here.set(here.get() + bytes as isize);
        let _ = PEAK_HERE.try_with(|peak| peak.set(peak.get().max(here.get())));
    });
}

fn give_back(bytes: usize) {
    BYTES.fetch_sub(bytes, Relaxed);
    let _ = BYTES_HERE.try_with(|here| here.set(here.get() - bytes as isize));
}

// SAFETY: everything is passed to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ask();
        BLOCKS.fetch_add(1, Relaxed);
        take(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ask();
        BLOCKS.fetch_add(1, Relaxed);
        take(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BLOCKS.fetch_sub(1, Relaxed);
        give_back(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ask();
        // Both blocks may exist for a moment.
        take(size);
        give_back(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.realloc(at, layout, size) }
    }
}
