//! The model on a device: its plans, and the memories that utterances run in.

use super::config::TalkerConfig;
use super::error::QwenError;
use super::files::{Files, Talking};
use super::prompt::{Prompt, Request};
use super::prompt_rows::{self, PromptSizes};
use super::session::Session;
use super::talker::{self, Sizes};
use super::{CodecDecoder, frame};
use orate_graph::{Device, Executable, Graph, Memory, ModelOnDevice, Plan};
use std::sync::{Arc, Mutex, PoisonError};

/// Plans kept for reuse. An utterance needs four; that of a frame has two thousand steps and takes some megabytes.
const PLANS_KEPT: usize = 32;

/// Memories of finished utterances kept for reuse.
const MEMORIES_KEPT: usize = 8;

/// What a plan computes, and everything its graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Network {
    /// Ids to rows.
    Prompt(PromptSizes),
    /// Rows to the state in front of a frame.
    Prefill { sizes: Sizes, time: usize },
    /// A frame.
    Frame { sizes: Sizes, text_rows: usize },
}

/// A runnable plan, and whether it records taps.
struct KeptPlan {
    network: Network,
    taps: bool,
    plan: Arc<dyn Executable>,
}

/// A Qwen3-TTS model on a device. Shared by any number of threads.
pub struct Qwen3Tts {
    files: Files,
    device: Arc<dyn Device>,
    on_device: Box<dyn ModelOnDevice>,
    codec: Arc<CodecDecoder>,
    plans: Mutex<Vec<KeptPlan>>,
    memories: Mutex<Vec<Box<dyn Memory>>>,
}

impl Qwen3Tts {
    /// Puts a model on a device. Weights are read when they are first needed.
    pub fn new(files: Files, device: Arc<dyn Device>) -> Qwen3Tts {
        let weights = Arc::new(crate::Loader(files.weights.clone()));
        let on_device = device.open(weights.clone());
        let codec = CodecDecoder::new(files.codec.decoder_config.clone(), device.clone(), weights);
        let (plans, memories) = (Mutex::default(), Mutex::default());
        Qwen3Tts { files, device, on_device, codec: Arc::new(codec), plans, memories }
    }

    /// The model's files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// The device that runs it.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Bytes of weights on the device so far.
    pub fn weight_bytes(&self) -> u64 {
        self.on_device.weight_bytes() + self.codec.weight_bytes()
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
    pub fn session(&self) -> Result<Session<'_>, QwenError> {
        Ok(Session::new(self, self.talking()?, self.memory()))
    }

    /// What turns codes into samples. It has memories of its own, so that it can run beside the talker.
    pub fn codec(&self) -> &Arc<CodecDecoder> {
        &self.codec
    }

    fn memory(&self) -> Box<dyn Memory> {
        let kept = self.memories.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| self.device.memory())
    }

    pub(super) fn give_back(&self, mut memory: Box<dyn Memory>) {
        memory.shrink_to(self.device.memory_kept());
        let mut kept = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MEMORIES_KEPT {
            kept.push(memory);
        }
    }

    /// The runnable plan of a network, made now if it is not kept.
    pub(super) fn plan(&self, network: Network, taps: bool) -> Result<Arc<dyn Executable>, QwenError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = plans.iter().position(|k| k.network == network && k.taps == taps) {
            let hit = plans.remove(i);
            plans.push(hit);
        } else {
            let plan = Plan::compile(self.graph(network, taps)?, &*self.device)?;
            let executable = self.on_device.load(plan)?;
            if plans.len() >= PLANS_KEPT {
                plans.remove(0);
            }
            plans.push(KeptPlan { network, taps, plan: executable });
        }
        Ok(plans[plans.len() - 1].plan.clone())
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
        let sizes = Sizes { batch: 1, capacity: super::session::capacity(rows + frames) };
        let prompt =
            PromptSizes { plain: 3, before: rows.saturating_sub(3), trailing: 1, ..Default::default() };
        [
            Network::Prompt(prompt),
            Network::Prefill { sizes, time: prompt.rows() },
            Network::Frame { sizes, text_rows: super::session::text_capacity(1) },
        ]
        .into_iter()
        .map(|network| self.plan(network, false))
        .collect()
    }
}

/// The graph of a network of the talking part.
fn talking_graph(
    c: &TalkerConfig,
    network: Network,
    new: impl Fn(&str) -> Graph,
) -> Result<Graph, QwenError> {
    Ok(match network {
        Network::Prompt(sizes) => {
            let mut g = new("prompt");
            prompt_rows::build(&mut g, c, sizes)?;
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
    })
}
