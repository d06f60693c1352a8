//! The official repositories of models that Orate runs.

use crate::name::fits;
use crate::{Cache, Repo};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders inside folders that are looked at.
const MAX_DEPTH: u32 = 4;

/// A model of an official repository.
#[derive(Debug)]
pub struct Known {
    /// Short name, in lower case.
    pub name: &'static str,
    /// Repository.
    pub id: &'static str,
    /// Family, as `orate inspect` names it.
    pub family: &'static str,
    /// Languages and abilities, in a few words.
    pub about: &'static str,
    /// License. That of the repository decides.
    pub license: &'static str,
    /// Approximate size of the files, in bytes.
    pub bytes: u64,
    /// Patterns of the files that the model reads.
    pub files: &'static [&'static str],
    /// Files without which it cannot be opened; `a|b` is one of two, the one that is read first.
    needs: &'static [&'static str],
    /// The file that stands for the model, in repositories of several.
    entry: Option<&'static str>,
}

const OPENRAIL: &str = "OpenRAIL-M";
const APACHE: &str = "Apache-2.0";
const MIT: &str = "MIT";

const SUPERTONIC: (&[&str], &[&str]) = (
    &["onnx/*.onnx", "onnx/*.json", "voice_styles/*.json", "LICENSE*"],
    &[
        "onnx/duration_predictor.onnx",
        "onnx/text_encoder.onnx",
        "onnx/vector_estimator.onnx",
        "onnx/vocoder.onnx",
        "onnx/tts.json",
        "onnx/unicode_indexer.json",
        "voice_styles/F1.json|voice_styles/M1.json",
    ],
);

const QWEN: (&[&str], &[&str]) = (
    &["*.safetensors", "*.json", "merges.txt", "LICENSE*"],
    &[
        "config.json",
        "generation_config.json",
        "vocab.json",
        "merges.txt",
        "tokenizer_config.json",
        "model.safetensors|model.safetensors.index.json",
        "speech_tokenizer/config.json",
        "speech_tokenizer/model.safetensors",
    ],
);

const CODEC: &[&str] = &["config.json", "model.safetensors"];

const fn supertonic(name: &'static str, id: &'static str, about: &'static str, bytes: u64) -> Known {
    let (files, needs) = SUPERTONIC;
    Known { name, id, family: "Supertonic", about, license: OPENRAIL, bytes, files, needs, entry: None }
}

const fn qwen(name: &'static str, id: &'static str, about: &'static str, bytes: u64) -> Known {
    let (files, needs) = QWEN;
    Known { name, id, family: "Qwen3-TTS", about, license: APACHE, bytes, files, needs, entry: None }
}

const fn chatterbox(
    name: &'static str,
    id: &'static str,
    about: &'static str,
    bytes: u64,
    files: &'static [&'static str],
) -> Known {
    // What the official package opens, but the .safetensors of networks that are also there as .pt.
    Known { name, id, family: "Chatterbox", about, license: MIT, bytes, files, needs: files, entry: None }
}

const ENGLISH: &[&str] =
    &["t3_cfg.safetensors", "s3gen.safetensors", "ve.safetensors", "tokenizer.json", "conds.pt"];

const MULTILINGUAL_2: &str = "t3_mtl23ls_v2.safetensors";
const MULTILINGUAL_3: &str = "t3_mtl23ls_v3.safetensors";
const GRAPHEMES: &str = "grapheme_mtl_merged_expanded_v1.json";
const CANGJIE: &str = "Cangjie5_TC.json";
/// The official package downloads the `.pt`, and the cache is shared with it.
const S3GEN_OR_PT: &str = "s3gen.safetensors|s3gen.pt";
const VE_OR_PT: &str = "ve.safetensors|ve.pt";

/// All of them. Sizes are those that `docs/models.md` or the number of weights suggest.
pub static KNOWN: &[Known] = &[
    supertonic("supertonic", "Supertone/supertonic", "English", 264_000_000),
    supertonic("supertonic-2", "Supertone/supertonic-2", "en, es, fr, ko, pt", 262_000_000),
    supertonic("supertonic-3", "Supertone/supertonic-3", "31 languages", 397_000_000),
    qwen(
        "qwen3-tts-0.6b-base",
        "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
        "10 languages, clones voices",
        2_500_000_000,
    ),
    qwen(
        "qwen3-tts-1.7b-base",
        "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
        "10 languages, clones voices",
        4_500_000_000,
    ),
    qwen(
        "qwen3-tts-0.6b-customvoice",
        "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
        "10 languages, nine speakers",
        2_500_000_000,
    ),
    qwen(
        "qwen3-tts-1.7b-customvoice",
        "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
        "10 languages, nine speakers, instructions",
        4_500_000_000,
    ),
    qwen(
        "qwen3-tts-1.7b-voicedesign",
        "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
        "10 languages, voices described in words",
        4_500_000_000,
    ),
    Known {
        about: "the codec alone, for inspect and verify",
        needs: CODEC,
        ..qwen("qwen3-tts-tokenizer", "Qwen/Qwen3-TTS-Tokenizer-12Hz", "", 682_000_000)
    },
    chatterbox("chatterbox", "ResembleAI/chatterbox", "English, clones voices", 3_200_000_000, ENGLISH),
    Known {
        entry: Some(MULTILINGUAL_2),
        needs: &[MULTILINGUAL_2, S3GEN_OR_PT, VE_OR_PT, GRAPHEMES, CANGJIE, "conds.pt"],
        ..chatterbox(
            "chatterbox-multilingual",
            "ResembleAI/chatterbox",
            "23 languages, clones voices",
            3_200_000_000,
            &[MULTILINGUAL_2, "s3gen.safetensors", "ve.safetensors", GRAPHEMES, CANGJIE, "conds.pt"],
        )
    },
    Known {
        entry: Some(MULTILINGUAL_3),
        needs: &[MULTILINGUAL_3, S3GEN_OR_PT, VE_OR_PT, GRAPHEMES, CANGJIE, "conds.pt"],
        ..chatterbox(
            "chatterbox-multilingual-v3",
            "ResembleAI/chatterbox",
            "23 languages, clones voices",
            3_200_000_000,
            &[MULTILINGUAL_3, "s3gen.safetensors", "ve.safetensors", GRAPHEMES, CANGJIE, "conds.pt"],
        )
    },
    chatterbox(
        "chatterbox-turbo",
        "ResembleAI/chatterbox-turbo",
        "English, clones voices, two steps",
        3_000_000_000,
        &[
            "t3_turbo_v1.safetensors",
            "s3gen_meanflow.safetensors",
            "ve.safetensors",
            "conds.pt",
            "vocab.json",
            "merges.txt",
            "added_tokens.json",
            "special_tokens_map.json",
            "tokenizer_config.json",
        ],
    ),
    chatterbox(
        "chatterbox-nano",
        "ResembleAI/chatterbox-nano",
        "English, clones voices, smaller",
        1_900_000_000,
        &[
            "t3_nano_v1.safetensors",
            "s3gen_meanflow.safetensors",
            "ve.safetensors",
            "conds.pt",
            "vocab.json",
            "merges.txt",
            "added_tokens.json",
            "special_tokens_map.json",
            "tokenizer_config.json",
        ],
    ),
];

/// The model with a short name, or with the last part of its repository's name, in any case.
///
/// ```
/// let by = |name| orate_hub::known(name).map(|known| known.id);
/// assert_eq!(by("qwen3-tts-0.6b-base"), Some("Qwen/Qwen3-TTS-12Hz-0.6B-Base"));
/// assert_eq!(by("Qwen3-TTS-12Hz-0.6B-Base"), Some("Qwen/Qwen3-TTS-12Hz-0.6B-Base"));
/// assert_eq!(by("somebody/else"), None);
/// ```
pub fn known(name: &str) -> Option<&'static Known> {
    let last = |id: &'static str| id.rsplit('/').next().unwrap_or(id);
    KNOWN.iter().find(|k| k.name.eq_ignore_ascii_case(name) || last(k.id).eq_ignore_ascii_case(name))
}

/// Patterns of the files that models read: those of the known models of a repository, or what any family may
/// read. Repositories of single languages of Chatterbox have `s3gen_v3.pt`.
pub fn default_files(repo: &Repo) -> Vec<&'static str> {
    const ANY: &[&str] =
        &["*.safetensors", "*.onnx", "*.json", "merges.txt", "conds.pt", "ve.pt", "s3gen_v3.pt", "LICENSE*"];
    let own = KNOWN.iter().filter(|known| known.id.eq_ignore_ascii_case(repo.id())).flat_map(|k| k.files);
    let mut files: Vec<&str> = own.copied().collect();
    files.sort_unstable();
    files.dedup();
    if files.is_empty() { ANY.to_vec() } else { files }
}

/// State of a known model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Complete. The path is what `--model` takes.
    Whole {
        /// Folder, or file in it that stands for the model.
        path: PathBuf,
        /// Size of its files in bytes.
        bytes: u64,
    },
    /// Incomplete.
    Part,
    /// Missing.
    Nothing,
}

impl Known {
    /// Its repository.
    pub fn repo(&self) -> Repo {
        self.id.parse().expect("ids of the table are valid")
    }

    /// Looks for it in a cache, in the snapshot of this revision of its repository first.
    pub fn find(&self, cache: &Cache, repo: &Repo) -> Found {
        let snapshots = cache.snapshots(repo);
        for folder in &snapshots {
            if missing(self, |name| folder.join(name).is_file()).is_empty() {
                let read = self.needs.iter().filter_map(|names| first_in(folder, names));
                let patterns: Vec<&str> = self.files.iter().copied().chain(read).collect();
                let bytes = size(folder, folder, &patterns, MAX_DEPTH);
                let path = self.entry.map_or_else(|| folder.clone(), |entry| folder.join(entry));
                return Found::Whole { path, bytes };
            }
        }
        let some = |folder: &PathBuf| self.needs.iter().any(|names| first_in(folder, names).is_some());
        if snapshots.iter().any(some) { Found::Part } else { Found::Nothing }
    }
}

/// The first of the names `a|b` that a folder has.
fn first_in<'a>(folder: &Path, names: &'a str) -> Option<&'a str> {
    names.split('|').find(|name| folder.join(name).is_file())
}

/// Missing files of a model.
pub fn missing(known: &Known, is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    known.needs.iter().copied().filter(|names| !names.split('|').any(&is_there)).collect()
}

/// Bytes of the files in a folder that match patterns.
fn size(root: &Path, folder: &Path, patterns: &[&str], depth: u32) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() && depth > 0 => size(root, &path, patterns, depth - 1),
                Ok(found) if found.is_file() && patterns.iter().any(|p| fits(p, &name)) => found.len(),
                _ => 0,
            }
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_every_need_is_downloaded() {
        let mut names = HashSet::new();
        for known in KNOWN {
            assert!(names.insert(known.name) && known.name == known.name.to_lowercase(), "{}", known.name);
            assert_eq!(known.repo().id(), known.id);
            let wanted = |name: &str| known.files.iter().any(|pattern| fits(pattern, name));
            assert_eq!(missing(known, wanted), Vec::<&str>::new(), "{}", known.name);
            assert!(known.entry.is_none_or(wanted));
        }
        assert_eq!(known("CHATTERBOX").map(|k| k.name), Some("chatterbox"), "English is the first");
        assert!(known("t3_cfg.safetensors").is_none());
    }

    #[test]
    fn a_model_is_there_when_all_it_needs_is() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let (one, two) = ("1".repeat(40), "2".repeat(40));
        let snapshots = folder.path().join("models--ResembleAI--chatterbox/snapshots");
        let put = |commit: &str, name: &str| {
            fs::create_dir_all(snapshots.join(commit)).unwrap();
            fs::write(snapshots.join(commit).join(name), "12345").unwrap();
        };
        let [english, multilingual] =
            ["chatterbox", "chatterbox-multilingual"].map(|name| known(name).unwrap());
        let find = |known: &Known| known.find(&cache, &known.repo());
        assert_eq!(find(english), Found::Nothing);
        for name in ENGLISH {
            assert!(!matches!(find(english), Found::Whole { .. }));
            put(&one, name);
        }
        cache.set_commit(&english.repo(), &one).unwrap();
        put(&one, "other.bin");
        assert_eq!(find(english), Found::Whole { path: snapshots.join(&one), bytes: 25 });
        assert_eq!(find(multilingual), Found::Part);
        // A later commit has only the other model, and the first one is still found.
        for name in multilingual.files {
            put(&two, name);
        }
        cache.set_commit(&english.repo(), &two).unwrap();
        assert_eq!(
            find(multilingual),
            Found::Whole { path: snapshots.join(&two).join(MULTILINGUAL_2), bytes: 30 }
        );
        assert_eq!(find(english), Found::Whole { path: snapshots.join(&one), bytes: 25 });
    }

    #[test]
    fn multilingual_models_need_their_weights_in_one_format() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let commit = "1".repeat(40);
        let snapshot = folder.path().join("models--ResembleAI--chatterbox/snapshots").join(&commit);
        fs::create_dir_all(&snapshot).unwrap();
        let put = |name: &str| fs::write(snapshot.join(name), "12345").unwrap();
        for (name, entry) in
            [("chatterbox-multilingual", MULTILINGUAL_2), ("chatterbox-multilingual-v3", MULTILINGUAL_3)]
        {
            let known = known(name).unwrap();
            let is_pt = |file: &&&str| file.ends_with(".pt");
            assert_eq!(known.files.iter().filter(is_pt).collect::<Vec<_>>(), [&"conds.pt"], "{name}");
            // Those of the official package.
            [entry, "s3gen.pt", "ve.pt", GRAPHEMES, CANGJIE, "conds.pt"].into_iter().for_each(put);
            let whole = Found::Whole { path: snapshot.join(entry), bytes: 30 };
            assert_eq!(known.find(&cache, &known.repo()), whole, "{name}");
            let preferred = ["s3gen.safetensors", "ve.safetensors"];
            preferred.into_iter().for_each(put);
            assert_eq!(known.find(&cache, &known.repo()), whole, "{name}");
            preferred.into_iter().for_each(|name| fs::remove_file(snapshot.join(name)).unwrap());
        }
    }

    #[test]
    fn a_repository_gets_the_files_of_its_models() {
        let files = |id: &str| default_files(&id.parse().unwrap());
        assert!(files("ResembleAI/chatterbox").contains(&"tokenizer.json"));
        assert!(files("resembleai/Chatterbox").contains(&MULTILINGUAL_3));
        assert!(!files("ResembleAI/chatterbox-turbo").contains(&"s3gen.safetensors"));
        assert!(files("somebody/else").contains(&"*.onnx"));
    }
}
