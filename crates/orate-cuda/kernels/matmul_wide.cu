// Matmuls of many rows by weights of 16 bits, as defined in `matmul.cu`. x is rounded once, on its way to shared
// memory.
//
// A block has four warps, two by two, each with 16·MT channels by 8·TILES rows of one sequence, from all of K.
// Shared memory has PIECE channels of x at a time, with all rows that the taps reach, up to REACH more than the
// block has; the next ones are on their way in registers. Weights go straight to registers, in the order of
// `matmul.cu`, and both warps with the same channels find them in the first-level cache. Channels of x are a
// multiple of PIECE.

#if __CUDA_ARCH__ >= 800 && (PRECISION == 2 || PRECISION == 3)

#define WIDE_THREADS 128

template <int MT, int TILES, int PIECE, int REACH>
DEVICE void wide(const Args& a) {
    extern __shared__ float4 shared4[];
    constexpr int CHANNELS_OF_BLOCK = 32 * MT, ROWS = 16 * TILES, STEPS = PIECE / 16, LOADS = WEIGHT_LOADS * 32;
    // Two rows more, so that neighboring blocks of K are in other banks.
    constexpr int HEIGHT = ROWS + REACH + 2, QUADS = PIECE / 4, APART = WIDE_THREADS / QUADS;
    constexpr int COPIES = (ROWS + REACH + APART - 1) / APART, DEPTH = MT > 2 ? 2 : STEPS;
    constexpr bool CONVOLVES = REACH > 0;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, side = warp % 2, down = warp / 2;
    int taps = CONVOLVES ? a.k / a.channels : 1, dilation = CONVOLVES ? a.dilation : 0;
    int left = CONVOLVES ? a.left : 0, pieces = a.channels / PIECE, height = ROWS + (taps - 1) * dilation;
    int tiles = (a.time + ROWS - 1) / ROWS, sequence = blockIdx.y / tiles, start = blockIdx.y % tiles * ROWS;

    // Weights do not depend on the previous kernel. Where channels end, weights of others are multiplied for
    // nothing.
    int weights[MT / 2];
#pragma unroll
    for (int i = 0; i < MT / 2; i++) {
        int channels = (blockIdx.x * 2 + side) * (MT / 2) + i;
        weights[i] = (channels * CHANNELS < a.n ? channels : 0) * a.k_blocks * LOADS + lane;
    }
    uint4 w[DEPTH][MT];
    auto load = [&](int slot, int from) {
#pragma unroll
        for (int i = 0; i < MT; i++) w[slot][i] = a.w[weights[i / 2] + from + i % 2 * 32];
    };
#pragma unroll
    for (int i = 0; i < DEPTH; i++) load(i, i * LOADS);
    if (threadIdx.x == 0) bring_near(a.next, a.next_bytes);

    // Where this thread's rows of x begin; −1 for zeros.
    int from[COPIES], own = threadIdx.x / QUADS, quad = threadIdx.x % QUADS;
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        int t = start - left + own + i * APART;
        bool zero = CONVOLVES && (own + i * APART >= height || (a.zeros && (u32)t >= (u32)a.time));
        from[i] = zero ? -1 : (sequence * a.time + min(max(t, 0), a.time - 1)) * a.channels + quad * 4;
    }
    wait_for_previous();

    float4 x[COPIES];
    auto bring = [&](int piece) {
#pragma unroll
        for (int i = 0; i < COPIES; i++)
            x[i] = CONVOLVES && from[i] < 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                                            : *(const float4*)(a.x + from[i] + piece * PIECE);
    };
    // Sixteen channels of all rows, then the next sixteen: eight rows are 256 bytes without bank conflicts.
    uint2* shared = (uint2*)shared4;
    auto keep = [&](int stage) {
        uint2* to = shared + (stage * STEPS + quad / 4) * HEIGHT * 4 + own * 4 + quad % 4;
#pragma unroll
        for (int i = 0; i < COPIES; i++)
            if (ROWS % APART == 0 || own + i * APART < ROWS + REACH)
                to[i * APART * 4] = make_uint2(halves(x[i].x, x[i].y), halves(x[i].z, x[i].w));
    };
    bring(0);
    keep(0);
    __syncthreads();

    float acc[MT][TILES][4] = {};
    for (int piece = 0; piece < pieces; piece++) {
        if (piece + 1 < pieces) bring(piece + 1);
        const uint2* rows = shared + piece % 2 * STEPS * HEIGHT * 4 + down * 32 * TILES + lane;
        int now = piece * STEPS * LOADS;
        for (int tap = 0; tap < taps; tap++) {
            int next = tap + 1 < taps ? now + a.channels / 16 * LOADS
                                      : piece + 1 < pieces ? (piece + 1) * STEPS * LOADS : 0;
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                uint2 v[TILES];
#pragma unroll
                for (int j = 0; j < TILES; j++) v[j] = rows[step * HEIGHT * 4 + 32 * j];
#pragma unroll
                for (int j = 0; j < TILES; j++)
#pragma unroll
                    for (int m = 0; m < MT; m++) mma_half(acc[m][j], w[step % DEPTH][m], v[j].x, v[j].y);
                int later = step + DEPTH;
                load(step % DEPTH, later < STEPS ? now + later * LOADS : next + (later - STEPS) * LOADS);
            }
            now = next;
            rows += dilation * 4;
        }
        if (piece + 1 < pieces) keep((piece + 1) % 2);
        __syncthreads();
    }
    let_next_start();

    // Sums are exchanged, so that each thread stores four channels.
    constexpr int WIDTH = CHANNELS_OF_BLOCK + 4, OF_ROW = CHANNELS_OF_BLOCK / 4;
    float* sums = (float*)shared4;
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = (down * TILES + j) * 8 + lane % 4 * 2 + i % 2;
                int channel = (side * MT + m) * 16 + lane / 4 + i / 2 * 8;
                sums[row * WIDTH + channel] = acc[m][j][i];
            }
    __syncthreads();
    int n = blockIdx.x * CHANNELS_OF_BLOCK + threadIdx.x % OF_ROW * 4, first = threadIdx.x / OF_ROW;
    int end = min(ROWS, a.time - start);
    if (n >= a.n) return;
    const float* sum = sums + threadIdx.x % OF_ROW * 4;
    float slope = a.activation == PRELU ? *a.slope : 0.0f;
    // The epilogue of each sum is long; unrolled it would exceed the instruction cache.
#pragma unroll 2
    for (int row = first; row < end; row += WIDE_THREADS / OF_ROW) {
        Addends addends;
        int r = sequence * a.time + start + row;
        addends.load(a, r, n);
        store<!CONVOLVES>(a, *(const float4*)(sum + row * WIDTH), addends, r, n, slope);
    }
}

#undef KERNEL
#define KERNEL(NAME, TOGETHER_WIDE, MT, TILES, PIECE, REACH) \
    extern "C" __global__ void __launch_bounds__(WIDE_THREADS, TOGETHER_WIDE) NAME(const Args a) { \
        wide<MT, TILES, PIECE, REACH>(a); \
    }

KERNEL(matmul_wide_64, 3, 2, 4, 64, 0)
KERNEL(matmul_wide_64_conv, 3, 2, 4, 64, 8)
KERNEL(matmul_wide_128, 2, 4, 8, 32, 0)
KERNEL(matmul_wide_128_conv, 2, 4, 8, 32, 8)

#endif
