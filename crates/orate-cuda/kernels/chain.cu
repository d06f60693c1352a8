// Matmuls and attention of one or two rows, each reading what the one before makes, in one launch.
//
// A launch per op leaves memory idle while a kernel starts, waits for its operand and ends. Here a block per
// multiprocessor stays, and one warp streams the weights of all ops to come into a ring in shared memory. So
// weights of an op are there when its operand is, and an op takes as long as its result takes to other
// blocks.
//
// Blocks exchange values through slots: words of data, each followed by the number of the run. Whoever reads
// one waits until the number is that of this run, so writing needs no fence. Two slots are read and written
// as 16 bytes. Each op has slots of its own, so nothing is overwritten within a run. A thread per block first
// waits for a counter of those that have written: if all threads waited for slots, they would keep memory
// busy.
//
// All blocks must run at once: the launch is cooperative.

// Threads of a block that compute; one more warp copies.
#define CONSUMERS 256
#define WARPS 8
// Blocks of 16 of K by 16 channels in a stage of the ring, bytes of one, and of a stage.
#define DEPTH 8
#define BLOCK 512
#define STAGE (DEPTH * BLOCK)
#define STAGES 32
// Most halves of both rows of x, and 16 channels of a block, counting both parts of gated ones.
#define WIDEST 12288
#define UNITS 8
// Lines of x per thread.
#define LINES_EACH 4
// Floats of a partial result of attention: values, maximum, sum.
#define KEPT 132
// Keys in flight per thread.
#define AHEAD 4
// Most blocks that share the keys of a head.
#define SPLITS 8

// Where a value is.
enum Form {
    PLAIN,   // f32
    FLOATS,  // slots of f32
    HALVES   // slots of two 16-bit numbers
};

struct Op {
    // Of a matmul: weights [N/32, K/16, 2, 32 threads, 16 bytes], as in `matmul.cu`.
    const char* w;
    // Operand [rows, K], or that of attention, which holds queries, keys and values.
    const void* x;
    // Norm as in `matmul.cu`; of attention, the norms of queries and of keys.
    const float* norm;
    const float* shift;
    // Of a matmul; of attention, the rotary tables of queries and of keys.
    const float* bias;
    const void* residual;
    // Results, in f32 and in slots; either may be null.
    float* out;
    u32* slots;
    // Of attention: position of the query, caches, slots for partial results.
    const int* first;
    void* keys;
    void* values;
    u32* partials;
    int attends, rows, k, n;
    int x_form, residual_form, slots_form;
    // Units of work, and the block that has the first.
    int units, start;
    // As in `matmul.cu`.
    int activation, first_part, second_part, gated;
    float eps;
    // Of attention.
    float eps_of_keys, scale;
    int heads, group, width, capacity, at, splits;
    int offset[3], stride[3], tables[2];
    int writers;    // blocks that write the result
    int unused;     // whole 16 bytes
};

#define OPS 144

struct Args {
    // Number of the last run, and blocks that have finished this one; then, for each op, those that have
    // written its result.
    u32* state;
    int count, padding;
    Op ops[OPS];
};

#if __CUDA_ARCH__ >= 900

struct Shared {
    u64 full[STAGES], empty[STAGES];
    float scratch[2][WARPS];
    // Copies of the arguments: reading constants for the first time takes longer than an op.
    alignas(16) Op ops[OPS];
    alignas(16) uint4 ring[STAGES][STAGE / 16];
    alignas(16) u32 x[WIDEST / 2];
    // Also partial results of attention.
    alignas(16) float sums[UNITS][WARPS][2][16];
};

DEVICE u32 address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

DEVICE void wait_for(u64* barrier, u32 parity) {
    asm volatile("{ .reg .pred p; LOOP: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra LOOP; }"
                 :: "r"(address(barrier)), "r"(parity) : "memory");
}

// Waits for all threads that compute.
DEVICE void meet() { asm volatile("bar.sync 1, %0;" :: "n"(CONSUMERS) : "memory"); }

DEVICE uint4 line_at(const u32* slots, int line) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(slots + 4 * (size_t)line) : "memory");
    return v;
}

DEVICE void write_line(u32* slots, int line, u32 first, u32 second, u32 run) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "l"(slots + 4 * (size_t)line), "r"(first), "r"(run), "r"(second), "r"(run) : "memory");
}

DEVICE bool is_of(uint4 line, u32 run) { return line.y == run && line.w == run; }

DEVICE uint4 awaited(const u32* slots, int line, u32 run) {
    uint4 v;
    do v = line_at(slots, line);
    while (!is_of(v, run));
    return v;
}

// Two neighbors of a value in f32, as slots, which may not be of this run yet.
DEVICE uint4 two_of(const void* x, int form, int line, u32 run) {
    if (form != PLAIN) return line_at((const u32*)x, line);
    float2 both = ((const float2*)x)[line];
    return make_uint4(__float_as_uint(both.x), run, __float_as_uint(both.y), run);
}

// Counts this block as a writer of a result. Called by one thread.
DEVICE void count_writer(u32* counter) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" :: "l"(counter) : "memory");
}

// Waits until almost all blocks have written a result: reading its slots takes as long as the others need.
DEVICE void wait_for_writers(const u32* counter, int writers) {
    if (threadIdx.x == 0) {
        u32 found;
        do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
        while (found < writers - writers / 8);
    }
    meet();
}

// This block's first unit.
DEVICE int first_unit(const Op& op) {
    int unit = (int)blockIdx.x - op.start;
    return unit < 0 ? unit + gridDim.x : unit;
}

// Sum over the threads that compute. Every other call may use the same scratch.
DEVICE float total(float x, float* scratch) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    meet();
    x = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) x += scratch[i];
    return x;
}

// Prefetches the vectors of an op into the second-level cache.
DEVICE void bring_vectors(Shared& s, int i, int count_of_ops) {
    if (i >= count_of_ops || s.ops[i].attends) return;
    const Op& op = s.ops[i];
    for (int at = threadIdx.x % 32 * 32; at < op.k; at += 32 * 32) {
        if (op.norm) asm volatile("prefetch.global.L2 [%0];" :: "l"(op.norm + at));
        if (op.shift) asm volatile("prefetch.global.L2 [%0];" :: "l"(op.shift + at));
    }
    if (!op.bias) return;
    for (int at = threadIdx.x % 32 * 32; at < op.n; at += 32 * 32)
        asm volatile("prefetch.global.L2 [%0];" :: "l"(op.bias + at));
}

// Copies the weights of this block's units, of one op after the other.
DEVICE void stream_weights(int count_of_ops, Shared& s) {
    int lane = threadIdx.x % 32;
    u32 next = 0;
    for (int i = 0; i < count_of_ops; i++) {
        if (blockIdx.x == i % gridDim.x) bring_vectors(s, i + 4, count_of_ops);
        const Op& op = s.ops[i];
        if (op.attends) continue;
        int blocks = op.k / 16;
        for (int unit = first_unit(op); unit < op.units; unit += gridDim.x) {
            for (int part = 0; part <= op.gated; part++) {
                int half = unit + (part ? op.first_part / 16 : 0);
                const char* from = op.w + (size_t)(half / 2) * blocks * 2 * BLOCK;
                from += half % 2 * BLOCK + 16 * lane;
                for (int block = 0; block < blocks; block += DEPTH, next++) {
                    u32 stage = next % STAGES, lap = next / STAGES;
                    if (lap > 0) wait_for(&s.empty[stage], (lap - 1) & 1);
#pragma unroll
                    for (int j = 0; j < DEPTH; j++)
                        if (block + j < blocks)
                            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                                         :: "r"(address(&s.ring[stage][32 * j + lane])),
                                            "l"(from + (size_t)(block + j) * 2 * BLOCK) : "memory");
                    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                                 :: "r"(address(&s.full[stage])) : "memory");
                }
            }
        }
    }
}

// The code below runs once per op, so it is fetched from memory again each time: little of it is as important
// as little work.

// LINES lines of x per thread, all from `first` on, as they arrive.
template <int LINES>
DEVICE void lines_of(const Op& op, int first, int lines, u32 run, uint4 (&v)[LINES]) {
    bool ready;
    do {
        ready = true;
#pragma unroll
        for (int i = 0; i < LINES; i++) {
            int line = threadIdx.x + i * CONSUMERS;
            if (line >= lines) {
                v[i] = make_uint4(0, 0, 0, 0);
            } else {
                v[i] = two_of(op.x, op.x_form, first + line, run);
                ready &= is_of(v[i], run);
            }
        }
    } while (!ready);
}

// Puts the rows of x, normed, into shared memory as halves.
template <int LINES>
DEVICE void normed_rows(const Op& op, Shared& s, u32 run, const u32* counter) {
    int t = threadIdx.x, lines = op.k / 2, rows = op.rows;
    bool centers = op.shift;
    float2 factor[LINES], added[LINES];
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        int line = min(t + i * CONSUMERS, lines - 1);
        factor[i] = ((const float2*)op.norm)[line];
        added[i] = centers ? ((const float2*)op.shift)[line] : make_float2(0.0f, 0.0f);
    }
    float per = 1.0f / op.k, eps = op.eps;
    if (op.x_form != PLAIN) wait_for_writers(counter - 1, (&op)[-1].writers);
#pragma unroll 1
    for (int row = 0; row < rows; row++) {
        uint4 found[LINES];
        lines_of(op, row * lines, lines, run, found);
        float2 v[LINES];
        float mean = 0.0f, squares = 0.0f;
#pragma unroll
        for (int i = 0; i < LINES; i++) {
            v[i].x = __uint_as_float(found[i].x), v[i].y = __uint_as_float(found[i].z);
            mean += v[i].x + v[i].y;
        }
        // Mean and variance are two passes, which avoids cancellation.
        mean = centers ? total(mean, s.scratch[0]) * per : 0.0f;
#pragma unroll
        for (int i = 0; i < LINES; i++) {
            if (t + i * CONSUMERS >= lines) break;
            v[i].x -= mean, v[i].y -= mean;
            squares += v[i].x * v[i].x + v[i].y * v[i].y;
        }
        float inverse = rsqrtf(total(squares, s.scratch[1]) * per + eps);
#pragma unroll
        for (int i = 0; i < LINES; i++) {
            int line = t + i * CONSUMERS;
            if (line >= lines) break;
            float2 f = factor[i], a = added[i];
            s.x[row * lines + line] = halves(v[i].x * inverse * f.x + a.x, v[i].y * inverse * f.y + a.y);
        }
        // Also before the scratch is written again.
        meet();
    }
}

// The same without a norm.
DEVICE void plain_rows(const Op& op, Shared& s, u32 run, const u32* counter) {
    bool are_halves = op.x_form == HALVES;
    int lines = op.rows * op.k / (are_halves ? 4 : 2);
    if (op.x_form != PLAIN) wait_for_writers(counter - 1, (&op)[-1].writers);
#pragma unroll 1
    for (int first = 0; first < lines; first += LINES_EACH * CONSUMERS) {
        uint4 v[LINES_EACH];
        lines_of(op, first, lines - first, run, v);
#pragma unroll
        for (int i = 0; i < LINES_EACH; i++) {
            int line = first + threadIdx.x + i * CONSUMERS;
            if (line >= lines) break;
            if (are_halves) *(uint2*)&s.x[2 * line] = make_uint2(v[i].x, v[i].z);
            else s.x[line] = halves(__uint_as_float(v[i].x), __uint_as_float(v[i].z));
        }
    }
    meet();
}

// The matmul of this block's units. `next` counts stages of the ring.
DEVICE void multiply(const Op& op, Shared& s, u32 run, u32* counter, u32& next) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4;
    int blocks = op.k / 16, stages = (blocks + DEPTH - 1) / DEPTH, parts = 1 + op.gated, rows = op.rows;
    int first = first_unit(op), units = (op.units - first + gridDim.x - 1) / gridDim.x;
    if (!op.norm) plain_rows(op, s, run, counter);
    else if (op.k <= 4 * CONSUMERS) normed_rows<2>(op, s, run, counter);
    else normed_rows<4>(op, s, run, counter);

    // The cell of this thread: two channels of a row.
    int pair = threadIdx.x % 8, cell = threadIdx.x / 8, unit = rows == 2 ? cell / 2 : cell;
    int r = rows == 2 ? cell % 2 : 0, n = (first + unit * (int)gridDim.x) * 16 + 2 * pair, width = op.n;
    bool is = unit < units && n < width;
    // The second channel exists, except at the end of an odd number.
    float2 bias = make_float2(0.0f, 0.0f);
    if (is && op.bias) bias = make_float2(op.bias[n], op.bias[min(n + 1, width - 1)]);
    // Checked at the end, so that nothing waits for it here.
    const void* residual = is ? op.residual : nullptr;
    uint4 old = make_uint4(0, run, 0, run);
    if (residual) old = two_of(residual, op.residual_form, (r * width + n) / 2, run);

    bool is_row = row < rows;
    const u32* x = s.x + (is_row ? row : 0) * (op.k / 2) + 2 * (lane % 4);
    float* own = &s.sums[0][warp][0][0];
    for (int count = units * parts; count > 0; count--, next += stages, own += WARPS * 32) {
        float acc[4][4] = {};
        // Each stage is one warp's.
#pragma unroll 1
        for (u32 i = (warp - next) % WARPS; i < stages; i += WARPS) {
            u32 at = next + i, stage = at % STAGES;
            const uint4* w = &s.ring[stage][lane];
            const u32* from = x + 8 * DEPTH * i;
            int left = blocks - DEPTH * i;
            wait_for(&s.full[stage], at / STAGES & 1);
            uint4 weights[DEPTH];
            uint2 values[DEPTH];
#pragma unroll
            for (int j = 0; j < DEPTH; j++) {
                bool there = j < left;
                weights[j] = there ? w[32 * j] : make_uint4(0, 0, 0, 0);
                values[j] = there && is_row ? *(const uint2*)(from + 8 * j) : make_uint2(0, 0);
            }
#pragma unroll
            for (int j = 0; j < DEPTH; j++) mma_half(acc[j % 4], weights[j], values[j].x, values[j].y);
            __syncwarp();
            if (lane == 0)
                asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                             :: "r"(address(&s.empty[stage])) : "memory");
        }
        // Rows 0 and 1 are in every fourth thread.
        if (lane % 4 == 0) {
            own[row] = acc[0][0] + acc[1][0] + (acc[2][0] + acc[3][0]);
            own[row + 16] = acc[0][1] + acc[1][1] + (acc[2][1] + acc[3][1]);
            own[row + 8] = acc[0][2] + acc[1][2] + (acc[2][2] + acc[3][2]);
            own[row + 24] = acc[0][3] + acc[1][3] + (acc[2][3] + acc[3][3]);
        }
    }
    meet();
    u32 writers = (u32)(units * 8 * rows + 31) / 32 * 32;
    if (threadIdx.x >= writers) return;
    auto sum = [&](int part) {
        const float* from = &s.sums[min(unit, units - 1) * parts + part][0][r][2 * pair];
        float2 y = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            float2 more = *(const float2*)(from + 32 * i);
            y.x += more.x, y.y += more.y;
        }
        return y;
    };
    float2 y = sum(0);
    y.x += bias.x, y.y += bias.y;
    int first_part = op.first_part;
    if (op.activation && n < first_part) {
        // Both are x / (1 + eᵘ).
        bool silu = op.activation == SILU;
        float u = silu ? -y.x : y.x * fmaf(y.x * y.x, -0.07135482f, -1.5957691f);
        float v = silu ? -y.y : y.y * fmaf(y.y * y.y, -0.07135482f, -1.5957691f);
        y.x = __fdividef(y.x, 1.0f + __expf(u)), y.y = __fdividef(y.y, 1.0f + __expf(v));
    }
    if (parts == 2) {
        float2 by = sum(1);
        y.x *= by.x, y.y *= by.y;
    }
    if (!is_of(old, run)) old = awaited((const u32*)residual, (r * width + n) / 2, run);
    y.x += __uint_as_float(old.x), y.y += __uint_as_float(old.z);
    int second = first_part + op.second_part, begin = 0, end = first_part;
    if (n >= first_part) begin = n < second ? first_part : second, end = n < second ? second : width;
    int at = begin * rows + r * (end - begin) + n - begin;
    u32* slots = op.slots;
    if (op.slots_form == HALVES) {
        u32 word = halves(y.x, y.y), other = __shfl_down_sync(0xffffffffu, word, 1);
        if (is && pair % 2 == 0) write_line(slots, at / 4, word, other, run);
    } else if (is && slots) {
        write_line(slots, at / 2, __float_as_uint(y.x), __float_as_uint(y.y), run);
    }
    // Most likely the last warp to write; others may be a moment later.
    if (threadIdx.x == writers - 32) count_writer(counter);
    float* out = op.out;
    if (is && out) {
        out[at] = y.x;
        if (n + 1 < width) out[at + 1] = y.y;
    }
}

// Four channels of a head of row `b` of queries, keys or values (part 0, 1 or 2), by the threads of a warp.
DEVICE float4 new_head(const Op& op, int part, int b, int head, u32 run) {
    int lane = threadIdx.x % 32;
    bool is = lane < op.width / 4;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float* norm = part == 0 ? op.norm : part == 1 ? op.shift : nullptr;
    const float* table = part == 0 ? op.bias : part == 1 ? (const float*)op.residual : nullptr;
    float4 v = zero, weight = norm && is ? ((const float4*)norm)[lane] : zero;
    if (is) {
        int at = (op.offset[part] + b * op.stride[part] + head * op.width) / 2 + 2 * lane;
        uint4 low, high;
        do low = line_at((const u32*)op.x, at), high = line_at((const u32*)op.x, at + 1);
        while (!is_of(low, run) || !is_of(high, run));
        v = make_float4(__uint_as_float(low.x), __uint_as_float(low.z), __uint_as_float(high.x),
                        __uint_as_float(high.z));
    }
    if (norm) v = normed_head(v, weight, op.width, part == 0 ? op.eps : op.eps_of_keys);
    if (table) v = rotated_head(v, table + b % op.tables[part & 1] * op.width, op.width / 2, op.width);
    return v;
}

// Combines COUNT partial results, `stride` apart, of which a thread has one channel; also returns the maximum
// and the sum.
template <int COUNT>
DEVICE float joined(const float* parts, int channel, int stride, float& largest, float& sum) {
    largest = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; i++) largest = fmaxf(largest, parts[i * stride + 128]);
    float y = 0.0f;
#pragma unroll 4
    for (int i = 0; i < COUNT; i++) {
        const float* part = parts + i * stride;
        float e = __expf(part[128] - largest);
        sum += e * part[129], y += e * part[channel];
    }
    return y;
}

// Four channels of a key or value in the caches: f32, or 16 bits of the weights' type.
#ifdef COMPACT
typedef uint2 Kept;
DEVICE Kept kept(float4 v) { return make_uint2(halves(v.x, v.y), halves(v.z, v.w)); }
DEVICE float4 widened(Kept v) {
#if PRECISION == 3
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                       __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
#else
    float4 y;
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(y.x), "=f"(y.y) : "r"(v.x));
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(y.z), "=f"(y.w) : "r"(v.y));
    return y;
#endif
}
#else
typedef float4 Kept;
DEVICE Kept kept(float4 v) { return v; }
DEVICE float4 widened(Kept v) { return v; }
#endif

// Attention of one query of a key head over the keys of one split. LANES threads have a key, four channels
// each; every such group keeps maximum, sum and weighted values.
template <int GROUP, int LANES>
DEVICE void attend(const Op& op, Shared& s, u32 run, u32* counter, int unit) {
    constexpr int GROUPS = CONSUMERS / LANES, STRIDE = GROUP * KEPT;
    int lane = threadIdx.x % LANES, own_group = threadIdx.x / LANES, warp = threadIdx.x / 32, d = op.width;
    int heads = op.heads, splits = op.splits, kv_heads = heads / GROUP;
    int split = unit % splits, head = unit / splits % kv_heads, b = unit / splits / kv_heads;
    float* mine = &s.sums[0][0][0][0];           // [GROUPS, GROUP, KEPT]
    float* query = (float*)s.x;                  // [GROUP, 128], then the new key and value
    float* others = query + (GROUP + 2) * 128;   // [SPLITS, GROUP, KEPT]
    bool is = lane < d / 4;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    Kept* fresh = (Kept*)(query + GROUP * 128);  // [2, 32]
    int capacity = op.capacity, last = min(max(op.first ? op.first[b] : op.at, 0), capacity - 1);
    int parts = splits * GROUPS, row = kv_heads * d, start = split * GROUPS + own_group;
    size_t base = ((size_t)b * capacity * row + head * d) / 4;
    Kept *keys = (Kept*)op.keys + base, *values = (Kept*)op.values + base;
    Kept k[AHEAD], v[AHEAD];
    row /= 4;
    // The last key and value are new.
    auto load = [&](int from) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int key = from + i * parts;
            bool there = is && key < last;
            k[i] = there ? keys[(size_t)key * row + lane] : kept(zero);
            v[i] = there ? values[(size_t)key * row + lane] : kept(zero);
        }
    };
    load(start);
    wait_for_writers(counter - 1, (&op)[-1].writers);
    // Warps have the queries of the group, the new key and its value.
    bool owns = last % parts / GROUPS == split;
    if (warp < GROUP || (owns && warp < GROUP + 2)) {
        int part = max(warp - GROUP + 1, 0), four = threadIdx.x % 32;
        float4 y = new_head(op, part, b, part == 0 ? head * GROUP + warp : head, run);
        if (part == 0) y.x *= op.scale, y.y *= op.scale, y.z *= op.scale, y.w *= op.scale;
        if (four < d / 4) {
            if (part == 0) {
                ((float4*)query)[warp * 32 + four] = y;
            } else {
                Kept own = fresh[(part - 1) * 32 + four] = kept(y);
                (part == 1 ? keys : values)[(size_t)last * row + four] = own;
            }
        }
    }
    meet();
    float4 q[GROUP], acc[GROUP];
    float largest[GROUP], sum[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        q[g] = is ? ((float4*)query)[g * 32 + lane] : zero;
        acc[g] = zero, largest[g] = -INFINITY, sum[g] = 0.0f;
    }
#pragma unroll 1
    for (int from = start; from - own_group <= last; from += AHEAD * parts) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (from + i * parts != last || !is) continue;
            k[i] = fresh[lane], v[i] = fresh[32 + lane];
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float score[AHEAD], now = largest[g];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                float4 key = widened(k[i]);
                score[i] = q[g].x * key.x + q[g].y * key.y + q[g].z * key.z + q[g].w * key.w;
            }
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
                for (int i = 0; i < AHEAD; i++) score[i] += __shfl_xor_sync(0xffffffffu, score[i], step);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (from + i * parts > last) score[i] = -INFINITY;
                now = fmaxf(now, score[i]);
            }
            // Groups without keys so far have weights of exp(−∞ − 0).
            float center = now == -INFINITY ? 0.0f : now, old = __expf(largest[g] - center);
            sum[g] *= old, largest[g] = now;
            acc[g].x *= old, acc[g].y *= old, acc[g].z *= old, acc[g].w *= old;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                float p = __expf(score[i] - center);
                float4 value = widened(v[i]);
                sum[g] += p;
                acc[g].x += p * value.x, acc[g].y += p * value.y;
                acc[g].z += p * value.z, acc[g].w += p * value.w;
            }
        }
        load(from + AHEAD * parts);
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        float* to = mine + own_group * STRIDE + g * KEPT;
        if (is) ((float4*)to)[lane] = acc[g];
        // Not −∞, so that differences are numbers.
        if (lane == 0) to[128] = fmaxf(largest[g], -1e30f), to[129] = sum[g];
    }
    meet();
    // A channel of a head of q per thread.
    int g = threadIdx.x / d, channel = threadIdx.x - g * d;
    bool has_channel = g < GROUP;
    g = min(g, GROUP - 1);
    float m, all, y = joined<GROUPS>(mine + g * KEPT, channel, STRIDE, m, all);
    if (split > 0) {
        float next = __shfl_down_sync(0xffffffffu, y, 1);
        u32* to = op.partials + (size_t)(unit * GROUP + g) * 2 * KEPT;
        if (has_channel && channel % 2 == 0)
            write_line(to, channel / 2, __float_as_uint(y), __float_as_uint(next), run);
        if (has_channel && channel == 0) write_line(to, 64, __float_as_uint(m), __float_as_uint(all), run);
    } else {
        if (has_channel) others[g * KEPT + channel] = y;
        if (has_channel && channel == 0) others[g * KEPT + 128] = m, others[g * KEPT + 129] = all;
        // Splits that there are not have no weight.
        int half = d / 2 + 1, lines = (SPLITS - 1) * GROUP * half;
#pragma unroll 1
        for (int i = threadIdx.x; i < lines; i += CONSUMERS) {
            int which = i / half, line = i - which * half, there = which / GROUP + 1;
            float* to = others + (GROUP + which) * KEPT;
            // The line after those of channels.
            line = line == d / 2 ? 64 : line;
            float2 found = make_float2(line == 64 ? -1e30f : 0.0f, 0.0f);
            if (there < splits) {
                const u32* from = op.partials + (size_t)(unit * GROUP + GROUP + which) * 2 * KEPT;
                uint4 both = awaited(from, line, run);
                found = make_float2(__uint_as_float(both.x), __uint_as_float(both.z));
            }
            *(float2*)(to + 2 * line) = found;
        }
        meet();
        y = joined<SPLITS>(others + g * KEPT, channel, STRIDE, m, all) / all;
        float second = __shfl_down_sync(0xffffffffu, y, 1), third = __shfl_down_sync(0xffffffffu, y, 2);
        float fourth = __shfl_down_sync(0xffffffffu, y, 3);
        int at = (b * heads + head * GROUP + g) * d + channel;
        if (has_channel && op.out) op.out[at] = y;
        if (op.slots_form == HALVES) {
            if (has_channel && channel % 4 == 0)
                write_line(op.slots, at / 4, halves(y, second), halves(third, fourth), run);
        } else if (has_channel && op.slots && channel % 2 == 0) {
            write_line(op.slots, at / 2, __float_as_uint(y), __float_as_uint(second), run);
        }
        if (threadIdx.x == 0) count_writer(counter);
    }
    // Shared memory is free for the next op.
    meet();
}
#endif

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1) chain(const __grid_constant__ Args a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ float4 shared4[];
    Shared& s = *(Shared*)shared4;
    if (threadIdx.x < STAGES) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" :: "r"(address(&s.full[threadIdx.x])));
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(&s.empty[threadIdx.x])));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (int i = threadIdx.x; i < a.count * (int)(sizeof(Op) / 16); i += CONSUMERS + 32) {
        uint4 v;
        asm volatile("ld.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"((const uint4*)a.ops + i));
        ((uint4*)s.ops)[i] = v;
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        stream_weights(a.count, s);
        return;
    }
    u32 run = *(volatile u32*)a.state + 1, next = 0;
    u32* counters = a.state + 2;
    for (int i = 0; i < a.count; i++) {
        const Op& op = s.ops[i];
        int unit = first_unit(op);
        if (unit >= op.units) continue;
        if (!op.attends) multiply(op, s, run, counters + i, next);
        else if (op.group == 1) attend<1, 16>(op, s, run, counters + i, unit);
        else attend<2, 32>(op, s, run, counters + i, unit);
    }
    meet();
    // The last block to finish ends the run.
    if (threadIdx.x == 0 && atomicAdd(a.state + 1, 1) == gridDim.x - 1) {
        for (int i = 0; i < a.count; i++) counters[i] = 0;
        a.state[1] = 0;
        a.state[0] = run;
    }
#endif
}
