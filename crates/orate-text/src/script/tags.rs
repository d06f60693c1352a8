//! Plain tags: `[pause:1.5s]`, `[voice:NAME]`, `[rate:1.1]`, `[lang:de]`.

use super::{RATES, Script, Writer, decimal, malformed, seconds};
use crate::{TextError, languages};
use std::ops::Range;

/// Most bytes of a tag.
const MAX_TAG: usize = 200;

pub(super) fn read(input: &str) -> Result<Script, TextError> {
    let mut writer = Writer::new(input, true);
    let (mut start, mut at) = (0, 0);
    while let Some(open) = input[at..].find('[').map(|i| at + i) {
        at = open + 1;
        if let Some((name, value, end)) = tag(input, open)? {
            text(&mut writer, start..open);
            apply(&mut writer, open, name, value)?;
            (start, at) = (end, end);
        }
    }
    text(&mut writer, start..input.len());
    Ok(writer.finish())
}

/// The first tag that [`read`] would apply.
pub(super) fn first(input: &str) -> Option<&str> {
    input.match_indices('[').find_map(|(open, _)| {
        let (name, value, end) = tag(input, open).ok()??;
        let applies = apply(&mut Writer::new(input, true), open, name, value).is_ok();
        applies.then(|| &input[open..end])
    })
}

#[derive(Clone, Copy)]
enum Name {
    Pause,
    Voice,
    Rate,
    Lang,
}

/// The name and value of the tag at `open`, and where it ends. `None` if the bracket belongs to the text.
fn tag(input: &str, open: usize) -> Result<Option<(Name, &str, usize)>, TextError> {
    const NAMES: [(&str, Name); 4] =
        [("pause:", Name::Pause), ("voice:", Name::Voice), ("rate:", Name::Rate), ("lang:", Name::Lang)];
    let rest = &input.as_bytes()[open + 1..];
    let is_here =
        |word: &str| rest.get(..word.len()).is_some_and(|w| w.eq_ignore_ascii_case(word.as_bytes()));
    let Some((word, name)) = NAMES.into_iter().find(|(word, _)| is_here(word)) else { return Ok(None) };
    let value = open + 1 + word.len();
    let length =
        input.as_bytes()[value..].iter().take(MAX_TAG).position(|b| matches!(b, b']' | b'[' | b'\n'));
    match length.map(|length| value + length).filter(|&end| input.as_bytes()[end] == b']') {
        Some(end) => Ok(Some((name, input[value..end].trim(), end + 1))),
        None => {
            let problem = format!("the tag `[{word}` has no `]`");
            Err(malformed(input, open, problem, "close it on the same line, as in `[pause:1.5s]`"))
        }
    }
}

fn apply(writer: &mut Writer<'_>, at: usize, name: Name, value: &str) -> Result<(), TextError> {
    let input = writer.input;
    let error = |what: &str, fix: &str| {
        let value = orate_files::quoted(value);
        Err(malformed(input, at, format!("the {what} of the tag is {value}"), fix))
    };
    match name {
        Name::Pause => match seconds(value) {
            Some(0.0) => {}
            Some(seconds) if writer.pause(seconds) => {}
            Some(_) => {
                return error("pause", "pauses without text between them may be 10 s at most together");
            }
            None => return error("pause", "write 0 to 10 seconds, as in `[pause:1.5s]` or `[pause:500ms]`"),
        },
        Name::Voice if value.is_empty() => return error("voice", "name a voice, as in `[voice:F1]`"),
        Name::Voice => writer.style.voice = Some(value.to_owned()),
        Name::Rate => match decimal(value).filter(|rate| RATES.contains(rate)) {
            Some(rate) => writer.style.rate = rate,
            None => return error("rate", "write 0.25 to 4, as in `[rate:1.1]`"),
        },
        Name::Lang => match languages::code(value) {
            Some(code) => writer.style.language = Some(code),
            None => return error("language", "write a language, as in `[lang:de]` or `[lang:german]`"),
        },
    }
    Ok(())
}

/// Writes text; white space at its ends is dropped where a segment begins or ends.
fn text(writer: &mut Writer<'_>, mut range: Range<usize>) {
    range.start += writer.end_word(&writer.input[range.clone()], range.start);
    let whole = &writer.input[range.clone()];
    let start = range.end - whole.trim_start().len();
    let end = (range.start + whole.trim_end().len()).max(start);
    let space = |writer: &mut Writer<'_>, range: Range<usize>| {
        if !range.is_empty() {
            let is_border = writer.input[range.clone()].matches('\n').count() > 1;
            writer.space(range, is_border);
        }
    };
    space(writer, range.start..start);
    if start < end {
        writer.copy(&writer.input[start..end], start);
    }
    space(writer, end..range.end);
}
