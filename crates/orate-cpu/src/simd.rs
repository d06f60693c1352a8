//! Vectors for each instruction set, so that each kernel is written once.
//!
//! A [`Simd`] token proves that its instruction set was detected on this machine. [`crate::Isa`] is its only
//! source, which is why its methods can be safe. Kernels are structs that implement [`Kernel`];
//! [`crate::Isa::run`] calls them in a function compiled for the instruction set.
//!
//! Everything below that function (`Kernel::run`, its helpers, the methods here) must be `#[inline(always)]`:
//! intrinsics become single instructions only when inlined into a function compiled for their feature.

/// Vector arithmetic on `LANES` 32-bit floats.
///
/// Methods that take pointers are unsafe as usual; all others are safe because the token exists.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Floats in one vector.
    const LANES: usize;
    /// Number of vector registers; determines the size of matmul tiles.
    const REGISTERS: usize;
    /// Whether multiply-adds can take one lane of a register. Then [`Simd::steps`] is faster than a loop over
    /// [`Simd::step`].
    const BY_LANE: bool = false;
    /// A vector of floats.
    type V: Copy;
    /// Result of a comparison: one boolean per lane.
    type M: Copy;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// Reads `LANES` floats.
    ///
    /// # Safety
    /// `p` must be valid for reading `LANES` floats; no alignment is needed.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// Writes `LANES` floats.
    ///
    /// # Safety
    /// `p` must be valid for writing `LANES` floats; no alignment is needed.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Reads the first `n <= LANES` floats. The other lanes are zero, and their memory is not touched.
    ///
    /// # Safety
    /// `p` must be valid for reading `n` floats.
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::V;
    /// Writes only the first `n <= LANES` lanes.
    ///
    /// # Safety
    /// `p` must be valid for writing `n` floats.
    unsafe fn store_partial(self, p: *mut f32, v: Self::V, n: usize);
    /// Reads `LANES` half-precision numbers.
    ///
    /// # Safety
    /// `p` must be valid for reading them; no alignment is needed.
    unsafe fn load_f16(self, p: *const u16) -> Self::V;
    /// Reads `LANES` bf16 numbers.
    ///
    /// # Safety
    /// `p` must be valid for reading them; no alignment is needed.
    unsafe fn load_bf16(self, p: *const u16) -> Self::V;
    /// Reads `LANES` signed bytes.
    ///
    /// # Safety
    /// `p` must be valid for reading them.
    unsafe fn load_i8(self, p: *const i8) -> Self::V;
    /// Writes `LANES` signed bytes, the nearest integers (halves to even, NaN as 0), and returns them. The
    /// integers must be in the range of a byte.
    ///
    /// # Safety
    /// `p` must be valid for writing them.
    unsafe fn store_i8(self, p: *mut i8, v: Self::V) -> Self::V;
    /// All lanes the half-precision number at `p`.
    ///
    /// # Safety
    /// `p` must be valid for reading it; no alignment is needed.
    unsafe fn splat_f16(self, p: *const u16) -> Self::V;
    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`. Rounded once where the hardware has it; the portable path rounds twice.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Lane-wise minimum; where `a` is NaN the result is `b`.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise maximum; where `a` is NaN the result is `b`.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Square root.
    fn sqrt(self, a: Self::V) -> Self::V;
    /// Nearest integer, halves to even.
    fn round(self, a: Self::V) -> Self::V;
    /// Magnitude.
    fn abs(self, a: Self::V) -> Self::V;
    /// The magnitude of `a` with the sign of `sign`.
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V;
    /// `a * 2^n`, where `n` are integers and the exponent of the result is in the normal range (−126 to 127).
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V;
    /// `a < b`, lane by lane.
    fn less(self, a: Self::V, b: Self::V) -> Self::M;
    /// `m ? a : b`
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// Sum of the lanes, in a fixed order.
    fn reduce_add(self, a: Self::V) -> f32;
    /// Largest lane.
    fn reduce_max(self, a: Self::V) -> f32;
    /// Transposes a square of `LANES` rows and columns. Strides are in floats.
    ///
    /// # Safety
    /// `from` must be valid for reading `LANES` rows of `LANES` floats, `to` for writing them.
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);
    /// Prefetches the cache line at `p` into the second-level cache. Never faults.
    fn prefetch(self, p: *const f32);
    /// The steps of a matmul tile along K: `sums[i] += Σ a[i, k] · b[k]`, in order. Strides are in floats.
    /// Meanwhile prefetches some bytes from `ahead` on.
    ///
    /// # Safety
    /// `a` must be valid for reading `ROWS` rows of `k` floats, `b` for `k` rows of `VECTORS` vectors.
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
        for _ in 0..k / UNROLL {
            if let Some((ahead, bytes)) = ahead {
                // Two lines per iteration are as many as a core can have in flight.
                self.prefetch(ahead.wrapping_byte_add(fetched));
                self.prefetch(ahead.wrapping_byte_add(fetched + 64));
                fetched = (fetched + 128).min(bytes);
            }
            for u in 0..UNROLL {
                // SAFETY: `a` and `b` have `k` columns and rows.
                unsafe { self.step(a.add(u), a_stride, b.add(u * b_stride), sums) };
            }
            a = a.wrapping_add(UNROLL);
            b = b.wrapping_add(UNROLL * b_stride);
        }
        for u in 0..k % UNROLL {
            // SAFETY: the last columns of `a` and rows of `b`, of which there are `k`.
            unsafe { self.step(a.add(u), a_stride, b.add(u * b_stride), sums) };
        }
    }
    /// One step of a matmul tile: `sums[i] += a[i] · b`.
    ///
    /// # Safety
    /// `a` must be valid for reading `ROWS` floats with a stride, `b` for `VECTORS` vectors.
    #[inline(always)]
    unsafe fn step<const ROWS: usize, const VECTORS: usize>(
        self,
        a: *const f32,
        a_stride: usize,
        b: *const f32,
        sums: &mut [[Self::V; VECTORS]; ROWS],
    ) {
        let mut row = [self.splat(0.0); VECTORS];
        for (j, v) in row.iter_mut().enumerate() {
            // SAFETY: `b` has this vector.
            *v = unsafe { self.load(b.add(j * Self::LANES)) };
        }
        for (i, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `a` has this row.
            let a = self.splat(unsafe { *a.add(i * a_stride) });
            for (sum, &v) in sums.iter_mut().zip(&row) {
                *sum = self.fma(a, v, *sum);
            }
        }
    }
}

/// Steps of a matmul tile along K per iteration of its loop.
pub const UNROLL: usize = 4;

/// A computation written once for every instruction set.
pub trait Kernel {
    /// Result of the computation.
    type Output;
    /// Runs the computation. Mark the implementation `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Whether weights of eight bits are stored as unsigned bytes, 128 more than their value: x86 multiplies
/// unsigned by signed bytes, ARM signed ones.
pub const UNSIGNED_WEIGHTS: bool = !cfg!(target_arch = "aarch64");

/// Bytes from one group of four weights of all columns of a panel to the next.
pub const GROUP_BYTES: usize = 4 * 32;

/// Exact integer dot products, for weights in blocks.
pub trait ByteSimd: Simd {
    /// Maximum rows of a tile, at most 6.
    const TILE_ROWS: usize;
    /// Maximum rows of a tile as wide as a panel; higher ones are half as wide.
    const WIDE_ROWS: usize = Self::TILE_ROWS;
    /// `LANES` integers of 32 bits, or `4 · LANES` bytes.
    type I: Copy;

    /// All lanes `x`.
    fn splat_i32(self, x: i32) -> Self::I;
    /// Reads `4 · LANES` bytes.
    ///
    /// # Safety
    /// `p` must be valid for reading them; no alignment is needed.
    unsafe fn load_bytes(self, p: *const u8) -> Self::I;
    /// The lower four bits of each byte.
    fn low_nibbles(self, a: Self::I) -> Self::I;
    /// The upper four bits of each byte.
    fn high_nibbles(self, a: Self::I) -> Self::I;
    /// `sum + Σ w[i] · x[i]` in each lane, for its four bytes `w` and the four signed bytes of `x`, lowest
    /// first. `w` is unsigned if [`UNSIGNED_WEIGHTS`], else signed; no byte of `x` is −128.
    fn dot4(self, sum: Self::I, w: Self::I, x: i32) -> Self::I;
    /// `low` with those bits of the bytes of `high` that `mask` has after a shift by `left`, to the right if
    /// that is negative. Bits that cross bytes must not be in `mask`.
    fn or_bits(self, low: Self::I, high: Self::I, left: i32, mask: u8) -> Self::I;
    /// Converts to the nearest floats.
    fn to_floats(self, a: Self::I) -> Self::V;
    /// Adds to `dots` the dot products of half a block with rows of x: 16 terms, four groups of four. Vector
    /// v of the lower four bits belongs to groups 2v and 2v + 1. Upper bits of group j are `bits` in each
    /// byte of `high`, from bit `first + bits · j` on.
    ///
    /// # Safety
    /// `low` is valid for reading `VECTORS` vectors of two groups, `high` of one, each `x` for 16 bytes.
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
        unsafe { fours::half(self, low, high, bits, x, dots) }
    }
    /// Dot products of a tile's columns of a block with rows of x, each added to the start of its row: 32
    /// terms, eight groups of four. With `NIBBLES`, the lower half of a byte belongs to group g and the upper
    /// half to group g + 4.
    ///
    /// # Safety
    /// `w` is valid for reading `VECTORS` vectors of eight groups (four with `NIBBLES`), each `x` for 32
    /// bytes.
    #[inline(always)]
    unsafe fn dot_block<const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
        self,
        w: *const u8,
        x: &[*const i8; ROWS],
        starts: [i32; ROWS],
    ) -> [[Self::I; VECTORS]; ROWS] {
        // SAFETY: the caller vouches for the memory.
        unsafe { fours::block::<_, ROWS, VECTORS, NIBBLES>(self, w, x, starts) }
    }
    /// `sums += dots · (d · scale)`, where each column has a `d` and each row a `scale`.
    ///
    /// # Safety
    /// `scales` must be valid for reading.
    #[inline(always)]
    unsafe fn add_scaled<const ROWS: usize, const VECTORS: usize>(
        self,
        dots: [[Self::I; VECTORS]; ROWS],
        d: [Self::V; VECTORS],
        scales: [*const f32; ROWS],
        sums: &mut [[Self::V; VECTORS]; ROWS],
    ) {
        for v in 0..VECTORS {
            for i in 0..ROWS {
                // SAFETY: the caller guarantees it.
                let scale = self.mul(d[v], self.splat(unsafe { *scales[i] }));
                sums[i][v] = self.fma(self.to_floats(dots[i][v]), scale, sums[i][v]);
            }
        }
    }
}

/// Dot products by [`ByteSimd::dot4`].
pub mod fours {
    use super::{ByteSimd, GROUP_BYTES};

    /// [`ByteSimd::dot_half`].
    ///
    /// # Safety
    /// As for [`ByteSimd::dot_half`].
    #[inline(always)]
    pub unsafe fn half<S: ByteSimd, const ROWS: usize, const VECTORS: usize>(
        s: S,
        low: *const u8,
        high: *const u8,
        (first, bits): (i32, i32),
        x: &[*const i8; ROWS],
        dots: &mut [[S::I; VECTORS]; ROWS],
    ) {
        let mask = ((1 << bits) - 1) << 4;
        for v in 0..VECTORS {
            let at = 4 * v * S::LANES;
            // SAFETY: the caller vouches for the vectors and for four groups of x.
            unsafe {
                let upper = s.load_bytes(high.add(at));
                for group in 0..4 {
                    let both = s.load_bytes(low.add(group / 2 * GROUP_BYTES + at));
                    let lower = if group % 2 == 0 { s.low_nibbles(both) } else { s.high_nibbles(both) };
                    let w = s.or_bits(lower, upper, 4 - first - bits * group as i32, mask);
                    for (dots, x) in dots.iter_mut().zip(x) {
                        dots[v] = s.dot4(dots[v], w, x.cast::<i32>().add(group).read_unaligned());
                    }
                }
            }
        }
    }

    /// [`ByteSimd::dot_block`].
    ///
    /// # Safety
    /// As for [`ByteSimd::dot_block`].
    #[inline(always)]
    pub unsafe fn block<S: ByteSimd, const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
        s: S,
        w: *const u8,
        x: &[*const i8; ROWS],
        starts: [i32; ROWS],
    ) -> [[S::I; VECTORS]; ROWS] {
        // Loops, because `map` and `from_fn` of arrays are calls that know nothing of the instruction set.
        let mut dots = [[s.splat_i32(0); VECTORS]; ROWS];
        for (dots, start) in dots.iter_mut().zip(starts) {
            *dots = [s.splat_i32(start); VECTORS];
        }
        let groups = if NIBBLES { 4 } else { 8 };
        for g in 0..groups {
            let mut bytes = [s.splat_i32(0); VECTORS];
            for (v, bytes) in bytes.iter_mut().enumerate() {
                // SAFETY: the caller vouches for the vectors of this group.
                *bytes = unsafe { s.load_bytes(w.add(g * GROUP_BYTES + 4 * v * S::LANES)) };
            }
            for (i, x) in x.iter().enumerate() {
                // SAFETY: the caller vouches for eight groups.
                let group = |g: usize| unsafe { x.cast::<i32>().add(g).read_unaligned() };
                for v in 0..VECTORS {
                    let low = if NIBBLES { s.low_nibbles(bytes[v]) } else { bytes[v] };
                    dots[i][v] = s.dot4(dots[i][v], low, group(g));
                }
                for v in 0..if NIBBLES { VECTORS } else { 0 } {
                    dots[i][v] = s.dot4(dots[i][v], s.high_nibbles(bytes[v]), group(g + groups));
                }
            }
        }
        dots
    }
}

/// A computation on bytes, written once for every instruction set. Called by [`crate::Isa::run_bytes`].
pub trait ByteKernel {
    /// Result of the computation.
    type Output;
    /// Runs the computation. Mark the implementation `#[inline(always)]`.
    fn run<S: ByteSimd>(self, s: S) -> Self::Output;
}

/// The portable token: plain Rust, compiled for the baseline of the target.
#[derive(Clone, Copy, Debug)]
pub struct Portable(pub(crate) ());

const PORTABLE_LANES: usize = 8;

impl Portable {
    #[inline(always)]
    fn zip(a: [f32; 8], b: [f32; 8], f: impl Fn(f32, f32) -> f32) -> [f32; 8] {
        std::array::from_fn(|i| f(a[i], b[i]))
    }
}

impl Simd for Portable {
    const LANES: usize = PORTABLE_LANES;
    const REGISTERS: usize = 8;
    type V = [f32; 8];
    type M = [bool; 8];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for eight floats at `p`.
        unsafe { p.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for eight floats at `p`.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: only indices below `n` are read.
        std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, v: Self::V, n: usize) {
        for (i, x) in v.iter().enumerate().take(n) {
            // SAFETY: only indices below `n` are written.
            unsafe { *p.add(i) = *x }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller vouches for eight numbers at `p`.
        std::array::from_fn(|i| half::f16::from_bits(unsafe { p.add(i).read_unaligned() }).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller vouches for eight numbers at `p`.
        std::array::from_fn(|i| f32::from_bits(u32::from(unsafe { p.add(i).read_unaligned() }) << 16))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::V {
        // SAFETY: the caller vouches for eight bytes at `p`.
        std::array::from_fn(|i| f32::from(unsafe { *p.add(i) }))
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: Self::V) -> Self::V {
        let bytes = self.round(v).map(|x| x as i8);
        // SAFETY: the caller vouches for eight bytes at `p`.
        unsafe { p.cast::<[i8; 8]>().write(bytes) };
        bytes.map(f32::from)
    }
    #[inline(always)]
    unsafe fn splat_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller vouches for the number at `p`.
        [half::f16::from_bits(unsafe { p.read_unaligned() }).to_f32(); 8]
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        Self::zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        Self::zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        Self::zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        Self::zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        Self::zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        Self::zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        a.map(f32::sqrt)
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 to even without a library call.
        const MAGIC: f32 = 12_582_912.0;
        a.map(|x| if x.abs() < 4_194_304.0 { (x + MAGIC) - MAGIC } else { x })
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V {
        Self::zip(a, sign, f32::copysign)
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, a: Self::V, n: Self::V) -> Self::V {
        Self::zip(a, n, |a, n| a * f32::from_bits((((n as i32) + 127) as u32) << 23))
    }
    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V) -> Self::M {
        std::array::from_fn(|i| a[i] < b[i])
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| if m[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        a.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m })
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for (i, j) in (0..8).flat_map(|i| (0..8).map(move |j| (i, j))) {
            // SAFETY: the caller vouches for eight rows of eight floats.
            unsafe { *to.add(j * to_stride + i) = *from.add(i * from_stride + j) };
        }
    }
    #[inline(always)]
    fn prefetch(self, _: *const f32) {}
}

impl ByteSimd for Portable {
    const TILE_ROWS: usize = 2;
    type I = [i32; 8];

    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::I {
        // SAFETY: the caller vouches for 32 bytes at `p`.
        unsafe { p.cast::<[i32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    fn low_nibbles(self, a: Self::I) -> Self::I {
        a.map(|x| x & 0x0f0f_0f0f)
    }
    #[inline(always)]
    fn high_nibbles(self, a: Self::I) -> Self::I {
        a.map(|x| x >> 4 & 0x0f0f_0f0f)
    }
    #[inline(always)]
    fn or_bits(self, low: Self::I, high: Self::I, left: i32, mask: u8) -> Self::I {
        let mask = i32::from_ne_bytes([mask; 4]);
        let shifted = |x: i32| if left >= 0 { x << left } else { x >> -left };
        std::array::from_fn(|i| low[i] | shifted(high[i]) & mask)
    }
    #[inline(always)]
    fn dot4(self, sum: Self::I, w: Self::I, x: i32) -> Self::I {
        let x = x.to_le_bytes().map(|x| i32::from(x as i8));
        std::array::from_fn(|i| {
            let w = w[i].to_le_bytes().map(|w| if UNSIGNED_WEIGHTS { w.into() } else { i32::from(w as i8) });
            sum[i] + (w[0] * x[0] + w[1] * x[1]) + (w[2] * x[2] + w[3] * x[3])
        })
    }
    #[inline(always)]
    fn to_floats(self, a: Self::I) -> Self::V {
        a.map(|x| x as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    /// What each method makes of the same numbers, as bits: vectors of eight, whatever the set's width.
    struct All<'a> {
        x: &'a [f32],
        y: &'a [f32],
        halves: &'a [u16],
        bytes: &'a [u8],
    }

    /// Most lanes of a vector.
    const MOST: usize = 16;

    fn bits(x: &[f32]) -> Vec<u32> {
        // The payload of NaN differs.
        x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
    }

    impl ByteKernel for All<'_> {
        type Output = Vec<(&'static str, Vec<u32>)>;

        #[inline(always)]
        fn run<S: ByteSimd>(self, s: S) -> Self::Output {
            let mut all = vec![];
            let mut each = |name, f: &dyn Fn(S::V, S::V) -> S::V| {
                let mut out = vec![0.0; self.x.len()];
                for i in (0..out.len()).step_by(S::LANES) {
                    // SAFETY: lengths are multiples of all widths.
                    unsafe {
                        let (x, y) = (s.load(self.x.as_ptr().add(i)), s.load(self.y.as_ptr().add(i)));
                        s.store(out.as_mut_ptr().add(i), f(x, y));
                    }
                }
                all.push((name, bits(&out)));
            };
            each("add", &|x, y| s.add(x, y));
            each("sub", &|x, y| s.sub(x, y));
            each("mul", &|x, y| s.mul(x, y));
            each("div", &|x, y| s.div(x, y));
            each("min", &|x, y| s.min(x, y));
            each("max", &|x, y| s.max(x, y));
            each("sqrt", &|x, _| s.sqrt(s.abs(x)));
            // The portable path rounds small negative numbers to zero, others to minus zero.
            each("round", &|x, _| s.add(s.round(x), s.splat(0.0)));
            each("copysign", &|x, y| s.copysign(x, y));
            each("select", &|x, y| s.select(s.less(x, y), s.splat(1.0), y));
            each("fma", &|x, y| s.fma(s.round(x), s.splat(2.0), s.round(y)));
            let one = s.splat(1.5);
            each("scale", &|x, _| s.scale_by_power_of_two(one, s.round(s.max(s.min(x, one), s.splat(-9.0)))));

            let (mut halves, mut brains, mut eighths) = (vec![], vec![], vec![]);
            let (mut stored, mut rounded, mut dots, mut nibbles) = (vec![], vec![], vec![], vec![]);
            let mut buffer = [0.0; MOST];
            let mut floats = |v: S::V, out: &mut Vec<u32>| {
                // SAFETY: the buffer has room for the widest vector.
                unsafe { s.store(buffer.as_mut_ptr(), v) };
                out.extend(bits(&buffer[..S::LANES]));
            };
            for i in (0..self.halves.len()).step_by(S::LANES) {
                // SAFETY: lengths are multiples of all widths; there are four bytes for each number.
                unsafe {
                    floats(s.load_f16(self.halves.as_ptr().add(i)), &mut halves);
                    floats(s.splat_f16(self.halves.as_ptr().add(i / MOST * MOST)), &mut halves);
                    floats(s.load_bf16(self.halves.as_ptr().add(i)), &mut brains);
                    floats(s.load_i8(self.bytes.as_ptr().add(i).cast()), &mut eighths);
                    let weights = s.load_bytes(self.bytes.as_ptr().add(4 * i));
                    let x = i32::from_le_bytes([3, 0x81, 0x7f, 0xfe]);
                    let signs = s.splat_i32(0x7f7f_7f7f);
                    let dot = |w| s.to_floats(s.dot4(s.splat_i32(-7), w, x));
                    floats(dot(weights), &mut dots);
                    floats(dot(signs), &mut dots);
                    floats(dot(s.low_nibbles(weights)), &mut nibbles);
                    floats(dot(s.high_nibbles(weights)), &mut nibbles);
                    // The fifth bits of q5_k and the upper two of q6_k, from the first and last places.
                    for (left, mask) in [(4, 0x10), (-3, 0x10), (4, 0x30), (-2, 0x30)] {
                        floats(dot(s.or_bits(s.low_nibbles(weights), weights, left, mask)), &mut nibbles);
                    }
                }
            }
            for i in (0..self.x.len()).step_by(S::LANES) {
                let mut small = [0; MOST];
                // SAFETY: as above.
                unsafe {
                    let x = s.load(self.x.as_ptr().add(i));
                    // Within the range of a byte; NaN stays.
                    let x = s.select(s.less(s.abs(x), s.splat(120.0)), x, s.splat(f32::NAN));
                    floats(s.store_i8(small.as_mut_ptr(), x), &mut rounded);
                }
                stored.extend(small[..S::LANES].iter().map(|x| u32::from(*x as u8)));
            }
            let parts = (0..=8).flat_map(|n| {
                let mut out = [-1.0; MOST + 1];
                // SAFETY: eight numbers are there.
                unsafe { s.store_partial(out.as_mut_ptr().add(1), s.load_partial(self.y.as_ptr(), n), n) };
                bits(&out[..10])
            });
            all.push(("parts", parts.collect()));
            let mut square = vec![0.0; MOST * MOST];
            for (i, j) in
                (0..MOST).step_by(S::LANES).flat_map(|i| (0..MOST).step_by(S::LANES).map(move |j| (i, j)))
            {
                // SAFETY: both squares have `MOST` rows and columns.
                unsafe {
                    s.transpose(
                        self.y.as_ptr().add(i * MOST + j),
                        MOST,
                        square.as_mut_ptr().add(j * MOST + i),
                        MOST,
                    )
                };
            }
            all.push(("transpose", bits(&square)));
            // Small integers, whose sum is exact in any order.
            let most = self.y[..MOST].iter().map(|y| y.round());
            let first: Vec<f32> = most.collect();
            // SAFETY: there are as many numbers as the widest vector has.
            let (sum, largest) = unsafe {
                let sums = (0..MOST).step_by(S::LANES).map(|i| s.reduce_add(s.load(first.as_ptr().add(i))));
                let sum = sums.sum::<f32>();
                let largest =
                    (0..MOST).step_by(S::LANES).map(|i| s.reduce_max(s.load(first.as_ptr().add(i))));
                (sum, largest.fold(f32::NEG_INFINITY, f32::max))
            };
            all.push(("reduce", bits(&[sum, largest])));
            all.extend([("f16", halves), ("bf16", brains), ("i8", eighths), ("store_i8", stored)]);
            all.extend([("round_i8", rounded), ("dot4", dots), ("nibbles", nibbles)]);
            all
        }
    }

    #[test]
    fn all_sets_compute_what_the_portable_one_does() {
        let count = 256;
        let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.5, 1.5, -2.5, 1e-40, -3e38];
        let x = |i: usize| special.get(i / 2).copied().unwrap_or((i as f32 * 1.37).sin() * i as f32);
        let x: Vec<f32> = (0..count).map(x).collect();
        let y: Vec<f32> = (0..count).map(|i| (i as f32 * 0.71 + 0.3).cos() * 9.0).collect();
        let halves: Vec<u16> = (0..65536 / 16).map(|i| (i * 16 + i % 16) as u16).collect();
        let bytes: Vec<u8> = (0..4 * halves.len()).map(|i| (i * 37 % 256) as u8).collect();
        let of = |isa: Isa| isa.run_bytes(All { x: &x, y: &y, halves: &halves, bytes: &bytes });
        let sorted = |mut list: Vec<u32>| {
            list.sort_unstable();
            list
        };
        let expected = of(Isa::PORTABLE);
        for isa in Isa::available() {
            for ((name, got), (_, want)) in of(isa).into_iter().zip(expected.clone()) {
                // Two lists of vectors stand by turns, in vectors of each width.
                let (got, want) = match name {
                    "f16" | "dot4" | "nibbles" => (sorted(got), sorted(want)),
                    _ => (got, want),
                };
                assert!(got == want, "{isa}: {name}");
            }
        }
    }
}
