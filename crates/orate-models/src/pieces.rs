//! A long text is spoken in pieces: what families share of that, and the check of what they return.

use crate::{Cancel, Options};
use orate_text::Traced;

/// Most characters of a piece: about 20 seconds of speech, half of what the official code of Chatterbox
/// allows. Longer pieces sound no better, and cost more when their generation runs away.
pub const MOST_CHARS: usize = 300;
/// The same for scripts whose characters stand for a syllable or a word.
const MOST_IDEOGRAPHS: usize = 100;
/// The first character of East Asian scripts.
const FIRST_IDEOGRAPH: char = '\u{2E80}';

/// Part of these that the first piece may have where its listener waits for all of it.
const FIRST_SHARE: usize = 6;

/// Cuts a text into pieces of whole sentences, for models that generate a piece frame by frame.
pub fn cut(text: &str) -> Vec<Traced> {
    Traced::from(text).pieces(most_chars(text))
}

/// The same with a short first piece, and longer ones after it: where nothing of a piece is heard before all
/// of it is made, and making it takes about as long as hearing it.
pub fn cut_for_listener(text: &str) -> Vec<Traced> {
    let most = most_chars(text);
    Traced::from(text).growing_pieces(most / FIRST_SHARE, most)
}

fn most_chars(text: &str) -> usize {
    let dense = text.chars().filter(|c| *c >= FIRST_IDEOGRAPH).count();
    if 2 * dense > text.chars().count() { MOST_IDEOGRAPHS } else { MOST_CHARS }
}

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
    fn pieces_of_dense_scripts_have_fewer_characters() {
        for (sentence, most) in [("Eleven men. ", MOST_CHARS), ("十一個人在這裡。", MOST_IDEOGRAPHS)]
        {
            let lengths: Vec<_> =
                cut(&sentence.repeat(60)).iter().map(|piece| piece.chars().count()).collect();
            assert!(lengths.iter().all(|length| *length <= most), "{lengths:?}");
            assert!(lengths[0] + sentence.chars().count() > most, "{lengths:?}");
        }
    }

    #[test]
    fn a_listener_waits_for_a_short_piece() {
        for (sentence, spaces) in [("Eleven men are here. ", 1), ("十一個人在這裡。", 0)] {
            let text = sentence.repeat(60);
            let pieces = cut_for_listener(&text);
            let lengths: Vec<_> = pieces.iter().map(|piece| piece.chars().count()).collect();
            let most = most_chars(&text);
            assert!(lengths[0] <= most / FIRST_SHARE, "{lengths:?}");
            assert!(
                lengths.windows(2).all(|two| two[1] <= two[0].max(most / FIRST_SHARE) * 2),
                "{lengths:?}"
            );
            let longest = *lengths.iter().max().expect("pieces");
            assert!(longest <= most && longest + 2 * sentence.chars().count() > most, "{lengths:?}");
            let all: Vec<&str> = pieces.iter().map(|piece| piece.text()).collect();
            assert_eq!(all.join(&" ".repeat(spaces)), text.trim());
        }
    }

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
