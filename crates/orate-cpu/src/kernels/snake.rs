//! Snake: `y = x + gain · sin²(frequency · x)`, with a frequency and a gain for each channel.
//!
//! `x`, `y` [rows, C], `frequency`, `gain` `[C]`; f32. sin² has period π, so its argument is reduced to −π/2
//! … π/2 and goes through one odd polynomial: about fifteen instructions per vector. Rows are split over the
//! team.

use crate::kernels::elementwise::for_rows;
use crate::kernels::vecmath::sine_squared;
use crate::op::{Binding, Call, OpKernel};
use crate::simd::{Kernel, Simd};
use crate::weights::Core;
use crate::{Isa, Team};
use orate_graph::{ValueInfo, Weight};

/// `out` = Snake of `x`. Not in place.
///
/// # Panics
/// `x` and `out` are not whole rows as long as `frequency` and `gain`, or differ in size.
pub fn snake(isa: Isa, team: &Team, x: &[f32], (frequency, gain): (&[f32], &[f32]), out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output of equal size");
    assert_eq!(frequency.len(), gain.len(), "a gain for each frequency");
    let width = gain.len();
    for_rows(team, out, width, &|rows, out| {
        let x = &x[rows.start * width..rows.end * width];
        isa.run(Rows { x, frequency, gain, out });
    });
}

struct Rows<'a> {
    x: &'a [f32],
    frequency: &'a [f32],
    gain: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.gain.len();
        let (frequency, gain) = (self.frequency.as_ptr(), self.gain.as_ptr());
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let mut i = 0;
            while i < width {
                let n = S::LANES.min(width - i);
                // SAFETY: `n` floats follow at `i` in all four.
                unsafe {
                    let v = s.load_partial(x.as_ptr().add(i), n);
                    let square = sine_squared(s, s.mul(v, s.load_partial(frequency.add(i), n)));
                    let y = s.fma(s.load_partial(gain.add(i), n), square, v);
                    s.store_partial(out.as_mut_ptr().add(i), y, n);
                }
                i += S::LANES;
            }
        }
    }
}

pub(crate) struct Snake<'a> {
    pub frequency: &'a Weight,
    pub gain: &'a Weight,
}

impl OpKernel for Snake<'_> {
    fn name(&self, core: &Core, _: &[&ValueInfo]) -> String {
        format!("{}-snake", core.isa.vectors())
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (frequency, gain) = (step.dense(self.frequency), step.dense(self.gain));
        Call::new(move |o| snake(o.isa, o.team, o.inputs.floats(0), (&frequency, &gain), o.out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::testing::*;

    /// The argument of sin², up to 200 radians, is off by one rounding.
    const ERROR: f64 = 2e-5;

    /// The formula in f64.
    fn plain(x: &[f32], frequency: &[f32], gain: &[f32]) -> Vec<f64> {
        let one = |(i, x): (usize, &f32)| {
            let c = i % gain.len();
            f64::from(*x) + f64::from(gain[c]) * (f64::from(frequency[c]) * f64::from(*x)).sin().powi(2)
        };
        x.iter().enumerate().map(one).collect()
    }

    #[test]
    fn matches_the_formula() {
        for (rows, width) in [(1, 1), (3, 7), (5, 8), (9, 17), (40, 96), (25, 768)] {
            let mut x = noise(rows * width, 1);
            // Far from zero as well, where many periods are subtracted from the argument.
            x.iter_mut().step_by(3).for_each(|x| *x *= 20.0);
            let (mut frequency, gain) = (noise(width, 2), noise(width, 3));
            frequency.iter_mut().for_each(|f| *f *= 10.0);
            let want = plain(&x, &frequency, &gain);
            everywhere(
                |isa, team| {
                    let mut out = vec![9.0; x.len()];
                    snake(isa, team, &x, (&frequency, &gain), &mut out);
                    out
                },
                |isa, got| assert_close(got, &want, ERROR, &format!("{rows}x{width} {isa}")),
            );
        }
    }
}
