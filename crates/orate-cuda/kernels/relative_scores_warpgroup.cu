// The function of `relative_scores.cu` on Hopper, where q is stored in 16 bits and heads are of 64; p is
// rounded alike.
//
// A block has 64 queries of a head and some of the keys, and goes through p in tiles of 64 rows, which
// `wgmma.cuh` multiplies. Query i and key j need row T − 1 − i + j of p: of the keys of one tile, 64 queries
// need two tiles of p. So each warp keeps the products of two tiles for its 16 queries in shared memory, as a
// ring of 128 columns, and reads them shifted, a row for each query.

#if __CUDA_ARCH__ == 900

struct Args {
    const float* q;
    const float* p;
    float* out;
    int heads, d, time;
    float scale;
};

#define D 64
#define SIDE 64
#define THREADS 128
#define TILE (2 * SIDE * D)
// Floats of a row of products, and some to spare, so that rows are in banks of their own.
#define SPAN (2 * SIDE + 4)

extern "C" __global__ void __launch_bounds__(THREADS) relative_scores_warpgroup_64(const Args a) {
    extern __shared__ float4 shared4[];
    char* lines = lines_in(shared4);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float* products = (float*)(lines + 2 * TILE) + warp * 16 * SPAN;
    int b = blockIdx.y / a.heads, head = blockIdx.y - b * a.heads, width = a.heads * D;
    int time = a.time, first_query = blockIdx.x * SIDE, i = first_query + warp * 16 + g;
    // Row of p for the last query and the first key.
    int first = time - 1 - (first_query + SIDE - 1), tiles = (time + SIDE - 1) / SIDE;
    int begin = tiles * blockIdx.z / gridDim.z, end = tiles * (blockIdx.z + 1) / gridDim.z;
    // Part of a tile of p: four channels of every eighth row.
    float4 next[SIDE / 8];
    auto load = [&](int tile) {
        int channel = head * D + threadIdx.x % 16 * 4;
#pragma unroll
        for (int j = 0; j < SIDE / 8; j++) {
            int row = first + tile * SIDE + threadIdx.x / 16 + 8 * j;
            bool is = row >= 0 && row < 2 * time - 1;
            next[j] = is ? *(const float4*)(a.p + (size_t)row * width + channel)
                         : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    };
    wait_for_previous();
    load(begin);
    uint4 q[D / 16];
    {
        const u16* from = (const u16*)a.q + head * D + 2 * t;
        const u32* near = (const u32*)(from + (size_t)(b * time + min(i, time - 1)) * width);
        const u32* far = (const u32*)(from + (size_t)(b * time + min(i + 8, time - 1)) * width);
#pragma unroll
        for (int s = 0; s < D / 16; s++)
            q[s] = make_uint4(near[8 * s], far[8 * s], near[8 * s + 4], far[8 * s + 4]);
    }
    for (int tile = begin; tile <= end; tile++) {
        char* to = lines + tile % 2 * TILE;
        int chunk = threadIdx.x % 16;
#pragma unroll
        for (int j = 0; j < SIDE / 8; j++)
            *(uint2*)(to + chunk_at(threadIdx.x / 16 + 8 * j, chunk / 2) + chunk % 2 * 8) =
                make_uint2(halves(next[j].x, next[j].y), halves(next[j].z, next[j].w));
        publish();
        __syncthreads();
        if (tile < end) load(tile + 1);
        float scores[SIDE / 8][4];
        u64 right = right_operand(to);
        keep(scores), keep(q);
        start_products();
        multiply_64<SET, ROWS_OF_K>(scores, q[0], right);
#pragma unroll
        for (int s = 1; s < D / 16; s++) multiply_64<ADD, ROWS_OF_K>(scores, q[s], right + 2 * s);
        end_products();
        wait_for_products<0>();
        keep(scores);
        float* own = products + g * SPAN + tile % 2 * SIDE + 2 * t;
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++) {
            *(float2*)(own + 8 * n) = make_float2(a.scale * scores[n][0], a.scale * scores[n][1]);
            *(float2*)(own + 8 * SPAN + 8 * n) = make_float2(a.scale * scores[n][2], a.scale * scores[n][3]);
        }
        __syncwarp();
        // The keys of the tile before.
        int first_key = (tile - 1) * SIDE, rows = min(16, time - first_query - 16 * warp);
        for (int r = 0; tile > begin && r < rows; r++) {
            int column = first_key + SIDE - 1 - (16 * warp + r) + lane;
            size_t at = ((size_t)blockIdx.y * time + first_query + 16 * warp + r) * time + first_key + lane;
#pragma unroll
            for (int half = 0; half < SIDE; half += 32) {
                float y = products[r * SPAN + (column + half) % (2 * SIDE)];
                if (first_key + lane + half < time) a.out[at + half] = y;
            }
        }
        __syncwarp();
    }
    let_next_start();
}

#endif
