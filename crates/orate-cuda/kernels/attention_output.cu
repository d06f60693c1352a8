// Attention of one query per batch row over a short cache, as in `attention_decode.cu`, with the matmul of
// its result that adds a residual, on Hopper:
//
//   sum[r, n] = residual[r, n] + Σ_k attention[r, k] · w[k, n]
//
// A cluster has ROWS rows and CHANNELS_OF_CLUSTER channels. Each of its blocks has one head of keys and
// values with GROUP heads of queries, and multiplies their result by its part of K. So every cluster computes
// the attention of its rows again, which takes less than the launch that it saves. Sums of blocks are added
// in order.
//
// A warp has a row. Keys and values are bf16, as w is; they are on their way before queries are there.
// Queries and weights of keys are two numbers of 16 bits, so that products with stored keys and values are
// nearly exact; the sums of both are in neighboring columns of a tile.

#if __CUDA_ARCH__ == 900

#define GROUP 2
#define WIDTH 128
#define ROWS 8
#define KEYS 16
#define CHANNELS 32
// Between rows of queries and of results, in elements: neighboring rows are in other banks.
#define APART (WIDTH + 8)
#define RESULT_APART (GROUP * WIDTH + 8)

// 16 bytes of row `key` of a tile.
DEVICE u32 chunk_of(u32 tile, int key, int chunk) { return tile + (key * 16 + (chunk ^ (key & 7))) * 16; }

DEVICE void copy_chunk(u32 to, const void* from, bool is) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(is ? 16 : 0) : "memory");
}

// Left operand of 16 rows by 16 columns in shared memory, and of its transpose.
DEVICE uint4 left_operand(u32 at) {
    uint4 x;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
}

DEVICE uint4 left_transposed(u32 at) {
    uint4 x;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
}

// Two numbers, and what rounding them to 16 bits leaves.
DEVICE u32 rest_of(float x, float y, u32 rounded) {
    return halves(x - __uint_as_float(rounded << 16), y - __uint_as_float(rounded & 0xffff0000u));
}

// Four channels of a new head.
template <int PART>
DEVICE float4 new_four(const Args& a, int b, int head) {
    return ((const float4*)(a.x[PART] + (size_t)b * a.stride[PART] + head * WIDTH))[threadIdx.x % 32];
}

template <int CHANNELS_OF_CLUSTER>
DEVICE void attend_and_multiply(const Args& a) {
    // Warps that share K, and their blocks of 16 of K.
    constexpr int SIDES = 8 * CHANNELS / CHANNELS_OF_CLUSTER, STEPS = GROUP * WIDTH / 16 / SIDES;
    constexpr int SUM_APART = CHANNELS_OF_CLUSTER + 4, FOURS = CHANNELS_OF_CLUSTER / 4;
    extern __shared__ float4 shared4[];
    char* shared = (char*)shared4;
    u16* queries = (u16*)(shared + ROWS * 2 * KEYS * WIDTH * 2);  // [ROWS, 2 · GROUP, APART]
    u16* results = queries + ROWS * 2 * GROUP * APART;            // [ROWS, RESULT_APART]
    float* sums = (float*)(results + ROWS * RESULT_APART);        // [SIDES, ROWS, SUM_APART]
    float* inbox = sums + SIDES * ROWS * SUM_APART;               // [ROWS, CHANNELS_OF_CLUSTER]
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4, eighth = lane / 4;
    int head = cluster_rank(), kv_heads = cluster_blocks();
    int b = blockIdx.y * ROWS + warp;
    bool is_row = b < a.rows;
    b = min(b, a.rows - 1);

    // This warp's channels, and its part of K.
    int side = warp / (CHANNELS_OF_CLUSTER / CHANNELS), of_cluster = warp % (CHANNELS_OF_CLUSTER / CHANNELS);
    int channels = blockIdx.x * (CHANNELS_OF_CLUSTER / CHANNELS) + of_cluster;
    int k_blocks = kv_heads * (GROUP * WIDTH / 16), first = head * (GROUP * WIDTH / 16) + side * STEPS;
    const uint4* from = a.w + ((size_t)channels * k_blocks + first) * 64 + lane;
    uint4 w[STEPS][2];
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) w[i][j] = from[(i * 2 + j) * 32];
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 weight[2] = {zero, zero};
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (a.weight[i]) weight[i] = ((const float4*)a.weight[i])[lane];
    // The sums of other blocks arrive in one phase of a barrier.
    u32 barrier = (u32)__cvta_generic_to_shared(inbox + ROWS * CHANNELS_OF_CLUSTER);
    if (threadIdx.x == 0) {
        bring_near(a.next, a.next_bytes);
        expect_arrivals(barrier, 1);
        announce(barrier, ROWS * CHANNELS_OF_CLUSTER * 4);
    }
    cluster_arrive();
    if (!a.early) wait_for_previous();

    int end = min(max(a.first ? (int)near_word(a.first + b) : a.at, 0), a.keys - 1) + 1;
    size_t bytes = (size_t)kv_heads * WIDTH * 2, begin = (size_t)(a.kv_batch == 1 ? 0 : b) * a.keys * bytes;
    char *key_rows = a.k + begin + head * WIDTH * 2, *value_rows = a.v + begin + head * WIDTH * 2;
    u32 keys = (u32)__cvta_generic_to_shared(shared) + warp * 2 * KEYS * WIDTH * 2;
    u32 values = keys + KEYS * WIDTH * 2;
#pragma unroll
    for (int i = 0; i < KEYS; i += 2) {
        int key = i + lane / 16, chunk = lane % 16;
        bool is = is_row && key < end - 1;
        size_t at = (size_t)(is ? key : 0) * bytes + chunk * 16;
        copy_chunk(chunk_of(keys, key, chunk), key_rows + at, is);
        copy_chunk(chunk_of(values, key, chunk), value_rows + at, is);
    }
    Angle angle[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float* at = a.table[i] ? a.table[i] + (size_t)(b % a.tables[i]) * WIDTH + lane % 16 * 4 : 0;
        angle[i] = at ? Angle{near_four(at), near_four(at + WIDTH / 2)} : Angle{zero, zero};
    }
    // What this thread adds at the end, to one row of the cluster for each block.
    int row = blockIdx.y * ROWS + head, n = blockIdx.x * CHANNELS_OF_CLUSTER + 4 * threadIdx.x;
    bool stores = threadIdx.x < FOURS && row < a.rows;
    float4 residual = stores ? near_four(a.residual + (size_t)row * a.n + n) : zero;
    if (a.early) wait_for_previous();
    let_next_start();

    // Queries, then the key.
    float4 heads[GROUP + 1], new_v = new_four<2>(a, b, head);
#pragma unroll
    for (int g = 0; g < GROUP; g++) heads[g] = new_four<0>(a, b, head * GROUP + g);
    heads[GROUP] = new_four<1>(a, b, head);
    float squares[GROUP + 1];
#pragma unroll
    for (int g = 0; g <= GROUP; g++) {
        float4 v = heads[g];
        squares[g] = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
#pragma unroll
        for (int g = 0; g <= GROUP; g++) squares[g] += __shfl_xor_sync(0xffffffffu, squares[g], step);
#pragma unroll
    for (int g = 0; g <= GROUP; g++) {
        int of = g / GROUP;
        float4 by = weight[of];
        if (a.weight[of]) {
            float4 v = scaled(heads[g], rsqrtf(squares[g] / WIDTH + a.eps[of]));
            heads[g] = make_float4(v.x * by.x, v.y * by.y, v.z * by.z, v.w * by.w);
        }
        if (a.table[of]) heads[g] = rotated_by(heads[g], angle[of], WIDTH);
    }
    float4 new_k = heads[GROUP];
    u16* own = queries + warp * 2 * GROUP * APART;
    const float by = a.scale * 1.44269504f;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        float4 v = scaled(heads[g], by);
        uint2 high = make_uint2(halves(v.x, v.y), halves(v.z, v.w));
        *(uint2*)(own + 2 * g * APART + 4 * lane) = high;
        *(uint2*)(own + (2 * g + 1) * APART + 4 * lane) =
            make_uint2(rest_of(v.x, v.y, high.x), rest_of(v.z, v.w, high.y));
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    {
        // The first cluster of a row also stores the new key and value.
        uint2 k = make_uint2(halves(new_k.x, new_k.y), halves(new_k.z, new_k.w));
        uint2 v = make_uint2(halves(new_v.x, new_v.y), halves(new_v.z, new_v.w));
        u32 at = chunk_of(0, end - 1, lane / 2) + lane % 2 * 8;
        char* tile = shared + warp * 2 * KEYS * WIDTH * 2;
        *(uint2*)(tile + at) = k, *(uint2*)(tile + KEYS * WIDTH * 2 + at) = v;
        if (is_row && blockIdx.x == 0) {
            *(uint2*)(key_rows + (end - 1) * bytes + 8 * lane) = k;
            *(uint2*)(value_rows + (end - 1) * bytes + 8 * lane) = v;
        }
    }
    __syncwarp();

    // Scores: keys by the columns of queries. Columns past the fourth repeat the others.
    float score[2][4] = {};
    const u32* column = (const u32*)(own + eighth % 4 * APART) + q;
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
        uint4 x = left_operand(chunk_of(keys, lane % 16, 2 * i + lane / 16));
        mma_half(score[i % 2], x, column[8 * i], column[8 * i + 4]);
    }
    // Of head q % 2: keys `eighth` and `eighth` + 8.
    float p[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        p[i] = score[0][2 * i] + score[0][2 * i + 1] + (score[1][2 * i] + score[1][2 * i + 1]);
    if (eighth >= end) p[0] = -INFINITY;
    if (eighth + 8 >= end) p[1] = -INFINITY;
    float largest = fmaxf(p[0], p[1]);
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    p[0] = power_of_two(p[0] - largest), p[1] = power_of_two(p[1] - largest);
    float total = p[0] + p[1];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    float inverse = 1.0f / total;
    p[0] *= inverse, p[1] *= inverse;
    // Right operand of the second product: keys by the same columns.
    u32 b0, b1;
    {
        int thread = 8 * q + eighth / 2 % 2;
        float x = __shfl_sync(0xffffffffu, p[0], thread), y = __shfl_sync(0xffffffffu, p[0], thread + 4);
        float z = __shfl_sync(0xffffffffu, p[1], thread), t = __shfl_sync(0xffffffffu, p[1], thread + 4);
        b0 = halves(x, y), b1 = halves(z, t);
        if (eighth % 2) b0 = rest_of(x, y, b0), b1 = rest_of(z, t, b1);
    }
    u16* result = results + warp * RESULT_APART + q % 2 * WIDTH + eighth;
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
        float y[4] = {};
        uint4 x = left_transposed(chunk_of(values, lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2));
        mma_half(y, x, b0, b1);
        u32 both = halves(y[0] + y[1], y[2] + y[3]);
        if (q < 2) result[16 * i] = (u16)both, result[16 * i + 8] = (u16)(both >> 16);
    }
    __syncthreads();

    float acc[2][2][4] = {};
    const u16* x = results + eighth * RESULT_APART + side * STEPS * 16 + 4 * q;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        uint2 pair = *(const uint2*)(x + 16 * i);
        mma_half(acc[i % 2][0], w[i][0], pair.x, pair.y);
        mma_half(acc[i % 2][1], w[i][1], pair.x, pair.y);
    }
    float* sum = sums + (side * ROWS + 2 * q) * SUM_APART + of_cluster * CHANNELS + eighth;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i % 2 * SUM_APART + 16 * j + i / 2 * 8] = acc[0][j][i] + acc[1][j][i];
    __syncthreads();
    cluster_wait();
    for (int i = threadIdx.x; i < ROWS * FOURS; i += blockDim.x) {
        int r = i / FOURS, four = i % FOURS;
        float4 all = *(const float4*)(sums + r * SUM_APART + 4 * four);
#pragma unroll
        for (int j = 1; j < SIDES; j++)
            all = added(all, 1.0f, *(const float4*)(sums + (j * ROWS + r) * SUM_APART + 4 * four));
        send(inbox + head * CHANNELS_OF_CLUSTER + 4 * four, barrier, r, all);
    }
    wait_for_phase(barrier, 0);
    if (!stores) return;
    float4 all = *(const float4*)(inbox + 4 * threadIdx.x);
#pragma unroll
    for (int i = 1; i < ROWS; i++)
        all = added(all, 1.0f, *(const float4*)(inbox + i * CHANNELS_OF_CLUSTER + 4 * threadIdx.x));
    *(float4*)(a.sum + (size_t)row * a.n + n) = added(all, 1.0f, residual);
}

#define KERNEL(NAME, CHANNELS_OF_CLUSTER) \
    extern "C" __global__ void __launch_bounds__(256, 2) NAME(const Args a) { \
        attend_and_multiply<CHANNELS_OF_CLUSTER>(a); \
    }

KERNEL(attention_output_64, 64)
KERNEL(attention_output_128, 128)

#endif
