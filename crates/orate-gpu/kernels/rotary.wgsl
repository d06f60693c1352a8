// Rotary positions with split halves.
//
//   TABLE       out [B, 2, T, D/2]: cosines, then sines, of t / length · θ. θ is in turns per unit in 32.32
//               fixed point (pairs low, high), and the position is divided to 32 fraction bits: exact range
//               reduction.
//   ROPE        out [B, 2, T, D/2]: cosines, then sines, of (first + t) · θ, with `first` in place of x, or
//               read at x if each batch row has its own. θ is in turns per position with 64 fraction bits.
//   otherwise   x [B, T, H·D], table [B or 1, 2, T, D/2] → out, (a, b) → (a·cos − b·sin, a·sin + b·cos) for
//               the halves a, b of each head
//
// One thread per pair.

struct Params {
    x: u32,
    table: u32,
    out: u32,
    // Pairs.
    n: u32,
    time: u32,
    half: u32,
    heads: u32,
    // 1 if each batch row has its own table or length, else 0.
    own: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
@group(1) @binding(1) var<storage, read> vectors: array<u32>;

//@ include angles

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
    let j = i % p.half;
//@ if ROPE
    let w = p.table + 2u * j;
    let t = i / p.half % p.time;
    let batch = i / p.half / p.time;
    var first = p.x;
    if p.own == 1u {
        first = bitcast<u32>(memory[p.x + batch]);
    }
    let both = cos_sin(turns(0u, first + t, vectors[w + 1u], vectors[w]));
    let out = p.out + (2u * batch * p.time + t) * p.half + j;
    memory[out] = both.x;
    memory[out + p.time * p.half] = both.y;
//@ else
//@ if TABLE
    let t = i / p.half % p.time;
    let batch = i / p.half / p.time;
    var len = p.time;
    if p.own == 1u {
        len = u32(max(bitcast<i32>(memory[p.x + batch]), 1));
    }
    // 32 bits of the fraction of t / len.
    var rest = t % len;
    var low = 0u;
    for (var bit = 0u; bit < 32u; bit++) {
        rest <<= 1u;
        low <<= 1u;
        if rest >= len {
            rest -= len;
            low |= 1u;
        }
    }
    let w = p.table + 2u * j;
    let both = cos_sin(turns(t / len, low, vectors[w + 1u], vectors[w]));
    let out = p.out + (2u * batch * p.time + t) * p.half + j;
    memory[out] = both.x;
    memory[out + p.time * p.half] = both.y;
//@ else
    let head = i / p.half;
    let row = head / p.heads;
    let t = row % p.time;
    let cos_at = p.table + (2u * (row / p.time) * p.own * p.time + t) * p.half + j;
    let cos = memory[cos_at];
    let sin = memory[cos_at + p.time * p.half];
    let at = head * 2u * p.half + j;
    let a = memory[p.x + at];
    let b = memory[p.x + at + p.half];
    memory[p.out + at] = a * cos - b * sin;
    memory[p.out + at + p.half] = a * sin + b * cos;
//@ end
//@ end
}
