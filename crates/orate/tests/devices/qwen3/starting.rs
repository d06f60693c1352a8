//! Utterances that begin at the same time, of which some never ask for a frame.

use orate::{Engine, EngineOptions, ModelSource};
use orate_models::qwen3_tts::{Request, Settings, Speaker, StartOptions, Step, Utterance};
use orate_testing::checkpoints::write_random_qwen3_tts;
use std::sync::Barrier;

/// Each says what it would alone, and none waits for one that is left before its first frame, or just stays
/// there.
pub fn together(options: EngineOptions) {
    const CALLERS: u64 = 4;
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
    let model = ModelSource::Path(folder.path().to_owned());
    let engine = Engine::with_options(EngineOptions { model, ..options }).unwrap_or_else(|e| panic!("{e}"));
    let model = &engine.model_as::<orate::qwen3_tts::Qwen3Tts>().expect("of this family");
    let start = |seed: u64| {
        let text = format!("Number {seed}.");
        let (speaker, language) = (Speaker::Named("ryan"), None);
        let request = Request { text: &text, speaker, language, instruct: None, feeding: None };
        let drawn = Settings::new(&model.talking().expect("talks").generation, seed);
        let settings = Settings { max_frames: 8, ..drawn };
        let prompt = model.prompt(&request).expect("speakable");
        model.utterance(&prompt, &settings, StartOptions::default()).expect("starts")
    };
    let rest_of = |mut utterance: Utterance| {
        let (mut all, mut codes) = (vec![], vec![]);
        while utterance.next_frame(&mut codes).expect("goes on") == Step::Frame {
            all.extend(&codes);
        }
        all
    };
    let alone: Vec<Vec<i32>> = (0..=CALLERS).map(|seed| rest_of(start(seed))).collect();
    assert!(alone.iter().all(|codes| !codes.is_empty()));

    let silent = start(CALLERS);
    assert_eq!(rest_of(start(0)), alone[0], "{}: beside one that asks for nothing", engine.device());
    drop(start(CALLERS + 1));
    let barrier = Barrier::new(CALLERS as usize);
    let call = |seed: u64| {
        barrier.wait();
        rest_of(start(seed))
    };
    let call = &call;
    let all: Vec<Vec<i32>> = std::thread::scope(|threads| {
        let callers: Vec<_> = (0..CALLERS).map(|seed| threads.spawn(move || call(seed))).collect();
        callers.into_iter().map(|c| c.join().expect("no panic")).collect()
    });
    assert_eq!(all, alone[..CALLERS as usize], "{}", engine.device());
    assert_eq!(rest_of(silent), alone[CALLERS as usize], "{}: it still speaks", engine.device());
}
