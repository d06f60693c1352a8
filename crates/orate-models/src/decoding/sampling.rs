//! How codes are drawn from logits.

use super::error::option_error;
use crate::ModelError;

/// How one code is drawn; see [`orate_graph::Op::Sample`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely code.
    pub temperature: f32,
    /// Keeps this many of the most likely codes; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most likely codes up to this probability in total, 0 to 1.
    pub top_p: f32,
    /// Divides the logits of codes that were drawn before, or multiplies them if they are negative. Only for
    /// networks that count drawn codes.
    pub repetition_penalty: f32,
    /// Keeps codes that are at least this likely, as a part of the most likely one's probability; 0 keeps
    /// all.
    pub min_p: f32,
    /// Weight of classifier-free guidance, `logits + guidance · (logits − unconditional logits)`; 0 is off.
    /// Only for networks of two lanes.
    pub guidance: f32,
}

impl Sampling {
    /// Draws from the softmax of the logits as they are.
    pub const PLAIN: Sampling = Sampling {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        repetition_penalty: 1.0,
        min_p: 0.0,
        guidance: 0.0,
    };

    /// Always the most likely code.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, ..Sampling::PLAIN };

    /// Whether another seed may give another code.
    pub fn is_random(self) -> bool {
        self.temperature > 0.0 && self.top_k != 1 && self.top_p > 0.0 && self.min_p < 1.0
    }

    /// The settings in the order of [`orate_graph::Op::Sample`], which may read fewer.
    pub(super) fn row(self) -> [f32; orate_graph::SAMPLE_SETTINGS] {
        let Sampling { temperature, top_k, top_p, repetition_penalty, min_p, guidance } = self;
        [temperature, top_k as f32, top_p, repetition_penalty, min_p, guidance]
    }

    /// Refuses settings out of range.
    pub fn check(self) -> Result<(), ModelError> {
        let (penalty, above_0) = (self.repetition_penalty, "choose more than 0, and at most 100");
        let all = [
            ("temperature", self.temperature, 0.0..=100.0, "choose 0 to 100"),
            ("top_p", self.top_p, 0.0..=1.0, "choose 0 to 1"),
            ("repetition penalty", penalty, f32::from_bits(1)..=100.0, above_0),
            ("min_p", self.min_p, 0.0..=1.0, "choose 0 to 1"),
            ("guidance", self.guidance, 0.0..=100.0, "choose 0 to 100"),
        ];
        match all.into_iter().find(|(_, got, range, _)| !range.contains(got)) {
            Some((option, got, _, allowed)) => Err(option_error(option, got.to_string(), allowed)),
            None if self.top_k <= MOST_IDS => Ok(()),
            None => Err(option_error("top_k", self.top_k.to_string(), "choose at most 16777216")),
        }
    }
}

/// How the frames of an utterance are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawSettings {
    /// For each settings buffer of the network, in the order of [`super::Facts::sampling`].
    pub sampling: Vec<Sampling>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Frames at most.
    pub max_frames: usize,
}

impl DrawSettings {
    pub(super) fn seed_words(&self) -> [i32; 2] {
        [self.seed as u32 as i32, (self.seed >> 32) as u32 as i32]
    }

    /// Refuses settings out of range.
    pub fn check(&self) -> Result<(), ModelError> {
        self.sampling.iter().try_for_each(|s| s.check())?;
        // More would be years of speech, and overflow the sizes of caches.
        if !(1..=MOST_FRAMES).contains(&self.max_frames) {
            let (option, got) = ("number of frames", self.max_frames.to_string());
            return Err(option_error(option, got, "choose 1 to 16777216"));
        }
        Ok(())
    }
}

/// More frames than any model has room for.
pub(crate) const MOST_FRAMES: usize = 1 << 24;

/// More ids than any model has: an op reads their number as a float.
pub(crate) const MOST_IDS: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_candidate_is_not_random() {
        let usual = Sampling { temperature: 0.9, top_k: 50, repetition_penalty: 1.05, ..Sampling::PLAIN };
        assert!(usual.is_random() && Sampling { top_k: 0, ..usual }.is_random());
        for sure in [
            Sampling::GREEDY,
            Sampling { temperature: 0.0, ..usual },
            Sampling { top_k: 1, ..usual },
            Sampling { top_p: 0.0, ..usual },
            Sampling { min_p: 1.0, ..usual },
        ] {
            assert!(!sure.is_random(), "{sure:?}");
        }
    }
}
