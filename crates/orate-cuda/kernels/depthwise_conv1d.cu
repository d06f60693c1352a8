// Depthwise convolution along time, each channel with its own taps, and if wanted the layer norm of each row.
//
//   y[b, t, c] = bias[c] + Σ_j w[j, c] · x[b, clamp(t + j · dilation − left), c]
//
// x and out [B, T, C], w [taps, C]. C as for layer_norm.cu; a block has one row, held in registers.

struct Args {
    const float* x;
    const float* w;
    const float* bias;
    const float* norm_weight;  // none: no norm
    const float* norm_bias;
    float* out;
    int time, c, taps, dilation, left;
    float eps;
};

#define CHUNKS 4

template <typename T, int N>
DEVICE void depthwise(const Args& a) {
    __shared__ float scratch[2][32];
    wait_for_previous();
    let_next_start();
    int t = blockIdx.x % a.time, first = blockIdx.x - t;
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
#pragma unroll 7
        for (int tap = 0; tap < a.taps; tap++) {
            int row = first + min(max(t + tap * a.dilation - a.left, 0), a.time - 1);
            T x = ((const T*)(a.x + (size_t)row * a.c))[at], w = ((const T*)(a.w + tap * a.c))[at];
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

extern "C" __global__ void __launch_bounds__(256) depthwise_4(const Args a) { depthwise<float4, 4>(a); }
extern "C" __global__ void __launch_bounds__(256) depthwise_1(const Args a) { depthwise<float, 1>(a); }
