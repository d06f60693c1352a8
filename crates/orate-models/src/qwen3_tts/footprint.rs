//! How much memory a model will take on a device, before anything of it is read.

use super::VoiceEncoder;
use super::codec_stream::CodecDecoder;
use super::config::Variant;
use super::error::QwenError;
use super::files::Files;
use super::pipeline::{Network, talking_graph};
use super::session::{capacity, text_capacity};
use super::talker::Sizes;
use crate::Loader;
use orate_graph::{CacheFormat, Device, Graph, Plan};

/// Rows of a prompt of medium length, with a reference of some seconds.
const PROMPT_ROWS: usize = 100;

/// Seconds of a recording of medium length.
const RECORDING_SECONDS: usize = 10;

/// Bytes that a model takes on its device. The program itself, and plans, come on top: some tens of megabytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Weights in the formats of the device.
    pub weights: u64,
    /// Buffers and temporaries of an utterance: keys and values, history of the codec.
    pub utterance: u64,
    /// What comes on top while a recording of ten seconds becomes a voice: networks that listen, and their temporaries. Nothing of it stays.
    pub cloning: u64,
}

impl Files {
    /// Memory that the model will take with one utterance of at most `frames` frames, whose keys and values are kept in a format.
    ///
    /// # Errors
    /// The device lacks an op, or the configuration contradicts itself.
    pub fn footprint(
        &self,
        device: &dyn Device,
        kv: CacheFormat,
        frames: usize,
    ) -> Result<Footprint, QwenError> {
        let source = Loader(self.weights.clone());
        let codec = CodecDecoder::graphs(&self.codec.decoder_config)?;
        let codec = codec.into_iter().map(|g| Plan::compile(g, device)).collect::<Result<Vec<_>, _>>()?;
        let mut all = Footprint {
            weights: device.weight_bytes(&codec, &source),
            utterance: memory(&codec),
            cloning: self.cloning(device)?,
        };
        if let Some(talking) = &self.talking {
            let sizes = Sizes { batch: 1, capacity: capacity(PROMPT_ROWS + frames), kv };
            let (time, text_rows) = (PROMPT_ROWS, text_capacity(1));
            let networks = [
                Network::Prompt { time, reference: false },
                Network::Trailing { text_rows },
                Network::Prefill { sizes, time },
                Network::Frame { sizes, text_rows },
            ];
            let graph =
                |network| talking_graph(&talking.config.talker_config, network, |name| Graph::new(name));
            let plans = networks.into_iter().map(|n| Ok(Plan::compile(graph(n)?, device)?));
            let plans = plans.collect::<Result<Vec<_>, QwenError>>()?;
            all.weights += device.weight_bytes(&plans, &source);
            all.utterance += memory(&plans);
        }
        Ok(all)
    }

    /// See [`Footprint::cloning`].
    fn cloning(&self, device: &dyn Device) -> Result<u64, QwenError> {
        let base = self.talking.as_ref().filter(|t| t.config.tts_model_type == Variant::Base);
        let Some(talking) = base else { return Ok(0) };
        let source = Loader(self.weights.clone());
        let samples = RECORDING_SECONDS * self.codec.output_sample_rate as usize;
        let speaker = talking.config.speaker_encoder_config.as_ref();
        let graphs = VoiceEncoder::graphs(speaker, &self.codec, samples)?;
        let plans = graphs.into_iter().map(|g| Plan::compile(g, device)).collect::<Result<Vec<_>, _>>()?;
        let largest = plans.iter().map(|p| memory(std::slice::from_ref(p))).max().unwrap_or(0);
        Ok(device.weight_bytes(&plans, &source) + largest)
    }
}

/// Bytes of a memory in which all of these plans run: buffers of a name are shared, and so are temporaries.
fn memory(plans: &[Plan]) -> u64 {
    let mut buffers = std::collections::HashMap::new();
    for b in plans.iter().flat_map(Plan::buffers) {
        let largest = buffers.entry(&b.name).or_insert(0);
        *largest = b.dtype.bytes_of(&b.shape).max(*largest);
    }
    let temporaries = plans.iter().map(Plan::arena_bytes).max().unwrap_or(0);
    (buffers.values().sum::<usize>() + temporaries) as u64
}
