// Normal random numbers that depend on seed and position only: the stream that orate-cpu's kernels/random.rs defines.
//
// Block i of four numbers: Philox4x32-10 with key = seed and counter = i, then Box-Muller of two pairs of words. The
// polynomials are those of the CPU, and this file is compiled without fused operations: the same bits.

struct Args {
    const u64* seed;
    float* out;
    int len;
    float scale;
};

// ln(n · 2⁻²⁴) for n in 1 to 2²⁴
DEVICE float ln_of_24_bits(u32 n) {
    u32 bits = __float_as_uint((float)n);
    int e = (int)(bits - 0x3f3504f3u) >> 23;
    float m = __uint_as_float(bits - ((u32)e << 23));
    float y = (m - 1.0f) / (m + 1.0f), z = y * y;
    float atanh = y + y * (z * (1.0f / 3.0f + z * (0.2f + z * (1.0f / 7.0f + z * (1.0f / 9.0f)))));
    float f = (float)(e - 24);
    return 2.0f * atanh + f * -2.1219444e-4f + f * 0.6933594f;
}

// sin and cos of 2π · n · 2⁻²⁴
DEVICE void sin_cos_turns(u32 n, float& sine, float& cosine) {
    u32 quarter = (n + (1u << 21)) >> 22;
    float x = (float)((int)n - (int)(quarter << 22)) * (6.28318530717958647692f / 16777216.0f), z = x * x;
    float s = x + x * (z * (-1.0f / 6.0f + z * (1.0f / 120.0f + z * (-1.0f / 5040.0f + z * (1.0f / 362880.0f)))));
    float c = 1.0f + z * (-0.5f + z * (1.0f / 24.0f + z * (-1.0f / 720.0f
        + z * (1.0f / 40320.0f + z * (-1.0f / 3628800.0f)))));
    switch (quarter & 3) {
        case 0: sine = s, cosine = c; break;
        case 1: sine = c, cosine = -s; break;
        case 2: sine = -s, cosine = -c; break;
        default: sine = -c, cosine = s; break;
    }
}

extern "C" __global__ void random_normal(const Args a) {
    wait_for_previous();
    let_next_start();
    int block = blockIdx.x * blockDim.x + threadIdx.x;
    if (block * 4 >= a.len) return;
    u64 seed = *a.seed;
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    u32 x0 = block, x1 = 0, x2 = 0, x3 = 0;
#pragma unroll
    for (int i = 0; i < 10; i++) {
        u64 p0 = (u64)x0 * 0xD2511F53u, p1 = (u64)x2 * 0xCD9E8D57u;
        x0 = (u32)(p1 >> 32) ^ x1 ^ k0;
        x1 = (u32)p1;
        x2 = (u32)(p0 >> 32) ^ x3 ^ k1;
        x3 = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    u32 words[4] = {x0, x1, x2, x3};
    float y[4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float r = sqrtf(-2.0f * ln_of_24_bits((words[2 * i] >> 8) + 1)), sine, cosine;
        sin_cos_turns(words[2 * i + 1] >> 8, sine, cosine);
        y[2 * i] = r * cosine;
        y[2 * i + 1] = r * sine;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (block * 4 + i < a.len) a.out[block * 4 + i] = y[i] * a.scale;
}
