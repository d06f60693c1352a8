//! Products of bytes: [`ByteSimd`].

use super::tile::{columns, six_rows};
use super::{Floats, Neon, dots};
use crate::simd::{ByteSimd, GROUP_BYTES, Simd};
use std::arch::aarch64::*;
use std::arch::asm;

/// 32 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Integers(int32x4_t, int32x4_t);

/// Bits of a byte that are a weight.
mod part {
    pub const ALL: u8 = 0;
    pub const LOW: u8 = 1;
    pub const HIGH: u8 = 2;
}

/// [`dot_four`] of six rows and two vectors.
///
/// # Safety
/// As for [`dot_four`].
#[inline(always)]
unsafe fn dot_four_of_six_rows<const ROWS: usize, const VECTORS: usize, const PART: u8>(
    w: &mut *const u8,
    x: &mut [*const i8; ROWS],
    dots: &mut [[Integers; VECTORS]; ROWS],
) {
    const { assert!(GROUP_BYTES == 32 + 96) };
    macro_rules! multiply {
        ($($extract:literal)?) => {
            six_rows!(
                dots,
                load: ".arch_extension dotprod" "ldr {24:q}, [{x0}], #16" "ldr {25:q}, [{x1}], #16"
                    "ldr {26:q}, [{x2}], #16" "ldr {27:q}, [{x3}], #16" "ldr {28:q}, [{x4}], #16"
                    "ldr {29:q}, [{x5}], #16",
                low: ["ldp {x:q}, {y:q}, [{w}], #32" $(, "\n", $extract)?],
                high: ["ldp {x:q}, {y:q}, [{w}], #96" $(, "\n", $extract)?],
                multiply: "sdot" "16b" "4b",
                x0 = inout(reg) x[0], x1 = inout(reg) x[1], x2 = inout(reg) x[2],
                x3 = inout(reg) x[3], x4 = inout(reg) x[4], x5 = inout(reg) x[5],
                w = inout(reg) *w,
            )
        };
    }
    // SAFETY: the caller vouches for 16 bytes of each row of x and for four groups of weights.
    unsafe {
        match PART {
            part::LOW => multiply!(
                "shl {x:v}.16b, {x:v}.16b, #4\nshl {y:v}.16b, {y:v}.16b, #4
                 ushr {x:v}.16b, {x:v}.16b, #4\nushr {y:v}.16b, {y:v}.16b, #4"
            ),
            part::HIGH => multiply!("ushr {x:v}.16b, {x:v}.16b, #4\nushr {y:v}.16b, {y:v}.16b, #4"),
            _ => multiply!(),
        }
    }
}

/// Four products of signed bytes in each lane.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot<const LANE: i32>(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: an operation on registers.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]",
            sum = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

impl<const DOTS: u8> ByteSimd for Neon<DOTS> {
    const TILE_ROWS: usize = if DOTS == dots::NONE { 4 } else { 6 };
    const WIDE_ROWS: usize = 2;
    type I = Integers;

    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        let x = unsafe { vdupq_n_s32(x) };
        Integers(x, x)
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::I {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe {
            let (low, high) = (vld1q_u8(p), vld1q_u8(p.add(16)));
            Integers(vreinterpretq_s32_u8(low), vreinterpretq_s32_u8(high))
        }
    }
    #[inline(always)]
    fn low_nibbles(self, a: Self::I) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let low = |a| vandq_s32(a, vdupq_n_s32(0x0f0f_0f0f));
            Integers(low(a.0), low(a.1))
        }
    }
    #[inline(always)]
    fn high_nibbles(self, a: Self::I) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let high = |a| vreinterpretq_s32_u8(vshrq_n_u8::<4>(vreinterpretq_u8_s32(a)));
            Integers(high(a.0), high(a.1))
        }
    }
    #[inline(always)]
    fn or_bits(self, low: Self::I, high: Self::I, left: i32, mask: u8) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let mask = vdupq_n_u8(mask);
            let or = |low, high| {
                let shifted = vshlq_u32(vreinterpretq_u32_s32(high), vdupq_n_s32(left));
                let bits = vandq_u8(vreinterpretq_u8_u32(shifted), mask);
                vorrq_s32(low, vreinterpretq_s32_u8(bits))
            };
            Integers(or(low.0, high.0), or(low.1, high.1))
        }
    }
    #[inline(always)]
    fn dot4(self, sum: Self::I, w: Self::I, x: i32) -> Self::I {
        // SAFETY: the token proves that the feature is there, and dotprod if the parameter is set.
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
            let four = |sum, w| {
                let w = vreinterpretq_s8_s32(w);
                if DOTS != dots::NONE {
                    return sdot::<0>(sum, w, x);
                }
                // Two products have 16 bits, as -128 is not among the numbers of x.
                let (low, high) = (vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x));
                vpadalq_s16(sum, vpaddq_s16(low, high))
            };
            Integers(four(sum.0, w.0), four(sum.1, w.1))
        }
    }
    #[inline(always)]
    fn to_floats(self, a: Self::I) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { Floats(vcvtq_f32_s32(a.0), vcvtq_f32_s32(a.1)) }
    }
    #[inline(always)]
    unsafe fn dot_half<const ROWS: usize, const VECTORS: usize>(
        self,
        low: *const u8,
        high: *const u8,
        (first, bits): (i32, i32),
        x: &[*const i8; ROWS],
        dots: &mut [[Integers; VECTORS]; ROWS],
    ) {
        let mask = ((1 << bits) - 1) << 4;
        // SAFETY: the caller vouches for the vectors and for 16 bytes of each row of x; the token proves the
        // instructions that the parameter names.
        unsafe {
            let numbers = x.map(|x| vld1q_s8(x));
            for v in 0..VECTORS {
                let upper = self.load_bytes(high.add(32 * v));
                let (one, two) =
                    (self.load_bytes(low.add(32 * v)), self.load_bytes(low.add(GROUP_BYTES + 32 * v)));
                macro_rules! groups {
                    ($($g:literal $lower:expr;)*) => {$(
                        let w = self.or_bits($lower, upper, 4 - first - bits * $g, mask);
                        for ((dots, numbers), x) in dots.iter_mut().zip(&numbers).zip(x) {
                            dots[v] = if DOTS == dots::NONE {
                                self.dot4(dots[v], w, x.cast::<i32>().add($g).read_unaligned())
                            } else {
                                sdot_pair::<$g>(dots[v], w, *numbers)
                            };
                        }
                    )*};
                }
                groups!(
                    0 self.low_nibbles(one); 1 self.high_nibbles(one);
                    2 self.low_nibbles(two); 3 self.high_nibbles(two);
                );
            }
        }
    }
    #[inline(always)]
    unsafe fn dot_block<const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
        self,
        w: *const u8,
        x: &[*const i8; ROWS],
        starts: [i32; ROWS],
    ) -> [[Self::I; VECTORS]; ROWS] {
        // SAFETY: the caller vouches for the memory; the token proves the instructions that the parameter
        // names.
        unsafe {
            if DOTS == dots::I8MM && ROWS == 6 && VECTORS == 2 && !NIBBLES {
                // Signed weights need no correction.
                debug_assert_eq!(starts, [0; ROWS]);
                return multiply_six_rows(w, *x);
            }
            let mut dots = starts.map(|start| [self.splat_i32(start); VECTORS]);
            if DOTS == dots::NONE {
                dot_words::<Self, ROWS, VECTORS, NIBBLES>(self, w, x, &mut dots);
            } else if NIBBLES {
                dot_nibbles(self, w, x, &mut dots);
            } else {
                let (mut w, mut x) = (w, *x);
                dot_four::<Self, ROWS, VECTORS, { part::ALL }>(self, &mut w, &mut x, &mut dots);
                dot_four::<Self, ROWS, VECTORS, { part::ALL }>(self, &mut w, &mut x, &mut dots);
            }
            dots
        }
    }
    #[inline(always)]
    unsafe fn add_scaled<const ROWS: usize, const VECTORS: usize>(
        self,
        dots: [[Integers; VECTORS]; ROWS],
        d: [Floats; VECTORS],
        scales: [*const f32; ROWS],
        sums: &mut [[Floats; VECTORS]; ROWS],
    ) {
        if ROWS == 6 && VECTORS == 2 {
            // SAFETY: the caller guarantees it.
            return unsafe { add_scaled_of_six_rows(dots, d, scales, sums) };
        }
        for i in 0..ROWS {
            for v in 0..VECTORS {
                // SAFETY: the caller guarantees it.
                let scale = self.mul(d[v], self.splat(unsafe { *scales[i] }));
                sums[i][v] = self.fma(self.to_floats(dots[i][v]), scale, sums[i][v]);
            }
        }
    }
}

/// [`ByteSimd::add_scaled`] of six rows and two vectors. The 24 dot products leave registers for `d`, a scale
/// and a part of a row of sums. Compilers spill here.
///
/// # Safety
/// As for [`ByteSimd::add_scaled`].
#[inline(always)]
unsafe fn add_scaled_of_six_rows<const ROWS: usize, const VECTORS: usize>(
    dots: [[Integers; VECTORS]; ROWS],
    d: [Floats; VECTORS],
    scales: [*const f32; ROWS],
    sums: &mut [[Floats; VECTORS]; ROWS],
) {
    macro_rules! floats {
        ($op:literal $to:literal $a:literal $($b:literal)?) => {
            concat!($op, " {", $to, ":v}.4s, {", $a, ":v}.4s" $(, ", {", $b, ":v}.4s")?, "\n")
        };
    }
    macro_rules! pair {
        ($op:literal $a:literal $b:literal $at:literal) => {
            concat!($op, " {", $a, ":q}, {", $b, ":q}, [{sums}", $at, "\n")
        };
    }
    /// Instructions for a row whose dot products are in registers `$w` to `$z`.
    macro_rules! row {
        ($scale:literal: $w:literal $x:literal $y:literal $z:literal) => {
            concat!(
                concat!("ld1r {{{scale:v}.4s}}, [{", $scale, "}]\n"),
                pair!("ldp" "low" "high" "]"),
                floats!("scvtf" $w $w),
                floats!("scvtf" $x $x),
                floats!("fmul" "factor" "d0" "scale"),
                floats!("scvtf" $y $y),
                floats!("fmla" "low" $w "factor"),
                floats!("fmul" $w "d1" "scale"),
                floats!("scvtf" $z $z),
                floats!("fmul" "factor" "d2" "scale"),
                floats!("fmla" "high" $x $w),
                floats!("fmul" "scale" "d3" "scale"),
                pair!("ldp" $w $x ", #32]"),
                pair!("stp" "low" "high" "], #64"),
                floats!("fmla" $w $y "factor"),
                floats!("fmla" $x $z "scale"),
                pair!("stp" $w $x ", #-32]"),
            )
        };
    }
    // SAFETY: six rows of two vectors are 24 registers in a row; the caller vouches for the scales.
    unsafe {
        asm!(
            row!("s0": 0 1 2 3), row!("s1": 4 5 6 7), row!("s2": 8 9 10 11),
            row!("s3": 12 13 14 15), row!("s4": 16 17 18 19), row!("s5": 20 21 22 23),
            inout(vreg) dots[0][0].0 => _, inout(vreg) dots[0][0].1 => _,
            inout(vreg) dots[0][1].0 => _, inout(vreg) dots[0][1].1 => _,
            inout(vreg) dots[1][0].0 => _, inout(vreg) dots[1][0].1 => _,
            inout(vreg) dots[1][1].0 => _, inout(vreg) dots[1][1].1 => _,
            inout(vreg) dots[2][0].0 => _, inout(vreg) dots[2][0].1 => _,
            inout(vreg) dots[2][1].0 => _, inout(vreg) dots[2][1].1 => _,
            inout(vreg) dots[3][0].0 => _, inout(vreg) dots[3][0].1 => _,
            inout(vreg) dots[3][1].0 => _, inout(vreg) dots[3][1].1 => _,
            inout(vreg) dots[4][0].0 => _, inout(vreg) dots[4][0].1 => _,
            inout(vreg) dots[4][1].0 => _, inout(vreg) dots[4][1].1 => _,
            inout(vreg) dots[5][0].0 => _, inout(vreg) dots[5][0].1 => _,
            inout(vreg) dots[5][1].0 => _, inout(vreg) dots[5][1].1 => _,
            d0 = in(vreg) d[0].0, d1 = in(vreg) d[0].1, d2 = in(vreg) d[1].0, d3 = in(vreg) d[1].1,
            scale = out(vreg) _, factor = out(vreg) _, low = out(vreg) _, high = out(vreg) _,
            s0 = in(reg) scales[0], s1 = in(reg) scales[1], s2 = in(reg) scales[2],
            s3 = in(reg) scales[3], s4 = in(reg) scales[4], s5 = in(reg) scales[5],
            sums = inout(reg) sums.as_mut_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
}

/// [`ByteSimd::dot_block`] without `sdot`: vector by vector, since products take registers too.
///
/// # Safety
/// As for [`ByteSimd::dot_block`].
#[inline(always)]
unsafe fn dot_words<
    S: ByteSimd<I = Integers>,
    const ROWS: usize,
    const VECTORS: usize,
    const NIBBLES: bool,
>(
    s: S,
    w: *const u8,
    x: &[*const i8; ROWS],
    dots: &mut [[Integers; VECTORS]; ROWS],
) {
    for g in 0..if NIBBLES { 4 } else { 8 } {
        for v in 0..VECTORS {
            // SAFETY: the caller vouches for the weights, and for eight groups of x.
            unsafe {
                let w = s.load_bytes(w.add(g * GROUP_BYTES + 32 * v));
                let low = if NIBBLES { s.low_nibbles(w) } else { w };
                for (dots, x) in dots.iter_mut().zip(x) {
                    let x = x.cast::<i32>().add(g);
                    dots[v] = s.dot4(dots[v], low, x.read_unaligned());
                    if NIBBLES {
                        dots[v] = s.dot4(dots[v], s.high_nibbles(w), x.add(4).read_unaligned());
                    }
                }
            }
        }
    }
}

/// [`ByteSimd::dot_block`] by `smmla`, which multiplies 2 x 8 by 8 x 2 bytes.
///
/// # Safety
/// As for [`ByteSimd::dot_block`]; the machine must have i8mm.
#[inline(always)]
unsafe fn multiply_six_rows<const ROWS: usize, const VECTORS: usize>(
    mut w: *const u8,
    mut x: [*const i8; ROWS],
) -> [[Integers; VECTORS]; ROWS] {
    /// Instructions for four columns: registers `$a` and `$b` have four k of each, `$t` is free.
    macro_rules! columns {
        ($a:literal $b:literal $t:literal: $($rows:literal $left:literal $right:literal)*) => {
            concat!(
                "zip1 {", $t, ":v}.4s, {", $a, ":v}.4s, {", $b, ":v}.4s\n",
                "zip2 {", $a, ":v}.4s, {", $a, ":v}.4s, {", $b, ":v}.4s\n",
                $(
                    "smmla {", $left, ":v}.4s, {", $rows, ":v}.16b, {", $t, ":v}.16b\n",
                    "smmla {", $right, ":v}.4s, {", $rows, ":v}.16b, {", $a, ":v}.16b\n",
                )*
            )
        };
    }
    const { assert!(GROUP_BYTES == 128) };
    // SAFETY: NEON is part of every 64-bit ARM processor.
    let zero = unsafe { vdupq_n_s32(0) };
    // Of each pair of rows and four columns, the first square of 2 x 2 in the first row, the second in the
    // second.
    let mut dots = [[Integers(zero, zero); VECTORS]; ROWS];
    // Eight k at a time.
    for _ in 0..4 {
        // SAFETY: the caller vouches for eight groups of weights and 32 bytes of each row of x.
        unsafe {
            asm!(
                ".arch_extension i8mm",
                "ldr {24:d}, [{x0}], #8",
                "ldr {25:d}, [{x2}], #8",
                "ldr {26:d}, [{x4}], #8",
                "ldp {27:q}, {28:q}, [{w}]",
                "ldp {29:q}, {30:q}, [{w}, #128]",
                "ld1 {{{24:v}.d}}[1], [{x1}], #8",
                "ld1 {{{25:v}.d}}[1], [{x3}], #8",
                "ld1 {{{26:v}.d}}[1], [{x5}], #8",
                columns!(27 29 31: 24 0 4 25 8 12 26 16 20),
                columns!(28 30 29: 24 1 5 25 9 13 26 17 21),
                "ldp {27:q}, {28:q}, [{w}, #32]",
                "ldp {29:q}, {30:q}, [{w}, #160]",
                "add {w}, {w}, #256",
                columns!(27 29 31: 24 2 6 25 10 14 26 18 22),
                columns!(28 30 29: 24 3 7 25 11 15 26 19 23),
                inout(vreg) dots[0][0].0, inout(vreg) dots[0][0].1,
                inout(vreg) dots[0][1].0, inout(vreg) dots[0][1].1,
                inout(vreg) dots[1][0].0, inout(vreg) dots[1][0].1,
                inout(vreg) dots[1][1].0, inout(vreg) dots[1][1].1,
                inout(vreg) dots[2][0].0, inout(vreg) dots[2][0].1,
                inout(vreg) dots[2][1].0, inout(vreg) dots[2][1].1,
                inout(vreg) dots[3][0].0, inout(vreg) dots[3][0].1,
                inout(vreg) dots[3][1].0, inout(vreg) dots[3][1].1,
                inout(vreg) dots[4][0].0, inout(vreg) dots[4][0].1,
                inout(vreg) dots[4][1].0, inout(vreg) dots[4][1].1,
                inout(vreg) dots[5][0].0, inout(vreg) dots[5][0].1,
                inout(vreg) dots[5][1].0, inout(vreg) dots[5][1].1,
                out(vreg) _, out(vreg) _, out(vreg) _,
                out(vreg) _, out(vreg) _, out(vreg) _, out(vreg) _, out(vreg) _,
                x0 = inout(reg) x[0], x1 = inout(reg) x[1], x2 = inout(reg) x[2],
                x3 = inout(reg) x[3], x4 = inout(reg) x[4], x5 = inout(reg) x[5],
                w = inout(reg) w,
                options(readonly, nostack, preserves_flags)
            );
        }
    }
    for pair in dots.as_chunks_mut::<2>().0 {
        for v in 0..VECTORS {
            let (a, b) = (pair[0][v], pair[1][v]);
            (pair[0][v].0, pair[1][v].0) = zip_halves(a.0, b.0);
            (pair[0][v].1, pair[1][v].1) = zip_halves(a.1, b.1);
        }
    }
    dots
}

/// The lower halves of two registers, and the upper ones.
#[inline(always)]
fn zip_halves(a: int32x4_t, b: int32x4_t) -> (int32x4_t, int32x4_t) {
    // SAFETY: NEON is part of every 64-bit ARM processor.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
        (vreinterpretq_s32_s64(vzip1q_s64(a, b)), vreinterpretq_s32_s64(vzip2q_s64(a, b)))
    }
}

/// Adds dot products of four groups of bytes, or of halves of them. Advances `w` by four groups, `x` by 16
/// bytes.
///
/// # Safety
/// `w` is valid for reading four groups, each `x` for 16 bytes; the machine must have dotprod.
#[inline(always)]
unsafe fn dot_four<S: ByteSimd<I = Integers>, const ROWS: usize, const VECTORS: usize, const PART: u8>(
    s: S,
    w: &mut *const u8,
    x: &mut [*const i8; ROWS],
    dots: &mut [[Integers; VECTORS]; ROWS],
) {
    if ROWS == 6 && VECTORS == 2 {
        // SAFETY: the caller guarantees it.
        return unsafe { dot_four_of_six_rows::<ROWS, VECTORS, PART>(w, x, dots) };
    }
    // SAFETY: the caller guarantees it.
    unsafe {
        let numbers = x.map(|x| vld1q_s8(x));
        macro_rules! groups {
            ($($g:literal)*) => {$(
                for v in 0..VECTORS {
                    let w = s.load_bytes(w.add($g * GROUP_BYTES + 32 * v));
                    let w = match PART {
                        part::LOW => s.low_nibbles(w),
                        part::HIGH => s.high_nibbles(w),
                        _ => w,
                    };
                    for (dots, x) in dots.iter_mut().zip(&numbers) {
                        dots[v] = sdot_pair::<$g>(dots[v], w, *x);
                    }
                }
            )*};
        }
        groups!(0 1 2 3);
        *w = w.add(4 * GROUP_BYTES);
        x.iter_mut().for_each(|x| *x = x.add(16));
    }
}

/// Adds dot products of four groups of bytes whose halves belong to two groups.
///
/// # Safety
/// As for [`ByteSimd::dot_block`]; the machine must have dotprod.
#[inline(always)]
unsafe fn dot_nibbles<S: ByteSimd<I = Integers>, const ROWS: usize, const VECTORS: usize>(
    s: S,
    w: *const u8,
    x: &[*const i8; ROWS],
    dots: &mut [[Integers; VECTORS]; ROWS],
) {
    if ROWS > 4 {
        let (mut low, mut high, mut x) = (w, w, *x);
        // SAFETY: the caller guarantees it.
        return unsafe {
            dot_four::<S, ROWS, VECTORS, { part::LOW }>(s, &mut low, &mut x, dots);
            dot_four::<S, ROWS, VECTORS, { part::HIGH }>(s, &mut high, &mut x, dots);
        };
    }
    // SAFETY: the caller guarantees it.
    unsafe {
        let x = x.map(|x| (vld1q_s8(x), vld1q_s8(x.add(16))));
        macro_rules! groups {
            ($($g:literal)*) => {$(
                for v in 0..VECTORS {
                    let w = s.load_bytes(w.add($g * GROUP_BYTES + 32 * v));
                    let (low, high) = (s.low_nibbles(w), s.high_nibbles(w));
                    for (dots, x) in dots.iter_mut().zip(&x) {
                        dots[v] = sdot_pair::<$g>(sdot_pair::<$g>(dots[v], low, x.0), high, x.1);
                    }
                }
            )*};
        }
        groups!(0 1 2 3);
    }
}

/// # Safety
/// The machine must have dotprod.
#[inline(always)]
unsafe fn sdot_pair<const LANE: i32>(sum: Integers, w: Integers, x: int8x16_t) -> Integers {
    // SAFETY: the caller guarantees it.
    unsafe {
        let w = (vreinterpretq_s8_s32(w.0), vreinterpretq_s8_s32(w.1));
        Integers(sdot::<LANE>(sum.0, w.0, x), sdot::<LANE>(sum.1, w.1, x))
    }
}
