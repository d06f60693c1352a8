//! Resolves voice names of clients. A name is never used as a path.

use crate::error::{ApiError, Result, of_library};
use crate::models::Model;
use crate::settings::Settings;
use orate::{ClonedVoice, Options};
use serde_json::{Value, json};
use std::sync::Arc;

/// OpenAI's voices. Some clients send no other names, so each is an alias of a voice of the model.
pub const OPENAI: [&str; 13] = [
    "alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer", "verse", "marin",
    "cedar",
];

/// Name of a model's default voice.
const DEFAULT: &str = "default";

/// The voice of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Voice {
    /// The model's default.
    Default,
    /// One of the model's, or a mix of them.
    Own(String),
    /// A kept one.
    Kept(String, Arc<ClonedVoice>),
}

impl Voice {
    /// Its name; `default` for the default voice.
    pub fn name(&self) -> &str {
        match self {
            Voice::Default => DEFAULT,
            Voice::Own(name) | Voice::Kept(name, _) => name,
        }
    }

    /// Options with this voice.
    #[must_use]
    pub fn set(&self, options: Options) -> Options {
        match self {
            Voice::Default => options,
            Voice::Own(name) => Options { voice: Some(name.clone()), ..options },
            Voice::Kept(_, voice) => Options { cloned: Some(voice.clone()), ..options },
        }
    }
}

/// Resolves a name: a kept voice, one of the model's, a mix of the model's, or an alias.
///
/// # Errors
/// There is no such voice, or a mix is malformed: 400.
pub fn find(model: &Model, settings: &Settings, name: &str) -> Result<Voice> {
    let name = name.trim();
    if name.is_empty() || name.eq_ignore_ascii_case(DEFAULT) {
        return Ok(Voice::Default);
    }
    named(model, settings, name).or_else(|e| alias(model, settings, name).ok_or(e))
}

/// As [`find`], without aliases.
fn named(model: &Model, settings: &Settings, name: &str) -> Result<Voice> {
    let mut misfit = None;
    if let Some(store) = settings.voices.as_ref().filter(|_| model.engine.can_clone())
        && is_kept(settings, name)
    {
        let voice = store.load(name).map_err(|e| of_library(&e, settings.verbose_errors))?;
        match model.engine.check_voice(&voice) {
            Ok(()) => return Ok(Voice::Kept(name.to_owned(), voice)),
            // That of another model does not hide what this one calls so.
            Err(e) => misfit = Some(of_library(&e, settings.verbose_errors)),
        }
    }
    if let Some(own) = own(model, name) {
        return Ok(Voice::Own(own.to_owned()));
    }
    if name.contains(['+', ':', '(']) {
        return mix(model, settings, name).map(Voice::Own);
    }
    Err(misfit.unwrap_or_else(|| unknown(model, settings, name)))
}

/// Checks that each alias of the settings is of a voice that one of the models has.
///
/// # Errors
/// The first alias for which none has, and why.
pub fn check_aliases(models: &[Arc<Model>], settings: &Settings) -> std::result::Result<(), String> {
    for (alias, voice) in &settings.aliases {
        let found: Vec<_> = models.iter().map(|model| named(model, settings, voice)).collect();
        if found.iter().all(Result::is_err) {
            let problems: Vec<_> = found.into_iter().filter_map(Result::err).map(|e| e.message).collect();
            return Err(format!("{alias}={voice}: {}", problems.join("; ")));
        }
    }
    Ok(())
}

fn is_kept(settings: &Settings, name: &str) -> bool {
    let store = settings.voices.as_ref();
    store.is_some_and(|store| store.names().is_ok_and(|names| names.iter().any(|kept| kept == name)))
}

/// Refuses a name to keep a voice under that `voice` takes for a voice of a model.
///
/// # Errors
/// It is `default`, or a voice of one of the models has it: 400.
pub fn check_name(models: &[Arc<Model>], name: &str) -> Result<()> {
    let owner = models.iter().find(|model| own(model, name).is_some());
    let has = match owner {
        _ if name.eq_ignore_ascii_case(DEFAULT) => "`default` is the model's own voice".to_owned(),
        Some(model) => format!("{} has a voice of this name", model.id),
        None => return Ok(()),
    };
    let message = format!("{has}, which `voice` would choose; take another name");
    Err(ApiError::field("invalid_value", "name", message))
}

/// Name of a voice of the model, in any case.
fn own<'a>(model: &'a Model, name: &str) -> Option<&'a str> {
    let voices = model.engine.voices();
    let exact = voices.iter().find(|v| v.name == name);
    exact.or_else(|| voices.iter().find(|v| v.name.eq_ignore_ascii_case(name))).map(|v| v.name.as_str())
}

/// Resolves an alias of the settings, or one of OpenAI's voices. These map to the model's voices in order, or
/// to its default voice, if it has only that.
fn alias(model: &Model, settings: &Settings, name: &str) -> Option<Voice> {
    let given = settings.aliases.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
    if let Some((_, voice)) = given
        && let Ok(voice) = named(model, settings, voice)
    {
        return Some(voice);
    }
    let at = OPENAI.iter().position(|openai| openai.eq_ignore_ascii_case(name))?;
    match model.engine.voices() {
        [] => model.has_default_voice.then_some(Voice::Default),
        voices => Some(Voice::Own(voices[at % voices.len()].name.clone())),
    }
}

/// Converts a mix such as `F1:0.7+M1:0.3`, or `F1(2)+M1` as in Kokoro, to the first form.
fn mix(model: &Model, settings: &Settings, text: &str) -> Result<String> {
    let bad = |problem: &str| {
        let message = format!("{problem}; write a mix as F1:0.7+M1:0.3 or F1(2)+M1");
        Err(ApiError::field("invalid_value", "voice", message))
    };
    if text.len() > 200 {
        return bad("the mix of voices has more than 200 bytes");
    }
    let mut parts = vec![];
    for part in text.split('+').map(str::trim) {
        let (name, weight) = match (part.strip_suffix(')'), part.rsplit_once(':')) {
            (Some(open), _) => match open.rsplit_once('(') {
                Some((name, weight)) => (name, Some(weight)),
                None => return bad("a bracket of the mix is not opened"),
            },
            (None, Some((name, weight))) => (name, Some(weight)),
            (None, None) => (part, None),
        };
        let weight = weight.map_or(Ok(1.0), |w| w.trim().parse::<f32>());
        let Some(weight) = weight.ok().filter(|w| w.is_finite() && *w > 0.0) else {
            return bad("a weight of the mix is not a positive number");
        };
        match own(model, name.trim()) {
            Some(name) => parts.push(format!("{name}:{weight}")),
            None if name.trim().is_empty() => return bad("a part of the mix is empty"),
            None if is_kept(settings, name.trim()) => {
                let message =
                    format!("`{}` is a kept voice; only voices of the model can be mixed", name.trim());
                return Err(ApiError::field("unsupported_value", "voice", message));
            }
            None => return Err(unknown(model, &Settings::default(), name.trim())),
        }
    }
    Ok(parts.join("+"))
}

fn unknown(model: &Model, settings: &Settings, name: &str) -> ApiError {
    let name: String = name.chars().take(64).collect();
    let mut known: Vec<String> = model.engine.voices().iter().map(|v| v.name.clone()).collect();
    known.extend(kept(model, settings).into_iter().map(|(name, _)| name));
    let known = match known.as_slice() {
        [] if model.has_default_voice => "none with a name; leave `voice` out".to_owned(),
        [] if model.engine.can_clone() && settings.takes_voices() => {
            "none yet; send a recording to POST /v1/audio/voices".to_owned()
        }
        [] => "none".to_owned(),
        known => known.join(", "),
    };
    let message = format!("{} has no voice `{name}`; it has: {known}", model.id);
    ApiError::field("voice_not_found", "voice", message)
}

/// Kept voices that fit a model. Unreadable ones are left out.
pub fn kept(model: &Model, settings: &Settings) -> Vec<(String, Arc<ClonedVoice>)> {
    let Some(store) = settings.voices.as_ref().filter(|_| model.engine.can_clone()) else { return vec![] };
    let names = store.names().unwrap_or_default().into_iter();
    let load = |name: String| store.load(&name).ok().map(|voice| (name, voice));
    names.filter_map(load).filter(|(_, voice)| model.engine.check_voice(voice).is_ok()).collect()
}

/// Lists the voices of a model, without aliases whose name means another voice.
pub fn list(model: &Model, settings: &Settings) -> Vec<Value> {
    let of_model = |name: &str, kind: &str| {
        json!({
            "id": name, "name": name, "object": "voice", "model": model.id, "kind": kind,
            "languages": model.languages,
        })
    };
    let of_own = model.engine.voices().iter().map(|voice| {
        let mut json = of_model(&voice.name, "model");
        json["default"] = voice.is_default.into();
        json
    });
    let kept = kept(model, settings);
    let of_kept = kept.iter().map(|(name, voice)| {
        let mut json = of_model(name, "kept");
        json["transcript"] = voice.words.get("transcript").cloned().into();
        json
    });
    let given = settings.aliases.iter().map(|(alias, _)| alias.as_str());
    let aliases = given.clone().chain(OPENAI.into_iter().filter(|name| {
        // The settings may choose another voice.
        given.clone().all(|alias| !alias.eq_ignore_ascii_case(name))
    }));
    let is_shadowed = |name: &str| kept.iter().any(|(kept, _)| kept == name) || own(model, name).is_some();
    let aliases = aliases.filter(|name| !is_shadowed(name)).filter_map(|name| {
        let voice = alias(model, settings, name)?;
        let mut json = of_model(name, "alias");
        json["alias_of"] = voice.name().into();
        Some(json)
    });
    of_own.chain(of_kept).chain(aliases).collect()
}
