//! Splits floats into bf16 planes for the matmul on AMX tiles: rows of x at once, weights a little at a time.

use super::Element;
use super::amx::{COLUMN_STEP, PLANES};
use crate::arch::amx::{TILE_BYTES, TILE_K, TILE_ROWS};
use std::arch::x86_64::*;

/// Splits `len` floats into bf16 planes. A step of 32 values is 64 bytes in each plane; strides are
/// `plane_bytes` and `step_bytes`. Pads the last step with zeros.
///
/// # Safety
/// The machine has AVX-512 F and BW; `x` has `len` floats, `out` has room for all steps.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn cut_row(x: *const f32, len: usize, out: *mut u8, plane_bytes: usize, step_bytes: usize) {
    const ODD: [i16; 32] = {
        let mut odd = [0; 32];
        let mut i = 0;
        while i < 32 {
            odd[i] = 2 * i as i16 + 1;
            i += 1;
        }
        odd
    };
    // SAFETY: the constant has 64 bytes.
    let odd = unsafe { _mm512_loadu_si512(ODD.as_ptr().cast()) };
    let high = _mm512_set1_epi32(0xFFFF_0000u32 as i32);
    for step in 0..len.div_ceil(TILE_K) {
        let left = len - step * TILE_K;
        // SAFETY: only floats below `len` are read; `out` has this step.
        unsafe {
            let x = x.add(step * TILE_K);
            let out = out.add(step * step_bytes);
            let mut a = _mm512_maskz_loadu_ps(first_lanes(left), x);
            let mut b = _mm512_maskz_loadu_ps(first_lanes(left.saturating_sub(16)), x.wrapping_add(16));
            for plane in 0..PLANES {
                let (bits_a, bits_b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
                // The high halves of all floats, in order.
                let both = _mm512_permutex2var_epi16(bits_a, odd, bits_b);
                _mm512_storeu_si512(out.add(plane * plane_bytes).cast(), both);
                a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_si512(bits_a, high)));
                b = _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_and_si512(bits_b, high)));
            }
        }
    }
}

fn first_lanes(n: usize) -> u16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}

/// Rows of packed weights.
#[derive(Clone, Copy)]
pub(super) struct WeightRows {
    /// Rows of 16 · `vectors` elements.
    pub data: *const u8,
    pub element: Element,
    pub vectors: usize,
    pub rows: usize,
}

/// Splits a slice of a panel into planes, two rows at a time.
pub(super) struct Cutter {
    /// Remaining rows; further ones count as zero.
    w: WeightRows,
    /// Remaining pairs, a multiple of 16 at the start.
    left: usize,
    /// Address of the next pair in the first plane.
    planes: *mut u8,
}

impl Cutter {
    /// A cutter without work.
    pub const NONE: Cutter = Cutter {
        w: WeightRows { data: std::ptr::null(), element: Element::F32, vectors: 0, rows: 0 },
        left: 0,
        planes: std::ptr::null_mut(),
    };

    pub fn new(w: WeightRows, planes: *mut u8) -> Cutter {
        Cutter { w, left: w.rows.div_ceil(TILE_K) * TILE_ROWS, planes }
    }

    /// Remaining pairs.
    #[inline(always)]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Splits the next two rows.
    ///
    /// # Safety
    /// A pair is left; the machine has AVX-512; weights and planes exist.
    #[inline(always)]
    pub unsafe fn pair(&mut self) {
        let WeightRows { data, element, vectors, rows } = self.w;
        let width = 16 * vectors * element.bytes();
        for v in 0..vectors {
            let w = data.wrapping_add(16 * element.bytes() * v);
            let out = self.planes.wrapping_add(v * TILE_BYTES);
            // SAFETY: only rows below `rows` are read, and the planes have room for all pairs. Prefetching is
            // safe anywhere.
            unsafe {
                // Far enough ahead to hide the memory latency.
                _mm_prefetch::<_MM_HINT_T1>(w.wrapping_add(8192).cast());
                _mm_prefetch::<_MM_HINT_T1>(w.wrapping_add(8192 + width).cast());
                match element {
                    Element::F32 => cut_pair::<3>(
                        if rows > 0 { _mm512_loadu_ps(w.cast()) } else { _mm512_setzero_ps() },
                        if rows > 1 { _mm512_loadu_ps(w.add(width).cast()) } else { _mm512_setzero_ps() },
                        out,
                    ),
                    Element::F16 => cut_pair::<2>(
                        _mm512_cvtph_ps(halves(rows > 0, w)),
                        _mm512_cvtph_ps(halves(rows > 1, w.wrapping_add(width))),
                        out,
                    ),
                    Element::Bf16 => {
                        let a = _mm512_cvtepu16_epi32(halves(rows > 0, w));
                        let b = _mm512_cvtepu16_epi32(halves(rows > 1, w.wrapping_add(width)));
                        _mm512_store_si512(out.cast(), _mm512_or_si512(a, _mm512_slli_epi32::<16>(b)));
                    }
                }
            }
        }
        self.w.data = data.wrapping_add(2 * width);
        self.w.rows = rows.saturating_sub(2);
        self.left -= 1;
        // The next row of these tiles, or of the next step's.
        let next = if self.left.is_multiple_of(TILE_ROWS) { COLUMN_STEP - TILE_BYTES + 64 } else { 64 };
        self.planes = self.planes.wrapping_add(next);
    }

    /// Splits all remaining rows.
    ///
    /// # Safety
    /// As for [`pair`](Cutter::pair).
    #[inline(always)]
    pub unsafe fn rest(&mut self) {
        while self.left > 0 {
            // SAFETY: a pair is left.
            unsafe { self.pair() };
        }
    }
}

/// Sixteen elements of two bytes, or zeros unless `read`.
///
/// # Safety
/// The machine has AVX-512; the elements exist if `read`.
#[inline(always)]
unsafe fn halves(read: bool, w: *const u8) -> __m256i {
    // SAFETY: the caller guarantees it.
    unsafe { if read { _mm256_loadu_si256(w.cast()) } else { _mm256_setzero_si256() } }
}

/// Stores the first `KEPT` planes of two rows: their values interleaved in pairs, planes two tiles apart.
///
/// # Safety
/// The machine has AVX-512, and `out` has room.
#[inline(always)]
unsafe fn cut_pair<const KEPT: usize>(mut a: __m512, mut b: __m512, out: *mut u8) {
    // SAFETY: the caller guarantees it.
    unsafe {
        let high = _mm512_set1_epi32(0xFFFF_0000u32 as i32);
        for plane in 0..KEPT {
            let (bits_a, bits_b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
            let (top_a, top_b) = (_mm512_and_si512(bits_a, high), _mm512_and_si512(bits_b, high));
            let both = _mm512_or_si512(_mm512_srli_epi32::<16>(bits_a), top_b);
            _mm512_store_si512(out.add(2 * plane * TILE_BYTES).cast(), both);
            a = _mm512_sub_ps(a, _mm512_castsi512_ps(top_a));
            b = _mm512_sub_ps(b, _mm512_castsi512_ps(top_b));
        }
    }
}
