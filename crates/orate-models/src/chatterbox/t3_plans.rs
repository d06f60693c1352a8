//! T3 on a device: its plans, and how a prompt reaches them. This is what [`crate::decoding`] decodes.

use super::config::{Backbone, END_OF_SPEECH, START_OF_SPEECH, T3Config};
use super::t3::{self, CacheSizes};
use crate::ModelError;
use crate::decoding::{Autoregressive, Extent, Facts, MemorySizes, Pass};
use crate::runtime::{MemoryPool, PlanCache};
use orate_graph::{CacheFormat, Device, Executable, Graph, GraphError, Memory, WeightLoader};
use std::sync::Arc;

/// Plans kept for reuse. An utterance needs five; warming up for sixteen callers makes some hundred.
const PLANS_KEPT: usize = 256;

type Plan = Result<Arc<dyn Executable>, ModelError>;

/// What a plan computes, and everything its graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum T3Plan {
    /// A voice with a prompt of `codes` codes to conditioning rows.
    Conditioning { codes: usize },
    /// Rows of a prompt: `given` rows of conditioning and `own` rows of text.
    Rows { given: usize, own: usize },
    /// What was drawn before the first frame.
    Begin,
    /// Prompt rows to the state before a frame.
    Prefill { sizes: CacheSizes, time: usize },
    /// A frame, whose code may be given.
    Frame { sizes: CacheSizes, given: bool },
}

impl T3Plan {
    fn name(self) -> &'static str {
        match self {
            T3Plan::Conditioning { .. } => "conditioning",
            T3Plan::Rows { .. } => "prompt",
            T3Plan::Begin => "begin",
            T3Plan::Prefill { .. } => "prefill",
            T3Plan::Frame { given: false, sizes: CacheSizes { watched: true, .. } } => "watched frame",
            T3Plan::Frame { given: false, .. } => "frame",
            T3Plan::Frame { given: true, .. } => "frame of a given code",
        }
    }

    pub fn graph(self, c: &T3Config, taps: bool) -> Result<Graph, GraphError> {
        let g = Graph::new(self.name());
        let mut g = if taps { g.with_taps() } else { g };
        match self {
            T3Plan::Conditioning { codes } => t3::conditioning(&mut g, c, codes)?,
            T3Plan::Rows { given, own } => t3::rows(&mut g, c, given, own)?,
            T3Plan::Begin => t3::begin(&mut g, c)?,
            T3Plan::Prefill { sizes, time } => t3::prefill(&mut g, c, sizes, time)?,
            T3Plan::Frame { sizes, given: false } => t3::frame(&mut g, c, sizes)?,
            T3Plan::Frame { sizes, given: true } => t3::given_frame(&mut g, c, sizes)?,
        }
        Ok(g)
    }

    /// The plans of an utterance, whose prompt is read `time` rows at a time.
    pub fn of_utterance(sizes: CacheSizes, time: usize) -> [T3Plan; 3] {
        [
            T3Plan::Rows { given: 0, own: time },
            T3Plan::Prefill { sizes, time },
            T3Plan::Frame { sizes, given: false },
        ]
    }
}

/// All graphs of T3, as small as they may be.
pub(super) fn smallest_graphs(c: &T3Config, kv: CacheFormat) -> Result<Vec<Graph>, GraphError> {
    let sizes = CacheSizes { batch: 1, capacity: 8, kv, watched: false };
    let mut all = vec![T3Plan::Conditioning { codes: 2 }];
    if c.backbone == Backbone::Llama {
        all.push(T3Plan::Begin);
    }
    all.extend(T3Plan::of_utterance(sizes, 4));
    all.into_iter().map(|plan| plan.graph(c, false)).collect()
}

/// Rows that condition T3 on a voice: computed once, and read before each text.
#[derive(Debug, PartialEq)]
pub struct Conditioning {
    /// `[C, D]`
    rows: Vec<f32>,
}

impl Conditioning {
    /// `[C, D]`
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }
}

/// Conditioning as a key of kept states. Compares addresses first: a voice has hundreds of thousands of
/// numbers, and other callers wait for the lock meanwhile.
#[derive(Debug)]
pub struct Prefix(Arc<Conditioning>);

impl PartialEq for Prefix {
    fn eq(&self, other: &Prefix) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

/// A text in a voice, as T3 reads it.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The voice.
    pub conditioning: Arc<Conditioning>,
    /// Ids of the text, start and stop included.
    pub text: Vec<i32>,
}

/// T3 of a model on a device.
pub struct T3 {
    config: T3Config,
    kv: CacheFormat,
    /// By plan, and whether taps are recorded.
    plans: Arc<PlanCache<(T3Plan, bool)>>,
    memories: Arc<MemoryPool>,
    /// Whether plans say which text a frame attends to.
    watched: bool,
}

impl T3 {
    pub(super) fn new(
        config: T3Config,
        device: Arc<dyn Device>,
        weights: Arc<dyn WeightLoader + Send + Sync>,
        kv: CacheFormat,
    ) -> T3 {
        let memories = MemoryPool::new(device.clone(), 1);
        let plans = Arc::new(PlanCache::new(device, weights, PLANS_KEPT));
        T3 { config, kv, plans, memories, watched: false }
    }

    /// The same network, whose plans say which text a frame attends to; see [`super::alignment::Watched`].
    pub(super) fn watched(&self) -> T3 {
        let (plans, memories) = (self.plans.clone(), self.memories.clone());
        T3 { config: self.config.clone(), kv: self.kv, plans, memories, watched: true }
    }

    pub(super) fn plans(&self) -> &PlanCache<(T3Plan, bool)> {
        &self.plans
    }

    pub(super) fn plan(&self, plan: T3Plan, taps: bool) -> Plan {
        self.plans.get((plan, taps), |_| Ok(plan.graph(&self.config, taps)?))
    }

    pub(super) fn sizes(&self, s: MemorySizes) -> CacheSizes {
        CacheSizes { batch: s.batch, capacity: s.capacity, kv: self.kv, watched: self.watched }
    }

    /// The rows of a voice: its speaker embedding `[256]`, the codes of its recording, and exaggeration.
    ///
    /// # Errors
    /// The device failed.
    pub fn conditioning(
        &self,
        speaker: &[f32],
        codes: &[i32],
        exaggeration: f32,
    ) -> Result<Conditioning, ModelError> {
        let plan = self.plan(T3Plan::Conditioning { codes: codes.len() }, false)?;
        let mut memory = self.memories.take();
        let m = memory.get();
        m.write_f32(t3::SPEAKER_EMBEDDING, &[1, 1, speaker.len()].into(), speaker)?;
        m.write_i32(t3::PROMPT, &[1, codes.len()].into(), codes)?;
        let positions = match self.config.backbone {
            Backbone::Llama => codes.len(),
            Backbone::Gpt2 => codes.len() + 1,
        };
        let all: Vec<i32> = (0..positions as i32).collect();
        m.write_i32(t3::POSITIONS, &[1, positions].into(), &all)?;
        m.set_scalar(t3::EXAGGERATION, exaggeration);
        plan.run(m)?;
        let mut rows = vec![];
        m.read_f32(t3::CONDITIONING, &mut rows)?;
        Ok(Conditioning { rows })
    }

    fn conditioning_rows(&self, prompt: &Prompt) -> usize {
        prompt.conditioning.rows.len() / self.config.width
    }

    /// Of a pass: rows of conditioning, and of text with padding.
    fn parts(&self, prompt: &Prompt, pass: &Pass) -> (usize, usize) {
        let fixed = self.conditioning_rows(prompt);
        if pass.rows.end <= fixed {
            return (pass.padded, 0);
        }
        let given = fixed.saturating_sub(pass.rows.start);
        (given, pass.padded - given)
    }
}

impl Autoregressive for T3 {
    type Prompt = Prompt;
    type Prefix = Prefix;

    fn facts(&self) -> Facts {
        Facts {
            codes: 1,
            end: END_OF_SPEECH,
            lanes: self.config.lanes(),
            positions: self.config.positions(),
            sampling: &[t3::SAMPLING],
        }
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.plans.device()
    }

    fn extent(&self, prompt: &Prompt) -> Extent {
        let fixed = self.conditioning_rows(prompt);
        Extent { rows: fixed + prompt.text.len() + self.config.starts(), fixed, feed: 0 }
    }

    fn prefix(&self, prompt: &Prompt) -> Prefix {
        Prefix(prompt.conditioning.clone())
    }

    fn rows_plan(&self, prompt: &Prompt, pass: &Pass, taps: bool) -> Plan {
        let (given, own) = self.parts(prompt, pass);
        self.plan(T3Plan::Rows { given, own }, taps)
    }

    fn write_rows(&self, prompt: &Prompt, pass: &Pass, m: &mut dyn Memory) -> Result<(), ModelError> {
        let (fixed, d) = (self.conditioning_rows(prompt), self.config.width);
        let (given, own) = self.parts(prompt, pass);
        if given > 0 {
            let end = (pass.rows.start + given).min(fixed);
            let mut rows = prompt.conditioning.rows[pass.rows.start * d..end * d].to_vec();
            rows.resize(given * d, 0.0);
            m.write_f32(t3::CONDITIONING, &[1, given, d].into(), &rows)?;
        }
        if own > 0 {
            let first = (pass.rows.start + given).max(fixed);
            let (texts, starts) = (prompt.text.len(), self.config.starts());
            let kind = |i: usize| first - fixed + i;
            let text = |i: usize| prompt.text.get(kind(i)).copied();
            let column = |of: &dyn Fn(usize) -> i32| (0..own).map(of).collect::<Vec<i32>>();
            let ids = column(&|i| text(i).unwrap_or(0));
            let is_text = column(&|i| text(i).is_some().into());
            let is_start = column(&|i| (texts..texts + starts).contains(&kind(i)).into());
            let most = self.config.text_positions - 1;
            let at = column(&|i| match self.config.backbone {
                Backbone::Llama => kind(i).min(most) as i32,
                Backbone::Gpt2 => (first + i).min(most) as i32,
            });
            m.write_i32(t3::TEXT_IDS, &[own, 1].into(), &ids)?;
            m.write_i32(t3::POSITIONS, &[own, 1].into(), &at)?;
            m.write_i32(t3::IS_TEXT, &[own].into(), &is_text)?;
            m.write_i32(t3::IS_START, &[own].into(), &is_start)?;
        }
        Ok(())
    }

    fn begin_plan(&self, _: usize, taps: bool) -> Result<Option<Arc<dyn Executable>>, ModelError> {
        match self.config.backbone {
            Backbone::Llama => self.plan(T3Plan::Begin, taps).map(Some),
            Backbone::Gpt2 => Ok(None),
        }
    }

    fn write_begin(&self, _: &Prompt, _: usize, memory: &mut dyn Memory) -> Result<(), ModelError> {
        match self.config.backbone {
            Backbone::Llama => Ok(memory.write_i32(t3::START, &[1, 1].into(), &[START_OF_SPEECH])?),
            Backbone::Gpt2 => Ok(()),
        }
    }

    fn prefill_plan(&self, sizes: MemorySizes, time: usize, taps: bool) -> Plan {
        self.plan(T3Plan::Prefill { sizes: self.sizes(sizes), time }, taps)
    }

    fn frame_plan(&self, sizes: MemorySizes, taps: bool) -> Plan {
        self.plan(T3Plan::Frame { sizes: self.sizes(sizes), given: false }, taps)
    }

    fn given_frame_plan(&self, sizes: MemorySizes, taps: bool) -> Plan {
        self.plan(T3Plan::Frame { sizes: self.sizes(sizes), given: true }, taps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_conditioning_has_one_kept_state() {
        let prefix = |x: f32| Prefix(Arc::new(Conditioning { rows: vec![1.0, x] }));
        let one = prefix(2.0);
        assert_eq!(one, Prefix(one.0.clone()), "the same address");
        assert_eq!(one, prefix(2.0), "the same numbers");
        assert_ne!(one, prefix(3.0));
    }
}
