//! Qwen3-TTS as one family among others: see [`crate::Family`].

use super::files::{NAME, facts};
use super::footprint::{footprint, usual_graphs};
use super::goldens::Comparer;
use super::speak::{Pieces, make_plans};
use super::talker::CacheSizes;
use super::talker_plans::{TalkerPlan, smallest_graphs};
use super::voice::{TAG, Voice};
use super::{
    CodecDecoder, Files, Network, Options as Own, Qwen3Tts, Settings, Variant, VoiceEncoder, codec_decoder,
    gguf,
};
use crate::decoding::session::{capacity, feed_capacity};
use crate::hooks::{Goldens, StageProfile, tone};
use crate::{
    Chunks, ClonedVoice, Cloning, Description, Facts, Family, Footprint, Model, ModelError, ModelFiles,
    Opening, OptionSet, Options, Packing, PlaceOptions, Profile, Runs, Size, SpeechLength,
};
use orate_graph::{CacheFormat, Device, Graph, Pacing};
use orate_weights::WeightSource;
use serde_json::json;
use std::sync::{Arc, PoisonError};

/// Qwen3-TTS at 12 Hz, and its codec alone.
pub static FAMILY: &Family = &Family {
    name: NAME,
    tag: TAG,
    options: Own::SPECS,
    expects: "config.json of the official repository, with its speech_tokenizer folder, or GGUF files",
    detect: |path| Files::detect(path) || gguf::detect(path),
    open: |path, opening| {
        Ok(Box::new(match opening {
            Opening::Goldens if Files::is_trimmed(path) => Files::open_trimmed(path)?,
            Opening::With { codec } if gguf::detect(path) => gguf::open(path, Some(codec))?,
            Opening::With { .. } => return Err(crate::gguf::no_codec("folder")),
            _ if gguf::detect(path) => gguf::open(path, None)?,
            _ => Files::open(path)?,
        }))
    },
    networks: || Network::ALL.map(Network::name).to_vec(),
    network_of: |weight| Network::of(weight).map(Network::name),
    describe_voice,
    describe_file: |_| None,
};

fn describe_voice(voice: &ClonedVoice) -> String {
    let Ok(voice) = Voice::try_from(voice) else { return "damaged".to_owned() };
    let manner = if voice.reference.is_some() { "voice and manner" } else { "voice" };
    let size = match voice.width() {
        1024 => " (0.6B)",
        2048 => " (1.7B)",
        _ => "",
    };
    format!("{manner}, for {NAME} Base models of width {}{size}", voice.width())
}

impl ModelFiles for Files {
    fn family(&self) -> &'static Family {
        FAMILY
    }

    fn facts(&self) -> Facts {
        facts(self, CacheFormat::default())
    }

    fn weights(&self) -> &Arc<dyn WeightSource> {
        &self.weights
    }

    fn computes_in_blocks(&self) -> bool {
        self.report.is_some()
    }

    fn graphs(&self, options: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        let mut all = vec![codec_decoder::smallest(&self.codec.decoder_config)?];
        if let Some(talking) = &self.talking {
            all.extend(smallest_graphs(&talking.config.talker_config, options.kv)?);
        }
        Ok(all)
    }

    fn usual_graphs(&self, pacing: Pacing, options: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        usual_graphs(self, pacing, options.kv)
    }

    /// For a recording of a second. Only Base models have encoders.
    fn encoder_graphs(&self) -> Result<Vec<Graph>, ModelError> {
        let base = self.talking.as_ref().filter(|t| t.config.tts_model_type == Variant::Base);
        let Some(talking) = base else { return Ok(vec![]) };
        let speaker = talking.config.speaker_encoder_config.as_ref();
        VoiceEncoder::graphs(speaker, &self.codec, self.codec.input_sample_rate as usize)
    }

    fn describe(&self) -> Description {
        let codec = &self.codec;
        let sample_rate = ("sample rate", json!(codec.output_sample_rate));
        let frames = [
            ("frames per second", json!(codec.frame_rate())),
            ("samples per frame", json!(codec.decode_upsample_rate)),
            ("codes per frame", json!(codec.decoder_config.num_quantizers)),
        ];
        let (kind, mut facts) = match &self.talking {
            None => (format!("{NAME} codec (12 Hz)"), vec![sample_rate]),
            Some(talking) => {
                let c = &talking.config;
                let speaker = match c.tts_model_type {
                    Variant::Base => "reference audio",
                    Variant::CustomVoice => "one of its own",
                    Variant::VoiceDesign => "a description",
                };
                let mut facts = vec![
                    ("variant", json!(c.tts_model_type.name())),
                    ("size", json!(c.size())),
                    sample_rate,
                    ("speaker", json!(speaker)),
                    ("languages", json!(c.languages())),
                ];
                for (name, all) in [("speakers", c.speakers()), ("dialects", c.dialects())] {
                    if !all.is_empty() {
                        facts.push((name, json!(all)));
                    }
                }
                facts.push(("text tokens", json!(talking.tokenizer.max_id() + 1)));
                (format!("{NAME} {} {}", c.size(), c.tts_model_type.name()), facts)
            }
        };
        facts.extend(frames);
        facts.extend(self.report.iter().flat_map(|report| report.facts()));
        Description { kind, facts }
    }

    fn packing(&self) -> Result<Packing, ModelError> {
        gguf::packing(self)
    }

    fn footprint(
        &self,
        device: &dyn Device,
        options: &PlaceOptions,
        length: SpeechLength,
    ) -> Result<Option<Footprint>, ModelError> {
        let frames = (length.speech * self.codec.frame_rate()).ceil() as usize;
        footprint(self, device, options.kv, frames, length.reference).map(Some)
    }

    /// A codec alone is placed too: it encodes, decodes and is verified. Asked to speak, it says what it
    /// lacks.
    fn place(
        self: Box<Self>,
        device: Arc<dyn Device>,
        options: &PlaceOptions,
    ) -> Result<Arc<dyn Model>, ModelError> {
        Ok(Qwen3Tts::with_cache(*self, device, options.kv))
    }
}

impl Model for Qwen3Tts {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn files(&self) -> &dyn ModelFiles {
        Qwen3Tts::files(self)
    }

    fn speak(self: Arc<Self>, text: &str, options: &Options) -> Result<Box<dyn Chunks>, ModelError> {
        if Qwen3Tts::files(&self).trimmed {
            let path = Qwen3Tts::files(&self).origin.clone().into();
            let problem = "a checkpoint that was cut down to what its goldens read cannot speak".to_owned();
            return Err(ModelError::NotAModel { path, problem });
        }
        Ok(Box::new(Pieces::new(self, text, options)?))
    }

    fn warm_up(self: Arc<Self>, options: &Options, callers: usize) -> Result<(), ModelError> {
        make_plans(&self, options, callers)
    }

    /// Those of the talker, with all text in the prompt.
    fn plans(&self, size: Size, _: &Options) -> Result<Runs, ModelError> {
        let Size { tokens, frames } = size;
        let sizes = CacheSizes { batch: 1, capacity: capacity(tokens + frames), kv: self.kv() };
        let talker = self.talker()?.network();
        let plans = TalkerPlan::of_utterance(sizes, (tokens, false), feed_capacity(1)).into_iter();
        Ok(Runs {
            size: format!("{tokens} rows of prompt, up to {frames} frames"),
            what: "one frame".to_owned(),
            plans: plans.map(|plan| Ok((talker.plan(plan, false)?, 1))).collect::<Result<_, ModelError>>()?,
        })
    }

    fn plans_made(&self) -> usize {
        self.talker.as_ref().map_or(0, |t| t.network().plans().made()) + self.codec().plans().made()
    }

    fn weight_bytes(&self) -> u64 {
        let encoders = self.voices.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        self.talker.as_ref().map_or(0, |t| t.network().plans().weight_bytes())
            + self.codec().plans().weight_bytes()
            + encoders.map_or(0, |v| v.weight_bytes())
    }

    fn cloning(&self) -> Result<&dyn Cloning, ModelError> {
        match self.talking()?.config.tts_model_type {
            Variant::Base => Ok(self),
            other => {
                let problem = "it cannot clone a voice; only Base models can".to_owned();
                Err(ModelError::Mode { variant: other.name(), problem })
            }
        }
    }

    fn goldens(self: Arc<Self>) -> Option<Box<dyn Goldens>> {
        Some(Box::new(Comparer(self)))
    }

    /// The first speaker, a description, or the voice of a tone.
    fn bench_options(&self) -> Result<Options, ModelError> {
        let options = Options::default();
        Ok(match self.talking()?.config.tts_model_type {
            Variant::CustomVoice => options,
            Variant::VoiceDesign => options.set("instruct", "A calm and clear voice."),
            Variant::Base => {
                let voice = Cloning::clone_voice(self, &tone(TONE_SECONDS, self.sample_rate()), None)?;
                Options { cloned: Some(Arc::new(voice)), ..options }
            }
        })
    }

    /// A frame of talker and predictor, and a piece of the codec: the frame's plan runs as often as the piece
    /// has frames.
    fn profile(
        self: Arc<Self>,
        _: Size,
        options: &Options,
        runs: usize,
    ) -> Result<Vec<StageProfile>, ModelError> {
        let (prompt, settings) = Pieces::new(self.clone(), "One, two, three.", options)?.first();
        let max_frames = FRAMES_BEFORE_PROFILE + runs.max(1);
        let mut session = self.start(&prompt, &Settings { max_frames, ..settings })?;
        session.set_look_ahead(false);
        for _ in 0..FRAMES_BEFORE_PROFILE {
            session.next_frame(&mut vec![])?;
        }
        let mut codec = self.codec().stream()?;
        Ok(vec![
            least(runs, ("frame", CodecDecoder::PIECE), || session.profile_frame())?,
            least(runs, ("codec_decoder", 1), || codec.profile())?,
        ])
    }
}

impl Cloning for Qwen3Tts {
    fn clone_voice(&self, samples: &[f32], transcript: Option<&str>) -> Result<ClonedVoice, ModelError> {
        Ok((&Qwen3Tts::clone_voice(self, samples, transcript)?).into())
    }

    fn continues_recordings(&self) -> bool {
        true
    }

    fn check_voice(&self, voice: &ClonedVoice) -> Result<(), ModelError> {
        let voice = Voice::try_from(voice)?;
        let width = self.talking()?.config.talker_config.transformer.hidden_size;
        if voice.width() != width {
            let problem = format!("it has {} values; this model needs {width} finite numbers", voice.width());
            return Err(ModelError::BadVoice { name: None, problem });
        }
        voice.reference.iter().try_for_each(|r| self.check_reference(r))
    }
}

// ---- timing -----------------------------------------------------------------------------------------------

/// Seconds of the tone that Base models clone.
const TONE_SECONDS: f32 = 2.0;

/// Frames that are made before those that are profiled.
const FRAMES_BEFORE_PROFILE: usize = 4;

/// A plan that is profiled `runs` times.
fn least(
    runs: usize,
    (stage, times): (&'static str, usize),
    mut profile: impl FnMut() -> Result<Profile, ModelError>,
) -> Result<StageProfile, ModelError> {
    let (plan, seconds) = profile()?;
    let mut all = StageProfile { stage, plan, seconds, times };
    for _ in 1..runs {
        all.keep_least(&profile()?.1);
    }
    Ok(all)
}
