//! A family that nothing but its own folder knows works everywhere.

use crate::common::raw;
use crate::toy::sing::{SING, SingOptions};
use crate::toy::write::{write_goldens, write_model, write_singer};
use crate::toy::{HUM, HumOptions};
use orate::{
    Audio, Cancel, DeviceChoice, Engine, EngineOptions, Error, ErrorKind, FAMILIES, Family, ModelSource,
    Options, Precision, PrecisionPolicy, Size,
};
use orate_tools::bench::{self, Work};
use orate_tools::inspect::{self, Look};
use orate_tools::verify::{self, VerifyOptions};
use std::path::Path;

/// The families of a program that knows the toy beside the others.
static ALL: [&Family; 5] = [HUM, SING, FAMILIES[0], FAMILIES[1], FAMILIES[2]];

const SAMPLES: usize = 400;

fn open(folder: &Path, more: EngineOptions) -> Engine {
    write_model(folder);
    let model = ModelSource::Path(folder.to_owned());
    let options =
        EngineOptions { model, families: &ALL, device: DeviceChoice::Cpu, threads: Some(1), ..more };
    Engine::with_options(options).expect("a whole model")
}

fn engine(folder: &Path) -> Engine {
    open(folder, EngineOptions::default())
}

#[test]
fn a_toy_family_speaks() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    assert_eq!((engine.family_name(), engine.sample_rate()), ("Hum", 8000));
    assert_eq!(
        engine.voices().iter().filter(|v| v.is_default).map(|v| &*v.name).collect::<Vec<_>>(),
        ["low"]
    );
    engine.warm_up().expect("speaks");
    let audio = engine.speak("Hello", &raw()).expect("speaks");
    assert_eq!(audio.samples.len(), 5 * SAMPLES);
    let peak = |samples: &[f32]| samples.iter().fold(0f32, |most, x| most.max(x.abs()));
    assert!(peak(&audio.samples) > 0.1);

    // Its own option, typed and by name.
    let loud = raw().with(HumOptions { volume: Some(1.0) });
    let twice: Vec<f32> = audio.samples.iter().map(|x| 2.0 * x).collect();
    assert_eq!(engine.speak("Hello", &loud).expect("speaks").samples, twice);
    assert_eq!(engine.speak("Hello", &raw().set("volume", 1)).expect("speaks").samples, twice);
    let high = Options { voice: Some("high".to_owned()), ..raw() };
    assert_ne!(engine.speak("Hello", &high).expect("speaks"), audio);

    // Several texts, and pieces of a long one with silence between.
    let all = engine.speak_batch(&["Hello", "you"], &raw()).expect("speaks");
    assert_eq!(all.iter().map(|a| a.samples.len() / SAMPLES).collect::<Vec<_>>(), [5, 3]);
    let long = "Hello. ".repeat(20);
    let chunks: Vec<_> = engine.stream(&long, &raw()).expect("speaks").map(|c| c.expect("speaks")).collect();
    assert!(chunks.len() > 1 && chunks[1].samples[..2400].iter().all(|x| *x == 0.0));
    assert!(chunks.iter().all(|c| c.counters.submissions == 1 && c.counters.read_backs == 1));
}

#[test]
fn a_toy_family_converts() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let source = vec![0.5; 24_000];
    let samples = |options: &Options| -> Result<Vec<f32>, Error> {
        let chunks = engine.convert_samples(&source, 16_000, options)?.collect::<Result<Vec<_>, Error>>()?;
        Ok(chunks.into_iter().flat_map(|chunk| chunk.samples).collect())
    };
    let usual = samples(&raw()).expect("converts");
    assert_eq!(usual.len(), 12_000);
    let path = folder.path().join("source.wav");
    Audio { samples: source.clone(), sample_rate: 16_000 }.write(&path).expect("room");
    assert_eq!(engine.convert(&path, &raw()).expect("converts").samples, usual);
    let loud = raw().with(HumOptions { volume: Some(1.0) });
    assert_eq!(samples(&loud).expect("converts"), usual.iter().map(|x| 2.0 * x).collect::<Vec<_>>());

    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = Options { cancel: Some(cancel), ..raw() };
    assert!(matches!(samples(&cancelled), Err(Error::Cancelled)));
    let refused = |options: Options| samples(&options).expect_err("refused").to_string();
    assert_eq!(
        refused(Options { language: Some("en".to_owned()), ..raw() }),
        "language is en; a recording is converted in the language that it has; leave it out"
    );
    let auto = samples(&Options { language: Some("auto".to_owned()), ..raw() });
    assert_eq!(auto.expect("converts"), usual);
    assert_eq!(
        refused(raw().set("tempo", 2)),
        "`tempo` is not an option of voice conversion with Hum models"
    );
    let problem = |samples: &[f32], rate| match engine.convert_samples(samples, rate, &raw()) {
        Ok(_) => panic!("refused"),
        Err(e) => e.to_string(),
    };
    assert!(problem(&[f32::NAN; 4000], 16_000).starts_with("the source: sample 0 is NaN"));
    assert!(problem(&[], 16_000).starts_with("the source: there are no samples"));
    assert!(problem(&[0.5; 4000], 0).starts_with("a sample rate of 0 Hz"));
    assert!(problem(&[0.5; 4000], 1).starts_with("the source: this recording is longer"));
}

#[test]
fn a_toy_family_refuses_what_it_does_not_have() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path());
    let refused = |options: Options, words: &str| {
        let e = engine.speak("Hello", &options).expect_err(words);
        assert!(e.to_string().contains(words), "{e}");
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    };
    let set = |name, value: f64| raw().set(name, value);
    refused(set("volume", 1.5), "volume is 1.5; choose 0 to 1");
    refused(set("speed", 1.0), "`speed` is not an option of Hum models (");
    refused(set("colour", 1.0), "`colour` is not an option of Hum models");
    refused(Options { voice: Some("bass".to_owned()), ..raw() }, "this model has: low, high");
    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = engine.speak("Hello", &Options { cancel: Some(cancel), ..raw() });
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    assert!(engine.say("…").expect_err("no letter").to_string().contains("nothing to say"));
    let e = engine.clone_voice("none.wav", None).expect_err("cannot").to_string();
    assert!(e.contains("this is a Hum model: it cannot clone a voice"), "{e}");
    let model = ModelSource::Path(folder.path().to_owned());
    let options =
        EngineOptions { model, families: &ALL, kv: orate::CacheFormat::F16.into(), ..Default::default() };
    let e = Engine::with_options(options).expect_err("keeps none").to_string();
    assert!(e.contains("Hum models keep no keys and values"), "{e}");
    // A program without the family does not take the folder for something else.
    let e = Engine::open(folder.path()).expect_err("unknown").to_string();
    assert!(e.contains("not a model folder"), "{e}");
}

#[test]
fn tools_ask_a_toy_family() {
    let folder = tempfile::tempdir().expect("a folder");
    write_goldens(folder.path(), "hello there");
    for precision in [Precision::F32, Precision::F16] {
        let precision = PrecisionPolicy::uniform(precision).into();
        let engine = open(folder.path(), EngineOptions { precision, ..Default::default() });
        let report = verify::run(&engine, folder.path(), &VerifyOptions::default()).expect("goldens");
        assert!(report.passed() && report.rows.len() == 1, "{report:?}");
    }
    let (device, kv) = (None, orate::CacheChoice::Auto);
    let look = Look { codec: None, families: &ALL, device, precision: orate::PrecisionChoice::default(), kv };
    let found = inspect::model(Some(folder.path()), &look).expect("a whole model");
    assert_eq!((&*found.kind, found.tensors.len()), ("Hum", 3));
    let engine = engine(folder.path());
    let options = bench::usual_options(&engine).expect("needs none");
    let times = bench::speak(&engine, Work::Text("Hello"), &options, false).expect("speaks");
    assert_eq!(times.samples, 5 * SAMPLES);
    let runs = engine.plans(Size { tokens: 7, frames: 1 }, &raw()).expect("runs");
    assert_eq!((runs.plans.len(), &*runs.size), (1, "7 letters"));
    let explained = runs.plans[0].0.plan().explain(None);
    assert!(explained.contains("letters.weight"), "{explained}");
}

/// A family over `orate_models::decoding`: utterances of several threads share batches, and each sounds as it
/// does alone.
#[test]
fn an_autoregressive_toy_family_speaks() {
    let folder = tempfile::tempdir().expect("a folder");
    write_singer(folder.path());
    let model = ModelSource::Path(folder.path().to_owned());
    let options = EngineOptions {
        model,
        families: &ALL,
        device: DeviceChoice::Cpu,
        threads: Some(1),
        ..Default::default()
    };
    let engine = Engine::with_options(options).expect("a whole model");
    let likeliest = raw().with(SingOptions { temperature: Some(0.0) });
    let notes = |text: &str, options: &Options| {
        let chunks: Vec<_> =
            engine.stream(text, options).expect("sings").map(|c| c.expect("sings")).collect();
        assert!(chunks.iter().all(|c| c.finish == Some(orate::FinishReason::Stop)), "{chunks:?}");
        chunks.iter().map(|c| c.samples.len() / SAMPLES).sum::<usize>()
    };
    assert_eq!(notes("Hello there", &likeliest), 11, "a note for each letter and space");
    assert_eq!(notes("Hello there", &raw()), 11);
    let seed = |seed| engine.speak("Hello there", &Options { seed, ..raw() }).expect("sings");
    assert!((1..9).any(|other| seed(other) != seed(0)), "another seed draws other notes");
    let texts = ["Hello there", "a", "to be or not to be", "Hello there", "yes and no"];
    engine.warm_up_for_callers(&likeliest, texts.len()).expect("has plans");
    for options in [&likeliest, &Options { seed: 5, ..raw() }] {
        let alone: Vec<_> = texts.iter().map(|t| engine.speak(t, options).expect("sings")).collect();
        assert_eq!(engine.speak_batch(&texts, options).expect("sings"), alone);
    }
    let e = engine.speak("Hi", &raw().set("volume", 0.5)).expect_err("hums only").to_string();
    assert!(e.contains("`volume` is not an option of Sing models (Hum has it)"), "{e}");
}
