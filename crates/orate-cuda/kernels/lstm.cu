// LSTM from a zero state: gates [B, T, 4H], weight [H, 4H] → out [B, T, H].
//
//   i, f, g, o = gates[t] + h[t−1] · weight,  c[t] = σ(f) c[t−1] + σ(i) tanh(g),  h[t] = σ(o) tanh(c[t])
//
// A block has one sequence, whose h and c are in shared memory. Two threads have the gates of a unit, each
// every second term of their sums, which are added in order.

struct Args {
    const float* gates;
    const float* weight;
    float* out;
    int time, units;
};

#define WIDTH 256
#define PARTS 2

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" __global__ void __launch_bounds__(WIDTH * PARTS) lstm(const Args a) {
    extern __shared__ float shared[];
    __shared__ float4 partial[PARTS][WIDTH];
    float *h = shared, *next = h + a.units, *c = next + a.units;  // [units] each
    int column = threadIdx.x % WIDTH, part = threadIdx.x / WIDTH;
    wait_for_previous();
    let_next_start();
    for (int u = threadIdx.x; u < a.units; u += WIDTH * PARTS) h[u] = c[u] = 0.0f;
    const float* gates = a.gates + (size_t)blockIdx.x * a.time * 4 * a.units;
    float* out = a.out + (size_t)blockIdx.x * a.time * a.units;
    for (int t = 0; t < a.time; t++, gates += 4 * a.units, out += a.units) {
        __syncthreads();
        for (int first = 0; first < a.units; first += WIDTH) {
            int u = first + column;
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (u < a.units) {
#pragma unroll 4
                for (int k = part; k < a.units; k += PARTS) {
                    const float* w = a.weight + (size_t)k * 4 * a.units + u;
                    sum.x += h[k] * w[0], sum.y += h[k] * w[a.units];
                    sum.z += h[k] * w[2 * a.units], sum.w += h[k] * w[3 * a.units];
                }
            }
            partial[part][column] = sum;
            __syncthreads();
            if (part == 0 && u < a.units) {
                for (int i = 1; i < PARTS; i++) {
                    float4 other = partial[i][column];
                    sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
                }
                float i = sum.x + gates[u], f = sum.y + gates[a.units + u];
                float g = sum.z + gates[2 * a.units + u], o = sum.w + gates[3 * a.units + u];
                float cell = sigmoid(f) * c[u] + sigmoid(i) * tanhf(g);
                c[u] = cell;
                out[u] = next[u] = sigmoid(o) * tanhf(cell);
            }
            __syncthreads();
        }
        float* old = h;
        h = next, next = old;
    }
}
