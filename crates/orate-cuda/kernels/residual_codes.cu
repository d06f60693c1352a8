// Residual quantization: the nearest entry of each codebook in turn. x [rows, E], books [Q, V, E] → i32
// [rows, Q].
//
// The distance is Σ (x − c)², not |x|² + |c|² − 2xc, which suffers cancellation. A block has a row, a warp
// every eighth entry, and a thread every 32nd channel. All sums have the same order, so equal entries have
// equal distances, and the first one wins.

struct Args {
    const float* x;
    const float* books;
    int* out;
    int books_count, entries, width;
};

#define WARPS 8

extern "C" __global__ void __launch_bounds__(32 * WARPS) residual_codes(const Args a) {
    extern __shared__ float rest[];  // [E]
    __shared__ float nearest[WARPS];
    __shared__ int which[WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    wait_for_previous();
    let_next_start();
    for (int e = threadIdx.x; e < a.width; e += blockDim.x) rest[e] = a.x[(size_t)blockIdx.x * a.width + e];
    for (int q = 0; q < a.books_count; q++) {
        const float* book = a.books + (size_t)q * a.entries * a.width;
        __syncthreads();
        float best = INFINITY;
        int found = a.entries;
        for (int entry = warp; entry < a.entries; entry += WARPS) {
            float sum = 0.0f;
            for (int e = lane; e < a.width; e += 32) {
                float d = rest[e] - book[(size_t)entry * a.width + e];
                sum += d * d;
            }
            sum = warp_sum(sum);
            if (sum < best) best = sum, found = entry;
        }
        if (lane == 0) nearest[warp] = best, which[warp] = found;
        __syncthreads();
        best = nearest[0], found = which[0];
        for (int i = 1; i < WARPS; i++)
            if (nearest[i] < best || (nearest[i] == best && which[i] < found))
                best = nearest[i], found = which[i];
        found = min(found, a.entries - 1);
        if (threadIdx.x == 0) a.out[(size_t)blockIdx.x * a.books_count + q] = found;
        for (int e = threadIdx.x; e < a.width; e += blockDim.x) rest[e] -= book[(size_t)found * a.width + e];
    }
}
