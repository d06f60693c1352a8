//! Captions: SRT, WebVTT and JSON from words with times.
//!
//! A cue has at most [`LINES`] lines of [`COLUMNS`] columns, where East Asian characters take two, and is
//! shown for 1 to 7 seconds. It ends after a sentence if that is possible, else after a clause, else after a
//! word. A cue is shown for less than a second only if the next one begins, or the sound ends, by then.
//!
//! `duration` is that of the sound, in seconds. Without a known one, pass [`f64::INFINITY`].

use crate::cjk::is_wide;
use crate::is_invisible;
use crate::script::TimedMark;
use crate::words::{Pause, Word};
use serde_json::{Value, json};
use std::fmt::Write;
use std::ops::Range;
use unicode_normalization::char::is_combining_mark;

/// Most lines of a cue.
pub const LINES: usize = 2;
/// Most columns of a line.
pub const COLUMNS: usize = 42;

/// Shortest and longest time of a cue in milliseconds.
const SHORTEST: u64 = 1000;
const LONGEST: u64 = 7000;

/// A pause of this length, in milliseconds, ends a cue.
const SILENCE: u64 = 1000;

/// A sentence whose rest is narrower than this is not continued in a cue of its own.
const ORPHAN: usize = COLUMNS;

/// A word and when it is spoken.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TimedWord {
    /// The word.
    pub word: Word,
    /// Where it begins and ends in the audio, in seconds.
    pub start: f64,
    /// As `start`.
    pub end: f64,
    /// Where its times come from.
    pub source: Source,
    /// The piece of the text that it belongs to, from 0.
    pub piece: usize,
}

/// Where the times of words come from, from the least to the most exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Source {
    /// Estimated from the sound's level and the letters of the words.
    Estimated,
    /// Measured in the attention of the model.
    Attention,
    /// Measured by a model for aligning text and speech.
    Aligner,
}

impl Source {
    /// Its name in files and answers: `estimated`, `attention`, `aligner`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Source::Estimated => "estimated",
            Source::Attention => "attention",
            Source::Aligner => "aligner",
        }
    }
}

/// Lines that are shown together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cue {
    /// When it appears, in milliseconds.
    pub start: u64,
    /// When it disappears, in milliseconds. Not after the next cue appears or the sound ends.
    pub end: u64,
    /// One or two lines.
    pub lines: Vec<String>,
}

/// Writes SubRip captions (`.srt`).
///
/// The format has no escapes and no comments. Signs that players take for markup are separated from what
/// follows by an invisible character.
#[must_use]
pub fn srt(words: &[TimedWord], duration: f64) -> String {
    let mut out = String::new();
    for (i, cue) in cues(words, duration).iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let text =
            cue.lines.join("\n").replace("-->", "->").replace('<', "<\u{2060}").replace("{\\", "{\u{2060}\\");
        let _ = write!(out, "{}\n{} --> {}\n{text}\n", i + 1, clock(cue.start, ','), clock(cue.end, ','));
    }
    out
}

/// Writes WebVTT captions (`.vtt`). A note at the top says so if times are estimated.
#[must_use]
pub fn vtt(words: &[TimedWord], duration: f64) -> String {
    let mut out = "WEBVTT\n".to_owned();
    if let Some(note) = note(words) {
        let _ = write!(out, "\nNOTE {note}\n");
    }
    for cue in cues(words, duration) {
        let text = cue.lines.join("\n").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = write!(out, "\n{} --> {}\n{text}\n", clock(cue.start, '.'), clock(cue.end, '.'));
    }
    out
}

/// Words as JSON, in the form of [`json()`]: text, times in seconds, span in characters of `input`, source
/// and piece.
#[must_use]
pub fn words_json(words: &[TimedWord], input: &str) -> Vec<Value> {
    let mut characters = Characters { text: input, bytes: 0, characters: 0 };
    let entry = |timed: &TimedWord| {
        let TimedWord { word, start, end, source, piece } = timed;
        let span = [characters.before(word.span.start), characters.before(word.span.end)];
        json!({
            "word": word.text, "display": word.display, "start": seconds(*start), "end": seconds(*end),
            "span": span, "source": source.name(), "piece": piece,
        })
    };
    words.iter().map(entry).collect()
}

/// A mark in the form of [`json()`].
#[must_use]
pub fn mark_json(mark: &TimedMark) -> Value {
    json!({ "mark": mark.name, "time": seconds(mark.time) })
}

/// Writes JSON: `words` with their times, the span of each in characters of `input`, and its source; the same
/// `cues` as in the other formats; `marks` with their times if there are any; and a `note` if times are
/// estimated.
#[must_use]
pub fn json(words: &[TimedWord], marks: &[TimedMark], input: &str, duration: f64) -> String {
    let cues = cues(words, duration).into_iter().map(|cue| {
        json!({ "start": cue.start as f64 / 1000.0, "end": cue.end as f64 / 1000.0, "lines": cue.lines })
    });
    let mut all = json!({ "words": words_json(words, input), "cues": cues.collect::<Vec<_>>() });
    if !marks.is_empty() {
        all["marks"] = marks.iter().map(mark_json).collect();
    }
    if let Some(note) = note(words) {
        all["note"] = note.into();
    }
    all.to_string() + "\n"
}

fn note(words: &[TimedWord]) -> Option<&'static str> {
    words.iter().any(|word| word.source == Source::Estimated).then_some("words: estimated")
}

/// Seconds rounded to milliseconds. Times that are not finite are 0.
fn seconds(time: f64) -> f64 {
    milliseconds(time) as f64 / 1000.0
}

fn milliseconds(time: f64) -> u64 {
    // Rust's conversion turns NaN and negative numbers into 0. The limit leaves room for the sums below.
    (time.min(1e9) * 1000.0).round() as u64
}

fn clock(ms: u64, point: char) -> String {
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let (minutes, seconds) = (seconds / 60, seconds % 60);
    format!("{:02}:{:02}:{seconds:02}{point}{ms:03}", minutes / 60, minutes % 60)
}

/// Characters before a byte of a text. Fast if bytes are asked for in order.
struct Characters<'t> {
    text: &'t str,
    bytes: usize,
    characters: usize,
}

impl Characters<'_> {
    fn before(&mut self, byte: usize) -> usize {
        let byte = self.text.floor_char_boundary(byte);
        if byte < self.bytes {
            (self.bytes, self.characters) = (0, 0);
        }
        self.characters += self.text[self.bytes..byte].chars().count();
        self.bytes = byte;
        self.characters
    }
}

/// A part of a cue that is not broken: a word, or a part of one that is wider than a line.
#[derive(Debug, Clone)]
struct Unit {
    text: String,
    /// Where it begins and ends if all units stood in one line.
    columns: Range<usize>,
    space_after: bool,
    pause_after: Pause,
    start: u64,
    end: u64,
}

/// Divides words into cues.
#[must_use]
pub fn cues(words: &[TimedWord], duration: f64) -> Vec<Cue> {
    let units = units(words);
    // Rounded down, so that no cue ends after the sound.
    let sound = (duration * 1000.0) as u64;
    let mut rest = &units[..];
    let mut out: Vec<Cue> = Vec::new();
    while let Some(first) = rest.first() {
        // Milliseconds after the one before, so that no two cues begin together.
        let start = first.start.max(out.last().map_or(0, |last| last.start + 1));
        let (cue, after) = rest.split_at(count(rest));
        rest = after;
        let spoken = cue.last().map_or(start, |last| last.end);
        if let Some(last) = out.last_mut() {
            last.end = last.end.min(start);
        }
        let end = spoken.clamp(start + SHORTEST, start + LONGEST).min(sound).max(start + 1);
        out.push(Cue { start, end, lines: lines(cue) });
    }
    out
}

/// Words with times in order.
fn units(words: &[TimedWord]) -> Vec<Unit> {
    let mut out: Vec<Unit> = Vec::new();
    for TimedWord { word, start, end, .. } in words {
        let text: String = word.display.chars().filter(|c| !c.is_control()).collect();
        let parts = parts(text.trim());
        let start = milliseconds(*start).max(out.last().map_or(0, |last| last.end));
        let length = milliseconds(*end).saturating_sub(start);
        let at = |part: usize| start + length * part as u64 / parts.len() as u64;
        for (i, text) in parts.iter().enumerate() {
            let is_last = i + 1 == parts.len();
            let column = out.last().map_or(0, |last| last.columns.end + usize::from(last.space_after));
            out.push(Unit {
                text: (*text).to_owned(),
                columns: column..column + columns(text),
                space_after: is_last && word.space_after,
                pause_after: if is_last { word.pause_after } else { Pause::None },
                start: at(i),
                end: at(i + 1),
            });
        }
    }
    out
}

/// Parts of a text that fit into a line each.
fn parts(text: &str) -> Vec<&str> {
    let (mut out, mut start, mut width) = (vec![], 0, 0);
    for (i, c) in text.char_indices() {
        if width + column(c) > COLUMNS {
            out.push(&text[start..i]);
            (start, width) = (i, 0);
        }
        width += column(c);
    }
    if start < text.len() {
        out.push(&text[start..]);
    }
    out
}

fn columns(text: &str) -> usize {
    text.chars().map(column).sum()
}

fn column(c: char) -> usize {
    match c {
        c if is_invisible(c) || is_combining_mark(c) => 0,
        c if is_wide(c) => 2,
        _ => 1,
    }
}

/// Number of units in the first cue.
fn count(units: &[Unit]) -> usize {
    let most = most(units);
    let cue = &units[..most];
    let Some(next) = units.get(most) else { return most };
    let (start, last) = (cue[0].start, &cue[most - 1]);
    if next.start.saturating_sub(last.end) >= SILENCE {
        return most;
    }
    let width = width(cue);
    // A sentence may end early in a cue, a clause not.
    let ends = |pause, least: usize| {
        let is_end = |i: &usize| {
            let unit = &cue[i - 1];
            unit.pause_after >= pause && unit.end - start >= SHORTEST && self::width(&cue[..*i]) >= least
        };
        (1..=most).rev().find(is_end)
    };
    ends(Pause::Sentence, 0).or_else(|| ends(Pause::Comma, width / 2)).unwrap_or_else(|| {
        // The rest of the sentence would be a cue of a few words: both get half of them.
        let rest = units[most..].iter().take_while(|unit| unit.columns.end - next.columns.start <= ORPHAN);
        let ends = rest.clone().any(|unit| unit.pause_after == Pause::Sentence);
        let is_orphan = ends || most + rest.count() == units.len();
        let half = (1..=most).find(|&i| 2 * self::width(&cue[..i]) >= width);
        if is_orphan { half.unwrap_or(most) } else { most }
    })
}

/// Most units that a cue can have, by its width and its time.
fn most(units: &[Unit]) -> usize {
    let Some(first) = units.first() else { return 0 };
    let fits = |&i: &usize| {
        let (last, before) = (&units[i - 1], &units[i - 2]);
        last.end - first.start <= LONGEST
            && last.start - before.end < SILENCE
            && line_break(&units[..i]).is_some()
    };
    (2..=units.len()).take_while(fits).last().unwrap_or(1)
}

/// Columns of units in one line.
fn width(units: &[Unit]) -> usize {
    match units {
        [] => 0,
        [first, ..] => units[units.len() - 1].columns.end - first.columns.start,
    }
}

/// Number of units in the first of two lines; all if one line is enough; `None` if two are not.
fn line_break(units: &[Unit]) -> Option<usize> {
    /// Columns by which lines may differ more if the first one ends with a mark.
    const MARK: usize = 12;
    if width(units) <= COLUMNS {
        return Some(units.len());
    }
    let uneven = |&i: &usize| {
        let (first, second) = (width(&units[..i]), width(&units[i..]));
        let mark = if units[i - 1].pause_after == Pause::None { MARK } else { 0 };
        first.abs_diff(second) + mark
    };
    let fits = |&i: &usize| width(&units[..i]) <= COLUMNS && width(&units[i..]) <= COLUMNS;
    (1..units.len()).filter(fits).min_by_key(uneven)
}

fn lines(units: &[Unit]) -> Vec<String> {
    let at = line_break(units).unwrap_or(units.len());
    let line = |units: &[Unit]| {
        let mut out = String::new();
        for unit in units {
            out.push_str(&unit.text);
            if unit.space_after {
                out.push(' ');
            }
        }
        out.trim_end().to_owned()
    };
    [&units[..at], &units[at..]].into_iter().filter(|units| !units.is_empty()).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words;

    /// Words of a text, each 0.3 s long, with the pauses of its marks.
    fn timed(text: &str) -> Vec<TimedWord> {
        let mut at = 0.0;
        let word = |word: Word| {
            let start = at;
            at += 0.3;
            let end = at;
            at += [0.0, 0.2, 0.4][word.pause_after as usize];
            TimedWord { word, start, end, source: Source::Attention, piece: 0 }
        };
        words::of(text, 0..text.len(), None).into_iter().map(word).collect()
    }

    fn shown(words: &[TimedWord]) -> Vec<String> {
        let cues = cues(words, f64::INFINITY);
        check(&cues);
        cues.iter().map(|cue| cue.lines.join(" / ")).collect()
    }

    /// The promises of the module.
    fn check(cues: &[Cue]) {
        for cue in cues {
            assert!(!cue.lines.is_empty() && cue.lines.len() <= LINES, "{cue:?}");
            assert!(cue.lines.iter().all(|line| !line.is_empty() && columns(line) <= COLUMNS), "{cue:?}");
            assert!(cue.start < cue.end && cue.end - cue.start <= LONGEST, "{cue:?}");
        }
        for pair in cues.windows(2) {
            assert!(pair[0].end <= pair[1].start, "{pair:?}");
            assert!(pair[0].end - pair[0].start >= SHORTEST || pair[0].end == pair[1].start, "{pair:?}");
        }
    }

    #[test]
    fn cues_end_with_sentences_clauses_words() {
        let text = "Good morning, everyone. This is the second sentence of the text, which goes on for a \
                    while and then ends. And this one has no marks at all so that it must be cut after \
                    some word because it has many words. Yes.";
        assert_eq!(
            shown(&timed(text)),
            [
                "Good morning, everyone.",
                "This is the second sentence of the text, / which goes on for a while and then ends.",
                "And this one has no / marks at all so that it",
                "must be cut after some word / because it has many words. Yes.",
            ]
        );
        assert_eq!(shown(&timed("")), Vec::<String>::new());
        assert_eq!(shown(&timed("Hi.")), ["Hi."]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let text = "雨がやんだので、駅まで歩いて行くことにした。湯が沸いたらお茶にしようと思っている。";
        let cues = cues(&timed(text), f64::INFINITY);
        check(&cues);
        assert_eq!(cues.iter().flat_map(|cue| &cue.lines).cloned().collect::<String>(), text);
        assert_eq!(columns("Ａ漢e\u{301}🙂"), 7);
    }

    #[test]
    fn long_words_and_bad_times() {
        let long = "x".repeat(500);
        assert_eq!(shown(&timed(&long)).concat().replace(" / ", ""), long);
        for times in [[0.0, 0.0], [5.0, 1.0], [f64::NAN, f64::INFINITY], [-3.0, -2.0], [1e300, 0.5]] {
            let mut words = timed(&"word, another one. ".repeat(50));
            for (i, word) in words.iter_mut().enumerate() {
                if i % 3 > 0 {
                    (word.start, word.end) = (times[0], times[1]);
                }
            }
            check(&cues(&words, f64::INFINITY));
            assert!(serde_json::from_str::<Value>(&json(&words, &[], "", 9.0)).is_ok());
        }
    }

    #[test]
    fn silence_ends_a_cue() {
        let mut words = timed("one two three");
        (words[2].start, words[2].end) = (9.0, 9.2);
        let cues = cues(&words, f64::INFINITY);
        assert_eq!(
            cues.iter().map(|cue| (cue.start, cue.end)).collect::<Vec<_>>(),
            [(0, 1000), (9000, 10000)]
        );
    }

    #[test]
    fn no_cue_ends_after_the_sound() {
        let words = timed("x");
        let shown =
            |duration| cues(&words, duration).iter().map(|cue| (cue.start, cue.end)).collect::<Vec<_>>();
        assert_eq!(shown(0.7356), [(0, 735)]);
        assert_eq!(shown(2.0), [(0, 1000)]);
        // Cues stay in order and visible, whatever the duration.
        for duration in [0.0, -1.0, f64::NAN] {
            assert_eq!(shown(duration), [(0, 1)]);
        }
        assert!(srt(&words, 0.7356).contains("00:00:00,000 --> 00:00:00,735"));
        assert!(vtt(&words, 0.7356).contains("00:00:00.000 --> 00:00:00.735"));
        let all: Value = serde_json::from_str(&json(&words, &[], "x", 0.7356)).expect("JSON");
        assert_eq!(all["cues"][0]["end"], 0.735);
    }

    #[test]
    fn files() {
        let text = "é <b>Q&A</b> --> {\\an8} now.";
        let mut words = timed(text);
        assert_eq!(
            srt(&words, 9.0),
            "1\n00:00:00,000 --> 00:00:01,700\né <\u{2060}b>Q&A<\u{2060}/b> -> {\u{2060}\\an8} now.\n"
        );
        let escaped = "é &lt;b&gt;Q&amp;A&lt;/b&gt; --&gt; {\\an8} now.\n";
        assert_eq!(vtt(&words, 9.0), format!("WEBVTT\n\n00:00:00.000 --> 00:00:01.700\n{escaped}"));
        words[0].source = Source::Estimated;
        assert!(vtt(&words, 9.0).starts_with("WEBVTT\n\nNOTE words: estimated\n\n00:00"));
        let marks = [TimedMark { name: "a\"".to_owned(), time: 0.3004 }];
        let all: Value = serde_json::from_str(&json(&words, &marks, text, 9.0)).expect("JSON");
        assert_eq!(all["marks"], json!([{ "mark": "a\"", "time": 0.3 }]));
        assert!(!json(&words, &[], text, 9.0).contains("marks"));
        assert_eq!(all["note"], "words: estimated");
        assert_eq!(all["words"][1]["span"], json!([2, 12]));
        assert_eq!(all["words"][1]["source"], "attention");
        assert_eq!((&all["words"][1]["start"], &all["cues"][0]["end"]), (&json!(0.3), &json!(1.7)));
        assert_eq!((srt(&[], 9.0), vtt(&[], 9.0)), (String::new(), "WEBVTT\n".to_owned()));
        assert_eq!(clock(3_723_004, '.'), "01:02:03.004");
    }
}
