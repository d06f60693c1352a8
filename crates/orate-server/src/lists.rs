//! Lists of models and voices, cloned voices, and the server's state.

use crate::body;
use crate::error::{ApiError, Result, json_response, of_library};
use crate::fields::Fields;
use crate::gate::Id;
use crate::models::{self, Model};
use crate::settings::Settings;
use crate::state::Shared;
use crate::voices;
use axum::body::HttpBody as _;
use axum::extract::{FromRequest, Multipart, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use orate::VoiceStore;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most bytes of a recording.
const MOST_RECORDING: usize = 10 << 20;
/// Most bytes of the fields around it.
const MOST_FIELDS: usize = 64 << 10;

/// `GET /v1/models`
pub async fn models(State(shared): State<Arc<Shared>>) -> Result<Response> {
    let list: Vec<_> = shared.ready()?.iter().map(|model| model.json(&shared.settings)).collect();
    Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": list })))
}

/// `GET /v1/models/{id}`
pub async fn model(State(shared): State<Arc<Shared>>, Id(id): Id) -> Result<Response> {
    Ok(json_response(StatusCode::OK, &models::find(shared.ready()?, &id)?.json(&shared.settings)))
}

/// `GET /v1/audio/models`, for Open WebUI
pub async fn audio_models(State(shared): State<Arc<Shared>>) -> Result<Response> {
    let named = |model: &Arc<Model>| json!({ "id": model.id, "name": model.id });
    let list: Vec<_> = shared.ready()?.iter().map(named).collect();
    Ok(json_response(StatusCode::OK, &json!({ "models": list })))
}

/// `GET /v1/audio/voices`
pub async fn voices(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response> {
    let models = shared.ready()?;
    let chosen = match query.get("model") {
        Some(id) => std::slice::from_ref(models::find(models, id)?),
        None => models,
    };
    let list: Vec<Value> = chosen.iter().flat_map(|m| voices::list(m, &shared.settings)).collect();
    if query.get("legacy").is_some_and(|legacy| legacy == "true") {
        let mut names: Vec<&Value> = vec![];
        for name in list.iter().map(|voice| &voice["name"]) {
            // Models may have voices of the same name.
            if !names.contains(&name) {
                names.push(name);
            }
        }
        return Ok(json_response(StatusCode::OK, &json!({ "voices": names })));
    }
    let uploaded: Vec<_> = list.iter().filter(|voice| voice["kind"] == "kept").collect();
    Ok(json_response(StatusCode::OK, &json!({ "voices": list, "uploaded_voices": uploaded })))
}

/// A voice to clone.
#[derive(Default)]
struct Upload {
    name: Option<String>,
    recording: Option<Vec<u8>>,
    transcript: Option<String>,
    consent: Option<String>,
    description: Option<String>,
    model: Option<String>,
    overwrite: bool,
}

/// `POST /v1/audio/voices`
pub async fn add_voice(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response> {
    let store = store(&shared.settings)?;
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_form = kind.is_some_and(|kind| kind.starts_with("multipart/form-data"));
    let field = if is_form { "audio_sample" } else { "wav_b64" };
    let upload = match is_form {
        true => {
            // A client that announces its form may never have to send it. Its own lines count as fields do.
            if request.body().size_hint().lower() > (MOST_RECORDING + 2 * MOST_FIELDS) as u64 {
                return Err(too_large());
            }
            let read = tokio::time::timeout(shared.settings.body_timeout, of_form(request));
            read.await.unwrap_or_else(|_| {
                let message = "the upload took too long";
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timed_out", message))
            })?
        }
        false => {
            let most = MOST_RECORDING / 3 * 4 + MOST_FIELDS;
            let fields = body::fields(request, &shared.settings, most).await.map_err(|e| match e.status {
                StatusCode::UNSUPPORTED_MEDIA_TYPE => {
                    let message = "send a form (`Content-Type: multipart/form-data`) or JSON";
                    ApiError::new(e.status, e.code, message)
                }
                _ => e,
            })?;
            of_json(fields)?
        }
    };
    let name = upload.name.filter(|name| !name.is_empty()).ok_or_else(|| ApiError::missing("name"))?;
    let recording = upload.recording.ok_or_else(|| ApiError::missing(field))?;
    let model = cloning_model(shared.ready()?, upload.model.as_deref())?.clone();
    voices::check_name(shared.ready()?, &name)?;
    let verbose = shared.settings.verbose_errors;
    let is_kept = store.names().is_ok_and(|names| names.contains(&name));
    store.check(&name, upload.overwrite).map_err(|e| match e {
        orate::Error::Option { .. } => of_library(&e, verbose).about("name"),
        e => of_library(&e, verbose),
    })?;
    if !is_kept && store.names().is_ok_and(|names| names.len() >= shared.settings.max_voices) {
        let message =
            format!("{} voices are kept, which is the limit; delete some", shared.settings.max_voices);
        return Err(ApiError::new(StatusCode::CONFLICT, "too_many_voices", message).that_stays());
    }
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let (engine, kept) = (model.engine.clone(), name.clone());
    let words = [("consent", upload.consent), ("description", upload.description)];
    let _ticket = model.queue.enter(move || {
        let make = || {
            let voice = engine.clone_voice_from("the recording", recording, upload.transcript.as_deref())?;
            let mut voice = (*voice).clone();
            for (word, value) in words {
                if let Some(value) = value {
                    voice.words.insert(word.to_owned(), value);
                }
            }
            store.save(&kept, &voice, upload.overwrite)
        };
        let _ = sender.send(make());
    })?;
    let made = receiver.await.map_err(|_| crate::work::lost())?;
    made.map_err(|e| of_library(&e, verbose))?;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let voice = json!({
        "id": name, "object": "audio.voice", "name": name, "created_at": created, "type": "audio_sample",
        "model": model.id, "success": true, "voice": { "id": name, "name": name, "created_at": created },
    });
    Ok(json_response(StatusCode::OK, &voice))
}

/// `DELETE /v1/audio/voices/{id}`
pub async fn remove_voice(State(shared): State<Arc<Shared>>, Id(id): Id) -> Result<Response> {
    let store = store(&shared.settings)?;
    store.remove(&id).map_err(|e| match e {
        orate::Error::UnknownKeptVoice { .. } | orate::Error::Option { .. } => {
            let message = "no voice of this name is kept; voices of models cannot be deleted";
            ApiError::field("voice_not_found", "id", message).with_status(StatusCode::NOT_FOUND)
        }
        e => of_library(&e, shared.settings.verbose_errors),
    })?;
    let gone = json!({ "id": id, "object": "audio.voice.deleted", "deleted": true, "success": true });
    Ok(json_response(StatusCode::OK, &gone))
}

fn store(settings: &Settings) -> Result<VoiceStore> {
    match &settings.voices {
        Some(store) if settings.takes_voices() => Ok(store.clone()),
        _ => {
            let message = "this server takes no voices (--no-uploads)";
            Err(ApiError::new(StatusCode::FORBIDDEN, "feature_disabled", message))
        }
    }
}

/// The model that clones: the named one, or the first that can.
fn cloning_model<'a>(models: &'a [Arc<Model>], name: Option<&str>) -> Result<&'a Arc<Model>> {
    let cannot = |message| ApiError::field("unsupported_value", "model", message);
    match name {
        Some(name) => {
            let model = models::find(models, name)?;
            let message = || format!("{} cannot make voices from recordings", model.id);
            if model.engine.can_clone() { Ok(model) } else { Err(cannot(message())) }
        }
        None => models.iter().find(|m| m.engine.can_clone()).ok_or_else(|| {
            cannot(
                "no served model can make voices from recordings; Qwen3-TTS Base and Chatterbox can".into(),
            )
        }),
    }
}

async fn of_form(request: Request) -> Result<Upload> {
    let broken = |e: axum::extract::multipart::MultipartError| match e.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", format!("the form is damaged: {e}")),
    };
    let mut form = Multipart::from_request(request, &()).await.map_err(|e| {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", format!("the form is damaged: {e}"))
    })?;
    let (mut upload, mut left) = (Upload::default(), MOST_FIELDS);
    while let Some(mut field) = form.next_field().await.map_err(broken)? {
        let name = field.name().unwrap_or_default().to_owned();
        let is_recording = name == "audio_sample";
        let most = if is_recording { MOST_RECORDING } else { left };
        let mut value = vec![];
        while let Some(part) = field.chunk().await.map_err(broken)? {
            if value.len() + part.len() > most {
                return Err(if is_recording { too_large() } else { too_long(&name) });
            }
            value.extend_from_slice(&part);
        }
        if is_recording {
            upload.recording = Some(value);
            continue;
        }
        left -= value.len();
        let text = String::from_utf8(value).map_err(|_| {
            let name: String = name.chars().take(40).collect();
            let message = format!("`{name}` is not UTF-8; send the recording as `audio_sample`");
            ApiError::field("invalid_value", name, message)
        })?;
        match name.as_str() {
            "name" => upload.name = Some(text),
            "ref_text" => upload.transcript = Some(text).filter(|text| !text.is_empty()),
            "consent" => upload.consent = Some(text),
            "speaker_description" => upload.description = Some(text),
            "model" => upload.model = Some(text),
            "overwrite" => upload.overwrite = switch(&text)?,
            _ => {}
        }
    }
    Ok(upload)
}

/// Reads `overwrite` of a form, whose values are texts.
fn switch(text: &str) -> Result<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        _ => {
            let text: String = text.chars().take(40).collect();
            let message = format!("`overwrite` is {text:?}, not true or false");
            Err(ApiError::field("invalid_value", "overwrite", message))
        }
    }
}

fn of_json(mut fields: Fields) -> Result<Upload> {
    let recording = match fields.text("wav_b64")? {
        None => None,
        Some(text) => Some(BASE64_STANDARD.decode(text.trim()).map_err(|e| {
            ApiError::field("invalid_value", "wav_b64", format!("`wav_b64` is not base64: {e}"))
        })?),
    };
    Ok(Upload {
        name: fields.text("name")?,
        recording,
        transcript: fields.text("ref_text")?,
        consent: fields.text("consent")?,
        description: fields.text("speaker_description")?,
        model: fields.text("model")?,
        overwrite: fields.switch("overwrite")?.unwrap_or(false),
    })
}

fn too_large() -> ApiError {
    let message = format!("a recording has at most {} MB", MOST_RECORDING >> 20);
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

/// Error for a form whose other fields are too long, of which `name` is the last.
fn too_long(name: &str) -> ApiError {
    let name: String = name.chars().take(40).collect();
    let most = MOST_FIELDS >> 10;
    let message = format!(
        "with `{name}`, the fields besides the recording have more than {most} kB; send the recording as \
         `audio_sample`"
    );
    ApiError::field("invalid_value", name, message)
}

/// `GET /health`
pub async fn health() -> Response {
    json_response(StatusCode::OK, &json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /ready`
pub async fn ready(State(shared): State<Arc<Shared>>) -> Result<Response> {
    let models: Vec<_> = shared.ready()?.iter().map(|model| &model.id).collect();
    Ok(json_response(StatusCode::OK, &json!({ "status": "ready", "models": models })))
}

/// `GET /metrics`
pub async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], shared.metrics.text(&shared)).into_response()
}
