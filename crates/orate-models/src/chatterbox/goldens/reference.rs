//! Goldens of the encoders: a recording, stage by stage.

use super::Run;
use super::stored::{Golden, bad, golden, integers};
use crate::ModelError;
use crate::chatterbox::config::SAMPLE_RATE;
use crate::chatterbox::encoders::{Ran, features};
use crate::hooks::relative_error;
use orate_audio::{SincFilter, read_wav, resample_sinc};
use orate_graph::TAP_PREFIX;
use orate_weights::{SafeTensors, WeightSource};

/// Largest error of features, relative to their size of 11: near silence, the official transform in f32 is
/// itself 7e-4 from one in f64.
const LOG_MEL_TOLERANCE: f64 = 2e-4;
/// Largest error of what is computed from a recording that was resampled here: soxr's filter differs from
/// ours by 65 dB.
const RESAMPLED_TOLERANCE: f64 = 1e-2;

impl Run<'_> {
    /// A recording of the goldens, at 24 kHz.
    pub(super) fn recording(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let path = self.stored.folder.join(name);
        let wave = read_wav(&path)?;
        match wave.sample_rate {
            SAMPLE_RATE => Ok(wave.samples),
            rate => Err(bad(&path, format!("it has {rate} Hz, not {SAMPLE_RATE}"))),
        }
    }

    pub(super) fn reference(&mut self, case: &str) -> Result<(), ModelError> {
        let file = self.stored.file(case)?;
        let samples = self.recording("ref.wav")?;
        let encoders = self.model.encoders();
        let voice = encoders.voice(&samples)?;
        let codes = |name: &str| integers(&file, name);
        if let Some(talking) = &voice.talking {
            let want = golden(&file, "t3.speaker_emb")?;
            let error = relative_error(&talking.speaker, &want.data);
            self.out.verdict(case, "encoders", "t3.speaker_emb", error, error <= RESAMPLED_TOLERANCE);
            let same = talking.prompt == codes("t3.cond_prompt_speech_tokens")?;
            if self.out.is_exact() {
                self.out.equal(case, "encoders", "t3.cond_prompt_speech_tokens", same);
            }
        }
        if self.out.is_exact() {
            let same = voice.reference.codes == codes("gen.prompt_token")?;
            self.out.equal(case, "encoders", "gen.prompt_token", same);
        }
        let want = golden(&file, "gen.prompt_feat")?;
        let got = want.cut(&[1, voice.reference.frames(), 80], &voice.reference.mel);
        let error = relative_error(&got, &want.data);
        self.out.verdict(case, "features", "gen.prompt_feat", error, error <= LOG_MEL_TOLERANCE);
        let want = golden(&file, "gen.embedding")?;
        self.out.tensor(case, "speaker_encoder", "gen.embedding", &voice.reference.x_vector, &want.data);
        if !file.contains("s3tok.log_mel") || !self.out.taps() {
            return Ok(());
        }
        let slow = resample_sinc(&samples, SAMPLE_RATE, 16_000, SincFilter::Torchaudio)?;
        let mel = features(&slow)?;
        let mut ran = encoders.projected(&mel, true)?;
        self.taps(
            case,
            &file,
            &mut ran,
            "speech_tokenizer",
            &[
                ("s3tok.conv2", "conv2"),
                ("s3tok.block0", "block0"),
                ("s3tok.encoder", &format!("block{}", encoders.s3gen_encoders()?.tokenizer.layers - 1)),
            ],
        )?;
        let want = golden(&file, "s3tok.project_down")?;
        self.out.tensor(case, "speech_tokenizer", "s3tok.project_down", &ran.0, &want.data);
        let mut ran = encoders.x_vector(&slow, true)?;
        self.taps(
            case,
            &file,
            &mut ran,
            "speaker_encoder",
            &[
                ("campplus.head", "head"),
                ("campplus.tdnn", "tdnn"),
                ("campplus.transit1", "transit1"),
                ("campplus.transit2", "transit2"),
                ("campplus.transit3", "transit3"),
                ("campplus.stats", "statistics"),
            ],
        )?;
        // From the recording as soxr resampled it, so that only the network is compared.
        let slow = golden(&file, "s3tok.t3_wav16")?;
        let (speaker, _) = encoders.speaker(&slow.data, false)?;
        let want = golden(&file, "t3.speaker_emb")?;
        self.out.tensor(case, "voice_encoder", "t3.speaker_emb", &speaker, &want.data);
        Ok(())
    }

    fn taps(
        &mut self,
        case: &str,
        file: &SafeTensors,
        (_, memory): &mut Ran,
        stage: &'static str,
        names: &[(&str, &str)],
    ) -> Result<(), ModelError> {
        for (name, tap) in names {
            let (want, mut got): (Golden, _) = (golden(file, name)?, vec![]);
            let shape = memory.read_f32(&format!("{TAP_PREFIX}{tap}"), &mut got)?;
            let got = want.cut(shape.dims(), &got);
            self.out.tensor(case, stage, name, &got, &want.data);
        }
        Ok(())
    }
}
