// Snake, see `common.cuh`: x and out [rows, C]. One thread per four channels if C is a multiple of 4, else
// per element. With four channels out may be stored in 16 bits: `type` as in `store_as`.

struct Args {
    const float* x;
    const float* frequency;
    const float* gain;
    float* out;
    int len, c, type;
};

extern "C" __global__ void snake_4(const Args a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, c = i % (a.c / 4);
    float4 f = ((const float4*)a.frequency)[c], g = ((const float4*)a.gain)[c];
    wait_for_previous();
    let_next_start();
    if (i >= a.len / 4) return;
    float4 x = ((const float4*)a.x)[i];
    store_as(a.type, a.out, 4 * (size_t)i, snake(x, f, g));
}

extern "C" __global__ void snake_1(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x, c = i % a.c;
    if (i >= a.len) return;
    a.out[i] = snake(a.x[i], a.frequency[c], a.gain[c]);
}
