//! A path through a map of attention: which letter each frame of speech speaks.
//!
//! The letters of a text are spoken in order. Of all paths that never go back, the likeliest is taken.

/// Steps of a path in each frame. Speech may have more letters than frames.
const STEPS_PER_FRAME: usize = 4;

/// Letters that a path may pass in a step.
const MOST_PASSED: usize = 2;

/// A weight below this counts as this much: attention may miss a letter.
const LEAST_WEIGHT: f32 = 1e-4;

/// Returns the frame, with a fraction, in which the sound of each letter begins. `map` is `[frames, letters]`
/// with any scale; attention is `lag` frames later than the sound. Empty if the map is not finite.
pub(crate) fn starts(map: &[f32], letters: usize, lag: f32) -> Vec<f32> {
    let frames = map.len() / letters.max(1);
    if letters == 0 || frames == 0 || map.iter().any(|weight| !weight.is_finite()) {
        return vec![];
    }
    let all: f32 = map.iter().sum::<f32>() / frames as f32;
    let steps = STEPS_PER_FRAME * frames;
    // The weight of a letter at a step, between those of the frames around it.
    let score = |step: usize, letter: usize| {
        let at = (step as f32 + 0.5) / STEPS_PER_FRAME as f32 - 0.5;
        let before = at.floor().clamp(0.0, (frames - 1) as f32) as usize;
        let after = (before + 1).min(frames - 1);
        let part = (at - before as f32).clamp(0.0, 1.0);
        let weight = (1.0 - part) * map[before * letters + letter] + part * map[after * letters + letter];
        (weight / all).max(LEAST_WEIGHT).ln()
    };
    // best[letter]: the likeliest path that is at the letter now. Any path may pass a letter or two in a
    // step; where a text has too many letters even for that, it may pass more.
    let most_passed = MOST_PASSED.max(letters.div_ceil(steps));
    let mut best = vec![f32::NEG_INFINITY; letters];
    best[0] = score(0, 0);
    let mut from = vec![0_u16; steps * letters];
    for step in 1..steps {
        for letter in (0..letters).rev() {
            let reach = 0..=most_passed.min(letter);
            let (passed, value) = reach
                .map(|passed| (passed, best[letter - passed]))
                .fold((0, f32::NEG_INFINITY), |a, b| if b.1 > a.1 { b } else { a });
            best[letter] = value + score(step, letter);
            from[step * letters + letter] = passed as u16;
        }
    }
    let mut starts = vec![0.0; letters];
    let mut letter = letters - 1;
    for step in (1..steps).rev() {
        let passed = usize::from(from[step * letters + letter]);
        for (k, start) in starts[letter + 1 - passed..=letter].iter_mut().enumerate() {
            // Letters that are passed share the step.
            *start = (step as f32 + k as f32 / passed as f32) / STEPS_PER_FRAME as f32;
        }
        letter -= passed;
    }
    starts.iter_mut().for_each(|start| *start = (*start - lag).max(0.0));
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAG: f32 = 1.33;

    #[test]
    fn a_clear_map_gives_its_times() {
        // Five letters: 2, 1, 4, 1, 2 frames.
        let spoken = [0, 0, 1, 2, 2, 2, 2, 3, 4, 4];
        let mut map = vec![0.01; 50];
        for (frame, letter) in spoken.into_iter().enumerate() {
            map[5 * frame + letter] = 1.0;
        }
        let starts = starts(&map, 5, LAG);
        for (start, want) in starts.iter().zip([0.0, 2.0, 3.0, 7.0, 8.0]) {
            assert!((start - (want - LAG).max(0.0)).abs() <= 0.5, "{starts:?}");
        }
    }

    #[test]
    fn more_letters_than_frames_are_in_order() {
        let (frames, letters) = (3, 40);
        let map: Vec<f32> = (0..frames * letters).map(|i| ((i * 7919) % 101) as f32).collect();
        let starts = starts(&map, letters, LAG);
        assert_eq!(starts.len(), letters);
        assert!(starts.is_sorted() && starts[0] == 0.0 && starts[letters - 1] < frames as f32, "{starts:?}");
    }

    #[test]
    fn strange_maps_give_no_times_or_some() {
        assert!(starts(&[], 0, LAG).is_empty() && starts(&[], 3, LAG).is_empty());
        assert!(starts(&[f32::NAN, 1.0], 2, LAG).is_empty());
        assert_eq!(starts(&[0.0; 6], 3, LAG).len(), 3);
        assert_eq!(starts(&[1.0], 1, LAG), [0.0]);
    }
}
