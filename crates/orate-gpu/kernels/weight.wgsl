// The weight of a matmul [⌈K⌉, stride], in f32, or with
//
//   HALF     f16, which nearly every device can widen by one instruction; or with BF16 bf16, which becomes
//            f32 by a shift
//   BLOCKS   signed integers, followed by all scales in f16, [⌈K⌉ / 32, stride]: 32 rows of a column share
//            one. A weight is its integer times its scale. A word has the bytes of four columns, or with
//            NIBBLES those of two rows, the first of them in the lower halves.
//
// Offsets are in elements, or with BLOCKS in quarters of a word.

//@ if BLOCKS
alias Stored = vec3<u32>;
@group(1) @binding(0) var<storage, read> matrix: array<u32>;
//@ else
//@ if HALF
alias Stored = vec2<u32>;
//@ else
alias Stored = vec4<f32>;
//@ end
@group(1) @binding(0) var<storage, read> matrix: array<Stored>;
//@ end

//@ if BLOCKS
// Word with the scales of row `k`, starting at column 0.
fn scales_at(weight: u32, k: u32, depth: u32, stride: u32) -> u32 {
    let numbers = (depth + 127u) / 128u * 128u / ${ROWS_PER_WORD}u * (stride / 4u);
    return weight / 4u + numbers + k / 32u * (stride / 2u);
}

// Numbers of four columns of row `k`, in the upper bits of four bytes.
fn numbers_at(weight: u32, k: u32, quad: u32, stride: u32) -> u32 {
    let word = matrix[weight / 4u + k / ${ROWS_PER_WORD}u * (stride / 4u) + quad];
//@ if NIBBLES
    return word << (4u - k % 2u * 4u);
//@ else
    return word;
//@ end
}
//@ end

// Four elements of the weight.
fn widen(w: Stored) -> vec4<f32> {
//@ if BLOCKS
    let upper = bitcast<vec4<i32>>(vec4<u32>(w.x << 24u, w.x << 16u, w.x << 8u, w.x));
    let numbers = upper >> vec4<u32>(${DROPPED_BITS}u);
    return vec4<f32>(numbers) * vec4<f32>(unpack2x16float(w.y), unpack2x16float(w.z));
//@ else
//@ if BF16
    let words = vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u);
    return bitcast<vec4<f32>>(words);
//@ else
//@ if HALF
    return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
//@ else
    return w;
//@ end
//@ end
//@ end
}
