//! Rounds activations to q8_0 blocks.

use super::super::{ALIGN, Rows};
use super::{BLOCK, BlockFormat};
use crate::kernels::elementwise::SharedMut;
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};

/// 32 values of a row: `scale · numbers`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Block {
    /// Largest magnitude / 127.
    pub scale: f32,
    /// −offset · Σ `numbers`, where every dot product with this block starts; of the first half, if the
    /// weights of halves have their own scales.
    pub start: i32,
    /// As `start`, of the second half; 0 if there are no halves.
    pub second: i32,
    pub numbers: [i8; BLOCK],
}

const FLOATS: usize = size_of::<Block>() / size_of::<f32>();

/// Rounds the rows of x, then those beyond its ends, each padded with zeros to whole blocks, for weights of a
/// format.
///
/// # Panics
/// `scratch` is too short.
pub(super) fn round<'s>(
    isa: Isa,
    team: &Team,
    threads: usize,
    rows: &Rows<'_>,
    (k, format): (usize, BlockFormat),
    scratch: &'s mut [f32],
) -> &'s [Block] {
    let (x, channels, beyond): (_, _, &[f32]) = match *rows {
        Rows::Dense { x, .. } => (x, k, &[]),
        Rows::Conv { x, channels, edges, .. } => (x, channels, edges.rows()),
    };
    let per_row = channels.div_ceil(BLOCK);
    let parts = [x, beyond];
    let count: usize = parts.iter().map(|p| p.len() / channels.max(1)).sum();
    let needed = super::scratch_len(count, channels);
    assert!(scratch.len() >= needed, "scratch has {} floats, {needed} are needed", scratch.len());
    let skip = scratch.as_ptr().align_offset(64).min(ALIGN);
    let blocks = &mut scratch[skip..][..count * per_row * FLOATS];
    let out = SharedMut::new(blocks);
    // Several rows per chunk.
    let step = (16_384 / channels.max(1)).clamp(1, count.max(1));
    let chunks = count.div_ceil(step);
    let chunk = |chunk: usize| {
        for row in chunk * step..((chunk + 1) * step).min(count) {
            let first = x.len() / channels;
            let (part, at) = if row < first { (parts[0], row) } else { (parts[1], row - first) };
            // SAFETY: each row has its own blocks.
            let out = unsafe { out.part(row * per_row * FLOATS..(row + 1) * per_row * FLOATS) };
            isa.run(Row { x: &part[at * channels..][..channels], format, out });
        }
    };
    if threads == 1 {
        (0..chunks).for_each(chunk);
    } else {
        team.run(chunks, &|_, i| chunk(i));
    }
    // SAFETY: a block is `FLOATS` floats of any content, and all of them have been written.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), count * per_row) }
}

struct Row<'a> {
    x: &'a [f32],
    format: BlockFormat,
    /// Memory of the blocks.
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (whole, rest) = self.x.as_chunks::<BLOCK>();
        let mut out = self.out.as_chunks_mut::<FLOATS>().0.iter_mut();
        for (x, out) in whole.iter().zip(&mut out) {
            round_block(s, x, self.format, out);
        }
        if let Some(out) = out.next() {
            let mut x = [0.0; BLOCK];
            x[..rest.len()].copy_from_slice(rest);
            round_block(s, &x, self.format, out);
        }
    }
}

/// Rounds 32 values.
#[inline(always)]
fn round_block<S: Simd>(s: S, x: &[f32; BLOCK], format: BlockFormat, out: &mut [f32; FLOATS]) {
    let mut largest = s.splat(0.0);
    for x in x.chunks_exact(S::LANES) {
        // SAFETY: `x` has LANES floats.
        largest = s.max(largest, s.abs(unsafe { s.load(x.as_ptr()) }));
    }
    let largest = s.reduce_max(largest);
    let inverse = 127.0 / largest;
    // Zeros, and what is too small to have an inverse, become 0.
    let inverse = s.splat(if inverse.is_finite() { inverse } else { 0.0 });
    let mut numbers = [0; BLOCK];
    // Whole numbers of this size are exact as floats.
    let mut sums = [s.splat(0.0); 2];
    let halves = x.as_chunks::<{ BLOCK / 2 }>().0.iter().zip(numbers.as_chunks_mut::<{ BLOCK / 2 }>().0);
    for (sum, (x, to)) in sums.iter_mut().zip(halves) {
        for (x, to) in x.chunks_exact(S::LANES).zip(to.chunks_exact_mut(S::LANES)) {
            // SAFETY: `x` and `to` have LANES elements.
            *sum = s.add(*sum, unsafe { s.store_i8(to.as_mut_ptr(), s.mul(s.load(x.as_ptr()), inverse)) });
        }
    }
    let start = |sum: S::V| -format.offset() * s.reduce_add(sum) as i32;
    let (start, second) = match format.has_halves() {
        true => (start(sums[0]), start(sums[1])),
        false => (start(s.add(sums[0], sums[1])), 0),
    };
    let block = Block { scale: largest / 127.0, start, second, numbers };
    // SAFETY: `out` is as large as a block, and floats are aligned as it is.
    unsafe { out.as_mut_ptr().cast::<Block>().write(block) };
}
