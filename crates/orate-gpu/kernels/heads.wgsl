// Heads on their way from a product to attention: normed, turned, put in their place, for up to three values at a time.
//
//   x [B·T, H·D] → RMS norm of each head, weight [D] → rotary positions, table [B or 1, 2, T, D/2]
//                → out [B·T, H·D], or rows first[b] … of a state [B, N, H·D]
//
// Norm and table may be missing. D is a multiple of 8, up to 128. A workgroup has one head of one row, a thread one pair of
// the halves.

struct Params {
    // Heads of a row, of all values; rows; and how many of them follow each other in time.
    all: u32,
    rows: u32,
    time: u32,
//@ for i VALUES
    x_${i}: u32,
    out_${i}: u32,
    weight_${i}: u32,
    table_${i}: u32,
    heads_${i}: u32,
    // Rows of the state, or 0, and where they go: a number, or for each batch row one at this place.
    capacity_${i}: u32,
    first_${i}: u32,
    // Bits NORM, TURN, OWN, OPERAND.
    flags_${i}: u32,
    eps_${i}: f32,
//@ end
}

const NORM = 1u;
const TURN = 2u;
// Each batch row has a table of its own.
const OWN = 4u;
// `first` is a place.
const OPERAND = 8u;

const D = ${D}u;
const HALF = D / 2u;

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
@group(1) @binding(1) var<storage, read> vectors: array<f32>;

//@ include reduce

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
//@ if SUBGROUPS
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) place: u32,
//@ end
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
        a = memory[begin];
        b = memory[begin + HALF];
    }
    let sum = total(fma(a, a, b * b), ${REDUCE_ARGUMENTS});
    if !is {
        return;
    }
    if (flags & NORM) != 0u {
        let factor = 1.0 / sqrt(sum / f32(D) + eps);
        a = a * factor * vectors[weight + lane];
        b = b * factor * vectors[weight + lane + HALF];
    }
    let t = row % p.time;
    let batch = row / p.time;
    if (flags & TURN) != 0u {
        let own = select(0u, batch, (flags & OWN) != 0u);
        let at = table + (2u * own * p.time + t) * HALF + lane;
        let cosine = memory[at];
        let sine = memory[at + p.time * HALF];
        let turned = a * cosine - b * sine;
        b = a * sine + b * cosine;
        a = turned;
    }
    var to = row;
    if capacity != 0u {
        if (flags & OPERAND) != 0u {
            first = u32(clamp(bitcast<i32>(memory[first + batch]), 0, i32(capacity - p.time)));
        }
        to = batch * capacity + first + t;
    }
    let result = out + (to * heads + head) * D + lane;
    memory[result] = a;
    memory[result + HALF] = b;
}
