// Means of segments: x [B, T, C] → out [B, T, C], where each row becomes the mean of its segment of `rows`
// rows.
//
// A block has 32 channels of a segment; eight threads share the rows of each channel, and their sums are
// added in order.

struct Args {
    const float* x;
    float* out;
    int c, time, rows;
};

#define LANES 8

extern "C" __global__ void __launch_bounds__(32 * LANES) segment_mean(const Args a) {
    __shared__ float scratch[LANES][32];
    wait_for_previous();
    let_next_start();
    int c = blockIdx.x * 32 + threadIdx.x % 32, lane = threadIdx.x / 32;
    int first = blockIdx.y * a.rows, count = min(a.rows, a.time - first);
    size_t at = ((size_t)blockIdx.z * a.time + first) * a.c + c;
    float sum = 0.0f;
    if (c < a.c)
        for (int t = lane; t < count; t += LANES) sum += a.x[at + (size_t)t * a.c];
    scratch[lane][threadIdx.x % 32] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < LANES; i++) sum += scratch[i][threadIdx.x % 32];
    if (c < a.c)
        for (int t = lane; t < count; t += LANES) a.out[at + (size_t)t * a.c] = sum / count;
}
