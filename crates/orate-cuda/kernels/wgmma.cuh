// Matmuls of a warpgroup: four warps that multiply together (sm_90a). They run asynchronously: operands must
// be as `start_products` found them until `wait_for_products` returns.
//
// The left operand is in registers, as in `mma.cuh`: 16 channels by 16 of K for each warp. The right one is
// in shared memory, in lines of 128 bytes, one after the other. In line i the 16 bytes of chunk c are at
// c ^ i % 8, so that eight lines of a chunk are in different banks: without it attention took twice as long.

// Writes to registers and shared memory before these are visible to the matmuls after them.
DEVICE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void start_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for the threads of a group of warps.
DEVICE void group_barrier(u32 group, u32 threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(group + 1), "r"(threads) : "memory");
}
// Waits until at most COUNT of the groups that `end_products` ended are not complete.
template <int COUNT>
DEVICE void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(COUNT) : "memory");
}

// Keeps the compiler from moving or copying registers of an operand across this point.
template <int COUNT>
DEVICE void keep(float (&x)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3]) :: "memory");
}

template <int COUNT>
DEVICE void keep(uint4 (&x)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+r"(x[i].x), "+r"(x[i].y), "+r"(x[i].z), "+r"(x[i].w) :: "memory");
}

// Alignment of the first line, in bytes.
#define LINES 1024

// The shared memory of a block, from where lines can begin.
DEVICE char* lines_in(float4* shared) {
    return (char*)shared + (0u - (u32)__cvta_generic_to_shared(shared)) % LINES;
}

// Bytes from the beginning of lines to a chunk.
DEVICE u32 chunk_at(u32 line, u32 chunk) { return line * 128 + (chunk ^ line % 8) * 16; }

// Describes a right operand that begins with a line. One of 16 of K begins 32 bytes after the last or, if the
// operand is transposed, 16 lines.
DEVICE u64 right_operand(const char* line) {
    u32 at = (u32)__cvta_generic_to_shared(line);
    return (u64)(at >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// The same of an operand in lines of 64 bytes, in which the 16 bytes of chunk c of line i are at
// c ^ i / 2 % 4. It may be a left operand, too.
DEVICE u64 narrow_operand(u32 line) {
    return (u64)(line >> 4) | (u64)1 << 16 | (u64)(512 >> 4) << 32 | (u64)2 << 62;
}

#if PRECISION == 3
#define HALF "bf16"
#else
#define HALF "f16"
#endif

// Whether a matmul is added to what is there.
enum Sum { SET, ADD };

// Lines are rows of 64 of K each or, transposed, of 64 rows for one of K.
enum Right { ROWS_OF_K, COLUMNS_OF_K };

#define FOUR(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define OPERAND(v) "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)

// Adds 64 channels by 32 rows by 16 of K, whose lines are rows: 8 rows in each of `c`.
DEVICE void multiply_32(float (&c)[4][4], const uint4& left, u64 right) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." HALF "." HALF " "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3)
                 : OPERAND(left), "l"(right));
}

// The same of 48 rows.
DEVICE void multiply_48(float (&c)[6][4], const uint4& left, u64 right) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32." HALF "." HALF " "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, "
                 "{%24,%25,%26,%27}, %28, 1, 1, 1, 0;"
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5)
                 : OPERAND(left), "l"(right));
}

// The same, or sets, 64 channels by 64 rows by 16 of K.
template <Sum SUM, Right RIGHT>
DEVICE void multiply_64(float (&c)[8][4], const uint4& left, u64 right) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." HALF "." HALF " "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, %37, 1, 1, %38;"
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)
                 : OPERAND(left), "l"(right), "n"((int)SUM), "n"((int)RIGHT));
}

// Adds 64 channels by 96 rows by 16 of K, whose lines are rows.
DEVICE void multiply_96(float (&c)[12][4], const uint4& left, u64 right) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32." HALF "." HALF " "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "
                 "{%48,%49,%50,%51}, %52, 1, 1, 1, 0;"
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7),
                   FOUR(8), FOUR(9), FOUR(10), FOUR(11)
                 : OPERAND(left), "l"(right));
}

// The same of a left operand in shared memory: 64 rows by 96 channels, in lines of 16 or more of K.
DEVICE void multiply_96(float (&c)[12][4], u64 left, u64 right) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32." HALF "." HALF " "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "
                 "%48, %49, 1, 1, 1, 0, 0;"
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7),
                   FOUR(8), FOUR(9), FOUR(10), FOUR(11)
                 : "l"(left), "l"(right));
}

// The same of 128 rows.
DEVICE void multiply_128(float (&c)[16][4], const uint4& left, u64 right) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." HALF "." HALF " "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "{%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7),
                   FOUR(8), FOUR(9), FOUR(10), FOUR(11), FOUR(12), FOUR(13), FOUR(14), FOUR(15)
                 : OPERAND(left), "l"(right));
}

// The same of 144 rows.
DEVICE void multiply_144(float (&c)[18][4], const uint4& left, u64 right) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n144k16.f32." HALF "." HALF " "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71}, "
                 "{%72,%73,%74,%75}, %76, 1, 1, 1, 0;"
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7),
                   FOUR(8), FOUR(9), FOUR(10), FOUR(11), FOUR(12), FOUR(13), FOUR(14), FOUR(15),
                   FOUR(16), FOUR(17)
                 : OPERAND(left), "l"(right));
}

#undef FOUR
#undef OPERAND

// Adds by as many rows as `c` has.
DEVICE void multiply(float (&c)[4][4], const uint4& left, u64 right) { multiply_32(c, left, right); }
DEVICE void multiply(float (&c)[6][4], const uint4& left, u64 right) { multiply_48(c, left, right); }
DEVICE void multiply(float (&c)[8][4], const uint4& left, u64 right) {
    multiply_64<ADD, ROWS_OF_K>(c, left, right);
}
DEVICE void multiply(float (&c)[12][4], const uint4& left, u64 right) { multiply_96(c, left, right); }
DEVICE void multiply(float (&c)[16][4], const uint4& left, u64 right) { multiply_128(c, left, right); }
DEVICE void multiply(float (&c)[18][4], const uint4& left, u64 right) { multiply_144(c, left, right); }

// Writes a warp's sums, 16 channels by 8 · COUNT rows, to rows of WIDTH floats in shared memory.
template <int WIDTH, int COUNT>
DEVICE void put_sums(float* to, const float (&acc)[COUNT][4]) {
    u32 lane = threadIdx.x % 32;
    to += lane / 4;
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) to[(8 * j + lane % 4 * 2 + i % 2) * WIDTH + i / 2 * 8] = acc[j][i];
}
