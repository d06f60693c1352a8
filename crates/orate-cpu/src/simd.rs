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
}

/// A computation written once for every instruction set.
pub trait Kernel {
    /// Result of the computation.
    type Output;
    /// Runs the computation. Mark the implementation `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Exact integer dot products, for q8_0 and q4_0 weights.
pub trait ByteSimd: Simd {
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
    /// `sum + Σ w[i] · x[i]` in each lane, for its four unsigned bytes `w` and the four signed bytes of `x`,
    /// lowest first.
    fn dot4(self, sum: Self::I, w: Self::I, x: i32) -> Self::I;
    /// Converts to the nearest floats.
    fn to_floats(self, a: Self::I) -> Self::V;
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
    fn dot4(self, sum: Self::I, w: Self::I, x: i32) -> Self::I {
        let x = x.to_le_bytes().map(|x| i32::from(x as i8));
        std::array::from_fn(|i| {
            let w = w[i].to_le_bytes().map(i32::from);
            sum[i] + (w[0] * x[0] + w[1] * x[1]) + (w[2] * x[2] + w[3] * x[3])
        })
    }
    #[inline(always)]
    fn to_floats(self, a: Self::I) -> Self::V {
        a.map(|x| x as f32)
    }
}
