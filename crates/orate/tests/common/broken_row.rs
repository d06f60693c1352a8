//! An utterance whose logits are NaN, beside others.

use orate::{Engine, EngineOptions, ModelSource};
use orate_models::qwen3_tts::{Request, Settings, Speaker, StartOptions, Step, Utterance};
use orate_testing::checkpoints::write_random_qwen3_tts;

/// It fails and says why, alone and in a batch; the others say what they would alone.
pub fn fails_alone(options: EngineOptions) {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("base", folder.path(), 3).expect("the folder is writable");
    let model = ModelSource::Path(folder.path().to_owned());
    let engine = Engine::with_options(EngineOptions { model, ..options }).unwrap_or_else(|e| panic!("{e}"));
    let model = &engine.model_as::<orate::qwen3_tts::Qwen3Tts>().expect("of this family");
    let talking = model.talking().expect("talks");
    let width = talking.config.talker_config.transformer.hidden_size;
    let start = |x: f32, seed: u64| {
        let x_vector = vec![0.1; width];
        let (text, speaker) = ("Hello there.", Speaker::XVector(&x_vector));
        let request = Request { text, speaker, language: None, instruct: None, feeding: None };
        let settings = Settings { max_frames: 9, ..Settings::new(&talking.generation, seed) };
        let mut prompt = model.prompt(&request).expect("a prompt");
        // No request gets by with what is not finite.
        prompt.rows.x_vector.fill(x.to_bits());
        model.utterance(&prompt, &settings, StartOptions::default()).expect("starts")
    };
    let next = |u: &mut Utterance, all: &mut Vec<i32>| {
        let mut codes = vec![];
        let step = u.next_frame(&mut codes);
        all.extend(codes);
        step
    };
    let alone = [3, 4].map(|seed| {
        let (mut u, mut all) = (start(0.1, seed), vec![]);
        while next(&mut u, &mut all).expect("goes on") == Step::Frame {}
        all
    });
    let fails = |u: &mut Utterance| {
        let e = next(u, &mut vec![]).expect_err("no numbers").to_string();
        assert!(e.contains("frame 0: logits are NaN"), "{}: {e}", engine.device());
    };
    fails(&mut start(f32::NAN, 1));

    let mut others = [start(0.1, 3), start(0.1, 4)];
    let mut codes = [vec![], vec![]];
    for round in 0..20 {
        if round % 3 == 1 {
            fails(&mut start(f32::NAN, round));
        }
        for (u, codes) in others.iter_mut().zip(&mut codes) {
            next(u, codes).expect("goes on");
        }
    }
    assert_eq!(codes, alone, "{}", engine.device());
}
