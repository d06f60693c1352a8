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
        let greedy = |draw: bool, s: Sampling| if draw { s } else { Sampling { temperature: 0.0, ..s } };
        Settings {
            first: greedy(
                c.do_sample,
                Sampling {
                    temperature: c.temperature,
                    top_k: c.top_k,
                    top_p: c.top_p,
                    repetition_penalty: c.repetition_penalty,
                    ..Sampling::PLAIN
                },
            ),
            predictor: greedy(
                c.subtalker_dosample,
                Sampling {
                    temperature: c.subtalker_temperature,
                    top_k: c.subtalker_top_k,
                    top_p: c.subtalker_top_p,
                    ..Sampling::PLAIN
                },
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
        let first = |first| Settings { first, ..good };
        let cases = [
            (Settings { max_frames: 0, ..good }, "number of frames is 0; choose 1 to 16777216"),
            (
                Settings { max_frames: usize::MAX, ..good },
                "number of frames is 18446744073709551615; choose 1 to 16777216",
            ),
            (
                first(Sampling { top_k: 99_999_999, ..Sampling::GREEDY }),
                "top_k is 99999999; choose at most 16777216",
            ),
            (
                first(Sampling { temperature: f32::NAN, ..Sampling::GREEDY }),
                "temperature is NaN; choose 0 to 100",
            ),
            (first(Sampling { top_p: 1.5, ..Sampling::GREEDY }), "top_p is 1.5; choose 0 to 1"),
        ];
        for (settings, expected) in cases {
            assert_eq!(settings.check().expect_err(expected).to_string(), expected);
        }
    }
}
