//! Supertonic as one family among others: see [`crate::Family`].

use super::files::NAME;
use super::goldens::Comparer;
use super::speak::Pieces;
use super::{
    Files, Network, Noise, Options as Own, PlanKey, Sizes, SpeakOptions, Stage, Supertonic, TextRules, files,
};
use crate::hooks::{Bench, Goldens, StageProfile};
use crate::{
    Chunks, Description, Facts, Family, MatmulSize, Model, ModelError, ModelFiles, Opening, OptionSet,
    OptionSpec, Options, PlaceOptions, Runs, Size,
};
use orate_graph::{Device, Graph};
use orate_weights::{GgufFile, WeightSource};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Supertonic 1, 2 and 3, and voices of their structure.
pub static FAMILY: &dyn Family = &SupertonicFamily;

/// Networks that weights belong to, in the order in which they run; `shared` is what several read.
const NETWORKS: [&str; 5] = ["duration_predictor", "text_encoder", "vector_estimator", "vocoder", "shared"];

/// A matmul of the vector estimator: as many rows as a sentence has latent frames.
const TYPICAL_MATMUL: MatmulSize = MatmulSize { rows: 72, width: 1024 };

struct SupertonicFamily;

impl Family for SupertonicFamily {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tag(&self) -> &'static str {
        "supertonic"
    }

    fn options(&self) -> &'static [OptionSpec] {
        Own::SPECS
    }

    fn detect(&self, path: &Path) -> bool {
        files::detect(path)
    }

    fn expects(&self) -> &'static str {
        "onnx/vector_estimator.onnx, model.safetensors with tts.json, or a packed voice (.gguf)"
    }

    fn open(&self, path: &Path, _: Opening) -> Result<Box<dyn ModelFiles>, ModelError> {
        Ok(Box::new(Files::open(path)?))
    }

    fn networks(&self) -> Vec<&'static str> {
        NETWORKS.to_vec()
    }

    fn network_of(&self, weight: &str) -> Option<&'static str> {
        let name = weight.strip_prefix("tts.")?;
        let [duration_predictor, text_encoder, vector_estimator, vocoder, shared] = NETWORKS;
        let prefixes = [
            ("dp.", duration_predictor),
            ("ttl.text_encoder.", text_encoder),
            ("ttl.speech_prompted_text_encoder.", text_encoder),
            ("ttl.vector_field.", vector_estimator),
            ("ttl.uncond_masker.", vector_estimator),
            ("ttl.normalizer.", vocoder),
            ("ae.", vocoder),
        ];
        Some(prefixes.iter().find(|(p, _)| name.starts_with(p)).map_or(shared, |(_, network)| network))
    }

    fn describe_file(&self, path: &Path) -> Option<Result<Description, ModelError>> {
        let is_json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        is_json.then(|| describe_voice_file(path))
    }
}

/// Opens a packed voice that is in memory.
///
/// # Errors
/// It lacks one of its parts, or one is damaged.
pub fn open_packed(file: GgufFile, origin: &str) -> Result<Box<dyn ModelFiles>, ModelError> {
    Ok(Box::new(Files::packed(file, origin.to_owned())?))
}

fn describe_voice_file(path: &Path) -> Result<Description, ModelError> {
    let content = |problem: String| ModelError::Content { path: path.to_owned(), problem };
    let voice: Value = serde_json::from_slice(&crate::files::read(path)?)
        .map_err(|e| content(format!("not valid JSON: {e}")))?;
    let (Some(ttl), Some(dp)) = (voice.pointer("/style_ttl/dims"), voice.pointer("/style_dp/dims")) else {
        let problem = "JSON, but not a voice: it has no `style_ttl` and `style_dp` with `dims`";
        return Err(content(problem.to_owned()));
    };
    let shape = |v: &Value| json!(format!("{v}"));
    let mut facts = vec![("style_ttl", shape(ttl)), ("style_dp", shape(dp))];
    if let Some(metadata) = voice.get("metadata").filter(|m| m.is_object()) {
        facts.push(("metadata", metadata.clone()));
    }
    Ok(Description { kind: "voice file".to_owned(), facts })
}

impl ModelFiles for Files {
    fn family(&self) -> &'static dyn Family {
        FAMILY
    }

    fn origin(&self) -> &str {
        &self.origin
    }

    fn weights(&self) -> &Arc<dyn WeightSource> {
        &self.weights
    }

    fn graphs(&self, _: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        let sizes = Sizes { batch: 1, tokens: 4, frames: 2, steps: 1, padded: false };
        let key = |network: Network| PlanKey { network, sizes: network.relevant(sizes), taps: false };
        Network::ALL.into_iter().map(|network| self.graph(key(network))).collect()
    }

    fn typical_matmul(&self) -> MatmulSize {
        TYPICAL_MATMUL
    }

    fn describe(&self) -> Description {
        let (kind, languages) = match self.family {
            TextRules::Official(version) => (format!("{NAME} {version}"), version.languages()),
            TextRules::Own => ("Orate voice".to_owned(), &[] as &[_]),
        };
        // Models without language tags were trained on English.
        let languages = if languages.is_empty() { &["en"] } else { languages };
        let facts = self.facts();
        let default_voice = facts.voices.iter().find(|v| v.is_default).map(|v| json!(v.name));
        let voices: Vec<Value> = facts.voices.iter().map(|v| json!(v.name)).collect();
        let mut all = vec![
            ("version", json!(self.config.tts_version)),
            ("sample rate", json!(facts.sample_rate)),
            ("samples per latent frame", json!(self.config.samples_per_latent())),
            ("languages", json!(languages)),
            ("voices", json!(voices)),
            ("default voice", default_voice.unwrap_or(Value::Null)),
            ("default speed", json!((f64::from(self.default_speed()) * 1e3).round() / 1e3)),
        ];
        all.push(("default steps", json!(SpeakOptions::default().steps(&self.config))));
        if let Some(onnx) = self.onnx() {
            let f = onnx.facts();
            all.push(("ONNX opset", json!(f.opset)));
            if let Some(g) = &f.guidance {
                let guidance = json!({ "conditional": g.conditional, "unconditional": g.unconditional });
                all.push(("guidance", guidance));
            }
        }
        Description { kind, facts: all }
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

    fn plans(&self, size: Size, options: &Options) -> Result<Runs, ModelError> {
        let Size { tokens, frames } = size;
        let steps = SpeakOptions::of(Supertonic::files(self), options).steps(&Supertonic::files(self).config);
        let plans = Supertonic::plans(self, tokens, frames, steps)?.into_iter().zip(Network::ALL);
        let times = |network| if network == Network::Step { steps } else { 1 };
        Ok(Runs {
            size: format!("{tokens} tokens, {frames} latent frames, {steps} steps"),
            what: format!("{steps} denoising steps"),
            plans: plans.map(|(plan, network)| (plan, times(network))).collect(),
        })
    }

    fn plans_made(&self) -> usize {
        Supertonic::plans_made(self)
    }

    fn weight_bytes(&self) -> u64 {
        Supertonic::weight_bytes(self)
    }

    fn check_defaults(&self) -> Result<(), ModelError> {
        self.voice(self.files().default_voice()).map(drop)
    }

    fn goldens(self: Arc<Self>) -> Option<Box<dyn Goldens>> {
        Some(Box::new(Comparer(self)))
    }

    fn bench(self: Arc<Self>) -> Option<Box<dyn Bench>> {
        Some(Box::new(Timing(self)))
    }
}

/// The model, timed.
struct Timing(Arc<Supertonic>);

impl Bench for Timing {
    fn forced(&self, size: Size, options: &Options) -> Option<Result<Box<dyn Chunks>, ModelError>> {
        let pieces = Pieces::forced(self.0.clone(), size, options);
        Some(pieces.map(|pieces| Box::new(pieces) as Box<dyn Chunks>))
    }

    fn profile(&self, size: Size, options: &Options, runs: usize) -> Result<Vec<StageProfile>, ModelError> {
        let files = self.0.files();
        let steps = SpeakOptions::of(files, options).steps(&files.config);
        let mut s = self.0.session();
        s.set_forced(size.tokens)?;
        s.durations()?;
        s.encode_text()?;
        s.prepare(&[size.frames], steps, Noise::Seed(0))?;
        s.step(0)?;
        let mut all = vec![];
        for stage in Stage::ALL {
            let times = if stage == Stage::VectorEstimator { steps } else { 1 };
            let (plan, seconds) = s.profile(stage)?;
            let mut profile = StageProfile { stage: stage.name(), plan, seconds, times };
            for _ in 1..runs {
                profile.keep_least(&s.profile(stage)?.1);
            }
            all.push(profile);
        }
        Ok(all)
    }
}
