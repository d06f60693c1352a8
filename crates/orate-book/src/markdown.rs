//! Markdown: what of it is read aloud.
//!
//! Left out are code blocks, HTML, pictures, notes and their marks, and the YAML header, which gives title,
//! author and language.

use crate::book::{Block, Book, Line, by_headings};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Reads a text.
pub(crate) fn read(text: &str) -> Book {
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_HEADING_ATTRIBUTES;
    let (header, text) = header_and_rest(text);
    let (mut line, mut heading, mut blocks) = (Line::default(), None, vec![]);
    // Open elements that are left out.
    let mut skipped = 0_usize;
    for event in Parser::new_ext(text, options) {
        match event {
            Event::Start(
                Tag::CodeBlock(_) | Tag::FootnoteDefinition(_) | Tag::Image { .. } | Tag::HtmlBlock,
            ) => skipped += 1,
            Event::End(
                TagEnd::CodeBlock | TagEnd::FootnoteDefinition | TagEnd::Image | TagEnd::HtmlBlock,
            ) => skipped = skipped.saturating_sub(1),
            _ if skipped > 0 => {}
            Event::Text(text) | Event::Code(text) => line.push(&text),
            Event::SoftBreak | Event::HardBreak => line.push(" "),
            Event::InlineHtml(tag) if is_line_break(&tag) => line.push(" "),
            Event::Rule => {
                blocks.extend(line.take_block(None));
                blocks.push(Block::Break);
            }
            Event::Start(Tag::TableCell) if line.len() > 0 => line.separate(","),
            Event::Start(Tag::Heading { level, .. }) => {
                blocks.extend(line.take_block(None));
                heading = Some(level as u8);
            }
            Event::Start(tag) if !is_inline(tag.to_end()) => blocks.extend(line.take_block(heading.take())),
            Event::End(tag) if !is_inline(tag) => blocks.extend(line.take_block(heading.take())),
            _ => {}
        }
    }
    blocks.extend(line.take_block(heading));
    let (first, chapters) = by_headings(blocks);
    let title = field(header, "title").or(first);
    let authors = field(header, "author").into_iter().collect();
    let language = field(header, "lang").or_else(|| field(header, "language"));
    Book { title, authors, language, chapters }
}

/// Divides a text into its YAML header, from a first line `---` to a line `---` or `...`, and the rest.
/// Anywhere else `---` is a rule or underlines a heading.
fn header_and_rest(text: &str) -> (&str, &str) {
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    let none = ("", text);
    let mut lines = text.split_inclusive('\n');
    let Some(first) = lines.next().filter(|line| line.trim_end() == "---") else { return none };
    let start = first.len();
    let mut end = start;
    for line in lines {
        match line.trim_end() {
            "---" | "..." => return (&text[start..end], &text[end + line.len()..]),
            // A rule before the first paragraph.
            first if end == start && !first.contains([':', '#']) => return none,
            _ => end += line.len(),
        }
    }
    none
}

/// Whether a tag is `<br>`, which ends a line.
fn is_line_break(tag: &str) -> bool {
    let name = tag.trim_start_matches('<').split(['>', '/', ' ']).next().unwrap_or_default();
    name.eq_ignore_ascii_case("br")
}

/// Whether a tag is inside a line.
fn is_inline(tag: TagEnd) -> bool {
    use TagEnd::{Emphasis, Link, Strikethrough, Strong, Subscript, Superscript, TableCell};
    matches!(tag, Emphasis | Link | Strikethrough | Strong | Subscript | Superscript | TableCell)
}

/// A text of a YAML header that stands in one line.
fn field(header: &str, name: &str) -> Option<String> {
    let value = header.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let value = value.trim();
    let unquoted = ['"', '\''].iter().find_map(|q| value.strip_prefix(*q)?.strip_suffix(*q));
    let mut line = Line::default();
    line.push(unquoted.unwrap_or(value));
    line.take().filter(|text| !text.starts_with(['[', '{', '|', '>']))
}
