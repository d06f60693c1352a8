// Overlap-add: x [B, F, N], window [N] → out [B, (F − 1) · hop]. One thread per sample sums the frames that
// cover it in order; see orate-cpu's kernels/overlap_add.rs.

struct Args {
    const float* x;
    const float* window;
    float* out;
    int len, samples, frames, n, hop;
};

extern "C" __global__ void overlap_add(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.len) return;
    const float* x = a.x + (size_t)(i / a.samples) * a.frames * a.n;
    int at = i % a.samples + a.n / 2;
    int first = at < a.n ? 0 : (at - a.n) / a.hop + 1, last = min(at / a.hop, a.frames - 1);
    float sum = 0.0f, squares = 0.0f;
    for (int f = first; f <= last; f++) {
        int j = at - f * a.hop;
        sum += x[(size_t)f * a.n + j];
        squares = fmaf(a.window[j], a.window[j], squares);
    }
    a.out[i] = sum / squares;
}
