// Philox4x32-10 and logarithms of its words: the stream that the CPU executor's kernels/random.rs defines.
//@ include angles

fn philox(counter: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    var x = counter;
    var k = key;
    for (var round = 0u; round < 10u; round++) {
        let high0 = mul_high(x.x, 0xD2511F53u);
        let high1 = mul_high(x.z, 0xCD9E8D57u);
        x = vec4<u32>(high1 ^ x.y ^ k.x, x.z * 0xCD9E8D57u, high0 ^ x.w ^ k.y, x.x * 0xD2511F53u);
        k += vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
    }
    return x;
}

// ln(x · 2^−down) for a normal x above 0.
fn ln_of_scaled(x: f32, down: i32) -> f32 {
    // x = m · 2^e with m in [√½, √2).
    let bits = bitcast<u32>(x);
    let e = bitcast<i32>(bits - 0x3f3504f3u) >> 23u;
    let m = bitcast<f32>(bits - (bitcast<u32>(e) << 23u));
    let y = (m - 1.0) / (m + 1.0);
    let z = y * y;
    var q = fma(z, 0.11111111, 0.14285714);
    q = fma(q, z, 0.2);
    q = fma(q, z, 0.33333333);
    let atanh = fma(y * z, q, y);
    let power = f32(e - down);
    return 2.0 * atanh + power * -2.1219444e-4 + power * 0.6933594;
}

// ln(n · 2⁻²⁴) for n in 1 to 2²⁴.
fn ln_of_24_bits(n: u32) -> f32 {
    return ln_of_scaled(f32(n), 24);
}
