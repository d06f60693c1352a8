//! Layers at the sizes of the estimator of Chatterbox and of decoders, whose steps GPUs fuse.

use super::Case;
use crate::ScalarValue;
use orate_graph::{
    Activation, AttentionMask, ConvGeometry, DType, First, Graph, Norm, Op, Result, Rows, Value, Weight,
};

fn vector(name: &str, n: usize) -> Weight {
    Weight::named(name, [n])
}

fn matrix(name: &str, k: usize, n: usize) -> Weight {
    Weight::named(name, [k, n])
}

fn norm(name: &str) -> Norm {
    Norm {
        weight: vector(&format!("{name}_gain"), 256),
        bias: vector(&format!("{name}_shift"), 256),
        eps: 1e-5,
    }
}

/// Norm, matmul, GELU and matmul. With `outputs`, the values between them are outputs, too.
///
/// # Errors
/// x is not [.., 256].
pub fn feed_forward(g: &mut Graph, x: Value, layer: &str, outputs: bool) -> Result<Value> {
    let matrix = |name: &str, k, n| matrix(&format!("{layer}{name}"), k, n);
    let vector = |name: &str, n| vector(&format!("{layer}{name}"), n);
    let normed = g.layer_norm(x, norm(&format!("{layer}second")))?;
    let y = g.linear(normed, matrix("up", 256, 1024), vector("up_bias", 1024))?;
    let hidden = g.activate(y, Activation::Gelu)?;
    if outputs {
        g.output("normed", normed)?;
        g.output("hidden", hidden)?;
    }
    let y = g.linear(hidden, matrix("down", 1024, 256), vector("down_bias", 256))?;
    g.add(y, x)
}

/// Two layers of the estimator of Chatterbox.
#[must_use]
pub fn transformer([rows, time]: [usize; 2]) -> Case {
    let build = |g: &mut Graph| -> Result<()> {
        let mut x = g.input("x", DType::F32, [rows, time, 256])?;
        let lens = g.input("lens", DType::I32, [rows])?;
        for layer in 0..2 {
            let y = g.layer_norm(x, norm(&format!("{layer}.first")))?;
            let [q, k, v] =
                ["q", "k", "v"].map(|name| g.matmul(y, matrix(&format!("{layer}.{name}"), 256, 512)));
            let (scale, mask, relative, bias) = (0.125, AttentionMask::None, None, false);
            let op = Op::Attention { heads: 8, scale, mask, relative, bias, follows_weights: true };
            let y = g.attention(op, q?, k?, v?, Some(lens))?;
            let out = matrix(&format!("{layer}.out"), 512, 256);
            let y = g.linear(y, out, vector(&format!("{layer}.out_bias"), 256))?;
            x = g.add(y, x)?;
            x = feed_forward(g, x, &format!("{layer}."), false)?;
        }
        g.output("y", x)
    };
    let mut g = Graph::new("transformer");
    build(&mut g).expect("builds");
    let lens: Vec<i32> = (0..rows).map(|row| (time - 7 * row) as i32).collect();
    Case::new(format!("transformer, {rows} times {time} rows"), g).with("lens", lens)
}

/// What the estimator of Chatterbox has between transformer layers: two convolutions, each with a norm, the
/// first with a row of a table.
#[must_use]
pub fn residual_block([batch, time]: [usize; 2], edges: ConvGeometry) -> Case {
    let build = |g: &mut Graph| -> Result<()> {
        let x = g.input("x", DType::F32, [batch, time, 256])?;
        let block = |g: &mut Graph, x: Value, name: &str| {
            let y = g.conv1d(x, matrix(&format!("{name}.conv"), 3 * 256, 256), edges)?;
            let y = g.add_bias(y, vector(&format!("{name}.bias"), 256))?;
            let y = g.layer_norm(y, norm(name))?;
            g.activate(y, Activation::Mish)
        };
        let y = block(g, x, "first")?;
        let (rows, step) = (g.input("rows", DType::F32, [4, 256])?, g.scalar("step"));
        let row = g.select_row(rows, step)?;
        let y = g.add_row(y, row)?;
        let y = block(g, y, "second")?;
        let x = g.linear(x, matrix("last", 256, 256), vector("last_bias", 256))?;
        let y = g.add(x, y)?;
        g.output("y", y)
    };
    let mut g = Graph::new("residual block");
    build(&mut g).expect("builds");
    let case = Case::new(format!("residual block, {batch} times {time} rows, {edges:?}"), g);
    case.with_scalar("step", ScalarValue::U64(2))
}

/// Residual units of a codec, two of which keep the history of a stream, and a convolution that reads a
/// Snake.
#[must_use]
pub fn codec_units([batch, time, width]: [usize; 3]) -> Case {
    let snake = |g: &mut Graph, x: Value, name: &str| {
        g.snake(x, vector(&format!("{name}.frequency"), width), vector(&format!("{name}.gain"), width))
    };
    let build = |g: &mut Graph| -> Result<()> {
        let mut x = g.input("x", DType::F32, [batch, time, width])?;
        for (dilation, streams) in [(3, true), (9, true), (1, false)] {
            let of = |name: &str| format!("{name}{dilation}");
            let (y, weight) = (snake(g, x, &of("before"))?, matrix(&of("conv"), 7 * width, width));
            let y = if streams {
                let geometry = ConvGeometry::streaming(7, dilation);
                let history = g.state(&of("history"), DType::F32, [batch, geometry.left, width])?;
                let next = g.slice(y, 1, time - geometry.left, geometry.left)?;
                g.update(&of("history"), next)?;
                g.conv1d_after(history, y, weight, geometry)?
            } else {
                g.conv1d(y, weight, ConvGeometry::causal(7, dilation).with_zeros())?
            };
            let y = g.add_bias(y, vector(&of("conv_bias"), width))?;
            let y = snake(g, y, &of("after"))?;
            let y = g.linear(y, matrix(&of("last"), width, width), vector(&of("last_bias"), width))?;
            x = g.add(x, y)?;
        }
        let y = snake(g, x, "next")?;
        let y = g.conv1d(y, matrix("out", 7 * width, width), ConvGeometry::causal(7, 1).with_zeros())?;
        g.output("y", y)
    };
    let name = format!("residual units of {width} channels, {batch} times {time} rows");
    let mut g = Graph::new(&name);
    build(&mut g).expect("builds");
    Case::new(name, g)
}

/// Attention of Chatterbox's encoder, with positions relative to the query.
#[must_use]
pub fn relative_attention([batch, time]: [usize; 2]) -> Case {
    let name = format!("relative positions of {batch} × {time}");
    let mut g = Graph::new(&name);
    let x = g.input("x", DType::F32, [batch, time, 512]).expect("declares");
    let offsets = g.input("offsets", DType::F32, [1, 2 * time - 1, 512]).expect("declares");
    let lens = g.input("lens", DType::I32, [batch]).expect("declares");
    let y = (|| {
        let vector = |name: &str| Weight::named(name, [512]);
        let matrix = |name: &str| Weight::named(name, [512, 512]);
        let y = g.layer_norm(x, Norm { weight: vector("gain"), bias: vector("shift"), eps: 1e-5 })?;
        let q = g.matmul(y, matrix("q"))?;
        let (k, v) = (g.linear(y, matrix("k"), vector("bk"))?, g.linear(y, matrix("v"), vector("bv"))?);
        let (of_keys, of_offsets) = (g.add_bias(q, vector("u"))?, g.add_bias(q, vector("w"))?);
        let p = g.matmul(offsets, matrix("p"))?;
        let scores = g.relative_scores(of_offsets, p, 8, 0.125)?;
        let (mask, relative) = (AttentionMask::None, None);
        let op = Op::Attention { heads: 8, scale: 0.125, mask, relative, bias: true, follows_weights: true };
        let y = g.biased_attention(op, [of_keys, k, v, scores], Some(lens))?;
        g.matmul(y, matrix("out"))
    })();
    g.output("y", y.expect("builds")).expect("declares");
    let lens: Vec<i32> = (0..batch).map(|row| (time - 7 * row) as i32).collect();
    Case::new(name, g).with("lens", lens)
}

/// Sizes of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// How many.
    pub layers: usize,
    /// Width of rows.
    pub width: usize,
    /// Heads of queries and of keys, and their width.
    pub heads: [usize; 3],
    /// Channels of the hidden layer.
    pub hidden: usize,
    /// Whether heads of queries and keys have norms.
    pub norms_heads: bool,
    /// Channels of the head at the end.
    pub head: usize,
}

/// The predictor of Qwen3-TTS, and T3 of Chatterbox, with fewer layers.
pub const DECODERS: [Decoder; 2] = [
    Decoder { layers: 2, width: 1024, heads: [16, 8, 128], hidden: 3072, norms_heads: true, head: 2048 },
    Decoder { layers: 2, width: 1024, heads: [16, 16, 64], hidden: 4096, norms_heads: false, head: 8194 },
];

/// One row for each of `batch` utterances, whose caches have `capacity` rows and hold any number of them.
#[must_use]
pub fn decoder(d: Decoder, batch: usize, capacity: usize, kept: DType) -> Case {
    let [heads, key_heads, head_width] = d.heads;
    let build = |g: &mut Graph| -> Result<()> {
        let mut x = g.input("x", DType::F32, [batch, 1, d.width])?;
        let at = g.input("at", DType::I32, [batch])?;
        let table = g.rope_table(1e4, 1, head_width, Rows::At(at))?;
        for layer in 0..d.layers {
            let matrix = |name: &str, k, n| matrix(&format!("{layer}.{name}"), k, n);
            let vector = |name: &str, n| vector(&format!("{layer}.{name}"), n);
            let y = g.rms_norm(x, vector("first", d.width), 1e-6)?;
            let head = |g: &mut Graph, name: &str, count: usize, rotates: bool| {
                let mut y = g.matmul(y, matrix(name, d.width, count * head_width))?;
                if d.norms_heads && rotates {
                    y = g.reshape(y, [batch, 1, count, head_width])?;
                    y = g.rms_norm(y, vector(&format!("{name}_norm"), head_width), 1e-6)?;
                    y = g.reshape(y, [batch, 1, count * head_width])?;
                }
                if rotates { g.rotary(y, table, count) } else { Ok(y) }
            };
            // In the order of the network of Qwen3-TTS.
            let v = head(g, "v", key_heads, false)?;
            let q = head(g, "q", heads, true)?;
            let k = head(g, "k", key_heads, true)?;
            let mut caches = vec![];
            for (name, rows) in [("keys", k), ("values", v)] {
                let shape = [batch, capacity, key_heads * head_width];
                let cache = g.state(&format!("{name} {layer}"), kept, shape)?;
                caches.push(g.write_rows(cache, rows, Rows::At(at))?);
            }
            let (mask, scale) = (AttentionMask::Cached(First::Operand), (head_width as f32).powf(-0.5));
            let (relative, bias, follows_weights) = (None, false, false);
            let op = Op::Attention { heads, scale, mask, relative, bias, follows_weights };
            let y = g.attention(op, q, caches[0], caches[1], Some(at))?;
            let y = g.matmul(y, matrix("out", heads * head_width, d.width))?;
            x = g.add(x, y)?;
            let y = g.rms_norm(x, vector("second", d.width), 1e-6)?;
            let gate = g.matmul(y, matrix("gate", d.width, d.hidden))?;
            let gate = g.activate(gate, Activation::Silu)?;
            let up = g.matmul(y, matrix("up", d.width, d.hidden))?;
            let y = g.mul(gate, up)?;
            let y = g.matmul(y, matrix("down", d.hidden, d.width))?;
            x = g.add(x, y)?;
        }
        let y = g.rms_norm(x, vector("last", d.width), 1e-6)?;
        let y = g.matmul(y, matrix("head", d.width, d.head))?;
        g.output("y", y)
    };
    let mut g = Graph::new("decoder");
    build(&mut g).expect("builds");
    let at: Vec<i32> = (0..batch).map(|row| (row * 7 % capacity) as i32).collect();
    Case::new(format!("decoder of {heads} heads, {batch} rows, {kept}"), g).with("at", at)
}
