//! The models that a server speaks with.

use crate::encoding::Resamplers;
use crate::error::{ApiError, Result};
use crate::queue::Queue;
use crate::settings::Settings;
use axum::http::StatusCode;
use orate::{DeviceKind, Engine};
use serde_json::{Value, json};
use std::sync::Arc;

/// Names of OpenAI's models, and `orate`, which stand for the first model.
pub const FIRST_MODEL: [&str; 4] = ["tts-1", "tts-1-hd", "gpt-4o-mini-tts", "orate"];

/// Most texts at once by default: the threads of a CPU already share each text.
const MOST_ON_CPU: usize = 4;

/// A model to serve.
#[derive(Clone, Debug)]
pub struct Served {
    /// Name in requests; see [`is_id`].
    pub id: String,
    /// The model on its device.
    pub engine: Engine,
    /// Texts at once; `None` for the default of model and device.
    pub streams: Option<usize>,
}

impl Served {
    /// Texts at once.
    pub fn streams(&self) -> usize {
        let best = self.engine.texts_at_once();
        let usual = match self.engine.device_info().kind {
            DeviceKind::Cpu => best.max(self.engine.threads().min(MOST_ON_CPU)),
            _ => best.max(MOST_ON_CPU),
        };
        self.streams.unwrap_or(usual).max(1)
    }
}

/// A model with its queue.
pub struct Model {
    /// Name in requests.
    pub id: String,
    /// The model on its device.
    pub engine: Engine,
    /// Where requests wait.
    pub queue: Queue,
    /// From its sample rate to those of answers.
    pub resamplers: Resamplers,
    /// When it was loaded, in seconds since 1970.
    created: u64,
    /// Default of the option `speed`; `None` for models without it.
    pub usual_speed: Option<f32>,
    /// Languages that it speaks.
    pub languages: Vec<String>,
    /// Whether it speaks without the name of a voice.
    pub has_default_voice: bool,
}

impl Model {
    /// Starts the threads of a model.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn new(served: Served, places: usize, created: u64) -> std::io::Result<Model> {
        let streams = served.streams();
        let Served { id, engine, .. } = served;
        let queue = Queue::new(&format!("orate {id}"), streams, places)?;
        let facts = engine.model().files().describe().facts;
        let fact = |name| facts.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
        let usual_speed = engine.usual_speed();
        let languages = fact("languages").and_then(Value::as_array).into_iter().flatten();
        let languages = languages.filter_map(Value::as_str).map(str::to_owned).collect();
        let resamplers = Resamplers::new(engine.sample_rate());
        // Without a voice, a model that clones needs a recording. Others invent a voice, or lack their voice
        // files.
        let has_default_voice = !engine.voices().is_empty()
            || (!engine.can_clone() && engine.facts().can_speak && engine.model().check_defaults().is_ok());
        Ok(Model { id, engine, queue, resamplers, created, usual_speed, languages, has_default_voice })
    }

    /// The model as OpenAI lists it, with facts of our own.
    pub fn json(&self, settings: &Settings) -> Value {
        let options = self.engine.model().accepts().iter().map(option_json).collect::<Vec<_>>();
        json!({
            "id": self.id, "object": "model", "created": self.created, "owned_by": "orate",
            "family": self.engine.family_name(),
            "sample_rate": self.engine.sample_rate(),
            "device": self.engine.device(),
            "can_clone": self.engine.can_clone() && settings.takes_voices(),
            "languages": self.languages,
            "voices": self.engine.voices().iter().map(|v| &v.name).collect::<Vec<_>>(),
            "options": options,
        })
    }
}

/// An option of a model.
fn option_json(spec: &orate::OptionSpec) -> Value {
    let (kind, choices) = match spec.kind {
        orate::OptionKind::Switch => ("boolean", None),
        orate::OptionKind::Whole => ("integer", None),
        orate::OptionKind::Number => ("number", None),
        orate::OptionKind::Text => ("string", None),
        orate::OptionKind::Choice(words) => ("string", Some(words)),
    };
    let mut option = json!({
        "name": spec.name, "type": kind, "help": spec.help.lines().next().unwrap_or_default().trim(),
        "default": spec.default, "common": spec.is_common,
    });
    if let Some(choices) = choices {
        option["choices"] = choices.into();
    }
    if let Some((least, most)) = spec.range {
        option["range"] = json!([least, most]);
    }
    option
}

/// The model that a request names.
///
/// # Errors
/// There is no such model: 404.
pub fn find<'a>(models: &'a [Arc<Model>], id: &str) -> Result<&'a Arc<Model>> {
    let named = models.iter().find(|model| model.id == id);
    let first = || models.first().filter(|_| FIRST_MODEL.contains(&id));
    named.or_else(first).ok_or_else(|| {
        let known = models.iter().map(|m| m.id.as_str()).collect::<Vec<_>>().join(", ");
        let id: String = id.chars().take(100).collect();
        let message = format!("no model `{id}` is served; there are: {known}");
        ApiError::field("model_not_found", "model", message).with_status(StatusCode::NOT_FOUND)
    })
}

/// Whether a name can be a model's: 1 to 64 letters, digits, `.`, `_` or `-`.
pub fn is_id(id: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=64).contains(&id.len()) && id.chars().all(allowed)
}
