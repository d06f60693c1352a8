// Depthwise convolution over time, optionally with a layer norm of each row.
//
//   y[b, t, c] = bias[c] + Σ_j w[j, c] · x[b, clamp(t + j · dilation − left), c]
//
// With a history [B, left, C], rows before x come from it; or rows beyond the ends are zeros; or sequences
// have lengths [B], and rows after them are read as their last.
//
// x and out [B, T, C], w [taps, C]. C as for layer_norm.cu; a block has one row in registers.

struct Args {
    const float* x;
    const float* w;
    const float* bias;
    const float* norm_weight;  // null: no norm
    const float* norm_bias;
    const float* history;
    const int* lengths;        // null: `time`
    float* out;
    int time, c, taps, dilation, left, zeros;
    float eps;
    int type;                  // of `out`: 0 f32, 1 f16, 2 bf16; 16 bits by `depthwise_norm` and of warps
    int rows;
};

#define CHUNKS 4

// Rows of the sequence that begins at row `first`.
DEVICE int length(const Args& a, int first) {
    return a.lengths ? max(min(a.lengths[first / a.time], a.time), 1) : a.time;
}

// The row that output row `t` reads through a tap, null for zeros; `first` is the first row of its sequence
// of `end` rows.
DEVICE const float* tapped(const Args& a, int first, int end, int t, int tap) {
    int at = t + tap * a.dilation - a.left;
    if (a.zeros && (u32)at >= (u32)a.time) return nullptr;
    if (at < 0 && a.history) return a.history + ((size_t)(first / a.time) * a.left + at + a.left) * a.c;
    return a.x + (size_t)(first + min(max(at, 0), end - 1)) * a.c;
}

template <typename T, int N>
DEVICE void depthwise(const Args& a) {
    __shared__ float scratch[2][32];
    wait_for_previous();
    let_next_start();
    int t = blockIdx.x % a.time, first = blockIdx.x - t, end = length(a, first);
    int count = a.c / N;
    float v[CHUNKS][N], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = threadIdx.x + i * blockDim.x;
        if (i > 0 && i * blockDim.x >= count) break;
        if (at >= count) continue;
        T b = ((const T*)a.bias)[at];
#pragma unroll
        for (int j = 0; j < N; j++) v[i][j] = ((const float*)&b)[j];
#pragma unroll 4
        for (int tap = 0; tap < a.taps; tap++) {
            const T* from = (const T*)tapped(a, first, end, t, tap);
            T x = from ? from[at] : T(), w = ((const T*)(a.w + tap * a.c))[at];
#pragma unroll
            for (int j = 0; j < N; j++) v[i][j] += ((const float*)&w)[j] * ((const float*)&x)[j];
        }
#pragma unroll
        for (int j = 0; j < N; j++) sum += v[i][j];
    }
    float mean = 0.0f, factor = 1.0f;
    if (a.norm_weight) {
        mean = block_sum(sum, scratch[0]) / a.c;
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            if (i > 0 && i * blockDim.x >= count) break;
            if (threadIdx.x + i * blockDim.x < count)
#pragma unroll
                for (int j = 0; j < N; j++) squares += (v[i][j] - mean) * (v[i][j] - mean);
        }
        factor = 1.0f / sqrtf(block_sum(squares, scratch[1]) / a.c + a.eps);
    }
    T* out = (T*)(a.out + (size_t)blockIdx.x * a.c);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = threadIdx.x + i * blockDim.x;
        if (i > 0 && i * blockDim.x >= count) break;
        if (at >= count) continue;
        T y;
        if (a.norm_weight) {
            T w = ((const T*)a.norm_weight)[at], b = ((const T*)a.norm_bias)[at];
#pragma unroll
            for (int j = 0; j < N; j++)
                ((float*)&y)[j] = (v[i][j] - mean) * factor * ((const float*)&w)[j] + ((const float*)&b)[j];
        } else {
#pragma unroll
            for (int j = 0; j < N; j++) ((float*)&y)[j] = v[i][j];
        }
        out[at] = y;
    }
}

// The common case, TAPS taps and a norm of at most 4 · 256 channels: all weights are loaded before the
// previous kernel has finished, and all rows at once.
template <int TAPS>
DEVICE void depthwise_norm(const Args& a) {
    __shared__ float scratch[2][32];
    int at = threadIdx.x * 4;
    bool is = at < a.c;
    float4 w[TAPS], x[TAPS], y, norm_weight, norm_bias;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (is) {
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) w[tap] = *(const float4*)(a.w + tap * a.c + at);
        norm_weight = *(const float4*)(a.norm_weight + at);
        norm_bias = *(const float4*)(a.norm_bias + at);
    }
    y = is ? *(const float4*)(a.bias + at) : zero;
    wait_for_previous();
    let_next_start();
    int t = blockIdx.x % a.time, first = blockIdx.x - t, end = length(a, first);
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
        const float* from = tapped(a, first, end, t, tap);
        if (is) x[tap] = from ? *(const float4*)(from + at) : zero;
    }
    if (is) {
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            y.x += w[tap].x * x[tap].x, y.y += w[tap].y * x[tap].y;
            y.z += w[tap].z * x[tap].z, y.w += w[tap].w * x[tap].w;
        }
    }
    float mean = block_sum(y.x + y.y + y.z + y.w, scratch[0]) / a.c;
    y.x -= mean, y.y -= mean, y.z -= mean, y.w -= mean;
    float squares = is ? y.x * y.x + y.y * y.y + y.z * y.z + y.w * y.w : 0.0f;
    float factor = 1.0f / sqrtf(block_sum(squares, scratch[1]) / a.c + a.eps);
    if (!is) return;
    y.x = y.x * factor * norm_weight.x + norm_bias.x, y.y = y.y * factor * norm_weight.y + norm_bias.y;
    y.z = y.z * factor * norm_weight.z + norm_bias.z, y.w = y.w * factor * norm_weight.w + norm_bias.w;
    store_as(a.type, a.out, (size_t)blockIdx.x * a.c + at, y);
}

// The same of very many rows of at most 4 · 128 channels: a warp has a row, so that no row waits for the sums
// of its block.
template <int TAPS>
DEVICE void depthwise_norm_of_warps(const Args& a) {
    int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
    float4 y[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = 4 * lane + 128 * i;
        y[i] = at < a.c ? *(const float4*)(a.bias + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    wait_for_previous();
    let_next_start();
    if (row >= a.rows) return;
    int t = row % a.time, first = row - t, end = length(a, first);
    const float* from[TAPS];
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) from[tap] = tapped(a, first, end, t, tap);
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = 4 * lane + 128 * i;
        if (at >= a.c) break;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            if (!from[tap]) continue;
            float4 w = *(const float4*)(a.w + tap * a.c + at), x = *(const float4*)(from[tap] + at);
            y[i].x += w.x * x.x, y[i].y += w.y * x.y, y[i].z += w.z * x.z, y[i].w += w.w * x.w;
        }
        sum += y[i].x + y[i].y + y[i].z + y[i].w;
    }
    float mean = warp_sum(sum) / a.c;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        if (4 * lane + 128 * i >= a.c) break;
        y[i].x -= mean, y[i].y -= mean, y[i].z -= mean, y[i].w -= mean;
        squares += y[i].x * y[i].x + y[i].y * y[i].y + y[i].z * y[i].z + y[i].w * y[i].w;
    }
    float factor = 1.0f / sqrtf(warp_sum(squares) / a.c + a.eps);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = 4 * lane + 128 * i;
        if (at >= a.c) break;
        float4 w = *(const float4*)(a.norm_weight + at), b = *(const float4*)(a.norm_bias + at);
        y[i].x = y[i].x * factor * w.x + b.x, y[i].y = y[i].y * factor * w.y + b.y;
        y[i].z = y[i].z * factor * w.z + b.z, y[i].w = y[i].w * factor * w.w + b.w;
        store_as(a.type, a.out, (size_t)row * a.c + at, y[i]);
    }
}

#define KERNEL(NAME, ...) \
    extern "C" __global__ void __launch_bounds__(256) NAME(const Args a) { __VA_ARGS__(a); }

KERNEL(depthwise_norm_warps_5, depthwise_norm_of_warps<5>)
KERNEL(depthwise_norm_warps_7, depthwise_norm_of_warps<7>)
KERNEL(depthwise_norm_5, depthwise_norm<5>)
KERNEL(depthwise_norm_7, depthwise_norm<7>)
KERNEL(depthwise_4, depthwise<float4, 4>)
KERNEL(depthwise_1, depthwise<float, 1>)
