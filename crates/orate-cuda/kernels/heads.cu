// Heads between a matmul and attention: norm, rotation and writes to a cache, for up to three values at a
// time.
//
//   x [B·T, H·D] → RMS norm of each head, weight [D] → rotary positions, table [B or 1, 2, T, D/2]
//                → out [B·T, H·D], or rows first[b] … of a state [B, N, H·D]
//
// Norm and table are optional. D is a multiple of 8, up to 128, and of 32 for q8_0 states. A warp has one
// head of one row, a thread four channels. States may have a compact type (see `cache_rows.cuh`).

struct Args {
    const float* x[3];
    const float* weight[3];
    const float* table[3];
    const int* first[3];  // null: `from`
    float* out[3];
    int heads[3], capacity[3], from[3], tables[3];  // capacity 0: no state
    float eps[3];
    int rows, time, d, cache;
};

#define PICK(FIELD) (part == 0 ? a.FIELD[0] : part == 1 ? a.FIELD[1] : a.FIELD[2])

extern "C" __global__ void __launch_bounds__(256) heads(const Args a) {
    int part = blockIdx.y, lane = threadIdx.x % 32;
    int heads = PICK(heads), item = blockIdx.x * 8 + threadIdx.x / 32;
    int row = item / heads, head = item - row * heads;
    const float* weight = PICK(weight);
    bool is = lane < a.d / 4;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 w = weight && is ? ((const float4*)weight)[lane] : zero;
    wait_for_previous();
    let_next_start();
    if (row >= a.rows) return;
    const float4* x = (const float4*)(PICK(x) + ((size_t)row * heads + head) * a.d);
    float4 v = is ? x[lane] : zero;
    const float* table = PICK(table);
    int t = row % a.time, b = row / a.time, half = a.d / 2;
    if (weight) v = normed_head(v, w, a.d, PICK(eps));
    if (table) {
        size_t from = ((size_t)(b % PICK(tables)) * 2 * a.time + t) * half;
        v = rotated_head(v, table + from, (size_t)a.time * half, a.d);
    }
    int capacity = PICK(capacity);
    float inverse = 0.0f;
    u16 scale = capacity && a.cache == BLOCKS ? kept_scale(v, inverse) : 0;
    if (!is) return;
    size_t to = row;
    if (capacity) {
        const int* first = PICK(first);
        to = (size_t)b * capacity + min(max(first ? first[b] : PICK(from), 0), capacity - a.time) + t;
    }
    if (!capacity || a.cache == FLOATS) {
        ((float4*)(PICK(out) + (to * heads + head) * a.d))[lane] = v;
        return;
    }
    int width = heads * a.d, at = head * a.d + 4 * lane;
    char* state = (char*)PICK(out) + to * kept_bytes(a.cache, width);
    if (a.cache == BLOCKS) {
        *(u32*)(state + at) = kept_bytes_of(v, inverse);
        if (lane % 8 == 0) *(u16*)(state + width + at / 32 * 2) = scale;
    } else {
        *(uint2*)(state + 2 * at) = make_uint2(kept_pair(a.cache, v.x, v.y), kept_pair(a.cache, v.z, v.w));
    }
}
