//! Detects runaway generation: a network that loses its text loops, or never leaves a silence.
//!
//! Only the first code of a frame is looked at: it determines what is said, the others how it sounds.

/// Frames of a loop that are too many: five seconds at 12.5 Hz. No pause and no drawn-out sound of speech
/// lasts as long.
const LOOPING: usize = 63;
/// Frames of the longest period: two seconds. Longer phrases may be repeated because the text repeats them.
const LONGEST_PERIOD: usize = 25;
/// Repetitions that make a loop. Twice the same word is none.
const REPETITIONS: usize = 4;
/// Frames in which speech has more than [`FEW`] codes: eight seconds.
const MONOTONE: usize = 100;
/// This few different codes are silence, or one sound held.
const FEW: usize = 4;

/// Whether speech with these first codes, one of each frame so far, has become a runaway at its end: the same
/// few frames repeated for five seconds, or hardly any different ones for eight.
///
/// ```
/// use orate_models::qwen3_tts::is_runaway;
/// let speech: Vec<i32> = (0..200).map(|i| i * i % 211).collect();
/// assert!(!is_runaway(&speech));
/// assert!(is_runaway(&[speech, [7, 8, 9].repeat(30)].concat()));
/// ```
pub fn is_runaway(codes: &[i32]) -> bool {
    (1..=LONGEST_PERIOD).any(|period| loops(codes, period)) || is_monotone(codes)
}

/// Whether the end repeats with this period for long enough.
fn loops(codes: &[i32], period: usize) -> bool {
    let frames = LOOPING.max(REPETITIONS * period);
    let Some(end) = codes.len().checked_sub(frames).map(|start| &codes[start..]) else { return false };
    end[period..] == end[..frames - period]
}

/// Whether the end has hardly any different codes.
fn is_monotone(codes: &[i32]) -> bool {
    let Some(start) = codes.len().checked_sub(MONOTONE) else { return false };
    let mut different = codes[start..].to_vec();
    different.sort_unstable();
    different.dedup();
    different.len() <= FEW
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes without a pattern, as speech has them.
    fn speech(frames: usize) -> Vec<i32> {
        let mut state = 12345u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 22) as i32
        };
        (0..frames).map(next).collect()
    }

    /// Frames of `tail` after some speech, until a runaway is detected.
    fn noticed_after(tail: impl Iterator<Item = i32>) -> Option<usize> {
        let mut codes = speech(150);
        tail.enumerate().find_map(|(i, code)| {
            codes.push(code);
            is_runaway(&codes).then_some(i + 1)
        })
    }

    #[test]
    fn speech_is_not_a_runaway() {
        let all = speech(3000);
        assert!((0..=all.len()).all(|n| !is_runaway(&all[..n])));
    }

    #[test]
    fn loops_are_detected() {
        for period in 1..=LONGEST_PERIOD {
            let period_codes = speech(period);
            let frames = noticed_after(period_codes.iter().copied().cycle().take(200)).expect("a loop");
            assert!((55..=100).contains(&frames), "a loop of {period} is detected after {frames} frames");
        }
        let longer = speech(LONGEST_PERIOD + 1);
        assert_eq!(noticed_after(longer.iter().copied().cycle().take(400)), None, "a phrase of the text");
    }

    #[test]
    fn what_ends_in_time_is_speech() {
        let cases: [(&str, Vec<i32>); 4] = [
            ("a pause of four seconds", vec![7; 50]),
            ("three seconds of laughter", [1, 2, 3].repeat(12)),
            ("a word said three times", speech(20).repeat(3)),
            ("seven seconds of a few codes", speech(87).iter().map(|c| c % 7).collect()),
        ];
        for (what, part) in cases {
            assert_eq!(noticed_after(part.into_iter().chain(speech(180).split_off(30))), None, "{what}");
        }
    }

    #[test]
    fn silence_of_a_few_codes_is_detected() {
        // Without a period: as many codes as are few, in changing order.
        let order = speech(300);
        let few = noticed_after(order.iter().map(|c| c % FEW as i32));
        assert!(few.is_some_and(|frames| (MONOTONE - 10..=MONOTONE).contains(&frames)), "{few:?}");
        assert_eq!(noticed_after(order.iter().map(|c| c % (FEW as i32 + 4))), None, "more than a few");
    }
}
