//! Distances between two clips of the same sound.

use crate::error::{AudioError, Result};
use crate::stft::{Spectrogram, Stft, StftConfig};

/// Signal-to-noise ratio in dB, where the noise is `test - reference`.
///
/// Infinity for equal clips; minus infinity if a silent reference differs at all.
///
/// # Errors
///
/// [`AudioError::LengthMismatch`], [`AudioError::Empty`].
///
/// ```
/// let snr = orate_audio::snr_db(&[1.0, -1.0], &[1.1, -1.1])?;
/// assert!((snr - 20.0).abs() < 0.001);
/// # Ok::<(), orate_audio::AudioError>(())
/// ```
pub fn snr_db(reference: &[f32], test: &[f32]) -> Result<f64> {
    check_lengths(reference, test)?;
    let (mut signal, mut noise) = (0.0, 0.0);
    for (&r, &t) in reference.iter().zip(test) {
        let (r, t) = (f64::from(r), f64::from(t));
        signal += r * r;
        noise += (t - r) * (t - r);
    }
    if noise == 0.0 {
        return Ok(f64::INFINITY);
    }
    Ok(10.0 * (signal / noise).log10())
}

/// Floor of powers: -100 dB relative to a magnitude of 1, well below 16-bit noise.
const POWER_FLOOR: f64 = 1e-10;

/// Log-spectral distance in dB: the root mean square difference of the log power spectra of a frame, averaged
/// over frames.
///
/// Equal clips give 0. Unlike [`snr_db`] it hardly depends on phase. Frames have 1024 samples and a hop of
/// 256; powers below -100 dB count as -100 dB.
///
/// # Errors
///
/// [`AudioError::LengthMismatch`], [`AudioError::Empty`].
pub fn log_spectral_distance_db(reference: &[f32], test: &[f32]) -> Result<f64> {
    check_lengths(reference, test)?;
    let stft = Stft::new(StftConfig::new(1024, 256))?;
    let (reference, test): (Spectrogram, _) = (stft.spectrum(reference), stft.spectrum(test));
    let decibels = |x: f32| 10.0 * (f64::from(x) * f64::from(x)).max(POWER_FLOOR).log10();
    let sum: f64 = reference
        .iter()
        .zip(test.iter())
        .map(|(r, t)| {
            let squares = r.iter().zip(t).map(|(&r, &t)| (decibels(r) - decibels(t)).powi(2));
            (squares.sum::<f64>() / r.len() as f64).sqrt()
        })
        .sum();
    Ok(sum / reference.frames as f64)
}

fn check_lengths(reference: &[f32], test: &[f32]) -> Result<()> {
    if reference.len() != test.len() {
        return Err(AudioError::LengthMismatch { reference: reference.len(), test: test.len() });
    }
    if reference.is_empty() {
        return Err(AudioError::Empty { purpose: "compare" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize, gain: f32) -> Vec<f32> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..length).map(|_| gain * next()).collect()
    }

    #[test]
    fn known_distances() {
        for length in [1, 2, 511, 1024, 5001] {
            let clip = noise(length, 0.5);
            assert_eq!(snr_db(&clip, &clip).unwrap(), f64::INFINITY);
            assert_eq!(log_spectral_distance_db(&clip, &clip).unwrap(), 0.0);
        }
        // Twice the level is 6.02 dB in every bin.
        let (clip, louder) = (noise(5001, 0.25), noise(5001, 0.5));
        let distance = log_spectral_distance_db(&clip, &louder).unwrap();
        assert!((distance - 6.0206).abs() < 0.01, "{distance}");
        assert!(snr_db(&clip, &louder).unwrap().abs() < 1e-6);
        assert_eq!(snr_db(&[0.0], &[0.1]).unwrap(), f64::NEG_INFINITY);
    }

    #[test]
    fn clips_must_match() {
        assert!(matches!(
            snr_db(&[0.0; 3], &[0.0; 4]),
            Err(AudioError::LengthMismatch { reference: 3, test: 4 })
        ));
        assert!(matches!(log_spectral_distance_db(&[], &[]), Err(AudioError::Empty { .. })));
    }
}
