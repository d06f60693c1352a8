//! A request to speak: the JSON of OpenAI's route, with fields of vLLM-Omni, Kokoro and Orate.

use crate::encoding::{Encoding, Format};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::models::{self, FIRST_MODEL, Model};
use crate::settings::Settings;
use crate::state::Shared;
use crate::voices::{self, Voice};
use axum::http::StatusCode;
use orate::{Finish, OptionKind, Options, Script, Speaker, Value as OptionValue};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Most bytes of a language or of a choice.
const MOST_WORD: usize = 64;

/// Most seconds of pauses in a script: a few bytes ask for ten seconds.
const MOST_PAUSES: f32 = 300.0;

/// Factors of speed that OpenAI allows.
const SPEEDS: RangeInclusive<f64> = 0.25..=4.0;

/// Names of other servers for options of models.
const OTHER_NAMES: [(&str, &str); 4] = [
    ("instructions", "instruct"),
    ("max_new_tokens", "max_frames"),
    ("max_new_tokens", "max_codes"),
    ("cfg_scale", "cfg_weight"),
];

/// What to speak, and how the answer is sent.
#[derive(Clone)]
pub struct Speech {
    /// The model.
    pub model: Arc<Model>,
    /// The text.
    pub input: String,
    /// The voice.
    pub voice: Voice,
    /// The text with its markup, if it has any.
    pub script: Option<Script>,
    /// Voices of the markup, by their names there.
    cast: Vec<(String, Voice)>,
    /// Options of the model, with the voice.
    pub options: Options,
    /// Format of the answer.
    pub encoding: Encoding,
    /// Whether bytes are sent as they are made. Events without it come with each complete piece.
    pub is_streamed: bool,
    /// Whether the answer is a stream of events.
    pub is_sse: bool,
    /// Fields without an effect.
    pub ignored: Vec<String>,
}

impl Speech {
    /// Reads a request.
    ///
    /// # Errors
    /// The server is not ready, or a field is missing, of another type, out of range, or names what is not
    /// there.
    pub fn read(shared: &Shared, fields: Fields) -> Result<Speech> {
        shared.ready()?;
        Self::read_more(shared, fields)
    }

    /// The same for a part of a session that was begun before the server shut down.
    ///
    /// # Errors
    /// As [`Speech::read`].
    pub fn read_more(shared: &Shared, mut fields: Fields) -> Result<Speech> {
        let (models, settings) = (shared.loaded()?, &shared.settings);
        let asked = fields.text("model")?.ok_or_else(|| ApiError::missing("model"))?;
        let model = models::find(models, &asked)?.clone();
        let input = fields.text("input")?.ok_or_else(|| ApiError::missing("input"))?;
        check_input(&input, settings)?;
        let mut ignored = vec![];

        let voice = match fields.take("voice") {
            None => Voice::Default,
            Some(Value::String(name)) => voices::find(&model, settings, &name)?,
            Some(Value::Object(mut object)) => match object.remove("id") {
                Some(Value::String(name)) => voices::find(&model, settings, &name)?,
                _ => return Err(ApiError::field("invalid_value", "voice", "`voice` has no text `id`")),
            },
            Some(_) => {
                let message = "`voice` is a name, or an object such as {\"id\": \"…\"}";
                return Err(ApiError::field("invalid_value", "voice", message));
            }
        };
        let format = Format::read(fields.text("response_format")?.as_deref().unwrap_or("mp3"))?;
        let rate = fields.whole("sample_rate")?;
        let encoding = Encoding::new(format, rate, &model.resamplers)?;
        let is_sse = match fields.text("stream_format")?.as_deref() {
            None | Some("audio") => false,
            Some("sse") => true,
            Some(_) => {
                let message = "`stream_format` is audio or sse";
                return Err(ApiError::field("invalid_value", "stream_format", message));
            }
        };
        let is_streamed = fields.switch("stream")?.unwrap_or(true);

        let mut options = voice.set(Options::default());
        options.whole = !is_streamed;
        options.seed = fields.whole("seed")?.unwrap_or(0);
        options.language = language(&mut fields)?;
        if let Some(silence) = fields.number("silence")? {
            options.silence = silence as f32;
        }
        if let Some(speed) = fields.number("speed")? {
            options = with_speed(&model, options, speed)?;
        }
        for (theirs, ours) in OTHER_NAMES {
            let is_there = model.engine.model().accepts().iter().any(|spec| spec.name == ours);
            if is_there && let Some(value) = fields.take(theirs) {
                options = set(&model, options, (ours, theirs), &value)?;
            }
        }
        refuse_what_is_elsewhere(&mut fields)?;
        options.word_times = fields.switch("word_timestamps")?.unwrap_or(false);
        if fields.switch("raw")?.unwrap_or(false) {
            options.finish = Finish::NONE;
        }
        let script = script(&input, &mut fields, options.language.as_deref())?;
        ignored.extend(script.iter().flat_map(|script| script.warnings.clone()));
        let named = script.iter().flat_map(|script| &script.segments).filter_map(|s| s.voice.as_ref());
        let mut cast: Vec<(String, Voice)> = vec![];
        for name in named {
            if cast.iter().all(|(known, _)| known != name) {
                cast.push((name.clone(), voices::find(&model, settings, name)?));
            }
        }
        for (name, value) in fields.rest() {
            if value.is_null() {
                continue;
            }
            let spec = model.engine.model().accepts().iter().find(|spec| spec.name == name);
            match spec {
                Some(spec) => options = set(&model, options, (spec.name, spec.name), &value)?,
                None if is_of_another_model(&model, &name) && !FIRST_MODEL.contains(&asked.as_str()) => {
                    let message =
                        format!("`{name}` is not an option of {}; GET /v1/models lists them", model.id);
                    return Err(ApiError::field("unsupported_value", name, message));
                }
                None => ignored.push(name),
            }
        }
        let verbose = settings.verbose_errors;
        model.engine.check(&options).map_err(|e| crate::error::of_library(&e, verbose))?;
        Ok(Speech { model, input, voice, script, cast, options, encoding, is_streamed, is_sse, ignored })
    }

    /// Answers without events. If the request asks for them, or for words in them, the fields are ignored.
    pub fn ignore_events(&mut self) {
        if std::mem::take(&mut self.is_sse) {
            self.ignored.push("stream_format".to_owned());
        }
        if std::mem::take(&mut self.options.word_times) {
            self.ignored.push("word_timestamps".to_owned());
        }
    }

    /// Who speaks what the markup gives to a voice.
    pub fn speaker(&self, name: &str, options: &Options) -> orate::Result<Speaker> {
        let voice = self.cast.iter().find(|(known, _)| known == name).map(|(_, voice)| voice);
        let options = Options { voice: None, cloned: None, ..options.clone() };
        let options = voice.unwrap_or(&Voice::Default).set(options);
        Ok(Speaker { engine: self.model.engine.clone(), options })
    }
}

/// Refuses a text that is empty or too long.
fn check_input(input: &str, settings: &Settings) -> Result<()> {
    let most = settings.max_input_chars;
    if input.trim().is_empty() {
        return Err(ApiError::field("text_empty", "input", "`input` has nothing to say"));
    }
    if input.len() > most && input.chars().nth(most).is_some() {
        let message = format!("`input` has more than {most} characters; send it in several requests");
        let error = ApiError::field("text_too_long", "input", message);
        return Err(error.with_status(StatusCode::PAYLOAD_TOO_LARGE));
    }
    Ok(())
}

/// The language of a request.
fn language(fields: &mut Fields) -> Result<Option<String>> {
    let asked = fields.text("language")?;
    asked.iter().try_for_each(|name| check_word("language", name))?;
    Ok(asked)
}

/// Sets the speed, a factor on the model's default. 1 changes nothing, also for models without the option.
fn with_speed(model: &Model, options: Options, speed: f64) -> Result<Options> {
    let refused = |message: String| Err(ApiError::field("unsupported_value", "speed", message));
    if !SPEEDS.contains(&speed) {
        let (least, most) = (SPEEDS.start(), SPEEDS.end());
        let message = format!("`speed` is {speed}; choose {least} to {most}");
        return Err(ApiError::field("invalid_value", "speed", message));
    }
    if speed == 1.0 {
        return Ok(options);
    }
    let spec = model.engine.model().accepts().iter().find(|spec| spec.name == "speed");
    let (Some(usual), Some(spec)) = (model.usual_speed, spec) else {
        return refused(format!("{} speaks at speed 1 only", model.id));
    };
    let rate = f64::from(usual) * speed;
    if let Some((least, most)) = spec.range.filter(|(least, most)| !(*least..=*most).contains(&rate)) {
        let [least, most] = [least, most].map(|bound| bound / f64::from(usual));
        return refused(format!("{} speaks at speeds of {least:.2} to {most:.2}", model.id));
    }
    Ok(options.set("speed", rate))
}

/// Refuses a value that is longer than any that is allowed: errors of the library repeat values.
fn check_word(name: &str, value: &str) -> Result<()> {
    if value.len() <= MOST_WORD {
        return Ok(());
    }
    let message = format!("`{name}` has more than {MOST_WORD} bytes; GET /v1/models lists what is allowed");
    Err(ApiError::field("invalid_value", name, message))
}

/// Sets an option of the model. `theirs` names it in errors.
fn set(
    model: &Model,
    options: Options,
    (ours, theirs): (&'static str, &str),
    value: &Value,
) -> Result<Options> {
    let spec = model.engine.model().accepts().iter().find(|spec| spec.name == ours);
    let kind = spec.map_or(OptionKind::Text, |spec| spec.kind);
    let typed = match (kind, value) {
        (OptionKind::Switch, Value::Bool(on)) => Some(OptionValue::Switch(*on)),
        (OptionKind::Whole, Value::Number(n)) => n.as_u64().map(OptionValue::Whole),
        (OptionKind::Number, Value::Number(x)) => x.as_f64().map(|x| OptionValue::Number(x as f32)),
        (OptionKind::Choice(_), Value::String(word)) => {
            check_word(theirs, word)?;
            Some(OptionValue::Text(word.clone()))
        }
        (OptionKind::Text, Value::String(text)) => Some(OptionValue::Text(text.clone())),
        _ => None,
    };
    match (typed, spec) {
        (Some(typed), _) => Ok(options.set(ours, typed)),
        (None, spec) => {
            let allowed = spec.map_or_else(|| "a text".to_owned(), orate::OptionSpec::allowed);
            let got: String = value.to_string().chars().take(60).collect();
            let message = format!("`{theirs}` is {got}; choose {allowed}");
            Err(ApiError::field("invalid_value", theirs, message))
        }
    }
}

/// Whether another family, or another model of this one, has the option.
fn is_of_another_model(model: &Model, name: &str) -> bool {
    let of_family = |family: &&orate::Family| family.options.iter().any(|spec| spec.name == name);
    model.engine.families().iter().any(of_family) || OTHER_NAMES.iter().any(|(theirs, _)| *theirs == name)
}

/// Refuses fields of other servers whose effect would be missing.
fn refuse_what_is_elsewhere(fields: &mut Fields) -> Result<()> {
    let refused = |name: &str, message: &str| Err(ApiError::field("unsupported_value", name, message));
    if fields.take("ref_audio").is_some() {
        return refused("ref_audio", "send the recording to POST /v1/audio/voices and name the voice here");
    }
    Ok(())
}

/// Reads the markup of a text, if the request says that it has any.
fn script(input: &str, fields: &mut Fields, language: Option<&str>) -> Result<Option<Script>> {
    let is_ssml = [fields.switch("ssml")?, fields.switch("enable_ssml_parsing")?].contains(&Some(true));
    let has_tags = fields.switch("tags")? == Some(true);
    let script = match (is_ssml, has_tags) {
        (true, true) => {
            let message = "a text has SSML or tags; send `ssml` or `tags`, not both";
            return Err(ApiError::field("invalid_value", "tags", message));
        }
        (true, false) => Script::ssml(input, language),
        (false, true) => Script::tagged(input),
        (false, false) => return Ok(None),
    };
    let script = script.map_err(|e| ApiError::field("invalid_value", "input", e.to_string()))?;
    let pauses: f32 = script.segments.iter().map(|segment| segment.pause_after).sum();
    if pauses > MOST_PAUSES {
        let message =
            format!("its pauses are {pauses:.0} s long together; at most {MOST_PAUSES} s are allowed");
        return Err(ApiError::field("invalid_value", "input", message));
    }
    Ok(Some(script))
}

/// Fields that all items of a list share.
pub fn shared_fields(fields: Map<String, Value>) -> Map<String, Value> {
    fields.into_iter().filter(|(name, _)| name != "items").collect()
}
