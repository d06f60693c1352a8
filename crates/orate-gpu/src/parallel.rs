//! Runs work items of unequal size on several threads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns `f(0), f(1), … f(n − 1)`, computed on at most `most` threads and not more than the machine has,
/// including the caller. Each takes the next item when it is done with one.
pub(crate) fn map<T: Send + Sync>(n: usize, most: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let results: Vec<OnceLock<T>> = (0..n).map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(result) = results.get(i) else { return };
            result.get_or_init(|| f(i));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(most).min(n);
    std::thread::scope(|s| {
        for _ in 1..threads {
            // If the system has no more threads, the existing ones do all the work.
            if std::thread::Builder::new().spawn_scoped(s, work).is_err() {
                break;
            }
        }
        work();
    });
    results.into_iter().map(|r| r.into_inner().expect("every piece was taken")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order() {
        for n in [0, 1, 2, 100] {
            for most in [1, 3, usize::MAX] {
                assert_eq!(map(n, most, |i| i * i), (0..n).map(|i| i * i).collect::<Vec<_>>());
            }
        }
    }
}
