// Prefix of every kernel file: names, activations, sums over a block, and synchronization with the previous
// kernel.
//
// Kernels take one struct by value: pointers first, then 32-bit numbers. All tensors are f32, row-major and
// contiguous. Extents are arguments, so that plans of all lengths share kernels.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define INFINITY __int_as_float(0x7f800000)

// A kernel may be launched while the previous one in the stream still runs (programmatic dependent launch).
// Memory that another kernel of the plan may write or still read must only be touched after this call.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the launch of the next kernel, which runs up to its own `wait_for_previous`.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Whether arrays consist of fours that are aligned; `sizes` has the bits of all sizes and offsets.
DEVICE bool are_fours(const void* x, const void* y, int sizes) {
    return (sizes & 3) == 0 && (((size_t)x | (size_t)y) & 15) == 0;
}

// Prefetches this block's share of `bytes` into the second-level cache.
DEVICE void bring_near(const char* from, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    u32 blocks = gridDim.x * gridDim.y * gridDim.z;
    u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    u32 share = (bytes / blocks + 127) / 128 * 128, first = block * share;
    if (first >= bytes) return;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from + first), "r"(min(share, bytes - first)));
#endif
}

// 2^x; results below 2⁻¹²⁶ become 0.
DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// x/2 · (1 + erf(x/√2)), as max(x, 0) − |x|/2 · erfc(|x|/√2): no cancellation on either side. The tail is a
// power of two with the polynomial of orate-cpu's kernels/vecmath.rs.
DEVICE float gelu(float x) {
    float a = fminf(fabsf(x), 6.0f);
    float q = 2.8349127e-6f;
    q = fmaf(q, a, -3.937769e-5f);
    q = fmaf(q, a, 1.8618025e-4f);
    q = fmaf(q, a, 1.3693636e-4f);
    q = fmaf(q, a, -0.00706342f);
    q = fmaf(q, a, 0.05249618f);
    q = fmaf(q, a, 0.4592082f);
    q = fmaf(q, a, 1.1511052f);
    return fmaf(-0.5f * a, power_of_two(-a * q), x < 0.0f ? 0.0f : x);
}

// sin(x + shift · π): the sine for 0, the cosine for ½. The multiple of π is subtracted in two parts; the
// series ends where its terms are below 6e-8. The compiler's own has a branch for huge numbers, which needs
// registers.
DEVICE float sine(float x, float shift) {
    float turns = rintf(fmaf(x, 0.31830989f, shift)), n = turns - shift;
    float r = fmaf(n, 8.74227766e-8f, fmaf(n, -3.14159274f, x)), z = r * r;
    float q = fmaf(z, -2.5052108e-8f, 2.7557319e-6f);
    q = fmaf(q, z, -1.9841270e-4f);
    q = fmaf(q, z, 8.3333333e-3f);
    q = fmaf(q, z, -0.16666667f);
    float y = fmaf(q * z, r, r);
    return (int)turns % 2 ? -y : y;
}

// x after ACTIVATION, one of `Activation`.
template <int ACTIVATION>
DEVICE float activated(float x, float slope) {
    switch (ACTIVATION) {
        case RELU: return x < 0.0f ? 0.0f : x;
        case PRELU: return x < 0.0f ? slope * x : x;
        case GELU: return gelu(x);
        // tanh(ln(1 + n)) = n(n + 2) / (n(n + 2) + 2) for n = eˣ
        case MISH: {
            if (x > 20.0f) return x;
            float n = expf(x);
            float m = n * (n + 2.0f);
            return x * (m / (m + 2.0f));
        }
        case TANH: return tanhf(x);
        case EXP: return expf(x);
        case SILU: return x / (1.0f + expf(-x));
        case SIGMOID: return 1.0f / (1.0f + expf(-x));
        case ELU: return x > 0.0f ? x : expm1f(x);
        // x / (1 + e⁻²ᵘ) for u = √(2/π) · (x + 0.044715 x³)
        case GELU_TANH: return x / (1.0f + expf(x * fmaf(x * x, -0.07135482f, -1.5957691f)));
        case SIN: return sine(x, 0.0f);
        case COS: return sine(x, 0.5f);
        case CLIP: return x < -1.0f ? -1.0f : (x > 1.0f ? 1.0f : x); // NaN stays NaN
        default: return x;
    }
}

// Applies an activation to COUNT numbers. It is selected once for all of them: a selection takes as long as
// many an activation.
template <int COUNT>
DEVICE void activate(int activation, float (&x)[COUNT], float slope) {
    switch (activation) {
#define EACH(ACTIVATION) \
    case ACTIVATION: \
        _Pragma("unroll") for (int i = 0; i < COUNT; i++) x[i] = activated<ACTIVATION>(x[i], slope); \
        break;
        EACH(RELU) EACH(PRELU) EACH(GELU) EACH(MISH) EACH(TANH) EACH(EXP) EACH(SILU) EACH(SIGMOID) EACH(ELU)
        EACH(GELU_TANH) EACH(SIN) EACH(COS) EACH(CLIP)
#undef EACH
        default: break;
    }
}

DEVICE float activate(int activation, float x, float slope) {
    float one[1] = {x};
    activate(activation, one, slope);
    return one[0];
}

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

// Snake: x + gain · sin²(frequency · x).
DEVICE float snake(float x, float frequency, float gain) {
    return fmaf(gain, squared_sine(frequency * x), x);
}

DEVICE float4 snake(float4 x, float4 frequency, float4 gain) {
    return make_float4(snake(x.x, frequency.x, gain.x), snake(x.y, frequency.y, gain.y),
                       snake(x.z, frequency.z, gain.z), snake(x.w, frequency.w, gain.w));
}

// The same for results that are rounded to 16 bits: the sine is an instruction's, whose error is 2⁻²⁰ between
// −π and π. Adding 1.5 · 2²³ rounds to an integer. One number for π suffices: its error is half of that of
// rounding frequency · x.
DEVICE float rough_snake(float x, float frequency, float gain) {
    float by = frequency * x, n = fmaf(by, 0.31830989f, 12582912.0f) - 12582912.0f;
    float y = __sinf(fmaf(n, -3.14159274f, by));
    return fmaf(gain * y, y, x);
}

DEVICE float4 rough_snake(float4 x, float4 frequency, float4 gain) {
    return make_float4(rough_snake(x.x, frequency.x, gain.x), rough_snake(x.y, frequency.y, gain.y),
                       rough_snake(x.z, frequency.z, gain.z), rough_snake(x.w, frequency.w, gain.w));
}

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

DEVICE float warp_max(float x) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}

// Sum over the block, the same in all threads. `scratch` has 32 floats and may be reused after the next
// `__syncthreads`.
DEVICE float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    if (blockDim.x <= 32) return x;
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f;
    return warp_sum(x);
}

// Blocks of a cluster; 1 without clusters.
DEVICE u32 cluster_blocks() {
    u32 n = 1;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
#endif
    return n;
}

DEVICE u32 cluster_rank() {
    u32 n = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(n));
#endif
    return n;
}

// Waits for all blocks of the cluster; their earlier writes to shared memory are visible afterwards.
DEVICE void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

DEVICE void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Writes 16 bytes to the shared memory of another block of the cluster.
DEVICE void give(float* shared, u32 block, float4 v) {
#if __CUDA_ARCH__ >= 900
    u32 here = (u32)__cvta_generic_to_shared(shared), there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};"
                 :: "r"(there), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
#endif
}

// Stores four numbers as elements of a type: 0 f32, 1 f16, 2 bf16. The last two are for sm_80 and later.
DEVICE void store_as(int type, float* out, size_t at, float4 y) {
#if __CUDA_ARCH__ >= 800
    u32 low, high;
    if (type == 1) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(y.y), "f"(y.x));
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(y.w), "f"(y.z));
    } else if (type == 2) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(y.y), "f"(y.x));
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(y.w), "f"(y.z));
    }
    if (type) {
        *(uint2*)((u16*)out + at) = make_uint2(low, high);
        return;
    }
#endif
    *(float4*)(out + at) = y;
}

// The same of two numbers.
DEVICE void store_as(int type, float* out, size_t at, float2 y) {
#if __CUDA_ARCH__ >= 800
    u32 both;
    if (type == 1) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y.y), "f"(y.x));
    else if (type == 2) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y.y), "f"(y.x));
    if (type) {
        *(u32*)((u16*)out + at) = both;
        return;
    }
#endif
    *(float2*)(out + at) = y;
}

// The same of one number.
DEVICE void store_as(int type, float* out, size_t at, float y) {
#if __CUDA_ARCH__ >= 800
    u16 half;
    if (type == 1) asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(y));
    else if (type == 2) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(y));
    if (type) {
        ((u16*)out)[at] = half;
        return;
    }
#endif
    out[at] = y;
}
