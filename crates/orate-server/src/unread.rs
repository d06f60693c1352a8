//! Discards what is left of a request's body when the answer is ready.
//!
//! In HTTP/1.1 the next request follows the body on the same connection. A server that closes a connection
//! with unread bytes resets it: the client may lose the answer, or send its next request in vain. So the rest
//! is read. If it is too long or too slow, the answer says `Connection: close`.

use crate::state::Shared;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Most bytes to discard: more than any route takes.
const MOST: usize = 16 << 20;
/// Longest wait for them, within the time for a whole body.
const LONGEST: Duration = Duration::from_secs(5);

/// Answers a request and discards the rest of its body.
pub async fn discard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let begun = Instant::now();
    // Reading the body would ask such a client to send it.
    let awaits_continue = request.headers().contains_key(header::EXPECT);
    let (head, body) = request.into_parts();
    let rest = Lent(Arc::new(Mutex::new((body, false))));
    let mut response = next.run(Request::from_parts(head, Body::new(rest.clone()))).await;
    let is_asked_for = rest.get().1 || !awaits_continue;
    let left = shared.settings.body_timeout.saturating_sub(begun.elapsed()).min(LONGEST);
    let is_read = is_asked_for
        && rest.size_hint().lower() <= MOST as u64
        && tokio::time::timeout(left, to_end(rest)).await.unwrap_or(false);
    if !is_read {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads a body of at most [`MOST`] bytes. Returns whether it reached the end.
async fn to_end(body: Lent) -> bool {
    let mut body = Limited::new(body, MOST);
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return false;
        }
    }
    true
}

/// A body that a handler reads or drops, and whether anyone began to read it.
#[derive(Clone)]
struct Lent(Arc<Mutex<(Body, bool)>>);

impl Lent {
    fn get(&self) -> MutexGuard<'_, (Body, bool)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let (body, is_begun) = &mut *self.get();
        *is_begun = true;
        Pin::new(body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.get().0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.get().0.size_hint()
    }
}
