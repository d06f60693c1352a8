// Philox4x32-10 and logarithms of its words, with the polynomials of orate-cpu's kernels/random.rs. Files
// with this prefix are compiled without FMA, to get the same bits.

struct Words {
    u32 w[4];
};

DEVICE Words philox(u32 x0, u32 x1, u32 x2, u32 x3, u32 k0, u32 k1) {
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
    return {{x0, x1, x2, x3}};
}

// ln(x · 2^−down) for a normal x above 0.
DEVICE float ln_of_scaled(float x, int down) {
    u32 bits = __float_as_uint(x);
    int e = (int)(bits - 0x3f3504f3u) >> 23;
    float m = __uint_as_float(bits - ((u32)e << 23));
    float y = (m - 1.0f) / (m + 1.0f), z = y * y;
    float atanh = y + y * (z * (1.0f / 3.0f + z * (0.2f + z * (1.0f / 7.0f + z * (1.0f / 9.0f)))));
    float f = (float)(e - down);
    return 2.0f * atanh + f * -2.1219444e-4f + f * 0.6933594f;
}

// ln(n · 2⁻²⁴) for n in 1 to 2²⁴
DEVICE float ln_of_24_bits(u32 n) { return ln_of_scaled((float)n, 24); }
