//! Voices from recordings, with a tiny Qwen3-TTS model.

use super::{Answer, get, post, send};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use orate::{DeviceChoice, Engine, EngineOptions, ModelSource, VoiceStore};
use orate_server::{Served, Server, Settings};
use orate_testing::checkpoints::{qwen3_tts_goldens, write_chatterbox, write_random_qwen3_tts};
use serde_json::{Value, json};
use std::path::Path;

const VOICES: &str = "/v1/audio/voices";
const SPEECH: &str = "/v1/audio/speech";

/// A server with the built-in voice and `base`, which clones. It keeps voices in `folder`.
fn router(folder: &Path) -> Router {
    server(folder, &[]).expect("threads").router()
}

/// The same server with aliases.
fn server(folder: &Path, aliases: &[(&str, &str)]) -> std::io::Result<Server> {
    let aliases = aliases.iter().map(|(alias, voice)| ((*alias).to_owned(), (*voice).to_owned())).collect();
    let model = folder.join("base");
    write_random_qwen3_tts("base", &model, 1).expect("a model");
    let options = EngineOptions {
        model: ModelSource::Path(model),
        device: DeviceChoice::Cpu,
        threads: Some(1),
        ..EngineOptions::default()
    };
    let base = Engine::with_options(options).expect("a whole model");
    let voices = Some(VoiceStore::new(folder.join("voices")));
    let server = Server::new(Settings { voices, aliases, quiet: true, ..Settings::default() });
    let served = |id: &str, engine| Served { id: id.to_owned(), engine, streams: Some(1) };
    server.set_models(vec![served("orate-default", super::engine()), served("base", base)])?;
    Ok(server)
}

fn recording() -> Vec<u8> {
    std::fs::read(qwen3_tts_goldens().join("cases/ref.wav")).expect("a recording")
}

/// Uploads fields of a form.
async fn upload(router: &Router, fields: &[(&str, &[u8])]) -> Answer {
    let mut body = vec![];
    for (name, value) in fields {
        let head = format!("--B\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n");
        body.extend([head.as_bytes(), value, b"\r\n"].concat());
    }
    body.extend(b"--B--\r\n");
    let request = Request::post(VOICES).header("content-type", "multipart/form-data; boundary=B");
    send(router, request.body(Body::from(body)).expect("a request")).await
}

fn error(status: u16, code: &str, param: &str) -> (u16, String, Option<String>) {
    (status, code.to_owned(), Some(param.to_owned()))
}

fn message(answer: &Answer) -> String {
    answer.json()["error"]["message"].as_str().expect("a message").to_owned()
}

#[tokio::test]
async fn names_that_choose_other_voices_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (router, recording) = (router(folder.path()), recording());
    let own = super::engine().voices()[0].name.clone();
    for name in ["default", "Default", &own, &own.to_lowercase()] {
        let refused = upload(&router, &[("name", name.as_bytes()), ("audio_sample", &recording)]).await;
        assert_eq!(refused.error(), error(400, "invalid_value", "name"), "{name}");
        assert!(message(&refused).ends_with("; take another name"), "{}", message(&refused));
    }
    let refused = upload(&router, &[("name", b"../ada"), ("audio_sample", &recording)]).await;
    assert_eq!(refused.error(), error(400, "invalid_value", "name"));
    // A voice may have the name of an alias, which it replaces.
    let made = upload(&router, &[("name", b"alloy"), ("audio_sample", &recording)]).await;
    assert_eq!(made.status, 200, "{}", String::from_utf8_lossy(&made.bytes));
    let list = get(&router, &format!("{VOICES}?model=base")).await.json();
    let named = list["voices"].as_array().expect("a list").iter().filter(|voice| voice["id"] == "alloy");
    assert_eq!(named.map(|voice| &voice["kind"]).collect::<Vec<_>>(), ["kept"]);
    for path in [format!("{VOICES}?legacy=true"), format!("{VOICES}?legacy=true&model=base")] {
        let list = get(&router, &path).await.json();
        let mut names: Vec<_> =
            list["voices"].as_array().expect("a list").iter().map(Value::to_string).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all, "{names:?}");
    }
}

/// Every voice that is listed speaks, and what speaks is listed.
#[tokio::test]
async fn aliases_are_listed_where_they_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let router = router(folder.path());
    let listed = async |model: &str, kind: &str| -> Vec<String> {
        let list = get(&router, &format!("{VOICES}?model={model}")).await.json();
        let of_kind = list["voices"].as_array().expect("a list").iter().filter(|voice| voice["kind"] == kind);
        of_kind.map(|voice| voice["id"].as_str().expect("a name").to_owned()).collect()
    };
    let speak = async |voice: &str| {
        let body = json!({ "model": "base", "voice": voice, "input": "Hi.", "max_frames": 2 });
        post(&router, SPEECH, &body).await
    };
    assert_eq!(listed("orate-default", "alias").await.len(), 13);
    assert_eq!(listed("base", "alias").await, [""; 0]);
    let refused = speak("alloy").await;
    assert_eq!(refused.error(), error(400, "voice_not_found", "voice"));
    assert!(message(&refused).ends_with("POST /v1/audio/voices"), "{}", message(&refused));
    assert_eq!(speak("default").await.error(), error(400, "unsupported_value", "voice"));
    // A recording makes a voice, but no default.
    let fields = [("name", &b"ada"[..]), ("audio_sample", &recording())];
    assert_eq!(upload(&router, &fields).await.status, 200);
    assert_eq!(listed("base", "kept").await, ["ada"]);
    assert_eq!(listed("base", "alias").await, [""; 0]);
    assert_eq!(speak("ada").await.status, 200);
    assert!(message(&speak("alloy").await).ends_with("it has: ada"));
}

#[tokio::test]
async fn aliases_may_be_of_kept_voices_and_mixes() {
    let folder = tempfile::tempdir().expect("a folder");
    let fields = [("name", &b"ada"[..]), ("audio_sample", &recording())];
    assert_eq!(upload(&router(folder.path()), &fields).await.status, 200);
    let own = super::engine().voices()[0].name.clone();
    let mix = format!("{own}:0.5+{own}:0.5");
    let router = server(folder.path(), &[("Anna", "ada"), ("both", &mix)]).expect("voices").router();
    for (model, voice, status) in
        [("base", "anna", 200), ("orate-default", "both", 200), ("base", "both", 400)]
    {
        let mut body = json!({ "model": model, "voice": voice, "input": "Hi.", "response_format": "pcm" });
        if model == "base" {
            body["max_frames"] = 2.into();
        }
        assert_eq!(post(&router, SPEECH, &body).await.status, status, "{voice} of {model}");
    }
    let refused = server(folder.path(), &[("Anna", "eve")]).expect_err("no such voice").to_string();
    assert!(refused.starts_with("Anna=eve: orate-default has no voice `eve`"), "{refused}");
    assert!(refused.ends_with("base has no voice `eve`; it has: ada"), "{refused}");
}

/// A kept voice of another family hides no alias.
#[tokio::test]
async fn voices_of_other_families_are_passed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let models = [("qwen", "base"), ("turbo", "turbo")].map(|(id, variant)| {
        let model = folder.path().join(id);
        match id {
            "qwen" => write_random_qwen3_tts(variant, &model, 1).expect("a model"),
            _ => write_chatterbox(&model, variant, "tiny").expect("a model"),
        }
        let (device, model) = (DeviceChoice::Cpu, ModelSource::Path(model));
        let options = EngineOptions { model, device, threads: Some(1), ..EngineOptions::default() };
        let engine = Engine::with_options(options).expect("a whole model");
        Served { id: id.to_owned(), engine, streams: Some(1) }
    });
    let voices = Some(VoiceStore::new(folder.path().join("voices")));
    let server = Server::new(Settings { voices, quiet: true, ..Settings::default() });
    server.set_models(models.into()).expect("threads");
    let router = server.router();
    let recording = recording();
    for name in ["nova", "ada"] {
        let fields = [("name", name.as_bytes()), ("model", b"qwen"), ("audio_sample", &recording)];
        assert_eq!(upload(&router, &fields).await.status, 200);
    }
    let speak = async |voice: &str| {
        let body = json!({ "model": "turbo", "voice": voice, "input": "Hi.", "response_format": "wav",
            "extra_params": {}, "max_codes": 5 });
        post(&router, SPEECH, &body).await
    };
    let spoken = speak("nova").await;
    assert_eq!(spoken.status, 200, "{}", String::from_utf8_lossy(&spoken.bytes));
    let refused = speak("ada").await;
    assert_eq!(refused.error(), error(400, "unsupported_value", "voice"));
    assert!(message(&refused).contains("qwen3-tts"), "{}", message(&refused));
    let refused = speak("nova:0.5+ada:0.5").await;
    assert_eq!(refused.error(), error(400, "unsupported_value", "voice"));
    assert!(message(&refused).contains("`nova` is a kept voice"), "{}", message(&refused));
    let refused = post(&router, VOICES, &json!({ "name": "bob" })).await;
    assert_eq!(refused.error(), error(400, "missing_field", "wav_b64"));
}

#[tokio::test]
async fn wrong_fields_of_a_form_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (router, recording) = (router(folder.path()), recording());
    for value in [vec![b'x'; 100 << 10], vec![0xFF; 10]] {
        let refused = upload(&router, &[("name", b"ada"), ("file", &value)]).await;
        assert_eq!(refused.error(), error(400, "invalid_value", "file"));
        let message = message(&refused);
        assert!(message.contains("`file`") && message.contains("`audio_sample`"), "{message}");
    }
    let large = vec![b'x'; (10 << 20) + 1];
    let refused = upload(&router, &[("name", b"ada"), ("audio_sample", &large)]).await;
    assert_eq!((refused.status.as_u16(), refused.error().1.as_str()), (413, "too_large"));
    let replacing = async |word: &str| {
        let name = ("name", &b"ada"[..]);
        upload(&router, &[name, ("overwrite", word.as_bytes()), ("audio_sample", &recording)]).await
    };
    assert_eq!(replacing("False").await.status, 200);
    assert_eq!(replacing("0").await.error(), error(409, "voice_exists", "name"));
    for word in ["True", "true", "1"] {
        assert_eq!(replacing(word).await.status, 200, "{word}");
    }
    assert_eq!(replacing("perhaps").await.error(), error(400, "invalid_value", "overwrite"));
}

#[tokio::test]
async fn tokens_of_texts_are_counted_and_whole_events_are_the_whole_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let router = router(folder.path());
    assert_eq!(upload(&router, &[("name", b"ada"), ("audio_sample", &recording())]).await.status, 200);
    let mut body = json!({
        "model": "base", "input": "Hello.", "voice": "ada", "response_format": "pcm", "stream": false,
    });
    let whole = post(&router, SPEECH, &body).await.bytes;
    body["stream"] = true.into();
    let streamed = post(&router, SPEECH, &body).await.bytes;
    // Such a model never ends, so that whole pieces are spoken again.
    assert!(whole != streamed);
    body["stream_format"] = "sse".into();
    for (stream, want) in [(json!(false), whole), (json!(null), streamed)] {
        body["stream"] = stream;
        let events = String::from_utf8(post(&router, SPEECH, &body).await.bytes).expect("text");
        let data = events.lines().filter_map(|line| line.strip_prefix("data: "));
        let data: Vec<Value> = data.map(|data| serde_json::from_str(data).expect("JSON")).collect();
        let audio = data.iter().filter_map(|data| data["audio"].as_str());
        let audio: Vec<u8> = audio.flat_map(|text| BASE64_STANDARD.decode(text).expect("base64")).collect();
        assert!(audio == want, "{}", body["stream"]);
        let usage = &data.last().expect("an end")["usage"];
        assert!((1..10).contains(&usage["input_tokens"].as_u64().expect("a number")), "{usage}");
    }
    let batch = json!({
        "model": "base", "voice": "ada", "response_format": "pcm", "max_frames": 4,
        "items": [{ "input": "Hello.", "stream_format": "sse" }],
    });
    let batch = post(&router, &format!("{SPEECH}/batch"), &batch).await.json();
    assert!(batch["results"][0]["usage"]["input_tokens"].as_u64() > Some(0), "{batch}");
    assert_eq!(batch["results"][0]["ignored"], json!(["stream_format"]));
}

#[tokio::test]
async fn a_model_without_a_voice_asks_for_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let router = router(folder.path());
    let body = json!({ "model": "base", "input": "Hello." });
    let refused = post(&router, SPEECH, &body).await;
    assert_eq!(refused.error(), error(400, "unsupported_value", "voice"));
    assert!(message(&refused).contains("POST /v1/audio/voices"), "{}", message(&refused));
}
