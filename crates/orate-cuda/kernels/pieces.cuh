// Operands of warpgroups, in pieces of 64 channels.

#if __CUDA_ARCH__ == 900

#define PIECE 64

// Copies of pieces of x, of HIGHEST rows, by THREADS threads: 16 bytes of each row go to registers, and then
// to a stage in shared memory. ROUNDED: x is stored in 16 bits.
template <bool ROUNDED, int THREADS, int HIGHEST, bool CONVOLVES>
struct Copy {
    static constexpr int EACH = ROUNDED ? 8 : 4, OF_ROW = PIECE / EACH, APART = THREADS / OF_ROW;
    static constexpr int COUNT = (HIGHEST + APART - 1) / APART;

    // Rows from `from` on of a sequence whose first element is `first`. Rows that are missing are zeros.
    template <typename Args, int ROOM>
    static __device__ __forceinline__ void bring(
        const Args& a, float4 (&x)[ROOM], int thread, size_t first, int from, int height) {
        int own = thread / OF_ROW;
        first += thread % OF_ROW * EACH;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int row = own + i * APART, t = from + row;
            bool zero = CONVOLVES && (row >= height || (a.zeros && (u32)t >= (u32)a.time));
            size_t at = first + (size_t)min(max(t, 0), a.time - 1) * a.channels;
            const float4* rows = ROUNDED ? (const float4*)((const u16*)a.x + at) : (const float4*)(a.x + at);
            x[i] = zero ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *rows;
        }
    }

    // Of each 16 channels, one chunk has the first two of every four, the next chunk the others: the order of
    // weights.
    template <int ROOM>
    static __device__ __forceinline__ void put(const float4 (&x)[ROOM], int thread, char* stage) {
        int own = thread / OF_ROW, channel = thread % OF_ROW * EACH;
        u32 chunk = channel / 16 * 2;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (HIGHEST % APART && own + i * APART >= HIGHEST) continue;
            u32 line = own + i * APART;
            char* first = stage + chunk_at(line, chunk) + channel % 16;
            char* second = stage + chunk_at(line, chunk + 1) + channel % 16;
            if (ROUNDED) {
                *(float2*)first = make_float2(x[i].x, x[i].z);
                *(float2*)second = make_float2(x[i].y, x[i].w);
            } else {
                *(u32*)first = halves(x[i].x, x[i].y);
                *(u32*)second = halves(x[i].z, x[i].w);
            }
        }
        publish();
    }
};

#endif
