//! The playground and the OpenAPI description, embedded in the program.

use crate::encoding::formats;
use crate::error::json_response;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

/// The routes in OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("openapi.json");

/// The page loads nothing from other origins and cannot be framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      media-src 'self' blob:; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, text).into_response()
}

/// `GET /`
pub async fn html() -> Response {
    file("text/html; charset=utf-8", include_str!("../page/page.html"))
}

/// `GET /page.css`
pub async fn css() -> Response {
    file("text/css; charset=utf-8", include_str!("../page/page.css"))
}

/// `GET /page.js`
pub async fn js() -> Response {
    file("text/javascript; charset=utf-8", include_str!("../page/page.js"))
}

/// `GET /favicon.svg`
pub async fn icon() -> Response {
    file("image/svg+xml", include_str!("../page/favicon.svg"))
}

/// `GET /openapi.json`: with the formats of this build.
pub async fn openapi() -> Response {
    let mut routes: Value = serde_json::from_str(OPENAPI).unwrap_or_default();
    let formats: Vec<_> = formats().map(|format| format.name).collect();
    let format = "/components/schemas/Speech/properties/response_format/enum";
    if let Some(known) = routes.pointer_mut(format) {
        *known = formats.into();
    }
    json_response(StatusCode::OK, &routes)
}
