//! Error type of this crate.

use std::io;
use std::path::PathBuf;

use orate_files::{one_line, quoted, shown};

/// An error of another library, given as the cause but not for matching.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Errors of audio files, of settings, and of the samples themselves.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AudioError {
    /// The file name does not determine the format to write.
    #[error(
        "{}: cannot tell the audio format from {}. Use a name that ends in one of {known}, \
         or choose the format explicitly.", shown(path), ending(.extension)
    )]
    UnknownFormat {
        /// The file name as given.
        path: PathBuf,
        /// Its extension, if it has one.
        extension: Option<String>,
        /// The known extensions, for the message.
        known: String,
    },

    /// The output file could not be created.
    #[error("{}: cannot create this file. Check that its folder exists and may be written to.", shown(path))]
    Create {
        /// The output file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },

    /// Writing failed midway. Nothing remains of the file.
    #[error(
        "{}: writing failed, and no incomplete file remains. Check the free space on that disk.",
        shown(path)
    )]
    Write {
        /// The output file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },

    /// An encoder rejected the audio.
    #[error("cannot encode as {format}. Write WAV instead.")]
    Encode {
        /// Name of the format.
        format: &'static str,
        /// Error of the encoder.
        #[source]
        source: Cause,
    },

    /// This build cannot write the format.
    #[error("this build cannot write {format}; it has {known}. Build Orate with the feature `{format}`.")]
    NotBuilt {
        /// Name of the format.
        format: &'static str,
        /// The formats that this build has.
        known: String,
    },

    /// The audio does not fit into a WAV file, whose size fields have 32 bits.
    #[error(
        "{}: a WAV file holds at most {limit_bytes} bytes of samples, and this would be more. \
         Write a .flac file, use 16-bit samples, or split the audio.",
        shown(path)
    )]
    WavTooLong {
        /// The output file.
        path: PathBuf,
        /// Maximum bytes of sample data.
        limit_bytes: u64,
    },

    /// The writer was used again after an error.
    #[error("{}: this file was given up after an earlier error. Create a new writer.", shown(path))]
    Abandoned {
        /// The output file.
        path: PathBuf,
    },

    /// A WAV file could not be read.
    #[error(
        "{}: cannot read this as a WAV file. \
         Integer samples of 8 to 32 bits and 32-bit float samples are supported.",
        shown(path)
    )]
    ReadWav {
        /// The input file.
        path: PathBuf,
        /// Error of the decoder.
        #[source]
        source: Cause,
    },

    /// An audio file does not exist or cannot be read.
    #[error("{}: cannot open this recording. Check its name, and that it may be read.", shown(path))]
    OpenAudio {
        /// The input file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },

    /// An audio file could not be read.
    #[error(
        "{}: cannot read this as audio. Use a complete file of WAV, FLAC, MP3, Vorbis or Opus in Ogg, or AAC in MP4; convert \
         other kinds first.",
        shown(path)
    )]
    ReadAudio {
        /// The input file.
        path: PathBuf,
        /// Error of the decoder.
        #[source]
        source: Cause,
    },

    /// A recording ends before the length that its header states, or inside a page of Opus.
    #[error(
        "{}: this recording is cut short: its end is missing. Copy or \
         download it again, or convert what is there, for example with `ffmpeg -i FILE whole.wav`.",
        shown(path)
    )]
    CutShort {
        /// The input file.
        path: PathBuf,
    },

    /// A recording has no samples.
    #[error("{}: there are no samples in this recording. Record some seconds of speech.", one_line(what))]
    NoSamples {
        /// The recording.
        what: String,
    },

    /// A recording has a sample that is not finite.
    #[error(
        "{}: sample {position} is {value}, which is not audio. Convert the recording to 16-bit samples, or repair \
         the program that wrote it.",
        one_line(what)
    )]
    NotFinite {
        /// The recording.
        what: String,
        /// Index of the first such sample.
        position: usize,
        /// NaN or infinite.
        value: f32,
    },

    /// A recording is too long.
    #[error(
        "{}: this recording is longer than {limit_s} s. {}.",
        one_line(what),
        match *limit_s > 100.0 {
            true => "Cut it into several files",
            false => "Cut it to the best few seconds of speech",
        }
    )]
    TooLong {
        /// The recording.
        what: String,
        /// Maximum length in seconds.
        limit_s: f64,
    },

    /// A recording has too little sound.
    #[error(
        "{}: only {seconds:.2} s of this recording are not silent, and at least {least_s} s are needed. \
         Record a longer sentence.",
        one_line(what)
    )]
    TooShort {
        /// The recording.
        what: String,
        /// Length of the non-silent part in seconds.
        seconds: f64,
        /// Minimum length in seconds.
        least_s: f64,
    },

    /// A recording is silent throughout.
    #[error(
        "{}: this recording is silent; its loudest part is at {dbfs:.0} dBFS. \
         Check the microphone, and that the right file was chosen.",
        one_line(what)
    )]
    Silent {
        /// The recording.
        what: String,
        /// Level of the loudest part in dBFS.
        dbfs: f64,
    },

    /// A recording has samples far beyond −1 to 1.
    #[error(
        "{}: the loudest part of this recording is at {dbfs:.0} dBFS, so its samples are not in -1 to 1. \
         Convert it to 16-bit samples.",
        one_line(what)
    )]
    TooLoud {
        /// The recording.
        what: String,
        /// Level of the loudest part in dBFS.
        dbfs: f64,
    },

    /// A sample to write is not finite.
    #[error(
        "sample {position} is {value}, which no player can play. The model's weights or the voice may be damaged, or \
         the precision overflows (try bf16 or f32)."
    )]
    BadSample {
        /// Index of the first such sample in the output.
        position: u64,
        /// NaN or infinite.
        value: f32,
    },

    /// A sample rate is zero or too high.
    #[error("a sample rate of {got} Hz is not usable; expected 1 to {max} Hz.")]
    SampleRate {
        /// The rate that was given, in Hz.
        got: u32,
        /// The highest accepted rate, in Hz.
        max: u32,
    },

    /// Settings of an analysis are invalid or contradict each other.
    #[error("{what} is {got}, but {want}.")]
    Config {
        /// The setting, for example `hop_length`.
        what: &'static str,
        /// Its value.
        got: String,
        /// The violated rule, as half a sentence.
        want: String,
    },

    /// Two signals to compare differ in length.
    #[error(
        "the reference has {reference} samples and the signal under test {test}. \
         Trim both to the same length before comparing them."
    )]
    LengthMismatch {
        /// Samples in the reference.
        reference: usize,
        /// Samples in the signal under test.
        test: usize,
    },

    /// There are no samples, but at least one is needed.
    #[error("there is no audio to {purpose}: the signal has 0 samples.")]
    Empty {
        /// What the audio was needed for, as a verb.
        purpose: &'static str,
    },

    /// The resampler rejected the rates.
    #[error("cannot resample from {from} Hz to {to} Hz.")]
    Resample {
        /// Rate of the input, in Hz.
        from: u32,
        /// Requested rate in Hz.
        to: u32,
        /// Error of the resampler.
        #[source]
        source: Cause,
    },
}

/// A result whose error is an [`AudioError`].
pub type Result<T, E = AudioError> = std::result::Result<T, E>;

fn ending(extension: &Option<String>) -> String {
    match extension {
        Some(extension) => format!("the ending {}", quoted(&format!(".{extension}"))),
        None => "a name without an ending".to_owned(),
    }
}

/// The highest sample rate that any part of this crate accepts, in Hz.
pub const MAX_SAMPLE_RATE: u32 = 768_000;

pub(crate) fn check_sample_rate(sample_rate: u32) -> Result<()> {
    if sample_rate == 0 || sample_rate > MAX_SAMPLE_RATE {
        return Err(AudioError::SampleRate { got: sample_rate, max: MAX_SAMPLE_RATE });
    }
    Ok(())
}

/// Checks that samples can be written; `before` are those written earlier.
pub(crate) fn check_samples(samples: &[f32], before: u64) -> Result<()> {
    match samples.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(at) => Err(AudioError::BadSample { position: before + at as u64, value: samples[at] }),
    }
}
