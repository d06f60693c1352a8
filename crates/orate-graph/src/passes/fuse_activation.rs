//! `f(matmul)` → matmul with an activation, unless something was already added after the matmul.

use super::{epilogue, fuse, with_epilogue};
use crate::graph::Graph;
use crate::op::Op;

pub(super) fn run(g: &mut Graph) {
    fuse(g, |p, c, _| match (epilogue(p), &c.op) {
        (Some(e), Op::Activate(f)) if e.activation.is_none() && !e.residual => {
            Some(with_epilogue(p, c, |e| e.activation = Some(f.clone())))
        }
        _ => None,
    });
}
