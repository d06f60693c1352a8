// Normal random numbers that depend on seed and index only: the stream that orate-cpu's kernels/random.rs
// defines.
//
// Block i of four numbers: Philox4x32-10 with key = seed and counter = i, then Box-Muller of two pairs of
// words.

struct Args {
    const u64* seed;
    float* out;
    int len;
    float scale;
};

// sin and cos of 2π · n · 2⁻²⁴
DEVICE void sin_cos_turns(u32 n, float& sine, float& cosine) {
    u32 quarter = (n + (1u << 21)) >> 22;
    float x = (float)((int)n - (int)(quarter << 22)) * (6.28318530717958647692f / 16777216.0f), z = x * x;
    float s = x + x * (z * (-1.0f / 6.0f + z * (1.0f / 120.0f + z * (-1.0f / 5040.0f
        + z * (1.0f / 362880.0f)))));
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
    Words x = philox(block, 0, 0, 0, (u32)seed, (u32)(seed >> 32));
    float y[4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float r = sqrtf(-2.0f * ln_of_24_bits((x.w[2 * i] >> 8) + 1)), sine, cosine;
        sin_cos_turns(x.w[2 * i + 1] >> 8, sine, cosine);
        y[2 * i] = r * cosine;
        y[2 * i + 1] = r * sine;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (block * 4 + i < a.len) a.out[block * 4 + i] = y[i] * a.scale;
}
