//! Interface of ops on the CPU. A file in `kernels/` implements [`OpKernel`] for each op, and
//! [`crate::table`] lists it.

use crate::operands::Operands;
use crate::weights::{Core, WeightBank};
use orate_graph::{Plan, Shape, Step, ValueInfo, Weight};
use std::sync::Arc;

/// Elements of a weight in logical order.
pub(crate) type Dense = Arc<Vec<f32>>;

/// An op with its static parameters.
pub(crate) trait OpKernel {
    /// Name of the kernel in plans.
    fn name(&self, core: &Core, inputs: &[&ValueInfo]) -> String;

    /// Fetches weights and sizes of a step, once, when a plan is loaded.
    fn bind(&self, step: &Binding<'_>) -> Call;
}

/// Function of a call.
type Run = dyn Fn(Operands<'_>) -> Result<(), Problem> + Send + Sync;

/// A bound step, called in every run.
pub(crate) struct Call {
    /// Floats of scratch memory that the call needs.
    pub scratch: usize,
    run: Box<Run>,
}

impl Call {
    /// Creates a call that cannot fail.
    pub fn new(run: impl Fn(Operands<'_>) + Send + Sync + 'static) -> Call {
        Call::fallible(move |o| {
            run(o);
            Ok(())
        })
    }

    /// Creates a call that may refuse the values of its operands.
    pub fn fallible(run: impl Fn(Operands<'_>) -> Result<(), Problem> + Send + Sync + 'static) -> Call {
        Call { scratch: 0, run: Box::new(run) }
    }

    /// Sets the scratch memory in floats.
    pub fn with_scratch(self, floats: usize) -> Call {
        Call { scratch: floats, ..self }
    }

    /// Runs the step.
    pub fn run(&self, operands: Operands<'_>) -> Result<(), Problem> {
        (self.run)(operands)
    }
}

/// Error of a call.
#[derive(Debug)]
pub(crate) enum Problem {
    /// An operand has a value that is not allowed.
    Operand(String),
    /// The scalar with this index was not set.
    NoScalar(usize),
}

impl From<String> for Problem {
    fn from(problem: String) -> Problem {
        Problem::Operand(problem)
    }
}

/// A step that is being bound. Operands are numbered as in the op.
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
    /// It does not have `N` axes, which shape inference has excluded.
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
    /// As for [`Binding::dims`].
    pub fn out_dims<const N: usize>(&self) -> [usize; N] {
        self.out().shape.dims().try_into().expect("shape inference checks the number of axes")
    }

    /// Elements of a weight in logical order.
    pub fn dense(&self, w: &Weight) -> Dense {
        self.bank.dense(w)
    }

    /// Number of rows per sequence of operand 0 that the kernel of a matmul is chosen for.
    pub fn rows_to_choose_for(&self) -> usize {
        let rows = match self.shape(0).dims() {
            [_, time, _] => *time,
            _ => self.shape(0).rows(),
        };
        self.plan.rows_to_choose_for(rows)
    }
}
