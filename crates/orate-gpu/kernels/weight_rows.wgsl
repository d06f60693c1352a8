// Four rows of four columns of a weight.

//@ include weight

struct Weights {
//@ for c 4
    w_${c}: vec4<f32>,
//@ end
}

// Rows 4 · group … 4 · group + 3 of `depth`, columns col … col + 3.
fn load_weights(group: u32, weight: u32, col: u32, depth: u32, stride: u32) -> Weights {
    var w: Weights;
//@ if BLOCKS
    // Four rows share their scales and, if any, the word of their upper bits.
    var s = stored_at(0u, scales_at(weight, 4u * group, depth, stride) + col / 2u, depth, stride);
    let high = high_at(weight, 4u * group, col / 4u, depth, stride);
    let at = words_at(weight, group, col / 4u, stride) / 2u;
    let first = matrix[at];
//@ if NIBBLES
    let words = vec4<u32>(first.xx, first.yy);
//@ else
    let words = vec4<u32>(first, matrix[at + 1u]);
//@ end
//@ for c 4
    s.numbers = numbers_of(words[${c}], high, 4u * group + ${c}u);
    w.w_${c} = widen(s);
//@ end
//@ else
    let at = (weight + col) / 4u + group * stride;
//@ for c 4
    w.w_${c} = widen(matrix[at + ${c}u * (stride / 4u)]);
//@ end
//@ end
    return w;
}

// Adds four terms of four results to their sums.
fn add(x: vec4<f32>, w: Weights, sum: vec4<f32>) -> vec4<f32> {
    var y = sum;
//@ for c 4
    y = fma(vec4<f32>(x[${c}]), w.w_${c}, y);
//@ end
    return y;
}
