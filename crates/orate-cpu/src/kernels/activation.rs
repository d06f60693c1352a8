//! Activations: what a matrix product applies to its result, or [`super::elementwise::activate`] to a tensor.
//!
//! | | y(x) |
//! | --- | --- |
//! | `None` | x |
//! | `Relu` | max(x, 0) |
//! | `PRelu(a)` | x for x ≥ 0, a·x below |
//! | `Gelu` | x/2 · (1 + erf(x/√2)), the exact form |
//! | `Mish` | x · tanh(ln(1 + eˣ)) |
//! | `Tanh` | tanh(x) |
//! | `Exp` | eˣ |
//! | `Silu` | x / (1 + e⁻ˣ) |
//! | `Clip` | x cut to −1 … 1 |
//! | `Sigmoid` | 1 / (1 + e⁻ˣ) |
//! | `Elu` | x for x ≥ 0, eˣ − 1 below |
//!
//! f32 in and out, element by element, so in place is fine. NaN stays NaN. Accuracy: see [`super::vecmath`].

use crate::kernels::vecmath;
use crate::simd::Simd;

/// A function applied to each element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// x
    None,
    /// max(x, 0)
    Relu,
    /// x for x ≥ 0; x times this one slope below.
    PRelu(f32),
    /// x/2 · (1 + erf(x/√2))
    Gelu,
    /// x · tanh(ln(1 + eˣ))
    Mish,
    /// tanh(x)
    Tanh,
    /// eˣ
    Exp,
    /// x / (1 + e⁻ˣ)
    Silu,
    /// x cut to −1 … 1
    Clip,
    /// 1 / (1 + e⁻ˣ)
    Sigmoid,
    /// x for x ≥ 0; eˣ − 1 below.
    Elu,
}

impl Activation {
    /// The function, lane by lane. The choice does not depend on data: keep it out of inner loops by
    /// matching once, or trust the branch predictor where a vector costs more than a few cycles.
    #[inline(always)]
    pub fn apply<S: Simd>(self, s: S, v: S::V) -> S::V {
        match self {
            Activation::None => v,
            Activation::Relu => s.max(s.splat(0.0), v),
            Activation::PRelu(slope) => s.select(s.less(v, s.splat(0.0)), s.mul(v, s.splat(slope)), v),
            Activation::Gelu => vecmath::gelu(s, v),
            Activation::Mish => vecmath::mish(s, v),
            Activation::Tanh => vecmath::tanh(s, v),
            Activation::Exp => vecmath::exp(s, v),
            Activation::Silu => vecmath::silu(s, v),
            Activation::Clip => s.max(s.splat(-1.0), s.min(s.splat(1.0), v)),
            Activation::Sigmoid => vecmath::sigmoid(s, v),
            Activation::Elu => vecmath::elu(s, v),
        }
    }

    /// The formula in f64: the reference for tests.
    pub fn plain(self, x: f64) -> f64 {
        match self {
            Activation::None => x,
            Activation::Relu => x.max(0.0),
            Activation::PRelu(slope) if x < 0.0 => x * slope as f64,
            Activation::PRelu(_) => x,
            Activation::Gelu => 0.5 * x * (1.0 + vecmath::plain_erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Activation::Mish => x * x.exp().ln_1p().tanh(),
            Activation::Tanh => x.tanh(),
            Activation::Exp => x.exp(),
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::Clip => x.clamp(-1.0, 1.0),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Activation::Elu if x < 0.0 => x.exp_m1(),
            Activation::Elu => x,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::Kernel;

    /// Of the larger of 1 and |y|: two roundings of the result and the 2e-7 of erf and tanh.
    const ERROR: f64 = 3e-7;

    struct Apply<'a>(Activation, &'a mut [f32]);

    impl Kernel for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for part in self.1.chunks_mut(S::LANES) {
                // SAFETY: both touch `part.len()` floats of `part`.
                unsafe {
                    let x = s.load_partial(part.as_ptr(), part.len());
                    s.store_partial(part.as_mut_ptr(), self.0.apply(s, x), part.len());
                }
            }
        }
    }

    const ALL: [Activation; 12] = [
        Activation::None,
        Activation::Relu,
        Activation::PRelu(0.25),
        Activation::PRelu(-1.5),
        Activation::Gelu,
        Activation::Mish,
        Activation::Tanh,
        Activation::Exp,
        Activation::Silu,
        Activation::Clip,
        Activation::Sigmoid,
        Activation::Elu,
    ];

    #[test]
    fn matches_the_formula() {
        for isa in Isa::available() {
            for activation in ALL {
                let x: Vec<f32> = (-200_000..=200_000).map(|i| i as f32 * 1e-4).collect();
                let mut y = x.clone();
                isa.run(Apply(activation, &mut y));
                for (x, y) in x.iter().zip(&y) {
                    let want = activation.plain(*x as f64);
                    let error = (*y as f64 - want).abs() / want.abs().max(1.0);
                    assert!(error < ERROR, "{activation:?} on {isa}: f({x}) = {y}, want {want}");
                }
            }
        }
    }

    #[test]
    fn far_from_zero_and_nan() {
        for isa in Isa::available() {
            for activation in [
                Activation::Gelu,
                Activation::Mish,
                Activation::Relu,
                Activation::Tanh,
                Activation::Silu,
                Activation::Clip,
                Activation::Sigmoid,
                Activation::Elu,
            ] {
                let mut y = [-1e4, 1e4, f32::NAN];
                isa.run(Apply(activation, &mut y));
                let want = activation.plain(1e4) as f32;
                assert_eq!(y[1], want, "{activation:?} on {isa}");
                assert!(
                    (y[0] as f64 - activation.plain(-1e4)).abs() < 1e-8,
                    "{activation:?} on {isa}: {}",
                    y[0]
                );
                assert!(y[2].is_nan(), "{activation:?} on {isa}");
            }
        }
    }
}
