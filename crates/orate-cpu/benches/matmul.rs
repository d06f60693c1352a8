//! Speed of matmuls of the shapes in the models.
//!
//! `cargo bench -p orate-cpu --bench matmul [-- part of a shape's name]`; `ORATE_CPU_ISA` forces an
//! instruction set. Load and clock vary, so everything is measured in turn, many times: a pure FMA loop (the
//! peak), and the matmul on one thread and on two. Prints 90th percentiles of the speeds. "cold" takes other
//! weights each time, cycling through 64 MB, as networks do.

mod common;

use common::{Peak, thread_seconds};
use orate_cpu::kernels::matmul::{
    Activation, Edges, Element, Epilogue, PackedWeights, Rows, Strided, matmul, scratch_len,
};
use orate_cpu::{Isa, Team};
use std::time::Instant;

struct Case {
    name: &'static str,
    m: usize,
    k: usize,
    n: usize,
    taps: usize,
    activation: Option<Activation>,
    residual: bool,
}

const fn case(name: &'static str, m: usize, k: usize, n: usize) -> Case {
    Case { name, m, k, n, taps: 0, activation: None, residual: false }
}

const CASES: &[Case] = &[
    Case { activation: Some(Activation::Gelu), ..case("ve up + gelu", 72, 512, 1024) },
    case("ve up", 72, 512, 1024),
    Case { residual: true, ..case("ve down + residual", 72, 1024, 512) },
    case("ve3 up", 144, 512, 2048),
    Case { residual: true, ..case("ve3 down + residual", 144, 2048, 512) },
    case("ve attention in", 72, 512, 256),
    case("ve attention out", 72, 256, 512),
    case("ve latent in", 72, 144, 512),
    case("ve latent out", 72, 512, 144),
    Case { activation: Some(Activation::Gelu), ..case("vocoder up + gelu", 432, 512, 2048) },
    Case { residual: true, ..case("vocoder down + residual", 432, 2048, 512) },
    Case { taps: 3, activation: Some(Activation::PRelu(0.2)), ..case("vocoder head conv", 432, 1536, 2048) },
    Case { taps: 7, ..case("vocoder first conv", 432, 168, 512) },
    Case { activation: Some(Activation::Gelu), ..case("text up + gelu", 80, 256, 1024) },
    case("text down", 80, 1024, 256),
    case("text 256", 80, 256, 256),
    case("duration up", 80, 64, 256),
    case("duration down", 80, 256, 64),
    case("built-in up", 72, 384, 1024),
    case("built-in down", 72, 1024, 384),
    case("one row", 1, 512, 1024),
    case("tiny", 72, 48, 24),
];

const ROUNDS: usize = 200;

fn fast(mut speeds: Vec<f64>) -> f64 {
    speeds.sort_by(f64::total_cmp);
    speeds[speeds.len() * 9 / 10]
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1013) as f32 / 1013.0 - 0.5).collect()
}

fn main() {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let isa = Isa::detect().unwrap_or_else(|e| panic!("{e}"));
    let teams = [1, 2].map(|n| Team::new(n).expect("threads can be started"));
    let [warm, cold] = ["hot", "cold"];
    println!(
        "{isa}; GFLOP/s with share of one core's peak (of multiply-adds in vectors), and for 2 threads the gain"
    );
    println!(
        "{:24} {:>15} {:>5} {:>12} {:>12} {:>12} {:>6}",
        "",
        "shape",
        "peak",
        format!("1 {cold}"),
        format!("1 {warm}"),
        "2 cold",
        "gain"
    );
    for case in CASES.iter().filter(|c| c.name.contains(&filter)) {
        run(case, isa, &teams);
    }
}

fn run(case: &Case, isa: Isa, teams: &[Team; 2]) {
    let &Case { name, m, k, n, taps, activation, residual } = case;
    let flops = 2.0 * (m * k * n) as f64;
    let copies = (64_000_000 / (4 * k * n)).clamp(1, 400);
    let w = numbers(k * n);
    let strided = Strided { data: &w, k_stride: n, n_stride: 1 };
    let packed: Vec<_> =
        (0..copies).map(|_| PackedWeights::pack(isa, &teams[0], Element::F32, (k, n), strided)).collect();
    let (x, bias, added) = (numbers(m * k), numbers(n), numbers(m * n));
    let rows = match taps {
        0 => Rows::Dense { x: &x, chosen_for: m },
        _ => Rows::Conv {
            x: &x[..m * k / taps],
            batch: 1,
            time: m,
            chosen_for: m,
            channels: k / taps,
            taps,
            dilation: 1,
            left: taps - 1,
            edges: Edges::Repeat,
        },
    };
    let epilogue = Epilogue { bias: Some(&bias), activation, residual: residual.then_some(&added) };
    let mut y = vec![0.0; m * n];
    let mut scratch = vec![0.0; scratch_len(isa, 2, [m, k, n], rows.chosen_for(), rows.taps())];
    // About a millisecond per measurement.
    let calls = (2e8 / flops).ceil().max(1.0) as usize;
    let mut next = 0;
    let mut ours = |team: &Team, fresh: usize| {
        let (wall, own) = (Instant::now(), thread_seconds());
        for _ in 0..calls {
            matmul(isa, team, rows, &packed[next], &epilogue, &mut y, &mut scratch);
            next = (next + fresh) % copies;
        }
        let seconds = if team.threads() == 1 { thread_seconds() - own } else { wall.elapsed().as_secs_f64() };
        calls as f64 * flops / seconds / 1e9
    };
    let mut table: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let peak = isa.run(Peak(100_000));
        for (list, value) in
            table.iter_mut().zip([peak, ours(&teams[0], 1), ours(&teams[0], 0), ours(&teams[1], 1)])
        {
            list.push(value);
        }
    }
    let [peak, cold, hot, cold2] = table.map(fast);
    println!(
        "{name:24} {:>15} {peak:5.0} {cold:6.1} {:4.0}% {hot:6.1} {:4.0}% {cold2:6.1} {:4.0}% {:6.2}",
        format!("{m}x{k}x{n}"),
        100.0 * cold / peak,
        100.0 * hot / peak,
        100.0 * cold2 / peak,
        cold2 / cold,
    );
}
