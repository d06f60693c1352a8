//! Weight files as the source of graph weights.

use orate_graph::{Blocks, GraphError, Halves, Precision, Result, Shape, Tensor, WeightLoader};
use orate_weights::{DType, TensorRef, WeightSource};
use std::borrow::Cow;
use std::sync::Arc;

/// The format in which matmuls compute with blocks of a type as they are.
pub fn format_of(dtype: DType) -> Option<Precision> {
    Some(match dtype {
        DType::Q8_0 => Precision::Q8_0,
        DType::Q6K => Precision::Q6K,
        DType::Q5K => Precision::Q5K,
        DType::Q4K => Precision::Q4K,
        DType::Q4_0 => Precision::Q4_0,
        _ => return None,
    })
}

/// Lends a file's tensors to graphs as floats: `f32` without a copy where the file is aligned, everything
/// else expanded.
pub struct Loader(pub Arc<dyn WeightSource>);

impl WeightLoader for Loader {
    fn load(&self, name: &str) -> Result<Tensor<'_>> {
        if let Some(lent) = self.lend(name) {
            return Ok(lent);
        }
        let t = self
            .0
            .get(name)
            .map_err(|e| GraphError::Weight { name: name.to_owned(), problem: e.to_string() })?;
        Ok(Tensor::new(t.shape.clone(), t.to_f32()))
    }

    fn lend(&self, name: &str) -> Option<Tensor<'_>> {
        let is_float = |t: &TensorRef<'_>| t.dtype == DType::F32 && cfg!(target_endian = "little");
        let t = self.0.get(name).ok().filter(is_float)?;
        // SAFETY: any four bytes are a valid f32; `align_to` only yields aligned ones.
        let (before, floats, after) = unsafe { t.bytes.align_to::<f32>() };
        let is_aligned = before.is_empty() && after.is_empty();
        is_aligned.then(|| Tensor { shape: t.shape.into(), strides: t.strides, data: Cow::Borrowed(floats) })
    }

    fn read_row(&self, name: &str, index: usize, out: &mut [f32]) -> Result<bool, GraphError> {
        let wrong = |problem: String| GraphError::Weight { name: name.to_owned(), problem };
        let t = self.0.get(name).map_err(|e| wrong(e.to_string()))?;
        if index >= t.shape.first().copied().unwrap_or(0) {
            return Err(wrong(format!("has no row {index}")));
        }
        let Some(row) = t.at(index) else { return Ok(false) };
        if row.len() != out.len() {
            return Err(wrong(format!("rows of {} numbers, {} are needed", row.len(), out.len())));
        }
        row.read_into(out);
        Ok(true)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        Some(self.0.info(name)?.shape.into())
    }

    fn halves(&self, name: &str) -> Option<Halves<'_>> {
        let t = self.0.get(name).ok().filter(|t| t.is_contiguous() && cfg!(target_endian = "little"))?;
        let dtype = match t.dtype {
            DType::F16 => orate_graph::DType::F16,
            DType::BF16 => orate_graph::DType::BF16,
            _ => return None,
        };
        Some(Halves { dtype, shape: t.shape.into(), bytes: t.bytes })
    }

    fn blocks(&self, name: &str) -> Option<Blocks<'_>> {
        let t = self.0.get(name).ok().filter(TensorRef::is_contiguous)?;
        let format = format_of(t.dtype)?;
        let whole = t.shape.last().is_some_and(|n| n.is_multiple_of(format.block()));
        whole.then(|| Blocks { format, shape: t.shape.into(), bytes: t.bytes })
    }

    fn release(&self, name: &str) {
        self.0.release(name);
    }
}
