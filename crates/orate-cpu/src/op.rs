//! How an op runs on the CPU. A file of `kernels/` implements [`OpKernel`] for it, and [`crate::table`] has
//! its line.

use crate::operands::Operands;
use crate::weights::{Core, WeightBank};
use orate_graph::{Plan, Shape, Step, ValueInfo, Weight};
use std::sync::Arc;

/// Elements of a weight in logical order.
pub(crate) type Dense = Arc<Vec<f32>>;

/// An op with what never changes in it.
pub(crate) trait OpKernel {
    /// Name of the kernel in plans.
    fn name(&self, core: &Core, inputs: &[&ValueInfo]) -> String;

    /// Fetches the weights and sizes of a step. Happens once, when a plan is loaded.
    fn bind(&self, step: &Binding<'_>) -> Call;
}

/// What a call runs.
type Run = dyn Fn(Operands<'_>) -> Result<(), Problem> + Send + Sync;

/// A step that is bound: called on every run.
pub(crate) struct Call {
    /// Floats of scratch memory that it needs.
    pub scratch: usize,
    run: Box<Run>,
}

impl Call {
    /// A call that cannot fail.
    pub fn new(run: impl Fn(Operands<'_>) + Send + Sync + 'static) -> Call {
        Call::fallible(move |o| {
            run(o);
            Ok(())
        })
    }

    /// A call that refuses what some operands may hold.
    pub fn fallible(run: impl Fn(Operands<'_>) -> Result<(), Problem> + Send + Sync + 'static) -> Call {
        Call { scratch: 0, run: Box::new(run) }
    }

    /// The same with scratch memory.
    pub fn with_scratch(self, floats: usize) -> Call {
        Call { scratch: floats, ..self }
    }

    /// Runs the step.
    pub fn run(&self, operands: Operands<'_>) -> Result<(), Problem> {
        (self.run)(operands)
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Problem {
    /// An operand holds what it may not.
    Operand(String),
    /// The scalar with this index was not set.
    NoScalar(usize),
}

impl From<String> for Problem {
    fn from(problem: String) -> Problem {
        Problem::Operand(problem)
    }
}

/// A step that is being bound. Operands are counted as the op counts them.
pub(crate) struct Binding<'a> {
    pub core: &'a Core,
    pub plan: &'a Plan,
    pub step: &'a Step,
    pub bank: &'a WeightBank,
}

impl<'a> Binding<'a> {
    /// Number of operands.
    pub fn inputs(&self) -> usize {
        self.step.node.inputs.len()
    }

    /// Type and shape of operand `i`.
    pub fn input(&self, i: usize) -> &'a ValueInfo {
        self.plan.info(self.step.node.inputs[i])
    }

    /// Shape of operand `i`.
    pub fn shape(&self, i: usize) -> &'a Shape {
        &self.input(i).shape
    }

    /// Extents of operand `i`.
    ///
    /// # Panics
    /// It has not `N` axes; shape inference has checked that it does.
    pub fn dims<const N: usize>(&self, i: usize) -> [usize; N] {
        self.shape(i).dims().try_into().expect("shape inference checks the number of axes")
    }

    /// Type and shape of the result.
    pub fn out(&self) -> &'a ValueInfo {
        self.plan.info(self.step.node.output)
    }

    /// Extents of the result.
    ///
    /// # Panics
    /// As [`Binding::dims`].
    pub fn out_dims<const N: usize>(&self) -> [usize; N] {
        self.out().shape.dims().try_into().expect("shape inference checks the number of axes")
    }

    /// Elements of a weight in logical order.
    pub fn dense(&self, w: &Weight) -> Dense {
        self.bank.dense(w)
    }

    /// Rows of each sequence of operand 0 that the kernel of a matmul is chosen for.
    pub fn rows_to_choose_for(&self) -> usize {
        let rows = match self.shape(0).dims() {
            [_, time, _] => *time,
            _ => self.shape(0).rows(),
        };
        self.plan.rows_to_choose_for(rows)
    }
}
