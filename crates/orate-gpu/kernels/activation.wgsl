//@ include math
// The activation of this kernel variant.
fn activate(x: f32, slope: f32) -> f32 {
//@ if RELU
    return max(x, 0.0);
//@ end
//@ if PRELU
    return select(x, x * slope, x < 0.0);
//@ end
//@ if GELU
    return gelu(x);
//@ end
//@ if MISH
    return mish(x);
//@ end
//@ if TANH
    return tanh_f32(x);
//@ end
//@ if EXP
    return exp_f32(x);
//@ end
//@ if SILU
    return x / (1.0 + exp_f32(-x));
//@ end
//@ if SIGMOID
    return 1.0 / (1.0 + exp_f32(-x));
//@ end
//@ if ELU
    return select(expm1_f32(min(x, 0.0)), x, x > 0.0);
//@ end
//@ if GELU_TANH
    return gelu_tanh(x);
//@ end
//@ if SIN
    return sine(x, 0.0);
//@ end
//@ if COS
    return sine(x, 0.5);
//@ end
//@ if CLIP
    // Propagate NaN. Test its bits: compilers may assume that comparisons see none.
    let is_number = (bitcast<u32>(x) & 0x7fffffffu) <= 0x7f800000u;
    return select(x, clamp(x, -1.0, 1.0), is_number);
//@ end
    return x;
}
