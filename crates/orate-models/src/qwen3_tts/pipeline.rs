//! The model on a device: its plans, and the memories that utterances run in.

use super::config::{SpeakerEncoderConfig, TalkerConfig, Variant};
use super::error::QwenError;
use super::files::{Files, Talking};
use super::prompt::{self, Prompt, Request};
use super::prompt_rows;
use super::row_ids::RowIds;
use super::talker::{self, Sizes};
use super::voice::{Reference, Voice};
use super::{CodecDecoder, Past, VoiceEncoder, codec_decoder, frame};
use crate::decoding::batch::Batch;
use crate::decoding::kept_states::KeptStates;
use crate::decoding::session::Session;
use crate::decoding::shared_batch::{SharedBatch, Utterance};
use crate::decoding::shared_prompts::SharedPrompts;
use crate::runtime::{MemoryPool, PlanCache, PooledMemory};
use orate_graph::{CacheFormat, Device, Executable, Graph};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Plans kept for reuse. An utterance needs six; that of a frame has two thousand steps and takes some megabytes, one of a prompt on a CPU 0.1 MB.
/// Warming up makes most for sixteen callers of a described voice on a CPU: 257.
const PLANS_KEPT: usize = 320;

/// Memories of finished utterances kept for reuse: of as many as may speak at once.
const MEMORIES_KEPT: usize = Batch::MOST;

/// Bytes of states of prompts that are kept. A row of the released models takes 229 kB, and most prompts begin with ten to sixty.
pub(crate) const PREFIX_BYTES: usize = 128 << 20;

/// What a plan computes, and everything its graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Network {
    /// Ids to rows, some of them with an x-vector or frames.
    Prompt { time: usize, reference: bool },
    /// Ids to rows of text that is fed later.
    Trailing { text_rows: usize },
    /// Rows to the state in front of a frame.
    Prefill { sizes: Sizes, time: usize },
    /// A frame.
    Frame { sizes: Sizes, text_rows: usize },
    /// A frame whose codes are known.
    GivenFrame { sizes: Sizes, text_rows: usize },
}

/// A Qwen3-TTS model on a device. Shared by any number of threads.
pub struct Qwen3Tts {
    files: Files,
    device: Arc<dyn Device>,
    /// Of the talker's cache.
    kv: CacheFormat,
    /// By network, and whether taps are recorded.
    plans: PlanCache<(Network, bool)>,
    memories: Arc<MemoryPool>,
    codec: Arc<CodecDecoder>,
    /// While somebody clones a voice.
    voices: Mutex<Weak<VoiceEncoder>>,
    /// Keys and values of the fixed rows of prompts.
    pub(crate) prefixes: KeptStates<RowIds>,
    together: SharedBatch,
    prompts: SharedPrompts,
    pub(super) facts: crate::Facts,
}

impl Qwen3Tts {
    /// Puts a model on a device, with keys and values in f32. Weights are read when they are first needed.
    pub fn new(files: Files, device: Arc<dyn Device>) -> Arc<Qwen3Tts> {
        Self::with_cache(files, device, CacheFormat::F32)
    }

    /// As [`Qwen3Tts::new`], with the talker's keys and values kept in a format. Those of the code predictor live as long as a frame,
    /// and stay f32.
    pub fn with_cache(files: Files, device: Arc<dyn Device>, kv: CacheFormat) -> Arc<Qwen3Tts> {
        let weights = Arc::new(crate::Loader(files.weights.clone()));
        let plans = PlanCache::new(device.clone(), weights.clone(), PLANS_KEPT);
        let memories = MemoryPool::new(device.clone(), MEMORIES_KEPT);
        let codec = CodecDecoder::new(files.codec.decoder_config.clone(), device.clone(), weights);
        let (codec, voices) = (Arc::new(codec), Mutex::default());
        let prefixes = KeptStates::new(PREFIX_BYTES);
        let (together, prompts) = (SharedBatch::default(), SharedPrompts::default());
        let facts = super::family::facts(&files, kv);
        Arc::new(Qwen3Tts {
            files,
            device,
            kv,
            plans,
            memories,
            codec,
            voices,
            prefixes,
            together,
            prompts,
            facts,
        })
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

    /// Bytes of weights on the device at this moment.
    pub fn weight_bytes(&self) -> u64 {
        let listening = self.voices.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let listening = listening.map_or(0, |v| v.weight_bytes());
        self.plans.weight_bytes() + self.codec.weight_bytes() + listening
    }

    /// Plans of talker and codec that were made so far, those that are not kept any more included.
    pub fn plans_made(&self) -> usize {
        self.plans.made() + self.codec.plans_made()
    }

    /// Samples per second of the output.
    pub fn sample_rate(&self) -> u32 {
        self.files.codec.output_sample_rate
    }

    /// The talking part.
    ///
    /// # Errors
    /// The files are those of a codec alone.
    pub fn talking(&self) -> Result<&Talking, QwenError> {
        self.files.talking.as_ref().ok_or_else(|| QwenError::NoTalker { path: self.files.origin.clone() })
    }

    /// A request as ids.
    ///
    /// # Errors
    /// See [`Prompt::new`].
    pub fn prompt(&self, request: &Request<'_>) -> Result<Prompt, QwenError> {
        let talking = self.talking()?;
        Prompt::new(&talking.config, &talking.tokenizer, request)
    }

    /// Starts an utterance.
    ///
    /// # Errors
    /// The files are those of a codec alone.
    pub fn session(self: &Arc<Self>) -> Result<Session, QwenError> {
        self.talking()?;
        Ok(Session::new(self.clone(), self.memory()))
    }

    /// Forgets the states that are kept of prompts and references. What is spoken next is the same, and begins later.
    pub fn forget_prefixes(&self) {
        self.prefixes.clear();
        self.codec.forget_references();
    }

    /// Starts an utterance whose frames are made together with those of others that are under way.
    ///
    /// # Errors
    /// The files are those of a codec alone.
    pub fn utterance(self: &Arc<Self>) -> Result<Utterance, QwenError> {
        Ok(Utterance::new(self.clone(), self.session()?))
    }

    pub(crate) fn decoding_batch(&self) -> &SharedBatch {
        &self.together
    }

    pub(crate) fn shared_prompts(&self) -> &SharedPrompts {
        &self.prompts
    }

    /// What turns codes into samples. It has memories of its own, so that it can run beside the talker.
    pub fn codec(&self) -> &Arc<CodecDecoder> {
        &self.codec
    }

    /// The voice of a recording at [`Qwen3Tts::sample_rate`], mono and trimmed. With a transcript of it, its manner too.
    ///
    /// # Errors
    /// The model is made for another kind of speaker, the transcript has no letter or digit or is longer than the recording can be, the
    /// recording is too short, or the device failed.
    pub fn clone_voice(&self, samples: &[f32], transcript: Option<&str>) -> Result<Voice, QwenError> {
        let config = &self.talking()?.config;
        if config.tts_model_type != Variant::Base {
            let problem = "it cannot clone a voice; only Base models can".to_owned();
            return Err(QwenError::Mode { variant: config.tts_model_type.name(), problem });
        }
        if transcript.is_some_and(|t| !t.chars().any(char::is_alphanumeric)) {
            return Err(QwenError::EmptyText { what: "transcript" });
        }
        let encoder = self.voice_encoder(config.speaker_encoder_config.clone());
        let x_vector = encoder.x_vector(samples)?.ok_or_else(|| QwenError::Mode {
            variant: config.tts_model_type.name(),
            problem: "it has no speaker encoder".to_owned(),
        })?;
        if let Some(x) = x_vector.iter().find(|x| !x.is_finite()) {
            let problem = format!(
                "its speaker encoder returned {x}; are its weights undamaged, and does their format have the range \
                 that they need (bf16 or f32)?"
            );
            return Err(QwenError::Content { path: self.files.origin.clone().into(), problem });
        }
        let reference = match transcript {
            Some(text) => Some(Reference { transcript: text.to_owned(), codes: encoder.codes(samples)? }),
            None => None,
        };
        let voice = Voice { x_vector, reference };
        self.check_voice(&voice)?;
        Ok(voice)
    }

    /// Refuses a voice whose transcript cannot be that of its recording.
    ///
    /// # Errors
    /// The transcript has no letter or digit, or more tokens than the recording has frames: the model would speak what is left of it.
    pub fn check_voice(&self, voice: &Voice) -> Result<(), QwenError> {
        let Some(Reference { transcript, codes }) = &voice.reference else { return Ok(()) };
        if !transcript.chars().any(char::is_alphanumeric) {
            return Err(QwenError::EmptyText { what: "transcript" });
        }
        let tokens = prompt::transcript_tokens(&self.talking()?.tokenizer, transcript);
        let frames = codes.len() / self.codec.quantizers();
        // Codes that are no frames are refused where they are read.
        if frames > 0 && tokens > frames {
            let seconds = frames as f64 / self.files.codec.frame_rate();
            return Err(QwenError::LongTranscript { tokens, frames, seconds });
        }
        Ok(())
    }

    /// The networks that listen, shared by all who clone a voice at this moment.
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

    pub(crate) fn memory(&self) -> PooledMemory {
        self.memories.take()
    }

    /// The runnable plan of a network, compiled if it is not kept.
    pub(crate) fn plan(&self, network: Network, taps: bool) -> Result<Arc<dyn Executable>, QwenError> {
        self.plans.get((network, taps), |_| self.graph(network, taps))
    }

    fn graph(&self, network: Network, taps: bool) -> Result<Graph, QwenError> {
        let new = |name: &str| {
            let g = Graph::new(name);
            if taps { g.with_taps() } else { g }
        };
        talking_graph(&self.talking()?.config.talker_config, network, new)
    }

    /// The talker's plans for an utterance, for `explain`: `rows` rows of prompt, all text in it, and `frames` frames.
    ///
    /// # Errors
    /// A device that cannot run them.
    pub fn plans(&self, rows: usize, frames: usize) -> Result<Vec<Arc<dyn Executable>>, QwenError> {
        let capacity = crate::decoding::session::capacity(rows + frames);
        let sizes = Sizes { batch: 1, capacity, kv: self.kv };
        let text_rows = crate::decoding::session::text_capacity(1);
        [
            Network::Prompt { time: rows, reference: false },
            Network::Trailing { text_rows },
            Network::Prefill { sizes, time: rows },
            Network::Frame { sizes, text_rows },
        ]
        .into_iter()
        .map(|network| self.plan(network, false))
        .collect()
    }
}

impl Files {
    /// Every network that speaks, as small as it may be.
    ///
    /// # Errors
    /// The configuration contradicts itself, or the format does not take keys as wide as the model's.
    pub fn graphs(&self, kv: CacheFormat) -> Result<Vec<Graph>, QwenError> {
        let mut g = Graph::new("codec_decoder");
        codec_decoder::build(&mut g, &self.codec.decoder_config, Past::Stream, 1, 1)?;
        let mut all = vec![g];
        if let Some(talking) = &self.talking {
            all.extend(talking_graphs(&talking.config.talker_config, kv)?);
        }
        Ok(all)
    }

    /// Every network that listens to a recording, for one of a second. Only Base models have any.
    ///
    /// # Errors
    /// The configuration contradicts itself.
    pub fn listening_graphs(&self) -> Result<Vec<Graph>, QwenError> {
        let base = self.talking.as_ref().filter(|t| t.config.tts_model_type == Variant::Base);
        let Some(talking) = base else { return Ok(vec![]) };
        let speaker = talking.config.speaker_encoder_config.as_ref();
        VoiceEncoder::graphs(speaker, &self.codec, self.codec.input_sample_rate as usize)
    }
}

/// All networks of the talking part, as small as they may be.
pub(super) fn talking_graphs(c: &TalkerConfig, kv: CacheFormat) -> Result<Vec<Graph>, QwenError> {
    let sizes = Sizes { batch: 1, capacity: 8, kv };
    let networks = [
        Network::Prompt { time: 4, reference: true },
        Network::Trailing { text_rows: 1 },
        Network::Prefill { sizes, time: 4 },
        Network::Frame { sizes, text_rows: 1 },
    ];
    networks.into_iter().map(|network| talking_graph(c, network, |name| Graph::new(name))).collect()
}

/// The graph of a network of the talking part.
pub(crate) fn talking_graph(
    c: &TalkerConfig,
    network: Network,
    new: impl Fn(&str) -> Graph,
) -> Result<Graph, QwenError> {
    Ok(match network {
        Network::Prompt { time, reference } => {
            let mut g = new("prompt");
            prompt_rows::build(&mut g, c, time, reference)?;
            g
        }
        Network::Trailing { text_rows } => {
            let mut g = new("trailing text");
            prompt_rows::trailing(&mut g, c, text_rows)?;
            g
        }
        Network::Prefill { sizes, time } => {
            let mut g = new("prefill");
            talker::prefill(&mut g, c, sizes, time)?;
            g
        }
        Network::Frame { sizes, text_rows } => {
            let mut g = new("frame");
            frame::build(&mut g, c, sizes, text_rows)?;
            g
        }
        Network::GivenFrame { sizes, text_rows } => {
            let mut g = new("frame of given codes");
            frame::of_given_codes(&mut g, c, sizes, text_rows)?;
            g
        }
    })
}
