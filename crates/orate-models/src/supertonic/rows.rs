//! Pieces to speak as rows of a run, and what becomes of them; see [`super::shared_rows`].

use super::voice::Voice;
use crate::decoding::coalescer::Coalescer;
use crate::{Cancel, ModelError};
use orate_graph::{Counters, SharedFloats};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// Maximum rows of a run.
pub(super) const MOST_ROWS: usize = 32;

/// Maximum runs at a time, and more where few texts are spoken.
const RUNS: usize = 2;

/// A piece to speak.
pub(super) struct Row {
    pub ids: Vec<i32>,
    pub voice: Arc<Voice>,
    pub seed: u64,
    pub steps: usize,
    pub speed: f32,
    /// Forced latent frames, in place of those that are predicted.
    pub frames: Option<usize>,
}

/// How a run of one row is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct How {
    /// Letters are found.
    pub aligns: bool,
    /// Stages are timed apart.
    pub waits_for_stages: bool,
}

/// Speech of a piece.
pub(super) struct Speech {
    /// Samples of a run, and which of them are the row's: whole latent frames. Each caller copies its own.
    pub samples: (SharedFloats, Range<usize>),
    /// Samples of the predicted duration.
    pub wanted: usize,
    pub frames: usize,
    /// What the run asked of the device, and time of each of [`super::stage::Stage::ALL`]: for the first of a
    /// text's rows in a run.
    pub counters: Counters,
    pub laps: [Duration; 4],
    /// Latent frame, with a fraction, in which each letter begins, if letters are found.
    pub letter_starts: Vec<f32>,
}

/// Rows of a caller.
pub(super) struct Job {
    pub rows: Vec<Row>,
    pub cancel: Cancel,
}

/// Results of a job's rows.
pub(super) type Answer = Vec<Result<Speech, ModelError>>;

/// Runs of several rows.
pub(super) struct SharedRows {
    pub coalescer: Coalescer<Job, Answer>,
    /// Texts that are being spoken.
    pub texts: AtomicUsize,
}

impl SharedRows {
    /// For a device where up to `apart` texts may have runs of their own.
    pub fn new(apart: usize) -> SharedRows {
        let coalescer = Coalescer::with_leaders(Duration::ZERO, RUNS, apart);
        SharedRows { coalescer, texts: AtomicUsize::new(0) }
    }
}
