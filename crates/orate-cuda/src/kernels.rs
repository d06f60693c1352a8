//! Kernel sources, and the units in which they are compiled.

use crate::cache::Key;
use crate::nvrtc::Nvrtc;
use orate_graph::{Activation, DType, DeviceError, Precision};
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// Attention of a single query over rows that begin alike, with the blocks of a cluster and threads of a
/// block.
pub(crate) const SHARED: [(&str, usize, usize); 3] =
    [("decode_shared_8", 8, 256), ("decode_shared_4", 4, 256), ("decode_shared_2", 2, 512)];

/// Their names.
const DECODING_IN_COMMON: [&str; 3] = [SHARED[0].0, SHARED[1].0, SHARED[2].0];

/// Attention of a single query over a short cache with the matmul that follows, on Hopper, and channels of a
/// cluster: for up to 8 and up to 16 rows.
pub(crate) const ATTENTION_OUTPUT: [(&str, usize); 2] =
    [("attention_output_64", 64), ("attention_output_128", 128)];

/// Their names.
const ATTENTION_OUTPUTS: [&str; 2] = [ATTENTION_OUTPUT[0].0, ATTENTION_OUTPUT[1].0];

/// Name of the program with [`ATTENTION_OUTPUT`], for weights, keys and values in bf16.
pub(crate) const ATTENTION_OUTPUT_PROGRAM: &str = "attention_output-bf16";

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
    source!(
        "attention-mma-cached-f16",
        "mma.cuh" | "cache_rows.cuh" | "attention.cuh" | "attention_mma.cu",
        ["-DPRECISION=0", "-DCACHE=1"],
        ATTENTION_MMA
    ),
    source!(
        "attention-mma-cached-bf16",
        "mma.cuh" | "cache_rows.cuh" | "attention.cuh" | "attention_mma.cu",
        ["-DPRECISION=0", "-DCACHE=2"],
        ATTENTION_MMA
    ),
    source!("attention_decode", "heads.cuh" | "decode.cuh" | "attention_decode.cu", [], DECODING),
    source!(
        "attention_decode-f16",
        "cache_rows.cuh" | "heads.cuh" | "decode.cuh" | "attention_decode.cu",
        ["-DCACHE=1"],
        DECODING
    ),
    source!(
        "attention_decode-bf16",
        "cache_rows.cuh" | "heads.cuh" | "decode.cuh" | "attention_decode.cu",
        ["-DCACHE=2"],
        DECODING
    ),
    source!(
        "attention_decode-q8_0",
        "cache_rows.cuh" | "heads.cuh" | "decode.cuh" | "attention_decode.cu",
        ["-DCACHE=3"],
        DECODING
    ),
    source!(
        "attention_shared-f16",
        "mma.cuh" | "cache_rows.cuh" | "heads.cuh" | "barriers.cuh" | "decode.cuh" | "attention_shared.cu",
        ["-DPRECISION=2", "-DCACHE=1"],
        DECODING_IN_COMMON
    ),
    source!(
        "attention_shared-bf16",
        "mma.cuh" | "cache_rows.cuh" | "heads.cuh" | "barriers.cuh" | "decode.cuh" | "attention_shared.cu",
        ["-DPRECISION=3", "-DCACHE=2"],
        DECODING_IN_COMMON
    ),
    source!(
        "attention_output-bf16",
        "mma.cuh" | "cache_rows.cuh" | "heads.cuh" | "barriers.cuh" | "decode.cuh" | "attention_output.cu",
        ["-DPRECISION=3", "-DCACHE=2"],
        ATTENTION_OUTPUTS
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

/// Kernels of a matmul program. Only weights in blocks need the last two.
const PRODUCTS: [&str; 12] = [
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
    "matmul_1_pairs",
    "matmul_2_pairs",
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

/// The first of each pair with RMS norms between them; see `kernels/matmul_rows.cuh`.
pub(crate) const WARPGROUP_NORMED: [&str; 3] =
    ["matmul_warpgroup_4_normed", "matmul_warpgroup_2_normed", "matmul_warpgroup_1_normed"];

/// The same as those pairs for taps that reach far, of rows that are stored in 16 bits: with four and two
/// groups.
pub(crate) const WARPGROUP_FAR: [&str; 2] = ["matmul_warpgroup_4_far", "matmul_warpgroup_2_far"];

/// The same of very many rows that are stored in 16 bits, of which a block has 64, 96, 128 or 144.
pub(crate) const ROWS: [&str; 4] = [
    "matmul_warpgroup_rows_64",
    "matmul_warpgroup_rows_96",
    "matmul_warpgroup_rows_128",
    "matmul_warpgroup_rows_144",
];

/// Those that store the layer norm of results too: a block has 96 or 128 rows of 256 channels.
pub(crate) const ROWS_NORM: [&str; 2] = ["matmul_warpgroup_rows_norm_96", "matmul_warpgroup_rows_norm_128"];

/// Weight-stationary kernels for K = 256, which store 16 bits: without activation, and with GELU.
pub(crate) const STATIONARY: [&str; 2] = ["matmul_warpgroup_stationary", "matmul_warpgroup_stationary_gelu"];

/// Weight-stationary kernels that add a residual, with their K.
pub(crate) const RESIDUAL: [(&str, usize); 3] = [
    ("matmul_warpgroup_residual_96", 96),
    ("matmul_warpgroup_residual_192", 192),
    ("matmul_warpgroup_residual_384", 384),
];

/// Kernels of the program for warpgroups.
const WARPGROUPS: [&str; 22] = {
    let ([[a, b], [c, d], [e, f]], [g, h], [i, j, k, l]) = (WARPGROUP, WARPGROUP_FAR, ROWS);
    let ([m, n, o], [p, q], [(r, _), (s, _), (t, _)]) = (WARPGROUP_NORMED, STATIONARY, RESIDUAL);
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, ROWS_NORM[0], ROWS_NORM[1]]
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

/// Residual units of a codec in one launch on Hopper, with their channels.
pub(crate) const UNITS: [(&str, usize); 1] = [("residual_unit_96", 96)];

/// Their names.
const UNIT_NAMES: [&str; UNITS.len()] = [UNITS[0].0];

/// Name of the program with [`UNITS`] for weights in this precision; only those of 16 bits have one.
pub(crate) fn unit_program(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::F16 => Some("residual_unit-f16"),
        Precision::Bf16 => Some("residual_unit-bf16"),
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
            "residual_unit",
            "attention_output",
        ]) =>
        {
            false
        }
        _ if is_any_of(&["decode_shared"]) => arch >= CLUSTER_ARCH,
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
    let functions = if precision.block() > 1 { &PRODUCTS[..] } else { &PRODUCTS[..PRODUCTS.len() - 2] };
    Source { name: product_program(precision), text, options, functions }
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

/// Name of the program with [`WARPGROUP`] and [`ROWS`] in this precision; only those of 16 bits
/// have one.
pub(crate) fn warpgroup_program(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::F16 => Some("matmul_warpgroup-f16"),
        Precision::Bf16 => Some("matmul_warpgroup-bf16"),
        _ => None,
    }
}

/// Kernels of [`groups_program`] for weights in blocks.
const GROUPS: [&str; 3] = [WARPGROUP[0][0], WARPGROUP[1][0], WARPGROUP[2][0]];

/// Name of the program with [`WARPGROUP`] in this precision, that of weights in blocks included: these have
/// no taps, and none of the other kernels of [`warpgroup_program`].
pub(crate) fn groups_program(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::Q8_0 => Some("matmul_warpgroup-q8_0"),
        Precision::Q6K => Some("matmul_warpgroup-q6_k"),
        Precision::Q5K => Some("matmul_warpgroup-q5_k"),
        Precision::Q4K => Some("matmul_warpgroup-q4_k"),
        Precision::Q4_0 => Some("matmul_warpgroup-q4_0"),
        float => warpgroup_program(float),
    }
}

/// Attention on tensor cores.
const ATTENTION_MMA: [&str; 3] = ["attention_mma_64_1", "attention_mma_64_2", "attention_mma_128_1"];

/// Name of the program for attention on tensor cores where weights have this precision and keys this type; of
/// 16 bits in `f32` only. Operands of attention have no blocks: they are rounded to f16 instead.
pub(crate) fn attention_program(precision: Precision, keys: DType) -> &'static str {
    match precision {
        _ if keys == DType::F16 => "attention-mma-cached-f16",
        _ if keys == DType::BF16 => "attention-mma-cached-bf16",
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
    Source { name: attention_program(precision, DType::F32), text, options, functions: &ATTENTION_MMA }
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
    // Encoders have operands in f16 instead of bf16, and attention beside weights in blocks.
    let has_f16 = precision == Precision::Bf16 || precision.block() > 1;
    let in_f16 = has_f16.then(|| attention_sources(Precision::F16));
    product_sources(precision)
        .chain(attention_sources(precision))
        .chain(in_f16.into_iter().flatten())
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
    let of_warpgroups = with!(
        "wgmma.cuh"
            | "pieces.cuh"
            | "matmul_warpgroup.cu"
            | "barriers.cuh"
            | "matmul_boxes.cu"
            | "matmul_stationary.cu"
            | "matmul_residual.cu"
    );
    let of_blocks = with!("wgmma.cuh" | "pieces.cuh" | "matmul_warpgroup.cu");
    let warpgroup = match precision.block() {
        1 => program(warpgroup_program(precision), of_warpgroups, &WARPGROUPS),
        _ => program(groups_program(precision), of_blocks, &GROUPS),
    };
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
    let units = concat!(
        include_str!("../kernels/mma.cuh"),
        include_str!("../kernels/wgmma.cuh"),
        include_str!("../kernels/barriers.cuh"),
        include_str!("../kernels/residual_unit.cu")
    );
    let units = program(unit_program(precision), units, &UNIT_NAMES);
    let of_layers = layers.into_iter().chain(normed).chain(units);
    [source].into_iter().chain(tall).chain(wide).chain(warpgroup).chain(conv).chain(of_layers)
}

/// The units of a device, for matmuls in some precisions and in f32, which is always included.
pub(crate) fn units_of(arch: u32, precisions: &[Precision]) -> impl Iterator<Item = Unit> {
    let mut sources: Vec<Source> = sources_of(Precision::F32).collect();
    for source in precisions.iter().copied().filter(|p| *p != Precision::F32).flat_map(sources_of) {
        // Formats share attention.
        if !sources.iter().any(|s| s.name == source.name) {
            sources.push(source);
        }
    }
    sources.extend(SOURCES);
    sources.into_iter().flat_map(move |s| s.units(arch))
}

/// Unit of compilation: a whole file, or one instance of a template in a file with many. A plan waits for the
/// slowest of its units, so large files are split.
pub(crate) struct Unit {
    source: Source,
    pub functions: Vec<&'static str>,
    pub arch: u32,
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
    /// Name of the program.
    pub fn name(&self) -> &'static str {
        self.source.name
    }

    /// Complete source, with the common prefix and without the instances of other units.
    pub fn text(&self) -> String {
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
    pub fn key(&self, text: &str) -> Key {
        Key::of(&[text, &self.options().join(" ")])
    }

    pub fn options(&self) -> Vec<String> {
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
    if n == 0 {
        // Counting processors reads files, and each new plan asks for kernels that are mostly there.
        return vec![];
    }
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
