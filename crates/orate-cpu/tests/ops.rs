//! Every op case, on every instruction set of this machine, compared with the reference interpreter.

use orate_cpu::{CpuDevice, Isa};
use orate_graph::{DType, Device, Graph, Op, Plan, Precision, PrecisionPolicy, Weight};
use orate_testing::{
    OnDevice, ReferenceDevice, check_all, check_clearing, check_compact_rows, check_copies, check_extensions,
    check_foreign_copy, check_later_reads, check_shared_reads, check_stored_blocks, check_stored_layer,
    op_cases, tolerance::of_rounded_attention,
};

#[test]
fn op_cases_on_every_instruction_set() {
    for isa in Isa::available() {
        for threads in [1, 2] {
            let device = CpuDevice::new(threads, isa).expect("threads start");
            check_all(&OnDevice(&device), &op_cases()).assert();
        }
    }
}

/// The error of lower precisions is that of their format, and not larger.
#[test]
fn other_precisions() {
    for (precision, roundings) in [
        (Precision::F16, 1 << 13),
        (Precision::Bf16, 1 << 16),
        (Precision::Q8_0, 1 << 17),
        (Precision::Q6K, 1 << 18),
        (Precision::Q5K, 1 << 19),
        (Precision::Q4K, 1 << 20),
        (Precision::Q4_0, 1 << 20),
    ] {
        let mut products = op_cases();
        products.retain(|c| {
            c.graph.nodes().iter().any(|n| matches!(n.op, Op::MatMul { .. } | Op::Conv1d { .. }))
        });
        assert!(products.len() > 50, "products are among the cases");
        for case in &mut products {
            case.tolerance += 3.0 * f64::from(roundings) * orate_testing::tolerance::ROUNDING;
        }
        // Some processors round operands of attention to bf16 where weights have at most as many bits.
        let coarse = if precision == Precision::F16 { Precision::F32 } else { Precision::Bf16 };
        let mut attentions = op_cases();
        attentions.retain(|c| {
            c.graph.nodes().iter().any(|n| matches!(n.op, Op::Attention { follows_weights: true, .. }))
        });
        assert!(!attentions.is_empty(), "attention that follows weights is among the cases");
        for isa in Isa::available() {
            let device = CpuDevice::new(2, isa).expect("threads start");
            let device =
                device.with_precision(PrecisionPolicy::uniform(precision)).expect("a format of CPUs");
            check_all(&OnDevice(&device), &products).assert();
            let mut cases = attentions.clone();
            if isa.has_bf16() {
                cases.iter_mut().for_each(|c| c.tolerance += of_rounded_attention(&c.graph, coarse));
            }
            check_all(&OnDevice(&device), &cases).assert();
        }
    }
}

#[test]
fn stored_blocks() {
    for isa in Isa::available() {
        for precision in [Precision::Q8_0, Precision::Q6K, Precision::Q5K, Precision::Q4K, Precision::Q4_0] {
            let device = CpuDevice::new(2, isa).expect("threads start");
            let device =
                device.with_precision(PrecisionPolicy::uniform(precision)).expect("a format of CPUs");
            // Activations have 8 bits.
            check_stored_blocks(&device, precision, 2e-2);
            check_stored_layer(&device, precision, 5e-2);
        }
    }
}

/// Weights count as many bytes as they have in their format, in plans and so in profiles.
#[test]
fn bytes_of_a_step() {
    let (k, n) = (512, 96);
    for (precision, bytes_of_256) in [
        (Precision::F32, 1024),
        (Precision::F16, 512),
        (Precision::Bf16, 512),
        (Precision::Q8_0, 272),
        (Precision::Q6K, 210),
        (Precision::Q5K, 176),
        (Precision::Q4K, 144),
        (Precision::Q4_0, 144),
    ] {
        let device = CpuDevice::new(1, Isa::PORTABLE).expect("starts");
        let device = device.with_precision(PrecisionPolicy::uniform(precision)).expect("a format of CPUs");
        let mut graph = Graph::new("bytes");
        let x = graph.input("x", DType::F32, [1, k]).expect("a name of its own");
        let y = graph.matmul(x, Weight::fill(0.5, [k, n])).expect("fits");
        graph.output("y", y).expect("a name of its own");
        let plan = Plan::compile(graph, &device).expect("can run");
        assert_eq!(plan.cost().bytes, (4 * (k + n) + k * n / 256 * bytes_of_256) as u64, "{precision}");
    }
}

#[test]
fn a_format_of_gpus_is_refused() {
    let device = CpuDevice::new(1, Isa::PORTABLE).expect("starts");
    let e = device.with_precision(PrecisionPolicy::uniform(Precision::Tf32)).err().expect("refused");
    assert!(e.to_string().contains("q8_0"), "{e}");
}

#[test]
fn memory_is_copied() {
    let device = CpuDevice::new(1, Isa::PORTABLE).expect("starts");
    check_copies(&device);
    check_shared_reads(&device);
    check_extensions(&device);
    check_compact_rows(&device);
    check_later_reads(&device);
    check_clearing(&device);
    let other = CpuDevice::new(1, Isa::PORTABLE).expect("starts");
    check_foreign_copy(device.memory().as_mut(), other.memory().as_mut());
    check_foreign_copy(device.memory().as_mut(), ReferenceDevice.memory().as_mut());
}
