//! Comparing a model with goldens: the same inputs through the engine, tensor by tensor.
//!
//! For Supertonic, two forms of golden directory are read: that of `oracle/supertonic/dump_golden.py` (`golden.json` and
//! `golden.safetensors`), and that of `training/infer.py --golden` (one safetensors file per sentence). For Qwen3-TTS, those of
//! `oracle/qwen3_tts/dump_golden.py`; see [`qwen3_tts`].

mod qwen3_goldens;
pub mod qwen3_limits;
mod qwen3_networks;
pub mod qwen3_tts;
mod qwen3_utterance;

use orate::{CacheFormat, DeviceKind, Engine, Error, Precision, Result};
use orate_models::supertonic::{Noise, Session, Stage, Supertonic, TextRules, Voice};
use orate_weights::{SafeTensors, WeightSource};
use qwen3_limits::PartSnr;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Largest error of single precision, relative to each tensor's largest magnitude.
///
/// Onnxruntime and a double-precision reference differ by 3e-6 over the whole chain; a wrong epsilon or an
/// approximate GELU shows as 3e-5 or more.
pub const F32_TOLERANCE: f64 = 2e-5;

/// The same on a GPU, whose functions and orders of summation are its own.
pub const GPU_TOLERANCE: f64 = 1e-4;

/// What a tensor must be like to pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Largest error, relative to the tensor's largest magnitude.
    Error(f64),
    /// Least signal-to-noise ratio of waveforms, in dB; other tensors are shown only.
    WaveformSnr(f64),
    /// Least signal-to-noise ratio of every tensor, in dB.
    Snr(f64),
    /// The same for each part of a Qwen3-TTS model.
    PartSnr(PartSnr),
}

impl Limit {
    /// What an engine must reach in the format in which it computes.
    pub fn of(engine: &Engine) -> Limit {
        if let Ok(model) = engine.qwen3_tts() {
            return qwen3_limits::limit(model.files(), engine.precision(), model.kv(), &engine.device_info());
        }
        match engine.precision().precision {
            Precision::F32 if engine.device_info().kind == DeviceKind::Cpu => Limit::Error(F32_TOLERANCE),
            Precision::F32 => Limit::Error(GPU_TOLERANCE),
            Precision::Tf32 | Precision::F16 => Limit::WaveformSnr(50.0),
            Precision::Bf16 => Limit::WaveformSnr(40.0),
            // Rounding to 8 and 4 bits is for models that were trained to bear it: shown, and only noise is refused.
            Precision::Q8_0 => Limit::WaveformSnr(20.0),
            Precision::Q4_0 => Limit::WaveformSnr(0.0),
        }
    }
}

impl Limit {
    /// Whether a tensor of a stage passes; a limit on noise is none where no noise is told.
    fn allows(self, stage: &str, error: f64, snr: Option<f64>) -> bool {
        let least = match self {
            Limit::Error(limit) => return error <= limit,
            Limit::WaveformSnr(least) | Limit::Snr(least) => least,
            Limit::PartSnr(parts) => parts.of(stage),
        };
        snr.map_or(error.is_finite(), |snr| snr >= least)
    }

    /// Whether it is on the noise of every tensor.
    fn is_of_every_tensor(self) -> bool {
        matches!(self, Limit::Snr(_) | Limit::PartSnr(_))
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Error(x) => write!(f, "{x:e}"),
            Limit::WaveformSnr(db) => write!(f, "{db} dB of noise in waveforms"),
            Limit::Snr(db) => write!(f, "{db} dB of noise"),
            Limit::PartSnr(parts) => parts.fmt(f),
        }
    }
}

/// What to compare.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Cases to run; all of them if empty.
    pub cases: Vec<String>,
    /// What passes; without it, [`Limit::of`] the engine.
    pub limit: Option<Limit>,
    /// Whether intermediate values are compared too, where the goldens have them.
    pub taps: bool,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions { cases: vec![], limit: None, taps: true }
    }
}

/// One tensor compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Case of the goldens.
    pub case: String,
    /// Stage that made the tensor.
    pub stage: &'static str,
    /// Name in the goldens, without the case.
    pub tensor: String,
    /// Largest difference as a part of the reference's largest magnitude; infinite where shapes differ or a
    /// number is not finite.
    pub error: f64,
    /// Signal-to-noise ratio in dB: of a waveform, or of any tensor under [`Limit::Snr`] and [`Limit::PartSnr`].
    pub snr: Option<f64>,
    /// Whether it is within the limit.
    pub passed: bool,
}

/// All comparisons.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Tensors compared, in the order in which they are computed.
    pub rows: Vec<Row>,
    /// Tensors of the goldens that were not compared, and why.
    pub skipped: Vec<(String, String)>,
    /// What had to be reached.
    pub limit: Limit,
}

impl Report {
    /// Whether something was compared and everything is within the tolerance.
    pub fn passed(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|r| r.passed)
    }

    /// The noisiest tensor of those whose noise is told.
    pub fn noisiest(&self) -> Option<&Row> {
        let noisier = |a: &&Row, b: &&Row| a.snr.unwrap_or(0.0).total_cmp(&b.snr.unwrap_or(0.0));
        self.rows.iter().filter(|r| r.snr.is_some()).min_by(noisier)
    }

    /// The largest error, and where it is.
    pub fn worst(&self) -> Option<&Row> {
        self.rows.iter().max_by(|a, b| a.error.total_cmp(&b.error))
    }
}

/// Runs the model against a golden directory.
///
/// # Errors
/// The directory is not a golden directory, a case does not exist, or the engine fails.
pub fn run(engine: &Engine, goldens: &Path, options: &VerifyOptions) -> Result<Report> {
    let limit = options.limit.unwrap_or_else(|| Limit::of(engine));
    if let Ok(model) = engine.qwen3_tts() {
        let exact = engine.precision().precision == Precision::F32 && model.kv() == CacheFormat::F32;
        return qwen3_tts::run(&model, goldens, options, (limit, exact));
    }
    let model = engine.supertonic()?;
    let mut v = Verify { model, options, report: Report { rows: vec![], skipped: vec![], limit } };
    if goldens.join("golden.json").is_file() {
        v.oracle(goldens)?;
    } else {
        v.recordings(goldens)?;
    }
    if v.report.rows.is_empty() {
        return Err(bad(goldens, "no case was compared".to_owned()));
    }
    Ok(v.report)
}

fn bad(path: &Path, problem: String) -> Error {
    Error::Goldens { path: path.display().to_string(), problem }
}

/// `golden.json`, as far as it is needed.
#[derive(Deserialize)]
struct Manifest {
    version: u32,
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
struct Case {
    rows: Option<Vec<Option<TextRow>>>,
    steps: Option<usize>,
    speed: Option<serde_json::Value>,
    text_length: Option<Vec<usize>>,
    latent_length: Option<Vec<usize>>,
    samples_from_duration: Option<Vec<usize>>,
    chunks: Option<Vec<String>>,
    silence_samples: Option<usize>,
}

#[derive(Deserialize)]
struct TextRow {
    text: String,
    lang: String,
    prepared: String,
}

/// What one run needs, from either form of goldens.
struct Inputs {
    ids: Vec<Vec<i32>>,
    voices: Vec<Voice>,
    frames: Vec<usize>,
    steps: usize,
    noise: Reference,
}

/// A tensor of the goldens.
struct Reference {
    shape: Vec<usize>,
    data: Vec<f32>,
}

impl Reference {
    /// `[B, C, T]` as `[B, T, C]`.
    fn channels_last(&self) -> Vec<f32> {
        let &[b, c, t] = self.shape.as_slice() else { return self.data.clone() };
        let mut out = vec![0.0; self.data.len()];
        for i in 0..b {
            for j in 0..c {
                for k in 0..t {
                    out[(i * t + k) * c + j] = self.data[(i * c + j) * t + k];
                }
            }
        }
        out
    }
}

struct Verify<'a> {
    model: &'a Supertonic,
    options: &'a VerifyOptions,
    report: Report,
}

impl Verify<'_> {
    fn add(&mut self, case: &str, stage: &'static str, tensor: &str, got: &[f32], want: &[f32]) {
        let error = relative_error(got, want);
        let snr = (tensor == "wav" && error.is_finite()).then(|| snr_db(got, want));
        let passed = self.report.limit.allows(stage, error, snr);
        self.report.rows.push(Row {
            case: case.to_owned(),
            stage,
            tensor: tensor.to_owned(),
            error,
            snr,
            passed,
        });
    }

    fn wanted(&self, case: &str) -> bool {
        self.options.cases.is_empty() || self.options.cases.iter().any(|c| c == case)
    }

    // ---- goldens of the oracle scripts --------------------------------------------------------------

    fn oracle(&mut self, dir: &Path) -> Result<()> {
        let path = dir.join("golden.json");
        let text = std::fs::read(&path).map_err(|e| bad(&path, e.to_string()))?;
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| bad(&path, e.to_string()))?;
        let file = SafeTensors::open(dir.join("golden.safetensors"))?;
        let expected = match self.model.files().family {
            TextRules::Official(v) => v.to_string(),
            TextRules::Own => "own".to_owned(),
        };
        if manifest.version.to_string() != expected {
            let problem =
                format!("goldens of version {}, but the model is version {expected}", manifest.version);
            return Err(bad(&path, problem));
        }
        if let Some(missing) = self.options.cases.iter().find(|c| !manifest.cases.contains_key(*c)) {
            let known = manifest.cases.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(bad(&path, format!("no case `{missing}`; there are: {known}")));
        }
        let mut waves: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        let joined = |c: &Case| c.chunks.is_some();
        for (name, case) in manifest.cases.iter().filter(|(_, c)| !joined(c)) {
            let part_of_wanted = manifest
                .cases
                .iter()
                .any(|(n, c)| joined(c) && self.wanted(n) && name.starts_with(&format!("{n}.")));
            if self.wanted(name) || part_of_wanted {
                let wav = self.oracle_case(dir, &file, manifest.version, name, case)?;
                waves.insert(name.clone(), wav);
            }
        }
        for (name, case) in manifest.cases.iter().filter(|(_, c)| joined(c)) {
            if !self.wanted(name) {
                continue;
            }
            let gap = vec![0.0; case.silence_samples.unwrap_or(0)];
            let parts = case.chunks.as_ref().map_or(0, Vec::len);
            let mut wav: Vec<f32> = vec![];
            for i in 0..parts {
                if i > 0 {
                    wav.extend_from_slice(&gap);
                }
                wav.extend_from_slice(waves.get(&format!("{name}.{i}")).map_or(&[], Vec::as_slice));
            }
            let want = tensor(&file, &format!("{name}/wav"))?;
            self.add(name, "join", "wav", &wav, &want.data);
        }
        Ok(())
    }

    fn oracle_case(
        &mut self,
        dir: &Path,
        file: &SafeTensors,
        version: u32,
        name: &str,
        case: &Case,
    ) -> Result<Vec<f32>> {
        let path = dir.join("golden.json");
        let lack = |what: &str| bad(&path, format!("case `{name}` has no `{what}`"));
        let text_length = case.text_length.as_ref().ok_or_else(|| lack("text_length"))?;
        let frames = case.latent_length.clone().ok_or_else(|| lack("latent_length"))?;
        let steps = case.steps.ok_or_else(|| lack("steps"))?;
        let get = |what: &str| tensor(file, &format!("{name}/{what}"));
        let all_ids = integers(file, &format!("{name}/text_ids"))?;
        let width = all_ids.len() / text_length.len().max(1);
        if text_length.iter().any(|n| *n > width) || text_length.is_empty() {
            return Err(bad(
                &path,
                format!("case `{name}`: text lengths {text_length:?} do not fit {width} ids"),
            ));
        }
        let rows: Vec<Vec<i32>> =
            all_ids.chunks_exact(width).zip(text_length).map(|(r, n)| r[..*n].to_vec()).collect();
        self.compare_text(version, name, case, &rows);
        let (ttl, dp) = (get("style_ttl")?, get("style_dp")?);
        let batch = rows.len();
        let voices =
            ttl.data.chunks_exact(ttl.data.len() / batch).zip(dp.data.chunks_exact(dp.data.len() / batch));
        let voices = voices
            .map(|(t, d)| Voice { name: name.to_owned(), style_ttl: t.to_vec(), style_dp: d.to_vec() })
            .collect();
        let inputs = Inputs { ids: rows, voices, frames, steps, noise: get("latent.0")? };

        let model = self.model;
        let mut s = model.session();
        self.set(&mut s, &inputs)?;
        let durations = s.durations()?;
        self.add(
            name,
            Stage::DurationPredictor.name(),
            "duration_raw",
            &durations,
            &get("duration_raw")?.data,
        );
        self.compare_lengths(file, name, case)?;
        self.run_stages(&mut s, name, &inputs, |what| get(what), "latent.")?;
        let mut wav = Vec::new();
        s.vocode(&mut wav)?;
        self.add(name, Stage::Vocoder.name(), "wav", &wav, &get("wav")?.data);
        drop(s);
        if self.options.taps {
            self.compare_taps(file, name, &inputs)?;
        }
        Ok(wav)
    }

    /// The front end: prepared text and ids must be equal.
    fn compare_text(&mut self, version: u32, name: &str, case: &Case, ids: &[Vec<i32>]) {
        use orate_text::supertonic::{Version, prepare};
        let version = [Version::V1, Version::V2, Version::V3][(version as usize).clamp(1, 3) - 1];
        let indexer = &self.model.files().indexer;
        for (row, want) in case.rows.iter().flatten().zip(ids) {
            let Some(row) = row else { continue };
            let got = prepare(&row.text, version, Some(&row.lang)).ok();
            let same_text = got.as_deref() == Some(row.prepared.as_str());
            let same_ids = got.is_some_and(|t| indexer.ids(&t) == *want);
            for (tensor, same) in [("prepared text", same_text), ("text_ids", same_ids)] {
                let error = if same { 0.0 } else { f64::INFINITY };
                self.report.rows.push(Row {
                    case: name.to_owned(),
                    stage: "text",
                    tensor: tensor.to_owned(),
                    error,
                    snr: None,
                    passed: same,
                });
            }
        }
    }

    /// Latent lengths and sample counts from the stored durations must be equal.
    fn compare_lengths(&mut self, file: &SafeTensors, name: &str, case: &Case) -> Result<()> {
        let raw = tensor(file, &format!("{name}/duration_raw"))?.data;
        let speeds: Vec<f32> = match &case.speed {
            Some(serde_json::Value::Array(all)) => {
                all.iter().filter_map(|v| v.as_f64()).map(|x| x as f32).collect()
            }
            Some(v) => vec![v.as_f64().unwrap_or(1.0) as f32; raw.len()],
            None => vec![1.0; raw.len()],
        };
        let got: Vec<(usize, usize)> =
            raw.iter().zip(&speeds).map(|(r, s)| self.model.frames_for(*r, *s)).collect();
        let frames = case.latent_length.as_deref().unwrap_or(&[]);
        let samples = case.samples_from_duration.as_deref().unwrap_or(&[]);
        let same = got.iter().map(|g| g.0).eq(frames.iter().copied())
            && got.iter().map(|g| g.1).eq(samples.iter().copied());
        let error = if same { 0.0 } else { f64::INFINITY };
        let (case, stage) = (name.to_owned(), Stage::DurationPredictor.name());
        let tensor = "latent_length".to_owned();
        self.report.rows.push(Row { case, stage, tensor, error, snr: None, passed: same });
        Ok(())
    }

    fn set(&self, s: &mut Session<'_>, inputs: &Inputs) -> Result<()> {
        let rows: Vec<(&[i32], &Voice)> = inputs.ids.iter().map(Vec::as_slice).zip(&inputs.voices).collect();
        Ok(s.set_text(&rows)?)
    }

    /// Text encoder and all Euler steps.
    fn run_stages(
        &mut self,
        s: &mut Session<'_>,
        name: &str,
        inputs: &Inputs,
        get: impl Fn(&str) -> Result<Reference>,
        latent: &str,
    ) -> Result<()> {
        let mut got = Vec::new();
        s.encode_text()?;
        s.read("text_emb", &mut got)?;
        self.add(name, Stage::TextEncoder.name(), "text_emb", &got, &get("text_emb")?.channels_last());
        s.prepare(&inputs.frames, inputs.steps, Noise::Given(&inputs.noise.channels_last()))?;
        for step in 0..inputs.steps {
            s.step(step)?;
            s.read("latent", &mut got)?;
            let tensor = format!("{latent}{}", step + 1);
            self.add(name, Stage::VectorEstimator.name(), &tensor, &got, &get(&tensor)?.channels_last());
        }
        Ok(())
    }

    /// Intermediate values of the first step, from plans in which they all exist.
    fn compare_taps(&mut self, file: &SafeTensors, name: &str, inputs: &Inputs) -> Result<()> {
        let wanted: Vec<(String, String)> = file
            .names()
            .into_iter()
            .filter_map(|n| n.strip_prefix(&format!("{name}/")))
            .filter_map(|n| n.split_once('/'))
            .map(|(stage, tap)| (stage.to_owned(), tap.to_owned()))
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let model = self.model;
        let mut s = model.session();
        s.record_taps(true);
        self.set(&mut s, inputs)?;
        for stage in Stage::ALL {
            match stage {
                Stage::DurationPredictor => drop(s.durations()?),
                Stage::TextEncoder => s.encode_text()?,
                Stage::VectorEstimator => {
                    s.prepare(&inputs.frames, inputs.steps, Noise::Given(&inputs.noise.channels_last()))?;
                    s.step(0)?;
                }
                Stage::Vocoder => {
                    for step in 1..inputs.steps {
                        s.step(step)?;
                    }
                    s.vocode(&mut Vec::new())?;
                }
            }
            let mut got = Vec::new();
            for (_, tap) in wanted.iter().filter(|(w, _)| w == stage.name()) {
                let full = format!("{}/{tap}", stage.name());
                match s.read(&format!("tap/{tap}"), &mut got) {
                    Ok(_) => {
                        let want = tensor(file, &format!("{name}/{full}"))?;
                        self.add(name, stage.name(), tap, &got, &want.data);
                    }
                    Err(_) => {
                        let why = "this engine never stores it: it stays inside a fused step, or is known beforehand";
                        self.report.skipped.push((format!("{name}/{full}"), why.to_owned()));
                    }
                }
            }
            s.forget_taps();
        }
        Ok(())
    }

    // ---- goldens of training/infer.py ----------------------------------------------------------------

    fn recordings(&mut self, dir: &Path) -> Result<()> {
        let entries = std::fs::read_dir(dir).map_err(|e| bad(dir, e.to_string()))?;
        let mut files: Vec<_> = entries.filter_map(|e| e.ok()).map(|e| e.path()).collect();
        files.retain(|p| p.extension().is_some_and(|e| e == "safetensors"));
        files.sort();
        if files.is_empty() {
            let problem = "neither golden.json (oracle/supertonic/dump_golden.py) nor *.safetensors (training/infer.py --golden)";
            return Err(bad(dir, problem.to_owned()));
        }
        let voice = self.model.voice(self.model.files().default_voice())?;
        for path in files {
            let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or("?").to_owned();
            if !self.wanted(&name) {
                continue;
            }
            let file = SafeTensors::open(&path)?;
            let get = |what: &str| tensor(&file, what);
            let noise = get("noise")?;
            let steps = (1..).take_while(|k| file.contains(&format!("latent_{k}"))).count();
            let (ids, frames) = (integers(&file, "text_ids")?, noise.shape.last().copied().unwrap_or(0));
            let inputs =
                Inputs { ids: vec![ids], voices: vec![(*voice).clone()], frames: vec![frames], steps, noise };
            let model = self.model;
            let mut s = model.session();
            self.set(&mut s, &inputs)?;
            let durations = s.durations()?;
            self.add(&name, Stage::DurationPredictor.name(), "duration", &durations, &get("duration")?.data);
            self.run_stages(&mut s, &name, &inputs, get, "latent_")?;
            let mut wav = Vec::new();
            s.vocode(&mut wav)?;
            self.add(&name, Stage::Vocoder.name(), "wav", &wav, &get("wav")?.data);
        }
        Ok(())
    }
}

fn tensor(file: &SafeTensors, name: &str) -> Result<Reference> {
    let t = file.get(name)?;
    Ok(Reference { shape: t.shape.clone(), data: t.to_f32() })
}

fn integers(file: &SafeTensors, name: &str) -> Result<Vec<i32>> {
    Ok(file.get(name)?.to_f32().into_iter().map(|x| x as i32).collect())
}

/// Largest difference over the reference's largest magnitude.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    if got.len() != want.len() || got.iter().chain(want).any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    let largest = want.iter().fold(0f64, |m, x| m.max(f64::from(x.abs())));
    let difference =
        got.iter().zip(want).fold(0f64, |m, (a, b)| m.max((f64::from(*a) - f64::from(*b)).abs()));
    if difference == 0.0 { 0.0 } else { difference / largest }
}

/// Power of the reference over power of the difference; infinite where they are equal.
fn snr_db(got: &[f32], want: &[f32]) -> f64 {
    let power = |x: f64| x * x;
    let signal: f64 = want.iter().map(|x| power(f64::from(*x))).sum();
    let noise: f64 = got.iter().zip(want).map(|(a, b)| power(f64::from(*a) - f64::from(*b))).sum();
    10.0 * (signal / noise).log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_in_decibels() {
        assert!((snr_db(&[1.0, 0.9], &[1.0, 1.0]) - 23.01).abs() < 0.01);
        assert_eq!(snr_db(&[1.0], &[1.0]), f64::INFINITY);
    }

    #[test]
    fn errors_are_relative_to_the_largest_magnitude() {
        assert_eq!(relative_error(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
        assert_eq!(relative_error(&[1.0, 2.5], &[1.0, 2.0]), 0.25);
        assert_eq!(relative_error(&[0.0], &[0.0]), 0.0);
        assert_eq!(relative_error(&[f32::NAN], &[0.0]), f64::INFINITY);
        assert_eq!(relative_error(&[0.0, 1.0], &[f32::NAN, 1.0]), f64::INFINITY);
        assert_eq!(relative_error(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        assert_eq!(relative_error(&[1.0], &[0.0]), f64::INFINITY);
    }
}
