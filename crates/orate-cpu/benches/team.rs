//! Cost of a fork-join, warm and after a pause that sends the workers to sleep, and runs with a slow worker.
//!
//! `cargo bench -p orate-cpu --bench team`

use orate_cpu::Team;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A run in which every thread must take part: its chunks wait for each other.
fn meet(team: &Team) -> f64 {
    let arrived = AtomicUsize::new(0);
    let start = Instant::now();
    team.run(team.threads(), &|_, _| {
        arrived.fetch_add(1, Ordering::AcqRel);
        while arrived.load(Ordering::Acquire) < team.threads() {
            std::hint::spin_loop();
        }
    });
    start.elapsed().as_secs_f64() * 1e6
}

/// Milliseconds of a run of `chunks` chunks that sleep for a millisecond, and four on the last thread. Sleeps
/// need no core, so other processes hardly matter.
fn with_slow_worker(team: &Team, chunks: usize) -> f64 {
    let start = Instant::now();
    team.run(chunks, &|worker, _| {
        let factor = if worker.index() + 1 == team.threads() { 4 } else { 1 };
        std::thread::sleep(factor * Duration::from_millis(1));
    });
    start.elapsed().as_secs_f64() * 1e3
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    for threads in [2, 4, 8, 16].into_iter().filter(|&n| n <= cores) {
        let team = Team::new(threads).expect("threads can be started");
        let warm = median((0..100_000).map(|_| meet(&team)).collect());
        let asleep = (0..300).map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            meet(&team)
        });
        let asleep = median(asleep.collect());
        println!("{threads} threads meet: warm {warm:.2} µs, after a sleep {asleep:.1} µs");
        for chunks in [4, 8, 16, 32] {
            let time = median((0..100).map(|_| with_slow_worker(&team, chunks)).collect());
            let least = chunks as f64 / (threads as f64 - 0.75);
            println!("… one four times slower, {chunks} chunks: {time:.1} ms; evenly {least:.1}");
        }
    }
}
