//! A plan as a list of kernel launches.
//!
//! Each step becomes a few [`Work`]s, mostly one. Addresses are known only when a session runs the plan, so
//! arguments name places, which [`Work::arguments`] converts to addresses.
//!
//! [`op_kernel`] is the table of ops, one line each. Each family of ops has a file, named as in `orate-gpu`'s
//! `kernels/`, which prepares the launches; `cuts` selects kernel and tiling of matmuls.

mod attended;
mod attention;
#[cfg(test)]
mod bench;
mod chain;
mod cuts;
mod encoders;
mod feed_forward;
mod followed;
mod heads;
mod matmul;
mod movement;
mod narrow;
mod normed;
mod operands;
mod pointwise;
mod rows;
mod sample;
mod tables;
mod work;

pub(crate) use attended::join_outputs;
pub(crate) use attention::read_early;
pub(crate) use chain::{Chain, chains};
pub(crate) use feed_forward::{Layer, layers};
pub(crate) use followed::join_followers;
pub(crate) use normed::join_norms;
use operands::Operands;
pub(crate) use sample::join_rows;
pub(crate) use work::{Addresses, Pointer, Work};

use crate::driver::Facts;
use crate::kernels::{TENSOR_ARCH, WARPGROUP_ARCH, groups_program};
use crate::weights::{WeightBank, is_narrow};
use cuts::{CHANNELS, DEPTH_OF_BLOCKS, FEW_ROWS, WIDE_DEPTH, WIDE_LEAST};
use orate_graph::{
    DType, Factor, Fused, Fusions, ManyRows, Op, Place, Plan, Precision, PrecisionPolicy, Rounding, Run,
    ValueInfo, Weight, several,
};
use std::ops::Range;

/// Maximum rows of joined matmuls: those of a batch.
const MOST_JOINED: usize = 128;

/// Fusions that the kernels support.
pub(crate) fn fusions(policy: &PrecisionPolicy, facts: &Facts) -> Fusions {
    let is_rounded = !matches!(policy.precision, Precision::F32 | Precision::Tf32);
    Fusions {
        add_row: true,
        snakes: true,
        norm_activations: rows::SHORT_WIDTH,
        heads: true,
        attended_heads: &attention::GROUPS,
        attended_width: attention::DECODED_WIDTH,
        rotate_queries: true,
        matmul_rows: MOST_JOINED,
        matmul_multiple: [1, CHANNELS],
        matmul_bytes: usize::MAX,
        many_rows: Some(ManyRows {
            least: WIDE_LEAST,
            multiple: [WIDE_DEPTH, CHANNELS],
            formats: &[Precision::F16, Precision::Bf16],
        }),
        precision: policy.clone(),
        gated_rows: FEW_ROWS,
        gated_multiple: groups_program(policy.precision)
            .filter(|_| facts.arch == WARPGROUP_ARCH)
            .map(|_| [WIDE_DEPTH, CHANNELS]),
        norm_multiple: Some([DEPTH_OF_BLOCKS, 1]),
        norm_rows: FEW_ROWS,
        many_norm_rows: None,
        many_layer_norms: None,
        layer_norm_rows: 2,
        // Such rows are rounded before their mean is subtracted.
        late_layer_norm_rows: if is_rounded { FEW_ROWS } else { 0 },
        views: true,
        feed_forward: feed_forward::sizes(policy, facts),
        normed_residuals: normed::sizes(policy, facts),
        followed_residuals: followed::sizes(policy, facts),
        attended_outputs: attended::sizes(policy, facts),
        draws: true,
        scratch: attended::scratch(policy, facts),
    }
}

/// Implementation of an op: the name of its kernel in plans, or the reason why there is none, and its
/// launches.
pub(crate) struct OpKernel<'op> {
    pub name: Result<String, String>,
    launches: Launches<'op>,
}

type Launches<'op> = Box<dyn Fn(&Operands<'_>) -> Vec<Work> + 'op>;

impl<'op> OpKernel<'op> {
    /// A kernel with one launch.
    fn one(name: impl Into<String>, launch: impl Fn(&Operands<'_>) -> Work + 'op) -> Self {
        Self::checked(Ok(name.into()), launch)
    }

    /// A kernel with one launch that does not support every size.
    fn checked(name: Result<String, String>, launch: impl Fn(&Operands<'_>) -> Work + 'op) -> Self {
        OpKernel { name, launches: Box::new(move |o| vec![launch(o)]) }
    }

    /// A kernel with one launch per operand that is not empty.
    fn of_each(
        name: &str,
        inputs: &[&ValueInfo],
        launches: impl Fn(&Operands<'_>) -> Vec<Work> + 'op,
    ) -> Self {
        let n = inputs.iter().filter(|i| !i.shape.is_empty()).count();
        OpKernel { name: Ok(several(name, n)), launches: Box::new(launches) }
    }
}

/// The table: one line for each op, with everything fused into it.
pub(crate) fn op_kernel<'op>(
    op: &'op Op,
    inputs: &[&ValueInfo],
    fused: &Fused,
    policy: &PrecisionPolicy,
    facts: &Facts,
) -> OpKernel<'op> {
    use OpKernel as K;
    if !fused.heads.is_empty() {
        return K::one("heads", heads::work);
    }
    match op {
        Op::MatMul { weight: w, epilogue: e } if is_narrow(op) => K::one("dot", |o| narrow::dot(o, w, e)),
        Op::MatMul { weight: w, epilogue: e } => K::one(gemm(policy, w), |o| matmul::work(o, w, e, None)),
        Op::Conv1d { weight: w, epilogue: e, geometry: g } if is_narrow(op) => {
            K::one("conv-narrow", |o| narrow::work(o, w, e, g))
        }
        Op::Conv1d { weight: w, epilogue: e, geometry: g } => {
            K::one(gemm(policy, w), |o| matmul::work(o, w, e, Some(g)))
        }
        Op::DepthwiseConv1d { weight, bias, geometry: g, norm } => {
            let name = if norm.is_some() { "depthwise-norm" } else { "depthwise" };
            K::checked(rows::named(name, inputs), |o| rows::depthwise(o, weight, bias, g, norm.as_ref()))
        }
        Op::LayerNorm(n) => K::checked(rows::named("layer-norm", inputs), |o| rows::layer_norm(o, n)),
        Op::RmsNorm { weight, eps } => K::one("rms-norm", |o| rows::rms_norm(o, weight, *eps)),
        Op::Attention { heads, scale, mask, relative, bias, follows_weights } => {
            let attention = attention::Attention {
                heads: *heads,
                scale: *scale,
                mask: *mask,
                relative: relative.as_ref(),
                bias: *bias,
                follows_weights: *follows_weights,
            };
            K::checked(attention.name(inputs, fused, policy, facts), move |o| attention.work(o))
        }
        Op::RelativeScores { heads, scale } => {
            K::one("relative-scores", |o| attention::relative_scores(o, *heads, *scale))
        }
        Op::AddBias { bias } => K::one("pointwise", |o| pointwise::add_bias(o, bias)),
        Op::Affine { scale, shift } => K::one("pointwise", |o| pointwise::affine(o, scale, shift)),
        Op::Activate(a) => K::one("pointwise", |o| pointwise::activate(o, a)),
        Op::Add => K::one("pointwise", |o| pointwise::combine(o, [Factor::Const(1.0); 2])),
        Op::Mul => K::one("pointwise", pointwise::mul),
        Op::AddRow => K::one("pointwise", pointwise::add_row),
        Op::MulRow => K::one("pointwise", pointwise::mul_row),
        Op::Combine { a, b } => K::one("pointwise", |o| pointwise::combine(o, [*a, *b])),
        Op::Scale { factor } => K::one("pointwise", |o| pointwise::scale(o, *factor)),
        Op::MaskRows => K::one("mask", pointwise::mask_rows),
        Op::Snake { frequency, gain } => K::one("snake", |o| pointwise::snake(o, frequency, gain)),
        Op::Rotary { .. } => K::one("rotary", tables::rotary),
        Op::RotaryTable { theta } => K::one("table", |o| tables::rotary_table(o, theta)),
        Op::RopeTable { base, scaling, first } => {
            K::one("table", |o| tables::rope_table(o, *base, *scaling, *first))
        }
        Op::TimeEmbedding { dim } => K::one("table", |o| tables::time_embedding(o, *dim)),
        Op::RandomNormal { seed, scale } => K::one("philox", |o| tables::random_normal(o, *seed, *scale)),
        Op::Sample(rules) => K::checked(sample::name(inputs, facts), |o| sample::work(o, rules)),
        Op::Embedding { table } => K::one("gather", |o| movement::embedding(o, table)),
        Op::EmbeddingSum { tables, first } => {
            K::one("gather", |o| movement::embedding_sum(o, tables, *first))
        }
        Op::SelectRow { index } => K::one("gather", |o| movement::select_row(o, *index)),
        Op::RowAt => K::one("gather", movement::row_at),
        Op::Constant { weight } => K::one("copy", |o| movement::constant(o, weight)),
        Op::Concat { axis } => K::of_each("copy", inputs, |o| movement::concat(o, *axis)),
        Op::Slice { axis, start, .. } => K::one("copy", |o| movement::slice(o, *axis, *start)),
        Op::Permute { perm } => K::checked(movement::permute_name(perm), |o| movement::permute(o, perm)),
        Op::Increment { by } => K::one("increment", |o| movement::increment(o, *by)),
        Op::WriteRows { first } => K::one(movement::write_name(inputs), |o| movement::write_rows(o, *first)),
        Op::Mark => K::one("mark", movement::mark),
        Op::Pad { padding, before, .. } => K::one("pad", |o| encoders::pad(o, *padding, *before)),
        Op::Statistics { floor } => K::one("statistics", |o| encoders::statistics(o, *floor)),
        Op::ResidualCodes { codebooks } => {
            let name = encoders::codes_name(codebooks, facts);
            K::checked(name, |o| encoders::residual_codes(o, codebooks))
        }
        Op::OverlapAdd { window, hop } => K::one("overlap-add", |o| encoders::overlap_add(o, window, *hop)),
        Op::Lstm { weight } => K::checked(encoders::lstm_name(weight, facts), |o| encoders::lstm(o, weight)),
        Op::SegmentMean { rows } => K::one("segment-mean", |o| encoders::segment_mean(o, *rows)),
        Op::HarmonicSource { hop, rate } => {
            K::one("harmonic-source", |o| encoders::harmonic_source(o, *hop, *rate))
        }
        Op::Reshape => unreachable!("a view of its operand in every plan"),
    }
}

/// Name of the matmul kernel for a weight.
fn gemm(policy: &PrecisionPolicy, weight: &Weight) -> String {
    format!("{}-gemm", policy.of(weight))
}

/// Returns the kernel that would run `op` with everything fused into it, or the reason why there is none.
pub(crate) fn kernel_name(
    op: &Op,
    inputs: &[&ValueInfo],
    fused: &Fused,
    policy: &PrecisionPolicy,
    facts: &Facts,
) -> Result<String, String> {
    if let Some(large) = inputs.iter().find(|i| i.shape.len() > i32::MAX as usize / 2) {
        return Err(format!("operand {} has more than 2³⁰ elements", large.shape));
    }
    op_kernel(op, inputs, fused, policy, facts).name
}

/// Element types of 16 bits.
const COMPACT: [DType; 2] = [DType::F16, DType::BF16];

/// That of a kernel that may be able to store its result in them.
fn stores(can: bool) -> Rounding {
    Rounding { writes: if can { &COMPACT } else { &[] }, ..Rounding::default() }
}

/// How the kernel of a launch handles values of 16 bits.
pub(crate) fn rounding(
    op: &Op,
    inputs: &[&ValueInfo],
    output: &ValueInfo,
    fused: &Fused,
    policy: &PrecisionPolicy,
    facts: &Facts,
) -> Rounding {
    let matmul = |weight, conv| {
        matmul::rounding((&inputs[0].shape, &output.shape), weight, conv, fused, policy, facts)
    };
    match op {
        _ if !fused.heads.is_empty() || is_narrow(op) => Rounding::default(),
        Op::MatMul { weight, .. } => matmul(weight, None),
        Op::Conv1d { weight, geometry, .. } => matmul(weight, Some(geometry)),
        Op::RmsNorm { .. } if facts.arch >= TENSOR_ARCH => stores(rows::holds_row(output.shape.last())),
        Op::LayerNorm(_) if facts.arch >= TENSOR_ARCH => stores(rows::stores_halves(output.shape.last())),
        Op::DepthwiseConv1d { geometry: g, norm: Some(_), .. } if facts.arch >= TENSOR_ARCH => {
            stores(rows::depthwise_stores_halves(output.shape.last(), g.taps))
        }
        Op::Snake { .. } if facts.arch >= TENSOR_ARCH => stores(output.shape.last().is_multiple_of(4)),
        Op::Slice { .. } => Rounding { widens: true, ..Rounding::default() },
        Op::AddBias { .. } => stores(facts.arch >= TENSOR_ARCH),
        Op::RelativeScores { heads, .. } => {
            attention::rounding_of_scores(inputs[0].shape.dims(), *heads, policy, facts)
        }
        Op::Attention { heads, scale, mask, relative, bias, follows_weights } => attention::Attention {
            heads: *heads,
            scale: *scale,
            mask: *mask,
            relative: relative.as_ref(),
            bias: *bias,
            follows_weights: *follows_weights,
        }
        .rounding(inputs, output, fused, policy, facts),
        _ => Rounding::default(),
    }
}

/// Where the launches of a run are, if each of its steps still is one.
fn of_run(works: &[(usize, Work)], run: &Run) -> Option<Range<usize>> {
    let [begin, end] =
        [run.steps.start, run.steps.end].map(|at| works.partition_point(|(step, _)| *step < at));
    (end - begin == run.steps.len()).then_some(begin..end)
}

/// Returns the launches of a plan with weights in `bank`, each with the index of its step. Copies of stored
/// values have the index after the last step.
pub(crate) fn lower(
    plan: &Plan,
    bank: &WeightBank,
    policy: &PrecisionPolicy,
    facts: &Facts,
) -> Vec<(usize, Work)> {
    let mut works = vec![];
    for (i, step) in plan.steps().iter().enumerate() {
        let inputs: Vec<&ValueInfo> = step.node.inputs.iter().map(|v| plan.info(*v)).collect();
        let kernel = op_kernel(&step.node.op, &inputs, &step.fused, policy, facts);
        let operands = Operands { plan, bank, policy, facts, step };
        works.extend((kernel.launches)(&operands).into_iter().map(|w| (i, w)));
    }
    matmul::announce(&mut works, facts);
    for &(buffer, v) in plan.copies() {
        let (from, to) = (plan.place(v), Place::Buffer(buffer, 0));
        let n = plan.info(v).dtype.bytes_of(&plan.info(v).shape) / 4;
        let copy = movement::copy(Pointer::Place(from), Pointer::Place(to), [1, n, 0, 0]);
        works.push((plan.steps().len(), copy));
    }
    works
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate_graph::{
        Activation, AttentionMask, ConvGeometry, DType, Epilogue, Graph, Norm, Precision, Target, launches_of,
    };
    use orate_testing::{NOT_BUILT_ON_GPUS, fused_cases, op_cases};

    /// Facts of an imaginary GPU of an architecture.
    pub(super) fn facts(arch: u32) -> Facts {
        Facts {
            name: "test".to_owned(),
            card: None,
            memory: 8 << 30,
            arch,
            multiprocessors: 132,
            shared: match arch {
                75 => 64 << 10,
                90 => 227 << 10,
                _ => 99 << 10,
            },
            cache: 50 << 20,
            integrated: false,
        }
    }

    /// A graph's plan for a Hopper GPU with random weights, and the launches.
    pub(super) fn works_of(g: Graph, precision: Precision) -> (Plan, Vec<(usize, Work)>) {
        let target = Imagined { policy: PrecisionPolicy::uniform(precision), facts: facts(90) };
        let weights = orate_testing::RandomWeights::of_graph(&g, 1);
        let plan = Plan::compile(g, &target).expect("compiles");
        let mut bank = WeightBank::default();
        bank.imagine(&plan, &target.policy, &weights, 1 << 40);
        let works = lower(&plan, &bank, &target.policy, &target.facts);
        (plan, works)
    }

    /// [`crate::CudaDevice`] without a GPU: compiles plans only.
    pub(super) struct Imagined {
        pub policy: PrecisionPolicy,
        pub facts: Facts,
    }

    impl Target for Imagined {
        fn name(&self) -> String {
            "imagined".to_owned()
        }

        fn kernel(&self, op: &Op, inputs: &[&ValueInfo]) -> Result<String, String> {
            kernel_name(op, inputs, &Fused::default(), &self.policy, &self.facts)
        }

        fn fusions(&self) -> Fusions {
            fusions(&self.policy, &self.facts)
        }

        fn fused_kernel(&self, op: &Op, inputs: &[&ValueInfo], fused: &Fused) -> Result<String, String> {
            kernel_name(op, inputs, fused, &self.policy, &self.facts)
        }

        fn rounding(&self, op: &Op, inputs: &[&ValueInfo], output: &ValueInfo, fused: &Fused) -> Rounding {
            rounding(op, inputs, output, fused, &self.policy, &self.facts)
        }
    }

    /// Each step of a plan has the launches that its kernel name lists, in order, and these stay within the
    /// plan's memory.
    #[test]
    fn steps_are_launches() {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0, Precision::Q4K] {
            let target = Imagined { policy: PrecisionPolicy::uniform(precision), facts: facts(90) };
            for case in fused_cases(60).into_iter().chain(op_cases()) {
                let Ok(plan) = Plan::compile(case.graph.clone(), &target) else { continue };
                let mut bank = WeightBank::default();
                bank.imagine(&plan, &target.policy, &case.weights, 1 << 40);
                let works = lower(&plan, &bank, &target.policy, &target.facts);
                assert!(works.is_sorted_by_key(|(step, _)| *step), "{}", case.name);
                for (i, step) in plan.steps().iter().enumerate() {
                    let found = works.iter().filter(|(s, _)| *s == i).count();
                    assert_eq!(
                        found,
                        launches_of(&step.kernel),
                        "{}: step {i}, {}",
                        case.name,
                        step.describe()
                    );
                }
                let copies = works.iter().filter(|(s, _)| *s == plan.steps().len()).count();
                assert_eq!(copies, plan.copies().len(), "{}", case.name);
                for pointer in works.iter().flat_map(|(_, w)| &w.pointers) {
                    match *pointer {
                        Pointer::Place(Place::Arena(at)) => {
                            assert!(at <= plan.arena_bytes(), "{}", case.name)
                        }
                        Pointer::Place(Place::Buffer(i, at)) => {
                            let b = &plan.buffers()[i];
                            assert!(at <= b.dtype.bytes_of(&b.shape), "{}", case.name);
                        }
                        Pointer::Place(Place::Nowhere) => {
                            panic!("{}: a value that was fused away", case.name)
                        }
                        Pointer::Weight(at) => assert!(at >= 1 << 40, "{}", case.name),
                        Pointer::Null | Pointer::Scalar(_) => {}
                    }
                }
            }
        }
    }

    /// Only some kernels read or write values of 16 bits.
    #[test]
    fn values_of_16_bits_meet_kernels_for_them() {
        let mut rounded = 0;
        // Of few and many rows, and of matmuls that warpgroups compute and leave to others.
        for (rows, width) in [(64, 256), (64, 1024), (700, 256), (700, 72), (1400, 512)] {
            let target = Imagined { policy: PrecisionPolicy::uniform(Precision::Bf16), facts: facts(90) };
            let mut g = Graph::new("chain");
            let mut x = g.input("x", DType::F32, [1, rows, width]).expect("declares");
            for (i, n) in [1024, 40, 256, 256, width].into_iter().enumerate() {
                let c = g.shape(x).last();
                let vector = |name: &str| Weight::named(format!("{name}{i}"), [c]);
                let norm = Norm { weight: vector("gain"), bias: vector("shift"), eps: 1e-5 };
                let y = g.layer_norm(x, norm).expect("builds");
                let y = g.matmul(y, Weight::named(format!("up{i}"), [c, 2 * n])).expect("builds");
                x = g.matmul(y, Weight::named(format!("down{i}"), [2 * n, n])).expect("builds");
            }
            g.output("y", x).expect("declares");
            let weights = orate_testing::RandomWeights::of_graph(&g, 1);
            let plan = Plan::compile(g, &target).expect("compiles");
            let mut bank = WeightBank::default();
            bank.imagine(&plan, &target.policy, &weights, 1 << 40);
            let is_compact = |v: &orate_graph::Value| plan.info(*v).dtype.is_compact();
            for (i, work) in lower(&plan, &bank, &target.policy, &target.facts) {
                let Some(step) = plan.steps().get(i) else { continue };
                let reads = step.node.inputs.iter().any(is_compact);
                let writes = is_compact(&step.node.output);
                let can_read = work.program.contains("warpgroup");
                assert!(!reads || can_read, "{} reads 16 bits: {}", work.program, plan.explain(None));
                let can_write = can_read || work.program == "layer_norm";
                assert!(!writes || can_write, "{} writes 16 bits: {}", work.program, plan.explain(None));
                rounded += usize::from(writes);
            }
        }
        assert!(rounded > 10, "{rounded} values are rounded");
    }

    /// Of a codec's residual units, only the sum is stored in f32, and what a state keeps.
    #[test]
    fn convolutions_read_and_write_16_bits_between_snakes() {
        let target = Imagined { policy: PrecisionPolicy::uniform(Precision::Bf16), facts: facts(90) };
        let vector = |name: &str| Weight::named(name, [192]);
        let matrix = |name: &str, k: usize| Weight::named(name, [k, 192]);
        let geometry = ConvGeometry::streaming(7, 9);
        // Kept as rounded, where only the convolution reads the state; else as it is.
        for (is_read, is_view) in [(false, false), (true, false), (true, true)] {
            let mut g = Graph::new("unit");
            let x = g.input("x", DType::F32, [8, 4000, 192]).expect("declares");
            let y = g.snake(x, vector("f1"), vector("g1")).expect("builds");
            let history = g.state("history", DType::F32, [8, geometry.left, 192]).expect("declares");
            let next = g.slice(y, 1, 4000 - geometry.left, geometry.left).expect("builds");
            g.update("history", next).expect("declared");
            if is_read {
                let shape = [8 * geometry.left, 192];
                let also = if is_view { g.reshape(history, shape).expect("builds") } else { history };
                let also = g.activate(also, Activation::Relu).expect("builds");
                g.output("also", also).expect("declares");
            }
            let y = g.conv1d_after(history, y, matrix("conv", 7 * 192), geometry).expect("builds");
            let y = g.snake(y, vector("f2"), vector("g2")).expect("builds");
            let y = g.matmul(y, matrix("last", 192)).expect("builds");
            let y = g.add(x, y).expect("builds");
            g.output("y", y).expect("declares");
            let weights = orate_testing::RandomWeights::of_graph(&g, 1);
            let plan = Plan::compile(g, &target).expect("compiles");
            let mut bank = WeightBank::default();
            bank.imagine(&plan, &target.policy, &weights, 1 << 40);
            let works = lower(&plan, &bank, &target.policy, &target.facts);
            let programs: Vec<&str> = works.iter().map(|(_, w)| w.program).collect();
            let functions: Vec<&str> = works.iter().map(|(_, w)| w.function).collect();
            let stored = plan.steps().iter().filter(|s| plan.info(s.node.output).dtype.is_compact()).count();
            if is_read {
                assert!(
                    functions.contains(&"copy") && !programs.contains(&"conv_warpgroup-bf16"),
                    "{functions:?}"
                );
                assert_eq!(stored, 0, "{}", plan.explain(None));
            } else {
                assert!(functions.contains(&"copy_bf16"), "{functions:?}");
                assert!(programs.contains(&"conv_warpgroup-bf16"), "{programs:?}");
                assert_eq!(stored, 2, "both Snakes: {}", plan.explain(None));
            }
        }
    }

    /// Of Chatterbox's encoder, with positions relative to the query.
    #[test]
    fn attention_of_relative_positions_is_of_warpgroups() {
        for (rows, precision) in
            [(352, Precision::F16), (704, Precision::F16), (704, Precision::Bf16), (704, Precision::F32)]
        {
            let target = Imagined { policy: PrecisionPolicy::uniform(precision), facts: facts(90) };
            let mut g = Graph::new("encoder");
            let x = g.input("x", DType::F32, [1, rows, 512]).expect("declares");
            let offsets = g.input("offsets", DType::F32, [1, 2 * rows - 1, 512]).expect("declares");
            let vector = |name: &str| Weight::named(name, [512]);
            let matrix = |name: &str| Weight::named(name, [512, 512]);
            let norm = Norm { weight: vector("gain"), bias: vector("shift"), eps: 1e-5 };
            let y = g.layer_norm(x, norm).expect("builds");
            let q = g.matmul(y, matrix("q")).expect("builds");
            let [k, v] = ["k", "v"].map(|name| g.linear(y, matrix(name), vector(name)).expect("builds"));
            let [of_keys, of_offsets] = ["u", "w"].map(|name| g.add_bias(q, vector(name)).expect("builds"));
            let p = g.matmul(offsets, matrix("p")).expect("builds");
            let scores = g.relative_scores(of_offsets, p, 8, 0.125).expect("builds");
            let (mask, relative) = (AttentionMask::None, None);
            let op =
                Op::Attention { heads: 8, scale: 0.125, mask, relative, bias: true, follows_weights: true };
            let y = g.biased_attention(op, [of_keys, k, v, scores], None).expect("builds");
            let y = g.matmul(y, matrix("out")).expect("builds");
            g.output("y", y).expect("declares");
            let weights = orate_testing::RandomWeights::of_graph(&g, 1);
            let plan = Plan::compile(g, &target).expect("compiles");
            let mut bank = WeightBank::default();
            bank.imagine(&plan, &target.policy, &weights, 1 << 40);
            let functions: Vec<&str> =
                lower(&plan, &bank, &target.policy, &target.facts).iter().map(|(_, w)| w.function).collect();
            for wanted in ["relative_scores_warpgroup_64", "attention_warpgroup_64_biased"] {
                let is_there = functions.contains(&wanted);
                assert_eq!(is_there, precision != Precision::F32, "{functions:?}: {}", plan.explain(None));
            }
        }
    }

    #[test]
    fn every_op_case_has_a_kernel_on_every_architecture() {
        for arch in [75, 80, 86, 90, 120] {
            for case in op_cases() {
                for node in case.graph.nodes().iter().filter(|n| n.op != Op::Reshape) {
                    let inputs: Vec<&ValueInfo> = node.inputs.iter().map(|v| case.graph.info(*v)).collect();
                    let name = kernel_name(
                        &node.op,
                        &inputs,
                        &Fused::default(),
                        &PrecisionPolicy::default(),
                        &facts(arch),
                    );
                    // The list must also hold on a real GPU: tests/main/ops.rs.
                    match name {
                        Ok(name) => assert!(!name.is_empty(), "{} on sm_{arch}", case.name),
                        Err(why) => {
                            let known = NOT_BUILT_ON_GPUS.iter().any(|n| why.contains(n));
                            assert!(known, "{} on sm_{arch}: {why}", case.name);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn products_say_in_which_format_they_are_computed() {
        let op =
            |name: &str| Op::MatMul { weight: Weight::named(name, [8, 8]), epilogue: Epilogue::default() };
        let x = ValueInfo { dtype: DType::F32, shape: [1, 8].into(), buffer: None };
        let policy =
            PrecisionPolicy { precision: Precision::Bf16, deny: vec!["head.*".into()], ..Default::default() };
        let name = |n: &str| kernel_name(&op(n), &[&x], &Fused::default(), &policy, &facts(90));
        assert_eq!(name("body.w").as_deref(), Ok("bf16-gemm"));
        assert_eq!(name("head.w").as_deref(), Ok("f32-gemm"));
    }

    #[test]
    fn attention_of_many_queries_is_rounded_only_where_the_op_says_so() {
        let of_keys = |keys: DType,
                       precision: Precision,
                       follows_weights: bool,
                       queries: usize,
                       arch: u32| {
            let info = |dtype| ValueInfo { dtype, shape: [1, queries, 512].into(), buffer: None };
            let (q, k) = (info(DType::F32), info(keys));
            let mask = AttentionMask::None;
            let op =
                Op::Attention { heads: 8, scale: 1.0, mask, relative: None, bias: false, follows_weights };
            let policy = PrecisionPolicy::uniform(precision);
            kernel_name(&op, &[&q, &k, &k], &Fused::default(), &policy, &facts(arch)).expect("has a kernel")
        };
        let name = |precision, follows_weights, queries, arch| {
            of_keys(DType::F32, precision, follows_weights, queries, arch)
        };
        for (precision, rounded) in [
            (Precision::F32, "attention-mma"),
            (Precision::Tf32, "attention-mma-tf32"),
            (Precision::F16, "attention-mma-f16"),
            (Precision::Bf16, "attention-mma-bf16"),
            (Precision::Q8_0, "attention-mma-f16"),
            (Precision::Q4_0, "attention-mma-f16"),
        ] {
            assert_eq!(name(precision, true, 700, 90), rounded);
            assert_eq!(name(precision, false, 700, 90), "attention-mma");
            assert_eq!(name(precision, true, 100, 90), "attention", "few queries");
            assert_eq!(name(precision, true, 700, 75), "attention", "an old GPU");
            assert_eq!(of_keys(DType::F16, precision, false, 700, 90), "attention-mma-cached-f16");
            assert_eq!(of_keys(DType::BF16, precision, false, 700, 90), "attention-mma-cached-bf16");
            assert_eq!(of_keys(DType::BF16, precision, true, 700, 90), "attention-bf16", "rounded queries");
            assert_eq!(of_keys(DType::Q8_0, precision, false, 700, 90), "attention-q8_0");
        }
    }

    #[test]
    fn what_is_too_wide_is_refused_with_a_reason() {
        let info = |shape: Vec<usize>| ValueInfo { dtype: DType::F32, shape: shape.into(), buffer: None };
        let refused = |op: Op, shapes: [Vec<usize>; 3], word: &str| {
            let inputs = shapes.map(info);
            let inputs: Vec<&ValueInfo> = inputs.iter().collect();
            let plain = Fused::default();
            let e = kernel_name(&op, &inputs, &plain, &PrecisionPolicy::default(), &facts(90))
                .expect_err("too wide");
            assert!(e.contains(word), "{e}");
        };
        let v = |c: usize| Weight::named("w", [c]);
        let norm = |c: usize| Op::LayerNorm(Norm { weight: v(c), bias: v(c), eps: 1e-6 });
        refused(norm(4100), [vec![2, 4100], vec![], vec![]], "4096");
        refused(norm(1025), [vec![2, 1025], vec![], vec![]], "1024");
        let attention = Op::Attention {
            heads: 1,
            scale: 1.0,
            mask: AttentionMask::None,
            relative: None,
            bias: false,
            follows_weights: false,
        };
        refused(attention, [vec![1, 2, 300], vec![1, 2, 300], vec![1, 2, 300]], "256");
    }
}
