//! Audio for Orate: files, sample rates, spectra, levels and plots.
//!
//! Samples are mono `f32` with full scale -1..1; a sample rate is a `u32` in Hz. The crate has plain
//! functions on slices and small structs with their settings, and no global state.
//!
//! | to | use |
//! | --- | --- |
//! | write a file | [`write_audio`], or [`AudioWriter`] piece by piece |
//! | write to a pipe or socket | [`StreamEncoder`]; [`encode`] for a whole clip |
//! | read a file | [`read_audio`], [`read_audio_from`], [`read_audio_bytes`]; [`read_wav`] for WAV only |
//! | read a recording of a voice | [`read_reference`], or [`prepare_reference`] for samples |
//! | check one that is used as it is | [`check_recording`] |
//! | change the sample rate | [`resample`]; [`resample_sinc`] with the filters of torchaudio and soxr |
//! | change that of a stream | [`StreamResampler`] |
//! | prepare speech for encoders | [`normalize_loudness`], [`trim_silence`] |
//! | make features | [`LogMel`], or [`Stft`], [`MelFilterBank`], [`log_compress`] |
//! | measure | [`peak_dbfs`], [`true_peak_dbtp`], [`rms_dbfs`], [`integrated_loudness`], [`LoudnessMeter`] |
//! | write an audiobook | `M4bWriter` (feature `chapters`), [`AudioWriter::create_tagged`] with [`Tags`] |
//! | finish speech for listeners | [`PieceFinisher`], [`Leveler`] |
//! | compare | [`snr_db`], [`log_spectral_distance_db`] |
//! | draw | [`plot_png`] |
//!
//! ```
//! use orate_audio::{AudioFormat, peak_dbfs, read_wav, resample, write_audio};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("tone.flac");
//! let tone: Vec<f32> = (0..44_100).map(|i| 0.5 * (i as f32 * 0.06).sin()).collect();
//! assert!((peak_dbfs(&tone) + 6.0).abs() < 0.1);
//!
//! let tone = resample(&tone, 44_100, 24_000)?;
//! write_audio(&path, &tone, 24_000, AudioFormat::from_extension(&path)?)?;
//! # Ok::<(), orate_audio::AudioError>(())
//! ```

mod compare;
mod decode;
mod encode;
mod error;
pub mod finish;
mod format;
#[cfg(test)]
mod goldens;
mod log_mel;
mod loudness;
#[cfg(feature = "chapters")]
mod m4b;
mod mel;
mod output;
mod plot;
mod read;
mod reference;
mod resample;
mod stft;
mod stream_resampler;
mod tags;
mod trim;
mod true_peak;
mod wav_length;
mod writer;

pub use compare::{log_spectral_distance_db, snr_db};
pub use decode::{read_audio, read_audio_bytes, read_audio_from};
pub use encode::{EncoderSettings, StreamEncoder, encode};
pub use error::{AudioError, Cause, MAX_SAMPLE_RATE, Result};
pub use finish::{Finish, Level, Leveler, Loudness, Margins, PieceEdges, PieceFinisher, gain_for};
pub use format::{AudioFormat, to_pcm16};
pub use log_mel::{Compression, LogMel, LogMelConfig};
pub use loudness::{LoudnessMeter, integrated_loudness, normalize_loudness, peak, peak_dbfs, rms_dbfs};
#[cfg(feature = "chapters")]
pub use m4b::M4bWriter;
pub use mel::{MelConfig, MelFilterBank, MelScale, log_compress, log_compress_whisper};
pub use output::{check_output, write_output};
pub use plot::{plot_png, plot_png_bytes};
pub use read::{Waveform, read_wav};
pub use reference::{ReferenceOptions, Trim, check_recording, prepare_reference, read_reference};
pub use resample::{SincFilter, resample, resample_sinc};
pub use stft::{Padding, Spectrogram, Stft, StftConfig, Window, hann, reflect_pad};
pub use stream_resampler::StreamResampler;
pub use tags::{ChapterMark, Tags};
pub use trim::trim_silence;
pub use true_peak::true_peak_dbtp;
pub use writer::{AudioWriter, write_audio};
