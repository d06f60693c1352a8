//! Every tensor of a checkpoint: its name, its shape, and the network that it belongs to.
//!
//! Shapes are as PyTorch prints them: matrices `[out, in]`, convolutions `[out, in, taps]`, transposed convolutions
//! `[in, out, taps]`. A checkpoint must hold these tensors and no others.

use super::config::{CodecConfig, Config, SpeakerEncoderConfig, TransformerConfig, Variant};

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
        match self {
            Network::Talker => "talker",
            Network::CodePredictor => "code_predictor",
            Network::SpeakerEncoder => "speaker_encoder",
            Network::CodecEncoder => "codec_encoder",
            Network::CodecDecoder => "codec_decoder",
        }
    }

    /// What the names of its tensors begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Network::Talker => "talker.",
            Network::CodePredictor => "talker.code_predictor.",
            Network::SpeakerEncoder => "speaker_encoder.",
            Network::CodecEncoder => "encoder.",
            Network::CodecDecoder => "decoder.",
        }
    }

    /// The network that a tensor belongs to, going by its name.
    pub fn of(tensor: &str) -> Option<Network> {
        let longest_first = [
            Network::CodePredictor,
            Network::Talker,
            Network::SpeakerEncoder,
            Network::CodecEncoder,
            Network::CodecDecoder,
        ];
        longest_first.into_iter().find(|n| tensor.starts_with(n.prefix()))
    }
}

/// A tensor that a checkpoint must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Full name.
    pub name: String,
    /// Sizes of the axes, slowest first.
    pub shape: Vec<usize>,
}

/// The tensors of a model's `model.safetensors`.
pub fn model(c: &Config) -> Vec<Expected> {
    let mut all = List::default();
    talker(&mut all, c);
    code_predictor(&mut all, c);
    if let (Variant::Base, Some(s)) = (c.tts_model_type, &c.speaker_encoder_config) {
        speaker_encoder(&mut all, s);
    }
    all.0
}

/// The tensors of the codec's `model.safetensors`.
pub fn codec(c: &CodecConfig) -> Vec<Expected> {
    let mut all = List::default();
    codec_encoder(&mut all, c);
    codec_decoder(&mut all, c);
    all.0
}

fn talker(all: &mut List, c: &Config) {
    let t = &c.talker_config;
    let (d, wide) = (t.transformer.hidden_size, t.text_hidden_size);
    all.add("talker.model.text_embedding.weight", [t.text_vocab_size, wide]);
    all.linear("talker.text_projection.linear_fc1", [wide, wide]);
    all.linear("talker.text_projection.linear_fc2", [d, wide]);
    all.add("talker.model.codec_embedding.weight", [t.vocab_size, d]);
    qwen3_layers(all, "talker.model", &t.transformer);
    all.add("talker.codec_head.weight", [t.vocab_size, d]);
}

fn code_predictor(all: &mut List, c: &Config) {
    let (t, p) = (&c.talker_config, &c.talker_config.code_predictor_config);
    let (d, dc) = (t.transformer.hidden_size, p.transformer.hidden_size);
    if d != dc {
        all.linear("talker.code_predictor.small_to_mtp_projection", [dc, d]);
    }
    for g in 0..p.num_code_groups - 1 {
        // As wide as the talker: these rows are also summed into its input.
        all.add(format!("talker.code_predictor.model.codec_embedding.{g}.weight"), [p.vocab_size, d]);
        all.add(format!("talker.code_predictor.lm_head.{g}.weight"), [p.vocab_size, dc]);
    }
    qwen3_layers(all, "talker.code_predictor.model", &p.transformer);
}

fn qwen3_layers(all: &mut List, at: &str, c: &TransformerConfig) {
    let (d, inner, dh) = (c.hidden_size, c.intermediate_size, c.head_dim);
    let (q, kv) = (c.num_attention_heads * dh, c.num_key_value_heads * dh);
    for i in 0..c.num_hidden_layers {
        let mut add = |name: &str, shape: &[usize]| all.add(format!("{at}.layers.{i}.{name}.weight"), shape);
        add("input_layernorm", &[d]);
        add("self_attn.q_proj", &[q, d]);
        add("self_attn.k_proj", &[kv, d]);
        add("self_attn.v_proj", &[kv, d]);
        add("self_attn.q_norm", &[dh]);
        add("self_attn.k_norm", &[dh]);
        add("self_attn.o_proj", &[d, q]);
        add("post_attention_layernorm", &[d]);
        add("mlp.gate_proj", &[inner, d]);
        add("mlp.up_proj", &[inner, d]);
        add("mlp.down_proj", &[d, inner]);
    }
    all.add(format!("{at}.norm.weight"), [d]);
}

fn speaker_encoder(all: &mut List, c: &SpeakerEncoderConfig) {
    let at = "speaker_encoder";
    let n = c.enc_channels.len();
    let (width, pooled) = (c.enc_channels[0], c.enc_channels[n - 1]);
    all.linear(format!("{at}.blocks.0.conv"), [width, c.mel_dim, c.enc_kernel_sizes[0]]);
    for i in 1..n - 1 {
        let (block, part) = (format!("{at}.blocks.{i}"), width / c.enc_res2net_scale);
        all.linear(format!("{block}.tdnn1.conv"), [width, width, 1]);
        for j in 0..c.enc_res2net_scale - 1 {
            all.linear(format!("{block}.res2net_block.blocks.{j}.conv"), [part, part, c.enc_kernel_sizes[i]]);
        }
        all.linear(format!("{block}.tdnn2.conv"), [width, width, 1]);
        all.linear(format!("{block}.se_block.conv1"), [c.enc_se_channels, width, 1]);
        all.linear(format!("{block}.se_block.conv2"), [width, c.enc_se_channels, 1]);
    }
    all.linear(format!("{at}.mfa.conv"), [pooled, (n - 2) * width, c.enc_kernel_sizes[n - 1]]);
    all.linear(format!("{at}.asp.tdnn.conv"), [c.enc_attention_channels, 3 * pooled, 1]);
    all.linear(format!("{at}.asp.conv"), [pooled, c.enc_attention_channels, 1]);
    all.linear(format!("{at}.fc"), [c.enc_dim, 2 * pooled, 1]);
}

fn codec_encoder(all: &mut List, c: &CodecConfig) {
    let c = &c.encoder_config;
    let d = c.hidden_size;
    let mut channels = c.num_filters;
    all.linear("encoder.encoder.layers.0.conv", [channels, 1, c.kernel_size]);
    // Each stage: residual block, ELU, strided convolution. The strides are stored the last one first.
    for (i, stride) in c.upsampling_ratios.iter().rev().enumerate() {
        let (residual, down, inner) = (3 * i + 1, 3 * i + 3, channels / c.compress);
        all.linear(
            format!("encoder.encoder.layers.{residual}.block.1.conv"),
            [inner, channels, c.residual_kernel_size],
        );
        all.linear(format!("encoder.encoder.layers.{residual}.block.3.conv"), [channels, inner, 1]);
        all.linear(format!("encoder.encoder.layers.{down}.conv"), [2 * channels, channels, 2 * stride]);
        channels *= 2;
    }
    let last = 3 * c.upsampling_ratios.len() + 2;
    all.linear(format!("encoder.encoder.layers.{last}.conv"), [d, channels, c.last_kernel_size]);

    let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
    for i in 0..c.num_hidden_layers {
        let at = format!("encoder.encoder_transformer.layers.{i}");
        all.linear(format!("{at}.input_layernorm"), [d]);
        all.add(format!("{at}.self_attn.q_proj.weight"), [q, d]);
        all.add(format!("{at}.self_attn.k_proj.weight"), [kv, d]);
        all.add(format!("{at}.self_attn.v_proj.weight"), [kv, d]);
        all.add(format!("{at}.self_attn.o_proj.weight"), [d, q]);
        all.add(format!("{at}.self_attn_layer_scale.scale"), [d]);
        all.linear(format!("{at}.post_attention_layernorm"), [d]);
        all.add(format!("{at}.mlp.fc1.weight"), [c.intermediate_size, d]);
        all.add(format!("{at}.mlp.fc2.weight"), [d, c.intermediate_size]);
        all.add(format!("{at}.mlp_layer_scale.scale"), [d]);
    }
    all.add("encoder.downsample.conv.weight", [d, d, 4]);

    let (entry, width, semantic) =
        (c.codebook_dim, c.vector_quantization_hidden_dimension, c.num_semantic_quantizers);
    for (side, books) in [("semantic", semantic), ("acoustic", c.num_quantizers - semantic)] {
        let at = format!("encoder.quantizer.{side}_residual_vector_quantizer");
        all.add(format!("{at}.input_proj.weight"), [width, d, 1]);
        for k in 0..books {
            let book = format!("{at}.layers.{k}.codebook");
            all.add(format!("{book}.embed_sum"), [c.codebook_size, entry]);
            all.add(format!("{book}.cluster_usage"), [c.codebook_size]);
            all.add(format!("{book}.initialized"), [1]);
        }
        all.add(format!("{at}.output_proj.weight"), [d, width, 1]);
    }
}

fn codec_decoder(all: &mut List, c: &CodecConfig) {
    let c = &c.decoder_config;
    let (latent, d, inner) = (c.latent_dim, c.hidden_size, c.intermediate_size);
    let (width, entry) = (c.codebook_dim, c.entry_width());
    let semantic = c.num_semantic_quantizers;
    for (side, books) in [("first", semantic), ("rest", c.num_quantizers - semantic)] {
        let at = format!("decoder.quantizer.rvq_{side}");
        all.add(format!("{at}.input_proj.weight"), [entry, width, 1]);
        for k in 0..books {
            let book = format!("{at}.vq.layers.{k}._codebook");
            all.add(format!("{book}.embedding_sum"), [c.codebook_size, entry]);
            all.add(format!("{book}.cluster_usage"), [c.codebook_size]);
        }
        all.add(format!("{at}.output_proj.weight"), [width, entry, 1]);
    }
    all.linear("decoder.pre_conv.conv", [latent, width, 3]);

    all.linear("decoder.pre_transformer.input_proj", [d, latent]);
    let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
    for i in 0..c.num_hidden_layers {
        let at = format!("decoder.pre_transformer.layers.{i}");
        all.add(format!("{at}.input_layernorm.weight"), [d]);
        all.add(format!("{at}.self_attn.q_proj.weight"), [q, d]);
        all.add(format!("{at}.self_attn.k_proj.weight"), [kv, d]);
        all.add(format!("{at}.self_attn.v_proj.weight"), [kv, d]);
        all.add(format!("{at}.self_attn.o_proj.weight"), [d, q]);
        all.add(format!("{at}.self_attn_layer_scale.scale"), [d]);
        all.add(format!("{at}.post_attention_layernorm.weight"), [d]);
        all.add(format!("{at}.mlp.gate_proj.weight"), [inner, d]);
        all.add(format!("{at}.mlp.up_proj.weight"), [inner, d]);
        all.add(format!("{at}.mlp.down_proj.weight"), [d, inner]);
        all.add(format!("{at}.mlp_layer_scale.scale"), [d]);
    }
    all.add("decoder.pre_transformer.norm.weight", [d]);
    all.linear("decoder.pre_transformer.output_proj", [latent, d]);

    for (i, ratio) in c.upsampling_ratios.iter().enumerate() {
        let at = format!("decoder.upsample.{i}");
        all.transposed(format!("{at}.0.conv"), [latent, latent, *ratio]);
        all.linear(format!("{at}.1.dwconv.conv"), [latent, 1, 7]);
        all.linear(format!("{at}.1.norm"), [latent]);
        all.linear(format!("{at}.1.pwconv1"), [4 * latent, latent]);
        all.linear(format!("{at}.1.pwconv2"), [latent, 4 * latent]);
        all.add(format!("{at}.1.gamma"), [latent]);
    }

    let mut channels = c.decoder_dim;
    all.linear("decoder.decoder.0.conv", [channels, latent, 7]);
    for (i, stride) in c.upsample_rates.iter().enumerate() {
        let at = format!("decoder.decoder.{}.block", i + 1);
        all.snake(format!("{at}.0"), channels);
        all.transposed(format!("{at}.1.conv"), [channels, channels / 2, 2 * stride]);
        channels /= 2;
        for r in 2..5 {
            all.snake(format!("{at}.{r}.act1"), channels);
            all.linear(format!("{at}.{r}.conv1.conv"), [channels, channels, 7]);
            all.snake(format!("{at}.{r}.act2"), channels);
            all.linear(format!("{at}.{r}.conv2.conv"), [channels, channels, 1]);
        }
    }
    let n = c.upsample_rates.len();
    all.snake(format!("decoder.decoder.{}", n + 1), channels);
    all.linear(format!("decoder.decoder.{}.conv", n + 2), [1, channels, 7]);
}

#[derive(Default)]
struct List(Vec<Expected>);

impl List {
    fn add(&mut self, name: impl Into<String>, shape: impl AsRef<[usize]>) {
        self.0.push(Expected { name: name.into(), shape: shape.as_ref().to_vec() });
    }

    /// A weight and a bias as long as its first axis.
    fn linear(&mut self, at: impl AsRef<str>, shape: impl AsRef<[usize]>) {
        let (at, shape) = (at.as_ref(), shape.as_ref());
        self.add(format!("{at}.weight"), shape);
        self.add(format!("{at}.bias"), [shape[0]]);
    }

    /// As `linear`, but the second axis is the output.
    fn transposed(&mut self, at: impl AsRef<str>, shape: [usize; 3]) {
        let at = at.as_ref();
        self.add(format!("{at}.weight"), shape);
        self.add(format!("{at}.bias"), [shape[1]]);
    }

    fn snake(&mut self, at: impl AsRef<str>, channels: usize) {
        let at = at.as_ref();
        self.add(format!("{at}.alpha"), [channels]);
        self.add(format!("{at}.beta"), [channels]);
    }
}
