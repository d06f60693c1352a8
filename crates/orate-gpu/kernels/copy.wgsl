// Copies n elements of 4 bytes between arrays with up to four axes: permutation, concatenation, slices,
// constants.
//
// Element i has index (i0, i1, i2, i3) in extents (…, e1, e2, e3), and is copied from source + Σ i·s to out +
// Σ i·d. A stride of 0 repeats. Bits are copied, not numbers; `add` increments integers, or is 0.

struct Params {
    source: u32,
    out: u32,
    n: u32,
    e1: u32,
    e2: u32,
    e3: u32,
    s0: u32,
    s1: u32,
    s2: u32,
    s3: u32,
    d0: u32,
    d1: u32,
    d2: u32,
    d3: u32,
    add: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<u32>;
@group(1) @binding(0) var<storage, read> matrix: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i >= p.n {
        return;
    }
    let i3 = i % p.e3;
    let r3 = i / p.e3;
    let i2 = r3 % p.e2;
    let r2 = r3 / p.e2;
    let i1 = r2 % p.e1;
    let i0 = r2 / p.e1;
    let source = p.source + i0 * p.s0 + i1 * p.s1 + i2 * p.s2 + i3 * p.s3;
    let out = p.out + i0 * p.d0 + i1 * p.d1 + i2 * p.d2 + i3 * p.d3;
//@ if FROM_WEIGHT
    memory[out] = matrix[source];
//@ else
    memory[out] = memory[source] + p.add;
//@ end
}
