//! Intel AMX: matrix tiles of bf16 numbers, multiplied and summed in f32.
//!
//! The intrinsics are not stable in Rust, so the few instructions we need are written in assembly here. A tile
//! is 16 rows of 64 bytes; `tdpbf16ps` adds the product of a tile of 16 × 32 bf16 and one of 32 × 16 (as 16 rows
//! of pairs) to a tile of 16 × 16 floats in 16 cycles, sixteen times as much as two FMA units do.
//!
//! The system must allow a process to use tiles, and saves them only for threads that do.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Bytes of a tile, and the distance at which we place tiles in memory.
pub(crate) const TILE_BYTES: usize = 1024;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// bf16 numbers in a row of a tile.
pub(crate) const TILE_K: usize = 32;

/// Whether processor and system allow tiles of bf16. Asks the system once.
pub(crate) fn available() -> bool {
    // A fact of the machine, not a cache: it cannot go stale.
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
/// The processor must have XSAVE switched on.
#[target_feature(enable = "xsave")]
unsafe fn xgetbv() -> u64 {
    // SAFETY: as promised by the caller.
    unsafe { _xgetbv(0) }
}

/// Linux hands tile registers only to processes that ask for them.
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

/// Sets the tile shapes for [`accumulate`]: sums and left operands of `rows` rows. Undo with [`release`].
///
/// # Safety
/// [`available`] must have said yes; `rows` is 1 to 16.
#[inline]
pub(crate) unsafe fn configure(rows: usize) {
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }
    let mut c = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    for tile in 0..8 {
        c.row_bytes[tile] = 64;
        c.rows[tile] = if tile < 6 { rows as u8 } else { TILE_ROWS as u8 };
    }
    // SAFETY: the structure is what palette 1 asks for.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &c, options(nostack)) };
}

/// Gives the tiles back, so that the system need not save them any more.
///
/// # Safety
/// [`available`] must have said yes.
#[inline]
pub(crate) unsafe fn release() {
    // SAFETY: as promised.
    unsafe { asm!("tilerelease", options(nomem, nostack)) };
}

/// A row of 32 floats is kept as three bf16 numbers each, whose sum is the float exactly. Planes follow each
/// other as tiles: for each step of 32 along K, [plane][two tiles], each [`TILE_BYTES`].
pub(crate) const STEP_BYTES: usize = 6 * TILE_BYTES;

/// `sums += a · b` over `steps` steps of 32 along K, for two tiles of rows times two tiles of columns. `sums` is
/// [2 · rows][32] floats, of which tile rows are [`configure`]d. Reads `ahead` bytes ahead into the cache for each
/// step: `ahead_lines` cache lines, one after the other.
///
/// Of the nine products of planes the six largest are computed; the others are below the last bit of a float.
///
/// # Safety
/// Tiles are configured; `a` and `b` hold `steps` steps; `sums` has 2 · rows rows.
#[inline]
pub(crate) unsafe fn accumulate(
    rows: usize,
    steps: usize,
    mut a: *const u8,
    mut b: *const u8,
    sums: *mut f32,
    mut ahead: *const u8,
    ahead_lines: usize,
) {
    let below = sums.wrapping_add(rows * 32);
    // SAFETY: the operands exist, as promised. The compiler never uses tile registers itself.
    unsafe {
        asm!(
            "tileloadd tmm0, [{s} + {d}]",
            "tileloadd tmm1, [{s} + {d} + 64]",
            "tileloadd tmm2, [{t} + {d}]",
            "tileloadd tmm3, [{t} + {d} + 64]",
            s = in(reg) sums, t = in(reg) below, d = in(reg) 128usize,
            options(nostack, readonly),
        );
        for _ in 0..steps {
            asm!(
                "tileloadd tmm4, [{a} + {d}]",
                "tileloadd tmm6, [{b} + {d}]",
                "tileloadd tmm5, [{a} + {d} + 1024]",
                "tileloadd tmm7, [{b} + {d} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{b} + {d} + 4096]",
                "tileloadd tmm7, [{b} + {d} + 5120]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{b} + {d} + 2048]",
                "tileloadd tmm7, [{b} + {d} + 3072]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm4, [{a} + {d} + 2048]",
                "tileloadd tmm5, [{a} + {d} + 3072]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{b} + {d}]",
                "tileloadd tmm7, [{b} + {d} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm4, [{a} + {d} + 4096]",
                "tileloadd tmm5, [{a} + {d} + 5120]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                a = in(reg) a, b = in(reg) b, d = in(reg) 64usize,
                options(nostack, readonly),
            );
            a = a.wrapping_add(STEP_BYTES);
            b = b.wrapping_add(STEP_BYTES);
            for _ in 0..ahead_lines {
                asm!("prefetcht1 [{}]", in(reg) ahead, options(nostack, readonly));
                ahead = ahead.wrapping_add(64);
            }
        }
        asm!(
            "tilestored [{s} + {d}], tmm0",
            "tilestored [{s} + {d} + 64], tmm1",
            "tilestored [{t} + {d}], tmm2",
            "tilestored [{t} + {d} + 64], tmm3",
            s = in(reg) sums, t = in(reg) below, d = in(reg) 128usize,
            options(nostack),
        );
    }
}
