// RMS norm of each row: x / √(mean(x²) + eps) · weight.
//
// x and out [rows, C], any C. A block has one row, or if rows are short (heads of attention) 8 rows of one
// warp each. A row is read twice, the second time from a cache; rows of a transformer, up to 4096 channels,
// stay in registers.

struct Args {
    const float* x;
    const float* weight;
    float* out;
    int rows, c;
    float eps;
    int type;  // of `out`; see `store_as`. Others than f32 for `held_row` only
};

// Sum of squares over a thread's elements of a row: every STEP-th group of N.
template <typename T, int N, int STEP>
DEVICE float squares(const float* x, int c, int first) {
    float sum = 0.0f;
    for (int i = first; i < c / N; i += STEP) {
        T v = ((const T*)x)[i];
#pragma unroll
        for (int j = 0; j < N; j++) sum += ((const float*)&v)[j] * ((const float*)&v)[j];
    }
    return sum;
}

template <typename T, int N, int STEP>
DEVICE void scale(const Args& a, const float* x, float* out, float sum, int first) {
    float factor = 1.0f / sqrtf(sum / a.c + a.eps);
    for (int i = first; i < a.c / N; i += STEP) {
        T v = ((const T*)x)[i], w = ((const T*)a.weight)[i];
#pragma unroll
        for (int j = 0; j < N; j++) ((float*)&v)[j] = ((const float*)&v)[j] * factor * ((const float*)&w)[j];
        ((T*)out)[i] = v;
    }
}

template <typename T, int N>
DEVICE void row_of_a_block(const Args& a) {
    __shared__ float scratch[32];
    wait_for_previous();
    let_next_start();
    size_t at = (size_t)blockIdx.x * a.c;
    float sum = block_sum(squares<T, N, 256>(a.x + at, a.c, threadIdx.x), scratch);
    scale<T, N, 256>(a, a.x + at, a.out + at, sum, threadIdx.x);
}

template <typename T, int N>
DEVICE void rows_of_warps(const Args& a) {
    wait_for_previous();
    let_next_start();
    int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= a.rows) return;
    size_t at = (size_t)row * a.c;
    float sum = warp_sum(squares<T, N, 32>(a.x + at, a.c, lane));
    scale<T, N, 32>(a, a.x + at, a.out + at, sum, lane);
}

// Rows of a transformer: weights are loaded before the previous kernel has finished.
template <int CHUNKS>
DEVICE void held_row(const Args& a) {
    __shared__ float scratch[32];
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 w[CHUNKS], x[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = threadIdx.x + 256 * i;
        w[i] = at < a.c / 4 ? ((const float4*)a.weight)[at] : zero;
    }
    wait_for_previous();
    let_next_start();
    const float4* from = (const float4*)(a.x + (size_t)blockIdx.x * a.c);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = threadIdx.x + 256 * i;
        x[i] = at < a.c / 4 ? from[at] : zero;
        sum += x[i].x * x[i].x + x[i].y * x[i].y + x[i].z * x[i].z + x[i].w * x[i].w;
    }
    float factor = 1.0f / sqrtf(block_sum(sum, scratch) / a.c + a.eps);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int at = threadIdx.x + 256 * i;
        x[i].x *= factor * w[i].x, x[i].y *= factor * w[i].y;
        x[i].z *= factor * w[i].z, x[i].w *= factor * w[i].w;
        if (at < a.c / 4) store_as(a.type, a.out, (size_t)blockIdx.x * a.c + 4 * at, x[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256) rms_norm_row_1(const Args a) { held_row<1>(a); }
extern "C" __global__ void __launch_bounds__(256) rms_norm_row_4(const Args a) { held_row<4>(a); }
extern "C" __global__ void __launch_bounds__(256) rms_norm_4(const Args a) { row_of_a_block<float4, 4>(a); }
extern "C" __global__ void __launch_bounds__(256) rms_norm_1(const Args a) { row_of_a_block<float, 1>(a); }
extern "C" __global__ void __launch_bounds__(256) rms_norm_warps_4(const Args a) { rows_of_warps<float4, 4>(a); }
extern "C" __global__ void __launch_bounds__(256) rms_norm_warps_1(const Args a) { rows_of_warps<float, 1>(a); }
