//! Many utterances in one process: memory stays flat, and the last ones sound like the first. One test only,
//! so that no other test's memory is counted.
#![cfg(target_os = "linux")]

mod common;

use common::{built_in, resident, tiny};
use orate::{Audio, Engine, Options};
use orate_testing::Random;
use std::time::Instant;

/// What may be resident more after the last utterance than after warming up.
const MOST_GROWTH: f64 = 4.0;

/// Texts of 1 to `most` words, in an order that mixes short and long ones.
fn texts(n: usize, most: usize) -> Vec<String> {
    const WORDS: [&str; 16] = [
        "the", "river", "carried", "seven", "boats", "quietly", "past", "old", "houses", "and", "nobody",
        "noticed", "until", "morning", "came", "again",
    ];
    let mut random = Random::new(42);
    let mut sentence = || {
        let words = 1 + random.below(most);
        let words: Vec<&str> = (0..words).map(|_| WORDS[random.below(WORDS.len())]).collect();
        format!("{}.", words.join(" "))
    };
    (0..n).map(|_| sentence()).collect()
}

fn say(engine: &Engine, text: &str, seed: usize) -> Audio {
    engine
        .speak(text, &Options { seed: seed as u64, ..Default::default() })
        .unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Speaks all texts; returns resident memory after `warm` utterances, the most after that, and the last.
fn speak_all(what: &str, engine: &Engine, texts: &[String], warm: usize) -> [f64; 3] {
    let first: Vec<Audio> = texts.iter().take(3).enumerate().map(|(i, t)| say(engine, t, i)).collect();
    let (mut start, mut most) = (0.0, 0f64);
    let (clock, mut seconds) = (Instant::now(), 0.0);
    for (i, text) in texts.iter().enumerate() {
        seconds += say(engine, text, i).duration();
        if i + 1 == warm {
            start = resident();
        } else if i >= warm {
            most = most.max(resident());
        }
    }
    let end = resident();
    for (i, (text, want)) in texts.iter().zip(&first).enumerate() {
        assert!(say(engine, text, i) == *want, "{what}: `{text}` is no longer what it was");
    }
    println!(
        "{what}: {} utterances, {seconds:.0} s of speech in {:.0} s; {start:.1} MB after {warm}, at most \
         {most:.1}, {end:.1} at the end",
        texts.len(),
        clock.elapsed().as_secs_f64(),
    );
    [start, most, end]
}

#[track_caller]
fn assert_flat(what: &str, [start, most, end]: [f64; 3]) {
    assert!(end - start < MOST_GROWTH, "{what}: {start:.1} MB grew to {end:.1} MB (at most {most:.1})");
}

#[test]
fn memory_stays_flat() {
    let engine = tiny("tiny");
    assert_flat("tiny", speak_all("tiny", &engine, &texts(200, 40), 20));
    drop(engine);
    let engine = built_in(2);
    assert_flat("built-in", speak_all("built-in", &engine, &texts(30, 8), 20));

    // A long text: pieces come one at a time, and leave nothing behind.
    let long = texts(24, 10).join(" ");
    let options = Options::default();
    let before = resident();
    let (mut pieces, mut most) = (0, 0f64);
    for chunk in engine.stream(&long, &options).expect("can be spoken") {
        assert!(!chunk.expect("spoken").samples.is_empty());
        pieces += 1;
        most = most.max(resident());
    }
    println!("{} characters in {pieces} pieces: from {before:.1} to at most {most:.1} MB", long.len());
    assert!(pieces >= 4, "{pieces} pieces");
    assert!(most - before < 16.0, "{pieces} pieces took {before:.1} to {most:.1} MB");
}

/// 500 texts: the sentences of `training/test.txt` among made-up ones.
fn five_hundred() -> Vec<String> {
    let test = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../training/test.txt");
    let lines = std::fs::read_to_string(test).unwrap_or_default();
    let mut lines: Vec<String> =
        lines.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect();
    lines.extend(texts(500, 30));
    lines.truncate(500);
    let mut random = Random::new(7);
    for i in (1..lines.len()).rev() {
        lines.swap(i, random.below(i + 1));
    }
    lines
}

/// ```sh
/// cargo test --release -p orate --test soak five -- --ignored --nocapture
/// ```
#[test]
#[ignore = "takes minutes, and wants a release build"]
fn five_hundred_utterances() {
    assert_flat("one thread speaks", speak_all("one thread speaks", &built_in(2), &five_hundred(), 20));
}

/// Each session's buffers grow with the longest text that it met so far, so that warming up takes longer. By
/// default glibc gives threads heaps of their own, in which freed buffers leave holes; they are kept out of
/// the measurement by allowing one heap, as they are not the engine's.
///
/// ```sh
/// MALLOC_ARENA_MAX=1 cargo test --release -p orate --test soak four -- --ignored --nocapture
/// ```
#[test]
#[ignore = "takes minutes, and wants a release build"]
fn four_threads_share_an_engine() {
    const ROUND: usize = 25;
    let engine = built_in(2);
    let lines = five_hundred();
    let parts: Vec<&[String]> = lines.chunks(lines.len() / 4).collect();
    let wanted: Vec<Audio> = parts.iter().map(|p| say(&engine, &p[0], 0)).collect();
    let clock = Instant::now();
    let mut after = vec![];
    for round in 0..10 {
        std::thread::scope(|scope| {
            for part in &parts {
                let engine = &engine;
                scope.spawn(move || {
                    for i in 0..ROUND {
                        say(engine, &part[(round * ROUND + i) % part.len()], i);
                    }
                });
            }
        });
        after.push(resident());
    }
    let seconds = clock.elapsed().as_secs_f64();
    println!("four threads: {seconds:.0} s; MB after each {} utterances: {after:.1?}", 4 * ROUND);
    for (part, want) in parts.iter().zip(&wanted) {
        assert!(say(&engine, &part[0], 0) == *want, "`{}` is no longer what it was", part[0]);
    }
    // The first half has all texts in it.
    let (start, end) = (after[4], after[9]);
    assert!(
        end - start < MOST_GROWTH,
        "four threads: {start:.1} MB grew to {end:.1} MB; was MALLOC_ARENA_MAX=1 set?"
    );
}
