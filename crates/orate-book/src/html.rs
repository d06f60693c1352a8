//! HTML and XHTML: what of a page is read aloud.
//!
//! A page is read token by token, without a tree, so time and memory are linear in its size however deep its
//! elements are nested. Left out are scripts, styles, navigation, pictures, code blocks, formulas, forms,
//! hidden parts, page numbers, marks of notes and the notes themselves.

use crate::book::{Block, Book, Line, by_headings};
use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{
    BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts, states,
};
use std::cell::RefCell;
use std::mem::take;

/// Whether `<title/>` has content, as in HTML, or none, as in XML.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Syntax {
    #[default]
    Html,
    Xhtml,
}

impl Syntax {
    /// Syntax of a page without a media type.
    pub fn of(text: &str) -> Syntax {
        let start = text.trim_start().get(..400).unwrap_or(text);
        let is_xml = start.starts_with("<?xml") || start.contains("http://www.w3.org/1999/xhtml");
        if is_xml { Syntax::Xhtml } else { Syntax::Html }
    }
}

/// A page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub title: Option<String>,
    pub author: Option<String>,
    pub language: Option<String>,
    /// What is read aloud, each with the ids of elements that begin before it.
    pub blocks: Vec<(Vec<String>, Block)>,
}

impl Page {
    pub fn into_book(self) -> Book {
        let (heading, chapters) = by_headings(self.blocks.into_iter().map(|(_, block)| block).collect());
        let authors = self.author.into_iter().collect();
        Book { title: self.title.or(heading), authors, language: self.language, chapters }
    }
}

/// Reads a page.
pub(crate) fn read(text: &str, syntax: Syntax) -> Page {
    let state = State { syntax, ..State::default() };
    let tokenizer = Tokenizer::new(Reader(RefCell::new(state)), TokenizerOpts::default());
    let input = BufferQueue::default();
    // A tendril holds up to 4 GiB; the text is shorter.
    input.push_back(StrTendril::from_slice(text));
    // Returns at each end of a script.
    while !input.is_empty() {
        let _ = tokenizer.feed(&input);
    }
    tokenizer.end();
    let mut state = tokenizer.sink.0.into_inner();
    state.end_block();
    state.page
}

/// Elements whose content is not read aloud.
const SKIPPED: [&str; 24] = [
    "applet", "area", "audio", "button", "canvas", "datalist", "dialog", "head", "iframe", "map", "math",
    "nav", "noscript", "object", "pre", "rp", "rt", "script", "select", "style", "svg", "template",
    "textarea", "video",
];

/// Elements without content and end tag.
const VOID: [&str; 13] =
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"];

/// Elements inside a line. All others begin and end one.
const INLINE: [&str; 62] = [
    "a", "abbr", "acronym", "applet", "area", "audio", "b", "bdi", "bdo", "big", "button", "canvas", "cite",
    "code", "data", "datalist", "del", "dfn", "em", "embed", "font", "i", "iframe", "img", "input", "ins",
    "kbd", "label", "link", "map", "mark", "math", "meta", "meter", "noscript", "object", "output", "param",
    "q", "rb", "rp", "rt", "rtc", "ruby", "s", "samp", "script", "select", "small", "span", "strong",
    "style", "sub", "sup", "svg", "template", "textarea", "time", "tt", "u", "var", "video",
];

/// Elements that the next one of the same name ends.
const OPTIONAL_END: [&str; 9] = ["dd", "dt", "li", "option", "p", "rp", "rt", "td", "th"];

/// Elements that end a paragraph whose end tag is left out.
const END_PARAGRAPH: [&str; 31] = [
    "address",
    "article",
    "aside",
    "blockquote",
    "center",
    "details",
    "dialog",
    "dir",
    "div",
    "dl",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "hr",
    "main",
    "menu",
    "nav",
    "ol",
    "pre",
    "section",
    "table",
    "ul",
];

/// Elements that may stand in `head`. Any other one ends it.
const OF_HEAD: [&str; 12] = [
    "base", "basefont", "bgsound", "head", "link", "meta", "noframes", "noscript", "script", "style",
    "template", "title",
];

/// Kinds of content, by `epub:type` and `role`, that is not read aloud.
const SKIPPED_KINDS: [&str; 17] = [
    "doc-endnote",
    "doc-endnotes",
    "doc-footnote",
    "doc-noteref",
    "doc-pagebreak",
    "doc-pagelist",
    "doc-toc",
    "endnote",
    "endnotes",
    "footnote",
    "footnotes",
    "noteref",
    "page-list",
    "pagebreak",
    "rearnote",
    "rearnotes",
    "toc",
];

/// Units and variables that a raised number belongs to.
const SQUARED: [&str; 10] = ["cm", "dm", "ft", "km", "m", "mm", "n", "s", "x", "y"];

struct Reader(RefCell<State>);

#[derive(Default)]
struct State {
    syntax: Syntax,
    page: Page,
    /// Text of the block that is being read.
    line: Line,
    /// Level of the heading that is being read.
    heading: Option<u8>,
    /// Ids since the last block.
    ids: Vec<String>,
    /// Element that is left out.
    skipped: Option<Skipped>,
    /// Whether the text of `title` is being read, which is in `head`.
    in_title: bool,
    title: Line,
    /// Lengths of the line where a link to a place of the book, and a raised text, began.
    link: Option<usize>,
    raised: Option<usize>,
}

/// An open element whose content is left out.
struct Skipped {
    name: String,
    /// How many elements are open that have to end first: of the same name, or in an element whose end tag
    /// may be left out, of those that need one.
    inner: usize,
}

impl TokenSink for Reader {
    type Handle = ();

    fn process_token(&self, token: Token, _: u64) -> TokenSinkResult<()> {
        let mut state = self.0.borrow_mut();
        match token {
            Token::CharacterTokens(text) => state.text(&text),
            Token::TagToken(tag) => {
                // XHTML may give names a prefix.
                let name = tag.name.rsplit(':').next().unwrap_or_default().to_ascii_lowercase();
                match tag.kind {
                    TagKind::StartTag => return state.start(&name, &tag),
                    TagKind::EndTag => state.end(&name),
                }
            }
            _ => {}
        }
        TokenSinkResult::Continue
    }

    /// Whether CDATA sections are text.
    fn adjusted_current_node_present_but_not_in_html_namespace(&self) -> bool {
        self.0.borrow().syntax == Syntax::Xhtml
    }
}

impl State {
    fn text(&mut self, text: &str) {
        if self.in_title {
            self.title.push(text);
        } else if self.skipped.is_none() {
            self.line.push(text);
        }
    }

    fn start(&mut self, name: &str, tag: &Tag) -> TokenSinkResult<()> {
        let is_empty = VOID.contains(&name) || (tag.self_closing && self.syntax == Syntax::Xhtml);
        let raw = match name {
            _ if is_empty => None,
            "title" => Some(states::Rcdata),
            "textarea" => Some(states::Rcdata),
            "script" => Some(states::ScriptData),
            "style" | "xmp" | "iframe" | "noembed" | "noframes" => Some(states::Rawtext),
            _ => None,
        };
        self.begin(name, tag, is_empty);
        match raw {
            Some(kind) => TokenSinkResult::RawData(kind),
            None if name == "plaintext" => TokenSinkResult::Plaintext,
            None => TokenSinkResult::Continue,
        }
    }

    fn begin(&mut self, name: &str, tag: &Tag, is_empty: bool) {
        let attribute = |wanted: &str| {
            let found = tag.attrs.iter().find(|a| (*a.name.local).eq_ignore_ascii_case(wanted));
            found.map(|a| &*a.value)
        };
        match name {
            "html" => {
                let language = attribute("lang").or(attribute("xml:lang"));
                self.page.language = self.page.language.take().or(language.map(str::to_owned));
            }
            "meta" if attribute("name").is_some_and(|name| name.eq_ignore_ascii_case("author")) => {
                let mut line = Line::default();
                line.push(attribute("content").unwrap_or_default());
                self.page.author = line.take();
            }
            // Pictures have titles, too.
            "title" if !is_empty && self.skipped.as_ref().is_none_or(|skipped| skipped.name == "head") => {
                self.in_title = self.page.title.is_none();
                if self.skipped.is_none() {
                    self.skip("title");
                }
                return;
            }
            "body" => self.skipped = None,
            _ => {}
        }
        if let Some(skipped) = &mut self.skipped {
            let is_html = self.syntax == Syntax::Html;
            let has_optional_end = is_html && OPTIONAL_END.contains(&&*skipped.name);
            let is_ended = match has_optional_end {
                true => skipped.inner == 0 && is_ended_by(&skipped.name, name),
                false => is_html && skipped.name == "head" && !OF_HEAD.contains(&name),
            };
            if !is_ended {
                let counts = if has_optional_end { needs_end(name) } else { skipped.name == name };
                skipped.inner += usize::from(counts && !is_empty);
                return;
            }
            self.skipped = None;
        }
        let kinds = [attribute("epub:type"), attribute("role")].into_iter().flatten();
        let is_kind = kinds.flat_map(str::split_whitespace).any(|kind| SKIPPED_KINDS.contains(&kind));
        let is_hidden = attribute("hidden").is_some_and(|value| value != "until-found")
            || attribute("aria-hidden").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        if let Some(id) = attribute("id").or(attribute("name").filter(|_| name == "a")) {
            self.end_line_before(name);
            self.ids.push(id.to_owned());
        }
        if SKIPPED.contains(&name) || is_kind || is_hidden {
            if !INLINE.contains(&name) {
                self.end_line_before(name);
            }
            if !is_empty {
                self.skip(name);
            }
            return;
        }
        match name {
            "br" | "wbr" if self.heading.is_some() => self.line.separate("."),
            "br" => self.line.push(" "),
            "wbr" => {}
            "hr" => {
                self.end_block();
                self.add(Block::Break);
            }
            "td" | "th" if self.line.len() > 0 => self.line.separate(","),
            "td" | "th" => {}
            "a" if !is_empty => {
                let leads_inside = attribute("href").is_some_and(|href| href.contains('#'));
                self.link = leads_inside.then(|| self.line.len());
            }
            "sup" if !is_empty => self.raised = Some(self.line.len()),
            name if INLINE.contains(&name) => {}
            name => {
                self.end_line_before(name);
                if let Some(level) = heading(name).filter(|_| !is_empty) {
                    self.end_block();
                    self.heading = Some(level);
                }
            }
        }
    }

    fn end(&mut self, name: &str) {
        if name == "title" {
            if take(&mut self.in_title) {
                self.page.title = self.title.take();
            }
            if self.skipped.as_ref().is_some_and(|skipped| skipped.name == "title") {
                self.skipped = None;
            }
            return;
        }
        if let Some(skipped) = &mut self.skipped {
            let has_optional_end = self.syntax == Syntax::Html && OPTIONAL_END.contains(&&*skipped.name);
            let is_same = skipped.name == name;
            let counts = if has_optional_end { needs_end(name) } else { is_same };
            match skipped.inner {
                // The end of the parent ends the element, too.
                0 if is_same || counts => self.skipped = None,
                _ if counts => skipped.inner -= 1,
                _ => {}
            }
            if self.skipped.is_some() || is_same {
                return;
            }
        }
        match name {
            "a" => {
                if let Some(start) = self.link.take()
                    && is_mark(self.line.since(start))
                    && !self.is_cross_reference(start)
                {
                    self.line.truncate(start);
                }
            }
            "sup" => {
                let Some(start) = self.raised.take() else { return };
                let is_exponent = self.is_exponent(start);
                if is_exponent && let Some(power) = power(self.line.since(start)) {
                    self.line.truncate(start);
                    self.line.push(&power);
                } else if !is_exponent && is_mark(self.line.since(start)) {
                    self.line.truncate(start);
                }
            }
            "td" | "th" => {}
            name if heading(name).is_some() => self.end_block(),
            name if INLINE.contains(&name) => {}
            name => self.end_line_before(name),
        }
    }

    fn skip(&mut self, name: &str) {
        self.skipped = Some(Skipped { name: name.to_owned(), inner: 0 });
    }

    /// Whether a link to a number belongs to the sentence, as in "see chapters 3, 4 and 5": it is a word of
    /// its own, without brackets, that follows a word or a number and a comma. Marks of notes follow their
    /// word at once, or a sentence.
    fn is_cross_reference(&self, start: usize) -> bool {
        let Some((before, text)) = self.line.since(0).split_at_checked(start) else { return false };
        let is_bare = text.trim().chars().all(char::is_alphanumeric) && !text.trim().is_empty();
        let word = before.trim_end();
        let follows_number = |word: &str| word.ends_with(|c: char| c.is_ascii_digit());
        let is_listed = word.strip_suffix([',', '-', '\u{2013}']).is_some_and(follows_number);
        let is_apart = word.len() < before.len() && word.ends_with(char::is_alphanumeric);
        is_bare && (is_apart || is_listed)
    }

    /// Whether a raised number follows a number or a unit, as in 10² and m². After a year it marks a note.
    fn is_exponent(&self, start: usize) -> bool {
        let before = &self.line.since(0)[..start.min(self.line.len())];
        let word = before.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let is_year = word.len() == 4 && word.parse().is_ok_and(|year: u16| (1000..2100).contains(&year));
        word.ends_with(|c: char| c.is_ascii_digit()) && !is_year || SQUARED.contains(&word)
    }

    /// Ends the line at the edge of an element. Inside a heading it is a pause.
    fn end_line_before(&mut self, name: &str) {
        if INLINE.contains(&name) {
            return;
        }
        match self.heading {
            Some(_) if heading(name).is_none() => self.line.separate("."),
            _ => self.end_block(),
        }
    }

    fn end_block(&mut self) {
        let block = self.line.take_block(self.heading.take());
        (self.link, self.raised) = (None, None);
        if let Some(block) = block {
            self.add(block);
        }
    }

    fn add(&mut self, block: Block) {
        self.page.blocks.push((take(&mut self.ids), block));
    }
}

/// Whether the start of an element ends an open one whose end tag was left out.
fn is_ended_by(open: &str, name: &str) -> bool {
    match open {
        "dd" | "dt" => ["dd", "dt"].contains(&name),
        "p" => name == "p" || END_PARAGRAPH.contains(&name),
        "rp" | "rt" => ["rp", "rt"].contains(&name),
        "td" | "th" => ["td", "th", "tr", "tbody", "tfoot", "thead"].contains(&name),
        open => open == name,
    }
}

/// Whether an element that holds others has to have an end tag.
fn needs_end(name: &str) -> bool {
    let is_inline = INLINE.contains(&name) && name != "ruby";
    !is_inline && !OPTIONAL_END.contains(&name) && !VOID.contains(&name)
}

/// A raised number in signs of its own, so that 10 with a raised 6 is not 106.
fn power(text: &str) -> Option<String> {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let sign = |c| match c {
        '-' | '\u{2212}' | '\u{2013}' => Some('⁻'),
        '+' => Some('⁺'),
        c => Some(DIGITS[c.to_digit(10)? as usize]),
    };
    let text = text.trim();
    text.ends_with(|c: char| c.is_ascii_digit()).then(|| text.chars().map(sign).collect()).flatten()
}

fn heading(name: &str) -> Option<u8> {
    match name.as_bytes() {
        [b'h', digit @ b'1'..=b'6'] => Some(digit - b'0'),
        _ => None,
    }
}

/// Whether a link or a raised text is the mark of a note: `1`, `[12]`, `*`, `†`, `a`.
fn is_mark(text: &str) -> bool {
    let inner = text.trim().trim_matches(['[', ']', '(', ')']).trim();
    let is_number = !inner.is_empty() && inner.len() <= 4 && inner.bytes().all(|b| b.is_ascii_digit());
    let is_letter = inner.len() == 1 && inner.bytes().all(|b| b.is_ascii_lowercase());
    is_number || is_letter || !inner.chars().any(char::is_alphanumeric)
}
