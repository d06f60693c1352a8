//! Packs weights in the order in which matmuls read them.

use super::{narrow, tile};
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
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
        // A vector of columns, along all of K, is the smallest piece.
        team.run(shape.panels(n), &|_, panel| {
            let Panel { data, first_column, vectors } = packed.panel(panel);
            let (target, len) = (data.cast_mut(), vectors * shape.lanes * k);
            let mut read = vec![];
            let w = w.from(first_column, k, (vectors * shape.lanes).min(n - first_column), &mut read);
            if element == Element::F32 {
                return packed.fill(panel, w, target.cast());
            }
            let mut wide = vec![0.0; len];
            packed.fill(panel, w, wide.as_mut_ptr());
            // SAFETY: the panel has `len` elements of two bytes, which only this call writes.
            unsafe {
                match element {
                    Element::Bf16 => std::slice::from_raw_parts_mut(target.cast::<bf16>(), len)
                        .convert_from_f32_slice(&wide),
                    _ => std::slice::from_raw_parts_mut(target.cast::<f16>(), len)
                        .convert_from_f32_slice(&wide),
                }
            }
        });
        packed
    }

    /// Copies the columns of a panel; its first one is column 0 of `w`.
    fn fill(&self, panel: usize, w: Strided<'_>, target: *mut f32) {
        let lanes = self.shape.lanes;
        let Panel { first_column, vectors, .. } = self.panel(panel);
        let width = vectors * lanes;
        if w.n_stride == 1 {
            let columns = width.min(self.n - first_column);
            for k in 0..self.k {
                let row = &w.data[k * w.k_stride..][..columns];
                // SAFETY: the panel has `k` rows of `width` floats, and only this call writes it.
                unsafe {
                    let target = target.add(k * width);
                    target.copy_from_nonoverlapping(row.as_ptr(), columns);
                    target.add(columns).write_bytes(0, width - columns);
                }
            }
            return;
        }
        // Squares as long as a cache line: each line is read and written whole while it is in the first-level
        // cache.
        const STEP: usize = 16;
        for vector in 0..vectors {
            let column = vector * lanes;
            let columns = lanes.min(self.n - first_column - column);
            for k in (0..self.k).step_by(STEP) {
                for k in k..(k + STEP).min(self.k) {
                    // SAFETY: row `k` of the panel has room for this vector, and `pack` has checked that the
                    // last element of `w` exists.
                    unsafe {
                        let target = target.add(k * width + vector * lanes);
                        let source = w.data.as_ptr().add(k * w.k_stride + column * w.n_stride);
                        for i in 0..columns {
                            *target.add(i) = *source.add(i * w.n_stride);
                        }
                        target.add(columns).write_bytes(0, lanes - columns);
                    }
                }
            }
        }
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
