// Multi-head attention, with masks as predicates, optional relative positions, and rotary positions of the queries.
//
//   s[i, j] = scale · q_i · k_j + (|j − p_i| ≤ window ? scale · q_i · rel_key[j − p_i + window] : 0)
//   o_i     = Σ_j softmax(s)[i, j] · (v_j + (|j − p_i| ≤ window ? rel_value[j − p_i + window] : 0))
//
// q and out [B, Tq, H·D], k and v [B or 1, Tk, H·D], lens [B or 1], rel_* [2·window + 1, D]. Query i stands at p_i = i, or
// with a causal mask at i + Tk − Tq, where it sees the keys up to its own. Keys behind the length are never read. A
// query that sees no key gets zeros.
//
// A block has 8 queries of one head, two for each warp, and walks over the keys in blocks of KEYS with the running
// maximum and sum of each query. For scores a thread has a key, for values it has every 32nd channel.

struct Args {
    const float* q;
    const float* k;
    const float* v;
    const int* lens;
    const float* rel_key;
    const float* rel_value;
    const float* table;  // [B or 1, 2, Tq, D/2]: cosines and sines that turn q first
    float* out;
    int heads, d, tq, tk, kv_batch, window, causal, tables;
    float scale;
};

#define WARPS 4
#define QUERIES 2

// Floats from one key to the next: a multiple of 4, and odd in units of 4, so that 8 threads meet in no bank.
DEVICE int key_stride(int d) { return (d + 3) / 8 * 8 + 4 >= d ? (d + 3) / 8 * 8 + 4 : (d + 3) / 8 * 8 + 12; }

// Starts to copy 16 bytes to shared memory, or zeros.
DEVICE void start_copy(float* to, const float* from, bool is) {
#if __CUDA_ARCH__ >= 800
    u32 there = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(there), "l"(from), "r"(is ? 16 : 0) : "memory");
#else
    *(float4*)to = is ? *(const float4*)from : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#endif
}

DEVICE void finish_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Copies rows `first` … of k and v to shared memory; behind `end` come zeros.
template <int KEYS>
DEVICE void copy_keys(const Args& a, const float* k, const float* v, float* keys, float* values, int first, int end) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stride = key_stride(a.d), width = a.heads * a.d;
    if (a.d % 4 == 0) {
        int quads = a.d / 4;
        for (int e = lane; e < 2 * quads; e += 32) {
            bool of_keys = e < quads;
            int channel = (of_keys ? e : e - quads) * 4, step = of_keys ? stride : a.d;
            const float* from = (of_keys ? k : v) + channel;
            float* to = (of_keys ? keys : values) + channel;
#pragma unroll 4
            for (int j = warp; j < KEYS; j += WARPS) {
                int row = min(first + j, a.tk - 1);
                start_copy(to + j * step, from + (size_t)row * width, first + j < end);
            }
        }
        return;
    }
    for (int at = threadIdx.x; at < KEYS * stride; at += 32 * WARPS) {
        int j = at / stride, e = at % stride;
        bool is = first + j < end && e < a.d;
        size_t from = (size_t)(first + j) * width + e;
        keys[at] = is ? k[from] : 0.0f;
        if (e < a.d) values[j * a.d + e] = is ? v[from] : 0.0f;
    }
}

template <int PER, int KEYS>
DEVICE void attention(const Args& a) {
    extern __shared__ float4 shared4[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int head = blockIdx.y, b = blockIdx.z, kv = a.kv_batch == 1 ? 0 : b;
    int stride = key_stride(a.d), width = a.heads * a.d, terms = 2 * a.window + 1;
    float* keys = (float*)shared4;                          // [KEYS, stride]
    float* queries = keys + KEYS * stride;                  // [WARPS, QUERIES, stride]
    float* weights = queries + WARPS * QUERIES * stride;    // [WARPS, QUERIES, KEYS]
    float* values = weights + WARPS * QUERIES * KEYS;       // [KEYS, d]
    float* relative = values + KEYS * a.d;                  // [WARPS, QUERIES, terms]
    queries += warp * QUERIES * stride, weights += warp * QUERIES * KEYS, relative += warp * QUERIES * terms;
    wait_for_previous();
    let_next_start();

    int len = a.lens ? min(max(a.lens[kv], 0), a.tk) : a.tk;
    int shift = a.causal ? a.tk - a.tq : 0;
    // The last key that a query of this block sees.
    int end = a.causal ? min(len, min((int)(blockIdx.x + 1) * WARPS * QUERIES, a.tq) + shift) : len;
    const float* k = a.k + (size_t)kv * a.tk * width + head * a.d;
    const float* v = a.v + (size_t)kv * a.tk * width + head * a.d;
    copy_keys<KEYS>(a, k, v, keys, values, 0, end);
    int first = (blockIdx.x * WARPS + warp) * QUERIES;
    for (int i = 0; i < QUERIES; i++) {
        const float* q = a.q + ((size_t)b * a.tq + min(first + i, a.tq - 1)) * width + head * a.d;
        for (int e = lane; e < stride; e += 32) {
            float x = e < a.d ? q[e] : 0.0f;
            if (a.table && e < a.d) {
                int half = a.d / 2, j = e < half ? e : e - half;
                const float* table = a.table + ((size_t)(b % a.tables) * 2 * a.tq + min(first + i, a.tq - 1)) * half + j;
                float c = table[0], s = table[(size_t)a.tq * half];
                x = e < half ? x * c - q[e + half] * s : q[e - half] * s + x * c;
            }
            queries[i * stride + e] = a.scale * x;
        }
    }
    __syncwarp();
    if (a.rel_key) {
        for (int o = lane; o < QUERIES * terms; o += 32) {
            const float* term = a.rel_key + o % terms * a.d;
            float sum = 0.0f;
#pragma unroll 16
            for (int e = 0; e < a.d; e++) sum += queries[o / terms * stride + e] * term[e];
            relative[o] = sum;
        }
        __syncwarp();
    }

    float largest[QUERIES], total[QUERIES], acc[QUERIES][PER];
#pragma unroll
    for (int i = 0; i < QUERIES; i++) {
        largest[i] = -INFINITY, total[i] = 0.0f;
#pragma unroll
        for (int e = 0; e < PER; e++) acc[i][e] = 0.0f;
    }
    for (int start = 0; start < end; start += KEYS) {
        if (start > 0) {
            __syncthreads();
            copy_keys<KEYS>(a, k, v, keys, values, start, end);
        }
        finish_copies();
        __syncthreads();

        float score[QUERIES][KEYS / 32];
#pragma unroll
        for (int i = 0; i < QUERIES; i++)
#pragma unroll
            for (int j = 0; j < KEYS / 32; j++) score[i][j] = 0.0f;
#pragma unroll 4
        for (int e = 0; e < a.d; e += 4) {
            float4 x[QUERIES];
#pragma unroll
            for (int i = 0; i < QUERIES; i++) x[i] = *(const float4*)(queries + i * stride + e);
#pragma unroll
            for (int j = 0; j < KEYS / 32; j++) {
                float4 y = *(const float4*)(keys + (lane + 32 * j) * stride + e);
#pragma unroll
                for (int i = 0; i < QUERIES; i++)
                    score[i][j] += x[i].x * y.x + x[i].y * y.y + x[i].z * y.z + x[i].w * y.w;
            }
        }
#pragma unroll
        for (int i = 0; i < QUERIES; i++) {
            int position = first + i + shift, last = a.causal ? min(end, position + 1) : end;
            float block = -INFINITY;
#pragma unroll
            for (int j = 0; j < KEYS / 32; j++) {
                int key = start + lane + 32 * j, o = key - position + a.window;
                if (a.rel_key && o >= 0 && o < terms) score[i][j] += relative[i * terms + o];
                if (key >= last) score[i][j] = -INFINITY;
                block = fmaxf(block, score[i][j]);
            }
            float now = fmaxf(largest[i], warp_max(block)), sum = 0.0f;
            // No key was seen yet: nothing to scale, and no difference of infinities.
            float old = now == -INFINITY ? 1.0f : expf(largest[i] - now);
#pragma unroll
            for (int j = 0; j < KEYS / 32; j++) {
                float p = score[i][j] == -INFINITY ? 0.0f : expf(score[i][j] - now);
                sum += p;
                weights[i * KEYS + lane + 32 * j] = p;
            }
            total[i] = total[i] * old + warp_sum(sum);
            largest[i] = now;
#pragma unroll
            for (int e = 0; e < PER; e++) acc[i][e] *= old;
        }
        __syncwarp();
        int count = min(KEYS, end - start);
#pragma unroll 2
        for (int j = 0; j < count; j += 4) {
            float4 p[QUERIES];
#pragma unroll
            for (int i = 0; i < QUERIES; i++) p[i] = *(const float4*)(weights + i * KEYS + j);
#pragma unroll
            for (int e = 0; e < PER; e++) {
                int channel = lane + 32 * e;
                if (channel >= a.d) continue;
                const float* y = values + j * a.d + channel;
                float y0 = y[0], y1 = y[a.d], y2 = y[2 * a.d], y3 = y[3 * a.d];
#pragma unroll
                for (int i = 0; i < QUERIES; i++)
                    acc[i][e] += p[i].x * y0 + p[i].y * y1 + p[i].z * y2 + p[i].w * y3;
            }
        }
        if (a.rel_key) {
#pragma unroll
            for (int i = 0; i < QUERIES; i++) {
                int position = first + i + shift;
                int from = max(start, position - a.window), to = min(start + count, position + a.window + 1);
                for (int key = from; key < to; key++) {
                    const float* term = a.rel_value + (key - position + a.window) * a.d;
                    float p = weights[i * KEYS + key - start];
#pragma unroll
                    for (int e = 0; e < PER; e++)
                        if (lane + 32 * e < a.d) acc[i][e] += p * term[lane + 32 * e];
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < QUERIES; i++) {
        if (first + i >= a.tq) continue;
        float* out = a.out + ((size_t)b * a.tq + first + i) * width + head * a.d;
        float factor = total[i] > 0.0f ? 1.0f / total[i] : 0.0f;
#pragma unroll
        for (int e = 0; e < PER; e++)
            if (lane + 32 * e < a.d) out[lane + 32 * e] = acc[i][e] * factor;
    }
}

extern "C" __global__ void __launch_bounds__(128, 2) attention_32(const Args a) { attention<1, 64>(a); }
extern "C" __global__ void __launch_bounds__(128, 2) attention_64(const Args a) { attention<2, 64>(a); }
extern "C" __global__ void __launch_bounds__(128, 2) attention_128(const Args a) { attention<4, 32>(a); }
extern "C" __global__ void __launch_bounds__(128, 2) attention_256(const Args a) { attention<8, 32>(a); }
