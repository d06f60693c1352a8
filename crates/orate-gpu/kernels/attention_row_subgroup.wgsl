// The function of attention_row.wgsl, whose parameters it has, on devices whose subgroups have LANES threads,
// at least D / 4.
//
// A workgroup has one head. D / 4 neighboring threads, or more that do nothing up to a power of two, compute
// the score of a key, four channels each, with AHEAD keys at a time. Every PARTS-th key is theirs, with a
// maximum and sums of their own, so that only the end needs barriers.
//
// HEADS: query, key and value are heads of rows that a matmul made. They are normed and rotated here as in
// heads.wgsl, and key and value written to the row of the state at the query's position, by one of the
// workgroups that need them. All of them have a copy, so that none reads what another writes.

struct Params {
    q: u32,
    k: u32,
    v: u32,
    out: u32,
    // POSITIONS: positions of the queries, [B]
    positions: u32,
    tk: u32,
    heads: u32,
    // 1 if each batch row has its own keys, else 0.
    own: u32,
    // Without POSITIONS: position of all queries.
    first: u32,
    scale: f32,
    // Heads of q that share one head of k and v.
    group: u32,
//@ if HEADS
    // Three bits each for queries, keys and values: NORM, TURN, OWN.
    flags: u32,
//@ for h 3
    x_${h}: u32,
    // Elements from one row to the next.
    stride_${h}: u32,
    weight_${h}: u32,
    table_${h}: u32,
    eps_${h}: f32,
//@ end
//@ end
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<f32>>;

//@ include math
//@ if COMPACT
//@ include cache_rows
//@ end

// In vectors of four.
const D4 = ${D}u / 4u;
// Threads of a key.
const OF_KEY = 1u << ${ROUNDS}u;
const PARTS = ${THREADS}u / OF_KEY;
const SUBGROUPS = ${THREADS}u / ${LANES}u;
const NOTHING = -3.0e38;

// Of each subgroup; results of the keys of all its threads.
var<workgroup> most: array<f32, SUBGROUPS>;
var<workgroup> sums: array<f32, SUBGROUPS>;
var<workgroup> outs: array<vec4<f32>, SUBGROUPS * D4>;
//@ if POSITIONS
var<workgroup> position: i32;
//@ end
//@ if HEADS
@group(1) @binding(1) var<storage, read> vectors: array<vec4<f32>>;
//@ if COMPACT
//@ include round_rows
//@ end

const NORM = 1u;
const TURN = 2u;
// Each batch row has its own table.
const OWN = 4u;
// Of a head, in vectors of four.
const HALF = D4 / 2u;

// Four channels of a head.
struct Channels {
    // Of all threads of the key, this one's number and whether it has channels.
    d: u32,
    is: bool,
    invocation: u32,
    batch: u32,
}

// What channels of a head are made from.
struct Raw {
    x: vec4<f32>,
    weight: vec4<f32>,
    cosine: vec4<f32>,
    sine: vec4<f32>,
}

// Reads it for the head that begins at element x.
fn raw(x: u32, flags: u32, weight: u32, table: u32, c: Channels) -> Raw {
    var r: Raw;
    r.x = memory[x / 4u + c.d];
    if (flags & NORM) != 0u {
        r.weight = vectors[weight / 4u + c.d];
    }
    if (flags & TURN) != 0u {
        let at = table / 4u + select(0u, 2u * HALF * c.batch, (flags & OWN) != 0u) + c.d % HALF;
        r.cosine = memory[at];
        r.sine = memory[at + HALF];
    }
    return r;
}

fn prepared(r: Raw, flags: u32, eps: f32, c: Channels) -> vec4<f32> {
    var v = r.x;
    if (flags & NORM) != 0u {
        var sum = select(0.0, dot(v, v), c.is);
//@ for r ROUNDS
        sum += subgroupShuffleXor(sum, 1u << ${r}u);
//@ end
        v *= 1.0 / sqrt(sum / ${D}.0 + eps) * r.weight;
    }
    if (flags & TURN) != 0u {
        let is_first = c.d < HALF;
        let other = subgroupShuffle(v, c.invocation + select(HALF, 0u - HALF, !is_first));
        v = select(other * r.sine + v * r.cosine, v * r.cosine - other * r.sine, vec4<bool>(is_first));
    }
    return v;
}

//@ if COMPACT
fn put(word: u32, bits: u32) {
    memory[word >> 2u][word & 3u] = bitcast<f32>(bits);
}
//@ end

// Stores channels of a head in a row of a state, whose heads before it have `before` channels, if `stores`.
// Returns what is read from there later.
fn kept(v: vec4<f32>, state: u32, row: u32, width: u32, before: u32, c: Channels, stores: bool) -> vec4<f32> {
//@ if COMPACT
    let begin = state + row * kept_words(width);
    let at = before + 4u * c.d;
//@ if Q8_0
    var largest = max(max(abs(v.x), abs(v.y)), max(abs(v.z), abs(v.w)));
//@ for r 3
    largest = max(largest, subgroupShuffleXor(largest, 1u << ${r}u));
//@ end
    let scale = scale_bits(largest);
    let next = subgroupShuffleXor(scale, 8u);
    let inverse = inverse_of(scale);
    var word = 0u;
//@ for e 4
    word |= byte_bits(v[${e}], inverse, ${e}u);
//@ end
    if stores {
        put(begin + at / 4u, word);
        if c.d % 16u == 0u {
            put(begin + width / 4u + at / 64u, scale | (next << 16u));
        }
    }
    let bytes = (vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
    return vec4<f32>(bytes) * unpack2x16float(scale).x;
//@ else
    let bits = bitcast<vec4<u32>>(v);
//@ if F16
    let low = f16_bits(bits.x) | (f16_bits(bits.y) << 16u);
    let high = f16_bits(bits.z) | (f16_bits(bits.w) << 16u);
    let read = vec4<f32>(unpack2x16float(low), unpack2x16float(high));
//@ else
    let low = bf16_bits(bits.x) | (bf16_bits(bits.y) << 16u);
    let high = bf16_bits(bits.z) | (bf16_bits(bits.w) << 16u);
    let read = bitcast<vec4<f32>>(vec4<u32>(low << 16u, low & 0xffff0000u, high << 16u, high & 0xffff0000u));
//@ end
    if stores {
        put(begin + at / 2u, low);
        put(begin + at / 2u + 1u, high);
    }
    return read;
//@ end
//@ else
    if stores {
        memory[(state + row * width + before) / 4u + c.d] = v;
    }
    return v;
//@ end
}
//@ end

// Four channels of a row of a state, as `channels` takes them; rows have `width` vectors of four.
fn row_at(state: u32, row: u32, width: u32, at: u32) -> vec4<f32> {
//@ if EIGHTS
    return kept_eight(state + row * kept_words(4u * width), 4u * at);
//@ else
//@ if COMPACT
    return kept_four(state + row * kept_words(4u * width), 4u * width, 4u * at);
//@ else
    return memory[state / 4u + row * width + at];
//@ end
//@ end
}

// Rows on their way are widened when they are needed.
fn channels(row: vec4<f32>, at: u32) -> vec4<f32> {
//@ if EIGHTS
    return widened_half(row, 4u * at);
//@ else
    return row;
//@ end
}

@compute @workgroup_size(${THREADS})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
) {
    let lane = subgroup * ${LANES}u + invocation;
    let batch = workgroup.y;
    let head = batch * p.heads * D4 + workgroup.x * D4;
    let kv_width = p.heads / p.group * D4;
    let own_head = workgroup.x / p.group * D4;
    let own_row = batch * p.own * p.tk;
    let part = lane / OF_KEY;
    // Threads without channels repeat the last ones, and count for nothing.
    let d = min(lane % OF_KEY, D4 - 1u);
    let is = lane % OF_KEY < D4;
    // All reads are issued before the first result is needed, so that none waits for another.
//@ if HEADS
    let c = Channels(d, is, invocation, batch);
    let raw_q = raw(p.x_0 + batch * p.stride_0 + 4u * D4 * workgroup.x, p.flags, p.weight_0, p.table_0, c);
    let raw_k = raw(p.x_1 + batch * p.stride_1 + 4u * own_head, p.flags >> 3u, p.weight_1, p.table_1, c);
    let raw_v = raw(p.x_2 + batch * p.stride_2 + 4u * own_head, p.flags >> 6u, p.weight_2, p.table_2, c);
//@ else
    var query = memory[p.q / 4u + head + d];
//@ end
    var first = p.first;
//@ if POSITIONS
    // The end of the loop below must be the same for all threads.
    if lane == 0u {
        position = bitcast<vec4<i32>>(memory[(p.positions + batch) >> 2u])[(p.positions + batch) & 3u];
    }
    first = u32(max(workgroupUniformLoad(&position), 0));
//@ end
    let end = min(first, p.tk - 1u) + 1u;
//@ for u AHEAD
    let begin_${u} = own_row + min(${u}u * PARTS + part, end - 1u);
    var row_k_${u} = row_at(p.k, begin_${u}, kv_width, own_head + d);
    var row_v_${u} = row_at(p.v, begin_${u}, kv_width, own_head + d);
//@ end
//@ if HEADS
    var query = prepared(raw_q, p.flags, p.eps_0, c);
    let new_k = prepared(raw_k, p.flags >> 3u, p.eps_1, c);
    let new_v = prepared(raw_v, p.flags >> 6u, p.eps_2, c);
    let stores = is && part == 0u && workgroup.x % p.group == 0u;
    let last = own_row + end - 1u;
    let last_k = kept(new_k, p.k, last, 4u * kv_width, 4u * own_head, c, stores);
    let last_v = kept(new_v, p.v, last, 4u * kv_width, 4u * own_head, c, stores);
//@ end
    query = select(vec4<f32>(), p.scale * query, is);
    var largest = NOTHING;
    var sum = 0.0;
    var out = vec4<f32>();
    for (var start = 0u; start < end; start += ${AHEAD}u * PARTS) {
//@ for u AHEAD
        let key_${u} = start + ${u}u * PARTS + part;
        var k_${u} = channels(row_k_${u}, own_head + d);
        var v_${u} = channels(row_v_${u}, own_head + d);
//@ if HEADS
        // The last row of the state may not be written yet.
        k_${u} = select(k_${u}, last_k, key_${u} + 1u >= end);
        v_${u} = select(v_${u}, last_v, key_${u} + 1u >= end);
//@ end
//@ end
//@ for u AHEAD
        var s_${u} = dot(query, k_${u});
//@ end
//@ for r ROUNDS
//@ for u AHEAD
        s_${u} += subgroupShuffleXor(s_${u}, 1u << ${r}u);
//@ end
//@ end
        let before = largest;
//@ for u AHEAD
        s_${u} = select(NOTHING, s_${u}, key_${u} < end);
        largest = max(largest, s_${u});
//@ end
        let rescale = exp_f32(before - largest);
        sum *= rescale;
        out *= rescale;
//@ for u AHEAD
        let e_${u} = select(0.0, exp_f32(s_${u} - largest), key_${u} < end);
        sum += e_${u};
        out = fma(vec4<f32>(e_${u}), v_${u}, out);
//@ end
        if start + ${AHEAD}u * PARTS < end {
//@ for u AHEAD
            // Past the end, the last key is read but not used.
            let next_${u} = own_row + min(key_${u} + ${AHEAD}u * PARTS, end - 1u);
            row_k_${u} = row_at(p.k, next_${u}, kv_width, own_head + d);
            row_v_${u} = row_at(p.v, next_${u}, kv_width, own_head + d);
//@ end
        }
    }

    // The parts of a subgroup, then all subgroups, in a fixed order.
    let own = largest;
//@ for r MERGES
    largest = max(largest, subgroupShuffleXor(largest, OF_KEY << ${r}u));
//@ end
    let factor = exp_f32(own - largest);
    sum *= factor;
    out *= factor;
//@ for r MERGES
    sum += subgroupShuffleXor(sum, OF_KEY << ${r}u);
    out += subgroupShuffleXor(out, OF_KEY << ${r}u);
//@ end
    if invocation == 0u {
        most[subgroup] = largest;
        sums[subgroup] = sum;
    }
    if invocation < D4 {
        outs[subgroup * D4 + d] = out;
    }
    workgroupBarrier();
    if lane < D4 {
        for (var i = 0u; i < SUBGROUPS; i++) {
            largest = max(largest, most[i]);
        }
        sum = 0.0;
        out = vec4<f32>();
        for (var i = 0u; i < SUBGROUPS; i++) {
            let share = exp_f32(most[i] - largest);
            sum = fma(share, sums[i], sum);
            out = fma(vec4<f32>(share), outs[i * D4 + lane], out);
        }
        memory[p.out / 4u + head + lane] = out / sum;
    }
}
