//! A long text is spoken in pieces: what families share of that, and the check of what they return.

use crate::{Cancel, Options};

/// Seed of a piece's random numbers: the given one for the first, another stream for each further one.
pub fn piece_seed(seed: u64, index: usize) -> u64 {
    seed ^ (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Whether a piece has a letter or digit. Punctuation alone has no sound.
pub fn is_speakable(piece: &str) -> bool {
    piece.chars().any(char::is_alphanumeric)
}

/// Which piece of a text is being spoken.
pub struct Progress {
    /// Number of the piece, from 0.
    pub index: usize,
    /// Stops the text.
    pub cancel: Cancel,
    seed: u64,
    /// Samples of silence between two pieces.
    silence: usize,
}

impl Progress {
    /// The first piece.
    pub fn new(o: &Options, sample_rate: u32) -> Progress {
        let silence = (f64::from(o.silence) * f64::from(sample_rate)) as usize;
        Progress { index: 0, cancel: o.cancel.clone().unwrap_or_default(), seed: o.seed, silence }
    }

    /// Seed of the piece.
    pub fn seed(&self) -> u64 {
        piece_seed(self.seed, self.index)
    }

    /// The first samples of the piece, after the silence that follows the piece before.
    pub fn after_silence(&self, mut samples: Vec<f32>) -> Vec<f32> {
        if self.index > 0 {
            samples.splice(0..0, std::iter::repeat_n(0.0, self.silence));
        }
        samples
    }
}

/// +20 dBFS. Undamaged models stay within ±2, and files hold ±1.
const LOUDEST: f32 = 10.0;

/// Index of the first sample that no undamaged model returns: NaN, infinite, or above +20 dBFS.
pub fn first_damaged(samples: &[f32]) -> Option<usize> {
    samples.iter().position(|x| x.is_nan() || x.abs() > LOUDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_between_pieces() {
        let o = Options { silence: 0.5, seed: 7, ..Options::default() };
        let mut progress = Progress::new(&o, 4);
        assert_eq!((progress.seed(), progress.after_silence(vec![1.0])), (7, vec![1.0]));
        progress.index += 1;
        assert_eq!(progress.after_silence(vec![1.0]), [0.0, 0.0, 1.0]);
        assert_ne!(progress.seed(), 7);
    }

    #[test]
    fn only_sound_passes() {
        assert_eq!(first_damaged(&[]), None);
        assert_eq!(first_damaged(&[0.0, -1.0, 1.5, -LOUDEST, LOUDEST]), None);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 10.1, -1e36] {
            assert_eq!(first_damaged(&[0.0, bad, 0.0]), Some(1), "{bad}");
        }
    }
}
