//! Instruction sets that implement [`crate::simd::Simd`].

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;
