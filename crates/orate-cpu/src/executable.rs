//! A plan bound to weights: a list of calls that the thread team runs in order.

use crate::memory::CpuMemory;
use crate::op::{Binding, Call, Problem};
use crate::operands::{Places, View};
use crate::table;
use crate::weights::{Core, WeightBank};
use orate_graph::{DeviceError, Executable, Memory, Plan, Step};
use std::sync::Arc;
use std::time::Instant;

/// See [`Executable`].
pub(crate) struct CpuExecutable {
    core: Core,
    places: Places,
    calls: Vec<Call>,
    /// Scratch memory in floats: the maximum over all calls.
    scratch: usize,
}

impl CpuExecutable {
    pub(crate) fn new(core: Core, plan: Plan, bank: &WeightBank) -> Self {
        let bind = |step: &Step| {
            let binding = Binding { core: &core, plan: &plan, step, bank };
            table::kernel(&step.node.op).bind(&binding)
        };
        let calls: Vec<Call> = plan.steps().iter().map(bind).collect();
        let scratch = calls.iter().map(|call| call.scratch).max().unwrap_or(0);
        CpuExecutable { core, places: Places::new(plan), calls, scratch }
    }

    fn run_steps(&self, memory: &mut dyn Memory, mut after: impl FnMut(usize)) -> Result<(), DeviceError> {
        let mixed = |got: &str| DeviceError::Mixed {
            plan: self.plan().name().to_owned(),
            made_for: self.plan().device().to_owned(),
            got: got.to_owned(),
        };
        if !memory.as_any().is::<CpuMemory>() {
            return Err(mixed(memory.device()));
        }
        let memory = memory.as_any().downcast_mut::<CpuMemory>().expect("checked above");
        if !Arc::ptr_eq(&memory.device, &self.core.name) {
            return Err(mixed("another CPU device"));
        }
        self.core.team.home().check(self.plan().device())?;
        let mut view = View::new(memory, &self.places, self.scratch)?;
        for (i, call) in self.calls.iter().enumerate() {
            let operands = view.operands(i, self.core.isa, &self.core.team);
            call.run(operands).map_err(|problem| self.error(i, problem))?;
            after(i);
        }
        view.copy_results();
        Ok(())
    }

    fn error(&self, step: usize, problem: Problem) -> DeviceError {
        let plan = self.plan().name().to_owned();
        match problem {
            Problem::Operand(problem) => DeviceError::Operand { plan, step, problem },
            Problem::NoScalar(i) => DeviceError::Scalar { name: self.plan().scalars()[i].clone(), plan },
        }
    }
}

impl Executable for CpuExecutable {
    fn plan(&self) -> &Plan {
        self.places.plan()
    }

    fn run(&self, memory: &mut dyn Memory) -> Result<(), DeviceError> {
        self.run_steps(memory, |_| ())
    }

    fn profile(&self, memory: &mut dyn Memory) -> Result<Vec<f64>, DeviceError> {
        let mut times = Vec::with_capacity(self.calls.len());
        let mut last = Instant::now();
        self.run_steps(memory, |_| {
            let now = Instant::now();
            times.push((now - last).as_secs_f64());
            last = now;
        })?;
        Ok(times)
    }
}
