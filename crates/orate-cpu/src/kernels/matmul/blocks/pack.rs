//! Rounds weights to blocks, in the order in which matmuls read them.

use super::super::pack::{Aligned, Columns, Strided};
use super::BLOCK;
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};
use half::f16;

/// Columns of a panel.
pub(super) const PANEL: usize = 32;

/// Largest weights that are looked for side by side.
const LANES: usize = 16;

/// Groups of four k in a block.
pub(super) const GROUPS: usize = BLOCK / 4;

/// Weight format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// 32 8-bit integers and a scale.
    Q8_0,
    /// 32 4-bit integers and a scale.
    Q4_0,
}

impl BlockFormat {
    /// Name in plans.
    pub fn name(self) -> &'static str {
        match self {
            BlockFormat::Q8_0 => "q8_0",
            BlockFormat::Q4_0 => "q4_0",
        }
    }

    /// What is added to the integers so that they are stored unsigned.
    pub(super) fn offset(self) -> i32 {
        match self {
            BlockFormat::Q8_0 => 128,
            BlockFormat::Q4_0 => 8,
        }
    }

    /// Returns the scale, and integers with the offset that makes them unsigned.
    #[inline(always)]
    fn round(self, weights: &[f32; BLOCK]) -> (f16, [u8; BLOCK]) {
        // Loops, because `map` of an array is a call that knows nothing of the instruction set.
        let mut numbers = [0; BLOCK];
        let d = match self {
            BlockFormat::Q8_0 => {
                let mut largest = [0.0_f32; LANES];
                for weights in weights.as_chunks::<LANES>().0 {
                    for (m, w) in largest.iter_mut().zip(weights) {
                        *m = m.max(w.abs());
                    }
                }
                let d = largest.into_iter().fold(0.0, f32::max) / 127.0;
                let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
                for (q, w) in numbers.iter_mut().zip(weights) {
                    *q = (nearest(w * inverse) as u8) ^ 0x80;
                }
                d
            }
            BlockFormat::Q4_0 => {
                let largest = weights.iter().fold(0.0_f32, |m, &w| if w.abs() > m.abs() { w } else { m });
                let d = largest / -8.0;
                let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
                for (q, w) in numbers.iter_mut().zip(weights) {
                    *q = (w * inverse + 8.5).clamp(0.0, 15.0) as u8;
                }
                d
            }
        };
        (f16::from_f32(d), numbers)
    }
}

/// `x.round() as i8`, which calls a function for each number.
#[inline(always)]
fn nearest(x: f32) -> i8 {
    // With a half, 0.49999997 would become 1.
    const BELOW_A_HALF: f32 = 0.5_f32.next_down();
    (x + BELOW_A_HALF.copysign(x)) as i8
}

/// Weights [K, N] of a matmul in blocks; the bytes are the same for every instruction set.
///
/// Panels of 32 columns, each with its blocks along K. A block is 32 scales (f16), then bytes: group g has
/// those of k = 4g … 4g + 3, column by column. In q4_0, the lower half of a byte belongs to group g and the
/// upper half to group g + 4. Missing values in the last block and panel are zero.
pub struct PackedBlocks {
    format: BlockFormat,
    k: usize,
    n: usize,
    data: Aligned,
}

impl std::fmt::Debug for PackedBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedBlocks([{}, {}] in {})", self.k, self.n, self.format.name())
    }
}

impl PackedBlocks {
    /// Rounds and packs the matrix `w` [k, n].
    ///
    /// # Panics
    /// `w` has too few elements.
    pub fn pack(
        isa: Isa,
        format: BlockFormat,
        team: &Team,
        (k, n): (usize, usize),
        w: Strided<'_>,
    ) -> PackedBlocks {
        w.check(k, n);
        Self::pack_columns(isa, format, team, (k, n), Columns::Matrix(w))
    }

    /// [`PackedBlocks::pack`] with columns that are read one by one.
    pub fn pack_columns(
        isa: Isa,
        format: BlockFormat,
        team: &Team,
        (k, n): (usize, usize),
        w: Columns<'_>,
    ) -> PackedBlocks {
        let mut packed = PackedBlocks { format, k, n, data: Aligned::new(0) };
        packed.data = Aligned::new(packed.panels() * packed.panel_bytes() / size_of::<f32>());
        team.run(packed.panels(), &|_, panel| {
            let mut read = vec![];
            let columns = PANEL.min(n - panel * PANEL);
            let w = w.from(panel * PANEL, k, columns, &mut read);
            // SAFETY: memory of this panel, which only this call writes.
            let out = unsafe {
                std::slice::from_raw_parts_mut(packed.panel(panel).cast_mut(), packed.panel_bytes())
            };
            isa.run(Fill { packed: &packed, columns, w, out });
        });
        packed
    }

    /// Weight format.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Number of inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Predicts [`PackedBlocks::bytes`] for a matrix [k, n].
    pub fn bytes_for(format: BlockFormat, (k, n): (usize, usize)) -> usize {
        Aligned::bytes_for(n.div_ceil(PANEL) * k.div_ceil(BLOCK) * block_bytes(format) / size_of::<f32>())
    }

    /// Size in memory.
    pub fn bytes(&self) -> usize {
        Self::bytes_for(self.format, (self.k, self.n))
    }

    /// Bytes that a matmul of one row reads.
    pub fn bytes_read(&self) -> usize {
        self.panels() * self.panel_bytes()
    }

    /// Number of blocks in a column.
    pub(super) fn blocks(&self) -> usize {
        self.k.div_ceil(BLOCK)
    }

    pub(super) fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Bytes of a block of a panel; a multiple of a cache line.
    #[inline(always)]
    pub(super) fn block_bytes(&self) -> usize {
        block_bytes(self.format)
    }

    fn panel_bytes(&self) -> usize {
        self.blocks() * self.block_bytes()
    }

    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> *const u8 {
        self.data.pointer().cast::<u8>().wrapping_add(panel * self.panel_bytes())
    }
}

#[inline(always)]
fn block_bytes(format: BlockFormat) -> usize {
    match format {
        BlockFormat::Q8_0 => PANEL * (2 + BLOCK),
        BlockFormat::Q4_0 => PANEL * (2 + BLOCK / 2),
    }
}

/// Rounds the columns of a panel.
struct Fill<'a> {
    packed: &'a PackedBlocks,
    columns: usize,
    w: Strided<'a>,
    /// Output memory of the panel.
    out: &'a mut [u8],
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Fill { packed, columns, w, out } = self;
        out.fill(0);
        for (b, out) in out.chunks_exact_mut(packed.block_bytes()).enumerate() {
            let (scales, bytes) = out.split_at_mut(PANEL * 2);
            // Missing weights in the last block or panel are zero, whose stored byte is not 0.
            for column in 0..PANEL {
                let mut weights = [0.0; BLOCK];
                if column < columns {
                    let first = b * BLOCK;
                    let len = BLOCK.min(packed.k - first);
                    if w.k_stride == 1 {
                        weights[..len].copy_from_slice(&w.data[column * w.n_stride + first..][..len]);
                    } else {
                        for (i, to) in weights.iter_mut().enumerate().take(len) {
                            *to = w.data[(first + i) * w.k_stride + column * w.n_stride];
                        }
                    }
                }
                let (d, numbers) = packed.format.round(&weights);
                scales[2 * column..][..2].copy_from_slice(&d.to_bits().to_ne_bytes());
                for (group, four) in numbers.as_chunks::<4>().0.iter().enumerate() {
                    match packed.format {
                        BlockFormat::Q8_0 => {
                            bytes[(group * PANEL + column) * 4..][..4].copy_from_slice(four);
                        }
                        BlockFormat::Q4_0 => {
                            let at = (group % (GROUPS / 2) * PANEL + column) * 4;
                            let shift = if group < GROUPS / 2 { 0 } else { 4 };
                            bytes[at..][..4].iter_mut().zip(four).for_each(|(to, q)| *to |= q << shift);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
impl PackedBlocks {
    /// All bytes.
    pub(super) fn all(&self) -> &[u8] {
        // SAFETY: the panels follow each other.
        unsafe { std::slice::from_raw_parts(self.panel(0), self.bytes_read()) }
    }

    /// The rounded weight at (k, n).
    pub(super) fn weight(&self, k: usize, n: usize) -> f64 {
        let (panel, column, block, i) = (n / PANEL, n % PANEL, k / BLOCK, k % BLOCK);
        // SAFETY: the panel's memory.
        let bytes = unsafe { std::slice::from_raw_parts(self.panel(panel), self.panel_bytes()) };
        let bytes = &bytes[block * self.block_bytes()..][..self.block_bytes()];
        let d = f16::from_bits(u16::from_ne_bytes([bytes[2 * column], bytes[2 * column + 1]]));
        let bytes = &bytes[2 * PANEL..];
        let (group, byte) = (i / 4, i % 4);
        let q = match self.format {
            BlockFormat::Q8_0 => i32::from(bytes[(group * PANEL + column) * 4 + byte]) - 128,
            BlockFormat::Q4_0 => {
                let both = bytes[(group % (GROUPS / 2) * PANEL + column) * 4 + byte];
                i32::from(if group < GROUPS / 2 { both & 15 } else { both >> 4 }) - 8
            }
        };
        f64::from(d.to_f32()) * f64::from(q)
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn numbers_are_rounded_as_by_the_library() {
        let same = |x: f32| assert_eq!(nearest(x), x.round() as i8, "{x}");
        for halves in -260..=260 {
            let x = halves as f32 / 2.0;
            let (above, below) = (x.next_up(), x.next_down());
            [x, above, below, above.next_up(), below.next_down()].into_iter().for_each(same);
        }
        (0..1 << 16).for_each(|i| same((i - (1 << 15)) as f32 / 251.0));
        [1e9, -1e9, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, -0.0]
            .into_iter()
            .for_each(same);
    }
}
