//! Activations: the one table that graphs, plans, kernels of every backend and the reference interpreter
//! read.
//!
//! A new one is a row here, its formula in `orate-testing` (`interpreter.rs`) and its code in each backend:
//! `orate-cpu/src/kernels/activation.rs`, `orate-cuda/kernels/common.cuh`,
//! `orate-gpu/kernels/activation.wgsl`. Names, numbers, flags and test cases follow from the row.

use crate::Weight;

/// Declares [`Activation`]. A row is a formula, a variant, its name in plans, its name in GPU sources, and
/// rough arithmetic operations per element. `PRelu` stands apart, being the one with a parameter.
macro_rules! activations {
    ($($(#[doc = $formula:literal])+ $variant:ident $name:literal $constant:literal $flops:literal,)+) => {
        /// A pointwise function. `S` holds the slope of a PReLU: a weight with one element in graphs, its
        /// value in kernels.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Activation<S = Weight> {
            /// `x` where positive, else `slope · x`
            PRelu(S),
            $($(#[doc = $formula])+ $variant,)+
        }

        impl<S> Activation<S> {
            /// Every activation, with this slope.
            pub fn all(slope: S) -> Vec<Self> {
                vec![Activation::PRelu(slope), $(Activation::$variant),+]
            }

            /// Name in plans.
            pub fn name(&self) -> &'static str {
                match self {
                    Activation::PRelu(_) => "prelu",
                    $(Activation::$variant => $name,)+
                }
            }

            /// Name in the sources of GPU kernels.
            pub fn constant(&self) -> &'static str {
                match self {
                    Activation::PRelu(_) => "PRELU",
                    $(Activation::$variant => $constant,)+
                }
            }

            /// Rough operations per element.
            pub(crate) fn flops(&self) -> u64 {
                match self {
                    Activation::PRelu(_) => 2,
                    $(Activation::$variant => $flops,)+
                }
            }

            /// The same function with its slope replaced.
            pub fn map<T>(&self, slope: impl FnOnce(&S) -> T) -> Activation<T> {
                match self {
                    Activation::PRelu(s) => Activation::PRelu(slope(s)),
                    $(Activation::$variant => Activation::$variant,)+
                }
            }
        }
    };
}

activations! {
    /// `max(x, 0)`
    Relu "relu" "RELU" 2,
    /// `x/2 · (1 + erf(x/√2))`, exact
    Gelu "gelu" "GELU" 20,
    /// `x · tanh(log(1 + eˣ))`
    Mish "mish" "MISH" 20,
    /// `tanh(x)`
    Tanh "tanh" "TANH" 20,
    /// `eˣ`
    Exp "exp" "EXP" 20,
    /// `x / (1 + e⁻ˣ)`
    Silu "silu" "SILU" 20,
    /// `x` clamped to −1 … 1
    Clip "clip" "CLIP" 2,
    /// `1 / (1 + e⁻ˣ)`
    Sigmoid "sigmoid" "SIGMOID" 20,
    /// `x` where positive, else `eˣ − 1`
    Elu "elu" "ELU" 20,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`
    GeluTanh "gelu_tanh" "GELU_TANH" 20,
    /// `sin(x)`, for magnitudes up to 10,000
    Sin "sin" "SIN" 20,
    /// `cos(x)`, for magnitudes up to 10,000
    Cos "cos" "COS" 20,
}

impl<S> Activation<S> {
    /// Number in the sources of GPU kernels, from 1; 0 stands for none.
    pub fn number(&self) -> u32 {
        let at = Activation::all(()).iter().position(|a| a.name() == self.name());
        1 + at.expect("`all` has every activation") as u32
    }

    /// The slope of a PReLU.
    pub fn slope(&self) -> Option<&S> {
        match self {
            Activation::PRelu(slope) => Some(slope),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_numbers_are_distinct() {
        let all = Activation::all(0.25);
        let names: BTreeSet<&str> = all.iter().flat_map(|a| [a.name(), a.constant()]).collect();
        assert_eq!(names.len(), 2 * all.len());
        assert!(all.iter().zip(1..).all(|(a, number)| a.number() == number));
        assert!(all.iter().all(|a| a.constant() == a.name().to_uppercase()));
        assert_eq!(all.iter().filter_map(|a| a.slope()).collect::<Vec<_>>(), [&0.25]);
    }
}
