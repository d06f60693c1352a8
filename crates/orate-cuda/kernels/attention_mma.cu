// Attention of many queries on tensor cores: the function of `attention.cu`, without relative terms.
//
// PRECISION is that of `matmul.cu`, up to 3. Both operands of these matmuls are values: they are rounded to
// 16 bits on their way to shared memory, or to TF32 (or split in two) in registers. With PRECISION 0, keys
// and values may have 16 bits, which TF32 holds exactly: CACHE is their type (see `cache_rows.cuh`).
//
// Each warp has 16 queries of one head, and every SIDESth tile of KEYS keys: with few queries, warps share
// the keys. A running maximum and sum replace the matrix of scores (online softmax). The next tiles of keys
// and values are on their way while a tile is multiplied.
//
// The order of a sum is free, and so is the order of columns. Both are chosen such that a thread reads 16
// bytes at a time, and that scores are in the registers where the weights of values have to be. Thread 4g + t
// of a warp has queries g and g + 8, of 32 channels 8t … 8t + 7, and of 16 keys 2t, 2t + 1, and 8 further.

#ifndef CACHE
#define CACHE 0
#endif

#if __CUDA_ARCH__ >= 800

// Warps per block, and blocks per multiprocessor: as many as registers suffice for.
#define WARPS (PRECISION < 2 ? 4 : 8)
#define TOGETHER (PRECISION < 2 ? 3 : 2)
#define THREADS (32 * WARPS)
// Keys per warp and iteration, in units of 8.
#define TILES 4
#define KEYS (8 * TILES)
#define STAGES 2

#if PRECISION < 2
// Two rows of 16 terms, and a column of 16 terms.
struct Left {
    float x[8];

    __device__ __forceinline__ Left() {}
    __device__ __forceinline__ Left(float4 a, float4 b) : x{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w} {}

    // Keeps the compiler from splitting queries once for all iterations: it has no registers for the parts.
    __device__ __forceinline__ void keep() {
#pragma unroll
        for (int i = 0; i < 8; i++) asm volatile("" : "+f"(x[i]));
    }
};
typedef float4 Right;

// A number as the sum of two TF32 numbers.
DEVICE void split(float x, u32& high, u32& low) {
    high = tf32(x);
    low = __float_as_uint(x - __uint_as_float(high));
}

// 16 queries by 8 columns four times, by 16 terms.
DEVICE void multiply(float (*acc)[4], const Left& left, const Right (&right)[4]) {
#pragma unroll
    for (int step = 0; step < 2; step++) {
        const float* x = left.x + 2 * step;
#if PRECISION == 1
        const u32 a[4] = {tf32(x[0]), tf32(x[4]), tf32(x[1]), tf32(x[5])};
#pragma unroll
        for (int j = 0; j < 4; j++)
            mma_tf32(acc[j], a, tf32(step ? right[j].z : right[j].x), tf32(step ? right[j].w : right[j].y));
#else
        u32 high[4], low[4], b_high[4][2], b_low[4][2];
#pragma unroll
        for (int i = 0; i < 4; i++) split(x[i / 2 + i % 2 * 4], high[i], low[i]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            split(step ? right[j].z : right[j].x, b_high[j][0], b_low[j][0]);
            split(step ? right[j].w : right[j].y, b_high[j][1], b_low[j][1]);
        }
        // The smallest of four products is omitted, and those of keys and values of 16 bits, whose low parts
        // are zero. Sums that depend on each other are far apart.
#pragma unroll
        for (int j = 0; j < 4; j++) mma_tf32(acc[j], low, b_high[j][0], b_high[j][1]);
#if !CACHE
#pragma unroll
        for (int j = 0; j < 4; j++) mma_tf32(acc[j], high, b_low[j][0], b_low[j][1]);
#endif
#pragma unroll
        for (int j = 0; j < 4; j++) mma_tf32(acc[j], high, b_high[j][0], b_high[j][1]);
#endif
    }
}

// The copy of keys and values to a stage of shared memory. Strides of rows, in units of 16 bytes, are those
// for which 8 threads that read together have no bank conflicts.
#if CACHE
template <int D, int ROWS>
struct Copy {
    static constexpr int STRIDE = D / 8 + 4, VALUE_STRIDE = D / 8 + 1, VALUES = ROWS * STRIDE;
    static constexpr int SIZE = VALUES + ROWS * VALUE_STRIDE;

    // Starts to copy `rows` rows; zeros follow.
    __device__ __forceinline__ void start(const Args& a, float4* stage, int from, int width, int rows) {
        int e = threadIdx.x % (D / 8), row = threadIdx.x / (D / 8);
        const u16 *keys = (const u16*)a.k, *values = (const u16*)a.v;
#pragma unroll
        for (int i = 0; i < ROWS; i += THREADS / (D / 8), row += THREADS / (D / 8)) {
            bool is = row < rows && 8 * e < a.d;
            int at = is ? from + row * width + 8 * e : 0;
            start_copy((float*)(stage + row * STRIDE + e), (const float*)(keys + at), is);
            start_copy((float*)(stage + VALUES + row * VALUE_STRIDE + e), (const float*)(values + at), is);
        }
    }

    __device__ __forceinline__ void finish(float4*) { finish_copies(); }

    // Two times 16 channels of a key.
    static __device__ __forceinline__ void key(const float4* stage, int row, int part, Right& a, Right& b) {
        uint4 x = ((const uint4*)stage)[row * STRIDE + 4 * part + threadIdx.x % 4];
        a = widened_pairs<CACHE>(make_uint2(x.x, x.y)), b = widened_pairs<CACHE>(make_uint2(x.z, x.w));
    }

    // Four channels of 16 values.
    static __device__ __forceinline__ void values(const float4* stage, int row, int part, Right (&y)[4]) {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const uint2* from = (const uint2*)(stage + VALUES + (row + 2 * t) * VALUE_STRIDE + 4 * part) + g;
        constexpr int NEXT = 2 * VALUE_STRIDE;
        float4 a = widened_pairs<CACHE>(from[0]), b = widened_pairs<CACHE>(from[NEXT]);
        float4 c = widened_pairs<CACHE>(from[8 * NEXT]), d = widened_pairs<CACHE>(from[9 * NEXT]);
        y[0] = make_float4(a.x, b.x, c.x, d.x), y[1] = make_float4(a.y, b.y, c.y, d.y);
        y[2] = make_float4(a.z, b.z, c.z, d.z), y[3] = make_float4(a.w, b.w, c.w, d.w);
    }
};
#else
template <int D, int ROWS>
struct Copy {
    static constexpr int STRIDE = D / 4 + 1, VALUES = ROWS * STRIDE, SIZE = 2 * VALUES;

    // Starts to copy `rows` rows; zeros follow.
    __device__ __forceinline__ void start(const Args& a, float4* stage, int from, int width, int rows) {
        int e = threadIdx.x % (D / 4), row = threadIdx.x / (D / 4);
#pragma unroll
        for (int i = 0; i < ROWS; i += THREADS / (D / 4), row += THREADS / (D / 4)) {
            bool is = row < rows && 4 * e < a.d;
            int at = is ? from + row * width + 4 * e : 0;
            start_copy((float*)(stage + row * STRIDE + e), a.k + at, is);
            start_copy((float*)(stage + VALUES + row * STRIDE + e), a.v + at, is);
        }
    }

    __device__ __forceinline__ void finish(float4*) { finish_copies(); }

    // Two times 16 channels of a key.
    static __device__ __forceinline__ void key(const float4* stage, int row, int part, Right& a, Right& b) {
        const float4* from = stage + row * STRIDE + 8 * part + threadIdx.x % 4 * 2;
        a = from[0], b = from[1];
    }

    // Four channels of 16 values.
    static __device__ __forceinline__ void values(const float4* stage, int row, int part, Right (&y)[4]) {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const float4* from = stage + VALUES + (row + 2 * t) * STRIDE + 8 * part + g;
        float4 a = from[0], b = from[STRIDE], c = from[8 * STRIDE], d = from[9 * STRIDE];
        y[0] = make_float4(a.x, b.x, c.x, d.x), y[1] = make_float4(a.y, b.y, c.y, d.y);
        y[2] = make_float4(a.z, b.z, c.z, d.z), y[3] = make_float4(a.w, b.w, c.w, d.w);
    }
};
#endif

#else
// The same as halves.
struct Left {
    uint4 x;

    __device__ __forceinline__ Left() {}
    __device__ __forceinline__ Left(float4 a, float4 b)
        : x(make_uint4(halves(a.x, a.y), halves(b.x, b.y), halves(a.z, a.w), halves(b.z, b.w))) {}

    __device__ __forceinline__ void keep() {}
};
typedef uint2 Right;

DEVICE void multiply(float (*acc)[4], const Left& left, const Right (&right)[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) mma_half(acc[j], left.x, right[j].x, right[j].y);
}

// The same through registers, where rows are rounded. Each word of values is a channel of two rows.
template <int D, int ROWS>
struct Copy {
    static constexpr int STRIDE = D / 8 + 4, VALUE_STRIDE = D / 4 + 2, VALUES = ROWS * STRIDE;
    static constexpr int SIZE = VALUES + ROWS / 2 * VALUE_STRIDE, STEP = THREADS / (D / 4);
    static constexpr int COUNT = ROWS / 2 / STEP;
    float4 k[COUNT][2], v[COUNT][2];

    __device__ __forceinline__ void start(const Args& a, float4*, int from, int width, int rows) {
        int e = threadIdx.x % (D / 4), row = threadIdx.x / (D / 4) * 2;
        const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                bool is = row + 2 * STEP * i + r < rows && 4 * e < a.d;
                int at = from + (row + 2 * STEP * i + r) * width + 4 * e;
                k[i][r] = is ? *(const float4*)(a.k + at) : zero;
                v[i][r] = is ? *(const float4*)(a.v + at) : zero;
            }
    }

    __device__ __forceinline__ void finish(float4* stage) {
        int e = threadIdx.x % (D / 4), pair = threadIdx.x / (D / 4);
#pragma unroll
        for (int i = 0; i < COUNT; i++, pair += STEP) {
#pragma unroll
            for (int r = 0; r < 2; r++)
                ((uint2*)(stage + (2 * pair + r) * STRIDE))[e] =
                    make_uint2(halves(k[i][r].x, k[i][r].y), halves(k[i][r].z, k[i][r].w));
            float4 a = v[i][0], b = v[i][1];
            ((uint4*)stage)[VALUES + pair * VALUE_STRIDE + e] =
                make_uint4(halves(a.x, b.x), halves(a.y, b.y), halves(a.z, b.z), halves(a.w, b.w));
        }
    }

    static __device__ __forceinline__ void key(const float4* stage, int row, int part, Right& a, Right& b) {
        uint4 x = ((const uint4*)stage)[row * STRIDE + 4 * part + threadIdx.x % 4];
        a = make_uint2(x.x, x.y), b = make_uint2(x.z, x.w);
    }

    static __device__ __forceinline__ void values(const float4* stage, int row, int part, Right (&y)[4]) {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const uint4* from = (const uint4*)stage + VALUES + (row / 2 + t) * VALUE_STRIDE + 8 * part + g;
        uint4 a = from[0], b = from[4 * VALUE_STRIDE];
        y[0] = make_uint2(a.x, b.x), y[1] = make_uint2(a.y, b.y);
        y[2] = make_uint2(a.z, b.z), y[3] = make_uint2(a.w, b.w);
    }
};
#endif

// Four channels of a query from `e` on, rotated.
DEVICE float4 query(const Args& a, const float* q, const float* table, int e) {
    if (e >= a.d) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 x = *(const float4*)(q + e);
    if (!table) return x;
    int half = a.d / 2, turn = e < half ? e : e - half;
    float4 y = *(const float4*)(q + (e < half ? e + half : turn)), c = *(const float4*)(table + turn);
    float4 s = *(const float4*)(table + a.tq * half + turn);
    float sign = e < half ? -1.0f : 1.0f;
    return make_float4(x.x * c.x + sign * y.x * s.x, x.y * c.y + sign * y.y * s.y,
                       x.z * c.z + sign * y.z * s.z, x.w * c.w + sign * y.w * s.w);
}

template <int D, int SIDES>
DEVICE void attention(const Args& a) {
    constexpr int ROWS = KEYS * SIDES, QUERIES = 16 * WARPS / SIDES;
    typedef Copy<D, ROWS> Copy;
    extern __shared__ float4 shared4[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int side = warp % SIDES, head = blockIdx.y, b = blockIdx.z, kv = a.kv_batch == 1 ? 0 : b;
    int width = a.heads * a.d, kv_width = width / a.group, block = blockIdx.x * QUERIES;
    wait_for_previous();

    int len = a.lens ? min(max(a.lens[kv], 0), a.tk) : a.tk;
    int shift = a.shift, start_of_stream = 0;
    if (a.first && a.stream) start_of_stream = max(shift - a.first[b], 0);
    else if (a.first) shift = min(max(a.first[b], 0), a.tk - a.tq);
    // Keys that any query of this block sees.
    int end = a.causal ? min(len, min(block + QUERIES, a.tq) + shift) : len;
    int begin = max(a.seen ? block + shift + 1 - a.seen : 0, start_of_stream);

    // Operands have less than 2³⁰ elements.
    int first_key = kv * a.tk * kv_width + head / a.group * a.d;
    Copy copy;
    copy.start(a, shared4, first_key + begin * kv_width, kv_width, end - begin);

    int i = block + warp / SIDES * 16 + g;
    Left q[D / 16];
    {
        const float *at[2], *table[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = min(i + 8 * r, a.tq - 1);
            at[r] = a.q + (b * a.tq + row) * width + head * a.d;
            table[r] = a.table ? a.table + (b % a.tables * 2 * a.tq + row) * (a.d / 2) : 0;
        }
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
            int e = s / 2 * 32 + 8 * t + s % 2 * 4;
            q[s] = Left(query(a, at[0], table[0], e), query(a, at[1], table[1], e));
        }
    }

    const float LOG2E = 1.4426950408889634f, scale = a.scale * LOG2E;
    // Of queries g and g + 8; the sum is that of this thread's keys.
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
    // acc[4 m + n] has channels 32 m + 8 t + n and 4 further, of either query.
    float acc[D / 8][4] = {};
    for (int start = begin, stage = 0; start < end; start += ROWS, stage = (stage + 1) % STAGES) {
        const float4* now = shared4 + stage * Copy::SIZE;
        copy.finish(shared4 + stage * Copy::SIZE);
        __syncthreads();
        if (start + ROWS < end)
            copy.start(a, shared4 + (stage + 1) % STAGES * Copy::SIZE, first_key + (start + ROWS) * kv_width,
                       kv_width, end - start - ROWS);
        int key = start + side * KEYS;
        if (key >= end) continue;

        float score[TILES][4] = {};
#pragma unroll
        for (int part = 0; part < D / 32; part++) {
            q[2 * part].keep(), q[2 * part + 1].keep();
            Right k[2][TILES];
#pragma unroll
            for (int j = 0; j < TILES; j++)
                Copy::key(now, side * KEYS + 8 * j + g, part, k[0][j], k[1][j]);
            multiply(score, q[2 * part], k[0]);
            multiply(score, q[2 * part + 1], k[1]);
        }

#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) score[j][c] *= scale;
        if (a.bias) {
            int at = key + 2 * t;
            int bias = ((b * a.heads + head) * a.tq + i) * a.tk + at;
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    if (at + 8 * j + c % 2 < end && i + c / 2 * 8 < a.tq)
                        score[j][c] += LOG2E * a.bias[bias + c / 2 * 8 * a.tk + 8 * j + c % 2];
        }
        if (a.causal || key + KEYS > end) {
            int position = i + shift, at = key + 2 * t;
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    int back = position + c / 2 * 8 - (at + 8 * j + c % 2);
                    bool hidden = at + 8 * j + c % 2 >= end || (a.causal && back < 0);
                    if (hidden || (a.seen && back >= a.seen)) score[j][c] = -INFINITY;
                }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = largest[r];
#pragma unroll
            for (int j = 0; j < TILES; j++) most = fmaxf(most, fmaxf(score[j][2 * r], score[j][2 * r + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            // If no key was seen yet, any finite number avoids ∞ − ∞.
            float base = most == -INFINITY ? 0.0f : most, old = power_of_two(largest[r] - base), sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    score[j][2 * r + c] = power_of_two(score[j][2 * r + c] - base);
                    sum += score[j][2 * r + c];
                }
            total[r] = total[r] * old + sum;
            largest[r] = most;
#pragma unroll
            for (int n = 0; n < D / 8; n++) acc[n][2 * r] *= old, acc[n][2 * r + 1] *= old;
        }

#pragma unroll
        for (int j = 0; j < TILES; j += 2) {
            const float(&x)[4] = score[j], (&y)[4] = score[j + 1];
            Left weights(make_float4(x[0], x[1], y[0], y[1]), make_float4(x[2], x[3], y[2], y[3]));
#pragma unroll
            for (int part = 0; part < D / 32; part++) {
                Right v[4];
                Copy::values(now, side * KEYS + 8 * j, part, v);
                multiply(acc + 4 * part, weights, v);
            }
        }
    }
    finish_copies();
    let_next_start();

    if (SIDES == 2) {
        // The second side gives its sums to the first.
        float* partial = (float*)shared4 + warp / 2 * 32 + lane;
        constexpr int STRIDE = THREADS / 2;
        __syncthreads();
        if (side) {
#pragma unroll
            for (int r = 0; r < 2; r++)
                partial[r * STRIDE] = largest[r], partial[(2 + r) * STRIDE] = total[r];
#pragma unroll
            for (int n = 0; n < D / 2; n++) partial[(4 + n) * STRIDE] = acc[n / 4][n % 4];
        }
        __syncthreads();
        if (side) return;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float now = fmaxf(largest[r], partial[r * STRIDE]), base = now == -INFINITY ? 0.0f : now;
            float own = power_of_two(largest[r] - base), other = power_of_two(partial[r * STRIDE] - base);
            total[r] = own * total[r] + other * partial[(2 + r) * STRIDE];
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int c = 2 * r; c < 2 * r + 2; c++)
                    acc[n][c] = own * acc[n][c] + other * partial[(4 + 4 * n + c) * STRIDE];
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        if (i + 8 * r >= a.tq) continue;
        float factor = total[r] > 0.0f ? 1.0f / total[r] : 0.0f;
        float* out = a.out + (b * a.tq + i + 8 * r) * width + head * a.d;
#pragma unroll
        for (int m = 0; m < D / 32; m++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float(*x)[4] = acc + 4 * m;
                int e = 32 * m + 8 * t + 4 * c, n = 2 * r + c;
                if (e < a.d)
                    *(float4*)(out + e) =
                        make_float4(factor * x[0][n], factor * x[1][n], factor * x[2][n], factor * x[3][n]);
            }
    }
}

#define KERNEL(NAME, D, SIDES) \
    extern "C" __global__ void __launch_bounds__(THREADS, D > 64 ? 1 : TOGETHER) NAME(const Args a) { \
        attention<D, SIDES>(a); \
    }

KERNEL(attention_mma_64_1, 64, 1)
KERNEL(attention_mma_64_2, 64, 2)
KERNEL(attention_mma_128_1, 128, 1)

#endif
