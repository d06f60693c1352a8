//! GGUF files: those of other engines, and our own.
//!
//! Each engine that runs one of our families has a layout of its own: other names, other metadata, one file
//! or two. [`detect`] identifies them by their content, [`pair`] finds the file that belongs to another, and
//! each family has a reader that makes official configuration files and names of what a file has. What was
//! repaired, filled in or cannot work is in the [`Report`].
//!
//! | layout | engine | families |
//! | --- | --- | --- |
//! | A | qwen3-tts.cpp (khimaros, predict-woo, koboldcpp) | Qwen3-TTS |
//! | B | qwentts.cpp (ServeurpersoCom, Danmoreng) | Qwen3-TTS |
//! | C | llama.cpp | Qwen3-TTS 1.7B Base |
//! | D, G, I | CrispASR | Qwen3-TTS, Chatterbox, Supertonic 3 |
//! | E | audio.cpp | all |
//! | F | chatterbox.cpp, tts-cpp | Chatterbox |
//! | H | tts-cpp | Supertonic |
//! | J | official names in a plain file | all |
//! | | `orate quantize` | all |

pub mod audiocpp;
pub mod merges;
mod meta;
pub mod rules;

pub use meta::Meta;

use crate::ModelError;
use orate_files::quoted;
use orate_weights::{DType, GgufFile, WeightSource};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The engine whose layout a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// A
    Qwen3TtsCpp,
    /// B
    QwenTtsCpp,
    /// C
    LlamaCpp,
    /// D, G, I
    CrispAsr,
    /// E
    AudioCpp,
    /// F
    ChatterboxCpp,
    /// H
    TtsCpp,
    /// J
    Official,
    /// Made by `orate quantize`.
    Orate,
}

impl Port {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Port::Qwen3TtsCpp => "qwen3-tts.cpp",
            Port::QwenTtsCpp => "qwentts.cpp",
            Port::LlamaCpp => "llama.cpp",
            Port::CrispAsr => "CrispASR",
            Port::AudioCpp => "audio.cpp",
            Port::ChatterboxCpp => "chatterbox.cpp",
            Port::TtsCpp => "tts-cpp",
            Port::Official => "official names",
            Port::Orate => "orate",
        }
    }
}

/// What a file holds of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// All of it.
    Whole,
    /// Talker and code predictor of Qwen3-TTS.
    Talker,
    /// The codec of Qwen3-TTS; in llama.cpp's layout with the code predictor.
    Codec,
    /// The T3 of Chatterbox.
    T3,
    /// The S3Gen of Chatterbox.
    S3Gen,
    /// The voice encoder of Chatterbox.
    VoiceEncoder,
    /// Voices of another engine, which are no model.
    Voices,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Whole => "model",
            Role::Talker => "talker",
            Role::Codec => "codec",
            Role::T3 => "T3",
            Role::S3Gen => "S3Gen",
            Role::VoiceEncoder => "voice encoder",
            Role::Voices => "voices",
        }
    }

    /// Whether a file of this role stands for a model, once its partner is found.
    fn leads(self) -> bool {
        matches!(self, Role::Whole | Role::Talker | Role::T3)
    }

    /// The file that a file of this role needs beside it.
    fn partner(self) -> Option<Role> {
        match self {
            Role::Talker => Some(Role::Codec),
            Role::T3 => Some(Role::S3Gen),
            _ => None,
        }
    }
}

/// Layout of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Whose it is.
    pub port: Port,
    /// [`Family::tag`](crate::Family::tag) of the family.
    pub family: &'static str,
    /// What of a model it is.
    pub role: Role,
}

const QWEN: &str = "qwen3-tts";
const CHATTERBOX: &str = "chatterbox";
const SUPERTONIC: &str = "supertonic";

/// Architecture of our own files.
pub const ARCHITECTURE: &str = "orate-model";
/// Metadata key of the family of our own files.
pub const OURS: &str = "orate.family";
/// Metadata key of the version of our own files, and the newest that is read.
pub const VERSION: (&str, u32) = ("orate.version", 1);

/// The layout of a file, going by its content; `None` for files that are of no family.
pub fn detect(file: &GgufFile) -> Option<Layout> {
    let meta = Meta::new(file, "");
    let architecture = file.string("general.architecture").unwrap_or_default();
    let has = |key: &str| file.value(key).is_some();
    let layout = |port, family, role| Some(Layout { port, family, role });
    match architecture {
        ARCHITECTURE => {
            let known = [QWEN, CHATTERBOX, SUPERTONIC];
            let family = meta.text(OURS)?;
            known.into_iter().find(|f| *f == family).and_then(|f| layout(Port::Orate, f, Role::Whole))
        }
        "audiocpp" => {
            let family = match meta.text("audiocpp.model_spec.family").unwrap_or_default() {
                f if f.starts_with("qwen3") => Some(QWEN),
                f if f.starts_with("chatterbox") => Some(CHATTERBOX),
                f if f.starts_with("supertonic") => Some(SUPERTONIC),
                _ => None,
            };
            let named = |name: &str| match name.split('/').next().unwrap_or_default() {
                "model_weights" | "speech_tokenizer_weights" => Some(QWEN),
                "s3gen" | "t3" | "t3_english" | "t3_multilingual_v2" | "t3_multilingual_v3" => {
                    Some(CHATTERBOX)
                }
                "weights" => Some(SUPERTONIC),
                _ => None,
            };
            let names = file.strings("audiocpp.tensor_names").unwrap_or_default();
            let family = family.or_else(|| names.iter().find_map(|n| named(n)))?;
            layout(Port::AudioCpp, family, Role::Whole)
        }
        "qwen3-tts" if has("qwen3-tts.talker.block_count") => layout(Port::QwenTtsCpp, QWEN, Role::Talker),
        "qwen3-tts" if has("qwen3-tts.block_count") => layout(Port::Qwen3TtsCpp, QWEN, Role::Talker),
        "qwen3-tts-tokenizer" if has("qwen3-tts-tokenizer.decoder.num_hidden_layers") => {
            layout(Port::QwenTtsCpp, QWEN, Role::Codec)
        }
        "qwen3-tts-tokenizer" => layout(Port::Qwen3TtsCpp, QWEN, Role::Codec),
        "qwen3tts" if has("qwen3tts.talker.n_layers") => layout(Port::CrispAsr, QWEN, Role::Talker),
        "qwen3tts" if file.contains("token_embd.weight") => layout(Port::LlamaCpp, QWEN, Role::Talker),
        "qwen3tts_tokenizer" => layout(Port::CrispAsr, QWEN, Role::Codec),
        "qwen3tts.voicepack" => layout(Port::CrispAsr, QWEN, Role::Voices),
        "clip" if meta.text("clip.gen.audio.projector_type") == Some("qwen3tts_gen") => {
            layout(Port::LlamaCpp, QWEN, Role::Codec)
        }
        "chatterbox" if has("chatterbox.t3.n_layers") => layout(Port::CrispAsr, CHATTERBOX, Role::T3),
        "chatterbox-voice" => layout(Port::CrispAsr, CHATTERBOX, Role::Voices),
        "chatterbox" | "chatterbox-s3gen" => {
            let begins = |prefix: &str| file.names().iter().any(|n| n.starts_with(prefix));
            match () {
                () if begins("model/h0/") => layout(Port::ChatterboxCpp, CHATTERBOX, Role::T3),
                () if begins("flow/") => layout(Port::ChatterboxCpp, CHATTERBOX, Role::S3Gen),
                () if begins("s3.") => layout(Port::CrispAsr, CHATTERBOX, Role::S3Gen),
                () => None,
            }
        }
        "supertonic" | "supertonic2" | "supertonic3" if has("supertonic.source_names") => {
            layout(Port::TtsCpp, SUPERTONIC, Role::Whole)
        }
        "supertonic-tts" => layout(Port::CrispAsr, SUPERTONIC, Role::Whole),
        _ => official(file),
    }
}

/// Layout J: official names, whatever the architecture is called.
fn official(file: &GgufFile) -> Option<Layout> {
    let has = |name: &str| file.contains(name);
    let (family, role) = match () {
        () if has("tts.ae.decoder.embed.net.weight") => return None, // packed voices
        () if has("talker.model.norm.weight") => (QWEN, Role::Talker),
        () if has("decoder.pre_conv.conv.weight") => (QWEN, Role::Codec),
        () if has("tfmr.layers.0.input_layernorm.weight") || has("tfmr.wpe.weight") => (CHATTERBOX, Role::T3),
        () if has("flow.input_embedding.weight") => (CHATTERBOX, Role::S3Gen),
        () if has("lstm.weight_hh_l0") => (CHATTERBOX, Role::VoiceEncoder),
        () => return None,
    };
    Some(Layout { port: Port::Official, family, role })
}

/// A GGUF file and its layout.
#[derive(Clone)]
pub struct Part {
    /// Where it is.
    pub path: PathBuf,
    /// The file.
    pub file: Arc<GgufFile>,
    /// Its layout.
    pub layout: Layout,
}

impl Part {
    /// Opens a file; `Ok(None)` if it is of no family's layout.
    ///
    /// # Errors
    /// It cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Option<Part>, ModelError> {
        Ok(Self::of(path, GgufFile::open(path)?))
    }

    /// As [`Part::open`], without the vocabulary ([`GgufFile::skim`]).
    fn skim(path: &Path) -> Result<Option<Part>, ModelError> {
        Ok(Self::of(path, GgufFile::skim(path)?))
    }

    fn of(path: &Path, file: GgufFile) -> Option<Part> {
        let layout = detect(&file)?;
        Some(Part { path: path.to_owned(), file: Arc::new(file), layout })
    }

    /// The file with its vocabulary, if it was skimmed.
    fn whole(self) -> Result<Part, ModelError> {
        Ok(Part { file: Arc::new(GgufFile::open(&self.path)?), ..self })
    }

    /// What it is, for messages: `S3Gen of Chatterbox (tts-cpp)`.
    fn what(&self) -> String {
        let Layout { port, family, role } = self.layout;
        format!("{} of {} ({})", role.name(), family_name(family), port.name())
    }

    /// An error about the file's content.
    pub fn wrong(&self, problem: impl Into<String>) -> ModelError {
        ModelError::Content { path: self.path.clone(), problem: problem.into() }
    }

    /// The type of most bytes of its matrices.
    fn main_type(&self) -> Option<DType> {
        let mut bytes = HashMap::<DType, usize>::new();
        for info in self.file.names().into_iter().filter_map(|n| self.file.info(n)) {
            if info.shape.len() > 1 {
                *bytes.entry(info.dtype).or_default() += info.dtype.bytes_for(info.len()).unwrap_or(0);
            }
        }
        bytes.into_iter().max_by_key(|(_, n)| *n).map(|(dtype, _)| dtype)
    }
}

/// Name for people of a family.
fn family_name(tag: &'static str) -> &'static str {
    match tag {
        QWEN => "Qwen3-TTS",
        CHATTERBOX => "Chatterbox",
        _ => "Supertonic",
    }
}

/// Why a file that is of no known layout is no model, and what to take instead.
pub fn stranger(file: &GgufFile) -> String {
    let architecture = file.string("general.architecture").unwrap_or_default();
    let meta = Meta::new(file, "");
    let tokens = meta.texts("tokenizer.ggml.tokens").map_or(0, <[String]>::len);
    let is_assets = file.contains("text_embd") && file.names().iter().any(|n| n.starts_with("proj."));
    match architecture {
        "qwen3" | "qwen3vl" if CODES_AS_TOKENS.contains(&tokens) => ONNX_CODEC.to_owned(),
        _ if is_assets => ONNX_CODEC.to_owned(),
        ARCHITECTURE => {
            let family = quoted(meta.text(OURS).unwrap_or_default());
            format!("it holds a model of the family {family}, which this orate does not know; update orate")
        }
        "audiocpp" => {
            let family = quoted(meta.text("audiocpp.model_spec.family").unwrap_or_default());
            format!("it holds a model of audio.cpp of the family {family}; {FAMILIES}")
        }
        other => format!(
            "a GGUF file of architecture {}, which is no layout of a known engine; {FAMILIES}. \
             docs/models.md lists the engines whose files are read",
            quoted(other)
        ),
    }
}

const FAMILIES: &str = "orate speaks with Qwen3-TTS, Chatterbox and Supertonic";

/// Vocabularies of talker and code predictor in files for another engine.
const CODES_AS_TOKENS: [usize; 2] = [3072, 30_720];
const ONNX_CODEC: &str = "a part of a Qwen3-TTS model whose codec is in ONNX files, which cannot be read; \
                          take the official repository, or Serveurperso/Qwen3-TTS-GGUF";

/// Why the GGUF files of a folder are no model, if it has some and none is of a known layout: the first one's
/// name, and what is wrong with it.
pub fn strangers(folder: &Path) -> Option<String> {
    let reason = |path: &PathBuf| match GgufFile::open(path) {
        Ok(file) => detect(&file).is_none().then(|| stranger(&file)),
        Err(e) => Some(e.to_string()),
    };
    let path = files_of(folder).into_iter().next()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Some(format!("{}: {}", quoted(&name), reason(&path)?))
}

/// Whether a file begins as GGUF files do, whatever its name.
pub fn has_magic(path: &Path) -> bool {
    let mut start = [0; 4];
    std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut start)).is_ok() && start == *b"GGUF"
}

/// The GGUF files of a folder, sorted.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let is_gguf = |p: &PathBuf| p.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && p.is_file();
    let mut all: Vec<_> = entries.filter(is_gguf).collect();
    all.sort();
    all
}

/// Whether a path is a GGUF file of a family, or a folder with such files. Damaged files count for none.
pub fn is_of(path: &Path, family: &str) -> bool {
    let fits = |p: &Path| Part::skim(p).ok().flatten().is_some_and(|part| part.layout.family == family);
    match path.is_dir() {
        true => files_of(path).iter().any(|p| fits(p)),
        false => path.is_file() && has_magic(path) && fits(path),
    }
}

/// A model of one file or two.
pub struct Pair {
    /// The whole model, the talker or T3; or a codec or S3Gen alone.
    pub main: Part,
    /// The codec or S3Gen, if the main file needs one.
    pub partner: Option<Part>,
}

/// Finds the files of the model at `path`: a file, or a folder with GGUF files. Two files that belong
/// together are found by their content; `codec` names the second one where there are several.
///
/// # Errors
/// A file cannot be read; there is none, or several and nothing says which; or they do not belong together.
pub fn pair(path: &Path, family: &'static str, codec: Option<&Path>) -> Result<Pair, ModelError> {
    let refused = |problem: String| ModelError::NotAModel { path: path.to_owned(), problem };
    let main = match path.is_dir() {
        true => {
            let Found { parts: all, damaged } = Found::of(path, family);
            let mut leading: Vec<Part> = all.iter().filter(|p| p.layout.role.leads()).cloned().collect();
            match leading.len() {
                // A file that should lead may be damaged.
                0 => match (damaged, all.into_iter().find(|p| p.layout.role != Role::Voices)) {
                    (Some(damaged), _) => return Err(damaged),
                    (None, Some(part)) => part.whole()?,
                    (None, None) => {
                        let problem = "its GGUF files hold voices and no model; add the files of the model";
                        return Err(refused(problem.to_owned()));
                    }
                },
                1 => leading.remove(0).whole()?,
                _ => {
                    let names = names(&leading);
                    return Err(refused(format!("it holds several models; give one of the files: {names}")));
                }
            }
        }
        false => {
            let file = GgufFile::open(path)?;
            let problem = stranger(&file);
            Part::of(path, file).ok_or_else(|| refused(problem))?
        }
    };
    let version = Meta::new(&main.file, "").count(VERSION.0).unwrap_or(0);
    if main.layout.port == Port::Orate && version > VERSION.1 as usize {
        let newest = VERSION.1;
        return Err(main.wrong(format!(
            "it was made by a newer orate (version {version} of the format; {newest} is the newest known here); \
             update orate"
        )));
    }
    if main.layout.role == Role::Voices {
        let engine = main.layout.port.name();
        let problem = format!("it holds voices of {engine}, and no model; give the file of the model");
        return Err(refused(problem));
    }
    let Some(wanted) = main.layout.role.partner() else {
        if codec.is_some() {
            return Err(no_codec(main.layout.role.name()));
        }
        return Ok(Pair { main, partner: None });
    };
    let partner = match codec {
        Some(codec) => {
            let wrong = |problem| ModelError::NotAModel { path: codec.to_owned(), problem };
            let needs = format!("not a {} of {}", wanted.name(), family_name(main.layout.family));
            let file = GgufFile::open(codec)?;
            let problem = format!("{needs}: {}", stranger(&file));
            let part = Part::of(codec, file).ok_or_else(|| wrong(problem))?;
            if (part.layout.family, part.layout.role) != (main.layout.family, wanted) {
                return Err(wrong(format!("{needs}, but the {}; name another file", part.what())));
            }
            part
        }
        None => beside(&main, wanted)?,
    };
    let [a, b] = [main.layout.port, partner.layout.port];
    if (a == Port::LlamaCpp) != (b == Port::LlamaCpp) {
        return Err(partner.wrong(format!(
            "it is of {}, and {} of {}; files of llama.cpp go together only",
            b.name(),
            main.path.display(),
            a.name()
        )));
    }
    Ok(Pair { main, partner: Some(partner) })
}

/// The error for a second file that nothing needs.
pub fn no_codec(what: &str) -> ModelError {
    ModelError::Option {
        option: "codec",
        got: "given".to_owned(),
        allowed: format!("this {what} needs no second file; leave it out"),
    }
}

/// The error for a model that `quantize` cannot start from, as it is in GGUF.
pub fn no_packing(path: &Path) -> ModelError {
    let problem = "it is in GGUF already, with weights that may be rounded; give the folder of the official \
                   repository";
    ModelError::NotAModel { path: path.to_owned(), problem: problem.to_owned() }
}

fn names(parts: &[Part]) -> String {
    let name = |p: &Part| quoted(&p.path.file_name().unwrap_or_default().to_string_lossy()).to_string();
    parts.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// GGUF files of a folder.
struct Found {
    /// Those of a family, without their vocabularies.
    parts: Vec<Part>,
    /// Why the first one that cannot be read cannot. It need not belong to the model.
    damaged: Option<ModelError>,
}

impl Found {
    fn of(folder: &Path, family: &str) -> Found {
        let mut found = Found { parts: vec![], damaged: None };
        for path in files_of(folder) {
            match Part::skim(&path) {
                Ok(part) => found.parts.extend(part.filter(|p| p.layout.family == family)),
                Err(e) => drop(found.damaged.get_or_insert(e)),
            }
        }
        found
    }
}

/// The file of a role that lies beside another: of the same engine if there is one, and of the same type.
fn beside(main: &Part, wanted: Role) -> Result<Part, ModelError> {
    let folder = main.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Found { parts: mut found, damaged } = Found::of(folder, main.layout.family);
    found.retain(|p| p.layout.role == wanted);
    let alien = found.iter().find(|p| p.layout.port != main.layout.port && is_llama(p, main));
    let alien = alien.map(Part::what).zip(alien.map(|p| names(std::slice::from_ref(p))));
    found.retain(|p| p.layout.port == main.layout.port || !is_llama(p, main));
    type Keep<'a> = &'a dyn Fn(&Part) -> bool;
    let main_type = main.main_type();
    let narrower: [Keep<'_>; 4] = [
        &|p| p.layout.port == main.layout.port,
        &|p| variant_of(p) == variant_of(main),
        &|p| ending(&p.path).is_some() && ending(&p.path) == ending(&main.path),
        &|p| p.main_type() == main_type,
    ];
    for keep in narrower {
        if found.len() > 1 && found.iter().any(keep) {
            found.retain(keep);
        }
    }
    match found.len() {
        0 => Err(match (damaged, alien) {
            (Some(damaged), _) => main.wrong(format!(
                "the file of its {0} is missing, or is the one beside it that cannot be read ({damaged}); \
                 replace it, or name the {0} as `codec`",
                wanted.name()
            )),
            (None, Some((what, name))) => main.wrong(format!(
                "the file of its {0} is missing; {name} beside it is the {what}, and files of llama.cpp go \
                 together only; name the {0} of another engine as `codec`",
                wanted.name()
            )),
            (None, None) => ModelError::Incomplete {
                family: family_name(main.layout.family),
                path: main.path.clone(),
                files: vec![format!("the file of its {}", wanted.name())],
                advice: "put that GGUF file beside it, or name it as `codec`",
            },
        }),
        1 => found.remove(0).whole(),
        _ => Err(main.wrong(format!(
            "several files beside it hold a {}: {}; name one as `codec`",
            wanted.name(),
            names(&found)
        ))),
    }
}

/// The last part of a file's name, where engines put the type: `q8_0` of `talker-q8_0.gguf`.
fn ending(path: &Path) -> Option<String> {
    Some(path.file_stem()?.to_str()?.rsplit_once('-')?.1.to_ascii_lowercase())
}

fn is_llama(a: &Part, b: &Part) -> bool {
    a.layout.port == Port::LlamaCpp || b.layout.port == Port::LlamaCpp
}

/// Which of the models of a family a file of Chatterbox is for: whether it is Turbo or Nano.
fn variant_of(part: &Part) -> Option<bool> {
    let has = |names: [&str; 3]| names.iter().any(|n| part.file.contains(n));
    match part.layout.role {
        Role::T3 => Some(has(["model/wpe", "t3.wpe.weight", "tfmr.wpe.weight"])),
        Role::S3Gen => {
            let names = [
                "cfm/time_embed_mixer/weight",
                "s3.fd.tmx.weight",
                "flow.decoder.estimator.time_embed_mixer.weight",
            ];
            Some(has(names))
        }
        _ => None,
    }
}

// ---- what was done ----------------------------------------------------------------------------------------

/// How a file was read, for people.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Whose layout, and of which part: `qwentts.cpp (talker)`.
    pub layout: String,
    /// The second file.
    pub partner: Option<String>,
    /// What was damaged when the file was written, and is as it should be now.
    pub repaired: Vec<String>,
    /// What the file lacks, and has the value of all released models.
    pub filled: Vec<String>,
    /// What does not work, and why.
    pub cannot: Vec<String>,
    /// Tensors that nothing reads.
    pub unused: Vec<String>,
}

/// Most unused tensors that are named.
const MOST_NAMED: usize = 4;

impl Report {
    /// An empty report of a pair of files.
    pub fn new(pair: &Pair) -> Report {
        let layout = pair.main.layout;
        let partner = pair.partner.as_ref().map(|p| {
            let name = p.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match p.path.parent() == pair.main.path.parent() {
                true => format!("{name}, beside it"),
                false => p.path.display().to_string(),
            }
        });
        let layout = match layout.role {
            Role::Whole => layout.port.name().to_owned(),
            role => format!("{} ({})", layout.port.name(), role.name()),
        };
        Report { layout, partner, ..Report::default() }
    }

    /// Name and value of each part that there is.
    pub fn facts(&self) -> Vec<(&'static str, Value)> {
        let mut facts = vec![("layout", json!(self.layout))];
        facts.extend(self.partner.as_ref().map(|p| ("second file", json!(p))));
        let lists = [("repaired", &self.repaired), ("filled in", &self.filled), ("cannot", &self.cannot)];
        facts.extend(lists.into_iter().filter(|(_, l)| !l.is_empty()).map(|(name, l)| (name, json!(l))));
        if !self.unused.is_empty() {
            let named = self.unused[..self.unused.len().min(MOST_NAMED)].join(", ");
            let more = if self.unused.len() > MOST_NAMED { ", …" } else { "" };
            facts.push(("unused tensors", json!(format!("{}: {named}{more}", self.unused.len()))));
        }
        facts
    }
}
