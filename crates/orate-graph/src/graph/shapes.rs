//! Shape rules: what each op makes of its operands, or what it needs.

use super::operands::{Operands, need, vector};
use crate::op::*;
use crate::shape::BLOCK;
use crate::{DType, Shape, ValueInfo, Weight};

/// Output shape, or what the op needs.
pub(super) fn infer(op: &Op, inputs: &[&ValueInfo], out: Option<Shape>) -> Result<Shape, String> {
    let o = Operands { inputs };
    match op {
        Op::Embedding { table } => {
            o.count(1)?;
            match (o.inputs[0].dtype, o.inputs[0].shape.dims(), table.shape().dims()) {
                (DType::I32, [b, t], [_, c]) => Ok([*b, *t, *c].into()),
                _ => Err("ids i32 [B, T] and a table [V, C]".to_owned()),
            }
        }
        Op::EmbeddingSum { tables, first } => {
            o.count(1)?;
            match (o.inputs[0].dtype, o.inputs[0].shape.dims(), tables.shape().dims()) {
                (DType::I32, [b, t, n], [q, _, c]) if first + q <= *n => Ok([*b, *t, *c].into()),
                _ => Err(format!("ids i32 [B, T, N] and tables [Q, V, C] with {first} + Q ≤ N")),
            }
        }
        Op::Constant { weight } => {
            o.count(0)?;
            let out = out.ok_or("an output shape")?;
            let (w, y) = (weight.shape().dims(), out.dims());
            let fits = !w.is_empty() && w.len() == y.len() && y[0] % w[0].max(1) == 0 && w[1..] == y[1..];
            need(fits, || format!("an output that repeats {}", weight.shape()))?;
            Ok(out)
        }
        Op::MatMul { weight, epilogue } => {
            o.count(1 + usize::from(epilogue.residual))?;
            let x = o.float(0)?;
            match weight.shape().dims() {
                [k, n] if x.rank() > 0 && x.last() == *k => {
                    let y = x.with_last(*n);
                    o.epilogue_fits(epilogue, &y, 1)?;
                    Ok(y)
                }
                _ => Err(format!("a last axis equal to the first of weight {weight:?}")),
            }
        }
        Op::Conv1d { weight, geometry, epilogue } => conv1d(&o, weight, geometry, epilogue),
        Op::DepthwiseConv1d { weight, bias, geometry, norm } => {
            depthwise_conv1d(&o, weight, bias, geometry, norm.as_ref())
        }
        Op::LayerNorm(_) | Op::RmsNorm { .. } | Op::Snake { .. } | Op::AddBias { .. } | Op::Affine { .. } => {
            o.count(1)?;
            let x = o.float(0)?;
            op.weights().into_iter().try_for_each(|w| vector(w, x.last()))?;
            Ok(x.clone())
        }
        Op::Activate(a) => {
            o.count(1)?;
            need(a.slope().is_none_or(|slope| slope.shape().len() == 1), || "one slope")?;
            Ok(o.float(0)?.clone())
        }
        Op::Add | Op::Mul | Op::Combine { .. } => {
            o.count(2)?;
            need(o.float(0)? == o.float(1)?, || "two values of one shape")?;
            Ok(o.float(0)?.clone())
        }
        Op::AddRow | Op::MulRow => {
            o.count(2)?;
            let (x, row) = (o.float(0)?, o.float(1)?);
            need(row.len() == x.last() && x.rank() > 0, || format!("a row of {} elements", x.last()))?;
            Ok(x.clone())
        }
        Op::Scale { .. } => {
            o.count(1)?;
            Ok(o.float(0)?.clone())
        }
        Op::Attention { heads, relative, mask, bias, .. } => {
            attention(&o, *heads, *mask, relative.as_ref(), *bias)
        }
        Op::RelativeScores { heads, .. } => {
            o.count(2)?;
            match (o.float(0)?.dims(), o.float(1)?.dims()) {
                (&[b, t, c], &[1, rows, width])
                    if c == width && t > 0 && rows == 2 * t - 1 && *heads > 0 && c % heads == 0 =>
                {
                    Ok([b, *heads, t, t].into())
                }
                _ => Err(format!("q [B, T, {heads} · D] and positions [1, 2T − 1, {heads} · D]")),
            }
        }
        Op::RotaryTable { theta } => {
            let out = out.ok_or("an output shape")?;
            match out.dims() {
                [b, 2, _, half] if *half == theta.shape().len() && o.inputs.len() <= 1 => {
                    if o.inputs.len() == 1 {
                        o.lens(0, *b)?;
                    }
                    Ok(out)
                }
                _ => Err(format!("an output [B, 2, T, {}]", theta.shape().len())),
            }
        }
        Op::RopeTable { first: from, .. } => {
            let out = out.ok_or("an output shape")?;
            match (out.dims(), from) {
                ([1, 2, _, half], First::Const(_)) if *half > 0 => o.count(0)?,
                ([b, 2, _, half], First::Operand) if *half > 0 => o.first(0, *b)?,
                _ => return Err("an output [B or 1, 2, T, D / 2]".to_owned()),
            }
            Ok(out)
        }
        Op::Rotary { heads } => {
            o.count(2)?;
            match (o.float(0)?.dims(), o.float(1)?.dims()) {
                ([b, t, c], [bt, 2, tt, half])
                    if (bt == b || *bt == 1) && tt == t && *c == heads * 2 * half =>
                {
                    Ok([*b, *t, *c].into())
                }
                _ => Err(format!("x [B, T, {heads} · D] and a table [B or 1, 2, T, D / 2]")),
            }
        }
        Op::MaskRows => {
            o.count(2)?;
            let x = o.float(0)?;
            need(x.rank() == 3, || "[B, T, C]")?;
            o.lens(1, x.dims()[0])?;
            Ok(x.clone())
        }
        Op::Concat { axis } => concat(&o, *axis),
        Op::Slice { axis, start, len } => {
            o.count(1)?;
            let mut dims = o.any(0)?.dims().to_vec();
            match dims.get_mut(*axis) {
                Some(d) if start + len <= *d => {
                    *d = *len;
                    Ok(dims.into())
                }
                _ => Err(format!("at least {} indices in axis {axis}", start + len)),
            }
        }
        Op::Reshape => {
            o.count(1)?;
            let out = out.ok_or("an output shape")?;
            need(out.len() == o.any(0)?.len(), || format!("{} elements for {out}", out.len()))?;
            Ok(out)
        }
        Op::Pad { padding, before, after } => {
            o.count(1)?;
            let least = match padding {
                Padding::Zero => 0,
                Padding::Repeat => usize::from(before + after > 0),
                Padding::Reflect => before.max(after) + 1,
            };
            match o.float(0)?.dims() {
                [b, t, c] if *t >= least => Ok([*b, before + t + after, *c].into()),
                _ => Err(format!("[B, T, C] of at least {least} rows to pad by {}", padding.name())),
            }
        }
        Op::Statistics { .. } => {
            let x = o.float(0)?;
            let fits = o.inputs.len() == 1 || (o.inputs.len() == 2 && o.float(1)? == x);
            need(fits, || format!("a value, and perhaps scores of {x}"))?;
            match x.dims() {
                [b, t, c] if *t > 0 => Ok([*b, 2 * c].into()),
                _ => Err("[B, T, C] with at least one row".to_owned()),
            }
        }
        Op::ResidualCodes { codebooks } => {
            o.count(1)?;
            match (o.float(0)?.dims(), codebooks.shape().dims()) {
                ([b, t, e], [q, v, width]) if e == width && *v > 0 => Ok([*b, *t, *q].into()),
                _ => Err("[B, T, E] for codebooks [Q, V, E]".to_owned()),
            }
        }
        Op::OverlapAdd { window, hop } => {
            o.count(1)?;
            match o.float(0)?.dims() {
                [b, f, n] if *f > 1 && n % 2 == 0 && (1..=*n).contains(hop) => {
                    vector(window, *n)?;
                    Ok([*b, (f - 1) * hop].into())
                }
                _ => Err(format!("[B, F, N] with F ≥ 2 and N even and at least {hop}")),
            }
        }
        Op::Lstm { weight } => {
            o.count(1)?;
            match (o.float(0)?.dims(), weight.shape().dims()) {
                ([b, t, gates], [h, columns]) if *h > 0 && gates == columns && *gates == 4 * h => {
                    Ok([*b, *t, *h].into())
                }
                _ => Err(format!("gates [B, T, 4H] and a weight [H, 4H], not {}", weight.shape())),
            }
        }
        Op::SegmentMean { rows } => {
            o.count(1)?;
            let x = o.float(0)?;
            need(x.rank() == 3 && *rows > 0, || "[B, T, C] and segments of at least one row")?;
            Ok(x.clone())
        }
        Op::HarmonicSource { hop, rate } => {
            o.count(3)?;
            match (o.float(0)?.dims(), o.float(1)?.dims(), o.float(2)?) {
                (&[b, t, 1], &[batch, h], noise)
                    if batch == b && h > 0 && *hop > 0 && *rate > 0 && noise.dims() == [b, t * hop, h] =>
                {
                    Ok(noise.clone())
                }
                _ => Err(format!("f0 [B, T, 1], phases [B, H] and noise [B, T · {hop}, H]")),
            }
        }
        Op::Permute { perm } => {
            o.count(1)?;
            let x = o.float(0)?.dims();
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            need(sorted.into_iter().eq(0..x.len()), || format!("as many axes as the permutation {perm:?}"))?;
            Ok(perm.iter().map(|&p| x[p]).collect::<Vec<_>>().into())
        }
        Op::TimeEmbedding { dim } => {
            o.count(1)?;
            match o.float(0)?.dims() {
                [n] if *dim >= 4 && dim % 2 == 0 => Ok([*n, *dim].into()),
                _ => Err("times [N] and an even width of at least 4".to_owned()),
            }
        }
        Op::SelectRow { .. } => {
            o.count(1)?;
            match o.float(0)?.dims() {
                [_, c] => Ok([1, *c].into()),
                _ => Err("[N, C]".to_owned()),
            }
        }
        Op::RandomNormal { .. } => {
            o.count(0)?;
            out.ok_or_else(|| "an output shape".to_owned())
        }
        Op::RowAt => match o.float(0)?.dims() {
            [b, n, c] if *n > 0 => {
                o.first(1, *b)?;
                Ok([*b, 1, *c].into())
            }
            _ => Err("[B, N, C] with at least one row".to_owned()),
        },
        Op::Increment { .. } => {
            o.count(1)?;
            need(o.inputs[0].dtype == DType::I32, || "i32 as operand 0")?;
            Ok(o.inputs[0].shape.clone())
        }
        Op::WriteRows { first: from } => match (o.kept(0)?.dims(), o.float(1)?.dims()) {
            ([b, n, c], [br, t, cr]) if b == br && c == cr && t <= n => {
                match from {
                    First::Operand => o.first(2, *b)?,
                    First::Const(at) if at + t <= *n => o.count(2)?,
                    First::Const(at) => return Err(format!("a state of at least {} rows", at + t)),
                }
                Ok(o.kept(0)?.clone())
            }
            _ => Err("a state [B, N, C] and rows [B, T, C] with T ≤ N".to_owned()),
        },
        Op::Mark => {
            o.count(2)?;
            match o.float(0)?.dims() {
                [b, _] if o.has_integers(1, &[*b, 1]) => Ok(o.float(0)?.clone()),
                _ => Err("a state [B, V] and ids i32 [B, 1]".to_owned()),
            }
        }
        Op::Sample(rules) => sample(&o, rules),
    }
}

fn conv1d(
    o: &Operands<'_>,
    weight: &Weight,
    geometry: &ConvGeometry,
    epilogue: &Epilogue,
) -> Result<Shape, String> {
    need(geometry.edges != Edges::Lengths, || "edges of whole sequences")?;
    let before = o.sequence(geometry)?;
    o.count(before + usize::from(epilogue.residual))?;
    match (o.float(0)?.dims(), weight.shape().dims()) {
        ([b, t, c], [k, n])
            if *k == c * geometry.taps && geometry.left <= (geometry.taps - 1) * geometry.dilation =>
        {
            let y = Shape::from([*b, *t, *n]);
            o.epilogue_fits(epilogue, &y, before)?;
            Ok(y)
        }
        _ => Err(format!("[B, T, C] with {} taps times C rows in weight {weight:?}", geometry.taps)),
    }
}

fn depthwise_conv1d(
    o: &Operands<'_>,
    weight: &Weight,
    bias: &Weight,
    geometry: &ConvGeometry,
    norm: Option<&Norm>,
) -> Result<Shape, String> {
    let has_lengths = geometry.edges == Edges::Lengths;
    o.count(o.sequence(geometry)? + usize::from(has_lengths))?;
    let x = o.float(0)?;
    need(
        !has_lengths || x.rank() > 0 && o.has_integers(1, &x.dims()[..1]),
        || "lengths i32 [B] as operand 1",
    )?;
    let ok = x.rank() == 3
        && weight.shape().dims() == [geometry.taps, x.last()]
        && geometry.left <= (geometry.taps - 1) * geometry.dilation;
    need(ok, || format!("[B, T, C] for {} taps of weight {weight:?}", geometry.taps))?;
    let norm_weights = norm.into_iter().flat_map(|n| [&n.weight, &n.bias]);
    [bias].into_iter().chain(norm_weights).try_for_each(|w| vector(w, x.last()))?;
    Ok(x.clone())
}

fn attention(
    o: &Operands<'_>,
    heads: usize,
    mask: AttentionMask,
    relative: Option<&RelativePositions>,
    bias: bool,
) -> Result<Shape, String> {
    let in_cache = mask == AttentionMask::Cached(First::Operand);
    let most = if bias || in_cache { 5 } else { 4 };
    need((3..=most).contains(&o.inputs.len()), || "q, k, v and perhaps a bias and lengths")?;
    let (q, k, v) = (o.float(0)?, o.kept(1)?, o.kept(2)?);
    let dtype = o.inputs[1].dtype;
    need(o.inputs[2].dtype == dtype, || "keys and values of one type")?;
    let is_cached = matches!(mask, AttentionMask::Cached(_)) && relative.is_none();
    need(is_cached || !dtype.is_compact(), || {
        format!("the mask of a cache and no relative terms for keys in {dtype}")
    })?;
    need(dtype != DType::Q8_0 || (q.last() / heads.max(1)).is_multiple_of(BLOCK), || {
        format!("heads of a multiple of {BLOCK} for keys in q8_0")
    })?;
    let (&[b, tq, c], &[bk, tk, ck]) = (q.dims(), k.dims()) else { return Err(attention_shapes(heads)) };
    let fits = (bk == b || bk == 1)
        && k == v
        && heads > 0
        && c % heads == 0
        && ck > 0
        && ck.is_multiple_of((c / heads).max(1))
        && c.is_multiple_of(ck);
    need(fits, || attention_shapes(heads))?;
    if bias {
        let scores = [b, heads, tq, tk];
        let fits = mask == AttentionMask::None && relative.is_none();
        need(fits, || "no mask and no relative terms with a bias of the scores")?;
        let fits = o.inputs.len() > 3 && o.float(3)?.dims() == scores;
        need(fits, || format!("a bias {} as operand 3", Shape::from(scores)))?;
        if o.inputs.len() == 5 {
            o.lens(4, bk)?;
        }
    } else if in_cache && o.inputs.len() == 5 {
        need(o.has_integers(3, &[b]), || format!("positions i32 [{b}] as operand 3"))?;
        need(o.has_integers(4, &[b, 2]) && bk == b, || {
            format!("what rows have in common, i32 [{b}, 2], as operand 4, and keys of each row")
        })?;
    } else if mask.has_positions() {
        o.first(3, b)?;
    } else if o.inputs.len() == 4 {
        o.lens(3, bk)?;
    }
    need(mask == AttentionMask::None || tq <= tk, || "at least as many keys as queries for a causal mask")?;
    match mask {
        AttentionMask::Window(0) | AttentionMask::Stream(0) => {
            return Err("a window of at least one key".to_owned());
        }
        AttentionMask::Cached(First::Const(at)) => {
            need(at + tq <= tk, || format!("a cache of at least {} keys", at + tq))?;
            o.count(3)?;
        }
        _ => {}
    }
    if let Some(r) = relative {
        need(!mask.has_positions(), || "no relative terms with positions")?;
        let want = [2 * r.window + 1, c / heads];
        let fit = r.key.shape().dims() == want && r.value.shape().dims() == want;
        need(fit, || format!("relative tables [{}, {}]", want[0], want[1]))?;
    }
    Ok(q.clone())
}

fn attention_shapes(heads: usize) -> String {
    format!("q [B, Tq, {heads} · D], k and v [B or 1, Tk, Hkv · D] with Hkv a divisor of {heads}")
}

fn concat(o: &Operands<'_>, axis: usize) -> Result<Shape, String> {
    let first = o.any(0)?.dims().to_vec();
    need(axis < first.len(), || format!("more than {axis} axes"))?;
    let mut total = 0;
    for i in 0..o.inputs.len() {
        let d = o.any(i)?.dims();
        let fits = d.len() == first.len() && (0..d.len()).all(|a| a == axis || d[a] == first[a]);
        need(fits, || format!("operands that differ only in axis {axis}"))?;
        total += d[axis];
    }
    let mut dims = first;
    dims[axis] = total;
    Ok(dims.into())
}

fn sample(o: &Operands<'_>, rules: &SampleRules) -> Result<Shape, String> {
    let (b, v, least_settings) = match *o.float(0)?.dims() {
        [b, v] => (b, v, 4),
        [b, 2, v] => (b, v, SAMPLE_SETTINGS),
        _ => (0, 0, 0),
    };
    let settings = least_settings..=SAMPLE_SETTINGS;
    let fits = v > 0
        && matches!(o.float(1)?.dims(), [rows, s] if *rows == b && settings.contains(s))
        && o.has_integers(2, &[b, 2])
        && o.has_integers(3, &[b])
        && o.inputs.len() <= 5
        && (o.inputs.len() < 5 || o.float(4)?.dims() == [b, v])
        && rules.controls.is_none_or(|c| c.first <= v && c.end < v)
        && rules.start.is_none_or(|id| id < v);
    need(fits, || {
        "logits [B, V] or [B, 2, V], settings [B, 4 to 6], seed i32 [B, 2], draw i32 [B] and perhaps seen \
         [B, V], with control and start ids below V; two rows of logits need 6 settings"
    })?;
    Ok([b, 1].into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, Rows};

    #[test]
    fn a_history_has_as_many_rows_as_the_taps_reach_back() {
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [2, 5, 8]).expect("declares");
        let history = g.input("history", DType::F32, [2, 6, 8]).expect("declares");
        let w = Weight::named("w", [24, 4]);
        let y = g.conv1d_after(history, x, w.clone(), ConvGeometry::streaming(3, 3)).expect("6 rows");
        assert_eq!(g.shape(y).dims(), [2, 5, 4]);
        let e = g.conv1d_after(history, x, w.clone(), ConvGeometry::streaming(3, 1)).expect_err("2 rows");
        assert!(e.to_string().contains("needs a history [2, 2, 8] as operand 1"), "{e}");
        assert!(g.conv1d(x, w.clone(), ConvGeometry::streaming(3, 3)).is_err(), "no history");
        assert!(g.conv1d_after(history, x, w, ConvGeometry::causal(3, 3)).is_err(), "one too many");
    }

    /// Attention without learned terms.
    fn attention(heads: usize, mask: AttentionMask) -> Op {
        Op::Attention { heads, scale: 1.0, mask, relative: None, bias: false, follows_weights: false }
    }

    #[test]
    fn heads_of_keys_divide_those_of_queries() {
        for (keys, mask, fits) in [
            (24, AttentionMask::None, true),
            (8, AttentionMask::Causal, true),
            (4, AttentionMask::Window(3), true),
            (4, AttentionMask::Window(0), false),
            (16, AttentionMask::None, false), // 6 heads on 4
            (6, AttentionMask::None, false),  // a head and a half
        ] {
            let mut g = Graph::new("demo");
            let q = g.input("q", DType::F32, [1, 5, 24]).expect("declares");
            let k = g.input("k", DType::F32, [1, 7, keys]).expect("declares");
            assert_eq!(g.attention(attention(6, mask), q, k, k, None).is_ok(), fits, "{keys}, {mask:?}");
        }
    }

    #[test]
    fn biases_have_a_number_for_each_score() {
        let mut g = Graph::new("demo");
        let q = g.input("q", DType::F32, [2, 5, 24]).expect("declares");
        let p = g.input("p", DType::F32, [1, 9, 24]).expect("declares");
        let lens = g.input("lens", DType::I32, [2]).expect("declares");
        let scores = g.relative_scores(q, p, 6, 0.5).expect("fits");
        assert_eq!(g.shape(scores).dims(), [2, 6, 5, 5]);
        assert!(g.relative_scores(p, p, 6, 0.5).is_err(), "needs 17 rows");
        let biased = |heads, mask| Op::Attention {
            heads,
            scale: 1.0,
            mask,
            relative: None,
            bias: true,
            follows_weights: false,
        };
        for (heads, mask, last, fits) in [
            (6, AttentionMask::None, Some(scores), true),
            (3, AttentionMask::None, Some(scores), false),
            (6, AttentionMask::Causal, Some(scores), false),
            (6, AttentionMask::None, Some(lens), false),
            (6, AttentionMask::None, None, false),
        ] {
            assert_eq!(g.attention(biased(heads, mask), q, q, q, last).is_ok(), fits, "{heads}, {mask:?}");
        }
    }

    #[test]
    fn compact_states_take_rows_and_give_them_to_attention_alone() {
        let cached = AttentionMask::Cached(First::Const(1));
        for dtype in DType::COMPACT {
            let mut g = Graph::new("demo");
            let x = g.input("x", DType::F32, [2, 3, 64]).expect("declares");
            let cache = g.state("cache", dtype, [2, 5, 64]).expect("whole rows");
            let other = g.state("other", DType::F32, [2, 5, 64]).expect("declares");
            let written = g.write_rows(cache, x, Rows::From(1)).expect("fits");
            assert_eq!(g.info(written).dtype, dtype);
            let y = g.attention(attention(2, cached), x, written, written, None).expect("reads it");
            assert_eq!(g.info(y).dtype, DType::F32);
            for (mask, values) in [(AttentionMask::Causal, written), (cached, other)] {
                assert!(g.attention(attention(2, mask), x, written, values, None).is_err(), "{mask:?}");
            }
            let e = g.scale(written, Factor::Const(2.0)).expect_err("is not f32").to_string();
            assert!(e.contains(&format!("got {dtype} [2, 5, 64]")), "{e}");
            assert!(g.slice(written, 1, 0, 2).is_err() && g.reshape(written, [10, 64]).is_err());
            assert!(g.concat(&[written, written], 1).is_err() && g.update("cache", written).is_err());
            assert!(g.write_rows(other, written, Rows::From(0)).is_err(), "rows are f32");
            g.output("kept", written).expect("is copied as it is");
            let e = g.state("narrow", dtype, [2, 5, 33]).expect_err("not whole words").to_string();
            assert!(e.contains("buffer `narrow`") && e.contains("rows of a multiple of"), "{e}");
        }
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [1, 1, 64]).expect("declares");
        let cache = g.state("cache", DType::Q8_0, [1, 5, 64]).expect("whole rows");
        let e =
            g.attention(attention(4, cached), x, cache, cache, None).expect_err("heads of 16").to_string();
        assert!(e.contains("needs heads of a multiple of 32 for keys in q8_0"), "{e}");
    }

    #[test]
    fn rows_and_positions_fit() {
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [2, 3, 8]).expect("declares");
        let cache = g.state("cache", DType::F32, [2, 5, 8]).expect("declares");
        let first = g.input("first", DType::I32, [2]).expect("declares");
        let one = g.input("one", DType::I32, [1]).expect("declares");
        assert!(g.write_rows(cache, x, Rows::From(3)).is_err(), "3 + 3 > 5");
        assert!(g.write_rows(cache, x, Rows::At(one)).is_err(), "two batch rows");
        for (mask, positions, fits) in [
            (AttentionMask::Cached(First::Const(2)), None, true),
            (AttentionMask::Cached(First::Const(3)), None, false),
            (AttentionMask::Cached(First::Const(2)), Some(first), false),
            (AttentionMask::Cached(First::Operand), Some(first), true),
            (AttentionMask::Cached(First::Operand), None, false),
            (AttentionMask::Stream(3), Some(first), true),
            (AttentionMask::Stream(0), Some(first), false),
        ] {
            let y = g.attention(attention(2, mask), x, cache, cache, positions);
            assert_eq!(y.is_ok(), fits, "{mask:?} of {positions:?}");
        }
        let shared = g.input("shared", DType::I32, [2, 2]).expect("declares");
        let one_cache = g.state("one cache", DType::F32, [1, 5, 8]).expect("declares");
        let in_cache = AttentionMask::Cached(First::Operand);
        for (mask, keys, common, fits) in [
            (in_cache, cache, shared, true),
            (in_cache, cache, first, false),
            (in_cache, one_cache, shared, false),
            (AttentionMask::Stream(3), cache, shared, false),
        ] {
            let y = g.attention_in_common(attention(2, mask), [x, keys, keys], first, common);
            assert_eq!(y.is_ok(), fits, "{mask:?} of {:?}", g.shape(common));
        }
        let next = g.increment(first, 1).expect("integers");
        assert_eq!(g.info(next).dtype, DType::I32);
        let both = g.concat(&[next, one], 0).expect("integers");
        assert_eq!((g.info(both).dtype, g.shape(both).len()), (DType::I32, 3));
        assert!(g.increment(x, 1).is_err() && g.push(Op::Concat { axis: 0 }, &[first, x], None).is_err());
    }

    #[test]
    fn shapes_of_every_family() {
        let mut g = Graph::new("demo");
        let x = g.input("x", DType::F32, [2, 5, 8]).expect("declares");
        let lens = g.input("lens", DType::I32, [2]).expect("declares");
        let ids = g.input("ids", DType::I32, [1, 5, 16]).expect("declares");
        let sum = |first| Op::EmbeddingSum { tables: Weight::named("w", [15, 9, 8]), first };
        for (op, inputs, shape) in [
            (Op::Concat { axis: 1 }, &[x, x][..], Some("[2, 10, 8]")),
            (Op::Slice { axis: 1, start: 1, len: 3 }, &[x], Some("[2, 3, 8]")),
            (Op::Slice { axis: 1, start: 3, len: 3 }, &[x], None),
            (Op::Permute { perm: vec![2, 0, 1] }, &[x], Some("[8, 2, 5]")),
            (Op::Permute { perm: vec![0, 0, 1] }, &[x], None),
            (Op::MaskRows, &[x, lens], Some("[2, 5, 8]")),
            (Op::MaskRows, &[x, x], None),
            (Op::Add, &[x, lens], None),
            (sum(1), &[ids], Some("[1, 5, 8]")), // ids 1 to 15, one for each table
            (sum(2), &[ids], None),
        ] {
            let name = op.describe();
            let found = g.push(op, inputs, None).ok().map(|v| g.shape(v).to_string());
            assert_eq!(found.as_deref(), shape, "{name}");
        }
    }
}
