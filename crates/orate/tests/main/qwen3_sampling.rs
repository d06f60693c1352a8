//! Drawing a code against the official package: what its chain of logits processors makes of a distribution.

use orate_cpu::kernels::sample;
use orate_graph::{ControlIds, SampleRules};
use orate_models::qwen3_tts::{CONTROL_IDS, Config};
use orate_testing::assert_close;
use orate_testing::checkpoints::qwen3_tts_goldens;
use orate_testing::sampling::{self, softmax};
use orate_weights::{SafeTensors, WeightSource};

/// Of the largest probability: the package computes in f32.
const TOLERANCE: f64 = 2e-6;

/// What was drawn before, k, p and temperature, as in `dump_golden.py`.
const CASES: [(&[usize], f32, f32, f32); 4] = [
    (&[], 50.0, 1.0, 0.9),
    (&[5], 50.0, 1.0, 0.9),
    (&[5, 9, 5, 77], 20.0, 0.8, 0.7),
    (&[1, 2, 3], 0.0, 0.5, 1.0),
];

#[test]
fn probabilities_are_those_of_the_official_package() {
    let goldens = qwen3_tts_goldens();
    let config = std::fs::read(goldens.join("checkpoints/tiny-base/config.json")).expect("committed");
    let talker = Config::from_json(&config).expect("as the oracle writes it").talker_config;
    let controls = Some(ControlIds {
        first: talker.vocab_size - CONTROL_IDS,
        end: talker.codec_eos_token_id as usize,
        min_draws: 2,
    });
    let rules = SampleRules { controls, ..SampleRules::default() };
    let file = SafeTensors::open(goldens.join("cases/sampling_chain.safetensors")).expect("committed");
    for (i, (history, k, p, temperature)) in CASES.into_iter().enumerate() {
        let logits = file.get(&format!("logits{i}")).expect("is there").to_f32();
        let want = file.get(&format!("probs{i}")).expect("is there").to_f32();
        let mut seen = vec![0.0; logits.len()];
        history.iter().for_each(|id| seen[*id] = 1.0);
        let settings = orate_graph::sample_settings(&[temperature, k, p, 1.05]);
        let number = history.len() as i32;
        let defined = sampling::filtered(
            &logits,
            &sampling::Draw { unconditional: None, settings, seed: [0, 0], number, seen: Some(&seen), rules },
        );
        let draw = sample::Draw {
            logits: &logits,
            unconditional: None,
            settings,
            seed: [0, 0],
            number,
            seen: Some(&seen),
            rules,
        };
        let mut scratch = vec![f32::NAN; sample::scratch_len(logits.len())];
        let computed = sample::filter(&draw, &mut scratch).expect("numbers");
        for (who, x) in [("definition", &defined[..]), ("cpu", computed)] {
            let got: Vec<f32> = softmax(x).into_iter().map(|p| p as f32).collect();
            let kept = |x: &[f32]| (0..x.len()).filter(|id| x[*id] > 0.0).collect::<Vec<_>>();
            assert_eq!(kept(&got), kept(&want), "{who}, case {i}");
            assert_close(&format!("{who}, case {i}"), &got, &want, TOLERANCE);
        }
    }
}
