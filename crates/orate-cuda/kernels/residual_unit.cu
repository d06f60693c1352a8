// Residual units of a codec on Hopper: a convolution, a Snake, a matmul that adds a residual, and the Snake
// of the result, for very many rows of few channels:
//
//   out = residual + snake(conv(x) + bias) · last + last_bias,   next = snake(out)
//
// x and `next` are stored in 16 bits, `residual` and `out` in f32; all are [sequences, time, WIDTH].
//
// All weights of a unit fit in shared memory. So there is a block for each multiprocessor, which keeps them
// and loops over tiles of rows. Each warpgroup has tiles of its own, so that one multiplies while others
// read, apply Snakes and store. One more thread requests the rows of x that the taps reach. What a warpgroup
// makes of a convolution is the left operand of its second matmul, without leaving registers.
//
// A thread of a warpgroup has two of every eight columns of a product. Lines of weights are in such an order
// that it has four neighboring channels of every sixteen: channel 4q + 2h + i is line 8h + 2q + i.

#if __CUDA_ARCH__ == 900

// Rows of a tile, rows before it that taps may reach, and bytes of 32 channels of both.
#define UNIT_TILE 64
#define UNIT_REACH 56
#define OF_ROWS (64 * (UNIT_TILE + UNIT_REACH))
#define UNIT_TAPS 7
#define UNIT_GROUPS 3
#define UNIT_THREADS (128 * UNIT_GROUPS)

// Boxes have 32 channels: of `before` the rows before a tile, of `x` those of a tile.
struct UnitArgs {
    Tensor before, x;
    const u16* rows;         // of which both have boxes
    // [sequences, rows that taps reach, WIDTH]; null if rows before a sequence are zeros.
    const float* history;
    const uint4* w;          // weights in the order of `matmul.cu`
    const float* bias;       // of the convolution; may be null
    const float* frequency;
    const float* gain;
    const uint4* last;
    const float* last_bias;  // may be null
    const float* next_frequency;
    const float* next_gain;
    const float* residual;
    float* out;              // null if nothing reads it
    u16* next;
    const char* later;       // weights of a later matmul, to prefetch
    int later_bytes, sequences, time, dilation;
};

// Writes packed weights, `blocks` times 16 of K, to lines of 32 of K, one for each channel. K_OF_LEFT: in the
// order in which a product is a left operand.
template <int WIDTH, bool K_OF_LEFT>
DEVICE void keep_weights(char* to, const uint4* from, int blocks) {
    constexpr int OF_WEIGHTS = 64 * WIDTH;
    for (int e = threadIdx.x; e < WIDTH / 32 * blocks * 64; e += UNIT_THREADS) {
        uint4 w = from[e];
        int lane = e % 32, q = lane % 4, block = e / 64 % blocks;
        char* piece = to + block / 2 * OF_WEIGHTS;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            int channel = e / (64 * blocks) * 32 + e / 32 % 2 * 16 + part * 8 + lane / 4;
            u32 line = channel / 16 * 16 + channel / 2 % 2 * 8 + channel % 16 / 4 * 2 + channel % 2;
            u32 first = part ? w.y : w.x, second = part ? w.w : w.z;
            auto at = [&](u32 chunk) { return piece + line * 64 + (chunk ^ line / 2 % 4) * 16; };
            u32 chunk = block % 2 * 2;
            if (K_OF_LEFT) {
                *(u32*)(at(chunk) + 4 * q) = first;
                *(u32*)(at(chunk + 1) + 4 * q) = second;
            } else {
                *(uint2*)(at(chunk + q / 2) + q % 2 * 8) = make_uint2(first, second);
            }
        }
    }
}

// Of channels 16j + 4q to 16j + 4q + 3, those of rows g (LATER 0) and g + 8 (1) of a product.
template <int LATER, int COUNT>
DEVICE float4 of_row(const float (&acc)[COUNT][4], int j) {
    return make_float4(acc[2 * j][2 * LATER], acc[2 * j][2 * LATER + 1], acc[2 * j + 1][2 * LATER],
                       acc[2 * j + 1][2 * LATER + 1]);
}

template <int LATER, int COUNT>
DEVICE void set_row(float (&acc)[COUNT][4], int j, float4 x) {
    acc[2 * j][2 * LATER] = x.x, acc[2 * j][2 * LATER + 1] = x.y;
    acc[2 * j + 1][2 * LATER] = x.z, acc[2 * j + 1][2 * LATER + 1] = x.w;
}

DEVICE float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

template <int WIDTH>
DEVICE void residual_unit(const UnitArgs& a) {
    extern __shared__ float4 shared4[];
    __shared__ u64 barriers[2][UNIT_GROUPS];
    __shared__ float4 vectors[6][WIDTH / 4];
    constexpr int PIECES = WIDTH / 32, STEPS = WIDTH / 16, OF_WEIGHTS = 64 * WIDTH, STAGE = PIECES * OF_ROWS;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4;
    char* shared = lines_in(shared4);
    char* last = shared + UNIT_TAPS * PIECES * OF_WEIGHTS;
    char* stages = last + PIECES * OF_WEIGHTS;
    u32 begin = (u32)__cvta_generic_to_shared(stages);
    u32 full = (u32)__cvta_generic_to_shared(barriers), empty = full + 8 * UNIT_GROUPS;
    int of_sequence = (a.time + UNIT_TILE - 1) / UNIT_TILE, tiles = a.sequences * of_sequence;
    int left = (UNIT_TAPS - 1) * a.dilation;

    if (threadIdx.x == 0) {
        for (int i = 0; i < UNIT_GROUPS; i++)
            expect_arrivals(full + 8 * i, 1), expect_arrivals(empty + 8 * i, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        bring_near(a.later, a.later_bytes);
    }
    __syncthreads();
    // Warpgroups that multiply get the registers of the one that copies.
    if (group == UNIT_GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        wait_for_previous();
        if (threadIdx.x > UNIT_THREADS) return;
        int at = 0, odd = 1;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            wait_for_phase(empty + 8 * at, odd);
            int sequence = tile / of_sequence, start = tile % of_sequence * UNIT_TILE;
            u32 to = begin + at * STAGE, barrier = full + 8 * at;
            bool has_before = start > 0 || !a.history;
            announce(barrier, PIECES * 64 * (UNIT_TILE + (has_before ? left : 0)));
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++, to += OF_ROWS) {
                if (has_before) copy_box(to, a.before, piece * 32, start - left, sequence, barrier);
                copy_box(to + 64 * left, a.x, piece * 32, start, sequence, barrier);
            }
            if (++at == UNIT_GROUPS) at = 0, odd ^= 1;
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    keep_weights<WIDTH, false>(shared, a.w, UNIT_TAPS * STEPS);
    keep_weights<WIDTH, true>(last, a.last, STEPS);
    const float* from[6] = {a.bias, a.frequency, a.gain, a.last_bias, a.next_frequency, a.next_gain};
    if (threadIdx.x < WIDTH)
        for (int i = 0; i < 6; i++) ((float*)vectors[i])[threadIdx.x] = from[i] ? from[i][threadIdx.x] : 0.0f;
    publish();
    group_barrier(UNIT_GROUPS, UNIT_THREADS);
    wait_for_previous();

    u64 kept = narrow_operand((u32)__cvta_generic_to_shared(shared));
    u64 kept_last = narrow_operand((u32)__cvta_generic_to_shared(last));
    char* stage = stages + group * STAGE;
    u64 first = narrow_operand(begin + group * STAGE);
    int own = warp % 4 * 16 + lane / 4, four = lane % 4, odd = 0;
    full += 8 * group, empty += 8 * group;
    for (int tile = blockIdx.x + group * gridDim.x; tile < tiles; tile += UNIT_GROUPS * gridDim.x, odd ^= 1) {
        int sequence = tile / of_sequence, start = tile % of_sequence * UNIT_TILE;
        wait_for_phase(full, odd);
        // Rows of a history are rounded.
        if (start == 0 && a.history) {
            const float4* from = (const float4*)(a.history + (size_t)sequence * left * WIDTH);
            for (int i = threadIdx.x % 128; i < left * WIDTH / 4; i += 128) {
                u32 line = i / (WIDTH / 4), four = i % (WIDTH / 4);
                float4 x = from[i];
                u32 chunk = four / 2 % 4 ^ line / 2 % 4;
                *(uint2*)(stage + four / 8 * OF_ROWS + line * 64 + chunk * 16 + four % 2 * 8) =
                    make_uint2(halves(x.x, x.y), halves(x.z, x.w));
            }
            publish();
            group_barrier(group, 128);
        }
        float acc[2 * STEPS][4] = {};
        u64 rows = first;
        keep(acc);
        start_products();
#pragma unroll
        for (int tap = 0; tap < UNIT_TAPS; tap++, rows += a.dilation * (64 / 16))
#pragma unroll
            for (int j = 0; j < STEPS; j++)
                multiply_96(acc, rows + j / 2 * (OF_ROWS / 16) + j % 2 * 2,
                            kept + (tap * PIECES + j / 2) * (OF_WEIGHTS / 16) + j % 2 * 2);
        end_products();
        // The residual arrives meanwhile. Rows beyond the end are not stored.
        size_t row[2];
        bool is[2];
        float y[2 * STEPS][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int t = start + own + 8 * i;
            is[i] = t < a.time;
            row[i] = ((size_t)sequence * a.time + min(t, a.time - 1)) * WIDTH + 4 * four;
        }
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            set_row<0>(y, j, *(const float4*)(a.residual + row[0] + 16 * j));
            set_row<1>(y, j, *(const float4*)(a.residual + row[1] + 16 * j));
        }
        wait_for_products<0>();
        keep(acc);
        if (lane == 0) arrive(empty);

        uint4 w[STEPS];
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            float4 bias = vectors[0][4 * j + four], frequency = vectors[1][4 * j + four];
            float4 gain = vectors[2][4 * j + four];
            float4 s = rough_snake(sum(of_row<0>(acc, j), bias), frequency, gain);
            float4 t = rough_snake(sum(of_row<1>(acc, j), bias), frequency, gain);
            w[j] = make_uint4(halves(s.x, s.y), halves(t.x, t.y), halves(s.z, s.w), halves(t.z, t.w));
        }
        keep(w), keep(y);
        start_products();
#pragma unroll
        for (int j = 0; j < STEPS; j++)
            multiply_96(y, w[j], kept_last + j / 2 * (OF_WEIGHTS / 16) + j % 2 * 2);
        end_products();
        wait_for_products<0>();
        keep(w), keep(y);
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            float4 bias = vectors[3][4 * j + four], frequency = vectors[4][4 * j + four];
            float4 gain = vectors[5][4 * j + four];
            float4 both[2] = {sum(of_row<0>(y, j), bias), sum(of_row<1>(y, j), bias)};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (!is[i]) continue;
                size_t to = row[i] + 16 * j;
                if (a.out) *(float4*)(a.out + to) = both[i];
                float4 s = rough_snake(both[i], frequency, gain);
                *(uint2*)(a.next + to) = make_uint2(halves(s.x, s.y), halves(s.z, s.w));
            }
        }
    }
    let_next_start();
}

#undef KERNEL
#define KERNEL(NAME, WIDTH) \
    extern "C" __global__ void __launch_bounds__(UNIT_THREADS + 128, 1) \
        NAME(const __grid_constant__ UnitArgs a) { \
        residual_unit<WIDTH>(a); \
    }

KERNEL(residual_unit_96, 96)

#endif
