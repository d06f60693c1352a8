//! Codes of several callers to mel spectrograms in one run.
//!
//! A step for one caller leaves most of a GPU idle. Callers that come while the flow is at work wait
//! ([`crate::decoding::coalescer`]), and those whose lengths are alike become rows of one run. Where runs are
//! shared, lengths are data: codes are padded, so that speech of all lengths needs few plans.
//!
//! One run follows the other, so all have one memory. A caller gets its frames by a copy on the device.

use super::config::{FRAMES_PER_CODE, MEL, X_VECTOR};
use super::estimator::{self, GUIDANCE};
use super::flow_encoder::{self, Offsets, Rows};
use super::s3gen_plans::{FlowSettings, S3GenPlan, S3GenPlans, latent_seed, rows_of};
use super::shared_vocoder::{self, SharedRow, Voicing};
use super::vocoder;
use crate::decoding::coalescer::{Coalescer, Coming, Patience, padded_rows};
use crate::decoding::error::panicked;
use crate::runtime::{MemoryPool, PooledMemory};
use crate::{Cancel, ModelError};
use orate_graph::{Counters, DType, Memory, Part};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most callers of a run. Their number is padded ([`padded_rows`]).
const MOST_ROWS: usize = 16;
/// Most mel frames of all callers of a run: scores of the encoder's attention take 32 bytes for each frame
/// and frame of its row.
const MOST_FRAMES: usize = 12 << 10;
/// Cost of a run in frames, however many it has. On an H200 a run of 704 frames takes 55 ms with guidance,
/// and 28 for each row more; without it, one of 768 takes 10 ms, and 4.1 for each row more.
const FRAMES_OF_A_RUN: usize = 900;
/// How long a run waits for those that were announced: as long as their last codes take.
const WAIT: Duration = Duration::from_millis(10);
/// Memories that are kept: where runs are not shared, callers have one each.
const MEMORIES_KEPT: usize = 4;

/// What the estimator begins with.
pub(super) enum Start {
    /// Noise of a seed.
    Seed(u64),
    /// `[F, 80]`
    Given(Vec<f32>),
}

/// What the flow reads of a caller.
pub(super) struct Row {
    /// Those of the prompt, then those to speak.
    pub codes: Vec<i32>,
    /// Of unit length.
    pub x_vector: Vec<f32>,
    /// Mel spectrogram of the prompt.
    pub prompt: Vec<f32>,
    pub start: Start,
    pub settings: FlowSettings,
}

/// A row, and what becomes of it.
pub(super) struct Job {
    pub row: Row,
    /// Frames of prompt and speech that are wanted.
    pub wanted: Range<usize>,
    /// What becomes of them.
    pub voicing: Voicing,
    /// Where they go, unless the vocoder is shared.
    pub memory: PooledMemory,
    pub cancel: Cancel,
    /// The row of a run of the vocoder, once the frames are there.
    pub shared: Option<SharedRow>,
}

pub(super) enum Answer {
    /// The job's memory, its row of a shared run of the vocoder, and what was asked of the device in another
    /// memory.
    Done(PooledMemory, Option<SharedRow>, Result<Counters, ModelError>),
    /// Others fit better: it waits for the next run.
    Again(Job),
    /// There was no room for all.
    Alone(Job),
}

/// A job that will come in a moment: runs wait for it.
pub(super) type Announced<'a> = Coming<'a, Job, Answer>;

/// Runs of the flow.
pub(super) struct Flows {
    pub plans: S3GenPlans,
    coalescer: Coalescer<Job, Answer>,
    pub memories: Arc<MemoryPool>,
    /// Of shared runs of the vocoder.
    vocoders: Arc<MemoryPool>,
    offsets: Mutex<Offsets>,
}

impl Flows {
    pub fn new(plans: S3GenPlans) -> Flows {
        let device = plans.cache.device().clone();
        let [memories, vocoders] =
            [device.clone(), device].map(|device| MemoryPool::new(device, MEMORIES_KEPT));
        Flows { plans, coalescer: Coalescer::new(WAIT), memories, vocoders, offsets: Mutex::default() }
    }

    /// Announces a job, where runs are shared.
    pub fn coming(&self) -> Option<Announced<'_>> {
        self.plans.are_shared.then(|| self.coalescer.coming())
    }

    /// Does a job, alone or with those of others. Its memory comes back unless it was lost to a panic. What a
    /// run asked of the device counts for each in it. Returns where the frames are if it is not that memory.
    pub fn share(
        &self,
        mut coming: Option<Announced<'_>>,
        mut job: Job,
    ) -> (Option<PooledMemory>, Result<Option<SharedRow>, ModelError>) {
        let alike = |a: &Job, b: &Job| a.row.settings == b.row.settings;
        let part = job.voicing.part.clone();
        loop {
            let answer = self.coalescer.call_meanwhile(
                coming.take(),
                (job, Patience::NONE),
                (MOST_ROWS, alike),
                |jobs| self.lead(jobs),
                || self.make_plan(1, &part),
            );
            let (mut memory, shared, result) = match answer {
                Some(Answer::Done(memory, shared, result)) => (memory, shared, result),
                Some(Answer::Again(again)) => {
                    job = again;
                    continue;
                }
                Some(Answer::Alone(mut job)) => {
                    let result = self.run(std::slice::from_mut(&mut job));
                    (job.memory, job.shared, result)
                }
                None => return (None, Err(panicked("the thread that ran the flow has panicked"))),
            };
            let result = result.map(|counters| memory.count(counters));
            return (Some(memory), result.map(|()| shared));
        }
    }

    /// Runs the job that has waited longest, with those that save most work.
    fn lead(&self, jobs: Vec<Job>) -> Vec<Answer> {
        let frames = |job: &Job| rows_of(1, job.row.codes.len(), true).frames();
        let together = together(&jobs.iter().map(frames).collect::<Vec<_>>());
        let is_taken = |i: usize, job: &Job| together.contains(&i) && job.cancel.check().is_ok();
        let taken: Vec<bool> = jobs.iter().enumerate().map(|(i, job)| is_taken(i, job)).collect();
        let mut run = vec![];
        let mut answers: Vec<Option<Answer>> = vec![];
        for (job, is_taken) in jobs.into_iter().zip(&taken) {
            answers.push(match job.cancel.check() {
                _ if *is_taken => {
                    run.push(job);
                    None
                }
                Ok(()) => Some(Answer::Again(job)),
                Err(e) => Some(Answer::Done(job.memory, None, Err(e))),
            });
        }
        let result = if run.is_empty() { Ok(Counters::default()) } else { self.run(&mut run) };
        let several = run.len() > 1;
        if let (Err(e), true) = (&result, several) {
            tracing::warn!("{} callers run the flow one by one: {e}", run.len());
        }
        let mut result = Some(result);
        let mut done = run.into_iter().map(|job| match &result {
            Some(Ok(counters)) => Answer::Done(job.memory, job.shared, Ok(*counters)),
            _ if several => Answer::Alone(job),
            _ => {
                let result = result.take().expect("one job").map(|_| Counters::default());
                Answer::Done(job.memory, None, result)
            }
        });
        answers.into_iter().map(|a| a.or_else(|| done.next()).expect("an answer for each job")).collect()
    }

    /// Runs jobs of equal settings in one run, and waits for it.
    pub fn run(&self, jobs: &mut [Job]) -> Result<Counters, ModelError> {
        let mut kept = self.memories.take();
        let flow = kept.get();
        let rows: Vec<&Row> = jobs.iter().map(|job| &job.row).collect();
        let all = self.prepare(flow, &rows, false)?;
        let steps = rows[0].settings.steps;
        let go_on = || jobs.iter().any(|job| job.cancel.check().is_ok());
        let step = self.plans.get(S3GenPlan::Step { all, steps }, false)?;
        step.run_times(flow, estimator::STEP, steps, &go_on)?;
        let parts: Vec<Range<usize>> = jobs.iter().map(|job| job.voicing.part.clone()).collect();
        let groups = shared_vocoder::groups(&parts);
        let with_first = groups.iter().find(|group| group[0] == 0).map_or(1, Vec::len);
        for group in groups {
            let from: Vec<(usize, usize)> = group.iter().map(|i| (*i, jobs[*i].wanted.start)).collect();
            let voicings = group.iter().map(|i| jobs[*i].voicing.clone()).collect();
            let shared = shared_vocoder::collect((flow, all), &from, voicings, self.vocoders.take())?;
            group.into_iter().zip(shared).for_each(|(i, row)| jobs[i].shared = Some(row));
        }
        for (i, job) in jobs.iter_mut().enumerate().filter(|(_, job)| job.shared.is_none()) {
            copy_mel((flow, i, all), job.wanted.clone(), job.memory.get())?;
        }
        self.make_plan(with_first, &parts[0]);
        // Who comes until then goes with the next run.
        flow.wait()?;
        Ok(kept.counters())
    }

    /// Makes the plan of the vocoder for callers with this part, which speech of a new length needs, while
    /// the device is at work. If that fails, who runs it will say so.
    fn make_plan(&self, callers: usize, part: &Range<usize>) {
        drop(self.plans.get(shared_vocoder::plan_of(callers, part), false));
    }

    /// Everything up to the first step of rows of equal settings.
    pub fn prepare(&self, m: &mut dyn Memory, rows: &[&Row], taps: bool) -> Result<Rows, ModelError> {
        let c = &self.plans.config;
        let longest = rows.iter().map(|row| row.codes.len()).max().unwrap_or(0);
        let all = rows_of(rows.len(), longest, self.plans.are_shared && !taps);
        let FlowSettings { steps, guidance } = rows[0].settings;
        let given = match &rows[0].start {
            Start::Seed(_) => None,
            Start::Given(latent) => Some(latent),
        };
        let plan = self.plans.get(S3GenPlan::Prepare { all, steps, noise: given.is_none() }, taps)?;
        let (count, frames) = (all.rows, all.frames());
        let codes = side_by_side(rows.iter().map(|row| &*row.codes), [count, all.codes]);
        let x_vectors = side_by_side(rows.iter().map(|row| &*row.x_vector), [count, X_VECTOR]);
        let conditions = side_by_side(rows.iter().map(|row| &*row.prompt), [count, frames * MEL]);
        m.write_i32(flow_encoder::CODES, &[count, all.codes].into(), &codes)?;
        m.write_f32(flow_encoder::X_VECTOR_INPUT, &[count, X_VECTOR].into(), &x_vectors)?;
        m.write_f32(estimator::CONDITION, &[count, frames, MEL].into(), &conditions)?;
        if all.is_padded {
            let mut lengths: Vec<i32> = rows.iter().map(|row| row.codes.len() as i32).collect();
            lengths.resize(count, 1);
            m.write_i32(flow_encoder::CODE_LENGTHS, &[count].into(), &lengths)?;
            lengths.iter_mut().for_each(|length| *length *= FRAMES_PER_CODE as i32);
            let lengths = lengths.repeat(c.estimator.rows());
            m.write_i32(flow_encoder::FRAME_LENGTHS, &[lengths.len()].into(), &lengths)?;
        }
        let width = c.encoder.width;
        for (name, rows) in [(flow_encoder::OFFSETS, all.codes), (flow_encoder::UPSAMPLED_OFFSETS, frames)] {
            // The content depends on the shape only: a megabyte or more that may be there from the last run.
            let shape = [1, 2 * rows - 1, width].into();
            if m.shape_of(name) != Some(&shape) {
                let mut kept = self.offsets.lock().unwrap_or_else(PoisonError::into_inner);
                m.write_f32(name, &shape, kept.of(rows, width))?;
            }
        }
        let times = estimator::times(&c.estimator, steps);
        m.write_f32(estimator::TIMES, &[steps].into(), &times[..steps])?;
        if c.estimator.is_meanflow {
            m.write_f32(estimator::ENDS, &[steps].into(), &times[1..])?;
        }
        let lengths: Vec<f32> = times.windows(2).flat_map(|t| [t[1] - t[0]; MEL]).collect();
        m.write_f32(estimator::STEPS, &[steps, MEL].into(), &lengths)?;
        for (name, factor) in GUIDANCE.into_iter().zip([1.0 + guidance, -guidance]) {
            m.set_scalar(name, factor);
        }
        match given {
            Some(latent) => {
                let latent = side_by_side([&**latent].into_iter(), [1, frames * MEL]);
                m.write_f32(estimator::LATENT, &[1, frames, MEL].into(), &latent)?;
            }
            None => (0..count).for_each(|i| {
                let seed =
                    rows.get(i).map_or(0, |row| if let Start::Seed(seed) = row.start { seed } else { 0 });
                m.set_index(&latent_seed(i), seed);
            }),
        }
        plan.run(m)?;
        Ok(all)
    }
}

/// Copies some frames of a row to the memory of its vocoder.
pub(super) fn copy_mel(
    (flow, row, all): (&mut dyn Memory, usize, Rows),
    wanted: Range<usize>,
    memory: &mut dyn Memory,
) -> Result<(), ModelError> {
    let count = wanted.len();
    memory.reserve(vocoder::MEL_INPUT, DType::F32, &[1, count, MEL].into())?;
    let from = (estimator::LATENT, (row * all.frames() + wanted.start) * MEL);
    memory.copy_from(flow, &[Part { from, to: (vocoder::MEL_INPUT, 0), len: count * MEL }])?;
    Ok(())
}

/// `[count, width]`: rows of some values each, then zeros.
fn side_by_side<'a, T: Copy + Default + 'a>(
    rows: impl Iterator<Item = &'a [T]>,
    [count, width]: [usize; 2],
) -> Vec<T> {
    let mut all = vec![T::default(); count * width];
    for (to, row) in all.chunks_exact_mut(width).zip(rows) {
        to[..row.len()].copy_from_slice(row);
    }
    all
}

/// Of speech of these numbers of frames, the first and those that save most work in a run with it.
fn together(frames: &[usize]) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..frames.len()).collect();
    sorted.sort_by_key(|i| frames[*i]);
    let first = sorted.iter().position(|i| *i == 0).unwrap_or(0);
    let mut best: (isize, &[usize]) = (0, &sorted[first..=first]);
    for (from, to) in (0..=first).flat_map(|from| (first..sorted.len()).map(move |to| (from, to))) {
        let some = &sorted[from..=to];
        let padded = padded_rows(some.len()) * frames[sorted[to]];
        let alone: usize = some.iter().map(|i| FRAMES_OF_A_RUN + frames[*i]).sum();
        let saved = alone as isize - (FRAMES_OF_A_RUN + padded) as isize;
        if padded <= MOST_FRAMES && saved > best.0 {
            best = (saved, some);
        }
    }
    best.1.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chatterbox::Files;
    use crate::chatterbox::s3gen::{Noise, Reference, S3Gen};
    use crate::chatterbox::vocoder::HARMONICS;
    use orate_testing::ReferenceDevice;
    use orate_testing::checkpoints::write_chatterbox;

    const STEPS: usize = 2;

    /// The frames of some speech after a prompt: of several callers in one run.
    fn mels(s3gen: &S3Gen, reference: &Reference, callers: &[(usize, u64)]) -> Vec<Vec<f32>> {
        let job = |&(count, seed): &(usize, u64)| {
            let session = s3gen.session(reference, false);
            let codes: Vec<i32> = (0..count).map(|i| (7 * i + seed as usize) as i32 % 60).collect();
            let settings = FlowSettings { steps: STEPS, guidance: 0.7 };
            let row = session.row(&codes, settings, Noise::Seed(seed)).expect("there are codes");
            let first = reference.frames();
            let wanted = first..first + session.frames(count);
            let voicing = Voicing { part: 0..wanted.len(), seed, phases: vec![0.0; HARMONICS] };
            let (memory, cancel) = (s3gen.flows.memories.take(), Cancel::default());
            Job { row, wanted, voicing, memory, cancel, shared: None }
        };
        let mut jobs: Vec<Job> = callers.iter().map(job).collect();
        s3gen.flows.run(&mut jobs).expect("runs");
        let mel = |mut job: Job| {
            let mut mel = vec![];
            job.memory.get().read_f32(vocoder::MEL_INPUT, &mut mel).expect("copied");
            mel
        };
        jobs.into_iter().map(mel).collect()
    }

    #[test]
    fn a_row_is_what_it_is_alone() {
        for variant in ["en", "turbo"] {
            let folder = tempfile::tempdir().expect("a folder");
            write_chatterbox(folder.path(), variant, "tiny").expect("the folder is writable");
            let files = Files::open(folder.path()).expect("opens");
            let reference = &files.default_voice.as_ref().expect("conds.pt").reference;
            let mut s3gen = S3Gen::new(files.s3gen.clone(), Arc::new(ReferenceDevice), files.weights.clone());
            let callers = [(5, 1), (23, 2), (12, 3)];
            let alone = |s3gen: &S3Gen| callers.map(|one| mels(s3gen, reference, &[one]).remove(0));
            let exact = alone(&s3gen);
            s3gen.flows.plans.are_shared = true;
            let padded = alone(&s3gen);
            let together = mels(&s3gen, reference, &callers);
            for (got, want) in padded.iter().chain(&together).zip(exact.iter().cycle()) {
                let error = crate::hooks::relative_error(got, want);
                assert!(got.len() == want.len() && error < 1e-5, "{variant}: {error}");
            }
        }
    }

    #[test]
    fn rows_of_a_run_save_work() {
        let count = |frames: &[usize]| together(frames).len();
        assert_eq!([1, 2, 3, 4, 5, 6, 7, 8, 16].map(|n| count(&vec![640; n])), [1, 2, 3, 4, 5, 6, 7, 8, 16]);
        // The longer the speech, the less is saved.
        assert_eq!(count(&[2560; 16]), 4);
        // Long speech beside short one is padding.
        assert_eq!(together(&[320, 3200, 384]), [0, 2]);
        assert_eq!(together(&[3200, 320, 320]), [0]);
        // The first is always among them.
        assert_eq!(together(&[3200, 320, 320, 320, 320]), [0]);
    }
}
