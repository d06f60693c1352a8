//! What frames of Qwen3-TTS ask of the allocator, and of the device's, once an utterance is under way. A
//! program of its own, since it counts what all threads ask for.
//!
//! `ORATE_TEST_DEVICES` names GPUs, as in the tests of devices; without it, and with the feature `gpu`,
//! `vulkan:0`.

use orate::{DeviceChoice, DeviceKind, Engine, EngineOptions, ModelSource};
use orate_models::qwen3_tts::{Request, Settings, Speaker, Step};
use orate_testing::Counting;
use orate_testing::checkpoints::write_random_qwen3_tts;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Frames that are made before those that count.
const WARM_UP: usize = 5;
/// Frames that count.
const FRAMES: usize = 20;

/// What wgpu may ask for in a frame of the model here, whose dispatches fill two command buffers: 500 were
/// measured, of which two dozen begin and end the thread that encodes one of them. All others are wgpu's own:
/// command buffers cannot be reused, so each gets new lists of commands, parameters and resources, which grow
/// as they are filled.
const MOST_OF_WGPU: usize = 600;

/// The CPU and GPUs.
fn devices() -> Vec<DeviceChoice> {
    let gpus = match std::env::var("ORATE_TEST_DEVICES") {
        Ok(names) => names,
        Err(_) if cfg!(feature = "gpu") => "vulkan:0".to_owned(),
        Err(_) => String::new(),
    };
    let gpus = gpus.split(',').map(str::trim).filter(|name| !name.is_empty());
    ["cpu"].into_iter().chain(gpus).map(|name| name.parse().unwrap_or_else(|e| panic!("{e}"))).collect()
}

/// On the CPU and on CUDA a frame asks for nothing at all, and no device makes a buffer for it.
#[test]
fn a_frame_allocates_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
    for device in devices() {
        let model = ModelSource::Path(folder.path().to_owned());
        let options = EngineOptions { model, device, threads: Some(2), ..Default::default() };
        let engine = Engine::with_options(options).unwrap_or_else(|e| panic!("{e}"));
        let model = &engine.model_as::<orate::qwen3_tts::Qwen3Tts>().expect("is one");
        let (speaker, language) = (Speaker::Named("ryan"), Some("en"));
        let request = Request { text: "Hello there.", speaker, language, instruct: None, feeding: None };
        let drawn = Settings::new(&model.talking().expect("talks").generation, 7);
        let settings = Settings { max_frames: WARM_UP + FRAMES, ..drawn };
        let mut session =
            model.start(&model.prompt(&request).expect("speakable"), &settings).expect("starts");
        let mut codes = Vec::with_capacity(16);
        let (mut asked, mut made) = (vec![], vec![]);
        for _ in 0..WARM_UP + FRAMES {
            let (before, counted) = (Counting::asked(), session.counters());
            assert_eq!(session.next_frame(&mut codes).expect("goes on"), Step::Frame);
            let used = Counting::asked() - before;
            asked.push(used);
            made.push((session.counters() - counted).allocations);
        }
        let most = match engine.device_info().kind {
            DeviceKind::Cpu | DeviceKind::Cuda => 0,
            DeviceKind::Vulkan | DeviceKind::Metal | DeviceKind::Dx12 | DeviceKind::WebGpu => MOST_OF_WGPU,
        };
        println!("{device}: allocations of each frame: {asked:?}");
        assert!(asked[WARM_UP..].iter().all(|used| *used <= most), "{device}: more than {most}: {asked:?}");
        assert!(made[WARM_UP..].iter().all(|made| *made == 0), "{device}: buffers of each frame: {made:?}");
    }
}
