// Convolutions of many rows by weights of 16 bits on Hopper, as defined in `matmul.cu`, whose x is stored in
// 16 bits. Taps may reach up to REACH rows beyond those of a block.
//
// A block has 128 rows of one sequence and 64 channels for each of its WIDE warpgroups. Shared memory has two
// stages of a piece of x, 16 · STEPS channels, with all rows that the taps reach, so that x is read once for
// all taps; the next piece is copied meanwhile. Weights go straight to registers, in the order of
// `matmul.cu`, SETS steps ahead: a step is a tap of a piece. Channels of x are a multiple of a piece. Blocks
// that share a multiprocessor wait for weights in turn; one that is alone needs them earlier.

#if __CUDA_ARCH__ == 900

#define ROWS 128
#define REACH 64
#define STAGE (128 * (ROWS + REACH))

// Starts to copy two channels, or zeros.
DEVICE void copy_pair(u32 to, const u16* from, bool zero) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(to), "l"(from), "r"(zero ? 0 : 4) : "memory");
}

template <int WIDE, int STEPS, int SETS>
DEVICE void convolution(const Args& a) {
    extern __shared__ float4 shared4[];
    constexpr int PIECE = 16 * STEPS, WARPS_OF_BLOCK = 4 * WIDE, CHANNELS_OF_BLOCK = 64 * WIDE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int taps = a.k / a.channels, height = ROWS + (taps - 1) * a.dilation;
    int tiles = (a.time + ROWS - 1) / ROWS, sequence = blockIdx.y / tiles, start = blockIdx.y % tiles * ROWS;
    int pieces = a.channels / PIECE, steps = pieces * taps;

    // Where channels end, weights of others are multiplied for nothing.
    int sixteen = blockIdx.x * WARPS_OF_BLOCK + warp, channels = sixteen / 2;
    const uint4* weights = a.w + (size_t)(channels * CHANNELS < a.n ? channels : 0) * a.k_blocks * 64
                               + sixteen % 2 * 32 + lane;
    uint4 w[SETS][STEPS];
    int piece_of_w = 0, tap_of_w = 0;
    // Weights of the next step.
    auto load = [&](uint4 (&w)[STEPS]) {
        int block = tap_of_w * (a.channels / 16) + piece_of_w * STEPS;
#pragma unroll
        for (int i = 0; i < STEPS; i++) w[i] = weights[(block + i) * 64];
        if (++tap_of_w == taps) tap_of_w = 0, piece_of_w++;
    };
#pragma unroll
    for (int i = 0; i < SETS; i++)
        if (steps > i) load(w[i]);
    if (threadIdx.x == 0) bring_near(a.next, a.next_bytes);
    wait_for_previous();

    // A warp copies a row: of each 16 channels, one chunk has the first two of every four, the next chunk the
    // others, which is the order of weights.
    char* shared = lines_in(shared4);
    u32 own = (u32)__cvta_generic_to_shared(shared) + lane % 8 / 2 * 4, chunk = lane / 8 * 2 + lane % 2;
    int before = start - a.left;
    bool inside = before >= 0 && before + height <= a.time;
    auto bring = [&](int piece) {
        if (2 * lane >= PIECE) return;
        u32 stage = own + piece % 2 * STAGE;
        const u16* x = (const u16*)a.x + (size_t)sequence * a.time * a.channels + piece * PIECE + 2 * lane;
        if (inside) {
            x += (size_t)(before + warp) * a.channels;
#pragma unroll 4
            for (int row = warp; row < height; row += WARPS_OF_BLOCK, x += WARPS_OF_BLOCK * a.channels)
                copy_pair(stage + chunk_at(row, chunk), x, false);
            return;
        }
#pragma unroll 1
        for (int row = warp; row < height; row += WARPS_OF_BLOCK) {
            int t = before + row;
            u32 to = stage + chunk_at(row, chunk);
            if (t < 0 && a.history) {
                size_t at = ((size_t)(sequence + 1) * a.left + t) * a.channels + piece * PIECE + 2 * lane;
                u32 both = halves(a.history[at], a.history[at + 1]);
                asm volatile("st.shared.u32 [%0], %1;" :: "r"(to), "r"(both) : "memory");
                continue;
            }
            bool zero = a.zeros && (u32)t >= (u32)a.time;
            copy_pair(to, x + (size_t)min(max(t, 0), a.time - 1) * a.channels, zero);
        }
    };
    bring(0);
    float acc[ROWS / 8][4] = {};
    u64 first = right_operand(shared);
    int piece = 0, tap = 0;
    auto multiply_step = [&](uint4 (&now)[STEPS]) {
        if (tap == 0) {
            asm volatile("cp.async.wait_all;" ::: "memory");
            publish();
            __syncthreads();
        }
        u64 rows = first + piece % 2 * (STAGE / 16) + tap * a.dilation * (128 / 16);
        keep(now), keep(acc);
        start_products();
#pragma unroll
        for (int i = 0; i < STEPS; i++) multiply_128(acc, now[i], rows + 2 * i);
        end_products();
        if (tap == 0 && piece + 1 < pieces) bring(piece + 1);
        wait_for_products<0>();
        keep(now), keep(acc);
        if (steps > SETS) load(now);
        steps--;
        if (++tap == taps) tap = 0, piece++;
    };
    while (steps > 0) {
#pragma unroll
        for (int i = 0; i < SETS; i++)
            if (steps > 0) multiply_step(w[i]);
    }
    let_next_start();

    constexpr int WIDTH = CHANNELS_OF_BLOCK + 4;
    float* sums = (float*)shared4;
    __syncthreads();
    put_sums<WIDTH>(sums + warp * 16, acc);
    int first_row = sequence * a.time + start, end = min(ROWS, a.time - start);
    store_rows<1, CHANNELS_OF_BLOCK, ROWS, 32 * WARPS_OF_BLOCK, false, true, 4>(a, sums, first_row, end);
}

#undef KERNEL
#define KERNEL(NAME, WIDE, STEPS, SETS, TOGETHER) \
    extern "C" __global__ void __launch_bounds__(128 * (WIDE), TOGETHER) NAME(const Args a) { \
        convolution<WIDE, STEPS, SETS>(a); \
    }

KERNEL(conv_warpgroup_1, 1, 4, 2, 4)
KERNEL(conv_warpgroup_2, 2, 4, 2, 2)
KERNEL(conv_warpgroup_3, 3, 4, 2, 1)
KERNEL(conv_warpgroup_48, 2, 3, 2, 2)
KERNEL(conv_warpgroup_1_ahead, 1, 4, 4, 2)

#endif
