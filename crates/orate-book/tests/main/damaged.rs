//! Files that are no books, or hostile ones: each has an error that says what to do, and none fills memory.

use crate::epubs::{self, CONTAINER, package, page, zip};
use orate_book::{BookError, BookFormat, parse, read};
use orate_testing::Counting;
use orate_testing::fuzz::{Limits, fuzz};
use std::path::Path;

fn problem(name: &str, bytes: &[u8]) -> String {
    let path = Path::new(name);
    parse(path, bytes.to_vec(), BookFormat::of(path)).expect_err(name).to_string()
}

#[test]
fn errors_say_what_and_where() {
    let missing_page = zip(&[
        ("META-INF/container.xml", CONTAINER),
        ("OEBPS/content.opf", &package("3.0", &["a.xhtml"], "")),
    ]);
    let cases: [(&str, &[u8], &str); 12] = [
        ("a.epub", b"not a zip", "a.epub: not an EPUB file, or a damaged one"),
        ("a.epub", &zip(&[("a", "b")]), "a.epub: not an EPUB file, or a damaged one"),
        ("a.epub", &missing_page, "a.xhtml: cannot read this page ("),
        ("a.txt", b"\xff\xfea\0\0\0b\0", "a.txt: not a text file: it contains NUL characters"),
        ("a.md", b"a\0b\0", "a.md: not a text file: it contains NUL characters"),
        (
            "a.txt",
            b"\xff\xfe\0\0a\0\0\0",
            "a.txt: not UTF-8 or UTF-16 text: byte order mark of UTF-32 at offset 0;",
        ),
        ("a.html", b"caf\xe9", "a.html: not UTF-8 text: byte 0xe9 at offset 3; convert it first"),
        ("a.txt", b"\xff\xfea\0\0\xdcb\0", "a.txt: not UTF-16 text: unpaired surrogate 0xdc00 at offset 4;"),
        (
            "a.md",
            b"\xfe\xff\0a\0",
            "a.md: not UTF-16 text: single byte 0x00 at offset 4; the file is damaged",
        ),
        ("a.md", b"```\ncode\n```", "a.md: no text to read aloud"),
        ("a.html", b"<script>alert(1)</script>", "a.html: no text to read aloud"),
        ("a.txt", b" \n* * *\n", "a.txt: no text to read aloud"),
    ];
    for (name, bytes, expected) in cases {
        let problem = problem(name, bytes);
        assert!(problem.contains(expected), "{problem}");
        assert!(!problem.contains('\n') && problem.len() < 1000, "{problem}");
    }
    let missing = read(Path::new("none.epub")).expect_err("is missing");
    assert!(matches!(missing, BookError::Open { .. }), "{missing}");
}

#[test]
fn encrypted_books_are_refused_and_hidden_fonts_are_not() {
    let with = |algorithm: &str| {
        let list = format!(
            "<encryption><enc:EncryptedData><enc:EncryptionMethod Algorithm=\"{algorithm}\"/>\
             </enc:EncryptedData></encryption>"
        );
        let files = [
            ("META-INF/container.xml", CONTAINER),
            ("META-INF/encryption.xml", &list),
            ("OEBPS/content.opf", &package("3.0", &["a.xhtml"], "")),
            ("OEBPS/a.xhtml", &page("<p>Text.</p>")),
        ];
        parse(Path::new("a.epub"), zip(&files), BookFormat::Epub)
    };
    with("http://www.idpf.org/2008/embedding").expect("only fonts are hidden");
    let refused = with("http://www.w3.org/2001/04/xmlenc#aes128-cbc").expect_err("the text is encrypted");
    assert!(matches!(refused, BookError::Encrypted { .. }), "{refused}");
    assert!(refused.to_string().contains("use a copy without DRM"), "{refused}");
}

#[test]
fn bombs_are_refused_in_bounded_memory() {
    let zeros = " ".repeat(20 << 20);
    let with = |name: &str, text: &str| {
        let opf = package("3.0", &["a.xhtml"], "");
        let mut files = vec![("META-INF/container.xml", CONTAINER), ("OEBPS/content.opf", &opf)];
        files.push((name, text));
        zip(&files)
    };
    let big_page = with("OEBPS/a.xhtml", &page(&zeros));
    assert!(big_page.len() < 1 << 20);
    let mut all = String::new();
    let peak = Counting::peak_here(|| all = problem("a.epub", &big_page));
    assert!(all.contains("a page has more than 16 MiB"), "{all}");
    assert!(peak < 100 << 20, "{peak} bytes");
    // Many files that are no pages: what they unpack to is counted, whatever the file states.
    let opf = package("3.0", &["a.xhtml"], "");
    let names: Vec<String> = (0..14).map(|i| format!("{i}.jpg")).collect();
    let mut files = vec![("META-INF/container.xml", CONTAINER), ("OEBPS/content.opf", opf.as_str())];
    files.extend(names.iter().map(|name| (name.as_str(), zeros.as_str())));
    let many = zip(&files);
    let peak = Counting::peak_here(|| all = problem("a.epub", &many));
    assert!(all.contains("unpacks to more than"), "{all}");
    assert!(peak < 100 << 20, "{peak} bytes");
}

/// Trees of parsers are freed by recursion, which ends the process when they are deep.
#[test]
fn deep_nesting_overflows_no_stack() {
    const DEPTH: usize = 200_000;
    let nested = |open: &str, close: &str| open.repeat(DEPTH) + "x" + &close.repeat(DEPTH);
    let text = problem("a.epub", &with_contents(&nested("<navPoint>", "</navPoint>"), true));
    assert!(text.contains("nest deeper than 1000 levels"), "{text}");
    let text = problem("a.epub", &with_contents(&nested("<x:ol>", "</x:ol>"), false));
    assert!(text.contains("nest deeper than 1000 levels"), "{text}");
    let text = problem("a.epub", &with_contents(&nested("<li>", "</li>"), false));
    assert!(text.contains("nest deeper than 1000 levels"), "{text}");
    let shallow = "<li><ol>".repeat(400) + "x" + &"</ol></li>".repeat(400);
    parse(Path::new("a.epub"), with_contents(&shallow, false), BookFormat::Epub)
        .expect("the page has a text");
    for (name, open, close) in [("a.html", "<div><b>", "</b></div>"), ("a.md", "> ", ""), ("a.md", "* ", "")]
    {
        let path = Path::new(name);
        let text = nested(open, close).into_bytes();
        // Whether there is a text in it is up to the format.
        let _ = parse(path, text, BookFormat::of(path));
    }
}

/// A book with this inside its table of contents.
fn with_contents(inner: &str, is_ncx: bool) -> Vec<u8> {
    let (item, name, contents) = match is_ncx {
        true => (
            "<item id=\"toc\" href=\"toc.ncx\" media-type=\"application/x-dtbncx+xml\"/>",
            "OEBPS/toc.ncx",
            format!("<ncx><navMap>{inner}</navMap></ncx>"),
        ),
        false => (
            "<item id=\"toc\" href=\"nav.xhtml\" media-type=\"application/xhtml+xml\" properties=\"nav\"/>",
            "OEBPS/nav.xhtml",
            page(&format!("<nav epub:type=\"toc\"><ol>{inner}</ol></nav>")),
        ),
    };
    zip(&[
        ("META-INF/container.xml", CONTAINER),
        ("OEBPS/content.opf", &package(if is_ncx { "2.0" } else { "3.0" }, &["a.xhtml"], item)),
        (name, &contents),
        ("OEBPS/a.xhtml", &page("<p>Text.</p>")),
    ])
}

/// Names that lead out of the book are names in the archive, and nothing else.
#[test]
fn paths_stay_inside_the_book() {
    let files = [
        ("META-INF/container.xml", CONTAINER),
        ("OEBPS/content.opf", &package("3.0", &["../../../../etc/hostname"], "")),
    ];
    let text = problem("a.epub", &zip(&files));
    assert!(text.starts_with("a.epub: "), "{text}");
}

#[test]
fn mutated_books_are_read_or_refused() {
    // Reading unpacks some files at once; a page of 100 bytes may unpack to 100 kB.
    let limits = Limits { growth: 4000, fixed: 16 << 20 };
    let samples: Vec<Vec<u8>> = [2, 3].map(epubs::book).into();
    fuzz("epub", &samples, limits, |bytes| {
        let _ = parse(Path::new("a.epub"), bytes.to_vec(), BookFormat::Epub);
    });
    let html =
        page("<h1>A</h1><p id='b'>B<sup><a href='#c'>1</a></sup></p><table><tr><td>C</td></tr></table>");
    let markdown =
        "---\ntitle: a\n---\n# A\n\nText[^1] *b* `c`\n\n[^1]: n\n\n| a |\n|-|\n| b |\n\n- c\n> d\n";
    let text = "Chapter 1\n\nA b.\n\n* * *\n\nXIV\n\nC.\n";
    let samples = [html.as_str(), markdown, text].map(|text| text.as_bytes().to_vec());
    for (name, format) in
        [("html", BookFormat::Html), ("markdown", BookFormat::Markdown), ("text", BookFormat::Text)]
    {
        fuzz(name, &samples, limits, |bytes| {
            let _ = parse(Path::new("a"), bytes.to_vec(), format);
        });
    }
}
