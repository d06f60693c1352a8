//! Rounds weights to blocks, in the order in which matmuls read them.

use super::super::pack::{Aligned, Columns, Strided};
use super::BLOCK;
use crate::simd::{GROUP_BYTES, Kernel, Simd, UNSIGNED_WEIGHTS};
use crate::{Isa, Team};
use half::f16;
use half::slice::HalfFloatSliceExt;
use orate_graph::Precision;
use orate_graph::blocks::{SUPER_BLOCK, SuperBlock, SuperFormat};
use std::ops::Range;

/// Columns of a panel.
pub(super) const PANEL: usize = GROUP_BYTES / 4;

/// Groups of four k in a block.
pub(super) const GROUPS: usize = BLOCK / 4;

/// Blocks of a column that share a header.
pub(super) const PER_SUPER: usize = SUPER_BLOCK / BLOCK;

/// Weight format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// 32 8-bit integers and a scale.
    Q8_0,
    /// 32 4-bit integers and a scale.
    Q4_0,
    /// 256 integers in sub-blocks.
    Super(SuperFormat),
}

impl BlockFormat {
    /// All of them, the most exact first.
    pub const ALL: [BlockFormat; 5] = [
        BlockFormat::Q8_0,
        BlockFormat::Super(SuperFormat::Q6K),
        BlockFormat::Super(SuperFormat::Q5K),
        BlockFormat::Super(SuperFormat::Q4K),
        BlockFormat::Q4_0,
    ];

    /// The format of a precision; `None` if its weights are numbers of their own.
    pub fn of(precision: Precision) -> Option<BlockFormat> {
        match precision {
            Precision::Q8_0 => Some(BlockFormat::Q8_0),
            Precision::Q4_0 => Some(BlockFormat::Q4_0),
            other => SuperFormat::of(other).map(BlockFormat::Super),
        }
    }

    /// The precision of these weights.
    pub fn precision(self) -> Precision {
        match self {
            BlockFormat::Q8_0 => Precision::Q8_0,
            BlockFormat::Q4_0 => Precision::Q4_0,
            BlockFormat::Super(SuperFormat::Q4K) => Precision::Q4K,
            BlockFormat::Super(SuperFormat::Q5K) => Precision::Q5K,
            BlockFormat::Super(SuperFormat::Q6K) => Precision::Q6K,
        }
    }

    /// Name in plans.
    pub fn name(self) -> &'static str {
        self.precision().name()
    }

    /// Weights of a column that share a header or a scale.
    pub fn block_len(self) -> usize {
        self.precision().block()
    }

    /// Bytes of [`Self::block_len`] weights in a file.
    pub fn stored_bytes(self) -> usize {
        match self {
            BlockFormat::Q8_0 => 2 + BLOCK,
            BlockFormat::Q4_0 => 2 + BLOCK / 2,
            BlockFormat::Super(f) => f.bytes(),
        }
    }

    /// What is added to the integers that are stored, so that they are unsigned or have few bits. Where
    /// weights have a minimum it is −1: what is subtracted is the minimum times the sum of x.
    pub(super) const fn offset(self) -> i32 {
        match self {
            BlockFormat::Q8_0 if UNSIGNED_WEIGHTS => 128,
            BlockFormat::Q8_0 => 0,
            BlockFormat::Q4_0 => 8,
            BlockFormat::Super(SuperFormat::Q4K | SuperFormat::Q5K) => -1,
            BlockFormat::Super(SuperFormat::Q6K) => 32,
        }
    }

    /// Whether each half of a block has a scale.
    pub(super) const fn has_halves(self) -> bool {
        matches!(self, BlockFormat::Super(SuperFormat::Q6K))
    }

    /// Bytes before every [`PER_SUPER`] blocks of a panel: factors of scales, then of minima.
    #[inline(always)]
    pub(super) const fn header_bytes(self) -> usize {
        match self {
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => 0,
            BlockFormat::Super(SuperFormat::Q6K) => 2 * PANEL,
            BlockFormat::Super(SuperFormat::Q4K | SuperFormat::Q5K) => 4 * PANEL,
        }
    }

    /// Bytes of a block of a panel; a multiple of a cache line.
    #[inline(always)]
    pub(super) const fn block_bytes(self) -> usize {
        match self {
            BlockFormat::Q8_0 => PANEL * (2 + BLOCK),
            BlockFormat::Q4_0 => PANEL * (2 + BLOCK / 2),
            BlockFormat::Super(f) => PANEL * (2 + BLOCK * f.bits() as usize / 8),
        }
    }

    /// Bytes of a panel with `k` inputs.
    fn panel_bytes(self, k: usize) -> usize {
        let blocks = k.div_ceil(BLOCK);
        blocks.div_ceil(PER_SUPER) * self.header_bytes() + blocks * self.block_bytes()
    }

    /// Rounds a block of each column to `q8_0` or `q4_0` and writes it: scales, then bytes.
    #[inline(always)]
    fn round(self, weights: &Square, out: &mut [u8]) {
        // Loops, because `map` of an array is a call that knows nothing of the instruction set.
        let mut largest = [0.0_f32; PANEL];
        for row in weights {
            for (m, w) in largest.iter_mut().zip(row) {
                *m = match self {
                    BlockFormat::Q8_0 => m.max(w.abs()),
                    _ if w.abs() > m.abs() => *w,
                    _ => *m,
                };
            }
        }
        let (mut d, mut inverse) = ([0.0; PANEL], [0.0; PANEL]);
        for ((d, inverse), m) in d.iter_mut().zip(&mut inverse).zip(largest) {
            *d = match self {
                BlockFormat::Q8_0 => m / 127.0,
                _ => m / -8.0,
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
                        _ => {
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

/// Of `q8_0` and `q4_0`.
impl BlockFormat {
    /// Writes a column of a block of a panel as a file has it; zeros without one.
    fn place(self, column: usize, from: Option<&[u8]>, out: &mut [u8]) {
        let (scales, bytes) = out.split_at_mut(PANEL * 2);
        let (d, numbers) = from.unwrap_or(&[0, 0]).split_at(2);
        scales[2 * column..][..2].copy_from_slice(&u16::from_le_bytes([d[0], d[1]]).to_ne_bytes());
        let zero = if self == BlockFormat::Q8_0 { 0 } else { 0x88 };
        let number = |i: usize| numbers.get(i).copied().unwrap_or(zero);
        for (group, out) in bytes.chunks_exact_mut(4 * PANEL).enumerate() {
            for (i, to) in out[4 * column..][..4].iter_mut().enumerate() {
                *to = match self {
                    BlockFormat::Q8_0 => number(4 * group + i) ^ SIGN as u8,
                    _ => number(4 * group + i),
                };
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
/// those of k = 4g … 4g + 3, column by column. In q4_0 and q4_k, the lower half of a byte belongs to group g
/// and the upper half to group g + 4. Missing values in the last block and panel are zero.
///
/// In the formats of 256 weights, every eight blocks have a header: d (f16) of 32 columns, and e (f16) where
/// there are minima. Instead of its scales, a block begins with 32 bytes of scales, then 32 of minima, or of
/// scales of the second halves. In q5_k and q6_k, byte vector v of the lower four bits belongs to groups 2v
/// and 2v + 1. The upper bits follow: in q5_k a vector with bit g of group g, in q6_k one for each half, with
/// bits 2j and 2j + 1 of its group j.
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
        let packed = PackedBlocks::new(format, (k, n));
        let at_once = w.panels_at_once();
        team.run(packed.panels().div_ceil(at_once), &|_, chunk| {
            let panels = chunk * at_once..packed.panels().min((chunk + 1) * at_once);
            let (first, after) = (panels.start * PANEL, n.min(panels.end * PANEL));
            let mut read = vec![];
            let w = w.from(first, k, after - first, &mut read);
            match format {
                BlockFormat::Super(format) => isa.run(FillSuper { packed: &packed, format, panels, w }),
                _ => isa.run(Fill { packed: &packed, panels, w }),
            }
        });
        packed
    }

    /// Packs blocks of a file as they are: `n` columns of `k` weights, which are whole blocks in ggml's
    /// layout.
    ///
    /// # Panics
    /// `bytes` are not those of the matrix.
    pub fn pack_stored(
        format: BlockFormat,
        team: &Team,
        (k, n): (usize, usize),
        bytes: &[u8],
    ) -> PackedBlocks {
        let packed = PackedBlocks::new(format, (k, n));
        let size = format.stored_bytes();
        let per_column = k / format.block_len() * size;
        assert!(
            k.is_multiple_of(format.block_len()) && bytes.len() == n * per_column,
            "blocks of [{k}, {n}]"
        );
        team.run(packed.panels(), &|_, panel| {
            let columns = PANEL.min(n - panel * PANEL);
            let block_of = |column: usize, block: usize| {
                &bytes[(panel * PANEL + column) * per_column + block * size..][..size]
            };
            match format {
                BlockFormat::Super(format) => {
                    let mut blocks = vec![SuperBlock::ZERO; PANEL];
                    for block in 0..k / SUPER_BLOCK {
                        for (column, to) in blocks.iter_mut().take(columns).enumerate() {
                            *to = SuperBlock::read(format, block_of(column, block));
                        }
                        packed.write_super(format, panel, block, &blocks);
                    }
                }
                _ => {
                    for block in 0..packed.blocks() {
                        // SAFETY: no other chunk has this panel.
                        let out =
                            unsafe { packed.part(panel, block * packed.block_bytes(), packed.block_bytes()) };
                        for column in 0..PANEL {
                            let from = (column < columns).then(|| block_of(column, block));
                            format.place(column, from, out);
                        }
                    }
                }
            }
        });
        packed
    }

    /// Memory of any content.
    fn new(format: BlockFormat, (k, n): (usize, usize)) -> PackedBlocks {
        let mut packed = PackedBlocks { format, k, n, data: Aligned::new(0) };
        packed.data = Aligned::new(packed.panels() * packed.panel_bytes() / size_of::<f32>());
        packed
    }

    /// Bytes of a panel.
    ///
    /// # Safety
    /// No other thread has them.
    #[expect(clippy::mut_from_ref, reason = "panels are written by one thread each")]
    unsafe fn part(&self, panel: usize, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: the caller vouches for the thread, and the range is within the panel.
        unsafe { std::slice::from_raw_parts_mut(self.panel(panel).cast_mut().add(at), len) }
    }

    /// Writes block `block` of 256 of all columns of a panel, which no other thread writes.
    #[inline(always)]
    fn write_super(&self, format: SuperFormat, panel: usize, block: usize, columns: &[SuperBlock]) {
        let kept = BlockFormat::Super(format);
        let (header, size) = (kept.header_bytes(), kept.block_bytes());
        let unit = header + PER_SUPER * size;
        // SAFETY: the caller has the panel alone, and it has this block.
        let out = unsafe { self.part(panel, block * unit, unit) };
        let (head, rest) = out.split_at_mut(header);
        for (column, block) in columns.iter().enumerate() {
            head[2 * column..][..2].copy_from_slice(&block.d.to_ne_bytes());
            if let Some(to) = head.get_mut(2 * PANEL + 2 * column..).filter(|to| !to.is_empty()) {
                to[..2].copy_from_slice(&block.e.to_ne_bytes());
            }
        }
        for (b, out) in rest.chunks_exact_mut(size).enumerate() {
            let (scales, bytes) = out.split_at_mut(2 * PANEL);
            for (column, block) in columns.iter().enumerate() {
                let halves = [block.scales[2 * b] as u8, block.scales[2 * b + 1] as u8];
                [scales[column], scales[PANEL + column]] = match kept.has_halves() {
                    true => halves,
                    false => [block.scales[b] as u8, block.minima[b]],
                };
                // Four integers at a time.
                let mut groups = [0; GROUPS];
                for (group, codes) in groups.iter_mut().zip(block.codes[b * BLOCK..].as_chunks().0) {
                    *group = u32::from_le_bytes(*codes);
                }
                let mut put = |vector: usize, word: u32| {
                    bytes[vector * GROUP_BYTES + 4 * column..][..4].copy_from_slice(&word.to_le_bytes());
                };
                for vector in 0..GROUPS / 2 {
                    let (lower, upper) = match format {
                        SuperFormat::Q4K => (groups[vector], groups[vector + GROUPS / 2]),
                        _ => (groups[2 * vector], groups[2 * vector + 1]),
                    };
                    put(vector, lower & 0x0f0f_0f0f | (upper & 0x0f0f_0f0f) << 4);
                }
                let high = |groups: &[u32], bits: usize| {
                    let mask = if bits == 1 { 0x0101_0101 } else { 0x0303_0303 };
                    groups.iter().enumerate().fold(0, |word, (i, g)| word | (g >> 4 & mask) << (bits * i))
                };
                match format {
                    SuperFormat::Q4K => {}
                    SuperFormat::Q5K => put(GROUPS / 2, high(&groups, 1)),
                    SuperFormat::Q6K => {
                        put(GROUPS / 2, high(&groups[..GROUPS / 2], 2));
                        put(GROUPS / 2 + 1, high(&groups[GROUPS / 2..], 2));
                    }
                }
            }
        }
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
        Aligned::bytes_for(n.div_ceil(PANEL) * format.panel_bytes(k) / size_of::<f32>())
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
        self.format.block_bytes()
    }

    fn panel_bytes(&self) -> usize {
        self.format.panel_bytes(self.k)
    }

    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> *const u8 {
        self.data.pointer().cast::<u8>().wrapping_add(panel * self.panel_bytes())
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

/// [`Fill`] for blocks of 256.
struct FillSuper<'a> {
    packed: &'a PackedBlocks,
    format: SuperFormat,
    panels: Range<usize>,
    w: Strided<'a>,
}

impl Kernel for FillSuper<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let FillSuper { packed, format, panels, w } = self;
        assert!(packed.k.is_multiple_of(SUPER_BLOCK), "columns of {} weights in {format:?}", packed.k);
        let (mut weights, mut blocks) = ([0.0; SUPER_BLOCK], vec![SuperBlock::ZERO; PANEL]);
        for panel in panels.clone() {
            let columns = PANEL.min(packed.n - panel * PANEL);
            blocks[columns..].fill(SuperBlock::ZERO);
            for block in 0..packed.k / SUPER_BLOCK {
                for (column, to) in blocks.iter_mut().take(columns).enumerate() {
                    let column = (panel - panels.start) * PANEL + column;
                    let start = block * SUPER_BLOCK * w.k_stride + column * w.n_stride;
                    for (i, to) in weights.iter_mut().enumerate() {
                        *to = w.data[start + i * w.k_stride];
                    }
                    *to = SuperBlock::round(format, &weights);
                }
                packed.write_super(format, panel, block, &blocks);
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
        let header = self.format.header_bytes();
        let unit = header + PER_SUPER * self.block_bytes();
        let (head, bytes) = match self.format {
            BlockFormat::Super(_) => {
                let (head, rest) = bytes[block / PER_SUPER * unit..].split_at(header);
                (head, &rest[block % PER_SUPER * self.block_bytes()..][..self.block_bytes()])
            }
            _ => (bytes, &bytes[block * self.block_bytes()..][..self.block_bytes()]),
        };
        let half = |bytes: &[u8], i: usize| {
            f64::from(f16::from_bits(u16::from_ne_bytes([bytes[2 * i], bytes[2 * i + 1]])).to_f32())
        };
        let (scales, bytes) = bytes.split_at(2 * PANEL);
        let (group, byte) = (i / 4, 4 * column + i % 4);
        let nibble = |vector: usize, is_upper: bool| {
            let both = bytes[vector * GROUP_BYTES + byte];
            if is_upper { both >> 4 } else { both & 15 }
        };
        let high = |vector: usize, at: usize| bytes[(4 + vector) * GROUP_BYTES + byte] >> at;
        let q = f64::from(match self.format {
            BlockFormat::Q8_0 => {
                return half(scales, column)
                    * f64::from((bytes[group * GROUP_BYTES + byte] ^ SIGN as u8) as i8);
            }
            BlockFormat::Q4_0 | BlockFormat::Super(SuperFormat::Q4K) => nibble(group % 4, group >= 4),
            BlockFormat::Super(SuperFormat::Q5K) => {
                nibble(group / 2, group % 2 == 1) | (high(0, group) & 1) << 4
            }
            BlockFormat::Super(SuperFormat::Q6K) => {
                nibble(group / 2, group % 2 == 1) | (high(group / 4, group % 4 * 2) & 3) << 4
            }
        });
        let second = f64::from(scales[PANEL + column] as i8);
        match self.format {
            BlockFormat::Super(SuperFormat::Q6K) => {
                let scale = if i < 16 { f64::from(scales[column] as i8) } else { second };
                half(head, column) * scale * (q - 32.0)
            }
            BlockFormat::Super(_) => {
                half(head, column) * f64::from(scales[column]) * q - half(head, PANEL + column) * second
            }
            _ => half(scales, column) * (q - 8.0),
        }
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
