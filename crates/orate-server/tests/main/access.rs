//! Who is let in.

use super::{get, send, server};
use axum::body::Body;
use axum::http::Request;
use orate_server::{Keys, Settings};

fn with(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let request =
        headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
    request.body(Body::empty()).expect("a request")
}

#[tokio::test]
async fn keys_open_what_is_closed() {
    let [key, line] = Keys::generate("ada").expect("random numbers");
    let keys = Keys::parse(&line).expect("a line");
    let router = server(Settings { keys: keys.clone(), open_metrics: false, ..Settings::default() }).router();
    for path in ["/v1/models", "/v1/audio/voices", "/metrics", "/v1/nothing"] {
        assert_eq!(get(&router, path).await.error().1, "invalid_api_key", "{path}");
    }
    let wrong = send(&router, with("/v1/models", &[("authorization", "Bearer wrong")])).await;
    assert_eq!((wrong.status.as_u16(), wrong.header("www-authenticate")), (401, "Bearer"));
    let bearer = format!("Bearer {key}");
    for headers in [[("authorization", bearer.as_str())], [("xi-api-key", key.as_str())]] {
        assert_eq!(send(&router, with("/v1/models", &headers)).await.status, 200);
    }
    for path in ["/", "/health", "/ready", "/openapi.json"] {
        assert_eq!(get(&router, path).await.status, 200, "{path}");
    }
    let open = server(Settings { keys, open_lists: true, ..Settings::default() }).router();
    assert_eq!(get(&open, "/v1/audio/voices").await.status, 200);
    let speech = Request::post("/v1/audio/speech").body(Body::empty()).expect("a request");
    assert_eq!(send(&open, speech).await.status, 401);
}

#[tokio::test]
async fn other_hosts_are_refused() {
    let hosts = Some(vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "[::1]".to_owned()]);
    let router = server(Settings { hosts, ..Settings::default() }).router();
    for host in ["localhost", "LOCALHOST:8880", "127.0.0.1:8880", "[::1]:8880", "[::1]"] {
        assert_eq!(send(&router, with("/health", &[("host", host)])).await.status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example:8880", "127.0.0.1.nip.io", ""] {
        let answer = send(&router, with("/v1/models", &[("host", host)])).await;
        assert_eq!(answer.error().1, "host_not_allowed", "{host}");
    }
}

#[tokio::test]
async fn ids_come_back() {
    let router = server(Settings::default()).router();
    let own = send(&router, with("/health", &[("x-request-id", "abc-1")])).await;
    assert_eq!(own.header("x-request-id"), "abc-1");
    let bad = send(&router, with("/health", &[("x-request-id", "a b<script>")])).await;
    assert_eq!(bad.header("x-request-id").len(), 16);
}
