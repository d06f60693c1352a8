//! Speed of attention on the shapes of the models, on one thread.
//!
//! `cargo bench -p orate-cpu --bench attention [-- part of a shape's name]`; `ORATE_CPU_ISA` forces an
//! instruction set. Time is CPU time of the thread, so other processes hardly count. Prints GFLOP/s of the
//! two matmuls, their share of a pure FMA loop, and GB/s of keys and values.

mod common;

use common::{Peak, thread_seconds};
use orate_cpu::kernels::attention::{Attention, Mask, Relative, Sequence};
use orate_cpu::{Isa, Team};

struct Case {
    name: &'static str,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    mask: Mask,
    relative: bool,
}

const fn case(name: &'static str, queries: usize, keys: usize, heads: usize, dim: usize) -> Case {
    Case { name, queries, keys, heads, kv_heads: heads, dim, mask: Mask::None, relative: false }
}

const CASES: &[Case] = &[
    case("text, step", 72, 80, 4, 64),
    case("style, step", 72, 50, 2, 128),
    case("text 3, step", 144, 80, 8, 64),
    case("style, text encoder", 80, 50, 2, 128),
    Case { relative: true, ..case("text encoder", 80, 80, 4, 64) },
    Case { mask: Mask::Window { left: 71 }, ..case("codec, 25 frames", 25, 96, 16, 64) },
    Case { kv_heads: 8, mask: Mask::Causal, ..case("talker, prompt", 64, 64, 16, 128) },
    Case { kv_heads: 8, ..case("talker, frame", 1, 500, 16, 128) },
    Case { mask: Mask::Causal, ..case("T3, code", 1, 450, 16, 64) },
    Case { kv_heads: 8, ..case("predictor", 1, 10, 16, 128) },
];

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1009) as f32 / 504.5 - 1.0).collect()
}

fn main() {
    let isa = Isa::detect().expect("ORATE_CPU_ISA names a set of this machine");
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let team = Team::new(1).expect("threads start");
    println!("{isa}; one thread\n{:>22} {:>8} {:>9} {:>6} {:>6}", "shape", "µs", "GFLOP/s", "peak", "GB/s");
    for c in CASES.iter().filter(|c| c.name.contains(&wanted)) {
        let (width, kv_width) = (c.heads * c.dim, c.kv_heads * c.dim);
        let (q, k, v) = (numbers(c.queries * width), numbers(c.keys * kv_width), numbers(c.keys * kv_width));
        let tables = numbers(9 * c.dim);
        let attention = Attention {
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.dim,
            scale: 0.1,
            mask: c.mask,
            first_query: c.keys.saturating_sub(c.queries),
            first_queries: None,
            passed: None,
            kv_lens: None,
            relative: c.relative.then_some(Relative { window: 4, keys: &tables, values: &tables }),
            bias: None,
        };
        let sequence = |data, steps, stride| Sequence { data, batch: 1, steps, stride };
        let mut out = vec![0.0; q.len()];
        let mut scratch = vec![0.0; attention.scratch_len(1, 1, c.keys)];
        let (mut times, mut peaks) = (vec![], vec![]);
        for _ in 0..300 {
            peaks.push(isa.run(Peak(2000)));
            let start = thread_seconds();
            attention.run(
                (isa, &team),
                sequence(&q, c.queries, width),
                (sequence(&k, c.keys, kv_width), sequence(&v, c.keys, kv_width)),
                &mut out,
                &mut scratch,
            );
            times.push(thread_seconds() - start);
        }
        times.sort_by(f64::total_cmp);
        peaks.sort_by(f64::total_cmp);
        let (seconds, peak) = (times[times.len() / 4], peaks[peaks.len() * 3 / 4]);
        let gflops = (4 * c.queries * c.keys * width) as f64 / seconds / 1e9;
        let gb = (8 * c.keys * kv_width) as f64 / seconds / 1e9;
        println!("{:>22} {:8.1} {gflops:9.1} {:5.0}% {gb:6.1}", c.name, seconds * 1e6, gflops / peak * 100.0);
    }
}
