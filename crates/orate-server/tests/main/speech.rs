//! Sound: the same as the library's, in every form of the answer.

use super::{engine, get, post, posting, router, send, server};
use axum::body::Body;
use axum::http::Request;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::StreamExt as _;
use orate::Options;
use orate_audio::{AudioFormat, EncoderSettings, encode, read_audio_bytes};
use orate_server::{Keys, Settings};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tower::ServiceExt as _;

const SPEECH: &str = "/v1/audio/speech";

fn request(more: Value) -> Value {
    let mut request =
        json!({ "model": "tts-1", "input": "Hello there. How are you?", "response_format": "wav" });
    let fields = more.as_object().expect("an object").clone();
    request.as_object_mut().expect("an object").extend(fields);
    request
}

#[tokio::test]
async fn sound_is_that_of_the_library() {
    let router = router();
    let options = Options { seed: 7, whole: true, ..Options::default() };
    let want = engine().speak("Hello there. How are you?", &options).expect("speaks");
    let wav = encode(&want.samples, want.sample_rate, AudioFormat::Wav16, &EncoderSettings::default());
    let wav = wav.expect("encodes");
    let whole = post(&router, SPEECH, &request(json!({ "seed": 7, "stream": false }))).await;
    assert_eq!(whole.status, 200);
    assert!(whole.bytes == wav, "bytes of the library");
    assert_eq!(whole.header("content-type"), "audio/wav");
    assert_eq!(whole.header("content-length"), wav.len().to_string());
    assert_eq!(whole.header("x-orate-finish-reason"), "stop");
    assert_eq!((whole.header("x-orate-seed"), whole.header("x-orate-model")), ("7", "orate-default"));
    // A stream has the samples of a stream after a header that leaves the length open.
    let options = Options { whole: false, ..options };
    let stream = engine().stream("Hello there. How are you?", &options).expect("speaks");
    let samples: Vec<f32> = stream.flat_map(|chunk| chunk.expect("speaks").samples).collect();
    let wav = encode(&samples, want.sample_rate, AudioFormat::Wav16, &EncoderSettings::default());
    let streamed = post(&router, SPEECH, &request(json!({ "seed": 7 }))).await;
    assert_eq!(streamed.bytes[44..], wav.expect("encodes")[44..]);
    assert_eq!(streamed.bytes[4..8], [0xff; 4]);
    assert_eq!(streamed.header("x-accel-buffering"), "no");
    let read = read_audio_bytes("a.wav", streamed.bytes, 60.0).expect("a wav file");
    assert_eq!((read.sample_rate, read.samples.len()), (want.sample_rate, want.samples.len()));
}

#[tokio::test]
async fn events_hold_the_bytes_of_a_stream() {
    let router = router();
    let sound = post(&router, SPEECH, &request(json!({ "response_format": "pcm" }))).await;
    let sse = json!({ "response_format": "pcm", "stream_format": "sse" });
    let events = post(&router, SPEECH, &request(sse)).await;
    assert_eq!(events.header("content-type"), "text/event-stream");
    let text = String::from_utf8(events.bytes).expect("text");
    let (mut bytes, mut done) = (vec![], None);
    for event in text.split("\n\n").filter(|event| !event.is_empty()) {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name, format!("event: {}", data["type"].as_str().expect("a name")));
        match data["type"].as_str() {
            Some("speech.audio.delta") => {
                bytes
                    .extend(BASE64_STANDARD.decode(data["audio"].as_str().expect("base64")).expect("base64"));
            }
            Some("speech.audio.done") => done = Some(data),
            other => panic!("{other:?}"),
        }
    }
    assert!(bytes == sound.bytes, "joined events are the stream");
    let done = done.expect("an end");
    let usage = &done["usage"];
    assert!(
        usage["input_tokens"].as_u64() > Some(10) && usage["output_tokens"].as_u64() > Some(5),
        "{usage}"
    );
    assert_eq!(done["finish_reason"], "stop");
}

#[tokio::test]
async fn every_format_of_the_build_is_sound() {
    let router = router();
    for format in AudioFormat::available() {
        let name = match format {
            AudioFormat::Wav16 => "wav",
            AudioFormat::Raw16 => "pcm",
            AudioFormat::Flac => "flac",
            AudioFormat::Mp3 => "mp3",
            AudioFormat::Opus => "opus",
            AudioFormat::Aac => "aac",
            _ => continue,
        };
        let answer = post(&router, SPEECH, &request(json!({ "response_format": name }))).await;
        assert_eq!(answer.status, 200, "{name}");
        assert!(answer.bytes.len() > 5000, "{name}: {} bytes", answer.bytes.len());
        if ["wav", "flac", "mp3"].contains(&name) {
            let sound = read_audio_bytes(&format!("a.{name}"), answer.bytes, 60.0).expect(name);
            assert!((1.0..6.0).contains(&sound.duration_s()), "{name}: {} s", sound.duration_s());
        }
    }
}

#[tokio::test]
async fn speed_voice_and_rate_have_their_effect() {
    let router = router();
    let seconds = async |more: Value| {
        let answer = post(&router, SPEECH, &request(more)).await;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
        let sound = read_audio_bytes("a.wav", answer.bytes, 60.0).expect("a wav file");
        (sound.duration_s(), sound.sample_rate)
    };
    let (usual, _) = seconds(json!({})).await;
    assert_eq!(seconds(json!({ "speed": 1 })).await.0, usual);
    let (fast, _) = seconds(json!({ "speed": 1.4 })).await;
    assert!(fast < 0.9 * usual, "{fast} of {usual} s");
    let (low, rate) = seconds(json!({ "sample_rate": 16_000 })).await;
    assert_eq!(rate, 16_000);
    assert!((low - usual).abs() < 0.01);
    // OpenAI's names are voices of the model, which the answer names.
    let answer = post(&router, SPEECH, &request(json!({ "voice": "nova", "instructions": "calm" }))).await;
    let voices = engine().voices().iter().map(|v| v.name.clone()).collect::<Vec<_>>();
    assert!(voices.iter().any(|name| name == answer.header("x-orate-voice")), "{voices:?}");
    assert_eq!(answer.header("x-orate-ignored"), "instructions");
    let answer =
        post(&router, SPEECH, &request(json!({ "voice": { "id": voices[0] }, "lang_code": "a" }))).await;
    assert_eq!(answer.header("x-orate-voice"), voices[0]);
    assert_eq!(answer.header("x-orate-ignored"), "lang_code");
}

#[tokio::test]
async fn errors_and_ignored_fields_have_the_names_of_elevenlabs() {
    let router = router();
    let route = |more: &str| format!("/v1/text-to-speech/default{more}?output_format=pcm_24000");
    let long = "a".repeat(20_001);
    for (body, status, code, param) in [
        (json!({ "text": "" }), 400, "text_empty", "text"),
        (json!({ "text": "..." }), 400, "text_empty", "text"),
        (json!({ "text": long }), 413, "text_too_long", "text"),
        (json!({ "text": "Hello 漢字" }), 400, "text_unspeakable", "text"),
        (json!({ "text": "Hi.", "language_code": "xx" }), 400, "invalid_value", "language_code"),
    ] {
        for more in ["", "/stream", "/with-timestamps", "/stream/with-timestamps"] {
            let refused = post(&router, &route(more), &body).await;
            assert_eq!(refused.error(), (status, code.to_owned(), Some(param.to_owned())), "{more}");
            let message = refused.json()["error"]["message"].to_string();
            assert!(!message.contains("`input`") && !message.contains("`language`"), "{message}");
        }
    }
    let body = json!({
        "text": "Hi.", "model_id": "eleven_multilingual_v2", "previous_text": "Ah.", "next_text": null,
        "voice_settings": { "stability": 0.5, "speed": 1.1, "style": null },
    });
    for more in ["", "/stream", "/with-timestamps", "/stream/with-timestamps"] {
        let answer = post(&router, &route(more), &body).await;
        assert_eq!(answer.status, 200, "{more}");
        assert_eq!(answer.header("x-orate-ignored"), "model_id, voice_settings.stability, previous_text");
    }
    let known = json!({ "text": "Hi.", "model_id": "orate-default" });
    assert_eq!(post(&router, &route(""), &known).await.header("x-orate-ignored"), "");
}

#[tokio::test]
async fn every_form_of_an_answer_names_ignored_fields() {
    let router = router();
    let events = post(&router, SPEECH, &request(json!({ "stream_format": "sse", "lang_code": "a" }))).await;
    assert_eq!(events.header("x-orate-ignored"), "lang_code");
    for stream in [true, false] {
        let body = request(json!({ "stream": stream, "stream_format": "sse", "lang_code": "a" }));
        let captions = post(&router, "/dev/captioned_speech", &body).await;
        assert_eq!(captions.header("x-orate-ignored"), "lang_code, stream_format");
    }
    // Captions have times anyway, unless the request wants none.
    for (times, ignored) in [(true, ""), (false, "word_timestamps")] {
        let body = json!({ "stream": false, "word_timestamps": true, "return_timestamps": times });
        let captions = post(&router, "/dev/captioned_speech", &request(body)).await;
        assert_eq!((captions.status.as_u16(), captions.header("x-orate-ignored")), (200, ignored));
        assert_eq!(captions.json()["timestamps"].is_array(), times);
    }
    let body = request(json!({ "word_timestamps": true, "items": [{}, { "stream_format": "sse" }] }));
    let batch = post(&router, "/v1/audio/speech/batch", &body).await.json();
    assert_eq!(batch["results"][0]["ignored"], json!(["word_timestamps"]));
    assert_eq!(batch["results"][1]["ignored"], json!(["stream_format", "word_timestamps"]));
}

#[tokio::test]
async fn mixes_are_read_in_both_forms() {
    let router = router();
    let voices = engine().voices().iter().map(|v| v.name.clone()).collect::<Vec<_>>();
    let [a, b] = [&voices[0], voices.last().expect("voices")];
    let mut sounds = vec![];
    for voice in [format!("{a}:2+{b}"), format!("{a}(2)+{b}"), format!(" {a} (2) + {b} (1)")] {
        let answer =
            post(&router, SPEECH, &request(json!({ "voice": voice, "response_format": "pcm" }))).await;
        assert_eq!(answer.status, 200, "{voice}");
        assert_eq!(answer.header("x-orate-voice"), format!("{a}:2+{b}:1"));
        sounds.push(answer.bytes);
    }
    assert!(sounds[0] == sounds[1] && sounds[1] == sounds[2]);
}

#[tokio::test]
async fn wrong_requests_are_named() {
    let router = router();
    let error = |status: u16, code: &str, param: &str| {
        (status, code.to_owned(), Some(param.to_owned()).filter(|param| !param.is_empty()))
    };
    let long = "a".repeat(20_001);
    let cases = [
        (json!({ "model": null }), error(400, "missing_field", "model")),
        (json!({ "model": "gpt-9" }), error(404, "model_not_found", "model")),
        (json!({ "input": null }), error(400, "missing_field", "input")),
        (json!({ "input": " \n" }), error(400, "text_empty", "input")),
        (json!({ "input": "..." }), error(400, "text_empty", "input")),
        (json!({ "input": 7 }), error(400, "invalid_value", "input")),
        (json!({ "input": long }), error(413, "text_too_long", "input")),
        (json!({ "input": "Hello 漢字" }), error(400, "text_unspeakable", "input")),
        (json!({ "voice": "nobody" }), error(400, "voice_not_found", "voice")),
        (json!({ "voice": "../../etc/passwd" }), error(400, "voice_not_found", "voice")),
        (json!({ "voice": "/etc/passwd.json" }), error(400, "voice_not_found", "voice")),
        (json!({ "voice": "F1+/tmp/x.json" }), error(400, "voice_not_found", "voice")),
        (json!({ "voice": "F1:x+F1" }), error(400, "invalid_value", "voice")),
        (json!({ "voice": ["F1"] }), error(400, "invalid_value", "voice")),
        (json!({ "response_format": "midi" }), error(400, "unsupported_format", "response_format")),
        (json!({ "stream_format": "x" }), error(400, "invalid_value", "stream_format")),
        (json!({ "speed": 9 }), error(400, "invalid_value", "speed")),
        (json!({ "speed": 0.3 }), error(400, "unsupported_value", "speed")),
        (json!({ "speed": "fast" }), error(400, "invalid_value", "speed")),
        (json!({ "sample_rate": 12345 }), error(400, "invalid_value", "sample_rate")),
        (json!({ "seed": -1 }), error(400, "invalid_value", "seed")),
        (json!({ "language": "xx" }), error(400, "invalid_value", "language")),
        (json!({ "silence": 99 }), error(400, "invalid_value", "silence")),
        (json!({ "steps": 0 }), error(400, "invalid_value", "steps")),
        (json!({ "steps": "many" }), error(400, "invalid_value", "steps")),
        (json!({ "model": "orate-default", "top_k": 5 }), error(400, "unsupported_value", "top_k")),
        (json!({ "ref_audio": "http://127.0.0.1/" }), error(400, "unsupported_value", "ref_audio")),
        (json!({ "word_timestamps": true }), error(400, "unsupported_value", "word_timestamps")),
        (json!({ "ssml": true }), error(400, "invalid_value", "input")),
        (json!({ "tags": true, "input": "a[pause:10s]".repeat(31) }), error(400, "invalid_value", "input")),
        (json!({ "ssml": true, "tags": true }), error(400, "invalid_value", "tags")),
        (json!({ "tags": true, "input": "[pause:x] Hi" }), error(400, "invalid_value", "input")),
        (json!({ "tags": true, "input": "[voice:nobody] Hi" }), error(400, "voice_not_found", "voice")),
    ];
    for language in ["en-US", "English", "EN", "auto", ""] {
        let answer = post(&router, SPEECH, &request(json!({ "language": language }))).await;
        assert_eq!(answer.status, 200, "{language}");
    }
    for (more, want) in cases {
        let shown = more.to_string().chars().take(60).collect::<String>();
        let answer = post(&router, SPEECH, &request(more)).await;
        assert_eq!(answer.error(), want, "{shown}");
        // Clients have no command line.
        let text = String::from_utf8(answer.bytes).expect("text");
        assert!(!text.contains("--"), "{shown}: {text}");
    }
    let no_json = Request::post(SPEECH).body(Body::from("{}")).expect("a request");
    assert_eq!(send(&router, no_json).await.error(), (415, "unsupported_media_type".to_owned(), None));
    for wrong in ["", "{", "[]", "7", "{\"input\": \"\\ud800\"}"] {
        assert_eq!(send(&router, posting(SPEECH, wrong)).await.error().1, "invalid_json", "{wrong}");
    }
    let large = format!("{{\"input\": \"{}\"}}", "a".repeat(1 << 20));
    assert_eq!(send(&router, posting(SPEECH, &large)).await.error(), (413, "too_large".to_owned(), None));
    assert_eq!(get(&router, SPEECH).await.error(), (405, "method_not_allowed".to_owned(), None));
    assert_eq!(get(&router, "/v2").await.error(), (404, "route_not_found".to_owned(), None));
}

#[tokio::test]
async fn a_batch_has_a_result_for_each_text() {
    let items = json!({
        "model": "tts-1", "response_format": "wav", "seed": 3,
        "items": [{ "input": "One." }, { "input": "" }, { "input": "Three.", "response_format": "flac" }],
    });
    let router = router();
    let answer = post(&router, "/v1/audio/speech/batch", &items).await.json();
    assert_eq!(
        (&answer["total"], &answer["succeeded"], &answer["failed"]),
        (&3.into(), &2.into(), &1.into())
    );
    let results = answer["results"].as_array().expect("results");
    let statuses: Vec<_> = results.iter().map(|r| r["status"].as_str().unwrap_or_default()).collect();
    assert_eq!(statuses, ["success", "error", "success"]);
    assert_eq!(results[1]["error"]["code"], "text_empty");
    assert_eq!(results[2]["media_type"], "audio/flac");
    let alone =
        json!({ "model": "tts-1", "input": "One.", "response_format": "wav", "seed": 3, "stream": false });
    let alone = post(&router, SPEECH, &alone).await;
    assert_eq!(results[0]["audio_data"], BASE64_STANDARD.encode(alone.bytes));
    let long = json!({ "items": vec![json!({ "input": "a".repeat(9000) }); 3] });
    assert_eq!(post(&router, "/v1/audio/speech/batch", &long).await.error().1, "text_too_long");
    // A text that items share counts once for each.
    let shared = json!({ "input": "a".repeat(9000), "items": [{}, { "voice": "alloy" }, { "seed": 1 }] });
    let shared = post(&router, "/v1/audio/speech/batch", &shared).await.error();
    assert_eq!(shared, (413, "text_too_long".to_owned(), Some("items".to_owned())));
    for wrong in [json!({}), json!({ "items": [] }), json!({ "items": vec![json!({}); 33] })] {
        assert_eq!(post(&router, "/v1/audio/speech/batch", &wrong).await.status, 400);
    }
}

#[tokio::test]
async fn events_tell_when_words_are_spoken() {
    let input =
        "<speak>Ångström paid <sub alias='five dollars'>$5</sub>. <mark name='then'/>He left.</speak>";
    let asks = json!({ "input": input, "ssml": true, "stream_format": "sse", "word_timestamps": true });
    let events = post(&router(), SPEECH, &request(asks)).await;
    let text = String::from_utf8(events.bytes).expect("text");
    let of_words =
        text.split("\n\n").filter_map(|event| event.strip_prefix("event: speech.audio.words\ndata: "));
    let entries: Vec<Value> = of_words
        .flat_map(|data| {
            let data: Value = serde_json::from_str(data).expect("JSON");
            data["words"].as_array().expect("a list").clone()
        })
        .collect();
    let shown: Vec<_> = entries
        .iter()
        .map(|entry| entry["display"].as_str().or(entry["mark"].as_str()).expect("a name"))
        .collect();
    assert_eq!(shown, ["Ångström", "paid", "$5.", "then", "He", "left."]);
    let characters: Vec<char> = input.chars().collect();
    for entry in entries.iter().filter(|entry| entry["word"] != Value::Null) {
        let at = |i: usize| entry["span"][i].as_u64().expect("a number") as usize;
        assert_eq!(
            characters[at(0)..at(1)].iter().collect::<String>(),
            entry["word"].as_str().expect("a word")
        );
        assert!(entry["start"].as_f64() < entry["end"].as_f64() && entry["source"] == "attention");
    }
    assert_eq!(entries[3]["time"], entries[4]["start"]);
}

#[tokio::test]
async fn captions_have_the_times_of_words() {
    let router = router();
    let body = request(json!({ "stream": false, "input": "First one.\n\nAnd then the second one." }));
    let answer = post(&router, "/dev/captioned_speech", &body).await.json();
    let times = answer["timestamps"].as_array().expect("times");
    let words: Vec<_> = times.iter().map(|time| time["word"].as_str().expect("a word")).collect();
    assert_eq!(words, ["First", "one.", "And", "then", "the", "second", "one."]);
    assert!(times.iter().all(|time| time["source"] == "attention"));
    let bytes = BASE64_STANDARD.decode(answer["audio"].as_str().expect("base64")).expect("base64");
    let seconds = read_audio_bytes("a.wav", bytes, 60.0).expect("a wav file").duration_s();
    let at = |i: usize, name: &str| times[i][name].as_f64().expect("a number");
    let starts: Vec<f64> = (0..7).map(|i| at(i, "start_time")).collect();
    assert!(starts.is_sorted() && starts[0] < 0.2 && at(6, "end_time") < seconds, "{times:?}");
    // The pause between the sentences, and the margins of both.
    assert!(at(2, "start_time") - at(1, "end_time") > 0.4, "{times:?}");
    // Streamed, it is the same in lines.
    let lines = post(&router, "/dev/captioned_speech", &request(json!({}))).await;
    let lines = String::from_utf8(lines.bytes).expect("text");
    assert!(
        lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()) && lines.lines().count() > 1
    );
}

#[tokio::test]
async fn complete_audio_with_times_has_true_lengths() {
    let router = router();
    let body = request(json!({ "stream": false, "input": "Hello. There." }));
    let captions = post(&router, "/dev/captioned_speech", &body).await.json();
    let route = "/v1/text-to-speech/default/with-timestamps?output_format=wav_24000";
    let aligned = post(&router, route, &json!({ "text": "Hello. There." })).await.json();
    for audio in [&captions["audio"], &aligned["audio_base64"]] {
        let wav = BASE64_STANDARD.decode(audio.as_str().expect("base64")).expect("base64");
        let size = |at: usize| u32::from_le_bytes(wav[at..at + 4].try_into().expect("four bytes")) as usize;
        assert_eq!((&wav[..4], &wav[36..40]), (&b"RIFF"[..], &b"data"[..]));
        assert_eq!((size(4), size(40)), (wav.len() - 8, wav.len() - 44));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_stops_the_work() {
    let server = server(Settings::default());
    let router = server.router();
    let text = "This is a sentence that takes a while to speak. ".repeat(200);
    let response = router.clone().oneshot(posting(SPEECH, &request(json!({ "input": text })).to_string()));
    let mut body = response.await.expect("an answer").into_body().into_data_stream();
    assert!(body.next().await.expect("sound").is_ok());
    assert_eq!(server.in_flight(), 1);
    drop(body);
    let left = Instant::now();
    while server.in_flight() > 0 {
        assert!(left.elapsed() < Duration::from_secs(5), "it goes on speaking");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let metrics = String::from_utf8(get(&router, "/metrics").await.bytes).expect("text");
    assert!(metrics.contains("orate_cancelled_total{reason=\"client\"} 1"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_an_error_and_a_slow_client_is_given_up() {
    let settings = Settings { queue: 1, stall_timeout: Duration::from_millis(300), ..Settings::default() };
    let server = server(settings);
    let router = server.router();
    let text = "This is a sentence that takes a while to speak. ".repeat(200);
    let body = request(json!({ "input": text })).to_string();
    // Two speak, one waits, and none of them is read. They come at once, so that none is given up before all
    // are there.
    let each: Vec<_> = (0..3).map(|_| tokio::spawn(router.clone().oneshot(posting(SPEECH, &body)))).collect();
    in_time(async {
        while server.in_flight() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let full = send(&router, posting(SPEECH, &body)).await;
    assert_eq!(full.error(), (503, "overloaded".to_owned(), None));
    assert_eq!(full.header("retry-after"), "1");
    // Those that read nothing are given up, and the one that waits gets a thread.
    let mut open = vec![];
    for answer in each {
        let answer = in_time(answer).await.expect("no panic").expect("an answer");
        assert_eq!(answer.status(), 200);
        open.push(answer);
    }
    let metrics = in_time(async {
        loop {
            let metrics = String::from_utf8(get(&router, "/metrics").await.bytes).expect("text");
            let stalled =
                metrics.lines().find_map(|l| l.strip_prefix("orate_cancelled_total{reason=\"stalled\"} "));
            if stalled.and_then(|count| count.parse().ok()).unwrap_or(0) >= 3 {
                break metrics;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(metrics.contains("orate_panics{model=\"orate-default\"} 0"), "{metrics}");
    for response in open {
        let end =
            response.into_body().into_data_stream().fold(Ok(()), |_, part| async { part.map(drop) }).await;
        assert!(end.is_err(), "a part is not taken for the whole");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_fits_any_queue() {
    let [key, line] = Keys::generate("ada").expect("random numbers");
    let keys = Keys::parse(&line).expect("a line");
    let one_each = Settings { keys, max_per_key: Some(1), ..Settings::default() };
    let names = ["One.", "Two of them.", "Three.", "Four.", "Five.", "Six."];
    let items: Vec<Value> = names.iter().map(|name| json!({ "input": name })).collect();
    let batch = request(json!({ "items": items })).to_string();
    let batch = || {
        let mut batch = posting("/v1/audio/speech/batch", &batch);
        batch.headers_mut().insert("xi-api-key", key.parse().expect("a header"));
        batch
    };
    let long = "This is a sentence that takes a while to speak. ".repeat(200);
    let long = request(json!({ "input": long })).to_string();
    for (settings, is_busy) in [(Settings { queue: 0, ..Settings::default() }, true), (one_each, false)] {
        let server = server(settings);
        let router = server.router();
        // Another client has one of two threads, so the second text is refused at first.
        let other = match is_busy {
            true => Some(router.clone().oneshot(posting(SPEECH, &long)).await.expect("an answer")),
            false => None,
        };
        let answer = in_time(send(&router, batch())).await.json();
        assert_eq!((&answer["succeeded"], &answer["total"]), (&6.into(), &6.into()));
        let results = answer["results"].as_array().expect("results");
        assert!(results.iter().enumerate().all(|(i, result)| result["index"] == i));
        let seconds = |i: usize| results[i]["audio_seconds"].as_f64().expect("a number");
        assert!(seconds(1) > seconds(0) && seconds(1) > seconds(2), "results are in order");
        if is_busy {
            // A thread is free a moment after its answer is complete.
            while server.in_flight() > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let second = router.clone().oneshot(posting(SPEECH, &long)).await.expect("an answer");
            let full = send(&router, batch()).await;
            assert_eq!(full.error(), (503, "overloaded".to_owned(), None));
            assert_eq!(full.header("retry-after"), "1");
            drop(second);
        }
        drop(other);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_stops_a_batch() {
    let server = server(Settings::default());
    let long = "This is a sentence that takes a while to speak. ".repeat(50);
    let batch = json!({ "model": "tts-1", "input": long, "items": vec![json!({}); 5] }).to_string();
    let batch = tokio::spawn(server.router().oneshot(posting("/v1/audio/speech/batch", &batch)));
    in_time(async {
        while server.in_flight() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        batch.abort();
        while server.in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(batch.await.expect_err("it was aborted").is_cancelled());
}

/// What takes longer never happens.
async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it hangs")
}

#[tokio::test]
async fn a_server_that_ends_lets_nobody_in() {
    let server = server(Settings::default());
    let router = server.router();
    assert_eq!(get(&router, "/ready").await.status, 200);
    server.drain();
    assert_eq!(get(&router, "/ready").await.error(), (503, "draining".to_owned(), None));
    assert_eq!(post(&router, SPEECH, &request(json!({}))).await.error().1, "draining");
    assert_eq!(get(&router, "/health").await.status, 200);
    let loading = orate_server::Server::new(Settings { quiet: true, ..Settings::default() });
    assert_eq!(get(&loading.router(), "/ready").await.error(), (503, "loading".to_owned(), None));
}
