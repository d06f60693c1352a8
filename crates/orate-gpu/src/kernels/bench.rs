//! Which tile is fastest for which product: `cargo test --release -p orate-gpu tiles -- --ignored --nocapture`.

use super::matmul::{PADDING, Tile, variant};
use crate::adapters;
use crate::gpu::Gpu;
use crate::weights::Element;
use orate_graph::{DeviceKind, Epilogue, PrecisionPolicy};
use std::time::Instant;
use wgpu::{BufferUsages, CommandEncoderDescriptor, ComputePassDescriptor};

/// Dispatches of one measurement; each reads other weights, as networks do.
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

#[test]
#[ignore = "needs a GPU"]
fn tiles() {
    let (adapter, info) = adapters::open(Some(DeviceKind::Vulkan)).into_iter().next().expect("a device");
    let gpu = Gpu::open(&adapter, info, PrecisionPolicy::default(), None).expect("opens");
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
    let memory = gpu.buffer("memory", 64 << 20, usage).expect("fits");
    let weights = gpu.buffer("weights", 256 << 20, usage).expect("fits");
    let noise: Vec<u32> =
        (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) | 0x3f80_0000).collect();
    for i in 0..64 {
        gpu.queue.write_buffer(&weights, i << 22, bytemuck::cast_slice(&noise));
    }
    for i in 0..16 {
        gpu.queue.write_buffer(&memory, i << 22, bytemuck::cast_slice(&noise));
    }
    let session = gpu.bind("session", &gpu.session_layout, &[&memory]);
    let both = gpu.bind("weights", &gpu.weights_layout, &[&weights, &weights]);
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
    for (m, k, n, element) in shapes
        .into_iter()
        .flat_map(|(m, k, n)| [Element::F32, Element::F16, Element::Bf16].map(|e| (m, k, n, e)))
    {
        let mut rows = vec![];
        for t in [1, 2].into_iter().flat_map(|ahead| CANDIDATES.map(|t| Tile { ahead, ..t })) {
            assert!(t.bk * t.split <= PADDING[0] && (t.bm * t.bk / 4).is_multiple_of(t.group()), "{t:?}");
            if t.shared() > gpu.workgroup_bytes as usize {
                continue;
            }
            let v = variant(t, element, true, false, None, &Epilogue::default());
            let pipeline = match gpu.pipelines.get(&gpu.device, &[v]) {
                Ok(mut p) => p.remove(0),
                Err(e) => {
                    println!("{t:?}: {e}");
                    continue;
                }
            };
            let mut best = f64::MAX;
            for _ in 0..3 {
                gpu.wait().expect("runs");
                let start = Instant::now();
                let mut encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
                let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
                pass.set_bind_group(0, &session, &[]);
                pass.set_bind_group(1, &both, &[]);
                pass.set_pipeline(&pipeline);
                let slots = (1 << 26) / (k * n);
                for i in 0..TIMES as usize {
                    let (x, out) = if i % 2 == 0 { (0, 1 << 22) } else { (1 << 22, 0) };
                    let w = i % slots * k * n;
                    let words = [x, out, out, w, 0, 0, m, n, k, n, 1, 1, 1, 0].map(|x| x as u32);
                    pass.set_immediates(0, bytemuck::cast_slice(&words));
                    pass.dispatch_workgroups(n.div_ceil(t.bn) as u32, m.div_ceil(t.bm) as u32, 1);
                }
                drop(pass);
                let commands = encoder.finish();
                let encoded = start.elapsed();
                gpu.queue.submit([commands]);
                gpu.wait().expect("runs");
                best = best.min((start.elapsed() - encoded).as_secs_f64());
            }
            rows.push((best / f64::from(TIMES) * 1e6, t));
        }
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        println!("{m} × {k} × {n}, {element:?}:");
        for (us, t) in rows.iter().take(7) {
            let flops = (2 * m * k * n) as f64 / us / 1e3;
            let Tile { bm, bn, bk, tm, tn, split, ahead } = t;
            println!(
                "  {us:>6.1} µs {flops:>6.0} GFLOP/s  {bm}x{bn}x{bk} {tm}x{tn} split {split} ahead {ahead}"
            );
        }
        assert!(!rows.is_empty(), "every shape has a tile");
    }
}
