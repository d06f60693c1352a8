//! Every recorded result of the reference front end: prepared text, ids, refusals, pieces.
//!
//! `goldens/text.json` was written by `text_frontend.py` with the official pip package 1.3.1 and the real
//! character tables of versions 2 and 3, which are stored in the same folder.

use orate_text::pieces;
use orate_text::supertonic::{UnicodeIndexer, Version, normalize, prepare};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("../goldens/text.json")).expect("the golden file is JSON")
}

fn indexer(version: Version) -> UnicodeIndexer {
    let json = match version {
        Version::V2 => include_bytes!("../goldens/v2/unicode_indexer.json").as_slice(),
        _ => include_bytes!("../goldens/v3/unicode_indexer.json").as_slice(),
    };
    UnicodeIndexer::from_json(json).expect("the official table")
}

fn cases<'a>(golden: &'a Value, name: &str, at_least: usize) -> &'a [Value] {
    let cases = golden[name].as_array().expect(name);
    assert!(cases.len() >= at_least, "only {} cases of {name}", cases.len());
    cases
}

fn text<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap_or_else(|| panic!("{key} of {case}"))
}

fn ids(value: &Value) -> Vec<i32> {
    serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{e}: {value}"))
}

#[test]
fn languages() {
    let golden = golden();
    for case in cases(&golden, "languages", 37) {
        let version = if case["version"] == 2 { Version::V2 } else { Version::V3 };
        let indexer = indexer(version);
        let prepared =
            prepare(text(case, "text"), version, Some(text(case, "lang"))).expect("a known language");
        assert_eq!(prepared, text(case, "prepared"));
        assert_eq!(indexer.ids(&prepared), ids(&case["ids"]), "{case}");
        let unsupported: Vec<String> =
            indexer.unsupported(text(case, "text")).into_iter().map(String::from).collect();
        assert_eq!(serde_json::to_value(unsupported).unwrap(), case["unsupported"], "{case}");
    }
}

#[test]
fn normalization() {
    let golden = golden();
    for case in cases(&golden, "normalise", 26) {
        assert_eq!(normalize(text(case, "text")), text(case, "normalised"), "{case}");
        for (key, version) in [("2", Version::V2), ("3", Version::V3)] {
            let prepared = prepare(text(case, "text"), version, Some("en")).expect("English");
            assert_eq!(indexer(version).ids(&prepared), ids(&case["ids"][key]), "version {key}: {case}");
        }
    }
}

#[test]
fn chunks() {
    let golden = golden();
    for case in cases(&golden, "chunk", 9) {
        let max_chars = case["max_chars"].as_u64().expect("max_chars") as usize;
        let want: Vec<String> = serde_json::from_value(case["chunks"].clone()).expect("chunks");
        assert_eq!(pieces::of_sentences(text(case, "text"), max_chars), want, "{case}");
    }
}

#[test]
fn tables() {
    // The embeddings of the published models have 163 and 8322 rows.
    assert_eq!(indexer(Version::V2).rows(), 163);
    assert_eq!(indexer(Version::V3).rows(), 8322);
}

/// The pip package refuses these, although they have no sound.
#[test]
fn invisible_characters_are_dropped() {
    for version in [Version::V2, Version::V3] {
        let indexer = indexer(version);
        for text in [
            "Nice \u{2764}\u{FE0F}",
            "\u{FEFF}co\u{AD}op",
            "a\u{200B}b\u{200D}c\u{2060}",
            "\u{1F468}\u{200D}\u{1F469}",
        ] {
            assert!(!indexer.unsupported(text).is_empty(), "{text:?}");
            assert_eq!(indexer.unsupported(&indexer.without_invisible(text)), [], "{text:?}");
        }
        assert_eq!(indexer.without_invisible("\u{FEFF}co\u{AD}op").text(), "coop");
        // Unknown to version 2, and visible.
        assert_eq!(indexer.without_invisible("\u{6F22}").text(), "\u{6F22}");
    }
}
