// The weight of a matmul [⌈K⌉, stride], in f32, or with
//
//   HALF     f16, which becomes f32 by an instruction that nearly every device has; with BF16 the upper halves of f32, which
//            become one by a shift
//   BLOCKS   whole numbers with a sign, and after all of them the scales in f16 that 32 rows of a column share,
//            [⌈K⌉ / 32, stride]. A weight is its number times its scale. A word is bytes of four columns, or with NIBBLES those of
//            two rows, of which the first has the lower halves.
//
// Places are counted in elements, with BLOCKS in quarters of a word.

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
// Word of the scales of row `k`, whose first is that of column 0.
fn scales_at(weight: u32, k: u32, depth: u32, stride: u32) -> u32 {
    return weight / 4u + (depth + 127u) / 128u * 128u / ${ROWS_PER_WORD}u * (stride / 4u) + k / 32u * (stride / 2u);
}

// The numbers of four columns of row `k`, in the upper bits of four bytes.
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
