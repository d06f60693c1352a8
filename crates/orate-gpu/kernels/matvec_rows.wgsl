// out [M, N] = residual + activation(x [M, K] · weight [K, N] + bias): matmuls of up to 2 · PAIRS rows, whose
// time is that of reading the weight, once for all of them.
//
//   SEVERAL   matmuls by several weights, whose results are matrices one after the other in `out`; each
//             workgroup finds its matmul. Only the first has the activation.
//   GATED     out = activation(x · first weight) · (x · second weight)
//
// weight.wgsl describes the weight. A workgroup computes 4 · QUADS results of each row; a thread has four of
// them and every LANES-th group of four terms. Sums of threads are added in a fixed order, two rows at a
// time. K and N are multiples of 4.

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
@group(1) @binding(1) var<storage, read> vectors: array<vec4<f32>>;

//@ include activation
//@ include weight_rows

const QUADS = ${QUADS}u;
const LANES = 256u / QUADS;
const WIDE = 4u * QUADS;

// Partial sums of two rows.
var<workgroup> partial: array<vec4<f32>, 512>;
//@ if GATED
var<workgroup> partial_other: array<vec4<f32>, 512>;
//@ end

// Location of this thread's results, in memory and in the matrix.
struct Place {
    place: u32,
    col: u32,
    n: u32,
    out: u32,
    first: bool,
}

// Adds the sums of all threads for two rows, which are in `partial`, and stores the rows.
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
            y = vec4<f32>(
                activate(y.x, slope), activate(y.y, slope), activate(y.z, slope), activate(y.w, slope));
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
    // The next two rows reuse the memory.
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
    // After the last column the weight is zero.
    let col = (tile * QUADS + lane % QUADS) * 4u;
    let groups = p.k / 4u;
//@ for h PAIRS
//@ for i 2
    // Rows past the last repeat it and are not stored.
    let row_${h}_${i} = p.x / 4u + min(${h}u * 2u + ${i}u, p.rows - 1u) * groups;
    var sum_${h}_${i} = vec4<f32>();
//@ if GATED
    var other_${h}_${i} = vec4<f32>();
//@ end
//@ end
//@ end
    // The next terms of the weight are loaded while the previous ones are multiplied. After the last, they
    // are loaded again.
    var w = load_weights(min(place, groups - 1u), weight, col, p.k, stride);
//@ if GATED
    var v = load_weights(min(place, groups - 1u), p.weight_0, col, p.k, stride);
//@ end
    for (var group = place; group < groups; group += LANES) {
        let next = min(group + LANES, groups - 1u);
        let next_w = load_weights(next, weight, col, p.k, stride);
//@ if GATED
        let next_v = load_weights(next, p.weight_0, col, p.k, stride);
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
