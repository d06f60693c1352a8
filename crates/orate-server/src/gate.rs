//! What every request passes: its id, the host it asks for, its key, the log, and headers of every answer.

use crate::error::{ApiError, Result};
use crate::keys;
use crate::state::Shared;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

/// Routes that need no key.
const OPEN: [&str; 7] = ["/", "/page.css", "/page.js", "/health", "/ready", "/openapi.json", "/favicon.svg"];
/// Routes that need none where lists are open.
const LISTS: [&str; 4] = ["/v1/models", "/v1/models/{id}", "/v1/audio/models", "/v1/audio/voices"];

/// Facts about a request for the log, which is written when its answer is over.
#[derive(Clone)]
pub struct Record(Arc<Entry>);

struct Entry {
    shared: Arc<Shared>,
    begun: Instant,
    facts: Mutex<Vec<(&'static str, Value)>>,
    route: String,
    status: Mutex<u16>,
}

/// Name of the key that a request has shown.
#[derive(Clone, Debug)]
pub struct KeyName(pub Option<String>);

impl Record {
    fn new(shared: Arc<Shared>, route: String) -> Record {
        let (facts, status) = Default::default();
        Record(Arc::new(Entry { shared, begun: Instant::now(), facts, route, status }))
    }

    /// Adds a fact.
    pub fn note(&self, name: &'static str, value: impl Into<Value>) {
        self.0.facts.lock().unwrap_or_else(PoisonError::into_inner).push((name, value.into()));
    }

    /// When the request came.
    pub fn begun(&self) -> Instant {
        self.0.begun
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let (status, time) =
            (*self.status.get_mut().unwrap_or_else(PoisonError::into_inner), self.begun.elapsed());
        self.shared.metrics.answered(&self.route, status, time);
        let mut all = vec![("route", self.route.clone().into()), ("status", status.into())];
        all.append(self.facts.get_mut().unwrap_or_else(PoisonError::into_inner));
        all.push(("seconds", rounded(time.as_secs_f64())));
        self.shared.log.request(&all);
    }
}

/// Seconds for people: to a tenth of a millisecond.
pub fn rounded(seconds: f64) -> Value {
    ((seconds * 1e4).round() / 1e4).into()
}

/// Lets a request through to its route, and completes the answer.
pub async fn pass(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str).to_owned();
    let id = id_of(request.headers());
    let record = Record::new(shared.clone(), format!("{} {route}", request.method()));
    record.note("id", id.as_str());
    let checked = check_host(&shared, request.headers()).and_then(|()| check_key(&shared, &request, &route));
    let response = match checked {
        Ok(name) => {
            if let Some(name) = &name {
                record.note("key", name.as_str());
            }
            request.extensions_mut().insert(KeyName(name));
            request.extensions_mut().insert(record.clone());
            next.run(request).await
        }
        Err(e) => e.into_response(),
    };
    if let Some(error) = response.extensions().get::<ApiError>() {
        record.note("code", error.code);
    }
    complete(response, record, &id)
}

fn complete(response: Response, record: Record, id: &str) -> Response {
    *record.0.status.lock().unwrap_or_else(PoisonError::into_inner) = response.status().as_u16();
    let mut response = response.map(|body| Body::new(Logged { body, _record: record }));
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert("x-request-id", id);
    }
    response
}

/// The client's own id, or a new one.
fn id_of(headers: &HeaderMap) -> String {
    let allowed = |id: &&str| {
        (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    let theirs = headers.get("x-request-id").and_then(|id| id.to_str().ok()).filter(allowed);
    theirs.map_or_else(new_id, str::to_owned)
}

/// A random id.
pub fn new_id() -> String {
    let mut bytes = [0; 8];
    // Without random numbers ids are all zeros; nothing depends on them.
    let _ = getrandom::fill(&mut bytes);
    keys::hex(&bytes)
}

/// Refuses requests for another host: a page that reaches a local server through a name of its own.
fn check_host(shared: &Shared, headers: &HeaderMap) -> Result<()> {
    let Some(allowed) = &shared.settings.hosts else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    if allowed.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    let message = "the server is not known by this name; start it with --allow-host NAME";
    Err(ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message))
}

/// Name of the key, where one is needed.
fn check_key(shared: &Shared, request: &Request, route: &str) -> Result<Option<String>> {
    let settings = &shared.settings;
    let key = keys::of_request(request.headers());
    let name = key.and_then(|key| settings.keys.name_of(key)).map(str::to_owned);
    let is_list = request.method() == Method::GET && LISTS.contains(&route);
    let is_open = OPEN.contains(&route)
        || (settings.open_lists && is_list)
        || (settings.open_metrics && route == "/metrics");
    // WebSockets of ElevenLabs may show their key in the first message.
    let comes_later = route.starts_with("/v1/text-to-speech/") && route.ends_with("stream-input");
    if settings.keys.is_empty() || is_open || name.is_some() || comes_later {
        return Ok(name);
    }
    let message = match key {
        None => "a key is needed: send the header `Authorization: Bearer KEY`",
        Some(_) => "the key is not known here",
    };
    Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
}

/// A body that holds the record of its request until it is over.
struct Logged {
    body: Body,
    _record: Record,
}

impl HttpBody for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
