// A convolution, as defined in `matmul.cu`, the layer norm of its rows, an activation, and a row that is
// added, for many rows on Hopper:
//
//   out = f(norm(conv(x) + bias)) + row          [rows, 256], x [rows, 256], three taps without dilation
//
// A cluster of four blocks has ROWS rows of one sequence, and each block 64 channels of them. Its warpgroups
// multiply a piece of x each, with all taps; their sums are added in order. Blocks tell each other mean and
// squared distances of each row's own channels, which are joined as in `chain.cu`.

#if __CUDA_ARCH__ == 900

#define WIDTH 256
#define TAPS 3
#define BLOCKS 4
#define THREADS 512
#define OF_GROUP 128
#define STEPS (PIECE / 16)
// Floats of a row of sums of one warpgroup: neighboring rows are in other banks.
#define SUMS (PIECE + 4)

struct Args {
    const float* x;
    const uint4* w;
    const float* bias;  // may be null
    const float* norm;
    const float* shift;
    float* out;
    const float* row;  // [row_count, 256], of which `row_index` names one to add at the end; or null
    const u64* row_index;
    const char* next;  // weights of a later matmul, to prefetch
    int next_bytes, row_count;
    // Rows and channels of a sequence, rows before the one that the first tap is for.
    int time, channels, left;
    int zeros, halves;  // whether rows beyond the ends are zeros; whether x is stored in 16 bits
    int type;           // of `out`, as in `store_as`
    int activation;
    float eps;
};

DEVICE float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
DEVICE float sum_of(float4 a) { return a.x + a.y + (a.z + a.w); }

// Sum over 16 neighboring lanes.
DEVICE float sum_of_16(float x) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <int ROWS>
DEVICE void conv_norm(const Args& a) {
    extern __shared__ float4 shared4[];
    constexpr int HEIGHT = ROWS + TAPS - 1, OF_PIECE = (ROWS + 8) * 128;
    char* shared = lines_in(shared4);
    float* sums = (float*)(shared + WIDTH / PIECE * OF_PIECE);
    float4* moments = (float4*)(sums + 4 * ROWS * SUMS);  // [BLOCKS, ROWS]: mean, squared distances
    u32 rank = cluster_rank();
    int lane = threadIdx.x % 32, group = threadIdx.x / OF_GROUP, thread = threadIdx.x % OF_GROUP;
    int warp = thread / 32, four = rank * PIECE + threadIdx.x % 16 * 4;
    int tiles = (a.time + ROWS - 1) / ROWS, sequence = blockIdx.y / tiles, start = blockIdx.y % tiles * ROWS;

    // What does not depend on the previous kernel.
    uint4 w[TAPS * STEPS];
    int sixteen = rank * (PIECE / 16) + warp;
    const uint4* weights = a.w + (size_t)(sixteen / 2 * (TAPS * WIDTH / 16) + group * STEPS) * 64
                               + sixteen % 2 * 32 + lane;
#pragma unroll
    for (int i = 0; i < TAPS * STEPS; i++) w[i] = weights[(i / STEPS * (WIDTH / 16) + i % STEPS) * 64];
    if (threadIdx.x == 0) bring_near(a.next, a.next_bytes);
    float4 bias = a.bias ? *(const float4*)(a.bias + four) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 factor = *(const float4*)(a.norm + four), shift = *(const float4*)(a.shift + four);
    cluster_arrive();
    wait_for_previous();

    char* piece = shared + group * OF_PIECE;
    size_t first = (size_t)sequence * a.time * WIDTH + group * PIECE;
    if (a.halves) {
        typedef Copy<true, OF_GROUP, HEIGHT, true> Copy;
        float4 x[Copy::COUNT];
        Copy::bring(a, x, thread, first, start - a.left, HEIGHT);
        Copy::put(x, thread, piece);
    } else {
        typedef Copy<false, OF_GROUP, HEIGHT, true> Copy;
        float4 x[Copy::COUNT];
        Copy::bring(a, x, thread, first, start - a.left, HEIGHT);
        Copy::put(x, thread, piece);
    }
    group_barrier(group, OF_GROUP);
    float acc[ROWS / 8][4] = {};
    u64 right = right_operand(piece);
    keep(w), keep(acc);
    start_products();
#pragma unroll
    for (int i = 0; i < TAPS * STEPS; i++)
        multiply(acc, w[i], right + i / STEPS * (128 / 16) + i % STEPS * 2);
    end_products();
    wait_for_products<0>();
    keep(w), keep(acc);
    put_sums<SUMS>(sums + group * ROWS * SUMS + warp * 16, acc);
    cluster_wait();
    __syncthreads();

    constexpr int AT_ONCE = THREADS / 16, TIMES = (ROWS + AT_ONCE - 1) / AT_ONCE;
    float4 y[TIMES];
#pragma unroll
    for (int i = 0; i < TIMES; i++) {
        int row = threadIdx.x / 16 + AT_ONCE * i;
        const float* from = sums + min(row, ROWS - 1) * SUMS + threadIdx.x % 16 * 4;
        y[i] = bias;
#pragma unroll
        for (int j = 0; j < WIDTH / PIECE; j++) y[i] = plus(y[i], *(const float4*)(from + j * ROWS * SUMS));
        float mean = sum_of_16(sum_of(y[i])) / PIECE;
        float4 d = plus(y[i], make_float4(-mean, -mean, -mean, -mean));
        float squares = sum_of_16(d.x * d.x + d.y * d.y + (d.z * d.z + d.w * d.w));
        if (row < ROWS && lane % 16 < BLOCKS)
            give((float*)(moments + rank * ROWS + row), lane % 16, make_float4(mean, squares, 0.0f, 0.0f));
    }
    cluster_arrive();
    const float* added = a.row ? a.row + min((u64)a.row_count - 1, *a.row_index) * WIDTH + four : nullptr;
    float4 after = added ? *(const float4*)added : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    cluster_wait();
    let_next_start();
#pragma unroll
    for (int i = 0; i < TIMES; i++) {
        int row = threadIdx.x / 16 + AT_ONCE * i;
        if (row >= ROWS || start + row >= a.time) continue;
        float mean = 0.0f, squares = 0.0f;
        float4 m[BLOCKS];
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) m[j] = moments[j * ROWS + row], mean += m[j].x * (1.0f / BLOCKS);
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) squares += m[j].y + PIECE * (m[j].x - mean) * (m[j].x - mean);
        float by = 1.0f / sqrtf(squares / WIDTH + a.eps);
        float z[4] = {(y[i].x - mean) * by * factor.x + shift.x, (y[i].y - mean) * by * factor.y + shift.y,
                      (y[i].z - mean) * by * factor.z + shift.z, (y[i].w - mean) * by * factor.w + shift.w};
        activate(a.activation, z, 0.0f);
        size_t at = ((size_t)sequence * a.time + start + row) * WIDTH + four;
        store_as(a.type, a.out, at, plus(make_float4(z[0], z[1], z[2], z[3]), after));
    }
}

#undef KERNEL
#define KERNEL(NAME, ROWS) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const Args a) { conv_norm<ROWS>(a); }

KERNEL(conv_norm_32, 32)
KERNEL(conv_norm_48, 48)
KERNEL(conv_norm_64, 64)

#endif
