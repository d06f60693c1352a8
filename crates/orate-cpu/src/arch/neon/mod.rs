//! NEON as [`Simd`] tokens, with the integer dot products of later processors.
//!
//! A vector is a pair of 128-bit registers, so tiles are those of 16 registers with eight lanes. NEON is part
//! of every 64-bit ARM target; only dotprod and i8mm are detected. Their intrinsics are not stable, hence
//! the assembly.

mod bytes;
mod tile;

use crate::simd::{ByteKernel, Simd};
use std::arch::aarch64::*;
use std::arch::asm;
use tile::four_steps;

/// Which instructions multiply bytes.
pub mod dots {
    /// Multiplications with widened results.
    pub const NONE: u8 = 0;
    /// `sdot`: four products in each lane.
    pub const DOTPROD: u8 = 1;
    /// `smmla`: 2 x 8 times 8 x 2 bytes; also `sdot`.
    pub const I8MM: u8 = 2;
}

/// Proof that NEON was detected, and the instructions of [`dots`] that the parameter names.
#[derive(Clone, Copy, Debug)]
pub struct Neon<const DOTS: u8>(pub(crate) ());

/// # Safety
/// The machine must have dotprod.
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn run_bytes_dotprod<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<{ dots::DOTPROD }>(()))
}

/// # Safety
/// The machine must have dotprod and i8mm.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(crate) unsafe fn run_bytes_i8mm<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<{ dots::I8MM }>(()))
}

/// Eight floats.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Floats(float32x4_t, float32x4_t);

/// Eight comparisons.
#[derive(Clone, Copy, Debug)]
pub struct Masks(uint32x4_t, uint32x4_t);

impl Floats {
    #[inline(always)]
    fn each(self, f: impl Fn(float32x4_t) -> float32x4_t) -> Floats {
        Floats(f(self.0), f(self.1))
    }
    #[inline(always)]
    fn zip(self, b: Floats, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Floats {
        Floats(f(self.0, b.0), f(self.1, b.1))
    }
}

/// Four half-precision numbers as floats.
#[inline(always)]
fn widen_f16(x: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: a conversion of registers, part of every 64-bit ARM processor.
    unsafe {
        asm!(
            "fcvtl {wide:v}.4s, {x:v}.4h",
            wide = lateout(vreg) wide, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    wide
}

/// Reads the first `n <= 4` floats; the other lanes are zero.
///
/// # Safety
/// `p` must be valid for reading `n` floats.
#[inline(always)]
unsafe fn load_some(p: *const f32, n: usize) -> float32x4_t {
    // SAFETY: each arm reads `n` floats.
    unsafe {
        let zero = vdupq_n_f32(0.0);
        match n {
            0 => zero,
            1 => vsetq_lane_f32::<0>(*p, zero),
            2 => vcombine_f32(vld1_f32(p), vget_low_f32(zero)),
            3 => vsetq_lane_f32::<2>(*p.add(2), vcombine_f32(vld1_f32(p), vget_low_f32(zero))),
            _ => vld1q_f32(p),
        }
    }
}

/// Writes the first `n <= 4` lanes.
///
/// # Safety
/// `p` must be valid for writing `n` floats.
#[inline(always)]
unsafe fn store_some(p: *mut f32, v: float32x4_t, n: usize) {
    // SAFETY: each arm writes `n` floats.
    unsafe {
        match n {
            0 => {}
            1 => vst1q_lane_f32::<0>(p, v),
            2 => vst1_f32(p, vget_low_f32(v)),
            3 => {
                vst1_f32(p, vget_low_f32(v));
                vst1q_lane_f32::<2>(p.add(2), v);
            }
            _ => vst1q_f32(p, v),
        }
    }
}

/// Transposes four rows of four floats.
///
/// # Safety
/// `from` must be valid for reading four rows of four floats, `to` for writing them.
#[inline(always)]
unsafe fn transpose_four(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        let row = |i: usize| vld1q_f32(from.add(i * from_stride));
        let (a, b, c, d) = (row(0), row(1), row(2), row(3));
        let pair = |x, y| vreinterpretq_f64_f32(vzip1q_f32(x, y));
        let upper = |x, y| vreinterpretq_f64_f32(vzip2q_f32(x, y));
        // Columns 0 and 1, then 2 and 3, of rows a, c and b, d.
        let (ac, bd, ac2, bd2) = (vzip1q_f32(a, c), vzip1q_f32(b, d), vzip2q_f32(a, c), vzip2q_f32(b, d));
        for (i, column) in [pair(ac, bd), upper(ac, bd), pair(ac2, bd2), upper(ac2, bd2)].iter().enumerate() {
            vst1q_f32(to.add(i * to_stride), vreinterpretq_f32_f64(*column));
        }
    }
}

/// Prefetches four cache lines into the second-level cache.
#[inline(always)]
fn prefetch_four_lines(p: *const f32) {
    // SAFETY: hints, which never fault.
    unsafe {
        asm!(
            "prfm pldl2keep, [{p}]", "prfm pldl2keep, [{p}, #64]", "prfm pldl2keep, [{p}, #128]",
            "prfm pldl2keep, [{p}, #192]", p = in(reg) p, options(nomem, nostack, preserves_flags)
        );
    }
}

impl<const DOTS: u8> Simd for Neon<DOTS> {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    const BY_LANE: bool = true;
    type V = Floats;
    type M = Masks;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        let x = unsafe { vdupq_n_f32(x) };
        Floats(x, x)
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { Floats(vld1q_f32(p), vld1q_f32(p.add(4))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe {
            vst1q_f32(p, v.0);
            vst1q_f32(p.add(4), v.1);
        }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: the caller vouches for `n` floats.
        unsafe {
            match n.checked_sub(4) {
                None => Floats(load_some(p, n), vdupq_n_f32(0.0)),
                Some(rest) => Floats(vld1q_f32(p), load_some(p.wrapping_add(4), rest)),
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
                    vst1q_f32(p, v.0);
                    store_some(p.wrapping_add(4), v.1, rest);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe {
            let halves = vld1q_u16(p);
            Floats(widen_f16(vget_low_u16(halves)), widen_f16(vget_high_u16(halves)))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe {
            let halves = vld1q_u16(p);
            let low = vshll_n_u16::<16>(vget_low_u16(halves));
            Floats(vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(vshll_high_n_u16::<16>(halves)))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe {
            let words = vmovl_s8(vld1_s8(p));
            let low = vmovl_s16(vget_low_s16(words));
            Floats(vcvtq_f32_s32(low), vcvtq_f32_s32(vmovl_high_s16(words)))
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: Self::V) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe {
            let (low, high) = (vcvtnq_s32_f32(v.0), vcvtnq_s32_f32(v.1));
            vst1_s8(p, vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high))));
            Floats(vcvtq_f32_s32(low), vcvtq_f32_s32(high))
        }
    }
    #[inline(always)]
    unsafe fn splat_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller vouches for the number; the token proves the feature.
        let x = unsafe { widen_f16(vdup_n_u16(p.read_unaligned())) };
        Floats(x, x)
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        a.zip(b, |a, b| unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        a.zip(b, |a, b| unsafe { vsubq_f32(a, b) })
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        a.zip(b, |a, b| unsafe { vmulq_f32(a, b) })
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        a.zip(b, |a, b| unsafe { vdivq_f32(a, b) })
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { Floats(vfmaq_f32(c.0, a.0, b.0), vfmaq_f32(c.1, a.1, b.1)) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // A comparison, because `fmin` and `fminnm` treat NaN in other ways.
        // SAFETY: the token proves that the feature is there.
        a.zip(b, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        a.zip(b, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        a.each(|a| unsafe { vsqrtq_f32(a) })
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        a.each(|a| unsafe { vrndnq_f32(a) })
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        a.each(|a| unsafe { vabsq_f32(a) })
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        a.zip(sign, |a, sign| unsafe { vbslq_f32(vdupq_n_u32(1 << 31), sign, a) })
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        a.zip(n, |a, n| unsafe {
            let exponent = vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)));
            vmulq_f32(a, vreinterpretq_f32_s32(exponent))
        })
    }
    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V) -> Self::M {
        // SAFETY: the token proves that the feature is there.
        unsafe { Masks(vcltq_f32(a.0, b.0), vcltq_f32(a.1, b.1)) }
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { Floats(vbslq_f32(m.0, a.0, b.0), vbslq_f32(m.1, a.1, b.1)) }
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let four = vaddq_f32(a.0, a.1);
            vaddv_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        }
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        // SAFETY: the token proves that the feature is there.
        unsafe { vmaxnmvq_f32(vmaxnmq_f32(a.0, a.1)) }
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
    fn prefetch(self, p: *const f32) {
        // SAFETY: a hint, which never faults.
        unsafe { asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(nomem, nostack, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn steps<const ROWS: usize, const VECTORS: usize>(
        self,
        k: usize,
        (mut a, a_stride): (*const f32, usize),
        (mut b, b_stride): (*const f32, usize),
        ahead: Option<(*const f32, usize)>,
        sums: &mut [[Self::V; VECTORS]; ROWS],
    ) {
        let mut fetched = 0;
        // 32 steps, so that little of the loop is not multiply-adds.
        for _ in 0..k / 32 {
            if let Some((ahead, bytes)) = ahead {
                prefetch_four_lines(ahead.wrapping_byte_add(fetched));
                fetched = (fetched + 256).min(bytes);
            }
            // Not a loop, because compilers leave loops with assembly as they are.
            // SAFETY: the caller vouches for `k` steps.
            unsafe {
                four_steps((&mut a, a_stride), (&mut b, b_stride), sums);
                four_steps((&mut a, a_stride), (&mut b, b_stride), sums);
                four_steps((&mut a, a_stride), (&mut b, b_stride), sums);
                four_steps((&mut a, a_stride), (&mut b, b_stride), sums);
                four_steps((&mut a, a_stride), (&mut b, b_stride), sums);
                four_steps((&mut a, a_stride), (&mut b, b_stride), sums);
                four_steps((&mut a, a_stride), (&mut b, b_stride), sums);
                four_steps((&mut a, a_stride), (&mut b, b_stride), sums);
            }
        }
        for _ in 0..k / 4 % 8 {
            // SAFETY: as above.
            unsafe { four_steps((&mut a, a_stride), (&mut b, b_stride), sums) };
        }
        for u in 0..k % 4 {
            // SAFETY: as above.
            unsafe { self.step(a.add(u), a_stride, b.add(u * b_stride), sums) };
        }
    }
}
