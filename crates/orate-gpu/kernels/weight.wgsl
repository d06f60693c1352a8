// The weight of a matmul [⌈K⌉, stride], in f32, or with
//
//   HALF     f16, which nearly every device can widen by one instruction; or with BF16 bf16, which becomes
//            f32 by a shift
//   BLOCKS   signed integers, followed by all scales in f16, [⌈K⌉ / 32, stride]: 32 rows of a column share
//            one. A weight is its integer times its scale. A word has the bytes of four columns, or with
//            NIBBLES those of two rows, the first of them in the lower halves. Words of four rows are
//            neighbors.
//   SUPER    with BLOCKS and NIBBLES: numbers are not signed. With HIGH_BITS, upper bits follow all lower
//   ones: a
//            word has those of four columns of 8 / HIGH_BITS rows, the first of them lowest. The number 32 is
//            zero with HIGH_BITS 2; otherwise scales are followed by as many addends.
//
// Offsets are in elements, or with BLOCKS in quarters of a word.

//@ if BLOCKS
struct Stored {
    numbers: u32,
    scales: vec2<u32>,
//@ if ADDS
    addends: vec2<u32>,
//@ end
}
@group(1) @binding(0) var<storage, read> matrix: array<vec2<u32>>;
//@ else
//@ if HALF
alias Stored = vec2<u32>;
//@ else
alias Stored = vec4<f32>;
//@ end
@group(1) @binding(0) var<storage, read> matrix: array<Stored>;
//@ end

//@ if BLOCKS
// Words of four rows by four columns.
const WORDS = 4u / ${ROWS_PER_WORD}u;

// Word with the scales of row `k`, starting at column 0.
fn scales_at(weight: u32, k: u32, depth: u32, stride: u32) -> u32 {
    let rows = (depth + 127u) / 128u * 128u;
    let numbers = rows / ${ROWS_PER_WORD}u * (stride / 4u) + rows * ${HIGH_BITS}u / 8u * (stride / 4u);
    return weight / 4u + numbers + k / ${PER_SCALE}u * (stride / 2u);
}

fn word_at(i: u32) -> u32 {
    return matrix[i / 2u][i % 2u];
}

// First word of rows 4 · group … 4 · group + 3.
fn words_at(weight: u32, group: u32, quad: u32, stride: u32) -> u32 {
    return weight / 4u + (group * (stride / 4u) + quad) * WORDS;
}

// Word with the upper bits of row `k`.
fn high_at(weight: u32, k: u32, quad: u32, depth: u32, stride: u32) -> u32 {
//@ if HIGH
    return word_at(weight / 4u + (depth / 2u + k / ${HIGH_ROWS}u) * (stride / 4u) + quad);
//@ else
    return 0u;
//@ end
}

// Numbers of four columns of row `k`, in the upper bits of four bytes; with SUPER in the lower ones.
fn numbers_of(word: u32, high: u32, k: u32) -> u32 {
//@ if SUPER
    var numbers = (word >> (k % 2u * 4u)) & 0x0f0f0f0fu;
//@ if HIGH
    numbers |= ((high >> (k % ${HIGH_ROWS}u * ${HIGH_BITS}u)) & ${HIGH_MASK}u) << 4u;
//@ end
    return numbers;
//@ else
//@ if NIBBLES
    return word << (4u - k % 2u * 4u);
//@ else
    return word;
//@ end
//@ end
}

// Numbers of four columns with the scales at `scales`.
fn stored_at(numbers: u32, scales: u32, depth: u32, stride: u32) -> Stored {
    var s: Stored;
    s.numbers = numbers;
    s.scales = matrix[scales / 2u];
//@ if ADDS
    s.addends = matrix[(scales + depth / ${PER_SCALE}u * (stride / 2u)) / 2u];
//@ end
    return s;
}

// Four columns of row `k`.
fn row_at(weight: u32, k: u32, quad: u32, depth: u32, stride: u32) -> Stored {
    let word = word_at(words_at(weight, k / 4u, quad, stride) + k % 4u / ${ROWS_PER_WORD}u);
    let numbers = numbers_of(word, high_at(weight, k, quad, depth, stride), k);
    return stored_at(numbers, scales_at(weight, k, depth, stride) + 2u * quad, depth, stride);
}
//@ end

// Four elements of the weight.
fn widen(w: Stored) -> vec4<f32> {
//@ if BLOCKS
    let n = w.numbers;
    let scales = vec4<f32>(unpack2x16float(w.scales.x), unpack2x16float(w.scales.y));
//@ if SUPER
    let numbers = vec4<f32>(vec4<u32>(n, n >> 8u, n >> 16u, n >> 24u) & vec4<u32>(255u));
//@ if ADDS
    let addends = vec4<f32>(unpack2x16float(w.addends.x), unpack2x16float(w.addends.y));
    return fma(numbers, scales, addends);
//@ else
    return (numbers - vec4<f32>(32.0)) * scales;
//@ end
//@ else
    let upper = bitcast<vec4<i32>>(vec4<u32>(n << 24u, n << 16u, n << 8u, n));
    let numbers = upper >> vec4<u32>(${DROPPED_BITS}u);
    return vec4<f32>(numbers) * scales;
//@ end
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
