//! The routes.

use crate::error::ApiError;
use crate::state::Shared;
use crate::{elevenlabs, gate, lists, omni, page, speech, unread};
use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use std::any::Any;
use std::sync::Arc;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, CorsLayer};

/// All routes; `openapi.json` describes them.
fn table() -> Vec<(&'static str, MethodRouter<Arc<Shared>>)> {
    vec![
        ("/", get(page::html)),
        ("/page.css", get(page::css)),
        ("/page.js", get(page::js)),
        ("/favicon.svg", get(page::icon)),
        ("/health", get(lists::health)),
        ("/ready", get(lists::ready)),
        ("/metrics", get(lists::metrics)),
        ("/openapi.json", get(page::openapi)),
        ("/v1/models", get(lists::models)),
        ("/v1/models/{id}", get(lists::model)),
        ("/v1/audio/models", get(lists::audio_models)),
        ("/v1/audio/voices", get(lists::voices).post(lists::add_voice)),
        ("/v1/audio/voices/{id}", delete(lists::remove_voice)),
        ("/v1/audio/speech", post(speech::speak)),
        ("/v1/audio/speech/batch", post(speech::batch)),
        ("/v1/audio/speech/stream", get(omni::stream)),
        ("/dev/captioned_speech", post(speech::captioned)),
        ("/v1/voices", get(elevenlabs::list)),
        ("/v1/text-to-speech/{voice}", post(elevenlabs::speak)),
        ("/v1/text-to-speech/{voice}/stream", post(elevenlabs::speak)),
        ("/v1/text-to-speech/{voice}/with-timestamps", post(elevenlabs::with_timestamps)),
        ("/v1/text-to-speech/{voice}/stream/with-timestamps", post(elevenlabs::stream_with_timestamps)),
        ("/v1/text-to-speech/{voice}/stream-input", get(elevenlabs::stream_input)),
        ("/v1/text-to-speech/{voice}/multi-stream-input", get(elevenlabs::stream_input)),
    ]
}

/// Builds the router.
pub fn router(shared: Arc<Shared>) -> Router {
    let mut router = Router::new();
    for (path, methods) in table() {
        router = router.route(path, methods.fallback(other_method));
    }
    // The layer panics at `*`.
    let origins = shared.settings.cors_origins.iter().filter(|origin| *origin != "*");
    let origins = origins.filter_map(|origin| HeaderValue::from_str(origin).ok());
    let cors = CorsLayer::new()
        .allow_origin(origins.collect::<Vec<_>>())
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Clients send headers of their own, such as OpenAI's `x-stainless-os`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("x-sample-rate"),
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("x-orate-voice"),
        ]);
    router
        .fallback(no_route)
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(shared.clone(), gate::pass))
        .layer(cors)
        .layer(from_fn_with_state(shared.clone(), unread::discard))
        .with_state(shared)
}

async fn no_route(request: Request<axum::body::Body>) -> ApiError {
    let path: String = request.uri().path().chars().take(100).collect();
    let message = format!("there is no route {path}; GET /openapi.json describes them");
    ApiError::new(StatusCode::NOT_FOUND, "route_not_found", message)
}

async fn other_method(request: Request<axum::body::Body>) -> ApiError {
    let message = format!("{} is not for this route; GET /openapi.json describes it", request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal("the server failed; its log has the reason").into_response()
}
