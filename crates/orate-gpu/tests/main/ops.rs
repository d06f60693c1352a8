//! Every op case on a GPU or a software rasterizer, compared with the reference interpreter.
//!
//! Cases at the sizes of real models take minutes on a rasterizer, so they are ignored by default. On a GPU:
//! `ORATE_TEST_GPU=vulkan:0 cargo test -p orate-gpu --test main ops:: -- --ignored`.

use crate::common;
use orate_gpu::GpuDevice;
use orate_graph::{
    Activation, ConvGeometry, DType, Device, Graph, Op, Plan, Precision, PrecisionPolicy, Result, Step,
    Target, Value, Weight,
};
use orate_models::supertonic::{Padding, Sizes, graphs};
use orate_testing::{
    Case, Executor, NOT_BUILT_ON_GPUS, OnDevice, check_all, check_stored_blocks, check_stored_layer,
    fused_cases, growing_scores, harvest, op_cases_built, relative_attention, residual_block,
    tolerance::of_rounded_attention, transformer,
};
use std::collections::BTreeSet;

/// Runs all cases on one device, on two threads: a rasterizer spends most of the time compiling kernels.
fn check(device: &GpuDevice, what: &str, cases: &[Case], least: usize) {
    assert!(cases.len() >= least, "{what}: only {} cases", cases.len());
    let (evens, odds): (Vec<_>, Vec<_>) = cases.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    std::thread::scope(|s| {
        for half in [evens, odds] {
            s.spawn(move || {
                let report = check_all(&OnDevice(device), half.into_iter().map(|(_, c)| c));
                println!("{what}: {report}");
                report.assert();
            });
        }
    });
}

fn sizes(tokens: usize, frames: usize) -> Sizes {
    Sizes { batch: 1, tokens, frames, steps: 3, padding: Padding::None }
}

/// Two rows of unequal length.
fn padded(tokens: usize, frames: usize) -> Sizes {
    Sizes { batch: 2, padding: Padding::Cleared, ..sizes(tokens, frames) }
}

/// Additional error of matmuls with f16. With 11 significant bits, rounding changes each weight, and so each
/// term, by at most half an ulp, 2⁻¹¹. The errors of the terms add up no faster than the terms. Cooperative
/// matrices round x as well, which doubles the error; if only weights are rounded, the factor 2 covers
/// cancellation, or an exponential after them.
const F16: f64 = 2.0 / 2048.0;

/// The same for bf16 with 8 significant bits; only weights are rounded.
const BF16_WEIGHTS: f64 = 2.0 / 256.0;

/// The same for q8_0, whose step is 1/127 of the largest weight in a block: the error is at most 1/254 of it,
/// and other weights are smaller.
const Q8_0_WEIGHTS: f64 = 2.0 / 127.0;

/// The same for q4_0: half a step is 1/16 of the largest weight, and a weight of equal magnitude with the
/// other sign has twice that error.
const Q4_0_WEIGHTS: f64 = 2.0 / 8.0;
/// As above, of formats of blocks of 256.
const K_WEIGHTS: [(Precision, f64); 3] =
    [(Precision::Q6K, 2.0 / 32.0), (Precision::Q5K, 2.0 / 16.0), (Precision::Q4K, 2.0 / 8.0)];

fn is_product(op: &Op) -> bool {
    matches!(op, Op::MatMul { .. } | Op::Conv1d { .. })
}

/// Matmul cases, with the additional tolerance of rounded weights.
fn rounded(cases: Vec<Case>, error: f64) -> Vec<Case> {
    let mut products: Vec<Case> =
        cases.into_iter().filter(|c| c.graph.nodes().iter().any(|n| is_product(&n.op))).collect();
    products.iter_mut().for_each(|c| c.tolerance += error);
    products
}

fn light(c: &Case) -> bool {
    let heavy = |op: &Op| is_product(op) || matches!(op, Op::Attention { .. });
    !c.graph.nodes().iter().any(|n| heavy(&n.op))
}

#[test]
fn op_cases_on_a_gpu() {
    let device = common::device();
    check(&device, "op cases", &op_cases_built(&device, &NOT_BUILT_ON_GPUS), 1000);
}

/// Layers whose norms are in the matmuls after them, and whose queries, keys and values are stored in f16,
/// where there are cooperative matrices.
#[test]
#[ignore = "needs a GPU"]
fn layers_of_an_estimator() {
    for (precision, error) in [(Precision::F16, F16), (Precision::Q8_0, Q8_0_WEIGHTS)] {
        let device = common::device_with(precision, None);
        let has_matrices = device.info().features.iter().any(|f| f.starts_with("cooperative"));
        let mut cases: Vec<Case> = [[2, 704], [1, 704], [3, 509], [4, 600]].map(transformer).into();
        let plan = Plan::compile(cases[0].graph.clone(), &device).expect("all ops have kernels");
        let count = |is: &dyn Fn(&Step) -> bool| plan.steps().iter().filter(|s| is(s)).count();
        let norms = count(&|s| matches!(s.node.op, Op::LayerNorm(_)));
        let stored = count(&|s| plan.info(s.node.output).dtype == DType::F16);
        assert_eq!([norms, stored], if has_matrices { [0, 2] } else { [4, 0] }, "{precision}");
        cases.push(residual_block([2, 704], ConvGeometry::causal(3, 1).with_zeros()));
        cases.push(residual_block([1, 301], ConvGeometry::symmetric(3, 1)));
        let plan = Plan::compile(cases[4].graph.clone(), &device).expect("all ops have kernels");
        assert_eq!(plan.steps().len(), 5, "norms add rows and activate: {}", plan.explain(None));
        let encoders = [[1, 352], [2, 203], [1, 128]].map(relative_attention);
        let plan = Plan::compile(encoders[0].graph.clone(), &device).expect("all ops have kernels");
        for kernel in ["attention-cooperative-64", "relative-scores-cooperative"] {
            let is_there = plan.steps().iter().any(|s| s.kernel == kernel);
            assert_eq!(is_there, has_matrices, "{precision}: {kernel}");
        }
        cases.extend(encoders);
        // Of eight matmuls, one after the other.
        cases.iter_mut().for_each(|case| case.tolerance += 8.0 * error);
        check(&device, &format!("{precision}"), &cases, 9);
    }
}

/// Otherwise cases would pass with a kernel for few queries.
#[test]
fn many_queries_have_tiles() {
    let device = common::device();
    let mut kernels = BTreeSet::new();
    let cases = op_cases_built(&device, &NOT_BUILT_ON_GPUS);
    for case in cases.into_iter().filter(|c| c.name.starts_with("Attention of many queries")) {
        let plan = Plan::compile(case.graph, &device).expect("compiles");
        kernels.extend(plan.steps().iter().map(|s| s.kernel.clone()));
    }
    for d in [20, 36, 64] {
        assert!(kernels.contains(&format!("attention-tile-{d}")), "{d}: {kernels:?}");
    }
}

/// Layers of which most steps are fused.
#[test]
fn fused_cases_on_a_gpu() {
    check(&common::device(), "fused cases", &fused_cases(40), 40);
}

/// Matmuls large enough for each tile of the plain kernels; most op cases are too small.
fn large_products() -> Vec<Case> {
    products(&[(17, 33, 24), (70, 720, 72), (100, 1632, 40), (99, 1640, 1024), (260, 2880, 48)])
}

/// The same for tiles of 16 × 16 cooperative matrices that [`large_products`] does not reach.
fn cooperative_products() -> Vec<Case> {
    products(&[
        (72, 1024, 512),
        (36, 512, 1000),
        (99, 1000, 1100),
        (72, 3072, 40),
        (300, 1920, 36),
        (1000, 1600, 20),
        (700, 512, 64),
        (500, 1536, 36),
        // Rows of a batch.
        (5, 1024, 2048),
        (16, 512, 1024),
    ])
}

/// Convolutions that need more workgroups than run concurrently, each with another tile of `MANY`, and
/// matmuls of the same rows with few terms.
fn many_rows() -> Vec<Case> {
    products(&[(2400, 768, 240), (3100, 768, 240), (17_100, 96, 240), (16_900, 192, 240)])
}

/// Matmuls of one operand that run as one on cooperative matrices, the first with an activation.
fn joined_products() -> Vec<Case> {
    let case = |what: &str, shape: [usize; 3], widths: &[usize]| {
        let name = format!("{what} {shape:?} → {widths:?}");
        let mut g = Graph::new(&*name);
        let x = g.input("x", DType::F32, shape).expect("declares");
        for (i, &n) in widths.iter().enumerate() {
            let w = Weight::named(&*format!("w{i}"), [shape[2], n]);
            let y = g.matmul(x, w).expect("builds");
            let y = if i == 0 { g.activate(y, Activation::Silu).expect("builds") } else { y };
            // Outputs of the graph have places of their own, so they cannot follow each other.
            let other = g.input(&format!("x{i}"), DType::F32, [shape[0], shape[1], n]).expect("declares");
            let y = g.mul(y, other).expect("builds");
            g.output(&format!("y{i}"), y).expect("declares");
        }
        Case::new(name, g)
    };
    vec![
        case("as queries, keys and values", [2, 704, 256], &[512, 512, 512]),
        case("of several widths", [1, 70, 100], &[132, 40, 300]),
        case("a pair", [1, 33, 64], &[64, 4]),
        case("rows of a batch", [7, 1, 1024], &[2048, 1024, 1024]),
    ]
}

/// What a layer has besides attention, of rows of a batch: norms, each with the matmuls that read it, of
/// which two are a gate and what it is for.
fn layers_of_batches() -> Vec<Case> {
    let case = |[rows, c, inner]: [usize; 3]| {
        let build = |g: &mut Graph| -> Result<()> {
            let w = |name: &str, k: usize, n: usize| Weight::named(name, [k, n]);
            let x = g.input("x", DType::F32, [rows, 1, c])?;
            let y = g.rms_norm(x, Weight::named("first", [c]), 1e-6)?;
            let [q, k, v] = [("wq", 2 * c), ("wk", c), ("wv", c)].map(|(name, n)| g.matmul(y, w(name, c, n)));
            let (k, v) = (k?, v?);
            let y = g.mul(k, v)?;
            let y = g.concat(&[q?, y], 2)?;
            let y = g.matmul(y, w("wo", 3 * c, c))?;
            let x = g.add(x, y)?;
            let y = g.rms_norm(x, Weight::named("second", [c]), 1e-6)?;
            let gate = g.matmul(y, w("wg", c, inner))?;
            let gate = g.activate(gate, Activation::Silu)?;
            let up = g.matmul(y, w("wu", c, inner))?;
            let y = g.mul(gate, up)?;
            let y = g.matmul(y, w("wd", inner, c))?;
            let y = g.add(x, y)?;
            g.output("y", y)
        };
        let name = format!("layer of {rows} rows of {c} and {inner}");
        let mut g = Graph::new(&*name);
        build(&mut g).expect("builds");
        Case::new(name, g)
    };
    let sizes =
        [[5, 1024, 3072], [7, 96, 132], [17, 512, 1100], [33, 64, 64], [64, 1024, 3072], [100, 300, 700]];
    sizes.into_iter().chain([[128, 1024, 3072], [129, 64, 200]]).map(case).collect()
}

/// Matmuls of these rows, columns and terms, and convolutions with three times as many terms.
fn products(sizes: &[(usize, usize, usize)]) -> Vec<Case> {
    let mut cases = vec![];
    for &(m, n, k) in sizes {
        let bias = Weight::named("bias", [n]);
        let mut product =
            |what: &str, rows: usize, n: usize, build: &dyn Fn(&mut Graph, Value) -> Result<Value>| {
                let name = format!("{what} [{rows}, {k}] → {n}");
                let mut g = Graph::new(&*name);
                let x = g.input("x", DType::F32, [1, rows, k]).expect("declares");
                let y = build(&mut g, x).expect("builds");
                g.output("y", y).expect("declares");
                cases.push(Case::new(name, g));
            };
        let w = |k: usize, n: usize| Weight::named("w", [k, n]);
        product("fused", m, n, &|g, x| {
            let y = g.linear(x, w(k, n), bias.clone())?;
            let y = g.activate(y, Activation::Gelu)?;
            let residual = g.input("residual", DType::F32, [1, m, n])?;
            g.add(residual, y)
        });
        product("odd", m, n - 1, &|g, x| g.matmul(x, w(k, n - 1)));
        product("convolution", m, n, &|g, x| g.conv1d(x, w(3 * k, n), ConvGeometry::causal(3, 2)));
    }
    cases
}

#[test]
fn products_of_all_tiles() {
    check(&common::device(), "tiles", &large_products(), 15);
}

#[test]
fn products_in_f16() {
    let device = common::device_with(Precision::F16, None);
    let cases = op_cases_built(&device, &NOT_BUILT_ON_GPUS);
    check(&device, "op cases in f16", &rounded(cases, F16), 200);
    check(&device, "tiles in f16", &rounded(large_products(), F16), 15);
    // Without cooperative matrices the kernels are those of the others.
    let (step, least) = if device.info().has_cooperative_matrices() { (1, 30) } else { (4, 7) };
    let cooperative: Vec<Case> = cooperative_products().into_iter().step_by(step).collect();
    check(&device, "cooperative tiles in f16", &rounded(cooperative, F16), least);
    if device.info().has_cooperative_matrices() {
        check(&device, "many rows in f16", &rounded(many_rows(), F16), 12);
    }
}

/// Attention whose operands may be rounded.
fn attentions(device: &GpuDevice) -> Vec<Case> {
    let follows = |n: &Op| matches!(n, Op::Attention { follows_weights: true, .. });
    let mut cases = op_cases_built(device, &NOT_BUILT_ON_GPUS);
    cases.retain(|c| c.graph.nodes().iter().any(|n| follows(&n.op)));
    cases
}

/// Names in plans show that it runs on cooperative matrices where there are some.
#[test]
fn attention_in_f16() {
    let device = common::device_with(Precision::F16, None);
    let mut cases = growing_scores(true).expect("cases fit the op's shape rules");
    cases.extend(attentions(&device));
    let kernels = cases.iter().map(|c| Plan::compile(c.graph.clone(), &device).expect("compiles"));
    let kernels: BTreeSet<String> = kernels.flat_map(|p| p.steps().to_vec()).map(|s| s.kernel).collect();
    println!("attention in f16: {kernels:?}");
    for d in [32, 64] {
        let name = format!("attention-cooperative-{d}");
        assert_eq!(kernels.contains(&name), device.info().has_cooperative_matrices(), "{name}: {kernels:?}");
    }
    match device.info().has_cooperative_matrices() {
        true => cases.iter_mut().for_each(|c| c.tolerance += of_rounded_attention(&c.graph, Precision::F16)),
        // The kernels are those of f32.
        false => cases = cases.into_iter().step_by(4).collect(),
    }
    check(&device, "attention in f16", &cases, 7);
}

#[test]
fn joined_products_in_f16() {
    let device = common::device_with(Precision::F16, None);
    let mut joined = joined_products();
    joined.iter_mut().for_each(|c| c.tolerance += F16);
    check(&device, "joined matmuls in f16", &joined, 4);
    let has = device.info().has_cooperative_matrices();
    let mut layers = layers_of_batches();
    layers.iter_mut().for_each(|c| c.tolerance += 4.0 * F16);
    for case in &layers {
        let plan = Plan::compile(case.graph.clone(), &device).expect("compiles");
        let norms = plan.steps().iter().filter(|s| matches!(s.node.op, Op::RmsNorm { .. })).count();
        let gated = plan.steps().iter().filter(|s| s.fused.gated).count();
        let rows = plan.info(plan.steps()[0].node.output).shape.dims()[0];
        // Without cooperative matrices a kernel for few rows multiplies gates.
        let are = (has && rows <= 128, usize::from(has || rows <= 16));
        assert_eq!((norms == 0, gated), are, "{}", plan.explain(None));
    }
    let step = if has { 1 } else { 4 };
    let layers: Vec<Case> = layers.into_iter().step_by(step).collect();
    check(&device, "layers of batches in f16", &layers, 2);
    // Weights in another format do not run on cooperative matrices.
    let policy = PrecisionPolicy {
        precision: Precision::F16,
        deny: vec!["w*".to_owned()],
        ..PrecisionPolicy::default()
    };
    let (kind, index) = common::wish();
    let device = GpuDevice::new(Some(kind), index, policy, None).expect("opens, as above");
    check(&device, "joined matmuls in f32", &joined_products(), 4);
}

/// Kernels differ from those for f16 only in how they read the weight, so some of the cases are enough.
fn check_some(precision: Precision, error: f64) {
    let device = common::device_with(precision, None);
    let cases = op_cases_built(&device, &NOT_BUILT_ON_GPUS);
    let some = rounded(cases, error).into_iter().step_by(4).collect::<Vec<_>>();
    check(&device, &format!("op cases in {precision}"), &some, 50);
    let step = if device.info().has_cooperative_matrices() { 1 } else { 2 };
    let tiles: Vec<Case> = large_products().into_iter().step_by(step).collect();
    check(&device, &format!("tiles in {precision}"), &rounded(tiles, error), 8);
    let mut attentions: Vec<Case> = attentions(&device).into_iter().step_by(4).collect();
    // Without cooperative matrices this device computes attention in f32, also where it may round.
    if device.info().has_cooperative_matrices() {
        let products = cooperative_products().into_iter().chain(joined_products()).collect();
        check(&device, &format!("cooperative tiles in {precision}"), &rounded(products, error), 34);
        check(&device, &format!("layers in {precision}"), &rounded(layers_of_batches(), 4.0 * error), 8);
        attentions.iter_mut().for_each(|c| c.tolerance += of_rounded_attention(&c.graph, precision));
    }
    check(&device, &format!("attention in {precision}"), &attentions, 4);
}

/// Devices without cooperative matrices use plain kernels, as does f32 on all devices; names in plans show
/// which.
#[test]
fn cooperative_matrices_where_they_are() {
    let kernels = |device: &GpuDevice| -> BTreeSet<String> {
        let cases = large_products().into_iter().chain(cooperative_products());
        let plans = cases.map(|c| Plan::compile(c.graph, device).expect("compiles"));
        let steps: Vec<_> = plans.flat_map(|p| p.steps().to_vec()).collect();
        steps.into_iter().filter(|s| is_product(&s.node.op)).map(|s| s.kernel).collect()
    };
    let cooperative = |name: &String| name.starts_with("f16-cooperative");
    let device = common::device_with(Precision::F16, None);
    let names = kernels(&device);
    let info = device.info();
    let has = info.has_cooperative_matrices();
    println!("{}: {}; matmuls in f16: {names:?}", device.name(), info.features.join(", "));
    // Widths that are not a multiple of 4 use the plain kernel.
    assert!(names.iter().any(|n| n.starts_with("f16-gemm") && n.ends_with("-odd")), "{names:?}");
    assert_eq!(names.iter().filter(|n| cooperative(n)).count() >= 2, has, "{names:?}");
    // Few rows, those of the last case, run as one everywhere.
    let joined = joined_products().into_iter().take(3);
    for plan in joined.map(|c| Plan::compile(c.graph, &device).expect("compiles")) {
        let products = plan.steps().iter().filter(|s| is_product(&s.node.op)).count();
        assert_eq!(products == 1, has, "{}: {products} matmuls", plan.name());
    }
    let exact = common::device();
    assert!(!exact.info().has_cooperative_matrices(), "not used in f32");
    assert!(!kernels(&exact).iter().any(cooperative));
}

/// Sums of groups and of matrices have a fixed order.
#[test]
fn products_in_f16_are_the_same_every_time() {
    let device = common::device_with(Precision::F16, None);
    let step = if device.info().has_cooperative_matrices() { 1 } else { 4 };
    for case in cooperative_products().into_iter().step_by(step) {
        let run = || OnDevice(&device).run(case.graph.clone(), &case.weights, &case.buffers, &case.scalars);
        let first = run();
        assert!(first.is_ok(), "{}: {first:?}", case.name);
        assert!(run() == first, "{}", case.name);
    }
}

#[test]
fn products_in_bf16() {
    check_some(Precision::Bf16, BF16_WEIGHTS);
}

#[test]
fn products_in_q8_0() {
    check_some(Precision::Q8_0, Q8_0_WEIGHTS);
}

#[test]
fn products_in_q4_0() {
    check_some(Precision::Q4_0, Q4_0_WEIGHTS);
}

#[test]
fn stored_blocks() {
    for precision in [Precision::Q8_0, Precision::Q6K, Precision::Q5K, Precision::Q4K, Precision::Q4_0] {
        let device = common::device_with(precision, None);
        check_stored_blocks(&device, precision, 4e-3);
        check_stored_layer(&device, precision, 6e-3);
    }
}

#[test]
fn products_in_blocks_of_256() {
    for (precision, error) in K_WEIGHTS {
        check_some(precision, error);
    }
}

#[test]
fn committed_models() {
    let device = common::device();
    for (model, least) in [("tiny", 80), ("tiny1", 80), ("tiny3", 100)] {
        let files = common::tiny(model);
        for s in [sizes(20, 9), padded(13, 7)] {
            let graphs = graphs(&files.config, &*files.weights, s).expect("a whole model");
            let cases: Vec<Case> = graphs.iter().flat_map(harvest).collect();
            check(&device, &format!("{model} {s:?}"), &cases, least);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn models_at_their_real_sizes() {
    let device = common::device();
    for (model, least) in [("built-in", 75), ("v2", 80), ("v3", 100)] {
        for s in [sizes(21, 5), padded(13, 7)] {
            let cases: Vec<Case> = common::full_size(model, s).iter().flat_map(harvest).collect();
            check(&device, &format!("{model} {s:?}"), &cases, least);
        }
        let graphs = common::full_size(model, sizes(300, 72));
        let cases: Vec<Case> = graphs.iter().flat_map(harvest).filter(light).collect();
        check(&device, &format!("{model}, long"), &cases, 35);
    }
}
