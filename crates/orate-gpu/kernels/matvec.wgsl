// out [1, N] = residual + activation(x [1, K] · weight [K, N] + bias): products of one row, which are over when the weight is
// read.
//
// The weight is that of matmul.wgsl. A workgroup makes 4 · QUADS results; a thread has four of them and every LANES-th group of
// four terms. Sums of threads are added in a fixed order. K and N are multiples of 4. HALF as in matmul.wgsl.

struct Params {
    x: u32,
    out: u32,
    residual: u32,
    weight: u32,
    bias: u32,
    slope: u32,
    n: u32,
    k: u32,
    stride: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<f32>>;
//@ if HALF
alias Stored = vec2<u32>;
//@ else
alias Stored = vec4<f32>;
//@ end
@group(1) @binding(0) var<storage, read> matrix: array<Stored>;
@group(1) @binding(1) var<storage, read> vectors: array<vec4<f32>>;

//@ include activation

const QUADS = ${QUADS}u;
const LANES = 256u / QUADS;

var<workgroup> partial: array<vec4<f32>, 256>;

// Four elements of the weight.
fn widen(w: Stored) -> vec4<f32> {
//@ if HALF
    return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
//@ else
    return w;
//@ end
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = lane / QUADS;
    // Behind the last column the weight is zeros.
    let col = (workgroup.x * QUADS + lane % QUADS) * 4u;
    let row = p.stride / 4u;
    var sum = vec4<f32>();
    for (var group = place; group < p.k / 4u; group += LANES) {
        let x = memory[p.x / 4u + group];
        let at = (p.weight + col) / 4u + group * p.stride;
        let w_0 = matrix[at];
        let w_1 = matrix[at + row];
        let w_2 = matrix[at + 2u * row];
        let w_3 = matrix[at + 3u * row];
//@ for c 4
        sum = fma(vec4<f32>(x[${c}]), widen(w_${c}), sum);
//@ end
    }
    partial[lane] = sum;
    for (var step = LANES / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if place < step {
            partial[lane] += partial[lane + step * QUADS];
        }
    }
    if place > 0u || col >= p.n {
        return;
    }
    var y = partial[lane];
//@ if BIAS
    y += vectors[(p.bias + col) >> 2u];
//@ end
//@ if ACTIVATE
    var slope = 0.0;
//@ if PRELU
    slope = vectors[p.slope >> 2u].x;
//@ end
    y = vec4<f32>(activate(y.x, slope), activate(y.y, slope), activate(y.z, slope), activate(y.w, slope));
//@ end
//@ if RESIDUAL
    y += memory[(p.residual + col) >> 2u];
//@ end
    memory[(p.out + col) >> 2u] = y;
}
