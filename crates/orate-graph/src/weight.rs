//! Weights by name, with the transformations that a network declares where it uses them.
//!
//! A [`Weight`] is an expression: a tensor of the checkpoint, or a transpose, product, sum ... of such. It is
//! evaluated once, when a plan is loaded. Two uses of the same expression share one copy on the device,
//! because the expression's text is its key.

use crate::{DType, GraphError, Precision, Result, Shape};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// A weight tensor as an expression over named tensors. Cheap to clone.
#[derive(Clone, PartialEq)]
pub struct Weight(Arc<Expr>);

#[derive(PartialEq)]
struct Expr {
    shape: Shape,
    kind: Kind,
    /// What it is computed from.
    parts: Vec<Weight>,
}

#[derive(PartialEq)]
enum Kind {
    Named(String),
    Fill(f32),
    Transpose,
    Reshape,
    Mul,
    Div,
    Add,
    Reciprocal,
    Sqrt,
    Tanh,
    Exp,
    AtLeast(f32),
    /// The same, and never rounded.
    Exact,
    Permute(Vec<usize>),
    /// First axis in reverse.
    Flip,
    Rows(usize),
    /// Along the first axis.
    Concat,
    SumTail,
    MatMul,
}

impl Weight {
    fn new(shape: impl Into<Shape>, kind: Kind, parts: &[&Weight]) -> Weight {
        let parts = parts.iter().copied().cloned().collect();
        Weight(Arc::new(Expr { shape: shape.into(), kind, parts }))
    }

    /// A function of each element.
    fn map(&self, kind: Kind) -> Weight {
        Weight::new(self.shape().clone(), kind, &[self])
    }

    /// The tensor `name` of the checkpoint, which must have this shape.
    pub fn named(name: impl Into<String>, shape: impl Into<Shape>) -> Weight {
        Weight::new(shape, Kind::Named(name.into()), &[])
    }

    /// A tensor filled with one number.
    pub fn fill(value: f32, shape: impl Into<Shape>) -> Weight {
        Weight::new(shape, Kind::Fill(value), &[])
    }

    /// Shape of the result.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// Swaps the last two axes.
    pub fn transpose(&self) -> Weight {
        let mut dims = self.shape().dims().to_vec();
        let n = dims.len();
        assert!(n >= 2, "transpose of {}: needs two axes", self.shape());
        dims.swap(n - 2, n - 1);
        Weight::new(dims, Kind::Transpose, &[self])
    }

    /// The same elements in another shape of equal length.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Weight {
        let shape = shape.into();
        assert_eq!(shape.len(), self.shape().len(), "reshape of {} to {shape}", self.shape());
        Weight::new(shape, Kind::Reshape, &[self])
    }

    /// Elementwise product. `other` may have extent 1 where `self` has more.
    pub fn mul(&self, other: &Weight) -> Weight {
        self.check_broadcast(other);
        Weight::new(self.shape().clone(), Kind::Mul, &[self, other])
    }

    /// Elementwise quotient. `other` may have extent 1 where `self` has more.
    pub fn div(&self, other: &Weight) -> Weight {
        self.check_broadcast(other);
        Weight::new(self.shape().clone(), Kind::Div, &[self, other])
    }

    /// Elementwise sum. `other` may have extent 1 where `self` has more.
    pub fn add(&self, other: &Weight) -> Weight {
        self.check_broadcast(other);
        Weight::new(self.shape().clone(), Kind::Add, &[self, other])
    }

    /// Every element times `factor`.
    pub fn scale(&self, factor: f32) -> Weight {
        self.mul(&Weight::fill(factor, vec![1; self.shape().rank()]))
    }

    /// `1 / x`
    pub fn reciprocal(&self) -> Weight {
        self.map(Kind::Reciprocal)
    }

    /// `√x`
    pub fn sqrt(&self) -> Weight {
        self.map(Kind::Sqrt)
    }

    /// `tanh(x)`
    pub fn tanh(&self) -> Weight {
        self.map(Kind::Tanh)
    }

    /// `eˣ`
    pub fn exp(&self) -> Weight {
        self.map(Kind::Exp)
    }

    /// `max(x, least)`
    pub fn at_least(&self, least: f32) -> Weight {
        self.map(Kind::AtLeast(least))
    }

    /// The same tensor, by which f32 is multiplied in f32 whatever format others have.
    pub fn exact(&self) -> Weight {
        self.map(Kind::Exact)
    }

    /// Whether [`Weight::exact`] is part of the expression.
    pub fn is_exact(&self) -> bool {
        self.0.kind == Kind::Exact || self.0.parts.iter().any(Weight::is_exact)
    }

    /// Output axis `i` is axis `perm[i]`.
    pub fn permute(&self, perm: &[usize]) -> Weight {
        let dims = self.shape().dims();
        let mut sorted = perm.to_vec();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..dims.len()), "permutation {perm:?} of {}", self.shape());
        let dims: Vec<usize> = perm.iter().map(|p| dims[*p]).collect();
        Weight::new(dims, Kind::Permute(perm.to_vec()), &[self])
    }

    /// The first axis in reverse order.
    pub fn flip(&self) -> Weight {
        assert!(self.shape().rank() > 0, "flip of a number");
        self.map(Kind::Flip)
    }

    /// `count` indices of the first axis, from `first` on.
    pub fn rows(&self, first: usize, count: usize) -> Weight {
        let mut dims = self.shape().dims().to_vec();
        assert!(!dims.is_empty() && first + count <= dims[0], "rows {first} + {count} of {}", self.shape());
        dims[0] = count;
        Weight::new(dims, Kind::Rows(first), &[self])
    }

    /// Joins tensors along their first axis.
    pub fn concat(all: &[Weight]) -> Weight {
        let mut dims = all.first().expect("something to join").shape().dims().to_vec();
        dims[0] = 0;
        for w in all {
            let d = w.shape().dims();
            assert!(d.len() == dims.len() && d[1..] == dims[1..], "joining {} to {dims:?}", w.shape());
            dims[0] += d[0];
        }
        Weight::new(dims, Kind::Concat, &all.iter().collect::<Vec<_>>())
    }

    /// Sum over all axes but the first, in double precision.
    pub fn sum_tail(&self) -> Weight {
        Weight::new([self.shape().dims()[0]], Kind::SumTail, &[self])
    }

    /// Matmul of `[M, K]` and `[K, N]`.
    pub fn matmul(&self, other: &Weight) -> Weight {
        let (a, b) = (self.shape().dims(), other.shape().dims());
        assert!(
            a.len() == 2 && b.len() == 2 && a[1] == b[0],
            "product of {} and {}",
            self.shape(),
            other.shape()
        );
        Weight::new([a[0], b[1]], Kind::MatMul, &[self, other])
    }

    fn check_broadcast(&self, other: &Weight) {
        let (a, b) = (self.shape().dims(), other.shape().dims());
        let fits = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || *b == 1);
        assert!(fits, "{} does not broadcast to {}", other.shape(), self.shape());
    }

    /// Text that is unique to this expression: the key of weight caches.
    pub fn key(&self) -> String {
        self.to_string()
    }

    /// The name of the tensor, where the expression is nothing else.
    pub fn name(&self) -> Option<&str> {
        match &self.0.kind {
            Kind::Named(n) => Some(n),
            _ => None,
        }
    }

    /// The name of the matrix whose columns are this one's rows, where the expression is nothing but its
    /// transpose.
    pub fn transposed_name(&self) -> Option<&str> {
        match (&self.0.kind, &self.0.parts[..]) {
            (Kind::Transpose, [a]) if a.shape().rank() == 2 => a.name(),
            _ => None,
        }
    }

    /// The name of the tensor `[N, K]`, or `[N, K, 1]` as a convolution of one tap has it, whose rows are the
    /// columns of this matrix `[K, N]`, each of which may be multiplied by a number.
    pub fn columns_name(&self) -> Option<&str> {
        let (Kind::Transpose, [rows]) = (&self.0.kind, &self.0.parts[..]) else { return None };
        let &[n, k] = rows.shape().dims() else { return None };
        let mut rows = rows;
        if let (Kind::Mul, [matrix, factors]) = (&rows.0.kind, &rows.0.parts[..])
            && (matrix.shape(), factors.shape().dims()) == (rows.shape(), &[n, 1])
        {
            rows = matrix;
        }
        if let (Kind::Reshape, [kernel]) = (&rows.0.kind, &rows.0.parts[..])
            && *kernel.shape().dims() == [n, k, 1]
        {
            rows = kernel;
        }
        rows.name()
    }

    /// The first tensor name in the expression, for labels.
    pub fn first_name(&self) -> Option<&str> {
        self.name().or_else(|| self.0.parts.iter().find_map(Weight::first_name))
    }

    /// Notifies the source that the expression was evaluated.
    pub fn release(&self, source: &dyn WeightLoader) {
        self.visit_named(&mut |name, _| source.release(name));
    }

    /// Calls `f` with the name and shape of every tensor in the expression.
    pub fn visit_named<'a>(&'a self, f: &mut dyn FnMut(&'a str, &'a Shape)) {
        if let Some(name) = self.name() {
            f(name, self.shape());
        }
        self.0.parts.iter().for_each(|w| w.visit_named(f));
    }

    /// The table as `source` has it, if that is in half precision: rows of whole words of four bytes, so that
    /// a device may keep it as it is.
    pub fn halves<'s>(&self, source: &'s dyn WeightLoader) -> Option<Halves<'s>> {
        let halves = source.halves(self.name()?)?;
        (halves.shape == *self.shape() && self.shape().last().is_multiple_of(2)).then_some(halves)
    }

    /// The bytes of a table that was found in a type before, by [`Self::halves`].
    ///
    /// # Errors
    /// The source has it in another type now.
    pub fn halves_in<'s>(&self, dtype: DType, source: &'s dyn WeightLoader) -> Result<&'s [u8]> {
        let halves = self.halves(source).filter(|halves| halves.dtype == dtype);
        halves.map(|halves| halves.bytes).ok_or_else(|| GraphError::Weight {
            name: self.first_name().unwrap_or("-").to_owned(),
            problem: format!("was {dtype} before, and is no more; open the model anew"),
        })
    }

    /// The blocks of a matrix `[K, N]` whose columns are rows of a file, if that has them in this format.
    pub fn column_blocks<'s>(&self, format: Precision, source: &'s dyn WeightLoader) -> Option<Blocks<'s>> {
        let blocks = source.blocks(self.transposed_name()?)?;
        let &[k, n] = self.shape().dims() else { return None };
        (blocks.format == format && blocks.shape == [n, k].into() && k.is_multiple_of(format.block()))
            .then_some(blocks)
    }

    /// Computes the tensor. Named tensors are borrowed from `source` where it can lend them, transposes are
    /// strides, and everything else is a new tensor.
    ///
    /// # Errors
    /// The source lacks a tensor, cannot decode it, or has it in another shape.
    pub fn evaluate<'s>(&self, source: &'s dyn WeightLoader) -> Result<Tensor<'s>> {
        let shape = self.shape();
        let part = |i: usize| self.0.parts[i].evaluate(source);
        let whole = |i: usize| part(i).map(Tensor::contiguous);
        Ok(match &self.0.kind {
            Kind::Named(name) => {
                let t = source.load(name)?;
                if t.shape != *shape {
                    return Err(GraphError::WeightShape {
                        name: name.clone(),
                        got: t.shape,
                        needed: shape.clone(),
                    });
                }
                t
            }
            Kind::Fill(x) => Tensor::new(shape.clone(), vec![*x; shape.len()]),
            Kind::Transpose => part(0)?.transpose(),
            Kind::Reshape => part(0)?.reshape(shape.clone()),
            Kind::Mul => zip(part(0)?, &part(1)?, |a, b| a * b),
            Kind::Div => zip(part(0)?, &part(1)?, |a, b| a / b),
            Kind::Add => zip(part(0)?, &part(1)?, |a, b| a + b),
            Kind::Reciprocal => map(part(0)?, |x| 1.0 / x),
            Kind::Sqrt => map(part(0)?, f32::sqrt),
            // In f64, since libraries of systems and browsers round the last bit of f32 functions
            // differently.
            Kind::Tanh => map(part(0)?, |x| f64::from(x).tanh() as f32),
            Kind::Exp => map(part(0)?, |x| f64::from(x).exp() as f32),
            Kind::AtLeast(least) => map(part(0)?, |x| x.max(*least)),
            Kind::Exact => part(0)?,
            Kind::Permute(perm) => {
                let t = part(0)?;
                let strides = perm.iter().map(|p| t.strides[*p]).collect();
                Tensor { shape: shape.clone(), strides, data: t.data }
            }
            Kind::Flip => {
                let t = whole(0)?;
                let row = (t.data.len() / shape.dims()[0].max(1)).max(1);
                let rows = t.data.chunks_exact(row).rev().flatten();
                Tensor::new(shape.clone(), rows.copied().collect::<Vec<_>>())
            }
            Kind::Rows(first) => {
                let t = whole(0)?;
                let row = t.data.len() / t.shape.dims()[0].max(1);
                Tensor::new(shape.clone(), t.data[first * row..][..shape.len()].to_vec())
            }
            Kind::Concat => {
                let mut data = Vec::with_capacity(shape.len());
                for i in 0..self.0.parts.len() {
                    data.extend_from_slice(&whole(i)?.data);
                }
                Tensor::new(shape.clone(), data)
            }
            Kind::SumTail => {
                let t = whole(0)?;
                let n = (t.data.len() / shape.len().max(1)).max(1);
                let sum = |row: &[f32]| row.iter().map(|&x| f64::from(x)).sum::<f64>() as f32;
                Tensor::new(shape.clone(), t.data.chunks_exact(n).map(sum).collect::<Vec<_>>())
            }
            Kind::MatMul => {
                let (a, b) = (whole(0)?, whole(1)?);
                let (k, n) = (b.shape.dims()[0], b.shape.dims()[1]);
                let mut y = vec![0f32; shape.len()];
                for (row, out) in a.data.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
                    for (x, w) in row.iter().zip(b.data.chunks_exact(n)) {
                        out.iter_mut().zip(w).for_each(|(o, w)| *o += x * w);
                    }
                }
                Tensor::new(shape.clone(), y)
            }
        })
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |i: usize| &self.0.parts[i];
        match &self.0.kind {
            Kind::Named(n) => f.write_str(n),
            // The text is the key: tensors of one number and different sizes are different weights.
            Kind::Fill(x) if self.shape().len() == 1 => write!(f, "{x}"),
            Kind::Fill(x) => write!(f, "{x}{}", self.shape()),
            Kind::Transpose => write!(f, "{}ᵀ", part(0)),
            Kind::Reshape => write!(f, "{}{}", part(0), self.shape()),
            Kind::Mul => write!(f, "({} × {})", part(0), part(1)),
            Kind::Div => write!(f, "({} / {})", part(0), part(1)),
            Kind::Add => write!(f, "({} + {})", part(0), part(1)),
            Kind::Reciprocal => write!(f, "1/({})", part(0)),
            Kind::Sqrt => write!(f, "√({})", part(0)),
            Kind::Tanh => write!(f, "tanh({})", part(0)),
            Kind::Exp => write!(f, "exp({})", part(0)),
            Kind::AtLeast(x) => write!(f, "max({}, {x})", part(0)),
            Kind::Exact => write!(f, "exact({})", part(0)),
            Kind::Permute(perm) => write!(f, "{}⟨{perm:?}⟩", part(0)),
            Kind::Flip => write!(f, "flip({})", part(0)),
            Kind::Rows(first) => write!(f, "{}[{first} … {}]", part(0), first + self.shape().dims()[0]),
            Kind::Concat => {
                let all: Vec<String> = self.0.parts.iter().map(Weight::to_string).collect();
                write!(f, "[{}]", all.join("; "))
            }
            Kind::SumTail => write!(f, "Σ({})", part(0)),
            Kind::MatMul => write!(f, "({} · {})", part(0), part(1)),
        }
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}: {}", self.shape())
    }
}

/// Where tensors come from. Model files implement this.
pub trait WeightLoader: Sync {
    /// The tensor called `name`, as floats.
    ///
    /// # Errors
    /// There is no such tensor, or it cannot be decoded.
    fn load(&self, name: &str) -> Result<Tensor<'_>>;

    /// Reads row `index` of the matrix `name`, where rows can be read one by one; returns whether they can.
    ///
    /// # Errors
    /// There is no such tensor or row, or its rows are not as long as `out`.
    fn read_row(&self, name: &str, index: usize, out: &mut [f32]) -> Result<bool> {
        let _ = (name, index, out);
        Ok(false)
    }

    /// Shape of the tensor called `name`, where it is known without reading it.
    fn shape(&self, name: &str) -> Option<Shape> {
        let _ = name;
        None
    }

    /// The tensor called `name` as its file has it, where that is floats which need no copy.
    fn lend(&self, name: &str) -> Option<Tensor<'_>> {
        let _ = name;
        None
    }

    /// The tensor called `name` as its file has it, where it is kept in half precision.
    fn halves(&self, name: &str) -> Option<Halves<'_>> {
        let _ = name;
        None
    }

    /// The tensor called `name` as its file has it, where that is blocks.
    fn blocks(&self, name: &str) -> Option<Blocks<'_>> {
        let _ = name;
        None
    }

    /// Says that the tensor called `name` was read and is not needed for now, so that what was read of its
    /// file may leave memory.
    fn release(&self, name: &str) {
        let _ = name;
    }
}

/// A tensor of half-precision floats as its file has it.
#[derive(Clone, Debug)]
pub struct Halves<'a> {
    /// [`DType::F16`] or [`DType::BF16`].
    pub dtype: DType,
    /// Extents, slowest first.
    pub shape: Shape,
    /// Two bytes for each element, in logical order, the lower one first.
    pub bytes: &'a [u8],
}

/// A tensor of blocks as its file has it, in ggml's layout.
#[derive(Clone, Debug)]
pub struct Blocks<'a> {
    /// A format of blocks.
    pub format: Precision,
    /// Extents, slowest first; rows are whole blocks.
    pub shape: Shape,
    /// The blocks in logical order.
    pub bytes: &'a [u8],
}

impl Blocks<'_> {
    /// Scale of block `block` of row `row` of a matrix in `q8_0` or `q4_0`; 0 beyond its ends.
    pub fn scale(&self, row: usize, block: usize) -> half::f16 {
        let blocks = self.shape.last() / self.format.block();
        let size = self.bytes.len() / (self.shape.len() / self.format.block()).max(1);
        let at = (row * blocks + block) * size;
        match self.bytes.get(at..at + 2) {
            Some(&[a, b]) if block < blocks => half::f16::from_le_bytes([a, b]),
            _ => half::f16::ZERO,
        }
    }
}

/// A host tensor of floats, possibly a transposed view.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Extents, slowest first.
    pub shape: Shape,
    /// Distance in elements between neighbors along each axis.
    pub strides: Vec<usize>,
    /// Elements.
    pub data: Cow<'a, [f32]>,
}

impl<'a> Tensor<'a> {
    /// A contiguous tensor of elements that it owns or borrows.
    pub fn new(shape: impl Into<Shape>, data: impl Into<Cow<'a, [f32]>>) -> Self {
        let (shape, data) = (shape.into(), data.into());
        assert_eq!(shape.len(), data.len(), "tensor {shape} from {} elements", data.len());
        Tensor { strides: contiguous_strides(&shape), shape, data }
    }

    /// Swaps the last two axes without moving anything.
    pub fn transpose(mut self) -> Self {
        let n = self.strides.len();
        let mut dims = self.shape.dims().to_vec();
        dims.swap(n - 2, n - 1);
        self.strides.swap(n - 2, n - 1);
        Tensor { shape: dims.into(), ..self }
    }

    /// The same elements in another shape; copies if the view is not contiguous.
    pub fn reshape(self, shape: Shape) -> Self {
        // Axes of extent 1 come and go without a copy, so that `[out, in, 1]` stays a view as `[out, in]`.
        let kept = |s: &Shape, st: &[usize]| -> (Vec<usize>, Vec<usize>) {
            s.dims().iter().zip(st).filter(|(d, _)| **d != 1).map(|(d, s)| (*d, *s)).unzip()
        };
        let (dims, strides) = kept(&self.shape, &self.strides);
        let wanted: Vec<usize> = shape.dims().iter().copied().filter(|d| *d != 1).collect();
        if dims == wanted {
            let mut it = strides.into_iter();
            let strides =
                shape.dims().iter().map(|d| if *d == 1 { 1 } else { it.next().unwrap_or(1) }).collect();
            return Tensor { shape, strides, data: self.data };
        }
        let t = self.contiguous();
        Tensor { strides: contiguous_strides(&shape), shape, data: t.data }
    }

    /// Whether elements lie in logical order.
    pub fn is_contiguous(&self) -> bool {
        let plain = contiguous_strides(&self.shape);
        self.shape.dims().iter().zip(self.strides.iter().zip(&plain)).all(|(d, (a, b))| *d == 1 || a == b)
    }

    /// The tensor in logical order, copied if need be.
    pub fn contiguous(self) -> Self {
        if self.is_contiguous() {
            return self;
        }
        let mut out = Vec::with_capacity(self.shape.len());
        let dims = self.shape.dims();
        let (inner, inner_stride) = (dims[dims.len() - 1], self.strides[dims.len() - 1]);
        let mut index = vec![0usize; dims.len() - 1];
        'rows: loop {
            let start: usize = index.iter().zip(&self.strides).map(|(i, s)| i * s).sum();
            out.extend((0..inner).map(|i| self.data[start + i * inner_stride]));
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                if index[axis] < dims[axis] {
                    continue 'rows;
                }
                index[axis] = 0;
            }
            break;
        }
        Tensor::new(self.shape, out)
    }
}

fn contiguous_strides(shape: &Shape) -> Vec<usize> {
    let mut strides = vec![1; shape.rank()];
    for i in (1..shape.rank()).rev() {
        strides[i - 1] = strides[i] * shape.dims()[i];
    }
    strides
}

/// Applies `f` without changing the order in which the elements of `a` lie.
fn map<'a>(a: Tensor<'a>, f: impl Fn(f32) -> f32) -> Tensor<'a> {
    let data = a.data.iter().map(|&x| f(x)).collect();
    Tensor { data: Cow::Owned(data), ..a }
}

/// `f(a, b)` where `b` broadcasts to `a`.
fn zip<'a>(a: Tensor<'a>, b: &Tensor<'_>, f: impl Fn(f32, f32) -> f32) -> Tensor<'a> {
    let a = a.contiguous();
    let dims = a.shape.dims();
    let step = |axis: usize| if b.shape.dims()[axis] == 1 { 0 } else { b.strides[axis] };
    let last = dims.len() - 1;
    let (inner, inner_step) = (dims[last], step(last));
    let mut out = Vec::with_capacity(a.data.len());
    for (row, chunk) in a.data.chunks_exact(inner.max(1)).enumerate() {
        let (mut rest, mut start) = (row, 0);
        for axis in (0..last).rev() {
            start += rest % dims[axis] * step(axis);
            rest /= dims[axis];
        }
        if inner_step == 0 {
            let y = b.data[start];
            out.extend(chunk.iter().map(|&x| f(x, y)));
        } else {
            out.extend(chunk.iter().enumerate().map(|(i, &x)| f(x, b.data[start + i * inner_step])));
        }
    }
    Tensor::new(a.shape.clone(), out)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;
    impl WeightLoader for One {
        fn load(&self, name: &str) -> Result<Tensor<'_>> {
            match name {
                "a" => Ok(Tensor::new([2, 3], vec![1., 2., 3., 4., 5., 6.])),
                "s" => Ok(Tensor::new([3], vec![10., 20., 30.])),
                _ => Err(GraphError::Weight { name: name.into(), problem: "there is no such tensor".into() }),
            }
        }
    }

    fn value(w: &Weight) -> Vec<f32> {
        w.evaluate(&One).expect("evaluates").contiguous().data.to_vec()
    }

    #[test]
    fn transformations() {
        let a = Weight::named("a", [2, 3]);
        let s = Weight::named("s", [3]);
        assert_eq!(value(&a.transpose()), [1., 4., 2., 5., 3., 6.]);
        assert_eq!(value(&a.mul(&s.reshape([1, 3]))), [10., 40., 90., 40., 100., 180.]);
        assert_eq!(value(&a.transpose().mul(&s.reshape([3, 1]))), [10., 40., 40., 100., 90., 180.]);
        assert_eq!(value(&a.div(&s.reshape([1, 3]))), [0.1, 0.1, 0.1, 0.4, 0.25, 0.2]);
        assert_eq!(value(&a.sum_tail()), [6., 15.]);
        assert_eq!(value(&a.matmul(&a.transpose())), [14., 32., 32., 77.]);
        assert_eq!(value(&a.scale(2.0).reshape([3, 2])), [2., 4., 6., 8., 10., 12.]);
        assert_eq!(value(&s.reciprocal()), [0.1, 0.05, 1.0 / 30.0]);
        assert_eq!(value(&s.scale(0.0).exp()), [1.0; 3]);
        // Rounded once from the exact value.
        assert_eq!(value(&s.scale(0.05).exp()), [1.648_721_2, std::f32::consts::E, 4.481_689]);
        assert_eq!(value(&s.scale(0.05).tanh()), [0.462_117_17, 0.761_594_2, 0.905_148_27]);
        assert_eq!(value(&s.at_least(15.0)), [15., 20., 30.]);
        assert_eq!(value(&s.exact()), [10., 20., 30.]);
        assert_eq!(value(&a.flip()), [4., 5., 6., 1., 2., 3.]);
        assert_eq!(value(&a.rows(1, 1)), [4., 5., 6.]);
        assert_eq!(value(&a.transpose().rows(1, 2)), [2., 5., 3., 6.]);
        assert_eq!(a.rows(0, 1).key(), "a[0 … 1]");
        assert_eq!(value(&a.transpose().flip()), [3., 6., 2., 5., 1., 4.]);
        assert_eq!(value(&a.reshape([1, 2, 3]).permute(&[2, 0, 1])), [1., 4., 2., 5., 3., 6.]);
        let joined = Weight::concat(&[a.clone(), s.reshape([1, 3])]);
        assert_eq!(joined.shape().dims(), [3, 3]);
        assert_eq!(value(&joined), [1., 2., 3., 4., 5., 6., 10., 20., 30.]);
        assert_eq!(joined.to_string(), "[a; s[1, 3]]");
    }

    #[test]
    fn the_text_tells_weights_apart() {
        let fill = |shape: [usize; 3]| Weight::fill(0.0, shape).key();
        assert_eq!(fill([1, 2, 3]), "0[1, 2, 3]");
        assert_ne!(fill([1, 2, 3]), fill([1, 3, 2]));
        assert_eq!(Weight::named("a", [2, 3]).scale(0.5).key(), "(a × 0.5)");
    }

    #[test]
    fn unit_axes_reshape_without_a_copy() {
        let t = Tensor::new([2, 3, 1], vec![1., 2., 3., 4., 5., 6.]).reshape([2, 3].into()).transpose();
        assert_eq!((t.strides.as_slice(), t.shape.dims()), (&[1, 3][..], &[3, 2][..]));
    }

    #[test]
    fn columns_of_matrices_have_the_name_of_their_tensor() {
        let (matrix, kernel) = (Weight::named("m", [3, 2]), Weight::named("k", [3, 2, 1]));
        let rows = |w: &Weight| w.reshape([3, 2]);
        let scaled = rows(&kernel).mul(&Weight::named("scale", [3, 1]));
        let all = [matrix.transpose(), rows(&kernel).transpose(), scaled.transpose()];
        assert_eq!(all.each_ref().map(Weight::columns_name), [Some("m"), Some("k"), Some("k")]);
        let taps = Weight::named("taps", [3, 1, 2]);
        let others = [matrix.clone(), rows(&taps).transpose(), matrix.mul(&matrix).transpose()];
        assert_eq!(others.each_ref().map(Weight::columns_name), [None; 3]);
    }

    #[test]
    fn wrong_shape_names_the_weight() {
        let e = Weight::named("a", [3, 2]).evaluate(&One).expect_err("shape differs");
        assert_eq!(
            e.to_string(),
            "weight `a` is [2, 3] but the network needs [3, 2]; check that config and weights come from the \
             same model"
        );
    }
}
