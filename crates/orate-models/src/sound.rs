//! The check of what a vocoder or codec returns, the same for all families.

/// +20 dBFS. Undamaged models stay within ±2, and files hold ±1.
const LOUDEST: f32 = 10.0;

/// Index of the first sample that no undamaged model returns: NaN, infinite, or above +20 dBFS.
pub fn first_damaged(samples: &[f32]) -> Option<usize> {
    samples.iter().position(|x| x.is_nan() || x.abs() > LOUDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sound_passes() {
        assert_eq!(first_damaged(&[]), None);
        assert_eq!(first_damaged(&[0.0, -1.0, 1.5, -LOUDEST, LOUDEST]), None);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 10.1, -1e36] {
            assert_eq!(first_damaged(&[0.0, bad, 0.0]), Some(1), "{bad}");
        }
    }
}
