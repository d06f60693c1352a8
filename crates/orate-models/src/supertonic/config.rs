//! `tts.json`: the sizes of the four networks.
//!
//! Only what inference needs is read. The official files also hold training settings, encoder sizes and
//! paths, which are ignored.

use serde::Deserialize;

/// A model's `tts.json`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Config {
    /// `v1.5.0`, `v1.6.0`, `v1.7.3`, or `orate-1` for voices trained by this project.
    pub tts_version: String,
    /// Text to latent.
    pub ttl: Ttl,
    /// Autoencoder: only its decoder is used, as the vocoder.
    pub ae: Ae,
    /// Duration predictor.
    pub dp: Dp,
    /// Longest piece of text the model speaks at once, in characters. Only in this project's voices.
    #[serde(default)]
    pub max_chars: Option<usize>,
    /// Whether text is wrapped in language tags. Only in this project's voices.
    #[serde(default)]
    pub lang_tags: Option<bool>,
    /// Standard deviation of the initial noise.
    #[serde(default = "one")]
    pub noise_scale: f32,
    /// Denoising steps that the voice was tuned for.
    #[serde(default)]
    pub steps: Option<usize>,
}

fn one() -> f32 {
    1.0
}

/// Text to latent: text encoder, style, vector field.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Ttl {
    /// Channels of the autoencoder's latent, D.
    pub latent_dim: usize,
    /// Autoencoder frames in one latent frame, K.
    pub chunk_compress_factor: usize,
    /// Scale of the latent.
    pub normalizer: Normalizer,
    /// Text encoder.
    pub text_encoder: TextEncoder,
    /// Style attention after the text encoder.
    pub speech_prompted_text_encoder: SpeechPrompted,
    /// Style tokens.
    pub style_encoder: TtlStyle,
    /// The vector estimator.
    pub vector_field: VectorField,
}

/// Factor that the latent was multiplied by for training.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Normalizer {
    /// 0.25 in the official models.
    pub scale: f32,
}

/// Character embedding.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct TextEmbedder {
    /// Width.
    pub char_emb_dim: usize,
}

/// A stack of ConvNeXt blocks.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct ConvNeXtStack {
    /// Width.
    pub idim: usize,
    /// Kernel size of the depthwise convolution.
    pub ksz: usize,
    /// Width between the pointwise convolutions.
    pub intermediate_dim: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Dilation of each block.
    pub dilation_lst: Vec<usize>,
}

/// Relative-position transformer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct AttnEncoder {
    /// Width.
    pub hidden_channels: usize,
    /// Width inside the feed-forward part.
    pub filter_channels: usize,
    /// Heads.
    pub n_heads: usize,
    /// Layers.
    pub n_layers: usize,
}

/// Text encoder.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct TextEncoder {
    /// Character embedding.
    pub text_embedder: TextEmbedder,
    /// ConvNeXt blocks.
    pub convnext: ConvNeXtStack,
    /// Transformer.
    pub attn_encoder: AttnEncoder,
}

/// Style attention after the text encoder.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct SpeechPrompted {
    /// Width of text.
    pub text_dim: usize,
    /// Width of a style token.
    pub style_dim: usize,
    /// Width of queries and keys.
    pub n_units: usize,
    /// Heads.
    pub n_heads: usize,
}

/// Style of the latent generator.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct TtlStyle {
    /// Sizes of the tokens.
    pub style_token_layer: StyleTokens,
}

/// Sizes of style tokens.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct StyleTokens {
    /// Number of tokens.
    pub n_style: usize,
    /// Width of a token.
    pub style_value_dim: usize,
    /// Heads of the attention over them, also in the vector field.
    #[serde(default = "two")]
    pub n_heads: usize,
}

fn two() -> usize {
    2
}

/// Vector estimator.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct VectorField {
    /// Time embedding.
    pub time_encoder: TimeEncoder,
    /// The repeated part.
    pub main_blocks: MainBlocks,
    /// ConvNeXt blocks at the end.
    pub last_convnext: ConvNeXtStack,
}

/// Time embedding.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct TimeEncoder {
    /// Width in and out.
    pub time_dim: usize,
    /// Width between.
    pub hdim: usize,
}

/// The repeated part of the vector estimator.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct MainBlocks {
    /// Repetitions.
    pub n_blocks: usize,
    /// Text attention.
    pub text_cond_layer: TextCond,
    /// Style attention.
    pub style_cond_layer: StyleCond,
    /// First stack.
    pub convnext_0: ConvNeXtStack,
    /// Second stack.
    pub convnext_1: ConvNeXtStack,
    /// Third stack.
    pub convnext_2: ConvNeXtStack,
}

/// Text attention of the vector estimator.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct TextCond {
    /// Width of the latent stream.
    pub idim: usize,
    /// Width of text.
    pub text_dim: usize,
    /// Heads.
    pub n_heads: usize,
    /// Width of queries and keys; `text_dim` where absent (versions 1 and 2).
    #[serde(default)]
    pub n_units: Option<usize>,
}

impl TextCond {
    /// Width of queries and keys.
    pub fn units(&self) -> usize {
        self.n_units.unwrap_or(self.text_dim)
    }
}

/// Style attention of the vector estimator.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct StyleCond {
    /// Width of a style token, and of queries and keys.
    pub style_dim: usize,
}

/// Autoencoder.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Ae {
    /// Hz.
    pub sample_rate: u32,
    /// Samples in one decoder frame.
    pub base_chunk_size: usize,
    /// The vocoder.
    pub decoder: Decoder,
}

/// The vocoder.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Decoder {
    /// Kernel size of the first convolution.
    pub ksz_init: usize,
    /// Kernel size of the blocks.
    pub ksz: usize,
    /// Dilation of each block.
    pub dilation_lst: Vec<usize>,
    /// Width between pointwise convolutions.
    pub intermediate_dim: usize,
    /// Latent channels.
    pub idim: usize,
    /// Width.
    pub hdim: usize,
    /// Output layers.
    pub head: Head,
}

/// Output layers of the vocoder.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Head {
    /// Width in.
    pub idim: usize,
    /// Width between.
    pub hdim: usize,
    /// Samples out.
    pub odim: usize,
    /// Kernel size of the first layer.
    pub ksz: usize,
}

/// Duration predictor.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Dp {
    /// Text part.
    pub sentence_encoder: SentenceEncoder,
    /// Output layers.
    pub predictor: Predictor,
}

/// Text part of the duration predictor.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct SentenceEncoder {
    /// Character embedding.
    pub text_embedder: TextEmbedder,
    /// ConvNeXt blocks.
    pub convnext: ConvNeXtStack,
    /// Transformer.
    pub attn_encoder: AttnEncoder,
}

/// Output layers of the duration predictor.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Predictor {
    /// Width of the sentence vector.
    pub sentence_dim: usize,
    /// Style tokens.
    pub n_style: usize,
    /// Width of a style token.
    pub style_dim: usize,
    /// Width between the layers.
    pub hdim: usize,
}

impl Config {
    /// Reads and checks `tts.json`.
    ///
    /// # Errors
    /// It is not JSON of this form, or a size makes no sense. The text says which.
    pub fn from_json(bytes: &[u8]) -> Result<Config, String> {
        let c: Config = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        c.check()?;
        Ok(c)
    }

    fn check(&self) -> Result<(), String> {
        /// No released size comes near this. Larger ones are damage, and would ask for absurd amounts of
        /// memory.
        const LARGEST: usize = 1 << 16;
        /// Most layers of a stack. Graphs of all layers are built before the weights are compared.
        const MOST_LAYERS: usize = 256;
        if let Some(steps) = self.steps.filter(|n| !(1..=100).contains(n)) {
            return Err(format!("`steps` is {steps}; a voice has 1 to 100"));
        }
        let t = &self.ttl;
        let mb = &t.vector_field.main_blocks;
        let (d, dp_encoder) = (&self.ae.decoder, &self.dp.sentence_encoder.attn_encoder);
        let sizes = [
            ("ttl.latent_dim", t.latent_dim),
            ("ttl.chunk_compress_factor", t.chunk_compress_factor),
            ("ttl.text_encoder.text_embedder.char_emb_dim", t.text_encoder.text_embedder.char_emb_dim),
            ("ttl.text_encoder.attn_encoder.filter_channels", t.text_encoder.attn_encoder.filter_channels),
            ("ttl.style_encoder.style_token_layer.n_style", t.style_encoder.style_token_layer.n_style),
            (
                "ttl.style_encoder.style_token_layer.style_value_dim",
                t.style_encoder.style_token_layer.style_value_dim,
            ),
            ("ttl.vector_field.time_encoder.time_dim", t.vector_field.time_encoder.time_dim),
            ("ttl.vector_field.time_encoder.hdim", t.vector_field.time_encoder.hdim),
            ("ttl.vector_field.main_blocks.text_cond_layer.idim", mb.text_cond_layer.idim),
            ("ttl.vector_field.main_blocks.text_cond_layer.text_dim", mb.text_cond_layer.text_dim),
            ("ttl.vector_field.main_blocks.style_cond_layer.style_dim", mb.style_cond_layer.style_dim),
            ("ae.sample_rate", (self.ae.sample_rate as usize).div_ceil(8)),
            ("ae.base_chunk_size", self.ae.base_chunk_size),
            ("ae.decoder.ksz_init", d.ksz_init),
            ("ae.decoder.ksz", d.ksz),
            ("ae.decoder.idim", d.idim),
            ("ae.decoder.hdim", d.hdim),
            ("ae.decoder.intermediate_dim", d.intermediate_dim),
            ("ae.decoder.head.hdim", d.head.hdim),
            ("ae.decoder.head.odim", d.head.odim),
            ("ae.decoder.head.ksz", d.head.ksz),
            ("dp.sentence_encoder.attn_encoder.filter_channels", dp_encoder.filter_channels),
            ("dp.predictor.n_style", self.dp.predictor.n_style),
            ("dp.predictor.style_dim", self.dp.predictor.style_dim),
            ("dp.predictor.hdim", self.dp.predictor.hdim),
        ];
        if let Some((name, n)) = sizes.iter().find(|(_, n)| *n == 0 || *n > LARGEST) {
            return Err(format!("`{name}` is {n}; sizes are from 1 to {LARGEST}"));
        }
        let layers = [
            ("ttl.text_encoder.attn_encoder.n_layers", t.text_encoder.attn_encoder.n_layers),
            ("ttl.vector_field.main_blocks.n_blocks", mb.n_blocks),
            ("ae.decoder.dilation_lst", d.dilation_lst.len()),
            ("dp.sentence_encoder.attn_encoder.n_layers", dp_encoder.n_layers),
        ];
        if let Some((name, n)) = layers.iter().find(|(_, n)| *n == 0 || *n > MOST_LAYERS) {
            return Err(format!("`{name}` has {n} layers; 1 to {MOST_LAYERS} are supported"));
        }
        let stacks = [
            ("ttl.text_encoder.convnext", &t.text_encoder.convnext),
            ("ttl.vector_field.main_blocks.convnext_0", &mb.convnext_0),
            ("ttl.vector_field.main_blocks.convnext_1", &mb.convnext_1),
            ("ttl.vector_field.main_blocks.convnext_2", &mb.convnext_2),
            ("ttl.vector_field.last_convnext", &t.vector_field.last_convnext),
            ("dp.sentence_encoder.convnext", &self.dp.sentence_encoder.convnext),
        ];
        for (name, s) in stacks {
            let sane = |n: usize| n > 0 && n <= LARGEST;
            if s.num_layers > MOST_LAYERS {
                return Err(format!(
                    "`{name}` has {} layers; at most {MOST_LAYERS} are supported",
                    s.num_layers
                ));
            }
            if s.num_layers != s.dilation_lst.len() {
                let n = s.dilation_lst.len();
                return Err(format!("`{name}` has {} layers but {n} dilations", s.num_layers));
            }
            if !(sane(s.idim)
                && sane(s.ksz)
                && sane(s.intermediate_dim)
                && s.dilation_lst.iter().all(|d| sane(*d)))
            {
                return Err(format!("`{name}` has a size outside 1 to {LARGEST}"));
            }
        }
        if let Some(bad) = d.dilation_lst.iter().find(|n| **n == 0 || **n > LARGEST) {
            return Err(format!("`ae.decoder.dilation_lst` holds {bad}; dilations are from 1 to {LARGEST}"));
        }
        let heads = [
            (
                "ttl.text_encoder.attn_encoder",
                t.text_encoder.attn_encoder.n_heads,
                t.text_encoder.attn_encoder.hidden_channels,
            ),
            (
                "ttl.speech_prompted_text_encoder",
                t.speech_prompted_text_encoder.n_heads,
                t.speech_prompted_text_encoder.n_units,
            ),
            (
                "ttl.style_encoder.style_token_layer",
                t.style_encoder.style_token_layer.n_heads,
                mb.style_cond_layer.style_dim,
            ),
            (
                "ttl.vector_field.main_blocks.text_cond_layer",
                mb.text_cond_layer.n_heads,
                mb.text_cond_layer.units(),
            ),
            (
                "dp.sentence_encoder.attn_encoder",
                self.dp.sentence_encoder.attn_encoder.n_heads,
                self.dp.sentence_encoder.attn_encoder.hidden_channels,
            ),
        ];
        if let Some((name, h, width)) = heads.iter().find(|(_, h, w)| *h == 0 || w % h != 0 || *w == 0) {
            return Err(format!("`{name}`: a width of {width} cannot be split into {h} heads"));
        }
        let scale = t.normalizer.scale;
        if !(scale.is_finite() && scale > 0.0 && self.noise_scale.is_finite() && self.noise_scale >= 0.0) {
            return Err(format!(
                "`ttl.normalizer.scale` {scale} or `noise_scale` {} is not usable",
                self.noise_scale
            ));
        }
        if d.idim != t.latent_dim || d.head.odim != self.ae.base_chunk_size || d.head.idim != d.hdim {
            return Err("`ae.decoder` does not fit `ttl.latent_dim` and `ae.base_chunk_size`".to_owned());
        }
        Ok(())
    }

    /// Channels of one latent frame, D·K.
    pub fn latent_channels(&self) -> usize {
        self.ttl.latent_dim * self.ttl.chunk_compress_factor
    }

    /// Samples of one latent frame.
    pub fn samples_per_latent(&self) -> usize {
        self.ae.base_chunk_size * self.ttl.chunk_compress_factor
    }
}
