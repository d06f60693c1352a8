// out [M, N] = residual + activation(x [M, K] · weight [K, N] + bias): matmuls of few rows, whose time is
// that of reading the weight, once for all of them. All reads are issued at the beginning, so that none waits
// for another.
//
//   SEVERAL      matmuls by several weights, whose results are matrices one after the other in `out`; each
//                workgroup finds its matmul. Only the first has the activation.
//   GATED        out = activation(x · first weight) · (x · second weight)
//   NORM         x is the RMS norm of each row, x / √(mean(x²) + eps) · norm. The root is a common factor of
//                all terms, so it is applied at the end, and squares are summed together with the terms.
//   LAYER_NORM   x is the layer norm of each row, whose mean and root are computed at the beginning, while
//                the first weights are read.
//   LANES        threads of a subgroup, if all have as many: sums are added by shuffles.
//   ODD          N is not a multiple of 4.
//   ONE_PASS     there are at most TOGETHER rows; more are summed in PASSES passes of TOGETHER each.
//   EARLY_RESIDUAL  the residual is among what is read at the beginning.
//
// weight.wgsl describes the weight. A workgroup computes 4 · QUADS results of each row; a thread has four of
// them and every PLACES-th unit of terms, UNROLL of them at a time. A unit is FOURS groups of four terms.
// Sums of threads are added in a fixed order. K is a multiple of 4.

struct Params {
    x: u32,
    out: u32,
    residual: u32,
    bias: u32,
    slope: u32,
    k: u32,
    rows: u32,
    norm: u32,
    shift: u32,
    eps: f32,
    weight: u32,
    n: u32,
    stride: u32,
//@ for i MORE
    weight_${i}: u32,
    n_${i}: u32,
    stride_${i}: u32,
//@ end
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<f32>>;
@group(1) @binding(1) var<storage, read> vectors: array<vec4<f32>>;

//@ include activation
//@ include weight_rows

const THREADS = 256u;
const QUADS = ${QUADS}u;
const PLACES = THREADS / QUADS;
const WIDE = 4u * QUADS;
const TOGETHER = ${TOGETHER}u;
const FOURS = ${FOURS}u;

//@ if LANES
const SUBGROUPS = THREADS / ${LANES}u;
// Partial sums of a row are those of all subgroups.
const SUMS = SUBGROUPS * QUADS;
//@ else
const SUMS = THREADS;
//@ end
var<workgroup> partial: array<vec4<f32>, TOGETHER * SUMS>;
//@ if GATED
var<workgroup> partial_other: array<vec4<f32>, TOGETHER * SUMS>;
//@ end
//@ if NORM
var<workgroup> partial_squares: array<f32, TOGETHER * SUMS>;
//@ end
//@ if LAYER_NORM
var<workgroup> partial_rows: array<vec2<f32>, SUBGROUPS>;

//@ include divided

// The sum of all threads, for two rows.
fn total(x: vec2<f32>, subgroup: u32, invocation: u32) -> vec2<f32> {
    let sum = subgroupAdd(x);
    workgroupBarrier();
    if invocation == 0u {
        partial_rows[subgroup] = sum;
    }
    workgroupBarrier();
    var all = vec2<f32>();
    for (var i = 0u; i < SUBGROUPS; i++) {
        all += partial_rows[i];
    }
    return all;
}
//@ end

// Location of this thread's results, in memory and in the matrix.
struct Place {
    place: u32,
    col: u32,
    n: u32,
    out: u32,
    first: bool,
//@ if BIAS
    bias: vec4<f32>,
//@ end
//@ if EARLY_RESIDUAL
    // Of the row that this thread stores.
    residual: vec4<f32>,
//@ end
}

// Adds what `partial` has of the rows from `row` on, and stores these.
fn finish(row: u32, lane: u32, at: Place) {
//@ if LANES
    workgroupBarrier();
//@ else
    for (var step = PLACES / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if at.place < step {
//@ for i TOGETHER
            partial[${i}u * SUMS + lane] += partial[${i}u * SUMS + lane + step * QUADS];
//@ if GATED
            partial_other[${i}u * SUMS + lane] += partial_other[${i}u * SUMS + lane + step * QUADS];
//@ end
//@ if NORM
            partial_squares[${i}u * SUMS + lane] += partial_squares[${i}u * SUMS + lane + step * QUADS];
//@ end
//@ end
        }
    }
//@ end
//@ for i TOGETHER
//@ if LANES
    if at.place == ${i}u && at.col < at.n && row + ${i}u < p.rows {
        var y = vec4<f32>();
//@ if GATED
        var other = vec4<f32>();
//@ end
//@ if NORM
        var squares = 0.0;
//@ end
        for (var i = ${i}u * SUMS + lane % QUADS; i < ${i}u * SUMS + SUMS; i += QUADS) {
            y += partial[i];
//@ if GATED
            other += partial_other[i];
//@ end
//@ if NORM
            squares += partial_squares[i];
//@ end
        }
//@ else
    if at.place == 0u && at.col < at.n && row + ${i}u < p.rows {
        var y = partial[${i}u * SUMS + lane];
//@ if GATED
        var other = partial_other[${i}u * SUMS + lane];
//@ end
//@ if NORM
        let squares = partial_squares[${i}u * SUMS + lane];
//@ end
//@ end
//@ if NORM
        let factor = 1.0 / sqrt(squares / f32(p.k) + p.eps);
        y *= factor;
//@ if GATED
        other *= factor;
//@ end
//@ end
//@ if BIAS
        y += at.bias;
//@ end
//@ if ACTIVATE
        if at.first {
            var slope = 0.0;
//@ if PRELU
            slope = vectors[p.slope >> 2u].x;
//@ end
            y = vec4<f32>(
                activate(y.x, slope), activate(y.y, slope), activate(y.z, slope), activate(y.w, slope));
        }
//@ end
//@ if GATED
        y *= other;
//@ end
        let element = (row + ${i}u) * at.n + at.col;
//@ if ODD
        for (var c = 0u; c < min(4u, at.n - at.col); c++) {
//@ if RESIDUAL
            y[c] += memory[(p.residual + element + c) >> 2u][(p.residual + element + c) & 3u];
//@ end
            memory[(at.out + element + c) >> 2u][(at.out + element + c) & 3u] = y[c];
        }
//@ else
//@ if EARLY_RESIDUAL
        y += at.residual;
//@ else
//@ if RESIDUAL
        y += memory[(p.residual + element) >> 2u];
//@ end
//@ end
        memory[(at.out + element) >> 2u] = y;
//@ end
    }
//@ end
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
//@ if LANES
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
//@ else
    @builtin(local_invocation_index) lane: u32,
//@ end
) {
//@ if LANES
    let lane = subgroup * ${LANES}u + invocation;
//@ end
    let place = lane / QUADS;
    var tile = workgroup.x;
    var weight = p.weight;
    var n = p.n;
    var stride = p.stride;
    var out = p.out;
    var part = 0u;
//@ if SEVERAL
//@ for i MORE
    if part == ${i}u && tile >= (n + WIDE - 1u) / WIDE {
        tile -= (n + WIDE - 1u) / WIDE;
        out += n * p.rows;
        weight = p.weight_${i};
        n = p.n_${i};
        stride = p.stride_${i};
        part = ${i}u + 1u;
    }
//@ end
//@ end
    // After the last column the weight is zero.
    let col = (tile * QUADS + lane % QUADS) * 4u;
    let groups = p.k / 4u;
    let units = (groups + FOURS - 1u) / FOURS;
//@ for h PASSES
//@ for i TOGETHER
    // Rows past the last repeat it and are not stored.
    let row_${h}_${i} = p.x / 4u + min(${h}u * ${TOGETHER}u + ${i}u, p.rows - 1u) * groups;
    var sum_${h}_${i} = vec4<f32>();
//@ if GATED
    var other_${h}_${i} = vec4<f32>();
//@ end
//@ if NORM
    var squares_${h}_${i} = 0.0;
//@ end
//@ end
//@ end
    var at: Place;
    at.place = place;
    at.col = col;
    at.n = n;
    at.out = out;
    at.first = part == 0u;
    let is_stored = col < n;
//@ if BIAS
    at.bias = vectors[(p.bias + select(0u, col, is_stored)) >> 2u];
//@ end
//@ if EARLY_RESIDUAL
    // With subgroups, the threads at a place store the row of that number.
    let stored = select(0u, min(place, p.rows - 1u) * n + col, is_stored && place < TOGETHER);
    at.residual = memory[(p.residual + stored) >> 2u];
//@ end
    // Many loads of a thread are under way: to wait for each would take longer than to read all.
//@ for u UNROLL
    var w_${u} = load_weights(min(place + ${u}u * PLACES, units - 1u), weight, col, p.k, stride);
//@ if GATED
    var v_${u} = load_weights(min(place + ${u}u * PLACES, units - 1u), p.weight_0, col, p.k, stride);
//@ end
//@ for q FOURS
//@ if ONE_PASS
    let first_${u}_${q} = min((place + ${u}u * PLACES) * FOURS + ${q}u, groups - 1u);
//@ for i TOGETHER
    var x_${u}_${i}_${q} = memory[row_0_${i} + first_${u}_${q}];
//@ end
//@ if NORM
    var norm_${u}_${q} = vectors[p.norm / 4u + first_${u}_${q}];
//@ end
//@ if LAYER_NORM
    var norm_${u}_${q} = vectors[p.norm / 4u + first_${u}_${q}];
    var shift_${u}_${q} = vectors[p.shift / 4u + first_${u}_${q}];
//@ end
//@ end
//@ end
//@ end
//@ if LAYER_NORM
    var sums = vec2<f32>();
    for (var i = lane; i < groups; i += THREADS) {
//@ for i TOGETHER
        sums[${i}] += dot(memory[row_0_${i} + i], vec4<f32>(1.0));
//@ end
    }
    sums = total(sums, subgroup, invocation);
    let mean = vec2<f32>(divided(sums.x, p.k), divided(sums.y, p.k));
    var squares = vec2<f32>();
    for (var i = lane; i < groups; i += THREADS) {
//@ for i TOGETHER
        let d_${i} = memory[row_0_${i} + i] - mean[${i}];
        squares[${i}] += dot(d_${i}, d_${i});
//@ end
    }
    let factor = vec2<f32>(1.0) / sqrt(total(squares, subgroup, invocation) / f32(p.k) + p.eps);
//@ end
    for (var begin = 0u; begin < units; begin += ${UNROLL}u * PLACES) {
//@ for u UNROLL
        let unit_${u} = begin + ${u}u * PLACES + place;
//@ if ONE_PASS
//@ for i TOGETHER
//@ for q FOURS
        let is_${u}_${i}_${q} = unit_${u} * FOURS + ${q}u < groups;
//@ if NORM
        squares_0_${i} += select(0.0, dot(x_${u}_${i}_${q}, x_${u}_${i}_${q}), is_${u}_${i}_${q});
        x_${u}_${i}_${q} *= norm_${u}_${q};
//@ end
//@ if LAYER_NORM
        x_${u}_${i}_${q} =
            fma((x_${u}_${i}_${q} - mean[${i}]) * factor[${i}], norm_${u}_${q}, shift_${u}_${q});
//@ end
        x_${u}_${i}_${q} = select(vec4<f32>(), x_${u}_${i}_${q}, is_${u}_${i}_${q});
//@ end
        sum_0_${i} = add(
            w_${u},
//@ for q FOURS
            x_${u}_${i}_${q},
//@ end
            sum_0_${i},
        );
//@ if GATED
        other_0_${i} = add(
            v_${u},
//@ for q FOURS
            x_${u}_${i}_${q},
//@ end
            other_0_${i},
        );
//@ end
//@ end
//@ else
//@ for q FOURS
        let is_${u}_${q} = unit_${u} * FOURS + ${q}u < groups;
        let from_${u}_${q} = min(unit_${u} * FOURS + ${q}u, groups - 1u);
//@ if NORM
        let norm_${u}_${q} = vectors[p.norm / 4u + from_${u}_${q}];
//@ end
//@ end
//@ for h PASSES
//@ for i TOGETHER
//@ for q FOURS
        var x_${u}_${h}_${i}_${q} =
            select(vec4<f32>(), memory[row_${h}_${i} + from_${u}_${q}], is_${u}_${q});
//@ if NORM
        squares_${h}_${i} += dot(x_${u}_${h}_${i}_${q}, x_${u}_${h}_${i}_${q});
        x_${u}_${h}_${i}_${q} *= norm_${u}_${q};
//@ end
//@ end
        sum_${h}_${i} = add(
            w_${u},
//@ for q FOURS
            x_${u}_${h}_${i}_${q},
//@ end
            sum_${h}_${i},
        );
//@ if GATED
        other_${h}_${i} = add(
            v_${u},
//@ for q FOURS
            x_${u}_${h}_${i}_${q},
//@ end
            other_${h}_${i},
        );
//@ end
//@ end
//@ end
//@ end
//@ end
        // After the last terms, some are loaded again.
        let next = begin + ${UNROLL}u * PLACES + place;
        if begin + ${UNROLL}u * PLACES < units {
//@ for u UNROLL
            w_${u} = load_weights(min(next + ${u}u * PLACES, units - 1u), weight, col, p.k, stride);
//@ if GATED
            v_${u} = load_weights(min(next + ${u}u * PLACES, units - 1u), p.weight_0, col, p.k, stride);
//@ end
//@ for q FOURS
//@ if ONE_PASS
            let next_${u}_${q} = min((next + ${u}u * PLACES) * FOURS + ${q}u, groups - 1u);
//@ for i TOGETHER
            x_${u}_${i}_${q} = memory[row_0_${i} + next_${u}_${q}];
//@ end
//@ if NORM
            norm_${u}_${q} = vectors[p.norm / 4u + next_${u}_${q}];
//@ end
//@ if LAYER_NORM
            norm_${u}_${q} = vectors[p.norm / 4u + next_${u}_${q}];
            shift_${u}_${q} = vectors[p.shift / 4u + next_${u}_${q}];
//@ end
//@ end
//@ end
//@ end
        }
    }
//@ for h PASSES
//@ if ONE_PASS
//@ else
    // The memory of the rows before is used again.
    workgroupBarrier();
//@ end
//@ for i TOGETHER
//@ if LANES
//@ for r ROUNDS
    sum_${h}_${i} += subgroupShuffleXor(sum_${h}_${i}, QUADS << ${r}u);
//@ if GATED
    other_${h}_${i} += subgroupShuffleXor(other_${h}_${i}, QUADS << ${r}u);
//@ end
//@ if NORM
    squares_${h}_${i} += subgroupShuffleXor(squares_${h}_${i}, QUADS << ${r}u);
//@ end
//@ end
    let own_${h}_${i} = ${i}u * SUMS + subgroup * QUADS + invocation;
    if invocation < QUADS {
//@ else
    let own_${h}_${i} = ${i}u * SUMS + lane;
    {
//@ end
        partial[own_${h}_${i}] = sum_${h}_${i};
//@ if GATED
        partial_other[own_${h}_${i}] = other_${h}_${i};
//@ end
//@ if NORM
        partial_squares[own_${h}_${i}] = squares_${h}_${i};
//@ end
    }
//@ end
    finish(${h}u * ${TOGETHER}u, lane, at);
//@ end
}
