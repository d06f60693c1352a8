//! Units of a book.

use orate_book::{Block, Book, Chapter, Plan};

fn book(chapters: &[&[&str]]) -> Book {
    let chapter = |texts: &&[&str]| Chapter {
        title: texts.first().map(|text| (*text).to_owned()),
        blocks: texts.iter().map(|text| Block::Paragraph((*text).to_owned())).collect(),
    };
    Book { chapters: chapters.iter().map(chapter).collect(), ..Book::default() }
}

#[test]
fn units_are_paragraphs_of_a_chapter() {
    let long = "This sentence has thirty chars. ".repeat(100);
    let half = "word ".repeat(120);
    let plan = Plan::new(&book(&[&["One.", half.trim(), half.trim(), "End."], &["Two.", &long]]), 0.3);
    let units: Vec<usize> = plan.units.iter().map(|unit| unit.paragraphs.len()).collect();
    assert_eq!((plan.chapters[0].units.clone(), plan.chapters[1].units.clone()), (0..2, 2..5), "{units:?}");
    assert!(plan.units.iter().all(|unit| unit.chars <= 1200), "{units:?}");
    assert_eq!(plan.chars(), plan.chapters.iter().map(|chapter| chapter.chars).sum::<usize>());
    // Nothing is lost.
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let spoken: Vec<String> =
        plan.units.iter().flat_map(|unit| &unit.paragraphs).flat_map(|p| words(&p.text)).collect();
    assert_eq!(spoken, words(&format!("One. {half} {half} End. Two. {long}")));
    // The silence that precedes a unit is part of the pause.
    let pauses: Vec<f32> =
        plan.units.iter().map(|unit| unit.paragraphs.last().unwrap().pause_after).collect();
    assert!((pauses[0] - 0.3).abs() < 1e-6 && (pauses[1] - 1.7).abs() < 1e-6, "{pauses:?}");
    assert_eq!(pauses[2], 0.0, "inside a paragraph there is the silence between sentences: {pauses:?}");
}

#[test]
fn no_two_units_share_random_numbers() {
    let text = "A. ".repeat(4000);
    let plan = Plan::new(&book(&[&[&text]]), 0.3);
    assert!(plan.units.len() > 5);
    for pair in plan.units.windows(2) {
        assert!(pair[0].first_piece() + pair[0].chars <= pair[1].first_piece());
    }
    assert_eq!(plan.units[0].first_piece(), 0, "as without a book");
}

#[test]
fn the_digest_is_of_all_that_is_spoken_and_written() {
    let base = book(&[&["One.", "Two."], &["Three."]]);
    let digest = |book: &Book, silence: f32| Plan::new(book, silence).digest(book);
    let same = digest(&base, 0.3);
    assert_eq!(same, digest(&base.clone(), 0.3));
    let others = [
        digest(&base, 0.5),
        digest(&book(&[&["One.", "Two."], &["Three!"]]), 0.3),
        digest(&book(&[&["One."], &["Two.", "Three."]]), 0.3),
        digest(&Book { title: Some("T".to_owned()), ..base.clone() }, 0.3),
        digest(&Book { authors: vec!["T".to_owned()], ..base.clone() }, 0.3),
    ];
    assert!(others.iter().all(|other| *other != same));
}

#[test]
fn breaks_and_headings_have_longer_pauses() {
    let text = |text: &str| Block::Paragraph(text.to_owned());
    let blocks =
        vec![Block::Heading(1, "H".into()), text("a"), text("b"), Block::Break, text("c"), text("d")];
    let book = Book { chapters: vec![Chapter { title: None, blocks }], ..Book::default() };
    let plan = Plan::new(&book, 0.0);
    let pauses: Vec<f32> = plan.units[0].paragraphs.iter().map(|p| p.pause_after).collect();
    assert_eq!(pauses, [1.0, 0.6, 1.5, 0.6, 1.0]);
    assert_eq!(plan.chapters[0].title, "Beginning");
}
