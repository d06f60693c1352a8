//! Made-up EPUB files.

use std::io::{Cursor, Write};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

pub const CONTAINER: &str = r#"<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"#;

/// A zip file of these names and texts.
pub fn zip(files: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(vec![]));
    for (name, text) in files {
        zip.start_file(*name, SimpleFileOptions::default()).expect("zips");
        zip.write_all(text.as_bytes()).expect("zips");
    }
    zip.finish().expect("zips").into_inner()
}

/// A page with this body.
pub fn page(body: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" \
         xmlns:epub=\"http://www.idpf.org/2007/ops\"><head><title/><script/></head><body>{body}</body></html>"
    )
}

/// A package of pages. `more` is an item of the manifest, and the id that the spine names as `toc`.
pub fn package(version: &str, pages: &[&str], more: &str) -> String {
    let item = |(i, name): (usize, &&str)| {
        format!("<item id=\"c{i}\" href=\"{name}\" media-type=\"application/xhtml+xml\"/>")
    };
    let items: String = pages.iter().enumerate().map(item).collect();
    let refs: String = (0..pages.len()).map(|i| format!("<itemref idref=\"c{i}\"/>")).collect();
    format!(
        "<package xmlns=\"http://www.idpf.org/2007/opf\" version=\"{version}\" unique-identifier=\"id\">\
         <metadata xmlns:dc=\"http://purl.org/dc/elements/1.1/\"><dc:identifier id=\"id\">x</dc:identifier>\
         <dc:title>Kettles &amp; Rain</dc:title>
         <dc:creator>Ada One</dc:creator><dc:creator>Bo Two</dc:creator>\
         <dc:language>en-GB</dc:language></metadata>\
         <manifest>{more}{items}</manifest><spine toc=\"toc\">{refs}</spine></package>"
    )
}

const PAGES: [&str; 3] = ["text/cover.xhtml", "text/one%20a.xhtml", "text/two.xhtml"];

/// A book of two pages and three chapters: EPUB 2 or 3.
pub fn book(version: u8) -> Vec<u8> {
    let (item, name, contents) = if version == 3 {
        let links = "<li><a href=\"text/one%20a.xhtml\">One: The Kettle</a></li>\
                     <li><a href=\"text/two.xhtml\">Two: The\n Rain</a>\
                     <ol><li><a href=\"text/two.xhtml#half\">Two and a Half</a></li></ol></li>";
        let contents = page(&format!("<nav epub:type=\"toc\"><ol>{links}</ol></nav>"));
        let media = "media-type=\"application/xhtml+xml\" properties=\"nav\"";
        (format!("<item id=\"toc\" href=\"nav.xhtml\" {media}/>"), "OEBPS/nav.xhtml", contents)
    } else {
        let point = |id: &str, text: &str, to: &str, inner: &str| {
            format!(
                "<navPoint id=\"{id}\"><navLabel><text>{text}</text></navLabel><content src=\"{to}\"/>{inner}</navPoint>"
            )
        };
        let half = point("c", "Two and a Half", "text/two.xhtml#half", "");
        let points = point("a", "One: The Kettle", "text/one%20a.xhtml", "")
            + &point("b", "Two: The Rain", "text/two.xhtml", &half);
        let contents = format!(
            "<ncx xmlns=\"http://www.daisy.org/z3986/2005/ncx/\" version=\"2005-1\"><navMap>{points}</navMap></ncx>"
        );
        let item = "<item id=\"toc\" href=\"toc.ncx\" media-type=\"application/x-dtbncx+xml\"/>".to_owned();
        (item, "OEBPS/toc.ncx", contents)
    };
    let note = "<a epub:type=\"noteref\" href=\"#n1\">1</a>";
    let one = page(&format!(
        "<h1>Chapter One<br/>The Kettle</h1><p>It is on.{note} It sings&#8212;loudly.</p>\
         <aside epub:type=\"footnote\" id=\"n1\"><p>A kettle is a pot.</p></aside>\
         <p>Co\u{ad}operate,&#160;please.<span epub:type=\"pagebreak\" id=\"p2\">2</span></p>"
    ));
    let two = page(
        "<h1>Rain</h1><p>It rains.</p><p>* * *</p><p>It stopped.</p>\
         <section id=\"half\"><h2>Half</h2><p>Dry.</p></section>",
    );
    zip(&[
        ("mimetype", "application/epub+zip"),
        ("META-INF/container.xml", CONTAINER),
        ("OEBPS/content.opf", &package(if version == 3 { "3.0" } else { "2.0" }, &PAGES, &item)),
        (name, &contents),
        ("OEBPS/text/cover.xhtml", &page("<p><img src=\"cover.jpg\" alt=\"Cover\"/></p>")),
        ("OEBPS/text/one a.xhtml", &one),
        ("OEBPS/text/two.xhtml", &two),
    ])
}
