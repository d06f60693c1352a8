// Scores of relative positions: q [B, T, H·D], p [2T − 1, H·D] → out [B, H, T, T] with
//
//   out[b, h, i, j] = scale · q[b, i, h] · p[T − 1 − i + j, h]
//
// A workgroup has 32 queries by 32 keys of a head, for which it needs 63 rows of p. A thread has four queries
// and one key.

struct Params {
    q: u32,
    positions: u32,
    out: u32,
    heads: u32,
    d: u32,
    time: u32,
    scale: f32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;

// Rows have one more element, to avoid bank conflicts.
var<workgroup> query: array<f32, 1056>;
var<workgroup> position: array<f32, 2112>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let x = lane % 32u;
    let y = lane / 32u;
    let batch = workgroup.z / p.heads;
    let width = p.heads * p.d;
    let head = workgroup.z % p.heads * p.d;
    let first_key = workgroup.x * 32u;
    let first_query = workgroup.y * 32u;
    // Row of p for the last query and the first key; below 0 it wraps around to a row that does not exist.
    let first = p.time + first_key - first_query - 32u;
    var sum = vec4<f32>();
    for (var start = 0u; start < p.d; start += 32u) {
        workgroupBarrier();
        for (var r = y; r < 32u; r += 8u) {
            var v = 0.0;
            if start + x < p.d && first_query + r < p.time {
                v = memory[p.q + (batch * p.time + first_query + r) * width + head + start + x];
            }
            query[r * 33u + x] = v;
        }
        for (var r = y; r < 63u; r += 8u) {
            var v = 0.0;
            if start + x < p.d && first + r < 2u * p.time - 1u {
                v = memory[p.positions + (first + r) * width + head + start + x];
            }
            position[r * 33u + x] = v;
        }
        workgroupBarrier();
        for (var e = 0u; e < 32u; e++) {
//@ for r 4
            let p_${r} = position[(31u - (y + ${r}u * 8u) + x) * 33u + e];
            sum[${r}] = fma(query[(y + ${r}u * 8u) * 33u + e], p_${r}, sum[${r}]);
//@ end
        }
    }
//@ for r 4
    {
        let i = first_query + y + ${r}u * 8u;
        let j = first_key + x;
        if i < p.time && j < p.time {
            memory[p.out + (workgroup.z * p.time + i) * p.time + j] = p.scale * sum[${r}];
        }
    }
//@ end
}
