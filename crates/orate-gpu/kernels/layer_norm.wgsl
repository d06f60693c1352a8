// (x − mean) / √(variance + eps) · weight + bias for each row of c elements; the variance divides by c.
// The results may get an activation, and with ADDS_ROW a row of a table is then added to each row.
//
// One workgroup of 128 threads per row, or with BY_SUBGROUPS one subgroup of LANES threads, none of which
// waits for another. Two passes, mean first, avoid cancellation. May work in place. With KEPT > 0, a thread
// holds KEPT vectors of four in registers: c is a multiple of 4, up to 4 · KEPT for each thread of a row.

struct Params {
    x: u32,
    out: u32,
    rows: u32,
    c: u32,
    weight: u32,
    bias: u32,
    eps: f32,
//@ if ADDS_ROW
    row: u32,
//@ end
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<${TYPE}>;
@group(1) @binding(1) var<storage, read> vectors: array<${TYPE}>;

//@ if ACTIVATE
//@ include activation
//@ end

//@ if KEPT
// The results from channel c on, from what the norm made of them.
fn finished(x: vec4<f32>, c: u32) -> vec4<f32> {
    var y = x;
//@ if ACTIVATE
    y = vec4<f32>(activate(y.x, 0.0), activate(y.y, 0.0), activate(y.z, 0.0), activate(y.w, 0.0));
//@ end
//@ if ADDS_ROW
    y += memory[(p.row + c) >> 2u];
//@ end
    return y;
}
//@ end

//@ if BY_SUBGROUPS
//@ include divided

@compute @workgroup_size(${THREADS})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let row = (group.y * groups.x + group.x) * (${THREADS}u / ${LANES}u) + subgroup;
    let own = min(row, p.rows - 1u) * p.c;
//@ for i KEPT
    let is_${i} = 4u * (lane + ${i}u * ${LANES}u) < p.c;
    let c_${i} = min(4u * (lane + ${i}u * ${LANES}u), p.c - 4u);
    var x_${i} = select(vec4<f32>(), memory[(p.x + own + c_${i}) >> 2u], is_${i});
    let scale_${i} = vectors[(p.weight + c_${i}) >> 2u];
    let shift_${i} = vectors[(p.bias + c_${i}) >> 2u];
//@ end
    var sum = 0.0;
//@ for i KEPT
    sum += dot(x_${i}, vec4<f32>(1.0));
//@ end
    let mean = divided(subgroupAdd(sum), p.c);
    var squares = 0.0;
//@ for i KEPT
    x_${i} = select(vec4<f32>(), x_${i} - mean, is_${i});
    squares += dot(x_${i}, x_${i});
//@ end
    let factor = 1.0 / sqrt(subgroupAdd(squares) / f32(p.c) + p.eps);
//@ for i KEPT
    if is_${i} && row < p.rows {
        memory[(p.out + own + c_${i}) >> 2u] = finished(fma(x_${i} * factor, scale_${i}, shift_${i}), c_${i});
    }
//@ end
}
//@ else
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
//@ end
