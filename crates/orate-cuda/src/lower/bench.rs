//! Times the tilings of matmuls:
//! `cargo test --release -p orate-cuda cuts_of_products -- --ignored --nocapture`.

use super::cuts::{Sizes, Tiling, WARPS, estimate, product_shared, tiling};
use super::matmul::{NEXT_BYTES, NEXT_WEIGHTS, Source, product};
use super::work::{Addresses, Pointer};
use crate::device::CudaDevice;
use crate::driver::{DeviceBuffer, Event, Launch, Stream};
use crate::kernels::CLUSTER_ARCH;
use orate_graph::{Precision, PrecisionPolicy};

#[test]
#[ignore = "needs an NVIDIA GPU; prints times for those who tune"]
fn cuts_of_products() {
    let policy = PrecisionPolicy::uniform(Precision::Bf16);
    let device = CudaDevice::new(0, policy, None).expect("a GPU and NVRTC");
    let core = device.core();
    let context = &core.context;
    let stream = Stream::new(context).expect("a stream");
    let buffers: Vec<DeviceBuffer> =
        [16, 1 << 9, 16, 16].map(|mb| DeviceBuffer::new(context, mb << 20).expect("room")).into();
    for b in &buffers {
        // SAFETY: just allocated.
        unsafe { stream.clear(b.pointer(), b.bytes()).expect("clears") };
    }
    let at = |i: usize| Pointer::Weight(buffers[i].pointer());
    let addresses = Addresses { arena: 0, buffers: vec![], scalars: vec![] };
    for (precision, rows, k, n) in [
        (Precision::Bf16, 1, 1024, 2048),
        (Precision::Bf16, 1, 1024, 4096),
        (Precision::Bf16, 1, 1024, 6144),
        (Precision::Bf16, 1, 2048, 1024),
        (Precision::Bf16, 1, 3072, 1024),
        (Precision::Bf16, 4, 1024, 6144),
        (Precision::Bf16, 16, 1024, 2048),
        (Precision::Bf16, 16, 1024, 4096),
        (Precision::Bf16, 16, 1024, 6144),
        (Precision::Bf16, 16, 2048, 1024),
        (Precision::Bf16, 16, 3072, 1024),
        (Precision::Bf16, 32, 1024, 6144),
        (Precision::F32, 72, 512, 1024),
        (Precision::F32, 72, 1024, 512),
        (Precision::F32, 72, 512, 2048),
        (Precision::F32, 72, 2048, 512),
        (Precision::F32, 144, 512, 2048),
        (Precision::F32, 144, 2048, 512),
        (Precision::F32, 72, 512, 256),
        (Precision::F32, 72, 256, 512),
        (Precision::F32, 80, 256, 256),
        (Precision::F32, 80, 256, 1024),
        (Precision::F32, 80, 1024, 256),
        (Precision::F32, 81, 64, 256),
        (Precision::F32, 81, 256, 64),
        (Precision::F32, 432, 512, 2048),
        (Precision::F32, 432, 2048, 512),
    ] {
        let mut all = vec![];
        for tiles in [1, 2, 3, 5, 9] {
            for split in [1, 2, 4] {
                let t = Tiling { tiles, split };
                if product_shared(t) + 1024 > context.facts.shared as usize
                    || (split * WARPS > k / 16 && split > 1)
                {
                    continue;
                }
                let pointers = [
                    at(0),
                    at(1),
                    at(2),
                    Pointer::Null,
                    at(2),
                    Pointer::Null,
                    Pointer::Null,
                    at(3),
                    Pointer::Null,
                    Pointer::Null,
                    Pointer::Null,
                ];
                let sizes = Sizes { rows, k, n, time: rows, channels: k, dilation: 1, left: 0 };
                let work = product(precision, Source::Dense, t, pointers, sizes, [0, 0, n as u32, 0, 0, 0]);
                core.kernels.load(context, work.program, work.function).expect("loads");
                let launch = Launch {
                    function: core.kernels.get(work.program, work.function),
                    grid: work.grid,
                    threads: work.threads,
                    shared: work.shared,
                    cluster: work.cluster,
                    early: context.facts.arch >= CLUSTER_ARCH,
                };
                // Each launch has its own weights, which come from memory, as in a network.
                let weights = |i: u64| Pointer::Weight(buffers[1].pointer() + (i % 128) * (4 << 20));
                let arguments: Vec<Vec<u64>> = (0..128)
                    .map(|i| {
                        let mut work = work.clone();
                        (work.pointers[1], work.pointers[NEXT_WEIGHTS]) = (weights(i), weights(i + 2));
                        work.words[NEXT_BYTES] = work.weight_bytes;
                        work.arguments(&addresses)
                    })
                    .collect();
                let graph = stream.capture(|| {
                    // SAFETY: the buffers have room for the largest operands.
                    arguments.iter().try_for_each(|a| unsafe { stream.start(&launch, a) })
                });
                let graph = graph.expect("records");
                let (begin, end) =
                    (Event::new(context).expect("an event"), Event::new(context).expect("an event"));
                let mut best = f64::INFINITY;
                for _ in 0..4 {
                    begin.record(&stream).expect("records");
                    stream.launch(&graph).expect("runs");
                    end.record(&stream).expect("records");
                    best = best.min(end.seconds_since(&begin).expect("ran") / 128.0 * 1e6);
                }
                let microseconds = estimate(t, rows, k.div_ceil(16), n, &context.facts);
                all.push((best, microseconds, t));
            }
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let chosen = tiling(rows, k, n, &[1, 3, 5, 9], &context.facts);
        print!("{precision} {rows}x{k}x{n}:");
        for (i, (time, estimate, t)) in all.iter().enumerate() {
            if i < 8 || *t == chosen {
                let mark = if *t == chosen { "*" } else { "" };
                print!("  {}{mark}/{} {time:.2} ({estimate:.1})", t.tiles, t.split);
            }
        }
        println!();
    }
}
