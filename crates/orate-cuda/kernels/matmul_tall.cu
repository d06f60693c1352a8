// Matmuls of many rows, as defined in `matmul.cu`, with operands in shared memory, since each warp would
// otherwise read them again.
//
// A block computes 96 channels by 64 rows of one sequence from all of K: three warps side by side, each with
// 32 channels. Shared memory has 32 channels of x at a time, with all rows that the taps reach, so that a
// convolution reads x from memory once for all taps. Weights go straight to registers, in the order of
// `matmul.cu`. Channels of x are a multiple of 32, and results are not split into parts.

#if __CUDA_ARCH__ >= 800 && PRECISION < 4

#define SIDE 3
// Rows, in units of 8.
#define TALL 8
// Channels of x per stage in shared memory, number of stages, and blocks of K of one tap in a stage.
#define PIECE 32
#define STAGES 3
#define HALVES 2
// Blocks per multiprocessor: as many as registers suffice for.
#define TOGETHER_TALL (PRECISION == 0 ? 2 : 3)

DEVICE void copy_16(float4* to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

DEVICE void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all copies except those of the last STAGES − 2 groups.
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory"); }

extern "C" __global__ void __launch_bounds__(32 * SIDE, TOGETHER_TALL) matmul_tall(const Args a) {
    extern __shared__ float4 shared4[];
    constexpr int ROWS = 8 * TALL, THREADS = 32 * SIDE, LOADS = WEIGHT_LOADS * 32;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int taps = a.k / a.channels, pieces = a.channels / PIECE, height = ROWS + (taps - 1) * a.dilation;
    int tiles = (a.time + ROWS - 1) / ROWS, sequence = blockIdx.y / tiles, start = blockIdx.y % tiles * ROWS;
    int channels = blockIdx.x * SIDE + warp;

    // Weights do not depend on the previous kernel. Warps without channels only help to load rows.
    bool idle = channels * CHANNELS >= a.n;
    int weights = (idle ? 0 : channels) * a.k_blocks * LOADS + lane;
    uint4 w[HALVES][WEIGHT_LOADS];
    auto load = [&](int from, int half) {
#pragma unroll
        for (int i = 0; i < WEIGHT_LOADS; i++) w[half][i] = a.w[from + half * LOADS + i * 32];
    };
#pragma unroll
    for (int half = 0; half < HALVES; half++) load(weights, half);
    if (threadIdx.x == 0) bring_near(a.next, a.next_bytes);
    wait_for_previous();

    // Sixteen floats of all rows, then the next sixteen: eight threads that read four floats of two rows have
    // no bank conflicts.
    int at = start - a.left + (int)threadIdx.x / 8, quad = threadIdx.x % 8;
    bool inside = start >= a.left && start - a.left + height <= a.time;
    auto bring = [&](int piece) {
        float4* to =
            shared4 + (piece % STAGES * HALVES + quad / 4) * height * 4 + threadIdx.x / 8 * 4 + quad % 4;
        if (piece >= pieces) {
        } else if (inside) {
            const float* from = a.x + (sequence * a.time + at) * a.channels + piece * PIECE + quad * 4;
            for (int row = threadIdx.x / 8; row < height; row += THREADS / 8, to += THREADS / 2) {
                copy_16(to, from);
                from += THREADS / 8 * a.channels;
            }
        } else {
            for (int row = threadIdx.x / 8, t = at; row < height;
                 row += THREADS / 8, t += THREADS / 8, to += THREADS / 2) {
                if (a.zeros && (u32)t >= (u32)a.time) {
                    *to = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    continue;
                }
                bool past = a.history && t < 0;
                const float* from = past ? a.history : a.x;
                int first =
                    past ? (sequence + 1) * a.left + t : sequence * a.time + min(max(t, 0), a.time - 1);
                copy_16(to, from + first * a.channels + piece * PIECE + quad * 4);
            }
        }
        end_of_copies();
    };
#pragma unroll
    for (int piece = 0; piece < STAGES - 1; piece++) bring(piece);

    float acc[2][TALL][4] = {};

    const float4* own = shared4 + lane;
    for (int piece = 0; piece < pieces; piece++) {
        wait_for_copies();
        __syncthreads();
        bring(piece + STAGES - 1);
        const float4* rows = own + piece % STAGES * height * 8;
        int now = weights + piece * HALVES * LOADS;
        for (int tap = 0; tap < taps; tap++) {
            int next = now + a.channels / 16 * LOADS;
            if (tap == taps - 1) next = weights + (piece + 1 < pieces ? (piece + 1) * HALVES * LOADS : 0);
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                float4 v[TALL];
#pragma unroll
                for (int j = 0; j < TALL; j++) v[j] = rows[half * height * 4 + 32 * j];
                multiply<TALL>(acc, w[half], v);
                load(next, half);
            }
            now = next;
            rows += a.dilation * 4;
        }
    }
    let_next_start();

    // Sums are exchanged within the warp, so that each thread stores four channels.
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    float* sums = (float*)shared4 + warp * ROWS * STRIDE;
#pragma unroll
    for (int j = 0; j < TALL; j++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[(8 * j + lane % 4 * 2 + i % 2) * STRIDE + 16 * m + lane / 4 + i / 2 * 8] = acc[m][j][i];
    __syncwarp();
    int n = channels * CHANNELS + lane % 8 * 4, t = start + lane / 8, end = min(start + ROWS, a.time);
    if (n >= a.n) return;
    const float* from = sums + lane / 8 * STRIDE + lane % 8 * 4;
    Results<false, false> results(a, n);
    // The epilogue of each sum is long; unrolled further it would exceed the instruction cache.
#pragma unroll 2
    for (; t < end; t += 4, from += 4 * STRIDE) {
        int r = sequence * a.time + t;
        results.store(r, *(const float4*)from, results.addend(r));
    }
}

#endif
