//! When each letter is spoken, read off the text attention.
//!
//! Training of this project's voices pulls two heads of every text attention to the teacher's timing, so in
//! the last denoising step their weights say which letters a latent frame speaks.

use super::config::SlotAttention;

/// Heads of each block whose weights are a trained alignment: the first ones.
const ALIGNED_HEADS: usize = 2;

/// Frames by which the attention of the built-in voice is later than its sound. Words are then between two
/// references that differ by 80 ms: an aligner (PocketSphinx 5.1), which puts words after a pause 40 ms
/// before the level rises, and the durations of the teacher, which put them 30 ms after that.
pub(super) const LAG: f32 = 0.7;

/// Adds the weights of a block's aligned heads to `map`, `[frames, letters]`. Queries `[frames, units]` and
/// keys `[letters, units]` are rotated.
pub(super) fn add_weights(map: &mut [f32], attention: SlotAttention, queries: &[f32], keys: &[f32]) {
    let (units, width) = (attention.units, attention.units / attention.heads);
    let scale = 1.0 / (attention.divisor_of as f32).sqrt();
    let letters = keys.len() / units;
    let mut row = vec![0.0; letters];
    for (query, sums) in queries.chunks_exact(units).zip(map.chunks_exact_mut(letters)) {
        for head in 0..ALIGNED_HEADS.min(attention.heads) {
            let part = head * width..(head + 1) * width;
            for (score, key) in row.iter_mut().zip(keys.chunks_exact(units)) {
                let dot = query[part.clone()].iter().zip(&key[part.clone()]).map(|(q, k)| q * k);
                *score = scale * dot.sum::<f32>();
            }
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter_mut().for_each(|score| *score = (*score - most).exp());
            let all: f32 = row.iter().sum();
            sums.iter_mut().zip(&row).for_each(|(sum, weight)| *sum += weight / all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_the_first_heads() {
        // Two aligned heads and one more, of width 1.
        let attention = SlotAttention { width: 3, units: 3, heads: 3, divisor_of: 1 };
        let (queries, keys) = ([1.0, 2.0, 9.0], [0.0, 0.0, 5.0, 1.0, 1.0, -5.0]);
        let mut map = vec![0.0; 2];
        add_weights(&mut map, attention, &queries, &keys);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let want = [sigmoid(-1.0) + sigmoid(-2.0), sigmoid(1.0) + sigmoid(2.0)];
        assert!(map.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{map:?}");
    }
}
