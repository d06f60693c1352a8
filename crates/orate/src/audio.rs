//! Audio: samples and their rate.

use crate::Result;
use orate_audio::{AudioFormat, write_audio};
use std::path::Path;

/// Mono audio.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    /// Samples, about −1 to 1.
    pub samples: Vec<f32>,
    /// Samples per second.
    pub sample_rate: u32,
}

impl Audio {
    /// Length in seconds.
    pub fn duration(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.sample_rate)
    }

    /// Writes a file in the format of its extension: `.wav` (16 bit), `.flac`, and with the features of these
    /// names `.mp3`, `.opus` (or `.ogg`) and `.aac`. The file appears whole or not at all.
    ///
    /// # Errors
    /// The extension is unknown, or the file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let format = AudioFormat::from_extension(path.as_ref())?;
        Ok(write_audio(path, &self.samples, self.sample_rate, format)?)
    }
}
