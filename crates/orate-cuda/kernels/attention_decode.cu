// Attention of one query per batch row over a cache: softmax(scale · q·k) · v for each head.
//
// q and out [B, 1, H·D], k and v [B or 1, N, H/GROUP·D], first [B]: position of the query, which sees the
// keys up to it. D is a multiple of 4, up to 128. GROUP heads of q share one head of k and v, which is read
// once for them. CACHE is the type of k and v (see `cache_rows.cuh`); elements are widened in registers.
//
// A cluster of blocks has one key/value head. LANES threads, half or a quarter of a warp, have every n-th
// key, and each of them eight channels: neighbors if they have 16 bits and D is a multiple of eight. They
// keep maximum, sum and weighted values, which are combined in the order of threads, then of warps and
// blocks. The assignment of keys depends on their index alone.
//
// `decode_heads` first computes what `heads.cu` would: norms and rotary positions of queries, and of the new
// key. The threads that have that key begin with it, and write it to the cache with its value.
//
// Scores are exponents of two, so that a weight is one instruction.

template <int GROUP, bool HEADS, int LANES>
DEVICE void decode(const Args& a) {
    // Keys of a warp, and those in flight per thread.
    constexpr int TOGETHER = 32 / LANES, AHEAD = GROUP == 1 ? 4 : 2;
    constexpr float LOG2_E = 1.44269504f;
    extern __shared__ float4 shared4[];
    int warps = blockDim.x / 32;
    float* mine = (float*)shared4;               // [warps, GROUP, KEPT]
    float* inbox = mine + warps * GROUP * KEPT;  // [blocks, GROUP, KEPT]
    u32 blocks = cluster_blocks(), rank = cluster_rank();
    int thread = threadIdx.x % 32, lane = thread % LANES, which = thread / LANES, warp = threadIdx.x / 32;
    int kv_heads = a.heads / GROUP, head = blockIdx.x % kv_heads, b = blockIdx.x / kv_heads;
    // Its fours of channels.
    bool neighbors = (CACHE == 1 || CACHE == 2) && a.d % 8 == 0;
    int four[2] = {neighbors ? 2 * lane : lane, neighbors ? 2 * lane + 1 : lane + LANES};
    bool is[2] = {four[0] < a.d / 4, four[1] < a.d / 4};
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 weight[2] = {zero, zero};
    if (HEADS && thread < a.d / 4) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (a.weight[i]) weight[i] = ((const float4*)a.weight[i])[thread];
    }
    if (blocks > 1) cluster_arrive();
    if (!a.early) wait_for_previous();
    int end = min(max(a.first ? (int)near_word(a.first + b) : a.at, 0), a.keys - 1) + 1;
    int width = kv_heads * a.d, at[2] = {head * a.d + 4 * four[0], head * a.d + 4 * four[1]};
#if CACHE
    u32 bytes = kept_bytes(CACHE, width);
#else
    u32 bytes = 4 * width;
#endif
    size_t base = (size_t)(a.kv_batch == 1 ? 0 : b) * a.keys * bytes;
    char *keys = a.k + base, *values = a.v + base;
    int parts = blocks * warps * TOGETHER, part = (rank * warps + warp) * TOGETHER + which;
    // Keys of the cache; with `decode_heads` the last one is not there yet.
    int count = HEADS ? end - 1 : end;
    Stored k[AHEAD][2], v[AHEAD][2];
    auto load = [&](Stored (&x)[AHEAD][2], const char* rows, int start) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int key = start + i * parts;
            const char* row = rows + (size_t)key * bytes;
#if CACHE == 1 || CACHE == 2
            if (neighbors) {
                bool there = is[0] && key < count;
                uint4 all = there ? near_words(row + 2 * at[0]) : make_uint4(0, 0, 0, 0);
                x[i][0] = make_uint2(all.x, all.y), x[i][1] = make_uint2(all.z, all.w);
                continue;
            }
#endif
#pragma unroll
            for (int j = 0; j < 2; j++)
                x[i][j] = is[j] && key < count ? stored(row, width, at[j]) : nothing();
        }
    };
    load(k, keys, part), load(v, values, part);
    if (a.early) wait_for_previous();
    let_next_start();

    Eight q[GROUP], acc[GROUP];
    float largest[GROUP], total[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        if (HEADS) {
            q[g] = spread(new_head<0>(a, b, head * GROUP + g, weight[0]), four);
        } else {
            const float4* row = (const float4*)(a.q + ((size_t)b * a.heads + head * GROUP + g) * a.d);
#pragma unroll
            for (int j = 0; j < 2; j++) q[g].of[j] = is[j] ? row[four[j]] : zero;
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            q[g].of[j] = scaled(q[g].of[j], a.scale * LOG2_E);
            acc[g].of[j] = zero;
        }
        largest[g] = -INFINITY, total[g] = 0.0f;
    }
    int last = (u32)(end - 1) % parts;
    if (HEADS && last / TOGETHER == part / TOGETHER) {
        Eight new_k = spread(new_head<1>(a, b, head, weight[1]), four);
        Eight new_v = spread(new_head<2>(a, b, head, zero), four);
        bool own = last == part;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            new_k.of[j] = kept(keys + (size_t)(end - 1) * bytes, width, at[j], new_k.of[j], own && is[j]);
            new_v.of[j] = kept(values + (size_t)(end - 1) * bytes, width, at[j], new_v.of[j], own && is[j]);
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float score = product(q[g], new_k);
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2)
                score += __shfl_xor_sync(0xffffffffu, score, step);
            if (own) largest[g] = score, total[g] = 1.0f, acc[g] = new_v;
        }
    }
    // Where registers suffice, the next keys and values are on their way as soon as there is room for them.
    constexpr bool SOON = CACHE == 1 || CACHE == 2;
    for (int start = part; start - which < count; start += AHEAD * parts) {
        if (!SOON && start != part) load(k, keys, start), load(v, values, start);
        float scores[GROUP][AHEAD];
#pragma unroll
        for (int g = 0; g < GROUP; g++)
#pragma unroll
            for (int i = 0; i < AHEAD; i++) scores[g][i] = product(q[g], widened(k[i]));
        if (SOON) load(k, keys, start + AHEAD * parts);
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float(&score)[AHEAD] = scores[g], now = largest[g];
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
                for (int i = 0; i < AHEAD; i++) score[i] += __shfl_xor_sync(0xffffffffu, score[i], step);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                score[i] = start + i * parts < count ? score[i] : -INFINITY;
                now = fmaxf(now, score[i]);
            }
            // Without keys so far, weights are 2 to the power of −∞ − 0.
            float center = now == -INFINITY ? 0.0f : now, old = power_of_two(largest[g] - center);
            total[g] *= old, largest[g] = now;
#pragma unroll
            for (int j = 0; j < 2; j++) acc[g].of[j] = scaled(acc[g].of[j], old);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                float p = power_of_two(score[i] - center);
                total[g] += p;
#pragma unroll
                for (int j = 0; j < 2; j++) acc[g].of[j] = added(acc[g].of[j], p, widened(v[i][j]));
            }
        }
        if (SOON) load(v, values, start + AHEAD * parts);
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        // Both threads of a pair get the same sums.
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) {
            float other = __shfl_xor_sync(0xffffffffu, largest[g], step);
            float sum = __shfl_xor_sync(0xffffffffu, total[g], step), now = fmaxf(largest[g], other);
            float center = now == -INFINITY ? 0.0f : now;
            float own = power_of_two(largest[g] - center), its = power_of_two(other - center);
            largest[g] = now, total[g] = own * total[g] + its * sum;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float4 there = of_lane(acc[g].of[j], thread ^ step);
                acc[g].of[j] = added(scaled(acc[g].of[j], own), its, there);
            }
        }
        float* to = mine + (warp * GROUP + g) * KEPT;
        if (which == 0) {
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (is[j]) ((float4*)to)[four[j]] = acc[g].of[j];
            if (lane == 0) to[128] = largest[g], to[129] = total[g];
        }
    }
    __syncthreads();
    // One warp per head of q combines the parts of this block and sends them to the first block.
    bool has_four = thread < a.d / 4;
    float m, sum;
    if (blocks > 1) {
        cluster_wait();
        if (warp < GROUP) {
            float4 y = joined(mine + warp * KEPT, warps, GROUP * KEPT, thread, has_four, m, sum);
            float* to = inbox + (rank * GROUP + warp) * KEPT;
            if (has_four) give(to + 4 * thread, 0, y);
            if (thread == 31) give(to + 128, 0, make_float4(m, sum, 0.0f, 0.0f));
        }
        cluster_arrive();
        cluster_wait();
    }
    if (rank > 0 || warp >= GROUP) return;
    const float* from = (blocks > 1 ? inbox : mine) + warp * KEPT;
    float4 y = joined(from, blocks > 1 ? blocks : warps, GROUP * KEPT, thread, has_four, m, sum);
    if (!has_four) return;
    y = scaled(y, 1.0f / sum);
    store_as(a.type, a.out, ((size_t)b * a.heads + head * GROUP + warp) * a.d + 4 * thread, y);
}

#define KERNEL(NAME, GROUP, HEADS, LANES) \
    extern "C" __global__ void __launch_bounds__(256, GROUP == 4 ? 1 : 2) NAME(const Args a) { \
        decode<GROUP, HEADS, LANES>(a); \
    }

KERNEL(decode_1, 1, false, 16)
KERNEL(decode_2, 2, false, 16)
KERNEL(decode_4, 4, false, 16)
KERNEL(decode_heads_1, 1, true, 16)
KERNEL(decode_heads_2, 2, true, 16)
KERNEL(decode_heads_4, 4, true, 16)
KERNEL(decode_narrow_1, 1, false, 8)
KERNEL(decode_narrow_2, 2, false, 8)
KERNEL(decode_narrow_4, 4, false, 8)
KERNEL(decode_narrow_heads_1, 1, true, 8)
KERNEL(decode_narrow_heads_2, 2, true, 8)
KERNEL(decode_narrow_heads_4, 4, true, 8)
