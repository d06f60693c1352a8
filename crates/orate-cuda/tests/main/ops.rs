//! Every op case on a GPU, compared with the reference interpreter.
//!
//! ```sh
//! cargo test -p orate-cuda --test main ops:: -- --ignored
//! ```

use crate::common;
use orate_cuda::{CudaDevice, devices};
use orate_graph::{
    Activation, ConvGeometry, DType, Device, DeviceError, Executable, Graph, Norm, Op, Plan, Precision,
    PrecisionPolicy, Result, Step, Value, Weight,
};
use orate_models::supertonic::{Padding, Sizes};
use orate_testing::{
    Case, DECODERS, Data, Executor, NOT_BUILT_ON_GPUS, OnDevice, RandomWeights, ReferenceDevice, check_all,
    check_clearing, check_compact_rows, check_copies, check_extensions, check_foreign_copy,
    check_later_reads, check_shared_reads, check_stored_blocks, check_stored_layer, codec_units, decoder,
    feed_forward, fused_cases, harvest, op_cases_built, relative_attention, residual_block,
    tolerance::of_rounded_attention, transformer,
};
use std::sync::Arc;

fn device() -> CudaDevice {
    CudaDevice::new(0, PrecisionPolicy::default(), None).expect("an NVIDIA GPU and NVRTC")
}

fn sizes(batch: usize, tokens: usize, frames: usize) -> Sizes {
    Sizes {
        batch,
        tokens,
        frames,
        steps: 3,
        padding: if batch > 1 { Padding::Cleared } else { Padding::None },
    }
}

fn cases(graphs: &[Graph], wanted: impl Fn(&Op) -> bool) -> Vec<Case> {
    let all = graphs.iter().flat_map(harvest);
    all.filter(|c| c.graph.nodes().iter().all(|n| wanted(&n.op))).collect()
}

/// Everything but matmuls: cheap at full length.
fn is_light(op: &Op) -> bool {
    !matches!(op, Op::MatMul { .. } | Op::Conv1d { .. } | Op::Attention { .. })
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn op_cases_on_the_gpu() {
    let device = device();
    let report = check_all(&OnDevice(&device), &op_cases_built(&device, &NOT_BUILT_ON_GPUS));
    println!("{report}");
    report.assert();
}

/// Layers of which most steps are fused.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn fused_cases_on_the_gpu() {
    let report = check_all(&OnDevice(&device()), &fused_cases(200));
    println!("{report}");
    report.assert();
}

/// The same by weights of 8 and 16 bits, where such layers are one launch (`kernels/chain.cu`). Rounding adds
/// up over some eight matmuls; a value from a wrong place is off by about the largest magnitude.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn fused_cases_in_other_formats() {
    for (precision, tolerance) in [(Precision::F16, 0.02), (Precision::Bf16, 0.15), (Precision::Q8_0, 0.15)] {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("as above");
        let cases: Vec<Case> = fused_cases(200).into_iter().map(|case| Case { tolerance, ..case }).collect();
        let report = check_all(&OnDevice(&device), &cases);
        println!("{precision}, fused: {report}");
        report.assert();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn networks_at_their_real_widths() {
    let device = device();
    for version in ["v2", "v3"] {
        for (s, light) in [(sizes(1, 21, 5), false), (sizes(2, 13, 7), false), (sizes(1, 300, 72), true)] {
            let (_, graphs) = common::official(version, s);
            let report = check_all(&OnDevice(&device), &cases(&graphs, |op| !light || is_light(op)));
            println!("{version} {s:?}: {report}");
            report.assert();
        }
    }
}

/// Matmuls for the kernels of many rows (`kernels/matmul_tall.cu` and others), which op cases are too small
/// for; unit tests of the lowering check which of these select them.
fn products_of_many_rows() -> Vec<Case> {
    let case = |name: &str, shape: [usize; 3], build: &dyn Fn(&mut Graph, Value) -> Result<Value>| {
        let mut g = Graph::new(name);
        let x = g.input("x", DType::F32, shape).expect("declares");
        let y = build(&mut g, x).expect("builds");
        g.output("y", y).expect("declares");
        Case::new(name, g)
    };
    let w = |k: usize, n: usize| Weight::named("w", [k, n]);
    let bias = |n: usize| Weight::named("bias", [n]);
    vec![
        case("rows", [1, 6000, 64], &|g, x| g.matmul(x, w(64, 1000))),
        case("rows with bias and residual", [1, 6000, 64], &|g, x| {
            let y = g.linear(x, w(64, 1000), bias(1000))?;
            let residual = g.input("residual", DType::F32, [1, 6000, 1000])?;
            g.add(residual, y)
        }),
        case("convolution of an odd number of channels", [2, 6000, 32], &|g, x| {
            let y = g.conv1d(x, w(7 * 32, 201), ConvGeometry::symmetric(7, 3))?;
            let y = g.add_bias(y, bias(201))?;
            g.activate(y, Activation::Gelu)
        }),
        case("rows of several weights", [2, 700, 256], &|g, x| {
            let parts = [("q", 512), ("k", 512), ("v", 256)];
            let [q, k, v] = parts.map(|(name, n)| g.matmul(x, Weight::named(name, [256, n])));
            let (q, k, v) = (g.activate(q?, Activation::Silu)?, k?, v?);
            let (y, v) = (g.mul(q, k)?, g.matmul(v, w(256, 512))?);
            g.add(y, v)
        }),
        case("gates", [1, 1500, 512], &|g, x| gates(g, x, 704)),
        case("gates of half a block", [1, 300, 128], &|g, x| gates(g, x, 96)),
        case("few rows of many channels", [1, 129, 1024], &|g, x| {
            let y = g.linear(x, w(1024, 200), bias(200))?;
            g.activate(y, Activation::GeluTanh)
        }),
        case("many rows of many channels", [1, 3000, 256], &|g, x| g.matmul(x, w(256, 2048))),
        case("causal convolution", [2, 701, 320], &|g, x| {
            let y = g.conv1d(x, w(3 * 320, 256), ConvGeometry::causal(3, 1))?;
            g.add_bias(y, bias(256))
        }),
        case("long convolution that repeats its ends", [3, 1000, 128], &|g, x| {
            let y = g.conv1d(x, w(3 * 128, 160), ConvGeometry::symmetric(3, 4))?;
            let residual = g.input("residual", DType::F32, [3, 1000, 160])?;
            g.add(residual, y)
        }),
        case("wide convolution with zeros at its ends", [1, 3000, 128], &|g, x| {
            g.conv1d(x, w(3 * 128, 1024), ConvGeometry::symmetric(3, 2).with_zeros())
        }),
        codec_units([2, 1300, 192]),
        codec_units([2, 2600, 96]),
        // Of those that add a residual and store the next Snake.
        codec_units([2, 8000, 96]),
        codec_units([1, 4500, 192]),
        codec_units([2, 2070, 384]),
        case("Snake, then a convolution with zeros at its ends", [1, 8000, 64], &|g, x| {
            let x = snake(g, x, "before")?;
            g.conv1d(x, w(11 * 64, 64), ConvGeometry::symmetric(11, 5).with_zeros())
        }),
        case("convolution after a history", [2, 6000, 32], &|g, x| {
            let history = g.input("history", DType::F32, [2, 18, 32])?;
            g.conv1d_after(history, x, w(7 * 32, 200), ConvGeometry::streaming(7, 3))
        }),
    ]
}

/// A feed-forward of `hidden` gates.
fn gates(g: &mut Graph, x: Value, hidden: usize) -> Result<Value> {
    let c = g.shape(x).last();
    let [gate, up] = ["gate", "up"].map(|name| g.matmul(x, matrix(name, c, hidden)));
    let gate = g.activate(gate?, Activation::Silu)?;
    let y = g.mul(gate, up?)?;
    g.matmul(y, matrix("down", hidden, c))
}

fn snake(g: &mut Graph, x: Value, name: &str) -> Result<Value> {
    let n = g.shape(x).last();
    g.snake(x, vector(&format!("{name}_frequency"), n), vector(&format!("{name}_gain"), n))
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn many_rows() {
    for (precision, roundings) in [
        (Precision::F32, 0),
        (Precision::Tf32, 1 << 13),
        (Precision::F16, 1 << 13),
        (Precision::Bf16, 1 << 16),
    ] {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("as above");
        let mut products = products_of_many_rows();
        for case in &mut products {
            case.tolerance += 3.0 * f64::from(roundings) * orate_testing::tolerance::ROUNDING;
        }
        let report = check_all(&OnDevice(&device), &products);
        println!("{precision}, many rows: {report}");
        report.assert();
    }
}

fn vector(name: &str, n: usize) -> Weight {
    Weight::named(name, [n])
}

fn matrix(name: &str, k: usize, n: usize) -> Weight {
    Weight::named(name, [k, n])
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn values_of_16_bits() {
    for (precision, dtype, rounding) in
        [(Precision::F16, DType::F16, 2f64.powi(-11)), (Precision::Bf16, DType::BF16, 2f64.powi(-8))]
    {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("as above");
        let has_warpgroups = device.info().features.iter().any(|f| f == "sm_90");
        let stored = |case: &Case| {
            let plan = Plan::compile(case.graph.clone(), &device).expect("all ops have kernels");
            let is = |v: Value| plan.info(v).dtype == dtype;
            plan.steps().iter().filter(|s| is(s.node.output)).count()
        };
        let positioned = [[1, 352], [2, 203], [1, 128]].map(relative_attention);
        // In f16, with weights in bf16, too.
        let of_attention = |case: &Case| {
            let plan = Plan::compile(case.graph.clone(), &device).expect("all ops have kernels");
            let is_half = |v: &Value| plan.info(*v).dtype == DType::F16;
            let is = |s: &&Step| {
                matches!(s.node.op, Op::Attention { .. }) && s.node.inputs[..3].iter().all(is_half)
            };
            plan.steps().iter().filter(is).count()
        };
        assert_eq!(of_attention(&positioned[0]), usize::from(has_warpgroups), "{precision}");
        let mut cases: Vec<Case> =
            [[2, 700], [1, 300], [5, 193], [1, 129], [4, 600], [13, 501]].map(transformer).into();
        assert!(!has_warpgroups || stored(&cases[0]) == 10, "norms, joined matmuls, attention, hidden");
        let runs = |case: &Case| {
            let plan = Plan::compile(case.graph.clone(), &device).expect("all ops have kernels");
            plan.runs().iter().map(|run| run.steps.len()).collect::<Vec<_>>()
        };
        assert_eq!(runs(&cases[0]), if has_warpgroups { vec![2, 6, 4] } else { vec![] });
        let causal = ConvGeometry::causal(3, 1).with_zeros();
        let blocks = [
            residual_block([2, 704], causal),
            residual_block([1, 300], causal),
            residual_block([5, 130], ConvGeometry::symmetric(3, 1)),
            residual_block([4, 601], ConvGeometry::symmetric(3, 1).with_zeros()),
        ];
        assert_eq!(runs(&blocks[0]), if has_warpgroups { vec![2, 2] } else { vec![] });
        cases.extend(blocks);
        // Of each of four layers of matmuls and the attention.
        cases.extend(positioned);
        cases.iter_mut().for_each(|case| case.tolerance += 15.0 * rounding);
        let report = check_all(&OnDevice(&device), &cases);
        println!("{precision}: {report}");
        report.assert();

        // The bits are those of values in f32.
        let ffn = |outputs: bool| {
            let mut g = Graph::new("feed_forward");
            let x = g.input("x", DType::F32, [2, 700, 256]).expect("declares");
            let y = feed_forward(&mut g, x, "", outputs).expect("builds");
            g.output("y", y).expect("declares");
            let case = Case::new("feed forward", g);
            assert_eq!(stored(&case), if has_warpgroups && !outputs { 2 } else { 0 });
            let Case { graph, weights, buffers, scalars, .. } = case;
            let after = OnDevice(&device).run(graph, &weights, &buffers, &scalars).expect("runs");
            let Data::F32(y) = &after["y"] else { panic!("an output of f32") };
            y.iter().map(|y| y.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(ffn(false), ffn(true), "{precision}");
    }
}

/// Layers of the rows of a batch, at real widths.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn decoders_of_many_rows() {
    for (precision, dtype, tolerance) in
        [(Precision::F16, DType::F16, 0.004), (Precision::Bf16, DType::BF16, 0.03)]
    {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("as above");
        let mut cases = vec![];
        for sizes in DECODERS {
            for (batch, capacity, kept) in [
                (3, 16, DType::F32),
                (7, 300, dtype),
                (8, 16, dtype),
                (11, 12, dtype),
                (16, 16, dtype),
                (20, 100, DType::F32),
                (32, 40, DType::F32),
                (64, 16, DType::F32),
                (64, 70, dtype),
                (100, 32, dtype),
                (128, 17, DType::F32),
            ] {
                cases.push(Case { tolerance, ..decoder(sizes, batch, capacity, kept) });
            }
        }
        let report = check_all(&OnDevice(&device), &cases);
        println!("{precision}: {report}");
        report.assert();
    }
}

/// Layer norms of rows whose mean is not zero, completed after the matmul that reads them.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn late_layer_norms() {
    let case = |rows: usize, k: usize, n: usize| -> Case {
        let name = format!("{rows} rows of {k} normed for {n}");
        let mut g = Graph::new(&name);
        let y = (|| {
            let x = g.input("x", DType::F32, [rows, 1, k])?;
            let x = g.activate(x, Activation::Exp)?;
            let norm = Norm { weight: vector("gain", k), bias: vector("shift", k), eps: 1e-5 };
            let y = g.layer_norm(x, norm)?;
            let y = g.linear(y, matrix("w", k, n), vector("bias", n))?;
            g.activate(y, Activation::GeluTanh)
        })();
        g.output("y", y.expect("builds")).expect("declares");
        Case::new(name, g)
    };
    for (precision, tolerance) in [
        (Precision::F16, 0.004),
        (Precision::Bf16, 0.03),
        (Precision::Q8_0, 0.03),
        (Precision::Q4K, 0.15),
        (Precision::Q4_0, 0.15),
    ] {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("as above");
        let mut cases = vec![];
        for rows in [3, 8, 9, 16, 17] {
            for (k, n) in [(1024, 3072), (1024, 4096), (256, 40), (512, 1001)] {
                cases.push(Case { tolerance, ..case(rows, k, n) });
            }
        }
        let of_two = |case: &Case| {
            let plan = Plan::compile(case.graph.clone(), &device).expect("all ops have kernels");
            plan.steps().iter().filter(|s| s.fused.norm.is_some()).count()
        };
        assert_eq!(cases.iter().map(of_two).sum::<usize>(), 16, "{precision}: but those of 17 rows");
        let report = check_all(&OnDevice(&device), &cases);
        println!("{precision}, late: {report}");
        report.assert();
    }
}

/// The error of rounded operands is that of their format, and not larger.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn other_precisions() {
    for (precision, roundings) in [
        (Precision::Tf32, 1 << 13),
        (Precision::F16, 1 << 13),
        (Precision::Bf16, 1 << 16),
        (Precision::Q8_0, 1 << 17),
        (Precision::Q6K, 1 << 18),
        (Precision::Q5K, 1 << 19),
        (Precision::Q4K, 1 << 20),
        (Precision::Q4_0, 1 << 20),
    ] {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("as above");
        let mut products = op_cases_built(&device, &NOT_BUILT_ON_GPUS);
        products.retain(|c| {
            c.graph.nodes().iter().any(|n| matches!(n.op, Op::MatMul { .. } | Op::Conv1d { .. }))
        });
        for case in &mut products {
            case.tolerance += 3.0 * f64::from(roundings) * orate_testing::tolerance::ROUNDING;
        }
        let report = check_all(&OnDevice(&device), &products);
        println!("{precision}: {report}");
        report.assert();
        let rounded = |c: &Case| of_rounded_attention(&c.graph, precision);
        let mut attentions = op_cases_built(&device, &NOT_BUILT_ON_GPUS);
        attentions.retain(|c| rounded(c) > 0.0);
        assert!(!attentions.is_empty(), "{precision}: attention that follows weights is among the cases");
        attentions.iter_mut().for_each(|c| c.tolerance += rounded(c));
        let report = check_all(&OnDevice(&device), &attentions);
        println!("{precision}, attention: {report}");
        report.assert();
        // A format with more bits than asked for would be eight times as exact.
        let share = report.closest.map_or(0.0, |(_, share)| share);
        assert!(share > 0.125, "{precision}: {share} of the limit; which format is this?");
    }
}

/// Blocks of a file are multiplied as they are, up to the rounding of scales and activations to f16.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn stored_blocks() {
    for precision in [Precision::Q8_0, Precision::Q6K, Precision::Q5K, Precision::Q4K, Precision::Q4_0] {
        let device = CudaDevice::new(0, PrecisionPolicy::uniform(precision), None).expect("as above");
        check_stored_blocks(&device, precision, 6e-3);
        check_stored_layer(&device, precision, 6e-3);
    }
}

fn load(device: &CudaDevice, graph: &Graph) -> Arc<dyn Executable> {
    let weights = RandomWeights::of_graph(graph, 5);
    let plan = Plan::compile(graph.clone(), device).expect("all ops have kernels");
    device.open(Arc::new(weights)).load(plan).expect("weights are random, and there")
}

/// Runs a kernel that traps, as a driver reset or a fault in any kernel of the process would: the context is
/// lost for the whole process.
fn break_the_context() {
    use cudarc::driver::sys;
    use std::ptr::null_mut;
    const TRAP: &std::ffi::CStr =
        c".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry stop() { trap; }\n";
    let (mut context, mut module, mut kernel) = (null_mut(), null_mut(), null_mut());
    // SAFETY: handles are written before they are used, text and name end in a zero, and the kernel has no
    // parameters.
    let launched = unsafe {
        assert_eq!(sys::cuDevicePrimaryCtxRetain(&mut context, 0), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuCtxSetCurrent(context), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuModuleLoadData(&mut module, TRAP.as_ptr().cast()), sys::CUresult::CUDA_SUCCESS);
        let name = c"stop".as_ptr();
        assert_eq!(sys::cuModuleGetFunction(&mut kernel, module, name), sys::CUresult::CUDA_SUCCESS);
        sys::cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut())
    };
    assert_eq!(launched, sys::CUresult::CUDA_SUCCESS, "the fault comes later");
}

/// In a child process, since nothing on this GPU works in this process afterwards.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_lost_device_is_an_error() {
    const CHILD: &str = "ORATE_TEST_LOST_DEVICE";
    if std::env::var_os(CHILD).is_none() {
        let me = std::env::current_exe().expect("this program");
        let args = ["ops::a_lost_device_is_an_error", "--exact", "--include-ignored", "--nocapture"];
        let child = std::process::Command::new(me).args(args).env(CHILD, "1").output().expect("starts");
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("lost as it should be"), "{child:?}");
        return;
    }
    let device = device();
    let plan = load(&device, &scaled(10.0));
    let mut m = device.memory();
    m.write_f32("x", &[2, 3].into(), &[1.0; 6]).expect("room");
    m.write_f32("rows", &[4, 3].into(), &[0.0; 12]).expect("room");
    plan.run_times(m.as_mut(), "step", 4, &|| true).expect("runs");
    break_the_context();
    // The first call that waits gets the error, and so does every later call. On a GPU with other work the
    // fault may come after some runs.
    let mut out = vec![];
    let begun = std::time::Instant::now();
    let e = loop {
        let ran = plan.run_times(m.as_mut(), "step", 4, &|| true);
        match ran.and_then(|()| m.read_f32("x", &mut out).map(|_| ())) {
            Err(e) => break e,
            Ok(()) => assert!(begun.elapsed().as_secs() < 60, "the context is gone"),
        }
    };
    assert!(matches!(&e, DeviceError::Failed { .. }), "{e}");
    let e = m.read_f32("x", &mut out).expect_err("still gone");
    assert!(e.to_string().contains("open the model anew or choose another device"), "{e}");
    assert!(device.memory().write_f32("y", &[1].into(), &[0.0]).is_err(), "new memory is none either");
    drop((plan, m, device));
    println!("lost as it should be");
}

fn scaled(times: f32) -> Graph {
    let mut g = Graph::new("counting");
    let x = g.state("x", DType::F32, [2, 3]).expect("declares");
    let rows = g.input("rows", DType::F32, [4, 3]).expect("declares");
    let step = g.scalar("step");
    let row = g.select_row(rows, step).expect("builds");
    let y = g.scale(x, orate_graph::Factor::Const(times)).expect("builds");
    let y = g.add_row(y, row).expect("builds");
    g.update("x", y).expect("fits");
    g
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn counted_runs_are_one_submission() {
    let device = device();
    let plan = load(&device, &scaled(10.0));
    let mut m = device.memory();
    m.write_f32("x", &[2, 3].into(), &[1.0; 6]).expect("room");
    let rows: Vec<f32> = (0..12).map(|i| (i / 3) as f32).collect();
    m.write_f32("rows", &[4, 3].into(), &rows).expect("room");
    let before = m.counters();
    plan.run_times(m.as_mut(), "step", 4, &|| true).expect("runs");
    let mut out = vec![];
    m.read_f32("x", &mut out).expect("is there");
    assert_eq!(out, [10123.0; 6]);
    let used = m.counters() - before;
    assert_eq!((used.submissions, used.read_backs), (1, 1));
    // Another step with another row, and again: the recorded graph reads the current scalar.
    for (row, want) in [(2, 101232.0), (1, 1012321.0)] {
        m.set_index("step", row);
        plan.run(m.as_mut()).expect("runs");
        m.read_f32("x", &mut out).expect("is there");
        assert_eq!(out, [want; 6]);
    }
    // A row out of range, a counter that exceeds the rows, and a stop before the start.
    m.set_index("step", 4);
    assert!(matches!(plan.run(m.as_mut()), Err(DeviceError::Operand { .. })));
    assert!(matches!(plan.run_times(m.as_mut(), "step", 5, &|| true), Err(DeviceError::Operand { .. })));
    plan.run_times(m.as_mut(), "step", 4, &|| false).expect("does nothing");
    m.read_f32("x", &mut out).expect("is there");
    assert_eq!(out, [1012321.0; 6]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_is_missing_or_foreign_is_an_error() {
    let device = device();
    let plan = load(&device, &scaled(1.0));
    let mut m = device.memory();
    assert!(matches!(plan.run(m.as_mut()), Err(DeviceError::Buffer { .. })));
    m.write_f32("x", &[2, 3].into(), &[1.0; 6]).expect("room");
    m.write_f32("rows", &[4, 3].into(), &[0.0; 12]).expect("room");
    assert!(matches!(plan.run(m.as_mut()), Err(DeviceError::Scalar { .. })));
    let other = CudaDevice::new(0, PrecisionPolicy::default(), None).expect("as above");
    assert!(matches!(plan.run(other.memory().as_mut()), Err(DeviceError::Mixed { .. })));
    assert!(matches!(plan.run(ReferenceDevice.memory().as_mut()), Err(DeviceError::Mixed { .. })));
    let count = devices().expect("a driver").len();
    let e = CudaDevice::new(count, PrecisionPolicy::default(), None).err().expect("one too many").to_string();
    assert!(e.contains("only"), "{e}");
    assert!(device.info().card.is_some_and(|c| c.len() == 12), "{:?}", device.info());
}

/// Several concurrent sessions with their own memories give the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn sessions_run_side_by_side_and_repeat_exactly() {
    let device = device();
    let (_, graphs) = common::official("v2", sizes(1, 21, 30));
    let case = Case::new("vocoder", graphs[4].clone());
    let plan = Plan::compile(case.graph.clone(), &device).expect("all ops have kernels");
    let plan = device.open(Arc::new(case.weights.clone())).load(plan).expect("random weights");
    let Data::F32(latent) = &case.buffers["latent"] else { panic!("a float input") };
    let shape = &case.graph.buffers()[0].shape;
    let speak = || -> Vec<Vec<u32>> {
        let mut m = device.memory();
        let mut out = vec![];
        (0..20)
            .map(|_| {
                m.write_f32("latent", shape, latent).expect("room");
                plan.run(m.as_mut()).expect("runs");
                m.read_f32("wav", &mut out).expect("is there");
                out.iter().map(|x| x.to_bits()).collect()
            })
            .collect()
    };
    let all: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|_| s.spawn(speak)).collect();
        threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect()
    });
    assert!(all.iter().all(|x| *x == all[0]), "all runs have the same bits");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_is_copied() {
    let device = device();
    check_copies(&device);
    check_shared_reads(&device);
    check_extensions(&device);
    check_compact_rows(&device);
    check_later_reads(&device);
    check_clearing(&device);
    let other = CudaDevice::new(0, PrecisionPolicy::default(), None).expect("as above");
    check_foreign_copy(device.memory().as_mut(), other.memory().as_mut());
    check_foreign_copy(device.memory().as_mut(), ReferenceDevice.memory().as_mut());
}
