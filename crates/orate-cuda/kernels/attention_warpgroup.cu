// Attention of many queries on Hopper where q, k and v are stored in 16 bits: the function of `attention.cu`
// with lengths and, if BIASED, a bias, and without other masks, relative terms and rotation. Heads are of 64.
//
// A block has 64 queries of a head, 16 for each of its four warps, and goes through the keys in tiles. Values
// of a tile are multiplied while the softmax of the next one is computed; keys of two more tiles are on their
// way, and the values before them. A running maximum and sum replace the matrix of scores (online softmax).
// Thread 4g + t of a warp has queries g and g + 8, and of each 8 keys or channels 2t and 2t + 1.
//
// Shared memory has rings of keys and of values, a line of `wgmma.cuh` for each key.

#if __CUDA_ARCH__ == 900

#define D 64
#define KEYS 64
#define STAGES 3
#define TILE (2 * KEYS * D)
#define THREADS 128

// Ends a group of copies.
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most COUNT groups are on their way.
template <int COUNT>
DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(COUNT) : "memory");
}

template <bool BIASED>
DEVICE void attend(const Args& a) {
    extern __shared__ float4 shared4[];
    char *keys = lines_in(shared4), *values = keys + STAGES * TILE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int head = blockIdx.y, b = blockIdx.z, kv = a.kv_batch == 1 ? 0 : b;
    int width = a.heads * D, kv_width = width / a.group, i = blockIdx.x * 64 + warp * 16 + g;
    wait_for_previous();

    int len = a.lens ? min(max(a.lens[kv], 0), a.tk) : a.tk, tiles = (len + KEYS - 1) / KEYS;
    // Operands have less than 2³⁰ elements.
    int first_key = kv * a.tk * kv_width + head / a.group * D;
    // Starts to copy a tile; keys that are missing are zeros.
    auto bring_to = [&](char* ring, const float* from, int tile) {
        if (tile >= tiles) return;
        int chunk = threadIdx.x % (D / 8), row = threadIdx.x / (D / 8);
        char* to = ring + tile % STAGES * TILE + chunk_at(row, chunk);
#pragma unroll
        for (int j = 0; j < KEYS; j += THREADS / (D / 8)) {
            int key = tile * KEYS + row + j;
            bool is = key < len;
            int at = first_key + (is ? key * kv_width + chunk * 8 : 0);
            start_copy((float*)(to + 128 * j), (const float*)((const u16*)from + at), is);
        }
    };
    // Keys of a tile, and values of the one before.
    auto bring = [&](int tile) {
        bring_to(keys, a.k, tile);
        if (tile > 0) bring_to(values, a.v, tile - 1);
        end_copies();
    };
    bring(0), bring(1);

    uint4 q[D / 16];
    {
        const u16* from = (const u16*)a.q + head * D + 2 * t;
        const u32* near = (const u32*)(from + (b * a.tq + min(i, a.tq - 1)) * width);
        const u32* far = (const u32*)(from + (b * a.tq + min(i + 8, a.tq - 1)) * width);
#pragma unroll
        for (int s = 0; s < D / 16; s++)
            q[s] = make_uint4(near[8 * s], far[8 * s], near[8 * s + 4], far[8 * s + 4]);
    }

    const float scale = (BIASED ? 1.0f : a.scale) * 1.4426950408889634f; // log₂ e
    // Of queries g and g + 8; the sum is that of this thread's keys. What came before is scaled by `old`.
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {}, old[2];
    float acc[D / 8][4] = {}, scores[KEYS / 8][4];
    uint4 weights[KEYS / 16];
    // What is added to the scores of a tile, in their order.
    float added[BIASED ? KEYS / 8 : 1][4];
    auto load_bias = [&](int tile) {
        if (!BIASED) return;
        const float* from = a.bias + (size_t)(b * a.heads + head) * a.tq * a.tk;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float* row = from + (size_t)min(i + 8 * r, a.tq - 1) * a.tk;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    added[BIASED ? j : 0][2 * r + c] = row[min(tile * KEYS + 8 * j + 2 * t + c, a.tk - 1)];
        }
    };
    auto multiply_keys = [&](int tile) {
        u64 right = right_operand(keys + tile % STAGES * TILE);
        keep(scores), keep(q);
        start_products();
        multiply_64<SET, ROWS_OF_K>(scores, q[0], right);
#pragma unroll
        for (int s = 1; s < D / 16; s++) multiply_64<ADD, ROWS_OF_K>(scores, q[s], right + 2 * s);
        end_products();
    };
    auto multiply_values = [&](int tile) {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            acc[n][0] *= old[0], acc[n][1] *= old[0], acc[n][2] *= old[1], acc[n][3] *= old[1];
        u64 right = right_operand(values + tile % STAGES * TILE);
        keep(acc), keep(weights);
        start_products();
#pragma unroll
        for (int s = 0; s < KEYS / 16; s++)
            multiply_64<ADD, COLUMNS_OF_K>(acc, weights[s], right + 128 * s);
        end_products();
    };
    auto softmax = [&](int tile) {
        if (BIASED) {
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    scores[j][c] = fmaf(scores[j][c], a.scale, added[BIASED ? j : 0][c]);
        }
        if ((tile + 1) * KEYS > len) {
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    if (tile * KEYS + 8 * j + 2 * t + c % 2 >= len) scores[j][c] = -INFINITY;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = -INFINITY;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
                most = fmaxf(most, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            most = fmaxf(largest[r], most * scale);
            // Any finite number avoids ∞ − ∞.
            float base = most == -INFINITY ? 0.0f : most, sum = 0.0f;
            old[r] = power_of_two(largest[r] - base);
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int c = 2 * r; c < 2 * r + 2; c++) {
                    scores[j][c] = power_of_two(fmaf(scores[j][c], scale, -base));
                    sum += scores[j][c];
                }
            total[r] = total[r] * old[r] + sum;
            largest[r] = most;
        }
    };
    auto round_scores = [&]() {
#pragma unroll
        for (int s = 0; s < KEYS / 16; s++) {
            const float(&y)[4] = scores[2 * s], (&z)[4] = scores[2 * s + 1];
            weights[s] =
                make_uint4(halves(y[0], y[1]), halves(y[2], y[3]), halves(z[0], z[1]), halves(z[2], z[3]));
        }
    };

    // What `bring(tile)` copies is there, and all warps are done with the tiles before the last.
    auto wait_for = [&](int tile) {
        wait_for_copies<1>();
        publish();
        __syncthreads();
        bring(tile + 2);
    };
    if (tiles > 0) {
        wait_for(0);
        multiply_keys(0);
        load_bias(0);
        wait_for_products<0>();
        keep(scores);
        softmax(0);
        round_scores();
        for (int tile = 1; tile < tiles; tile++) {
            wait_for(tile);
            multiply_keys(tile);
            multiply_values(tile - 1);
            load_bias(tile);
            wait_for_products<1>();
            keep(scores);
            softmax(tile);
            wait_for_products<0>();
            keep(acc), keep(weights);
            round_scores();
        }
        wait_for(tiles);
        multiply_values(tiles - 1);
        wait_for_products<0>();
        keep(acc);
    }
    let_next_start();

#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        if (i + 8 * r >= a.tq) continue;
        float factor = total[r] > 0.0f ? 1.0f / total[r] : 0.0f;
        int at = (b * a.tq + i + 8 * r) * width + head * D + 2 * t;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            float x = factor * acc[n][2 * r], y = factor * acc[n][2 * r + 1];
            store_as(a.type, a.out, at + 8 * n, make_float2(x, y));
        }
    }
}

#define KERNEL(NAME, BIASED) \
    extern "C" __global__ void __launch_bounds__(THREADS, 3) NAME(const Args a) { attend<BIASED>(a); }

KERNEL(attention_warpgroup_64, false)
KERNEL(attention_warpgroup_64_biased, true)

#endif
