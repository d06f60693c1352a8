// Matmuls and attention of one or two rows, each reading what the one before makes, in one launch.
//
// A launch per op leaves memory idle while a kernel starts, waits for its operand and ends. Here a block per
// multiprocessor stays, and one warp streams the weights of all ops to come into a ring in shared memory. So
// weights of an op are there when its operand is, and an op takes as long as its result takes to other
// blocks.
//
// Blocks exchange values through slots: words of data, each followed by the number of the run. Whoever reads
// one waits until the number is that of this run, so writing needs no fence. Two slots are read and written
// as 16 bytes. Each op has slots of its own, so nothing is overwritten within a run.
//
// A warp multiplies some stages of K, always the same ones, and waits for that part of the operand alone.
// Warps meet only to add up what each has.
//
// All blocks must run at once: the launch is cooperative.

// Threads of a block that compute; one more warp copies.
#define CONSUMERS 256
#define WARPS 8
// Blocks of 16 of K by 16 channels in a stage of the ring, and its bytes.
#define DEPTH 8
#if PRECISION < 4
#define STAGE (DEPTH * 512)
#else
// Numbers, upper bits and scales.
#define NUMBERS (DEPTH * 32 * (int)sizeof(Numbers))
#define PLANES (HAS_PLANES ? DEPTH / PER_PLANE * 128 : 0)
#define STAGE (NUMBERS + PLANES + DEPTH / PER_SCALE * 32 * (1 + HAS_MINIMA))
#endif
// Elements of K in a stage.
#define WIDTH (16 * DEPTH)
#define STAGES 32
// Most stages of K of both rows of x, and words of one of a row: those of 128 halves, and some to spare, so
// that rows are in banks of their own.
#define WIDEST 96
#define SPAN 72
// Most sums of 16 channels of a warp: a unit has one for each part of gated ones, row and column of a norm.
#define SUMS 16
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
    // Of a matmul: weights in the order of `matmul.cu`.
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
    union {
        // Of a matmul: units of each block, and how many blocks have one more.
        struct { int share, rest; };
        // Of attention: the last key of each row, once it is known.
        int last[2];
    };
};

#define OPS 144

struct Args {
    // Number of the last run, and blocks that have finished this one.
    u32* state;
    int count, padding;
    Op ops[OPS];
};

#if __CUDA_ARCH__ >= 900

// Bytes that are asked for, see lower/chain.rs.
#define SHARED 208896

struct Shared {
    u64 full[STAGES], empty[STAGES];
    // What warps know of a row: mean, sum of squared distances from it, count. Of every other op.
    alignas(16) float4 moments[2][2][WARPS];
    // Copies of the arguments: reading constants for the first time takes longer than an op.
    alignas(16) Op ops[OPS];
    alignas(16) uint4 ring[STAGES][STAGE / 16];
    // By stage and row.
    alignas(16) u32 x[WIDEST * SPAN];
    // Of every other op; also partial results of attention.
    alignas(16) float sums[2][SUMS * WARPS * 16];
};

static_assert(sizeof(Shared) <= SHARED, "the launch asks for less");

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

// This block's first unit.
DEVICE int first_unit(const Op& op) {
    int unit = (int)blockIdx.x - op.start;
    return unit < 0 ? unit + gridDim.x : unit;
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

// Prefetches the keys and values of a unit of attention into the second-level cache.
DEVICE void bring_cache(const Op& op, int unit) {
    int lane = threadIdx.x % 32, kv_heads = op.heads / op.group, splits = op.splits;
    int split = unit % splits, head = unit / splits % kv_heads, b = unit / splits / kv_heads;
    int groups = op.group == 1 ? 16 : 8, bytes = op.width / 4 * (int)sizeof(Kept);
    int lines = (bytes + 127) / 128;
    size_t base = ((size_t)b * op.capacity * kv_heads + head) * bytes;
    for (int i = lane; i < groups * lines; i += 32) {
        int group = i / lines, line = i - group * lines;
        for (int key = split * groups + group; key < op.last[b]; key += splits * groups) {
            size_t at = base + (size_t)key * kv_heads * bytes + 128 * line;
            asm volatile("prefetch.global.L2 [%0];" :: "l"((const char*)op.keys + at));
            asm volatile("prefetch.global.L2 [%0];" :: "l"((const char*)op.values + at));
        }
    }
}

// Starts to copy BYTES of this thread.
template <int BYTES>
DEVICE void copy(void* shared, const char* from) {
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :: "r"(address(shared)), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                     :: "r"(address(shared)), "l"(from), "n"(BYTES) : "memory");
}

#if PRECISION < 4
// Weights of 16 channels: [N/32, K/16, 2, 32 threads, 16 bytes], of which they are one of two.
struct Channels {
    const char* from;
    int blocks;

    __device__ __forceinline__ Channels(const Op& op, int half) : blocks(op.k / 16) {
        from = op.w + ((size_t)(half / 2) * blocks * 2 + half % 2) * 512 + 16 * (threadIdx.x % 32);
    }

    // Starts to copy this thread's part of a stage.
    __device__ __forceinline__ void copy(uint4* stage, int block) const {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            if (block + j < blocks) ::copy<16>(stage + 32 * j + lane, from + (size_t)(block + j) * 1024);
    }
};

// Takes this thread's part of a stage as operands: 16 channels by 16 of K, of which `left` exist.
DEVICE void take(const uint4* stage, int, int left, uint4 (&w)[DEPTH]) {
    stage += threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < DEPTH; j++) w[j] = j < left ? stage[32 * j] : make_uint4(0, 0, 0, 0);
}
#else
// The same in blocks: lower bits, upper bits and scales, all in the order of `blocks.cuh`.
struct Channels {
    const char *numbers, *planes, *scales;
    int blocks;

    __device__ __forceinline__ Channels(const Op& op, int half) : blocks(op.k / 16) {
        int lane = threadIdx.x % 32, words = blocks * 32 * (int)sizeof(Stored);
        int bits = HAS_PLANES ? blocks / PER_PLANE * 128 : 0, last = (blocks + PER_SCALE - 1) / PER_SCALE;
        const char* from = op.w + (size_t)(half / 2) * (words + bits + last * 8 * (int)sizeof(Scales));
        numbers = from + lane * sizeof(Stored) + half % 2 * sizeof(Numbers);
        planes = from + words + 4 * lane;
        scales = from + words + bits + lane * sizeof(Scales) + half % 2 * 4;
    }

    __device__ __forceinline__ void copy(uint4* stage, int block) const {
        int lane = threadIdx.x % 32;
        char* to = (char*)stage;
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            if (block + j < blocks)
                ::copy<sizeof(Numbers)>(to + (32 * j + lane) * sizeof(Numbers),
                                        numbers + (size_t)(block + j) * 32 * sizeof(Stored));
        to += NUMBERS + 4 * lane;
#pragma unroll
        for (int j = 0; j < PLANES / 128; j++)
            if (block + PER_PLANE * j < blocks)
                ::copy<4>(to + 128 * j, planes + (size_t)(block / PER_PLANE + j) * 128);
        to += PLANES;
        // A thread has a word of scales, and another one of scales or of minima.
#pragma unroll
        for (int i = 0; i < (STAGE - NUMBERS - PLANES) / 128; i++) {
            int first = HAS_MINIMA ? 0 : 4 * i, of = first + lane / 8;
            if (block + of * PER_SCALE >= blocks) continue;
            const char* from = scales + (size_t)(block / PER_SCALE + first) * 8 * sizeof(Scales);
            ::copy<4>(to + 128 * i, from + (HAS_MINIMA ? 8 * i : 0));
        }
    }
};

// Of channels that are the first or the second `half` of 32.
DEVICE void take(const uint4* stage, int half, int left, uint4 (&w)[DEPTH]) {
    int lane = threadIdx.x % 32;
    const Numbers* numbers = (const Numbers*)stage + lane;
    const u32* planes = (const u32*)((const char*)stage + NUMBERS) + lane;
    const u32* scales = (const u32*)((const char*)stage + NUMBERS + PLANES) + lane / 4;
#pragma unroll
    for (int j = 0; j < DEPTH; j++) {
        u32 high = HAS_PLANES ? planes[j / PER_PLANE * 32] >> half % 2 * HIGH_BITS : 0;
        if (PER_PLANE == 2) high >>= j % 2 * 8;
        // Beyond the end of K, shared memory may hold NaN.
        u32 scale = j < left ? scales[j / PER_SCALE * 8] : 0;
        u32 added = HAS_MINIMA && j < left ? scales[32 + j / PER_SCALE * 8] : 0;
        w[j] = widened(numbers[32 * j], high, scale, added);
    }
}
#endif

// Copies the weights of this block's units, of one op after the other.
DEVICE void stream_weights(int count_of_ops, Shared& s) {
    int lane = threadIdx.x % 32;
    u32 next = 0;
    for (int i = 0; i < count_of_ops; i++) {
        if (blockIdx.x == i % gridDim.x) bring_vectors(s, i + 4, count_of_ops);
        const Op& op = s.ops[i];
        if (op.attends) {
            int unit = first_unit(op);
            if (unit < op.units) bring_cache(op, unit);
            continue;
        }
        for (int unit = first_unit(op); unit < op.units; unit += gridDim.x) {
            for (int part = 0; part <= op.gated; part++) {
                Channels from(op, unit + (part ? op.first_part / 16 : 0));
                for (int block = 0; block < op.k / 16; block += DEPTH, next++) {
                    u32 stage = next % STAGES, lap = next / STAGES;
                    if (lap > 0) wait_for(&s.empty[stage], (lap - 1) & 1);
                    from.copy(s.ring[stage], block);
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
// Columns that are multiplied by weights: rows of x, and the factors and shifts of a layer norm.
DEVICE int columns_of(const Op& op) { return op.rows + (op.shift ? 2 : 0); }

// Means of rows in the warp's part of x, and the thread's share of the squared distances.
struct Moments {
    float mean[2], squares[2];
};

// Puts the warp's part of x into shared memory as halves: its stages of K, whose rows have LINES lines per
// thread at most, or any number without a layer norm.
//
// A norm's row is multiplied before its root and mean are known. Of a layer norm, the warp subtracts the mean
// of its own part, and factors and shifts become columns of their own: see `normed`.
template <int LINES>
DEVICE Moments take_part(const Op& op, Shared& s, u32 run) {
    bool are_halves = op.x_form == HALVES, norms = op.norm, centers = op.shift;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = op.rows, width = op.k;
    int columns = columns_of(op), own = ((width + WIDTH - 1) / WIDTH - warp + WARPS - 1) / WARPS;
    int lines = own * rows * (are_halves ? 1 : 2);
    Moments m = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll 1
    for (int first = 0; first < lines; first += LINES) {
        uint4 v[LINES];
        float2 factor[LINES];
        int to[LINES], at[LINES];
        bool is[LINES];
#pragma unroll
        for (int i = 0; i < LINES; i++) {
            int piece = are_halves ? first + i : (first + i) / 2;
            int place = are_halves ? 4 * lane : 64 * (i % 2) + 2 * lane;
            int row = rows == 2 ? piece % 2 : 0, stage = warp + WARPS * (rows == 2 ? piece / 2 : piece);
            int column = WIDTH * stage + place;
            at[i] = (row * width + column) / (are_halves ? 4 : 2);
            to[i] = SPAN * (stage * columns + row) + place / 2;
            is[i] = column < width;
            v[i] = make_uint4(0, is[i] ? ~run : run, 0, run);
            factor[i] = make_float2(1.0f, 1.0f);
            if (norms && is[i]) {
                float2 f = *(const float2*)(op.norm + column);
                factor[i] = make_float2(f.x * BEFORE_NORM, f.y * BEFORE_NORM);
                if (centers && row == 0) {
                    float2 added = *(const float2*)(op.shift + column);
                    s.x[to[i] + SPAN * rows] = halves(factor[i].x, factor[i].y);
                    s.x[to[i] + SPAN * rows + SPAN] = halves(added.x, added.y);
                }
            }
        }
        if (op.x_form == PLAIN) {
#pragma unroll
            for (int i = 0; i < LINES; i++)
                if (is[i]) v[i] = two_of(op.x, PLAIN, at[i], run);
        }
        while (true) {
            bool ready = true;
#pragma unroll
            for (int i = 0; i < LINES; i++) ready &= is_of(v[i], run);
            if (ready) break;
#pragma unroll
            for (int i = 0; i < LINES; i++)
                if (is[i]) v[i] = line_at((const u32*)op.x, at[i]);
        }
        if (are_halves) {
#pragma unroll
            for (int i = 0; i < LINES; i++)
                if (is[i]) *(uint2*)&s.x[to[i]] = make_uint2(v[i].x, v[i].z);
            continue;
        }
        if (centers) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                if (row == rows) break;
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < LINES; i++)
                    if (is[i] && (rows == 1 || i / 2 == row))
                        sum += __uint_as_float(v[i].x) + __uint_as_float(v[i].z);
                int last = WIDTH * (warp + WARPS * (own - 1)) + WIDTH;
                m.mean[row] = __fdividef(warp_sum(sum), WIDTH * own - max(last - width, 0));
            }
        }
#pragma unroll
        for (int i = 0; i < LINES; i++) {
            if (!is[i]) continue;
            bool second = rows == 2 && i / 2 == 1;
            float mean = second ? m.mean[1] : m.mean[0];
            float x = __uint_as_float(v[i].x) - mean, y = __uint_as_float(v[i].z) - mean;
            float both = x * x + y * y;
            if (second) m.squares[1] += both;
            else m.squares[0] += both;
            s.x[to[i]] = halves(x * factor[i].x, y * factor[i].y);
        }
    }
    __syncwarp();
    return m;
}

// Two channels of a row: what warps have summed up. A norm joins their means and variances as in Chan, Golub
// and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances": with weights W,
// factors f, shifts b, and parts of x each less its own mean m, it is
// (Σ W·(f∘x) + (m − mean) Σ W·f) / root + Σ W·b.
DEVICE float2 normed(const Op& op, const Shared& s, int turn, int r, const float* from, int stride) {
    float2 y = make_float2(0.0f, 0.0f);
    auto add = [&](int i, int column, float factor) {
        float2 more = *(const float2*)(from + stride * i + 16 * column);
        y.x += factor * more.x, y.y += factor * more.y;
    };
    if (!op.norm) {
#pragma unroll
        for (int i = 0; i < WARPS; i++) add(i, r, 1.0f);
        return y;
    }
    float mean = 0.0f, squares = 0.0f, per = 1.0f / op.k;
    if (!op.shift) {
#pragma unroll
        for (int i = 0; i < WARPS; i++) squares += s.moments[turn][r][i].y, add(i, r, 1.0f);
        float by = rsqrtf(squares * per + op.eps) * (1.0f / BEFORE_NORM);
        return make_float2(y.x * by, y.y * by);
    }
    float4 m[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; i++) m[i] = s.moments[turn][r][i], mean += m[i].x * m[i].z;
    mean *= per;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        m[i].x -= mean;
        squares += m[i].y + m[i].z * m[i].x * m[i].x;
        add(i, r, 1.0f);
        add(i, op.rows, m[i].x);
    }
    float by = rsqrtf(squares * per + op.eps) * (1.0f / BEFORE_NORM);
    y.x *= by, y.y *= by;
#pragma unroll
    for (int i = 0; i < WARPS; i++) add(i, op.rows + 1, 1.0f);
    return y;
}

// The matmul of this block's units. `next` counts stages of the ring, `turn` is another one than before.
DEVICE void multiply(const Op& op, Shared& s, u32 run, int turn, u32& next) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4;
    int blocks = op.k / 16, stages = (blocks + DEPTH - 1) / DEPTH, parts = 1 + op.gated, rows = op.rows;
    int first = first_unit(op), units = op.share + (first < op.rest), columns = columns_of(op);

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
    int first_part = op.first_part, second = first_part + op.second_part, begin = 0, end = first_part;
    if (n >= first_part) begin = n < second ? first_part : second, end = n < second ? second : width;
    int at = begin * rows + r * (end - begin) + n - begin, activation = n < first_part ? op.activation : 0;
    bool are_halves = op.slots_form == HALVES;
    u32* slots = op.slots;
    const float* sums = s.sums[turn] + min(unit, units - 1) * parts * WARPS * columns * 16 + 2 * pair;

    // Columns that there are not are copies of the last.
    const u32* x = s.x + min((int)row, columns - 1) * SPAN + 2 * (lane % 4);
    float* own = s.sums[turn] + warp * columns * 16 + lane % 4 * 32 + row;
    bool has = 2 * (lane % 4) < columns, has_next = 2 * (lane % 4) + 1 < columns;
    Moments m = op.k <= 1024 && rows == 1 ? take_part<2>(op, s, run) : take_part<4>(op, s, run);
    for (int count = units * parts; count > 0; count--, next += stages, own += WARPS * columns * 16) {
        float acc[4][4] = {};
        int done = units * parts - count, part = done & op.gated;
        int half = first + (done >> op.gated) * (int)gridDim.x + part * (first_part / 16);
#pragma unroll 1
        for (u32 i = warp; i < stages; i += WARPS) {
            u32 at = next + i, stage = at % STAGES;
            const u32* from = x + SPAN * columns * i;
            int left = min(blocks - DEPTH * (int)i, DEPTH);
            wait_for(&s.full[stage], at / STAGES & 1);
            uint4 w[DEPTH];
            if (left == DEPTH) take(s.ring[stage], half, DEPTH, w);
            else take(s.ring[stage], half, left, w);
#pragma unroll
            for (int j = 0; j < DEPTH; j++) {
                uint2 value = j < left ? *(const uint2*)(from + 8 * j) : make_uint2(0, 0);
                mma_half(acc[j % 4], w[j], value.x, value.y);
            }
            __syncwarp();
            if (lane == 0)
                asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                             :: "r"(address(&s.empty[stage])) : "memory");
        }
        if (has) {
            own[0] = acc[0][0] + acc[1][0] + (acc[2][0] + acc[3][0]);
            own[8] = acc[0][2] + acc[1][2] + (acc[2][2] + acc[3][2]);
        }
        if (has_next) {
            own[16] = acc[0][1] + acc[1][1] + (acc[2][1] + acc[3][1]);
            own[24] = acc[0][3] + acc[1][3] + (acc[2][3] + acc[3][3]);
        }
    }
    if (op.norm) {
        int stages_of_warp = (stages - (int)warp + WARPS - 1) / WARPS;
        int last = WIDTH * ((int)warp + WARPS * (stages_of_warp - 1)) + WIDTH;
        int count = stages_of_warp > 0 ? WIDTH * stages_of_warp - max(last - op.k, 0) : 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (i == rows) break;
            float all = warp_sum(m.squares[i]);
            if (lane == 0) s.moments[turn][i][warp] = make_float4(m.mean[i], all, count, 0.0f);
        }
    }
    meet();
    u32 writers = (u32)(units * 8 * rows + 31) / 32 * 32;
    if (threadIdx.x >= writers) return;
    int stride = columns * 16;
    float2 y = normed(op, s, turn, r, sums, stride);
    y.x += bias.x, y.y += bias.y;
    if (activation) {
        // Both are x / (1 + eᵘ).
        bool silu = activation == SILU;
        float u = silu ? -y.x : y.x * fmaf(y.x * y.x, -0.07135482f, -1.5957691f);
        float v = silu ? -y.y : y.y * fmaf(y.y * y.y, -0.07135482f, -1.5957691f);
        y.x = __fdividef(y.x, 1.0f + __expf(u)), y.y = __fdividef(y.y, 1.0f + __expf(v));
    }
    if (parts == 2) {
        float2 by = normed(op, s, turn, r, sums + WARPS * stride, stride);
        y.x *= by.x, y.y *= by.y;
    }
    if (!is_of(old, run)) old = awaited((const u32*)residual, (r * width + n) / 2, run);
    y.x += __uint_as_float(old.x), y.y += __uint_as_float(old.z);
    if (are_halves) {
        u32 word = halves(y.x, y.y), other = __shfl_down_sync(0xffffffffu, word, 1);
        if (is && pair % 2 == 0) write_line(slots, at / 4, word, other, run);
    } else if (is && slots) {
        write_line(slots, at / 2, __float_as_uint(y.x), __float_as_uint(y.y), run);
    }
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
    // Before the head is there.
    float4 v = zero, weight = norm && is ? ((const float4*)norm)[lane] : zero;
    Angle angle;
    if (table) angle = angle_of_head(table + b % op.tables[part & 1] * op.width, op.width / 2, op.width);
    if (is) {
        int at = (op.offset[part] + b * op.stride[part] + head * op.width) / 2 + 2 * lane;
        uint4 low, high;
        do low = line_at((const u32*)op.x, at), high = line_at((const u32*)op.x, at + 1);
        while (!is_of(low, run) || !is_of(high, run));
        v = make_float4(__uint_as_float(low.x), __uint_as_float(low.z), __uint_as_float(high.x),
                        __uint_as_float(high.z));
    }
    if (norm) v = normed_head(v, weight, op.width, part == 0 ? op.eps : op.eps_of_keys);
    if (table) v = rotated_by(v, angle, op.width);
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

// Attention of one query of a key head over the keys of one split. LANES threads have a key, four channels
// each; every such group keeps maximum, sum and weighted values.
template <int GROUP, int LANES>
DEVICE void attend(const Op& op, Shared& s, u32 run, int unit) {
    constexpr int GROUPS = CONSUMERS / LANES, STRIDE = GROUP * KEPT;
    int lane = threadIdx.x % LANES, own_group = threadIdx.x / LANES, warp = threadIdx.x / 32, d = op.width;
    int heads = op.heads, splits = op.splits, kv_heads = heads / GROUP;
    int split = unit % splits, head = unit / splits % kv_heads, b = unit / splits / kv_heads;
    float* mine = &s.sums[0][0];                 // [GROUPS, GROUP, KEPT]
    float* query = (float*)s.x;                  // [GROUP, 128], then the new key and value
    float* others = query + (GROUP + 2) * 128;   // [SPLITS, GROUP, KEPT]
    bool is = lane < d / 4;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    Kept* fresh = (Kept*)(query + GROUP * 128);  // [2, 32]
    int capacity = op.capacity, last = op.last[b];
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
        if (splits > 1) {
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
            y = joined<SPLITS>(others + g * KEPT, channel, STRIDE, m, all);
        }
        y /= all;
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
    // Positions do not change meanwhile.
    for (int i = threadIdx.x; i < a.count; i += CONSUMERS + 32) {
        Op& op = s.ops[i];
        if (!op.attends) continue;
#pragma unroll
        for (int b = 0; b < 2; b++) {
            int at = op.first && b < op.rows ? op.first[b] : op.at;
            op.last[b] = min(max(at, 0), op.capacity - 1);
        }
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        stream_weights(a.count, s);
        return;
    }
    u32 run = *(volatile u32*)a.state + 1, next = 0;
    int turn = 0;
    for (int i = 0; i < a.count; i++) {
        const Op& op = s.ops[i];
        int unit = first_unit(op);
        if (unit >= op.units) continue;
        if (!op.attends) multiply(op, s, run, turn ^= 1, next);
        else if (op.group == 1) attend<1, 16>(op, s, run, unit);
        else attend<2, 32>(op, s, run, unit);
    }
    meet();
    // The last block to finish ends the run.
    if (threadIdx.x == 0 && atomicAdd(a.state + 1, 1) == gridDim.x - 1) {
        a.state[1] = 0;
        a.state[0] = run;
    }
#endif
}
