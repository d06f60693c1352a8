//! The definition of sampling against the logits processors that the official Chatterbox package uses.

use orate_graph::{SampleRules, sample_settings};
use orate_testing::sampling::{Draw, filtered, softmax};
use orate_testing::{assert_close, sampling};
use orate_weights::{SafeTensors, WeightSource};

/// Of the largest number: the package computes in f32.
const TOLERANCE: f64 = 2e-6;

/// Temperature, k, p, penalty and min-p, and whether the penalty comes last, as in Turbo.
const CASES: [([f32; 5], bool); 6] = [
    ([0.8, 0.0, 1.0, 1.2, 0.05], false),
    ([1.0, 0.0, 0.9, 2.0, 0.0], false),
    ([0.5, 0.0, 0.7, 1.0, 0.2], false),
    ([0.8, 20.0, 0.95, 1.2, 0.0], true),
    ([1.3, 1000.0, 0.6, 1.7, 0.0], true),
    ([0.8, 1.0, 0.95, 1.2, 0.0], true),
];

#[test]
fn logits_are_processed_as_by_the_official_package() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/chatterbox_sampler.safetensors");
    let file = SafeTensors::open(path).expect("committed");
    for (i, (settings, penalty_last)) in CASES.into_iter().enumerate() {
        let get = |name: &str| file.get(&format!("case{i}.{name}")).expect("is there");
        let (logits, want) = (get("logits").to_f32(), get("processed").to_f32());
        let mut seen = vec![0.0; logits.len()];
        get("ids").to_f32().iter().for_each(|id| seen[*id as usize] = 1.0);
        let draw = Draw {
            unconditional: None,
            settings: sample_settings(&settings),
            seed: [0, 0],
            number: 1,
            seen: Some(&seen),
            rules: SampleRules { penalty_last, ..SampleRules::default() },
        };
        let got = filtered(&logits, &draw);
        let kept = |x: &[f32]| (0..x.len()).filter(|id| x[*id].is_finite()).collect::<Vec<_>>();
        assert_eq!(kept(&got), kept(&want), "case {i}");
        let finite = |x: &[f32]| x.iter().copied().filter(|x| x.is_finite()).collect::<Vec<_>>();
        assert_close(&format!("case {i}"), &finite(&got), &finite(&want), TOLERANCE);
        let probabilities: Vec<f32> = softmax(&got).into_iter().map(|p| p as f32).collect();
        assert_close(&format!("probabilities, case {i}"), &probabilities, &get("probs").to_f32(), TOLERANCE);
        let drawn = sampling::draw(&logits, &draw).expect("something is left");
        assert!(got[drawn].is_finite(), "case {i}");
    }
}
