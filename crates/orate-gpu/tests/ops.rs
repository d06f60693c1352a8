//! Every op, in every case, on a GPU or on a rasteriser that imitates one, against the reference interpreter.

mod common;

use orate_testing::{OnDevice, check_all, op_cases};

#[test]
fn op_cases_on_a_gpu() {
    let device = common::device();
    let report = check_all(&OnDevice(&device), &op_cases());
    println!("{report}");
    report.assert();
}
