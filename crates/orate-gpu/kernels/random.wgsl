// Normal random numbers times `scale`: the stream that the CPU executor's kernels/random.rs defines.
//
// Philox4x32-10 with key = seed and counter = block gives four words, and Box–Muller two numbers from each
// pair. One thread per block of four numbers.

struct Params {
    out: u32,
    n: u32,
    seed_low: u32,
    seed_high: u32,
    scale: f32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;

//@ include philox

fn box_muller(a: u32, b: u32) -> vec2<f32> {
    let r = sqrt(max(-2.0 * ln_of_24_bits((a >> 8u) + 1u), 0.0));
    return r * cos_sin(b & 0xffffff00u) * p.scale;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let block = (group.y * groups.x + group.x) * 64u + lane;
    let i = 4u * block;
    if i >= p.n {
        return;
    }
    let words = philox(vec4<u32>(block, 0u, 0u, 0u), vec2<u32>(p.seed_low, p.seed_high));
    let first = box_muller(words.x, words.y);
    let second = box_muller(words.z, words.w);
    memory[p.out + i] = first.x;
    if i + 1u < p.n {
        memory[p.out + i + 1u] = first.y;
    }
    if i + 2u < p.n {
        memory[p.out + i + 2u] = second.x;
    }
    if i + 3u < p.n {
        memory[p.out + i + 3u] = second.y;
    }
}
