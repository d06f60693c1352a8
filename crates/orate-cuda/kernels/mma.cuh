// Instructions of tensor cores that sum in f32, and rounding of their operands. Which of them a program has
// depends on PRECISION, as in `matmul.cu`.

// Factor of rows that are multiplied before the root of their norm is known: f16 ends at 65,504.
#if PRECISION == 2 || PRECISION >= 4
#define BEFORE_NORM 0.0625f
#else
#define BEFORE_NORM 1.0f
#endif

#if __CUDA_ARCH__ >= 800
DEVICE void mma_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rounds to 11 significant bits. The instruction for it is slower than two integer instructions.
DEVICE u32 tf32(float x) {
    return (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
}

#if PRECISION >= 2
DEVICE void mma_half(float (&c)[4], const uint4& a, u32 b0, u32 b1) {
#if PRECISION != 3
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// `first` in the low half.
DEVICE u32 halves(float first, float second) {
    u32 y;
#if PRECISION != 3
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
#endif
    return y;
}
#endif
#endif

