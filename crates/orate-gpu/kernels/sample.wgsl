// Samples an id from logits [B, IDS], as defined by `Op::Sample`; one workgroup per row.
//
//   x = c, or GUIDED c + guidance · (c − u) with unconditional logits u; penalized if seen; no control ids
//   temperature 0:  argmax x
//   x = x / temperature; exclude ids below the k-th largest, and below largest + ln(min-p)
//   exclude all ids after those whose probabilities sum up to p
//   argmax (x − ln(−ln u)), u from Philox
//
// Excluded ids get a number below all others, so that no infinities are needed. If a logit is NaN, or no id
// can be drawn, the result is −1.

struct Params {
    logits: u32,
    // [B, of_row]: temperature, k, p, penalty, min-p, guidance; those past the end are 0
    settings: u32,
    // [B, 2]
    seed: u32,
    // [B]
    draw: u32,
    // SEEN: [B, IDS]
    seen: u32,
    out: u32,
    // First control id. From it on only the end id can be drawn, and not in the first draws.
    control_first: u32,
    control_end: u32,
    least_draws: u32,
    codebook: u32,
    of_row: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<u32>;

//@ include philox
//@ include math

const IDS = ${IDS}u;
// A power of two, at least IDS and 256.
const PLACES = ${PLACES}u;
const EACH = PLACES / 256u;
const NOTHING = -3.0e38;
const NOBODY = 0xffffffffu;

var<workgroup> x: array<f32, ${IDS}>;
var<workgroup> order: array<u32, ${PLACES}>;
var<workgroup> sums: array<f32, 256>;
var<workgroup> ids: array<u32, 256>;
var<workgroup> count: atomic<u32>;
var<workgroup> setting: vec4<f32>;
var<workgroup> more_settings: vec2<f32>;

// Increases with v.
fn ordered(v: f32) -> u32 {
    let bits = bitcast<u32>(v + 0.0);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// Whether id a comes before id b: larger numbers first, equal ones by id.
fn before(a: u32, b: u32) -> bool {
    if a == NOBODY || b == NOBODY {
        return b == NOBODY && a != NOBODY;
    }
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = workgroup.x;
    if lane == 0u {
        let s = p.settings + p.of_row * row;
        setting = bitcast<vec4<f32>>(vec4<u32>(memory[s], memory[s + 1u], memory[s + 2u], memory[s + 3u]));
        more_settings = vec2<f32>();
        if p.of_row > 4u {
            more_settings.x = bitcast<f32>(memory[s + 4u]);
        }
        if p.of_row > 5u {
            more_settings.y = bitcast<f32>(memory[s + 5u]);
        }
        atomicStore(&count, 0u);
    }
    // Branches on these contain barriers, so all threads must agree on them.
    let s = workgroupUniformLoad(&setting);
    let more = workgroupUniformLoad(&more_settings);
    let temperature = s.x;
    let draw = bitcast<i32>(memory[p.draw + row]);
    for (var i = lane; i < IDS; i += 256u) {
//@ if GUIDED
        let at = p.logits + 2u * row * IDS + i;
        let unconditional = memory[at + IDS];
        if (unconditional & 0x7fffffffu) > 0x7f800000u {
            atomicOr(&count, 1u);
        }
//@ else
        let at = p.logits + row * IDS + i;
//@ end
        let bits = memory[at];
        if (bits & 0x7fffffffu) > 0x7f800000u {
            atomicOr(&count, 1u);
        }
        var v = clamp(bitcast<f32>(bits), -1.0e38, 1.0e38);
//@ if GUIDED
        let difference = clamp(v - clamp(bitcast<f32>(unconditional), -1.0e38, 1.0e38), -1.0e36, 1.0e36);
        v = clamp(v + more.y * difference, -1.0e38, 1.0e38);
//@ end
//@ if SEEN
        // Not zero, apart from the sign.
        if (memory[p.seen + row * IDS + i] & 0x7fffffffu) != 0u {
            v = select(v / s.w, v * s.w, v < 0.0);
        }
//@ end
        if temperature != 0.0 {
            v /= temperature;
        }
        let early = i == p.control_end && draw < i32(p.least_draws);
        if early || (i >= p.control_first && i != p.control_end) {
            v = NOTHING;
        }
        x[i] = v;
    }
    workgroupBarrier();
    let broken = atomicLoad(&count) != 0u;
    workgroupBarrier();
    if temperature != 0.0 && s.y >= 1.0 && s.y < f32(IDS) {
        // The k-th largest: the largest number that k ids reach, found bit by bit.
        var least = 0u;
        for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
            if lane == 0u {
                atomicStore(&count, 0u);
            }
            workgroupBarrier();
            var reach = 0u;
            for (var i = lane; i < IDS; i += 256u) {
                reach += select(0u, 1u, ordered(x[i]) >= (least | bit));
            }
            atomicAdd(&count, reach);
            workgroupBarrier();
            if atomicLoad(&count) >= u32(s.y) {
                least |= bit;
            }
            workgroupBarrier();
        }
        for (var i = lane; i < IDS; i += 256u) {
            if ordered(x[i]) < least {
                x[i] = NOTHING;
            }
        }
        workgroupBarrier();
    }
    if temperature != 0.0 && more.x > 0.0 {
        var largest = NOTHING;
        for (var i = lane; i < IDS; i += 256u) {
            largest = max(largest, x[i]);
        }
        sums[lane] = largest;
        for (var step = 128u; step > 0u; step >>= 1u) {
            workgroupBarrier();
            if lane < step {
                sums[lane] = max(sums[lane], sums[lane + step]);
            }
        }
        workgroupBarrier();
        let least = sums[0] + log(more.x);
        workgroupBarrier();
        for (var i = lane; i < IDS; i += 256u) {
            if x[i] < least {
                x[i] = NOTHING;
            }
        }
        workgroupBarrier();
    }
    if temperature != 0.0 && s.z < 1.0 {
        // Sorts by a bitonic network; excluded ids come last.
        for (var i = lane; i < PLACES; i += 256u) {
            order[i] = NOBODY;
            if i < IDS {
                order[i] = select(NOBODY, i, x[i] > NOTHING);
            }
        }
        for (var size = 2u; size <= PLACES; size <<= 1u) {
            for (var step = size >> 1u; step > 0u; step >>= 1u) {
                workgroupBarrier();
                for (var i = lane; i < PLACES; i += 256u) {
                    let other = i ^ step;
                    if other > i {
                        let a = order[i];
                        let b = order[other];
                        if before(b, a) == ((i & size) == 0u) && a != b {
                            order[i] = b;
                            order[other] = a;
                        }
                    }
                }
            }
        }
        workgroupBarrier();
        // A thread sums consecutive places, then adds the sums of all places before them.
        var largest = 0.0;
        if order[0] != NOBODY {
            largest = x[order[0]];
        }
        var sum = 0.0;
        for (var i = 0u; i < EACH; i++) {
            let id = order[lane * EACH + i];
            if id != NOBODY {
                sum += exp_f32(x[id] - largest);
            }
        }
        sums[lane] = sum;
        for (var step = 1u; step < 256u; step <<= 1u) {
            workgroupBarrier();
            var more = 0.0;
            if lane >= step {
                more = sums[lane - step];
            }
            workgroupBarrier();
            sums[lane] += more;
        }
        workgroupBarrier();
        let limit = s.z * sums[255];
        var in_front = 0.0;
        if lane > 0u {
            in_front = sums[lane - 1u];
        }
        workgroupBarrier();
        for (var i = 0u; i < EACH; i++) {
            let place = lane * EACH + i;
            let id = order[place];
            if id != NOBODY {
                let own = exp_f32(x[id] - largest);
                if place > 0u && in_front >= limit {
                    x[id] = NOTHING;
                }
                in_front += own;
            }
        }
        workgroupBarrier();
    }
    var best = NOTHING;
    var best_id = NOBODY;
    for (var block = lane; 4u * block < IDS; block += 256u) {
        var words = vec4<u32>();
        if temperature != 0.0 {
            let key = vec2<u32>(memory[p.seed + 2u * row], memory[p.seed + 2u * row + 1u]);
            words = philox(vec4<u32>(block, p.codebook, bitcast<u32>(draw), 1u), key);
        }
//@ for i 4
        if 4u * block + ${i}u < IDS && x[min(4u * block + ${i}u, IDS - 1u)] > NOTHING {
            var score = x[4u * block + ${i}u];
            if temperature != 0.0 {
                score += -ln_of_scaled(-ln_of_24_bits(2u * (words[${i}] >> 9u) + 1u), 0);
            }
            if best_id == NOBODY || score > best {
                best = score;
                best_id = 4u * block + ${i}u;
            }
        }
//@ end
    }
    sums[lane] = best;
    ids[lane] = best_id;
    for (var step = 128u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if lane < step {
            let other = ids[lane + step];
            let score = sums[lane + step];
            let ours = ids[lane];
            let larger = score > sums[lane] || (score == sums[lane] && other < ours);
            if other != NOBODY && (ours == NOBODY || larger) {
                ids[lane] = other;
                sums[lane] = score;
            }
        }
    }
    if lane == 0u {
        memory[p.out + row] = select(ids[0], NOBODY, broken);
    }
}
