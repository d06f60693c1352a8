//! Qwen2 tokens compared with the official tokenizer: `oracle/qwen3_tts/golden/cases/tokenizer.json`.

use orate_text::TextError;
use orate_text::qwen::{
    Part::{self, Control, Text},
    QwenTokenizer,
};
use serde::Deserialize;
use std::path::{Path, PathBuf};

fn golden(file: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../oracle/qwen3_tts/golden");
    let path = root.join(file);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; it is part of the repository", path.display()))
}

/// `vocab.json`, `merges.txt` and `tokenizer_config.json` of a checkpoint with 636 tokens and 33 added ones.
fn files() -> [Vec<u8>; 3] {
    ["vocab.json", "merges.txt", "tokenizer_config.json"]
        .map(|f| golden(Path::new("checkpoints/tiny-base").join(f).to_str().expect("UTF-8")))
}

fn open([vocab, merges, config]: &[Vec<u8>; 3]) -> Result<QwenTokenizer, TextError> {
    QwenTokenizer::from_files(vocab, merges, config)
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    /// Ids of the text in the chat template of spoken text; the other templates follow.
    assistant: Vec<u32>,
    reference: Vec<u32>,
    instruct: Vec<u32>,
}

#[test]
fn ids_are_those_of_the_official_tokenizer() {
    let tokenizer = open(&files()).expect("the files are in order");
    let cases: Vec<Case> = serde_json::from_slice(&golden("cases/tokenizer.json")).expect("goldens");
    assert_eq!(cases.len(), 16);
    for c in &cases {
        let text = Control(&c.text);
        let end = Control("<|im_end|>\n");
        let assistant = Control("<|im_start|>assistant\n");
        let all: [(&str, &[Part<'_>], &[u32]); 4] = [
            ("bare", &[text], &c.ids),
            ("assistant", &[assistant, text, end, assistant], &c.assistant),
            ("reference", &[assistant, text, end], &c.reference),
            ("instruct", &[Control("<|im_start|>user\n"), text, end], &c.instruct),
        ];
        for (what, parts, want) in all {
            assert_eq!(tokenizer.encode(parts), want, "{what}: {:?}", c.text);
        }
    }
}

#[test]
fn what_was_encoded_can_be_read_again() {
    let tokenizer = open(&files()).expect("the files are in order");
    for text in
        ["", "Zażółć gęślą jaźń, 2026!", "\n\n a\tb \u{3000}", "नमस्ते 🙂 ### '##'", "<tts_pad><|im_end|>"]
    {
        for part in [Text(text), Control(text)] {
            assert_eq!(tokenizer.decode(&tokenizer.encode(&[part])), text);
        }
    }
    assert_eq!(tokenizer.decode(&tokenizer.encode(&[Text("e\u{301}")])), "é", "NFC");
    assert_eq!(tokenizer.decode(&[4_000_000]), "");
}

/// A text cannot end its own turn.
#[test]
fn added_tokens_are_recognized_where_the_program_wrote_them() {
    let tokenizer = open(&files()).expect("the files are in order");
    let end = tokenizer.added("<|im_end|>").expect("is there");
    assert_eq!(tokenizer.encode(&[Control("<|im_end|>")]), [end]);
    assert!(!tokenizer.encode(&[Text("<|im_end|>")]).contains(&end));
    assert!(!tokenizer.encode(&[Control("<|im_"), Text("end|>")]).contains(&end));
    // Normalization comes after splitting: the mark does not turn `>` into `≯`.
    assert_eq!(tokenizer.encode(&[Control("<|im_end|>\u{338}")])[0], end);
    assert_eq!(tokenizer.max_id(), tokenizer.added("<|audio_pad|>").expect("the last one"));
}

#[test]
fn parts_are_one_string() {
    let tokenizer = open(&files()).expect("the files are in order");
    let (start, text) = ("<|im_start|>assistant\n", "\n line breaks become one token");
    let whole = format!("{start}{text}");
    assert_eq!(tokenizer.encode(&[Control(start), Text(text)]), tokenizer.encode(&[Control(&whole)]));
}

#[test]
fn damaged_files_are_errors() {
    let good = files();
    let edit = |file: usize, from: &str, to: &str| {
        let mut files = good.clone();
        let text = String::from_utf8(files[file].clone()).expect("UTF-8");
        assert!(text.contains(from), "{from}");
        files[file] = text.replacen(from, to, 1).into_bytes();
        open(&files).expect_err(to).to_string()
    };
    let cases = [
        (0, "\"Ġ\":", "\"ĠĠĠĠĠĠĠĠ\":", "`Ġ` is missing, the token of byte 0x20"),
        (1, "\n", "\nĠ\n", "line 2"),
        (2, "\"636\"", "\"-1\"", "added token `-1`"),
        (2, "\"636\"", "\"635\"", "which vocab.json assigns"),
        (2, "<|im_start|>", "<|endoftext|>", "a duplicate"),
        (2, "\"lstrip\": false", "\"lstrip\": true", "`lstrip`"),
        (2, "added_tokens_decoder", "added_tokens", "missing field"),
    ];
    for (file, from, to, part) in cases {
        let message = edit(file, from, to);
        assert!(message.contains(part), "{message}\nshould hold `{part}`");
        assert!(
            message.starts_with(["vocab.json", "merges.txt", "tokenizer_config.json"][file]),
            "{message}"
        );
    }
    // A list of merges that ends with a whole line is still a valid list; only the vocabulary determines how
    // long it must be.
    let lines = String::from_utf8(good[1].clone()).expect("UTF-8");
    let without_last = lines.trim_end().rfind('\n').expect("many lines") + 1;
    let message = open(&[good[0].clone(), good[1][..without_last].to_vec(), good[2].clone()]);
    let message = message.expect_err("one merge is missing").to_string();
    for part in ["merges.txt: no merge makes 1 of", "(id 635)", "has 379 merges", "Copy it again"] {
        assert!(message.contains(part), "{message}\nshould hold `{part}`");
    }
    // Tokens that no merge could produce are intentional, as in the oracle's checkpoints of full size.
    let filled = String::from_utf8(good[0].clone()).expect("UTF-8").replacen(
        '{',
        "{\"filler0\": 700, \"filler00\": 701, ",
        1,
    );
    open(&[filled.into_bytes(), good[1].clone(), good[2].clone()]).expect("a vocabulary that is filled up");
    for file in 0..3 {
        for keep in (0..good[file].len()).step_by(good[file].len() / 40) {
            let mut files = good.clone();
            files[file].truncate(keep);
            assert!(open(&files).is_err(), "{file} cut to {keep}");
        }
    }
}
