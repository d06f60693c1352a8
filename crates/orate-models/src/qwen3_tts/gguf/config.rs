//! The official configuration of Qwen3-TTS, from the metadata and the shapes of other engines' files.
//!
//! Sizes that a shape shows are read off the shapes, so that a file cannot contradict itself; metadata has
//! the rest. What neither has is the same in all released models ([`Report::filled`]).

use super::super::config::CONTROL_IDS;
use super::tokenizer::Words;
use crate::ModelError;
use crate::gguf::{Meta, Part, Port, Report};
use serde_json::{Map, Value, json};

/// Shape of an official tensor, as far as the file has it.
pub type Shapes<'a> = &'a dyn Fn(&str) -> Option<Vec<usize>>;

/// Released control ids, counted from the number of codes.
const PAD: usize = 100;
const THINK: usize = 106;
/// Languages of all released models, and their ids counted from the number of codes.
const LANGUAGES: [(&str, usize); 10] = [
    ("chinese", 7),
    ("english", 2),
    ("german", 5),
    ("italian", 22),
    ("portuguese", 23),
    ("spanish", 6),
    ("japanese", 10),
    ("korean", 16),
    ("french", 13),
    ("russian", 21),
];

/// Most layers, books or blocks that are counted.
const MOST: usize = 256;

struct Reader<'a> {
    part: &'a Part,
    shapes: Shapes<'a>,
}

impl Reader<'_> {
    fn axis(&self, name: &str, axis: usize) -> Result<usize, ModelError> {
        let missing = || self.part.wrong(format!("the tensor of `{name}` is missing or has too few axes"));
        (self.shapes)(name).and_then(|s| s.get(axis).copied()).ok_or_else(missing)
    }

    /// The axis of a kernel whose slow axes of 1 may be gone, counted from the last one.
    fn axis_back(&self, name: &str, back: usize) -> Result<usize, ModelError> {
        let shape = (self.shapes)(name).unwrap_or_default();
        match shape.len().checked_sub(back + 1) {
            Some(i) => Ok(shape[i]),
            None if !shape.is_empty() => Ok(1),
            None => self.axis(name, back),
        }
    }

    fn count(&self, name: impl Fn(usize) -> String) -> usize {
        (0..MOST).find(|i| (self.shapes)(&name(*i)).is_none()).unwrap_or(MOST)
    }

    /// Sizes of the layers of talker or predictor.
    fn layers(&self, at: &str) -> Result<Map<String, Value>, ModelError> {
        let first = |part: &str| format!("{at}model.layers.0.{part}.weight");
        let head = self.axis(&first("self_attn.q_norm"), 0)?.max(1);
        let [q, k] = [self.axis(&first("self_attn.q_proj"), 0)?, self.axis(&first("self_attn.k_proj"), 0)?];
        let Value::Object(sizes) = json!({
            "hidden_size": self.axis(&first("self_attn.q_proj"), 1)?,
            "intermediate_size": self.axis(&first("mlp.gate_proj"), 0)?,
            "num_hidden_layers": self.count(|i| format!("{at}model.layers.{i}.input_layernorm.weight")),
            "num_attention_heads": q / head,
            "num_key_value_heads": k / head,
            "head_dim": head,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
        }) else {
            unreachable!("an object")
        };
        Ok(sizes)
    }

    /// Refuses metadata that says another size than the tensors have.
    fn agree(
        &self,
        meta: Meta<'_>,
        sizes: &Map<String, Value>,
        keys: &[(&str, &str)],
    ) -> Result<(), ModelError> {
        for (key, size) in keys {
            if let (Some(said), Some(is)) = (meta.count(key), sizes.get(*size).and_then(Value::as_u64))
                && said as u64 != is
            {
                let problem = format!("its `{key}` is {said}, but its tensors say {is}; is it complete?");
                return Err(self.part.wrong(problem));
            }
        }
        Ok(())
    }
}

/// `config.json` of a talker.
///
/// # Errors
/// Tensors or metadata that nothing can replace are missing, or contradict each other.
pub fn talker(
    part: &Part,
    shapes: Shapes<'_>,
    words: &Words,
    report: &mut Report,
) -> Result<Value, ModelError> {
    let r = Reader { part, shapes };
    let port = part.layout.port;
    let meta = Meta::new(
        &part.file,
        if port == Port::CrispAsr || port == Port::LlamaCpp { "qwen3tts." } else { "qwen3-tts." },
    );
    let mut talker = r.layers("talker.")?;
    let mut predictor = r.layers("talker.code_predictor.")?;
    let [vocab, codes] =
        [r.axis("talker.codec_head.weight", 0)?, r.axis("talker.code_predictor.lm_head.0.weight", 0)?];
    let groups = 1 + r.count(|g| format!("talker.code_predictor.lm_head.{g}.weight"));
    if vocab != codes.saturating_add(CONTROL_IDS) {
        let problem =
            format!("it has {vocab} codec ids; {codes} codes and {CONTROL_IDS} control ids are expected");
        return Err(part.wrong(problem));
    }
    if predictor["hidden_size"] != talker["hidden_size"]
        && shapes("talker.code_predictor.small_to_mtp_projection.weight").is_none()
    {
        return Err(part.wrong(
            "its code predictor is narrower than its talker, and the projection between them \
             (`code_pred.mtp_proj`) is missing, as in early files of 1.7B models, which no engine can run; \
             download a newer one",
        ));
    }
    let common = [
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
    ];
    let crisp = [
        ("n_layers", "num_hidden_layers"),
        ("d_model", "hidden_size"),
        ("n_heads", "num_attention_heads"),
        ("n_kv_heads", "num_key_value_heads"),
        ("head_dim", "head_dim"),
        ("ff_dim", "intermediate_size"),
    ];
    let at = |prefix| Meta::new(&part.file, prefix);
    let (of_talker, of_predictor) = match port {
        Port::QwenTtsCpp => (at("qwen3-tts.talker."), at("qwen3-tts.code_pred.")),
        Port::CrispAsr => (at("qwen3tts.talker."), at("qwen3tts.code_pred.")),
        _ => (meta, at("qwen3-tts.code_pred.")),
    };
    let keys: &[_] = if port == Port::CrispAsr { &crisp } else { &common };
    r.agree(of_talker, &talker, keys)?;
    r.agree(of_predictor, &predictor, keys)?;

    // Constants of the layers.
    let number = |m: Meta<'_>, keys: [&str; 2]| keys.iter().find_map(|k| m.number(k));
    let theta = ["rope.freq_base", "rope_theta"];
    let eps = ["attention.layer_norm_rms_epsilon", "rms_norm_eps"];
    for (sizes, m) in [(&mut talker, of_talker), (&mut predictor, of_predictor)] {
        for (field, keys) in [("rope_theta", theta), ("rms_norm_eps", eps)] {
            if let Some(x) = number(m, keys) {
                sizes.insert(field.to_owned(), json!(x));
            }
        }
    }
    if port != Port::QwenTtsCpp {
        report.filled.push("constants of the code predictor".to_owned());
    }

    // Ids of the codec vocabulary.
    let ids = control_ids(part, codes, words, report)?;
    talker.extend(ids);
    let languages = languages(part, codes, words, report);
    let speakers = speakers(part, &languages, words)?;
    talker.insert("codec_language_id".to_owned(), Value::Object(languages));
    talker.extend(speakers);
    let context = of_talker.count("context_length").or(of_talker.count("max_pos")).unwrap_or(32_768);
    predictor.insert("vocab_size".to_owned(), json!(codes));
    predictor.insert("num_code_groups".to_owned(), json!(groups));
    let text = shapes("talker.model.text_embedding.weight").unwrap_or_default();
    let [text_vocab, text_hidden] = match text[..] {
        [rows, width] => [rows, width],
        _ => return Err(part.wrong("it has no table of text tokens")),
    };
    for (field, value) in [
        ("vocab_size", vocab),
        ("text_vocab_size", text_vocab),
        ("text_hidden_size", text_hidden),
        ("num_code_groups", groups),
        ("max_position_embeddings", context),
    ] {
        talker.insert(field.to_owned(), json!(value));
    }
    if port == Port::LlamaCpp {
        talker.insert("text_is_projected".to_owned(), json!(true));
    }
    let has_speaker_encoder = shapes("speaker_encoder.fc.weight").is_some();
    let has_speakers = talker.get("spk_id").and_then(Value::as_object).is_some_and(|s| !s.is_empty());
    let stated = ["model_type", "tts_model_type"].into_iter().find_map(|k| meta.text(k));
    let variant = match stated {
        Some(stated) => stated,
        None if has_speaker_encoder => "base",
        None if has_speakers => "custom_voice",
        None => "voice_design",
    };
    if variant == "base" && !has_speaker_encoder {
        return Err(
            part.wrong("it is a Base model without a speaker encoder, which no voice can be made with")
        );
    }
    let width = talker["hidden_size"].as_u64().unwrap_or(0);
    let size = match meta.text("model_size") {
        Some(size) => size.to_owned(),
        None if width == 1024 => "0b6".to_owned(),
        None if width == 2048 => "1b7".to_owned(),
        None => format!("{width} wide"),
    };
    talker.insert("code_predictor_config".to_owned(), Value::Object(predictor));
    let mut config = json!({
        "model_type": "qwen3_tts",
        "tts_model_size": size,
        "tts_model_type": variant,
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "talker_config": talker,
    });
    for (field, id) in text_ids(part, words, report)? {
        config[field] = json!(id);
    }
    if variant == "base" {
        config["speaker_encoder_config"] = speaker_encoder(&r, report)?;
    }
    Ok(config)
}

/// Ids of the talker's control tokens.
fn control_ids(
    part: &Part,
    codes: usize,
    words: &Words,
    report: &mut Report,
) -> Result<Map<String, Value>, ModelError> {
    const FIELDS: [(&str, &str); 7] = [
        ("codec_pad_id", "pad"),
        ("codec_bos_id", "bos"),
        ("codec_eos_token_id", "eos"),
        ("codec_think_id", "think"),
        ("codec_nothink_id", "nothink"),
        ("codec_think_bos_id", "think_bos"),
        ("codec_think_eos_id", "think_eos"),
    ];
    let mut ids = Map::new();
    for (field, key) in FIELDS {
        let id = match part.layout.port {
            Port::CrispAsr => Meta::new(&part.file, "qwen3tts.talker.").count(field),
            Port::LlamaCpp => words.codec_id(field.strip_suffix("_id").unwrap_or(field)),
            _ => Meta::new(&part.file, "qwen3-tts.codec.").count(&format!("{key}_id")),
        };
        if let Some(id) = id {
            ids.insert(field.to_owned(), json!(id));
        }
    }
    let usual = |i: usize| codes + [PAD, PAD + 1, PAD + 2, THINK, THINK + 1, THINK + 2, THINK + 3][i];
    let as_released = (0..3).all(|i| ids.get(FIELDS[i].0).and_then(Value::as_u64) == Some(usual(i) as u64));
    let missing: Vec<usize> = (0..7).filter(|i| !ids.contains_key(FIELDS[*i].0)).collect();
    if !missing.is_empty() {
        if !as_released {
            let names: Vec<&str> = missing.iter().map(|i| FIELDS[*i].0).collect();
            return Err(part.wrong(format!("its metadata lacks {}", names.join(", "))));
        }
        missing.iter().for_each(|i| drop(ids.insert(FIELDS[*i].0.to_owned(), json!(usual(*i)))));
        report.filled.push(format!("{} codec ids", missing.len()));
    }
    Ok(ids)
}

fn named_ids(names: Option<&[String]>, ids: Option<Vec<i64>>) -> Option<Map<String, Value>> {
    let (names, ids) = (names?, ids?);
    (names.len() == ids.len()).then(|| names.iter().cloned().zip(ids.into_iter().map(Value::from)).collect())
}

fn languages(part: &Part, codes: usize, words: &Words, report: &mut Report) -> Map<String, Value> {
    let list = |prefix, names, ids| {
        let m = Meta::new(&part.file, prefix);
        named_ids(m.texts(names), m.integers(ids))
    };
    let found = match part.layout.port {
        Port::Qwen3TtsCpp => list("qwen3-tts.language.", "names", "ids"),
        Port::QwenTtsCpp => list("qwen3-tts.codec.", "language_names", "language_ids"),
        Port::CrispAsr => list("qwen3tts.", "codec_language_names", "codec_language_ids"),
        _ => Some(words.codec_entries("codec_language")).filter(|m| !m.is_empty()),
    };
    found.unwrap_or_else(|| {
        report.filled.push("languages".to_owned());
        LANGUAGES.iter().map(|(name, id)| ((*name).to_owned(), json!(codes + id))).collect()
    })
}

/// `spk_id` and `spk_is_dialect`.
fn speakers(
    part: &Part,
    languages: &Map<String, Value>,
    words: &Words,
) -> Result<Map<String, Value>, ModelError> {
    let port = part.layout.port;
    let (prefix, keys) = match port {
        Port::Qwen3TtsCpp => ("qwen3-tts.speaker.", ["names", "ids", "dialects"]),
        Port::QwenTtsCpp => ("qwen3-tts.codec.", ["speaker_names", "speaker_ids", "speaker_dialects"]),
        _ => ("qwen3tts.", ["spk_names", "spk_token_ids", "spk_dialect_token_ids"]),
    };
    let m = Meta::new(&part.file, prefix);
    let speakers = match port {
        Port::LlamaCpp => words.codec_entries("spk"),
        _ => named_ids(m.texts(keys[0]), m.integers(keys[1])).unwrap_or_default(),
    };
    let language_of =
        |id: i64| languages.iter().find(|(_, l)| l.as_i64() == Some(id)).map(|(name, _)| name.clone());
    let dialects: Vec<Option<String>> = match (m.texts(keys[2]), m.integers(keys[2])) {
        (Some(names), _) => {
            let named = |d: &String| (!matches!(&**d, "" | "false" | "False")).then(|| d.clone());
            names.iter().map(named).collect()
        }
        (_, Some(ids)) => ids.into_iter().map(language_of).collect(),
        _ => vec![],
    };
    let names = m.texts(keys[0]).unwrap_or_default();
    let dialects: Map<String, Value> = names
        .iter()
        .zip(dialects)
        .map(|(name, d)| (name.clone(), d.map_or(json!(false), Value::from)))
        .collect();
    Ok(Map::from_iter([
        ("spk_id".to_owned(), Value::Object(speakers)),
        ("spk_is_dialect".to_owned(), Value::Object(dialects)),
    ]))
}

/// Ids of the text tokens that frame a prompt.
fn text_ids(part: &Part, words: &Words, report: &mut Report) -> Result<Vec<(&'static str, u32)>, ModelError> {
    const FIELDS: [(&str, &str, &str); 5] = [
        ("im_start_token_id", "im_start", "<|im_start|>"),
        ("im_end_token_id", "im_end", "<|im_end|>"),
        ("tts_pad_token_id", "tts_pad", "<tts_pad>"),
        ("tts_bos_token_id", "tts_bos", "<tts_text_bos>"),
        ("tts_eos_token_id", "tts_eos", "<tts_text_eod>"),
    ];
    let mut all = vec![];
    let mut filled = 0;
    for (field, key, token) in FIELDS {
        let stated = match part.layout.port {
            Port::QwenTtsCpp => Meta::new(&part.file, "qwen3-tts.text.").count(&format!("{key}_id")),
            Port::CrispAsr => Meta::new(&part.file, "qwen3tts.").count(field),
            _ => None,
        };
        let known = words.added_id(token);
        let id = match (stated.map(|id| id as u32), known) {
            (Some(a), Some(b)) if a != b => {
                return Err(part.wrong(format!("`{token}` is {b} in its tokenizer, but {a} in its metadata")));
            }
            (Some(id), _) => id,
            (None, Some(id)) => {
                filled += 1;
                id
            }
            (None, None) => return Err(part.wrong(format!("nothing says which id `{token}` has"))),
        };
        all.push((field, id));
    }
    if filled > 0 && part.layout.port == Port::Qwen3TtsCpp {
        report.filled.push(format!("{filled} text ids"));
    }
    Ok(all)
}

fn speaker_encoder(r: &Reader<'_>, report: &mut Report) -> Result<Value, ModelError> {
    let at = |name: &str| format!("speaker_encoder.{name}.weight");
    let blocks = 1 + r.count(|b| at(&format!("blocks.{}.tdnn1.conv", b + 1)));
    let rows = |name: &str| r.axis(&at(name), 0);
    let taps = |name: &str| r.axis_back(&at(name), 0);
    let mut channels = vec![rows("blocks.0.conv")?];
    let mut kernels = vec![taps("blocks.0.conv")?];
    for b in 1..blocks {
        channels.push(rows(&format!("blocks.{b}.tdnn1.conv"))?);
        kernels.push(taps(&format!("blocks.{b}.res2net_block.blocks.0.conv"))?);
    }
    channels.push(rows("mfa.conv")?);
    kernels.push(1);
    let mut dilations: Vec<usize> = (1..=blocks).collect();
    dilations.push(1);
    let meta = |prefix, key| Meta::new(&r.part.file, prefix).count(key);
    let rate = [
        ("qwen3-tts.spk_enc.", "sample_rate"),
        ("qwen3-tts.speaker_encoder.", "sample_rate"),
        ("qwen3tts.speaker.", "sample_rate"),
    ]
    .into_iter()
    .find_map(|(prefix, key)| meta(prefix, key));
    report.filled.push("dilations of the speaker encoder".to_owned());
    Ok(json!({
        "enc_dim": rows("fc")?,
        "sample_rate": rate.unwrap_or(24_000),
        "mel_dim": r.axis_back(&at("blocks.0.conv"), 1)?,
        "enc_channels": channels,
        "enc_kernel_sizes": kernels,
        "enc_dilations": dilations,
        "enc_attention_channels": rows("asp.tdnn.conv")?,
        "enc_res2net_scale": 1 + r.count(|j| at(&format!("blocks.1.res2net_block.blocks.{j}.conv"))),
        "enc_se_channels": rows("blocks.1.se_block.conv1")?,
    }))
}

/// `generation_config.json`; `None` where the file says nothing.
pub fn generation(part: &Part, report: &mut Report) -> Option<Value> {
    let prefixes = ["qwen3-tts.generation.", "generation."];
    let at = |prefix| Meta::new(&part.file, prefix);
    let m = prefixes.map(at).into_iter().find(|m| m.has("top_k")).unwrap_or(at(prefixes[0]));
    let mut all = Map::new();
    for field in ["top_k", "max_new_tokens", "subtalker_top_k"] {
        all.extend(m.count(field).map(|n| (field.to_owned(), json!(n))));
    }
    for field in ["top_p", "temperature", "repetition_penalty", "subtalker_top_p", "subtalker_temperature"] {
        all.extend(m.number(field).map(|x| (field.to_owned(), json!(x))));
    }
    for (field, key) in [("do_sample", "do_sample"), ("subtalker_dosample", "subtalker_do_sample")] {
        all.extend(m.flag(key).map(|b| (field.to_owned(), json!(b))));
    }
    if all.is_empty() {
        report.filled.push("sampling defaults".to_owned());
        return None;
    }
    Some(Value::Object(all))
}

/// `speech_tokenizer/config.json`.
///
/// # Errors
/// As [`talker`].
pub fn codec(part: &Part, shapes: Shapes<'_>, report: &mut Report) -> Result<Value, ModelError> {
    let r = Reader { part, shapes };
    let port = part.layout.port;
    let meta = match port {
        Port::CrispAsr => Meta::new(&part.file, "qwen3tts_codec."),
        _ => Meta::new(&part.file, "qwen3-tts-tokenizer."),
    };
    let own = |keys: &[&str]| keys.iter().find_map(|k| meta.count(k));
    let d = "decoder.pre_transformer.layers.0";
    let q = r.axis(&format!("{d}.self_attn.q_proj.weight"), 0)?;
    let heads = own(&["decoder.num_attention_heads", "decoder.num_heads", "dec.n_heads"])
        .or_else(|| Some(q / own(&["decoder.head_dim", "dec.head_dim"])?.max(1)))
        .unwrap_or_else(|| (q / 64).max(1))
        .max(1);
    let first = "decoder.quantizer.rvq_first.vq.layers.0._codebook.embedding_sum";
    let rest = |k: usize| format!("decoder.quantizer.rvq_rest.vq.layers.{k}._codebook.embedding_sum");
    let books = 1 + r.count(rest);
    let entry = r.axis(first, 1)?;
    let strides = |n: usize, name: &dyn Fn(usize) -> String| -> Result<Vec<usize>, ModelError> {
        (0..n).map(|i| r.axis_back(&name(i), 0)).collect()
    };
    // A transposed convolution has two taps for each step.
    let stages = r.count(|n| format!("decoder.decoder.{}.block.1.conv.weight", n + 1));
    let rates = strides(stages, &|i| format!("decoder.decoder.{}.block.1.conv.weight", i + 1))?;
    let rates: Vec<usize> = rates.into_iter().map(|taps| taps / 2).collect();
    let levels = r.count(|s| format!("decoder.upsample.{s}.0.conv.weight"));
    let ratios = strides(levels, &|s| format!("decoder.upsample.{s}.0.conv.weight"))?;
    let samples = |strides: &[usize]| strides.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).unwrap_or(0);
    let frame = samples(&rates).saturating_mul(samples(&ratios));
    let window = own(&["decoder.sliding_window", "dec.sliding_window"]);
    let eps = ["decoder.rms_norm_eps", "dec.rms_norm_eps"].into_iter().find_map(|k| meta.number(k));
    let theta = ["decoder.rope_theta", "dec.rope_theta"].into_iter().find_map(|k| meta.number(k));
    if window.is_none() || eps.is_none() || theta.is_none() {
        report.filled.push("constants of the codec's decoder".to_owned());
    }
    let rate = |keys: &[&str]| own(keys).or(own(&["sample_rate"])).unwrap_or(24_000);
    let encoder = encoder(&r, meta, books, report)?;
    let down = encoder["upsampling_ratios"].as_array().map_or(0, |all| {
        let all: Vec<usize> = all.iter().filter_map(|n| Some(n.as_u64()? as usize)).collect();
        samples(&all).saturating_mul(2)
    });
    Ok(json!({
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": books,
        "input_sample_rate": rate(&["input_sample_rate"]),
        "output_sample_rate": rate(&["output_sample_rate"]),
        "decode_upsample_rate": frame,
        "encode_downsample_rate": down,
        "decoder_config": {
            "hidden_size": r.axis(&format!("{d}.self_attn.q_proj.weight"), 1)?,
            "intermediate_size": r.axis(&format!("{d}.mlp.gate_proj.weight"), 0)?,
            "num_hidden_layers": r.count(|i| format!("decoder.pre_transformer.layers.{i}.input_layernorm.weight")),
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "head_dim": q / heads,
            "hidden_act": "silu",
            "rms_norm_eps": eps.unwrap_or(1e-5),
            "rope_theta": theta.unwrap_or(10_000.0),
            "latent_dim": r.axis("decoder.pre_conv.conv.weight", 0)?,
            "codebook_dim": 2 * entry,
            "codebook_size": r.axis(first, 0)?,
            "decoder_dim": r.axis("decoder.decoder.0.conv.weight", 0)?,
            "num_quantizers": books,
            "num_semantic_quantizers": 1,
            "sliding_window": window.unwrap_or(72),
            "upsample_rates": rates,
            "upsampling_ratios": ratios,
        },
        "encoder_config": encoder,
    }))
}

/// Sizes of the encoder: of its tensors, or, where there are none, those of released codecs.
fn encoder(r: &Reader<'_>, meta: Meta<'_>, books: usize, report: &mut Report) -> Result<Value, ModelError> {
    let first = "decoder.quantizer.rvq_first.vq.layers.0._codebook.embedding_sum";
    let [entries, entry] = [r.axis(first, 0)?, r.axis(first, 1)?];
    let e = "encoder.encoder_transformer.layers.0";
    let q = (r.shapes)(&format!("{e}.self_attn.q_proj.weight"));
    let book = "encoder.quantizer.semantic_residual_vector_quantizer.layers.0.codebook.embed_sum";
    let (Some(q), Some(_)) = (q, (r.shapes)(book)) else {
        // It is not there, and nothing reads these.
        return Ok(json!({
            "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8,
            "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "gelu", "norm_eps": 1e-5,
            "rope_theta": 10_000.0, "num_filters": 64, "kernel_size": 7, "last_kernel_size": 3,
            "residual_kernel_size": 3, "num_residual_layers": 1, "compress": 2, "upsampling_ratios": [8, 6, 5, 4],
            "codebook_dim": entry, "codebook_size": entries, "num_quantizers": books.max(32),
            "num_semantic_quantizers": 1, "vector_quantization_hidden_dimension": entry,
        }));
    };
    let q = q.first().copied().unwrap_or(0);
    let own = |keys: &[&str]| keys.iter().find_map(|k| meta.count(k));
    let stated = own(&["encoder.num_attention_heads", "encoder.num_heads"]);
    let heads = stated.unwrap_or_else(|| (q / 64).max(1)).max(1);
    if stated.is_none() {
        report.filled.push("heads of the codec's encoder".to_owned());
    }
    let layer = |i: usize| format!("encoder.encoder.layers.{i}.conv.weight");
    // Convolutions that halve the rate are every third layer, with two taps for each step.
    let stages = r.count(|i| layer(3 * (i + 1))).min(MOST / 3);
    let last = 3 * stages + 2;
    let mut ratios = vec![];
    for i in 0..stages {
        ratios.push(r.axis_back(&layer(3 * (i + 1)), 0)? / 2);
    }
    ratios.reverse();
    let [outer, inner] = [r.axis(&layer(0), 0)?, r.axis("encoder.encoder.layers.1.block.1.conv.weight", 0)?];
    let theta = meta.number("encoder.rope_theta").unwrap_or(10_000.0);
    Ok(json!({
        "hidden_size": r.axis(&format!("{e}.self_attn.q_proj.weight"), 1)?,
        "intermediate_size": r.axis(&format!("{e}.mlp.fc1.weight"), 0)?,
        "num_hidden_layers": r.count(|i| format!("encoder.encoder_transformer.layers.{i}.input_layernorm.weight")),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": q / heads,
        "hidden_act": "gelu",
        "norm_eps": meta.number("encoder.norm_eps").unwrap_or(1e-5),
        "rope_theta": theta,
        "num_filters": outer,
        "kernel_size": r.axis_back(&layer(0), 0)?,
        "last_kernel_size": r.axis_back(&layer(last), 0)?,
        "residual_kernel_size": r.axis_back("encoder.encoder.layers.1.block.1.conv.weight", 0)?,
        "num_residual_layers": 1,
        "compress": outer / inner.max(1),
        "upsampling_ratios": ratios,
        "codebook_dim": r.axis(book, 1)?,
        "codebook_size": r.axis(book, 0)?,
        "num_quantizers": own(&["encoder.num_quantizers"]).unwrap_or(32).max(books),
        "num_semantic_quantizers": 1,
        "vector_quantization_hidden_dimension":
            r.axis("encoder.quantizer.semantic_residual_vector_quantizer.input_proj.weight", 0)?,
    }))
}
