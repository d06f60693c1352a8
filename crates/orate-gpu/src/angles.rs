//! Frequencies and angles as fixed-point numbers, which kernels multiply without loss of precision.

/// Converts radians to turns with 64 fraction bits, low word first; for rotary positions, of which no
/// frequency exceeds one radian.
pub(crate) fn fractional_turns(radians: f64) -> [u32; 2] {
    let fixed = (radians / std::f64::consts::TAU * 2f64.powi(64)).round() as u64;
    [fixed as u32, (fixed >> 32) as u32]
}

/// Frequencies of a time embedding of width `2 · half`, in radians per unit of time.
pub(crate) fn time_frequencies(half: usize) -> Vec<f64> {
    (0..half).map(|j| 1000.0 * 10000f64.powf(-(j as f64) / (half as f64 - 1.0))).collect()
}

/// Converts radians to turns in 32.32 fixed point, low word first. Negative numbers wrap around, which is
/// correct, as only the fraction of products is used.
pub(crate) fn fixed_turns(radians: f64) -> [u32; 2] {
    let fixed = (radians / std::f64::consts::TAU * 4_294_967_296.0).round() as i64 as u64;
    [fixed as u32, (fixed >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's arithmetic: the middle of 64-bit products.
    #[test]
    fn fixed_point_turns_keep_the_angle() {
        for (radians, x) in [(10.0, 0.7), (-3.25, 0.999), (1000.0, 0.8), (-0.001, 5.5), (0.0, 1.0)] {
            let [low, high] = fixed_turns(radians).map(u64::from);
            let (x_high, x_low) = (f64::floor(x) as u64, (x.fract() * 4_294_967_296.0) as u64);
            let product = x_high * low + x_low * high + ((x_low * low) >> 32);
            let angle = f64::from(product as u32) / 4_294_967_296.0 * std::f64::consts::TAU;
            let (want, got) = (f64::sin(radians * x), angle.sin());
            assert!((want - got).abs() < 3e-7, "{radians} · {x}: {got}, want {want}");
        }
    }
}
