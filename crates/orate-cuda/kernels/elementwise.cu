// Pointwise ops: a thread has four elements.
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

// Result i of x and, where it has elements of its own, of y.
DEVICE float result(const Args& a, int i, float x, float y) {
    switch (a.kind) {
        case AFFINE: {
            int c = i % a.c;
            if (a.scale) x *= a.scale[c];
            return a.y ? x + a.y[c] : x;
        }
        case ACTIVATE: return activate(a.activation, x, a.scale ? *a.scale : 0.0f);
        case COMBINE:
            x *= factor(a.a, a.a_scalar);
            return a.y ? fmaf(factor(a.b, a.b_scalar), y, x) : x;
        case ROW: {
            u64 row = a.a_scalar ? min(*a.a_scalar, (u64)a.row_count - 1) : 0;
            return x + a.y[row * a.c + i % a.c];
        }
        case MASK: {
            int t = i / a.c % a.time, b = i / a.c / a.time;
            return t < a.lens[b] ? x : 0.0f;
        }
        case MUL_ROW: return x * a.y[i % a.c];
        default: return x * y;
    }
}

extern "C" __global__ void pointwise(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    const float* second = a.kind == COMBINE || a.kind == MUL ? a.y : nullptr;
    if (are_fours(a.x, a.out, a.len) && ((size_t)second & 15) == 0) {
        if (i >= a.len / 4) return;
        float4 x = ((const float4*)a.x)[i], y = second ? ((const float4*)second)[i] : x;
        x.x = result(a, 4 * i, x.x, y.x), x.y = result(a, 4 * i + 1, x.y, y.y);
        x.z = result(a, 4 * i + 2, x.z, y.z), x.w = result(a, 4 * i + 3, x.w, y.w);
        store_as(a.type, a.out, 4 * (size_t)i, x);
        return;
    }
    for (; i < a.len; i += threads)
        store_as(a.type, a.out, i, result(a, i, a.x[i], second ? second[i] : 0.0f));
}
