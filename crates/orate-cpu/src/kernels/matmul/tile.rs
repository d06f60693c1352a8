//! The inner loop: a tile of a few rows times a few vectors of columns, held in registers.

use super::Epilogue;
use crate::kernels::activation::Apply;
use crate::simd::Simd;
use std::ops::Range;

/// Height, and width in vectors, of a tile that fits the registers: its sums, a row of the panel, and one
/// broadcast element.
pub(super) const fn size(registers: usize) -> (usize, usize) {
    match registers {
        // 24 sums: 11 loads for 24 multiply-adds.
        32.. => (8, 3),
        // 12 sums: 7 loads for 12 multiply-adds.
        16.. => (6, 2),
        _ => (4, 1),
    }
}

/// Operands of a tile.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// Length of the slice.
    pub k: usize,
    /// [rows, k] with row stride `a_stride`.
    pub a: *const f32,
    pub a_stride: usize,
    /// [k, vectors · LANES]
    pub b: *const f32,
    /// [rows, vectors · LANES]: receives the sums.
    pub sums: *mut f32,
    /// Whether to store the sums instead of adding them to `sums`.
    pub first: bool,
    /// Memory to prefetch.
    pub ahead: *const f32,
    /// Number of bytes to prefetch.
    pub ahead_bytes: usize,
}

/// `sums = a · b` or `sums += a · b` for a tile of any size up to [`size`].
///
/// # Safety
/// The operands must have the sizes that [`Operands`] documents.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd>(s: S, rows: usize, vectors: usize, o: &Operands) {
    macro_rules! heights {
        ($vectors:literal: $($rows:literal)*) => {
            match rows {
                // SAFETY: the caller guarantees it.
                $($rows => unsafe { multiply_tile::<S, $rows, $vectors>(s, o) },)*
                _ => unreachable!("tile of {rows} rows"),
            }
        };
    }
    // The conditions are constants of the instruction set, so only one arm is compiled for each.
    if S::REGISTERS >= 32 {
        match vectors {
            3 => heights!(3: 1 2 3 4 5 6 7 8),
            2 => heights!(2: 1 2 3 4 5 6 7 8),
            _ => heights!(1: 1 2 3 4 5 6 7 8),
        }
    } else if S::REGISTERS >= 16 {
        match vectors {
            2 => heights!(2: 1 2 3 4 5 6),
            _ => heights!(1: 1 2 3 4 5 6),
        }
    } else {
        heights!(1: 1 2 3 4)
    }
}

/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn multiply_tile<S: Simd, const ROWS: usize, const VECTORS: usize>(s: S, o: &Operands) {
    let width = VECTORS * S::LANES;
    let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
    // SAFETY: `a` and `b` have `k` columns and rows.
    unsafe { s.steps(o.k, (o.a, o.a_stride), (o.b, width), Some((o.ahead, o.ahead_bytes)), &mut sums) };
    for (i, sums) in sums.iter().enumerate() {
        for (j, &sum) in sums.iter().enumerate() {
            // SAFETY: `o.sums` has as many rows and vectors as the tile.
            unsafe {
                let at = o.sums.add(i * width + j * S::LANES);
                s.store(at, if o.first { sum } else { s.add(s.load(at), sum) });
            }
        }
    }
}

/// Prefetches the memory that [`finish`] will touch. Stores complete in order, so each missing line would
/// delay all that follow.
#[inline(always)]
pub(super) fn expect<S: Simd>(
    s: S,
    rows: Range<usize>,
    first_column: usize,
    vectors: usize,
    n: usize,
    epilogue: &Epilogue<'_>,
    y: *const f32,
) {
    for row in rows {
        for j in 0..vectors {
            let at = row * n + first_column + j * S::LANES;
            s.prefetch(y.wrapping_add(at));
            if let Some(residual) = epilogue.residual {
                s.prefetch(residual.as_ptr().wrapping_add(at));
            }
        }
    }
}

/// Applies the epilogue to the sums of a tile and stores the result: `rows` of y, `vectors` vectors of
/// columns from `first_column` on, at most up to column `n`.
///
/// # Safety
/// The rows of y, bias and residual must exist, and no other thread may use these elements of y.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "called once, right after the matmul")]
pub(super) unsafe fn finish<S: Simd>(
    s: S,
    sums: *const f32,
    rows: Range<usize>,
    first_column: usize,
    vectors: usize,
    n: usize,
    epilogue: &Epilogue<'_>,
    y: *mut f32,
) {
    let width = vectors * S::LANES;
    for (i, row) in rows.enumerate() {
        for j in 0..vectors {
            let column = first_column + j * S::LANES;
            let at = row * n + column;
            // SAFETY: `count` columns are left from `column` on.
            unsafe {
                let count = (n - column).min(S::LANES);
                let mut v = s.load(sums.add(i * width + j * S::LANES));
                if let Some(bias) = epilogue.bias {
                    v = s.add(v, load(s, bias.as_ptr().add(column), count));
                }
                v = epilogue.activation.apply(s, v);
                if let Some(residual) = epilogue.residual {
                    v = s.add(load(s, residual.as_ptr().add(at), count), v);
                }
                if count == S::LANES {
                    s.store(y.add(at), v);
                } else {
                    s.store_partial(y.add(at), v, count);
                }
            }
        }
    }
}

/// The first `count` floats at `p`.
///
/// # Safety
/// They must exist.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, p: *const f32, count: usize) -> S::V {
    // SAFETY: the caller guarantees it.
    unsafe { if count == S::LANES { s.load(p) } else { s.load_partial(p, count) } }
}
