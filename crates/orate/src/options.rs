//! How to speak.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orate_models::qwen3_tts::{ClonedVoice, TextFeeding};
pub use orate_text::pieces::Unknown;

/// How a text is spoken. Everything has a default.
///
/// ```
/// let slow = orate::Options { speed: Some(0.8), seed: 7, ..Default::default() };
/// let audio = orate::Engine::new()?.speak("Take your time.", &slow)?;
/// assert_eq!(audio.sample_rate, 24_000);
/// # Ok::<(), orate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// A voice of the model; for Supertonic also a voice file, or a mix such as `F1:0.7+M2:0.3`. `None`: the model's first voice.
    pub voice: Option<String>,
    /// Language code such as `en`. `None`: the model's default.
    pub language: Option<String>,
    /// Factor of the speaking rate, 0.7 to 2. `None`: the model's usual rate.
    pub speed: Option<f32>,
    /// Denoising steps, 1 to 100; more is slower and a little cleaner. `None`: what the model was tuned for.
    pub steps: Option<usize>,
    /// Seed of the noise.
    pub seed: u64,
    /// Silence between the pieces of a long text, in seconds, 0 to 10.
    pub silence: f32,
    /// Whether numbers, dates, money and abbreviations in English text are written out first. `None`: for voices
    /// that only know letters, such as the built-in one.
    pub read_numbers: Option<bool>,
    /// What happens to characters the voice does not know.
    pub unknown: Unknown,
    /// Whether each piece ends at its predicted duration. Without, it ends at the next whole latent frame, as in
    /// the official Python package.
    pub trim: bool,
    /// A voice made from a recording, for Qwen3-TTS Base models; see [`crate::Engine::clone_voice`].
    pub cloned: Option<Arc<ClonedVoice>>,
    /// How to speak, or who, in words. For Qwen3-TTS models that follow instructions.
    pub instruct: Option<String>,
    /// Whether a Qwen3-TTS model sees all of a piece before it speaks, or a token of it with each frame. `None`: as in the official package, which
    /// feeds Base models token by token and others the whole text.
    pub feeding: Option<TextFeeding>,
    /// Divides the logits that codes are drawn from; 0 takes the likeliest. For Qwen3-TTS, as all that follow; `None`: what
    /// the model's `generation_config.json` says.
    pub temperature: Option<f32>,
    /// Codes to draw from, the likeliest ones; 0 is all.
    pub top_k: Option<usize>,
    /// Probability to draw from, 0 to 1.
    pub top_p: Option<f32>,
    /// As [`Self::temperature`], for the codes of a frame behind the first, which the code predictor draws. `None`: what is said for the first, or else the model's own.
    pub predictor_temperature: Option<f32>,
    /// As [`Self::top_k`], for these codes.
    pub predictor_top_k: Option<usize>,
    /// As [`Self::top_p`], for these codes.
    pub predictor_top_p: Option<f32>,
    /// Makes codes that were drawn before less likely.
    pub repetition_penalty: Option<f32>,
    /// Frames of 80 ms that a piece of the text may have. `None`: what its length suggests.
    pub max_frames: Option<usize>,
    /// How often a piece that has gone astray ([`crate::FinishReason::Runaway`]) is spoken again, with another seed made from
    /// `seed`. Only a piece of which nothing was handed out is: see `whole_pieces`. `None`: once.
    pub retries: Option<usize>,
    /// Whether nothing of a piece is handed out before all of it is made, so that it can be spoken again.
    /// [`crate::Engine::speak`] always does so.
    pub whole_pieces: bool,
    /// Whether the codec of a Qwen3-TTS model runs on a thread of its own while the next frames are made. `None`: on GPUs, whose
    /// queues take nothing from each other; on a CPU both share the same threads. Samples are the same either way.
    pub codec_beside: Option<bool>,
    /// Stops work from another thread.
    pub cancel: Option<Cancel>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            voice: None,
            language: None,
            speed: None,
            steps: None,
            seed: 0,
            silence: orate_text::pieces::SILENCE_SECONDS as f32,
            read_numbers: None,
            unknown: Unknown::Refuse,
            trim: true,
            cloned: None,
            instruct: None,
            feeding: None,
            temperature: None,
            top_k: None,
            top_p: None,
            predictor_temperature: None,
            predictor_top_k: None,
            predictor_top_p: None,
            repetition_penalty: None,
            max_frames: None,
            retries: None,
            whole_pieces: false,
            codec_beside: None,
            cancel: None,
        }
    }
}

/// A switch that stops speaking: clone it into [`Options::cancel`] and flip it from any thread. Work ends before
/// the next denoising step, frame or network runs, within some tens of milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl From<Arc<AtomicBool>> for Cancel {
    /// A switch that something else flips, such as a handler of signals.
    fn from(flag: Arc<AtomicBool>) -> Cancel {
        Cancel(flag)
    }
}

impl Cancel {
    /// A switch that is off.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Stops everything that has this switch.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was flipped.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
