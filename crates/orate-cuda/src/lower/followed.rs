//! Snakes and layer norms after matmuls that add a residual, which store both: `kernels/matmul_residual.cu`
//! and `kernels/matmul_boxes.cu`. With the convolution before, `kernels/residual_unit.cu` computes them.

use super::cuts::{self, CHANNELS, LINES, NORM_ROWS, NORM_WIDTH, RESIDUAL_ROWS, Sizes};
use super::matmul::{
    self, ACTIVATION, EPS, HALVES, HISTORY, NEXT_BYTES, NEXT_WEIGHTS, NORM, OUT, ROW, SHIFT, halves, in_block,
};
use super::of_run;
use super::operands::cache_type;
use super::work::{Pointer, Work};
use crate::driver::{Elements, Facts, Tensor};
use crate::kernels::{RESIDUAL, SNAKE, UNITS, WARPGROUP_ARCH, unit_program, warpgroup_program};
use orate_graph::{DType, FollowedResiduals, Pattern, Plan, Precision, PrecisionPolicy};
use std::ops::Range;

/// Channels of units.
const UNIT_WIDTHS: [usize; UNITS.len()] = [UNITS[0].1];
/// Taps of their convolutions; rows of a tile, and further ones that taps may reach.
const UNIT_TAPS: usize = 7;
/// See [`UNIT_TAPS`].
const UNIT_TILE: usize = 64;
/// See [`UNIT_TAPS`].
const UNIT_REACH: usize = 56;
/// Warpgroups of a block that multiply; one more copies.
const UNIT_GROUPS: usize = 3;

/// Which of them are left to such matmuls.
pub(super) fn sizes(policy: &PrecisionPolicy, facts: &Facts) -> Option<FollowedResiduals> {
    let has_halves = policy.formats().into_iter().any(|format| warpgroup_program(format).is_some());
    let can = facts.arch == WARPGROUP_ARCH && has_halves;
    can.then_some(FollowedResiduals {
        snake_rows: RESIDUAL_ROWS,
        unit_widths: &UNIT_WIDTHS,
        norm_rows: NORM_ROWS,
        norm_width: NORM_WIDTH,
    })
}

/// Leaves Snakes and layer norms to the matmuls before them.
pub(crate) fn join_followers(plan: &Plan, works: &mut Vec<(usize, Work)>, facts: &Facts) {
    for run in plan.runs_of(Pattern::FollowedResidual) {
        let Some(Range { start: begin, end }) = of_run(works, run) else { continue };
        let (matmul, next) = (&works[end - 2].1, &works[end - 1].1);
        let is_unread = run.unread.contains(&plan.steps()[run.steps.end - 2].node.output);
        let Some(pair) = with_snake(matmul, next, is_unread).or_else(|| with_norm(matmul, next, facts))
        else {
            continue;
        };
        let conv = (end - begin == 3).then(|| &works[begin].1);
        let (first, joined) = match conv.and_then(|conv| unit(conv, &pair, facts)) {
            Some(unit) => (begin, unit),
            None => (end - 2, pair),
        };
        works[first].1 = joined;
        works.drain(first + 1..end);
    }
}

/// The type of 16 bits to which a matmul of warpgroups rounds.
fn half_of(matmul: &Work) -> Option<DType> {
    let types = [(Precision::F16, DType::F16), (Precision::Bf16, DType::BF16)];
    types.into_iter().find(|(p, _)| warpgroup_program(*p) == Some(matmul.program)).map(|(_, dtype)| dtype)
}

/// The matmul with the Snake of its result. Nothing else reads the result if `is_unread`.
fn with_snake(matmul: &Work, snake: &Work, is_unread: bool) -> Option<Work> {
    let is_able =
        RESIDUAL.iter().any(|(function, _)| *function == matmul.function) && snake.program == "snake";
    let &[x, frequency, gain, out] = &snake.pointers[..] else { return None };
    let dtype = half_of(matmul)?;
    if !is_able || x != matmul.pointers[OUT] || snake.words[2] != cache_type(dtype) {
        return None;
    }
    let mut joined = matmul.clone();
    (joined.pointers[NORM], joined.pointers[SHIFT], joined.pointers[HISTORY]) = (frequency, gain, out);
    joined.tensors[3].0 = HISTORY;
    if is_unread {
        joined.pointers[OUT] = Pointer::Null;
        joined.tensors[2].0 = matmul::RESIDUAL;
    }
    Some(joined)
}

/// A convolution that applies a Snake, and such a matmul of its result.
fn unit(conv: &Work, pair: &Work, facts: &Facts) -> Option<Work> {
    let half = half_of(pair)?;
    let precision = if half == DType::F16 { Precision::F16 } else { Precision::Bf16 };
    let [rows, k, n, _, time, channels, dilation, left, activation, ..] = conv.words[..] else { return None };
    let &(function, width) = UNITS.iter().find(|(_, width)| *width == n as usize)?;
    let is_causal = left == (UNIT_TAPS as u32 - 1) * dilation && left as usize <= UNIT_REACH;
    let fits = k as usize == UNIT_TAPS * width
        && channels == n
        && time as usize >= UNIT_TILE
        && pair.words[..3] == [rows, n, n]
        && is_causal
        && (conv.pointers[HISTORY] != Pointer::Null || conv.words[HALVES - 1] != 0)
        && activation == SNAKE
        && conv.words[HALVES] == halves(half, half)
        && [ROW, matmul::RESIDUAL].iter().all(|i| conv.pointers[*i] == Pointer::Null)
        && conv.pointers[OUT] == pair.pointers[0];
    if !fits {
        return None;
    }
    let [left, time, sequences] = [left, time, rows / time].map(|n| n as usize);
    let boxes = |rows: usize| Tensor {
        sizes: [width, time, sequences],
        part: [CHANNELS, rows, 1],
        elements: Elements::NarrowLines,
    };
    let of_conv = [0, HISTORY, 1, 2, NORM, SHIFT].map(|i| conv.pointers[i]);
    let of_pair = [1, 2, NORM, SHIFT, matmul::RESIDUAL, OUT, HISTORY, NEXT_WEIGHTS].map(|i| pair.pointers[i]);
    let weights = 2 * (UNIT_TAPS + 1) * width * width;
    let stages = UNIT_GROUPS * 2 * width * (UNIT_TILE + UNIT_REACH);
    let tiles = sequences * time.div_ceil(UNIT_TILE);
    Some(Work {
        program: unit_program(precision)?,
        function,
        grid: [tiles.min(facts.multiprocessors as usize) as u32, 1, 1],
        threads: 128 * (UNIT_GROUPS as u32 + 1),
        shared: (weights + stages + LINES) as u32,
        cluster: 1,
        tensors: vec![(0, boxes(left)), (0, boxes(UNIT_TILE))],
        pointers: of_conv.into_iter().chain(of_pair).collect(),
        words: vec![pair.words[NEXT_BYTES], sequences as u32, time as u32, dilation],
        weight_bytes: 0,
    })
}

fn with_norm(matmul: &Work, norm: &Work, facts: &Facts) -> Option<Work> {
    let &[x, weight, bias, out, row, _] = &norm.pointers[..] else { return None };
    let &[_, eps, _, stored, activation, _] = &norm.words[..] else { return None };
    let &[rows, k, n, _, _, channels, ..] = &matmul.words[..] else { return None };
    let half = half_of(matmul)?;
    // Neither has more to do, and results are in f32.
    let is_plain = [ROW, HISTORY, NORM, SHIFT].iter().all(|i| matmul.pointers[*i] == Pointer::Null)
        && matmul.pointers[matmul::RESIDUAL] != Pointer::Null
        && matmul.words[ACTIVATION] == 0
        && matmul.words[HALVES] == halves(half, DType::F32)
        && row == Pointer::Null
        && activation == 0;
    let follows = x == matmul.pointers[OUT] && stored == cache_type(half) && n as usize == NORM_WIDTH;
    if norm.program != "layer_norm" || !is_plain || !follows || k != channels {
        return None;
    }
    let mut matmul = matmul.clone();
    matmul.words.truncate(HALVES + 1);
    let [rows, k, n] = [rows, k, n].map(|size| size as usize);
    let sizes = Sizes { rows, k, n, time: rows, channels: k, dilation: 1, left: 0 };
    let block = cuts::with_norm(matmul.program, [rows, k], facts);
    let mut joined = in_block(matmul, block, sizes);
    (joined.pointers[NORM], joined.pointers[SHIFT], joined.pointers[HISTORY]) = (weight, bias, out);
    joined.words[EPS] = eps;
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::ROWS_NORM;
    use crate::lower::lower;
    use crate::lower::tests::{Imagined, facts};
    use crate::weights::WeightBank;
    use orate_testing::{Case, codec_units, transformer};

    /// Works of a case, with matmuls that store what follows them.
    fn works(precision: Precision, case: Case) -> Vec<Work> {
        let target = Imagined { policy: PrecisionPolicy::uniform(precision), facts: facts(90) };
        let plan = Plan::compile(case.graph, &target).expect("compiles");
        let mut bank = WeightBank::default();
        bank.imagine(&plan, &target.policy, &case.weights, 1 << 40);
        let mut works = lower(&plan, &bank, &target.policy, &target.facts);
        join_followers(&plan, &mut works, &target.facts);
        works.into_iter().map(|(_, work)| work).collect()
    }

    /// Units in one launch, matmuls that add a residual by this kernel, and Snakes in launches of their own,
    /// in three units.
    fn launches(precision: Precision, sizes: [usize; 3]) -> [usize; 3] {
        let works = works(precision, codec_units(sizes));
        let count = |is: &dyn Fn(&Work) -> bool| works.iter().filter(|work| is(work)).count();
        let adds = |work: &Work| RESIDUAL.iter().any(|(function, _)| *function == work.function);
        let is_unit = |work: &Work| UNITS.iter().any(|(function, _)| *function == work.function);
        [count(&is_unit), count(&adds), count(&|work| work.program == "snake")]
    }

    #[test]
    fn residuals_of_units_store_the_next_snake() {
        for precision in [Precision::F16, Precision::Bf16] {
            for (sizes, units) in [([2, 8000, 96], 3), ([1, 4500, 192], 0), ([2, 2070, 384], 0)] {
                assert_eq!(
                    launches(precision, sizes),
                    [units, 3 - units, 1],
                    "{precision}, {sizes:?}: that of the input is left"
                );
            }
        }
        assert_eq!(launches(Precision::F16, [1, 4500, 256]), [0, 0, 4], "another width");
        assert_eq!(launches(Precision::F16, [2, 1300, 192]), [0, 0, 4], "few rows");
        assert_eq!(launches(Precision::F16, [2, 1300, 96]), [0, 0, 4], "few rows");
        assert_eq!(launches(Precision::F32, [1, 4500, 192]), [0, 0, 4]);
    }

    /// Index of the result among a unit's pointers.
    const UNIT_OUT: usize = 11;

    #[test]
    fn what_nothing_else_reads_is_not_stored() {
        for (width, out) in [(96, UNIT_OUT), (192, OUT)] {
            let works = works(Precision::Bf16, codec_units([2, 8000, width]));
            let is_one = |work: &&Work| RESIDUAL.iter().chain(&UNITS).any(|(f, _)| *f == work.function);
            let stored: Vec<bool> =
                works.iter().filter(is_one).map(|work| work.pointers[out] != Pointer::Null).collect();
            assert_eq!(stored, [true, true, false], "{width} channels: a Snake alone reads the last");
        }
    }

    #[test]
    fn residuals_of_layers_store_the_next_norm() {
        let launches = |precision, sizes| {
            let works = works(precision, transformer(sizes));
            let count = |is: &dyn Fn(&Work) -> bool| works.iter().filter(|work| is(work)).count();
            [count(&|work| ROWS_NORM.contains(&work.function)), count(&|work| work.program == "layer_norm")]
        };
        for precision in [Precision::F16, Precision::Bf16] {
            assert_eq!(launches(precision, [3, 1400]), [3, 1], "{precision}: that of the input is left");
        }
        assert_eq!(launches(Precision::Bf16, [2, 1200]), [0, 4], "few rows");
        assert_eq!(launches(Precision::F32, [3, 1400]), [0, 4]);
    }
}
