//! Layout H, of Supertonic.

use super::{Array, add, add_integers, json};
use orate_weights::{DType, GgufWriter, OnnxModel, WeightSource};
use std::path::Path;

/// Writes a file of tts-cpp without aliases: all constants of the four graphs under numbers.
pub fn write_supertonic_ttscpp(folder: &Path, out: &Path) {
    let onnx = folder.join("onnx");
    let settings = std::fs::read_to_string(onnx.join("tts.json")).expect("is there");
    let mut w = GgufWriter::new();
    w.set("general.architecture", "supertonic2").set("supertonic.tts_json", settings);
    let ids = json(&onnx.join("unicode_indexer.json"));
    let ids: Vec<i64> = ids.as_array().expect("ids").iter().map(|n| n.as_i64().expect("an id")).collect();
    add_integers(&mut w, "supertonic/unicode_indexer", &[ids.len()], ids);
    let voice = json(&folder.join("voice_styles/F1.json"));
    for part in ["ttl", "dp"] {
        fn numbers(x: &serde_json::Value, out: &mut Vec<f32>) {
            match x.as_array() {
                Some(all) => all.iter().for_each(|x| numbers(x, out)),
                None => out.push(x.as_f64().expect("a number") as f32),
            }
        }
        let style = &voice[format!("style_{part}")];
        let dims = style["dims"].as_array().expect("dims");
        let dims: Vec<usize> = dims.iter().map(|n| n.as_u64().expect("a size") as usize).collect();
        let mut data = vec![];
        numbers(&style["data"], &mut data);
        add(&mut w, &format!("supertonic/voices/F1/{part}"), &Array::new(&dims, data), DType::F32);
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
