//! SSML: a subset of Speech Synthesis Markup Language 1.1, <https://www.w3.org/TR/speech-synthesis11/>.

use super::{RATES, Script, Segment, Style, Writer, decimal, malformed, seconds};
use crate::english::say_as;
use crate::{TextError, languages};
use orate_files::quoted;
use roxmltree::{Document, Error, Node, NodeId, NodeType, ParsingOptions};
use std::ops::Range;

/// Most bytes of a document.
const MAX_BYTES: usize = 64 << 10;
/// Most nodes of a document: elements, texts, comments.
const MAX_NODES: u32 = 4096;
/// Most bytes of the name of a voice or a mark.
const MAX_NAME: usize = 256;
const NAME: &str = "write a name of at most 256 bytes";
/// Most elements around a text.
const MAX_DEPTH: usize = 16;

const XML: &str = "http://www.w3.org/XML/1998/namespace";

pub(super) fn read(input: &str, language: Option<&str>) -> Result<Script, TextError> {
    if input.len() > MAX_BYTES {
        let problem = format!("the SSML document has {} bytes", input.len());
        return Err(malformed(input, 0, problem, format!("send at most {MAX_BYTES} bytes at a time")));
    }
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    let document = Document::parse_with_options(input, options).map_err(|e| not_xml(input, &e))?;
    let root = document.root_element();
    if root.tag_name().name() != "speak" {
        let problem = format!("the root element is {}", quoted(root.tag_name().name()));
        return Err(malformed(input, root.range().start, problem, "put the text into `<speak>…</speak>`"));
    }
    let mut reader = Reader {
        writer: Writer::new(input, false),
        language,
        namespace: root.tag_name().namespace(),
        outer: vec![],
        skipped: None,
        replaced: None,
    };
    // A loop, so that depth takes no stack.
    let mut node = root;
    loop {
        reader.open(node)?;
        if let Some(child) = node.first_child() {
            node = child;
            continue;
        }
        loop {
            reader.close(node);
            match (node.next_sibling(), node.parent()) {
                _ if node == root => return Ok(reader.writer.finish()),
                (Some(next), _) => {
                    node = next;
                    break;
                }
                (None, Some(parent)) => node = parent,
                (None, None) => return Ok(reader.writer.finish()),
            }
        }
    }
}

struct Reader<'t> {
    writer: Writer<'t>,
    /// Language of the request.
    language: Option<&'t str>,
    /// Namespace of SSML in this document.
    namespace: Option<&'t str>,
    /// Styles outside of the open elements.
    outer: Vec<Style>,
    /// The open element whose text is not spoken.
    skipped: Option<NodeId>,
    /// The open element whose text is spoken differently.
    replaced: Option<(NodeId, Instead)>,
}

/// What is spoken in place of the text of an element.
enum Instead {
    Alias(String),
    SayAs { kind: String, format: String },
}

impl Reader<'_> {
    fn open(&mut self, node: Node<'_, '_>) -> Result<(), TextError> {
        if self.skipped.is_some() {
            return Ok(());
        }
        match node.node_type() {
            NodeType::Text => {
                self.text(node);
                Ok(())
            }
            NodeType::Element if self.outer.len() >= MAX_DEPTH => {
                let problem = format!("elements are nested deeper than {MAX_DEPTH}");
                Err(self.error(node.range().start, problem, "use fewer elements inside each other"))
            }
            NodeType::Element => {
                self.outer.push(self.writer.style.clone());
                self.element(node)
            }
            NodeType::Root | NodeType::Comment | NodeType::PI => Ok(()),
        }
    }

    fn close(&mut self, node: Node<'_, '_>) {
        if self.skipped == Some(node.id()) {
            self.skipped = None;
        }
        if self.skipped.is_some() || !node.is_element() {
            return;
        }
        if self.replaced.as_ref().is_some_and(|(id, _)| *id == node.id())
            && let Some((_, instead)) = self.replaced.take()
        {
            self.replace(&instead, node.range());
        }
        if let Some(style) = self.outer.pop() {
            self.writer.style = style;
        }
        if self.is_paragraph(node) {
            self.writer.space(node.range().end..node.range().end, true);
        }
    }

    fn is_paragraph(&self, node: Node<'_, '_>) -> bool {
        self.replaced.is_none()
            && node.tag_name().namespace() == self.namespace
            && matches!(node.tag_name().name(), "p" | "s")
    }

    fn element(&mut self, node: Node<'_, '_>) -> Result<(), TextError> {
        let start = node.range().start;
        let is_known = node.tag_name().namespace() == self.namespace;
        let name = if is_known { node.tag_name().name() } else { "" };
        if self.replaced.is_some() {
            self.writer.warn(format!("{} inside `sub` or `say-as` is ignored", name_of(node)));
            return Ok(());
        }
        if let Some(code) = node.attribute((XML, "lang")) {
            self.writer.style.language = match languages::code(code) {
                Some(code) => Some(code),
                None if code.trim().is_empty() => None,
                None => {
                    return Err(self.invalid(node, (XML, "lang"), "write a code such as `en` or `en-US`"));
                }
            };
        }
        match name {
            "speak" | "lang" | "w" | "token" => {}
            "p" | "s" => self.writer.space(start..start, true),
            "break" => self.pause(node)?,
            "prosody" => self.prosody(node)?,
            "voice" => match node.attribute("name").map(str::trim) {
                Some(name) if name.is_empty() || name.len() > MAX_NAME => {
                    return Err(self.invalid(node, "name", NAME));
                }
                Some(name) => self.writer.style.voice = Some(name.to_owned()),
                None => self.writer.warn("`voice` without `name` is ignored".to_owned()),
            },
            "mark" => match self.required(node, "name")? {
                name if name.len() > MAX_NAME => return Err(self.invalid(node, "name", NAME)),
                name => self.writer.marks.push(name),
            },
            "sub" => self.begin(node, Instead::Alias(self.required(node, "alias")?)),
            "say-as" => {
                let kind = self.required(node, "interpret-as")?;
                let format = node.attribute("format").unwrap_or_default().to_owned();
                self.begin(node, Instead::SayAs { kind, format });
            }
            "desc" | "meta" | "metadata" | "lexicon" => self.skipped = Some(node.id()),
            _ => self.writer.warn(format!("{} is not supported; text in it is spoken", name_of(node))),
        }
        Ok(())
    }

    fn begin(&mut self, node: Node<'_, '_>, instead: Instead) {
        self.writer.begin_replaced();
        self.replaced = Some((node.id(), instead));
    }

    fn replace(&mut self, instead: &Instead, source: Range<usize>) {
        let written = self.writer.to_replace().to_owned();
        let words = match instead {
            Instead::Alias(alias) => alias.split_whitespace().collect::<Vec<_>>().join(" "),
            Instead::SayAs { kind, format } => self.say_as(&written, kind, format).unwrap_or(written),
        };
        self.writer.replace(&words, source);
    }

    fn say_as(&mut self, text: &str, kind: &str, format: &str) -> Option<String> {
        let language = self.writer.style.language.as_deref().or(self.language);
        let is_english = language
            .is_none_or(|name| languages::is_auto(name) || languages::code(name).as_deref() == Some("en"));
        let said = match kind {
            "characters" | "spell-out" | "cardinal" | "ordinal" | "date" if !is_english => {
                self.writer.warn("`say-as` is supported for English only; its text is spoken".to_owned());
                return None;
            }
            "characters" | "spell-out" => say_as::characters(text),
            "cardinal" => say_as::number(text),
            "ordinal" => say_as::rank(text),
            "date" => say_as::date(text, format),
            other => {
                let kind = quoted(other);
                self.writer.warn(format!("`say-as` as {kind} is not supported; its text is spoken"));
                return None;
            }
        };
        if said.is_none() {
            self.writer.warn(format!(
                "{} cannot be read as {}; it is spoken as text",
                quoted(text),
                quoted(kind)
            ));
        }
        said
    }

    fn pause(&mut self, node: Node<'_, '_>) -> Result<(), TextError> {
        const TIME: &str = "write 0s to 10s, as in `1.5s` or `500ms`";
        let pause = match (node.attribute("time"), node.attribute("strength")) {
            (Some(time), _) => seconds(time.trim()).ok_or_else(|| self.invalid(node, "time", TIME))?,
            (None, strength) => match strength.map_or("medium", str::trim) {
                "none" | "x-weak" => 0.0,
                "weak" => 0.25,
                "medium" => 0.5,
                "strong" => 1.0,
                "x-strong" => 1.5,
                _ => {
                    let fix = "write `none`, `x-weak`, `weak`, `medium`, `strong` or `x-strong`";
                    return Err(self.invalid(node, "strength", fix));
                }
            },
        };
        if pause > 0.0 && !self.writer.pause(pause) {
            let problem = "breaks without text between them add up to more than 10 s";
            return Err(self.error(
                node.range().start,
                problem,
                "shorten them, or speak the parts one by one",
            ));
        }
        Ok(())
    }

    fn prosody(&mut self, node: Node<'_, '_>) -> Result<(), TextError> {
        let style = &self.writer.style;
        let rate = match node.attribute("rate").map(|rate| rate_of(rate.trim(), style.rate)) {
            None => style.rate,
            Some(Some(rate)) if RATES.contains(&rate) => rate,
            Some(_) => {
                return Err(self.invalid(node, "rate", "write 25% to 400%, 0.25 to 4, or x-slow to x-fast"));
            }
        };
        let gain_db = match node.attribute("volume").map(|volume| gain_of(volume.trim(), style.gain_db)) {
            None => style.gain_db,
            Some(Some(gain)) if Segment::GAINS.contains(&gain) => gain,
            Some(_) => return Err(self.invalid(node, "volume", "write -96dB to +24dB, or silent to x-loud")),
        };
        (self.writer.style.rate, self.writer.style.gain_db) = (rate, gain_db);
        for name in ["pitch", "contour", "range", "duration"] {
            if node.attribute(name).is_some() {
                self.writer.warn(format!("`{name}` of `prosody` is not supported and ignored"));
            }
        }
        Ok(())
    }

    fn text(&mut self, node: Node<'_, '_>) {
        let text = node.text().unwrap_or_default();
        let range = raw_range(self.writer.input, node);
        let mut characters = decoded(self.writer.input, range.clone());
        // Should the parser read the text in another way, its reading counts.
        if !characters.iter().map(|(c, _)| *c).eq(text.chars()) {
            characters = text.chars().map(|c| (c, range.clone())).collect();
        }
        for (c, source) in characters {
            let mut bytes = [0; 4];
            let part = c.encode_utf8(&mut bytes);
            if matches!(c, ' ' | '\t' | '\n' | '\r') {
                self.writer.space(source, false);
            } else if self.writer.input[source.clone()] == *part {
                if self.writer.end_word(part, source.start) == 0 {
                    self.writer.copy(part, source.start);
                }
            } else {
                self.writer.make(part, source);
            }
        }
    }

    fn required(&self, node: Node<'_, '_>, attribute: &str) -> Result<String, TextError> {
        let value = node.attribute(attribute).map(str::trim).filter(|value| !value.is_empty());
        let problem = || format!("{} has no `{attribute}`", name_of(node));
        value.map(str::to_owned).ok_or_else(|| self.error(node.range().start, problem(), "add it"))
    }

    /// The error of an attribute's value.
    fn invalid<'n, 'm>(
        &self,
        node: Node<'_, '_>,
        attribute: impl Into<roxmltree::ExpandedName<'n, 'm>> + Copy,
        fix: &str,
    ) -> TextError {
        let found = node.attribute_node(attribute);
        let (at, value) = found.map_or((node.range().start, ""), |a| (a.range().start, a.value()));
        let name = attribute.into();
        let problem = format!("`{}` of {} is {}", name.name(), name_of(node), quoted(value));
        self.error(at, problem, fix)
    }

    fn error(&self, at: usize, problem: impl Into<String>, fix: &str) -> TextError {
        malformed(self.writer.input, at, problem, fix)
    }
}

/// The name of an element, as in messages.
fn name_of(node: Node<'_, '_>) -> String {
    quoted(node.tag_name().name()).to_string()
}

fn not_xml(input: &str, error: &Error) -> TextError {
    let line_and_column = error.pos();
    let (problem, fix) = match error {
        Error::DtdDetected => {
            let at = input.find("<!DOCTYPE").unwrap_or(0);
            let problem = "the SSML document has a document type";
            return malformed(input, at, problem, "remove `<!DOCTYPE …>`; entities are not expanded");
        }
        Error::NodesLimitReached => {
            let problem = format!("the SSML document has more than {MAX_NODES} elements and texts");
            return malformed(input, 0, problem, "send it in parts");
        }
        Error::UnknownEntityReference(name, _) => (
            format!("the entity {} is unknown", quoted(name)),
            "XML has `&amp;`, `&lt;`, `&gt;`, `&quot;`, `&apos;` and references such as `&#233;`",
        ),
        Error::MalformedEntityReference(_) => {
            ("`&` begins no entity".to_owned(), "write `&amp;` for the sign")
        }
        error => {
            let message = error.to_string();
            let is_place = |place: &str| place.bytes().all(|b| b.is_ascii_digit() || b == b':');
            let message = match message.rsplit_once(" at ") {
                Some((message, place)) if is_place(place) => message,
                _ => &message,
            };
            (format!("not well-formed XML: {message}"), "check that the text is one `<speak>` element")
        }
    };
    TextError::Markup {
        line: line_and_column.row as usize,
        column: line_and_column.col as usize,
        problem,
        fix: fix.to_owned(),
    }
}

/// Where a text stands in the document. The parser's range ends early if the text has parts in CDATA.
fn raw_range(input: &str, node: Node<'_, '_>) -> Range<usize> {
    let start = node.range().start;
    let end = match (node.next_sibling(), node.parent()) {
        (Some(next), _) => next.range().start,
        (None, Some(parent)) => input[..parent.range().end].rfind("</").unwrap_or(start),
        (None, None) => node.range().end,
    };
    start..end.max(start)
}

/// The characters of a text node and where each stands: character references, line ends and CDATA resolved.
fn decoded(input: &str, range: Range<usize>) -> Vec<(char, Range<usize>)> {
    let mut out = Vec::with_capacity(range.len());
    let mut at = range.start;
    let mut in_cdata = false;
    while at < range.end {
        let rest = &input[at..range.end];
        if !in_cdata && rest.starts_with("<![CDATA[") {
            (in_cdata, at) = (true, at + "<![CDATA[".len());
        } else if in_cdata && rest.starts_with("]]>") {
            (in_cdata, at) = (false, at + "]]>".len());
        } else if let Some((c, len)) = Some(rest).filter(|_| !in_cdata).and_then(reference) {
            out.push((c, at..at + len));
            at += len;
        } else if let Some(c) = rest.chars().next() {
            let len = if rest.starts_with("\r\n") { 2 } else { c.len_utf8() };
            out.push((if c == '\r' { '\n' } else { c }, at..at + len));
            at += len;
        }
    }
    out
}

/// The character that a reference at the start of a text stands for, and the bytes of the reference.
fn reference(text: &str) -> Option<(char, usize)> {
    const MAX_REFERENCE: usize = 64;
    let name = text.strip_prefix('&')?;
    let end = name.bytes().take(MAX_REFERENCE).position(|b| b == b';')?;
    let c = match &name[..end] {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        name => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)?
        }
    };
    Some((c, end + 2))
}

/// The rate that an attribute means, inside text of rate `outer`.
fn rate_of(text: &str, outer: f32) -> Option<f32> {
    Some(match text {
        "x-slow" => 0.5,
        "slow" => 0.75,
        "medium" | "default" => 1.0,
        "fast" => 1.25,
        "x-fast" => 1.5,
        _ => match text.strip_suffix('%') {
            Some(percent) if percent.starts_with(['+', '-']) => outer * (1.0 + decimal(percent)? / 100.0),
            Some(percent) => decimal(percent)? / 100.0,
            None => decimal(text)?,
        },
    })
}

/// The gain that an attribute means, inside text of gain `outer`. Labels are 6 dB apart.
fn gain_of(text: &str, outer: f32) -> Option<f32> {
    Some(match text {
        "silent" => *Segment::GAINS.start(),
        "x-soft" => -12.0,
        "soft" => -6.0,
        "medium" | "default" => 0.0,
        "loud" => 6.0,
        "x-loud" => 12.0,
        _ => outer + decimal(text.strip_suffix("dB").or_else(|| text.strip_suffix("db"))?.trim())?,
    })
}
