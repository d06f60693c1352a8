//! The CPU as a device: which kernel runs which op, and where weights are kept.

use crate::executable::CpuExecutable;
use crate::kernels::matmul::{PackedWeights, Strided};
use crate::memory::CpuMemory;
use crate::{Isa, Team};
use orate_graph::{
    Device, DeviceError, Executable, GraphError, Memory, ModelOnDevice, Op, Plan, Target, Tensor, ValueInfo,
    Weight, WeightLoader,
};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The CPU: an instruction set and a team of threads, which all models and sessions share.
pub struct CpuDevice {
    core: Core,
}

/// What models and executables hold of their device.
#[derive(Clone)]
pub(crate) struct Core {
    pub isa: Isa,
    pub team: Arc<Team>,
    /// Name; the allocation itself tells one device from another.
    pub name: Arc<str>,
}

impl CpuDevice {
    /// A device with `threads` threads (the caller of a run is one of them) and an instruction set.
    ///
    /// # Errors
    /// `threads` is 0, or the system refuses to start them.
    pub fn new(threads: usize, isa: Isa) -> Result<CpuDevice, DeviceError> {
        let setup = |problem: String| DeviceError::Setup { device: "cpu".to_owned(), problem };
        if threads == 0 || threads > 1024 {
            return Err(setup(format!("{threads} threads; choose 1 to 1024")));
        }
        let team = Team::new(threads).map_err(|e| setup(format!("cannot start {threads} threads: {e}")))?;
        Ok(CpuDevice { core: Core { isa, team: Arc::new(team), name: "cpu".into() } })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.core.isa
    }

    /// The threads.
    pub fn team(&self) -> &Team {
        &self.core.team
    }
}

impl Target for CpuDevice {
    fn name(&self) -> String {
        self.core.name.to_string()
    }

    fn kernel(&self, op: &Op, _: &[&ValueInfo]) -> Result<String, String> {
        let isa = self.core.isa.vectors();
        Ok(match op {
            Op::MatMul { .. } | Op::Conv1d { .. } => format!("{}-gemm", self.core.isa.name()),
            Op::DepthwiseConv1d { norm: Some(_), .. } => format!("{isa}-depthwise-norm"),
            Op::DepthwiseConv1d { .. } => format!("{isa}-depthwise"),
            Op::LayerNorm(_) => format!("{isa}-layer-norm"),
            Op::Attention { .. } => format!("{isa}-attention"),
            Op::Rotary { .. } => format!("{isa}-rotary"),
            Op::AddBias { .. } | Op::Affine { .. } | Op::Activate(_) | Op::Add | Op::AddRow => {
                format!("{isa}-pointwise")
            }
            Op::Combine { .. } | Op::Scale { .. } => format!("{isa}-pointwise"),
            Op::Embedding { .. } | Op::SelectRow { .. } => "gather".to_owned(),
            Op::Constant { .. } | Op::Concat { .. } | Op::Slice { .. } => "copy".to_owned(),
            Op::MaskRows => "mask".to_owned(),
            Op::Permute { .. } => "permute".to_owned(),
            Op::Reshape => "none".to_owned(),
            Op::RotaryTable { .. } | Op::TimeEmbedding { .. } => "table".to_owned(),
            Op::RandomNormal { .. } => "philox".to_owned(),
        })
    }
}

impl Device for CpuDevice {
    fn open(&self, weights: Arc<dyn WeightLoader + Send + Sync>) -> Box<dyn ModelOnDevice> {
        Box::new(CpuModel { core: self.core.clone(), weights, kept: Mutex::default() })
    }

    fn memory(&self) -> Box<dyn Memory> {
        Box::new(CpuMemory::new(self.core.name.clone()))
    }

    fn threads(&self) -> usize {
        self.core.team.threads()
    }
}

/// A model's weights in the forms that kernels want, each made once.
struct CpuModel {
    core: Core,
    weights: Arc<dyn WeightLoader + Send + Sync>,
    kept: Mutex<WeightBank>,
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
    fn fill(&mut self, plan: &Plan, core: &Core, source: &dyn WeightLoader) -> Result<(), GraphError> {
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

impl ModelOnDevice for CpuModel {
    fn load(&self, plan: Plan) -> Result<Arc<dyn Executable>, DeviceError> {
        if plan.device() != &*self.core.name {
            return Err(DeviceError::Mixed {
                plan: plan.name().to_owned(),
                made_for: plan.device().to_owned(),
                got: self.core.name.to_string(),
            });
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.fill(&plan, &self.core, &*self.weights)?;
        Ok(Arc::new(CpuExecutable::new(self.core.clone(), plan, &kept)))
    }

    fn weight_bytes(&self) -> u64 {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let dense: usize = kept.dense.values().map(|w| w.len() * 4).sum();
        let packed: usize = kept.packed.values().map(|w| w.bytes()).sum();
        (dense + packed) as u64
    }
}
