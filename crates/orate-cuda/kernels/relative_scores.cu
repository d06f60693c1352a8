// Scores of relative positions: q [B, T, H·D], p [2T − 1, H·D] → out [B, H, T, T] with
//
//   out[b, h, i, j] = scale · q[b, i, h] · p[T − 1 − i + j, h]
//
// A block has 32 queries by 32 keys of a head, for which it needs 63 rows of p. A thread has four queries and
// one key.

struct Args {
    const float* q;
    const float* p;
    float* out;
    int heads, d, time;
    float scale;
};

#define SIDE 32
#define DEPTH 32
#define ROWS 8

extern "C" __global__ void __launch_bounds__(SIDE * ROWS) relative_scores(const Args a) {
    __shared__ float q[SIDE][DEPTH + 1], p[2 * SIDE][DEPTH + 1];
    wait_for_previous();
    let_next_start();
    int b = blockIdx.z / a.heads, head = blockIdx.z - b * a.heads, width = a.heads * a.d;
    int first_key = blockIdx.x * SIDE, first_query = blockIdx.y * SIDE;
    int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    // Row of p for the last query and the first key.
    int first = a.time - 1 - (first_query + SIDE - 1) + first_key;
    float sum[SIDE / ROWS] = {};
    for (int start = 0; start < a.d; start += DEPTH) {
        __syncthreads();
        bool is = start + x < a.d;
        int channel = head * a.d + start + x;
        for (int r = y; r < SIDE; r += ROWS) {
            int i = first_query + r;
            q[r][x] = is && i < a.time ? a.q[((size_t)b * a.time + i) * width + channel] : 0.0f;
        }
        for (int r = y; r < 2 * SIDE - 1; r += ROWS) {
            int row = first + r;
            p[r][x] = is && row >= 0 && row < 2 * a.time - 1 ? a.p[(size_t)row * width + channel] : 0.0f;
        }
        __syncthreads();
#pragma unroll 8
        for (int e = 0; e < DEPTH; e++)
#pragma unroll
            for (int r = 0; r < SIDE / ROWS; r++)
                sum[r] += q[y + r * ROWS][e] * p[SIDE - 1 - (y + r * ROWS) + x][e];
    }
    for (int r = 0; r < SIDE / ROWS; r++) {
        int i = first_query + y + r * ROWS, j = first_key + x;
        if (i < a.time && j < a.time)
            a.out[((size_t)blockIdx.z * a.time + i) * a.time + j] = a.scale * sum[r];
    }
}
