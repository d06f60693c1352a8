//! Names of tensors of Chatterbox in the layouts of other engines, from the official ones.

use crate::gguf::Port;
use crate::gguf::rules::{Rule, rename};

type Pairs = &'static [(&'static str, &'static str)];

const GB: Pairs = &[("weight", "g"), ("bias", "b")];
const WB: Pairs = &[("weight", "w"), ("bias", "b")];

/// F: T3 and voice encoder.
const CPP_T3: &[Rule] = &[
    ("tfmr.h.{}.ln_{}.", "model/h{0}/ln_{1}/", GB),
    ("tfmr.h.{}.attn.c_attn.", "model/h{0}/attn/c_attn/", WB),
    ("tfmr.h.{}.attn.c_proj.", "model/h{0}/attn/c_proj/", WB),
    ("tfmr.h.{}.mlp.c_fc.", "model/h{0}/mlp/c_fc/", WB),
    ("tfmr.h.{}.mlp.c_proj.", "model/h{0}/mlp/c_proj/", WB),
    ("tfmr.ln_f.", "model/ln_f/", GB),
    ("tfmr.wpe.weight", "model/wpe", &[]),
    (
        "tfmr.layers.{}.",
        "model/h{0}/",
        &[
            ("input_layernorm.weight", "ln_attn/g"),
            ("post_attention_layernorm.weight", "ln_mlp/g"),
            ("self_attn.q_proj.weight", "attn/q/w"),
            ("self_attn.k_proj.weight", "attn/k/w"),
            ("self_attn.v_proj.weight", "attn/v/w"),
            ("self_attn.o_proj.weight", "attn/o/w"),
            ("mlp.gate_proj.weight", "mlp/gate/w"),
            ("mlp.up_proj.weight", "mlp/up/w"),
            ("mlp.down_proj.weight", "mlp/down/w"),
        ],
    ),
    ("tfmr.norm.weight", "model/norm/g", &[]),
    ("text_emb.weight", "chatterbox/text_emb", &[]),
    ("speech_emb.weight", "chatterbox/speech_emb", &[]),
    ("text_head.weight", "chatterbox/text_head", &[]),
    ("speech_head.weight", "chatterbox/speech_head", &[]),
    ("speech_head.bias", "chatterbox/speech_head_bias", &[]),
    ("text_pos_emb.emb.weight", "chatterbox/text_pos_emb", &[]),
    ("speech_pos_emb.emb.weight", "chatterbox/speech_pos_emb", &[]),
    ("cond_enc.spkr_enc.", "chatterbox/cond_spkr/", WB),
    ("cond_enc.emotion_adv_fc.weight", "chatterbox/emotion_adv_fc/w", &[]),
    ("cond_enc.perceiver.attn.norm.", "chatterbox/perceiver/attn/norm/", GB),
    ("cond_enc.perceiver.attn.to_q.", "chatterbox/perceiver/attn/to_q/", WB),
    ("cond_enc.perceiver.attn.to_k.", "chatterbox/perceiver/attn/to_k/", WB),
    ("cond_enc.perceiver.attn.to_v.", "chatterbox/perceiver/attn/to_v/", WB),
    ("cond_enc.perceiver.attn.proj_out.", "chatterbox/perceiver/attn/proj_out/", WB),
    ("cond_enc.perceiver.pre_attention_query", "chatterbox/perceiver/pre_attention_query", &[]),
    ("lstm.", "voice_encoder/lstm/", &[]),
    ("proj.", "voice_encoder/proj/", &[]),
];

/// F: the conformer of S3Gen. The rest keeps its names, with slashes.
const CPP_FLOW: &[Rule] = &[
    ("flow.encoder.encoders.{}.", "flow/encoder/block{0}/", CONFORMER),
    ("flow.encoder.up_encoders.{}.", "flow/encoder/up_block{0}/", CONFORMER),
    ("flow.encoder.embed.out.0.", "flow/encoder/embed/linear/", WB),
    ("flow.encoder.embed.out.1.", "flow/encoder/embed/norm/", WB),
    ("flow.encoder.up_embed.out.0.", "flow/encoder/up_embed/linear/", WB),
    ("flow.encoder.up_embed.out.1.", "flow/encoder/up_embed/norm/", WB),
    ("flow.encoder.pre_lookahead_layer.conv1.", "flow/encoder/pre_lookahead/conv1/", WB),
    ("flow.encoder.pre_lookahead_layer.conv2.", "flow/encoder/pre_lookahead/conv2/", WB),
    ("flow.encoder.up_layer.conv.", "flow/encoder/up_layer/conv/", WB),
    ("flow.encoder.after_norm.", "flow/encoder/after_norm/", WB),
    ("flow.input_embedding.weight", "flow/input_embedding", &[]),
    ("flow.spk_embed_affine_layer.", "flow/spk_embed_affine/", WB),
    ("flow.encoder_proj.", "flow/encoder_proj/", WB),
];

const CONFORMER: Pairs = &[
    ("norm_mha.weight", "norm_mha/w"),
    ("norm_mha.bias", "norm_mha/b"),
    ("norm_ff.weight", "norm_ff/w"),
    ("norm_ff.bias", "norm_ff/b"),
    ("self_attn.linear_q.weight", "attn/q/w"),
    ("self_attn.linear_q.bias", "attn/q/b"),
    ("self_attn.linear_k.weight", "attn/k/w"),
    ("self_attn.linear_k.bias", "attn/k/b"),
    ("self_attn.linear_v.weight", "attn/v/w"),
    ("self_attn.linear_v.bias", "attn/v/b"),
    ("self_attn.linear_out.weight", "attn/o/w"),
    ("self_attn.linear_out.bias", "attn/o/b"),
    ("self_attn.linear_pos.weight", "attn/pos/w"),
    ("self_attn.pos_bias_", "attn/pos_bias_"),
    ("feed_forward.w_1.weight", "ff/w1/w"),
    ("feed_forward.w_1.bias", "ff/w1/b"),
    ("feed_forward.w_2.weight", "ff/w2/w"),
    ("feed_forward.w_2.bias", "ff/w2/b"),
];

const CPP_PREFIXES: [(&str, &str); 4] = [
    ("flow.decoder.estimator.", "cfm/"),
    ("mel2wav.", "hift/"),
    ("speaker_encoder.", "campplus/"),
    ("tokenizer.", "s3tokv2/"),
];

/// G: replacements in names of T3, in this order.
const CRISP_T3: [(&str, &str); 29] = [
    ("tfmr.embed_tokens.", "t3.llama_embd."),
    ("tfmr.norm.", "t3.output_norm."),
    ("tfmr.ln_f.", "t3.output_norm."),
    ("tfmr.wpe.", "t3.wpe."),
    ("tfmr.layers.", "t3.blk."),
    ("tfmr.h.", "t3.blk."),
    (".ln_1.", ".attn_norm."),
    (".ln_2.", ".ffn_norm."),
    (".attn.c_attn.", ".attn_qkv."),
    (".attn.c_proj.", ".attn_output."),
    (".mlp.c_fc.", ".ffn_fc."),
    (".mlp.c_proj.", ".ffn_proj."),
    (".self_attn.q_proj.", ".attn_q."),
    (".self_attn.k_proj.", ".attn_k."),
    (".self_attn.v_proj.", ".attn_v."),
    (".self_attn.o_proj.", ".attn_output."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".mlp.gate_proj.", ".ffn_gate."),
    (".mlp.up_proj.", ".ffn_up."),
    (".mlp.down_proj.", ".ffn_down."),
    ("text_emb.", "t3.text_emb."),
    ("speech_emb.", "t3.speech_emb."),
    ("text_pos_emb.emb.", "t3.text_pos_emb."),
    ("text_head.", "t3.text_head."),
    ("speech_head.", "t3.speech_head."),
    ("cond_enc.spkr_enc.", "t3.cond.spkr_enc."),
    ("cond_enc.emotion_adv_fc.", "t3.cond.emotion_adv."),
    ("cond_enc.perceiver.", "t3.cond.perceiver."),
];

/// G: replacements in names of S3Gen, in this order.
const CRISP_S3GEN: [(&str, &str); 54] = [
    ("flow.decoder.estimator.", "fd."),
    ("down_blocks", "db"),
    ("mid_blocks", "mb"),
    ("up_blocks", "ub"),
    ("final_block", "fb"),
    ("final_proj", "fp"),
    ("time_embeddings", "te"),
    ("time_mlp", "tm"),
    ("time_embed_mixer", "tmx"),
    ("block1.block", "b1"),
    ("block2.block", "b2"),
    ("res_conv", "rc"),
    ("attn1.to_out.0", "attn1.o"),
    ("attn1.to_", "attn1."),
    ("ff.net.0.proj", "ff.up"),
    ("ff.net.2", "ff.down"),
    ("speaker_encoder.", "se."),
    ("xvector.", "xv."),
    ("nonlinear.", "nl."),
    ("batchnorm", "bn"),
    ("cam_layer.", "cam."),
    ("linear_local", "ll"),
    ("linear1", "l1"),
    ("linear2", "l2"),
    ("flow.encoder.", "fe."),
    ("self_attn.", "sa."),
    ("feed_forward.", "ff."),
    ("pre_lookahead_layer.", "pla."),
    ("up_encoders", "ue"),
    ("encoders", "enc"),
    ("up_embed", "uemb"),
    ("up_layer", "ul"),
    ("after_norm", "an"),
    ("norm_mha", "nmha"),
    ("norm_ff", "nff"),
    ("linear_out", "lo"),
    ("linear_pos", "lp"),
    ("linear_q", "lq"),
    ("linear_k", "lk"),
    ("linear_v", "lv"),
    ("pos_bias_u", "pbu"),
    ("pos_bias_v", "pbv"),
    ("mel2wav.", "v."),
    ("conv_pre", "cpre"),
    ("conv_post", "cpost"),
    ("source_downs", "sd"),
    ("source_resblocks", "srb"),
    ("resblocks", "rb"),
    ("activations1", "a1"),
    ("activations2", "a2"),
    ("convs1", "c1"),
    ("convs2", "c2"),
    ("condnet", "cn"),
    ("f0_predictor.", "f0."),
];

/// The rest of [`CRISP_S3GEN`].
const CRISP_LAST: [(&str, &str); 9] = [
    ("m_source.", "ms."),
    ("l_linear", "ll"),
    ("classifier", "cls"),
    ("tokenizer.", "tok."),
    ("quantizer.", "quant."),
    ("_codebook.", "cb."),
    ("encoder.blocks", "enc.b"),
    ("fsmn_block", "fsmn"),
    ("project_down", "pd"),
];

/// Longest name that ggml allows, and one.
const LONG: usize = 64;

/// Names of T3, besides the transformer's.
const T3: [&str; 6] = ["tfmr.", "text_", "speech_", "cond_enc.", "lstm.", "proj."];

/// Whether an official tensor is of T3 or of the voice encoder.
pub fn is_of_t3(name: &str) -> bool {
    T3.iter().any(|prefix| name.starts_with(prefix))
}

/// The engine's name of an official tensor; `None` where it has none.
pub fn find(port: Port, name: &str) -> Option<String> {
    let of_t3 = is_of_t3(name);
    match port {
        Port::Official => Some(name.to_owned()),
        Port::ChatterboxCpp if of_t3 => rename(CPP_T3, name).map(|n| n.replace('.', "/")),
        Port::ChatterboxCpp => rename(CPP_FLOW, name).or_else(|| {
            let (official, port) = CPP_PREFIXES.iter().find(|(official, _)| name.starts_with(official))?;
            let rest = name[official.len()..].replace('.', "/");
            Some(format!("{port}{}", rest.replace("_mel_filters", "mel_fb")))
        }),
        Port::CrispAsr if name.starts_with("lstm.") || name.starts_with("proj.") => {
            Some(format!("ve.{name}"))
        }
        Port::CrispAsr if of_t3 => Some(crisp_t3(name)),
        Port::CrispAsr => {
            let pairs = CRISP_S3GEN.iter().chain(&CRISP_LAST);
            let short = pairs.fold(name.to_owned(), |name, (old, new)| name.replace(old, new));
            let short = format!("s3.{short}");
            Some(match short.len() < LONG {
                true => short,
                false => format!("s3.h.{}", &format!("{:x}", md5::compute(name))[..8]),
            })
        }
        _ => None,
    }
}

fn crisp_t3(name: &str) -> String {
    // `speech_pos_emb` holds `text_…`'s replacements in no other way.
    if let Some(rest) = name.strip_prefix("speech_pos_emb.emb.") {
        return format!("t3.speech_pos_emb.{rest}");
    }
    CRISP_T3.iter().fold(name.to_owned(), |name, (old, new)| name.replace(old, new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_engines() {
        let cases = [
            (Port::ChatterboxCpp, "tfmr.h.3.attn.c_proj.bias", "model/h3/attn/c_proj/b"),
            (Port::ChatterboxCpp, "lstm.weight_hh_l0", "voice_encoder/lstm/weight_hh_l0"),
            (
                Port::ChatterboxCpp,
                "flow.encoder.up_encoders.1.self_attn.pos_bias_u",
                "flow/encoder/up_block1/attn/pos_bias_u",
            ),
            (Port::ChatterboxCpp, "mel2wav.conv_pre.weight", "hift/conv_pre/weight"),
            (Port::CrispAsr, "tfmr.layers.2.self_attn.o_proj.weight", "t3.blk.2.attn_output.weight"),
            (Port::CrispAsr, "tfmr.h.2.mlp.c_fc.bias", "t3.blk.2.ffn_fc.bias"),
            (Port::CrispAsr, "speech_emb.weight", "t3.speech_emb.weight"),
            (Port::CrispAsr, "speech_pos_emb.emb.weight", "t3.speech_pos_emb.weight"),
            (
                Port::CrispAsr,
                "flow.decoder.estimator.mid_blocks.3.0.mlp.1.weight",
                "s3.fd.mb.3.0.mlp.1.weight",
            ),
        ];
        for (port, official, want) in cases {
            assert_eq!(find(port, official).as_deref(), Some(want));
        }
        let long = "speaker_encoder.xvector.block1.tdnnd1.nonlinear1.some.very.long.name.of.a.batchnorm.running_mean";
        let short = find(Port::CrispAsr, long).expect("a name");
        assert!(short.starts_with("s3.h.") && short.len() == 13, "{short}");
    }
}
