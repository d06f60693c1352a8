// Sines and cosines of angles in turns, as 32-bit fixed-point numbers: exact range reduction.

// High word of a · b.
fn mul_high(a: u32, b: u32) -> u32 {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let middle = a1 * b0 + ((a0 * b0) >> 16u);
    let other = a0 * b1 + (middle & 0xffffu);
    return a1 * b1 + (middle >> 16u) + (other >> 16u);
}

// The fraction of (x_high + x_low / 2³²) · (w_high + w_low / 2³²), in 2⁻³² turns.
fn turns(x_high: u32, x_low: u32, w_high: u32, w_low: u32) -> u32 {
    return x_high * w_low + x_low * w_high + mul_high(x_low, w_low);
}

// Cosine and sine of n · 2⁻³² turns.
fn cos_sin(n: u32) -> vec2<f32> {
    // Nearest quarter turn, and the remainder in −⅛ to ⅛ turns.
    let quarter = (n + 0x20000000u) >> 30u;
    let x = f32(bitcast<i32>(n - (quarter << 30u))) * 1.4629180792671596e-9;
    let z = x * x;
    // Taylor series for |x| ≤ π/4; the next terms are below 2e-9.
    var s = fma(z, 2.7557319e-6, -1.9841270e-4);
    s = fma(s, z, 8.3333333e-3);
    s = fma(s, z, -0.16666667);
    let sin = fma(s * z, x, x);
    var c = fma(z, -2.7557319e-7, 2.4801587e-5);
    c = fma(c, z, -1.3888889e-3);
    c = fma(c, z, 4.1666667e-2);
    c = fma(c, z, -0.5);
    let cos = fma(c, z, 1.0);
    switch quarter & 3u {
        case 0u: { return vec2<f32>(cos, sin); }
        case 1u: { return vec2<f32>(-sin, cos); }
        case 2u: { return vec2<f32>(-cos, -sin); }
        default: { return vec2<f32>(sin, -cos); }
    }
}
