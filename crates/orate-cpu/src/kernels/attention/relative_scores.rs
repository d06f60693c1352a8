//! Scores of queries with vectors for each distance to a key, as in Transformer-XL and Conformer.
//!
//! ```text
//! out[b,h,i,j] = scale · q[b,i,h] · p[T−1−i+j,h]
//! ```
//!
//! `q` [B, T, H·D], `p` [2T−1, H·D], `out` [B, H, T, T]; f32. First each head's p is packed into panels, as
//! the keys of an attention. Then, for each head and block of queries: the matmul with all p that any of
//! them needs, and a copy of each row to its place, one column earlier than that of the row before.

use super::block::BLOCK;
use super::operands::Sequence;
use super::pack::{PANEL, Pack, padded};
use super::product::{Panels, Product};
use crate::kernels::elementwise::SharedMut;
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::ValueInfo;

/// Sizes and factor of `relative_scores`.
#[derive(Clone, Copy, Debug)]
pub struct RelativeScores {
    /// H
    pub heads: usize,
    /// D
    pub head_dim: usize,
    /// T
    pub time: usize,
    /// Factor of the results.
    pub scale: f32,
}

impl RelativeScores {
    /// Floats of scratch memory.
    pub fn scratch_len(&self, threads: usize) -> usize {
        self.heads * self.panels_len() + threads * self.worker_scratch()
    }

    /// Floats of a head's packed p.
    fn panels_len(&self) -> usize {
        self.head_dim * padded(2 * self.time - 1)
    }

    /// Columns that a block of queries needs, from the start of a panel on.
    fn columns(&self) -> usize {
        padded(self.time + BLOCK - 1 + PANEL - 1)
    }

    /// Scaled queries, and results before they are moved.
    fn worker_scratch(&self) -> usize {
        BLOCK * (self.head_dim + self.columns())
    }

    /// Fills `out` [B, H, T, T].
    ///
    /// # Panics
    /// Sizes do not match, or there is less scratch than [`RelativeScores::scratch_len`].
    pub fn run(
        &self,
        (isa, team): (Isa, &Team),
        (q, p): (&[f32], &[f32]),
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let RelativeScores { heads, head_dim, time, .. } = *self;
        let width = heads * head_dim;
        if out.is_empty() {
            return;
        }
        let batch = q.len() / (time * width);
        assert_eq!(q.len(), batch * time * width, "queries are [B, T, H·D]");
        assert_eq!(p.len(), (2 * time - 1) * width, "p is [2T−1, H·D]");
        assert_eq!(out.len(), batch * heads * time * time, "scores are [B, H, T, T]");
        let needed = self.scratch_len(team.threads());
        assert!(scratch.len() >= needed, "scratch has {} floats, {needed} are needed", scratch.len());

        let panels_len = self.panels_len();
        let (packed, rest) = scratch.split_at_mut(heads * panels_len);
        let shared = SharedMut::new(packed);
        let rows = Sequence { data: p, batch: 1, steps: 2 * time - 1, stride: width };
        team.run(heads, &|_, h| {
            // SAFETY: each chunk has its own head's panels.
            let panels = unsafe { shared.part(h * panels_len..(h + 1) * panels_len) };
            let keys = rows.rows().head(0, h * head_dim);
            isa.run(Pack { keys, steps: rows.steps, dim: head_dim, panels });
        });

        let packed = &*packed;
        let own_len = self.worker_scratch();
        let (out, rest) = (SharedMut::new(out), SharedMut::new(rest));
        let blocks = time.div_ceil(BLOCK);
        team.run(batch * heads * blocks, &|worker, chunk| {
            let (b, h, block) = (chunk / blocks / heads, chunk / blocks % heads, chunk % blocks);
            let first = block * BLOCK;
            let rows = BLOCK.min(time - first);
            let at = ((b * heads + h) * time + first) * time;
            // SAFETY: a worker number belongs to one thread at a time, and the rows to this chunk.
            let (own, out) = unsafe {
                let own = worker.index() * own_len;
                (rest.part(own..own + own_len), out.part(at..at + rows * time))
            };
            let (scaled, moved) = own.split_at_mut(BLOCK * head_dim);
            isa.run(Rows {
                scores: self,
                q: &q[(b * time + first) * width + h * head_dim..],
                panels: &packed[h * panels_len..][..panels_len],
                first,
                rows,
                scaled,
                moved,
                out,
            });
        });
    }
}

/// `rows` queries of a head from `first` on.
struct Rows<'a> {
    scores: &'a RelativeScores,
    q: &'a [f32],
    panels: &'a [f32],
    first: usize,
    rows: usize,
    scaled: &'a mut [f32],
    moved: &'a mut [f32],
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RelativeScores { heads, head_dim: dim, time, scale } = *self.scores;
        for (i, to) in self.scaled.chunks_exact_mut(dim).enumerate().take(self.rows) {
            let q = &self.q[i * heads * dim..][..dim];
            to.iter_mut().zip(q).for_each(|(to, q)| *to = q * scale);
        }
        // Row of p that the last query needs for the first key, and one after that of the first query for
        // the last key.
        let (least, end) = (time - self.first - self.rows, 2 * time - 1 - self.first);
        let start = least / PANEL * PANEL;
        let columns = (end - start).next_multiple_of(S::LANES);
        let pitch = self.scores.columns();
        let product = Product {
            a: self.scaled.as_ptr(),
            a_stride: dim,
            b: Panels { first: self.panels[start * dim..].as_ptr(), stride: PANEL, panel: PANEL * dim },
            depth: dim,
            begun: 0,
            rows: self.rows,
            columns,
            factors: None,
            out: self.moved.as_mut_ptr(),
            out_stride: pitch,
        };
        // SAFETY: `scaled` has `rows` rows of `dim`, the panels hold all columns, `moved` has rows of
        // `pitch`.
        unsafe { product.run(s) };
        for (i, out) in self.out.chunks_exact_mut(time).enumerate() {
            let from = time - 1 - self.first - i - start;
            out.copy_from_slice(&self.moved[i * pitch + from..][..time]);
        }
    }
}

pub(crate) struct Op {
    pub heads: usize,
    pub scale: f32,
}

impl OpKernel for Op {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        format!("{}-relative-scores", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let [_, time, width] = step.dims(0);
        let scores =
            RelativeScores { heads: self.heads, head_dim: width / self.heads, time, scale: self.scale };
        Call::new(move |o| {
            scores.run((o.isa, o.team), (o.inputs.floats(0), o.inputs.floats(1)), o.out, o.scratch)
        })
        .with_scratch(scores.scratch_len(step.core.team.threads()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// Dot products of up to 64 terms.
    const ERROR: f64 = 2e-6;

    #[test]
    fn matches_the_formula() {
        for (batch, time, heads, dim) in
            [(1, 1, 1, 1), (1, 2, 2, 4), (2, 25, 3, 17), (1, 70, 8, 64), (1, 24, 1, 33), (3, 9, 2, 8)]
        {
            let width = heads * dim;
            let (q, p) = (noise(batch * time * width, 1), noise((2 * time - 1) * width, 2));
            let scores = RelativeScores { heads, head_dim: dim, time, scale: 0.125 };
            let want: Vec<f64> = (0..batch * heads * time * time)
                .map(|at| {
                    let (j, i) = (at % time, at / time % time);
                    let (h, b) = (at / time / time % heads, at / time / time / heads);
                    let q = &q[(b * time + i) * width + h * dim..][..dim];
                    let p = &p[(time - 1 + j - i) * width + h * dim..][..dim];
                    0.125 * q.iter().zip(p).map(|(q, p)| f64::from(*q) * f64::from(*p)).sum::<f64>()
                })
                .collect();
            everywhere(
                |isa, team| {
                    let mut out = vec![9.0; want.len()];
                    let mut scratch = vec![f32::NAN; scores.scratch_len(team.threads())];
                    scores.run((isa, team), (&q, &p), &mut out, &mut scratch);
                    out
                },
                |isa, got| assert_close(got, &want, ERROR, &format!("{batch} {time} {heads} {dim} {isa}")),
            );
        }
    }

    #[test]
    #[ignore = "timing; run with --ignored --nocapture"]
    fn bench() {
        let team = Team::new(1).expect("a thread");
        for isa in Isa::available() {
            for time in [350, 700, 1500] {
                let (heads, dim) = (8, 64);
                let (q, p) = (noise(time * heads * dim, 1), noise((2 * time - 1) * heads * dim, 2));
                let scores = RelativeScores { heads, head_dim: dim, time, scale: 0.125 };
                let mut out = vec![0.0; heads * time * time];
                let mut scratch = vec![0.0; scores.scratch_len(1)];
                let t = best_of(5, || scores.run((isa, &team), (&q, &p), &mut out, &mut scratch));
                let gflops = 2.0 * (heads * dim * time * time) as f64 / t / 1e9;
                println!("{isa} T {time}: {:.2} ms, {gflops:.1} GFLOP/s", t * 1e3);
            }
        }
    }
}
