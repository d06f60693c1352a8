// Heads between a matmul and attention: norm, rotation and writes to a cache, for up to three values at a
// time.
//
//   x [B·T, H·D] → RMS norm of each head, weight [D] → rotary positions, table [B or 1, 2, T, D/2]
//                → out [B·T, H·D], or rows first[b] … of a state [B, N, H·D]
//
// Norm and table are optional. D is a multiple of 8, up to 128, and of 64 in Q8_0. A workgroup has one head
// of one row, a thread one pair of its halves. COMPACT: states have a compact type, to which rows are
// rounded.

struct Params {
    // Heads per row, of all values together; rows; and rows per sequence.
    all: u32,
    rows: u32,
    time: u32,
//@ for i VALUES
    x_${i}: u32,
    out_${i}: u32,
    weight_${i}: u32,
    table_${i}: u32,
    heads_${i}: u32,
    // Rows of the state, or 0, and the position to write to: a number, or the place of one per batch row.
    capacity_${i}: u32,
    first_${i}: u32,
    // Bits NORM, TURN, OWN, OPERAND.
    flags_${i}: u32,
    eps_${i}: f32,
//@ end
}

const NORM = 1u;
const TURN = 2u;
// Each batch row has its own table.
const OWN = 4u;
// `first` is a place.
const OPERAND = 8u;

const D = ${D}u;
const HALF = D / 2u;

var<immediate> p: Params;
@group(1) @binding(1) var<storage, read> vectors: array<f32>;
//@ if COMPACT
@group(0) @binding(0) var<storage, read_write> memory: array<u32>;
var<workgroup> turned: array<f32, ${D}>;

fn float_at(i: u32) -> f32 {
    return bitcast<f32>(memory[i]);
}

//@ include round_rows

// Rounds this head and stores it in the row that begins at word `row`.
fn keep(row: u32, width: u32, head: u32, lane: u32) {
//@ if Q8_0
    if lane < D / 4u {
        var word = 0u;
        let inverse = inverse_of(scale_of(lane / 8u));
        for (var e = 0u; e < 4u; e++) {
            word |= byte_bits(turned[4u * lane + e], inverse, e);
        }
        memory[row + head * (D / 4u) + lane] = word;
    }
    if lane < D / 64u {
        memory[row + width / 4u + head * (D / 64u) + lane] =
            scale_of(2u * lane) | (scale_of(2u * lane + 1u) << 16u);
    }
//@ else
    if lane < HALF {
        let a = bitcast<u32>(turned[2u * lane]);
        let b = bitcast<u32>(turned[2u * lane + 1u]);
//@ if F16
        memory[row + head * HALF + lane] = f16_bits(a) | (f16_bits(b) << 16u);
//@ else
        memory[row + head * HALF + lane] = bf16_bits(a) | (bf16_bits(b) << 16u);
//@ end
    }
//@ end
}
//@ if Q8_0

// Stored scale of a q8_0 block of the head.
fn scale_of(block: u32) -> u32 {
    var largest = 0.0;
    for (var e = 0u; e < 32u; e++) {
        largest = max(largest, abs(turned[32u * block + e]));
    }
    return scale_bits(largest);
}
//@ end
//@ else
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;

fn float_at(i: u32) -> f32 {
    return memory[i];
}
//@ end

//@ include reduce

@compute @workgroup_size(128)
fn main(
//@ include reduce_inputs
) {
    let item = group.y * groups.x + group.x;
    let row = item / p.all;
    if row >= p.rows {
        return;
    }
    var head = item % p.all;
    var done = false;
    var x = 0u;
    var out = 0u;
    var weight = 0u;
    var table = 0u;
    var heads = 1u;
    var capacity = 0u;
    var first = 0u;
    var flags = 0u;
    var eps = 0.0;
//@ for i VALUES
    if !done {
        if head < p.heads_${i} {
            done = true;
            x = p.x_${i};
            out = p.out_${i};
            weight = p.weight_${i};
            table = p.table_${i};
            heads = p.heads_${i};
            capacity = p.capacity_${i};
            first = p.first_${i};
            flags = p.flags_${i};
            eps = p.eps_${i};
        } else {
            head -= p.heads_${i};
        }
    }
//@ end
    let is = lane < HALF;
    let begin = x + (row * heads + head) * D + lane;
    var a = 0.0;
    var b = 0.0;
    if is {
        a = float_at(begin);
        b = float_at(begin + HALF);
    }
    let sum = total(fma(a, a, b * b), ${REDUCE_ARGUMENTS});
//@ if COMPACT
    // All threads reach the barriers below.
    let weight_lane = min(lane, HALF - 1u);
//@ else
    if !is {
        return;
    }
    let weight_lane = lane;
//@ end
    if (flags & NORM) != 0u {
        let factor = 1.0 / sqrt(sum / f32(D) + eps);
        a = a * factor * vectors[weight + weight_lane];
        b = b * factor * vectors[weight + weight_lane + HALF];
    }
    let t = row % p.time;
    let batch = row / p.time;
    if (flags & TURN) != 0u {
        let own = select(0u, batch, (flags & OWN) != 0u);
        let at = table + (2u * own * p.time + t) * HALF + weight_lane;
        let cosine = float_at(at);
        let sine = float_at(at + p.time * HALF);
        let turned = a * cosine - b * sine;
        b = a * sine + b * cosine;
        a = turned;
    }
    var to = row;
    if capacity != 0u {
        if (flags & OPERAND) != 0u {
            first = u32(clamp(bitcast<i32>(float_at(first + batch)), 0, i32(capacity - p.time)));
        }
        to = batch * capacity + first + t;
    }
    let result = out + (to * heads + head) * D + lane;
//@ if COMPACT
    if is {
        turned[lane] = a;
        turned[lane + HALF] = b;
    }
    workgroupBarrier();
    let width = heads * D;
//@ if Q8_0
    let row_words = width / 4u + width / 64u;
//@ else
    let row_words = width / 2u;
//@ end
    if capacity != 0u {
        keep(out + to * row_words, width, head, lane);
    } else if is {
        memory[result] = bitcast<u32>(a);
        memory[result + HALF] = bitcast<u32>(b);
    }
//@ else
    memory[result] = a;
    memory[result + HALF] = b;
//@ end
}
