//! Layouts E, H and I, of Supertonic.

use super::{Array, Values, add, add_integers, json, write_container};
use orate_weights::{DType, GgufWriter, OnnxModel, WeightSource};
use std::path::Path;

/// The graphs.
const GRAPHS: [&str; 4] = ["duration_predictor", "text_encoder", "vector_estimator", "vocoder"];

/// Initializers of a graph that are floats, by name, and whether a MatMul reads them. Those that lost their
/// name have that of the node that reads them: `…/W_query/linear/MatMul` has `….W_query.linear.weight`.
fn named(folder: &Path, graph: &str) -> Vec<(String, Array, bool)> {
    let model = OnnxModel::open(folder.join(format!("onnx/{graph}.onnx"))).expect("a graph");
    let mut all = vec![];
    for stored in model.names() {
        let t = model.get(stored).expect("is listed");
        if t.to_i64().is_some() {
            continue;
        }
        let reader = model.consumers(stored).find(|n| ["MatMul", "Conv", "PRelu"].contains(&&*n.op_type));
        let is_matmul = reader.is_some_and(|n| n.op_type == "MatMul" && n.inputs[1] == stored);
        let name = match reader {
            Some(node) if stored.starts_with("onnx::") => {
                let layer = node.name.trim_start_matches('/').rsplit_once('/').expect("a path").0;
                let layer = layer.replace('/', ".");
                let prefix = match (graph, layer.split('.').next().unwrap_or_default()) {
                    ("vector_estimator", "vector_estimator") => "vector_estimator.tts.ttl.",
                    ("vocoder", _) => "tts.ae.",
                    _ => "tts.ttl.",
                };
                let layer = layer.trim_start_matches("vector_estimator.");
                let is_bias = node.op_type == "Conv" && node.inputs.get(2).is_some_and(|n| n == stored);
                format!("{prefix}{layer}.{}", if is_bias { "bias" } else { "weight" })
            }
            _ => stored.trim_start_matches('/').replace('/', "."),
        };
        all.push((name, Array::new(&t.shape, t.to_f32()), is_matmul));
    }
    all
}

/// Numbers of a nested list.
fn numbers(x: &serde_json::Value, out: &mut Vec<f32>) {
    match x.as_array() {
        Some(all) => all.iter().for_each(|x| numbers(x, out)),
        None => out.push(x.as_f64().expect("a number") as f32),
    }
}

/// Part `ttl` or `dp` of a voice.
fn style(folder: &Path, voice: &str, part: &str) -> Array {
    let style = &json(&folder.join(format!("voice_styles/{voice}.json")))[format!("style_{part}")];
    let dims = style["dims"].as_array().expect("dims");
    let dims: Vec<usize> = dims.iter().map(|n| n.as_u64().expect("a size") as usize).collect();
    let mut data = vec![];
    numbers(&style["data"], &mut data);
    Array::new(&dims, data)
}

/// Writes a file of audio.cpp: initializers as the graphs have them.
pub fn write_supertonic_audiocpp(folder: &Path, out: &Path) {
    let mut all = vec![];
    for graph in GRAPHS {
        let tensors = named(folder, graph).into_iter();
        all.extend(tensors.map(|(name, x, _)| (format!("weights/{graph}.{name}"), Values::Floats(x))));
    }
    all.push(("weights/text_encoder.Constant_output_0".to_owned(), Values::Integers(vec![1, 2])));
    let read = |at: &str| std::fs::read(folder.join(at)).expect("is there");
    let files = ["tts.json", "unicode_indexer.json"];
    let mut files: Vec<_> =
        files.into_iter().map(|f| (format!("config/{f}"), read(&format!("onnx/{f}")))).collect();
    files.extend(
        ["F1", "M1"].map(|v| (format!("voice_styles/{v}.json"), read(&format!("voice_styles/{v}.json")))),
    );
    write_container(out, "supertonic", all, files);
}

/// Writes a file of CrispASR: renamed weights, convolutions of one tap as matrices. Of `tts.json`, it holds
/// four numbers.
pub fn write_supertonic_crispasr(folder: &Path, out: &Path) {
    let c = json(&folder.join("onnx/tts.json"));
    let count = |at: &str| c.pointer(at).and_then(serde_json::Value::as_u64).expect("a size") as u32;
    let mut w = GgufWriter::new();
    w.set("general.architecture", "supertonic-tts")
        .set("supertonic.sample_rate", count("/ae/sample_rate"))
        .set("supertonic.base_chunk_size", count("/ae/base_chunk_size"))
        .set("supertonic.chunk_compress_factor", count("/ttl/chunk_compress_factor"))
        .set("supertonic.latent_dim", count("/ttl/latent_dim"))
        .set("supertonic.tts_version", c["tts_version"].as_str().unwrap_or_default())
        .set("supertonic.voices", "F1,M1");
    let mut has_theta = false;
    for (name, x, is_matmul) in GRAPHS.iter().flat_map(|graph| named(folder, graph)) {
        let name = name.strip_prefix("vector_estimator.").unwrap_or(&name).to_owned();
        let pairs = [
            ("tts.ttl.style_encoder.style_token_layer.style_key", "te.style_key"),
            ("tts.ttl.speech_prompted_text_encoder.", "te.spte."),
            ("tts.ttl.text_encoder.", "te."),
            ("tts.ttl.vector_field.", "vf."),
            ("tts.ttl.uncond_masker.text_special_token", "vf.uncond.text"),
            ("tts.ttl.uncond_masker.style_", "vf.uncond.style_"),
            ("_special_token", ""),
            ("tts.ae.decoder.", "voc."),
            ("tts.ae.", "voc."),
            ("tts.dp.", "dp."),
        ];
        let new = pairs.iter().fold(name.clone(), |name, (old, new)| name.replace(old, new));
        if new.ends_with("attn.theta") {
            if !std::mem::replace(&mut has_theta, true) {
                add(&mut w, "vf.rotary_theta", &Array::new(&[x.data.len()], x.data), DType::F32);
            }
            continue;
        }
        if new == name {
            continue; // Constants of the graphs, and the normalizer, which is a key.
        }
        let x = match x.shape[..] {
            [a, b, 1] if new.ends_with(".weight") && !new.contains("dwconv") => Array::new(&[a, b], x.data),
            _ if is_matmul => x.turned(),
            _ => x,
        };
        add(&mut w, &new, &x, DType::F32);
    }
    for voice in ["F1", "M1"] {
        for part in ["ttl", "dp"] {
            let x = style(folder, voice, part);
            add(&mut w, &format!("voice.{voice}.{part}"), &Array::new(&x.shape[1..], x.data), DType::F32);
        }
    }
    let ids = json(&folder.join("onnx/unicode_indexer.json"));
    let ids: Vec<i64> = ids.as_array().expect("ids").iter().map(|n| n.as_i64().expect("an id")).collect();
    add_integers(&mut w, "text.unicode_indexer", &[ids.len()], ids);
    w.write(out).expect("room");
}

/// Writes a file of tts-cpp without aliases: all constants of the four graphs under numbers.
pub fn write_supertonic_ttscpp(folder: &Path, out: &Path) {
    let onnx = folder.join("onnx");
    let settings = std::fs::read_to_string(onnx.join("tts.json")).expect("is there");
    let mut w = GgufWriter::new();
    w.set("general.architecture", "supertonic2").set("supertonic.tts_json", settings);
    let ids = json(&onnx.join("unicode_indexer.json"));
    let ids: Vec<i64> = ids.as_array().expect("ids").iter().map(|n| n.as_i64().expect("an id")).collect();
    add_integers(&mut w, "supertonic/unicode_indexer", &[ids.len()], ids);
    for part in ["ttl", "dp"] {
        add(&mut w, &format!("supertonic/voices/F1/{part}"), &style(folder, "F1", part), DType::F32);
    }
    w.set("supertonic.voice_names", vec!["F1".to_owned()]);
    let (mut tensors, mut sources, mut shapes) = (vec![], vec![], vec![]);
    for (stage, file) in [
        ("duration", "duration_predictor"),
        ("text_encoder", "text_encoder"),
        ("vector_estimator", "vector_estimator"),
        ("vocoder", "vocoder"),
    ] {
        let model = OnnxModel::open(onnx.join(format!("{file}.onnx"))).expect("a graph");
        for (i, name) in model.names().into_iter().enumerate() {
            let t = model.get(name).expect("is listed");
            let short = format!("supertonic/{stage}/t{i:04}");
            let shape = if t.shape.is_empty() { vec![1] } else { t.shape.clone() };
            match t.to_i64() {
                Some(all) => add_integers(&mut w, &short, &shape, all),
                None => add(&mut w, &short, &Array::new(&shape, t.to_f32()), DType::F32),
            }
            tensors.push(short);
            sources.push(format!("{stage}:{name}"));
            shapes.push(format!("{:?}", t.shape));
        }
    }
    w.set("supertonic.tensor_names", tensors)
        .set("supertonic.source_names", sources)
        .set("supertonic.tensor_shapes", shapes);
    w.write(out).expect("room");
}
