//! Drops nodes whose values nobody reads.

use crate::graph::Graph;

pub(super) fn run(g: &mut Graph) {
    let mut live = vec![false; g.values.len()];
    g.stores.iter().for_each(|(_, v)| live[v.index()] = true);
    for n in g.nodes.iter().rev() {
        if live[n.output.index()] {
            n.inputs.iter().for_each(|v| live[v.index()] = true);
        }
    }
    g.nodes.retain(|n| live[n.output.index()]);
}
