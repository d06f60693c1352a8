//! Text in parts, over real sockets.

use super::{engine, post, server};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::{SinkExt as _, StreamExt as _};
use orate::{Options, VoiceStore};
use orate_audio::to_pcm16;
use orate_server::{Keys, Listener, Server, Settings, serve};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A server on a port of this machine, until the sender is dropped.
async fn listening(server: &Server) -> (SocketAddr, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (end, ended) = oneshot::channel::<()>();
    let server = server.clone();
    tokio::spawn(async move {
        let end = async { drop(ended.await) };
        serve(&server, Listener::Tcp(listener), end, Duration::from_secs(60)).await;
    });
    (address, end)
}

async fn open(address: SocketAddr, path: &str) -> Socket {
    connect_async(format!("ws://{address}{path}")).await.expect("a socket").0
}

async fn say(socket: &mut Socket, message: Value) {
    socket.send(Message::text(message.to_string())).await.expect("is open");
}

/// The next message: an object, or sound.
async fn hear(socket: &mut Socket) -> Result<Value, Vec<u8>> {
    loop {
        match socket.next().await.expect("is open").expect("is whole") {
            Message::Text(text) => return Ok(serde_json::from_str(&text).expect("JSON")),
            Message::Binary(bytes) => return Err(bytes.to_vec()),
            _ => {}
        }
    }
}

/// The model's own samples of a text as bytes.
fn spoken(text: &str) -> Vec<u8> {
    with(text, &Options::default())
}

/// The same of a sentence that follows another.
fn spoken_after(text: &str) -> Vec<u8> {
    with(text, &Options { first_piece: 1, ..Options::default() })
}

fn with(text: &str, options: &Options) -> Vec<u8> {
    let stream = engine().stream(text, options).expect("speaks");
    let samples: Vec<f32> = stream.flat_map(|chunk| chunk.expect("speaks").samples).collect();
    samples.iter().flat_map(|x| to_pcm16(*x).to_le_bytes()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sentences_are_spoken_as_they_complete() {
    let (address, _end) = listening(&server(Settings::default())).await;
    let mut socket = open(address, "/v1/audio/speech/stream").await;
    let rate = engine().sample_rate();
    say(&mut socket, json!({ "type": "session.config", "response_format": "pcm", "sample_rate": rate }))
        .await;
    say(&mut socket, json!({ "type": "input.text", "text": "Good mor" })).await;
    say(&mut socket, json!({ "type": "input.text", "text": "ning. How are" })).await;
    // The first sentence is spoken while the second is not complete.
    let start = hear(&mut socket).await.expect("an object");
    assert_eq!((&start["type"], &start["sentence_text"]), (&"audio.start".into(), &"Good morning.".into()));
    let (mut sound, mut done) = (vec![], Value::Null);
    while done.is_null() {
        match hear(&mut socket).await {
            Ok(message) => done = message,
            Err(bytes) => sound.extend(bytes),
        }
    }
    assert_eq!(
        (&done["type"], done["total_bytes"].as_u64()),
        (&"audio.done".into(), Some(sound.len() as u64))
    );
    assert!(sound == spoken("Good morning."));
    say(&mut socket, json!({ "type": "input.text", "text": " you?" })).await;
    say(&mut socket, json!({ "type": "input.done" })).await;
    let mut kinds = vec![];
    while kinds.last().is_none_or(|kind| kind != "session.done") {
        if let Ok(message) = hear(&mut socket).await {
            kinds.push(message["type"].as_str().unwrap_or_default().to_owned());
        }
    }
    assert_eq!(kinds, ["audio.start", "audio.done", "session.done"]);
    // Errors do not end the session.
    say(&mut socket, json!({ "type": "input.text", "text": "Hello 漢字." })).await;
    say(&mut socket, json!({ "type": "input.done" })).await;
    let mut messages = vec![];
    while messages.last().is_none_or(|message: &Value| message["type"] != "session.done") {
        messages.push(hear(&mut socket).await.expect("an object"));
    }
    let kinds: Vec<_> = messages.iter().map(|message| message["type"].clone()).collect();
    assert_eq!(kinds, ["audio.start", "error", "audio.done", "session.done"]);
    assert_eq!((&messages[2]["error"], &messages[2]["finish_reason"]), (&json!(true), &json!("error")));
    for wrong in [json!([]), json!({ "type": "x" }), json!({ "type": "input.text" })] {
        say(&mut socket, wrong).await;
        assert_eq!(hear(&mut socket).await.expect("an object")["type"], "error");
    }
    let mut other = open(address, "/v1/audio/speech/stream").await;
    say(&mut other, json!({ "type": "input.text", "text": "a" })).await;
    assert!(
        hear(&mut other).await.expect("an object")["message"]
            .as_str()
            .is_some_and(|m| m.contains("session.config"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_stops_at_once() {
    let server = server(Settings::default());
    let (address, _end) = listening(&server).await;
    let mut socket = open(address, "/v1/audio/speech/stream").await;
    say(&mut socket, json!({ "type": "session.config" })).await;
    let long = "This takes a while, and then some more. ".repeat(100);
    say(&mut socket, json!({ "type": "input.text", "text": long })).await;
    while hear(&mut socket).await.is_ok() {}
    let cancelled = Instant::now();
    say(&mut socket, json!({ "type": "input.cancel" })).await;
    let mut reasons = vec![];
    let done = loop {
        match hear(&mut socket).await {
            Ok(message) if message["type"] == "session.done" => break message,
            Ok(message) if message["type"] == "audio.done" => reasons.push(message["finish_reason"].clone()),
            _ => {}
        }
    };
    assert_eq!(done["cancelled"], true);
    assert_eq!(reasons.last(), Some(&json!("cancelled")));
    assert!(cancelled.elapsed() < Duration::from_secs(5));
    while server.in_flight() > 0 {
        assert!(cancelled.elapsed() < Duration::from_secs(10), "it goes on speaking");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complete_text_is_cancelled_and_the_next_one_waits() {
    let (address, _end) = listening(&server(Settings::default())).await;
    let mut socket = open(address, "/v1/audio/speech/stream").await;
    say(&mut socket, json!({ "type": "session.config" })).await;
    let long = "This takes a while, and then some more. ".repeat(100);
    say(&mut socket, json!({ "type": "input.text", "text": long })).await;
    say(&mut socket, json!({ "type": "input.done" })).await;
    while hear(&mut socket).await.is_ok() {}
    say(&mut socket, json!({ "type": "input.cancel" })).await;
    say(&mut socket, json!({ "type": "input.text", "text": "Next." })).await;
    say(&mut socket, json!({ "type": "input.done" })).await;
    // Text of the next utterance that comes while one is spoken is not part of it.
    say(&mut socket, json!({ "type": "input.text", "text": "Last." })).await;
    say(&mut socket, json!({ "type": "input.done" })).await;
    let (mut done, mut texts) = (vec![], vec![]);
    while done.len() < 3 {
        let Ok(message) = hear(&mut socket).await else { continue };
        match message["type"].as_str() {
            Some("audio.start") => texts.push(message["sentence_text"].as_str().expect("a text").to_owned()),
            Some("session.done") => {
                done.push((message["cancelled"] == true, message["utterance_index"].clone()))
            }
            Some("audio.done") => {}
            _ => panic!("{message}"),
        }
    }
    assert_eq!(done, [(true, json!(0)), (false, json!(1)), (false, json!(2))]);
    assert!(texts.ends_with(&["Next.".to_owned(), "Last.".to_owned()]) && texts.len() < 10, "{texts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_of_other_origins_are_refused() {
    let (address, _end) = listening(&server(Settings::default())).await;
    for path in ["/v1/audio/speech/stream", "/v1/text-to-speech/alloy/stream-input"] {
        for (origin, is_allowed) in
            [("http://evil.example".to_owned(), false), (format!("http://{address}"), true)]
        {
            let mut request = format!("ws://{address}{path}").into_client_request().expect("a request");
            request.headers_mut().insert("origin", origin.parse().expect("a header"));
            assert_eq!(connect_async(request).await.is_ok(), is_allowed, "{origin} at {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_sockets_end_with_the_server() {
    let server = server(Settings::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (end, ended) = oneshot::channel::<()>();
    let (of_task, drain) = (server.clone(), Duration::from_secs(60));
    let task = tokio::spawn(async move {
        serve(&of_task, Listener::Tcp(listener), async { drop(ended.await) }, drain).await;
    });
    let wyoming = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let home = TcpStream::connect(wyoming.local_addr().expect("an address"));
    tokio::spawn(async move { server.wyoming(wyoming).await });
    let _home = home.await.expect("a connection");
    let mut socket = open(address, "/v1/audio/speech/stream").await;
    say(&mut socket, json!({ "type": "session.config" })).await;
    // Clients that do not close their end, and one that is idle between requests.
    let _silent = open(address, "/v1/text-to-speech/alloy/stream-input").await;
    let mut idle = TcpStream::connect(address).await.expect("a connection");
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("is open");
    idle.read_exact(&mut [0; 20]).await.expect("an answer");
    drop(end);
    let next = tokio::time::timeout(Duration::from_secs(2), socket.next()).await.expect("it ends");
    assert!(matches!(next, Some(Ok(Message::Close(Some(frame)))) if u16::from(frame.code) == 1000));
    let ended = tokio::time::timeout(Duration::from_secs(5), task).await;
    assert!(ended.is_ok(), "idle connections hold up the end");
}

/// What was begun is finished, though nothing new may begin.
#[tokio::test(flavor = "multi_thread")]
async fn an_utterance_goes_on_while_the_server_drains() {
    let (address, end) = listening(&server(Settings::default())).await;
    let mut socket = open(address, "/v1/audio/speech/stream").await;
    say(&mut socket, json!({ "type": "session.config", "ssml": true })).await;
    assert_eq!(hear(&mut socket).await.expect("an object")["param"], "ssml");
    let mut socket = open(address, "/v1/audio/speech/stream").await;
    say(&mut socket, json!({ "type": "session.config" })).await;
    say(&mut socket, json!({ "type": "input.text", "text": "One is here. Two is here. Three is here." }))
        .await;
    say(&mut socket, json!({ "type": "input.done" })).await;
    assert_eq!(hear(&mut socket).await.expect("an object")["type"], "audio.start");
    drop(end);
    let mut kinds = vec![];
    let done = loop {
        let Ok(message) = hear(&mut socket).await else { continue };
        kinds.push(message["type"].clone());
        if message["type"] == "session.done" {
            break message;
        }
    };
    assert_eq!(done["total_sentences"], 3, "{kinds:?}");
    assert!(!kinds.contains(&json!("error")), "{kinds:?}");
}

/// Reads an answer with its length: the head in lowercase, and the body.
async fn answer(stream: &mut (impl AsyncBufRead + Unpin)) -> (String, String) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut head).await.expect("is open"), 0, "it ends after {head:?}");
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body).await.expect("a whole body");
    (head, String::from_utf8(body).expect("text"))
}

/// Where a body is refused, its client gets the answer, and knows whether the connection goes on.
#[tokio::test(flavor = "multi_thread")]
async fn connections_go_on_after_a_body_that_is_refused_or_say_that_they_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = Settings { voices: Some(VoiceStore::new(folder.path())), ..Settings::default() };
    let (address, _end) = listening(&server(settings)).await;
    let open = || async { BufReader::new(TcpStream::connect(address).await.expect("a connection")) };
    let json = "content-type: application/json\r\n";
    let begin = |more: &str, length: usize| {
        format!("POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\n{more}content-length: {length}\r\n\r\n")
    };
    let health = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    // More than the limit, with and without its length before it; of another type; for another route.
    let long = "a".repeat(3 << 20);
    let chunked = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\n{json}transfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{long}\r\n0\r\n\r\n",
        long.len()
    );
    let known = begin(json, long.len()) + &long;
    let lost = known.replacen("/v1/audio/speech", "/v1/audio/speeches", 1);
    let mut stream = open().await;
    for (request, status) in [(known, 413), (chunked, 413), (begin("", long.len()) + &long, 415), (lost, 404)]
    {
        stream.get_mut().write_all(request.as_bytes()).await.expect("is open");
        let (head, _) = answer(&mut stream).await;
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{head}");
        assert!(!head.contains("connection: close"), "{head}");
        stream.get_mut().write_all(health).await.expect("is open");
        assert!(answer(&mut stream).await.0.starts_with("http/1.1 200 "), "after {status}");
    }
    // A client that waits for `100 Continue` is refused before it sends anything.
    let mut stream = open().await;
    let waits = begin(&format!("{json}expect: 100-continue\r\n"), 3 << 20);
    stream.get_mut().write_all(waits.as_bytes()).await.expect("is open");
    let (head, body) = answer(&mut stream).await;
    assert!(head.starts_with("http/1.1 413 ") && body.contains("too_large"), "{head}");
    assert!(head.contains("connection: close"), "{head}");
    assert_eq!(stream.read_to_end(&mut vec![]).await.expect("it ends"), 0);
    // So is one with a form.
    let mut stream = open().await;
    let form = "content-type: multipart/form-data; boundary=B\r\nexpect: 100-continue\r\n";
    let waits = begin(form, 11 << 20).replacen("/v1/audio/speech", "/v1/audio/voices", 1);
    stream.get_mut().write_all(waits.as_bytes()).await.expect("is open");
    let (head, body) = answer(&mut stream).await;
    assert!(head.starts_with("http/1.1 413 ") && body.contains("too_large"), "{head}");
    assert!(head.contains("connection: close"), "{head}");
    // More than the server discards is not waited for.
    let mut stream = open().await;
    stream.get_mut().write_all(begin("", 17 << 20).as_bytes()).await.expect("is open");
    let (head, _) = answer(&mut stream).await;
    assert!(head.starts_with("http/1.1 415 ") && head.contains("connection: close"), "{head}");
    // Neither are bodies that never end, nor those of which a byte comes now and then.
    let settings = Settings { body_timeout: Duration::from_millis(200), ..Settings::default() };
    let (slow, _end) = listening(&server(settings)).await;
    for (more, status) in [(json, 408), ("", 415)] {
        let mut stream = BufReader::new(TcpStream::connect(slow).await.expect("a connection"));
        stream.get_mut().write_all(begin(more, 100).as_bytes()).await.expect("is open");
        let (head, _) = answer(&mut stream).await;
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{head}");
        assert!(head.contains("connection: close"), "{head}");
    }
    let (read, mut write) = TcpStream::connect(slow).await.expect("a connection").into_split();
    write.write_all(begin("", 1 << 20).as_bytes()).await.expect("is open");
    let trickle = async {
        while write.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        std::future::pending().await
    };
    let mut read = BufReader::new(read);
    let (head, _) = tokio::select! {
        answer = answer(&mut read) => answer,
        answer = trickle => answer,
    };
    assert!(head.starts_with("http/1.1 415 ") && head.contains("connection: close"), "{head}");
}

/// Connections that read nothing give their places back.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_limited_and_stalled_ones_are_closed() {
    let stall_timeout = Duration::from_millis(300);
    let server = server(Settings { connections: 2, stall_timeout, ..Settings::default() });
    let (address, _end) = listening(&server).await;
    let text = "This is a sentence that takes a while to speak. ".repeat(400);
    let body = json!({ "model": "tts-1", "input": text, "response_format": "wav", "sample_rate": 48_000 });
    let request = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.to_string().len()
    );
    let mut stalled = vec![];
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(request.as_bytes()).await.expect("is open");
        stream.read_exact(&mut [0; 100]).await.expect("an answer");
        stalled.push(stream);
    }
    // Both places are taken, so this one waits.
    let mut third = TcpStream::connect(address).await.expect("a connection");
    let health = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    third.write_all(health).await.expect("is open");
    let mut answer = vec![];
    let early = tokio::time::timeout(Duration::from_millis(100), third.read_to_end(&mut answer)).await;
    assert!(early.is_err(), "a third connection is served");
    // A slow machine takes long to fill the buffers of the two.
    let late = tokio::time::timeout(Duration::from_secs(120), third.read_to_end(&mut answer)).await;
    assert!(late.is_ok() && answer.starts_with(b"HTTP/1.1 200"), "stalled connections keep their places");
    let metrics = async {
        loop {
            let metrics = super::get(&server.router(), "/metrics").await;
            let metrics = String::from_utf8(metrics.bytes).expect("text");
            if metrics.contains("orate_cancelled_total{reason=\"stalled\"} 2") {
                break metrics;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let metrics = tokio::time::timeout(Duration::from_secs(60), metrics).await.expect("both are counted");
    assert!(metrics.contains("orate_panics{model=\"orate-default\"} 0"));
    assert!(!metrics.contains("orate_cancelled_total{reason=\"client\"}"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn contexts_of_elevenlabs_are_apart() {
    let [key, line] = Keys::generate("ada").expect("random numbers");
    let keys = Keys::parse(&line).expect("a line");
    let (address, _end) = listening(&server(Settings { keys, ..Settings::default() })).await;
    let rate = engine().sample_rate();
    let path = format!("/v1/text-to-speech/alloy/multi-stream-input?output_format=pcm_{rate}");
    let mut socket = open(address, &path).await;
    say(&mut socket, json!({ "text": "Hello from a. ", "context_id": "a", "xi_api_key": key })).await;
    say(&mut socket, json!({ "text": "And from b", "context_id": "b", "flush": true })).await;
    say(&mut socket, json!({ "close_socket": true })).await;
    let (mut sound, mut ended) = ([vec![], vec![]], vec![]);
    while ended.len() < 2 {
        let message = hear(&mut socket).await.expect("an object");
        let id = message["contextId"].as_str().expect("a context").to_owned();
        match message["audio"].as_str() {
            Some(audio) => {
                sound[usize::from(id == "b")].extend(BASE64_STANDARD.decode(audio).expect("base64"))
            }
            None => ended.push(id),
        }
    }
    let voice = engine().voices()[0].name.clone();
    let of = |text: &str| with(text, &Options { voice: Some(voice.clone()), ..Options::default() });
    assert!(sound[0] == of("Hello from a.") && sound[1] == of("And from b"));
    // Without a key nothing is spoken.
    let mut stranger = open(address, &path).await;
    say(&mut stranger, json!({ "text": "Hello." , "context_id": "a" })).await;
    assert_eq!(hear(&mut stranger).await.expect("an object")["error"], "invalid_api_key");
}

#[tokio::test(flavor = "multi_thread")]
async fn sentences_have_times_of_words() {
    let (address, _end) = listening(&server(Settings::default())).await;
    let mut socket = open(address, "/v1/audio/speech/stream").await;
    say(&mut socket, json!({ "type": "session.config", "word_timestamps": 1 })).await;
    assert_eq!(hear(&mut socket).await.expect("an object")["param"], "word_timestamps");
    let mut socket = open(address, "/v1/audio/speech/stream").await;
    let rate = engine().sample_rate();
    say(&mut socket, json!({ "type": "session.config", "word_timestamps": true, "sample_rate": rate })).await;
    say(&mut socket, json!({ "type": "input.text", "text": "Good morning. How are you?" })).await;
    say(&mut socket, json!({ "type": "input.done" })).await;
    let (mut sound, mut words, mut total) = (vec![], vec![], 0);
    loop {
        let message = hear(&mut socket).await.expect("no binary messages");
        match message["type"].as_str().expect("a type") {
            "audio.chunk" => {
                sound.extend(
                    BASE64_STANDARD.decode(message["audio_b64"].as_str().expect("text")).expect("base64"),
                );
                words.extend(message["timestamps"].as_array().cloned().unwrap_or_default());
            }
            "audio.done" => total += message["total_bytes"].as_u64().expect("a number"),
            "session.done" => break,
            _ => {}
        }
    }
    assert!(sound == [spoken("Good morning."), spoken_after("How are you?")].concat());
    assert_eq!(total, sound.len() as u64);
    let texts: Vec<&str> = words.iter().map(|word| word["word"].as_str().expect("text")).collect();
    assert_eq!(texts, ["Good", "morning.", "How", "are", "you?"]);
    let start = |i: usize| words[i]["start_ms"].as_u64().expect("whole");
    assert!(start(1) > start(0) && start(2) < start(1) + 1000, "from the start of the sentence: {words:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn elevenlabs_clients_get_times_of_characters() {
    let server = server(Settings::default());
    let (address, _end) = listening(&server).await;
    let rate = engine().sample_rate();
    let path = format!("/v1/text-to-speech/alloy/stream-input?sync_alignment=true&output_format=pcm_{rate}");
    let mut socket = open(address, &path).await;
    say(&mut socket, json!({ "text": "Hello there, Ann. " })).await;
    say(&mut socket, json!({ "text": "" })).await;
    let voice = Options { voice: Some(engine().voices()[0].name.clone()), ..Options::default() };
    let alone = with("Hello there, Ann.", &voice);
    let message = hear(&mut socket).await.expect("an object");
    assert_eq!(BASE64_STANDARD.decode(message["audio"].as_str().expect("audio")).expect("base64"), alone);
    let alignment = &message["alignment"];
    let list = |name: &str| alignment[name].as_array().expect("a list").clone();
    let text: String = list("chars").iter().map(|c| c.as_str().expect("text").to_owned()).collect();
    assert_eq!(text, "Hello there, Ann.");
    let [starts, durations] = ["charStartTimesMs", "charDurationsMs"]
        .map(|name| list(name).iter().map(|ms| ms.as_u64().expect("whole")).collect::<Vec<_>>());
    assert!(starts.is_sorted() && starts[6] > 100, "{starts:?}");
    let end = (alone.len() / 2) as u64 * 1000 / u64::from(rate);
    assert!(end.abs_diff(starts[16] + durations[16]) <= 1, "{starts:?} {durations:?} {end}");
    assert_eq!(message["normalizedAlignment"], *alignment);
    assert_eq!(hear(&mut socket).await.expect("an object")["isFinal"], true);

    // Over HTTP, whole and in lines.
    let text = "Hello there.\n\nHow are you?";
    let path = |route: &str| format!("/v1/text-to-speech/alloy/{route}?output_format=pcm_{rate}");
    let whole = post(&server.router(), &path("with-timestamps"), &json!({ "text": text })).await;
    let whole: Value = whole.json();
    let ends = |of: &Value| {
        let times = of["alignment"]["character_end_times_seconds"].as_array().expect("times").clone();
        times.iter().map(|t| t.as_f64().expect("a number")).collect::<Vec<_>>()
    };
    let audio =
        |of: &Value| BASE64_STANDARD.decode(of["audio_base64"].as_str().expect("text")).expect("base64");
    let seconds = |bytes: usize| (bytes / 2) as f64 / f64::from(rate);
    assert_eq!(ends(&whole).len(), text.chars().count());
    assert!((ends(&whole)[text.len() - 1] - seconds(audio(&whole).len())).abs() < 0.002);
    let lines = post(&server.router(), &path("stream/with-timestamps"), &json!({ "text": text })).await;
    let lines = String::from_utf8(lines.bytes).expect("UTF-8");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.iter().map(|line| ends(line).len()).sum::<usize>(), text.len());
    // MP3 and Opus end after the last piece.
    for format in ["mp3_44100_128", "opus_48000_64"] {
        for route in ["with-timestamps", "stream/with-timestamps"] {
            let path = format!("/v1/text-to-speech/alloy/{route}?output_format={format}");
            let answer = post(&server.router(), &path, &json!({ "text": text })).await;
            let answer = String::from_utf8(answer.bytes).expect("UTF-8");
            let lines: Vec<Value> = answer.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
            let sound: Vec<u8> = lines.iter().flat_map(audio).collect();
            let path = format!("/v1/text-to-speech/alloy/stream?output_format={format}");
            let alone = post(&server.router(), &path, &json!({ "text": text })).await.bytes;
            assert!(
                route == "with-timestamps" || sound == alone,
                "{format} {}, {}",
                sound.len(),
                alone.len()
            );
            assert!(sound.len() > 5000 && !lines[0]["alignment"].is_null(), "{format}: {answer:.300}");
        }
    }
    for line in &lines {
        assert!((ends(line).last().expect("some") - seconds(audio(line).len())).abs() < 0.002);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn home_assistant_is_answered() {
    let server = server(Settings::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let task = tokio::spawn(async move { server.wyoming(listener).await });
    let (reader, mut writer) = TcpStream::connect(address).await.expect("a connection").into_split();
    let mut reader = BufReader::new(reader);
    let mut events = async |until: &str| {
        let (mut kinds, mut sound): (Vec<String>, Vec<u8>) = Default::default();
        while kinds.last().is_none_or(|kind| kind != until) {
            let mut line = String::new();
            reader.read_line(&mut line).await.expect("an event");
            let header: Value = serde_json::from_str(&line).expect("JSON");
            let length = |name: &str| header[name].as_u64().unwrap_or(0) as usize;
            let (mut data, mut payload) = (vec![0; length("data_length")], vec![0; length("payload_length")]);
            reader.read_exact(&mut data).await.expect("data");
            reader.read_exact(&mut payload).await.expect("sound");
            sound.extend(payload);
            let kind = header["type"].as_str().expect("a type").to_owned();
            if kinds.last() != Some(&kind) {
                kinds.push(kind);
            }
        }
        (kinds, sound)
    };
    let mut tell = async |kind: &str, data: Value| {
        let event = json!({ "type": kind, "data": data });
        writer.write_all(format!("{event}\n").as_bytes()).await.expect("is open");
    };
    tell("describe", json!({})).await;
    assert_eq!(events("info").await.0, ["info"]);
    tell("synthesize", json!({ "text": "Good morning." })).await;
    let (kinds, sound) = events("audio-stop").await;
    assert_eq!(kinds, ["audio-start", "audio-chunk", "audio-stop"]);
    assert!(sound == spoken("Good morning."));
    // Text in parts: the whole text in the middle is for servers that know no parts.
    tell("synthesize-start", json!({})).await;
    tell("synthesize-chunk", json!({ "text": "Good mor" })).await;
    tell("synthesize-chunk", json!({ "text": "ning. Fine" })).await;
    tell("synthesize", json!({ "text": "Good morning. Fine" })).await;
    tell("synthesize-stop", json!({})).await;
    let (kinds, sound) = events("synthesize-stopped").await;
    assert_eq!(kinds, ["audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"]);
    assert!(sound == [spoken("Good morning."), spoken_after("Fine")].concat());
    assert!(spoken_after("Fine").len() > spoken("Fine").len());
    // What cannot be spoken still ends.
    tell("synthesize-start", json!({})).await;
    tell("synthesize-chunk", json!({ "text": "漢字 " })).await;
    tell("synthesize-stop", json!({})).await;
    assert_eq!(events("synthesize-stopped").await.0, ["error", "audio-stop", "synthesize-stopped"]);
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn strange_requests_end_in_errors() {
    let settings = Settings {
        header_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(300),
        ..Settings::default()
    };
    let (address, end) = listening(&server(settings)).await;
    let answer = async |bytes: &[u8], halves: bool| {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(bytes).await.expect("is open");
        if halves {
            let _ = stream.shutdown().await;
        }
        let mut answer = vec![];
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "the connection stays open: {}", String::from_utf8_lossy(bytes));
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    };
    let post = "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    // A header and a body that never end.
    assert_eq!(answer(b"GET /health HTTP/1.1\r\nhost:", false).await, "");
    let slow = format!("{post}connection: close\r\ncontent-length: 100\r\n\r\n{{");
    assert_eq!(answer(slow.as_bytes(), false).await, "HTTP/1.1 408 Request Timeout");
    // Lengths that lie, and headers that are too large.
    let large =
        format!("{post}connection: close\r\ncontent-length: 99999999999\r\n\r\n{}", "x".repeat(2 << 20));
    assert!(["HTTP/1.1 413 Payload Too Large", ""].contains(&&*answer(large.as_bytes(), true).await));
    let header = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(1 << 17));
    assert!(answer(header.as_bytes(), true).await.contains("431"));
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
    ] {
        let line = answer(garbage, true).await;
        assert!(line.is_empty() || line.contains("400"), "{line}");
    }
    let utf8 = format!("{post}connection: close\r\ncontent-length: 12\r\n\r\n").into_bytes();
    let utf8 = [utf8, b"{\"input\": \"\xff".to_vec()].concat();
    assert!(answer(&utf8, false).await.contains("400"));
    // Neither compressed bodies nor HTTP/2.
    let zipped = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\xae\x05\0\x43\xbf\xa6\xa3\x02\0\0\0";
    let head = format!(
        "{post}connection: close\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        zipped.len()
    );
    assert!(answer(&[head.as_bytes(), zipped].concat(), false).await.contains("400"));
    assert!(!answer(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true).await.contains("200"));
    // The server still answers, and ends in order.
    let health = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(answer(health, false).await, "HTTP/1.1 200 OK");
    drop(end);
}
