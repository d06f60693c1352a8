//! Qwen3-TTS from prompt to codes against the official package.

use orate_cpu::{CpuDevice, Isa};
use orate_graph::Device;
use orate_models::qwen3_tts::*;
use orate_testing::{ReferenceDevice, assert_close};
use orate_weights::{SafeTensors, WeightSource};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of each tensor's largest magnitude, as for the other networks.
const TOLERANCE: f64 = 2e-5;

/// An utterance of the official package.
struct Utterance {
    name: String,
    inputs: serde_json::Value,
    tensors: SafeTensors,
}

impl Utterance {
    fn text(&self, key: &str) -> Option<&str> {
        self.inputs.get(key)?.as_str()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.tensors.get(name).expect("is there").to_f32()
    }

    fn integers(&self, name: &str) -> Vec<i32> {
        self.floats(name).into_iter().map(|x| x as i32).collect()
    }

    fn prompt(&self, model: &Qwen3Tts) -> Prompt {
        let speaker = self.text("speaker");
        let x_vector = self.tensors.contains("speaker_embedding").then(|| self.floats("speaker_embedding"));
        let codes = self.tensors.contains("ref_codes").then(|| self.integers("ref_codes"));
        let speaker = match (speaker, &x_vector, &codes) {
            (Some(name), ..) => Speaker::Named(name),
            (_, Some(x_vector), Some(codes)) => {
                let transcript = self.text("ref_text").expect("with codes");
                Speaker::InContext { x_vector, transcript, codes }
            }
            (_, Some(x_vector), None) => Speaker::XVector(x_vector),
            _ => Speaker::Described,
        };
        let whole = self.inputs.get("non_streaming_mode").and_then(serde_json::Value::as_bool);
        let request = Request {
            text: self.text("text").expect("is there"),
            speaker,
            language: self.text("language"),
            instruct: self.text("instruct"),
            feeding: whole.map(|whole| if whole { TextFeeding::Whole } else { TextFeeding::Streaming }),
        };
        model.prompt(&request).expect("as the official package takes it")
    }

    /// Greedy, with the package's penalty.
    fn settings(&self) -> Settings {
        let codes = self.inputs["max_new_tokens"].as_u64().expect("is there") as usize;
        Settings {
            first: Sampling { repetition_penalty: 1.05, ..Sampling::GREEDY },
            others: Sampling::GREEDY,
            seed: 0,
            max_frames: codes - 1,
        }
    }

    /// Speaks, and compares everything on the way.
    fn check(&self, model: &Qwen3Tts, what: &str) {
        let name = format!("{what}, {}", self.name);
        let prompt = self.prompt(model);
        let mut session = model.session().expect("talks");
        session.record_taps(true);
        session.start(&prompt, &self.settings()).expect("starts");
        let close = |what: &str, got: &[f32], want: &[f32]| {
            assert_close(&format!("{name}: {what}"), got, want, TOLERANCE).max_error
        };
        let mut got = vec![];
        session.read("rows", &mut got).expect("rows");
        close("prompt", &got, &self.floats("prompt_embeds"));
        session.read("trailing", &mut got).expect("rows");
        let (trailing, pad) = (self.floats("trailing_text"), self.floats("tts_pad_embed"));
        close("trailing text", &got[..trailing.len()], &trailing);
        assert_eq!(got.len() % pad.len(), 0);
        for row in got[trailing.len()..].chunks_exact(pad.len()) {
            close("padding", row, &pad);
        }

        let (hidden, logits) = (self.floats("talker_hidden"), self.floats("talker_logits"));
        let predictor = self.floats("predictor_logits");
        let tokens = self.integers("talker_tokens");
        let want: Vec<i32> = self.integers("codes");
        let (d, v, heads) = (pad.len(), logits.len() / tokens.len(), 15);
        let c = predictor.len() / (want.len() / 16) / heads;
        let mut codes = vec![];
        let mut all: Vec<i32> = vec![];
        let mut worst = 0f64;
        let reason = loop {
            let j = session.frames();
            session.read("hidden", &mut got).expect("state");
            worst = worst.max(close(&format!("hidden {j}"), &got, &hidden[j * d..][..d]));
            session.read("logits", &mut got).expect("state");
            worst = worst.max(close(&format!("logits {j}"), &got, &logits[j * v..][..v]));
            match session.next_frame(&mut codes).expect("runs") {
                Step::End(reason) => break reason,
                Step::Frame => all.extend(&codes),
            }
            for head in 0..heads {
                session.read(&format!("tap/predictor_logits{head}"), &mut got).expect("tap");
                let want = &predictor[(j * heads + head) * c..][..c];
                worst = worst.max(close(&format!("frame {j}, head {head}"), &got, want));
            }
            let want = &want[16 * j..][..16];
            assert_eq!(codes, want, "{name}: codes of frame {j}");
        };
        assert_eq!(all, want, "{name}");
        let ended = tokens.last()
            == Some(&(model.talking().expect("talks").config.talker_config.codec_eos_token_id as i32));
        assert_eq!(reason, if ended { FinishReason::Stop } else { FinishReason::Length }, "{name}");
        println!("{name}: {} frames as the package has them, worst {worst:.1e}", want.len() / 16);
    }
}

fn utterances(goldens: &Path, variant: &str) -> Vec<Utterance> {
    let manifest = std::fs::read(goldens.join("cases/manifest.json")).expect("is there");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let cases = manifest.as_object().expect("an object").iter();
    let own = cases.filter(|(name, _)| name.starts_with(&format!("{variant}/")));
    own.map(|(name, case)| Utterance {
        name: name.clone(),
        inputs: case["inputs"].clone(),
        tensors: SafeTensors::open(goldens.join(format!("cases/{name}.safetensors"))).expect("is there"),
    })
    .collect()
}

fn devices() -> Vec<(String, Arc<dyn Device>)> {
    let mut all: Vec<(String, Arc<dyn Device>)> = vec![("reference".to_owned(), Arc::new(ReferenceDevice))];
    for isa in Isa::available() {
        let device = CpuDevice::new(2, isa).expect("threads start");
        all.push((format!("{isa}, 2 threads"), Arc::new(device)));
    }
    all
}

/// Folder of the complete goldens, which `oracle/qwen3_tts` makes.
const GOLDENS: &str = "ORATE_QWEN3_GOLDENS";

#[test]
#[ignore = "needs the complete goldens of oracle/qwen3_tts in the folder that ORATE_QWEN3_GOLDENS names"]
fn every_utterance_of_the_complete_goldens() {
    let goldens = PathBuf::from(std::env::var(GOLDENS).expect("set ORATE_QWEN3_GOLDENS"));
    for variant in ["tiny-base", "tiny-custom_voice", "tiny-voice_design"] {
        let all = utterances(&goldens, variant);
        assert!(!all.is_empty(), "{variant}");
        for (name, device) in devices() {
            let files = Files::open(&goldens.join("checkpoints").join(variant)).expect("a whole model");
            let model = Qwen3Tts::new(files, device);
            all.iter().for_each(|u| u.check(&model, &name));
        }
    }
}
