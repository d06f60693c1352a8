// Copies of blocks along an axis: slices, concatenation, constants, whole buffers; many blocks at once; rows
// and marks written in place; increments; and setting a scalar.
//
// An array is treated as [outer, axis, inner]; `len` = axis · inner elements of each of `outer` blocks are
// copied. A source stride of 0 repeats one block. A thread copies four elements.

struct Args {
    const u32* x;
    u32* out;
    int total, len, x_stride, out_stride, x_first, out_first;
};

extern "C" __global__ void copy(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    if (are_fours(a.x, a.out, a.len | a.x_stride | a.out_stride | a.x_first | a.out_first)) {
        if (i >= a.total / 4) return;
        int len = a.len / 4, block = i / len, at = 4 * (i - block * len);
        const u32* from = a.x + (size_t)block * a.x_stride + a.x_first + at;
        *(uint4*)(a.out + (size_t)block * a.out_stride + a.out_first + at) = *(const uint4*)from;
        return;
    }
    for (; i < a.total; i += threads) {
        int block = i / a.len, at = i - block * a.len;
        u32 x = a.x[(size_t)block * a.x_stride + a.x_first + at];
        a.out[(size_t)block * a.out_stride + a.out_first + at] = x;
    }
}

// The same of elements of 16 bits, which are stored in f32. TYPE as in `store_as`.
template <int TYPE>
DEVICE void widen(const Args& a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (; i < a.total; i += threads) {
        int block = i / a.len, at = i - block * a.len;
        u16 half = ((const u16*)a.x)[(size_t)block * a.x_stride + a.x_first + at];
        float y = __uint_as_float((u32)half << 16);
        if (TYPE == 1) asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(half));
        a.out[(size_t)block * a.out_stride + a.out_first + at] = __float_as_uint(y);
    }
}

extern "C" __global__ void copy_f16(const Args a) { widen<1>(a); }
extern "C" __global__ void copy_bf16(const Args a) { widen<2>(a); }

// Many blocks at once, one per column of the grid.
#define BLOCKS_OF_COPY 96

struct BlocksArgs {
    const u32* from[BLOCKS_OF_COPY];
    u32* to[BLOCKS_OF_COPY];
    u32 words[BLOCKS_OF_COPY];
};

extern "C" __global__ void __launch_bounds__(256) copy_blocks(const __grid_constant__ BlocksArgs a) {
    wait_for_previous();
    let_next_start();
    const u32* from = a.from[blockIdx.x];
    u32* to = a.to[blockIdx.x];
    u32 words = a.words[blockIdx.x], first = blockIdx.y * 256 + threadIdx.x, step = gridDim.y * 256, done = 0;
    if ((((size_t)from | (size_t)to) & 15) == 0) {
        for (u32 i = first; i < words / 4; i += step) ((uint4*)to)[i] = ((const uint4*)from)[i];
        done = words / 4 * 4;
    }
    for (u32 i = done + first; i < words; i += step) to[i] = from[i];
}

struct SetArgs {
    u64* scalar;
    u32 value, unused;
};

extern "C" __global__ void set_scalar(const SetArgs a) {
    wait_for_previous();
    let_next_start();
    *a.scalar = a.value;
}

// state [B, N, C] with rows [B, T, C] in place of those from first[b] on. Rows past the end are clamped, so
// that nothing is written out of bounds; the caller checks positions.
struct WriteArgs {
    float* state;
    const float* rows;
    const int* first;  // null: `from`
    int len, n, t, c, from;
};

extern "C" __global__ void write_rows(const WriteArgs a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.len) return;
    int b = i / (a.t * a.c), at = i - b * a.t * a.c;
    int first = min(max(a.first ? a.first[b] : a.from, 0), a.n - a.t);
    a.state[((size_t)b * a.n + first) * a.c + at] = a.rows[i];
}

// Sets seen [B, V] to 1 at ids [B].
struct MarkArgs {
    float* seen;
    const int* ids;
    int batch, v;
};

extern "C" __global__ void mark(const MarkArgs a) {
    wait_for_previous();
    let_next_start();
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b < a.batch && a.ids[b] >= 0 && a.ids[b] < a.v) a.seen[(size_t)b * a.v + a.ids[b]] = 1.0f;
}

struct IncrementArgs {
    const u32* x;
    u32* out;
    int len;
    u32 by;
};

extern "C" __global__ void increment(const IncrementArgs a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.len) a.out[i] = a.x[i] + a.by;
}
