//! `Attention` as the executor runs it.

use super::{Attention, Cached, Mask, Relative, Sequence};
use crate::op::{Binding, Call, OpKernel};
use crate::weights::Core;
use orate_graph::{AttentionMask, First, RelativePositions, ValueInfo};

pub(crate) struct Op<'a> {
    pub heads: usize,
    pub scale: f32,
    pub mask: AttentionMask,
    pub relative: Option<&'a RelativePositions>,
    pub bias: bool,
}

impl OpKernel for Op<'_> {
    fn name(&self, core: &Core, inputs: &[&ValueInfo]) -> String {
        match inputs.iter().find(|i| i.dtype.is_compact()) {
            Some(keys) => format!("{}-{}-attention", core.isa.vectors(), keys.dtype),
            None => format!("{}-attention", core.isa.vectors()),
        }
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let ([_, queries, width], [kv_batch, keys, kv_width]) = (step.dims(0), step.dims(1));
        let (mask, dtype) = (self.mask, step.input(1).dtype);
        let relative = self.relative.map(|r| (r.window, step.dense(&r.key), step.dense(&r.value)));
        let attention = Attention {
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
        };
        let empty = |window| Relative { window, keys: &[], values: &[] };
        let scratch = Attention { relative: self.relative.map(|r| empty(r.window)), ..attention }
            .scratch_len(step.core.team.threads(), kv_batch, keys);
        let biased = self.bias;
        let sizes = [step.dims::<3>(0), step.dims(1), step.dims(2)];
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
                kv_lens: match o.inputs.len() {
                    4 if !mask.has_positions() && !biased => Some(o.inputs.lens(3)?),
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
