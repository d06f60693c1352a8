// The weight of a matmul [⌈K⌉, stride], in f32, or with
//
//   HALF     f16, which nearly every device can widen by one instruction; or with BF16 bf16, which becomes
//            f32 by a shift
//   BLOCKS   integers, followed by all scales in f16, [⌈K⌉ / PER_SCALE, stride]: as many rows of a column
//            share one. A weight is its integer less OFFSET, times its scale; with ADDS it is the integer
//            times its scale plus an addend, which follows each scale. A word has the bytes of four columns,
//            or with NIBBLES those of two rows, the first of them in the lower halves. Words of eight rows
//            are neighbors.
//   HIGH     with NIBBLES: HIGH_BITS upper bits of each integer follow all lower ones. A byte has those of a
//            column: of HIGH_ROWS rows, every other one, lowest first, and from bit 4 on the others.
//
// Places in a buffer are counted in elements, or with BLOCKS in quarters of a word.

//@ if BLOCKS
struct Stored {
    numbers: u32,
    scales: Scales,
}
@group(1) @binding(0) var<storage, read> matrix: array<vec4<u32>>;

// Scales, or with ADDS scales and addends, of four columns.
//@ if ADDS
alias Scales = vec4<u32>;
//@ else
alias Scales = vec2<u32>;
//@ end
//@ else
//@ if HALF
alias Stored = vec2<u32>;
//@ else
alias Stored = vec4<f32>;
//@ end
@group(1) @binding(0) var<storage, read> matrix: array<Stored>;
//@ end

//@ if BLOCKS
// Words of eight rows by four columns.
const WORDS = 8u / ${ROWS_PER_WORD}u;

fn word_at(i: u32) -> u32 {
    return matrix[i / 4u][i % 4u];
}

// First word of rows 8 · unit … 8 · unit + 7.
fn words_at(weight: u32, unit: u32, quad: u32, stride: u32) -> u32 {
    return weight / 4u + (unit * (stride / 4u) + quad) * WORDS;
}

// Word with the upper bits of row `k`.
fn high_at(weight: u32, k: u32, quad: u32, depth: u32, stride: u32) -> u32 {
//@ if HIGH
    return word_at(weight / 4u + (depth / 2u + k / ${HIGH_ROWS}u) * (stride / 4u) + quad);
//@ else
    return 0u;
//@ end
}

// Scales of row `k`.
fn scales_at(weight: u32, k: u32, quad: u32, depth: u32, stride: u32) -> Scales {
    let rows = (depth + 127u) / 128u * 128u;
    let numbers = rows / ${ROWS_PER_WORD}u * (stride / 4u) + rows * ${HIGH_BITS}u / 8u * (stride / 4u);
    let first = (weight / 4u + numbers) / 4u;
//@ if ADDS
    return matrix[first + k / ${PER_SCALE}u * (stride / 4u) + quad];
//@ else
    let both = matrix[first + k / ${PER_SCALE}u * (stride / 8u) + quad / 2u];
    return select(both.xy, both.zw, quad % 2u == 1u);
//@ end
}

fn scales_of(s: Scales) -> vec4<f32> {
//@ if ADDS
    return vec4<f32>(
        unpack2x16float(s.x).x, unpack2x16float(s.y).x, unpack2x16float(s.z).x, unpack2x16float(s.w).x);
//@ else
    return vec4<f32>(unpack2x16float(s.x), unpack2x16float(s.y));
//@ end
}

//@ if ADDS
fn addends_of(s: Scales) -> vec4<f32> {
    return vec4<f32>(
        unpack2x16float(s.x).y, unpack2x16float(s.y).y, unpack2x16float(s.z).y, unpack2x16float(s.w).y);
}
//@ end

// Integers of four columns of row `k`, in bytes.
fn numbers_of(word: u32, high: u32, k: u32) -> u32 {
//@ if NIBBLES
    var numbers = (word >> (k % 2u * 4u)) & 0x0f0f0f0fu;
//@ if HIGH
    let at = k % ${HIGH_ROWS}u / 2u * ${HIGH_BITS}u + k % 2u * 4u;
    numbers |= ((high >> at) & (${HIGH_MASK}u * 0x01010101u)) << 4u;
//@ end
    return numbers;
//@ else
    return word;
//@ end
}

// Four columns of row `k`.
fn row_at(weight: u32, k: u32, quad: u32, depth: u32, stride: u32) -> Stored {
    let word = word_at(words_at(weight, k / 8u, quad, stride) + k % 8u / ${ROWS_PER_WORD}u);
    let numbers = numbers_of(word, high_at(weight, k, quad, depth, stride), k);
    return Stored(numbers, scales_at(weight, k, quad, depth, stride));
}
//@ end

// Four elements of the weight.
fn widen(w: Stored) -> vec4<f32> {
//@ if BLOCKS
    let n = w.numbers;
    let numbers = vec4<f32>(vec4<u32>(n, n >> 8u, n >> 16u, n >> 24u) & vec4<u32>(255u));
//@ if ADDS
    return fma(numbers, scales_of(w.scales), addends_of(w.scales));
//@ else
    return (numbers - vec4<f32>(${OFFSET}.0)) * scales_of(w.scales);
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
