//! Prepares recordings of a voice for the encoders: checks, trims and resamples them.

use std::ops::{Range, RangeInclusive};
use std::path::Path;

use orate_files::shown;

use crate::decode::read_audio;
use crate::error::{AudioError, Result, check_sample_rate};
use crate::read::Waveform;
use crate::resample::resample;

/// Requirements on a reference recording, and options of its preparation.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceOptions {
    /// Samples per second of the result.
    pub sample_rate: u32,
    /// Longer recordings are refused.
    pub max_seconds: f64,
    /// Recordings with less speech are refused.
    pub min_seconds: f64,
    /// Trimming of the silence around the speech; `None` for none.
    pub trim: Option<Trim>,
}

impl ReferenceOptions {
    /// Half a second to a minute, with trimming.
    pub fn new(sample_rate: u32) -> Self {
        Self { sample_rate, max_seconds: 60.0, min_seconds: 0.5, trim: Some(Trim::default()) }
    }
}

/// Silence around speech.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trim {
    /// Parts are silent if they are this much quieter than the loudest part, in dB.
    pub below_loudest_db: f64,
    /// Seconds to keep before the first sound.
    pub before_s: f64,
    /// Seconds to keep after the last sound. A recording that ends earlier is padded with silence, so that
    /// its last sound is over before generated speech begins.
    pub after_s: f64,
}

impl Default for Trim {
    fn default() -> Self {
        Trim { below_loudest_db: 45.0, before_s: 0.05, after_s: 0.2 }
    }
}

/// A recording is silent if all its parts are below this level, in dBFS.
const SILENT_DBFS: f64 = -65.0;

/// Louder recordings are refused: they are damaged, or integers read as floats.
const TOO_LOUD_DBFS: f64 = 20.0;

/// Length of the parts whose level is measured, in seconds.
const PART_S: f64 = 0.01;

/// Reads and prepares a file of any kind that [`read_audio`] knows.
///
/// # Errors
///
/// Those of [`read_audio`] and [`prepare_reference`]. They name the file and say what to do.
pub fn read_reference(path: impl AsRef<Path>, options: &ReferenceOptions) -> Result<Vec<f32>> {
    let path = path.as_ref();
    let waveform = read_audio(path, options.max_seconds)?;
    prepare_reference(&shown(path).to_string(), &waveform, options)
}

/// Checks, trims and resamples a recording. `what` names it in errors, for example by its file name.
///
/// # Errors
///
/// [`AudioError::NoSamples`], [`AudioError::SampleRate`], [`AudioError::NotFinite`], [`AudioError::TooLong`],
/// [`AudioError::Silent`] and [`AudioError::TooShort`].
pub fn prepare_reference(what: &str, waveform: &Waveform, options: &ReferenceOptions) -> Result<Vec<f32>> {
    let Waveform { samples, sample_rate } = waveform;
    let levels = checked_levels(what, samples, *sample_rate, options.max_seconds)?;
    let (sounding, after) = match &options.trim {
        None => (0..samples.len(), 0),
        Some(trim) => trimmed(waveform, &levels, trim),
    };
    let seconds = sounding.len() as f64 / f64::from(waveform.sample_rate);
    if seconds < options.min_seconds {
        return Err(AudioError::TooShort { what: what.to_owned(), seconds, least_s: options.min_seconds });
    }
    let mut kept = samples[sounding].to_vec();
    kept.resize(kept.len() + after, 0.0);
    resample(&kept, waveform.sample_rate, options.sample_rate)
}

/// Checks a recording that is used as it is, without trimming and resampling. `what` names it in errors, for
/// example by its file name.
///
/// # Errors
///
/// Those of [`prepare_reference`].
pub fn check_recording(
    what: &str,
    samples: &[f32],
    sample_rate: u32,
    seconds: RangeInclusive<f64>,
) -> Result<()> {
    checked_levels(what, samples, sample_rate, *seconds.end())?;
    let (least_s, seconds) = (*seconds.start(), samples.len() as f64 / f64::from(sample_rate));
    if seconds < least_s {
        return Err(AudioError::TooShort { what: what.to_owned(), seconds, least_s });
    }
    Ok(())
}

/// Levels of the parts of a recording that is not too long and has sound, in dBFS; −∞ for zeros.
fn checked_levels(what: &str, samples: &[f32], sample_rate: u32, max_seconds: f64) -> Result<Vec<f64>> {
    let what = || what.to_owned();
    if samples.is_empty() {
        return Err(AudioError::NoSamples { what: what() });
    }
    check_sample_rate(sample_rate)?;
    if let Some(position) = samples.iter().position(|x| !x.is_finite()) {
        return Err(AudioError::NotFinite { what: what(), position, value: samples[position] });
    }
    if samples.len() as f64 > max_seconds * f64::from(sample_rate) {
        return Err(AudioError::TooLong { what: what(), limit_s: max_seconds });
    }
    let level = |part: &[f32]| {
        let power = part.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / part.len() as f64;
        10.0 * power.log10()
    };
    let levels: Vec<f64> = samples.chunks(part_length(sample_rate)).map(level).collect();
    let dbfs = loudest(&levels);
    if dbfs < SILENT_DBFS {
        return Err(AudioError::Silent { what: what(), dbfs });
    }
    if dbfs > TOO_LOUD_DBFS {
        return Err(AudioError::TooLoud { what: what(), dbfs });
    }
    Ok(levels)
}

/// Samples per part.
fn part_length(sample_rate: u32) -> usize {
    ((PART_S * f64::from(sample_rate)) as usize).max(1)
}

fn loudest(levels: &[f64]) -> f64 {
    levels.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Returns the range to keep and the number of zeros to append.
fn trimmed(waveform: &Waveform, levels: &[f64], trim: &Trim) -> (Range<usize>, usize) {
    let loudest = loudest(levels);
    let sounds = |level: &f64| *level >= loudest - trim.below_loudest_db;
    let first = levels.iter().position(sounds).unwrap_or(0);
    let last = levels.iter().rposition(sounds).unwrap_or(0);
    let (part, all) = (part_length(waveform.sample_rate), waveform.samples.len());
    let seconds = |s: f64| (s * f64::from(waveform.sample_rate)) as usize;
    let end = (last + 1) * part + seconds(trim.after_s);
    let start = (first * part).saturating_sub(seconds(trim.before_s));
    (start..end.min(all), end.saturating_sub(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 16_000;

    fn options() -> ReferenceOptions {
        ReferenceOptions::new(24_000)
    }

    /// A second of tone with silence around it.
    fn tone(before: f64, after: f64) -> Waveform {
        let seconds = |s: f64| (s * f64::from(RATE)) as usize;
        let mut samples = vec![0.0; seconds(before)];
        samples.extend((0..RATE).map(|i| 0.3 * (i as f32 * 0.2).sin()));
        samples.resize(samples.len() + seconds(after), 0.0);
        Waveform { samples, sample_rate: RATE }
    }

    fn problem(waveform: &Waveform, options: &ReferenceOptions) -> String {
        prepare_reference("me.wav", waveform, options).unwrap_err().to_string()
    }

    #[test]
    fn silence_around_speech_is_cut_and_the_end_filled_up() {
        for (before, after) in [(0.0, 0.0), (0.02, 0.1), (2.0, 3.0)] {
            let got = prepare_reference("me", &tone(before, after), &options()).unwrap();
            let kept_before = f64::min(before, 0.05);
            let want = (1.0 + kept_before + 0.2) * 24_000.0;
            assert!((got.len() as f64 - want).abs() < 500.0, "{before} {after}: {} for {want}", got.len());
            assert!(got[got.len() - 2400..].iter().all(|x| x.abs() < 1e-3), "the end is silent");
        }
    }

    #[test]
    fn nothing_is_cut_where_trimming_is_off() {
        let exact = ReferenceOptions { sample_rate: RATE, trim: None, ..options() };
        let wave = tone(1.0, 0.5);
        assert_eq!(prepare_reference("me", &wave, &exact).unwrap(), wave.samples);
    }

    #[test]
    fn recordings_are_checked_without_being_prepared() {
        let Waveform { samples, sample_rate } = tone(1.0, 0.0);
        let check = |seconds| check_recording("me", &samples, sample_rate, seconds);
        check(0.1..=2.0).unwrap();
        assert!(matches!(check(3.0..=4.0), Err(AudioError::TooShort { .. })));
        assert!(matches!(check(0.1..=1.0), Err(AudioError::TooLong { .. })));
        assert!(matches!(check_recording("me", &samples, 0, 0.1..=2.0), Err(AudioError::SampleRate { .. })));
    }

    #[test]
    fn integers_are_no_samples() {
        let mut wave = tone(1.0, 0.0);
        wave.samples.iter_mut().for_each(|x| *x *= 32767.0);
        let e = prepare_reference("me.wav", &wave, &options()).unwrap_err().to_string();
        assert!(e.contains("me.wav") && e.contains("dBFS") && e.contains("16-bit"), "{e}");
    }

    #[test]
    fn quiet_noise_in_front_is_silence_too() {
        let mut wave = tone(1.0, 0.0);
        wave.samples[..RATE as usize].iter_mut().enumerate().for_each(|(i, x)| {
            *x = if i % 2 == 0 { 2e-4 } else { -2e-4 };
        });
        let got = prepare_reference("me", &wave, &options()).unwrap();
        assert!(got.len() < 31_000, "{}", got.len());
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_reason_and_remedy() {
        let wave = |samples: Vec<f32>| Waveform { samples, sample_rate: RATE };
        let minute = |n: usize| wave(tone(0.0, 0.0).samples.repeat(60 * n));
        let mut broken = tone(0.0, 0.0);
        broken.samples[77] = f32::NAN;
        for (waveform, words) in [
            (wave(vec![]), vec!["me.wav", "no samples", "Record"]),
            (broken, vec!["me.wav", "sample 77 is NaN", "Convert"]),
            (minute(10), vec!["me.wav", "longer than 60 s", "Cut"]),
            (wave(vec![0.0; 48_000]), vec!["me.wav", "silent", "microphone"]),
            (wave(vec![1e-4; 48_000]), vec!["me.wav", "silent", "-80 dBFS"]),
            (wave(tone(0.0, 0.0).samples[..3200].to_vec()), vec!["me.wav", "0.20 s", "at least 0.5 s"]),
        ] {
            let message = problem(&waveform, &options());
            for word in words {
                assert!(message.contains(word), "no `{word}` in: {message}");
            }
        }
    }
}
