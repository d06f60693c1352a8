// Sums of table rows: out[i, :] = Σ tables[q, ids[i, first + q], :] over `count` tables. Ids out of range are
// clamped, so that nothing is read out of bounds. One thread per element.

struct Params {
    ids: u32,
    tables: u32,
    out: u32,
    n: u32,
    // Width and rows of a table.
    c: u32,
    rows: u32,
    count: u32,
    // Ids per row, and the index of the first table's id among them.
    ids_per_row: u32,
    first: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<u32>;
@group(1) @binding(0) var<storage, read> matrix: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i >= p.n {
        return;
    }
    let ids = p.ids + i / p.c * p.ids_per_row + p.first;
    var sum = 0.0;
    for (var q = 0u; q < p.count; q++) {
        let row = u32(clamp(bitcast<i32>(memory[ids + q]), 0, i32(p.rows) - 1));
        sum += matrix[p.tables + (q * p.rows + row) * p.c + i % p.c];
    }
    memory[p.out + i] = bitcast<u32>(sum);
}
