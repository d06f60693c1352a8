// Residual quantization: the nearest entry of each codebook in turn. x [rows, WIDTH], books [Q, V, WIDTH] →
// i32 [rows, Q].
//
// The distance is Σ (x − c)², not |x|² + |c|² − 2xc, which suffers cancellation. A workgroup has a row, and a
// thread every 128th entry. All sums have the same order, so equal entries have equal distances, and the
// first one wins.

struct Params {
    x: u32,
    out: u32,
    rows: u32,
    books: u32,
    count: u32,
    entries: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
@group(1) @binding(0) var<storage, read> matrix: array<f32>;

const WIDTH = ${WIDTH}u;

var<workgroup> rest: array<f32, ${WIDTH}>;
var<workgroup> nearest: array<f32, 128>;
var<workgroup> which: array<u32, 128>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.y * groups.x + group.x;
    if row >= p.rows {
        return;
    }
    for (var e = lane; e < WIDTH; e += 128u) {
        rest[e] = memory[p.x + row * WIDTH + e];
    }
    for (var q = 0u; q < p.count; q++) {
        let book = p.books + q * p.entries * WIDTH;
        workgroupBarrier();
        var best = 3.0e38;
        var found = p.entries - 1u;
        for (var entry = lane; entry < p.entries; entry += 128u) {
            var sum = 0.0;
            for (var e = 0u; e < WIDTH; e++) {
                let d = rest[e] - matrix[book + entry * WIDTH + e];
                sum = fma(d, d, sum);
            }
            if sum < best {
                best = sum;
                found = entry;
            }
        }
        nearest[lane] = best;
        which[lane] = found;
        workgroupBarrier();
        for (var i = 0u; i < 128u; i++) {
            if nearest[i] < best || (nearest[i] == best && which[i] < found) {
                best = nearest[i];
                found = which[i];
            }
        }
        if lane == 0u {
            memory[p.out + row * p.count + q] = bitcast<f32>(found);
        }
        for (var e = lane; e < WIDTH; e += 128u) {
            rest[e] -= matrix[book + found * WIDTH + e];
        }
    }
}
