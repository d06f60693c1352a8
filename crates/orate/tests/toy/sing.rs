//! An autoregressive family over `orate_models::decoding`: it sings a note for each letter, drawn after the
//! note before.
//!
//! ```text
//! prompt   a start row and the first letter        rows [1, 2, D]     letters.weight [28, D]
//! frame    logits ─ sample ─ note                  codes i32 [B, 1]
//!          note row + row of the next letter ─ head ─ logits [B, 1, V]; the row after the last ends it
//! notes    ─ samples                               [1, F, S]          waves.weight [V, S]
//! ```

use super::{Config, HARMONICS, ids};
use orate::{
    Chunk, Chunks, Counters, Description, Facts, Family, FinishReason, Model, ModelError, ModelFiles,
    Opening, OptionSet, Options, Runs, Size, VoiceInfo,
};
use orate_graph::{
    ControlIds, DType, Device, Draw, Executable, Graph, GraphError, Memory, Op, Pacing, SampleRules, Weight,
};
use orate_models::decoding::{
    Autoregressive, CODES, Decoding, DrawSettings, Extent, FEED, FRAME, LAST, MemorySizes, POSITION, Pass,
    ROWS, SEED, Sampling, StartOptions, Step, Utterance,
};
use orate_models::{Loader, MatmulSize, MemoryPool, PlaceOptions, PlanCache, pieces};
use orate_text::{TextError, Traced};
use orate_weights::{SafeTensors, WeightSource};
use std::path::Path;
use std::sync::Arc;

/// Letters, and an id after the last one.
pub const ROW_IDS: usize = 28;
/// Id of the row that ends an utterance.
const END_OF_TEXT: i32 = 27;
/// Width of a row.
pub const WIDTH: usize = 16;
/// Notes, and the code that ends an utterance.
pub const CODES_KNOWN: usize = 9;
/// The code that ends an utterance.
const END: usize = 8;
/// Samples of a note.
pub const SAMPLES: usize = 400;
/// Letters that are sung at once.
const MOST_LETTERS: usize = 60;

const LOGITS: &str = "logits";
const SAMPLING: &str = "sampling";
/// Bytes of states of prompts that are kept.
const PREFIX_BYTES: usize = 1 << 16;

// ---- networks ---------------------------------------------------------------------------------------------

/// What a plan computes, and everything its graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Rows { output: &'static str, time: usize },
    Prefill { batch: usize, time: usize },
    Frame { batch: usize, feed: usize },
    Waves { frames: usize },
}

impl Network {
    fn graph(self) -> Result<Graph, GraphError> {
        let mut graph = Graph::new("sing");
        let g = &mut graph;
        let head = || Weight::named("head.weight", [WIDTH, CODES_KNOWN]);
        match self {
            Network::Rows { output, time } => {
                let ids = g.input("ids", DType::I32, [1, time])?;
                let rows = g.embedding(ids, Weight::named("letters.weight", [ROW_IDS, WIDTH]))?;
                g.output(output, rows)?;
            }
            Network::Prefill { batch, time } => {
                let rows = g.input(ROWS, DType::F32, [batch, time, WIDTH])?;
                let last = g.input(LAST, DType::I32, [batch])?;
                let row = g.row_at(rows, last)?;
                let logits = g.matmul(row, head())?;
                g.output(LOGITS, logits)?;
            }
            Network::Frame { batch, feed } => {
                let text = g.input(FEED, DType::F32, [batch, feed, WIDTH])?;
                let seed = g.input(SEED, DType::I32, [batch, 2])?;
                let settings = g.input(SAMPLING, DType::F32, [batch, 4])?;
                let number = g.state(FRAME, DType::I32, [batch])?;
                let position = g.state(POSITION, DType::I32, [batch])?;
                let logits = g.state(LOGITS, DType::F32, [batch, 1, CODES_KNOWN])?;
                let logits = g.reshape(logits, [batch, CODES_KNOWN])?;
                let controls = Some(ControlIds { first: END, end: END, min_draws: 0 });
                let draw = Draw { settings, seed, number };
                let rules = SampleRules { controls, ..SampleRules::default() };
                let code = g.sample(Op::Sample(rules), logits, draw, None)?;
                g.output(CODES, code)?;
                let note = g.embedding(code, Weight::named("notes.weight", [CODES_KNOWN, WIDTH]))?;
                let letter = g.row_at(text, number)?;
                let row = g.add(note, letter)?;
                let logits = g.matmul(row, head())?;
                g.update(LOGITS, logits)?;
                let (position, number) = (g.increment(position, 1)?, g.increment(number, 1)?);
                g.update(POSITION, position)?;
                g.update(FRAME, number)?;
            }
            Network::Waves { frames } => {
                let codes = g.input("notes", DType::I32, [1, frames])?;
                let wav = g.embedding(codes, Weight::named("waves.weight", [CODES_KNOWN, SAMPLES]))?;
                g.output("wav", wav)?;
            }
        }
        Ok(graph)
    }
}

/// The network that `decoding` decodes: plans, and how a prompt reaches them.
struct Singer(Arc<PlanCache<Network>>);

type Plan = Result<Arc<dyn Executable>, ModelError>;

impl Singer {
    fn plan(&self, network: Network) -> Plan {
        self.0.get(network, |network| Ok(network.graph()?))
    }
}

/// Ids of the letters of a piece.
struct Lyrics(Vec<i32>);

impl Lyrics {
    /// A start row and the first letter.
    fn rows(&self) -> [i32; 2] {
        [0, self.0[0]]
    }

    /// The other letters, one with each frame, and the end.
    fn feed(&self) -> Vec<i32> {
        self.0[1..].iter().copied().chain([END_OF_TEXT]).collect()
    }
}

impl Autoregressive for Singer {
    type Prompt = Lyrics;
    type Prefix = i32;

    fn facts(&self) -> orate_models::decoding::Facts {
        orate_models::decoding::Facts {
            codes: 1,
            end: END as i32,
            lanes: 1,
            positions: 4096,
            sampling: &[SAMPLING],
        }
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.0.device()
    }

    fn extent(&self, prompt: &Lyrics) -> Extent {
        Extent { rows: 2, fixed: 1, feed: prompt.feed().len() }
    }

    fn prefix(&self, prompt: &Lyrics) -> i32 {
        prompt.rows()[0]
    }

    fn rows_plan(&self, _: &Lyrics, pass: &Pass, _: bool) -> Plan {
        self.plan(Network::Rows { output: ROWS, time: pass.padded })
    }

    fn write_rows(&self, prompt: &Lyrics, pass: &Pass, memory: &mut dyn Memory) -> Result<(), ModelError> {
        let mut ids = prompt.rows()[pass.rows.clone()].to_vec();
        ids.resize(pass.padded, 0);
        Ok(memory.write_i32("ids", &[1, pass.padded].into(), &ids)?)
    }

    fn begin_plan(&self, feed: usize, _: bool) -> Result<Option<Arc<dyn Executable>>, ModelError> {
        self.plan(Network::Rows { output: FEED, time: feed }).map(Some)
    }

    fn write_begin(&self, prompt: &Lyrics, feed: usize, memory: &mut dyn Memory) -> Result<(), ModelError> {
        let mut ids = prompt.feed();
        ids.resize(feed, END_OF_TEXT);
        Ok(memory.write_i32("ids", &[1, feed].into(), &ids)?)
    }

    fn prefill_plan(&self, sizes: MemorySizes, time: usize, _: bool) -> Plan {
        self.plan(Network::Prefill { batch: sizes.batch, time })
    }

    fn frame_plan(&self, sizes: MemorySizes, _: bool) -> Plan {
        self.plan(Network::Frame { batch: sizes.batch, feed: sizes.feed })
    }
}

// ---- the family -------------------------------------------------------------------------------------------

/// What an engine, or a program with this family, is given.
pub static SING: &Family = &Family {
    name: "Sing",
    tag: "sing",
    options: SingOptions::SPECS,
    expects: "sing.json",
    detect: |path| path.join("sing.json").exists(),
    open,
    networks: Vec::new,
    network_of: |_| None,
    describe_voice: |_| "for Sing models".to_owned(),
    describe_file: |_| None,
};

orate_models::options! {
    /// What models that sing can be asked for.
    pub struct SingOptions {
        /// Divides the logits that notes are drawn from; 0 takes the likeliest.
        temperature: f32 => { range: Some((0.0, 100.0)), value_name: "T", default: "1", is_common: true },
    }
}

fn open(path: &Path, _: Opening<'_>) -> Result<Box<dyn ModelFiles>, ModelError> {
    let config = Config::read(&path.join("sing.json"))?;
    let weights = Arc::new(SafeTensors::open(path.join("sing.safetensors"))?);
    Ok(Box::new(SingFiles { origin: path.display().to_string(), config, weights }))
}

struct SingFiles {
    origin: String,
    config: Config,
    weights: Arc<dyn WeightSource>,
}

impl ModelFiles for SingFiles {
    fn family(&self) -> &'static Family {
        SING
    }

    fn facts(&self) -> Facts {
        Facts {
            family: "Sing",
            origin: self.origin.clone(),
            sample_rate: self.config.sample_rate,
            voices: vec![VoiceInfo { name: "singer".to_owned(), is_default: true }],
            without_voices: "",
            loudness: None,
            texts_at_once: Pacing::SHARED_THREADS.batch,
            kv: None,
            can_speak: true,
            precision_scope: &[],
            half_scope: &[],
            typical_matmul: MatmulSize { rows: 1, width: 64 },
        }
    }

    fn weights(&self) -> &Arc<dyn WeightSource> {
        &self.weights
    }

    fn graphs(&self, _: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        let networks = [
            Network::Rows { output: ROWS, time: 2 },
            Network::Prefill { batch: 1, time: 2 },
            Network::Frame { batch: 1, feed: 1 },
            Network::Waves { frames: 1 },
        ];
        networks.into_iter().map(|network| Ok(network.graph()?)).collect()
    }

    fn describe(&self) -> Description {
        Description { kind: "Sing".to_owned(), facts: vec![("sample rate", self.config.sample_rate.into())] }
    }

    fn place(
        self: Box<Self>,
        device: Arc<dyn Device>,
        _: &PlaceOptions,
    ) -> Result<Arc<dyn Model>, ModelError> {
        let facts = self.facts();
        let weights = Arc::new(Loader(self.weights.clone()));
        let plans = Arc::new(PlanCache::new(device.clone(), weights, 64));
        let decoding = Decoding::new(Singer(plans.clone()), PREFIX_BYTES);
        let most = device.pacing().batch;
        let memories = MemoryPool::new(device, most);
        Ok(Arc::new(SingModel { files: *self, facts, plans, decoding, memories }))
    }
}

struct SingModel {
    files: SingFiles,
    facts: Facts,
    plans: Arc<PlanCache<Network>>,
    decoding: Decoding<Singer>,
    memories: Arc<MemoryPool>,
}

impl SingModel {
    /// Samples of some notes.
    fn waves(&self, notes: &[i32]) -> Result<(Vec<f32>, Counters), ModelError> {
        let plan = self.decoding.network().plan(Network::Waves { frames: notes.len() })?;
        let mut memory = self.memories.take();
        memory.get().write_i32("notes", &[1, notes.len()].into(), notes)?;
        plan.run(memory.get())?;
        let mut samples = vec![];
        memory.get().read_f32("wav", &mut samples)?;
        Ok((samples, memory.counters()))
    }
}

impl Model for SingModel {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn files(&self) -> &dyn ModelFiles {
        &self.files
    }

    fn speak(self: Arc<Self>, text: &str, options: &Options) -> Result<Box<dyn Chunks>, ModelError> {
        let pieces = Traced::from(text).pieces(MOST_LETTERS).into_iter();
        let pieces = pieces.map(|piece| (ids(&piece), piece)).filter(|(ids, _)| !ids.is_empty());
        let pieces: Vec<(Vec<i32>, Traced)> = pieces.collect();
        if pieces.is_empty() {
            return Err(TextError::Empty.into());
        }
        let temperature = SingOptions::read(&options.own).temperature.unwrap_or(1.0);
        Ok(Box::new(Singing {
            pieces: pieces.into_iter(),
            sampling: Sampling { temperature, ..Sampling::PLAIN },
            progress: pieces::Progress::new(options),
            model: self,
        }))
    }

    fn warm_up(self: Arc<Self>, _: &Options, callers: usize) -> Result<(), ModelError> {
        self.decoding.prepare(&Lyrics(vec![1; MOST_LETTERS]), MOST_LETTERS, callers)
    }

    fn plans(&self, size: Size, _: &Options) -> Result<Runs, ModelError> {
        let frame = Network::Frame { batch: 1, feed: size.tokens };
        let plan = |network| -> Result<(Arc<dyn Executable>, usize), ModelError> {
            Ok((self.decoding.network().plan(network)?, 1))
        };
        Ok(Runs {
            size: format!("{} letters", size.tokens),
            what: "one note".to_owned(),
            plans: vec![plan(frame)?, plan(Network::Waves { frames: 1 })?],
        })
    }

    fn plans_made(&self) -> usize {
        self.plans.made()
    }

    fn weight_bytes(&self) -> u64 {
        self.plans.weight_bytes()
    }
}

/// What remains of a text: each piece is a chunk.
struct Singing {
    model: Arc<SingModel>,
    pieces: std::vec::IntoIter<(Vec<i32>, Traced)>,
    sampling: Sampling,
    progress: pieces::Progress,
}

impl Singing {
    fn sing(&mut self, ids: Vec<i32>, text: Traced) -> Result<Chunk, ModelError> {
        let max_frames = ids.len() + HARMONICS;
        let sampling = vec![self.sampling];
        let settings = DrawSettings { sampling, seed: self.progress.seed(), max_frames };
        let mut utterance: Utterance<Singer> =
            self.model.decoding.utterance(&Lyrics(ids), settings, StartOptions::default(), |_| Ok(()))?;
        let (mut notes, mut codes) = (vec![], vec![]);
        let finish = loop {
            self.progress.cancel.check()?;
            match utterance.next_frame(&mut codes)? {
                Step::Frame => notes.extend_from_slice(&codes),
                Step::End(FinishReason::Length) => break FinishReason::Runaway,
                Step::End(reason) => break reason,
            }
        };
        let (samples, waves) = self.model.waves(&notes)?;
        let (mut counters, prefix_rows) = (utterance.counters(), utterance.reused_rows());
        counters += waves;
        let index = self.progress.index;
        self.progress.index += 1;
        let of_piece = Chunk { ends_piece: true, attempts: 1, finish: Some(finish), ..Chunk::default() };
        Ok(Chunk { samples, text, index, counters, prefix_rows, ..of_piece })
    }
}

impl Chunks for Singing {
    fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        let (ids, text) = self.pieces.next()?;
        Some(self.sing(ids, text))
    }

    fn remaining(&self) -> usize {
        self.pieces.len()
    }

    fn remaining_chars(&self) -> usize {
        self.pieces.as_slice().iter().map(|(_, text)| text.chars().count()).sum()
    }
}
