// Samples an id from logits [B, V], as defined by `Op::Sample`; one block per row.
//
//   x = c, or c + guidance · (c − u) with unconditional logits u; penalized if seen; −∞ for control ids
//   temperature 0:  argmax x
//   x = x / temperature; without those below the k-th largest, and below largest + ln(min-p)
//   without those after the ids whose probabilities sum up to p; or penalized only here
//   argmax (x − ln(−ln u)), u from Philox
//
// f32 with the operations of the CPU. Each step that leaves ids out is a lower limit for those that stay, so
// that nothing is sorted: ids are counted by their distance from the largest, and those that are about as far
// away as the limit are compared with each other. Where these are too many, as if all are equal, the limit is
// found bit by bit. Probabilities are integers of 31 bits relative to the largest, whose sums are exact in
// any order. If a logit is NaN, or no id can be drawn, the result is −1.

struct Args {
    const float* logits;    // [B, lanes, V]: the second of two rows is unconditional
    // [B, of_row]: temperature, k, p, penalty, min-p, guidance; those past the end are 0
    const float* settings;
    const int* seed;        // [B, 2]
    const int* draw;        // [B]
    const float* seen;      // [B, V], or null
    int* out;
    // A table whose rows the ids select, and where these go; or null. Then what they are added to, and the
    // sum; or null.
    const char* table;
    float* rows;
    const float* addend;
    float* sum;
    int ids, control_first, control_end, min_draws;
    u32 codebook;
    int of_row, lanes, penalty_last;
    int start;  // counts as seen in draw 0; −1: none
    // Width, rows and type of the table, see `Cache`.
    int width, table_rows, table_type;
};

// Most threads, and warps of them.
#define THREADS 1024
#define WARPS 32
// Distances from the largest number that are told apart, and of how much: weights of others are 0.
#define BINS 1024
#define SPAN 24.0f
// Most ids of a bin that are compared with each other.
#define LISTED 256

// Increases with x.
DEVICE u32 ordered(float x) {
    u32 bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE float unordered(u32 key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }

// Among equal numbers, the lowest id has the highest rank.
DEVICE u64 ranked(float x, u32 id) { return (u64)ordered(x) << 32 | (0xffffffffu - id); }

// The ids that are left: those of a number above `least`, as `ordered`, and those that equal it up to `last`.
struct Left {
    u32 least, last;
    __device__ __forceinline__ bool has(float x, u32 id) const {
        u32 key = ordered(x);
        return key > least || (key == least && id <= last);
    }
};

struct Shared {
    // By what is asked, so that nothing is overwritten that another warp still reads.
    u32 partial[4][2][WARPS];
    u64 sums[WARPS];
    u32 count[BINS];
    // Sums of the low and of the high 16 bits of weights.
    u32 low[BINS], high[BINS];
    u32 keys[LISTED], ids[LISTED], weights[LISTED];
    u32 listed;
    // What one thread has found.
    u64 before;
    u32 bin;
    Left left;
};

enum Reduction { SUM, MAX };

template <Reduction R>
DEVICE u32 of_warp(u32 x) {
#if __CUDA_ARCH__ >= 800
    return R == SUM ? __reduce_add_sync(0xffffffffu, x) : __reduce_max_sync(0xffffffffu, x);
#else
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        u32 other = __shfl_xor_sync(0xffffffffu, x, lane);
        x = R == SUM ? x + other : max(x, other);
    }
    return x;
#endif
}

// Two sums or maxima, in all threads. Of two calls one after the other, each has another place in `partial`.
template <Reduction R>
DEVICE uint2 of_block(u32 x, u32 y, Shared& s, int place) {
    u32(*partial)[WARPS] = s.partial[place];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = of_warp<R>(x), y = of_warp<R>(y);
    if (lane == 0) partial[0][warp] = x, partial[1][warp] = y;
    __syncthreads();
    bool is = lane < blockDim.x / 32;
    return make_uint2(of_warp<R>(is ? partial[0][lane] : 0), of_warp<R>(is ? partial[1][lane] : 0));
}

// Sum of weights, whose low and high 16 bits are summed up.
DEVICE u64 joined(uint2 halves) { return halves.x + ((u64)halves.y << 16); }

DEVICE u64 sum_of_block(u32 low, u32 high, Shared& s, int place) {
    return joined(of_block<SUM>(low, high, s, place));
}

// The bin in which values, summed up from the last bin on, reach a limit, and the sum before it. All bins
// together reach it.
template <typename Value, typename Reached>
DEVICE void find_bin(Value value, Reached reaches, Shared& s) {
    int each = BINS / blockDim.x, last = BINS - 1 - threadIdx.x * each;
    u64 own = 0;
    for (int i = 0; i < each; i++) own += value(last - i);
    u64 sum = own;
#pragma unroll
    for (int lane = 1; lane < 32; lane *= 2) {
        u64 more = __shfl_up_sync(0xffffffffu, sum, lane);
        if (threadIdx.x % 32 >= lane) sum += more;
    }
    if (threadIdx.x % 32 == 31) s.sums[threadIdx.x / 32] = sum;
    __syncthreads();
    u64 before = threadIdx.x % 32 < threadIdx.x / 32 ? s.sums[threadIdx.x % 32] : 0;
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) before += __shfl_xor_sync(0xffffffffu, before, lane);
    before += sum - own;
    for (int i = 0; i < each; i++) {
        u64 after = before + value(last - i);
        if (!reaches(before) && reaches(after)) s.bin = last - i, s.before = before;
        before = after;
    }
    __syncthreads();
}

// Probability relative to that of the largest.
DEVICE u32 weight(float x, float largest) { return (u32)(expf(x - largest) * 2147483648.0f); }

// Distances from the largest number.
struct Distances {
    float low;
    __device__ __forceinline__ explicit Distances(float largest) : low(largest - SPAN) {}
    __device__ __forceinline__ int bin(float x) const {
        return min(max((int)((x - low) * (BINS / SPAN)), 0), BINS - 1);
    }
};

// Lists the ids that are left and whose distance is in the bin that was found. Returns how many they are:
// more than LISTED are not all listed.
DEVICE int list_bin(const float* x, int ids, Distances distances, Left left, float largest, Shared& s) {
    for (int id = threadIdx.x; id < ids; id += blockDim.x) {
        if (distances.bin(x[id]) != s.bin || !left.has(x[id], id)) continue;
        u32 at = atomicAdd(&s.listed, 1);
        if (at >= LISTED) continue;
        s.keys[at] = ordered(x[id]), s.ids[at] = id, s.weights[at] = weight(x[id], largest);
    }
    __syncthreads();
    return s.listed;
}

DEVICE void clear_bins(Shared& s) {
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) s.count[i] = s.low[i] = s.high[i] = 0;
    if (threadIdx.x == 0) s.listed = 0;
}

// The k-th largest number, as `ordered`, or `least` if fewer than k ids reach that. The bins must be empty.
DEVICE u32 kth(const float* x, int ids, u32 k, float largest, u32 least, Shared& s) {
    Distances distances(largest);
    u32 own = 0;
    for (int id = threadIdx.x; id < ids; id += blockDim.x)
        if (ordered(x[id]) >= least) atomicAdd(&s.count[distances.bin(x[id])], 1), own++;
    if (of_block<SUM>(own, 0, s, 1).x < k) return least;
    find_bin([&](int bin) { return (u64)s.count[bin]; }, [&](u64 count) { return count >= k; }, s);
    int listed = list_bin(x, ids, distances, Left{least, 0xffffffffu}, largest, s);
    if (listed <= LISTED) {
        for (int i = threadIdx.x; i < listed; i += blockDim.x) {
            u32 key = s.keys[i], above = (u32)s.before, equal = 0;
#pragma unroll 4
            for (int j = 0; j < listed; j++) above += s.keys[j] > key, equal += s.keys[j] == key;
            if (above < k && k <= above + equal) s.left.least = key;
        }
        __syncthreads();
        return s.left.least;
    }
    u32 found = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 2) {
        own = 0;
        for (int id = threadIdx.x; id < ids; id += blockDim.x) own += ordered(x[id]) >= (found | bit);
        __syncthreads();
        if (of_block<SUM>(own, 0, s, 1).x >= k) found |= bit;
    }
    return found;
}

// Of ids with the same number, as many stay as are needed to get from the sum of those above to the limit.
DEVICE double wanted_of(u64 above, double limit, u32 own, u32 equal) {
    return own == 0 ? (double)equal : ceil((limit - (double)above) / (double)own);
}

// The most likely of the ids that are left, up to the first at which probabilities sum up to p.
DEVICE Left nucleus(const float* x, int ids, Left left, float largest, float p, Shared& s) {
    Distances distances(largest);
    u32 low = 0, high = 0;
    for (int id = threadIdx.x; id < ids; id += blockDim.x) {
        if (!left.has(x[id], id)) continue;
        u32 own = weight(x[id], largest), bin = distances.bin(x[id]);
        low += own & 0xffff, high += own >> 16;
        if (own) atomicAdd(&s.low[bin], own & 0xffff), atomicAdd(&s.high[bin], own >> 16);
    }
    u64 total = sum_of_block(low, high, s, 2);
    // The largest stays even if p is 0.
    double limit = fmax((double)p * (double)total, 0.5);
    auto reaches = [&](u64 sum) { return (double)sum >= limit; };
    if (!reaches(total)) return left;
    find_bin([&](int bin) { return joined(make_uint2(s.low[bin], s.high[bin])); }, reaches, s);
    if (threadIdx.x == 0) s.listed = 0;
    __syncthreads();
    int listed = list_bin(x, ids, distances, left, largest, s);
    if (listed <= LISTED) {
        for (int i = threadIdx.x; i < listed; i += blockDim.x) {
            u32 key = s.keys[i], own = s.weights[i], equal = 0, earlier = 0;
            u64 above = s.before;
#pragma unroll 4
            for (int j = 0; j < listed; j++) {
                u32 other = s.keys[j];
                above += other > key ? s.weights[j] : 0;
                equal += other == key, earlier += other == key && s.ids[j] < s.ids[i];
            }
            if (reaches(above) || !reaches(above + (u64)own * equal)) continue;
            double wanted = wanted_of(above, limit, own, equal);
            if (wanted >= (double)equal) s.left = Left{key, 0xffffffffu};
            else if ((double)earlier == wanted - 1.0) s.left = Left{key, s.ids[i]};
        }
        __syncthreads();
        return s.left;
    }
    // The largest number such that those that reach it sum up to the limit.
    u32 least = 0, equal = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 2) {
        low = high = 0;
        for (int id = threadIdx.x; id < ids; id += blockDim.x) {
            if (ordered(x[id]) < (least | bit) || !left.has(x[id], id)) continue;
            u32 own = weight(x[id], largest);
            low += own & 0xffff, high += own >> 16;
        }
        __syncthreads();
        if (reaches(sum_of_block(low, high, s, 2))) least |= bit;
    }
    low = high = 0;
    for (int id = threadIdx.x; id < ids; id += blockDim.x) {
        if (!left.has(x[id], id)) continue;
        u32 own = ordered(x[id]) > least ? weight(x[id], largest) : 0;
        low += own & 0xffff, high += own >> 16;
        equal += ordered(x[id]) == least;
    }
    u64 above = sum_of_block(low, high, s, 1);
    equal = of_block<SUM>(equal, 0, s, 3).x;
    double wanted = wanted_of(above, limit, weight(unordered(least), largest), equal);
    if (wanted >= (double)equal) return Left{least, 0xffffffffu};
    // The id with as many equal ones before it as stay, bit by bit, is the first that does not.
    u32 first = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit /= 2) {
        if ((first | bit) >= (u32)ids) continue;
        u32 before = 0;
        for (int id = threadIdx.x; id < (int)(first | bit); id += blockDim.x)
            before += ordered(x[id]) == least && left.has(x[id], id);
        __syncthreads();
        if ((double)of_block<SUM>(before, 0, s, 2).x <= wanted) first |= bit;
    }
    return Left{least, first - 1};
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(const Args a) {
    extern __shared__ float x[];  // [ids]
    __shared__ Shared s;
    clear_bins(s);
    wait_for_previous();
    let_next_start();
    int b = blockIdx.x, draw = a.draw[b];
    const float* logits = a.logits + (size_t)b * a.lanes * a.ids;
    const float* settings = a.settings + (size_t)b * a.of_row;
    const float* seen = a.seen ? a.seen + (size_t)b * a.ids : 0;
    float temperature = settings[0], p = settings[2], penalty = settings[3];
    float min_p = a.of_row > 4 ? settings[4] : 0.0f, guidance = a.of_row > 5 ? settings[5] : 0.0f;
    int k = (int)fminf(fmaxf(settings[1], 0.0f), 1e9f);
    bool penalty_last = a.penalty_last && temperature != 0.0f;
    u32 broken = 0;
    auto penalized = [&](float v, int i) {
        bool is = (seen && seen[i] != 0.0f) || (i == a.start && draw == 0);
        return !is ? v : v < 0.0f ? v * penalty : v / penalty;
    };
    u32 key = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < a.ids; i += blockDim.x) {
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
        v = temperature == 0.0f ? v : v / temperature;
        x[i] = v, key = max(key, ordered(v));
    }
    // Also waits for all numbers.
    uint2 most = of_block<MAX>(key, broken, s, 0);
    float largest = unordered(most.x);
    Left left = {ordered(-INFINITY) + 1, 0xffffffffu};
    if (temperature != 0.0f) {
        if (k > 0 && k < a.ids) left.least = kth(x, a.ids, k, largest, left.least, s);
        if (min_p > 0.0f) left.least = max(left.least, ordered(largest + logf(min_p)));
        if (p < 1.0f) left = nucleus(x, a.ids, left, largest, p, s);
    }
    u64 best = 0;
    u32 k0 = a.seed[2 * b], k1 = a.seed[2 * b + 1];
    for (int block = threadIdx.x; 4 * block < a.ids; block += blockDim.x) {
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
    // The highest rank, in two parts.
    u32 score = of_block<MAX>((u32)(best >> 32), 0, s, 3).x;
    u32 last = of_block<MAX>(score == (u32)(best >> 32) ? (u32)best : 0, 0, s, 0).x;
    int drawn = most.y || score == 0 ? -1 : (int)(0xffffffffu - last);
    if (threadIdx.x == 0) a.out[b] = drawn;
    if (!a.rows) return;
    // As in gather.cu.
    if (drawn < 0) drawn += a.table_rows;
    size_t from = (size_t)min(drawn, a.table_rows - 1) * a.width, to = (size_t)b * a.width;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x) {
        float v = element(a.table, a.table_type, from + i);
        a.rows[to + i] = v;
        if (a.sum) a.sum[to + i] = a.addend[to + i] + v;
    }
}
