//! Samples an id from logits, as defined by `Op::Sample` of `orate-graph`.
//!
//! ```text
//! x = c, or c + guidance · (c − u) with unconditional logits u; penalized where seen; −∞ for control ids
//! temperature 0:  argmax x
//! x = x / temperature; −∞ below the k-th largest, and below largest + ln(min-p)
//! −∞ after the ids whose probabilities sum up to p; or penalized only here
//! argmax (x − ln(−ln u)), u from Philox                           one draw from softmax(x)
//! ```
//!
//! All f32 with the same operations on every instruction set, so that all CPUs draw the same ids; the
//! probabilities of step p are summed in f64. A few thousand ids take microseconds, compared with
//! milliseconds for the matmuls that made the logits, so one thread handles a row. Nothing is allocated:
//! sorting uses scratch memory.

use crate::kernels::random::{gumbel, philox};
use crate::op::{Binding, Call, OpKernel};
use crate::weights::Core;
use orate_graph::{NO_ID, SAMPLE_SETTINGS, SampleRules, ValueInfo, sample_settings};

/// One row of logits with its sampling parameters.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// `[V]`
    pub logits: &'a [f32],
    /// `[V]`, for guidance.
    pub unconditional: Option<&'a [f32]>,
    /// Temperature, k, p, penalty, min-p and guidance.
    pub settings: [f32; SAMPLE_SETTINGS],
    /// Key of the random numbers.
    pub seed: [u32; 2],
    /// Index of the draw.
    pub number: i32,
    /// `[V]`, nonzero where an id was drawn before.
    pub seen: Option<&'a [f32]>,
    /// Constants.
    pub rules: SampleRules,
}

impl Draw<'_> {
    /// Penalizes ids that were seen, once each. Excluded ones stay so.
    fn penalize(&self, x: &mut [f32]) {
        let penalty = self.settings[3];
        let start = self.rules.start.filter(|_| self.number == 0);
        let seen = self.seen.unwrap_or_default().iter().enumerate().filter(|(_, seen)| **seen != 0.0);
        let ids = seen.map(|(id, _)| id).filter(|id| Some(*id) != start).chain(start);
        for id in ids {
            let x = &mut x[id];
            if *x > f32::NEG_INFINITY {
                *x = if *x < 0.0 { *x * penalty } else { *x / penalty };
            }
        }
    }
}

/// No id can be drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The network overflowed, or its weights are damaged.
    #[error("the logit of id {0} is NaN; check the weights")]
    NotANumber(usize),
    /// All ids are excluded.
    #[error("no id can be drawn: all are excluded or have a logit of −∞")]
    Nothing,
}

/// Floats of scratch for sampling from `ids` logits.
pub fn scratch_len(ids: usize) -> usize {
    2 * ids
}

/// Returns the drawn id.
///
/// # Errors
/// A logit is NaN, or all are −∞.
///
/// # Panics
/// There is less scratch than [`scratch_len`].
pub fn sample(draw: &Draw<'_>, scratch: &mut [f32]) -> Result<i32, SampleError> {
    let x = filter(draw, scratch)?;
    let mut best = (f32::NEG_INFINITY, None);
    let mut words = [0; 4];
    let greedy = draw.settings[0] == 0.0;
    let mut block = u32::MAX;
    for (id, &x) in x.iter().enumerate() {
        if x == f32::NEG_INFINITY {
            continue;
        }
        let mut score = x;
        if !greedy {
            let id = id as u32;
            if block != id / 4 {
                block = id / 4;
                words = philox([block, draw.rules.codebook, draw.number as u32, 1], draw.seed);
            }
            score += gumbel(words[id as usize % 4]);
        }
        if best.1.is_none() || score > best.0 {
            best = (score, Some(id));
        }
    }
    best.1.map(|id| id as i32).ok_or(SampleError::Nothing)
}

/// Returns the remaining logits, with −∞ for excluded ids, in the front of `scratch`.
///
/// # Errors
/// A logit is NaN.
///
/// # Panics
/// There is less scratch than [`scratch_len`].
pub fn filter<'s>(draw: &Draw<'_>, scratch: &'s mut [f32]) -> Result<&'s [f32], SampleError> {
    let n = draw.logits.len();
    let [temperature, k, p, _, min_p, guidance] = draw.settings;
    let (x, rest) = scratch[..scratch_len(n)].split_at_mut(n);
    let unconditional = draw.unconditional.unwrap_or_default();
    if let Some(at) = draw.logits.iter().chain(unconditional).position(|x| x.is_nan()) {
        return Err(SampleError::NotANumber(at % n));
    }
    x.copy_from_slice(draw.logits);
    for (x, u) in x.iter_mut().zip(unconditional) {
        *x += guidance * (*x - *u);
    }
    let penalty_last = draw.rules.penalty_last && temperature != 0.0;
    if !penalty_last {
        draw.penalize(x);
    }
    if let Some(c) = draw.rules.controls {
        let end = x[c.end];
        x[c.first..].fill(f32::NEG_INFINITY);
        let may_end = i64::from(draw.number) >= c.min_draws as i64;
        x[c.end] = if may_end { end } else { f32::NEG_INFINITY };
    }
    if temperature == 0.0 {
        return Ok(x);
    }
    x.iter_mut().for_each(|x| *x /= temperature);
    let k = k as usize;
    if k > 0 && k < n {
        rest.copy_from_slice(x);
        let (_, least, _) = rest.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        let least = *least;
        x.iter_mut().filter(|x| **x < least).for_each(|x| *x = f32::NEG_INFINITY);
    }
    if min_p > 0.0 {
        let least = x.iter().copied().fold(f32::NEG_INFINITY, f32::max) + min_p.ln();
        x.iter_mut().filter(|x| **x < least).for_each(|x| *x = f32::NEG_INFINITY);
    }
    if p < 1.0 {
        nucleus(x, f64::from(p), rest);
    }
    if penalty_last {
        draw.penalize(x);
    }
    Ok(x)
}

/// Keeps the most likely ids, up to the first at which probabilities sum up to `p`, and excludes all others.
fn nucleus(x: &mut [f32], p: f64, scratch: &mut [f32]) {
    // Ids, stored as floats with the same bits.
    let mut kept = 0;
    for id in (0..x.len()).filter(|id| x[*id] > f32::NEG_INFINITY) {
        scratch[kept] = f32::from_bits(id as u32);
        kept += 1;
    }
    let order = &mut scratch[..kept];
    let at = |word: &f32| word.to_bits() as usize;
    order.sort_unstable_by(|a, b| x[at(b)].total_cmp(&x[at(a)]).then(at(a).cmp(&at(b))));
    let Some(largest) = order.first().map(|first| f64::from(x[at(first)])) else { return };
    let weight = |word: &f32| (f64::from(x[at(word)]) - largest).exp();
    let total: f64 = order.iter().map(weight).sum();
    let mut sum = 0.0;
    let mut stay = order.len();
    for (rank, word) in order.iter().enumerate() {
        if rank > 0 && sum >= p * total {
            stay = rank;
            break;
        }
        sum += weight(word);
    }
    order[stay..].iter().for_each(|word| x[at(word)] = f32::NEG_INFINITY);
}

pub(crate) struct Sample(pub SampleRules);

impl OpKernel for Sample {
    fn name(&self, _: &Core, _: &[&ValueInfo]) -> String {
        "sample".to_owned()
    }

    fn bind(&self, step: &Binding<'_>) -> Call {
        let (rules, width) = (self.0, step.shape(0).last());
        let (lanes, of_row) = (step.shape(0).rank() - 1, step.shape(1).last());
        Call::new(move |o| {
            let settings = o.inputs.floats(1);
            let (seed, number) = (o.inputs.integers(2), o.inputs.integers(3));
            let seen = (o.inputs.len() == 5).then(|| o.inputs.floats(4));
            for (b, (rows, out)) in o.inputs.floats(0).chunks_exact(lanes * width).zip(o.out).enumerate() {
                let (logits, unconditional) = rows.split_at(width);
                let draw = Draw {
                    logits,
                    unconditional: (lanes == 2).then_some(unconditional),
                    settings: sample_settings(&settings[of_row * b..][..of_row]),
                    seed: [seed[2 * b] as u32, seed[2 * b + 1] as u32],
                    number: number[b],
                    seen: seen.map(|seen| &seen[b * width..][..width]),
                    rules,
                };
                let id = sample(&draw, o.scratch).unwrap_or(NO_ID);
                *out = f32::from_bits(id as u32);
            }
        })
        .with_scratch(scratch_len(width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(logits: &[f32], settings: [f32; 4]) -> Draw<'_> {
        let (settings, unconditional) = (sample_settings(&settings), None);
        Draw {
            logits,
            unconditional,
            settings,
            seed: [1, 2],
            number: 0,
            seen: None,
            rules: SampleRules::default(),
        }
    }

    fn kept(d: &Draw<'_>) -> Vec<usize> {
        let mut scratch = vec![f32::NAN; scratch_len(d.logits.len())];
        let x = filter(d, &mut scratch).expect("numbers");
        (0..x.len()).filter(|id| x[*id] > f32::NEG_INFINITY).collect()
    }

    #[test]
    fn equals_of_the_kth_stay() {
        let x = [1.0, 3.0, 2.0, 2.0, 0.0, 2.0];
        assert_eq!(kept(&draw(&x, [1.0, 2.0, 1.0, 1.0])), [1, 2, 3, 5]);
        assert_eq!(kept(&draw(&x, [1.0, 1.0, 1.0, 1.0])), [1]);
        assert_eq!(kept(&draw(&x, [1.0, 0.0, 1.0, 1.0])), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn ids_less_likely_than_min_p_are_left_out() {
        let x = [0.0, 2.0, 1.0, -1.0];
        let with = |temperature, min_p| {
            let d = draw(&x, [temperature, 0.0, 1.0, 1.0]);
            kept(&Draw { settings: sample_settings(&[temperature, 0.0, 1.0, 1.0, min_p]), ..d })
        };
        // Relative to the largest: 1, e⁻¹ = 0.37, e⁻² = 0.14, e⁻³ = 0.05.
        assert_eq!(with(1.0, 0.0), [0, 1, 2, 3]);
        assert_eq!(with(1.0, 0.1), [0, 1, 2]);
        assert_eq!(with(1.0, 0.3), [1, 2]);
        assert_eq!(with(1.0, 1.0), [1]);
        assert_eq!(with(2.0, 0.3), [0, 1, 2], "after temperature");
    }

    #[test]
    fn guidance_moves_away_from_unconditional_logits() {
        let settings = |guidance| sample_settings(&[0.0, 0.0, 1.0, 1.0, 0.0, guidance]);
        let d = draw(&[1.0, 2.0, 0.0], [0.0, 0.0, 1.0, 1.0]);
        let mut scratch = [0.0; 6];
        let mut id = |guidance| {
            let d = Draw { unconditional: Some(&[0.0, 2.0, 0.0]), settings: settings(guidance), ..d };
            sample(&d, &mut scratch).expect("draws")
        };
        assert_eq!([id(0.0), id(0.9), id(1.1)], [1, 1, 0]);
        let broken = Draw { unconditional: Some(&[0.0, f32::NAN, 0.0]), settings: settings(0.0), ..d };
        assert_eq!(sample(&broken, &mut [0.0; 6]), Err(SampleError::NotANumber(1)));
    }

    #[test]
    fn the_largest_stays_whatever_p() {
        let x = [0.0, 0.0, 1.0, 0.0];
        assert_eq!(kept(&draw(&x, [1.0, 0.0, 0.0, 1.0])), [2]);
        assert_eq!(kept(&draw(&x, [1.0, 0.0, 0.6, 1.0])), [0, 2], "of equal ones, the lowest id");
    }

    #[test]
    fn penalties_come_first_or_last() {
        let x = [2.0, 1.8, 1.0, -3.0];
        let seen = [1.0, 0.0, 0.0, 1.0];
        let mut scratch = [0.0; 8];
        let mut left = |penalty_last, number, temperature| {
            let settings = sample_settings(&[temperature, 2.0, 1.0, 4.0]);
            let rules = SampleRules { penalty_last, start: Some(1), ..SampleRules::default() };
            let d = Draw { settings, number, rules, seen: Some(&seen), ..draw(&x, [1.0, 0.0, 1.0, 1.0]) };
            filter(&d, &mut scratch).expect("numbers").to_vec()
        };
        let none = f32::NEG_INFINITY;
        // Two remain: of the penalized logits 0.5, 1.8, 1, −12, or of those given.
        assert_eq!(left(false, 3, 1.0), [none, 1.8, 1.0, none]);
        assert_eq!(left(true, 3, 1.0), [0.5, 1.8, none, none]);
        assert_eq!(left(true, 3, 0.5), [1.0, 3.6, none, none]);
        assert_eq!(left(true, 0, 1.0), [0.5, 0.45, none, none], "in draw 0, id 1 counts as seen");
        assert_eq!(left(true, 0, 0.0), [0.5, 0.45, 1.0, -12.0], "without temperature, all remain");
    }

    #[test]
    fn what_cannot_be_drawn_is_said() {
        let mut scratch = [0.0; 4];
        let e = sample(&draw(&[1.0, f32::NAN], [1.0, 0.0, 1.0, 1.0]), &mut scratch).expect_err("NaN");
        assert!(e.to_string().contains("id 1 is NaN"), "{e}");
        let none = [f32::NEG_INFINITY; 2];
        let e = sample(&draw(&none, [0.0, 0.0, 1.0, 1.0]), &mut scratch).expect_err("nothing");
        assert_eq!(e, SampleError::Nothing);
    }

    /// The frequency of each id is its probability, within four standard deviations.
    #[test]
    fn frequencies_are_probabilities() {
        let logits = [2.0, 1.0, 0.0, -1.0, 1.5, -40.0, 0.5];
        let settings = [0.8, 6.0, 0.97, 1.0];
        let base = draw(&logits, settings);
        let mut scratch = [0.0; 14];
        let x: Vec<f64> =
            filter(&base, &mut scratch).expect("numbers").iter().map(|x| f64::from(*x).exp()).collect();
        let total: f64 = x.iter().sum();
        const DRAWS: usize = 40_000;
        let mut counts = [0usize; 7];
        for number in 0..DRAWS {
            let rules = SampleRules { codebook: 5, ..base.rules };
            let d = Draw { number: number as i32, rules, ..base };
            counts[sample(&d, &mut scratch).expect("draws") as usize] += 1;
        }
        for (id, count) in counts.into_iter().enumerate() {
            let p = x[id] / total;
            let deviation = (DRAWS as f64 * p * (1.0 - p)).sqrt();
            let off = (count as f64 - DRAWS as f64 * p).abs();
            assert!(off <= 4.0 * deviation, "id {id}: {count} of {DRAWS}, probability {p}");
        }
    }

    /// Frames, codebooks and seeds draw independent numbers.
    #[test]
    fn draws_differ() {
        let logits = [0.0; 64];
        let mut scratch = [0.0; 128];
        // Index, codebook and seed of the i-th draw.
        let mut sequence = |change: &dyn Fn(i32) -> (i32, u32, [u32; 2])| -> Vec<i32> {
            let one = |i| {
                let (number, codebook, seed) = change(i);
                let rules = SampleRules { codebook, ..SampleRules::default() };
                let d = Draw { number, rules, seed, ..draw(&logits, [1.0, 0.0, 1.0, 1.0]) };
                sample(&d, &mut scratch).expect("draws")
            };
            (0..32).map(one).collect()
        };
        let sequences = [
            sequence(&|i| (i, 0, [1, 2])),
            sequence(&|i| (7, i as u32, [1, 2])),
            sequence(&|i| (i, 0, [3, 2])),
            sequence(&|i| (i, 0, [1, 3])),
        ];
        for (i, a) in sequences.iter().enumerate() {
            let distinct: std::collections::HashSet<_> = a.iter().collect();
            assert!(distinct.len() > 16, "{a:?}");
            assert!(sequences[..i].iter().all(|b| a != b));
        }
    }
}
