enable f16;
enable wgpu_cooperative_matrix;

// Attention of many queries on cooperative matrices, without a mask and bias: the function of
// attention_tile.wgsl, whose parameters it has. Queries, keys, values and their weights are rounded to f16,
// scores and sums are f32. See matmul_cooperative.wgsl about cooperative matrices.
//
// A workgroup has QUERIES queries of one head and iterates over tiles of KEYS keys. Its SGM × SGN subgroups
// divide the scores of a tile, and the sums, into FM × FN and FM × FD fragments each. Since the elements of a
// cooperative matrix cannot be accessed, scores pass through workgroup memory. There, PARTS neighboring
// threads compute the weights of one query.
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
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<f32>>;

alias Left = coop_mat${FRAGMENT}x${FRAGMENT}<f16, A>;
alias Right = coop_mat${FRAGMENT}x${FRAGMENT}<f16, B>;
alias Sum = coop_mat${FRAGMENT}x${FRAGMENT}<f32, C>;

// In vectors of four. Rows in workgroup memory have two more, to avoid bank conflicts.
const D4 = ${D}u / 4u;
const KEYS4 = ${KEYS}u / 4u;
const FRAGMENT4 = ${FRAGMENT}u / 4u;
const KV_STRIDE = D4 + 2u;
const STRIDE = ${WIDEST}u / 4u + 2u;

const NOTHING = -3.0e38;
const MARGIN = 14.0;
const LOG2_E = 1.442695;

var<workgroup> k_tile: array<vec4<f16>, ${KEYS} * KV_STRIDE>;
var<workgroup> v_tile: array<vec4<f16>, ${KEYS} * KV_STRIDE>;
// Queries, then weights.
var<workgroup> weights: array<vec4<f16>, ${QUERIES} * STRIDE>;
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
    let width = p.heads * D4;
    let head = workgroup.y * D4;
    let kv_width = p.heads / p.group * D4;
    let batch = workgroup.z;
    let kv = batch * p.own;
    let kv_from = kv * p.tk * kv_width + workgroup.y / p.group * D4;
    let first_query = workgroup.x * ${QUERIES}u;
    var keys = p.tk;
//@ if LENS
    let len = bitcast<vec4<i32>>(memory[(p.lens + kv) >> 2u])[(p.lens + kv) & 3u];
    keys = u32(clamp(len, 0, i32(p.tk)));
//@ end

    // Rows and quads of a tile of keys or values that this thread reads, and where it stores them.
//@ for u LOADS
    let row_${u} = (lane + ${u}u * ${THREADS}u) / D4;
    let quad_${u} = kv_from + (lane + ${u}u * ${THREADS}u) % D4;
    let to_${u} = row_${u} * KV_STRIDE + (lane + ${u}u * ${THREADS}u) % D4;
    k_tile[to_${u}] = rounded(load(p.k, row_${u}, kv_width, quad_${u}), row_${u} < keys);
//@ end
    for (var i = lane; i < ${QUERIES}u * D4; i += ${THREADS}u) {
        let row = min(first_query + i / D4, p.tq - 1u);
        let at = p.q / 4u + (batch * p.tq + row) * width + head + i % D4;
        weights[i / D4 * STRIDE + i % D4] = vec4<f16>(memory[at]);
    }
    if lane == 0u {
        atomicStore(&changed, 0u);
    }
    workgroupBarrier();
//@ for i FM
//@ for c DEPTHS
    let q_${i}_${c} = coopLoadT<Left>(
        &weights[(sm * ${FM}u + ${i}u) * ${FRAGMENT}u * STRIDE + ${c}u * FRAGMENT4], STRIDE);
//@ end
//@ for j FD
    var out_${i}_${j} = Sum();
//@ end
//@ end

    let query = lane / ${PARTS}u;
    let part = lane % ${PARTS}u;
    let scale = p.scale * LOG2_E;
    var reference = NOTHING;
    var total = 0.0;
    // The loop has barriers, so its end must not depend on memory: WGSL requires uniform control flow.
    for (var start = 0u; start < p.tk; start += ${KEYS}u) {
//@ for u LOADS
        let v_${u} = load(p.v, start + row_${u}, kv_width, quad_${u});
//@ end
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

        // The values of this tile, and the keys of the next.
//@ for u LOADS
        v_tile[to_${u}] = rounded(v_${u}, start + row_${u} < keys);
//@ end
//@ for u LOADS
        let k_${u} = load(p.k, start + ${KEYS}u + row_${u}, kv_width, quad_${u});
//@ end
        var largest = NOTHING;
//@ for s SHARE
        let at_${s} = start + (${s}u * ${PARTS}u + part) * 4u + vec4<u32>(0u, 1u, 2u, 3u);
        let score_${s} = select(
            vec4<f32>(NOTHING),
            scale * scores[query * STRIDE + ${s}u * ${PARTS}u + part],
            at_${s} < vec4<u32>(keys));
        largest = max(largest, max(max(score_${s}.x, score_${s}.y), max(score_${s}.z, score_${s}.w)));
//@ end
//@ for r ROUNDS
        largest = max(largest, subgroupShuffleXor(largest, 1u << ${r}u));
//@ end
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
        {
            let e = select(
                vec4<f16>(), vec4<f16>(exp2(score_${s} - reference)), at_${s} < vec4<u32>(keys));
            weights[query * STRIDE + ${s}u * ${PARTS}u + part] = e;
            // As the products see them.
            let w = vec4<f32>(e);
            total += (w.x + w.y) + (w.z + w.w);
        }
//@ end
//@ for u LOADS
        k_tile[to_${u}] = rounded(k_${u}, start + ${KEYS}u + row_${u} < keys);
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
            &weights[(sm * ${FM}u + ${i}u) * ${FRAGMENT}u * STRIDE + ${c}u * FRAGMENT4], STRIDE);
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
            let to = p.out / 4u + (batch * p.tq + row) * width + head + i % D4;
            memory[to] = scores[i / D4 * STRIDE + i % D4] * factors[i / D4];
        }
    }
}

// Four elements of a key or value; past the end, those of the last one.
fn load(first: u32, key: u32, width: u32, quad: u32) -> vec4<f32> {
    return memory[first / 4u + min(key, p.tk - 1u) * width + quad];
}

// Zeros for keys that are not seen.
fn rounded(x: vec4<f32>, is_seen: bool) -> vec4<f16> {
    return vec4<f16>(select(vec4<f32>(), x, is_seen));
}
