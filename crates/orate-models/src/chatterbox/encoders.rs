//! The encoders that prepare recordings: speech codes, speaker embeddings, mel spectrogram.
//!
//! ```text
//! recording at 24 kHz
//! ├ all of it, at 16 kHz      voice encoder → speaker embedding of T3
//! │ first 6 s (Turbo: 15 s)   speech tokenizer → prompt of T3
//! └ first 10 s                prompt mel; at 16 kHz: speech tokenizer → codes, speaker encoder → x-vector
//! ```
//!
//! Recordings differ in length, so plans are compiled when they are needed, and not kept. The official
//! package resamples the two branches with different filters, and so do we.

use super::config::{
    CODES_PER_SECOND, EncodersConfig, FRAMES_PER_CODE, MEL, S3GenConfig, SAMPLE_RATE, SAMPLES_PER_FRAME,
    T3Config, Variant, X_VECTOR,
};
use super::files::Files;
use super::s3gen::Reference;
use super::voice::{TalkingVoice, Voice};
use super::{speaker_encoder, speech_tokenizer, voice_encoder};
use crate::runtime::PlanCache;
use crate::{Loader, ModelError};
use orate_audio::{
    LogMel, LogMelConfig, MelConfig, MelFilterBank, SincFilter, Spectrogram, Stft, StftConfig,
    normalize_loudness, resample_sinc, trim_silence,
};
use orate_graph::{Device, Graph, GraphError, Memory};
use std::sync::Arc;

/// Samples per second that all encoders but the prompt mel read.
pub(super) const ENCODER_RATE: u32 = 16_000;
/// Seconds of a recording that S3Gen reads.
pub(super) const REFERENCE_SECONDS: usize = 10;
/// Frames of the speech tokenizer's features for a code.
pub(super) const FEATURES_PER_CODE: usize = 4;
/// Samples of a frame of its features.
pub(super) const HOP: usize = 160;
/// Samples of a frame of the speaker encoder's features.
const FBANK_FRAME: usize = 400;
/// Loudness that Turbo and Nano were trained with, in LUFS.
const LOUDNESS: f64 = -27.0;
/// Seconds of a recording that the official code of Turbo and Nano asks for.
const LEAST_SECONDS_FAST: usize = 5;
/// Silence that the voice encoder does not hear: this much quieter than the loudest part, in dB.
const TRIM_DB: f64 = 20.0;
/// Frames from one window of the voice encoder to the next, and part of the last one that must be filled.
const VOICE_WINDOWS: (usize, f64) = (77, 0.8);
/// Frames of features of a longer recording that are tokenized at once, and from one part to the next.
const PARTS: (usize, usize) = (3000, 2600);
/// Codes of a part that overlap the next one, half of the overlap.
const OVERLAP: usize = (PARTS.0 - PARTS.1) / FEATURES_PER_CODE / 2;

/// The encoders on a device. Shared by threads.
pub struct Encoders {
    variant: Variant,
    t3: Option<T3Config>,
    s3gen: S3GenConfig,
    voice_encoder: Option<usize>,
    plans: PlanCache<()>,
}

/// What a network wrote, and the memory with its taps.
pub(super) type Ran = (Vec<f32>, Box<dyn Memory>);

impl Encoders {
    /// Puts the encoders on a device. Their weights are loaded with the first recording.
    pub fn new(files: &Files, device: Arc<dyn Device>) -> Encoders {
        Encoders {
            variant: files.variant,
            t3: files.talking.as_ref().map(|t| t.config.clone()),
            s3gen: files.s3gen.clone(),
            voice_encoder: files.voice_encoder,
            plans: PlanCache::new(device, Arc::new(Loader(files.weights.clone())), 1),
        }
    }

    /// The voice of a recording at 24 kHz.
    ///
    /// # Errors
    /// The recording is too short, the model lacks a network, or the device failed.
    pub fn voice(&self, samples: &[f32]) -> Result<Voice, ModelError> {
        self.s3gen_encoders()?;
        let least = match self.variant.is_fast() {
            true => LEAST_SECONDS_FAST * SAMPLE_RATE as usize,
            // A code, and a frame of features.
            false => SAMPLE_RATE as usize / CODES_PER_SECOND,
        };
        if samples.len() < least || (self.variant.is_fast() && samples.len() == least) {
            return Err(ModelError::TooShort { got: samples.len(), least: least + 1 });
        }
        let mut samples = samples.to_vec();
        if self.s3gen.estimator.is_meanflow {
            normalize_loudness(&mut samples, SAMPLE_RATE, LOUDNESS)?;
        }
        let talking = match &self.t3 {
            None => None,
            Some(t3) => {
                let slow = resample_sinc(&samples, SAMPLE_RATE, ENCODER_RATE, SincFilter::SoxrHq)?;
                let (speaker, _) = self.speaker(&slow, false)?;
                Some(TalkingVoice { speaker, prompt: self.prompt(t3, &slow)? })
            }
        };
        let first = REFERENCE_SECONDS * SAMPLE_RATE as usize;
        let reference = self.reference(&samples[..samples.len().min(first)])?;
        Ok(Voice { talking, reference })
    }

    /// What S3Gen knows of a recording at 24 kHz.
    ///
    /// # Errors
    /// The recording is too short, or the device failed.
    pub fn reference(&self, samples: &[f32]) -> Result<Reference, ModelError> {
        let mut mel = prompt_mel(samples)?;
        let slow = resample_sinc(samples, SAMPLE_RATE, ENCODER_RATE, SincFilter::Torchaudio)?;
        let (projected, _) = self.projected(&features(&slow)?, false)?;
        let mut codes = codes_of(&projected);
        codes.truncate(mel.frames / FRAMES_PER_CODE);
        let most = FRAMES_PER_CODE * codes.len() + 1;
        mel.data.truncate(most * MEL);
        if codes.is_empty() {
            let least = FRAMES_PER_CODE * SAMPLES_PER_FRAME;
            return Err(ModelError::TooShort { got: samples.len(), least });
        }
        let (x_vector, _) = self.x_vector(&slow, false)?;
        Ok(Reference { codes, mel: mel.data, x_vector })
    }

    /// The speaker embedding of a recording at 16 kHz, `[256]`.
    pub(super) fn speaker(&self, samples: &[f32], taps: bool) -> Result<Ran, ModelError> {
        let Some(hidden) = self.voice_encoder else {
            let problem = "it has no ve.safetensors (or ve.pt), which takes a voice from a recording; copy it \
                           from the ResembleAI/chatterbox repository";
            return Err(ModelError::Mode { variant: self.variant.name(), problem: problem.to_owned() });
        };
        let mel = voice_encoder_mel(&samples[trim_silence(samples, TRIM_DB)])?;
        let (windows, data) = mel.windows(voice_encoder::FRAMES, VOICE_WINDOWS.0, VOICE_WINDOWS.1);
        let g = graph("voice encoder", taps, |g| voice_encoder::build(g, hidden, windows))?;
        let shape = [windows, voice_encoder::FRAMES, voice_encoder::BANDS];
        let (windows, memory) =
            self.run(g, (voice_encoder::MEL_WINDOWS, &shape, &data), voice_encoder::WINDOWS)?;
        Ok((voice_encoder::embedding(&windows), memory))
    }

    /// Codes of the first seconds of a recording at 16 kHz, for T3.
    fn prompt(&self, c: &T3Config, samples: &[f32]) -> Result<Vec<i32>, ModelError> {
        let most = c.prompt_codes();
        let first = most * ENCODER_RATE as usize / CODES_PER_SECOND;
        let mut mel = features(&samples[..samples.len().min(first)])?;
        mel.frames = mel.frames.min(FEATURES_PER_CODE * most);
        mel.data.truncate(mel.frames * mel.bins);
        let (projected, _) = self.projected(&mel, false)?;
        Ok(codes_of(&projected))
    }

    /// Codes of a recording of any length from frame `start` of its features on, and where the next part of
    /// it begins. Parts overlap: half of each overlap comes from either.
    ///
    /// # Errors
    /// The recording is too short, or the device failed.
    pub(super) fn part_codes(
        &self,
        mel: &Spectrogram,
        start: usize,
    ) -> Result<(Vec<i32>, Option<usize>), ModelError> {
        let (length, step) = PARTS;
        let end = (start + length).min(mel.frames);
        let data = mel.data[start * mel.bins..end * mel.bins].to_vec();
        let part = Spectrogram { frames: end - start, bins: mel.bins, data };
        let mut codes = codes_of(&self.projected(&part, false)?.0);
        if start > 0 {
            codes.drain(..OVERLAP);
        }
        let next = (end < mel.frames).then_some(start + step);
        if next.is_some() {
            codes.truncate(codes.len() - OVERLAP);
        }
        Ok((codes, next))
    }

    /// What codes are made of, `[T, 8]`.
    ///
    /// # Errors
    /// There is no frame, the device failed, or the weights are damaged.
    pub(super) fn projected(&self, mel: &Spectrogram, taps: bool) -> Result<Ran, ModelError> {
        if mel.frames == 0 {
            return Err(ModelError::TooShort { got: 0, least: HOP });
        }
        let c = &self.s3gen_encoders()?.tokenizer;
        let g = graph("speech tokenizer", taps, |g| speech_tokenizer::build(g, c, mel.frames))?;
        let shape = [1, mel.frames, mel.bins];
        let input = (speech_tokenizer::LOG_MEL, &shape, &*mel.data);
        checked("speech tokenizer", self.run(g, input, speech_tokenizer::PROJECTED)?)
    }

    /// The x-vector of a recording at 16 kHz, `[192]`.
    pub(super) fn x_vector(&self, samples: &[f32], taps: bool) -> Result<Ran, ModelError> {
        if samples.len() < FBANK_FRAME {
            return Err(ModelError::TooShort { got: samples.len(), least: FBANK_FRAME });
        }
        let mut mel = LogMel::new(&LogMelConfig::kaldi_fbank(MEL))?.apply(samples);
        mel.subtract_mean();
        let c = &self.s3gen_encoders()?.speaker;
        let g = graph("speaker encoder", taps, |g| speaker_encoder::build(g, c, mel.frames))?;
        let shape = [1, mel.frames, MEL];
        let (x_vector, memory) =
            self.run(g, (speaker_encoder::FBANK, &shape, &mel.data), speaker_encoder::X_VECTOR_OUTPUT)?;
        debug_assert_eq!(x_vector.len(), X_VECTOR);
        checked("speaker encoder", (x_vector, memory))
    }

    /// Sizes of the encoders of S3Gen.
    ///
    /// # Errors
    /// The model has none.
    pub(super) fn s3gen_encoders(&self) -> Result<&EncodersConfig, ModelError> {
        self.s3gen.encoders.as_ref().ok_or_else(|| {
            let problem = "its file has no speech tokenizer and no speaker encoder, which read recordings; \
                           take a file of CrispASR (cstr/chatterbox-turbo-GGUF) or the official repository";
            ModelError::Mode { variant: self.variant.name(), problem: problem.to_owned() }
        })
    }

    fn run(
        &self,
        g: Graph,
        (name, shape, data): (&str, &[usize; 3], &[f32]),
        output: &str,
    ) -> Result<Ran, ModelError> {
        let mut memory = self.plans.device().memory();
        memory.write_f32(name, &(*shape).into(), data)?;
        self.plans.compile(g)?.run(&mut *memory)?;
        let mut out = vec![];
        memory.read_f32(output, &mut out)?;
        Ok((out, memory))
    }
}

/// Refuses what no undamaged network returns.
fn checked(network: &str, (values, memory): Ran) -> Result<Ran, ModelError> {
    match values.iter().find(|x| !x.is_finite()) {
        None => Ok((values, memory)),
        Some(x) => Err(ModelError::Damaged { problem: format!("the {network} returned {x}") }),
    }
}

fn graph(
    name: &str,
    taps: bool,
    build: impl FnOnce(&mut Graph) -> Result<(), GraphError>,
) -> Result<Graph, GraphError> {
    let g = Graph::new(name);
    let mut g = if taps { g.with_taps() } else { g };
    build(&mut g)?;
    Ok(g)
}

fn codes_of(projected: &[f32]) -> Vec<i32> {
    projected.chunks_exact(speech_tokenizer::DIGITS).map(speech_tokenizer::code).collect()
}

/// Features of the speech tokenizer, of a recording at 16 kHz.
pub(super) fn features(samples: &[f32]) -> Result<Spectrogram, ModelError> {
    Ok(LogMel::new(&LogMelConfig::whisper(speech_tokenizer::BANDS))?.apply(samples))
}

/// The mel spectrogram that S3Gen continues, of a recording at 24 kHz.
pub(super) fn prompt_mel(samples: &[f32]) -> Result<Spectrogram, ModelError> {
    const N_FFT: usize = 1920;
    const F_MAX: f64 = 8000.0;
    let config = LogMelConfig::hifi_gan(SAMPLE_RATE, N_FFT, SAMPLES_PER_FRAME, MEL, F_MAX);
    Ok(LogMel::new(&config)?.apply(samples))
}

/// Powers without a logarithm, of a recording at 16 kHz.
fn voice_encoder_mel(samples: &[f32]) -> Result<Spectrogram, ModelError> {
    const N_FFT: usize = 400;
    let stft = Stft::new(StftConfig { power: true, ..StftConfig::new(N_FFT, HOP) })?;
    let bank = MelFilterBank::new(&MelConfig::new(ENCODER_RATE, N_FFT, voice_encoder::BANDS))?;
    Ok(bank.apply(&stft.spectrum(samples)))
}
