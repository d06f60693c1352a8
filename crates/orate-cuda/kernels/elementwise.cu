// Pointwise ops: one thread per element.
//
//   AFFINE     x[r, c] · scale[c] + shift[c]      scale or shift may be missing
//   ACTIVATE   f(x)
//   COMBINE    a · x + b · y                      y may be missing; factors fixed, or read from a scalar
//   ROW        x[r, c] + row[index, c]            index 0, or read from a scalar
//   MASK       x[b, t, c] where t < lens[b], else 0
//   MUL        x · y
//   MUL_ROW    x[r, c] · row[c]

enum Kind { AFFINE = 0, ACTIVATE = 1, COMBINE = 2, ROW = 3, MASK = 4, MUL = 5, MUL_ROW = 6 };

struct Args {
    const float* x;
    const float* y;       // the second operand: shift, row, or y
    const float* scale;   // scale; the slope for activations
    const u64* a_scalar;  // factor of x, or the row's index
    const u64* b_scalar;
    const int* lens;
    float* out;
    int kind, len, c, time, activation, row_count;
    float a, b;
    int type;  // of `out`, see `store_as`; f32 but where AFFINE stores what is rounded
};

DEVICE float factor(float fixed, const u64* scalar) {
    return scalar ? __uint_as_float((u32)*scalar) : fixed;
}

extern "C" __global__ void pointwise(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.len) return;
    switch (a.kind) {
        case AFFINE: {
            int c = i % a.c;
            float y = a.x[i];
            if (a.scale) y *= a.scale[c];
            if (a.y) y += a.y[c];
            store_as(a.type, a.out, i, y);
            break;
        }
        case ACTIVATE: a.out[i] = activate(a.activation, a.x[i], a.scale ? *a.scale : 0.0f); break;
        case COMBINE: {
            float y = factor(a.a, a.a_scalar) * a.x[i];
            if (a.y) y = fmaf(factor(a.b, a.b_scalar), a.y[i], y);
            a.out[i] = y;
            break;
        }
        case ROW: {
            u64 row = a.a_scalar ? min(*a.a_scalar, (u64)a.row_count - 1) : 0;
            a.out[i] = a.x[i] + a.y[row * a.c + i % a.c];
            break;
        }
        case MASK: {
            int t = i / a.c % a.time, b = i / a.c / a.time;
            a.out[i] = t < a.lens[b] ? a.x[i] : 0.0f;
            break;
        }
        case MUL_ROW: a.out[i] = a.x[i] * a.y[i % a.c]; break;
        case MUL: a.out[i] = a.x[i] * a.y[i]; break;
    }
}
