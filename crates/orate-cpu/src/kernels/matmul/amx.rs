//! Matmul on AMX tiles, with f32 accuracy.
//!
//! Each float is split into three bf16 values of eight bits, x = x0 + x1 + x2 exactly, and likewise each
//! weight. Of the nine partial products the six largest are summed in f32: x0w0, x0w1, x1w0, x1w1, x0w2,
//! x2w0. The rest is below 2⁻²³ of a term. (Parts below 2⁻¹²⁶ count as zero, and infinities become NaN.)
//! Weights stored as bf16 are one plane and as f16 two; then three or five partial products are exact.
//!
//! First, all threads split as much of x along K as stays in the second-level cache ([`Stretch`]); for a
//! convolution, each row once for all taps that read it (`planes.rs`). Then each thread takes units, a block
//! of rows times a panel of 32 columns, computed two by two tiles at a time. Tiles leave the vector units
//! idle, so these do the remaining work meanwhile, a little after every four tile multiplications
//! ([`Aside`]): they split the next weights, which also fetches them from memory, and apply the epilogue to
//! complete sums. The order of summation depends on K and M alone, never on threads.

use super::cut::{Cutter, WeightRows, cut_row};
use super::pack::Panel;
use super::planes::{Layout, PlaneShape};
use super::{Epilogue, PackedWeights, Rows, Taps, tile};
use crate::arch::amx::{TILE_BYTES, TILE_K, TILE_ROWS, Tiles};
use crate::arch::x86::run_avx512;
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Columns of a panel: two tiles.
const COLUMNS: usize = 2 * TILE_ROWS;

/// Steps of [`TILE_K`] along K that the tiles of a block pass over in turn: the planes of that many weights
/// stay in the second-level cache. Shorter slices load and store sums more often.
pub(super) const SLICE: usize = 16;
const _: () = assert!(SLICE * TILE_K < super::GATHER_STRIDE, "gathered rows of a slice have room");

/// Maximum tiles of rows in a group: with one slice they fill the cache.
const GROUP: usize = 28;

/// Maximum tiles in a group of a convolution: its planes may be short, but not its sums.
const LONG_GROUP: usize = 56;

/// Minimum tiles in a group, if there are that many: weights are split again for each group, which must stay
/// cheap. If all of K is too long for such a group, K is cut into stretches.
const SMALL_GROUP: usize = 9;

/// Bytes of planes of a group, chosen to stay in the second-level cache.
const GROUP_BYTES: usize = GROUP * SLICE * ROW_STEP;

/// bf16 values per float.
pub(super) const PLANES: usize = 3;

/// Bytes of the planes of one step: of a tile of rows, and of a panel.
pub(super) const ROW_STEP: usize = PLANES * TILE_BYTES;
pub(super) const COLUMN_STEP: usize = 2 * PLANES * TILE_BYTES;

/// Below this many multiply-adds (a few microseconds) the caller works alone.
const SMALL: usize = 1_000_000;

/// Whether tiles are faster. Each weight is split into planes once per group of rows. With 16 rows, this and
/// the tile multiplications take 0.85 times as long as AVX-512, with 32 rows 0.6 times; with fewer than a
/// tile of rows they take longer. Narrow matmuls also leave too much of the tiles empty.
pub(super) fn pays(m: usize, k: usize, n: usize) -> bool {
    m >= TILE_ROWS && k >= 64 && n >= 64
}

/// Partition of a matmul: rows into groups, whose planes stay in the cache; K into stretches if it is too
/// long for that; and the work of a group into units for threads, each a block of its rows times a panel.
#[derive(Clone, Copy, Debug)]
struct Cut {
    m: usize,
    k: usize,
    n: usize,
    /// Tiles of rows; the last one may be partly empty.
    tiles: usize,
    groups: usize,
    /// Blocks of a group.
    blocks: usize,
    panels: usize,
    /// Steps along K that are split at a time.
    stretch: usize,
    layout: Layout,
}

impl Cut {
    fn new(threads: usize, m: usize, k: usize, n: usize, taps: Option<Taps>) -> Cut {
        let (tiles, steps, panels) = (m.div_ceil(TILE_ROWS), k.div_ceil(TILE_K), n.div_ceil(COLUMNS));
        if let Some(layout) = taps.and_then(|taps| Layout::of_sequence(taps, k)) {
            let fit = layout.rows_within(GROUP_BYTES) / TILE_ROWS;
            if fit >= SMALL_GROUP.min(tiles) {
                let groups = tiles.div_ceil(fit.min(LONG_GROUP));
                let blocks = Cut::blocks(threads, panels, tiles / groups);
                return Cut { m, k, n, tiles, groups, blocks, panels, stretch: steps, layout };
            }
        }
        let fit = GROUP_BYTES / (steps * ROW_STEP);
        let groups = tiles.div_ceil(fit.clamp(1, GROUP)).min(tiles / SMALL_GROUP).max(tiles.div_ceil(GROUP));
        let group = tiles.div_ceil(groups);
        let most = GROUP_BYTES / (group * ROW_STEP) / SLICE * SLICE;
        let stretch = steps.div_ceil(steps.div_ceil(most)).next_multiple_of(SLICE).min(steps);
        let blocks = Cut::blocks(threads, panels, tiles / groups);
        Cut { m, k, n, tiles, groups, blocks, panels, stretch, layout: Layout::Tiles }
    }

    /// If panels are too few to keep all threads busy to the end, rows are divided, too.
    fn blocks(threads: usize, panels: usize, tiles: usize) -> usize {
        let wanted = if threads > 1 { (4 * threads).div_ceil(panels) } else { 1 };
        wanted.min(tiles / 2).max(1)
    }

    fn group(&self, group: usize) -> Range<usize> {
        part(0..self.tiles, group, self.groups)
    }

    /// Bytes for the planes of a group.
    fn planes_bytes(&self) -> usize {
        self.layout.bytes(self.tiles.div_ceil(self.groups), self.stretch)
    }

    /// Bytes for the sums of a block.
    fn sums_bytes(&self) -> usize {
        self.tiles.div_ceil(self.groups).div_ceil(self.blocks) * TILE_ROWS * COLUMNS * 4
    }

    /// Bytes for planes and sums of two panels: the current one, and the next or previous one.
    fn worker_bytes(&self) -> usize {
        2 * SLICE * COLUMN_STEP + 2 * self.sums_bytes()
    }
}

/// Part `i` when `whole` is divided into `parts` nearly equal ones.
fn part(whole: Range<usize>, i: usize, parts: usize) -> Range<usize> {
    whole.start + i * whole.len() / parts..whole.start + (i + 1) * whole.len() / parts
}

/// Floats of scratch memory.
pub(super) fn scratch_len(threads: usize, m: usize, k: usize, n: usize, taps: Option<Taps>) -> usize {
    let c = Cut::new(threads, m, k, n, taps);
    (c.planes_bytes() + threads * c.worker_bytes()) / 4 + super::ALIGN
}

/// A pointer shared by threads that use disjoint parts.
#[derive(Clone, Copy)]
struct Shared(*mut u8);

// SAFETY: it represents a `&mut [u8]`; threads use disjoint parts, or only read.
unsafe impl Sync for Shared {}

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
    assert!(isa.has_tiles(), "the instruction set is the proof that there are tiles");
    let cut = Cut::new(team.threads(), y.len() / w.n(), w.k(), w.n(), rows.taps());
    let skip = scratch.as_ptr().align_offset(64).min(super::ALIGN);
    let planes = Shared(scratch[skip..].as_mut_ptr().cast());
    let own = Shared(planes.0.wrapping_add(cut.planes_bytes()));
    let y = Shared(y.as_mut_ptr().cast());
    let steps = cut.k.div_ceil(TILE_K);
    for group in 0..cut.groups {
        for first in (0..steps).step_by(cut.stretch) {
            let steps = first..(first + cut.stretch).min(steps);
            let next = AtomicUsize::new(0);
            let stretch =
                Stretch { cut, rows, w, epilogue, y, planes, own, tiles: cut.group(group), steps, next };
            stretch.run(team);
        }
    }
}

/// The rows and the part of K that are split into planes at a time, with all columns.
struct Stretch<'a> {
    cut: Cut,
    rows: Rows<'a>,
    w: &'a PackedWeights,
    epilogue: &'a Epilogue<'a>,
    y: Shared,
    /// See [`Layout`].
    planes: Shared,
    /// Scratch of the workers.
    own: Shared,
    tiles: Range<usize>,
    steps: Range<usize>,
    /// The next unit to take: (block, panel), panels first.
    next: AtomicUsize,
}

/// A block of rows times a panel.
#[derive(Clone, Copy)]
struct Unit {
    first_tile: usize,
    tiles: usize,
    panel: Panel,
}

impl Stretch<'_> {
    fn run(&self, team: &Team) {
        let c = &self.cut;
        let own = |worker: usize| self.own.0.wrapping_add(worker * c.worker_bytes());
        let small = c.m * c.n * c.k < SMALL;
        let pieces = if small { 1 } else { self.tiles.len() };
        team.run(pieces, &|worker, piece| {
            let tiles = part(self.tiles.clone(), piece, pieces);
            // SAFETY: `matmul` has asserted that there are tiles, hence AVX-512. No other thread writes the
            // planes of a piece, and a worker's scratch is its own, large enough for gathered rows.
            unsafe {
                match c.layout {
                    Layout::Tiles => tiles.for_each(|tile| self.cut_rows(tile, own(worker.index()).cast())),
                    Layout::Sequence { .. } => self.cut_sequence(tiles),
                }
            }
        });
        let threads = if small { 1 } else { team.threads().min(c.blocks * c.panels) };
        team.run(threads, &|worker, _| {
            // SAFETY: where there are tiles, there is AVX-512; a worker's scratch is its own.
            unsafe { run_avx512(Work { stretch: self, own: own(worker.index()) }) };
        });
    }

    /// Slice `i` of this stretch, in steps along K.
    fn slice(&self, i: usize) -> Range<usize> {
        let first = self.steps.start + i * SLICE;
        first..(first + SLICE).min(self.steps.end)
    }

    fn slices(&self) -> usize {
        self.steps.len().div_ceil(SLICE)
    }

    /// Layout of the planes of a slice.
    fn plane_shape(&self, slice: usize) -> PlaneShape {
        self.cut.layout.slice(self.tiles.len(), self.steps.clone(), self.slice(slice))
    }

    /// Planes of a tile of x.
    fn planes(&self, shape: &PlaneShape, tile: usize) -> *mut u8 {
        self.planes.0.wrapping_add(shape.start + (tile - self.tiles.start) * shape.tile)
    }

    /// Splits the rows of a sequence that some tiles read, all channels; the last tiles also split the rows
    /// after them.
    ///
    /// # Safety
    /// The machine has AVX-512, and no other thread writes the planes of these rows.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn cut_sequence(&self, tiles: Range<usize>) {
        let layout = self.cut.layout;
        let Layout::Sequence { channel_steps, .. } = layout else { return };
        let all = layout.rows(self.tiles.len());
        let first = self.tiles.start * TILE_ROWS;
        let start = (tiles.start - self.tiles.start) * TILE_ROWS;
        let end = if tiles.end == self.tiles.end { all } else { (tiles.end - self.tiles.start) * TILE_ROWS };
        let plane = all * 64;
        for row in start..end {
            // Planes of rows past the end are reserved but never read.
            let Some(x) = self.rows.row_of_sequence(first + row) else { break };
            // SAFETY: each row has 64 bytes in each plane.
            unsafe {
                let out = self.planes.0.add(row * 64);
                cut_row(x.as_ptr(), channel_steps * TILE_K, out, plane, PLANES * plane);
            }
        }
    }

    /// Splits a tile of x. Planes of rows past the end may hold anything: their sums are never read.
    ///
    /// # Safety
    /// The machine has AVX-512. No other thread writes this tile; `buffer` has room for 16 gathered rows.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn cut_rows(&self, tile: usize, buffer: *mut f32) {
        let c = &self.cut;
        let first = tile * TILE_ROWS;
        let count = TILE_ROWS.min(c.m - first);
        for slice in 0..self.slices() {
            let steps = self.slice(slice);
            let ks = steps.start * TILE_K..(steps.end * TILE_K).min(c.k);
            let planes = self.planes(&self.plane_shape(slice), tile);
            // SAFETY: rows and columns exist. Each row of the tile goes to 64 bytes per plane.
            unsafe {
                let (x, stride) = self.rows.locate(c.k, first, count, ks.clone(), buffer);
                for row in 0..count {
                    cut_row(x.add(row * stride), ks.len(), planes.add(row * 64), TILE_BYTES, ROW_STEP);
                }
            }
        }
    }

    fn claim(&self) -> Option<Unit> {
        let c = &self.cut;
        let unit = self.next.fetch_add(1, Ordering::Relaxed);
        (unit < c.blocks * c.panels).then(|| {
            let tiles = part(self.tiles.clone(), unit / c.panels, c.blocks);
            Unit { first_tile: tiles.start, tiles: tiles.len(), panel: self.w.panel(unit % c.panels) }
        })
    }

    /// Weights of a slice of a panel.
    fn weights(&self, panel: Panel, slice: usize) -> WeightRows {
        let steps = self.slice(slice);
        let (first, element) = (steps.start * TILE_K, self.w.element());
        WeightRows {
            data: panel.data.wrapping_add(first * panel.vectors * 16 * element.bytes()),
            element,
            vectors: panel.vectors,
            rows: (steps.end * TILE_K).min(self.cut.k) - first,
        }
    }
}

/// Work of a thread on a stretch: takes units until none is left.
struct Work<'a> {
    stretch: &'a Stretch<'a>,
    own: *mut u8,
}

impl Kernel for Work<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let stretch = self.stretch;
        let Some(mut unit) = stretch.claim() else { return };
        let kept = stretch.w.element().planes();
        let products = [3, 5, 6][kept - 1];
        let planes_bytes = SLICE * COLUMN_STEP;
        let (mut planes, mut next_planes) = (self.own, self.own.wrapping_add(planes_bytes));
        let mut sums = self.own.wrapping_add(2 * planes_bytes).cast::<f32>();
        let mut other_sums = sums.wrapping_add(stretch.cut.sums_bytes() / 4);
        // SAFETY: `matmul` has asserted that there are tiles, and nothing else on this thread uses them.
        let tiles = unsafe { Tiles::configure() };
        let mut aside = Aside { cutter: Cutter::NONE, rate: 1, finisher: Finisher::new(stretch) };
        aside.cutter = Cutter::new(stretch.weights(unit.panel, 0), planes);
        // SAFETY: weights and planes exist, here and below.
        unsafe { aside.cutter.rest() };
        loop {
            let next = stretch.claim();
            let continues = stretch.steps.start > 0;
            if continues {
                // SAFETY: an earlier stretch has left its sums in y.
                unsafe { load_sums(s, stretch, unit, sums) };
            }
            let slices = stretch.slices();
            for slice in 0..slices {
                let steps = stretch.slice(slice).len();
                let shape = stretch.plane_shape(slice);
                let last = slice + 1 == slices;
                aside.cutter = match (last, next) {
                    (false, _) => Cutter::new(stretch.weights(unit.panel, slice + 1), next_planes),
                    (true, Some(n)) => Cutter::new(stretch.weights(n.panel, 0), next_planes),
                    (true, None) => Cutter::NONE,
                };
                aside.rate = aside.cutter.left().div_ceil(products * steps * unit.tiles.div_ceil(2));
                for tile in (0..unit.tiles).step_by(2) {
                    let tall = tile + 1 < unit.tiles;
                    let block = Block {
                        tiles: &tiles,
                        steps,
                        x: stretch.planes(&shape, unit.first_tile + tile),
                        shape: &shape,
                        w: planes,
                        sums: sums.wrapping_add(tile * TILE_ROWS * COLUMNS),
                        first: slice == 0 && !continues,
                    };
                    // SAFETY: planes and sums exist.
                    unsafe {
                        match (tall, unit.panel.vectors) {
                            (true, 2) => block.any::<S, 2, 2>(s, kept, &mut aside),
                            (true, _) => block.any::<S, 2, 1>(s, kept, &mut aside),
                            (false, 2) => block.any::<S, 1, 2>(s, kept, &mut aside),
                            (false, _) => block.any::<S, 1, 1>(s, kept, &mut aside),
                        }
                    }
                    if last {
                        aside.finisher.push(s, unit, sums, tile..tile + 1 + tall as usize);
                    }
                }
                // SAFETY: the cutter writes planes of the next panel, which are not read before the swap.
                unsafe { aside.cutter.rest() };
                std::mem::swap(&mut planes, &mut next_planes);
            }
            let Some(next) = next else { break };
            unit = next;
            std::mem::swap(&mut sums, &mut other_sums);
        }
        aside.finisher.rest(s);
    }
}

/// Two by two tiles of sums, or fewer, and their operands for a slice.
struct Block<'a> {
    tiles: &'a Tiles,
    steps: usize,
    /// Planes of the upper tile of x.
    x: *const u8,
    shape: &'a PlaneShape,
    /// Planes of the panel: [step][plane][tile].
    w: *const u8,
    /// Rows of [`COLUMNS`] floats.
    sums: *mut f32,
    /// Whether the sums start at zero.
    first: bool,
}

impl Block<'_> {
    /// sums += x · w, where w has `kept` planes.
    ///
    /// # Safety
    /// All operands must exist.
    #[inline(always)]
    unsafe fn any<S: Simd, const TALL: usize, const WIDE: usize>(
        &self,
        s: S,
        kept: usize,
        aside: &mut Aside<'_>,
    ) {
        // SAFETY: the caller guarantees it.
        unsafe {
            match kept {
                1 => self.multiply::<S, TALL, WIDE, 1>(s, aside),
                2 => self.multiply::<S, TALL, WIDE, 2>(s, aside),
                _ => self.multiply::<S, TALL, WIDE, 3>(s, aside),
            }
        }
    }

    /// sums += x · w, where w has `KEPT` planes.
    ///
    /// # Safety
    /// All operands must exist.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const TALL: usize, const WIDE: usize, const KEPT: usize>(
        &self,
        s: S,
        aside: &mut Aside<'_>,
    ) {
        let t = self.tiles;
        let sums = self.sums.cast::<u8>();
        let below = sums.wrapping_add(TILE_ROWS * COLUMNS * 4);
        // SAFETY: the caller guarantees it.
        unsafe {
            if self.first {
                t.zero::<0>();
                t.zero::<1>();
                t.zero::<2>();
                t.zero::<3>();
            } else {
                t.load::<0>(sums, COLUMNS * 4);
                if WIDE == 2 {
                    t.load::<1>(sums.add(64), COLUMNS * 4);
                }
                if TALL == 2 {
                    t.load::<2>(below, COLUMNS * 4);
                    if WIDE == 2 {
                        t.load::<3>(below.add(64), COLUMNS * 4);
                    }
                }
            }
            for step in 0..self.steps {
                // In this order most products share a plane with the previous one, and small ones come first.
                if KEPT == 3 {
                    self.load_w::<WIDE>(step, 2);
                    self.load_x::<TALL>(step, 0);
                    self.product::<S, TALL, WIDE>(s, aside);
                }
                if KEPT >= 2 {
                    self.load_w::<WIDE>(step, 1);
                    if KEPT == 2 {
                        self.load_x::<TALL>(step, 0);
                    }
                    self.product::<S, TALL, WIDE>(s, aside);
                }
                self.load_x::<TALL>(step, 1);
                if KEPT >= 2 {
                    self.product::<S, TALL, WIDE>(s, aside);
                }
                self.load_w::<WIDE>(step, 0);
                self.product::<S, TALL, WIDE>(s, aside);
                self.load_x::<TALL>(step, 2);
                self.product::<S, TALL, WIDE>(s, aside);
                self.load_x::<TALL>(step, 0);
                self.product::<S, TALL, WIDE>(s, aside);
            }
            t.store::<0>(sums, COLUMNS * 4);
            if WIDE == 2 {
                t.store::<1>(sums.add(64), COLUMNS * 4);
            }
            if TALL == 2 {
                t.store::<2>(below, COLUMNS * 4);
                if WIDE == 2 {
                    t.store::<3>(below.add(64), COLUMNS * 4);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn load_x<const TALL: usize>(&self, step: usize, plane: usize) {
        // SAFETY: step and plane exist.
        unsafe {
            let at = self.x.add(self.shape.step[step] + plane * self.shape.plane);
            self.tiles.load::<4>(at, 64);
            if TALL == 2 {
                self.tiles.load::<5>(at.add(self.shape.tile), 64);
            }
        }
    }

    #[inline(always)]
    unsafe fn load_w<const WIDE: usize>(&self, step: usize, plane: usize) {
        let at = step * COLUMN_STEP + plane * 2 * TILE_BYTES;
        // SAFETY: step and plane exist.
        unsafe {
            self.tiles.load::<6>(self.w.add(at), 64);
            if WIDE == 2 {
                self.tiles.load::<7>(self.w.add(at + TILE_BYTES), 64);
            }
        }
    }

    /// Multiplies the loaded planes and lets `aside` work meanwhile.
    #[inline(always)]
    unsafe fn product<S: Simd, const TALL: usize, const WIDE: usize>(&self, s: S, aside: &mut Aside<'_>) {
        let t = self.tiles;
        t.multiply::<0, 4, 6>();
        if WIDE == 2 {
            t.multiply::<1, 4, 7>();
        }
        if TALL == 2 {
            t.multiply::<2, 5, 6>();
            if WIDE == 2 {
                t.multiply::<3, 5, 7>();
            }
        }
        // SAFETY: the caller guarantees it.
        unsafe { aside.work(s) };
    }
}

/// Work of the vector units while the tiles multiply.
struct Aside<'a> {
    cutter: Cutter,
    /// Pairs of rows to cut per call.
    rate: usize,
    finisher: Finisher<'a>,
}

impl Aside<'_> {
    /// # Safety
    /// The operands of cutter and finisher must exist.
    #[inline(always)]
    unsafe fn work<S: Simd>(&mut self, s: S) {
        if self.cutter.left() > 0 {
            for _ in 0..self.rate.min(self.cutter.left()) {
                // SAFETY: a pair is left.
                unsafe { self.cutter.pair() };
            }
        }
        if !self.finisher.rows.is_empty() {
            self.finisher.row(s);
        }
    }
}

/// Applies the epilogue to complete sums and writes them to y, row by row. Sums that a later stretch
/// continues are written unchanged.
struct Finisher<'a> {
    stretch: &'a Stretch<'a>,
    epilogue: &'a Epilogue<'a>,
    panel: Panel,
    /// Remaining rows of y.
    rows: Range<usize>,
    /// Sums of the first of them.
    sums: *const f32,
}

impl<'a> Finisher<'a> {
    fn new(stretch: &'a Stretch<'a>) -> Self {
        let complete = stretch.steps.end * TILE_K >= stretch.cut.k;
        let epilogue = if complete { stretch.epilogue } else { &Epilogue::NONE };
        let panel = Panel { data: std::ptr::null(), first_column: 0, vectors: 0 };
        Finisher { stretch, epilogue, panel, rows: 0..0, sums: std::ptr::null() }
    }

    /// Queues the sums of some tiles of a unit.
    #[inline(always)]
    fn push<S: Simd>(&mut self, s: S, unit: Unit, sums: *const f32, tiles: Range<usize>) {
        let c = &self.stretch.cut;
        let first = (unit.first_tile + tiles.start) * TILE_ROWS;
        let end = ((unit.first_tile + tiles.end) * TILE_ROWS).min(c.m);
        let Panel { first_column, vectors, .. } = unit.panel;
        let y = self.stretch.y.0.cast();
        tile::expect(s, first..end, first_column, vectors, c.n, self.epilogue, y);
        let sums = sums.wrapping_add(tiles.start * TILE_ROWS * COLUMNS);
        // Rows of the previous unit must be done now, before the next unit reuses the memory of their sums.
        if tiles.start == 0 || self.rows.is_empty() {
            self.rest(s);
            self.panel = unit.panel;
            self.rows = first..end;
            self.sums = sums;
        } else {
            self.rows.end = end;
        }
    }

    /// Finishes one row. Out of line, as it is called from many places.
    #[inline(always)]
    fn row<S: Simd>(&mut self, _: S) {
        // SAFETY: `S` is AVX-512, the instruction set of this whole file.
        unsafe { run_avx512(FinishRow(self)) };
    }

    fn rest<S: Simd>(&mut self, s: S) {
        while !self.rows.is_empty() {
            self.row(s);
        }
    }
}

struct FinishRow<'a, 'b>(&'a mut Finisher<'b>);

impl Kernel for FinishRow<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Finisher { stretch, epilogue, panel, ref mut rows, ref mut sums } = *self.0;
        let row = rows.start;
        let Panel { first_column, vectors, .. } = panel;
        let y = stretch.y.0.cast();
        // SAFETY: the sums are complete, and only this thread writes these elements of y.
        unsafe { tile::finish(s, *sums, row..row + 1, first_column, vectors, stretch.cut.n, epilogue, y) };
        rows.start += 1;
        *sums = sums.wrapping_add(COLUMNS);
    }
}

/// Loads the sums of a unit that an earlier stretch has stored in y.
///
/// # Safety
/// They exist, and `sums` has room for them.
#[inline(always)]
unsafe fn load_sums<S: Simd>(s: S, stretch: &Stretch<'_>, unit: Unit, sums: *mut f32) {
    let c = &stretch.cut;
    let y = stretch.y.0.cast::<f32>();
    let first = unit.first_tile * TILE_ROWS;
    for row in first..((unit.first_tile + unit.tiles) * TILE_ROWS).min(c.m) {
        for v in 0..unit.panel.vectors {
            let column = unit.panel.first_column + v * 16;
            // SAFETY: the caller guarantees it.
            unsafe {
                let old = s.load_partial(y.add(row * c.n + column), (c.n - column).min(16));
                s.store(sums.add((row - first) * COLUMNS + v * 16), old);
            }
        }
    }
}
