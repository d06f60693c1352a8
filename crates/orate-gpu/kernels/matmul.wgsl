// out [M, N] = residual + activation(x [M, K] · weight [K, N] + bias). With CONV a convolution over time,
// which gathers row m of x from its taps: k = tap · channels + channel. HISTORY: rows before x come from a
// history [batch, left, channels]. ZERO: rows beyond the ends are zeros, not the edges repeated.
//
// The weight is padded with zeros to whole tiles, [⌈K⌉, stride]. A workgroup computes BM × BN results. Its
// threads are SPLIT groups, each of which sums every SPLIT-th slice of BK terms; at the end the groups' sums
// are added in a fixed order. A thread has TM × TN results in registers: TM rows that are BM/TM apart, and
// TN/4 times 4 neighboring columns. The next slices are read from memory while the current one is multiplied.
//
// The weight has a format of weight.wgsl and is widened to f32 on its way to workgroup memory. Everything
// else is as with f32 weights, bit for bit if the format represents the weights exactly. On an H200 it was no
// faster to keep slices in f16 in workgroup memory.
//
// ODD: K, N or the channels are not a multiple of 4, so elements are read and written one by one.

//@ include product
//@ include weight

const TX = ${BN}u / ${TN}u;
const TY = ${BM}u / ${TM}u;
const GROUP = TX * TY;
// In vectors of four. A's rows have one more, to avoid bank conflicts.
const A_STRIDE = ${BK}u / 4u + 1u;
const B_STRIDE = ${BN}u / 4u;
// Results of a workgroup.
const SLOT = ${BM}u * B_STRIDE;

var<workgroup> a_tile: array<vec4<f32>, ${A_TILE}>;
var<workgroup> b_tile: array<vec4<f32>, ${B_TILE}>;

//@ if BLOCKS
fn load_b(k: u32, quad: u32) -> Stored {
    return row_at(p.weight, k, quad, p.k, p.stride);
}
//@ end

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = lane / GROUP;
    let t = lane % GROUP;
    let tx = t % TX;
    let ty = t / TX;
    let first_row = workgroup.y * ${BM}u;
    let first_col = workgroup.x * ${BN}u;
    let a_base = group * ${BM}u * A_STRIDE;
    let b_base = group * ${BK}u * B_STRIDE;

//@ for i TM
//@ for j TN4
    var sum_${i}_${j} = vec4<f32>();
//@ end
//@ end

    // Registers for what this thread reads of each slice.
//@ for i A_LOADS
    let a_at_${i} = t + ${i}u * GROUP;
    let a_row_${i} = min(first_row + a_at_${i} / (${BK}u / 4u), p.m - 1u);
    let a_k_${i} = a_at_${i} % (${BK}u / 4u) * 4u;
    let a_to_${i} = a_base + a_at_${i} / (${BK}u / 4u) * A_STRIDE + a_at_${i} % (${BK}u / 4u);
//@ end
//@ for i B_LOADS
    let b_at_${i} = t + ${i}u * GROUP;
//@ if BLOCKS
    let b_row_${i} = b_at_${i} / B_STRIDE;
    let b_quad_${i} = first_col / 4u + b_at_${i} % B_STRIDE;
//@ else
    let b_from_${i} = (p.weight + b_at_${i} / B_STRIDE * p.stride + first_col) / 4u + b_at_${i} % B_STRIDE;
//@ end
//@ end

//@ if SPLITS
    // Registers for the values that this thread adds to its share of the results.
//@ for u SHARE
    let share_${u} = lane + ${u}u * ${THREADS}u;
    let share_row_${u} = first_row + share_${u} / B_STRIDE;
    let share_col_${u} = first_col + share_${u} % B_STRIDE * 4u;
    let bias_${u} = load_bias(share_col_${u});
    let residual_${u} = load_residual(share_row_${u}, share_col_${u});
//@ end
//@ end

    // Slices are read AHEAD of the one that is multiplied, alternating between as many sets of registers.
    // Reads past the end repeat the last slice: under a condition, threads would wait for each read at once.
    const STEP = ${BK}u * ${SPLIT}u;
    let slices = (p.k + STEP - 1u) / STEP;
    let last = (slices - 1u) * STEP + group * ${BK}u;
//@ for u AHEAD
    let k_${u} = min(group * ${BK}u + ${u}u * STEP, last);
//@ for i A_LOADS
    var a_next_${u}_${i} = load_a(a_row_${i}, k_${u} + a_k_${i});
//@ end
//@ for i B_LOADS
//@ if BLOCKS
    var b_next_${u}_${i} = load_b(k_${u} + b_row_${i}, b_quad_${i});
//@ else
    var b_next_${u}_${i} = matrix[b_from_${i} + k_${u} * p.stride / 4u];
//@ end
//@ end
//@ end
    for (var slice = 0u; slice < slices; slice += ${AHEAD}u) {
//@ for u AHEAD
//@ if AHEAD_SEVERAL
        if slice + ${u}u < slices {
//@ else
        {
//@ end
            workgroupBarrier();
//@ for i A_LOADS
            a_tile[a_to_${i}] = a_next_${u}_${i};
//@ end
//@ for i B_LOADS
            b_tile[b_base + b_at_${i}] = widen(b_next_${u}_${i});
//@ end
            workgroupBarrier();
            let k = min(group * ${BK}u + (slice + ${u}u + ${AHEAD}u) * STEP, last);
//@ for i A_LOADS
            a_next_${u}_${i} = load_a(a_row_${i}, k + a_k_${i});
//@ end
//@ for i B_LOADS
//@ if BLOCKS
            b_next_${u}_${i} = load_b(k + b_row_${i}, b_quad_${i});
//@ else
            b_next_${u}_${i} = matrix[b_from_${i} + k * p.stride / 4u];
//@ end
//@ end
            for (var k4 = 0u; k4 < ${BK}u / 4u; k4 += ${UNROLL}u) {
//@ for kk UNROLL
//@ for i TM
                let a_${kk}_${i} = a_tile[a_base + (ty + ${i}u * TY) * A_STRIDE + k4 + ${kk}u];
//@ end
//@ for c 4
//@ for j TN4
                let b_${kk}_${c}_${j} =
                    b_tile[b_base + ((k4 + ${kk}u) * 4u + ${c}u) * B_STRIDE + tx + ${j}u * TX];
//@ end
//@ for i TM
//@ for j TN4
                sum_${i}_${j} = fma(vec4<f32>(a_${kk}_${i}[${c}]), b_${kk}_${c}_${j}, sum_${i}_${j});
//@ end
//@ end
//@ end
//@ end
            }
        }
//@ end
    }

//@ if SPLITS
    // The groups' sums are added in workgroup memory, SLOTS at a time and always in the same order. While
    // there are more groups than slots, the last ones pass theirs to the first ones; then every thread adds
    // up and finishes its share.
    var left = ${SPLIT}u;
    while left > ${SLOTS}u {
        let given = min(${SLOTS}u, left / 2u);
        workgroupBarrier();
        if group >= left - given && group < left {
            let slot = (group + given - left) * SLOT;
//@ for i TM
//@ for j TN4
            b_tile[slot + (ty + ${i}u * TY) * B_STRIDE + tx + ${j}u * TX] = sum_${i}_${j};
//@ end
//@ end
        }
        workgroupBarrier();
        if group < given {
            let slot = group * SLOT;
//@ for i TM
//@ for j TN4
            sum_${i}_${j} += b_tile[slot + (ty + ${i}u * TY) * B_STRIDE + tx + ${j}u * TX];
//@ end
//@ end
        }
        left -= given;
    }
    workgroupBarrier();
    if group < left {
        let slot = group * SLOT;
//@ for i TM
//@ for j TN4
        b_tile[slot + (ty + ${i}u * TY) * B_STRIDE + tx + ${j}u * TX] = sum_${i}_${j};
//@ end
//@ end
    }
    workgroupBarrier();
//@ for u SHARE
    if share_${u} < SLOT {
        var sum = b_tile[share_${u}];
        for (var slot = 1u; slot < left; slot++) {
            sum += b_tile[slot * SLOT + share_${u}];
        }
        finish(sum, share_row_${u}, share_col_${u}, bias_${u}, residual_${u});
    }
//@ end
//@ else
//@ for i TM
//@ for j TN4
    {
        let row = first_row + ty + ${i}u * TY;
        let col = first_col + (tx + ${j}u * TX) * 4u;
        finish(sum_${i}_${j}, row, col, load_bias(col), load_residual(row, col));
    }
//@ end
//@ end
//@ end
}
