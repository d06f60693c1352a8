// Mean, then standard deviation, of each channel over time: x and scores [B, T, C] → [B, 2C].
//
// SCORES: rows are weighted by softmax(scores) over time, otherwise equally. A workgroup has 16 channels of a
// batch row; 16 threads share the rows of each channel, and their sums are added in order. Variance sums
// squared differences from the mean.

struct Params {
    x: u32,
    scores: u32,
    out: u32,
    c: u32,
    time: u32,
    least: f32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;

//@ include math

var<workgroup> partial: array<f32, 256>;

fn total(v: f32, lane: u32) -> f32 {
    workgroupBarrier();
    partial[lane] = v;
    workgroupBarrier();
    var sum = 0.0;
    for (var i = lane % 16u; i < 256u; i += 16u) {
        sum += partial[i];
    }
    return sum;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let channel = workgroup.x * 16u + lane % 16u;
    let first = workgroup.y * p.time * p.c + min(channel, p.c - 1u);
    var largest = -3.0e38;
//@ if SCORES
    for (var t = lane / 16u; t < p.time; t += 16u) {
        largest = max(largest, memory[p.scores + first + t * p.c]);
    }
    partial[lane] = largest;
    workgroupBarrier();
    for (var i = lane % 16u; i < 256u; i += 16u) {
        largest = max(largest, partial[i]);
    }
//@ end
    var weight = 0.0;
    var sum = 0.0;
    for (var t = lane / 16u; t < p.time; t += 16u) {
        var e = 1.0;
//@ if SCORES
        e = exp_f32(memory[p.scores + first + t * p.c] - largest);
//@ end
        weight += e;
        sum = fma(e, memory[p.x + first + t * p.c], sum);
    }
    weight = total(weight, lane);
    let mean = total(sum, lane) / weight;
    var squares = 0.0;
    for (var t = lane / 16u; t < p.time; t += 16u) {
        var e = 1.0;
//@ if SCORES
        e = exp_f32(memory[p.scores + first + t * p.c] - largest);
//@ end
        let d = memory[p.x + first + t * p.c] - mean;
        squares = fma(e * d, d, squares);
    }
    squares = total(squares, lane) / weight;
    if lane < 16u && channel < p.c {
        let out = p.out + workgroup.y * 2u * p.c + channel;
        memory[out] = mean;
        memory[out + p.c] = sqrt(max(squares, p.least));
    }
}
