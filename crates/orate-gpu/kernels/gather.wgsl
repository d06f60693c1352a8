// Rows of an embedding table: out[i, :] = table[ids[i], :]. Negative ids count from the end; ids out of range
// are clamped, so that nothing is read out of bounds. ROW_AT: the table is a value with `rows` rows for each
// id, and ids must not be negative. HALVES: the table is in bf16, or with F16 in f16, two elements of a row
// per word.

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
@group(1) @binding(0) var<storage, read> matrix: array<u32>;

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
    let rows = i32(p.rows);
    let id = bitcast<i32>(memory[p.ids + i / p.c]);
//@ if ROW_AT
    let at = i / p.c * p.rows + u32(clamp(id, 0, rows - 1));
    memory[p.out + i] = memory[p.table + at * p.c + i % p.c];
//@ else
    let row = clamp(select(id, max(id, -rows) + rows, id < 0), 0, rows - 1);
    let at = u32(row) * p.c + i % p.c;
//@ if HALVES
    let word = matrix[p.table + at / 2u];
//@ if F16
    memory[p.out + i] = bitcast<u32>(unpack2x16float(word)[at & 1u]);
//@ else
    memory[p.out + i] = select(word << 16u, word & 0xffff0000u, (at & 1u) != 0u);
//@ end
//@ else
    memory[p.out + i] = matrix[p.table + at];
//@ end
//@ end
}
