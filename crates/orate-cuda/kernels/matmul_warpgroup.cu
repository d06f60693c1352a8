// Matmuls of many rows by weights of 16 bits or in blocks on Hopper, as defined in `matmul.cu`. x is stored
// in 16 bits, or rounded once, on its way to shared memory.
//
// A block has ROWS rows of one sequence, and GROUPS groups of WIDE warpgroups, each of which has 64 channels.
// The groups of a cluster of blocks multiply pieces of PIECE channels of x in turn; at the end their sums are
// added in order. Shared memory has two stages of a piece for each group, with all rows that the taps reach,
// up to REACH more than the block has. The next piece is on its way in registers. Weights go straight to
// registers, in the order of `matmul.cu`, one tap of a piece ahead. Those in blocks are widened to f16 when
// they are multiplied, once for all rows of the block. Channels of x are a multiple of PIECE.

#if __CUDA_ARCH__ == 900

#define ROWS 64

// What a row of x is multiplied by: one over the root of the mean of its squares.
DEVICE float factor_of_row(const Args& a, int row) {
    const float4* sums = (const float4*)(a.history + (size_t)row * (a.channels / 64));
    float sum = 0.0f;
#pragma unroll 4
    for (int i = 0; i < a.channels / 256; i++) {
        float4 four = sums[i];
        sum += (four.x + four.y) + (four.z + four.w);
    }
    return 1.0f / sqrtf(sum / a.channels + a.eps);
}

// Weights of 16 channels by a piece of K, as they are stored.
#if PRECISION >= 4
struct Weights {
    static constexpr int STEPS = PIECE / 16, SCALES = STEPS / PER_SCALE, PLANES = STEPS / PER_PLANE;
    Numbers numbers[STEPS];
    u32 high[HAS_PLANES ? PLANES : 1], scale[SCALES], added[HAS_MINIMA ? SCALES : 1];

    __device__ __forceinline__ uint4 operand(int i) const {
        u32 bits = HAS_PLANES ? high[i / PER_PLANE] >> (PER_PLANE == 2 ? i % 2 * 8 : 0) : 0;
        return widened(numbers[i], bits, scale[i / PER_SCALE], HAS_MINIMA ? added[i / PER_SCALE] : 0);
    }
};

// Where those of a thread are: 16 of 32 channels, as in `matmul.cu`.
struct Channels {
    const char* numbers;
    // From there to upper bits and to scales.
    int planes, scales;

    __device__ __forceinline__ Channels(const Args& a, int channels, int lane) {
        int half = half_of_warp();
        planes = a.k_blocks * 32 * (int)sizeof(Stored);
        scales = planes + (HAS_PLANES ? a.k_blocks / PER_PLANE * 128 : 0);
        int size = scales + (a.k_blocks + PER_SCALE - 1) / PER_SCALE * 8 * (int)sizeof(Scales);
        int own = lane * sizeof(Stored) + half * sizeof(Numbers);
        numbers = (const char*)a.w + (size_t)channels * size + own;
        planes += lane * 4 - own, scales += lane / 4 * sizeof(Scales) + 4 * half - own;
    }

    // Neighboring warps have the two halves of 32 channels.
    static __device__ __forceinline__ int half_of_warp() { return threadIdx.x / 32 % 2; }

    // The piece that begins with the block `first` of 16 of K.
    __device__ __forceinline__ void load(Weights& to, int first) const {
#pragma unroll
        for (int i = 0; i < Weights::STEPS; i++)
            to.numbers[i] = *(const Numbers*)(numbers + (first + i) * 32 * (int)sizeof(Stored));
#pragma unroll
        for (int i = 0; HAS_PLANES && i < Weights::PLANES; i++)
            to.high[i] = *(const u32*)(numbers + planes + (first / PER_PLANE + i) * 128)
                         >> half_of_warp() * HIGH_BITS;
#pragma unroll
        for (int i = 0; i < Weights::SCALES; i++) {
            const char* from = numbers + scales + (first / PER_SCALE + i) * 8 * (int)sizeof(Scales);
            to.scale[i] = *(const u32*)from;
            if (HAS_MINIMA) to.added[i] = *(const u32*)(from + 8);
        }
    }
};
#else
typedef uint4 Weights[PIECE / 16];
#endif

template <int GROUPS, int WIDE, int REACH, Norms NORMS>
DEVICE void product_in_groups(const Args& a) {
    extern __shared__ float4 shared4[];
    constexpr int STEPS = PIECE / 16, CHANNELS_OF_BLOCK = 64 * WIDE, OF_GROUP = 128 * WIDE;
    constexpr bool CONVOLVES = REACH > 0;
    // A stage has a line for each row.
    constexpr int HIGHEST = ROWS + REACH, STAGE = 2 * PIECE * HIGHEST;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % (4 * WIDE);
    u32 blocks = cluster_blocks(), rank = cluster_rank();
    int group = threadIdx.x / OF_GROUP, thread = threadIdx.x % OF_GROUP;
    // Of the cluster.
    int groups = blocks * GROUPS, number = rank * GROUPS + group;
    int taps = CONVOLVES ? a.k / a.channels : 1, dilation = CONVOLVES ? a.dilation : 0;
    int left = CONVOLVES ? a.left : 0, height = ROWS + (taps - 1) * dilation;
    int tiles = (a.time + ROWS - 1) / ROWS, sequence = blockIdx.y / tiles, start = blockIdx.y % tiles * ROWS;
    // Pieces of this group, and those with each of their taps.
    int pieces = max((a.channels / PIECE - number + groups - 1) / groups, 0), steps = pieces * taps;

    // Weights do not depend on the previous kernel. Where channels end, weights of others are multiplied for
    // nothing.
    int sixteen = blockIdx.x * 4 * WIDE + warp;
    // Half of the warps of a gated block have channels of the first part, the others the same of the second.
    if (!CONVOLVES && a.gated)
        sixteen = blockIdx.x * 2 * WIDE + warp % (2 * WIDE) + (warp < 2 * WIDE ? 0 : a.first / 16);
    int channels = sixteen / 2;
    if (channels * CHANNELS >= a.n) channels = 0;
#if PRECISION >= 4
    Channels weights(a, channels, lane);
#else
    const uint4* weights = a.w + (size_t)channels * a.k_blocks * 64 + sixteen % 2 * 32 + lane;
#endif
    Weights w[2];
    // Weights of the step `later`, at most two, after a tap of a piece.
    auto load = [&](Weights& w, int piece, int tap, int later) {
        if (CONVOLVES) {
            tap += later;
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (tap >= taps) tap -= taps, piece++;
        } else piece += later;
        int block = tap * (a.channels / 16) + (number + piece * groups) * STEPS;
#if PRECISION >= 4
        weights.load(w, block);
#else
#pragma unroll
        for (int i = 0; i < STEPS; i++) w[i] = weights[(block + i) * 64];
#endif
    };
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (i < steps) load(w[i], 0, 0, i);
    if (threadIdx.x == 0) bring_near(a.next, a.next_bytes);

    // With a reach of 64, only rows stored in 16 bits fit into registers.
    bool is_rounded = REACH > 8 || a.halves & 1;
    if (blocks > 1) cluster_arrive();
    wait_for_previous();

    typedef Copy<false, OF_GROUP, HIGHEST, CONVOLVES> Full;
    typedef Copy<true, OF_GROUP, HIGHEST, CONVOLVES> Rounded;
    float4 x[REACH > 8 ? Rounded::COUNT : Full::COUNT];
    auto bring = [&](int piece) {
        size_t first = (size_t)sequence * a.time * a.channels + (number + piece * groups) * PIECE;
        if (is_rounded) Rounded::bring(a, x, thread, first, start - left, height);
        else if constexpr (REACH <= 8) Full::bring(a, x, thread, first, start - left, height);
    };
    char* shared = lines_in(shared4) + group * 2 * STAGE;
    auto put = [&](int stage) {
        if (is_rounded) Rounded::put(x, thread, shared + stage * STAGE);
        else if constexpr (REACH <= 8) Full::put(x, thread, shared + stage * STAGE);
    };
    if (pieces > 0) bring(0);
    __shared__ float row_factors[NORMS ? ROWS : 1];
    const float* factors = NORMS && a.history ? row_factors : 0;
    if (factors && threadIdx.x < ROWS)
        row_factors[threadIdx.x] = factor_of_row(a, min((int)(start + threadIdx.x), a.rows - 1));
    if (pieces > 0) put(0);
    if (pieces > 1) bring(1);

    float acc[ROWS / 8][4] = {};
    u64 first = right_operand(shared);
    // Multiplies by the weights in `now`, and then loads those of the step after the next.
    auto multiply_step = [&](Weights& stored, int piece, int tap) {
#if PRECISION >= 4
        uint4 now[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; i++) now[i] = stored.operand(i);
#else
        Weights& now = stored;
#endif
        if (tap == 0) group_barrier(group, OF_GROUP);
        u64 rows = first + piece % 2 * (STAGE / 16) + tap * dilation * (128 / 16);
        keep(now), keep(acc);
        start_products();
#pragma unroll
        for (int i = 0; i < STEPS; i++) multiply_64<ADD, ROWS_OF_K>(acc, now[i], rows + 2 * i);
        end_products();
        if (tap == 0 && piece + 1 < pieces) {
            put((piece + 1) % 2);
            if (piece + 2 < pieces) bring(piece + 2);
        }
        wait_for_products<0>();
        keep(now), keep(acc);
        if (steps > 2) load(stored, piece, tap, 2);
        steps--;
    };
    for (int piece = 0, tap = 0; steps > 0;) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (steps == 0) break;
            multiply_step(w[i], piece, tap);
            if (++tap == taps) tap = 0, piece++;
        }
    }
    let_next_start();

    // Sums are exchanged, so that each thread stores four channels.
    constexpr int WIDTH = CHANNELS_OF_BLOCK + 4;
    // The inbox follows the stages: other blocks may write it while this one still multiplies.
    constexpr int OF_SUMS = 4 * ROWS * WIDTH, OF_STAGES = 2 * STAGE;
    constexpr int INBOX = GROUPS * (OF_STAGES > OF_SUMS ? OF_STAGES : OF_SUMS) + LINES;
    float* sums = (float*)shared4;
    float* mine = sums + group * ROWS * WIDTH + warp * 16;
    __syncthreads();
    put_sums<WIDTH>(mine, acc);
    int first_row = sequence * a.time + start, end = min(ROWS, a.time - start);
    constexpr int THREADS = GROUPS * OF_GROUP;
    float* inbox = (float*)((char*)sums + INBOX);
    if (blocks == 1)
        store_rows<GROUPS, CHANNELS_OF_BLOCK, ROWS, THREADS, !CONVOLVES, true, 2, NORMS>(
            a, sums, first_row, end, factors);
    else
        store_shared_rows<GROUPS, CHANNELS_OF_BLOCK, ROWS, THREADS, !CONVOLVES, NORMS>(
            a, sums, inbox, first_row, end, factors);
}

#undef KERNEL
#define THREADS(GROUPS, WIDE) (128 * (GROUPS) * (WIDE))
#define KERNEL(NAME, GROUPS, WIDE, REACH, NORMS) \
    extern "C" __global__ void __launch_bounds__(THREADS(GROUPS, WIDE), 512 / THREADS(GROUPS, WIDE)) \
        NAME(const Args a) { product_in_groups<GROUPS, WIDE, REACH, NORMS>(a); }

KERNEL(matmul_warpgroup_4, 4, 1, 0, PLAIN)
KERNEL(matmul_warpgroup_2, 2, 1, 0, PLAIN)
KERNEL(matmul_warpgroup_1, 1, 2, 0, PLAIN)
#if PRECISION < 4
KERNEL(matmul_warpgroup_4_normed, 4, 1, 0, NORMED)
KERNEL(matmul_warpgroup_4_conv, 4, 1, 8, PLAIN)
KERNEL(matmul_warpgroup_4_far, 4, 1, 64, PLAIN)
KERNEL(matmul_warpgroup_2_normed, 2, 1, 0, NORMED)
KERNEL(matmul_warpgroup_2_conv, 2, 1, 8, PLAIN)
KERNEL(matmul_warpgroup_2_far, 2, 1, 64, PLAIN)
KERNEL(matmul_warpgroup_1_normed, 1, 2, 0, NORMED)
KERNEL(matmul_warpgroup_1_conv, 1, 2, 8, PLAIN)
#endif

#endif
