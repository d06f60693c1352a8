//! Rewrites that make fewer, larger steps, for all targets. Each is one pattern.

use crate::Graph;
use crate::graph::Node;
use crate::op::{Epilogue, Op};

/// A pass: its name, and the rewrite.
pub type Pass = (&'static str, fn(&mut Graph));

/// All passes in the order they run.
pub const ALL: [Pass; 5] = [
    ("fuse_bias", fuse_bias),
    ("fuse_activation", fuse_activation),
    ("fuse_residual", fuse_residual),
    ("fuse_norm", fuse_norm),
    ("dead_code", dead_code),
];

/// `matmul + bias` → matmul with a bias.
fn fuse_bias(g: &mut Graph) {
    fuse(g, |p, c, _| match (epilogue(p), &c.op) {
        (Some(e), Op::AddBias { bias }) if *e == Epilogue::default() => {
            Some(with_epilogue(p, c, |e| e.bias = Some(bias.clone())))
        }
        _ => None,
    });
}

/// `f(matmul)` → matmul with an activation, unless something was already added after the matmul.
fn fuse_activation(g: &mut Graph) {
    fuse(g, |p, c, _| match (epilogue(p), &c.op) {
        (Some(e), Op::Activate(f)) if e.activation.is_none() && !e.residual => {
            Some(with_epilogue(p, c, |e| e.activation = Some(f.clone())))
        }
        _ => None,
    });
}

/// `x + matmul` → matmul that adds `x` as it stores.
fn fuse_residual(g: &mut Graph) {
    fuse(g, |p, c, operand| match (epilogue(p), &c.op) {
        (Some(e), Op::Add) if !e.residual && c.inputs[0] != c.inputs[1] => {
            let mut n = with_epilogue(p, c, |e| e.residual = true);
            n.inputs.push(c.inputs[1 - operand]);
            Some(n)
        }
        _ => None,
    });
}

/// `norm(depthwise(x))` → one step that norms each row while it is in cache.
fn fuse_norm(g: &mut Graph) {
    fuse(g, |p, c, _| {
        let (Op::DepthwiseConv1d { norm: None, .. }, Op::LayerNorm(own)) = (&p.op, &c.op) else {
            return None;
        };
        let mut n = Node { output: c.output, ..p.clone() };
        if let Op::DepthwiseConv1d { norm, .. } = &mut n.op {
            *norm = Some(own.clone());
        }
        Some(n)
    });
}

/// Drops nodes whose values nothing reads. What is written to a state in place stays: it is read in another
/// run.
fn dead_code(g: &mut Graph) {
    let mut live = vec![false; g.values.len()];
    g.stores.iter().for_each(|(_, v)| live[v.index()] = true);
    for n in g.nodes.iter().rev() {
        live[n.output.index()] |= n.op.in_place();
        if live[n.output.index()] {
            n.inputs.iter().for_each(|v| live[v.index()] = true);
        }
    }
    g.nodes.retain(|n| live[n.output.index()]);
}

/// Replaces a producer and its only consumer by one node, wherever `rule(producer, consumer, operand)` gives
/// one. `operand` is the position at which the consumer reads the producer. The new node stands where the
/// consumer stood, so all its operands exist. Where the producer reads a state that is written in place
/// between the two, they stay apart.
fn fuse(g: &mut Graph, rule: impl Fn(&Node, &Node, usize) -> Option<Node>) {
    let mut uses = vec![0usize; g.values.len()];
    let mut producer = vec![None; g.values.len()];
    for (i, n) in g.nodes.iter().enumerate() {
        n.inputs.iter().for_each(|v| uses[v.index()] += 1);
        producer[n.output.index()] = Some(i);
    }
    g.stores.iter().for_each(|(_, v)| uses[v.index()] += 1);

    let mut gone = vec![false; g.nodes.len()];
    for c in 0..g.nodes.len() {
        // Later operands first: `add(x, f(x))` should find `f`.
        for operand in (0..g.nodes[c].inputs.len()).rev() {
            let v = g.nodes[c].inputs[operand];
            let Some(p) = producer[v.index()].filter(|_| uses[v.index()] == 1) else { continue };
            if overwritten_between(g, p, c) {
                continue;
            }
            if let Some(fused) = rule(&g.nodes[p], &g.nodes[c], operand) {
                g.nodes[c] = fused;
                gone[p] = true;
                break;
            }
        }
    }
    let mut gone = gone.into_iter();
    g.nodes.retain(|_| !gone.next().unwrap_or(false));
}

/// Whether a node after `producer` and before `consumer` writes to a state that the producer reads.
fn overwritten_between(g: &Graph, producer: usize, consumer: usize) -> bool {
    let states: Vec<usize> = g.nodes[producer].inputs.iter().filter_map(|v| g.lies_in(*v)).collect();
    let written = |n: &Node| n.op.in_place() && g.lies_in(n.output).is_some_and(|s| states.contains(&s));
    !states.is_empty() && g.nodes[producer + 1..consumer].iter().any(written)
}

/// The node's epilogue, if it is a matmul.
fn epilogue(n: &Node) -> Option<&Epilogue> {
    match &n.op {
        Op::MatMul { epilogue, .. } | Op::Conv1d { epilogue, .. } => Some(epilogue),
        _ => None,
    }
}

/// `producer` with its epilogue changed, making the consumer's value.
fn with_epilogue(producer: &Node, consumer: &Node, change: impl FnOnce(&mut Epilogue)) -> Node {
    let mut n = Node { output: consumer.output, ..producer.clone() };
    if let Op::MatMul { epilogue, .. } | Op::Conv1d { epilogue, .. } = &mut n.op {
        change(epilogue);
    }
    n
}
