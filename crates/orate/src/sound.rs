//! From the samples of pieces to the sound that is played.

use crate::Result;
use orate_audio::{Finish, Level, Leveler, Loudness, PieceEdges, PieceFinisher, gain_for};

/// A sound that is whole before it is heard has the gain that its beginning needs, of this many seconds. So
/// the memory for it does not grow with the text.
const MEASURED_SECONDS: u32 = 60;

/// Finishes pieces, puts silence between them, and levels all.
pub(crate) struct Sound {
    finisher: PieceFinisher,
    leveling: Leveling,
    loudness: Option<Loudness>,
    sample_rate: u32,
    /// Gain of the samples that come, besides leveling.
    gain: f32,
    /// Samples before leveling so far. Leveling shifts none.
    position: usize,
}

enum Leveling {
    Off,
    On(Box<Leveler>),
    /// Samples from which the gain will be measured, without their volume. Each run of them has the volume
    /// that begins with it.
    Measuring {
        held: Vec<f32>,
        volumes: Vec<(usize, f32)>,
        loudness: Loudness,
    },
}

impl Sound {
    /// A sound that is heard while it is made, of a voice with `usual` loudness in LUFS; or one that is
    /// `whole` before, whose loudness is measured.
    pub fn new(finish: &Finish, whole: bool, usual: f64, sample_rate: u32) -> Result<Sound> {
        let leveling = match finish.loudness {
            None => Leveling::Off,
            Some(loudness) => {
                let leveler = Leveler::new(&loudness, Level::Prior(usual), sample_rate)?;
                match whole {
                    true => Leveling::Measuring { held: vec![], volumes: vec![], loudness },
                    false => Leveling::On(Box::new(leveler)),
                }
            }
        };
        let finisher = PieceFinisher::new(finish, sample_rate)?;
        Ok(Sound { finisher, leveling, loudness: finish.loudness, sample_rate, gain: 1.0, position: 0 })
    }

    /// Samples so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Sets the gain of what follows.
    pub fn set_gain(&mut self, decibels: f32) {
        self.gain = 10_f32.powf(decibels / 20.0);
    }

    /// Takes samples of a piece, and appends what they complete of it to `speech`.
    pub fn push(&mut self, samples: &[f32], speech: &mut Vec<f32>) {
        self.finisher.push(samples, speech);
    }

    /// Ends a piece.
    pub fn end_piece(&mut self, speech: &mut Vec<f32>) -> PieceEdges {
        self.finisher.end_piece(speech)
    }

    /// Takes the gain from the first piece, which is whole before it is heard. Nothing was leveled yet.
    pub fn measure_first(&mut self, piece: &[f32]) -> Result<()> {
        if let (Leveling::On(leveler), Some(loudness)) = (&mut self.leveling, self.loudness) {
            let gain = gain_for(piece, self.sample_rate, &loudness)?;
            **leveler = Leveler::new(&loudness, Level::Fixed(gain), self.sample_rate)?;
        }
        Ok(())
    }

    /// Levels finished samples, and appends what can be heard to `out`.
    pub fn level(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<()> {
        self.position += samples.len();
        match &mut self.leveling {
            Leveling::Off => out.extend(samples.iter().map(|x| self.gain * x)),
            Leveling::On(leveler) => leveler.push_at(samples, self.gain, out),
            Leveling::Measuring { held, volumes, .. } => {
                if volumes.last().is_none_or(|(_, gain)| *gain != self.gain) {
                    volumes.push((held.len(), self.gain));
                }
                held.extend_from_slice(samples);
                if held.len() >= (MEASURED_SECONDS * self.sample_rate) as usize {
                    self.measure(out)?;
                }
            }
        }
        Ok(())
    }

    /// Appends what is still held back.
    pub fn finish(&mut self, out: &mut Vec<f32>) -> Result<()> {
        self.measure(out)?;
        if let Leveling::On(leveler) = &mut self.leveling {
            leveler.finish(out);
        }
        Ok(())
    }

    /// Ends measuring, if it goes on.
    fn measure(&mut self, out: &mut Vec<f32>) -> Result<()> {
        if let Leveling::Measuring { held, volumes, loudness } = &self.leveling {
            let gain = gain_for(held, self.sample_rate, loudness)?;
            let mut leveler = Leveler::new(loudness, Level::Fixed(gain), self.sample_rate)?;
            for (i, &(start, volume)) in volumes.iter().enumerate() {
                let end = volumes.get(i + 1).map_or(held.len(), |(next, _)| *next);
                leveler.push_at(&held[start..end], volume, out);
            }
            self.leveling = Leveling::On(Box::new(leveler));
        }
        Ok(())
    }
}
