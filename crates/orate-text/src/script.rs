//! Texts with markup: segments, each with a voice, a language, a rate, a gain and the silence after it.

mod ssml;
mod tags;

use crate::traced::Make;
use crate::{TextError, Traced};
use std::ops::Range;

/// Slowest and fastest rate.
const RATES: std::ops::RangeInclusive<f32> = 0.25..=4.0;

/// Most warnings that are kept.
const MAX_WARNINGS: usize = 32;

/// A text, divided where the way of speaking changes.
///
/// ```
/// use orate_text::Script;
///
/// let script = Script::tagged("[voice:F1] Who's there? [pause:1.5s] [voice:M1] Me.")?;
/// let [first, second] = &script.segments[..] else { panic!("two segments") };
/// assert_eq!((first.text.text(), first.voice.as_deref()), ("Who's there?", Some("F1")));
/// assert_eq!((second.text.text(), second.voice.as_deref()), ("Me.", Some("M1")));
/// assert_eq!(first.pause_after, 1.5);
/// # Ok::<(), orate_text::TextError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Script {
    /// The segments, in order.
    pub segments: Vec<Segment>,
    /// What is not supported and was ignored.
    pub warnings: Vec<String>,
}

/// A text that is spoken in one way.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The text that captions show, and where it comes from in the input. It differs from the spoken text
    /// where SSML has `sub` or `say-as`.
    pub shown: Traced,
    /// The text to speak, made from the text of `shown`. Blank lines separate paragraphs. Empty if the input
    /// begins with a pause.
    pub text: Traced,
    /// Name of the voice; `None` for that of the request.
    pub voice: Option<String>,
    /// Code of the language in lowercase, such as `en`, or `auto` for the model's choice; `None` for that of
    /// the request.
    pub language: Option<String>,
    /// Factor on the usual rate, 0.25 to 4.
    pub rate: f32,
    /// Gain in dB, -96 to 24.
    pub gain_db: f32,
    /// Silence after the text in seconds, 0 to 10.
    pub pause_after: f32,
    /// Named places in the text, in order.
    pub marks: Vec<Mark>,
}

/// A named place in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Its name.
    pub name: String,
    /// Byte of the spoken text that it precedes.
    pub at: usize,
}

/// A named place, and when it is reached.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedMark {
    /// Its name.
    pub name: String,
    /// When it is reached, in seconds.
    pub time: f64,
}

impl Segment {
    /// Silence after a text, in seconds.
    pub const PAUSES: std::ops::RangeInclusive<f32> = 0.0..=10.0;
    /// Gains in dB.
    pub const GAINS: std::ops::RangeInclusive<f32> = -96.0..=24.0;

    fn new(style: &Style) -> Segment {
        let Style { voice, language, rate, gain_db } = style.clone();
        Segment {
            shown: Traced::default(),
            text: Traced::default(),
            voice,
            language,
            rate,
            gain_db,
            pause_after: 0.0,
            marks: vec![],
        }
    }

    fn is_in(&self, style: &Style) -> bool {
        self.voice == style.voice
            && self.language == style.language
            && self.rate == style.rate
            && self.gain_db == style.gain_db
    }
}

impl Script {
    /// A text without markup, as one segment. There is none if the text is blank.
    #[must_use]
    pub fn plain(text: &str) -> Script {
        let is_blank = text.chars().all(char::is_whitespace);
        let whole = || Segment { shown: text.into(), text: text.into(), ..Segment::new(&Style::default()) };
        Script { segments: (!is_blank).then(whole).into_iter().collect(), warnings: vec![] }
    }

    /// Reads a text with tags: `[pause:1.5s]`, `[pause:500ms]`, `[voice:NAME]`, `[rate:1.1]`, `[lang:de]`.
    ///
    /// Voice, rate and language hold until the next such tag. Other brackets are text.
    ///
    /// # Errors
    /// A tag is malformed.
    pub fn tagged(text: &str) -> Result<Script, TextError> {
        tags::read(text)
    }

    /// The first tag that [`Script::tagged`] would apply, for warnings about texts that are read without.
    ///
    /// ```
    /// let tag = |text| orate_text::Script::first_tag(text);
    /// assert_eq!(tag("[laugh] One [pause:1s] two"), Some("[pause:1s]"));
    /// assert_eq!(tag("[laugh] One [pause:long] two"), None);
    /// ```
    #[must_use]
    pub fn first_tag(text: &str) -> Option<&str> {
        tags::first(text)
    }

    /// Reads SSML.
    ///
    /// Supported are `speak`, `p`, `s`, `break`, `prosody` (`rate`, `volume`), `voice` (`name`), `lang`,
    /// `sub`, `mark`, and for English `say-as` (`characters`, `spell-out`, `cardinal`, `ordinal`, `date`).
    /// Text in other elements is spoken, with a warning. Text without `xml:lang` is in `language`; `None` is
    /// English.
    ///
    /// # Errors
    /// The text is not well-formed XML, has a document type, is larger than 64 KiB, has more than 4096 nodes
    /// or elements nested deeper than 16, or an attribute has an invalid value.
    ///
    /// ```
    /// use orate_text::Script;
    ///
    /// let script = Script::ssml(r#"<speak>The <sub alias="sequel">SQL</sub> server</speak>"#, None)?;
    /// assert_eq!(script.segments[0].text.text(), "The sequel server");
    /// assert_eq!(script.segments[0].shown.text(), "The SQL server");
    /// # Ok::<(), orate_text::TextError>(())
    /// ```
    pub fn ssml(text: &str, language: Option<&str>) -> Result<Script, TextError> {
        ssml::read(text, language)
    }
}

/// How text is spoken.
#[derive(Debug, Clone, PartialEq)]
struct Style {
    voice: Option<String>,
    language: Option<String>,
    rate: f32,
    gain_db: f32,
}

impl Default for Style {
    fn default() -> Style {
        Style { voice: None, language: None, rate: 1.0, gain_db: 0.0 }
    }
}

/// White space that becomes part of a segment if more text of the same style follows.
#[derive(Debug, Clone)]
struct Gap {
    source: Range<usize>,
    /// Whether a paragraph ends here.
    is_border: bool,
}

/// Writes segments.
struct Writer<'t> {
    input: &'t str,
    segments: Vec<Segment>,
    warnings: Vec<String>,
    style: Style,
    gap: Option<Gap>,
    /// Marks before the next text.
    marks: Vec<String>,
    /// Whether white space stays as it is.
    keeps_space: bool,
    /// Where text begins in `shown` that is replaced when it ends; `None` inside before that text.
    replaced: Option<Option<usize>>,
}

impl<'t> Writer<'t> {
    fn new(input: &'t str, keeps_space: bool) -> Writer<'t> {
        Writer {
            input,
            segments: vec![],
            warnings: vec![],
            style: Style::default(),
            gap: None,
            marks: vec![],
            keeps_space,
            replaced: None,
        }
    }

    fn space(&mut self, source: Range<usize>, is_border: bool) {
        match &mut self.gap {
            Some(gap) => {
                gap.source.end = gap.source.end.max(source.end);
                gap.is_border |= is_border;
            }
            None => self.gap = Some(Gap { source, is_border }),
        }
    }

    /// Writes text as it stands in the input from `start` on.
    fn copy(&mut self, part: &str, start: usize) {
        let is_spoken = self.begin();
        if let Some(segment) = self.segments.last_mut() {
            let at = segment.shown.text().len();
            segment.shown.copy(part, start);
            if is_spoken {
                segment.text.copy(part, at);
            }
        }
    }

    /// Adds the marks at the start of `part` to the word before them, even if its segment has ended: `world,`
    /// of `<prosody rate="slow">world</prosody>, and`. Returns their bytes.
    fn end_word(&mut self, part: &str, start: usize) -> usize {
        let is_apart = self.gap.is_some() || !self.marks.is_empty() || self.replaced.is_some();
        let last = self.segments.last_mut().filter(|last| !is_apart && !last.text.text().is_empty());
        let Some(last) = last else { return 0 };
        let marks = &part[..part.len() - part.trim_start_matches(ends_word).len()];
        let at = last.shown.text().len();
        last.shown.copy(marks, start);
        last.text.copy(marks, at);
        marks.len()
    }

    /// Writes text that a part of the input stands for.
    fn make(&mut self, part: &str, source: Range<usize>) {
        let is_spoken = self.begin();
        if let Some(segment) = self.segments.last_mut() {
            let at = segment.shown.text().len();
            segment.shown.make(part, source);
            if is_spoken {
                segment.text.copy(part, at);
            }
        }
    }

    /// Text that follows is shown, and not spoken until [`Self::replace`].
    fn begin_replaced(&mut self) {
        self.replaced = Some(None);
    }

    /// The text since [`Self::begin_replaced`].
    fn to_replace(&self) -> &str {
        match (self.replaced, self.segments.last()) {
            (Some(Some(start)), Some(segment)) => &segment.shown.text()[start..],
            _ => "",
        }
    }

    /// Speaks `words` in place of the text since [`Self::begin_replaced`]; if there is none, in place of
    /// `source`.
    fn replace(&mut self, words: &str, source: Range<usize>) {
        let start = self.replaced.take().flatten();
        if start.is_none() {
            if words.is_empty() {
                return;
            }
            self.begin();
        }
        if let Some(segment) = self.segments.last_mut() {
            let start = start.unwrap_or_else(|| {
                let start = segment.shown.text().len();
                segment.shown.make(words, source);
                start
            });
            segment.text.make(words, start..segment.shown.text().len());
        }
    }

    /// Prepares the last segment for text of the current style. Returns whether the text is spoken.
    fn begin(&mut self) -> bool {
        let is_inside = matches!(self.replaced, Some(Some(_)));
        let gap = self.gap.take();
        let same =
            self.segments.last().is_some_and(|last| last.pause_after == 0.0 && last.is_in(&self.style));
        if !same {
            self.segments.push(Segment::new(&self.style));
        }
        let Some(segment) = self.segments.last_mut() else { return false };
        if let Some(gap) = gap.filter(|_| !segment.shown.text().is_empty()) {
            let at = segment.shown.text().len();
            let as_is = &self.input[gap.source.clone()];
            if self.keeps_space && as_is.chars().all(char::is_whitespace) {
                segment.shown.copy(as_is, gap.source.start);
            } else {
                segment.shown.make(if gap.is_border { "\n\n" } else { " " }, gap.source);
            }
            if !is_inside {
                let space = segment.shown.text()[at..].to_owned();
                segment.text.copy(&space, at);
            }
        }
        let at = segment.text.text().len();
        segment.marks.extend(self.marks.drain(..).map(|name| Mark { name, at }));
        if let Some(start) = &mut self.replaced {
            start.get_or_insert(segment.shown.text().len());
        }
        self.replaced.is_none()
    }

    /// Adds silence. Returns false if that is too much.
    fn pause(&mut self, seconds: f32) -> bool {
        self.place_marks();
        if self.segments.is_empty() {
            self.segments.push(Segment::new(&self.style));
        }
        let Some(last) = self.segments.last_mut() else { return true };
        last.pause_after += seconds;
        Segment::PAUSES.contains(&last.pause_after)
    }

    /// Puts marks that no text follows at the end of the last segment.
    fn place_marks(&mut self) {
        if self.marks.is_empty() {
            return;
        }
        if self.segments.is_empty() {
            self.segments.push(Segment::new(&self.style));
        }
        if let Some(last) = self.segments.last_mut() {
            let at = last.text.text().len();
            last.marks.extend(self.marks.drain(..).map(|name| Mark { name, at }));
        }
    }

    fn warn(&mut self, warning: String) {
        if self.warnings.len() < MAX_WARNINGS && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    fn finish(mut self) -> Script {
        self.place_marks();
        self.segments.retain(|segment| {
            !segment.text.text().is_empty() || segment.pause_after > 0.0 || !segment.marks.is_empty()
        });
        Script { segments: self.segments, warnings: self.warnings }
    }
}

/// Marks that belong to the word before them.
fn ends_word(c: char) -> bool {
    ".,;:!?…)\"”»。、，；：！？）」』".contains(c)
}

/// The error of markup at a byte of the input.
fn malformed(input: &str, at: usize, problem: impl Into<String>, fix: impl Into<String>) -> TextError {
    let before = &input[..at];
    let line = 1 + before.matches('\n').count();
    let column = 1 + before.rsplit('\n').next().unwrap_or_default().chars().count();
    TextError::Markup { line, column, problem: problem.into(), fix: fix.into() }
}

/// Seconds of a duration: `1.5s`, `500ms`.
fn seconds(text: &str) -> Option<f32> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s')?, 1.0),
    };
    decimal(number).map(|number| number * unit).filter(|seconds| Segment::PAUSES.contains(seconds))
}

/// A number in decimal notation, with an optional sign.
fn decimal(text: &str) -> Option<f32> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit() || b"+-.".contains(&b));
    text.parse().ok().filter(|_| is_plain)
}
