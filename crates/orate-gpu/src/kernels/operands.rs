//! A step on its way to kernels: where its operands are, what kernels are chosen by, and defines that several
//! have.

use crate::adapters::Matrices;
use crate::gpu::Gpu;
use crate::variant::Variant;
use crate::weights::Placed;
use orate_graph::{Activation, DType, DeviceClass, Place, Plan, PrecisionPolicy, Shape, Step, Value};

/// What kernels are chosen by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities<'a> {
    /// In which format matmuls are computed.
    pub policy: &'a PrecisionPolicy,
    pub subgroups: bool,
    /// Where matmuls in f16 may use them.
    pub matrices: Option<Matrices>,
    pub workgroup_bytes: u32,
    /// A software rasterizer.
    pub software: bool,
}

impl<'a> Abilities<'a> {
    pub fn of(gpu: &'a Gpu) -> Self {
        Abilities {
            policy: &gpu.policy,
            subgroups: gpu.subgroups,
            matrices: gpu.matrices,
            workgroup_bytes: gpu.workgroup_bytes,
            software: gpu.info.class == DeviceClass::Software,
        }
    }
}

/// A step with the places of its operands.
pub(crate) struct Operands<'a> {
    pub plan: &'a Plan,
    pub step: &'a Step,
    /// Where its weights are.
    pub weights: &'a Placed,
    pub can: Abilities<'a>,
}

impl Operands<'_> {
    pub fn shape_of(&self, v: Value) -> &Shape {
        &self.plan.info(v).shape
    }

    /// Shape of operand `i`.
    pub fn shape(&self, i: usize) -> &Shape {
        self.shape_of(self.step.node.inputs[i])
    }

    /// Element type of operand `i`.
    pub fn dtype(&self, i: usize) -> DType {
        self.plan.info(self.step.node.inputs[i]).dtype
    }

    /// Place of operand `i`.
    pub fn place(&self, i: usize) -> Place {
        self.at(self.step.node.inputs[i])
    }

    pub fn at(&self, v: Value) -> Place {
        self.plan.place(v)
    }

    /// Place of the last operand.
    pub fn last(&self) -> Place {
        self.place(self.step.node.inputs.len() - 1)
    }

    pub fn out_shape(&self) -> &Shape {
        self.shape_of(self.step.node.output)
    }

    pub fn out(&self) -> Place {
        self.at(self.step.node.output)
    }
}

/// The defines that say how rows of a cache are kept.
pub(super) fn cache_rows(v: Variant, dtype: DType, fours: bool) -> Variant {
    v.flag("COMPACT", dtype.is_compact())
        .flag("F16", dtype == DType::F16)
        .flag("Q8_0", dtype == DType::Q8_0)
        .flag("FOURS", fours)
}

/// The defines that choose an activation, and whether there is one.
pub(super) fn activation(v: Variant, a: Option<&Activation>) -> Variant {
    let number = a.map(Activation::number);
    let flag = |v: Variant, of: Activation<()>| v.flag(of.constant(), number == Some(of.number()));
    Activation::all(()).into_iter().fold(v.flag("ACTIVATE", a.is_some()), flag)
}
