// softmax(scale · q·k + relative) · (v + relative) over the visible keys of each head; zeros if none is
// visible.
//
//   q [B, Tq, H·D], k and v [Bk, Tk, H/group·D] with Bk = B or 1, lens [Bk] → out [B, Tq, H·D];
//   D is a multiple of 4
//   COMPACT: k and v in a compact type
//
// A workgroup of 128 threads has QUERIES queries of one head and iterates over blocks of KEYS keys, with a
// running maximum and sum (online softmax). For the sum over values, a thread has one vector of four channels
// of a query (or OUTPUTS of them) and every PARTS-th key. Keys past a row's length are never read. Masks are
// conditions, so that no infinities are needed.

struct Params {
    q: u32,
    k: u32,
    v: u32,
    out: u32,
    // LENS, or positions for CACHED and STREAM: [B].
    lens: u32,
    tq: u32,
    tk: u32,
    heads: u32,
    // 1 if each batch row has its own keys, else 0.
    own: u32,
    // CAUSAL: position of the first query among the keys; with CACHED, operands have it.
    first: u32,
    scale: f32,
    // RELATIVE: tables [2·window + 1, D] for keys and values.
    window: u32,
    relative_key: u32,
    relative_value: u32,
    // Heads of q that share one head of k and v.
    group: u32,
    // WINDOW: number of keys that a query sees, up to its own.
    seen: u32,
    // BIAS: [B, H, Tq, Tk], added to the scaled scores.
    bias: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<f32>>;
@group(1) @binding(1) var<storage, read> vectors: array<vec4<f32>>;

//@ include math
//@ if COMPACT
//@ include cache_rows
//@ end

// In vectors of four; rows of keys have one more, to avoid bank conflicts.
const D4 = ${D}u / 4u;
const STRIDE = D4 + 1u;
const QUERIES = ${QUERIES}u;
const KEYS = ${KEYS}u;
const PARTS = ${PARTS}u;
// Threads that share a query's softmax.
const TEAM = 128u / QUERIES;
const NOTHING = -3.0e38;

var<workgroup> query: array<vec4<f32>, ${QUERY_TILE}>;
// A block of keys, then of values, finally partial sums.
var<workgroup> block: array<vec4<f32>, ${KEY_TILE}>;
var<workgroup> score: array<f32, ${SCORE_TILE}>;
var<workgroup> partial: array<f32, 128>;
//@ if POSITIONS
var<workgroup> position: i32;
//@ end
var<workgroup> factor: array<f32, ${QUERIES}>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let width = p.heads * D4;
    let head = workgroup.y * D4;
    let kv_width = p.heads / p.group * D4;
    let kv_head = workgroup.y / p.group * D4;
    let batch = workgroup.z;
    let kv = batch * p.own;
    let first_query = workgroup.x * QUERIES;
    let queries = min(QUERIES, p.tq - first_query);
    var keys = p.tk;
//@ if LENS
    let len = bitcast<vec4<i32>>(memory[(p.lens + kv) >> 2u])[(p.lens + kv) & 3u];
    keys = u32(clamp(len, 0, i32(p.tk)));
//@ end
    var first = p.first;
    // The first key that any query sees.
    var begin = 0u;
//@ if POSITIONS
    // The loop below has barriers, so all threads must agree on its bounds.
    if lane == 0u {
        position = bitcast<vec4<i32>>(memory[(p.lens + batch) >> 2u])[(p.lens + batch) & 3u];
    }
    let given = max(workgroupUniformLoad(&position), 0);
//@ if STREAM
    begin = u32(max(i32(p.first) - given, 0));
//@ else
    first = min(u32(given), p.tk - p.tq);
//@ end
//@ end
    // The loop has barriers, so its end must not depend on memory: WGSL requires uniform control flow.
    var end = p.tk;
//@ if CAUSAL
    end = min(end, first + first_query + queries);
//@ end
    for (var i = lane; i < QUERIES * D4; i += 128u) {
        let row = min(first_query + i / D4, p.tq - 1u);
        query[i] = memory[p.q / 4u + (batch * p.tq + row) * width + head + i % D4];
    }
    let mine = lane / TEAM;
    let seat = lane % TEAM;
    let part = lane / (128u / PARTS);
    let place = lane % (128u / PARTS);
    var largest = NOTHING;
    var sum = 0.0;
//@ for o OUTPUTS
    var out_${o} = vec4<f32>();
//@ end

    var start = begin;
//@ if WINDOW
    start = max(start, max(first + first_query + 1u, p.seen) - p.seen);
//@ end
    for (; start < end; start += KEYS) {
        let here = min(KEYS, max(min(keys, end), start) - start);
        let k_from = p.k / 4u + (kv * p.tk + start) * kv_width + kv_head;
        let v_from = p.v / 4u + (kv * p.tk + start) * kv_width + kv_head;
        workgroupBarrier();
        for (var i = lane; i < here * D4; i += 128u) {
//@ if COMPACT
            let row = p.k + (kv * p.tk + start + i / D4) * kept_words(4u * kv_width);
            block[i / D4 * STRIDE + i % D4] = kept_four(row, 4u * kv_width, 4u * (kv_head + i % D4));
//@ else
            block[i / D4 * STRIDE + i % D4] = memory[k_from + i / D4 * kv_width + i % D4];
//@ end
        }
        workgroupBarrier();
        for (var i = lane; i < QUERIES * KEYS; i += 128u) {
            let row = i / KEYS;
            let key = i % KEYS;
            var s = NOTHING;
            var seen = key < here;
//@ if CAUSAL
            seen = seen && start + key <= first + first_query + row;
//@ end
//@ if WINDOW
            seen = seen && start + key + p.seen > first + first_query + row;
//@ end
            if seen {
                var four = vec4<f32>();
                for (var d = 0u; d < D4; d++) {
                    four = fma(query[row * D4 + d], block[key * STRIDE + d], four);
                }
//@ if RELATIVE
                let offset = i32(start + key) - i32(first + first_query + row) + i32(p.window);
                if offset >= 0 && offset <= i32(2u * p.window) {
                    for (var d = 0u; d < D4; d++) {
                        let relative = vectors[p.relative_key / 4u + u32(offset) * D4 + d];
                        four = fma(query[row * D4 + d], relative, four);
                    }
                }
//@ end
                s = p.scale * ((four.x + four.y) + (four.z + four.w));
//@ if BIAS
                // Rows past the last query are computed but not stored.
                let query_row = min(first_query + row, p.tq - 1u);
                let at = p.bias + ((batch * p.heads + workgroup.y) * p.tq + query_row) * p.tk + start + key;
                s += memory[at >> 2u][at & 3u];
//@ end
            }
            score[i] = s;
        }
        workgroupBarrier();
        for (var i = lane; i < here * D4; i += 128u) {
//@ if COMPACT
            let row = p.v + (kv * p.tk + start + i / D4) * kept_words(4u * kv_width);
            block[i / D4 * STRIDE + i % D4] = kept_four(row, 4u * kv_width, 4u * (kv_head + i % D4));
//@ else
            block[i / D4 * STRIDE + i % D4] = memory[v_from + i / D4 * kv_width + i % D4];
//@ end
        }
        var most = NOTHING;
        for (var key = seat; key < KEYS; key += TEAM) {
            most = max(most, score[mine * KEYS + key]);
        }
        partial[lane] = most;
        workgroupBarrier();
        let before = largest;
        for (var i = 0u; i < TEAM; i++) {
            largest = max(largest, partial[mine * TEAM + i]);
        }
        var some = 0.0;
        for (var key = seat; key < KEYS; key += TEAM) {
            let s = score[mine * KEYS + key];
            var e = 0.0;
            if s > NOTHING {
                e = exp_f32(s - largest);
            }
            score[mine * KEYS + key] = e;
            some += e;
        }
        // Before the first visible key there is nothing to rescale.
        var rescale = 0.0;
        if before > NOTHING {
            rescale = exp_f32(before - largest);
        }
        if seat == 0u {
            factor[mine] = rescale;
        }
        sum = fma(sum, rescale, some);
        workgroupBarrier();
//@ for o OUTPUTS
        {
            let i = place + ${o}u * 128u;
            if i < QUERIES * D4 {
                let row = i / D4;
                let d = i % D4;
                var y = out_${o} * factor[row];
                for (var key = part; key < here; key += PARTS) {
                    y = fma(vec4<f32>(score[row * KEYS + key]), block[key * STRIDE + d], y);
                }
//@ if RELATIVE
                if part == 0u {
                    for (var o = 0u; o <= 2u * p.window; o++) {
                        let key = i32(first + first_query + row + o) - i32(p.window) - i32(start);
                        if key >= 0 && key < i32(here) {
                            let e = vec4<f32>(score[row * KEYS + u32(key)]);
                            y = fma(e, vectors[p.relative_value / 4u + o * D4 + d], y);
                        }
                    }
                }
//@ end
                out_${o} = y;
            }
        }
//@ end
    }

    // Each thread has its own part of a query's sum.
    workgroupBarrier();
    partial[lane] = sum;
//@ if SEVERAL
    block[lane] = out_0;
//@ end
    workgroupBarrier();
    if seat == 0u {
        var all = 0.0;
        for (var i = 0u; i < TEAM; i++) {
            all += partial[mine * TEAM + i];
        }
        factor[mine] = select(0.0, 1.0 / all, all > 0.0);
    }
    workgroupBarrier();
//@ for o OUTPUTS
    {
        let i = place + ${o}u * 128u;
        if part == 0u && i < queries * D4 {
            let row = i / D4;
//@ if SEVERAL
            for (var other = 1u; other < PARTS; other++) {
                out_${o} += block[other * (128u / PARTS) + place];
            }
//@ end
            let to = p.out / 4u + (batch * p.tq + first_query + row) * width + head + i % D4;
            memory[to] = out_${o} * factor[row];
        }
    }
//@ end
}
