//! The alignment guard: watches where in the text the speech is, and when it should end.
//!
//! A few heads of T3 attend to the text that is being spoken. From their attention the guard finds a position
//! in the text after each code. While the text is not over, speech must not end; when it lingers on the end
//! of the text, returns to earlier text or repeats a code, it has to.
//!
//! Version 0.1.7 of the official package has it for Multilingual: `AlignmentStreamAnalyzer`. The rules are
//! the same here, also where they seem odd: a code may not follow itself.

use super::alignment::Watched;
use super::config::{START_OF_SPEECH, T3Config};
use super::t3::END_BIAS;
use super::t3_plans::{Prompt, T3};
use crate::decoding::{Decoding, DrawSettings, Step};
use crate::{FinishReason, ModelError};
use std::ops::RangeInclusive;

/// Moves of the position that are speech; others are chance.
const MOVES: RangeInclusive<isize> = -3..=6;
/// Columns at the end of the text. The text is complete once the position reaches them, and lingering on one
/// of them is a long tail.
const END: usize = 3;
/// Columns at the end of the text that are no repetition. Texts that are not longer may end at any time.
const LATE: usize = 5;
/// Attention, summed over codes, that is too much: five codes, 200 ms.
const TOO_MUCH: f32 = 5.0;
/// Added to a logit so that its code is never drawn.
pub(super) const NEVER: f32 = -32768.0;

/// What the guard makes of the next code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Any code may follow.
    Free,
    /// Speech goes on.
    GoOn,
    /// Speech has to end here.
    End,
}

/// The guard's view of an utterance.
#[derive(Debug)]
pub(super) struct Analyzer {
    /// Ids of the text.
    columns: usize,
    /// Codes that were seen.
    codes: usize,
    last: i32,
    position: usize,
    /// Attention since the text was complete: to each of the last columns, and the largest to an earlier one.
    complete: Option<([f32; END], f32)>,
}

impl Analyzer {
    /// Before the first code of a text of `columns` ids. Also returns what holds for that code.
    pub fn new(columns: usize) -> (Analyzer, Verdict) {
        let mut analyzer = Analyzer { columns, codes: 0, last: START_OF_SPEECH, position: 0, complete: None };
        // The row of the start: as only its first column would be looked at, it says nothing.
        let verdict = analyzer.look(&[]);
        (analyzer, verdict)
    }

    /// Takes a code, and the attention `[columns]` of its row to the text. Columns that speech cannot have
    /// reached yet are set to 0. Returns what holds for the next code.
    pub fn step(&mut self, code: i32, row: &mut [f32]) -> Verdict {
        let repeated = self.codes > 0 && code == self.last;
        (self.codes, self.last) = (self.codes + 1, code);
        row.iter_mut().skip(self.codes + 1).for_each(|x| *x = 0.0);
        let verdict = self.look(row);
        if repeated { Verdict::End } else { verdict }
    }

    fn look(&mut self, row: &[f32]) -> Verdict {
        let mut tail = [0.0; END];
        let (mut largest, mut earlier, mut current) = (0.0, 0.0, 0);
        for (i, &x) in row.iter().enumerate() {
            if x > largest {
                (largest, current) = (x, i);
            }
            if i + LATE < self.columns && x > earlier {
                earlier = x;
            }
            if let Some(at) = (i + END).checked_sub(self.columns) {
                tail[at] = x;
            }
        }
        let mut ends = false;
        if let Some((sums, repetition)) = &mut self.complete {
            sums.iter_mut().zip(tail).for_each(|(sum, x)| *sum += x);
            *repetition += earlier;
            ends = sums.iter().any(|sum| *sum >= TOO_MUCH) || *repetition > TOO_MUCH;
        }
        if MOVES.contains(&current.wrapping_sub(self.position).cast_signed()) {
            self.position = current;
        }
        if self.position + END >= self.columns && self.complete.is_none() {
            self.complete = Some(([0.0; END], 0.0));
        }
        if ends {
            Verdict::End
        } else if current + END < self.columns && self.columns > LATE {
            Verdict::GoOn
        } else {
            Verdict::Free
        }
    }

    /// Where in the text the speech is.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Whether the text is over.
    pub fn is_complete(&self) -> bool {
        self.complete.is_some()
    }
}

/// An utterance under the guard: each code depends on what the host makes of the attention before it.
pub(super) struct Guarded {
    /// The utterance. The analyzer has changed its newest row.
    pub watched: Watched,
    lanes: usize,
    analyzer: Analyzer,
    verdict: Verdict,
}

impl Guarded {
    /// Reads a prompt. `t3` is a [`T3::watched`].
    pub fn start(
        t3: &Decoding<T3>,
        config: &T3Config,
        prompt: &Prompt,
        settings: DrawSettings,
    ) -> Result<Guarded, ModelError> {
        let watched = Watched::start(t3, config, prompt, settings)?;
        let (analyzer, verdict) = Analyzer::new(prompt.text.len());
        Ok(Guarded { watched, lanes: config.lanes(), analyzer, verdict })
    }

    /// As [`Watched::next_frame`]. Speech that has to end before the text does is a runaway.
    pub fn next_frame(&mut self, codes: &mut Vec<i32>) -> Result<Step, ModelError> {
        if self.verdict == Verdict::End {
            codes.clear();
            let reason = match self.analyzer.is_complete() {
                true => FinishReason::Stop,
                false => FinishReason::Runaway,
            };
            return Ok(Step::End(reason));
        }
        let bias = if self.verdict == Verdict::GoOn { NEVER } else { 0.0 };
        self.watched.session().write(END_BIAS, &[self.lanes, 1, 1].into(), &vec![bias; self.lanes])?;
        let step = self.watched.next_frame(codes)?;
        if step == Step::Frame {
            self.look(codes[0]);
        }
        Ok(step)
    }

    /// As [`Watched::give_frame`].
    pub fn give_frame(&mut self, code: i32) -> Result<(), ModelError> {
        self.watched.give_frame(code)?;
        self.look(code);
        Ok(())
    }

    fn look(&mut self, code: i32) {
        self.verdict = self.analyzer.step(code, self.watched.row_mut());
    }

    /// What holds for the next code.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    pub fn analyzer(&self) -> &Analyzer {
        &self.analyzer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: usize = 12;

    /// What holds after the last of these columns, each attended to alone, with a code that is new.
    fn after(columns: &[usize]) -> (Analyzer, Verdict) {
        let (mut analyzer, mut verdict) = Analyzer::new(COLUMNS);
        for (code, column) in columns.iter().enumerate() {
            let mut row = [0.0; COLUMNS];
            row[*column] = 0.5;
            verdict = analyzer.step(code as i32, &mut row);
        }
        (analyzer, verdict)
    }

    /// Every column up to the last for two codes, then `more`.
    fn after_reading(more: &[usize]) -> Verdict {
        let read: Vec<usize> = (2..2 * COLUMNS).map(|i| i / 2).collect();
        after(&[&read, more].concat()).1
    }

    #[test]
    fn speech_goes_on_while_there_is_text() {
        assert_eq!(Analyzer::new(COLUMNS).1, Verdict::GoOn);
        assert_eq!(Analyzer::new(LATE).1, Verdict::Free, "a short text");
        for last in 0..COLUMNS {
            let columns: Vec<usize> = (0..=last).collect();
            let (analyzer, verdict) = after(&columns);
            assert_eq!(analyzer.position(), last);
            let is_late = last >= COLUMNS - END;
            assert_eq!(verdict, if is_late { Verdict::Free } else { Verdict::GoOn });
            assert_eq!(analyzer.is_complete(), is_late);
        }
    }

    #[test]
    fn the_end_of_the_text_is_not_reached_at_once() {
        // Columns that are as far as this are not looked at yet.
        let (analyzer, verdict) = after(&[11, 11, 11]);
        assert_eq!((analyzer.position(), verdict), (0, Verdict::GoOn));
        // A jump may be chance: speech could end there, but the text is not complete.
        let (analyzer, verdict) = after(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11]);
        assert_eq!((analyzer.position(), verdict, analyzer.is_complete()), (0, Verdict::Free, false));
    }

    #[test]
    fn lingering_on_the_end_is_too_long() {
        // Reading has attended to this column for two codes already.
        assert_eq!(after_reading(&[11; 7]), Verdict::Free);
        assert_eq!(after_reading(&[11; 8]), Verdict::End);
        assert_eq!(after_reading(&[9, 11, 10, 11, 9, 11, 10]), Verdict::Free, "each column counts alone");
    }

    #[test]
    fn returning_to_earlier_text_is_a_repetition() {
        assert_eq!(after_reading(&[2, 3, 4, 5, 6, 2, 3, 4, 5, 6]), Verdict::GoOn, "as much as allowed");
        assert_eq!(after_reading(&[2, 3, 4, 5, 6, 2, 3, 4, 5, 6, 2]), Verdict::End);
        assert_eq!(after_reading(&[7; 20]), Verdict::GoOn, "late text is none");
    }

    #[test]
    fn a_code_may_not_follow_itself() {
        let (mut analyzer, _) = Analyzer::new(COLUMNS);
        let mut step = |code| analyzer.step(code, &mut [0.5; COLUMNS]);
        assert_eq!(step(START_OF_SPEECH), Verdict::GoOn, "the start is not drawn");
        assert_eq!([7, 8, 7, 7, 8].map(&mut step)[2..], [Verdict::GoOn, Verdict::End, Verdict::GoOn]);
    }
}
