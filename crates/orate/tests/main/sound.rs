//! From pieces to the sound that is heard: finishing, silence, scripts, times of words.

use crate::common::{built_in, tiny};
use orate::{Chunk, Engine, Finish, Options, Result, Script, Source, Speaker, TimedWord};
use orate_audio::{integrated_loudness, true_peak_dbtp};

fn chunks(engine: &Engine, text: &str, options: &Options) -> Vec<Chunk> {
    let stream = engine.stream(text, options).expect("can be spoken");
    stream.map(|chunk| chunk.expect("spoken")).collect()
}

fn script(engine: &Engine, text: &str) -> Vec<Chunk> {
    let script = Script::tagged(text).expect("has no wrong tags");
    let options = Options { word_times: true, ..Options::default() };
    let stream = engine.stream_script(&script, &options, &engine.own_cast(&options)).expect("can be spoken");
    stream.map(|chunk| chunk.expect("spoken")).collect()
}

fn samples(chunks: &[Chunk]) -> Vec<f32> {
    chunks.iter().flat_map(|chunk| chunk.samples.iter().copied()).collect()
}

fn words(chunks: &[Chunk]) -> Vec<TimedWord> {
    chunks.iter().flat_map(|chunk| chunk.words.iter().cloned()).collect()
}

/// Times of the longest run of zeros, in samples.
fn longest_silence(samples: &[f32]) -> std::ops::Range<usize> {
    let mut longest = 0..0;
    let mut start = 0;
    for (i, x) in samples.iter().enumerate() {
        if x.abs() > 1e-4 {
            start = i + 1;
        } else if i + 1 - start > longest.len() {
            longest = start..i + 1;
        }
    }
    longest
}

#[test]
fn sound_has_the_loudness_and_the_margins() {
    let engine = built_in(2);
    for text in
        ["Good morning.", "How are you today?\n\nI am fine, thank you, and so is everybody else here."]
    {
        for whole in [true, false] {
            let sound = samples(&chunks(&engine, text, &Options { whole, ..Options::default() }));
            let loudness = integrated_loudness(&sound, 24_000).expect("a rate");
            // A stream goes by its first sentence, which may be louder than the rest.
            let most = if whole { 0.2 } else { 2.0 };
            assert!((loudness + 18.0).abs() < most, "{text}: {loudness} LUFS");
            assert!(true_peak_dbtp(&sound) < -0.9, "{text}");
            let quiet = |at: &mut dyn Iterator<Item = &f32>| at.take_while(|x| x.abs() < 0.003).count();
            let ends = [quiet(&mut sound.iter()), quiet(&mut sound.iter().rev())];
            // The margins are 50 and 150 ms. Weak sounds may be below this level.
            assert!(ends[0] < 3000 && (1000..7000).contains(&ends[1]), "{text}: {ends:?}");
        }
    }
}

#[test]
fn volume_is_not_leveled_away() {
    let engine = built_in(2);
    let loudness = |ssml: &str, whole| {
        let script = Script::ssml(ssml, None).expect("is SSML");
        let options = Options { whole, ..Options::default() };
        let stream = engine.stream_script(&script, &options, &engine.own_cast(&options));
        let chunks: Vec<_> = stream.expect("can be spoken").map(|chunk| chunk.expect("spoken")).collect();
        integrated_loudness(&samples(&chunks), 24_000).expect("a rate")
    };
    for whole in [true, false] {
        let all = loudness("<speak><prosody volume='-24dB'>Hello one two.</prosody></speak>", whole);
        assert!((all + 18.0 + 24.0).abs() < 0.5, "{all} LUFS, whole: {whole}");
        let [some, none] = ["-24dB", "0dB"].map(|volume| {
            let quiet = format!("<prosody volume='{volume}'>Hello one two.</prosody>");
            loudness(&format!("<speak>Good morning, everybody. {quiet}</speak>"), whole)
        });
        // The gate of the meter leaves out the quiet part.
        assert!((some - none).abs() < 2.0, "{some} and {none} LUFS, whole: {whole}");
    }
}

#[test]
fn raw_sound_is_that_of_the_model() {
    let engine = built_in(2);
    let text = "First one.\n\nThen another.";
    let options = Options { finish: Finish::NONE, silence: 0.5, ..Options::default() };
    let mut pieces = engine.model().clone().speak(text, &options).expect("can be spoken");
    let mut want = vec![];
    while let Some(chunk) = pieces.next() {
        want.extend(vec![0.0; if want.is_empty() { 0 } else { 12_000 }]);
        want.extend(chunk.expect("spoken").samples);
    }
    assert!(samples(&chunks(&engine, text, &options)) == want);
    assert!(engine.speak(text, &options).expect("spoken").samples == want);
}

#[test]
fn chunks_know_where_they_are() {
    let engine = built_in(2);
    let chunks = chunks(&engine, "One. Two.\n\nThree.", &Options::default());
    assert_eq!(chunks.len(), 3);
    let mut at = 0;
    for (i, chunk) in chunks.iter().enumerate() {
        assert_eq!((chunk.start, chunk.index, chunk.ends_piece), (at, i, true));
        at += chunk.samples.len();
    }
    // A text that goes on has the same pieces, by the numbers of its pieces.
    let options = Options { finish: Finish::NONE, ..Options::default() };
    let all = super::sound::chunks(&engine, "One. Two.", &options);
    let rest = super::sound::chunks(&engine, "Two.", &Options { first_piece: 1, ..options });
    assert!(rest[0].samples == all[1].samples && rest[0].index == 1);
}

#[test]
fn words_have_times() {
    let engine = built_in(2);
    let text = "On Monday, Dr. Smith paid $3.50.\n\nWas it \u{201C}enough\u{201D}?";
    let options = Options { word_times: true, ..Options::default() };
    let chunks = chunks(&engine, text, &options);
    let words = words(&chunks);
    let shown: Vec<&str> = words.iter().map(|timed| timed.word.display.as_str()).collect();
    assert_eq!(
        shown,
        ["On", "Monday,", "Dr.", "Smith", "paid", "$3.50.", "Was", "it", "\u{201C}enough\u{201D}?"]
    );
    let mut before = 0.0;
    for timed in &words {
        assert_eq!(&text[timed.word.span.clone()], timed.word.text);
        assert!(before <= timed.start && timed.start < timed.end, "{timed:?} after {before}");
        assert_eq!(timed.source, Source::Attention);
        before = timed.end;
    }
    assert_eq!((words[5].piece, words[6].piece), (0, 1));
    // "three dollars and fifty cents" takes longer than "paid".
    let length = |i: usize| words[i].end - words[i].start;
    assert!(length(5) > 2.0 * length(4), "{words:?}");
    // The pause between the pieces is where the words say.
    let silence = longest_silence(&samples(&chunks));
    let [start, end] = [silence.start, silence.end].map(|at| at as f64 / 24_000.0);
    assert!(words[5].end < start + 0.2 && words[6].start > end - 0.2, "{start} to {end}: {words:?}");
    // Without being asked for, there are none.
    assert!(super::sound::words(&super::sound::chunks(&engine, text, &Options::default())).is_empty());
}

#[test]
fn other_models_have_estimates() {
    let engine = tiny("tiny");
    let options = Options { word_times: true, ..Options::default() };
    let words = words(&chunks(&engine, "Random weights speak, too.", &options));
    assert_eq!(words.len(), 4, "{words:?}");
    assert!(words.iter().all(|timed| timed.source == Source::Estimated && timed.start <= timed.end));
}

#[test]
fn scripts_have_pauses_rates_and_marks() {
    let engine = built_in(2);
    let plain = samples(&script(&engine, "One moment. Go on."));
    let pause = script(&engine, "One moment. [pause:2s] Go on. [pause:1s]");
    let silence = longest_silence(&samples(&pause));
    assert!((48_000..56_000).contains(&silence.len()), "{silence:?}");
    let length = samples(&pause).len();
    assert!((plain.len() + 48_000 + 24_000 - 12_000..plain.len() + 72_000).contains(&length), "{length}");
    // A sentence is not interrupted where its rate changes.
    let [within, between] =
        ["[rate:1.2] One moment [rate:1.0] please.", "[rate:1.2] One moment. [rate:1.0] Please."]
            .map(|text| longest_silence(&samples(&script(&engine, text))).len());
    let usual = (f64::from(Options::default().silence) * 24_000.0) as usize;
    assert!(within + usual / 2 < between, "{within} and {between} of {usual} samples");
    let fast = samples(&script(&engine, "[rate:1.5] One moment. Go on."));
    assert!(fast.len() * 10 < plain.len() * 9, "{} samples, {} without", fast.len(), plain.len());
    // Words are found in the text with its tags.
    let text = "[rate:1.2] Wait, [pause:1s] here.";
    for timed in words(&script(&engine, text)) {
        assert_eq!(&text[timed.word.span.clone()], timed.word.text);
    }
    let ssml = "<speak>Before. <mark name='a'/>After the mark. <mark name='end'/></speak>";
    let script = Script::ssml(ssml, None).expect("is SSML");
    let options = Options::default();
    let stream = engine.stream_script(&script, &options, &engine.own_cast(&options)).expect("can be spoken");
    let chunks: Vec<Chunk> = stream.map(|chunk| chunk.expect("spoken")).collect();
    let marks: Vec<_> = chunks.iter().flat_map(|chunk| chunk.marks.clone()).collect();
    let after = words(&chunks).into_iter().find(|timed| timed.word.text == "After").expect("is spoken");
    assert_eq!((marks[0].name.as_str(), marks[0].time), ("a", after.start));
    assert_eq!(marks[1].name, "end");
    assert!(marks[1].time > after.end && marks.len() == 2);
    let options = Options { word_times: true, ..options };
    let stream = engine.stream_script(&script, &options, &engine.own_cast(&options)).expect("can be spoken");
    let with_words = stream.flat_map(|chunk| chunk.expect("spoken").marks);
    assert_eq!(with_words.collect::<Vec<_>>(), marks);
}

#[test]
fn another_model_speaks_for_a_voice() {
    let (engine, guest) = (built_in(2), tiny("tiny"));
    assert_ne!(engine.sample_rate(), guest.sample_rate());
    let script = Script::tagged("Who is there? [voice:guest] Me. [voice:nobody] Fine.").expect("is right");
    let options = Options { finish: Finish::NONE, silence: 0.0, ..Options::default() };
    let cast = |name: &str| -> Result<Speaker> {
        match name {
            "guest" => Ok(Speaker { engine: guest.clone(), options: options.clone() }),
            other => engine.own_cast(&options)(other),
        }
    };
    // Everything is checked before anything is spoken.
    let refused = engine.stream_script(&script, &options, &cast).err().expect("nobody").to_string();
    assert!(refused.contains("nobody"), "{refused}");
    let script = Script { segments: script.segments[..2].to_vec(), warnings: vec![] };
    let stream = engine.stream_script(&script, &options, &cast).expect("can be spoken");
    let chunks: Vec<Chunk> = stream.map(|chunk| chunk.expect("spoken")).collect();
    let alone = guest.speak("Me.", &Options { first_piece: 1, ..options.clone() }).expect("spoken");
    let at_rate = alone.samples.len() * 24_000 / guest.sample_rate() as usize;
    assert!(chunks[1].samples.len().abs_diff(at_rate) < 3, "{} {at_rate}", chunks[1].samples.len());
    let empty = Script::tagged("[pause:1s]").expect("is right");
    let refused = engine.stream_script(&empty, &options, &cast).err().expect("nothing to say").to_string();
    assert!(refused.contains("nothing to say"), "{refused}");
}

#[test]
fn pauses_and_gains_of_changed_scripts_are_checked() {
    let engine = built_in(2);
    let options = Options::default();
    let spoken = |change: &dyn Fn(&mut orate::Segment)| {
        let mut script = Script::tagged("One. [pause:1s] Two.").expect("is right");
        script.segments.iter_mut().for_each(change);
        let stream = engine.stream_script(&script, &options, &engine.own_cast(&options));
        stream.map(|stream| stream.map(|chunk| chunk.expect("spoken").samples.len()).sum::<usize>())
    };
    // A pause of this length does not fit into memory.
    for pause in [1e9, f32::NAN, f32::INFINITY, -1.0] {
        let e = spoken(&|segment| segment.pause_after = pause).expect_err("no pause");
        assert_eq!(e.to_string(), format!("pause after a segment is {pause}; choose 0 to 10 seconds"));
        assert_eq!(e.kind(), orate::ErrorKind::InvalidInput);
    }
    for gain in [f32::NAN, f32::INFINITY, 25.0, -97.0] {
        let e = spoken(&|segment| segment.gain_db = gain).expect_err("no gain");
        assert_eq!(e.to_string(), format!("gain of a segment is {gain}; choose -96 to 24 dB"));
    }
    let most = spoken(&|segment| (segment.pause_after, segment.gain_db) = (10.0, -96.0)).expect("spoken");
    assert!(most > 20 * 24_000, "{most} samples");
    // Segments without sound add their pauses up.
    let with_silence = |count: usize| {
        let mut script = Script::tagged("One. [pause:10s] Two.").expect("is right");
        let silent = orate::Segment { text: orate::Traced::default(), ..script.segments[0].clone() };
        script.segments.splice(1..1, vec![silent; count]);
        engine.stream_script(&script, &options, &engine.own_cast(&options)).map(drop)
    };
    let e = with_silence(60).expect_err("too long").to_string();
    assert_eq!(e, "sum of pauses is 610; choose at most 600 seconds between two texts");
    with_silence(59).expect("long enough");
}
