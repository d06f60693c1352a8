// The function of attention_row.wgsl, whose parameters it has, on devices whose subgroups have LANES threads,
// at least D / 4.
//
// A workgroup has one head. D / 4 neighboring threads compute the score of a key, four channels each, with
// AHEAD keys at a time. Every PARTS-th key is theirs, with a maximum and sums of their own, so that only the
// end needs barriers.

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
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<f32>>;

//@ include math
//@ if COMPACT
//@ include cache_rows
//@ end

// In vectors of four.
const D4 = ${D}u / 4u;
const PARTS = ${THREADS}u / D4;
const SUBGROUPS = ${THREADS}u / ${LANES}u;
const NOTHING = -3.0e38;

// Of each subgroup; results of the keys of all its threads.
var<workgroup> most: array<f32, SUBGROUPS>;
var<workgroup> sums: array<f32, SUBGROUPS>;
var<workgroup> outs: array<vec4<f32>, SUBGROUPS * D4>;
//@ if POSITIONS
var<workgroup> position: i32;
//@ end

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
    var first = p.first;
//@ if POSITIONS
    // The end of the loop below must be the same for all threads.
    if lane == 0u {
        position = bitcast<vec4<i32>>(memory[(p.positions + batch) >> 2u])[(p.positions + batch) & 3u];
    }
    first = u32(max(workgroupUniformLoad(&position), 0));
//@ end
    let end = min(first, p.tk - 1u) + 1u;
    let part = lane / D4;
    let d = lane % D4;
    let query = p.scale * memory[p.q / 4u + head + d];
    var largest = NOTHING;
    var sum = 0.0;
    var out = vec4<f32>();
    for (var start = 0u; start < end; start += ${AHEAD}u * PARTS) {
//@ for u AHEAD
        let key_${u} = start + ${u}u * PARTS + part;
        // Past the end, the last key is read but not used.
//@ if COMPACT
        let row_${u} = (own_row + min(key_${u}, end - 1u)) * kept_words(4u * kv_width);
        let k_${u} = kept_four(p.k + row_${u}, 4u * kv_width, 4u * (own_head + d));
        let v_${u} = kept_four(p.v + row_${u}, 4u * kv_width, 4u * (own_head + d));
//@ else
        let at_${u} = (own_row + min(key_${u}, end - 1u)) * kv_width + own_head + d;
        let k_${u} = memory[p.k / 4u + at_${u}];
        let v_${u} = memory[p.v / 4u + at_${u}];
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
    }

    // The parts of a subgroup, then all subgroups, in a fixed order.
    let own = largest;
//@ for r MERGES
    largest = max(largest, subgroupShuffleXor(largest, D4 << ${r}u));
//@ end
    let factor = exp_f32(own - largest);
    sum *= factor;
    out *= factor;
//@ for r MERGES
    sum += subgroupShuffleXor(sum, D4 << ${r}u);
    out += subgroupShuffleXor(out, D4 << ${r}u);
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
