//! Opens Supertonic in GGUF files: tts-cpp's list of ONNX constants, CrispASR's renamed weights, audio.cpp's
//! and our own container.
//!
//! In tts-cpp's files most constants keep their name. Others are anonymous (`onnx::MatMul_3101`) and known by
//! an alias, or, in older files, by the order of their numbers, in which layers run:
//!
//! | stage | anonymous matrices, in order |
//! | --- | --- |
//! | text encoder | query, key (version 3), value and output of each of two attentions |
//! | vector estimator | of each block: time; query, key, value, output of text attention; then of style attention |

use super::config::Config;
use super::files::{Files, TAG, VoiceFile, version_of};
use super::stage::STYLE_KEY;
use crate::checkpoint;
use crate::files::SmallFiles;
use crate::gguf::{self, Meta, Pair, Part, Port, Report, audiocpp};
use crate::{ModelError, Packing};
use orate_text::supertonic::UnicodeIndexer;
use orate_weights::gguf::GgufValue;
use orate_weights::{Renamed, View, WeightSource};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Names of stages in tts-cpp's files, and how names of their weights begin.
const STAGES: [&str; 4] = ["duration", "text_encoder", "vector_estimator", "vocoder"];

/// Opens the model of a GGUF file.
///
/// # Errors
/// It is damaged, lacks a part, or is of a layout that cannot work.
pub(super) fn open(path: &Path) -> Result<Files, ModelError> {
    let pair = gguf::pair(path, TAG, None)?;
    let report = Report::new(&pair);
    let Pair { main, .. } = pair;
    match main.layout.port {
        Port::TtsCpp => constants(&main, report),
        Port::CrispAsr => renamed(&main, report),
        _ => whole(&main, report),
    }
}

struct Parts {
    config: Config,
    indexer: UnicodeIndexer,
    voices: BTreeMap<String, VoiceFile>,
    default_voice: Option<String>,
}

fn finish(
    main: &Part,
    mut map: Renamed,
    parts: Parts,
    known: &[&str],
    mut report: Report,
) -> Result<Files, ModelError> {
    let version = version_of(&parts.config, &map).map_err(|e| main.wrong(e))?;
    known.iter().for_each(|name| map.mark(name));
    report.unused = map.unused().into_iter().map(str::to_owned).collect();
    let default_voice = parts.default_voice.or_else(|| parts.voices.keys().next().cloned());
    Ok(Files {
        origin: main.path.display().to_string(),
        config: parts.config,
        indexer: parts.indexer,
        weights: Arc::new(map),
        version: Some(version),
        onnx: None,
        voices: parts.voices,
        default_voice: default_voice.unwrap_or_default(),
        report: Some(report),
    })
}

/// A voice's style as the JSON of its file.
fn voice_json(file: &dyn WeightSource, ttl: &str, dp: &str) -> Option<String> {
    let table = |name: &str| {
        let t = file.get(name).ok()?;
        let mut dims = t.shape.clone();
        if dims.len() == 2 {
            dims.insert(0, 1);
        }
        Some(json!({"dims": dims, "data": t.to_f32()}))
    };
    Some(json!({"style_ttl": table(ttl)?, "style_dp": table(dp)?}).to_string())
}

fn indexer(main: &Part, tensor: &str) -> Result<UnicodeIndexer, ModelError> {
    let ids = main.file.get(tensor)?.to_i64().unwrap_or_default();
    UnicodeIndexer::from_json(json!(ids).to_string().as_bytes()).map_err(|e| main.wrong(e.to_string()))
}

fn config(main: &Part, json: &[u8]) -> Result<Config, ModelError> {
    Config::from_json(json).map_err(|e| main.wrong(format!("its tts.json: {e}")))
}

// ---- tts-cpp ----------------------------------------------------------------------------------------------

/// Constants by stage and name of the graph.
struct Constants<'f> {
    /// `stage:name` to the tensor and its exact shape.
    all: BTreeMap<&'f str, (&'f str, Vec<usize>)>,
    aliases: BTreeMap<&'f str, &'f str>,
}

impl<'f> Constants<'f> {
    fn of(main: &'f Part) -> Result<Constants<'f>, ModelError> {
        let meta = Meta::new(&main.file, "supertonic.");
        let list = |key: &str| meta.texts(key).unwrap_or_default();
        let [tensors, sources, shapes] = ["tensor_names", "source_names", "tensor_shapes"].map(list);
        if tensors.len() != sources.len() || tensors.len() != shapes.len() {
            return Err(main.wrong("its lists of tensors, sources and shapes have different lengths"));
        }
        let mut all = BTreeMap::new();
        for ((tensor, source), shape) in tensors.iter().zip(sources).zip(shapes) {
            let shape: Vec<usize> = serde_json::from_str(shape).map_err(|e| {
                main.wrong(format!("the shape of `{source}` in `supertonic.tensor_shapes`: {e}"))
            })?;
            all.insert(&**source, (&**tensor, shape));
        }
        let pairs = list("source_aliases").iter().zip(list("source_alias_targets"));
        Ok(Constants { all, aliases: pairs.map(|(a, b)| (&**a, &**b)).collect() })
    }

    /// Constants of a stage whose names begin with `prefix` and a number, in the order of the numbers.
    fn numbered(&self, stage: &str, prefix: &str) -> Vec<(&'f str, &(&'f str, Vec<usize>))> {
        let start = format!("{stage}:{prefix}");
        let mut all: Vec<_> = self
            .all
            .iter()
            .filter_map(|(key, c)| Some((key.strip_prefix(&*start)?.parse::<u64>().ok()?, *key, c)))
            .collect();
        all.sort_unstable_by_key(|(number, ..)| *number);
        all.into_iter().map(|(_, key, c)| (key, c)).collect()
    }
}

/// Layers of the anonymous matrices of a stage, in the order in which they run.
fn layers(stage: &str, blocks: usize, has_keys: bool) -> Vec<String> {
    let mut all = vec![];
    match stage {
        "text_encoder" => {
            for attention in 1..=2 {
                for part in ["W_query", "W_key", "W_value", "out_fc"] {
                    if part != "W_key" || has_keys {
                        all.push(format!("tts.ttl.speech_prompted_text_encoder.attention{attention}.{part}"));
                    }
                }
            }
        }
        "vector_estimator" => {
            let at = |i: usize| format!("tts.ttl.vector_field.main_blocks.{i}");
            for block in (0..blocks).map(|b| 6 * b) {
                all.push(format!("{}.linear", at(block + 1)));
                for (i, kind) in [(3, "attn"), (5, "attention")] {
                    let parts = ["W_query", "W_key", "W_value", "out_fc"];
                    all.extend(parts.map(|part| format!("{}.{kind}.{part}", at(block + i))));
                }
            }
        }
        _ => {}
    }
    all
}

fn constants(main: &Part, report: Report) -> Result<Files, ModelError> {
    let meta = Meta::new(&main.file, "supertonic.");
    let list = Constants::of(main)?;
    let config =
        config(main, meta.text("tts_json").ok_or_else(|| main.wrong("it has no tts.json"))?.as_bytes())?;
    let mut map = Renamed::new(main.path.display().to_string(), vec![main.file.clone() as Arc<_>]);
    let length = |name: &str| list.all.get(name).map(|(_, shape)| shape.iter().product::<usize>());
    // Linear weights `[in, out]` are turned; those of Gemm nodes are `[out, in]` already.
    let turned = |stage: &str, prefix: &str, name: &str, shape: &[usize], anonymous: bool| {
        let Some(layer) = name.strip_suffix(".linear.weight") else { return false };
        let bias = length(&format!("{stage}:{prefix}{layer}.linear.bias"));
        match (shape, bias) {
            ([a, b], Some(n)) if a != b => n == *b,
            _ => anonymous,
        }
    };
    let mut put = |name: &str, tensor: &str, shape: &[usize], is_turned: bool| {
        let (shape, view) = match (is_turned, shape) {
            (true, [a, b]) => (vec![*b, *a], View::Transposed),
            _ if name.ends_with(".act.weight") && shape.iter().product::<usize>() == 1 => {
                (vec![1], View::Same)
            }
            _ => (shape.to_vec(), View::Same),
        };
        map.add(name, &shape, tensor, view);
    };
    for (key, (tensor, shape)) in &list.all {
        let Some((stage, stored)) = key.split_once(':') else { continue };
        let (prefix, name) = match stored.strip_prefix("vector_estimator.") {
            Some(name) => ("vector_estimator.", name),
            None => ("", stored),
        };
        if name.starts_with("tts.") {
            put(name, tensor, shape, turned(stage, prefix, name, shape, false));
        } else if let Some(path) = name.strip_suffix("/tanh/Tanh_output_0")
            && shape.len() == 4
            && shape.iter().product::<usize>() > 1
        {
            put(&format!("tts.ttl{}.tanh_key", path.replace('/', ".")), tensor, shape, false);
        } else if name.ends_with("/Expand_output_0") && stage == STAGES[2] && shape.len() == 3 {
            put(STYLE_KEY, tensor, shape, false);
        }
    }
    for (alias, key) in &list.aliases {
        let Some(((stage, name), (tensor, shape))) = alias.split_once(':').zip(list.all.get(key)) else {
            continue;
        };
        if name.starts_with("tts.") {
            let anonymous = key.contains("onnx::");
            put(
                name,
                tensor,
                shape,
                turned(stage, "", name, shape, anonymous) || anonymous && shape.len() == 2,
            );
        }
    }
    // Older files have numbers only.
    for stage in [STAGES[1], STAGES[2]] {
        let found = list.numbered(stage, "onnx::MatMul_");
        let has_keys = found.len() == 8;
        let layers = layers(stage, config.blocks(), has_keys);
        if found.len() != layers.len() {
            let problem =
                format!("its {stage} has {} matrices without names, not {}", found.len(), layers.len());
            return Err(main.wrong(problem));
        }
        for (layer, (_, (tensor, shape))) in layers.iter().zip(found) {
            put(&format!("{layer}.linear.weight"), tensor, shape, true);
        }
    }
    for (i, (_, (tensor, shape))) in list.numbered(STAGES[3], "onnx::Conv_").into_iter().enumerate() {
        let part = if i == 0 { "weight" } else { "bias" };
        put(&format!("tts.ae.decoder.embed.net.{part}"), tensor, shape, false);
    }
    for (_, (tensor, shape)) in list.numbered(STAGES[3], "onnx::PRelu_") {
        put("tts.ae.decoder.head.act.weight", tensor, shape, false);
    }
    let names = meta.texts("voice_names").unwrap_or_default();
    let at = |name: &str, part: &str| format!("supertonic/voices/{name}/{part}");
    let voices = names.iter().filter_map(|name| {
        let json = voice_json(&*main.file, &at(name, "ttl"), &at(name, "dp"))?;
        Some((name.clone(), VoiceFile::Text(json)))
    });
    let parts = Parts {
        config,
        indexer: indexer(main, "supertonic/unicode_indexer")?,
        voices: voices.collect(),
        default_voice: meta.text("default_voice").filter(|v| names.iter().any(|n| n == v)).map(str::to_owned),
    };
    // Shapes, masks and other numbers of the graphs, which are not weights.
    let rest: Vec<String> =
        map.unused().into_iter().filter(|n| n.starts_with("supertonic/")).map(str::to_owned).collect();
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    finish(main, map, parts, &rest, report)
}

// ---- CrispASR ---------------------------------------------------------------------------------------------

const PREFIXES: [(&str, &str); 8] = [
    ("tts.dp.", "dp."),
    ("tts.ttl.speech_prompted_text_encoder.", "te.spte."),
    ("tts.ttl.text_encoder.", "te."),
    ("tts.ttl.vector_field.", "vf."),
    ("tts.ttl.uncond_masker.text_special_token", "vf.uncond.text"),
    ("tts.ttl.uncond_masker.style_key_special_token", "vf.uncond.style_key"),
    ("tts.ttl.uncond_masker.style_value_special_token", "vf.uncond.style_value"),
    ("tts.ae.decoder.", "voc."),
];

/// CrispASR's name of a canonical weight.
fn crisp(name: &str) -> Option<String> {
    match name {
        STYLE_KEY => return Some("te.style_key".to_owned()),
        "tts.ae.latent_mean" => return Some("voc.latent_mean".to_owned()),
        "tts.ae.latent_std" => return Some("voc.latent_std".to_owned()),
        "tts.ttl.vector_field.main_blocks.3.attn.theta" => return Some("vf.rotary_theta".to_owned()),
        _ => {}
    }
    let (official, port) = PREFIXES.iter().find(|(official, _)| name.starts_with(official))?;
    Some(format!("{port}{}", &name[official.len()..]))
}

/// Weights under CrispASR's names, as canonical ones.
struct Canonical<'f>(&'f Part);

impl WeightSource for Canonical<'_> {
    fn get(&self, name: &str) -> Result<orate_weights::TensorRef<'_>, orate_weights::WeightError> {
        let tensor = crisp(name).ok_or_else(|| self.0.file.missing(name))?;
        self.0.file.get(&tensor)
    }

    fn names(&self) -> Vec<&str> {
        vec![]
    }

    fn info(&self, name: &str) -> Option<orate_weights::TensorInfo> {
        if name == NORMALIZER {
            return Some(orate_weights::TensorInfo { dtype: orate_weights::DType::F32, shape: vec![1] });
        }
        self.0.file.info(&crisp(name)?)
    }

    fn describe(&self) -> String {
        self.0.path.display().to_string()
    }
}

const NORMALIZER: &str = "tts.ttl.normalizer.scale";

/// Dilations of version 3's stacks of ConvNeXt blocks that are not all 1.
const TEXT_DILATIONS: [usize; 6] = [1, 1, 2, 2, 4, 4];
const FIELD_DILATIONS: [usize; 4] = [1, 2, 4, 8];
const VOCODER_DILATIONS: [usize; 10] = [1, 2, 4, 1, 2, 4, 1, 1, 1, 1];
/// Most layers that are counted.
const MOST: usize = 256;

fn renamed(main: &Part, mut report: Report) -> Result<Files, ModelError> {
    let meta = Meta::new(&main.file, "supertonic.");
    let config = config(main, crisp_config(main)?.to_string().as_bytes())?;
    report.filled.push("tts.json, but for sizes that tensors show".to_owned());
    let mut map = Renamed::new(main.path.display().to_string(), vec![main.file.clone() as Arc<_>]);
    let graphs = super::networks::small_graphs(&config, &Canonical(main))?;
    for expected in checkpoint::read_by(&graphs) {
        if let Some(tensor) = crisp(&expected.name) {
            map.add(&expected.name, &expected.shape, &tensor, View::Same);
        }
    }
    let scale = meta.number("vf.normalizer_scale").unwrap_or(0.25) as f32;
    map.make(NORMALIZER, &[1], [scale]);
    let names: Vec<String> = meta
        .text("voices")
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|n| !n.is_empty())
        .map(str::to_owned)
        .collect();
    let at = |name: &str, part: &str| format!("voice.{name}.{part}");
    let voices = names.iter().filter_map(|name| {
        let json = voice_json(&*main.file, &at(name, "ttl"), &at(name, "dp"))?;
        Some((name.clone(), VoiceFile::Text(json)))
    });
    let parts = Parts {
        config,
        indexer: indexer(main, "text.unicode_indexer")?,
        voices: voices.collect(),
        default_voice: None,
    };
    let rest: Vec<String> = main
        .file
        .names()
        .into_iter()
        .filter(|n| {
            n.starts_with("text.")
                || n.starts_with("voice.")
                || n.starts_with("vf.time_freqs")
                || *n == "vf.rotary_theta"
        })
        .map(str::to_owned)
        .collect();
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    finish(main, map, parts, &rest, report)
}

/// `tts.json` of Supertonic 3, with the sizes that tensors show.
fn crisp_config(main: &Part) -> Result<Value, ModelError> {
    let meta = Meta::new(&main.file, "supertonic.");
    let shape = |name: &str| main.file.info(name).map(|i| i.shape);
    let axis = |name: &str, axis: usize| {
        let missing = || main.wrong(format!("the tensor `{name}` is missing or has too few axes"));
        shape(name).and_then(|s| s.get(axis).copied()).ok_or_else(missing)
    };
    let count =
        |name: &dyn Fn(usize) -> String| (0..MOST).find(|i| shape(&name(*i)).is_none()).unwrap_or(MOST);
    let stack = |at: &str, kernel: &str, known: &[usize]| -> Result<Value, ModelError> {
        let layers = count(&|i| format!("{at}.{i}.gamma"));
        let dilations: Vec<usize> = (0..layers).map(|i| known.get(i).copied().unwrap_or(1)).collect();
        let taps = shape(&format!("{at}.0.{kernel}.weight")).and_then(|s| s.last().copied()).unwrap_or(1);
        Ok(json!({
            "idim": axis(&format!("{at}.0.pwconv1.weight"), 1)?,
            "intermediate_dim": axis(&format!("{at}.0.pwconv1.weight"), 0)?,
            "ksz": taps, "num_layers": layers, "dilation_lst": dilations,
        }))
    };
    let text = |at: &str, known: &[usize]| -> Result<Value, ModelError> {
        let layer = format!("{at}.attn_encoder.attn_layers.0");
        let (width, head) =
            (axis(&format!("{layer}.conv_q.weight"), 0)?, axis(&format!("{layer}.emb_rel_k"), 2)?);
        Ok(json!({
            "text_embedder": {"char_emb_dim": axis(&format!("{at}.text_embedder.char_embedder.weight"), 1)?},
            "convnext": stack(&format!("{at}.convnext.convnext"), "dwconv", known)?,
            "attn_encoder": {
                "hidden_channels": width,
                "filter_channels": axis(&format!("{at}.attn_encoder.ffn_layers.0.conv_1.weight"), 0)?,
                "n_heads": width / head.max(1),
                "n_layers": count(&|i| format!("{at}.attn_encoder.attn_layers.{i}.emb_rel_k")),
            },
        }))
    };
    let blocks = count(&|b| format!("vf.main_blocks.{}.linear.linear.weight", 6 * b + 1));
    let units = axis("vf.main_blocks.3.attn.W_query.linear.weight", 0)?;
    let (width, text_dim) = (
        axis("vf.main_blocks.3.attn.W_query.linear.weight", 1)?,
        axis("vf.main_blocks.3.attn.W_key.linear.weight", 1)?,
    );
    let style = axis("vf.main_blocks.5.attention.W_query.linear.weight", 0)?;
    let head = 2 * axis("vf.rotary_theta", 0)?;
    let field = |i: usize, known: &[usize]| stack(&format!("vf.main_blocks.{i}.convnext"), "dwconv", known);
    let voice =
        meta.text("voices").unwrap_or_default().split(',').next().unwrap_or_default().trim().to_owned();
    let style_of = |part: &str| -> Result<[usize; 2], ModelError> {
        let s = shape(&format!("voice.{voice}.{part}")).unwrap_or_default();
        let [.., tokens, width] = s[..] else { return Err(main.wrong("it has no voices")) };
        Ok([tokens, width])
    };
    let ([slots, value], [dp_slots, dp_width]) = (style_of("ttl")?, style_of("dp")?);
    let spte = axis("te.spte.attention1.W_query.linear.weight", 0)?;
    let number = |key: &str, usual: usize| meta.count(key).unwrap_or(usual);
    let latent = axis("voc.embed.net.weight", 1)?;
    let mut decoder = stack("voc.convnext", "dwconv.net", &VOCODER_DILATIONS)?;
    decoder["hdim"] = decoder["idim"].clone();
    decoder["idim"] = json!(latent);
    decoder["ksz_init"] = json!(axis("voc.embed.net.weight", 2)?);
    decoder["head"] = json!({
        "idim": axis("voc.head.layer1.net.weight", 1)?,
        "hdim": axis("voc.head.layer1.net.weight", 0)?,
        "odim": axis("voc.head.layer2.weight", 0)?,
        "ksz": axis("voc.head.layer1.net.weight", 2)?,
    });
    Ok(json!({
        "tts_version": meta.text("tts_version").filter(|v| !v.is_empty()).unwrap_or("v1.7.3"),
        "ttl": {
            "latent_dim": latent,
            "chunk_compress_factor": number("chunk_compress_factor", 6),
            "normalizer": {"scale": meta.number("vf.normalizer_scale").unwrap_or(0.25)},
            "text_encoder": text("te", &TEXT_DILATIONS)?,
            "style_encoder": {"style_token_layer": {"n_style": slots, "style_value_dim": value, "n_heads": 2}},
            "speech_prompted_text_encoder": {"text_dim": text_dim, "n_units": spte, "n_heads": 2},
            "vector_field": {
                "time_encoder": {
                    "time_dim": axis("vf.main_blocks.1.linear.linear.weight", 1)?,
                    "hdim": axis("vf.time_encoder.mlp.0.linear.weight", 0)?,
                },
                "main_blocks": {
                    "n_blocks": blocks,
                    "style_cond_layer": {"style_dim": style},
                    "text_cond_layer": {
                        "idim": width, "text_dim": text_dim, "n_units": units, "n_heads": units / head.max(1),
                        "rotary_base": 10_000, "rotary_scale": 10,
                    },
                    "convnext_0": field(0, &FIELD_DILATIONS)?,
                    "convnext_1": field(2, &[])?,
                    "convnext_2": field(4, &[])?,
                },
                "last_convnext": stack("vf.last_convnext.convnext", "dwconv", &[])?,
            },
        },
        "ae": {
            "sample_rate": number("sample_rate", 44_100),
            "base_chunk_size": number("base_chunk_size", 512),
            "decoder": decoder,
        },
        "dp": {
            "sentence_encoder": text("dp.sentence_encoder", &[])?,
            "predictor": {
                "n_style": dp_slots, "style_dim": dp_width, "hdim": axis("dp.predictor.layers.0.weight", 0)?,
            },
        },
    }))
}

// ---- containers -------------------------------------------------------------------------------------------

/// One file with everything: our own, or audio.cpp's.
fn whole(main: &Part, report: Report) -> Result<Files, ModelError> {
    let container = audiocpp::Container::of(main)?;
    let files: SmallFiles = audiocpp::files(main)?;
    if main.layout.port == Port::AudioCpp {
        return initializers(main, &container, &files, report);
    }
    let Some(map) = container.source(main, "weights") else {
        return Err(main.wrong("it has no tensors `weights/…`"));
    };
    let config = config(main, &files.read("tts.json")?)?;
    let version = match Meta::new(&main.file, "orate.").flag("official") {
        Some(true) => Some(version_of(&config, &map).map_err(|e| main.wrong(e))?),
        _ => None,
    };
    let voices = styles(&files)?;
    let stated = Meta::new(&main.file, "orate.").text("default_voice").map(str::to_owned);
    let default_voice = stated.filter(|v| voices.contains_key(v)).or_else(|| voices.keys().next().cloned());
    Ok(Files {
        origin: main.path.display().to_string(),
        config,
        indexer: UnicodeIndexer::from_json(&files.read("unicode_indexer.json")?)
            .map_err(|e| main.wrong(e.to_string()))?,
        weights: Arc::new(map),
        version,
        onnx: None,
        voices,
        default_voice: default_voice.unwrap_or_default(),
        report: Some(report),
    })
}

/// Voices among the files of a container.
fn styles(files: &SmallFiles) -> Result<BTreeMap<String, VoiceFile>, ModelError> {
    let mut voices = BTreeMap::new();
    for name in files.list("voice_styles") {
        let text = String::from_utf8(files.read(&format!("voice_styles/{name}"))?).unwrap_or_default();
        voices.insert(name.trim_end_matches(".json").to_owned(), VoiceFile::Text(text));
    }
    Ok(voices)
}

/// audio.cpp: the initializers of the four graphs as `weights/graph.name`, with dots for slashes. Weights of
/// linear layers have names, and are as the graph has them: `[in, out]`, but for those of Gemm nodes.
fn initializers(
    main: &Part,
    container: &audiocpp::Container,
    files: &SmallFiles,
    report: Report,
) -> Result<Files, ModelError> {
    let config = config(main, &files.read("config/tts.json")?)?;
    let mut map = Renamed::new(main.path.display().to_string(), vec![main.file.clone() as Arc<_>]);
    let mut rest = vec![];
    for (logical, tensor, shape) in &container.tensors {
        let parts = logical.strip_prefix("weights/").and_then(|name| name.split_once('.'));
        let Some((stage, stored)) = parts else { continue };
        let name = stored.strip_prefix("vector_estimator.").unwrap_or(stored);
        let official = match name.strip_suffix(".tanh.Tanh_output_0") {
            Some(path) => Some(format!("tts.ttl.{path}.tanh_key")),
            None if stage == STAGES[2] && name == "Expand_output_0" => Some(STYLE_KEY.to_owned()),
            None => name.starts_with("tts.").then(|| name.to_owned()),
        };
        // Shapes, masks and other numbers of the graphs are not weights.
        let Some(official) = official else {
            rest.push(tensor.as_str());
            continue;
        };
        let is_turned = name.ends_with(".linear.weight") && !name.contains(".time_encoder.");
        let (shape, view) = match shape[..] {
            [a, b] if is_turned => (vec![b, a], View::Transposed),
            _ if name.ends_with(".act.weight") && shape.iter().product::<usize>() == 1 => {
                (vec![1], View::Same)
            }
            _ => (shape.clone(), View::Same),
        };
        map.add(&official, &shape, tensor, view);
    }
    let voices = styles(files)?;
    let default_voice = voices.contains_key(DEFAULT_VOICE).then(|| DEFAULT_VOICE.to_owned());
    let indexer = UnicodeIndexer::from_json(&files.read("config/unicode_indexer.json")?)?;
    finish(main, map, Parts { config, indexer, voices, default_voice }, &rest, report)
}

/// The official default.
const DEFAULT_VOICE: &str = "F1";

/// What `quantize` puts into a file besides weights.
pub(super) fn packing(files: &Files) -> Result<Packing, ModelError> {
    let folder = Path::new(&files.origin);
    if !folder.is_dir() || files.report.is_some() {
        return Err(gguf::no_packing(folder));
    }
    // Official models have these in the folder `onnx`, which may be the one that was named.
    let inner = folder.join("onnx");
    let onnx = if inner.is_dir() { inner } else { folder.to_owned() };
    let small = ["tts.json", "unicode_indexer.json"];
    let mut all: Vec<_> = small.iter().map(|name| ((*name).to_owned(), onnx.join(name))).collect();
    for (name, voice) in &files.voices {
        if let VoiceFile::Path(path) = voice {
            all.push((format!("voice_styles/{name}.json"), path.clone()));
        }
    }
    Ok(Packing {
        files: all,
        prefix: |_| "weights",
        weights: files
            .weights
            .names()
            .into_iter()
            .filter(|n| n.starts_with("tts."))
            .map(str::to_owned)
            .collect(),
        keys: vec![
            ("orate.official", GgufValue::Bool(files.version.is_some())),
            ("orate.default_voice", files.default_voice().into()),
        ],
        is_turned: |_| false,
    })
}
