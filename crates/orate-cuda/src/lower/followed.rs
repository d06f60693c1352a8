//! Snakes and layer norms after matmuls that add a residual, which store both: `kernels/matmul_residual.cu`
//! and `kernels/matmul_boxes.cu`.

use super::cuts::{self, NORM_ROWS, NORM_WIDTH, RESIDUAL_ROWS, Sizes};
use super::matmul::{self, ACTIVATION, EPS, HALVES, HISTORY, NORM, OUT, ROW, SHIFT, halves, in_block};
use super::operands::cache_type;
use super::work::{Pointer, Work};
use crate::driver::Facts;
use crate::kernels::{RESIDUAL, WARPGROUP_ARCH, warpgroup_program};
use orate_graph::{DType, FollowedResiduals, Plan, Precision, PrecisionPolicy};

/// Which of them are left to such matmuls.
pub(super) fn sizes(policy: &PrecisionPolicy, facts: &Facts) -> Option<FollowedResiduals> {
    let has_halves = policy.formats().into_iter().any(|format| warpgroup_program(format).is_some());
    let can = facts.arch == WARPGROUP_ARCH && has_halves;
    can.then_some(FollowedResiduals {
        snake_rows: RESIDUAL_ROWS,
        norm_rows: NORM_ROWS,
        norm_width: NORM_WIDTH,
    })
}

/// Leaves Snakes and layer norms to the matmuls before them.
pub(crate) fn join_followers(plan: &Plan, works: &mut Vec<(usize, Work)>, facts: &Facts) {
    for run in plan.runs().iter().filter(|run| run.steps.len() == 2) {
        let [begin, end] =
            [run.steps.start, run.steps.end].map(|at| works.partition_point(|(step, _)| *step < at));
        if end - begin != 2 {
            continue;
        }
        let (matmul, next) = (&works[begin].1, &works[begin + 1].1);
        if let Some(joined) = with_snake(matmul, next).or_else(|| with_norm(matmul, next, facts)) {
            works[begin].1 = joined;
            works.remove(begin + 1);
        }
    }
}

/// The type of 16 bits to which a matmul of warpgroups rounds.
fn half_of(matmul: &Work) -> Option<DType> {
    let types = [(Precision::F16, DType::F16), (Precision::Bf16, DType::BF16)];
    types.into_iter().find(|(p, _)| warpgroup_program(*p) == Some(matmul.program)).map(|(_, dtype)| dtype)
}

fn with_snake(matmul: &Work, snake: &Work) -> Option<Work> {
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
    Some(joined)
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

    /// Matmuls that add a residual by this kernel, and Snakes in launches of their own, in two units.
    fn launches(precision: Precision, sizes: [usize; 3]) -> [usize; 2] {
        let works = works(precision, codec_units(sizes));
        let count = |is: &dyn Fn(&Work) -> bool| works.iter().filter(|work| is(work)).count();
        let adds = |work: &Work| RESIDUAL.iter().any(|(function, _)| *function == work.function);
        [count(&adds), count(&|work| work.program == "snake")]
    }

    #[test]
    fn residuals_of_units_store_the_next_snake() {
        for precision in [Precision::F16, Precision::Bf16] {
            for sizes in [[2, 8000, 96], [1, 4500, 192], [2, 2070, 384]] {
                assert_eq!(
                    launches(precision, sizes),
                    [2, 1],
                    "{precision}, {sizes:?}: that of the input is left"
                );
            }
        }
        assert_eq!(launches(Precision::F16, [1, 4500, 256]), [0, 3], "another width");
        assert_eq!(launches(Precision::F16, [2, 1300, 192]), [0, 3], "few rows");
        assert_eq!(launches(Precision::F32, [1, 4500, 192]), [0, 3]);
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
