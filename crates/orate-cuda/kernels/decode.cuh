// Attention of one query per batch row over a cache: arguments, rows of the cache, heads that are new.

struct Args {
    const float* q;
    char* k;
    char* v;
    const int* first;  // null: `at`
    float* out;
    // Of queries, keys and values, for `decode_heads`: rows [B, …], and norm [D] and table [B or 1, 2, 1,
    // D/2] or null.
    const float* x[3];
    const float* weight[3];
    const float* table[3];
    const int* shared;  // for `attention_shared.cu`: [B, 2]
    // For `attention_output.cu`: weights, residual and results of the matmul, and weights to prefetch.
    const uint4* w;
    const float* residual;
    float* sum;
    const char* next;
    int heads, d, keys, kv_batch, at;
    float scale;
    int stride[3], tables[3];
    float eps[3];
    int type;   // of `out`; see `store_as`
    int early;  // whether the previous kernel leaves the cache and `first` alone
    int rows;   // B
    int n, next_bytes;
};

#ifndef CACHE
#define CACHE 0
#endif

// Floats of a partial result of one head of q: values, maximum, sum.
#define KEPT 132

// Channels of a thread: twice four.
struct Eight {
    float4 of[2];
};

DEVICE float4 scaled(float4 v, float by) { return make_float4(v.x * by, v.y * by, v.z * by, v.w * by); }

// sum + by · v
DEVICE float4 added(float4 sum, float by, float4 v) {
    return make_float4(
        fmaf(by, v.x, sum.x), fmaf(by, v.y, sum.y), fmaf(by, v.z, sum.z), fmaf(by, v.w, sum.w));
}

DEVICE float product(Eight a, Eight b) {
    float sum = a.of[0].x * b.of[0].x;
    sum = fmaf(a.of[0].y, b.of[0].y, sum);
    sum = fmaf(a.of[0].z, b.of[0].z, sum);
    sum = fmaf(a.of[0].w, b.of[0].w, sum);
    sum = fmaf(a.of[1].x, b.of[1].x, sum);
    sum = fmaf(a.of[1].y, b.of[1].y, sum);
    sum = fmaf(a.of[1].z, b.of[1].z, sum);
    return fmaf(a.of[1].w, b.of[1].w, sum);
}

// Combines several partial results. Thread `lane` has four channels.
DEVICE float4 joined(
    const float* parts, int count, int stride, int lane, bool is, float& largest, float& total) {
    largest = -INFINITY;
    for (int i = 0; i < count; i++) largest = fmaxf(largest, parts[i * stride + 128]);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    total = 0.0f;
    for (int i = 0; i < count; i++) {
        const float* part = parts + i * stride;
        float m = part[128], e = m == -INFINITY ? 0.0f : power_of_two(m - largest);
        total += e * part[129];
        if (is) sum = added(sum, e, ((const float4*)part)[lane]);
    }
    return sum;
}

// The value of thread `lane` of the warp.
DEVICE float4 of_lane(float4 v, int lane) {
    return make_float4(__shfl_sync(0xffffffffu, v.x, lane), __shfl_sync(0xffffffffu, v.y, lane),
                       __shfl_sync(0xffffffffu, v.z, lane), __shfl_sync(0xffffffffu, v.w, lane));
}

// Four channels of head `head` of row `b` of queries, keys or values for each thread of a warp.
template <int PART>
DEVICE float4 new_head(const Args& a, int b, int head, float4 weight) {
    int lane = threadIdx.x % 32;
    const float* row = a.x[PART] + (size_t)b * a.stride[PART] + head * a.d;
    float4 v = lane < a.d / 4 ? ((const float4*)row)[lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (a.weight[PART]) v = normed_head(v, weight, a.d, a.eps[PART]);
    int half = a.d / 2;
    if (a.table[PART]) v = rotated_head(v, a.table[PART] + (size_t)(b % a.tables[PART]) * a.d, half, a.d);
    return v;
}

// The same for threads that have two of these fours.
DEVICE Eight spread(float4 v, const int (&four)[2]) {
    return Eight{of_lane(v, four[0]), of_lane(v, four[1])};
}

// Reads from the second-level cache: what is read before `wait_for_previous` may be old in the first one.
DEVICE u32 near_word(const void* at) {
    u32 x;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(x) : "l"(at));
    return x;
}

DEVICE u16 near_half(const void* at) {
    u16 x;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(x) : "l"(at));
    return x;
}

DEVICE uint2 near_two(const void* at) {
    uint2 x;
    asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(at));
    return x;
}

DEVICE uint4 near_words(const void* at) {
    uint4 x;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(at));
    return x;
}

DEVICE float4 near_four(const void* at) {
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(at));
    return x;
}

// Elements at .. at + 3 of a row of the cache, as they are stored, and widened.
#if CACHE == 3
struct Stored {
    u32 bytes;
    u16 scale;
};
DEVICE Stored nothing() { return Stored{0, 0}; }
DEVICE Stored stored(const char* row, int width, int at) {
    return Stored{near_word(row + at), near_half(row + width + at / 32 * 2)};
}
DEVICE float4 widened(Stored x) { return widened_bytes(x.bytes, x.scale); }
#elif CACHE
typedef uint2 Stored;
DEVICE Stored nothing() { return make_uint2(0, 0); }
DEVICE Stored stored(const char* row, int width, int at) { return near_two(row + 2 * at); }
DEVICE float4 widened(Stored x) { return widened_pairs<CACHE>(x); }
#else
typedef float4 Stored;
DEVICE Stored nothing() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
DEVICE Stored stored(const char* row, int width, int at) { return near_four(row + 4 * at); }
DEVICE float4 widened(Stored x) { return x; }
#endif

DEVICE Eight widened(const Stored (&x)[2]) { return Eight{widened(x[0]), widened(x[1])}; }

// Writes four channels of each thread of a warp to a row of the cache, if `is`, and returns what was stored.
DEVICE float4 kept(char* row, int width, int at, float4 v, bool is) {
#if CACHE == 3
    float inverse;
    u16 scale = kept_scale(v, inverse);
    u32 bytes = kept_bytes_of(v, inverse);
    if (is) *(u32*)(row + at) = bytes;
    if (is && at % 32 == 0) *(u16*)(row + width + at / 32 * 2) = scale;
    return widened_bytes(bytes, scale);
#elif CACHE
    uint2 two = make_uint2(kept_pair(CACHE, v.x, v.y), kept_pair(CACHE, v.z, v.w));
    if (is) *(uint2*)(row + 2 * at) = two;
    return widened_pairs<CACHE>(two);
#else
    if (is) *(float4*)(row + 4 * at) = v;
    return v;
#endif
}
