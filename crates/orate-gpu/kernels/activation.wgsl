//@ include math
// The function that this variant of a kernel applies.
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
//@ if CLIP
    return select(clamp(x, -1.0, 1.0), x, x != x); // what is no number stays none
//@ end
    return x;
}
