//! Who speaks for the voices of a script: voices of the model, kept ones, and those of other models.

use crate::args::{EngineArgs, ModelArgs};
use crate::delivery::with_voice;
use crate::engine_report::note_fallbacks;
use crate::failure::UsageError;
use crate::outputs::Input;
use anyhow::Context as _;
use orate::{Engine, Options, Script, Speaker};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A name in a script, and whose voice it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    name: String,
    /// `None` for the default voice of the model.
    voice: Option<String>,
    /// `None` for the model that speaks the rest; an empty path for the built-in voice.
    model: Option<PathBuf>,
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Role, String> {
        let role = text.split_once('=').and_then(|(name, who)| {
            let (voice, model) =
                who.split_once('@').map_or((who, None), |(voice, model)| (voice, Some(model)));
            let is_named = !name.is_empty() && (model.is_some() || !voice.is_empty());
            let voice = Some(voice).filter(|voice| !voice.is_empty());
            is_named.then(|| Role {
                name: name.to_owned(),
                voice: voice.map(str::to_owned),
                model: model.map(PathBuf::from),
            })
        });
        role.ok_or_else(|| {
            "use NAME=VOICE, NAME=VOICE@MODEL or NAME=@MODEL; @ alone is the built-in voice".into()
        })
    }
}

/// Model files of roles, which no output may replace.
pub fn inputs(roles: &[Role]) -> impl Iterator<Item = Input> {
    let models =
        roles.iter().filter_map(|role| role.model.clone()).filter(|model| !model.as_os_str().is_empty());
    models.map(|model| ("a model of --cast", crate::model_path(&model).unwrap_or(model)))
}

/// Who speaks for the voices of a script: the roles, else voices of the model. Opens the models that the
/// script needs, each once. `own` are options of `engine`'s voices, `common` those of other models.
pub fn cast(
    (engine, args): (&Engine, &EngineArgs),
    roles: &[Role],
    script: &Script,
    (own, common): (&Options, &Options),
) -> anyhow::Result<BTreeMap<String, Speaker>> {
    let mut engines: BTreeMap<&Path, Engine> = BTreeMap::new();
    let mut cast = BTreeMap::new();
    for name in script.segments.iter().filter_map(|segment| segment.voice.as_ref()) {
        if cast.contains_key(name) {
            continue;
        }
        let role = roles.iter().find(|role| role.name == *name);
        let (engine, options) = match role.and_then(|role| role.model.as_deref()) {
            None => (engine.clone(), own),
            Some(model) => {
                if !engines.contains_key(model) {
                    let path = Some(model).filter(|path| !path.as_os_str().is_empty());
                    let model_args = ModelArgs { model: path.map(Path::to_owned), codec: None };
                    let other = EngineArgs { model: model_args, place: args.place.clone() };
                    let opened = other.open_silently().with_context(|| format!("--cast {name}"))?;
                    note_fallbacks(&opened);
                    engines.insert(model, opened);
                }
                (engines[model].clone(), common)
            }
        };
        let voice = role.map_or(Some(name), |role| role.voice.as_ref());
        let options = match voice {
            Some(voice) => with_voice(&engine, options.clone(), voice)?,
            None => options.clone(),
        };
        cast.insert(name.clone(), Speaker { engine, options });
    }
    Ok(cast)
}

/// Warnings about roles whose name does not occur in the script.
pub fn warnings(roles: &[Role], script: &Script) -> Vec<String> {
    let occurs = |role: &Role| script.segments.iter().any(|s| s.voice.as_ref() == Some(&role.name));
    let unused = roles.iter().filter(|role| !occurs(role)).map(|role| &role.name);
    unused.map(|name| format!("--cast {name}: the text has no voice `{name}`")).collect()
}

/// Refuses roles that no text can have, and names that are given twice.
pub fn check(roles: &[Role], has_markup: bool) -> Result<(), UsageError> {
    if !roles.is_empty() && !has_markup {
        return Err(UsageError("--cast needs --tags or --ssml, which say who speaks what".to_owned()));
    }
    let is_twice = |i: usize| roles[..i].iter().any(|role| role.name == roles[i].name);
    match (0..roles.len()).find(|i| is_twice(*i)) {
        Some(i) => Err(UsageError(format!("--cast {0}: {0} is given twice", roles[i].name))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_a_voice_a_model_or_both() {
        let role = |text: &str| {
            let role: Result<Role, _> = text.parse();
            role.ok().map(|r| (r.name, r.voice.unwrap_or_default(), r.model.map(|m| m.display().to_string())))
        };
        let is = |name: &str, voice: &str, model: Option<&str>| {
            Some((name.to_owned(), voice.to_owned(), model.map(str::to_owned)))
        };
        assert_eq!(role("ann=F1"), is("ann", "F1", None));
        assert_eq!(role("ann=F1:0.7+M1:0.3@supertonic-3"), is("ann", "F1:0.7+M1:0.3", Some("supertonic-3")));
        assert_eq!(role("bob=@a=b@c"), is("bob", "", Some("a=b@c")));
        assert_eq!(role("bob=@"), is("bob", "", Some("")));
        for bad in ["", "ann", "=F1", "ann=", "=@model"] {
            assert_eq!(role(bad), None, "{bad}");
        }
    }
}
