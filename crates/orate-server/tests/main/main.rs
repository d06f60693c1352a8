//! The routes without a socket, with the built-in voice.

mod access;
mod cloning;
mod lists;
mod sockets;
mod speech;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use orate::{DeviceChoice, Engine, EngineOptions};
use orate_server::{Served, Server, Settings};
use serde_json::Value;
use std::sync::OnceLock;
use tower::ServiceExt as _;

/// The built-in voice, opened once.
fn engine() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let open = || {
        let options =
            EngineOptions { device: DeviceChoice::Cpu, threads: Some(2), ..EngineOptions::default() };
        Engine::with_options(options).expect("the built-in voice")
    };
    ENGINE.get_or_init(open).clone()
}

fn server(settings: Settings) -> Server {
    let server = Server::new(Settings { quiet: true, ..settings });
    let served = Served { id: "orate-default".to_owned(), engine: engine(), streams: Some(2) };
    server.set_models(vec![served]).expect("threads");
    server
}

fn router() -> Router {
    server(Settings::default()).router()
}

/// An answer, read to its end.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("JSON")
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Code of an error, with its field.
    fn error(&self) -> (u16, String, Option<String>) {
        let error = &self.json()["error"];
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        assert!(text("message").is_some_and(|message| message.len() > 10), "{error}");
        (self.status.as_u16(), text("code").unwrap_or_default(), text("param"))
    }
}

async fn send(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.expect("routers do not fail");
    let (status, headers) = (response.status(), response.headers().clone());
    let bytes = to_bytes(response.into_body(), usize::MAX).await.expect("a whole body").to_vec();
    Answer { status, headers, bytes }
}

async fn get(router: &Router, path: &str) -> Answer {
    send(router, Request::get(path).body(Body::empty()).expect("a request")).await
}

fn posting(path: &str, body: &str) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json");
    request.body(Body::from(body.to_owned())).expect("a request")
}

async fn post(router: &Router, path: &str, body: &Value) -> Answer {
    send(router, posting(path, &body.to_string())).await
}
