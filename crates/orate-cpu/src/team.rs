//! A thread team for work that is split into chunks, cheap enough to use for every op.
//!
//! One word, `left`, is the number of chunks of the current run that are not taken yet. Taking a chunk is one
//! compare-and-swap on it; zero means that there is nothing to do. Only a thread that has taken a chunk may
//! read the task, and the caller waits until every chunk is finished. So a worker that comes too late finds
//! `left` at zero, touches nothing, and is not waited for.
//!
//! Idle workers spin for a moment, because the next op usually follows within microseconds, and then sleep
//! until the next run.
//!
//! Every worker measures its time for a chunk against the caller's. One on a slow core leaves the last chunks
//! of a run to the others if they will finish them sooner than it would finish one ([`Pace`]).

use orate_graph::HomeProcess;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Time after which an idle worker starts to yield, and time after which it sleeps. Within a network the next
/// op follows much sooner; between sentences no thread should spin.
const SPIN: Duration = Duration::from_micros(60);
const SLEEP: Duration = Duration::from_micros(150);

/// Value of `left` that tells workers to end.
const STOP: usize = usize::MAX;

/// Identifies the thread that runs a chunk: a number below [`Team::threads`], different for every thread of a
/// run.
///
/// Selects a part of scratch memory. Must never affect results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Worker(usize);

impl Worker {
    /// The number; the caller of [`Team::run`] is 0.
    #[inline]
    pub fn index(self) -> usize {
        self.0
    }
}

/// A fixed set of threads, including the caller, that run chunks of work together.
///
/// ```
/// use orate_cpu::Team;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let team = Team::new(2)?;
/// let sum = AtomicUsize::new(0);
/// team.run(100, &|_worker, chunk| {
///     sum.fetch_add(chunk, Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 4950);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    threads: usize,
    /// Held by the one run that may use the workers.
    busy: AtomicBool,
    /// The process in which the workers exist.
    home: HomeProcess,
}

impl Team {
    /// Creates a team of `threads` threads: the caller of [`run`](Team::run) and `threads - 1` workers, which
    /// start here and end when the team is dropped.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    ///
    /// # Panics
    /// `threads` is zero.
    pub fn new(threads: usize) -> Result<Team, std::io::Error> {
        assert!(threads > 0, "a team needs at least one thread: the caller");
        let beds = (1..threads).map(|_| Bed::default()).collect();
        let shared = Arc::new(Shared {
            left: AtomicUsize::new(0),
            task: UnsafeCell::new(Task { run: &|_, _| {}, chunks: 0, number: 0, last_pace: 0.0 }),
            speed: AtomicU32::new(threads as u32 * SPEED),
            unfinished: Line(AtomicUsize::new(0)),
            asleep: Line(AtomicUsize::new(0)),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            beds,
        });
        let (busy, home) = (AtomicBool::new(false), HomeProcess::current());
        let mut team = Team { shared, workers: Vec::new(), threads, busy, home };
        for index in 1..threads {
            let shared = Arc::clone(&team.shared);
            // On an error `team` is dropped, which ends the workers that already run.
            let worker = std::thread::Builder::new()
                .name(format!("orate-cpu-{index}"))
                .spawn(move || shared.live(Worker(index)))?;
            team.workers.push(worker);
        }
        Ok(team)
    }

    /// Number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The process in which the workers exist.
    pub(crate) fn home(&self) -> HomeProcess {
        self.home
    }

    /// Calls `f(worker, chunk)` once for each `chunk` below `chunks` and returns when all calls are done.
    ///
    /// Threads take chunks in ascending order. A run executes all its chunks on the calling thread if another
    /// run is in progress (on another thread, or in an enclosing chunk), or in a process forked from the one
    /// that made the team. Allocates nothing.
    ///
    /// # Panics
    /// A chunk panics. The other chunks still run, then the first panic continues in the caller. The team
    /// stays usable.
    #[inline]
    pub fn run(&self, chunks: usize, f: &(dyn Fn(Worker, usize) + Sync)) {
        match chunks {
            0 => {}
            1 => f(Worker(0), 0),
            _ => self.run_many(chunks, f),
        }
    }

    fn run_many(&self, chunks: usize, f: &(dyn Fn(Worker, usize) + Sync)) {
        assert!(chunks < STOP, "too many chunks");
        if self.threads == 1 || self.busy.swap(true, Ordering::Acquire) {
            return run_alone(chunks, f);
        }
        let shared = &*self.shared;
        // SAFETY: the lifetime is erased, but only a thread that has taken a chunk uses the reference, and
        // this function does not return before all chunks are finished.
        let run = unsafe {
            std::mem::transmute::<&(dyn Fn(Worker, usize) + Sync), &'static (dyn Fn(Worker, usize) + Sync)>(f)
        };
        // SAFETY: `left` is zero and the chunks of the last run are finished, so no other thread reads the
        // task.
        let task = unsafe { &mut *shared.task.get() };
        let number = task.number.wrapping_add(1);
        *task = Task { run, chunks, number, ..*task };
        shared.unfinished.0.store(chunks, Ordering::Relaxed);
        // Publishes the task. Sequentially consistent, like the following read of `asleep`: a worker that
        // goes to sleep first increments `asleep` and then reads `left`, so at least one side sees the other.
        shared.left.swap(chunks, Ordering::SeqCst);
        shared.wake(chunks - 1);
        let mut pace = Pace::new();
        shared.work(Worker(0), &mut pace);
        shared.wait();
        // SAFETY: all chunks are finished, so no other thread reads the task.
        unsafe { (*shared.task.get()).last_pace = pace.last.1 };
        let panic = match shared.panicked.load(Ordering::Relaxed) {
            true => shared.take_panic(),
            false => None,
        };
        self.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // After a fork the workers exist only in the parent: joining them would hang.
            return std::mem::forget(std::mem::take(&mut self.workers));
        }
        self.shared.left.swap(STOP, Ordering::SeqCst);
        self.shared.wake_all();
        for worker in self.workers.drain(..) {
            // A worker cannot panic: chunks run under `catch_unwind`.
            let _ = worker.join();
        }
    }
}

/// [`Team::run`] on this thread only, with the same guarantees.
fn run_alone(chunks: usize, f: &(dyn Fn(Worker, usize) + Sync)) {
    let mut first = None;
    for chunk in 0..chunks {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| f(Worker(0), chunk))) {
            first.get_or_insert(panic);
        }
    }
    if let Some(panic) = first {
        resume_unwind(panic);
    }
}

/// The current run. Read only by threads that have taken one of its chunks.
#[derive(Clone, Copy)]
struct Task {
    run: &'static (dyn Fn(Worker, usize) + Sync),
    chunks: usize,
    /// Number of the run.
    number: u32,
    /// Nanoseconds that the caller of the run before took for a chunk; 0 if it took none.
    last_pace: f32,
}

/// Speed of a thread that is as fast as the caller, in [`Shared::speed`].
const SPEED: u32 = 64;

/// Time for a chunk, relative to the caller's, from which a worker counts as slow. Threads of one kind of
/// core stay below it, even if chunks are unequal.
const SLOW: f32 = 1.5;

/// How fast a thread is.
#[derive(Debug)]
struct Pace {
    /// Its time for a chunk, relative to that of the caller: an average over runs.
    ratio: f32,
    /// What of this is in [`Shared::speed`].
    speed: u32,
    /// The last run with chunks of this thread, and nanoseconds for each of them.
    last: (u32, f32),
}

impl Pace {
    fn new() -> Pace {
        Pace { ratio: 1.0, speed: SPEED, last: (0, 0.0) }
    }

    /// Compares the last run with the caller's pace in it, `theirs`, in nanoseconds for a chunk.
    fn compare(&mut self, theirs: f32) {
        if theirs > 0.0 {
            // Bounded, so that a run in which one of the two lost its core counts no more than others.
            let change = (self.last.1 / theirs / self.ratio - 1.0).clamp(-0.125, 0.125);
            self.ratio = (self.ratio * (1.0 + change / 2.0)).clamp(1.0 / 16.0, 16.0);
        }
    }

    /// Whether the others, of speed `others`, finish `left` chunks, and half of those they are at, sooner
    /// than this thread would finish one.
    fn is_too_slow(&self, left: usize, others: f32) -> bool {
        self.ratio > SLOW && self.ratio * others > left as f32 + 0.5 * others
    }
}

/// Measures the chunks that a thread takes one after the other in a run.
struct Measured {
    run: u32,
    since: Instant,
    chunks: u32,
}

impl Measured {
    fn end(self, now: Instant, pace: &mut Pace) {
        let nanoseconds = now.duration_since(self.since).as_nanos() as f32;
        pace.last = (self.run, nanoseconds / self.chunks as f32);
    }
}

/// Separates its content from neighboring cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

/// State of a sleeping worker.
#[derive(Debug, Default)]
struct Bed {
    /// Set by the worker before it sleeps; cleared by either the worker or the thread that wakes it.
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

#[repr(align(128))]
struct Shared {
    /// Chunks that are not taken yet, or [`STOP`].
    left: AtomicUsize,
    /// Next to `left`, since a thread that has taken a chunk reads it next.
    task: UnsafeCell<Task>,
    /// Sum of the speeds of all threads, in units of 1 / [`SPEED`] of the caller's.
    speed: AtomicU32,
    /// Chunks that are not finished.
    unfinished: Line<AtomicUsize>,
    /// Number of workers that sleep, or are about to.
    asleep: Line<AtomicUsize>,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    beds: Box<[Bed]>,
}

// SAFETY: `task` is the only part that is not `Sync` by itself. It is written while `left` and `unfinished`
// are zero, by the one thread that holds `Team::busy`, and read only by threads that have taken a chunk.
// Taking one synchronizes with the write, and finishing it (release on `unfinished`) happens before the next
// write.
unsafe impl Sync for Shared {}
// SAFETY: the reference in `task` is to something `Sync`; nothing else here is bound to a thread.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("left", &self.left)
            .field("asleep", &self.asleep.0)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Main loop of a worker.
    fn live(&self, me: Worker) {
        let bed = &self.beds[me.0 - 1];
        bed.thread.get_or_init(std::thread::current);
        let mut pace = Pace::new();
        while self.idle(bed) {
            self.work(me, &mut pace);
        }
    }

    /// Takes and runs chunks until none is left for this thread.
    fn work(&self, me: Worker, pace: &mut Pace) {
        let mut measured: Option<Measured> = None;
        let mut insists = false;
        let mut left = self.left.load(Ordering::Relaxed);
        while left != 0 && left != STOP {
            if !insists && pace.ratio > SLOW && self.is_too_slow(pace, left) {
                if let Some(measured) = measured.take() {
                    measured.end(Instant::now(), pace);
                }
                (left, insists) = self.stand_back(pace, left);
                continue;
            }
            // Acquire: the value comes from the caller's publishing write, directly or through
            // read-modify-writes of other threads, so the task is visible. It does not matter if `left` was
            // read in an earlier run: if the exchange succeeds, it takes a chunk of the current run.
            match self.left.compare_exchange_weak(left, left - 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    // SAFETY: this thread holds a chunk, so the task does not change until it has finished
                    // the chunk.
                    let task = unsafe { *self.task.get() };
                    match &mut measured {
                        Some(measured) if measured.run == task.number => measured.chunks += 1,
                        _ => {
                            let (run, since) = (task.number, Instant::now());
                            if let Some(measured) = measured.replace(Measured { run, since, chunks: 1 }) {
                                measured.end(since, pace);
                            }
                            if run == pace.last.0.wrapping_add(1) {
                                pace.compare(task.last_pace);
                                self.publish(pace);
                            }
                        }
                    }
                    let chunk = task.chunks - left;
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (task.run)(me, chunk))) {
                        self.keep_panic(panic);
                    }
                    self.unfinished.0.fetch_sub(1, Ordering::Release);
                    left = self.left.load(Ordering::Relaxed);
                }
                Err(now) => left = now,
            }
        }
        if let Some(measured) = measured {
            measured.end(Instant::now(), pace);
        }
    }

    #[cold]
    fn is_too_slow(&self, pace: &Pace, left: usize) -> bool {
        let others = self.speed.load(Ordering::Relaxed).saturating_sub(pace.speed);
        pace.is_too_slow(left, others as f32 / SPEED as f32)
    }

    /// Adds a change of speed to the sum.
    #[inline]
    fn publish(&self, pace: &mut Pace) {
        let speed = (SPEED as f32 / pace.ratio) as u32;
        if speed.abs_diff(pace.speed) > SPEED / 16 {
            self.speed.fetch_add(speed.wrapping_sub(pace.speed), Ordering::Relaxed);
            pace.speed = speed;
        }
    }

    /// Leaves `left` chunks to the others. Returns the chunks of the next run, zero when all are taken, or
    /// what is left after the time that this thread would have needed for one. Then the others are not as
    /// fast as expected, and it must help: the second value is true.
    #[cold]
    fn stand_back(&self, pace: &mut Pace, mut left: usize) -> (usize, bool) {
        // Cores may become faster, which only taking a chunk would show.
        pace.ratio += (1.0 - pace.ratio) / 256.0;
        let since = Instant::now();
        loop {
            for _ in 0..32 {
                std::hint::spin_loop();
                match self.left.load(Ordering::Relaxed) {
                    now if now == 0 || now > left => return (now, false),
                    now => left = now,
                }
            }
            let waited = since.elapsed();
            if waited.as_nanos() as f32 > pace.last.1 {
                return (left, true);
            }
            if waited > SPIN {
                std::thread::yield_now();
            }
        }
    }

    /// Waits for chunks that other threads still run.
    fn wait(&self) {
        let mut patience = Patience::new();
        while self.unfinished.0.load(Ordering::Acquire) != 0 {
            // The worker may have lost its core and need this one.
            if patience.pause() != Pause::Spun {
                std::thread::yield_now();
            }
        }
    }

    /// Returns true when there are chunks to take, and false when the team ends.
    fn idle(&self, bed: &Bed) -> bool {
        let mut patience = Patience::new();
        loop {
            match self.left.load(Ordering::Relaxed) {
                0 => {}
                STOP => return false,
                _ => return true,
            }
            match patience.pause() {
                Pause::Spun => {}
                Pause::Long => std::thread::yield_now(),
                Pause::TooLong => {
                    self.sleep(bed);
                    patience = Patience::new();
                }
            }
        }
    }

    /// Sleeps until woken for a run or for the end.
    fn sleep(&self, bed: &Bed) {
        bed.asleep.store(true, Ordering::Release);
        self.asleep.0.fetch_add(1, Ordering::SeqCst);
        if self.left.load(Ordering::SeqCst) != 0 {
            // A run began in the meantime and may not have seen this worker go to sleep.
            if bed.asleep.swap(false, Ordering::AcqRel) {
                self.asleep.0.fetch_sub(1, Ordering::SeqCst);
            }
            return;
        }
        while bed.asleep.load(Ordering::Acquire) {
            std::thread::park();
        }
        // Waking takes microseconds of the waking thread, so each woken worker wakes the next two.
        match self.left.load(Ordering::Relaxed) {
            0 => {}
            STOP => self.wake_all(),
            _ => self.wake_some(2),
        }
    }

    /// Called at the start of a run, when all awake workers are idle: ensures that `wanted` workers (or all)
    /// are awake or being woken. Wakes up to two, who wake others while chunks are left.
    #[inline]
    fn wake(&self, wanted: usize) {
        let asleep = self.asleep.0.load(Ordering::SeqCst);
        if asleep != 0 {
            let awake = self.beds.len().saturating_sub(asleep);
            self.wake_some(wanted.min(self.beds.len()).saturating_sub(awake).min(2));
        }
    }

    fn wake_all(&self) {
        self.wake_some(self.beds.len());
    }

    #[cold]
    fn wake_some(&self, mut count: usize) {
        for bed in &self.beds {
            if count == 0 {
                break;
            }
            if bed.asleep.load(Ordering::Relaxed) && bed.asleep.swap(false, Ordering::AcqRel) {
                self.asleep.0.fetch_sub(1, Ordering::SeqCst);
                if let Some(thread) = bed.thread.get() {
                    thread.unpark();
                }
                count -= 1;
            }
        }
    }

    #[cold]
    fn keep_panic(&self, panic: Box<dyn Any + Send>) {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        self.panicked.store(true, Ordering::Relaxed);
    }

    #[cold]
    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.panicked.store(false, Ordering::Relaxed);
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Waits in steps, and reports how long it has waited.
struct Patience {
    spins: u32,
    since: Option<Instant>,
}

#[derive(PartialEq, Eq)]
enum Pause {
    /// Spun for a moment.
    Spun,
    /// Longer than [`SPIN`]: yielded the core.
    Long,
    /// Longer than [`SLEEP`].
    TooLong,
}

impl Patience {
    fn new() -> Patience {
        Patience { spins: 0, since: None }
    }

    /// Makes one short pause. Reads the clock only now and then.
    #[inline]
    fn pause(&mut self) -> Pause {
        std::hint::spin_loop();
        self.spins += 1;
        if !self.spins.is_multiple_of(32) {
            return Pause::Spun;
        }
        match self.since.get_or_insert_with(Instant::now).elapsed() {
            t if t > SLEEP => Pause::TooLong,
            t if t > SPIN => Pause::Long,
            _ => Pause::Spun,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `chunks` chunks and checks that each ran once, with a valid worker.
    fn check_run(team: &Team, chunks: usize) {
        let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
        team.run(chunks, &|worker, chunk| {
            assert!(worker.index() < team.threads());
            counts[chunk].fetch_add(1, Ordering::Relaxed);
        });
        for (chunk, count) in counts.iter().enumerate() {
            assert_eq!(count.load(Ordering::Relaxed), 1, "chunk {chunk} of {chunks}");
        }
    }

    #[test]
    fn every_chunk_runs_once() {
        for threads in [1, 2, 3, 8] {
            let team = Team::new(threads).unwrap();
            for chunks in [0, 1, 2, 3, 7, 64, 1000] {
                check_run(&team, chunks);
            }
        }
    }

    #[test]
    fn many_tiny_runs() {
        let team = Team::new(4).unwrap();
        let sum = AtomicUsize::new(0);
        for run in 0..50_000 {
            // A local that dies with the loop body: a late worker must not touch it.
            let add = run % 3 + 1;
            team.run(run % 6, &|_, _| {
                sum.fetch_add(add, Ordering::Relaxed);
            });
        }
        let expected: usize = (0..50_000).map(|run| (run % 6) * (run % 3 + 1)).sum();
        assert_eq!(sum.into_inner(), expected);
    }

    #[test]
    fn what_a_chunk_wrote_is_visible_after_the_run() {
        let team = Team::new(3).unwrap();
        let mut data = vec![0usize; 4096];
        for round in 1..200 {
            let pointer = AtomicUsize::new(data.as_mut_ptr() as usize);
            team.run(64, &|_, chunk| {
                let start = pointer.load(Ordering::Relaxed) as *mut usize;
                for i in chunk * 64..(chunk + 1) * 64 {
                    // SAFETY: chunks own disjoint pieces of `data`, which outlives the run.
                    unsafe { *start.add(i) += i * round };
                }
            });
        }
        let rounds: usize = (1..200).sum();
        assert!(data.iter().enumerate().all(|(i, &x)| x == i * rounds));
    }

    #[test]
    fn two_workers_never_share_an_index() {
        let team = Team::new(4).unwrap();
        let used: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
        for _ in 0..2000 {
            team.run(16, &|worker, _| {
                assert!(!used[worker.index()].swap(true, Ordering::Acquire));
                std::hint::spin_loop();
                used[worker.index()].store(false, Ordering::Release);
            });
        }
    }

    #[test]
    fn callers_on_several_threads() {
        let team = Team::new(3).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..2000).for_each(|i| check_run(&team, i % 9)));
            }
        });
    }

    #[test]
    fn a_run_inside_a_chunk() {
        let team = Team::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        team.run(10, &|_, outer| {
            team.run(10, &|_, inner| {
                sum.fetch_add(outer * 10 + inner, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), (0..100).sum());
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_chunks_ran() {
        for threads in [1, 3] {
            let team = Team::new(threads).unwrap();
            for bad in [0, 7, 49] {
                let ran = AtomicUsize::new(0);
                let result = catch_unwind(AssertUnwindSafe(|| {
                    team.run(50, &|_, chunk| {
                        ran.fetch_add(1, Ordering::Relaxed);
                        // Does not call the panic hook, which would print.
                        if chunk == bad {
                            resume_unwind(Box::new("bad chunk"));
                        }
                    });
                }));
                assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "bad chunk");
                assert_eq!(ran.into_inner(), 50);
                check_run(&team, 50);
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let team = Team::new(8).unwrap();
        for _ in 0..5 {
            wait_until_asleep(&team);
            // Eight chunks that wait for each other: passes only if every worker takes one.
            let arrived = AtomicUsize::new(0);
            team.run(8, &|_, _| {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < 8 {
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_slow_thread_holds_up_one_chunk() {
        let team = Team::new(3).unwrap();
        // The first chunk ends after all others: passes only if other threads take them.
        let finished = AtomicUsize::new(0);
        team.run(50, &|_, chunk| {
            while chunk == 0 && finished.load(Ordering::SeqCst) < 49 {
                std::thread::yield_now();
            }
            finished.fetch_add(1, Ordering::SeqCst);
        });
    }

    /// Runs `chunks` chunks that take one millisecond, and eight on the last of three threads. Returns the
    /// number of chunks that were left when that one took its last.
    fn run_with_slow_worker(team: &Team, chunks: usize) -> usize {
        let last = AtomicUsize::new(0);
        team.run(chunks, &|worker, chunk| {
            let slow = worker.index() == 2;
            if slow {
                last.fetch_max(chunk + 1, Ordering::Relaxed);
            }
            // Sleeps need no core, so other processes hardly change the times.
            std::thread::sleep(Duration::from_millis(if slow { 8 } else { 1 }));
        });
        chunks - last.into_inner()
    }

    #[test]
    fn a_slow_worker_leaves_the_last_chunks_to_others() {
        let team = Team::new(3).unwrap();
        for _ in 0..40 {
            run_with_slow_worker(&team, 20);
        }
        // Two threads take two chunks a millisecond, so they finish in time if they begin with eight left.
        let held_up = (0..20).filter(|_| run_with_slow_worker(&team, 20) < 6).count();
        assert!(held_up <= 5, "{held_up} of 20 runs waited for a slow worker");
        // It still takes its share of long runs.
        assert!((0..4).any(|_| run_with_slow_worker(&team, 48) < 48));
    }

    #[test]
    fn a_slow_worker_helps_when_others_are_late() {
        let team = Team::new(3).unwrap();
        for _ in 0..40 {
            run_with_slow_worker(&team, 20);
        }
        // As above: the first chunk ends after all others. Two of the three threads may be in such chunks.
        let finished = AtomicUsize::new(0);
        team.run(12, &|_, chunk| {
            while chunk < 2 && finished.load(Ordering::SeqCst) < 10 {
                std::thread::yield_now();
            }
            finished.fetch_add(1, Ordering::SeqCst);
        });
    }

    #[test]
    fn paces() {
        let mut pace = Pace::new();
        // Two other threads as fast as the caller.
        assert!(!pace.is_too_slow(1, 2.0));
        for run in 0..100 {
            pace.last = (run, 4000.0);
            pace.compare(1000.0);
        }
        assert!((3.9..4.1).contains(&pace.ratio), "{}", pace.ratio);
        // In the time of a chunk here, the others finish theirs, half on average, and seven more.
        assert!(pace.is_too_slow(6, 2.0) && !pace.is_too_slow(8, 2.0));
        // One long chunk hardly counts, and what the caller did not measure not at all.
        let before = pace.ratio;
        pace.last = (100, 1e9);
        pace.compare(1000.0);
        pace.compare(0.0);
        assert!(pace.ratio < 1.2 * before);
        for run in 0..100 {
            pace.last = (run, 1000.0);
            pace.compare(1000.0);
        }
        assert!((0.95..1.05).contains(&pace.ratio) && !pace.is_too_slow(1, 2.0), "{}", pace.ratio);
    }

    #[test]
    fn runs_at_the_moment_of_falling_asleep() {
        let team = Team::new(3).unwrap();
        for round in 0..400 {
            std::thread::sleep(Duration::from_micros(round % 300));
            check_run(&team, 5);
        }
    }

    #[test]
    fn teams_end() {
        drop(Team::new(4).unwrap());
        let team = Team::new(4).unwrap();
        check_run(&team, 8);
        drop(team);
        let team = Team::new(4).unwrap();
        wait_until_asleep(&team);
        drop(team);
    }

    fn wait_until_asleep(team: &Team) {
        while team.shared.asleep.0.load(Ordering::SeqCst) < team.threads() - 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
