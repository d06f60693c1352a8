// Rows of keys and values in a compact type. A row of C elements is C 16-bit numbers, or C signed bytes
// followed by C / 32 scales in f16, one per 32 bytes. Rows are whole four-byte words.

// In the order of `cache_type` on the host.
enum Cache { FLOATS = 0, HALVES = 1, UPPER_HALVES = 2, BLOCKS = 3 };

DEVICE float from_half(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// Rounds to nearest even; infinite beyond 65504.
DEVICE u16 to_half(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

DEVICE u16 to_upper_half(float x) {
    u32 bits = __float_as_uint(x);
    if (x != x) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// An element of a table of floats or of 16-bit numbers.
DEVICE float element(const char* table, int type, size_t at) {
    if (type == FLOATS) return ((const float*)table)[at];
    u16 bits = ((const u16*)table)[at];
    return type == HALVES ? from_half(bits) : __uint_as_float((u32)bits << 16);
}

// Bytes of a row.
DEVICE size_t kept_bytes(int cache, int width) {
    return cache == BLOCKS ? (size_t)width + width / 16 : 2 * (size_t)width;
}

// Four numbers of a block with a stored scale.
DEVICE float4 widened_bytes(u32 word, u16 stored) {
    float scale = from_half(stored);
    return make_float4(
        scale * (float)(signed char)(word & 255), scale * (float)(signed char)(word >> 8 & 255),
        scale * (float)(signed char)(word >> 16 & 255), scale * (float)(signed char)(word >> 24));
}

// Four 16-bit numbers.
template <int CACHED>
DEVICE float4 widened_pairs(uint2 two) {
    if (CACHED == HALVES) {
        return make_float4(from_half((u16)(two.x & 0xffff)), from_half((u16)(two.x >> 16)),
                           from_half((u16)(two.y & 0xffff)), from_half((u16)(two.y >> 16)));
    }
    return make_float4(__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xffff0000u),
                       __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xffff0000u));
}

// Elements at .. at + 3 of a row; `width` and `at` are multiples of 4.
template <int CACHED>
DEVICE float4 kept_four(const char* row, int width, int at) {
    if (CACHED == BLOCKS)
        return widened_bytes(*(const u32*)(row + at), *(const u16*)(row + width + at / 32 * 2));
    return widened_pairs<CACHED>(*(const uint2*)(row + 2 * (size_t)at));
}

// Element `at` of a row.
template <int CACHED>
DEVICE float kept_one(const char* row, int width, int at) {
    if (CACHED == BLOCKS)
        return from_half(*(const u16*)(row + width + at / 32 * 2)) * (float)*(const signed char*)(row + at);
    u16 bits = *(const u16*)(row + 2 * (size_t)at);
    return CACHED == HALVES ? from_half(bits) : __uint_as_float((u32)bits << 16);
}

// Packs two numbers into a word.
DEVICE u32 kept_pair(int cache, float x, float y) {
    u32 low = cache == HALVES ? to_half(x) : to_upper_half(x);
    u32 high = cache == HALVES ? to_half(y) : to_upper_half(y);
    return low | high << 16;
}

// Returns the stored scale of 32 numbers, of which 8 neighboring threads have four each, and the factor that
// turns numbers into bytes. All threads of the warp must call this.
DEVICE u16 kept_scale(float4 v, float& inverse) {
    float largest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int lane = 4; lane > 0; lane /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
    u16 scale = to_half(fminf(largest / 127.0f, 65504.0f));
    float x = from_half(scale);
    inverse = x == 0.0f ? 0.0f : 1.0f / x;
    return scale;
}

DEVICE u32 kept_byte(float x, float inverse) {
    return (u32)(int)fminf(fmaxf(rintf(x * inverse), -127.0f), 127.0f) & 255;
}

// Packs four numbers as bytes of a word.
DEVICE u32 kept_bytes_of(float4 v, float inverse) {
    return kept_byte(v.x, inverse) | kept_byte(v.y, inverse) << 8 | kept_byte(v.z, inverse) << 16 |
           kept_byte(v.w, inverse) << 24;
}
