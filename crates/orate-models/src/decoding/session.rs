//! One utterance: a prompt, then frame after frame. What it computes stays on the device; the host reads a
//! frame's codes.

use super::ahead::Ahead;
use super::caches::{RowLimits, Slot, cache_parts, caches};
use super::error::option_error;
use super::kept_states::{Beginning, KeptState};
use super::network::{Autoregressive, Extent, GIVEN, MemorySizes, POSITION, Pass, SEED, for_lanes};
use super::resources::Resources;
use super::sampling::{DrawSettings, Sampling};
use super::shared_prompts::{self, Coming, Unread};
use crate::FinishReason;
use crate::ModelError;
use crate::runtime::{PooledMemory, Profile};
use orate_graph::{Buffer, BufferKind, Counters, Executable, Memory, NO_ID, Plan, Shape, TAP_PREFIX};
use std::ops::Range;
use std::sync::Arc;

/// Fewest rows of a cache. More are a power of two, so that plans are few.
const LEAST_CAPACITY: usize = 256;
/// Frames that a cache has room for at first. It doubles when it is full.
const FIRST_FRAMES: usize = 128;
/// Rows fed later are rounded up to a multiple of this.
const FEED_STEP: usize = 64;
/// Rows that are read in one pass at most.
const MOST_ROWS: usize = 128;

pub(crate) fn capacity(rows: usize) -> usize {
    rows.next_power_of_two().max(LEAST_CAPACITY)
}

/// Longest prefill pass for a prompt of `rows`, padded to multiples of `step`.
pub(crate) fn pass_rows(step: usize, rows: usize) -> usize {
    rows.next_multiple_of(step).min(MOST_ROWS)
}

pub(crate) fn feed_capacity(rows: usize) -> usize {
    rows.next_multiple_of(FEED_STEP)
}

/// What [`Session::next_frame`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A frame.
    Frame,
    /// None: the utterance has ended.
    End(FinishReason),
}

/// How an utterance starts, where that is not the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartOptions {
    /// Records intermediate values in buffers `tap/<name>`. The prompt is then read in one pass, and there is
    /// no look-ahead.
    pub taps: bool,
    /// Frames that the cache has room for at first, also in a batch. It grows when it is full. The default is
    /// 128.
    pub reserve: Option<usize>,
    /// Whether each frame is submitted before the one before it is returned. The device then never waits for
    /// the host, and an utterance that ends by itself costs a frame that is discarded. By default as the
    /// device's [`orate_graph::Pacing`] says.
    pub look_ahead: Option<bool>,
    /// Pauses look-ahead after this many frames, so that the codec has the device alone.
    pub pause_after: Option<usize>,
}

/// A started utterance.
pub struct Session<N: Autoregressive> {
    resources: Arc<Resources<N>>,
    pub(super) memory: PooledMemory,
    frame_plan: Arc<dyn Executable>,
    /// Plans for when the cache is full, by the capacity of the larger one.
    larger: Vec<(usize, Arc<dyn Executable>)>,
    pub(super) sizes: MemorySizes,
    /// Rows of the prompt, and those of them that a kept state replaced.
    pub(super) rows: usize,
    reused: usize,
    /// What other utterances begin with too.
    pub(super) beginning: Option<Beginning>,
    pub(super) needs: Needs,
    pub(super) settings: DrawSettings,
    /// Frames that were returned, and the state of the next one.
    pub(super) frames: usize,
    pub(super) ahead: Ahead,
    look_ahead: bool,
    pause_after: Option<usize>,
    taps: bool,
    finished: Option<FinishReason>,
}

impl<N: Autoregressive> Session<N> {
    pub(super) fn start(
        resources: &Arc<Resources<N>>,
        prompt: &N::Prompt,
        settings: DrawSettings,
        options: StartOptions,
    ) -> Result<Session<N>, ModelError> {
        let coming = resources.prompts.coalescer.coming();
        let network = &resources.network;
        let (facts, taps) = (network.facts(), options.taps);
        settings.check()?;
        let (given, read) = (settings.sampling.len(), facts.sampling.len());
        if given != read {
            let got = format!("for {given} draws of a frame");
            return Err(option_error("sampling", got, &format!("this network has {read}")));
        }
        let Extent { rows, .. } = network.extent(prompt);
        if rows + settings.max_frames > facts.positions {
            let (frames, most) = (settings.max_frames, facts.positions);
            return Err(ModelError::TooLong { rows, frames, most });
        }
        let (needs, sizes) = arrange(network, prompt, settings.max_frames, options);
        let (frame_plan, larger) = frame_plans(network, sizes, rows + settings.max_frames, taps)?;
        let mut session = Session {
            resources: resources.clone(),
            memory: resources.memories.take(),
            frame_plan,
            larger,
            sizes,
            rows,
            reused: 0,
            beginning: None,
            needs,
            settings,
            frames: 0,
            ahead: Ahead::Nothing,
            look_ahead: options.look_ahead.unwrap_or(network.device().pacing().look_ahead),
            pause_after: options.pause_after,
            taps,
            finished: None,
        };
        session.read_prompt(prompt, coming)?;
        write_settings(session.memory.get(), &session.settings, facts.sampling, session.frame_plan.plan())?;
        Ok(session)
    }

    /// Reads the prompt into the memory. Fixed rows are read on their own, and their state is kept for the
    /// next prompt that begins with them: what follows does not depend on whether it was kept. The other rows
    /// share a pass with those of other prompts that are `coming`.
    fn read_prompt(&mut self, prompt: &N::Prompt, coming: Coming<'_>) -> Result<(), ModelError> {
        let (resources, fixed, feed) = (self.resources.clone(), self.needs.parts.0, self.sizes.feed);
        let network = &resources.network;
        self.memory.get().forget(TAP_PREFIX);
        prepare_states(self.memory.get(), self.frame_plan.plan())?;
        if fixed > 0 {
            self.reused = self.read_fixed(prompt, fixed)?;
        }
        let begin = network.begin_plan(feed, self.taps)?;
        network.write_begin(prompt, feed, self.memory.get())?;
        begin.map_or(Ok(()), |begin| begin.run(self.memory.get()))?;
        self.read_rows(prompt, fixed..self.rows, Some(coming))
    }

    /// The state after rows that other prompts begin with too: kept, or computed and kept. Returns how many
    /// were kept.
    fn read_fixed(&mut self, prompt: &N::Prompt, fixed: usize) -> Result<usize, ModelError> {
        let (resources, plan) = (self.resources.clone(), self.frame_plan.clone());
        let Resources { network, prefixes, .. } = &*resources;
        let (lanes, rows, own) = (network.facts().lanes, 0..fixed, self.slot());
        let kept = Slot { row: 0, sizes: MemorySizes { capacity: fixed, ..self.sizes } };
        let prefix = network.prefix(prompt);
        if let Some(state) = prefixes.get(&prefix) {
            state.restore(self.memory.get(), &cache_parts(plan.plan(), lanes, &rows, (kept, own)))?;
            self.beginning = Some(Beginning { state: state.number(), rows: fixed });
            return Ok(fixed);
        }
        self.read_rows(prompt, rows.clone(), None)?;
        let shape = |b: &Buffer| Shape::from([lanes, fixed, b.shape.last()]);
        let buffers: Vec<_> = caches(plan.plan()).map(|b| (&*b.name, b.dtype, shape(b))).collect();
        let parts = cache_parts(plan.plan(), lanes, &rows, (own, kept));
        let state = KeptState::new(&**network.device(), self.memory.get(), &buffers, &parts)?;
        // Another utterance may compute the same in a longer cache, which may round otherwise.
        self.beginning = Some(Beginning { state: state.number(), rows: fixed });
        prefixes.keep(prefix, state);
        Ok(0)
    }

    /// Reads rows after those that the caches hold, up to the state after the last of them: together with
    /// those of other prompts that are `coming`, if they fit one pass.
    fn read_rows(
        &mut self,
        prompt: &N::Prompt,
        rows: Range<usize>,
        coming: Option<Coming<'_>>,
    ) -> Result<(), ModelError> {
        let Resources { network, prompts, memories, .. } = &*self.resources;
        let (lanes, pacing, memory) = (network.facts().lanes, network.device().pacing(), &mut self.memory);
        let (sizes, taps) = (self.sizes, self.taps);
        let most = if taps { rows.len().max(1) } else { MOST_ROWS };
        let alone = taps || pacing.coalescing_wait.is_none() || rows.len() > most;
        let mut coming = coming.filter(|_| !alone);
        for start in rows.clone().step_by(most) {
            let part = start..rows.end.min(start + most);
            let count = part.len();
            let padded = if taps { count } else { count.next_multiple_of(pacing.prompt_step) };
            let pass = Pass { rows: part, padded };
            for_lanes(memory.get(), POSITION, lanes, start as i32)?;
            network.write_rows(prompt, &pass, memory.get())?;
            network.rows_plan(prompt, &pass, taps)?.run(memory.get())?;
            match coming.take() {
                None => shared_prompts::read_alone(network, memory.get(), sizes, (count, padded), taps)?,
                Some(coming) => {
                    // The other owners are `Decoding`, `SharedBatch` and at most one `Batch`.
                    let is_crowded = Arc::strong_count(&self.resources) > 3 + shared_prompts::MANY;
                    let in_workspace = pacing.shared_workspaces && is_crowded;
                    let rows = count;
                    let unread = Unread { memory: memory.lend(), sizes, start, rows, padded, in_workspace };
                    let (read, used) = prompts.read(network, memories, coming, unread);
                    *memory = read;
                    memory.count(used?);
                }
            }
        }
        for_lanes(memory.get(), POSITION, lanes, rows.end as i32)
    }

    /// Turns look-ahead on or off, see [`StartOptions::look_ahead`]. A frame that was made ahead stays.
    pub fn set_look_ahead(&mut self, on: bool) {
        self.look_ahead = on;
    }

    /// What was asked of the device for this utterance.
    pub fn counters(&self) -> Counters {
        self.memory.counters()
    }

    /// Number of frames that were returned.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Prompt rows whose state was kept from an earlier prompt with the same beginning.
    pub fn reused_rows(&self) -> usize {
        self.reused
    }

    /// Makes room in the cache for frame `frame`: doubles it as often as needed.
    pub(super) fn make_room(&mut self, frame: usize) -> Result<(), ModelError> {
        let row = self.rows + frame;
        if row < self.sizes.capacity || self.larger.is_empty() {
            return Ok(());
        }
        // The last one has room for all that the utterance may need.
        let fits = self.larger.iter().position(|(capacity, _)| row < *capacity);
        let smaller = fits.unwrap_or(self.larger.len() - 1);
        let (capacity, plan) = self.larger.drain(..=smaller).next_back().expect("one at least");
        let grown: Vec<_> = caches(plan.plan()).map(|b| (&*b.name, &b.shape)).collect();
        self.memory.get().extend(&grown)?;
        self.sizes.capacity = capacity;
        self.frame_plan = plan;
        Ok(())
    }

    /// Makes the next frame, and replaces the content of `codes` by its codes. `codes` is empty when the
    /// utterance ends.
    ///
    /// # Errors
    /// Logits are NaN, or the device failed.
    pub fn next_frame(&mut self, codes: &mut Vec<i32>) -> Result<Step, ModelError> {
        codes.clear();
        if let Some(reason) = self.finished {
            return Ok(Step::End(reason));
        }
        if self.frames == self.settings.max_frames {
            return Ok(self.end(FinishReason::Length));
        }
        let end = self.resources.network.facts().end;
        let next = match std::mem::take(&mut self.ahead) {
            Ahead::Nothing => self.submit(self.frames),
            next => next,
        };
        let following = self.frames + 1;
        let pauses = self.taps || self.pause_after == Some(following);
        if self.look_ahead && !pauses && following < self.settings.max_frames && !next.is_last(end) {
            self.ahead = self.submit(following);
        }
        if let Err(e) = next.finish(self.memory.get(), codes) {
            // How far the device came is unknown.
            self.discard();
            self.ahead = Ahead::Discarded;
            return Err(e);
        }
        if codes.first() == Some(&end) {
            codes.clear();
            self.discard();
            return Ok(self.end(FinishReason::Stop));
        }
        if let Err(e) = check_frame(codes, self.frames) {
            codes.clear();
            self.discard();
            return Err(e);
        }
        self.frames += 1;
        Ok(Step::Frame)
    }

    fn submit(&mut self, frame: usize) -> Ahead {
        match self.make_room(frame) {
            Ok(()) => Ahead::submit(&*self.frame_plan, self.memory.get()),
            Err(e) => Ahead::Failed(e),
        }
    }

    fn discard(&mut self) {
        self.ahead.discard(self.memory.get());
    }

    fn end(&mut self, reason: FinishReason) -> Step {
        self.finished = Some(reason);
        Step::End(reason)
    }

    /// Refuses if the state on the device is not that of the frames which were returned.
    fn nothing_ahead(&self, got: &str) -> Result<(), ModelError> {
        if self.ahead.is_nothing() {
            return Ok(());
        }
        let got = format!("{got} when the next frame was made already");
        Err(option_error("session", got, "turn look-ahead off before the first frame"))
    }

    /// Makes the next frame of the given `codes` `[Q]`, and draws none: what the networks make of them is in
    /// the buffers and taps. Codes drawn later do not see them as drawn before.
    ///
    /// # Errors
    /// A frame was made ahead, the codes are not a frame, there is no room for more, or the device failed.
    pub fn give_frame(&mut self, codes: &[i32]) -> Result<(), ModelError> {
        self.nothing_ahead("given a frame")?;
        let needed = self.resources.network.facts().codes;
        if codes.len() != needed {
            return Err(ModelError::Frames { got: codes.len(), quantizers: needed });
        }
        self.make_room(self.frames)?;
        let plan = self.resources.network.given_frame_plan(self.sizes, self.taps)?;
        let memory = self.memory.get();
        memory.write_i32(GIVEN, &[1, needed].into(), codes)?;
        plan.run(memory)?;
        self.frames += 1;
        Ok(())
    }

    /// Reads a float buffer, such as a state or a tap.
    ///
    /// # Errors
    /// There is no such buffer, or a frame was made ahead and has replaced it.
    pub fn read(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, ModelError> {
        self.nothing_ahead("asked for a buffer")?;
        Ok(self.memory.get().read_f32(name, out)?)
    }

    /// Writes a float input of the network's own, for the next frame.
    ///
    /// # Errors
    /// That frame was made ahead.
    pub fn write(&mut self, name: &str, shape: &Shape, data: &[f32]) -> Result<(), ModelError> {
        self.nothing_ahead("given an input")?;
        Ok(self.memory.get().write_f32(name, shape, data)?)
    }

    /// Measures each step of a frame's plan. The frame counts as made, and so does one that was made ahead.
    pub fn profile_frame(&mut self) -> Result<Profile, ModelError> {
        if !self.ahead.is_nothing() {
            self.discard();
            self.frames += 1;
            self.ahead = Ahead::Nothing;
        }
        self.make_room(self.frames)?;
        let profile = self.memory.profile(self.frame_plan.clone())?;
        self.frames += 1;
        Ok(profile)
    }

    pub(super) fn slot(&self) -> Slot {
        Slot { row: 0, sizes: self.sizes }
    }

    /// Refuses to continue an utterance that has ended.
    pub(super) fn goes_on(&self) -> Result<(), ModelError> {
        let Some(reason) = self.finished else { return Ok(()) };
        let got = format!("asked to continue after its end ({})", reason.name());
        Err(option_error("session", got, "start another one"))
    }
}

impl<N: Autoregressive> Drop for Session<N> {
    fn drop(&mut self) {
        self.discard();
    }
}

pub(super) fn check_frame(codes: &[i32], frame: usize) -> Result<(), ModelError> {
    if codes.contains(&NO_ID) { Err(ModelError::NoCode { frame }) } else { Ok(()) }
}

fn write_settings(
    memory: &mut dyn Memory,
    settings: &DrawSettings,
    names: &[&str],
    plan: &Plan,
) -> Result<(), ModelError> {
    for (name, sampling) in names.iter().zip(&settings.sampling) {
        let width = settings_width(plan, name, sampling)?;
        memory.write_f32(name, &[1, width].into(), &sampling.row()[..width])?;
    }
    Ok(memory.write_i32(SEED, &[1, 2].into(), &settings.seed_words())?)
}

/// How many settings a plan reads. It must read all that are not off.
pub(super) fn settings_width(plan: &Plan, name: &str, s: &Sampling) -> Result<usize, ModelError> {
    let buffer = plan.buffers().iter().find(|b| b.name == name);
    let width = buffer.map_or(0, |b| b.shape.last());
    if s.row()[width..] == Sampling::PLAIN.row()[width..] {
        return Ok(width);
    }
    let problem = "settings that this network does not read";
    Err(option_error("sampling", problem, "leave min_p and guidance at 0"))
}

/// Makes the states of a plan: zeros where they are carried from frame to frame, and any content where they
/// are written before they are read.
fn prepare_states(memory: &mut dyn Memory, plan: &Plan) -> Result<(), ModelError> {
    let (carried, written): (Vec<_>, Vec<_>) =
        plan.buffers().iter().filter(|b| b.kind.is_state()).partition(|b| b.kind == BufferKind::State);
    let [carried, written] =
        [carried, written].map(|all| all.iter().map(|b| (&*b.name, b.dtype, &b.shape)).collect::<Vec<_>>());
    memory.reserve_all(&written)?;
    Ok(memory.clear_all(&carried)?)
}

/// What an utterance needs.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    /// Rows of the prompt that are read on their own, since other prompts begin with them too, and the others
    /// with their padding.
    pub parts: (usize, usize),
    /// Rows that it has in its caches: at first those of the prompt.
    pub rows: usize,
    /// What it may need in a batch.
    pub in_batch: RowLimits,
}

impl Needs {
    /// What either of two needs at most. The parts stay those of this one.
    pub fn longer(self, other: Needs) -> Needs {
        let [a, b] = [self.in_batch, other.in_batch];
        let in_batch = RowLimits {
            cache: a.cache.max(b.cache),
            feed: a.feed.max(b.feed),
            reserve: a.reserve.max(b.reserve),
        };
        Needs { rows: self.rows.max(other.rows), in_batch, ..self }
    }
}

/// What an utterance needs, and sizes of its memory at first.
fn arrange<N: Autoregressive>(
    network: &N,
    prompt: &N::Prompt,
    max_frames: usize,
    options: StartOptions,
) -> (Needs, MemorySizes) {
    let Extent { rows, fixed, feed } = network.extent(prompt);
    let fixed = if options.taps { 0 } else { fixed.min(rows - 1) };
    let step = network.device().pacing().prompt_step;
    let padded = if options.taps { rows } else { (rows - fixed).next_multiple_of(step) };
    // Does not depend on how many frames are allowed, so that plans are few.
    let reserve = options.reserve.unwrap_or(FIRST_FRAMES);
    let capacity = capacity(fixed + padded + reserve);
    let feed = feed_capacity(feed);
    let in_batch = RowLimits { cache: rows + max_frames + 1, feed, reserve };
    let needs = Needs { parts: (fixed, padded), rows, in_batch };
    (needs, MemorySizes { batch: 1, capacity, feed })
}

/// The plan of a frame, and those of larger caches with their capacities.
type FramePlans = (Arc<dyn Executable>, Vec<(usize, Arc<dyn Executable>)>);

/// The plan of a frame, and those for when the cache is full, up to `most` rows. All are compiled before an
/// utterance begins: compiling one takes long enough to be heard.
fn frame_plans<N: Autoregressive>(
    network: &N,
    sizes: MemorySizes,
    most: usize,
    taps: bool,
) -> Result<FramePlans, ModelError> {
    let plan = |capacity| network.frame_plan(MemorySizes { capacity, ..sizes }, taps);
    let doubled = std::iter::successors(Some(2 * sizes.capacity), |c| Some(2 * c));
    let larger = doubled.take_while(|c| *c <= capacity(most)).map(|c| Ok((c, plan(c)?)));
    Ok((plan(sizes.capacity)?, larger.collect::<Result<_, ModelError>>()?))
}

/// Compiles the plans of an utterance, and of all that need a cache of the same size and the same kinds of
/// rows. Runs nothing.
pub(super) fn prepare<N: Autoregressive>(
    network: &N,
    prompt: &N::Prompt,
    max_frames: usize,
) -> Result<Needs, ModelError> {
    let (needs, sizes) = arrange(network, prompt, max_frames, StartOptions::default());
    let rows = network.extent(prompt).rows;
    frame_plans(network, sizes, rows + max_frames, false)?;
    network.begin_plan(sizes.feed, false)?;
    let step = network.device().pacing().prompt_step;
    for padded in (step..=MOST_ROWS).step_by(step) {
        for rows in [0..needs.parts.0, needs.parts.0..rows] {
            network.rows_plan(prompt, &Pass { rows, padded }, false)?;
        }
        network.prefill_plan(sizes, padded, false)?;
    }
    Ok(needs)
}
