// Layer norm of each row: (x − mean) / √(variance + eps) · weight + bias.
//
// x and out [rows, C], C up to 4 · 256 · 4 where it is a multiple of 4, else 4 · 256. A block has one row, held in
// registers; mean and variance are two sums, so that nothing cancels.

struct Args {
    const float* x;
    const float* weight;
    const float* bias;
    float* out;
    int c;
    float eps;
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

extern "C" __global__ void __launch_bounds__(256) layer_norm_4(const Args a) { layer_norm<float4, 4>(a); }
extern "C" __global__ void __launch_bounds__(256) layer_norm_1(const Args a) { layer_norm<float, 1>(a); }
