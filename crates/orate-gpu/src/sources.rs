//! Sources of the kernels and of the files that they include.

use crate::cache_file;

macro_rules! sources {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../kernels/", $name, ".wgsl")))),*]
    };
}

/// Files in `kernels/` by name.
pub(crate) const SOURCES: &[(&str, &str)] = sources![
    "activation"
    "angles"
    "attention"
    "attention_cooperative"
    "attention_odd"
    "attention_row"
    "attention_row_subgroup"
    "attention_tile"
    "cache_rows"
    "concat"
    "conv_narrow"
    "copy"
    "depthwise_conv1d"
    "divided"
    "elementwise"
    "embedding_sum"
    "gather"
    "halves"
    "harmonic_source"
    "heads"
    "layer_norm"
    "lstm"
    "math"
    "matmul"
    "matmul_cooperative"
    "matvec"
    "norm_kept"
    "normed_rows"
    "overlap_add"
    "pad"
    "philox"
    "product"
    "random"
    "reduce"
    "reduce_inputs"
    "relative_scores"
    "relative_scores_cooperative"
    "residual_codes"
    "rms_norm"
    "rotary"
    "round_rows"
    "sample"
    "segment_mean"
    "statistics"
    "table_row"
    "time_embedding"
    "weight"
    "weight_rows"
    "write_cache"
    "write_first"
    "write_rows"
];

/// Returns a file in `kernels/` by name.
pub(crate) fn source(name: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// Hash of all sources, for the key of the pipeline cache.
pub(crate) fn sources_hash() -> u64 {
    SOURCES.iter().fold(0, |h, (_, text)| cache_file::hash(text.as_bytes()) ^ h.rotate_left(7))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_the_texts() {
        assert_ne!(sources_hash(), 0);
        for (name, _) in SOURCES {
            assert!(source(name).is_some(), "{name}");
        }
        assert_eq!(source("nothing"), None);
    }
}
