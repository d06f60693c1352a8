// x / √(mean(x²) + eps) · weight for each row of c elements.
//
// One workgroup of 128 threads per row, which is read twice. With FOURS, c is a multiple of 4, and elements
// are accessed as vectors of four.

struct Params {
    x: u32,
    out: u32,
    rows: u32,
    c: u32,
    weight: u32,
    eps: f32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<${TYPE}>;
@group(1) @binding(1) var<storage, read> vectors: array<${TYPE}>;

//@ include reduce

@compute @workgroup_size(128)
fn main(
//@ include reduce_inputs
) {
    let row = group.y * groups.x + group.x;
    if row >= p.rows {
        return;
    }
    let n = p.c / ${WIDTH}u;
    let x = p.x / ${WIDTH}u + row * n;
    let out = p.out / ${WIDTH}u + row * n;
    let weight = p.weight / ${WIDTH}u;
    var squares = 0.0;
    for (var i = lane; i < n; i += 128u) {
        let v = memory[x + i];
//@ if FOURS
        squares += dot(v, v);
//@ else
        squares = fma(v, v, squares);
//@ end
    }
    let factor = 1.0 / sqrt(total(squares, ${REDUCE_ARGUMENTS}) / f32(p.c) + p.eps);
    for (var i = lane; i < n; i += 128u) {
        memory[out + i] = memory[x + i] * factor * vectors[weight + i];
    }
}
