// Convolutions of seven neighboring rows to one channel, as at the end of a vocoder. A matmul would read the
// rows once per tap, and compute channels that nothing reads.
//
//   x [B, T, C], past [B, left, C], weight [7, C] → out [B, T], with bias and activation; C is 32 · PER
//
// A warp has 32 results, a thread the same channels of every row. A row is read once and added to the seven
// sums that it is part of; a complete sum is reduced over the warp. Rows before the first are `past`; without
// it, and after the last row, edges repeat, or are zeros.

struct Args {
    const float* x;
    const float* past;
    const float* weight;
    const float* bias;   // or null
    const float* slope;
    const float* row;    // or null: [row_count]; the one that `index` selects is added at the end
    const u64* index;
    float* out;
    int batch, time, left, activation, row_count, zeros;
};

#define TAPS 7
#define RUN 32
// Rows in flight.
#define AHEAD 8

template <int PER>
DEVICE void narrow(const Args& a) {
    const int width = 32 * PER;
    int lane = threadIdx.x % 32, item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int runs = (a.time + RUN - 1) / RUN, b = item / runs, start = (item - b * runs) * RUN;
    float w[TAPS][PER];
#pragma unroll
    for (int k = 0; k < TAPS; k++)
#pragma unroll
        for (int p = 0; p < PER; p++) w[k][p] = a.weight[k * width + lane + 32 * p];
    float bias = a.bias ? *a.bias : 0.0f, slope = a.activation == PRELU ? *a.slope : 0.0f;
    wait_for_previous();
    let_next_start();
    if (b >= a.batch) return;
    const float* x = a.x + (size_t)b * a.time * width + lane;
    const float* past = a.past ? a.past + (size_t)b * a.left * width + lane : nullptr;
    // sum[k] belongs to the result for which row i is tap k.
    float sum[TAPS], mine = 0.0f;
#pragma unroll
    for (int k = 0; k < TAPS; k++) sum[k] = 0.0f;
    for (int first = 0; first < RUN + TAPS - 1; first += AHEAD) {
        float rows[AHEAD][PER];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int row = start - a.left + first + i;
            const float* from = past && row < 0 ? past + (size_t)max(row + a.left, 0) * width
                                                : x + (size_t)min(max(row, 0), a.time - 1) * width;
#pragma unroll
            for (int p = 0; p < PER; p++)
                rows[i][p] = a.zeros && (u32)row >= (u32)a.time ? 0.0f : from[32 * p];
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
#pragma unroll
            for (int k = TAPS - 1; k > 0; k--) sum[k] = sum[k - 1];
            sum[0] = 0.0f;
#pragma unroll
            for (int k = 0; k < TAPS; k++)
#pragma unroll
                for (int p = 0; p < PER; p++) sum[k] += w[k][p] * rows[i][p];
            float y = warp_sum(sum[TAPS - 1]);
            if (lane == first + i - (TAPS - 1)) mine = y;
        }
    }
    if (start + lane >= a.time) return;
    float y = activate(a.activation, mine + bias, slope);
    if (a.row) y += a.row[min(*a.index, (u64)a.row_count - 1)];
    a.out[(size_t)b * a.time + start + lane] = y;
}

#define KERNEL(NAME, PER) \
    extern "C" __global__ void __launch_bounds__(256) NAME(const Args a) { narrow<PER>(a); }

KERNEL(narrow_32, 1)
KERNEL(narrow_64, 2)
KERNEL(narrow_96, 3)
KERNEL(narrow_128, 4)
