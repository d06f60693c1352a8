//! `norm(depthwise(x))` → one step that norms each row while it is in cache.

use super::fuse;
use crate::graph::{Graph, Node};
use crate::op::Op;

pub(super) fn run(g: &mut Graph) {
    fuse(g, |p, c, _| match (&p.op, &c.op) {
        (Op::DepthwiseConv1d { weight, bias, geometry, norm: None }, Op::LayerNorm(n)) => Some(Node {
            op: Op::DepthwiseConv1d {
                weight: weight.clone(),
                bias: bias.clone(),
                geometry: *geometry,
                norm: Some(n.clone()),
            },
            inputs: p.inputs.clone(),
            output: c.output,
        }),
        _ => None,
    });
}
