//! Pseudorandom inputs and weights, the same in every run and on every machine.

use half::{bf16, f16};
use orate_graph::{DType, Graph, GraphError, Halves, Result, Shape, Tensor, Weight, WeightLoader};
use std::collections::BTreeMap;

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A small generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator that depends on `seed` only.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Creates a generator that depends on `seed` and a name.
    pub fn named(seed: u64, name: &str) -> Self {
        // FNV-1a
        let mix = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3);
        Random(name.bytes().fold(seed ^ 0xCBF2_9CE4_8422_2325, mix))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Leaves out the next `n` draws.
    pub fn skip(&mut self, n: u64) {
        self.0 = self.0.wrapping_add(STEP.wrapping_mul(n));
    }

    /// Returns a number from 0 to 1, exclusive, with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns an integer below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns a number from `low` to `high`.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.bits() >> 40) as f32 / (1 << 24) as f32)
    }

    /// Returns `n` numbers from `low` to `high`.
    pub fn floats(&mut self, n: usize, low: f32, high: f32) -> Vec<f32> {
        (0..n).map(|_| self.uniform(low, high)).collect()
    }
}

/// Random weights for all names that a graph mentions, with their shapes.
///
/// Vectors range from −1 to 1. Matrices shrink with their size, so that results stay near 1 through a deep
/// network. Tensors under a root or reciprocal are positive. A tensor whose name ends in `.f16` or `.bf16` is
/// stored in that format.
#[derive(Clone, Debug, Default)]
pub struct RandomWeights {
    tensors: BTreeMap<String, (Shape, Vec<f32>)>,
    /// Tensors stored in 16 bits, as bytes of a file.
    halves: BTreeMap<String, (DType, Vec<u8>)>,
}

impl RandomWeights {
    /// Creates weights for one graph.
    pub fn of_graph(graph: &Graph, seed: u64) -> Self {
        Self::of_graphs([graph], seed)
    }

    /// Creates weights for several graphs that share names.
    pub fn of_graphs<'g>(graphs: impl IntoIterator<Item = &'g Graph>, seed: u64) -> Self {
        let weights = graphs.into_iter().flat_map(|g| g.nodes()).flat_map(|n| n.op.weights());
        Self::of_weights(weights, seed)
    }

    /// Creates weights for expressions. A name mentioned with two shapes keeps the first; evaluating the
    /// other fails.
    pub fn of_weights<'w>(weights: impl IntoIterator<Item = &'w Weight>, seed: u64) -> Self {
        let mut found: BTreeMap<String, (Shape, bool)> = BTreeMap::new();
        for w in weights {
            let key = w.key();
            let positive = key.contains('√') || key.contains("1/(");
            w.visit_named(&mut |name, shape| {
                found.entry(name.to_owned()).or_insert_with(|| (shape.clone(), false)).1 |= positive;
            });
        }
        let tensor = |(name, (shape, positive)): (String, (Shape, bool))| {
            let mut random = Random::named(seed, &name);
            let data = if positive {
                random.floats(shape.len(), 0.5, 1.5)
            } else {
                let wide = shape.dims().iter().filter(|d| **d > 1).count() > 1;
                // Fan-in and fan-out cannot be told apart here, so their geometric mean stands for both.
                let bound = if wide { (3.0 / (shape.len() as f32).sqrt()).sqrt().min(1.0) } else { 1.0 };
                random.floats(shape.len(), -bound, bound)
            };
            (name, (shape, data))
        };
        let mut weights =
            RandomWeights { tensors: found.into_iter().map(tensor).collect(), halves: BTreeMap::new() };
        weights.round();
        weights
    }

    /// Copies the tensors that `graph` mentions from another loader.
    ///
    /// # Errors
    /// The loader lacks one.
    pub fn copied(graph: &Graph, from: &dyn WeightLoader) -> Result<Self> {
        let mut names = vec![];
        let weights = graph.nodes().iter().flat_map(|n| n.op.weights());
        weights.for_each(|w| w.visit_named(&mut |name, _| names.push(name)));
        let mut tensors = BTreeMap::new();
        for name in names {
            let t = from.load(name)?.contiguous();
            tensors.insert(name.to_owned(), (t.shape, t.data.into_owned()));
        }
        Ok(RandomWeights { tensors, halves: BTreeMap::new() })
    }

    /// Rounds the tensors that are stored in 16 bits.
    fn round(&mut self) {
        for (name, (_, data)) in &mut self.tensors {
            let (dtype, bits): (DType, fn(f32) -> u16) = match name.rsplit_once('.') {
                Some((_, "f16")) => (DType::F16, |x| f16::from_f32(x).to_bits()),
                Some((_, "bf16")) => (DType::BF16, |x| bf16::from_f32(x).to_bits()),
                _ => continue,
            };
            let halves: Vec<u16> = data.iter().map(|x| bits(*x)).collect();
            for (x, bits) in data.iter_mut().zip(&halves) {
                *x = match dtype {
                    DType::F16 => f16::from_bits(*bits).to_f32(),
                    _ => bf16::from_bits(*bits).to_f32(),
                };
            }
            self.halves.insert(name.clone(), (dtype, halves.iter().flat_map(|b| b.to_le_bytes()).collect()));
        }
    }

    /// Replaces a tensor, for cases that need certain values.
    pub fn set(&mut self, name: &str, shape: impl Into<Shape>, data: Vec<f32>) {
        let shape = shape.into();
        assert_eq!(shape.len(), data.len(), "tensor `{name}` {shape}");
        self.tensors.insert(name.to_owned(), (shape, data));
    }

    /// Names and shapes, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Shape)> {
        self.tensors.iter().map(|(n, (s, _))| (n.as_str(), s))
    }
}

impl WeightLoader for RandomWeights {
    fn load(&self, name: &str) -> Result<Tensor<'_>> {
        match self.tensors.get(name) {
            Some((shape, data)) => Ok(Tensor::new(shape.clone(), data)),
            None => Err(GraphError::Weight {
                name: name.to_owned(),
                problem: "no graph that these random weights were made for mentions it".to_owned(),
            }),
        }
    }

    fn halves(&self, name: &str) -> Option<Halves<'_>> {
        let (dtype, bytes) = self.halves.get(name)?;
        Some(Halves { dtype: *dtype, shape: self.tensors.get(name)?.0.clone(), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_depend_on_name_and_seed_only() {
        let (a, b) = (Weight::named("a", [3]), Weight::named("b", [3]));
        let both = RandomWeights::of_weights([&a, &b], 1);
        let one = RandomWeights::of_weights([&b.reshape([1, 3])], 1);
        let other = RandomWeights::of_weights([&b], 2);
        let get = |w: &RandomWeights, n: &str| w.load(n).expect("is there").data.into_owned();
        assert_eq!(get(&both, "b"), get(&one, "b"));
        assert_ne!(get(&both, "a"), get(&both, "b"));
        assert_ne!(get(&one, "b"), get(&other, "b"));
        assert!(one.load("a").is_err());
    }

    #[test]
    fn what_is_rooted_or_divided_by_is_positive() {
        let v = Weight::named("variance", [64]);
        let w = RandomWeights::of_weights([&v.add(&Weight::fill(1e-5, [1])).sqrt().reciprocal(), &v], 3);
        assert!(w.load("variance").expect("is there").data.iter().all(|x| *x >= 0.5));
    }

    #[test]
    fn uniform_covers_its_range() {
        let x = Random::new(5).floats(1000, -2.0, 4.0);
        let mean = x.iter().sum::<f32>() / 1000.0;
        assert!(x.iter().all(|x| (-2.0..4.0).contains(x)) && (mean - 1.0).abs() < 0.2, "mean {mean}");
    }
}
