//! The built-in voice speaks, as a user would have it: what comes out is speech, and the promises about
//! seeds, threads, pieces, errors and cancelling hold.

use crate::common::raw;
use crate::common::{built_in, engine, relative_error, rms, tiny};
use orate::hooks::F32_TOLERANCE;
use orate::{
    Audio, Cancel, DeviceChoice, Engine, EngineOptions, Error, ErrorKind, ModelSource, Options, Precision,
    PrecisionChoice, PrecisionPolicy,
};
use orate_cpu::Isa;
use std::time::{Duration, Instant};

const SENTENCE: &str = "Dr. Smith paid $3.50 at 10:45 on 5 May 2024.";

fn speak(engine: &Engine, text: &str, seed: u64) -> Audio {
    engine.speak(text, &Options { seed, ..raw() }).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Seconds at the start (or of the reversed samples: at the end) that stay below a hundredth of full scale.
fn quiet<'a>(samples: impl Iterator<Item = &'a f32>, rate: u32) -> f64 {
    samples.take_while(|x| x.abs() < 0.01).count() as f64 / f64::from(rate)
}

/// Power from `low` to `high` Hz, from the discrete Fourier transform of windows of 512 samples.
fn band(audio: &Audio, low: f64, high: f64) -> f64 {
    const N: usize = 512;
    let turn = |i: usize| std::f64::consts::TAU * i as f64 / N as f64;
    let cosines: Vec<f64> = (0..N).map(|i| turn(i).cos()).collect();
    let hz = f64::from(audio.sample_rate) / N as f64;
    let bins = (low / hz) as usize..(high / hz) as usize;
    let mut power = 0.0;
    for window in audio.samples.chunks_exact(N) {
        for k in bins.clone() {
            let (mut re, mut im) = (0.0, 0.0);
            for (i, x) in window.iter().enumerate() {
                let x = f64::from(*x) * (0.5 - 0.5 * cosines[i]);
                re += x * cosines[i * k % N];
                im += x * cosines[(i * k + N / 4) % N];
            }
            power += re * re + im * im;
        }
    }
    power
}

#[test]
fn a_sentence_is_speech() {
    let engine = built_in(2);
    let chunks: Vec<_> = engine.stream(SENTENCE, &raw()).expect("can be spoken").collect();
    assert_eq!(chunks.len(), 1);
    let text = &chunks[0].as_ref().expect("spoken").text;
    assert!(
        text.to_lowercase().contains("three dollars") && text.to_lowercase().contains("doctor"),
        "{text}"
    );

    let audio = engine.say(SENTENCE).expect("spoken");
    assert_eq!(audio.sample_rate, 24_000);
    let (seconds, loudness) = (audio.duration(), 20.0 * rms(&audio.samples).log10());
    let peak = audio.samples.iter().fold(0f32, |m, x| m.max(x.abs()));
    let ends = [
        quiet(audio.samples.iter(), audio.sample_rate),
        quiet(audio.samples.iter().rev(), audio.sample_rate),
    ];
    let total = band(&audio, 0.0, 12_000.0);
    let share = |low, high| band(&audio, low, high) / total;
    let bands = [share(0.0, 80.0), share(80.0, 1000.0), share(1000.0, 4000.0), share(4000.0, 10_000.0)];
    println!("{seconds} s, {loudness} dB, peak {peak}, quiet {ends:?} s, bands {bands:?}: {text}");
    // About 85 characters when read aloud, at 12 to 20 a second.
    assert!((3.5..8.5).contains(&seconds), "{seconds} s");
    assert!((-32.0..-12.0).contains(&loudness), "{loudness} dB");
    assert!(audio.samples.iter().all(|x| x.is_finite()) && peak < 0.999, "peak {peak}");
    assert!(ends[0] <= 0.3 && ends[1] <= 0.8, "quiet for {ends:?} s at the ends");
    // Voices have most of their power below 1 kHz, formants up to 4 kHz, hiss above, and no rumble; noise
    // would be flat, and hum would be in one band.
    assert!(bands[0] < 0.15 && bands[1] > 0.4 && bands[2] > 0.01 && bands[3] > 0.0005, "bands {bands:?}");
    // Speech comes and goes: a steady sound would have as much power in its quietest fifth as in its loudest.
    let mut levels: Vec<f64> = audio.samples.chunks_exact(480).map(rms).collect();
    levels.sort_by(f64::total_cmp);
    let n = levels.len();
    assert!(levels[n / 10] * 5.0 < levels[n * 9 / 10], "{} and {}", levels[n / 10], levels[n * 9 / 10]);
}

#[test]
fn a_letter_alone_is_heard() {
    let engine = built_in(2);
    for (text, seed) in [("X", 0), ("a", 9), ("I", 2), ("b!", 3), ("s", 4), ("K.", 5), ("O?", 9)] {
        let loudest = speak(&engine, text, seed).samples.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        assert!(loudest > 0.1, "{text} with seed {seed}: {loudest}");
    }
}

/// Hurried like this, the model leaves out some of these words: they are then spoken again.
#[test]
fn short_words_are_heard_at_any_speed() {
    let (engine, mut again) = (built_in(2), 0);
    for text in ["Hi", "On", "We", "Oh", "Me"] {
        for (speed, seed) in [(1.8, 0), (2.0, 0), (2.0, 1)] {
            let options = Options { seed, ..raw().set("speed", speed) };
            let mut chunks = engine.stream(text, &options).expect("can be spoken");
            let chunk = chunks.next().expect("a piece").expect("spoken");
            let loudest = chunk.samples.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            assert!(loudest > 0.02, "{text} at {speed} with seed {seed}: {loudest}");
            again += chunk.attempts - 1;
        }
    }
    assert!(again > 0, "none was left out");
}

#[test]
fn longer_texts_take_longer_and_speed_scales() {
    let engine = built_in(2);
    let seconds = |text: &str, speed: f32| {
        let options = raw().set("speed", speed);
        engine.speak(text, &options).expect("spoken").duration()
    };
    let (short, long) = (seconds("Good morning.", 1.0), seconds(SENTENCE, 1.0));
    assert!(short > 0.3 && long > 2.0 * short, "{short} and {long} s");
    let (slow, fast) = (seconds("Good morning.", 0.7), seconds("Good morning.", 2.0));
    assert!(
        (slow / short - 1.0 / 0.7).abs() < 0.01 && (fast / short - 0.5).abs() < 0.01,
        "{slow} {short} {fast}"
    );
}

#[test]
fn a_seed_gives_the_same_samples_whatever_the_threads() {
    let text = "Seeds and threads.";
    let want = speak(&built_in(1), text, 5);
    for threads in [2, 3] {
        assert!(speak(&built_in(threads), text, 5) == want, "{threads} threads give other samples");
    }
    let engine = built_in(2);
    assert_eq!(speak(&engine, text, 6).samples.len(), want.samples.len());
    assert!(speak(&engine, text, 6) != want, "another seed gives other samples");

    // Four threads share one engine; each speaks something else in between.
    let others = ["One.", "Two words.", "Three words now.", "And four of them."];
    std::thread::scope(|scope| {
        for other in others {
            let (engine, want) = (&engine, &want);
            scope.spawn(move || {
                let alone = speak(&built_in(1), other, 1);
                for _ in 0..2 {
                    assert!(speak(engine, other, 1) == alone, "{other}");
                    assert!(speak(engine, text, 5) == *want, "beside {other}");
                }
            });
        }
    });
}

#[test]
fn chunks_joined_are_the_whole_and_a_batch_is_its_parts() {
    let engine = built_in(2);
    let text = "First paragraph.\n\nThe second one is a little longer.\n\nThird!";
    let options = Options { seed: 3, silence: 0.25, ..raw() };
    let whole = engine.speak(text, &options).expect("spoken");
    let mut stream = engine.stream(text, &options).expect("can be spoken");
    let (pieces, characters) = (stream.remaining(), stream.remaining_chars());
    assert!(pieces >= 2 && characters > 40, "{pieces} pieces, {characters} characters");
    let mut joined = vec![];
    for i in 0..pieces {
        let chunk = stream.next().expect("as many as announced").expect("spoken");
        assert_eq!((chunk.index, stream.remaining()), (i, pieces - 1 - i));
        let silence = if i == 0 { 0 } else { 6000 };
        assert!(chunk.samples[..silence].iter().all(|x| *x == 0.0) && chunk.samples[silence..].len() > 6000);
        joined.extend_from_slice(&chunk.samples);
    }
    assert!(stream.next().is_none() && stream.next().is_none());
    assert!(joined == whole.samples, "the chunks of stream() are the samples of speak()");

    let texts = ["Alone.", text, "Together with others."];
    let batch = engine.speak_batch(&texts, &options).expect("spoken");
    assert_eq!(batch.len(), texts.len());
    for (text, got) in texts.iter().zip(batch) {
        assert!(got == engine.speak(text, &options).expect("spoken"), "{text}");
    }
    assert!(engine.speak_batch(&[], &options).expect("nothing to do").is_empty());
    assert!(engine.speak_batch(&["Fine.", ""], &options).is_err());
}

#[test]
fn pieces_have_noise_of_their_own() {
    let engine = tiny("tiny");
    let options = Options { silence: 0.0, ..raw() };
    let chunks: Vec<_> = engine
        .stream("Same words.\n\nSame words.", &options)
        .expect("can be spoken")
        .map(|c| c.expect("spoken").samples)
        .collect();
    assert!(chunks.len() < 2 || chunks[0] != chunks[1], "the second piece repeats the first");
}

#[test]
fn trimming_drops_the_rest_of_the_last_frame() {
    let engine = built_in(1);
    let options = |trim| raw().set("trim", trim);
    let trimmed = engine.speak("Trim me.", &options(true)).expect("spoken").samples;
    let whole = engine.speak("Trim me.", &options(false)).expect("spoken").samples;
    let frame = engine
        .model_as::<orate::supertonic::Supertonic>()
        .expect("Supertonic")
        .files()
        .config
        .samples_per_latent();
    assert_eq!(whole.len() % frame, 0);
    assert!(whole.len() - trimmed.len() < frame && whole[..trimmed.len()] == trimmed[..]);
}

#[test]
fn cancelling_from_another_thread_stops_soon() {
    let engine = built_in(1);
    engine.warm_up().expect("spoken");
    let cancel = Cancel::new();
    let text = "This goes on and on, one sentence after the other, until somebody stops it. ".repeat(50);
    let options = Options { cancel: Some(cancel.clone()), ..raw() }.set("steps", 100);
    let (result, late) = std::thread::scope(|scope| {
        let speaker = scope.spawn(|| (engine.speak(&text, &options), Instant::now()));
        std::thread::sleep(Duration::from_millis(300));
        let flipped = Instant::now();
        cancel.cancel();
        let (result, ended) = speaker.join().expect("no panic");
        (result, ended.saturating_duration_since(flipped))
    });
    let e = result.expect_err("it was stopped long before the end");
    assert!(matches!(e, Error::Cancelled) && e.kind() == ErrorKind::Cancelled, "{e}");
    assert!(late < Duration::from_secs(1), "stopped after {late:?}");
    assert!(cancel.is_cancelled());
    assert!(matches!(engine.speak("More.", &options), Err(Error::Cancelled)), "the switch stays flipped");
    assert!(engine.say("The engine still works.").is_ok());
    // A stream that failed is over.
    let mut stream = engine.stream(&text, &options).expect("can be spoken");
    assert!(matches!(stream.next(), Some(Err(Error::Cancelled))) && stream.next().is_none());
}

/// Message of the error that `options` and `text` give.
#[track_caller]
fn refused(engine: &Engine, text: &str, options: Options) -> String {
    let e = match engine.stream(text, &options) {
        Ok(_) => panic!("`{text}` with {options:?} is accepted"),
        Err(e) => e,
    };
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    e.to_string()
}

#[test]
fn options_out_of_range_are_refused_before_speaking() {
    for engine in [built_in(1), tiny("tiny")] {
        for speed in [0.0, -1.0, 0.69, 2.01, 100.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let e = refused(&engine, "Hello.", raw().set("speed", speed));
            assert!(e.contains("speed") && e.contains("0.7") && e.contains('2'), "{e}");
        }
        for steps in [0, 101, usize::MAX] {
            let e = refused(&engine, "Hello.", raw().set("steps", steps));
            assert!(e.contains("steps") && e.contains("100") && e.contains(&steps.to_string()), "{e}");
        }
        for silence in [-1.0, 10.1, 1e9, f32::NAN, f32::INFINITY] {
            let e = refused(&engine, "Hello.", Options { silence, ..raw() });
            assert!(e.contains("silence") && e.contains("10"), "{e}");
        }
        for voice in ["nobody", "", "no/such/file.json", "nobody:0.5+nobody:0.5"] {
            let e = refused_voice(&engine, voice);
            assert!(voice.is_empty() || e.contains(voice.split(':').next().expect("a name")), "{voice}: {e}");
        }
        for language in ["xx", "xx-US", "en US"] {
            let language = Some(language.to_owned());
            let e = refused(&engine, "Hello.", Options { language, ..raw() });
            assert!(e.contains("language") && e.contains("en"), "{e}");
        }
    }
}

#[test]
fn languages_are_known_by_code_tag_and_name() {
    let samples = |engine: &Engine, language: Option<&str>| {
        let options = Options { language: language.map(str::to_owned), ..raw() };
        engine.speak("Hola.", &options).unwrap_or_else(|e| panic!("{language:?}: {e}")).samples
    };
    let model = tiny("tiny");
    let [usual, spanish] = [None, Some("es")].map(|language| samples(&model, language));
    assert!(usual != spanish);
    for language in ["ES", "es-MX", "es_ES.UTF-8", "Spanish", "spa"] {
        assert!(samples(&model, Some(language)) == spanish, "{language}");
    }
    for language in ["en", "English", "auto", ""] {
        assert!(samples(&model, Some(language)) == usual, "{language}");
    }
    for engine in [built_in(1), tiny("tiny1")] {
        let usual = samples(&engine, None);
        for language in ["EN", "english", "en-US", "AUTO"] {
            assert!(samples(&engine, Some(language)) == usual, "{language}");
        }
    }
    // Markup goes the same way.
    let script = |text: &str| {
        let script = orate::Script::ssml(text, None).expect("SSML");
        let stream = model.stream_script(&script, &raw(), &model.own_cast(&raw())).expect("speaks");
        stream.flat_map(|chunk| chunk.expect("a chunk").samples).collect::<Vec<f32>>()
    };
    for language in ["es-MX", "Spanish", "SPA"] {
        let spoken = script(&format!("<speak xml:lang='{language}'>Hola.</speak>"));
        assert!(spoken == spanish, "{language}");
    }
    let german = Options { language: Some("de".to_owned()), ..raw() };
    assert!(refused(&built_in(1), "Hallo.", german.clone()).contains("English"));
    // Supertonic 1 has no languages to choose from.
    assert!(refused(&tiny("tiny1"), "Hallo.", german).contains("English"));
    let english = Options { language: Some("en".to_owned()), ..raw() };
    assert!(tiny("tiny1").speak("Hello.", &english).is_ok());
}

/// A voice's error, of any kind: files that do not exist are the system's.
#[track_caller]
fn refused_voice(engine: &Engine, voice: &str) -> String {
    let options = Options { voice: Some(voice.to_owned()), ..raw() };
    match engine.stream("Hello.", &options) {
        Ok(_) => panic!("voice `{voice}` is accepted"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn texts_that_cannot_be_spoken_are_refused() {
    for engine in [built_in(1), tiny("tiny")] {
        for nothing in ["", " \n\t ", "...", "\u{200B}"] {
            refused(&engine, nothing, raw());
        }
        refused(&engine, "😀🎉👍🏽", raw());
    }
    let engine = built_in(1);
    let e = refused(&engine, "The word 你好 is Chinese, and Ж is Cyrillic.", raw());
    assert!(e.contains('你') && e.contains('好') && e.contains('Ж'), "{e}");
    // What can be said is, if asked for.
    let skip = raw().set("skip_unknown", true);
    assert!(engine.speak("Hello 你好.", &skip).expect("without two characters").duration() > 0.2);
    refused(&engine, "你好", skip);
    // Emoji and drawn signs beside words are not read, and do not stop the words.
    for engine in [engine, tiny("tiny"), tiny("tiny1")] {
        let say = |text: &str| engine.speak(text, &raw()).unwrap_or_else(|e| panic!("{text}: {e}")).samples;
        let plain = say("Good morning");
        for text in ["Good morning 😀", "Good morning ⭐", "Good⏰morning", "Good👍🏽morning 👍🏽"]
        {
            assert!(say(text) == plain, "{text}");
        }
    }
}

#[test]
fn voices_mix() {
    let engine = tiny("tiny");
    let names: Vec<_> = engine.voices().iter().map(|v| (v.name.clone(), v.is_default)).collect();
    assert_eq!(names, [("F1".to_owned(), true), ("M1".to_owned(), false)]);
    let with = |voice: &str| {
        let options = Options { voice: Some(voice.to_owned()), ..raw() };
        engine.speak("Mixed voices.", &options).unwrap_or_else(|e| panic!("{voice}: {e}")).samples
    };
    let (f, m, mix) = (with("F1"), with("M1"), with("F1:0.7+M1:0.3"));
    assert!(mix != f && mix != m && f != m);
    assert!(mix == with("F1:0.7 + M1:0.3"));
    assert!(with("F1:1+M1:0") == f && with("F1:0+M1:5") == m);
    let default = engine.speak("Mixed voices.", &raw()).expect("spoken").samples;
    assert!(f == default, "the first voice is the default");
    let model = engine.model_as::<orate::supertonic::Supertonic>().expect("of this family");
    let style = |voice: &str| model.voice(voice).expect("known").style_dp.clone();
    let (a, b, c) = (style("F1"), style("M1"), style("F1:0.7+M1:0.3"));
    assert!(a.iter().zip(&b).zip(&c).all(|((a, b), c)| (0.7 * a + 0.3 * b - c).abs() < 1e-6));
    for bad in ["F1:0+M1:0", "F1:x", "F1+", "F1:-1+M1:2", "F1:1e999", "F1+nobody"] {
        assert!(!refused_voice(&engine, bad).is_empty());
    }
}

/// Instruction sets sum in different orders. Each may be [`F32_TOLERANCE`] from the truth at the end of the
/// chain, so two are at most twice that apart; measured are 3e-6 and 5e-6, as steps multiply what earlier
/// ones got wrong. A kernel with a wrong epsilon or an approximate function is further off.
const BETWEEN_INSTRUCTION_SETS: f64 = 2.0 * F32_TOLERANCE;

#[test]
fn instruction_sets_agree() {
    let all = Isa::available();
    let say = |isa: Isa| {
        let options = raw().set("trim", false);
        engine(ModelSource::BuiltIn, isa, 2)
            .speak("All processors say the same.", &options)
            .expect("spoken")
            .samples
    };
    let want = say(Isa::PORTABLE);
    for isa in all.into_iter().filter(|i| *i != Isa::PORTABLE) {
        let error = relative_error(&say(isa), &want);
        println!("{isa}: {error:.2e}");
        assert!(error < BETWEEN_INSTRUCTION_SETS, "{isa} differs by {error:.2e}");
    }
}

#[test]
fn patterns_that_are_like_no_weight_are_refused() {
    let pattern = || vec!["vocoder.*".to_owned()];
    let policy = PrecisionPolicy::uniform(Precision::F16);
    let choices: [PrecisionChoice; 4] = [
        PrecisionPolicy { allow: pattern(), ..policy.clone() }.into(),
        PrecisionPolicy { deny: pattern(), ..policy.clone() }.into(),
        PrecisionChoice::Auto { allow: pattern(), deny: vec![] },
        PrecisionChoice::Auto { allow: vec![], deny: pattern() },
    ];
    let open = |precision| {
        Engine::with_options(EngineOptions { device: DeviceChoice::Cpu, precision, ..Default::default() })
    };
    for precision in choices {
        let e = open(precision).expect_err("no such weight");
        assert!(e.to_string().contains("`vocoder.*`; no weight of this model"), "{e}");
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
    }
    let some =
        PrecisionPolicy { allow: vec!["tts.ae.*".to_owned()], deny: vec!["*.bias".to_owned()], ..policy };
    assert_eq!(open(some.clone().into()).expect("names of weights").precision(), &some);
}
