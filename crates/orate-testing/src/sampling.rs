//! Reference sampling of an id from logits, step by step as in [`orate_graph::Op::Sample`].

use crate::formulas::philox;
use orate_graph::{SAMPLE_SETTINGS, SampleRules};

/// Inputs of a draw besides the logits.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// Unconditional logits, for guidance.
    pub unconditional: Option<&'a [f32]>,
    /// Temperature, k, p, penalty, min-p and guidance.
    pub settings: [f32; SAMPLE_SETTINGS],
    /// Key of the random numbers.
    pub seed: [i32; 2],
    /// Index of the draw.
    pub number: i32,
    /// Nonzero where an id was drawn before.
    pub seen: Option<&'a [f32]>,
    /// Constants.
    pub rules: SampleRules,
}

/// Step 1.
fn penalize(x: &mut [f32], draw: &Draw<'_>) {
    let penalty = draw.settings[3];
    for (id, x) in x.iter_mut().enumerate() {
        let starts = draw.number == 0 && draw.rules.start == Some(id);
        if starts || draw.seen.is_some_and(|seen| seen[id] != 0.0) {
            *x = if *x < 0.0 { *x * penalty } else { *x / penalty };
        }
    }
}

/// Steps 0 to 6: the remaining logits, with −∞ for excluded ids. At temperature 0 only steps 0 to 2.
pub fn filtered(logits: &[f32], draw: &Draw<'_>) -> Vec<f32> {
    let [temperature, k, p, _, min_p, guidance] = draw.settings;
    let mut x = logits.to_vec();
    for (x, u) in x.iter_mut().zip(draw.unconditional.unwrap_or_default()) {
        *x += guidance * (*x - *u);
    }
    let penalty_last = draw.rules.penalty_last && temperature != 0.0;
    if !penalty_last {
        penalize(&mut x, draw);
    }
    for (id, x) in x.iter_mut().enumerate() {
        let left_out = draw.rules.controls.is_some_and(|c| {
            let early = id == c.end && (draw.number as i64) < c.min_draws as i64;
            early || (id >= c.first && id != c.end)
        });
        if left_out {
            *x = f32::NEG_INFINITY;
        }
    }
    if temperature == 0.0 {
        return x;
    }
    x.iter_mut().for_each(|x| *x /= temperature);
    // Ids by descending logit, equal ones by id.
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|a, b| x[*b].total_cmp(&x[*a]));
    let k = k as usize;
    if k > 0 && k < x.len() {
        let least = x[order[k - 1]];
        x.iter_mut().filter(|x| **x < least).for_each(|x| *x = f32::NEG_INFINITY);
    }
    if min_p > 0.0 {
        let least = x[order[0]] + min_p.ln();
        x.iter_mut().filter(|x| **x < least).for_each(|x| *x = f32::NEG_INFINITY);
    }
    if p < 1.0 {
        let probabilities = softmax(&x);
        let mut sum = 0.0;
        for (rank, id) in order.into_iter().enumerate() {
            if rank > 0 && sum >= f64::from(p) {
                x[id] = f32::NEG_INFINITY;
            }
            sum += probabilities[id];
        }
    }
    if penalty_last {
        penalize(&mut x, draw);
    }
    x
}

/// Probability of each id; 0 for −∞.
pub fn softmax(x: &[f32]) -> Vec<f64> {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e: Vec<f64> = x.iter().map(|x| (f64::from(*x) - f64::from(largest)).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|e| e / sum).collect()
}

/// Returns the drawn id; `None` if no id remains.
pub fn draw(logits: &[f32], draw: &Draw<'_>) -> Option<usize> {
    let x = filtered(logits, draw);
    let greedy = draw.settings[0] == 0.0;
    let score = |id: usize| {
        let noise = if greedy { 0.0 } else { gumbel(id as u32, draw) };
        f64::from(x[id]) + noise
    };
    let mut best = None;
    for id in (0..x.len()).filter(|id| x[*id] > f32::NEG_INFINITY) {
        if best.is_none_or(|b| score(id) > score(b)) {
            best = Some(id);
        }
    }
    best
}

/// Gumbel noise `−ln(−ln u)` of an id.
fn gumbel(id: u32, draw: &Draw<'_>) -> f64 {
    let key = draw.seed.map(|word| word as u32);
    let words = philox([id / 4, draw.rules.codebook, draw.number as u32, 1], key);
    let u = (f64::from(words[(id % 4) as usize] >> 9) + 0.5) / 8_388_608.0;
    -(-u.ln()).ln()
}
