//! Routes of ElevenLabs: speech over HTTP, and text in parts over a WebSocket.
//!
//! The voice is part of the path, and `output_format` of the query, such as `pcm_16000`, `mp3_44100_128` or
//! `opus_48000_64`.

use crate::alignment::{self, Aligner, TimedCharacter};
use crate::encoding::{Encoding, Format, Resamplers};
use crate::error::{ApiError, Result, json_response};
use crate::fields::Fields;
use crate::gate::{Asked, Id, Record};
use crate::models::FIRST_MODEL;
use crate::request::Speech;
use crate::sockets::{self, Gone, Line, MOST_UNSPOKEN, Object, Protocol, Session, Upgrade};
use crate::speech::{self, Answer};
use crate::state::Shared;
use crate::voices;
use crate::work::{Message, lost};
use axum::body::Bytes;
use axum::extract::{MatchedPath, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::stream::unfold;
use orate::{Sentence, TextSession, TimedWord};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Default format.
const FORMAT: &str = "mp3_44100_128";
/// Longest wait for a message in seconds, and the most that a client may ask for.
const IDLE: u64 = 20;
const MOST_IDLE: u64 = 180;
/// Contexts of a socket.
const MOST_CONTEXTS: usize = 5;

/// `GET /v1/voices`
pub async fn list(State(shared): State<Arc<Shared>>) -> Result<Response> {
    let all = shared.ready()?.iter().flat_map(|model| voices::list(model, &shared.settings));
    let theirs = all.filter(|voice| voice["kind"] != "alias").map(|voice| {
        let category = if voice["kind"] == "kept" { "cloned" } else { "premade" };
        json!({
            "voice_id": voice["id"], "name": voice["name"], "category": category,
            "labels": { "model": voice["model"] },
        })
    });
    Ok(json_response(StatusCode::OK, &json!({ "voices": theirs.collect::<Vec<_>>() })))
}

/// `POST /v1/text-to-speech/{voice}` and `…/stream`
pub async fn speak(
    Id(voice): Id,
    Query(query): Query<HashMap<String, String>>,
    asked: Asked,
) -> Result<Response> {
    asked.shared.ready()?;
    let speech = of_request(&asked.shared, &voice, &query, asked.fields)?;
    speech::answer(&asked.shared, speech, asked.record).await.map_err(with_their_names)
}

/// `POST /v1/text-to-speech/{voice}/with-timestamps`
pub async fn with_timestamps(
    Id(voice): Id,
    Query(query): Query<HashMap<String, String>>,
    asked: Asked,
) -> Result<Response> {
    asked.shared.ready()?;
    let mut speech = of_request(&asked.shared, &voice, &query, asked.fields)?;
    speech.options.whole = true;
    let ignored = speech.ignored.clone();
    let mut aligned = Aligned::begin(&asked.shared, speech, asked.record).await?;
    let mut all = Part::default();
    while let Some(part) = aligned.next().await? {
        all.audio.extend_from_slice(&part.audio);
        let offset = all.seconds;
        all.characters.extend(part.characters.iter().map(|character| character.later(offset)));
        all.seconds += part.seconds;
    }
    speech::set_header_lengths(&mut all.audio, aligned.header.as_deref());
    Ok(speech::naming(json_response(StatusCode::OK, &all.json()), &ignored))
}

/// `POST /v1/text-to-speech/{voice}/stream/with-timestamps`: a line for each piece of the text.
pub async fn stream_with_timestamps(
    Id(voice): Id,
    Query(query): Query<HashMap<String, String>>,
    asked: Asked,
) -> Result<Response> {
    asked.shared.ready()?;
    let speech = of_request(&asked.shared, &voice, &query, asked.fields)?;
    let ignored = speech.ignored.clone();
    let aligned = Aligned::begin(&asked.shared, speech, asked.record).await?;
    let lines = speech::json_lines(unfold(Some(aligned), |aligned| async {
        let mut aligned = aligned?;
        match aligned.next().await {
            Ok(Some(part)) => Some((Ok(part.json()), Some(aligned))),
            Ok(None) => None,
            Err(e) => Some((Err(e), None)),
        }
    }));
    Ok(speech::naming(lines, &ignored))
}

/// Audio of a piece, and its characters with times from its beginning.
#[derive(Default)]
struct Part {
    audio: Vec<u8>,
    characters: Vec<TimedCharacter>,
    seconds: f64,
}

impl Part {
    fn json(&self) -> Value {
        let alignment = alignment::in_seconds(&self.characters);
        json!({
            "audio_base64": BASE64_STANDARD.encode(&self.audio), "alignment": alignment,
            "normalized_alignment": alignment,
        })
    }
}

/// An answer, piece by piece.
struct Aligned {
    answer: Answer,
    aligner: Aligner,
    /// Whether the last part was returned.
    is_over: bool,
    /// Header with true lengths, after the last part.
    header: Option<Vec<u8>>,
}

impl Aligned {
    async fn begin(shared: &Arc<Shared>, mut speech: Speech, record: Record) -> Result<Aligned> {
        speech.options.word_times = true;
        let aligner = Aligner::new(speech.input.clone());
        let answer = Answer::begin(shared, speech, record).await.map_err(with_their_names)?;
        Ok(Aligned { answer, aligner, is_over: false, header: None })
    }

    async fn next(&mut self) -> Result<Option<Part>> {
        let mut part = Part::default();
        while !self.is_over {
            match self.answer.next().await {
                Some(Message::Audio(bytes)) => part.audio.extend_from_slice(&bytes),
                Some(Message::Words { words, end, .. }) => {
                    let from = self.aligner.seconds();
                    part.characters = self.aligner.piece(&words, end);
                    return Ok(Some(Part { seconds: end - from, ..part }));
                }
                // What the encoder held back.
                Some(Message::Done(summary)) => {
                    (self.is_over, self.header) = (true, summary.header);
                    return Ok(Some(part).filter(|part| !part.audio.is_empty()));
                }
                Some(Message::Failed(e)) => return Err(with_their_names(e)),
                None => return Err(lost()),
                Some(Message::Started) => {}
            }
        }
        Ok(None)
    }
}

/// The same error, about the field that ElevenLabs has.
fn with_their_names(mut e: ApiError) -> ApiError {
    let (ours, theirs) = match e.param.as_deref() {
        Some("input") => ("`input`", "text"),
        Some("language") => ("`language`", "language_code"),
        _ => return e,
    };
    e.message = e.message.replace(ours, &format!("`{theirs}`"));
    e.about(theirs)
}

/// Converts a request. Of the voice settings only the speed has an effect here.
fn of_request(
    shared: &Shared,
    voice: &str,
    query: &HashMap<String, String>,
    mut fields: Fields,
) -> Result<Speech> {
    let text = fields.text("text")?.ok_or_else(|| ApiError::missing("text"))?;
    let mut own = json!({ "input": text, "response_format": "pcm" });
    let models = shared.loaded()?;
    // Their model names stand for the first served model.
    let asked = fields.text("model_id")?.or_else(|| query.get("model_id").cloned());
    let is_known = |id: &String| models.iter().any(|model| model.id == *id);
    let mut ignored = vec![];
    if asked.as_ref().is_some_and(|id| !is_known(id) && !FIRST_MODEL.contains(&id.as_str())) {
        ignored.push("model_id".to_owned());
    }
    own["model"] = asked.filter(is_known).unwrap_or_else(|| "orate".to_owned()).into();
    own["voice"] = voice.into();
    if let Some(language) = fields.text("language_code")?.or_else(|| query.get("language_code").cloned()) {
        own["language"] = language.into();
    }
    for name in ["seed", "speed"] {
        if let Some(value) = fields.take(name) {
            own[name] = value;
        }
    }
    match fields.take("voice_settings") {
        Some(Value::Object(settings)) => {
            for (name, value) in settings.into_iter().filter(|(_, value)| !value.is_null()) {
                match name.as_str() {
                    "speed" => own["speed"] = value,
                    name => ignored.push(format!("voice_settings.{name}")),
                }
            }
        }
        Some(_) => ignored.push("voice_settings".to_owned()),
        None => {}
    }
    ignored.extend(fields.rest().into_iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name));
    let mut speech = Speech::read_more(shared, Fields::of(own)?).map_err(with_their_names)?;
    let format = query.get("output_format").map_or(FORMAT, String::as_str);
    speech.encoding = encoding(format, &speech.model.resamplers)?;
    speech.ignored.extend(ignored);
    Ok(speech)
}

/// The encoding of a name such as `mp3_44100_128`.
fn encoding(name: &str, resamplers: &Resamplers) -> Result<Encoding> {
    let wrong = || {
        let message = "choose pcm_RATE, mp3_RATE_KBITS or opus_48000_KBITS, such as pcm_24000";
        ApiError::field("unsupported_format", "output_format", message)
    };
    let mut parts = name.split('_');
    let format = match parts.next() {
        Some(format @ ("pcm" | "mp3" | "opus" | "wav" | "flac")) => Format::read(format)?,
        _ => return Err(wrong()),
    };
    let mut number = || parts.next().map(|n| n.parse::<u32>().map_err(|_| wrong())).transpose();
    let (rate, kilobits) = (number()?, number()?);
    Encoding::new(format, rate.map(u64::from), resamplers)
        .and_then(|encoding| encoding.with_bit_rate(kilobits.map(|k| k.saturating_mul(1000))))
        .map_err(|e| e.about("output_format"))
}

/// `GET /v1/text-to-speech/{voice}/stream-input` and `…/multi-stream-input`
pub async fn stream_input(
    State(shared): State<Arc<Shared>>,
    route: MatchedPath,
    Id(voice): Id,
    Query(query): Query<HashMap<String, String>>,
    record: Record,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response> {
    // A wrong voice or format is an error before the socket opens.
    of_request(&shared, &voice, &query, Fields::of(json!({ "text": "a" }))?)?;
    let is_multi = route.as_str().ends_with("multi-stream-input");
    let is_known = record.key().is_some() || shared.settings.keys.is_empty();
    let idle = query.get("inactivity_timeout").and_then(|s| s.parse().ok()).unwrap_or(IDLE);
    let idle = Duration::from_secs(idle.clamp(1, MOST_IDLE));
    sockets::open(shared, record, &headers, upgrade, move |line| {
        let is_aligned = query.get("sync_alignment").is_some_and(|value| value == "true");
        let waiting = (vec![], Aligner::new(String::new()));
        let (contexts, current, is_closing) = Default::default();
        Contexts {
            line,
            is_known,
            voice,
            query,
            is_multi,
            idle,
            contexts,
            current,
            is_aligned,
            waiting,
            is_closing,
        }
    })
}

/// A text with its settings.
struct Context {
    id: Option<String>,
    settings: Object,
    text: TextSession,
}

/// A session. `stream-input` has one context without an id.
struct Contexts {
    line: Line,
    /// Whether the client has shown a key, or needs none.
    is_known: bool,
    voice: String,
    query: HashMap<String, String>,
    is_multi: bool,
    idle: Duration,
    /// In the order in which they are spoken.
    contexts: VecDeque<Context>,
    /// Id of the context that is spoken.
    current: Option<String>,
    /// Whether audio waits for the times of its characters (`sync_alignment`).
    is_aligned: bool,
    /// What waits, and the text of its sentence.
    waiting: (Vec<u8>, Aligner),
    is_closing: bool,
}

impl Protocol for Contexts {
    fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    fn is_reading(&self) -> bool {
        self.unspoken() < MOST_UNSPOKEN
    }

    async fn audio(&mut self, bytes: Bytes) -> Session {
        if self.is_aligned {
            self.waiting.0.extend_from_slice(&bytes);
            return Ok(());
        }
        self.send_audio(&bytes, &Value::Null).await
    }

    async fn words(&mut self, words: &[TimedWord], end: f64) -> Session {
        let (audio, aligner) = &mut self.waiting;
        let (audio, alignment) = (std::mem::take(audio), aligner.piece(words, end));
        self.send_audio(&audio, &alignment::in_milliseconds(&alignment)).await
    }

    async fn run(&mut self) -> Session {
        loop {
            let ready = self.contexts.iter().position(|c| c.text.is_ready() || c.text.is_over());
            if let Some(at) = ready {
                match self.contexts[at].text.next() {
                    Some(sentence) => self.speak(at, &sentence).await?,
                    None => {
                        let id = self.contexts.remove(at).and_then(|context| context.id);
                        self.send(json!({ "audio": null, "isFinal": true }), id.as_deref()).await?;
                    }
                }
            } else if self.is_closing {
                return Ok(());
            } else {
                let Some(message) = self.line.receive(self.idle).await? else {
                    let e = ApiError::unavailable("input_timeout_exceeded", "no message came in time");
                    return self.fail(&e, None).await;
                };
                self.take(message).await?;
            }
        }
    }

    async fn take(&mut self, message: Result<Object>) -> Session {
        let mut message = match message {
            Ok(_) if self.is_closing => return Ok(()),
            Ok(message) => message,
            Err(e) => return self.fail(&e, None).await,
        };
        if !self.is_known {
            let key = ["xi_api_key", "xi-api-key"].iter().find_map(|name| message.get(*name)?.as_str());
            let name = key.and_then(|key| self.line.shared.settings.keys.name_of(key)).map(str::to_owned);
            self.is_known = name.is_some();
            self.line.key = name;
            if !self.is_known {
                let e = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", "a key is needed");
                self.fail(&e, None).await?;
                return Err(Gone);
            }
        }
        let id = message.remove("context_id").and_then(|id| id.as_str().map(str::to_owned));
        let id = id.filter(|_| self.is_multi);
        let is_set = |name: &str| message.get(name) == Some(&Value::Bool(true));
        let (closes, flushes) = (is_set("close_context"), is_set("flush"));
        if is_set("close_socket") {
            self.contexts.iter_mut().for_each(|context| context.text.finish());
            self.is_closing = true;
            return Ok(());
        }
        let text = message.get("text").and_then(Value::as_str).unwrap_or_default();
        if self.unspoken() + text.len() > 2 * MOST_UNSPOKEN {
            let e = ApiError::field("text_too_long", "text", "too much text waits");
            return self.fail(&e, id.as_deref()).await;
        }
        let at = match self.contexts.iter().position(|context| context.id == id) {
            Some(at) => at,
            None if closes => return Ok(()),
            None if self.contexts.len() >= MOST_CONTEXTS => {
                let e = format!("a socket has at most {MOST_CONTEXTS} contexts; close one");
                let e = ApiError::field("max_active_contexts_exceeded", "context_id", e);
                return self.fail(&e, id.as_deref()).await;
            }
            None => {
                let setting = |name: &str| Some((name.to_owned(), message.get(name)?.clone()));
                let settings = ["voice_settings", "seed", "language_code"].into_iter().filter_map(setting);
                let settings = settings.collect();
                self.contexts.push_back(Context { id, settings, text: TextSession::default() });
                self.contexts.len() - 1
            }
        };
        let context = &mut self.contexts[at].text;
        context.push(text);
        if flushes {
            context.flush();
        }
        // An empty text ends the only context; in others it keeps them open.
        let ends = !self.is_multi && message.get("text").is_some_and(|text| text == "");
        if closes || ends {
            context.finish();
        }
        self.is_closing |= ends;
        Ok(())
    }
}

impl Contexts {
    async fn send(&mut self, mut value: Value, id: Option<&str>) -> Session {
        if let Some(id) = id {
            value["contextId"] = id.into();
        }
        self.line.send(&value).await
    }

    async fn send_audio(&mut self, audio: &[u8], alignment: &Value) -> Session {
        let audio = BASE64_STANDARD.encode(audio);
        let message = json!({
            "audio": audio, "isFinal": null, "alignment": alignment, "normalizedAlignment": alignment,
        });
        let id = self.current.clone();
        self.send(message, id.as_deref()).await
    }

    async fn fail(&mut self, e: &ApiError, id: Option<&str>) -> Session {
        self.send(json!({ "error": e.code, "message": e.message }), id).await
    }

    fn unspoken(&self) -> usize {
        self.contexts.iter().map(|context| context.text.pending()).sum()
    }

    async fn speak(&mut self, at: usize, sentence: &Sentence) -> Session {
        let context = &self.contexts[at];
        self.current.clone_from(&context.id);
        let mut fields = context.settings.clone();
        fields.insert("text".to_owned(), sentence.text.as_str().into());
        let fields = Fields::of(Value::Object(fields));
        let speech =
            fields.and_then(|fields| of_request(&self.line.shared, &self.voice, &self.query, fields));
        let spoken = match speech {
            Ok(mut speech) => {
                speech.options.first_piece = sentence.index;
                speech.options.word_times = self.is_aligned;
                self.waiting = (vec![], Aligner::new(speech.input.clone()));
                let spoken = sockets::speak(self, speech).await?;
                // The end of a stream of MP3 or Opus.
                let rest = std::mem::take(&mut self.waiting.0);
                if !rest.is_empty() {
                    self.send_audio(&rest, &Value::Null).await?;
                }
                spoken
            }
            Err(e) => Err(e),
        };
        match spoken {
            Ok(_) => Ok(()),
            // Marks without letters between sentences.
            Err(e) if e.code == "text_empty" => Ok(()),
            Err(e) => {
                let id = self.current.clone();
                self.fail(&e, id.as_deref()).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_rates_and_bits() {
        let resamplers = Resamplers::new(24_000);
        let read = |name: &str| encoding(name, &resamplers).map(|e| (e.format.name, e.sample_rate));
        assert_eq!(read("pcm_16000").expect("known"), ("pcm", 16_000));
        assert_eq!(read("flac").expect("known"), ("flac", 24_000));
        for wrong in ["", "pcm_1", "pcm_x", "ulaw_8000", "mp3_44100_x"] {
            let e = read(wrong).expect_err(wrong);
            assert_eq!(e.param.as_deref(), Some("output_format"), "{wrong}");
        }
    }
}
