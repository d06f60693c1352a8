// Rounding to f16 and bf16, from bits to bits, to nearest even. In integers, because devices may round
// differently and flush tiny numbers to zero.

fn f16_bits(bits: u32) -> u32 {
    let sign = (bits >> 16u) & 0x8000u;
    let a = bits & 0x7fffffffu;
    if a > 0x7f800000u {
        return sign | 0x7e00u;
    }
    // From the midpoint between 65504 and 2^16 on.
    if a >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    if a >= 0x38800000u {
        return sign | ((a + 0xfffu + ((a >> 13u) & 1u) - 0x38000000u) >> 13u);
    }
    // Below 2^-14: multiples of 2^-24.
    let exponent = a >> 23u;
    if exponent < 102u {
        return sign;
    }
    let mantissa = (a & 0x7fffffu) | 0x800000u;
    let shift = 126u - exponent;
    let whole = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let middle = 1u << (shift - 1u);
    return sign | (whole + select(0u, 1u, rest > middle || (rest == middle && (whole & 1u) == 1u)));
}

fn bf16_bits(bits: u32) -> u32 {
    if (bits & 0x7fffffffu) > 0x7f800000u {
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// Stored scale of 32 numbers, from their largest magnitude.
fn scale_bits(largest: f32) -> u32 {
    return f16_bits(bitcast<u32>(min(largest / 127.0, 65504.0)));
}

// Factor that turns numbers into bytes.
fn inverse_of(scale: u32) -> f32 {
    let x = unpack2x16float(scale).x;
    return select(0.0, 1.0 / x, x > 0.0);
}

// A number as one of the four bytes of a word.
fn byte_bits(x: f32, inverse: f32, place: u32) -> u32 {
    let byte = i32(clamp(round(x * inverse), -127.0, 127.0));
    return (bitcast<u32>(byte) & 0xffu) << (8u * place);
}
