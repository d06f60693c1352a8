//! Mean squares of the inputs of matmuls: what the errors of their weights are multiplied by.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Collects squares of the inputs of matmuls, by the weights that they meet.
#[derive(Debug, Default)]
pub struct Moments(Mutex<BTreeMap<String, Sums>>);

#[derive(Clone, Debug, Default)]
struct Sums {
    squares: Vec<f64>,
    rows: u64,
}

impl Moments {
    /// Adds rows of `width` inputs of the weights `names`. Rows that are not finite do not count.
    pub(crate) fn add(&self, names: &[String], inputs: &[f32], width: usize) {
        let mut sums = Sums { squares: vec![0.0; width], rows: 0 };
        for row in inputs.chunks_exact(width.max(1)).filter(|row| row.iter().all(|x| x.is_finite())) {
            sums.squares.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
            sums.rows += 1;
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            let known = all.entry(name.clone()).or_default();
            known.squares.resize(width, 0.0);
            known.squares.iter_mut().zip(&sums.squares).for_each(|(sum, x)| *sum += x);
            known.rows += sums.rows;
        }
    }

    /// Mean squares of the inputs that the columns of a weight meet, as parts of their mean: `[K]`. `None`
    /// for weights that met none, or zeros only.
    pub fn importance(&self, name: &str) -> Option<Vec<f32>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Sums { squares, .. } = all.get(name)?;
        let mean = squares.iter().sum::<f64>() / squares.len() as f64;
        // Inputs that were always 0 in this text may not be in another one.
        let part = |x: &f64| (x / mean).max(LEAST) as f32;
        (mean > 0.0).then(|| squares.iter().map(part).collect())
    }
}

/// Least importance of a column.
const LEAST: f64 = 1e-4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_parts_of_their_mean() {
        let moments = Moments::default();
        let names = ["a".to_owned(), "b".to_owned()];
        moments.add(&names, &[1.0, 0.0, 3.0, 0.0], 2);
        moments.add(&names[..1], &[f32::NAN, 1.0, 0.0, 0.0], 2);
        assert_eq!(moments.importance("a"), Some(vec![2.0, LEAST as f32]));
        assert_eq!(moments.importance("b"), moments.importance("a"));
        moments.add(&["zero".to_owned()], &[0.0; 4], 2);
        assert_eq!((moments.importance("zero"), moments.importance("other")), (None, None));
    }
}
