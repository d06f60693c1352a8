//! A family of models that hums a tone for each letter: the example of docs/add-a-model.md. Nothing outside
//! of this folder knows it; [`HUM`] is all that an engine or a program needs. [`sing`] is an autoregressive
//! one.
//!
//! ```text
//! text ─ one id for each letter      ids       i32 [1, T]   0 is a space, 1 is a
//! ids  ─ loudness of its harmonics   [1, T, H]              letters.weight [27, H]
//!      ─ samples                     [1, T, S]              VOICE.weight [H, S], times the volume
//!
//! folder/   hum.json   {"sample_rate": 8000, "voices": ["low", "high"]}
//!           hum.safetensors
//! ```
#![allow(dead_code, reason = "each test program uses a part")]

pub mod sing;
pub mod write;

use orate::hooks::{Comparison, Goldens};
use orate::{
    Chunk, Chunks, Conversion, Description, Facts, Family, Model, ModelError, ModelFiles, Opening, OptionSet,
    Options, Runs, Size, VoiceInfo,
};
use orate_graph::{DType, Device, Executable, Factor, Graph, GraphError, Weight};
use orate_models::pieces::Progress;
use orate_models::{Loader, MatmulSize, MemoryPool, PlaceOptions, PlanCache, checkpoint};
use orate_text::{TextError, Traced};
use orate_weights::{SafeTensors, WeightSource};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

// ---- the network ------------------------------------------------------------------------------------------

/// Ids: space and 26 letters.
const LETTERS: usize = 27;
/// Harmonics of a tone.
const HARMONICS: usize = 8;
/// Samples of a letter.
const SAMPLES: usize = 400;
/// Letters that are hummed at once.
const MOST_LETTERS: usize = 60;

/// Letters to samples `[1, T, S]`.
fn hum(g: &mut Graph, voice: &str, letters: usize) -> Result<(), GraphError> {
    let ids = g.input("ids", DType::I32, [1, letters])?;
    let volume = g.scalar("volume");
    let x = g.embedding(ids, Weight::named("letters.weight", [LETTERS, HARMONICS]))?;
    let x = g.matmul(x, Weight::named(format!("{voice}.weight"), [HARMONICS, SAMPLES]))?;
    let x = g.scale(x, Factor::Scalar(volume))?;
    g.output("wav", x)
}

// ---- the family -------------------------------------------------------------------------------------------

/// What an engine, or a program with this family, is given.
pub static HUM: &Family = &Family {
    name: "Hum",
    tag: "hum",
    options: HumOptions::SPECS,
    expects: "hum.json",
    detect: |path| path.join("hum.json").exists(),
    open,
    networks: || vec!["hum"],
    network_of: |_| Some("hum"),
    describe_voice: |_| "for Hum models".to_owned(),
    describe_file: |_| None,
};

orate_models::options! {
    /// What models that hum can be asked for.
    pub struct HumOptions {
        /// How loud it hums, 0 to 1.
        volume: f32 => { range: Some((0.0, 1.0)), default: "0.5", is_common: true, converts: true },
    }
}

fn open(path: &Path, _: Opening<'_>) -> Result<Box<dyn ModelFiles>, ModelError> {
    let config = Config::read(&path.join("hum.json"))?;
    let weights = SafeTensors::open(path.join("hum.safetensors"))?;
    let files = HumFiles { origin: path.display().to_string(), config, weights: Arc::new(weights) };
    // A wrong file fails here and not in the sound.
    let expected = checkpoint::read_by(&files.graphs(&PlaceOptions::default())?);
    checkpoint::compare(&*files.weights, "hum.json", &expected, |_| false)?;
    Ok(Box::new(files))
}

// ---- its files --------------------------------------------------------------------------------------------

/// `hum.json`
#[derive(Deserialize)]
struct Config {
    sample_rate: u32,
    voices: Vec<String>,
}

impl Config {
    fn read(path: &Path) -> Result<Config, ModelError> {
        let text = std::fs::read(path).map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
        let content = |problem: String| ModelError::Content { path: path.to_owned(), problem };
        serde_json::from_slice(&text).map_err(|e| content(e.to_string()))
    }
}

struct HumFiles {
    origin: String,
    config: Config,
    weights: Arc<dyn WeightSource>,
}

impl ModelFiles for HumFiles {
    fn family(&self) -> &'static Family {
        HUM
    }

    fn facts(&self) -> Facts {
        let info = |(i, name): (usize, &String)| VoiceInfo { name: name.clone(), is_default: i == 0 };
        Facts {
            family: "Hum",
            origin: self.origin.clone(),
            sample_rate: self.config.sample_rate,
            voices: self.config.voices.iter().enumerate().map(info).collect(),
            without_voices: "has no voices; list some in hum.json",
            loudness: None,
            texts_at_once: 1,
            kv: None,
            can_speak: true,
            precision_scope: &[],
            half_scope: &[],
            typical_matmul: MatmulSize { rows: MOST_LETTERS, width: SAMPLES },
        }
    }

    fn weights(&self) -> &Arc<dyn WeightSource> {
        &self.weights
    }

    fn graphs(&self, _: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        let graph = |voice: &String| {
            let mut g = Graph::new("hum");
            hum(&mut g, voice, 1)?;
            Ok(g)
        };
        self.config.voices.iter().map(graph).collect()
    }

    fn describe(&self) -> Description {
        let facts = vec![
            ("sample rate", self.config.sample_rate.into()),
            ("voices", self.config.voices.clone().into()),
        ];
        Description { kind: "Hum".to_owned(), facts }
    }

    fn place(
        self: Box<Self>,
        device: Arc<dyn Device>,
        _: &PlaceOptions,
    ) -> Result<Arc<dyn Model>, ModelError> {
        let facts = self.facts();
        let plans = PlanCache::new(device.clone(), Arc::new(Loader(self.weights.clone())), 16);
        Ok(Arc::new(HumModel { files: *self, facts, plans, memories: MemoryPool::new(device, 4) }))
    }
}

// ---- on a device ------------------------------------------------------------------------------------------

struct HumModel {
    files: HumFiles,
    facts: Facts,
    /// By voice and letters.
    plans: PlanCache<(String, usize)>,
    memories: Arc<MemoryPool>,
}

impl HumModel {
    fn plan(&self, voice: &str, letters: usize) -> Result<Arc<dyn Executable>, ModelError> {
        self.plans.get((voice.to_owned(), letters), |(voice, letters)| {
            let mut g = Graph::new("hum");
            hum(&mut g, voice, *letters)?;
            Ok(g)
        })
    }

    /// Samples of some ids.
    fn run(&self, voice: &str, ids: &[i32], volume: f32) -> Result<(Vec<f32>, orate::Counters), ModelError> {
        let plan = self.plan(voice, ids.len())?;
        let mut memory = self.memories.take();
        memory.get().write_i32("ids", &[1, ids.len()].into(), ids)?;
        memory.get().set_scalar("volume", volume);
        plan.run(memory.get())?;
        let mut samples = vec![];
        memory.get().read_f32("wav", &mut samples)?;
        Ok((samples, memory.counters()))
    }
}

impl Model for HumModel {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn files(&self) -> &dyn ModelFiles {
        &self.files
    }

    fn speak(self: Arc<Self>, text: &str, options: &Options) -> Result<Box<dyn Chunks>, ModelError> {
        let known = &self.files.config.voices;
        let voice = options.voice.as_ref().unwrap_or(&known[0]);
        if !known.contains(voice) {
            return Err(ModelError::UnknownVoice { name: voice.clone(), known: known.join(", ") });
        }
        let pieces: Vec<(Traced, Vec<i32>)> = Traced::from(text)
            .pieces(MOST_LETTERS)
            .into_iter()
            .map(|piece| (ids(&piece), piece))
            .filter(|(ids, _)| ids.iter().any(|id| *id > 0))
            .map(|(ids, piece)| (piece, ids))
            .collect();
        if pieces.is_empty() {
            return Err(TextError::Empty.into());
        }
        let voice = voice.clone();
        Ok(Box::new(Humming {
            pieces: pieces.into_iter(),
            volume: HumOptions::read(&options.own).volume.unwrap_or(0.5),
            progress: Progress::new(options),
            model: self,
            voice,
        }))
    }

    fn plans(&self, size: Size, _: &Options) -> Result<Runs, ModelError> {
        let plan = self.plan(&self.files.config.voices[0], size.tokens)?;
        Ok(Runs {
            size: format!("{} letters", size.tokens),
            what: "one piece".to_owned(),
            plans: vec![(plan, 1)],
        })
    }

    fn plans_made(&self) -> usize {
        self.plans.made()
    }

    fn weight_bytes(&self) -> u64 {
        self.plans.weight_bytes()
    }

    fn conversion(self: Arc<Self>) -> Option<Arc<dyn Conversion>> {
        Some(self)
    }

    fn goldens(self: Arc<Self>) -> Option<Box<dyn Goldens>> {
        Some(Box::new(HumGoldens(self)))
    }
}

impl Conversion for HumModel {
    /// Hums an `a` where there is sound.
    fn convert(
        self: Arc<Self>,
        samples: &[f32],
        sample_rate: u32,
        options: &Options,
    ) -> Result<Box<dyn Chunks>, ModelError> {
        let length = SAMPLES * sample_rate as usize / self.facts.sample_rate as usize;
        let letter = |part: &[f32]| if part.iter().any(|x| x.abs() > 0.01) { 'a' } else { ' ' };
        let text: String = samples.chunks(length.max(1)).map(letter).collect();
        self.speak(&text, &Options { silence: 0.0, ..options.clone() })
    }
}

/// Ids of the letters of a text; everything else is left out.
fn ids(text: &str) -> Vec<i32> {
    let id = |c: char| match c.to_ascii_lowercase() {
        c @ 'a'..='z' => Some(i32::from(c as u8 - b'a') + 1),
        ' ' => Some(0),
        _ => None,
    };
    text.chars().filter_map(id).collect()
}

/// What remains of a text.
struct Humming {
    model: Arc<HumModel>,
    voice: String,
    pieces: std::vec::IntoIter<(Traced, Vec<i32>)>,
    volume: f32,
    progress: Progress,
}

impl Chunks for Humming {
    fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        let (text, ids) = self.pieces.next()?;
        let ran = self.progress.cancel.check().and_then(|()| self.model.run(&self.voice, &ids, self.volume));
        Some(ran.map(|(samples, counters)| {
            let index = self.progress.index;
            self.progress.index += 1;
            let of_piece = Chunk { ends_piece: true, attempts: 1, ..Chunk::default() };
            Chunk { samples, text, index, counters, ..of_piece }
        }))
    }

    fn remaining(&self) -> usize {
        self.pieces.len()
    }

    fn remaining_chars(&self) -> usize {
        self.pieces.as_slice().iter().map(|(text, _)| text.chars().count()).sum()
    }
}

/// Goldens are a file of `ids` and the samples `wav` of the first voice at full volume, as the reference
/// computes them.
struct HumGoldens(Arc<HumModel>);

impl Goldens for HumGoldens {
    fn compare(&self, folder: &Path, comparison: &mut dyn Comparison) -> Result<(), ModelError> {
        let file = SafeTensors::open(folder.join("golden.safetensors"))?;
        if comparison.wants("hum") {
            let ids: Vec<i32> = file.get("ids")?.to_f32().into_iter().map(|id| id as i32).collect();
            let (samples, _) = self.0.run(&self.0.files.config.voices[0], &ids, 1.0)?;
            comparison.tensor("hum", "hum", "wav", &samples, &file.get("wav")?.to_f32());
        }
        Ok(())
    }
}
