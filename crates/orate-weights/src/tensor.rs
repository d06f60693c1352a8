//! Borrowed tensors, and how to read them as `f32`.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::{DType, blocks};

/// Dtype and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Element type.
    pub dtype: DType,
    /// Sizes of the axes, slowest first.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A borrowed tensor, usually in a mapped file.
///
/// `bytes` need not be aligned: ONNX and safetensors files do not promise it. Quantized tensors are
/// contiguous and their blocks lie along the last axis.
#[derive(Clone, Debug)]
pub struct TensorRef<'a> {
    /// Element type.
    pub dtype: DType,
    /// Sizes of the axes, slowest first.
    pub shape: Vec<usize>,
    /// Distance between neighbors along each axis, in elements.
    pub strides: Vec<usize>,
    /// The encoded elements.
    pub bytes: &'a [u8],
}

impl<'a> TensorRef<'a> {
    /// A contiguous tensor, or `None` if `bytes` does not have exactly the length that dtype and shape ask
    /// for.
    pub fn new(dtype: DType, shape: Vec<usize>, bytes: &'a [u8]) -> Option<Self> {
        let len = element_count(&shape)?;
        if dtype.bytes_for(len)? != bytes.len() {
            return None;
        }
        let strides = contiguous_strides(&shape);
        Some(Self { dtype, shape, strides, bytes })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Dtype and shape without the bytes.
    pub fn info(&self) -> TensorInfo {
        TensorInfo { dtype: self.dtype, shape: self.shape.clone() }
    }

    /// Whether elements follow each other in memory in logical order.
    pub fn is_contiguous(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut expected = 1;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 && stride != expected {
                return false;
            }
            expected *= size;
        }
        true
    }

    /// The same elements with another shape, as `[out, in, 1]` read as `[out, in]`. `None` if the tensor is
    /// not contiguous or the element counts differ.
    pub fn reshape(mut self, shape: &[usize]) -> Option<Self> {
        if !self.is_contiguous() || element_count(shape)? != self.len() {
            return None;
        }
        self.shape = shape.to_vec();
        self.strides = contiguous_strides(shape);
        Some(self)
    }

    /// Swaps the last two axes without copying.
    ///
    /// # Panics
    ///
    /// If the tensor has fewer than two axes, or is quantized: its blocks would no longer lie along the last
    /// axis.
    pub fn transpose(mut self) -> Self {
        let n = self.shape.len();
        assert!(n >= 2, "transpose needs two axes, the shape is {:?}", self.shape);
        assert!(!self.dtype.is_quantized(), "{} tensors cannot be transposed in place", self.dtype);
        self.shape.swap(n - 2, n - 1);
        self.strides.swap(n - 2, n - 1);
        self
    }

    /// What stands at `index` of the first axis. `None` if there is no such place, the tensor is not
    /// contiguous, or a block of numbers straddles its ends.
    pub fn at(&self, index: usize) -> Option<TensorRef<'a>> {
        let (first, rest) = self.shape.split_first()?;
        let len = element_count(rest)?;
        let bytes = self.dtype.bytes_for(len)?;
        let whole = self.is_contiguous() && bytes.checked_mul(*first)? == self.bytes.len();
        if index >= *first || !whole {
            return None;
        }
        TensorRef::new(self.dtype, rest.to_vec(), &self.bytes[index * bytes..][..bytes])
    }

    /// `count` indices of the first axis, from `first` on. `None` as for [`TensorRef::at`].
    pub fn rows(&self, first: usize, count: usize) -> Option<TensorRef<'a>> {
        let (all, rest) = self.shape.split_first()?;
        let row = self.dtype.bytes_for(element_count(rest)?)?;
        let end = first.checked_add(count).filter(|end| end <= all)?;
        if !self.is_contiguous() || row.checked_mul(*all)? != self.bytes.len() {
            return None;
        }
        TensorRef::new(self.dtype, [&[count], rest].concat(), &self.bytes[first * row..end * row])
    }

    /// Returns all elements in logical order as `f32`, dequantized if needed.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.len()];
        self.read_into(&mut out);
        out
    }

    /// Writes all elements in logical order as `f32`. Integers are converted.
    ///
    /// # Panics
    ///
    /// If `out` does not have [`len`](Self::len) elements, or the type cannot be read
    /// ([`WeightSource::get`](crate::WeightSource::get) returns no such tensor).
    pub fn read_into(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.len(), "output length for shape {:?}", self.shape);
        let contiguous = self.is_contiguous();
        match self.dtype {
            DType::F16 if contiguous => {
                convert(self.bytes, out, f16::from_le_bytes, |from, to| from.convert_to_f32_slice(to));
            }
            DType::BF16 if contiguous => {
                convert(self.bytes, out, bf16::from_le_bytes, |from, to| from.convert_to_f32_slice(to));
            }
            DType::F32 => self.gather(out, contiguous, f32::from_le_bytes),
            DType::F64 => self.gather(out, contiguous, |b| f64::from_le_bytes(b) as f32),
            DType::F16 => self.gather(out, contiguous, |b| f16::from_le_bytes(b).to_f32()),
            DType::BF16 => self.gather(out, contiguous, |b| bf16::from_le_bytes(b).to_f32()),
            DType::I64 => self.gather(out, contiguous, |b| i64::from_le_bytes(b) as f32),
            DType::I32 => self.gather(out, contiguous, |b| i32::from_le_bytes(b) as f32),
            DType::U8 => self.gather(out, contiguous, |[b]: [u8; 1]| f32::from(b)),
            blocks => {
                assert!(contiguous, "{blocks} tensors are contiguous");
                blocks::dequantize(blocks, self.bytes, out);
            }
        }
    }

    /// Returns all elements of an integer tensor in logical order, exactly. `None` for other dtypes.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        let (mut out, contiguous) = (vec![0; self.len()], self.is_contiguous());
        match self.dtype {
            DType::I64 => self.gather(&mut out, contiguous, i64::from_le_bytes),
            DType::I32 => self.gather(&mut out, contiguous, |b| i32::from_le_bytes(b).into()),
            DType::U8 => self.gather(&mut out, contiguous, |[b]: [u8; 1]| b.into()),
            _ => return None,
        }
        Some(out)
    }

    /// Reads `N`-byte elements at any strides.
    fn gather<T, const N: usize>(&self, out: &mut [T], contiguous: bool, decode: impl Fn([u8; N]) -> T) {
        let elements = self.bytes.as_chunks::<N>().0;
        if contiguous {
            for (to, &from) in out.iter_mut().zip(&elements[..self.len()]) {
                *to = decode(from);
            }
            return;
        }
        // Everything but the last two axes is walked with an odometer; the two are read in square tiles, so
        // that a transposed matrix touches each cache line only a few times.
        let n = self.shape.len();
        let axis = |i: usize| (self.shape[i], self.strides[i]);
        let (columns, column_stride) = axis(n - 1);
        let (rows, row_stride) = if n >= 2 { axis(n - 2) } else { (1, 0) };
        let outer = n.saturating_sub(2);
        let mut position = vec![0; outer];
        for plane in out.chunks_exact_mut(rows * columns) {
            let base: usize = position.iter().zip(&self.strides).map(|(p, s)| p * s).sum();
            const TILE: usize = 16;
            for row0 in (0..rows).step_by(TILE) {
                for column0 in (0..columns).step_by(TILE) {
                    for row in row0..rows.min(row0 + TILE) {
                        for column in column0..columns.min(column0 + TILE) {
                            let from = elements[base + row * row_stride + column * column_stride];
                            plane[row * columns + column] = decode(from);
                        }
                    }
                }
            }
            for i in (0..outer).rev() {
                position[i] += 1;
                if position[i] < self.shape[i] {
                    break;
                }
                position[i] = 0;
            }
        }
    }
}

/// Converts 16-bit floats through an aligned buffer, so that the vector instructions of `half` apply.
fn convert<T: Copy + Default>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn([u8; 2]) -> T,
    convert: impl Fn(&[T], &mut [f32]),
) {
    const STEP: usize = 256;
    let mut buffer = [T::default(); STEP];
    let elements = &bytes.as_chunks::<2>().0[..out.len()];
    for (to, from) in out.chunks_mut(STEP).zip(elements.chunks(STEP)) {
        let buffer = &mut buffer[..to.len()];
        for (slot, &bits) in buffer.iter_mut().zip(from) {
            *slot = decode(bits);
        }
        convert(buffer, to);
    }
}

/// Product of the sizes, or `None` on overflow.
pub(crate) fn element_count(shape: &[usize]) -> Option<usize> {
    // Checked in an order that notices an overflow even when another axis is empty.
    let mut count: usize = 1;
    for &size in shape.iter().filter(|&&size| size != 0) {
        count = count.checked_mul(size)?;
    }
    Some(if shape.contains(&0) { 0 } else { count })
}

fn contiguous_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32_bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn length_must_match() {
        let bytes = [0; 24];
        assert!(TensorRef::new(DType::F32, vec![2, 3], &bytes).is_some());
        assert!(TensorRef::new(DType::F32, vec![], &bytes[..4]).is_some());
        assert!(TensorRef::new(DType::F32, vec![0, 3], &[]).is_some());
        assert!(TensorRef::new(DType::F32, vec![7], &bytes).is_none());
        assert!(TensorRef::new(DType::F32, vec![usize::MAX, 2, 0], &[]).is_none());
        assert!(TensorRef::new(DType::Q8_0, vec![16], &bytes[..17]).is_none());
    }

    #[test]
    fn transposed_view_reads_in_logical_order() {
        for (rows, columns) in [(1, 1), (2, 3), (17, 33), (64, 5)] {
            let values: Vec<f32> = (0..2 * rows * columns).map(|i| i as f32).collect();
            let mut bytes = vec![0xff]; // one byte in front: views must not rely on alignment
            bytes.extend(f32_bytes(&values));
            let view = TensorRef::new(DType::F32, vec![2, rows, columns], &bytes[1..]).unwrap();
            assert_eq!(view.to_f32(), values);
            let turned = view.transpose();
            assert_eq!(turned.shape, [2, columns, rows]);
            assert_eq!(turned.is_contiguous(), rows == 1 || columns == 1);
            let read = turned.to_f32();
            for (b, r, c) in
                (0..2).flat_map(|b| (0..rows).flat_map(move |r| (0..columns).map(move |c| (b, r, c))))
            {
                assert_eq!(read[(b * columns + c) * rows + r], values[(b * rows + r) * columns + c]);
            }
            assert_eq!(turned.transpose().to_f32(), values);
        }
    }

    #[test]
    fn every_dtype_is_read() {
        let values = [0.0, 1.0, 2.0, 100.0];
        let cases: [(DType, Vec<u8>); 7] = [
            (DType::F64, values.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect()),
            (DType::F32, f32_bytes(&values)),
            (DType::F16, values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect()),
            (DType::BF16, values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect()),
            (DType::I64, values.iter().flat_map(|&v| (v as i64).to_le_bytes()).collect()),
            (DType::I32, values.iter().flat_map(|&v| (v as i32).to_le_bytes()).collect()),
            (DType::U8, values.iter().map(|&v| v as u8).collect()),
        ];
        for (dtype, bytes) in cases {
            let view = TensorRef::new(dtype, vec![2, 2], &bytes).unwrap();
            assert_eq!(view.to_f32(), values, "{dtype}");
            assert_eq!(view.transpose().to_f32(), [0.0, 2.0, 1.0, 100.0], "{dtype} transposed");
        }
    }

    #[test]
    fn integers_are_read_exactly() {
        let values = [i64::MIN, -1, (1 << 53) + 1, i64::MAX];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = TensorRef::new(DType::I64, vec![2, 2], &bytes).unwrap();
        assert_eq!(view.to_i64().unwrap(), values);
        assert_eq!(view.transpose().to_i64().unwrap(), [values[0], values[2], values[1], values[3]]);
        let view = TensorRef::new(DType::I32, vec![1], &[0xfe, 0xff, 0xff, 0xff]).unwrap();
        assert_eq!(view.to_i64().unwrap(), [-2]);
        assert_eq!(TensorRef::new(DType::U8, vec![1], &[0xff]).unwrap().to_i64().unwrap(), [255]);
        assert!(TensorRef::new(DType::F32, vec![1], &[0; 4]).unwrap().to_i64().is_none());
    }

    #[test]
    fn half_floats_of_any_length() {
        for len in [0, 1, 7, 255, 256, 257, 1000] {
            let bytes: Vec<u8> = (0..len).flat_map(|i| f16::from_f32(i as f32).to_le_bytes()).collect();
            let view = TensorRef::new(DType::F16, vec![len], &bytes).unwrap();
            assert!(view.to_f32().iter().enumerate().all(|(i, &v)| v == i as f32));
        }
    }

    #[test]
    fn reshape_keeps_the_elements() {
        let bytes = f32_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let view = TensorRef::new(DType::F32, vec![2, 3, 1], &bytes).unwrap();
        assert_eq!(view.clone().reshape(&[2, 3]).unwrap().to_f32(), view.to_f32());
        assert!(view.clone().reshape(&[2, 4]).is_none());
        assert!(view.reshape(&[2, 3]).unwrap().transpose().reshape(&[6]).is_none());
    }
}
