//! Supertonic as one family among others: see [`crate::Family`].

use super::blocks::{Padding, Sizes};
use super::files::{self, Files, TAG};
use super::gguf;
use super::goldens::Comparer;
use super::networks::{Network, graphs};
use super::options::Options as Own;
use super::session::{Noise, Supertonic};
use super::speak::Pieces;
use super::stage::Stage;
use crate::hooks::{Goldens, StageProfile};
use crate::{
    Chunks, Description, Facts, Family, MatmulSize, Model, ModelError, ModelFiles, Opening, OptionSet,
    Options, Packing, PlaceOptions, Runs, Size, VoiceInfo,
};
use orate_graph::{Device, Graph, Pacing};
use orate_weights::{GgufFile, WeightSource};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Tokens of a greeting, and of longer first texts, which need other kernels.
const USUAL_TOKENS: [usize; 5] = [12, 30, 50, 80, 120];

/// Supertonic 1, 2 and 3, and voices of their structure.
pub static FAMILY: &Family = &Family {
    name: NAME,
    tag: TAG,
    options: Own::SPECS,
    expects: "onnx/vector_estimator.onnx, model.safetensors with tts.json, or a packed voice (.gguf)",
    detect: files::detect,
    open: |path, opening| match opening {
        // What is wrong with the model comes first.
        Opening::With { .. } => open(path).and(Err(crate::gguf::no_codec("model"))),
        _ => open(path),
    },
    networks: || Stage::ALL.map(Stage::name).into_iter().chain([SHARED]).collect(),
    network_of: |weight| {
        let owner = Stage::ALL.into_iter().find(|stage| stage.owns(weight));
        weight.starts_with("tts.").then(|| owner.map_or(SHARED, Stage::name))
    },
    describe_voice: |_| format!("for {NAME} models"),
    describe_file: |path| {
        let is_json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        is_json.then(|| describe_voice_file(path))
    },
};

const NAME: &str = "Supertonic";

fn open(path: &Path) -> Result<Box<dyn ModelFiles>, ModelError> {
    Ok(match crate::gguf::is_of(path, TAG) {
        true => Box::new(gguf::open(path)?),
        false => Box::new(Files::open(path)?),
    })
}

/// Loudness of the built-in voice over 100 sentences, in LUFS.
const OWN_LOUDNESS: i8 = -23;

/// Network of the weights that several stages read.
const SHARED: &str = "shared";

/// Opens a packed voice that is in memory.
///
/// # Errors
/// It lacks one of its parts, or one is damaged.
pub fn open_packed(file: GgufFile, origin: &str) -> Result<Box<dyn ModelFiles>, ModelError> {
    Ok(Box::new(Files::packed(file, origin.to_owned())?))
}

fn describe_voice_file(path: &Path) -> Result<Description, ModelError> {
    let voice: Value =
        files::parse(path, |text| serde_json::from_slice(text).map_err(|e| format!("not valid JSON: {e}")))?;
    let (Some(ttl), Some(dp)) = (voice.pointer("/style_ttl/dims"), voice.pointer("/style_dp/dims")) else {
        let problem = "JSON, but not a voice: it has no `style_ttl` and `style_dp` with `dims`";
        return Err(files::content(path, problem));
    };
    let mut facts = vec![("style_ttl", json!(ttl.to_string())), ("style_dp", json!(dp.to_string()))];
    if let Some(metadata) = voice.get("metadata").filter(|m| m.is_object()) {
        facts.push(("metadata", metadata.clone()));
    }
    Ok(Description { kind: "voice file".to_owned(), facts })
}

impl ModelFiles for Files {
    fn family(&self) -> &'static Family {
        FAMILY
    }

    fn facts(&self) -> Facts {
        let info = |name: &str| VoiceInfo { is_default: name == self.default_voice(), name: name.to_owned() };
        Facts {
            family: NAME,
            origin: self.origin.clone(),
            sample_rate: self.config.sample_rate,
            voices: self.voice_names().map(info).collect(),
            without_voices: "has no voices; name a voice file (.json) when speaking",
            loudness: self.version.is_none().then_some(OWN_LOUDNESS),
            texts_at_once: 1,
            kv: None,
            can_speak: true,
            precision_scope: &[],
            half_scope: &[],
            // Of the vector estimator: as many rows as a sentence has latent frames.
            typical_matmul: MatmulSize { rows: 72, width: 1024 },
        }
    }

    fn weights(&self) -> &Arc<dyn WeightSource> {
        &self.weights
    }

    fn graphs(&self, _: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        self.check()
    }

    fn usual_graphs(&self, _: Pacing, _: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        let steps = self.steps(&Own::default());
        let mut all = vec![];
        for tokens in USUAL_TOKENS {
            // Speech of usual speed.
            let frames = tokens * 9 / 10;
            let sizes = Sizes { batch: 1, tokens, frames, steps, padding: Padding::None };
            all.extend(graphs(&self.config, &*self.weights, sizes)?);
        }
        Ok(all)
    }

    fn describe(&self) -> Description {
        let (kind, languages) = match self.version {
            Some(version) => (format!("{NAME} {version}"), version.languages()),
            None => ("Orate voice".to_owned(), &[] as &[_]),
        };
        // Models without language tags were trained on English.
        let languages = if languages.is_empty() { &["en"] } else { languages };
        let voices: Vec<&str> = self.voice_names().collect();
        let default_voice = Some(self.default_voice()).filter(|name| voices.contains(name));
        let own = Own::default();
        let mut facts = vec![
            ("version", json!(self.config.tts_version)),
            ("sample rate", json!(self.config.sample_rate)),
            ("samples per latent frame", json!(self.config.samples_per_latent())),
            ("languages", json!(languages)),
            ("voices", json!(voices)),
            ("default voice", json!(default_voice)),
            ("default speed", json!((f64::from(self.speed(&own)) * 1e3).round() / 1e3)),
            ("default steps", json!(self.steps(&own))),
        ];
        if let Some(onnx) = &self.onnx {
            let f = onnx.facts();
            facts.push(("ONNX opset", json!(f.opset)));
            if let Some(g) = &f.guidance {
                let guidance = json!({ "conditional": g.conditional, "unconditional": g.unconditional });
                facts.push(("guidance", guidance));
            }
        }
        facts.extend(self.report.iter().flat_map(|report| report.facts()));
        Description { kind, facts }
    }

    fn packing(&self) -> Result<Packing, ModelError> {
        gguf::packing(self)
    }

    fn place(
        self: Box<Self>,
        device: Arc<dyn Device>,
        _: &PlaceOptions,
    ) -> Result<Arc<dyn Model>, ModelError> {
        Ok(Arc::new(Supertonic::new(*self, device)?))
    }
}

impl Model for Supertonic {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn files(&self) -> &dyn ModelFiles {
        Supertonic::files(self)
    }

    fn speak(self: Arc<Self>, text: &str, options: &Options) -> Result<Box<dyn Chunks>, ModelError> {
        Ok(Box::new(Pieces::new(self, text, options)?))
    }

    fn warm_up(self: Arc<Self>, options: &Options, callers: usize) -> Result<(), ModelError> {
        self.warm_up_rows(self.steps(options), callers)
    }

    fn plans(&self, size: Size, options: &Options) -> Result<Runs, ModelError> {
        let (Size { tokens, frames }, steps) = (size, self.steps(options));
        let sizes = Sizes { batch: 1, tokens, frames, steps, padding: Padding::None };
        let times = |network| if matches!(network, Network::Step { .. }) { steps } else { 1 };
        let run = |network| Ok((self.plan(network, sizes, false)?, times(network)));
        Ok(Runs {
            size: format!("{tokens} tokens, {frames} latent frames, {steps} steps"),
            what: format!("{steps} denoising steps"),
            plans: Network::ALL.into_iter().map(run).collect::<Result<_, ModelError>>()?,
        })
    }

    fn plans_made(&self) -> usize {
        self.plans.made()
    }

    fn weight_bytes(&self) -> u64 {
        self.plans.weight_bytes()
    }

    fn check_defaults(&self) -> Result<(), ModelError> {
        self.voice(self.files().default_voice()).map(drop)
    }

    fn goldens(self: Arc<Self>) -> Option<Box<dyn Goldens>> {
        Some(Box::new(Comparer(self)))
    }

    fn forced(self: Arc<Self>, size: Size, options: &Options) -> Result<Option<Box<dyn Chunks>>, ModelError> {
        Ok(Some(Box::new(Pieces::forced(self, size, options)?)))
    }

    fn profile(
        self: Arc<Self>,
        size: Size,
        options: &Options,
        runs: usize,
    ) -> Result<Vec<StageProfile>, ModelError> {
        let steps = self.steps(options);
        let mut s = self.session();
        let voice = self.voice(self.files().default_voice())?;
        s.set_text(&[(&vec![1; size.tokens], &voice)])?;
        s.durations()?;
        s.encode_text()?;
        s.prepare(&[size.frames], steps, Noise::Seed(0))?;
        s.step(0)?;
        let mut all = vec![];
        for (stage, network, times) in [
            (Stage::DurationPredictor, Network::DurationPredictor, 1),
            (Stage::TextEncoder, Network::TextEncoder, 1),
            (Stage::VectorEstimator, Network::Step { queries: false }, steps),
            (Stage::Vocoder, Network::Vocoder, 1),
        ] {
            let (plan, seconds) = s.profile(network)?;
            let mut profile = StageProfile { stage: stage.name(), plan, seconds, times };
            for _ in 1..runs {
                profile.keep_least(&s.profile(network)?.1);
            }
            all.push(profile);
        }
        Ok(all)
    }
}

impl Supertonic {
    fn steps(&self, options: &Options) -> usize {
        self.files().steps(&Own::read(&options.own))
    }
}
