// Shared by matmuls: parameters, the operand x in f32, whose rows may be gathered from the taps of a
// convolution, and the epilogue of sums. CONV, HISTORY, ZERO and ODD as in matmul.wgsl. With PARTS, x is
// multiplied by several weights, which have no bias and residual. With SNAKE, sums of a convolution with
// their bias become x + gain · sin²(frequency · x). With HALF_OUT, results are stored in f16.

struct Params {
    x: u32,
    out: u32,
    residual: u32,
    weight: u32,
    bias: u32,
    slope: u32,
    m: u32,
    n: u32,
    k: u32,
    stride: u32,
    // CONV: x is [batch, time, channels].
    time: u32,
    channels: u32,
    dilation: u32,
    left: u32,
    // HISTORY
    history: u32,
//@ if SNAKE
    frequency: u32,
    gain: u32,
//@ end
//@ if NORMS
    norm: u32,
    eps: f32,
//@ end
//@ if LAYER_NORM
    // Bias of the norm.
    shift: u32,
//@ end
    // PARTS: offset and columns of two more weights, whose results follow. 0 columns: no such weight. GATED:
    // offset of the weight whose products are multiplied by those of the first.
    weight_1: u32,
    n_1: u32,
    weight_2: u32,
    n_2: u32,
}

var<immediate> p: Params;
//@ if ODD
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
//@ else
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<f32>>;
//@ end
@group(1) @binding(1) var<storage, read> vectors: array<vec4<f32>>;

//@ include activation
//@ if HALF_OUT
//@ include halves
//@ end

//@ if PARTS
// Of the weight of this workgroup: its number, columns, and first result.
var<private> own_part: u32;
var<private> own_n: u32;
var<private> own_out: u32;

fn columns() -> u32 {
    return own_n;
}

// First result of the weight, after those of the weights before.
fn first_result() -> u32 {
    return own_out;
}
//@ else
fn columns() -> u32 {
    return p.n;
}

fn first_result() -> u32 {
    return 0u;
}
//@ end

//@ if CONV
// Whether a tap reads a row of x, not zeros.
fn is_there(row: u32, tap: u32) -> bool {
//@ if ZERO
    return row % p.time + tap * p.dilation - p.left < p.time;
//@ else
    return true;
//@ end
}

// First element of the source row of a tap.
fn source(row: u32, tap: u32) -> u32 {
    let t = row % p.time;
//@ if HISTORY
    if t + tap * p.dilation < p.left {
        return p.history + (row / p.time * p.left + t + tap * p.dilation) * p.channels;
    }
//@ end
    let at = clamp(i32(t + tap * p.dilation) - i32(p.left), 0, i32(p.time) - 1);
    return p.x + (row - t + u32(at)) * p.channels;
}
//@ end

//@ if ODD
fn element(row: u32, k: u32) -> f32 {
    if k >= p.k {
        return 0.0;
    }
//@ if CONV
    let x = memory[source(row, k / p.channels) + k % p.channels];
    return select(0.0, x, is_there(row, k / p.channels));
//@ else
    return memory[p.x + row * p.k + k];
//@ end
}
//@ end

// Four terms of a row of x from k on. Past the end, other terms of the row are read: the weight is zero
// there.
fn load_a(row: u32, k: u32) -> vec4<f32> {
//@ if ODD
    return vec4<f32>(element(row, k), element(row, k + 1u), element(row, k + 2u), element(row, k + 3u));
//@ else
    let at = min(k, p.k - 4u);
//@ if CONV
    let x = memory[(source(row, at / p.channels) + at % p.channels) >> 2u];
    return select(vec4<f32>(), x, is_there(row, at / p.channels));
//@ else
    return memory[(p.x + row * p.k + at) >> 2u];
//@ end
//@ end
}

// Values to add before the activation, to four results from (row, col) on.
fn load_bias(col: u32) -> vec4<f32> {
//@ if BIAS
    return vectors[(p.bias + min(col, p.stride - 4u)) >> 2u];
//@ else
    return vec4<f32>();
//@ end
}

// Values to add after the activation; zeros outside of the results.
fn load_residual(row: u32, col: u32) -> vec4<f32> {
    var r = vec4<f32>();
//@ if RESIDUAL
    let at = p.residual + row * p.n + col;
    if row < p.m && col < p.n {
//@ if ODD
//@ for i 4
        if col + ${i}u < p.n {
            r[${i}] = memory[at + ${i}u];
        }
//@ end
//@ else
        r = memory[at >> 2u];
//@ end
    }
//@ end
    return r;
}

//@ if GATED
fn finish_gated(sum: vec4<f32>, by: vec4<f32>, row: u32, col: u32) {
    if row >= p.m || col >= p.n {
        return;
    }
    var y = sum;
//@ if ACTIVATE
    y = vec4<f32>(activate(y.x, 0.0), activate(y.y, 0.0), activate(y.z, 0.0), activate(y.w, 0.0));
//@ end
//@ if HALF_OUT
    store_halves(p.out, row * p.n + col, y * by);
//@ else
    memory[(p.out + row * p.n + col) >> 2u] = y * by;
//@ end
}
//@ end

fn finish(sum: vec4<f32>, row: u32, col: u32, bias: vec4<f32>, residual: vec4<f32>) {
    if row >= p.m || col >= columns() {
        return;
    }
    var y = sum + bias;
//@ if ACTIVATE
    var slope = 0.0;
//@ if PRELU
    slope = vectors[p.slope >> 2u].x;
//@ end
    let activated =
        vec4<f32>(activate(y.x, slope), activate(y.y, slope), activate(y.z, slope), activate(y.w, slope));
//@ if PARTS
    // Only the first weight has an activation.
    y = select(y, activated, own_part == 0u);
//@ else
    y = activated;
//@ end
//@ end
//@ if SNAKE
    let angle = vectors[(p.frequency + col) >> 2u] * y;
    let squares =
        vec4<f32>(squared_sine(angle.x), squared_sine(angle.y), squared_sine(angle.z), squared_sine(angle.w));
    y = fma(vectors[(p.gain + col) >> 2u], squares, y);
//@ end
    y += residual;
    let to = first_result() + row * columns() + col;
//@ if HALF_OUT
    store_halves(p.out, to, y);
//@ else
    let at = p.out + to;
//@ if ODD
//@ for i 4
    if col + ${i}u < p.n {
        memory[at + ${i}u] = y[${i}];
    }
//@ end
//@ else
    memory[at >> 2u] = y;
//@ end
//@ end
}
