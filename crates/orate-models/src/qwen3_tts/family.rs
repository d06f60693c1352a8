//! Qwen3-TTS as one family among others: see [`crate::Family`].

use super::goldens::Comparer;
use super::speak::{Pieces, make_plans};
use super::voice::{TAG, Voice};
use super::{
    Batch, CodecDecoder, Files, Network, Options as Own, Qwen3Tts, Request, Settings, Speaker, Variant,
};
use crate::hooks::{Goldens, StageProfile};
use crate::{
    Chunks, ClonedVoice, Cloning, Description, Facts, Family, Footprint, MatmulSize, Model, ModelError,
    ModelFiles, Opening, OptionSet, Options, PlaceOptions, Runs, Size, SpeechLength, VoiceInfo,
};
use orate_graph::{CacheFormat, Device, Graph};
use orate_weights::WeightSource;
use serde_json::json;
use std::sync::Arc;

/// Qwen3-TTS at 12 Hz, and its codec alone.
pub static FAMILY: &Family = &Family {
    name: NAME,
    tag: TAG,
    options: Own::SPECS,
    expects: "config.json of the official repository, with its speech_tokenizer folder",
    detect: Files::detect,
    open: |path, opening| {
        Ok(Box::new(match opening {
            Opening::Goldens if Files::is_trimmed(path) => Files::open_trimmed(path)?,
            _ => Files::open(path)?,
        }))
    },
    networks: || Network::ALL.map(Network::name).to_vec(),
    network_of: |weight| Network::of(weight).map(Network::name),
    describe_voice,
    describe_file: |_| None,
};

const NAME: &str = "Qwen3-TTS";

/// Weights that every frame reads: talker and code predictor. The codec makes the samples, hardly gains by
/// fewer bits, and is stored in another format.
const TALKER: &str = "talker.*";

/// A matmul of the talker, which makes one frame at a time.
const TYPICAL_MATMUL: MatmulSize = MatmulSize { rows: 1, width: 2048 };

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

    fn graphs(&self, options: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        Files::graphs(self, options.kv)
    }

    fn encoder_graphs(&self) -> Result<Vec<Graph>, ModelError> {
        self.listening_graphs()
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
        Description { kind, facts }
    }

    fn footprint(
        &self,
        device: &dyn Device,
        options: &PlaceOptions,
        length: SpeechLength,
    ) -> Result<Option<Footprint>, ModelError> {
        let frames = (length.speech * self.codec.frame_rate()).ceil() as usize;
        Files::footprint(self, device, options.kv, frames, length.reference).map(Some)
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

pub(super) fn facts(files: &Files, kv: CacheFormat) -> Facts {
    let config = files.talking.as_ref().map(|t| &t.config);
    let names = config.map(|c| c.speakers()).unwrap_or_default();
    let info = |(i, name): (usize, &str)| VoiceInfo { name: name.to_owned(), is_default: i == 0 };
    Facts {
        family: NAME,
        origin: files.origin.clone(),
        sample_rate: files.codec.output_sample_rate,
        voices: names.into_iter().enumerate().map(info).collect(),
        without_voices: match config.map(|c| c.tts_model_type) {
            None => "is a codec without a talker, which has no voices",
            Some(Variant::Base) => {
                "has no voices of its own, and none that fits it is kept; `orate voices add` makes one"
            }
            Some(_) => "has no voices; describe one with --instruct when speaking",
        },
        texts_at_once: Batch::MOST,
        kv: Some(kv),
        can_speak: files.talking.is_some(),
        precision_scope: Some(TALKER),
        typical_matmul: TYPICAL_MATMUL,
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

    fn plans(&self, size: Size, _: &Options) -> Result<Runs, ModelError> {
        let Size { tokens, frames } = size;
        Ok(Runs {
            size: format!("{tokens} rows of prompt, up to {frames} frames"),
            what: "one frame".to_owned(),
            plans: Qwen3Tts::plans(self, tokens, frames)?.into_iter().map(|plan| (plan, 1)).collect(),
        })
    }

    fn plans_made(&self) -> usize {
        Qwen3Tts::plans_made(self)
    }

    fn weight_bytes(&self) -> u64 {
        Qwen3Tts::weight_bytes(self)
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
            Variant::VoiceDesign => options.set("instruct", DESCRIPTION),
            Variant::Base => {
                let voice = Cloning::clone_voice(self, &tone(self.sample_rate()), None)?;
                Options { cloned: Some(Arc::new(voice)), ..options }
            }
        })
    }

    /// A frame of talker and predictor, and a piece of the codec: the frame's plan runs as often as the piece
    /// has frames.
    fn profile(&self, _: Size, options: &Options, runs: usize) -> Result<Vec<StageProfile>, ModelError> {
        let talking = self.talking()?;
        let cloned = options.cloned.as_deref().map(Voice::try_from).transpose()?;
        let speaker = match (&cloned, talking.config.speakers().first()) {
            (Some(voice), _) => voice.speaker(),
            (None, Some(name)) => Speaker::Named(name),
            (None, None) => Speaker::Described,
        };
        let own = Own::read(&options.own);
        let (language, instruct) = (options.language.as_deref(), own.instruct.as_deref());
        let text = "One, two, three.";
        let prompt = self.prompt(&Request { text, speaker, language, instruct, feeding: None })?;
        let max_frames = FRAMES_BEFORE_PROFILE + runs.max(1);
        let settings = Settings { max_frames, ..Settings::new(&talking.generation, options.seed) };
        let mut session = self.start(&prompt, &settings)?;
        session.set_look_ahead(false);
        for _ in 0..FRAMES_BEFORE_PROFILE {
            session.next_frame(&mut vec![])?;
        }
        let (plan, seconds) = session.profile_frame()?;
        let mut frame = StageProfile { stage: "frame", plan, seconds, times: CodecDecoder::PIECE };
        for _ in 1..runs {
            frame.keep_least(&session.profile_frame()?.1);
        }
        let mut codec = self.codec().stream()?;
        let (plan, seconds) = codec.profile()?;
        let mut piece = StageProfile { stage: "codec_decoder", plan, seconds, times: 1 };
        for _ in 1..runs {
            piece.keep_least(&codec.profile()?.1);
        }
        Ok(vec![frame, piece])
    }
}

impl Cloning for Qwen3Tts {
    fn clone_voice(&self, samples: &[f32], transcript: Option<&str>) -> Result<ClonedVoice, ModelError> {
        Ok((&Qwen3Tts::clone_voice(self, samples, transcript)?).into())
    }

    fn check_voice(&self, voice: &ClonedVoice) -> Result<(), ModelError> {
        let voice = Voice::try_from(voice)?;
        let width = self.talking()?.config.talker_config.transformer.hidden_size;
        if voice.width() != width {
            let problem = format!("it has {} values; this model needs {width} finite numbers", voice.width());
            return Err(ModelError::BadVoice { name: None, problem });
        }
        Qwen3Tts::check_voice(self, &voice)
    }
}

// ---- timing
// ------------------------------------------------------------------------------------------------------

/// Whom VoiceDesign models speak as where nothing is said.
const DESCRIPTION: &str = "A calm and clear voice.";

/// Seconds of the tone that Base models clone, its frequency in Hz, and how often a second it swells.
const TONE: (f32, f32, f32) = (2.0, 180.0, 3.0);

/// Frames that are made before those that are profiled.
const FRAMES_BEFORE_PROFILE: usize = 4;

/// A tone with overtones that swells and fades, as a voice does.
fn tone(sample_rate: u32) -> Vec<f32> {
    let (seconds, pitch, swell) = TONE;
    let samples = (seconds * sample_rate as f32) as usize;
    let turn = |hz: f32, i: usize| (std::f32::consts::TAU * hz * i as f32 / sample_rate as f32).sin();
    let voiced = |i: usize| (1..=8).map(|k| turn(pitch * k as f32, i) / k as f32).sum::<f32>();
    (0..samples).map(|i| 0.2 * voiced(i) * (0.6 + 0.4 * turn(swell, i))).collect()
}
