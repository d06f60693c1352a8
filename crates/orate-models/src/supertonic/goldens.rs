//! Compares Supertonic with recorded reference values.
//!
//! Two forms of golden folders are read: that of `oracle/supertonic/dump_golden.py` (`golden.json` and
//! `golden.safetensors`), and that of `training/infer.py --golden` (one safetensors file per sentence).

use super::session::{Noise, Session, Supertonic};
use super::stage::Stage;
use super::voice::Voice;
use crate::ModelError;
use crate::hooks::{Comparison, Goldens};
use orate_text::supertonic::{Version, prepare};
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

/// A case. One with `chunks` has no tensors but `wav`: it joins the waveforms of other cases.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Case {
    rows: Vec<Option<TextRow>>,
    steps: usize,
    speed: serde_json::Value,
    text_length: Vec<usize>,
    latent_length: Vec<usize>,
    samples_from_duration: Vec<usize>,
    chunks: Option<Vec<String>>,
    silence_samples: usize,
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
    noise: Vec<f32>,
}

impl Inputs {
    fn set_text(&self, s: &mut Session<'_>) -> Result<(), ModelError> {
        let rows: Vec<(&[i32], &Voice)> = self.ids.iter().map(Vec::as_slice).zip(&self.voices).collect();
        s.set_text(&rows)
    }

    fn prepare(&self, s: &mut Session<'_>) -> Result<(), ModelError> {
        s.prepare(&self.frames, self.steps, Noise::Given(&self.noise))
    }
}

/// A tensor of the goldens.
struct Reference {
    shape: Vec<usize>,
    data: Vec<f32>,
}

impl Reference {
    fn read(file: &SafeTensors, name: &str) -> Result<Reference, ModelError> {
        let t = file.get(name)?;
        Ok(Reference { shape: t.shape.clone(), data: t.to_f32() })
    }

    fn integers(&self) -> Vec<i32> {
        self.data.iter().map(|x| *x as i32).collect()
    }

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
        let goldens = manifest.version.to_string();
        let version = self.model.files().version;
        let Some(version) = version.filter(|version| version.to_string() == goldens) else {
            let model = version.map_or("own".to_owned(), |version| version.to_string());
            let problem = format!("goldens of version {goldens}, but the model is version {model}");
            return Err(bad(&path, problem));
        };
        let mut waves: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        let joins = |case: &Case| case.chunks.is_some();
        for (name, case) in manifest.cases.iter().filter(|(_, case)| !joins(case)) {
            // Parts of a long text are spoken for the case that joins them, too.
            let is_part = |whole: &str| name.starts_with(&format!("{whole}."));
            let mut wholes = manifest.cases.iter().filter(|(whole, case)| joins(case) && is_part(whole));
            if self.out.wants(name) || wholes.any(|(whole, _)| self.out.wants(whole)) {
                waves.insert(name.clone(), self.oracle_case(&path, &file, version, name, case)?);
            }
        }
        for (name, case) in &manifest.cases {
            let Some(chunks) = case.chunks.as_ref().filter(|_| self.out.wants(name)) else { continue };
            let part = |i| waves.get(&format!("{name}.{i}")).map_or(&[] as &[f32], Vec::as_slice);
            let silence = vec![0.0; case.silence_samples];
            let wav = (0..chunks.len()).map(part).collect::<Vec<_>>().join(silence.as_slice());
            let want = Reference::read(&file, &format!("{name}/wav"))?;
            self.out.tensor(name, "join", "wav", &wav, &want.data);
        }
        Ok(())
    }

    fn oracle_case(
        &mut self,
        path: &Path,
        file: &SafeTensors,
        version: Version,
        name: &str,
        case: &Case,
    ) -> Result<Vec<f32>, ModelError> {
        let get = |what: &str| Reference::read(file, &format!("{name}/{what}"));
        let (lengths, batch) = (&case.text_length, case.text_length.len());
        if batch == 0 || case.latent_length.len() != batch || case.steps == 0 {
            let problem = format!("case `{name}` lacks one of `text_length`, `latent_length` and `steps`");
            return Err(bad(path, problem));
        }
        let all_ids = get("text_ids")?.integers();
        let width = all_ids.len() / batch;
        if width == 0 || lengths.iter().any(|n| *n > width) {
            let problem = format!("case `{name}`: text lengths {lengths:?} do not fit {width} ids");
            return Err(bad(path, problem));
        }
        let ids: Vec<_> =
            all_ids.chunks_exact(width).zip(lengths).map(|(row, n)| row[..*n].to_vec()).collect();
        self.compare_text(version, name, case, &ids);
        self.compare_lengths(&get("duration_raw")?.data, name, case);
        let (ttl, dp) = (get("style_ttl")?.data, get("style_dp")?.data);
        let styles =
            ttl.chunks_exact((ttl.len() / batch).max(1)).zip(dp.chunks_exact((dp.len() / batch).max(1)));
        let voice = |(t, d): (&[f32], &[f32])| Voice {
            name: name.to_owned(),
            style_ttl: t.to_vec(),
            style_dp: d.to_vec(),
        };
        let inputs = Inputs {
            ids,
            voices: styles.map(voice).collect(),
            frames: case.latent_length.clone(),
            steps: case.steps,
            noise: get("latent.0")?.channels_last(),
        };
        let wav = self.run_stages(name, &inputs, get, ["duration_raw", "latent."])?;
        if self.out.taps() {
            self.compare_taps(file, name, &inputs)?;
        }
        Ok(wav)
    }

    /// The front end: prepared text and ids must be equal.
    fn compare_text(&mut self, version: Version, name: &str, case: &Case, ids: &[Vec<i32>]) {
        let indexer = &self.model.files().indexer;
        for (row, want) in case.rows.iter().zip(ids) {
            let Some(row) = row else { continue };
            let got = prepare(&row.text, version, Some(&row.lang)).ok();
            let same_text = got.as_deref() == Some(row.prepared.as_str());
            let same_ids = got.is_some_and(|t| indexer.ids(&t) == *want);
            self.out.equal(name, "text", "prepared text", same_text);
            self.out.equal(name, "text", "text_ids", same_ids);
        }
    }

    /// Latent lengths and sample counts from the stored durations must be equal.
    fn compare_lengths(&mut self, durations: &[f32], name: &str, case: &Case) {
        let speed = |i: usize| case.speed.get(i).unwrap_or(&case.speed).as_f64().unwrap_or(1.0) as f32;
        let got = durations.iter().enumerate().map(|(i, raw)| self.model.frames_for(*raw, speed(i)));
        let (frames, samples): (Vec<usize>, Vec<usize>) = got.unzip();
        let same = frames == case.latent_length && samples == case.samples_from_duration;
        self.out.equal(name, Stage::DurationPredictor.name(), "latent_length", same);
    }

    /// All stages, whose results the goldens call `duration` and `latent` with the number of a step.
    fn run_stages(
        &mut self,
        name: &str,
        inputs: &Inputs,
        get: impl Fn(&str) -> Result<Reference, ModelError>,
        [duration, latent]: [&str; 2],
    ) -> Result<Vec<f32>, ModelError> {
        let mut s = self.model.session();
        let mut compare = |stage: Stage, tensor: &str, got: &[f32]| -> Result<(), ModelError> {
            self.out.tensor(name, stage.name(), tensor, got, &get(tensor)?.channels_last());
            Ok(())
        };
        inputs.set_text(&mut s)?;
        compare(Stage::DurationPredictor, duration, &s.durations()?)?;
        let mut got = vec![];
        s.encode_text()?;
        s.read("text_emb", &mut got)?;
        compare(Stage::TextEncoder, "text_emb", &got)?;
        inputs.prepare(&mut s)?;
        for step in 0..inputs.steps {
            s.step(step)?;
            s.read("latent", &mut got)?;
            compare(Stage::VectorEstimator, &format!("{latent}{}", step + 1), &got)?;
        }
        let mut wav = vec![];
        s.vocode(&mut wav)?;
        compare(Stage::Vocoder, "wav", &wav)?;
        Ok(wav)
    }

    /// Intermediate values of the first step, from plans in which they all exist.
    fn compare_taps(&mut self, file: &SafeTensors, name: &str, inputs: &Inputs) -> Result<(), ModelError> {
        let prefix = format!("{name}/");
        let tensors = file.names().into_iter().filter_map(|tensor| tensor.strip_prefix(&prefix));
        let taps: Vec<(&str, &str)> = tensors.filter_map(|tensor| tensor.split_once('/')).collect();
        if taps.is_empty() {
            return Ok(());
        }
        let mut s = self.model.session();
        s.record_taps(true);
        inputs.set_text(&mut s)?;
        for stage in Stage::ALL {
            match stage {
                Stage::DurationPredictor => drop(s.durations()?),
                Stage::TextEncoder => s.encode_text()?,
                Stage::VectorEstimator => {
                    inputs.prepare(&mut s)?;
                    s.step(0)?;
                }
                Stage::Vocoder => {
                    for step in 1..inputs.steps {
                        s.step(step)?;
                    }
                    s.vocode(&mut vec![])?;
                }
            }
            let mut got = vec![];
            for (_, tap) in taps.iter().filter(|(of, _)| *of == stage.name()) {
                let full = format!("{name}/{}/{tap}", stage.name());
                if s.read(&format!("tap/{tap}"), &mut got).is_ok() {
                    self.out.tensor(name, stage.name(), tap, &got, &Reference::read(file, &full)?.data);
                } else {
                    let why = "it is never stored: it stays inside a fused step, or is a constant";
                    self.out.skip(&full, why);
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
            let get = |what: &str| Reference::read(&file, what);
            let noise = get("noise")?;
            let inputs = Inputs {
                ids: vec![get("text_ids")?.integers()],
                voices: vec![(*voice).clone()],
                frames: vec![noise.shape.last().copied().unwrap_or(0)],
                steps: (1..).take_while(|k| file.contains(&format!("latent_{k}"))).count(),
                noise: noise.channels_last(),
            };
            self.run_stages(&name, &inputs, get, ["duration", "latent_"])?;
        }
        Ok(())
    }
}
