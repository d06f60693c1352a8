// Each channel with its own taps, edges repeated; with NORM each row is then layer-normed.
//
//   x [B, T, C] → out [B, T, C],  out[t, c] = bias[c] + Σ w[tap, c] · x[clamp(t + tap·dilation − left), c]
//
// NORM: one workgroup of 128 threads per row, which is kept in workgroup memory (C up to ROW). Otherwise one thread
// per element.

struct Params {
    x: u32,
    out: u32,
    // Rows, or elements without NORM.
    n: u32,
    c: u32,
    time: u32,
    taps: u32,
    dilation: u32,
    left: u32,
    weight: u32,
    bias: u32,
    norm_weight: u32,
    norm_bias: u32,
    eps: f32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
@group(1) @binding(1) var<storage, read> vectors: array<f32>;

fn convolve(row: u32, c: u32) -> f32 {
    let t = row % p.time;
    let first = row - t;
    var sum = vectors[p.bias + c];
    for (var tap = 0u; tap < p.taps; tap++) {
        let at = clamp(i32(t + tap * p.dilation) - i32(p.left), 0, i32(p.time) - 1);
        sum = fma(vectors[p.weight + tap * p.c + c], memory[p.x + (first + u32(at)) * p.c + c], sum);
    }
    return sum;
}

//@ if NORM
//@ include reduce
var<workgroup> kept: array<f32, ${ROW}>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
//@ if SUBGROUPS
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) place: u32,
//@ end
) {
    let row = group.y * groups.x + group.x;
    if row >= p.n {
        return;
    }
    var sum = 0.0;
    // Each thread reads back only what it kept itself.
    for (var i = lane; i < p.c; i += 128u) {
        let y = convolve(row, i);
        kept[i] = y;
        sum += y;
    }
    let mean = total(sum, ${REDUCE_ARGUMENTS}) / f32(p.c);
    var squares = 0.0;
    for (var i = lane; i < p.c; i += 128u) {
        let d = kept[i] - mean;
        squares = fma(d, d, squares);
    }
    let variance = total(squares, ${REDUCE_ARGUMENTS}) / f32(p.c);
    let factor = 1.0 / sqrt(variance + p.eps);
    for (var i = lane; i < p.c; i += 128u) {
        let y = (kept[i] - mean) * factor;
        memory[p.out + row * p.c + i] = fma(y, vectors[p.norm_weight + i], vectors[p.norm_bias + i]);
    }
}
//@ else
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i < p.n {
        memory[p.out + i] = convolve(i / p.c, i % p.c);
    }
}
//@ end
