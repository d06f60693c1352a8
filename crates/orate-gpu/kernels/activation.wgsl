//@ include math
// The activation of this kernel variant.
fn activate(x: f32, slope: f32) -> f32 {
    var y = x;
//@ if RELU
    y = max(x, 0.0);
//@ end
//@ if PRELU
    y = select(x, x * slope, x < 0.0);
//@ end
//@ if GELU
    y = gelu(x);
//@ end
//@ if MISH
    y = mish(x);
//@ end
//@ if TANH
    y = tanh_f32(x);
//@ end
//@ if EXP
    y = exp_f32(x);
//@ end
//@ if SILU
    y = x / (1.0 + exp_f32(-x));
//@ end
//@ if SIGMOID
    y = 1.0 / (1.0 + exp_f32(-x));
//@ end
//@ if ELU
    y = select(expm1_f32(min(x, 0.0)), x, x > 0.0);
//@ end
//@ if GELU_TANH
    y = gelu_tanh(x);
//@ end
//@ if SIN
    y = sine(x, 0.0);
//@ end
//@ if COS
    y = sine(x, 0.5);
//@ end
//@ if CLIP
    // Propagate NaN. Test its bits: compilers may assume that comparisons see none.
    let is_number = (bitcast<u32>(x) & 0x7fffffffu) <= 0x7f800000u;
    y = select(x, clamp(x, -1.0, 1.0), is_number);
//@ end
    return y;
}
