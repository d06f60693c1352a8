// softmax(scale · q·k) · v over the visible keys of each head, for a single query over a cache.
//
//   q [B, 1, H·D], k and v [Bk, N, H/group·D] with Bk = B or 1 → out [B, 1, H·D];
//   D / 4 is a power of two, up to 64
//   COMPACT: k and v in a compact type
//
// A workgroup of 256 threads has one head and iterates over blocks of 256 keys, with a running maximum and
// sum (online softmax). A thread computes the score of one key; then it has four channels and every PARTS-th
// key. Keys after the query are never read.

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
const PARTS = 256u / D4;
const NOTHING = -3.0e38;

var<workgroup> query: array<vec4<f32>, ${D4}>;
var<workgroup> score: array<f32, 256>;
var<workgroup> partial: array<f32, 256>;
var<workgroup> parts: array<vec4<f32>, 256>;
//@ if POSITIONS
var<workgroup> position: i32;
//@ end

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let batch = workgroup.y;
    let head = batch * p.heads * D4 + workgroup.x * D4;
    let kv_width = p.heads / p.group * D4;
//@ if COMPACT
    let own_head = workgroup.x / p.group * D4;
    let own_row = batch * p.own * p.tk;
//@ else
    let kv_head = batch * p.own * p.tk * kv_width + workgroup.x / p.group * D4;
//@ end
    var first = p.first;
//@ if POSITIONS
    // The loop below has barriers, so all threads must agree on its bounds.
    if lane == 0u {
        position = bitcast<vec4<i32>>(memory[(p.positions + batch) >> 2u])[(p.positions + batch) & 3u];
    }
    first = u32(max(workgroupUniformLoad(&position), 0));
//@ end
    let end = min(first, p.tk - 1u) + 1u;
    if lane < D4 {
        query[lane] = memory[p.q / 4u + head + lane];
    }
    let part = lane / D4;
    let d = lane % D4;
    var largest = NOTHING;
    var sum = 0.0;
    var out = vec4<f32>();
    for (var start = 0u; start < end; start += 256u) {
        let here = min(256u, end - start);
        workgroupBarrier();
        var s = NOTHING;
        if lane < here {
            var four = vec4<f32>();
//@ if COMPACT
            let row = p.k + (own_row + start + lane) * kept_words(4u * kv_width);
            for (var i = 0u; i < D4; i++) {
                four = fma(query[i], kept_four(row, 4u * kv_width, 4u * (own_head + i)), four);
            }
//@ else
            let at = p.k / 4u + kv_head + (start + lane) * kv_width;
            for (var i = 0u; i < D4; i++) {
                four = fma(query[i], memory[at + i], four);
            }
//@ end
            s = p.scale * ((four.x + four.y) + (four.z + four.w));
        }
        partial[lane] = s;
        for (var half = 128u; half > 0u; half >>= 1u) {
            workgroupBarrier();
            if lane < half {
                partial[lane] = max(partial[lane], partial[lane + half]);
            }
        }
        workgroupBarrier();
        let before = largest;
        largest = max(largest, partial[0]);
        workgroupBarrier();
        var e = 0.0;
        if lane < here {
            e = exp_f32(s - largest);
        }
        score[lane] = e;
        partial[lane] = e;
        for (var half = 128u; half > 0u; half >>= 1u) {
            workgroupBarrier();
            if lane < half {
                partial[lane] += partial[lane + half];
            }
        }
        workgroupBarrier();
        // Before the first key there is nothing to rescale.
        var rescale = 0.0;
        if start > 0u {
            rescale = exp_f32(before - largest);
        }
        sum = fma(sum, rescale, partial[0]);
        out *= rescale;
        for (var key = part; key < here; key += PARTS) {
//@ if COMPACT
            let row = p.v + (own_row + start + key) * kept_words(4u * kv_width);
            let value = kept_four(row, 4u * kv_width, 4u * (own_head + d));
//@ else
            let value = memory[p.v / 4u + kv_head + (start + key) * kv_width + d];
//@ end
            out = fma(vec4<f32>(score[key]), value, out);
        }
    }
    parts[lane] = out;
    for (var half = 128u; half >= D4; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            parts[lane] += parts[lane + half];
        }
    }
    if lane < D4 {
        memory[p.out / 4u + head + lane] = parts[lane] / sum;
    }
}
