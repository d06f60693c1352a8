//! Samples of speech whose codes are still being made.
//!
//! Attention in S3Gen sees all codes, so each time some are added, it runs again over all of them, and new
//! frames begin with the noise that they have anyway. The vocoder reads the new frames and some before them:
//!
//! ```text
//! codes       ├───────────────────────────────┼─ ahead ─┤   read, but not spoken yet
//! frames      ├────────────────────────┼─ held ─┤           not returned yet: the vocoder reads them
//! next        ·········├─── before ────┼─ new frames …      cross-faded with what was held
//! ```
//!
//! Harmonics continue with their phase: the cycles of the pitch up to where the vocoder begins.

use super::config::{FRAMES_PER_CODE, SAMPLE_RATE, SAMPLES_PER_FRAME};
use super::s3gen::{Noise, Reference, S3Gen, Session, random_phases};
use super::s3gen_plans::{FlowSettings, S3GenPlan, S3GenPlans};
use super::shared_flow::Announced;
use super::vocoder::{HARMONICS, Source};
use crate::{Cancel, ModelError};
use orate_graph::Counters;
use std::f64::consts::TAU;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Codes that the flow encoder reads beyond those it encodes.
pub(super) const AHEAD: usize = 3;
/// Frames that are returned with the next codes.
const HELD: usize = 10;
/// Frames that the vocoder reads before new ones: the residual blocks see 15.
const BEFORE: usize = 16;
/// Samples of a cross-fade.
const FADE: usize = 960;

/// Fewest codes that give samples.
pub(super) const LEAST: usize = AHEAD + HELD / FRAMES_PER_CODE + 1;

/// What codes are spoken with.
pub(super) struct Setting<'a> {
    pub s3gen: &'a S3Gen,
    pub reference: &'a Reference,
    pub flow: FlowSettings,
    pub seed: u64,
    pub cancel: &'a Cancel,
    /// What was announced to other callers.
    pub coming: Option<Announced<'a>>,
}

/// Speech that becomes longer.
#[derive(Default)]
pub(super) struct Growing {
    /// Frames that were returned.
    returned: usize,
    /// What was made beyond them, to be cross-faded.
    tail: Vec<f32>,
    /// Cycles of each harmonic before the frame that the vocoder begins with next.
    cycles: [f64; HARMONICS],
}

/// Samples, and what they cost.
pub(super) struct Grown {
    pub samples: Vec<f32>,
    pub counters: Counters,
    /// Of the flow, and of the vocoder.
    pub times: [Duration; 2],
}

/// Frames of a mel spectrogram.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// As many are there.
    pub known: usize,
    /// As many are returned, now or before.
    pub end: usize,
    /// Whether no more follow.
    pub is_last: bool,
}

impl Part {
    /// What can be returned of `known` frames if more follow.
    pub fn of(known: usize) -> Part {
        Part { known, end: known.saturating_sub(HELD), is_last: false }
    }
}

impl Growing {
    /// Whether nothing was returned yet.
    pub fn is_silent(&self) -> bool {
        self.returned == 0
    }

    /// The samples that can be returned now that there are `codes`, which begin with those of the call
    /// before. The last call returns all, but for `cut` frames.
    ///
    /// # Errors
    /// The caller cancelled, or the device failed.
    pub fn add(&mut self, codes: &[i32], last: Option<usize>, s: Setting<'_>) -> Result<Grown, ModelError> {
        let mut session = s.s3gen.session(s.reference, false);
        session.coming = s.coming;
        let frames = session.frames(codes.len());
        let part = match last {
            Some(cut) => Part { known: frames, end: frames.saturating_sub(cut), is_last: true },
            None => Part::of(frames.saturating_sub(AHEAD * FRAMES_PER_CODE)),
        };
        let begun = Instant::now();
        self.turn_phases(&mut session, s.seed);
        session.mel(codes, self.read(part), (s.flow, Noise::Seed(s.seed)), s.cancel)?;
        let flow = begun.elapsed();
        let begun = Instant::now();
        let samples = self.vocode(&mut session, part, s.seed)?;
        Ok(Grown { samples, counters: session.counters(), times: [flow, begun.elapsed()] })
    }

    /// Gives a session, before it makes frames, the phases at the first of them that the vocoder reads.
    pub fn turn_phases(&self, session: &mut Session<'_>, seed: u64) {
        let turned = |(phase, cycles): (&f32, &f64)| (f64::from(*phase) + TAU * cycles) as f32;
        session.phases = Some(random_phases(seed).iter().zip(&self.cycles).map(turned).collect());
    }

    /// Frames that the vocoder reads.
    pub fn read(&self, part: Part) -> Range<usize> {
        self.returned.saturating_sub(BEFORE)..part.known
    }

    /// Samples of the frames of a mel spectrogram that were not returned yet, from those that the vocoder
    /// reads.
    ///
    /// # Errors
    /// The device failed.
    pub fn vocode(
        &mut self,
        session: &mut Session<'_>,
        part: Part,
        seed: u64,
    ) -> Result<Vec<f32>, ModelError> {
        let first = self.read(part).start;
        let all = session.vocode(Noise::Seed(seed))?;
        let at = |frame: usize| SAMPLES_PER_FRAME * (frame - first);
        let end = part.end.max(self.returned);
        let mut samples = all[at(self.returned)..at(end)].to_vec();
        cross_fade(&self.tail, &mut samples);
        self.tail.clear();
        if !part.is_last {
            self.tail.extend(all[at(end)..].iter().take(FADE));
            let pitch = session.pitch()?;
            self.turn(&pitch[..end.saturating_sub(BEFORE) - first]);
        }
        self.returned = end;
        Ok(samples)
    }

    /// Adds the cycles of some frames.
    fn turn(&mut self, pitch: &[f32]) {
        for (h, cycles) in self.cycles.iter_mut().enumerate() {
            // Rounded as in the source of the vocoder.
            let step = |hz: &f32| f64::from(hz * (h + 1) as f32 / SAMPLE_RATE as f32);
            *cycles = (*cycles + SAMPLES_PER_FRAME as f64 * pitch.iter().map(step).sum::<f64>()).fract();
        }
    }
}

/// The plans of the first chunk of a stream, of `codes` codes.
pub(super) fn first_plans(
    plans: &S3GenPlans,
    reference: &Reference,
    codes: usize,
    steps: usize,
) -> [S3GenPlan; 3] {
    let (all, prompt) = (reference.codes.len() + codes + AHEAD, reference.frames());
    let [(prepare, _), (step, _), _] = plans.of_utterance([all, prompt], steps);
    let frames = FRAMES_PER_CODE * (all - AHEAD) - prompt;
    [prepare, step, S3GenPlan::Vocoder { rows: 1, frames, source: Source::Seeded { before: 0 } }]
}

/// Mixes the end of what came before into the beginning of what follows.
pub(super) fn cross_fade(before: &[f32], after: &mut [f32]) {
    for (i, (a, b)) in before.iter().zip(after).enumerate() {
        let part = (i as f32 + 0.5) / before.len() as f32;
        *b = a * (1.0 - part) + *b * part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_pieces_are_unchanged_by_a_cross_fade() {
        let mut after = vec![0.5; 6];
        cross_fade(&[0.5; 4], &mut after);
        assert_eq!(after, [0.5; 6]);
        cross_fade(&[], &mut after);
        assert_eq!(after, [0.5; 6]);
        cross_fade(&[1.5; 2], &mut after);
        assert_eq!(after, [1.25, 0.75, 0.5, 0.5, 0.5, 0.5]);
    }

    #[test]
    fn harmonics_turn_with_the_pitch() {
        let mut growing = Growing::default();
        // 125 Hz turn two and a half times in a frame of 20 ms.
        growing.turn(&[125.0, 125.0, 125.0]);
        for (h, cycles) in growing.cycles.iter().enumerate() {
            let want = (7.5 * (h + 1) as f64).fract();
            assert!((cycles - want).abs() < 1e-4, "harmonic {h}: {cycles}");
        }
    }
}
