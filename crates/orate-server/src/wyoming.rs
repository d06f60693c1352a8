//! The Wyoming protocol of Home Assistant, version 1.8: events over TCP, each a line of JSON, perhaps
//! followed by more JSON and by bytes.
//!
//! ```text
//! {"type": "synthesize", "data": {…}, "data_length": 40, "payload_length": 0}⏎ + 40 bytes of JSON
//! ```

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::gate::{self, Record};
use crate::models::Model;
use crate::request::Speech;
use crate::serve::{Connection, Stalled};
use crate::speech::Answer;
use crate::state::Shared;
use crate::voices;
use crate::work::{Message, lost};
use axum::http::StatusCode;
use orate::{Sentence, TextSession, languages};
use serde_json::{Map, Value, json};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

/// Most bytes of the line of an event, and of the JSON after it.
const MOST_LINE: usize = 64 << 10;
const MOST_DATA: usize = 1 << 20;
/// Bytes of the first chunk of audio, and of later ones.
const FIRST_CHUNK: usize = 2 * 1024;
const CHUNK: usize = 2 * 4096;
/// Longest wait for an event.
const IDLE: Duration = Duration::from_secs(600);

/// An event.
struct Event {
    kind: String,
    data: Map<String, Value>,
}

impl Event {
    /// Reads the next event; `None` at the end of the connection.
    async fn read(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Event>> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut line = vec![];
        let mut limited = (&mut *from).take(MOST_LINE as u64 + 1);
        if limited.read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            return Err(bad("the line of an event is too long, or broke off"));
        }
        let Ok(Value::Object(mut header)) = serde_json::from_slice(&line) else {
            return Err(bad("an event is not a line with a JSON object"));
        };
        let length = |name: &str| match header.get(name) {
            None | Some(Value::Null) => Ok(0),
            Some(n) => n.as_u64().ok_or_else(|| bad("a length of an event is not a whole number")),
        };
        let (more, payload) = (length("data_length")?, length("payload_length")?);
        if more > MOST_DATA as u64 || payload > MOST_DATA as u64 {
            return Err(bad("the data of an event is too long"));
        }
        let mut data = match header.remove("data") {
            Some(Value::Object(data)) => data,
            _ => Map::new(),
        };
        let mut bytes = vec![0; more as usize];
        from.read_exact(&mut bytes).await?;
        if more > 0 {
            let Ok(Value::Object(rest)) = serde_json::from_slice(&bytes) else {
                return Err(bad("the data of an event is not a JSON object"));
            };
            data.extend(rest);
        }
        // Payloads are audio, which speech synthesis has no use for.
        tokio::io::copy(&mut (&mut *from).take(payload), &mut tokio::io::sink()).await?;
        let kind = header.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Some(Event { kind, data }))
    }
}

/// Writes an event. Its data follows the line, since some readers limit lines to 64 kB.
async fn send(
    to: &mut (impl AsyncWrite + Unpin),
    kind: &str,
    data: &Value,
    payload: &[u8],
) -> io::Result<()> {
    let data = data.to_string();
    let header = json!({
        "type": kind, "version": env!("CARGO_PKG_VERSION"), "data_length": data.len(),
        "payload_length": payload.len(),
    });
    to.write_all(format!("{header}\n{data}").as_bytes()).await?;
    to.write_all(payload).await?;
    to.flush().await
}

/// Answers clients until the server drains.
pub async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let next = async { (shared.connections.clone().acquire_owned().await, listener.accept().await) };
        let next = tokio::select! {
            next = next => next,
            () = shared.drained() => return,
        };
        match next {
            (Ok(place), Ok((stream, _))) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    let stream = Connection::new(Box::new(stream), place, shared.settings.stall_timeout);
                    let (reader, mut writer) = tokio::io::split(stream);
                    let _ = converse(&shared, BufReader::new(reader), &mut writer).await;
                });
            }
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// A text of a client.
struct Speaker {
    voice: Option<String>,
    language: Option<String>,
    text: TextSession,
    /// Whether audio has begun.
    has_begun: bool,
    failed: bool,
}

/// Answers one client.
async fn converse(
    shared: &Arc<Shared>,
    mut reader: impl AsyncBufRead + Unpin,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut streaming: Option<Speaker> = None;
    loop {
        let read = tokio::select! {
            read = tokio::time::timeout(IDLE, Event::read(&mut reader)) => read,
            () = shared.drained() => return Ok(()),
        };
        let event = match read {
            Ok(Ok(Some(event))) => event,
            Ok(Ok(None)) | Err(_) => return Ok(()),
            Ok(Err(e)) => {
                let error = json!({ "text": e.to_string(), "code": "invalid_event" });
                return send(writer, "error", &error, &[]).await;
            }
        };
        let text = || event.data.get("text").and_then(Value::as_str).unwrap_or_default();
        match event.kind.as_str() {
            "describe" => send(writer, "info", &info(shared), &[]).await?,
            "ping" => send(writer, "pong", &json!({ "text": event.data.get("text") }), &[]).await?,
            "synthesize-start" => streaming = Some(Speaker::new(&event, TextSession::default())),
            "synthesize-chunk" => {
                if let Some(speaker) = &mut streaming {
                    speaker.text.push(text());
                    speaker.speak(shared, writer).await?;
                }
            }
            // While a text comes in parts, this is all of it again, for servers that know no parts.
            "synthesize" if streaming.is_some() => {}
            "synthesize" => {
                let mut speaker = Speaker::new(&event, TextSession::whole());
                speaker.text.push(text());
                speaker.end(shared, writer).await?;
            }
            "synthesize-stop" => {
                if let Some(mut speaker) = streaming.take() {
                    speaker.end(shared, writer).await?;
                    send(writer, "synthesize-stopped", &json!({}), &[]).await?;
                }
            }
            // The protocol has servers drop what they do not know.
            _ => {}
        }
    }
}

impl Speaker {
    fn new(event: &Event, text: TextSession) -> Speaker {
        let voice = event.data.get("voice");
        let [voice, language] = ["name", "language"].map(|name| {
            let voice = voice?;
            voice.get(name).or_else(|| voice.get("speaker")).and_then(Value::as_str).map(str::to_owned)
        });
        Speaker { voice, language, text, has_begun: false, failed: false }
    }

    /// Speaks what is complete. A client waits for the end of the audio, so an error does not end it.
    async fn speak(
        &mut self,
        shared: &Arc<Shared>,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        while let Some(sentence) = self.text.next() {
            if self.failed {
                continue;
            }
            match self.send_audio(shared, &sentence, writer).await {
                Ok(written) => written?,
                // Marks without letters between sentences.
                Err(e) if e.code == "text_empty" && self.has_begun => {}
                Err(e) => {
                    self.failed = true;
                    send(writer, "error", &json!({ "text": e.message, "code": e.code }), &[]).await?;
                }
            }
        }
        Ok(())
    }

    /// Speaks the rest, and ends the audio.
    async fn end(&mut self, shared: &Arc<Shared>, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        self.text.finish();
        self.speak(shared, writer).await?;
        send(writer, "audio-stop", &json!({}), &[]).await
    }

    async fn send_audio(
        &mut self,
        shared: &Arc<Shared>,
        sentence: &Sentence,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Result<io::Result<()>> {
        let (model, voice) = chosen(shared, shared.ready()?, self.voice.as_deref())?;
        let rate = model.engine.sample_rate();
        let mut fields = json!({
            "model": model.id, "input": sentence.text, "response_format": "pcm", "sample_rate": rate,
        });
        if let Some(voice) = voice {
            fields["voice"] = voice.into();
        }
        // The language of the assistant, which the model may not know.
        let known: Vec<&str> = model.languages.iter().map(String::as_str).collect();
        if let Some(language) = self.language.as_deref().and_then(|asked| languages::find(asked, &known)) {
            fields["language"] = language.into();
        }
        let mut speech = Speech::read(shared, Fields::of(fields)?)?;
        speech.options.first_piece = sentence.index;
        let stalled = Stalled::default();
        let route = "wyoming".to_owned();
        let record = Record::new(shared.clone(), route, gate::new_id(), None, stalled.clone());
        record.set_status(StatusCode::OK);
        let mut answer = Answer::begin(shared, speech, record).await?;
        let format = json!({ "rate": rate, "width": 2, "channels": 1 });
        loop {
            match answer.next().await {
                Some(Message::Audio(bytes)) => {
                    let written = self.send_chunks(&bytes, &format, writer).await;
                    if let Err(e) = &written {
                        if e.kind() == io::ErrorKind::TimedOut {
                            stalled.set();
                        }
                        return Ok(written);
                    }
                }
                Some(Message::Done(_)) => return Ok(Ok(())),
                Some(Message::Failed(e)) => return Err(e),
                None => return Err(lost()),
                Some(_) => {}
            }
        }
    }

    async fn send_chunks(
        &mut self,
        mut bytes: &[u8],
        format: &Value,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let most = if self.has_begun { CHUNK } else { FIRST_CHUNK };
            if !self.has_begun {
                self.has_begun = true;
                send(writer, "audio-start", format, &[]).await?;
            }
            let (chunk, rest) = bytes.split_at(bytes.len().min(most));
            send(writer, "audio-chunk", format, chunk).await?;
            bytes = rest;
        }
        Ok(())
    }
}

/// The first model that has a voice of this name, or the first model.
fn chosen<'a>(
    shared: &Shared,
    models: &'a [Arc<Model>],
    voice: Option<&str>,
) -> Result<(&'a Arc<Model>, Option<String>)> {
    let first = models.first().ok_or_else(|| ApiError::unavailable("loading", "there is no model"))?;
    let Some(name) = voice.filter(|name| !name.is_empty()) else { return Ok((first, None)) };
    let has = |model: &&Arc<Model>| voices::find(model, &shared.settings, name).is_ok();
    Ok((models.iter().find(has).unwrap_or(first), Some(name.to_owned())))
}

/// What the server can do. It does not wait for a model: Home Assistant gives up after a second.
fn info(shared: &Shared) -> Value {
    let attribution = json!({ "name": "Orate", "url": "" });
    let voices = shared.models().iter().flat_map(|model| {
        let kept = voices::kept(model, &shared.settings).into_iter().map(|(name, _)| name);
        let own = model.engine.voices().iter().map(|v| v.name.clone());
        let mut names: Vec<String> = own.chain(kept).collect();
        if names.is_empty() && model.has_default_voice {
            names.push("default".to_owned());
        }
        let languages = match model.languages.as_slice() {
            [] => vec!["en".to_owned()],
            // Home Assistant knows codes, not names.
            known => known.iter().map(|name| languages::code(name).unwrap_or_else(|| name.clone())).collect(),
        };
        let voice = |name: String| {
            json!({
                "name": name, "description": format!("{name} of {}", model.id), "attribution": attribution,
                "installed": true, "version": env!("CARGO_PKG_VERSION"), "languages": languages,
                "speakers": null,
            })
        };
        names.into_iter().map(voice).collect::<Vec<_>>()
    });
    let voices: Vec<Value> = voices.collect();
    json!({
        "asr": [], "handle": [], "intent": [], "wake": [], "mic": [], "snd": [],
        "tts": [{
            "name": "orate", "description": "Orate", "attribution": attribution, "installed": true,
            "version": env!("CARGO_PKG_VERSION"), "supports_synthesize_streaming": true, "voices": voices,
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_are_read_in_parts_and_limits_hold() {
        let read = async |bytes: &[u8]| Event::read(&mut &*bytes).await;
        let line = r#"{"type":"a","data":{"x":1,"y":1},"data_length":7,"payload_length":2}"#;
        let event = read(format!("{line}\n{{\"y\":2}}..").as_bytes()).await;
        let event = event.expect("an event").expect("an event");
        assert_eq!((event.kind.as_str(), &event.data["x"], &event.data["y"]), ("a", &1.into(), &2.into()));
        assert!(read(b"").await.expect("an end").is_none());
        for wrong in [
            &b"{}"[..],
            b"[]\n",
            b"{\"data_length\":-1}\n",
            b"{\"data_length\":9999999}\n",
            b"{\"payload_length\":1e30}\n",
            b"{\"data_length\":5}\n{}",
            b"{\"data_length\":2}\n[]",
        ] {
            assert!(read(wrong).await.is_err(), "{}", String::from_utf8_lossy(wrong));
        }
        assert!(read(&vec![b'x'; MOST_LINE + 10]).await.is_err());
    }
}
