//! Which tensors a checkpoint holds, and the network that each belongs to.
//!
//! Names and shapes follow from the graphs ([`crate::checkpoint`]). Listed here are only tensors that no
//! network reads: what the training needed, and codebooks that the talker does not use. A checkpoint must
//! hold these too, and nothing else.

use super::config::{CodecConfig, Config, Variant};
use super::talker_plans::smallest_graphs;
use super::{VoiceEncoder, codec_decoder, graph, speaker_encoder};
use crate::ModelError;
use crate::checkpoint::{self, Expected};
use orate_graph::CacheFormat;

/// A network of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    /// Text and codes to the first code of a frame.
    Talker,
    /// The first code of a frame to the others.
    CodePredictor,
    /// Reference audio to an x-vector.
    SpeakerEncoder,
    /// Reference audio to codes.
    CodecEncoder,
    /// Codes to samples.
    CodecDecoder,
}

impl Network {
    /// In the order in which they run.
    pub const ALL: [Network; 5] = [
        Network::SpeakerEncoder,
        Network::CodecEncoder,
        Network::Talker,
        Network::CodePredictor,
        Network::CodecDecoder,
    ];

    /// Its name in listings.
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// What the names of its tensors begin with.
    pub fn prefix(self) -> &'static str {
        self.names().1
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Network::Talker => ("talker", "talker."),
            Network::CodePredictor => ("code_predictor", "talker.code_predictor."),
            Network::SpeakerEncoder => ("speaker_encoder", "speaker_encoder."),
            Network::CodecEncoder => ("codec_encoder", "encoder."),
            Network::CodecDecoder => ("codec_decoder", "decoder."),
        }
    }

    /// The network that a tensor belongs to, going by its name.
    pub fn of(tensor: &str) -> Option<Network> {
        let named = Network::ALL.into_iter().filter(|n| tensor.starts_with(n.prefix()));
        named.max_by_key(|n| n.prefix().len())
    }
}

/// The tensors of a model's `model.safetensors`.
pub fn model(c: &Config) -> Result<Vec<Expected>, ModelError> {
    let mut graphs = smallest_graphs(&c.talker_config, CacheFormat::F32)?;
    if let (Variant::Base, Some(speaker)) = (c.tts_model_type, &c.speaker_encoder_config) {
        let frames = speaker_encoder::least_frames(speaker);
        graphs.push(graph("speaker_encoder", |g| speaker_encoder::build(g, speaker, frames))?);
    }
    Ok(checkpoint::read_by(&graphs))
}

/// The tensors of the codec's `model.safetensors`.
pub fn codec(c: &CodecConfig) -> Result<Vec<Expected>, ModelError> {
    Ok(codec_parts(c)?.concat())
}

/// The tensors of the codec that its decoder, its encoder, and no network reads.
pub fn codec_parts(c: &CodecConfig) -> Result<[Vec<Expected>; 3], ModelError> {
    let decoder = checkpoint::read_by(&[codec_decoder::smallest(&c.decoder_config)?]);
    let encoder = checkpoint::read_by(&VoiceEncoder::graphs(None, c, 1)?);
    Ok([decoder, encoder, unread(c)])
}

/// Tensors of the codec that no network reads.
fn unread(c: &CodecConfig) -> Vec<Expected> {
    let mut all = vec![];
    let mut add = |name: String, shape: &[usize]| all.push(Expected { name, shape: shape.to_vec() });
    // Quantizers were trained with projections in both directions; each network needs one.
    let d = &c.decoder_config;
    for side in ["first", "rest"] {
        let name = format!("decoder.quantizer.rvq_{side}.input_proj.weight");
        add(name, &[d.entry_width(), d.codebook_dim, 1]);
    }
    let e = &c.encoder_config;
    let semantic = e.num_semantic_quantizers;
    let sides = [
        ("semantic", semantic, semantic),
        ("acoustic", c.encoder_valid_num_quantizers - semantic, e.num_quantizers - semantic),
    ];
    for (side, used, books) in sides {
        let at = format!("encoder.quantizer.{side}_residual_vector_quantizer");
        add(
            format!("{at}.output_proj.weight"),
            &[e.transformer.hidden_size, e.vector_quantization_hidden_dimension, 1],
        );
        for k in 0..books {
            let book = format!("{at}.layers.{k}.codebook");
            add(format!("{book}.initialized"), &[1]);
            // The encoder has more codebooks than frames have codes.
            if k >= used {
                add(format!("{book}.embed_sum"), &[e.codebook_size, e.codebook_dim]);
                add(format!("{book}.cluster_usage"), &[e.codebook_size]);
            }
        }
    }
    all
}
