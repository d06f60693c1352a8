//! Layouts F and G, of Chatterbox.

use super::{Array, Values, add, add_integers, arrays, json, write_container};
use orate_weights::{DType, GgufWriter, PtFile, WeightSource};
use std::collections::BTreeMap;
use std::path::Path;

/// Folds weight norm.
fn folded(all: BTreeMap<String, Array>) -> BTreeMap<String, Array> {
    let mut out = BTreeMap::new();
    for (name, v) in &all {
        if let Some(base) = name.strip_suffix(".parametrizations.weight.original1") {
            let g = &all[&format!("{base}.parametrizations.weight.original0")];
            let row = v.data.len() / v.shape[0];
            let scaled = |(i, row): (usize, &[f32])| {
                let length = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                row.iter().map(|x| (f64::from(g.data[i]) * f64::from(*x) / length) as f32).collect::<Vec<_>>()
            };
            let data = v.data.chunks_exact(row).enumerate().flat_map(scaled).collect();
            out.insert(format!("{base}.weight"), Array::new(&v.shape, data));
        } else if !name.ends_with(".parametrizations.weight.original0")
            && !name.ends_with("num_batches_tracked")
        {
            out.insert(name.clone(), v.clone());
        }
    }
    out
}

fn replaced(name: &str, pairs: &[(&str, &str)]) -> String {
    pairs.iter().fold(name.to_owned(), |name, (old, new)| name.replace(old, new))
}

/// Layout E, of audio.cpp: Turbo in one file. `encoders` says whether what reads recordings is in it, as in
/// files of one of its two converters.
pub fn write_turbo_audiocpp(folder: &Path, out: &Path, encoders: bool) {
    let mut all = vec![];
    for (name, x) in arrays(&folder.join("t3_turbo_v1.safetensors")) {
        if name.contains("tfmr.wte") {
            continue;
        }
        let is_turned = name.ends_with(".weight") && name.contains(".c_");
        let pairs = [
            ("tfmr.ln_f.", "output_norm."),
            ("tfmr.wpe.", "wpe."),
            ("tfmr.h.", "blk."),
            ("ln_1", "attn_norm"),
            ("ln_2", "ffn_norm"),
            ("attn.c_attn", "attn_qkv"),
            ("attn.c_proj", "attn_output"),
            ("mlp.c_fc", "ffn_fc"),
            ("mlp.c_proj", "ffn_proj"),
            ("cond_enc.", "cond."),
        ];
        let x = if is_turned { x.turned() } else { x };
        all.push((format!("t3/{}", replaced(&name, &pairs)), Values::Floats(x)));
    }
    let conds = PtFile::open(folder.join("conds.pt")).expect("a voice");
    for (name, stored) in [
        ("t3.speaker_emb", "t3.speaker_emb"),
        ("t3.speech_prompt_tokens", "t3.cond_prompt_speech_tokens"),
        ("gen.prompt_token", "gen.prompt_token"),
        ("gen.prompt_feat", "gen.prompt_feat"),
        ("gen.embedding", "gen.embedding"),
    ] {
        let t = conds.get(stored).expect("a part of a voice");
        let values = match t.to_i64() {
            Some(all) => Values::Integers(all),
            None => Values::Floats(Array::new(&[t.len()], t.to_f32())),
        };
        all.push((format!("conds/{name}"), values));
    }
    for (name, x) in folded(arrays(&folder.join("s3gen_meanflow.safetensors"))) {
        let reads = name.starts_with("tokenizer.") || name.starts_with("speaker_encoder.");
        if (encoders || !reads) && name != "tokenizer.window" {
            all.push((format!("s3gen/{}", replaced(&name, &[("mel2wav.", "v.")])), Values::Floats(x)));
        }
    }
    if encoders {
        all.push(("t3/hparams.num_heads".to_owned(), Values::Integers(vec![16])));
        let encoder = arrays(&folder.join("ve.safetensors")).into_iter();
        all.extend(encoder.map(|(name, x)| (format!("voice_encoder/{name}"), Values::Floats(x))));
    }
    let tags: Vec<_> = json(&folder.join("added_tokens.json"))
        .as_object()
        .expect("tokens")
        .iter()
        .map(|(token, id)| serde_json::json!({"token": token, "id": id}))
        .collect();
    let merges: String =
        super::merges_kept(&folder.join("merges.txt")).iter().map(|l| format!("{l}\n")).collect();
    let vocabulary = std::fs::read(folder.join("vocab.json")).expect("is there");
    let files = [
        ("vocab.json", vocabulary),
        ("merges.txt", merges.into_bytes()),
        ("special_tokens.json", serde_json::json!(tags).to_string().into_bytes()),
    ];
    let files = files.map(|(name, bytes)| (format!("chatterbox_turbo_{name}"), bytes));
    write_container(out, "chatterbox_turbo", all, files.into());
}

fn voice(w: &mut GgufWriter<'_>, conds: &Path, names: [&str; 5], which: std::ops::Range<usize>) {
    let file = PtFile::open(conds).expect("a voice");
    let stored = [
        "t3.speaker_emb",
        "t3.cond_prompt_speech_tokens",
        "gen.prompt_token",
        "gen.prompt_feat",
        "gen.embedding",
    ];
    for i in which {
        let t = file.get(stored[i]).expect("a part of a voice");
        match t.to_i64() {
            Some(all) => add_integers(w, names[i], &t.shape, all),
            None => {
                let x = Array::new(&t.shape, t.to_f32());
                add(w, names[i], &Array { shape: vec![1, 1, x.data.len()], ..x }, DType::F32);
            }
        }
    }
}

/// Layout G, of CrispASR: `t3.gguf` and `s3gen.gguf` of the English model, or of Turbo.
pub fn write_chatterbox_crispasr(folder: &Path, out: &Path, turbo: bool, dtype: DType) {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "chatterbox").set("chatterbox.t3.n_layers", 2_u32);
    let (tokens, merges) = match turbo {
        false => {
            let model = json(&folder.join("tokenizer.json"))["model"].clone();
            let merge = |m: &serde_json::Value| match m.as_array() {
                Some(pair) => {
                    format!("{} {}", pair[0].as_str().expect("a text"), pair[1].as_str().expect("a text"))
                }
                None => m.as_str().expect("a text").to_owned(),
            };
            let merges = model["merges"].as_array().expect("merges").iter().map(merge).collect();
            (model["vocab"].as_object().expect("tokens").clone(), merges)
        }
        true => {
            let mut all = json(&folder.join("vocab.json")).as_object().expect("tokens").clone();
            all.extend(json(&folder.join("added_tokens.json")).as_object().expect("tokens").clone());
            (all, super::merges_kept(&folder.join("merges.txt")))
        }
    };
    let by_id: BTreeMap<i64, String> =
        tokens.into_iter().map(|(t, id)| (id.as_i64().expect("an id"), t)).collect();
    let last = *by_id.keys().max().expect("some");
    let tokens: Vec<String> = (0..=last).map(|id| by_id.get(&id).cloned().unwrap_or_default()).collect();
    w.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.merges", merges);
    let names = [
        "conds.t3.speaker_emb",
        "conds.t3.speech_prompt_tokens",
        "conds.gen.prompt_token",
        "conds.gen.prompt_feat",
        "conds.gen.embedding",
    ];
    voice(&mut w, &folder.join("conds.pt"), names, 0..5);
    let (t3, s3gen) = if turbo { ("t3_turbo_v1", "s3gen_meanflow") } else { ("t3_cfg", "s3gen") };
    for (name, x) in arrays(&folder.join(format!("{t3}.safetensors"))) {
        let is_turned = turbo && name.ends_with(".weight") && name.contains(".c_");
        if name.contains("tfmr.wte") {
            continue;
        }
        let new = replaced(
            &name,
            &[
                ("tfmr.embed_tokens.", "t3.llama_embd."),
                ("tfmr.norm.", "t3.output_norm."),
                ("tfmr.ln_f.", "t3.output_norm."),
                ("tfmr.wpe.", "t3.wpe."),
                ("tfmr.layers.", "t3.blk."),
                ("tfmr.h.", "t3.blk."),
                ("self_attn.o_proj", "attn_output"),
                ("input_layernorm", "attn_norm"),
                ("post_attention_layernorm", "ffn_norm"),
                ("ln_1", "attn_norm"),
                ("ln_2", "ffn_norm"),
                ("attn.c_attn", "attn_qkv"),
                ("attn.c_proj", "attn_output"),
                ("mlp.c_fc", "ffn_fc"),
                ("mlp.c_proj", "ffn_proj"),
                ("self_attn.q_proj", "attn_q"),
                ("self_attn.k_proj", "attn_k"),
                ("self_attn.v_proj", "attn_v"),
                ("mlp.gate_proj", "ffn_gate"),
                ("mlp.up_proj", "ffn_up"),
                ("mlp.down_proj", "ffn_down"),
                ("cond_enc.emotion_adv_fc", "t3.cond.emotion_adv"),
                ("cond_enc.", "t3.cond."),
                ("_pos_emb.emb.", "_pos_emb."),
            ],
        );
        let new = if new.starts_with("t3.") { new } else { format!("t3.{new}") };
        add(&mut w, &new, &if is_turned { x.turned() } else { x }, dtype);
    }
    for (name, x) in arrays(&folder.join("ve.safetensors")) {
        add(&mut w, &format!("ve.{name}"), &x, DType::F32);
    }
    w.write(out.join("t3.gguf")).expect("room");
    let mut w = GgufWriter::new();
    w.set("general.architecture", "chatterbox-s3gen");
    for (name, x) in folded(arrays(&folder.join(format!("{s3gen}.safetensors")))) {
        let short = SHORT.split_whitespace().filter_map(|pair| pair.split_once('>'));
        let short = short.fold(name.clone(), |name, (old, new)| name.replace(old, new));
        assert!(short.len() < 61, "{short} is short enough");
        add(&mut w, &format!("s3.{short}"), &x, DType::F32);
    }
    w.write(out.join("s3gen.gguf")).expect("room");
}

/// Replacements in names of S3Gen, in their order.
const SHORT: &str = "flow.decoder.estimator.>fd. down_blocks>db mid_blocks>mb up_blocks>ub final_block>fb
    final_proj>fp time_embeddings>te time_mlp>tm time_embed_mixer>tmx block1.block>b1
    block2.block>b2 res_conv>rc attn1.to_out.0>attn1.o attn1.to_>attn1. ff.net.0.proj>ff.up
    ff.net.2>ff.down speaker_encoder.>se. xvector.>xv. nonlinear.>nl. batchnorm>bn cam_layer.>cam.
    linear_local>ll linear1>l1 linear2>l2 flow.encoder.>fe. self_attn.>sa. feed_forward.>ff.
    pre_lookahead_layer.>pla. up_encoders>ue encoders>enc up_embed>uemb up_layer>ul after_norm>an
    norm_mha>nmha norm_ff>nff linear_out>lo linear_pos>lp linear_q>lq linear_k>lk linear_v>lv
    pos_bias_u>pbu pos_bias_v>pbv mel2wav.>v. conv_pre>cpre conv_post>cpost source_downs>sd
    source_resblocks>srb resblocks>rb activations1>a1 activations2>a2 convs1>c1 convs2>c2
    condnet>cn f0_predictor.>f0. m_source.>ms. l_linear>ll classifier>cls tokenizer.>tok.
    quantizer.>quant. _codebook.>cb. encoder.blocks>enc.b fsmn_block>fsmn project_down>pd";

/// Layout F, of chatterbox.cpp: `t3.gguf` and `s3gen.gguf` of Turbo.
pub fn write_chatterbox_cpp(folder: &Path, out: &Path) {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "chatterbox").set("chatterbox.n_layer", 2_u32);
    let vocabulary = json(&folder.join("vocab.json"));
    let added = json(&folder.join("added_tokens.json"));
    let of = |x: &serde_json::Value, kind: i64| -> Vec<(i64, (String, i64))> {
        let all = x.as_object().expect("tokens").iter();
        all.map(|(t, id)| (id.as_i64().expect("an id"), (t.clone(), kind))).collect()
    };
    let all: BTreeMap<i64, (String, i64)> = of(&vocabulary, 1).into_iter().chain(of(&added, 4)).collect();
    w.set("tokenizer.ggml.tokens", all.values().map(|t| t.0.clone()).collect::<Vec<_>>())
        .set("tokenizer.ggml.token_type", super::integers(all.values().map(|t| t.1)))
        .set("tokenizer.ggml.merges", super::merges_kept(&folder.join("merges.txt")));
    let names = [
        "chatterbox/builtin/speaker_emb",
        "chatterbox/builtin/cond_prompt_speech_tokens",
        "s3gen/builtin/prompt_token",
        "s3gen/builtin/prompt_feat",
        "s3gen/builtin/embedding",
    ];
    voice(&mut w, &folder.join("conds.pt"), names, 0..2);
    for (name, x) in arrays(&folder.join("t3_turbo_v1.safetensors")) {
        if name.contains("tfmr.wte") || name.starts_with("text_head") {
            continue;
        }
        let is_turned = name.ends_with(".weight") && name.contains(".c_");
        let (base, kind) = name.rsplit_once('.').expect("a kind");
        let short = if base.contains("ln_") && kind == "weight" { "g" } else { &kind[..1] };
        let new = match () {
            () if name == "tfmr.wpe.weight" => "model/wpe".to_owned(),
            () if base.starts_with("tfmr.") => {
                let base = base.replace("tfmr.h.", "model/h").replace("tfmr.", "model/").replace('.', "/");
                format!("{base}/{short}")
            }
            () if name == "speech_head.bias" => "chatterbox/speech_head_bias".to_owned(),
            () if base == "cond_enc.spkr_enc" => format!("chatterbox/cond_spkr/{short}"),
            () => format!("chatterbox/{base}"),
        };
        add(&mut w, &new, &if is_turned { x.turned() } else { x }, DType::F32);
    }
    for (name, x) in arrays(&folder.join("ve.safetensors")) {
        add(&mut w, &format!("voice_encoder/{}", name.replace('.', "/")), &x, DType::F32);
    }
    w.write(out.join("t3.gguf")).expect("room");

    let mut w = GgufWriter::new();
    w.set("general.architecture", "chatterbox-s3gen");
    voice(&mut w, &folder.join("conds.pt"), names, 2..5);
    let all = folded(arrays(&folder.join("s3gen_meanflow.safetensors")));
    for (name, x) in &all {
        let (base, kind) = name.rsplit_once('.').expect("a kind");
        if let Some(norm) = [".running_mean", ".running_var"].iter().find_map(|end| name.strip_suffix(end)) {
            if name.ends_with(".running_mean") {
                let var = &all[&format!("{norm}.running_var")];
                let get = |part: &str, i: usize, usual| {
                    all.get(&format!("{norm}.{part}")).map_or(usual, |x| x.data[i])
                };
                let scale: Vec<f32> = var
                    .data
                    .iter()
                    .enumerate()
                    .map(|(i, v)| get("weight", i, 1.0) / (v + 1e-5).sqrt())
                    .collect();
                let shift =
                    scale.iter().enumerate().map(|(i, s)| get("bias", i, 0.0) - x.data[i] * s).collect();
                let at = norm.replace("speaker_encoder.", "campplus/").replace('.', "/");
                add(&mut w, &format!("{at}/s"), &Array::new(&var.shape, scale.clone()), DType::F32);
                add(&mut w, &format!("{at}/b"), &Array::new(&var.shape, shift), DType::F32);
            }
            continue;
        }
        if all.contains_key(&format!("{base}.running_mean")) || name == "tokenizer.window" {
            continue;
        }
        let new = match () {
            () if name.starts_with("flow.decoder.estimator.") => {
                name.replace("flow.decoder.estimator.", "cfm/").replace('.', "/")
            }
            () if name.starts_with("flow.") => {
                let base = replaced(
                    base,
                    &[
                        ("up_encoders.", "up_block"),
                        ("encoders.", "block"),
                        ("self_attn.linear_out", "attn.o"),
                        ("self_attn.linear_", "attn."),
                        ("self_attn", "attn"),
                        ("feed_forward.w_", "ff.w"),
                        ("embed.out.0", "embed.linear"),
                        ("embed.out.1", "embed.norm"),
                        ("pre_lookahead_layer", "pre_lookahead"),
                        ("spk_embed_affine_layer", "spk_embed_affine"),
                    ],
                );
                let base = base.replace('.', "/");
                match () {
                    () if name == "flow.input_embedding.weight" => base,
                    () if kind.starts_with("pos_bias") => format!("{base}/{kind}"),
                    () => format!("{base}/{}", &kind[..1]),
                }
            }
            () => {
                let prefixes =
                    [("mel2wav.", "hift/"), ("speaker_encoder.", "campplus/"), ("tokenizer.", "s3tokv2/")];
                replaced(name, &prefixes).replace('.', "/").replace("_mel_filters", "mel_fb")
            }
        };
        add(&mut w, &new, x, DType::F32);
    }
    w.write(out.join("s3gen.gguf")).expect("room");
}
