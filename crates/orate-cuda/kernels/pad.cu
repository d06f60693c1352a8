// Rows beyond the ends of each sequence: x [B, T, C] → [B, before + T + after, C]. One thread per element.

enum Padding { ZERO = 0, REPEAT = 1, REFLECT = 2 };

struct Args {
    const float* x;
    float* out;
    int len, c, time, padded, before, padding;
};

extern "C" __global__ void pad(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.len) return;
    int t = i / a.c % a.padded - a.before, b = i / a.c / a.padded, last = a.time - 1;
    if (a.padding == REFLECT) t = t < 0 ? -t : t > last ? 2 * last - t : t;
    bool is = a.padding != ZERO || (t >= 0 && t <= last);
    t = min(max(t, 0), last);
    a.out[i] = is ? a.x[((size_t)b * a.time + t) * a.c + i % a.c] : 0.0f;
}
