// Attention of many queries, without a mask: the function of attention.wgsl, whose parameters it has.
//
// A workgroup of 64 threads has 32 queries of one head and iterates over 32 keys. A thread computes the
// scores of four queries, 8 apart, with four keys, 8 apart, and then four channels at a time of the sums of
// the same queries, so that a vector is read from workgroup memory for four or more uses.

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

//@ include math

// In vectors of four; rows of keys have one more, to avoid bank conflicts.
const D4 = ${D}u / 4u;
const STRIDE = D4 + 1u;
const ROWS = 32u;
const NOTHING = -3.0e38;

var<workgroup> query: array<vec4<f32>, ${QUERY_TILE}>;
// Keys, then values.
var<workgroup> block: array<vec4<f32>, ${KEY_TILE}>;
// Of each query, the weights of keys x, x + 8, x + 16 and x + 24, for x = 0 … 7.
var<workgroup> score: array<vec4<f32>, 256>;
// Of each thread, a number for each of its four queries.
var<workgroup> partial: array<vec4<f32>, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let width = p.heads * D4;
    let head = workgroup.y * D4;
    let kv_width = p.heads / p.group * D4;
    let batch = workgroup.z;
    let kv = batch * p.own;
    let kv_from = kv * p.tk * kv_width + workgroup.y / p.group * D4;
    let first_query = workgroup.x * ROWS;
    var keys = p.tk;
//@ if LENS
    let len = bitcast<vec4<i32>>(memory[(p.lens + kv) >> 2u])[(p.lens + kv) & 3u];
    keys = u32(clamp(len, 0, i32(p.tk)));
//@ end
    for (var i = lane; i < ROWS * D4; i += 64u) {
        let row = min(first_query + i / D4, p.tq - 1u);
        query[i] = memory[p.q / 4u + (batch * p.tq + row) * width + head + i % D4];
    }
    let x = lane % 8u;
    let y = lane / 8u;
    var largest = vec4<f32>(NOTHING);
    var sum = vec4<f32>();
//@ for i FOUR
//@ for o OUTPUTS
    var out_${i}_${o} = vec4<f32>();
//@ end
//@ end

    // The loop has barriers, so its end must not depend on memory: WGSL requires uniform control flow.
    for (var start = 0u; start < p.tk; start += ROWS) {
        workgroupBarrier();
        for (var i = lane; i < ROWS * D4; i += 64u) {
            let key = start + i / D4;
            var row = vec4<f32>();
            if key < keys {
                row = memory[p.k / 4u + kv_from + key * kv_width + i % D4];
            }
            block[i / D4 * STRIDE + i % D4] = row;
        }
        workgroupBarrier();
//@ for i FOUR
//@ for j FOUR
        var s_${i}_${j} = vec4<f32>();
//@ end
//@ end
        for (var d = 0u; d < D4; d++) {
//@ for j FOUR
            let k_${j} = block[(x + ${j}u * 8u) * STRIDE + d];
//@ end
//@ for i FOUR
            let q_${i} = query[(y + ${i}u * 8u) * D4 + d];
//@ for j FOUR
            s_${i}_${j} = fma(q_${i}, k_${j}, s_${i}_${j});
//@ end
//@ end
        }
        // Keys of this thread that exist.
        let at = start + vec4<u32>(x, x + 8u, x + 16u, x + 24u);
        let is = at < vec4<u32>(keys);
//@ for i FOUR
        var s_${i} = p.scale * vec4<f32>(
//@ for j FOUR
            (s_${i}_${j}.x + s_${i}_${j}.y) + (s_${i}_${j}.z + s_${i}_${j}.w),
//@ end
        );
//@ if BIAS
        {
            // Rows past the last query are computed but not stored.
            let row = min(first_query + y + ${i}u * 8u, p.tq - 1u);
            let places = vec4<u32>(p.bias + ((batch * p.heads + workgroup.y) * p.tq + row) * p.tk)
                + min(at, vec4<u32>(p.tk - 1u));
            s_${i} += vec4<f32>(
                memory[places.x >> 2u][places.x & 3u],
                memory[places.y >> 2u][places.y & 3u],
                memory[places.z >> 2u][places.z & 3u],
                memory[places.w >> 2u][places.w & 3u],
            );
        }
//@ end
        s_${i} = select(vec4<f32>(NOTHING), s_${i}, is);
        let most_${i} = max(max(s_${i}.x, s_${i}.y), max(s_${i}.z, s_${i}.w));
//@ end
        partial[lane] = vec4<f32>(most_0, most_1, most_2, most_3);
        workgroupBarrier();
        for (var i = lane; i < ROWS * D4; i += 64u) {
            let key = start + i / D4;
            var row = vec4<f32>();
            if key < keys {
                row = memory[p.v / 4u + kv_from + key * kv_width + i % D4];
            }
            block[i / D4 * STRIDE + i % D4] = row;
        }
        let before = largest;
        for (var i = 0u; i < 8u; i++) {
            largest = max(largest, partial[y * 8u + i]);
        }
        // Before the first key there is nothing to rescale, and any factor will do.
        let rescale = exp_four(before - largest);
        sum *= rescale;
//@ for i FOUR
        {
            let e = select(vec4<f32>(), exp_four(s_${i} - vec4<f32>(largest[${i}u])), is);
            score[(y + ${i}u * 8u) * 8u + x] = e;
            sum[${i}u] += (e.x + e.y) + (e.z + e.w);
        }
//@ for o OUTPUTS
        out_${i}_${o} *= rescale[${i}u];
//@ end
//@ end
        workgroupBarrier();
        for (var key = 0u; key < 8u; key++) {
//@ for i FOUR
            let e_${i} = score[(y + ${i}u * 8u) * 8u + key];
//@ end
//@ for o OUTPUTS
            {
                // Threads without channels read some others, whose sums are not stored.
                let d = min(x + ${o}u * 8u, D4 - 1u);
//@ for j FOUR
                let v_${j} = block[(key + ${j}u * 8u) * STRIDE + d];
//@ for i FOUR
                out_${i}_${o} = fma(vec4<f32>(e_${i}[${j}u]), v_${j}, out_${i}_${o});
//@ end
//@ end
            }
//@ end
        }
    }

    // Each thread has its own part of four sums.
    workgroupBarrier();
    partial[lane] = sum;
    workgroupBarrier();
    var all = vec4<f32>();
    for (var i = 0u; i < 8u; i++) {
        all += partial[y * 8u + i];
    }
    let factor = select(vec4<f32>(), 1.0 / all, all > vec4<f32>());
//@ for i FOUR
    {
        let row = first_query + y + ${i}u * 8u;
        let to = p.out / 4u + (batch * p.tq + row) * width + head;
//@ for o OUTPUTS
        if row < p.tq && x + ${o}u * 8u < D4 {
            memory[to + x + ${o}u * 8u] = out_${i}_${o} * factor[${i}u];
        }
//@ end
    }
//@ end
}

fn exp_four(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(exp_f32(x.x), exp_f32(x.y), exp_f32(x.z), exp_f32(x.w));
}
