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
        | Options::ENABLE_HEADING_ATTRIBUTES
        | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS;
    let (mut line, mut heading, mut blocks) = (Line::default(), None, vec![]);
    // Open elements that are left out.
    let mut skipped = 0_usize;
    let (mut header, mut in_header) = (String::new(), false);
    for event in Parser::new_ext(text, options) {
        match event {
            Event::Start(Tag::MetadataBlock(_)) => in_header = true,
            Event::End(TagEnd::MetadataBlock(_)) => in_header = false,
            Event::Text(text) if in_header => header.push_str(&text),
            Event::Start(
                Tag::CodeBlock(_) | Tag::FootnoteDefinition(_) | Tag::Image { .. } | Tag::HtmlBlock,
            ) => skipped += 1,
            Event::End(
                TagEnd::CodeBlock | TagEnd::FootnoteDefinition | TagEnd::Image | TagEnd::HtmlBlock,
            ) => skipped = skipped.saturating_sub(1),
            _ if skipped > 0 => {}
            Event::Text(text) | Event::Code(text) => line.push(&text),
            Event::SoftBreak | Event::HardBreak => line.push(" "),
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
    let title = field(&header, "title").or(first);
    let authors = field(&header, "author").into_iter().collect();
    let language = field(&header, "lang").or_else(|| field(&header, "language"));
    Book { title, authors, language, chapters }
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
