//! Parts of transformers: attention with rotary positions, caches of keys and values, gated MLP.

use super::scope::Scope;
use orate_graph::{
    Activation, AttentionMask, CacheFormat, DType, Graph, GraphError, Op, Rows, Value, Weight,
};

/// Keys and values of the layers of a decoder, `[B, capacity, Hkv·Dh]` each.
///
/// Rows are written to it and read from it, so a prompt in one pass, its continuation and a single row are
/// one network of several sizes.
pub struct Cache(Vec<[Value; 2]>);

impl Cache {
    /// Declares the caches `<name>.keys.<layer>` and `<name>.values.<layer>`, of rows that outlive a run in
    /// `format`. Without one they live as long as a run, in f32.
    ///
    /// # Errors
    /// The graph has buffers of these names.
    pub fn declare(
        g: &mut Graph,
        name: &str,
        layers: usize,
        shape: [usize; 3],
        format: Option<CacheFormat>,
    ) -> Result<Cache, GraphError> {
        let mut declare = |name: String| match format {
            Some(format) => g.cache(&name, format.dtype(), shape),
            None => g.scratch(&name, DType::F32, shape),
        };
        let layer = |i| Ok([declare(format!("{name}.keys.{i}"))?, declare(format!("{name}.values.{i}"))?]);
        (0..layers).map(layer).collect::<Result<_, GraphError>>().map(Cache)
    }

    /// Keys and values of each layer.
    pub fn layers(&mut self) -> impl Iterator<Item = &mut [Value; 2]> {
        self.0.iter_mut()
    }
}

/// Sizes of an attention. `heads` is a multiple of `kv_heads`: several heads of queries may share one of keys
/// and values.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Width of its input.
    pub width: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Attention {
    /// As many heads of queries as of keys and values, `width` wide together.
    pub fn of_heads(heads: usize, width: usize) -> Attention {
        Attention { width, heads, kv_heads: heads, head_dim: width / heads }
    }

    /// Queries `[B, T, H·Dh]`, keys and values `[B, T, Hkv·Dh]` of x, queries and keys rotated by
    /// `positions`. Weights `q_proj`, `k_proj` and `v_proj`.
    ///
    /// # Errors
    /// x has another width.
    pub fn project(
        &self,
        g: &mut Graph,
        w: &Scope<'_>,
        x: Value,
        positions: Value,
    ) -> Result<[Value; 3], GraphError> {
        let q = g.matmul(x, w.matrix("q_proj", self.width, self.heads * self.head_dim))?;
        let k = g.matmul(x, w.matrix("k_proj", self.width, self.kv_heads * self.head_dim))?;
        let v = g.matmul(x, w.matrix("v_proj", self.width, self.kv_heads * self.head_dim))?;
        let q = g.rotary(q, positions, self.heads)?;
        Ok([q, g.rotary(k, positions, self.kv_heads)?, v])
    }

    /// Attention of rows from `first` on, after their keys and values are written to `kept`. Each row sees
    /// those up to its own. Where rows stand at a [`Rows::At`], `shared` may say what they have in common
    /// ([`Op::Attention`]).
    ///
    /// # Errors
    /// An operand has another width than the cache.
    pub fn cached(
        &self,
        g: &mut Graph,
        [q, k, v]: [Value; 3],
        kept: &mut [Value; 2],
        (first, shared): (Rows, Option<Value>),
    ) -> Result<Value, GraphError> {
        let [keys, values] = kept;
        *keys = g.write_rows(*keys, k, first)?;
        *values = g.write_rows(*values, v, first)?;
        let op = self.op(AttentionMask::Cached(first.kind()));
        match (first, shared) {
            (Rows::At(at), Some(shared)) => g.attention_in_common(op, [q, *keys, *values], at, shared),
            _ => g.attention(op, q, *keys, *values, first.operand()),
        }
    }

    /// The attention itself: `softmax(q · k / √Dh) · v`.
    pub fn op(&self, mask: AttentionMask) -> Op {
        Op::Attention {
            heads: self.heads,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            mask,
            relative: None,
            bias: false,
            follows_weights: false,
        }
    }
}

/// `down(silu(gate(x)) · up(x))`, `[B, T, width]` → `[B, T, width]`, with `inner` channels between. Weights
/// `gate_proj` and `up_proj`; `down` `[inner, width]` is given, as a layer scale may be folded into it.
pub fn gated_mlp(
    g: &mut Graph,
    w: &Scope<'_>,
    x: Value,
    [width, inner]: [usize; 2],
    down: Weight,
) -> Result<Value, GraphError> {
    let gate = g.matmul(x, w.matrix("gate_proj", width, inner))?;
    let gate = g.activate(gate, Activation::Silu)?;
    let up = g.matmul(x, w.matrix("up_proj", width, inner))?;
    let y = g.mul(gate, up)?;
    g.matmul(y, down)
}
