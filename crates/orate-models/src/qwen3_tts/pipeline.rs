//! The model on a device.

use super::codec_stream::CodecDecoder;
use super::config::SpeakerEncoderConfig;
use super::files::{Files, Talking};
use super::gguf::TRANSCRIPTS;
use super::prompt::{self, Prompt, Request};
use super::settings::Settings;
use super::talker_plans::Talker;
use super::voice::{Reference, Voice};
use super::voice_encoder::VoiceEncoder;
use super::{Batch, Session, Utterance};
use crate::decoding::{Decoding, StartOptions};
use crate::{Model, ModelError};
use orate_graph::{CacheFormat, Device};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes of states of prompts that are kept. A row of the released models takes 229 kB, and most prompts
/// begin with ten to sixty.
pub(crate) const PREFIX_BYTES: usize = 128 << 20;

/// A Qwen3-TTS model on a device. Shared by any number of threads.
pub struct Qwen3Tts {
    files: Files,
    device: Arc<dyn Device>,
    kv: CacheFormat,
    /// Talker and code predictor; a codec alone has none.
    pub(super) talker: Option<Decoding<Talker>>,
    codec: Arc<CodecDecoder>,
    /// While a voice is being cloned.
    pub(super) voices: Mutex<Weak<VoiceEncoder>>,
    pub(super) facts: crate::Facts,
}

impl Qwen3Tts {
    /// Puts a model on a device, with keys and values in f32. Weights are read when they are first needed.
    pub fn new(files: Files, device: Arc<dyn Device>) -> Arc<Qwen3Tts> {
        Self::with_cache(files, device, CacheFormat::F32)
    }

    /// As [`Qwen3Tts::new`], with the talker's keys and values kept in a format. Those of the code predictor
    /// live as long as a frame, and stay f32.
    pub fn with_cache(files: Files, device: Arc<dyn Device>, kv: CacheFormat) -> Arc<Qwen3Tts> {
        let weights = Arc::new(crate::Loader(files.weights.clone()));
        let codec = CodecDecoder::new(files.codec.decoder_config.clone(), device.clone(), weights.clone());
        let talker = files.talking.as_ref().map(|t| Talker::new(&t.config, device.clone(), weights, kv));
        let talker = talker.map(|t| Decoding::new(t, PREFIX_BYTES));
        let (codec, voices) = (Arc::new(codec), Mutex::default());
        let facts = super::files::facts(&files, kv);
        Arc::new(Qwen3Tts { files, device, kv, talker, codec, voices, facts })
    }

    /// The model's files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// The device that runs it.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// In which format keys and values are kept.
    pub fn kv(&self) -> CacheFormat {
        self.kv
    }

    /// Samples per second of the output.
    pub fn sample_rate(&self) -> u32 {
        self.files.codec.output_sample_rate
    }

    /// The talking part.
    pub fn talking(&self) -> Result<&Talking, ModelError> {
        self.files.talking.as_ref().ok_or_else(|| ModelError::NoTalker { path: self.files.origin.clone() })
    }

    /// A request as ids.
    pub fn prompt(&self, request: &Request<'_>) -> Result<Prompt, ModelError> {
        let talking = self.talking()?;
        Prompt::new(&talking.config, &talking.tokenizer, request)
    }

    /// The network that makes codes.
    pub fn talker(&self) -> Result<&Decoding<Talker>, ModelError> {
        let talker = self.talker.as_ref();
        talker.ok_or_else(|| ModelError::NoTalker { path: self.files.origin.clone() })
    }

    /// Reads a prompt, up to the state before the first frame.
    ///
    /// # Errors
    /// The files are those of a codec alone, settings are out of range, the prompt leaves no room for frames,
    /// or the device failed.
    pub fn start(&self, prompt: &Prompt, settings: &Settings) -> Result<Session, ModelError> {
        self.start_with(prompt, settings, StartOptions::default())
    }

    /// As [`Qwen3Tts::start`], with options.
    pub fn start_with(
        &self,
        prompt: &Prompt,
        settings: &Settings,
        options: StartOptions,
    ) -> Result<Session, ModelError> {
        self.talker()?.start(prompt, (*settings).into(), options)
    }

    /// As [`Qwen3Tts::start_with`], for an utterance that is decoded together with those of other threads.
    pub fn utterance(
        &self,
        prompt: &Prompt,
        settings: &Settings,
        options: StartOptions,
    ) -> Result<Utterance, ModelError> {
        let prepare = |callers| self.codec.prepare_batches(callers);
        self.talker()?.utterance(prompt, (*settings).into(), options, prepare)
    }

    /// An empty batch.
    pub fn batch(&self) -> Result<Batch, ModelError> {
        Ok(self.talker()?.batch())
    }

    /// Compiles the plans of an utterance like this one, and for several `callers` those of their batches.
    /// Runs nothing.
    pub fn prepare(&self, prompt: &Prompt, max_frames: usize, callers: usize) -> Result<(), ModelError> {
        if callers > 1 && self.device.pacing().coalescing_wait.is_some() {
            self.codec.prepare_batches(callers)?;
        }
        self.talker()?.prepare(prompt, max_frames, callers)
    }

    /// Drops the kept states of prompts and references. What is spoken next is the same, and begins later.
    pub fn forget_prefixes(&self) {
        self.talker.iter().for_each(Decoding::forget_prefixes);
        self.codec.forget_references();
    }

    /// What turns codes into samples. It has memories of its own, so that it can run beside the talker.
    pub fn codec(&self) -> &Arc<CodecDecoder> {
        &self.codec
    }

    /// The voice of a recording at [`Qwen3Tts::sample_rate`], mono and trimmed. With a transcript of it, its
    /// manner too.
    ///
    /// # Errors
    /// The model is made for another kind of speaker, the transcript has no letter or digit or is longer than
    /// the recording can be, the recording is too short, or the device failed.
    pub fn clone_voice(&self, samples: &[f32], transcript: Option<&str>) -> Result<Voice, ModelError> {
        self.cloning()?;
        let config = &self.talking()?.config;
        if transcript.is_some_and(|t| !t.chars().any(char::is_alphanumeric)) {
            return Err(ModelError::EmptyText { what: "transcript" });
        }
        let limits = self.files.report.iter().flat_map(|r| &r.cannot);
        if let (Some(_), Some(limit)) = (transcript, limits.into_iter().find(|l| l.starts_with(TRANSCRIPTS)))
        {
            let problem = format!("it cannot do {limit}; leave the transcript out to take the voice alone");
            return Err(ModelError::Mode { variant: config.tts_model_type.name(), problem });
        }
        let encoder = self.voice_encoder(config.speaker_encoder_config.clone());
        let x_vector = encoder.x_vector(samples)?.ok_or_else(|| ModelError::Mode {
            variant: config.tts_model_type.name(),
            problem: "it has no speaker encoder".to_owned(),
        })?;
        if let Some(x) = x_vector.iter().find(|x| !x.is_finite()) {
            let problem = format!(
                "its speaker encoder returned {x}; are its weights undamaged, and does their format have the \
                 range that they need (bf16 or f32)?"
            );
            return Err(ModelError::Content { path: self.files.origin.clone().into(), problem });
        }
        let reference = |text: &str| -> Result<_, ModelError> {
            Ok(Reference { transcript: text.to_owned(), codes: encoder.codes(samples)? })
        };
        let reference = transcript.map(reference).transpose()?;
        reference.iter().try_for_each(|r| self.check_reference(r))?;
        Ok(Voice { x_vector, reference })
    }

    /// Refuses a transcript with more tokens than its recording has frames: the model would speak what is
    /// left of it.
    pub(super) fn check_reference(&self, r: &Reference) -> Result<(), ModelError> {
        let tokens = prompt::transcript_tokens(&self.talking()?.tokenizer, &r.transcript);
        let frames = r.codes.len() / self.codec.quantizers();
        // Codes that are no frames are refused where they are read.
        if frames > 0 && tokens > frames {
            let seconds = frames as f64 / self.files.codec.frame_rate();
            return Err(ModelError::LongTranscript { tokens, frames, seconds });
        }
        Ok(())
    }

    /// The encoders, shared by all callers that clone a voice at the moment.
    fn voice_encoder(&self, speaker: Option<SpeakerEncoderConfig>) -> Arc<VoiceEncoder> {
        let mut shared = self.voices.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let weights = || Arc::new(crate::Loader(self.files.weights.clone()));
            let speaker = speaker.map(|c| (c, weights() as _));
            let codec = (self.files.codec.clone(), weights() as _);
            let encoder = Arc::new(VoiceEncoder::new(self.device.clone(), speaker, codec));
            *shared = Arc::downgrade(&encoder);
            encoder
        })
    }
}
