//! What of a file is read aloud.

use crate::epubs;
use orate_book::{Block, Book, BookFormat, parse};
use std::path::Path;

fn read(name: &str, bytes: impl AsRef<[u8]>) -> Book {
    let path = Path::new(name);
    parse(path, bytes.as_ref().to_vec(), BookFormat::of(path)).expect("a book")
}

/// Chapters as text: titles in brackets, headings with `#`, breaks as `~`.
fn outline(book: &Book) -> Vec<String> {
    let mut lines = vec![];
    for chapter in &book.chapters {
        lines.push(format!("[{}]", chapter.title.as_deref().unwrap_or_default()));
        lines.extend(chapter.blocks.iter().map(|block| match block {
            Block::Heading(level, text) => format!("{} {text}", "#".repeat((*level).into())),
            Block::Paragraph(text) => text.clone(),
            Block::Break => "~".to_owned(),
        }));
    }
    lines
}

#[test]
fn epubs_of_both_versions_have_chapters_of_their_contents() {
    for version in [2, 3] {
        let book = read("a.epub", epubs::book(version));
        assert_eq!(book.title.as_deref(), Some("Kettles & Rain"));
        assert_eq!(book.authors, ["Ada One", "Bo Two"]);
        assert_eq!(book.language.as_deref(), Some("en-GB"));
        let expected = [
            "[One: The Kettle]",
            "# Chapter One. The Kettle",
            "It is on. It sings—loudly.",
            "Cooperate, please.",
            "[Two: The Rain]",
            "# Rain",
            "It rains.",
            "~",
            "It stopped.",
            "[Two and a Half]",
            "## Half",
            "Dry.",
        ];
        assert_eq!(outline(&book), expected, "version {version}");
    }
}

#[test]
fn epubs_without_contents_begin_chapters_at_headings_of_pages() {
    let pages = ["a.xhtml", "b.xhtml", "c.xhtml"];
    let files = [
        ("META-INF/container.xml", epubs::CONTAINER.to_owned()),
        ("OEBPS/content.opf", epubs::package("3.0", &pages, "")),
        ("OEBPS/a.xhtml", epubs::page("<p>Before.</p>")),
        ("OEBPS/b.xhtml", epubs::page("<h2>One</h2><p>First.</p><h3>Part</h3><p>More.</p>")),
        ("OEBPS/c.xhtml", epubs::page("<p>Still the first.</p>")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let book = read("a.epub", epubs::zip(&files));
    let expected = ["[]", "Before.", "[One]", "## One", "First.", "### Part", "More.", "Still the first."];
    assert_eq!(outline(&book), expected);
}

#[test]
fn html_is_read_without_what_is_not_prose() {
    let html = "<!DOCTYPE html><html lang=de><head><title>The Book</title><meta name=author content='A. B.'>
        <style>p { color: red }</style></head><body><nav><ul><li>Home</ul></nav>
        <script>if (1 < 2) document.write('<p>no</p>')</script>
        <h1>The Book</h1><p>Begin<b>ning</b>.<p>Second<sup><a href='#1'>1</a></sup> one,
        with <a href='x.html'>a link</a> and 10<sup>2</sup> m<sup>2</sup>.
        <pre><code>let x = 1;</code></pre><h2>First</h2><ul><li>One<li>Two</ul>
        <table><tr><th>Name</th><th>Age</th></tr><tr><td>Ada</td><td>36</td></tr></table>
        <p hidden>Hidden.<p aria-hidden=true>Hidden, too.<p>See [12].<a href='#n12'>[12]</a></p>
        <hr><h2>Second</h2><p>&lt;Last&gt; &amp; least.<img alt='picture'></p></body></html>";
    let book = read("a.html", html);
    assert_eq!((book.title.as_deref(), book.language.as_deref()), (Some("The Book"), Some("de")));
    assert_eq!(book.authors, ["A. B."]);
    let expected = [
        "[]",
        "# The Book",
        "Beginning.",
        "Second one, with a link and 10² m².",
        "[First]",
        "## First",
        "One",
        "Two",
        "Name, Age",
        "Ada, 36",
        "See [12].",
        "~",
        "[Second]",
        "## Second",
        "<Last> & least.",
    ];
    assert_eq!(outline(&book), expected);
}

#[test]
fn html_needs_no_end_tags_that_may_be_left_out() {
    let html = "<html><head><title>T</title><meta charset=utf-8><h1>Top</h1>
        <p><ruby>Kan<rp>(<rt>ruby<rp>)</ruby>ji, <ruby>ka<rt>ru</ruby>na.
        <ul><li hidden>no<ul><li>no</ul>no<li>One</ul><p>Two.
        <table><tr><td hidden>no<tr><td>Three<tr><td>Four<td hidden>no</table>Five.
        <p hidden>no <button>no</button> no<div>Six.</div><div><p hidden>no</div>Seven.
        <dl><dt hidden>no<dd>Eight.</dl><p hidden>no<hr>Nine.";
    let book = read("a.html", html);
    let expected = [
        "[Top]",
        "# Top",
        "Kanji, kana.",
        "One",
        "Two.",
        "Three",
        "Four",
        "Five.",
        "Six.",
        "Seven.",
        "Eight.",
        "~",
        "Nine.",
    ];
    assert_eq!(outline(&book), expected);
}

#[test]
fn what_is_left_out_of_a_line_does_not_divide_it() {
    let html = "<p>吾輩は<ruby>猫<rp>（</rp><rt>ねこ</rt><rp>）</rp></ruby>である。</p>\
                <p>Where <math><mi>x</mi></math> is <svg><text>no</text></svg>here<script>1</script>.</p>";
    assert_eq!(outline(&read("a.xhtml", html)), ["[]", "吾輩は猫である。", "Where is here."]);
}

#[test]
fn numbers_that_are_links_are_read_and_marks_of_notes_are_not() {
    let link = |text: &str| format!("<a href='#x'>{text}</a>");
    let [one, three, four, b] = ["1", "3", "4", "b"].map(link);
    let html = format!(
        "<p>See chapters {three}, {four}-{four} and {four}, point {b}.<p>A word{one} and {} end. \
         {one}<p>A <sup>{one}</sup>.",
        link("[1]")
    );
    let expected = ["[]", "See chapters 3, 4-4 and 4, point b.", "A word and end.", "A ."];
    assert_eq!(outline(&read("a.html", html)), expected);
}

#[test]
fn powers_are_no_other_numbers() {
    let html = "<p>10<sup>6</sup>, 10<sup>-3</sup>, x<sup>n</sup>, 2<sup>nd</sup>, in 1984<sup>5</sup>, \
                a word<sup>7</sup>, 5&nbsp;km<sup>2</sup>";
    let expected = ["[]", "10⁶, 10⁻³, xn, 2nd, in 1984, a word, 5 km²"];
    assert_eq!(outline(&read("a.html", html)), expected);
}

#[test]
fn markdown_is_read_without_what_is_not_prose() {
    let text = "---\ntitle: \"A Book\"\nauthor: Ada\nlang: en\n---\n\n# A Book\n\n## One\n\nSome *soft*\nlines, \
                `code` and [links](x).[^1]\n\n[^1]: A note.\n\n\
                ```rust\nlet x = 1;\n```\n\n- item one\n- item two\n\n\
                ![picture](x.png)\n\n<div>html</div>\n\n***\n\n## Two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> Quoted.\n";
    let book = read("a.md", text);
    assert_eq!((book.title.as_deref(), book.language.as_deref()), (Some("A Book"), Some("en")));
    assert_eq!(book.authors, ["Ada"]);
    let expected = [
        "[One]",
        "# A Book",
        "## One",
        "Some soft lines, code and links.",
        "item one",
        "item two",
        "~",
        "[Two]",
        "## Two",
        "a, b",
        "1, 2",
        "Quoted.",
    ];
    assert_eq!(outline(&book), expected);
}

#[test]
fn markdown_keeps_what_stands_between_rules() {
    let text = "Before.\n\n---\nnot: yaml\n\nSecond.\n\n---\nThird\n---\n\nLast<br>line<br/>of<BR >all.\n";
    let expected =
        ["[]", "Before.", "~", "not: yaml", "Second.", "~", "[Third]", "## Third", "Last line of all."];
    assert_eq!(outline(&read("a.md", text)), expected);
    // Rules at the beginning.
    assert_eq!(outline(&read("a.md", "---\n\nOne.\n\n---\n\nTwo.\n")), ["[]", "~", "One.", "~", "Two."]);
    assert_eq!(outline(&read("a.md", "---\nOne.\n\n---\nTwo.\n")), ["[]", "~", "One.", "~", "Two."]);
    assert_eq!(outline(&read("a.md", "---\nOne: 1.\n")), ["[]", "~", "One: 1."]);
    let book = read("a.md", "\u{feff}---\r\ntitle: A\r\n\r\nlang: en\r\n...\r\nText.\r\n");
    assert_eq!((book.title.as_deref(), book.language.as_deref()), (Some("A"), Some("en")));
    assert_eq!(outline(&book), ["[]", "Text."]);
}

#[test]
fn text_has_chapters_where_headings_stand_alone() {
    let text = "\u{feff}The Book\n\nCHAPTER I.\nThe Beginning\n\nIt was\r\na night. \n\nChapter one was long, and it \
                said so in a sentence of its own, which goes on and on.\n\nIV\n\nFour.\n\n* * *\n\nEpilogue\n\nEnd.\n";
    let book = read("a.txt", text);
    let utf16 = |bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
    assert_eq!(read("a.txt", utf16(u16::to_le_bytes)), book);
    assert_eq!(read("a.txt", utf16(u16::to_be_bytes)), book);
    let expected = [
        "[]",
        "The Book",
        "[CHAPTER I. The Beginning]",
        "# CHAPTER I. The Beginning",
        "It was a night.",
        "Chapter one was long, and it said so in a sentence of its own, which goes on and on.",
        "[IV]",
        "# IV",
        "Four.",
        "~",
        "[Epilogue]",
        "# Epilogue",
        "End.",
    ];
    assert_eq!(outline(&book), expected);
}
