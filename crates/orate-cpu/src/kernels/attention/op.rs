//! `Attention` as the executor runs it.

use super::{Attention, Cached, Mask, Relative, Sequence};
use crate::op::{Binding, Call, OpKernel};
use crate::weights::Core;
use orate_graph::{AttentionMask, First, Precision, RelativePositions, ValueInfo};

pub(crate) struct Op<'a> {
    pub heads: usize,
    pub scale: f32,
    pub mask: AttentionMask,
    pub relative: Option<&'a RelativePositions>,
    pub bias: bool,
    pub follows_weights: bool,
}

impl Op<'_> {
    /// Whether queries, keys and values are rounded to bf16. Where `f16` was asked for, they are not: that
    /// has three bits more.
    fn rounds(&self, core: &Core, inputs: &[&ValueInfo]) -> bool {
        let is_coarse = core.policy.precision == Precision::Bf16 || core.policy.precision.block() > 1;
        let is_plain = inputs.len() == 3 && self.relative.is_none() && !inputs[1].dtype.is_compact();
        let (queries, attention) = (inputs[0].shape.dims()[1], self.attention(inputs));
        self.follows_weights && is_coarse && core.isa.has_bf16() && is_plain && attention.fits_bf16(queries)
    }

    /// The attention without what only a run or the weights tell.
    fn attention(&self, inputs: &[&ValueInfo]) -> Attention<'static> {
        let dims = |i: usize| [1, 2].map(|axis| inputs[i].shape.dims()[axis]);
        let ([queries, width], [keys, kv_width], mask) = (dims(0), dims(1), self.mask);
        Attention {
            heads: self.heads,
            kv_heads: kv_width / (width / self.heads),
            head_dim: width / self.heads,
            scale: self.scale,
            mask: match mask {
                AttentionMask::None => Mask::None,
                AttentionMask::Causal | AttentionMask::Cached(_) => Mask::Causal,
                AttentionMask::Window(seen) | AttentionMask::Stream(seen) => Mask::Window { left: seen - 1 },
            },
            first_query: match mask {
                AttentionMask::None => 0,
                AttentionMask::Cached(First::Const(first)) => first,
                _ => keys.saturating_sub(queries),
            },
            first_queries: None,
            passed: None,
            kv_lens: None,
            relative: None,
            bias: None,
        }
    }
}

impl OpKernel for Op<'_> {
    fn name(&self, core: &Core, inputs: &[&ValueInfo]) -> String {
        if self.rounds(core, inputs) {
            return format!("{}bf16-attention", core.isa.vectors());
        }
        match inputs.iter().find(|i| i.dtype.is_compact()) {
            Some(keys) => format!("{}-{}-attention", core.isa.vectors(), keys.dtype),
            None => format!("{}-attention", core.isa.vectors()),
        }
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let ([_, queries, _], [kv_batch, keys, _]) = (step.dims::<3>(0), step.dims::<3>(1));
        let infos: Vec<&ValueInfo> = (0..step.inputs()).map(|i| step.input(i)).collect();
        let (mask, dtype) = (self.mask, step.input(1).dtype);
        let relative = self.relative.map(|r| (r.window, step.dense(&r.key), step.dense(&r.value)));
        let attention = self.attention(&infos);
        let empty = |window| Relative { window, keys: &[], values: &[] };
        let scratch = Attention { relative: self.relative.map(|r| empty(r.window)), ..attention }
            .scratch_len(step.core.team.threads(), kv_batch, keys);
        let biased = self.bias;
        let sizes = [step.dims::<3>(0), step.dims(1), step.dims(2)];
        #[cfg(target_arch = "x86_64")]
        if self.rounds(step.core, &infos) {
            let scratch = attention.scratch_len_bf16(step.core.team.threads(), kv_batch, keys);
            return Call::new(move |o| {
                let [q, k, v] = [0, 1, 2].map(|i| {
                    let [batch, steps, stride] = sizes[i];
                    Sequence { data: o.inputs.floats(i), batch, steps, stride }
                });
                attention.run_bf16((o.isa, o.team), q, (k, v), o.out, o.scratch);
            })
            .with_scratch(scratch);
        }
        Call::fallible(move |o| {
            let attention = Attention {
                first_queries: match mask {
                    AttentionMask::Cached(First::Operand) => Some(o.inputs.firsts(3, queries, keys)?),
                    _ => None,
                },
                passed: match mask {
                    AttentionMask::Stream(_) => Some(o.inputs.lens(3)?),
                    _ => None,
                },
                kv_lens: match (mask.has_positions(), if biased { 4 } else { 3 }) {
                    (false, at) if o.inputs.len() > at => Some(o.inputs.lens(at)?),
                    _ => None,
                },
                relative: relative.as_ref().map(|(window, keys, values)| Relative {
                    window: *window,
                    keys,
                    values,
                }),
                bias: biased.then(|| o.inputs.floats(3)),
                ..attention
            };
            let sequence = |i: usize| {
                let [batch, steps, stride] = sizes[i];
                Sequence { data: o.inputs.floats(i), batch, steps, stride }
            };
            let on = (o.isa, o.team);
            if dtype.is_compact() {
                let cached = |i: usize| {
                    let [batch, steps, _] = sizes[i];
                    Cached { bytes: o.inputs.bytes(i), batch, steps }
                };
                let kept = (cached(1), cached(2));
                attention.run_cached(on, sequence(0), dtype, kept, o.out, o.scratch);
            } else {
                attention.run(on, sequence(0), (sequence(1), sequence(2)), o.out, o.scratch);
            }
            Ok(())
        })
        .with_scratch(scratch)
    }
}
