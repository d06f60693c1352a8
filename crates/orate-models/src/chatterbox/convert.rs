//! Converts recordings: S3Gen speaks the speech codes of a source in another voice.
//!
//! A source of up to 30 s is one piece, as in the official code. A longer one is cut at quiet places. S3Gen
//! then also reads some codes before and after each piece, and pieces are cross-faded where they meet:
//!
//! ```text
//! codes     ├──────── own ────────┼──────── own ────────┤
//! piece 0   ╞═════════════════════╪═══════╕
//! piece 1                 ╒═══════╪═════════════════════╡
//! ```
//!
//! A frame begins with the same noise in every piece that has it, so pieces nearly agree where they meet.

use super::config::{FRAMES_PER_CODE, MEL, SAMPLES_PER_CODE, SAMPLES_PER_FRAME};
use super::encoders::{ENCODER_RATE, Encoders, FEATURES_PER_CODE, HOP, features};
use super::growing::cross_fade;
use super::options::Options as Own;
use super::pipeline::Chatterbox;
use super::s3gen::{Noise, Reference};
use super::s3gen_plans::FlowSettings;
use super::speak::check;
use crate::pieces::Progress;
use crate::{Chunk, Chunks, Conversion, ModelError, OptionSet, Options};
use orate_audio::{SincFilter, Spectrogram, resample_sinc};
use orate_graph::{Counters, Graph};
use std::ops::Range;
use std::sync::Arc;

/// Codes of a source that is one piece: 30 seconds.
const MOST_WHOLE: usize = 750;
/// Codes of the pieces of a longer one, without what is read around them: 15 to 25 seconds.
const PIECE: Range<usize> = 375..625;
/// Codes that are read before and after a piece: a second. With half of it, spectra at joints already are as
/// close to those of one long piece as everywhere else.
const AROUND: usize = 25;
/// Samples of a cross-fade.
const FADE: usize = 480;
/// Codes before and after a cut that have to be quiet.
const QUIET: usize = 3;

/// Names in the plan of the noise.
const SEED: &str = "seed";
const NOISE: &str = "noise";

/// A recording that is being converted.
struct Converting {
    model: Arc<Chatterbox>,
    encoders: Arc<Encoders>,
    /// Features of the source, and where the part begins that has no codes yet.
    mel: Spectrogram,
    start: Option<usize>,
    codes: Vec<i32>,
    /// Where pieces begin, and the number of all codes.
    cuts: Vec<usize>,
    reference: Reference,
    flow: FlowSettings,
    /// Noise of the reference and all codes, `[F, 80]`.
    noise: Vec<f32>,
    progress: Progress,
    /// The last samples of the piece before, to be cross-faded.
    tail: Vec<f32>,
}

impl Conversion for Chatterbox {
    fn convert(
        self: Arc<Self>,
        samples: &[f32],
        sample_rate: u32,
        options: &Options,
    ) -> Result<Box<dyn Chunks>, ModelError> {
        Ok(Box::new(Converting::new(self, samples, sample_rate, options)?))
    }
}

impl Converting {
    fn new(
        model: Arc<Chatterbox>,
        samples: &[f32],
        sample_rate: u32,
        options: &Options,
    ) -> Result<Converting, ModelError> {
        let reference = model.converting_voice(options)?.reference;
        let progress = Progress::new(&Options { first_piece: 0, ..options.clone() });
        let slow = resample_sinc(samples, sample_rate, ENCODER_RATE, SincFilter::SoxrHq)?;
        progress.cancel.check()?;
        let mel = features(&slow)?;
        progress.cancel.check()?;
        let cuts = cuts(&loudness(&slow, mel.frames.div_ceil(FEATURES_PER_CODE)));
        let noise = match cuts.len() {
            ..=2 => vec![],
            _ => {
                let codes = reference.codes.len() + cuts.last().copied().unwrap_or(0);
                noise(&model, FRAMES_PER_CODE * codes, options.seed)?
            }
        };
        Ok(Converting {
            encoders: model.encoders(),
            flow: model.flow_settings(&Own::read(&options.own)),
            model,
            mel,
            start: Some(0),
            codes: vec![],
            cuts,
            reference,
            noise,
            progress,
            tail: vec![],
        })
    }

    fn piece(&mut self, own: Range<usize>, all: usize) -> Result<Chunk, ModelError> {
        let read = own.start.saturating_sub(AROUND)..(own.end + AROUND).min(all);
        while let Some(start) = self.start.filter(|_| self.codes.len() < read.end) {
            self.progress.cancel.check()?;
            let (codes, next) = self.encoders.part_codes(&self.mel, start)?;
            self.codes.extend(codes);
            self.start = next;
        }
        self.progress.cancel.check()?;
        let (mut samples, counters) = self.samples(&read)?;
        // A reference may have a frame more than its codes, which then replaces the first one of the speech.
        let missing = self.reference.frames() - FRAMES_PER_CODE * self.reference.codes.len();
        let at = |code: usize| SAMPLES_PER_CODE * (code - read.start) - SAMPLES_PER_FRAME * missing;
        if own.end < all {
            samples.truncate(at(own.end) + FADE / 2);
        }
        if own.start > 0 {
            samples.drain(..at(own.start) - FADE / 2);
        }
        cross_fade(&self.tail, &mut samples);
        self.tail = if own.end < all { samples.split_off(samples.len() - FADE) } else { vec![] };
        let index = self.progress.index;
        self.progress.index += 1;
        let ends_piece = own.end == all;
        Ok(Chunk { samples, index, ends_piece, counters, attempts: 1, ..Chunk::default() })
    }

    /// Samples of some codes of the source.
    fn samples(&self, codes: &Range<usize>) -> Result<(Vec<f32>, Counters), ModelError> {
        let mut session = self.model.s3gen().session(&self.reference, false);
        let seed = Noise::Seed(self.progress.seed());
        let rows = |frames: usize| MEL * FRAMES_PER_CODE * frames;
        let before = self.reference.codes.len();
        let latent = match self.noise.is_empty() {
            true => vec![],
            false => {
                let own = rows(before + codes.start)..rows(before + codes.end);
                [&self.noise[..rows(before)], &self.noise[own]].concat()
            }
        };
        let noise = match latent.is_empty() {
            true => seed,
            false => Noise::Given { latent: &latent, phases: &[], source: &[], pitch: None },
        };
        let part = 0..session.frames(codes.len());
        session.mel(&self.codes[codes.clone()], part, (self.flow, noise), &self.progress.cancel)?;
        let samples = session.vocode(seed)?;
        check(&samples)?;
        Ok((samples, session.counters()))
    }
}

impl Chunks for Converting {
    fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        let i = self.progress.index;
        let own = *self.cuts.get(i)?..*self.cuts.get(i + 1)?;
        let chunk = self.piece(own, *self.cuts.last()?);
        if chunk.is_err() {
            self.cuts.clear();
        }
        Some(chunk)
    }

    fn remaining(&self) -> usize {
        self.cuts.len().saturating_sub(self.progress.index + 1)
    }

    fn remaining_chars(&self) -> usize {
        self.remaining()
    }
}

/// Noise of `frames` frames: that of [`Noise::Seed`], for any number of them.
fn noise(model: &Chatterbox, frames: usize, seed: u64) -> Result<Vec<f32>, ModelError> {
    let mut g = Graph::new("noise");
    let scalar = g.scalar(SEED);
    let normal = g.random_normal([1, frames, MEL], scalar, 1.0)?;
    g.output(NOISE, normal)?;
    let mut memory = model.device().memory();
    memory.set_index(SEED, seed);
    model.s3gen().plans().cache.compile(g)?.run(&mut *memory)?;
    let mut noise = vec![];
    memory.read_f32(NOISE, &mut noise)?;
    Ok(noise)
}

/// Energy of the samples of each code of a source at 16 kHz.
fn loudness(samples: &[f32], codes: usize) -> Vec<f64> {
    let energy = |part: &[f32]| part.iter().map(|x| f64::from(*x).powi(2)).sum();
    let mut all: Vec<f64> = samples.chunks(HOP * FEATURES_PER_CODE).map(energy).collect();
    all.resize(codes, 0.0);
    all
}

/// Where pieces begin, and the number of all codes.
fn cuts(loudness: &[f64]) -> Vec<usize> {
    let mut cuts = vec![0];
    let (mut start, all) = (0, loudness.len());
    while all - start > if start == 0 { MOST_WHOLE } else { PIECE.end } {
        let around =
            |cut: usize| loudness[cut.saturating_sub(QUIET)..(cut + QUIET).min(all)].iter().sum::<f64>();
        let candidates = start + PIECE.start..=start + PIECE.end;
        start = candidates.min_by(|a, b| around(*a).total_cmp(&around(*b))).unwrap_or(all);
        cuts.push(start);
    }
    cuts.push(all);
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sources_are_cut_where_it_is_quiet() {
        let loud = |codes: usize| vec![1.0; codes];
        assert_eq!(cuts(&loud(MOST_WHOLE)), [0, MOST_WHOLE]);
        let mut pauses = loud(1300);
        pauses[490..500].fill(0.0);
        pauses[1000..1010].fill(0.1);
        assert_eq!(cuts(&pauses), [0, 493, 1003, 1300]);
        for codes in MOST_WHOLE + 1..3000 {
            let cuts = cuts(&loud(codes));
            assert_eq!((cuts[0], cuts.last()), (0, Some(&codes)));
            let longest = cuts.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
            assert!(longest + 2 * AROUND <= MOST_WHOLE, "{codes}: {cuts:?}");
            assert!(cuts.windows(2).all(|w| w[0] < w[1]), "{codes}: {cuts:?}");
        }
    }
}
