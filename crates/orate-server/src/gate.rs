//! What every request passes: its id, its host, its key, the log, and headers of every answer.

use crate::body;
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::keys;
use crate::serve::Stalled;
use crate::state::Shared;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

/// Routes that need no key.
const OPEN: [&str; 7] = ["/", "/page.css", "/page.js", "/health", "/ready", "/openapi.json", "/favicon.svg"];
/// Routes that need no key with `open_lists`.
const LISTS: [&str; 4] = ["/v1/models", "/v1/models/{id}", "/v1/audio/models", "/v1/audio/voices"];

/// A request in the log and metrics. Its line is written when the last clone is dropped.
#[derive(Clone)]
pub struct Record(Arc<Entry>);

struct Entry {
    shared: Arc<Shared>,
    begun: Instant,
    id: String,
    /// Name of the key.
    key: Option<String>,
    /// Of the connection.
    stalled: Stalled,
    facts: Mutex<Vec<(&'static str, Value)>>,
    route: String,
    status: Mutex<u16>,
}

impl Record {
    /// Starts the record of a request that came now.
    pub fn new(
        shared: Arc<Shared>,
        route: String,
        id: String,
        key: Option<String>,
        stalled: Stalled,
    ) -> Record {
        let (facts, status) = Default::default();
        Record(Arc::new(Entry { shared, begun: Instant::now(), id, key, stalled, facts, route, status }))
    }

    /// Returns a record of its own for one of several texts of a connection, with the name of its key.
    pub fn of_text(&self, key: Option<String>) -> Record {
        let Entry { shared, route, id, stalled, .. } = &*self.0;
        let record = Record::new(shared.clone(), route.clone(), id.clone(), key, stalled.clone());
        record.set_status(StatusCode::OK);
        record
    }

    /// Adds a fact.
    pub fn note(&self, name: &'static str, value: impl Into<Value>) {
        self.0.facts.lock().unwrap_or_else(PoisonError::into_inner).push((name, value.into()));
    }

    /// Sets the code of an error. The last one counts: whole answers fail in a part first.
    pub fn set_code(&self, code: &str) {
        let mut facts = self.0.facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.retain(|(name, _)| *name != "code");
        facts.push(("code", code.into()));
    }

    /// Sets the status of the answer.
    pub fn set_status(&self, status: StatusCode) {
        *self.0.status.lock().unwrap_or_else(PoisonError::into_inner) = status.as_u16();
    }

    /// Whether the client reads nothing.
    pub fn is_stalled(&self) -> bool {
        self.0.stalled.get()
    }

    /// When the request came.
    pub fn begun(&self) -> Instant {
        self.0.begun
    }

    /// Name of the key that the request has shown.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let status = *self.status.get_mut().unwrap_or_else(PoisonError::into_inner);
        let time = self.begun.elapsed();
        self.shared.metrics.answered(&self.route, status, time);
        let mut all = vec![
            ("route", self.route.as_str().into()),
            ("status", status.into()),
            ("id", self.id.as_str().into()),
            ("key", self.key.as_deref().into()),
        ];
        all.append(self.facts.get_mut().unwrap_or_else(PoisonError::into_inner));
        all.push(("seconds", rounded(time.as_secs_f64())));
        self.shared.log.request(&all);
    }
}

impl FromRequestParts<Arc<Shared>> for Record {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Shared>) -> Result<Record> {
        of_request(&parts.extensions)
    }
}

/// Record that [`pass`] has made.
fn of_request(extensions: &Extensions) -> Result<Record> {
    extensions.get().cloned().ok_or_else(|| ApiError::internal("the request did not pass the gate"))
}

/// A request with a JSON object.
pub struct Asked {
    /// The server.
    pub shared: Arc<Shared>,
    /// The request in the log.
    pub record: Record,
    /// Fields of the object.
    pub fields: Fields,
}

impl FromRequest<Arc<Shared>> for Asked {
    type Rejection = ApiError;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Asked> {
        let record = of_request(request.extensions())?;
        let fields = body::fields(request, &shared.settings, body::MOST_JSON).await?;
        Ok(Asked { shared: shared.clone(), record, fields })
    }
}

/// The name in the path of a route.
pub struct Id(pub String);

impl FromRequestParts<Arc<Shared>> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Id> {
        Path::from_request_parts(parts, shared).await.map(|Path(id)| Id(id)).map_err(|_| {
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", "the name in the path is not UTF-8")
        })
    }
}

/// Seconds rounded to 0.1 ms.
pub fn rounded(seconds: f64) -> Value {
    ((seconds * 1e4).round() / 1e4).into()
}

/// Lets a request through to its route, and completes the answer.
pub async fn pass(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str).to_owned();
    let id = id_of(request.headers());
    let checked = check_host(&shared, request.headers()).and_then(|()| check_key(&shared, &request, &route));
    let (key, refused) = match checked {
        Ok(key) => (key, None),
        Err(e) => (None, Some(e)),
    };
    let stalled = request.extensions().get::<Stalled>().cloned().unwrap_or_default();
    let route = format!("{} {route}", name_of(request.method()));
    let record = Record::new(shared.clone(), route, id.clone(), key, stalled);
    let response = match refused {
        Some(e) => e.into_response(),
        None => {
            request.extensions_mut().insert(record.clone());
            next.run(request).await
        }
    };
    if let Some(error) = response.extensions().get::<ApiError>() {
        record.set_code(error.code);
        error.cause().into_iter().for_each(|cause| shared.log.problem(cause));
    }
    record.set_status(response.status());
    let mut response = response.map(|body| Body::new(Logged { body, _record: record }));
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert("x-request-id", id);
    }
    response
}

/// A method in metrics, which keep each name for good. Clients can make up names.
fn name_of(method: &Method) -> &str {
    match *method {
        Method::GET
        | Method::HEAD
        | Method::POST
        | Method::PUT
        | Method::PATCH
        | Method::DELETE
        | Method::OPTIONS => method.as_str(),
        _ => "other",
    }
}

/// The id that the client sent, or a new one.
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

/// Refuses requests for another host name: a page can point its own name at this machine (DNS rebinding).
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
    let message = "the server does not answer to this host name; start it with --allow-host NAME";
    Err(ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message))
}

/// Name of the request's key.
///
/// # Errors
/// The route needs a key, and this one is missing or unknown: 401.
fn check_key(shared: &Shared, request: &Request, route: &str) -> Result<Option<String>> {
    let settings = &shared.settings;
    let key = keys::of_request(request.headers());
    let name = key.and_then(|key| settings.keys.name_of(key)).map(str::to_owned);
    let is_list = request.method() == Method::GET && LISTS.contains(&route);
    let is_open = OPEN.contains(&route) || (settings.open_lists && is_list);
    // Clients of ElevenLabs may send the key in the first message of a WebSocket.
    let comes_later = route.starts_with("/v1/text-to-speech/") && route.ends_with("stream-input");
    if settings.keys.is_empty() || is_open || name.is_some() || comes_later {
        return Ok(name);
    }
    let message = match key {
        None => "this route needs a key: send the header `Authorization: Bearer KEY`",
        Some(_) => "unknown key",
    };
    Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
}

/// A body that keeps its request's record until its end.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn a_line_has_one_code() {
        let shared = Arc::new(Shared::new(Settings { quiet: true, ..Settings::default() }));
        let record = Record::new(shared, "POST /".to_owned(), new_id(), None, Stalled::default());
        record.note("model", "a");
        record.set_code("cancelled");
        record.set_code("internal");
        let facts = record.0.facts.lock().expect("no panic").clone();
        assert_eq!(facts, [("model", "a".into()), ("code", "internal".into())]);
    }
}
