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
// Upper bits of 16 channels by 16 of K, in each half of a word.
#define HIGH_BITS (PRECISION == 7 ? 4 : 8)
#define HIGH_MASK (PRECISION == 7 ? 0x000f000fu : 0x00ff00ffu)

#if __CUDA_ARCH__ >= 800
// Two of the integers in `word`, plus the offset that makes them positive, as halves: 0x6400 + b is 1024 + b.
#if PRECISION == 4
#define ZERO 0x64806480u  // 1024 + 128
#define PAIRS 2
#elif PRECISION == 5
#define ZERO 0x64086408u  // 1024 + 8
#define PAIRS 4
#elif PRECISION == 8
#define ZERO 0x64206420u  // 1024 + 32
#define PAIRS 4
#else
#define ZERO 0x64006400u  // 1024
#define PAIRS 4
#endif

// Pair `i` of four; `high` has the bits that `word` lacks.
DEVICE u32 pair(u32 word, u32 high, int i) {
#if PRECISION == 4
    return __byte_perm(word ^ 0x80808080u, 0x64646464u, i % PAIRS ? 0x4342 : 0x4140);
#else
    u32 both = ((word >> (4 * i)) & 0x000f000fu) | 0x64006400u;
#if PRECISION == 7
    both |= ((high >> i) & 0x00010001u) << 4;
#elif PRECISION == 8
    both |= ((high >> (2 * i)) & 0x00030003u) << 4;
#endif
    return both;
#endif
}

// Multiplies a pair by a scale that is in both halves, and adds what is. Only the result is rounded.
DEVICE u32 scaled(u32 pair, u32 scale, u32 added) {
    asm("sub.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(ZERO));
#if HAS_MINIMA
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(scale), "r"(added));
#else
    asm("mul.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(scale));
#endif
    return pair;
}

// Two halves of one kind.
DEVICE u32 both_low(u32 x) { return __byte_perm(x, 0, 0x1010); }
DEVICE u32 both_high(u32 x) { return __byte_perm(x, 0, 0x3232); }

// 16 channels by 16 of K, with the scales of this thread's two channels.
DEVICE uint4 widened(Numbers numbers, u32 high, u32 scale, u32 added) {
#if PRECISION == 4
    const u32 words[2] = {numbers.x, numbers.y};
#else
    const u32 words[1] = {numbers};
#endif
    u32 p[4], a = both_low(scale), b = both_high(scale), c = both_low(added), d = both_high(added);
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = pair(words[i / PAIRS], high, i);
    return make_uint4(scaled(p[0], a, c), scaled(p[1], b, d), scaled(p[2], a, c), scaled(p[3], b, d));
}
#endif
#endif
