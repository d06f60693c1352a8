//! Fused plans of Qwen3-TTS: no step reads what nothing makes, or what was written over.

use orate_graph::{CacheFormat, Fusions, Graph, GraphError, Plan};
use orate_models::qwen3_tts::prompt_rows;
use orate_models::qwen3_tts::talker::{self, CacheSizes};
use orate_models::qwen3_tts::{CodecConfig, Config, Past, codec_decoder, frame, speaker_encoder};
use orate_testing::FusingDevice;
use orate_testing::checkpoints::qwen3_tts_goldens;
use orate_testing::layouts::assert_sound;

fn json(name: &str) -> serde_json::Value {
    let text = std::fs::read(qwen3_tts_goldens().join("checkpoints").join(name)).expect("committed");
    serde_json::from_slice(&text).expect("JSON")
}

/// Tiny sizes, and those of the released 0.6B model, where states are small enough to look at each word.
fn configs() -> [Config; 2] {
    let tiny = json("tiny-base/config.json");
    let mut released = tiny.clone();
    let sizes = [("hidden_size", 1024), ("intermediate_size", 3072), ("num_attention_heads", 16)];
    for (key, value) in sizes.into_iter().chain([("num_key_value_heads", 8), ("head_dim", 128)]) {
        released["talker_config"][key] = value.into();
        released["talker_config"]["code_predictor_config"][key] = value.into();
    }
    released["talker_config"]["num_hidden_layers"] = 28.into();
    released["talker_config"]["code_predictor_config"]["num_hidden_layers"] = 5.into();
    released["speaker_encoder_config"]["enc_dim"] = 1024.into();
    [tiny, released].map(|json| Config::from_json(json.to_string().as_bytes()).expect("as released"))
}

/// What every device fuses, with one of six choices missing where its bit is not set.
fn fusions(choice: usize) -> FusingDevice {
    let on = |bit: usize| choice >> bit & 1 == 1;
    let all = FusingDevice::all().0;
    FusingDevice(Fusions {
        heads: on(0),
        matmul_rows: if on(1) { 16 } else { 1 },
        rotate_queries: on(2),
        norm_multiple: all.norm_multiple.filter(|_| on(3)),
        gated_rows: if on(4) { 16 } else { 0 },
        views: on(5),
        ..all
    })
}

/// Checks what becomes of a graph with all fusions, and with some of them.
fn check(name: &str, build: impl Fn(&mut Graph) -> Result<(), GraphError>) {
    for taps in [false, true] {
        let g = Graph::new(name);
        let mut g = if taps { g.with_taps() } else { g };
        build(&mut g).unwrap_or_else(|e| panic!("{e}"));
        // All, each alone missing, and none.
        for choice in (0..6).map(|bit| 63 ^ 1 << bit).chain([63, 0]) {
            let plan = Plan::compile(g.clone(), &fusions(choice)).unwrap_or_else(|e| panic!("{e}"));
            assert_sound(&plan);
        }
    }
}

#[test]
fn frames_and_prompts() {
    for c in configs() {
        let c = c.talker_config;
        for (batch, kv) in [(1, CacheFormat::F32), (2, CacheFormat::F32), (1, CacheFormat::Q8_0)] {
            let s = CacheSizes { batch, capacity: 8, kv };
            check("frame", |g| frame::build(g, &c, s, 4));
            check("given frame", |g| frame::of_given_codes(g, &c, s, 4));
            check("prompt", |g| talker::prefill(g, &c, s, 4));
        }
        for reference in [false, true] {
            check("rows of a prompt", |g| prompt_rows::build(g, &c, 4, reference));
        }
        check("trailing text", |g| prompt_rows::trailing(g, &c, 4));
    }
}

#[test]
fn codec_and_speaker_encoder() {
    let codec = json("tiny-base/speech_tokenizer/config.json").to_string();
    let codec = CodecConfig::from_json(codec.as_bytes()).expect("as the oracle writes it").decoder_config;
    check("codec", |g| codec_decoder::build(g, &codec, Past::Silence, 1, 2));
    check("codec, streaming", |g| codec_decoder::build(g, &codec, Past::Stream, 1, 2));
    let speaker = configs()[0].speaker_encoder_config.clone().expect("base models have one");
    check("speaker encoder", |g| speaker_encoder::build(g, &speaker, 24));
}
