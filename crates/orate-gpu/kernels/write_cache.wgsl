// Rounds rows of keys and values to a compact type (see `cache_rows`) and writes them in place.
//
//   state [B, N, C] in F16, BF16 or Q8_0, rows [B, T, C]: rows from first[b] on are replaced
//
// A thread has a word of two elements, or with Q8_0 the 64 elements whose scales share a word.

//@ include write_first
//@ include round_rows

// Elements per thread.
//@ if Q8_0
const EACH = 64u;
//@ else
const EACH = 2u;
//@ end

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
    let threads = p.c / EACH;
    let row = i / threads;
    let part = i % threads;
    let b = row / p.time;
    let source = p.rows + row * p.c + part * EACH;
    let to = b * p.capacity + first_of(b) + row % p.time;
//@ if Q8_0
    let begin = p.state + to * (p.c / 4u + p.c / 64u);
    var scales = 0u;
    for (var block = 0u; block < 2u; block++) {
        var largest = 0.0;
        for (var e = 0u; e < 32u; e++) {
            largest = max(largest, abs(bitcast<f32>(memory[source + block * 32u + e])));
        }
        let scale = scale_bits(largest);
        let inverse = inverse_of(scale);
        for (var word = 0u; word < 8u; word++) {
            var bytes = 0u;
            for (var e = 0u; e < 4u; e++) {
                bytes |= byte_bits(bitcast<f32>(memory[source + block * 32u + word * 4u + e]), inverse, e);
            }
            memory[begin + part * 16u + block * 8u + word] = bytes;
        }
        scales |= scale << (16u * block);
    }
    memory[begin + p.c / 4u + part] = scales;
//@ else
    let begin = p.state + to * (p.c / 2u);
//@ if F16
    memory[begin + part] = f16_bits(memory[source]) | (f16_bits(memory[source + 1u]) << 16u);
//@ else
    memory[begin + part] = bf16_bits(memory[source]) | (bf16_bits(memory[source + 1u]) << 16u);
//@ end
//@ end
}
