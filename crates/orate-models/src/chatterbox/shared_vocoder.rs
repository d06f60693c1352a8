//! Mel spectrograms of several callers to samples in one run.
//!
//! Callers whose frames come from one run of the flow ([`super::shared_flow`]) and are equally many become
//! rows of one run of the vocoder: first chunks of streams, and speech of equal length. The caller that first
//! wants its samples runs it, the others wait for it. So nobody waits for callers that may not come.

use super::config::MEL;
use super::estimator;
use super::flow_encoder::Rows;
use super::s3gen_plans::{S3GenPlan, S3GenPlans};
use super::vocoder::{self, HARMONICS, Source};
use crate::ModelError;
use crate::decoding::coalescer::padded_rows;
use crate::runtime::PooledMemory;
use orate_graph::{Counters, DType, Memory, Part};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Fewest rows of a run. Their number is padded ([`padded_rows`]).
const LEAST_ROWS: usize = 3;
/// Most frames of all rows of a run.
const MOST_FRAMES: usize = 8 << 10;

/// What the vocoder reads of a caller besides the mel spectrogram.
#[derive(Clone)]
pub(super) struct Voicing {
    /// Mel frames of the speech that become samples.
    pub part: Range<usize>,
    /// Seed of the noise.
    pub seed: u64,
    /// Phase of each harmonic at the first sample of the part, `[9]`.
    pub phases: Vec<f32>,
}

/// Samples, and the pitch of their frames.
pub(super) struct Sound {
    pub samples: Vec<f32>,
    pub pitch: Vec<f32>,
}

/// Rows of one run.
struct Together {
    memory: Mutex<PooledMemory>,
    voicings: Vec<Voicing>,
    /// What the run returned; `None` if it failed.
    result: OnceLock<Option<(Sound, Counters)>>,
}

/// A row of a run.
pub(super) struct SharedRow {
    together: Arc<Together>,
    row: usize,
}

/// Of callers with these parts, the rows of each run that is shared.
pub(super) fn groups(parts: &[Range<usize>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = vec![];
    for (i, part) in parts.iter().enumerate() {
        match groups.iter_mut().find(|group| parts[group[0]] == *part && fits(group.len() + 1, part.len())) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
    }
    groups.retain(|group| group.len() >= LEAST_ROWS);
    groups
}

fn fits(rows: usize, frames: usize) -> bool {
    padded_rows(rows) * frames <= MOST_FRAMES
}

/// Copies the frames of callers with equal parts out of the memory of the flow, of each the row there and its
/// first frame, and returns their rows of a run of the vocoder.
pub(super) fn collect(
    (flow, all): (&mut dyn Memory, Rows),
    from: &[(usize, usize)],
    voicings: Vec<Voicing>,
    mut kept: PooledMemory,
) -> Result<Vec<SharedRow>, ModelError> {
    let (count, frames) = (padded_rows(voicings.len()), read(&voicings[0].part));
    let memory = kept.get();
    memory.reserve(vocoder::MEL_INPUT, DType::F32, &[count, frames, MEL].into())?;
    let copy = |(i, (row, first)): (usize, &(usize, usize))| Part {
        from: (estimator::LATENT, (row * all.frames() + first) * MEL),
        to: (vocoder::MEL_INPUT, i * frames * MEL),
        len: frames * MEL,
    };
    memory.copy_from(flow, &from.iter().enumerate().map(copy).collect::<Vec<_>>())?;
    let together = Together { memory: Mutex::new(kept), voicings, result: OnceLock::new() };
    let together = Arc::new(together);
    let row = |row| SharedRow { together: together.clone(), row };
    Ok((0..together.voicings.len()).map(row).collect())
}

/// The plan of a run for callers with this part.
pub(super) fn plan_of(callers: usize, part: &Range<usize>) -> S3GenPlan {
    let source = Source::Seeded { before: part.start };
    S3GenPlan::Vocoder { rows: padded_rows(callers), frames: part.len(), source }
}

/// Frames that the vocoder reads for a part of the speech.
fn read(part: &Range<usize>) -> usize {
    vocoder::lead(part.start) + part.len()
}

impl SharedRow {
    /// What the run gives for this row, and what was asked of the device for all of them. `None` if it
    /// failed.
    pub fn sound(&self, plans: &S3GenPlans) -> Option<(Sound, Counters)> {
        let Together { voicings, result, .. } = &*self.together;
        let all = result.get_or_init(|| {
            let result = self.together.run(plans);
            let warn = |e| tracing::warn!("{} callers run the vocoder one by one: {e}", voicings.len());
            result.map_err(warn).ok()
        });
        let (all, counters) = all.as_ref()?;
        let of_row = |values: &[f32]| {
            let len = values.len() / padded_rows(voicings.len());
            values[self.row * len..][..len].to_vec()
        };
        let sound = Sound { samples: of_row(&all.samples), pitch: of_row(&all.pitch) };
        Some((sound, *counters))
    }

    /// Copies the mel spectrogram to the caller's own memory.
    pub fn copy_mel(&self, to: &mut dyn Memory) -> Result<(), ModelError> {
        let Together { memory, voicings, .. } = &*self.together;
        let frames = read(&voicings[self.row].part);
        to.reserve(vocoder::MEL_INPUT, DType::F32, &[1, frames, MEL].into())?;
        let from = (vocoder::MEL_INPUT, self.row * frames * MEL);
        let part = Part { from, to: (vocoder::MEL_INPUT, 0), len: frames * MEL };
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(to.copy_from(memory.get(), &[part])?)
    }
}

impl Together {
    fn run(&self, plans: &S3GenPlans) -> Result<(Sound, Counters), ModelError> {
        let rows = padded_rows(self.voicings.len());
        let part = &self.voicings[0].part;
        let plan = plans.get(plan_of(rows, part), false)?;
        let mut kept = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = kept.get();
        let mut phases: Vec<f32> = self.voicings.iter().flat_map(|v| v.phases.iter().copied()).collect();
        phases.resize(rows * HARMONICS, 0.0);
        memory.write_f32(vocoder::PHASES, &[rows, HARMONICS].into(), &phases)?;
        let seeds = self.voicings.iter().map(|v| v.seed).chain(std::iter::repeat(0));
        seeds.take(rows).enumerate().for_each(|(i, seed)| memory.set_index(&vocoder::noise_seed(i), seed));
        plan.run(memory)?;
        let (mut samples, mut pitch) = (vec![], vec![]);
        memory.read_f32(vocoder::WAV, &mut samples)?;
        memory.read_f32(vocoder::FOUND_PITCH, &mut pitch)?;
        Ok((Sound { samples, pitch }, kept.counters()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cancel;
    use crate::chatterbox::Files;
    use crate::chatterbox::s3gen::{Noise, S3Gen, Session, random_phases};
    use crate::chatterbox::s3gen_plans::FlowSettings;
    use crate::chatterbox::shared_flow::Job;
    use crate::hooks::relative_error;
    use orate_testing::ReferenceDevice;
    use orate_testing::checkpoints::write_chatterbox;

    #[test]
    fn callers_with_equal_parts_are_grouped() {
        assert_eq!(groups(&[0..20, 0..20]), Vec::<Vec<usize>>::new());
        assert_eq!(groups(&[0..20, 4..24, 0..20, 0..21, 0..20]), [[0, 2, 4]]);
        // Four rows are as many as there is memory for.
        assert_eq!(groups(&vec![0..MOST_FRAMES / 4; 8]), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(groups(&vec![0..MOST_FRAMES / 2; 8]), Vec::<Vec<usize>>::new());
    }

    /// Four callers want equally many frames in the middle of their speech, another one those at the
    /// beginning.
    #[test]
    fn a_row_is_what_it_is_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        write_chatterbox(folder.path(), "turbo", "tiny").expect("the folder is writable");
        let files = Files::open(folder.path()).expect("opens");
        let reference = &files.default_voice.as_ref().expect("conds.pt").reference;
        let mut s3gen = S3Gen::new(files.s3gen.clone(), Arc::new(ReferenceDevice), files.weights.clone());
        s3gen.flows.plans.are_shared = true;
        let settings = FlowSettings { steps: 2, guidance: 0.0 };
        let speak = |callers: Range<u64>| -> Vec<(bool, Vec<f32>, Vec<f32>)> {
            let mut sessions: Vec<Session> = vec![];
            let mut jobs: Vec<Job> = vec![];
            for seed in callers.clone() {
                let mut session = s3gen.session(reference, false);
                let codes: Vec<i32> = (0..14).map(|code| (7 * code + 3 * seed as i32) % 60).collect();
                session.phases = Some(random_phases(seed + 100));
                let part = if seed == 4 { 0..9 } else { 6..20 };
                jobs.push(session.job(&codes, part, (settings, seed), &Cancel::default()).expect("codes"));
                sessions.push(session);
            }
            s3gen.flows.run(&mut jobs).expect("runs");
            let samples = |((mut session, job), seed): ((Session, Job), u64)| {
                (session.memory, session.shared) = (job.memory, job.shared);
                let is_shared = session.shared.is_some();
                let samples = session.vocode(Noise::Seed(seed)).expect("runs");
                (is_shared, samples, session.pitch().expect("was found"))
            };
            sessions.into_iter().zip(jobs).zip(callers).map(samples).collect()
        };
        let together = speak(0..5);
        let shared: Vec<bool> = together.iter().map(|(is_shared, ..)| *is_shared).collect();
        assert_eq!(shared, [true, true, true, true, false]);
        for (seed, (_, samples, pitch)) in (0..).zip(&together) {
            let alone = speak(seed..seed + 1).remove(0);
            assert!(!alone.0 && samples.len() == alone.1.len() && pitch.len() == alone.2.len(), "{seed}");
            assert!(relative_error(samples, &alone.1) < 1e-4, "samples of caller {seed}");
            assert!(relative_error(pitch, &alone.2) < 1e-5, "pitch of caller {seed}");
        }
    }
}
