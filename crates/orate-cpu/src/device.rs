//! The CPU as a device: selects the kernel of each op and loads model weights once.

use crate::executable::CpuExecutable;
use crate::memory::CpuMemory;
use crate::table;
use crate::weights::{self, Core, WeightBank};
use crate::{Isa, Moments, Team};
use orate_graph::{
    Device, DeviceClass, DeviceError, DeviceInfo, DeviceKind, Executable, MATRIX_TILES, Memory,
    ModelOnDevice, Op, Plan, Precision, PrecisionPolicy, Target, ValueInfo, WeightLoader,
};
use std::sync::{Arc, Mutex, PoisonError};

/// The CPU: an instruction set and a team of threads, shared by all models and sessions.
pub struct CpuDevice {
    core: Core,
}

impl CpuDevice {
    /// Creates a device with `threads` threads (including the caller of a run) and an instruction set.
    ///
    /// # Errors
    /// `threads` is 0, or the system refuses to start them.
    pub fn new(threads: usize, isa: Isa) -> Result<CpuDevice, DeviceError> {
        let setup = |problem: String| DeviceError::Setup { device: "cpu".to_owned(), problem };
        if threads == 0 || threads > 1024 {
            return Err(setup(format!("{threads} threads; choose 1 to 1024")));
        }
        let team = Team::new(threads).map_err(|e| setup(format!("cannot start {threads} threads: {e}")))?;
        Ok(CpuDevice {
            core: Core {
                isa,
                team: Arc::new(team),
                policy: Arc::default(),
                moments: None,
                name: "cpu".into(),
            },
        })
    }

    /// Returns the device with another weight format for matmuls. Kernels widen `f16` and `bf16` on load;
    /// weights in blocks are multiplied as integers with activations rounded to 8 bits. With these and with
    /// bf16, attention that follows the weights is multiplied in bf16 by processors that can. Accumulation is
    /// f32.
    ///
    /// # Errors
    /// The CPU does not support the format.
    pub fn with_precision(mut self, policy: PrecisionPolicy) -> Result<CpuDevice, DeviceError> {
        if policy.precision == Precision::Tf32 {
            let problem =
                "the CPU computes in f32, f16, bf16 and formats of blocks such as q8_0; tf32 is for CUDA"
                    .to_owned();
            return Err(DeviceError::Setup { device: "cpu".to_owned(), problem });
        }
        self.core.policy = Arc::new(policy);
        Ok(self)
    }

    /// Returns the device with measured inputs of matmuls, for calibration. It is slower.
    pub fn with_moments(mut self, moments: Arc<Moments>) -> CpuDevice {
        self.core.moments = Some(moments);
        self
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.core.isa
    }

    /// Thread team.
    pub fn team(&self) -> &Team {
        &self.core.team
    }
}

impl Target for CpuDevice {
    fn name(&self) -> String {
        self.core.name.to_string()
    }

    fn weight_formats(&self) -> PrecisionPolicy {
        (*self.core.policy).clone()
    }

    fn kernel(&self, op: &Op, inputs: &[&ValueInfo]) -> Result<String, String> {
        Ok(table::kernel(op).name(&self.core, inputs))
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

    /// Little, so that memory does not depend on earlier texts: temporaries grow with the text, and mapping
    /// them again costs at most a few percent of the time for a long sentence.
    fn memory_kept(&self) -> usize {
        1 << 20
    }

    fn weight_bytes(&self, plans: &[Plan], _source: &dyn WeightLoader) -> u64 {
        weights::bytes_of(plans, &self.core)
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            kind: DeviceKind::Cpu,
            index: 0,
            name: processor_name(),
            class: DeviceClass::Cpu,
            memory: None,
            free_memory: None,
            driver: format!("{} of {}", self.core.isa, list(&Isa::available())),
            features: [format!("{} threads", self.core.team.threads())]
                .into_iter()
                .chain(self.core.isa.has_tiles().then(|| MATRIX_TILES.to_owned()))
                .collect(),
            card: None,
        }
    }

    fn details(&self) -> Vec<String> {
        let threads = self.core.team.threads();
        vec![self.core.isa.to_string(), format!("{threads} thread{}", if threads == 1 { "" } else { "s" })]
    }
}

fn list(all: &[Isa]) -> String {
    all.iter().map(Isa::to_string).collect::<Vec<_>>().join(", ")
}

/// CPU model name from the system, or else the architecture.
fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name")?.split(':').nth(1));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |n| n.trim().to_owned())
}

/// Weights of a model in the layouts that kernels read, each packed once.
struct CpuModel {
    core: Core,
    weights: Arc<dyn WeightLoader + Send + Sync>,
    kept: Mutex<WeightBank>,
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
        self.core.team.home().check(plan.device())?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.fill(&plan, &self.core, &self.weights)?;
        Ok(Arc::new(CpuExecutable::new(self.core.clone(), plan, &kept)))
    }

    fn weight_bytes(&self) -> u64 {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }
}
