// Permutation of up to four axes. out has extents `size`; a step along its axis i is a step of `stride[i]` in
// x.

struct Args {
    const float* x;
    float* out;
    int len;
    int size[4];
    int stride[4];
};

extern "C" __global__ void permute(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.len) return;
    int rest = i;
    size_t from = 0;
#pragma unroll
    for (int axis = 3; axis >= 0; axis--) {
        from += (size_t)(rest % a.size[axis]) * a.stride[axis];
        rest /= a.size[axis];
    }
    a.out[i] = a.x[from];
}
