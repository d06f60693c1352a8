// Matmuls of very many rows by weights of 16 bits on Hopper, as defined in `matmul.cu`. x is stored in 16
// bits.
//
// Copies are the hardware's: one instruction of one thread brings a box of a tensor to shared memory, without
// registers or other instructions. So both operands are several pieces of K ahead, and there are blocks of
// several sizes, of which the one is used that leaves few multiprocessors without work.

#if __CUDA_ARCH__ == 900

// Of weights a box has a piece of K for 128 channels, in the order of `matmul.cu`, or for 64 of each part if
// they are gated; of x it has a piece of the rows of a block, in the order of `chunk_at`.
struct RowsArgs {
    Tensor w, x;
    Args a;
    int stages;
};

// Stages of a block at most.
#define STAGES 8

// What is stored with the results: nothing, or their layer norm.
enum Follows { NOTHING, A_NORM };

// Stores rows that have 256 channels, all of a block, and those before `end` exist: out = residual + sum +
// bias in f32, and the layer norm of that, with `norm` and `shift`, in 16 bits to `history`. `sums` is as in
// `store_rows`.
template <int HIGH>
DEVICE void store_with_norm(const Args& a, const float* sums, int start, int end) {
    constexpr int CHANNELS_OF_ROW = 256, WIDTH = CHANNELS_OF_ROW + 4, WARPS_OF_BLOCK = 16;
    constexpr int OF_WARP = HIGH / WARPS_OF_BLOCK;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto at = [&](int i) { return 4 * lane + 128 * i; };
    // Rows of the residual are on their way together.
    float4 y[OF_WARP][2], bias[2], weight[2], shift[2];
#pragma unroll
    for (int r = 0; r < OF_WARP; r++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            size_t row = start + min(warp + WARPS_OF_BLOCK * r, end - 1);
            y[r][i] = *(const float4*)(a.residual + row * CHANNELS_OF_ROW + at(i));
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bias[i] = four(a.bias, at(i), CHANNELS_OF_ROW);
        weight[i] = *(const float4*)(a.norm + at(i)), shift[i] = *(const float4*)(a.shift + at(i));
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < OF_WARP; r++) {
        int row = warp + WARPS_OF_BLOCK * r;
        if (row >= end) break;
        size_t to = (size_t)(start + row) * CHANNELS_OF_ROW;
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4 product = *(const float4*)(sums + row * WIDTH + at(i));
            add(product, bias[i]);
            add(y[r][i], product);
            *(float4*)(a.out + to + at(i)) = y[r][i];
            sum += y[r][i].x + y[r][i].y + y[r][i].z + y[r][i].w;
        }
        float mean = warp_sum(sum) / CHANNELS_OF_ROW;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4& x = y[r][i];
            x.x -= mean, x.y -= mean, x.z -= mean, x.w -= mean;
            squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
        }
        float factor = 1.0f / sqrtf(warp_sum(squares) / CHANNELS_OF_ROW + a.eps);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4 x = times(y[r][i], factor), w = weight[i];
            float4 normed = make_float4(x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w);
            add(normed, shift[i]);
            store_as(PRECISION - 1, (float*)a.history, to + at(i), normed);
        }
    }
}

// A block has HIGH rows and 64 channels for each of its warpgroups, and all of K. One thread asks for pieces
// of weights and of x, as many at a time as there are stages. While half of a piece is multiplied, weights of
// the next half come to registers.
template <int HIGH, int WARPGROUPS, Follows FOLLOWS>
DEVICE void product_of_many(const RowsArgs& all) {
    extern __shared__ float4 shared4[];
    __shared__ u64 barriers[2][STAGES];
    const Args& a = all.a;
    int stages = all.stages;
    constexpr int OF_BLOCK = 64 * WARPGROUPS, BLOCK_WARPS = 4 * WARPGROUPS, OF_BOX = 128;
    constexpr int STEPS = PIECE / 16, OF_CHANNELS = 2 * PIECE * CHANNELS;
    constexpr int WEIGHTS = 2 * PIECE * OF_BLOCK, STAGE = WEIGHTS + 2 * PIECE * HIGH;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int pieces = a.channels / PIECE, start = blockIdx.y * HIGH;
    char* shared = lines_in(shared4);
    u32 begin = (u32)__cvta_generic_to_shared(shared), full = (u32)__cvta_generic_to_shared(barriers);
    u32 empty = full + 8 * STAGES;

    auto bring_weights = [&](int piece, int i) {
        int channels = blockIdx.x * (OF_BLOCK / CHANNELS) >> a.gated;
        u32 to = begin + i * STAGE;
        announce(full + 8 * i, STAGE);
#pragma unroll
        for (int first = 0; first < OF_BLOCK; first += OF_BOX) {
            int of_box = channels + first / CHANNELS;
            copy_box(to + 2 * PIECE * first, all.w, 0, piece * STEPS, of_box, full + 8 * i);
        }
        if (a.gated)
            copy_box(to + WEIGHTS / 2, all.w, 0, piece * STEPS, channels + a.first / CHANNELS, full + 8 * i);
    };
    auto bring_rows = [&](int piece, int i) {
        copy_box(begin + i * STAGE + WEIGHTS, all.x, piece * PIECE, start, 0, full + 8 * i);
    };
    bool copies = threadIdx.x == 0;
    if (copies) {
        for (int i = 0; i < stages; i++)
            expect_arrivals(full + 8 * i, 1), expect_arrivals(empty + 8 * i, BLOCK_WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        // Weights do not depend on the previous kernel.
        for (int i = 0; i < min(stages, pieces); i++) bring_weights(i, i);
        bring_near(a.next, a.next_bytes);
    }
    __syncthreads();
    wait_for_previous();
    if (copies)
        for (int i = 0; i < min(stages, pieces); i++) bring_rows(i, i);

    float acc[HIGH / 8][4] = {};
    u64 first = right_operand(shared + WEIGHTS);
    // Weights of 16 channels have two of every four of K in a thread, but a thread multiplies two of every
    // eight: it reads half of what two lanes have. Lanes that would read from the same banks take turns.
    bool turns = lane / 8 % 2;
    const char* weights = shared + warp / 2 * OF_CHANNELS + warp % 2 * 512;
    u32 near = (lane / 4 * 4 + lane % 4 / 2) * 16 + lane % 2 * 8 + (turns ? 32 : 0);
    uint4 w[2][STEPS / 2];
    auto take = [&](uint4 (&w)[STEPS / 2], u32 stage, int half) {
#pragma unroll
        for (int j = 0; j < STEPS / 2; j++) {
            const char* from = weights + stage + (half * (STEPS / 2) + j) * 1024;
            uint2 one = *(const uint2*)(from + near), two = *(const uint2*)(from + (near ^ 32));
            w[j] = turns ? make_uint4(two.x, two.y, one.x, one.y) : make_uint4(one.x, one.y, two.x, two.y);
        }
    };
    auto multiply_half = [&](uint4 (&w)[STEPS / 2], u32 stage, int half) {
        keep(w);
        start_products();
#pragma unroll
        for (int j = 0; j < STEPS / 2; j++)
            multiply(acc, w[j], first + stage / 16 + 2 * (half * (STEPS / 2) + j));
        end_products();
    };
    wait_for_phase(full, 0);
    take(w[0], 0, 0);
    keep(acc);
    // This piece is in stage i, for a phase that is odd or even; the last one was in stage `last`.
    int i = 0, odd = 0, last = 0, last_odd = 0;
    for (int piece = 0; piece < pieces; piece++) {
        u32 stage = i * STAGE;
        multiply_half(w[0], stage, 0);
        wait_for_products<1>();
        keep(w[1]);
        if (piece > 0 && lane == 0) arrive(empty + 8 * last);
        take(w[1], stage, 1);
        multiply_half(w[1], stage, 1);
        if (copies && piece > 0 && piece - 1 + stages < pieces) {
            wait_for_phase(empty + 8 * last, last_odd);
            bring_weights(piece - 1 + stages, last);
            bring_rows(piece - 1 + stages, last);
        }
        last = i, last_odd = odd;
        if (++i == stages) i = 0, odd ^= 1;
        wait_for_products<1>();
        keep(w[0]);
        if (piece + 1 < pieces) {
            wait_for_phase(full + 8 * i, odd);
            take(w[0], i * STAGE, 0);
        }
    }
    wait_for_products<0>();
    keep(acc);
    let_next_start();

    float* sums = (float*)shared4;
    int end = min(HIGH, a.rows - start);
    __syncthreads();
    put_sums<OF_BLOCK + 4>(sums + warp * 16, acc);
    if constexpr (FOLLOWS == A_NORM) store_with_norm<HIGH>(a, sums, start, end);
    else store_rows<1, OF_BLOCK, HIGH, 32 * BLOCK_WARPS, true, true, 4>(a, sums, start, end);
}

#undef KERNEL
#define KERNEL(NAME, HIGH, WARPGROUPS, FOLLOWS) \
    extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 4 / WARPGROUPS) \
        NAME(const __grid_constant__ RowsArgs a) { \
        product_of_many<HIGH, WARPGROUPS, FOLLOWS>(a); \
    }

KERNEL(matmul_warpgroup_rows_64, 64, 2, NOTHING)
KERNEL(matmul_warpgroup_rows_96, 96, 2, NOTHING)
KERNEL(matmul_warpgroup_rows_128, 128, 2, NOTHING)
KERNEL(matmul_warpgroup_rows_144, 144, 2, NOTHING)
KERNEL(matmul_warpgroup_rows_norm_96, 96, 4, A_NORM)
KERNEL(matmul_warpgroup_rows_norm_128, 128, 4, A_NORM)

#endif
