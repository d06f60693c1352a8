//! RMS norms between two matmuls of warpgroups, which do what they do: see `kernels/matmul.cu`.

use super::matmul::{EPS, FIRST, GATED, HALVES, HISTORY, NORM, SHIFT, half_of, halves};
use super::of_run;
use super::work::{Pointer, Work};
use crate::driver::Facts;
use crate::kernels::{WARPGROUP, WARPGROUP_ARCH, WARPGROUP_NORMED, warpgroup_program};
use orate_graph::{DType, NormedResiduals, Pattern, Plan, Precision, PrecisionPolicy};

/// Channels of which a sum of squares is kept.
const CHANNELS: usize = 64;

/// The only format of weights with which norms are left to matmuls. Rows are rounded before they are normed,
/// and those of transformers can exceed what `f16` holds.
const PRECISION: Precision = Precision::Bf16;

/// Which norms are left to matmuls: those of 17 to 128 rows, the batches that warpgroups multiply. Matmuls of
/// fewer rows norm them as they read them.
pub(super) fn sizes(policy: &PrecisionPolicy, facts: &Facts) -> Option<NormedResiduals> {
    let can = facts.arch == WARPGROUP_ARCH && policy.precision == PRECISION;
    // Sums are read by four.
    can.then_some(NormedResiduals { rows: [17, 128], multiple: 4 * CHANNELS, channels: CHANNELS })
}

/// Leaves norms to the matmuls before and after them.
pub(crate) fn join_norms(plan: &Plan, works: &mut Vec<(usize, Work)>) {
    for run in plan.runs_of(Pattern::NormedResidual) {
        let Some(at) = of_run(works, run).map(|at| at.start) else { continue };
        let [(_, first), (_, norm), (_, second)] = &works[at..at + 3] else { continue };
        if let Some((first, second)) = joined(first, norm, second) {
            (works[at].1, works[at + 2].1) = (first, second);
            works.remove(at + 1);
        }
    }
}

/// The matmuls with the norm in them.
fn joined(first: &Work, norm: &Work, second: &Work) -> Option<(Work, Work)> {
    let half = half_of(PRECISION)?;
    let normed = |work: &Work| {
        let is_able = warpgroup_program(PRECISION) == Some(work.program) && norm.program == "rms_norm";
        let kernel = WARPGROUP.iter().position(|[dense, _]| is_able && *dense == work.function)?;
        Some(Work { function: WARPGROUP_NORMED[kernel], ..work.clone() })
    };
    let (mut first, mut second) = (normed(first)?, normed(second)?);
    let (&[rows, _, n, ..], &[_, _, eps, stored]) = (&first.words[..], &norm.words[..]) else { return None };
    let [made, weight, kept] = [first.pointers[7], norm.pointers[1], norm.pointers[2]];
    let is_plain =
        first.words[GATED] == 0 && [NORM, SHIFT].iter().all(|i| first.pointers[*i] == Pointer::Null);
    let stores_floats = first.words[HALVES] / 2 == 0 && first.words[FIRST] == n;
    let reads = norm.pointers[0] == made
        && stored == halves(DType::F32, half) / 2
        && (second.pointers[0], second.pointers[HISTORY]) == (kept, Pointer::Null)
        && second.words[HALVES] % 2 == 1;
    if !(is_plain && stores_floats && reads) {
        return None;
    }
    (first.pointers[NORM], first.pointers[SHIFT]) = (weight, kept);
    second.pointers[HISTORY] = kept.after((rows * n) as usize / 2);
    second.words[EPS] = eps;
    Some((first, second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::tests::works_of;
    use orate_graph::{Graph, Place, Weight};

    /// Launches of two feed-forwards with norms, and the size of the plan's memory. If `are_read`, the rows
    /// that the second one norms are an output.
    fn works(precision: Precision, rows: usize, width: usize, are_read: bool) -> (Vec<Work>, usize) {
        let mut g = Graph::new("layers");
        let mut x = g.input("x", DType::F32, [rows, 1, width]).expect("declares");
        for i in 0..2 {
            let weight = |name: &str, k: usize, n: usize| Weight::named(format!("{name}{i}"), [k, n]);
            let y = g.rms_norm(x, Weight::named(format!("norm{i}"), [width]), 1e-6).expect("builds");
            if are_read && i == 1 {
                g.output("normed", y).expect("declares");
            }
            let y = g.matmul(y, weight("up", width, 2 * width)).expect("builds");
            let y = g.matmul(y, weight("down", 2 * width, width)).expect("builds");
            x = g.add(x, y).expect("builds");
        }
        g.output("y", x).expect("declares");
        let (plan, mut works) = works_of(g, precision);
        join_norms(&plan, &mut works);
        (works.into_iter().map(|(_, work)| work).collect(), plan.arena_bytes())
    }

    #[test]
    fn norms_between_matmuls_have_no_launch() {
        let norms = |precision, rows, width| {
            let (works, _) = works(precision, rows, width, false);
            works.iter().filter(|w| w.program == "rms_norm").count()
        };
        assert_eq!(norms(Precision::Bf16, 64, 1024), 1, "that of the input");
        assert_eq!(norms(Precision::Bf16, 128, 2048), 1);
        for (precision, rows, width) in
            [(Precision::Bf16, 129, 1024), (Precision::Bf16, 64, 576), (Precision::F16, 64, 1024)]
        {
            assert_eq!(norms(precision, rows, width), 2, "{precision} {rows} x {width}");
        }
        let (read, _) = works(Precision::Bf16, 64, 1024, true);
        assert_eq!(read.iter().filter(|w| w.program == "rms_norm").count(), 2, "others read normed rows");
    }

    #[test]
    fn sums_of_squares_are_behind_the_rows() {
        let (rows, width) = (64, 1024);
        let (works, arena) = works(Precision::Bf16, rows, width, false);
        let normed = |w: &&Work| WARPGROUP_NORMED.contains(&w.function);
        let [gives, takes] = works.iter().filter(normed).collect::<Vec<_>>()[..] else {
            panic!("one norm is between two matmuls")
        };
        assert_eq!(takes.pointers[0], gives.pointers[SHIFT]);
        let [Pointer::Place(Place::Arena(to)), Pointer::Place(Place::Arena(sums))] =
            [gives.pointers[SHIFT], takes.pointers[HISTORY]]
        else {
            panic!("both are temporaries")
        };
        assert_eq!(sums - to, 2 * rows * width);
        let end = sums + 4 * rows * width / CHANNELS;
        assert!(end <= arena, "{end} of {arena}");
        // What the matmuls read and make is elsewhere.
        let written = to..end;
        let others = [(gives.pointers[0], 4 * rows * width), (gives.pointers[7], 4 * rows * width)];
        for (pointer, bytes) in others {
            let span = pointer.span(bytes).expect("is a place");
            let apart = span.buffer.is_some() || span.end <= written.start || written.end <= span.begin;
            assert!(apart, "{span:?} and {written:?}");
        }
    }
}
