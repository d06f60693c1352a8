enable f16;
enable wgpu_cooperative_matrix;

// Attention of many queries on cooperative matrices, without a mask: the function of attention_tile.wgsl,
// whose parameters it has. Queries, keys, values and their weights are rounded to f16, scores and sums are
// f32. With HALF, queries, keys and values are stored in f16, of which a thread reads eight at a time,
// otherwise four. See matmul_cooperative.wgsl about cooperative matrices.
//
// A workgroup has QUERIES queries of one head and iterates over tiles of KEYS keys. Its SGM × SGN subgroups
// divide the scores of a tile, and the sums, into FM × FN and FM × FD fragments each. Since the elements of a
// cooperative matrix cannot be accessed, scores pass through workgroup memory. There, PARTS neighboring
// threads compute the weights of one query. Keys and values are read a tile ahead.
//
// Weights are 2^(score − reference) with a reference for each query, the largest score of the first tile.
// Only if a later score exceeds it by more than MARGIN, which f16 could not hold, the reference and the sums
// change; they pass through workgroup memory for that.

struct Params {
    q: u32,
    k: u32,
    v: u32,
    out: u32,
    // LENS: [B].
    lens: u32,
    tq: u32,
    tk: u32,
    heads: u32,
    // 1 if each batch row has its own keys, else 0.
    own: u32,
    first: u32,
    scale: f32,
    window: u32,
    relative_key: u32,
    relative_value: u32,
    // Heads of q that share one head of k and v.
    group: u32,
    seen: u32,
    // BIAS: [B, H, Tq, Tk], added to the scaled scores.
    bias: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<f32>>;

alias Left = coop_mat${FRAGMENT}x${FRAGMENT}<f16, A>;
alias Right = coop_mat${FRAGMENT}x${FRAGMENT}<f16, B>;
alias Sum = coop_mat${FRAGMENT}x${FRAGMENT}<f32, C>;

// In vectors of four. Rows in workgroup memory have two more, to avoid bank conflicts.
const D4 = ${D}u / 4u;
const FRAGMENT4 = ${FRAGMENT}u / 4u;
const KV_STRIDE = D4 + 2u;
const WEIGHTS_STRIDE = ${KEYS}u / 4u + 2u;
const STRIDE = ${WIDEST}u / 4u + 2u;

// In vectors of EACH elements of queries, keys and values, which a thread reads at once.
const EACH = ${EACH}u;
const VECTORS = ${D}u / EACH;

// Scores of keys that are not seen, and references before the first tile: 2^(NOTHING − LOWEST) is zero.
const NOTHING = -3.0e38;
const LOWEST = -1.0e30;
const MARGIN = 14.0;
const LOG2_E = 1.442695;

var<workgroup> k_tile: array<vec4<f16>, ${KEYS} * KV_STRIDE>;
// Queries, then values.
var<workgroup> v_tile: array<vec4<f16>, ${ROWS} * KV_STRIDE>;
var<workgroup> weights: array<vec4<f16>, ${QUERIES} * WEIGHTS_STRIDE>;
// Scores; sums while they change or are stored.
var<workgroup> scores: array<vec4<f32>, ${QUERIES} * STRIDE>;
// Of each query, what its sums are multiplied by.
var<workgroup> factors: array<f32, ${QUERIES}>;
// Whether a reference changed in the current tile.
var<workgroup> changed: atomic<u32>;

@compute @workgroup_size(${THREADS})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
) {
    let lane = subgroup * ${LANES}u + invocation;
    let sm = subgroup / ${SGN}u;
    let sn = subgroup % ${SGN}u;
    let kv_width = p.heads / p.group * VECTORS;
    let batch = workgroup.z;
    let kv = batch * p.own;
    let kv_from = kv * p.tk * kv_width + workgroup.y / p.group * VECTORS;
    let first_query = workgroup.x * ${QUERIES}u;
    var keys = p.tk;
//@ if LENS
    let len = bitcast<vec4<i32>>(memory[(p.lens + kv) >> 2u])[(p.lens + kv) & 3u];
    keys = u32(clamp(len, 0, i32(p.tk)));
//@ end

    // Rows and vectors of a tile of keys or values that this thread reads, and where it stores them.
//@ for u LOADS
    let row_${u} = (lane + ${u}u * ${THREADS}u) / VECTORS;
    let vector_${u} = kv_from + (lane + ${u}u * ${THREADS}u) % VECTORS;
    let to_${u} = row_${u} * KV_STRIDE + (lane + ${u}u * ${THREADS}u) % VECTORS * (EACH / 4u);
    let first_k_${u} = load(p.k, row_${u}, kv_width, vector_${u});
    var v_${u} = load(p.v, row_${u}, kv_width, vector_${u});
    var k_${u} = load(p.k, ${KEYS}u + row_${u}, kv_width, vector_${u});
//@ end
//@ if HALF
    // Neighboring threads store the first and the last four of eight elements at a time, which are in
    // different banks.
    let odd = lane % 2u;
//@ end
    for (var i = lane; i < ${QUERIES}u * VECTORS; i += ${THREADS}u) {
        let row = min(first_query + i / VECTORS, p.tq - 1u);
        let at = ((batch * p.tq + row) * p.heads + workgroup.y) * VECTORS + i % VECTORS;
        let to = i / VECTORS * KV_STRIDE + i % VECTORS * (EACH / 4u);
        let q = memory[p.q / 4u + at];
//@ if HALF
        v_tile[to] = four(q.xy);
        v_tile[to + 1u] = four(q.zw);
//@ else
        v_tile[to] = four(q);
//@ end
    }
//@ for u LOADS
//@ if HALF
    k_tile[to_${u}] = four(first_k_${u}.xy);
    k_tile[to_${u} + 1u] = four(first_k_${u}.zw);
//@ else
    k_tile[to_${u}] = four(first_k_${u});
//@ end
//@ end
    if lane == 0u {
        atomicStore(&changed, 0u);
    }
    workgroupBarrier();
//@ for i FM
//@ for c DEPTHS
    let q_${i}_${c} = coopLoadT<Left>(
        &v_tile[(sm * ${FM}u + ${i}u) * ${FRAGMENT}u * KV_STRIDE + ${c}u * FRAGMENT4], KV_STRIDE);
//@ end
//@ for j FD
    var out_${i}_${j} = Sum();
//@ end
//@ end

    let query = lane / ${PARTS}u;
    let part = lane % ${PARTS}u;
//@ if BIAS
    let row = min(first_query + query, p.tq - 1u);
    let bias_from = p.bias + ((batch * p.heads + workgroup.y) * p.tq + row) * p.tk;
    let scale = LOG2_E;
//@ else
    let scale = p.scale * LOG2_E;
//@ end
    // The vectors of scores that this thread reads, in an order in which those of neighboring queries are in
    // different banks.
//@ for s SHARE
    let own_${s} = (${s}u * ${PARTS}u + part + query % 4u * 2u) % (${KEYS}u / 4u);
//@ end
    var reference = LOWEST;
    var total = 0.0;
    // The loop has barriers, so its end must not depend on memory: WGSL requires uniform control flow.
    for (var start = 0u; start < p.tk; start += ${KEYS}u) {
//@ for i FM
//@ for j FN
        var score_${i}_${j} = Sum();
//@ end
//@ end
//@ for c DEPTHS
//@ for j FN
        let k_${c}_${j} = coopLoad<Right>(
            &k_tile[(sn * ${FN}u + ${j}u) * ${FRAGMENT}u * KV_STRIDE + ${c}u * FRAGMENT4], KV_STRIDE);
//@ for i FM
        score_${i}_${j} = coopMultiplyAdd(q_${i}_${c}, k_${c}_${j}, score_${i}_${j});
//@ end
//@ end
//@ end
//@ for i FM
//@ for j FN
        coopStoreT(
            score_${i}_${j},
            &scores[(sm * ${FM}u + ${i}u) * ${FRAGMENT}u * STRIDE + (sn * ${FN}u + ${j}u) * FRAGMENT4],
            STRIDE);
//@ end
//@ end
        workgroupBarrier();

//@ if BIAS
//@ for s SHARE
        let biased_${s} =
            min(start + own_${s} * 4u + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(p.tk - 1u));
        let bias_${s} = vec4<f32>(
            one(bias_from + biased_${s}.x), one(bias_from + biased_${s}.y),
            one(bias_from + biased_${s}.z), one(bias_from + biased_${s}.w));
//@ end
//@ end
        // Values that are not seen may be anything, also NaN, which weights of zero would not remove.
//@ for u LOADS
        v_${u} = select(vec4<f32>(), v_${u}, start + row_${u} < keys);
//@ if HALF
        v_tile[to_${u} + odd] = four(select(v_${u}.xy, v_${u}.zw, odd == 1u));
        v_tile[to_${u} + 1u - odd] = four(select(v_${u}.zw, v_${u}.xy, odd == 1u));
//@ else
        v_tile[to_${u}] = four(v_${u});
//@ end
        v_${u} = load(p.v, start + ${KEYS}u + row_${u}, kv_width, vector_${u});
//@ end
//@ for s SHARE
        var score_${s} = scores[query * STRIDE + own_${s}];
//@ if BIAS
        score_${s} = fma(score_${s}, vec4<f32>(p.scale), bias_${s});
//@ end
//@ end
        if start + ${KEYS}u > keys {
//@ for s SHARE
            let at_${s} = start + own_${s} * 4u + vec4<u32>(0u, 1u, 2u, 3u);
            score_${s} = select(vec4<f32>(NOTHING), score_${s}, at_${s} < vec4<u32>(keys));
//@ end
        }
        var largest = NOTHING;
//@ for s SHARE
        largest = max(largest, max(max(score_${s}.x, score_${s}.y), max(score_${s}.z, score_${s}.w)));
//@ end
//@ for r ROUNDS
        largest = max(largest, subgroupShuffleXor(largest, 1u << ${r}u));
//@ end
        largest *= scale;
        var factor = 1.0;
        if largest > reference + MARGIN {
            factor = exp2(reference - largest);
            reference = largest;
            // Before the first tile there are no sums.
            if start > 0u {
                atomicStore(&changed, 1u);
            }
        }
        if part == 0u {
            factors[query] = factor;
        }
        total *= factor;
//@ for s SHARE
        let w_${s} = exp2(fma(score_${s}, vec4<f32>(scale), vec4<f32>(-reference)));
        weights[query * WEIGHTS_STRIDE + own_${s}] = vec4<f16>(w_${s});
        total += (w_${s}.x + w_${s}.y) + (w_${s}.z + w_${s}.w);
//@ end
//@ for u LOADS
//@ if HALF
        k_tile[to_${u} + odd] = four(select(k_${u}.xy, k_${u}.zw, odd == 1u));
        k_tile[to_${u} + 1u - odd] = four(select(k_${u}.zw, k_${u}.xy, odd == 1u));
//@ else
        k_tile[to_${u}] = four(k_${u});
//@ end
        k_${u} = load(p.k, start + 2u * ${KEYS}u + row_${u}, kv_width, vector_${u});
//@ end
        workgroupBarrier();

        if atomicLoad(&changed) > 0u {
//@ for i FM
//@ for j FD
            coopStoreT(
                out_${i}_${j},
                &scores[(sm * ${FM}u + ${i}u) * ${FRAGMENT}u * STRIDE + (sn * ${FD}u + ${j}u) * FRAGMENT4],
                STRIDE);
//@ end
//@ end
            workgroupBarrier();
            if lane == 0u {
                atomicStore(&changed, 0u);
            }
            for (var i = lane; i < ${QUERIES}u * D4; i += ${THREADS}u) {
                scores[i / D4 * STRIDE + i % D4] *= factors[i / D4];
            }
            workgroupBarrier();
//@ for i FM
//@ for j FD
            out_${i}_${j} = coopLoadT<Sum>(
                &scores[(sm * ${FM}u + ${i}u) * ${FRAGMENT}u * STRIDE + (sn * ${FD}u + ${j}u) * FRAGMENT4],
                STRIDE);
//@ end
//@ end
            workgroupBarrier();
        }
//@ for c KEY_STEPS
//@ for i FM
        let w_${c}_${i} = coopLoadT<Left>(
            &weights[(sm * ${FM}u + ${i}u) * ${FRAGMENT}u * WEIGHTS_STRIDE + ${c}u * FRAGMENT4],
            WEIGHTS_STRIDE);
//@ end
//@ for j FD
        let v_${c}_${j} = coopLoadT<Right>(
            &v_tile[${c}u * ${FRAGMENT}u * KV_STRIDE + (sn * ${FD}u + ${j}u) * FRAGMENT4], KV_STRIDE);
//@ for i FM
        out_${i}_${j} = coopMultiplyAdd(w_${c}_${i}, v_${c}_${j}, out_${i}_${j});
//@ end
//@ end
//@ end
    }

    // Scores and factors were read before the last barrier.
//@ for r ROUNDS
    total += subgroupShuffleXor(total, 1u << ${r}u);
//@ end
    workgroupBarrier();
    if part == 0u {
        factors[query] = select(0.0, 1.0 / total, total > 0.0);
    }
//@ for i FM
//@ for j FD
    coopStoreT(
        out_${i}_${j},
        &scores[(sm * ${FM}u + ${i}u) * ${FRAGMENT}u * STRIDE + (sn * ${FD}u + ${j}u) * FRAGMENT4],
        STRIDE);
//@ end
//@ end
    workgroupBarrier();
    for (var i = lane; i < ${QUERIES}u * D4; i += ${THREADS}u) {
        let row = first_query + i / D4;
        if row < p.tq {
            let to = ((batch * p.tq + row) * p.heads + workgroup.y) * D4 + i % D4;
            memory[p.out / 4u + to] = scores[i / D4 * STRIDE + i % D4] * factors[i / D4];
        }
    }
}

// EACH elements of a key or value; past the end, those of the last one.
fn load(first: u32, key: u32, width: u32, vector: u32) -> vec4<f32> {
    return memory[first / 4u + min(key, p.tk - 1u) * width + vector];
}

//@ if BIAS
fn one(at: u32) -> f32 {
    return memory[at >> 2u][at & 3u];
}
//@ end

// Four elements in f16.
//@ if HALF
fn four(words: vec2<f32>) -> vec4<f16> {
    let bits = bitcast<vec2<u32>>(words);
    return vec4<f16>(vec4<f32>(unpack2x16float(bits.x), unpack2x16float(bits.y)));
}
//@ else
fn four(x: vec4<f32>) -> vec4<f16> {
    return vec4<f16>(x);
}
//@ end
