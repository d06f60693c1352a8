//! Compiling: passes, kernel choice, memory. A plan is what executors run, and it prints.

use crate::fusion::{self, Draft, Fused, Fusions, Launch, Pattern, Rounding, Run};
use crate::graph::{Buffer, Graph, Node, Pieces, node_name};
use crate::memory::{self, Place};
use crate::op::{Cost, Op};
use crate::{GraphError, PrecisionPolicy, Result, Value, ValueInfo, Weight, passes};
use std::collections::HashSet;
use std::fmt::Write as _;

/// What a device can run. Answers are used when a plan is compiled, and are printed with it.
pub trait Target {
    /// Device name, for messages.
    fn name(&self) -> String;

    /// The kernel that would run `op` on such operands.
    ///
    /// # Errors
    /// Why the device cannot run it.
    fn kernel(&self, op: &Op, inputs: &[&ValueInfo]) -> Result<String, String>;

    /// The formats in which it keeps weights of matmuls. By default all are f32.
    fn weight_formats(&self) -> PrecisionPolicy {
        PrecisionPolicy::default()
    }

    /// What kernels do besides one op. By default nothing: each op is a launch.
    fn fusions(&self) -> Fusions {
        Fusions::default()
    }

    /// The kernel of an op into which something was fused; called if [`Target::fusions`] allowed it.
    ///
    /// # Errors
    /// As [`Target::kernel`].
    fn fused_kernel(&self, op: &Op, inputs: &[&ValueInfo], fused: &Fused) -> Result<String, String> {
        let _ = fused;
        self.kernel(op, inputs)
    }

    /// How the kernel of a launch handles values of 16 bits. By default all values are f32.
    fn rounding(&self, op: &Op, inputs: &[&ValueInfo], output: &ValueInfo, fused: &Fused) -> Rounding {
        let _ = (op, inputs, output, fused);
        Rounding::default()
    }
}

/// Name of `n` launches of a kernel, one after the other, such as `copy x3`.
pub fn several(kernel: &str, n: usize) -> String {
    if n == 1 { kernel.to_owned() } else { format!("{kernel} x{n}") }
}

/// Launches that the name of a step's kernel stands for: those joined by ` + `, each as [`several`] has it.
pub fn launches_of(kernel: &str) -> usize {
    let one = |name: &str| name.rsplit_once(" x").and_then(|(_, n)| n.parse().ok()).unwrap_or(1);
    kernel.split(" + ").map(one).sum()
}

/// What a device runs at a time: an op, or several that are one launch. Few ops take more than one launch;
/// the kernel's name then lists them.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Op and operands. With `fused`, operands and result are those of the whole launch, and the op is the
    /// main one.
    pub node: Node,
    /// What else the launch computes.
    pub fused: Fused,
    /// All that the launch computes, op by op as in the graph; only `node` if nothing was fused.
    pub nodes: Vec<Node>,
    /// Kernel that the device chose.
    pub kernel: String,
    /// Least work.
    pub cost: Cost,
}

impl Step {
    /// Op with what was fused into it, such as `MatMul+bias+gelu` or `RmsNorm+MatMul x3`.
    pub fn describe(&self) -> String {
        let fused = &self.fused;
        let heads = |all: &[fusion::Head]| {
            let count = |is: &dyn Fn(&fusion::Head) -> bool| all.iter().filter(|h| is(h)).count();
            let mut s = String::new();
            for (n, what) in [
                (count(&|h| h.norm.is_some()), "norm"),
                (count(&|h| h.table.is_some()), "rotary"),
                (count(&|h| h.write.is_some()), "write"),
            ] {
                if n > 0 {
                    let _ = write!(s, "+{what}{n}");
                }
            }
            s
        };
        if !fused.heads.is_empty() {
            return format!("Heads x{}{}", fused.heads.len(), heads(&fused.heads));
        }
        let mut s = self.node.op.describe() + &heads(&fused.before);
        if let Some(norm) = &fused.norm {
            s = format!("{}+{s}", if norm.bias.is_some() { "LayerNorm" } else { "RmsNorm" });
        }
        match (fused.parts.len(), fused.gated) {
            (0, _) => {}
            (_, true) => s += "+gated",
            (n, false) => {
                let _ = write!(s, " x{}", n + 1);
            }
        }
        if let Some(activation) = &fused.activation {
            let _ = write!(s, "+{}", activation.name());
        }
        if fused.snake.is_some() {
            s += "+snake";
        }
        if fused.row.is_some() {
            s += "+row";
        }
        if fused.rotary.is_some() {
            s += "+rotary";
        }
        s
    }

    /// Weights that the launch reads, those of each op in a fixed order.
    pub fn weights(&self) -> impl Iterator<Item = &Weight> {
        self.nodes.iter().flat_map(|n| n.op.weights())
    }

    /// The name of the first weight, which says where in a network the step is.
    pub fn label(&self) -> Option<&str> {
        self.nodes.iter().find_map(|n| n.op.label())
    }
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
    weight_groups: Vec<Vec<Weight>>,
    views: Vec<Node>,
    buffers: Vec<Buffer>,
    scalars: Vec<String>,
    pieces: Option<Pieces>,
    runs: Vec<Run>,
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

/// The kernel for a node, into which `fused` was fused, or an error that names the node.
fn kernel(target: &dyn Target, graph: &Graph, i: usize, node: &Node, fused: &Fused) -> Result<String> {
    let inputs = graph.operands(node);
    let found = match *fused == Fused::default() {
        true => target.kernel(&node.op, &inputs),
        false => target.fused_kernel(&node.op, &inputs, fused),
    };
    found.map_err(|reason| GraphError::Unsupported {
        device: target.name(),
        graph: graph.name.clone(),
        node: node_name(i, &node.op),
        op: node.op.describe(),
        reason,
    })
}

/// A step of a launch whose values have places.
fn step(
    target: &dyn Target,
    graph: &Graph,
    places: &[Place],
    precision: &PrecisionPolicy,
    i: usize,
    launch: &Launch,
) -> Result<Step> {
    let nodes: Vec<Node> = launch.nodes.iter().map(|n| graph.nodes[*n].clone()).collect();
    let mut chosen = String::new();
    // Ops that are fused must have a kernel of their own, too.
    for node in nodes.iter().filter(|n| n.op != Op::Reshape) {
        chosen = kernel(target, graph, i, node, &Fused::default())?;
    }
    let mut cost = Cost::default();
    for n in &nodes {
        cost += n.op.cost(&graph.operands(n), graph.info(n.output));
        cost.bytes = cost.bytes.saturating_sub(precision.bytes_saved(&n.op) as u64);
    }
    let op = graph.nodes[launch.node].op.clone();
    let node = Node { op, inputs: launch.inputs.clone(), output: launch.output };
    if launch.fused != Fused::default() {
        chosen = kernel(target, graph, i, &node, &launch.fused)?;
        cost.bytes = cost.bytes.saturating_sub(bytes_kept(graph, &nodes, places));
    }
    Ok(Step { node, fused: launch.fused.clone(), nodes, kernel: chosen, cost })
}

/// Bytes that single ops would write and read again, and the launch does not: values that it makes and stores
/// nowhere, and operands that several of its ops read.
fn bytes_kept(graph: &Graph, nodes: &[Node], places: &[Place]) -> u64 {
    let bytes = |v: &Value| graph.info(*v).dtype.bytes_of(graph.shape(*v)) as u64;
    // A state of which rows are written is read as a whole.
    let made: HashSet<Value> = nodes.iter().filter(|n| !n.op.in_place()).map(|n| n.output).collect();
    let stored = |v: &Value| places[v.index()] != Place::Nowhere;
    let nodes = nodes.iter().filter(|n| n.op != Op::Reshape);
    let mut read = HashSet::new();
    let mut kept = 0;
    for node in nodes {
        // In-place ops count what they write, not the state.
        for v in node.inputs.iter().skip(usize::from(node.op.in_place())) {
            kept += if made.contains(v) || !read.insert(*v) { bytes(v) } else { 0 };
        }
        kept += if stored(&node.output) || node.op.in_place() { 0 } else { bytes(&node.output) };
    }
    kept
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
        let fusions = target.fusions();
        if let Some(dtype) = fusions.scratch {
            graph.store_scratch_as(dtype);
        }
        let rounding_of = |op: &Op, inputs: &[&ValueInfo], output: &ValueInfo, fused: &Fused| {
            target.rounding(op, inputs, output, fused)
        };
        let draft = fusion::draft(&graph, &fusions, &rounding_of);
        let memory = memory::plan(&draft);
        let views = draft.view_nodes().cloned().collect();
        let values = || (0..graph.values.len()).map(|i| Value(i as u32));
        let rounded: Vec<_> = values().filter_map(|v| Some((v, draft.stored_as(v)?))).collect();
        let Draft { launches, copies, groups: weight_groups, runs, .. } = draft;
        let step_of = |node: usize| launches[..node].iter().flatten().count();
        let runs = runs
            .into_iter()
            .map(|run| Run { steps: step_of(run.steps.start)..step_of(run.steps.end), ..run })
            .collect();
        for (v, dtype) in rounded {
            graph.values[v.index()].dtype = dtype;
        }
        let precision = target.weight_formats();
        let steps = launches
            .iter()
            .flatten()
            .enumerate()
            .map(|(i, launch)| step(target, &graph, &memory.places, &precision, i, launch))
            .collect::<Result<_>>()?;
        let Graph { name, values, buffers, scalars, pieces, .. } = graph;
        Ok(Plan {
            name,
            device: target.name(),
            steps,
            values,
            places: memory.places,
            copies,
            arena_bytes: memory.arena_bytes,
            weight_groups,
            views,
            buffers,
            scalars,
            pieces,
            runs,
        })
    }

    /// Rows by which a device chooses the kernel of a matmul of `rows` rows per sequence: as many, or, if
    /// this is a piece of a sequence, those of the piece that [`Pieces::chosen_for`] names.
    pub fn rows_to_choose_for(&self, rows: usize) -> usize {
        self.pieces.map_or(rows, |p| p.rows_to_choose_for(rows))
    }

    /// Every step of `graph`, passes applied, that `target` cannot run.
    pub fn unsupported(mut graph: Graph, target: &dyn Target) -> Vec<GraphError> {
        passes::ALL.iter().for_each(|(_, run)| run(&mut graph));
        let steps = graph.nodes.iter().enumerate().filter(|(_, n)| n.op != Op::Reshape);
        steps.filter_map(|(i, node)| kernel(target, &graph, i, node, &Fused::default()).err()).collect()
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

    /// Buffers that get a copy of a value when all steps are done, each in a launch of its own.
    pub fn copies(&self) -> &[(usize, Value)] {
        &self.copies
    }

    /// Nodes that no step runs, as their results are where their operands are.
    pub fn views(&self) -> &[Node] {
        &self.views
    }

    /// Steps that the device can make one launch, or fewer than they are. What they read and did not make
    /// stays until the last of them. Of what layers of [`FeedForward`] make, only the results of the last
    /// matmuls are read by others.
    ///
    /// [`FeedForward`]: crate::FeedForward
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Those of one pattern.
    pub fn runs_of(&self, pattern: Pattern) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.pattern == pattern)
    }

    /// Weights that stand one after the other on a device, so that the matmuls of each group can run as one.
    /// Plans with more rows than are fused have the same groups, so that all find their weights in one place.
    pub fn weight_groups(&self) -> &[Vec<Weight>] {
        &self.weight_groups
    }

    /// Size of the memory for temporaries, in bytes.
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

    /// Prints the plan: each step, which is what the device launches, with kernel, shape and work, and with
    /// `roofline` the least time it can take.
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
            let kind = format!("{:?}", b.kind).to_lowercase();
            let _ = writeln!(s, "  {kind:<6} {} {} {}", b.name, b.dtype, b.shape);
        }
        let mut row = |step: &str, names: [&str; 3], numbers: [&str; 3], rest: &str| {
            let ([op, kernel, shape], [mflop, kb, bound]) = (names, numbers);
            let bound = if roofline.is_some() { format!("{bound:>10}") } else { String::new() };
            let _ =
                writeln!(s, "{step:>4}  {op:<34}{kernel:<26}{shape:<18}{mflop:>10}{kb:>10}{bound}  {rest}");
        };
        row("step", ["op", "kernel", "shape"], ["MFLOP", "kB", "bound µs"], "weight");
        for (i, step) in self.steps.iter().enumerate() {
            let ValueInfo { dtype, shape, .. } = self.info(step.node.output);
            let (op, mut shape) = (step.describe(), shape.to_string());
            if dtype.is_compact() {
                let _ = write!(shape, " {dtype}");
            }
            let mflop = format!("{:.3}", step.cost.flops as f64 / 1e6);
            let kb = format!("{:.1}", step.cost.bytes as f64 / 1e3);
            let bound = roofline.map_or(String::new(), |r| format!("{:.1}", r.bound_us(step.cost)));
            let names = [&*op, &step.kernel, &shape];
            row(&i.to_string(), names, [&mflop, &kb, &bound], step.label().unwrap_or("-"));
        }
        for (buffer, v) in &self.copies {
            let info = self.info(*v);
            let kb = format!("{:.1}", 2.0 * info.dtype.bytes_of(&info.shape) as f64 / 1e3);
            let to = format!("to `{}`", self.buffers[*buffer].name);
            row("copy", ["at the end", "copy", &info.shape.to_string()], ["0.000", &kb, ""], &to);
        }
        if let Some(r) = roofline {
            let sum: f64 = self.steps.iter().map(|s| r.bound_us(s.cost)).sum();
            let (ms, Roofline { gflops, gbps }) = (sum / 1e3, r);
            let _ = writeln!(s, "bound of all steps: {ms:.3} ms at {gflops:.0} GFLOP/s and {gbps:.1} GB/s");
        }
        s
    }
}
