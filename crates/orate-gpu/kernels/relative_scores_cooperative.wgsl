enable f16;
enable wgpu_cooperative_matrix;

// The function of relative_scores.wgsl, whose parameters it has, on cooperative matrices: q and p are rounded
// to f16, sums are f32. See matmul_cooperative.wgsl about cooperative matrices.
//
// A workgroup has QUERIES queries by KEYS keys of a head. It multiplies all its queries by all rows of p that
// they need, and takes from the products those that belong together. Each of its 2 × 2 subgroups computes a
// row of COLUMNS fragments.

struct Params {
    q: u32,
    positions: u32,
    out: u32,
    heads: u32,
    d: u32,
    time: u32,
    scale: f32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<f32>>;

alias Left = coop_mat${FRAGMENT}x${FRAGMENT}<f16, A>;
alias Right = coop_mat${FRAGMENT}x${FRAGMENT}<f16, B>;
alias Sum = coop_mat${FRAGMENT}x${FRAGMENT}<f32, C>;

const QUERIES = ${QUERIES}u;
const KEYS = ${KEYS}u;
const ROWS = QUERIES + KEYS;

// In vectors of four. Rows in workgroup memory have two more, to avoid bank conflicts.
const D4 = ${D}u / 4u;
const FRAGMENT4 = ${FRAGMENT}u / 4u;
const STRIDE = D4 + 2u;
const SUMS_STRIDE = ROWS / 4u + 2u;

var<workgroup> queries: array<vec4<f16>, QUERIES * STRIDE>;
var<workgroup> positions: array<vec4<f16>, ROWS * STRIDE>;
var<workgroup> sums: array<vec4<f32>, QUERIES * SUMS_STRIDE>;

@compute @workgroup_size(${THREADS})
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
) {
    let sm = subgroup / 2u;
    let sn = subgroup % 2u;
    let batch = workgroup.z / p.heads;
    let head = workgroup.z % p.heads * D4;
    let width = p.heads * D4;
    let first_key = workgroup.x * KEYS;
    let first_query = workgroup.y * QUERIES;
    for (var i = lane; i < QUERIES * D4; i += ${THREADS}u) {
        let row = min(first_query + i / D4, p.time - 1u);
        let at = p.q / 4u + (batch * p.time + row) * width + head + i % D4;
        queries[i / D4 * STRIDE + i % D4] = vec4<f16>(memory[at]);
    }
    // Row of p for the last query and the first key.
    let first = i32(p.time + first_key) - i32(first_query + QUERIES);
    for (var i = lane; i < ROWS * D4; i += ${THREADS}u) {
        let row = u32(clamp(first + i32(i / D4), 0, i32(2u * p.time) - 2));
        let at = p.positions / 4u + row * width + head + i % D4;
        positions[i / D4 * STRIDE + i % D4] = vec4<f16>(memory[at]);
    }
    workgroupBarrier();
//@ for j COLUMNS
    var sum_${j} = Sum();
//@ end
//@ for c DEPTHS
    let q_${c} = coopLoadT<Left>(&queries[sm * ${FRAGMENT}u * STRIDE + ${c}u * FRAGMENT4], STRIDE);
//@ for j COLUMNS
    let p_${c}_${j} = coopLoad<Right>(
        &positions[(sn * ${COLUMNS}u + ${j}u) * ${FRAGMENT}u * STRIDE + ${c}u * FRAGMENT4], STRIDE);
    sum_${j} = coopMultiplyAdd(q_${c}, p_${c}_${j}, sum_${j});
//@ end
//@ end
//@ for j COLUMNS
    coopStoreT(
        sum_${j},
        &sums[sm * ${FRAGMENT}u * SUMS_STRIDE + (sn * ${COLUMNS}u + ${j}u) * FRAGMENT4],
        SUMS_STRIDE);
//@ end
    workgroupBarrier();
    for (var i = lane; i < QUERIES * KEYS; i += ${THREADS}u) {
        let query = i / KEYS;
        let key = i % KEYS;
        if first_query + query < p.time && first_key + key < p.time {
            let at = QUERIES - 1u - query + key;
            let to = p.out + (workgroup.z * p.time + first_query + query) * p.time + first_key + key;
            memory[to >> 2u][to & 3u] = p.scale * sums[query * SUMS_STRIDE + at / 4u][at % 4u];
        }
    }
}
