// LSTM from a zero state: gates [B, T, 4H], weight [H, 4H] → out [B, T, H].
//
//   i, f, g, o = gates[t] + h[t−1] · weight,  c[t] = σ(f) c[t−1] + σ(i) tanh(g),  h[t] = σ(o) tanh(c[t])
//
// A workgroup has one sequence, whose h and c are in workgroup memory; a thread has all gates of a unit.

struct Params {
    gates: u32,
    out: u32,
    weight: u32,
    time: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
@group(1) @binding(0) var<storage, read> matrix: array<f32>;

//@ include math

const UNITS = ${UNITS}u;

var<workgroup> h: array<f32, ${UNITS}>;
var<workgroup> next: array<f32, ${UNITS}>;
var<workgroup> c: array<f32, ${UNITS}>;

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_f32(-x));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    for (var u = lane; u < UNITS; u += 256u) {
        h[u] = 0.0;
        c[u] = 0.0;
    }
    for (var t = 0u; t < p.time; t++) {
        workgroupBarrier();
        let row = workgroup.x * p.time + t;
        for (var u = lane; u < UNITS; u += 256u) {
            var sum = vec4<f32>();
            for (var k = 0u; k < UNITS; k++) {
                let w = p.weight + k * 4u * UNITS + u;
                let column =
                    vec4<f32>(matrix[w], matrix[w + UNITS], matrix[w + 2u * UNITS], matrix[w + 3u * UNITS]);
                sum = fma(vec4<f32>(h[k]), column, sum);
            }
            let gates = p.gates + row * 4u * UNITS + u;
            let i = sum.x + memory[gates];
            let f = sum.y + memory[gates + UNITS];
            let g = sum.z + memory[gates + 2u * UNITS];
            let o = sum.w + memory[gates + 3u * UNITS];
            let cell = fma(sigmoid(f), c[u], sigmoid(i) * tanh_f32(g));
            c[u] = cell;
            next[u] = sigmoid(o) * tanh_f32(cell);
        }
        workgroupBarrier();
        for (var u = lane; u < UNITS; u += 256u) {
            h[u] = next[u];
            memory[p.out + row * UNITS + u] = next[u];
        }
    }
}
