//! Packs weights in the order in which matmuls read them.

use super::{narrow, tile};
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;

/// A matrix with strides: element (k, n) is `data[k * k_stride + n * n_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Stride between inputs.
    pub k_stride: usize,
    /// Stride between outputs.
    pub n_stride: usize,
}

impl Strided<'_> {
    pub(crate) fn check(&self, k: usize, n: usize) {
        if k > 0 && n > 0 {
            let last = (k - 1) * self.k_stride + (n - 1) * self.n_stride;
            assert!(last < self.data.len(), "[{k}, {n}] weights end behind {} elements", self.data.len());
        }
    }

    /// Copies the first rows and columns to `out`, whose rows are `stride` apart.
    #[inline(always)]
    pub(super) fn copy<S: Simd>(self, s: S, [rows, columns]: [usize; 2], out: &mut [f32], stride: usize) {
        self.check(rows, columns);
        assert!(rows == 0 || (rows - 1) * stride + columns <= out.len(), "no room for [{rows}, {columns}]");
        if self.n_stride == 1 {
            for (k, out) in out.chunks_mut(stride).take(rows).enumerate() {
                let (from, to) = (&self.data[k * self.k_stride..][..columns], &mut out[..columns]);
                // Vectors, because these rows are too short for a call of `memcpy`.
                for (from, to) in from.chunks(S::LANES).zip(to.chunks_mut(S::LANES)) {
                    // SAFETY: both have as many floats.
                    unsafe {
                        match from.len() == S::LANES {
                            true => s.store(to.as_mut_ptr(), s.load(from.as_ptr())),
                            false => {
                                let row = s.load_partial(from.as_ptr(), from.len());
                                s.store_partial(to.as_mut_ptr(), row, from.len());
                            }
                        }
                    }
                }
            }
            return;
        }
        // Whole squares have neighbors of `k` in memory.
        let squares = match self.k_stride {
            1 => [rows / S::LANES * S::LANES, columns / S::LANES * S::LANES],
            _ => [0, 0],
        };
        for column in (0..squares[1]).step_by(S::LANES) {
            for k in (0..squares[0]).step_by(S::LANES) {
                // SAFETY: the square is part of the rows and columns, which were checked for both sides.
                unsafe {
                    let from = self.data.as_ptr().add(k + column * self.n_stride);
                    s.transpose(from, self.n_stride, out.as_mut_ptr().add(k * stride + column), stride);
                }
            }
        }
        for k in 0..rows {
            let first = if k < squares[0] { squares[1] } else { 0 };
            for column in first..columns {
                out[k * stride + column] = self.data[k * self.k_stride + column * self.n_stride];
            }
        }
    }
}

/// Element type of packed weights. 16-bit ones are widened to f32 slice by slice when the matmul reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// Four bytes.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl Element {
    /// Number of bf16 values that an element is the sum of.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn planes(self) -> usize {
        match self {
            Element::F32 => 3,
            Element::F16 => 2,
            Element::Bf16 => 1,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
        }
    }

    /// Writes the elements that are nearest to `numbers`, at most [`MOST_IN_STRIP`].
    #[inline(always)]
    fn write(self, numbers: &[f32], out: &mut [MaybeUninit<u8>]) {
        match self {
            Element::F32 => copy_bytes(numbers, out),
            Element::F16 => {
                let mut halves = [f16::ZERO; MOST_IN_STRIP];
                let halves = &mut halves[..numbers.len()];
                halves.convert_from_f32_slice(numbers);
                copy_bytes(halves, out);
            }
            Element::Bf16 => {
                let mut halves = [bf16::ZERO; MOST_IN_STRIP];
                let halves = &mut halves[..numbers.len()];
                // The conversion of slices knows nothing of the instruction set.
                halves.iter_mut().zip(numbers).for_each(|(to, x)| *to = bf16::from_f32(*x));
                copy_bytes(halves, out);
            }
        }
    }
}

/// Source of the columns of a matrix [k, n] to pack.
#[derive(Clone, Copy)]
pub enum Columns<'a> {
    /// A matrix in memory.
    Matrix(Strided<'a>),
    /// A function that reads a column of k numbers.
    Each(&'a (dyn Fn(usize, &mut [f32]) + Sync)),
}

impl<'a> Columns<'a> {
    /// Copies column `j`.
    fn read(self, j: usize, out: &mut [f32]) {
        match self {
            Columns::Matrix(w) => {
                let column = w.data[j * w.n_stride..].iter().step_by(w.k_stride.max(1));
                out.iter_mut().zip(column).for_each(|(to, x)| *to = *x);
            }
            Columns::Each(read) => read(j, out),
        }
    }

    /// Panels that are packed together. Rows of a file are read some hundred bytes at a time: shorter parts
    /// of rows that are kilobytes apart cost a page of the TLB each.
    pub(super) fn panels_at_once(self) -> usize {
        match self {
            Columns::Matrix(Strided { n_stride: 1, .. }) => 8,
            _ => 1,
        }
    }

    /// Returns `n` columns from `first` on as a matrix; reads them into `memory` if they are not in memory.
    pub(super) fn from<'m>(self, first: usize, k: usize, n: usize, memory: &'m mut Vec<f32>) -> Strided<'m>
    where
        'a: 'm,
    {
        match self {
            Columns::Matrix(w) => Strided { data: w.data.get(first * w.n_stride..).unwrap_or(&[]), ..w },
            Columns::Each(read) => {
                memory.resize(n * k, 0.0);
                memory.chunks_exact_mut(k.max(1)).enumerate().for_each(|(j, column)| read(first + j, column));
                Strided { data: memory, k_stride: 1, n_stride: k }
            }
        }
    }
}

/// Partition of a matmul for an instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Floats per vector.
    pub lanes: usize,
    /// Maximum rows of a tile.
    pub rows: usize,
    /// Maximum vectors per row of a panel.
    pub vectors: usize,
}

impl Shape {
    pub fn of(isa: Isa) -> Shape {
        struct Of;
        impl Kernel for Of {
            type Output = Shape;
            #[inline(always)]
            fn run<S: Simd>(self, _: S) -> Shape {
                let (rows, vectors) = tile::size(S::REGISTERS);
                Shape { lanes: S::LANES, rows, vectors }
            }
        }
        let shape = isa.run(Of);
        // Matrix tiles come in pairs, see `amx`.
        if isa.has_tiles() { Shape { vectors: 2, ..shape } } else { shape }
    }

    /// Number of panels for `n` columns.
    pub fn panels(self, n: usize) -> usize {
        n.div_ceil(self.lanes).div_ceil(self.vectors)
    }

    /// First vector and number of vectors of a panel. All panels are full except the last, or the last two if
    /// that avoids a panel of one vector: narrow tiles wait for their own sums.
    pub fn panel(self, n: usize, panel: usize) -> (usize, usize) {
        let vectors = n.div_ceil(self.lanes);
        let panels = vectors.div_ceil(self.vectors);
        let missing = panels * self.vectors - vectors;
        let before = |p: usize| match panels - p {
            1 if missing > 1 && panels > 1 => p * self.vectors - (missing - 1),
            _ => (p * self.vectors).min(vectors),
        };
        (before(panel), before(panel + 1) - before(panel))
    }
}

/// Weights [K, N] of a matmul, packed for one instruction set.
///
/// Panels in order, each [K, columns] with contiguous rows; the last vector of a row is padded with zeros.
pub struct PackedWeights {
    isa: Isa,
    shape: Shape,
    element: Element,
    k: usize,
    n: usize,
    data: Aligned,
    /// If columns are few: [N, K] instead, as f32 in any format.
    narrow: Vec<f32>,
}

impl std::fmt::Debug for PackedWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedWeights([{}, {}] for {})", self.k, self.n, self.isa)
    }
}

/// One panel of packed weights.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    /// [K, vectors · lanes] in the element type.
    pub data: *const u8,
    pub first_column: usize,
    pub vectors: usize,
}

impl PackedWeights {
    /// Packs the matrix `w` [k, n] for `isa`. Costs about as much as copying it.
    ///
    /// # Panics
    /// `w` has too few elements.
    pub fn pack(
        isa: Isa,
        team: &Team,
        element: Element,
        (k, n): (usize, usize),
        w: Strided<'_>,
    ) -> PackedWeights {
        w.check(k, n);
        Self::pack_columns(isa, team, element, (k, n), Columns::Matrix(w))
    }

    /// [`PackedWeights::pack`] with columns that are read one by one.
    pub fn pack_columns(
        isa: Isa,
        team: &Team,
        element: Element,
        (k, n): (usize, usize),
        w: Columns<'_>,
    ) -> PackedWeights {
        let shape = Shape::of(isa);
        if (1..=narrow::COLUMNS).contains(&n) && k > 0 {
            let mut narrow = vec![0.0; n * k];
            narrow.chunks_exact_mut(k).enumerate().for_each(|(j, column)| w.read(j, column));
            return PackedWeights { isa, shape, element: Element::F32, k, n, data: Aligned::new(0), narrow };
        }
        let vectors = n.div_ceil(shape.lanes);
        let data = Aligned::new((vectors * shape.lanes * k * element.bytes()).div_ceil(size_of::<f32>()));
        let packed = PackedWeights { isa, shape, element, k, n, data, narrow: vec![] };
        let (panels, at_once) = (shape.panels(n), w.panels_at_once());
        team.run(panels.div_ceil(at_once), &|_, chunk| {
            let panels = chunk * at_once..panels.min((chunk + 1) * at_once);
            let first_column = packed.panel(panels.start).first_column;
            let after = packed.panel(panels.end - 1);
            let columns = (after.first_column + after.vectors * shape.lanes).min(n) - first_column;
            let mut read = vec![];
            let w = w.from(first_column, k, columns, &mut read);
            isa.run(Fill { packed: &packed, panels, w });
        });
        packed
    }

    /// Instruction set that the weights are packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Element type.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Predicts [`PackedWeights::bytes`] for a matrix [k, n].
    pub fn bytes_for(isa: Isa, element: Element, (k, n): (usize, usize)) -> usize {
        if (1..=narrow::COLUMNS).contains(&n) && k > 0 {
            return k * n * size_of::<f32>();
        }
        let lanes = Shape::of(isa).lanes;
        Aligned::bytes_for((n.next_multiple_of(lanes) * k * element.bytes()).div_ceil(size_of::<f32>()))
    }

    /// Size in memory.
    pub fn bytes(&self) -> usize {
        Aligned::bytes_for(self.data.len) + self.narrow.len() * size_of::<f32>()
    }

    /// [N, K] if columns are few, else empty.
    pub(super) fn narrow(&self) -> &[f32] {
        &self.narrow
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> Panel {
        let (first, vectors) = self.shape.panel(self.n, panel);
        let first_column = first * self.shape.lanes;
        let start = self.data.pointer().cast::<u8>();
        let data = start.wrapping_add(first_column * self.k * self.element.bytes());
        Panel { data, first_column, vectors }
    }
}

/// Rows of a panel that are packed at once, and the most numbers in them.
const STRIP: usize = 32;
const MOST_IN_STRIP: usize = STRIP * 48;

#[inline(always)]
fn copy_bytes<T: Copy>(from: &[T], to: &mut [MaybeUninit<u8>]) {
    assert_eq!(size_of_val(from), to.len());
    // SAFETY: both have as many bytes, and `to` is borrowed mutably, so they do not overlap. `T` is a float,
    // which has no padding.
    unsafe { to.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from.as_ptr().cast(), to.len()) };
}

/// Packs panels, which no other thread writes.
struct Fill<'a> {
    packed: &'a PackedWeights,
    panels: Range<usize>,
    /// The columns of these panels.
    w: Strided<'a>,
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Fill { packed, panels, w } = self;
        let &PackedWeights { element, k, n, .. } = packed;
        let before = packed.panel(panels.start).first_column;
        let mut strip = [0.0; MOST_IN_STRIP];
        for first in (0..k).step_by(STRIP) {
            let rows = STRIP.min(k - first);
            for panel in panels.clone() {
                let Panel { data, first_column, vectors } = packed.panel(panel);
                let (width, len) = (vectors * S::LANES, rows * vectors * S::LANES);
                let columns = width.min(n - first_column);
                if columns < width {
                    strip.fill(0.0);
                }
                let start = first * w.k_stride + (first_column - before) * w.n_stride;
                Strided { data: &w.data[start..], ..w }.copy(s, [rows, columns], &mut strip, width);
                // SAFETY: these rows of a panel that only this call writes.
                let out = unsafe {
                    let out = data.cast_mut().add(first * width * element.bytes());
                    std::slice::from_raw_parts_mut(out.cast(), len * element.bytes())
                };
                element.write(&strip[..len], out);
            }
        }
    }
}

/// Memory aligned to a cache line. Not initialized; freed when dropped.
pub(super) struct Aligned {
    start: NonNull<f32>,
    len: usize,
}

// SAFETY: it owns its memory like a `Vec<f32>`.
unsafe impl Send for Aligned {}
// SAFETY: shared memory is only read, except in `pack`, whose chunks write different parts.
unsafe impl Sync for Aligned {}

impl Aligned {
    fn layout(len: usize) -> Layout {
        let bytes = len * size_of::<f32>();
        let (align, page) = if bytes >= HUGE_PAGE { (HUGE_PAGE, PAGE) } else { (64, 64) };
        Layout::from_size_align(bytes.next_multiple_of(page), align).expect("weights fit the address space")
    }

    /// Bytes to allocate for `len` floats: whole cache lines, or whole pages.
    pub fn bytes_for(len: usize) -> usize {
        if len == 0 { 0 } else { Aligned::layout(len).size() }
    }

    pub fn pointer(&self) -> *const f32 {
        self.start.as_ptr()
    }

    pub fn new(len: usize) -> Aligned {
        if len == 0 {
            return Aligned { start: NonNull::dangling(), len };
        }
        let layout = Aligned::layout(len);
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        let Some(found) = NonNull::new(start.cast()) else { handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        if layout.align() == HUGE_PAGE {
            // SAFETY: this is our memory, and the advice affects only its speed. A failure does not matter.
            unsafe {
                libc::madvise(start.cast(), layout.size() / HUGE_PAGE * HUGE_PAGE, libc::MADV_HUGEPAGE)
            };
        }
        Aligned { start: found, len }
    }
}

/// Large weights use pages of this size where the system has them: prefetching stops at page boundaries and
/// is dropped if an address is not in the TLB. With small pages, 72 x 1024 x 512 from memory ran at 0.74 of
/// the peak instead of 0.93 on a loaded machine. The rest after the last whole huge page uses small pages:
/// another huge page would take a fifth more memory for all q8_0 weights of Qwen3-TTS.
const HUGE_PAGE: usize = 2 << 20;

/// Unit of memory sizes.
const PAGE: usize = 4096;

impl Drop for Aligned {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `new` with the same layout.
            unsafe { dealloc(self.start.as_ptr().cast(), Aligned::layout(self.len)) }
        }
    }
}
