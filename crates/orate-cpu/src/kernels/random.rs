//! Normal random numbers that depend on seed and index only, defined the same way on every backend.
//!
//! Number i of the stream of a seed:
//!
//! 1. **Bits.** Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) with
//!    key = (low, high 32 bits of the seed) and counter = (low, high 32 bits of ⌊i/4⌋, 0, 0) gives words
//!    w₀…w₃.
//! 2. **Uniform.** With k = i mod 4 and (a, b) = (w₀, w₁) for k < 2, else (w₂, w₃):
//!    u = (⌊a/2⁸⌋ + 1) · 2⁻²⁴ in (0, 1], and v = ⌊b/2⁸⌋ · 2⁻²⁴ in [0, 1), both exact in f32.
//! 3. **Normal** (Box–Muller). r = √(−2 ln u); the number is r·cos(2πv) for even k, r·sin(2πv) for odd k.
//!
//! Here step 3 is f32 without FMA, by the polynomials below: the same bits on every CPU. A device may use its
//! own f32 ln, cos and sin and agrees to about 1e-6. |x| ≤ 5.77, the r of u = 2⁻²⁴.

use crate::kernels::elementwise::scale_in_place;
use crate::op::{Binding, Call, OpKernel};
use crate::weights::Core;
use orate_graph::{Scalar, ValueInfo};

/// Philox4x32-10: four random words for a counter and a key.
pub fn philox([mut x0, mut x1, mut x2, mut x3]: [u32; 4], [mut k0, mut k1]: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = x0 as u64 * 0xD251_1F53;
        let p1 = x2 as u64 * 0xCD9E_8D57;
        (x0, x1, x2, x3) = ((p1 >> 32) as u32 ^ x1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ x3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [x0, x1, x2, x3]
}

/// Fills `out` with numbers `offset`, `offset` + 1, … of the stream of `seed`. Any split into calls gives the
/// same numbers.
pub fn fill_normal(seed: u64, offset: u64, out: &mut [f32]) {
    let mut i = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let block = normals(seed, i / 4);
        let first = (i % 4) as usize;
        let n = rest.len().min(4 - first);
        let (now, later) = rest.split_at_mut(n);
        now.copy_from_slice(&block[first..first + n]);
        rest = later;
        i += n as u64;
    }
}

/// Numbers 4·block to 4·block + 3.
fn normals(seed: u64, block: u64) -> [f32; 4] {
    let w = philox([block as u32, (block >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let (a, b) = box_muller(w[0], w[1]);
    let (c, d) = box_muller(w[2], w[3]);
    [a, b, c, d]
}

/// Steps 2 and 3 for one pair of words.
fn box_muller(a: u32, b: u32) -> (f32, f32) {
    let r = (-2.0 * ln_of_24_bits((a >> 8) + 1)).sqrt();
    let (sin, cos) = sin_cos_turns(b >> 8);
    (r * cos, r * sin)
}

/// Gumbel noise `−ln(−ln u)` with u = (⌊w/2⁹⌋ + ½) · 2⁻²³, exact in f32. The argmax of logits plus this noise
/// is a draw from their softmax.
pub fn gumbel(w: u32) -> f32 {
    let exponential = -ln_of_24_bits(2 * (w >> 9) + 1);
    -ln_of_scaled(exponential, 0)
}

/// ln(n · 2⁻²⁴) for n in 1 to 2²⁴.
fn ln_of_24_bits(n: u32) -> f32 {
    ln_of_scaled(n as f32, 24)
}

/// ln(x · 2^−down) for a normal x above 0.
fn ln_of_scaled(x: f32, down: i32) -> f32 {
    // x = m · 2^e with m in [√½, √2), so that ln m has its zero at m = 1 and loses no accuracy there.
    let bits = x.to_bits();
    let shifted = bits.wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let e = (shifted as i32) >> 23;
    let m = f32::from_bits(bits.wrapping_sub((e as u32) << 23));
    // ln m = 2 atanh(y), y = (m−1)/(m+1), |y| < 0.172: Taylor series to y⁹; the next term is 2e-10 of it.
    let y = (m - 1.0) / (m + 1.0);
    let z = y * y;
    let atanh = y + y * (z * (1.0 / 3.0 + z * (0.2 + z * (1.0 / 7.0 + z * (1.0 / 9.0)))));
    // ln 2 in two parts; the product of e and the first is exact.
    let e = (e - down) as f32;
    2.0 * atanh + e * -2.121_944_4e-4 + e * 0.693_359_4
}

/// sin and cos of 2π · n · 2⁻²⁴ for n below 2²⁴.
fn sin_cos_turns(n: u32) -> (f32, f32) {
    // Nearest quarter turn, and the remainder in −⅛ to ⅛ turns, both exact.
    let quarter = (n + (1 << 21)) >> 22;
    let x = (n as i32 - (quarter << 22) as i32) as f32 * (std::f32::consts::TAU / 16_777_216.0);
    let z = x * x;
    // Taylor series for |x| ≤ π/4 up to x⁹ and x¹⁰; the next terms are below 2e-9.
    let sin = x + x * (z * (-1.0 / 6.0 + z * (1.0 / 120.0 + z * (-1.0 / 5040.0 + z * (1.0 / 362_880.0)))));
    let cos = 1.0
        + z * (-0.5
            + z * (1.0 / 24.0 + z * (-1.0 / 720.0 + z * (1.0 / 40_320.0 + z * (-1.0 / 3_628_800.0)))));
    match quarter & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

pub(crate) struct RandomNormal {
    pub seed: Scalar,
    pub scale: f32,
}

impl OpKernel for RandomNormal {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "philox".to_owned()
    }

    fn bind(&self, _: &Binding<'_>) -> Call {
        let (seed, scale) = (self.seed, self.scale);
        Call::fallible(move |o| {
            fill_normal(o.scalars.get(seed)?, 0, o.out);
            scale_in_place(o.isa, o.team, scale, o.out);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// f32 rounding of r (up to 5.8), of the angle and of their product.
    const ERROR: f64 = 2e-6;

    /// From `kat_vectors` of Random123 1.14.
    #[test]
    fn philox_matches_published_vectors() {
        let max = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([max; 4], [max; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn normals_match_the_formula() {
        let mut words =
            vec![(0, 0), (255, 0), (u32::MAX, u32::MAX), (256, 1 << 30), (u32::MAX - 256, 1 << 31)];
        words.extend((0..100_000).map(|i| {
            let w = philox([i, 0, 0, 0], [1, 2]);
            (w[0], w[1])
        }));
        for (a, b) in words {
            let u = ((a >> 8) + 1) as f64 / 16_777_216.0;
            let v = (b >> 8) as f64 / 16_777_216.0;
            let (sin, cos) = (std::f64::consts::TAU * v).sin_cos();
            let r = (-2.0 * u.ln()).sqrt();
            let (x, y) = box_muller(a, b);
            let error = (x as f64 - r * cos).abs().max((y as f64 - r * sin).abs());
            assert!(error < ERROR, "{a:#x} {b:#x}: {x} {y}, want {} {}", r * cos, r * sin);
        }
    }

    #[test]
    fn gumbel_numbers_match_the_formula() {
        let ends = [0, 511, 512, u32::MAX, u32::MAX - 512, 1 << 31];
        for w in ends.into_iter().chain((0..100_000).map(|i| philox([i, 0, 0, 1], [3, 4])[0])) {
            let u = ((w >> 9) as f64 + 0.5) / 8_388_608.0;
            let want = -(-u.ln()).ln();
            let got = gumbel(w);
            assert!((got as f64 - want).abs() < ERROR, "{w:#x}: {got}, want {want}");
        }
    }

    #[test]
    fn any_split_gives_the_same_stream() {
        let mut whole = [0.0; 41];
        fill_normal(7, (4 << 32) - 10, &mut whole);
        for cut in 0..41 {
            let mut parts = [0.0; 41];
            let (a, b) = parts.split_at_mut(cut);
            fill_normal(7, (4 << 32) - 10, a);
            fill_normal(7, (4 << 32) - 10 + cut as u64, b);
            assert_eq!(whole, parts, "cut at {cut}");
        }
        let mut other = [0.0; 41];
        fill_normal(8, (4 << 32) - 10, &mut other);
        assert_ne!(whole, other);
    }

    #[test]
    fn moments_are_those_of_a_normal() {
        const N: usize = 1 << 20;
        for seed in [0, 42, u64::MAX] {
            let mut x = vec![0.0; N];
            fill_normal(seed, 0, &mut x);
            let moment = |p: i32| x.iter().map(|&x| (x as f64).powi(p)).sum::<f64>() / N as f64;
            // Four standard errors of each estimate: √(1, 2, 15, 96)/1024.
            for (p, want, limit) in [(1, 0.0, 0.004), (2, 1.0, 0.0056), (3, 0.0, 0.0152), (4, 3.0, 0.0383)] {
                assert!((moment(p) - want).abs() < limit, "seed {seed}: moment {p} is {}", moment(p));
            }
            let lag = x.windows(2).map(|w| w[0] as f64 * w[1] as f64).sum::<f64>() / N as f64;
            assert!(lag.abs() < 0.004, "seed {seed}: neighbors correlate by {lag}");
        }
    }
}
