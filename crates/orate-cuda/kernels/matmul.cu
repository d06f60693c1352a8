// Matmul, also as a convolution over time.
//
//   out[r, n] = residual[r, n] + f( Σ_k x[r, k] · w[k, n] + bias[n] ) + row[n]
//
// x [rows, K], or for a convolution [B, T, C] with K = taps · C: tap j of row t reads row t + j · dilation −
// left of the same batch row, clamped to 0 … T − 1; with a history [B, left, C], rows before x come from it;
// or rows beyond the ends are zeros.
// w is packed at load; bias, residual and row are optional. Accumulation is f32; PRECISION selects the
// operands:
//
//   0  f32    operands are split into two TF32 numbers of 11 bits; the smallest of four products is omitted
//   1  tf32   operands rounded to TF32
//   2  f16    weights stored in f16, x rounded to it
//   3  bf16   the same with bfloat16
//   4  q8_0   weights stored as bytes with an f16 scale per 32 of K, widened to f16 in registers; x rounded
//             to f16
//   5  q4_0   the same with half a byte per weight
//   6  q4_k   the same, and a minimum in f16 per 32 of K
//   7  q5_k   as q4_k with a plane of fifth bits
//   8  q6_k   as q4_0 with a plane of two upper bits, and a scale per 16 of K
//
// Tensor cores compute the transposed matmul, 16 channels by 8 rows of x at a time, so that few rows waste
// little. A warp computes 32 channels by ROWS rows from its own part of K. At the end the partial sums of a
// block's 8 warps, and of the blocks of a cluster, are added in a fixed order. No two warps share data, so
// operands go straight from memory to registers: w packed in register order, x as 16 bytes of each row. The
// order of k within a matmul is free, and chosen such that those 16 bytes are two steps of one thread.

#define WARPS 8
#define CHANNELS 32
// Stride between rows of partial sums in floats; avoids bank conflicts within a warp.
#define STRIDE 36

struct Args {
    const float* x;
    const uint4* w;
    const float* bias;
    const float* slope;
    const float* residual;
    const float* row;      // [row_count, N]
    const u64* row_index;  // selects the row
    float* out;
    const char* next;      // weights of a later matmul, to prefetch
    // Rows before x. For few rows without taps: `columns` of `RowNorm`, [2, N], if x is to have a layer norm
    // after the product. For warpgroups without taps: sums of squares, as `shift` has them, if x is such
    // rows; results are those of x after an RMS norm.
    const float* history;
    // After a convolution, frequency and gain [N] of SNAKE. Otherwise [K], weight and bias of the norm of x.
    // Without a bias it is an RMS norm, for at most 16 rows, with one a layer norm, for at most 8.
    //
    // For warpgroups without taps, `shift` gets rows for the next matmul, which norms them: results times
    // `norm` [N], in 16 bits, [rows, N], and then sums of the squares of results, each of 64 channels,
    // [rows, N / 64].
    const float* norm;
    const float* shift;
    int rows, k, n, k_blocks;
    int time, channels, dilation;
    // Rows of a history; or for a matmul, the channels of its second part.
    int left;
    int activation, row_count, next_bytes;
    // Channels of the first part; only they get the activation. The third part follows the second. Parts are
    // matrices one after the other.
    int first;
    // Whether the first part, after its activation, is multiplied by the second, and only the product is
    // stored. For at most 16 rows.
    int gated;
    float eps;
    int zeros;   // whether rows beyond the ends are zeros
    // For warpgroups: whether x is stored in 16 bits, and twice the type of the result, as in `store_as`.
    int halves;
};

// For 32 channels by 16 of K: loads of weights per thread, and 16-byte operands that it multiplies.
#if PRECISION < 2
#define WEIGHT_LOADS 4
#define FACTORS 4
#elif PRECISION < 4
#define WEIGHT_LOADS 2
#define FACTORS 2
#else
#define WEIGHT_LOADS 1
#define FACTORS 2
#endif

// Weights that a thread loads at a time.
#if PRECISION < 4
typedef uint4 Stored;
#endif

// Layout of x.
enum Source {
    DENSE,  // rows of K, a multiple of 4
    PAIRS,  // the same with weights in blocks, K a multiple of 32: blocks of 16 of K in pairs
    CONV,   // C a multiple of 4
    PAST,   // CONV after a history, or with zeros beyond the ends
    ODD     // anything, element by element
};

#if __CUDA_ARCH__ < 800
// For GPUs without TF32 tensor cores: the same tile by exchanging operands between the threads of a warp.
DEVICE void mma_f32(float (&c)[4], const u32 (&a)[4], float b0, float b1) {
    int lane = threadIdx.x % 32, group = lane / 4 * 4, columns = lane % 4 * 8;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = __shfl_sync(0xffffffffu, __uint_as_float(a[i]), group + k);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float y = __shfl_sync(0xffffffffu, b0, columns + 4 * j + k);
            float z = __shfl_sync(0xffffffffu, b1, columns + 4 * j + k);
            c[j] += x[0] * y + x[2] * z;
            c[2 + j] += x[1] * y + x[3] * z;
        }
    }
}
#endif

#if PRECISION >= 4
// Of 32 channels, 16 each.
#if PRECISION == 4
DEVICE Numbers numbers_of(const Stored& w, int half) {
    return half ? make_uint2(w.z, w.w) : make_uint2(w.x, w.y);
}
DEVICE Stored joined(Numbers a, Numbers b) { return make_uint4(a.x, a.y, b.x, b.y); }
#else
DEVICE Numbers numbers_of(const Stored& w, int half) { return half ? w.y : w.x; }
DEVICE Stored joined(Numbers a, Numbers b) { return make_uint2(a, b); }
#endif

#if __CUDA_ARCH__ >= 800
// Blocks of 32 channels by 16 of K, with the scales of this thread's four channels.
DEVICE void widen(const Stored& stored, u32 high, const Scales& scales, uint4 (&w)[2]) {
    u32 first = 0, second = 0;
#if HAS_MINIMA
    first = scales.z, second = scales.w;
#endif
    w[0] = widened(numbers_of(stored, 0), high, scales.x, first);
    w[1] = widened(numbers_of(stored, 1), high >> HIGH_BITS, scales.y, second);
}
#endif
#endif

// 16 channels twice, by 8 rows TILES times, by 16 of K.
template <int TILES>
DEVICE void multiply(float (&acc)[2][TILES][4], const uint4 (&w)[FACTORS], const float4 (&x)[TILES]) {
#if PRECISION >= 2 && __CUDA_ARCH__ >= 800
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        u32 b0 = halves(x[j].x, x[j].y), b1 = halves(x[j].z, x[j].w);
        mma_half(acc[0][j], w[0], b0, b1);
        mma_half(acc[1][j], w[1], b0, b1);
    }
#elif PRECISION < 2
#pragma unroll
    for (int step = 0; step < 2; step++) {
        u32 a[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint4 v = w[2 * m + step];
            a[m][0] = v.x, a[m][1] = v.y, a[m][2] = v.z, a[m][3] = v.w;
        }
#if __CUDA_ARCH__ < 800
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            float b0 = step ? x[j].z : x[j].x, b1 = step ? x[j].w : x[j].y;
            mma_f32(acc[0][j], a[0], b0, b1);
            mma_f32(acc[1][j], a[1], b0, b1);
        }
#elif PRECISION == 1
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            u32 b0 = tf32(step ? x[j].z : x[j].x), b1 = tf32(step ? x[j].w : x[j].y);
            mma_tf32(acc[0][j], a[0], b0, b1);
            mma_tf32(acc[1][j], a[1], b0, b1);
        }
#else
        u32 high[2][4], low[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v = __uint_as_float(a[m][i]);
                high[m][i] = tf32(v);
                low[m][i] = __float_as_uint(v - __uint_as_float(high[m][i]));
            }
        // A few tiles of rows at a time, so that dependent sums are far apart and registers suffice.
        constexpr int NEAR = 3;
#pragma unroll
        for (int first = 0; first < TILES; first += NEAR) {
            u32 b_high[NEAR][2], b_low[NEAR][2];
#pragma unroll
            for (int i = 0; i < NEAR; i++) {
                if (first + i >= TILES) continue;
                float4 v = x[first + i];
                float b0 = step ? v.z : v.x, b1 = step ? v.w : v.y;
                b_high[i][0] = tf32(b0), b_high[i][1] = tf32(b1);
                b_low[i][0] = __float_as_uint(b0 - __uint_as_float(b_high[i][0]));
                b_low[i][1] = __float_as_uint(b1 - __uint_as_float(b_high[i][1]));
            }
#pragma unroll
            for (int i = 0; i < NEAR; i++)
#pragma unroll
                for (int m = 0; m < 2; m++)
                    if (first + i < TILES) mma_tf32(acc[m][first + i], low[m], b_high[i][0], b_high[i][1]);
#pragma unroll
            for (int i = 0; i < NEAR; i++)
#pragma unroll
                for (int m = 0; m < 2; m++)
                    if (first + i < TILES) mma_tf32(acc[m][first + i], high[m], b_low[i][0], b_low[i][1]);
#pragma unroll
            for (int i = 0; i < NEAR; i++)
#pragma unroll
                for (int m = 0; m < 2; m++)
                    if (first + i < TILES) mma_tf32(acc[m][first + i], high[m], b_high[i][0], b_high[i][1]);
        }
#endif
    }
#endif
}

// Addresses of a thread's rows of x: TILES rows, 8 apart.
template <int TILES, int SOURCE>
struct Rows {
    int base, more;  // first element, and number of rows that follow
    int first[SOURCE == DENSE ? 1 : TILES];  // first row of the batch
    int t[SOURCE == DENSE ? 1 : TILES];

    __device__ __forceinline__ Rows(const Args& a, int row) {
        int last = a.rows - 1;
        base = min(row, last) * a.k, more = max(last - row, 0);
        if (SOURCE == DENSE) return;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            int r = min(row + 8 * j, last);
            t[j] = (u32)r % (u32)a.time;
            first[j] = r - t[j];
        }
    }

    // The row that row `j` reads through a tap; null for zeros.
    __device__ __forceinline__ const float* tapped(const Args& a, int j, int tap) const {
        int at = t[j] + tap * a.dilation - a.left;
        if (SOURCE == PAST || SOURCE == ODD) {
            if (a.zeros && (u32)at >= (u32)a.time) return nullptr;
            if (a.history && at < 0)
                return a.history + (first[j] / a.time * a.left + at + a.left) * a.channels;
        }
        return a.x + (first[j] + min(max(at, 0), a.time - 1)) * a.channels;
    }

    __device__ __forceinline__ void load(const Args& a, int k, float4 (&x)[TILES]) const {
        const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (SOURCE == DENSE) {
#pragma unroll
            for (int j = 0; j < TILES; j++)
                x[j] = k < a.k ? *(const float4*)(a.x + (base + min(8 * j, more) * a.k + k)) : zero;
        } else if (SOURCE == CONV || SOURCE == PAST) {
            int tap = (u32)k / (u32)a.channels, c = k - tap * a.channels;
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                const float* from = tapped(a, j, tap);
                x[j] = k < a.k && (SOURCE == CONV || from) ? *(const float4*)(from + c) : zero;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int tap = (k + i) / a.channels, c = k + i - tap * a.channels;
#pragma unroll
                for (int j = 0; j < TILES; j++) {
                    const float* from = tapped(a, j, tap);
                    float v = k + i < a.k && from ? from[c] : 0.0f;
                    if (i == 0) x[j].x = v;
                    if (i == 1) x[j].y = v;
                    if (i == 2) x[j].z = v;
                    if (i == 3) x[j].w = v;
                }
            }
        }
    }
};

DEVICE void add(float4& sum, float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

// Sum of one cell over the partial sums of all warps.
template <int ROWS>
DEVICE float4 warp_sums(const float* from) {
    float4 v[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; i++) v[i] = *(const float4*)(from + i * ROWS * STRIDE);
#pragma unroll
    for (int i = 1; i < WARPS; i++) add(v[0], v[i]);
    return v[0];
}

// Four channels of a row, or those that exist.
DEVICE float4 four(const float* x, int n, int end) {
    if (!x) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (end % 4 == 0) return *(const float4*)(x + n);
    return make_float4(
        x[n], n + 1 < end ? x[n + 1] : 0.0f, n + 2 < end ? x[n + 2] : 0.0f, n + 3 < end ? x[n + 3] : 0.0f);
}

// Stores those of four channels that exist: all, if the row has a multiple of four.
DEVICE void store_four(float* out, const float (&y)[4], int count) {
    if (count % 4 == 0) {
        *(float4*)out = make_float4(y[0], y[1], y[2], y[3]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < count) out[i] = y[i];
    }
}

// Values to add to four results.
struct Addends {
    float4 bias, residual;
    __device__ __forceinline__ void load(const Args& a, int r, int n) {
        bias = four(a.bias, n, a.n);
        residual = four(a.residual ? a.residual + (size_t)r * a.n : 0, n, a.n);
    }

    // For the first cell that this thread stores.
    template <int ROWS>
    __device__ __forceinline__ void load_first(const Args& a, u32 blocks, u32 rank) {
        u32 row = threadIdx.x / 8 * blocks + rank, r = blockIdx.y * ROWS + row;
        u32 n = blockIdx.x * CHANNELS + threadIdx.x % 8 * 4;
        if (row < ROWS && r < a.rows && n < a.n) load(a, r, n);
    }
};

// A part of the results: its first channel, and its width.
struct Part {
    int first, width;
};

template <bool PARTS>
DEVICE Part part_of(const Args& a, int n) {
    if (!PARTS) return {0, a.n};
    int second = a.first + a.left, first = n < a.first ? 0 : n < second ? a.first : second;
    return {first, (n < a.first ? a.first : n < second ? second : a.n) - first};
}

template <bool PARTS>
DEVICE void store(const Args& a, float4 sum, const Addends& add, int r, int n, float slope) {
    float y[4] = {sum.x + add.bias.x, sum.y + add.bias.y, sum.z + add.bias.z, sum.w + add.bias.w};
    if (!PARTS && a.activation == SNAKE) {
        float4 f = four(a.norm, n, a.n), g = four(a.shift, n, a.n);
        y[0] = snake(y[0], f.x, g.x), y[1] = snake(y[1], f.y, g.y);
        y[2] = snake(y[2], f.z, g.z), y[3] = snake(y[3], f.w, g.w);
    }
    if (n < a.first) activate(a.activation, y, slope);
    y[0] += add.residual.x, y[1] += add.residual.y, y[2] += add.residual.z, y[3] += add.residual.w;
    if (a.row) {
        float4 row = four(a.row + (size_t)min((u64)a.row_count - 1, *a.row_index) * a.n, n, a.n);
        y[0] += row.x, y[1] += row.y, y[2] += row.z, y[3] += row.w;
    }
    Part part = part_of<PARTS>(a, n);
    store_four(a.out + (size_t)part.first * a.rows + (size_t)r * part.width + (n - part.first), y, a.n - n);
}

template <int TILES, int SOURCE>
struct Tuning {
    // Steps in flight. With three, norms do not fit the registers in f32.
    static constexpr bool IS_TIGHT = PRECISION == 0 && __CUDA_ARCH__ >= 800;
    static constexpr bool IS_DEEP = (TILES == 1 && !IS_TIGHT) || (TILES <= 3 && PRECISION >= 2);
    // Blocks of 16 of K in a step. Those of a pair share scales, which are loaded once.
    static constexpr int STEP = SOURCE == PAIRS ? 2 : 1;
    static constexpr int DEPTH = IS_DEEP && STEP == 1 ? 3 : 2;
    // Whether registers are left to load the values to add to the first results while the matmul runs.
    static constexpr bool EARLY =
        TILES == 1 || (SOURCE != PAIRS && PRECISION >= 2) || (TILES == 5 && SOURCE == DENSE);
};

template <int TILES, int SOURCE>
DEVICE void product(const Args& a) {
    extern __shared__ float4 shared4[];
    float* shared = (float*)shared4;
    constexpr int ROWS = 8 * TILES, DEPTH = Tuning<TILES, SOURCE>::DEPTH, STEP = Tuning<TILES, SOURCE>::STEP;
    constexpr bool IS_DENSE = SOURCE == DENSE || SOURCE == PAIRS;
    constexpr bool FEW = TILES <= 2 && IS_DENSE, NORMS = FEW, CENTERS = NORMS && TILES == 1;
    // Whether registers are left to load biases of a norm ahead.
    constexpr bool SHIFTS = CENTERS && PRECISION >= 2;
    // The root of an RMS norm is applied to sums: only then it is known. So are root and mean of late layer
    // norms.
    bool root_last = NORMS && a.norm && !(CENTERS && a.shift);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Both are powers of two.
    u32 blocks = cluster_blocks(), rank = cluster_rank();

    // This warp's part of K, in steps.
    u32 parts = blocks * WARPS, part = rank * WARPS + warp, shift = 31 - __clz(parts);
    u32 steps = (u32)a.k_blocks / STEP;
    int begin = steps * part >> shift, end = steps * (part + 1) >> shift;

    // Weights do not depend on the previous kernel.
#if PRECISION >= 4
    // The upper bits of a block of channels follow its numbers, and its scales follow these: 8 threads of a
    // warp by four channels.
    int numbers = a.k_blocks * 2 * sizeof(Stored);
    int planes = HAS_PLANES ? a.k_blocks / PER_PLANE * 8 : 0;
    int scale_words = (a.k_blocks + PER_SCALE - 1) / PER_SCALE * (8 * sizeof(Scales) / 16);
    int size = numbers + planes + scale_words, half = blockIdx.x % 2;
    // A gated block has 16 channels of the first part and the same of the second.
    bool gates = FEW && a.gated;
    size_t apart = gates ? (size_t)a.first / CHANNELS * size : 0;
    const char* channels = (const char*)(a.w + (size_t)(gates ? blockIdx.x / 2 : blockIdx.x) * size);
    constexpr int SCALES = (STEP + PER_SCALE - 1) / PER_SCALE, PLANES = (STEP + PER_PLANE - 1) / PER_PLANE;
    // Numbers, upper bits and scales of this thread in the first step, of both parts. Where blocks are in
    // pairs these move on, which takes fewer instructions than to compute addresses.
    int start = STEP == 2 ? begin : 0;
    const char *weights[2], *plane[2], *scales[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const char* part = channels + i * 16 * apart;
        weights[i] =
            part + (start * STEP * 32 + lane) * sizeof(Stored) + (gates ? half * sizeof(Numbers) : 0);
        plane[i] = part + 16 * numbers + (start * STEP / PER_PLANE * 32 + lane) * 4;
        scales[i] = part + 16 * (numbers + planes) +
                    (start * STEP / PER_SCALE * 8 + lane / 4) * sizeof(Scales) + (gates ? 4 * half : 0);
    }
    Scales scale[DEPTH][SCALES];
    u32 high[DEPTH][PLANES];
#else
    // A gated block has 16 channels of the first part and the same of the second: halves of two blocks of
    // weights.
    constexpr int HALF = WEIGHT_LOADS / 2;
    u32 channels = FEW && a.gated ? blockIdx.x / 2 : blockIdx.x;
    const Stored* weights = a.w + (size_t)channels * a.k_blocks * WEIGHT_LOADS * 32 + lane;
    bool gates = false;
    if (FEW && a.gated) weights += blockIdx.x % 2 * HALF * 32;
    int apart = FEW && a.gated ? (a.first / CHANNELS * a.k_blocks * WEIGHT_LOADS - HALF) * 32 : 0;
#endif
    Stored w[DEPTH][STEP * WEIGHT_LOADS];
    float4 x[DEPTH][STEP][TILES];
    // `gated` is a constant in the loop below, and `normed` there.
    auto load_weights = [&](int to, int step, bool gated) {
#if PRECISION >= 4
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            int at = (step * STEP + i) * 32 * sizeof(Stored);
            if (!gated) w[to][i] = *(const Stored*)(weights[0] + at);
            else w[to][i] = joined(*(const Numbers*)(weights[0] + at), *(const Numbers*)(weights[1] + at));
        }
#pragma unroll
        for (int i = 0; i < SCALES; i++) {
            int at = (step * STEP / PER_SCALE + i) * 8 * sizeof(Scales);
            if (!gated) {
                scale[to][i] = *(const Scales*)(scales[0] + at);
                continue;
            }
            scale[to][i].x = *(const u32*)(scales[0] + at), scale[to][i].y = *(const u32*)(scales[1] + at);
#if HAS_MINIMA
            at += 8;
            scale[to][i].z = *(const u32*)(scales[0] + at), scale[to][i].w = *(const u32*)(scales[1] + at);
#endif
        }
#pragma unroll
        for (int i = 0; HAS_PLANES && i < PLANES; i++) {
            int at = (step * STEP / PER_PLANE + i) * 128;
            high[to][i] = *(const u32*)(plane[0] + at);
            if (!gated) continue;
            // Upper bits of both blocks of 16 of K, of these channels.
            constexpr u32 MASK = HIGH_MASK * (PER_PLANE == 2 ? 0x101 : 1);
            u32 second = *(const u32*)(plane[1] + at) >> half * HIGH_BITS & MASK;
            high[to][i] = (high[to][i] >> half * HIGH_BITS & MASK) | second << HIGH_BITS;
        }
#else
#pragma unroll
        for (int i = 0; i < WEIGHT_LOADS; i++)
            w[to][i] = weights[(step * WEIGHT_LOADS + i) * 32 + (i < HALF ? 0 : apart)];
#endif
    };
    int k = begin * STEP * 16 + lane % 4 * 4;
    float4 factor[NORMS ? DEPTH : 1][STEP], added[SHIFTS ? DEPTH : 1][STEP];
    auto load_norms = [&](int to, int k) {
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            if (!NORMS) continue;
            factor[to][i] = *(const float4*)(a.norm + k + 16 * i);
            if (SHIFTS && a.shift) added[to][i] = *(const float4*)(a.shift + k + 16 * i);
        }
    };
#pragma unroll
    for (int s = 0; s < DEPTH; s++) {
        if (begin + s >= end) continue;
        load_weights(s, STEP == 2 ? s : begin + s, gates);
        if (NORMS && a.norm) load_norms(s, k + 16 * STEP * s);
    }
    if (threadIdx.x == 0) bring_near(a.next, a.next_bytes);
    float acc[2][TILES][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[m][j][i] = 0.0f;
    if (blocks > 1) cluster_arrive();
    wait_for_previous();

    Rows<TILES, IS_DENSE ? DENSE : SOURCE> rows(a, blockIdx.y * ROWS + lane / 4);
    const float* own_rows[TILES];
#pragma unroll
    for (int j = 0; j < TILES; j++) own_rows[j] = a.x + rows.base + min(8 * j, rows.more) * a.k + k;
    auto load_x = [&](int s, int k) {
        if (STEP == 1) {
            rows.load(a, k, x[s][0]);
            return;
        }
#pragma unroll
        for (int i = 0; i < STEP; i++)
#pragma unroll
            for (int j = 0; j < TILES; j++) x[s][i][j] = *(const float4*)(own_rows[j] + 16 * (s * STEP + i));
    };
#pragma unroll
    for (int s = 0; s < DEPTH; s++)
        if (begin + s < end) load_x(s, k + 16 * STEP * s);
    // Each warp reads whole rows for their layer norms, which is faster than exchanging sums between warps.
    // Of rows, the root's inverse, or the squares so far.
    float root[NORMS ? TILES : 1] = {}, total[NORMS ? TILES : 1] = {}, mean = 0.0f;
    if (CENTERS && a.norm && a.shift) {
        for (int r = 0; r < a.rows; r++) {
            const float* row = a.x + r * a.k;
            bool is_own = r == min((int)lane / 4, a.rows - 1);
            float center = 0.0f, squares = 0.0f;
            // Mean and variance are two passes, which avoids cancellation.
#pragma unroll 4
            for (int i = lane * 4; i < a.k; i += 128) {
                float4 v = *(const float4*)(row + i);
                center += v.x + v.y + v.z + v.w;
            }
            center = warp_sum(center) / a.k;
#pragma unroll 8
            for (int i = lane * 4; i < a.k; i += 128) {
                float4 v = *(const float4*)(row + i);
                v.x -= center, v.y -= center, v.z -= center, v.w -= center;
                squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            }
            float own = rsqrtf(warp_sum(squares) / a.k + a.eps);
            if (is_own) root[0] = own, mean = center;
        }
    }

    Addends addends;
    if (Tuning<TILES, SOURCE>::EARLY) addends.template load_first<ROWS>(a, blocks, rank);

    auto apply_norms = [&](int s, int i, bool late) {
        float4 f = factor[s][i];
        if (CENTERS && a.shift) {
            float4& v = x[s][i][0];
            float4 y = SHIFTS ? added[s][i] : *(const float4*)(a.shift + k + 16 * i);
            v.x = (v.x - mean) * root[0] * f.x + y.x, v.y = (v.y - mean) * root[0] * f.y + y.y;
            v.z = (v.z - mean) * root[0] * f.z + y.z, v.w = (v.w - mean) * root[0] * f.w + y.w;
        } else {
            f.x *= BEFORE_NORM, f.y *= BEFORE_NORM, f.z *= BEFORE_NORM, f.w *= BEFORE_NORM;
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                float4& v = x[s][i][j];
                root[NORMS ? j : 0] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
                if (late) total[NORMS ? j : 0] += v.x + v.y + (v.z + v.w);
                v.x *= f.x, v.y *= f.y, v.z *= f.z, v.w *= f.w;
            }
        }
    };
    auto multiply_all = [&](bool gated, bool normed, bool late = false) {
        auto move_on = [&]() {
#if PRECISION >= 4
            if (STEP == 1) return;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (i == 1 && !gated) continue;
                weights[i] += DEPTH * STEP * 32 * sizeof(Stored);
                plane[i] += DEPTH * STEP / PER_PLANE * 128;
                scales[i] += DEPTH * STEP / PER_SCALE * 8 * sizeof(Scales);
            }
#pragma unroll
            for (int j = 0; j < TILES; j++) own_rows[j] += 16 * STEP * DEPTH;
#endif
        };
        move_on();
        for (int step = begin; step < end; step += DEPTH) {
#pragma unroll
            for (int s = 0; s < DEPTH; s++) {
                if (step + s >= end) break;
#pragma unroll
                for (int i = 0; i < STEP; i++) {
                    if (normed) apply_norms(s, i, late);
#if PRECISION >= 4 && __CUDA_ARCH__ >= 800
                    uint4 wide[FACTORS];
                    u32 bits = HAS_PLANES ? high[s][i / PER_PLANE] : 0;
                    if (PER_PLANE == 2) bits >>= (STEP == 2 ? i : (step + s) % 2) * 8;
                    widen(w[s][i], bits, scale[s][i / PER_SCALE], wide);
                    multiply<TILES>(acc, wide, x[s][i]);
#elif PRECISION < 4
                    multiply<TILES>(acc, w[s], x[s][i]);
#endif
                }
                if (step + s + DEPTH < end) {
                    load_weights(s, STEP == 2 ? s : step + s + DEPTH, gated);
                    load_x(s, k + 16 * STEP * DEPTH);
                    if (normed) load_norms(s, k + 16 * STEP * DEPTH);
                }
                k += 16 * STEP;
            }
            move_on();
        }
    };
    // A loop for each case, without conditions: with them, instructions took longer than reading blocks.
    constexpr bool GATES = FEW && PRECISION >= 4;
    bool norms = NORMS && a.norm;
    if (GATES && gates) norms ? multiply_all(GATES, NORMS) : multiply_all(GATES, false);
    else if (norms && a.history) multiply_all(false, NORMS, NORMS);
    else norms ? multiply_all(false, NORMS) : multiply_all(false, false);

    if (!Tuning<TILES, SOURCE>::EARLY) addends.template load_first<ROWS>(a, blocks, rank);

    // Not earlier: blocks of the next kernel would share multiprocessors with these while others stay idle.
    let_next_start();

    // Those of the four channels that this thread stores.
    bool late = FEW && root_last && a.history;
    u32 own_channels = min(blockIdx.x * CHANNELS + threadIdx.x % 8 * 4, (a.n - 1) / 4 * 4);
    float4 factors = four(late ? a.history : 0, own_channels, a.n);
    float4 shifts = four(late ? a.history + a.n : 0, own_channels, a.n);

    // Adds partial sums of all warps, then of all blocks, in order. The values below are recomputed to save
    // registers.
    lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = cluster_blocks(), rank = cluster_rank();
    float* partial = shared + warp * ROWS * STRIDE;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = 8 * j + lane % 4 * 2 + i % 2, channel = 16 * m + lane / 4 + i / 2 * 8;
                partial[row * STRIDE + channel] = acc[m][j][i];
            }
    // Sums of squares are after the channels, then those of rows.
    if (root_last) {
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            float sum = root[NORMS ? j : 0], plain = total[NORMS ? j : 0];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1), sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            plain += __shfl_xor_sync(0xffffffffu, plain, 1), plain += __shfl_xor_sync(0xffffffffu, plain, 2);
            float* to = partial + (8 * j + lane / 4) * STRIDE + CHANNELS;
            if (lane % 4 == 0) to[0] = sum, to[1] = plain;
        }
    }
    __syncthreads();
    // The tile's cells of four channels, eight per row. Rows are distributed over the blocks of the cluster.
    constexpr u32 CELLS = ROWS * 8;
    u32 cluster_shift = 31 - __clz(blocks), mask = blocks - 1, mine = CELLS >> cluster_shift;
    float4 *inbox = (float4*)(shared + WARPS * ROWS * STRIDE), *squares = inbox + CELLS;
    auto own_squares = [&](u32 row) {
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float* from = shared + (i * ROWS + row) * STRIDE + CHANNELS;
            sum.x += from[0], sum.y += from[1];
        }
        return sum;
    };
    if (blocks > 1) {
        cluster_wait();
        for (u32 cell = threadIdx.x; cell < CELLS; cell += 32 * WARPS) {
            float4 sum = warp_sums<ROWS>(shared + cell / 8 * STRIDE + cell % 8 * 4);
            u32 slot = (cell / 8 >> cluster_shift) * 8 + cell % 8;
            give((float*)(inbox + rank * mine + slot), cell / 8 & mask, sum);
        }
        for (u32 row = threadIdx.x; root_last && row < ROWS; row += 32 * WARPS) {
            float2 own = own_squares(row);
            float4 sum = make_float4(own.x, own.y, 0.0f, 0.0f);
            float4* to = squares + rank * (ROWS >> cluster_shift) + (row >> cluster_shift);
            give((float*)to, row & mask, sum);
        }
        cluster_arrive();
        cluster_wait();
    }
    float slope = a.activation == PRELU ? *a.slope : 0.0f;
    auto sum_of = [&](u32 cell, u32 row) {
        float4 sum = blocks == 1 ? warp_sums<ROWS>(shared + row * STRIDE + cell % 8 * 4) : inbox[cell];
        for (u32 i = 1; i < blocks; i++) add(sum, inbox[i * mine + cell]);
        if (!root_last) return sum;
        float2 of_row = make_float2(0.0f, 0.0f);
        if (blocks == 1) of_row = own_squares(row);
        for (u32 i = 0; blocks > 1 && i < blocks; i++) {
            float4 one = squares[i * (ROWS >> cluster_shift) + cell / 8];
            of_row.x += one.x, of_row.y += one.y;
        }
        // Of an RMS norm the mean is zero.
        float center = of_row.y / a.k, variance = fmaxf(of_row.x / a.k - center * center, 0.0f);
        float root = rsqrtf(variance + a.eps), by = root * (1.0f / BEFORE_NORM), minus = root * center;
        float4 y = make_float4(sum.x * by, sum.y * by, sum.z * by, sum.w * by);
        add(y, shifts);
        y.x -= minus * factors.x, y.y -= minus * factors.y;
        y.z -= minus * factors.z, y.w -= minus * factors.w;
        return y;
    };
    if (FEW && a.gated) {
        for (u32 cell = threadIdx.x; cell < mine; cell += 32 * WARPS) {
            u32 row = (cell / 8 << cluster_shift) + rank, n = blockIdx.x * (CHANNELS / 2) + cell % 8 * 4;
            if (cell % 8 >= 4 || row >= a.rows) continue;
            float4 y = sum_of(cell, row), by = sum_of(cell + 4, row);
            float gate[4] = {y.x, y.y, y.z, y.w};
            activate(a.activation, gate, slope);
            *(float4*)(a.out + (size_t)row * a.first + n) =
                make_float4(gate[0] * by.x, gate[1] * by.y, gate[2] * by.z, gate[3] * by.w);
        }
        return;
    }
    bool first = true;
    u32 n = blockIdx.x * CHANNELS + threadIdx.x % 8 * 4;
    for (u32 cell = threadIdx.x; cell < mine; cell += 32 * WARPS, first = false) {
        u32 row = (cell / 8 << cluster_shift) + rank, r = blockIdx.y * ROWS + row;
        if (r >= a.rows || n >= a.n) break;
        if (!first) addends.load(a, r, n);
        store<IS_DENSE>(a, sum_of(cell, row), addends, r, n, slope);
    }
}

#if __CUDA_ARCH__ >= 800
#define TOGETHER(TILES) ((TILES) > 3 ? 1 : 2)
#else
#define TOGETHER(TILES) 1
#endif

#define KERNEL(NAME, TILES, SOURCE) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, TOGETHER(TILES)) NAME(const Args a) { \
        product<TILES, SOURCE>(a); \
    }

KERNEL(matmul_1_dense, 1, DENSE)
KERNEL(matmul_2_dense, 2, DENSE)
KERNEL(matmul_3_dense, 3, DENSE)
KERNEL(matmul_1_pairs, 1, PAIRS)
KERNEL(matmul_2_pairs, 2, PAIRS)
KERNEL(matmul_5_dense, 5, DENSE)
KERNEL(matmul_5_conv, 5, CONV)
KERNEL(matmul_5_past, 5, PAST)
KERNEL(matmul_5_odd, 5, ODD)
// Their partial sums exceed the shared memory of older devices.
#if __CUDA_ARCH__ >= 800
KERNEL(matmul_9_dense, 9, DENSE)
KERNEL(matmul_9_conv, 9, CONV)
KERNEL(matmul_7_past, 7, PAST)
#endif
