//! Test cases for every op: hand-written edges, and all shapes of the networks.
//!
//! A case is a small graph with all its inputs. Cases hold graphs as the builder makes them; executors
//! compile them, so a case with an epilogue becomes one fused step. Hand-written cases are grouped in a file
//! per op family, mostly named like those of the executors.

mod attention;
mod buffers;
mod case;
mod compact;
mod convolutions;
mod decoding;
mod encoders;
mod fused;
mod harvest;
mod layers;
mod matmul;
mod movement;
mod pointwise;
mod rows;
mod tables;

pub use attention::growing_scores;
pub use case::Case;
pub use decoding::rows_in_common;
pub use fused::fused_cases;
pub use harvest::{harvest, single_op};
pub use layers::{
    DECODERS, codec_units, decoder, feed_forward, relative_attention, residual_block, transformer,
};

use orate_graph::{Activation, DType, Graph, Plan, Result, Shape, Target, Value, Weight};
use std::collections::BTreeSet;

/// Cases for every op and its environment: states, shared values, reshapes.
pub fn op_cases() -> Vec<Case> {
    type Family = fn(&mut Vec<Case>) -> Result<()>;
    let families: &[Family] = &[
        movement::embedding,
        movement::embedding_sum,
        movement::constant,
        movement::constants_of_one_number,
        matmul::matmul,
        convolutions::conv1d,
        convolutions::depthwise_conv1d,
        convolutions::streaming,
        rows::layer_norm,
        rows::rms_norm,
        pointwise::snake,
        pointwise::spread,
        pointwise::activate,
        pointwise::sums,
        attention::attention,
        attention::many_queries,
        attention::relative_scores,
        tables::rotary,
        tables::rope_table,
        pointwise::mask_rows,
        movement::movement,
        encoders::pad,
        encoders::statistics,
        encoders::residual_codes,
        encoders::overlap_add,
        encoders::lstm,
        encoders::segment_mean,
        encoders::harmonic_source,
        tables::generators,
        buffers::buffers,
        decoding::feed_forward,
        decoding::cached,
        decoding::stream,
        decoding::integers,
        decoding::rows,
        decoding::in_place,
        decoding::watched,
        decoding::in_common,
        decoding::normed,
        decoding::sample,
        compact::attention,
        compact::writes,
    ];
    let mut cases = vec![];
    for family in families {
        family(&mut cases).expect("hand-written cases fit the ops' shape rules");
    }
    cases
}

/// Returns the [`op_cases`] that a device supports. `lacking` are phrases from the reasons for refusing the
/// others. A case refused for another reason stays in the list and so fails.
///
/// # Panics
/// No case is refused for one of these reasons: it is supported now and must be removed from the list.
pub fn op_cases_built(target: &dyn Target, lacking: &[&str]) -> Vec<Case> {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut cases = op_cases();
    cases.retain(|case| match Plan::compile(case.graph.clone(), target) {
        Ok(_) => true,
        Err(e) => {
            let reason = e.to_string();
            let known = lacking.iter().find(|l| reason.contains(**l));
            seen.extend(known);
            known.is_none()
        }
    });
    let built: Vec<&&str> = lacking.iter().filter(|l| !seen.contains(*l)).collect();
    assert!(built.is_empty(), "{} runs {built:?} now: take them off the list", target.name());
    cases
}

/// Ops that GPUs do not support yet, as phrases of the refusal.
pub const NOT_BUILT_ON_GPUS: [&str; 0] = [];

/// Widths around vector sizes: 1, odd ones, and one below and above 8, 16 and 32.
const WIDTHS: [usize; 14] = [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100];

/// Every activation, with a named slope.
fn activations() -> Vec<Activation> {
    Activation::all(Weight::named("slope", [1]))
}

/// A graph with input `x` and output `y`, the result of `build`.
fn unary(
    cases: &mut Vec<Case>,
    name: String,
    shape: impl Into<Shape>,
    build: impl FnOnce(&mut Graph, Value) -> Result<Value>,
) -> Result<()> {
    let mut g = Graph::new(&*name);
    let x = g.input("x", DType::F32, shape)?;
    let y = build(&mut g, x)?;
    g.output("y", y)?;
    cases.push(Case::new(name, g));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate_graph::Op;

    #[test]
    fn every_op_has_cases() {
        let cases = op_cases();
        let used: BTreeSet<&str> = cases.iter().flat_map(|c| c.graph.nodes()).map(|n| n.op.name()).collect();
        assert_eq!(used, Op::NAMES.iter().copied().collect());
        assert!(cases.len() > 500, "{} cases", cases.len());
    }

    #[test]
    fn names_are_distinct() {
        let mut names = BTreeSet::new();
        for c in op_cases() {
            assert!(names.insert(c.name.clone()), "two cases are called `{}`", c.name);
        }
    }
}
