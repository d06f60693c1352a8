//! The encoders that clone a voice: a recording to an x-vector and codes.
//!
//! Recordings differ in length, so their plans are compiled when they are needed, and not kept. A long
//! recording goes through the codec encoder in pieces, whose plan is kept.
//!
//! A voice is cloned once and used often. So the encoders are not kept either: their weights are on the
//! device only while a voice is cloned.

use super::config::{CodecConfig, SpeakerEncoderConfig};
use super::{Past, codec_encoder, graph, speaker_encoder};
use crate::ModelError;
use crate::runtime::{self, PlanCache};
use orate_audio::LogMel;
use orate_graph::{Device, Graph, GraphError, WeightLoader};
use std::sync::Arc;

/// Rows of features of a piece: two seconds, which bounds the memory for a recording of any length.
const PIECE: usize = 50;

type Weights = Arc<dyn WeightLoader + Send + Sync>;

/// The encoders on a device. Shared by threads.
pub struct VoiceEncoder {
    speaker: Option<(SpeakerEncoderConfig, PlanCache<()>)>,
    codec: CodecConfig,
    /// The only plan kept is that of whole pieces.
    codec_plans: PlanCache<()>,
}

impl VoiceEncoder {
    /// Puts the encoders on a device. Their weights are loaded with the first recording. Only Base models
    /// have a speaker encoder.
    pub fn new(
        device: Arc<dyn Device>,
        speaker: Option<(SpeakerEncoderConfig, Weights)>,
        (codec, codec_weights): (CodecConfig, Weights),
    ) -> VoiceEncoder {
        let plans = |weights| PlanCache::new(device.clone(), weights, 1);
        let speaker = speaker.map(|(config, weights)| (config, plans(weights)));
        VoiceEncoder { speaker, codec, codec_plans: plans(codec_weights) }
    }

    /// Bytes of weights on the device so far.
    pub fn weight_bytes(&self) -> u64 {
        self.codec_plans.weight_bytes() + self.speaker.as_ref().map_or(0, |(_, plans)| plans.weight_bytes())
    }

    /// The graphs for a recording of `samples` samples at 24 kHz, each of which runs in a memory of its own.
    pub fn graphs(
        speaker: Option<&SpeakerEncoderConfig>,
        codec: &CodecConfig,
        samples: usize,
    ) -> Result<Vec<Graph>, ModelError> {
        let feature = codec_encoder::samples_per_feature(&codec.encoder_config);
        let mut all =
            vec![features_graph(codec, PIECE * feature)?, codes_graph(codec, samples.div_ceil(feature))?];
        if let Some(config) = speaker {
            let frames = samples / speaker_encoder::mel(config).stft.hop_length;
            all.push(speaker_graph(config, frames.max(speaker_encoder::least_frames(config)))?);
        }
        Ok(all)
    }

    /// The x-vector of a recording at the encoder's sample rate, `[D]`; `None` where the model has no speaker
    /// encoder.
    ///
    /// # Errors
    /// The recording is shorter than a few frames, or the device failed.
    pub fn x_vector(&self, samples: &[f32]) -> Result<Option<Vec<f32>>, ModelError> {
        let Some((config, plans)) = &self.speaker else { return Ok(None) };
        let features = speaker_encoder::mel(config);
        let least =
            (speaker_encoder::least_frames(config) * features.stft.hop_length).max(features.stft.n_fft);
        if samples.len() < least {
            return Err(ModelError::TooShort { got: samples.len(), least });
        }
        let mel = LogMel::new(&features)?.apply(samples);
        let g = speaker_graph(config, mel.frames)?;
        let mut memory = self.codec_plans.device().memory();
        memory.write_f32("log_mel", &[1, mel.frames, mel.bins].into(), &mel.data)?;
        plans.compile(g)?.run(&mut *memory)?;
        let mut x_vector = vec![];
        memory.read_f32("x_vector", &mut x_vector)?;
        Ok(Some(x_vector))
    }

    /// The codes of a recording at 24 kHz, `[⌈n / 1920⌉, Q]`.
    pub fn codes(&self, samples: &[f32]) -> Result<Vec<i32>, ModelError> {
        let width = self.codec.encoder_config.transformer.hidden_size;
        if samples.is_empty() {
            return Err(ModelError::TooShort { got: 0, least: 1 });
        }
        let features = self.features(samples)?;
        let rows = features.len() / width;
        let g = codes_graph(&self.codec, rows)?;
        let mut memory = self.codec_plans.device().memory();
        memory.write_f32("features", &[1, rows, width].into(), &features)?;
        self.codec_plans.compile(g)?.run(&mut *memory)?;
        let mut codes = vec![];
        memory.read_i32("codes", &mut codes)?;
        Ok(codes)
    }

    /// Features of a recording, `[⌈n / 960⌉, D]`, piece by piece.
    fn features(&self, samples: &[f32]) -> Result<Vec<f32>, ModelError> {
        let length = PIECE * codec_encoder::samples_per_feature(&self.codec.encoder_config);
        let mut memory = self.codec_plans.device().memory();
        let (mut all, mut features) = (vec![], vec![]);
        for (i, piece) in samples.chunks(length).enumerate() {
            let graph = || Ok::<_, ModelError>(features_graph(&self.codec, piece.len())?);
            let plan = match piece.len() == length {
                true => self.codec_plans.get((), |()| graph())?,
                false => self.codec_plans.compile(graph()?)?,
            };
            if i == 0 {
                runtime::clear_states(&mut *memory, plan.plan())?;
            }
            memory.write_f32("samples", &[1, piece.len()].into(), piece)?;
            plan.run(&mut *memory)?;
            memory.read_f32("features", &mut features)?;
            all.extend_from_slice(&features);
        }
        Ok(all)
    }
}

fn speaker_graph(c: &SpeakerEncoderConfig, frames: usize) -> Result<Graph, GraphError> {
    graph("speaker_encoder", |g| speaker_encoder::build(g, c, frames))
}

fn features_graph(c: &CodecConfig, n: usize) -> Result<Graph, GraphError> {
    graph("codec_encoder.features", |g| codec_encoder::features(g, &c.encoder_config, Past::Stream, 1, n))
}

fn codes_graph(c: &CodecConfig, rows: usize) -> Result<Graph, GraphError> {
    graph("codec_encoder.codes", |g| codec_encoder::codes(g, c, 1, rows))
}
