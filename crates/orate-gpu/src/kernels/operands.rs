//! Operands of a step during lowering, properties that select kernels, and shared defines.

use crate::adapters::Matrices;
use crate::gpu::Gpu;
use crate::variant::Variant;
use crate::weights::Placed;
use orate_graph::{Activation, DType, DeviceClass, Place, Plan, PrecisionPolicy, Shape, Step, Value};

/// Device properties that select kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities<'a> {
    /// Precision of matmuls.
    pub policy: &'a PrecisionPolicy,
    pub subgroups: bool,
    /// Threads per subgroup, if all have the same size.
    pub lanes: Option<usize>,
    /// Cooperative matrices for f16 matmuls, if available.
    pub matrices: Option<Matrices>,
    pub workgroup_bytes: u32,
    /// Most threads of a workgroup.
    pub workgroup_threads: u32,
    /// Whether this is a software rasterizer.
    pub software: bool,
}

impl<'a> Abilities<'a> {
    pub fn of(gpu: &'a Gpu) -> Self {
        Abilities {
            policy: &gpu.policy,
            subgroups: gpu.subgroups,
            lanes: gpu.lanes,
            matrices: gpu.matrices,
            workgroup_bytes: gpu.workgroup_bytes,
            workgroup_threads: gpu.workgroup_threads,
            software: gpu.info.class == DeviceClass::Software,
        }
    }
}

/// A step with the places of its operands.
pub(crate) struct Operands<'a> {
    pub plan: &'a Plan,
    pub step: &'a Step,
    /// Places of its weights.
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

    /// Element type of the result.
    pub fn out_type(&self) -> DType {
        self.plan.info(self.step.node.output).dtype
    }

    pub fn out(&self) -> Place {
        self.at(self.step.node.output)
    }
}

/// Defines for the format of cache rows, with heads of some channels if memory is bound as vectors of four.
pub(super) fn cache_rows(v: Variant, dtype: DType, heads: Option<usize>) -> Variant {
    let eights = matches!(dtype, DType::F16 | DType::BF16) && heads.is_some_and(|d| d.is_multiple_of(8));
    v.flag("COMPACT", dtype.is_compact())
        .flag("F16", dtype == DType::F16)
        .flag("Q8_0", dtype == DType::Q8_0)
        .flag("FOURS", heads.is_some())
        .flag("EIGHTS", eights)
}

/// Defines that select an activation, and whether there is one.
pub(super) fn activation(v: Variant, a: Option<&Activation>) -> Variant {
    let number = a.map(Activation::number);
    let flag = |v: Variant, of: Activation<()>| v.flag(of.constant(), number == Some(of.number()));
    Activation::all(()).into_iter().fold(v.flag("ACTIVATE", a.is_some()), flag)
}
