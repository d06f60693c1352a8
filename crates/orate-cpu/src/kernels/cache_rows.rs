//! Rows of keys and values as they are stored: floats, or one of the compact types of [`DType`].
//!
//! Attention reads them through [`RowFormat`], one vector at a time, so that a compact row becomes floats in
//! registers and is never copied. [`write_rows`] rounds f32 rows to a compact type, to nearest even. A `q8_0`
//! row is its bytes followed by one scale per 32 bytes.

use crate::simd::Simd;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use orate_graph::DType;

/// Elements that share a scale in `q8_0`.
const BLOCK: usize = 32;

/// Lanes of the widest vector.
const MOST_LANES: usize = 16;

/// Conversion of stored elements to floats.
pub trait RowFormat: Copy + Send + Sync {
    /// Whether the elements are f32.
    const FLOATS: bool = false;

    /// Loads elements `at .. at + LANES`.
    ///
    /// # Safety
    /// A row of this format begins at `row` and has these elements. With blocks, `at` is a multiple of
    /// `LANES`.
    unsafe fn load<S: Simd>(self, s: S, row: *const u8, at: usize) -> S::V;

    /// Loads elements `at .. at + n`, then zeros; n is below `LANES`.
    ///
    /// # Safety
    /// As for `load`.
    unsafe fn load_partial<S: Simd>(self, s: S, row: *const u8, at: usize, n: usize) -> S::V;
}

/// f32
#[derive(Clone, Copy, Debug)]
pub struct Floats;

impl RowFormat for Floats {
    const FLOATS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, row: *const u8, at: usize) -> S::V {
        // SAFETY: the caller vouches for the elements.
        unsafe { s.load(row.cast::<f32>().add(at)) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(self, s: S, row: *const u8, at: usize, n: usize) -> S::V {
        // SAFETY: the caller vouches for the elements.
        unsafe { s.load_partial(row.cast::<f32>().add(at), n) }
    }
}

/// First `n` values of a vector of 16-bit numbers, then zeros.
///
/// # Safety
/// `p` is valid for reading `n` numbers, at most one vector.
#[inline(always)]
unsafe fn first_halves(p: *const u16, n: usize) -> [u16; MOST_LANES] {
    // SAFETY: only indices below `n` are read.
    std::array::from_fn(|i| if i < n { unsafe { p.add(i).read_unaligned() } } else { 0 })
}

/// f16
#[derive(Clone, Copy, Debug)]
pub struct Halves;

impl RowFormat for Halves {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, row: *const u8, at: usize) -> S::V {
        // SAFETY: the caller vouches for the elements.
        unsafe { s.load_f16(row.cast::<u16>().add(at)) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(self, s: S, row: *const u8, at: usize, n: usize) -> S::V {
        // SAFETY: the caller vouches for `n` elements; the copy has a whole vector.
        unsafe { s.load_f16(first_halves(row.cast::<u16>().add(at), n).as_ptr()) }
    }
}

/// bf16
#[derive(Clone, Copy, Debug)]
pub struct UpperHalves;

impl RowFormat for UpperHalves {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, row: *const u8, at: usize) -> S::V {
        // SAFETY: the caller vouches for the elements.
        unsafe { s.load_bf16(row.cast::<u16>().add(at)) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(self, s: S, row: *const u8, at: usize, n: usize) -> S::V {
        // SAFETY: the caller vouches for `n` elements; the copy has a whole vector.
        unsafe { s.load_bf16(first_halves(row.cast::<u16>().add(at), n).as_ptr()) }
    }
}

/// q8_0 rows of `.0` elements.
#[derive(Clone, Copy, Debug)]
pub struct Blocks(pub usize);

impl RowFormat for Blocks {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, row: *const u8, at: usize) -> S::V {
        // SAFETY: the caller vouches for the elements; a vector lies in one block, whose scale is after all
        // bytes.
        unsafe {
            let scale = s.splat_f16(row.add(self.0 + at / BLOCK * 2).cast());
            s.mul(s.load_i8(row.add(at).cast()), scale)
        }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(self, s: S, row: *const u8, at: usize, n: usize) -> S::V {
        // SAFETY: heads are whole blocks, so a whole vector exists.
        let whole: [f32; MOST_LANES] = unsafe {
            let mut whole = [0.0; MOST_LANES];
            s.store(whole.as_mut_ptr(), self.load(s, row, at));
            whole
        };
        // SAFETY: a vector has at most as many lanes as `whole` has numbers.
        unsafe { s.load_partial(whole.as_ptr(), n) }
    }
}

/// `state[b, first[b] .. first[b] + T, :] = rows[b, :, :]`, rounded; `state` is the bytes of [B, N, C] in a
/// compact type, `rows` [B, T, C]. Rows must fit.
///
/// # Panics
/// The type is not compact.
pub fn write_rows(
    (dtype, state): (DType, &mut [u8]),
    rows: &[f32],
    first: impl Iterator<Item = usize>,
    (n, t): (usize, usize),
    c: usize,
) {
    if t * c == 0 {
        return;
    }
    let bytes = dtype.row_bytes(c);
    for ((state, rows), first) in state.chunks_exact_mut(n * bytes).zip(rows.chunks_exact(t * c)).zip(first) {
        let to = &mut state[first * bytes..][..t * bytes];
        for (row, to) in rows.chunks_exact(c).zip(to.chunks_exact_mut(bytes)) {
            match dtype {
                DType::F16 => round_halves(row, to),
                DType::BF16 => {
                    for (x, to) in row.iter().zip(to.as_chunks_mut::<2>().0) {
                        *to = bf16::from_f32(*x).to_ne_bytes();
                    }
                }
                DType::Q8_0 => round_blocks(row, to),
                DType::F32 | DType::I32 => unreachable!("{dtype} is not compact"),
            }
        }
    }
}

fn round_halves(row: &[f32], to: &mut [u8]) {
    let mut some = [f16::ZERO; 64];
    for (row, to) in row.chunks(some.len()).zip(to.chunks_mut(2 * some.len())) {
        let some = &mut some[..row.len()];
        some.convert_from_f32_slice(row);
        for (x, to) in some.iter().zip(to.as_chunks_mut::<2>().0) {
            *to = x.to_ne_bytes();
        }
    }
}

fn round_blocks(row: &[f32], to: &mut [u8]) {
    let (bytes, scales) = to.split_at_mut(row.len());
    let blocks = row.as_chunks::<BLOCK>().0.iter().zip(bytes.as_chunks_mut::<BLOCK>().0);
    for ((block, bytes), to) in blocks.zip(scales.as_chunks_mut::<2>().0) {
        let largest = block.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        let scale = f16::from_f32((largest / 127.0).min(f16::MAX.to_f32()));
        let inverse = match scale.to_f32() {
            0.0 => 0.0,
            scale => 1.0 / scale,
        };
        *bytes = block.map(|x| (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8);
        *to = scale.to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::Kernel;

    /// Reads rows of `width` elements, by whole and partial vectors.
    struct Read<'a, F> {
        format: F,
        row: &'a [u8],
        width: usize,
    }

    impl<F: RowFormat> Kernel for Read<'_, F> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let mut out = vec![0.0; self.width + S::LANES];
            for at in (0..self.width).step_by(S::LANES) {
                let n = S::LANES.min(self.width - at);
                // SAFETY: the row has `width` elements, and `out` has room for one more vector.
                unsafe {
                    let row = self.row.as_ptr();
                    let v = match n == S::LANES {
                        true => self.format.load(s, row, at),
                        false => self.format.load_partial(s, row, at, n),
                    };
                    s.store(out.as_mut_ptr().add(at), v);
                }
            }
            out.truncate(self.width);
            out
        }
    }

    #[test]
    fn rows_come_back_as_near_as_their_type_says() {
        for (dtype, widths, step) in [
            (DType::F16, &[2, 14, 34, 64][..], 1.0 / 1024.0),
            (DType::BF16, &[2, 14, 34, 64][..], 1.0 / 128.0),
            (DType::Q8_0, &[64, 192][..], 1.0 / 127.0),
        ] {
            for &width in widths {
                let row: Vec<f32> = (0..width).map(|i| (i as f32 * 0.7).sin()).collect();
                let mut state = vec![0xff; 3 * dtype.row_bytes(width)];
                write_rows((dtype, &mut state), &row, [1].into_iter(), (3, 1), width);
                let bytes = &state[dtype.row_bytes(width)..];
                for isa in Isa::available() {
                    let got = match dtype {
                        DType::F16 => isa.run(Read { format: Halves, row: bytes, width }),
                        DType::BF16 => isa.run(Read { format: UpperHalves, row: bytes, width }),
                        _ => isa.run(Read { format: Blocks(width), row: bytes, width }),
                    };
                    for (x, y) in row.iter().zip(&got) {
                        assert!((x - y).abs() <= 0.51 * step, "{dtype} {width} {isa}: {x} {y}");
                    }
                }
                assert!(state[..dtype.row_bytes(width)].iter().all(|b| *b == 0xff), "only its row");
            }
        }
    }
}
