//! Whether an utterance has gone astray: a talker that loses its text goes round in circles, or never leaves a silence.
//!
//! Code 0 of a frame tells what is said, the others how it sounds, so only code 0 is looked at.

/// Frames of going round that are too many: five seconds. No pause and no drawn out sound of speech lasts as long.
const CIRCLES: usize = 63;
/// Frames of the longest circle: two seconds. Longer phrases may be repeated because the text does so.
const LONGEST_CIRCLE: usize = 25;
/// Times that a circle is gone round at least. Twice the same word is no circle.
const ROUNDS: usize = 4;
/// Frames in which speech has more than a few codes: eight seconds.
const MONOTONE: usize = 100;
/// So few codes that they are silence, or one sound held.
const FEW: usize = 4;

/// Whether speech with these codes 0, one of each frame so far, has gone astray at its end: the same few frames came again and
/// again for five seconds, or there were hardly any different ones for eight.
///
/// ```
/// use orate_models::qwen3_tts::is_runaway;
/// let speech: Vec<i32> = (0..200).map(|i| i * i % 211).collect();
/// assert!(!is_runaway(&speech));
/// assert!(is_runaway(&[speech, [7, 8, 9].repeat(30)].concat()));
/// ```
pub fn is_runaway(codes: &[i32]) -> bool {
    (1..=LONGEST_CIRCLE).any(|period| goes_round(codes, period)) || is_monotone(codes)
}

/// Whether the end repeats with this period for long enough.
fn goes_round(codes: &[i32], period: usize) -> bool {
    let frames = CIRCLES.max(ROUNDS * period);
    let Some(end) = codes.len().checked_sub(frames).map(|start| &codes[start..]) else { return false };
    end[period..] == end[..frames - period]
}

/// Whether the end has hardly any different codes.
fn is_monotone(codes: &[i32]) -> bool {
    let Some(start) = codes.len().checked_sub(MONOTONE) else { return false };
    let mut seen = [0; FEW];
    let mut different = 0;
    for code in &codes[start..] {
        if seen[..different].contains(code) {
            continue;
        }
        if different == FEW {
            return false;
        }
        seen[different] = *code;
        different += 1;
    }
    true
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

    /// Frames of `tail` behind some speech after which it is astray.
    fn noticed_after(tail: impl Iterator<Item = i32>) -> Option<usize> {
        let mut codes = speech(150);
        tail.enumerate().find_map(|(i, code)| {
            codes.push(code);
            is_runaway(&codes).then_some(i + 1)
        })
    }

    #[test]
    fn speech_is_not_astray() {
        let all = speech(3000);
        assert!((0..=all.len()).all(|n| !is_runaway(&all[..n])));
    }

    #[test]
    fn circles_are_noticed() {
        for period in 1..=LONGEST_CIRCLE {
            let circle = speech(period);
            let frames = noticed_after(circle.iter().copied().cycle().take(200)).expect("a circle");
            assert!((55..=100).contains(&frames), "a circle of {period} is noticed after {frames} frames");
        }
        let longer = speech(LONGEST_CIRCLE + 1);
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
    fn silence_of_a_few_codes_is_noticed() {
        // Without a period: as many codes as are few, in changing order.
        let order = speech(300);
        let few = noticed_after(order.iter().map(|c| c % FEW as i32));
        assert!(few.is_some_and(|frames| (MONOTONE - 10..=MONOTONE).contains(&frames)), "{few:?}");
        assert_eq!(noticed_after(order.iter().map(|c| c % (FEW as i32 + 4))), None, "more than a few");
    }
}
