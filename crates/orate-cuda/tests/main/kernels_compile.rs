//! Every kernel compiles for all supported architectures without spilling registers. Needs NVRTC, but no GPU:
//!
//! ```sh
//! pip install nvidia-cuda-nvrtc
//! ```

use orate_cuda::compile_kernels;

#[test]
fn kernels_compile_for_all_that_differ() {
    [75, 80, 90].into_iter().for_each(compile_for);
}

/// The newest, whose kernels are those of the others: nothing is in them that 80 or 90 have not.
#[test]
#[ignore = "two minutes on two old cores; scripts/gpu-check runs it"]
fn kernels_compile_for_the_newest() {
    compile_for(120);
}

fn compile_for(arch: u32) {
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
