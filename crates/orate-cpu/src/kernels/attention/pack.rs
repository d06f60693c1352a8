//! Packs keys into panels, so that scores are a matmul without horizontal sums.

use super::operands::HeadRows;
use crate::kernels::cache_rows::RowFormat;
use crate::simd::{Kernel, Simd};

/// Keys per packed panel: two of the widest vectors.
pub(super) const PANEL: usize = 32;

/// Keys rounded up to whole panels.
pub(super) fn padded(keys: usize) -> usize {
    keys.next_multiple_of(PANEL)
}

/// Copies the keys of one head into panels: `panels[p][d][j]` = key 32p + j, channel d; zero after the last
/// key.
pub(super) struct Pack<'a, F> {
    /// `steps` rows of `dim` elements.
    pub keys: HeadRows<F>,
    pub steps: usize,
    pub dim: usize,
    pub panels: &'a mut [f32],
}

/// Floats of the largest square that is transposed at once.
const SQUARE: usize = 16 * 16;

impl<F: RowFormat> Kernel for Pack<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Pack { keys: k, steps, dim, panels } = self;
        let mut square = [0.0; SQUARE];
        for (p, panel) in panels.chunks_exact_mut(PANEL * dim).enumerate() {
            for j in (0..PANEL).step_by(S::LANES) {
                let t = p * PANEL + j;
                let keys = steps.saturating_sub(t).min(S::LANES);
                // Whole squares first, then the remaining channels or keys.
                let squares = if keys == S::LANES { dim / S::LANES * S::LANES } else { 0 };
                for d in (0..squares).step_by(S::LANES) {
                    let to = &mut panel[d * PANEL + j..];
                    assert!(to.len() >= (S::LANES - 1) * PANEL + S::LANES, "whole panels");
                    let (from, stride) = if F::FLOATS {
                        (k.row(t).cast::<f32>().wrapping_add(k.channel + d), k.row_bytes / 4)
                    } else {
                        for i in 0..S::LANES {
                            // SAFETY: a square has at most `SQUARE` floats.
                            unsafe {
                                s.store(square.as_mut_ptr().add(i * S::LANES), k.load(s, t + i, d, S::LANES))
                            };
                        }
                        (square.as_ptr(), S::LANES)
                    };
                    // SAFETY: `LANES` keys follow at `t`, each with `LANES` elements at `d`; the panel was
                    // checked.
                    unsafe { s.transpose(from, stride, to.as_mut_ptr(), PANEL) };
                }
                for d in (squares..dim).step_by(S::LANES) {
                    let n = S::LANES.min(dim - d);
                    for i in 0..S::LANES {
                        if i < keys {
                            // SAFETY: key `t + i` exists, and a vector of it fits into the square.
                            unsafe { s.store(square.as_mut_ptr(), k.load(s, t + i, d, n)) };
                        } else {
                            square[..n].fill(0.0);
                        }
                        for (e, x) in square[..n].iter().enumerate() {
                            panel[(d + e) * PANEL + j + i] = *x;
                        }
                    }
                }
            }
        }
    }
}
