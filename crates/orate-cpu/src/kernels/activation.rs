//! Activations, for the epilogue of matmuls and for [`super::elementwise::activate`]. Formulas are those of
//! [`orate_graph::Activation`].
//!
//! f32 in and out, element by element, so in place is fine. NaN stays NaN. Accuracy: see [`super::vecmath`].

use crate::kernels::vecmath;
use crate::simd::Simd;

/// A function of one element; a PReLU contains its slope.
pub type Activation = orate_graph::Activation<f32>;

/// Interface of an activation, or of none, in kernels.
pub trait Apply: Copy {
    /// Applies the function to each lane. The choice does not depend on data: match once outside of inner
    /// loops, or rely on branch prediction where a vector costs more than a few cycles.
    fn apply<S: Simd>(self, s: S, v: S::V) -> S::V;

    /// The formula in f64: the reference for tests.
    fn plain(self, x: f64) -> f64;
}

impl Apply for Activation {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, v: S::V) -> S::V {
        match self {
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
            Activation::GeluTanh => vecmath::gelu_tanh(s, v),
            Activation::Sin => vecmath::sine(s, v, 0.0),
            Activation::Cos => vecmath::sine(s, v, 0.5),
        }
    }

    fn plain(self, x: f64) -> f64 {
        match self {
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
            Activation::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + u.tanh())
            }
            Activation::Sin => x.sin(),
            Activation::Cos => x.cos(),
        }
    }
}

impl Apply for Option<Activation> {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, v: S::V) -> S::V {
        match self {
            Some(f) => f.apply(s, v),
            None => v,
        }
    }

    fn plain(self, x: f64) -> f64 {
        self.map_or(x, |f| f.plain(x))
    }
}

/// A loop to be compiled once per activation.
pub(crate) trait Each {
    /// Runs the loop. Mark the implementation `#[inline(always)]`.
    fn each(self, f: Activation);
}

/// Calls `body` in a separate match arm per activation, so that the compiler knows which one it is and the
/// match stays outside the loop.
#[inline(always)]
pub(crate) fn unswitched(f: Activation, body: impl Each) {
    match f {
        Activation::Relu => body.each(Activation::Relu),
        Activation::PRelu(slope) => body.each(Activation::PRelu(slope)),
        Activation::Gelu => body.each(Activation::Gelu),
        Activation::Mish => body.each(Activation::Mish),
        Activation::Tanh => body.each(Activation::Tanh),
        Activation::Exp => body.each(Activation::Exp),
        Activation::Silu => body.each(Activation::Silu),
        Activation::Clip => body.each(Activation::Clip),
        Activation::Sigmoid => body.each(Activation::Sigmoid),
        Activation::Elu => body.each(Activation::Elu),
        Activation::GeluTanh => body.each(Activation::GeluTanh),
        Activation::Sin => body.each(Activation::Sin),
        Activation::Cos => body.each(Activation::Cos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::Kernel;

    /// Relative to max(1, |y|): two roundings of the result and the 2e-7 of erf and tanh.
    const ERROR: f64 = 3e-7;

    struct Lanes<'a>(Activation, &'a mut [f32]);

    impl Kernel for Lanes<'_> {
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

    #[test]
    fn matches_the_formula() {
        for isa in Isa::available() {
            for activation in Activation::all(0.25).into_iter().chain([Activation::PRelu(-1.5)]) {
                let x: Vec<f32> = (-200_000..=200_000).map(|i| i as f32 * 1e-4).collect();
                let mut y = x.clone();
                isa.run(Lanes(activation, &mut y));
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
            // There eˣ overflows, PReLU grows for half of the slopes, and sines do not settle.
            let bounded = |f: &Activation| {
                use orate_graph::Activation::{Cos, Exp, PRelu, Sin};
                !matches!(f, Exp | PRelu(_) | Sin | Cos)
            };
            for activation in Activation::all(0.25).into_iter().filter(bounded) {
                let mut y = [-1e4, 1e4, f32::NAN];
                isa.run(Lanes(activation, &mut y));
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
