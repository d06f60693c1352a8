// Writes in place. One thread per element of the rows, or per mark.
//
//   MARK        state [B, V], ids [B]: a 1 at each id
//   otherwise   state [B, N, C], rows [B, T, C]: rows from first[b] on are replaced

//@ include write_first

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
    memory[p.state + (b * p.capacity + first_of(b)) * p.c + i % (p.time * p.c)] = memory[p.rows + i];
//@ end
}
