//! Hostile texts and files: no front end panics, hangs, or takes much more memory than its input and result.
//! An allocator counts memory, so these tests are a separate program.

use orate_testing::Counting;
use orate_testing::fuzz::{FRAGMENTS, Limits, fuzz};
use orate_text::english::{self, Rules};
use orate_text::pieces;
use orate_text::qwen::{Part, QwenTokenizer};
use orate_text::supertonic::{self, UnicodeIndexer};
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
        let _ = supertonic::normalize(&text);
        assert!(pieces::at_most(&text, 40).iter().all(|piece| piece.chars().count() <= 40));
        let _ = tokenizer.encode(&[Part::Control(&text), Part::Text(&text)]);
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
