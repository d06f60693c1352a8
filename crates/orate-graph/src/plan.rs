//! Compiling: passes, kernel choice, memory. A plan is what executors run, and it prints.

use crate::graph::{Buffer, Graph, Node, Pieces, ValueInfo, node_name};
use crate::memory::{self, Place};
use crate::op::{Cost, Op};
use crate::{GraphError, Result, Value, passes};
use std::fmt::Write as _;

/// What a device can run. The answer is used when the plan is made and is printed with it.
pub trait Target {
    /// Device name, for messages.
    fn name(&self) -> String;

    /// The kernel that would run `op` on such operands.
    ///
    /// # Errors
    /// Why the device cannot run it.
    fn kernel(&self, op: &Op, inputs: &[&ValueInfo]) -> Result<String, String>;
}

/// One call of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Op and operands.
    pub node: Node,
    /// Kernel that the device chose.
    pub kernel: String,
    /// Least work.
    pub cost: Cost,
}

/// Steps in order, with a place for every value. Made once per network, sizes and device, and run many times.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    name: String,
    device: String,
    steps: Vec<Step>,
    values: Vec<ValueInfo>,
    places: Vec<Place>,
    copies: Vec<(usize, Value)>,
    arena_bytes: usize,
    buffers: Vec<Buffer>,
    scalars: Vec<String>,
    pieces: Option<Pieces>,
}

/// Speeds that bound a step from below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Arithmetic, in GFLOP/s.
    pub gflops: f64,
    /// Memory, in GB/s.
    pub gbps: f64,
}

impl Roofline {
    /// Least time of a step, in microseconds.
    pub fn bound_us(&self, cost: Cost) -> f64 {
        (cost.flops as f64 / self.gflops / 1e3).max(cost.bytes as f64 / self.gbps / 1e3)
    }
}

/// The kernel for a node, or an error that names the node.
fn choose(target: &dyn Target, graph: &str, i: usize, node: &Node, inputs: &[&ValueInfo]) -> Result<String> {
    target.kernel(&node.op, inputs).map_err(|reason| GraphError::Unsupported {
        device: target.name(),
        graph: graph.to_owned(),
        node: node_name(i, &node.op),
        op: node.op.describe(),
        reason,
    })
}

impl Plan {
    /// Runs all passes on `graph`, asks `target` for kernels, and lays out memory.
    ///
    /// # Errors
    /// The target cannot run one of the ops.
    pub fn compile(graph: Graph, target: &dyn Target) -> Result<Plan> {
        Self::compile_with(graph, target, &passes::ALL)
    }

    /// [`Plan::compile`] with chosen passes; without any, every op stands alone.
    ///
    /// # Errors
    /// The target cannot run one of the ops.
    pub fn compile_with(mut graph: Graph, target: &dyn Target, passes: &[passes::Pass]) -> Result<Plan> {
        passes.iter().for_each(|(_, run)| run(&mut graph));
        memory::keep_old_states(&mut graph);
        let memory = memory::plan(&graph);
        let Graph { name, nodes, values, buffers, scalars, pieces, .. } = graph;
        let steps = nodes.into_iter().enumerate().map(|(i, node)| {
            let inputs: Vec<&ValueInfo> = node.inputs.iter().map(|v| &values[v.index()]).collect();
            let kernel = choose(target, &name, i, &node, &inputs)?;
            let cost = node.op.cost(&inputs, &values[node.output.index()]);
            Ok(Step { node, kernel, cost })
        });
        let steps = steps.collect::<Result<Vec<_>>>()?;
        Ok(Plan {
            name,
            device: target.name(),
            steps,
            values,
            places: memory.places,
            copies: memory.copies,
            arena_bytes: memory.arena_bytes,
            buffers,
            scalars,
            pieces,
        })
    }

    /// How many rows a device should go by that chooses a kernel for a product of `rows` rows of each sequence: as many, or where this is
    /// a piece of a sequence, those of the piece that [`Pieces::chosen_for`] names.
    pub fn rows_to_choose_for(&self, rows: usize) -> usize {
        self.pieces.map_or(rows, |p| p.rows_to_choose_for(rows))
    }

    /// Every step of `graph`, passes applied, that `target` cannot run.
    pub fn unsupported(mut graph: Graph, target: &dyn Target) -> Vec<GraphError> {
        passes::ALL.iter().for_each(|(_, run)| run(&mut graph));
        let inputs = |node: &Node| node.inputs.iter().map(|v| &graph.values[v.index()]).collect::<Vec<_>>();
        let steps = graph.nodes.iter().enumerate();
        steps.filter_map(|(i, node)| choose(target, &graph.name, i, node, &inputs(node)).err()).collect()
    }

    /// Name of the network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Device the plan was made for.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Steps in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Type and shape of a value.
    pub fn info(&self, v: Value) -> &ValueInfo {
        &self.values[v.index()]
    }

    /// Where a value is.
    pub fn place(&self, v: Value) -> Place {
        self.places[v.index()]
    }

    /// Buffers that get a copy of a value when all steps are done.
    pub fn copies(&self) -> &[(usize, Value)] {
        &self.copies
    }

    /// Size of the memory for temporaries.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// Named memory that the plan reads and writes.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// Names of the run-time scalars.
    pub fn scalars(&self) -> &[String] {
        &self.scalars
    }

    /// Work of one run.
    pub fn cost(&self) -> Cost {
        let mut total = Cost::default();
        self.steps.iter().for_each(|s| total += s.cost);
        total
    }

    /// Prints the plan: each step with kernel, shape and work, and with `roofline` the least time it can take.
    pub fn explain(&self, roofline: Option<Roofline>) -> String {
        let mut s = String::new();
        let total = self.cost();
        let _ = writeln!(
            s,
            "plan `{}` on {}: {} steps, {:.3} GFLOP, {:.2} MB moved, arena {:.2} MB",
            self.name,
            self.device,
            self.steps.len(),
            total.flops as f64 / 1e9,
            total.bytes as f64 / 1e6,
            self.arena_bytes as f64 / 1e6
        );
        for b in &self.buffers {
            let _ = writeln!(
                s,
                "  {:<6} {} {} {}",
                format!("{:?}", b.kind).to_lowercase(),
                b.name,
                b.dtype,
                b.shape
            );
        }
        let head = if roofline.is_some() { "  bound µs" } else { "" };
        let _ = writeln!(
            s,
            "{:>4}  {:<34}{:<26}{:<18}{:>10}{:>10}{head}  weight",
            "step", "op", "kernel", "shape", "MFLOP", "kB"
        );
        for (i, step) in self.steps.iter().enumerate() {
            let shape = self.info(step.node.output).shape.to_string();
            let _ = write!(
                s,
                "{i:>4}  {:<34}{:<26}{shape:<18}{:>10.3}{:>10.1}",
                step.node.op.describe(),
                step.kernel,
                step.cost.flops as f64 / 1e6,
                step.cost.bytes as f64 / 1e3
            );
            if let Some(r) = roofline {
                let _ = write!(s, "{:>10.1}", r.bound_us(step.cost));
            }
            let _ = writeln!(s, "  {}", step.node.op.label().unwrap_or("-"));
        }
        if let Some(r) = roofline {
            let sum: f64 = self.steps.iter().map(|s| r.bound_us(s.cost)).sum();
            let _ = writeln!(
                s,
                "bound of all steps: {:.3} ms at {:.0} GFLOP/s and {:.1} GB/s",
                sum / 1e3,
                r.gflops,
                r.gbps
            );
        }
        s
    }
}
