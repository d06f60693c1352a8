//! Elementary functions on vectors: `exp`, `erf`, `tanh`, `softplus`, sines, and the parts of GELU.
//!
//! Written once over [`Simd`]. Without fused multiply-add (the portable path) the same steps round slightly
//! more often; the bounds below hold for every instruction set and are tested in this file.
//!
//! | function | bound |
//! | --- | --- |
//! | [`exp`] | 2 ulp everywhere, subnormal results included; 0 and ∞ where `f32` ends; NaN stays NaN |
//! | [`erf`] | absolute error below 2e-7 |
//! | [`tanh`] | absolute error below 2e-7 |
//! | [`softplus`] | 4 ulp where the result is a normal number |
//! | [`silu`] | 4 ulp where the result is a normal number |
//! | [`sigmoid`] | 4 ulp where the result is a normal number |
//! | [`elu`] | 3 ulp down to −0.33, absolute error below 1.2e-7 beyond |
//! | [`gelu_tanh`] | absolute error below 3e-7, or 2e-7 of the result |
//! | [`sine`] | absolute error below 2e-7 up to 1e4 |
//! | [`sine_squared`] | absolute error below 3e-7 up to 1e4 |
//!
//! **Coefficients.** Unless another source is named, polynomials are our own weighted minimax fits: least
//! squares in f64 on 2000 Chebyshev nodes, reweighted by the error until it is level (Lawson), against mpmath
//! values. Each polynomial states its interval and weight.

use crate::simd::Simd;

/// `c[0] + c[1] x + c[2] x² + …` by Horner's rule.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::V, c: &[f32; N]) -> S::V {
    let mut sum = s.splat(c[N - 1]);
    for k in (0..N - 1).rev() {
        sum = s.fma(sum, x, s.splat(c[k]));
    }
    sum
}

/// (eʳ − 1 − r) / r² on |r| ≤ ½ ln 2, weight r² e⁻ʳ: relative error of eʳ 3.1e-9.
const EXP: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_711, 0.001_381_461];

/// eˣ. Twenty instructions.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // Below −104 the result rounds to zero, above 89 it overflows. Constants come first, so that NaN
    // propagates.
    let x = s.max(s.splat(-104.0), s.min(s.splat(89.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let p = exp_reduced(s, x, n);
    // n is between −150 and 128. In two steps each power of two is a normal number; only the second step
    // rounds.
    let half = s.round(s.mul(n, s.splat(0.5)));
    s.scale_by_power_of_two(s.scale_by_power_of_two(p, half), s.sub(n, half))
}

/// eˣ for x ≤ 0 where results under 1.2e-38 may be zero, as in softmax. Three instructions less than [`exp`]
/// and never a slow subnormal. NaN stays NaN.
#[inline(always)]
pub fn exp_nonpositive<S: Simd>(s: S, x: S::V) -> S::V {
    // ln(2^-126) = −87.336…; n stays at −126 or above.
    let tiny = s.less(x, s.splat(-87.3));
    let x = s.max(s.splat(-87.3), x);
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let p = exp_reduced(s, x, n);
    s.select(tiny, s.splat(0.0), s.scale_by_power_of_two(p, n))
}

/// 2ᶠ on |f| ≤ ½, weight 2⁻ᶠ, first coefficient fixed at 1: relative error 2.9e-6.
const SHORT_EXP2: [f32; 5] = [1.0, 0.693_124_2, 0.240_241, 0.055_906_43, 0.009_582_851];

/// 2ˣ for x ≤ 0, to be rounded to 16 bits: relative error below 3.2e-6 down to 2⁻¹²⁶, which smaller results
/// become. NaN stays NaN.
#[inline(always)]
pub fn exp2_nonpositive<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(s.splat(-126.0), x);
    let n = s.round(x);
    s.scale_by_power_of_two(polynomial(s, s.sub(x, n), &SHORT_EXP2), n)
}

/// e^(x − n ln 2), for n = round(x / ln 2).
#[inline(always)]
fn exp_reduced<S: Simd>(s: S, x: S::V, n: S::V) -> S::V {
    // ln 2 in two parts (Cephes `expf.c`): the first has nine bits, so that n times it is exact without fma.
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let q = polynomial(s, r, &EXP);
    s.add(s.fma(s.mul(r, r), q, r), s.splat(1.0))
}

/// Beyond this many standard deviations the normal tail, 2e-9, is less than half an ulp of 1.
const TAIL_END: f32 = 6.0;

/// −log₂(erfc(x/√2)) / x on 0 to 6, weight ln 2 · x · erfc(x/√2): error of erfc(x/√2) 1.6e-8.
const TAIL: [f32; 8] = [
    1.151_105_2,
    0.459_208_2,
    0.052_496_18,
    -0.007_063_42,
    1.369_363_6e-4,
    1.861_802_5e-4,
    -3.937_769e-5,
    2.834_912_7e-6,
];

/// 2ᶠ on |f| ≤ ½, weight 2⁻ᶠ, first coefficient fixed at 1: relative error 2e-9.
const EXP2: [f32; 7] = [
    1.0,
    std::f32::consts::LN_2,
    0.240_226_48,
    0.055_503_324,
    0.009_618_437,
    0.001_339_887_5,
    1.535_336_2e-4,
];

/// Two-sided tail of the standard normal distribution, erfc(x/√2), for x in 0 to [`TAIL_END`].
///
/// Computed as a power of two, 2^(−x·q(x)): needs no division, and the error shrinks with the tail.
#[inline(always)]
fn normal_tail<S: Simd>(s: S, x: S::V) -> S::V {
    let z = s.sub(s.splat(0.0), s.mul(x, polynomial(s, x, &TAIL)));
    let n = s.round(z);
    s.scale_by_power_of_two(polynomial(s, s.sub(z, n), &EXP2), n)
}

/// erf(x) = 2/√π ∫₀ˣ e^(−t²) dt.
#[inline(always)]
pub fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.min(s.splat(TAIL_END), s.mul(s.abs(x), s.splat(std::f32::consts::SQRT_2)));
    s.copysign(s.sub(s.splat(1.0), normal_tail(s, a)), x)
}

/// x/2 · (1 + erf(x/√2)), as max(x, 0) − |x|/2 · erfc(|x|/√2): no cancellation on either side.
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.min(s.splat(TAIL_END), s.abs(x));
    let tail = normal_tail(s, a);
    s.fma(s.mul(a, s.splat(-0.5)), tail, s.max(s.splat(0.0), x))
}

/// x/2 · (1 + tanh(u)) for u = √(2/π) · (x + 0.044715 x³), as x / (1 + e⁻²ᵘ).
#[inline(always)]
pub fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    // −2√(2/π) and that times 0.044715
    let factor = s.fma(s.mul(x, x), s.splat(-0.071_354_82), s.splat(-1.595_769));
    s.div(x, s.add(s.splat(1.0), exp(s, s.mul(x, factor))))
}

/// (tanh(x) − x) / x³ in powers of x², |x| < 0.625. From Cephes `tanhf.c` (S. Moshier).
const TANH: [f32; 5] = [-3.333_328e-1, 1.333_144_2e-1, -5.373_971_6e-2, 2.063_909e-2, -5.704_988_7e-3];

/// tanh(x). A polynomial near zero, where it keeps relative accuracy, (1 − e⁻²ˣ)/(1 + e⁻²ˣ) elsewhere.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.abs(x);
    let z = s.mul(a, a);
    let small = s.fma(s.mul(polynomial(s, z, &TANH), z), a, a);
    let e = exp_nonpositive(s, s.mul(a, s.splat(-2.0)));
    let one = s.splat(1.0);
    let large = s.div(s.sub(one, e), s.add(one, e));
    s.copysign(s.select(s.less(a, s.splat(0.625)), small, large), x)
}

/// x / (1 + e⁻ˣ).
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(x, s.add(s.splat(1.0), e))
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(s.splat(1.0), s.add(s.splat(1.0), e))
}

/// x if positive, else eˣ − 1. Near zero this is the polynomial without the 1 that would cause cancellation.
#[inline(always)]
pub fn elu<S: Simd>(s: S, x: S::V) -> S::V {
    let near = s.fma(s.mul(x, x), polynomial(s, x, &EXP), x);
    let far = s.sub(exp_nonpositive(s, s.min(s.splat(0.0), x)), s.splat(1.0));
    let negative = s.select(s.less(x, s.splat(-0.34)), far, near);
    s.select(s.less(x, s.splat(0.0)), negative, x)
}

/// (sin(r) − r) / r³ in powers of r², |r| ≤ π/2, weight r²: error of sin(r)/r 4.8e-9.
const SINE: [f32; 4] = [-0.166_666_61, 0.008_333_088, -1.981_111_3e-4, 2.608_932_6e-6];

/// sin(x − nπ), which is within ±π/2; n is an integer or a half.
#[inline(always)]
fn sine_reduced<S: Simd>(s: S, x: S::V, n: S::V) -> S::V {
    // π in three parts (Cephes `sinf.c`, times four): n times the first is exact without fma up to 32,768.
    let r = s.fma(n, s.splat(-3.140_625), x);
    let r = s.fma(n, s.splat(-9.675_026e-4), r);
    let r = s.fma(n, s.splat(-1.509_958e-7), r);
    let square = s.mul(r, r);
    s.fma(s.mul(r, square), polynomial(s, square, &SINE), r)
}

/// sin²(x), which has period π.
#[inline(always)]
pub fn sine_squared<S: Simd>(s: S, x: S::V) -> S::V {
    let sine = sine_reduced(s, x, s.round(s.mul(x, s.splat(std::f32::consts::FRAC_1_PI))));
    s.mul(sine, sine)
}

/// sin(x + shift · π): the sine for 0, the cosine for ½.
#[inline(always)]
pub fn sine<S: Simd>(s: S, x: S::V, shift: f32) -> S::V {
    let shift = s.splat(shift);
    let n = s.round(s.fma(x, s.splat(std::f32::consts::FRAC_1_PI), shift));
    let sine = sine_reduced(s, x, s.sub(n, shift));
    // ±1 for odd n, else 0: halves are rounded to even.
    let odd = s.fma(s.round(s.mul(n, s.splat(0.5))), s.splat(-2.0), n);
    s.mul(sine, s.fma(s.mul(odd, odd), s.splat(-2.0), s.splat(1.0)))
}

/// atanh(y)/y in powers of y², |y| ≤ 1/3, first coefficient fixed at 1: relative error 4.5e-9.
const ATANH: [f32; 5] = [1.0, 0.333_332_1, 0.200_107_63, 0.140_009_02, 0.140_059_98];

/// ln(1 + eˣ), as max(x, 0) + ln(1 + u) with u = e^(−|x|), and ln(1 + u) = 2 atanh(u / (2 + u)).
#[inline(always)]
pub fn softplus<S: Simd>(s: S, x: S::V) -> S::V {
    let u = exp(s, s.sub(s.splat(0.0), s.abs(x)));
    let y = s.div(u, s.add(u, s.splat(2.0)));
    let log = s.mul(s.add(y, y), polynomial(s, s.mul(y, y), &ATANH));
    s.add(s.max(s.splat(0.0), x), log)
}

/// x · tanh(softplus(x)), as x · m / (m + 2) with m = eˣ (eˣ + 2): one exponential, no logarithm.
#[inline(always)]
pub fn mish<S: Simd>(s: S, x: S::V) -> S::V {
    // At 20 the quotient is 1 to the last bit.
    let e = exp(s, s.min(s.splat(20.0), x));
    let two = s.splat(2.0);
    let m = s.mul(e, s.add(e, two));
    s.mul(x, s.div(m, s.add(m, two)))
}

/// erf in f64 for tests: erf(x) = 2/√π · e^(−x²) · Σ 2ⁿ x^(2n+1) / (2n+1)!!, whose terms are all positive.
pub(crate) fn plain_erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    sum * (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::Kernel;

    /// Rounding of the polynomial and of the last two operations.
    const EXP_ULPS: f64 = 2.0;
    /// A few roundings of numbers near one (6e-8 each); the fits add under 2e-8.
    const ERF_ERROR: f64 = 2e-7;
    /// As for erf.
    const TANH_ERROR: f64 = 2e-7;
    /// exp, two divisions and a product.
    const SOFTPLUS_ULPS: f64 = 4.0;
    /// exp, a sum and a division.
    const SILU_ULPS: f64 = 4.0;
    /// The polynomial, a product and a sum.
    const ELU_ULPS: f64 = 3.0;
    /// The rounding of the remainder and of the polynomial near one.
    const SINE_ERROR: f64 = 2e-7;
    /// Two roundings of the exponent, up to 3 where the result is 1, three more and those of exp.
    const GELU_TANH_ERROR: f64 = 3e-7;
    /// Twice the rounding of the sine near one, and that of the square. The fit adds 5e-8, and argument
    /// reduction from up to 1e4 no more.
    const SINE_SQUARED_ERROR: f64 = 3e-7;

    #[derive(Clone, Copy)]
    enum Function {
        Exp,
        ExpNonpositive,
        Exp2Nonpositive,
        Erf,
        Tanh,
        Softplus,
        Silu,
        Sigmoid,
        Elu,
        SineSquared,
        GeluTanh,
        Sine,
        Cosine,
    }

    struct Map<'a>(Function, &'a mut [f32]);

    impl Kernel for Map<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for part in self.1.chunks_mut(S::LANES) {
                // SAFETY: both touch `part.len()` floats of `part`.
                unsafe {
                    let x = s.load_partial(part.as_ptr(), part.len());
                    let y = match self.0 {
                        Function::Exp => exp(s, x),
                        Function::ExpNonpositive => exp_nonpositive(s, x),
                        Function::Exp2Nonpositive => exp2_nonpositive(s, x),
                        Function::Erf => erf(s, x),
                        Function::Tanh => tanh(s, x),
                        Function::Softplus => softplus(s, x),
                        Function::Silu => silu(s, x),
                        Function::Sigmoid => sigmoid(s, x),
                        Function::Elu => elu(s, x),
                        Function::SineSquared => sine_squared(s, x),
                        Function::GeluTanh => gelu_tanh(s, x),
                        Function::Sine => sine(s, x, 0.0),
                        Function::Cosine => sine(s, x, 0.5),
                    };
                    s.store_partial(part.as_mut_ptr(), y, part.len());
                }
            }
        }
    }

    fn grid(from: f32, to: f32) -> Vec<f32> {
        (0..=400_003).map(|i| from + (to - from) * (i as f32 / 400_003.0)).collect()
    }

    /// Distance in ulps of the exact value; subnormals have the spacing of the smallest normal.
    fn ulps(got: f32, want: f64) -> f64 {
        let exponent = want.abs().log2().floor().max(-126.0);
        (got as f64 - want).abs() / (exponent - 23.0).exp2()
    }

    fn worst(isa: Isa, f: Function, x: &[f32], error: impl Fn(f32, f32) -> f64) -> (f64, f32) {
        let mut y = x.to_vec();
        isa.run(Map(f, &mut y));
        x.iter()
            .zip(&y)
            .map(|(&x, &y)| (error(x, y), x))
            .fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
    }

    #[test]
    fn exp_is_accurate_everywhere() {
        for isa in Isa::available() {
            for (from, to) in [(-104.0, 88.72), (-1.0, 1.0), (-104.0, -87.0), (-1e-6, 1e-6)] {
                let (e, x) = worst(isa, Function::Exp, &grid(from, to), |x, y| ulps(y, (x as f64).exp()));
                assert!(e <= EXP_ULPS, "{isa}: {e} ulp at {x}");
            }
            let (e, x) =
                worst(isa, Function::ExpNonpositive, &grid(-87.3, 0.0), |x, y| ulps(y, (x as f64).exp()));
            assert!(e <= EXP_ULPS, "{isa}: {e} ulp at {x}");
        }
    }

    #[test]
    fn exp2_is_finer_than_sixteen_bits() {
        for isa in Isa::available() {
            let error = |x: f32, y: f32| (f64::from(y) / f64::from(x).exp2() - 1.0).abs();
            let (e, x) = worst(isa, Function::Exp2Nonpositive, &grid(-126.0, 0.0), error);
            assert!(e < 3.2e-6, "{isa}: {e} at {x}");
            let mut x = [f32::NEG_INFINITY, -1e30, 0.0, f32::NAN];
            isa.run(Map(Function::Exp2Nonpositive, &mut x));
            assert_eq!(x[..3], [f32::MIN_POSITIVE, f32::MIN_POSITIVE, 1.0], "{isa}");
            assert!(x[3].is_nan(), "{isa}");
        }
    }

    #[test]
    fn exp_at_the_ends() {
        for isa in Isa::available() {
            let mut x = [f32::NEG_INFINITY, -200.0, -103.98, -0.0, 0.0, 88.73, 1e30, f32::INFINITY, f32::NAN];
            isa.run(Map(Function::Exp, &mut x));
            assert_eq!(
                x[..8],
                [0.0, 0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY],
                "{isa}"
            );
            assert!(x[8].is_nan(), "{isa}");
            let mut x = [f32::NEG_INFINITY, -88.0, 0.0, f32::NAN];
            isa.run(Map(Function::ExpNonpositive, &mut x));
            assert_eq!(x[..3], [0.0, 0.0, 1.0], "{isa}");
            assert!(x[3].is_nan(), "{isa}");
        }
    }

    #[test]
    fn erf_is_accurate_everywhere() {
        for isa in Isa::available() {
            for (from, to) in [(-7.0, 7.0), (-0.01, 0.01)] {
                let (e, x) =
                    worst(isa, Function::Erf, &grid(from, to), |x, y| (y as f64 - plain_erf(x as f64)).abs());
                assert!(e < ERF_ERROR, "{isa}: {e} at {x}");
            }
            let mut x = [-100.0, -f32::INFINITY, 5.0, f32::INFINITY, f32::NAN];
            isa.run(Map(Function::Erf, &mut x));
            assert_eq!(x[..4], [-1.0, -1.0, 1.0, 1.0], "{isa}");
            assert!(x[4].is_nan(), "{isa}");
        }
    }

    #[test]
    fn tanh_is_accurate_everywhere() {
        for isa in Isa::available() {
            for (from, to) in [(-10.0, 10.0), (-0.7, 0.7)] {
                let (e, x) =
                    worst(isa, Function::Tanh, &grid(from, to), |x, y| (y as f64 - (x as f64).tanh()).abs());
                assert!(e < TANH_ERROR, "{isa}: {e} at {x}");
            }
            let mut x = [f32::NEG_INFINITY, 1e-30, f32::INFINITY, f32::NAN];
            isa.run(Map(Function::Tanh, &mut x));
            assert_eq!(x[..3], [-1.0, 1e-30, 1.0], "{isa}");
            assert!(x[3].is_nan(), "{isa}");
        }
    }

    #[test]
    fn silu_is_accurate_everywhere() {
        for isa in Isa::available() {
            for (from, to) in [(-85.0, 100.0), (-1.0, 1.0)] {
                let want = |x: f32| x as f64 / (1.0 + (-x as f64).exp());
                let (e, x) = worst(isa, Function::Silu, &grid(from, to), |x, y| ulps(y, want(x)));
                assert!(e <= SILU_ULPS, "{isa}: {e} ulp at {x}");
            }
            let mut x = [-1e4, 0.0, 1e4, f32::NAN];
            isa.run(Map(Function::Silu, &mut x));
            assert_eq!(x[..3], [0.0, 0.0, 1e4], "{isa}");
            assert!(x[3].is_nan(), "{isa}");
        }
    }

    #[test]
    fn sigmoid_is_accurate_everywhere() {
        for isa in Isa::available() {
            for (from, to) in [(-85.0, 100.0), (-1.0, 1.0)] {
                let want = |x: f32| 1.0 / (1.0 + (-x as f64).exp());
                let (e, x) = worst(isa, Function::Sigmoid, &grid(from, to), |x, y| ulps(y, want(x)));
                assert!(e <= SILU_ULPS, "{isa}: {e} ulp at {x}");
            }
        }
    }

    #[test]
    fn elu_keeps_small_numbers() {
        for isa in Isa::available() {
            let want = |x: f32| if x < 0.0 { (x as f64).exp_m1() } else { x as f64 };
            for (from, to) in [(-0.33, 2.0), (-1e-3, 1e-3)] {
                let (e, x) = worst(isa, Function::Elu, &grid(from, to), |x, y| ulps(y, want(x)));
                assert!(e <= ELU_ULPS, "{isa}: {e} ulp at {x}");
            }
            let (e, x) = worst(isa, Function::Elu, &grid(-100.0, 0.0), |x, y| (y as f64 - want(x)).abs());
            assert!(e < 1.2e-7, "{isa}: {e} at {x}");
        }
    }

    #[test]
    fn sine_squared_is_accurate_over_many_periods() {
        for isa in Isa::available() {
            for (from, to) in [(-4.0, 4.0), (-300.0, 300.0), (9e3, 1e4), (-1e-3, 1e-3)] {
                let (e, x) = worst(isa, Function::SineSquared, &grid(from, to), |x, y| {
                    (y as f64 - (x as f64).sin().powi(2)).abs()
                });
                assert!(e < SINE_SQUARED_ERROR, "{isa}: {e} at {x}");
            }
            let mut x = [0.0, f32::NAN];
            isa.run(Map(Function::SineSquared, &mut x));
            assert!(x[0] == 0.0 && x[1].is_nan(), "{isa}");
        }
    }

    #[test]
    fn sines_are_accurate_over_many_periods() {
        for isa in Isa::available() {
            for (from, to) in [(-4.0, 4.0), (-300.0, 300.0), (9e3, 1e4), (-1e4, -9e3), (-1e-3, 1e-3)] {
                for (function, plain) in
                    [(Function::Sine, f64::sin as fn(f64) -> f64), (Function::Cosine, f64::cos)]
                {
                    let error = |x: f32, y: f32| (y as f64 - plain(x as f64)).abs();
                    let (e, x) = worst(isa, function, &grid(from, to), error);
                    assert!(e < SINE_ERROR, "{isa}: {e} at {x}");
                }
            }
            let small = grid(-1e-3, 1e-3);
            let (e, x) = worst(isa, Function::Sine, &small, |x, y| ulps(y, (x as f64).sin()));
            assert!(e <= 1.0, "{isa}: {e} ulp at {x}");
            let mut x = [0.0, f32::NAN, f32::INFINITY];
            isa.run(Map(Function::Cosine, &mut x));
            assert!((x[0] - 1.0).abs() < 2e-7 && x[1].is_nan() && x[2].is_nan(), "{isa}: {x:?}");
        }
    }

    #[test]
    fn gelu_by_tanh_is_accurate_everywhere() {
        let plain = |x: f64| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / 2.0 * (1.0 + u.tanh())
        };
        for isa in Isa::available() {
            for (from, to) in [(-20.0, 20.0), (-1e-2, 1e-2)] {
                let error =
                    |x: f32, y: f32| (y as f64 - plain(x as f64)).abs() / plain(x as f64).abs().max(1.0);
                let (e, x) = worst(isa, Function::GeluTanh, &grid(from, to), error);
                assert!(e < GELU_TANH_ERROR, "{isa}: {e} at {x}");
            }
            let mut x = [-1e30, 0.0, 1e30, f32::NAN];
            isa.run(Map(Function::GeluTanh, &mut x));
            assert_eq!(x[..3], [0.0, 0.0, 1e30], "{isa}");
            assert!(x[3].is_nan(), "{isa}");
        }
    }

    #[test]
    fn softplus_is_accurate_everywhere() {
        for isa in Isa::available() {
            for (from, to) in [(-80.0, 40.0), (-2.0, 2.0)] {
                let (e, x) =
                    worst(isa, Function::Softplus, &grid(from, to), |x, y| ulps(y, (x as f64).exp().ln_1p()));
                assert!(e <= SOFTPLUS_ULPS, "{isa}: {e} ulp at {x}");
            }
        }
    }

    #[test]
    fn plain_erf_knows_published_values() {
        // Abramowitz and Stegun, table 7.1.
        for (x, want) in [(0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)] {
            assert!((plain_erf(x) - want).abs() < 1e-10, "erf({x})");
        }
    }
}
