//! Layout and format of queries, keys and values.

use super::product::Columns;
use crate::kernels::cache_rows::{Floats, RowFormat};
use crate::simd::Simd;

/// A [batch, steps, H·D] operand with a row stride, such as a third of a fused projection.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Row (b, t) starts at (b·steps + t)·stride.
    pub data: &'a [f32],
    /// Batch rows; 1 for keys and values that all batch rows share.
    pub batch: usize,
    /// Time steps.
    pub steps: usize,
    /// Stride in floats between rows, at least H·D.
    pub stride: usize,
}

impl<'a> Sequence<'a> {
    pub(super) fn rows(self) -> KeptRows<'a, Floats> {
        // SAFETY: the same memory as bytes, borrowed for as long.
        let bytes = unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), size_of_val(self.data)) };
        KeptRows { format: Floats, bytes, batch: self.batch, steps: self.steps, row_bytes: 4 * self.stride }
    }
}

/// Keys or values in a cache: [batch, steps, Hkv·D] as bytes of a cache type.
#[derive(Clone, Copy, Debug)]
pub struct Cached<'a> {
    /// All rows.
    pub bytes: &'a [u8],
    /// Batch rows; 1 for those that all batch rows share.
    pub batch: usize,
    /// Time steps.
    pub steps: usize,
}

impl<'a> Cached<'a> {
    pub(super) fn rows<F>(self, format: F, row_bytes: usize) -> KeptRows<'a, F> {
        assert_eq!(self.bytes.len(), self.batch * self.steps * row_bytes, "whole rows");
        KeptRows { format, bytes: self.bytes, batch: self.batch, steps: self.steps, row_bytes }
    }
}

/// [`Cached`] or [`Sequence`] in a known format: row (b, t) starts at byte (b·steps + t)·row_bytes.
#[derive(Clone, Copy)]
pub(super) struct KeptRows<'a, F> {
    pub format: F,
    pub bytes: &'a [u8],
    pub batch: usize,
    pub steps: usize,
    pub row_bytes: usize,
}

impl<F: RowFormat> KeptRows<'_, F> {
    /// Elements of a head, from the first row of batch row `b` on.
    pub fn head(&self, b: usize, channel: usize) -> HeadRows<F> {
        // A batch row without steps is never read.
        let first = self.bytes.as_ptr().wrapping_add(b * self.steps * self.row_bytes);
        HeadRows { format: self.format, first, row_bytes: self.row_bytes, channel }
    }
}

/// Elements of one head in consecutive rows.
#[derive(Clone, Copy)]
pub(super) struct HeadRows<F> {
    pub format: F,
    pub first: *const u8,
    pub row_bytes: usize,
    pub channel: usize,
}

// SAFETY: rows are only read, and only while the attention that borrows them runs.
unsafe impl<F: Send> Send for HeadRows<F> {}
// SAFETY: rows are only read, which several threads may do at once.
unsafe impl<F: Sync> Sync for HeadRows<F> {}

impl<F: RowFormat> HeadRows<F> {
    #[inline(always)]
    pub fn row(&self, t: usize) -> *const u8 {
        self.first.wrapping_add(t * self.row_bytes)
    }

    /// Elements `d .. d + n` of the head in row `t`, then zeros; n is at most `LANES`.
    ///
    /// # Safety
    /// Row and elements exist.
    #[inline(always)]
    pub unsafe fn load<S: Simd>(&self, s: S, t: usize, d: usize, n: usize) -> S::V {
        // SAFETY: the caller vouches for row and elements.
        unsafe {
            match n == S::LANES {
                true => self.format.load(s, self.row(t), self.channel + d),
                false => self.format.load_partial(s, self.row(t), self.channel + d, n),
            }
        }
    }
}

impl<F: RowFormat> Columns for HeadRows<F> {
    type At = usize;
    #[inline(always)]
    fn at(&self, c: usize) -> usize {
        self.channel + c
    }
    #[inline(always)]
    fn floats(&self, at: usize, d: usize) -> Option<(*const f32, usize)> {
        F::FLOATS.then(|| (self.row(d).cast::<f32>().wrapping_add(at), self.row_bytes / size_of::<f32>()))
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, at: usize, d: usize, k: usize) -> S::V {
        // SAFETY: the caller vouches for row and columns.
        unsafe { self.format.load(s, self.row(d), at + k * S::LANES) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(&self, s: S, at: usize, d: usize, n: usize) -> S::V {
        // SAFETY: the caller vouches for row and columns.
        unsafe { self.format.load_partial(s, self.row(d), at, n) }
    }
}
