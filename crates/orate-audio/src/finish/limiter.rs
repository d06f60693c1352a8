//! A limiter of true peaks that looks ahead.
//!
//! ```text
//! x[n]    samples
//! p[n]    largest of x[n-1], x[n] and the values between them
//! r[n]    min(1, ceiling / p[n])
//! m[n]    min of r[n ..= n+1+L], which rises again slowly
//! g[n]    mean of m[n-L ..= n], weighted by two boxes in a row
//! y[n]    g[n] x[n]
//! ```
//!
//! Every value in the mean `g[n]` is at most `r[n]` and `r[n+1]`, so `y[n]` is never above the ceiling. Gains
//! are integers, so that sums are exact and a gain without peaks is exactly 1.

use std::collections::VecDeque;

use crate::true_peak::{BLOCK, PeakMeter};

/// A gain of 1.
const ONE: u32 = 1 << 24;
/// Time in which a gain falls before a peak, in seconds.
const LOOK_AHEAD_S: f64 = 0.005;
/// Time constant with which it rises again.
const RELEASE_S: f64 = 0.06;
/// Distance from the ceiling in dB, for what changing gains and the values between those measured add.
const MARGIN_DB: f64 = 0.1;

#[derive(Clone, Debug)]
pub(super) struct Limiter {
    meter: PeakMeter,
    ceiling: f32,
    /// `L` above.
    look_ahead: usize,
    /// Part of the way to 1 that a gain rises in a sample, as a multiple of 2^-24.
    release: u64,
    state: State,
}

#[derive(Clone, Debug)]
struct State {
    /// Samples not yet returned.
    delayed: VecDeque<f32>,
    /// Finite samples whose peaks are not yet measured, and those before that take part.
    measured: Vec<f32>,
    /// Index of the next `r`.
    next: usize,
    /// Indices and values of those `r` below 1 that are less than all later ones.
    least: VecDeque<(usize, u32)>,
    /// The newest `m`.
    released: u32,
    boxes: [MovingSum; 2],
    /// What `boxes` return for a gain of 1.
    whole: f64,
}

impl Limiter {
    /// `most_peak` in dBTP, `sample_rate` in Hz.
    pub fn new(most_peak: f64, sample_rate: f64) -> Self {
        let look_ahead = (LOOK_AHEAD_S * sample_rate).round() as usize;
        Self {
            meter: PeakMeter::new(),
            ceiling: 10_f64.powf((most_peak - MARGIN_DB) / 20.0) as f32,
            look_ahead,
            release: ((1.0 - (-1.0 / (RELEASE_S * sample_rate)).exp()) * f64::from(ONE)) as u64,
            state: State::new(look_ahead),
        }
    }

    /// Takes samples. Appends those that are `L + 12` before the newest.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        let s = &mut self.state;
        s.delayed.extend(samples);
        s.measured.extend(samples.iter().map(|x| if x.is_finite() { *x } else { 0.0 }));
        let count = (s.measured.len() + 1).saturating_sub(PeakMeter::TAPS);
        let measured = std::mem::take(&mut s.measured);
        for start in (0..count).step_by(BLOCK) {
            let mut peaks = [0.0; BLOCK];
            let peaks = &mut peaks[..BLOCK.min(count - start)];
            let samples = &measured[start..start + peaks.len() + PeakMeter::TAPS - 1];
            self.meter.measure(samples, self.ceiling, peaks);
            peaks.iter().for_each(|&peak| self.end_sample(peak, out));
        }
        self.state.measured = measured;
        self.state.measured.drain(..count);
    }

    /// Appends the rest. The next sample begins another sound.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        let left = self.state.delayed.len();
        let length = out.len() + left;
        self.push(&vec![0.0; self.look_ahead + PeakMeter::TAPS / 2], out);
        debug_assert_eq!(out.len(), length);
        self.state = State::new(self.look_ahead);
    }

    fn end_sample(&mut self, peak: f32, out: &mut Vec<f32>) {
        let s = &mut self.state;
        if peak > self.ceiling {
            let r = (f64::from(self.ceiling) / f64::from(peak) * f64::from(ONE)) as u32;
            while s.least.pop_back_if(|(_, later)| *later >= r).is_some() {}
            s.least.push_back((s.next, r));
        }
        let reach = self.look_ahead + 1;
        while s.least.pop_front_if(|(index, _)| *index + reach < s.next).is_some() {}
        s.next += 1;
        let least = s.least.front().map_or(ONE, |&(_, r)| r);
        let rise = (u64::from(ONE - s.released) * self.release) >> 24;
        s.released = (s.released + rise as u32 + 1).min(least);
        let sum = s.boxes.iter_mut().fold(u64::from(s.released), |x, b| b.push(x));
        if s.next > reach {
            let gain = sum as f64 / s.whole;
            out.extend(s.delayed.pop_front().map(|x| x * gain as f32));
        }
    }
}

impl State {
    fn new(look_ahead: usize) -> Self {
        let first = look_ahead / 2 + 1;
        let second = look_ahead + 2 - first;
        let one = u64::from(ONE);
        Self {
            delayed: VecDeque::new(),
            // Zeros before the first sample.
            measured: vec![0.0; PeakMeter::TAPS / 2],
            next: 0,
            least: VecDeque::new(),
            released: ONE,
            boxes: [MovingSum::new(first, one), MovingSum::new(second, one * first as u64)],
            whole: (one * (first * second) as u64) as f64,
        }
    }
}

/// Sum of the newest values.
#[derive(Clone, Debug)]
struct MovingSum {
    values: Vec<u64>,
    oldest: usize,
    sum: u64,
}

impl MovingSum {
    fn new(length: usize, value: u64) -> Self {
        Self { values: vec![value; length], oldest: 0, sum: value * length as u64 }
    }

    fn push(&mut self, value: u64) -> u64 {
        let oldest = std::mem::replace(&mut self.values[self.oldest], value);
        self.sum = self.sum + value - oldest;
        self.oldest = if self.oldest + 1 == self.values.len() { 0 } else { self.oldest + 1 };
        self.sum
    }
}
