//! Matmuls with few columns: a dot product along K for each.
//!
//! A tile would be mostly empty. Here w is stored as [N, K], so that both operands are read in vectors; the
//! order of sums depends on K alone. Used for the last convolution of a vocoder.

use super::{Epilogue, GATHER_STRIDE, PackedWeights, Rows};
use crate::kernels::activation::Apply;
use crate::kernels::elementwise::SharedMut;
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};

/// Maximum columns.
pub(super) const COLUMNS: usize = 4;

/// Rows of a chunk.
const CHUNK: usize = 256;

/// Length along K that is read at a time; longer slices would exceed the memory for gathered rows.
const SLICE: usize = 512;
const _: () = assert!(SLICE <= GATHER_STRIDE);

/// See [`super::matmul`], which has checked all lengths.
pub(super) fn matmul(
    isa: Isa,
    team: &Team,
    rows: Rows<'_>,
    w: &PackedWeights,
    epilogue: &Epilogue<'_>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let (m, n) = (y.len() / w.n(), w.n());
    let (y, scratch) = (SharedMut::new(y), SharedMut::new(scratch));
    team.run(m.div_ceil(CHUNK), &|worker, chunk| {
        let first = chunk * CHUNK;
        let last = m.min(first + CHUNK);
        // SAFETY: chunks are disjoint rows of y, and each worker has its own part of the scratch memory.
        let (y, buffer) = unsafe {
            let own = worker.index() * GATHER_STRIDE;
            (y.part(first * n..last * n), scratch.part(own..own + GATHER_STRIDE))
        };
        isa.run(Chunk { rows: &rows, w, epilogue, first, y, buffer });
    });
}

/// Rows from `first` on.
struct Chunk<'a> {
    rows: &'a Rows<'a>,
    w: &'a PackedWeights,
    epilogue: &'a Epilogue<'a>,
    first: usize,
    y: &'a mut [f32],
    buffer: &'a mut [f32],
}

impl Kernel for Chunk<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (k, n) = (self.w.k(), self.w.n());
        for (i, y) in self.y.chunks_exact_mut(n).enumerate() {
            let row = self.first + i;
            let mut sums = [0.0; COLUMNS];
            for start in (0..k).step_by(SLICE) {
                let ks = start..k.min(start + SLICE);
                // SAFETY: the row and the columns exist, and the buffer has room for one row.
                let (x, _) = unsafe { self.rows.locate(k, row, 1, ks.clone(), self.buffer.as_mut_ptr()) };
                for (sum, w) in sums.iter_mut().zip(self.w.narrow().chunks_exact(k)) {
                    // SAFETY: `locate` returned as many floats as `ks` has.
                    *sum += unsafe { dot(s, x, &w[ks.clone()]) };
                }
            }
            // SAFETY: each pointer is valid for `n` floats; the residual is as long as y.
            unsafe {
                let mut v = s.load_partial(sums.as_ptr(), n);
                if let Some(bias) = self.epilogue.bias {
                    v = s.add(v, s.load_partial(bias.as_ptr(), n));
                }
                v = self.epilogue.activation.apply(s, v);
                if let Some(residual) = self.epilogue.residual {
                    v = s.add(s.load_partial(residual.as_ptr().add(row * n), n), v);
                }
                s.store_partial(y.as_mut_ptr(), v, n);
            }
        }
    }
}

/// Σ x · w
///
/// # Safety
/// `x` has as many floats as `w`.
#[inline(always)]
unsafe fn dot<S: Simd>(s: S, x: *const f32, w: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let mut i = 0;
    // SAFETY: indices stay below the length of `w`.
    unsafe {
        while i + 4 * S::LANES <= w.len() {
            for (j, sum) in sums.iter_mut().enumerate() {
                let at = i + j * S::LANES;
                *sum = s.fma(s.load(x.add(at)), s.load(w.as_ptr().add(at)), *sum);
            }
            i += 4 * S::LANES;
        }
        while i < w.len() {
            let n = S::LANES.min(w.len() - i);
            sums[0] = s.fma(s.load_partial(x.add(i), n), s.load_partial(w.as_ptr().add(i), n), sums[0]);
            i += n;
        }
    }
    s.reduce_add(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}
