enable f16;
enable wgpu_cooperative_matrix;

// The matmul or convolution of matmul.wgsl on cooperative matrices: FRAGMENT × FRAGMENT values, distributed
// over the threads of a subgroup and multiplied by one instruction, on GPUs with such units. Both operands
// are f16, sums are f32. Widths and channels are multiples of 4.
//
// The weight is padded with zeros as in matmul.wgsl. It is stored as f16, or with BLOCKS in a format of
// weight.wgsl and rounded to f16 on its way to workgroup memory, as x is. A workgroup has SPLIT groups of
// GM × GN subgroups. Of a slice of DEPTH terms each group multiplies BK, and each of its subgroups computes
// FM × FN fragments of the BM × BN results. The groups' sums are added in workgroup memory in a fixed order,
// one row of a subgroup's fragments and CN columns of them at a time.
//
// Rows have 8 more elements in workgroup memory, to avoid bank conflicts. With EARLY, the values to add at
// the end are read at the beginning.
//
// NORM: rows of x get an RMS norm. They are multiplied by its weight, and by BEFORE for the sake of f16, on
// their way to workgroup memory, and results by the reciprocal root, which is known at the end.
//
// LAYER_NORM: rows of x get a layer norm. K is ROUNDS slices, one after the other in place of a loop: OF_NORM
// threads hold a row in registers, from which it goes to workgroup memory slice by slice.
//
// GATED: out = activation(x · first weight) · (x · second weight). Columns of a workgroup are fragments of
// the first and of the second weight in turn, so CN is even.

//@ include product
//@ if BLOCKS
//@ include weight

fn load_b(weight: u32, k: u32, quad: u32, stride: u32) -> Stored {
    return row_at(weight, k, quad, p.k, stride);
}
//@ else
@group(1) @binding(0) var<storage, read> matrix: array<vec4<f16>>;
//@ end

alias Left = coop_mat${FRAGMENT}x${FRAGMENT}<f16, A>;
alias Right = coop_mat${FRAGMENT}x${FRAGMENT}<f16, B>;
alias Sum = coop_mat${FRAGMENT}x${FRAGMENT}<f32, C>;

// In vectors of four.
const A_STRIDE = ${DEPTH}u / 4u + 2u;
const B_STRIDE = ${BN}u / 4u + 2u;
const FRAGMENT4 = ${FRAGMENT}u / 4u;

// Size of the sums that are added at a time.
const MET_ROWS = ${GM}u * ${FRAGMENT}u;
const MET_COLS = ${GN}u * ${CN}u * FRAGMENT4;
const MET_STRIDE = MET_COLS + 2u;

var<workgroup> a_tile: array<vec4<f16>, ${BM} * A_STRIDE>;
var<workgroup> b_tile: array<vec4<f16>, ${DEPTH} * B_STRIDE>;
var<workgroup> sums: array<vec4<f32>, ${SPLIT} * MET_ROWS * MET_STRIDE>;

//@ if NORM
const BEFORE = 0.0625;
// Threads that read a slice of a row; squares have one column more, to avoid bank conflicts.
const OF_ROW = ${DEPTH}u / 4u;
var<workgroup> squares: array<f32, ${BM}u * (OF_ROW + 1u)>;
var<workgroup> roots: array<f32, ${BM}>;

// Four elements of the norm's weight. Past the end, others are read.
fn load_norm(k: u32) -> vec4<f32> {
    return vectors[(p.norm + min(k, p.k - 4u)) >> 2u];
}
//@ end


//@ if LAYER_NORM
//@ include divided

const OF_NORM = 8u;
const NORM_ROWS = ${LANES}u / OF_NORM;

// Sum over the threads of a row.
fn of_row(x: f32) -> f32 {
    var sum = x;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 4u);
    return sum;
}
//@ end

// Row and column, in the tile, of the four results at index `share` of the current sums.
fn result(share: u32, i: u32, c: u32) -> vec2<u32> {
    let row = share / MET_COLS;
    let block = share % MET_COLS / FRAGMENT4;
    return vec2<u32>(
        (row / ${FRAGMENT}u * ${FM}u + i) * ${FRAGMENT}u + row % ${FRAGMENT}u,
        ((block / ${CN}u * ${MEETINGS}u + c) * ${CN}u + block % ${CN}u) * ${FRAGMENT}u
            + share % FRAGMENT4 * 4u,
    );
}

//@ if PARTS
fn of_part(part: u32, first: u32, second: u32, third: u32) -> u32 {
    return select(select(first, second, part == 1u), third, part == 2u);
}
//@ end

@compute @workgroup_size(${THREADS})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
//@ if LAYER_NORM
    @builtin(subgroup_invocation_id) invocation: u32,
//@ end
) {
    let group = subgroup / (${GM}u * ${GN}u);
    let sm = subgroup / ${GN}u % ${GM}u;
    let sn = subgroup % ${GN}u;
    let first_row = workgroup.y * ${BM}u;
//@ if PARTS
    // Workgroups in x have columns of the first weight, then of the next.
    let tiles = (p.n + ${BN}u - 1u) / ${BN}u;
    let tiles_1 = tiles + (p.n_1 + ${BN}u - 1u) / ${BN}u;
    let part = u32(workgroup.x >= tiles) + u32(workgroup.x >= tiles_1);
    let first_col = (workgroup.x - of_part(part, 0u, tiles, tiles_1)) * ${BN}u;
    let weight = of_part(part, p.weight, p.weight_1, p.weight_2);
    own_part = part;
    own_n = of_part(part, p.n, p.n_1, p.n_2);
    own_out = of_part(part, 0u, p.m * p.n, p.m * (p.n + p.n_1));
    let stride = (own_n + ${COLUMNS_PADDING}u - 1u) / ${COLUMNS_PADDING}u * ${COLUMNS_PADDING}u;
//@ else
    let first_col = workgroup.x * ${COLUMNS}u;
    let weight = p.weight;
    let stride = p.stride;
//@ end

//@ for i FM
//@ for c MEETINGS
//@ for j CN
    var sum_${i}_${c}_${j} = Sum();
//@ end
//@ end
//@ end

    // What this thread reads of each slice, and where it stores it. Columns past the end are clamped.
//@ for i A_LOADS
    let a_row_${i} = (lane + ${i}u * ${THREADS}u) / (${DEPTH}u / 4u);
    let a_quad_${i} = (lane + ${i}u * ${THREADS}u) % (${DEPTH}u / 4u);
    let a_from_${i} = min(first_row + a_row_${i}, p.m - 1u);
    let a_to_${i} = a_row_${i} * A_STRIDE + a_quad_${i};
//@ end
//@ for i B_LOADS
    let b_row_${i} = (lane + ${i}u * ${THREADS}u) / (${BN}u / 4u);
    let b_quad_${i} = (lane + ${i}u * ${THREADS}u) % (${BN}u / 4u);
//@ if GATED
    let b_weight_${i} = select(weight, p.weight_1, b_quad_${i} / FRAGMENT4 % 2u == 1u);
    let b_own_${i} = b_quad_${i} / (2u * FRAGMENT4) * FRAGMENT4 + b_quad_${i} % FRAGMENT4;
//@ else
    let b_weight_${i} = weight;
    let b_own_${i} = b_quad_${i};
//@ end
    let b_col_${i} = min(first_col + b_own_${i} * 4u, stride - 4u) / 4u;
//@ if BLOCKS
//@ else
    let b_from_${i} = (b_weight_${i} + b_row_${i} * stride) / 4u + b_col_${i};
//@ end
    let b_to_${i} = b_row_${i} * B_STRIDE + b_quad_${i};
//@ end

    // Slices are read AHEAD of the one that is multiplied, alternating between as many sets of registers.
    // Reads past the end repeat the last slice: under a condition, threads would wait for each read at once.
    let slices = (p.k + ${DEPTH}u - 1u) / ${DEPTH}u;
//@ for u AHEAD
    let k_${u} = min(${u}u, slices - 1u) * ${DEPTH}u;
//@ for i B_LOADS
//@ if BLOCKS
    var b_next_${u}_${i} = load_b(b_weight_${i}, k_${u} + b_row_${i}, b_col_${i}, stride);
//@ else
    var b_next_${u}_${i} = matrix[b_from_${i} + k_${u} * (stride / 4u)];
//@ end
//@ end
//@ if LAYER_NORM
//@ else
//@ for i A_LOADS
    var a_next_${u}_${i} = load_a(a_from_${i}, k_${u} + a_quad_${i} * 4u);
//@ if NORM
    var norm_next_${u}_${i} = load_norm(k_${u} + a_quad_${i} * 4u);
//@ end
//@ end
//@ end
//@ end
//@ if LAYER_NORM
//@ include normed_rows
//@ end
//@ if NORM
//@ for i A_LOADS
    var square_${i} = 0.0;
//@ end
//@ end

//@ if EARLY
    // Values that this thread adds to its share of the results.
//@ for i FM
//@ for c MEETINGS
//@ for u SHARE
    let bias_${i}_${c}_${u} = load_bias(result(lane + ${u}u * ${THREADS}u, ${i}u, ${c}u).y + first_col);
    let residual_${i}_${c}_${u} = load_residual(
        result(lane + ${u}u * ${THREADS}u, ${i}u, ${c}u).x + first_row,
        result(lane + ${u}u * ${THREADS}u, ${i}u, ${c}u).y + first_col);
//@ end
//@ end
//@ end
//@ end

//@ if LAYER_NORM
    {
        let slice = 0u;
//@ else
    for (var slice = 0u; slice < slices; slice += ${AHEAD}u) {
//@ end
//@ for r ROUNDS
//@ for u AHEAD
//@ if AHEAD_SEVERAL
        if slice + ${u}u >= slices {
            break;
        }
//@ end
        {
            workgroupBarrier();
//@ if LAYER_NORM
//@ for i NORM_TIMES
//@ for w NORM_VECTORS
            a_tile[norm_row_${i} * A_STRIDE + ${w}u * OF_NORM + norm_part] = normed_${i}_${r}_${w};
//@ end
//@ end
//@ else
//@ for i A_LOADS
//@ if NORM
            a_tile[a_to_${i}] = vec4<f16>(a_next_${u}_${i} * (norm_next_${u}_${i} * BEFORE));
            square_${i} += select(
                0.0, dot(a_next_${u}_${i}, a_next_${u}_${i}),
                (slice + ${u}u) * ${DEPTH}u + a_quad_${i} * 4u < p.k);
//@ else
            a_tile[a_to_${i}] = vec4<f16>(a_next_${u}_${i});
//@ end
//@ end
//@ end
//@ for i B_LOADS
//@ if BLOCKS
            b_tile[b_to_${i}] = vec4<f16>(widen(b_next_${u}_${i}));
//@ else
            b_tile[b_to_${i}] = b_next_${u}_${i};
//@ end
//@ end
            workgroupBarrier();
            let k = min(slice + (${r}u + 1u) * ${AHEAD}u + ${u}u, slices - 1u) * ${DEPTH}u;
//@ for i B_LOADS
//@ if BLOCKS
            b_next_${u}_${i} = load_b(b_weight_${i}, k + b_row_${i}, b_col_${i}, stride);
//@ else
            b_next_${u}_${i} = matrix[b_from_${i} + k * (stride / 4u)];
//@ end
//@ end
//@ if LAYER_NORM
//@ else
//@ for i A_LOADS
            a_next_${u}_${i} = load_a(a_from_${i}, k + a_quad_${i} * 4u);
//@ if NORM
            norm_next_${u}_${i} = load_norm(k + a_quad_${i} * 4u);
//@ end
//@ end
//@ end
//@ for kk STEPS
//@ for i FM
            let a_${kk}_${i} = coopLoadT<Left>(
                &a_tile[(sm * ${FM}u + ${i}u) * ${FRAGMENT}u * A_STRIDE + group * (${BK}u / 4u)
                    + ${kk}u * FRAGMENT4],
                A_STRIDE);
//@ end
//@ for c MEETINGS
//@ for j CN
            let b_${kk}_${c}_${j} = coopLoadT<Right>(
                &b_tile[(group * ${BK}u + ${kk}u * ${FRAGMENT}u) * B_STRIDE
                    + (sn * ${FN}u + ${c}u * ${CN}u + ${j}u) * FRAGMENT4],
                B_STRIDE);
//@ end
//@ end
//@ for i FM
//@ for c MEETINGS
//@ for j CN
            sum_${i}_${c}_${j} = coopMultiplyAdd(a_${kk}_${i}, b_${kk}_${c}_${j}, sum_${i}_${c}_${j});
//@ end
//@ end
//@ end
//@ end
        }
//@ end
//@ end
    }

//@ if NORM
//@ for i A_LOADS
    squares[a_row_${i} * (OF_ROW + 1u) + a_quad_${i}] = square_${i};
//@ end
    workgroupBarrier();
    if lane < ${BM}u {
        var all = 0.0;
        for (var i = 0u; i < OF_ROW; i++) {
            all += squares[lane * (OF_ROW + 1u) + i];
        }
        roots[lane] = inverseSqrt(all / f32(p.k) + p.eps) / BEFORE;
    }
//@ end

    // A column of fragments, or CN of them, of all subgroups at a time.
//@ for i FM
//@ for c MEETINGS
    workgroupBarrier();
//@ for j CN
    coopStoreT(
        sum_${i}_${c}_${j},
        &sums[(group * MET_ROWS + sm * ${FRAGMENT}u) * MET_STRIDE + (sn * ${CN}u + ${j}u) * FRAGMENT4],
        MET_STRIDE);
//@ end
    workgroupBarrier();
//@ for u SHARE
    {
        let share = lane + ${u}u * ${THREADS}u;
        let here = result(share, ${i}u, ${c}u);
        let at = here + vec2<u32>(first_row, first_col);
//@ if GATED
        // The fragment after this one is of the second weight.
        if share < MET_ROWS * MET_COLS && here.y / ${FRAGMENT}u % 2u == 0u {
            let first = share / MET_COLS * MET_STRIDE + share % MET_COLS;
            var sum = sums[first];
            var by = sums[first + FRAGMENT4];
//@ for g SPLIT_MORE
            sum += sums[first + (${g}u + 1u) * MET_ROWS * MET_STRIDE];
            by += sums[first + (${g}u + 1u) * MET_ROWS * MET_STRIDE + FRAGMENT4];
//@ end
//@ if NORM
            sum *= roots[here.x];
            by *= roots[here.x];
//@ end
            let col = first_col + here.y / (2u * ${FRAGMENT}u) * ${FRAGMENT}u + here.y % ${FRAGMENT}u;
            finish_gated(sum, by, at.x, col);
        }
//@ else
        if share < MET_ROWS * MET_COLS {
//@ if EARLY
            let bias = bias_${i}_${c}_${u};
            let residual = residual_${i}_${c}_${u};
//@ else
            let bias = load_bias(at.y);
            let residual = load_residual(at.x, at.y);
//@ end
            let first = share / MET_COLS * MET_STRIDE + share % MET_COLS;
            var sum = sums[first];
//@ for g SPLIT_MORE
            sum += sums[first + (${g}u + 1u) * MET_ROWS * MET_STRIDE];
//@ end
//@ if NORM
            sum *= roots[here.x];
//@ end
            finish(sum, at.x, at.y, bias, residual);
        }
//@ end
    }
//@ end
//@ end
//@ end
}
