//! The one error type of this crate.

use std::io;
use std::path::PathBuf;

/// The cause of an error of another library, kept for the chain but not for matching.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What can go wrong with audio: in files, in settings, or in the samples themselves.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AudioError {
    /// The file name does not say which format to write.
    #[error(
        "{path}: cannot tell the audio format from {}. Use a name that ends in one of {known}, \
         or choose the format explicitly.", ending(.extension)
    )]
    UnknownFormat {
        /// The file name as given.
        path: PathBuf,
        /// Its extension, if it has one.
        extension: Option<String>,
        /// The extensions that are known, for the message.
        known: String,
    },

    /// The output file could not be created.
    #[error("{path}: cannot create this file. Check that its folder exists and may be written to.")]
    Create {
        /// The output file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// Writing failed part-way. Nothing is left behind.
    #[error("{path}: writing failed, and no incomplete file remains. Check the free space on that disk.")]
    Write {
        /// The output file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// Writing to a pipe or another stream failed, for example because its reader went away.
    #[error("cannot write audio to the output stream. Check that its reader is still running.")]
    WriteStream {
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// The FLAC encoder refused the audio.
    #[error("{path}: cannot encode as FLAC. Write a .wav file instead.")]
    EncodeFlac {
        /// The output file.
        path: PathBuf,
        /// What the encoder said.
        #[source]
        source: Cause,
    },

    /// The audio does not fit into a WAV file, whose size fields have 32 bits.
    #[error(
        "{path}: a WAV file holds at most {limit_bytes} bytes of samples, and this would be more. \
         Write a .flac file, use 16-bit samples, or split the audio."
    )]
    WavTooLong {
        /// The output file.
        path: PathBuf,
        /// The most bytes of sample data that fit.
        limit_bytes: u64,
    },

    /// The writer was used again after an error.
    #[error("{path}: this file was given up after an earlier error. Create a new writer.")]
    Abandoned {
        /// The output file.
        path: PathBuf,
    },

    /// A WAV file could not be read.
    #[error(
        "{path}: cannot read this as a WAV file. \
         Integer samples of 8 to 32 bits and 32-bit float samples are supported."
    )]
    ReadWav {
        /// The input file.
        path: PathBuf,
        /// What the decoder said.
        #[source]
        source: Cause,
    },

    /// An audio file is not there, or may not be read.
    #[error("{path}: cannot open this recording. Check its name, and that it may be read.")]
    OpenAudio {
        /// The input file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// An audio file could not be read.
    #[error(
        "{path}: cannot read this as audio. Use a file that is complete and holds WAV, FLAC, MP3, Ogg Vorbis or \
         AAC in MP4; other kinds have to be converted first."
    )]
    ReadAudio {
        /// The input file.
        path: PathBuf,
        /// What the decoder said.
        #[source]
        source: Cause,
    },

    /// A recording has no samples.
    #[error("{what}: there are no samples in this recording. Record some seconds of speech.")]
    NoSamples {
        /// The recording.
        what: String,
    },

    /// A recording has a sample that is no number.
    #[error(
        "{what}: sample {position} is {value}, which is no sound. Convert the recording to 16-bit samples, \
         or repair the program that wrote it."
    )]
    NotFinite {
        /// The recording.
        what: String,
        /// Index of the first such sample.
        position: usize,
        /// NaN or infinite.
        value: f32,
    },

    /// A recording is longer than it may be.
    #[error("{what}: this recording is longer than {limit_s} s. Cut it to the best few seconds of speech.")]
    TooLong {
        /// The recording.
        what: String,
        /// The greatest length, in seconds.
        limit_s: f64,
    },

    /// A recording holds too little that can be heard.
    #[error(
        "{what}: only {seconds:.2} s of this recording are not silent, and at least {least_s} s are needed. \
         Record a longer sentence."
    )]
    TooShort {
        /// The recording.
        what: String,
        /// How much there is, in seconds.
        seconds: f64,
        /// How much is needed, in seconds.
        least_s: f64,
    },

    /// A recording is silent all through.
    #[error(
        "{what}: this recording is silent; its loudest part is at {dbfs:.0} dB of full scale. \
         Check the microphone, and that the right file was chosen."
    )]
    Silent {
        /// The recording.
        what: String,
        /// Level of the loudest part, in dB of full scale.
        dbfs: f64,
    },

    /// A sample rate is zero or not a rate that audio has.
    #[error("a sample rate of {got} Hz is not usable; expected 1 to {max} Hz.")]
    SampleRate {
        /// The rate that was given, in Hz.
        got: u32,
        /// The highest accepted rate, in Hz.
        max: u32,
    },

    /// Settings of an analysis contradict each other.
    #[error("{what} is {got}, but {want}.")]
    Config {
        /// The setting, for example `hop_length`.
        what: &'static str,
        /// Its value.
        got: String,
        /// The rule that it breaks, as half a sentence.
        want: String,
    },

    /// Two signals that are to be compared sample by sample differ in length.
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

    /// There are no samples, where at least one is needed.
    #[error("there is no audio to {purpose}: the signal has 0 samples.")]
    Empty {
        /// What the audio was needed for, as a verb.
        purpose: &'static str,
    },

    /// The resampler refused the rates.
    #[error("cannot resample from {from} Hz to {to} Hz.")]
    Resample {
        /// Rate of the input, in Hz.
        from: u32,
        /// Rate that was asked for, in Hz.
        to: u32,
        /// What the resampler said.
        #[source]
        source: Cause,
    },
}

/// A result whose error is an [`AudioError`].
pub type Result<T, E = AudioError> = std::result::Result<T, E>;

fn ending(extension: &Option<String>) -> String {
    match extension {
        Some(extension) => format!("the ending `.{extension}`"),
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
