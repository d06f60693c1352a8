// What is written in place. One thread per element of the rows, or per mark.
//
//   MARK        state [B, V], ids [B]: a 1 at each id
//   otherwise   state [B, N, C], rows [B, T, C]: rows from first[b] on are replaced
//
// Places that are out of range move to the nearest that is there: whoever counts checks, and no foreign memory is written.

struct Params {
    state: u32,
    rows: u32,
    // OPERAND: where they begin, [B]
    first: u32,
    n: u32,
    // Rows of the state and of what is written, and their width.
    capacity: u32,
    time: u32,
    c: u32,
    // Otherwise they begin here.
    at: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<u32>;

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
//@ if MARK
    let id = bitcast<i32>(memory[p.rows + i]);
    if id >= 0 && u32(id) < p.c {
        memory[p.state + i * p.c + u32(id)] = 0x3f800000u;
    }
//@ else
    let b = i / (p.time * p.c);
    var first = p.at;
//@ if OPERAND
    first = u32(clamp(bitcast<i32>(memory[p.first + b]), 0, i32(p.capacity - p.time)));
//@ end
    memory[p.state + (b * p.capacity + first) * p.c + i % (p.time * p.c)] = memory[p.rows + i];
//@ end
}
