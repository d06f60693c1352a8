//! Compares Supertonic with recorded reference values.
//!
//! Two forms of golden folders are read: that of `oracle/supertonic/dump_golden.py` (`golden.json` and
//! `golden.safetensors`), and that of `training/infer.py --golden` (one safetensors file per sentence).

use super::{Noise, Session, Stage, Supertonic, TextRules, Voice};
use crate::ModelError;
use crate::hooks::{Comparison, Goldens};
use orate_weights::{SafeTensors, WeightSource};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The model beside its goldens.
pub(super) struct Comparer(pub Arc<Supertonic>);

impl Goldens for Comparer {
    fn compare(&self, folder: &Path, comparison: &mut dyn Comparison) -> Result<(), ModelError> {
        let mut run = Run { model: &self.0, out: comparison };
        if folder.join("golden.json").is_file() { run.oracle(folder) } else { run.recordings(folder) }
    }
}

fn bad(path: &Path, problem: String) -> ModelError {
    ModelError::Goldens { path: path.display().to_string(), problem }
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

/// A comparison in progress.
struct Run<'a> {
    model: &'a Supertonic,
    out: &'a mut dyn Comparison,
}

impl Run<'_> {
    // ---- goldens of the oracle scripts ------------------------------------------------------------

    fn oracle(&mut self, dir: &Path) -> Result<(), ModelError> {
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
        let mut waves: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        let joined = |c: &Case| c.chunks.is_some();
        for (name, case) in manifest.cases.iter().filter(|(_, c)| !joined(c)) {
            // Parts of a long text are spoken for the case that joins them, too.
            let mut wholes =
                manifest.cases.iter().filter(|(n, c)| joined(c) && name.starts_with(&format!("{n}.")));
            if self.out.wants(name) || wholes.any(|(n, _)| self.out.wants(n)) {
                let wav = self.oracle_case(dir, &file, manifest.version, name, case)?;
                waves.insert(name.clone(), wav);
            }
        }
        for (name, case) in manifest.cases.iter().filter(|(_, c)| joined(c)) {
            if !self.out.wants(name) {
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
            self.out.tensor(name, "join", "wav", &wav, &want.data);
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
    ) -> Result<Vec<f32>, ModelError> {
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
        self.out.tensor(
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
        self.out.tensor(name, Stage::Vocoder.name(), "wav", &wav, &get("wav")?.data);
        drop(s);
        if self.out.taps() {
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
                self.out.equal(name, "text", tensor, same);
            }
        }
    }

    /// Latent lengths and sample counts from the stored durations must be equal.
    fn compare_lengths(&mut self, file: &SafeTensors, name: &str, case: &Case) -> Result<(), ModelError> {
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
        self.out.equal(name, Stage::DurationPredictor.name(), "latent_length", same);
        Ok(())
    }

    fn set(&self, s: &mut Session<'_>, inputs: &Inputs) -> Result<(), ModelError> {
        let rows: Vec<(&[i32], &Voice)> = inputs.ids.iter().map(Vec::as_slice).zip(&inputs.voices).collect();
        s.set_text(&rows)
    }

    /// Text encoder and all Euler steps.
    fn run_stages(
        &mut self,
        s: &mut Session<'_>,
        name: &str,
        inputs: &Inputs,
        get: impl Fn(&str) -> Result<Reference, ModelError>,
        latent: &str,
    ) -> Result<(), ModelError> {
        let mut got = Vec::new();
        s.encode_text()?;
        s.read("text_emb", &mut got)?;
        self.out.tensor(name, Stage::TextEncoder.name(), "text_emb", &got, &get("text_emb")?.channels_last());
        s.prepare(&inputs.frames, inputs.steps, Noise::Given(&inputs.noise.channels_last()))?;
        for step in 0..inputs.steps {
            s.step(step)?;
            s.read("latent", &mut got)?;
            let tensor = format!("{latent}{}", step + 1);
            self.out.tensor(
                name,
                Stage::VectorEstimator.name(),
                &tensor,
                &got,
                &get(&tensor)?.channels_last(),
            );
        }
        Ok(())
    }

    /// Intermediate values of the first step, from plans in which they all exist.
    fn compare_taps(&mut self, file: &SafeTensors, name: &str, inputs: &Inputs) -> Result<(), ModelError> {
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
                        self.out.tensor(name, stage.name(), tap, &got, &want.data);
                    }
                    Err(_) => {
                        let why = "it is never stored: it stays inside a fused step, or is a constant";
                        self.out.skip(&format!("{name}/{full}"), why);
                    }
                }
            }
            s.forget_taps();
        }
        Ok(())
    }

    // ---- goldens of training/infer.py ----------------------------------------------------------------

    fn recordings(&mut self, dir: &Path) -> Result<(), ModelError> {
        let entries = std::fs::read_dir(dir).map_err(|e| bad(dir, e.to_string()))?;
        let mut files: Vec<_> = entries.filter_map(|e| e.ok()).map(|e| e.path()).collect();
        files.retain(|p| p.extension().is_some_and(|e| e == "safetensors"));
        files.sort();
        if files.is_empty() {
            let problem = "neither golden.json (oracle/supertonic/dump_golden.py) nor *.safetensors \
                           (training/infer.py --golden)";
            return Err(bad(dir, problem.to_owned()));
        }
        let voice = self.model.voice(self.model.files().default_voice())?;
        for path in files {
            let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or("?").to_owned();
            if !self.out.wants(&name) {
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
            self.out.tensor(
                &name,
                Stage::DurationPredictor.name(),
                "duration",
                &durations,
                &get("duration")?.data,
            );
            self.run_stages(&mut s, &name, &inputs, get, "latent_")?;
            let mut wav = Vec::new();
            s.vocode(&mut wav)?;
            self.out.tensor(&name, Stage::Vocoder.name(), "wav", &wav, &get("wav")?.data);
        }
        Ok(())
    }
}

fn tensor(file: &SafeTensors, name: &str) -> Result<Reference, ModelError> {
    let t = file.get(name)?;
    Ok(Reference { shape: t.shape.clone(), data: t.to_f32() })
}

fn integers(file: &SafeTensors, name: &str) -> Result<Vec<i32>, ModelError> {
    Ok(file.get(name)?.to_f32().into_iter().map(|x| x as i32).collect())
}
