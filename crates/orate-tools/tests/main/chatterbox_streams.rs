//! Chatterbox in a stream: samples before the last code is made.

use crate::common::raw;
use orate::{Chunk, DeviceChoice, Engine, EngineOptions, ModelSource, Options};
use orate_testing::checkpoints::write_chatterbox;

/// Samples of a code.
const CODE: usize = 960;

fn engine(variant: &str) -> Engine {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox(folder.path(), variant, "tiny").expect("the folder is writable");
    let model = ModelSource::Path(folder.path().to_owned());
    let options = EngineOptions { model, device: DeviceChoice::Cpu, ..Default::default() };
    Engine::with_options(options).expect("a whole model")
}

fn chunks(engine: &Engine, text: &str, options: &Options) -> Vec<Chunk> {
    engine.stream(text, options).expect("begins").map(|chunk| chunk.expect("speaks")).collect()
}

#[test]
fn a_piece_comes_in_chunks_that_grow() {
    for variant in ["en", "mtl", "turbo"] {
        let engine = engine(variant);
        let options = raw().set("max_codes", 100);
        let whole = engine.speak("Hello there.", &options).expect("speaks");
        let stream = options.clone().set("first_chunk", 12);
        let all = chunks(&engine, "Hello there.", &stream);
        let lengths: Vec<usize> = all.iter().map(|chunk| chunk.samples.len()).collect();
        assert!(lengths[0] < 12 * CODE, "{variant}: {lengths:?}");
        assert!(lengths.len() >= 3 && lengths[1] > lengths[0], "{variant}: {lengths:?}");
        assert_eq!(lengths.iter().sum::<usize>(), whole.samples.len(), "{variant}: {lengths:?}");
        let (last, others) = all.split_last().expect("there are chunks");
        assert!(last.finish.is_some() && others.iter().all(|chunk| chunk.finish.is_none()), "{variant}");
        assert!(all.iter().all(|chunk| chunk.index == 0), "{variant}");
        let again = chunks(&engine, "Hello there.", &stream);
        assert!(again.iter().zip(&all).all(|(a, b)| a.samples == b.samples), "{variant}: not repeatable");

        // Nothing clicks where a cross-fade begins and ends: no step is larger than others nearby. How close
        // parts come to the whole is a check of `verify`.
        let samples: Vec<f32> = all.iter().flat_map(|chunk| chunk.samples.iter().copied()).collect();
        let steps: Vec<f32> = samples.windows(2).map(|w| (w[1] - w[0]).abs()).collect();
        let largest = |range: std::ops::Range<usize>| {
            let range = range.start.min(steps.len())..range.end.min(steps.len());
            steps[range].iter().copied().fold(0.0, f32::max)
        };
        let mut end = 0;
        for length in &lengths[..lengths.len() - 1] {
            end += length;
            let others =
                largest(end.saturating_sub(8 * CODE)..end - CODE).max(largest(end + CODE..end + 8 * CODE));
            for seam in [end, end + CODE] {
                assert!(largest(seam - 3..seam + 3) <= others, "{variant}: a click at {seam}");
            }
        }
    }
}

#[test]
fn pieces_follow_each_other() {
    let engine = engine("turbo");
    let options = Options { silence: 0.5, ..raw() }.set("max_codes", 30).set("first_chunk", 10);
    let text = format!("{} And then a second piece.", "This is a long sentence. ".repeat(12));
    let all = chunks(&engine, &text, &options);
    let pieces: Vec<usize> = all.iter().map(|chunk| chunk.index).collect();
    assert!(pieces.is_sorted() && pieces.last() == Some(&1) && pieces.len() > 2, "{pieces:?}");
    let second = all.iter().find(|chunk| chunk.index == 1).expect("two pieces");
    assert!(second.samples[..12_000].iter().all(|x| *x == 0.0), "silence comes first");
    assert!(second.samples[12_000..].iter().any(|x| *x != 0.0), "then speech");
}

#[test]
fn a_short_first_chunk_waits_for_what_the_vocoder_reads() {
    let engine = engine("en");
    let options = raw().set("max_codes", 20).set("first_chunk", 1);
    let all = chunks(&engine, "Hello there.", &options);
    assert!(all.len() > 1 && all.iter().all(|chunk| !chunk.samples.is_empty()));
}
