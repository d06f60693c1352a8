// Moving blocks along an axis: slices, concatenation, constants, whole buffers; and setting a scalar.
//
// An array is seen as [outer, axis, inner]; `len` = axis · inner elements of each of `outer` blocks are moved. A source
// stride of 0 repeats one block.

struct Args {
    const u32* x;
    u32* out;
    int total, len, x_stride, out_stride, x_first, out_first;
};

extern "C" __global__ void copy(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.total) return;
    int block = i / a.len, at = i - block * a.len;
    a.out[(size_t)block * a.out_stride + a.out_first + at] = a.x[(size_t)block * a.x_stride + a.x_first + at];
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
