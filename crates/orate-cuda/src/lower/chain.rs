//! Runs of matmuls and attention of one or two rows as one launch of `kernels/chain.cu`.
//!
//! Each op of a chain reads what the one before it makes. What only ops of the chain read is in slots, which
//! belong to the session; what others may read is stored in the plan's memory too.

use super::work::{Addresses, Pointer, Work};
use crate::driver::{DevicePointer, Facts};
use crate::kernels::{CHAIN, WARPGROUP_ARCH, chain_program, product_program};
use orate_graph::{Activation, DType, Precision, Span};
use std::ops::Range;

/// Constants of the kernel: most ops, threads of a block, and its shared memory in bytes.
const OPS: usize = 144;
/// See [`OPS`].
const THREADS: u32 = 288;
/// See [`OPS`].
const SHARED: u32 = 208_896;
/// Most stages of K, of all rows of a matmul's operand, and elements of one.
const WIDEST: usize = 96;
/// See [`WIDEST`].
const STAGE: usize = 128;
/// Most elements of all rows with a layer norm.
const WIDEST_CENTERED: usize = 2048;
/// Most rows.
const ROWS: usize = 2;
/// Channels of a unit of a matmul.
const CHANNELS: usize = 16;
/// Most sums of a block: a unit has one for each part of gated ones, row and column of a layer norm.
const SUMS: usize = 16;
/// Floats of a partial result of attention.
const KEPT: usize = 132;
/// Most blocks that share the keys of a head.
const SPLITS: usize = 8;

/// Fewest ops that are worth a launch of their own kind.
const LEAST: usize = 3;

/// Keys that a block has in flight, by heads of queries for one of keys: what a block of its own has no use
/// for.
const KEYS_AT_ONCE: [usize; 2] = [64, 32];

/// Bytes before the slots: number of the last run, and blocks that have finished.
const HEADER: usize = 64;

/// Where a value is, in the order of `Form` in the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Plain,
    Floats,
    Halves,
}

/// A pointer of an op: to memory of the plan, or to slots.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Plan(Pointer),
    /// Offset in bytes.
    Slots(usize),
}

const NULL: Target = Target::Plan(Pointer::Null);

/// An op as the kernel gets it: pointers, then 32-bit words.
#[derive(Clone, Debug)]
struct ChainOp {
    pointers: [Target; 12],
    words: [u32; 32],
}

/// Launches that are one.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// Which of the plan's launches.
    pub works: Range<usize>,
    pub program: &'static str,
    /// Bytes of the session's memory that the slots take.
    pub slot_bytes: usize,
    blocks: u32,
    ops: Vec<ChainOp>,
}

impl Chain {
    /// The cooperative launch. Its arguments are [`Chain::arguments`].
    pub fn shape(&self) -> Work {
        Work {
            grid: [self.blocks, 1, 1],
            threads: THREADS,
            shared: SHARED,
            ..Work::each(self.program, CHAIN, 1)
        }
    }

    /// Returns the struct that the kernel takes.
    pub fn arguments(&self, addresses: &Addresses) -> Vec<u64> {
        let at = |target: &Target| -> DevicePointer {
            match *target {
                Target::Plan(pointer) => addresses.of(pointer),
                Target::Slots(offset) => addresses.slots + offset as u64,
            }
        };
        let mut all = vec![addresses.slots, self.ops.len() as u64];
        for op in &self.ops {
            all.extend(op.pointers.iter().map(at));
            all.extend(op.words.chunks(2).map(|w| u64::from(w[0]) | u64::from(w[1]) << 32));
        }
        let words_of_an_op = 12 + 16;
        all.resize(2 + OPS * words_of_an_op, 0);
        all
    }
}

/// What a launch is to a chain.
#[derive(Clone, Debug)]
enum Kind {
    /// `columns` are multiplied: rows, and factors and shifts of a layer norm.
    MatMul {
        rows: usize,
        k: usize,
        n: usize,
        first: usize,
        second: usize,
        gated: bool,
        normed: bool,
        columns: usize,
    },
    Attention {
        batch: usize,
        heads: usize,
        group: usize,
        width: usize,
    },
}

/// A launch that can be in a chain.
#[derive(Clone, Debug)]
struct Link {
    kind: Kind,
    out: Span,
    /// Format of weights.
    precision: Option<Precision>,
    /// Of attention: the type of keys and values.
    kept: Option<DType>,
}

fn link(work: &Work) -> Option<Link> {
    let p = &work.pointers;
    let w: Vec<usize> = work.words.iter().map(|w| *w as usize).collect();
    if matches!(work.function, "matmul_1_dense" | "matmul_1_pairs") {
        let precision = Precision::ALL.into_iter().find(|p| product_program(*p) == work.program)?;
        let &[rows, k, n, _, _, _, _, second, activation, _, _, first, gated, _, _, halves] = &w[..] else {
            return None;
        };
        let known = [Activation::Silu::<()>, Activation::GeluTanh].map(|a| a.number() as usize);
        let is_known = activation == 0 || known.contains(&activation);
        let (gated, normed, is_centered) = (gated == 1, p[10] != Pointer::Null, p[11] != Pointer::Null);
        let columns = if is_centered { rows + 2 } else { rows };
        // A row of another size has no slots, so nothing can follow it.
        let is_whole = n.is_multiple_of(CHANNELS);
        let fits = is_known
            && rows <= ROWS
            && k.is_multiple_of(CHANNELS)
            && columns * k.div_ceil(STAGE) <= WIDEST
            && (!is_centered || rows * k <= WIDEST_CENTERED)
            && (is_whole || (first == n && p[4] == Pointer::Null))
            && (first == n || (first.is_multiple_of(CHANNELS) && second.is_multiple_of(CHANNELS)))
            && halves == 0
            && [p[3], p[5], p[9]].iter().all(|p| *p == Pointer::Null);
        let out = p[7].span(4 * rows * if gated { first } else { n })?;
        let kind = Kind::MatMul { rows, k, n, first, second, gated, normed, columns };
        return fits.then_some(Link { kind, out, precision: Some(precision), kept: None });
    }
    let group = match work.function {
        "decode_heads_1" | "decode_narrow_heads_1" => 1,
        "decode_heads_2" | "decode_narrow_heads_2" => 2,
        _ => return None,
    };
    let (heads, width) = (w[0], w[1]);
    let batch = work.grid[0] as usize / (heads / group);
    // The kernel has either 16 or 32 threads for the channels of a key.
    let kept = match work.program {
        "attention_decode" => DType::F32,
        "attention_decode-f16" => DType::F16,
        "attention_decode-bf16" => DType::BF16,
        _ => return None,
    };
    let fits = width <= 64 * group && batch <= ROWS && [p[10], p[13]].iter().all(|p| *p == Pointer::Null);
    let out = p[4].span(4 * batch * heads * width)?;
    let kind = Kind::Attention { batch, heads, group, width };
    fits.then_some(Link { kind, out, precision: None, kept: Some(kept) })
}

/// Whether the launch reads the whole result of the one before it, as a chain needs.
fn follows(work: &Work, link: &Link, before: &Link) -> bool {
    if matches!(before.kind, Kind::MatMul { n, .. } if !n.is_multiple_of(CHANNELS)) {
        return false;
    }
    match link.kind {
        Kind::MatMul { rows, k, .. } => work.pointers[0].span(4 * rows * k) == Some(before.out),
        Kind::Attention { .. } => {
            work.pointers[5..8].iter().all(|p| p.offset_in(&before.out).is_some())
                && matches!(before.kind, Kind::MatMul { .. })
        }
    }
}

/// Whether two ops can be in a chain, as far as this matters to both.
fn is_alike<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
    a.is_none() || b.is_none() || a == b
}

/// Finds chains among the launches of a plan.
pub(crate) fn chains(works: &[(usize, Work)], facts: &Facts) -> Vec<Chain> {
    let mut all = vec![];
    if facts.arch != WARPGROUP_ARCH {
        return all;
    }
    let mut at = 0;
    while at < works.len() {
        let mut links: Vec<Link> = vec![];
        let (mut precision, mut kept) = (None, None);
        for (_, work) in &works[at..] {
            let Some(link) = link(work) else { break };
            let joins = match links.last() {
                None => matches!(link.kind, Kind::MatMul { .. }),
                Some(before) => follows(work, &link, before) && links.len() < OPS,
            };
            if !joins || !is_alike(link.precision, precision) || !is_alike(link.kept, kept) {
                break;
            }
            let both = (precision.or(link.precision), kept.or(link.kept));
            if both.0.is_some_and(|precision| chain_program(precision, both.1).is_none()) {
                break;
            }
            (precision, kept) = both;
            links.push(link);
        }
        let program = precision.and_then(|precision| chain_program(precision, kept));
        let count = links.len();
        if let (Some(program), true) = (program, count >= LEAST) {
            all.extend(build(works, at..at + count, &links, program, facts));
        }
        at += count.max(1);
    }
    all
}

/// The chain of some launches; `None` if a residual lies where it cannot be told from others.
fn build(
    works: &[(usize, Work)],
    range: Range<usize>,
    links: &[Link],
    program: &'static str,
    facts: &Facts,
) -> Option<Chain> {
    let blocks = facts.multiprocessors as usize;
    let inside: Vec<&Work> = works[range.clone()].iter().map(|(_, w)| w).collect();
    // The op whose result a residual is; `None` if it was made before the chain.
    let mut residuals = vec![None; links.len()];
    for (i, (work, link)) in inside.iter().zip(links).enumerate() {
        let Kind::MatMul { rows, n, .. } = link.kind else { continue };
        let Some(span) = work.pointers[4].span(4 * rows * n) else { continue };
        if let Some(j) = (0..i).rev().find(|j| links[*j].out.overlaps(&span)) {
            if links[j].out != span {
                return None;
            }
            residuals[i] = Some(j);
        }
    }
    let form = |i: usize| match links.get(i + 1).map(|l| &l.kind) {
        _ if residuals.contains(&Some(i)) => Form::Floats,
        Some(Kind::MatMul { normed: false, .. }) => Form::Halves,
        Some(_) => Form::Floats,
        None => Form::Plain,
    };
    let mut bytes = HEADER;
    let mut room = |count: usize| {
        let at = bytes;
        bytes += count.next_multiple_of(64);
        at
    };
    let elements = |i: usize| (links[i].out.end - links[i].out.begin) / 4;
    let slots: Vec<Option<usize>> = (0..links.len())
        .map(|i| match form(i) {
            Form::Plain => None,
            Form::Floats => Some(room(8 * elements(i))),
            Form::Halves => Some(room(4 * elements(i))),
        })
        .collect();
    let place = |i: usize| slots[i].map_or(NULL, Target::Slots);
    let mut start = 0;
    let mut ops = vec![];
    for (i, (work, link)) in inside.iter().zip(links).enumerate() {
        let (p, w) = (&work.pointers, &work.words);
        let plan = |i: usize| Target::Plan(p[i]);
        let (x, x_form) = match i {
            0 => (plan(0), Form::Plain),
            _ => (place(i - 1), form(i - 1)),
        };
        let mut op = ChainOp { pointers: [NULL; 12], words: [0; 32] };
        let units = match link.kind {
            Kind::MatMul { rows, k, n, first, second, gated, columns, .. } => {
                let (residual, residual_form) = match residuals[i] {
                    Some(j) => (place(j), form(j)),
                    None => (plan(4), Form::Plain),
                };
                op.pointers[..8].copy_from_slice(&[
                    plan(1),
                    x,
                    plan(10),
                    plan(11),
                    plan(2),
                    residual,
                    plan(7),
                    place(i),
                ]);
                let units = if gated { first } else { n }.div_ceil(CHANNELS);
                if units.div_ceil(blocks) * (1 + usize::from(gated)) * columns > SUMS {
                    return None;
                }
                op.words[..15].copy_from_slice(&[
                    0,
                    rows as u32,
                    k as u32,
                    n as u32,
                    x_form as u32,
                    residual_form as u32,
                    form(i) as u32,
                    units as u32,
                    start as u32,
                    w[8],
                    first as u32,
                    second as u32,
                    u32::from(gated),
                    w[13],
                    0,
                ]);
                units
            }
            Kind::Attention { batch, heads, group, width } => {
                let pairs = batch * heads / group;
                let splits = splits(blocks / pairs, w[2] as usize, KEYS_AT_ONCE[group - 1])?;
                let units = pairs * splits;
                let is_read = works[range.end..]
                    .iter()
                    .any(|(_, later)| later.pointers.iter().any(|p| p.offset_in(&link.out).is_some()));
                let is_kept = link.out.buffer.is_some() || is_read;
                let out = if is_kept { plan(4) } else { NULL };
                op.pointers = [
                    NULL,
                    x,
                    plan(8),
                    plan(9),
                    plan(11),
                    plan(12),
                    out,
                    place(i),
                    plan(3),
                    plan(1),
                    plan(2),
                    Target::Slots(room(4 * 2 * KEPT * group * units)),
                ];
                let before = &links[i - 1].out;
                let offset = |part: usize| p[5 + part].offset_in(before).map_or(0, |at| at as u32);
                op.words = [
                    1,
                    batch as u32,
                    0,
                    0,
                    x_form as u32,
                    0,
                    form(i) as u32,
                    units as u32,
                    start as u32,
                    0,
                    0,
                    0,
                    0,
                    w[12],
                    w[13],
                    w[5],
                    heads as u32,
                    group as u32,
                    width as u32,
                    w[2],
                    w[4],
                    splits as u32,
                    offset(0),
                    offset(1),
                    offset(2),
                    w[6],
                    w[7],
                    w[8],
                    w[9],
                    w[10],
                    0,
                    0,
                ];
                units
            }
        };
        // Units of each block, and how many blocks have one more.
        (op.words[30], op.words[31]) = ((units / blocks) as u32, (units % blocks) as u32);
        // Units follow those of the op before, so that all blocks get as many.
        start = (start + units) % blocks;
        ops.push(op);
    }
    Some(Chain { works: range, program, slot_bytes: bytes, blocks: blocks as u32, ops })
}

/// How many blocks share the keys of a head: no more than `most`, and as few as can hold all of `capacity`.
/// `None` if there is not even one.
fn splits(most: usize, capacity: usize, at_once: usize) -> Option<usize> {
    let allowed = || [1, 2, 4, SPLITS].into_iter().filter(|n| *n <= most);
    allowed().find(|n| n * at_once >= capacity).or(allowed().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{
        lower,
        tests::{Imagined, facts},
    };
    use crate::weights::WeightBank;
    use orate_graph::{
        Activation, AttentionMask, First, Graph, Norm, Op, Place, Plan, PrecisionPolicy, Rows, Value, Weight,
    };
    use orate_testing::RandomWeights;

    const HEADS: usize = 4;
    const WIDTH: usize = 64;

    /// Two layers of GPT-2 and a head.
    fn graph(rows: usize, activation: &Activation) -> Graph {
        let mut g = Graph::new("layers");
        let mut x = g.input("x", DType::F32, [rows, 1, WIDTH]).expect("declares");
        let at = g.input("at", DType::I32, [rows]).expect("declares");
        let norm = |g: &mut Graph, x: Value, name: &str| {
            let [weight, bias] = ["weight", "bias"].map(|n| Weight::named(format!("{name}.{n}"), [WIDTH]));
            g.layer_norm(x, Norm { weight, bias, eps: 1e-5 }).expect("builds")
        };
        let linear = |g: &mut Graph, x: Value, name: &str, [k, n]: [usize; 2]| {
            let (w, b) =
                (Weight::named(format!("{name}.w"), [k, n]), Weight::named(format!("{name}.b"), [n]));
            g.linear(x, w, b).expect("builds")
        };
        for layer in 0..2 {
            let y = norm(&mut g, x, &format!("{layer}.norm"));
            let y = linear(&mut g, y, &format!("{layer}.qkv"), [WIDTH, 3 * WIDTH]);
            let [q, k, v] = [0, 1, 2].map(|i| g.slice(y, 2, i * WIDTH, WIDTH).expect("builds"));
            let mut write = |name: &str, v: Value| {
                let state =
                    g.state(&format!("{name} {layer}"), DType::F32, [rows, 40, WIDTH]).expect("declares");
                g.write_rows(state, v, Rows::At(at)).expect("builds")
            };
            let (keys, values) = (write("keys", k), write("values", v));
            let mask = AttentionMask::Cached(First::Operand);
            let (relative, bias, follows_weights) = (None, false, false);
            let op = Op::Attention { heads: HEADS, scale: 0.25, mask, relative, bias, follows_weights };
            let y = g.attention(op, q, keys, values, Some(at)).expect("builds");
            let y = linear(&mut g, y, &format!("{layer}.out"), [WIDTH, WIDTH]);
            x = g.add(x, y).expect("builds");
            let y = norm(&mut g, x, &format!("{layer}.norm2"));
            let y = linear(&mut g, y, &format!("{layer}.up"), [WIDTH, 4 * WIDTH]);
            let y = g.activate(y, activation.clone()).expect("builds");
            let y = linear(&mut g, y, &format!("{layer}.down"), [4 * WIDTH, WIDTH]);
            x = g.add(x, y).expect("builds");
        }
        let x = norm(&mut g, x, "last");
        let y = linear(&mut g, x, "head", [WIDTH, 101]);
        g.output("y", y).expect("declares");
        g
    }

    fn chains_of(graph: Graph, precision: Precision, arch: u32) -> Vec<Chain> {
        let target = Imagined { policy: PrecisionPolicy::uniform(precision), facts: facts(arch) };
        let weights = RandomWeights::of_graph(&graph, 1);
        let plan = Plan::compile(graph, &target).expect("compiles");
        let mut bank = WeightBank::default();
        bank.imagine(&plan, &target.policy, &weights, 1 << 40);
        chains(&lower(&plan, &bank, &target.policy, &target.facts), &target.facts)
    }

    #[test]
    fn layers_of_one_or_two_rows_are_one_launch() {
        for rows in [1, 2] {
            let found = chains_of(graph(rows, &Activation::GeluTanh), Precision::Bf16, 90);
            let [chain] = &found[..] else { panic!("{} chains", found.len()) };
            // Projection, attention, output, up and down of each layer, and the head.
            assert_eq!((chain.works.len(), chain.ops.len()), (11, 11));
            let places = |i: usize| chain.ops.iter().map(move |op| op.pointers[i]);
            let slots: Vec<usize> =
                places(7).filter_map(|t| if let Target::Slots(at) = t { Some(at) } else { None }).collect();
            assert!(slots.is_sorted_by(|a, b| a < b) && slots.len() == 10, "all but the last: {slots:?}");
            assert!(slots.iter().all(|at| (HEADER..chain.slot_bytes).contains(at)));
            // Each reads what the one before writes; the second residual is a result of the chain.
            assert!(places(1).skip(1).eq(places(7).take(10)));
            let residuals: Vec<_> =
                places(5).enumerate().filter(|(i, _)| i % 5 != 1).map(|(_, t)| t).collect();
            assert!(matches!(residuals[1], Target::Plan(Pointer::Place(_))), "the input: {residuals:?}");
            assert_eq!(residuals[3], chain.ops[2].pointers[7]);
            let out = chain.ops[10].pointers[6];
            assert!(matches!(out, Target::Plan(Pointer::Place(Place::Buffer(_, 0)))), "{out:?}");
            let bytes =
                8 * chain.arguments(&Addresses { buffers: vec![0; 16], ..Addresses::default() }).len();
            assert!(bytes == 16 + OPS * 224 && bytes <= 32_764, "{bytes}");
        }
    }

    #[test]
    fn keys_have_as_many_blocks_as_they_need() {
        assert_eq!([32, 33, 100, 512, 4096].map(|keys| splits(16, keys, 32)), [1, 2, 4, 8, 8].map(Some));
        assert_eq!([0, 1, 5].map(|most| splits(most, 512, 64)), [None, Some(1), Some(4)]);
    }

    #[test]
    fn other_rows_formats_and_activations_are_launches_of_their_own() {
        let count = |rows, activation: Activation, precision, arch| {
            chains_of(graph(rows, &activation), precision, arch)
                .iter()
                .map(|c| c.works.len())
                .collect::<Vec<_>>()
        };
        for precision in [Precision::F16, Precision::Q8_0, Precision::Q4_0] {
            assert_eq!(count(1, Activation::Silu, precision, 90), [11], "{precision}");
        }
        assert!(count(3, Activation::Silu, Precision::F16, 90).is_empty(), "three rows");
        assert!(count(1, Activation::Silu, Precision::F32, 90).is_empty());
        assert!(count(1, Activation::Silu, Precision::F16, 80).is_empty());
        // Up is no part of a chain, so that one ends before it.
        assert_eq!(count(1, Activation::Gelu, Precision::F16, 90), [3, 4]);
    }
}
