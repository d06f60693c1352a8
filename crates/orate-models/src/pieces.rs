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
}

impl Progress {
    /// The first piece.
    pub fn new(o: &Options) -> Progress {
        Progress { index: o.first_piece, cancel: o.cancel.clone().unwrap_or_default(), seed: o.seed }
    }

    /// Seed of the piece.
    pub fn seed(&self) -> u64 {
        self.seed_of(0)
    }

    /// Seed of a later piece.
    pub fn seed_of(&self, later: usize) -> u64 {
        piece_seed(self.seed, self.index + later)
    }
}

/// Seed of an attempt at a piece, counted from 1: that of the piece for the first, another stream for each
/// further one.
pub fn attempt_seed(seed: u64, attempt: usize) -> u64 {
    seed ^ (attempt as u64 - 1).wrapping_mul(0xD1B5_4A32_D192_ED03)
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
    fn each_piece_has_its_seed() {
        let o = Options { seed: 7, ..Options::default() };
        let mut progress = Progress::new(&o);
        assert_eq!(progress.seed(), 7);
        progress.index += 1;
        assert_ne!(progress.seed(), 7);
        // A text that follows another one goes on in the same order.
        let after = Progress::new(&Options { first_piece: 1, ..o });
        assert_eq!((after.index, after.seed()), (1, progress.seed()));
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
