//! The matmul of both phases: scores from packed keys, results from values in place.

use super::pack::PANEL;
use crate::simd::Simd;

/// Terms that are summed before the sum joins the total. One running sum over thousands of terms loses five
/// bits if, as here, many have the same sign.
pub(super) const RUN: usize = 256;

/// The right operand of a [`Product`]: rows of columns.
pub(super) trait Columns: Copy {
    /// Address of a column.
    type At: Copy;
    /// Address of column `c`, the first of its panel or a multiple of a vector after it.
    fn at(&self, c: usize) -> Self::At;
    /// Address of row `d` from a column on, and the stride of rows in floats, if they are floats.
    fn floats(&self, at: Self::At, d: usize) -> Option<(*const f32, usize)>;
    /// Vector of row `d` that starts `k` vectors after a column.
    ///
    /// # Safety
    /// Row and columns exist.
    unsafe fn load<S: Simd>(&self, s: S, at: Self::At, d: usize, k: usize) -> S::V;
    /// First `n` columns of that vector, n below `LANES`.
    ///
    /// # Safety
    /// Row and columns exist.
    unsafe fn load_partial<S: Simd>(&self, s: S, at: Self::At, d: usize, n: usize) -> S::V;
}

/// Column c of row d is at `first + c/32 · panel + d · stride + c%32`.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub first: *const f32,
    pub stride: usize,
    pub panel: usize,
}

impl Columns for Panels {
    type At = *const f32;
    #[inline(always)]
    fn at(&self, c: usize) -> *const f32 {
        self.first.wrapping_add(c / PANEL * self.panel + c % PANEL)
    }
    #[inline(always)]
    fn floats(&self, at: *const f32, d: usize) -> Option<(*const f32, usize)> {
        Some((at.wrapping_add(d * self.stride), self.stride))
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, at: *const f32, d: usize, k: usize) -> S::V {
        // SAFETY: the caller vouches for row and columns.
        unsafe { s.load(at.add(d * self.stride + k * S::LANES)) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(&self, s: S, at: *const f32, d: usize, n: usize) -> S::V {
        // SAFETY: the caller vouches for row and columns.
        unsafe { s.load_partial(at.add(d * self.stride), n) }
    }
}

/// out[i,c] = factor[i] · Σ_d a[i,d] · b[d,c], each sum in order of d, in runs of [`RUN`]. The first run has
/// already had `begun` terms.
#[derive(Clone, Copy)]
pub(super) struct Product<B> {
    pub a: *const f32,
    pub a_stride: usize,
    pub b: B,
    pub depth: usize,
    pub begun: usize,
    pub rows: usize,
    pub columns: usize,
    pub factors: Option<*const f32>,
    pub out: *mut f32,
    pub out_stride: usize,
}

impl<B: Columns> Product<B> {
    /// # Safety
    /// All pointers are valid for the sizes and strides given.
    #[inline(always)]
    pub unsafe fn run<S: Simd>(self, s: S) {
        let mut row = 0;
        // SAFETY: rows and columns stay within what the caller vouches for.
        unsafe {
            if S::REGISTERS >= 32 {
                while row + 8 <= self.rows {
                    self.strip::<S, 8>(s, row);
                    row += 8;
                }
            }
            // Six rows fill the registers only if they are read lane by lane.
            while S::BY_LANE && row + 6 <= self.rows {
                self.strip::<S, 6>(s, row);
                row += 6;
            }
            while row + 4 <= self.rows {
                self.strip::<S, 4>(s, row);
                row += 4;
            }
            while row + 2 <= self.rows {
                self.strip::<S, 2>(s, row);
                row += 2;
            }
            while row < self.rows {
                self.strip::<S, 1>(s, row);
                row += 1;
            }
        }
    }

    /// `R` rows, all columns.
    ///
    /// # Safety
    /// As for `run`; the rows exist.
    #[inline(always)]
    unsafe fn strip<S: Simd, const R: usize>(&self, s: S, row: usize) {
        let mut c = 0;
        // SAFETY: the caller vouches for the rows; `n` keeps the last vector within the columns.
        unsafe {
            while c + 2 * S::LANES <= self.columns {
                self.tile::<S, R, 2>(s, row, c, S::LANES);
                c += 2 * S::LANES;
            }
            while c < self.columns {
                self.tile::<S, R, 1>(s, row, c, S::LANES.min(self.columns - c));
                c += S::LANES;
            }
        }
    }

    /// `R` rows by `N` vectors, of which the last has `n` lanes.
    ///
    /// # Safety
    /// As for `run`; rows and columns exist, and the vectors lie in one panel.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const N: usize>(&self, s: S, row: usize, c: usize, n: usize) {
        let mut totals = [[s.splat(0.0); N]; R];
        // SAFETY: the caller vouches for `R` rows of `a` and `out` and for the columns of `b`.
        unsafe {
            let a = self.a.add(row * self.a_stride);
            let at = self.b.at(c);
            let full = n == S::LANES;
            let (mut first, mut end) = (0, self.depth.min(RUN - self.begun));
            while first < self.depth {
                let mut sums = [[s.splat(0.0); N]; R];
                let floats = if S::BY_LANE && full { self.b.floats(at, first) } else { None };
                if let Some(b) = floats {
                    s.steps(end - first, (a.add(first), self.a_stride), b, None, &mut sums);
                }
                for d in if floats.is_some() { end } else { first }..end {
                    let mut v = [s.splat(0.0); N];
                    for (k, v) in v.iter_mut().enumerate() {
                        *v = if full { self.b.load(s, at, d, k) } else { self.b.load_partial(s, at, d, n) };
                    }
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let a = s.splat(*a.add(r * self.a_stride + d));
                        for (sum, v) in sums.iter_mut().zip(&v) {
                            *sum = s.fma(a, *v, *sum);
                        }
                    }
                }
                for r in 0..R {
                    for k in 0..N {
                        totals[r][k] = s.add(totals[r][k], sums[r][k]);
                    }
                }
                (first, end) = (end, self.depth.min(end + RUN));
            }
            for (r, totals) in totals.iter().enumerate() {
                let factor = match self.factors {
                    Some(factors) => s.splat(*factors.add(row + r)),
                    None => s.splat(1.0),
                };
                for (k, sum) in totals.iter().enumerate() {
                    let y = s.mul(*sum, factor);
                    let out = self.out.add((row + r) * self.out_stride + c + k * S::LANES);
                    if full { s.store(out, y) } else { s.store_partial(out, y, n) }
                }
            }
        }
    }
}
