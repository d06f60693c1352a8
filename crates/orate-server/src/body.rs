//! Reads bodies, with limits on size and time.

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::settings::Settings;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use http_body_util::{BodyExt, Limited};

/// Most bytes of a JSON body.
pub const MOST_JSON: usize = 1 << 20;

/// Reads a JSON object.
///
/// # Errors
/// The body is of another type (415), too large (413), too slow (408), or not a JSON object (400).
pub async fn fields(request: Request, settings: &Settings, most: usize) -> Result<Fields> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let media = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case("application/json") {
        let message = "send JSON with the header `Content-Type: application/json`";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
    }
    let bytes = bytes(request.into_body(), settings, most).await?;
    let value = serde_json::from_slice(&bytes).map_err(|e| {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", format!("the body is not JSON: {e}"))
    })?;
    Fields::of(value)
}

/// Reads a body.
///
/// # Errors
/// It is too large or too slow, or the connection broke.
pub async fn bytes(body: Body, settings: &Settings, most: usize) -> Result<Vec<u8>> {
    let too_large = || {
        let message = format!("the body has more than {most} bytes");
        Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message))
    };
    // A client that announces its body may never have to send it.
    if body.size_hint().lower() > most as u64 {
        return too_large();
    }
    let read = tokio::time::timeout(settings.body_timeout, Limited::new(body, most).collect()).await;
    match read {
        Ok(Ok(body)) => Ok(body.to_bytes().to_vec()),
        Ok(Err(e)) if e.is::<http_body_util::LengthLimitError>() => too_large(),
        Ok(Err(_)) => Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", "the body broke off")),
        Err(_) => {
            let message = format!("the body took longer than {} s", settings.body_timeout.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timed_out", message))
        }
    }
}
