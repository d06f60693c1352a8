//! Text-to-speech that speaks on whatever machine the user has.
//!
//! ```
//! let engine = orate::Engine::new()?;               // the built-in English voice
//! let audio = engine.say("Hello.")?;
//! assert!(audio.duration() > 0.3);
//! audio.write(std::env::temp_dir().join("orate-doc-hello.wav"))?;
//! # std::fs::remove_file(std::env::temp_dir().join("orate-doc-hello.wav")).ok();
//! # Ok::<(), orate::Error>(())
//! ```
//!
//! An [`Engine`] holds one model on one device. It is cheap to clone and may be used by any number of threads
//! at once. [`Options`] say how to speak; [`Engine::speak`] returns all the audio, [`Engine::stream`] piece
//! by piece. Equal options and seed give equal samples, whatever the number of threads.

mod audio;
mod default_voice;
mod devices;
mod engine;
mod error;
pub mod families;
mod options;
mod precision;
mod script;
mod sound;
mod stream;
mod voice_store;
mod word_times;

pub use audio::Audio;
pub use default_voice::VOICE_VARIABLE;
pub use devices::{CACHE_VARIABLE, Devices, cache_folder, devices};
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use families::*;
pub use options::{CacheChoice, DeviceChoice, EngineOptions, ModelSource, PrecisionChoice};
pub use orate_audio::{
    AudioError, AudioFormat, AudioWriter, EncoderSettings, Finish, Loudness, Margins, StreamEncoder,
    StreamResampler, check_output, encode, plot_png, plot_png_bytes, write_output,
};
pub use orate_cpu::ISA_VARIABLE;
pub use orate_graph::{
    CacheFormat, Counters, DeviceClass, DeviceInfo, DeviceKind, Precision, PrecisionPolicy, Roofline,
};
pub use orate_models::{
    Cancel, Chunk, Chunks, ClonedVoice, Cloning, Conversion, Description, Facts, Family, FinishReason, Flags,
    Footprint, Lap, Laps, Model, ModelError, ModelFiles, Opening, OptionKind, OptionSet, OptionSpec, Options,
    Runs, Size, SpeechLength, Value, Values, VoiceInfo, hooks,
};
pub use orate_text::words::{Pause, Word};
pub use orate_text::{
    Lexicon, Script, Segment, Sentence, Source, TextError, TextSession, TimedMark, TimedWord, Traced,
    captions, decode_text, languages,
};
pub use orate_weights::WeightError;
pub use precision::{MOST_PROBED_ERROR, Probe, Probes};
pub use script::Speaker;
pub use stream::Stream;
pub use voice_store::{VOICE_FOLDER_VARIABLE, VoiceStore};

/// Compiles the examples of the guide for applications.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryGuide;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
