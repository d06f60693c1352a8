//! Attention. Many queries use tensor cores; a single query over a cache has a kernel of its own, in which
//! blocks share the keys.

use super::cuts::LINES;
use super::matmul::half_of;
use super::operands::{Operands, cache_type};
use super::work::{Pointer, Work, bits};
use crate::driver::Facts;
use crate::kernels::{
    ATTENTION_WARPGROUP, CLUSTER_ARCH, RELATIVE_SCORES_PROGRAM, RELATIVE_SCORES_WARPGROUP, SHARED,
    TENSOR_ARCH, WARPGROUP_ARCH, attention_program, attention_warpgroup_program,
};
use orate_graph::{
    AttentionMask, DType, First, Fused, Head, Place, Precision, PrecisionPolicy, RelativePositions, Rounding,
    ValueInfo, Weight,
};

/// Maximum head width.
const HEAD_WIDTH: usize = 256;

/// Maximum window of relative positions.
const WINDOW: usize = 64;

/// Queries per block in `kernels/attention.cu`.
const QUERIES: usize = 4;

/// For `kernels/attention_decode.cu`: maximum head width, blocks that share the keys of a head, and most
/// warps of a block.
pub(super) const DECODED_WIDTH: usize = 128;
/// There, query heads for each key head.
pub(super) const GROUPS: [usize; 3] = [1, 2, 4];
/// See [`DECODED_WIDTH`].
const DECODING_BLOCKS: usize = 8;
/// See [`DECODED_WIDTH`].
const DECODING_WARPS: usize = 8;
/// There, width of heads for which a quarter of a warp has a key, in place of half.
const NARROW_WIDTH: usize = 64;
/// There, warps that run on a multiprocessor at once.
const DECODING_WARPS_AT_ONCE: usize = 16;
/// There, the index of the word that lets a kernel read early, and those of the pointers that it then reads
/// from: keys, values and positions. See [`read_early`].
const EARLY: usize = 16;
/// Indices of the pointer to the result, and of the first of those for a matmul of it; see
/// `kernels/attention_output.cu`.
pub(super) const OUT: usize = 4;
/// See [`OUT`].
pub(super) const NEXT: usize = 15;
/// See [`EARLY`].
const READ_EARLY: std::ops::Range<usize> = 1..4;
/// For `kernels/attention_shared.cu`: width of heads, and rows of a cluster.
const SHARED_WIDTH: usize = 64;
/// See [`SHARED_WIDTH`].
const SHARED_ROWS: usize = 16;
/// Rows of a cache that is so short that one block has all of them, and those of a warp in one iteration.
const SHORT_CACHE: usize = 32;
/// See [`SHORT_CACHE`].
const KEYS_OF_A_WARP: usize = 8;

/// For `kernels/attention_mma.cu`: minimum queries, range of head widths and their step, keys per warp and
/// iteration, and stages of keys. Fewer queries are few blocks, which take as long as more.
const TENSOR_QUERIES: usize = 128;
/// The same for each sequence of a batch that has [`TENSOR_BATCH`] queries in all.
const TENSOR_LEAST: usize = 16;
/// See [`TENSOR_LEAST`].
const TENSOR_BATCH: usize = 256;
/// See [`TENSOR_QUERIES`].
const TENSOR_WIDTHS: std::ops::RangeInclusive<usize> = 32..=128;
/// See [`TENSOR_QUERIES`].
const TENSOR_WIDTH_STEP: usize = 16;
/// See [`TENSOR_QUERIES`].
const TENSOR_KEYS: usize = 32;
/// See [`TENSOR_QUERIES`].
const TENSOR_STAGES: usize = 2;

/// For `kernels/attention_warpgroup.cu`: width of heads, queries of a block and keys of an iteration, and
/// stages of keys.
const WARPGROUP_WIDTH: usize = 64;
/// See [`WARPGROUP_WIDTH`].
const WARPGROUP_SIDE: usize = 64;
/// See [`WARPGROUP_WIDTH`].
const WARPGROUP_STAGES: usize = 3;

/// Blocks that share the keys of 64 queries in `kernels/relative_scores_warpgroup.cu`.
const SCORE_BLOCKS: u32 = 2;

/// Fields of [`orate_graph::Op::Attention`].
pub(super) struct Attention<'op> {
    pub heads: usize,
    pub scale: f32,
    pub mask: AttentionMask,
    pub relative: Option<&'op RelativePositions>,
    pub bias: bool,
    pub follows_weights: bool,
}

impl Attention<'_> {
    /// Name of the kernel in plans for these operands, or the reason why there is none.
    pub fn name(
        &self,
        inputs: &[&ValueInfo],
        fused: &Fused,
        policy: &PrecisionPolicy,
        facts: &Facts,
    ) -> Result<String, String> {
        let dtype = inputs[1].dtype;
        let cached =
            |name: &str| if dtype.is_compact() { format!("{name}-{dtype}") } else { name.to_owned() };
        if !fused.before.is_empty() {
            return Ok(cached("attention-heads"));
        }
        let d = inputs[0].shape.last() / self.heads;
        if d > HEAD_WIDTH {
            return Err(format!("heads of width {d} are wider than {HEAD_WIDTH}"));
        }
        if let Some(r) = self.relative.filter(|r| r.window > WINDOW) {
            return Err(format!("a window of {} is wider than {WINDOW}", r.window));
        }
        if inputs[0].dtype.is_compact() {
            let program = attention_warpgroup_program(self.precision(policy));
            return program.map(str::to_owned).ok_or_else(|| format!("queries are stored in {dtype}"));
        }
        if self.is_for_tensor_cores(inputs[0].shape.dims(), dtype, facts) {
            return Ok(attention_program(self.precision(policy), dtype).to_owned());
        }
        let (_, keys) = function(d, inputs[1].shape.dims()[1], dtype, facts.shared);
        let shared = shared(d, keys, self.relative.map(|r| r.window));
        if shared + 1024 > facts.shared as usize {
            let there = facts.shared;
            return Err(format!("heads of {d} need {shared} bytes of shared memory, {there} are there"));
        }
        Ok(cached("attention"))
    }

    /// Precision of the operands on tensor cores. With a bias it is an encoder's, between layers that are
    /// rounded to bf16; f16 adds less to their noise. By weights in blocks, rows are multiplied in f16, too.
    fn precision(&self, policy: &PrecisionPolicy) -> Precision {
        match policy.precision {
            _ if !self.follows_weights => Precision::F32,
            Precision::Bf16 if self.bias => Precision::F16,
            blocks if blocks.block() > 1 => Precision::F16,
            precision => precision,
        }
    }

    /// Whether `kernels/attention_mma.cu` supports queries of shape `q`, and is faster.
    fn is_for_tensor_cores(&self, q: &[usize], keys: DType, facts: &Facts) -> bool {
        let d = q[2] / self.heads;
        let are_read = match keys {
            DType::F32 => true,
            DType::F16 | DType::BF16 => !self.follows_weights && !self.bias,
            DType::Q8_0 | DType::I32 => false,
        };
        facts.arch >= TENSOR_ARCH
            && are_read
            && self.relative.is_none()
            && (q[1] >= TENSOR_QUERIES || q[1] >= TENSOR_LEAST && q[0] * q[1] >= TENSOR_BATCH)
            && TENSOR_WIDTHS.contains(&d)
            && d.is_multiple_of(TENSOR_WIDTH_STEP)
    }

    /// How the kernel handles values of 16 bits: one for warpgroups reads and writes them, that of a single
    /// query writes them.
    pub fn rounding(
        &self,
        inputs: &[&ValueInfo],
        output: &ValueInfo,
        fused: &Fused,
        policy: &PrecisionPolicy,
        facts: &Facts,
    ) -> Rounding {
        let (q, k) = (inputs[0].shape.dims(), inputs[1]);
        let fits = facts.arch == WARPGROUP_ARCH
            && self.follows_weights
            && self.mask == AttentionMask::None
            && fused.rotary.is_none()
            && self.is_for_tensor_cores(q, k.dtype, facts)
            && q[1] >= TENSOR_QUERIES
            && q[2] / self.heads == WARPGROUP_WIDTH;
        let is_cached = matches!(self.mask, AttentionMask::Cached(_));
        if is_cached && is_decoding(output.shape.dims(), k.shape.dims(), self.heads, fused) {
            return super::stores(facts.arch >= TENSOR_ARCH);
        }
        match half_of(self.precision(policy)).filter(|_| fits) {
            Some(dtype) => Rounding { reads: Some((3, dtype)), writes: &super::COMPACT, widens: false },
            None => Rounding::default(),
        }
    }

    /// Launch of the best kernel.
    pub fn work(&self, o: &Operands<'_>) -> Work {
        let of_warpgroups = attention_warpgroup_program(self.precision(o.policy));
        match self.mask {
            _ if o.dtype(0).is_compact()
                && let Some(program) = of_warpgroups =>
            {
                in_warpgroups(self.plain(o), program, self.bias, o.facts)
            }
            AttentionMask::Cached(first)
                if is_decoding(o.out_shape().dims(), o.shape(1).dims(), self.heads, &o.step.fused) =>
            {
                decode(o, self.heads, self.scale, first)
            }
            _ if self.is_for_tensor_cores(o.shape(0).dims(), o.dtype(1), o.facts) => {
                let precision = self.precision(o.policy);
                let tile = Tile::best(o.shape(0).dims(), self.heads, precision, o.facts);
                tile.on(self.plain(o), precision, o.dtype(1))
            }
            _ => self.plain(o),
        }
    }

    /// `kernels/attention.cu`: four queries per block.
    pub fn plain(&self, o: &Operands<'_>) -> Work {
        let (q, k) = (o.shape(0).dims(), o.shape(1).dims());
        let (d, window) = (q[2] / self.heads, self.relative.map_or(0, |r| r.window));
        let dtype = o.dtype(1);
        let (function, keys) = function(d, k[1], dtype, o.facts.shared);
        let table = |w: Option<&Weight>| w.map_or(Pointer::Null, |w| o.dense(w));
        let tables = o.step.fused.rotary.map_or(1, |t| o.shape_of(t).dims()[0]);
        let is_masked = usize::from(self.mask != AttentionMask::None);
        let mut words =
            [self.heads, d, q[1], k[1], k[0], window, is_masked, tables].map(|x| x as u32).to_vec();
        words.push(bits(self.scale));
        let (seen, shift) = match self.mask {
            AttentionMask::None => (0, 0),
            AttentionMask::Causal => (0, k[1] - q[1]),
            AttentionMask::Window(seen) | AttentionMask::Stream(seen) => (seen, k[1] - q[1]),
            AttentionMask::Cached(First::Const(first)) => (0, first),
            AttentionMask::Cached(First::Operand) => (0, 0),
        };
        let stream = usize::from(matches!(self.mask, AttentionMask::Stream(_)));
        let stored = cache_type(o.out_type()) as usize;
        words.extend([seen, q[2] / k[2], shift, stream, stored].map(|x| x as u32));
        let last = o.optional(3);
        let (lens, first, bias) = match self.mask {
            _ if self.bias => (o.optional(4), Pointer::Null, last),
            _ if self.mask.has_positions() => (Pointer::Null, last, Pointer::Null),
            _ => (last, Pointer::Null, Pointer::Null),
        };
        Work {
            program: match dtype {
                DType::F16 => "attention-f16",
                DType::BF16 => "attention-bf16",
                DType::Q8_0 => "attention-q8_0",
                DType::F32 | DType::I32 => "attention",
            },
            function,
            grid: [q[1].div_ceil(QUERIES) as u32, self.heads as u32, q[0] as u32],
            threads: 128,
            shared: shared(d, keys, self.relative.map(|r| r.window)) as u32,
            cluster: 1,
            pointers: vec![
                o.x(0),
                o.x(1),
                o.x(2),
                lens,
                table(self.relative.map(|r| &r.key)),
                table(self.relative.map(|r| &r.value)),
                o.step.fused.rotary.map_or(Pointer::Null, |t| o.at(t)),
                first,
                bias,
                o.out(),
            ],
            words,
            tensors: vec![],
            weight_bytes: 0,
        }
    }
}

/// `kernels/attention_warpgroup.cu` for the attention of `plain`, whose arguments it shares.
fn in_warpgroups(plain: Work, program: &'static str, bias: bool, facts: &Facts) -> Work {
    let queries = plain.words[2].div_ceil(WARPGROUP_SIDE as u32);
    let stage = 2 * 2 * WARPGROUP_WIDTH * WARPGROUP_SIDE;
    let least = (WARPGROUP_STAGES * stage + LINES) as u32;
    // Blocks that fit two to a multiprocessor get memory for two. Otherwise those that start while the
    // previous kernel ends would crowd where there is room first.
    let is_one_wave = queries * plain.grid[1] * plain.grid[2] <= 2 * facts.multiprocessors;
    Work {
        program,
        function: ATTENTION_WARPGROUP[usize::from(bias)],
        grid: [queries, plain.grid[1], plain.grid[2]],
        threads: 128,
        shared: if is_one_wave { least.max(facts.shared / 5 * 2) } else { least },
        ..plain
    }
}

/// Kernel of `kernels/attention_mma.cu`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tile {
    function: &'static str,
    /// Maximum width of heads.
    pub width: usize,
    /// Warps that share the keys of 16 queries.
    sides: usize,
}

impl Tile {
    /// All of them.
    pub const ALL: [Tile; 3] = [
        Tile { function: "attention_mma_64_1", width: 64, sides: 1 },
        Tile { function: "attention_mma_64_2", width: 64, sides: 2 },
        Tile { function: "attention_mma_128_1", width: 128, sides: 1 },
    ];

    /// The best one for queries of shape `q`.
    fn best(q: &[usize], heads: usize, precision: Precision, facts: &Facts) -> Tile {
        // The most queries that a multiprocessor gets; of equals the first, which reads keys less often.
        let share = |t: &&Tile| {
            let blocks = q[1].div_ceil(t.queries(precision)) * heads * q[0];
            blocks.div_ceil(facts.multiprocessors as usize) * t.queries(precision)
        };
        let d = q[2] / heads;
        let fitting = Tile::ALL.iter().filter(|t| d <= t.width && (t.width == 64 || d > 64));
        *fitting.min_by_key(share).expect("heads are not wider than the widest tile")
    }

    fn warps(precision: Precision) -> usize {
        if matches!(precision, Precision::F32 | Precision::Tf32) { 4 } else { 8 }
    }

    /// Queries per block.
    fn queries(self, precision: Precision) -> usize {
        16 * Tile::warps(precision) / self.sides
    }

    /// Uses this kernel for the attention of `plain`, whose arguments it shares.
    pub fn on(self, plain: Work, precision: Precision, keys: DType) -> Work {
        let queries = plain.words[2] as usize;
        // Rows of keys and of values, in units of 16 bytes, with the strides of the kernel.
        let (rows, d) = (self.sides * TENSOR_KEYS, self.width);
        let stage = match precision {
            _ if keys.is_compact() => rows * (d / 8 + 4 + d / 8 + 1),
            Precision::F32 | Precision::Tf32 => rows * 2 * (d / 4 + 1),
            _ => rows * (d / 8 + 4) + rows / 2 * (d / 4 + 2),
        };
        Work {
            program: attention_program(precision, keys),
            function: self.function,
            grid: [queries.div_ceil(self.queries(precision)) as u32, plain.grid[1], plain.grid[2]],
            threads: 32 * Tile::warps(precision) as u32,
            shared: (16 * TENSOR_STAGES * stage) as u32,
            ..plain
        }
    }
}

/// Kernel for heads of width `d` and `keys` keys with `shared` bytes of shared memory, and the number of keys
/// per iteration.
fn function(d: usize, keys: usize, dtype: DType, shared: u32) -> (&'static str, usize) {
    match (d, keys) {
        (0..=128, _) if dtype.is_compact() => ("attention_128_32", 32),
        (0..=32, 0..=64) => ("attention_32_64", 64),
        (0..=32, _) => ("attention_32_128", 128),
        (33..=64, 0..=64) => ("attention_64_64", 64),
        (33..=64, _) => ("attention_64_96", 96),
        (65..=128, 33..) if shared > 80 << 10 => ("attention_128_64", 64),
        (65..=128, _) => ("attention_128_32", 32),
        _ => ("attention_256_32", 32),
    }
}

/// Shared memory of `kernels/attention.cu` in bytes.
fn shared(d: usize, keys: usize, window: Option<usize>) -> usize {
    // Same as `key_stride` there.
    let mut stride = (d + 3) / 8 * 8 + 4;
    if stride < d {
        stride += 8;
    }
    let relative = window.map_or(0, |w| (2 * w + 1) * 2 * stride + QUERIES * (2 * w + 4));
    // Of the widest heads, keys and values are there in turn.
    let buffers = if d > 128 { 1 } else { 2 };
    4 * ((buffers * keys + QUERIES) * stride + QUERIES * keys + relative)
}

/// How the kernel for scores of relative positions handles values of 16 bits: that of warpgroups reads
/// queries in f16, with weights in f32 excepted, as the attention with these scores.
pub(super) fn rounding_of_scores(
    q: &[usize],
    heads: usize,
    policy: &PrecisionPolicy,
    facts: &Facts,
) -> Rounding {
    let fits = facts.arch == WARPGROUP_ARCH && q[2] / heads == WARPGROUP_WIDTH && q[1] >= TENSOR_QUERIES;
    let rounds = fits && !matches!(policy.precision, Precision::F32 | Precision::Tf32);
    Rounding { reads: rounds.then_some((1, DType::F16)), ..Rounding::default() }
}

/// Scores of relative positions, 32 queries by 32 keys of a head per block, or 64 queries.
pub(super) fn relative_scores(o: &Operands<'_>, heads: usize, scale: f32) -> Work {
    let q = o.shape(0).dims();
    let mut words = [heads, q[2] / heads, q[1]].map(|x| x as u32).to_vec();
    words.push(bits(scale));
    let side = q[1].div_ceil(32) as u32;
    let plain = Work {
        grid: [side, side, (q[0] * heads) as u32],
        pointers: vec![o.x(0), o.x(1), o.out()],
        words,
        ..Work::each("relative_scores", "relative_scores", 1)
    };
    match o.dtype(0).is_compact() {
        true => Work {
            program: RELATIVE_SCORES_PROGRAM,
            function: RELATIVE_SCORES_WARPGROUP,
            grid: [q[1].div_ceil(WARPGROUP_SIDE) as u32, plain.grid[2], SCORE_BLOCKS],
            threads: 128,
            // Two tiles of p, then products of 64 queries with both.
            shared: (LINES
                + 2 * 2 * WARPGROUP_WIDTH * WARPGROUP_SIDE
                + 4 * WARPGROUP_SIDE * (2 * WARPGROUP_SIDE + 4)) as u32,
            ..plain
        },
        false => plain,
    }
}

/// Whether there is a single query, with heads that `kernels/attention_decode.cu` supports.
fn is_decoding(q: &[usize], k: &[usize], heads: usize, fused: &Fused) -> bool {
    let d = q[2] / heads;
    let group = q[2] / k[2];
    q[1] == 1
        && d.is_multiple_of(4)
        && d <= DECODED_WIDTH
        && GROUPS.contains(&group)
        && fused.rotary.is_none()
}

/// Lets attention that writes its own key read the others, and their number, before the matmul ahead of it
/// ends: launches ahead of that matmul have ended by then.
pub(crate) fn read_early(works: &mut [(usize, Work)]) {
    let buffer = |p: &Pointer| match p {
        Pointer::Place(Place::Buffer(i, _)) => Some(*i),
        _ => None,
    };
    for i in 1..works.len() {
        let (ahead, work) = (&works[i - 1].1, &works[i].1);
        if !ahead.program.starts_with("matmul") || !work.function.starts_with("decode") {
            continue;
        }
        let is_apart =
            |p: &Pointer| buffer(p).is_some_and(|b| ahead.pointers.iter().all(|q| buffer(q) != Some(b)));
        let mut read = work.pointers[READ_EARLY].iter().filter(|p| **p != Pointer::Null);
        let writes_its_key = work.function.contains("heads") || work.function.starts_with("decode_shared");
        if writes_its_key && read.all(is_apart) {
            works[i].1.words[EARLY] = 1;
        }
    }
}

fn decode(o: &Operands<'_>, heads: usize, scale: f32, first: First) -> Work {
    let (q, k) = (o.out_shape().dims(), o.shape(1).dims());
    let group = q[2] / k[2];
    let clusters = q[0] * heads / group;
    let places = 2 * o.facts.multiprocessors as usize;
    let fits = |blocks: &usize| clusters * blocks <= places;
    let is_narrow = q[2] / heads <= NARROW_WIDTH;
    let before = &o.step.fused.before;
    let is_short = k[1] <= SHORT_CACHE;
    let blocks = match o.facts.arch {
        _ if is_short => 1,
        // With many heads, each gets fewer blocks, so that all run at once.
        CLUSTER_ARCH.. => [DECODING_BLOCKS, 4, 2].into_iter().find(fits).unwrap_or(1),
        _ => 1,
    };
    // As many as run at once; one for each head of a group combines results.
    let room = DECODING_WARPS_AT_ONCE * o.facts.multiprocessors as usize / (clusters * blocks);
    let useful = if is_short { k[1].div_ceil(KEYS_OF_A_WARP) } else { DECODING_WARPS };
    let warps = room.min(useful).clamp(group.max(2), DECODING_WARPS);
    let (first, at) = match first {
        First::Const(at) => (Pointer::Null, at),
        First::Operand => (o.x(3), 0),
    };
    let pointers = |of: &dyn Fn(&Head) -> Pointer| -> Vec<Pointer> {
        (0..3).map(|i| before.get(i).map_or(Pointer::Null, of)).collect()
    };
    let words =
        |of: &dyn Fn(&Head) -> u32| -> Vec<u32> { (0..3).map(|i| before.get(i).map_or(0, of)).collect() };
    let all = [
        vec![o.x(0), o.x(1), o.x(2), first, o.out()],
        pointers(&|h| o.at(h.x).after(h.part.map_or(0, |[start, _]| start))),
        pointers(&|h| h.norm.as_ref().map_or(Pointer::Null, |(weight, _)| o.dense(weight))),
        pointers(&|h| h.table.map_or(Pointer::Null, |v| o.at(v))),
        vec![o.optional(4)],
        vec![Pointer::Null; 4],
    ];
    let numbers = [
        [heads, q[2] / heads, k[1], k[0], at].map(|x| x as u32).to_vec(),
        vec![bits(scale)],
        words(&|h| h.part.map_or(h.count * h.width, |[_, stride]| stride) as u32),
        words(&|h| h.table.map_or(1, |v| o.shape_of(v).dims()[0] as u32)),
        words(&|h| h.norm.as_ref().map_or(0, |(_, eps)| bits(*eps))),
        vec![cache_type(o.out_type()), 0, q[0] as u32, 0, 0],
    ];
    debug_assert_eq!(numbers.concat().len(), EARLY + 4);
    let work = Work {
        program: match o.dtype(1) {
            DType::F16 => "attention_decode-f16",
            DType::BF16 => "attention_decode-bf16",
            DType::Q8_0 => "attention_decode-q8_0",
            DType::F32 | DType::I32 => "attention_decode",
        },
        function: match (group, before.is_empty(), is_narrow) {
            (1, true, false) => "decode_1",
            (2, true, false) => "decode_2",
            (_, true, false) => "decode_4",
            (1, false, false) => "decode_heads_1",
            (2, false, false) => "decode_heads_2",
            (_, false, false) => "decode_heads_4",
            (1, true, true) => "decode_narrow_1",
            (2, true, true) => "decode_narrow_2",
            (_, true, true) => "decode_narrow_4",
            (1, false, true) => "decode_narrow_heads_1",
            (2, false, true) => "decode_narrow_heads_2",
            (_, false, true) => "decode_narrow_heads_4",
        },
        grid: [clusters as u32, 1, blocks as u32],
        threads: 32 * warps as u32,
        shared: (4 * 132 * group * (warps + blocks)) as u32,
        cluster: blocks as u32,
        pointers: all.concat(),
        words: numbers.concat(),
        tensors: vec![],
        weight_bytes: 0,
    };
    if reads_in_common(o, heads) { in_common(work, o) } else { work }
}

/// Whether `kernels/attention_shared.cu` supports attention of one query.
fn reads_in_common(o: &Operands<'_>, heads: usize) -> bool {
    let (q, k, before) = (o.out_shape().dims(), o.shape(1).dims(), &o.step.fused.before);
    o.facts.arch >= CLUSTER_ARCH
        && o.step.node.inputs.len() == 5
        && matches!(o.dtype(1), DType::F16 | DType::BF16)
        && (q[2], k[2]) == (heads * SHARED_WIDTH, q[2])
        && !before.is_empty()
        && before.iter().all(|h| h.norm.is_none() && h.table.is_none())
}

/// Uses `kernels/attention_shared.cu` for the attention of `work`, whose arguments it shares.
fn in_common(work: Work, o: &Operands<'_>) -> Work {
    let &[rows, _, width] = o.out_shape().dims() else { unreachable!("queries of sequences") };
    let groups = rows.div_ceil(SHARED_ROWS);
    // With many rows, each gets fewer blocks, so that all run at once.
    let (function, blocks, threads) = SHARED[(groups - 1).min(SHARED.len() - 1)];
    Work {
        program: if o.dtype(1) == DType::F16 { "attention_shared-f16" } else { "attention_shared-bf16" },
        function,
        grid: [(width / SHARED_WIDTH * groups) as u32, 1, blocks as u32],
        threads: threads as u32,
        shared: 0,
        cluster: blocks as u32,
        ..work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::lower;
    use crate::lower::tests::{Imagined, facts};
    use crate::weights::WeightBank;
    use orate_graph::{Graph, Plan};
    use orate_testing::{DECODERS, RandomWeights, decoder, rows_in_common};

    /// Launches of layers of a decoder.
    fn launches(batch: usize, capacity: usize) -> Vec<(usize, Work)> {
        lowered(decoder(DECODERS[0], batch, capacity, DType::F32).graph)
    }

    fn lowered(graph: Graph) -> Vec<(usize, Work)> {
        let target = Imagined { policy: PrecisionPolicy::uniform(Precision::Bf16), facts: facts(90) };
        let weights = RandomWeights::of_graph(&graph, 1);
        let plan = Plan::compile(graph, &target).expect("compiles");
        let mut bank = WeightBank::default();
        bank.imagine(&plan, &target.policy, &weights, 1 << 40);
        lower(&plan, &bank, &target.policy, &target.facts)
    }

    fn is_attention(work: &Work) -> bool {
        work.program.starts_with("attention_decode")
    }

    #[test]
    fn caches_are_read_before_the_matmul_ahead_ends() {
        let mut works = launches(3, 40);
        let early = |works: &mut Vec<(usize, Work)>| {
            read_early(works);
            let all = works.iter().map(|(_, w)| w).filter(|w| is_attention(w));
            all.map(|w| w.words[EARLY]).collect::<Vec<_>>()
        };
        let at = works.iter().position(|(_, w)| is_attention(w)).expect("a decoder has attention");
        let mut without = works.clone();
        without.remove(at - 1);
        let mut writes = works.clone();
        writes[at - 1].1.pointers[7] = works[at].1.pointers[2];
        let all = early(&mut works);
        assert_eq!(all, vec![1; all.len()], "every layer");
        assert_eq!(early(&mut without)[0], 0, "behind another kernel");
        assert_eq!(early(&mut writes)[0], 0, "behind one that writes values");
    }

    #[test]
    fn what_rows_have_in_common_is_read_once() {
        let function = |width: usize, rows: usize, dtype: DType| {
            let case = rows_in_common(2, width, 40, dtype, &vec![[0, 13]; rows]).expect("builds");
            let works = lowered(case.graph);
            let mut attention = works.iter().map(|(_, w)| w).filter(|w| w.function.starts_with("decode"));
            attention.next().map(|w| (w.function, w.grid[0]))
        };
        assert_eq!(function(64, 16, DType::BF16), Some(("decode_shared_8", 2)));
        assert_eq!(function(64, 35, DType::F16), Some(("decode_shared_2", 6)));
        assert_eq!(function(64, 16, DType::F32), Some(("decode_narrow_heads_1", 32)), "keys of 32 bits");
        assert_eq!(function(32, 16, DType::BF16), Some(("decode_narrow_heads_1", 32)), "narrow heads");
    }

    #[test]
    fn blocks_of_many_rows_have_fewer_warps() {
        let shape = |batch: usize, capacity: usize| {
            let works = launches(batch, capacity);
            let (_, work) = works.into_iter().find(|(_, w)| is_attention(w)).expect("there is one");
            (work.threads / 32, work.cluster)
        };
        // Eight heads of keys, on 132 multiprocessors.
        assert_eq!([4, 16, 64, 128].map(|rows| shape(rows, 512)), [(8, 8), (8, 2), (4, 1), (2, 1)]);
        assert_eq!([4, 128].map(|rows| shape(rows, 16)), [(2, 1), (2, 1)]);
    }
}
