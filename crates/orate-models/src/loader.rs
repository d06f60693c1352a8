//! Weight files as the source of graph weights.

use orate_graph::{GraphError, Result, Shape, Tensor, WeightLoader};
use orate_weights::{DType, WeightSource};
use std::borrow::Cow;
use std::sync::Arc;

/// Lends a file's tensors to graphs as floats: `f32` without a copy where the file is aligned, everything else
/// expanded.
pub struct Loader(pub Arc<dyn WeightSource>);

impl WeightLoader for Loader {
    fn load(&self, name: &str) -> Result<Tensor<'_>> {
        let t = self
            .0
            .get(name)
            .map_err(|e| GraphError::Weight { name: name.to_owned(), problem: e.to_string() })?;
        let shape = Shape::from(t.shape.clone());
        if t.dtype == DType::F32 && cfg!(target_endian = "little") {
            // SAFETY: any four bytes are a valid f32; `align_to` only yields aligned ones.
            let (before, floats, after) = unsafe { t.bytes.align_to::<f32>() };
            if before.is_empty() && after.is_empty() {
                return Ok(Tensor { shape, strides: t.strides.clone(), data: Cow::Borrowed(floats) });
            }
        }
        Ok(Tensor::new(shape, t.to_f32()))
    }
}
