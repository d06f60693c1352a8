//! A voice: what T3 and S3Gen know of a recording.
//!
//! ```text
//! speaker         f32 [256]   embedding for T3; absent if the model that made it only converts
//! prompt          i32 [N]     speech codes for T3; there if `speaker` is
//! codes           i32 [n]     speech codes for S3Gen
//! mel             f32 [m]     mel spectrogram of 80 bands, frame after frame, m = 80 · P
//! x_vector        f32 [192]
//! ```

use super::config::{FRAMES_PER_CODE, MEL, SPEAKER, START_OF_SPEECH, X_VECTOR};
use super::s3gen::Reference;
use crate::{ClonedVoice, ModelError, VoiceTensor};
use orate_weights::{PtFile, TensorRef, WeightSource};
use std::path::Path;

pub(super) const TAG: &str = "chatterbox";

/// Seconds of a prompt at most, in codes: far more than any model reads.
const MOST_CODES: usize = 1500;

/// A voice.
#[derive(Clone, Debug, PartialEq)]
pub struct Voice {
    /// What T3 is conditioned on.
    pub talking: Option<TalkingVoice>,
    /// What S3Gen is conditioned on.
    pub reference: Reference,
}

/// What T3 knows of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct TalkingVoice {
    /// Speaker embedding, `[256]`.
    pub speaker: Vec<f32>,
    /// Speech codes of its first seconds.
    pub prompt: Vec<i32>,
}

impl Voice {
    /// Reads `conds.pt`, the default voice of official repositories.
    ///
    /// # Errors
    /// A part is missing, or damaged.
    pub fn read_conditionals(path: &Path, talks: bool) -> Result<Voice, ModelError> {
        Self::of_file(path, &PtFile::open(path)?, talks)
    }

    /// As [`Voice::read_conditionals`], for the bytes of a file. Errors name it `path`.
    ///
    /// # Errors
    /// As [`Voice::read_conditionals`].
    pub fn from_conditionals(path: &Path, bytes: Vec<u8>, talks: bool) -> Result<Voice, ModelError> {
        Self::of_file(path, &PtFile::from_bytes(&path.display().to_string(), bytes)?, talks)
    }

    fn of_file(path: &Path, file: &PtFile, talks: bool) -> Result<Voice, ModelError> {
        let needed = ["gen.prompt_token", "gen.prompt_feat", "gen.embedding"]
            .into_iter()
            .chain(["t3.speaker_emb", "t3.cond_prompt_speech_tokens"].into_iter().filter(|_| talks));
        if let Some(name) = needed.into_iter().find(|name| !file.contains(name)) {
            let problem = format!("it has no tensor `{name}`; copy the file from the model's repository");
            return Err(ModelError::Content { path: path.to_owned(), problem });
        }
        let floats = |name: &str| Ok::<_, ModelError>(file.get(name)?.to_f32());
        let integers = |name: &str| Ok::<_, ModelError>(integers(&file.get(name)?));
        let talking = match talks {
            false => None,
            true => Some(TalkingVoice {
                speaker: floats("t3.speaker_emb")?,
                prompt: integers("t3.cond_prompt_speech_tokens")?,
            }),
        };
        let reference = Reference {
            codes: integers("gen.prompt_token")?,
            mel: floats("gen.prompt_feat")?,
            x_vector: floats("gen.embedding")?,
        };
        let voice = Voice { talking, reference };
        voice.check().map_err(|problem| ModelError::Content { path: path.to_owned(), problem })?;
        Ok(voice)
    }

    /// Refuses what no recording gives.
    pub(super) fn check(&self) -> Result<(), String> {
        let finite = |what: &str, x: &[f32]| match x.iter().position(|x| !x.is_finite()) {
            Some(i) => Err(format!("value {i} of its {what} is {}, not a finite number", x[i])),
            None => Ok(()),
        };
        let length = |what: &str, got: usize, needed: usize| match got == needed {
            true => Ok(()),
            false => Err(format!("its {what} has {got} values, not {needed}")),
        };
        let codes = |what: &str, codes: &[i32]| {
            if codes.is_empty() || codes.len() > MOST_CODES {
                return Err(format!("its {what} has {} codes, not 1 to {MOST_CODES}", codes.len()));
            }
            match codes.iter().find(|code| !(0..START_OF_SPEECH).contains(*code)) {
                Some(code) => Err(format!("its {what} has the code {code}; codes are 0 to 6560")),
                None => Ok(()),
            }
        };
        if let Some(talking) = &self.talking {
            length("speaker embedding", talking.speaker.len(), SPEAKER)?;
            finite("speaker embedding", &talking.speaker)?;
            codes("prompt", &talking.prompt)?;
        }
        let r = &self.reference;
        codes("recording", &r.codes)?;
        length("x-vector", r.x_vector.len(), X_VECTOR)?;
        finite("x-vector", &r.x_vector)?;
        finite("mel spectrogram", &r.mel)?;
        let least = FRAMES_PER_CODE * r.codes.len();
        if !r.mel.len().is_multiple_of(MEL) || !(least..=least + 1).contains(&r.frames()) {
            return Err(format!(
                "its mel spectrogram has {} values for {} codes",
                r.mel.len(),
                r.codes.len()
            ));
        }
        Ok(())
    }
}

/// Integers of a tensor, or floats that hold some: anything else becomes a code that is refused.
pub(super) fn integers(tensor: &TensorRef<'_>) -> Vec<i32> {
    let all = tensor.to_i64().unwrap_or_else(|| tensor.to_f32().into_iter().map(|x| x as i64).collect());
    all.into_iter().map(|x| i32::try_from(x).unwrap_or(-1)).collect()
}

impl From<&Voice> for ClonedVoice {
    fn from(voice: &Voice) -> ClonedVoice {
        let mut all = ClonedVoice::new(TAG);
        let mut insert = |name: &str, tensor| all.tensors.insert(name.to_owned(), tensor);
        if let Some(talking) = &voice.talking {
            insert("speaker", VoiceTensor::floats(talking.speaker.clone()));
            insert("prompt", VoiceTensor::integers(talking.prompt.clone()));
        }
        insert("codes", VoiceTensor::integers(voice.reference.codes.clone()));
        insert("mel", VoiceTensor::floats(voice.reference.mel.clone()));
        insert("x_vector", VoiceTensor::floats(voice.reference.x_vector.clone()));
        all
    }
}

impl TryFrom<&ClonedVoice> for Voice {
    type Error = ModelError;

    fn try_from(all: &ClonedVoice) -> Result<Voice, ModelError> {
        all.check_family(TAG)?;
        let talking = match all.tensors.contains_key("speaker") {
            false => None,
            true => Some(TalkingVoice {
                speaker: all.floats("speaker")?.to_vec(),
                prompt: all.integers("prompt")?.to_vec(),
            }),
        };
        let reference = Reference {
            codes: all.integers("codes")?.to_vec(),
            mel: all.floats("mel")?.to_vec(),
            x_vector: all.floats("x_vector")?.to_vec(),
        };
        let voice = Voice { talking, reference };
        voice.check().map_err(|problem| ModelError::BadVoice { name: None, problem })?;
        Ok(voice)
    }
}
