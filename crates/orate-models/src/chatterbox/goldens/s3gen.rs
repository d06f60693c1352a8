//! Goldens of S3Gen: codes to samples in the default voice, with the random numbers of the goldens.

use super::Run;
use super::draw::Noise as Stream;
use super::stored::{golden, integers};
use crate::chatterbox::config::{FRAMES_PER_CODE, MEL, SAMPLES_PER_FRAME};
use crate::chatterbox::estimator::LATENT;
use crate::chatterbox::flow_encoder::{MU, SPEAKER};
use crate::chatterbox::growing::{Growing, Part};
use crate::chatterbox::s3gen::{Noise, Reference, Session};
use crate::chatterbox::vocoder::HARMONICS;
use crate::hooks::{Limit, relative_error};
use crate::{Cancel, ModelError};
use orate_graph::TAP_PREFIX;
use orate_weights::{SafeTensors, WeightSource};
use serde_json::Value;

/// Largest error of samples whose pitch was computed here, as a multiple of the limit of tensors: after half
/// a second the ninth harmonic of 200 Hz has turned 900 times, and a pitch that is off by 1e-6 has changed
/// its phase by 6e-3.
const PITCH_FACTOR: f64 = 250.0;

/// Frames of the parts that are joined.
const PART: usize = 40;
/// Largest error of samples that were made in parts: the last frames of a part lack what follows them.
/// Measured: 6.8e-3 in f32.
const JOINTS: f64 = 0.01;
/// Peaks of noise as a multiple of its root mean square. A matmul of a part may sum in another order than
/// that of the whole, which is noise of the format where sums are rounded again. Measured: errors of 4.8e-2
/// in bf16, whose limit is 35 dB, and 9.1e-3 in f16, whose limit is 50 dB.
const PEAKS: f64 = 4.0;

/// Random numbers of a run, in the order in which the official code draws them.
pub struct Given {
    pub latent: Vec<f32>,
    pub phases: Vec<f32>,
    pub source: Vec<f32>,
}

impl Given {
    /// For `all` codes, `own` of which are spoken: `frames` mel frames.
    pub fn draw(stream: &mut Stream, is_meanflow: bool, [all, own, frames]: [usize; 3]) -> Given {
        let total = FRAMES_PER_CODE * all;
        let speech = is_meanflow.then(|| stream.normal(MEL * FRAMES_PER_CODE * own));
        let mut by_band = stream.normal(MEL * total);
        if let Some(speech) = speech {
            let count = FRAMES_PER_CODE * own;
            for (band, speech) in by_band.chunks_exact_mut(total).zip(speech.chunks_exact(count)) {
                band[total - count..].copy_from_slice(speech);
            }
        }
        let latent = transposed(&by_band, total);
        let mut phases: Vec<f32> = stream
            .uniform(HARMONICS)
            .iter()
            .map(|u| u * std::f32::consts::TAU - std::f32::consts::PI)
            .collect();
        phases[0] = 0.0;
        let samples = SAMPLES_PER_FRAME * frames;
        let source = transposed(&stream.normal(HARMONICS * samples), samples);
        Given { latent, phases, source }
    }

    pub fn noise(&self) -> Noise<'_> {
        self.with_pitch(None)
    }

    pub fn with_pitch<'a>(&'a self, pitch: Option<&'a [f32]>) -> Noise<'a> {
        Noise::Given { latent: &self.latent, phases: &self.phases, source: &self.source, pitch }
    }
}

/// `[C, T]` as `[T, C]`.
fn transposed(x: &[f32], time: usize) -> Vec<f32> {
    let channels = x.len() / time;
    (0..x.len()).map(|i| x[i % channels * time + i / channels]).collect()
}

impl Run<'_> {
    pub(super) fn s3gen(&mut self, case: &str) -> Result<(), ModelError> {
        let file = self.stored.file(case)?;
        let run = self.stored.run(case);
        let codes = integers(&file, "tokens")?;
        let mut reference = self.model.voice(&crate::Options::default())?.reference;
        if let Some(frames) = run.get("prompt_frames").and_then(Value::as_u64) {
            let frames = (frames as usize).min(reference.frames());
            reference = Reference {
                codes: reference.codes[..frames / FRAMES_PER_CODE].to_vec(),
                mel: reference.mel[..frames * MEL].to_vec(),
                x_vector: reference.x_vector,
            };
        }
        let model = self.model.clone();
        let settings = model.s3gen().default_settings();
        let all = reference.codes.len() + codes.len();
        let frames = FRAMES_PER_CODE * all - reference.frames();
        let mut stream = Stream::new(self.stored.seed(case)?);
        let is_meanflow = self.model.files().s3gen.estimator.is_meanflow;
        let given = Given::draw(&mut stream, is_meanflow, [all, codes.len(), frames]);
        let mut session = model.s3gen().session(&reference, self.out.taps());
        if self.out.taps() && file.contains("cfm.x0") {
            session.prepare(&codes, settings, given.noise())?;
            self.encoder(case, &file, &mut session)?;
            for step in 0..settings.steps {
                self.frames(case, &file, &mut session, ("flow", &format!("cfm.x{step}")), LATENT)?;
                session.step(step, settings.steps)?;
                self.step(case, &file, &mut session, step)?;
            }
            session.finish(0..frames)?;
        } else {
            session.mel(&codes, 0..frames, (settings, given.noise()), &Cancel::default())?;
        }
        self.mel(case, &file, &mut session, [reference.frames(), frames])?;
        let want = golden(&file, "wav")?;
        let samples = session.vocode(given.noise())?;
        if self.out.is_exact() {
            self.own_pitch(case, &samples, &want.data);
        }
        self.joined(case, &reference, &codes)?;
        if !file.contains("hift.f0") {
            return Ok(());
        }
        let pitch = golden(&file, "hift.f0")?;
        if self.out.taps() {
            self.tap(case, &file, &mut session, ("vocoder", "hift.f0"), "hift.f0")?;
        }
        let samples = session.vocode(given.with_pitch(Some(&pitch.data)))?;
        if self.out.taps() {
            let names =
                file.names().into_iter().filter(|name| name.starts_with("hift.") || *name == "source");
            for name in names.filter(|name| *name != "hift.f0").map(str::to_owned).collect::<Vec<_>>() {
                self.tap(case, &file, &mut session, ("vocoder", &name), &name)?;
            }
        }
        self.out.tensor(case, "vocoder", "wav", &samples, &want.data);
        Ok(())
    }

    /// Samples of parts beside those of the whole, from the same mel spectrogram.
    fn joined(&mut self, case: &str, reference: &Reference, codes: &[i32]) -> Result<(), ModelError> {
        let (model, noise) = (self.model.s3gen(), Noise::Seed(0));
        let codes: Vec<i32> = codes.iter().copied().cycle().take(5 * PART / FRAMES_PER_CODE).collect();
        let mut session = model.session(reference, false);
        let (frames, mut growing, mut got) = (session.frames(codes.len()), Growing::default(), vec![]);
        let last = Part { known: frames, end: frames, is_last: true };
        let (settings, never) = ((model.default_settings(), noise), Cancel::default());
        for part in (PART..frames).step_by(PART).map(Part::of).chain([last]) {
            growing.turn_phases(&mut session, 0);
            session.mel(&codes, growing.read(part), settings, &never)?;
            got.extend(growing.vocode(&mut session, part, 0)?);
        }
        session.phases = None;
        session.mel(&codes, 0..frames, settings, &never)?;
        let want = session.vocode(noise)?;
        let error = relative_error(&got, &want);
        let noise = match self.out.limit() {
            Limit::WaveformSnr(limit) => PEAKS * 10f64.powf(-limit / 20.0),
            _ => 0.0,
        };
        let most = JOINTS + noise;
        self.out.verdict(case, "vocoder", "wav of parts", error, error <= most);
        Ok(())
    }

    /// Samples whose pitch was computed here.
    pub(super) fn own_pitch(&mut self, case: &str, got: &[f32], want: &[f32]) {
        let most = match self.out.limit() {
            Limit::Error(limit) => PITCH_FACTOR * limit,
            _ => f64::INFINITY,
        };
        let error = relative_error(got, want);
        self.out.verdict(case, "vocoder", "wav of own pitch", error, error <= most);
    }

    fn encoder(
        &mut self,
        case: &str,
        file: &SafeTensors,
        session: &mut Session<'_>,
    ) -> Result<(), ModelError> {
        let names = file.names().into_iter().filter(|name| name.starts_with("enc."));
        for name in names.filter(|name| *name != "enc.input_embedding").map(str::to_owned).collect::<Vec<_>>()
        {
            self.tap(case, file, session, ("flow", &name), &name)?;
        }
        self.frames(case, file, session, ("flow", "cfm.mu"), MU)?;
        let (want, mut got) = (golden(file, "spks")?, vec![]);
        session.read_flow(SPEAKER, &mut got)?;
        self.out.tensor(case, "flow", "spks", &got, &want.data);
        Ok(())
    }

    /// What a step computed.
    fn step(
        &mut self,
        case: &str,
        file: &SafeTensors,
        session: &mut Session<'_>,
        step: usize,
    ) -> Result<(), ModelError> {
        let name = format!("cfm.dxdt{step}");
        if file.contains(&name) {
            self.tap(case, file, session, ("flow", &name), "dxdt")?;
        }
        if step > 0 {
            return Ok(());
        }
        let last = self.model.files().s3gen.estimator.middle - 1;
        let last = format!("mid_blocks.{last}.blocks");
        for (name, tap) in [
            ("cfm0.down.resnet", "down_blocks.0.resnet"),
            ("cfm0.down.conv", "down_blocks.0.conv"),
            ("cfm0.mid0.resnet", "mid_blocks.0.resnet"),
            ("cfm0.mid_last", &last),
            ("cfm0.up.resnet", "up_blocks.0.resnet"),
            ("cfm0.up.conv", "up_blocks.0.conv"),
            ("cfm0.final_block", "final_block"),
        ] {
            self.tap(case, file, session, ("flow", name), tap)?;
        }
        Ok(())
    }

    /// The mel spectrogram of the speech, without the prompt's.
    fn mel(
        &mut self,
        case: &str,
        file: &SafeTensors,
        session: &mut Session<'_>,
        [prompt, frames]: [usize; 2],
    ) -> Result<(), ModelError> {
        let (want, mut got) = (golden(file, "mel")?, vec![]);
        session.read_flow(LATENT, &mut got)?;
        let speech = &got[prompt * MEL..(prompt + frames) * MEL];
        let by_band: Vec<f32> = (0..speech.len()).map(|i| speech[i % frames * MEL + i / frames]).collect();
        let got = want.cut(&[1, MEL, frames], &by_band);
        self.out.tensor(case, "flow", "mel", &got, &want.data);
        Ok(())
    }

    fn tap(
        &mut self,
        case: &str,
        file: &SafeTensors,
        session: &mut Session<'_>,
        (stage, name): (&'static str, &str),
        tap: &str,
    ) -> Result<(), ModelError> {
        let (want, mut got) = (golden(file, name)?, vec![]);
        let tap = format!("{TAP_PREFIX}{tap}");
        let shape = match stage {
            "vocoder" => session.read(&tap, &mut got)?,
            _ => session.read_flow(&tap, &mut got)?,
        };
        let got = want.cut(shape.dims(), &got);
        self.out.tensor(case, stage, name, &got, &want.data);
        Ok(())
    }

    /// A buffer `[1, F, 80]`, whose golden has bands first.
    fn frames(
        &mut self,
        case: &str,
        file: &SafeTensors,
        session: &mut Session<'_>,
        (stage, name): (&'static str, &str),
        buffer: &str,
    ) -> Result<(), ModelError> {
        let (want, mut got) = (golden(file, name)?, vec![]);
        let frames = session.read_flow(buffer, &mut got)?.dims()[1];
        let by_band: Vec<f32> = (0..got.len()).map(|i| got[i % frames * MEL + i / frames]).collect();
        let got = want.cut(&[1, MEL, frames], &by_band);
        self.out.tensor(case, stage, name, &got, &want.data);
        Ok(())
    }
}
