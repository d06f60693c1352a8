//! WebAssembly's 128-bit vectors as a [`Simd`] token.
//!
//! A module either has these instructions or is refused by the browser, so nothing is detected at run time:
//! the token exists in builds for `simd128`. Builds for `relaxed-simd` round multiply-adds once where the
//! machine does. A vector is a pair of registers; x86 has 16 of them, so tiles are those of eight pairs.

use crate::simd::{ByteSimd, Simd};
use std::arch::wasm32::*;

/// Proof that the module is built for `simd128`.
#[derive(Clone, Copy, Debug)]
pub struct Simd128(pub(crate) ());

/// Name of the instruction set.
pub const NAME: &str = if cfg!(target_feature = "relaxed-simd") { "relaxed-simd" } else { "simd128" };

/// Eight floats, or eight comparisons.
#[derive(Clone, Copy, Debug)]
pub struct Floats(v128, v128);

/// 32 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Integers(v128, v128);

impl Floats {
    #[inline(always)]
    fn each(self, f: impl Fn(v128) -> v128) -> Floats {
        Floats(f(self.0), f(self.1))
    }
    #[inline(always)]
    fn zip(self, b: Floats, f: impl Fn(v128, v128) -> v128) -> Floats {
        Floats(f(self.0, b.0), f(self.1, b.1))
    }
}

impl Integers {
    #[inline(always)]
    fn each(self, f: impl Fn(v128) -> v128) -> Integers {
        Integers(f(self.0), f(self.1))
    }
}

/// `a * b + c`
#[inline(always)]
fn multiply_add(a: v128, b: v128, c: v128) -> v128 {
    #[cfg(target_feature = "relaxed-simd")]
    return f32x4_relaxed_madd(a, b, c);
    #[cfg(not(target_feature = "relaxed-simd"))]
    f32x4_add(f32x4_mul(a, b), c)
}

/// Four half-precision numbers, one in the lower half of each lane, as floats.
#[inline(always)]
fn widen_f16(x: v128) -> v128 {
    let magnitude = v128_and(x, u32x4_splat(0x7fff));
    // The exponent of a float has three bits more and its bias is 112 more; subnormal numbers become normal.
    let scaled = f32x4_mul(u32x4_shl(magnitude, 13), f32x4_splat(f32::from_bits((112 + 127) << 23)));
    let is_special = u32x4_gt(magnitude, u32x4_splat(0x7bff));
    let special = v128_and(is_special, u32x4_splat(0x7f80_0000));
    let sign = u32x4_shl(v128_and(x, u32x4_splat(0x8000)), 16);
    v128_or(v128_or(scaled, special), sign)
}

/// Reads the first `n <= 4` floats; the other lanes are zero.
///
/// # Safety
/// `p` must be valid for reading `n` floats.
#[inline(always)]
unsafe fn load_some(p: *const f32, n: usize) -> v128 {
    // SAFETY: each arm reads `n` floats.
    unsafe {
        match n {
            0 => f32x4_splat(0.0),
            1 => v128_load32_zero(p.cast()),
            2 => v128_load64_zero(p.cast()),
            3 => v128_load32_lane::<2>(v128_load64_zero(p.cast()), p.add(2).cast()),
            _ => v128_load(p.cast()),
        }
    }
}

/// Writes the first `n <= 4` lanes.
///
/// # Safety
/// `p` must be valid for writing `n` floats.
#[inline(always)]
unsafe fn store_some(p: *mut f32, v: v128, n: usize) {
    // SAFETY: each arm writes `n` floats.
    unsafe {
        match n {
            0 => {}
            1 => v128_store32_lane::<0>(v, p.cast()),
            2 => v128_store64_lane::<0>(v, p.cast()),
            3 => {
                v128_store64_lane::<0>(v, p.cast());
                v128_store32_lane::<2>(v, p.add(2).cast());
            }
            _ => v128_store(p.cast(), v),
        }
    }
}

/// Transposes four rows of four floats.
///
/// # Safety
/// `from` must be valid for reading four rows of four floats, `to` for writing them.
#[inline(always)]
unsafe fn transpose_four(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // SAFETY: the caller vouches for four rows of four floats.
    unsafe {
        let row = |i: usize| v128_load(from.add(i * from_stride).cast());
        let (a, b, c, d) = (row(0), row(1), row(2), row(3));
        let (low, high) = (i32x4_shuffle::<0, 4, 1, 5>(a, b), i32x4_shuffle::<2, 6, 3, 7>(a, b));
        let (low2, high2) = (i32x4_shuffle::<0, 4, 1, 5>(c, d), i32x4_shuffle::<2, 6, 3, 7>(c, d));
        let columns = [
            i64x2_shuffle::<0, 2>(low, low2),
            i64x2_shuffle::<1, 3>(low, low2),
            i64x2_shuffle::<0, 2>(high, high2),
            i64x2_shuffle::<1, 3>(high, high2),
        ];
        for (j, column) in columns.into_iter().enumerate() {
            v128_store(to.add(j * to_stride).cast(), column);
        }
    }
}

impl Simd for Simd128 {
    const LANES: usize = 8;
    const REGISTERS: usize = 8;
    type V = Floats;
    type M = Floats;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        Floats(f32x4_splat(x), f32x4_splat(x))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for eight floats at `p`.
        unsafe { Floats(v128_load(p.cast()), v128_load(p.add(4).cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for eight floats at `p`.
        unsafe {
            v128_store(p.cast(), v.0);
            v128_store(p.add(4).cast(), v.1);
        }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: the caller vouches for `n` floats.
        unsafe {
            match n.checked_sub(4) {
                None => Floats(load_some(p, n), f32x4_splat(0.0)),
                Some(rest) => Floats(v128_load(p.cast()), load_some(p.wrapping_add(4), rest)),
            }
        }
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, v: Self::V, n: usize) {
        // SAFETY: the caller vouches for `n` floats.
        unsafe {
            match n.checked_sub(4) {
                None => store_some(p, v.0, n),
                Some(rest) => {
                    v128_store(p.cast(), v.0);
                    store_some(p.wrapping_add(4), v.1, rest);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller vouches for eight numbers at `p`.
        let halves = unsafe { v128_load(p.cast()) };
        Floats(widen_f16(u32x4_extend_low_u16x8(halves)), widen_f16(u32x4_extend_high_u16x8(halves)))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller vouches for eight numbers at `p`.
        let halves = unsafe { v128_load(p.cast()) };
        let widened = Floats(u32x4_extend_low_u16x8(halves), u32x4_extend_high_u16x8(halves));
        widened.each(|x| u32x4_shl(x, 16))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::V {
        // SAFETY: the caller vouches for eight bytes at `p`.
        let words = unsafe { i16x8_load_extend_i8x8(p) };
        Floats(i32x4_extend_low_i16x8(words), i32x4_extend_high_i16x8(words)).each(|a| f32x4_convert_i32x4(a))
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: Self::V) -> Self::V {
        // NaN becomes 0.
        let numbers = self.round(v).each(|a| i32x4_trunc_sat_f32x4(a));
        let words = i16x8_narrow_i32x4(numbers.0, numbers.1);
        // SAFETY: the caller vouches for eight bytes at `p`.
        unsafe { v128_store64_lane::<0>(i8x16_narrow_i16x8(words, words), p.cast()) };
        numbers.each(|a| f32x4_convert_i32x4(a))
    }
    #[inline(always)]
    unsafe fn splat_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller vouches for the number at `p`.
        let x = widen_f16(u32x4_splat(u32::from(unsafe { p.read_unaligned() })));
        Floats(x, x)
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        a.zip(b, |a, b| f32x4_add(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        a.zip(b, |a, b| f32x4_sub(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        a.zip(b, |a, b| f32x4_mul(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        a.zip(b, |a, b| f32x4_div(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        Floats(multiply_add(a.0, b.0, c.0), multiply_add(a.1, b.1, c.1))
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // `f32x4_pmin(b, a)` is `a < b ? a : b`, so where `a` is NaN it is `b`.
        a.zip(b, |a, b| f32x4_pmin(b, a))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        a.zip(b, |a, b| f32x4_pmax(b, a))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        a.each(|a| f32x4_sqrt(a))
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        a.each(|a| f32x4_nearest(a))
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        a.each(|a| f32x4_abs(a))
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V {
        a.zip(sign, |a, sign| v128_bitselect(sign, a, u32x4_splat(1 << 31)))
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V {
        a.zip(n, |a, n| {
            // Adding 1.5 · 2^23 puts the integer into the lower bits. Conversions to integers saturate, which
            // takes several instructions on x86.
            let n = f32x4_add(n, f32x4_splat(12_582_912.0));
            f32x4_mul(a, u32x4_shl(u32x4_add(n, u32x4_splat(127)), 23))
        })
    }
    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V) -> Self::M {
        a.zip(b, |a, b| f32x4_lt(a, b))
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V {
        Floats(v128_bitselect(a.0, b.0, m.0), v128_bitselect(a.1, b.1, m.1))
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        let four = f32x4_add(a.0, a.1);
        let two = f32x4_add(four, i64x2_shuffle::<1, 1>(four, four));
        f32x4_extract_lane::<0>(two) + f32x4_extract_lane::<1>(two)
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        // `f32x4_pmax(m, x)` is `m < x ? x : m`, so NaN is passed over.
        let four = f32x4_pmax(f32x4_pmax(f32x4_splat(f32::NEG_INFINITY), a.0), a.1);
        let two = f32x4_pmax(four, i64x2_shuffle::<1, 1>(four, four));
        f32x4_extract_lane::<0>(two).max(f32x4_extract_lane::<1>(two))
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for (i, j) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
            // SAFETY: a quarter of the square that the caller vouches for.
            unsafe {
                let (from, to) = (from.add(i * from_stride + j), to.add(j * to_stride + i));
                transpose_four(from, from_stride, to, to_stride);
            }
        }
    }
    #[inline(always)]
    fn prefetch(self, _: *const f32) {}
    /// One step per iteration. Compilers of browsers keep the order of instructions, and of four steps at
    /// once they would spill most registers: 26 GFLOP/s became 42, with relaxed SIMD 30 became 53.
    #[inline(always)]
    unsafe fn steps<const ROWS: usize, const VECTORS: usize>(
        self,
        k: usize,
        (a, a_stride): (*const f32, usize),
        (b, b_stride): (*const f32, usize),
        _: Option<(*const f32, usize)>,
        sums: &mut [[Self::V; VECTORS]; ROWS],
    ) {
        for u in 0..k {
            // SAFETY: `a` and `b` have `k` columns and rows.
            unsafe { self.step(a.add(u), a_stride, b.add(u * b_stride), sums) };
        }
    }
}

impl ByteSimd for Simd128 {
    const TILE_ROWS: usize = 4;
    // Two rows as wide as a panel would need all registers of x86 for sums.
    const WIDE_ROWS: usize = 1;
    type I = Integers;

    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        Integers(i32x4_splat(x), i32x4_splat(x))
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::I {
        // SAFETY: the caller vouches for 32 bytes at `p`.
        unsafe { Integers(v128_load(p.cast()), v128_load(p.add(16).cast())) }
    }
    #[inline(always)]
    fn low_nibbles(self, a: Self::I) -> Self::I {
        a.each(|a| v128_and(a, u8x16_splat(0x0f)))
    }
    #[inline(always)]
    fn high_nibbles(self, a: Self::I) -> Self::I {
        a.each(|a| u8x16_shr(a, 4))
    }
    #[inline(always)]
    fn or_bits(self, low: Self::I, high: Self::I, left: i32, mask: u8) -> Self::I {
        let mask = u8x16_splat(mask);
        let or = |low, high| {
            let shifted =
                if left >= 0 { u32x4_shl(high, left as u32) } else { u32x4_shr(high, left.unsigned_abs()) };
            v128_or(low, v128_and(shifted, mask))
        };
        Integers(or(low.0, high.0), or(low.1, high.1))
    }
    #[inline(always)]
    fn dot4(self, sum: Self::I, w: Self::I, x: i32) -> Self::I {
        // As pairs of 16 bits: the instruction for bytes needs one factor of seven bits.
        let x = i32x4_splat(x);
        let (even, odd) = (i16x8_shr(i16x8_shl(x, 8), 8), i16x8_shr(x, 8));
        let four = |sum, w| {
            let (w_even, w_odd) = (v128_and(w, u16x8_splat(0xff)), u16x8_shr(w, 8));
            i32x4_add(sum, i32x4_add(i32x4_dot_i16x8(w_even, even), i32x4_dot_i16x8(w_odd, odd)))
        };
        Integers(four(sum.0, w.0), four(sum.1, w.1))
    }
    #[inline(always)]
    fn to_floats(self, a: Self::I) -> Self::V {
        Floats(f32x4_convert_i32x4(a.0), f32x4_convert_i32x4(a.1))
    }
}
