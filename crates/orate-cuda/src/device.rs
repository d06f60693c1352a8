//! An NVIDIA GPU as a device: selects the kernel of each op and uploads model weights once.

use crate::cache::Cache;
use crate::discover::info;
use crate::driver::{Context, Driver, facts};
use crate::executable::{CudaExecutable, Lowered};
use crate::kernels::{OLDEST_ARCH, TENSOR_ARCH};
use crate::lower::{fusions, kernel_name, rounding};
use crate::machine_code::Kernels;
use crate::memory::CudaMemory;
use crate::shared::Core;
use crate::weights::WeightBank;
use orate_graph::{
    Device, DeviceError, DeviceInfo, Executable, Fused, Fusions, Graph, Memory, ModelOnDevice, Op, Pacing,
    Plan, Precision, PrecisionPolicy, Rounding, Target, ValueInfo, WeightLoader,
};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Part of the card's memory that a session may keep, and bytes that it may keep on any card.
const CARD_PARTS: usize = 64;
/// See [`CARD_PARTS`].
const LEAST_KEPT: usize = 256 << 20;

/// Address of weights that are not on the device.
const IMAGINED: u64 = 1 << 40;

/// A GPU with its kernels, shared by all models and sessions.
pub struct CudaDevice {
    core: Arc<Core>,
    index: usize,
}

impl CudaDevice {
    /// Opens device `index` of [`crate::devices`]. Kernels are compiled when a plan first needs them, and
    /// stored in the folder `cache`, if given. `policy` selects the precision of matmuls.
    ///
    /// # Errors
    /// There is no driver, no such device, no compiler ([NVRTC](https://docs.nvidia.com/cuda/nvrtc)), or the
    /// device does not support the precision of `policy`.
    pub fn new(
        index: usize,
        policy: PrecisionPolicy,
        cache: Option<PathBuf>,
    ) -> Result<CudaDevice, DeviceError> {
        let driver = Driver::open()?;
        let count = driver.count()?;
        let setup = |problem: String| DeviceError::Setup { device: format!("cuda:{index}"), problem };
        if index >= count {
            return Err(setup(match count {
                0 => "there is no CUDA device".to_owned(),
                1 => "there is only one CUDA device, cuda:0".to_owned(),
                n => format!("there are only {n} CUDA devices, cuda:0 to cuda:{}", n - 1),
            }));
        }
        let facts = facts(driver, index)?.1;
        let (name, arch) = (&facts.name, facts.arch);
        if arch < OLDEST_ARCH {
            let problem = format!(
                "{name} is of architecture sm_{arch}; sm_{OLDEST_ARCH} is the oldest that is supported"
            );
            return Err(setup(problem));
        }
        if arch < TENSOR_ARCH && policy.precision != Precision::F32 {
            let problem = format!(
                "{name} (sm_{arch}) has no tensor cores for precision {}; sm_{TENSOR_ARCH} is the first that has, \
                 and this one computes in f32",
                policy.precision
            );
            return Err(setup(problem));
        }
        let label = format!("cuda:{index}");
        let formats = policy.formats();
        // Both take long: the compiler may have to be loaded.
        let (context, kernels) = std::thread::scope(|scope| {
            let open = || Kernels::open(&label, arch, &formats, cache.clone().map(Cache::new));
            let kernels = std::thread::Builder::new().spawn_scoped(scope, open);
            let context = Context::new(driver, index);
            let kernels = match kernels {
                Ok(kernels) => kernels.join().unwrap_or_else(|e| std::panic::resume_unwind(e)),
                // The system has no more threads.
                Err(_) => open(),
            };
            (context, kernels)
        });
        let (context, kernels) = (Arc::new(context?), kernels?);
        let core = Core::new(kernels, context, policy, driver);
        Ok(CudaDevice { core: Arc::new(core), index })
    }

    /// For tests of internals.
    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Precision of matmuls.
    pub fn precision(&self) -> &PrecisionPolicy {
        &self.core.policy
    }
}

impl Target for CudaDevice {
    fn name(&self) -> String {
        self.core.context.name.clone()
    }

    fn weight_formats(&self) -> PrecisionPolicy {
        self.core.policy.clone()
    }

    fn kernel(&self, op: &Op, inputs: &[&ValueInfo]) -> Result<String, String> {
        self.fused_kernel(op, inputs, &Fused::default())
    }

    fn fusions(&self) -> Fusions {
        fusions(&self.core.policy, &self.core.context.facts)
    }

    fn fused_kernel(&self, op: &Op, inputs: &[&ValueInfo], fused: &Fused) -> Result<String, String> {
        kernel_name(op, inputs, fused, &self.core.policy, &self.core.context.facts)
    }

    fn rounding(&self, op: &Op, inputs: &[&ValueInfo], output: &ValueInfo, fused: &Fused) -> Rounding {
        rounding(op, inputs, output, fused, &self.core.policy, &self.core.context.facts)
    }
}

impl Device for CudaDevice {
    fn open(&self, weights: Arc<dyn WeightLoader + Send + Sync>) -> Box<dyn ModelOnDevice> {
        Box::new(CudaModel { core: self.core.clone(), weights, kept: Mutex::default() })
    }

    fn prepare(
        &self,
        what: &dyn Fn() -> String,
        graphs: &dyn Fn() -> Vec<Graph>,
        weights: &dyn WeightLoader,
    ) {
        let Core { kernels, policy, context, driver, .. } = &*self.core;
        let what = format!("{}, {policy}", what());
        if kernels.is_noted(&what) {
            return;
        }
        let mut bank = WeightBank::default();
        let mut names = vec![];
        for graph in graphs() {
            let Ok(plan) = Plan::compile(graph, self) else { continue };
            bank.imagine(&plan, policy, weights, IMAGINED);
            names.extend(Lowered::new(&plan, &bank, policy, &context.facts, driver.version).kernels());
        }
        // Executables report what fails.
        if kernels.obtain(names).is_ok() {
            kernels.note(&what);
        }
    }

    fn prepare_all(&self) -> Result<(), DeviceError> {
        self.core.kernels.obtain(self.core.kernels.names())
    }

    fn memory(&self) -> Box<dyn Memory> {
        Box::new(CudaMemory::new(&self.core, true))
    }

    fn background_memory(&self) -> Box<dyn Memory> {
        Box::new(CudaMemory::new(&self.core, false))
    }

    fn threads(&self) -> usize {
        0
    }

    fn pacing(&self) -> Pacing {
        // A CUDA graph contains the addresses of one memory.
        Pacing { shared_workspaces: true, runs_apart: 4, ..Pacing::QUEUES }
    }

    /// On a large card, enough for batches of sixteen callers: to make their memories again takes longer than
    /// to read their prompts.
    fn memory_kept(&self) -> usize {
        (self.core.context.facts.memory as usize / CARD_PARTS).max(LEAST_KEPT)
    }

    fn weight_bytes(&self, plans: &[Plan], source: &dyn WeightLoader) -> u64 {
        crate::weights::bytes_of_plans(plans, &self.core.policy, source)
    }

    fn info(&self) -> DeviceInfo {
        let free = self.core.context.memory().ok().map(|(free, _)| free);
        info(self.core.driver, self.index, &self.core.context.facts, free)
    }

    fn cache_problem(&self) -> Option<String> {
        self.core.kernels.cache_problem()
    }
}

/// Weights of a model in the layouts that kernels read, each uploaded once.
struct CudaModel {
    core: Arc<Core>,
    weights: Arc<dyn WeightLoader + Send + Sync>,
    kept: Mutex<WeightBank>,
}

impl ModelOnDevice for CudaModel {
    fn load(&self, plan: Plan) -> Result<Arc<dyn Executable>, DeviceError> {
        let core = &self.core;
        if plan.device() != core.context.name {
            return Err(DeviceError::Mixed {
                plan: plan.name().to_owned(),
                made_for: plan.device().to_owned(),
                got: core.context.name.clone(),
            });
        }
        core.context.bind()?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.fill(&plan, &core.context, &core.policy, &*self.weights)?;
        Ok(Arc::new(CudaExecutable::new(core.clone(), plan, &kept)?))
    }

    fn weight_bytes(&self) -> u64 {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }
}
