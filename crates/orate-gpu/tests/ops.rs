//! Every op, in every case, on a GPU or on a rasteriser that imitates one, against the reference interpreter.

mod common;

use orate_testing::{NOT_BUILT_ON_GPUS, OnDevice, check_all, op_cases_built};

#[test]
fn op_cases_on_a_gpu() {
    let device = common::device();
    let report = check_all(&OnDevice(&device), &op_cases_built(&device, &NOT_BUILT_ON_GPUS));
    println!("{report}");
    report.assert();
}
