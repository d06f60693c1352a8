// Samples an id from logits [B, IDS], as defined by `Op::Sample`; one workgroup per row.
//
//   x = c, or GUIDED c + guidance · (c − u) with unconditional logits u; penalized if seen; no control ids
//   temperature 0:  argmax x
//   x = x / temperature; without ids below the k-th largest, and below largest + ln(min-p)
//   without ids after those whose probabilities sum up to p; with PENALTY_LAST penalized only here
//   argmax (x − ln(−ln u)), u from Philox
//
// Each step that leaves ids out is a lower limit for those that stay, found bit by bit: nothing is sorted.
// HELD: workgroup memory holds all x; otherwise each is computed from the logits whenever it is read.
// Probabilities are integers of 31 bits relative to the largest, and their upper and lower halves are summed
// apart: exact in any order. Control ids get a number below all others, so that no infinities are needed. If
// a logit is NaN, or no id can be drawn, the result is −1.

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
    // Counts as seen in draw 0.
    start: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<u32>;

//@ include philox
//@ include math

const IDS = ${IDS}u;
const NOTHING = -3.0e38;
const NOBODY = 0xffffffffu;

//@ if HELD
var<workgroup> x: array<f32, ${IDS}>;
//@ end
var<workgroup> scores: array<f32, 256>;
var<workgroup> ids: array<u32, 256>;
// Counts, or sums of the halves of probabilities.
var<workgroup> counts: array<atomic<u32>, 6>;
var<workgroup> setting: vec4<f32>;
var<workgroup> more_settings: vec2<f32>;

// The same on all threads: the row, its draw and its settings. Ids that are left: those of a number above
// `least`, as `ordered`, and those that equal it up to `last`.
var<private> row: u32;
var<private> draw: i32;
var<private> s: vec4<f32>;
var<private> more: vec2<f32>;
var<private> least: u32;
var<private> last: u32;

// Increases with v.
fn ordered(v: f32) -> u32 {
    let bits = bitcast<u32>(v + 0.0);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn is_nan(bits: u32) -> bool {
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

// v, penalized if the id was seen.
fn penalized(v: f32, i: u32) -> f32 {
    var is = i == p.start && draw == 0;
//@ if SEEN
    // Not zero, apart from the sign.
    is = is || (memory[p.seen + row * IDS + i] & 0x7fffffffu) != 0u;
//@ end
    return select(v, select(v / s.w, v * s.w, v < 0.0), is);
}

// x of an id.
fn given(i: u32) -> f32 {
//@ if GUIDED
    let at = p.logits + 2u * row * IDS + i;
//@ else
    let at = p.logits + row * IDS + i;
//@ end
    var v = clamp(bitcast<f32>(memory[at]), -1.0e38, 1.0e38);
//@ if GUIDED
    let unconditional = clamp(bitcast<f32>(memory[at + IDS]), -1.0e38, 1.0e38);
    v = clamp(v + more.y * clamp(v - unconditional, -1.0e36, 1.0e36), -1.0e38, 1.0e38);
//@ end
//@ if PENALTY_LAST
    if s.x == 0.0 {
        v = penalized(v, i);
    }
//@ else
    v = penalized(v, i);
//@ end
    if s.x != 0.0 {
        v /= s.x;
    }
    let early = i == p.control_end && draw < i32(p.least_draws);
    return select(v, NOTHING, early || (i >= p.control_first && i != p.control_end));
}

fn number(i: u32) -> f32 {
//@ if HELD
    return x[i];
//@ else
    return given(i);
//@ end
}

fn is_left(v: f32, i: u32) -> bool {
    let key = ordered(v);
    return key > least || (key == least && i <= last);
}

// Probability relative to that of the largest.
fn weight(v: f32, largest: f32) -> u32 {
    return u32(exp_f32(v - largest) * 2147483648.0);
}

// Sets all counts to 0 for the next step.
fn clear(lane: u32) {
    workgroupBarrier();
    if lane < 6u {
        atomicStore(&counts[lane], 0u);
    }
    workgroupBarrier();
}

fn add_halves(at: u32, own: vec2<u32>) {
    atomicAdd(&counts[2u * at], own.x);
    atomicAdd(&counts[2u * at + 1u], own.y);
}

// A sum of halves.
fn joined(at: u32) -> f32 {
    let low = atomicLoad(&counts[2u * at]);
    let high = atomicLoad(&counts[2u * at + 1u]) + (low >> 16u);
    return f32(high) * 65536.0 + f32(low & 0xffffu);
}

fn halves(own: u32) -> vec2<u32> {
    return vec2<u32>(own & 0xffffu, own >> 16u);
}

// Leaves the most likely ids, up to the first at which probabilities sum up to p.
fn nucleus(lane: u32, largest: f32) {
    clear(lane);
    var total = vec2<u32>();
    for (var i = lane; i < IDS; i += 256u) {
        let v = number(i);
        if is_left(v, i) {
            total += halves(weight(v, largest));
        }
    }
    add_halves(0u, total);
    workgroupBarrier();
    // The largest stays even if p is 0.
    let limit = max(s.z * joined(0u), 0.5);
    // The largest number such that those that reach it sum up to the limit, found two bits at a time.
    var reached = 0u;
    for (var bit = 0x80000000u; bit > 0u; bit >>= 2u) {
        clear(lane);
        let limits = vec3<u32>(reached | (bit >> 1u), reached | bit, reached | bit | (bit >> 1u));
        var low = vec2<u32>();
        var middle = vec2<u32>();
        var high = vec2<u32>();
        for (var i = lane; i < IDS; i += 256u) {
            let v = number(i);
            let key = ordered(v);
            if key >= limits.x && is_left(v, i) {
                let own = halves(weight(v, largest));
                low += own;
                middle += select(vec2<u32>(), own, key >= limits.y);
                high += select(vec2<u32>(), own, key >= limits.z);
            }
        }
        add_halves(0u, low);
        add_halves(1u, middle);
        add_halves(2u, high);
        workgroupBarrier();
        reached = select(reached, limits.x, joined(0u) >= limit);
        reached = select(reached, limits.y, joined(1u) >= limit);
        reached = select(reached, limits.z, joined(2u) >= limit);
    }
    // What is above it, and how many equal it.
    clear(lane);
    var above = vec2<u32>();
    var equal = 0u;
    for (var i = lane; i < IDS; i += 256u) {
        let v = number(i);
        let key = ordered(v);
        if key >= reached && is_left(v, i) {
            above += select(vec2<u32>(), halves(weight(v, largest)), key > reached);
            equal += select(0u, 1u, key == reached);
        }
    }
    add_halves(0u, above);
    atomicAdd(&counts[2], equal);
    workgroupBarrier();
    let all = f32(atomicLoad(&counts[2]));
    let bits = select(~reached, reached & 0x7fffffffu, (reached >> 31u) == 1u);
    let own = f32(weight(bitcast<f32>(bits), largest));
    var wanted = all;
    if own > 0.0 {
        wanted = min(ceil((limit - joined(0u)) / own), all);
    }
    // Of equal ones the first stay: the id with as many before it as stay, bit by bit, is the first that does
    // not.
    var first = 0u;
    for (var bit = 0x80000000u >> ${SKIPPED_BITS}u; bit > 0u; bit >>= 1u) {
        clear(lane);
        var reach = 0u;
        for (var i = lane; i < min(first | bit, IDS); i += 256u) {
            let v = number(i);
            reach += select(0u, 1u, ordered(v) == reached && is_left(v, i));
        }
        atomicAdd(&counts[0], reach);
        workgroupBarrier();
        if f32(atomicLoad(&counts[0])) <= wanted {
            first |= bit;
        }
    }
    // If all of them stay, every id is before the first that does not. None equal it if rounding put the
    // limit above the total: then nothing changes.
    if all > 0.0 {
        least = reached;
        last = first - 1u;
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    row = workgroup.x;
    if lane == 0u {
        let at = p.settings + p.of_row * row;
        setting =
            bitcast<vec4<f32>>(vec4<u32>(memory[at], memory[at + 1u], memory[at + 2u], memory[at + 3u]));
        more_settings = vec2<f32>();
        if p.of_row > 4u {
            more_settings.x = bitcast<f32>(memory[at + 4u]);
        }
        if p.of_row > 5u {
            more_settings.y = bitcast<f32>(memory[at + 5u]);
        }
    }
    // Branches on these contain barriers, so all threads must agree on them.
    let uniform_settings = workgroupUniformLoad(&setting);
    let uniform_more = workgroupUniformLoad(&more_settings);
    s = uniform_settings;
    more = uniform_more;
    let temperature = uniform_settings.x;
    draw = bitcast<i32>(memory[p.draw + row]);
    least = ordered(NOTHING) + 1u;
    last = NOBODY;
    clear(lane);
    for (var i = lane; i < IDS; i += 256u) {
//@ if GUIDED
        let at = p.logits + 2u * row * IDS + i;
        if is_nan(memory[at + IDS]) {
            atomicOr(&counts[0], 1u);
        }
//@ else
        let at = p.logits + row * IDS + i;
//@ end
        if is_nan(memory[at]) {
            atomicOr(&counts[0], 1u);
        }
//@ if HELD
        x[i] = given(i);
//@ end
    }
    workgroupBarrier();
    let broken = atomicLoad(&counts[0]) != 0u;
    if temperature != 0.0 && uniform_settings.y >= 1.0 && uniform_settings.y < f32(IDS) {
        // The k-th largest: the largest number that k ids reach, found bit by bit.
        var reached = 0u;
        for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
            clear(lane);
            var reach = 0u;
            for (var i = lane; i < IDS; i += 256u) {
                reach += select(0u, 1u, ordered(number(i)) >= (reached | bit));
            }
            atomicAdd(&counts[0], reach);
            workgroupBarrier();
            if atomicLoad(&counts[0]) >= u32(s.y) {
                reached |= bit;
            }
        }
        least = max(least, reached);
    }
    if temperature != 0.0 && (uniform_more.x > 0.0 || uniform_settings.z < 1.0) {
        var largest = NOTHING;
        for (var i = lane; i < IDS; i += 256u) {
            largest = max(largest, number(i));
        }
        scores[lane] = largest;
        for (var step = 128u; step > 0u; step >>= 1u) {
            workgroupBarrier();
            if lane < step {
                scores[lane] = max(scores[lane], scores[lane + step]);
            }
        }
        workgroupBarrier();
        largest = scores[0];
        if uniform_more.x > 0.0 {
            least = max(least, ordered(largest + log(more.x)));
        }
        if uniform_settings.z < 1.0 {
            nucleus(lane, largest);
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
        {
            let id = 4u * block + ${i}u;
            var score = number(min(id, IDS - 1u));
            if id < IDS && is_left(score, id) {
//@ if PENALTY_LAST
                if temperature != 0.0 {
                    score = penalized(score, id);
                }
//@ end
                if temperature != 0.0 {
                    score += -ln_of_scaled(-ln_of_24_bits(2u * (words[${i}] >> 9u) + 1u), 0);
                }
                if best_id == NOBODY || score > best {
                    best = score;
                    best_id = id;
                }
            }
        }
//@ end
    }
    scores[lane] = best;
    ids[lane] = best_id;
    for (var step = 128u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if lane < step {
            let other = ids[lane + step];
            let score = scores[lane + step];
            let ours = ids[lane];
            let larger = score > scores[lane] || (score == scores[lane] && other < ours);
            if other != NOBODY && (ours == NOBODY || larger) {
                ids[lane] = other;
                scores[lane] = score;
            }
        }
    }
    if lane == 0u {
        memory[p.out + row] = select(ids[0], NOBODY, broken);
    }
}
