//! How the codes of a frame are drawn.

use super::config::GenerationConfig;
use crate::ModelError;
use crate::decoding::{DrawSettings, Sampling};

/// How the frames of an utterance are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// For code 0.
    pub first: Sampling,
    /// For the other codes, which the code predictor draws.
    pub predictor: Sampling,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Frames at most.
    pub max_frames: usize,
}

impl Settings {
    /// The settings of `generation_config.json`. Its limit counts codes, the last of which makes no frame.
    pub fn new(c: &GenerationConfig, seed: u64) -> Settings {
        let sampling = |draw, temperature, top_k, top_p| {
            let temperature = if draw { temperature } else { 0.0 };
            Sampling { temperature, top_k, top_p, ..Sampling::PLAIN }
        };
        let first = sampling(c.do_sample, c.temperature, c.top_k, c.top_p);
        Settings {
            first: Sampling { repetition_penalty: c.repetition_penalty, ..first },
            predictor: sampling(
                c.subtalker_dosample,
                c.subtalker_temperature,
                c.subtalker_top_k,
                c.subtalker_top_p,
            ),
            seed,
            max_frames: c.max_new_tokens.saturating_sub(1),
        }
    }

    /// Refuses settings out of range.
    pub fn check(self) -> Result<(), ModelError> {
        DrawSettings::from(self).check()
    }
}

impl From<Settings> for DrawSettings {
    fn from(s: Settings) -> DrawSettings {
        DrawSettings { sampling: vec![s.first, s.predictor], seed: s.seed, max_frames: s.max_frames }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_by_its_name() {
        let good = Settings { first: Sampling::GREEDY, predictor: Sampling::GREEDY, seed: 0, max_frames: 1 };
        good.check().expect("as small as can be");
        type Change = fn(&mut Settings);
        let cases: [(Change, &str); 5] = [
            (|s| s.max_frames = 0, "number of frames is 0; choose 1 to 16777216"),
            (|s| s.max_frames = usize::MAX, "number of frames is 18446744073709551615; choose 1 to 16777216"),
            (|s| s.first.top_k = 99_999_999, "top_k is 99999999; choose at most 16777216"),
            (|s| s.first.temperature = f32::NAN, "temperature is NaN; choose 0 to 100"),
            (|s| s.first.top_p = 1.5, "top_p is 1.5; choose 0 to 1"),
        ];
        for (change, expected) in cases {
            let mut settings = good;
            change(&mut settings);
            assert_eq!(settings.check().expect_err(expected).to_string(), expected);
        }
    }
}
