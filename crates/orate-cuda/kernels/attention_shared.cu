// Attention of one query per batch row over a cache whose rows may begin alike, as with callers of one voice:
// keys and values that rows have in common are read once for sixteen of them.
//
// As `decode_heads` in `attention_decode.cu`, with heads of 64 channels that have neither norms nor rotary
// positions, and a cache of 16-bit numbers. shared [B, 2]: for each row, a row whose first keys and values
// are the same, and their number.
//
// A cluster of BLOCKS blocks has one head of sixteen rows. Half of the warps of all these have every n-th
// eight of the keys in common: tensor cores multiply them with all queries. These are sums of two numbers of
// 16 bits, as are the weights of values, so hardly more is lost than in f32. The other warps have the other
// keys of a block's share of the rows. This block combines all parts, in the order of warps and blocks.

#if __CUDA_ARCH__ >= 900

#define GROUP 16
#define D 64
// Floats of a partial result: values, maximum, sum.
#define PART 68

DEVICE void mma_8(float (&c)[4], u32 a0, u32 a1, u32 b) {
#if CACHE == 1
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

// Rows of a matrix of 8 · 8 become columns.
DEVICE u32 transposed(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Two numbers as pairs of 16 bits, which add up to them.
DEVICE void split(float x, float y, u32& high, u32& low) {
    high = halves(x, y);
    float4 there = widened_pairs<CACHE>(make_uint2(high, 0));
    low = halves(x - there.x, y - there.y);
}

DEVICE Eight widened_words(uint4 x) {
    return Eight{widened_pairs<CACHE>(make_uint2(x.x, x.y)), widened_pairs<CACHE>(make_uint2(x.z, x.w))};
}

// Eight channels of a new head.
DEVICE Eight new_eight(const Args& a, int part, int row, int head, int at) {
    const float4* x = (const float4*)(a.x[part] + (size_t)row * a.stride[part] + head * D + at);
    return Eight{x[0], x[1]};
}

// Combines parts, of which a thread has four channels.
template <int COUNT>
DEVICE void combine(const float* parts, int stride, int four, float& largest, float& total, float4& sum) {
    float weight[COUNT], now = largest;
#pragma unroll
    for (int i = 0; i < COUNT; i++) weight[i] = parts[i * stride + D], now = fmaxf(now, weight[i]);
    float center = now == -INFINITY ? 0.0f : now, old = power_of_two(largest - center);
    largest = now, total *= old, sum = scaled(sum, old);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float* part = parts + i * stride;
        weight[i] = power_of_two(weight[i] - center);
        total = fmaf(weight[i], part[D + 1], total);
        sum = added(sum, weight[i], ((const float4*)part)[four]);
    }
}

// Tells the cluster that this block has started. Unlike `cluster_arrive` it does not wait for its writes.
DEVICE void cluster_begin() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

// Keys that some of the sixteen rows have in common.
struct Common {
    int leader, count;
    u32 rows;
};

// What a warp knows of sixteen rows: lanes 0 to 15 and 16 to 31 have one each.
struct Group {
    int base, head, leader, count, position;
    size_t bytes;
    u32 alike;
};

// Partial results of warp `warp` for all rows: keys that they have in common.
template <int BLOCKS, int WARPS>
DEVICE void decode_common(const Args& a, const Group& g, u32 left, int warp, float (*to)[PART]) {
    constexpr float LOG2_E = 1.44269504f;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    int lane = threadIdx.x % 32, t = lane % 4, r = lane / 4;
    auto opened = [&](u32 left) {
        int first = left ? __ffs(left) - 1 : 0;
        return Common{__shfl_sync(0xffffffffu, g.leader, first), __shfl_sync(0xffffffffu, g.count, first),
                      __shfl_sync(0xffffffffu, g.alike, first)};
    };
    // Eights of keys before those of `now`, and the one that this warp has next.
    int before = 0, next = warp * BLOCKS + cluster_rank();
    Common now = opened(left);
    auto find = [&]() {
        while (left && next >= before + (now.count + 7) / 8) {
            before += (now.count + 7) / 8, left &= left - 1;
            now = opened(left);
        }
        return left != 0;
    };
    auto load = [&](uint4 (&k)[2], uint4 (&v)[2]) {
        int key = 8 * (next - before) + r;
        bool is = left && key < now.count;
        size_t at = ((size_t)now.leader * a.keys + key) * g.bytes + 2 * (g.head * D + 8 * t);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            k[half] = is ? near_words(a.k + at + 64 * half) : make_uint4(0, 0, 0, 0);
            v[half] = is ? near_words(a.v + at + 64 * half) : make_uint4(0, 0, 0, 0);
        }
    };
    uint4 k[2], v[2];
    bool is = find();
    load(k, v);
    if (a.early) wait_for_previous();
    let_next_start();

    float acc[8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    // Queries: two parts of four sixteens of channels.
    u32 q[2][4][4];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int from = g.base + r + 8 * i;
            Eight x = Eight{zero, zero};
            if (is && from < a.rows) x = new_eight(a, 0, from, g.head, 32 * half + 8 * t);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float4 y = scaled(x.of[j], a.scale * LOG2_E);
                split(y.x, y.y, q[0][2 * half + j][i], q[1][2 * half + j][i]);
                split(y.z, y.w, q[0][2 * half + j][2 + i], q[1][2 * half + j][2 + i]);
            }
        }
    while (is) {
        int count = now.count, key = 8 * (next - before) + 2 * t;
        u32 rows = now.rows;
        uint4 next_k[2], next_v[2];
        next += BLOCKS * WARPS;
        is = find();
        load(next_k, next_v);
        float score[4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32(&x)[4] = q[i][2 * half], (&y)[4] = q[i][2 * half + 1];
                mma_half(score, make_uint4(x[0], x[1], x[2], x[3]), k[half].x, k[half].y);
                mma_half(score, make_uint4(y[0], y[1], y[2], y[3]), k[half].z, k[half].w);
            }
        u32 high[2], low[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bool in = rows >> (r + 8 * i) & 1;
            float x = in && key < count ? score[2 * i] : -INFINITY;
            float y = in && key + 1 < count ? score[2 * i + 1] : -INFINITY;
            float top = fmaxf(x, y);
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(largest[i], fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)));
            float center = top == -INFINITY ? 0.0f : top, old = power_of_two(largest[i] - center);
            largest[i] = top;
            x = power_of_two(x - center), y = power_of_two(y - center);
            total[i] = old * total[i] + x + y;
            split(x, y, high[i], low[i]);
#pragma unroll
            for (int j = 0; j < 8; j++) acc[j][2 * i] *= old, acc[j][2 * i + 1] *= old;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 words[4] = {v[half].x, v[half].y, v[half].z, v[half].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 column = transposed(words[j]);
                mma_8(acc[4 * half + j], high[0], high[1], column);
                mma_8(acc[4 * half + j], low[0], low[1], column);
            }
            k[half] = next_k[half], v[half] = next_v[half];
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = total[i] + __shfl_xor_sync(0xffffffffu, total[i], 1), *row = to[r + 8 * i];
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float(&x)[4] = acc[4 * half + 2 * j], (&y)[4] = acc[4 * half + 2 * j + 1];
                *(float4*)(row + 32 * half + 8 * t + 4 * j) =
                    make_float4(x[2 * i], x[2 * i + 1], y[2 * i], y[2 * i + 1]);
            }
        if (t == 0) row[D] = largest[i], row[D + 1] = sum;
    }
}

// Partial results of warp `warp` of OWN for row `row` of a group: its other keys. A quarter of a warp has
// every n-th one.
template <int OWN>
DEVICE void decode_own(const Args& a, const Group& g, int row, int warp, float* to) {
    constexpr float LOG2_E = 1.44269504f;
    constexpr int TOGETHER = 4 * OWN, AHEAD = 7;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    int lane = threadIdx.x % 32, which = lane / 8, eight = lane % 8 * 8, part = warp * 4 + which;
    int b = g.base + row;
    bool is = b < a.rows;
    int begin = __shfl_sync(0xffffffffu, g.count, row), end = __shfl_sync(0xffffffffu, g.position, row);
    size_t own = (size_t)(is ? b : 0) * a.keys * g.bytes + 2 * (g.head * D + eight);
    uint4 keys[AHEAD], values[AHEAD];
    auto load = [&](uint4 (&x)[AHEAD], const char* cache, int start) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int key = start + i * TOGETHER;
            x[i] = is && key < end ? near_words(cache + own + (size_t)key * g.bytes) : make_uint4(0, 0, 0, 0);
        }
    };
    load(keys, a.k, begin + part), load(values, a.v, begin + part);
    if (a.early) wait_for_previous();
    let_next_start();
    if (!is) return;

    Eight q = new_eight(a, 0, b, g.head, eight), acc = Eight{zero, zero};
    q.of[0] = scaled(q.of[0], a.scale * LOG2_E), q.of[1] = scaled(q.of[1], a.scale * LOG2_E);
    float largest = -INFINITY, total = 0.0f;
    if (warp == OWN - 1) {
        // The new key and its value are also written.
        bool is_new = which == 3;
        Eight two[2] = {new_eight(a, 1, b, g.head, eight), new_eight(a, 2, b, g.head, eight)};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4 x = two[i].of[0], y = two[i].of[1];
            uint4 words = make_uint4(halves(x.x, x.y), halves(x.z, x.w), halves(y.x, y.y), halves(y.z, y.w));
            if (is_new) *(uint4*)((i ? a.v : a.k) + own + (size_t)end * g.bytes) = words;
            two[i] = widened_words(words);
        }
        float score = product(q, two[0]);
#pragma unroll
        for (int step = 4; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
        if (is_new) largest = score, total = 1.0f, acc = two[1];
    }
    for (int start = begin + part; start - which < end; start += AHEAD * TOGETHER) {
        float score[AHEAD], top = largest;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) score[i] = product(q, widened_words(keys[i]));
        load(keys, a.k, start + AHEAD * TOGETHER);
#pragma unroll
        for (int step = 4; step > 0; step /= 2)
#pragma unroll
            for (int i = 0; i < AHEAD; i++) score[i] += __shfl_xor_sync(0xffffffffu, score[i], step);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            score[i] = start + i * TOGETHER < end ? score[i] : -INFINITY;
            top = fmaxf(top, score[i]);
        }
        float center = top == -INFINITY ? 0.0f : top, old = power_of_two(largest - center);
        total *= old, largest = top;
        acc.of[0] = scaled(acc.of[0], old), acc.of[1] = scaled(acc.of[1], old);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float p = power_of_two(score[i] - center);
            Eight x = widened_words(values[i]);
            total += p;
            acc.of[0] = added(acc.of[0], p, x.of[0]), acc.of[1] = added(acc.of[1], p, x.of[1]);
        }
        load(values, a.v, start + AHEAD * TOGETHER);
    }
#pragma unroll
    for (int step = 8; step < 32; step *= 2) {
        float other = __shfl_xor_sync(0xffffffffu, largest, step);
        float sum = __shfl_xor_sync(0xffffffffu, total, step), top = fmaxf(largest, other);
        float center = top == -INFINITY ? 0.0f : top;
        float here = power_of_two(largest - center), there = power_of_two(other - center);
        largest = top, total = here * total + there * sum;
#pragma unroll
        for (int j = 0; j < 2; j++)
            acc.of[j] = added(scaled(acc.of[j], here), there, of_lane(acc.of[j], lane ^ step));
    }
    if (which > 0) return;
    *(Eight*)(to + eight) = acc;
    if (lane == 0) to[D] = largest, to[D + 1] = total;
}

// WARPS have keys in common, and as many others.
template <int BLOCKS, int WARPS>
DEVICE void decode_in_common(const Args& a) {
    // Rows of a block, and warps of a row.
    constexpr int ROWS = GROUP / BLOCKS, OWN = WARPS / ROWS;
    __shared__ __align__(16) float common[WARPS][GROUP][PART], inbox[BLOCKS][ROWS][PART];
    __shared__ __align__(16) float mine[2 * WARPS][PART];
    __shared__ u64 arrival;
    u32 barrier = (u32)__cvta_generic_to_shared(&arrival), rank = cluster_rank();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        expect_arrivals(barrier, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        announce(barrier, 4 * GROUP * PART);
    }
    __syncwarp();
    cluster_begin();
    if (!a.early) wait_for_previous();

    Group g;
    g.head = blockIdx.x % a.heads, g.base = blockIdx.x / a.heads * GROUP;
    g.bytes = kept_bytes(CACHE, a.heads * D);
    int row = g.base + lane % GROUP;
    bool is_row = row < a.rows;
    uint2 both = is_row ? near_two(a.shared + 2 * row) : make_uint2(0, 0);
    g.position = is_row ? min(max((int)near_word(a.first + row), 0), a.keys - 1) : 0;
    g.leader = min(max((int)both.x, 0), a.rows - 1), g.count = min(max((int)both.y, 0), g.position);
    unsigned long long same = (unsigned long long)(g.leader + 1) << 32 | (u32)g.count;
    g.alike = __match_any_sync(0xffffffffu, g.count > 0 ? same : (unsigned long long)lane << 32) & 0xffff;
    u32 open = __ballot_sync(0xffffffffu, lane < GROUP && g.count > 0 && __ffs(g.alike) - 1 == lane);
    if (!open) {
        // All warps have keys of their own rows.
        decode_own<2 * OWN>(a, g, ROWS * rank + warp / (2 * OWN), warp % (2 * OWN), mine[warp]);
    } else if (warp < WARPS) {
        decode_common<BLOCKS, WARPS>(a, g, open, warp, common[warp]);
    } else {
        int own = warp - WARPS;
        decode_own<OWN>(a, g, ROWS * rank + own / OWN, own % OWN, mine[own]);
    }
    __syncthreads();
    cluster_wait();
    if (threadIdx.x >= GROUP * D / 4) return;
    // A row's keys in common, to the block that has its own keys.
    int four = threadIdx.x % GROUP, of = threadIdx.x / GROUP, b = g.base + ROWS * rank + of;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float largest = -INFINITY, total = 0.0f;
    if (open) {
        combine<WARPS>(common[0][of], GROUP * PART, four, largest, total, sum);
        float* to = inbox[rank][of % ROWS];
        send(to + 4 * four, barrier, of / ROWS, sum);
        if (four == 0) send(to + D, barrier, of / ROWS, make_float4(largest, total, 0.0f, 0.0f));
        // All wait: a block that ended would take away the memory that others send to.
        wait_for_phase(barrier, 0);
    }
    if (of >= ROWS || b >= a.rows) return;
    largest = -INFINITY, total = 0.0f, sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (open) {
        combine<BLOCKS>(inbox[0][of], ROWS * PART, four, largest, total, sum);
        combine<OWN>(mine[OWN * of], PART, four, largest, total, sum);
    } else {
        combine<2 * OWN>(mine[2 * OWN * of], PART, four, largest, total, sum);
    }
    store_as(a.type, a.out, ((size_t)b * a.heads + g.head) * D + 4 * four, scaled(sum, 1.0f / total));
}

#undef KERNEL
#define KERNEL(NAME, BLOCKS, WARPS) \
    extern "C" __global__ void __launch_bounds__(64 * WARPS, 8 / WARPS) NAME(const Args a) { \
        decode_in_common<BLOCKS, WARPS>(a); \
    }

KERNEL(decode_shared_8, 8, 4)
KERNEL(decode_shared_4, 4, 4)
KERNEL(decode_shared_2, 2, 8)

#endif
