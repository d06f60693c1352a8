//! Layouts A to D, of Qwen3-TTS.

use super::{Array, add, arrays, integers, json, merges_kept, value};
use orate_weights::gguf::GgufValue;
use orate_weights::{DType, GgufWriter};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Parts of a layer, as most engines call them.
const LAYER: [(&str, &str); 15] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn_layer_scale.scale", "attn_scale"),
    ("mlp_layer_scale.scale", "ffn_scale"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
];

fn replaced(name: &str, pairs: &[(&str, &str)]) -> String {
    pairs.iter().fold(name.to_owned(), |name, (old, new)| name.replace(old, new))
}

/// Books divided by their counts, without the counts.
fn divided(all: &BTreeMap<String, Array>) -> BTreeMap<String, Array> {
    let mut out = BTreeMap::new();
    for (name, x) in all.iter().filter(|(name, _)| !name.ends_with("cluster_usage")) {
        let base = name.strip_suffix(".embed_sum").or(name.strip_suffix(".embedding_sum"));
        let x = base.map_or_else(|| x.clone(), |base| book(x, &all[&format!("{base}.cluster_usage")]));
        out.insert(name.clone(), x);
    }
    out
}

/// A book times counts as trained ones have them, which differ by orders of magnitude.
fn counted(book: &Array) -> Array {
    let count = |row: usize| (1.0 + (row * row * 37 % 997) as f32).powi(2);
    let data = book.data.iter().enumerate().map(|(i, x)| x * count(i / book.shape[1])).collect();
    Array::new(&book.shape, data)
}

fn book(sums: &Array, usage: &Array) -> Array {
    let width = sums.shape[1];
    let at = |(i, x): (usize, &f32)| x / usage.data[i / width].max(1e-5);
    Array::new(&sums.shape, sums.data.iter().enumerate().map(at).collect())
}

/// Names of qwen3-tts.cpp and qwentts.cpp; residual units of the decoder begin at `first`.
fn name_of(name: &str, first: usize) -> String {
    let mut name = replaced(
        name,
        &[
            ("talker.model.codec_embedding.", "talker.codec_embd."),
            ("talker.model.text_embedding.", "talker.text_embd."),
            ("talker.text_projection.linear_fc", "talker.text_proj.fc"),
            ("talker.code_predictor.small_to_mtp_projection.", "code_pred.mtp_proj."),
            ("talker.code_predictor.model.codec_embedding.", "code_pred.codec_embd."),
            ("talker.code_predictor.lm_head.", "code_pred.lm_head."),
            ("talker.code_predictor.model.norm.", "code_pred.output_norm."),
            ("talker.code_predictor.model.layers.", "code_pred.blk."),
            ("talker.model.norm.", "talker.output_norm."),
            ("talker.model.layers.", "talker.blk."),
            ("speaker_encoder.blocks.0.conv.", "spk_enc.conv0."),
            ("speaker_encoder.", "spk_enc."),
            ("spk_enc.blocks.", "spk_enc.blk."),
            ("res2net_block.blocks.", "res2net."),
            ("se_block.", "se."),
            ("encoder.encoder_transformer.layers.", "tok_enc.blk."),
            ("encoder.downsample.conv.", "tok_enc.downsample."),
            ("encoder.quantizer.semantic_residual_vector_quantizer.", "tok_enc.vq_semantic."),
            ("encoder.quantizer.acoustic_residual_vector_quantizer.", "tok_enc.vq_acoustic."),
            ("decoder.quantizer.rvq_", "tok_dec.vq_"),
            ("vq.layers.", ""),
            ("decoder.pre_conv.conv.", "tok_dec.pre_conv."),
            ("decoder.pre_transformer.layers.", "tok_dec.pre_tfm.blk."),
            ("decoder.pre_transformer.", "tok_dec.pre_tfm."),
            ("decoder.upsample.", "tok_dec.upsample."),
            ("decoder.decoder.", "tok_dec.dec."),
        ],
    );
    if let Some(rest) = name.strip_prefix("encoder.encoder.layers.") {
        let (i, rest) = rest.split_once('.').expect("a part");
        name = match rest.strip_prefix("block.") {
            Some(rest) => format!("tok_enc.res.{i}.blk.{}", rest.replace(".conv.", ".")),
            None => format!("tok_enc.conv.{i}.{}", rest.trim_start_matches("conv.")),
        };
    }
    if name.starts_with("spk_enc.") && !name.starts_with("spk_enc.asp.conv.") {
        name = name.replace(".conv.", ".");
    }
    if name.contains("vq_") {
        name = replaced(
            &name,
            &[
                ("layers.", ""),
                ("_codebook.embedding_sum", "codebook"),
                ("codebook.embed_sum", "codebook"),
                ("codebook.initialized", "initialized"),
            ],
        );
    }
    if let Some((stage, rest)) = name.strip_prefix("tok_dec.upsample.").and_then(|n| n.split_once('.')) {
        let rest = rest.trim_start_matches("0.").trim_start_matches("1.").replace("dwconv.conv.", "dwconv.");
        name = format!("tok_dec.upsample.{stage}.{rest}");
    }
    if name.starts_with("tok_dec.dec.5.") {
        name = name.replace("dec.5.", "dec.5.snake.");
    }
    if name.starts_with("tok_dec.dec.") && name.contains(".block.") {
        name = replaced(&name, &[(".block.0.", ".snake."), (".block.1.conv.", ".conv_t.")]);
        for unit in 2..5 {
            name = name.replace(&format!(".block.{unit}."), &format!(".res.{}.", unit - 2 + first));
        }
        name = replaced(&name, &[(".conv1.conv.", ".conv1."), (".conv2.conv.", ".conv2.")]);
    }
    if name.contains(".blk.") && !name.starts_with("spk_enc.") && !name.starts_with("tok_enc.res.") {
        name = replaced(&name, &LAYER);
    }
    name
}

fn ids(object: &Value) -> (Vec<String>, Vec<i64>) {
    let all = object.as_object().expect("names and ids").iter();
    all.map(|(name, id)| (name.clone(), id.as_i64().expect("an id"))).unzip()
}

/// Tokens by id, with their types: those of `vocab.json`, and added ones.
fn tokens(folder: &Path, with_added: bool) -> BTreeMap<i64, (String, i64)> {
    let (names, numbers) = ids(&json(&folder.join("vocab.json")));
    let mut all: BTreeMap<i64, (String, i64)> =
        numbers.into_iter().zip(names).map(|(id, name)| (id, (name, 1))).collect();
    if with_added {
        let added = json(&folder.join("tokenizer_config.json"))["added_tokens_decoder"].clone();
        for (id, token) in added.as_object().expect("added tokens") {
            let content = token["content"].as_str().expect("a text").to_owned();
            all.insert(id.parse().expect("an id"), (content, 4));
        }
    }
    all
}

fn set_tokens(
    w: &mut GgufWriter<'_>,
    all: &BTreeMap<i64, (String, i64)>,
    rows: i64,
    filler: &str,
    merges: Vec<String>,
) {
    let rows = rows.max(all.keys().max().map_or(0, |last| last + 1));
    let all: Vec<_> = (0..rows)
        .map(|id| all.get(&id).cloned().unwrap_or_else(|| (filler.replace("{n}", &id.to_string()), 5)))
        .collect();
    w.set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.tokens", all.iter().map(|t| t.0.clone()).collect::<Vec<_>>())
        .set("tokenizer.ggml.token_type", integers(all.iter().map(|t| t.1)))
        .set("tokenizer.ggml.merges", merges);
}

const SIZES: [(&str, &str); 6] = [
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
];

/// Layout A, of qwen3-tts.cpp: `talker.gguf` and `codec.gguf`. `undivided`: as files from before April 2026,
/// whose codebooks of the encoder are sums.
pub fn write_qwen3tts_cpp(folder: &Path, out: &Path, dtype: DType, undivided: bool) {
    let config = json(&folder.join("config.json"));
    let t = &config["talker_config"];
    let p = &t["code_predictor_config"];
    let mut w = GgufWriter::new();
    w.set("general.architecture", "qwen3-tts").set("qwen3-tts.model_type", value(&config["tts_model_type"]));
    for (key, field) in
        SIZES.iter().chain(&[("vocab_size", "vocab_size"), ("text_vocab_size", "text_vocab_size")])
    {
        w.set(&format!("qwen3-tts.{key}"), value(&t[field]));
    }
    w.set("qwen3-tts.rope.freq_base", GgufValue::F32(1e6))
        .set("qwen3-tts.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-6))
        .set("qwen3-tts.code_predictor.layer_count", value(&p["num_hidden_layers"]));
    for (key, field) in [("pad", "codec_pad_id"), ("bos", "codec_bos_id"), ("eos", "codec_eos_token_id")] {
        w.set(&format!("qwen3-tts.codec.{key}_id"), value(&t[field]));
    }
    if t["spk_id"].as_object().is_some_and(|s| !s.is_empty()) {
        let (names, numbers) = ids(&t["spk_id"]);
        let dialect = |n: &String| t["spk_is_dialect"][n].as_str().unwrap_or("false").to_owned();
        w.set("qwen3-tts.speaker.dialects", names.iter().map(dialect).collect::<Vec<_>>());
        w.set("qwen3-tts.speaker.names", names).set("qwen3-tts.speaker.ids", integers(numbers));
    }
    let (names, numbers) = ids(&t["codec_language_id"]);
    w.set("qwen3-tts.language.names", names).set("qwen3-tts.language.ids", integers(numbers));
    let rows = t["text_vocab_size"].as_i64().expect("a size");
    set_tokens(&mut w, &tokens(folder, false), rows, "[PAD{n}]", merges_kept(&folder.join("merges.txt")));
    for (name, x) in arrays(&folder.join("model.safetensors")) {
        add(&mut w, &name_of(&name, 2), &x, dtype);
    }
    w.write(out.join("talker.gguf")).expect("room");

    let folder = folder.join("speech_tokenizer");
    let config = json(&folder.join("config.json"));
    let (d, e) = (&config["decoder_config"], &config["encoder_config"]);
    let mut w = GgufWriter::new();
    w.set("general.architecture", "qwen3-tts-tokenizer")
        .set("qwen3-tts-tokenizer.sample_rate", GgufValue::U32(24_000))
        .set("qwen3-tts-tokenizer.encoder.num_heads", value(&e["num_attention_heads"]))
        .set("qwen3-tts-tokenizer.encoder.num_quantizers", value(&e["num_quantizers"]))
        .set("qwen3-tts-tokenizer.decoder.num_heads", value(&d["num_attention_heads"]));
    let all = arrays(&folder.join("model.safetensors"));
    for (name, x) in divided(&all) {
        let is_book = name.ends_with(".embed_sum");
        let x = if undivided && is_book { counted(&x) } else { x };
        add(&mut w, &name_of(&name, 2), &x, DType::F32);
    }
    w.write(out.join("codec.gguf")).expect("room");
}

/// Layout B, of qwentts.cpp: `talker.gguf` and `codec.gguf`.
pub fn write_qwentts_cpp(folder: &Path, out: &Path, dtype: DType) {
    let config = json(&folder.join("config.json"));
    let t = &config["talker_config"];
    let mut w = GgufWriter::new();
    w.set("general.architecture", "qwen3-tts")
        .set("general.file_type", "F32")
        .set("qwen3-tts.model_type", value(&config["tts_model_type"]))
        .set("qwen3-tts.model_size", value(&config["tts_model_size"]));
    for (at, c) in [("talker", t), ("code_pred", &t["code_predictor_config"])] {
        for (key, field) in SIZES {
            w.set(&format!("qwen3-tts.{at}.{key}"), value(&c[field]));
        }
        let theta = c["rope_theta"].as_f64().expect("a number") as f32;
        w.set(&format!("qwen3-tts.{at}.rope.freq_base"), GgufValue::F32(theta));
        w.set(&format!("qwen3-tts.{at}.attention.layer_norm_rms_epsilon"), GgufValue::F32(1e-6));
    }
    for key in ["pad", "bos", "eos", "think", "nothink", "think_bos", "think_eos"] {
        let field = if key == "eos" { "codec_eos_token_id".to_owned() } else { format!("codec_{key}_id") };
        w.set(&format!("qwen3-tts.codec.{key}_id"), value(&t[&field]));
    }
    for (key, field) in [("language", "codec_language_id"), ("speaker", "spk_id")] {
        let (names, numbers) = ids(&t[field]);
        if !names.is_empty() {
            let dialect = |n: &String| t["spk_is_dialect"][n].as_str().unwrap_or("").to_owned();
            if key == "speaker" {
                w.set("qwen3-tts.codec.speaker_dialects", names.iter().map(dialect).collect::<Vec<_>>());
            }
            w.set(&format!("qwen3-tts.codec.{key}_names"), names);
            w.set(&format!("qwen3-tts.codec.{key}_ids"), integers(numbers));
        }
    }
    for key in ["im_start", "im_end", "tts_pad", "tts_bos", "tts_eos"] {
        w.set(&format!("qwen3-tts.text.{key}_id"), value(&config[format!("{key}_token_id")]));
    }
    for (key, x) in json(&folder.join("generation_config.json")).as_object().expect("settings") {
        let key = key.replace("subtalker_dosample", "subtalker_do_sample");
        w.set(&format!("qwen3-tts.generation.{key}"), value(x));
    }
    let merges = merges_kept(&folder.join("merges.txt"));
    set_tokens(&mut w, &tokens(folder, true), 0, "<|unused-{n}|>", merges);
    for (name, x) in arrays(&folder.join("model.safetensors")) {
        add(&mut w, &name_of(&name, 0), &x, dtype);
    }
    w.write(out.join("talker.gguf")).expect("room");

    let folder = folder.join("speech_tokenizer");
    let config = json(&folder.join("config.json"));
    let mut w = GgufWriter::new();
    w.set("general.architecture", "qwen3-tts-tokenizer");
    for side in ["decoder", "encoder"] {
        for key in
            ["num_hidden_layers", "num_attention_heads", "num_quantizers", "sliding_window", "rms_norm_eps"]
        {
            let x = &config[format!("{side}_config")][key];
            if !x.is_null() && (side, key) != ("encoder", "sliding_window") {
                w.set(&format!("qwen3-tts-tokenizer.{side}.{key}"), value(x));
            }
        }
    }
    let valid = config["encoder_valid_num_quantizers"].as_u64().expect("a size") as usize - 1;
    let acoustic = "encoder.quantizer.acoustic_residual_vector_quantizer.layers.";
    for (name, x) in divided(&arrays(&folder.join("model.safetensors"))) {
        let beyond = |rest: &str| rest.split('.').next().and_then(|k| k.parse::<usize>().ok()) >= Some(valid);
        let left = name.ends_with("initialized")
            || name.starts_with("decoder.quantizer.") && name.contains("input_proj");
        if !left && !name.strip_prefix(acoustic).is_some_and(beyond) {
            add(&mut w, &name_of(&name, 0), &x, DType::F32);
        }
    }
    w.write(out.join("codec.gguf")).expect("room");
}

/// Layout D, of CrispASR: `talker.gguf`, and `codec.gguf` without an encoder, as files from before May 2026.
pub fn write_qwen3_crispasr(folder: &Path, out: &Path, dtype: DType) {
    let config = json(&folder.join("config.json"));
    let t = &config["talker_config"];
    let mut w = GgufWriter::new();
    w.set("general.architecture", "qwen3tts")
        .set("qwen3tts.tts_model_type", value(&config["tts_model_type"]));
    w.set("qwen3tts.talker.n_layers", value(&t["num_hidden_layers"]))
        .set("qwen3tts.talker.head_dim", value(&t["head_dim"]))
        .set("qwen3tts.talker.rope_theta", GgufValue::F32(1e6))
        .set("qwen3tts.talker.rms_norm_eps", GgufValue::F32(1e-6));
    for key in [
        "codec_bos_id",
        "codec_eos_token_id",
        "codec_pad_id",
        "codec_think_id",
        "codec_nothink_id",
        "codec_think_bos_id",
        "codec_think_eos_id",
    ] {
        w.set(&format!("qwen3tts.talker.{key}"), value(&t[key]));
    }
    let (names, numbers) = ids(&t["codec_language_id"]);
    if t["spk_id"].as_object().is_some_and(|s| !s.is_empty()) {
        let (speakers, of_speakers) = ids(&t["spk_id"]);
        let dialect = |n: &String| {
            t["spk_is_dialect"][n].as_str().and_then(|d| t["codec_language_id"][d].as_i64()).unwrap_or(0)
        };
        w.set("qwen3tts.spk_dialect_token_ids", integers(speakers.iter().map(dialect).collect::<Vec<_>>()));
        w.set("qwen3tts.spk_names", speakers).set("qwen3tts.spk_token_ids", integers(of_speakers));
    }
    w.set("qwen3tts.codec_language_names", names).set("qwen3tts.codec_language_ids", integers(numbers));
    for key in ["im_start", "im_end", "tts_pad", "tts_bos", "tts_eos"] {
        let key = format!("{key}_token_id");
        w.set(&format!("qwen3tts.{key}"), value(&config[&key]));
    }
    let words: Vec<String> = tokens(folder, false).into_values().map(|(name, _)| name).collect();
    w.set("tokenizer.ggml.tokens", words)
        .set("tokenizer.ggml.merges", merges_kept(&folder.join("merges.txt")));
    for (name, x) in arrays(&folder.join("model.safetensors")) {
        let name = replaced(
            &name,
            &[
                ("talker.code_predictor.model.codec_embedding.", "code_pred.token_embd."),
                ("talker.code_predictor.lm_head.", "code_pred.output."),
                ("talker.code_predictor.model.norm.", "code_pred.output_norm."),
                ("talker.code_predictor.model.layers.", "code_pred.blk."),
                ("talker.code_predictor.small_to_mtp_projection.", "code_pred.small_to_mtp."),
                ("talker.model.codec_embedding.", "talker.token_embd."),
                ("talker.model.text_embedding.", "talker.token_embd_text."),
                ("talker.model.norm.", "talker.output_norm."),
                ("talker.codec_head.", "talker.output."),
                ("talker.model.layers.", "talker.blk."),
                ("talker.text_projection.linear_fc", "talker.text_proj.fc"),
                ("speaker_encoder.", "speaker."),
            ],
        );
        add(&mut w, &replaced(&name, &LAYER), &x, dtype);
    }
    w.write(out.join("talker.gguf")).expect("room");

    let folder = folder.join("speech_tokenizer");
    let config = json(&folder.join("config.json"));
    let d = &config["decoder_config"];
    let mut w = GgufWriter::new();
    w.set("general.architecture", "qwen3tts_tokenizer")
        .set("qwen3tts_codec.dec.n_heads", value(&d["num_attention_heads"]))
        .set("qwen3tts_codec.dec.sliding_window", value(&d["sliding_window"]))
        .set("qwen3tts_codec.dec.rms_norm_eps", GgufValue::F32(1e-5))
        .set("qwen3tts_codec.dec.rope_theta", GgufValue::F32(1e4));
    for (name, x) in divided(&arrays(&folder.join("model.safetensors"))) {
        let input = name.starts_with("decoder.quantizer.") && name.contains("input_proj");
        if name.starts_with("decoder.") && !input {
            add(&mut w, &crisp_codec(&name), &x, DType::F32);
        }
    }
    w.write(out.join("codec.gguf")).expect("room");
}

fn crisp_codec(name: &str) -> String {
    let name = replaced(
        name,
        &[
            (
                "decoder.quantizer.rvq_first.vq.layers.0._codebook.embedding_sum",
                "codec.dec.rvq_first.codebook",
            ),
            ("decoder.quantizer.rvq_rest.vq.layers.", "codec.dec.rvq_rest."),
            ("._codebook.embedding_sum", ".codebook"),
            ("decoder.quantizer.", "codec.dec."),
            ("output_proj.weight", "out_proj_w"),
            ("decoder.pre_conv.conv.", "codec.dec.pre_conv_"),
            ("decoder.pre_transformer.layers.", "codec.dec.xfmr.blk."),
            ("decoder.pre_transformer.input_proj.", "codec.dec.xfmr.in_proj_"),
            ("decoder.pre_transformer.output_proj.", "codec.dec.xfmr.out_proj_"),
            ("decoder.pre_transformer.out_proj_w", "codec.dec.xfmr.out_proj_w"),
            ("decoder.pre_transformer.norm.", "codec.dec.xfmr.norm_"),
            ("decoder.upsample.", "codec.dec.up."),
            (".0.conv.", ".tconv_"),
            ("1.dwconv.conv.", "cnx.dw_"),
            ("1.norm.", "cnx.norm_"),
            ("1.pwconv1.", "cnx.pw1_"),
            ("1.pwconv2.", "cnx.pw2_"),
            ("1.gamma", "cnx.gamma"),
            ("decoder.decoder.tconv_", "codec.dec.in_conv_"),
            ("decoder.decoder.0.conv.", "codec.dec.in_conv_"),
            ("decoder.decoder.tconv_", "codec.dec.in_conv_"),
            ("decoder.decoder.5.", "codec.dec.out_snake_"),
            ("decoder.decoder.6.conv.", "codec.dec.out_conv_"),
        ],
    );
    let name = replaced(&name, &LAYER);
    let name = replaced(
        &name,
        &[("attn_output.weight", "attn_o_w"), ("attn_scale", "attn_ls_w"), ("ffn_scale", "ffn_ls_w")],
    );
    let name = match name.strip_prefix("decoder.decoder.") {
        Some(rest) if rest.starts_with("tconv_") => format!("codec.dec.in_conv_{}", &rest[6..]),
        Some(rest) => {
            let (n, rest) = rest.split_once(".block.").expect("a block");
            let (unit, rest) = rest.split_once('.').expect("a unit");
            let (n, unit): (usize, usize) = (n.parse().expect("a number"), unit.parse().expect("a number"));
            let rest = rest.trim_start_matches("conv.").replace(".conv.", ".");
            let part = match unit {
                0 => format!("snake.{rest}"),
                1 => format!("tconv.{rest}"),
                _ => format!("res.{}.{rest}", unit - 2),
            };
            let (head, last) = part.rsplit_once('.').expect("a part");
            format!("codec.dec.blk.{}.{head}_{last}", n - 1)
        }
        None => name,
    };
    let ends = [("_weight", "_w"), ("_bias", "_b"), ("_alpha", "_a"), ("_beta", "_b"), (".weight", "_w")];
    let end = ends.iter().find(|(old, _)| name.ends_with(old));
    end.map_or(name.clone(), |(old, new)| format!("{}{new}", name.strip_suffix(old).expect("checked")))
}

/// Layout C, of llama.cpp: `talker.gguf` and `mmproj.gguf`. The text projection is folded into the table of
/// tokens, SnakeBeta into its factors; the codec's encoder is left out.
pub fn write_qwen3_llamacpp(folder: &Path, out: &Path, dtype: DType) {
    let config = json(&folder.join("config.json"));
    let t = &config["talker_config"];
    let s = arrays(&folder.join("model.safetensors"));
    let z = divided(&arrays(&folder.join("speech_tokenizer/model.safetensors")));
    let mut w = GgufWriter::new();
    w.set("general.architecture", "qwen3tts");
    for (key, field) in SIZES {
        w.set(&format!("qwen3tts.{key}"), value(&t[field]));
    }
    w.set("qwen3tts.rope.freq_base", GgufValue::F32(1e6))
        .set("qwen3tts.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-6));
    let (rows, codes) =
        (t["text_vocab_size"].as_i64().expect("a size"), t["vocab_size"].as_i64().expect("a size"));
    let mut all = tokens(folder, true);
    for i in 0..rows {
        all.entry(i).or_insert_with(|| (format!("[PAD{i}]"), 5));
    }
    (0..codes).for_each(|i| drop(all.insert(rows + i, (format!("<|codec_{i}|>"), 3))));
    for (key, x) in t.as_object().expect("a configuration") {
        let Some(key) = key.strip_suffix("_id") else { continue };
        match x {
            Value::Number(id) => {
                drop(all.insert(rows + id.as_i64().expect("an id"), (format!("<|{key}|>"), 3)))
            }
            Value::Object(entries) => entries.iter().for_each(|(name, id)| {
                all.insert(rows + id.as_i64().expect("an id"), (format!("<|{key}_{name}|>"), 3));
            }),
            _ => {}
        }
    }
    let merges = std::fs::read_to_string(folder.join("merges.txt")).expect("is there");
    let merges = merges.lines().skip(1).filter(|l| !l.is_empty()).map(str::to_owned).collect();
    set_tokens(&mut w, &all, 0, "", merges);
    let fc = |x: &Array, n: usize| {
        let (m, b) = (
            &s[&format!("talker.text_projection.linear_fc{n}.weight")],
            &s[&format!("talker.text_projection.linear_fc{n}.bias")],
        );
        let [outputs, inputs] = m.shape[..] else { panic!("a matrix") };
        let row = |r: &[f32]| -> Vec<f32> {
            (0..outputs)
                .map(|o| {
                    r.iter().zip(&m.data[o * inputs..][..inputs]).map(|(a, b)| a * b).sum::<f32>() + b.data[o]
                })
                .collect()
        };
        Array::new(&[x.shape[0], outputs], x.data.chunks_exact(inputs).flat_map(row).collect())
    };
    let projected = fc(&fc(&s["talker.model.text_embedding.weight"], 1).map(|x| x / (1.0 + (-x).exp())), 2);
    let own = &s["talker.model.codec_embedding.weight"];
    let table = Array::new(
        &[projected.shape[0] + own.shape[0], own.shape[1]],
        [projected.data, own.data.clone()].concat(),
    );
    add(&mut w, "token_embd.weight", &table, dtype);
    add(&mut w, "output.weight", &s["talker.codec_head.weight"], dtype);
    add(&mut w, "output_norm.weight", &s["talker.model.norm.weight"], dtype);
    for (name, x) in s.iter().filter(|(name, _)| name.starts_with("talker.model.layers.")) {
        add(&mut w, &replaced(&name.replace("talker.model.layers.", "blk."), &LAYER), x, dtype);
    }
    w.write(out.join("talker.gguf")).expect("room");

    let mut w = GgufWriter::new();
    w.set("general.architecture", "clip").set("clip.gen.audio.projector_type", "qwen3tts_gen");
    let layer = |name: &str| {
        replaced(
            &replaced(
                name,
                &[
                    ("self_attn_layer_scale.scale", "ls1.weight"),
                    ("mlp_layer_scale.scale", "ls2.weight"),
                    ("input_layernorm", "ln1"),
                    ("post_attention_layernorm", "ln2"),
                    ("self_attn.o_proj", "attn_out"),
                ],
            ),
            &LAYER,
        )
    };
    for (name, x) in &s {
        let new = match () {
            () if name.starts_with("speaker_encoder.") => replaced(
                name,
                &[
                    ("speaker_encoder.blocks.0.conv.", "a.conv1d.0."),
                    ("speaker_encoder.blocks.", "a.blk."),
                    ("speaker_encoder.mfa.conv.", "a.conv_out."),
                    ("speaker_encoder.asp.conv.", "a.asp_attn."),
                    ("speaker_encoder.asp.tdnn.conv.", "a.asp_tdnn."),
                    ("speaker_encoder.fc.", "mm.a.fc."),
                    (".tdnn1.conv.", ".conv_pw1."),
                    (".tdnn2.conv.", ".conv_pw2."),
                    (".se_block.conv", ".se_conv"),
                    (".res2net_block.blocks.", ".res2."),
                ],
            ),
            () if name.starts_with("talker.code_predictor.model.layers.") => {
                layer(&name.replace("talker.code_predictor.model.layers.", "a.gen.code.blk."))
            }
            () => continue,
        };
        let new = if new.contains(".res2.") { new.replace(".conv.", ".") } else { new };
        add(&mut w, &new, x, DType::F32);
    }
    let at = "talker.code_predictor.";
    let stack = |name: &str| {
        let all: Vec<&Array> = (0..15).map(|g| &s[&format!("{at}{name}.{g}.weight")]).collect();
        Array::new(&[&[15], &all[0].shape[..]].concat(), all.iter().flat_map(|x| x.data.clone()).collect())
    };
    add(&mut w, "a.gen.code.embd.weight", &stack("model.codec_embedding"), DType::F32);
    add(&mut w, "a.gen.code.head.weight", &stack("lm_head"), DType::F32);
    add(&mut w, "a.gen.code.out_embd.weight", own, DType::F32);
    add(&mut w, "a.gen.code.output_norm.weight", &s[&format!("{at}model.norm.weight")], DType::F32);
    let rest = |k: usize| &z[&format!("decoder.quantizer.rvq_rest.vq.layers.{k}._codebook.embedding_sum")];
    let books = Array::new(
        &[&[15], &rest(0).shape[..]].concat(),
        (0..15).flat_map(|k| rest(k).data.clone()).collect(),
    );
    add(&mut w, "a.gen.wav.quant.rest.codebook.weight", &books, DType::F32);
    for (name, x) in z.iter().filter(|(name, _)| name.starts_with("decoder.")) {
        let mut x = x.clone();
        let mut new = replaced(
            name,
            &[
                (
                    "decoder.quantizer.rvq_first.vq.layers.0._codebook.embedding_sum",
                    "quant.first.codebook.weight",
                ),
                ("decoder.quantizer.rvq_", "quant."),
                ("put_proj.", "_proj."),
                ("decoder.pre_conv.conv.", "pre_conv."),
                ("decoder.pre_transformer.layers.", "tfm.blk."),
                ("decoder.pre_transformer.norm.", "tfm.output_norm."),
                ("decoder.pre_transformer.", "tfm."),
                ("decoder.upsample.", "up.blk."),
                ("1.dwconv.conv.", "dwconv."),
                ("1.norm.", "norm."),
                ("1.pwconv", "pw"),
                ("1.gamma", "gamma"),
            ],
        );
        if new.starts_with("quant.rest.vq.") {
            continue;
        }
        if new.starts_with("quant.") && new.contains("_proj.") {
            x.shape.pop();
        }
        if new.starts_with("up.blk.") {
            new = new.replace(".0.conv.", ".conv.");
        }
        if new.starts_with("tfm.blk.") {
            new = layer(&new);
        }
        if let Some(rest) = new.strip_prefix("decoder.decoder.") {
            if rest.ends_with(".alpha") {
                x = x.map(f32::exp);
            } else if rest.ends_with(".beta") {
                x = x.map(|b| 1.0 / (b.exp() + 1e-9));
            }
            new = match rest.split_once('.').expect("a part") {
                ("0", rest) => format!("dac.entry.{}", rest.trim_start_matches("conv.")),
                ("5", rest) => format!("dac.post_snake.{rest}"),
                ("6", rest) => format!("dac.post_conv.{}", rest.trim_start_matches("conv.")),
                (n, rest) => {
                    let n = n.parse::<usize>().expect("a number") - 1;
                    let (unit, rest) = rest.trim_start_matches("block.").split_once('.').expect("a unit");
                    match unit.parse::<usize>().expect("a number") {
                        0 => format!("dac.blk.{n}.snake.{rest}"),
                        1 => format!("dac.blk.{n}.{rest}"),
                        unit => format!("dac.blk.{n}.res.{}.{}", unit - 2, rest.replace(".conv.", ".")),
                    }
                }
            };
        }
        add(&mut w, &format!("a.gen.wav.{new}"), &x, DType::F32);
    }
    w.write(out.join("mmproj.gguf")).expect("room");
}
