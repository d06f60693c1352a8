// (x − mean) / √(variance + eps) · weight + bias for each row of c elements; the variance divides by c.
//
// One workgroup of 128 threads per row. Two passes, mean first, avoid cancellation. May work in place. With
// KEPT > 0, a thread holds KEPT vectors of four in registers: c is a multiple of 4, up to 512 · KEPT.

struct Params {
    x: u32,
    out: u32,
    rows: u32,
    c: u32,
    weight: u32,
    bias: u32,
    eps: f32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<${TYPE}>;
@group(1) @binding(1) var<storage, read> vectors: array<${TYPE}>;

//@ include reduce

@compute @workgroup_size(128)
fn main(
//@ include reduce_inputs
) {
    let row = group.y * groups.x + group.x;
    if row >= p.rows {
        return;
    }
    let x = p.x + row * p.c;
    let out = p.out + row * p.c;
//@ if KEPT
//@ for i KEPT
    let c_${i} = 4u * (lane + ${i}u * 128u);
    var x_${i} = vec4<f32>();
    if c_${i} < p.c {
        x_${i} = memory[(x + c_${i}) >> 2u];
    }
//@ end
//@ include norm_kept
//@ else
    var sum = 0.0;
    for (var i = lane; i < p.c; i += 128u) {
        sum += memory[x + i];
    }
    let mean = divided(total(sum, ${REDUCE_ARGUMENTS}), p.c);
    var squares = 0.0;
    for (var i = lane; i < p.c; i += 128u) {
        let d = memory[x + i] - mean;
        squares = fma(d, d, squares);
    }
    let variance = total(squares, ${REDUCE_ARGUMENTS}) / f32(p.c);
    let factor = 1.0 / sqrt(variance + p.eps);
    for (var i = lane; i < p.c; i += 128u) {
        let y = (memory[x + i] - mean) * factor;
        memory[out + i] = fma(y, vectors[p.weight + i], vectors[p.bias + i]);
    }
//@ end
}
