//! Names of tensors of Qwen3-TTS in the layouts of other engines, from the official ones.

use crate::gguf::Port;
use crate::gguf::rules::{Rule, rename};
use orate_weights::View;

/// What stands for an official tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A tensor of the file.
    Tensor(String, View),
    /// Ones: counts of a codebook that was divided by them, or a flag.
    Ones,
    /// The natural logarithm of a tensor.
    Log(String),
    /// The logarithm of the reciprocal of a tensor, from which 1e-9 is taken.
    LogReciprocal(String),
}

type Pairs = &'static [(&'static str, &'static str)];

const LAYER: Pairs = &[
    ("input_layernorm.", "attn_norm."),
    ("post_attention_layernorm.", "ffn_norm."),
    ("self_attn.q_proj.", "attn_q."),
    ("self_attn.k_proj.", "attn_k."),
    ("self_attn.v_proj.", "attn_v."),
    ("self_attn.o_proj.", "attn_output."),
    ("self_attn.q_norm.", "attn_q_norm."),
    ("self_attn.k_norm.", "attn_k_norm."),
    ("self_attn_layer_scale.scale", "attn_scale"),
    ("mlp_layer_scale.scale", "ffn_scale"),
    ("mlp.gate_proj.", "ffn_gate."),
    ("mlp.up_proj.", "ffn_up."),
    ("mlp.down_proj.", "ffn_down."),
    ("mlp.fc1.", "ffn_up."),
    ("mlp.fc2.", "ffn_down."),
];

/// A and B.
const TALKER: &[Rule] = &[
    ("talker.model.codec_embedding.", "talker.codec_embd.", &[]),
    ("talker.model.text_embedding.", "talker.text_embd.", &[]),
    ("talker.text_projection.linear_fc", "talker.text_proj.fc", &[]),
    ("talker.codec_head.", "talker.codec_head.", &[]),
    ("talker.model.norm.", "talker.output_norm.", &[]),
    ("talker.model.layers.{}.", "talker.blk.{0}.", LAYER),
    ("talker.code_predictor.model.layers.{}.", "code_pred.blk.{0}.", LAYER),
    ("talker.code_predictor.model.norm.", "code_pred.output_norm.", &[]),
    ("talker.code_predictor.model.codec_embedding.", "code_pred.codec_embd.", &[]),
    ("talker.code_predictor.lm_head.", "code_pred.lm_head.", &[]),
    ("talker.code_predictor.small_to_mtp_projection.", "code_pred.mtp_proj.", &[]),
    ("speaker_encoder.blocks.0.conv.", "spk_enc.conv0.", &[]),
    ("speaker_encoder.blocks.{}.tdnn{}.conv.", "spk_enc.blk.{0}.tdnn{1}.", &[]),
    ("speaker_encoder.blocks.{}.res2net_block.blocks.{}.conv.", "spk_enc.blk.{0}.res2net.{1}.", &[]),
    ("speaker_encoder.blocks.{}.se_block.conv", "spk_enc.blk.{0}.se.conv", &[]),
    ("speaker_encoder.mfa.conv.", "spk_enc.mfa.", &[]),
    ("speaker_encoder.asp.conv.", "spk_enc.asp.conv.", &[]),
    ("speaker_encoder.asp.tdnn.conv.", "spk_enc.asp.tdnn.", &[]),
    ("speaker_encoder.fc.", "spk_enc.fc.", &[]),
];

/// A and B, but for the residual units of the decoder.
const CODEC: &[Rule] = &[
    ("encoder.encoder.layers.{}.conv.", "tok_enc.conv.{0}.", &[]),
    ("encoder.encoder.layers.{}.block.{}.conv.", "tok_enc.res.{0}.blk.{1}.", &[]),
    ("encoder.encoder_transformer.layers.{}.", "tok_enc.blk.{0}.", LAYER),
    ("encoder.downsample.conv.", "tok_enc.downsample.", &[]),
    ("encoder.quantizer.semantic_residual_vector_quantizer.", "tok_enc.vq_semantic.", BOOK),
    ("encoder.quantizer.acoustic_residual_vector_quantizer.", "tok_enc.vq_acoustic.", BOOK),
    ("decoder.quantizer.rvq_first.", "tok_dec.vq_first.", BOOK),
    ("decoder.quantizer.rvq_rest.", "tok_dec.vq_rest.", BOOK),
    ("decoder.pre_conv.conv.", "tok_dec.pre_conv.", &[]),
    ("decoder.pre_transformer.layers.{}.", "tok_dec.pre_tfm.blk.{0}.", LAYER),
    ("decoder.pre_transformer.", "tok_dec.pre_tfm.", &[]),
    ("decoder.upsample.{}.0.conv.", "tok_dec.upsample.{0}.conv.", &[]),
    ("decoder.upsample.{}.1.dwconv.conv.", "tok_dec.upsample.{0}.dwconv.", &[]),
    ("decoder.upsample.{}.1.", "tok_dec.upsample.{0}.", &[]),
    ("decoder.decoder.0.conv.", "tok_dec.dec.0.conv.", &[]),
    ("decoder.decoder.5.", "tok_dec.dec.5.snake.", &[("alpha", "alpha"), ("beta", "beta")]),
    ("decoder.decoder.6.conv.", "tok_dec.dec.6.conv.", &[]),
    ("decoder.decoder.{}.block.0.", "tok_dec.dec.{0}.snake.", &[]),
    ("decoder.decoder.{}.block.1.conv.", "tok_dec.dec.{0}.conv_t.", &[]),
];

const BOOK: Pairs = &[("input_proj.", "input_proj."), ("output_proj.", "output_proj.")];

const UNITS_A: &[Rule] = &[
    ("decoder.decoder.{}.block.{}.act{}.", "tok_dec.dec.{0}.res.{1}.act{2}.", &[]),
    ("decoder.decoder.{}.block.{}.conv{}.conv.", "tok_dec.dec.{0}.res.{1}.conv{2}.", &[]),
];

const UNITS_B: &[Rule] = &[
    ("decoder.decoder.{}.block.{}.act{}.", "tok_dec.dec.{0}.res.{1-2}.act{2}.", &[]),
    ("decoder.decoder.{}.block.{}.conv{}.conv.", "tok_dec.dec.{0}.res.{1-2}.conv{2}.", &[]),
];

/// D.
const CRISP_TALKER: &[Rule] = &[
    ("talker.model.codec_embedding.", "talker.token_embd.", &[]),
    ("talker.model.text_embedding.", "talker.token_embd_text.", &[]),
    ("talker.codec_head.", "talker.output.", &[]),
    ("talker.code_predictor.model.codec_embedding.", "code_pred.token_embd.", &[]),
    ("talker.code_predictor.lm_head.", "code_pred.output.", &[]),
    ("talker.code_predictor.small_to_mtp_projection.", "code_pred.small_to_mtp.", &[]),
    ("speaker_encoder.", "speaker.", &[]),
];

const WB: Pairs = &[("weight", "w"), ("bias", "b"), ("alpha", "a"), ("beta", "b")];

const CRISP_DECODER_LAYER: Pairs = &[
    ("input_layernorm.weight", "attn_norm_w"),
    ("post_attention_layernorm.weight", "ffn_norm_w"),
    ("self_attn.q_proj.weight", "attn_q_w"),
    ("self_attn.k_proj.weight", "attn_k_w"),
    ("self_attn.v_proj.weight", "attn_v_w"),
    ("self_attn.o_proj.weight", "attn_o_w"),
    ("self_attn_layer_scale.scale", "attn_ls_w"),
    ("mlp.gate_proj.weight", "ffn_gate_w"),
    ("mlp.up_proj.weight", "ffn_up_w"),
    ("mlp.down_proj.weight", "ffn_down_w"),
    ("mlp_layer_scale.scale", "ffn_ls_w"),
];

const CRISP_ENCODER_LAYER: Pairs = &[
    ("input_layernorm.weight", "norm1_w"),
    ("input_layernorm.bias", "norm1_b"),
    ("post_attention_layernorm.weight", "norm2_w"),
    ("post_attention_layernorm.bias", "norm2_b"),
    ("self_attn.q_proj.weight", "attn_q_w"),
    ("self_attn.k_proj.weight", "attn_k_w"),
    ("self_attn.v_proj.weight", "attn_v_w"),
    ("self_attn.o_proj.weight", "attn_o_w"),
    ("self_attn_layer_scale.scale", "attn_ls"),
    ("mlp.fc1.weight", "fc1_w"),
    ("mlp.fc2.weight", "fc2_w"),
    ("mlp_layer_scale.scale", "ffn_ls"),
];

const CRISP_CODEC: &[Rule] = &[
    ("encoder.encoder.layers.{}.block.1.conv.", "codec.enc.seanet.blk.{0/3}.short_", WB),
    ("encoder.encoder.layers.{}.block.3.conv.", "codec.enc.seanet.blk.{0/3}.exp_", WB),
    // The first and last ones are no multiples of three.
    ("encoder.encoder.layers.0.conv.", "codec.enc.seanet.init_", WB),
    ("encoder.encoder.layers.14.conv.", "codec.enc.seanet.final_", WB),
    ("encoder.encoder.layers.{}.conv.", "codec.enc.seanet.ds.{0/3-1}.", WB),
    ("encoder.encoder_transformer.layers.{}.", "codec.enc.xfmr.blk.{0}.", CRISP_ENCODER_LAYER),
    ("encoder.downsample.conv.", "codec.enc.ds_", WB),
    ("encoder.quantizer.semantic_residual_vector_quantizer.input_proj.", "codec.enc.rvq.sem.in_", WB),
    ("encoder.quantizer.semantic_residual_vector_quantizer.output_proj.", "codec.enc.rvq.sem.out_", WB),
    ("encoder.quantizer.acoustic_residual_vector_quantizer.input_proj.", "codec.enc.rvq.ac.in_", WB),
    ("encoder.quantizer.acoustic_residual_vector_quantizer.output_proj.", "codec.enc.rvq.ac.out_", WB),
    ("decoder.quantizer.rvq_first.output_proj.", "codec.dec.rvq_first.out_proj_", WB),
    ("decoder.quantizer.rvq_rest.output_proj.", "codec.dec.rvq_rest.out_proj_", WB),
    ("decoder.pre_conv.conv.", "codec.dec.pre_conv_", WB),
    ("decoder.pre_transformer.layers.{}.", "codec.dec.xfmr.blk.{0}.", CRISP_DECODER_LAYER),
    ("decoder.pre_transformer.input_proj.", "codec.dec.xfmr.in_proj_", WB),
    ("decoder.pre_transformer.output_proj.", "codec.dec.xfmr.out_proj_", WB),
    ("decoder.pre_transformer.norm.", "codec.dec.xfmr.norm_", WB),
    ("decoder.upsample.{}.0.conv.", "codec.dec.up.{0}.tconv_", WB),
    ("decoder.upsample.{}.1.dwconv.conv.", "codec.dec.up.{0}.cnx.dw_", WB),
    ("decoder.upsample.{}.1.norm.", "codec.dec.up.{0}.cnx.norm_", WB),
    ("decoder.upsample.{}.1.pwconv1.", "codec.dec.up.{0}.cnx.pw1_", WB),
    ("decoder.upsample.{}.1.pwconv2.", "codec.dec.up.{0}.cnx.pw2_", WB),
    ("decoder.upsample.{}.1.gamma", "codec.dec.up.{0}.cnx.gamma", &[]),
    ("decoder.decoder.0.conv.", "codec.dec.in_conv_", WB),
    ("decoder.decoder.5.", "codec.dec.out_snake_", &[("alpha", "a"), ("beta", "b")]),
    ("decoder.decoder.6.conv.", "codec.dec.out_conv_", WB),
    ("decoder.decoder.{}.block.0.", "codec.dec.blk.{0-1}.snake_", WB),
    ("decoder.decoder.{}.block.1.conv.", "codec.dec.blk.{0-1}.tconv_", WB),
    ("decoder.decoder.{}.block.{}.act{}.", "codec.dec.blk.{0-1}.res.{1-2}.act{2}_", WB),
    ("decoder.decoder.{}.block.{}.conv{}.conv.", "codec.dec.blk.{0-1}.res.{1-2}.conv{2}_", WB),
];

/// C: parts of a layer in the second file.
const LLAMA_LAYER: Pairs = &[
    ("input_layernorm.", "ln1."),
    ("post_attention_layernorm.", "ln2."),
    ("self_attn.q_proj.", "attn_q."),
    ("self_attn.k_proj.", "attn_k."),
    ("self_attn.v_proj.", "attn_v."),
    ("self_attn.o_proj.", "attn_out."),
    ("self_attn.q_norm.", "attn_q_norm."),
    ("self_attn.k_norm.", "attn_k_norm."),
    ("self_attn_layer_scale.scale", "ls1.weight"),
    ("mlp_layer_scale.scale", "ls2.weight"),
    ("mlp.gate_proj.", "ffn_gate."),
    ("mlp.up_proj.", "ffn_up."),
    ("mlp.down_proj.", "ffn_down."),
];

const LLAMA: &[Rule] = &[
    ("talker.codec_head.", "output.", &[]),
    ("talker.model.norm.", "output_norm.", &[]),
    ("talker.model.codec_embedding.", "a.gen.code.out_embd.", &[]),
    ("talker.model.layers.{}.", "blk.{0}.", LAYER),
    ("talker.code_predictor.model.layers.{}.", "a.gen.code.blk.{0}.", LLAMA_LAYER),
    ("talker.code_predictor.model.norm.", "a.gen.code.output_norm.", &[]),
    ("talker.code_predictor.small_to_mtp_projection.", "a.gen.code.proj_in.", &[]),
    ("speaker_encoder.blocks.0.conv.", "a.conv1d.0.", &[]),
    ("speaker_encoder.blocks.{}.tdnn{}.conv.", "a.blk.{0}.conv_pw{1}.", &[]),
    ("speaker_encoder.blocks.{}.res2net_block.blocks.{}.conv.", "a.blk.{0}.res2.{1}.", &[]),
    ("speaker_encoder.blocks.{}.se_block.conv", "a.blk.{0}.se_conv", &[]),
    ("speaker_encoder.mfa.conv.", "a.conv_out.", &[]),
    ("speaker_encoder.asp.conv.", "a.asp_attn.", &[]),
    ("speaker_encoder.asp.tdnn.conv.", "a.asp_tdnn.", &[]),
    ("speaker_encoder.fc.", "mm.a.fc.", &[]),
    ("decoder.quantizer.rvq_first.", "a.gen.wav.quant.first.", LLAMA_BOOK),
    ("decoder.quantizer.rvq_rest.", "a.gen.wav.quant.rest.", LLAMA_BOOK),
    ("decoder.pre_conv.conv.", "a.gen.wav.pre_conv.", &[]),
    ("decoder.pre_transformer.input_proj.", "a.gen.wav.tfm.in_proj.", &[]),
    ("decoder.pre_transformer.output_proj.", "a.gen.wav.tfm.out_proj.", &[]),
    ("decoder.pre_transformer.norm.", "a.gen.wav.tfm.output_norm.", &[]),
    ("decoder.pre_transformer.layers.{}.", "a.gen.wav.tfm.blk.{0}.", LLAMA_LAYER),
    ("decoder.upsample.{}.0.conv.", "a.gen.wav.up.blk.{0}.conv.", &[]),
    ("decoder.upsample.{}.1.dwconv.conv.", "a.gen.wav.up.blk.{0}.dwconv.", &[]),
    ("decoder.upsample.{}.1.pwconv", "a.gen.wav.up.blk.{0}.pw", &[]),
    ("decoder.upsample.{}.1.", "a.gen.wav.up.blk.{0}.", &[]),
    ("decoder.decoder.0.conv.", "a.gen.wav.dac.entry.", &[]),
    ("decoder.decoder.5.", "a.gen.wav.dac.post_snake.", &[("alpha", "alpha"), ("beta", "beta")]),
    ("decoder.decoder.6.conv.", "a.gen.wav.dac.post_conv.", &[]),
    ("decoder.decoder.{}.block.0.", "a.gen.wav.dac.blk.{0-1}.snake.", &[]),
    ("decoder.decoder.{}.block.1.conv.", "a.gen.wav.dac.blk.{0-1}.conv.", &[]),
    ("decoder.decoder.{}.block.{}.act{}.", "a.gen.wav.dac.blk.{0-1}.res.{1-2}.act{2}.", &[]),
    ("decoder.decoder.{}.block.{}.conv{}.conv.", "a.gen.wav.dac.blk.{0-1}.res.{1-2}.conv{2}.", &[]),
];

const LLAMA_BOOK: Pairs = &[("input_proj.", "in_proj."), ("output_proj.", "out_proj.")];

/// What stands for an official tensor in a layout; `None` where it has none.
pub fn find(port: Port, name: &str) -> Option<Source> {
    let same = |tensor: String| Some(Source::Tensor(tensor, View::Same));
    if port == Port::Official {
        return same(name.to_owned());
    }
    if name.ends_with(".cluster_usage") {
        return Some(Source::Ones);
    }
    if let Some(book) = codebook(name) {
        return book.source(port);
    }
    if name.ends_with(".initialized") && port != Port::Qwen3TtsCpp {
        return Some(Source::Ones);
    }
    let any = |tables: &[&[Rule]]| tables.iter().find_map(|rules| rename(rules, name));
    match port {
        Port::Qwen3TtsCpp => same(initialized(name).or_else(|| any(&[TALKER, CODEC, UNITS_A]))?),
        Port::QwenTtsCpp => same(any(&[TALKER, CODEC, UNITS_B])?),
        Port::CrispAsr => same(any(&[CRISP_TALKER, TALKER, CRISP_CODEC])?),
        Port::LlamaCpp => llama(name),
        _ => None,
    }
}

/// The tensor that a codebook's sums are in, wherever the count of its uses is asked for.
pub fn is_count(name: &str) -> Option<String> {
    let base = name.strip_suffix(".cluster_usage")?;
    let sums = if base.starts_with("decoder.") { "embedding_sum" } else { "embed_sum" };
    Some(format!("{base}.{sums}"))
}

struct Book {
    semantic: bool,
    encoder: bool,
    index: usize,
}

/// The codebook whose sums an official tensor holds.
fn codebook(name: &str) -> Option<Book> {
    const BOOKS: &[Rule] = &[
        ("encoder.quantizer.semantic_residual_vector_quantizer.layers.{}.codebook.embed_sum", "es{0}", &[]),
        ("encoder.quantizer.acoustic_residual_vector_quantizer.layers.{}.codebook.embed_sum", "ea{0}", &[]),
        ("decoder.quantizer.rvq_first.vq.layers.{}._codebook.embedding_sum", "ds{0}", &[]),
        ("decoder.quantizer.rvq_rest.vq.layers.{}._codebook.embedding_sum", "da{0}", &[]),
    ];
    let found = rename(BOOKS, name)?;
    let index = found[2..].parse().ok()?;
    Some(Book { semantic: &found[1..2] == "s", encoder: &found[..1] == "e", index })
}

impl Book {
    fn source(&self, port: Port) -> Option<Source> {
        let k = self.index;
        let tensor = match (port, self.encoder, self.semantic) {
            (Port::Qwen3TtsCpp | Port::QwenTtsCpp, true, true) => format!("tok_enc.vq_semantic.{k}.codebook"),
            (Port::Qwen3TtsCpp | Port::QwenTtsCpp, true, false) => {
                format!("tok_enc.vq_acoustic.{k}.codebook")
            }
            (Port::Qwen3TtsCpp | Port::QwenTtsCpp, false, true) => format!("tok_dec.vq_first.{k}.codebook"),
            (Port::Qwen3TtsCpp | Port::QwenTtsCpp, false, false) => format!("tok_dec.vq_rest.{k}.codebook"),
            (Port::CrispAsr, true, true) => "codec.enc.rvq.sem.cb".to_owned(),
            (Port::CrispAsr, true, false) => format!("codec.enc.rvq.ac.{k}.cb"),
            (Port::CrispAsr, false, true) => "codec.dec.rvq_first.codebook".to_owned(),
            (Port::CrispAsr, false, false) => format!("codec.dec.rvq_rest.{k}.codebook"),
            (Port::LlamaCpp, false, true) => "a.gen.wav.quant.first.codebook.weight".to_owned(),
            (Port::LlamaCpp, false, false) => {
                let all = "a.gen.wav.quant.rest.codebook.weight".to_owned();
                return Some(Source::Tensor(all, View::Page(k)));
            }
            _ => return None,
        };
        Some(Source::Tensor(tensor, View::Same))
    }
}

/// A keeps the flags of the encoder's codebooks.
fn initialized(name: &str) -> Option<String> {
    const FLAGS: &[Rule] = &[
        (
            "encoder.quantizer.semantic_residual_vector_quantizer.layers.{}.codebook.initialized",
            "tok_enc.vq_semantic.{0}.initialized",
            &[],
        ),
        (
            "encoder.quantizer.acoustic_residual_vector_quantizer.layers.{}.codebook.initialized",
            "tok_enc.vq_acoustic.{0}.initialized",
            &[],
        ),
    ];
    rename(FLAGS, name)
}

fn llama(name: &str) -> Option<Source> {
    const STACKS: &[Rule] = &[
        ("talker.code_predictor.model.codec_embedding.{}.weight", "e{0}", &[]),
        ("talker.code_predictor.lm_head.{}.weight", "h{0}", &[]),
    ];
    if let Some(found) = rename(STACKS, name) {
        let stack = if found.starts_with('e') { "a.gen.code.embd.weight" } else { "a.gen.code.head.weight" };
        return Some(Source::Tensor(stack.to_owned(), View::Page(found[1..].parse().ok()?)));
    }
    let tensor = rename(LLAMA, name)?;
    Some(match () {
        () if tensor.starts_with("a.gen.wav.dac.") && tensor.ends_with(".alpha") => Source::Log(tensor),
        () if tensor.starts_with("a.gen.wav.dac.") && tensor.ends_with(".beta") => {
            Source::LogReciprocal(tensor)
        }
        () => Source::Tensor(tensor, View::Same),
    })
}
