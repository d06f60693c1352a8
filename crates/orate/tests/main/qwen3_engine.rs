//! The engine with Qwen3-TTS models: from text to samples.

use crate::common::raw;
use orate::{
    Cancel, ClonedVoice, DeviceChoice, Engine, EngineOptions, Error, ErrorKind, Finish, FinishReason,
    ModelSource, Options, Precision, PrecisionChoice, PrecisionPolicy, SpeechLength,
};
use orate_models::Model;
use orate_models::qwen3_tts::{
    Prompt, Qwen3Tts, Request, Settings, Speaker, StartOptions, Step, TextFeeding, Utterance, Voice,
};
use orate_testing::checkpoints::{qwen3_tts_goldens, write_random_qwen3_tts};
use orate_testing::snr_db;

/// Samples of a frame.
const FRAME: usize = 1920;

fn engine(variant: &str, folder: &tempfile::TempDir) -> Engine {
    engine_in(PrecisionPolicy::default(), variant, folder)
}

fn engine_in(precision: impl Into<PrecisionChoice>, variant: &str, folder: &tempfile::TempDir) -> Engine {
    write_random_qwen3_tts(variant, folder.path(), 3).expect("the folder is writable");
    let options = EngineOptions {
        model: ModelSource::Path(folder.path().to_owned()),
        device: DeviceChoice::Cpu,
        threads: Some(2),
        precision: precision.into(),
        ..Default::default()
    };
    Engine::with_options(options).expect("a whole model")
}

/// Options with which the model speaks without being given anything.
fn usual_options(engine: &Engine) -> Options {
    Options { finish: Finish::NONE, ..engine.model().bench_options().expect("any model has a voice") }
}

/// Blocks of few bits are for the weights that every frame reads, unless somebody names others.
#[test]
fn blocks_are_for_the_talker() {
    for precision in [Precision::Q8_0, Precision::Q4_0] {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = engine_in(PrecisionPolicy::uniform(precision), "custom_voice", &folder);
        assert_eq!(engine.precision().to_string(), format!("{precision} for talker.*"));
        let audio = engine.speak("Hello there.", &options(5)).expect("speaks");
        assert_eq!(audio.samples.len(), 5 * FRAME);
        assert!(audio.samples.iter().all(|x| x.is_finite()) && audio.samples.iter().any(|x| *x != 0.0));
    }
    let all = PrecisionPolicy { precision: Precision::Q8_0, allow: vec!["*".into()], ..Default::default() };
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(*engine_in(all.clone(), "custom_voice", &folder).precision(), all);
}

/// Probes speak for the weights that every frame reads: the codec stays exact, whatever they choose.
#[test]
fn probes_are_for_the_talker() {
    let folder = tempfile::tempdir().expect("a folder");
    let auto = PrecisionChoice::Auto { allow: vec![], deny: vec![] };
    let policy = engine_in(auto, "base", &folder).precision().clone();
    let exact = PrecisionPolicy::default();
    assert!(policy == exact || policy.allow == ["talker.*"], "{policy}");
    let deny =
        PrecisionChoice::Auto { allow: vec!["*".to_owned()], deny: vec!["speaker_encoder.*".to_owned()] };
    let folder = tempfile::tempdir().expect("a folder");
    let policy = engine_in(deny, "base", &folder).precision().clone();
    assert!(policy == exact || policy.allow == ["*"], "{policy}");
}

/// Models that see the whole text speak otherwise when it comes token by token, and those that do not, too.
#[test]
fn text_is_fed_as_asked() {
    for (variant, usual, other) in [
        ("voice_design", TextFeeding::Whole, TextFeeding::Streaming),
        ("base", TextFeeding::Streaming, TextFeeding::Whole),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = engine(variant, &folder);
        let voice = usual_options(&engine);
        let speak = |feeding| {
            let options = voice
                .clone()
                .set("max_frames", 6)
                .with(orate::qwen3_tts::Options { text_feeding: feeding, ..Default::default() });
            engine.speak("Hello there, everybody.", &options).expect("speaks").samples
        };
        assert_eq!(speak(None), speak(Some(usual)), "{variant}");
        assert_ne!(speak(None), speak(Some(other)), "{variant}");
    }
}

/// What was said before stands in a prompt as if the talker were in the middle of both texts.
#[test]
fn going_on_is_as_if_nothing_had_been_between() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine("voice_design", &folder);
    let model = &engine.model_as::<Qwen3Tts>().expect("of this family");
    let settings =
        Settings { max_frames: 9, ..Settings::new(&model.talking().expect("talks").generation, 0) };
    let (before, behind) = ("Once upon a time.", " There was a king.");
    let both = format!("{before}{behind}");
    let codes: Vec<i32> = (0..5 * 16).map(|i| i * 7 % 100).collect();
    for feeding in [TextFeeding::Whole, TextFeeding::Streaming] {
        // What the talker draws from behind a prompt and frames.
        let logits = |text, speaker, frames: &[i32]| {
            let (language, instruct, feeding) = (None, Some("somebody old"), Some(feeding));
            let prompt = Request { text, speaker, language, instruct, feeding };
            let prompt = model.prompt(&prompt).expect("a prompt");
            let taps = StartOptions { taps: true, ..StartOptions::default() };
            let mut session = model.start_with(&prompt, &settings, taps).expect("starts");
            frames.chunks(16).for_each(|frame| session.give_frame(frame).expect("goes on"));
            let mut logits = vec![];
            session.read("logits", &mut logits).expect("is there");
            (prompt.rows.len(), logits)
        };
        let (rows, wanted) = logits(&*both, Speaker::Described, &codes);
        let (said, last) = codes.split_at(4 * 16);
        let (more, got) = logits(behind, Speaker::GoingOn { transcript: before, codes: said }, last);
        assert_eq!(more, rows + 4, "frames stand behind the text, or beside it");
        let snr = snr_db(&got, &wanted);
        assert!(snr > 100.0, "{feeding}: {snr} dB");
    }
}

/// What the model will take is known before anything of it is read.
#[test]
fn memory_is_as_predicted() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0, Precision::Q4_0] {
        for variant in ["base", "voice_design"] {
            let folder = tempfile::tempdir().expect("a folder");
            let engine = engine_in(PrecisionPolicy::uniform(precision), variant, &folder);
            let model = &engine.model_as::<Qwen3Tts>().expect("of this family");
            assert_eq!(model.weight_bytes(), 0, "nothing is read yet");
            let length = |speech, reference| {
                let length = SpeechLength { speech, reference };
                engine.footprint(length).expect("runs").expect("is predicted")
            };
            let (short, long) = (length(2.0, 1.0), length(60.0, 60.0));
            assert!(
                short.weights > 0 && short.utterance > 0 && long.utterance > short.utterance,
                "{short:?}"
            );
            assert_eq!(short.cloning > 0, variant == "base");
            assert_eq!(long.cloning > short.cloning, variant == "base");
            assert_eq!(long.in_context > short.in_context, variant == "base");
            let voice = usual_options(&engine);
            assert_eq!(model.weight_bytes(), 0, "what listened is gone");
            let audio = engine.speak("Hello there.", &voice.set("max_frames", 5)).expect("speaks");
            assert_eq!(audio.samples.len(), 5 * FRAME);
            assert_eq!(model.weight_bytes(), short.weights, "{variant} in {precision}");
        }
    }
}

/// A cache that grows finds its plan.
#[test]
fn no_plan_is_made_between_frames() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine("custom_voice", &folder);
    let model = &engine.model_as::<Qwen3Tts>().expect("of this family");
    let (mut codes, mut most) = (vec![], 0);
    for seed in 0..8 {
        // Long enough for a cache that is nearly full when speech begins.
        let (prompt, settings) = greeting(model, &"somebody happy ".repeat(24), seed, 300);
        let rows = prompt.rows.len();
        assert!((180..250).contains(&rows), "{rows}");
        let options = StartOptions { reserve: Some(1), ..StartOptions::default() };
        let mut session = model.start_with(&prompt, &settings, options).expect("starts");
        let before = model.plans_made();
        while session.next_frame(&mut codes).expect("goes on") == Step::Frame {}
        assert_eq!(model.plans_made(), before, "seed {seed}");
        most = most.max(rows + session.frames());
    }
    assert!(most > 256, "no cache was full: {most} rows");
}

/// A prompt, and settings for so many frames.
fn greeting(model: &Qwen3Tts, instruct: &str, seed: u64, max_frames: usize) -> (Prompt, Settings) {
    let speaker = Speaker::Named("ryan");
    let request =
        Request { text: "Hello there.", speaker, language: None, instruct: Some(instruct), feeding: None };
    let settings = Settings::new(&model.talking().expect("talks").generation, seed);
    (model.prompt(&request).expect("a prompt"), Settings { max_frames, ..settings })
}

/// By the time that an utterance joins another one, the plan of both is there.
#[test]
fn no_plan_is_made_when_utterances_meet() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine("custom_voice", &folder);
    let model = &engine.model_as::<Qwen3Tts>().expect("of this family");
    let (prompt, settings) = greeting(model, "happy", 1, 40);
    let mut codes = vec![];
    let mut utterances: Vec<Utterance> = vec![];
    for _ in 0..5 {
        let next = model.utterance(&prompt, &settings, StartOptions::default()).expect("starts");
        let before = model.plans_made();
        utterances.push(next);
        for u in &mut utterances {
            u.next_frame(&mut codes).expect("goes on");
        }
        assert_eq!(model.plans_made(), before, "{} utterances", utterances.len());
    }
}

fn options(frames: usize) -> Options {
    Options { seed: 5, ..raw() }.set("max_frames", frames)
}

#[test]
fn speech_is_the_same_whole_and_bit_by_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine("custom_voice", &folder);
    assert_eq!(engine.family_name(), "Qwen3-TTS");
    let options = Options { voice: Some("Ryan".into()), language: Some("en".into()), ..options(33) };
    let whole = engine.speak("Hello there.", &options).expect("speaks");
    assert_eq!(whole.sample_rate, 24_000);
    assert!(whole.samples.iter().all(|x| x.is_finite() && x.abs() <= 1.0));
    assert!(whole.samples.iter().any(|x| *x != 0.0));
    let mut stream = engine.stream("Hello there.", &options).expect("speaks");
    assert_eq!((stream.remaining(), stream.remaining_chars()), (1, 12));
    let chunks: Vec<_> = stream.by_ref().map(|c| c.expect("speaks")).collect();
    assert_eq!(stream.remaining(), 0);
    let lengths: Vec<usize> = chunks.iter().map(|c| c.samples.len() / FRAME).collect();
    assert_eq!(lengths, [4, 8, 16, 5], "early sound, then larger chunks");
    let finish: Vec<_> = chunks.iter().map(|c| c.finish).collect();
    assert_eq!(finish, [None, None, None, Some(FinishReason::Length)]);
    let joined: Vec<f32> = chunks.into_iter().flat_map(|c| c.samples).collect();
    assert!(joined == whole.samples, "the same bits");
    let other = engine.speak("Hello there.", &Options { seed: 6, ..options.clone() }).expect("speaks");
    assert!(other.samples != whole.samples, "another seed");
    let calm = options.set("instruct", "very calm");
    let calm = engine.speak("Hello there.", &calm).expect("speaks");
    assert!(calm.samples != whole.samples, "an instruction");
}

#[test]
fn what_has_no_effect_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
    let config = folder.path().join("config.json");
    let json = std::fs::read_to_string(&config).expect("written").replace("\"1b7\"", "\"0b6\"");
    std::fs::write(&config, json).expect("the folder is writable");
    let engine = Engine::open(folder.path()).expect("a whole model");
    let calm = options(3).set("instruct", "very calm");
    let stream = engine.stream("Hello there.", &calm).expect("speaks");
    assert_eq!(
        stream.warnings(),
        ["the instruction has no effect: 0.6B CustomVoice models do not follow any"]
    );
    assert!(engine.stream("Hello there.", &options(3)).expect("speaks").warnings().is_empty());
}

#[test]
fn long_texts_are_cut_at_sentences() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine("voice_design", &folder);
    let sentence = "This is one of many sentences that say nothing new. ".repeat(9);
    let chunks: Vec<_> =
        engine.stream(&sentence, &options(6)).expect("speaks").map(|c| c.expect("speaks")).collect();
    let pieces = chunks.last().expect("some").index + 1;
    assert_eq!(pieces, 2);
    for chunk in &chunks {
        assert!(chunk.text.ends_with('.') && chunk.text.chars().count() <= 300, "{}", chunk.text);
        assert!(chunk.counters.submissions > 0 && chunk.counters.read_backs > 0);
    }
    let silence = (0.3f32 as f64 * 24_000.0) as usize;
    let lengths: Vec<usize> = chunks.iter().map(|c| c.samples.len()).collect();
    assert_eq!(lengths, [4 * FRAME, 2 * FRAME, silence + 4 * FRAME, 2 * FRAME]);
}

#[test]
fn voices_and_what_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let custom = engine("custom_voice", &folder);
    let voices = custom.voices();
    assert_eq!(voices.len(), 9);
    assert_eq!(voices.iter().filter(|v| v.is_default).map(|v| &*v.name).collect::<Vec<_>>(), ["aiden"]);
    let refused = |engine: &Engine, text: &str, o: Options, words: &str| {
        let e = engine.speak(text, &o).expect_err(words);
        assert!(e.to_string().contains(words), "{e}");
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    };
    refused(
        &custom,
        "Hi.",
        Options { voice: Some("bob".into()), ..options(3) },
        "this model has: aiden, dylan,",
    );
    refused(
        &custom,
        "Hi.",
        Options { language: Some("xx".into()), ..options(3) },
        "unknown language `xx`; this model has: auto",
    );
    refused(&custom, " … ", options(3), "the text holds nothing to say; give it");
    refused(
        &custom,
        "Hi.",
        options(3).set("speed", 1.2),
        "`speed` is not an option of Qwen3-TTS models (Supertonic has it)",
    );
    refused(&custom, "Hi.", options(3).set("steps", 4), "`steps` is not an option of Qwen3-TTS models");
    refused(&custom, "Hi.", options(3).set("temperature", -1.0), "temperature is -1");
    refused(
        &custom,
        "Hi.",
        options(3).set("skip_unknown", true),
        "`skip_unknown` is not an option of Qwen3-TTS models",
    );
    refused(&custom, "Hi.", options(3).set("trim", false), "`trim` is not an option");
    refused(&custom, "Hi.", options(0), "choose 1 to 16777216");
    refused(&custom, "Hi.", options(usize::MAX), "choose 1 to 16777216");
    assert!(custom.model_as::<orate::supertonic::Supertonic>().is_none(), "another family");

    let folder = tempfile::tempdir().expect("a folder");
    let base = engine("base", &folder);
    assert!(base.voices().is_empty());
    refused(&base, "Hi.", options(3), "give it reference audio");

    let built_in = Engine::new().expect("the built-in voice");
    refused(
        &built_in,
        "Hi.",
        raw().set("instruct", "sing"),
        "`instruct` is not an option of Supertonic models (Qwen3-TTS has it)",
    );
    refused(&built_in, "Hi.", raw().set("retries", 1), "`retries` is not an option of Supertonic models");
    refused(&built_in, "Hi.", raw().set("top_k", 5), "`top_k` is not an option of Supertonic models");
}

/// The recording of the oracle, cloned with and without its words.
#[test]
fn a_recording_becomes_a_voice() {
    let folder = tempfile::tempdir().expect("a folder");
    let base = engine("base", &folder);
    let recording = qwen3_tts_goldens().join("cases/ref.wav");
    let voice = base.clone_voice(&recording, None).expect("a voice");
    let known = base.clone_voice(&recording, Some("once upon a time")).expect("a voice");
    let heard = orate_audio::read_audio(&recording, 60.0).expect("a recording");
    let same = base.clone_voice_samples("me", heard.samples, heard.sample_rate, None).expect("a voice");
    assert_eq!(same, voice);
    let e = base.clone_voice_samples("me", vec![0.0; 24_000], 24_000, None).expect_err("silent").to_string();
    assert!(e.contains("me"), "{e}");
    let typed = |voice: &ClonedVoice| Voice::try_from(voice).expect("of this family");
    assert_eq!(typed(&voice).x_vector, typed(&known).x_vector);
    let codes = &typed(&known).reference.expect("with its words").codes;
    assert!(typed(&voice).reference.is_none() && codes.len() >= 160 && codes.len().is_multiple_of(16));
    let speak = |cloned| {
        let audio =
            base.speak("Hello there.", &Options { cloned: Some(cloned), ..options(6) }).expect("speaks");
        assert_eq!(audio.samples.len(), 6 * FRAME, "without the recording");
        audio.samples
    };
    assert!(speak(voice) != speak(known.clone()), "the manner is heard");
    let e = base.clone_voice(&recording, Some(" ")).expect_err("no words").to_string();
    assert!(e.contains("the transcript holds nothing to say"), "{e}");
    for no_words in ["?", "...", "—"] {
        let e = base.clone_voice(&recording, Some(no_words)).expect_err("no words").to_string();
        assert!(e.contains("the transcript holds nothing to say"), "{no_words}: {e}");
    }
    let novel = "It was the best of times, it was the worst of times. ".repeat(9);
    let e = base.clone_voice(&recording, Some(&novel)).expect_err("another recording").to_string();
    let frames = codes.len() / 16;
    assert!(e.contains(&format!("but the recording only {frames} frames")), "{e}");
    assert!(e.contains("is this the transcript of this recording?"), "{e}");
    // A voice that was made elsewhere is checked when it speaks.
    let mut other = typed(&known);
    other.reference.as_mut().expect("with its words").transcript = novel;
    let other = ClonedVoice::from(&other);
    let e = base.speak("Hi.", &Options { cloned: Some(other.into()), ..options(3) }).expect_err("refused");
    assert!(e.to_string().contains("is this the transcript of this recording?"), "{e}");
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    let folder = tempfile::tempdir().expect("a folder");
    let custom = engine("custom_voice", &folder);
    let e = custom.clone_voice(&recording, None).expect_err("cannot").to_string();
    assert!(e.contains("only Base models can"), "{e}");
    let e = custom.speak("Hi.", &Options { cloned: Some(known), ..options(3) }).expect_err("cannot");
    assert!(e.to_string().contains("only Base models can"), "{e}");
}

#[test]
fn speaking_can_be_cancelled_between_frames() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine("custom_voice", &folder);
    let cancel = Cancel::new();
    let options = Options { cancel: Some(cancel.clone()), ..options(100) };
    let mut stream = engine.stream("Hello there.", &options).expect("speaks");
    assert!(stream.next().expect("a chunk").is_ok());
    cancel.cancel();
    assert!(matches!(stream.next(), Some(Err(Error::Cancelled))));
    assert!(stream.next().is_none());
    assert_eq!(stream.remaining(), 0);
}

/// Fills a tensor of a safetensors file, in f32, with a number.
fn overwrite(file: &std::path::Path, tensor: &str, number: f32) {
    let mut bytes = std::fs::read(file).expect("a model was written");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..header]).expect("a header");
    let place = |i: usize| header + json[tensor]["data_offsets"][i].as_u64().expect("a tensor") as usize;
    bytes[place(0)..place(1)].chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&number.to_le_bytes()));
    std::fs::write(file, bytes).expect("the folder is writable");
}

#[test]
fn a_damaged_codec_is_an_error_and_not_silence() {
    let folder = tempfile::tempdir().expect("a folder");
    write_random_qwen3_tts("custom_voice", folder.path(), 3).expect("the folder is writable");
    let codec = folder.path().join("speech_tokenizer/model.safetensors");
    overwrite(&codec, "decoder.decoder.6.conv.bias", f32::NAN);
    let engine = Engine::open(folder.path()).expect("a whole model");
    for codec_beside in [false, true] {
        let options = options(3).set("codec_beside", codec_beside);
        let error = engine.speak("Hello there.", &options).expect_err("no sound");
        assert_eq!(error.kind(), ErrorKind::InvalidModel, "{error}");
        for words in ["no sound for frame 0", "speech_tokenizer undamaged", "try f32"] {
            assert!(error.to_string().contains(words), "no `{words}` in: {error}");
        }
    }
}

/// Why the text ended, how many frames it has, and how often it was spoken.
fn ending(engine: &Engine, o: &Options) -> (FinishReason, usize, usize) {
    let chunks: Vec<_> = engine.stream("Hi.", o).expect("speaks").map(|c| c.expect("speaks")).collect();
    let last = chunks.last().expect("some sound");
    let frames = chunks.iter().map(|c| c.samples.len()).sum::<usize>() / FRAME;
    (last.finish.expect("it ended"), frames, last.attempts)
}

/// A model of random weights ends by chance, sometimes too late. Which seeds are bad differs between
/// instruction sets.
#[test]
fn speech_that_goes_astray_is_ended_and_spoken_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine("custom_voice", &folder);
    let with = |seed| Options { seed, ..raw() };
    let bad = (0..200).find(|seed| ending(&engine, &with(*seed)).0 == FinishReason::Runaway);
    let heard = with(bad.expect("one in some seeds"));
    let (reason, frames, attempts) = ending(&engine, &heard);
    assert_eq!((reason, attempts), (FinishReason::Runaway, 1), "what was heard is not spoken again");
    assert!((63..150).contains(&frames), "{frames} frames are more than the text needs");
    let never = Options { whole: true, ..heard.clone() }.set("retries", 0);
    assert_eq!(ending(&engine, &never), (FinishReason::Runaway, frames, 1));
    let patient = Options { whole: true, ..heard.clone() }.set("retries", 50);
    let (reason, shorter, attempts) = ending(&engine, &patient);
    assert_eq!(reason, FinishReason::Stop, "another seed ends");
    assert!(attempts > 1 && shorter < frames, "{shorter} frames after {attempts} attempts");
    let enough = patient.clone().set("retries", attempts - 1);
    assert_eq!(ending(&engine, &enough), (FinishReason::Stop, shorter, attempts));
    let too_few = patient.clone().set("retries", attempts - 2);
    let (reason, _, most) = ending(&engine, &too_few);
    assert_eq!((reason, most), (FinishReason::Runaway, attempts - 1));

    let first = engine.speak("Hi.", &never).expect("speaks");
    let joined = engine.stream("Hi.", &heard).expect("speaks").flat_map(|c| c.expect("speaks").samples);
    assert!(joined.eq(first.samples.iter().copied()), "the same bits, whole or not");
    let again = engine.speak("Hi.", &patient).expect("speaks");
    assert_eq!(again.samples.len(), shorter * FRAME);
    assert!(engine.speak("Hi.", &patient).expect("speaks") == again, "the same seed, the same other seeds");

    // The likeliest codes are the same with every seed; here they are those that were drawn before.
    let sure = patient.clone().set("top_k", 1).set("repetition_penalty", 0.01);
    let (reason, _, attempts) = ending(&engine, &sure);
    assert_eq!((reason, attempts), (FinishReason::Runaway, 1), "nothing is drawn, so nothing is tried again");

    let asked = patient.set("max_frames", 20);
    let (reason, most, attempts) = ending(&engine, &asked);
    assert_eq!((reason, most, attempts), (FinishReason::Length, 20, 1), "as many as were asked for");
}

/// On a thread of its own the codec makes the same chunks.
#[test]
fn the_codec_runs_beside_the_talker() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine("custom_voice", &folder);
    let long = "This is one of many sentences that say nothing new. ".repeat(9);
    for whole in [false, true] {
        let o = |beside| Options { whole, ..options(70) }.set("codec_beside", beside);
        // The first text makes what is kept of the prompt.
        engine.speak(&long, &o(false)).expect("speaks");
        let chunks = |beside| engine.stream(&long, &o(beside)).expect("speaks").collect::<Vec<_>>();
        let (after, beside) = (chunks(false), chunks(true));
        assert!(after.len() >= 6 && after.len() == beside.len());
        for (a, b) in after.into_iter().zip(beside) {
            assert!(a.expect("speaks") == b.expect("speaks"), "samples, counters and all");
        }
    }
}

/// What texts have in common is read once, and what they become is the same.
#[test]
fn prompts_that_begin_alike_are_read_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = qwen3_tts_goldens().join("cases/ref.wav");
    for variant in ["custom_voice", "voice_design", "base"] {
        let engine = engine(variant, &folder);
        let (warm, cold) = (&engine, || Engine::open(folder.path()).expect("a whole model"));
        let base = variant == "base";
        let words = [None, Some("once upon a time")];
        let cloned = |words| base.then(|| engine.clone_voice(&recording, words).expect("a voice"));
        for words in &words[..1 + usize::from(base)] {
            let instruct = (!base).then(|| "a calm voice".to_owned());
            let o = Options { cloned: cloned(*words), ..options(9) }
                .with(orate::qwen3_tts::Options { instruct, ..Default::default() });
            let mut rows = vec![];
            for text in ["Hello there.", "Another text, which is longer.", "Hello there."] {
                let chunks = |e: &Engine| -> Vec<orate::Chunk> {
                    e.stream(text, &o).expect("speaks").map(|c| c.expect("speaks")).collect()
                };
                let (kept, fresh) = (chunks(warm), chunks(&cold()));
                assert!(kept.iter().map(|c| &c.samples).eq(fresh.iter().map(|c| &c.samples)), "{variant}");
                rows.push(kept.iter().map(|c| c.prefix_rows).collect::<Vec<_>>());
                assert!(fresh.iter().all(|c| c.prefix_rows == 0));
            }
            assert!(
                rows[0].iter().all(|n| *n == 0) && rows[1][0] >= 8 && rows[1][1..].iter().all(|n| *n == 0)
            );
            assert_eq!(rows[1], rows[2], "{variant}");
        }
    }
}

/// Later pieces of a described voice continue after the first one, in talker and codec.
#[test]
fn a_described_voice_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine("voice_design", &folder);
    let model = &engine.model_as::<Qwen3Tts>().expect("of this family");
    let text = "Once upon a time there was a king. ".repeat(12);
    let instruct = Some("somebody old who whispers".to_owned());
    let instruct = instruct.as_deref();
    let with = |seed| {
        let own = orate::qwen3_tts::Options {
            retries: Some(0),
            instruct: instruct.map(str::to_owned),
            ..Default::default()
        };
        Options { seed, silence: 0.0, ..raw() }.with(own)
    };
    let speak = |seed| -> Vec<orate::Chunk> {
        let stream = engine.stream(text.trim_end(), &with(seed)).expect("speaks");
        stream.map(|c| c.expect("speaks")).collect()
    };
    let ends = |chunks: &[orate::Chunk]| chunks.iter().filter_map(|c| c.finish).collect::<Vec<_>>();
    // A model of random weights ends by chance.
    let (seed, chunks) = (0..100)
        .map(|seed| (seed, speak(seed)))
        .find(|(_, chunks)| ends(chunks) == [FinishReason::Stop; 2])
        .expect("one in some seeds");
    let texts = [0, 1].map(|i| &*chunks.iter().find(|c| c.index == i).expect("two pieces").text);

    // The same by hand.
    let settings = Settings::new(&model.talking().expect("talks").generation, seed);
    let request = |text, speaker| Request { text, speaker, language: None, instruct, feeding: None };
    let codes = |prompt: &Prompt, index| {
        let seed = orate_models::piece_seed(seed, index);
        let settings = Settings { seed, max_frames: prompt.frame_budget(), ..settings };
        let mut session = model.start(prompt, &settings).expect("starts");
        let (mut all, mut frame) = (vec![], vec![]);
        while session.next_frame(&mut frame).expect("goes on") == Step::Frame {
            all.extend_from_slice(&frame);
        }
        all
    };
    let first = codes(&model.prompt(&request(texts[0], Speaker::Described)).expect("a prompt"), 0);
    let speaker = Speaker::GoingOn { transcript: texts[0], codes: &first };
    let second = codes(&model.prompt(&request(texts[1], speaker)).expect("a prompt"), 1);
    let before = &first[first.len().saturating_sub(25 * 16)..];
    let mut codec = model.codec().stream_after(before, &|| true).expect("decodes").expect("nobody stops it");
    let mut wanted = vec![];
    codec.push_last(&second, &mut wanted).expect("decodes");
    let heard: Vec<f32> =
        chunks.iter().filter(|c| c.index == 1).flat_map(|c| c.samples.iter().copied()).collect();
    assert_eq!(heard, wanted);
}
