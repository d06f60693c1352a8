//! The tokenizer files of Qwen3-TTS, from the lists of tokens in other engines' files.

use crate::ModelError;
use crate::gguf::{Meta, Part, Port, Report, merges};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};

/// Added tokens of all released models. They follow the vocabulary.
const ADDED: [&str; 33] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
];

/// Types of tokens in GGUF files: ordinary, control and user-defined ones.
const NORMAL: i64 = 1;
const SPECIAL: [i64; 2] = [3, 4];

/// Tokens and merges of a file.
pub struct Words<'f> {
    vocabulary: HashMap<u32, &'f str>,
    added: BTreeMap<u32, &'f str>,
    merges: Vec<String>,
    /// Names of the rows of the codec's vocabulary, which follows the text's in llama.cpp's files.
    codec: Vec<&'f str>,
}

impl<'f> Words<'f> {
    /// Reads the lists, and puts back what converters lose. `codec_rows` is the size of the talker's
    /// vocabulary.
    ///
    /// # Errors
    /// There is no list of tokens or of merges.
    pub fn of(part: &'f Part, codec_rows: usize, report: &mut Report) -> Result<Words<'f>, ModelError> {
        let meta = Meta::new(&part.file, "tokenizer.ggml.");
        let lacks = |what: &str| part.wrong(format!("it has no {what} (`tokenizer.ggml.{what}`)"));
        let tokens = meta.texts("tokens").ok_or_else(|| lacks("tokens"))?;
        let lines = meta.texts("merges").ok_or_else(|| lacks("merges"))?;
        let kinds = meta.integers("token_type").filter(|k| k.len() == tokens.len());
        let text = match part.layout.port {
            Port::LlamaCpp => tokens.len().saturating_sub(codec_rows),
            _ => tokens.len(),
        };
        let kind = |i: usize| kinds.as_ref().map_or(NORMAL, |all| all[i]);
        let (mut vocabulary, mut added) = (HashMap::new(), BTreeMap::new());
        for (i, token) in tokens.iter().enumerate().take(text.min(u32::MAX as usize)) {
            match kind(i) {
                NORMAL if !token.is_empty() => drop(vocabulary.insert(i as u32, &**token)),
                kind if SPECIAL.contains(&kind) => drop(added.insert(i as u32, &**token)),
                _ => {}
            }
        }
        if added.is_empty() {
            let first = vocabulary.keys().max().map_or(0, |last| last + 1);
            added = (first..).zip(ADDED).collect();
            report.repaired.push(format!("{} added tokens", ADDED.len()));
        }
        let (merges, back) = merges::repaired(&vocabulary, lines);
        if back > 0 {
            report.repaired.push(format!("{back} merge{}", if back == 1 { "" } else { "s" }));
        }
        let codec = tokens[text..].iter().map(|t| &**t).collect();
        Ok(Words { vocabulary, added, merges, codec })
    }

    /// Id of an added token.
    pub fn added_id(&self, token: &str) -> Option<u32> {
        self.added.iter().find(|(_, t)| **t == token).map(|(id, _)| *id)
    }

    /// Row of the codec's vocabulary that is called `<|NAME|>`.
    pub fn codec_id(&self, name: &str) -> Option<usize> {
        self.codec.iter().position(|t| t.strip_prefix("<|").and_then(|t| t.strip_suffix("|>")) == Some(name))
    }

    /// Rows of the codec's vocabulary that are called `<|PREFIX_NAME|>`, by name.
    pub fn codec_entries(&self, prefix: &str) -> Map<String, Value> {
        let name =
            |t: &'f str| t.strip_prefix("<|")?.strip_suffix("|>")?.strip_prefix(prefix)?.strip_prefix('_');
        let all = self.codec.iter().enumerate();
        all.filter_map(|(i, t)| Some((name(t)?.to_owned(), json!(i)))).collect()
    }

    /// `vocab.json`, `merges.txt` and `tokenizer_config.json`.
    pub fn files(&self) -> [(&'static str, Vec<u8>); 3] {
        let vocabulary: HashMap<&str, u32> =
            self.vocabulary.iter().map(|(id, token)| (*token, *id)).collect();
        let added: Map<String, Value> =
            self.added.iter().map(|(id, token)| (id.to_string(), json!({"content": token}))).collect();
        [
            ("vocab.json", serde_json::to_vec(&vocabulary).unwrap_or_default()),
            ("merges.txt", format!("#version: 0.2\n{}\n", self.merges.join("\n")).into_bytes()),
            ("tokenizer_config.json", json!({ "added_tokens_decoder": added }).to_string().into_bytes()),
        ]
    }
}
