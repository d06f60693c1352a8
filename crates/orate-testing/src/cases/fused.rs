//! Graphs in which devices fuse most ops: decoding layers, and rows that are added, sliced and concatenated.

use super::Case;
use crate::random::Random;
use crate::tolerance;
use orate_graph::{
    Activation, AttentionMask, DType, Factor, First, Graph, Norm, Op, Result, Rows, Value, Weight,
};

/// Heads of queries, heads of keys, and width of a head.
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const WIDTH: usize = 16;
/// Width of rows, and of those of a large batch, which kernels for many rows support.
const ROW: usize = 32;
const WIDE_ROW: usize = 64;
/// Rows of a large batch.
const LARGE: std::ops::Range<usize> = 17..140;

/// Rows of a cache.
const CACHE: usize = 12;

/// Limit where caches round: a value near a midpoint may go either way, which changes it by 2⁻⁸ in bf16.
const ROUNDED: f64 = 1e-2;

/// A graph under construction; `weights` makes weight names unique.
struct Builder {
    g: Graph,
    random: Random,
    weights: usize,
    /// Width of rows.
    row: usize,
}

impl Builder {
    fn weight<const N: usize>(&mut self, shape: [usize; N]) -> Weight {
        self.weights += 1;
        Weight::named(format!("w{}", self.weights), shape)
    }

    fn matmul(&mut self, x: Value, n: usize) -> Result<Value> {
        let k = self.g.shape(x).last();
        let w = self.weight([k, n]);
        self.g.matmul(x, w)
    }

    fn is(&mut self, one_of: usize) -> bool {
        self.random.below(one_of) == 0
    }

    /// Sometimes makes a value an output, so that it must not be fused away.
    fn seen(&mut self, v: Value) -> Result<()> {
        if self.is(12) {
            let name = format!("seen {}", self.g.buffers().len());
            self.g.output(&name, v)?;
        }
        Ok(())
    }

    /// A matmul with a bias.
    fn linear(&mut self, x: Value, n: usize) -> Result<Value> {
        let k = self.g.shape(x).last();
        let (w, bias) = (self.weight([k, n]), self.weight([n]));
        self.g.linear(x, w, bias)
    }

    /// Mostly an RMS norm, else a layer norm.
    fn norm(&mut self, x: Value) -> Result<Value> {
        let weight = self.weight([self.row]);
        let y = if self.is(3) {
            let bias = self.weight([self.row]);
            self.g.layer_norm(x, Norm { weight, bias, eps: 1e-5 })?
        } else {
            self.g.rms_norm(x, weight, 1e-5)?
        };
        self.seen(y)?;
        Ok(y)
    }

    /// Queries, keys and values of rows: matmuls in any order, or slices of one.
    fn projected(&mut self, x: Value) -> Result<[Value; 3]> {
        let widths = [HEADS * WIDTH, KEY_HEADS * WIDTH, KEY_HEADS * WIDTH];
        let mut all = [x; 3];
        if self.is(3) {
            let whole = self.linear(x, widths.iter().sum())?;
            let mut start = 0;
            for (to, width) in all.iter_mut().zip(widths) {
                *to = self.g.slice(whole, 2, start, width)?;
                start += width;
            }
        } else {
            let first = self.random.below(3);
            for which in [first, (first + 1) % 3, (first + 2) % 3] {
                all[which] = self.matmul(x, widths[which])?;
            }
        }
        Ok(all)
    }

    /// Splits `x` into heads, mostly with norm and rotary positions.
    fn heads(&mut self, x: Value, count: usize, table: Value) -> Result<Value> {
        let dims = self.g.shape(x).dims().to_vec();
        let mut y = x;
        if !self.is(6) {
            y = self.g.reshape(y, [dims[0], dims[1], count, WIDTH])?;
            let norm = self.weight([WIDTH]);
            y = self.g.rms_norm(y, norm, 1e-6)?;
            self.seen(y)?;
            y = self.g.reshape(y, [dims[0], dims[1], dims[2]])?;
        }
        if self.is(6) { Ok(y) } else { self.g.rotary(y, table, count) }
    }

    /// A transformer layer over caches.
    fn layer(&mut self, x: Value, at: Value, table: Value, number: usize) -> Result<Value> {
        let batch = self.g.shape(x).dims()[0];
        let y = self.norm(x)?;
        let [q, k, v] = self.projected(y)?;
        let (q, k) = (self.heads(q, HEADS, table)?, self.heads(k, KEY_HEADS, table)?);
        let dtype = [DType::F32, DType::F32, DType::F16, DType::BF16][self.random.below(4)];
        let mut caches = vec![];
        for (name, rows) in [("keys", k), ("values", v)] {
            let cache =
                self.g.state(&format!("{name} {number}"), dtype, [batch, CACHE, KEY_HEADS * WIDTH])?;
            caches.push(self.g.write_rows(cache, rows, Rows::At(at))?);
        }
        let mask = AttentionMask::Cached(First::Operand);
        let op = Op::Attention {
            heads: HEADS,
            scale: 0.25,
            mask,
            relative: None,
            bias: false,
            follows_weights: false,
        };
        let y = self.g.attention(op, q, caches[0], caches[1], Some(at))?;
        let y = self.matmul(y, self.row)?;
        let x = self.g.add(x, y)?;
        self.seen(x)?;
        let y = self.norm(x)?;
        if self.is(3) {
            let y = self.linear(y, 2 * self.row)?;
            let y = self.g.activate(y, Activation::GeluTanh)?;
            let y = self.linear(y, self.row)?;
            return self.g.add(x, y);
        }
        // Gate and up.
        let gate = self.matmul(y, 2 * self.row)?;
        let gate = self.g.activate(gate, Activation::Silu)?;
        let up = self.matmul(y, 2 * self.row)?;
        self.seen(up)?;
        let y = self.g.mul(gate, up)?;
        let y = self.matmul(y, self.row)?;
        self.g.add(x, y)
    }

    /// Slices rows of `x`, changes them and concatenates them with others.
    fn moves(&mut self, x: Value) -> Result<Value> {
        let dims = self.g.shape(x).dims().to_vec();
        let axis = if dims[0] > 1 && self.is(2) { 0 } else { 1 };
        let [start, len] = match dims[axis] {
            1 => [0, 1],
            n => [n / 2, n - n / 2],
        };
        let part = self.g.slice(x, axis, start, len)?;
        let a = self.matmul(part, self.row)?;
        let b = self.g.scale(part, Factor::Const(0.5))?;
        self.seen(a)?;
        let both = if self.is(6) { [a, a] } else { [a, b] };
        let y = self.g.concat(&both, axis)?;
        let y = self.g.activate(y, Activation::Tanh)?;
        self.g.slice(y, axis, 0, dims[axis]).or_else(|_| self.g.slice(y, axis, 0, len))
    }

    /// Adds a table row, selected by a scalar, to a matmul.
    fn row(&mut self, x: Value, table: Value) -> Result<Value> {
        let step = self.g.scalar("step");
        let row = self.g.select_row(table, step)?;
        let y = self.matmul(x, self.row)?;
        self.seen(y)?;
        self.g.add_row(y, row)
    }
}

fn graph(seed: u64) -> Result<Graph> {
    let mut random = Random::new(seed);
    let (batch, time) = (1 + random.below(2), 1 + random.below(4));
    // Every second graph has one row, where devices fuse most.
    let ([batch, time], row) = match seed % 8 {
        even if even % 2 == 0 => ([1, 1], ROW),
        7 => ([LARGE.start + random.below(LARGE.len()), 1], WIDE_ROW),
        _ => ([batch, time], ROW),
    };
    let mut b = Builder { g: Graph::new(format!("fused {seed}")), random, weights: 0, row };
    let mut x = b.g.input("x", DType::F32, [batch, time, row])?;
    let at = b.g.input("at", DType::I32, [batch])?;
    let rows = b.g.input("rows", DType::F32, [5, row])?;
    let table = b.g.rope_table(1e4, time, WIDTH, Rows::At(at))?;
    for number in 0..1 + b.random.below(2) {
        x = match b.random.below(4) {
            0 => b.row(x, rows)?,
            1 => b.moves(x)?,
            _ => x,
        };
        if b.g.shape(x).dims() != [batch, time, row] {
            break;
        }
        x = b.layer(x, at, table, number)?;
    }
    b.g.output("y", x)?;
    Ok(b.g)
}

/// Random layers, as fusible as possible.
pub fn fused_cases(count: u64) -> Vec<Case> {
    let case = |seed| {
        let graph = graph(seed).unwrap_or_else(|e| panic!("graph {seed}: {e}"));
        let is_compact = graph.buffers().iter().any(|b| b.dtype.is_compact());
        let tolerance = if is_compact { ROUNDED } else { tolerance::NETWORK };
        Case { tolerance, ..Case::new(format!("fused {seed}"), graph) }
    };
    (0..count).map(case).collect()
}
