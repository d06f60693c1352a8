// Rows beyond the ends of each sequence: x [B, T, C] → [B, before + T + after, C]. A thread has
// four elements.

enum Padding { ZERO = 0, REPEAT = 1, REFLECT = 2 };

struct Args {
    const float* x;
    float* out;
    int len, c, time, padded, before, padding;
};

extern "C" __global__ void pad(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    // Where element i comes from; null for zeros.
    auto source = [&](int i) -> const float* {
        int row = i / a.c, b = row / a.padded, t = row - b * a.padded - a.before, last = a.time - 1;
        if (a.padding == REFLECT) t = t < 0 ? -t : t > last ? 2 * last - t : t;
        if (a.padding == ZERO && (t < 0 || t > last)) return nullptr;
        return a.x + ((size_t)b * a.time + min(max(t, 0), last)) * a.c + i - row * a.c;
    };
    if (are_fours(a.x, a.out, a.c)) {
        if (i >= a.len / 4) return;
        const float* from = source(4 * i);
        ((float4*)a.out)[i] = from ? *(const float4*)from : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        return;
    }
    for (; i < a.len; i += threads) {
        const float* from = source(i);
        a.out[i] = from ? *from : 0.0f;
    }
}
