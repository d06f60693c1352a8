//! Element types and static shapes of values.

use smallvec::SmallVec;
use std::fmt;

named! {
    /// Element type of a value. Weights may be stored in other types; they are expanded when they are loaded.
    ///
    /// The compact types are for keys and values that are kept: [`crate::Op::WriteRows`] rounds rows to them,
    /// to the nearest and of two equally near to the even one, [`crate::Op::Attention`] reads them, and no
    /// other op takes them. Rows, which are the last axis, are contiguous and whole words of four bytes.
    pub enum DType {
        /// 32-bit float: all activations.
        F32 = "f32",
        /// 32-bit integer: token ids and lengths.
        I32 = "i32",
        /// Compact: half-precision floats. Beyond 65504 they are infinite.
        F16 = "f16",
        /// Compact: the upper halves of floats.
        BF16 = "bf16",
        /// Compact: a row of C elements is C signed bytes, and after them C / 32 scales in half precision,
        /// one for 32 elements each. An element is `byte · scale`; the scale is the largest magnitude of the
        /// 32 over 127.
        Q8_0 = "q8_0",
    }
}

/// Elements that share a scale in blocks: weights along K, and [`DType::Q8_0`] along rows.
pub const BLOCK: usize = 32;

/// Weights of a block whose scales are rounded too.
pub const SUPER_BLOCK: usize = 256;

impl DType {
    /// The compact types.
    pub const COMPACT: [DType; 3] = [DType::F16, DType::BF16, DType::Q8_0];

    /// Whether rows take less than four bytes for each element.
    pub fn is_compact(self) -> bool {
        Self::COMPACT.contains(&self)
    }

    /// Bytes of a row of `width` elements.
    pub fn row_bytes(self, width: usize) -> usize {
        match self {
            DType::F32 | DType::I32 => 4 * width,
            DType::F16 | DType::BF16 => 2 * width,
            DType::Q8_0 => width + width / BLOCK * 2,
        }
    }

    /// Bytes of a value.
    pub fn bytes_of(self, shape: &Shape) -> usize {
        shape.rows() * self.row_bytes(shape.last())
    }

    /// What the width of rows is a multiple of, so that they are whole words.
    pub fn width_step(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::Q8_0 => 2 * BLOCK,
        }
    }
}

/// Extents of a value, slowest axis first, row-major and contiguous. Copies of up to four allocate nothing.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Shape {
    /// Extents, slowest first.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Extent of the last axis; 1 for a scalar.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// Product of all extents but the last: the rows that a kernel walks over.
    pub fn rows(&self) -> usize {
        self.0.split_last().map_or(1, |(_, rest)| rest.iter().product())
    }

    /// The same shape with another last extent.
    pub fn with_last(&self, last: usize) -> Shape {
        let mut dims = self.0.clone();
        match dims.last_mut() {
            Some(d) => *d = last,
            None => dims.push(last),
        }
        Shape(dims)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(SmallVec::from_slice(&dims))
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims.into())
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Type and shape of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
    /// The buffer whose content this is, for inputs and states.
    pub buffer: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_type_are_whole_words() {
        for (dtype, width, bytes) in [
            (DType::F32, 3usize, 12),
            (DType::I32, 1, 4),
            (DType::F16, 6, 12),
            (DType::BF16, 1024, 2048),
            (DType::Q8_0, 64, 68),
            (DType::Q8_0, 1024, 1088),
        ] {
            assert!(width.is_multiple_of(dtype.width_step()));
            assert_eq!(dtype.row_bytes(width), bytes);
            assert_eq!(dtype.bytes_of(&[2, 5, width].into()), 10 * bytes);
        }
        for dtype in DType::COMPACT {
            assert!(dtype.row_bytes(dtype.width_step()).is_multiple_of(4), "{dtype}");
        }
        assert_eq!(DType::F32.bytes_of(&Shape::default()), 4, "a single number");
    }
}
