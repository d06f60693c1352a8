// Units of rows of four columns of a weight: four rows, or with BLOCKS eight, which share their scales. FOURS
// is a quarter of their number.

//@ include weight

//@ if BLOCKS
struct Weights {
    words: vec4<u32>,
//@ if NIBBLES
//@ else
    // Of the last four rows.
    more: vec4<u32>,
//@ end
//@ if HIGH
    high: vec2<u32>,
//@ end
    scales: Scales,
}

// Rows 8 · unit … 8 · unit + 7 of `depth`, columns col … col + 3.
fn load_weights(unit: u32, weight: u32, col: u32, depth: u32, stride: u32) -> Weights {
    var w: Weights;
    let at = words_at(weight, unit, col / 4u, stride) / 4u;
    w.words = matrix[at];
//@ if NIBBLES
//@ else
    w.more = matrix[at + 1u];
//@ end
//@ if HIGH
    w.high.x = high_at(weight, 8u * unit, col / 4u, depth, stride);
//@ if HIGH_OF_FOUR
    w.high.y = high_at(weight, 8u * unit + 4u, col / 4u, depth, stride);
//@ else
    w.high.y = w.high.x;
//@ end
//@ end
    w.scales = scales_at(weight, 8u * unit, col / 4u, depth, stride);
    return w;
}

// 1024 in both halves of a word: an integer of up to ten bits is added to it as its lower bits. Integers that
// are four bits higher are added to 64, of which the lowest bit counts a sixteenth.
const FIRST = 0x64006400u;
const SIXTEENTHS = 0x54005400u;

// Columns 0 and 2, and 1 and 3, less what was added to them.
fn floats(first: u32, second: u32, less: f32) -> vec4<f32> {
    let a = unpack2x16float(first);
    let b = unpack2x16float(second);
    return vec4<f32>(a.x, b.x, a.y, b.y) - vec4<f32>(less);
}

// The numbers of a row, which are to be scaled.
//@ for q FOURS
//@ for c 4
fn numbers_${q}_${c}(w: Weights) -> vec4<f32> {
//@ if NIBBLES
    const ROW = ${q}u * 4u + ${c}u;
    const HIGHER = ROW % 2u * 4u;
    const ADDED = select(FIRST, SIXTEENTHS, HIGHER > 0u);
    const LESS = select(1024.0, 64.0, HIGHER > 0u) + ${OFFSET}.0;
    const MASK = 0x000f000fu << HIGHER;
    let word = w.words[ROW / 2u];
    var first = (word & MASK) | ADDED;
    var second = ((word >> 8u) & MASK) | ADDED;
//@ if HIGH
    const UPPER = (${HIGH_MASK}u * 0x00100010u) << HIGHER;
    const AT = ROW % ${HIGH_ROWS}u / 2u * ${HIGH_BITS}u;
    first |= (w.high[${q}] << (4u - AT)) & UPPER;
    second |= (w.high[${q}] >> (4u + AT)) & UPPER;
//@ end
    return floats(first, second, LESS);
//@ else
    let word = select(w.words, w.more, ${q}u == 1u)[${c}];
    let first = (word & 0x00ff00ffu) | FIRST;
    let second = ((word >> 8u) & 0x00ff00ffu) | FIRST;
    return floats(first, second, 1024.0 + ${OFFSET}.0);
//@ end
}
//@ end
//@ end
//@ else
struct Weights {
//@ for c 4
    w_${c}: vec4<f32>,
//@ end
}

// Rows 4 · unit … 4 · unit + 3, columns col … col + 3.
fn load_weights(unit: u32, weight: u32, col: u32, depth: u32, stride: u32) -> Weights {
    var w: Weights;
    let at = (weight + col) / 4u + unit * stride;
//@ for c 4
    w.w_${c} = widen(matrix[at + ${c}u * (stride / 4u)]);
//@ end
    return w;
}
//@ end

// Adds the terms of a unit to the sums of four results.
fn add(
    w: Weights,
//@ for q FOURS
    x_${q}: vec4<f32>,
//@ end
    sum: vec4<f32>,
) -> vec4<f32> {
//@ if BLOCKS
    // Sums of a unit are scaled together.
    var y = vec4<f32>();
//@ for q FOURS
//@ for c 4
    y = fma(vec4<f32>(x_${q}[${c}]), numbers_${q}_${c}(w), y);
//@ end
//@ end
    y = fma(scales_of(w.scales), y, sum);
//@ if ADDS
    var total = 0.0;
//@ for q FOURS
    total += dot(x_${q}, vec4<f32>(1.0));
//@ end
    y = fma(addends_of(w.scales), vec4<f32>(total), y);
//@ end
    return y;
//@ else
    var y = sum;
//@ for c 4
    y = fma(vec4<f32>(x_0[${c}]), w.w_${c}, y);
//@ end
    return y;
//@ end
}
