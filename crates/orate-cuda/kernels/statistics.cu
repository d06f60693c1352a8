// Mean, then standard deviation, of each channel over time: x and scores [B, T, C] → [B, 2C].
//
// Rows are weighted by softmax(scores) over time, or equally. A block has 32 channels of a batch row; eight
// threads share the rows of each channel, and their sums are added in order. Variance sums squared
// differences from the mean.

struct Args {
    const float* x;
    const float* scores;  // or null
    float* out;
    int c, time;
    float floor;
};

#define LANES 8

// Sum or maximum over the threads of a channel.
template <bool LARGEST>
DEVICE float over_lanes(float v, float (*scratch)[32]) {
    __syncthreads();
    scratch[threadIdx.x / 32][threadIdx.x % 32] = v;
    __syncthreads();
    v = scratch[0][threadIdx.x % 32];
#pragma unroll
    for (int i = 1; i < LANES; i++) {
        float other = scratch[i][threadIdx.x % 32];
        v = LARGEST ? fmaxf(v, other) : v + other;
    }
    return v;
}

extern "C" __global__ void __launch_bounds__(32 * LANES) statistics(const Args a) {
    __shared__ float scratch[LANES][32];
    wait_for_previous();
    let_next_start();
    int c = blockIdx.x * 32 + threadIdx.x % 32, lane = threadIdx.x / 32, b = blockIdx.y;
    bool is = c < a.c;
    const float* x = a.x + (size_t)b * a.time * a.c + (is ? c : 0);
    const float* scores = a.scores ? a.scores + (size_t)b * a.time * a.c + (is ? c : 0) : 0;
    float largest = -INFINITY;
    if (scores)
        for (int t = lane; t < a.time; t += LANES) largest = fmaxf(largest, scores[(size_t)t * a.c]);
    largest = over_lanes<true>(largest, scratch);
    float total = 0.0f, sum = 0.0f;
    for (int t = lane; t < a.time; t += LANES) {
        float p = scores ? expf(scores[(size_t)t * a.c] - largest) : 1.0f;
        total += p, sum += p * x[(size_t)t * a.c];
    }
    total = over_lanes<false>(total, scratch);
    float mean = over_lanes<false>(sum, scratch) / total, squares = 0.0f;
    for (int t = lane; t < a.time; t += LANES) {
        float p = scores ? expf(scores[(size_t)t * a.c] - largest) : 1.0f, d = x[(size_t)t * a.c] - mean;
        squares += p * d * d;
    }
    squares = over_lanes<false>(squares, scratch) / total;
    if (lane > 0 || !is) return;
    float* out = a.out + (size_t)b * 2 * a.c + c;
    out[0] = mean;
    out[a.c] = sqrtf(fmaxf(squares, a.floor));
}
