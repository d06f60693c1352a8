// Overlap-add: x [B, F, N], window [N] → out [B, (F − 1) · hop]. One thread per sample sums the frames that
// cover it in order; see orate-cpu's kernels/overlap_add.rs.

struct Params {
    x: u32,
    out: u32,
    len: u32,
    // Samples and frames of a sequence.
    samples: u32,
    frames: u32,
    n: u32,
    hop: u32,
    window: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
@group(1) @binding(1) var<storage, read> vectors: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i >= p.len {
        return;
    }
    let x = p.x + i / p.samples * p.frames * p.n;
    let at = i % p.samples + p.n / 2u;
    // If `at` is below `n`, the other value wraps around and is not selected.
    let first = select(0u, (at - p.n) / p.hop + 1u, at >= p.n);
    let last = min(at / p.hop, p.frames - 1u);
    var sum = 0.0;
    var squares = 0.0;
    for (var f = first; f <= last; f++) {
        let j = at - f * p.hop;
        let w = vectors[p.window + j];
        sum += memory[x + f * p.n + j];
        squares = fma(w, w, squares);
    }
    memory[p.out + i] = sum / squares;
}
