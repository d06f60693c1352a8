//! Weights of a model on the device, each stored once per layout that kernels read.

use crate::driver::{Context, DeviceBuffer, DevicePointer, Stream};
use crate::kernels::in_parallel;
use orate_graph::blocks::{BLOCK, BlockFormat, SUPER_BLOCK, SuperBlock, SuperFormat, larger};
use orate_graph::{
    Blocks, DType, DeviceError, Op, Plan, Precision, PrecisionPolicy, Tensor, Weight, WeightLoader,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Alignment of weights in bytes.
const ALIGNMENT: usize = 256;

/// Channels and elements of K that are packed together.
const CHANNELS: usize = 32;
/// See [`CHANNELS`].
const DEPTH: usize = 16;

/// Layout of a weight in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// f32 in logical order.
    Dense,
    /// An embedding table in f16 or bf16, as in its file: this is lossless, and a large vocabulary takes half
    /// the memory.
    Halves(DType),
    /// `[K, N]` in the register order of `kernels/matmul.cu`.
    Packed(Precision),
}

/// A weight, as the text of its expression, in a layout.
type Key = (String, Form);

/// Location of a weight: the slab, and the byte offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    slab: usize,
    offset: usize,
}

/// Weights by expression and layout.
#[derive(Default)]
pub(crate) struct WeightBank {
    slots: HashMap<Key, Slot>,
    /// Base address of each slab.
    bases: Vec<DevicePointer>,
    slabs: Vec<Arc<DeviceBuffer>>,
}

/// Taps of the convolutions that `kernels/conv_narrow.cu` computes.
const NARROW_TAPS: usize = 7;

/// Most channels of the matmuls that `kernels/dot.cu` computes.
const DOT_CHANNELS: usize = 15;

/// Whether `op` is a convolution to one channel that `kernels/conv_narrow.cu` computes, or a matmul to one
/// that `kernels/dot.cu` does. Its weight then stays dense f32.
pub(crate) fn is_narrow(op: &Op) -> bool {
    let (weight, geometry, epilogue) = match op {
        Op::MatMul { weight, epilogue } => {
            let [k, n] = [0, 1].map(|i| weight.shape().dims()[i]);
            return n == 1 && k <= DOT_CHANNELS && !epilogue.residual;
        }
        Op::Conv1d { weight, geometry, epilogue } => (weight, geometry, epilogue),
        _ => return false,
    };
    let channels = weight.shape().dims()[0] / geometry.taps;
    (geometry.taps, geometry.dilation, weight.shape().last()) == (NARROW_TAPS, 1, 1)
        && matches!(channels, 32 | 64 | 96 | 128)
        && !epilogue.residual
}

/// Layouts of an op's weights, in the order of [`Op::weights`].
fn forms<'p>(op: &'p Op, policy: &PrecisionPolicy, source: &dyn WeightLoader) -> Vec<(&'p Weight, Form)> {
    if let Op::Embedding { table } = op {
        return vec![(table, table.halves(source).map_or(Form::Dense, |halves| Form::Halves(halves.dtype)))];
    }
    let product = matches!(op, Op::MatMul { .. } | Op::Conv1d { .. }) && !is_narrow(op);
    let form =
        |i: usize, w: &Weight| if product && i == 0 { Form::Packed(policy.of(w)) } else { Form::Dense };
    op.weights().into_iter().enumerate().map(|(i, w)| (w, form(i, w))).collect()
}

/// Key of weights that run as one matmul.
fn key_of_run(weights: &[&Weight], form: Form) -> Key {
    (weights.iter().map(|w| w.key()).collect::<Vec<_>>().join("\n"), form)
}

/// A weight to upload.
struct Job<'p> {
    weight: &'p Weight,
    form: Form,
    offset: usize,
}

/// The slab that a plan adds to a bank, during layout.
struct Slab<'a, 'p> {
    /// Weights that exist already.
    slots: &'a HashMap<Key, Slot>,
    number: usize,
    added: HashMap<Key, Slot>,
    jobs: Vec<Job<'p>>,
    bytes: usize,
}

impl<'a, 'p> Slab<'a, 'p> {
    /// Lays out the weights of `plan` that are missing in `slots`.
    fn new(
        slots: &'a HashMap<Key, Slot>,
        number: usize,
        plan: &'p Plan,
        policy: &PrecisionPolicy,
        source: &dyn WeightLoader,
    ) -> Self {
        let mut slab = Slab { slots, number, added: HashMap::new(), jobs: vec![], bytes: 0 };
        for group in plan.weight_groups() {
            let forms = group.iter().map(|w| (w, Form::Packed(policy.of(w))));
            if forms.clone().all(|(w, form)| slab.find(&(w.key(), form)).is_none()) {
                slab.add(forms);
            }
        }
        for op in plan.steps().iter().flat_map(|s| &s.nodes).map(|n| &n.op) {
            for (w, form) in forms(op, policy, source) {
                if slab.find(&(w.key(), form)).is_none() {
                    slab.add([(w, form)].into_iter());
                }
            }
        }
        for w in plan.steps().iter().filter_map(|s| s.fused.norm.as_ref()?.columns.as_ref()) {
            if slab.find(&(w.key(), Form::Dense)).is_none() {
                slab.add([(w, Form::Dense)].into_iter());
            }
        }
        for step in plan.steps().iter().filter(|s| !s.fused.parts.is_empty()) {
            let run: Vec<&Weight> =
                step.node.op.weights()[..1].iter().copied().chain(&step.fused.parts).collect();
            let form = Form::Packed(policy.of(run[0]));
            let key = key_of_run(&run, form);
            let find = |key: &Key| slab.find(key);
            if !is_run(&run, form, find) && find(&key).is_none() {
                // Another plan has stored some of them elsewhere; see `Plan::weight_groups`.
                tracing::debug!(plan = plan.name(), weight = run[0].first_name(), "weights are packed twice");
                let at = slab.add(run.iter().map(|w| (*w, form)));
                slab.added.insert(key, at);
            }
        }
        slab
    }

    fn find(&self, key: &Key) -> Option<Slot> {
        self.slots.get(key).or_else(|| self.added.get(key)).copied()
    }

    /// Adds weights one after the other.
    fn add(&mut self, all: impl Iterator<Item = (&'p Weight, Form)>) -> Slot {
        let mut offset = self.bytes.next_multiple_of(ALIGNMENT);
        let first = Slot { slab: self.number, offset };
        for (weight, form) in all {
            let key = (weight.key(), form);
            if self.find(&key).is_none() {
                self.added.insert(key, Slot { offset, ..first });
            }
            self.jobs.push(Job { weight, form, offset });
            offset += bytes_of(weight, form);
        }
        self.bytes = offset;
        first
    }
}

/// Whether the `weights` are contiguous.
fn is_run(weights: &[&Weight], form: Form, find: impl Fn(&Key) -> Option<Slot>) -> bool {
    let slot = |w: &Weight| find(&(w.key(), form));
    weights.windows(2).all(|pair| match (slot(pair[0]), slot(pair[1])) {
        (Some(a), Some(b)) => a.slab == b.slab && b.offset == a.offset + bytes_of(pair[0], form),
        _ => false,
    })
}

impl WeightBank {
    /// Memory of the weights on the device in bytes.
    pub fn bytes(&self) -> u64 {
        self.slabs.iter().map(|s| s.bytes() as u64).sum()
    }

    /// Slabs with the weights, for executables that use them.
    pub fn slabs(&self) -> Vec<Arc<DeviceBuffer>> {
        self.slabs.clone()
    }

    fn pointer(&self, key: &Key) -> Option<DevicePointer> {
        let slot = self.slots.get(key)?;
        Some(self.bases[slot.slab] + slot.offset as u64)
    }

    /// Address of a weight.
    pub fn get(&self, w: &Weight, form: Form) -> DevicePointer {
        self.pointer(&(w.key(), form)).expect("`fill` uploaded the weights of every step")
    }

    /// Address of the packed weight of a matmul, followed by those of its parts.
    pub fn packed(&self, w: &Weight, parts: &[Weight], precision: Precision) -> DevicePointer {
        let form = Form::Packed(precision);
        let run: Vec<&Weight> = [w].into_iter().chain(parts).collect();
        if is_run(&run, form, |key| self.slots.get(key).copied()) {
            return self.get(w, form);
        }
        self.pointer(&key_of_run(&run, form)).expect("`fill` packed the weights of every step together")
    }

    /// Address of an embedding table, and its element type.
    pub fn table(&self, w: &Weight) -> (DevicePointer, DType) {
        let halves = [DType::F16, DType::BF16].map(|dtype| (Form::Halves(dtype), dtype));
        let found =
            halves.into_iter().find_map(|(form, dtype)| Some((self.pointer(&(w.key(), form))?, dtype)));
        found.unwrap_or_else(|| (self.get(w, Form::Dense), DType::F32))
    }

    /// Evaluates, packs and uploads all missing weights of a plan, on several threads: reading and packing a
    /// model is most of the time to the first sentence.
    pub fn fill(
        &mut self,
        plan: &Plan,
        context: &Arc<Context>,
        policy: &PrecisionPolicy,
        source: &dyn WeightLoader,
    ) -> Result<(), DeviceError> {
        let start = Instant::now();
        let Slab { added, jobs, bytes: total, .. } =
            Slab::new(&self.slots, self.bases.len(), plan, policy, source);
        if jobs.is_empty() {
            return Ok(());
        }
        // The largest first, so that no thread still has one when the others are done.
        let mut order: Vec<&Job<'_>> = jobs.iter().collect();
        order.sort_by_key(|job| std::cmp::Reverse(job.weight.shape().len()));
        let slab = Arc::new(DeviceBuffer::new(context, total.max(ALIGNMENT))?);
        let uploaded = in_parallel(order.len(), |i| {
            let &Job { weight: w, form, offset } = order[i];
            let (packed, dense);
            let bytes: &[u8] = match form {
                Form::Dense => {
                    dense = w.evaluate(source)?.contiguous();
                    bytemuck::cast_slice(&dense.data)
                }
                Form::Halves(dtype) => w.halves_in(dtype, source)?,
                Form::Packed(precision) => {
                    let (of_super, stored) = (SuperFormat::of(precision), w.column_blocks(precision, source));
                    packed = match (of_super, stored) {
                        (Some(format), Some(stored)) => pack_stored(&stored, format),
                        (Some(format), None) => pack_super(&w.evaluate(source)?, format),
                        (None, stored) => match BlockFormat::of(precision) {
                            Some(format) => pack_blocks(&w.evaluate(source)?, format, stored.as_ref()),
                            None => pack(&w.evaluate(source)?, precision),
                        },
                    };
                    bytemuck::cast_slice(&packed)
                }
            };
            debug_assert_eq!(bytes.len(), bytes_of(w, form));
            let stream = Stream::new(context)?;
            // SAFETY: the slab has room for every weight at its offset.
            unsafe { stream.upload(slab.pointer() + offset as u64, bytes)? };
            stream.synchronize()?;
            w.release(source);
            Ok(())
        });
        tracing::debug!(plan = plan.name(), bytes = total, elapsed = ?start.elapsed(), "weights are on the device");
        uploaded.into_iter().collect::<Result<Vec<()>, DeviceError>>()?;
        self.slots.extend(added);
        self.bases.push(slab.pointer());
        self.slabs.push(slab);
        Ok(())
    }

    /// Assigns addresses from `base` on to the weights of a plan, and uploads nothing.
    pub fn imagine(
        &mut self,
        plan: &Plan,
        policy: &PrecisionPolicy,
        source: &dyn WeightLoader,
        base: DevicePointer,
    ) {
        let added = Slab::new(&self.slots, self.bases.len(), plan, policy, source).added;
        self.slots.extend(added);
        self.bases.push(base);
    }
}

/// Memory of the weights of `plans` on a device in bytes, each counted once.
pub(crate) fn bytes_of_plans(plans: &[Plan], policy: &PrecisionPolicy, source: &dyn WeightLoader) -> u64 {
    let mut slots = HashMap::new();
    let mut total = 0;
    for (number, plan) in plans.iter().enumerate() {
        let slab = Slab::new(&slots, number, plan, policy, source);
        total += slab.bytes as u64;
        let added = slab.added;
        slots.extend(added);
    }
    total
}

/// Size of a weight on the device.
fn bytes_of(w: &Weight, form: Form) -> usize {
    match (form, w.shape().dims()) {
        (Form::Packed(precision), &[k, n]) => packed_bytes(k, n, precision),
        (Form::Halves(_), _) => w.shape().len() * 2,
        _ => w.shape().len() * 4,
    }
}

/// Size of a packed `[K, N]`.
pub(crate) fn packed_bytes(k: usize, n: usize, precision: Precision) -> usize {
    if let Some(format) = SuperFormat::of(precision) {
        return k / SUPER_BLOCK * n.div_ceil(CHANNELS) * super_words(format) * 4;
    }
    if let Some(format) = BlockFormat::of(precision) {
        let numbers = k.next_multiple_of(DEPTH) * CHANNELS / format.per_word() * 4;
        return n.div_ceil(CHANNELS) * (numbers + k.div_ceil(BLOCK) * CHANNELS * 2);
    }
    k.next_multiple_of(DEPTH) * n.next_multiple_of(CHANNELS) * if is_half(precision) { 2 } else { 4 }
}

/// Whether weights take two bytes.
fn is_half(precision: Precision) -> bool {
    matches!(precision, Precision::F16 | Precision::Bf16)
}

/// Packs `[K, N]` in the order in which the threads of `kernels/matmul.cu` read it: blocks of 32 channels, in
/// them blocks of 16 of K, in them 16 bytes for each of 32 threads at a time. Thread `4g + t` has channels
/// `g` and `g + 8` of each 16, and elements `4t … 4t + 3` of K. Missing values at the edges are zero.
fn pack(w: &Tensor<'_>, precision: Precision) -> Vec<u32> {
    let (k, n) = (w.shape.dims()[0], w.shape.dims()[1]);
    let (k_stride, n_stride) = (w.strides[0], w.strides[1]);
    let at = |depth: usize, channel: usize| {
        if depth < k && channel < n { w.data[depth * k_stride + channel * n_stride] } else { 0.0 }
    };
    let halves = |a: f32, b: f32| {
        let bits = |x: f32| match precision {
            Precision::F16 => half::f16::from_f32(x).to_bits(),
            _ => half::bf16::from_f32(x).to_bits(),
        };
        u32::from(bits(a)) | u32::from(bits(b)) << 16
    };
    let single = |x: f32| if precision == Precision::Tf32 { round_to_tf32(x) } else { x.to_bits() };
    let elements = k.next_multiple_of(DEPTH) * n.next_multiple_of(CHANNELS);
    let mut out = Vec::with_capacity(elements / if is_half(precision) { 2 } else { 1 });
    for channels in (0..n).step_by(CHANNELS) {
        for depth in (0..k).step_by(DEPTH) {
            for m in [0, 16] {
                if is_half(precision) {
                    for (g, t) in (0..8).flat_map(|g| (0..4).map(move |t| (g, t))) {
                        let (c, d) = (channels + m + g, depth + 4 * t);
                        out.extend([
                            halves(at(d, c), at(d + 1, c)),
                            halves(at(d, c + 8), at(d + 1, c + 8)),
                            halves(at(d + 2, c), at(d + 3, c)),
                            halves(at(d + 2, c + 8), at(d + 3, c + 8)),
                        ]);
                    }
                    continue;
                }
                for step in [0, 2] {
                    for (g, t) in (0..8).flat_map(|g| (0..4).map(move |t| (g, t))) {
                        let (c, d) = (channels + m + g, depth + 4 * t + step);
                        out.extend([at(d, c), at(d, c + 8), at(d + 1, c), at(d + 1, c + 8)].map(single));
                    }
                }
            }
        }
    }
    out
}

/// Packs `[K, N]` in blocks of 32 channels: first numbers, in blocks of 16 of K and in them 16 for each of 32
/// threads, then scales in f16. Threads have the same channels and elements as in [`pack`]. Every eighth
/// thread has four scales: of channels `g`, `g + 8`, `g + 16` and `g + 24`.
///
/// A thread multiplies pairs of neighbors along K, alternating between channels `g` and `g + 8`. A word is
/// two pairs of signed bytes, or four pairs of numbers from 0 to 15 with an offset of 8: the first of pair
/// `i` in bits `4i … 4i + 3`, the second 16 bits above.
///
/// Blocks of a file keep its scales, so numbers are those of the file.
fn pack_blocks(w: &Tensor<'_>, format: BlockFormat, stored: Option<&Blocks<'_>>) -> Vec<u32> {
    let (k, n) = (w.shape.dims()[0], w.shape.dims()[1]);
    let (k_stride, n_stride) = (w.strides[0], w.strides[1]);
    let at = |depth: usize, channel: usize| {
        if depth < k && channel < n { w.data[depth * k_stride + channel * n_stride] } else { 0.0 }
    };
    let word = |pairs: &[[i8; 2]]| match format {
        BlockFormat::Q8_0 => u32::from_le_bytes(std::array::from_fn(|i| pairs[i / 2][i % 2] as u8)),
        BlockFormat::Q4_0 => pairs.iter().enumerate().fold(0, |word, (i, pair)| {
            let [first, second] = pair.map(|q| (q + 8) as u32);
            word | (first | second << 16) << (4 * i)
        }),
    };
    let mut out = vec![];
    for channels in (0..n).step_by(CHANNELS) {
        let scale = |block: usize, c: usize| {
            if let Some(stored) = stored {
                return stored.scale(channels + c, block);
            }
            let depths = block * BLOCK..(block + 1) * BLOCK;
            format.scale(depths.fold(0.0, |largest, d| larger(largest, at(d, channels + c))))
        };
        let scales: Vec<[half::f16; CHANNELS]> =
            (0..k.div_ceil(BLOCK)).map(|block| std::array::from_fn(|c| scale(block, c))).collect();
        for depth in (0..k).step_by(DEPTH) {
            let number = |d: usize, c: usize| format.number(at(d, channels + c), scales[depth / BLOCK][c]);
            for (g, t) in (0..8).flat_map(|g| (0..4).map(move |t| (g, t))) {
                let pairs: [[i8; 2]; 8] = std::array::from_fn(|i| {
                    let (c, d) = (g + i % 2 * 8 + i / 4 * 16, depth + 4 * t + i / 2 % 2 * 2);
                    [number(d, c), number(d + 1, c)]
                });
                out.extend(pairs.chunks(format.per_word() / 2).map(word));
            }
        }
        for of in scales {
            for g in 0..8 {
                let pair = |a: usize, b: usize| u32::from(of[a].to_bits()) | u32::from(of[b].to_bits()) << 16;
                out.extend([pair(g, g + 8), pair(g + 16, g + 24)]);
            }
        }
    }
    out
}

/// Words of 256 weights of 32 channels: numbers, upper bits, scales.
fn super_words(format: SuperFormat) -> usize {
    let scales = match format {
        SuperFormat::Q4K | SuperFormat::Q5K => SUPER_BLOCK / 32 * 2,
        SuperFormat::Q6K => SUPER_BLOCK / 16,
    };
    SUPER_BLOCK * CHANNELS * format.bits() as usize / 32 + scales * CHANNELS / 2
}

/// Packs blocks of a file as [`pack_columns`] does.
fn pack_stored(stored: &Blocks<'_>, format: SuperFormat) -> Vec<u32> {
    let (n, k) = (stored.shape.dims()[0], stored.shape.dims()[1]);
    let all = stored.bytes.chunks_exact(format.bytes()).collect::<Vec<_>>();
    let per_column = k / SUPER_BLOCK;
    pack_columns(format, (k, n), |channel, block| SuperBlock::read(format, all[channel * per_column + block]))
}

/// Rounds `[K, N]` to blocks of 256 and packs them as [`pack_columns`] does.
fn pack_super(w: &Tensor<'_>, format: SuperFormat) -> Vec<u32> {
    let (k, n) = (w.shape.dims()[0], w.shape.dims()[1]);
    pack_columns(format, (k, n), |channel, block| {
        let at = |i: usize| w.data[(block * SUPER_BLOCK + i) * w.strides[0] + channel * w.strides[1]];
        SuperBlock::round(format, &std::array::from_fn(at))
    })
}

/// Packs `[K, N]`, of which `block_of` returns a block of a channel, in blocks of 32 channels: the lower four
/// bits as in [`pack_blocks`], upper bits, and scales. K is a multiple of 256.
///
/// Each thread has a word of upper bits, the first number of a pair in the lower 16 bits and the second in
/// the others: of 16 of K with six bits, or with five bits a byte for each 16 of 32. [`upper_bits`] says
/// where they are. Scales are f16 as in [`pack_blocks`], for every 16 of K with six bits, else followed by
/// the negative minima of the same channels. Both are products, of which the file has the factors.
fn pack_columns(
    format: SuperFormat,
    (k, n): (usize, usize),
    block_of: impl Fn(usize, usize) -> SuperBlock,
) -> Vec<u32> {
    let blocks = k / SUPER_BLOCK;
    let mut out = Vec::with_capacity(n.div_ceil(CHANNELS) * blocks * super_words(format));
    let half = |x: f32| half::f16::from_f32(x.clamp(-65504.0, 65504.0));
    for first in (0..n).step_by(CHANNELS) {
        let column = |c: usize| -> Vec<SuperBlock> {
            let of = |block| if first + c < n { block_of(first + c, block) } else { SuperBlock::ZERO };
            (0..blocks).map(of).collect()
        };
        let columns: Vec<Vec<SuperBlock>> = (0..CHANNELS).map(column).collect();
        let code = |d: usize, c: usize| u32::from(columns[c][d / SUPER_BLOCK].codes[d % SUPER_BLOCK]);
        // The pairs of a thread.
        let pairs = |depth: usize, g: usize, t: usize| -> [u32; 8] {
            std::array::from_fn(|i| {
                let (c, d) = (g + i % 2 * 8 + i / 4 * 16, depth + 4 * t + i / 2 % 2 * 2);
                code(d, c) | code(d + 1, c) << 16
            })
        };
        let threads = || (0..8).flat_map(|g| (0..4).map(move |t| (g, t)));
        for depth in (0..k).step_by(DEPTH) {
            for (g, t) in threads() {
                let low = pairs(depth, g, t).map(|pair| pair & 0x000f_000f);
                let word = |four: &[u32]| four.iter().enumerate().fold(0, |w, (i, p)| w | p << (4 * i));
                out.extend([word(&low[..4]), word(&low[4..])]);
            }
        }
        let (depth, bits) = match format {
            SuperFormat::Q4K => (0, 0),
            SuperFormat::Q5K => (2 * DEPTH, 1),
            SuperFormat::Q6K => (DEPTH, 2),
        };
        for start in (0..k).step_by(depth.max(1)).filter(|_| bits > 0) {
            for (g, t) in threads() {
                let of = |at: usize| {
                    let high = pairs(start + at, g, t).map(|pair| pair >> 4 & 0x000f_000f);
                    high.iter().enumerate().fold(0, |w, (i, p)| w | p << upper_bits(bits, i))
                };
                out.push(if bits == 1 { of(0) | of(DEPTH) << 8 } else { of(0) });
            }
        }
        let step = if format == SuperFormat::Q6K { 16 } else { 32 };
        for start in (0..k).step_by(step) {
            let (block, s) = (start / SUPER_BLOCK, start % SUPER_BLOCK / step);
            let scale =
                |c: usize| half(columns[c][block].d.to_f32() * f32::from(columns[c][block].scales[s]));
            let added =
                |c: usize| half(-columns[c][block].e.to_f32() * f32::from(columns[c][block].minima[s]));
            let pair = |a: half::f16, b: half::f16| u32::from(a.to_bits()) | u32::from(b.to_bits()) << 16;
            for g in 0..8 {
                out.extend([pair(scale(g), scale(g + 8)), pair(scale(g + 16), scale(g + 24))]);
                if step == 32 {
                    out.extend([pair(added(g), added(g + 8)), pair(added(g + 16), added(g + 24))]);
                }
            }
        }
    }
    out
}

/// Position of the `bits` upper bits of pair `i` of eight, of which four are of the same channels. Those of
/// the pair after an even one are four higher, as its lower bits are, so one shift serves both.
fn upper_bits(bits: usize, i: usize) -> usize {
    i / 2 * bits + i % 2 * 4 + if bits == 2 { i / 4 * 4 } else { 0 }
}

/// Rounds to 11 significant bits; ties away from zero, as the device rounds.
fn round_to_tf32(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_finite() { bits.wrapping_add(0x1000) & !0x1FFF } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate_graph::{ConvGeometry, Epilogue};
    use orate_testing::RandomWeights;

    #[test]
    fn packing_puts_every_element_where_its_thread_reads() {
        let (k, n) = (20, 35);
        let data: Vec<f32> = (0..k * n).map(|i| i as f32 + 1.0).collect();
        let packed = pack(&Tensor::new([k, n], &data), Precision::F32);
        assert_eq!(packed.len(), 32 * 64);
        let value = |channels: usize, depth: usize, load: usize, lane: usize, i: usize| {
            f32::from_bits(packed[(((channels * 2 + depth) * 4 + load) * 32 + lane) * 4 + i])
        };
        // First 16 channels, first two of each thread's four elements: channel 1, elements 8 and 9 for thread
        // 6.
        assert_eq!(value(0, 0, 0, 6, 0), data[8 * n + 1]);
        assert_eq!(value(0, 0, 0, 6, 1), data[8 * n + 9]);
        assert_eq!(value(0, 0, 0, 6, 2), data[9 * n + 1]);
        // The other two, and the next 16 channels.
        assert_eq!(value(0, 0, 1, 6, 0), data[10 * n + 1]);
        assert_eq!(value(0, 0, 2, 6, 0), data[8 * n + 17]);
        // Past the edges.
        assert_eq!(value(1, 1, 0, 0, 0), data[16 * n + 32]);
        assert_eq!(value(1, 1, 0, 1, 0), 0.0, "element 20 of K");
        assert_eq!(value(1, 0, 0, 12, 0), 0.0, "channel 35");
        let sum: f64 = packed.iter().map(|x| f64::from(f32::from_bits(*x))).sum();
        assert_eq!(sum, data.iter().map(|x| f64::from(*x)).sum::<f64>(), "each element once");
    }

    #[test]
    fn blocks_have_bytes_and_scales_where_threads_read_them() {
        let (k, n) = (40, 35);
        // 127 in every block, times a power of two per column.
        let whole =
            |d: usize, c: usize| if d.is_multiple_of(32) { 127 } else { (d * 7 + c * 3) as i32 % 255 - 127 };
        let power = |c: usize| 2f32.powi(c as i32 % 7 - 4);
        let data: Vec<f32> = (0..k * n).map(|i| whole(i / n, i % n) as f32 * power(i % n)).collect();
        let packed = pack_blocks(&Tensor::new([k, n], &data), BlockFormat::Q8_0, None);
        // Three blocks of 16 of K and two of 32 for each block of channels.
        let words = 3 * 128 + 2 * 16;
        assert_eq!((packed.len(), packed_bytes(k, n, Precision::Q8_0)), (2 * words, 8 * words));
        let bytes = |channels: usize, depth: usize, lane: usize, word: usize| {
            packed[channels * words + depth * 128 + lane * 4 + word].to_le_bytes().map(|b| i32::from(b as i8))
        };
        // Thread 6: channel 1, elements 8 to 11 of K.
        assert_eq!(bytes(0, 0, 6, 0), [whole(8, 1), whole(9, 1), whole(8, 9), whole(9, 9)]);
        assert_eq!(bytes(0, 1, 6, 1), [whole(26, 1), whole(27, 1), whole(26, 9), whole(27, 9)]);
        assert_eq!(bytes(0, 2, 4, 2), [whole(32, 17), whole(33, 17), whole(32, 25), whole(33, 25)]);
        assert_eq!(bytes(0, 2, 6, 0), [0; 4], "element 40 of K");
        assert_eq!(bytes(1, 0, 8, 0), [whole(0, 34), whole(1, 34), 0, 0], "channel 42");
        let scale = |channels: usize, block: usize, g: usize, i: usize| {
            let word = packed[channels * words + 3 * 128 + block * 16 + g * 2 + i / 2];
            half::f16::from_bits((word >> (16 * (i % 2))) as u16).to_f32()
        };
        for (i, c) in [5, 13, 21, 29].into_iter().enumerate() {
            assert_eq!((scale(0, 0, 5, i), scale(0, 1, 5, i)), (power(c), power(c)));
        }
        assert_eq!((scale(1, 1, 2, 0), scale(1, 1, 2, 1)), (power(34), 0.0));
    }

    #[test]
    fn blocks_of_four_bits_have_pairs_where_threads_read_them() {
        let (k, n) = (40, 35);
        let whole =
            |d: usize, c: usize| if d.is_multiple_of(32) { -8 } else { (d * 7 + c * 3) as i32 % 16 - 8 };
        let data: Vec<f32> = (0..k * n).map(|i| whole(i / n, i % n) as f32).collect();
        let packed = pack_blocks(&Tensor::new([k, n], &data), BlockFormat::Q4_0, None);
        let words = 3 * 64 + 2 * 16;
        assert_eq!((packed.len(), packed_bytes(k, n, Precision::Q4_0)), (2 * words, 8 * words));
        let pairs = |channels: usize, depth: usize, lane: usize, word: usize| {
            let word = packed[channels * words + depth * 64 + lane * 2 + word];
            [0, 4, 8, 12].map(|i| [(word >> i) & 15, (word >> (16 + i)) & 15].map(|q| q as i32 - 8))
        };
        // Thread 6: channels 1 and 9, elements 8 to 11 of K.
        let of = |d: usize, c: usize| [whole(d, c), whole(d + 1, c)];
        assert_eq!(pairs(0, 0, 6, 0), [of(8, 1), of(8, 9), of(10, 1), of(10, 9)]);
        assert_eq!(pairs(0, 1, 6, 1), [of(24, 17), of(24, 25), of(26, 17), of(26, 25)]);
        assert_eq!(pairs(0, 2, 6, 0), [[0; 2]; 4], "element 40 of K");
        assert_eq!(pairs(1, 0, 8, 0), [of(0, 34), [0; 2], of(2, 34), [0; 2]], "channel 42");
        let scales = packed[3 * 64];
        assert_eq!(half::f16::from_bits(scales as u16).to_f32(), 1.0);
    }

    /// Every weight comes out of the words as `kernels/matmul.cu` takes them apart.
    #[test]
    fn blocks_of_256_have_pairs_where_threads_read_them() {
        let (k, n) = (512, 35);
        let data: Vec<f32> = (0..k * n).map(|i| (i as f32 * 0.7).sin() + 0.3 * (i as f32).cos()).collect();
        let tensor = Tensor::new([n, k], &data).transpose();
        for (format, precision) in
            SuperFormat::ALL.into_iter().zip([Precision::Q4K, Precision::Q5K, Precision::Q6K])
        {
            let packed = pack_super(&tensor, format);
            assert_eq!(4 * packed.len(), packed_bytes(k, n, precision), "{precision}");
            let mut stored = vec![];
            for block in data.as_chunks().0 {
                SuperBlock::round(format, block).write(format, &mut stored);
            }
            let stored = Blocks { format: precision, shape: [n, k].into(), bytes: &stored };
            assert!(packed == pack_stored(&stored, format), "{precision}");
            let k_blocks = k / DEPTH;
            let (per_plane, has_minima) =
                (if format == SuperFormat::Q5K { 2 } else { 1 }, format != SuperFormat::Q6K);
            let planes = if format == SuperFormat::Q4K { 0 } else { k_blocks / per_plane * 32 };
            let (per_scale, scale_words) = if has_minima { (2, 4) } else { (1, 2) };
            let all = k_blocks * 64 + planes + k_blocks / per_scale * 8 * scale_words;
            for channel in 0..n {
                let words = &packed[channel / CHANNELS * all..][..all];
                let (c, mut weights) = (channel % CHANNELS, [0.0; SUPER_BLOCK]);
                for d in 0..k {
                    if d % SUPER_BLOCK == 0 {
                        let part = data[channel * k + d..].first_chunk().expect("a block");
                        SuperBlock::round(format, part).weights(format, &mut weights);
                    }
                    let (block, t, i) = (d / DEPTH, d % DEPTH / 4, c / 16 * 4 + d % 4 / 2 * 2 + c / 8 % 2);
                    let (lane, upper) = (c % 8 * 4 + t, d % 2 * 16);
                    let mut q = words[block * 64 + lane * 2 + i / 4] >> (4 * (i % 4) + upper) & 15;
                    let high = |i: usize| words[k_blocks * 64 + block / per_plane * 32 + lane] >> (i + upper);
                    q |= match format {
                        SuperFormat::Q4K => 0,
                        SuperFormat::Q5K => (high([0, 4, 1, 5, 2, 6, 3, 7][i] + block % 2 * 8) & 1) << 4,
                        SuperFormat::Q6K => (high([0, 4, 2, 6, 8, 12, 10, 14][i]) & 3) << 4,
                    };
                    let scales = &words[k_blocks * 64 + planes + block / per_scale * 8 * scale_words..]
                        [c % 8 * scale_words..];
                    let half =
                        |at: usize| half::f16::from_bits((scales[at / 2] >> (at % 2 * 16)) as u16).to_f32();
                    let got = match has_minima {
                        true => half(c / 8) * q as f32 + half(4 + c / 8),
                        false => half(c / 8) * (q as f32 - 32.0),
                    };
                    let want = weights[d % SUPER_BLOCK];
                    assert!((got - want).abs() <= 2e-3, "{precision}: ({d}, {channel}) is {got}, not {want}");
                }
            }
        }
    }

    #[test]
    fn transposed_views_pack_to_the_same() {
        let data: Vec<f32> = (0..6 * 4).map(|i| i as f32).collect();
        let view = Tensor::new([4, 6], &data).transpose();
        let plain = view.clone().contiguous();
        for precision in Precision::FLOATS {
            assert_eq!(pack(&view, precision), pack(&plain, precision));
            let w = Weight::named("w", [6, 4]);
            assert_eq!(4 * pack(&view, precision).len(), bytes_of(&w, Form::Packed(precision)));
        }
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_0] {
            assert_eq!(pack_blocks(&view, format, None), pack_blocks(&plain, format, None));
        }
    }

    #[test]
    fn tf32_has_eleven_bits() {
        for (x, want) in [(1.0, 1.0), (1.0 + 1.0 / 4096.0, 1.0), (1.0 + 1.0 / 2048.0, 1.0 + 1.0 / 1024.0)] {
            assert_eq!(f32::from_bits(round_to_tf32(x)), want);
            assert_eq!(f32::from_bits(round_to_tf32(-x)), -want);
        }
    }

    #[test]
    fn only_the_product_itself_is_packed() {
        let (weight, bias) = (Weight::named("w", [6, 4]), Weight::named("b", [4]));
        let epilogue = Epilogue { bias: Some(bias), ..Default::default() };
        let op = Op::Conv1d { weight, geometry: ConvGeometry::causal(3, 1), epilogue };
        let policy =
            PrecisionPolicy { precision: Precision::Bf16, deny: vec!["v".into()], ..Default::default() };
        let source = RandomWeights::of_weights(op.weights(), 1);
        let forms: Vec<Form> = forms(&op, &policy, &source).into_iter().map(|f| f.1).collect();
        assert_eq!(forms, [Form::Packed(Precision::Bf16), Form::Dense]);
    }

    #[test]
    fn tables_stay_as_their_file_has_them() {
        for (name, columns, wanted) in [
            ("table", 4, Form::Dense),
            ("table.f16", 4, Form::Halves(DType::F16)),
            ("table.bf16", 4, Form::Halves(DType::BF16)),
            // Rows of half a word.
            ("table.bf16", 3, Form::Dense),
        ] {
            let op = Op::Embedding { table: Weight::named(name, [6, columns]) };
            let source = RandomWeights::of_weights(op.weights(), 1);
            let all = forms(&op, &PrecisionPolicy::default(), &source);
            assert_eq!(all.iter().map(|f| f.1).collect::<Vec<_>>(), [wanted], "{name} of {columns}");
        }
    }
}
