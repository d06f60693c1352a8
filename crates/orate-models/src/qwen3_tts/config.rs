//! `config.json`, `generation_config.json` and `speech_tokenizer/config.json`.
//!
//! Names are those of the files. Values that no network needs are ignored. Those that one needs must be
//! there, because the defaults in the official classes belong to another model. What our networks take for
//! granted (activation, no biases, kind of attention) is checked, so that a checkpoint that differs fails
//! when it is opened and not in its sound.

use crate::decoding::sampling::{MOST_FRAMES, MOST_IDS};
use serde::Deserialize;
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
    /// [`MODEL_TYPE`]
    pub model_type: String,
    /// `0b6` or `1b7`
    pub tts_model_size: String,
    /// Where the speaker comes from.
    pub tts_model_type: Variant,
    /// [`CODEC_TYPE`]
    pub tokenizer_type: String,
    /// Text id of `<|im_start|>`.
    pub im_start_token_id: u32,
    /// Text id of `<|im_end|>`.
    pub im_end_token_id: u32,
    /// Text id of rows without text.
    pub tts_pad_token_id: u32,
    /// Text id before the text.
    pub tts_bos_token_id: u32,
    /// Text id after the text.
    pub tts_eos_token_id: u32,
    /// The talker.
    pub talker_config: TalkerConfig,
    /// The speaker encoder; only Base models have one.
    #[serde(default)]
    pub speaker_encoder_config: Option<SpeakerEncoderConfig>,
}

/// A stack of Qwen3 transformer layers.
///
/// The width of all heads together, `num_attention_heads · head_dim`, need not be `hidden_size`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct TransformerConfig {
    /// Width D of a row.
    pub hidden_size: usize,
    /// Width inside the feed-forward part.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads H.
    pub num_attention_heads: usize,
    /// Key and value heads Hkv, each read by H / Hkv query heads.
    pub num_key_value_heads: usize,
    /// Width Dh of a head.
    pub head_dim: usize,
    /// Epsilon of every norm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default)]
    rope_scaling: Option<RopeScaling>,
    #[serde(default)]
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
    /// Its layers.
    #[serde(flatten)]
    pub transformer: TransformerConfig,
    /// Codec vocabulary V: codes, then [`CONTROL_IDS`] control ids.
    pub vocab_size: usize,
    /// Text vocabulary.
    pub text_vocab_size: usize,
    /// Width Dt of a text embedding.
    pub text_hidden_size: usize,
    /// Codes Q of a frame.
    pub num_code_groups: usize,
    /// Rows that a prompt and its frames may have together.
    pub max_position_embeddings: usize,
    /// Control id of each language, and of each dialect.
    pub codec_language_id: BTreeMap<String, u32>,
    /// Control id of each speaker.
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
    /// The code predictor.
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
    /// Its layers.
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
    /// Hz
    pub sample_rate: u32,
    /// Mel bands.
    pub mel_dim: usize,
    /// Channels of the first block, the SE-Res2Net blocks and the aggregation.
    pub enc_channels: Vec<usize>,
    /// Taps of each of them.
    pub enc_kernel_sizes: Vec<usize>,
    /// Dilation of each of them.
    pub enc_dilations: Vec<usize>,
    /// Channels inside the attentive statistics.
    pub enc_attention_channels: usize,
    /// Parts of a Res2Net block.
    pub enc_res2net_scale: usize,
    /// Channels inside squeeze and excitation.
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

/// `generation_config.json`: default sampling settings. For folders without the file they are those of the
/// official package.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default)]
pub struct GenerationConfig {
    /// Whether code 0 of a frame is sampled, rather than the likeliest taken.
    pub do_sample: bool,
    /// Candidates kept; 0 keeps all.
    pub top_k: usize,
    /// Probability kept.
    pub top_p: f32,
    /// Divides the logits.
    pub temperature: f32,
    /// Divides the logits of ids that were drawn before.
    pub repetition_penalty: f32,
    /// Frames at most.
    pub max_new_tokens: usize,
    /// Whether the predictor's codes are sampled.
    pub subtalker_dosample: bool,
    /// As `top_k`, for the predictor's codes.
    pub subtalker_top_k: usize,
    /// As `top_p`, for the predictor's codes.
    pub subtalker_top_p: f32,
    /// As `temperature`, for the predictor's codes.
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
    /// Hz
    pub input_sample_rate: u32,
    /// Hz
    pub output_sample_rate: u32,
    /// Samples of a frame.
    pub decode_upsample_rate: usize,
    /// Samples of a frame.
    pub encode_downsample_rate: usize,
    /// Codes to samples.
    pub decoder_config: CodecDecoderConfig,
    /// Samples to codes.
    pub encoder_config: CodecEncoderConfig,
}

/// `decoder_config`
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CodecDecoderConfig {
    /// Channels of the upsampling.
    pub latent_dim: usize,
    /// Width of a dequantized frame; a codebook entry has half of it.
    pub codebook_dim: usize,
    /// Entries of a codebook.
    pub codebook_size: usize,
    /// Channels of the first decoder block, halved by each.
    pub decoder_dim: usize,
    /// Width of the transformer.
    pub hidden_size: usize,
    /// Width inside its feed-forward part.
    pub intermediate_size: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Codebooks.
    pub num_quantizers: usize,
    /// Codebooks of the first quantizer; the others form the second.
    pub num_semantic_quantizers: usize,
    /// Epsilon of the transformer's norms.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Positions that a position attends to, including its own.
    pub sliding_window: usize,
    /// Strides of the decoder blocks.
    pub upsample_rates: Vec<usize>,
    /// Strides before them.
    pub upsampling_ratios: Vec<usize>,
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
}

/// `encoder_config`: a Mimi encoder.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CodecEncoderConfig {
    /// Channels of the first convolution, doubled by each stage.
    pub num_filters: usize,
    /// Taps of the first convolution.
    pub kernel_size: usize,
    /// Taps of the last convolution.
    pub last_kernel_size: usize,
    /// Taps inside a residual block.
    pub residual_kernel_size: usize,
    /// Residual blocks of a stage.
    pub num_residual_layers: usize,
    /// Channels are divided by it inside a residual block.
    pub compress: usize,
    /// Strides, the last one first.
    pub upsampling_ratios: Vec<usize>,
    /// Width of the transformer.
    pub hidden_size: usize,
    /// Width inside its feed-forward part.
    pub intermediate_size: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Epsilon of its norms.
    pub norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Width of a codebook entry.
    pub codebook_dim: usize,
    /// Entries of a codebook.
    pub codebook_size: usize,
    /// Codebooks in the file.
    pub num_quantizers: usize,
    /// Codebooks of the first quantizer.
    pub num_semantic_quantizers: usize,
    /// Width that is quantized.
    pub vector_quantization_hidden_dimension: usize,
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    use_conv_shortcut: bool,
}

/// No released size comes near this. Larger ones are damage, and would ask for absurd amounts of memory.
const LARGEST: usize = 1 << 16;
/// As [`LARGEST`], for vocabularies.
const LARGEST_VOCABULARY: usize = 1 << 20;

type Check = Result<(), String>;

fn sizes(prefix: &str, most: usize, all: &[(&str, usize)]) -> Check {
    match all.iter().find(|(_, n)| *n == 0 || *n > most) {
        Some((name, n)) => Err(format!("`{prefix}{name}` is {n}; such sizes are from 1 to {most}")),
        None => Ok(()),
    }
}

fn expect(holds: bool, problem: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(problem()) }
}

impl TransformerConfig {
    fn check(&self, at: &str) -> Check {
        let heads = (self.num_attention_heads, self.num_key_value_heads);
        sizes(
            at,
            LARGEST,
            &[
                ("hidden_size", self.hidden_size),
                ("intermediate_size", self.intermediate_size),
                ("num_hidden_layers", self.num_hidden_layers),
                ("num_attention_heads", heads.0),
                ("num_key_value_heads", heads.1),
                ("head_dim", self.head_dim),
            ],
        )?;
        attention(at, heads, self.head_dim, self.rope_theta, self.rms_norm_eps)?;
        let scaling = self.rope_scaling.as_ref().and_then(|r| r.rope_type.as_deref()).unwrap_or("default");
        let full = |t: &String| t == "full_attention";
        let known = [
            (self.hidden_act == "silu", format!("`{at}hidden_act` is `{}`, not `silu`", self.hidden_act)),
            (!self.attention_bias, format!("`{at}attention_bias` is true")),
            (!self.use_sliding_window, format!("`{at}use_sliding_window` is true")),
            (scaling == "default", format!("`{at}rope_scaling.rope_type` is `{scaling}`, not `default`")),
            (
                self.layer_types.iter().flatten().all(full),
                format!("`{at}layer_types` are not all full_attention"),
            ),
        ];
        match known.into_iter().find(|(holds, _)| !holds) {
            Some((_, problem)) => {
                Err(format!("{problem}; no released model has that, and it is not supported"))
            }
            None => Ok(()),
        }
    }
}

fn attention(at: &str, (heads, kv): (usize, usize), head_dim: usize, theta: f64, eps: f32) -> Check {
    expect(heads.is_multiple_of(kv), || {
        format!("`{at}num_attention_heads` {heads} is no multiple of `num_key_value_heads` {kv}")
    })?;
    expect(head_dim.is_multiple_of(2), || format!("`{at}head_dim` {head_dim} is odd, and cannot be turned"))?;
    expect(theta.is_finite() && theta > 1.0, || format!("`{at}rope_theta` is {theta}"))?;
    expect(eps.is_finite() && eps > 0.0, || format!("the epsilon of the norms of `{at}…` is {eps}"))
}

impl Config {
    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// It is not JSON of this form, or a value makes no sense or is not supported. The text says which.
    pub fn from_json(bytes: &[u8]) -> Result<Config, String> {
        let c: Config = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        c.check()?;
        Ok(c)
    }

    fn check(&self) -> Check {
        let t = &self.talker_config;
        let p = &t.code_predictor_config;
        for (name, got, needed) in [
            ("model_type", &self.model_type, MODEL_TYPE),
            ("tokenizer_type", &self.tokenizer_type, CODEC_TYPE),
        ] {
            expect(got == needed, || format!("`{name}` is `{got}`; only `{needed}` is supported"))?;
        }
        t.transformer.check("talker_config.")?;
        p.transformer.check("talker_config.code_predictor_config.")?;
        sizes(
            "talker_config.",
            LARGEST_VOCABULARY,
            &[
                ("vocab_size", t.vocab_size),
                ("text_vocab_size", t.text_vocab_size),
                ("text_hidden_size", t.text_hidden_size),
                ("code_predictor_config.vocab_size", p.vocab_size),
            ],
        )?;
        sizes("talker_config.", 256, &[("num_code_groups", t.num_code_groups)])?;
        expect(t.num_code_groups == p.num_code_groups && t.num_code_groups > 1, || {
            format!(
                "talker and code predictor have {} and {} codes a frame",
                t.num_code_groups, p.num_code_groups
            )
        })?;
        expect(t.vocab_size == p.vocab_size + CONTROL_IDS, || {
            let codes = p.vocab_size;
            format!(
                "`talker_config.vocab_size` is {}, not {codes} codes and {CONTROL_IDS} control ids",
                t.vocab_size
            )
        })?;
        self.check_ids()?;
        let speaker = self.speaker_encoder_config.as_ref();
        match (self.tts_model_type, speaker) {
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
        let text = [
            ("im_start_token_id", self.im_start_token_id),
            ("im_end_token_id", self.im_end_token_id),
            ("tts_pad_token_id", self.tts_pad_token_id),
            ("tts_bos_token_id", self.tts_bos_token_id),
            ("tts_eos_token_id", self.tts_eos_token_id),
        ];
        let inside = |id: u32, n: usize| usize::try_from(id).is_ok_and(|id| id < n);
        if let Some((name, id)) = text.iter().find(|(_, id)| !inside(*id, t.text_vocab_size)) {
            return Err(format!(
                "`{name}` is {id}, but `talker_config.text_vocab_size` {}",
                t.text_vocab_size
            ));
        }
        let fixed = [
            ("codec_pad_id", t.codec_pad_id),
            ("codec_bos_id", t.codec_bos_id),
            ("codec_eos_token_id", t.codec_eos_token_id),
            ("codec_think_id", t.codec_think_id),
            ("codec_nothink_id", t.codec_nothink_id),
            ("codec_think_bos_id", t.codec_think_bos_id),
            ("codec_think_eos_id", t.codec_think_eos_id),
        ];
        let named =
            |map: &BTreeMap<String, u32>| map.iter().map(|(n, id)| (n.clone(), *id)).collect::<Vec<_>>();
        let codec = fixed.iter().map(|(n, id)| ((*n).to_owned(), *id));
        let mut codec = codec.chain(named(&t.codec_language_id)).chain(named(&t.spk_id));
        if let Some((name, id)) = codec.find(|(_, id)| !inside(*id, t.vocab_size)) {
            return Err(format!(
                "the codec id of `{name}` is {id}, but `talker_config.vocab_size` {}",
                t.vocab_size
            ));
        }
        for (speaker, dialect) in &t.spk_is_dialect {
            match dialect {
                Dialect::None(false) => {}
                Dialect::Named(d) if t.codec_language_id.contains_key(d) => {}
                _ => return Err(format!("the dialect of speaker `{speaker}` is not in `codec_language_id`")),
            }
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

    /// Languages, without the dialects.
    pub fn languages(&self) -> Vec<&str> {
        let all = self.talker_config.codec_language_id.keys().map(String::as_str);
        all.filter(|l| !l.contains("dialect")).collect()
    }

    /// Dialects, which come with a speaker.
    pub fn dialects(&self) -> Vec<&str> {
        let all = self.talker_config.codec_language_id.keys().map(String::as_str);
        all.filter(|l| l.contains("dialect")).collect()
    }

    /// The model's own speakers.
    pub fn speakers(&self) -> Vec<&str> {
        self.talker_config.spk_id.keys().map(String::as_str).collect()
    }
}

impl SpeakerEncoderConfig {
    fn check(&self, talker_width: usize) -> Check {
        let at = "speaker_encoder_config.";
        expect(self.enc_dim == talker_width, || {
            format!("`{at}enc_dim` is {}, but the talker's rows have {talker_width} values", self.enc_dim)
        })?;
        let n = self.enc_channels.len();
        let lists = [self.enc_kernel_sizes.len(), self.enc_dilations.len()];
        expect(n >= 3 && lists == [n, n], || {
            format!(
                "`{at}enc_channels`, `enc_kernel_sizes` and `enc_dilations` have {n}, {} and {} entries; they \
                     need one for each of at least 3 blocks",
                lists[0], lists[1]
            )
        })?;
        let mut all = vec![
            ("enc_dim", self.enc_dim),
            ("mel_dim", self.mel_dim),
            ("enc_attention_channels", self.enc_attention_channels),
            ("enc_se_channels", self.enc_se_channels),
            ("enc_res2net_scale", self.enc_res2net_scale),
        ];
        all.extend(self.enc_channels.iter().map(|n| ("enc_channels", *n)));
        all.extend(self.enc_kernel_sizes.iter().map(|n| ("enc_kernel_sizes", *n)));
        all.extend(self.enc_dilations.iter().map(|n| ("enc_dilations", *n)));
        sizes(at, LARGEST, &all)?;
        let (first, inner) = (self.enc_channels[0], &self.enc_channels[..n - 1]);
        expect(inner.iter().all(|c| *c == first) && first.is_multiple_of(self.enc_res2net_scale), || {
            format!(
                "`{at}enc_channels` {:?} cannot be added up or cut into {} parts",
                self.enc_channels, self.enc_res2net_scale
            )
        })
    }
}

impl GenerationConfig {
    /// Reads and checks `generation_config.json`.
    ///
    /// # Errors
    /// As [`Config::from_json`].
    pub fn from_json(bytes: &[u8]) -> Result<GenerationConfig, String> {
        let c: GenerationConfig = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let positive = [
            ("temperature", c.temperature, 100.0),
            ("repetition_penalty", c.repetition_penalty, 100.0),
            ("subtalker_temperature", c.subtalker_temperature, 100.0),
            ("top_p", c.top_p, 1.0),
            ("subtalker_top_p", c.subtalker_top_p, 1.0),
        ];
        for (name, x, most) in positive {
            expect(x > 0.0 && x <= most, || {
                format!("`{name}` is {x}; it must be above 0, and at most {most}")
            })?;
        }
        // The last of the new tokens ends the speech.
        let counts = [
            ("top_k", c.top_k, 0, MOST_IDS),
            ("subtalker_top_k", c.subtalker_top_k, 0, MOST_IDS),
            ("max_new_tokens", c.max_new_tokens, 2, MOST_FRAMES + 1),
        ];
        for (name, n, least, most) in counts {
            expect((least..=most).contains(&n), || format!("`{name}` is {n}; it must be {least} to {most}"))?;
        }
        Ok(c)
    }
}

impl CodecConfig {
    /// Reads and checks a codec's `config.json`.
    ///
    /// # Errors
    /// As [`Config::from_json`].
    pub fn from_json(bytes: &[u8]) -> Result<CodecConfig, String> {
        let c: CodecConfig = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        c.check()?;
        Ok(c)
    }

    fn check(&self) -> Check {
        let (d, e) = (&self.decoder_config, &self.encoder_config);
        expect(self.model_type == CODEC_TYPE, || {
            format!("`model_type` is `{}`; only `{CODEC_TYPE}` is supported", self.model_type)
        })?;
        d.check()?;
        e.check()?;
        let (up, down) = (d.samples_per_frame(), e.samples_per_frame());
        expect(Some(self.decode_upsample_rate) == up && Some(self.encode_downsample_rate) == down, || {
            format!(
                "a frame should have {} samples decoded and {} encoded, but the strides make {up:?} and {down:?}",
                self.decode_upsample_rate, self.encode_downsample_rate
            )
        })?;
        sizes(
            "",
            1 << 20,
            &[
                ("input_sample_rate", self.input_sample_rate as usize),
                ("output_sample_rate", self.output_sample_rate as usize),
            ],
        )?;
        let valid = self.encoder_valid_num_quantizers;
        expect(valid == d.num_quantizers && valid <= e.num_quantizers, || {
            format!(
                "{} of {} codebooks are for encoding, but {} for decoding",
                valid, e.num_quantizers, d.num_quantizers
            )
        })?;
        expect(d.codebook_size == e.codebook_size, || {
            format!(
                "codebooks have {} entries for decoding, but {} for encoding",
                d.codebook_size, e.codebook_size
            )
        })
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
        sizes(
            at,
            LARGEST,
            &[
                ("latent_dim", self.latent_dim),
                ("codebook_dim", self.codebook_dim),
                ("codebook_size", self.codebook_size),
                ("decoder_dim", self.decoder_dim),
                ("hidden_size", self.hidden_size),
                ("intermediate_size", self.intermediate_size),
                ("head_dim", self.head_dim),
                ("num_attention_heads", self.num_attention_heads),
                ("num_key_value_heads", self.num_key_value_heads),
                ("num_hidden_layers", self.num_hidden_layers),
                ("num_quantizers", self.num_quantizers),
                ("sliding_window", self.sliding_window),
            ],
        )?;
        attention(
            at,
            (self.num_attention_heads, self.num_key_value_heads),
            self.head_dim,
            self.rope_theta,
            self.rms_norm_eps,
        )?;
        let same_heads = self.num_attention_heads == self.num_key_value_heads;
        expect(self.hidden_act == "silu" && !self.attention_bias && same_heads, || {
            format!(
                "`{at}`: an activation other than silu, biases in attention or shared key heads are not supported"
            )
        })?;
        expect(self.num_semantic_quantizers == 1 && self.num_quantizers > 1, || {
            format!(
                "`{at}`: {} of {} codebooks are semantic; only 1 is supported",
                self.num_semantic_quantizers, self.num_quantizers
            )
        })?;
        let halvings = self.upsample_rates.len();
        let even = halvings < 16 && self.decoder_dim.is_multiple_of(1 << halvings);
        expect(self.codebook_dim.is_multiple_of(2) && even, || {
            format!(
                "`{at}codebook_dim` {} and `decoder_dim` {} cannot be halved 1 and {halvings} times",
                self.codebook_dim, self.decoder_dim
            )
        })
    }

    /// Samples of a frame, unless the strides overflow.
    pub fn samples_per_frame(&self) -> Option<usize> {
        product(self.upsample_rates.iter().chain(&self.upsampling_ratios))
    }

    /// Width of a codebook entry.
    pub fn entry_width(&self) -> usize {
        self.codebook_dim / 2
    }
}

impl CodecEncoderConfig {
    fn check(&self) -> Check {
        let at = "encoder_config.";
        sizes(
            at,
            LARGEST,
            &[
                ("num_filters", self.num_filters),
                ("kernel_size", self.kernel_size),
                ("last_kernel_size", self.last_kernel_size),
                ("residual_kernel_size", self.residual_kernel_size),
                ("compress", self.compress),
                ("hidden_size", self.hidden_size),
                ("intermediate_size", self.intermediate_size),
                ("head_dim", self.head_dim),
                ("num_attention_heads", self.num_attention_heads),
                ("num_key_value_heads", self.num_key_value_heads),
                ("num_hidden_layers", self.num_hidden_layers),
                ("codebook_dim", self.codebook_dim),
                ("codebook_size", self.codebook_size),
                ("num_quantizers", self.num_quantizers),
                ("vector_quantization_hidden_dimension", self.vector_quantization_hidden_dimension),
            ],
        )?;
        attention(
            at,
            (self.num_attention_heads, self.num_key_value_heads),
            self.head_dim,
            self.rope_theta,
            self.norm_eps,
        )?;
        let known = self.hidden_act == "gelu"
            && !self.attention_bias
            && !self.use_conv_shortcut
            && self.num_residual_layers == 1
            && self.num_semantic_quantizers == 1;
        expect(known, || {
            format!(
                "`{at}`: another activation than gelu, biases in attention, convolutions as shortcuts, or other \
                     numbers of residual layers or semantic codebooks than 1 are not supported"
            )
        })?;
        expect(self.upsampling_ratios.len() < 12 && self.num_filters.is_multiple_of(self.compress), || {
            format!(
                "`{at}upsampling_ratios` {:?} or `compress` {} make no sense",
                self.upsampling_ratios, self.compress
            )
        })
    }

    /// Samples of a frame, unless the strides overflow. The last stride, 2, is not in the file.
    pub fn samples_per_frame(&self) -> Option<usize> {
        product(self.upsampling_ratios.iter().chain(&[2]))
    }
}
