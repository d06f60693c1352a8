//! Residual quantisation: the nearest entry of one codebook after the other.
//!
//! `x` [rows, E], `books` [Q, V, E] f32; `out` [rows, Q] i32, as floats of their bits. The distance of a row to an entry is Σ (x − c)²,
//! in that form and not as |x|² + |c|² − 2xc, which cancels. Rows are split over the team. All sums have one order, so equal
//! entries have equal distances, and the first of them is taken.

use crate::kernels::elementwise::SharedMut;
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};

/// Codebooks `[Q, V, E]`.
#[derive(Clone, Copy, Debug)]
pub struct Codebooks<'a> {
    /// The entries.
    pub data: &'a [f32],
    /// V
    pub entries: usize,
    /// E
    pub width: usize,
}

/// Fills `out` with the codes of `x`. `rest` has room for as many floats as `x`; its content does not matter.
///
/// # Panics
/// `x`, `rest`, the books and `out` do not fit each other.
pub fn residual_codes(
    isa: Isa,
    team: &Team,
    x: &[f32],
    books: Codebooks<'_>,
    rest: &mut [f32],
    out: &mut [f32],
) {
    let Codebooks { data, entries, width } = books;
    let count = data.len() / (entries * width);
    assert_eq!(data.len(), count * entries * width, "codebooks are [Q, V, E]");
    assert_eq!(out.len() * width, x.len() * count, "a code of each book for each row");
    let rest = &mut rest[..x.len()];
    rest.copy_from_slice(x);
    let (rest, out) = (SharedMut::new(rest), SharedMut::new(out));
    team.run(x.len() / width, &|_, row| {
        // SAFETY: each row belongs to one task.
        let (rest, out) =
            unsafe { (rest.part(row * width..(row + 1) * width), out.part(row * count..(row + 1) * count)) };
        isa.run(Row { books, rest, out });
    });
}

/// One row.
struct Row<'a> {
    books: Codebooks<'a>,
    rest: &'a mut [f32],
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Codebooks { data, entries, width } = self.books;
        for (book, code) in data.chunks_exact(entries * width).zip(self.out) {
            let (mut nearest, mut least) = (0, f32::INFINITY);
            for (i, entry) in book.chunks_exact(width).enumerate() {
                let distance = distance(s, self.rest, entry);
                if distance < least {
                    (nearest, least) = (i, distance);
                }
            }
            *code = f32::from_bits(nearest as u32);
            let entry = &book[nearest * width..][..width];
            self.rest.iter_mut().zip(entry).for_each(|(r, c)| *r -= c);
        }
    }
}

/// Σ (a − b)², for two slices of one length.
#[inline(always)]
fn distance<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 2];
    let mut i = 0;
    while i < a.len() {
        for sum in &mut sums {
            let n = S::LANES.min(a.len().saturating_sub(i));
            // SAFETY: `n` floats follow at `i` in both, and none is read where `n` is 0.
            let d = unsafe {
                let (a, b) = (a.as_ptr().wrapping_add(i), b.as_ptr().wrapping_add(i));
                s.sub(s.load_partial(a, n), s.load_partial(b, n))
            };
            *sum = s.fma(d, d, *sum);
            i += S::LANES;
        }
    }
    s.reduce_add(s.add(sums[0], sums[1]))
}
