// Source signal of a vocoder: f0 [B, T], phases [B, H], noise [B, T · hop, H] → out like noise.
//
//   r = f0 · (h + 1) / rate, in f32;  cycles = Σ r up to the sample, in f64, rounded to f32, modulo 1
//   out = f0 > 10 ? 0.1 · sin(2π · cycles + phase) + 0.003 · noise : 0.1 / 3 · noise
//
// A block has one frame. It sums r over all frames before: terms have 24 bits, so f64 sums them without
// rounding.

struct Args {
    const float* f0;
    const float* phases;
    const float* noise;
    float* out;
    int time, hop, harmonics;
    float rate;
};

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS) harmonic_source(const Args a) {
    extern __shared__ double before[];  // [harmonics]
    __shared__ double scratch[THREADS / 32];
    wait_for_previous();
    let_next_start();
    int frame = blockIdx.x, b = blockIdx.y;
    const float* f0 = a.f0 + (size_t)b * a.time;
    for (int h = 0; h < a.harmonics; h++) {
        double sum = 0.0;
        for (int t = threadIdx.x; t < frame; t += THREADS) sum += (double)a.hop * (f0[t] * (h + 1) / a.rate);
#pragma unroll
        for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
        __syncthreads();
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x > 0) continue;
        for (int i = 1; i < THREADS / 32; i++) sum += scratch[i];
        before[h] = sum;
    }
    __syncthreads();
    float pitch = f0[frame];
    size_t first = ((size_t)b * a.time + frame) * a.hop * a.harmonics;
    for (int i = threadIdx.x; i < a.hop * a.harmonics; i += THREADS) {
        int h = i % a.harmonics, k = i / a.harmonics;
        float noise = a.noise[first + i], y = noise * (0.1f / 3.0f);
        if (pitch > 10.0f) {
            float cycles = (float)(before[h] + (double)(k + 1) * (pitch * (h + 1) / a.rate));
            float angle = fmaf(cycles - floorf(cycles), 6.2831855f, a.phases[b * a.harmonics + h]);
            y = 0.1f * sine(angle, 0.0f) + 0.003f * noise;
        }
        a.out[first + i] = y;
    }
}
