// out [1, N] = residual + activation(x [1, K] · weight [K, N] + bias): matmuls of one row, whose time is that
// of reading the weight.
//
//   SEVERAL   matmuls by several weights, with results one after the other in `out`; each workgroup finds its
//             matmul. Only the first has the activation.
//   GATED     out = activation(x · first weight) · (x · second weight)
//   NORM      x is the row's RMS norm, x / √(mean(x²) + eps) · norm. The root is a common factor of all
//             terms, so it is applied at the end, and squares are summed together with the terms.
//
// weight.wgsl describes the weight. A workgroup computes 4 · QUADS results; a thread has four of them and
// every LANES-th group of four terms. Sums of threads are added in a fixed order. K and N are multiples of 4.

struct Params {
    x: u32,
    out: u32,
    residual: u32,
    bias: u32,
    slope: u32,
    k: u32,
    norm: u32,
    eps: f32,
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
@group(1) @binding(1) var<storage, read> vectors: array<vec4<f32>>;

//@ include activation
//@ include weight_rows

const QUADS = ${QUADS}u;
const LANES = 256u / QUADS;

const WIDE = 4u * QUADS;

var<workgroup> partial: array<vec4<f32>, 256>;
//@ if GATED
var<workgroup> partial_other: array<vec4<f32>, 256>;
//@ end
//@ if NORM
var<workgroup> partial_squares: array<f32, 256>;
//@ end

// Four terms of four results.
struct Terms {
    x: vec4<f32>,
    w: Weights,
//@ if NORM
    square: f32,
//@ end
}

fn load(group: u32, weight: u32, col: u32, stride: u32) -> Terms {
    var t: Terms;
    t.x = memory[p.x / 4u + group];
//@ if NORM
    t.square = dot(t.x, t.x);
    t.x *= vectors[p.norm / 4u + group];
//@ end
    t.w = load_weights(group, weight, col, p.k, stride);
    return t;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = lane / QUADS;
    var tile = workgroup.x;
    var weight = p.weight;
    var n = p.n;
    var stride = p.stride;
    var out = p.out;
//@ if SEVERAL
    var part = 0u;
//@ for i MORE
    if part == ${i}u && tile >= (n + WIDE - 1u) / WIDE {
        tile -= (n + WIDE - 1u) / WIDE;
        out += n;
        weight = p.weight_${i};
        n = p.n_${i};
        stride = p.stride_${i};
        part = ${i}u + 1u;
    }
//@ end
//@ end
    // After the last column the weight is zero.
    let col = (tile * QUADS + lane % QUADS) * 4u;
    var sum = vec4<f32>();
//@ if GATED
    var other = vec4<f32>();
//@ end
//@ if NORM
    var squares = 0.0;
//@ end
    let groups = p.k / 4u;
    var group = place;
    // Many loads per thread are in flight: waiting for each one would take longer than reading all.
    for (; group + ${BEHIND}u * LANES < groups; group += ${UNROLL}u * LANES) {
//@ for u UNROLL
        let terms_${u} = load(group + ${u}u * LANES, weight, col, stride);
//@ if GATED
        let others_${u} = load(group + ${u}u * LANES, p.weight_0, col, stride);
//@ end
//@ end
//@ for u UNROLL
        sum = add(terms_${u}.x, terms_${u}.w, sum);
//@ if GATED
        other = add(others_${u}.x, others_${u}.w, other);
//@ end
//@ if NORM
        squares += terms_${u}.square;
//@ end
//@ end
    }
    for (; group < groups; group += LANES) {
        let terms = load(group, weight, col, stride);
        sum = add(terms.x, terms.w, sum);
//@ if GATED
        let others = load(group, p.weight_0, col, stride);
        other = add(others.x, others.w, other);
//@ end
//@ if NORM
        squares += terms.square;
//@ end
    }
    partial[lane] = sum;
//@ if GATED
    partial_other[lane] = other;
//@ end
//@ if NORM
    partial_squares[lane] = squares;
//@ end
    for (var step = LANES / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if place < step {
            partial[lane] += partial[lane + step * QUADS];
//@ if GATED
            partial_other[lane] += partial_other[lane + step * QUADS];
//@ end
//@ if NORM
            partial_squares[lane] += partial_squares[lane + step * QUADS];
//@ end
        }
    }
    if place > 0u || col >= n {
        return;
    }
    var y = partial[lane];
//@ if NORM
    let factor = 1.0 / sqrt(partial_squares[lane] / f32(p.k) + p.eps);
    y *= factor;
//@ end
//@ if BIAS
    y += vectors[(p.bias + col) >> 2u];
//@ end
//@ if ACTIVATE
//@ if SEVERAL
    if part == 0u {
//@ end
    var slope = 0.0;
//@ if PRELU
    slope = vectors[p.slope >> 2u].x;
//@ end
    y = vec4<f32>(activate(y.x, slope), activate(y.y, slope), activate(y.z, slope), activate(y.w, slope));
//@ if SEVERAL
    }
//@ end
//@ end
//@ if GATED
//@ if NORM
    y *= partial_other[lane] * factor;
//@ else
    y *= partial_other[lane];
//@ end
//@ end
//@ if RESIDUAL
    y += memory[(p.residual + col) >> 2u];
//@ end
    memory[(out + col) >> 2u] = y;
}
