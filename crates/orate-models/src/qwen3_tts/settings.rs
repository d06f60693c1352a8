//! How codes are drawn.

use super::config::GenerationConfig;
use super::error::QwenError;

/// How an id is drawn from a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest id.
    pub temperature: f32,
    /// Ids kept, the likeliest ones; 0 keeps all.
    pub top_k: usize,
    /// Probability kept, 0 to 1.
    pub top_p: f32,
    /// Divides the logits of codes drawn before, or multiplies them if they are negative. Only for code 0.
    pub repetition_penalty: f32,
}

impl Sampling {
    /// Always the likeliest id.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };

    /// Whether another seed may give another id.
    pub fn is_random(self) -> bool {
        self.temperature > 0.0 && self.top_k != 1 && self.top_p > 0.0
    }

    /// As the op reads it.
    pub(crate) fn row(self) -> [f32; 4] {
        [self.temperature, self.top_k as f32, self.top_p, self.repetition_penalty]
    }

    fn check(self) -> Result<(), QwenError> {
        let refused = |option, got: f32, allowed| Err(refusal(option, got.to_string(), allowed));
        if !(0.0..=100.0).contains(&self.temperature) {
            return refused("temperature", self.temperature, "choose 0 to 100");
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return refused("top_p", self.top_p, "choose 0 to 1");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty <= 100.0) {
            return refused(
                "repetition penalty",
                self.repetition_penalty,
                "choose more than 0, and at most 100",
            );
        }
        // The op reads it as a float.
        if self.top_k > MOST_IDS {
            return Err(refusal("top_k", self.top_k.to_string(), "choose at most 16777216"));
        }
        Ok(())
    }
}

/// How the frames of an utterance are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// For code 0.
    pub first: Sampling,
    /// For the other codes.
    pub predictor: Sampling,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Frames at most.
    pub max_frames: usize,
}

impl Settings {
    /// What `generation_config.json` says. Its limit counts codes, the last of which makes no frame.
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
                },
            ),
            predictor: greedy(
                c.subtalker_dosample,
                Sampling {
                    temperature: c.subtalker_temperature,
                    top_k: c.subtalker_top_k,
                    top_p: c.subtalker_top_p,
                    repetition_penalty: 1.0,
                },
            ),
            seed,
            max_frames: c.max_new_tokens.saturating_sub(1),
        }
    }

    /// The seed as the op reads it.
    pub(crate) fn seed_words(&self) -> [i32; 2] {
        [self.seed as u32 as i32, (self.seed >> 32) as u32 as i32]
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// The option, and what it may be.
    pub fn check(&self) -> Result<(), QwenError> {
        self.first.check()?;
        self.predictor.check()?;
        // More would be years of speech, and room for them could not be counted.
        if !(1..=MOST_FRAMES).contains(&self.max_frames) {
            return Err(refusal("number of frames", self.max_frames.to_string(), "choose 1 to 16777216"));
        }
        Ok(())
    }
}

/// More frames than any model has room for.
pub(crate) const MOST_FRAMES: usize = 1 << 24;

/// More ids than any model has: an op reads their number as a float.
pub(crate) const MOST_IDS: usize = 1 << 24;

fn refusal(option: &'static str, got: String, allowed: &str) -> QwenError {
    QwenError::Option { option, got, allowed: allowed.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_candidate_is_not_drawn() {
        let usual = Sampling { temperature: 0.9, top_k: 50, top_p: 1.0, repetition_penalty: 1.05 };
        assert!(usual.is_random() && Sampling { top_k: 0, ..usual }.is_random());
        for sure in [
            Sampling::GREEDY,
            Sampling { temperature: 0.0, ..usual },
            Sampling { top_k: 1, ..usual },
            Sampling { top_p: 0.0, ..usual },
        ] {
            assert!(!sure.is_random(), "{sure:?}");
        }
    }

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
