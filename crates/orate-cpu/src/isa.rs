//! Instruction set of the kernels: detected at run time, or forced by option or environment.

#[cfg(target_arch = "aarch64")]
use crate::arch::neon::{Neon, dots};
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use crate::arch::wasm::{self, Simd128};
use crate::simd::{ByteKernel, Kernel, Portable};
#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

/// An instruction set of this machine. Values exist only for detected sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Vnni,
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    Dotprod,
    #[cfg(target_arch = "aarch64")]
    I8mm,
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Wasm,
}

/// Names of all sets, best first.
const NAMES: [&str; 11] = [
    "amx",
    "vnni",
    "avx512",
    "avx-vnni",
    "avx2",
    "neon-i8mm",
    "neon-dotprod",
    "neon",
    "relaxed-simd",
    "simd128",
    "portable",
];

/// Environment variable that forces an instruction set: `amx`, `vnni`, `avx512`, `avx-vnni`, `avx2`,
/// `neon-i8mm`, `neon-dotprod`, `neon`, `relaxed-simd`, `simd128` or `portable`.
pub const ISA_VARIABLE: &str = "ORATE_CPU_ISA";

/// Whether a kernel of this name multiplies on AMX tiles. Names begin with the instruction set that a kernel
/// uses.
pub fn uses_tiles(kernel: &str) -> bool {
    kernel.split('-').next() == Some("amx")
}

/// The requested instruction set cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("CPU instruction set `{asked}` {problem}; this machine can run: {available}")]
pub struct IsaError {
    asked: String,
    problem: &'static str,
    available: String,
}

impl Isa {
    /// Plain Rust; runs everywhere.
    pub const PORTABLE: Isa = Isa(Level::Portable);

    /// All sets that this machine can run, best first.
    pub fn available() -> Vec<Isa> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
            {
                if is_x86_feature_detected!("avx512vnni") {
                    if crate::arch::amx::available() {
                        found.push(Isa(Level::Amx));
                    }
                    found.push(Isa(Level::Vnni));
                }
                found.push(Isa(Level::Avx512));
            }
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                if is_x86_feature_detected!("avxvnni") {
                    found.push(Isa(Level::AvxVnni));
                }
                found.push(Isa(Level::Avx2));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if is_aarch64_feature_detected!("neon") {
            if is_aarch64_feature_detected!("dotprod") {
                if is_aarch64_feature_detected!("i8mm") {
                    found.push(Isa(Level::I8mm));
                }
                found.push(Isa(Level::Dotprod));
            }
            found.push(Isa(Level::Neon));
        }
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        found.push(Isa(Level::Wasm));
        found.push(Isa::PORTABLE);
        found
    }

    /// Returns the best set of this machine, or the one that [`ISA_VARIABLE`] names.
    ///
    /// # Errors
    /// The variable names an unknown set, or one that this machine lacks.
    pub fn detect() -> Result<Isa, IsaError> {
        match std::env::var(ISA_VARIABLE) {
            Ok(name) if !name.is_empty() => Isa::named(&name),
            _ => Ok(Isa::available()[0]),
        }
    }

    /// Returns the set called `name`.
    ///
    /// # Errors
    /// The name is unknown, or this machine lacks the set.
    pub fn named(name: &str) -> Result<Isa, IsaError> {
        let available = Isa::available();
        if let Some(isa) = available.iter().find(|i| i.name() == name) {
            return Ok(*isa);
        }
        let known = NAMES.contains(&name);
        Err(IsaError {
            asked: name.to_owned(),
            problem: if known { "is not supported by this processor" } else { "is unknown" },
            available: available.iter().map(|i| i.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Whether matmuls run on AMX tiles.
    pub(crate) fn has_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Level::Amx;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether pairs of bf16 numbers can be multiplied: `run_bf16`.
    pub fn has_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self.0, Level::Vnni | Level::Amx) && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Runs `kernel` compiled with AVX-512 BF16.
    ///
    /// # Panics
    /// The set is without it.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn run_bf16<K: crate::arch::x86::Bf16Kernel>(self, kernel: K) {
        assert!(self.has_bf16(), "{self} without bf16");
        // SAFETY: the feature was detected, and these levels have the others.
        unsafe { crate::arch::x86::run_bf16(kernel) }
    }

    /// The set that all kernels but matmuls use.
    pub(crate) fn vectors(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Amx | Level::Vnni => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => "avx2",
            #[cfg(target_arch = "aarch64")]
            Level::Dotprod | Level::I8mm => "neon",
            _ => self.name(),
        }
    }

    /// The set that integer matmuls use.
    pub(crate) fn bytes(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Amx => "vnni",
            _ => self.name(),
        }
    }

    /// `amx` (AVX-512 with VNNI and matrix tiles), `vnni` (AVX-512 with integer dot products), `avx512`,
    /// `avx-vnni` (AVX2 with integer dot products), `avx2`, `neon-i8mm` (NEON with integer matrix products),
    /// `neon-dotprod` (with integer dot products), `neon`, `relaxed-simd` (of WebAssembly, with multiply-adds
    /// rounded once), `simd128` or `portable`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Vnni => "vnni",
            #[cfg(target_arch = "x86_64")]
            Level::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Level::Dotprod => "neon-dotprod",
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => "neon-i8mm",
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Level::Wasm => wasm::NAME,
        }
    }

    /// Runs `kernel` compiled for this instruction set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        /// One function for all callers.
        fn portable<K: Kernel>(kernel: K) -> K::Output {
            kernel.run(Portable(()))
        }
        match self.0 {
            Level::Portable => portable(kernel),
            // SAFETY: these levels exist only if their features were detected.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::AvxVnni => unsafe { crate::arch::x86::run_avx2(kernel) },
            // SAFETY: these levels exist only if their features were detected.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Vnni | Level::Amx => unsafe { crate::arch::x86::run_avx512(kernel) },
            #[cfg(target_arch = "aarch64")]
            Level::Neon | Level::Dotprod | Level::I8mm => kernel.run(Neon::<{ dots::NONE }>(())),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Level::Wasm => kernel.run(Simd128(())),
        }
    }

    /// Runs `kernel` compiled for the byte instructions of this set.
    #[inline]
    pub fn run_bytes<K: ByteKernel>(self, kernel: K) -> K::Output {
        /// One function for all callers.
        fn portable<K: ByteKernel>(kernel: K) -> K::Output {
            kernel.run(Portable(()))
        }
        match self.0 {
            Level::Portable => portable(kernel),
            // SAFETY: this level exists only if its features were detected.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { crate::arch::x86::run_bytes_avx2(kernel) },
            // SAFETY: this level exists only if its features were detected.
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => unsafe { crate::arch::x86::run_bytes_avx_vnni(kernel) },
            // SAFETY: this level exists only if its features were detected.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { crate::arch::x86::run_bytes_avx512(kernel) },
            // SAFETY: these levels exist only if their features were detected.
            #[cfg(target_arch = "x86_64")]
            Level::Vnni | Level::Amx => unsafe { crate::arch::x86::run_bytes_vnni(kernel) },
            #[cfg(target_arch = "aarch64")]
            Level::Neon => kernel.run(Neon::<{ dots::NONE }>(())),
            // SAFETY: this level exists only if its features were detected.
            #[cfg(target_arch = "aarch64")]
            Level::Dotprod => unsafe { crate::arch::neon::run_bytes_dotprod(kernel) },
            // SAFETY: this level exists only if its features were detected.
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => unsafe { crate::arch::neon::run_bytes_i8mm(kernel) },
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Level::Wasm => kernel.run(Simd128(())),
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints the sets, which `scripts/arm-check` compares with what each processor has.
    #[test]
    fn only_sets_of_this_machine_can_be_named() {
        let available: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
        println!("instruction sets: {}", available.join(", "));
        assert_eq!(available.last(), Some(&"portable"));
        for name in NAMES {
            match Isa::named(name) {
                Ok(isa) => assert!(isa.name() == name && available.contains(&name), "{name}"),
                Err(e) => {
                    assert!(!available.contains(&name), "{name}");
                    let all = available.join(", ");
                    let said = "is not supported by this processor; this machine can run:";
                    assert_eq!(e.to_string(), format!("CPU instruction set `{name}` {said} {all}"));
                }
            }
        }
        assert!(Isa::named("abacus").is_err_and(|e| e.to_string().contains("is unknown")));
    }
}
