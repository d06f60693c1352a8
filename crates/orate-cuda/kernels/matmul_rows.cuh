// Results of matmuls of many rows, as defined in `matmul.cu`. A thread stores the same four channels of many
// rows, so all that depends on channels only is read and decided once.

DEVICE float4 times(float4 x, float y) { return make_float4(x.x * y, x.y * y, x.z * y, x.w * y); }

// RMS norms between matmuls. NORMED kernels divide results by roots of mean squares, of which `history` has
// the sums, and give the next matmul rows and sums in `shift`, each if it is not null.
enum Norms { PLAIN, NORMED };

template <bool PARTS, bool HALVES, Norms NORMS = PLAIN>
struct Results {
    float4 bias, row, frequency, gain;
    float* out;
    const float* residual;
    // Rows for the next matmul, and what results are multiplied by there.
    u16* next;
    float4 weight;
    // The type of results is as in `store_as`.
    int n, end, rows, stride, activation, type;
    float slope;
    bool snakes;

    __device__ __forceinline__ Results(const Args& a, int n) : n(n), end(a.n) {
        Part part = part_of<PARTS>(a, n);
        bias = four(a.bias, n, end), residual = a.residual;
        snakes = !PARTS && a.activation == SNAKE;
        frequency = four(snakes ? a.norm : 0, n, end), gain = four(snakes ? a.shift : 0, n, end);
        row = four(a.row ? a.row + (size_t)min((u64)a.row_count - 1, *a.row_index) * end : 0, n, end);
        size_t at = (size_t)part.first * a.rows + (n - part.first);
        type = HALVES ? a.halves / 2 : 0, stride = part.width;
        out = type ? (float*)((u16*)a.out + at) : a.out + at;
        activation = n < a.first ? a.activation : NONE, slope = activation == PRELU ? *a.slope : 0.0f;
        if (NORMS) next = (u16*)a.shift, weight = four(next ? a.norm : 0, n, end), rows = a.rows;
    }

    // What is added to row r at the end.
    __device__ __forceinline__ float4 addend(int r) const {
        return four(residual ? residual + (size_t)r * end : 0, n, end);
    }

    __device__ __forceinline__ void store(int r, float4 sum, float4 after) const {
        add(sum, bias);
        if (snakes) sum = HALVES ? rough_snake(sum, frequency, gain) : snake(sum, frequency, gain);
        float y[4] = {sum.x, sum.y, sum.z, sum.w};
        activate(activation, y, slope);
        add(after, row);
        y[0] += after.x, y[1] += after.y, y[2] += after.z, y[3] += after.w;
        write(r, y);
        if (NORMS && next) keep_for_next(r, y);
    }

    // Sixteen neighboring threads have the channels of a sum.
    __device__ __forceinline__ void keep_for_next(int r, const float (&y)[4]) const {
        float sum = y[0] * y[0] + y[1] * y[1] + y[2] * y[2] + y[3] * y[3];
        u32 sixteen = 0xffffu << (threadIdx.x & 16);
#pragma unroll
        for (int lane = 8; lane > 0; lane /= 2) sum += __shfl_xor_sync(sixteen, sum, lane);
        size_t at = (size_t)r * end + n;
        float4 scaled = make_float4(y[0] * weight.x, y[1] * weight.y, y[2] * weight.z, y[3] * weight.w);
        store_as(PRECISION - 1, (float*)next, at, scaled);
        if (threadIdx.x % 16 == 0) ((float*)(next + (size_t)rows * end))[at / 64] = sum;
    }

    // For parts without bias, residual and row.
    __device__ __forceinline__ void store_gated(int r, float4 sum, float4 by) const {
        float y[4] = {sum.x, sum.y, sum.z, sum.w};
        activate(activation, y, slope);
        y[0] *= by.x, y[1] *= by.y, y[2] *= by.z, y[3] *= by.w;
        write(r, y);
    }

    __device__ __forceinline__ void write(int r, const float (&y)[4]) const {
#if PRECISION >= 2 && __CUDA_ARCH__ >= 800
        if (HALVES && type) {
            store_as(type, out, (size_t)r * stride, make_float4(y[0], y[1], y[2], y[3]));
            return;
        }
#endif
        store_four(out + (size_t)r * stride, y, end - n);
    }
};

// Four channels of the results of a block, which has CHANNELS_OF_BLOCK of them. Those of a gated block are
// products of the channels of its first half, after their activation, and of its second half.
template <int CHANNELS_OF_BLOCK, bool PARTS, bool HALVES, Norms NORMS>
struct Stores {
    static constexpr int OF_ROW = CHANNELS_OF_BLOCK / 4;
    Results<PARTS, HALVES, NORMS> results;
    bool gated;

    __device__ __forceinline__ Stores(const Args& a, int four)
        : results(a, min(first_channel(a, four), (a.n - 1) / 4 * 4)), gated(is_gated(a)) {}

    // Only kernels that store 16 bits gate.
    static __device__ __forceinline__ bool is_gated(const Args& a) { return PARTS && HALVES && a.gated; }

    static __device__ __forceinline__ int first_channel(const Args& a, int four) {
        return blockIdx.x * (is_gated(a) ? CHANNELS_OF_BLOCK / 2 : CHANNELS_OF_BLOCK) + 4 * four;
    }

    // Whether there are results in this place of a block.
    static __device__ __forceinline__ bool has(const Args& a, int four) {
        return first_channel(a, four) < a.n && !(is_gated(a) && four >= OF_ROW / 2);
    }

    // `sum(four)` is the sum of four channels of row r, `after` what is added to it.
    template <typename Sum>
    __device__ __forceinline__ void store(int r, int four, Sum sum, float4 after) const {
        if (PARTS && HALVES && gated) results.store_gated(r, sum(four), sum(four + OF_ROW / 2));
        else results.store(r, sum(four), after);
    }
};

// Stores the sums of a block, which has CHANNELS_OF_BLOCK channels by ROWS rows, of which those before `end`
// exist. `sums` is [GROUPS, ROWS, CHANNELS_OF_BLOCK + 4] in shared memory: neighboring rows are in other
// banks. Sums of groups are added in order. Addends of TOGETHER rows of a thread are on their way together.
// NORMED: `factors` has what each row is multiplied by, or is null. Waits until all threads of the block have
// written their sums.
template <int GROUPS, int CHANNELS_OF_BLOCK, int ROWS, int THREADS, bool PARTS, bool HALVES = false,
          int TOGETHER = 2, Norms NORMS = PLAIN>
DEVICE void store_rows(const Args& a, const float* sums, int first_row, int end, const float* factors = 0) {
    typedef Stores<CHANNELS_OF_BLOCK, PARTS, HALVES, NORMS> S;
    constexpr int WIDTH = CHANNELS_OF_BLOCK + 4;
    int four = threadIdx.x % S::OF_ROW;
    S stores(a, four);
    __syncthreads();
    if (!S::has(a, four)) return;
    constexpr int APART = THREADS / S::OF_ROW;
    for (int start = threadIdx.x / S::OF_ROW; start < end; start += TOGETHER * APART) {
        float4 after[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            after[j] = stores.results.addend(first_row + min(start + j * APART, end - 1));
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            int row = start + j * APART;
            if (row >= end) break;
            auto sum = [&](int four) {
                const float* sum = sums + row * WIDTH + 4 * four;
                float4 all = *(const float4*)sum;
#pragma unroll
                for (int i = 1; i < GROUPS; i++) add(all, *(const float4*)(sum + i * ROWS * WIDTH));
                return NORMS && factors ? times(all, factors[row]) : all;
            };
            stores.store(first_row + row, four, sum, after[j]);
        }
    }
}

// The same for a cluster of blocks that share K. Each block adds its sums, and gives each row to the block
// that stores it, in its `inbox`: [blocks, ROWS / blocks, OF_ROW] of four channels. `cluster_arrive` was
// called.
template <int GROUPS, int CHANNELS_OF_BLOCK, int ROWS, int THREADS, bool PARTS, Norms NORMS>
DEVICE void store_shared_rows(
    const Args& a, const float* sums, float* inbox, int first_row, int end, const float* factors) {
    typedef Stores<CHANNELS_OF_BLOCK, PARTS, true, NORMS> S;
    constexpr int WIDTH = CHANNELS_OF_BLOCK + 4;
    u32 blocks = cluster_blocks(), rank = cluster_rank(), shift = 31 - __clz(blocks);
    int four = threadIdx.x % S::OF_ROW;
    S stores(a, four);
    int apart = (ROWS >> shift) * CHANNELS_OF_BLOCK;
    // That of the first row is on its way while sums are exchanged.
    int slot = threadIdx.x / S::OF_ROW;
    float4 after = stores.results.addend(first_row + min((int)(slot * blocks + rank), end - 1));
    __syncthreads();
    cluster_wait();
    const float* sum = sums + 4 * four;
#pragma unroll 2
    for (int row = threadIdx.x / S::OF_ROW; row < end; row += THREADS / S::OF_ROW) {
        float4 all = *(const float4*)(sum + row * WIDTH);
#pragma unroll
        for (int i = 1; i < GROUPS; i++) add(all, *(const float4*)(sum + (i * ROWS + row) * WIDTH));
        int place = (row >> shift) * CHANNELS_OF_BLOCK + 4 * four;
        give(inbox + rank * apart + place, row & (blocks - 1), all);
    }
    cluster_arrive();
    cluster_wait();
    if (!S::has(a, four)) return;
    while (slot * blocks + rank < end) {
        int row = slot * blocks + rank;
        auto sum = [&](int four) {
            const float* from = inbox + slot * CHANNELS_OF_BLOCK + 4 * four;
            float4 all = *(const float4*)from;
            for (u32 i = 1; i < blocks; i++) add(all, *(const float4*)(from + i * apart));
            return NORMS && factors ? times(all, factors[row]) : all;
        };
        stores.store(first_row + row, four, sum, after);
        slot += THREADS / S::OF_ROW;
        if (slot * blocks + rank < end) after = stores.results.addend(first_row + slot * blocks + rank);
    }
}
