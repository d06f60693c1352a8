//! Contracts of a session besides correct results: one submission for all steps, values that survive growth,
//! the same bytes in every run, and errors instead of panics.

use crate::common;
use orate_gpu::{GpuDevice, devices};
use orate_graph::{
    Activation, COOPERATIVE_MATRICES, DType, Device, DeviceError, DeviceKind, Executable, Factor, Graph,
    Memory, Plan, Precision, PrecisionPolicy, Target, Weight,
};
use orate_testing::{
    RandomWeights, ReferenceDevice, check_clearing, check_compact_rows, check_copies, check_extensions,
    check_foreign_copy, check_later_reads, check_shared_reads,
};
use std::sync::Arc;

fn load(device: &dyn Device, graph: Graph) -> Arc<dyn Executable> {
    let weights = RandomWeights::of_graph(&graph, 3);
    let plan = Plan::compile(graph, device).expect("compiles");
    device.open(Arc::new(weights)).load(plan).expect("loads")
}

/// `state ← tanh(state · w) + rows[step] · dt`
fn euler(n: usize) -> Graph {
    let mut g = Graph::new("euler");
    let step = g.scalar("step");
    let dt = g.scalar("dt");
    let x = g.state("state", DType::F32, [1, n, 24]).expect("declares");
    let rows = g.input("rows", DType::F32, [9, 24]).expect("declares");
    let y = g.matmul(x, Weight::named("w", [24, 24])).expect("builds");
    let y = g.activate(y, Activation::Tanh).expect("builds");
    let row = g.select_row(rows, step).expect("builds");
    let z = g.add_row(y, row).expect("builds");
    let z = g.combine(Factor::Const(1.0), y, Factor::Scalar(dt), z).expect("builds");
    g.update("state", z).expect("fits");
    g
}

fn started(device: &dyn Device, n: usize) -> Box<dyn Memory> {
    let mut m = device.memory();
    let ramp = |n: usize| (0..n).map(|i| (i % 13) as f32 / 16.0 - 0.375).collect::<Vec<_>>();
    m.write_f32("state", &[1, n, 24].into(), &ramp(n * 24)).expect("writes");
    m.write_f32("rows", &[9, 24].into(), &ramp(9 * 24)).expect("writes");
    m.set_scalar("dt", 0.25);
    m
}

fn read(m: &mut dyn Memory, name: &str) -> Vec<f32> {
    let mut out = vec![];
    m.read_f32(name, &mut out).expect("is there");
    out
}

#[test]
fn all_steps_are_one_submission() {
    let device = common::device();
    let (plan, reference) = (load(&device, euler(5)), load(&ReferenceDevice, euler(5)));
    let mut all = started(&device, 5);
    plan.run_times(all.as_mut(), "step", 9, &|| true).expect("runs");
    assert_eq!(all.counters().submissions, 1);
    assert_eq!(all.counters().read_backs, 0);
    let all = read(all.as_mut(), "state");

    let mut single = started(&device, 5);
    for i in 0..9 {
        single.set_index("step", i);
        plan.run(single.as_mut()).expect("runs");
    }
    assert_eq!(all, read(single.as_mut(), "state"), "the counter counts");

    let mut want = started(&ReferenceDevice, 5);
    reference.run_times(want.as_mut(), "step", 9, &|| true).expect("runs");
    orate_testing::assert_close("nine steps", &all, &read(want.as_mut(), "state"), 1e-5);
}

#[test]
fn a_loop_that_may_not_begin_does_nothing() {
    let device = common::device();
    let plan = load(&device, euler(5));
    let mut m = started(&device, 5);
    let before = read(m.as_mut(), "state");
    plan.run_times(m.as_mut(), "step", 9, &|| false).expect("nothing to do");
    plan.run_times(m.as_mut(), "step", 0, &|| true).expect("nothing to do");
    assert_eq!(m.counters().submissions, 0);
    assert_eq!(before, read(m.as_mut(), "state"));
}

#[test]
fn every_run_gives_the_same_bytes() {
    let device = common::device();
    let plan = load(&device, euler(70));
    let run = || {
        let mut m = started(&device, 70);
        plan.run_times(m.as_mut(), "step", 4, &|| true).expect("runs");
        read(m.as_mut(), "state").into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let first = run();
    assert!((0..5).all(|_| run() == first));
}

#[test]
fn sessions_run_side_by_side() {
    let device = common::device();
    let plan = load(&device, euler(40));
    let speak = || {
        let mut m = started(&device, 40);
        let mut all = vec![];
        for _ in 0..4 {
            plan.run_times(m.as_mut(), "step", 3, &|| true).expect("runs");
            all.push(read(m.as_mut(), "state"));
        }
        all
    };
    let want = speak();
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|_| s.spawn(speak)).collect();
        for t in threads {
            assert_eq!(t.join().expect("no panic"), want);
        }
    });
}

#[test]
fn values_survive_growth_and_go_when_forgotten() {
    let device = common::device();
    let mut m = device.memory();
    let small: Vec<f32> = (0..100).map(|i| i as f32).collect();
    m.write_f32("keep/a", &[100].into(), &small).expect("writes");
    m.write_i32("keep/ids", &[3].into(), &[1, 2, 3]).expect("writes");
    for round in 1..6 {
        // Each needs more space than the buffer has.
        let large = vec![round as f32; 400_000 * round];
        m.write_f32("large", &[400_000 * round].into(), &large).expect("writes");
        assert_eq!(read(m.as_mut(), "large"), large);
        assert_eq!(read(m.as_mut(), "keep/a"), small, "round {round}");
    }
    // Smaller, and of another shape.
    m.write_f32("large", &[2, 2].into(), &[1.0, 2.0, 3.0, 4.0]).expect("writes");
    let mut out = vec![];
    assert_eq!(m.read_f32("large", &mut out).expect("is there"), [2, 2].into());
    m.forget("keep/");
    assert!(m.read_f32("keep/a", &mut out).is_err());
    assert_eq!(read(m.as_mut(), "large").len(), 4);
    m.shrink_to(device.memory_kept());
    assert_eq!(read(m.as_mut(), "large").len(), 4, "it is small enough");
    m.shrink_to(0);
    assert!(m.read_f32("large", &mut out).is_err());
    m.write_f32("large", &[1].into(), &[5.0]).expect("a new beginning");
    assert_eq!(read(m.as_mut(), "large"), [5.0]);
}

/// A batch of callers has some sixty caches, together up to gigabytes.
#[test]
fn the_buffer_grows_once_for_all_that_is_reserved() {
    let device = common::device();
    let mut m = device.memory();
    m.write_f32("stays", &[2].into(), &[3.0, 4.0]).expect("writes");
    let names: Vec<String> = (0..20).map(|i| format!("cache.{i}")).collect();
    for rows in [1_000, 4_000, 500] {
        let before = m.counters().allocations;
        let shape = [rows, 64].into();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), DType::F32, &shape)).collect();
        m.clear_all(&all).expect("has room");
        let made = m.counters().allocations - before;
        assert!(made <= 1, "{made} buffers for {rows} rows");
        assert_eq!(read(m.as_mut(), "stays"), [3.0, 4.0], "{rows} rows");
        assert_eq!(read(m.as_mut(), "cache.19"), vec![0.0; rows * 64]);
    }
}

#[test]
fn mistakes_are_errors() {
    let device = common::device();
    let plan = load(&device, euler(5));
    let mut m = device.memory();
    assert!(matches!(plan.run(m.as_mut()), Err(DeviceError::Buffer { .. })), "nothing was written");
    let mut m = started(&device, 5);
    assert!(matches!(plan.run(m.as_mut()), Err(DeviceError::Scalar { .. })), "no step");
    m.set_index("step", 9);
    let e = plan.run(m.as_mut()).expect_err("no such row");
    assert!(e.to_string().contains("row 9 of 9"), "{e}");
    m.set_index("step", 8);
    plan.run(m.as_mut()).expect("the last row");
    assert!(m.write_f32("x", &[4].into(), &[1.0]).is_err(), "too few elements");
    m.write_i32("rows", &[9, 24].into(), &[0; 216]).expect("writes");
    assert!(matches!(plan.run(m.as_mut()), Err(DeviceError::Buffer { .. })), "of another type");
    let mut other = started(&ReferenceDevice, 5);
    assert!(matches!(plan.run(other.as_mut()), Err(DeviceError::Mixed { .. })));
    let twin = common::device();
    let mut other = started(&twin, 5);
    assert!(matches!(plan.run(other.as_mut()), Err(DeviceError::Mixed { .. })), "opened twice");
    let mut graph = Graph::new("other");
    let x = graph.input("x", DType::F32, [4]).expect("declares");
    graph.output("y", x).expect("declares");
    let foreign = Plan::compile(graph, &ReferenceDevice).expect("compiles");
    let model = device.open(Arc::new(RandomWeights::of_weights([], 1)));
    assert!(matches!(model.load(foreign), Err(DeviceError::Mixed { .. })));
    let missing = device.open(Arc::new(RandomWeights::of_weights([], 1)));
    let plan = Plan::compile(euler(5), &device).expect("compiles");
    assert!(matches!(missing.load(plan), Err(DeviceError::Graph(_))), "a weight is missing");
}

/// Halves of integers, which both formats represent exactly, are multiplied and summed as in f32, in the same
/// order. This also holds on cooperative matrices if f16 represents the other operand exactly, as in the
/// first of three runs: then no sum is rounded, in any order.
#[test]
fn weights_that_two_bytes_hold_give_the_bits_of_f32() {
    let mut weights = RandomWeights::of_graph(&euler(1), 1);
    weights.set("w", [24, 24], (0..576).map(|i| (i % 37) as f32 / 2.0 - 9.0).collect());
    let weights = Arc::new(weights);
    let run = |precision, rows, times| {
        let device = common::device_with(precision, None);
        let model = device.open(weights.clone());
        let plan = model.load(Plan::compile(euler(rows), &device).expect("compiles")).expect("loads");
        let mut m = started(&device, rows);
        plan.run_times(m.as_mut(), "step", times, &|| true).expect("runs");
        (read(m.as_mut(), "state"), model.weight_bytes(), plan.plan().steps()[0].kernel.clone())
    };
    let has_matrices = common::device_with(Precision::F16, None).info().has_cooperative_matrices();
    for rows in [1, 40] {
        for precision in [Precision::F16, Precision::Bf16] {
            let matrices = has_matrices && precision == Precision::F16 && rows > 1;
            let times = if matrices { 1 } else { 3 };
            let (single, half) = (run(Precision::F32, rows, times), run(precision, rows, times));
            assert_eq!(single.1, 2 * half.1, "half the bytes");
            match matrices {
                true => assert!(half.2.starts_with("f16-cooperative-"), "{}", half.2),
                false => assert_eq!(half.2, format!("{precision}-{}", single.2)),
            }
            if rows > 1 {
                assert_eq!(single.0, half.0, "{precision}");
            } else {
                // Matmuls of one row read more terms at a time, so the order of sums differs.
                orate_testing::assert_close("one row", &half.0, &single.0, 1e-6);
            }
        }
    }
}

/// Integers up to 127 times a power of two per column of a block, which every format represents exactly.
fn whole_numbers(k: usize, n: usize, largest: i32) -> Vec<f32> {
    let most = if largest > 0 { largest } else { -largest - 1 };
    let number = |i: usize| {
        let (row, col) = (i / n, i % n);
        let whole = if row % 32 == 0 { largest } else { (7 * row + 3 * col) as i32 % (2 * most + 1) - most };
        whole as f32 * 2f32.powi((row / 32 + col) as i32 % 5 - 10)
    };
    (0..k * n).map(number).collect()
}

/// One row with joined matmuls, the norm before and the gate after, in every format.
#[test]
fn joined_products_are_those_of_f32() {
    let (d, wide) = (64, 96);
    let mut g = Graph::new("block");
    let norm = |g: &mut Graph, x| g.rms_norm(x, Weight::named("norm", [d]), 1e-6).expect("builds");
    let x = g.input("x", DType::F32, [1, 1, d]).expect("declares");
    let n = norm(&mut g, x);
    let gate = g.matmul(n, Weight::named("gate", [d, wide])).expect("builds");
    let up = g.matmul(n, Weight::named("up", [d, wide])).expect("builds");
    let gate = g.activate(gate, Activation::Silu).expect("builds");
    let y = g.mul(gate, up).expect("builds");
    let y = g.matmul(y, Weight::named("down", [wide, d])).expect("builds");
    let y = g.add(x, y).expect("builds");
    let n = norm(&mut g, y);
    for (name, width) in [("q", 48), ("k", 16), ("v", 32)] {
        let y = g.matmul(n, Weight::named(name, [d, width])).expect("builds");
        g.output(name, y).expect("declares");
    }
    let run = |precision, largest| {
        let mut weights = RandomWeights::of_graph(&g, 1);
        for (name, k, n) in
            [("gate", d, wide), ("up", d, wide), ("down", wide, d), ("q", d, 48), ("k", d, 16), ("v", d, 32)]
        {
            weights.set(name, [k, n], whole_numbers(k, n, largest));
        }
        let weights = Arc::new(weights);
        let device = common::device_with(precision, None);
        let plan = device.open(weights).load(Plan::compile(g.clone(), &device).expect("compiles"));
        let mut m = device.memory();
        let x: Vec<f32> = (0..d).map(|i| (i % 29) as f32 / 29.0 - 0.5).collect();
        m.write_f32("x", &[1, 1, d].into(), &x).expect("writes");
        plan.expect("loads").run(m.as_mut()).expect("runs");
        ["q", "k", "v"].map(|name| read(m.as_mut(), name))
    };
    let formats =
        [(Precision::F16, 127), (Precision::Bf16, 127), (Precision::Q8_0, 127), (Precision::Q4_0, -8)];
    for (precision, largest) in formats {
        let single = run(Precision::F32, largest);
        for (got, want) in run(precision, largest).iter().zip(&single) {
            orate_testing::assert_close(precision.name(), got, want, 1e-5);
        }
    }
}

/// A block of integers up to 127 or −8 is exact, in matmuls of one row and of many, with weights whose last
/// block is not full.
#[test]
fn weights_that_blocks_hold_give_the_numbers_of_f32() {
    let shapes = [(1, 100, 12), (1, 256, 68), (20, 100, 12), (70, 256, 68), (3, 33, 5), (5, 100, 12)];
    // Bytes per 32 weights; f32 takes 128.
    let formats = [(Precision::Q8_0, 127, 34), (Precision::Q4_0, -8, 18)];
    for ((precision, largest, bytes), (rows, k, n)) in formats.iter().flat_map(|f| shapes.map(|s| (*f, s))) {
        let mut g = Graph::new("one");
        let x = g.input("x", DType::F32, [1, rows, k]).expect("declares");
        let y = g.matmul(x, Weight::named("w", [k, n])).expect("builds");
        g.output("y", y).expect("declares");
        let mut weights = RandomWeights::of_graph(&g, 1);
        weights.set("w", [k, n], whole_numbers(k, n, largest));
        let weights = Arc::new(weights);
        let run = |precision| {
            let device = common::device_with(precision, None);
            let model = device.open(weights.clone());
            let plan = model.load(Plan::compile(g.clone(), &device).expect("compiles")).expect("loads");
            let mut m = device.memory();
            let x: Vec<f32> = (0..rows * k).map(|i| (i % 29) as f32 / 29.0 - 0.5).collect();
            m.write_f32("x", &[1, rows, k].into(), &x).expect("writes");
            plan.run(m.as_mut()).expect("runs");
            (read(m.as_mut(), "y"), model.weight_bytes(), plan.plan().steps()[0].kernel.clone())
        };
        let (single, blocks) = (run(Precision::F32), run(precision));
        assert_eq!(blocks.2, format!("{precision}-{}", single.2));
        assert_eq!(blocks.1 * 128, single.1 * bytes);
        orate_testing::assert_close(&blocks.2, &blocks.0, &single.0, 1e-6);
    }
}

/// bf16 weights have the range of f32, and those of a bf16 checkpoint stay exact.
#[test]
fn weights_in_bf16_have_the_range_of_f32() {
    let device = common::device_with(Precision::Bf16, None);
    let mut g = Graph::new("one");
    let x = g.input("x", DType::F32, [1, 1, 4]).expect("declares");
    let y = g.matmul(x, Weight::named("w", [4, 4])).expect("builds");
    g.output("y", y).expect("declares");
    let diagonal = [1e38f32, -65_536.0, 1.25e-30, -1.5e-4].map(|x| f32::from_bits(x.to_bits() & 0xffff_0000));
    let mut weights = RandomWeights::of_graph(&g, 1);
    weights.set("w", [4, 4], (0..16).map(|i| if i % 5 == 0 { diagonal[i / 5] } else { 0.0 }).collect());
    let plan =
        device.open(Arc::new(weights)).load(Plan::compile(g, &device).expect("compiles")).expect("loads");
    let mut m = device.memory();
    m.write_f32("x", &[1, 1, 4].into(), &[1.0; 4]).expect("writes");
    plan.run(m.as_mut()).expect("runs");
    assert_eq!(read(m.as_mut(), "y"), diagonal);
}

#[test]
fn weights_beyond_f16_are_refused_unless_they_are_denied() {
    let (kind, index) = common::wish();
    for (largest, deny, loads) in
        [(65_519.0, vec![], true), (65_520.0, vec![], false), (65_520.0, vec!["w".to_owned()], true)]
    {
        let policy = PrecisionPolicy { precision: Precision::F16, deny, ..Default::default() };
        let device = GpuDevice::new(Some(kind), index, policy, None).expect("opens");
        let mut weights = RandomWeights::of_graph(&euler(1), 1);
        weights.set("w", [24, 24], [[0.5; 24], [-largest; 24]].concat().repeat(12));
        let plan = Plan::compile(euler(5), &device).expect("compiles");
        match device.open(Arc::new(weights)).load(plan).map(|_| ()).map_err(|e| e.to_string()) {
            Ok(()) => assert!(loads, "{largest}"),
            Err(e) => assert!(!loads && e.starts_with("weight `w`: -65520 ") && e.contains("deny"), "{e}"),
        }
    }
}

/// A value that exceeds any buffer.
#[test]
fn too_much_is_out_of_memory() {
    let device = common::device();
    let mut g = Graph::new("huge");
    let x = g.input("x", DType::F32, [1, 1 << 20]).expect("declares");
    let wide = g.concat(&vec![x; 8192], 0).expect("builds");
    g.output("y", wide).expect("declares");
    let plan = Plan::compile(g, &device).expect("compiles");
    let model = device.open(Arc::new(RandomWeights::of_weights([], 1)));
    let e = model.load(plan).err().expect("32 GiB in one buffer");
    assert!(
        matches!(&e, DeviceError::OutOfMemory { what, .. } if what.starts_with("34359738368 bytes")),
        "{e}"
    );
    let mut m = device.memory();
    m.write_f32("x", &[1].into(), &[2.0]).expect("nothing is lost");
    assert_eq!(read(m.as_mut(), "x"), [2.0]);
}

#[test]
fn times_are_given_for_every_step() {
    let device = common::device();
    let plan = load(&device, euler(5));
    let mut m = started(&device, 5);
    m.set_index("step", 0);
    let times = plan.profile(m.as_mut()).expect("runs");
    assert_eq!(times.len(), plan.plan().steps().len());
    assert!(times.iter().all(|t| (0.0..60.0).contains(t)) && times.iter().any(|t| *t > 0.0), "{times:?}");
}

#[test]
fn compiled_kernels_are_kept() {
    let folder = std::env::temp_dir().join(format!("orate-gpu-kept-{}", std::process::id()));
    let device = common::device_with(Precision::F32, Some(folder.clone()));
    load(&device, euler(5));
    if device.info().features.iter().any(|f| f == "pipeline cache") {
        let files = std::fs::read_dir(&folder).expect("was made").count();
        assert_eq!(files, 1, "one file per device");
        let again = common::device_with(Precision::F32, Some(folder.clone()));
        load(&again, euler(5));
        // A damaged file is replaced.
        let file =
            std::fs::read_dir(&folder).expect("was made").next().expect("one").expect("readable").path();
        let whole = std::fs::read(&file).expect("readable");
        std::fs::write(&file, &whole[..whole.len() / 2]).expect("writable");
        load(&common::device_with(Precision::F32, Some(folder.clone())), euler(5));
        assert!(std::fs::read(&file).expect("readable").len() > whole.len() / 2);
    }
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn wishes_are_obeyed_or_refused() {
    let (kind, index) = common::wish();
    let all = devices();
    let info = all.iter().find(|d| d.kind == kind && d.index == index).expect("the device is listed");
    let device = common::device();
    // Cooperative matrices are for f16 only.
    assert_eq!(common::device_with(Precision::F16, None).info(), *info);
    let mut exact = info.clone();
    exact.features.retain(|f| !f.starts_with(COOPERATIVE_MATRICES));
    assert_eq!(device.info(), exact);
    assert_eq!(device.name(), info.id());
    assert_eq!(device.threads(), 0);

    let count = all.iter().filter(|d| d.kind == kind).count();
    let open = |kind, index, precision| {
        GpuDevice::new(kind, index, PrecisionPolicy::uniform(precision), None).err().map(|e| e.to_string())
    };
    let e = open(Some(kind), count, Precision::F32).expect("there are fewer");
    assert!(e.contains(&format!("there are {count}")) || e.contains("there is 1"), "{e}");
    let e = open(Some(kind), index, Precision::Tf32).expect("not there");
    assert!(e.contains("f32 or ") && e.contains("q4_0 and not in tf32, which is for CUDA"), "{e}");
    assert!(open(Some(DeviceKind::Cuda), 0, Precision::F32).expect("no GPU of this crate").contains("cuda"));
    let best = GpuDevice::new(None, 0, PrecisionPolicy::default(), None).expect("any will do").info();
    assert!(all.iter().all(|d| d.class >= best.class), "{best:?} is not the best of {all:?}");
}

#[test]
fn memory_is_copied() {
    let device = common::device();
    check_copies(&device);
    check_shared_reads(&device);
    check_extensions(&device);
    check_compact_rows(&device);
    check_later_reads(&device);
    check_clearing(&device);
    check_foreign_copy(device.memory().as_mut(), common::device().memory().as_mut());
    check_foreign_copy(device.memory().as_mut(), ReferenceDevice.memory().as_mut());
}
