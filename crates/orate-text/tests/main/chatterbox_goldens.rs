//! Texts and ids of Chatterbox compared with the official package: `oracle/chatterbox/golden/text.json`.

use orate_text::TextError;
use orate_text::chatterbox::multilingual::{self, Cangjie, Note, Reading, Tools};
use orate_text::chatterbox::{Files, GraphemeTokenizer, START, STOP, TurboTokenizer, Variant, punctuation};
use serde::Deserialize;
use std::path::PathBuf;

const ENGLISH: &str = "tokenizer.json";
const MULTILINGUAL: &str = "grapheme_mtl_merged_expanded_v1.json";

fn golden(file: &str) -> Vec<u8> {
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = std::env::var_os("ORATE_ROOT").map_or_else(here, PathBuf::from);
    let path = root.join("oracle/chatterbox/golden").join(file);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; it is part of the repository", path.display()))
}

fn file(name: &str) -> Vec<u8> {
    golden(&format!("checkpoints/files/{name}"))
}

fn graphemes(name: &'static str) -> GraphemeTokenizer {
    GraphemeTokenizer::from_json(name, &file(name)).expect("the file is in order")
}

/// Vocabulary, merges, added tokens, special tokens, configuration.
fn turbo_files() -> [Vec<u8>; 5] {
    ["vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"]
        .map(file)
}

fn turbo(files: &[Vec<u8>; 5]) -> Result<TurboTokenizer, TextError> {
    let [vocab, merges, added_tokens, special_tokens_map, tokenizer_config] = files;
    TurboTokenizer::from_files(Files { vocab, merges, added_tokens, special_tokens_map, tokenizer_config })
}

#[derive(Deserialize)]
struct Goldens {
    punc_norm: Vec<Punctuation>,
    en: Vec<Ids>,
    mtl: Vec<Ids>,
    turbo: Vec<Ids>,
}

#[derive(Deserialize)]
struct Punctuation {
    r#in: String,
    en: String,
    mtl: String,
    turbo: String,
}

#[derive(Deserialize)]
struct Ids {
    normalized: String,
    /// Of the multilingual model.
    #[serde(default)]
    language: Option<String>,
    /// The text with its tag and `[SPACE]` for spaces.
    #[serde(default)]
    tokenizer_input: String,
    /// Without the ids before and after a text.
    ids: Vec<u32>,
}

fn goldens() -> Goldens {
    serde_json::from_slice(&golden("text.json")).expect("goldens")
}

#[test]
fn punctuation_is_that_of_the_official_package() {
    let cases = goldens().punc_norm;
    assert_eq!(cases.len(), 9);
    for c in cases {
        assert_eq!(punctuation(&c.r#in, Variant::English), c.en);
        assert_eq!(punctuation(&c.r#in, Variant::Multilingual), c.mtl);
        assert_eq!(punctuation(&c.r#in, Variant::Turbo), c.turbo);
    }
}

#[test]
fn english_ids_are_those_of_the_official_package() {
    let tokenizer = graphemes(ENGLISH);
    assert_eq!(tokenizer.rows(), 704);
    let cases = goldens().en;
    assert_eq!(cases.len(), 9);
    for c in cases {
        let want = [&[START][..], &c.ids, &[STOP]].concat();
        assert_eq!(tokenizer.encode(&c.normalized), want, "{:?}", c.normalized);
    }
}

/// The goldens have one word for each character.
fn characters(text: &str) -> Vec<&str> {
    text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect()
}

/// What the official package's dictionary returns for the Japanese text of the goldens.
fn readings(text: &str) -> Vec<Reading<'_>> {
    let dictionary = [("今日は", "こんにちは"), ("良い", "よい"), ("天気", "てんき")];
    let mut words = vec![];
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let known = dictionary.iter().find(|(word, _)| rest.starts_with(word));
        let (word, after) = rest.split_at(known.map_or(c.len_utf8(), |(word, _)| word.len()));
        words.push(Reading { word, hiragana: known.map_or(word, |(_, hiragana)| hiragana).to_owned() });
        rest = after;
    }
    words
}

#[test]
fn multilingual_ids_are_those_of_the_official_package() {
    let tokenizer = graphemes(MULTILINGUAL);
    assert_eq!(tokenizer.rows(), 2454);
    let cangjie = Cangjie::from_json(&file("Cangjie5_TC.json")).expect("the table");
    let tools = Tools { cangjie: Some(&cangjie), words: Some(&characters), readings: Some(&readings) };
    let cases = goldens().mtl;
    assert_eq!(cases.len(), 15);
    for c in cases {
        let prepared =
            multilingual::prepare(&c.normalized, c.language.as_deref(), tools).expect("a language");
        assert_eq!(prepared.text.replace(' ', "[SPACE]"), c.tokenizer_input);
        assert_eq!(prepared.notes, [], "{:?}", c.normalized);
        let want = [&[START][..], &c.ids, &[STOP]].concat();
        assert_eq!(tokenizer.encode(&prepared.text), want, "{:?}", c.normalized);
    }
}

#[test]
fn what_a_model_does_not_know_is_reported() {
    let english = graphemes(ENGLISH);
    assert_eq!(english.unknown_tags("Ha [laugh] [giggle] [UH]."), ["[laugh]"]);
    assert_eq!(english.unknown_characters("naïve, 漢 [UH]"), ['ï', '漢']);

    let multilingual = graphemes(MULTILINGUAL);
    let prepare =
        |text, language| multilingual::prepare(text, Some(language), Tools::default()).expect(language);
    let prepared = prepare("Ha [Laughter] [UH] [chuckle].", "en");
    assert_eq!(multilingual.unknown_tags(&prepared.text), ["[chuckle]", "[uh]"]);
    let prepared = prepare("漢字です。", "ja");
    assert_eq!(prepared.notes, [Note::WithoutReading { count: 2 }]);
    assert_eq!(multilingual.unknown_characters(&prepared.text), ['字', '漢']);

    let turbo = turbo(&turbo_files()).expect("the files are in order");
    assert_eq!(turbo.unknown_tags("[laugh] [clear throat] [laughter]"), ["[laughter]"]);
}

#[test]
fn turbo_ids_are_those_of_the_official_package() {
    let tokenizer = turbo(&turbo_files()).expect("the files are in order");
    assert_eq!((tokenizer.rows(), tokenizer.max_tokens()), (1000, Some(1024)));
    let cases = goldens().turbo;
    assert_eq!(cases.len(), 5);
    for c in cases {
        let tokens = tokenizer.encode(&c.normalized);
        assert_eq!((tokens.ids, tokens.dropped), (c.ids, 0), "{:?}", c.normalized);
    }
    assert!(tokenizer.encode("").ids.is_empty());
    let end = tokenizer.added("<|endoftext|>").expect("a special token");
    assert_eq!(tokenizer.encode("<|endoftext|>").ids, [end]);
}

#[test]
fn long_texts_of_turbo_are_cut_and_that_is_reported() {
    let tokenizer = turbo(&turbo_files()).expect("the files are in order");
    let laugh = tokenizer.added("[laugh]").expect("a tag");
    for (count, dropped) in [(1024, 0), (1025, 1), (5000, 3976)] {
        let tokens = tokenizer.encode(&"[laugh]".repeat(count));
        assert_eq!((tokens.ids, tokens.dropped), (vec![laugh; 1024], dropped));
    }
    let tokens = tokenizer.encode(&"1".repeat(3000));
    assert_eq!(tokens.ids.len() + tokens.dropped, 3000);
    assert_eq!(tokens.ids.len(), 1024);
}

#[test]
fn damaged_turbo_files_are_errors() {
    let good = turbo_files();
    let names =
        ["vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"];
    let edit = |file: usize, from: &str, to: &str| {
        let mut files = good.clone();
        let text = String::from_utf8(files[file].clone()).expect("UTF-8");
        assert!(text.contains(from), "{from}");
        files[file] = text.replacen(from, to, 1).into_bytes();
        turbo(&files)
    };
    let cases = [
        (0, "\"Ġ\":", "\"ĠĠĠĠĠĠĠĠ\":", "`Ġ` is missing"),
        (1, "\n", "\nĠ\n", "line 2"),
        (2, "981", "-1", "invalid value"),
        (2, "981", "5", "which vocab.json assigns to another token"),
        (2, "[angry]", "", "it is empty"),
        (3, "<|endoftext|>", "<|end|>", "`<|end|>` has no id"),
        (3, "\"<|endoftext|>\"", "7", "did not match"),
        (4, "1024", "0", "`model_max_length` is 0"),
        (4, "false", "true", "`add_prefix_space`"),
    ];
    for (file, from, to, part) in cases {
        let message = edit(file, from, to).expect_err(to).to_string();
        assert!(
            message.contains(part) && message.starts_with(names[file]),
            "{message}\nshould hold `{part}`"
        );
    }
    let without_limit = edit(4, "1024", "1000000000000000019884624838656").expect("no limit");
    assert_eq!(without_limit.max_tokens(), None);
    let object = r#"{"content": "<|endoftext|>", "lstrip": false, "normalized": true}"#;
    edit(3, "\"<|endoftext|>\"", object).expect("special tokens may be objects");
}
