//! Random numbers of the goldens, and how the official code draws codes with them.

use crate::decoding::Sampling;

/// The stream of `oracle/chatterbox/noise.py`: draws are counted over all calls of a run.
pub struct Noise {
    seed: u64,
    draw: u64,
}

impl Noise {
    pub fn new(seed: u64) -> Noise {
        Noise { seed, draw: 0 }
    }

    /// The numbers of the next draw, uniform in 0…1.
    fn next(&mut self) -> impl FnMut() -> f64 + use<> {
        let mut state = (self.seed << 32).wrapping_add(self.draw);
        self.draw += 1;
        move || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) >> 11) as f64 * 2f64.powi(-53)
        }
    }

    pub fn uniform(&mut self, count: usize) -> Vec<f32> {
        let mut next = self.next();
        (0..count).map(|_| next() as f32).collect()
    }

    pub fn normal(&mut self, count: usize) -> Vec<f32> {
        let mut next = self.next();
        let mut all = vec![];
        while all.len() < count {
            let (u, v) = (next(), next());
            let (radius, angle) = ((-2.0 * (-u).ln_1p()).sqrt(), std::f64::consts::TAU * v);
            all.extend([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]);
        }
        all.truncate(count);
        all
    }

    /// An index drawn from probabilities, as torch does it.
    pub fn index(&mut self, probabilities: &[f32]) -> usize {
        let mut next = self.next();
        let mut best = (0, f32::NEG_INFINITY);
        for (i, p) in probabilities.iter().enumerate() {
            let q = -(-next()).ln_1p() as f32;
            let score = p / q;
            if score > best.1 {
                best = (i, score);
            }
        }
        best.0
    }
}

/// Which order the official code follows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Penalty, temperature, min-p, top-p.
    PenaltyFirst,
    /// Temperature, top-k, top-p, penalty.
    PenaltyLast,
}

/// The distribution that a code is drawn from: `logits` `[V]` after guidance, and codes before it.
pub fn probabilities(logits: &[f32], before: &[i32], s: Sampling, order: Order) -> Vec<f32> {
    let mut x = logits.to_vec();
    if order == Order::PenaltyFirst {
        penalize(&mut x, before, s.repetition_penalty);
    }
    x.iter_mut().for_each(|x| *x /= s.temperature);
    if s.top_k > 0 {
        let mut sorted = x.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let least = sorted[s.top_k.min(sorted.len()) - 1];
        x.iter_mut().filter(|x| **x < least).for_each(|x| *x = f32::NEG_INFINITY);
    }
    if s.min_p > 0.0 {
        let p = softmax(&x);
        let least = s.min_p * p.iter().copied().fold(0.0, f32::max);
        x.iter_mut().zip(&p).filter(|(_, p)| **p < least).for_each(|(x, _)| *x = f32::NEG_INFINITY);
    }
    if s.top_p < 1.0 || order == Order::PenaltyFirst {
        top_p(&mut x, s.top_p);
    }
    if order == Order::PenaltyLast {
        penalize(&mut x, before, s.repetition_penalty);
    }
    softmax(&x)
}

fn penalize(x: &mut [f32], before: &[i32], penalty: f32) {
    let mut ids: Vec<usize> = before.iter().filter_map(|id| usize::try_from(*id).ok()).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        if let Some(x) = x.get_mut(id) {
            *x = if *x < 0.0 { *x * penalty } else { *x / penalty };
        }
    }
}

/// Removes the least likely ids, whose probabilities add up to `1 − p` at most; the likeliest stays.
fn top_p(x: &mut [f32], p: f32) {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|a, b| x[*a].total_cmp(&x[*b]));
    let probabilities = softmax(x);
    let mut sum = 0.0;
    for id in &order[..order.len() - 1] {
        sum += probabilities[*id];
        if sum <= 1.0 - p {
            x[*id] = f32::NEG_INFINITY;
        }
    }
}

fn softmax(x: &[f32]) -> Vec<f32> {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e: Vec<f64> = x.iter().map(|x| f64::from(x - most).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|e| (e / sum) as f32).collect()
}
