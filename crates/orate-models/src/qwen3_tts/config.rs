//! `config.json`, `generation_config.json` and `speech_tokenizer/config.json`.
//!
//! Names are those of the files. Values that no network needs are ignored. Those that one needs must be
//! there, because the defaults in the official classes belong to another model. What our networks take for
//! granted (activation, no biases, kind of attention) is checked, so that a checkpoint that differs fails
//! when it is opened and not in its sound.

#![allow(missing_docs, reason = "most fields have the names of the files")]

use crate::blocks::Attention;
use crate::decoding::sampling::{MOST_FRAMES, MOST_IDS};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// `model_type` of a model.
pub const MODEL_TYPE: &str = "qwen3_tts";
/// `model_type` of the codec, and `tokenizer_type` of the models that use it.
pub const CODEC_TYPE: &str = "qwen3_tts_tokenizer_12hz";

/// Number of control ids, which follow the codes in the talker's vocabulary.
pub const CONTROL_IDS: usize = 1024;

/// Where a speaker comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// Reference audio.
    Base,
    /// One of the model's own speakers.
    CustomVoice,
    /// A description.
    VoiceDesign,
}

impl Variant {
    /// As in the names of the official repositories.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Base => "Base",
            Variant::CustomVoice => "CustomVoice",
            Variant::VoiceDesign => "VoiceDesign",
        }
    }
}

/// `config.json`
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Config {
    pub model_type: String,
    /// `0b6` or `1b7`
    pub tts_model_size: String,
    pub tts_model_type: Variant,
    /// [`CODEC_TYPE`]
    pub tokenizer_type: String,
    pub im_start_token_id: u32,
    pub im_end_token_id: u32,
    /// Text id of rows without text.
    pub tts_pad_token_id: u32,
    /// Text id before the text.
    pub tts_bos_token_id: u32,
    /// Text id after the text.
    pub tts_eos_token_id: u32,
    pub talker_config: TalkerConfig,
    /// Only Base models have one.
    pub speaker_encoder_config: Option<SpeakerEncoderConfig>,
}

/// A stack of transformer layers.
///
/// The width of all heads together, `num_attention_heads · head_dim`, need not be `hidden_size`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct TransformerConfig {
    /// Width D of a row.
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    /// Query heads H.
    pub num_attention_heads: usize,
    /// Key and value heads Hkv, each read by H / Hkv query heads.
    pub num_key_value_heads: usize,
    /// Width Dh of a head.
    pub head_dim: usize,
    #[serde(alias = "norm_eps")]
    pub rms_norm_eps: f32,
    pub rope_theta: f64,
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    rope_scaling: Option<RopeScaling>,
    layer_types: Option<Vec<String>>,
}

/// Only `default` is supported. `interleaved` and `mrope_section` say which of three position axes a
/// frequency reads. Here all three hold the same position, so they have no effect.
#[derive(Clone, Debug, Deserialize, PartialEq)]
struct RopeScaling {
    rope_type: Option<String>,
}

/// `talker_config`: text and codes to the first code of a frame.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct TalkerConfig {
    #[serde(flatten)]
    pub transformer: TransformerConfig,
    /// Codec vocabulary V: codes, then [`CONTROL_IDS`] control ids.
    pub vocab_size: usize,
    pub text_vocab_size: usize,
    pub text_hidden_size: usize,
    /// Whether rows of text are in the table as the talker reads them, after the projection. Files of
    /// llama.cpp have them so; official ones do not.
    #[serde(default)]
    pub text_is_projected: bool,
    /// Codes Q of a frame.
    pub num_code_groups: usize,
    /// Rows that a prompt and its frames may have together.
    pub max_position_embeddings: usize,
    /// Control id of each language, and of each dialect.
    pub codec_language_id: BTreeMap<String, u32>,
    #[serde(default)]
    pub spk_id: BTreeMap<String, u32>,
    /// The dialect of each speaker, if any.
    #[serde(default)]
    pub spk_is_dialect: BTreeMap<String, Dialect>,
    /// Codec id of rows without a code.
    pub codec_pad_id: u32,
    /// Codec id before the first code.
    pub codec_bos_id: u32,
    /// Codec id that ends speech.
    pub codec_eos_token_id: u32,
    /// Codec id before a language.
    pub codec_think_id: u32,
    /// Codec id where no language is given.
    pub codec_nothink_id: u32,
    /// Codec id after one of those two.
    pub codec_think_bos_id: u32,
    /// Codec id after the language.
    pub codec_think_eos_id: u32,
    pub code_predictor_config: PredictorConfig,
}

/// A value of `spk_is_dialect`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum Dialect {
    /// `false`
    None(bool),
    /// A key of `codec_language_id`.
    Named(String),
}

/// `code_predictor_config`: code 0 of a frame to codes 1 to Q − 1.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct PredictorConfig {
    #[serde(flatten)]
    pub transformer: TransformerConfig,
    /// Values of a code.
    pub vocab_size: usize,
    /// Codes Q of a frame.
    pub num_code_groups: usize,
}

/// `speaker_encoder_config`. The files hold the first two; the rest are the values of the official class.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default)]
pub struct SpeakerEncoderConfig {
    /// Width of the x-vector, that of the talker.
    pub enc_dim: usize,
    pub sample_rate: u32,
    pub mel_dim: usize,
    /// Channels of the first block, the SE-Res2Net blocks and the aggregation.
    pub enc_channels: Vec<usize>,
    /// Taps of each of them.
    pub enc_kernel_sizes: Vec<usize>,
    pub enc_dilations: Vec<usize>,
    /// Channels inside the attentive statistics.
    pub enc_attention_channels: usize,
    /// Parts of a Res2Net block.
    pub enc_res2net_scale: usize,
    pub enc_se_channels: usize,
}

impl Default for SpeakerEncoderConfig {
    fn default() -> Self {
        SpeakerEncoderConfig {
            enc_dim: 1024,
            sample_rate: 24_000,
            mel_dim: 128,
            enc_channels: vec![512, 512, 512, 512, 1536],
            enc_kernel_sizes: vec![5, 3, 3, 3, 1],
            enc_dilations: vec![1, 2, 3, 4, 1],
            enc_attention_channels: 128,
            enc_res2net_scale: 8,
            enc_se_channels: 128,
        }
    }
}

/// `generation_config.json`: default sampling settings, with `subtalker_…` those of the code predictor. For
/// folders without the file they are those of the official package.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default)]
pub struct GenerationConfig {
    /// Whether code 0 of a frame is sampled, rather than the likeliest taken.
    pub do_sample: bool,
    pub top_k: usize,
    pub top_p: f32,
    pub temperature: f32,
    pub repetition_penalty: f32,
    /// Frames at most, and one for the code that ends the speech.
    pub max_new_tokens: usize,
    pub subtalker_dosample: bool,
    pub subtalker_top_k: usize,
    pub subtalker_top_p: f32,
    pub subtalker_temperature: f32,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        GenerationConfig {
            do_sample: true,
            top_k: 50,
            top_p: 1.0,
            temperature: 0.9,
            repetition_penalty: 1.05,
            max_new_tokens: 2048,
            subtalker_dosample: true,
            subtalker_top_k: 50,
            subtalker_top_p: 1.0,
            subtalker_temperature: 0.9,
        }
    }
}

/// `speech_tokenizer/config.json`
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CodecConfig {
    /// [`CODEC_TYPE`]
    pub model_type: String,
    /// Codebooks that are used when encoding.
    pub encoder_valid_num_quantizers: usize,
    pub input_sample_rate: u32,
    pub output_sample_rate: u32,
    /// Samples of a frame.
    pub decode_upsample_rate: usize,
    /// Samples of a frame.
    pub encode_downsample_rate: usize,
    pub decoder_config: CodecDecoderConfig,
    pub encoder_config: CodecEncoderConfig,
}

/// `decoder_config`: codes to samples.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CodecDecoderConfig {
    #[serde(flatten)]
    pub transformer: TransformerConfig,
    /// Channels of the upsampling.
    pub latent_dim: usize,
    /// Width of a dequantized frame; a codebook entry has half of it.
    pub codebook_dim: usize,
    pub codebook_size: usize,
    /// Channels of the first decoder block, halved by each.
    pub decoder_dim: usize,
    pub num_quantizers: usize,
    /// Codebooks of the first quantizer; the others form the second.
    pub num_semantic_quantizers: usize,
    /// Positions that a position attends to, including its own.
    pub sliding_window: usize,
    /// Strides of the decoder blocks.
    pub upsample_rates: Vec<usize>,
    /// Strides before them.
    pub upsampling_ratios: Vec<usize>,
}

/// `encoder_config`: samples to codes, a Mimi encoder.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CodecEncoderConfig {
    #[serde(flatten)]
    pub transformer: TransformerConfig,
    /// Channels of the first convolution, doubled by each stage.
    pub num_filters: usize,
    pub kernel_size: usize,
    pub last_kernel_size: usize,
    pub residual_kernel_size: usize,
    pub num_residual_layers: usize,
    /// Channels are divided by it inside a residual block.
    pub compress: usize,
    /// Strides, the last one first.
    pub upsampling_ratios: Vec<usize>,
    pub codebook_dim: usize,
    pub codebook_size: usize,
    /// Codebooks in the file.
    pub num_quantizers: usize,
    /// Codebooks of the first quantizer.
    pub num_semantic_quantizers: usize,
    /// Width that is quantized.
    pub vector_quantization_hidden_dimension: usize,
    #[serde(default)]
    use_conv_shortcut: bool,
}

/// No released size comes near this. Larger ones are damage, and would ask for absurd amounts of memory.
const LARGEST: usize = 1 << 16;
/// As [`LARGEST`], for vocabularies and sample rates.
const LARGEST_VOCABULARY: usize = 1 << 20;
const NEW: &str = "no released model has that, and it is not supported";

type Check = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($problem:tt)+) => {
        if !$holds {
            return Err(format!($($problem)+));
        }
    };
}

macro_rules! fields {
    ($of:expr, $($field:ident)+) => { [$((stringify!($field), $of.$field)),+] };
}

/// Reads and checks a file. Errors say which value makes no sense or is not supported.
fn read<T: DeserializeOwned>(bytes: &[u8], check: impl Fn(&T) -> Check) -> Result<T, String> {
    let config = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    check(&config)?;
    Ok(config)
}

fn sizes(prefix: &str, most: usize, all: &[(&str, usize)]) -> Check {
    for (name, n) in all {
        ensure!((1..=most).contains(n), "`{prefix}{name}` is {n}; such sizes are from 1 to {most}");
    }
    Ok(())
}

fn ids<'a>(what: &str, all: impl IntoIterator<Item = (&'a str, u32)>, (of, n): (&str, usize)) -> Check {
    for (name, id) in all {
        ensure!((id as usize) < n, "{what}`{name}` is {id}, but `talker_config.{of}` {n}");
    }
    Ok(())
}

impl TransformerConfig {
    /// Checks what the layers of all networks have in common.
    fn check(&self, at: &str, activation: &str) -> Check {
        let all = fields!(self, hidden_size intermediate_size num_hidden_layers num_attention_heads
            num_key_value_heads head_dim);
        sizes(at, LARGEST, &all)?;
        let (heads, kv, width) = (self.num_attention_heads, self.num_key_value_heads, self.head_dim);
        ensure!(
            heads.is_multiple_of(kv),
            "`{at}num_attention_heads` {heads} is no multiple of `num_key_value_heads` {kv}"
        );
        ensure!(
            width.is_multiple_of(2),
            "`{at}head_dim` {width} is odd; rotary positions need an even width"
        );
        let (theta, eps) = (self.rope_theta, self.rms_norm_eps);
        ensure!(theta.is_finite() && theta > 1.0, "`{at}rope_theta` is {theta}");
        ensure!(eps.is_finite() && eps > 0.0, "the epsilon of the norms of `{at}…` is {eps}");
        let act = &self.hidden_act;
        ensure!(act == activation, "`{at}hidden_act` is `{act}`, not `{activation}`; {NEW}");
        ensure!(!self.attention_bias, "`{at}attention_bias` is true; {NEW}");
        Ok(())
    }

    /// Checks the layers of talker and predictor.
    fn check_qwen3(&self, at: &str) -> Check {
        self.check(at, "silu")?;
        let scaling = self.rope_scaling.as_ref().and_then(|r| r.rope_type.as_deref()).unwrap_or("default");
        let full = self.layer_types.iter().flatten().all(|t| t == "full_attention");
        ensure!(!self.use_sliding_window, "`{at}use_sliding_window` is true; {NEW}");
        ensure!(scaling == "default", "`{at}rope_scaling.rope_type` is `{scaling}`, not `default`; {NEW}");
        ensure!(full, "`{at}layer_types` are not all full_attention; {NEW}");
        Ok(())
    }

    pub(super) fn attention(&self) -> Attention {
        Attention {
            width: self.hidden_size,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
        }
    }
}

impl Config {
    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// It is not JSON of this form, or a value makes no sense or is not supported. The text says which.
    pub fn from_json(bytes: &[u8]) -> Result<Config, String> {
        read(bytes, Config::check)
    }

    fn check(&self) -> Check {
        let t = &self.talker_config;
        let p = &t.code_predictor_config;
        let types = [
            ("model_type", &self.model_type, MODEL_TYPE),
            ("tokenizer_type", &self.tokenizer_type, CODEC_TYPE),
        ];
        for (name, got, needed) in types {
            ensure!(got == needed, "`{name}` is `{got}`; only `{needed}` is supported");
        }
        let (at, of_predictor) = ("talker_config.", "talker_config.code_predictor_config.");
        t.transformer.check_qwen3(at)?;
        p.transformer.check_qwen3(of_predictor)?;
        sizes(at, LARGEST_VOCABULARY, &fields!(t, vocab_size text_vocab_size text_hidden_size))?;
        sizes(of_predictor, LARGEST_VOCABULARY, &fields!(p, vocab_size))?;
        sizes(at, 256, &fields!(t, num_code_groups))?;
        let (own, others) = (t.num_code_groups, p.num_code_groups);
        ensure!(own == others && own > 1, "talker and code predictor have {own} and {others} codes a frame");
        let (all, codes) = (t.vocab_size, p.vocab_size);
        ensure!(
            all == codes + CONTROL_IDS,
            "`talker_config.vocab_size` is {all}, not {codes} codes and {CONTROL_IDS} control ids"
        );
        self.check_ids()?;
        match (self.tts_model_type, &self.speaker_encoder_config) {
            (Variant::Base, None) => Err("a Base model without `speaker_encoder_config`".to_owned()),
            (Variant::Base, Some(s)) => s.check(t.transformer.hidden_size),
            (Variant::CustomVoice, _) if t.spk_id.is_empty() => {
                Err("a CustomVoice model without speakers in `talker_config.spk_id`".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Checks that every id lies in its vocabulary, and that names that refer to others exist.
    fn check_ids(&self) -> Check {
        let t = &self.talker_config;
        let text = fields!(self, im_start_token_id im_end_token_id tts_pad_token_id tts_bos_token_id
            tts_eos_token_id);
        ids("", text, ("text_vocab_size", t.text_vocab_size))?;
        let codec = fields!(t, codec_pad_id codec_bos_id codec_eos_token_id codec_think_id codec_nothink_id
            codec_think_bos_id codec_think_eos_id);
        let named = t.codec_language_id.iter().chain(&t.spk_id).map(|(name, id)| (&**name, *id));
        ids("the codec id of ", codec.into_iter().chain(named), ("vocab_size", t.vocab_size))?;
        for (speaker, dialect) in &t.spk_is_dialect {
            let known = match dialect {
                Dialect::None(some) => !some,
                Dialect::Named(d) => t.codec_language_id.contains_key(d),
            };
            ensure!(known, "the dialect of speaker `{speaker}` is not in `codec_language_id`");
        }
        Ok(())
    }

    /// `0.6B`, `1.7B`, or as in the file.
    pub fn size(&self) -> &str {
        match &*self.tts_model_size {
            "0b6" => "0.6B",
            "1b7" => "1.7B",
            other => other,
        }
    }

    fn known_languages(&self, dialects: bool) -> Vec<&str> {
        let all = self.talker_config.codec_language_id.keys().map(String::as_str);
        all.filter(|name| name.contains("dialect") == dialects).collect()
    }

    /// Languages, without the dialects.
    pub fn languages(&self) -> Vec<&str> {
        self.known_languages(false)
    }

    /// Dialects, which come with a speaker.
    pub fn dialects(&self) -> Vec<&str> {
        self.known_languages(true)
    }

    /// The model's own speakers.
    pub fn speakers(&self) -> Vec<&str> {
        self.talker_config.spk_id.keys().map(String::as_str).collect()
    }
}

impl SpeakerEncoderConfig {
    fn check(&self, talker_width: usize) -> Check {
        let (at, width) = ("speaker_encoder_config.", self.enc_dim);
        ensure!(
            width == talker_width,
            "`{at}enc_dim` is {width}, but the talker's rows have {talker_width} values"
        );
        let (channels, parts) = (&self.enc_channels, self.enc_res2net_scale);
        let [n, taps, dilations] = [channels, &self.enc_kernel_sizes, &self.enc_dilations].map(Vec::len);
        ensure!(
            n >= 3 && [taps, dilations] == [n, n],
            "`{at}enc_channels`, `enc_kernel_sizes` and `enc_dilations` have {n}, {taps} and {dilations} \
             entries; they need one for each of at least 3 blocks"
        );
        let all = fields!(self, enc_dim mel_dim enc_attention_channels enc_se_channels enc_res2net_scale);
        sizes(at, LARGEST, &all)?;
        let lists = [
            ("enc_channels", channels),
            ("enc_kernel_sizes", &self.enc_kernel_sizes),
            ("enc_dilations", &self.enc_dilations),
        ];
        for (name, n) in lists.iter().flat_map(|(name, list)| list.iter().map(|n| (*name, *n))) {
            sizes(at, LARGEST, &[(name, n)])?;
        }
        let first = channels[0];
        ensure!(
            channels[..n - 1].iter().all(|c| *c == first) && first.is_multiple_of(parts),
            "`{at}enc_channels` {channels:?} cannot be added up or cut into {parts} parts"
        );
        Ok(())
    }
}

impl GenerationConfig {
    pub fn from_json(bytes: &[u8]) -> Result<GenerationConfig, String> {
        read(bytes, GenerationConfig::check)
    }

    fn check(&self) -> Check {
        let factors = fields!(self, temperature repetition_penalty subtalker_temperature).map(|f| (f, 100.0));
        let parts = fields!(self, top_p subtalker_top_p).map(|f| (f, 1.0));
        for ((name, x), most) in factors.into_iter().chain(parts) {
            ensure!(x > 0.0 && x <= most, "`{name}` is {x}; it must be above 0, and at most {most}");
        }
        let candidates = fields!(self, top_k subtalker_top_k).map(|f| (f, 0, MOST_IDS));
        // The last of the new tokens ends the speech.
        let frames = fields!(self, max_new_tokens).map(|f| (f, 2, MOST_FRAMES + 1));
        for ((name, n), least, most) in candidates.into_iter().chain(frames) {
            ensure!((least..=most).contains(&n), "`{name}` is {n}; it must be {least} to {most}");
        }
        Ok(())
    }
}

impl CodecConfig {
    pub fn from_json(bytes: &[u8]) -> Result<CodecConfig, String> {
        read(bytes, CodecConfig::check)
    }

    fn check(&self) -> Check {
        let (d, e, model) = (&self.decoder_config, &self.encoder_config, &self.model_type);
        ensure!(model == CODEC_TYPE, "`model_type` is `{model}`; only `{CODEC_TYPE}` is supported");
        d.check()?;
        e.check()?;
        let (decoded, encoded) = (self.decode_upsample_rate, self.encode_downsample_rate);
        let (up, down) = (d.samples_per_frame(), e.samples_per_frame());
        ensure!(
            Some(decoded) == up && Some(encoded) == down,
            "a frame should have {decoded} samples decoded and {encoded} encoded, but the strides make \
             {up:?} and {down:?}"
        );
        let rates = fields!(self, input_sample_rate output_sample_rate).map(|(name, n)| (name, n as usize));
        sizes("", LARGEST_VOCABULARY, &rates)?;
        let (valid, there, used) = (self.encoder_valid_num_quantizers, e.num_quantizers, d.num_quantizers);
        ensure!(
            valid == used && valid <= there,
            "{valid} of {there} codebooks are for encoding, but {used} for decoding"
        );
        let [decoding, encoding] = [d.codebook_size, e.codebook_size];
        ensure!(
            decoding == encoding,
            "codebooks have {decoding} entries for decoding, but {encoding} for encoding"
        );
        Ok(())
    }

    /// Frames in a second: 12.5.
    pub fn frame_rate(&self) -> f64 {
        f64::from(self.output_sample_rate) / self.decode_upsample_rate as f64
    }
}

/// Product of the strides, unless it overflows.
fn product<'a>(strides: impl IntoIterator<Item = &'a usize>) -> Option<usize> {
    strides.into_iter().try_fold(1usize, |n, s| n.checked_mul(*s)).filter(|n| *n > 0 && *n <= LARGEST)
}

impl CodecDecoderConfig {
    fn check(&self) -> Check {
        let at = "decoder_config.";
        self.transformer.check(at, "silu")?;
        let all = fields!(self, latent_dim codebook_dim codebook_size decoder_dim num_quantizers
            sliding_window);
        sizes(at, LARGEST, &all)?;
        let (heads, kv) = (self.transformer.num_attention_heads, self.transformer.num_key_value_heads);
        ensure!(heads == kv, "`{at}num_key_value_heads` is {kv}, not {heads} as all heads; {NEW}");
        let (semantic, books) = (self.num_semantic_quantizers, self.num_quantizers);
        ensure!(
            semantic == 1 && books > 1,
            "`{at}`: {semantic} of {books} codebooks are semantic; only 1 is supported"
        );
        let (entry, channels, halvings) = (self.codebook_dim, self.decoder_dim, self.upsample_rates.len());
        ensure!(
            entry.is_multiple_of(2) && halvings < 16 && channels.is_multiple_of(1 << halvings),
            "`{at}codebook_dim` {entry} and `decoder_dim` {channels} cannot be halved 1 and {halvings} times"
        );
        Ok(())
    }

    /// Samples of a frame, unless the strides overflow.
    pub fn samples_per_frame(&self) -> Option<usize> {
        product(self.upsample_rates.iter().chain(&self.upsampling_ratios))
    }

    pub fn entry_width(&self) -> usize {
        self.codebook_dim / 2
    }
}

impl CodecEncoderConfig {
    fn check(&self) -> Check {
        let at = "encoder_config.";
        self.transformer.check(at, "gelu")?;
        let all = fields!(self, num_filters kernel_size last_kernel_size residual_kernel_size compress
            codebook_dim codebook_size num_quantizers vector_quantization_hidden_dimension);
        sizes(at, LARGEST, &all)?;
        ensure!(!self.use_conv_shortcut, "`{at}use_conv_shortcut` is true; {NEW}");
        for (name, n) in fields!(self, num_residual_layers num_semantic_quantizers) {
            ensure!(n == 1, "`{at}{name}` is {n}, not 1; {NEW}");
        }
        let (strides, part) = (&self.upsampling_ratios, self.compress);
        ensure!(
            strides.len() < 12 && self.num_filters.is_multiple_of(part),
            "`{at}upsampling_ratios` {strides:?} or `compress` {part} make no sense"
        );
        Ok(())
    }

    /// Samples of a frame, unless the strides overflow. The last stride, 2, is not in the file.
    pub fn samples_per_frame(&self) -> Option<usize> {
        product(self.upsampling_ratios.iter().chain(&[2]))
    }
}
