//! A GPU as a device: selects the kernel of each op and uploads model weights once.

use crate::adapters;
use crate::executable::GpuExecutable;
use crate::exit;
use crate::gpu::Gpu;
use crate::kernels::{self, Abilities};
use crate::memory::GpuMemory;
use crate::weights::WeightBank;
use orate_graph::{
    AtHome, Device, DeviceError, DeviceInfo, DeviceKind, Executable, Fused, Fusions, Memory, ModelOnDevice,
    Op, Pacing, Plan, Precision, PrecisionPolicy, Rounding, Target, ValueInfo, WeightLoader,
};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A GPU, shared by all models and sessions.
pub struct GpuDevice {
    pub(crate) gpu: Arc<Gpu>,
}

impl GpuDevice {
    /// Opens device `index` among those of `kind`, or among all without a kind, best first: discrete before
    /// integrated before software. `cache` is a folder that stores compiled kernels for the next process, if
    /// the driver can export them.
    ///
    /// # Errors
    /// There is no such device, it cannot be opened, or it does not support the precision of `policy`.
    pub fn new(
        kind: Option<DeviceKind>,
        index: usize,
        policy: PrecisionPolicy,
        cache: Option<PathBuf>,
    ) -> Result<GpuDevice, DeviceError> {
        let mut found = adapters::open(kind);
        if kind.is_none() {
            found.sort_by_key(|(_, info)| info.class);
        }
        let what = kind.map_or("GPU", DeviceKind::name);
        let count = found.len();
        let Some((adapter, info)) = found.into_iter().nth(index) else {
            let problem = match count {
                0 => format!("no {what} device was found; is its driver installed?"),
                1 => format!("there is 1 {what} device, number 0"),
                n => format!("there are {n} {what} devices, numbers 0 to {}", n - 1),
            };
            return Err(DeviceError::Setup { device: format!("{what}:{index}"), problem });
        };
        let formats = adapters::precisions(&adapter);
        if !formats.contains(&policy.precision) {
            let formats: Vec<_> = formats.iter().map(|p| p.name()).collect();
            let mut problem =
                format!("it computes matmuls in {} and not in {}", formats.join(" or "), policy.precision);
            if policy.precision == Precision::Tf32 {
                problem += ", which is for CUDA's tensor cores";
            }
            return Err(DeviceError::Setup { device: info.id(), problem });
        }
        let gpu = Arc::new(Gpu::open(&adapter, info, policy, cache.as_deref())?);
        exit::wait_for_at_exit(&gpu)?;
        Ok(GpuDevice { gpu })
    }

    /// Destroys the device, as a driver reset would. For tests of how programs react.
    #[doc(hidden)]
    pub fn lose(&self) {
        self.gpu.device.destroy();
    }
}

impl Target for GpuDevice {
    fn name(&self) -> String {
        self.gpu.name.clone()
    }

    fn weight_formats(&self) -> PrecisionPolicy {
        self.gpu.policy.clone()
    }

    fn kernel(&self, op: &Op, inputs: &[&ValueInfo]) -> Result<String, String> {
        self.fused_kernel(op, inputs, &Fused::default())
    }

    fn fusions(&self) -> Fusions {
        kernels::fusions(&self.gpu)
    }

    fn rounding(&self, op: &Op, inputs: &[&ValueInfo], _: &ValueInfo, fused: &Fused) -> Rounding {
        kernels::rounding(op, inputs, fused, Abilities::of(&self.gpu))
    }

    fn fused_kernel(&self, op: &Op, inputs: &[&ValueInfo], fused: &Fused) -> Result<String, String> {
        kernels::op_kernel(op, inputs, fused, Abilities::of(&self.gpu)).name
    }
}

impl Device for GpuDevice {
    fn open(&self, weights: Arc<dyn WeightLoader + Send + Sync>) -> Box<dyn ModelOnDevice> {
        Box::new(GpuModel { gpu: self.gpu.clone(), weights, kept: AtHome::new(Mutex::default()) })
    }

    fn memory(&self) -> Box<dyn Memory> {
        Box::new(GpuMemory::new(self.gpu.clone()))
    }

    fn threads(&self) -> usize {
        0
    }

    fn pacing(&self) -> Pacing {
        // The module of a page has one thread.
        let side_by_side = cfg!(not(target_os = "wasi"));
        Pacing { side_by_side, ..Pacing::QUEUES }
    }

    /// A minute of speech needs less, and creating a buffer takes longer than the pauses between sentences.
    fn memory_kept(&self) -> usize {
        256 << 20
    }

    fn weight_bytes(&self, plans: &[Plan], source: &dyn WeightLoader) -> u64 {
        let wanted = |plan| crate::executable::wanted(&self.gpu, plan, source);
        let wanted: Vec<_> = plans.iter().flat_map(wanted).collect();
        crate::weights::bytes_of(&wanted)
    }

    fn info(&self) -> DeviceInfo {
        self.gpu.info.clone()
    }

    fn cache_problem(&self) -> Option<String> {
        self.gpu.pipelines.not_kept()
    }
}

/// Weights of a model on the device.
struct GpuModel {
    gpu: Arc<Gpu>,
    weights: Arc<dyn WeightLoader + Send + Sync>,
    kept: AtHome<Mutex<WeightBank>>,
}

impl ModelOnDevice for GpuModel {
    fn load(&self, plan: Plan) -> Result<Arc<dyn Executable>, DeviceError> {
        if plan.device() != self.gpu.name {
            return Err(DeviceError::Mixed {
                plan: plan.name().to_owned(),
                made_for: plan.device().to_owned(),
                got: self.gpu.name.clone(),
            });
        }
        let _inside = self.gpu.enter()?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::new(GpuExecutable::new(self.gpu.clone(), plan, &mut kept, &*self.weights)?))
    }

    fn weight_bytes(&self) -> u64 {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }
}
