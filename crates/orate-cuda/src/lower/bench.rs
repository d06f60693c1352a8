//! Times the tilings of matmuls and attention:
//! `cargo test --release -p orate-cuda cuts_of_products -- --ignored --nocapture`, `blocks_of_many_rows`,
//! `formats_of_few_rows`, `launches_of_units` or `tiles_of_attention`.

use super::attention::{Attention, Tile};
use super::cuts::{
    Block, CHANNELS, Kind, Sizes, Stationary, Tiling, WARPS, blocks, blocks_of_very_many, estimate,
    product_shared, tiling,
};
use super::matmul::{HALVES, NEXT_BYTES, NEXT_WEIGHTS, Source, in_block, product, stay_in_cache};
use super::operands::Operands;
use super::work::{Addresses, Pointer, Work};
use super::{join_followers, lower};
use crate::device::CudaDevice;
use crate::driver::{DeviceBuffer, Event, Launch, Pinned, Stream};
use crate::kernels::{CLUSTER_ARCH, SNAKE, warpgroup_program};
use crate::weights::WeightBank;
use orate_graph::{AttentionMask, DType, Graph, Op, Plan, Precision, PrecisionPolicy};

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
    let addresses = Addresses { arena: 0, buffers: vec![], scalars: vec![], slots: 0 };
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
                    Pointer::Null,
                ];
                let sizes = Sizes { rows, k, n, time: rows, channels: k, dilation: 1, left: 0 };
                let work =
                    product(precision, Source::Dense, t, pointers, sizes, [0, 0, n as u32, 0, 0, 0, 0]);
                // Each launch has its own weights, which come from memory, as in a network.
                let weights = |i: u64| Pointer::Weight(buffers[1].pointer() + (i % 128) * (4 << 20));
                let arguments: Vec<Vec<u64>> = (0..128)
                    .map(|i| {
                        let mut work = work.clone();
                        (work.pointers[1], work.pointers[NEXT_WEIGHTS]) = (weights(i), weights(i + 2));
                        work.words[NEXT_BYTES] = work.weight_bytes;
                        work.arguments(&addresses).expect("describes")
                    })
                    .collect();
                let best = time(&device, &stream, &work, &arguments);
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

/// One row and sixteen by weights of each format: of networks, and so large that reading them takes longest.
#[test]
#[ignore = "needs an NVIDIA GPU; prints times for those who tune"]
fn formats_of_few_rows() {
    use Precision::{Bf16, Q4_0, Q4K, Q5K, Q6K, Q8_0};
    for precision in [Bf16, Q8_0, Q6K, Q5K, Q4K, Q4_0] {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("a GPU and NVRTC");
        let context = &device.core().context;
        let stream = Stream::new(context).expect("a stream");
        let [vectors, weights] = [16, 1 << 10].map(|mb| {
            let buffer = DeviceBuffer::new(context, mb << 20).expect("room");
            // SAFETY: just allocated.
            unsafe { stream.clear(buffer.pointer(), buffer.bytes()).expect("clears") };
            buffer
        });
        let addresses = Addresses { arena: 0, buffers: vec![], scalars: vec![], slots: 0 };
        for (rows, k, n, gated) in [
            (1, 1024, 4096, 0),
            (1, 1024, 6144, 0),
            (1, 1024, 6144, 1),
            (1, 3072, 1024, 0),
            (1, 2048, 6144, 0),
            (1, 8192, 8192, 0),
            (1, 8192, 16384, 1),
            (4, 1024, 6144, 1),
            (16, 1024, 4096, 0),
            (16, 1024, 6144, 0),
            (16, 3072, 1024, 0),
        ] {
            let t = tiling(rows, k, n, &[1, 3, 5, 9], &context.facts);
            let mut pointers = [Pointer::Null; 12];
            (pointers[0], pointers[7]) =
                (Pointer::Weight(vectors.pointer()), Pointer::Weight(vectors.pointer() + (8 << 20)));
            let sizes = Sizes { rows, k, n, time: rows, channels: k, dilation: 1, left: 0 };
            let first = (n >> gated) as u32;
            let work = product(precision, Source::Dense, t, pointers, sizes, [0, 0, first, gated, 0, 0, 0]);
            let bytes = u64::from(work.weight_bytes);
            let slots = weights.bytes() as u64 / bytes;
            let at = |i: u64| Pointer::Weight(weights.pointer() + i % slots * bytes);
            let arguments: Vec<Vec<u64>> = (0..64)
                .map(|i| {
                    let mut work = work.clone();
                    (work.pointers[1], work.pointers[NEXT_WEIGHTS]) = (at(i), at(i + 2));
                    if stay_in_cache([work.weight_bytes; 2], &context.facts) {
                        work.words[NEXT_BYTES] = work.weight_bytes;
                    }
                    work.arguments(&addresses).expect("describes")
                })
                .collect();
            let us = time(&device, &stream, &work, &arguments);
            let rate = bytes as f64 / us / 1e6;
            let gated = if gated == 1 { " gated" } else { "" };
            println!(
                "{precision} {rows}x{k}x{n}{gated}: {us:.2} µs, {:.2} MB, {rate:.2} TB/s",
                bytes as f64 / 1e6
            );
        }
    }
}

/// Every kernel for many rows on shapes of networks, with what it is estimated to take.
#[test]
#[ignore = "needs an NVIDIA GPU; prints times for those who tune"]
fn blocks_of_many_rows() {
    let formats = [Precision::Bf16, Precision::Q8_0, Precision::Q4K];
    let stored = formats.map(|format| (format.to_string(), format)).into();
    let policy = PrecisionPolicy { precision: Precision::Bf16, stored, ..Default::default() };
    let device = CudaDevice::new(0, policy, None).expect("a GPU and NVRTC");
    let context = &device.core().context;
    let stream = Stream::new(context).expect("a stream");
    let buffers: Vec<DeviceBuffer> =
        [128, 1 << 9, 64, 160].map(|mb| DeviceBuffer::new(context, mb << 20).expect("room")).into();
    for b in &buffers {
        // SAFETY: just allocated.
        unsafe { stream.clear(b.pointer(), b.bytes()).expect("clears") };
    }
    let addresses = Addresses { arena: 0, buffers: vec![], scalars: vec![], slots: 0 };
    for (rows, taps, channels, n) in [
        (16, 1, 1024, 2048),
        (16, 1, 1024, 4096),
        (16, 1, 2048, 1024),
        (16, 1, 1024, 6144),
        (16, 1, 3072, 1024),
        (32, 1, 1024, 4096),
        (32, 1, 2048, 1024),
        (32, 1, 1024, 6144),
        (32, 1, 3072, 1024),
        (64, 1, 1024, 2048),
        (64, 1, 1024, 4096),
        (64, 1, 2048, 1024),
        (64, 1, 1024, 6144),
        (64, 1, 3072, 1024),
        (128, 1, 1024, 4096),
        (128, 1, 2048, 1024),
        (128, 1, 1024, 6144),
        (128, 1, 3072, 1024),
        (150, 1, 1024, 4096),
        (300, 1, 256, 1536),
        (300, 1, 1024, 256),
        (700, 1, 256, 1536),
        (700, 1, 512, 256),
        (700, 1, 1024, 256),
        (700, 1, 512, 2048),
        (1400, 1, 256, 512),
        (1400, 1, 256, 1536),
        (1400, 1, 512, 256),
        (1400, 1, 256, 1024),
        (1400, 1, 1024, 256),
        (1400, 3, 256, 256),
        (1400, 3, 320, 256),
        (1152, 1, 512, 2048),
        (1152, 1, 2048, 512),
        (2304, 1, 512, 2048),
        (2304, 1, 2048, 512),
        (3000, 1, 512, 2048),
        (5632, 1, 256, 1536),
        (5632, 1, 256, 1024),
        (22_528, 1, 256, 1536),
        (22_528, 1, 256, 1024),
        (22_528, 1, 1024, 256),
        (22_528, 1, 512, 256),
        (8000, 3, 256, 256),
        (24000, 7, 128, 128),
        (64000, 3, 64, 64),
    ] {
        let k = taps * channels;
        let sizes = Sizes { rows, k, n, time: rows, channels, dilation: 1, left: taps / 2 };
        let kind = Kind { convolves: taps > 1, has_history: false, is_joined: false, is_halved: true };
        let source = if kind.convolves { Source::Conv } else { Source::Dense };
        let choices: &[usize] = if kind.convolves { &[5, 9] } else { &[1, 3, 5, 9] };
        let t = tiling(rows, k, n, choices, &context.facts);
        print!("{rows}x{k}x{n}:");
        for precision in formats {
            if k % precision.block() > 0 || kind.convolves && precision.block() > 1 {
                continue;
            }
            let pointer = |i: usize| Pointer::Weight(buffers[i].pointer());
            let mut pointers = [Pointer::Null; 12];
            (pointers[0], pointers[1], pointers[2], pointers[7]) =
                (pointer(0), pointer(1), pointer(2), pointer(3));
            let tile = product(precision, source, t, pointers, sizes, [0, 0, n as u32, 0, 0, 0, 0]);
            // Kernels for warpgroups read zeros in 16 bits, the others in 32.
            let of = |block: Block| {
                let mut work = in_block(tile.clone(), block, sizes);
                work.words[HALVES] = u32::from(block.program.contains("warpgroup"));
                (work, block.time)
            };
            let others = blocks(precision, sizes, kind, &context.facts).map(of);
            let stationary =
                Stationary::of(sizes, &context.facts).filter(|_| !kind.convolves).and_then(|kernel| {
                    let program = warpgroup_program(precision)?;
                    Some((kernel.launch(Work { program, ..tile.clone() }, sizes), kernel.time))
                });
            let estimated = estimate(t, rows, k.div_ceil(16), n, &context.facts);
            print!("  {precision}");
            for (work, estimated) in [(tile.clone(), estimated)].into_iter().chain(others).chain(stationary) {
                let weights = |i: u64| buffers[1].pointer() + (i % 32) * (16 << 20);
                let arguments = (0..32).map(|i| {
                    let mut work = work.clone();
                    work.pointers[1] = Pointer::Weight(weights(i));
                    work.pointers[NEXT_WEIGHTS] = Pointer::Weight(weights(i + 2));
                    work.words[NEXT_BYTES] = work.weight_bytes;
                    work.arguments(&addresses).expect("describes")
                });
                let best = time(&device, &stream, &work, &arguments.collect::<Vec<_>>());
                let name = work.function.trim_start_matches("matmul_");
                print!("  {name}/{} {best:.1} ({estimated:.1})", work.cluster);
            }
        }
        println!();
    }
}

/// Checks that two results differ by the order of their sums at most. NaN is not near anything.
fn assert_near(got: &[f32], want: &[f32], what: &str) {
    let largest = want.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5 * largest;
    let wrong = got.iter().zip(want).position(|pair| !is_near(pair));
    assert_eq!((wrong, got.len()), (None, want.len()), "{what}, largest {largest}");
}

/// Every kernel for many rows computes what the tiling does, up to the order of sums.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn blocks_of_many_rows_agree() {
    use Precision::{Bf16, F16, Q4_0, Q4K, Q5K, Q6K, Q8_0};
    for precision in [F16, Bf16, Q8_0, Q6K, Q5K, Q4K, Q4_0] {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("a GPU and NVRTC");
        for (rows, k, n) in [
            (17, 64, 64),
            (40, 2048, 1024),
            (64, 1024, 6144),
            (128, 3072, 1024),
            (144, 2048, 512),
            (200, 512, 96),
            (432, 2048, 512),
            (500, 640, 260),
        ] {
            if k % precision.block() > 0 {
                continue;
            }
            let (mut want, mut seen) = (vec![], 0);
            for (name, got) in results_of_blocks(&device, precision, [rows, k, n]) {
                if want.is_empty() {
                    want = got;
                    continue;
                }
                assert_near(&got, &want, &format!("{precision} {rows}x{k}x{n} by {name}"));
                seen += 1;
            }
            assert!(seen > 2, "{precision} {rows}x{k}x{n}: {seen} kernels");
        }
    }
}

/// Every kernel for convolutions computes what the tiling does, up to the order of sums, whatever lies beyond
/// the ends and whatever follows.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn convolutions_agree() {
    for precision in [Precision::F16, Precision::Bf16] {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("a GPU and NVRTC");
        let mut seen = std::collections::BTreeSet::new();
        for (sequences, time, channels, n, [taps, dilation, left]) in [
            (2, 300, 96, 96, [7, 9, 54]),
            (3, 129, 64, 40, [3, 1, 2]),
            (1, 500, 192, 288, [7, 3, 9]),
            (2, 128, 384, 200, [2, 1, 1]),
            (1, 64, 128, 64, [11, 5, 25]),
            (1, 5, 256, 192, [7, 1, 3]),
        ] {
            for (edges, follows) in [(0, 0), (1, 1), (2, 2), (2, 0), (0, 2)] {
                if edges == 2 && left != (taps - 1) * dilation {
                    continue;
                }
                let sizes =
                    Sizes { rows: sequences * time, k: taps * channels, n, time, channels, dilation, left };
                let mut want = vec![];
                for (name, got) in results_of_convolutions(&device, precision, sizes, edges, follows) {
                    if want.is_empty() {
                        want = got;
                        continue;
                    }
                    let what = format!("{precision} {sizes:?} {edges} {follows} by {name}");
                    assert_near(&got, &want, &what);
                    seen.insert(name);
                }
            }
        }
        let of_halves = seen.iter().filter(|name| name.starts_with("conv_warpgroup")).count();
        assert_eq!(of_halves, crate::kernels::CONV.len(), "{precision}: {seen:?}");
        let far = seen.iter().filter(|name| name.contains("_far")).count();
        assert_eq!(far, crate::kernels::WARPGROUP_FAR.len(), "{precision}: {seen:?}");
    }
}

/// Results of a convolution with random operands: by the tiling, then by each kernel for many rows. `edges`:
/// 0 repeats them, 1 has zeros, 2 a history. `follows`: 0 nothing, 1 a residual, 2 Snake.
fn results_of_convolutions(
    device: &CudaDevice,
    precision: Precision,
    sizes: Sizes,
    edges: u32,
    follows: u32,
) -> Vec<(String, Vec<f32>)> {
    let context = &device.core().context;
    let stream = Stream::new(context).expect("a stream");
    let Sizes { rows, k, n, channels, left, .. } = sizes;
    let half = |x: f32| match precision {
        Precision::F16 => half::f16::from_f32(x).to_bits(),
        _ => half::bf16::from_f32(x).to_bits(),
    };
    let halves = |x: &[f32]| x.iter().flat_map(|x| half(*x).to_le_bytes()).collect::<Vec<u8>>();
    let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let buffer = |bytes: &[u8]| {
        let buffer = DeviceBuffer::new(context, bytes.len().max(16)).expect("room");
        // SAFETY: the buffer has this size.
        unsafe { stream.upload(buffer.pointer(), bytes).expect("copies") };
        buffer
    };
    let mut random = orate_testing::Random::new(7);
    let mut floats = |count| random.floats(count, -1.0, 1.0);
    let x = floats(rows * channels);
    let (rounded, x) = (buffer(&halves(&x)), buffer(&bytes(&x)));
    let w = buffer(&halves(&floats(k * n.next_multiple_of(CHANNELS))));
    let history = buffer(&bytes(&floats(rows / sizes.time * left * channels)));
    let [bias, frequency, gain] = [(); 3].map(|()| buffer(&bytes(&floats(n))));
    let residual = buffer(&bytes(&floats(rows * n)));
    let out = buffer(&vec![0; 4 * rows * n]);
    let mut pointers = [Pointer::Null; 12];
    for (i, b) in [(0, &x), (1, &w), (2, &bias), (7, &out)] {
        pointers[i] = Pointer::Weight(b.pointer());
    }
    let also: &[(usize, &DeviceBuffer)] = match follows {
        0 => &[],
        1 => &[(4, &residual)],
        _ => &[(10, &frequency), (11, &gain)],
    };
    let past = [(9, &history)];
    for (i, b) in also.iter().chain(past.iter().filter(|_| edges == 2)) {
        pointers[*i] = Pointer::Weight(b.pointer());
    }
    let (source, choices): (_, &[usize]) =
        if edges == 0 { (Source::Conv, &[5, 9]) } else { (Source::Past, &[5, 7]) };
    let t = tiling(rows, k, n, choices, &context.facts);
    let activation = if follows == 2 { SNAKE } else { 0 };
    let numbers = [activation, 0, n as u32, 0, 0, u32::from(edges == 1), 0];
    let tile = product(precision, source, t, pointers, sizes, numbers);
    let mut works = vec![tile.clone()];
    for is_halved in [false, true] {
        let kind = Kind { convolves: true, has_history: edges == 2, is_joined: false, is_halved };
        for block in blocks(precision, sizes, kind, &context.facts) {
            let mut work = in_block(tile.clone(), block, sizes);
            let takes_halves = block.program.contains("warpgroup");
            if is_halved && takes_halves {
                work.pointers[0] = Pointer::Weight(rounded.pointer());
                work.words[HALVES] = 1;
            }
            if takes_halves || !is_halved {
                works.push(work);
            }
        }
    }
    let addresses = Addresses::default();
    works
        .into_iter()
        .map(|work| {
            // SAFETY: the buffer has this size.
            unsafe { stream.clear(out.pointer(), out.bytes()).expect("clears") };
            time(device, &stream, &work, &[work.arguments(&addresses).expect("describes")]);
            let mut host = Pinned::empty(context);
            // SAFETY: the buffer has these floats; the copy is waited for.
            let got = unsafe {
                stream.download(out.pointer(), &mut host, 4 * rows * n, None).expect("copies");
                host.floats(rows * n).to_vec()
            };
            (work.function.to_owned(), got)
        })
        .collect()
}

/// Results of a matmul with random operands: by the tiling, then by each kernel for many rows.
fn results_of_blocks(
    device: &CudaDevice,
    precision: Precision,
    [rows, k, n]: [usize; 3],
) -> Vec<(String, Vec<f32>)> {
    let context = &device.core().context;
    let stream = Stream::new(context).expect("a stream");
    let sizes = Sizes { rows, k, n, time: rows, channels: k, dilation: 1, left: 0 };
    let kind = Kind { convolves: false, has_history: false, is_joined: false, is_halved: false };
    let buffer = |bytes: &[u8]| {
        let buffer = DeviceBuffer::new(context, bytes.len()).expect("room");
        // SAFETY: the buffer has this size.
        unsafe { stream.upload(buffer.pointer(), bytes).expect("copies") };
        buffer
    };
    let mut random = orate_testing::Random::new(5);
    let mut floats = |count| random.floats(count, -1.0, 1.0);
    let bytes = |x: Vec<f32>| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let half = |x: f32| match precision {
        Precision::Bf16 => half::bf16::from_f32(x).to_bits(),
        _ => half::f16::from_f32(x).to_bits(),
    };
    let halves = |x: &[f32]| x.iter().flat_map(|x| half(*x).to_le_bytes()).collect::<Vec<u8>>();
    let x = floats(rows * k);
    let (rounded, x) = (buffer(&halves(&x)), buffer(&bytes(x)));
    // In whatever order the kernels read them, all read the same; numbers and scales of blocks, too.
    let w = floats(k.next_multiple_of(16) * n.next_multiple_of(CHANNELS));
    let w = buffer(&halves(&w));
    let out = buffer(&vec![0; 4 * rows * n]);
    let mut pointers = [Pointer::Null; 12];
    for (i, b) in [(0, &x), (1, &w), (7, &out)] {
        pointers[i] = Pointer::Weight(b.pointer());
    }
    let t = tiling(rows, k, n, &[1, 3, 5, 9], &context.facts);
    let tile = product(precision, Source::Dense, t, pointers, sizes, [0, 0, n as u32, 0, 0, 0, 0]);
    let others: Vec<Block> = blocks(precision, sizes, kind, &context.facts).collect();
    let many = blocks_of_very_many(precision, sizes, &context.facts).map(|many| {
        let mut work = in_block(tile.clone(), many, sizes);
        work.pointers[0] = Pointer::Weight(rounded.pointer());
        work.words[HALVES] = 1;
        work
    });
    let others = others.into_iter().map(|b| in_block(tile.clone(), b, sizes));
    let addresses = Addresses::default();
    [tile.clone()]
        .into_iter()
        .chain(others)
        .chain(many)
        .map(|work| {
            // SAFETY: the buffer has this size.
            unsafe { stream.clear(out.pointer(), out.bytes()).expect("clears") };
            time(device, &stream, &work, &[work.arguments(&addresses).expect("describes")]);
            let mut host = Pinned::empty(context);
            // SAFETY: the buffer has these floats; the copy is waited for.
            let got = unsafe {
                stream.download(out.pointer(), &mut host, 4 * rows * n, None).expect("copies");
                host.floats(rows * n).to_vec()
            };
            (format!("{}/{}", work.function, work.cluster), got)
        })
        .collect()
}

/// Microseconds of one launch of many, one for each of `arguments`.
fn time(device: &CudaDevice, stream: &Stream, work: &Work, arguments: &[Vec<u64>]) -> f64 {
    let core = device.core();
    let context = &core.context;
    let launch = Launch {
        function: core.kernels.get(context, work.kernel()).expect("loads"),
        grid: work.grid,
        threads: work.threads,
        shared: work.shared,
        cluster: work.cluster,
        early: context.facts.arch >= CLUSTER_ARCH,
        cooperative: false,
    };
    let graph = stream.capture(|| {
        // SAFETY: the buffers have room for the operands.
        arguments.iter().try_for_each(|a| unsafe { stream.start(&launch, a) })
    });
    let graph = graph.expect("records");
    let (begin, end) = (Event::new(context).expect("an event"), Event::new(context).expect("an event"));
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        begin.record(stream).expect("records");
        stream.launch(&graph).expect("runs");
        end.record(stream).expect("records");
        best = best.min(end.seconds_since(&begin).expect("ran") / arguments.len() as f64 * 1e6);
    }
    best
}

/// Launches of residual units of a codec for 25 frames of eight callers.
#[test]
#[ignore = "needs an NVIDIA GPU; prints times for those who tune"]
fn launches_of_units() {
    let policy = PrecisionPolicy::uniform(Precision::Bf16);
    let device = CudaDevice::new(0, policy.clone(), None).expect("a GPU and NVRTC");
    let context = &device.core().context;
    let stream = Stream::new(context).expect("a stream");
    for sizes in [[8, 48_000, 96], [8, 16_000, 192], [8, 4000, 384], [8, 800, 768]] {
        let case = orate_testing::codec_units(sizes);
        let plan = Plan::compile(case.graph, &device).expect("compiles");
        let bytes = plan.buffers().iter().map(|b| 4 * b.shape.len()).max().unwrap_or(0);
        let [arena, weights, others] = [plan.arena_bytes(), 64 << 20, bytes].map(|bytes| {
            let buffer = DeviceBuffer::new(context, bytes).expect("room");
            // SAFETY: just allocated.
            unsafe { stream.clear(buffer.pointer(), buffer.bytes()).expect("clears") };
            buffer
        });
        let mut bank = WeightBank::default();
        bank.imagine(&plan, &policy, &case.weights, weights.pointer());
        let mut works = lower(&plan, &bank, &policy, &context.facts);
        join_followers(&plan, &mut works, &context.facts);
        let buffers = vec![others.pointer(); plan.buffers().len()];
        let addresses = Addresses { arena: arena.pointer(), buffers, scalars: vec![], slots: 0 };
        for (_, work) in works {
            let arguments = vec![work.arguments(&addresses).expect("describes"); 8];
            println!("{sizes:?} {}: {:.1} µs", work.function, time(&device, &stream, &work, &arguments));
        }
    }
}

/// Every tile on shapes of networks, and the kernel without tensor cores.
#[test]
#[ignore = "needs an NVIDIA GPU; prints times for those who tune"]
fn tiles_of_attention() {
    for precision in Precision::FLOATS {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("a GPU and NVRTC");
        for shape in [
            [1, 32, 32, 8, 64],
            [1, 72, 72, 4, 64],
            [1, 72, 50, 8, 32],
            [1, 300, 300, 8, 64],
            [1, 700, 700, 8, 64],
            [1, 1500, 1500, 8, 64],
            [2, 300, 300, 8, 64],
            [2, 700, 700, 8, 64],
            [2, 1500, 1500, 8, 64],
            [1, 128, 128, 16, 128],
            [1, 700, 700, 8, 128],
        ] {
            print!("{precision} {shape:?}, us:");
            for (name, time) in attention_times(&device, precision, shape) {
                print!("  {name} {time:.2}");
            }
            println!();
        }
    }
}

fn attention_times(
    device: &CudaDevice,
    precision: Precision,
    [rows, tq, tk, heads, d]: [usize; 5],
) -> Vec<(&'static str, f64)> {
    let core = device.core();
    let context = &core.context;
    let stream = Stream::new(context).expect("a stream");
    let mut g = Graph::new("attention");
    let [q, k, v] = [("q", tq), ("k", tk), ("v", tk)]
        .map(|(name, t)| g.input(name, DType::F32, [rows, t, heads * d]).expect("declares"));
    let (scale, mask) = (1.0 / (d as f32).sqrt(), AttentionMask::None);
    let op = Op::Attention { heads, scale, mask, relative: None, bias: false, follows_weights: true };
    let y = g.attention(op, q, k, v, None).expect("builds");
    g.output("y", y).expect("declares");
    let plan = Plan::compile(g, device).expect("there is a kernel");
    let buffer = |n: usize| {
        let buffer = DeviceBuffer::new(context, 4 * n).expect("room");
        let random = orate_testing::Random::new(3).floats(n, -1.0, 1.0);
        let bytes: Vec<u8> = random.iter().flat_map(|x| x.to_le_bytes()).collect();
        // SAFETY: the buffer has this size.
        unsafe { stream.upload(buffer.pointer(), &bytes).expect("copies") };
        buffer
    };
    let buffers: Vec<DeviceBuffer> = plan.buffers().iter().map(|b| buffer(b.shape.len())).collect();
    let pointers = buffers.iter().map(DeviceBuffer::pointer).collect();
    let addresses = Addresses { buffers: pointers, ..Addresses::default() };
    let (bank, step) = (WeightBank::default(), &plan.steps()[0]);
    let (policy, facts) = (&core.policy, &context.facts);
    let o = Operands { plan: &plan, bank: &bank, policy, facts, step };
    let attention = Attention { heads, scale, mask, relative: None, bias: false, follows_weights: true };
    let plain = attention.plain(&o);
    let tiles = Tile::ALL.iter().filter(|t| d <= t.width).map(|t| t.on(plain.clone(), precision, DType::F32));
    [plain.clone(), attention.work(&o)]
        .into_iter()
        .chain(tiles)
        .map(|work| {
            let arguments = vec![work.arguments(&addresses).expect("describes"); 64];
            (work.function, time(device, &stream, &work, &arguments))
        })
        .collect()
}
