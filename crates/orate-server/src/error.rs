//! Errors in OpenAI's JSON form, with a status and a code.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use orate::{AudioError, Error, ErrorKind, ModelError, TextError};
use serde_json::{Value, json};

/// Most characters of a message.
const MOST_CHARS: usize = 600;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// Status of the answer.
    pub status: StatusCode,
    /// Code to branch on, such as `voice_not_found`.
    pub code: &'static str,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    /// What is wrong and how to fix it.
    pub message: String,
    /// Seconds after which the same request may succeed.
    retry_after: Option<u32>,
    /// `x-should-retry`, where the status alone misleads clients.
    retries: Option<bool>,
    /// What the log has in place of the message.
    cause: Option<String>,
}

/// Result of handlers.
pub type Result<T, E = ApiError> = std::result::Result<T, E>;

impl ApiError {
    /// An error without a field.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        let message = shortened(message.into());
        ApiError { status, code, param: None, message, retry_after: None, retries: None, cause: None }
    }

    /// An error in the field `param`: 400.
    pub fn field(code: &'static str, param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..Self::new(StatusCode::BAD_REQUEST, code, message) }
    }

    /// A missing field: 400.
    pub fn missing(param: &str) -> ApiError {
        Self::field("missing_field", param, format!("`{param}` is missing"))
    }

    /// A state that passes: 503.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> ApiError {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        ApiError { retry_after: Some(1), ..error }
    }

    /// A failure that would happen again: 500.
    pub fn internal(message: impl Into<String>) -> ApiError {
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message);
        ApiError { retries: Some(false), ..error }
    }

    /// The same error with another status.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> ApiError {
        ApiError { status, ..self }
    }

    /// The same error about another field.
    #[must_use]
    pub fn about(self, param: &str) -> ApiError {
        ApiError { param: Some(param.to_owned()), ..self }
    }

    /// The same error, marked as one that would happen again.
    #[must_use]
    pub fn that_stays(self) -> ApiError {
        ApiError { retries: Some(false), ..self }
    }

    /// The same error, to try again after `seconds`.
    #[must_use]
    pub fn after(self, seconds: u32) -> ApiError {
        ApiError { retry_after: Some(seconds), ..self }
    }

    /// The cause of a failure of the server, for its log.
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// The same error, once the log has its cause.
    #[must_use]
    pub fn logged(self) -> ApiError {
        ApiError { cause: None, ..self }
    }

    /// Whether all places of the queue or of the key were taken.
    pub fn is_refusal(&self) -> bool {
        ["overloaded", "rate_limited"].contains(&self.code)
    }

    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The `error` object.
    pub fn json(&self) -> Value {
        json!({
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
        })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &json!({ "error": self.json() }));
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(retries) = self.retries {
            let retries = HeaderValue::from_static(if retries { "true" } else { "false" });
            headers.insert("x-should-retry", retries);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// An answer of JSON.
pub fn json_response(status: StatusCode, value: &Value) -> Response {
    let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (status, headers, value.to_string()).into_response()
}

/// Converts an error of the library. Details of model and device errors may contain paths, so they are kept
/// only if `verbose`.
pub fn of_library(e: &Error, verbose: bool) -> ApiError {
    let message = e.to_string();
    let field = |code, param: &str| ApiError::field(code, param, message.clone());
    match e {
        Error::Model(e) => match &**e {
            ModelError::EmptyText { .. } | ModelError::Text(TextError::Empty) => field("text_empty", "input"),
            ModelError::Text(TextError::Unsupported { .. }) => field("text_unspeakable", "input"),
            ModelError::Text(_) | ModelError::TooLong { .. } => field("invalid_value", "input"),
            ModelError::UnknownVoice { .. } => field("voice_not_found", "voice"),
            ModelError::BadVoice { .. } => field("unsupported_value", "voice"),
            ModelError::UnknownLanguage { .. } => field("invalid_value", "language"),
            ModelError::Option { option, .. } => field("invalid_value", option),
            ModelError::UnknownOption { option, .. } => field("unsupported_value", option),
            ModelError::Mode { .. } => field("unsupported_value", "model"),
            other => of_kind(other.kind(), message, verbose),
        },
        Error::Option { option, .. } => field("invalid_value", option),
        Error::UnknownKeptVoice { .. } => {
            let message = "no voice of this name is kept; GET /v1/audio/voices lists them";
            ApiError::field("voice_not_found", "voice", message)
        }
        Error::VoiceExists { name, .. } => {
            let message = format!("a voice `{name}` is kept already; delete it, or send `overwrite`: true");
            let error = ApiError::field("voice_exists", "name", message);
            error.with_status(StatusCode::CONFLICT).that_stays()
        }
        Error::Audio(e) => of_audio(e),
        other => of_kind(other.kind(), message, verbose),
    }
}

/// Converts an error about a recording.
fn of_audio(e: &AudioError) -> ApiError {
    let code = match e {
        AudioError::TooLong { .. } => "audio_too_long",
        _ => "audio_unreadable",
    };
    let cause = std::error::Error::source(e).map(|cause| format!(" ({cause})")).unwrap_or_default();
    ApiError::field(code, "audio_sample", format!("{e}{cause}"))
}

fn of_kind(kind: ErrorKind, message: String, verbose: bool) -> ApiError {
    let hidden = |plain: &str| if verbose { message.clone() } else { plain.to_owned() };
    let error = match kind {
        ErrorKind::InvalidInput => ApiError::field("invalid_value", "input", message.clone()),
        ErrorKind::Cancelled => ApiError::unavailable("draining", "the server cancelled the request"),
        ErrorKind::InvalidModel => {
            ApiError::internal(hidden("the model or a voice is damaged; the server's log has the reason"))
        }
        _ => {
            let message = hidden("the device or the system failed; the server's log has the reason");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "device_failed", message)
        }
    };
    ApiError { cause: error.status.is_server_error().then_some(message), ..error }
}

fn shortened(message: String) -> String {
    match message.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What clients are not told, the log is.
    #[test]
    fn failures_of_the_server_have_a_cause() {
        for kind in [ErrorKind::System, ErrorKind::InvalidModel] {
            let error = of_kind(kind, "/srv/voices: read-only".to_owned(), false);
            assert!(error.status == 500 && !error.message.contains("/srv"), "{error:?}");
            assert!(error.message.ends_with("the server's log has the reason"), "{error:?}");
            assert_eq!(error.cause(), Some("/srv/voices: read-only"));
            assert_eq!(error.logged().cause(), None);
        }
        assert_eq!(of_kind(ErrorKind::InvalidInput, "too short".to_owned(), false).cause(), None);
    }
}
