// Means of segments: x [B, T, C] → out [B, T, C], where each row becomes the mean of its segment of `rows`
// rows.
//
// A workgroup has 16 channels of a segment; 16 threads share the rows of each channel, and their sums are
// added in order.

struct Params {
    x: u32,
    out: u32,
    c: u32,
    time: u32,
    rows: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;

var<workgroup> partial: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let channel = workgroup.x * 16u + lane % 16u;
    let first = workgroup.y * p.rows;
    let count = min(p.rows, p.time - first);
    let at = (workgroup.z * p.time + first) * p.c + min(channel, p.c - 1u);
    var sum = 0.0;
    for (var t = lane / 16u; t < count; t += 16u) {
        sum += memory[p.x + at + t * p.c];
    }
    partial[lane] = sum;
    workgroupBarrier();
    sum = 0.0;
    for (var i = lane % 16u; i < 256u; i += 16u) {
        sum += partial[i];
    }
    if channel < p.c {
        for (var t = lane / 16u; t < count; t += 16u) {
            memory[p.out + at + t * p.c] = sum / f32(count);
        }
    }
}
