//! Trimming of silence as librosa does it.

use std::ops::Range;

/// Samples per frame, and from one frame to the next.
const FRAME: usize = 2048;
const HOP: usize = 512;
/// Least power that is told from silence.
const LEAST_POWER: f64 = 1e-10;

/// Returns what `librosa.effects.trim(samples, top_db=below_loudest_db)` keeps: from the first to the last
/// frame less than `below_loudest_db` quieter than the loudest. A clip that is silent throughout is kept.
///
/// Frames have 2048 samples, centered every 512.
///
/// ```
/// let mut clip = vec![0.0; 4096];
/// clip.resize(8192, 0.5);
/// assert_eq!(orate_audio::trim_silence(&clip, 20.0), 3584..8192);
/// ```
pub fn trim_silence(samples: &[f32], below_loudest_db: f64) -> Range<usize> {
    let power = |at: usize| {
        let frame = &samples[at.saturating_sub(FRAME / 2)..(at + FRAME / 2).min(samples.len())];
        frame.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / FRAME as f64
    };
    let levels: Vec<f64> =
        (0..=samples.len()).step_by(HOP).map(|at| 10.0 * power(at).max(LEAST_POWER).log10()).collect();
    let loudest = levels.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sounds = |level: &f64| level - loudest > -below_loudest_db;
    let (Some(first), Some(last)) = (levels.iter().position(sounds), levels.iter().rposition(sounds)) else {
        return 0..0;
    };
    first * HOP..((last + 1) * HOP).min(samples.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges() {
        for length in [0, 1, 511, 512, 2048, 5000] {
            assert_eq!(trim_silence(&vec![0.0; length], 20.0), 0..length, "{length} zeros");
            assert_eq!(trim_silence(&vec![0.1; length], 20.0), 0..length, "{length} equal samples");
        }
        assert_eq!(trim_silence(&[0.1; 5000], 0.0), 0..0);
    }
}
