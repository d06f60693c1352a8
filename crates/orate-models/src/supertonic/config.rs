//! `tts.json`: the sizes of the four networks.
//!
//! Only what inference needs is read. The official files also hold training settings, encoder sizes and
//! paths, which are ignored.

use orate_files::one_line;
use serde_json::Value;
use std::ops::RangeInclusive;

type Result<T> = std::result::Result<T, String>;

/// No released size comes near this. Larger ones are damage, and would ask for absurd amounts of memory.
const LARGEST: usize = 1 << 16;
/// Most layers of a stack. Graphs of all layers are built before the weights are compared.
const MOST_LAYERS: usize = 256;
/// Released files have less than 4 kB.
const MOST_BYTES: usize = 1 << 20;

/// A model's `tts.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `v1.5.0`, `v1.6.0`, `v1.7.3`, or `orate-1` for voices trained by this project.
    pub(super) tts_version: String,
    /// Longest piece of text the model speaks at once, in characters. Only in this project's voices.
    pub(super) max_chars: Option<usize>,
    /// Standard deviation of the initial noise.
    pub(super) noise_scale: f32,
    /// Denoising steps that the voice was tuned for.
    pub(super) steps: Option<usize>,
    pub(super) sample_rate: u32,
    /// Samples in one decoder frame.
    pub(super) base_chunk_size: usize,
    /// Channels of the autoencoder's latent, D.
    pub(super) latent_dim: usize,
    /// Autoencoder frames in one latent frame, K.
    pub(super) chunk_compress_factor: usize,
    /// Style of the text encoder and the vector estimator.
    pub(super) style: Style,
    /// Style of the duration predictor.
    pub(super) dp_style: Style,
    pub(super) text_encoder: TextEncoder,
    /// Style attention after the text encoder.
    pub(super) speech_prompted: SlotAttention,
    pub(super) vector_field: VectorField,
    pub(super) decoder: Decoder,
    /// Text part of the duration predictor.
    pub(super) dp_encoder: TextEncoder,
    /// Width between the output layers of the duration predictor.
    pub(super) dp_inner: usize,
}

/// Number of style tokens, and the width of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    pub tokens: usize,
    pub width: usize,
}

impl Style {
    /// Numbers in all tokens together.
    pub fn count(self) -> usize {
        self.tokens * self.width
    }
}

/// Characters to vectors: an embedding of some width, ConvNeXt blocks, a transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct TextEncoder {
    pub width: usize,
    pub convnext: ConvNeXtStack,
    pub attention: AttnEncoder,
}

/// A stack of ConvNeXt blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvNeXtStack {
    pub width: usize,
    /// Taps of the depthwise convolution.
    pub kernel: usize,
    /// Channels between the pointwise convolutions.
    pub inner: usize,
    /// Of each block.
    pub dilations: Vec<usize>,
}

/// Relative-position transformer, with `inner` channels in its feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub struct AttnEncoder {
    pub width: usize,
    pub inner: usize,
    pub heads: usize,
    pub layers: usize,
}

/// Attention to text or to style tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotAttention {
    /// Width of what attends.
    pub width: usize,
    /// Width of queries and keys.
    pub units: usize,
    pub heads: usize,
    /// Number whose square root divides the scores, whatever the head width.
    pub divisor_of: usize,
}

/// Vector estimator: a main part that is repeated, then ConvNeXt blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorField {
    /// Width of the time embedding, and between its layers.
    pub time_dim: usize,
    pub time_inner: usize,
    /// Repetitions of the main part.
    pub blocks: usize,
    pub text: SlotAttention,
    pub text_dim: usize,
    pub style: SlotAttention,
    /// Before the time, the text and the style.
    pub convnext: [ConvNeXtStack; 3],
    pub last_convnext: ConvNeXtStack,
}

/// The vocoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    /// Taps of the first convolution.
    pub first_kernel: usize,
    pub convnext: ConvNeXtStack,
    /// Width between the output layers, and taps of the first of them.
    pub head_inner: usize,
    pub head_kernel: usize,
}

impl Config {
    /// Reads and checks `tts.json`.
    ///
    /// # Errors
    /// It is not JSON of this form, or a size makes no sense. The text says which.
    pub fn from_json(bytes: &[u8]) -> Result<Config> {
        if bytes.len() > MOST_BYTES {
            return Err(format!("larger than {} MB, which no settings of a model are", MOST_BYTES >> 20));
        }
        let value: Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let json = Part { path: String::new(), value: &value };
        let (ttl, ae, dp) = (json.at("ttl")?, json.at("ae")?, json.at("dp")?);
        let version = json.at("tts_version")?.value.as_str().ok_or("`tts_version` is not a text")?;
        let optional = |name, most| json.find(name).map(|n| n.whole(1..=most)).transpose();
        let noise_scale = json.find("noise_scale").map_or(Ok(1.0), |x| x.float())?;
        let scale = ttl.at("normalizer.scale")?.float()?;
        if !(scale.is_finite() && scale > 0.0 && noise_scale.is_finite() && noise_scale >= 0.0) {
            let both = format!("`ttl.normalizer.scale` {scale} or `noise_scale` {noise_scale}");
            return Err(format!("{both} is not usable"));
        }
        let (tokens, predictor) = (ttl.at("style_encoder.style_token_layer")?, dp.at("predictor")?);
        let c = Config {
            tts_version: version.to_owned(),
            max_chars: optional("max_chars", usize::MAX)?,
            noise_scale,
            steps: optional("steps", 100)?,
            sample_rate: ae.at("sample_rate")?.whole(1..=8 * LARGEST)? as u32,
            base_chunk_size: ae.size("base_chunk_size")?,
            latent_dim: ttl.size("latent_dim")?,
            chunk_compress_factor: ttl.size("chunk_compress_factor")?,
            style: Style { tokens: tokens.size("n_style")?, width: tokens.size("style_value_dim")? },
            dp_style: Style { tokens: predictor.size("n_style")?, width: predictor.size("style_dim")? },
            text_encoder: TextEncoder::read(&ttl.at("text_encoder")?)?,
            speech_prompted: SlotAttention::prompted(&ttl.at("speech_prompted_text_encoder")?)?,
            vector_field: VectorField::read(&ttl.at("vector_field")?, &tokens)?,
            decoder: Decoder::read(&ae.at("decoder")?)?,
            dp_encoder: TextEncoder::read(&dp.at("sentence_encoder")?)?,
            dp_inner: predictor.size("hdim")?,
        };
        for (name, want) in [
            ("decoder.idim", c.latent_dim),
            ("decoder.head.odim", c.base_chunk_size),
            ("decoder.head.idim", c.decoder.convnext.width),
        ] {
            if ae.size(name)? != want {
                return Err("`ae.decoder` does not fit `ttl.latent_dim` and `ae.base_chunk_size`".to_owned());
            }
        }
        Ok(c)
    }

    /// Repetitions of the vector estimator's main part.
    pub(super) fn blocks(&self) -> usize {
        self.vector_field.blocks
    }

    /// Channels of one latent frame, D·K.
    pub fn latent_channels(&self) -> usize {
        self.latent_dim * self.chunk_compress_factor
    }

    /// Samples of one latent frame.
    pub fn samples_per_latent(&self) -> usize {
        self.base_chunk_size * self.chunk_compress_factor
    }
}

impl TextEncoder {
    fn read(json: &Part<'_>) -> Result<Self> {
        let attention = json.at("attn_encoder")?;
        let width = attention.size("hidden_channels")?;
        Ok(TextEncoder {
            width: json.size("text_embedder.char_emb_dim")?,
            convnext: ConvNeXtStack::read(&json.at("convnext")?)?,
            attention: AttnEncoder {
                width,
                inner: attention.size("filter_channels")?,
                heads: attention.heads(width)?,
                layers: attention.at("n_layers")?.whole(1..=MOST_LAYERS)?,
            },
        })
    }
}

impl ConvNeXtStack {
    fn read(json: &Part<'_>) -> Result<Self> {
        let (layers, dilations) = (json.at("num_layers")?.whole(0..=MOST_LAYERS)?, json.dilations()?);
        if layers != dilations.len() {
            return Err(format!("`{}` has {layers} layers but {} dilations", json.path, dilations.len()));
        }
        let (width, kernel, inner) = (json.size("idim")?, json.size("ksz")?, json.size("intermediate_dim")?);
        Ok(ConvNeXtStack { width, kernel, inner, dilations })
    }
}

impl SlotAttention {
    fn prompted(json: &Part<'_>) -> Result<Self> {
        let (width, units) = (json.size("text_dim")?, json.size("n_units")?);
        Ok(SlotAttention { width, units, heads: json.heads(units)?, divisor_of: units })
    }
}

impl VectorField {
    fn read(json: &Part<'_>, style_tokens: &Part<'_>) -> Result<Self> {
        let blocks = json.at("main_blocks")?;
        let text = blocks.at("text_cond_layer")?;
        let (width, text_dim) = (text.size("idim")?, text.size("text_dim")?);
        // Versions 1 and 2 do not state the width of queries and keys.
        let units = text.find("n_units").map_or(Ok(text_dim), |n| n.whole(1..=LARGEST))?;
        let style = blocks.size("style_cond_layer.style_dim")?;
        let style_heads =
            if style_tokens.find("n_heads").is_none() { 2 } else { style_tokens.heads(style)? };
        let convnext = |name| ConvNeXtStack::read(&blocks.at(name)?);
        Ok(VectorField {
            time_dim: json.size("time_encoder.time_dim")?,
            time_inner: json.size("time_encoder.hdim")?,
            blocks: blocks.at("n_blocks")?.whole(1..=MOST_LAYERS)?,
            text: SlotAttention { width, units, heads: text.heads(units)?, divisor_of: text_dim },
            text_dim,
            style: SlotAttention { width, units: style, heads: style_heads, divisor_of: style },
            convnext: [convnext("convnext_0")?, convnext("convnext_1")?, convnext("convnext_2")?],
            last_convnext: ConvNeXtStack::read(&json.at("last_convnext")?)?,
        })
    }
}

impl Decoder {
    fn read(json: &Part<'_>) -> Result<Self> {
        let (width, kernel, inner) = (json.size("hdim")?, json.size("ksz")?, json.size("intermediate_dim")?);
        Ok(Decoder {
            first_kernel: json.size("ksz_init")?,
            convnext: ConvNeXtStack { width, kernel, inner, dilations: json.dilations()? },
            head_inner: json.size("head.hdim")?,
            head_kernel: json.size("head.ksz")?,
        })
    }
}

/// A part of the file.
struct Part<'a> {
    /// Names on the way to it, such as `ttl.text_encoder`.
    path: String,
    value: &'a Value,
}

impl<'a> Part<'a> {
    /// A part of this one; `None` where it is missing or null.
    fn find(&self, name: &str) -> Option<Part<'a>> {
        let value = self.value.pointer(&format!("/{}", name.replace('.', "/")))?;
        (!value.is_null()).then(|| Part { path: self.path(name), value })
    }

    fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn at(&self, name: &str) -> Result<Part<'a>> {
        self.find(name).ok_or_else(|| format!("`{}` is missing", self.path(name)))
    }

    fn whole(&self, range: RangeInclusive<usize>) -> Result<usize> {
        let n = self.value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| range.contains(n));
        n.ok_or_else(|| {
            let (value, (least, most)) = (self.value.to_string(), range.into_inner());
            format!("`{}` is {}, not a whole number from {least} to {most}", self.path, one_line(&value))
        })
    }

    fn size(&self, name: &str) -> Result<usize> {
        self.at(name)?.whole(1..=LARGEST)
    }

    fn float(&self) -> Result<f32> {
        self.value.as_f64().map(|x| x as f32).ok_or_else(|| format!("`{}` is not a number", self.path))
    }

    /// Number of heads, which split `width` evenly.
    fn heads(&self, width: usize) -> Result<usize> {
        let heads = self.size("n_heads")?;
        if width.is_multiple_of(heads) {
            return Ok(heads);
        }
        Err(format!("`{}`: a width of {width} cannot be split into {heads} heads", self.path))
    }

    fn dilations(&self) -> Result<Vec<usize>> {
        let list = self.at("dilation_lst")?;
        let all = list.value.as_array().ok_or_else(|| format!("`{}` is not a list", list.path))?;
        if all.len() > MOST_LAYERS {
            let (path, n) = (&list.path, all.len());
            return Err(format!("`{path}` has {n} layers; at most {MOST_LAYERS} are supported"));
        }
        let dilation = |value| Part { path: list.path.clone(), value }.whole(1..=LARGEST);
        all.iter().map(dilation).collect()
    }
}
