// What kernels share that write in place: a state, the rows for it, and where they begin.

struct Params {
    state: u32,
    rows: u32,
    // OPERAND: where they begin, [B]
    first: u32,
    // Threads that have something to do.
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

// The row of the state that the first of batch row b replaces. Places that are out of range move to the
// nearest that is there: the caller checks positions, and no foreign memory is written.
fn first_of(b: u32) -> u32 {
//@ if OPERAND
    return u32(clamp(bitcast<i32>(memory[p.first + b]), 0, i32(p.capacity - p.time)));
//@ else
    return p.at;
//@ end
}
