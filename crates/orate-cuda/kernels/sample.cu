// Samples an id from logits [B, V], as defined by `Op::Sample`; one block per row.
//
//   x = c, or c + guidance · (c − u) with unconditional logits u; penalized if seen; −∞ for control ids
//   temperature 0:  argmax x
//   x = x / temperature; without those below the k-th largest, and below largest + ln(min-p)
//   without those after the ids whose probabilities sum up to p; or penalized only here
//   argmax (x − ln(−ln u)), u from Philox
//
// f32 with the operations of the CPU. Each step that leaves ids out is a lower limit for those that stay,
// found bit by bit, so that nothing is sorted and shared memory holds the logits alone. Probabilities are
// integers of 31 bits relative to the largest, whose sums are exact in any order. If a logit is NaN, or no id
// can be drawn, the result is −1.

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
    int of_row, lanes, penalty_last;
    int start;  // counts as seen in draw 0; −1: none
};

#define THREADS 256
#define WARPS 8

// Increases with x.
DEVICE u32 ordered(float x) {
    u32 bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Among equal numbers, the lowest id has the highest rank.
DEVICE u64 ranked(float x, u32 id) { return (u64)ordered(x) << 32 | (0xffffffffu - id); }

DEVICE u32 id_of(u64 rank) { return 0xffffffffu - (u32)rank; }

// The ids that are left: those of a number above `least`, as `ordered`, and those that equal it up to `last`.
struct Left {
    u32 least, last;
    __device__ __forceinline__ bool has(float x, u32 id) const {
        u32 key = ordered(x);
        return key > least || (key == least && id <= last);
    }
};

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
#define KEPT 26

// A number that k ids reach, as `ordered`: the k-th largest of x, found two bits at a time, or a lower one if
// no other id reaches that.
DEVICE u32 kth(const float* x, int ids, u32 k, uint2 (*scratch)[WARPS]) {
    u32 kept[KEPT], least = 0;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        int id = threadIdx.x + i * THREADS;
        kept[i] = id < ids ? ordered(x[id]) : 0;
    }
    int some = (ids + THREADS - 1) / THREADS;
    for (u32 bit = 0x80000000u, turn = 0; bit > 0; bit /= 4, turn ^= 1) {
        u32 limits[3] = {least | bit / 2, least | bit, least | bit | bit / 2}, reach[3] = {0, 0, 0};
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            if (i >= some) break;
#pragma unroll
            for (int j = 0; j < 3; j++) reach[j] += kept[i] >= limits[j];
        }
        for (int id = threadIdx.x + KEPT * THREADS; id < ids; id += THREADS) {
            u32 other = ordered(x[id]);
#pragma unroll
            for (int j = 0; j < 3; j++) reach[j] += other >= limits[j];
        }
        uint2 outer = block_counts(reach[0], reach[2], scratch[2 * turn]);
        uint2 middle = block_counts(reach[1], 0, scratch[2 * turn + 1]);
        least = outer.y >= k ? limits[2] : middle.x >= k ? limits[1] : outer.x >= k ? limits[0] : least;
        if (outer.y == k || middle.x == k || outer.x == k) break;
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

// Sums over the block, the same in all threads. Every other call may use the same scratch.
template <int N>
DEVICE void block_totals(u64 (&x)[N], u64 (*scratch)[WARPS]) {
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
        for (int lane = 16; lane > 0; lane /= 2) x[j] += __shfl_xor_sync(0xffffffffu, x[j], lane);
        if (threadIdx.x % 32 == 0) scratch[j][threadIdx.x / 32] = x[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; j++) {
        x[j] = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) x[j] += scratch[j][i];
    }
}

// Probability relative to that of the largest.
DEVICE u32 weight(float x, float largest) { return (u32)(expf(x - largest) * 2147483648.0f); }

// Some ids: all from 0 on, or those of a list.
struct Some {
    const u16* list;  // null: all
    int count;
    __device__ __forceinline__ int operator[](int i) const { return list ? list[i] : i; }
};

// Lists the ids that are left, in any order, if they are at most half of all.
DEVICE Some listed(const float* x, int ids, Left left, u16* list, u32* count, uint2 (*scratch)[WARPS]) {
    Some all = {nullptr, ids};
    if (ids > 65536) return all;
    if (threadIdx.x == 0) *count = 0;
    u32 own = 0;
    for (int id = threadIdx.x; id < ids; id += THREADS) own += left.has(x[id], id);
    // Its barrier also comes before the first id is listed.
    u32 total = block_counts(own, 0, scratch[0]).x;
    if (2 * total > (u32)ids) return all;
    u32 at = atomicAdd(count, own);
    for (int id = threadIdx.x; id < ids; id += THREADS)
        if (left.has(x[id], id)) list[at++] = id;
    __syncthreads();
    return Some{list, (int)total};
}

// The most likely of the ids that are left, up to the first at which probabilities sum up to p.
DEVICE Left nucleus(
    const float* x, int ids, Some some, Left left, float largest, float p, u64 (*scratch)[3][WARPS]) {
    u64 total[1] = {0};
    for (int i = threadIdx.x; i < some.count; i += THREADS) {
        int id = some[i];
        if (left.has(x[id], id)) total[0] += weight(x[id], largest);
    }
    block_totals(total, scratch[0]);
    // The largest stays even if p is 0.
    double limit = fmax((double)p * (double)total[0], 0.5);
    // The largest number such that those that reach it sum up to the limit, found two bits at a time.
    u32 least = 0, turn = 1;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 4, turn ^= 1) {
        u32 limits[3] = {least | bit / 2, least | bit, least | bit | bit / 2};
        u64 reach[3] = {0, 0, 0};
        for (int i = threadIdx.x; i < some.count; i += THREADS) {
            int id = some[i];
            u32 key = ordered(x[id]);
            if (key < limits[0] || !left.has(x[id], id)) continue;
            u32 own = weight(x[id], largest);
#pragma unroll
            for (int j = 0; j < 3; j++) reach[j] += key >= limits[j] ? own : 0;
        }
        block_totals(reach, scratch[turn]);
        least = (double)reach[2] >= limit   ? limits[2]
                : (double)reach[1] >= limit ? limits[1]
                : (double)reach[0] >= limit ? limits[0]
                                            : least;
    }
    // What is above it, and how many equal it.
    u64 above[2] = {0, 0};
    for (int i = threadIdx.x; i < some.count; i += THREADS) {
        int id = some[i];
        u32 key = ordered(x[id]);
        if (key < least || !left.has(x[id], id)) continue;
        if (key > least) above[0] += weight(x[id], largest);
        else above[1]++;
    }
    block_totals(above, scratch[turn]);
    if (above[1] == 0) return left;
    u32 own = weight(__uint_as_float(least >> 31 ? least & 0x7fffffffu : ~least), largest);
    double wanted = own == 0 ? (double)above[1] : ceil((limit - (double)above[0]) / (double)own);
    if (wanted >= (double)above[1]) return Left{least, 0xffffffffu};
    // Of equal ones the first stay: the id with as many before it as stay, bit by bit, is the first that does
    // not.
    u32 first = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 2) {
        if ((first | bit) >= (u32)ids) continue;
        turn ^= 1;
        u64 before[1] = {0};
        for (int i = threadIdx.x; i < some.count; i += THREADS) {
            int id = some[i];
            before[0] += id < (int)(first | bit) && ordered(x[id]) == least && left.has(x[id], id);
        }
        block_totals(before, scratch[turn]);
        if ((double)before[0] <= wanted) first |= bit;
    }
    return Left{least, first - 1};
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(const Args a) {
    extern __shared__ float x[];  // [ids], then room for a list of half as many ids
    __shared__ u64 scratch[WARPS], sums[2][3][WARPS];
    __shared__ uint2 pairs[4][WARPS];
    __shared__ u32 count;
    wait_for_previous();
    let_next_start();
    int b = blockIdx.x, draw = a.draw[b];
    const float* logits = a.logits + (size_t)b * a.lanes * a.ids;
    const float* settings = a.settings + (size_t)b * a.of_row;
    const float* seen = a.seen ? a.seen + (size_t)b * a.ids : 0;
    float temperature = settings[0], p = settings[2], penalty = settings[3];
    float min_p = a.of_row > 4 ? settings[4] : 0.0f, guidance = a.of_row > 5 ? settings[5] : 0.0f;
    int k = (int)fminf(fmaxf(settings[1], 0.0f), 1e9f);
    bool penalty_last = a.penalty_last && temperature != 0.0f, broken = false;
    auto penalized = [&](float v, int i) {
        bool is = (seen && seen[i] != 0.0f) || (i == a.start && draw == 0);
        return !is ? v : v < 0.0f ? v * penalty : v / penalty;
    };
#pragma unroll 4
    for (int i = threadIdx.x; i < a.ids; i += THREADS) {
        float v = logits[i];
        broken |= v != v;
        if (a.lanes == 2) {
            float u = logits[a.ids + i];
            broken |= u != u;
            v = v + guidance * (v - u);
        }
        if (!penalty_last) v = penalized(v, i);
        bool early = i == a.control_end && draw < a.min_draws;
        if (early || (i >= a.control_first && i != a.control_end)) v = -INFINITY;
        x[i] = temperature == 0.0f ? v : v / temperature;
    }
    broken = __syncthreads_or(broken);
    Left left = {ordered(-INFINITY) + 1, 0xffffffffu};
    if (temperature != 0.0f) {
        if (k > 0 && k < a.ids) left.least = max(left.least, kth(x, a.ids, k, pairs));
        if (min_p > 0.0f || p < 1.0f) {
            u64 rank = 0;
            for (int i = threadIdx.x; i < a.ids; i += THREADS) rank = max(rank, ranked(x[i], i));
            float largest = x[id_of(block_max(rank, scratch))];
            if (min_p > 0.0f) left.least = max(left.least, ordered(largest + logf(min_p)));
            if (p < 1.0f) {
                Some some = listed(x, a.ids, left, (u16*)(x + a.ids), &count, pairs);
                left = nucleus(x, a.ids, some, left, largest, p, sums);
            }
        }
    }
    u64 best = 0;
    u32 k0 = a.seed[2 * b], k1 = a.seed[2 * b + 1];
    for (int block = threadIdx.x; 4 * block < a.ids; block += THREADS) {
        float v[4];
        bool is[4], some = false;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int id = 4 * block + i;
            v[i] = id < a.ids ? x[id] : -INFINITY;
            some |= is[i] = left.has(v[i], id);
        }
        if (!some) continue;
        Words words = {{0, 0, 0, 0}};
        if (temperature != 0.0f) words = philox(block, a.codebook, draw, 1, k0, k1);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!is[i]) continue;
            float score = penalty_last ? penalized(v[i], 4 * block + i) : v[i];
            if (temperature != 0.0f) score += -ln_of_scaled(-ln_of_24_bits(2 * (words.w[i] >> 9) + 1), 0);
            best = max(best, ranked(score, 4 * block + i));
        }
    }
    best = block_max(best, scratch);
    if (threadIdx.x == 0) a.out[b] = broken || best == 0 ? -1 : (int)id_of(best);
}
