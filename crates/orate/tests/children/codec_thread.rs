//! The codec of a text has a thread of its own, which ends with the text, an error, or the stream.

use crate::child::{End, in_a_child};
use orate::{Cancel, DeviceChoice, Engine, EngineOptions, Error, ModelSource, Options};
use orate_testing::checkpoints::write_random_qwen3_tts;
use std::time::{Duration, Instant};

/// Threads of this process that run a codec.
fn codec_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let names = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
    names.filter(|name| name.trim() == "orate-codec").count()
}

/// Asserts that no codec has a thread. The system still lists a thread for a moment after it was joined.
#[track_caller]
fn assert_no_codec_thread(why: &str) {
    let start = Instant::now();
    while codec_threads() > 0 && start.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(codec_threads(), 0, "{why}");
}

#[test]
fn it_ends_with_what_it_was_started_for() {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
    let end = in_a_child(|| {
        let model = ModelSource::Path(folder.path().to_owned());
        let options =
            EngineOptions { device: DeviceChoice::Cpu, model, threads: Some(2), ..Default::default() };
        let engine = Engine::with_options(options).expect("a whole model");
        let o = Options::default().set("codec_beside", true).set("max_frames", 200);
        let long = "This is one of many sentences that say nothing new. ".repeat(9);

        let cancel = Cancel::new();
        let may_end = Options { cancel: Some(cancel.clone()), ..o.clone() };
        let mut stream = engine.stream(&long, &may_end).expect("speaks");
        assert_eq!(codec_threads(), 0, "nothing is made before it is asked for");
        for _ in 0..3 {
            assert!(stream.next().expect("a chunk").is_ok());
        }
        assert_eq!(codec_threads(), 1);
        cancel.cancel();
        assert!(matches!(stream.next(), Some(Err(Error::Cancelled))));
        assert_no_codec_thread("it ends with the error, not with the stream");
        assert!(stream.next().is_none());

        let mut stream = engine.stream(&long, &o).expect("speaks");
        assert!(stream.next().expect("a chunk").is_ok());
        assert_eq!(codec_threads(), 1);
        drop(stream);
        assert_no_codec_thread("or with the stream");

        let mut stream = engine.stream("Hello.", &o).expect("speaks");
        assert!(stream.by_ref().all(|c| c.is_ok()));
        assert_no_codec_thread("or with the text");
    });
    assert_eq!(end, End::Well);
}
