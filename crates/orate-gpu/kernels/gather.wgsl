// Rows of an embedding table: out[i, :] = table[ids[i], :], see table_row.wgsl. ROW_AT: the table is a value
// with `rows` rows for each id, and ids must not be negative.

struct Params {
    ids: u32,
    table: u32,
    out: u32,
    n: u32,
    // Width and rows of the table.
    c: u32,
    rows: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<u32>;
//@ if ROW_AT
//@ else
@group(1) @binding(0) var<storage, read> matrix: array<u32>;
//@ include table_row
//@ end

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
    let id = bitcast<i32>(memory[p.ids + i / p.c]);
//@ if ROW_AT
    let at = i / p.c * p.rows + u32(clamp(id, 0, i32(p.rows) - 1));
    memory[p.out + i] = memory[p.table + at * p.c + i % p.c];
//@ else
    memory[p.out + i] = bits_of_table(p.table, row_of_table(id, p.rows) * p.c + i % p.c);
//@ end
}
