//! Calls that speak: text, markup, lexicon, and who speaks.

use crate::audio::Audio;
use crate::detached;
use crate::error::{Failure, Result};
use crate::options::{self, Keywords, is_own, type_of, with_own, with_voice};
use crate::stream::{self, Stream, Whole};
use anyhow::Context;
use orate::{Cancel, Engine, Lexicon, Options, Script, Speaker, Value, VoiceStore};
use orate_cli::UsageError;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyTuple};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Keywords of `say` and streams that are options of the library.
const COMMON: [&str; 5] = ["voice", "language", "seed", "silence", "raw"];

/// What is spoken, and how.
pub struct Speech {
    engine: Engine,
    pub options: Options,
    cancel: Cancel,
    markup: Markup,
    /// Who speaks for the voices of the markup, as far as the call says.
    roles: BTreeMap<String, Role>,
}

#[derive(Default)]
struct Markup {
    is_ssml: bool,
    has_tags: bool,
    lexicon: Lexicon,
}

/// Who speaks for a voice of the markup.
struct Role {
    engine: Engine,
    /// With its voice, and without options of families.
    options: Options,
    /// Options of its family that are given for it.
    own: Vec<(String, Value)>,
}

impl Speech {
    /// Reads what all calls that speak have in common, and leaves the options of families.
    pub fn read(engine: &Engine, keywords: &mut Keywords<'_>) -> Result<Speech> {
        let (options, cancel) = options::cancellable();
        let mut options = keywords.common(engine, &COMMON, options)?;
        options.word_times = keywords.is_on("words")?;
        let (is_ssml, has_tags) = (keywords.is_on("ssml")?, keywords.is_on("tags")?);
        if is_ssml && has_tags {
            let problem = "a text has SSML or tags: give ssml=True or tags=True, not both";
            return Err(UsageError(problem.to_owned()).into());
        }
        let lexicon = keywords.value("lexicon")?.as_ref().map(lexicon).transpose()?.unwrap_or_default();
        let mut roles = BTreeMap::new();
        if let Some(voices) = keywords.value("voices")? {
            if !is_ssml && !has_tags {
                let problem = "voices say who speaks for the names of markup: add ssml=True or tags=True";
                return Err(UsageError(problem.to_owned()).into());
            }
            let Ok(voices) = voices.cast::<PyMapping>() else {
                let problem = format!("voices is a {}; give a dict by names", type_of(&voices));
                return Err(PyTypeError::new_err(problem).into());
            };
            for item in voices.items()? {
                let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
                let role = Role::read(engine, &options, &name, &value)?;
                roles.insert(name, role);
            }
        }
        let markup = Markup { is_ssml, has_tags, lexicon };
        Ok(Speech { engine: engine.clone(), options, cancel, markup, roles })
    }

    /// Begins to speak. `own` are options of families: they hold for each engine that has them.
    pub fn begin(&self, py: Python<'_>, text: &str, own: &[(String, Value)]) -> Result<Stream> {
        let prepared = self.prepare(text, own)?;
        let rate = self.engine.sample_rate();
        Stream::begin(py, self.cancel.clone(), rate, prepared.timed_text(), || prepared.stream())
    }

    /// Speaks several texts, at once where the model is faster that way.
    pub fn batch(&self, py: Python<'_>, texts: &[String], own: &[(String, Value)]) -> Result<Vec<Audio>> {
        let prepared: Vec<_> = texts.iter().map(|text| self.prepare(text, own)).collect::<Result<_>>()?;
        let speak = |i: usize| Whole::of(prepared[i].stream()?, prepared[i].timed_text());
        let spoken = detached::run(py, &self.cancel, || self.engine.at_once(texts.len(), speak))??;
        let mut warnings: Vec<String> = spoken.iter().flat_map(|whole| whole.warnings.clone()).collect();
        warnings.sort();
        warnings.dedup();
        stream::warn(py, &warnings)?;
        spoken.into_iter().map(|whole| whole.audio(py, self.engine.sample_rate())).collect()
    }

    /// Reads the markup of a text and finds who speaks.
    fn prepare<'a>(&'a self, text: &'a str, own: &[(String, Value)]) -> Result<Prepared<'a>> {
        let Speech { engine, options, markup, roles, .. } = self;
        let script = markup.script(text, options.language.as_deref())?;
        let of_others = |name: &str| !has(engine, name) && roles.values().any(|role| has(&role.engine, name));
        let of_call = own.iter().filter(|(name, _)| !of_others(name)).cloned();
        let options = with_own(options.clone(), of_call);
        let names = script.iter().flat_map(|script| &script.segments).filter_map(|s| s.voice.as_ref());
        let speaker = |name: &String| {
            let speaker = match roles.get(name) {
                Some(role) => role.speaker(&options, own),
                None => own_voice(engine, &options, name, roles)?,
            };
            Ok((name.clone(), speaker))
        };
        let cast = names.collect::<BTreeSet<_>>().into_iter().map(speaker).collect::<Result<_>>()?;
        Ok(Prepared { engine, text, options, script, cast })
    }
}

/// A text of which everything is known.
struct Prepared<'a> {
    engine: &'a Engine,
    text: &'a str,
    options: Options,
    /// If it has markup or a lexicon.
    script: Option<Script>,
    cast: BTreeMap<String, Speaker>,
}

impl Prepared<'_> {
    fn stream(&self) -> orate::Result<orate::Stream> {
        let Some(script) = &self.script else { return self.engine.stream(self.text, &self.options) };
        // Also if nothing is spoken with them: an option that no engine has is an error.
        self.engine.check(&self.options)?;
        self.engine.stream_script(script, &self.options, &|name| Ok(self.cast[name].clone()))
    }

    /// The text, if its words get times.
    fn timed_text(&self) -> Option<&str> {
        self.options.word_times.then_some(self.text)
    }
}

/// Whether a model has an option.
fn has(engine: &Engine, option: &str) -> bool {
    engine.model().accepts().iter().any(|spec| spec.name == option)
}

impl Markup {
    /// The script of a text with markup or a lexicon.
    fn script(&self, text: &str, language: Option<&str>) -> Result<Option<Script>> {
        let script = match (self.is_ssml, self.has_tags) {
            (true, _) => Script::ssml(text, language),
            (_, true) => Script::tagged(text),
            _ if !self.lexicon.is_empty() => Ok(Script::plain(text)),
            _ => return Ok(None),
        };
        let mut script = script.map_err(orate::Error::from)?;
        self.lexicon.apply(&mut script);
        Ok(Some(script))
    }
}

impl Role {
    /// A voice, an engine, or a tuple of an engine, its voice and a dict of options, each of which may be
    /// left out.
    fn read(engine: &Engine, options: &Options, name: &str, value: &Bound<'_, PyAny>) -> Result<Role> {
        let argument = format!("voices[{name:?}]");
        let parts: Vec<Bound<'_, PyAny>> = match value.cast::<PyTuple>() {
            Ok(parts) => parts.iter().collect(),
            Err(_) => vec![value.clone()],
        };
        let mut role_engine = None;
        let (mut voice, mut own) = (None, None);
        for part in parts.into_iter().filter(|part| !part.is_none()) {
            let is_second = if let Some(engine) = options::engine_of(&part) {
                role_engine.replace(engine).is_some()
            } else if let Ok(dict) = part.cast::<PyDict>() {
                own.replace(dict.copy()?).is_some()
            } else {
                voice.replace(part).is_some()
            };
            if is_second {
                let problem = "give an engine, its voice and a dict of options, each at most once";
                return Err(PyTypeError::new_err(format!("{argument}: {problem}")).into());
            }
        }
        let engine = role_engine.unwrap_or_else(|| engine.clone());
        let mut options = Options { voice: None, cloned: None, ..options.clone() };
        if let Some(voice) = voice {
            options = with_voice(&engine, options, &argument, &voice)?;
        }
        let mut keywords = Keywords::new(value.py(), argument, own.as_ref());
        options = keywords.common(&engine, &["language", "seed"], options)?;
        let own = keywords.own(&engine)?;
        Ok(Role { engine, options, own })
    }

    fn speaker(&self, call: &Options, own: &[(String, Value)]) -> Speaker {
        let Role { engine, options, own: of_role } = self;
        let of_call = own.iter().filter(|(name, _)| has(engine, name));
        let options = Options { whole: call.whole, ..options.clone() };
        let options = with_own(options, of_call.chain(of_role).cloned());
        Speaker { engine: engine.clone(), options }
    }
}

/// Who speaks for a name that only the text has: a voice of the model, a mix of such, or a kept voice. A text
/// may come from anywhere, so it names no files.
fn own_voice(
    engine: &Engine,
    options: &Options,
    name: &str,
    roles: &BTreeMap<String, Role>,
) -> Result<Speaker> {
    let is_mix = || name.split('+').all(|part| is_own(engine, part.rsplit_once(':').map_or(part, |p| p.0)));
    let speaker = |options| Ok(Speaker { engine: engine.clone(), options });
    if is_own(engine, name) || !engine.can_clone() && is_mix() {
        return speaker(Options { voice: Some(name.to_owned()), cloned: None, ..options.clone() });
    }
    let kept = if engine.can_clone() { VoiceStore::user()?.names()? } else { vec![] };
    if kept.iter().any(|kept| kept == name) {
        let cloned = VoiceStore::user()?.load(name)?;
        return speaker(Options { voice: None, cloned: Some(cloned), ..options.clone() });
    }
    let own = engine.voices().iter().map(|voice| &voice.name);
    let known: Vec<&str> = roles.keys().chain(own).chain(&kept).map(String::as_str).collect();
    let known = match known.is_empty() {
        true => "there is none".to_owned(),
        false => format!("there are {}", known.join(", ")),
    };
    let problem = format!("the markup names a voice {name:?}; {known}; `voices` adds more");
    Err(UsageError(problem).into())
}

/// A lexicon from a file, or a mapping of words to spellings.
fn lexicon(value: &Bound<'_, PyAny>) -> Result<Lexicon> {
    if let Ok(entries) = value.cast::<PyMapping>() {
        let mut lexicon = Lexicon::default();
        for entry in entries.items()? {
            let Ok((word, spelling)) = entry.extract::<(String, String)>() else {
                let problem = "words and spellings of a lexicon are str";
                return Err(PyTypeError::new_err(problem).into());
            };
            lexicon.insert(&word, &spelling).map_err(orate::Error::from)?;
        }
        return Ok(lexicon);
    }
    let Ok(path) = value.extract::<PathBuf>() else {
        let problem = format!("lexicon is a {}; give a dict or the path of a file", type_of(value));
        return Err(PyTypeError::new_err(problem).into());
    };
    let read = value.py().detach(|| {
        let bytes = std::fs::read(&path)?;
        anyhow::Ok(Lexicon::parse(&bytes).map_err(orate::Error::from)?)
    });
    read.with_context(|| path.display().to_string()).map_err(Failure)
}
