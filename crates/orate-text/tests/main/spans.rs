//! Where the parts of a made text come from.

use super::english::{Random, SCRAPS, plain};
use orate_text::captions::{self, Source, TimedWord};
use orate_text::english::{self, Letters, Rules};
use orate_text::words::{self, Word};
use orate_text::{Lexicon, Traced, pieces};
use std::ops::Range;
use unicode_normalization::char::is_combining_mark;

fn scraps(random: &mut Random, count: usize) -> String {
    (0..random.next(count)).map(|_| random.pick(SCRAPS)).collect()
}

fn characters(random: &mut Random, count: usize) -> String {
    let limit = [0x80, 0x250, 0x3000, 0xD000, 0x11_0000][random.next(5)];
    (0..random.next(count)).filter_map(|_| char::from_u32(random.next(limit) as u32)).collect()
}

/// Calls `f` with texts of numbers, signs and words, and with texts of any characters.
fn for_random_texts(seed: u64, mut f: impl FnMut(&str, &mut Random)) {
    let mut random = Random(seed);
    for _ in 0..10_000 {
        let text = scraps(&mut random, 14);
        f(&text, &mut random);
        let text = characters(&mut random, 30);
        f(&text, &mut random);
    }
}

/// Sources are in order, and ranges of whole characters; words without a rule come from themselves.
fn check(text: &str, made: &Traced) {
    let mut last = 0..0;
    for (i, c) in made.text().char_indices() {
        let source = made.source(i..i + c.len_utf8());
        assert!(text.get(source.clone()).is_some(), "{text:?}: {c:?} comes from {source:?}");
        assert!(last.start <= source.start && last.end <= source.end, "{text:?}: {last:?}, {source:?}");
        let back = made.made_from(source.clone());
        assert!(source.is_empty() || (back.start <= i && i < back.end), "{text:?}: {source:?}, {back:?}");
        last = source;
    }
    assert!(made.span().end <= text.len());
    for range in [0..0, made.text().len()..made.text().len() + 9] {
        let source = made.source(range);
        assert!(source.is_empty() && text.is_char_boundary(source.start), "{text:?}");
    }
}

#[test]
fn readings_are_those_of_read_aloud() {
    let rules = Rules { letters: Letters::Names, ..Rules::default() };
    for_random_texts(11, |text, _| {
        let read = english::read(text);
        assert_eq!(read.text(), english::read_aloud(text));
        check(text, &read);
        let read = english::read_with(text, &rules);
        assert_eq!(read.text(), english::read_aloud_with(text, &rules));
    });
}

#[test]
fn every_letter_is_read() {
    for_random_texts(12, |text, _| {
        // Tags such as `<b>` and addresses without a host are dropped.
        if text.contains('<') || text.contains("://") {
            return;
        }
        let read = english::read(text);
        for (i, c) in text.char_indices().filter(|(_, c)| c.is_alphanumeric()) {
            let made = read.made_from(i..i + c.len_utf8());
            assert!(!made.is_empty(), "{text:?}: {c:?} at {i} is not in {read:?}");
        }
    });
}

#[test]
fn words_without_a_rule_come_from_themselves() {
    for text in ["Nothing to do here!", "Ünïcödé, 漢字 и кириллица — “yes”…", "a  b\n\nc\t"]
    {
        let read = english::read(text);
        assert_eq!(read, Traced::from(text));
        for (i, c) in text.char_indices() {
            assert_eq!(read.source(i..i + c.len_utf8()), i..i + c.len_utf8());
        }
    }
}

#[test]
fn rewritten_tokens_come_from_the_whole_token() {
    let cases: &[(&str, &str, &str)] = &[
        ("He paid $3.50 today", "three dollars and fifty cents", "$3.50"),
        ("on 5 May 2024, maybe", "the fifth of May twenty twenty-four", "5 May 2024"),
        ("in the U.S. He", "U S.", "U.S."),
        ("５ cats", "five", "５"),
        ("at ①② now", "twelve", "①②"),
        ("so == x", "equals", "=="),
        ("see a.org/b now", "a dot org slash b", "a.org/b"),
        ("#HelloWorld!", "hashtag Hello World", "#HelloWorld"),
        ("one_two", " ", "_"),
    ];
    for (text, said, written) in cases {
        let read = english::read(text);
        let at = read.text().find(said).unwrap_or_else(|| panic!("{said:?} is not in {read:?}"));
        let start = text.find(written).expect("part of the text");
        let source = start..start + written.len();
        for i in at..at + said.len() {
            assert_eq!(read.source(i..i + 1), source, "{text:?}, byte {i}");
        }
        assert_eq!(read.made_from(source), at..at + said.len(), "{text:?}");
    }
    // A run of signs beyond the tokens that the reader holds.
    let text = format!("a != {} b", "=".repeat(10_000));
    let read = english::read(&text);
    assert_eq!(read.source(read.text().len() - 1..read.text().len()), text.len() - 1..text.len());
}

#[test]
fn spoken_pieces_know_their_source() {
    let rules = Rules::default();
    for_random_texts(13, |text, random| {
        let max_chars = 1 + random.next(40);
        let made = english::speakable_pieces(text, &rules, max_chars, plain);
        let want = english::speakable(text, &rules, max_chars, plain);
        match (made, want) {
            (Ok(made), Ok(want)) => {
                assert_eq!(made.iter().map(Traced::text).collect::<Vec<_>>(), want);
                made.iter().for_each(|piece| check(text, piece));
                assert!(made.iter().map(|piece| piece.span().start).is_sorted(), "{text:?}");
                for part in made.iter().flat_map(|piece| piece.sentences(1)) {
                    check(text, &part);
                }
            }
            (made, want) => assert_eq!(made.is_ok(), want.is_ok()),
        }
        if let Ok(fitted) = english::fit(text, plain) {
            assert_eq!(Ok(fitted.text()), english::fit_alphabet(text, plain).as_deref());
            check(text, &fitted);
        }
    });
    let text = "He said (to 5 people) “café”... Then -- no.";
    let pieces = english::speakable_pieces(text, &rules, 60, plain).expect("letters and marks");
    let source = |range: Range<usize>| &text[pieces[0].source(range)];
    assert_eq!(pieces[0].text(), "He said, to five people, \"cafe\". Then, no.");
    let at = |part: &str| pieces[0].text().find(part).map(|i| i..i + part.len()).expect(part);
    assert_eq!((source(at("five")), source(at("cafe")), source(at("Then"))), ("5", "café", "Then"));
}

#[test]
fn pieces_cover_the_text() {
    for_random_texts(14, |text, random| {
        let max_chars = random.next(40);
        let cut = pieces::cut(text, max_chars);
        let texts: Vec<_> = cut.iter().map(|piece| piece.text.clone()).collect();
        assert_eq!(texts, pieces::at_most(text, max_chars));
        let is_space = |c: char| c.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&c);
        let mut end = 0;
        for piece in &cut {
            assert!(text[end..piece.span.start].chars().all(is_space), "{text:?}: {cut:?}");
            let squeeze = |s: &str| s.chars().filter(|c| !is_space(*c)).collect::<String>();
            assert_eq!(squeeze(&text[piece.span.clone()]), squeeze(&piece.text));
            end = piece.span.end;
        }
        assert!(text[end..].chars().all(is_space), "{text:?}: {cut:?}");
        let traced = Traced::from(text).pieces(max_chars);
        assert_eq!(traced.len(), cut.len());
        for (traced, piece) in traced.iter().zip(&cut) {
            assert_eq!((traced.text(), traced.span()), (piece.text.as_str(), piece.span.clone()));
            check(text, traced);
        }
    });
}

#[test]
fn filtered_texts() {
    for_random_texts(15, |text, _| {
        let keep = |c: char| c.is_alphanumeric();
        let kept = Traced::filtered(text, keep);
        assert_eq!(kept.text(), text.chars().filter(|c| keep(*c)).collect::<String>());
        check(text, &kept);
        for (i, c) in kept.text().char_indices() {
            assert_eq!(text[kept.source(i..i + c.len_utf8())].chars().next(), Some(c));
        }
    });
}

#[test]
fn words_are_in_order_and_within_their_piece() {
    for_random_texts(16, |text, random| {
        let cut = pieces::cut(text, 1 + random.next(30));
        let read = english::read(text);
        for (piece, reading) in cut.iter().flat_map(|piece| [(piece, None), (piece, Some(&read))]) {
            let mut end = piece.span.start;
            for word in words::of(text, piece.span.clone(), reading) {
                assert!(word.span.start >= end && word.span.end <= piece.span.end, "{text:?}: {word:?}");
                assert!(word.weight.is_finite() && word.weight >= 1.0, "{text:?}: {word:?}");
                assert!(text.get(word.span.clone()).is_some_and(|text| !text.is_empty()));
                end = word.span.end;
            }
        }
    });
}

#[test]
fn lexicons_replace_whole_words() {
    let entries: Vec<String> = SCRAPS
        .iter()
        .filter(|s| !s.trim().is_empty() && !s.contains(['=', '#']))
        .map(|s| format!("{s} = X{s}Y\n"))
        .collect();
    let lexicon = Lexicon::parse(entries.concat().as_bytes()).expect("entries");
    for_random_texts(17, |text, _| {
        let read = lexicon.read(text);
        check(text, &read);
        assert!(read.text().len() <= 5 * text.len(), "{text:?}: {:?}", read.text());
        assert_eq!(Lexicon::default().read(text), Traced::from(text));
    });
}

#[test]
fn cues_are_in_order_and_fit() {
    for_random_texts(18, |text, random| {
        let text = text.repeat(1 + random.next(5));
        let mut at = 0.0;
        let timed = |word: Word| {
            let start = at;
            at += random.next(200) as f64 / 100.0 - 0.1;
            let end = at;
            at += if random.next(5) == 0 { random.next(40) as f64 / 10.0 } else { 0.0 };
            TimedWord { word, start, end, source: Source::Estimated, piece: 0 }
        };
        let words: Vec<_> = words::of(&text, 0..text.len(), None).into_iter().map(timed).collect();
        let cues = captions::cues(&words, f64::INFINITY);
        let mut end = 0;
        for cue in &cues {
            assert!(cue.start >= end && cue.end > cue.start && cue.end - cue.start <= 7000, "{cues:?}");
            assert!((1..=captions::LINES).contains(&cue.lines.len()), "{cue:?}");
            for line in &cue.lines {
                assert!(!line.trim().is_empty() && !line.contains(['\n', '\r']), "{cue:?}");
                // No character takes less than a column but those that are drawn over others.
                let drawn = |c: &char| !is_combining_mark(*c) && !orate_text::is_invisible(*c);
                assert!(line.chars().filter(drawn).count() <= captions::COLUMNS, "{cue:?}");
            }
            end = cue.end;
        }
        let squeeze =
            |text: &str| text.chars().filter(|c| !c.is_whitespace() && !c.is_control()).collect::<String>();
        let shown: String = cues.iter().flat_map(|cue| &cue.lines).map(|line| squeeze(line)).collect();
        let spoken: String = words.iter().map(|timed| squeeze(&timed.word.display)).collect();
        assert_eq!(shown, spoken, "{text:?}");
        assert_eq!(captions::srt(&words, f64::INFINITY).matches(" --> ").count(), cues.len());
        assert_eq!(captions::vtt(&words, f64::INFINITY).matches("-->").count(), cues.len());
        assert!(captions::json(&words, &[], &text, f64::INFINITY).starts_with('{'));
    });
}

/// Quadratic rules would take minutes; the limit is wide because test machines are shared.
#[test]
fn long_texts_of_words_are_quick() {
    for scrap in ["a ", "1 ", "5 km ", "& ", "漢", "- ", "a—", "Dr. ", ". ", "(", "é", "x. ", "🙂"] {
        let text = scrap.repeat(300_000 / scrap.len());
        let start = std::time::Instant::now();
        let read = english::read(&text);
        let words = words::of(&text, 0..text.len(), Some(&read));
        let timed = |word| TimedWord { word, start: 0.0, end: 0.0, source: Source::Aligner, piece: 0 };
        let words: Vec<_> = words.into_iter().map(timed).collect();
        let count = captions::json(&words, &[], &text, f64::INFINITY).len()
            + captions::srt(&words, f64::INFINITY).len();
        let parts = pieces::cut(&text, 100).len() + Traced::from(text.as_str()).pieces(100).len();
        let _ = english::speakable_pieces(&text, &Rules::default(), 100, plain);
        let seconds = start.elapsed().as_secs_f64();
        assert!(seconds < 10.0, "{scrap:?}: {count} bytes of captions, {parts} pieces in {seconds} s");
    }
}
