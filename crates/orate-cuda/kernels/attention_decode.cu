// Attention of one query per batch row over a cache: softmax(scale · q·k) · v for each head.
//
// q and out [B, 1, H·D], k and v [B or 1, N, H/GROUP·D], first [B]: position of the query, which sees the
// keys up to it. D is a multiple of 4, up to 128. GROUP heads of q share one head of k and v, which is read
// once for them. CACHE is the type of k and v (see `cache_rows.cuh`); elements are widened in registers.
//
// A cluster of blocks has one key/value head. LANES threads, a warp or half of one, have every n-th key, and
// each of them four channels. They keep maximum, sum and weighted values, which are combined in the order of
// threads, then of blocks. The assignment of keys depends on their index alone.
//
// `decode_heads` first computes what `heads.cu` would: norms and rotary positions of queries, and of the new
// key, which the threads that have it write to the cache with its value.

struct Args {
    const float* q;
    float* k;
    float* v;
    const int* first;  // null: `at`
    float* out;
    // Of queries, keys and values, for `decode_heads`: rows [B, …], and norm [D] and table [B or 1, 2, 1,
    // D/2] or null.
    const float* x[3];
    const float* weight[3];
    const float* table[3];
    int heads, d, keys, kv_batch, at;
    float scale;
    int stride[3], tables[3];
    float eps[3];
    int type;  // of `out`; see `store_as`
};

#ifndef CACHE
#define CACHE 0
#endif

// Floats of a partial result of one head of q: values, maximum, sum.
#define KEPT 132

// Combines several partial results. Thread `lane` has four channels.
DEVICE float4 joined(
    const float* parts, int count, int stride, int lane, bool is, float& largest, float& total) {
    largest = -INFINITY;
    for (int i = 0; i < count; i++) largest = fmaxf(largest, parts[i * stride + 128]);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    total = 0.0f;
    for (int i = 0; i < count; i++) {
        const float* part = parts + i * stride;
        float m = part[128], e = m == -INFINITY ? 0.0f : expf(m - largest);
        total += e * part[129];
        if (is) {
            float4 v = ((const float4*)part)[lane];
            sum.x += e * v.x, sum.y += e * v.y, sum.z += e * v.z, sum.w += e * v.w;
        }
    }
    return sum;
}

// The value of thread `lane` of the warp.
DEVICE float4 of_lane(float4 v, int lane) {
    return make_float4(__shfl_sync(0xffffffffu, v.x, lane), __shfl_sync(0xffffffffu, v.y, lane),
                       __shfl_sync(0xffffffffu, v.z, lane), __shfl_sync(0xffffffffu, v.w, lane));
}

// Four channels of head `head` of row `b` of queries, keys or values, for every LANES threads of the warp.
template <int PART, int LANES>
DEVICE float4 new_head(const Args& a, int b, int head, float4 weight) {
    int lane = threadIdx.x % 32;
    const float* row = a.x[PART] + (size_t)b * a.stride[PART] + head * a.d;
    float4 v = lane < a.d / 4 ? ((const float4*)row)[lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (a.weight[PART]) v = normed_head(v, weight, a.d, a.eps[PART]);
    int half = a.d / 2;
    if (a.table[PART])
        v = rotated_head(v, a.table[PART] + (size_t)(b % a.tables[PART]) * a.d, half, a.d);
    return LANES < 32 ? of_lane(v, lane % LANES) : v;
}

#if CACHE
// Writes four channels of a row of the cache. All threads of the warp must call this.
DEVICE void keep(char* row, int width, int at, float4 v, bool is) {
    if (CACHE == BLOCKS) {
        float inverse;
        u16 scale = kept_scale(v, inverse);
        if (is) *(u32*)(row + at) = kept_bytes_of(v, inverse);
        if (is && at % 32 == 0) *(u16*)(row + width + at / 32 * 2) = scale;
    } else if (is) {
        *(uint2*)(row + 2 * at) = make_uint2(kept_pair(CACHE, v.x, v.y), kept_pair(CACHE, v.z, v.w));
    }
}
#endif

template <int GROUP, bool HEADS, int LANES>
DEVICE void decode(const Args& a) {
    // Keys of a warp, and those in flight per thread.
    constexpr int TOGETHER = 32 / LANES, AHEAD = CACHE && GROUP < 4 ? 8 : 4;
    extern __shared__ float4 shared4[];
    int warps = blockDim.x / 32;
    float* mine = (float*)shared4;              // [warps · TOGETHER, GROUP, KEPT]
    float* inbox = mine + warps * TOGETHER * GROUP * KEPT;  // [blocks, GROUP, KEPT]
    u32 blocks = cluster_blocks(), rank = cluster_rank();
    int lane = threadIdx.x % LANES, which = threadIdx.x % 32 / LANES, warp = threadIdx.x / 32;
    int kv_heads = a.heads / GROUP, head = blockIdx.x % kv_heads, b = blockIdx.x / kv_heads;
    bool is = lane < a.d / 4;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 weight[2] = {zero, zero};
    if (HEADS && threadIdx.x % 32 < a.d / 4) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (a.weight[i]) weight[i] = ((const float4*)a.weight[i])[threadIdx.x % 32];
    }
    if (blocks > 1) cluster_arrive();
    wait_for_previous();
    let_next_start();
    int end = min(max(a.first ? a.first[b] : a.at, 0), a.keys - 1) + 1;
    float4 q[GROUP], acc[GROUP];
    float largest[GROUP], total[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        if (HEADS) q[g] = new_head<0, LANES>(a, b, head * GROUP + g, weight[0]);
        else q[g] = is ? ((const float4*)(a.q + ((size_t)b * a.heads + head * GROUP + g) * a.d))[lane] : zero;
        q[g].x *= a.scale, q[g].y *= a.scale, q[g].z *= a.scale, q[g].w *= a.scale;
        acc[g] = zero, largest[g] = -INFINITY, total[g] = 0.0f;
    }
#if CACHE
    int width = kv_heads * a.d, at = head * a.d + 4 * lane;
    size_t bytes = kept_bytes(CACHE, width), base = (size_t)(a.kv_batch == 1 ? 0 : b) * a.keys * bytes;
    char *keys = (char*)a.k + base, *values = (char*)a.v + base;
#else
    size_t width = (size_t)kv_heads * a.d;
    size_t base = (size_t)(a.kv_batch == 1 ? 0 : b) * a.keys * width + head * a.d;
#endif
    int parts = blocks * warps * TOGETHER, part = (rank * warps + warp) * TOGETHER + which;
    // The key that is written here; none has its index otherwise.
    int last = (u32)(end - 1) % parts, own = HEADS && last == part ? end - 1 : -1;
    float4 new_k = zero, new_v = zero;
    if (HEADS && last / TOGETHER == part / TOGETHER) {
        new_k = new_head<1, LANES>(a, b, head, weight[1]), new_v = new_head<2, LANES>(a, b, head, zero);
#if CACHE
        // Read again below, rounded.
        keep(keys + (end - 1) * bytes, width, at, new_k, is && own >= 0);
        keep(values + (end - 1) * bytes, width, at, new_v, is && own >= 0);
        __syncwarp();
        own = -1;
#else
        if (is && own >= 0) {
            ((float4*)(a.k + base + own * width))[lane] = new_k;
            ((float4*)(a.v + base + own * width))[lane] = new_v;
        }
#endif
    }
    for (int start = part; start - which < end; start += AHEAD * parts) {
        float4 k[AHEAD], v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int key = start + i * parts;
            bool there = is && key < end;
#if CACHE
            k[i] = there ? kept_four<CACHE>(keys + key * bytes, width, at) : zero;
            v[i] = there ? kept_four<CACHE>(values + key * bytes, width, at) : zero;
#else
            there &= key != own;
            k[i] = there ? ((const float4*)(a.k + base + key * width))[lane] : key == own ? new_k : zero;
            v[i] = there ? ((const float4*)(a.v + base + key * width))[lane] : key == own ? new_v : zero;
#endif
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float score[AHEAD], now = largest[g];
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                score[i] = q[g].x * k[i].x + q[g].y * k[i].y + q[g].z * k[i].z + q[g].w * k[i].w;
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
                for (int i = 0; i < AHEAD; i++) score[i] += __shfl_xor_sync(0xffffffffu, score[i], step);
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (start + i * parts < end) now = fmaxf(now, score[i]);
            // Without keys so far, weights are exp(−∞ − 0).
            float center = now == -INFINITY ? 0.0f : now, old = expf(largest[g] - center);
            total[g] *= old, largest[g] = now;
            acc[g].x *= old, acc[g].y *= old, acc[g].z *= old, acc[g].w *= old;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (start + i * parts >= end) continue;
                float p = expf(score[i] - center);
                total[g] += p;
                acc[g].x += p * v[i].x, acc[g].y += p * v[i].y;
                acc[g].z += p * v[i].z, acc[g].w += p * v[i].w;
            }
        }
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        float* to = mine + ((warp * TOGETHER + which) * GROUP + g) * KEPT;
        if (is) ((float4*)to)[lane] = acc[g];
        if (lane == 0) to[128] = largest[g], to[129] = total[g];
    }
    __syncthreads();
    // One warp per head of q combines the parts of this block and sends them to the first block.
    float m, sum;
    if (blocks > 1) {
        cluster_wait();
        if (warp < GROUP) {
            float4 y = joined(mine + warp * KEPT, warps * TOGETHER, GROUP * KEPT, lane, is, m, sum);
            float* to = inbox + (rank * GROUP + warp) * KEPT;
            if (is) give(to + 4 * lane, 0, y);
            if (threadIdx.x % 32 == 31) give(to + 128, 0, make_float4(m, sum, 0.0f, 0.0f));
        }
        cluster_arrive();
        cluster_wait();
    }
    if (rank > 0 || warp >= GROUP) return;
    const float* from = blocks > 1 ? inbox : mine;
    int count = blocks > 1 ? blocks : warps * TOGETHER;
    float4 y = joined(from + warp * KEPT, count, GROUP * KEPT, lane, is, m, sum);
    if (!is) return;
    float factor = 1.0f / sum;
    y.x *= factor, y.y *= factor, y.z *= factor, y.w *= factor;
    store_as(a.type, a.out, ((size_t)b * a.heads + head * GROUP + warp) * a.d + 4 * lane, y);
}

#define KERNEL(NAME, GROUP, HEADS, LANES) \
    extern "C" __global__ void __launch_bounds__(256, 1) NAME(const Args a) { \
        decode<GROUP, HEADS, LANES>(a); \
    }

KERNEL(decode_1, 1, false, 32)
KERNEL(decode_2, 2, false, 32)
KERNEL(decode_4, 4, false, 32)
KERNEL(decode_heads_1, 1, true, 32)
KERNEL(decode_heads_2, 2, true, 32)
KERNEL(decode_heads_4, 4, true, 32)
KERNEL(decode_narrow_1, 1, false, 16)
KERNEL(decode_narrow_2, 2, false, 16)
KERNEL(decode_narrow_4, 4, false, 16)
KERNEL(decode_narrow_heads_1, 1, true, 16)
KERNEL(decode_narrow_heads_2, 2, true, 16)
KERNEL(decode_narrow_heads_4, 4, true, 16)
