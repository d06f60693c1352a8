// Source signal of a vocoder: f0 [B, T], phases [B, H], noise [B, T · hop, H] → out like noise.
//
//   r = f0 · (h + 1) / rate, in f32;  cycles = Σ r up to the sample, rounded to f32, modulo 1
//   out = f0 > 10 ? 0.1 · sin(2π · cycles + phase) + 0.003 · noise : 0.1 / 3 · noise
//
// A workgroup has one frame. It sums r over all frames before, as integers of 64 bits in units of 2⁻⁴²
// cycles: exact in any order, where r is above 2⁻¹⁹.

struct Params {
    f0: u32,
    phases: u32,
    noise: u32,
    out: u32,
    time: u32,
    hop: u32,
    rate: u32,
}

var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> memory: array<f32>;

//@ include math
//@ include angles

const HARMONICS = ${HARMONICS}u;

// 16-bit parts of the sums, lowest first.
var<workgroup> parts: array<atomic<u32>, ${PARTS}>;
// Low and high words of the sum before this frame, and of r.
var<workgroup> before: array<vec2<u32>, ${HARMONICS}>;
var<workgroup> steps: array<vec2<u32>, ${HARMONICS}>;

fn add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn times(a: vec2<u32>, n: u32) -> vec2<u32> {
    return vec2<u32>(a.x * n, a.y * n + mul_high(a.x, n));
}

// f0 · (h + 1) / rate, rounded to f32, in units of 2⁻⁴². The division of devices may be off; what it leaves
// of the dividend corrects it.
fn cycles_per_sample(f0: f32, h: u32) -> vec2<u32> {
    let product = abs(f0 * f32(h + 1u));
    let quotient = product / f32(p.rate);
    if !(quotient > 1.0e-30) {
        return vec2<u32>();
    }
    let dividend = bitcast<u32>(product);
    let bits = bitcast<u32>(quotient);
    var mantissa = (bits & 0x7fffffu) | 0x800000u;
    let exponent = i32(bits >> 23u) - 150;
    // In units of the quotient's last place times rate; a few times rate, so that the low word has it.
    let shift = u32(i32(dividend >> 23u) - 150 - exponent) & 31u;
    var rest = bitcast<i32>((((dividend & 0x7fffffu) | 0x800000u) << shift) - mantissa * p.rate);
    let rate = i32(p.rate);
    for (var i = 0; i < 4; i++) {
        let odd = (mantissa & 1u) == 1u;
        if 2 * rest > rate || (2 * rest == rate && odd) {
            mantissa += 1u;
            rest -= rate;
        } else if 2 * rest < -rate || (2 * rest == -rate && odd) {
            mantissa -= 1u;
            rest += rate;
        }
    }
    let up = exponent + 42;
    if up >= 32 {
        return vec2<u32>(0u, mantissa << u32(min(up - 32, 31)));
    }
    if up > 0 {
        return vec2<u32>(mantissa << u32(up), mantissa >> (32u - u32(up)));
    }
    // Half of the last unit is added before it is dropped.
    return vec2<u32>((((mantissa << 1u) >> u32(min(-up, 31))) + 1u) >> 1u, 0u);
}

// The number as f32, halves to even, modulo 1.
fn fraction(n: vec2<u32>) -> f32 {
    let length = select(32u - countLeadingZeros(n.x), 64u - countLeadingZeros(n.y), n.y > 0u);
    var kept = n.x;
    var dropped = 0u;
    if length > 24u {
        dropped = length - 24u;
        // The kept bits, and the dropped ones as the upper bits of a word: below, at or above a half.
        var rest: u32;
        var sticky = false;
        if dropped < 32u {
            kept = (n.x >> dropped) | (n.y << (32u - dropped));
            rest = n.x << (32u - dropped);
        } else {
            kept = n.y >> (dropped - 32u);
            rest = n.x;
            if dropped > 32u {
                rest = (n.y << (64u - dropped)) | (n.x >> (dropped - 32u));
                sticky = (n.x << (64u - dropped)) != 0u;
            }
        }
        if rest > 0x80000000u || (rest == 0x80000000u && (sticky || (kept & 1u) == 1u)) {
            kept += 1u;
        }
    }
    let x = f32(kept) * bitcast<f32>((127u + dropped - 42u) << 23u);
    return x - floor(x);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let frame = workgroup.x;
    let f0 = p.f0 + workgroup.y * p.time;
    for (var i = lane; i < 4u * HARMONICS; i += 256u) {
        atomicStore(&parts[i], 0u);
    }
    workgroupBarrier();
    for (var h = 0u; h < HARMONICS; h++) {
        var sum = vec2<u32>();
        for (var t = lane; t < frame; t += 256u) {
            sum = add(sum, times(cycles_per_sample(memory[f0 + t], h), p.hop));
        }
        atomicAdd(&parts[4u * h], sum.x & 0xffffu);
        atomicAdd(&parts[4u * h + 1u], sum.x >> 16u);
        atomicAdd(&parts[4u * h + 2u], sum.y & 0xffffu);
        atomicAdd(&parts[4u * h + 3u], sum.y >> 16u);
    }
    workgroupBarrier();
    let pitch = memory[f0 + frame];
    for (var h = lane; h < HARMONICS; h += 256u) {
        var sum = vec2<u32>(atomicLoad(&parts[4u * h]), 0u);
        let second = atomicLoad(&parts[4u * h + 1u]);
        sum = add(sum, vec2<u32>(second << 16u, second >> 16u));
        let high = atomicLoad(&parts[4u * h + 2u]) + (atomicLoad(&parts[4u * h + 3u]) << 16u);
        before[h] = vec2<u32>(sum.x, sum.y + high);
        steps[h] = cycles_per_sample(pitch, h);
    }
    workgroupBarrier();
    let first = (workgroup.y * p.time + frame) * p.hop * HARMONICS;
    for (var i = lane; i < p.hop * HARMONICS; i += 256u) {
        let h = i % HARMONICS;
        let noise = memory[p.noise + first + i];
        var y = noise * 0.033333335;
        if pitch > 10.0 {
            let cycles = fraction(add(before[h], times(steps[h], i / HARMONICS + 1u)));
            let phase = memory[p.phases + workgroup.y * HARMONICS + h];
            y = fma(0.1, sine(fma(cycles, 6.2831855, phase), 0.0), 0.003 * noise);
        }
        memory[p.out + first + i] = y;
    }
}
