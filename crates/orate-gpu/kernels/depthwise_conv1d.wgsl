// Depthwise convolution; with NORM each row is then layer-normed.
//
//   x [B, T, C] → out [B, T, C],  out[t, c] = bias[c] + Σ w[tap, c] · x[clamp(t + tap·dilation − left), c]
//
// HISTORY: rows before x come from a history [B, left, C]. ZERO: rows beyond the ends are zeros, not the
// edges repeated. LENGTHS: sequences have lengths [B], and rows after them are read as their last.
//
// NORM: one workgroup of 128 threads per row, of which a thread holds KEPT vectors of four in registers: C is
// a multiple of 4, up to 512 · KEPT. Otherwise one thread per element.

struct Params {
    x: u32,
    out: u32,
    // Rows with NORM, else elements.
    n: u32,
    c: u32,
    time: u32,
    dilation: u32,
    left: u32,
    weight: u32,
    bias: u32,
    norm_weight: u32,
    norm_bias: u32,
    eps: f32,
    // HISTORY or LENGTHS
    beside: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<${TYPE}>;
@group(1) @binding(1) var<storage, read> vectors: array<${TYPE}>;

// Whether a tap reads a row of x, not zeros.
fn is_there(row: u32, tap: u32) -> bool {
//@ if ZERO
    return row % p.time + tap * p.dilation - p.left < p.time;
//@ else
    return true;
//@ end
}

// First element of the row that a tap of row `row` reads.
fn source(row: u32, tap: u32) -> u32 {
    let t = row % p.time;
//@ if HISTORY
    if t + tap * p.dilation < p.left {
        return p.beside + (row / p.time * p.left + t + tap * p.dilation) * p.c;
    }
//@ end
    var end = i32(p.time);
//@ if LENGTHS
    let which = p.beside + row / p.time;
//@ if KEPT
    end = clamp(bitcast<vec4<i32>>(memory[which >> 2u])[which & 3u], 1, end);
//@ else
    end = clamp(bitcast<i32>(memory[which]), 1, end);
//@ end
//@ end
    let at = clamp(i32(t + tap * p.dilation) - i32(p.left), 0, end - 1);
    return p.x + (row - t + u32(at)) * p.c;
}

//@ if KEPT
//@ include reduce

fn finished(x: vec4<f32>, c: u32) -> vec4<f32> {
    return x;
}

@compute @workgroup_size(128)
fn main(
//@ include reduce_inputs
) {
    let row = group.y * groups.x + group.x;
    if row >= p.n {
        return;
    }
    let out = p.out + row * p.c;
//@ for tap TAPS
    let from_${tap} = source(row, ${tap}u);
//@ end
//@ for i KEPT
    let c_${i} = 4u * (lane + ${i}u * 128u);
    var x_${i} = vec4<f32>();
    if c_${i} < p.c {
//@ for tap TAPS
        let w_${tap} = vectors[(p.weight + ${tap}u * p.c + c_${i}) >> 2u];
        let y_${tap} = select(vec4<f32>(), memory[(from_${tap} + c_${i}) >> 2u], is_there(row, ${tap}u));
//@ end
        x_${i} = vectors[(p.bias + c_${i}) >> 2u];
//@ for tap TAPS
        x_${i} = fma(w_${tap}, y_${tap}, x_${i});
//@ end
    }
//@ end
//@ include norm_kept
}
//@ else
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
    let row = i / p.c;
    let c = i % p.c;
    var sum = vectors[p.bias + c];
    for (var tap = 0u; tap < ${TAPS}u; tap++) {
        let x = select(0.0, memory[source(row, tap) + c], is_there(row, tap));
        sum = fma(vectors[p.weight + tap * p.c + c], x, sum);
    }
    memory[p.out + i] = sum;
}
//@ end
