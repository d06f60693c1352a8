//! Snakes after matmuls that add a residual: `kernels/matmul_residual.cu` stores both.

use super::cuts::RESIDUAL_ROWS;
use super::matmul::{HISTORY, NORM, OUT, SHIFT};
use super::operands::cache_type;
use super::work::Work;
use crate::driver::Facts;
use crate::kernels::{RESIDUAL, WARPGROUP_ARCH, warpgroup_program};
use orate_graph::{DType, Plan, Precision, PrecisionPolicy};

/// Fewest rows of such matmuls.
pub(super) fn rows(policy: &PrecisionPolicy, facts: &Facts) -> Option<usize> {
    let can = facts.arch == WARPGROUP_ARCH && warpgroup_program(policy.precision).is_some();
    can.then_some(RESIDUAL_ROWS)
}

/// Leaves Snakes to the matmuls before them.
pub(crate) fn join_snakes(plan: &Plan, works: &mut Vec<(usize, Work)>) {
    for run in plan.runs().iter().filter(|run| run.steps.len() == 2) {
        let [begin, end] =
            [run.steps.start, run.steps.end].map(|at| works.partition_point(|(step, _)| *step < at));
        if end - begin != 2 {
            continue;
        }
        if let Some(joined) = joined(&works[begin].1, &works[begin + 1].1) {
            works[begin].1 = joined;
            works.remove(begin + 1);
        }
    }
}

fn joined(matmul: &Work, snake: &Work) -> Option<Work> {
    let is_able =
        RESIDUAL.iter().any(|(function, _)| *function == matmul.function) && snake.program == "snake";
    let &[x, frequency, gain, out] = &snake.pointers[..] else { return None };
    let precision = [Precision::F16, Precision::Bf16]
        .into_iter()
        .find(|p| warpgroup_program(*p) == Some(matmul.program))?;
    let dtype = if precision == Precision::F16 { DType::F16 } else { DType::BF16 };
    if !is_able || x != matmul.pointers[OUT] || snake.words[2] != cache_type(dtype) {
        return None;
    }
    let mut joined = matmul.clone();
    (joined.pointers[NORM], joined.pointers[SHIFT], joined.pointers[HISTORY]) = (frequency, gain, out);
    joined.tensors[3].0 = HISTORY;
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::lower;
    use crate::lower::tests::{Imagined, facts};
    use crate::weights::WeightBank;
    use orate_testing::codec_units;

    /// Matmuls that add a residual by this kernel, and Snakes in launches of their own, in two units.
    fn launches(precision: Precision, sizes: [usize; 3]) -> [usize; 2] {
        let case = codec_units(sizes);
        let target = Imagined { policy: PrecisionPolicy::uniform(precision), facts: facts(90) };
        let plan = Plan::compile(case.graph, &target).expect("compiles");
        let mut bank = WeightBank::default();
        bank.imagine(&plan, &target.policy, &case.weights, 1 << 40);
        let mut works = lower(&plan, &bank, &target.policy, &target.facts);
        join_snakes(&plan, &mut works);
        let count = |is: &dyn Fn(&Work) -> bool| works.iter().filter(|(_, work)| is(work)).count();
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
}
