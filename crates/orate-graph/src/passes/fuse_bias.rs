//! `matmul + bias` → matmul with a bias.

use super::{epilogue, fuse, with_epilogue};
use crate::graph::Graph;
use crate::op::{Epilogue, Op};

pub(super) fn run(g: &mut Graph) {
    fuse(g, |p, c, _| match (epilogue(p), &c.op) {
        (Some(e), Op::AddBias { bias }) if *e == Epilogue::default() => {
            Some(with_epilogue(p, c, |e| e.bias = Some(bias.clone())))
        }
        _ => None,
    });
}
