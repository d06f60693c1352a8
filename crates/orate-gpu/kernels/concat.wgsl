// Concatenates PARTS arrays of the same size, n elements of 4 bytes together, in blocks of `block` each.

struct Params {
    out: u32,
    n: u32,
    block: u32,
    // Elements of a row of the result, of which these arrays have the part that begins at `first`.
    stride: u32,
    first: u32,
//@ for i PARTS
    from_${i}: u32,
//@ end
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
    let own = i % (${PARTS}u * p.block);
    let row = i / (${PARTS}u * p.block);
    var source = p.from_0;
//@ for i PARTS
    source = select(source, p.from_${i}, own / p.block == ${i}u);
//@ end
    memory[p.out + row * p.stride + p.first + own] = memory[source + row * p.block + own % p.block];
}
