// What a transformer layer of Chatterbox's estimator computes after its attention x, for many rows on Hopper:
//
//   y = x · out + bias + residual                               [rows, 256]
//   z = gelu( norm(y) · up + bias ) · down + bias + y           [rows, 256]
//   next = norm(z) · next                                       queries, keys and values of the next layer
//
// x has 512 channels, the hidden layer 1024. x and `next` are stored in 16 bits, to which operands of matmuls
// are rounded, as in `matmul.cu`; its weights have the order of that file.
//
// A cluster of four blocks has ROWS rows. Each block computes a quarter of the channels of `out`, `up` and
// `next`, and has a quarter of K of `down`; each of its four warpgroups has 64 channels at a time. A block
// adds up, norms and stores a quarter of the rows, which the others give it by way of shared memory. Normed
// rows come to all blocks by way of the second-level cache, since only so they are written once. Weights are
// read once for ROWS rows.
//
// The first layer of a block has no such launch before it. Its norm and `next` are one, too, in which each
// block norms all rows of its channels itself.
//
// The next kernel is not let start before the end: attention has nothing to do until then, and its blocks
// would crowd on the few multiprocessors that are free.

#if __CUDA_ARCH__ == 900

#define WIDTH 256
#define DEPTH 512
#define HIDDEN 1024
#define NEXT 1536
#define BLOCKS 4
#define THREADS 512
#define OF_GROUP 128
// Channels that a line of an operand has.
#define PIECE 64
// Floats of a row of sums of one warpgroup, and of four: neighboring rows are in other banks.
#define SUMS (PIECE + 4)
#define ALL_SUMS (WIDTH + 4)
// Channels of `next` of a block, and halves of a row of them, with some to spare for the sake of banks.
#define NEXT_OF_BLOCK (NEXT / BLOCKS)
#define NEXT_STRIDE (NEXT_OF_BLOCK + 8)
// Steps along K whose weights are on their way together.
#define STEPS 8

// What is added or multiplied to each row, in shared memory.
enum Vector { OUT_BIAS, FIRST_WEIGHT, FIRST_BIAS, DOWN_BIAS, SECOND_WEIGHT, SECOND_BIAS, VECTORS };

struct Args {
    const u16* x;
    const float* residual;
    const uint4 *out, *up, *down, *next;  // the last is null if there is no `next`
    const float* vectors[VECTORS];
    const float *up_bias, *next_bias;  // these and any vector may be null
    u16* normed[2];  // [rows, 256], for the exchange of normed rows
    float* z;
    u16* results;
    const char* later[4];  // weights to prefetch
    int rows;
    float first_eps, second_eps;
    int later_bytes[4];
    // Channels of the first and second part of `next`; parts are matrices one after the other.
    int parts[2];
};

// Starts to copy 16 bytes to shared memory.
DEVICE void copy_16(void* to, const void* from) {
    u32 there = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(there), "l"(from));
}
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Weights of 16 channels with STEPS steps along K, from step `first` on; K has DEPTH_STEPS.
template <int DEPTH_STEPS>
DEVICE void load(uint4 (&w)[STEPS], const uint4* weights, int sixteen, int first, int lane) {
    const uint4* from = weights + (size_t)(sixteen / 2 * DEPTH_STEPS + first) * 64 + sixteen % 2 * 32 + lane;
#pragma unroll
    for (int i = 0; i < STEPS; i++) w[i] = from[i * 64];
}

// Starts to multiply by STEPS steps, whose lines begin at two pieces.
template <int ROWS>
DEVICE void start(float (&acc)[ROWS / 8][4], uint4 (&w)[STEPS], const char* pieces) {
    u64 right = right_operand(pieces);
    keep(w), keep(acc);
    start_products();
#pragma unroll
    for (int i = 0; i < STEPS; i++) multiply(acc, w[i], right + i / 4 * (ROWS * 128 / 16) + i % 4 * 2);
    end_products();
}

template <int COUNT>
DEVICE void clear(float (&acc)[COUNT][4]) {
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[j][i] = 0.0f;
}

// Calls use(row, channel, sum) for all sums of a thread; the channel is one of the 16 of a warp.
template <int COUNT, typename Use>
DEVICE void each_sum(float (&acc)[COUNT][4], int lane, Use use) {
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) use(8 * j + lane % 4 * 2 + i % 2, lane / 4 + i / 2 * 8, acc[j][i]);
}

// Calls store(row, channel, word) for all sums of a thread, rounded: a word has a channel and the next one,
// of the 16 of a warp.
template <int ROWS, typename Store>
DEVICE void store_pairs(const float (&acc)[ROWS / 8][4], int lane, Store store) {
    int g = lane / 4, odd = g % 2, row = lane % 4 * 2 + odd;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
        for (int far = 0; far < 2; far++) {
            float near = acc[j][2 * far], next = acc[j][2 * far + 1];
            float other = __shfl_xor_sync(0xffffffffu, odd ? near : next, 4);
            store(8 * j + row, g - odd + 8 * far, odd ? halves(other, next) : halves(near, other));
        }
}

// Norms a row, of which a lane has four channels of each half, and calls put(channel, halves) for eight of
// them, rounded, in the order of operands.
template <typename Put>
DEVICE void put_normed(const float (&y)[8], const float* norm, float eps, int lane, Put put) {
    float sum = 0.0f, squares = 0.0f, v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) sum += y[i];
    float mean = warp_sum(sum) / WIDTH;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = y[i] - mean;
        squares += v[i] * v[i];
    }
    float factor = 1.0f / sqrtf(warp_sum(squares) / WIDTH + eps);
    u32 p[4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float4 w = *(const float4*)(norm + 4 * lane + WIDTH / 2 * i);
        float4 b = *(const float4*)(norm + WIDTH + 4 * lane + WIDTH / 2 * i);
        p[2 * i] = halves(v[4 * i] * factor * w.x + b.x, v[4 * i + 1] * factor * w.y + b.y);
        p[2 * i + 1] = halves(v[4 * i + 2] * factor * w.z + b.z, v[4 * i + 3] * factor * w.w + b.w);
    }
    // Four lanes have 16 channels of each half. Of these a chunk has the first two of every four, the next
    // chunk the others: after two exchanges lane t has chunk t % 2 of half t / 2.
    u32 first = __shfl_xor_sync(0xffffffffu, lane % 2 ? p[0] : p[1], 1);
    u32 second = __shfl_xor_sync(0xffffffffu, lane % 2 ? p[2] : p[3], 1);
    // Words of this chunk by lanes t and t ^ 1, of both halves.
    uint2 near = lane % 2 ? make_uint2(first, p[1]) : make_uint2(p[0], first);
    uint2 far = lane % 2 ? make_uint2(second, p[3]) : make_uint2(p[2], second);
    bool upper = lane / 2 % 2;
    uint2 other;
    other.x = __shfl_xor_sync(0xffffffffu, upper ? near.x : far.x, 2);
    other.y = __shfl_xor_sync(0xffffffffu, upper ? near.y : far.y, 2);
    uint2 begin = upper ? other : near, end = upper ? far : other;
    int channel = (upper ? WIDTH / 2 : 0) + lane / 4 * 16 + lane % 2 * 8;
    put(channel, make_uint4(begin.x, begin.y, end.x, end.y));
}

// The same, where all blocks read it.
DEVICE void give_normed(const float (&y)[8], const float* norm, float eps, int lane, u16* to) {
    put_normed(y, norm, eps, lane, [&](int channel, uint4 v) { *(uint4*)(to + channel) = v; });
}

// Copies the normed rows of all blocks to shared memory.
template <int ROWS>
DEVICE void bring_normed(char* to, const u16* from, int start_row, int rows) {
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * WIDTH / 8; i += THREADS) {
        int row = i / (WIDTH / 8), chunk = i % (WIDTH / 8);
        const u16* at = from + (size_t)min(start_row + row, rows - 1) * WIDTH + chunk * 8;
        copy_16(to + chunk / 8 * (ROWS * 128) + chunk_at(row, chunk % 8), at);
    }
    wait_for_copies();
    publish();
    __syncthreads();
}

DEVICE float4 four_of(const float* y) { return make_float4(y[0], y[1], y[2], y[3]); }
DEVICE void add_four(float* y, float4 x) { y[0] += x.x, y[1] += x.y, y[2] += x.z, y[3] += x.w; }

// The 16 channels of `next` that a warp has of a tile of 64.
DEVICE int sixteen_of_next(u32 rank, int tile, int warp) {
    return rank * (NEXT_OF_BLOCK / 16) + 4 * tile + warp;
}

// Multiplies normed rows by a block's part of `next`, whose first weights are in w: 64 channels for each
// warpgroup, and again for each two of them, which share K. `sums` and `half` are for what is on its way.
template <int ROWS>
DEVICE void project(const Args& a, uint4 (&w)[2][STEPS], const char* normed, float* sums, float* half,
                    u32 rank, int start_row) {
    int lane = threadIdx.x % 32, group = threadIdx.x / OF_GROUP, warp = threadIdx.x % OF_GROUP / 32;
    float acc[ROWS / 8][4] = {};
    start<ROWS>(acc, w[1], normed);
    start<ROWS>(acc, w[0], normed + 2 * ROWS * 128);
    wait_for_products<1>();
    keep(w[1]);
    int shared_tile = 4 + group / 2;
    load<WIDTH / 16>(w[1], a.next, sixteen_of_next(rank, shared_tile, warp), group % 2 * STEPS, lane);
    wait_for_products<0>();
    keep(w[0]), keep(acc);
    u16* staged = (u16*)sums;
    auto stage = [&](int tile) {
        float bias[2] = {};
        if (a.next_bias) {
            const float* from = a.next_bias + rank * NEXT_OF_BLOCK + tile * PIECE + warp * 16 + lane / 4;
            bias[0] = from[0], bias[1] = from[8];
        }
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++)
            acc[j][0] += bias[0], acc[j][1] += bias[0], acc[j][2] += bias[1], acc[j][3] += bias[1];
        store_pairs<ROWS>(acc, lane, [&](int row, int channel, u32 word) {
            *(u32*)(staged + row * NEXT_STRIDE + tile * PIECE + warp * 16 + channel) = word;
        });
    };
    stage(group);
    clear(acc);
    start<ROWS>(acc, w[1], normed + group % 2 * 2 * ROWS * 128);
    wait_for_products<0>();
    keep(w[1]), keep(acc);
    // The second half of K comes by way of memory that had x.
    half += group / 2 * ROWS * SUMS + warp * 16;
    if (group % 2)
        each_sum(acc, lane, [&](int row, int channel, float& sum) { half[row * SUMS + channel] = sum; });
    __syncthreads();
    if (group % 2 == 0) {
        each_sum(acc, lane, [&](int row, int channel, float& sum) { sum += half[row * SUMS + channel]; });
        stage(shared_tile);
    }
    __syncthreads();
    constexpr int CHUNKS = NEXT_OF_BLOCK / 8;
#pragma unroll 3
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS * 8;
        if (start_row + row >= a.rows) break;
        int channel = rank * NEXT_OF_BLOCK + chunk, second = a.parts[0] + a.parts[1];
        int part = channel < a.parts[0] ? 0 : channel < second ? a.parts[0] : second;
        int width = (channel < a.parts[0] ? a.parts[0] : channel < second ? second : NEXT) - part;
        u16* to = a.results + (size_t)part * a.rows + (size_t)(start_row + row) * width + (channel - part);
        *(uint4*)to = *(const uint4*)(staged + row * NEXT_STRIDE + chunk);
    }
}

template <int ROWS>
DEVICE void feed_forward(const Args& a) {
    extern __shared__ float4 shared4[];
    constexpr int OWN_ROWS = ROWS / BLOCKS, PIECE_BYTES = ROWS * 128;
    constexpr int SUMS_BYTES = 4 * ROWS * SUMS * 4, X_BYTES = ROWS * DEPTH * 2;
    // Operands; sums of warpgroups, and later results; rows of this block.
    char* shared = lines_in(shared4);
    char *x = shared, *normed = x + X_BYTES, *hidden = normed + 4 * PIECE_BYTES;
    float* sums = (float*)(hidden + 4 * PIECE_BYTES);
    float* own = (float*)((char*)sums + SUMS_BYTES);
    float* vectors = own + OWN_ROWS * WIDTH;
    // What other blocks give, once x is used.
    float* inbox = (float*)x;
    // Until the hidden layer is there.
    float* residual = (float*)hidden;
    u32 rank = cluster_rank();
    int lane = threadIdx.x % 32, group = threadIdx.x / OF_GROUP, thread = threadIdx.x % OF_GROUP;
    int warp = thread / 32, own_warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int start_row = blockIdx.y * ROWS;

    uint4 w[2][STEPS];
    load<DEPTH / 16>(w[0], a.out, rank * 4 + warp, group * STEPS, lane);
    if (threadIdx.x < 4) bring_near(a.later[threadIdx.x], a.later_bytes[threadIdx.x]);
    if (threadIdx.x < VECTORS * WIDTH / 4) {
        const float* from = a.vectors[threadIdx.x / (WIDTH / 4)];
        float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        ((float4*)vectors)[threadIdx.x] = from ? ((const float4*)from)[threadIdx.x % (WIDTH / 4)] : zero;
    }
    cluster_arrive();
    wait_for_previous();
    // Row r of the tile is row r / 4 of block r % 4.
#pragma unroll
    for (int i = threadIdx.x; i < OWN_ROWS * WIDTH / 4; i += THREADS) {
        int row = min(start_row + i / (WIDTH / 4) * BLOCKS + (int)rank, a.rows - 1);
        copy_16(residual + 4 * i, a.residual + (size_t)row * WIDTH + i % (WIDTH / 4) * 4);
    }

    // x · out: each warpgroup has a quarter of K, two pieces.
    float acc[ROWS / 8][4] = {};
#pragma unroll
    for (int piece = 2 * group, i = 0; i < 2; i++) {
        uint4 v[ROWS / 16];
        const u16* from = a.x + (piece + i) * PIECE + thread % 8 * 8;
#pragma unroll
        for (int j = 0; j < ROWS / 16; j++) {
            int row = min(start_row + thread / 8 + 16 * j, a.rows - 1);
            v[j] = *(const uint4*)(from + (size_t)row * DEPTH);
        }
#pragma unroll
        for (int j = 0; j < ROWS / 16; j++) {
            int row = thread / 8 + 16 * j, chunk = thread % 8 / 2 * 2;
            char* to = x + (piece + i) * PIECE_BYTES + thread % 2 * 8;
            *(uint2*)(to + chunk_at(row, chunk)) = make_uint2(v[j].x, v[j].z);
            *(uint2*)(to + chunk_at(row, chunk + 1)) = make_uint2(v[j].y, v[j].w);
        }
    }
    publish();
    group_barrier(group, OF_GROUP);
    start<ROWS>(acc, w[0], x + 2 * group * PIECE_BYTES);
    wait_for_products<0>();
    keep(w[0]), keep(acc);
    each_sum(acc, lane, [&](int row, int channel, float& sum) {
        sums[(group * ROWS + row) * SUMS + warp * 16 + channel] = sum;
    });
    cluster_wait();
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * PIECE / 4; i += THREADS) {
        int row = i / (PIECE / 4), four = i % (PIECE / 4) * 4;
        float y[4] = {};
#pragma unroll
        for (int j = 0; j < 4; j++) add_four(y, *(const float4*)(sums + (j * ROWS + row) * SUMS + four));
        give(own + row / BLOCKS * WIDTH + rank * PIECE + four, row % BLOCKS, four_of(y));
    }
    // Weights come while blocks wait for each other, and after what these wait for.
    cluster_arrive();
    load<WIDTH / 16>(w[1], a.up, rank * 16 + 4 * group + warp, 0, lane);
    bool has_row = own_warp < OWN_ROWS;
    int own_row = own_warp * BLOCKS + rank, row = start_row + own_row;
    size_t at = (size_t)min(row, a.rows - 1) * WIDTH;
    wait_for_copies();
    cluster_wait();
    __syncthreads();
    if (has_row) {
        float y[8] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int from = own_warp * WIDTH + 4 * lane + WIDTH / 2 * i;
            float* place = own + from;
            add_four(y + 4 * i, *(const float4*)place);
            add_four(y + 4 * i, *(const float4*)(vectors + OUT_BIAS * WIDTH + 4 * lane + WIDTH / 2 * i));
            add_four(y + 4 * i, *(const float4*)(residual + from));
            *(float4*)place = four_of(y + 4 * i);
        }
        if (row < a.rows) give_normed(y, vectors + FIRST_WEIGHT * WIDTH, a.first_eps, lane, a.normed[0] + at);
    }
    cluster_arrive();
    load<WIDTH / 16>(w[0], a.up, rank * 16 + 4 * group + warp, STEPS, lane);
    cluster_wait();
    bring_normed<ROWS>(normed, a.normed[0], start_row, a.rows);

    // up: 64 channels of the hidden layer.
    clear(acc);
    start<ROWS>(acc, w[1], normed);
    start<ROWS>(acc, w[0], normed + 2 * PIECE_BYTES);
    float bias[2] = {};
    if (a.up_bias) {
        const float* from = a.up_bias + rank * WIDTH + group * PIECE + warp * 16 + g;
        bias[0] = from[0], bias[1] = from[8];
    }
    wait_for_products<1>();
    keep(w[1]);
    load<HIDDEN / 16>(w[1], a.down, 4 * group + warp, rank * 16, lane);
    wait_for_products<0>();
    keep(w[0]), keep(acc);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
        acc[j][0] += bias[0], acc[j][1] += bias[0], acc[j][2] += bias[1], acc[j][3] += bias[1];
        for (int i = 0; i < 4; i++) acc[j][i] = gelu(acc[j][i]);
    }
    // Channel c of 16 is in chunk c % 4 / 2, in word c / 4.
    store_pairs<ROWS>(acc, lane, [&](int row, int channel, u32 word) {
        u32 chunk = 2 * warp + channel % 4 / 2;
        *(u32*)(hidden + group * PIECE_BYTES + chunk_at(row, chunk) + channel / 4 * 4) = word;
    });
    load<HIDDEN / 16>(w[0], a.down, 4 * group + warp, rank * 16 + STEPS, lane);
    publish();
    __syncthreads();

    // down, with a quarter of K.
    clear(acc);
    start<ROWS>(acc, w[1], hidden);
    start<ROWS>(acc, w[0], hidden + 2 * PIECE_BYTES);
    wait_for_products<1>();
    keep(w[1]);
    wait_for_products<0>();
    keep(w[0]), keep(acc);
    each_sum(acc, lane, [&](int row, int channel, float& sum) {
        sums[row * ALL_SUMS + group * PIECE + warp * 16 + channel] = sum;
    });
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * WIDTH / 4; i += THREADS) {
        int row = i / (WIDTH / 4), four = i % (WIDTH / 4) * 4;
        float* to = inbox + (rank * OWN_ROWS + row / BLOCKS) * WIDTH + four;
        float4 y = *(const float4*)(sums + row * ALL_SUMS + four);
        if (row % BLOCKS == rank) *(float4*)to = y;
        else give(to, row % BLOCKS, y);
    }
    cluster_arrive();
    // If there is no next layer, weights are read for nothing.
    bool goes_on = a.next;
    const uint4* next = goes_on ? a.next : a.up;
    int own_next = goes_on ? sixteen_of_next(rank, group, warp) : 0;
    load<WIDTH / 16>(w[1], next, own_next, 0, lane);
    cluster_wait();
    if (has_row) {
        float y[8] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int from = own_warp * WIDTH + 4 * lane + WIDTH / 2 * i;
#pragma unroll
            for (int block = 0; block < BLOCKS; block++)
                add_four(y + 4 * i, *(const float4*)(inbox + block * OWN_ROWS * WIDTH + from));
            add_four(y + 4 * i, *(const float4*)(vectors + DOWN_BIAS * WIDTH + 4 * lane + WIDTH / 2 * i));
            add_four(y + 4 * i, *(const float4*)(own + from));
            if (row < a.rows)
                *(float4*)(a.z + at + 4 * lane + WIDTH / 2 * i) = four_of(y + 4 * i);
        }
        if (goes_on && row < a.rows)
            give_normed(y, vectors + SECOND_WEIGHT * WIDTH, a.second_eps, lane, a.normed[1] + at);
    }
    if (!goes_on) return;
    cluster_arrive();
    load<WIDTH / 16>(w[0], next, own_next, STEPS, lane);
    cluster_wait();
    bring_normed<ROWS>(normed, a.normed[1], start_row, a.rows);

    project<ROWS>(a, w, normed, sums, inbox, rank, start_row);
}

// The norm of x, here `residual`, and `next`.
template <int ROWS>
DEVICE void projection(const Args& a) {
    extern __shared__ float4 shared4[];
    char* normed = lines_in(shared4);
    float *sums = (float*)(normed + 4 * ROWS * 128), *half = sums + 4 * ROWS * SUMS;
    u32 rank = blockIdx.z;
    int lane = threadIdx.x % 32, group = threadIdx.x / OF_GROUP, warp = threadIdx.x % OF_GROUP / 32;
    int start_row = blockIdx.y * ROWS;
    uint4 w[2][STEPS];
    int own_next = sixteen_of_next(rank, group, warp);
    load<WIDTH / 16>(w[1], a.next, own_next, 0, lane);
    load<WIDTH / 16>(w[0], a.next, own_next, STEPS, lane);
    if (threadIdx.x == 0) bring_near(a.later[3], a.later_bytes[3]);
    float* norm = half + 2 * ROWS * SUMS;
    if (threadIdx.x < 2 * WIDTH / 4) {
        const float* from = a.vectors[SECOND_WEIGHT + threadIdx.x / (WIDTH / 4)];
        ((float4*)norm)[threadIdx.x] = ((const float4*)from)[threadIdx.x % (WIDTH / 4)];
    }
    __syncthreads();
    wait_for_previous();
    constexpr int OF_WARP = ROWS * 32 / THREADS;
    float y[OF_WARP][8];
#pragma unroll
    for (int i = 0; i < OF_WARP; i++) {
        int row = min(start_row + (int)threadIdx.x / 32 + THREADS / 32 * i, a.rows - 1);
        const float4* from = (const float4*)(a.residual + (size_t)row * WIDTH) + lane;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float4 four = from[j * (WIDTH / 8)];
            y[i][4 * j] = four.x, y[i][4 * j + 1] = four.y;
            y[i][4 * j + 2] = four.z, y[i][4 * j + 3] = four.w;
        }
    }
#pragma unroll
    for (int i = 0; i < OF_WARP; i++) {
        int row = threadIdx.x / 32 + THREADS / 32 * i;
        put_normed(y[i], norm, a.second_eps, lane, [&](int channel, uint4 v) {
            char* piece = normed + channel / PIECE * (ROWS * 128);
            *(uint4*)(piece + chunk_at(row, channel % PIECE / 8)) = v;
        });
    }
    publish();
    __syncthreads();
    project<ROWS>(a, w, normed, sums, half, rank, start_row);
}

#undef KERNEL
#define KERNEL(NAME, ROWS) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const Args a) { feed_forward<ROWS>(a); }

KERNEL(feed_forward_32, 32)
KERNEL(feed_forward_48, 48)
KERNEL(feed_forward_64, 64)

#undef KERNEL
#define KERNEL(NAME, ROWS) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const Args a) { projection<ROWS>(a); }

KERNEL(projection_32, 32)
KERNEL(projection_48, 48)
KERNEL(projection_64, 64)

#endif
