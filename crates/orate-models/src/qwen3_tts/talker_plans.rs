//! Talker and code predictor on a device: their plans, and how a prompt reaches them. This is what
//! [`crate::decoding`] decodes.

use super::config::{Config, TalkerConfig};
use super::frame;
use super::prompt::Prompt;
use super::prompt_rows::{
    self, CODEC_IDS, IS_FRAME, IS_ID, IS_X_VECTOR, OTHER_CODES, TEXT_IDS, TRAILING_IDS, X_VECTOR,
};
use super::row_ids::{RowIds, RowKind};
use super::talker::{self, CacheSizes};
use crate::ModelError;
use crate::decoding::{Autoregressive, Extent, Facts, MemorySizes, Pass};
use crate::runtime::PlanCache;
use orate_graph::{CacheFormat, Device, Executable, Graph, GraphError, Memory, WeightLoader};
use std::sync::Arc;

/// Plans kept for reuse. An utterance needs six; that of a frame has two thousand steps and takes some
/// megabytes, one of a prompt on a CPU 0.1 MB. Warming up makes most for sixteen callers of a described voice
/// on a CPU: 257.
const PLANS_KEPT: usize = 320;

type Plan = Result<Arc<dyn Executable>, ModelError>;

/// What a plan computes, and everything its graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TalkerPlan {
    /// Ids to prompt rows; with `reference` an x-vector or frames may be among them.
    Rows { time: usize, reference: bool },
    /// Ids to rows of text that is fed later.
    Trailing { text_rows: usize },
    /// Prompt rows to the state before a frame.
    Prefill { sizes: CacheSizes, time: usize },
    /// A frame, whose codes may be given.
    Frame { sizes: CacheSizes, text_rows: usize, given: bool },
}

impl TalkerPlan {
    /// The plans of an utterance whose prompt is read `time` rows at a time.
    pub fn of_utterance(
        sizes: CacheSizes,
        (time, reference): (usize, bool),
        text_rows: usize,
    ) -> [TalkerPlan; 4] {
        [
            TalkerPlan::Rows { time, reference },
            TalkerPlan::Trailing { text_rows },
            TalkerPlan::Prefill { sizes, time },
            TalkerPlan::Frame { sizes, text_rows, given: false },
        ]
    }

    pub fn graph(self, c: &TalkerConfig, taps: bool) -> Result<Graph, GraphError> {
        let name = match self {
            TalkerPlan::Rows { .. } => "prompt",
            TalkerPlan::Trailing { .. } => "trailing text",
            TalkerPlan::Prefill { .. } => "prefill",
            TalkerPlan::Frame { given: false, .. } => "frame",
            TalkerPlan::Frame { given: true, .. } => "frame of given codes",
        };
        let g = Graph::new(name);
        let mut g = if taps { g.with_taps() } else { g };
        match self {
            TalkerPlan::Rows { time, reference } => prompt_rows::build(&mut g, c, time, reference)?,
            TalkerPlan::Trailing { text_rows } => prompt_rows::trailing(&mut g, c, text_rows)?,
            TalkerPlan::Prefill { sizes, time } => talker::prefill(&mut g, c, sizes, time)?,
            TalkerPlan::Frame { sizes, text_rows, given } => {
                let build = if given { frame::of_given_codes } else { frame::build };
                build(&mut g, c, sizes, text_rows)?
            }
        }
        Ok(g)
    }
}

/// All graphs of the talking part, as small as they may be.
pub(crate) fn smallest_graphs(c: &TalkerConfig, kv: CacheFormat) -> Result<Vec<Graph>, GraphError> {
    let sizes = CacheSizes { batch: 1, capacity: 8, kv };
    TalkerPlan::of_utterance(sizes, (4, true), 1).into_iter().map(|plan| plan.graph(c, false)).collect()
}

/// The talker of a model on a device.
pub struct Talker {
    config: TalkerConfig,
    pad: i32,
    kv: CacheFormat,
    /// By plan, and whether taps are recorded.
    plans: PlanCache<(TalkerPlan, bool)>,
}

impl Talker {
    pub(crate) fn new(
        config: &Config,
        device: Arc<dyn Device>,
        weights: Arc<dyn WeightLoader + Send + Sync>,
        kv: CacheFormat,
    ) -> Talker {
        Talker {
            config: config.talker_config.clone(),
            pad: config.tts_pad_token_id as i32,
            kv,
            plans: PlanCache::new(device, weights, PLANS_KEPT),
        }
    }

    pub(crate) fn plans(&self) -> &PlanCache<(TalkerPlan, bool)> {
        &self.plans
    }

    pub(crate) fn plan(&self, plan: TalkerPlan, taps: bool) -> Plan {
        self.plans.get((plan, taps), |_| Ok(plan.graph(&self.config, taps)?))
    }

    /// Whether rows have an x-vector or frames: any of those that are read on their own, since other prompts
    /// begin with them too, or any of the others. All passes of one of these parts share their plans.
    fn have_reference(prompt: &Prompt, pass: &Pass) -> bool {
        let all = prompt.rows.len();
        let part = match &pass.rows {
            rows if rows.end <= prompt.fixed => 0..prompt.fixed,
            rows if rows.start >= prompt.fixed => prompt.fixed..all,
            _ => 0..all,
        };
        prompt.rows.have_reference(part)
    }

    fn sizes(&self, s: MemorySizes) -> CacheSizes {
        CacheSizes { batch: s.batch, capacity: s.capacity, kv: self.kv }
    }
}

impl Autoregressive for Talker {
    type Prompt = Prompt;
    type Prefix = RowIds;

    fn facts(&self) -> Facts {
        Facts {
            codes: self.config.num_code_groups,
            end: self.config.codec_eos_token_id as i32,
            lanes: 1,
            positions: self.config.max_position_embeddings,
            sampling: &[frame::SAMPLING, frame::PREDICTOR_SAMPLING],
        }
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.plans.device()
    }

    fn extent(&self, prompt: &Prompt) -> Extent {
        Extent { rows: prompt.rows.len(), fixed: prompt.fixed, feed: prompt.trailing_ids.len() }
    }

    fn prefix(&self, prompt: &Prompt) -> RowIds {
        prompt.rows.part(0..prompt.fixed)
    }

    fn rows_plan(&self, prompt: &Prompt, pass: &Pass, taps: bool) -> Plan {
        let reference = Self::have_reference(prompt, pass);
        self.plan(TalkerPlan::Rows { time: pass.padded, reference }, taps)
    }

    fn write_rows(&self, prompt: &Prompt, pass: &Pass, m: &mut dyn Memory) -> Result<(), ModelError> {
        let (d, q) = (self.config.transformer.hidden_size, self.config.num_code_groups);
        let time = pass.padded;
        let ids = prompt.rows.part(pass.rows.clone()).padded(time, self.pad);
        let text: Vec<i32> = ids.rows.iter().map(|(text, _)| *text).collect();
        let first = ids.column(|beside| match beside {
            RowKind::Id(id) => *id,
            RowKind::Frame(codes) => codes[0],
            RowKind::Nothing | RowKind::XVector => 0,
        });
        m.write_i32(TEXT_IDS, &[1, time].into(), &text)?;
        m.write_i32(CODEC_IDS, &[time, 1].into(), &first)?;
        let is_id = ids.column(|beside| matches!(beside, RowKind::Id(_)).into());
        m.write_i32(IS_ID, &[time].into(), &is_id)?;
        if Self::have_reference(prompt, pass) {
            let others = ids.rows.iter().flat_map(|(_, beside)| match beside {
                RowKind::Frame(codes) => codes[1..].to_vec(),
                _ => vec![0; q - 1],
            });
            m.write_i32(OTHER_CODES, &[time, q - 1].into(), &others.collect::<Vec<_>>())?;
            let is_frame = ids.column(|beside| matches!(beside, RowKind::Frame(_)).into());
            m.write_i32(IS_FRAME, &[time].into(), &is_frame)?;
            // Any values, where no row has one.
            let mut floats: Vec<f32> = ids.x_vector.iter().map(|x| f32::from_bits(*x)).collect();
            floats.resize(d, 0.0);
            m.write_f32(X_VECTOR, &[1, d].into(), &floats)?;
            let is_x_vector = ids.column(|beside| (*beside == RowKind::XVector).into());
            m.write_i32(IS_X_VECTOR, &[time].into(), &is_x_vector)?;
        }
        Ok(())
    }

    fn begin_plan(&self, feed: usize, taps: bool) -> Result<Option<Arc<dyn Executable>>, ModelError> {
        self.plan(TalkerPlan::Trailing { text_rows: feed }, taps).map(Some)
    }

    fn write_begin(&self, prompt: &Prompt, feed: usize, memory: &mut dyn Memory) -> Result<(), ModelError> {
        let mut ids = prompt.trailing_ids.clone();
        ids.resize(feed, self.pad);
        Ok(memory.write_i32(TRAILING_IDS, &[1, feed].into(), &ids)?)
    }

    fn prefill_plan(&self, sizes: MemorySizes, time: usize, taps: bool) -> Plan {
        self.plan(TalkerPlan::Prefill { sizes: self.sizes(sizes), time }, taps)
    }

    fn frame_plan(&self, sizes: MemorySizes, taps: bool) -> Plan {
        let (text_rows, sizes) = (sizes.feed, self.sizes(sizes));
        self.plan(TalkerPlan::Frame { sizes, text_rows, given: false }, taps)
    }

    fn given_frame_plan(&self, sizes: MemorySizes, taps: bool) -> Plan {
        let (text_rows, sizes) = (sizes.feed, self.sizes(sizes));
        self.plan(TalkerPlan::Frame { sizes, text_rows, given: true }, taps)
    }
}
