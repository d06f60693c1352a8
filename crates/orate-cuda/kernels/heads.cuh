// Heads whose channels a warp has, four per thread: RMS norm and rotary positions. All threads of the warp
// must call these; those past the head have zeros.

// RMS norm of a head of `d` channels.
DEVICE float4 normed_head(float4 v, float4 weight, int d, float eps) {
    float sum = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
    float factor = 1.0f / sqrtf(sum / d + eps);
    return make_float4(
        v.x * factor * weight.x, v.y * factor * weight.y, v.z * factor * weight.z, v.w * factor * weight.w);
}

// Rotates the pair of channels i and d/2 + i by the angle whose cosine is in `cosines` and whose sine is
// `apart` numbers after it.
DEVICE float4 rotated_head(float4 v, const float* cosines, size_t apart, int d) {
    int lane = threadIdx.x % 32, quads = d / 8;
    bool is = lane < 2 * quads, low = lane < quads;
    float4 cosine = make_float4(0.0f, 0.0f, 0.0f, 0.0f), sine = cosine, y;
    if (is) {
        const float* at = cosines + 4 * (low ? lane : lane - quads);
        cosine = *(const float4*)at, sine = *(const float4*)(at + apart);
    }
    int other = low ? lane + quads : lane - quads;
    y.x = __shfl_sync(0xffffffffu, v.x, other), y.y = __shfl_sync(0xffffffffu, v.y, other);
    y.z = __shfl_sync(0xffffffffu, v.z, other), y.w = __shfl_sync(0xffffffffu, v.w, other);
    float sign = low ? -1.0f : 1.0f;
    return make_float4(
        v.x * cosine.x + sign * y.x * sine.x, v.y * cosine.y + sign * y.y * sine.y,
        v.z * cosine.z + sign * y.z * sine.z, v.w * cosine.w + sign * y.w * sine.w);
}
