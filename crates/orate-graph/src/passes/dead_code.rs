//! Drops nodes whose values nothing reads. What is written to a state in place stays: it is read in another
//! run.

use crate::graph::Graph;

pub(super) fn run(g: &mut Graph) {
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
