// A convolution to one channel: out [M] = activation(x [M, K] · weight [K] + bias), whose rows are gathered
// as in matmul.wgsl. The weight is f32 in all formats.
//
// A workgroup has ROWS rows. Each OWN of them are summed by 32 threads, which read neighboring terms.

//@ include product

const OWN = ${OWN}u;
// One more than the threads, to avoid bank conflicts.
const STRIDE = 33u;

var<workgroup> sums: array<f32, ${ROWS}u * STRIDE>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = (group.y * groups.x + group.x) * ${ROWS}u;
    let own = lane / 32u * OWN;
//@ for i OWN
    let row_${i} = min(first + own + ${i}u, p.m - 1u);
    var sum_${i} = 0.0;
//@ end
    for (var k = lane % 32u * 4u; k < p.k; k += 128u) {
        let w = vectors[(p.weight + k) >> 2u];
//@ for i OWN
        sum_${i} += dot(load_a(row_${i}, k), w);
//@ end
    }
//@ for i OWN
    sums[(own + ${i}u) * STRIDE + lane % 32u] = sum_${i};
//@ end
    workgroupBarrier();
    let row = first + lane;
    if lane >= ${ROWS}u || row >= p.m {
        return;
    }
    var sum = 0.0;
    for (var i = 0u; i < 32u; i++) {
        sum += sums[lane * STRIDE + i];
    }
//@ if BIAS
    sum += vectors[p.bias >> 2u].x;
//@ end
//@ if ACTIVATE
    var slope = 0.0;
//@ if PRELU
    slope = vectors[p.slope >> 2u].x;
//@ end
    sum = activate(sum, slope);
//@ end
    let at = p.out + row;
    memory[at >> 2u][at & 3u] = sum;
}
