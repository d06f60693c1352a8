//! Pieces that are spoken in one run.
//!
//! A run for one piece leaves most of a GPU idle: sixteen pieces in one take three times as long as one
//! alone (H200, `f16`). Pieces of a text are spoken in growing groups. Those of several callers meet while
//! the device is at work ([`crate::decoding::coalescer`]), where two runs are under way at a time, so that
//! the device has work while the host takes the samples of one; and those that come while a run predicts
//! durations join it. Rows of a run have lengths of their own, so that each is what it would be alone, up to
//! the rounding of other kernels.

use super::rows::{Answer, How, Job, MOST_ROWS, Row, SharedRows, Speech};
use super::session::{Noise, Session, Supertonic};
use super::stage::Stage;
use super::voice::Voice;
use crate::decoding::coalescer::{Open, padded_rows};
use crate::decoding::error::panicked;
use crate::{Cancel, ModelError, Size};
use std::collections::HashSet;
use std::iter::repeat_n;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum latent frames of a run, those that pad rows included: the vocoder takes some 80 kB for each, in
/// f32.
const MOST_FRAMES: usize = 7 << 10;

/// Cost of a run in latent frames, however many it has: on an H200 in `f16` a sentence of 72 frames takes 3.3
/// ms, and sixteen take 9.7.
const FRAMES_OF_A_RUN: usize = 490;

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
        let count = rows.len();
        let job = Job { rows, cancel: cancel.clone() };
        let all = self.shared().coalescer.call_open(job, MOST_ROWS, |jobs, open| self.lead(jobs, open));
        let lost = || Err(panicked("the thread that ran the model has panicked"));
        all.unwrap_or_else(|| (0..count).map(|_| lost()).collect())
    }

    /// Speaks all rows, and those that come while durations are predicted, in as few runs as are worth it.
    fn lead(&self, mut jobs: Vec<Job>, mut open: Open<'_, '_, Job, Answer>) -> Vec<Answer> {
        let (model, mut stages) = (&self.0, Stages::new(false));
        let (mut session, mut all, mut lengths) = (model.session(), vec![], vec![]);
        while !jobs.is_empty() {
            lengths.extend(model.all_lengths(&mut session, &rows(&jobs), &mut stages));
            all.append(&mut jobs);
            jobs = open.take();
        }
        let rows = rows(&all);
        let texts = all.iter().enumerate().flat_map(|(i, job)| repeat_n(i, job.rows.len()));
        let texts: Vec<usize> = texts.collect();
        let sizes = rows.iter().zip(&lengths).map(|((row, _), l)| Some((row.steps, l.as_ref().ok()?.frames)));
        let runs = runs(&sizes.collect::<Vec<_>>());
        let mut results: Vec<Option<Result<Speech, ModelError>>> = lengths.iter().map(|_| None).collect();
        let mut session = Some(session);
        for run in runs {
            let some: Vec<(&Row, &Cancel)> = run.iter().map(|i| rows[*i]).collect();
            let of_run: Vec<Length> = run.iter().filter_map(|i| lengths[*i].as_ref().ok().copied()).collect();
            let session = session.take().unwrap_or_else(|| model.session());
            let is_set = rows.len() == 1;
            let mut seen = HashSet::new();
            for (i, mut result) in run.iter().zip(model.speak_rows(session, &some, &of_run, (is_set, stages)))
            {
                if let Ok(speech) = &mut result
                    && !seen.insert(texts[*i])
                {
                    (speech.counters, speech.laps) = Default::default();
                }
                results[*i] = Some(result);
            }
            stages = Stages::new(false);
        }
        let result = |(result, length): (Option<_>, Result<Length, ModelError>)| match (result, length) {
            (Some(result), _) => result,
            (None, length) => Err(length.expect_err("a row that has a length is in a run")),
        };
        let mut results = results.into_iter().zip(lengths).map(result);
        all.iter().map(|job| results.by_ref().take(job.rows.len()).collect()).collect()
    }
}

/// The rows of all jobs.
fn rows(jobs: &[Job]) -> Vec<(&Row, &Cancel)> {
    jobs.iter().flat_map(|job| job.rows.iter().map(|row| (row, &job.cancel))).collect()
}

/// Latent frames of a row, and samples of its predicted duration.
#[derive(Clone, Copy, Debug)]
struct Length {
    frames: usize,
    wanted: usize,
}

/// Time of each stage of a run.
#[derive(Clone, Copy)]
struct Stages {
    laps: [Duration; 4],
    last: Instant,
    /// Stages are waited for.
    apart: bool,
}

impl Stages {
    fn new(apart: bool) -> Stages {
        Stages { laps: Default::default(), last: Instant::now(), apart }
    }

    /// Ends a stage.
    fn end(&mut self, s: &mut Session<'_>, stage: Stage) -> Result<(), ModelError> {
        if self.apart {
            s.wait()?;
        }
        let now = Instant::now();
        self.laps[stage as usize] += now - std::mem::replace(&mut self.last, now);
        Ok(())
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
        let most = callers.min(MOST_ROWS);
        for count in (2..=padded_rows(most)).filter(|count| padded_rows(*count) == *count) {
            let some: Vec<(&Row, &Cancel)> = rows[..count].iter().map(|row| (row, &cancel)).collect();
            let (mut session, mut stages) = (self.session(), Stages::new(false));
            let lengths = self.lengths(&mut session, &some, &mut stages)?;
            let lengths = lengths.into_iter().collect::<Result<Vec<_>, _>>()?;
            self.finish(session, &some, &lengths, stages)?
                .into_iter()
                .try_for_each(|speech| speech.map(drop))?;
        }
        Ok(())
    }

    /// Speaks a row.
    pub(super) fn speak_alone(&self, row: &Row, cancel: &Cancel, how: How) -> Result<Speech, ModelError> {
        let mut session = self.session();
        if how.aligns {
            session.align();
        }
        let (rows, mut stages) = ([(row, cancel)], Stages::new(how.waits_for_stages));
        let length = self.lengths(&mut session, &rows, &mut stages)?.pop().expect("a length for each row")?;
        self.finish(session, &rows, &[length], stages)?.pop().expect("a result for each row")
    }

    /// Speaks rows of equal steps and known lengths in one run; one by one if that fails, since the device
    /// may lack room. Their texts may be set already.
    fn speak_rows(
        &self,
        mut session: Session<'_>,
        rows: &[(&Row, &Cancel)],
        lengths: &[Length],
        (is_set, stages): (bool, Stages),
    ) -> Answer {
        let set = if is_set { Ok(()) } else { self.set_texts(&mut session, rows) };
        match set.and_then(|()| self.finish(session, rows, lengths, stages)) {
            Ok(results) => results,
            Err(e) if rows.len() == 1 => vec![Err(e)],
            Err(ModelError::Cancelled) => rows.iter().map(|_| Err(ModelError::Cancelled)).collect(),
            Err(e) => {
                tracing::warn!("{} pieces are spoken one by one: {e}", rows.len());
                rows.iter().map(|(row, cancel)| self.speak_alone(row, cancel, How::default())).collect()
            }
        }
    }

    /// The length of each row; if that fails for all at once, of one after the other.
    fn all_lengths(
        &self,
        s: &mut Session<'_>,
        rows: &[(&Row, &Cancel)],
        stages: &mut Stages,
    ) -> Vec<Result<Length, ModelError>> {
        match self.lengths(s, rows, stages) {
            Ok(lengths) => lengths,
            Err(e) if rows.len() == 1 => vec![Err(e)],
            Err(_) => rows.chunks(1).flat_map(|row| self.all_lengths(s, row, stages)).collect(),
        }
    }

    /// Sets the texts of rows. Where compiling a plan takes longer than running it, sizes are rounded up, so
    /// that texts of similar length share plans; else a row alone has its own size.
    fn set_texts(&self, s: &mut Session<'_>, rows: &[(&Row, &Cancel)]) -> Result<(), ModelError> {
        let texts: Vec<(&[i32], &Voice)> = rows.iter().map(|(row, _)| (&*row.ids, &*row.voice)).collect();
        if rows.len() == 1 && (self.shared.is_none() || s.aligns()) {
            s.set_text(&texts)
        } else {
            s.set_texts(&texts)
        }
    }

    /// Predicts the length of each row. An error is that of all rows.
    fn lengths(
        &self,
        s: &mut Session<'_>,
        rows: &[(&Row, &Cancel)],
        stages: &mut Stages,
    ) -> Result<Vec<Result<Length, ModelError>>, ModelError> {
        check(rows)?;
        self.set_texts(s, rows)?;
        let seconds = s.durations()?;
        stages.end(s, Stage::DurationPredictor)?;
        let length = |((row, _), seconds): (&(&Row, &Cancel), &f32)| match row.frames {
            Some(frames) => Ok(Length { frames, wanted: usize::MAX }),
            None => {
                self.check_duration(*seconds, row.ids.len())?;
                let (frames, wanted) = self.frames_for(*seconds, row.speed);
                Ok(Length { frames, wanted })
            }
        };
        Ok(rows.iter().zip(&seconds).map(length).collect())
    }

    /// Speaks rows whose texts are set. Letters are found in a row alone. An error is that of all rows.
    fn finish(
        &self,
        mut s: Session<'_>,
        rows: &[(&Row, &Cancel)],
        lengths: &[Length],
        mut stages: Stages,
    ) -> Result<Answer, ModelError> {
        check(rows)?;
        s.encode_text()?;
        stages.end(&mut s, Stage::TextEncoder)?;
        let frames: Vec<usize> = lengths.iter().map(|length| length.frames).collect();
        let seeds: Vec<u64> = rows.iter().map(|(row, _)| row.seed).collect();
        let noise = if s.is_rounded() { Noise::Seeds(&seeds) } else { Noise::Seed(rows[0].0.seed) };
        s.prepare(&frames, rows[0].0.steps, noise)?;
        s.denoise(&|| check(rows).is_ok())?;
        stages.end(&mut s, Stage::VectorEstimator)?;
        check(rows)?;
        let all = s.vocode_for_all()?;
        stages.end(&mut s, Stage::Vocoder)?;
        let letter_starts = s.letter_starts()?;
        let (counters, of_frame) = (s.counters(), self.files().config.samples_per_latent());
        let of_row = (*all).as_ref().len() / s.rows();
        let speech = |(i, Length { frames, wanted }): (usize, &Length)| {
            rows[i].1.check()?;
            let samples = (all.clone(), i * of_row..i * of_row + frames * of_frame);
            let (wanted, frames, laps) = (*wanted, *frames, stages.laps);
            Ok(Speech { samples, wanted, frames, counters, laps, letter_starts: letter_starts.clone() })
        };
        Ok(lengths.iter().enumerate().map(speech).collect())
    }
}

/// Goes on while a row is wanted.
fn check(rows: &[(&Row, &Cancel)]) -> Result<(), ModelError> {
    if rows.iter().all(|(_, cancel)| cancel.is_cancelled()) { Err(ModelError::Cancelled) } else { Ok(()) }
}

/// Cost of a run of `count` rows of at most `longest` frames, in frames.
fn cost(count: usize, longest: usize) -> usize {
    FRAMES_OF_A_RUN + padded_rows(count) * longest
}

/// Runs of rows, given by steps and frames, those without left out: the runs whose sum of costs is least.
/// Rows of a run have equal steps.
fn runs(rows: &[Option<(usize, usize)>]) -> Vec<Vec<usize>> {
    let mut sorted: Vec<(usize, usize, usize)> = rows
        .iter()
        .enumerate()
        .filter_map(|(i, row)| row.map(|(steps, frames)| (steps, frames, i)))
        .collect();
    sorted.sort_unstable();
    // Of the first rows: the least cost, and where its last run begins.
    let mut best: Vec<(usize, usize)> = vec![(0, 0)];
    for end in 1..=sorted.len() {
        let (steps, longest, _) = sorted[end - 1];
        let fits = |begin: &usize| {
            let padded = padded_rows(end - begin) * longest;
            end - begin == 1 || sorted[*begin].0 == steps && padded <= MOST_FRAMES
        };
        let begins = (end.saturating_sub(MOST_ROWS)..end).filter(fits);
        let costs = begins.map(|begin| (best[begin].0 + cost(end - begin, longest), begin));
        best.push(costs.min().expect("a row alone fits"));
    }
    let (mut all, mut end) = (vec![], sorted.len());
    while end > 0 {
        let begin = best[end].1;
        all.push(sorted[begin..end].iter().map(|(.., i)| *i).collect());
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
            let (mut session, mut stages) = (model.session(), Stages::new(false));
            let lengths = model.lengths(&mut session, &all, &mut stages).expect("predicts");
            let lengths: Vec<Length> = lengths.into_iter().map(|l| l.expect("a length")).collect();
            let together = model.speak_rows(session, &all, &lengths, (true, stages));
            for (row, speech) in rows.iter().zip(together) {
                let alone = model.speak_alone(row, &cancel, How::default()).expect("speaks");
                let speech = speech.expect("speaks");
                assert_eq!((speech.wanted, speech.frames), (alone.wanted, alone.frames));
                let [got, want] = [&speech, &alone].map(|s| &(*s.samples.0).as_ref()[s.samples.1.clone()]);
                let error = crate::hooks::relative_error(got, want);
                assert!(got.len() == want.len() && error < 1e-5, "{error}");
            }
        }
    }

    /// Numbers of rows of each run.
    fn counts(rows: &[(usize, usize)]) -> Vec<usize> {
        let runs = runs(&rows.iter().copied().map(Some).collect::<Vec<_>>());
        let mut all: Vec<usize> = runs.iter().flatten().copied().collect();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..rows.len()), "each row is in one run: {runs:?}");
        let mut counts: Vec<usize> = runs.iter().map(Vec::len).collect();
        counts.sort_unstable();
        counts
    }

    #[test]
    fn rows_share_runs_where_it_saves_work() {
        for count in [1, 2, 3, 4, 8, 16, 32] {
            assert_eq!(counts(&vec![(5, 72); count]), [count]);
        }
        // Padding costs less than another run, or not.
        assert_eq!(counts(&[(5, 72); 7]), [7]);
        assert_eq!(counts(&[(5, 300); 9]), [1, 8]);
        assert_eq!(counts(&[(5, 72); 36]), [4, 32]);
        assert_eq!(counts(&[(5, 20), (5, 30), (5, 900), (5, 25), (5, 1000)]), [2, 3]);
        assert_eq!(counts(&[(5, 72), (8, 72), (5, 72)]), [1, 2], "steps are those of a run");
        assert_eq!(counts(&[(5, 5000); 3]), [1, 1, 1], "of the longest texts, each has a run");
        assert_eq!(counts(&[]), [] as [usize; 0]);
        assert_eq!(runs(&[None, Some((5, 72)), None]), [[1]], "a row without frames is in no run");
    }
}
