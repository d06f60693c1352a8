//! Who is let in.

use super::{get, post, posting, send, server};
use axum::body::Body;
use axum::http::Request;
use orate_server::{Keys, Settings};
use serde_json::json;
use tower::ServiceExt as _;

fn with(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let request =
        headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
    request.body(Body::empty()).expect("a request")
}

#[tokio::test]
async fn keys_open_what_is_closed() {
    let [key, line] = Keys::generate("ada").expect("random numbers");
    let keys = Keys::parse(&line).expect("a line");
    let router = server(Settings { keys: keys.clone(), ..Settings::default() }).router();
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

/// Browsers ask with an `Origin` and let pages read only what the answer allows.
#[tokio::test]
async fn pages_of_other_origins_are_refused_by_default() {
    let router = server(Settings::default()).router();
    let origin = [("origin", "http://evil.example")];
    let answer = send(&router, with("/v1/models", &origin)).await;
    assert_eq!(answer.header("access-control-allow-origin"), "");
    // Forms of other pages need no permission, but cannot send JSON.
    let form = Request::post("/v1/audio/speech").header("content-type", "text/plain");
    let form = form.body(Body::from("{\"model\": \"tts-1\", \"input\": \"Hi.\"}")).expect("a request");
    assert_eq!(send(&router, form).await.error().0, 415);
    let cors_origins = vec!["http://good.example".to_owned()];
    let open = server(Settings { cors_origins, ..Settings::default() }).router();
    for (origin, allowed) in [("http://evil.example", ""), ("http://good.example", "http://good.example")] {
        let answer = send(&open, with("/v1/models", &[("origin", origin)])).await;
        assert_eq!(answer.header("access-control-allow-origin"), allowed);
    }
    // OpenAI's client sends headers of its own.
    let preflight = Request::options("/v1/audio/speech")
        .header("origin", "http://good.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,x-stainless-os");
    let answer = send(&open, preflight.body(Body::empty()).expect("a request")).await;
    assert_eq!(answer.header("access-control-allow-headers"), "authorization,x-stainless-os");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_key_are_limited() {
    let [key, line] = Keys::generate("ada").expect("random numbers");
    let [other, second] = Keys::generate("bob").expect("random numbers");
    let keys = Keys::parse(&format!("{line}\n{second}")).expect("lines");
    let server = server(Settings { keys, max_per_key: Some(1), ..Settings::default() });
    let router = server.router();
    let speak = |key: &str, text: &str| {
        let body = json!({ "model": "tts-1", "input": text, "response_format": "pcm" });
        let mut request = posting("/v1/audio/speech", &body.to_string());
        request.headers_mut().insert("xi-api-key", key.parse().expect("a header"));
        request
    };
    let long = "This is a sentence that takes a while to speak. ".repeat(200);
    let first = router.clone().oneshot(speak(&key, &long)).await.expect("an answer");
    let second = send(&router, speak(&key, "Hello.")).await;
    assert_eq!((second.error().0, second.error().1.as_str()), (429, "rate_limited"));
    assert_eq!(second.header("retry-after"), "1");
    assert_eq!(send(&router, speak(&other, "Hello.")).await.status, 200);
    drop(first);
    assert_eq!(send(&router, speak(&key, "Hello.")).await.status, 200);
}

#[tokio::test]
async fn answers_repeat_little_of_a_request_and_metrics_nothing() {
    let router = server(Settings::default()).router();
    let long = "x".repeat(5000);
    for (name, value) in [
        ("model", json!(long)),
        ("voice", json!(long)),
        ("voice", json!(format!("{long}+{long}"))),
        ("response_format", json!(long)),
        ("language", json!(long)),
        ("steps", json!(long)),
        ("seed", json!(long)),
        ("stream_format", json!(long)),
    ] {
        let mut body = json!({ "model": "tts-1", "input": "Hi." });
        body[name] = value;
        let answer = post(&router, "/v1/audio/speech", &body).await;
        let text = String::from_utf8(answer.bytes.clone()).expect("text");
        assert!(answer.status.is_client_error(), "{name}: {text}");
        assert!(text.matches('x').count() < 200 && text.len() < 1000, "{name}: {text}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    let lost = get(&router, &format!("/{long}")).await;
    assert!(lost.bytes.len() < 500);
    let body = json!({ "model": "tts-1", "input": "Marmalade.", "voice": "nova" });
    assert_eq!(post(&router, "/v1/audio/speech", &body).await.status, 200);
    let metrics = String::from_utf8(get(&router, "/metrics").await.bytes).expect("text");
    assert!(metrics.contains("orate_characters_total{model=\"orate-default\"} 10"), "{metrics}");
    assert!(!metrics.contains("Marmalade") && !metrics.contains("nova") && !metrics.contains("xxx"));
}

/// A request for which no thread is free in time is not one whose client has left.
#[tokio::test(flavor = "multi_thread")]
async fn waits_in_vain_are_counted_apart() {
    let queue_timeout = std::time::Duration::from_secs(1);
    let router = server(Settings { queue_timeout, ..Settings::default() }).router();
    let body = |text: &str| json!({ "model": "tts-1", "input": text, "response_format": "pcm" }).to_string();
    let long = body(&"This is a sentence that takes a while to speak. ".repeat(400));
    // Answers that nobody reads hold both threads.
    let held = [(); 2].map(|()| router.clone().oneshot(posting("/v1/audio/speech", &long)));
    let [first, second] = held;
    let held = (first.await.expect("an answer"), second.await.expect("an answer"));
    let refused = send(&router, posting("/v1/audio/speech", &body("Hello."))).await;
    assert_eq!((refused.error().0, refused.error().1.as_str()), (503, "overloaded"));
    let metrics = String::from_utf8(get(&router, "/metrics").await.bytes).expect("UTF-8");
    assert!(metrics.contains("orate_cancelled_total{reason=\"queue\"} 1"), "{metrics}");
    assert!(!metrics.contains("reason=\"client\""), "{metrics}");
    drop(held);
}

/// Each name of a metric is kept for good.
#[tokio::test]
async fn methods_that_clients_make_up_are_one_in_metrics() {
    let router = server(Settings::default()).router();
    let lines = async || {
        let metrics = get(&router, "/metrics").await.bytes;
        String::from_utf8(metrics).expect("UTF-8").lines().count()
    };
    let ask = async |method: &str| {
        let request = Request::builder().method(method).uri("/v1/audio/speech");
        send(&router, request.body(Body::empty()).expect("a request")).await
    };
    assert_eq!(ask("XA").await.error().1, "method_not_allowed");
    lines().await;
    let before = lines().await;
    for i in 0..20 {
        assert_eq!(ask(&format!("XB{i}")).await.status, 405);
    }
    assert_eq!(lines().await, before);
}

#[tokio::test]
async fn wrong_paths_and_requests_without_a_handshake_are_errors_in_json() {
    let router = server(Settings::default()).router();
    assert_eq!(get(&router, "/v1/models/%FF").await.error().1, "invalid_value");
    assert_eq!(get(&router, "/v1/audio/speech/stream").await.error().1, "websocket_expected");
}
