// Weights in blocks, whose order in memory is that of weights.rs, as operands of tensor cores: halves of f16.
// PRECISION is that of `matmul.cu`, from 4 on.
#if PRECISION >= 4

// Numbers of a thread for 16 channels by 16 of K, and as stored, for 32 channels: their lower four bits,
// where there are more.
#if PRECISION == 4
typedef uint2 Numbers;
typedef uint4 Stored;
#else
typedef u32 Numbers;
typedef uint2 Stored;
#endif

// Scales of four channels; after them what is added, if there are minima. A word is of two channels.
#if PRECISION == 6 || PRECISION == 7
#define HAS_MINIMA 1
typedef uint4 Scales;
#else
#define HAS_MINIMA 0
typedef uint2 Scales;
#endif
// Blocks of 16 of K with the same scales, and those whose upper bits are in one word of a thread.
#define PER_SCALE (PRECISION == 8 ? 1 : 2)
#define PER_PLANE (PRECISION == 7 ? 2 : 1)
#define HAS_PLANES (PRECISION >= 7)
// By how much upper bits of the second 16 channels are higher in a word, and where those of 16 channels by 16
// of K are.
#define HIGH_BITS (PRECISION == 7 ? 2 : 8)
#define HIGH_MASK (PRECISION == 7 ? 0x00330033u : 0x00ff00ffu)

#if __CUDA_ARCH__ >= 800
// 1024 in both halves: as the lower ten bits of a half of f16, an integer is added to it. Blocks are launched
// with one row of threads, which compilers do not know, so it stays in a register: with a mask an instruction
// has no room for another constant.
DEVICE u32 offset() { return 0x64006400u * blockDim.y; }

// Two of the integers in `word`, pair `i` of four, as halves; `high` has the bits that `word` lacks.
DEVICE u32 pair(u32 word, u32 high, int i) {
    u32 both;
#if PRECISION == 4
    both = __byte_perm(word ^ 0x80808080u, offset(), i % 2 ? 0x5352 : 0x5150);
    asm("sub.f16x2 %0, %0, %1;" : "+r"(both) : "r"(0x64806480u));  // 1024 + 128
#else
    // Every other pair is four bits higher, so 16 times as much, which takes no shift.
    bool is_higher = i % 2;
    both = ((word >> (i / 2 * 8)) & (is_higher ? 0x00f000f0u : 0x000f000fu)) | offset();
#if PRECISION == 7
    both |= (high << (4 - i / 2)) & (is_higher ? 0x01000100u : 0x00100010u);
#elif PRECISION == 8
    both |= (high << (4 - i / 2 * 2)) & (is_higher ? 0x03000300u : 0x00300030u);
#endif
    // Without 1024, and what made numbers positive: 8, 32 or nothing. Of a sixteenth, 64 is left of 1024.
    constexpr u32 SIXTEENTH = 0x2c002c00u;
    constexpr u32 LESS = PRECISION == 5 ? 0x64086408u : PRECISION == 8 ? 0x64206420u : 0x64006400u;
    constexpr u32 MINUS = PRECISION == 5 ? 0xd480d480u : PRECISION == 8 ? 0xd600d600u : 0xd400d400u;
    if (is_higher) asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(both) : "r"(SIXTEENTH), "r"(MINUS));
    else asm("sub.f16x2 %0, %0, %1;" : "+r"(both) : "r"(LESS));
#endif
    return both;
}

// Multiplies a pair by a scale, the lower or upper half of a word, and adds that half of another. Only the
// result is rounded.
#define BY_HALF(OF, ADDED) "{.reg .f16 a, b, c, d; .reg .b32 s, t; mov.b32 {a, b}, %1; mov.b32 {c, d}, %2;" \
    "mov.b32 s, {" OF ", " OF "}; mov.b32 t, {" ADDED ", " ADDED "};"
DEVICE u32 scaled(u32 pair, u32 scale, u32 added, bool upper) {
#if HAS_MINIMA
    if (upper) asm(BY_HALF("b", "d") "fma.rn.f16x2 %0, %0, s, t;}" : "+r"(pair) : "r"(scale), "r"(added));
    else asm(BY_HALF("a", "c") "fma.rn.f16x2 %0, %0, s, t;}" : "+r"(pair) : "r"(scale), "r"(added));
#else
    if (upper) asm(BY_HALF("b", "d") "mul.f16x2 %0, %0, s;}" : "+r"(pair) : "r"(scale), "r"(added));
    else asm(BY_HALF("a", "c") "mul.f16x2 %0, %0, s;}" : "+r"(pair) : "r"(scale), "r"(added));
#endif
    return pair;
}
#undef BY_HALF

// 16 channels by 16 of K, with the scales of this thread's two channels.
DEVICE uint4 widened(Numbers numbers, u32 high, u32 scale, u32 added) {
#if PRECISION == 4
    const u32 words[2] = {numbers.x, numbers.y};
#else
    const u32 words[1] = {numbers};
#endif
    u32 p[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        p[i] = scaled(pair(words[PRECISION == 4 ? i / 2 : 0], high, i), scale, added, i % 2);
    return make_uint4(p[0], p[1], p[2], p[3]);
}
#endif
#endif
