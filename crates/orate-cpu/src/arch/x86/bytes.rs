//! Products of bytes: [`ByteSimd`].
//!
//! VNNI multiplies four unsigned bytes of each lane by four signed ones and adds the sum to 32 bits. Without
//! it there is an instruction that leaves two sums of two products in each lane, of 16 bits, which saturate.
//! Weights of at most six bits do not reach that limit, and a number of such sums can be added before they
//! are widened ([`Pairs`]): with four bits, 15 · 127 · 2 is 3,810, so eight of them, a whole block, stay
//! below 32,768. In tall tiles bytes are multiplied as two halves of four bits. Each multiplication of 32
//! bytes takes an addition, so AVX2 does 16 multiply-adds an instruction with four bits and 8 with bytes, as
//! many as in f32.

use super::{Avx2, Avx512};
use crate::simd::{ByteSimd, GROUP_BYTES, fours};
use std::arch::asm;
use std::arch::x86_64::*;

/// Sums of products in 16 bits, two in each lane of 32 bits.
trait Pairs: ByteSimd {
    /// Adds to the lower half of each lane the products of its two lower bytes with those of four bytes of x,
    /// `AT` bytes behind `x`, and to the upper half those of the upper bytes. `w` is unsigned; sums must stay
    /// within 16 bits.
    ///
    /// # Safety
    /// The four bytes can be read.
    unsafe fn add_pairs<const AT: usize>(self, pairs: Self::I, w: Self::I, x: *const i8) -> Self::I;
    /// [`Self::add_pairs`] of two weights with the same bytes.
    ///
    /// # Safety
    /// The four bytes can be read.
    unsafe fn add_two_pairs<const AT: usize>(
        self,
        pairs: (&mut Self::I, &mut Self::I),
        w: (Self::I, Self::I),
        x: *const i8,
    );
    /// `dots + factor · (lower half + upper half)` in each lane.
    fn add_to_dots(self, dots: Self::I, pairs: Self::I, factor: i16) -> Self::I;
}

/// Runs code for each group of a block, with a constant.
macro_rules! for_each_group {
    ($g:ident in $groups:expr; $code:block) => {
        for_each_group!(@ $g $groups; $code 0 1 2 3 4 5 6 7)
    };
    (@ $g:ident $groups:expr; $code:block $($number:literal)*) => {
        $(if $number < $groups {
            const $g: usize = $number;
            $code
        })*
    };
}

/// [`ByteSimd::dot_half`] by pairs.
///
/// # Safety
/// As for [`ByteSimd::dot_half`].
#[inline(always)]
unsafe fn half_by_pairs<S: Pairs, const ROWS: usize, const VECTORS: usize>(
    s: S,
    low: *const u8,
    high: *const u8,
    (first, bits): (i32, i32),
    x: &[*const i8; ROWS],
    dots: &mut [[S::I; VECTORS]; ROWS],
) {
    let mask = ((1 << bits) - 1) << 4;
    // Products of six bits are up to 16,002, of five bits up to 7,874.
    let most = if bits == 1 { 4 } else { 2 };
    for v in 0..VECTORS {
        let at = 4 * v * S::LANES;
        let mut pairs = [s.splat_i32(0); ROWS];
        // SAFETY: the caller vouches for the vectors and for four groups of x.
        unsafe {
            let upper = s.load_bytes(high.add(at));
            for_each_group!(G in 4; {
                let both = s.load_bytes(low.add(G / 2 * GROUP_BYTES + at));
                let lower = if G.is_multiple_of(2) { s.low_nibbles(both) } else { s.high_nibbles(both) };
                let w = s.or_bits(lower, upper, 4 - first - bits * G as i32, mask);
                for (pairs, x) in pairs.iter_mut().zip(x) {
                    *pairs = s.add_pairs::<{ 4 * G }>(*pairs, w, *x);
                }
                if (G + 1).is_multiple_of(most) {
                    for (pairs, dots) in pairs.iter_mut().zip(&mut *dots) {
                        dots[v] = s.add_to_dots(dots[v], *pairs, 1);
                        *pairs = s.splat_i32(0);
                    }
                }
            });
        }
    }
}

/// [`ByteSimd::dot_block`] by pairs.
///
/// # Safety
/// As for [`ByteSimd::dot_block`].
#[inline(always)]
unsafe fn block_by_pairs<S: Pairs, const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
    s: S,
    w: *const u8,
    x: &[*const i8; ROWS],
    starts: [i32; ROWS],
) -> [[S::I; VECTORS]; ROWS] {
    let mut dots = [[s.splat_i32(0); VECTORS]; ROWS];
    for v in 0..VECTORS {
        // Sums with lower halves of bytes and with upper ones: of different groups in nibbles.
        let (mut low, mut high) = ([s.splat_i32(0); ROWS], [s.splat_i32(0); ROWS]);
        for_each_group!(G in if NIBBLES { 4 } else { 8 }; {
            // SAFETY: the caller vouches for the vectors of this group.
            let bytes = unsafe { s.load_bytes(w.add(G * GROUP_BYTES + 4 * v * S::LANES)) };
            let (lower, upper) = (s.low_nibbles(bytes), s.high_nibbles(bytes));
            for i in 0..ROWS {
                // SAFETY: the caller vouches for eight groups of x.
                unsafe {
                    if NIBBLES {
                        low[i] = s.add_pairs::<{ 4 * G }>(low[i], lower, x[i]);
                        low[i] = s.add_pairs::<{ 4 * ((G + 4) % 8) }>(low[i], upper, x[i]);
                    } else {
                        s.add_two_pairs::<{ 4 * G }>((&mut low[i], &mut high[i]), (lower, upper), x[i]);
                    }
                }
            }
        });
        for (i, dots) in dots.iter_mut().enumerate() {
            dots[v] = s.add_to_dots(s.splat_i32(starts[i]), low[i], 1);
            if !NIBBLES {
                dots[v] = s.add_to_dots(dots[v], high[i], 16);
            }
        }
    }
    dots
}

/// [`Pairs::add_pairs`]. Not by intrinsics: the compiler would bring the sums in another order and keep x in
/// all lanes for other vectors, which takes more registers than there are.
///
/// # Safety
/// As for [`Pairs::add_pairs`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_pairs<const AT: usize>(mut pairs: __m256i, w: __m256i, x: *const i8) -> __m256i {
    // SAFETY: the caller vouches for four bytes.
    unsafe {
        asm!(
            "vpbroadcastd {product}, dword ptr [{x} + {at}]",
            "vpmaddubsw {product}, {w}, {product}",
            "vpaddw {pairs}, {pairs}, {product}",
            product = out(ymm_reg) _, pairs = inout(ymm_reg) pairs, w = in(ymm_reg) w, x = in(reg) x,
            at = const AT,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    pairs
}

/// [`Pairs::add_two_pairs`].
///
/// # Safety
/// As for [`Pairs::add_pairs`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_two_pairs<const AT: usize>(
    pairs: (&mut __m256i, &mut __m256i),
    w: (__m256i, __m256i),
    x: *const i8,
) {
    // SAFETY: the caller vouches for four bytes.
    unsafe {
        asm!(
            "vpbroadcastd {x4}, dword ptr [{x} + {at}]",
            "vpmaddubsw {product}, {w0}, {x4}",
            "vpmaddubsw {x4}, {w1}, {x4}",
            "vpaddw {pairs0}, {pairs0}, {product}",
            "vpaddw {pairs1}, {pairs1}, {x4}",
            x4 = out(ymm_reg) _, product = out(ymm_reg) _,
            pairs0 = inout(ymm_reg) *pairs.0, pairs1 = inout(ymm_reg) *pairs.1,
            w0 = in(ymm_reg) w.0, w1 = in(ymm_reg) w.1, x = in(reg) x, at = const AT,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
}

/// How a set multiplies tiles.
macro_rules! tiles {
    () => {
        #[inline(always)]
        unsafe fn dot_half<const ROWS: usize, const VECTORS: usize>(
            self,
            low: *const u8,
            high: *const u8,
            bits: (i32, i32),
            x: &[*const i8; ROWS],
            dots: &mut [[Self::I; VECTORS]; ROWS],
        ) {
            // SAFETY: the caller vouches for the memory.
            unsafe {
                if VNNI {
                    fours::half(self, low, high, bits, x, dots);
                } else {
                    half_by_pairs(self, low, high, bits, x, dots);
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
            // SAFETY: the caller vouches for the memory.
            unsafe {
                // Few rows do not make up for taking bytes apart.
                if VNNI || (!NIBBLES && ROWS <= 2) {
                    fours::block::<_, ROWS, VECTORS, NIBBLES>(self, w, x, starts)
                } else {
                    block_by_pairs::<_, ROWS, VECTORS, NIBBLES>(self, w, x, starts)
                }
            }
        }
    };
}

impl<const VNNI: bool> ByteSimd for Avx2<VNNI> {
    const TILE_ROWS: usize = 4;
    const WIDE_ROWS: usize = 2;
    type I = __m256i;

    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::I {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    fn low_nibbles(self, a: Self::I) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_and_si256(a, _mm256_set1_epi8(0x0f)) }
    }
    #[inline(always)]
    fn high_nibbles(self, a: Self::I) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(a), _mm256_set1_epi8(0x0f)) }
    }
    #[inline(always)]
    fn or_bits(self, low: Self::I, high: Self::I, left: i32, mask: u8) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let shifted = match left {
                0.. => _mm256_sll_epi32(high, _mm_cvtsi32_si128(left)),
                _ => _mm256_srl_epi32(high, _mm_cvtsi32_si128(-left)),
            };
            _mm256_or_si256(low, _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8)))
        }
    }
    #[inline(always)]
    fn dot4(self, sum: Self::I, w: Self::I, x: i32) -> Self::I {
        // SAFETY: the token proves that the feature is there, and VNNI if the parameter is set.
        unsafe {
            let x = _mm256_set1_epi32(x);
            if VNNI {
                return _mm256_dpbusd_avx_epi32(sum, w, x);
            }
            // As pairs of 16 bits, since the instruction for bytes saturates.
            let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
            let odd = _mm256_srai_epi16::<8>(x);
            let w_even = _mm256_and_si256(w, _mm256_set1_epi16(0xff));
            let w_odd = _mm256_srli_epi16::<8>(w);
            let sums = _mm256_add_epi32(_mm256_madd_epi16(w_even, even), _mm256_madd_epi16(w_odd, odd));
            _mm256_add_epi32(sum, sums)
        }
    }
    #[inline(always)]
    fn to_floats(self, a: Self::I) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_cvtepi32_ps(a) }
    }
    tiles!();
}

impl<const VNNI: bool> ByteSimd for Avx512<VNNI> {
    const TILE_ROWS: usize = 6;
    type I = __m512i;

    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::I {
        // SAFETY: the token proves the feature, the caller vouches for the memory.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    fn low_nibbles(self, a: Self::I) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8(0x0f)) }
    }
    #[inline(always)]
    fn high_nibbles(self, a: Self::I) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(a), _mm512_set1_epi8(0x0f)) }
    }
    #[inline(always)]
    fn or_bits(self, low: Self::I, high: Self::I, left: i32, mask: u8) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe {
            let shifted = match left {
                0.. => _mm512_sll_epi32(high, _mm_cvtsi32_si128(left)),
                _ => _mm512_srl_epi32(high, _mm_cvtsi32_si128(-left)),
            };
            // low | (shifted & mask)
            _mm512_ternarylogic_epi32::<0xf8>(low, shifted, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    fn dot4(self, sum: Self::I, w: Self::I, x: i32) -> Self::I {
        // SAFETY: the token proves that the feature is there, and VNNI if the parameter is set.
        unsafe {
            let x = _mm512_set1_epi32(x);
            if VNNI {
                return _mm512_dpbusd_epi32(sum, w, x);
            }
            let even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(x));
            let odd = _mm512_srai_epi16::<8>(x);
            let w_even = _mm512_and_si512(w, _mm512_set1_epi16(0xff));
            let w_odd = _mm512_srli_epi16::<8>(w);
            let sums = _mm512_add_epi32(_mm512_madd_epi16(w_even, even), _mm512_madd_epi16(w_odd, odd));
            _mm512_add_epi32(sum, sums)
        }
    }
    #[inline(always)]
    fn to_floats(self, a: Self::I) -> Self::V {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    tiles!();
}

impl<const VNNI: bool> Pairs for Avx2<VNNI> {
    #[inline(always)]
    unsafe fn add_pairs<const AT: usize>(self, pairs: Self::I, w: Self::I, x: *const i8) -> Self::I {
        // SAFETY: the token proves that the feature is there, the caller vouches for the memory.
        unsafe { add_pairs::<AT>(pairs, w, x) }
    }
    #[inline(always)]
    unsafe fn add_two_pairs<const AT: usize>(
        self,
        pairs: (&mut Self::I, &mut Self::I),
        w: (Self::I, Self::I),
        x: *const i8,
    ) {
        // SAFETY: the token proves that the feature is there, the caller vouches for the memory.
        unsafe { add_two_pairs::<AT>(pairs, w, x) }
    }
    #[inline(always)]
    fn add_to_dots(self, dots: Self::I, pairs: Self::I, factor: i16) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, _mm256_set1_epi16(factor))) }
    }
}

impl<const VNNI: bool> Pairs for Avx512<VNNI> {
    #[inline(always)]
    unsafe fn add_pairs<const AT: usize>(self, pairs: Self::I, w: Self::I, x: *const i8) -> Self::I {
        // SAFETY: the token proves that the feature is there, the caller vouches for the memory.
        unsafe {
            let x = _mm512_set1_epi32(x.add(AT).cast::<i32>().read_unaligned());
            _mm512_add_epi16(pairs, _mm512_maddubs_epi16(w, x))
        }
    }
    #[inline(always)]
    unsafe fn add_two_pairs<const AT: usize>(
        self,
        pairs: (&mut Self::I, &mut Self::I),
        w: (Self::I, Self::I),
        x: *const i8,
    ) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            *pairs.0 = self.add_pairs::<AT>(*pairs.0, w.0, x);
            *pairs.1 = self.add_pairs::<AT>(*pairs.1, w.1, x);
        }
    }
    #[inline(always)]
    fn add_to_dots(self, dots: Self::I, pairs: Self::I, factor: i16) -> Self::I {
        // SAFETY: the token proves that the feature is there.
        unsafe { _mm512_add_epi32(dots, _mm512_madd_epi16(pairs, _mm512_set1_epi16(factor))) }
    }
}
