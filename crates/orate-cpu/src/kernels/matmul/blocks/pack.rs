//! Rounds weights to blocks, in the order in which matmuls read them.

use super::super::pack::{Aligned, Columns, Strided};
use super::BLOCK;
use crate::simd::{GROUP_BYTES, Kernel, Simd, UNSIGNED_WEIGHTS};
use crate::{Isa, Team};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;

/// Columns of a panel.
pub(super) const PANEL: usize = GROUP_BYTES / 4;

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

    /// What is added to the integers that are stored, so that they are unsigned or have four bits.
    pub(super) fn offset(self) -> i32 {
        match self {
            BlockFormat::Q8_0 if UNSIGNED_WEIGHTS => 128,
            BlockFormat::Q8_0 => 0,
            BlockFormat::Q4_0 => 8,
        }
    }

    /// Rounds a block of each column and writes it: scales, then bytes.
    #[inline(always)]
    fn round(self, weights: &Square, out: &mut [u8]) {
        // Loops, because `map` of an array is a call that knows nothing of the instruction set.
        let mut largest = [0.0_f32; PANEL];
        for row in weights {
            for (m, w) in largest.iter_mut().zip(row) {
                *m = match self {
                    BlockFormat::Q8_0 => m.max(w.abs()),
                    BlockFormat::Q4_0 if w.abs() > m.abs() => *w,
                    BlockFormat::Q4_0 => *m,
                };
            }
        }
        let (mut d, mut inverse) = ([0.0; PANEL], [0.0; PANEL]);
        for ((d, inverse), m) in d.iter_mut().zip(&mut inverse).zip(largest) {
            *d = match self {
                BlockFormat::Q8_0 => m / 127.0,
                BlockFormat::Q4_0 => m / -8.0,
            };
            *inverse = if *d == 0.0 { 0.0 } else { 1.0 / *d };
        }
        let mut halves = [f16::ZERO; PANEL];
        halves.convert_from_f32_slice(&d);
        let (scales, bytes) = out.split_at_mut(PANEL * 2);
        for (to, d) in scales.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
            *to = d.to_bits().to_ne_bytes();
        }
        let (groups, _) = weights.as_chunks::<4>();
        for (group, out) in bytes.chunks_exact_mut(4 * PANEL).enumerate() {
            for (column, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let inverse = inverse[column];
                let mut four = 0;
                for (i, row) in groups[group].iter().enumerate() {
                    let bits = match self {
                        BlockFormat::Q8_0 => byte(row[column] * inverse) ^ SIGN,
                        BlockFormat::Q4_0 => {
                            let high = &groups[group + GROUPS / 2][i];
                            nibble(row[column] * inverse) | nibble(high[column] * inverse) << 4
                        }
                    };
                    four |= bits << (8 * i);
                }
                *out = four.to_le_bytes();
            }
        }
    }
}

/// Weights of a block of all columns of a panel.
type Square = [[f32; PANEL]; BLOCK];

/// Makes a signed byte an unsigned one that is 128 larger, if weights are stored so.
const SIGN: u32 = if UNSIGNED_WEIGHTS { 0x80 } else { 0 };

/// `(x.round() as i8) as u8`. Without calls and branches, so that it runs in the lanes of vectors.
#[inline(always)]
fn byte(x: f32) -> u32 {
    // With a half, 0.49999997 would become 1.
    const BELOW_A_HALF: f32 = 0.5_f32.next_down();
    truncated(x + BELOW_A_HALF.copysign(x), -128.0, 127.0) as u32 & 0xff
}

/// `(x + 8.5).clamp(0.0, 15.0) as u8`, as [`byte`].
#[inline(always)]
fn nibble(x: f32) -> u32 {
    truncated(x + 8.5, 0.0, 15.0) as u32
}

/// Clamps and truncates; NaN becomes 0.
#[inline(always)]
fn truncated(x: f32, least: f32, most: f32) -> i32 {
    let x = if x.is_nan() { 0.0 } else { x.clamp(least, most) };
    // SAFETY: `x` is within the bounds, which are those of a byte.
    unsafe { x.to_int_unchecked() }
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
        let at_once = w.panels_at_once();
        team.run(packed.panels().div_ceil(at_once), &|_, chunk| {
            let panels = chunk * at_once..packed.panels().min((chunk + 1) * at_once);
            let (first, after) = (panels.start * PANEL, n.min(panels.end * PANEL));
            let mut read = vec![];
            let w = w.from(first, k, after - first, &mut read);
            isa.run(Fill { packed: &packed, panels, w });
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

/// Packs panels, which no other thread writes.
struct Fill<'a> {
    packed: &'a PackedBlocks,
    panels: Range<usize>,
    /// The columns of these panels.
    w: Strided<'a>,
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Fill { packed, panels, w } = self;
        let size = packed.block_bytes();
        let mut weights = [[0.0; PANEL]; BLOCK];
        for block in 0..packed.blocks() {
            let rows = BLOCK.min(packed.k - block * BLOCK);
            for panel in panels.clone() {
                let columns = PANEL.min(packed.n - panel * PANEL);
                if rows < BLOCK || columns < PANEL {
                    // Missing weights are zero, whose stored byte is not 0.
                    weights = [[0.0; PANEL]; BLOCK];
                }
                let start = block * BLOCK * w.k_stride + (panel - panels.start) * PANEL * w.n_stride;
                let w = Strided { data: &w.data[start..], ..w };
                w.copy(s, [rows, columns], weights.as_flattened_mut(), PANEL);
                // SAFETY: a block of a panel that only this call writes.
                let out = unsafe {
                    let out = packed.panel(panel).cast_mut().add(block * size);
                    std::slice::from_raw_parts_mut(out, size)
                };
                packed.format.round(&weights, out);
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
            BlockFormat::Q8_0 => i32::from((bytes[(group * PANEL + column) * 4 + byte] ^ SIGN as u8) as i8),
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
    use super::{byte, nibble};

    #[test]
    fn numbers_are_rounded_as_by_the_library() {
        let same = |x: f32| {
            assert_eq!(byte(x), u32::from((x.round() as i8) as u8), "{x}");
            assert_eq!(nibble(x), u32::from((x + 8.5).clamp(0.0, 15.0) as u8), "{x}");
        };
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
