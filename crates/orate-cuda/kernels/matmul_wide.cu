// Matmuls of many rows by weights of 16 bits, as defined in `matmul.cu`. x is rounded once, on its way to
// shared memory.
//
// A block has 64 channels by 64 rows of one sequence, and GROUPS groups of four warps. Those of a group, two
// by two, have 32 channels by 32 rows each, from every GROUPS-th piece of PIECE channels of x; at the end
// sums of groups are added in order. Shared memory has a piece for each group, with all rows that the taps
// reach, up to REACH more than the block has; the next one is on its way in registers. Weights go straight to
// registers, in the order of
// `matmul.cu`, and both warps with the same channels find them in the first-level cache. Channels of x are a
// multiple of PIECE.

#if __CUDA_ARCH__ >= 800 && (PRECISION == 2 || PRECISION == 3)

// Threads of a group.
#define WIDE_THREADS 128
#define PIECE 64
// Channels and rows of a warp, in units of 16 and 8.
#define MT 2
#define TILES 4

DEVICE void group_barrier(u32 group) { asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory"); }

template <int GROUPS, int REACH>
DEVICE void wide(const Args& a) {
    extern __shared__ float4 shared4[];
    constexpr int CHANNELS_OF_BLOCK = 32 * MT, ROWS = 16 * TILES;
    constexpr int STEPS = PIECE / 16, LOADS = WEIGHT_LOADS * 32;
    // Two rows more, so that neighboring blocks of K are in other banks.
    constexpr int HEIGHT = ROWS + REACH + 2, QUADS = PIECE / 4, APART = WIDE_THREADS / QUADS;
    constexpr int COPIES = (ROWS + REACH + APART - 1) / APART;
    constexpr bool CONVOLVES = REACH > 0;
    // Blocks of K whose weights are in registers, as many as there is room for.
    constexpr int DEPTH = CONVOLVES ? 1 : 2;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, side = warp % 2, down = warp / 2;
    int group = threadIdx.x / WIDE_THREADS, thread = threadIdx.x % WIDE_THREADS;
    int taps = CONVOLVES ? a.k / a.channels : 1, dilation = CONVOLVES ? a.dilation : 0;
    int left = CONVOLVES ? a.left : 0, pieces = a.channels / PIECE, height = ROWS + (taps - 1) * dilation;
    int tiles = (a.time + ROWS - 1) / ROWS, sequence = blockIdx.y / tiles, start = blockIdx.y % tiles * ROWS;

    // Weights do not depend on the previous kernel. Where channels end, weights of others are multiplied for
    // nothing.
    int channels = blockIdx.x * 2 + side;
    int weights = (channels * CHANNELS < a.n ? channels : 0) * a.k_blocks * LOADS + lane;
    uint4 w[DEPTH][MT];
    auto load = [&](int slot, int from) {
#pragma unroll
        for (int i = 0; i < MT; i++) w[slot][i] = a.w[weights + from + i * 32];
    };
#pragma unroll
    for (int i = 0; i < DEPTH; i++) load(i, (min(group, pieces - 1) * STEPS + i) * LOADS);
    if (threadIdx.x == 0) bring_near(a.next, a.next_bytes);

    int own = thread / QUADS, quad = thread % QUADS;
    wait_for_previous();

    float4 x[COPIES];
    auto bring = [&](int piece) {
        const float* from = a.x + (size_t)sequence * a.time * a.channels + piece * PIECE + quad * 4;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            int row = own + i * APART, t = start - left + row;
            bool zero = CONVOLVES && (row >= height || (a.zeros && (u32)t >= (u32)a.time));
            x[i] = zero ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                        : *(const float4*)(from + min(max(t, 0), a.time - 1) * a.channels);
        }
    };
    // Sixteen channels of all rows, then the next sixteen: eight rows are 256 bytes without bank conflicts.
    uint2* shared = (uint2*)shared4 + group * 2 * STEPS * HEIGHT * 4;
    auto keep = [&](int stage) {
        uint2* to = shared + (stage * STEPS + quad / 4) * HEIGHT * 4 + own * 4 + quad % 4;
#pragma unroll
        for (int i = 0; i < COPIES; i++)
            if (ROWS % APART == 0 || own + i * APART < ROWS + REACH)
                to[i * APART * 4] = make_uint2(halves(x[i].x, x[i].y), halves(x[i].z, x[i].w));
    };
    if (group < pieces) {
        bring(group);
        keep(0);
        group_barrier(group);
    }

    float acc[MT][TILES][4] = {};
    int stage = 0;
    for (int piece = group; piece < pieces; piece += GROUPS, stage ^= 1) {
        bool more = piece + GROUPS < pieces;
        if (more) bring(piece + GROUPS);
        const uint2* rows = shared + stage * STEPS * HEIGHT * 4 + down * 32 * TILES + lane;
        int now = piece * STEPS * LOADS;
        for (int tap = 0; tap < taps; tap++) {
            int next = tap + 1 < taps ? now + a.channels / 16 * LOADS
                                      : more ? (piece + GROUPS) * STEPS * LOADS : 0;
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
        if (more) keep(stage ^ 1);
        group_barrier(group);
    }
    let_next_start();

    // Sums are exchanged, so that each thread stores four channels.
    constexpr int WIDTH = CHANNELS_OF_BLOCK + 4;
    float* sums = (float*)shared4;
    float* mine = sums + group * ROWS * WIDTH;
    if (GROUPS > 1) __syncthreads();
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = (down * TILES + j) * 8 + lane % 4 * 2 + i % 2;
                int channel = (side * MT + m) * 16 + lane / 4 + i / 2 * 8;
                mine[row * WIDTH + channel] = acc[m][j][i];
            }
    store_rows<GROUPS, CHANNELS_OF_BLOCK, ROWS, GROUPS * WIDE_THREADS, !CONVOLVES>(
        a, sums, sequence * a.time + start, min(ROWS, a.time - start));
}

#undef KERNEL
#define KERNEL(NAME, GROUPS, REACH) \
    extern "C" __global__ void __launch_bounds__(GROUPS * WIDE_THREADS, 4 / GROUPS) NAME(const Args a) { \
        wide<GROUPS, REACH>(a); \
    }

KERNEL(matmul_wide_2, 2, 0)
KERNEL(matmul_wide_2_conv, 2, 8)
KERNEL(matmul_wide_4, 4, 0)
KERNEL(matmul_wide_4_conv, 4, 8)

#endif
