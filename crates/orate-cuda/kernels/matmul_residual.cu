// Weight-stationary matmuls with a residual on Hopper, as defined in `matmul.cu`, of very many rows and small
// K: out = residual + x · w + bias in f32, unless it is null. If `norm` is not null, a Snake of the result is
// stored in `next`, in 16 bits.
//
// Memory bounds these: a block loops over tiles of rows and keeps its weights in registers, and one more warp
// requests rows of x and of the residual some tiles ahead. Results take the place of the residual in shared
// memory, from where the hardware stores them.

#if __CUDA_ARCH__ == 900

#undef TILE
#define TILE 64
// Tiles in shared memory at most.
#define MOST_TILES 4

// A box of x is a piece of K of a tile. Boxes of the residual and of `out` are 32 channels of a tile, those
// of `next` 64.
struct ResidualArgs {
    Tensor x, residual, out, next;
    Args a;
    int stages;
};

DEVICE float* float_at(char* lines, u32 line, u32 channel) {
    return (float*)(lines + chunk_at(line, channel / 4)) + channel % 4;
}

template <int STEPS>
DEVICE void add_to_residual(const ResidualArgs& all) {
    extern __shared__ float4 shared4[];
    __shared__ u64 barriers[2][MOST_TILES];
    const Args& a = all.a;
    constexpr int PIECES = (16 * STEPS + PIECE - 1) / PIECE, OF_PIECE = 2 * PIECE * TILE;
    constexpr int OF_X = PIECES * OF_PIECE;
    // Of 32 channels in f32, and of a warpgroup.
    constexpr int OF_PART = 4 * 32 * TILE, STAGE = OF_X + 4 * OF_PART, OF_NEXT = 2 * 64 * TILE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4, stages = all.stages;
    char* shared = lines_in(shared4);
    u32 begin = (u32)__cvta_generic_to_shared(shared), full = (u32)__cvta_generic_to_shared(barriers);
    u32 empty = full + 8 * MOST_TILES;
    int tiles = (a.rows + TILE - 1) / TILE, step = gridDim.y;
    int count = (tiles - (int)blockIdx.y + step - 1) / step;
    auto row_of = [&](int i) { return ((int)blockIdx.y + i * step) * TILE; };
    // Boxes of 32 channels that exist, of both warpgroups.
    int parts = min((a.n - (int)blockIdx.x * 128 + 31) / 32, 4);

    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) expect_arrivals(full + 8 * i, 1), expect_arrivals(empty + 8 * i, 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        bring_near(a.next, a.next_bytes);
    }
    __syncthreads();
    if (warp == 8) {
        wait_for_previous();
        if (lane > 0) return;
        for (int i = 0, at = 0, odd = 0; i < count; i++) {
            if (i >= stages) wait_for_phase(empty + 8 * at, odd ^ 1);
            u32 to = begin + at * STAGE, barrier = full + 8 * at;
            announce(barrier, OF_X + parts * OF_PART);
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++)
                copy_box(to + piece * OF_PIECE, all.x, piece * PIECE, row_of(i), 0, barrier);
            for (int part = 0; part < parts; part++)
                copy_box(to + OF_X + part * OF_PART, all.residual, blockIdx.x * 128 + part * 32, row_of(i), 0,
                         barrier);
            if (++at == stages) at = 0, odd ^= 1;
        }
        return;
    }
    // Where channels end, weights of others are multiplied.
    int sixteen = blockIdx.x * 8 + warp, channels = sixteen / 2;
    uint4 w[STEPS];
    load_kept(w, a.w + (size_t)(channels * CHANNELS < a.n ? channels : 0) * STEPS * 64, sixteen % 2);
    int own = warp % 4 * 16 + lane / 4, channel = blockIdx.x * 128 + group * 64 + own;
    bool snakes = a.norm;
    float bias[2], frequency[2], gain[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool is = channel + 8 * i < a.n;
        bias[i] = a.bias && is ? a.bias[channel + 8 * i] : 0.0f;
        frequency[i] = snakes && is ? a.norm[channel + 8 * i] : 0.0f;
        gain[i] = snakes && is ? a.shift[channel + 8 * i] : 0.0f;
    }
    u64 first = right_operand(shared);
    // Of 32 channels, in which those of this warp are.
    u32 part = group * 2 + warp % 4 / 2;
    u32 next = begin + stages * STAGE + group * OF_NEXT;
    u32 own_next = next + lane / 16 * 1024 + chunk_at(lane % 8, warp % 4 * 2 + lane / 8 % 2);
    bool stores = threadIdx.x % 128 == 0;
    wait_for_previous();
    for (int i = 0, at = 0, odd = 0, last = 0; i < count; i++) {
        wait_for_phase(full + 8 * at, odd);
        float acc[TILE / 8][4] = {};
        u64 rows = first + at * (STAGE / 16);
        multiply_kept(acc, w, rows, OF_PIECE);
        wait_for_products<0>();
        keep(acc);
        char* lines = shared + at * STAGE + OF_X + part * OF_PART;
        // The Snakes of the previous tile are stored; then its place is free.
        if (stores) {
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            if (i > 0) arrive(empty + 8 * last);
        }
        group_barrier(group, 128);
#pragma unroll
        for (int j = 0; j < TILE / 8; j += 2) {
            u32 x[4];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                float y[4];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    float* to = float_at(lines, 8 * (j + n) + lane % 4 * 2 + c % 2, (own + c / 2 * 8) % 32);
                    y[c] = *to + (acc[j + n][c] + bias[c / 2]);
                    *to = y[c];
                    y[c] = rough_snake(y[c], frequency[c / 2], gain[c / 2]);
                }
                x[2 * n] = halves(y[0], y[1]), x[2 * n + 1] = halves(y[2], y[3]);
            }
            if (snakes) store_transposed(own_next + 1024 * j, x);
        }
        publish();
        group_barrier(group, 128);
        if (stores) {
            u32 from = begin + at * STAGE + OF_X + 2 * group * OF_PART;
            int to = blockIdx.x * 128 + group * 64;
            for (int n = 0; n < 2 && a.out; n++)
                if (to + 32 * n < a.n) store_box(all.out, from + n * OF_PART, to + 32 * n, row_of(i), 0);
            if (snakes && to < a.n) store_box(all.next, next, to, row_of(i), 0);
        }
        last = at;
        if (++at == stages) at = 0, odd ^= 1;
    }
    let_next_start();
    if (stores) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#undef KERNEL
#define KERNEL(NAME, STEPS) \
    extern "C" __global__ void __launch_bounds__(288, 1) NAME(const __grid_constant__ ResidualArgs a) { \
        add_to_residual<STEPS>(a); \
    }

KERNEL(matmul_warpgroup_residual_96, 6)
KERNEL(matmul_warpgroup_residual_192, 12)
KERNEL(matmul_warpgroup_residual_384, 24)

#endif
