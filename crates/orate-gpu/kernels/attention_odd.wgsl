// softmax(scale · q·k + relative) · (v + relative) over the visible keys of each head; zeros if none is
// visible.
//
//   q [B, Tq, H·D], k and v [Bk, Tk, H/group·D] with Bk = B or 1, lens [Bk] → out [B, Tq, H·D]
//   COMPACT: k and v in a compact type
//
// A workgroup of 128 threads has QUERIES queries of one head and iterates over blocks of KEYS keys, with a
// running maximum and sum (online softmax). Keys past a row's length are never read. Masks are conditions, so
// that no infinities are needed.

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
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
@group(1) @binding(1) var<storage, read> vectors: array<f32>;

//@ include math
//@ if COMPACT
//@ include cache_rows
//@ end

const D = ${D}u;
const QUERIES = ${QUERIES}u;
const KEYS = ${KEYS}u;
// Threads that share a query's softmax.
const TEAM = 128u / QUERIES;
const NOTHING = -3.0e38;

var<workgroup> query: array<f32, ${QUERY_TILE}>;
// A block of keys, then of values; one more element per row avoids bank conflicts.
var<workgroup> block: array<f32, ${KEY_TILE}>;
var<workgroup> score: array<f32, ${SCORE_TILE}>;
var<workgroup> partial: array<f32, 128>;
//@ if POSITIONS
var<workgroup> position: i32;
//@ end
var<workgroup> factor: array<f32, ${QUERIES}>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let width = p.heads * D;
    let head = workgroup.y * D;
    let kv_width = p.heads / p.group * D;
    let kv_head = workgroup.y / p.group * D;
    let batch = workgroup.z;
    let kv = batch * p.own;
    let first_query = workgroup.x * QUERIES;
    let queries = min(QUERIES, p.tq - first_query);
    var keys = p.tk;
//@ if LENS
    keys = u32(clamp(bitcast<i32>(memory[p.lens + kv]), 0, i32(p.tk)));
//@ end
    var first = p.first;
    // The first key that any query sees.
    var begin = 0u;
//@ if POSITIONS
    // The loop below has barriers, so all threads must agree on its bounds.
    if lane == 0u {
        position = bitcast<i32>(memory[p.lens + batch]);
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
    for (var i = lane; i < QUERIES * D; i += 128u) {
        let row = min(first_query + i / D, p.tq - 1u);
        query[i] = memory[p.q + (batch * p.tq + row) * width + head + i % D];
    }
    let mine = lane / TEAM;
    let seat = lane % TEAM;
    var largest = NOTHING;
    var sum = 0.0;
//@ for o OUTPUTS
    var out_${o} = 0.0;
//@ end

    var start = begin;
//@ if WINDOW
    start = max(start, max(first + first_query + 1u, p.seen) - p.seen);
//@ end
    for (; start < end; start += KEYS) {
        let here = min(KEYS, max(min(keys, end), start) - start);
        workgroupBarrier();
        for (var i = lane; i < here * D; i += 128u) {
//@ if COMPACT
            let row = p.k + (kv * p.tk + start + i / D) * kept_words(kv_width);
            block[i / D * (D + 1u) + i % D] = kept_one(row, kv_width, kv_head + i % D);
//@ else
            block[i / D * (D + 1u) + i % D] =
                memory[p.k + (kv * p.tk + start + i / D) * kv_width + kv_head + i % D];
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
                s = 0.0;
                for (var d = 0u; d < D; d++) {
                    s = fma(query[row * D + d], block[key * (D + 1u) + d], s);
                }
//@ if RELATIVE
                let offset = i32(start + key) - i32(first + first_query + row) + i32(p.window);
                if offset >= 0 && offset <= i32(2u * p.window) {
                    for (var d = 0u; d < D; d++) {
                        s = fma(query[row * D + d], vectors[p.relative_key + u32(offset) * D + d], s);
                    }
                }
//@ end
                s *= p.scale;
//@ if BIAS
                // Rows past the last query are computed but not stored.
                let query_row = min(first_query + row, p.tq - 1u);
                let at = p.bias + ((batch * p.heads + workgroup.y) * p.tq + query_row) * p.tk + start + key;
                s += memory[at];
//@ end
            }
            score[i] = s;
        }
        workgroupBarrier();
        var most = NOTHING;
        for (var key = seat; key < KEYS; key += TEAM) {
            most = max(most, score[mine * KEYS + key]);
        }
        partial[lane] = most;
        for (var i = lane; i < here * D; i += 128u) {
//@ if COMPACT
            let row = p.v + (kv * p.tk + start + i / D) * kept_words(kv_width);
            block[i / D * (D + 1u) + i % D] = kept_one(row, kv_width, kv_head + i % D);
//@ else
            block[i / D * (D + 1u) + i % D] =
                memory[p.v + (kv * p.tk + start + i / D) * kv_width + kv_head + i % D];
//@ end
        }
        workgroupBarrier();
        let before = largest;
        for (var i = 0u; i < TEAM; i++) {
            largest = max(largest, partial[mine * TEAM + i]);
        }
        var part = 0.0;
        for (var key = seat; key < KEYS; key += TEAM) {
            let s = score[mine * KEYS + key];
            var e = 0.0;
            if s > NOTHING {
                e = exp_f32(s - largest);
            }
            score[mine * KEYS + key] = e;
            part += e;
        }
        // Before the first visible key there is nothing to rescale.
        var rescale = 0.0;
        if before > NOTHING {
            rescale = exp_f32(before - largest);
        }
        if seat == 0u {
            factor[mine] = rescale;
        }
        sum = fma(sum, rescale, part);
        workgroupBarrier();
//@ for o OUTPUTS
        {
            let i = lane + ${o}u * 128u;
            if i < QUERIES * D {
                let row = i / D;
                let d = i % D;
                var y = out_${o} * factor[row];
                for (var key = 0u; key < here; key++) {
                    y = fma(score[row * KEYS + key], block[key * (D + 1u) + d], y);
                }
//@ if RELATIVE
                for (var o = 0u; o <= 2u * p.window; o++) {
                    let key = i32(first + first_query + row + o) - i32(p.window) - i32(start);
                    if key >= 0 && key < i32(here) {
                        y = fma(score[row * KEYS + u32(key)], vectors[p.relative_value + o * D + d], y);
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
        let i = lane + ${o}u * 128u;
        if i < queries * D {
            memory[p.out + (batch * p.tq + first_query + i / D) * width + head + i % D] =
                out_${o} * factor[i / D];
        }
    }
//@ end
}
