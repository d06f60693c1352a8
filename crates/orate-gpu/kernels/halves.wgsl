// Values in f16, two to a word of memory.

// Stores four from element `at` of the value at word `first` on; `at` is a multiple of four.
fn store_halves(first: u32, at: u32, x: vec4<f32>) {
    let word = first + at / 2u;
    memory[word >> 2u][word & 3u] = bitcast<f32>(pack2x16float(x.xy));
    memory[word >> 2u][(word & 3u) + 1u] = bitcast<f32>(pack2x16float(x.zw));
}
