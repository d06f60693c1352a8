//! Operands of a step during lowering, and numeric constants of types.

use super::work::Pointer;
use crate::driver::Facts;
use crate::weights::{Form, WeightBank};
use orate_graph::{Activation, DType, First, Plan, PrecisionPolicy, Scalar, Shape, Step, Value, Weight};

/// A step with the places of its operands.
pub(crate) struct Operands<'a> {
    pub plan: &'a Plan,
    pub bank: &'a WeightBank,
    pub policy: &'a PrecisionPolicy,
    pub facts: &'a Facts,
    pub step: &'a Step,
}

impl Operands<'_> {
    pub fn shape_of(&self, v: Value) -> &Shape {
        &self.plan.info(v).shape
    }

    /// Shape of operand `i`.
    pub fn shape(&self, i: usize) -> &Shape {
        self.shape_of(self.step.node.inputs[i])
    }

    pub fn out_shape(&self) -> &Shape {
        self.shape_of(self.step.node.output)
    }

    /// Element type of operand `i`.
    pub fn dtype(&self, i: usize) -> DType {
        self.plan.info(self.step.node.inputs[i]).dtype
    }

    /// Element type of the result.
    pub fn out_type(&self) -> DType {
        self.plan.info(self.step.node.output).dtype
    }

    pub fn at(&self, v: Value) -> Pointer {
        Pointer::Place(self.plan.place(v))
    }

    /// Place of operand `i`.
    pub fn x(&self, i: usize) -> Pointer {
        self.at(self.step.node.inputs[i])
    }

    /// Place of operand `i`, if there is one.
    pub fn optional(&self, i: usize) -> Pointer {
        self.step.node.inputs.get(i).map_or(Pointer::Null, |v| self.at(*v))
    }

    pub fn out(&self) -> Pointer {
        self.at(self.step.node.output)
    }

    pub fn dense(&self, w: &Weight) -> Pointer {
        Pointer::Weight(self.bank.get(w, Form::Dense))
    }

    /// Weights of an activation that has some.
    pub fn slope(&self, a: Option<&Activation>) -> Pointer {
        a.and_then(Activation::slope).map_or(Pointer::Null, |w| self.dense(w))
    }

    pub fn scalar(&self, s: Scalar) -> Pointer {
        Pointer::Scalar(s.index())
    }

    /// Position of the first row: a place on the device, or a number.
    pub fn first(&self, first: First) -> (Pointer, usize) {
        match first {
            First::Const(at) => (Pointer::Null, at),
            First::Operand => (self.step.node.inputs.last().map_or(Pointer::Null, |v| self.at(*v)), 0),
        }
    }
}

/// Number of an activation in kernels; 0 for none.
pub(super) fn activation_number(a: Option<&Activation>) -> u32 {
    a.map_or(0, Activation::number)
}

/// Number of an element type, as in `kernels/cache_rows.cuh` and `kernels/layer_norm.cu`.
pub(super) fn cache_type(dtype: DType) -> u32 {
    match dtype {
        DType::F32 | DType::I32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::Q8_0 => 3,
    }
}
