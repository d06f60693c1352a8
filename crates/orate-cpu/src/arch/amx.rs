//! Intel AMX: matrix tiles of bf16 values, multiplied and accumulated in f32.
//!
//! A tile is 16 rows of 64 bytes. `tdpbf16ps` multiplies a tile of 16 × 32 bf16 by one of 32 × 16 and adds
//! the result to a tile of 16 × 16 floats in 16 cycles, sixteen times the throughput of two FMA units. The
//! second operand has 16 rows of pairs: the values of two neighboring k side by side. Values below 2⁻¹²⁶
//! count as zero.
//!
//! | instruction | here |
//! | --- | --- |
//! | `ldtilecfg`, `tilerelease` | [`Tiles::configure`], dropping [`Tiles`] |
//! | `tilezero`, `tileloadd`, `tilestored` | [`Tiles::zero`], [`Tiles::load`], [`Tiles::store`] |
//! | `tdpbf16ps` | [`Tiles::multiply`] |
//!
//! The intrinsics are not stable in Rust, so the instructions are inline assembly. Tiles are not Rust values:
//! the eight registers are named by number and keep their content between calls. The compiler never uses them
//! by itself. The system must permit a process to use tiles, and saves them only for threads that do.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Bytes of a tile, and stride between tiles in memory.
pub(crate) const TILE_BYTES: usize = 1024;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// bf16 values in a row of a tile.
pub(crate) const TILE_K: usize = 32;

/// Whether processor and system support bf16 tiles. Asks the system once.
pub(crate) fn available() -> bool {
    // A property of the machine, so this cache cannot become stale.
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has_it() && system_allows_it())
}

fn processor_has_it() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const OSXSAVE: u32 = 1 << 27;
    const TILE_STATE: u64 = 3 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    // SAFETY: OSXSAVE says that the instruction exists.
    let states = unsafe { xgetbv() };
    features & AMX_BF16 != 0 && features & AMX_TILE != 0 && states & TILE_STATE == TILE_STATE
}

/// # Safety
/// The processor must have XSAVE enabled.
#[target_feature(enable = "xsave")]
unsafe fn xgetbv() -> u64 {
    // SAFETY: the caller guarantees it.
    unsafe { _xgetbv(0) }
}

/// Linux grants tile registers only to processes that request them.
#[cfg(target_os = "linux")]
fn system_allows_it() -> bool {
    const SYS_ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: a system call that only changes what this process may use. The kernel overwrites rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn system_allows_it() -> bool {
    false
}

/// Configured tiles of this thread: proof that they may be used. Dropping it releases the tiles, so that the
/// system need not save them any more.
#[derive(Debug)]
pub(crate) struct Tiles {
    /// The configuration belongs to one thread.
    _thread: PhantomData<*const ()>,
}

impl Tiles {
    /// Configures all eight tiles as 16 rows of 64 bytes.
    ///
    /// # Safety
    /// [`available`] must have returned true, and nothing else on this thread may be using tiles.
    pub unsafe fn configure() -> Tiles {
        #[repr(C, align(64))]
        struct Config {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut c = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        c.row_bytes[..8].fill(64);
        c.rows[..8].fill(TILE_ROWS as u8);
        // SAFETY: the structure has the layout of palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &c, options(readonly, nostack, preserves_flags)) };
        Tiles { _thread: PhantomData }
    }

    /// T = 0
    #[inline(always)]
    pub fn zero<const T: usize>(&self) {
        const { assert!(T < 8, "there are eight tiles") };
        // SAFETY: tiles are configured.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nomem, nostack, preserves_flags)) };
    }

    /// Reads T from 16 rows of 64 bytes at `p`, `stride` bytes apart.
    ///
    /// # Safety
    /// They must be readable.
    #[inline(always)]
    pub unsafe fn load<const T: usize>(&self, p: *const u8, stride: usize) {
        const { assert!(T < 8, "there are eight tiles") };
        // SAFETY: tiles are configured; the caller guarantees the memory.
        unsafe {
            asm!("tileloadd tmm{t}, [{p} + {s}]", t = const T, p = in(reg) p, s = in(reg) stride,
                options(readonly, nostack, preserves_flags))
        };
    }

    /// Writes T to 16 rows of 64 bytes at `p`, `stride` bytes apart.
    ///
    /// # Safety
    /// They must be writable.
    #[inline(always)]
    pub unsafe fn store<const T: usize>(&self, p: *mut u8, stride: usize) {
        const { assert!(T < 8, "there are eight tiles") };
        // SAFETY: tiles are configured; the caller guarantees the memory.
        unsafe {
            asm!("tilestored [{p} + {s}], tmm{t}", t = const T, p = in(reg) p, s = in(reg) stride,
                options(nostack, preserves_flags))
        };
    }

    /// C += A · B
    #[inline(always)]
    pub fn multiply<const C: usize, const A: usize, const B: usize>(&self) {
        const { assert!(C < 8 && A < 8 && B < 8, "there are eight tiles") };
        const { assert!(C != A && C != B && A != B, "an instruction takes three different tiles") };
        // SAFETY: tiles are configured.
        unsafe {
            asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nomem, nostack, preserves_flags))
        };
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: tiles are configured.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_of_small_whole_numbers_is_exact() {
        if !available() {
            return;
        }
        let bf16 = |x: f32| (x.to_bits() >> 16) as u16;
        let a: Vec<f32> = (0..16 * 32).map(|i| (i % 13) as f32 - 6.0).collect();
        let b: Vec<f32> = (0..32 * 16).map(|i| (i % 7) as f32 - 3.0).collect();
        let a_tile: Vec<u16> = a.iter().map(|&x| bf16(x)).collect();
        let b_tile: Vec<u16> = (0..512).map(|i| bf16(b[(i / 32 * 2 + i % 2) * 16 + i % 32 / 2])).collect();
        let mut c = vec![0f32; 256];
        // SAFETY: tiles are available; all operands are tiles without gaps.
        unsafe {
            let tiles = Tiles::configure();
            tiles.zero::<0>();
            tiles.load::<4>(a_tile.as_ptr().cast(), 64);
            tiles.load::<6>(b_tile.as_ptr().cast(), 64);
            tiles.multiply::<0, 4, 6>();
            tiles.multiply::<0, 4, 6>();
            tiles.store::<0>(c.as_mut_ptr().cast(), 64);
        }
        for (i, &got) in c.iter().enumerate() {
            let want: f32 = (0..32).map(|k| a[i / 16 * 32 + k] * b[k * 16 + i % 16]).sum();
            assert_eq!(got, 2.0 * want, "element {i}");
        }
    }
}
