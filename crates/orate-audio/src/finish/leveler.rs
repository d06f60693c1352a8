//! Gain and limiter over the whole sound.

use super::limiter::Limiter;
use super::{Loudness, check_range};
use crate::error::{Result, check_sample_rate};
use crate::loudness::{LoudnessBlocks, LoudnessHistogram, integrated_loudness};

/// Seconds of speech that a prior counts as.
const PRIOR_S: f64 = 5.0;
/// Largest change of a gain, in dB per second.
const MOST_DB_PER_S: f64 = 1.0;
/// Largest distance from the gain that a prior suggests, in dB.
const MOST_CORRECTION_DB: f64 = 12.0;
/// How much more gain a clip may get because the limiter made it quieter, in dB. More would be distorted.
const MOST_MAKEUP_DB: f64 = 3.0;
/// A gain is found when the loudness is this close to its target, in LU.
const CLOSE_LU: f64 = 0.05;
const MOST_PASSES: usize = 5;

/// Samples that are handled at once.
const BLOCK: usize = 1024;

/// Where the gain of a [`Leveler`] comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// The same gain in dB throughout, such as that of [`gain_for`].
    Fixed(f64),
    /// The usual loudness of the voice in LUFS, for streams. The gain begins with what this needs. It is
    /// then corrected by what was heard: the prior counts as 5 s of speech beside it. The gain changes by at
    /// most 1 dB per second, and by 12 dB in all.
    Prior(f64),
}

/// Brings sound to a loudness, with no true peak above a ceiling.
///
/// Push the whole sound: pieces and the silences between them. As many samples come out as go in, at the same
/// times. With [`Level::Fixed`], a stream equals the whole clip bit for bit.
///
/// The limiter looks 5 ms and 12 samples ahead. A gain falls within these 5 ms and rises with a time constant
/// of 60 ms. Peaks are measured as by [`true_peak_dbtp`](crate::true_peak_dbtp), and also more exactly; both
/// are kept 0.1 dB below [`Loudness::most_peak`]. (An ideal meter can find more in white noise, in whose
/// highest frequencies no practical filter finds the peaks.) Without peaks, samples are only multiplied with
/// the gain.
#[derive(Clone, Debug)]
pub struct Leveler {
    gain: Gain,
    /// The gain at the beginning.
    start: Gain,
    limiter: Limiter,
    block: Vec<f32>,
}

#[derive(Clone, Debug)]
enum Gain {
    Fixed(f32),
    Following(Box<Follower>),
}

impl Leveler {
    /// Prepares to level sound with this sample rate in Hz.
    ///
    /// # Errors
    ///
    /// [`AudioError::SampleRate`](crate::AudioError::SampleRate), and
    /// [`AudioError::Config`](crate::AudioError::Config) for numbers that are out of range: those of
    /// [`Loudness`], a gain beyond ±60 dB, a prior outside of -100 to 10 LUFS.
    pub fn new(loudness: &Loudness, start: Level, sample_rate: u32) -> Result<Self> {
        check_sample_rate(sample_rate)?;
        loudness.check()?;
        let start = match start {
            Level::Fixed(db) => {
                check_range("gain", db, -60.0, 60.0, "dB")?;
                Gain::Fixed(ratio(db))
            }
            Level::Prior(lufs) => {
                check_range("usual loudness of the voice", lufs, -100.0, 10.0, "LUFS")?;
                Gain::Following(Box::new(Follower::new(loudness, lufs, sample_rate)))
            }
        };
        let limiter = Limiter::new(loudness.most_peak, sample_rate.into());
        Ok(Self { gain: start.clone(), start, limiter, block: vec![] })
    }

    /// Takes samples. Appends those whose gain is certain.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.push_at(samples, 1.0, out);
    }

    /// The same for samples that are to be quieter or louder than the rest by a factor, which a gain that
    /// follows the sound does not make up for.
    pub fn push_at(&mut self, samples: &[f32], volume: f32, out: &mut Vec<f32>) {
        for samples in samples.chunks(BLOCK) {
            self.block.clear();
            match &mut self.gain {
                Gain::Fixed(gain) => self.block.extend(samples.iter().map(|x| apply(volume * *gain, *x))),
                Gain::Following(gain) => {
                    self.block.extend(samples.iter().map(|&x| apply(volume * gain.next(x), x)));
                }
            }
            self.limiter.push(&self.block, out);
        }
    }

    /// Appends the rest. The next sample begins another sound.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        self.limiter.finish(out);
        self.gain = self.start.clone();
    }
}

/// The gain in dB for [`Level::Fixed`] that brings a clip to its loudness after limiting, within 0.1 LU where
/// possible.
///
/// It stays within [`Loudness::most_gain`], and adds at most 3 dB for what the limiter takes away. Silence
/// has a gain of 0.
///
/// # Errors
///
/// As [`Leveler::new`].
pub fn gain_for(samples: &[f32], sample_rate: u32, loudness: &Loudness) -> Result<f64> {
    loudness.check()?;
    let finite: Vec<f32> = samples.iter().map(|x| if x.is_finite() { *x } else { 0.0 }).collect();
    let missing = loudness.target - integrated_loudness(&finite, sample_rate)?;
    if !missing.is_finite() {
        return Ok(0.0);
    }
    let allowed = |db: f64| db.clamp(-loudness.most_gain, loudness.most_gain);
    let first = allowed(missing);
    let mut gain = first;
    let mut limited = Vec::with_capacity(finite.len());
    for _ in 0..MOST_PASSES {
        limited.clear();
        let mut leveler = Leveler::new(loudness, Level::Fixed(gain), sample_rate)?;
        leveler.push(&finite, &mut limited);
        leveler.finish(&mut limited);
        let missing = loudness.target - integrated_loudness(&limited, sample_rate)?;
        let next = allowed(gain + missing).min(first + MOST_MAKEUP_DB);
        if missing.abs() < CLOSE_LU || next == gain {
            break;
        }
        gain = next;
    }
    Ok(gain)
}

/// A gain that follows the loudness of what was heard.
#[derive(Clone, Debug)]
struct Follower {
    blocks: LoudnessBlocks,
    heard: LoudnessHistogram,
    target: f64,
    prior: f64,
    /// Least and largest gain in dB.
    range: (f64, f64),
    /// Gain in dB at the end of this step.
    db: f64,
    /// Gains at both ends of this step, and how many of its samples are over.
    from: f32,
    to: f32,
    at: usize,
}

impl Follower {
    fn new(loudness: &Loudness, prior: f64, sample_rate: u32) -> Self {
        let most = loudness.most_gain;
        let db = (loudness.target - prior).clamp(-most, most);
        Self {
            blocks: LoudnessBlocks::new(sample_rate),
            heard: LoudnessHistogram::new(),
            target: loudness.target,
            prior,
            range: ((db - MOST_CORRECTION_DB).max(-most), (db + MOST_CORRECTION_DB).min(most)),
            db,
            from: ratio(db),
            to: ratio(db),
            at: 0,
        }
    }

    /// The gain for the next sample.
    fn next(&mut self, x: f32) -> f32 {
        let step = self.blocks.step();
        if self.at == step {
            self.at = 0;
            self.next_step();
        }
        let gain = self.from + (self.to - self.from) * (self.at as f32 / step as f32);
        self.at += 1;
        if let Some(power) = self.blocks.push(if x.is_finite() { x.into() } else { 0.0 }) {
            self.heard.push(power);
        }
        gain
    }

    fn next_step(&mut self) {
        let step_s = LoudnessBlocks::STEP_S;
        let (heard, blocks) = self.heard.integrated();
        let heard_s = f64::from(blocks) * step_s;
        if blocks > 0 {
            let usual = (self.prior * PRIOR_S + heard * heard_s) / (PRIOR_S + heard_s);
            let wanted = (self.target - usual).clamp(self.range.0, self.range.1);
            let most = MOST_DB_PER_S * step_s;
            self.db += (wanted - self.db).clamp(-most, most);
        }
        self.from = self.to;
        self.to = ratio(self.db);
    }
}

fn ratio(db: f64) -> f32 {
    10_f64.powf(db / 20.0) as f32
}

/// Applies a gain. Finite samples stay finite, and others what they are.
fn apply(gain: f32, x: f32) -> f32 {
    if x.is_finite() { (gain * x).clamp(-LARGEST, LARGEST) } else { x }
}

/// Largest sample that is handled: beyond, interpolation overflows.
const LARGEST: f32 = 1e30;

#[cfg(test)]
mod tests;
