// Rows of keys and values in a compact type: F16, BF16, or Q8_0, whose rows are signed bytes followed by f16
// scales, one per 32 bytes. A row is whole words and may begin at any word. `FOURS` says that memory is bound
// as vectors of four; `EIGHTS` in addition that there are 16 bits, and eight elements in each vector.

fn kept_word(i: u32) -> u32 {
//@ if FOURS
    return bitcast<vec4<u32>>(memory[i >> 2u])[i & 3u];
//@ else
    return bitcast<u32>(memory[i]);
//@ end
}

// Words of a row of elements.
fn kept_words(width: u32) -> u32 {
//@ if Q8_0
    return width / 4u + width / 64u;
//@ else
    return width / 2u;
//@ end
}

// Elements at .. at + 3 of the row at this word; `at` is a multiple of 4.
fn kept_four(row: u32, width: u32, at: u32) -> vec4<f32> {
//@ if Q8_0
    let word = bitcast<i32>(kept_word(row + at / 4u));
    let bytes = (vec4<i32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
    let scales = unpack2x16float(kept_word(row + width / 4u + at / 64u));
    return vec4<f32>(bytes) * select(scales.x, scales.y, (at & 32u) != 0u);
//@ else
//@ if EIGHTS
    return widened_half(kept_eight(row, at), at);
//@ else
    return widened(vec2<u32>(kept_word(row + at / 2u), kept_word(row + at / 2u + 1u)));
//@ end
//@ end
}

//@ if EIGHTS
// The vector with elements at .. at + 3 of the row at this word. Neighboring threads read the same one, which
// takes less than reading single words.
fn kept_eight(row: u32, at: u32) -> vec4<f32> {
    return memory[(row + at / 2u) >> 2u];
}

// Its elements at .. at + 3.
fn widened_half(eight: vec4<f32>, at: u32) -> vec4<f32> {
    return widened(bitcast<vec2<u32>>(select(eight.xy, eight.zw, (at & 4u) != 0u)));
}
//@ end

fn widened(words: vec2<u32>) -> vec4<f32> {
//@ if F16
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
//@ else
    return bitcast<vec4<f32>>((words.xxyy << vec4<u32>(16u, 0u, 16u, 0u)) & vec4<u32>(0xffff0000u));
//@ end
}

// Element `at` of the row at this word.
fn kept_one(row: u32, width: u32, at: u32) -> f32 {
//@ if Q8_0
    return kept_four(row, width, at & ~3u)[at & 3u];
//@ else
    let word = kept_word(row + at / 2u);
//@ if F16
    return unpack2x16float(word)[at & 1u];
//@ else
    return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (at & 1u) != 0u));
//@ end
//@ end
}
