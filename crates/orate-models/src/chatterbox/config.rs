//! Sizes of the networks. Checkpoints have no configuration: sizes follow from shapes of tensors, and every
//! head is 64 wide.

use orate_weights::WeightSource;

/// Id that begins speech.
pub const START_OF_SPEECH: i32 = 6561;
/// Id that ends speech. Codes of the speech tokenizer are those below [`START_OF_SPEECH`].
pub const END_OF_SPEECH: i32 = 6562;
/// Code of silence, three of which follow the speech of Turbo and Nano.
pub const SILENCE: i32 = 4299;
/// Codes of a second of speech.
pub const CODES_PER_SECOND: usize = 25;
/// Samples of a code at 24 kHz.
pub const SAMPLES_PER_CODE: usize = 960;
/// Mel frames of a code.
pub const FRAMES_PER_CODE: usize = 2;
/// Samples of a mel frame at 24 kHz.
pub const SAMPLES_PER_FRAME: usize = SAMPLES_PER_CODE / FRAMES_PER_CODE;
/// Bands of the mel spectrograms that are generated.
pub const MEL: usize = 80;
/// Width of the speaker embedding that T3 reads.
pub const SPEAKER: usize = 256;
/// Width of the x-vector that S3Gen reads.
pub const X_VECTOR: usize = 192;
/// Samples per second of speech.
pub const SAMPLE_RATE: u32 = 24_000;

/// Name of the family.
pub const NAME: &str = "Chatterbox";

/// Width of a head.
const HEAD: usize = 64;
/// Heads of the perceiver, whatever their width.
const PERCEIVER_HEADS: usize = 4;

/// Heads of T3 that the alignment guard watches.
pub const ALIGNED_HEADS: usize = 3;

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// English, with guidance.
    English,
    /// 23 languages, with guidance.
    Multilingual,
    /// English, fast.
    Turbo,
    /// English, small and fast.
    Nano,
    /// Voice conversion: an S3Gen without T3.
    Conversion,
}

impl Variant {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Variant::English => "English",
            Variant::Multilingual => "Multilingual",
            Variant::Turbo => "Turbo",
            Variant::Nano => "Nano",
            Variant::Conversion => "voice conversion",
        }
    }

    /// Whether T3 is made of GPT-2 layers, and S3Gen has a few steps without guidance.
    pub fn is_fast(self) -> bool {
        matches!(self, Variant::Turbo | Variant::Nano)
    }
}

/// Transformer that T3 is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backbone {
    /// English and Multilingual: rotary positions, two rows for each utterance (guidance).
    Llama,
    /// Turbo and Nano: learned positions.
    Gpt2,
}

/// Sizes of T3.
#[derive(Clone, Debug, PartialEq)]
pub struct T3Config {
    /// Kind of transformer.
    pub backbone: Backbone,
    /// Layers.
    pub layers: usize,
    /// Width of a row.
    pub width: usize,
    /// Heads.
    pub heads: usize,
    /// Width between the matmuls of an MLP.
    pub inner: usize,
    /// Ids of text.
    pub text_ids: usize,
    /// Ids of speech.
    pub speech_ids: usize,
    /// Learned positions of text; for GPT-2, of all rows.
    pub text_positions: usize,
    /// Learned positions of speech; 0 for GPT-2.
    pub speech_positions: usize,
    /// Rows that the perceiver makes of a prompt; 0 for GPT-2.
    pub queries: usize,
    /// Heads of the perceiver.
    pub perceiver_heads: usize,
    /// Whether matrices of GPT-2 layers are stored `[out, in]`, as in GGUF files, and not `[in, out]`.
    pub is_turned: bool,
}

impl T3Config {
    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.width / self.heads
    }

    /// Batch rows of an utterance.
    pub fn lanes(&self) -> usize {
        match self.backbone {
            Backbone::Llama => 2,
            Backbone::Gpt2 => 1,
        }
    }

    /// Rows that begin speech: the official code of English and Multilingual appends the row twice.
    pub fn starts(&self) -> usize {
        self.lanes()
    }

    /// Rows of the conditioning for a prompt of `codes` codes.
    pub fn conditioning_rows(&self, codes: usize) -> usize {
        match self.backbone {
            Backbone::Llama => self.queries + 2,
            Backbone::Gpt2 => codes + 1,
        }
    }

    /// Layer and head of the attentions that follow the text while it is spoken, where they are known: in
    /// the released Multilingual model, and by agreement in the tiny one of `oracle/chatterbox`.
    pub fn aligned_heads(&self) -> Option<[[usize; 2]; ALIGNED_HEADS]> {
        match (self.backbone, self.layers, self.heads) {
            (Backbone::Llama, 30, 16) => Some([[12, 15], [13, 11], [9, 2]]),
            (Backbone::Llama, 3, 2) => Some([[1, 1], [2, 0], [0, 1]]),
            _ => None,
        }
    }

    /// Codes of a recording that condition T3 at most.
    pub fn prompt_codes(&self) -> usize {
        match self.backbone {
            Backbone::Llama => 150,
            Backbone::Gpt2 => 375,
        }
    }

    /// Codes of an utterance at most, each of which has a position of its own in some models.
    pub fn most_codes(&self) -> usize {
        match self.backbone {
            // The start of speech has position 0.
            Backbone::Llama => self.speech_positions - 1,
            Backbone::Gpt2 => self.text_positions,
        }
    }

    /// Rows of a prompt and frames at most.
    pub fn positions(&self) -> usize {
        match self.backbone {
            Backbone::Llama => self.queries + 2 + self.text_positions + self.speech_positions,
            Backbone::Gpt2 => self.text_positions,
        }
    }

    /// Sizes from the tensors of a file.
    ///
    /// # Errors
    /// The file is no T3, in words that name a tensor.
    pub fn of(file: &dyn WeightSource) -> Result<T3Config, String> {
        let rows = |name: &str| Ok::<_, String>(matrix(file, name)?[0]);
        let [speech_ids, width] = matrix(file, "speech_emb.weight")?;
        let text_ids = rows("text_emb.weight")?;
        let is_llama = file.contains("tfmr.norm.weight");
        let (backbone, prefix) =
            if is_llama { (Backbone::Llama, "tfmr.layers.") } else { (Backbone::Gpt2, "tfmr.h.") };
        let layers = count(file, prefix);
        if layers == 0 {
            return Err(format!("it has no tensors `{prefix}0.…`: not a T3 of Chatterbox"));
        }
        let (inner, is_turned) = match backbone {
            Backbone::Llama => (rows("tfmr.layers.0.mlp.gate_proj.weight")?, false),
            Backbone::Gpt2 => match matrix(file, "tfmr.h.0.mlp.c_fc.weight")? {
                [outputs, inputs] if inputs == width && outputs != width => (outputs, true),
                [_, outputs] => (outputs, false),
            },
        };
        let positions = match backbone {
            Backbone::Llama => [rows("text_pos_emb.emb.weight")?, rows("speech_pos_emb.emb.weight")?],
            Backbone::Gpt2 => [rows("tfmr.wpe.weight")?, 0],
        };
        let query = "cond_enc.perceiver.pre_attention_query";
        let queries = match file.info(query).map(|i| i.shape) {
            Some(shape) if shape.len() == 3 => shape[1],
            None if backbone == Backbone::Gpt2 => 0,
            _ => return Err(format!("it has no `{query}` of three axes")),
        };
        let heads_of_t3 = width / HEAD;
        let perceiver_heads = PERCEIVER_HEADS;
        if heads_of_t3 == 0 || !width.is_multiple_of(heads_of_t3) || !width.is_multiple_of(perceiver_heads) {
            return Err(format!("its rows are {width} wide, which is no multiple of heads of {HEAD}"));
        }
        Ok(T3Config {
            backbone,
            layers,
            width,
            heads: heads_of_t3,
            inner,
            text_ids,
            speech_ids,
            text_positions: positions[0],
            speech_positions: positions[1],
            queries,
            perceiver_heads,
            is_turned,
        })
    }
}

/// Sizes of S3Gen.
#[derive(Clone, Debug, PartialEq)]
pub struct S3GenConfig {
    /// Token encoder.
    pub encoder: FlowEncoderConfig,
    /// Estimator of the flow.
    pub estimator: EstimatorConfig,
    /// Vocoder.
    pub vocoder: VocoderConfig,
    /// What reads recordings; some GGUF files leave it out.
    pub encoders: Option<EncodersConfig>,
}

/// Sizes of what reads recordings.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodersConfig {
    /// Speech tokenizer.
    pub tokenizer: SpeechTokenizerConfig,
    /// Speaker encoder.
    pub speaker: SpeakerEncoderConfig,
}

/// Sizes of the token encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowEncoderConfig {
    /// Speech codes.
    pub codes: usize,
    /// Width of the rows of the code table.
    pub embedding: usize,
    /// Width.
    pub width: usize,
    /// Heads.
    pub heads: usize,
    /// Width between the matmuls of a feed-forward.
    pub inner: usize,
    /// Blocks before and after the upsampling.
    pub blocks: [usize; 2],
}

/// Sizes of the estimator.
#[derive(Clone, Debug, PartialEq)]
pub struct EstimatorConfig {
    /// Channels.
    pub width: usize,
    /// Width of the time embedding.
    pub time: usize,
    /// Heads.
    pub heads: usize,
    /// Width of all heads together.
    pub attention: usize,
    /// Width between the matmuls of a feed-forward.
    pub inner: usize,
    /// Stages between the first and the last one.
    pub middle: usize,
    /// Transformer blocks of a stage.
    pub blocks: usize,
    /// Whether it is distilled to few steps without guidance, and reads where a step ends (Turbo, Nano).
    pub is_meanflow: bool,
}

/// Sizes of the vocoder.
#[derive(Clone, Debug, PartialEq)]
pub struct VocoderConfig {
    /// Channels after the first convolution; each upsampling halves them.
    pub width: usize,
    /// Channels of the pitch predictor.
    pub pitch_width: usize,
}

/// Sizes of the speech tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechTokenizerConfig {
    /// Width.
    pub width: usize,
    /// Heads.
    pub heads: usize,
    /// Layers.
    pub layers: usize,
}

/// Sizes of the speaker encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeakerEncoderConfig {
    /// Channels of the image convolutions.
    pub image: usize,
    /// Channels of the first convolution along time.
    pub first: usize,
    /// Channels that each layer of a block adds.
    pub growth: usize,
    /// Channels between the two convolutions of a layer.
    pub bottleneck: usize,
    /// Layers of each block.
    pub layers: [usize; 3],
}

impl S3GenConfig {
    /// Sizes from the tensors of a file.
    ///
    /// # Errors
    /// The file is no S3Gen, in words that name a tensor.
    pub fn of(file: &dyn WeightSource) -> Result<S3GenConfig, String> {
        Ok(S3GenConfig { encoders: Some(EncodersConfig::of(file)?), ..Self::speaking(file)? })
    }

    /// As [`S3GenConfig::of`], without what reads recordings.
    ///
    /// # Errors
    /// As [`S3GenConfig::of`].
    pub fn speaking(file: &dyn WeightSource) -> Result<S3GenConfig, String> {
        let axis = |name: &str, axis: usize| axis_of(file, name, axis);
        let width = axis("flow.encoder.embed.out.0.weight", 0)?;
        let encoder = FlowEncoderConfig {
            codes: axis("flow.input_embedding.weight", 0)?,
            embedding: axis("flow.input_embedding.weight", 1)?,
            width,
            heads: width / HEAD,
            inner: axis("flow.encoder.encoders.0.feed_forward.w_1.weight", 0)?,
            blocks: [count(file, "flow.encoder.encoders."), count(file, "flow.encoder.up_encoders.")],
        };
        let e = "flow.decoder.estimator";
        let attention = axis(&format!("{e}.down_blocks.0.1.0.attn1.to_q.weight"), 0)?;
        let estimator = EstimatorConfig {
            width: axis(&format!("{e}.down_blocks.0.0.block1.block.0.weight"), 0)?,
            time: axis(&format!("{e}.time_mlp.linear_1.weight"), 0)?,
            heads: attention / HEAD,
            attention,
            inner: axis(&format!("{e}.down_blocks.0.1.0.ff.net.0.proj.weight"), 0)?,
            middle: count(file, &format!("{e}.mid_blocks.")),
            blocks: count(file, &format!("{e}.down_blocks.0.1.")),
            is_meanflow: file.contains(&format!("{e}.time_embed_mixer.weight")),
        };
        let vocoder = VocoderConfig {
            width: axis("mel2wav.conv_pre.bias", 0)?,
            pitch_width: axis("mel2wav.f0_predictor.condnet.0.bias", 0)?,
        };
        whole_heads("flow.encoder", encoder.heads, encoder.width)?;
        whole_heads("flow.decoder.estimator", estimator.heads, estimator.attention)?;
        Ok(S3GenConfig { encoder, estimator, vocoder, encoders: None })
    }
}

impl EncodersConfig {
    fn of(file: &dyn WeightSource) -> Result<EncodersConfig, String> {
        let axis = |name: &str, axis: usize| axis_of(file, name, axis);
        let state = axis("tokenizer.encoder.conv1.weight", 0)?;
        let tokenizer = SpeechTokenizerConfig {
            width: state,
            heads: state / HEAD,
            layers: count(file, "tokenizer.encoder.blocks."),
        };
        let s = "speaker_encoder";
        let block = |i: usize| count(file, &format!("{s}.xvector.block{i}.tdnnd")).saturating_sub(1);
        let speaker = SpeakerEncoderConfig {
            image: axis(&format!("{s}.head.conv1.weight"), 0)?,
            first: axis(&format!("{s}.xvector.tdnn.linear.weight"), 0)?,
            growth: axis(&format!("{s}.xvector.block1.tdnnd1.cam_layer.linear_local.weight"), 0)?,
            bottleneck: axis(&format!("{s}.xvector.block1.tdnnd1.linear1.weight"), 0)?,
            layers: [block(1), block(2), block(3)],
        };
        whole_heads("tokenizer", tokenizer.heads, tokenizer.width)?;
        Ok(EncodersConfig { tokenizer, speaker })
    }
}

fn whole_heads(name: &str, heads: usize, width: usize) -> Result<(), String> {
    match heads > 0 && width.is_multiple_of(heads) {
        true => Ok(()),
        false => Err(format!("`{name}` is {width} wide, which is no multiple of heads of {HEAD}")),
    }
}

fn shape(file: &dyn WeightSource, name: &str) -> Result<Vec<usize>, String> {
    file.info(name).map(|info| info.shape).ok_or_else(|| format!("it has no tensor `{name}`"))
}

fn matrix(file: &dyn WeightSource, name: &str) -> Result<[usize; 2], String> {
    let shape = shape(file, name)?;
    <[usize; 2]>::try_from(shape.as_slice()).map_err(|_| format!("`{name}` is {shape:?}, not a matrix"))
}

fn axis_of(file: &dyn WeightSource, name: &str, axis: usize) -> Result<usize, String> {
    let shape = shape(file, name)?;
    shape.get(axis).copied().ok_or_else(|| format!("`{name}` is {shape:?}, of too few axes"))
}

/// One more than the largest number that follows `prefix` in a name, 0 where none does.
fn count(file: &dyn WeightSource, prefix: &str) -> usize {
    // Far more than any network has; a larger number means damage.
    const MOST: usize = 1000;
    let number = |name: &str| {
        let digits = name.strip_prefix(prefix)?.split('.').next()?;
        digits.parse::<usize>().ok().filter(|n| *n < MOST)
    };
    file.names().into_iter().filter_map(number).max().map_or(0, |n| n + 1)
}
