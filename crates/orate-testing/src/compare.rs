//! Comparison of results with a reference.

use std::fmt;

/// Distance of a tensor from its reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Largest magnitude of the reference.
    pub largest: f64,
    /// Largest difference, divided by `largest`; 0 when both are all zeros.
    pub max_error: f64,
    /// Index of the largest difference.
    pub worst: usize,
}

/// A tensor that differs from its reference.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// The numbers of elements differ.
    #[error("{got} elements where {expected} are expected")]
    Length {
        /// Elements of the result.
        got: usize,
        /// Elements of the reference.
        expected: usize,
    },
    /// A result or reference is infinite or NaN.
    #[error("element {index} is {got} where {expected} is expected; only finite numbers compare")]
    NotFinite {
        /// First such element.
        index: usize,
        /// Result there.
        got: f32,
        /// Reference there.
        expected: f32,
    },
    /// A difference exceeds the limit.
    #[error(
        "{wrong} of {len} elements are off by more than {tolerance:.3e} of the largest magnitude {largest:.4e}; \
         first at {first}: got {got}, expected {expected}; largest error {max_error:.3e} at {worst}"
    )]
    TooFar {
        /// Number of elements over the limit.
        wrong: usize,
        /// Number of all elements.
        len: usize,
        /// The limit.
        tolerance: f64,
        /// Largest magnitude of the reference.
        largest: f64,
        /// First element over the limit.
        first: usize,
        /// Result there.
        got: f32,
        /// Reference there.
        expected: f32,
        /// Largest relative difference.
        max_error: f64,
        /// Its index.
        worst: usize,
    },
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {:.3e} of {:.4e} at element {}", self.max_error, self.largest, self.worst)
    }
}

/// Compares `got` with `expected`; `tolerance` is relative to the largest magnitude of `expected`.
///
/// # Errors
/// Lengths differ, a number is not finite, or a difference is over the limit.
pub fn compare(got: &[f32], expected: &[f32], tolerance: f64) -> Result<Comparison, Mismatch> {
    if got.len() != expected.len() {
        return Err(Mismatch::Length { got: got.len(), expected: expected.len() });
    }
    let pairs = || got.iter().zip(expected).map(|(g, e)| (*g, *e)).enumerate();
    if let Some((index, (got, expected))) = pairs().find(|(_, (g, e))| !g.is_finite() || !e.is_finite()) {
        return Err(Mismatch::NotFinite { index, got, expected });
    }
    let largest = expected.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
    let difference = |(g, e): (f32, f32)| (f64::from(g) - f64::from(e)).abs();
    let limit = tolerance * largest;
    let (mut worst, mut max_difference, mut wrong, mut first) = (0, 0.0, 0, None);
    for (i, pair) in pairs() {
        let d = difference(pair);
        if d > max_difference {
            (worst, max_difference) = (i, d);
        }
        if d > limit {
            wrong += 1;
            first.get_or_insert(i);
        }
    }
    let max_error = if max_difference == 0.0 { 0.0 } else { max_difference / largest };
    match first {
        None => Ok(Comparison { largest, max_error, worst }),
        Some(first) => Err(Mismatch::TooFar {
            wrong,
            len: got.len(),
            tolerance,
            largest,
            first,
            got: got[first],
            expected: expected[first],
            max_error,
            worst,
        }),
    }
}

/// [`compare()`] for tests.
///
/// # Panics
/// They differ; the message starts with `what`.
#[track_caller]
pub fn assert_close(what: &str, got: &[f32], expected: &[f32], tolerance: f64) -> Comparison {
    match compare(got, expected, tolerance) {
        Ok(c) => c,
        Err(e) => panic!("{what}: {e}"),
    }
}

/// Signal-to-noise ratio in dB; noise is the difference from `reference`. Infinite for equal signals.
///
/// # Panics
/// Lengths differ.
pub fn snr_db(got: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(got.len(), reference.len(), "signals of different length");
    let signal: f64 = reference.iter().map(|x| f64::from(*x).powi(2)).sum();
    let noise: f64 = got.iter().zip(reference).map(|(g, r)| (f64::from(*g) - f64::from(*r)).powi(2)).sum();
    10.0 * (signal / noise).log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_the_largest_magnitude() {
        let c = compare(&[0.5, -8.0, 1.25], &[0.0, -8.0, 1.0], 0.1).expect("within a tenth of 8");
        assert_eq!(c, Comparison { largest: 8.0, max_error: 0.0625, worst: 0 });
    }

    #[test]
    fn the_message_names_first_and_worst() {
        let e = compare(&[1.0, 2.5, 4.0, 9.0], &[1.0, 2.0, 4.0, 8.0], 0.05).expect_err("two are off");
        assert_eq!(
            e.to_string(),
            "2 of 4 elements are off by more than 5.000e-2 of the largest magnitude 8.0000e0; \
             first at 1: got 2.5, expected 2; largest error 1.250e-1 at 3"
        );
    }

    #[test]
    fn not_a_number_is_never_close() {
        for (got, expected) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::INFINITY, f32::INFINITY)] {
            let e = compare(&[0.0, got], &[0.0, expected], 1e9).expect_err("not finite");
            assert!(matches!(e, Mismatch::NotFinite { index: 1, .. }), "{e}");
        }
    }

    #[test]
    fn zeros_must_be_zeros() {
        assert!(compare(&[0.0, -0.0], &[0.0, 0.0], 0.0).is_ok());
        assert!(compare(&[1e-30], &[0.0], 1.0).is_err());
        assert!(compare(&[], &[0.0], 1.0).is_err());
    }

    #[test]
    fn signal_to_noise() {
        assert!((snr_db(&[1.1, 0.9], &[1.0, 1.0]) - 20.0).abs() < 1e-5);
        assert_eq!(snr_db(&[1.0], &[1.0]), f64::INFINITY);
    }
}
