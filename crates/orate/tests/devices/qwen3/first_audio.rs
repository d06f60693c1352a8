//! How long it takes from a text to the first samples, at the sizes of the 0.6B model and on random weights.

use super::{devices, json, released_codec, released_talker};
use orate::Precision;
use orate_graph::Device;
use orate_models::checkpoint::Expected;
use orate_models::qwen3_tts::{
    CodecConfig, Files, GenerationConfig, Qwen3Tts, Request, Settings, Speaker, StartOptions, Step, Talking,
    TextFeeding, layout,
};
use orate_testing::checkpoints::qwen3_tts_goldens;
use orate_testing::random::Random;
use orate_text::qwen::QwenTokenizer;
use orate_weights::{DType, TensorInfo, TensorRef, WeightError, WeightSource};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Twenty words.
pub const TEXT: &str =
    "this is a sentence of twenty words that says nothing new but takes as long as such sentences usually do";

/// Frames of the first chunk on a GPU.
const FRAMES: usize = 2;

/// Any tensor, as a stretch of one list of numbers: a gigabyte of weights takes longer to make than to
/// upload.
struct AnyWeights {
    shapes: BTreeMap<String, Vec<usize>>,
    /// Small ones, and positive ones for what is divided by.
    numbers: Vec<u8>,
    positive: Vec<u8>,
}

impl AnyWeights {
    fn of(expected: Vec<Expected>) -> AnyWeights {
        let shapes: BTreeMap<_, _> = expected.into_iter().map(|e| (e.name, e.shape)).collect();
        let size = |s: &Vec<usize>| s.iter().product::<usize>();
        let largest = shapes.values().map(size).max().unwrap_or(0);
        let positive = shapes.iter().filter(|(n, _)| n.ends_with("usage")).map(|(_, s)| size(s)).max();
        let bytes = |floats: Vec<f32>| floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        AnyWeights {
            numbers: bytes(Random::new(3).floats(largest, -0.03, 0.03)),
            positive: bytes(vec![1.0; positive.unwrap_or(0)]),
            shapes,
        }
    }
}

impl WeightSource for AnyWeights {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        let shape = self.shapes.get(name).ok_or_else(|| self.missing(name))?;
        let bytes = 4 * shape.iter().product::<usize>();
        let of = if name.ends_with("usage") { &self.positive } else { &self.numbers };
        Ok(TensorRef::new(DType::F32, shape.clone(), &of[..bytes]).expect("as many as the shape says"))
    }

    fn names(&self) -> Vec<&str> {
        self.shapes.keys().map(String::as_str).collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        Some(TensorInfo { dtype: DType::F32, shape: self.shapes.get(name)?.clone() })
    }

    fn describe(&self) -> String {
        "random weights".to_owned()
    }
}

pub fn model(device: Box<dyn Device>) -> Arc<Qwen3Tts> {
    let config = released_talker();
    let mut codec = CodecConfig::from_json(json("speech_tokenizer/config.json").to_string().as_bytes())
        .expect("as the oracle writes it");
    codec.decoder_config = released_codec();
    let mut expected = layout::model(&config).expect("consistent");
    expected.extend(layout::codec(&codec).expect("consistent"));
    let folder = qwen3_tts_goldens().join("checkpoints/tiny-base");
    let files = ["vocab.json", "merges.txt", "tokenizer_config.json"];
    let [vocab, merges, added] = files.map(|f| std::fs::read(folder.join(f)).expect("committed"));
    let generation = GenerationConfig::from_json(json("generation_config.json").to_string().as_bytes());
    let talking = Talking {
        generation: generation.expect("as the oracle writes it"),
        tokenizer: QwenTokenizer::from_files(&vocab, &merges, &added).expect("a tokenizer"),
        config,
    };
    let weights = Arc::new(AnyWeights::of(expected));
    let origin = "random".to_owned();
    let files = Files { origin, talking: Some(talking), codec, weights, trimmed: false, report: None };
    Qwen3Tts::new(files, device.into())
}

/// Milliseconds from the text to the state in front of the first frame, to the first frames, and to their
/// samples.
fn once(model: &Arc<Qwen3Tts>, text: &str) -> [f64; 3] {
    let generation = &model.talking().expect("talks").generation;
    let x_vector = [0.1; 1024];
    let start = Instant::now();
    let speaker = Speaker::XVector(&x_vector);
    let feeding = Some(TextFeeding::Whole);
    let request = Request { text, speaker, language: Some("english"), instruct: None, feeding };
    let prompt = model.prompt(&request).expect("a prompt");
    let settings = Settings { max_frames: prompt.frame_budget(), ..Settings::new(generation, 5) };
    let options = StartOptions { pause_after: Some(FRAMES), ..StartOptions::default() };
    let mut session = model.start_with(&prompt, &settings, options).expect("starts");
    // As an engine does it, on a thread of its own.
    let mut stream = model.codec().stream().expect("has room");
    let started = start.elapsed();
    let (mut all, mut codes) = (vec![], vec![]);
    while session.frames() < FRAMES && session.next_frame(&mut codes).expect("runs") == Step::Frame {
        all.extend_from_slice(&codes);
    }
    let made = start.elapsed();
    let mut samples = vec![];
    stream.push(&all, &mut samples).expect("runs");
    [started, made, start.elapsed()].map(|t| t.as_secs_f64() * 1e3)
}

/// A text of twenty words, warm; with the state of the fixed rows kept and not; and other texts, for whose
/// lengths there are no plans.
#[test]
#[ignore = "timing; run with --ignored --nocapture"]
fn bench_of_first_audio() {
    for precision in [Precision::Bf16, Precision::F16, Precision::F32] {
        for device in devices(precision) {
            let what = format!("{} {precision}", device.describe());
            let model = model(device);
            let first = once(&model, TEXT)[2];
            model.codec().warm_up().expect("has room");
            let print = |name: &str, mut runs: Vec<[f64; 3]>| {
                runs.sort_by(|a, b| a[2].total_cmp(&b[2]));
                let ([prompt, frames, all], most) = (runs[runs.len() / 2], runs[runs.len() - 1][2]);
                println!(
                    "{what}: first audio, {name}: {all:.2} ms (prompt {prompt:.2}, {FRAMES} frames {:.2}, \
                     codec {:.2}; \
                     slowest {most:.2})",
                    frames - prompt,
                    all - frames
                );
            };
            println!("{what}: first audio of the first text {first:.0} ms");
            let runs = |n: usize, run: &dyn Fn(usize) -> [f64; 3]| (0..n).map(run).collect::<Vec<_>>();
            let forgetful = |_| {
                model.forget_prefixes();
                once(&model, TEXT)
            };
            runs(3, &forgetful);
            print("nothing kept", runs(15, &forgetful));
            runs(3, &|_| once(&model, TEXT));
            print("prefix kept", runs(15, &|_| once(&model, TEXT)));
            print("prefix kept, other lengths", runs(9, &|i| once(&model, &TEXT[..40 + 5 * i])));
        }
    }
}
