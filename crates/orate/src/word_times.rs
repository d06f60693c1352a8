//! When the words of a piece are spoken: by the model where it knows, else estimated from the sound.

use orate_models::Chunk;
use orate_text::words::{self, Pause, Word};
use orate_text::{Source, TimedWord, Traced};
use std::ops::Range;

/// Steps in which levels are measured.
const STEPS_PER_SECOND: usize = 100;
/// Sound this much quieter than the loudest step is a pause, in dB.
const PAUSE_LEVEL: f32 = 35.0;
/// The shortest pause, in steps. Closures of stops are shorter.
const SHORTEST_PAUSE: usize = 12;
/// A pause that no mark explains counts as this many seconds of misplacement.
const UNEXPLAINED: f64 = 0.5;
/// How far a border moves to where it is quiet, in steps: for estimates, and for times of the model.
const ESTIMATED_SLACK: usize = 8;
const ATTENTION_SLACK: usize = 3;

/// Words of a finished piece of `text`, with times from its first sample on. `last` is the piece's last
/// chunk.
pub(crate) fn of(
    text: &str,
    piece: &Traced,
    last: &Chunk,
    samples: &[f32],
    sample_rate: u32,
) -> Vec<TimedWord> {
    let words = words::of(text, piece.span(), Some(piece));
    let levels = levels(samples, sample_rate);
    let speech = speech(&levels);
    if words.is_empty() || speech.is_empty() {
        return vec![];
    }
    let (source, slack, mut borders) = match of_letters(&words, piece, &last.letter_times) {
        Some(borders) => (Source::Attention, ATTENTION_SLACK, borders),
        None => (Source::Estimated, ESTIMATED_SLACK, estimated(&words, &levels, &speech)),
    };
    settle(&mut borders, &levels, &speech, slack);
    let timed = |(word, [start, end]): (Word, [f64; 2])| {
        let (start, end) = (seconds(start), seconds(end));
        TimedWord { word, start, end, source, piece: last.index }
    };
    words.into_iter().zip(borders).map(timed).collect()
}

fn seconds(step: f64) -> f64 {
    step / STEPS_PER_SECOND as f64
}

/// Level of each step, in dB.
fn levels(samples: &[f32], sample_rate: u32) -> Vec<f32> {
    let step = (sample_rate as usize / STEPS_PER_SECOND).max(1);
    let level = |part: &[f32]| 10.0 * (part.iter().map(|x| x * x).sum::<f32>() / step as f32 + 1e-12).log10();
    samples.chunks(step).map(level).collect()
}

/// From the first step of speech to the last.
fn speech(levels: &[f32]) -> Range<usize> {
    let is_speech = is_speech(levels);
    let first = levels.iter().position(&is_speech).unwrap_or(0);
    first..levels.iter().rposition(&is_speech).map_or(0, |last| last + 1)
}

fn is_speech(levels: &[f32]) -> impl Fn(&f32) -> bool + use<> {
    let floor = levels.iter().copied().fold(f32::NEG_INFINITY, f32::max) - PAUSE_LEVEL;
    move |level| *level >= floor
}

/// Pauses inside of the speech.
fn pauses(levels: &[f32], speech: &Range<usize>) -> Vec<Range<usize>> {
    let is_speech = is_speech(levels);
    let mut pauses = vec![];
    let mut start = None;
    for at in speech.clone() {
        match (is_speech(&levels[at]), start) {
            (false, None) => start = Some(at),
            (true, Some(begun)) => {
                if at - begun >= SHORTEST_PAUSE {
                    pauses.push(begun..at);
                }
                start = None;
            }
            _ => {}
        }
    }
    pauses
}

/// Steps from the model's times of letters; `None` if it has none.
fn of_letters(words: &[Word], piece: &Traced, letter_times: &[f32]) -> Option<Vec<[f64; 2]>> {
    let at: Vec<usize> = piece.char_indices().map(|(at, _)| at).collect();
    if letter_times.len() != at.len() {
        return None;
    }
    let time = |letter: usize| f64::from(letter_times[letter]) * STEPS_PER_SECOND as f64;
    let letter = |byte: usize| at.partition_point(|start| *start < byte);
    let borders = words.iter().map(|word| {
        let made = piece.made_from(word.span.clone());
        let (first, after) = (letter(made.start).min(at.len() - 1), letter(made.end));
        let start = time(first);
        [start, if after < at.len() { time(after).max(start) } else { f64::INFINITY }]
    });
    Some(borders.collect())
}

/// Steps guessed from pauses and weights: pauses are given to marks in order, and the speech between them to
/// words by weight.
fn estimated(words: &[Word], levels: &[f32], speech: &Range<usize>) -> Vec<[f64; 2]> {
    let pauses = pauses(levels, speech);
    let silent: usize = pauses.iter().map(Range::len).sum();
    let rate = (speech.len() - silent) as f64 / words.iter().map(|w| f64::from(w.weight)).sum::<f64>();
    let breaks = breaks(words, &pauses, speech.start, rate);
    let mut borders = vec![];
    let (mut word, mut start) = (0, speech.start as f64);
    let stretches = breaks.iter().map(|(after, pause)| (*after, pauses[*pause].start, pauses[*pause].end));
    for (after, end, next) in stretches.chain([(words.len() - 1, speech.end, speech.end)]) {
        let own = &words[word..=after];
        let weight: f64 = own.iter().map(|w| f64::from(w.weight)).sum();
        // Pauses that belong to no mark are part of the speech.
        let per_weight = (end as f64 - start) / weight;
        let mut at = start;
        for w in own {
            let next = at + per_weight * f64::from(w.weight);
            borders.push([at, next]);
            at = next;
        }
        (word, start) = (after + 1, next as f64);
    }
    borders
}

/// Which pause is behind which word, in order: pairs of word and pause whose distance to where the weights
/// place the word's end is least, all together.
fn breaks(words: &[Word], pauses: &[Range<usize>], begin: usize, rate: f64) -> Vec<(usize, usize)> {
    let mut spoken = begin as f64;
    let ends: Vec<f64> = words
        .iter()
        .map(|w| {
            spoken += rate * f64::from(w.weight);
            spoken
        })
        .collect();
    let marks: Vec<usize> = (0..words.len() - 1).filter(|i| words[*i].pause_after > Pause::None).collect();
    // Where the weights expect the beginning of a pause: earlier pauses come on top.
    let mut before = 0;
    let expected: Vec<f64> = pauses
        .iter()
        .map(|pause| {
            let at = pause.start as f64 - before as f64;
            before += pause.len();
            at
        })
        .collect();
    // cost[m][p]: the least with the first m marks and p pauses.
    let width = pauses.len() + 1;
    let mut cost = vec![0.0; (marks.len() + 1) * width];
    let fits = |m: usize, p: usize| (ends[marks[m]] - expected[p]).abs() / STEPS_PER_SECOND as f64;
    for (p, cost) in cost.iter_mut().take(width).enumerate() {
        *cost = p as f64 * UNEXPLAINED;
    }
    for m in 1..=marks.len() {
        for p in 0..width {
            let mut best: f64 = cost[(m - 1) * width + p];
            if p > 0 {
                best = best.min(cost[m * width + p - 1] + UNEXPLAINED);
                best = best.min(cost[(m - 1) * width + p - 1] + fits(m - 1, p - 1));
            }
            cost[m * width + p] = best;
        }
    }
    let (mut m, mut p) = (marks.len(), pauses.len());
    let mut breaks = vec![];
    while m > 0 && p > 0 {
        let here = cost[m * width + p];
        if here == cost[(m - 1) * width + p - 1] + fits(m - 1, p - 1) {
            breaks.push((marks[m - 1], p - 1));
            (m, p) = (m - 1, p - 1);
        } else if here == cost[(m - 1) * width + p] {
            m -= 1;
        } else {
            p -= 1;
        }
    }
    breaks.reverse();
    breaks
}

/// Moves borders to the quietest step nearby, keeps them in order and inside of the speech, and ends words
/// where a pause begins.
fn settle(borders: &mut [[f64; 2]], levels: &[f32], speech: &Range<usize>, slack: usize) {
    let (first, last) = (speech.start as f64, speech.end as f64);
    let quietest = |at: f64| {
        let middle = at.round() as usize;
        let around = middle.saturating_sub(slack)..(middle + slack + 1).min(levels.len());
        around.min_by(|a, b| levels[*a].total_cmp(&levels[*b])).map_or(at, |step| step as f64 + 0.5)
    };
    let count = borders.len();
    for border in borders.iter_mut() {
        *border = border.map(|at| at.clamp(first, last));
    }
    borders[0][0] = first;
    for i in 1..count {
        let (end, start) = (borders[i - 1][1], borders[i][0]);
        // A pause lies between them, or they are one border.
        if start - end < SHORTEST_PAUSE as f64 {
            let at = quietest(start).clamp(borders[i - 1][0], last);
            (borders[i - 1][1], borders[i][0]) = (at, at);
        }
    }
    borders[count - 1][1] = last;
    for [start, end] in borders {
        *end = end.max(*start);
    }
}
