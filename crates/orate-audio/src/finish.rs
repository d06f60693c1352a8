//! Finished sound: set silence at both ends, no stray bursts, joints without clicks, a set loudness.
//!
//! Two stages, both for streams. What they return does not depend on how samples are divided into pushes.
//!
//! ```text
//! a piece ─► PieceFinisher ─► with the silence between pieces ─► Leveler ─► samples to play
//!            trim, strays, fades                                 gain, limiter
//! ```
//!
//! **Trim.** A piece begins [`Margins::lead`] before its speech and ends [`Margins::tail`] after it, whatever
//! silence the model made; zeros fill up what is missing. Pauses inside a piece stay as they are. Levels are
//! K-weighted, which favors fricatives, and measured every 5 ms. Sound is what is at most 45 dB quieter than
//! the loudest 40 ms of the piece so far, and then lasts until it is 52 dB quieter. (A weak *f* is 40 dB
//! quieter than a vowel.) Before there is speech to compare with, it is what exceeds -60 dBFS. Whatever is
//! quieter is cut only if it is farther from sound than the margin. Background noise that is louder counts as
//! sound, so a noisy voice is trimmed too little, not too much. Of a piece without any sound, as much silence
//! is left as both margins have.
//!
//! **Strays.** A stray is a burst of at most 100 ms with at least 200 ms of silence on either side, before
//! the first word or after the last one. Closer to speech, it may be the release of a stop, whose closure
//! lasts up to 120 ms. No word is that short: spoken alone, those of the built-in voice last at least 380 ms.
//! A piece with no other sound keeps its bursts.
//!
//! **Fades.** 5 ms, raised cosine, where a piece does not begin or end with a sample of zero.
//!
//! **Look-ahead.** All decisions need a bounded part of what follows:
//!
//! | where | held back |
//! | --- | --- |
//! | first sound, and a sound after a pause of 200 ms | until it lasts 100 ms, at most 0.4 s |
//! | silence beyond the tail | until sound follows, at most 1 s; what is older is released for good |
//! | a burst in such silence | as the silence; then it is taken for a stray |
//! | everywhere, for the fade | 5 ms |
//! | limiter | 5 ms and 12 samples |
//!
//! Delayed silence is not heard: a player that runs dry is silent, too.
//!
//! **Level.** See [`Leveler`].
//!
//! **Cost** at 44.1 kHz, per second of sound: 0.25 ms for pieces, 0.5 ms for speech with a fixed gain, 0.75
//! ms with one that follows, 2.1 ms for noise that is limited throughout.
//!
//! **Samples that are not finite** pass through unchanged, so that an encoder still refuses them. They count
//! as sound for trimming, and as silence for loudness and peaks.
//!
//! ```
//! use orate_audio::{Finish, Level, Leveler, PieceFinisher, gain_for};
//!
//! let finish = Finish::default();
//! let mut piece = vec![0.0; 12_000];
//! piece.extend((0..24_000).map(|i| 0.1 * (i as f32 * 0.05).sin()));
//! piece.extend([0.0; 12_000]);
//!
//! let mut finisher = PieceFinisher::new(&finish, 24_000)?;
//! let mut speech = vec![];
//! finisher.push(&piece, &mut speech);
//! let edges = finisher.end_piece(&mut speech);
//! // 50 ms, the sound, and 150 ms after it. One that stops at once seems up to 40 ms longer.
//! assert!((28_800..29_800).contains(&speech.len()));
//! assert_eq!(edges.cut_before, 12_000 - 1200);
//!
//! let loudness = finish.loudness.unwrap();
//! let gain = gain_for(&speech, 24_000, &loudness)?;
//! let mut leveler = Leveler::new(&loudness, Level::Fixed(gain), 24_000)?;
//! let mut sound = vec![];
//! leveler.push(&speech, &mut sound);
//! leveler.finish(&mut sound);
//! assert_eq!(sound.len(), speech.len());
//! # Ok::<(), orate_audio::AudioError>(())
//! ```

mod leveler;
mod limiter;
mod piece;

pub use leveler::{Level, Leveler, gain_for};
pub use piece::{PieceEdges, PieceFinisher};

use crate::error::{AudioError, Result};

/// How sound is finished. `default()` is what users get, [`Finish::NONE`] changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finish {
    /// Silence at both ends of a piece; `None` leaves it as it is.
    pub trim: Option<Margins>,
    /// Whether to remove strays: short bursts before the first word or after the last one.
    pub strays: bool,
    /// Whether to fade where a piece begins and ends, so that joints do not click.
    pub fades: bool,
    /// Loudness and largest peak; `None` leaves both as they are.
    pub loudness: Option<Loudness>,
}

impl Finish {
    /// Changes nothing: samples out are samples in, bit for bit.
    pub const NONE: Self = Self { trim: None, strays: false, fades: false, loudness: None };
}

impl Default for Finish {
    fn default() -> Self {
        Self {
            trim: Some(Margins::default()),
            strays: true,
            fades: true,
            loudness: Some(Loudness::default()),
        }
    }
}

/// Silence around the speech of a piece, in seconds, each 0 to 10.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margins {
    /// Before the first sound.
    pub lead: f64,
    /// After the last sound.
    pub tail: f64,
}

impl Default for Margins {
    /// 50 ms before, which is enough for players and codecs that swallow a beginning, and what voices leave
    /// themselves; 150 ms after, in which the last sound decays by another 40 dB.
    fn default() -> Self {
        Self { lead: 0.05, tail: 0.15 }
    }
}

/// Loudness of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loudness {
    /// Integrated loudness in LUFS, -70 to 0.
    pub target: f64,
    /// Largest true peak in dBTP, -40 to 0.
    pub most_peak: f64,
    /// Largest gain, up or down, in dB, 0 to 60: so that near-silence stays quiet.
    pub most_gain: f64,
}

impl Default for Loudness {
    /// -18 LUFS and -1 dBTP, with at most 24 dB of gain.
    fn default() -> Self {
        Self { target: -18.0, most_peak: -1.0, most_gain: 24.0 }
    }
}

impl Loudness {
    fn check(&self) -> Result<()> {
        check_range("target loudness", self.target, -70.0, 0.0, "LUFS")?;
        check_range("largest peak", self.most_peak, -40.0, 0.0, "dBTP")?;
        check_range("largest gain", self.most_gain, 0.0, 60.0, "dB")
    }
}

fn check_range(what: &'static str, got: f64, least: f64, most: f64, unit: &str) -> Result<()> {
    if (least..=most).contains(&got) {
        return Ok(());
    }
    Err(AudioError::Config {
        what,
        got: format!("{got} {unit}"),
        want: format!("it must be {least} to {most}"),
    })
}
