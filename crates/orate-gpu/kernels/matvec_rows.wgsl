// out [M, N] = residual + activation(x [M, K] · weight [K, N] + bias): products of a few rows, up to 2 · PAIRS, which are over when the
// weight is read, once for all of them.
//
//   SEVERAL   products by several weights; their results are matrices one after the other in `out`. Workgroups know which
//             is theirs. The activation is that of the first.
//   GATED     out = activation(x · first weight) · (x · second weight)
//
// The weight is that of matmul.wgsl, with HALF, BF16 and BLOCKS. A workgroup makes 4 · QUADS results of each row; a thread has four of them and every
// LANES-th group of four terms. Sums of threads are added in a fixed order, two rows at a time. K and N are multiples of 4.

struct Params {
    x: u32,
    out: u32,
    residual: u32,
    bias: u32,
    slope: u32,
    k: u32,
    rows: u32,
    weight: u32,
    n: u32,
    stride: u32,
//@ for i MORE
    weight_${i}: u32,
    n_${i}: u32,
    stride_${i}: u32,
//@ end
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<f32>>;
//@ if BLOCKS
alias Stored = vec3<u32>;
@group(1) @binding(0) var<storage, read> matrix: array<u32>;
//@ else
//@ if HALF
alias Stored = vec2<u32>;
//@ else
alias Stored = vec4<f32>;
//@ end
@group(1) @binding(0) var<storage, read> matrix: array<Stored>;
//@ end
@group(1) @binding(1) var<storage, read> vectors: array<vec4<f32>>;

//@ include activation

const QUADS = ${QUADS}u;
const LANES = 256u / QUADS;
const WIDE = 4u * QUADS;

// Of two rows.
var<workgroup> partial: array<vec4<f32>, 512>;
//@ if GATED
var<workgroup> partial_other: array<vec4<f32>, 512>;
//@ end

// Four elements of the weight.
fn widen(w: Stored) -> vec4<f32> {
//@ if BLOCKS
    let bytes = bitcast<vec4<i32>>(vec4<u32>(w.x << 24u, w.x << 16u, w.x << 8u, w.x)) >> vec4<u32>(24u);
    return vec4<f32>(bytes) * vec4<f32>(unpack2x16float(w.y), unpack2x16float(w.z));
//@ else
//@ if BF16
    let words = vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u);
    return bitcast<vec4<f32>>(words);
//@ else
//@ if HALF
    return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
//@ else
    return w;
//@ end
//@ end
//@ end
}

// Four terms of four results.
struct Weights {
//@ for c 4
    w_${c}: vec4<f32>,
//@ end
}

fn load(group: u32, weight: u32, col: u32, stride: u32) -> Weights {
    var w: Weights;
    let at = (weight + col) / 4u + group * stride;
//@ if BLOCKS
    // Four rows share their scales.
    let scales = (weight + (p.k + 127u) / 128u * 128u * stride) / 4u + group / 8u * (stride / 2u) + col / 2u;
    let low = matrix[scales];
    let high = matrix[scales + 1u];
//@ for c 4
    w.w_${c} = widen(vec3<u32>(matrix[at + ${c}u * (stride / 4u)], low, high));
//@ end
//@ else
//@ for c 4
    w.w_${c} = widen(matrix[at + ${c}u * (stride / 4u)]);
//@ end
//@ end
    return w;
}

fn add(x: vec4<f32>, w: Weights, sum: vec4<f32>) -> vec4<f32> {
    var y = sum;
//@ for c 4
    y = fma(vec4<f32>(x[${c}]), w.w_${c}, y);
//@ end
    return y;
}

// Where the results of this thread go, and which they are.
struct Place {
    place: u32,
    col: u32,
    n: u32,
    out: u32,
    first: bool,
}

// Adds up the sums of all threads of two rows, which are in `partial`, and stores the rows.
fn finish(row: u32, lane: u32, at: Place) {
    for (var step = LANES / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if at.place < step {
//@ for i 2
            partial[${i}u * 256u + lane] += partial[${i}u * 256u + lane + step * QUADS];
//@ if GATED
            partial_other[${i}u * 256u + lane] += partial_other[${i}u * 256u + lane + step * QUADS];
//@ end
//@ end
        }
    }
//@ for i 2
    if at.place == 0u && at.col < at.n && row + ${i}u < p.rows {
        var y = partial[${i}u * 256u + lane];
//@ if BIAS
        y += vectors[(p.bias + at.col) >> 2u];
//@ end
//@ if ACTIVATE
        if at.first {
            var slope = 0.0;
//@ if PRELU
            slope = vectors[p.slope >> 2u].x;
//@ end
            y = vec4<f32>(activate(y.x, slope), activate(y.y, slope), activate(y.z, slope), activate(y.w, slope));
        }
//@ end
//@ if GATED
        y *= partial_other[${i}u * 256u + lane];
//@ end
        let element = (row + ${i}u) * at.n + at.col;
//@ if RESIDUAL
        y += memory[(p.residual + element) >> 2u];
//@ end
        memory[(at.out + element) >> 2u] = y;
    }
//@ end
    // Before the next two rows come to the same memory.
    workgroupBarrier();
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = lane / QUADS;
    var tile = workgroup.x;
    var weight = p.weight;
    var n = p.n;
    var stride = p.stride;
    var out = p.out;
    var part = 0u;
//@ if SEVERAL
//@ for i MORE
    if part == ${i}u && tile >= (n + WIDE - 1u) / WIDE {
        tile -= (n + WIDE - 1u) / WIDE;
        out += n * p.rows;
        weight = p.weight_${i};
        n = p.n_${i};
        stride = p.stride_${i};
        part = ${i}u + 1u;
    }
//@ end
//@ end
    // Behind the last column the weight is zeros.
    let col = (tile * QUADS + lane % QUADS) * 4u;
    let groups = p.k / 4u;
//@ for h PAIRS
//@ for i 2
    // Rows behind the last are the last, and not stored.
    let row_${h}_${i} = p.x / 4u + min(${h}u * 2u + ${i}u, p.rows - 1u) * groups;
    var sum_${h}_${i} = vec4<f32>();
//@ if GATED
    var other_${h}_${i} = vec4<f32>();
//@ end
//@ end
//@ end
    // The next terms of the weight are on their way while those before are multiplied. Behind the last they are asked for again.
    var w = load(min(place, groups - 1u), weight, col, stride);
//@ if GATED
    var v = load(min(place, groups - 1u), p.weight_0, col, stride);
//@ end
    for (var group = place; group < groups; group += LANES) {
        let next = min(group + LANES, groups - 1u);
        let next_w = load(next, weight, col, stride);
//@ if GATED
        let next_v = load(next, p.weight_0, col, stride);
//@ end
//@ for h PAIRS
//@ for i 2
        let x_${h}_${i} = memory[row_${h}_${i} + group];
        sum_${h}_${i} = add(x_${h}_${i}, w, sum_${h}_${i});
//@ if GATED
        other_${h}_${i} = add(x_${h}_${i}, v, other_${h}_${i});
//@ end
//@ end
//@ end
        w = next_w;
//@ if GATED
        v = next_v;
//@ end
    }
    let at = Place(place, col, n, out, part == 0u);
//@ for h PAIRS
//@ for i 2
    partial[${i}u * 256u + lane] = sum_${h}_${i};
//@ if GATED
    partial_other[${i}u * 256u + lane] = other_${h}_${i};
//@ end
//@ end
    finish(${h}u * 2u, lane, at);
//@ end
}
