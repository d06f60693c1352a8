//! Which text each code of an utterance speaks, by the attention of T3.
//!
//! A few heads of Multilingual attend to the text that is being spoken. The official package (0.1.7) watches
//! them in `AlignmentStreamAnalyzer`, which is [`super::guard`] here; they also say when words are spoken.

use super::config::{ALIGNED_HEADS, START_OF_SPEECH, T3Config};
use super::t3::{ALIGNED, ALIGNED_KEYS, END_BIAS};
use super::t3_plans::{Prompt, T3};
use crate::ModelError;
use crate::alignment::starts;
use crate::decoding::{Decoding, DrawSettings, Session, StartOptions, Step};
use orate_graph::Counters;
use std::ops::Range;

/// Codes of a second of speech.
const CODES_PER_SECOND: f32 = 25.0;

/// In several sums, so that it can be vectorized.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    for (a, b) in a.chunks(sums.len()).zip(b.chunks(sums.len())) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum()
}

/// An utterance whose attention to the text is read after each code. It is decoded alone and without
/// look-ahead.
pub(super) struct Watched {
    session: Session<T3>,
    head_dim: usize,
    /// Of all rows so far, `[T, 3, Dh]`.
    keys: Vec<f32>,
    /// Rows of the text.
    text: Range<usize>,
    aligned: Vec<f32>,
    row: Vec<f32>,
}

impl Watched {
    /// Reads a prompt. `t3` is a [`T3::watched`].
    pub fn start(
        t3: &Decoding<T3>,
        config: &T3Config,
        prompt: &Prompt,
        settings: DrawSettings,
    ) -> Result<Watched, ModelError> {
        let options = StartOptions { look_ahead: Some(false), ..StartOptions::default() };
        let mut session = t3.start(prompt, settings, options)?;
        session.write(END_BIAS, &[config.lanes(), 1, 1].into(), &vec![0.0; config.lanes()])?;
        let first = prompt.conditioning.rows().len() / config.width;
        let text = first..first + prompt.text.len();
        let (mut keys, head_dim) = (vec![], config.head_dim());
        session.read(ALIGNED_KEYS, &mut keys)?;
        keys.truncate((text.end + config.starts()) * ALIGNED_HEADS * head_dim);
        Ok(Watched { session, head_dim, keys, text, aligned: vec![], row: vec![] })
    }

    /// As [`Session::next_frame`].
    pub fn next_frame(&mut self, codes: &mut Vec<i32>) -> Result<Step, ModelError> {
        let step = self.session.next_frame(codes)?;
        if step == Step::Frame {
            self.look()?;
        }
        Ok(step)
    }

    /// As [`Session::give_frame`].
    pub fn give_frame(&mut self, code: i32) -> Result<(), ModelError> {
        self.session.give_frame(&[code])?;
        self.look()
    }

    /// Computes the attention of the newest row from what its frame left.
    fn look(&mut self) -> Result<(), ModelError> {
        self.session.read(ALIGNED, &mut self.aligned)?;
        // The first lane is the one with the text.
        let (queries, rest) = self.aligned.split_at(ALIGNED_HEADS * self.head_dim);
        self.keys.extend_from_slice(&rest[..queries.len()]);
        self.row.clear();
        self.row.resize(self.text.len(), 0.0);
        for (head, query) in queries.chunks_exact(self.head_dim).enumerate() {
            let keys = self.keys.chunks_exact(self.head_dim).skip(head).step_by(ALIGNED_HEADS);
            let scale = (self.head_dim as f32).sqrt().recip();
            let mut scores: Vec<f32> = keys.map(|key| scale * dot(query, key)).collect();
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().for_each(|x| *x = (*x - most).exp());
            let whole = scores.iter().sum::<f32>() * ALIGNED_HEADS as f32;
            self.row.iter_mut().zip(&scores[self.text.clone()]).for_each(|(sum, x)| *sum += x / whole);
        }
        Ok(())
    }

    /// Attention `[columns]` of the newest row to the ids of the text, the mean of the heads.
    pub fn row(&self) -> &[f32] {
        &self.row
    }

    pub fn row_mut(&mut self) -> &mut [f32] {
        &mut self.row
    }

    pub fn session(&mut self) -> &mut Session<T3> {
        &mut self.session
    }

    /// As [`Session::counters`].
    pub fn counters(&self) -> Counters {
        self.session.counters()
    }

    /// As [`Session::reused_rows`].
    pub fn reused_rows(&self) -> usize {
        self.session.reused_rows()
    }
}

/// Returns when each character begins, in seconds of speech. `rows` `[codes, columns]` is the attention of
/// the row of each of `codes`, and `columns_of` the column with which each character begins. Empty if the
/// attention is not finite.
pub(super) fn letter_times(rows: &[f32], codes: &[i32], columns: usize, columns_of: &[usize]) -> Vec<f32> {
    // What comes before a start is not spoken.
    let silent = codes.iter().position(|code| *code == START_OF_SPEECH).map_or(0, |at| at + 1);
    let rows: Vec<&[f32]> = rows.chunks_exact(columns).collect();
    // The row of a code attends to the text of the next one. What attends to the text of the first is not
    // read, so it counts as the second.
    let map = (silent..codes.len()).filter_map(|code| rows.get(code.max(1) - 1)).copied();
    let starts = starts(&map.collect::<Vec<_>>().concat(), columns, 0.0);
    let time = |column: &usize| starts[(*column).min(columns - 1)] / CODES_PER_SECOND;
    if starts.is_empty() { vec![] } else { columns_of.iter().map(time).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_the_attention() {
        // Letters in columns 1 and 3, four codes of each.
        let spoken = [1, 1, 1, 1, 3, 3, 3, 3, 4];
        let row = |column: &usize| {
            let mut row = [0.01; 5];
            row[*column] = 1.0;
            row
        };
        // All codes are spoken, or the first one is a start.
        for silent in [0, 1] {
            let rows: Vec<f32> = spoken[1 - silent..].iter().flat_map(row).collect();
            let mut codes = vec![7; silent + 8];
            codes[..silent].fill(START_OF_SPEECH);
            let times = letter_times(&rows, &codes, 5, &[1, 3, 9]);
            for (time, want) in times.iter().zip([0.0, 0.16, 0.32]) {
                assert!((time - want).abs() <= 0.04, "{silent}: {times:?}");
            }
        }
    }

    #[test]
    fn strange_attention_gives_no_times_or_some() {
        assert!(letter_times(&[], &[], 3, &[0]).is_empty());
        assert!(letter_times(&[f32::NAN; 6], &[7, 7], 3, &[0]).is_empty());
        assert_eq!(letter_times(&[0.0; 3], &[7], 3, &[0, 2]).len(), 2);
        assert_eq!(letter_times(&[0.0; 6], &[START_OF_SPEECH; 2], 3, &[0, 2]).len(), 2);
    }

    #[test]
    fn products_of_any_length() {
        for n in [1, 15, 16, 17, 64, 70] {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            assert_eq!(dot(&a, &vec![2.0; n]), (n * (n - 1)) as f32);
        }
    }
}
