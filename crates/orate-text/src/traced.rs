//! Texts that were made from another text, and where each part of them comes from.

use crate::pieces::{pack, pack_growing, place};
use std::fmt;
use std::ops::{Deref, Range};

/// A text, and which bytes of its source each of its bytes comes from.
///
/// A changed part comes from the whole of what it replaces: every byte of "three dollars" comes from `$3`. An
/// inserted part comes from the empty range where it was inserted. The order of the source is kept.
///
/// ```
/// let read = orate_text::english::read("It costs $3.50.");
/// assert_eq!(read.text(), "It costs three dollars and fifty cents.");
/// assert_eq!(read.source(15..22), 9..14); // "dollars" comes from `$3.50`
/// assert_eq!(read.source(3..8), 3..8);
/// assert_eq!(read.made_from(9..14), 9..38);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    text: String,
    runs: Vec<Run>,
}

/// A part of the text, up to where the next begins.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    /// Where it begins in the text.
    start: usize,
    source: Range<usize>,
    /// Whether it has as many bytes as its source, and they correspond one by one.
    is_copy: bool,
}

impl Deref for Traced {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<&str> for Traced {
    /// A text that is its own source.
    fn from(text: &str) -> Traced {
        let mut out = Traced::default();
        out.copy(text, 0);
        out
    }
}

impl Traced {
    /// Returns the characters of `text` for which `keep` returns true.
    #[must_use]
    pub fn filtered(text: &str, keep: impl Fn(char) -> bool) -> Traced {
        let mut out = Traced::default();
        for part in text.split_inclusive(|c: char| !keep(c)) {
            let kept = part.strip_suffix(|c: char| !keep(c)).unwrap_or(part);
            out.copy(kept, place(kept, text).start);
        }
        out
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text, without where it comes from.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    /// Returns the bytes of the source that some bytes of the text come from. Clamps a range past the end.
    #[must_use]
    pub fn source(&self, range: Range<usize>) -> Range<usize> {
        let end = range.end.min(self.text.len());
        let start = range.start.min(end);
        let last = if start == end { self.run_at(start) } else { self.run_at(end - 1) };
        let (Some(first), Some(last)) = (self.run_at(start), last) else { return 0..0 };
        let from = self.source_of(first, start).start;
        from..if start == end { from } else { self.source_of(last, end - 1).end }
    }

    /// The bytes of the source that the whole text comes from.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.source(0..self.text.len())
    }

    /// Returns the bytes of the text that come from some bytes of the source: from the first to the last that
    /// share a byte with them.
    #[must_use]
    pub fn made_from(&self, source: Range<usize>) -> Range<usize> {
        // Ends never fall, so that runs before the range are a prefix; an empty one may be anywhere.
        let first = self.runs.partition_point(|run| run.source.end <= source.start);
        let last = self.runs.partition_point(|run| run.source.start < source.end);
        let mut runs = (first..last.max(first)).filter(|&i| !self.runs[i].source.is_empty());
        let Some(first) = runs.next().filter(|_| !source.is_empty()) else {
            let at = self.runs.get(first).map_or(self.text.len(), |run| run.start);
            return at..at;
        };
        let last = runs.next_back().unwrap_or(first);
        let mut made = self.range(first).start..self.range(last).end;
        let (head, tail) = (&self.runs[first], &self.runs[last]);
        if head.is_copy {
            made.start += source.start.saturating_sub(head.source.start);
        }
        if tail.is_copy {
            made.end -= tail.source.end.saturating_sub(source.end);
        }
        made
    }

    /// Where this text comes from in the source of `earlier`, of whose text it was made.
    #[must_use]
    pub fn after(self, earlier: &Traced) -> Traced {
        let mut out = Traced { text: String::new(), runs: Vec::with_capacity(self.runs.len()) };
        for i in 0..self.runs.len() {
            let Run { source, is_copy, .. } = &self.runs[i];
            let part = &self.text[self.range(i)];
            if *is_copy {
                out.copy_part(earlier, part, source.clone());
            } else {
                out.make(part, earlier.source(source.clone()));
            }
        }
        out
    }

    /// Cuts the text as [`at_most`](crate::pieces::at_most) does.
    #[must_use]
    pub fn pieces(&self, max_chars: usize) -> Vec<Traced> {
        pack(&self.text, max_chars, true).iter().map(|parts| self.joined(parts)).collect()
    }

    /// Cuts the text as [`Traced::pieces`] does, but the first piece has less than `first_chars` characters,
    /// or one sentence, and each may have half as many again as the one before it: for a listener who waits
    /// for the first piece to be made, and hears it while the second is made.
    ///
    /// ```
    /// let text = orate_text::Traced::from("A first sentence. Another one. And one more. The end.");
    /// let pieces = text.growing_pieces(20, 300);
    /// assert_eq!(pieces[0].text(), "A first sentence.");
    /// assert_eq!(pieces[1].text(), "Another one. And one more.");
    /// assert_eq!(pieces[2].text(), "The end.");
    /// ```
    #[must_use]
    pub fn growing_pieces(&self, first_chars: usize, max_chars: usize) -> Vec<Traced> {
        let pieces = pack_growing(&self.text, first_chars, max_chars);
        pieces.iter().map(|parts| self.joined(parts)).collect()
    }

    /// Cuts the text as [`of_sentences`](crate::pieces::of_sentences) does.
    #[must_use]
    pub fn sentences(&self, max_chars: usize) -> Vec<Traced> {
        pack(&self.text, max_chars, false).iter().map(|parts| self.joined(parts)).collect()
    }

    /// Makes ASCII letters at some bytes of the text capitals.
    pub(crate) fn capitalized(self, letters: &[usize]) -> Traced {
        let mut bytes = self.text.into_bytes();
        letters.iter().for_each(|&at| bytes[at].make_ascii_uppercase());
        Traced { text: String::from_utf8(bytes).expect("ASCII letters take one byte"), ..self }
    }

    /// Slices of the text, joined by single spaces.
    pub(crate) fn joined(&self, parts: &[&str]) -> Traced {
        let mut out = Traced::default();
        let mut end = 0;
        for part in parts {
            let place = place(part, &self.text);
            if !out.text.is_empty() {
                out.make(" ", self.source(end..place.start));
            }
            out.copy_part(self, part, place.clone());
            end = place.end;
        }
        out
    }

    /// Appends a part whose bytes correspond to some bytes of the text of `earlier`.
    pub(crate) fn copy_part(&mut self, earlier: &Traced, part: &str, range: Range<usize>) {
        let first = earlier.runs.partition_point(|run| run.start <= range.start).saturating_sub(1);
        for i in first..earlier.runs.len() {
            let Range { start, end } = earlier.range(i);
            let (start, end) = (start.max(range.start), end.min(range.end));
            if start >= end {
                break;
            }
            let part = &part[start - range.start..end - range.start];
            let run = &earlier.runs[i];
            if run.is_copy {
                self.copy(part, run.source.start + start - run.start);
            } else {
                self.make(part, run.source.clone());
            }
        }
    }

    // ---- Lookup.

    /// The run of a byte of the text; the last one for its end.
    fn run_at(&self, at: usize) -> Option<usize> {
        self.runs.partition_point(|run| run.start <= at).checked_sub(1)
    }

    fn range(&self, run: usize) -> Range<usize> {
        let end = self.runs.get(run + 1).map_or(self.text.len(), |next| next.start);
        self.runs[run].start..end
    }

    /// Where one byte of a run comes from; the end of the source for the end of the text.
    fn source_of(&self, run: usize, at: usize) -> Range<usize> {
        let Run { start, source, is_copy } = &self.runs[run];
        if at == self.text.len() {
            return source.end..source.end;
        }
        if *is_copy { source.start + at - start..source.start + at - start + 1 } else { source.clone() }
    }
}

/// A text that is being made from another one.
pub(crate) trait Make {
    /// What was made so far.
    fn text(&self) -> &str;

    /// Appends a part whose bytes correspond to those of the source from `start` on.
    fn copy(&mut self, part: &str, start: usize);

    /// Appends a part made of some bytes of the source.
    fn make(&mut self, part: &str, source: Range<usize>);

    /// Shortens the text to `len` bytes.
    fn truncate(&mut self, len: usize);
}

/// Takes no memory for the sources.
impl Make for String {
    fn text(&self) -> &str {
        self
    }

    fn copy(&mut self, part: &str, _: usize) {
        self.push_str(part);
    }

    fn make(&mut self, part: &str, _: Range<usize>) {
        self.push_str(part);
    }

    fn truncate(&mut self, len: usize) {
        self.truncate(len);
    }
}

impl Make for Traced {
    fn text(&self) -> &str {
        &self.text
    }

    fn copy(&mut self, part: &str, start: usize) {
        if part.is_empty() {
            return;
        }
        let source = start..start + part.len();
        match self.runs.last_mut() {
            Some(last) if last.is_copy && last.source.end == start => last.source.end = source.end,
            _ => self.runs.push(Run { start: self.text.len(), source, is_copy: true }),
        }
        self.text.push_str(part);
    }

    fn make(&mut self, part: &str, source: Range<usize>) {
        // What is inserted into a made part belongs to it.
        let last = self.runs.last().map(|last| &last.source).filter(|last| last.end > source.end);
        let source = last.cloned().unwrap_or(source);
        let same = self.runs.last().is_some_and(|last| !last.is_copy && last.source == source);
        if !part.is_empty() && !same {
            self.runs.push(Run { start: self.text.len(), source, is_copy: false });
        }
        self.text.push_str(part);
    }

    fn truncate(&mut self, len: usize) {
        while self.runs.pop_if(|last| last.start >= len).is_some() {}
        if let Some(last) = self.runs.last_mut().filter(|last| last.is_copy) {
            last.source.end = last.source.end.min(last.source.start + len - last.start);
        }
        self.text.truncate(len);
    }
}
