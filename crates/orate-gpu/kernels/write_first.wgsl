// Shared by kernels that write in place: a state, the rows for it, and their position.

struct Params {
    state: u32,
    rows: u32,
    // OPERAND: position of the rows, [B]
    first: u32,
    // Number of threads that have work.
    n: u32,
    // Rows of the state, rows to write, and their width.
    capacity: u32,
    time: u32,
    c: u32,
    // Without OPERAND: position of the rows.
    at: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<u32>;

// Row of the state that the first row of batch row b replaces. Positions out of range are clamped, so that
// nothing is written out of bounds; the caller checks positions.
fn first_of(b: u32) -> u32 {
//@ if OPERAND
    return u32(clamp(bitcast<i32>(memory[p.first + b]), 0, i32(p.capacity - p.time)));
//@ else
    return p.at;
//@ end
}
