//! Shared by the benches: peak FMA speed, and thread CPU time.

use orate_cpu::simd::{Kernel, Simd};
#[cfg(not(target_os = "linux"))]
use std::time::Instant;

/// Multiply-adds on registers only.
pub struct Peak(pub usize);

impl Kernel for Peak {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let (x, y) = (s.splat(std::hint::black_box(0.5)), s.splat(std::hint::black_box(0.25)));
        let mut sums = [s.splat(0.0); 12];
        let start = thread_seconds();
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = s.fma(x, y, *sum);
            }
        }
        let seconds = thread_seconds() - start;
        std::hint::black_box(sums.iter().fold(0.0, |a, &v| a + s.reduce_add(v)));
        (self.0 * sums.len() * S::LANES * 2) as f64 / seconds / 1e9
    }
}

/// CPU time of this thread in seconds, so that time taken by other processes does not count.
#[cfg(target_os = "linux")]
pub fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(not(target_os = "linux"))]
pub fn thread_seconds() -> f64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}
