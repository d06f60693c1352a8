//! Models, voices, and the files of the page.

use super::{engine, get, post, router, send, server};
use axum::body::Body;
use axum::http::Request;
use orate::VoiceStore;
use orate_server::Settings;
use serde_json::{Value, json};

#[tokio::test]
async fn models_are_listed_for_several_clients() {
    let router = router();
    let list = get(&router, "/v1/models").await.json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&"list".into(), &"orate-default".into()));
    assert_eq!(list["data"][0], get(&router, "/v1/models/orate-default").await.json());
    assert_eq!(get(&router, "/v1/models/tts-1").await.json()["id"], "orate-default");
    assert_eq!(get(&router, "/v1/models/other").await.error().0, 404);
    let options = list["data"][0]["options"].as_array().expect("options");
    assert!(
        options.iter().any(|option| option["name"] == "steps" && option["range"][1] == 100.0),
        "{options:?}"
    );
    assert_eq!(get(&router, "/v1/audio/models").await.json()["models"][0]["name"], "orate-default");
}

#[tokio::test]
async fn voices_are_listed_with_their_aliases() {
    let settings =
        Settings { aliases: vec![("Anna".into(), engine().voices()[0].name.clone())], ..Settings::default() };
    let router = server(settings).router();
    let list = get(&router, "/v1/audio/voices").await.json();
    let of = |kind: &str| {
        let all = list["voices"].as_array().expect("voices").iter();
        all.filter(|v| v["kind"] == kind)
            .filter_map(|v| v["id"].as_str().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let own: Vec<_> = engine().voices().iter().map(|v| v.name.clone()).collect();
    assert_eq!(of("model"), own);
    assert_eq!(of("alias").len(), 14);
    assert_eq!(of("alias")[0], "Anna");
    let names = get(&router, "/v1/audio/voices?legacy=true").await.json();
    assert_eq!(names["voices"][0], own[0].as_str());
    assert_eq!(get(&router, "/v1/audio/voices?model=other").await.error().0, 404);
}

#[tokio::test]
async fn voices_are_not_made_by_models_that_cannot() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = Settings { voices: Some(VoiceStore::new(folder.path())), ..Settings::default() };
    let router = server(settings).router();
    let upload = json!({ "name": "ada", "wav_b64": "UklGRg==" });
    assert_eq!(post(&router, "/v1/audio/voices", &upload).await.error().1, "unsupported_value");
    let gone = Request::delete("/v1/audio/voices/ada").body(Body::empty()).expect("a request");
    assert_eq!(send(&router, gone).await.error(), (404, "voice_not_found".into(), Some("id".into())));
    let missing = post(&router, "/v1/audio/voices", &json!({ "name": "ada" })).await;
    assert_eq!(missing.error(), (400, "missing_field".into(), Some("wav_b64".into())));
    let form = Request::post("/v1/audio/voices").header("content-type", "multipart/form-data; boundary=x");
    let form = form.body(Body::from("--x\r\nbroken")).expect("a request");
    assert_eq!(send(&router, form).await.status, 400);
    let closed = server(Settings::default()).router();
    assert_eq!(post(&closed, "/v1/audio/voices", &upload).await.error().1, "feature_disabled");
}

#[tokio::test]
async fn the_description_has_every_route() {
    let router = router();
    let described: Value = get(&router, "/openapi.json").await.json();
    let formats = &described["components"]["schemas"]["Speech"]["properties"]["response_format"]["enum"];
    assert!(formats.as_array().is_some_and(|f| f.contains(&"wav".into())), "{formats}");
    for (path, methods) in described["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            let path = path.replace("{id}", "x").replace("{voice}", "x");
            let request = Request::builder().method(method.to_uppercase().as_str()).uri(&path);
            let answer = send(&router, request.body(Body::empty()).expect("a request")).await;
            let code = serde_json::from_slice::<Value>(&answer.bytes).ok();
            let code = code.and_then(|json| json["error"]["code"].as_str().map(str::to_owned));
            let missing = ["route_not_found", "method_not_allowed"].map(Some);
            assert!(!missing.contains(&code.as_deref()), "{method} {path}: {code:?}");
        }
    }
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere() {
    let router = router();
    for path in ["/", "/page.css", "/page.js", "/favicon.svg"] {
        let file = get(&router, path).await;
        assert_eq!((file.status.as_u16(), file.header("x-content-type-options")), (200, "nosniff"));
        assert!(file.header("content-security-policy").starts_with("default-src 'none'"), "{path}");
        let text = String::from_utf8(file.bytes).expect("text");
        let foreign = ["//cdn", "https://", "@import"].into_iter().find(|word| text.contains(word));
        assert_eq!(foreign, None, "{path}");
    }
}
