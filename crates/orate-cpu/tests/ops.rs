//! Every op, in every case, on every instruction set of this machine, against the reference interpreter.

use orate_cpu::{CpuDevice, Isa};
use orate_testing::{OnDevice, check_all, op_cases};

#[test]
fn op_cases_on_every_instruction_set() {
    for isa in Isa::available() {
        for threads in [1, 2] {
            let device = CpuDevice::new(threads, isa).expect("threads start");
            check_all(&OnDevice(&device), &op_cases()).assert();
        }
    }
}
