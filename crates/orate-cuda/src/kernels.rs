//! Kernel sources, and their machine code for one device.

use crate::cache::{Cache, Key};
use crate::driver::{Context, Function, Module};
use crate::nvrtc::Nvrtc;
use orate_graph::{Activation, DType, DeviceError, Precision};
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Prefix of every file, after the numbers of activations.
const COMMON: &str = include_str!("../kernels/common.cuh");

/// Declares the activations with their numbers.
fn activations() -> String {
    let numbers = Activation::all(())
        .iter()
        .map(|a| format!(", {} = {}", a.constant(), a.number()))
        .collect::<String>();
    format!("enum Activation {{ NONE = 0{numbers}, SNAKE = {SNAKE} }};\n")
}

/// Number that stands for Snake where convolutions have activations.
pub(crate) const SNAKE: u32 = 100;

/// The oldest architecture that current compilers support.
pub(crate) const OLDEST_ARCH: u32 = 75;

/// The first with tensor cores for TF32 and bfloat16.
pub(crate) const TENSOR_ARCH: u32 = 80;

/// The first with clusters of blocks and programmatic dependent launch.
pub(crate) const CLUSTER_ARCH: u32 = 90;

/// A file compiled with certain options.
#[derive(Clone, Copy)]
struct Source {
    /// Name of the program: that of the file, and of the options.
    name: &'static str,
    text: &'static str,
    options: &'static [&'static str],
    functions: &'static [&'static str],
}

macro_rules! source {
    ($name:literal, $($file:literal)|+, $options:expr, $functions:expr) => {
        Source {
            name: $name,
            text: concat!($(include_str!(concat!("../kernels/", $file))),+),
            options: &$options,
            functions: &$functions,
        }
    };
}

/// Attention of a single query.
const DECODING: [&str; 12] = [
    "decode_1",
    "decode_2",
    "decode_4",
    "decode_heads_1",
    "decode_heads_2",
    "decode_heads_4",
    "decode_narrow_1",
    "decode_narrow_2",
    "decode_narrow_4",
    "decode_narrow_heads_1",
    "decode_narrow_heads_2",
    "decode_narrow_heads_4",
];

/// Attention of several queries over keys of a compact type.
const CACHED: [&str; 2] = ["attention_128_32", "attention_256_32"];

/// Everything but matmuls.
const SOURCES: &[Source] = &[
    source!(
        "attention",
        "attention.cuh" | "attention.cu",
        [],
        [
            "attention_32_64",
            "attention_32_128",
            "attention_64_64",
            "attention_64_96",
            "attention_128_32",
            "attention_128_64",
            "attention_256_32"
        ]
    ),
    source!("attention-f16", "cache_rows.cuh" | "attention.cuh" | "attention.cu", ["-DCACHE=1"], CACHED),
    source!("attention-bf16", "cache_rows.cuh" | "attention.cuh" | "attention.cu", ["-DCACHE=2"], CACHED),
    source!("attention-q8_0", "cache_rows.cuh" | "attention.cuh" | "attention.cu", ["-DCACHE=3"], CACHED),
    source!("attention_decode", "heads.cuh" | "attention_decode.cu", [], DECODING),
    source!(
        "attention_decode-f16",
        "cache_rows.cuh" | "heads.cuh" | "attention_decode.cu",
        ["-DCACHE=1"],
        DECODING
    ),
    source!(
        "attention_decode-bf16",
        "cache_rows.cuh" | "heads.cuh" | "attention_decode.cu",
        ["-DCACHE=2"],
        DECODING
    ),
    source!(
        "attention_decode-q8_0",
        "cache_rows.cuh" | "heads.cuh" | "attention_decode.cu",
        ["-DCACHE=3"],
        DECODING
    ),
    source!("dot", "dot.cu", [], ["dot"]),
    source!("conv_narrow", "conv_narrow.cu", [], ["narrow_32", "narrow_64", "narrow_96", "narrow_128"]),
    source!(
        "copy",
        "copy.cu",
        [],
        ["copy", "copy_f16", "copy_bf16", "copy_blocks", "write_rows", "mark", "increment", "set_scalar"]
    ),
    source!(
        "depthwise_conv1d",
        "depthwise_conv1d.cu",
        [],
        [
            "depthwise_1",
            "depthwise_4",
            "depthwise_norm_5",
            "depthwise_norm_7",
            "depthwise_norm_warps_5",
            "depthwise_norm_warps_7"
        ]
    ),
    source!("elementwise", "elementwise.cu", [], ["pointwise"]),
    source!("gather", "cache_rows.cuh" | "gather.cu", [], ["gather", "row_at", "embedding_sum"]),
    source!("harmonic_source", "harmonic_source.cu", [], ["harmonic_source"]),
    source!("heads", "cache_rows.cuh" | "heads.cuh" | "heads.cu", [], ["heads"]),
    source!(
        "layer_norm",
        "layer_norm.cu",
        [],
        ["layer_norm_1", "layer_norm_4", "layer_norm_row", "layer_norm_warps"]
    ),
    source!("lstm", "lstm.cu", [], ["lstm"]),
    source!("overlap_add", "overlap_add.cu", [], ["overlap_add"]),
    source!("pad", "pad.cu", [], ["pad"]),
    source!("permute", "permute.cu", [], ["permute"]),
    source!(
        "rms_norm",
        "rms_norm.cu",
        [],
        [
            "rms_norm_1",
            "rms_norm_4",
            "rms_norm_row_1",
            "rms_norm_row_4",
            "rms_norm_warps_1",
            "rms_norm_warps_4"
        ]
    ),
    source!("relative_scores", "relative_scores.cu", [], ["relative_scores"]),
    source!("residual_codes", "residual_codes.cu", [], ["residual_codes"]),
    source!("segment_mean", "segment_mean.cu", [], ["segment_mean"]),
    source!("snake", "snake.cu", [], ["snake_1", "snake_4"]),
    source!("statistics", "statistics.cu", [], ["statistics"]),
    // Compiled without FMA, to get the same bits as on the CPU.
    source!("random", "philox.cuh" | "random.cu", ["--fmad=false"], ["random_normal"]),
    source!("sample", "philox.cuh" | "cache_rows.cuh" | "sample.cu", ["--fmad=false"], ["sample"]),
    source!("write_cache", "cache_rows.cuh" | "write_cache.cu", [], ["write_cache"]),
    source!("rotary", "rotary.cu", [], ["rotary_table", "rope_table", "rotary", "time_embedding"]),
];

/// Kernels of a matmul program.
const PRODUCTS: [&str; 10] = [
    "matmul_1_dense",
    "matmul_2_dense",
    "matmul_3_dense",
    "matmul_5_dense",
    "matmul_9_dense",
    "matmul_5_conv",
    "matmul_5_past",
    "matmul_9_conv",
    "matmul_7_past",
    "matmul_5_odd",
];

/// Kernel for matmuls of many rows, in a program of its own.
pub(crate) const TALL: &str = "matmul_tall";

/// Kernels for matmuls of many rows by weights of 16 bits, with two and four groups of warps: without and
/// with taps.
pub(crate) const WIDE: [[&str; 2]; 2] =
    [["matmul_wide_2", "matmul_wide_2_conv"], ["matmul_wide_4", "matmul_wide_4_conv"]];

/// The same on Hopper, with four, two and one group of warps.
pub(crate) const WARPGROUP: [[&str; 2]; 3] = [
    ["matmul_warpgroup_4", "matmul_warpgroup_4_conv"],
    ["matmul_warpgroup_2", "matmul_warpgroup_2_conv"],
    ["matmul_warpgroup_1", "matmul_warpgroup_1_conv"],
];

/// The same for taps that reach far, of rows that are stored in 16 bits: with four and two groups.
pub(crate) const WARPGROUP_FAR: [&str; 2] = ["matmul_warpgroup_4_far", "matmul_warpgroup_2_far"];

/// The same of very many rows that are stored in 16 bits.
pub(crate) const WARPGROUP_ROWS: &str = "matmul_warpgroup_rows";

/// Kernels of the program for warpgroups.
const WARPGROUPS: [&str; 9] = {
    let ([[a, b], [c, d], [e, f]], [g, h]) = (WARPGROUP, WARPGROUP_FAR);
    [a, b, c, d, e, f, g, h, WARPGROUP_ROWS]
};

/// Convolutions on Hopper whose x is stored in 16 bits, by warpgroups of a block: for channels in pieces of
/// 64, and in the last one of 48.
pub(crate) const CONV: [&str; 5] = [
    "conv_warpgroup_1",
    "conv_warpgroup_2",
    "conv_warpgroup_3",
    "conv_warpgroup_48",
    "conv_warpgroup_1_ahead",
];

/// Name of the program with [`CONV`] in this precision; only those of 16 bits have one.
pub(crate) fn conv_program(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::F16 => Some("conv_warpgroup-f16"),
        Precision::Bf16 => Some("conv_warpgroup-bf16"),
        _ => None,
    }
}

/// Matmuls and attention of one or two rows in one launch.
pub(crate) const CHAIN: &str = "chain";

/// Name of the program with [`CHAIN`] for weights in this precision, and for keys and values in f32, as also
/// without attention, or in the type to which the operands of matmuls are rounded.
pub(crate) fn chain_program(precision: Precision, kept: Option<DType>) -> Option<&'static str> {
    match (precision, kept.unwrap_or(DType::F32)) {
        (Precision::F16, DType::F32) => Some("chain-f16"),
        (Precision::F16, DType::F16) => Some("chain-f16-compact"),
        (Precision::Bf16, DType::F32) => Some("chain-bf16"),
        (Precision::Bf16, DType::BF16) => Some("chain-bf16-compact"),
        (Precision::Q8_0, DType::F32) => Some("chain-q8_0"),
        (Precision::Q8_0, DType::F16) => Some("chain-q8_0-compact"),
        (Precision::Q6K, DType::F32) => Some("chain-q6_k"),
        (Precision::Q6K, DType::F16) => Some("chain-q6_k-compact"),
        (Precision::Q5K, DType::F32) => Some("chain-q5_k"),
        (Precision::Q5K, DType::F16) => Some("chain-q5_k-compact"),
        (Precision::Q4K, DType::F32) => Some("chain-q4_k"),
        (Precision::Q4K, DType::F16) => Some("chain-q4_k-compact"),
        (Precision::Q4_0, DType::F32) => Some("chain-q4_0"),
        (Precision::Q4_0, DType::F16) => Some("chain-q4_0-compact"),
        _ => None,
    }
}

/// What a transformer layer computes after its attention, of 32, 48 or 64 rows at a time, on Hopper; then
/// what the first of such layers computes before its attention.
pub(crate) const FEED_FORWARD: [[&str; 3]; 2] = [
    ["feed_forward_32", "feed_forward_48", "feed_forward_64"],
    ["projection_32", "projection_48", "projection_64"],
];

/// Name of the program with [`FEED_FORWARD`] for weights in this precision; only those of 16 bits have one.
pub(crate) fn feed_forward_program(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::F16 => Some("feed_forward-f16"),
        Precision::Bf16 => Some("feed_forward-bf16"),
        _ => None,
    }
}

/// A convolution of 32, 48 or 64 rows at a time with the layer norm that follows, on Hopper.
pub(crate) const CONV_NORM: [&str; 3] = ["conv_norm_32", "conv_norm_48", "conv_norm_64"];

/// Name of the program with [`CONV_NORM`] for weights in this precision; only those of 16 bits have one.
pub(crate) fn conv_norm_program(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::F16 => Some("conv_norm-f16"),
        Precision::Bf16 => Some("conv_norm-bf16"),
        _ => None,
    }
}

/// The only architecture with matmuls of warpgroups and with chains.
pub(crate) const WARPGROUP_ARCH: u32 = 90;

/// Whether a kernel is compiled for an architecture: old ones lack the shared memory of the largest tiles,
/// and TF32. One architecture has better kernels than [`WIDE`].
fn is_there(function: &str, arch: u32) -> bool {
    const NEW: [&str; 5] = ["matmul_7", "matmul_9", TALL, "matmul_wide", "attention_mma"];
    let is_any_of = |names: &[&str]| names.iter().any(|name| function.starts_with(name));
    match arch {
        WARPGROUP_ARCH => !is_any_of(&["matmul_wide"]),
        _ if is_any_of(&[
            "matmul_warpgroup",
            "conv_warpgroup",
            "attention_warpgroup",
            RELATIVE_SCORES_WARPGROUP,
            CHAIN,
            "feed_forward",
            "projection",
            "conv_norm",
        ]) =>
        {
            false
        }
        _ => arch >= TENSOR_ARCH || !is_any_of(&NEW),
    }
}

/// Name of the program for matmuls in this precision.
pub(crate) fn product_program(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "matmul-f32",
        Precision::Tf32 => "matmul-tf32",
        Precision::F16 => "matmul-f16",
        Precision::Bf16 => "matmul-bf16",
        Precision::Q8_0 => "matmul-q8_0",
        Precision::Q6K => "matmul-q6_k",
        Precision::Q5K => "matmul-q5_k",
        Precision::Q4K => "matmul-q4_k",
        Precision::Q4_0 => "matmul-q4_0",
    }
}

/// Options that select a precision.
fn precision_options(precision: Precision) -> &'static [&'static str] {
    match precision {
        Precision::F32 => &["-DPRECISION=0"],
        Precision::Tf32 => &["-DPRECISION=1"],
        Precision::F16 => &["-DPRECISION=2"],
        Precision::Bf16 => &["-DPRECISION=3"],
        Precision::Q8_0 => &["-DPRECISION=4"],
        Precision::Q6K => &["-DPRECISION=8"],
        Precision::Q5K => &["-DPRECISION=7"],
        Precision::Q4K => &["-DPRECISION=6"],
        Precision::Q4_0 => &["-DPRECISION=5"],
    }
}

fn product_source(precision: Precision) -> Source {
    let text = concat!(
        include_str!("../kernels/mma.cuh"),
        include_str!("../kernels/blocks.cuh"),
        include_str!("../kernels/matmul.cu")
    );
    let options = precision_options(precision);
    Source { name: product_program(precision), text, options, functions: &PRODUCTS }
}

/// Name of the program with [`TALL`] in this precision; blocks have none.
pub(crate) fn tall_program(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::F32 => Some("matmul_tall-f32"),
        Precision::Tf32 => Some("matmul_tall-tf32"),
        Precision::F16 => Some("matmul_tall-f16"),
        Precision::Bf16 => Some("matmul_tall-bf16"),
        _ => None,
    }
}

/// Name of the program with [`WIDE`] in this precision; only those of 16 bits have one.
pub(crate) fn wide_program(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::F16 => Some("matmul_wide-f16"),
        Precision::Bf16 => Some("matmul_wide-bf16"),
        _ => None,
    }
}

/// Name of the program with [`WARPGROUP`] and [`WARPGROUP_ROWS`] in this precision; only those of 16 bits
/// have one.
pub(crate) fn warpgroup_program(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::F16 => Some("matmul_warpgroup-f16"),
        Precision::Bf16 => Some("matmul_warpgroup-bf16"),
        _ => None,
    }
}

/// Attention on tensor cores.
const ATTENTION_MMA: [&str; 3] = ["attention_mma_64_1", "attention_mma_64_2", "attention_mma_128_1"];

/// Name of the program for attention on tensor cores where weights have this precision. Operands of
/// attention have no blocks: they are rounded to f16 instead.
pub(crate) fn attention_program(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "attention-mma",
        Precision::Tf32 => "attention-mma-tf32",
        Precision::Bf16 => "attention-mma-bf16",
        _ => "attention-mma-f16",
    }
}

/// Attention of many queries stored in 16 bits, on Hopper, without and with a bias.
pub(crate) const ATTENTION_WARPGROUP: [&str; 2] = ["attention_warpgroup_64", "attention_warpgroup_64_biased"];

/// Name of the program with [`ATTENTION_WARPGROUP`] where weights have this precision; only those of 16 bits
/// have one.
pub(crate) fn attention_warpgroup_program(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::F16 => Some("attention-warpgroup-f16"),
        Precision::Bf16 => Some("attention-warpgroup-bf16"),
        _ => None,
    }
}

/// Scores of relative positions of queries stored in `f16`, on Hopper, and its program.
pub(crate) const RELATIVE_SCORES_WARPGROUP: &str = "relative_scores_warpgroup_64";
/// See [`RELATIVE_SCORES_WARPGROUP`].
pub(crate) const RELATIVE_SCORES_PROGRAM: &str = "relative-scores-f16";

/// All programs for attention in this precision.
fn attention_sources(precision: Precision) -> impl Iterator<Item = Source> {
    let text = concat!(
        include_str!("../kernels/mma.cuh"),
        include_str!("../kernels/wgmma.cuh"),
        include_str!("../kernels/attention.cuh"),
        include_str!("../kernels/attention_warpgroup.cu")
    );
    let options = precision_options(precision);
    let of_warpgroups = attention_warpgroup_program(precision);
    let source = |name| Source { name, text, options, functions: &ATTENTION_WARPGROUP };
    let of_positions = (precision == Precision::F16).then_some(Source {
        name: RELATIVE_SCORES_PROGRAM,
        text: concat!(
            include_str!("../kernels/mma.cuh"),
            include_str!("../kernels/wgmma.cuh"),
            include_str!("../kernels/relative_scores_warpgroup.cu")
        ),
        options,
        functions: &[RELATIVE_SCORES_WARPGROUP],
    });
    [attention_source(precision)].into_iter().chain(of_warpgroups.map(source)).chain(of_positions)
}

fn attention_source(precision: Precision) -> Source {
    let text = concat!(
        include_str!("../kernels/mma.cuh"),
        include_str!("../kernels/attention.cuh"),
        include_str!("../kernels/attention_mma.cu")
    );
    let options = match precision {
        blocks if blocks.block() > 1 => precision_options(Precision::F16),
        float => precision_options(float),
    };
    Source { name: attention_program(precision), text, options, functions: &ATTENTION_MMA }
}

/// All programs for weights in this precision.
fn sources_of(precision: Precision) -> impl Iterator<Item = Source> {
    macro_rules! text {
        ($($before:literal)?) => {
            concat!(
                $($before,)?
                include_str!("../kernels/mma.cuh"),
                include_str!("../kernels/blocks.cuh"),
                include_str!("../kernels/heads.cuh"),
                include_str!("../kernels/chain.cu")
            )
        };
    }
    let chain = move |kept| {
        let text = if kept == DType::F32 { text!() } else { text!("#define COMPACT\n") };
        let name = chain_program(precision, Some(kept))?;
        Some(Source { name, text, options: precision_options(precision), functions: &[CHAIN] })
    };
    // Encoders have operands in f16 instead of bf16.
    let of_encoders = (precision == Precision::Bf16).then(|| attention_sources(Precision::F16));
    product_sources(precision)
        .chain(attention_sources(precision))
        .chain(of_encoders.into_iter().flatten())
        .chain([DType::F32, DType::F16, DType::BF16].into_iter().filter_map(chain))
}

/// All programs for matmuls in this precision.
fn product_sources(precision: Precision) -> impl Iterator<Item = Source> {
    macro_rules! with {
        ($($file:literal)|+) => {
            concat!(
                include_str!("../kernels/mma.cuh"),
                include_str!("../kernels/blocks.cuh"),
                include_str!("../kernels/matmul.cu"),
                include_str!("../kernels/matmul_rows.cuh"),
                $(include_str!(concat!("../kernels/", $file))),+
            )
        };
    }
    let source = product_source(precision);
    let program = |name: Option<&'static str>, text, functions| {
        name.map(|name| Source { name, text, options: source.options, functions })
    };
    let tall = program(tall_program(precision), with!("matmul_tall.cu"), &[TALL]);
    let wide = program(wide_program(precision), with!("matmul_wide.cu"), WIDE.as_flattened());
    let of_warpgroups = with!("wgmma.cuh" | "pieces.cuh" | "matmul_warpgroup.cu");
    let warpgroup = program(warpgroup_program(precision), of_warpgroups, &WARPGROUPS);
    let conv = program(conv_program(precision), with!("wgmma.cuh" | "conv_warpgroup.cu"), &CONV);
    let layers = concat!(
        include_str!("../kernels/mma.cuh"),
        include_str!("../kernels/wgmma.cuh"),
        include_str!("../kernels/feed_forward.cu")
    );
    let layers = program(feed_forward_program(precision), layers, FEED_FORWARD.as_flattened());
    let normed = concat!(
        include_str!("../kernels/mma.cuh"),
        include_str!("../kernels/wgmma.cuh"),
        include_str!("../kernels/pieces.cuh"),
        include_str!("../kernels/conv_norm.cu")
    );
    let normed = program(conv_norm_program(precision), normed, &CONV_NORM);
    let of_layers = layers.into_iter().chain(normed);
    [source].into_iter().chain(tall).chain(wide).chain(warpgroup).chain(conv).chain(of_layers)
}

/// Unit of compilation: a whole file, or one instance of a template in a file with many. A plan waits for the
/// slowest of its units, so large files are split.
struct Unit {
    source: Source,
    functions: Vec<&'static str>,
    arch: u32,
}

impl Source {
    /// The units of this file for an architecture.
    fn units(self, arch: u32) -> Vec<Unit> {
        let functions: Vec<_> = self.functions.iter().copied().filter(|f| is_there(f, arch)).collect();
        let unit = |functions| Unit { source: self, functions, arch };
        if self.text.lines().any(is_instance) {
            functions.into_iter().map(|f| unit(vec![f])).collect()
        } else if functions.is_empty() {
            vec![]
        } else {
            vec![unit(functions)]
        }
    }
}

/// Whether a line of a kernel file instantiates a template.
fn is_instance(line: &str) -> bool {
    line.starts_with("KERNEL(")
}

impl Unit {
    /// Complete source, with the common prefix and without the instances of other units.
    fn text(&self) -> String {
        let mut text = format!("{}{COMMON}\n#line 1\n", activations());
        let ours = |line: &str| self.functions.iter().any(|f| line.starts_with(&format!("KERNEL({f},")));
        for line in self.source.text.lines() {
            if !is_instance(line) || ours(line) {
                text += line;
            }
            text.push('\n');
        }
        text
    }

    /// Key in the cache, for the source that [`Unit::text`] returns.
    fn key(&self, text: &str) -> Key {
        Key::of(&[text, &self.options().join(" ")])
    }

    fn options(&self) -> Vec<String> {
        // Matmuls of warpgroups are in no later architecture, so they need a name of their own.
        let only = if self.arch == WARPGROUP_ARCH { "a" } else { "" };
        let mut options = vec![
            format!("--gpu-architecture=sm_{}{only}", self.arch),
            "--std=c++17".to_owned(),
            "--diag-suppress=177".to_owned(),
        ];
        options.extend(self.source.options.iter().map(|o| (*o).to_owned()));
        options
    }
}

/// Runs `work` for every index below `n` on several threads and returns the results in order.
pub(crate) fn in_parallel<T: Send>(n: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(n);
    let next = AtomicUsize::new(0);
    let mut results: Vec<(usize, T)> = std::thread::scope(|scope| {
        let worker = || {
            let mut done = vec![];
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= n {
                    return done;
                }
                done.push((i, work(i)));
            }
        };
        // If the system has no more threads, the existing ones do all the work; the calling thread is always
        // there.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, worker).ok();
        let workers: Vec<_> = (1..threads).map_while(start).collect();
        let own = worker();
        let others =
            workers.into_iter().flat_map(|w| w.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        own.into_iter().chain(others).collect()
    });
    results.sort_by_key(|r| r.0);
    results.into_iter().map(|r| r.1).collect()
}

/// Program and name of a kernel.
pub(crate) type Name = (&'static str, &'static str);

/// The kernel whose unit is there from the start.
const BASE: Name = ("copy", "copy");

/// Name of notes in the cache.
const NOTE: &str = "prepared";

/// Compiles a source with options; see [`Nvrtc::compile`].
type Compile = Box<dyn Fn(&str, &str, &[String]) -> Result<Vec<u8>, String> + Send + Sync>;

/// Kernels of one device. The machine code of a unit is read from the cache or compiled when an executable
/// first needs it. The driver then loads it, which takes about a millisecond per unit.
pub(crate) struct Kernels {
    device: String,
    compile: Compile,
    cache: Option<Cache>,
    units: Vec<Code>,
    /// Unit of each kernel, and its index in the unit.
    places: HashMap<Name, (usize, usize)>,
    /// Number of units compiled so far.
    compiled: AtomicUsize,
}

/// A unit, its machine code, and its kernels after loading.
struct Code {
    unit: Unit,
    /// Set by the thread that makes `cubin`; other threads do other units first.
    begun: AtomicBool,
    /// A unit that does not compile keeps its error.
    cubin: OnceLock<Result<Vec<u8>, String>>,
    loaded: OnceLock<Loaded>,
}

struct Loaded {
    functions: Vec<Function>,
    _module: Module,
}

impl Kernels {
    /// Lists the kernels, for matmuls in some precisions and in f32, which is always included. Obtains the
    /// machine code of one unit only, so that a missing compiler is noticed early. Needs no context, so that
    /// one can be created at the same time.
    ///
    /// # Errors
    /// The unit is not in the cache, and NVRTC was not found or cannot compile it.
    pub fn open(
        device: &str,
        arch: u32,
        precisions: &[Precision],
        cache: Option<Cache>,
    ) -> Result<Kernels, DeviceError> {
        // Opened on first use: loading it is a large part of the time to the first sentence.
        let nvrtc = OnceLock::new();
        let compile = move |name: &str, text: &str, options: &[String]| {
            let nvrtc = nvrtc.get_or_init(Nvrtc::open).as_ref().map_err(String::clone)?;
            Ok(nvrtc.compile(name, text, options)?.0)
        };
        Self::with_compiler(device, arch, precisions, cache, Box::new(compile))
    }

    fn with_compiler(
        device: &str,
        arch: u32,
        precisions: &[Precision],
        cache: Option<Cache>,
        compile: Compile,
    ) -> Result<Kernels, DeviceError> {
        let mut sources: Vec<Source> = sources_of(Precision::F32).collect();
        for source in precisions.iter().copied().filter(|p| *p != Precision::F32).flat_map(sources_of) {
            // Formats share attention.
            if !sources.iter().any(|s| s.name == source.name) {
                sources.push(source);
            }
        }
        sources.extend(SOURCES);
        let (mut units, mut places) = (vec![], HashMap::new());
        for unit in sources.into_iter().flat_map(|s| s.units(arch)) {
            for (i, function) in unit.functions.iter().enumerate() {
                places.insert((unit.source.name, *function), (units.len(), i));
            }
            let (begun, cubin, loaded) = Default::default();
            units.push(Code { unit, begun, cubin, loaded });
        }
        let (device, compiled) = (device.to_owned(), AtomicUsize::new(0));
        let kernels = Kernels { device, compile, cache, units, places, compiled };
        kernels.obtain([BASE])?;
        Ok(kernels)
    }

    fn place(&self, kernel: Name) -> (usize, usize) {
        *self.places.get(&kernel).expect("lowering names kernels of the table")
    }

    /// All of them.
    pub fn names(&self) -> Vec<Name> {
        self.places.keys().copied().collect()
    }

    /// Notes in the cache that it has what `what` needs from this version of the program.
    pub fn note(&self, what: &str) {
        if let Some(cache) = &self.cache {
            cache.put(NOTE, self.key_of_note(what), b"noted");
        }
    }

    /// Whether the cache has such a note.
    pub fn is_noted(&self, what: &str) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.has(NOTE, self.key_of_note(what)))
    }

    fn key_of_note(&self, what: &str) -> Key {
        let arch = self.units[self.place(BASE).0].unit.arch;
        Key::of(&[what, env!("CARGO_PKG_VERSION"), &arch.to_string()])
    }

    /// Reads or compiles the machine code of all units of `kernels` on several threads. Each unit is compiled
    /// once, also when several threads ask for it.
    ///
    /// # Errors
    /// A unit does not compile, or NVRTC was not found.
    pub fn obtain(&self, kernels: impl IntoIterator<Item = Name>) -> Result<(), DeviceError> {
        self.units_of(kernels).map(drop)
    }

    fn units_of(&self, kernels: impl IntoIterator<Item = Name>) -> Result<Vec<&Code>, DeviceError> {
        let start = Instant::now();
        let units: BTreeSet<usize> = kernels.into_iter().map(|kernel| self.place(kernel).0).collect();
        let all: Vec<&Code> = units.into_iter().map(|i| &self.units[i]).collect();
        let missing: Vec<&Code> = all.iter().copied().filter(|c| c.cubin.get().is_none()).collect();
        let before = self.compiled.load(Ordering::Relaxed);
        in_parallel(missing.len(), |i| {
            if !missing[i].begun.swap(true, Ordering::Relaxed) {
                let _ = self.cubin(missing[i]);
            }
        });
        let compiled = self.compiled.load(Ordering::Relaxed) - before;
        // Cached files are within bounds already.
        if let Some(cache) = self.cache.as_ref().filter(|_| compiled > 0) {
            cache.trim();
        }
        // Waits for units that other threads have begun, and returns errors, also earlier ones.
        all.iter().try_for_each(|code| self.cubin(code).map(drop))?;
        if !missing.is_empty() {
            let (units, elapsed) = (missing.len(), start.elapsed());
            tracing::debug!(device = self.device, units, compiled, ?elapsed, "machine code is there");
        }
        Ok(all)
    }

    /// The machine code of a unit. If another thread makes it, waits for that thread.
    fn cubin<'c>(&self, code: &'c Code) -> Result<&'c [u8], DeviceError> {
        let made = code.cubin.get_or_init(|| self.make(&code.unit));
        let setup =
            |problem: &String| DeviceError::Setup { device: self.device.clone(), problem: problem.clone() };
        made.as_deref().map_err(setup)
    }

    /// Reads the machine code of a unit from the cache, or compiles it.
    fn make(&self, unit: &Unit) -> Result<Vec<u8>, String> {
        let (name, text) = (unit.source.name, unit.text());
        let key = unit.key(&text);
        if let Some(code) = self.cache.as_ref().and_then(|c| c.get(name, key)) {
            return Ok(code);
        }
        let code = (self.compile)(name, &text, &unit.options())?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        if let Some(cache) = &self.cache {
            cache.put(name, key, &code);
        }
        Ok(code)
    }

    /// Loads the units of `kernels` on the device, if they are not there yet.
    ///
    /// # Errors
    /// A unit does not compile, NVRTC was not found, or the driver refuses a unit.
    pub fn load(
        &self,
        context: &Arc<Context>,
        kernels: impl IntoIterator<Item = Name>,
    ) -> Result<(), DeviceError> {
        self.units_of(kernels)?.into_iter().try_for_each(|code| self.loaded(context, code).map(drop))
    }

    fn loaded<'c>(&self, context: &Arc<Context>, code: &'c Code) -> Result<&'c Loaded, DeviceError> {
        if let Some(loaded) = code.loaded.get() {
            return Ok(loaded);
        }
        let module = Module::load(context, self.cubin(code)?)?;
        let one = |name: &&str| {
            let name = CString::new(*name)
                .map_err(|e| DeviceError::Setup { device: context.name.clone(), problem: e.to_string() })?;
            module.function(&name)
        };
        let functions = code.unit.functions.iter().map(one).collect::<Result<_, _>>()?;
        // Another thread may have been faster; its module is equivalent.
        Ok(code.loaded.get_or_init(|| Loaded { functions, _module: module }))
    }

    /// Returns a kernel. Executables load theirs in advance; the unit of any other is loaded now.
    ///
    /// # Errors
    /// As [`Kernels::load`].
    pub fn get(&self, context: &Arc<Context>, kernel: Name) -> Result<&Function, DeviceError> {
        let (unit, i) = self.place(kernel);
        Ok(&self.loaded(context, &self.units[unit])?.functions[i])
    }

    /// Reason why machine code could not be stored.
    pub fn cache_problem(&self) -> Option<String> {
        self.cache.as_ref().and_then(Cache::problem)
    }
}

/// Result of compiling a kernel file.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    /// Names of the program and of its kernels.
    pub name: String,
    /// Size of the machine code in bytes.
    pub bytes: usize,
    /// Assembler report on registers, stack and spills.
    pub log: String,
}

/// Compiles every kernel for compute capability `arch` / 10, without a GPU: a check for builds and packages.
///
/// # Errors
/// NVRTC was not found, or a kernel does not compile.
pub fn compile_kernels(arch: u32) -> Result<Vec<Compiled>, DeviceError> {
    let setup = |problem: String| DeviceError::Setup { device: format!("sm_{arch}"), problem };
    let nvrtc = Nvrtc::open().map_err(setup)?;
    let mut sources: Vec<Source> = vec![];
    for precision in Precision::ALL {
        if arch >= TENSOR_ARCH || precision == Precision::F32 {
            sources.extend(product_sources(precision));
        }
    }
    sources.extend(Precision::FLOATS.into_iter().flat_map(attention_sources));
    sources.extend(SOURCES);
    let units: Vec<Unit> = sources.into_iter().flat_map(|s| s.units(arch)).collect();
    let compiled = in_parallel(units.len(), |i| {
        let unit = &units[i];
        let mut options = unit.options();
        options.push("--ptxas-options=-v".to_owned());
        let name = format!("{} ({})", unit.source.name, unit.functions.join(", "));
        let (code, log) = nvrtc.compile(&name, &unit.text(), &options).map_err(setup)?;
        Ok(Compiled { name, bytes: code.len(), log })
    });
    compiled.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::Folder;
    use std::sync::Mutex;
    use std::time::Duration;

    /// Kernels of four units.
    const SOME: [Name; 5] = [
        ("gather", "gather"),
        ("gather", "row_at"),
        ("pad", "pad"),
        ("dot", "dot"),
        ("matmul-bf16", "matmul_1_dense"),
    ];

    /// Names of the programs that were compiled, in order.
    type Log = Arc<Mutex<Vec<String>>>;

    fn open(cache: Option<&Folder>, compile: Compile) -> Result<Kernels, DeviceError> {
        let cache = cache.map(|folder| Cache::new(&folder.0));
        Kernels::with_compiler("cuda:0", CLUSTER_ARCH, &[Precision::Bf16], cache, compile)
    }

    /// A compiler that takes a while and logs what it compiles. It cannot compile `broken`.
    fn slow(log: &Log, broken: &'static str) -> Compile {
        let log = log.clone();
        Box::new(move |name, _, _| {
            log.lock().expect("no panics").push(name.to_owned());
            std::thread::sleep(Duration::from_millis(20));
            if name == broken { Err(format!("{name}: broken")) } else { Ok(name.as_bytes().to_vec()) }
        })
    }

    fn sorted(log: &Log) -> Vec<String> {
        let mut names = log.lock().expect("no panics").clone();
        names.sort();
        names
    }

    #[test]
    fn opening_compiles_one_unit() {
        let log = Log::default();
        let kernels = open(None, slow(&log, "")).expect("opens");
        assert!(kernels.units.len() > 50);
        assert_eq!(sorted(&log), ["copy"]);
        kernels.obtain(kernels.names()).expect("compiles");
        assert_eq!(log.lock().expect("no panics").len(), kernels.units.len(), "all, once");
    }

    #[test]
    fn threads_compile_each_named_unit_once() {
        let log = Log::default();
        let kernels = open(None, slow(&log, "")).expect("opens");
        std::thread::scope(|scope| {
            for i in 0..6 {
                let kernels = &kernels;
                scope.spawn(move || {
                    let names = SOME.into_iter().cycle().skip(i).take(SOME.len());
                    let units = kernels.units_of(names).expect("compiles");
                    assert_eq!(units.len(), 4);
                    assert!(units.iter().all(|u| matches!(u.cubin.get(), Some(Ok(_)))), "all are there");
                });
            }
        });
        assert_eq!(sorted(&log), ["copy", "dot", "gather", "matmul-bf16", "pad"]);
    }

    #[test]
    fn the_second_start_compiles_nothing() {
        let (folder, log) = (Folder::new("second-start"), Log::default());
        open(Some(&folder), slow(&log, "")).expect("opens").obtain(SOME).expect("compiles");
        let files = || std::fs::read_dir(&folder.0).expect("is there").count();
        assert_eq!((log.lock().expect("no panics").len(), files()), (5, 5));
        let second = open(Some(&folder), Box::new(|name, _, _| panic!("{name} is compiled"))).expect("opens");
        assert!(!second.is_noted("a model"));
        second.note("a model");
        let units = second.units_of(SOME).expect("reads");
        assert!(units.iter().all(|u| u.cubin.get() == Some(&Ok(u.unit.source.name.as_bytes().to_vec()))));
        assert_eq!((second.compiled.load(Ordering::Relaxed), files()), (0, 6), "a note more");
        let third = open(Some(&folder), slow(&log, "")).expect("opens");
        assert!(
            third.is_noted("a model")
                && !third.is_noted("another")
                && !open(None, slow(&log, "")).expect("opens").is_noted("a model")
        );
        assert_eq!(second.units.iter().filter(|u| u.cubin.get().is_some()).count(), 5, "no other is read");
    }

    #[test]
    fn without_a_compiler_opening_fails_unless_its_unit_is_cached() {
        let (folder, none) =
            (Folder::new("no-compiler"), || -> Compile { Box::new(|_, _, _| Err("no NVRTC".to_owned())) });
        let failed = |e: Option<DeviceError>| e.expect("fails").to_string();
        assert_eq!(failed(open(Some(&folder), none()).err()), "device `cuda:0`: no NVRTC");
        drop(open(Some(&folder), slow(&Log::default(), "")).expect("opens"));
        let kernels = open(Some(&folder), none()).expect("is cached");
        assert_eq!(failed(kernels.obtain(SOME).err()), "device `cuda:0`: no NVRTC");
    }

    #[test]
    fn a_unit_that_does_not_compile_keeps_its_error() {
        let log = Log::default();
        let kernels = open(None, slow(&log, "pad")).expect("opens");
        for _ in 0..2 {
            let e = kernels.obtain(SOME).expect_err("fails");
            assert_eq!(e.to_string(), "device `cuda:0`: pad: broken");
        }
        kernels.obtain([("dot", "dot")]).expect("is there");
        assert_eq!(sorted(&log), ["copy", "dot", "gather", "matmul-bf16", "pad"], "each once");
    }

    /// Otherwise a wrong name in the table would fail only on a real GPU.
    #[test]
    fn every_kernel_of_the_table_is_in_its_file() {
        for source in SOURCES.iter().copied().chain(Precision::ALL.into_iter().flat_map(sources_of)) {
            for function in source.functions {
                let names = [format!(" {function}("), format!("KERNEL({function},")];
                assert!(names.iter().any(|n| source.text.contains(n)), "{}: {function}", source.name);
            }
        }
    }

    #[test]
    fn units_hold_each_kernel_once() {
        for arch in [OLDEST_ARCH, CLUSTER_ARCH] {
            for source in SOURCES.iter().copied().chain(Precision::ALL.into_iter().flat_map(sources_of)) {
                let units = source.units(arch);
                let all: Vec<_> = units.iter().flat_map(|u| u.functions.clone()).collect();
                let wanted: Vec<_> = source.functions.iter().copied().filter(|f| is_there(f, arch)).collect();
                assert_eq!(all, wanted, "{}", source.name);
                for u in &units {
                    let instances = u.text().lines().filter(|l| is_instance(l)).count();
                    assert!(instances == 0 || instances == u.functions.len(), "{}: {instances}", source.name);
                }
            }
        }
    }

    #[test]
    fn results_of_threads_are_in_order() {
        assert_eq!(in_parallel(100, |i| i * i), (0..100).map(|i| i * i).collect::<Vec<_>>());
        assert!(in_parallel(0, |i| i).is_empty());
    }
}
