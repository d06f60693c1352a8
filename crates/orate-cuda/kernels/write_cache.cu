// Rounds rows of keys and values to a compact type (see `cache_rows.cuh`) in place: state [B, N, C] with rows
// [B, T, C] in place of those from first[b] on. A thread has two elements, or four for q8_0, so that eight
// threads share a scale.
//
// Rows past the end are clamped, so that nothing is written out of bounds; the caller checks positions.

struct Args {
    char* state;
    const float* rows;
    const int* first;  // null: `from`
    int len, n, t, c, from, cache;
};

extern "C" __global__ void write_cache(const Args a) {
    wait_for_previous();
    let_next_start();
    if (a.len == 0) return;
    bool blocks = a.cache == BLOCKS;
    int each = blocks ? 4 : 2, threads = a.c / each;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    // Threads that share a scale stay together: 16 of them have 64 elements, and all threads of a warp meet
    // below.
    bool is = i < a.len / each;
    if (!blocks && !is) return;
    int row = is ? i / threads : 0, at = is ? each * (i - row * threads) : 0, b = row / a.t;
    int first = min(max(a.first ? a.first[b] : a.from, 0), a.n - a.t);
    const float* x = a.rows + (size_t)row * a.c + at;
    char* to = a.state + ((size_t)b * a.n + first + row % a.t) * kept_bytes(a.cache, a.c);
    if (!blocks) {
        *(u32*)(to + 2 * at) = kept_pair(a.cache, x[0], x[1]);
        return;
    }
    float4 v = is ? *(const float4*)x : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float inverse;
    u16 scale = kept_scale(v, inverse);
    if (!is) return;
    *(u32*)(to + at) = kept_bytes_of(v, inverse);
    if (at % 32 == 0) *(u16*)(to + a.c + at / 32 * 2) = scale;
}
