//! Speed of matmuls with weights in blocks, compared with the read bandwidth for the same bytes.
//!
//! `cargo bench -p orate-cpu --bench blocks [-- part of a shape's name]`; `ORATE_CPU_ISA` forces an
//! instruction set. Weights are cold: the bench cycles through 512 MB of them. Prints medians, on one thread
//! and on two.

use orate_cpu::kernels::matmul::blocks::{BlockFormat, PackedBlocks, matmul, scratch_len};
use orate_cpu::kernels::matmul::{Epilogue, Rows};
use orate_cpu::simd::{Kernel, Simd};
use orate_cpu::{Isa, Team};
use std::time::Instant;

const CASES: &[(&str, usize, usize, usize)] = &[
    ("talker q, k, v", 1, 1024, 4096),
    ("talker out", 1, 2048, 1024),
    ("talker gate, up", 1, 1024, 6144),
    ("talker down", 1, 3072, 1024),
    ("head", 1, 1024, 3072),
    ("eight rows", 8, 1024, 6144),
    ("prompt", 48, 1024, 6144),
    ("ve up", 72, 512, 2048),
    ("flow q", 702, 256, 512),
    ("flow out", 702, 512, 256),
    ("flow up", 702, 256, 1024),
    ("flow down", 702, 1024, 256),
];

const ROUNDS: usize = 9;

/// Sums up memory at full vector width, to measure bandwidth.
struct Read<'a>(&'a [f32]);

impl Kernel for Read<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.splat(0.0); 4];
        for x in self.0.chunks_exact(4 * S::LANES) {
            s.prefetch(x.as_ptr().wrapping_add(2048));
            s.prefetch(x.as_ptr().wrapping_add(2048 + 16));
            s.prefetch(x.as_ptr().wrapping_add(2048 + 32));
            s.prefetch(x.as_ptr().wrapping_add(2048 + 48));
            for (sum, x) in sums.iter_mut().zip(x.chunks_exact(S::LANES)) {
                // SAFETY: `x` has LANES floats.
                *sum = s.add(*sum, unsafe { s.load(x.as_ptr()) });
            }
        }
        sums.iter().map(|&v| s.reduce_add(v)).sum()
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let isa = Isa::detect().expect("ORATE_CPU_ISA names a set of this machine");
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let teams = [1, 2].map(|n| Team::new(n).expect("threads start"));
    let memory = vec![1.0_f32; 128 << 20];
    println!("{isa}; GB/s of weights and GOP/s on 1 | 2 threads");
    let read = teams.each_ref().map(|team| {
        let times = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            let parts = 64 * team.threads();
            team.run(parts, &|_, i| {
                std::hint::black_box(
                    isa.run(Read(&memory[i * (memory.len() / parts)..][..memory.len() / parts])),
                );
            });
            start.elapsed().as_secs_f64()
        });
        memory.len() as f64 * 4.0 / median(times.collect()) / 1e9
    });
    println!("{:<34} {:6.1} | {:6.1} GB/s", "reading", read[0], read[1]);
    drop(memory);
    for &(name, m, k, n) in CASES.iter().filter(|c| c.0.contains(&wanted)) {
        for format in BlockFormat::ALL {
            // Blocks as of a file: rounding hundreds of megabytes takes longer than timing them.
            let stored: Vec<u8> = (0..k * n * format.stored_bytes() / format.block_len())
                .map(|i| (i * 7919 % 1009 % 60) as u8)
                .collect();
            let pack = || PackedBlocks::pack_stored(format, &teams[1], (k, n), &stored);
            let first = pack();
            let bytes = first.bytes_read();
            let mut copies = vec![first];
            // Many rows take longer than reading weights from memory.
            let cold = if m < 100 { 512 << 20 } else { 4 << 20 };
            while copies.len() * bytes < cold {
                copies.push(pack());
            }
            let x: Vec<f32> = (0..m * k).map(|i| (i * 31 % 97) as f32 / 97.0 - 0.5).collect();
            let (mut y, mut scratch) = (vec![0.0; m * n], vec![0.0; scratch_len(m, k)]);
            let seconds = teams.each_ref().map(|team| {
                let times = (0..ROUNDS).map(|_| {
                    let start = Instant::now();
                    for w in &copies {
                        matmul(
                            isa,
                            team,
                            Rows::Dense { x: &x, chosen_for: m },
                            w,
                            &Epilogue::NONE,
                            &mut y,
                            &mut scratch,
                        );
                    }
                    start.elapsed().as_secs_f64() / copies.len() as f64
                });
                median(times.collect())
            });
            let gb = seconds.map(|s| bytes as f64 / s / 1e9);
            let gop = seconds.map(|s| (2 * m * k * n) as f64 / s / 1e9);
            println!(
                "{:<16} [{m:>2}, {k:>4}] x {n:>4} {} {:6.1} | {:6.1} GB/s  {:6.0} | {:6.0} GOP/s",
                name,
                format.name(),
                gb[0],
                gb[1],
                gop[0],
                gop[1]
            );
        }
    }
}
