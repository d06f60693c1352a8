//! A small autoregressive network over `orate_models::decoding`, of the kind that Chatterbox's T3 is: one
//! code per frame, two lanes for classifier-free guidance, learned positions, a penalty for all earlier
//! codes, min-p and a stop code.
//!
//!   prompt ids [2, T] ─ table + positions ─ layer ─ logits [2, 1, V]  lane 1 reads `NO_TEXT`, not text
//!   logits ─ sample ─ code [1] ─ table + position of the frame ─ layer ─ logits, in both lanes

use orate_graph::{
    AttentionMask, ControlIds, DType, Device, Draw, Executable, Graph, GraphError, Memory, Op, Rows,
    SampleRules, Value, Weight,
};
use orate_models::decoding::{
    Autoregressive, CODES, DrawSettings, Extent, FRAME, Facts, LAST, MemorySizes, POSITION, Pass, ROWS, SEED,
    SHARED, Sampling,
};
use orate_models::{ModelError, PlanCache};
use orate_testing::RandomWeights;
use std::sync::Arc;

/// Codes and controls.
pub const VOCABULARY: usize = 24;
/// The first code of an utterance, which is never drawn.
pub const START: usize = 22;
/// The code that ends an utterance.
pub const STOP: usize = 23;
/// Text ids; the last one stands for no text.
const TEXT_IDS: usize = 30;
const NO_TEXT: i32 = TEXT_IDS as i32 - 1;
/// Positions of prompt and frames.
const POSITIONS: usize = 400;
const WIDTH: usize = 8;
const LANES: usize = 2;

type Result<T> = std::result::Result<T, ModelError>;

/// A text as ids, of which the first `voice` are the same for all texts.
#[derive(Clone, Debug)]
pub struct ToyPrompt {
    pub ids: Vec<i32>,
    pub voice: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Key {
    Rows(usize),
    Begin,
    Prefill(MemorySizes, usize),
    Frame(MemorySizes),
}

/// The network on a device.
pub struct Toy {
    plans: PlanCache<(Key, bool)>,
}

impl Toy {
    pub fn new(device: Arc<dyn Device>) -> Toy {
        let sizes = MemorySizes { batch: 1, capacity: 4, feed: 0 };
        let keys = [Key::Rows(2), Key::Begin, Key::Prefill(sizes, 2), Key::Frame(sizes)];
        let graphs = keys.map(|key| graph(key, false).expect("fits"));
        let weights = RandomWeights::of_graphs(&graphs, 4);
        Toy { plans: PlanCache::new(device, Arc::new(weights), 100) }
    }

    fn plan(&self, key: Key, taps: bool) -> Result<Arc<dyn Executable>> {
        self.plans.get((key, taps), |_| Ok::<_, ModelError>(graph(key, taps)?))
    }
}

/// Settings as T3 has them.
pub fn settings(seed: u64, max_frames: usize) -> DrawSettings {
    let sampling =
        Sampling { temperature: 0.8, repetition_penalty: 1.2, min_p: 0.05, guidance: 0.5, ..Sampling::PLAIN };
    DrawSettings { sampling: vec![sampling], seed, max_frames }
}

fn graph(key: Key, taps: bool) -> std::result::Result<Graph, GraphError> {
    let mut g = Graph::new(format!("toy {key:?}"));
    if taps {
        g = g.with_taps();
    }
    match key {
        Key::Rows(time) => {
            let ids = g.input("ids", DType::I32, [LANES, time])?;
            let rows = g.embedding(ids, Weight::named("text", [TEXT_IDS, WIDTH]))?;
            let at = g.input("text_positions", DType::I32, [LANES, time])?;
            let at = g.embedding(at, Weight::named("text_positions", [POSITIONS, WIDTH]))?;
            let rows = g.add(rows, at)?;
            g.output(ROWS, rows)?;
        }
        Key::Begin => {
            let start = g.input("start", DType::I32, [1, 1])?;
            let seen = g.state("seen", DType::F32, [1, VOCABULARY])?;
            g.mark(seen, start)?;
        }
        Key::Prefill(s, time) => {
            let rows = g.input(ROWS, DType::F32, [LANES * s.batch, time, WIDTH])?;
            let last = g.input(LAST, DType::I32, [LANES * s.batch])?;
            let (x, _) = layer(&mut g, s, rows, false)?;
            let x = g.row_at(x, last)?;
            let logits = g.matmul(x, Weight::named("head", [WIDTH, VOCABULARY]))?;
            g.output("logits", logits)?;
        }
        Key::Frame(s) => {
            let logits = g.state("logits", DType::F32, [LANES * s.batch, 1, VOCABULARY])?;
            let lanes = g.reshape(logits, [s.batch, LANES, VOCABULARY])?;
            let number = g.state(FRAME, DType::I32, [s.batch])?;
            let draw = Draw {
                settings: g.input("sampling", DType::F32, [s.batch, 6])?,
                seed: g.input(SEED, DType::I32, [s.batch, 2])?,
                number,
            };
            let seen = g.state("seen", DType::F32, [s.batch, VOCABULARY])?;
            let controls = Some(ControlIds { first: START, end: STOP, min_draws: 1 });
            let rules = SampleRules { controls, ..SampleRules::default() };
            let code = g.sample(Op::Sample(rules), lanes, draw, Some(seen))?;
            g.mark(seen, code)?;
            g.output(CODES, code)?;
            // Frame k feeds its code at position k + 1: the start code is at 0.
            let number = g.increment(number, 1)?;
            g.update(FRAME, number)?;
            let row = g.embedding(code, Weight::named("speech", [VOCABULARY, WIDTH]))?; // [B, 1, D]
            let at = g.reshape(number, [s.batch, 1])?;
            let at = g.embedding(at, Weight::named("speech_positions", [POSITIONS, WIDTH]))?;
            let row = g.add(row, at)?;
            let rows = g.concat(&[row, row], 1)?;
            let rows = g.reshape(rows, [LANES * s.batch, 1, WIDTH])?;
            let (x, position) = layer(&mut g, s, rows, s.batch > 1)?;
            let logits = g.matmul(x, Weight::named("head", [WIDTH, VOCABULARY]))?;
            g.update("logits", logits)?;
            let position = g.increment(position, 1)?;
            g.update(POSITION, position)?;
        }
    }
    Ok(g)
}

/// Causal attention and a residual: rows `[B · L, T, D]` from `position` on → the same shape, and the
/// position. The device may be told what rows have in common; the reference device checks it.
fn layer(
    g: &mut Graph,
    s: MemorySizes,
    x: Value,
    is_told: bool,
) -> std::result::Result<(Value, Value), GraphError> {
    let position = g.state(POSITION, DType::I32, [LANES * s.batch])?;
    let first = Rows::At(position);
    let kept = |g: &mut Graph, name: &str| {
        let rows = g.matmul(x, Weight::named(name, [WIDTH, WIDTH]))?;
        let cache = g.cache(name, DType::F32, [LANES * s.batch, s.capacity, WIDTH])?;
        g.write_rows(cache, rows, first)
    };
    let (keys, values) = (kept(g, "keys")?, kept(g, "values")?);
    let queries = g.matmul(x, Weight::named("queries", [WIDTH, WIDTH]))?;
    let mask = AttentionMask::Cached(first.kind());
    let op =
        Op::Attention { heads: 2, scale: 0.5, mask, relative: None, bias: false, follows_weights: false };
    let y = if is_told {
        let shared = g.input(SHARED, DType::I32, [LANES * s.batch, 2])?;
        g.attention_in_common(op, [queries, keys, values], position, shared)?
    } else {
        g.attention(op, queries, keys, values, first.operand())?
    };
    g.tap("attended", y)?;
    Ok((g.add(x, y)?, position))
}

impl Autoregressive for Toy {
    type Prompt = ToyPrompt;
    type Prefix = Vec<i32>;

    fn facts(&self) -> Facts {
        Facts { codes: 1, end: STOP as i32, lanes: LANES, positions: POSITIONS, sampling: &["sampling"] }
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.plans.device()
    }

    fn extent(&self, prompt: &ToyPrompt) -> Extent {
        Extent { rows: prompt.ids.len(), fixed: prompt.voice, feed: 0 }
    }

    fn prefix(&self, prompt: &ToyPrompt) -> Vec<i32> {
        prompt.ids[..prompt.voice].to_vec()
    }

    fn rows_plan(&self, _: &ToyPrompt, pass: &Pass, taps: bool) -> Result<Arc<dyn Executable>> {
        self.plan(Key::Rows(pass.padded), taps)
    }

    fn write_rows(&self, prompt: &ToyPrompt, pass: &Pass, memory: &mut dyn Memory) -> Result<()> {
        // The voice is in both lanes; text is only in the first.
        let id = |lane: usize, i: usize| match prompt.ids.get(i) {
            Some(id) if i < pass.rows.end && (lane == 0 || i < prompt.voice) => *id,
            _ => NO_TEXT,
        };
        let rows = || pass.rows.start..pass.rows.start + pass.padded;
        let ids: Vec<i32> = (0..LANES).flat_map(|lane| rows().map(move |i| id(lane, i))).collect();
        let at: Vec<i32> = (0..LANES).flat_map(|_| rows().map(|i| i as i32)).collect();
        let shape = [LANES, pass.padded].into();
        memory.write_i32("ids", &shape, &ids)?;
        Ok(memory.write_i32("text_positions", &shape, &at)?)
    }

    fn begin_plan(&self, _feed: usize, taps: bool) -> Result<Option<Arc<dyn Executable>>> {
        self.plan(Key::Begin, taps).map(Some)
    }

    fn write_begin(&self, _: &ToyPrompt, _feed: usize, memory: &mut dyn Memory) -> Result<()> {
        Ok(memory.write_i32("start", &[1, 1].into(), &[START as i32])?)
    }

    fn prefill_plan(&self, sizes: MemorySizes, time: usize, taps: bool) -> Result<Arc<dyn Executable>> {
        self.plan(Key::Prefill(sizes, time), taps)
    }

    fn frame_plan(&self, sizes: MemorySizes, taps: bool) -> Result<Arc<dyn Executable>> {
        self.plan(Key::Frame(sizes), taps)
    }
}
