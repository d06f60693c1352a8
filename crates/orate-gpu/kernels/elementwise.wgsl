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
// One thread per element, or with FOUR for four of a row, whose length and places are multiples of four.

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
//@ if FOUR
alias Number = vec4<f32>;
const SHIFT = 2u;
//@ else
alias Number = f32;
const SHIFT = 0u;
//@ end
@group(0) @binding(0) var<storage, read_write> memory: array<Number>;
@group(1) @binding(1) var<storage, read> vectors: array<Number>;

//@ include activation

fn other(i: u32) -> Number {
    return memory[(p.other >> SHIFT) + i];
}

// Those of the first and of the second vector.
fn first_of(i: u32) -> Number {
    return vectors[(p.weight >> SHIFT) + i % p.c];
}

fn second_of(i: u32) -> Number {
    return vectors[(p.second >> SHIFT) + i % p.c];
}

fn squares_of_sines(x: Number) -> Number {
//@ if FOUR
    return Number(squared_sine(x.x), squared_sine(x.y), squared_sine(x.z), squared_sine(x.w));
//@ else
    return squared_sine(x);
//@ end
}

fn activated(x: Number, slope: f32) -> Number {
//@ if FOUR
    return Number(activate(x.x, slope), activate(x.y, slope), activate(x.z, slope), activate(x.w, slope));
//@ else
    return activate(x, slope);
//@ end
}

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
    let x = memory[(p.x >> SHIFT) + i];
    let to = (p.out >> SHIFT) + i;
//@ if ADD
    memory[to] = x + other(i);
//@ end
//@ if ADD_ROW
    memory[to] = x + other(i % p.c);
//@ end
//@ if BIAS
    memory[to] = x + first_of(i);
//@ end
//@ if AFFINE
    memory[to] = x * first_of(i) + second_of(i);
//@ end
//@ if MUL
    memory[to] = x * other(i);
//@ end
//@ if MUL_ROW
    memory[to] = x * other(i % p.c);
//@ end
//@ if SNAKE
    memory[to] = fma(second_of(i), squares_of_sines(first_of(i) * x), x);
//@ end
//@ if COMBINE
    memory[to] = p.a * x + p.b * other(i);
//@ end
//@ if SCALE
    memory[to] = p.a * x;
//@ end
//@ if MASK
    let row = i / p.c;
    let len = bitcast<i32>(memory[p.other + row / p.time]);
    memory[to] = select(0.0, x, i32(row % p.time) < len);
//@ end
//@ if ACTIVATE
    var slope = 0.0;
//@ if PRELU
//@ if FOUR
    slope = vectors[p.weight >> SHIFT].x;
//@ else
    slope = vectors[p.weight];
//@ end
//@ end
    memory[to] = activated(x, slope);
//@ end
}
