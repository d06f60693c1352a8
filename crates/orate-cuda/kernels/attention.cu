// Multi-head attention: masks as predicates, optional relative positions, rotary positions of the queries.
//
//   s[i, j] = scale · q_i · k_j + (|j − p_i| ≤ window ? scale · q_i · rel_key[j − p_i + window] : 0)
//             + bias[i, j]
//   o_i     = Σ_j softmax(s)[i, j] · (v_j + (|j − p_i| ≤ window ? rel_value[j − p_i + window] : 0))
//
// q and out [B, Tq, H·D], k and v [B or 1, Tk, H/group·D], lens [B or 1], rel_* [2·window + 1, D]. Query i is
// at position p_i = i, or with a causal mask at i + shift, where it sees the keys up to its position, or the
// last `seen` of them. shift is Tk − Tq; for a cache, `first` [B] or the plan gives it. In a stream, `first`
// is the number of rows before the queries, and keys before the first of these rows are not visible either.
// Keys after the length are never read. A query that sees no key gets zeros.
//
// CACHE is the type of k and v (see `cache_rows.cuh`); compact elements are widened on their way to shared
// memory.
//
// A block has 4 queries of one head, one per warp, and iterates over blocks of KEYS keys with a running
// maximum and sum (online softmax). For scores, a thread has every 32nd key; for values, every 32nd channel.
// The widest heads keep keys and values in one place of shared memory, in turn, which fits every device.

#ifndef CACHE
#define CACHE 0
#endif

#define WARPS 4

// Stride between keys in floats: a multiple of 4, and odd in units of 4, so that 8 threads have no bank
// conflicts.
DEVICE int key_stride(int d) { return (d + 3) / 8 * 8 + 4 >= d ? (d + 3) / 8 * 8 + 4 : (d + 3) / 8 * 8 + 12; }

// Copies `rows` rows of d, of which `valid` exist; the rest become zeros.
DEVICE void copy_rows(
    float* to, int to_stride, const float* from, size_t stride, int d, int rows, int valid) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (d % 4 == 0) {
        int quads = d / 4, side = quads > 16 ? 1 : 2;  // two rows at a time if they are short
        for (int e = lane % (32 / side); e < quads; e += 32 / side) {
#pragma unroll 4
            for (int j = warp * side + lane / (32 / side); j < rows; j += WARPS * side)
                start_copy(
                    to + j * to_stride + 4 * e, from + (j < valid ? j : 0) * stride + 4 * e, j < valid);
        }
        return;
    }
    for (int e = lane; e < to_stride; e += 32)
        for (int j = warp; j < rows; j += WARPS)
            to[j * to_stride + e] = j < valid && e < d ? from[j * stride + e] : 0.0f;
}

// Copies `rows` keys or values of a head from `start` on. Those from `end` on become zeros.
DEVICE void copy_keys(
    float* to, int to_stride, const float* x, const Args& a, int kv, int channel, int start, int rows,
    int end) {
    int width = a.heads * a.d / a.group;
    size_t first = (size_t)kv * a.tk + start;
#if CACHE
    size_t bytes = kept_bytes(CACHE, width);
    const char* from = (const char*)x + first * bytes;
    int valid = end - start;
    if (a.d % 4 == 0) {
        int quads = a.d / 4;
        const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int i = threadIdx.x; i < rows * quads; i += 32 * WARPS) {
            int j = i / quads, e = 4 * (i - j * quads);
            *(float4*)(to + j * to_stride + e) =
                j < valid ? kept_four<CACHE>(from + j * bytes, width, channel + e) : zero;
        }
        return;
    }
    for (int i = threadIdx.x; i < rows * to_stride; i += 32 * WARPS) {
        int j = i / to_stride, e = i - j * to_stride;
        to[i] = j < valid && e < a.d ? kept_one<CACHE>(from + j * bytes, width, channel + e) : 0.0f;
    }
#else
    copy_rows(to, to_stride, x + first * width + channel, width, a.d, rows, end - start);
#endif
}

template <int PER, int KEYS>
DEVICE void attention(const Args& a) {
    constexpr bool IN_TURN = PER == 8;
    extern __shared__ float4 shared4[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int head = blockIdx.y, b = blockIdx.z, kv = a.kv_batch == 1 ? 0 : b;
    int stride = key_stride(a.d), width = a.heads * a.d, terms = 2 * a.window + 1;
    float* keys = (float*)shared4;                          // [KEYS, stride]
    float* values = IN_TURN ? keys : keys + KEYS * stride;  // [KEYS, stride]
    float* query = values + KEYS * stride + warp * stride;  // [WARPS, stride]
    float* weights = values + (KEYS + WARPS) * stride + warp * KEYS;         // [WARPS, KEYS]
    float* rel_keys = values + (KEYS + WARPS) * stride + WARPS * KEYS;       // [terms, stride]
    float* rel_values = rel_keys + terms * stride;                           // [terms, stride]
    float* relative = rel_values + terms * stride + warp * (terms + 3);  // [WARPS, terms + 3]
    if (a.rel_key) {
        copy_rows(rel_keys, stride, a.rel_key, a.d, a.d, terms, terms);
        copy_rows(rel_values, stride, a.rel_value, a.d, a.d, terms, terms);
    }
    wait_for_previous();
    let_next_start();

    int len = a.lens ? min(max(a.lens[kv], 0), a.tk) : a.tk;
    int shift = a.shift, start_of_stream = 0;
    if (a.first && a.stream) start_of_stream = max(shift - a.first[b], 0);
    else if (a.first) shift = min(max(a.first[b], 0), a.tk - a.tq);
    // End of the keys that any query of this block sees.
    int end = a.causal ? min(len, min((int)(blockIdx.x + 1) * WARPS, a.tq) + shift) : len;
    // Begin of these keys.
    int begin = max(a.seen ? (int)blockIdx.x * WARPS + shift + 1 - a.seen : 0, start_of_stream);
    int channel = head / a.group * a.d;
    // Scores of others are not used, and values are read by four.
    auto read_at = [&](int start) { return min(KEYS, (end - start + 3) / 4 * 4); };
    copy_keys(keys, stride, a.k, a, kv, channel, begin, read_at(begin), end);
    if (!IN_TURN) copy_keys(values, stride, a.v, a, kv, channel, begin, read_at(begin), end);

    // Query of this warp, rotated and scaled.
    int i = blockIdx.x * WARPS + warp, position = i + shift, t = min(i, a.tq - 1);
    const float* q = a.q + ((size_t)b * a.tq + t) * width + head * a.d;
    float x[PER], other[PER], cosine[PER], sine[PER];
#pragma unroll
    for (int p = 0; p < PER; p++) {
        int e = lane + 32 * p, half = a.d / 2;
        x[p] = e < a.d ? q[e] : 0.0f;
        if (a.table && e < a.d) {
            const float* table = a.table + ((size_t)(b % a.tables) * 2 * a.tq + t) * half + e % half;
            other[p] = e < half ? -q[e + half] : q[e - half];
            cosine[p] = table[0], sine[p] = table[(size_t)a.tq * half];
        }
    }
#pragma unroll
    for (int p = 0; p < PER; p++) {
        int e = lane + 32 * p;
        if (a.table) x[p] = x[p] * cosine[p] + other[p] * sine[p];
        if (e < stride) query[e] = e < a.d ? a.scale * x[p] : 0.0f;
    }
    if (PER * 32 < stride && lane < stride - PER * 32) query[PER * 32 + lane] = 0.0f;

    float largest = -INFINITY, total = 0.0f, acc[PER];
#pragma unroll
    for (int e = 0; e < PER; e++) acc[e] = 0.0f;
    for (int start = begin; start < end; start += KEYS) {
        if (start > begin) {
            __syncthreads();
            copy_keys(keys, stride, a.k, a, kv, channel, start, read_at(start), end);
            if (!IN_TURN) copy_keys(values, stride, a.v, a, kv, channel, start, read_at(start), end);
        }
        finish_copies();
        __syncthreads();
        if (start == begin && a.rel_key) {
            for (int o = lane; o < terms; o += 32) {
                float sum = 0.0f;
#pragma unroll 4
                for (int e = 0; e < a.d; e += 4) {
                    float4 x = *(const float4*)(query + e), y = *(const float4*)(rel_keys + o * stride + e);
                    sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
                }
                relative[o] = sum;
            }
            __syncwarp();
        }

        float score[KEYS / 32];
#pragma unroll
        for (int j = 0; j < KEYS / 32; j++) score[j] = 0.0f;
#pragma unroll 4
        for (int e = 0; e < a.d; e += 4) {
            float4 x = *(const float4*)(query + e);
#pragma unroll
            for (int j = 0; j < KEYS / 32; j++) {
                float4 y = *(const float4*)(keys + (lane + 32 * j) * stride + e);
                score[j] += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
            }
        }
        int last = a.causal ? min(end, position + 1) : end, first = a.seen ? position + 1 - a.seen : 0;
        float now = largest;
        const float* bias = a.bias ? a.bias + (((size_t)b * a.heads + head) * a.tq + t) * a.tk : 0;
#pragma unroll
        for (int j = 0; j < KEYS / 32; j++) {
            int key = start + lane + 32 * j, o = key - position + a.window;
            if (a.rel_key && o >= 0 && o < terms) score[j] += relative[o];
            if (bias && key < end) score[j] += bias[key];
            if (key >= last || key < first) score[j] = -INFINITY;
            now = fmaxf(now, score[j]);
        }
        now = warp_max(now);
        // If no key was seen before, there is nothing to rescale; this also avoids ∞ − ∞.
        float old = now == -INFINITY ? 1.0f : expf(largest - now), sum = 0.0f;
#pragma unroll
        for (int j = 0; j < KEYS / 32; j++) {
            float p = score[j] == -INFINITY ? 0.0f : expf(score[j] - now);
            sum += p;
            weights[lane + 32 * j] = p;
        }
        total = total * old + warp_sum(sum);
        largest = now;
#pragma unroll
        for (int e = 0; e < PER; e++) acc[e] *= old;
        __syncwarp();
        if (IN_TURN) {
            __syncthreads();
            copy_keys(values, stride, a.v, a, kv, channel, start, read_at(start), end);
            finish_copies();
            __syncthreads();
        }
        int count = min(KEYS, end - start);
#pragma unroll 4
        for (int j = 0; j < count; j += 4) {
            float4 p = *(const float4*)(weights + j);
#pragma unroll
            for (int e = 0; e < PER; e++) {
                if (lane + 32 * e >= a.d) continue;
                const float* y = values + j * stride + lane + 32 * e;
                acc[e] += p.x * y[0] + p.y * y[stride] + p.z * y[2 * stride] + p.w * y[3 * stride];
            }
        }
        if (a.rel_key) {
            int from = max(start, position - a.window), to = min(start + count, position + a.window + 1);
            for (int key = from; key < to; key++) {
                const float* term = rel_values + (key - position + a.window) * stride;
                float p = weights[key - start];
#pragma unroll
                for (int e = 0; e < PER; e++)
                    if (lane + 32 * e < a.d) acc[e] += p * term[lane + 32 * e];
            }
        }
    }
    finish_copies();
    if (i >= a.tq) return;
    float* out = a.out + ((size_t)b * a.tq + i) * width + head * a.d;
    float factor = total > 0.0f ? 1.0f / total : 0.0f;
#pragma unroll
    for (int e = 0; e < PER; e++)
        if (lane + 32 * e < a.d) out[lane + 32 * e] = acc[e] * factor;
}

#define KERNEL(NAME, PER, KEYS) \
    extern "C" __global__ void __launch_bounds__(128, 2) NAME(const Args a) { attention<PER, KEYS>(a); }

KERNEL(attention_32_64, 1, 64)
KERNEL(attention_32_128, 1, 128)
KERNEL(attention_64_64, 2, 64)
KERNEL(attention_64_96, 2, 96)
KERNEL(attention_128_32, 4, 32)
KERNEL(attention_128_64, 4, 64)
KERNEL(attention_256_32, 8, 32)
