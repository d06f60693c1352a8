//! `x + matmul` → matmul that adds `x` as it stores.

use super::{epilogue, fuse, with_epilogue};
use crate::graph::Graph;
use crate::op::Op;

pub(super) fn run(g: &mut Graph) {
    fuse(g, |p, c, operand| match (epilogue(p), &c.op) {
        (Some(e), Op::Add) if !e.residual && c.inputs[0] != c.inputs[1] => {
            let mut n = with_epilogue(p, c, |e| e.residual = true);
            n.inputs.push(c.inputs[1 - operand]);
            Some(n)
        }
        _ => None,
    });
}
