//! The CPU as a device: which kernel runs which op, and where weights are kept.

use crate::executable::CpuExecutable;
use crate::kernels::matmul::{PackedWeights, Strided};
use crate::memory::CpuMemory;
use crate::{Isa, Team};
use orate_graph::{
    Device, DeviceError, Executable, GraphError, Memory, ModelOnDevice, Op, Plan, Target, ValueInfo, Weight, WeightLoader,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The CPU: an instruction set and a team of threads, which all models and sessions share.
pub struct CpuDevice {
    core: Core,
}

/// What models and executables hold of their device.
#[derive(Clone)]
pub(crate) struct Core {
    pub isa: Isa,
    pub team: Arc<Team>,
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
        let isa = self.core.isa.name();
        Ok(match op {
            Op::MatMul { .. } | Op::Conv1d { .. } => format!("{isa}-gemm"),
            Op::DepthwiseConv1d { norm: Some(_), .. } => format!("{isa}-depthwise-norm"),
            Op::DepthwiseConv1d { .. } => format!("{isa}-depthwise"),
            Op::LayerNorm(_) => format!("{isa}-layer-norm"),
            Op::Attention { .. } => format!("{isa}-attention"),
            Op::Rotary { .. } => format!("{isa}-rotary"),
            Op::AddBias { .. } | Op::Affine { .. } | Op::Activate(_) | Op::Add | Op::AddRow => format!("{isa}-pointwise"),
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
        Box::new(CpuMemory::new(self.core.name.to_string()))
    }

    fn threads(&self) -> usize {
        self.core.team.threads()
    }
}

/// A model's weights in the forms that kernels want, each made once.
struct CpuModel {
    core: Core,
    weights: Arc<dyn WeightLoader + Send + Sync>,
    kept: Mutex<Kept>,
}

/// Weights by the text of their expression.
#[derive(Default)]
struct Kept {
    dense: HashMap<String, Arc<Vec<f32>>>,
    packed: HashMap<String, Arc<PackedWeights>>,
}

/// Gives executables their weights while they are made.
pub(crate) struct WeightBank<'a> {
    core: &'a Core,
    source: &'a dyn WeightLoader,
    kept: &'a mut Kept,
}

impl WeightBank<'_> {
    /// Elements in logical order.
    pub fn dense(&mut self, w: &Weight) -> Result<Arc<Vec<f32>>, GraphError> {
        let key = w.key();
        if let Some(hit) = self.kept.dense.get(&key) {
            return Ok(hit.clone());
        }
        let made = Arc::new(w.evaluate(self.source)?.contiguous().data.into_owned());
        self.kept.dense.insert(key, made.clone());
        Ok(made)
    }

    /// `[K, N]` packed for the matrix product.
    pub fn packed(&mut self, w: &Weight) -> Result<Arc<PackedWeights>, GraphError> {
        let key = w.key();
        if let Some(hit) = self.kept.packed.get(&key) {
            return Ok(hit.clone());
        }
        let t = w.evaluate(self.source)?;
        let (k, n) = (t.shape.dims()[0], t.shape.dims()[1]);
        let strided = Strided { data: &t.data, k_stride: t.strides[0], n_stride: t.strides[1] };
        let made = Arc::new(PackedWeights::pack(self.core.isa, &self.core.team, k, n, strided));
        self.kept.packed.insert(key, made.clone());
        Ok(made)
    }
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
        let mut bank = WeightBank { core: &self.core, source: &*self.weights, kept: &mut kept };
        Ok(Arc::new(CpuExecutable::new(self.core.clone(), plan, &mut bank)?))
    }

    fn weight_bytes(&self) -> u64 {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let dense: usize = kept.dense.values().map(|w| w.len() * 4).sum();
        let packed: usize = kept.packed.values().map(|w| w.bytes()).sum();
        (dense + packed) as u64
    }
}
