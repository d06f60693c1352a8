//! Checks of operands and weights that shape rules have in common. Each says what the op needs if it fails.

use crate::op::{ConvGeometry, Epilogue};
use crate::{DType, Shape, ValueInfo, Weight};

/// Says what the op needs, unless all is well.
pub(super) fn need<S: Into<String>>(ok: bool, what: impl FnOnce() -> S) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what().into()) }
}

/// A weight is a vector of `n`.
pub(super) fn vector(w: &Weight, n: usize) -> Result<(), String> {
    need(w.shape().dims() == [n], || format!("a last axis of {} for weight {w:?}", w.shape()))
}

/// The operands of a node that is not there yet.
pub(super) struct Operands<'a> {
    pub inputs: &'a [&'a ValueInfo],
}

impl<'a> Operands<'a> {
    /// There are `n`.
    pub fn count(&self, n: usize) -> Result<(), String> {
        need(self.inputs.len() == n, || format!("{n} operands"))
    }

    /// Shape of operand `i`, which is f32.
    pub fn float(&self, i: usize) -> Result<&'a Shape, String> {
        self.typed(i, |dtype| dtype == DType::F32).ok_or_else(|| format!("f32 as operand {i}"))
    }

    /// Shape of operand `i`: floats of any number of bits.
    pub fn kept(&self, i: usize) -> Result<&'a Shape, String> {
        self.typed(i, |dtype| dtype != DType::I32).ok_or_else(|| format!("floats as operand {i}"))
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
        need(self.has_integers(i, &[batch]), || format!("lengths i32 [{batch}] as operand {i}"))
    }

    /// Operand `i`, the last one, is a position for each batch row.
    pub fn first(&self, i: usize, batch: usize) -> Result<(), String> {
        let fits = self.has_integers(i, &[batch]) && self.inputs.len() == i + 1;
        need(fits, || format!("positions i32 [{batch}] as operand {i}, the last one"))
    }

    /// Whether operand `i` is i32 of this shape.
    pub fn has_integers(&self, i: usize, dims: &[usize]) -> bool {
        self.typed(i, |dtype| dtype == DType::I32).is_some_and(|shape| shape.dims() == dims)
    }

    fn typed(&self, i: usize, fits: impl FnOnce(DType) -> bool) -> Option<&'a Shape> {
        self.inputs.get(i).filter(|v| fits(v.dtype)).map(|v| &v.shape)
    }

    /// An epilogue fits the result `y`; operand `residual` is what it adds.
    pub fn epilogue_fits(&self, e: &Epilogue, y: &Shape, residual: usize) -> Result<(), String> {
        e.bias.iter().try_for_each(|bias| vector(bias, y.last()))?;
        need(!e.residual || self.float(residual)? == y, || format!("a residual of {y}"))
    }

    /// Operands before a residual: the sequence, and its history if the geometry asks for one.
    pub fn sequence(&self, g: &ConvGeometry) -> Result<usize, String> {
        if !g.has_history() {
            return Ok(1);
        }
        need(g.left == (g.taps - 1) * g.dilation, || "all padding before, where the history is")?;
        match self.float(0)?.dims() {
            [b, _, c] if self.float(1)?.dims() == [*b, g.left, *c] => Ok(2),
            [b, _, c] => Err(format!("a history [{b}, {}, {c}] as operand 1", g.left)),
            _ => Err("[B, T, C]".to_owned()),
        }
    }
}
