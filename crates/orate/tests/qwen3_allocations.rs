//! What frames of Qwen3-TTS ask of the allocator once an utterance is under way.

use orate::{DeviceChoice, Engine, EngineOptions, Model};
use orate_models::qwen3_tts::{Request, Settings, Speaker, Step};
use orate_testing::checkpoints::write_random_qwen3_tts;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which counts what all threads ask of it.
struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Frames that are made before those that count.
const WARM_UP: usize = 5;
/// Frames that count.
const FRAMES: usize = 20;

#[test]
fn a_frame_allocates_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
    let model = Model::Path(folder.path().to_owned());
    let options = EngineOptions { model, device: DeviceChoice::Cpu, threads: Some(2), ..Default::default() };
    let engine = Engine::with_options(options).unwrap_or_else(|e| panic!("{e}"));
    let model = engine.qwen3_tts().expect("is one");
    let (speaker, language) = (Speaker::Named("ryan"), Some("en"));
    let request = Request { text: "Hello there.", speaker, language, instruct: None, feeding: None };
    let drawn = Settings::new(&model.talking().expect("talks").generation, 7);
    let settings = Settings { max_frames: WARM_UP + FRAMES, ..drawn };
    let mut session = model.session().expect("talks");
    session.start(&model.prompt(&request).expect("speakable"), &settings).expect("starts");
    let mut codes = Vec::with_capacity(16);
    let mut asked = vec![];
    for _ in 0..WARM_UP + FRAMES {
        let before = ASKED.load(Ordering::Relaxed);
        assert_eq!(session.next_frame(&mut codes).expect("goes on"), Step::Frame);
        let used = ASKED.load(Ordering::Relaxed) - before;
        asked.push(used);
    }
    assert!(asked[WARM_UP..].iter().all(|used| *used == 0), "allocations of each frame: {asked:?}");
}
