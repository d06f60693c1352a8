//! The formula of each op in plain loops and double precision; callers round results.
//!
//! Simplicity goes before speed. The one exception is matmul, which walks weights row by row, so that tests
//! of whole networks finish.

use orate_graph::{AttentionMask, ConvGeometry, Edges, First, Padding, RopeScaling};

/// Activations on one number; see [`orate_graph::Activation`].
pub(crate) fn gelu(x: f64) -> f64 {
    x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

/// GELU by a hyperbolic tangent, as in GPT-2.
pub(crate) fn gelu_tanh(x: f64) -> f64 {
    x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// `x · tanh(log(1 + eˣ))`
pub(crate) fn mish(x: f64) -> f64 {
    x * x.exp().ln_1p().tanh()
}

/// `x / (1 + e⁻ˣ)`
pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// `x` if positive, else `eˣ − 1`
pub(crate) fn elu(x: f64) -> f64 {
    if x > 0.0 { x } else { x.exp_m1() }
}

/// `2/√π · e^(−x²) · Σ 2ⁿ x^(2n+1) / (2n+1)!!`: all terms have the same sign, so nothing cancels (Abramowitz
/// and Stegun 7.1.6).
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum(); // 1 − erf(6) is 2e-17
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-18 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// x `[rows, K]` · w `[K, N]`
pub(crate) fn matmul(x: &[f32], w: &[f32], k: usize, n: usize) -> Vec<f64> {
    let rows = x.len() / k;
    let mut y = vec![0.0; rows * n];
    for r in 0..rows {
        for i in 0..k {
            let a = f64::from(x[r * k + i]);
            for j in 0..n {
                y[r * n + j] += a * f64::from(w[i * n + j]);
            }
        }
    }
    y
}

/// A sequence `[B, T, C]`, with [`Edges::History`] the history `[B, left, C]` before it, and with
/// [`Edges::Lengths`] the length of each.
pub(crate) struct Sequence<'a> {
    pub x: &'a [f32],
    pub history: &'a [f32],
    pub lengths: &'a [i32],
    pub time: usize,
    pub channels: usize,
}

impl Sequence<'_> {
    /// Input row of tap `tap` for output row `t`.
    fn tapped(&self, b: usize, t: usize, tap: usize, g: &ConvGeometry) -> Vec<f32> {
        let (at, c) = (t + tap * g.dilation, self.channels);
        let is_inside = (g.left..g.left + self.time).contains(&at);
        match g.edges {
            Edges::History if at < g.left => self.history[(b * g.left + at) * c..][..c].to_vec(),
            Edges::Zero if !is_inside => vec![0.0; c],
            _ => {
                let end =
                    self.lengths.get(b).map_or(self.time, |len| (*len).clamp(1, self.time as i32) as usize);
                self.x[(b * self.time + at.saturating_sub(g.left).min(end - 1)) * c..][..c].to_vec()
            }
        }
    }
}

/// w `[taps · C, N]` → `[B, T, N]`
pub(crate) fn conv1d(s: &Sequence<'_>, w: &[f32], g: &ConvGeometry, n: usize) -> Vec<f64> {
    let (time, c) = (s.time, s.channels);
    let batch = s.x.len() / (time * c);
    let mut y = vec![0.0; batch * time * n];
    for b in 0..batch {
        for t in 0..time {
            for tap in 0..g.taps {
                let row = s.tapped(b, t, tap, g);
                for i in 0..c {
                    let a = f64::from(row[i]);
                    for j in 0..n {
                        y[(b * time + t) * n + j] += a * f64::from(w[(tap * c + i) * n + j]);
                    }
                }
            }
        }
    }
    y
}

/// w `[taps, C]`, bias `[C]`
pub(crate) fn depthwise(s: &Sequence<'_>, w: &[f32], bias: &[f32], g: &ConvGeometry) -> Vec<f64> {
    let (time, c) = (s.time, s.channels);
    let batch = s.x.len() / (time * c);
    let mut y = vec![0.0; s.x.len()];
    for b in 0..batch {
        for t in 0..time {
            let y = &mut y[(b * time + t) * c..][..c];
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y = f64::from(*bias));
            for tap in 0..g.taps {
                let row = s.tapped(b, t, tap, g);
                for i in 0..c {
                    y[i] += f64::from(w[tap * c + i]) * f64::from(row[i]);
                }
            }
        }
    }
    y
}

/// `(x − mean) / √(variance + eps) · weight + bias` for each row; the variance divides by C.
pub(crate) fn layer_norm(x: &[f64], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f64> {
    let c = weight.len();
    let mut y = vec![];
    for row in x.chunks_exact(c) {
        let mean = row.iter().sum::<f64>() / c as f64;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / c as f64;
        let deviation = (variance + f64::from(eps)).sqrt();
        for i in 0..c {
            y.push((row[i] - mean) / deviation * f64::from(weight[i]) + f64::from(bias[i]));
        }
    }
    y
}

/// `x / √(mean(x²) + eps) · weight` for each row.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let c = weight.len();
    let mut y = vec![];
    for row in x.chunks_exact(c) {
        let square = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / c as f64;
        let root = (square + f64::from(eps)).sqrt();
        y.extend(row.iter().zip(weight).map(|(x, w)| f64::from(*x) / root * f64::from(*w)));
    }
    y
}

/// `x + gain · sin²(frequency · x)`
pub(crate) fn snake(x: &[f32], frequency: &[f32], gain: &[f32]) -> Vec<f64> {
    let c = gain.len();
    let one = |(i, x): (usize, &f32)| {
        let sine = (f64::from(frequency[i % c]) * f64::from(*x)).sin();
        f64::from(*x) + f64::from(gain[i % c]) * sine * sine
    };
    x.iter().enumerate().map(one).collect()
}

/// Operands of [`attention`].
pub(crate) struct Attention<'a> {
    /// `[B, Tq, H·D]`
    pub q: &'a [f32],
    /// `[Bk, Tk, Hkv·D]`; Bk is B or 1
    pub k: &'a [f32],
    /// As `k`.
    pub v: &'a [f32],
    /// `[Bk]`
    pub lens: Option<&'a [i32]>,
    /// B, Tq, Bk, Tk
    pub sizes: [usize; 4],
    /// H and D
    pub heads: (usize, usize),
    pub scale: f32,
    pub mask: AttentionMask,
    /// `[B]`, for masks that have positions.
    pub positions: Option<&'a [i32]>,
    /// Tables `[2·window + 1, D]` for keys and values, and the window.
    pub relative: Option<(&'a [f32], &'a [f32], usize)>,
    /// `[B, H, Tq, Tk]`
    pub bias: Option<&'a [f32]>,
}

/// `softmax(scale · q·k + relative) · (v + relative)` over the visible keys; zeros if there are none.
pub(crate) fn attention(a: &Attention<'_>) -> Vec<f64> {
    let [batch, tq, kv_batch, tk] = a.sizes;
    let (heads, d) = a.heads;
    let width = heads * d;
    let kv_width = a.k.len() / (kv_batch * tk).max(1);
    let mut y = vec![0.0; batch * tq * width];
    for b in 0..batch {
        let kv = if kv_batch == 1 { 0 } else { b };
        let len = a.lens.map_or(tk, |l| l[kv].clamp(0, tk as i32) as usize);
        for h in 0..heads {
            // First channel of the head's keys.
            let kv_at = h / (width / kv_width.max(1)).max(1) * d;
            for i in 0..tq {
                let q = &a.q[(b * tq + i) * width + h * d..][..d];
                let given = a.positions.map_or(0, |p| p[b] as isize);
                // With a causal mask, the last query is at the position of the last key.
                let position = match a.mask {
                    AttentionMask::None => i as isize,
                    AttentionMask::Cached(First::Const(first)) => i as isize + first as isize,
                    AttentionMask::Cached(First::Operand) => i as isize + given,
                    AttentionMask::Causal | AttentionMask::Window(_) | AttentionMask::Stream(_) => {
                        i as isize + tk as isize - tq as isize
                    }
                };
                let offset = |j: usize, window: usize| {
                    let o = j as isize - position + window as isize;
                    (0..=2 * window as isize).contains(&o).then_some(o as usize)
                };
                let seen = |j: &usize| match a.mask {
                    AttentionMask::None => true,
                    AttentionMask::Causal | AttentionMask::Cached(_) => *j as isize <= position,
                    AttentionMask::Window(seen) => {
                        (position - seen as isize + 1..=position).contains(&(*j as isize))
                    }
                    AttentionMask::Stream(seen) => {
                        // Row 0 of the stream is `given` keys before the first query.
                        (position - seen as isize + 1..=position).contains(&(*j as isize))
                            && *j as isize >= tk as isize - tq as isize - given
                    }
                };
                let keys: Vec<usize> = (0..len).filter(seen).collect();
                let scores: Vec<f64> = keys
                    .iter()
                    .map(|&j| {
                        let k = &a.k[(kv * tk + j) * kv_width + kv_at..][..d];
                        let mut score = f64::from(a.scale) * dot(q, k);
                        score += a.bias.map_or(0.0, |x| f64::from(x[((b * heads + h) * tq + i) * tk + j]));
                        if let Some((table, _, window)) = a.relative
                            && let Some(o) = offset(j, window)
                        {
                            score += f64::from(a.scale) * dot(q, &table[o * d..][..d]);
                        }
                        score
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
                let out = &mut y[(b * tq + i) * width + h * d..][..d];
                for (&j, s) in keys.iter().zip(&scores) {
                    let p = (s - largest).exp() / total;
                    for e in 0..d {
                        out[e] += p * f64::from(a.v[(kv * tk + j) * kv_width + kv_at + e]);
                        if let Some((_, table, window)) = a.relative
                            && let Some(o) = offset(j, window)
                        {
                            out[e] += p * f64::from(table[o * d + e]);
                        }
                    }
                }
            }
        }
    }
    y
}

/// q `[B, T, H·D]`, p `[2T − 1, H·D]` → `[B, H, T, T]`: `scale · q[i] · p[T − 1 − i + j]` for each head.
pub(crate) fn relative_scores(
    q: &[f32],
    p: &[f32],
    [batch, time, width]: [usize; 3],
    heads: usize,
    scale: f32,
) -> Vec<f64> {
    let d = width / heads;
    let head = |x: &[f32], row: usize, h: usize| x[row * width + h * d..][..d].to_vec();
    let mut y = vec![];
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        for (i, j) in (0..time).flat_map(|i| (0..time).map(move |j| (i, j))) {
            let score = dot(&head(q, b * time + i, h), &head(p, time - 1 + j - i, h));
            y.push(f64::from(scale) * score);
        }
    }
    y
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// `[B, 2, T, D / 2]`: cosines, then sines, of `(t / length) · theta`. A length of 0 counts as 1, since its
/// rows are never read and only must be finite.
pub(crate) fn rotary_table(theta: &[f32], batch: usize, time: usize, lens: Option<&[i32]>) -> Vec<f64> {
    let mut y = vec![];
    for b in 0..batch {
        let len = lens.map_or(time as f64, |l| f64::from(l[b].max(1)));
        for function in [f64::cos, f64::sin] {
            for t in 0..time {
                y.extend(theta.iter().map(|th| function(t as f64 / len * f64::from(*th))));
            }
        }
    }
    y
}

/// `[B, 2, T, half]`: cosines, then sines, of `(first + t) · base^(−j / half)`, or of scaled frequencies.
pub(crate) fn rope_table(
    base: f64,
    scaling: Option<RopeScaling>,
    first: &[usize],
    time: usize,
    half: usize,
) -> Vec<f64> {
    let frequency = |j: usize| {
        let f = base.powf(-(j as f64) / half as f64);
        let Some(RopeScaling { factor, low, high, length }) = scaling else { return f };
        let (wave, length) = (2.0 * std::f64::consts::PI / f, length as f64);
        let s = (length / wave - low) / (high - low);
        match wave {
            w if w < length / high => f,
            w if w > length / low => f / factor,
            _ => (1.0 - s) * f / factor + s * f,
        }
    };
    let mut y = vec![];
    for first in first {
        for function in [f64::cos, f64::sin] {
            for t in 0..time {
                let position = (first + t) as f64;
                y.extend((0..half).map(|j| function(position * frequency(j))));
            }
        }
    }
    y
}

/// x `[B, T, H·D]`, table `[B or 1, 2, T, D / 2]`: `(a·cos − b·sin, a·sin + b·cos)` for the halves a, b of
/// each head. `sizes` are B, T, H and D.
pub(crate) fn rotary(x: &[f32], table: &[f32], [batch, time, heads, d]: [usize; 4]) -> Vec<f64> {
    let half = d / 2;
    let tables = table.len() / (2 * time * half);
    let mut y = vec![0.0; x.len()];
    for b in 0..batch {
        let table = &table[b % tables * 2 * time * half..][..2 * time * half];
        let (cosines, sines) = table.split_at(time * half);
        for t in 0..time {
            for h in 0..heads {
                for j in 0..half {
                    let ia = ((b * time + t) * heads + h) * d + j;
                    let ib = ia + half;
                    let (a, b) = (f64::from(x[ia]), f64::from(x[ib]));
                    let (cos, sin) = (f64::from(cosines[t * half + j]), f64::from(sines[t * half + j]));
                    y[ia] = a * cos - b * sin;
                    y[ib] = a * sin + b * cos;
                }
            }
        }
    }
    y
}

/// times `[N]` → `[N, dim]`: sines, then cosines, of `1000 · t · 10000^(−j / (dim/2 − 1))`.
pub(crate) fn time_embedding(times: &[f32], dim: usize) -> Vec<f64> {
    let half = dim / 2;
    let mut y = vec![];
    for &t in times {
        let angle = |j: usize| 1000.0 * f64::from(t) * 10000f64.powf(-(j as f64) / (half as f64 - 1.0));
        y.extend((0..half).map(|j| angle(j).sin()));
        y.extend((0..half).map(|j| angle(j).cos()));
    }
    y
}

/// Elements of `x` in the order of an output with extents `dims`; `source` maps output indices to input
/// indices.
pub(crate) fn gather(
    x: &[f64],
    x_dims: &[usize],
    dims: &[usize],
    source: impl Fn(&[usize]) -> Vec<usize>,
) -> Vec<f64> {
    (0..dims.iter().product()).map(|flat| x[flat_index(&source(&index_of(flat, dims)), x_dims)]).collect()
}

/// `[B, T, C]` with rows beyond both ends; `dims` are the extents of the result.
pub(crate) fn pad(x: &[f32], x_dims: &[usize], dims: &[usize], padding: Padding, before: usize) -> Vec<f64> {
    let (time, c) = (x_dims[1] as i64, x_dims[2]);
    let mut y = vec![];
    for b in 0..dims[0] {
        for t in 0..dims[1] {
            let t = t as i64 - before as i64;
            let last = time - 1;
            let row = match padding {
                Padding::Zero => (0..time).contains(&t).then_some(t),
                Padding::Repeat => Some(t.clamp(0, last)),
                Padding::Reflect if t < 0 => Some(-t),
                Padding::Reflect if t > last => Some(2 * last - t),
                Padding::Reflect => Some(t),
            };
            match row {
                Some(row) => {
                    let row = &x[(b * x_dims[1] + row as usize) * c..][..c];
                    y.extend(row.iter().map(|x| f64::from(*x)));
                }
                None => y.extend(vec![0.0; c]),
            }
        }
    }
    y
}

/// x and scores `[B, T, C]` → `[B, 2C]`: mean and standard deviation of each channel over time, weighted by
/// `softmax(scores)`.
pub(crate) fn statistics(
    x: &[f32],
    scores: Option<&[f32]>,
    [batch, time, c]: [usize; 3],
    floor: f32,
) -> Vec<f64> {
    let mut y = vec![0.0; batch * 2 * c];
    for b in 0..batch {
        for i in 0..c {
            let channel =
                |x: &[f32]| -> Vec<f64> { (0..time).map(|t| f64::from(x[(b * time + t) * c + i])).collect() };
            let values = channel(x);
            let scores = scores.map_or(vec![0.0; time], channel);
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let total: f64 = powers.iter().sum();
            let weighted = |f: &dyn Fn(f64) -> f64| -> f64 {
                values.iter().zip(&powers).map(|(x, p)| p / total * f(*x)).sum()
            };
            let mean = weighted(&|x| x);
            y[b * 2 * c + i] = mean;
            y[b * 2 * c + c + i] = weighted(&|x| (x - mean) * (x - mean)).max(f64::from(floor)).sqrt();
        }
    }
    y
}

/// x `[rows, E]`, books `[Q, V, E]` → `[rows, Q]`: index of the nearest entry of each book to what the
/// earlier books leave of a row.
pub(crate) fn residual_codes(x: &[f32], books: &[f32], q: usize, v: usize, e: usize) -> Vec<f64> {
    let mut y = vec![];
    for row in x.chunks_exact(e) {
        let mut rest: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        for book in books.chunks_exact(v * e).take(q) {
            let distance = |entry: &[f32]| -> f64 {
                entry.iter().zip(&rest).map(|(c, r)| (r - f64::from(*c)) * (r - f64::from(*c))).sum()
            };
            let distances: Vec<f64> = book.chunks_exact(e).map(distance).collect();
            let least = distances.iter().copied().fold(f64::INFINITY, f64::min);
            let nearest = distances.iter().position(|d| *d == least).unwrap_or(0);
            y.push(nearest as f64);
            let entry = &book[nearest * e..][..e];
            rest.iter_mut().zip(entry).for_each(|(r, c)| *r -= f64::from(*c));
        }
    }
    y
}

/// frames `[B, F, N]` → `[B, (F − 1) · hop]`: the sum of the frames at each sample, divided by the sum of the
/// squared windows.
pub(crate) fn overlap_add(frames: &[f32], window: &[f32], count: usize, hop: usize) -> Vec<f64> {
    let n = window.len();
    let mut y = vec![];
    for frames in frames.chunks_exact(count * n) {
        let (mut sum, mut squares) = (vec![0.0; count * hop + n], vec![0.0; count * hop + n]);
        for (f, frame) in frames.chunks_exact(n).enumerate() {
            for j in 0..n {
                sum[f * hop + j] += f64::from(frame[j]);
                squares[f * hop + j] += f64::from(window[j]) * f64::from(window[j]);
            }
        }
        y.extend((n / 2..n / 2 + (count - 1) * hop).map(|s| sum[s] / squares[s]));
    }
    y
}

/// gates `[B, T, 4H]`, w `[H, 4H]` → `[B, T, H]`: each step of each sequence after the other.
pub(crate) fn lstm(gates: &[f32], w: &[f32], time: usize, units: usize) -> Vec<f64> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut y = vec![];
    for gates in gates.chunks_exact(time * 4 * units) {
        let (mut h, mut c) = (vec![0.0; units], vec![0.0; units]);
        for gates in gates.chunks_exact(4 * units) {
            let mut sums: Vec<f64> = gates.iter().map(|x| f64::from(*x)).collect();
            for (h, w) in h.iter().zip(w.chunks_exact(4 * units)) {
                sums.iter_mut().zip(w).for_each(|(sum, w)| *sum += h * f64::from(*w));
            }
            for u in 0..units {
                let [input, forget, cell, output] = [0, 1, 2, 3].map(|gate| sums[gate * units + u]);
                c[u] = sigmoid(forget) * c[u] + sigmoid(input) * cell.tanh();
                h[u] = sigmoid(output) * c[u].tanh();
            }
            y.extend_from_slice(&h);
        }
    }
    y
}

/// x `[B, T, C]`: the mean of `rows` rows, or of those that are left of a sequence, for each of them.
pub(crate) fn segment_mean(x: &[f32], [time, c]: [usize; 2], rows: usize) -> Vec<f64> {
    let mut y = vec![];
    for sequence in x.chunks_exact(time * c) {
        for segment in sequence.chunks(rows * c) {
            let count = segment.len() / c;
            let mean = |i: usize| {
                segment.iter().skip(i).step_by(c).map(|x| f64::from(*x)).sum::<f64>() / count as f64
            };
            let means: Vec<f64> = (0..c).map(mean).collect();
            (0..count).for_each(|_| y.extend_from_slice(&means));
        }
    }
    y
}

/// f0 `[B, T]`, phases `[B, H]`, noise `[B, T · hop, H]` → as noise: sample by sample.
pub(crate) fn harmonic_source(
    [f0, phases, noise]: [&[f32]; 3],
    [batch, time, harmonics]: [usize; 3],
    hop: usize,
    rate: usize,
) -> Vec<f64> {
    let mut y = vec![0.0; noise.len()];
    for b in 0..batch {
        for h in 0..harmonics {
            let mut sum = 0.0;
            for sample in 0..time * hop {
                let f0 = f0[b * time + sample / hop];
                sum += f64::from(f0 * (h + 1) as f32 / rate as f32);
                let cycles = f64::from((sum as f32).rem_euclid(1.0));
                let angle = 2.0 * std::f64::consts::PI * cycles + f64::from(phases[b * harmonics + h]);
                let at = (b * time * hop + sample) * harmonics + h;
                let noise = f64::from(noise[at]);
                y[at] = if f0 > 10.0 { 0.1 * angle.sin() + 0.003 * noise } else { 0.1 / 3.0 * noise };
            }
        }
    }
    y
}

/// Converts a flat index to one index per axis, slowest first.
pub(crate) fn index_of(mut flat: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for axis in (0..dims.len()).rev() {
        index[axis] = flat % dims[axis];
        flat /= dims[axis];
    }
    index
}

fn flat_index(index: &[usize], dims: &[usize]) -> usize {
    index.iter().zip(dims).fold(0, |flat, (i, d)| flat * d + i)
}

/// Philox 4x32-10 (Salmon et al. 2011).
pub(crate) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// Numbers 0, 1, … of the stream of `seed`, as defined in `orate-cpu`'s `kernels/random.rs`: each Philox
/// block (key = seed, counter = block) gives four numbers, by Box–Muller from pairs of its words.
pub(crate) fn random_normal(seed: u64, len: usize) -> Vec<f64> {
    let number = |i: usize| {
        let block = (i / 4) as u64;
        let words = philox([block as u32, (block >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
        let (a, b) = if i % 4 < 2 { (words[0], words[1]) } else { (words[2], words[3]) };
        let u = f64::from((a >> 8) + 1) / 16_777_216.0;
        let v = f64::from(b >> 8) / 16_777_216.0;
        let (radius, angle) = ((-2.0 * u.ln()).sqrt(), std::f64::consts::TAU * v);
        if i.is_multiple_of(2) { radius * angle.cos() } else { radius * angle.sin() }
    };
    (0..len).map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `kat_vectors` of Random123 1.14.
    #[test]
    fn philox_matches_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// Abramowitz and Stegun, table 7.1, and by `math.erf` of Python where the table ends.
    #[test]
    fn erf_matches_tables() {
        let table = [
            (0.0, 0.0),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (-1.0, -0.842_700_792_9),
            (2.0, 0.995_322_265_0),
            (3.5, 0.999_999_256_901_627_6),
            (5.9, 0.999_999_999_999_999_9),
            (100.0, 1.0),
        ];
        for (x, want) in table {
            assert!((erf(x) - want).abs() < 1e-10, "erf({x}) = {}", erf(x));
        }
    }
}
