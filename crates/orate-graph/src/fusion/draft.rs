//! A plan before its values have places, and what launches of it may compute.

use crate::graph::{BufferKind, Graph, Node};
use crate::{Activation, DType, Op, Precision, PrecisionPolicy, Rows, Scalar, Value, Weight};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What kernels of a device can do in one launch besides a single op. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fusions {
    /// Matmuls and convolutions add a row that a scalar names; see [`Fused::row`].
    pub add_row: bool,
    /// Widest rows of layer norms that apply an activation, and add such a row, too, if their width is a
    /// multiple of four. 0 if there is no such kernel.
    pub norm_activations: usize,
    /// Convolutions apply Snake to their results; see [`Fused::snake`].
    pub snakes: bool,
    /// One launch norms heads, rotates them and writes them to caches; see [`Fused::heads`].
    pub heads: bool,
    /// Attention of one query per sequence takes the heads before it, if each key head has one of these
    /// numbers of query heads; see [`Fused::before`].
    pub attended_heads: &'static [usize],
    /// Widest heads that it takes.
    pub attended_width: usize,
    /// Attention rotates its queries; see [`Fused::rotary`].
    pub rotate_queries: bool,
    /// Most rows of matmuls of one operand that run as one; see [`Fused::parts`]. 0 if there is no such
    /// kernel.
    pub matmul_rows: usize,
    /// Depth and columns of each weight of such matmuls are multiples of these.
    pub matmul_multiple: [usize; 2],
    /// When a kernel for many rows runs such matmuls as one.
    pub many_rows: Option<ManyRows>,
    /// Most bytes, in f32, of weights that are packed together.
    pub matmul_bytes: usize,
    /// Format of each weight: matmuls run as one in one format only.
    pub precision: PrecisionPolicy,
    /// Most rows of two matmuls whose results are multiplied; see [`Fused::gated`]. 0 if there is no such
    /// kernel.
    pub gated_rows: usize,
    /// The same with any number of rows, if depth and columns of their weights are multiples of these, and
    /// their format is that of `precision` for most weights.
    pub gated_multiple: Option<[usize; 2]>,
    /// Matmuls norm their rows, if depth and columns of their weights are multiples of these; see
    /// [`Fused::norm`].
    pub norm_multiple: Option<[usize; 2]>,
    /// Most rows to which they apply an RMS norm.
    pub norm_rows: usize,
    /// Fewest and most rows of other RMS norms that matmuls apply, if their weights have the format that
    /// `precision` gives to most.
    pub many_norm_rows: Option<[usize; 2]>,
    /// Layer norms of other rows that matmuls apply, likewise.
    pub many_layer_norms: Option<LayerNorms>,
    /// Most rows to which they apply a layer norm, whatever else is fused into them.
    pub layer_norm_rows: usize,
    /// Most rows to which a matmul by one weight, which is not gated, applies a layer norm after the product;
    /// see [`RowNorm::columns`].
    pub late_layer_norm_rows: usize,
    /// Slices and concatenations of whole blocks are views of another value.
    pub views: bool,
    /// What follows attention of many rows can be one launch; see [`crate::Plan::runs`].
    pub feed_forward: Option<FeedForward>,
    /// A matmul that adds a residual, and the next one, can do what the RMS norm between them does, likewise.
    pub normed_residuals: Option<NormedResiduals>,
    /// A matmul that adds a residual can store the Snake or the layer norm of its result too, likewise.
    pub followed_residuals: Option<FollowedResiduals>,
    /// Attention of one query per sequence and the matmul that follows can be one launch, likewise.
    pub attended_outputs: Option<AttendedOutputs>,
    /// Draws can read the rows of a table that they select, and add them to others, in one launch, likewise.
    pub draws: bool,
    /// The type of 16 bits in which caches are stored that live as long as a run, in place of f32.
    pub scratch: Option<DType>,
}

/// Matmuls of many rows by several weights that a target runs as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManyRows {
    /// Fewest rows.
    pub least: usize,
    /// Of what depth and columns are multiples.
    pub multiple: [usize; 2],
    /// Formats of the weights.
    pub formats: &'static [Precision],
}

/// Layer norms of many rows that matmuls of a target apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNorms {
    /// Fewest and most rows.
    pub rows: [usize; 2],
    /// Of what the width is a multiple.
    pub multiple: usize,
    /// The largest width.
    pub widest: usize,
}

/// RMS norms that a target leaves to the matmuls before and after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormedResiduals {
    /// Fewest and most rows.
    pub rows: [usize; 2],
    /// Of what the width is a multiple.
    pub multiple: usize,
    /// Channels of which a sum of squares is kept.
    pub channels: usize,
}

/// What matmuls of a target that add a residual store besides their results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowedResiduals {
    /// Fewest rows of those that store a Snake.
    pub snake_rows: usize,
    /// Channels of residual units of a codec that are one launch with the convolution before them.
    pub unit_widths: &'static [usize],
    /// Fewest rows of those that store a layer norm.
    pub norm_rows: usize,
    /// Their width.
    pub norm_width: usize,
}

/// Attention of one query per sequence that a target makes one launch with the matmul that adds its result to
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttendedOutputs {
    /// Fewest and most sequences.
    pub rows: [usize; 2],
    /// Most rows of their caches.
    pub keys: usize,
    /// Heads of queries and of keys, and their width.
    pub heads: [usize; 3],
}

/// Sizes of layers of which a target makes what follows attention one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedForward {
    /// Fewest and most rows.
    pub rows: [usize; 2],
    /// Channels of the layer.
    pub width: usize,
    /// Taps of convolutions between layers.
    pub taps: usize,
    /// Channels of the attention's result.
    pub attended: usize,
    /// Channels of the hidden layer.
    pub hidden: usize,
    /// Queries, keys and values of the next layer, together.
    pub next: usize,
}

/// Which pattern of [`Fusions`] a [`Run`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Of [`Fusions::feed_forward`].
    FeedForward,
    /// Of [`Fusions::normed_residuals`].
    NormedResidual,
    /// Of [`Fusions::followed_residuals`].
    FollowedResidual,
    /// Of [`Fusions::attended_outputs`].
    AttendedOutput,
    /// Of [`Fusions::draws`].
    Draw,
}

/// Launches that a target can make one, or fewer than they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What they are.
    pub pattern: Pattern,
    /// The launches, by node in drafts and by step in plans.
    pub steps: Range<usize>,
    /// Normed rows: values whose memory is the run's from its beginning to its end.
    pub scratch: Vec<Value>,
    /// Results that nothing but the run reads.
    pub unread: Vec<Value>,
}

/// What a launch computes besides its op. Empty if the target fuses nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fused {
    /// Of a matmul of few rows: a norm of each.
    pub norm: Option<RowNorm>,
    /// Of a matmul: weights of further matmuls of the same operand. Their results follow the first one's in
    /// memory, as matrices one after the other. The epilogue is that of the first.
    pub parts: Vec<Weight>,
    /// Of a matmul with one part: both results are multiplied, and only that is stored.
    pub gated: bool,
    /// Of a layer norm: what is applied to the result.
    pub activation: Option<Activation>,
    /// Of a convolution without activation, residual and row: frequency and gain of Snake, `[N]`, which is
    /// applied to the result.
    pub snake: Option<[Weight; 2]>,
    /// Of a matmul, convolution or layer norm: a table, of which the row that the scalar names is added at
    /// the end.
    pub row: Option<(Value, Scalar)>,
    /// Of attention: the table that rotates its queries.
    pub rotary: Option<Value>,
    /// If there are any, the launch is these.
    pub heads: Vec<Head>,
    /// Of attention of one query per sequence: queries, keys and values, which it norms and rotates, and of
    /// which it writes the latter two to the states that it reads.
    pub before: Vec<Head>,
}

/// A norm that a matmul applies to its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct RowNorm {
    /// `[K]`
    pub weight: Weight,
    /// Of a layer norm `[K]`; an RMS norm has none.
    pub bias: Option<Weight>,
    /// Of a layer norm that is completed after the product: norm weight and bias, each times the weight `W`
    /// of the matmul, `[2, N]`. Of a row `x` with mean `m` and standard deviation `s`, the matmul is
    /// `((x · weight) W − m · columns[0]) / s + columns[1]`.
    pub columns: Option<Weight>,
    /// Added to the variance or mean square.
    pub eps: f32,
}

/// Heads of one value that a launch norms, rotates and puts in their place.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The value, `[B, T, heads · width]` or another shape of it.
    pub x: Value,
    /// Batch and time of `x`, alike in all values of a launch.
    pub rows: [usize; 2],
    /// Number of heads in a row.
    pub count: usize,
    /// Width of a head, alike in all values of a launch.
    pub width: usize,
    /// RMS norm of each head: weight `[width]` and epsilon.
    pub norm: Option<(Weight, f32)>,
    /// Table that rotates each head.
    pub table: Option<Value>,
    /// The result: a value like `x`, or the state that `write` writes to.
    pub out: Value,
    /// First row of the state that is written.
    pub write: Option<Rows>,
    /// Where the heads begin in a row of `x`, and elements from one row to the next, if they are a part of
    /// its rows; only attention reads such ([`Fused::before`]).
    pub part: Option<[usize; 2]>,
}

impl Fused {
    /// Values that the launch reads besides the node's inputs.
    pub fn values(&self) -> impl Iterator<Item = Value> {
        let row = self.row.iter().map(|(table, _)| *table);
        let first =
            |head: &Head| head.write.and_then(|rows| if let Rows::At(v) = rows { Some(v) } else { None });
        let before = self.before.iter().flat_map(move |h| [Some(h.x), h.table, first(h)]);
        row.chain(self.rotary).chain(before.flatten())
    }
}

/// Where a value begins inside another, in elements.
pub(crate) type View = (Value, usize);

/// A launch of a plan that is being made.
#[derive(Clone)]
pub(crate) struct Launch {
    /// The node of the main op.
    pub node: usize,
    /// All nodes that it computes, in order.
    pub nodes: Vec<usize>,
    pub inputs: Vec<Value>,
    pub output: Value,
    pub fused: Fused,
    /// Nodes of the further matmuls; [`Fused::parts`] are their weights.
    pub(super) parts: Vec<usize>,
}

impl Launch {
    /// All values that it reads and makes.
    pub fn values(&self) -> impl Iterator<Item = Value> {
        let heads = self.fused.heads.iter().chain(self.fused.before.iter().filter(|h| h.write.is_some()));
        let made = heads.map(|h| h.out).chain([self.output]);
        self.inputs.iter().copied().chain(self.fused.values()).chain(made)
    }
}

/// A plan before its values have places.
pub(crate) struct Draft<'g> {
    pub graph: &'g Graph,
    /// By node; `None` for nodes that joined another's launch or became a view.
    pub launches: Vec<Option<Launch>>,
    /// The buffer in which a value lies, by value.
    pub buffers: Vec<Option<usize>>,
    /// Buffers that get a copy of a value when all steps are done.
    pub copies: Vec<(usize, Value)>,
    /// Values that are a part of another.
    pub views: HashMap<Value, View>,
    /// Elements of values that hold others after their own.
    pub extended: HashMap<Value, usize>,
    /// Values stored in a 16-bit type, with their parts; see `rounded`.
    pub rounded: HashMap<Value, DType>,
    /// Weights that stand one after the other, so that matmuls by them can run as one.
    pub groups: Vec<Vec<Weight>>,
    /// Launches that a target can make one, by node; see `feed_forward`.
    pub runs: Vec<Run>,
    /// Node that makes a value.
    pub(super) made_by: HashMap<Value, usize>,
    /// Nodes that read a value; copies at the end count as the node after the last.
    pub(super) readers: HashMap<Value, Vec<usize>>,
}

impl<'g> Draft<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        let n = graph.values.len();
        let mut root: Vec<usize> = (0..n).collect();
        let mut views = HashMap::new();
        for node in graph.nodes.iter().filter(|n| n.op == Op::Reshape) {
            root[node.output.index()] = root[node.inputs[0].index()];
            views.insert(node.output, (node.inputs[0], 0));
        }
        // What is stored in an output is made there; what a state gets is copied, as steps may still read the
        // old content.
        let mut buffers: Vec<Option<usize>> = graph.values.iter().map(|v| v.buffer).collect();
        let mut copies = vec![];
        for &(buffer, v) in &graph.stores {
            let home = &mut buffers[root[v.index()]];
            match graph.buffers[buffer].kind {
                BufferKind::Output if home.is_none() => *home = Some(buffer),
                _ => copies.push((buffer, v)),
            }
        }
        let buffers: Vec<_> = root.iter().map(|r| buffers[*r]).collect();
        // A store of a value that lies in the buffer already copies nothing.
        copies.retain(|(buffer, v)| buffers[v.index()] != Some(*buffer));

        let (mut made_by, mut readers) = (HashMap::new(), HashMap::<Value, Vec<usize>>::new());
        let mut launches = vec![];
        for (i, node) in graph.nodes.iter().enumerate() {
            made_by.insert(node.output, i);
            node.inputs.iter().for_each(|v| readers.entry(*v).or_default().push(i));
            // Nodes without elements compute nothing.
            let is_nothing = graph.shape(node.output).is_empty() && !node.op.in_place();
            launches.push((node.op != Op::Reshape && !is_nothing).then(|| Launch {
                node: i,
                nodes: vec![i],
                inputs: node.inputs.clone(),
                output: node.output,
                fused: Fused::default(),
                parts: vec![],
            }));
        }
        copies.iter().for_each(|(_, v)| readers.entry(*v).or_default().push(graph.nodes.len()));
        Draft {
            graph,
            launches,
            buffers,
            copies,
            views,
            extended: HashMap::new(),
            rounded: HashMap::new(),
            groups: vec![],
            runs: vec![],
            made_by,
            readers,
        }
    }

    pub(super) fn op(&self, node: usize) -> &'g Op {
        &self.graph.nodes[node].op
    }

    pub(super) fn node(&self, node: usize) -> &'g Node {
        &self.graph.nodes[node]
    }

    /// Whether a value has no buffer of its own, so that it may lie anywhere.
    pub fn is_temporary(&self, v: Value) -> bool {
        self.made_by.contains_key(&v) && self.buffers[v.index()].is_none()
    }

    /// Whether a value may lie anywhere, and is neither a part of another nor holds one.
    pub(super) fn is_free(&self, v: Value) -> bool {
        self.is_temporary(v) && !self.views.contains_key(&v) && !self.extended.contains_key(&v)
    }

    /// Whether one node or copy reads `v`, and reads it once.
    pub(super) fn is_read_once(&self, v: Value) -> bool {
        self.readers.get(&v).is_some_and(|r| r.len() == 1)
    }

    /// Whether only these launches read the temporary `v`.
    pub(super) fn is_read_only_by(&self, v: Value, all: &[&Launch]) -> bool {
        let readers = self.readers.get(&v).map_or(&[][..], |r| r);
        let is_one = |node: &usize| all.iter().any(|l| l.nodes.contains(node) || l.parts.contains(node));
        self.is_free(v) && readers.iter().all(is_one)
    }

    /// Whether `v` lies in a state that some node writes in place, so that it must be read where the graph
    /// reads it.
    pub(super) fn is_rewritten(&self, v: Value) -> bool {
        let buffer = self.buffers[self.whole(v).0.index()];
        let writes = |n: &Node| n.op.in_place() && self.buffers[n.output.index()] == buffer;
        buffer.is_some() && self.graph.nodes.iter().any(writes)
    }

    /// The launch that makes the temporary `v` for one reader alone.
    pub(super) fn private(&self, v: Value) -> Option<usize> {
        let node = *self.made_by.get(&v)?;
        (self.is_read_once(v) && self.is_temporary(v) && self.launches[node].is_some()).then_some(node)
    }

    /// The value that `v` is a part of, and where it begins there.
    pub fn whole(&self, mut v: Value) -> View {
        let mut offset = 0;
        while let Some((outer, start)) = self.views.get(&v) {
            (v, offset) = (*outer, offset + start);
        }
        (v, offset)
    }

    /// The type in which a value is stored, if it is not its own.
    pub fn stored_as(&self, v: Value) -> Option<DType> {
        self.rounded.get(&self.whole(v).0).copied()
    }

    /// The run, if there is one, that a launch is a part of.
    pub fn run_of(&self, launch: usize) -> Option<&Run> {
        self.runs.iter().find(|run| run.steps.contains(&launch))
    }

    /// Nodes that no launch computes.
    pub fn view_nodes(&self) -> impl Iterator<Item = &'g Node> {
        let run: HashSet<usize> = self.launches.iter().flatten().flat_map(|l| &l.nodes).copied().collect();
        let graph = self.graph;
        (0..graph.nodes.len()).filter(move |i| !run.contains(i)).map(|i| &graph.nodes[i])
    }

    /// Moves the nodes of launch `from` to launch `to`.
    pub(super) fn absorb(&mut self, from: usize, to: usize) {
        if let (Some(gone), Some(launch)) = (self.launches[from].take(), &mut self.launches[to]) {
            launch.nodes.extend(gone.nodes);
            launch.nodes.sort_unstable();
        }
    }
}
