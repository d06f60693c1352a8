//! What a request has left of its body when it is answered.
//!
//! HTTP/1.1 answers on the connection on which the body comes. If the server closed it with bytes unread, the client
//! might lose the answer, or send its next request into nothing. So the rest is read and dropped; if there is too much,
//! the answer says that the connection ends.

use crate::state::Shared;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// Most bytes that are dropped for the sake of a connection.
const MOST: usize = 16 << 20;
/// Longest time for that.
const LONGEST: Duration = Duration::from_secs(5);

/// Answers a request, and reads what it has left of its body.
pub async fn read(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let awaits_word = request.headers().contains_key(header::EXPECT);
    let rest = Rest::default();
    let request = request.map(|body| Body::new(Lent { body, is_begun: false, rest: rest.clone() }));
    let mut response = next.run(request).await;
    let left = rest.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((body, is_begun)) = left {
        // Reading would ask such a client for its body, which it has not sent yet. A slow one had its time.
        let is_read = (is_begun || !awaits_word) && response.status() != StatusCode::REQUEST_TIMEOUT;
        let longest = LONGEST.min(shared.settings.body_timeout);
        let is_over = is_read && tokio::time::timeout(longest, dropped(body)).await.unwrap_or(false);
        if !is_over {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
    response
}

/// Reads a body to its end. Returns whether it got there.
async fn dropped(mut body: Body) -> bool {
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > MOST {
            return false;
        }
    }
    true
}

/// A body that was not read to its end, and whether reading had begun.
type Rest = Arc<Mutex<Option<(Body, bool)>>>;

/// A body that comes back when it is dropped before its end.
struct Lent {
    body: Body,
    is_begun: bool,
    rest: Rest,
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.is_begun = true;
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.body.is_end_stream() {
            let body = std::mem::take(&mut self.body);
            *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = Some((body, self.is_begun));
        }
    }
}
