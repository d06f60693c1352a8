// Layer norm of each row: f((x − mean) / √(variance + eps) · weight + bias) + row. Only `layer_norm_warps`
// has an activation f and adds a row; it and `layer_norm_row` can store 16 bits.
//
// x and out [rows, C], C up to 4 · 256 · 4 if it is a multiple of 4, else 4 · 256. A block has one row in
// registers, or a warp has; mean and variance are two passes, which avoids cancellation.

struct Args {
    const float* x;
    const float* weight;
    const float* bias;
    float* out;
    const float* row;      // [row_count, C], of which `row_index` names one to add at the end; or null
    const u64* row_index;
    int c;
    float eps;
    int rows, type;  // of `out`: 0 f32, 1 f16, 2 bf16
    int activation, row_count;
};

#define CHUNKS 4

template <typename T, int N>
DEVICE void layer_norm(const Args& a) {
    __shared__ float scratch[2][32];
    wait_for_previous();
    let_next_start();
    const T* x = (const T*)(a.x + (size_t)blockIdx.x * a.c);
    int count = a.c / N;
    float v[CHUNKS][N], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = threadIdx.x + i * blockDim.x;
        if (i > 0 && i * blockDim.x >= count) break;
        if (at < count) {
            T t = x[at];
#pragma unroll
            for (int j = 0; j < N; j++) sum += v[i][j] = ((const float*)&t)[j];
        }
    }
    float mean = block_sum(sum, scratch[0]) / a.c, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        if (i > 0 && i * blockDim.x >= count) break;
        if (threadIdx.x + i * blockDim.x < count)
#pragma unroll
            for (int j = 0; j < N; j++) squares += (v[i][j] - mean) * (v[i][j] - mean);
    }
    float factor = 1.0f / sqrtf(block_sum(squares, scratch[1]) / a.c + a.eps);
    T* out = (T*)(a.out + (size_t)blockIdx.x * a.c);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = threadIdx.x + i * blockDim.x;
        if (i > 0 && i * blockDim.x >= count) break;
        if (at < count) {
            T w = ((const T*)a.weight)[at], b = ((const T*)a.bias)[at], y;
#pragma unroll
            for (int j = 0; j < N; j++)
                ((float*)&y)[j] = (v[i][j] - mean) * factor * ((const float*)&w)[j] + ((const float*)&b)[j];
            out[at] = y;
        }
    }
}

// The common case, at most 4 · 256 channels: weights are loaded before the previous kernel has finished.
extern "C" __global__ void __launch_bounds__(256) layer_norm_row(const Args a) {
    __shared__ float scratch[2][32];
    int at = threadIdx.x * 4;
    bool is = at < a.c;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 w = is ? *(const float4*)(a.weight + at) : zero, b = is ? *(const float4*)(a.bias + at) : zero;
    wait_for_previous();
    let_next_start();
    float4 y = is ? *(const float4*)(a.x + (size_t)blockIdx.x * a.c + at) : zero;
    float mean = block_sum(y.x + y.y + y.z + y.w, scratch[0]) / a.c;
    y.x -= mean, y.y -= mean, y.z -= mean, y.w -= mean;
    float squares = is ? y.x * y.x + y.y * y.y + y.z * y.z + y.w * y.w : 0.0f;
    float factor = 1.0f / sqrtf(block_sum(squares, scratch[1]) / a.c + a.eps);
    if (!is) return;
    y.x = y.x * factor * w.x + b.x, y.y = y.y * factor * w.y + b.y;
    y.z = y.z * factor * w.z + b.z, y.w = y.w * factor * w.w + b.w;
    store_as(a.type, a.out, (size_t)blockIdx.x * a.c + at, y);
}

// A warp for each of 8 rows, of at most 4 · 128 channels.
extern "C" __global__ void __launch_bounds__(256) layer_norm_warps(const Args a) {
    int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 w[CHUNKS], b[CHUNKS], y[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = 4 * lane + 128 * i;
        w[i] = at < a.c ? *(const float4*)(a.weight + at) : zero;
        b[i] = at < a.c ? *(const float4*)(a.bias + at) : zero;
    }
    wait_for_previous();
    let_next_start();
    if (row >= a.rows) return;
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = 4 * lane + 128 * i;
        y[i] = at < a.c ? *(const float4*)(a.x + (size_t)row * a.c + at) : zero;
        sum += y[i].x + y[i].y + y[i].z + y[i].w;
    }
    float mean = warp_sum(sum) / a.c;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        y[i].x -= mean, y[i].y -= mean, y[i].z -= mean, y[i].w -= mean;
        if (4 * lane + 128 * i < a.c)
            squares += y[i].x * y[i].x + y[i].y * y[i].y + y[i].z * y[i].z + y[i].w * y[i].w;
    }
    float factor = 1.0f / sqrtf(warp_sum(squares) / a.c + a.eps);
    const float* added = a.row ? a.row + min((u64)a.row_count - 1, *a.row_index) * a.c : 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = 4 * lane + 128 * i;
        if (at >= a.c) break;
        y[i].x = y[i].x * factor * w[i].x + b[i].x, y[i].y = y[i].y * factor * w[i].y + b[i].y;
        y[i].z = y[i].z * factor * w[i].z + b[i].z, y[i].w = y[i].w * factor * w[i].w + b[i].w;
        if (a.activation) {
            float active[4] = {y[i].x, y[i].y, y[i].z, y[i].w};
            activate(a.activation, active, 0.0f);
            y[i] = make_float4(active[0], active[1], active[2], active[3]);
        }
        if (added) {
            float4 r = *(const float4*)(added + at);
            y[i].x += r.x, y[i].y += r.y, y[i].z += r.z, y[i].w += r.w;
        }
        store_as(a.type, a.out, (size_t)row * a.c + at, y[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256) layer_norm_4(const Args a) { layer_norm<float4, 4>(a); }
extern "C" __global__ void __launch_bounds__(256) layer_norm_1(const Args a) { layer_norm<float, 1>(a); }
