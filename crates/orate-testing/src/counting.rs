//! An allocator that counts, for tests of what is asked for and what is given back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, and numbers of what a program asks of it: `#[global_allocator] static ALLOCATOR:
/// Counting = Counting;`. In a program without that line all numbers are 0.
pub struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static ASKED_HERE: Cell<usize> = const { Cell::new(0) };
    // What other threads took may be given back here, so these may be negative.
    static BYTES_HERE: Cell<isize> = const { Cell::new(0) };
    static PEAK_HERE: Cell<isize> = const { Cell::new(0) };
}

impl Counting {
    /// How many blocks were asked for so far, by all threads; one that grows or shrinks counts again.
    pub fn asked() -> usize {
        ASKED.load(Relaxed)
    }

    /// How many blocks this thread asked for so far.
    pub fn asked_here() -> usize {
        ASKED_HERE.get()
    }

    /// Blocks that are in use now.
    pub fn blocks() -> usize {
        BLOCKS.load(Relaxed)
    }

    /// Bytes that `run` had in use at most, all threads counted.
    pub fn peak(run: impl FnOnce()) -> usize {
        let before = BYTES.load(Relaxed);
        PEAK.store(before, Relaxed);
        run();
        PEAK.load(Relaxed) - before
    }

    /// Most bytes that `run` had in use in this thread, so that tests can run side by side.
    pub fn peak_here(run: impl FnOnce()) -> usize {
        let before = BYTES_HERE.get();
        PEAK_HERE.set(before);
        run();
        (PEAK_HERE.get() - before) as usize
    }
}

fn ask() {
    ASKED.fetch_add(1, Relaxed);
    // A thread that ends has no counter any more.
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

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ask();
        BLOCKS.fetch_add(1, Relaxed);
        take(layout.size());
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ask();
        BLOCKS.fetch_add(1, Relaxed);
        take(layout.size());
        // SAFETY: by the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BLOCKS.fetch_sub(1, Relaxed);
        give_back(layout.size());
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ask();
        // Both blocks may be there for a moment.
        take(size);
        give_back(layout.size());
        // SAFETY: by the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}
