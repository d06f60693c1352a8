//! Times of characters, which clients of ElevenLabs read: the characters of a word share its time evenly,
//! those between words the pause.

use orate::TimedWord;
use serde_json::{Value, json};

/// A character with its times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedCharacter {
    character: char,
    start: f64,
    end: f64,
}

impl TimedCharacter {
    /// The same, `seconds` later.
    pub fn later(self, seconds: f64) -> TimedCharacter {
        TimedCharacter { start: self.start + seconds, end: self.end + seconds, ..self }
    }
}

/// Aligns a text with its sound, piece by piece.
pub struct Aligner {
    text: String,
    /// Bytes of the text, and seconds of the sound, that have been aligned.
    done: (usize, f64),
}

impl Aligner {
    pub fn new(text: String) -> Aligner {
        Aligner { text, done: (0, 0.0) }
    }

    /// Seconds of the sound that have been aligned.
    pub fn seconds(&self) -> f64 {
        self.done.1
    }

    /// Aligns the text up to the end of `words`, the words of a piece, and the marks after it; the sound
    /// lasts up to `end`. Times count from the end of the sound before.
    pub fn piece(&mut self, words: &[TimedWord], end: f64) -> Vec<TimedCharacter> {
        let (begin, from) = self.done;
        let (mut at, mut time) = (begin, from);
        let mut all = vec![];
        let mut share = |part: &str, start: f64, end: f64| {
            let each = (end - start) / part.chars().count() as f64;
            let time = |i: usize| (start + i as f64 * each - from).max(0.0);
            let timed = |(i, character)| TimedCharacter { character, start: time(i), end: time(i + 1) };
            all.extend(part.chars().enumerate().map(timed));
        };
        for word in words {
            let span = &word.word.span;
            if span.start >= at {
                share(&self.text[at..span.start], time, word.start);
                share(&self.text[span.clone()], word.start, word.end);
                (at, time) = (span.end, word.end);
            }
        }
        let rest = &self.text[at..];
        let marks = rest.find(char::is_alphanumeric).unwrap_or(rest.len());
        share(&rest[..marks], time, end.max(time));
        self.done = (at + marks, end);
        all
    }
}

/// The form of ElevenLabs' sockets; null without characters.
pub fn in_milliseconds(characters: &[TimedCharacter]) -> Value {
    if characters.is_empty() {
        return Value::Null;
    }
    let ms = |seconds: f64| (1000.0 * seconds).round();
    let (texts, starts): (Vec<_>, Vec<_>) =
        characters.iter().map(|c| (c.character.to_string(), ms(c.start) as u64)).unzip();
    let durations: Vec<u64> = characters.iter().map(|c| (ms(c.end) - ms(c.start)) as u64).collect();
    json!({ "chars": texts, "charStartTimesMs": starts, "charDurationsMs": durations })
}

/// The form of ElevenLabs' HTTP routes; null without characters.
pub fn in_seconds(characters: &[TimedCharacter]) -> Value {
    if characters.is_empty() {
        return Value::Null;
    }
    let rounded = |seconds: f64| (1000.0 * seconds).round() / 1000.0;
    let texts: Vec<String> = characters.iter().map(|c| c.character.to_string()).collect();
    let times =
        |of: fn(&TimedCharacter) -> f64| characters.iter().map(|c| rounded(of(c))).collect::<Vec<_>>();
    json!({
        "characters": texts, "character_start_times_seconds": times(|c| c.start),
        "character_end_times_seconds": times(|c| c.end),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate::Source;
    use orate_text::words;

    #[test]
    fn characters_share_the_time_of_their_word() {
        let text = "«Ab cd!» Ef.";
        let mut all: Vec<TimedWord> = words::of(text, 0..text.len(), None)
            .into_iter()
            .map(|word| TimedWord { word, start: 0.0, end: 0.0, source: Source::Estimated, piece: 0 })
            .collect();
        for (word, (start, end)) in all.iter_mut().zip([(0.2, 0.4), (0.5, 0.9), (1.5, 1.7)]) {
            (word.start, word.end) = (start, end);
        }
        let mut aligner = Aligner::new(text.to_owned());
        let first = aligner.piece(&all[..2], 1.3);
        let spoken = |of: &[TimedCharacter]| of.iter().map(|c| c.character).collect::<String>();
        assert_eq!(spoken(&first), "«Ab cd!» ");
        let seconds = in_seconds(&first);
        let times: Vec<f64> =
            serde_json::from_value(seconds["character_start_times_seconds"].clone()).expect("numbers");
        assert_eq!(times, [0.0, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.033, 1.167]);
        assert_eq!(seconds["character_end_times_seconds"][8], 1.3);
        let last = aligner.piece(&all[2..], 2.0);
        assert_eq!(spoken(&last), "Ef.");
        let ms = in_milliseconds(&last);
        assert_eq!(ms["charStartTimesMs"], json!([200, 300, 400]));
        assert_eq!(ms["charDurationsMs"], json!([100, 100, 300]));
        assert_eq!(in_milliseconds(&aligner.piece(&[], 2.0)), Value::Null);
    }
}
