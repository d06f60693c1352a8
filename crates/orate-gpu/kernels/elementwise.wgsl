// Pointwise ops on n elements, rows of c: y = f(x), with one of the conditions below set.
//
//   ADD      x + other             ADD_ROW  x + other[i mod c]
//   MUL_ROW  x · other[i mod c]
//   BIAS     x + bias[i mod c]     AFFINE   x · scale[i mod c] + shift[i mod c]
//   COMBINE  a · x + b · other     SCALE    a · x
//   MUL      x · other             SNAKE    x + gain[i mod c] · sin²(frequency[i mod c] · x)
//   MASK     x where the row's time is below its length, else 0
//   otherwise the activation
//
// One thread per element.

struct Params {
    x: u32,
    other: u32,
    out: u32,
    n: u32,
    c: u32,
    // Rows per sequence, for MASK.
    time: u32,
    // Offsets of the first and the second vector.
    weight: u32,
    second: u32,
    a: f32,
    b: f32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
@group(1) @binding(1) var<storage, read> vectors: array<f32>;

//@ include activation

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
    let x = memory[p.x + i];
//@ if ADD
    memory[p.out + i] = x + memory[p.other + i];
//@ end
//@ if ADD_ROW
    memory[p.out + i] = x + memory[p.other + i % p.c];
//@ end
//@ if BIAS
    memory[p.out + i] = x + vectors[p.weight + i % p.c];
//@ end
//@ if AFFINE
    memory[p.out + i] = x * vectors[p.weight + i % p.c] + vectors[p.second + i % p.c];
//@ end
//@ if MUL
    memory[p.out + i] = x * memory[p.other + i];
//@ end
//@ if MUL_ROW
    memory[p.out + i] = x * memory[p.other + i % p.c];
//@ end
//@ if SNAKE
    memory[p.out + i] = fma(vectors[p.second + i % p.c], squared_sine(vectors[p.weight + i % p.c] * x), x);
//@ end
//@ if COMBINE
    memory[p.out + i] = p.a * x + p.b * memory[p.other + i];
//@ end
//@ if SCALE
    memory[p.out + i] = p.a * x;
//@ end
//@ if MASK
    let row = i / p.c;
    let len = bitcast<i32>(memory[p.other + row / p.time]);
    memory[p.out + i] = select(0.0, x, i32(row % p.time) < len);
//@ end
//@ if ACTIVATE
    var slope = 0.0;
//@ if PRELU
    slope = vectors[p.weight];
//@ end
    memory[p.out + i] = activate(x, slope);
//@ end
}
