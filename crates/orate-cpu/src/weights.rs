//! Weights of a model in the forms that kernels want, each made once.

use crate::kernels::matmul::{PackedWeights, Strided};
use crate::{Isa, Team};
use orate_graph::{GraphError, Op, Plan, Tensor, Weight, WeightLoader};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

/// What models and executables hold of their device.
#[derive(Clone)]
pub(crate) struct Core {
    pub isa: Isa,
    pub team: Arc<Team>,
    /// Name; the allocation itself tells one device from another.
    pub name: Arc<str>,
}

/// Weights by the text of their expression.
#[derive(Default)]
pub(crate) struct WeightBank {
    dense: HashMap<String, Arc<Vec<f32>>>,
    packed: HashMap<String, Arc<PackedWeights>>,
}

/// A weight on its way into the bank.
enum Made {
    Dense(Arc<Vec<f32>>),
    Packed(Arc<PackedWeights>),
}

impl WeightBank {
    /// Memory that the weights take.
    pub fn bytes(&self) -> u64 {
        let dense: usize = self.dense.values().map(|w| w.len() * 4).sum();
        let packed: usize = self.packed.values().map(|w| w.bytes()).sum();
        (dense + packed) as u64
    }

    /// Elements in logical order.
    pub fn dense(&self, w: &Weight) -> Arc<Vec<f32>> {
        self.dense.get(&w.key()).expect("`fill` made the weights of every step").clone()
    }

    /// `[K, N]` packed for the matrix product.
    pub fn packed(&self, w: &Weight) -> Arc<PackedWeights> {
        self.packed.get(&w.key()).expect("`fill` made the weights of every step").clone()
    }

    /// Makes all weights of a plan that are not kept yet, one thread each: reading, expanding and packing a model
    /// is most of the time to the first sentence.
    pub fn fill(&mut self, plan: &Plan, core: &Core, source: &dyn WeightLoader) -> Result<(), GraphError> {
        let mut wanted: Vec<(String, &Weight, bool)> = vec![];
        let mut seen = HashSet::new();
        for step in plan.steps() {
            let product = matches!(step.node.op, Op::MatMul { .. } | Op::Conv1d { .. });
            for (i, w) in step.node.op.weights().into_iter().enumerate() {
                let (key, pack) = (w.key(), product && i == 0);
                let kept = if pack { self.packed.contains_key(&key) } else { self.dense.contains_key(&key) };
                if !kept && seen.insert((key.clone(), pack)) {
                    wanted.push((key, w, pack));
                }
            }
        }
        // The largest first, so that no thread is left with one at the end.
        wanted.sort_by_key(|(_, w, _)| std::cmp::Reverse(w.shape().len()));
        let made: Vec<OnceLock<Result<Made, GraphError>>> = wanted.iter().map(|_| OnceLock::new()).collect();
        core.team.run(wanted.len(), &|_, i| {
            let (_, w, pack) = &wanted[i];
            let one = w
                .evaluate(source)
                .map(|t| if *pack { pack_matrix(core, &t) } else { Made::Dense(into_dense(t)) });
            made[i].get_or_init(|| one);
        });
        for ((key, ..), made) in wanted.into_iter().zip(made) {
            match made.into_inner().expect("every chunk ran")? {
                Made::Dense(w) => drop(self.dense.insert(key, w)),
                Made::Packed(w) => drop(self.packed.insert(key, w)),
            }
        }
        Ok(())
    }
}

fn into_dense(t: Tensor<'_>) -> Arc<Vec<f32>> {
    Arc::new(t.contiguous().data.into_owned())
}

fn pack_matrix(core: &Core, t: &Tensor<'_>) -> Made {
    let (k, n) = (t.shape.dims()[0], t.shape.dims()[1]);
    let strided = Strided { data: &t.data, k_stride: t.strides[0], n_stride: t.strides[1] };
    Made::Packed(Arc::new(PackedWeights::pack(core.isa, &core.team, k, n, strided)))
}
