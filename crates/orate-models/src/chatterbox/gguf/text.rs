//! The tokenizer files of Chatterbox, from the lists of tokens in other engines' files.

use crate::ModelError;
use crate::files::SmallFiles;
use crate::gguf::{Meta, Part, Port, Report, merges};
use orate_weights::WeightSource;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Tags of the Turbo tokenizer, which follow its vocabulary.
const TAGS: [&str; 19] = [
    "[angry]",
    "[fear]",
    "[surprised]",
    "[whispering]",
    "[advertisement]",
    "[dramatic]",
    "[narration]",
    "[crying]",
    "[happy]",
    "[sarcastic]",
    "[clear throat]",
    "[sigh]",
    "[shush]",
    "[cough]",
    "[groan]",
    "[sniff]",
    "[gasp]",
    "[chuckle]",
    "[laugh]",
];

/// Ids of the English model.
const ENGLISH_IDS: usize = 704;
const END: &str = "<|endoftext|>";

/// The files of the tokenizer: made from the metadata, or, where there is none, those beside the file.
///
/// # Errors
/// Tokens or merges are missing, so that texts would be read wrongly.
pub fn files(part: &Part, weights: &dyn WeightSource, report: &mut Report) -> Result<SmallFiles, ModelError> {
    let folder = part.path.parent().unwrap_or(Path::new(""));
    if part.layout.port == Port::Official {
        return Ok(SmallFiles::of_folder(folder));
    }
    let meta = Meta::new(&part.file, "tokenizer.ggml.");
    let is_fast = weights.contains("tfmr.wpe.weight");
    let rows = weights.info("text_emb.weight").and_then(|i| i.shape.first().copied()).unwrap_or(0);
    let mut parts = BTreeMap::new();
    if let Some(json) = meta.text("mtl_json") {
        parts.insert("grapheme_mtl_merged_expanded_v1.json".to_owned(), json.as_bytes().to_vec());
    } else {
        let Some(tokens) = meta.texts("tokens") else {
            return Err(part.wrong(
                "it has no tokenizer that can be used, as files from before May 2026: without merges texts \
                 would be read wrongly; download a newer file",
            ));
        };
        let lines = meta.texts("merges").unwrap_or_default();
        match is_fast {
            true => turbo(tokens, lines, rows, meta.integers("token_type"), &mut parts, report),
            false => {
                if tokens.len() < rows {
                    let problem = format!(
                        "its tokenizer has {} tokens for {rows} rows of text, as early files of multilingual \
                         models; download a newer one",
                        tokens.len()
                    );
                    return Err(part.wrong(problem));
                }
                let name = match rows > ENGLISH_IDS {
                    true => "grapheme_mtl_merged_expanded_v1.json",
                    false => "tokenizer.json",
                };
                parts.insert(name.to_owned(), grapheme(tokens, lines).to_string().into_bytes());
            }
        }
    }
    Ok(SmallFiles::inside(&part.path, parts))
}

/// The files of Turbo and Nano in audio.cpp's container: `merges.txt` lacks its first line, and merges that
/// begin with `#`.
///
/// # Errors
/// A file is missing or damaged.
pub fn of_audiocpp(part: &Part, files: &SmallFiles, report: &mut Report) -> Result<SmallFiles, ModelError> {
    let [vocabulary, merges, tags] =
        ["vocab.json", "merges.txt", "special_tokens.json"].map(|name| format!("chatterbox_turbo_{name}"));
    let damaged = |name: &str| part.wrong(format!("its {name} is damaged; download the file again"));
    let json = |name: &str| serde_json::from_slice::<Value>(&files.read(name)?).map_err(|_| damaged(name));
    let mut by_id: BTreeMap<usize, (String, bool)> = BTreeMap::new();
    let mut add = |name: &str, token: Option<&str>, id: &Value, is_added: bool| {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok()).filter(|id| *id < MOST_TOKENS);
        let (Some(token), Some(id)) = (token, id) else { return Err(damaged(name)) };
        by_id.insert(id, (token.to_owned(), is_added));
        Ok(())
    };
    for (token, id) in json(&vocabulary)?.as_object().ok_or_else(|| damaged(&vocabulary))? {
        add(&vocabulary, Some(token), id, false)?;
    }
    for tag in json(&tags)?.as_array().ok_or_else(|| damaged(&tags))? {
        add(&tags, tag["token"].as_str(), &tag["id"], true)?;
    }
    let text = String::from_utf8(files.read(&merges)?).map_err(|_| damaged(&merges))?;
    let lines: Vec<String> =
        text.lines().filter(|l| !l.is_empty() && !l.starts_with("#version")).map(str::to_owned).collect();
    let rows = by_id.keys().next_back().map_or(0, |last| last + 1);
    let mut tokens = vec![String::new(); rows];
    let mut kinds = vec![1; rows];
    for (id, (token, is_added)) in by_id {
        kinds[id] = if is_added { 4 } else { 1 };
        tokens[id] = token;
    }
    let mut parts = BTreeMap::new();
    turbo(&tokens, &lines, rows, Some(kinds), &mut parts, report);
    Ok(SmallFiles::inside(&part.path, parts))
}

/// More tokens than any of these models has.
const MOST_TOKENS: usize = 1 << 20;

/// `tokenizer.json` of English and multilingual models.
fn grapheme(tokens: &[String], lines: &[String]) -> Value {
    let all = || tokens.iter().enumerate().filter(|(_, t)| !t.is_empty());
    let is_added = |t: &str| t.chars().count() > 2 && t.starts_with('[') && t.ends_with(']');
    let added: Vec<Value> =
        all().filter(|(_, t)| is_added(t)).map(|(id, t)| json!({"id": id, "content": t})).collect();
    let vocabulary: Map<String, Value> = all().map(|(id, t)| (t.clone(), json!(id))).collect();
    json!({
        "added_tokens": added,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "BPE", "unk_token": "[UNK]", "vocab": vocabulary, "merges": lines},
    })
}

/// The files of Turbo and Nano.
fn turbo(
    tokens: &[String],
    lines: &[String],
    rows: usize,
    kinds: Option<Vec<i64>>,
    parts: &mut BTreeMap<String, Vec<u8>>,
    report: &mut Report,
) {
    let is_added =
        |i: usize| TAGS.contains(&&*tokens[i]) || kinds.as_ref().is_some_and(|k| k.get(i) == Some(&4));
    let mut vocabulary: HashMap<u32, &str> = HashMap::new();
    let mut added: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, token) in tokens.iter().enumerate().filter(|(_, t)| !t.is_empty()) {
        match is_added(i) {
            true => drop(added.insert(token, i)),
            false => drop(vocabulary.insert(i as u32, token)),
        }
    }
    if added.is_empty() && tokens.len() + TAGS.len() == rows {
        added.extend(TAGS.into_iter().zip(tokens.len()..));
        report.repaired.push(format!("{} added tokens", TAGS.len()));
    }
    let end = vocabulary.iter().find(|(_, t)| **t == END).map(|(id, _)| *id);
    let (merges, back) = match end {
        // It is made by no merge.
        Some(end) => {
            let mut rest = vocabulary.clone();
            rest.remove(&end);
            merges::repaired(&rest, lines)
        }
        None => merges::repaired(&vocabulary, lines),
    };
    if back > 0 {
        report.repaired.push(format!("{back} merge{}", if back == 1 { "" } else { "s" }));
    }
    let vocabulary: HashMap<&str, u32> = vocabulary.into_iter().map(|(id, t)| (t, id)).collect();
    let special =
        if end.is_some() || added.contains_key(END) { json!({"eos_token": END}) } else { json!({}) };
    for (name, bytes) in [
        ("vocab.json", json!(vocabulary).to_string()),
        ("merges.txt", format!("#version: 0.2\n{}\n", merges.join("\n"))),
        ("added_tokens.json", json!(added).to_string()),
        ("special_tokens_map.json", special.to_string()),
        ("tokenizer_config.json", json!({"model_max_length": 1024}).to_string()),
    ] {
        parts.insert(name.to_owned(), bytes.into_bytes());
    }
}
