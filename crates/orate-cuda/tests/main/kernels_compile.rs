//! Every kernel compiles for all supported architectures without spilling registers. Needs NVRTC, but no GPU:
//!
//! ```sh
//! pip install nvidia-cuda-nvrtc
//! ```

use orate_cuda::compile_kernels;

#[test]
fn kernels_compile_for_all_architectures() {
    for arch in [75, 80, 90, 120] {
        let compiled = compile_kernels(arch).unwrap_or_else(|e| panic!("{e}"));
        for kernel in compiled {
            assert!(kernel.bytes > 0, "{} for sm_{arch}", kernel.name);
            let spills: Vec<&str> = kernel.log.lines().filter(|l| l.contains("spill")).collect();
            assert!(!spills.is_empty(), "{} for sm_{arch}: no report of the assembler", kernel.name);
            for line in spills {
                assert!(
                    line.contains(" 0 bytes spill stores, 0 bytes spill loads"),
                    "{} for sm_{arch}:\n{}",
                    kernel.name,
                    kernel.log
                );
            }
        }
    }
}
