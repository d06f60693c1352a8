// Rotary positions with split halves, their tables, and the time embedding. Angles are few, so they are
// double precision.
//
//   rotary_table    out [B, 2, T, D/2]: cosines, then sines, of t / length · theta[j]; a length of 0 counts
//                   as 1
//   rope_table      out [B, 2, T, D/2]: cosines, then sines, of (first[b] + t) · f, where f is base^(−2j /
//                   D), or that scaled as in `RopeScaling`
//   rotary          x [B, T, H·D], table [B or 1, 2, T, D/2] → (a·cos − b·sin, a·sin + b·cos) of the halves
//                   of each head
//   time_embedding  x [N] → [N, dim]: sines, then cosines, of 1000 · x · 10000^(−j / (dim/2 − 1))

struct TableArgs {
    const float* theta;
    const int* lens;
    float* out;
    int batch, time, half;
};

extern "C" __global__ void rotary_table(const TableArgs a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.batch * a.time * a.half) return;
    int j = i % a.half, t = i / a.half % a.time, b = i / a.half / a.time;
    double length = a.lens ? max(a.lens[b], 1) : a.time;
    double sine, cosine;
    sincos(t / length * (double)a.theta[j], &sine, &cosine);
    float* out = a.out + ((size_t)b * 2 * a.time + t) * a.half + j;
    out[0] = (float)cosine;
    out[(size_t)a.time * a.half] = (float)sine;
}

struct RopeArgs {
    const int* first;  // [B]; null: `from`
    float* out;
    int batch, time, half, from;
    // Doubles: low halves, then high ones. A factor of 1 scales nothing.
    u32 base[2], factor[2], low[2], high[2], length[2];
};

DEVICE double both(const u32 (&halves)[2]) { return __hiloint2double((int)halves[1], (int)halves[0]); }

extern "C" __global__ void rope_table(const RopeArgs a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = i % a.half;
    double f = pow(both(a.base), -(double)j / a.half), low = both(a.low);
    double times = both(a.length) * f / 6.283185307179586;
    double s = fmin(fmax((times - low) / (both(a.high) - low), 0.0), 1.0);
    f = (1.0 - s) * f / both(a.factor) + s * f;
    wait_for_previous();
    let_next_start();
    if (i >= a.batch * a.time * a.half) return;
    int t = i / a.half % a.time, b = i / a.half / a.time;
    double sine, cosine;
    sincos(((double)(a.first ? a.first[b] : a.from) + t) * f, &sine, &cosine);
    float* out = a.out + ((size_t)b * 2 * a.time + t) * a.half + j;
    out[0] = (float)cosine;
    out[(size_t)a.time * a.half] = (float)sine;
}

struct RotaryArgs {
    const float* x;
    const float* table;
    float* out;
    int len, time, channels, half, tables;
};

// One thread per pair.
extern "C" __global__ void rotary(const RotaryArgs a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.len / 2) return;
    int j = i % a.half, head = i / a.half % (a.channels / 2 / a.half), row = i / (a.channels / 2);
    int t = row % a.time, b = row / a.time % a.tables;
    const float* table = a.table + ((size_t)b * 2 * a.time + t) * a.half + j;
    float c = table[0], s = table[(size_t)a.time * a.half];
    size_t at = (size_t)row * a.channels + head * 2 * a.half + j;
    float x = a.x[at], y = a.x[at + a.half];
    a.out[at] = x * c - y * s;
    a.out[at + a.half] = x * s + y * c;
}

struct TimeArgs {
    const float* x;
    float* out;
    int len, dim;
};

extern "C" __global__ void time_embedding(const TimeArgs a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x, half = a.dim / 2;
    if (i >= a.len * half) return;
    int j = i % half, n = i / half;
    double sine, cosine;
    sincos(1000.0 * (double)a.x[n] * pow(10000.0, -(double)j / (half - 1.0)), &sine, &cosine);
    a.out[(size_t)n * a.dim + j] = (float)sine;
    a.out[(size_t)n * a.dim + half + j] = (float)cosine;
}
