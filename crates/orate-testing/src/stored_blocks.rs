//! Weights that a file has in blocks.

use crate::{Buffers, Data, Random, RandomWeights, Scalars, assert_close, interpret};
use half::f16;
use orate_graph::blocks::{SUPER_BLOCK, SuperBlock, SuperFormat};
use orate_graph::{
    Activation, Blocks, DType, Device, Graph, GraphError, Plan, Precision, Result, Tensor, Weight,
    WeightLoader,
};
use std::collections::HashMap;
use std::sync::Arc;

const NAME: &str = "w";

/// A matrix in blocks, with any integers and scales: also such that rounding its numbers would give others.
struct Stored {
    format: Precision,
    shape: [usize; 2],
    bytes: Vec<u8>,
    numbers: Vec<f32>,
}

impl Stored {
    fn random(seed: u64, format: Precision, shape: [usize; 2]) -> Stored {
        let mut random = Random::named(seed, format.name());
        let mut bytes_of =
            |n: usize| -> Vec<u8> { random.floats(n, 0.0, 256.0).into_iter().map(|x| x as u8).collect() };
        let half = |byte: u8, unit: f32| f16::from_f32(f32::from(byte as i8) * unit);
        let (mut bytes, mut numbers) = (vec![], vec![]);
        for _ in 0..shape[0] * shape[1] / format.block() {
            let factors = bytes_of(2);
            match SuperFormat::of(format) {
                Some(f) => {
                    let mut block = SuperBlock::read(f, &bytes_of(f.bytes()));
                    block.d = half(factors[0], if f == SuperFormat::Q6K { 1e-6 } else { 1e-5 });
                    block.e = half(if f == SuperFormat::Q6K { 0 } else { factors[1] }, 1e-5);
                    let mut values = [0.0; SUPER_BLOCK];
                    block.write(f, &mut bytes);
                    block.weights(f, &mut values);
                    numbers.extend(values);
                }
                None => {
                    let d = half(factors[0], 1e-4);
                    let mut q = bytes_of(if format == Precision::Q8_0 { 32 } else { 16 });
                    if format == Precision::Q8_0 {
                        // No encoder writes −128.
                        q.iter_mut().for_each(|q| *q = (*q as i8).max(-127) as u8);
                    }
                    bytes.extend(d.to_le_bytes());
                    bytes.extend(&q);
                    let number = |i: usize| match format {
                        Precision::Q8_0 => f32::from(q[i] as i8),
                        _ if i < 16 => f32::from(q[i] & 15) - 8.0,
                        _ => f32::from(q[i - 16] >> 4) - 8.0,
                    };
                    numbers.extend((0..32).map(|i| d.to_f32() * number(i)));
                }
            }
        }
        Stored { format, shape, bytes, numbers }
    }

    fn as_blocks(&self) -> Blocks<'_> {
        Blocks { format: self.format, shape: self.shape.into(), bytes: &self.bytes }
    }
}

impl WeightLoader for Stored {
    fn load(&self, name: &str) -> Result<Tensor<'_>> {
        match name {
            NAME => Ok(Tensor::new(self.shape, &self.numbers)),
            _ => Err(GraphError::Weight {
                name: name.to_owned(),
                problem: "there is no such tensor".to_owned(),
            }),
        }
    }

    fn blocks(&self, name: &str) -> Option<Blocks<'_>> {
        (name == NAME).then(|| self.as_blocks())
    }
}

/// Multiplies by blocks of a file on a device of their precision, with one row, few, and many.
///
/// # Panics
/// A result differs by more than `tolerance` times the root of the sum of squares of its terms.
pub fn check_stored_blocks(device: &dyn Device, format: Precision, tolerance: f64) {
    for (rows, n) in [(1, 68), (1, 35), (5, 68), (40, 100)] {
        let k = 2 * SUPER_BLOCK;
        let stored = Arc::new(Stored::random(7, format, [n, k]));
        let mut g = Graph::new("blocks");
        let x = g.input("x", DType::F32, [1, rows, k]).expect("declares");
        let y = g.matmul(x, Weight::named(NAME, [n, k]).transpose()).expect("builds");
        g.output("y", y).expect("declares");
        let plan = Plan::compile(g, device).expect("has a kernel");
        let plan = device.open(stored.clone()).load(plan).expect("loads");
        let mut memory = device.memory();
        let x = Random::named(3, "x").floats(rows * k, -1.0, 1.0);
        memory.write_f32("x", &[1, rows, k].into(), &x).expect("writes");
        plan.run(memory.as_mut()).expect("runs");
        let mut y = vec![];
        memory.read_f32("y", &mut y).expect("reads");
        assert_eq!(y.len(), rows * n);
        for (i, got) in y.iter().enumerate() {
            let terms = x[i / n * k..][..k].iter().zip(&stored.numbers[i % n * k..][..k]);
            let terms = terms.map(|(x, w)| f64::from(*x) * f64::from(*w));
            let (sum, squares) = terms.fold((0.0, 0.0), |(sum, squares), t| (sum + t, squares + t * t));
            let error = (f64::from(*got) - sum).abs();
            assert!(
                error <= tolerance * squares.sqrt(),
                "{} in {format}, {rows} rows: ({}, {}) is {got}, not {sum}",
                device.name(),
                i / n,
                i % n
            );
        }
    }
}

/// Matrices in blocks, and vectors.
struct Layer {
    matrices: HashMap<&'static str, Stored>,
    vectors: RandomWeights,
}

impl WeightLoader for Layer {
    fn load(&self, name: &str) -> Result<Tensor<'_>> {
        match self.matrices.get(name) {
            Some(matrix) => Ok(Tensor::new(matrix.shape, &matrix.numbers)),
            None => self.vectors.load(name),
        }
    }

    fn blocks(&self, name: &str) -> Option<Blocks<'_>> {
        self.matrices.get(name).map(Stored::as_blocks)
    }
}

/// Compares what a transformer layer computes after its attention, and a head, by blocks of a file, with the
/// interpreter: of one and two rows, which some devices compute in one launch, and more.
///
/// # Panics
/// A result differs by more than `tolerance` times the largest.
pub fn check_stored_layer(device: &dyn Device, format: Precision, tolerance: f64) {
    const SIZES: [(&str, [usize; 2]); 4] =
        [("gate", [768, 512]), ("up", [768, 512]), ("down", [512, 768]), ("head", [100, 512])];
    for rows in [1, 2, 5, 13] {
        let build = |g: &mut Graph| {
            let matrix = |i: usize| Weight::named(SIZES[i].0, SIZES[i].1).transpose();
            let norm = |name: &str| Weight::named(name, [512]);
            let x = g.input("x", DType::F32, [rows, 1, 512])?;
            let y = g.rms_norm(x, norm("first"), 1e-6)?;
            let [gate, up] = [g.matmul(y, matrix(0))?, g.matmul(y, matrix(1))?];
            let gate = g.activate(gate, Activation::Silu)?;
            let hidden = g.mul(gate, up)?;
            let y = g.matmul(hidden, matrix(2))?;
            let x = g.add(x, y)?;
            let y = g.rms_norm(x, norm("second"), 1e-6)?;
            let y = g.matmul(y, matrix(3))?;
            g.output("y", y)
        };
        let mut g = Graph::new("layer");
        build(&mut g).expect("builds");
        let matrices =
            SIZES.iter().zip(1..).map(|(&(name, s), seed)| (name, Stored::random(seed, format, s)));
        let weights = Layer { matrices: matrices.collect(), vectors: RandomWeights::of_graph(&g, 1) };
        let x = Random::named(3, "x").floats(rows * 512, -1.0, 1.0);
        let inputs = Buffers::from([("x".to_owned(), Data::F32(x.clone()))]);
        let expected = interpret(&g, &weights, &inputs, &Scalars::new()).expect("interprets");
        let Data::F32(expected) = &expected["y"] else { panic!("an output of f32") };

        let plan = Plan::compile(g, device).expect("has kernels");
        let plan = device.open(Arc::new(weights)).load(plan).expect("loads");
        let mut memory = device.memory();
        memory.write_f32("x", &[rows, 1, 512].into(), &x).expect("writes");
        plan.run(memory.as_mut()).expect("runs");
        let mut y = vec![];
        memory.read_f32("y", &mut y).expect("reads");
        let what = format!("{} in {format}, a layer of {rows} rows", device.name());
        println!("{what}: {}", assert_close(&what, &y, expected, tolerance));
    }
}
