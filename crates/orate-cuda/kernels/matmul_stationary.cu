// Weight-stationary matmuls with K = 256 on Hopper, as defined in `matmul.cu`. x and the results are stored
// in 16 bits. The bias is optional, the activation is GELU or none.
//
// With so few steps of K, blocks of `matmul_boxes.cu` spend most of their time on their start, first copies
// and stores. Here a block loops over tiles of rows and keeps its weights in registers, 64 channels in each
// of two warpgroups. One thread requests the rows of later tiles. While a tile is multiplied, the results of
// the previous one are rounded, written to shared memory and stored by the hardware.

#if __CUDA_ARCH__ == 900

// Steps of 16 of K, rows of a tile, and tiles in shared memory.
#define KEPT_STEPS 16
#define TILE 128
#define TILES_AHEAD 3

// A box of x is a piece of K of a tile. `out` is [parts, rows, width]; a box of it is the 64 channels of a
// warpgroup.
struct StationaryArgs {
    Tensor x, out;
    Args a;
};

// Stores a box from shared memory, clipped to the tensor.
DEVICE void store_box(const Tensor& to, u32 from, int first, int second, int third) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 :: "l"(&to), "r"(first), "r"(second), "r"(third), "r"(from) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Transposes four matrices of 8 channels by 8 rows. Each lane has the address of a row of 16 bytes.
DEVICE void store_transposed(u32 to, const u32 (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// Loads the weights of 16 channels, whose 32 begin at `channels`, all STEPS of 16 of K: two of every eight,
// as in `matmul_boxes.cu`.
template <int STEPS>
DEVICE void load_kept(uint4 (&w)[STEPS], const uint4* channels, int half) {
    int lane = threadIdx.x % 32;
    const char* from =
        (const char*)(channels + half * 32) + (lane / 4 * 4 + lane % 4 / 2) * 16 + lane % 2 * 8;
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        uint2 one = *(const uint2*)(from + 1024 * j), two = *(const uint2*)(from + 1024 * j + 32);
        w[j] = make_uint4(one.x, one.y, two.x, two.y);
    }
}

// Starts the products of a tile, whose rows are in pieces of K, `of_piece` bytes each.
template <int STEPS, int COUNT>
DEVICE void multiply_kept(float (&acc)[COUNT][4], const uint4 (&w)[STEPS], u64 rows, int of_piece) {
    keep(acc);
    start_products();
#pragma unroll
    for (int j = 0; j < STEPS; j++)
        multiply(acc, w[j], rows + j / (PIECE / 16) * (of_piece / 16) + 2 * (j % (PIECE / 16)));
    end_products();
}

template <int ACTIVATION>
DEVICE void stationary(const StationaryArgs& all) {
    extern __shared__ float4 shared4[];
    __shared__ u64 barriers[2][TILES_AHEAD];
    const Args& a = all.a;
    constexpr int PIECES = KEPT_STEPS * 16 / PIECE, OF_PIECE = 2 * PIECE * TILE, STAGE = PIECES * OF_PIECE;
    constexpr int BLOCK_WARPS = 8, OF_RESULTS = 2 * 64 * TILE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4;
    char* shared = lines_in(shared4);
    u32 begin = (u32)__cvta_generic_to_shared(shared), full = (u32)__cvta_generic_to_shared(barriers);
    u32 empty = full + 8 * TILES_AHEAD;
    int tiles = (a.rows + TILE - 1) / TILE, step = gridDim.y;
    // Tiles of this block, at least one.
    int count = (tiles - (int)blockIdx.y + step - 1) / step;
    auto row_of = [&](int i) { return ((int)blockIdx.y + i * step) * TILE; };

    bool copies = threadIdx.x == 0;
    if (copies) {
        for (int i = 0; i < TILES_AHEAD; i++)
            expect_arrivals(full + 8 * i, 1), expect_arrivals(empty + 8 * i, BLOCK_WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        bring_near(a.next, a.next_bytes);
    }
    int sixteen = blockIdx.x * BLOCK_WARPS + warp;
    uint4 w[KEPT_STEPS];
    load_kept(w, a.w + (size_t)(sixteen / 2) * KEPT_STEPS * 64, sixteen % 2);
    int channel = sixteen * 16 + lane / 4;
    float bias[2] = {a.bias ? a.bias[channel] : 0.0f, a.bias ? a.bias[channel + 8] : 0.0f};
    __syncthreads();
    wait_for_previous();

    auto bring = [&](int i) {
        u32 at = i % TILES_AHEAD, to = begin + at * STAGE, barrier = full + 8 * at;
        announce(barrier, STAGE);
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
            copy_box(to + piece * OF_PIECE, all.x, piece * PIECE, row_of(i), 0, barrier);
    };
    if (copies)
        for (int i = 0; i < min(count, TILES_AHEAD); i++) bring(i);

    u64 first = right_operand(shared);
    auto multiply_tile = [&](float (&acc)[TILE / 8][4], int i) {
        if (i < count) wait_for_phase(full + 8 * (i % TILES_AHEAD), i / TILES_AHEAD % 2);
        u64 rows = first + i % TILES_AHEAD * (STAGE / 16);
#pragma unroll
        for (int j = 0; j < TILE / 8; j++) acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0.0f;
        multiply_kept(acc, w, rows, OF_PIECE);
    };

    // Results of this warpgroup, a line for each row.
    u32 results = begin + TILES_AHEAD * STAGE + group * OF_RESULTS;
    u32 own = results + lane / 16 * 1024 + chunk_at(lane % 8, warp % 4 * 2 + lane / 8 % 2);
    int width = a.first, first_channel = (blockIdx.x * 2 + group) * 64;
    bool stores = threadIdx.x % 128 == 0;
    auto store_tile = [&](float (&acc)[TILE / 8][4], int i) {
        // Waits for the store of the previous tile.
        if (stores) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        group_barrier(group, 128);
#pragma unroll
        for (int j = 0; j < TILE / 8; j += 2) {
            u32 x[4];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                float y[4];
#pragma unroll
                for (int c = 0; c < 4; c++) y[c] = activated<ACTIVATION>(acc[j + n][c] + bias[c / 2], 0.0f);
                x[2 * n] = halves(y[0], y[1]), x[2 * n + 1] = halves(y[2], y[3]);
            }
            store_transposed(own + 1024 * j, x);
        }
        publish();
        group_barrier(group, 128);
        if (stores) store_box(all.out, results, first_channel % width, row_of(i), first_channel / width);
    };

    // Stores the results of tile i while the next tile is multiplied. There is no branch around the matmul,
    // since the compiler serializes those in flight at a branch: after the last tile its result is ignored.
    auto next_tile = [&](float (&now)[TILE / 8][4], float (&next)[TILE / 8][4], int i) {
        multiply_tile(next, i + 1);
        // Tile i is multiplied, so its place is free.
        if (copies && i + TILES_AHEAD < count) {
            wait_for_phase(empty + 8 * (i % TILES_AHEAD), i / TILES_AHEAD % 2);
            bring(i + TILES_AHEAD);
        }
        store_tile(now, i);
        wait_for_products<0>();
        keep(next);
        if (lane == 0) arrive(empty + 8 * ((i + 1) % TILES_AHEAD));
    };
    float even[TILE / 8][4], odd[TILE / 8][4];
    multiply_tile(even, 0);
    wait_for_products<0>();
    keep(even);
    if (lane == 0) arrive(empty);
    for (int i = 0;;) {
        next_tile(even, odd, i);
        if (++i == count) break;
        next_tile(odd, even, i);
        if (++i == count) break;
    }
    let_next_start();
    if (stores) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#undef KERNEL
#define KERNEL(NAME, ACTIVATION) \
    extern "C" __global__ void __launch_bounds__(256, 1) NAME(const __grid_constant__ StationaryArgs a) { \
        stationary<ACTIVATION>(a); \
    }

KERNEL(matmul_warpgroup_stationary, NONE)
KERNEL(matmul_warpgroup_stationary_gelu, GELU)

#endif
