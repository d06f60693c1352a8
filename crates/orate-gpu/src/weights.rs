//! Weights of a model on the device, each uploaded once per layout that kernels read.

use crate::angles::{fixed_turns, fractional_turns, time_frequencies};
use crate::gpu::Gpu;
use crate::parallel;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use orate_graph::blocks::{BLOCK, BlockFormat, SUPER_BLOCK, SuperBlock, SuperFormat, larger};
use orate_graph::{
    Blocks, DType, DeviceError, GraphError, Precision, RopeScaling, Tensor, Weight, WeightLoader,
    rope_frequencies,
};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use wgpu::{BindGroup, Buffer, BufferUsages};

/// Alignment of weights in elements.
const ALIGNMENT: usize = 64;

/// Bytes per submission. Twice as many may be in use: those in flight, and those staged for the next one.
const IN_FLIGHT: u64 = 64 << 20;

/// Maximum bytes that are copied at once.
const PIECE: usize = 16 << 20;

/// Maximum size of a weight buffer, unless a single weight is larger.
const CHUNK: u64 = 1 << 30;

/// Rows and columns of matrices are padded with zeros to multiples of these, which all tiles divide.
pub(crate) const PADDING: [usize; 2] = [128, 64];

/// Element type of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Element {
    F32,
    F16,
    Bf16,
    /// Integers in blocks: [`BLOCK`] rows of a column share a scale in f16. All integers come first, larger
    /// by [`Element::offset`] than those of the format, so that none is negative, then all scales. Words of
    /// eight rows by four columns are neighbors, so that a thread reads them at once.
    Blocks(BlockFormat),
    /// Integers of blocks of 256 rows: all lower four bits, in the order of [`Element::Blocks`], all upper
    /// bits, whose order `kernels/weight.wgsl` describes, then all scales in f16, those of
    /// [`Element::per_scale`] rows each, and unless they have 6 bits an addend after each scale.
    Super(SuperFormat),
}

impl Element {
    /// Rows that share a scale, of weights in blocks.
    pub fn per_scale(self) -> usize {
        if self == Element::Super(SuperFormat::Q6K) { 16 } else { BLOCK }
    }

    /// The stored integer that stands for zero in weights in blocks, unless they have addends.
    pub fn offset(self) -> Option<u8> {
        match self {
            Element::Blocks(BlockFormat::Q8_0) => Some(128),
            Element::Blocks(BlockFormat::Q4_0) => Some(8),
            Element::Super(SuperFormat::Q6K) => Some(32),
            _ => None,
        }
    }

    /// Elements per 4-byte word: neighboring columns, the first one lowest; with four bits, four columns of
    /// two rows.
    pub fn per_word(self) -> usize {
        match self {
            Element::F32 => 1,
            Element::F16 | Element::Bf16 => 2,
            Element::Blocks(format) => format.per_word(),
            Element::Super(_) => BlockFormat::Q4_0.per_word(),
        }
    }

    /// Units of offsets in kernels, per word; see `kernels/weight.wgsl`.
    pub fn places_per_word(self) -> usize {
        self.per_word().min(4)
    }

    /// 4-byte words for `rows` and `columns`, which are whole blocks.
    fn words(self, [rows, columns]: [usize; 2]) -> usize {
        let more = match self {
            Element::Blocks(_) => rows / BLOCK * columns / 2,
            Element::Super(format) => {
                let high = rows * columns * (format.bits() as usize - 4) / 32;
                let both = if format == SuperFormat::Q6K { 1 } else { 2 };
                high + both * (rows / self.per_scale()) * columns / 2
            }
            _ => 0,
        };
        rows * columns / self.per_word() + more
    }
}

/// Layout of a stored weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// Elements in logical order.
    Plain,
    /// An embedding table in f16 or bf16, as in its file.
    Halves(DType),
    /// `[K, N]`, padded with zeros to multiples of `to` rows and columns.
    Padded(Element, [usize; 2]),
    /// Angles as fixed-point turns.
    Turns,
    /// Frequencies of a time embedding; their number is that of the weight's elements.
    TimeFrequencies,
    /// Frequencies of rotary positions for a base and a scaling (factor, low, high, length), given by their
    /// bits; their number is that of the weight's elements.
    RopeFrequencies(u64, Option<[u64; 4]>),
}

impl Form {
    /// Size of the weight in 4-byte elements.
    fn len(self, w: &Weight) -> usize {
        match self {
            Form::Plain => w.shape().len(),
            Form::Halves(_) => w.shape().len() / 2,
            Form::Padded(element, to) => {
                let d = w.shape().dims();
                element.words([d[0].next_multiple_of(to[0]), d[1].next_multiple_of(to[1])])
            }
            Form::Turns | Form::TimeFrequencies | Form::RopeFrequencies(..) => 2 * w.shape().len(),
        }
    }

    fn make(self, w: &Weight, source: &dyn WeightLoader) -> Result<Vec<u32>, GraphError> {
        if self == Form::TimeFrequencies {
            return Ok(time_frequencies(w.shape().len()).into_iter().flat_map(fixed_turns).collect());
        }
        if let Form::RopeFrequencies(base, scaling) = self {
            let scaling = scaling.map(|bits| {
                let [factor, low, high, length] = bits.map(f64::from_bits);
                RopeScaling { factor, low, high, length: length as usize }
            });
            let frequencies = rope_frequencies(f64::from_bits(base), scaling, w.shape().len());
            return Ok(frequencies.into_iter().flat_map(fractional_turns).collect());
        }
        if let Form::Padded(Element::Super(format), to) = self {
            let (k, n) = (w.shape().dims()[0], w.shape().dims()[1]);
            let columns = n.next_multiple_of(to[1]);
            if let Some(stored) = w.column_blocks(precision_of(format), source) {
                let all: Vec<&[u8]> = stored.bytes.chunks_exact(format.bytes()).collect();
                let of = |column: usize, block: usize| {
                    let bytes = (column < n).then(|| all[column * (k / SUPER_BLOCK) + block]);
                    bytes.map_or(SuperBlock::ZERO, |bytes| SuperBlock::read(format, bytes))
                };
                return Ok(super_blocks(format, (k, columns), of));
            }
            let t = w.evaluate(source)?;
            let of = |column: usize, block: usize| {
                let at = |i: usize| t.data[(block * SUPER_BLOCK + i) * t.strides[0] + column * t.strides[1]];
                match column < n {
                    true => SuperBlock::round(format, &std::array::from_fn(at)),
                    false => SuperBlock::ZERO,
                }
            };
            return Ok(super_blocks(format, (k, columns), of));
        }
        let t = w.evaluate(source)?.contiguous();
        Ok(match self {
            Form::Padded(Element::Blocks(format), to) => {
                let precision = if format == BlockFormat::Q8_0 { Precision::Q8_0 } else { Precision::Q4_0 };
                let (columns, stored) =
                    (t.shape.dims()[1].next_multiple_of(to[1]), w.column_blocks(precision, source));
                blocks(&padded(&t, to), columns, format, stored.as_ref())
            }
            Form::Padded(element, to) => packed(&padded(&t, to), element).map_err(|problem| {
                GraphError::Weight { name: w.first_name().unwrap_or("-").to_owned(), problem }
            })?,
            Form::Turns => t.data.iter().flat_map(|x| fixed_turns(f64::from(*x))).collect(),
            _ => t.data.iter().map(|x| x.to_bits()).collect(),
        })
    }
}

/// Returns a contiguous `[K, N]`, padded with zeros to multiples of `to` rows and columns.
fn padded(t: &Tensor<'_>, to: [usize; 2]) -> Vec<f32> {
    let (k, n) = (t.shape.dims()[0], t.shape.dims()[1]);
    let stride = n.next_multiple_of(to[1]);
    let mut padded = vec![0.0; k.next_multiple_of(to[0]) * stride];
    for (row, out) in t.data.chunks_exact(n).zip(padded.chunks_exact_mut(stride)) {
        out[..n].copy_from_slice(row);
    }
    padded
}

/// Rounds whole rows to an element type.
///
/// # Errors
/// A number exceeds the range of the elements.
fn packed(floats: &[f32], element: Element) -> Result<Vec<u32>, String> {
    let mut words = vec![0; floats.len() / element.per_word()];
    let halves: &mut [u16] = bytemuck::cast_slice_mut(&mut words);
    let (beyond, name, end) = match element {
        Element::F32 => return Ok(floats.iter().map(|x| x.to_bits()).collect()),
        Element::Blocks(_) | Element::Super(_) => unreachable!("blocks are packed by functions of their own"),
        Element::F16 => {
            let halves: &mut [f16] = halves.reinterpret_cast_mut();
            halves.convert_from_f32_slice(floats);
            (
                halves.iter().zip(floats).position(|(h, x)| x.is_finite() && !h.is_finite()),
                "f16",
                f16::MAX.to_f32(),
            )
        }
        Element::Bf16 => {
            let halves: &mut [bf16] = halves.reinterpret_cast_mut();
            halves.convert_from_f32_slice(floats);
            (
                halves.iter().zip(floats).position(|(h, x)| x.is_finite() && !h.is_finite()),
                "bf16",
                bf16::MAX.to_f32(),
            )
        }
    };
    match beyond.map(|i| floats[i]) {
        None => Ok(words),
        Some(x) => Err(format!(
            "{x} is beyond the range of {name}, which ends at {end}; deny this weight in the precision \
             policy, and it stays f32"
        )),
    }
}

/// Rounds whole blocks of rows: returns all numbers, then all scales. Blocks of a file keep its scales, so
/// numbers are those of the file.
fn blocks(floats: &[f32], columns: usize, format: BlockFormat, stored: Option<&Blocks<'_>>) -> Vec<u32> {
    let (mut words, mut scales) = (Vec::with_capacity(floats.len() / format.per_word()), vec![]);
    let offset = Element::Blocks(format).offset().expect("no addends");
    for (i, block) in floats.chunks_exact(BLOCK * columns).enumerate() {
        let mut largest = vec![0f32; columns];
        for row in block.chunks_exact(columns) {
            largest.iter_mut().zip(row).for_each(|(m, x)| *m = larger(*m, *x));
        }
        let scale = |(column, largest): (usize, &f32)| match stored {
            Some(stored) => stored.scale(column, i),
            None => format.scale(*largest),
        };
        let own: Vec<f16> = largest.iter().enumerate().map(scale).collect();
        let round = |row: &[f32]| -> Vec<u8> {
            let number =
                |(x, scale): (&f32, &f16)| format.number(*x, *scale).wrapping_add_unsigned(offset) as u8;
            row.iter().zip(&own).map(number).collect()
        };
        let rows_per_word = format.per_word() / 4;
        for eight_rows in block.chunks_exact(8 * columns) {
            let of_rows = eight_rows.chunks_exact(columns * rows_per_word).map(|rows| match format {
                BlockFormat::Q8_0 => round(rows),
                BlockFormat::Q4_0 => {
                    let (first, second) = rows.split_at(columns);
                    round(first).iter().zip(round(second)).map(|(a, b)| a | b << 4).collect()
                }
            });
            let of_rows: Vec<Vec<u8>> = of_rows.collect();
            let word = |bytes: &[u8], quad: usize| u32::from_le_bytes(bytes.as_chunks().0[quad]);
            words
                .extend((0..columns / 4).flat_map(|quad| of_rows.iter().map(move |bytes| word(bytes, quad))));
        }
        scales.extend(own);
    }
    let pair = |two: &[f16; 2]| u32::from(two[0].to_bits()) | u32::from(two[1].to_bits()) << 16;
    words.extend(scales.as_chunks().0.iter().map(pair));
    words
}

fn precision_of(format: SuperFormat) -> Precision {
    match format {
        SuperFormat::Q4K => Precision::Q4K,
        SuperFormat::Q5K => Precision::Q5K,
        SuperFormat::Q6K => Precision::Q6K,
    }
}

/// Packs `[K, columns]`, of which `of` returns a block of a column; K is a multiple of 256, and `columns` of
/// 4. See [`Element::Super`].
fn super_blocks(
    format: SuperFormat,
    (k, columns): (usize, usize),
    of: impl Fn(usize, usize) -> SuperBlock,
) -> Vec<u32> {
    let (bits, step) = (format.bits() as usize - 4, Element::Super(format).per_scale());
    let (low, high, scales) = (k * columns / 2, k * columns * bits / 8, k / step * columns);
    let has_addends = format != SuperFormat::Q6K;
    let per_column = if has_addends { 4 } else { 2 };
    let mut bytes = vec![0_u8; low + high + per_column * scales];
    let half = |x: f32| f16::from_f32(x.clamp(-65504.0, 65504.0)).to_le_bytes();
    for (column, block) in (0..columns).flat_map(|c| (0..k / SUPER_BLOCK).map(move |b| (c, b))) {
        let of = of(column, block);
        for (i, code) in of.codes.iter().enumerate() {
            let row = block * SUPER_BLOCK + i;
            let word = (row / 8 * columns / 4 + column / 4) * 4 + row % 8 / 2;
            bytes[4 * word + column % 4] |= (code & 15) << (row % 2 * 4);
            if let Some(rows) = 8_usize.checked_div(bits) {
                let at = row % rows / 2 * bits + row % 2 * 4;
                bytes[low + row / rows * columns + column] |= code >> 4 << at;
            }
        }
        for s in 0..SUPER_BLOCK / step {
            let at = low + high + per_column * ((block * SUPER_BLOCK / step + s) * columns + column);
            bytes[at..at + 2].copy_from_slice(&half(of.d.to_f32() * f32::from(of.scales[s])));
            if has_addends {
                let addend = half(-of.e.to_f32() * f32::from(of.minima[s]));
                bytes[at + 2..at + 4].copy_from_slice(&addend);
            }
        }
    }
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Weights that a step reads: matrices, mostly one, and vectors that are stored together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// All matrices are in one buffer.
    pub matrices: Vec<(Weight, Form)>,
    pub vectors: Vec<(Weight, Form)>,
}

impl Wanted {
    pub fn matrix(w: &Weight) -> Self {
        Wanted { matrices: vec![(w.clone(), Form::Plain)], vectors: vec![] }
    }

    /// A table for row lookups, in 16 bits if its file has it so: this is lossless, and the table of a large
    /// vocabulary takes half the memory.
    pub fn table(w: &Weight, source: &dyn WeightLoader) -> Self {
        let form = w.halves(source).map_or(Form::Plain, |halves| Form::Halves(halves.dtype));
        Wanted { matrices: vec![(w.clone(), form)], vectors: vec![] }
    }

    pub fn vectors(all: Vec<&Weight>) -> Self {
        Wanted { matrices: vec![], vectors: all.into_iter().map(|w| (w.clone(), Form::Plain)).collect() }
    }

    /// Groups of weights, each of which must be in one buffer.
    fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        let vectors = if self.vectors.is_empty() { None } else { Some(Block(&self.vectors)) };
        self.matrices.chunks(1).map(Block).chain(vectors)
    }
}

/// Memory of weights on a device in bytes, each counted once.
pub(crate) fn bytes_of(wanted: &[Wanted]) -> u64 {
    let mut seen = HashSet::new();
    let blocks = wanted.iter().flat_map(Wanted::blocks).filter(|b| seen.insert(b.key()));
    blocks.map(|b| b.bytes()).sum()
}

/// Weights that are stored contiguously.
#[derive(Clone, Copy)]
struct Block<'a>(&'a [(Weight, Form)]);

impl Block<'_> {
    fn key(&self) -> String {
        self.0.iter().map(|(w, form)| format!("{form:?} {};", w.key())).collect()
    }

    /// First element of each weight, and the total number of elements.
    fn layout(&self) -> (Vec<usize>, usize) {
        let mut at = 0;
        let place = |(w, form): &(Weight, Form)| {
            let here = at;
            at += form.len(w).next_multiple_of(ALIGNMENT);
            here
        };
        (self.0.iter().map(place).collect(), at)
    }

    fn bytes(&self) -> u64 {
        4 * self.layout().1 as u64
    }
}

/// Location of a block: buffer and first element.
#[derive(Clone, Copy, Debug)]
struct Slot {
    buffer: usize,
    element: usize,
}

/// Locations of a step's weights.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    /// All matrices are in one buffer.
    matrices: Vec<Slot>,
    vectors: Option<Slot>,
    offsets: Vec<usize>,
    /// Type of the matrix, if it is stored in 16 bits as in its file.
    pub halves: Option<DType>,
}

impl Placed {
    /// First element of matrix `i`.
    pub fn matrix(&self, i: usize) -> usize {
        self.matrices[i].element
    }

    /// First element of vector `i`.
    pub fn vector(&self, i: usize) -> usize {
        self.vectors.map_or(0, |s| s.element) + self.offsets[i]
    }

    /// Buffers of matrices and vectors.
    pub fn buffers(&self) -> [Option<usize>; 2] {
        let [matrix, vectors] = [self.matrices.first(), self.vectors.as_ref()].map(|s| s.map(|s| s.buffer));
        // A slot that is not read may have any buffer; this lets most steps share a bind group.
        [matrix.or(vectors), vectors.or(matrix)]
    }
}

/// All weights of a model that were requested so far.
#[derive(Default)]
pub(crate) struct WeightBank {
    buffers: Vec<Buffer>,
    /// By block. Matrices that must be in one buffer, but were stored apart before, are under
    /// [`key_together`].
    slots: HashMap<String, Slot>,
    bind_groups: HashMap<[Option<usize>; 2], BindGroup>,
    /// Bound if a step has no weights.
    nothing: Option<Buffer>,
}

/// Key of matrix `i` of several that share a buffer, which the separately stored ones do not.
fn key_together(matrices: &[(Weight, Form)], i: usize) -> String {
    format!("{i} of {}", Block(matrices).key())
}

/// Buffers to be added, during layout.
struct Additions<'a> {
    slots: &'a HashMap<String, Slot>,
    /// Index of the first buffer.
    first: usize,
    /// Maximum size of a buffer, unless a single unit is larger.
    largest: u64,
    sizes: Vec<u64>,
    added: HashMap<String, Slot>,
    jobs: Vec<(&'a Weight, Form, Slot)>,
}

impl<'a> Additions<'a> {
    fn find(&self, key: &str) -> Option<Slot> {
        self.slots.get(key).or_else(|| self.added.get(key)).copied()
    }

    /// Adds blocks that share a buffer, under keys.
    fn add(&mut self, blocks: &[(String, Block<'a>)]) {
        let bytes: u64 = blocks.iter().map(|(_, b)| b.bytes()).sum();
        if self.sizes.last().is_none_or(|s| s + bytes > self.largest) {
            self.sizes.push(0);
        }
        let last = self.sizes.len() - 1;
        for (key, block) in blocks {
            let slot = Slot { buffer: self.first + last, element: (self.sizes[last] / 4) as usize };
            for ((w, form), offset) in block.0.iter().zip(block.layout().0) {
                self.jobs.push((w, *form, Slot { element: slot.element + offset, ..slot }));
            }
            self.sizes[last] += block.bytes();
            self.added.insert(key.clone(), slot);
        }
    }
}

impl WeightBank {
    /// Memory on the device in bytes.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(Buffer::size).sum()
    }

    /// Uploads missing weights. Matrices of a group go into one buffer.
    pub fn fill(
        &mut self,
        gpu: &Gpu,
        groups: &[Vec<(Weight, Form)>],
        steps: &[Wanted],
        source: &dyn WeightLoader,
    ) -> Result<(), DeviceError> {
        // Buffers are laid out, then filled, and added to the bank only if that succeeds.
        let mut all = Additions {
            slots: &self.slots,
            first: self.buffers.len(),
            largest: CHUNK.min(gpu.largest_buffer),
            sizes: vec![],
            added: HashMap::new(),
            jobs: vec![],
        };
        for group in groups {
            let blocks: Vec<_> = group.chunks(1).map(|w| (Block(w).key(), Block(w))).collect();
            if blocks.iter().all(|(key, _)| all.find(key).is_none()) {
                all.add(&blocks);
            }
        }
        for block in steps.iter().flat_map(Wanted::blocks) {
            let key = block.key();
            if all.find(&key).is_none() {
                all.add(&[(key, block)]);
            }
        }
        for matrices in steps.iter().map(|s| &s.matrices).filter(|m| m.len() > 1) {
            let buffer = |w| all.find(&Block(w).key()).map(|s| s.buffer);
            let mut buffers = matrices.chunks(1).map(buffer);
            let first = buffers.next();
            if !buffers.all(|b| Some(b) == first) && all.find(&key_together(matrices, 0)).is_none() {
                // Another plan has stored some of them elsewhere; see `Plan::weight_groups`.
                tracing::debug!(weight = matrices[0].0.first_name(), "weights are stored twice");
                let keyed = |(i, w)| (key_together(matrices, i), Block(w));
                let blocks: Vec<_> = matrices.chunks(1).enumerate().map(keyed).collect();
                all.add(&blocks);
            }
        }
        let Additions { first, sizes, added, mut jobs, .. } = all;
        if let Some(bytes) = sizes.iter().find(|s| **s > gpu.largest_buffer) {
            return Err(gpu.out_of_memory(*bytes));
        }
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
        let made = sizes
            .iter()
            .map(|size| gpu.buffer("weights", (*size).max(256), usage))
            .collect::<Result<Vec<_>, _>>()?;
        // The largest first, so that no thread still has one when the others are done.
        jobs.sort_by_key(|(w, ..)| std::cmp::Reverse(w.shape().len()));
        upload(gpu, &jobs, &made, first, source)?;
        self.buffers.extend(made);
        self.slots.extend(added);
        Ok(())
    }

    /// Locations of a step's weights, which must have been uploaded.
    pub fn placed(&self, wanted: &Wanted) -> Placed {
        let together = |i| self.slots.get(&key_together(&wanted.matrices, i));
        let own = |(i, w)| {
            let apart = || self.slots.get(&Block(w).key());
            let found = if wanted.matrices.len() > 1 { together(i).or_else(apart) } else { apart() };
            *found.expect("`fill` uploaded the weights of every step")
        };
        let vectors = Block(&wanted.vectors);
        let halves = match wanted.matrices.first() {
            Some((_, Form::Halves(dtype))) => Some(*dtype),
            _ => None,
        };
        Placed {
            matrices: wanted.matrices.chunks(1).enumerate().map(own).collect(),
            vectors: self.slots.get(&vectors.key()).copied(),
            offsets: vectors.layout().0,
            halves,
        }
    }

    /// Bind group of a step's buffers.
    pub fn bind_group(&mut self, gpu: &Gpu, of: [Option<usize>; 2]) -> Result<BindGroup, DeviceError> {
        if let Some(group) = self.bind_groups.get(&of) {
            return Ok(group.clone());
        }
        let nothing = match &self.nothing {
            Some(b) => b.clone(),
            None => self.nothing.insert(gpu.buffer("no weights", 256, BufferUsages::STORAGE)?).clone(),
        };
        let buffers = of.map(|i| i.map_or(&nothing, |i| &self.buffers[i]));
        let group = gpu.bind("weights", &gpu.weights_layout, &buffers);
        self.bind_groups.insert(of, group.clone());
        Ok(group)
    }
}

/// Evaluates weights on all threads and copies each to its place.
fn upload(
    gpu: &Gpu,
    jobs: &[(&Weight, Form, Slot)],
    buffers: &[Buffer],
    first: usize,
    source: &dyn WeightLoader,
) -> Result<(), DeviceError> {
    let waiting = AtomicU64::new(0);
    let on_their_way = Mutex::new(None);
    let stop = AtomicBool::new(false);
    let copy = |to: &Buffer, at: u64, piece: &[u8]| -> Result<(), DeviceError> {
        gpu.write(to, at, piece)?;
        let n = piece.len() as u64;
        if waiting.fetch_add(n, Ordering::Relaxed) + n > IN_FLIGHT {
            waiting.store(0, Ordering::Relaxed);
            let now = gpu.queue.submit([]);
            let before = on_their_way.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
            before.map_or(Ok(()), |before| gpu.wait_for(before))?;
        }
        Ok(())
    };
    let one = |i: usize| -> Result<(), DeviceError> {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (w, form, slot) = &jobs[i];
        let made;
        let bytes = match form {
            Form::Halves(dtype) => w.halves_in(*dtype, source)?,
            _ => {
                made = form.make(w, source)?;
                bytemuck::cast_slice(&made)
            }
        };
        let (to, at) = (&buffers[slot.buffer - first], 4 * slot.element as u64);
        let mut pieces = bytes.chunks(PIECE).enumerate();
        pieces.try_for_each(|(i, piece)| copy(to, at + (i * PIECE) as u64, piece))?;
        w.release(source);
        Ok(())
    };
    let done = parallel::map(jobs.len(), usize::MAX, |i| {
        let done = one(i);
        stop.fetch_or(done.is_err(), Ordering::Relaxed);
        done
    });
    gpu.queue.submit([]);
    done.into_iter().collect::<Result<(), _>>()?;
    gpu.check()
}
