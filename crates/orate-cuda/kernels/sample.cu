// Samples an id from logits [B, V], as defined by `Op::Sample`; one block per row.
//
//   x = c, or c + guidance · (c − u) with unconditional logits u; penalized if seen; −∞ for control ids
//   temperature 0:  argmax x
//   x = x / temperature; −∞ below the k-th largest, and below largest + ln(min-p)
//   −∞ for all ids after those whose probabilities sum up to p
//   argmax (x − ln(−ln u)), u from Philox
//
// f32 with the operations of the CPU, in the same order for each id; the sums of step p are double precision.
// If a logit is NaN, or no id can be drawn, the result is −1.

struct Args {
    const float* logits;    // [B, lanes, V]: the second of two rows is unconditional
    // [B, of_row]: temperature, k, p, penalty, min-p, guidance; those past the end are 0
    const float* settings;
    const int* seed;        // [B, 2]
    const int* draw;        // [B]
    const float* seen;      // [B, V], or null
    int* out;
    int ids, control_first, control_end, min_draws;
    u32 codebook;
    int places;  // a power of two, not less than `ids`
    int of_row, lanes;
};

#define THREADS 256
#define WARPS 8

// Increases with x; 0 for −∞.
DEVICE u32 ordered(float x) {
    u32 bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Among equal numbers, the lowest id has the highest rank.
DEVICE u64 ranked(float x, u32 id) { return (u64)ordered(x) << 32 | (0xffffffffu - id); }

DEVICE u32 id_of(u64 rank) { return 0xffffffffu - (u32)rank; }

// Sums two numbers over the block, neither of which reaches 2¹⁶ in a warp. Every other call may use the same
// scratch.
DEVICE uint2 block_counts(u32 x, u32 y, uint2* scratch) {
    u32 both = x | y << 16;
#if __CUDA_ARCH__ >= 800
    both = __reduce_add_sync(0xffffffffu, both);
#else
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) both += __shfl_xor_sync(0xffffffffu, both, lane);
#endif
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = make_uint2(both & 0xffff, both >> 16);
    __syncthreads();
    uint2 sum = make_uint2(0, 0);
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum.x += scratch[i].x, sum.y += scratch[i].y;
    return sum;
}

// Numbers per thread that stay in registers.
#define KEPT 12

// The k-th largest of x, as `ordered`: the largest number that k ids reach, found two bits at a time.
DEVICE u32 kth(const float* x, int ids, u32 k, uint2 (*scratch)[WARPS]) {
    u32 kept[KEPT], least = 0;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        int id = threadIdx.x + i * THREADS;
        kept[i] = id < ids ? ordered(x[id]) : 0;
    }
    for (u32 bit = 0x80000000u, turn = 0; bit > 0; bit /= 4, turn ^= 1) {
        u32 limits[3] = {least | bit / 2, least | bit, least | bit | bit / 2}, reach[3] = {0, 0, 0};
#pragma unroll
        for (int i = 0; i < KEPT; i++)
#pragma unroll
            for (int j = 0; j < 3; j++) reach[j] += kept[i] >= limits[j];
        for (int id = threadIdx.x + KEPT * THREADS; id < ids; id += THREADS) {
            u32 other = ordered(x[id]);
#pragma unroll
            for (int j = 0; j < 3; j++) reach[j] += other >= limits[j];
        }
        uint2 outer = block_counts(reach[0], reach[2], scratch[2 * turn]);
        uint2 middle = block_counts(reach[1], 0, scratch[2 * turn + 1]);
        least = outer.y >= k ? limits[2] : middle.x >= k ? limits[1] : outer.x >= k ? limits[0] : least;
    }
    return least;
}

// The maximum, in all threads.
DEVICE u64 block_max(u64 x, u64* scratch) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, lane));
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++) x = max(x, scratch[i]);
    return x;
}

// Sum in the order of threads, the same in all threads.
DEVICE double block_total(double x, double* scratch) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) x += scratch[i];
    return x;
}

// Ids in descending order: a bitonic sort of `places` ranks.
DEVICE void sort(u64* order, int places) {
    for (int size = 2; size <= places; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < places; i += THREADS) {
                int other = i ^ step;
                if (other <= i) continue;
                u64 a = order[i], b = order[other];
                if ((a < b) == ((i & size) == 0)) order[i] = b, order[other] = a;
            }
        }
    __syncthreads();
}

// Keeps the most likely ids, up to the first at which probabilities sum up to p, and excludes all others.
DEVICE void nucleus(float* x, u64* order, const Args& a, double p, double* scratch, int* count) {
    __syncthreads();
    if (threadIdx.x == 0) *count = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < a.ids; i += THREADS)
        if (x[i] > -INFINITY) order[atomicAdd(count, 1)] = ranked(x[i], i);
    __syncthreads();
    int kept = *count, places = 1;
    while (places < kept) places *= 2;
    for (int i = kept + threadIdx.x; i < places; i += THREADS) order[i] = 0;
    sort(order, places);
    if (kept == 0) return;
    double largest = x[id_of(order[0])], sum = 0.0;
    for (int i = threadIdx.x; i < kept; i += THREADS) sum += exp((double)x[id_of(order[i])] - largest);
    double limit = p * block_total(sum, scratch);
    // One warp scans the order: 32 ids at a time, each with the sum before it.
    int lane = threadIdx.x;
    if (lane < 32) {
        double before = 0.0;
        for (int start = 0; start < kept; start += 32) {
            int i = start + lane;
            double own = i < kept ? exp((double)x[id_of(order[i])] - largest) : 0.0, upto = own;
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                double y = __shfl_up_sync(0xffffffffu, upto, d);
                if (lane >= d) upto += y;
            }
            if (i > 0 && i < kept && before + (upto - own) >= limit) x[id_of(order[i])] = -INFINITY;
            before += __shfl_sync(0xffffffffu, upto, 31);
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(const Args a) {
    extern __shared__ u64 order[];     // [places]
    float* x = (float*)(order + a.places);  // [ids]
    __shared__ u64 scratch[WARPS];
    __shared__ uint2 pairs[4][WARPS];
    __shared__ int count;
    wait_for_previous();
    let_next_start();
    int b = blockIdx.x, draw = a.draw[b];
    const float* logits = a.logits + (size_t)b * a.lanes * a.ids;
    const float* settings = a.settings + (size_t)b * a.of_row;
    const float* seen = a.seen ? a.seen + (size_t)b * a.ids : 0;
    float temperature = settings[0], p = settings[2], penalty = settings[3];
    float min_p = a.of_row > 4 ? settings[4] : 0.0f, guidance = a.of_row > 5 ? settings[5] : 0.0f;
    int k = (int)fminf(fmaxf(settings[1], 0.0f), 1e9f);
    bool broken = false;
#pragma unroll 4
    for (int i = threadIdx.x; i < a.ids; i += THREADS) {
        float v = logits[i];
        broken |= v != v;
        if (a.lanes == 2) {
            float u = logits[a.ids + i];
            broken |= u != u;
            v = v + guidance * (v - u);
        }
        if (seen && seen[i] != 0.0f) v = v < 0.0f ? v * penalty : v / penalty;
        bool early = i == a.control_end && draw < a.min_draws;
        if (early || (i >= a.control_first && i != a.control_end)) v = -INFINITY;
        x[i] = temperature == 0.0f ? v : v / temperature;
    }
    broken = __syncthreads_or(broken);
    if (temperature != 0.0f) {
        if (k > 0 && k < a.ids) {
            u32 least = kth(x, a.ids, k, pairs);
            for (int i = threadIdx.x; i < a.ids; i += THREADS)
                if (ordered(x[i]) < least) x[i] = -INFINITY;
        }
        if (min_p > 0.0f) {
            u64 largest = 0;
            for (int i = threadIdx.x; i < a.ids; i += THREADS) largest = max(largest, ranked(x[i], i));
            float limit = x[id_of(block_max(largest, scratch))] + logf(min_p);
            // All threads must have read the largest before one may exclude it.
            __syncthreads();
            for (int i = threadIdx.x; i < a.ids; i += THREADS)
                if (x[i] < limit) x[i] = -INFINITY;
        }
        if (p < 1.0f) nucleus(x, order, a, p, (double*)scratch, &count);
        __syncthreads();
    }
    u64 best = 0;
    u32 k0 = a.seed[2 * b], k1 = a.seed[2 * b + 1];
    for (int block = threadIdx.x; 4 * block < a.ids; block += THREADS) {
        float left[4];
        bool some = false;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            left[i] = 4 * block + i < a.ids ? x[4 * block + i] : -INFINITY;
            some |= left[i] > -INFINITY;
        }
        if (!some) continue;
        Words words = {{0, 0, 0, 0}};
        if (temperature != 0.0f) words = philox(block, a.codebook, draw, 1, k0, k1);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (left[i] == -INFINITY) continue;
            float score = left[i];
            if (temperature != 0.0f) score += -ln_of_scaled(-ln_of_24_bits(2 * (words.w[i] >> 9) + 1), 0);
            best = max(best, ranked(score, 4 * block + i));
        }
    }
    best = block_max(best, scratch);
    if (threadIdx.x == 0) a.out[b] = broken || best == 0 ? -1 : (int)id_of(best);
}
