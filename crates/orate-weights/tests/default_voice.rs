//! The packed voice in `voices/` opens and holds what `voice_pack` promises.

use std::path::Path;

use orate_weights::voice_pack::PackedVoice;
use orate_weights::{DType, WeightSource};

#[test]
fn built_in_voice() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../voices/orate-default/orate-default.gguf");
    let voice = PackedVoice::open(path).unwrap();
    assert_eq!(voice.voices().unwrap(), ["default"]);
    assert!(voice.voice("default").unwrap().contains("style_ttl"));
    assert_eq!(voice.weights().string("general.license").unwrap(), "Apache-2.0");
    let config: serde_json::Value = serde_json::from_str(voice.tts_json().unwrap()).unwrap();
    let ids: Vec<i64> = serde_json::from_str(voice.unicode_indexer().unwrap()).unwrap();
    let rows =
        voice.weights().info("tts.ttl.text_encoder.text_embedder.char_embedder.weight").unwrap().shape[0];
    assert!(ids.iter().all(|&id| id < rows as i64));

    let mut elements = 0;
    for name in voice.weights().names() {
        let tensor = voice.weights().get(name).unwrap();
        let numbers = tensor.to_f32();
        assert!(numbers.iter().all(|v| v.is_finite()), "{name}");
        assert!(numbers.iter().any(|&v| v != 0.0), "{name} is zero");
        let half = name.starts_with("tts.ae.decoder.embed.") || name.starts_with("tts.ae.decoder.head.");
        assert!(!(half && tensor.dtype == DType::Q8_0), "{name} loses too much in 8 bits");
        elements += numbers.len();
    }
    assert!(elements > 1_000_000 && config["ae"]["sample_rate"].is_u64());
}
