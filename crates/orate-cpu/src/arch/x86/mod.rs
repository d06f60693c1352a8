//! AVX2+FMA and AVX-512 as [`Simd`] tokens.

mod bytes;

use crate::simd::{ByteKernel, Kernel, Simd};
use std::arch::x86_64::*;
use std::mem::transmute;

/// Proof that AVX2, FMA and F16C were detected, and AVX-VNNI if the parameter is set.
#[derive(Clone, Copy, Debug)]
pub struct Avx2<const VNNI: bool>(());

/// Proof that AVX-512 F, BW, VL and DQ were detected, and VNNI if the parameter is set.
#[derive(Clone, Copy, Debug)]
pub struct Avx512<const VNNI: bool>(());

/// Proof that AVX-512 BF16 was detected. Pairs of bf16 numbers lie in the lanes of float vectors, the first
/// number in the lower half.
#[derive(Clone, Copy, Debug)]
pub struct Bf16(());

impl Bf16 {
    /// `sum + a₀ · b₀ + a₁ · b₁` in each lane, for the pairs a and b. Subnormal numbers count as zero.
    #[inline(always)]
    pub fn dot2(self, sum: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves that the feature is there; both types are 64 bytes without padding.
        unsafe {
            let a: __m512bh = transmute(a);
            let b: __m512bh = transmute(b);
            _mm512_dpbf16_ps(sum, a, b)
        }
    }
    /// Rounds 32 numbers, to nearest even, and returns their pairs in order.
    #[inline(always)]
    pub fn round(self, low: __m512, high: __m512) -> __m512 {
        // SAFETY: as for `dot2`.
        unsafe { transmute(_mm512_cvtne2ps_pbh(high, low)) }
    }
    /// Rounds 32 numbers and returns pairs of one number of each vector.
    #[inline(always)]
    pub fn interleave(self, first: __m512, second: __m512) -> __m512 {
        // SAFETY: as for `dot2`.
        unsafe {
            let first: __m256i = transmute(_mm512_cvtneps_pbh(first));
            let second: __m256i = transmute(_mm512_cvtneps_pbh(second));
            let second = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(second));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_cvtepu16_epi32(first), second))
        }
    }
}

/// A computation on pairs of bf16 numbers. Called by [`crate::Isa::run_bf16`].
pub trait Bf16Kernel {
    /// Runs the computation. Mark the implementation `#[inline(always)]`.
    fn run(self, s: Avx512<false>, pairs: Bf16);
}

/// # Safety
/// The machine must have AVX-512 F, BW, VL, DQ and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]
pub(crate) unsafe fn run_bf16<K: Bf16Kernel>(kernel: K) {
    kernel.run(Avx512::<false>(()), Bf16(()));
}

/// # Safety
/// The machine must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<false>(()))
}

/// # Safety
/// The machine must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run_bytes_avx2<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<false>(()))
}

/// # Safety
/// The machine must have AVX2, FMA, F16C and AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(crate) unsafe fn run_bytes_avx_vnni<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<true>(()))
}

/// # Safety
/// The machine must have AVX-512 F, BW, VL and DQ.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
pub(crate) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false>(()))
}

/// # Safety
/// The machine must have AVX-512 F, BW, VL and DQ.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
pub(crate) unsafe fn run_bytes_avx512<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false>(()))
}

/// # Safety
/// The machine must have AVX-512 F, BW, VL, DQ and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
pub(crate) unsafe fn run_bytes_vnni<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<true>(()))
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    type V = __m256;
    type M = __m256;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: Self::V) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe {
            let numbers = _mm256_cvtps_epi32(_mm256_and_ps(v, _mm256_cmp_ps::<_CMP_ORD_Q>(v, v)));
            let (low, high) = (_mm256_castsi256_si128(numbers), _mm256_extracti128_si256::<1>(numbers));
            let words = _mm_packs_epi32(low, high);
            _mm_storel_epi64(p.cast(), _mm_packs_epi16(words, words));
            _mm256_cvtepi32_ps(numbers)
        }
    }
    #[inline(always)]
    unsafe fn splat_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm256_cvtph_ps(_mm_set1_epi16(p.read_unaligned() as i16)) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the token proves the feature, the caller vouches for eight rows of eight floats.
        unsafe {
            // Four rows at a time: vector j has their columns j and 4 + j, one in each half.
            let four = |first: usize| {
                let row = |i: usize| _mm256_loadu_ps(from.add((first + i) * from_stride));
                let (a, b, c, d) = (row(0), row(1), row(2), row(3));
                let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let (low2, high2) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                [
                    _mm256_shuffle_ps::<0x44>(low, low2),
                    _mm256_shuffle_ps::<0xee>(low, low2),
                    _mm256_shuffle_ps::<0x44>(high, high2),
                    _mm256_shuffle_ps::<0xee>(high, high2),
                ]
            };
            let (top, bottom) = (four(0), four(4));
            for j in 0..4 {
                let first = _mm256_permute2f128_ps::<0x20>(top[j], bottom[j]);
                let second = _mm256_permute2f128_ps::<0x31>(top[j], bottom[j]);
                _mm256_storeu_ps(to.add(j * to_stride), first);
                _mm256_storeu_ps(to.add((4 + j) * to_stride), second);
            }
        }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm256_maskload_ps(p, tail_mask(n)) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, v: Self::V, n: usize) {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm256_maskstore_ps(p, tail_mask(n), v) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let s = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(s, a), _mm256_and_ps(s, sign))
        }
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(e)))
        }
    }
    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V) -> Self::M {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_blendv_ps(b, a, m) }
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }
}

impl<const VNNI: bool> Simd for Avx512<VNNI> {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    type V = __m512;
    type M = __mmask16;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: Self::V) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe {
            let numbers = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask::<_CMP_ORD_Q>(v, v), v);
            _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(numbers));
            _mm512_cvtepi32_ps(numbers)
        }
    }
    #[inline(always)]
    unsafe fn splat_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(p.read_unaligned() as i16)) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the token proves the feature, the caller vouches for sixteen rows of sixteen floats.
        unsafe {
            // Four rows at a time: vector j has their columns j, 4 + j, 8 + j and 12 + j, one in each
            // quarter.
            let four = |first: usize| {
                let row = |i: usize| _mm512_loadu_ps(from.add((first + i) * from_stride));
                let (a, b, c, d) = (row(0), row(1), row(2), row(3));
                let (low, high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (low2, high2) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                [
                    _mm512_shuffle_ps::<0x44>(low, low2),
                    _mm512_shuffle_ps::<0xee>(low, low2),
                    _mm512_shuffle_ps::<0x44>(high, high2),
                    _mm512_shuffle_ps::<0xee>(high, high2),
                ]
            };
            let (a, b, c, d) = (four(0), four(4), four(8), four(12));
            for j in 0..4 {
                let even = _mm512_shuffle_f32x4::<0x88>(a[j], b[j]);
                let even2 = _mm512_shuffle_f32x4::<0x88>(c[j], d[j]);
                let odd = _mm512_shuffle_f32x4::<0xdd>(a[j], b[j]);
                let odd2 = _mm512_shuffle_f32x4::<0xdd>(c[j], d[j]);
                let to = to.add(j * to_stride);
                _mm512_storeu_ps(to, _mm512_shuffle_f32x4::<0x88>(even, even2));
                _mm512_storeu_ps(to.add(4 * to_stride), _mm512_shuffle_f32x4::<0x88>(odd, odd2));
                _mm512_storeu_ps(to.add(8 * to_stride), _mm512_shuffle_f32x4::<0xdd>(even, even2));
                _mm512_storeu_ps(to.add(12 * to_stride), _mm512_shuffle_f32x4::<0xdd>(odd, odd2));
            }
        }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm512_maskz_loadu_ps(lanes_below(n), p) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, v: Self::V, n: usize) {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm512_mask_storeu_ps(p, lanes_below(n), v) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let s = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(s, a), _mm512_and_ps(s, sign))
        }
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V) -> Self::M {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_mask_blend_ps(m, b, a) }
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_reduce_max_ps(a) }
    }
}

#[inline(always)]
fn lanes_below(n: usize) -> __mmask16 {
    debug_assert!(n <= 16, "a vector has 16 lanes");
    ((1u32 << n) - 1) as __mmask16
}

/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn tail_mask(n: usize) -> __m256i {
    debug_assert!(n <= 8, "a vector has 8 lanes");
    static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: `n <= 8`, so eight entries follow index `8 - n`.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - n).cast()) }
}
