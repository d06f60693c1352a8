// Samples an id from logits [B, IDS], as defined by `Op::Sample`; one workgroup per row.
//
//   x = c, or GUIDED c + guidance · (c − u) with unconditional logits u; penalized if seen; no control ids
//   temperature 0:  argmax x
//   x = x / temperature; without ids below the k-th largest, and below largest + ln(min-p)
//   without ids after those whose probabilities sum up to p; with PENALTY_LAST penalized only here
//   argmax (x − ln(−ln u)), u from Philox
//
// Each step that leaves ids out is a lower limit for those that stay, so that nothing is sorted: ids are
// counted by their distance from the largest, and those that are about as far away as the limit are compared
// with each other. Where these are too many, as if all are equal, the limit is found bit by bit.
// HELD: workgroup memory holds all x; otherwise each is computed from the logits whenever it is read.
// Probabilities are integers of 31 bits relative to the largest, and their upper and lower halves are summed
// apart: exact in any order. Control ids get a number below all others, so that no infinities are needed. If
// a logit is NaN, or no id can be drawn, the result is −1.
//
// READS: of a single row; reads the row of a table that the id selects, as gather.wgsl does, and adds it to
// another one if ADDS.

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
//@ if READS
    // A table in `matrix`, its width and rows; and the place of the rows that the ids select.
    table: u32,
    width: u32,
    table_rows: u32,
    selected: u32,
    // ADDS: places of what is added to those rows, and of the sums.
    addend: u32,
    sum: u32,
//@ end
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<u32>;
//@ if READS
@group(1) @binding(0) var<storage, read> matrix: array<u32>;
//@ include table_row
//@ end

//@ include philox
//@ include math

const IDS = ${IDS}u;
const NOTHING = -3.0e38;
const NOBODY = 0xffffffffu;
// Distances from the largest number that are told apart, and of how much: weights of others are 0.
const BINS = 512u;
const SPAN = 24.0;
// Most ids of a bin that are compared with each other.
const LISTED = 256u;
// At least half as many as bins.
const THREADS = ${THREADS}u;

//@ if HELD
var<workgroup> x: array<f32, ${IDS}>;
//@ end
var<workgroup> scores: array<f32, THREADS>;
var<workgroup> ids: array<u32, THREADS>;
// Counts, or sums of the halves of probabilities.
var<workgroup> counts: array<atomic<u32>, 6>;
// Of ids by their distance: counts, or sums of the halves of probabilities.
var<workgroup> low_bins: array<atomic<u32>, BINS>;
var<workgroup> high_bins: array<atomic<u32>, BINS>;
// Of two bins, and of 32.
var<workgroup> sums: array<vec2<u32>, BINS / 2u>;
var<workgroup> sums_of_16: array<vec2<u32>, 16>;
// A bin, and the sum of those after it.
var<workgroup> found: vec3<u32>;
// Number of ids in the bin; up to LISTED are in `scores` and `ids`, with their probabilities in `weights`.
var<workgroup> listing: atomic<u32>;
var<workgroup> listed: u32;
var<workgroup> weights: array<u32, LISTED>;
// The limit that one thread has found, as `least` and `last`.
var<workgroup> answer: vec2<u32>;
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
fn joined(sum: vec2<u32>) -> f32 {
    let high = sum.y + (sum.x >> 16u);
    return f32(high) * 65536.0 + f32(sum.x & 0xffffu);
}

fn counted(at: u32) -> f32 {
    return joined(vec2<u32>(atomicLoad(&counts[2u * at]), atomicLoad(&counts[2u * at + 1u])));
}

fn halves(own: u32) -> vec2<u32> {
    return vec2<u32>(own & 0xffffu, own >> 16u);
}

// Distance from the largest number, as a bin; the last one has the largest.
fn bin_of(v: f32, largest: f32) -> u32 {
    return min(u32(max((v - largest + SPAN) * (f32(BINS) / SPAN), 0.0)), BINS - 1u);
}

fn clear_bins(lane: u32) {
    workgroupBarrier();
    for (var i = lane; i < BINS; i += THREADS) {
        atomicStore(&low_bins[i], 0u);
        atomicStore(&high_bins[i], 0u);
    }
    if lane == 0u {
        found = vec3<u32>(BINS, 0u, 0u);
        atomicStore(&listing, 0u);
    }
    workgroupBarrier();
}

// The bin in which the sums of all bins, from the last one on, reach a limit, and the sum before it. BINS if
// all together do not.
fn find_bin(lane: u32, limit: f32) -> vec3<u32> {
    workgroupBarrier();
    // Two neighbors of each of the first threads.
    let is = lane < BINS / 2u;
    let bin = BINS - 1u - 2u * min(lane, BINS / 2u - 1u);
    let own = vec2<u32>(atomicLoad(&low_bins[bin]), atomicLoad(&high_bins[bin]));
    let next = vec2<u32>(atomicLoad(&low_bins[bin - 1u]), atomicLoad(&high_bins[bin - 1u]));
    if is {
        sums[lane] = own + next;
    }
    workgroupBarrier();
    if lane < 16u {
        var sum = vec2<u32>();
        for (var i = 0u; i < 16u; i++) {
            sum += sums[16u * lane + i];
        }
        sums_of_16[lane] = sum;
    }
    workgroupBarrier();
    if is {
        var before = vec2<u32>();
        for (var i = 0u; i < lane / 16u; i++) {
            before += sums_of_16[i];
        }
        for (var i = lane / 16u * 16u; i < lane; i++) {
            before += sums[i];
        }
        if joined(before) < limit && joined(before + own) >= limit {
            found = vec3<u32>(bin, before);
        }
        before += own;
        if joined(before) < limit && joined(before + next) >= limit {
            found = vec3<u32>(bin - 1u, before);
        }
    }
    return workgroupUniformLoad(&found);
}

// Lists the ids that are left and lie in a bin. Returns how many they are; more than
// LISTED are not all listed.
fn list_bin(lane: u32, bin: u32, largest: f32) -> u32 {
    for (var i = lane; i < IDS; i += THREADS) {
        let v = number(i);
        if bin_of(v, largest) == bin && is_left(v, i) {
            let at = atomicAdd(&listing, 1u);
            if at < LISTED {
                scores[at] = v;
                ids[at] = i;
                weights[at] = weight(v, largest);
            }
        }
    }
    workgroupBarrier();
    if lane == 0u {
        listed = atomicLoad(&listing);
        answer = vec2<u32>(least, last);
    }
    return workgroupUniformLoad(&listed);
}

// Leaves the k largest.
fn keep_largest(lane: u32, k: u32, largest: f32) {
    clear_bins(lane);
    for (var i = lane; i < IDS; i += THREADS) {
        let v = number(i);
        if is_left(v, i) {
            atomicAdd(&low_bins[bin_of(v, largest)], 1u);
        }
    }
    let at = find_bin(lane, f32(k));
    if at.x == BINS {
        return;
    }
    let n = list_bin(lane, at.x, largest);
    if n <= LISTED {
        if lane < n {
            let key = ordered(scores[lane]);
            var above = at.y;
            var equal = 0u;
            for (var i = 0u; i < n; i++) {
                let other = ordered(scores[i]);
                above += select(0u, 1u, other > key);
                equal += select(0u, 1u, other == key);
            }
            if above < k && k <= above + equal {
                answer.x = key;
            }
        }
        least = workgroupUniformLoad(&answer).x;
        return;
    }
    // The largest number that k ids reach, found bit by bit.
    var reached = 0u;
    for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
        clear(lane);
        var reach = 0u;
        for (var i = lane; i < IDS; i += THREADS) {
            reach += select(0u, 1u, ordered(number(i)) >= (reached | bit));
        }
        atomicAdd(&counts[0], reach);
        workgroupBarrier();
        if atomicLoad(&counts[0]) >= k {
            reached |= bit;
        }
    }
    least = max(least, reached);
}

// Of ids with the same number and weight, as many stay as are needed to get from the sum of those above to
// the limit.
fn wanted_of(above: f32, limit: f32, own: f32, equal: f32) -> f32 {
    if own == 0.0 {
        return equal;
    }
    return min(ceil((limit - above) / own), equal);
}

// The same where many ids are about as likely as the last one that stays. The largest number such that those
// that reach it sum up to the limit is found two bits at a time.
fn nucleus_by_bits(lane: u32, largest: f32, limit: f32) {
    var reached = 0u;
    for (var bit = 0x80000000u; bit > 0u; bit >>= 2u) {
        clear(lane);
        let limits = vec3<u32>(reached | (bit >> 1u), reached | bit, reached | bit | (bit >> 1u));
        var low = vec2<u32>();
        var middle = vec2<u32>();
        var high = vec2<u32>();
        for (var i = lane; i < IDS; i += THREADS) {
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
        reached = select(reached, limits.x, counted(0u) >= limit);
        reached = select(reached, limits.y, counted(1u) >= limit);
        reached = select(reached, limits.z, counted(2u) >= limit);
    }
    // What is above it, and how many equal it.
    clear(lane);
    var above = vec2<u32>();
    var equal = 0u;
    for (var i = lane; i < IDS; i += THREADS) {
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
    let wanted = wanted_of(counted(0u), limit, own, all);
    // Of equal ones the first stay: the id with as many before it as stay, bit by bit, is the first that does
    // not.
    var first = 0u;
    for (var bit = 0x80000000u >> ${SKIPPED_BITS}u; bit > 0u; bit >>= 1u) {
        clear(lane);
        var reach = 0u;
        for (var i = lane; i < min(first | bit, IDS); i += THREADS) {
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

// Leaves the most likely ids, up to the first at which probabilities sum up to p.
fn nucleus(lane: u32, largest: f32) {
    clear(lane);
    clear_bins(lane);
    var total = vec2<u32>();
    for (var i = lane; i < IDS; i += THREADS) {
        let v = number(i);
        if is_left(v, i) {
            let own = halves(weight(v, largest));
            let bin = bin_of(v, largest);
            total += own;
            atomicAdd(&low_bins[bin], own.x);
            atomicAdd(&high_bins[bin], own.y);
        }
    }
    add_halves(0u, total);
    workgroupBarrier();
    // The largest stays even if p is 0.
    let limit = max(s.z * counted(0u), 0.5);
    let at = find_bin(lane, limit);
    if at.x == BINS {
        return;
    }
    let n = list_bin(lane, at.x, largest);
    if n > LISTED {
        nucleus_by_bits(lane, largest, limit);
        return;
    }
    if lane < n {
        let key = ordered(scores[lane]);
        let own = weights[lane];
        var above = at.yz;
        var equal = 0u;
        var earlier = 0u;
        for (var i = 0u; i < n; i++) {
            let other = ordered(scores[i]);
            above += select(vec2<u32>(), halves(weights[i]), other > key);
            equal += select(0u, 1u, other == key);
            earlier += select(0u, 1u, other == key && ids[i] < ids[lane]);
        }
        if joined(above) < limit && joined(above + equal * halves(own)) >= limit {
            let wanted = wanted_of(joined(above), limit, f32(own), f32(equal));
            if f32(earlier) == wanted - 1.0 {
                answer = vec2<u32>(key, ids[lane]);
            }
        }
    }
    let left = workgroupUniformLoad(&answer);
    least = left.x;
    last = left.y;
}

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    row = workgroup.x;
    if lane < 4u {
        setting[lane] = bitcast<f32>(memory[p.settings + p.of_row * row + lane]);
    } else if lane < 6u {
        more_settings[lane - 4u] = 0.0;
        if lane < p.of_row {
            more_settings[lane - 4u] = bitcast<f32>(memory[p.settings + p.of_row * row + lane]);
        }
    }
    // Read before they are needed.
    let key = vec2<u32>(memory[p.seed + 2u * row], memory[p.seed + 2u * row + 1u]);
    draw = bitcast<i32>(memory[p.draw + row]);
    // Branches on these contain barriers, so all threads must agree on them.
    let uniform_settings = workgroupUniformLoad(&setting);
    let uniform_more = workgroupUniformLoad(&more_settings);
    s = uniform_settings;
    more = uniform_more;
    let temperature = uniform_settings.x;
    least = ordered(NOTHING) + 1u;
    last = NOBODY;
    clear(lane);
    var largest = NOTHING;
    for (var i = lane; i < IDS; i += THREADS) {
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
        let v = given(i);
        largest = max(largest, v);
//@ if HELD
        x[i] = v;
//@ end
    }
    workgroupBarrier();
    let broken = atomicLoad(&counts[0]) != 0u;
    if temperature != 0.0 {
        scores[lane] = largest;
        for (var step = THREADS / 2u; step > 0u; step >>= 1u) {
            workgroupBarrier();
            if lane < step {
                scores[lane] = max(scores[lane], scores[lane + step]);
            }
        }
        largest = workgroupUniformLoad(&scores[0]);
        if uniform_settings.y >= 1.0 && uniform_settings.y < f32(IDS) {
            keep_largest(lane, u32(uniform_settings.y), largest);
        }
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
    for (var block = lane; 4u * block < IDS; block += THREADS) {
        var words = vec4<u32>();
        var is_some = false;
        for (var id = 4u * block; id < min(4u * block + 4u, IDS); id++) {
            is_some = is_some || is_left(number(id), id);
        }
        if !is_some {
            continue;
        }
        if temperature != 0.0 {
            words = philox(vec4<u32>(block, p.codebook, bitcast<u32>(draw), 1u), key);
        }
        for (var i = 0u; i < 4u; i++) {
            let id = 4u * block + i;
            var score = number(min(id, IDS - 1u));
            if id < IDS && is_left(score, id) {
//@ if PENALTY_LAST
                if temperature != 0.0 {
                    score = penalized(score, id);
                }
//@ end
                if temperature != 0.0 {
                    score += -ln_of_scaled(-ln_of_24_bits(2u * (words[i] >> 9u) + 1u), 0);
                }
                if best_id == NOBODY || score > best {
                    best = score;
                    best_id = id;
                }
            }
        }
    }
    scores[lane] = best;
    ids[lane] = best_id;
    for (var step = THREADS / 2u; step > 0u; step >>= 1u) {
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
//@ if READS
    workgroupBarrier();
    let first = row_of_table(bitcast<i32>(select(ids[0], NOBODY, broken)), p.table_rows) * p.width;
    for (var i = lane; i < p.width; i += THREADS) {
        let bits = bits_of_table(p.table, first + i);
        let at = row * p.width + i;
        memory[p.selected + at] = bits;
//@ if ADDS
        memory[p.sum + at] = bitcast<u32>(bitcast<f32>(memory[p.addend + at]) + bitcast<f32>(bits));
//@ end
    }
//@ end
}
