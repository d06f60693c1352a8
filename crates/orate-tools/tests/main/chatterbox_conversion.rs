//! Voice conversion with Chatterbox: recordings of any length.

use crate::common::raw;
use orate::{Cancel, Chunk, DeviceChoice, Engine, EngineOptions, Error, ModelSource, Options};
use orate_audio::log_spectral_distance_db;
use orate_testing::checkpoints::{chatterbox_goldens, write_chatterbox};

const RATE: usize = 24_000;
/// Samples of a code.
const CODE: usize = 960;

fn engine() -> Engine {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox(folder.path(), "en", "tiny").expect("the folder is writable");
    let model = ModelSource::Path(folder.path().to_owned());
    let options = EngineOptions { model, device: DeviceChoice::Cpu, ..Default::default() };
    Engine::with_options(options).expect("a whole model")
}

/// Tones of 1.8 s with pauses of 0.2 s.
fn source(seconds: usize) -> Vec<f32> {
    let sample = |i: usize| {
        let (word, within) = (i / (2 * RATE), i % (2 * RATE));
        let hz = 100.0 + 10.0 * (word % 7) as f32;
        let tone = (std::f32::consts::TAU * hz * within as f32 / RATE as f32).sin();
        if within < 9 * RATE / 5 { 0.3 * tone * (within as f32 * 5e-4).sin() } else { 0.0 }
    };
    (0..seconds * RATE).map(sample).collect()
}

fn convert(engine: &Engine, samples: &[f32], options: &Options) -> Result<Vec<Chunk>, Error> {
    engine.convert_samples(samples, RATE as u32, options)?.collect()
}

fn joined(chunks: &[Chunk]) -> Vec<f32> {
    chunks.iter().flat_map(|chunk| chunk.samples.iter().copied()).collect()
}

#[test]
fn a_long_recording_is_converted_in_pieces() {
    let engine = engine();
    let options = raw().set("steps", 1);
    let source = source(70);
    let stream = engine.convert_samples(&source, RATE as u32, &options).expect("converts");
    assert_eq!((stream.remaining(), stream.remaining_chars()), (4, 4));
    let chunks: Vec<Chunk> = stream.map(|chunk| chunk.expect("converts")).collect();
    assert_eq!(chunks.iter().map(|chunk| chunk.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let all = joined(&chunks);
    assert_eq!(all.len(), source.len(), "timing stays");
    let again = convert(&engine, &source, &options).expect("converts");
    assert_eq!(joined(&again), all, "the same seed gives the same samples");

    // Pieces meet in pauses, and nothing clicks there: no step is larger than others.
    let steps: Vec<f32> = all.windows(2).map(|w| (w[1] - w[0]).abs()).collect();
    let largest = |range: &[f32]| range.iter().copied().fold(0.0, f32::max);
    let mut end = 0;
    for chunk in &chunks[..3] {
        end += chunk.samples.len();
        // The cross-fade follows what is returned.
        let joint = (end + 240) / CODE;
        assert!((45..50).contains(&(joint % 50)), "{joint}: not in a pause");
        let (near, before, after) = (end - 240..end + 720, end - RATE..end - 240, end + 720..end + RATE);
        let others = largest(&steps[before]).max(largest(&steps[after]));
        assert!(largest(&steps[near]) <= others, "a click at {end}");
    }
}

#[test]
fn pieces_sound_like_the_whole() {
    // Phases differ where the pitch differs by rounding, so spectra are compared. Other noise is the control.
    let engine = engine();
    let options = |seed| Options { seed, ..raw() }.set("steps", 2);
    let sound = |seconds, seed| {
        joined(&convert(&engine, &source(60)[..seconds * RATE], &options(seed)).expect("converts"))
    };
    let (whole, pieces, other) = (sound(30, 0), sound(60, 0), sound(30, 1));
    // From before the first joint to one second before the end of what the whole knows.
    for part in [RATE..14 * RATE, 15 * RATE..17 * RATE, 17 * RATE..28 * RATE] {
        let distance = |x: &[f32]| log_spectral_distance_db(&whole[part.clone()], &x[part.clone()]);
        let (same, control) = (distance(&pieces).expect("equal"), distance(&other).expect("equal"));
        assert!(same < 0.8 * control, "{part:?}: {same} dB, and {control} dB with other noise");
    }
}

#[test]
fn conversion_can_be_cancelled_between_pieces() {
    let engine = engine();
    let cancel = Cancel::new();
    let options = Options { cancel: Some(cancel.clone()), ..raw() }.set("steps", 1);
    let mut stream = engine.convert_samples(&source(40), RATE as u32, &options).expect("converts");
    assert!(stream.next().is_some_and(|chunk| chunk.is_ok()));
    cancel.cancel();
    assert!(matches!(stream.next(), Some(Err(Error::Cancelled))));
    assert!(stream.next().is_none());
}

#[test]
fn a_voice_of_s3gen_alone_is_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox(folder.path(), "en", "tiny").expect("the folder is writable");
    let open = |path: std::path::PathBuf| {
        let model = ModelSource::Path(path);
        Engine::with_options(EngineOptions { model, device: DeviceChoice::Cpu, ..Default::default() })
    };
    let alone = open(folder.path().join("s3gen.safetensors")).expect("converts");
    let voice = alone.clone_voice(chatterbox_goldens().join("ref.wav"), None).expect("a voice");
    let options = Options { cloned: Some(voice), ..raw() };
    let whole = open(folder.path().to_owned()).expect("a whole model");
    let converted = convert(&whole, &source(1), &options.clone().set("steps", 1)).expect("converts");
    // A reference may have a frame more than its codes, which then replaces the first one of the speech.
    assert!(RATE - joined(&converted).len() <= 480);
    let refused = whole.speak("Hello.", &options).expect_err("T3 knows nothing of the voice").to_string();
    assert!(refused.contains("made by a model for voice conversion"), "{refused}");
}

#[test]
fn options_without_an_effect_are_refused() {
    let engine = engine();
    let refused = |options: Options| convert(&engine, &source(1), &options).expect_err("refused").to_string();
    assert_eq!(
        refused(raw().set("temperature", 0.5)),
        "`temperature` is not an option of voice conversion with Chatterbox models"
    );
    assert_eq!(refused(raw().set("steps", 0)), "steps is 0; choose 1 to 100");
    let unknown = refused(Options { voice: Some("bob".to_owned()), ..raw() });
    assert_eq!(unknown, "unknown voice `bob`; this model has: default");
    // The estimator of Turbo has no guidance, beside its T3 or alone.
    let folder = tempfile::tempdir().expect("a folder");
    write_chatterbox(folder.path(), "turbo", "tiny").expect("the folder is writable");
    for path in [folder.path().to_owned(), folder.path().join("s3gen_meanflow.safetensors")] {
        let options =
            EngineOptions { model: ModelSource::Path(path), device: DeviceChoice::Cpu, ..Default::default() };
        let engine = Engine::with_options(options).expect("converts");
        assert_eq!(
            convert(&engine, &source(1), &raw().set("flow_guidance", 0.5)).expect_err("refused").to_string(),
            "`flow_guidance` is not an option of this Chatterbox model (other Chatterbox models have it)"
        );
    }
}
