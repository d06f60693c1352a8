//! `MatMul` and `Conv1d` as the executor runs them.

use super::{Activation, Edges, Element, Epilogue, Rows, Taps, blocks, matmul, scratch_len};
use crate::op::{Binding, Call, OpKernel};
use crate::weights::{Core, Factor, Format};
use orate_graph::{ConvGeometry, ValueInfo, Weight};

/// A matmul with packed weights, or a convolution, whose right operand is the matrix of its taps.
pub(crate) struct Product<'a> {
    pub weight: &'a Weight,
    pub conv: Option<ConvGeometry>,
    pub epilogue: &'a orate_graph::Epilogue,
}

impl OpKernel for Product<'_> {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        match core.format_of(self.weight, self.conv.as_ref()) {
            Format::Blocks(f) => format!("{}-{}", core.isa.bytes(), f.name()),
            Format::Elements(Element::F16) => format!("{}-f16-gemm", core.isa.vectors()),
            Format::Elements(Element::Bf16) => format!("{}-bf16-gemm", core.isa.vectors()),
            Format::Elements(Element::F32) => format!("{}-gemm", core.isa.name()),
        }
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let format = step.core.format_of(self.weight, self.conv.as_ref());
        let weight = step.bank.packed(self.weight, format);
        let scratch = self.scratch(step, &weight);
        let bias = self.epilogue.bias.as_ref().map(|b| step.dense(b));
        let activation: Option<Activation> =
            self.epilogue.activation.as_ref().map(|a| a.map(|slope| step.dense(slope)[0]));
        let residual = self.epilogue.residual.then(|| step.inputs() - 1);
        let zeros = self.zeros(step);
        let (conv, shape, chosen_for) = (self.conv, step.shape(0).clone(), step.rows_to_choose_for());
        let measured = step.core.moments.clone().map(|moments| (moments, self.measured(shape.last())));
        Call::new(move |o| {
            let x = o.inputs.floats(0);
            if let Some((moments, names)) = &measured {
                moments.add(names, x, shape.last());
            }
            let rows = match conv {
                None => Rows::Dense { x, chosen_for },
                Some(g) => Rows::Conv {
                    x,
                    batch: shape.dims()[0],
                    time: shape.dims()[1],
                    chosen_for,
                    channels: shape.dims()[2],
                    taps: g.taps,
                    dilation: g.dilation,
                    left: g.left,
                    edges: Edges::of(&g, &zeros, || o.inputs.floats(1)),
                },
            };
            let bias = bias.as_ref().map(|b| b.as_slice());
            let e = Epilogue { bias, activation, residual: residual.map(|i| o.inputs.floats(i)) };
            match &weight {
                Factor::Elements(w) => matmul(o.isa, o.team, rows, w, &e, o.out, o.scratch),
                Factor::Blocks(w) => blocks::matmul(o.isa, o.team, rows, w, &e, o.out, o.scratch),
            }
        })
        .with_scratch(scratch)
    }
}

impl Product<'_> {
    /// Tensors whose columns the `width` inputs of a row meet: those of a matmul, or of one tap.
    fn measured(&self, width: usize) -> Vec<String> {
        let mut names = vec![];
        if self.conv.is_none_or(|g| g.taps == 1) {
            self.weight.visit_named(&mut |name, shape| {
                if shape.rank() > 1 && shape.dims().contains(&width) {
                    names.push(name.to_owned());
                }
            });
        }
        names
    }

    /// A row of zeros, if there are any beyond the ends.
    fn zeros(&self, step: &Binding<'_>) -> Vec<f32> {
        let is_needed = self.conv.is_some_and(|g| g.edges == orate_graph::Edges::Zero);
        vec![0.0; if is_needed { step.shape(0).last() } else { 0 }]
    }

    /// Floats of scratch memory.
    fn scratch(&self, step: &Binding<'_>, weight: &Factor) -> usize {
        let x = step.shape(0);
        match weight {
            Factor::Blocks(_) => {
                let history = self.conv.filter(|g| g.has_history()).map_or(0, |_| step.shape(1).rows());
                let zeros = usize::from(!self.zeros(step).is_empty());
                blocks::scratch_len(x.rows() + history + zeros, x.last().max(1))
            }
            Factor::Elements(_) => {
                let taps = |g: ConvGeometry| Taps { count: g.taps, dilation: g.dilation };
                let taps = self.conv.filter(|_| x.dims()[0] == 1).map(taps);
                let (k, out) = (self.weight.shape().dims()[0], &step.out().shape);
                let (isa, threads) = (step.core.isa, step.core.team.threads());
                scratch_len(isa, threads, [out.rows(), k, out.last()], step.rows_to_choose_for(), taps)
            }
        }
    }
}
