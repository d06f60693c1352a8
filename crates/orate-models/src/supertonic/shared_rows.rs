//! Pieces that are spoken in one run.
//!
//! A run for one piece leaves most of a GPU idle: sixteen pieces in one take as long as five alone (H100,
//! `f16`). Pieces of a text are spoken in growing groups, and those of several callers meet while the device
//! is at work ([`crate::decoding::coalescer`]), where two runs are under way at a time, so that the device
//! has work while the host takes the samples of one. Rows of a run have lengths of their own, so that each is
//! what it would be alone, up to the rounding of other kernels.

use super::rows::{Answer, How, Job, MOST_ROWS, Row, SharedRows, Speech};
use super::session::{Noise, Session, Supertonic};
use super::stage::Stage;
use super::voice::Voice;
use crate::decoding::coalescer::Patience;
use crate::decoding::error::panicked;
use crate::{Cancel, ModelError, Size};
use std::collections::HashSet;
use std::iter::repeat_n;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum tokens of a run, those that pad rows included: the vocoder takes some 70 kB for each, in f32.
const MOST_TOKENS: usize = 8 << 10;

/// Cost of a run in tokens, however many it has: on an H100 in `f16` a sentence of 80 tokens takes 3.4 ms,
/// and each further one 0.8 ms.
const TOKENS_OF_A_RUN: usize = 260;

/// How long a run waits for others that speak: their next pieces come within this time after the last run.
const WAIT: Duration = Duration::from_micros(500);

/// A text that is being spoken.
pub(super) struct Speaking(Arc<Supertonic>);

impl Speaking {
    /// Counts a text, where runs are shared.
    pub fn new(model: &Arc<Supertonic>) -> Option<Speaking> {
        model.shared.as_ref()?.texts.fetch_add(1, Ordering::Relaxed);
        Some(Speaking(model.clone()))
    }

    fn shared(&self) -> &SharedRows {
        self.0.shared.as_ref().expect("runs are shared")
    }

    /// Rows that a text may speak at once, so that all texts together have those of one run.
    pub fn most(&self) -> usize {
        (MOST_ROWS / self.shared().texts.load(Ordering::Relaxed).max(1)).max(1)
    }

    /// Speaks rows, with those of other texts that wait.
    pub fn speak(&self, rows: Vec<Row>, cancel: &Cancel) -> Answer {
        let (count, shared) = (rows.len(), self.shared());
        let texts = shared.texts.load(Ordering::Relaxed);
        let job = Job { rows, cancel: cancel.clone() };
        if texts <= shared.apart {
            return self.lead(vec![job]).pop().expect("an answer for each job");
        }
        let patience = Patience { time: WAIT, enough: texts };
        let all =
            shared.coalescer.call(None, (job, patience), (MOST_ROWS, |_, _| true), |jobs| self.lead(jobs));
        let lost = || Err(panicked("the thread that ran the model has panicked"));
        all.unwrap_or_else(|| (0..count).map(|_| lost()).collect())
    }

    /// Speaks all rows, in as few runs as are worth it.
    fn lead(&self, jobs: Vec<Job>) -> Vec<Answer> {
        let counts: Vec<usize> = jobs.iter().map(|job| job.rows.len()).collect();
        let rows: Vec<(&Row, &Cancel)> =
            jobs.iter().flat_map(|job| job.rows.iter().map(|row| (row, &job.cancel))).collect();
        let mut results: Vec<Option<Result<Speech, ModelError>>> = rows.iter().map(|_| None).collect();
        let texts: Vec<usize> = counts.iter().enumerate().flat_map(|(i, n)| repeat_n(i, *n)).collect();
        for run in runs(&rows.iter().map(|(row, _)| (row.steps, row.ids.len())).collect::<Vec<_>>()) {
            let some: Vec<(&Row, &Cancel)> = run.iter().map(|i| rows[*i]).collect();
            let mut seen = HashSet::new();
            for (i, mut result) in run.iter().zip(self.0.speak_rows(&some)) {
                if let Ok(speech) = &mut result
                    && !seen.insert(texts[*i])
                {
                    (speech.counters, speech.laps) = Default::default();
                }
                results[*i] = Some(result);
            }
        }
        let mut results = results.into_iter().map(|result| result.expect("each row is in a run"));
        counts.into_iter().map(|count| results.by_ref().take(count).collect()).collect()
    }
}

impl Drop for Speaking {
    fn drop(&mut self) {
        self.shared().texts.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A sentence of five seconds, with which runs are warmed up.
const USUAL: Size = Size { tokens: 80, frames: 72 };

impl Supertonic {
    /// Does a run of each size that `callers` may have, where runs are shared: its kernels are compiled then.
    pub(super) fn warm_up_rows(&self, steps: usize, callers: usize) -> Result<(), ModelError> {
        if self.shared.is_none() {
            return Ok(());
        }
        let voice = self.voice(self.files().default_voice())?;
        let row = |seed| Row {
            ids: vec![1; USUAL.tokens],
            voice: voice.clone(),
            seed,
            steps,
            speed: 1.0,
            frames: Some(USUAL.frames),
        };
        let (rows, cancel) = ((0..MOST_ROWS as u64).map(row).collect::<Vec<_>>(), Cancel::default());
        let sizes = std::iter::successors(Some(2), |rows| Some(2 * rows));
        for count in sizes.take_while(|count| *count <= MOST_ROWS && *count < 2 * callers) {
            let some: Vec<(&Row, &Cancel)> = rows[..count].iter().map(|row| (row, &cancel)).collect();
            self.speak_rows(&some).into_iter().try_for_each(|speech| speech.map(drop))?;
        }
        Ok(())
    }

    /// Speaks a row.
    pub(super) fn speak_alone(&self, row: &Row, cancel: &Cancel, how: How) -> Result<Speech, ModelError> {
        self.run_rows(&[(row, cancel)], how)?.pop().expect("a result for each row")
    }

    /// Speaks rows of equal steps in one run; one by one if that fails, since the device may lack room.
    fn speak_rows(&self, rows: &[(&Row, &Cancel)]) -> Answer {
        match self.run_rows(rows, How::default()) {
            Ok(results) => results,
            Err(e) if rows.len() == 1 => vec![Err(e)],
            Err(ModelError::Cancelled) => rows.iter().map(|_| Err(ModelError::Cancelled)).collect(),
            Err(e) => {
                tracing::warn!("{} pieces are spoken one by one: {e}", rows.len());
                rows.iter().flat_map(|row| self.speak_rows(std::slice::from_ref(row))).collect()
            }
        }
    }

    /// Letters are found in a row alone. An error is that of all rows.
    fn run_rows(&self, rows: &[(&Row, &Cancel)], how: How) -> Result<Answer, ModelError> {
        let go_on = || rows.iter().any(|(_, cancel)| !cancel.is_cancelled());
        let check = || if go_on() { Ok(()) } else { Err(ModelError::Cancelled) };
        check()?;
        let mut s = self.session();
        if how.aligns {
            s.align();
        }
        let texts: Vec<(&[i32], &Voice)> = rows.iter().map(|(row, _)| (&*row.ids, &*row.voice)).collect();
        // A row alone is computed at its own size.
        match rows {
            [_] => s.set_text(&texts)?,
            _ => s.set_texts(&texts)?,
        }
        let (mut laps, mut last) = ([Duration::ZERO; 4], Instant::now());
        let mut lap = |s: &mut Session<'_>, stage: Stage| {
            if how.waits_for_stages {
                s.wait()?;
            }
            let now = Instant::now();
            laps[stage as usize] = now - std::mem::replace(&mut last, now);
            Ok::<(), ModelError>(())
        };
        let seconds = s.durations()?;
        lap(&mut s, Stage::DurationPredictor)?;
        // Frames and samples of each row; damaged ones have one frame.
        let length = |((row, _), seconds): (&(&Row, &Cancel), &f32)| match row.frames {
            Some(forced) => Ok((forced, usize::MAX)),
            None => {
                self.check_duration(*seconds, row.ids.len())?;
                Ok(self.frames_for(*seconds, row.speed))
            }
        };
        let lengths: Vec<Result<(usize, usize), ModelError>> =
            rows.iter().zip(&seconds).map(length).collect();
        if lengths.iter().all(Result::is_err) {
            return Ok(lengths.into_iter().map(|length| Err(length.expect_err("all are errors"))).collect());
        }
        let frames: Vec<usize> =
            lengths.iter().map(|l| l.as_ref().map_or(1, |(frames, _)| *frames)).collect();
        s.encode_text()?;
        lap(&mut s, Stage::TextEncoder)?;
        check()?;
        let seeds: Vec<u64> = rows.iter().map(|(row, _)| row.seed).collect();
        let noise = if let [seed] = seeds[..] { Noise::Seed(seed) } else { Noise::Seeds(&seeds) };
        s.prepare(&frames, rows[0].0.steps, noise)?;
        s.denoise(&go_on)?;
        lap(&mut s, Stage::VectorEstimator)?;
        check()?;
        let mut all = vec![];
        s.vocode(&mut all)?;
        lap(&mut s, Stage::Vocoder)?;
        let letter_starts = if how.aligns { s.letter_starts()? } else { vec![] };
        let (counters, of_frame) = (s.counters(), self.files().config.samples_per_latent());
        let (of_row, all) = (all.len() / s.rows(), Arc::new(all));
        let speech = |(i, length): (usize, Result<(usize, usize), ModelError>)| {
            let (frames, wanted) = length?;
            rows[i].1.check()?;
            let samples = (all.clone(), i * of_row..i * of_row + frames * of_frame);
            Ok(Speech { samples, wanted, frames, counters, laps, letter_starts: letter_starts.clone() })
        };
        Ok(lengths.into_iter().enumerate().map(speech).collect())
    }
}

/// Cost of a run of `count` rows of at most `longest` tokens, in tokens.
fn cost(count: usize, longest: usize) -> usize {
    TOKENS_OF_A_RUN + count.next_power_of_two() * longest
}

/// Runs of rows, given by steps and tokens: those whose sum of costs is least. Rows of a run have equal
/// steps.
fn runs(rows: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let mut sorted: Vec<usize> = (0..rows.len()).collect();
    sorted.sort_by_key(|i| rows[*i]);
    // Of the first rows: the least cost, and where its last run begins.
    let mut best: Vec<(usize, usize)> = vec![(0, 0)];
    for end in 1..=sorted.len() {
        let (steps, longest) = rows[sorted[end - 1]];
        let fits = |begin: &usize| {
            let padded = (end - begin).next_power_of_two() * longest;
            end - begin == 1 || rows[sorted[*begin]].0 == steps && padded <= MOST_TOKENS
        };
        let begins = (end.saturating_sub(MOST_ROWS)..end).filter(fits);
        let costs = begins.map(|begin| (best[begin].0 + cost(end - begin, longest), begin));
        best.push(costs.min().expect("a row alone fits"));
    }
    let (mut all, mut end) = (vec![], sorted.len());
    while end > 0 {
        let begin = best[end].1;
        all.push(sorted[begin..end].to_vec());
        end = begin;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supertonic::Files;
    use orate_testing::ReferenceDevice;
    use std::path::{Path, PathBuf};

    fn golden(name: &str) -> PathBuf {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../oracle/supertonic/golden")).join(name)
    }

    #[test]
    fn a_row_is_what_it_is_alone() {
        for model in ["tiny", "tiny3"] {
            let files = Files::open(&golden(model)).expect("opens");
            let voice = Arc::new(files.voice(files.default_voice()).expect("a voice"));
            let model = Supertonic::new(files, Arc::new(ReferenceDevice)).expect("opens");
            let row = |(i, length): (usize, &usize)| Row {
                ids: (0..*length as i32).map(|n| 1 + (7 * n + i as i32) % 40).collect(),
                voice: voice.clone(),
                seed: i as u64,
                steps: 2,
                speed: 1.0 + i as f32 / 4.0,
                frames: Some(3 + 5 * i),
            };
            let rows: Vec<Row> = [23, 6, 1].iter().enumerate().map(row).collect();
            let cancel = Cancel::default();
            let all: Vec<(&Row, &Cancel)> = rows.iter().map(|row| (row, &cancel)).collect();
            let together = model.speak_rows(&all);
            for (row, speech) in rows.iter().zip(together) {
                let alone = model.speak_alone(row, &cancel, How::default()).expect("speaks");
                let speech = speech.expect("speaks");
                assert_eq!((speech.wanted, speech.frames), (alone.wanted, alone.frames));
                let [got, want] = [&speech, &alone].map(|s| &s.samples.0[s.samples.1.clone()]);
                let error = crate::hooks::relative_error(got, want);
                assert!(got.len() == want.len() && error < 1e-5, "{error}");
            }
        }
    }

    /// Numbers of rows of each run.
    fn counts(rows: &[(usize, usize)]) -> Vec<usize> {
        let runs = runs(rows);
        let mut all: Vec<usize> = runs.iter().flatten().copied().collect();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..rows.len()), "each row is in one run: {runs:?}");
        let mut counts: Vec<usize> = runs.iter().map(Vec::len).collect();
        counts.sort_unstable();
        counts
    }

    #[test]
    fn rows_share_runs_where_it_saves_work() {
        for count in [1, 2, 3, 4, 8, 16] {
            assert_eq!(counts(&vec![(5, 80); count]), [count]);
        }
        // Padding costs less than another run, or not.
        assert_eq!(counts(&[(5, 80); 7]), [7]);
        assert_eq!(counts(&[(5, 300); 9]), [1, 8]);
        assert_eq!(counts(&[(5, 80); 20]), [4, 16]);
        assert_eq!(counts(&[(5, 20), (5, 30), (5, 900), (5, 25), (5, 1000)]), [2, 3]);
        assert_eq!(counts(&[(5, 80), (8, 80), (5, 80)]), [1, 2], "steps are those of a run");
        assert_eq!(counts(&[(5, 5000); 3]), [1, 1, 1], "of the longest texts, each has a run");
        assert_eq!(counts(&[]), [] as [usize; 0]);
    }
}
