//! Residual quantization: the nearest entry of each codebook in turn.
//!
//! `x` [rows, E], `books` [Q, V, E] f32; `out` [rows, Q] i32, stored as floats with the same bits. The
//! distance of a row to an entry is Σ (x − c)², not |x|² + |c|² − 2xc, which suffers cancellation. Rows are
//! split over the team. All sums have the same order, so equal entries have equal distances, and the first
//! one wins.

use crate::kernels::elementwise::SharedMut;
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::{ValueInfo, Weight};

/// Codebooks `[Q, V, E]`.
#[derive(Clone, Copy, Debug)]
pub struct Codebooks<'a> {
    /// All entries.
    pub data: &'a [f32],
    /// V
    pub entries: usize,
    /// E
    pub width: usize,
}

/// Fills `out` with the codes of `x`. `rest` is scratch as large as `x`, of any content.
///
/// # Panics
/// Sizes of `x`, `rest`, books and `out` do not match.
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
    assert_eq!(out.len() * width, x.len() * count, "one code per book and row");
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

/// One row of `x`.
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

/// Σ (a − b)², for two slices of equal length.
#[inline(always)]
fn distance<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 2];
    let mut i = 0;
    while i < a.len() {
        for sum in &mut sums {
            let n = S::LANES.min(a.len().saturating_sub(i));
            // SAFETY: `n` floats follow at `i` in both, and none is read if `n` is 0.
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

pub(crate) struct ResidualCodes<'a> {
    pub codebooks: &'a Weight,
}

impl OpKernel for ResidualCodes<'_> {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        format!("{}-residual-codes", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let data = step.dense(self.codebooks);
        let (entries, width) = (self.codebooks.shape().dims()[1], step.shape(0).last());
        Call::new(move |o| {
            let books = Codebooks { data: &data, entries, width };
            residual_codes(o.isa, o.team, o.inputs.floats(0), books, o.scratch, o.out);
        })
        .with_scratch(step.shape(0).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// The formula in f64; also returns how much nearer the best entry is than the second best.
    fn plain(x: &[f32], books: Codebooks<'_>) -> Vec<(usize, f64)> {
        let mut codes = vec![];
        for row in x.chunks_exact(books.width) {
            let mut rest: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            for book in books.data.chunks_exact(books.entries * books.width) {
                let distance = |entry: &[f32]| -> f64 {
                    entry.iter().zip(&rest).map(|(c, r)| (r - f64::from(*c)).powi(2)).sum()
                };
                let distances: Vec<f64> = book.chunks_exact(books.width).map(distance).collect();
                let mut order: Vec<usize> = (0..books.entries).collect();
                order.sort_by(|a, b| distances[*a].total_cmp(&distances[*b]));
                let ahead = order.get(1).map_or(1.0, |next| distances[*next] - distances[order[0]]);
                codes.push((order[0], ahead));
                let entry = &book[order[0] * books.width..][..books.width];
                rest.iter_mut().zip(entry).for_each(|(r, c)| *r -= f64::from(*c));
            }
        }
        codes
    }

    fn run(isa: Isa, team: &Team, x: &[f32], books: Codebooks<'_>) -> Vec<f32> {
        let count = books.data.len() / (books.entries * books.width);
        let (mut rest, mut out) = (vec![9.0; x.len()], vec![9.0; x.len() / books.width * count]);
        residual_codes(isa, team, x, books, &mut rest, &mut out);
        out
    }

    #[test]
    fn matches_the_formula() {
        for (rows, count, entries, width) in [(1, 1, 1, 1), (5, 3, 20, 7), (9, 4, 64, 32), (3, 2, 33, 129)] {
            let (x, data) = (noise(rows * width, 1), noise(count * entries * width, 2));
            let books = Codebooks { data: &data, entries, width };
            let want = plain(&x, books);
            everywhere(
                |isa, team| run(isa, team, &x, books),
                |isa, got| {
                    for (code, (want, ahead)) in got.iter().zip(&want) {
                        assert!(*ahead > 1e-5, "the case has a clear answer");
                        assert_eq!(code.to_bits() as usize, *want, "{rows} {count} {entries} {width} {isa}");
                    }
                },
            );
        }
    }

    #[test]
    fn of_equal_entries_the_first_is_taken() {
        let data = [5.0, 5.0, 1.0, 1.0, 1.0, 1.0];
        let books = Codebooks { data: &data, entries: 3, width: 2 };
        everywhere(|isa, team| run(isa, team, &[1.0, 0.5], books), |_, got| assert_eq!(got[0].to_bits(), 1));
    }
}
