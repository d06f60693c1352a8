// Snake: x + gain[c] · sin²(frequency[c] · x).
//
// x and out [rows, C]. One thread per four channels if C is a multiple of 4, else per element.

struct Args {
    const float* x;
    const float* frequency;
    const float* gain;
    float* out;
    int len, c;
};

// sin² has period π. The multiple of π is subtracted in two parts; the series ends where its terms are below
// 6e-8.
DEVICE float squared_sine(float x) {
    float n = rintf(x * 0.31830989f);
    float r = fmaf(n, -3.14159274f, x);
    r = fmaf(n, 8.74227766e-8f, r);
    float z = r * r;
    float q = fmaf(z, -2.5052108e-8f, 2.7557319e-6f);
    q = fmaf(q, z, -1.9841270e-4f);
    q = fmaf(q, z, 8.3333333e-3f);
    q = fmaf(q, z, -0.16666667f);
    float sine = fmaf(q * z, r, r);
    return sine * sine;
}

extern "C" __global__ void snake_4(const Args a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, c = i % (a.c / 4);
    float4 f = ((const float4*)a.frequency)[c], g = ((const float4*)a.gain)[c];
    wait_for_previous();
    let_next_start();
    if (i >= a.len / 4) return;
    float4 x = ((const float4*)a.x)[i];
    x.x = fmaf(g.x, squared_sine(f.x * x.x), x.x), x.y = fmaf(g.y, squared_sine(f.y * x.y), x.y);
    x.z = fmaf(g.z, squared_sine(f.z * x.z), x.z), x.w = fmaf(g.w, squared_sine(f.w * x.w), x.w);
    ((float4*)a.out)[i] = x;
}

extern "C" __global__ void snake_1(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x, c = i % a.c;
    if (i >= a.len) return;
    a.out[i] = fmaf(a.gain[c], squared_sine(a.frequency[c] * a.x[i]), a.x[i]);
}
