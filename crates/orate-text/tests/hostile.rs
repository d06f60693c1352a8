//! Hostile texts and files: no front end panics, hangs, or takes much more memory than its input and result.
//! An allocator counts memory, so these tests are a separate program.

use orate_testing::Counting;
use orate_testing::fuzz::{FRAGMENTS, Limits, fuzz};
use orate_text::captions::{self, Source, TimedWord};
use orate_text::chatterbox::multilingual::{self, Cangjie, LANGUAGES, Reading, Tools};
use orate_text::chatterbox::{self, GraphemeTokenizer, TurboTokenizer, Variant};
use orate_text::english::{self, Rules};
use orate_text::pieces;
use orate_text::qwen::{Part, QwenTokenizer};
use orate_text::supertonic::{self, UnicodeIndexer};
use orate_text::words;
use orate_text::{Lexicon, Script, TextError};
use std::path::Path;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory that the reader may use in addition to the text and its result.
const FIXED: usize = 1 << 20;

/// Texts of `len` bytes without an end of a sentence.
fn texts(len: usize) -> Vec<(&'static str, String)> {
    let fill = |start: &str, part: &str| start.to_owned() + &part.repeat((len - start.len()) / part.len());
    vec![
        ("address", fill("http://", "a.")),
        ("letters", fill("", "a.")),
        ("version", fill("", "1.")),
        ("groups", fill("", "1,000,")),
        ("words", fill("", "word ")),
        ("marks", fill("", "=")),
        ("money", fill("", "$")),
        ("brackets", fill("", "(<")),
        ("one word", fill("", "a")),
        ("lines", fill("", "\n")),
    ]
}

#[test]
fn the_reader_holds_no_more_than_the_text_and_its_result() {
    for (what, text) in texts(1 << 20) {
        let mut len = 0;
        let peak = Counting::peak_here(|| len = english::read_aloud(&text).len());
        // A growing result is reallocated: for a moment both copies exist.
        let limit = 3 * len.max(text.len()) + FIXED;
        println!("{what}: {:.1} bytes a byte, the result {:.1}", ratio(peak, &text), ratio(len, &text));
        assert!(peak <= limit, "{what}: {peak} bytes for {} of text and {len} of result", text.len());
    }
}

fn ratio(bytes: usize, text: &str) -> f64 {
    bytes as f64 / text.len() as f64
}

const LIMITS: Limits = Limits { growth: 400, fixed: 256 << 10 };

fn golden(file: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle");
    let path = root.join(file);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; it is part of the repository", path.display()))
}

fn sentences() -> Vec<Vec<u8>> {
    let text = "Dr. Smith paid $3.50 at 10:45 on 5 May 2024 (see www.example.com/a-b), \"World War II\" -- 5 km/h; \
                call +1 555-010-0123, or 192.168.0.1. 1 1/2 of 3/4, \u{bd}, 5'10\", -3\u{b0}C, 1990s, XIV, C#, a@b.org";
    vec![text.as_bytes().to_vec(), FRAGMENTS.concat().into_bytes(), "नमस्ते 漢字。 Zażółć 🙂".into()]
}

/// Every front end that accepts a text.
#[test]
fn hostile_texts_are_read() {
    let [vocab, merges, config] = tokenizer_files();
    let tokenizer = QwenTokenizer::from_files(&vocab, &merges, &config).expect("goldens");
    let knows = |c: char| c.is_ascii_alphabetic() || " .,?!'-;:\"".contains(c);
    fuzz("text", &sentences(), LIMITS, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let _ = english::speakable(&text, &Rules::default(), 168, knows).map_err(|e| e.to_string());
        let read = english::read_aloud(&text);
        assert!(!read.contains(|c: char| c.is_ascii_digit()), "a digit is left in {read:?}");
        let made = english::read(&text);
        assert_eq!(made.text(), read);
        let words = words::of(&text, 0..text.len(), Some(&made));
        assert!(words.iter().all(|word| text.get(word.span.clone()).is_some()));
        let timed = |word| TimedWord { word, start: 0.0, end: 0.1, source: Source::Estimated, piece: 0 };
        let _ = captions::srt(&words.into_iter().map(timed).collect::<Vec<_>>(), 1.0);
        let _ = supertonic::normalize(&text);
        assert!(pieces::at_most(&text, 40).iter().all(|piece| piece.chars().count() <= 40));
        let _ = tokenizer.encode(&[Part::Control(&text), Part::Text(&text)]);
    });
}

#[test]
fn hostile_markup_is_read_or_refused() {
    let ssml = "<?xml version='1.0'?><speak xml:lang='en-US'><p><s>Hi &amp; <mark name='a'/>you.</s></p>\
                <break time='500ms'/><voice name='F1'><prosody rate='+20%' volume='-3dB'>a \
                <sub alias='sequel'>SQL</sub> <say-as interpret-as='date' format='dmy'>5/4/2024</say-as>\
                </prosody></voice><![CDATA[<x>]]><audio src='x'><desc>no</desc>&#233;</audio>\
                <say-as interpret-as='cardinal'>1,234</say-as></speak>";
    let document = "<!DOCTYPE a [<!ENTITY b 'c'>]><speak>&b;</speak>";
    let samples = [ssml.into(), document.into(), b"<speak>".repeat(30)];
    let check = |script: Result<Script, TextError>| match script {
        Ok(script) => {
            for segment in script.segments {
                let spoken = segment.text.after(&segment.shown);
                assert!(spoken.source(0..spoken.text().len()).end <= 1 << 20);
            }
        }
        Err(e) => check_message(&e.to_string()),
    };
    fuzz("ssml", &samples, LIMITS, |bytes| check(Script::ssml(&String::from_utf8_lossy(bytes), None)));
    let tags = "[voice:F1] Who? [pause:1.5s][rate:1.1]\n\nMe. [lang:de-DE] [laugh] [pause:500ms] 漢".into();
    fuzz("tags", &[tags], LIMITS, |bytes| check(Script::tagged(&String::from_utf8_lossy(bytes))));
}

#[test]
fn damaged_lexicons_are_errors_or_lexicons() {
    let sample =
        "# names\nSQL = sequel\nnew york\tnoo york\nC++ = see plus plus\n東京 = とうきょう\ndon't = x\n";
    fuzz("lexicon", &[sample.into()], LIMITS, |bytes| match Lexicon::parse(bytes) {
        Ok(lexicon) => drop(lexicon.read(&String::from_utf8_lossy(bytes))),
        Err(e) => check_message(&e.to_string()),
    });
}

/// The files of Chatterbox's tokenizers: those of Turbo, and the multilingual one.
fn chatterbox_files() -> [Vec<u8>; 6] {
    let names = [
        "vocab.json",
        "merges.txt",
        "added_tokens.json",
        "special_tokens_map.json",
        "tokenizer_config.json",
        GRAPHEMES,
    ];
    names.map(|file| golden(&format!("chatterbox/golden/checkpoints/files/{file}")))
}

const GRAPHEMES: &str = "grapheme_mtl_merged_expanded_v1.json";

fn turbo(files: &[&[u8]]) -> Result<TurboTokenizer, TextError> {
    let [vocab, merges, added_tokens, special_tokens_map, tokenizer_config] = files else {
        panic!("five files");
    };
    TurboTokenizer::from_files(chatterbox::Files {
        vocab,
        merges,
        added_tokens,
        special_tokens_map,
        tokenizer_config,
    })
}

fn split(text: &str) -> Vec<&str> {
    text.split_inclusive(' ').collect()
}

fn readings(text: &str) -> Vec<Reading<'_>> {
    split(text).into_iter().map(|word| Reading { word, hiragana: "はな".into() }).collect()
}

#[test]
fn hostile_texts_are_read_by_chatterbox() {
    let files = chatterbox_files();
    let [turbo_files @ .., graphemes] = files.each_ref().map(|file| &file[..]);
    let turbo = turbo(&turbo_files).expect("goldens");
    let graphemes = GraphemeTokenizer::from_json(GRAPHEMES, graphemes).expect("goldens");
    let cangjie = golden("chatterbox/golden/checkpoints/files/Cangjie5_TC.json");
    let cangjie = Cangjie::from_json(&cangjie).expect("goldens");
    let all = Tools { cangjie: Some(&cangjie), words: Some(&split), readings: Some(&readings) };
    let mut samples = sentences();
    samples
        .push("[laugh] 你好，今天 [clear throat]… — “x” 今日は良い İSTANBUL ΟΔΟΣ 안녕 [SPACE][STOP]".into());
    fuzz("chatterbox-text", &samples, LIMITS, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        for variant in [Variant::English, Variant::Multilingual, Variant::Turbo] {
            let normal = chatterbox::punctuation(&text, variant);
            assert!(normal.ends_with(|c| !char::is_whitespace(c)), "{normal:?}");
            let tokens = turbo.encode(&normal);
            assert!(tokens.ids.len() <= 1024 && tokens.ids.iter().all(|id| (*id as usize) < turbo.rows()));
            assert!(turbo.unknown_tags(&normal).len() <= 16);
            for language in ["zh", "ja", "ko", "tr", LANGUAGES[bytes.len() % LANGUAGES.len()]] {
                for tools in [all, Tools::default()] {
                    let prepared = multilingual::prepare(&normal, Some(language), tools).expect(language);
                    let ids = graphemes.encode(&prepared.text);
                    assert!(ids.iter().all(|id| (*id as usize) < graphemes.rows()));
                    let _ = graphemes.unknown_characters(&prepared.text);
                    let _ = graphemes.unknown_tags(&prepared.text);
                }
            }
        }
    });
}

/// Memory grows with the text and its ids alone: a text of 60 MB takes at most 1 GB.
#[test]
fn long_texts_of_chatterbox_take_bounded_memory() {
    let files = chatterbox_files();
    let [turbo_files @ .., graphemes] = files.each_ref().map(|file| &file[..]);
    let turbo = turbo(&turbo_files).expect("goldens");
    let graphemes = GraphemeTokenizer::from_json(GRAPHEMES, graphemes).expect("goldens");
    let mut texts = texts(1 << 20);
    texts.push(("tags", "[laugh]".repeat(1 << 17)));
    texts.push(("open brackets", "[".repeat(1 << 20)));
    texts.push(("spaces", "a ".repeat(1 << 19)));
    texts.push(("kanji", "漢".repeat(1 << 18)));
    for (what, text) in texts {
        let of_turbo = Counting::peak_here(|| {
            drop(turbo.encode(&chatterbox::punctuation(&text, Variant::Turbo)));
        });
        let of_others = Counting::peak_here(|| {
            let normal = chatterbox::punctuation(&text, Variant::Multilingual);
            let prepared = multilingual::prepare(&normal, Some("en"), Tools::default()).expect("a language");
            drop(normal);
            drop(graphemes.encode(&prepared.text));
        });
        println!("{what}: {:.1}, {:.1} bytes a byte", ratio(of_turbo, &text), ratio(of_others, &text));
        assert!(of_turbo <= 8 * text.len() + (8 << 20), "{what}: {of_turbo} bytes");
        assert!(of_others <= 16 * text.len() + (8 << 20), "{what}: {of_others} bytes");
    }
}

#[test]
fn damaged_files_of_chatterbox_are_errors_or_tokenizers() {
    let files = chatterbox_files();
    let names = ["turbo-vocab", "turbo-merges", "added-tokens", "special-tokens", "turbo-config"];
    for (i, name) in names.into_iter().enumerate() {
        fuzz(name, &files[i..=i], LIMITS, |bytes| {
            let mut all = files.each_ref().map(|file| &file[..]);
            all[i] = bytes;
            match turbo(&all[..5]) {
                Ok(tokenizer) => drop(tokenizer.encode("Some text, [laugh] 漢.")),
                Err(e) => check_message(&e.to_string()),
            }
        });
    }
    let english = golden("chatterbox/golden/checkpoints/files/tokenizer.json");
    fuzz("grapheme-tokenizer", &[files[5].clone(), english], LIMITS, |bytes| {
        match GraphemeTokenizer::from_json(GRAPHEMES, bytes) {
            Ok(tokenizer) => drop(tokenizer.encode("[en]some [STOP] text 漢")),
            Err(e) => check_message(&e.to_string()),
        }
    });
    let cangjie = golden("chatterbox/golden/checkpoints/files/Cangjie5_TC.json");
    fuzz("cangjie", &[cangjie], LIMITS, |bytes| match Cangjie::from_json(bytes) {
        Ok(table) => {
            let tools = Tools { cangjie: Some(&table), ..Tools::default() };
            drop(multilingual::prepare("你好明", Some("zh"), tools));
        }
        Err(e) => check_message(&e.to_string()),
    });
}

fn tokenizer_files() -> [Vec<u8>; 3] {
    ["vocab.json", "merges.txt", "tokenizer_config.json"]
        .map(|file| golden(&format!("qwen3_tts/golden/checkpoints/tiny-base/{file}")))
}

#[test]
fn damaged_tokenizer_files_are_errors_or_tokenizers() {
    let files = tokenizer_files();
    for (i, name) in ["vocab", "merges", "tokenizer-config"].into_iter().enumerate() {
        fuzz(name, &files[i..=i], LIMITS, |bytes| {
            let [vocab, merges, config] = std::array::from_fn(|j| if i == j { bytes } else { &files[j] });
            if let Err(e) = QwenTokenizer::from_files(vocab, merges, config) {
                check_message(&e.to_string());
            }
        });
    }
}

#[test]
fn damaged_character_tables_are_errors_or_tables() {
    let samples =
        [b"[-1,0,-1,1,2,3,44]".to_vec(), golden("supertonic/golden/tiny/onnx/unicode_indexer.json")];
    fuzz("unicode-indexer", &samples, LIMITS, |bytes| match UnicodeIndexer::from_json(bytes) {
        Ok(table) => drop(table.ids("a\u{10ffff}")),
        Err(e) => check_message(&e.to_string()),
    });
}

/// A message is one line of bounded length, whatever the file holds.
fn check_message(message: &str) {
    assert!(message.len() < 10_000, "{} bytes of message", message.len());
    assert!(!message.contains(char::is_control), "{message:?}");
}

#[test]
fn hostile_names_are_shortened_and_escaped_in_errors() {
    let [vocab, merges, config] = tokenizer_files();
    let long = "\u{1b}".to_owned() + &"x".repeat(100_000);
    let mut bad = merges.clone();
    bad.extend(format!("\n{long}\n").bytes());
    let e = QwenTokenizer::from_files(&vocab, &bad, &config).expect_err("no merge").to_string();
    assert!(e.contains(r"`\u{1b}xxx") && e.len() < 600, "{e}");
    let e =
        supertonic::prepare("x", supertonic::Version::V3, Some(&long)).expect_err("no language").to_string();
    assert!(e.contains(r"`\u{1b}xxx") && e.len() < 600, "{e}");
}
