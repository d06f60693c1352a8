// Elementary functions with f32 accuracy on every device: those of WGSL may be off by thousands of ulps.
// Polynomials and their bounds are those of the CPU executor's kernels/vecmath.rs.

// 2^n · p, if the result is a normal number.
fn scale_by_power_of_two(p: f32, n: f32) -> f32 {
    return bitcast<f32>(bitcast<i32>(p) + (i32(n) << 23u));
}

// e^(x − n ln 2), for n = round(x / ln 2); ln 2 in two parts, the first times n is exact.
fn exp_reduced(x: f32, n: f32) -> f32 {
    var r = fma(n, -0.6933594, x);
    r = fma(n, 2.1219444e-4, r);
    var q = fma(r, 0.001381461, 0.008368711);
    q = fma(q, r, 0.04166839);
    q = fma(q, r, 0.16666521);
    q = fma(q, r, 0.49999994);
    return fma(r * r, q, r) + 1.0;
}

// eˣ; results under 1.2e-38 become 0, those over 3.4e38 the largest number.
fn exp_f32(x0: f32) -> f32 {
    let x = clamp(x0, -87.3, 88.7);
    let n = round(x * 1.442695);
    // n reaches 128: in two steps each power of two is a normal number.
    let half = floor(n * 0.5);
    let y = scale_by_power_of_two(scale_by_power_of_two(exp_reduced(x, n), half), n - half);
    return select(y, 0.0, x0 < -87.3);
}

// eˣ − 1, accurate also near 0.
fn expm1_f32(x: f32) -> f32 {
    var q = fma(x, 0.001381461, 0.008368711);
    q = fma(q, x, 0.04166839);
    q = fma(q, x, 0.16666521);
    q = fma(q, x, 0.49999994);
    return select(exp_f32(x) - 1.0, fma(x * x, q, x), abs(x) < 0.34);
}

// erfc(x/√2) for x in 0 to 6, as a power of two.
fn normal_tail(x: f32) -> f32 {
    var t = fma(x, 2.8349127e-6, -3.937769e-5);
    t = fma(t, x, 1.8618025e-4);
    t = fma(t, x, 1.3693636e-4);
    t = fma(t, x, -0.00706342);
    t = fma(t, x, 0.05249618);
    t = fma(t, x, 0.4592082);
    t = fma(t, x, 1.1511052);
    let z = -x * t;
    let n = round(z);
    let f = z - n;
    var e = fma(f, 1.5353362e-4, 0.0013398875);
    e = fma(e, f, 0.009618437);
    e = fma(e, f, 0.055503324);
    e = fma(e, f, 0.24022648);
    e = fma(e, f, 0.6931472);
    e = fma(e, f, 1.0);
    return scale_by_power_of_two(e, n);
}

// x/2 · (1 + erf(x/√2)), as max(x, 0) − |x|/2 · erfc(|x|/√2).
fn gelu(x: f32) -> f32 {
    let a = min(6.0, abs(x));
    return fma(a * -0.5, normal_tail(a), max(0.0, x));
}

// x/2 · (1 + tanh(u)) for u = √(2/π) · (x + 0.044715 x³), as x / (1 + e⁻²ᵘ).
fn gelu_tanh(x: f32) -> f32 {
    return x / (1.0 + exp_f32(x * fma(x * x, -0.07135482, -1.5957691)));
}

fn tanh_f32(x: f32) -> f32 {
    let a = abs(x);
    let z = a * a;
    var s = fma(z, -5.7049887e-3, 2.063909e-2);
    s = fma(s, z, -5.3739715e-2);
    s = fma(s, z, 1.3331442e-1);
    s = fma(s, z, -3.333328e-1);
    let small = fma(s * z, a, a);
    let e = exp_f32(a * -2.0);
    let large = (1.0 - e) / (1.0 + e);
    let y = select(large, small, a < 0.625);
    return select(y, -y, x < 0.0);
}

// x · tanh(ln(1 + eˣ)), as x · m / (m + 2) with m = eˣ (eˣ + 2).
fn mish(x: f32) -> f32 {
    let e = exp_f32(min(20.0, x));
    let m = e * (e + 2.0);
    return x * (m / (m + 2.0));
}

// sin(x − nπ), within ±π/2, where n is an integer or a half. The multiple of π is subtracted in three parts,
// the first of which has few bits, so that this is exact without FMA, too. The series ends where its terms
// are below 6e-8.
fn sine_reduced(x: f32, n: f32) -> f32 {
    let r = ((x - n * 3.140625) - n * 9.67502594e-4) - n * 1.50995799e-7;
    let z = r * r;
    var q = fma(z, -2.5052108e-8, 2.7557319e-6);
    q = fma(q, z, -1.9841270e-4);
    q = fma(q, z, 8.3333333e-3);
    q = fma(q, z, -0.16666667);
    return fma(q * z, r, r);
}

// sin(x)², which has period π.
fn squared_sine(x: f32) -> f32 {
    let sine = sine_reduced(x, round(x * 0.31830989));
    return sine * sine;
}

// sin(x + shift · π): the sine for 0, the cosine for ½.
fn sine(x: f32, shift: f32) -> f32 {
    let n = round(fma(x, 0.31830989, shift));
    let y = sine_reduced(x, n - shift);
    return select(y, -y, (i32(n) & 1) != 0);
}
