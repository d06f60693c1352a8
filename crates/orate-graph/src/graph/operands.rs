//! Checks of operands and weights that shape rules have in common. Each says what the op needs if it fails.

use super::ValueInfo;
use crate::op::{ConvGeometry, Epilogue};
use crate::{DType, Shape, Weight};

/// The operands of a node that is not there yet.
pub(super) struct Operands<'a> {
    pub inputs: &'a [&'a ValueInfo],
}

impl<'a> Operands<'a> {
    /// There are `n`.
    pub fn count(&self, n: usize) -> Result<(), String> {
        if self.inputs.len() == n { Ok(()) } else { Err(format!("{n} operands")) }
    }

    /// Shape of operand `i`, which is f32.
    pub fn float(&self, i: usize) -> Result<&'a Shape, String> {
        match self.inputs.get(i) {
            Some(v) if v.dtype == DType::F32 => Ok(&v.shape),
            _ => Err(format!("f32 as operand {i}")),
        }
    }

    /// Shape of operand `i`: floats of any number of bits.
    pub fn kept(&self, i: usize) -> Result<&'a Shape, String> {
        match self.inputs.get(i) {
            Some(v) if v.dtype != DType::I32 => Ok(&v.shape),
            _ => Err(format!("floats as operand {i}")),
        }
    }

    /// Shape of operand `i` of an op that only moves elements, and takes integers too.
    pub fn any(&self, i: usize) -> Result<&'a Shape, String> {
        match self.inputs.get(i) {
            Some(v) if v.dtype.is_compact() => Err(format!("f32 or i32 as operand {i}")),
            Some(v) if v.dtype == self.inputs[0].dtype => Ok(&v.shape),
            Some(_) => Err(format!("{} as operand {i}", self.inputs[0].dtype)),
            None => Err("an operand".to_owned()),
        }
    }

    /// Operand `i` is a length for each batch row.
    pub fn lens(&self, i: usize, batch: usize) -> Result<(), String> {
        match self.inputs.get(i) {
            Some(v) if v.dtype == DType::I32 && v.shape.dims() == [batch] => Ok(()),
            _ => Err(format!("lengths i32 [{batch}] as operand {i}")),
        }
    }

    /// Operand `i`, the last one, is a position for each batch row.
    pub fn first(&self, i: usize, batch: usize) -> Result<(), String> {
        match self.inputs.get(i) {
            Some(v) if v.dtype == DType::I32 && v.shape.dims() == [batch] && self.inputs.len() == i + 1 => {
                Ok(())
            }
            _ => Err(format!("positions i32 [{batch}] as operand {i}, the last one")),
        }
    }

    /// An epilogue fits a result of this shape with `n` channels; operand `residual` is what it adds.
    pub fn epilogue_fits(
        &self,
        e: &Epilogue,
        n: usize,
        shape: &Shape,
        residual: usize,
    ) -> Result<(), String> {
        if let Some(b) = &e.bias {
            vector(b, n)?;
        }
        if e.residual && self.float(residual)? != shape {
            return Err(format!("a residual of {shape}"));
        }
        Ok(())
    }

    /// Operands before a residual: the sequence, and its history if the geometry asks for one.
    pub fn sequence(&self, g: &ConvGeometry) -> Result<usize, String> {
        if !g.history {
            return Ok(1);
        }
        match self.float(0)?.dims() {
            [b, _, c] if self.float(1)?.dims() == [*b, g.left, *c] => Ok(2),
            [b, _, c] => Err(format!("a history [{b}, {}, {c}] as operand 1", g.left)),
            _ => Err("[B, T, C]".to_owned()),
        }
    }
}

/// A weight is a vector of `n`.
pub(super) fn vector(w: &Weight, n: usize) -> Result<(), String> {
    if w.shape().dims() == [n] {
        Ok(())
    } else {
        Err(format!("a last axis of {} for weight {w:?}", w.shape()))
    }
}
