// times [N] in 0…1 → [N, 2·half]: sines, then cosines, of 1000 · t · 10000^(−j / (half − 1)).
//
// Frequencies are turns per unit of time in 32.32 fixed point (pairs low, high). One thread per pair.

struct Params {
    times: u32,
    out: u32,
    n: u32,
    half: u32,
    frequencies: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
@group(1) @binding(1) var<storage, read> vectors: array<u32>;

//@ include angles

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.y * groups.x + group.x) * 64u + lane;
    if i >= p.n {
        return;
    }
    let j = i % p.half;
    let row = i / p.half;
    let t = memory[p.times + row];
    let whole = floor(t);
    let low = u32((t - whole) * 4294967296.0);
    let w = p.frequencies + 2u * j;
    let both = cos_sin(turns(bitcast<u32>(i32(whole)), low, vectors[w + 1u], vectors[w]));
    let out = p.out + row * 2u * p.half + j;
    memory[out] = both.y;
    memory[out + p.half] = both.x;
}
