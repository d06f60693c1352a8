//! Answers to requests to speak: audio, events, or lines of JSON.

use crate::error::{ApiError, Result, json_response};
use crate::fields::Fields;
use crate::gate::{Asked, Record, rounded};
use crate::models::Model;
use crate::request::{Speech, shared_fields};
use crate::state::{KeyPlace, Shared};
use crate::work::{self, Message, Running, Summary, lost};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::StreamExt as _;
use futures_util::stream::{FuturesUnordered, Stream, unfold};
use orate::{TimedMark, TimedWord, captions};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Pause after which a comment keeps proxies from closing a stream of events.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Pause after which a refused text of a batch tries again.
const RETRY: Duration = Duration::from_millis(20);
/// Texts of a batch.
const MOST_ITEMS: usize = 32;

/// `POST /v1/audio/speech`
pub async fn speak(asked: Asked) -> Result<Response> {
    let speech = Speech::read(&asked.shared, asked.fields)?;
    if speech.options.word_times && !speech.is_sse {
        let message = "times of words need `stream_format`: sse, or /dev/captioned_speech";
        return Err(ApiError::field("unsupported_value", "word_timestamps", message));
    }
    answer(&asked.shared, speech, asked.record).await
}

/// Answers a request with audio or events.
///
/// # Errors
/// Speaking failed before the first audio.
pub async fn answer(shared: &Arc<Shared>, speech: Speech, record: Record) -> Result<Response> {
    let headers = headers(&speech);
    let (is_sse, is_streamed, ignored) = (speech.is_sse, speech.is_streamed, speech.ignored.clone());
    let answer = Answer::begin(shared, speech, record).await?;
    match (is_sse, is_streamed) {
        (true, _) => Ok(answer.events(&ignored)),
        (false, true) => Ok((headers, answer.sound()).into_response()),
        (false, false) => {
            let (bytes, summary) = answer.whole().await?;
            Ok((headers, of_summary(&summary), bytes).into_response())
        }
    }
}

/// A running request whose first audio is there.
pub struct Answer {
    running: Running,
    /// What came up to the first audio.
    early: VecDeque<Message>,
    record: Record,
    _place: Option<KeyPlace>,
    model: Arc<Model>,
    /// The text, if its words get times.
    input: String,
}

impl Answer {
    /// Waits for a thread and the first audio.
    ///
    /// # Errors
    /// The queue is full or too slow, or speaking failed.
    pub async fn begin(shared: &Arc<Shared>, speech: Speech, record: Record) -> Result<Answer> {
        note(shared, &speech, &record);
        let begun = match Self::enter(shared, speech, &record) {
            Ok(answer) => answer.first_audio(shared).await,
            Err(e) => Err(e),
        };
        if let Err(e) = &begun {
            record.set_status(e.status);
        }
        begun
    }

    /// Takes a place of the key and one in the queue.
    ///
    /// # Errors
    /// All are taken, or the encoder cannot be made.
    fn enter(shared: &Arc<Shared>, speech: Speech, record: &Record) -> Result<Answer> {
        let place = shared.enter(record.key())?;
        let (model, input) = (speech.model.clone(), speech.input.clone());
        let has_times = speech.options.word_times;
        let running = work::start(shared, speech, record.clone())?;
        shared.metrics.accepted(&model.id, &input);
        let (early, input) = (VecDeque::new(), if has_times { input } else { String::new() });
        Ok(Answer { running, early, record: record.clone(), _place: place, model, input })
    }

    /// Waits for a thread and the first audio.
    async fn first_audio(mut self, shared: &Shared) -> Result<Answer> {
        self.running.started().await?;
        loop {
            match self.running.next().await {
                Some(Message::Audio(bytes)) => {
                    let time = self.record.begun().elapsed();
                    shared.metrics.first_audio(&self.model.id, time);
                    self.record.note("first_audio", rounded(time.as_secs_f64()));
                    self.early.push_back(Message::Audio(bytes));
                    return Ok(self);
                }
                Some(Message::Started) => {}
                Some(message @ Message::Words { .. }) => {
                    self.early.push_back(message);
                }
                Some(Message::Failed(e)) => return Err(e),
                // Every format has a header, or the text has audio.
                Some(Message::Done(_)) | None => return Err(lost()),
            }
        }
    }

    /// The next message.
    pub async fn next(&mut self) -> Option<Message> {
        if let Some(message) = self.early.pop_front() {
            return Some(message);
        }
        let message = self.running.next().await;
        match &message {
            Some(Message::Done(summary)) => {
                self.record.note("audio", rounded(summary.audio_seconds));
                self.record.note("compute", rounded(summary.compute_seconds));
                self.record.note("finish", summary.finish_reason());
            }
            Some(Message::Failed(e)) => self.record.set_code(e.code),
            None => self.record.set_code(self.running.reason()),
            Some(_) => {}
        }
        message
    }

    /// Streams the audio. A failure breaks the connection, so that clients see that a part is missing.
    fn sound(self) -> Body {
        Body::from_stream(unfold(Some(self), |answer| async {
            let mut answer = answer?;
            loop {
                let broken = |message: &str| Err(io::Error::other(message.to_owned()));
                match answer.next().await {
                    Some(Message::Audio(bytes)) => return Some((Ok(bytes), Some(answer))),
                    Some(Message::Done(_)) => return None,
                    Some(Message::Failed(e)) => return Some((broken(&e.message), None)),
                    None => return Some((broken("cancelled"), None)),
                    Some(_) => {}
                }
            }
        }))
    }

    /// Collects the audio, with true lengths in its header.
    ///
    /// # Errors
    /// Speaking failed.
    pub async fn whole(mut self) -> Result<(Vec<u8>, Summary)> {
        let mut all = vec![];
        loop {
            match self.next().await {
                Some(Message::Audio(bytes)) => all.extend_from_slice(&bytes),
                Some(Message::Done(summary)) => {
                    set_header_lengths(&mut all, summary.header.as_deref());
                    return Ok((all, summary));
                }
                Some(Message::Failed(e)) => return Err(e),
                None => return Err(lost()),
                Some(_) => {}
            }
        }
    }

    /// Streams the audio as events.
    fn events(self, ignored: &[String]) -> Response {
        let events = unfold(Some(self), |answer| async {
            let mut answer = answer?;
            loop {
                let Ok(message) = timeout(KEEP_ALIVE, answer.next()).await else {
                    return Some((Ok::<_, io::Error>(": speaking\n\n".to_owned()), Some(answer)));
                };
                return match message {
                    Some(Message::Audio(bytes)) => {
                        let audio = BASE64_STANDARD.encode(&bytes);
                        Some((Ok(event("speech.audio.delta", json!({ "audio": audio }))), Some(answer)))
                    }
                    Some(Message::Words { words, marks, .. }) => {
                        let words = times_json(&answer.input, &words, &marks);
                        Some((Ok(event("speech.audio.words", json!({ "words": words }))), Some(answer)))
                    }
                    Some(Message::Done(summary)) => {
                        let done = json!({
                            "usage": usage(&summary), "finish_reason": summary.finish_reason(),
                            "audio_seconds": summary.audio_seconds,
                        });
                        Some((Ok(event("speech.audio.done", done)), None))
                    }
                    Some(Message::Failed(e)) => {
                        Some((Ok(event("speech.audio.error", json!({ "error": e.json() }))), None))
                    }
                    None => {
                        let error = json!({ "error": lost().json() });
                        Some((Ok(event("speech.audio.error", error)), None))
                    }
                    Some(_) => continue,
                };
            }
        });
        let mut response = Body::from_stream(events).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        streamed(headers);
        name_ignored(headers, ignored);
        response
    }
}

/// Describes a text in the log.
fn note(shared: &Shared, speech: &Speech, record: &Record) {
    record.note("model", speech.model.id.as_str());
    record.note("voice", speech.voice.name());
    record.note("characters", speech.input.chars().count());
    if shared.settings.log_texts {
        record.note("text", speech.input.as_str());
    }
}

/// Replaces the header of a stream, which leaves lengths open, in complete audio. Formats without such a
/// header have no `header`.
pub fn set_header_lengths(audio: &mut [u8], header: Option<&[u8]>) {
    if let Some(header) = header {
        audio[..header.len()].copy_from_slice(header);
    }
}

/// Words of a piece, with named places between them, in the order of their times.
fn times_json(input: &str, words: &[TimedWord], marks: &[TimedMark]) -> Vec<Value> {
    let of_words = words.iter().map(|word| word.start).zip(captions::words_json(words, input));
    let mark = |mark: &TimedMark| (mark.time, captions::mark_json(mark));
    // Marks first: one that precedes a word has its time.
    let mut entries: Vec<(f64, Value)> = marks.iter().map(mark).chain(of_words).collect();
    entries.sort_by(|a, b| a.0.total_cmp(&b.0));
    entries.into_iter().map(|(_, entry)| entry).collect()
}

/// A server-sent event; its name is also in the data, as with OpenAI.
fn event(name: &str, mut data: Value) -> String {
    data["type"] = name.into();
    format!("event: {name}\ndata: {data}\n\n")
}

/// OpenAI's `usage`.
fn usage(summary: &Summary) -> Value {
    let (input, output) = (summary.input_tokens, summary.output_tokens);
    json!({ "input_tokens": input, "output_tokens": output, "total_tokens": input + output })
}

/// Tells proxies not to buffer or cache a stream.
fn streamed(headers: &mut HeaderMap) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// Headers of an answer with audio.
fn headers(speech: &Speech) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut set = |name, value: String| set_header(&mut headers, name, &value);
    let format = speech.encoding.format;
    set("content-type", format.media_type.to_owned());
    let extension = if format.name == "opus" { "ogg" } else { format.name };
    set("content-disposition", format!("attachment; filename=speech.{extension}"));
    set("x-sample-rate", speech.encoding.sample_rate.to_string());
    set("x-orate-model", speech.model.id.clone());
    set("x-orate-voice", speech.voice.name().to_owned());
    set("x-orate-device", speech.model.engine.device());
    set("x-orate-seed", speech.options.seed.to_string());
    name_ignored(&mut headers, &speech.ignored);
    streamed(&mut headers);
    headers
}

/// Names fields without an effect in a header.
fn name_ignored(headers: &mut HeaderMap, ignored: &[String]) {
    if !ignored.is_empty() {
        set_header(headers, "x-orate-ignored", &shortened(ignored).join(", "));
    }
}

/// At most 20 names, cut at 40 characters.
fn shortened(names: &[String]) -> Vec<String> {
    names.iter().take(20).map(|name| name.chars().take(40).collect()).collect()
}

fn set_header(headers: &mut HeaderMap, name: &'static str, value: &str) {
    // Header values are ASCII; voice names need not be.
    let plain: String =
        value.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
    if let Ok(value) = HeaderValue::from_str(&plain) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

fn of_summary(summary: &Summary) -> [(&'static str, String); 3] {
    [
        ("x-orate-finish-reason", summary.finish_reason().to_owned()),
        ("x-orate-audio-seconds", format!("{:.3}", summary.audio_seconds)),
        ("x-orate-compute-seconds", format!("{:.4}", summary.compute_seconds)),
    ]
}

/// `POST /v1/audio/speech/batch`: several texts, which take places in the queue one after the other.
pub async fn batch(Asked { shared, record, mut fields }: Asked) -> Result<Response> {
    shared.ready()?;
    let items = match fields.take("items") {
        Some(Value::Array(items)) if (1..=MOST_ITEMS).contains(&items.len()) => items,
        Some(Value::Array(items)) => {
            let message = format!("`items` has {} texts; send 1 to {MOST_ITEMS}", items.len());
            return Err(ApiError::field("invalid_value", "items", message));
        }
        Some(_) => return Err(ApiError::field("invalid_value", "items", "`items` is not a list")),
        None => return Err(ApiError::missing("items")),
    };
    let defaults = shared_fields(fields.rest());
    let of_item = |item: &Value| {
        let input = item.get("input").or(defaults.get("input")).and_then(Value::as_str);
        input.map_or(0, |text| text.chars().count())
    };
    let (all, most) = (items.iter().map(of_item).sum::<usize>(), shared.settings.max_input_chars);
    if all > most {
        // The answer is one object, so all audio is in memory at once.
        let message = format!("the texts have {all} characters together; send at most {most} at a time");
        let error = ApiError::field("text_too_long", "items", message);
        return Err(error.with_status(StatusCode::PAYLOAD_TOO_LARGE));
    }
    let speeches = items.into_iter().map(|item| of_batch(&shared, item, &defaults)).collect();
    let spoken = speak_all(&shared, speeches, &record).await?;
    let (mut results, mut succeeded) = (vec![], 0);
    for (index, result) in spoken.into_iter().enumerate() {
        succeeded += usize::from(result.is_ok());
        let mut result = result.unwrap_or_else(|e| json!({ "status": "error", "error": e.json() }));
        result["index"] = index.into();
        results.push(result);
    }
    let total = results.len();
    let answer = json!({
        "id": format!("speech-batch-{}", crate::gate::new_id()), "results": results, "total": total,
        "succeeded": succeeded, "failed": total - succeeded,
    });
    Ok(json_response(StatusCode::OK, &answer))
}

/// Reads a text of a batch.
fn of_batch(shared: &Shared, item: Value, defaults: &Map<String, Value>) -> Result<Speech> {
    let mut fields = Fields::of(item)?;
    fields.fill(defaults);
    let mut speech = Speech::read(shared, fields)?;
    speech.options.whole = true;
    speech.ignore_events();
    Ok(speech)
}

/// Speaks the texts of a batch, at most as many at once as their model does. A text that finds no place waits
/// until others of the batch end. If none runs, it waits for `queue_timeout` at most.
///
/// # Errors
/// The first text finds no place, or none of them gets a thread in time: 429 or 503.
async fn speak_all(
    shared: &Arc<Shared>,
    speeches: Vec<Result<Speech>>,
    record: &Record,
) -> Result<Vec<Result<Value>>> {
    type Ended = Vec<(usize, Result<Value>)>;
    let refusal = |ended: &Ended| {
        let mut errors = ended.iter().filter_map(|(_, result)| result.as_ref().err());
        errors.find(|e| e.is_refusal()).cloned()
    };
    let of_key = shared.settings.max_per_key.filter(|_| record.key().is_some()).unwrap_or(usize::MAX);
    let (mut running, mut ended) = (FuturesUnordered::new(), Ended::new());
    let (mut has_begun, mut last_ran) = (false, Instant::now());
    for (index, speech) in speeches.into_iter().enumerate() {
        let speech = match speech {
            Ok(speech) => speech,
            Err(e) => {
                ended.push((index, Err(e)));
                continue;
            }
        };
        let most = speech.model.queue.threads().min(of_key).max(1);
        while running.len() >= most {
            ended.extend(running.next().await);
            last_ran = Instant::now();
        }
        note(shared, &speech, record);
        let entered = loop {
            // Waiting again after a wait in vain would add up.
            if let Some(e) = refusal(&ended) {
                break Err(e);
            }
            let e = match Answer::enter(shared, speech.clone(), record) {
                Err(e) if e.is_refusal() => e,
                entered => break entered,
            };
            if !running.is_empty() {
                if let Ok(one) = timeout(RETRY, running.next()).await {
                    ended.extend(one);
                }
                last_ran = Instant::now();
            } else if has_begun && last_ran.elapsed() < shared.settings.queue_timeout {
                sleep(RETRY).await;
            } else {
                break Err(e);
            }
        };
        match entered {
            Ok(answer) => {
                has_begun = true;
                running.push(async move { (index, result_of(shared, &speech, answer).await) });
            }
            Err(e) => ended.push((index, Err(e))),
        }
    }
    ended.extend(running.collect::<Ended>().await);
    if let Some(e) = refusal(&ended)
        && ended.iter().all(|(_, result)| result.is_err())
    {
        return Err(e);
    }
    ended.sort_by_key(|(index, _)| *index);
    Ok(ended.into_iter().map(|(_, result)| result).collect())
}

/// Waits for the audio of a text of a batch.
async fn result_of(shared: &Shared, speech: &Speech, answer: Answer) -> Result<Value> {
    let (bytes, summary) = answer.first_audio(shared).await?.whole().await?;
    let mut result = json!({
        "status": "success", "audio_data": BASE64_STANDARD.encode(bytes),
        "media_type": speech.encoding.format.media_type, "usage": usage(&summary),
        "finish_reason": summary.finish_reason(), "audio_seconds": summary.audio_seconds,
    });
    if !speech.ignored.is_empty() {
        result["ignored"] = shortened(&speech.ignored).into();
    }
    Ok(result)
}

/// `POST /dev/captioned_speech`: audio with the times of words, in Kokoro's form.
pub async fn captioned(Asked { shared, record, mut fields }: Asked) -> Result<Response> {
    let wants_times = fields.switch("return_timestamps")?.unwrap_or(true);
    let mut speech = Speech::read(&shared, fields)?;
    // Without times in the answer, the field is one without an effect.
    speech.options.word_times &= !wants_times;
    speech.ignore_events();
    speech.options.word_times = wants_times;
    let ignored = speech.ignored.clone();
    let (is_streamed, media_type) = (speech.is_streamed, speech.encoding.format.media_type);
    let answer = Answer::begin(&shared, speech, record).await?;
    let line = move |audio: &[u8], times: Vec<Value>| {
        let times = if wants_times { Value::Array(times) } else { Value::Null };
        json!({ "audio": BASE64_STANDARD.encode(audio), "audio_format": media_type, "timestamps": times })
    };
    let mut captions = Captions { answer, header: None };
    if !is_streamed {
        let (mut all, mut times) = (vec![], vec![]);
        while let Some((audio, of_part)) = captions.next().await? {
            all.extend_from_slice(&audio);
            times.extend(of_part);
        }
        set_header_lengths(&mut all, captions.header.as_deref());
        return Ok(naming(json_response(StatusCode::OK, &line(&all, times)), &ignored));
    }
    let lines = json_lines(unfold(Some(captions), move |captions| async move {
        let mut captions = captions?;
        match captions.next().await {
            Ok(Some((audio, times))) => Some((Ok(line(&audio, times)), Some(captions))),
            Ok(None) => None,
            Err(e) => Some((Err(e), None)),
        }
    }));
    Ok(naming(lines, &ignored))
}

/// An answer that names fields without an effect.
pub fn naming(mut response: Response, ignored: &[String]) -> Response {
    name_ignored(response.headers_mut(), ignored);
    response
}

/// Answers with a line of JSON for each value. A failure breaks the connection.
pub fn json_lines(values: impl Stream<Item = Result<Value>> + Send + 'static) -> Response {
    let lines = values.map(|value| match value {
        Ok(value) => Ok(format!("{value}\n")),
        Err(e) => Err(io::Error::other(e.message)),
    });
    let mut response = Body::from_stream(lines).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    streamed(headers);
    response
}

/// Audio and times of an answer.
struct Captions {
    answer: Answer,
    /// Header with true lengths, after the end.
    header: Option<Vec<u8>>,
}

impl Captions {
    /// Some audio, or the times of a piece whose audio is complete.
    async fn next(&mut self) -> Result<Option<(Bytes, Vec<Value>)>> {
        loop {
            match self.answer.next().await {
                Some(Message::Audio(bytes)) => return Ok(Some((bytes, vec![]))),
                Some(Message::Words { words, .. }) => {
                    let entry = |word: &TimedWord| {
                        json!({
                            "word": word.word.display, "start_time": rounded(word.start),
                            "end_time": rounded(word.end), "source": word.source.name(),
                        })
                    };
                    return Ok(Some((Bytes::new(), words.iter().map(entry).collect())));
                }
                Some(Message::Done(summary)) => {
                    self.header = summary.header;
                    return Ok(None);
                }
                Some(Message::Failed(e)) => return Err(e),
                None => return Err(lost()),
                Some(Message::Started) => {}
            }
        }
    }
}
