//! One utterance: prompt, then frame after frame.
//!
//! Where memories have queues of their own ([`orate_graph::Device::has_queues`]) the next frame is submitted before the codes of
//! one are waited for, see [`Session::make_ahead`].

use super::ahead::Ahead;
use super::kept_states::KeptState;
use super::shared_batch::SharedBatch;
use super::shared_prompts::{self, Coming, Unread};
use crate::FinishReason;
use crate::qwen3_tts::config::Config;
use crate::qwen3_tts::error::QwenError;
use crate::qwen3_tts::frame::{self, GIVEN};
use crate::qwen3_tts::pipeline::{Network, Qwen3Tts};
use crate::qwen3_tts::prompt::Prompt;
use crate::qwen3_tts::prompt_rows::{
    CODEC_IDS, IS_FRAME, IS_ID, IS_X_VECTOR, OTHER_CODES, TEXT_IDS, TRAILING_IDS, X_VECTOR,
};
use crate::qwen3_tts::row_ids::{RowIds, RowKind};
use crate::qwen3_tts::settings::Settings;
use crate::qwen3_tts::talker::{self, POSITION, Sizes};
use crate::qwen3_tts::transformer::Cache;
use crate::runtime::{PooledMemory, Profile};
use orate_graph::{Buffer, BufferKind, Counters, Device, Executable, Memory, Shape, TAP_PREFIX};
use std::sync::Arc;

/// Least rows of a cache; more are a power of two, so that plans are few.
const LEAST_CAPACITY: usize = 256;
/// Frames that a cache has room for at first: ten seconds. It is doubled when it is full.
const FIRST_FRAMES: usize = 128;
/// Rows of trailing text are rounded up to a multiple of this.
const TEXT_STEP: usize = 64;

/// Rows of a prompt are padded to a multiple of this, so that prompts of all lengths need few plans.
pub(crate) const PROMPT_STEP: usize = 32;
/// The same on a CPU, where a row of the 0.6B model in `q8_0` costs 2 ms, and a plan as much.
const PROMPT_STEP_OF_CPUS: usize = 4;
/// Rows that are read in one pass at most.
const MOST_ROWS: usize = 128;

/// Rows of a cache for as many rows as this.
pub(crate) fn capacity(rows: usize) -> usize {
    rows.next_power_of_two().max(LEAST_CAPACITY)
}

/// Rows of the longest pass in which a prompt of so many rows is read on a device.
pub(crate) fn pass_rows(device: &dyn Device, rows: usize) -> usize {
    rows.next_multiple_of(prompt_step(device)).min(MOST_ROWS)
}

/// What rows of a prompt are padded to.
fn prompt_step(device: &dyn Device) -> usize {
    if device.has_queues() { PROMPT_STEP } else { PROMPT_STEP_OF_CPUS }
}

/// Rows of trailing text for as many as this.
pub(crate) fn text_capacity(rows: usize) -> usize {
    rows.next_multiple_of(TEXT_STEP)
}

/// What [`Session::next_frame`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A frame.
    Frame,
    /// None: the utterance has ended.
    End(FinishReason),
}

/// Buffers and plans of one utterance. What it computes stays on the device; the host reads a frame's codes.
pub struct Session {
    model: Arc<Qwen3Tts>,
    memory: PooledMemory,
    frame_plan: Option<Arc<dyn Executable>>,
    /// Plans for when the cache is full, by the rows of a larger one.
    larger: Vec<(usize, Arc<dyn Executable>)>,
    sizes: Sizes,
    text_rows: usize,
    /// Rows of the prompt, and those of them that were read before.
    rows: usize,
    reused: usize,
    /// Rows that are read on their own, and the others with their padding.
    parts: (usize, usize),
    /// Frames that were handed out, and what became of the next one.
    frames: usize,
    ahead: Ahead,
    makes_ahead: bool,
    /// Frames behind which none is made ahead.
    pause_at: Option<usize>,
    max_frames: usize,
    settings: Option<Settings>,
    finished: Option<FinishReason>,
    taps: bool,
    /// Frames that there is room for at first.
    reserved: usize,
}

impl Session {
    pub(crate) fn new(model: Arc<Qwen3Tts>, memory: PooledMemory) -> Self {
        let (kv, makes_ahead) = (model.kv(), model.device().has_queues());
        Session {
            model,
            memory,
            frame_plan: None,
            larger: vec![],
            sizes: Sizes { batch: 1, capacity: 0, kv },
            text_rows: 0,
            rows: 0,
            reused: 0,
            parts: (0, 0),
            frames: 0,
            ahead: Ahead::Nothing,
            makes_ahead,
            pause_at: None,
            max_frames: 0,
            settings: None,
            finished: None,
            taps: false,
            reserved: FIRST_FRAMES,
        }
    }

    /// Records intermediate values in buffers `tap/<name>` from the next [`Session::start`] on. While they are recorded no frame is
    /// made ahead.
    pub fn record_taps(&mut self, on: bool) {
        self.taps = on;
        self.memory().forget(TAP_PREFIX);
    }

    /// Whether [`Session::next_frame`] submits the frame behind the one that it hands out. So the device does not wait for the
    /// host between two frames, and an utterance that ends by itself costs a frame that is thrown away. It is so from the
    /// beginning where memories have queues of their own; elsewhere it gains nothing.
    ///
    /// A frame that was made ahead cannot be taken back: [`Session::give_frame`] and [`Session::read`] refuse then, because
    /// the state on the device is not that of the frames handed out. Whoever wants to see or replace what is between two
    /// frames turns this off.
    pub fn make_ahead(&mut self, on: bool) {
        self.makes_ahead = on;
    }

    /// Makes no frame ahead when so many of an utterance are handed out: whoever waits for what becomes of them, as for the first
    /// sound, has the device to himself.
    pub fn pause_ahead_at(&mut self, frames: usize) {
        self.pause_at = Some(frames);
    }

    /// Makes room for so many frames from the next [`Session::start`] on, instead of ten seconds. More is made when it is needed.
    pub fn reserve(&mut self, frames: usize) {
        self.reserved = frames;
    }

    /// What was asked of the device for this utterance.
    pub fn counters(&self) -> Counters {
        self.memory.counters()
    }

    /// Frames that were handed out so far.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Rows of the prompt whose state was kept from an earlier one that began alike.
    pub fn reused_rows(&self) -> usize {
        self.reused
    }

    /// Rows of the prompt that were read on their own, and the others with their padding.
    pub(crate) fn parts(&self) -> (usize, usize) {
        self.parts
    }

    fn config(&self) -> Result<&Config, QwenError> {
        Ok(&self.model.talking()?.config)
    }

    fn memory(&mut self) -> &mut dyn Memory {
        self.memory.get()
    }

    /// Reads a prompt, up to the state in front of the first frame. The rows that every text has in front are read on their own,
    /// and their state is kept for the next prompt that begins with them: so what follows does not depend on what was kept.
    /// While taps are recorded all rows are read in one pass.
    ///
    /// # Errors
    /// Settings out of range, a prompt that leaves no room for frames, or the device failed.
    pub fn start(&mut self, prompt: &Prompt, settings: &Settings) -> Result<(), QwenError> {
        self.start_among(prompt, settings, None)
    }

    /// As [`Session::start`]. Where others are `coming` too, rows that they do not have in common are read together with theirs.
    pub(crate) fn start_among(
        &mut self,
        prompt: &Prompt,
        settings: &Settings,
        coming: Option<Coming<'_>>,
    ) -> Result<(), QwenError> {
        settings.check()?;
        self.throw_away();
        let c = &self.config()?.talker_config;
        let (rows, most) = (prompt.rows.len(), c.max_position_embeddings);
        if rows + settings.max_frames > most {
            return Err(QwenError::TooLong { rows, frames: settings.max_frames, most });
        }
        let Arrangement { fixed, padded, sizes, text_rows } = self.arrange(prompt);
        let (frame, larger) = self.frame_plans(sizes, text_rows, rows + settings.max_frames)?;
        // Rows of a cache are written before they are seen.
        let (caches, others): (Vec<_>, Vec<_>) = states(&*frame).partition(|b| Cache::is_named(&b.name));
        for b in caches {
            self.memory().reserve(&b.name, b.dtype, &b.shape)?;
        }
        let others: Vec<_> = others.iter().map(|b| (&*b.name, b.dtype, &b.shape)).collect();
        self.memory().clear_all(&others)?;
        self.reused = 0;
        if fixed > 0 {
            self.read_fixed(prompt.rows.part(0..fixed), &*frame, sizes)?;
        }
        self.embed_trailing(&prompt.trailing_ids, text_rows)?;
        let model = self.model.clone();
        let coming = coming.unwrap_or_else(|| model.shared_prompts().coming());
        self.read_rows(&prompt.rows.part(fixed..rows), fixed, sizes, Some(coming))?;
        self.write_settings(settings)?;
        (self.frame_plan, self.larger) = (Some(frame), larger);
        (self.sizes, self.text_rows, self.rows) = (sizes, text_rows, rows);
        self.parts = (fixed, padded);
        self.settings = Some(*settings);
        (self.frames, self.max_frames, self.finished) = (0, settings.max_frames, None);
        self.ahead = Ahead::Nothing;
        Ok(())
    }

    /// Makes the plans of an utterance that [`Session::start`] would begin, and of all that need a cache of the same size and the same kinds
    /// of rows; runs nothing. Of so many `callers` at once, those of batches too.
    ///
    /// # Errors
    /// The device lacks an op, or room for the weights.
    pub fn prepare(&self, prompt: &Prompt, max_frames: usize, callers: usize) -> Result<(), QwenError> {
        let Arrangement { fixed, padded, sizes, text_rows } = self.arrange(prompt);
        let rows = prompt.rows.len();
        self.frame_plans(sizes, text_rows, rows + max_frames)?;
        if callers > 1 {
            let need = need(rows, max_frames, text_rows);
            SharedBatch::prepare(&self.model, callers, need, (fixed, padded))?;
        }
        self.model.plan(Network::Trailing { text_rows }, self.taps)?;
        for time in (self.step()..=MOST_ROWS).step_by(self.step()) {
            for part in [0..fixed, fixed..rows] {
                let reference = prompt.rows.part(part).have_reference();
                self.model.plan(Network::Prompt { time, reference }, self.taps)?;
            }
            self.model.plan(Network::Prefill { sizes, time }, self.taps)?;
        }
        Ok(())
    }

    /// How a prompt is read, and what room it and the first frames need.
    fn arrange(&self, prompt: &Prompt) -> Arrangement {
        let rows = prompt.rows.len();
        let fixed = if self.taps { 0 } else { prompt.fixed.min(rows - 1) };
        let padded = if self.taps { rows } else { (rows - fixed).next_multiple_of(self.step()) };
        // However few frames are allowed, so that plans are few.
        let needed = fixed + padded + self.reserved;
        let sizes = Sizes { batch: 1, capacity: capacity(needed), kv: self.model.kv() };
        // Rows behind the text are padding, of which there is at least one.
        Arrangement { fixed, padded, sizes, text_rows: text_capacity(prompt.trailing_ids.len()) }
    }

    fn step(&self) -> usize {
        prompt_step(&**self.model.device())
    }

    /// Rows as they are read: some after the others and padded, or all at once while taps are recorded.
    fn passes(&self, rows: &RowIds) -> Result<Vec<Pass>, QwenError> {
        if self.taps {
            let count = rows.len();
            return Ok(if count == 0 { vec![] } else { vec![Pass { rows: rows.clone(), count }] });
        }
        let pad = self.config()?.tts_pad_token_id as i32;
        let firsts = (0..rows.len()).step_by(MOST_ROWS);
        let passes = firsts.map(|first| {
            let count = MOST_ROWS.min(rows.len() - first);
            let part = rows.part(first..first + count);
            Pass { rows: part.padded(count.next_multiple_of(self.step()), pad), count }
        });
        Ok(passes.collect())
    }

    /// The plan of a frame, and those for when the cache is full, up to as many rows as an utterance may need. All are made before it
    /// begins: making one takes long enough to be heard.
    fn frame_plans(&self, sizes: Sizes, text_rows: usize, most: usize) -> Result<FramePlans, QwenError> {
        let plan = |capacity| {
            let sizes = Sizes { capacity, ..sizes };
            self.model.plan(Network::Frame { sizes, text_rows }, self.taps)
        };
        let doubled = std::iter::successors(Some(2 * sizes.capacity), |c| Some(2 * c));
        let larger = doubled.take_while(|c| *c <= capacity(most)).map(|c| Ok((c, plan(c)?)));
        Ok((plan(sizes.capacity)?, larger.collect::<Result<_, QwenError>>()?))
    }

    /// The state behind rows that other prompts begin with too: kept, or made and kept.
    fn read_fixed(&mut self, part: RowIds, frame: &dyn Executable, sizes: Sizes) -> Result<(), QwenError> {
        let rows = part.len();
        if let Some(kept) = self.model.prefixes.get(&part) {
            kept.restore(self.memory())?;
            self.reused = rows;
            return Ok(());
        }
        self.read_rows(&part, 0, sizes, None)?;
        let caches: Vec<_> = states(frame).filter(|b| talker::is_cache(&b.name)).collect();
        let of_rows = |b: &&Buffer| Shape::from([1, rows, b.shape.last()]);
        let caches: Vec<_> = caches.iter().map(|b| (&*b.name, b.dtype, of_rows(b))).collect();
        let model = self.model.clone();
        let kept = KeptState::copy_of(self.memory(), &**model.device(), &caches)?;
        model.prefixes.keep(part, kept);
        Ok(())
    }

    /// Reads rows behind so many, up to the state behind the last of them: together with those of others that are `coming`, if there are
    /// few.
    fn read_rows(
        &mut self,
        rows: &RowIds,
        mut behind: usize,
        sizes: Sizes,
        coming: Option<Coming<'_>>,
    ) -> Result<(), QwenError> {
        let reference = rows.have_reference();
        let passes = self.passes(rows)?;
        let alone = self.taps || !self.model.device().has_queues() || passes.len() > 1;
        let mut coming = coming.filter(|_| !alone);
        for Pass { rows, count } in passes {
            self.memory().write_i32(POSITION, &[1].into(), &[behind as i32])?;
            self.embed(&rows, reference)?;
            self.prefill((behind, count, rows.len()), sizes, coming.take())?;
            behind += count;
        }
        Ok(self.memory().write_i32(POSITION, &[1].into(), &[behind as i32])?)
    }

    /// Brings ids to the device, and makes rows of them.
    fn embed(&mut self, ids: &RowIds, reference: bool) -> Result<(), QwenError> {
        let c = &self.config()?.talker_config;
        let (d, q) = (c.transformer.hidden_size, c.num_code_groups);
        let (m, time) = (self.memory(), ids.len());
        m.write_i32(TEXT_IDS, &[1, time].into(), &ids.text)?;
        m.write_i32(CODEC_IDS, &[time, 1].into(), &ids.first)?;
        m.write_i32(IS_ID, &[time].into(), &ids.have(RowKind::Id))?;
        if reference {
            m.write_i32(OTHER_CODES, &[time, q - 1].into(), &ids.others)?;
            m.write_i32(IS_FRAME, &[time].into(), &ids.have(RowKind::Frame))?;
            // Any numbers, where no row has it.
            let mut floats: Vec<f32> = ids.x_vector.iter().map(|x| f32::from_bits(*x)).collect();
            floats.resize(d, 0.0);
            m.write_f32(X_VECTOR, &[1, d].into(), &floats)?;
            m.write_i32(IS_X_VECTOR, &[time].into(), &ids.have(RowKind::XVector))?;
        }
        let plan = self.model.plan(Network::Prompt { time, reference }, self.taps)?;
        Ok(plan.run(self.memory())?)
    }

    /// Makes rows of text that is fed later, and of padding behind it.
    fn embed_trailing(&mut self, ids: &[i32], text_rows: usize) -> Result<(), QwenError> {
        let mut ids = ids.to_vec();
        ids.resize(text_rows, self.config()?.tts_pad_token_id as i32);
        self.memory().write_i32(TRAILING_IDS, &[1, text_rows].into(), &ids)?;
        let plan = self.model.plan(Network::Trailing { text_rows }, self.taps)?;
        Ok(plan.run(self.memory())?)
    }

    /// Reads rows that are on the device behind so many, of which so many are no padding.
    fn prefill(
        &mut self,
        (behind, rows, padded): (usize, usize, usize),
        sizes: Sizes,
        coming: Option<Coming<'_>>,
    ) -> Result<(), QwenError> {
        let model = self.model.clone();
        let Some(coming) = coming else {
            let taps = self.taps;
            return shared_prompts::read_alone(&model, self.memory(), sizes, (rows, padded), taps);
        };
        let memory = self.memory.lend();
        let unread = Unread { memory, sizes, behind, rows, padded };
        let (memory, used) = model.shared_prompts().read(&model, coming, unread);
        self.memory = memory;
        self.memory.count(used?);
        Ok(())
    }

    /// Makes room in the cache for the frame behind so many: twice as much as there is, as often as need be.
    pub(crate) fn make_room(&mut self, frames: usize) -> Result<(), QwenError> {
        let row = self.rows + frames;
        if row < self.sizes.capacity || self.larger.is_empty() {
            return Ok(());
        }
        // The last one has room for all that the utterance may need.
        let fits = self.larger.iter().position(|(capacity, _)| row < *capacity);
        let smaller = fits.unwrap_or(self.larger.len() - 1);
        let (capacity, frame) = self.larger.drain(..=smaller).next_back().expect("one at least");
        let caches: Vec<_> = states(&*frame).filter(|b| talker::is_cache(&b.name)).collect();
        let caches: Vec<_> = caches.iter().map(|b| (&*b.name, &b.shape)).collect();
        self.memory().extend(&caches)?;
        (self.sizes.capacity, self.frame_plan) = (capacity, Some(frame));
        Ok(())
    }

    fn write_settings(&mut self, s: &Settings) -> Result<(), QwenError> {
        let m = self.memory();
        m.write_f32("sampling", &[1, 4].into(), &s.first.row())?;
        m.write_f32("predictor_sampling", &[1, 4].into(), &s.predictor.row())?;
        m.write_i32("seed", &[1, 2].into(), &s.seed_words())?;
        Ok(())
    }

    /// Makes the next frame, and replaces the content of `codes` by its codes. Nothing is in `codes` when the utterance ends.
    ///
    /// # Errors
    /// Nothing was started, the model's numbers are none, or the device failed.
    pub fn next_frame(&mut self, codes: &mut Vec<i32>) -> Result<Step, QwenError> {
        codes.clear();
        if let Some(reason) = self.finished {
            return Ok(Step::End(reason));
        }
        self.started()?;
        if self.frames == self.max_frames {
            return Ok(self.end(FinishReason::Length));
        }
        let end = self.config()?.talker_config.codec_eos_token_id as i32;
        let next = match std::mem::take(&mut self.ahead) {
            Ahead::Nothing => self.submit(self.frames),
            next => next,
        };
        let behind = self.frames + 1;
        let pauses = self.taps || self.pause_at == Some(behind);
        if self.makes_ahead && !pauses && behind < self.max_frames && !next.is_last(end) {
            self.ahead = self.submit(behind);
        }
        if let Err(e) = next.finish(self.memory(), codes) {
            // Nobody knows how far the device came.
            self.throw_away();
            self.ahead = Ahead::ThrownAway;
            return Err(e);
        }
        if codes.first() == Some(&end) {
            codes.clear();
            self.throw_away();
            return Ok(self.end(FinishReason::Stop));
        }
        if let Err(e) = frame::check(codes, self.frames) {
            codes.clear();
            self.throw_away();
            return Err(e);
        }
        self.frames += 1;
        Ok(Step::Frame)
    }

    /// Submits a frame, behind so many.
    fn submit(&mut self, frames: usize) -> Ahead {
        match self.make_room(frames).and_then(|()| self.started()) {
            Ok(plan) => Ahead::submit(&*plan, self.memory()),
            Err(e) => Ahead::Failed(e),
        }
    }

    /// Throws away the frame that was made ahead.
    fn throw_away(&mut self) {
        self.ahead.throw_away(self.memory.get());
    }

    /// That the state on the device is that of the frames which were handed out.
    fn nothing_ahead(&self, got: &str) -> Result<(), QwenError> {
        if self.ahead.is_nothing() {
            return Ok(());
        }
        Err(QwenError::Option {
            option: "session",
            got: format!("{got} when the next frame was made already"),
            allowed: "call `make_ahead(false)` before the first frame".to_owned(),
        })
    }

    /// Makes the next frame of codes `[Q]` that are known, and draws none: what the networks make of them is in the buffers and
    /// taps. Those drawn later do not see them as drawn before.
    ///
    /// # Errors
    /// Nothing was started, a frame was made ahead, the codes are no frame, there is no room for more, or the device failed.
    pub fn give_frame(&mut self, codes: &[i32]) -> Result<(), QwenError> {
        self.started()?;
        self.nothing_ahead("given a frame")?;
        let quantizers = self.config()?.talker_config.num_code_groups;
        if codes.len() != quantizers {
            return Err(QwenError::Frames { got: codes.len(), quantizers });
        }
        self.make_room(self.frames)?;
        let network = Network::GivenFrame { sizes: self.sizes, text_rows: self.text_rows };
        let plan = self.model.plan(network, self.taps)?;
        self.memory().write_i32(GIVEN, &[1, quantizers].into(), codes)?;
        plan.run(self.memory())?;
        self.frames += 1;
        Ok(())
    }

    /// What [`super::Batch`] takes over, and gives back. A frame that was made ahead counts as made on the device, and not as handed
    /// out.
    pub(crate) fn row(&mut self) -> Result<SessionRow<'_>, QwenError> {
        self.started()?;
        if let Some(reason) = self.finished {
            return Err(QwenError::Option {
                option: "session",
                got: format!("asked to go on behind the end ({})", reason.name()),
                allowed: "call `start` again".to_owned(),
            });
        }
        let settings = self.settings.expect("is set by `start`, as the plan is");
        let (sizes, text_rows, rows) = (self.sizes, self.text_rows, self.rows);
        let memory = self.memory.get();
        let (frames, ahead) = (&mut self.frames, &mut self.ahead);
        Ok(SessionRow { memory, sizes, text_rows, rows, settings, frames, ahead })
    }

    /// The plan of a frame.
    fn started(&self) -> Result<Arc<dyn Executable>, QwenError> {
        self.frame_plan.clone().ok_or_else(|| QwenError::Option {
            option: "session",
            got: "asked for a frame before a prompt".to_owned(),
            allowed: "call `start` first".to_owned(),
        })
    }

    fn end(&mut self, reason: FinishReason) -> Step {
        self.finished = Some(reason);
        Step::End(reason)
    }

    /// Reads a buffer of floats, such as `hidden`, `rows` or a tap.
    ///
    /// # Errors
    /// There is no such buffer, or a frame was made ahead and has replaced it.
    pub fn read(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, QwenError> {
        self.nothing_ahead("asked for a buffer")?;
        Ok(self.memory().read_f32(name, out)?)
    }

    /// Time of each step of a frame's plan, in seconds, with the plan. The frame counts as made, and so does one that was made ahead.
    ///
    /// # Errors
    /// Nothing was started, or the device failed.
    pub fn profile_frame(&mut self) -> Result<Profile, QwenError> {
        self.started()?;
        if !self.ahead.is_nothing() {
            self.throw_away();
            self.frames += 1;
            self.ahead = Ahead::Nothing;
        }
        self.make_room(self.frames)?;
        let plan = self.started()?;
        let profile = self.memory.profile(plan)?;
        self.frames += 1;
        Ok(profile)
    }
}

/// How [`Session::start`] reads a prompt.
struct Arrangement {
    /// Rows that are read on their own, because other prompts begin with them too.
    fixed: usize,
    /// The others, with their padding.
    padded: usize,
    /// Of the cache at first.
    sizes: Sizes,
    text_rows: usize,
}

/// Rows that are read at once.
struct Pass {
    /// With padding.
    rows: RowIds,
    /// Those that are no padding.
    count: usize,
}

/// The plan of a frame, and those of larger caches with their rows.
type FramePlans = (Arc<dyn Executable>, Vec<(usize, Arc<dyn Executable>)>);

/// States of a plan.
fn states(plan: &dyn Executable) -> impl Iterator<Item = &Buffer> {
    plan.plan().buffers().iter().filter(|b| b.kind == BufferKind::State)
}

/// A started utterance, as a row of a batch needs it.
pub(crate) struct SessionRow<'a> {
    pub memory: &'a mut dyn Memory,
    pub sizes: Sizes,
    pub text_rows: usize,
    /// Rows of the prompt.
    pub rows: usize,
    pub settings: Settings,
    /// Frames that were handed out.
    pub frames: &'a mut usize,
    pub ahead: &'a mut Ahead,
}

/// See [`SessionRow::need`].
fn need(rows: usize, max_frames: usize, text_rows: usize) -> (usize, usize) {
    (rows + max_frames + 1, text_rows)
}

impl SessionRow<'_> {
    /// Rows of cache and of text that the utterance may need in a batch, where it makes one frame more if others go on while its last one is
    /// under way.
    pub fn need(&self) -> (usize, usize) {
        need(self.rows, self.settings.max_frames, self.text_rows)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.throw_away();
    }
}
