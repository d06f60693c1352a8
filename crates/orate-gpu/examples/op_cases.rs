//! Op cases on a GPU, compared with the reference interpreter, as a program for places that have no test
//! harness, such as a page. `scripts/wasm-check` runs it on WebGPU.
//!
//! ```sh
//! cargo run -p orate-gpu --example op_cases       # a share of the cases: a rasterizer compiles for minutes
//! ORATE_ALL_CASES=1 cargo run -p orate-gpu --example op_cases
//! ```

use orate_gpu::GpuDevice;
use orate_graph::{Device, Op, Precision, PrecisionPolicy};
use orate_testing::{Case, NOT_BUILT_ON_GPUS, OnDevice, check_all, fused_cases, op_cases_built};

/// Formats of weights, what rounding them adds to the tolerance of matmuls, and one of how many cases runs
/// unless all do. `tests/main/ops.rs` derives the tolerances.
const FORMATS: [(Precision, f64, usize); 4] = [
    (Precision::F32, 0.0, 16),
    (Precision::F16, 2.0 / 2048.0, 64),
    (Precision::Q8_0, 2.0 / 127.0, 64),
    (Precision::Q4K, 2.0 / 8.0, 64),
];

/// Environment variable that makes all cases run.
const ALL: &str = "ORATE_ALL_CASES";

fn is_product(case: &Case) -> bool {
    let product = |op: &Op| matches!(op, Op::MatMul { .. } | Op::Conv1d { .. });
    case.graph.nodes().iter().any(|node| product(&node.op))
}

fn main() {
    let runs_all = std::env::var_os(ALL).is_some();
    let mut all_passed = true;
    for (precision, error, share) in FORMATS {
        let policy = PrecisionPolicy { precision, ..PrecisionPolicy::default() };
        let device = match GpuDevice::new(None, 0, policy, None) {
            Ok(device) => device,
            Err(e) => {
                eprintln!("{e}");
                std::process::exit(1);
            }
        };
        let info = device.info();
        println!("{} ({}), {precision}", info.id(), info.name);
        let mut cases = op_cases_built(&device, &NOT_BUILT_ON_GPUS);
        if precision == Precision::F32 {
            cases.extend(fused_cases(40));
        } else {
            cases.retain(is_product);
            cases.iter_mut().for_each(|case| case.tolerance += error);
        }
        let report = check_all(&OnDevice(&device), cases.iter().step_by(if runs_all { 1 } else { share }));
        println!("{report}");
        all_passed &= report.failures.is_empty() && report.passed > 0;
    }
    if !all_passed {
        std::process::exit(1);
    }
}
