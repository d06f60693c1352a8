//! Snake: `y = x + gain · sin²(frequency · x)`, with a frequency and a gain for each channel.
//!
//! `x`, `y` [rows, C], `frequency`, `gain` `[C]`; f32. sin² has period π, so its argument is brought to −π/2 … π/2 and
//! goes through one odd polynomial: about fifteen instructions for a vector. Rows are split over the team.

use crate::kernels::elementwise::for_rows;
use crate::kernels::vecmath::sine_squared;
use crate::simd::{Kernel, Simd};
use crate::{Isa, Team};

/// `out` = Snake of `x`. Not in place.
///
/// # Panics
/// `x` and `out` are not whole rows as long as `frequency` and `gain`, or not of one size.
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
