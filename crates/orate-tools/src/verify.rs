//! Comparing a model with recorded reference values, tensor by tensor. What the values are and how they are
//! computed again is the family's business ([`Goldens`](orate::hooks::Goldens)); here they are judged and
//! counted.

use orate::hooks::{Comparison, Steps};
use orate::{CacheFormat, Engine, Error, ModelError, Precision, Result};
use std::collections::BTreeSet;
use std::path::Path;

pub use orate::hooks::{F32_TOLERANCE, GPU_TOLERANCE, Limit};

/// Tensors that are sound.
const WAVEFORMS: [&str; 2] = ["wav", "waveform"];

/// What to compare.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Cases to run, by name or by the part of it after the last `/`; all of them if empty.
    pub cases: Vec<String>,
    /// What passes. `None`: what the model must reach in the formats in which it computes.
    pub limit: Option<Limit>,
    /// Whether intermediate values are compared too, where the goldens have them.
    pub taps: bool,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions { cases: vec![], limit: None, taps: true }
    }
}

/// A tensor that was compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Case of the goldens.
    pub case: String,
    /// Stage that computed the tensor.
    pub stage: &'static str,
    /// Name in the goldens, without the case.
    pub tensor: String,
    /// Largest difference as a part of the reference's largest magnitude; infinite where shapes differ or a
    /// number is not finite.
    pub error: f64,
    /// Signal-to-noise ratio in dB: of waveforms, or of any tensor where the limit is one of every tensor.
    pub snr: Option<f64>,
    /// Whether it is within the limit.
    pub passed: bool,
}

/// All comparisons.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Tensors that were compared, in the order in which they are computed.
    pub rows: Vec<Row>,
    /// Tensors of the goldens that were not compared, and why.
    pub skipped: Vec<(String, String)>,
    /// What had to be reached.
    pub limit: Limit,
}

impl Report {
    /// Whether something was compared and everything passed.
    pub fn passed(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|r| r.passed)
    }

    /// Whether a tensor was judged by another limit than [`Report::limit`].
    pub fn has_own_limits(&self) -> bool {
        self.rows.iter().any(|r| r.passed != self.limit.allows(r.stage, r.error, r.snr))
    }

    /// The tensor with the lowest signal-to-noise ratio.
    pub fn noisiest(&self) -> Option<&Row> {
        let noisier = |a: &&Row, b: &&Row| a.snr.unwrap_or(0.0).total_cmp(&b.snr.unwrap_or(0.0));
        self.rows.iter().filter(|r| r.snr.is_some()).min_by(noisier)
    }

    /// The tensor with the largest error.
    pub fn worst(&self) -> Option<&Row> {
        self.rows.iter().max_by(|a, b| a.error.total_cmp(&b.error))
    }
}

/// Runs the model on a folder of goldens.
///
/// # Errors
/// The model's family has no goldens, the folder holds none that fit the model, a case does not exist, or the
/// engine fails.
pub fn run(engine: &Engine, folder: &Path, options: &VerifyOptions) -> Result<Report> {
    let bad = |problem: String| Error::from(ModelError::Content { path: folder.to_owned(), problem });
    let Some(goldens) = engine.model().clone().goldens() else {
        return Err(bad(format!("{} models have nothing to be compared with", engine.family_name())));
    };
    let limit = options.limit.clone();
    let limit = limit.unwrap_or_else(|| goldens.limit(engine.precision(), &engine.device_info()));
    let precision = engine.precision().precision;
    let exact = precision == Precision::F32 && engine.kv().unwrap_or_default() == CacheFormat::F32;
    let mut collector = Collector::new(limit, exact, options.taps).only(&options.cases).of(precision);
    goldens.compare(folder, &mut collector)?;
    let Collector { report, known, .. } = collector;
    if let Some(missing) = options.cases.iter().find(|asked| !known.iter().any(|case| is_named(case, asked)))
    {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        return Err(bad(format!("no case `{missing}`; there are: {known}")));
    }
    if report.rows.is_empty() {
        let why = report.skipped.iter().map(|(name, why)| format!("{name}: {why}"));
        return Err(bad(format!("no case fits the model ({})", why.collect::<Vec<_>>().join("; "))));
    }
    Ok(report)
}

/// Whether a case has the name that was asked for, or ends in it after a `/`.
fn is_named(case: &str, asked: &str) -> bool {
    case.strip_suffix(asked).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// Collects a [`Report`] from a family's goldens.
#[derive(Clone, Debug)]
pub struct Collector {
    /// What was compared.
    pub report: Report,
    exact: bool,
    precision: Precision,
    taps: bool,
    cases: Vec<String>,
    /// Cases that the folder has.
    known: BTreeSet<String>,
}

impl Collector {
    /// A collector for every case. With `exact`, ids drawn by the model must be those of the goldens.
    pub fn new(limit: Limit, exact: bool, taps: bool) -> Collector {
        let report = Report { rows: vec![], skipped: vec![], limit };
        let precision = Precision::F32;
        Collector { report, exact, precision, taps, cases: vec![], known: BTreeSet::new() }
    }

    /// Compares only these cases, unless there are none.
    pub fn only(self, cases: &[String]) -> Collector {
        Collector { cases: cases.to_vec(), ..self }
    }

    /// Judges by the limits of weights in this format.
    pub fn of(self, precision: Precision) -> Collector {
        Collector { precision, ..self }
    }

    fn row(&mut self, case: &str, stage: &'static str, tensor: &str, judged: (f64, Option<f64>, bool)) {
        let (error, snr, passed) = judged;
        let (case, tensor) = (case.to_owned(), tensor.to_owned());
        self.report.rows.push(Row { case, stage, tensor, error, snr, passed });
    }
}

impl Comparison for Collector {
    fn wants(&mut self, case: &str) -> bool {
        self.known.insert(case.to_owned());
        self.cases.is_empty() || self.cases.iter().any(|asked| is_named(case, asked))
    }

    fn taps(&self) -> bool {
        self.taps
    }

    fn is_exact(&self) -> bool {
        self.exact
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn limit(&self) -> &Limit {
        &self.report.limit
    }

    fn verdict(&mut self, case: &str, stage: &'static str, tensor: &str, error: f64, passed: bool) {
        self.row(case, stage, tensor, (error, None, passed));
    }

    fn steps(&mut self, case: &str, stage: &'static str, tensor: &str, steps: &Steps) {
        let error = steps.error();
        let has_snr = self.report.limit.is_of_every_tensor() || WAVEFORMS.contains(&tensor);
        let snr = (has_snr && error.is_finite()).then(|| steps.snr_db());
        let passed = self.report.limit.allows(stage, error, snr);
        self.row(case, stage, tensor, (error, snr, passed));
    }

    fn skip(&mut self, what: &str, why: &str) {
        self.report.skipped.push((what.to_owned(), why.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_short_names() {
        for (case, asked, same) in [
            ("main", "main", true),
            ("base/main", "main", true),
            ("base/main", "base/main", true),
            ("remain", "main", false),
            ("main", "base/main", false),
        ] {
            assert_eq!(is_named(case, asked), same, "{case} by {asked}");
        }
    }

    #[test]
    fn tensors_are_judged_by_the_limit() {
        let mut exact = Collector::new(Limit::Error(1e-3), true, true);
        exact.tensor("case", "decoder", "hidden", &[1.0, 0.9], &[1.0, 1.0]);
        exact.tensor("case", "decoder", "wav", &[1.0], &[1.0]);
        exact.equal("case", "text", "ids", false);
        let judged: Vec<_> = exact.report.rows.iter().map(|r| (r.snr.is_some(), r.passed)).collect();
        assert_eq!(judged, [(false, false), (true, true), (false, false)]);
        let mut lower = Collector::new(Limit::Snr(20.0), false, true);
        lower.tensor("case", "decoder", "hidden", &[1.0, 0.9], &[1.0, 1.0]);
        assert!(lower.report.passed() && lower.report.noisiest().is_some());
        assert!(!Collector::new(Limit::Snr(20.0), false, true).report.passed(), "nothing was compared");
        assert!(!exact.report.has_own_limits() && !lower.report.has_own_limits());
        exact.verdict("case", "encoder", "embedding", 5e-3, true);
        assert!(exact.report.has_own_limits());
    }
}
