// Heads whose channels a warp has, four per thread: RMS norm and rotary positions. All threads of the warp
// must call these; those past the head have zeros.

// RMS norm of a head of `d` channels.
DEVICE float4 normed_head(float4 v, float4 weight, int d, float eps) {
    float sum = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
    float factor = 1.0f / sqrtf(sum / d + eps);
    return make_float4(
        v.x * factor * weight.x, v.y * factor * weight.y, v.z * factor * weight.z, v.w * factor * weight.w);
}

// Cosines and sines of four channels.
struct Angle {
    float4 cosine, sine;
};

// Those of a head of `d` channels, whose sines are `apart` numbers after their cosines.
DEVICE Angle angle_of_head(const float* cosines, size_t apart, int d) {
    int lane = threadIdx.x % 32, quads = d / 8;
    float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (lane >= 2 * quads) return Angle{zero, zero};
    const float* at = cosines + 4 * (lane < quads ? lane : lane - quads);
    return Angle{*(const float4*)at, *(const float4*)(at + apart)};
}

// Rotates the pair of channels i and d/2 + i.
DEVICE float4 rotated_by(float4 v, Angle a, int d) {
    int lane = threadIdx.x % 32, quads = d / 8;
    bool low = lane < quads;
    int other = low ? lane + quads : lane - quads;
    float4 y;
    y.x = __shfl_sync(0xffffffffu, v.x, other), y.y = __shfl_sync(0xffffffffu, v.y, other);
    y.z = __shfl_sync(0xffffffffu, v.z, other), y.w = __shfl_sync(0xffffffffu, v.w, other);
    float sign = low ? -1.0f : 1.0f;
    return make_float4(
        v.x * a.cosine.x + sign * y.x * a.sine.x, v.y * a.cosine.y + sign * y.y * a.sine.y,
        v.z * a.cosine.z + sign * y.z * a.sine.z, v.w * a.cosine.w + sign * y.w * a.sine.w);
}

DEVICE float4 rotated_head(float4 v, const float* cosines, size_t apart, int d) {
    return rotated_by(v, angle_of_head(cosines, apart, d), d);
}
