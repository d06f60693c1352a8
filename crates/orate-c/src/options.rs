//! Options as C gives them: an array of strings `name=value`.

use crate::failure::{Failure, Result};
use crate::text;
use orate::{Engine, EngineOptions, Finish, Options, Script};
use std::ffi::c_char;

/// Options of speech that all models have.
const COMMON: [&str; 7] = ["voice", "language", "seed", "silence", "raw", "tags", "ssml"];

/// Names and values of an array of options.
///
/// # Safety
/// `options` is NULL, or an array of strings that ends with NULL, all of which outlive the result.
pub unsafe fn pairs<'a>(options: *const *const c_char) -> Result<Vec<(&'a str, &'a str)>> {
    let mut pairs = vec![];
    if options.is_null() {
        return Ok(pairs);
    }
    for i in 0.. {
        // SAFETY: the array ends with NULL, at which this stops.
        let option = unsafe { *options.add(i) };
        // SAFETY: as the caller says.
        let Some(option) = (unsafe { text::optional(&format!("option {i}"), option) })? else { break };
        let pair = option.split_once('=').ok_or_else(|| {
            Failure::input(format!("option {i} is `{option}`; write name=value, such as speed=1.1"))
        })?;
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Options of an engine.
pub fn of_engine(pairs: &[(&str, &str)]) -> Result<EngineOptions> {
    let mut options = EngineOptions::default();
    for (name, value) in pairs {
        options.set(name, value)?;
    }
    Ok(options)
}

/// How a text is spoken.
pub struct Speech {
    pub options: Options,
    has_tags: bool,
    is_ssml: bool,
}

impl Speech {
    /// Reads options for an engine.
    pub fn read(engine: &Engine, pairs: &[(&str, &str)]) -> Result<Speech> {
        let mut speech = Speech { options: Options::default(), has_tags: false, is_ssml: false };
        for (name, value) in pairs {
            speech.set(engine, name, value)?;
        }
        if speech.has_tags && speech.is_ssml {
            return Err(Failure::input("a text has tags or SSML: give tags=true or ssml=true, not both"));
        }
        Ok(speech)
    }

    fn set(&mut self, engine: &Engine, name: &str, value: &str) -> Result<()> {
        let wrong = |allowed: &str| Failure::input(format!("{name} is `{value}`; choose {allowed}"));
        let switch = || value.parse().map_err(|_| wrong("true or false"));
        match name {
            "voice" => self.options = engine.with_voice(std::mem::take(&mut self.options), value)?,
            "language" => self.options.language = Some(value.to_owned()),
            "seed" => self.options.seed = value.parse().map_err(|_| wrong("a whole number"))?,
            "silence" => self.options.silence = value.parse().map_err(|_| wrong("seconds, 0 to 10"))?,
            "raw" => self.options.finish = if switch()? { Finish::NONE } else { Finish::default() },
            "tags" => self.has_tags = switch()?,
            "ssml" => self.is_ssml = switch()?,
            _ => {
                // One that only others have is refused by the library, in words that name them.
                let all = engine.families().iter().flat_map(|family| family.options);
                let spec = engine.model().accepts().iter().chain(all).find(|spec| spec.name == name);
                let Some(spec) = spec else { return Err(unknown(engine, name)) };
                let value = spec
                    .parse(value)
                    .map_err(|allowed| Failure::input(format!("{name} is `{value}`; {allowed}")))?;
                self.options = std::mem::take(&mut self.options).set(spec.name, value);
            }
        }
        Ok(())
    }

    /// Begins to speak.
    pub fn stream(&self, engine: &Engine, text: &str) -> Result<orate::Stream> {
        let script = match (self.has_tags, self.is_ssml) {
            (true, _) => Script::tagged(text),
            (_, true) => Script::ssml(text, self.options.language.as_deref()),
            _ => return Ok(engine.stream(text, &self.options)?),
        };
        let script = script.map_err(orate::Error::from)?;
        Ok(engine.stream_script(&script, &self.options, &engine.own_cast(&self.options))?)
    }
}

fn unknown(engine: &Engine, name: &str) -> Failure {
    let own = engine.model().accepts().iter().map(|spec| spec.name);
    let known: Vec<&str> = COMMON.into_iter().chain(own).collect();
    Failure::input(format!("`{name}` is no option of speech; choose {}", known.join(", ")))
}

/// A line for each option of a model: its name, and what it does.
pub fn help(engine: &Engine) -> String {
    let own = engine.model().accepts().iter();
    own.map(|spec| format!("{}: {}\n", spec.name, spec.summary())).collect()
}
