//! Times the tilings of matmuls and attention: `cargo test --release -p orate-gpu tiles -- --ignored
//! --nocapture`.

use super::attention::{self, Parts};
use super::attention_cooperative;
use super::cooperative;
use super::matmul::{self, Normed, Tile, Vector, variant};
use super::rows;
use crate::adapters::{self, Matrices};
use crate::gpu::Gpu;
use crate::variant::Variant;
use crate::weights::{Element, PADDING};
use orate_graph::blocks::{BlockFormat, SuperFormat};
use orate_graph::{
    Activation, AttentionMask, DType, DeviceKind, Edges, Epilogue, Precision, PrecisionPolicy, Weight,
};
use std::time::Instant;
use wgpu::{BindGroup, BufferUsages, CommandEncoderDescriptor, ComputePassDescriptor};

/// Dispatches per measurement; each reads other weights, as in networks.
const TIMES: u32 = 120;

const fn tile(bm: usize, bn: usize, bk: usize, tm: usize, tn: usize, split: usize) -> Tile {
    Tile { bm, bn, bk, tm, tn, split, ahead: 1 }
}

const CANDIDATES: [Tile; 15] = [
    tile(16, 16, 16, 4, 4, 8),
    tile(16, 32, 16, 4, 4, 8),
    tile(16, 32, 8, 4, 4, 16),
    tile(16, 32, 8, 4, 8, 16),
    tile(16, 64, 16, 4, 4, 4),
    tile(16, 64, 16, 4, 4, 8),
    tile(16, 64, 8, 4, 8, 8),
    tile(32, 32, 16, 4, 4, 2),
    tile(32, 32, 16, 4, 4, 4),
    tile(32, 32, 8, 8, 8, 16),
    tile(32, 64, 8, 8, 4, 4),
    tile(32, 64, 8, 8, 8, 8),
    tile(64, 64, 8, 8, 4, 2),
    tile(64, 64, 8, 8, 8, 4),
    tile(64, 64, 16, 8, 8, 2),
];

/// A matmul, or with taps a convolution over time.
#[derive(Clone, Copy, Debug)]
struct Shape {
    m: usize,
    k: usize,
    n: usize,
    taps: usize,
    dilation: usize,
}

const fn product(m: usize, k: usize, n: usize) -> Shape {
    Shape { m, k, n, taps: 1, dilation: 1 }
}

const fn convolution(m: usize, channels: usize, dilation: usize) -> Shape {
    Shape { m, k: 7 * channels, n: channels, taps: 7, dilation }
}

/// A device with noise in its memory.
struct Bench {
    gpu: Gpu,
    session: BindGroup,
    weights: BindGroup,
    /// Capacity of the weight buffer in f32 elements.
    room: usize,
}

/// Maximum elements of operand and result.
const OPERAND: usize = 1 << 23;

/// Operand and result of dispatch `i`: the result of one is the operand of the next.
fn places(i: usize) -> [usize; 2] {
    if i.is_multiple_of(2) { [0, OPERAND] } else { [OPERAND, 0] }
}

/// Bytes of weights.
const WEIGHTS: u64 = 256 << 20;

impl Bench {
    fn open(precision: Precision) -> Bench {
        let (adapter, info) = adapters::open(Some(DeviceKind::Vulkan)).into_iter().next().expect("a device");
        let gpu = Gpu::open(&adapter, info, PrecisionPolicy::uniform(precision), None).expect("opens");
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
        let memory = gpu.buffer("memory", 8 * OPERAND as u64, usage).expect("fits");
        let weights = gpu.buffer("weights", WEIGHTS.min(gpu.largest_buffer), usage).expect("fits");
        let noise: Vec<u32> =
            (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) | 0x3f80_0000).collect();
        for buffer in [&memory, &weights] {
            for i in 0..buffer.size() >> 22 {
                gpu.queue.write_buffer(buffer, i << 22, bytemuck::cast_slice(&noise));
            }
        }
        let session = gpu.bind("session", &gpu.session_layout, &[&memory]);
        let room = (weights.size() / 4) as usize;
        let weights = gpu.bind("weights", &gpu.weights_layout, &[&weights, &weights]);
        Bench { gpu, session, weights, room }
    }

    /// Compiles kernels on all threads.
    fn compile(&self, variants: &[Variant]) {
        if let Err(e) = self.gpu.pipelines.get(&self.gpu.device, variants) {
            println!("{e}");
        }
    }

    /// Microseconds of a dispatch in a sequence of dependent ones; `tile` is rows and columns of a workgroup.
    fn time(&self, v: Variant, s: Shape, tile: [usize; 2]) -> Option<f64> {
        let Shape { m, k, n, .. } = s;
        let stride = n.next_multiple_of(PADDING[1]);
        let slots = self.room / (k.next_multiple_of(PADDING[0]) * stride);
        let times = if m * k * n > 1 << 30 { TIMES / 6 } else { TIMES };
        let groups = [n.div_ceil(tile[1]) as u32, m.div_ceil(tile[0]) as u32, 1];
        self.time_dispatches(v, times, groups, |i| product_words(i, s, slots))
    }

    /// Microseconds of a dispatch in a sequence of dependent ones, whose parameters `words` returns.
    fn time_dispatches(
        &self,
        v: Variant,
        times: u32,
        groups: [u32; 3],
        words: impl Fn(usize) -> Vec<u32>,
    ) -> Option<f64> {
        let pipeline = match self.gpu.pipelines.get(&self.gpu.device, &[v]) {
            Ok(mut p) => p.remove(0),
            Err(e) => {
                println!("{e}");
                return None;
            }
        };
        let mut best = f64::MAX;
        for _ in 0..3 {
            self.gpu.wait().expect("runs");
            let start = Instant::now();
            let mut encoder = self.gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
            pass.set_bind_group(0, &self.session, &[]);
            pass.set_bind_group(1, &self.weights, &[]);
            pass.set_pipeline(&pipeline);
            for i in 0..times as usize {
                pass.set_immediates(0, bytemuck::cast_slice(&words(i)));
                pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
            }
            drop(pass);
            let commands = encoder.finish();
            let encoded = start.elapsed();
            self.gpu.queue.submit([commands]);
            self.gpu.wait().expect("runs");
            best = best.min((start.elapsed() - encoded).as_secs_f64());
        }
        Some(best / f64::from(times) * 1e6)
    }
}

impl Bench {
    /// Microseconds of a dispatch in a sequence of dependent ones that repeats `steps`.
    fn time_in_turn(&self, steps: &[&Step]) -> f64 {
        let variants: Vec<_> = steps.iter().map(|step| step.1.clone()).collect();
        let pipelines = self.gpu.pipelines.get(&self.gpu.device, &variants).expect("compiles");
        let times = (2 * TIMES as usize).next_multiple_of(steps.len());
        let mut best = f64::MAX;
        for _ in 0..5 {
            self.gpu.wait().expect("runs");
            let start = Instant::now();
            let mut encoder = self.gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
            pass.set_bind_group(0, &self.session, &[]);
            pass.set_bind_group(1, &self.weights, &[]);
            for i in 0..times {
                let (_, _, [x, y, z], words) = steps[i % steps.len()];
                if i == 0 || steps.len() > 1 {
                    pass.set_pipeline(&pipelines[i % steps.len()]);
                }
                pass.set_immediates(0, bytemuck::cast_slice(&words(i)));
                pass.dispatch_workgroups(*x, *y, *z);
            }
            drop(pass);
            let commands = encoder.finish();
            let encoded = start.elapsed();
            self.gpu.queue.submit([commands]);
            self.gpu.wait().expect("runs");
            best = best.min((start.elapsed() - encoded).as_secs_f64());
        }
        best / times as f64 * 1e6
    }
}

fn print(s: Shape, what: &str, mut rows: Vec<(f64, String)>) {
    let Shape { m, k, n, .. } = s;
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("{m} × {k} × {n}, {what}:");
    let (best, rest) = rows.split_at(rows.len().min(7));
    for (us, tile) in best.iter().chain(rest.iter().filter(|(_, tile)| tile.ends_with("used"))) {
        println!("  {us:>6.1} µs {:>7.0} GFLOP/s  {tile}", (2 * m * k * n) as f64 / us / 1e3);
    }
    assert!(!rows.is_empty(), "every shape has a tile");
}

#[test]
#[ignore = "needs a GPU"]
fn tiles() {
    let bench = Bench::open(Precision::F32);
    let shapes = [
        (72, 512, 1024),
        (72, 1024, 512),
        (72, 512, 256),
        (72, 256, 512),
        (144, 512, 2048),
        (144, 2048, 512),
        (144, 512, 512),
        (80, 256, 1024),
        (432, 512, 2048),
        (432, 2048, 512),
    ];
    for (s, element) in shapes
        .into_iter()
        .flat_map(|(m, k, n)| [Element::F32, Element::F16, Element::Bf16].map(|e| (product(m, k, n), e)))
    {
        let mut rows = vec![];
        for t in [1, 2].into_iter().flat_map(|ahead| CANDIDATES.map(|t| Tile { ahead, ..t })) {
            assert!(t.bk * t.split <= PADDING[0] && (t.bm * t.bk / 4).is_multiple_of(t.group()), "{t:?}");
            if t.shared() > bench.gpu.workgroup_bytes as usize {
                continue;
            }
            let Tile { bm, bn, bk, tm, tn, split, ahead } = t;
            let v = variant(t, element, true, false, None, (&Epilogue::default(), false));
            if let Some(us) = bench.time(v, s, [bm, bn]) {
                rows.push((us, format!("{bm}x{bn}x{bk} {tm}x{tn} split {split} ahead {ahead}")));
            }
        }
        print(s, &format!("{element:?}"), rows);
    }
}

/// Times the tiles of cooperative matrices against the best plain tile.
#[test]
#[ignore = "needs a GPU"]
fn cooperative_tiles() {
    time_cooperative(&[
        product(72, 512, 1024),
        product(72, 1024, 512),
        product(72, 512, 256),
        product(72, 256, 512),
        product(144, 512, 2048),
        product(144, 2048, 512),
        product(144, 512, 512),
        product(80, 256, 1024),
        product(432, 512, 2048),
        product(432, 2048, 512),
        product(100, 1024, 2048),
        product(100, 1024, 3072),
        product(100, 3072, 1024),
        product(100, 2048, 1024),
        product(32, 1024, 2048),
        product(32, 3072, 1024),
        product(25, 1024, 512),
        convolution(800, 768, 1),
        convolution(4000, 384, 3),
        convolution(16_000, 192, 9),
        convolution(48_000, 96, 9),
        convolution(200, 768, 1),
        convolution(1000, 384, 3),
    ]);
}

/// The same for matmuls of many callers' frames.
#[test]
#[ignore = "needs a GPU"]
fn cooperative_tiles_of_frames() {
    time_cooperative(&[
        product(16, 1024, 4096),
        product(16, 1024, 6144),
        product(16, 2048, 1024),
        product(16, 3072, 1024),
        product(64, 1024, 4096),
        product(64, 1024, 6144),
        product(64, 2048, 1024),
        product(64, 3072, 1024),
        product(128, 1024, 6144),
        product(128, 2048, 1024),
    ]);
}

/// Times the tiles for gates of many callers' frames, with and without the norm before.
#[test]
#[ignore = "needs a GPU"]
fn cooperative_tiles_of_gates() {
    let bench = Bench::open(Precision::F16);
    let has = bench.gpu.matrices.expect("cooperative matrices");
    let (k, n) = (1024, 3072);
    let e = Epilogue { bias: None, activation: Some(Activation::Silu), residual: false };
    let slots = bench.room / (2 * k * n);
    for norm in [Normed::Rms, Normed::No] {
        let extras = cooperative::Extras { gated: true, norm, ..Default::default() };
        let mut candidates = vec![];
        for t in cooperative_candidates(has) {
            // Gates meet in pairs.
            let t = cooperative::Tile { met: 2, ..t };
            let [bm, bn] = t.results(has);
            let is_usual = (16..=128).contains(&bm) && bn >= 32 && k.is_multiple_of(t.depth(has));
            let fits = t.shared_with(has, norm) <= bench.gpu.workgroup_bytes as usize;
            if t.of_subgroup[1].is_multiple_of(2) && is_usual && fits && !candidates.contains(&t) {
                candidates.push(t);
            }
        }
        let variant =
            |t: &cooperative::Tile| cooperative::variant((*t, has), k, Element::F16, None, extras, &e);
        bench.compile(&candidates.iter().map(variant).collect::<Vec<_>>());
        for m in [16, 64, 128] {
            let s = product(m, k, n);
            let chosen = cooperative::tile_for([m, 2 * n, k], has).suited(true, norm, has);
            let mut rows = vec![];
            for t in candidates.iter().filter(|t| t.results(has)[0] <= m) {
                let [bm, bn] = t.results(has);
                let groups = [(2 * n).div_ceil(bn) as u32, m.div_ceil(bm) as u32, 1];
                let words = |i: usize| {
                    let mut words = product_words(i, s, slots);
                    let first = words[3];
                    words.truncate(15);
                    if norm == Normed::Rms {
                        words.extend([0, 1e-6f32.to_bits()]);
                    }
                    let second = slots as u32 * (k * n) as u32 + first;
                    words.extend([second, n as u32, 0, 0]);
                    words
                };
                let used = if *t == chosen { ", used" } else { "" };
                let us = bench.time_dispatches(variant(t), TIMES, groups, words);
                rows.extend(us.map(|us| (us, format!("{t:?}{used}"))));
            }
            print(Shape { n: 2 * n, ..s }, &format!("gates, {norm:?}"), rows);
        }
    }
}

/// The same for convolutions and matmuls of the codec for many callers.
#[test]
#[ignore = "needs a GPU"]
fn cooperative_tiles_of_many_rows() {
    time_cooperative(&[
        convolution(2400, 768, 1),
        convolution(6400, 768, 1),
        convolution(6000, 384, 3),
        convolution(16_000, 384, 3),
        convolution(40_000, 192, 9),
        convolution(80_000, 96, 9),
        product(6400, 768, 768),
        product(5632, 256, 1536),
    ]);
}

/// The same for the estimator of Chatterbox, with guidance and without.
#[test]
#[ignore = "needs a GPU"]
fn cooperative_tiles_of_an_estimator() {
    time_cooperative(&[
        product(1408, 256, 1536),
        product(1408, 512, 256),
        product(1408, 256, 1024),
        product(1408, 1024, 256),
        Shape { taps: 3, ..product(1408, 768, 256) },
        product(704, 256, 1536),
        product(704, 512, 256),
        product(704, 256, 1024),
        product(704, 1024, 256),
    ]);
}

fn time_cooperative(shapes: &[Shape]) {
    let bench = Bench::open(Precision::F16);
    let has = bench.gpu.matrices.expect("cooperative matrices");
    let bias = Some(Weight::fill(0.0, [4]));
    let e = Epilogue { bias, activation: None, residual: true };
    for &s in shapes {
        let conv = (s.taps > 1).then_some(Edges::Repeat);
        let plain = matmul::tile(s.m, s.n, s.k);
        let v = variant(plain, Element::F16, true, false, conv, (&e, false));
        let us = bench.time(v, s, [plain.bm, plain.bn]).expect("runs");
        let mut rows = vec![(us, format!("plain {}x{}", plain.bm, plain.bn))];
        let chosen = cooperative::tile_for([s.m, s.n, s.k], has);
        let mut candidates = cooperative_candidates(has);
        // Slices end at the end of the weight's padding.
        candidates.retain(|t| {
            t.shared(has) <= bench.gpu.workgroup_bytes as usize
                && s.k.next_multiple_of(PADDING[0]).is_multiple_of(t.depth(has))
        });
        let variant = |t: &cooperative::Tile| {
            cooperative::variant((*t, has), s.k, Element::F16, conv, Default::default(), &e)
        };
        bench.compile(&candidates.iter().map(variant).collect::<Vec<_>>());
        for t in candidates {
            let Some(us) = bench.time(variant(&t), s, t.results(has)) else { continue };
            rows.push((us, format!("{t:?}{}", if t == chosen { ", used" } else { "" })));
        }
        print(s, "f16", rows);
    }
}

/// Times the kernel for few rows with the matmuls of a frame of Qwen3-TTS 0.6B and of a code of Chatterbox.
#[test]
#[ignore = "needs a GPU"]
fn vectors() {
    let bench = Bench::open(Precision::F32);
    let lanes = bench.gpu.lanes.expect("subgroups of one size");
    let elements = [Element::F16, Element::Blocks(BlockFormat::Q8_0), Element::Super(SuperFormat::Q4K)];
    for (rows, k, n, gated, norm) in [
        (1, 1024, 2048, false, Normed::No),
        (1, 1024, 4096, false, Normed::Rms),
        (1, 2048, 1024, false, Normed::No),
        (1, 1024, 3072, true, Normed::Rms),
        (1, 3072, 1024, false, Normed::No),
        (1, 1024, 3072, false, Normed::Layer),
        (1, 1024, 1024, false, Normed::No),
        (1, 1024, 4096, false, Normed::Layer),
        (1, 4096, 1024, false, Normed::No),
        (2, 1024, 3072, false, Normed::Rms),
        (2, 1024, 1024, false, Normed::No),
        (2, 1024, 4096, true, Normed::Rms),
        (2, 4096, 1024, false, Normed::No),
        (1, 8192, 8192, false, Normed::No),
    ] {
        for element in elements {
            let e = Epilogue { bias: None, activation: None, residual: norm == Normed::No };
            let parts = if gated { 2 } else { 1 };
            let chosen = matmul::quads(n);
            let mut all = vec![];
            for quads in [1, 2, 4, 8] {
                for unroll in [1, 2, 3, 4, 6, 8, 12] {
                    if unroll > (k / 4usize).div_ceil(256 / quads) || (gated && unroll > 6) {
                        continue;
                    }
                    for lanes in [Some(lanes), None] {
                        if lanes.is_none() && (norm == Normed::Layer || quads != chosen) {
                            continue;
                        }
                        let odd = false;
                        all.push(Vector { rows, quads, unroll, element, parts, gated, norm, odd, lanes });
                    }
                }
            }
            bench.compile(&all.iter().map(|v| matmul::vector_variant(*v, &e)).collect::<Vec<_>>());
            let stride = n.next_multiple_of(PADDING[1]);
            let size = k * stride * 5 / 4;
            let room = bench.room * if element == Element::F16 { 2 } else { 4 };
            let mut times = vec![];
            for v in all {
                let groups = [n.div_ceil(4 * v.quads) as u32, 1, 1];
                let us = bench.time_dispatches(matmul::vector_variant(v, &e), TIMES, groups, |i| {
                    let [x, out] = places(i);
                    let at = |j: usize| (i * parts + j) % (room / size) * size;
                    let mut words = [x, out, out, 0, 0, k, rows, 0, 0, 0, at(0), n, stride].to_vec();
                    if gated {
                        words.extend([at(1), n, stride]);
                    }
                    words.into_iter().map(|x| x as u32).collect()
                });
                let used = v.quads == chosen && v.unroll == matmul::unroll([k, n], rows, element, gated);
                let used = if used { ", used" } else { "" };
                times.extend(
                    us.map(|us| (us, format!("{} quads × {}, {:?}{used}", v.quads, v.unroll, v.lanes))),
                );
            }
            let s = Shape { m: rows, k, n: n * parts, taps: 1, dilation: 1 };
            print(s, &format!("{element:?} {norm:?}"), times);
        }
    }
}

/// All tiles whose slices divide evenly among the threads.
fn cooperative_candidates(has: Matrices) -> Vec<cooperative::Tile> {
    let mut all = vec![];
    let with = |of_subgroup, subgroups, split, [steps, met]: [usize; 2]| {
        [1, 2, 4].map(|ahead| cooperative::Tile { of_subgroup, subgroups, split, steps, met, ahead })
    };
    for of_subgroup in [[1, 1], [1, 2], [2, 1], [2, 2], [3, 2], [5, 2]] {
        for rest in [[1, 1], [1, 2], [2, 1], [2, 2], [4, 2]] {
            all.extend(with(of_subgroup, [1, 1], 8, rest));
            all.extend(with(of_subgroup, [1, 1], 4, rest));
            all.extend(with(of_subgroup, [1, 2], 4, rest));
        }
    }
    for of_subgroup in [[2, 2], [2, 3], [2, 4], [4, 2], [4, 3], [4, 4], [1, 4]] {
        for rest in [[1, 1], [2, 1], [4, 1]] {
            all.extend(with(of_subgroup, [2, 2], 1, rest));
            all.extend(with(of_subgroup, [2, 2], 2, rest));
            all.extend(with(of_subgroup, [2, 4], 1, rest));
            all.extend(with(of_subgroup, [4, 2], 1, rest));
        }
    }
    let registers = |t: &cooperative::Tile| {
        let [bm, bn] = t.results(has);
        t.ahead * t.depth(has) * (4 * bm + 2 * bn) / (4 * t.threads(has))
    };
    all.retain(|t| t.of_subgroup[1].is_multiple_of(t.met) && t.divides(has) && registers(t) <= 160);
    all
}

/// Parameters of each dispatch.
type Words = Box<dyn Fn(usize) -> Vec<u32>>;

/// A kernel, its workgroups and its parameters.
type Step = (&'static str, Variant, [u32; 3], Words);

/// Times the kernels of a layer of an estimator, each in a sequence of its own and all in turn, which takes
/// longer if their instructions do not fit the cache together.
#[test]
#[ignore = "needs a GPU"]
fn kernels_in_turn() {
    let bench = Bench::open(Precision::F16);
    let has = bench.gpu.matrices.expect("cooperative matrices");
    let (frames, heads, d) = (704, 8, 64);
    let bytes = bench.gpu.workgroup_bytes as usize;
    let matmul = |name, k: usize, n: usize, activation: Option<Activation>, norm| -> Step {
        let s = product(2 * frames, k, n);
        let is_normed = norm == Normed::Layer;
        let t = match is_normed {
            true => cooperative::norming_tile([s.m, n], false, has),
            false => cooperative::tile_for([s.m, n, k], has),
        };
        let e = Epilogue { bias: Some(Weight::fill(0.0, [4])), activation, residual: !is_normed };
        let extras = cooperative::Extras { norm, half_out: is_normed, ..Default::default() };
        let [bm, bn] = t.results(has);
        let groups = [n.div_ceil(bn) as u32, s.m.div_ceil(bm) as u32, 1];
        let slots = bench.room / (k * n);
        let v = cooperative::variant((t, has), k, Element::F16, None, extras, &e);
        (name, v, groups, Box::new(move |i| product_words(i, s, slots)))
    };
    let tile = attention_cooperative::tile_for(2 * heads, frames, d, has, bytes).expect("a tile");
    let groups = [frames.div_ceil(tile.queries(has)), heads, 2].map(|n| n as u32);
    let attention = attention_cooperative::variant(tile, has, d, Parts::default(), true);
    let words = move |i| attention_words(i, [2, frames, heads]);
    let layer = [
        matmul("queries, keys and values", 256, 1536, None, Normed::Layer),
        ("attention", attention, groups, Box::new(words)),
        matmul("output", 512, 256, None, Normed::No),
        matmul("up", 256, 1024, Some(Activation::Gelu), Normed::Layer),
        matmul("down", 1024, 256, None, Normed::No),
    ];
    bench.compile(&layer.iter().map(|step| step.1.clone()).collect::<Vec<_>>());
    // The first round only raises the clock of the device.
    for round in 0..3 {
        let alone: Vec<_> = layer.iter().map(|step| bench.time_in_turn(&[step])).collect();
        let in_turn = bench.time_in_turn(&layer.iter().collect::<Vec<_>>()) * layer.len() as f64;
        if round > 0 {
            for (step, us) in layer.iter().zip(&alone) {
                println!("{us:7.2} µs  {}", step.0);
            }
            println!("{:7.2} µs  in all, {in_turn:.2} in turn", alone.iter().sum::<f64>());
        }
    }
}

/// Times what is between the matmuls of an estimator: norms alone and in the matmuls after them, attention of
/// values in f32 and f16, and a dispatch of 256 numbers.
#[test]
#[ignore = "needs a GPU"]
fn layers_of_an_estimator() {
    let bench = Bench::open(Precision::F16);
    let has = bench.gpu.matrices.expect("cooperative matrices");
    let lanes = bench.gpu.lanes.expect("subgroups of one size");
    let mut all: Vec<(String, Variant, [u32; 3], Words)> = vec![];
    let norm = |rows: usize, c: usize| {
        move |i: usize| {
            let [x, out] = places(i);
            vec![x as u32, out as u32, rows as u32, c as u32, 0, 0, 1e-5f32.to_bits()]
        }
    };
    all.push(("a row of 256".into(), rows::norm_variant(1, true), [1, 1, 1], Box::new(norm(1, 256))));
    for (m, c) in [(704usize, 256usize), (1408, 256), (704, 512), (72, 1024)] {
        let v = rows::norm_variant(c.div_ceil(512), true);
        let name = format!("norm of {m} × {c}");
        all.push((format!("{name}, a row per workgroup"), v, [m as u32, 1, 1], Box::new(norm(m, c))));
        let v = rows::subgroup_norm_variant(c, lanes);
        let groups = [m.div_ceil(128 / lanes) as u32, 1, 1];
        all.push((format!("{name}, a row per subgroup"), v, groups, Box::new(norm(m, c))));
    }
    let e = Epilogue { bias: Some(Weight::fill(0.0, [4])), activation: None, residual: false };
    for (m, n) in [(704, 1536), (704, 1024), (1408, 1536), (1408, 1024)] {
        let s = product(m, 256, n);
        let chosen = cooperative::tile_for([m, n, 256], has);
        let normed = cooperative::NORMING.map(|t| (t, Normed::Layer, true));
        let plain = [false, true].map(|half_out| (chosen, Normed::No, half_out));
        for (t, norm, half_out) in plain.into_iter().chain(normed) {
            if !t.divides(has) || (norm == Normed::Layer && !t.norms(256, has)) {
                continue;
            }
            let extras = cooperative::Extras { norm, half_out, ..Default::default() };
            let v = cooperative::variant((t, has), 256, Element::F16, None, extras, &e);
            let [bm, bn] = t.results(has);
            let name = format!("{m} × 256 × {n}, {norm:?}, f16 results {half_out}, {bm} × {bn}");
            let groups = [n.div_ceil(bn) as u32, m.div_ceil(bm) as u32, 1];
            let slots = bench.room / (s.k * s.n);
            all.push((name, v, groups, Box::new(move |i| product_words(i, s, slots))));
        }
    }
    for (batch, t) in [(1, 704), (2, 704)] {
        let (heads, d, bytes) = (8, 64, bench.gpu.workgroup_bytes as usize);
        let tile = attention_cooperative::tile_for(batch * heads, t, d, has, bytes).expect("a tile");
        let groups = [t.div_ceil(tile.queries(has)), heads, batch].map(|n| n as u32);
        for halves in [false, true] {
            let v = attention_cooperative::variant(tile, has, d, Parts::default(), halves);
            let words = move |i| attention_words(i, [batch, t, heads]);
            all.push((
                format!("attention of {batch} × {t}, f16 operands {halves}"),
                v,
                groups,
                Box::new(words),
            ));
        }
    }
    bench.compile(&all.iter().map(|(_, v, ..)| v.clone()).collect::<Vec<_>>());
    // The first round only raises the clock of the device.
    for round in 0..3 {
        for (name, v, groups, words) in &all {
            let us = bench.time_dispatches(v.clone(), TIMES, *groups, words).expect("runs");
            if round > 0 {
                println!("{us:7.2} µs  {name}");
            }
        }
    }
}

/// Parameters of dispatch `i` of a matmul or convolution, with one of `slots` weights.
fn product_words(i: usize, s: Shape, slots: usize) -> Vec<u32> {
    let Shape { m, k, n, .. } = s;
    let stride = n.next_multiple_of(PADDING[1]);
    let [x, out] = places(i);
    let w = i % slots * k.next_multiple_of(PADDING[0]) * stride;
    let [time, channels, left] = match s.taps {
        1 => [1, 1, 0],
        taps => [m, k / taps, s.dilation * (taps - 1)],
    };
    // The last three are of a norm.
    [x, out, out, w, 0, 0, m, n, k, stride, time, channels, s.dilation, left, 0, 0, 0, 0]
        .map(|x| x as u32)
        .to_vec()
}

/// Parameters of attention of `t` queries and keys.
fn attention_words(i: usize, [batch, t, heads]: [usize; 3]) -> Vec<u32> {
    let [x, out] = places(i);
    let own = usize::from(batch > 1);
    let mut words = [x, x, x, out, 0, t, t, heads, own, 0].map(|n| n as u32).to_vec();
    words.extend([0.125f32.to_bits(), 0, 0, 0, 1, 0, 0]);
    words
}

/// Times attention of many queries on cooperative matrices against the plain kernel.
#[test]
#[ignore = "needs a GPU"]
fn attention_tiles() {
    let bench = Bench::open(Precision::F16);
    let has = bench.gpu.matrices.expect("cooperative matrices");
    let mut candidates = vec![];
    for subgroups in [[2, 2], [4, 1], [2, 1], [4, 2], [2, 4], [1, 4], [8, 1]] {
        for rows in [1, 2, 4] {
            for columns in [1, 2, 4] {
                candidates.push(attention_cooperative::Tile { subgroups, rows, columns });
            }
        }
    }
    for [batch, t, heads, d] in [
        [2usize, 704, 8, 64],
        [1, 704, 8, 64],
        [2, 1504, 8, 64],
        [2, 160, 8, 64],
        [1, 128, 8, 64],
        [2, 704, 8, 32],
    ] {
        let time = |v: Variant, queries: usize| {
            let groups = [t.div_ceil(queries), heads, batch].map(|n| n as u32);
            bench.time_dispatches(v, TIMES, groups, |i| attention_words(i, [batch, t, heads]))
        };
        let plain = attention::tile_variant(d, Parts::default());
        let few = attention::variant(d, AttentionMask::None, Parts::default(), DType::F32);
        let mut rows = vec![
            (time(plain, 32).expect("runs"), "plain tile".to_owned()),
            (time(few, 4).expect("runs"), "plain".to_owned()),
        ];
        let bytes = bench.gpu.workgroup_bytes as usize;
        let chosen = attention_cooperative::tile_for(batch * heads, t, d, has, bytes);
        candidates.retain(|tile| tile.fits(d, has, bytes));
        let variant = |tile: &attention_cooperative::Tile| {
            attention_cooperative::variant(*tile, has, d, Parts::default(), true)
        };
        bench.compile(&candidates.iter().map(variant).collect::<Vec<_>>());
        for tile in &candidates {
            let Some(us) = time(variant(tile), tile.queries(has)) else { continue };
            let used = if chosen == Some(*tile) { ", used" } else { "" };
            rows.push((us, format!("{tile:?}{used}")));
        }
        let s = Shape { m: batch * t, k: 2 * d, n: heads * t, taps: 1, dilation: 1 };
        print(s, &format!("attention of {batch} × {heads} heads of {d}, {t} queries and keys"), rows);
    }
}
