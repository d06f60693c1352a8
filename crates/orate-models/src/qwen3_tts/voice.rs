//! A voice made from a recording: an x-vector, and if the words of the recording are known, its codes.
//!
//! ```text
//! words     transcript  the words of the recording, if they are known
//! x_vector  f32 [D]     D is the width of the models that it fits
//! codes     i32 [N]     frame after frame, N = F · Q; there if the transcript is
//! ```

use super::prompt::Speaker;
use crate::{ClonedVoice, ModelError, VoiceTensor};

pub(super) const TAG: &str = "qwen3-tts";

/// Values of an x-vector at most. Released models have 1024 or 2048.
const MOST_WIDTH: usize = 1 << 16;

/// A voice made from a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Voice {
    /// `[D]`
    pub x_vector: Vec<f32>,
    /// The recording itself, if its words are known: the model then goes on in its manner.
    pub reference: Option<Reference>,
}

/// What a recording says, and its codes.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// The words.
    pub transcript: String,
    /// `[F, Q]`
    pub codes: Vec<i32>,
}

impl Voice {
    /// For a request.
    pub fn speaker(&self) -> Speaker<'_> {
        match &self.reference {
            Some(r) => {
                Speaker::InContext { x_vector: &self.x_vector, transcript: &r.transcript, codes: &r.codes }
            }
            None => Speaker::XVector(&self.x_vector),
        }
    }

    /// Values of the x-vector: the width of the models that can speak with it.
    pub fn width(&self) -> usize {
        self.x_vector.len()
    }

    /// What a voice for any model of the family has to be. Whether it fits one is found when it speaks.
    fn check(&self) -> Result<(), String> {
        if !(1..=MOST_WIDTH).contains(&self.width()) {
            return Err(format!("its x-vector has {} values, not 1 to {MOST_WIDTH}", self.width()));
        }
        if let Some(i) = self.x_vector.iter().position(|x| !x.is_finite()) {
            return Err(format!("value {i} of its x-vector is {}, not a finite number", self.x_vector[i]));
        }
        let Some(r) = &self.reference else { return Ok(()) };
        if !r.transcript.chars().any(char::is_alphanumeric) {
            return Err("its transcript has no letter or digit".to_owned());
        }
        match r.codes.iter().find(|c| **c < 0) {
            Some(code) => Err(format!("its reference has the code {code}; codes are not negative")),
            None if r.codes.is_empty() => Err("its reference has no codes".to_owned()),
            None => Ok(()),
        }
    }
}

impl From<&Voice> for ClonedVoice {
    fn from(voice: &Voice) -> ClonedVoice {
        let mut all = ClonedVoice::new(TAG);
        all.tensors.insert("x_vector".to_owned(), VoiceTensor::floats(voice.x_vector.clone()));
        if let Some(r) = &voice.reference {
            all.words.insert("transcript".to_owned(), r.transcript.clone());
            all.tensors.insert("codes".to_owned(), VoiceTensor::integers(r.codes.clone()));
        }
        all
    }
}

impl TryFrom<&ClonedVoice> for Voice {
    type Error = ModelError;

    fn try_from(all: &ClonedVoice) -> Result<Voice, ModelError> {
        all.check_family(TAG)?;
        let reference = match all.words.get("transcript") {
            None => None,
            Some(transcript) => {
                Some(Reference { transcript: transcript.clone(), codes: all.integers("codes")?.to_vec() })
            }
        };
        let voice = Voice { x_vector: all.floats("x_vector")?.to_vec(), reference };
        voice.check().map_err(|problem| ModelError::BadVoice { name: None, problem })?;
        Ok(voice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voices() -> [Voice; 2] {
        let reference = Reference { transcript: "Once, »twice«.\n".to_owned(), codes: (0..32).collect() };
        let x_vector = vec![0.5, -1e-30, 3.0];
        [
            Voice { x_vector: x_vector.clone(), reference: None },
            Voice { x_vector, reference: Some(reference) },
        ]
    }

    #[test]
    fn voices_survive_the_common_form() {
        for voice in voices() {
            assert_eq!(Voice::try_from(&ClonedVoice::from(&voice)).expect("whole"), voice);
        }
    }

    #[test]
    fn what_is_no_voice_is_refused_with_a_reason() {
        let [_, whole] = voices();
        let with = |x_vector: Vec<f32>, transcript: &str, codes: Vec<i32>| Voice {
            x_vector,
            reference: Some(Reference { transcript: transcript.to_owned(), codes }),
        };
        let cases = [
            (with(vec![], "a", vec![1]), "has 0 values"),
            (with(vec![f32::NAN], "a", vec![1]), "value 0 of its x-vector is NaN"),
            (with(vec![1.0], " ", vec![1]), "its transcript has no letter or digit"),
            (with(vec![1.0], "a", vec![3, -1]), "the code -1"),
            (with(vec![1.0], "a", vec![]), "has no codes"),
        ];
        for (voice, words) in cases {
            let e = Voice::try_from(&ClonedVoice::from(&voice)).expect_err(words).to_string();
            assert!(e.contains(words), "no `{words}` in: {e}");
        }
        type Spoil = fn(&mut ClonedVoice);
        let cases: [(Spoil, &str); 4] = [
            (|v| v.family = "other".to_owned(), "a voice of family \"other\""),
            (|v| drop(v.tensors.remove("x_vector")), "it has no `x_vector`"),
            (|v| drop(v.tensors.remove("codes")), "it has no `codes`"),
            (
                |v| v.tensors.get_mut("codes").expect("is there").shape = vec![2, 16],
                "`codes` is i32 [2, 16], not i32 of one axis",
            ),
        ];
        for (spoil, words) in cases {
            let mut voice = ClonedVoice::from(&whole);
            spoil(&mut voice);
            let e = Voice::try_from(&voice).expect_err(words).to_string();
            assert!(e.contains(words), "no `{words}` in: {e}");
        }
    }
}
