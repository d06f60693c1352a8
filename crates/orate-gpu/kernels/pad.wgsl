// Rows beyond the ends of each sequence: x [B, T, C] → [B, before + T + after, C]: zeros, the edge row
// (REPEAT), or the sequence mirrored at the edge (REFLECT). One thread per element.

struct Params {
    x: u32,
    out: u32,
    n: u32,
    c: u32,
    // Rows of x and of the result.
    time: u32,
    padded: u32,
    before: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;

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
    let batch = i / p.c / p.padded;
    let last = i32(p.time) - 1;
    var t = i32(i / p.c % p.padded) - i32(p.before);
    var is = true;
//@ if REFLECT
    t = select(abs(t), 2 * last - t, t > last);
//@ end
//@ if ZERO
    is = t >= 0 && t <= last;
//@ end
    let row = batch * p.time + u32(clamp(t, 0, last));
    memory[p.out + i] = select(0.0, memory[p.x + row * p.c + i % p.c], is);
}
