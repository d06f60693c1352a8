//! Attention: in vectors of four if the head width allows, element by element otherwise. Many queries, and a
//! single query over a cache, have kernels of their own; for cooperative matrices see
//! `attention_cooperative.rs`.

use super::attention_cooperative as cooperative;
use super::operands::{Abilities, Operands, cache_rows};
use crate::dispatch::{Call, Late, Params};
use crate::variant::Variant;
use orate_graph::{AttentionMask, DType, First, Fused, Head, Op, ValueInfo, Weight};

const THREADS: usize = 128;

/// Queries per workgroup, for head widths that are a multiple of 4, and for others.
const QUERIES: usize = 4;
const QUERIES_ODD: usize = 8;

/// For `kernels/attention_tile.wgsl`: minimum queries, maximum head width, and queries per workgroup. Fewer
/// queries would leave most of a large card idle.
const TILED_QUERIES: usize = 256;
/// See [`TILED_QUERIES`].
const TILED_WIDTH: usize = 128;
/// See [`TILED_QUERIES`].
const TILE: usize = 32;

/// Tiling of a workgroup for heads of width D.
struct Shape {
    odd: bool,
    queries: usize,
    /// Keys per iteration.
    keys: usize,
    /// Stride of keys in workgroup memory, in elements.
    row: usize,
}

impl Shape {
    fn new(d: usize) -> Shape {
        match d.is_multiple_of(4) {
            true => {
                let keys = match d {
                    0..=96 => 64,
                    97..=192 => 32,
                    _ => 16,
                };
                Shape { odd: false, queries: QUERIES, keys, row: d + 4 }
            }
            false => {
                Shape { odd: true, queries: QUERIES_ODD, keys: if d <= 128 { 32 } else { 16 }, row: d + 1 }
            }
        }
    }

    /// Workgroup memory in bytes.
    fn shared(&self, d: usize) -> usize {
        4 * (self.queries * d + self.keys * self.row + self.queries * self.keys + THREADS + self.queries)
    }
}

pub(super) fn name(
    op: &Op,
    inputs: &[&ValueInfo],
    fused: &Fused,
    heads: usize,
    can: Abilities<'_>,
) -> Result<String, String> {
    if let [q, ..] = &fused.before[..] {
        return Ok(format!("attention-row-heads-{}", q.width));
    }
    let q = &inputs[0].shape;
    let d = q.last() / heads;
    let dtype = match inputs[1].dtype {
        dtype if dtype.is_compact() => format!("-{dtype}"),
        _ => String::new(),
    };
    if is_row(op, q.dims()[1], d, can) {
        return Ok(format!("attention-row-{d}{dtype}"));
    }
    if cooperative::tile(op, q.dims(), inputs[1].dtype, can).is_some() {
        return Ok(format!("attention-cooperative-{d}"));
    }
    let limit = can.workgroup_bytes as usize;
    if is_tiled(op, q.dims()[1], d, inputs[1].dtype, limit) {
        return Ok(format!("attention-tile-{d}"));
    }
    let needed = Shape::new(d).shared(d);
    if needed > limit {
        return Err(format!(
            "heads of width {d} need {needed} bytes of workgroup memory, and there are {limit}"
        ));
    }
    Ok(format!("attention-{d}{dtype}"))
}

/// Optional parts of attention without positions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    /// Keys past a length are not seen.
    pub lens: bool,
    /// There are relative terms.
    pub relative: bool,
    /// Scores have a bias.
    pub bias: bool,
}

/// Kernel for a head width, a mask, and the type of keys and values.
pub(super) fn variant(d: usize, mask: AttentionMask, parts: Parts, dtype: DType) -> Variant {
    let s = Shape::new(d);
    let v = match s.odd {
        true => Variant::new("attention_odd")
            .number("OUTPUTS", (s.queries * d).div_ceil(THREADS))
            .number("QUERY_TILE", s.queries * d)
            .number("KEY_TILE", s.keys * s.row),
        false => {
            let outputs = s.queries * d / 4;
            let parts = if outputs > THREADS { 1 } else { (THREADS / outputs.next_power_of_two()).min(8) };
            Variant::new("attention")
                .number("OUTPUTS", outputs.div_ceil(THREADS))
                .number("PARTS", parts)
                .flag("SEVERAL", parts > 1)
                .number("QUERY_TILE", outputs)
                .number("KEY_TILE", (s.keys * s.row / 4).max(THREADS))
        }
    };
    cache_rows(v, dtype, (!s.odd).then_some(d))
        .number("D", d)
        .number("QUERIES", s.queries)
        .number("KEYS", s.keys)
        .number("SCORE_TILE", s.queries * s.keys)
        .flag("CAUSAL", mask != AttentionMask::None)
        .flag("WINDOW", matches!(mask, AttentionMask::Window(_) | AttentionMask::Stream(_)))
        .flag("STREAM", matches!(mask, AttentionMask::Stream(_)))
        .flag("POSITIONS", mask.has_positions())
        .flag("LENS", parts.lens)
        .flag("RELATIVE", parts.relative)
        .flag("BIAS", parts.bias)
}

/// Maximum threads of `kernels/attention_row_subgroup.wgsl`. On an H200 that of Chatterbox Turbo takes 15 µs
/// by timestamps, 22 with 256 threads.
const ROW_THREADS: usize = 512;

/// Keys of a thread per iteration there.
const ROW_AHEAD: usize = 8;

/// Numbers of query heads of a key head for which attention of one query prepares heads; see
/// [`Fused::before`].
pub(super) const GROUPS: [usize; 4] = [1, 2, 4, 8];

/// Widest heads that it prepares.
pub(super) const HEADS_WIDTH: usize = 128;

/// The same on a device: the threads of a key are in one subgroup.
pub(super) fn prepared_width(can: Abilities<'_>) -> usize {
    can.lanes.map_or(0, |lanes| (4 * lanes).min(HEADS_WIDTH))
}

/// Threads of a workgroup and of its subgroups, for the kernel of a single query that uses shuffles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subgroups {
    pub threads: usize,
    pub lanes: usize,
}

impl Subgroups {
    /// Returns them if the threads of a key of D elements are in one.
    fn of(can: Abilities<'_>, d: usize, keys: usize) -> Option<Self> {
        let of_key = Self::of_key(d);
        let lanes = can.lanes.filter(|lanes| *lanes >= of_key)?;
        let most = ROW_THREADS.min(can.workgroup_threads as usize);
        // No more than one iteration needs.
        let needed = (keys.div_ceil(ROW_AHEAD) * of_key).next_power_of_two();
        Some(Subgroups { threads: needed.clamp(lanes.min(most), most), lanes })
    }

    /// Threads of a key.
    fn of_key(d: usize) -> usize {
        (d / 4).next_power_of_two()
    }
}

/// Kernel for a single query over a cache; its position is an operand or constant. With subgroups it can
/// prepare heads.
pub(super) fn row_variant(
    d: usize,
    positions: bool,
    dtype: DType,
    subgroups: Option<Subgroups>,
    heads: bool,
) -> Variant {
    let v = match subgroups {
        Some(Subgroups { threads, lanes }) => Variant::new("attention_row_subgroup")
            .number("THREADS", threads)
            .number("LANES", lanes)
            .number("AHEAD", ROW_AHEAD)
            .number("ROUNDS", Subgroups::of_key(d).ilog2() as usize)
            .number("MERGES", (lanes / Subgroups::of_key(d)).ilog2() as usize)
            .flag("HEADS", heads),
        None => Variant::new("attention_row").number("D4", d / 4),
    };
    cache_rows(v.number("D", d).flag("POSITIONS", positions), dtype, Some(d))
}

/// Whether there is a single query over a cache, and a kernel supports the head width.
fn is_row(op: &Op, queries: usize, d: usize, can: Abilities<'_>) -> bool {
    let Op::Attention { mask: AttentionMask::Cached(_), relative: None, .. } = op else { return false };
    let fits = ((d / 4).is_power_of_two() && d / 4 <= 64) || Subgroups::of(can, d, 1).is_some();
    queries == 1 && d.is_multiple_of(4) && fits
}

/// Weights of attention with everything fused into it.
pub(super) fn weights<'op>(op: &'op Op, fused: &'op Fused) -> Vec<&'op Weight> {
    let norms = fused.before.iter().filter_map(|head| head.norm.as_ref()).map(|(weight, _)| weight);
    op.weights().into_iter().chain(norms).collect()
}

fn row_call(o: &Operands<'_>, heads: usize, scale: f32, first: Option<usize>) -> Call {
    let (q, k) = (o.out_shape().dims(), o.shape(1).dims());
    let params = Params::default()
        .place(o.place(0))
        .place(o.place(1))
        .place(o.place(2))
        .place(o.out())
        .place(if first.is_none() { o.place(3) } else { o.last() })
        .number(k[1])
        .number(heads)
        .number(usize::from(k[0] > 1))
        .number(first.unwrap_or(0))
        .float(scale)
        .number(q[2] / k[2]);
    let d = q[2] / heads;
    let before = &o.step.fused.before;
    let variant =
        row_variant(d, first.is_none(), o.dtype(1), Subgroups::of(o.can, d, k[1]), !before.is_empty());
    Call {
        variant,
        params: prepared(o, params, before),
        groups: [heads as u32, q[0] as u32, 1],
        weights: o.weights.buffers(),
    }
}

/// Adds the parameters of heads that attention prepares.
fn prepared(o: &Operands<'_>, params: Params, heads: &[Head]) -> Params {
    if heads.is_empty() {
        return params;
    }
    let bits = heads.iter().map(|h| {
        let own = h.table.is_some_and(|table| o.shape_of(table).dims()[0] > 1);
        usize::from(h.norm.is_some()) + 2 * usize::from(h.table.is_some()) + 4 * usize::from(own)
    });
    let mut params = params.number(bits.enumerate().map(|(i, bits)| bits << (3 * i)).sum());
    let mut norms = 0;
    for h in heads {
        let [start, stride] = h.part.unwrap_or([0, h.count * h.width]);
        params = params.late_after(Late::Place(o.at(h.x)), start).number(stride);
        params = match h.norm {
            Some(_) => {
                norms += 1;
                params.number(o.weights.vector(norms - 1))
            }
            None => params.number(0),
        };
        params = match h.table {
            Some(table) => params.place(o.at(table)),
            None => params.number(0),
        };
        params = params.float(h.norm.as_ref().map_or(0.0, |(_, eps)| *eps));
    }
    params
}

pub(super) fn call(o: &Operands<'_>) -> Call {
    let Op::Attention { heads, scale, mask, relative, bias, .. } = &o.step.node.op else {
        unreachable!("called for attention alone")
    };
    let (q, k) = (o.out_shape().dims(), o.shape(1).dims());
    if let AttentionMask::Cached(first) = *mask
        && is_row(&o.step.node.op, q[1], q[2] / heads, o.can)
    {
        let first = if let First::Const(at) = first { Some(at) } else { None };
        return row_call(o, *heads, *scale, first);
    }
    let d = q[2] / heads;
    let lens = o.step.node.inputs.len() == if *bias { 5 } else { 4 } && !mask.has_positions();
    let last = if mask.has_positions() { o.place(3) } else { o.last() };
    let parts = Parts { lens, relative: relative.is_some(), bias: *bias };
    let earlier = k[1].saturating_sub(q[1]);
    let (seen, first) = match *mask {
        AttentionMask::None | AttentionMask::Cached(First::Operand) => (0, 0),
        AttentionMask::Causal => (0, earlier),
        AttentionMask::Window(seen) | AttentionMask::Stream(seen) => (seen, earlier),
        AttentionMask::Cached(First::Const(first)) => (0, first),
    };
    let tables = if relative.is_some() { [o.weights.vector(0), o.weights.vector(1)] } else { [0, 0] };
    let params = Params::default()
        .place(o.place(0))
        .place(o.place(1))
        .place(o.place(2))
        .place(o.out())
        .place(last)
        .number(q[1])
        .number(k[1])
        .number(*heads)
        .number(usize::from(k[0] > 1))
        .number(first)
        .float(*scale)
        .number(relative.as_ref().map_or(0, |r| r.window))
        .number(tables[0])
        .number(tables[1])
        .number(q[2] / k[2])
        .number(seen)
        .place(if *bias { o.place(3) } else { last });
    let limit = o.can.workgroup_bytes as usize;
    let (variant, queries) = match cooperative::tile(&o.step.node.op, q, o.dtype(1), o.can) {
        Some((t, has)) => (cooperative::variant(t, has, d, parts, o.dtype(1).is_compact()), t.queries(has)),
        None if is_tiled(&o.step.node.op, q[1], d, o.dtype(1), limit) => (tile_variant(d, parts), TILE),
        None => (variant(d, *mask, parts, o.dtype(1)), Shape::new(d).queries),
    };
    Call {
        variant,
        params,
        groups: [q[1].div_ceil(queries) as u32, *heads as u32, q[0] as u32],
        weights: o.weights.buffers(),
    }
}

/// Whether there are many queries, and `kernels/attention_tile.wgsl` supports the rest.
fn is_tiled(op: &Op, queries: usize, d: usize, keys: DType, workgroup_bytes: usize) -> bool {
    let shared = 16 * (tiles(d).iter().sum::<usize>() + 256 + 64);
    matches!(op, Op::Attention { mask: AttentionMask::None, relative: None, .. })
        && queries >= TILED_QUERIES
        && d.is_multiple_of(4)
        && d <= TILED_WIDTH
        && keys == DType::F32
        && shared <= workgroup_bytes
}

/// Queries, and keys or values, in workgroup memory, in vectors of four.
fn tiles(d: usize) -> [usize; 2] {
    [TILE * d / 4, TILE * (d / 4 + 1)]
}

/// Kernel for many queries.
pub(super) fn tile_variant(d: usize, parts: Parts) -> Variant {
    let [queries, keys] = tiles(d);
    Variant::new("attention_tile")
        .number("FOUR", 4)
        .number("D", d)
        .number("OUTPUTS", (d / 4).div_ceil(8))
        .number("QUERY_TILE", queries)
        .number("KEY_TILE", keys)
        .flag("LENS", parts.lens)
        .flag("BIAS", parts.bias)
}

/// Queries and keys of a workgroup of `kernels/relative_scores.wgsl`.
const SCORES_SIDE: usize = 32;

/// Kernel of scores of relative positions.
pub(super) fn scores_variant() -> Variant {
    Variant::new("relative_scores")
}

/// Name of the kernel of scores of relative positions.
pub(super) fn scores_name(inputs: &[&ValueInfo], heads: usize, can: Abilities<'_>) -> &'static str {
    match cooperative::scores_tile(inputs[0].shape.dims(), heads, can) {
        Some(_) => "relative-scores-cooperative",
        None => "relative-scores",
    }
}

/// Scores of relative positions.
pub(super) fn relative_scores(o: &Operands<'_>, heads: usize, scale: f32) -> Call {
    let q = o.shape(0).dims();
    let params = Params::default()
        .place(o.place(0))
        .place(o.place(1))
        .place(o.out())
        .number(heads)
        .number(q[2] / heads)
        .number(q[1])
        .float(scale);
    let (variant, [queries, keys]) = match cooperative::scores_tile(q, heads, o.can) {
        Some((sides, has)) => (cooperative::scores_variant(has, q[2] / heads), sides),
        None => (scores_variant(), [SCORES_SIDE; 2]),
    };
    let groups = [q[1].div_ceil(keys), q[1].div_ceil(queries), q[0] * heads].map(|n| n as u32);
    Call { variant, params, groups, weights: [None, None] }
}
