//! Attention of one query per row over a short cache and the matmul of its result in one launch:
//! `kernels/attention_output.cu`.

use super::attention::NEXT as ATTENTION_NEXT;
use super::cuts::CHANNELS;
use super::matmul::{ACTIVATION, NEXT_BYTES, NEXT_WEIGHTS, OUT, RESIDUAL, ROW};
use super::of_run;
use super::work::{Pointer, Work};
use crate::driver::Facts;
use crate::kernels::{ATTENTION_OUTPUT, ATTENTION_OUTPUT_PROGRAM, WARPGROUP_ARCH, product_program};
use orate_graph::{AttendedOutputs, DType, Pattern, Plan, Precision, PrecisionPolicy};

/// Format of weights, keys and values.
const PRECISION: Precision = Precision::Bf16;
/// Heads of queries and of keys, and their width.
const HEADS: [usize; 3] = [16, 8, 128];
/// Keys of a row.
const KEYS: usize = 16;
/// Rows of a cluster.
const ROWS: usize = 8;
/// Most rows: each kernel has as many clusters, of which those of the next have twice the channels.
const MOST_ROWS: usize = ROWS * ATTENTION_OUTPUT.len();

/// Which attention is one launch with the next matmul. Fewer rows are chains.
pub(super) fn sizes(policy: &PrecisionPolicy, facts: &Facts) -> Option<AttendedOutputs> {
    is_able(policy, facts).then_some(AttendedOutputs { rows: [3, MOST_ROWS], keys: KEYS, heads: HEADS })
}

/// The type of caches that live as long as a run, which are that short.
pub(super) fn scratch(policy: &PrecisionPolicy, facts: &Facts) -> Option<DType> {
    is_able(policy, facts).then_some(DType::BF16)
}

fn is_able(policy: &PrecisionPolicy, facts: &Facts) -> bool {
    facts.arch == WARPGROUP_ARCH && policy.precision == PRECISION
}

/// Leaves matmuls to the attention before them.
pub(crate) fn join_outputs(plan: &Plan, works: &mut Vec<(usize, Work)>) {
    for run in plan.runs_of(Pattern::AttendedOutput) {
        let Some(at) = of_run(works, run).map(|at| at.start) else { continue };
        let ((_, attention), (_, matmul)) = (&works[at], &works[at + 1]);
        if let Some(joined) = joined(attention, matmul) {
            works[at].1 = joined;
            works.remove(at + 1);
        }
    }
}

/// Both as one.
fn joined(attention: &Work, matmul: &Work) -> Option<Work> {
    let follows = matmul.program == product_program(PRECISION)
        && attention.program == "attention_decode-bf16"
        && attention.function == "decode_heads_2"
        && matmul.pointers[0] == attention.pointers[super::attention::OUT];
    let &[rows, _, n, ..] = &matmul.words[..] else { return None };
    let &(function, channels) = ATTENTION_OUTPUT.get((rows as usize).div_ceil(ROWS) - 1)?;
    let is_plain = || {
        matmul.words[ACTIVATION] == 0
            && [2, ROW].iter().all(|i| matmul.pointers[*i] == Pointer::Null)
            && (n as usize).is_multiple_of(channels)
    };
    if !follows || !is_plain() {
        return None;
    }
    let mut joined = attention.clone();
    let of_matmul = [1, RESIDUAL, OUT, NEXT_WEIGHTS].map(|i| matmul.pointers[i]);
    joined.pointers[ATTENTION_NEXT..].copy_from_slice(&of_matmul);
    let words = joined.words.len();
    joined.words[words - 2..].copy_from_slice(&[n, matmul.words[NEXT_BYTES]]);
    let sides = 8 * CHANNELS / channels;
    let kept = ROWS * (2 * KEYS * HEADS[2] + 4 * (HEADS[2] + 8) + 2 * HEADS[2] + 8) * size_of::<u16>();
    let sums = (sides * ROWS * (channels + 4) + ROWS * channels) * size_of::<f32>();
    let groups = rows.div_ceil(ROWS as u32);
    Some(Work {
        program: ATTENTION_OUTPUT_PROGRAM,
        function,
        grid: [n / channels as u32, groups, HEADS[1] as u32],
        threads: 256,
        shared: (kept + sums + size_of::<u64>()) as u32,
        cluster: HEADS[1] as u32,
        weight_bytes: matmul.weight_bytes,
        ..joined
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::tests::works_of;
    use orate_graph::{Activation, AttentionMask, BufferKind, First, Graph, Op, Rows};
    use orate_testing::{DECODERS, decoder};

    #[test]
    fn attention_over_short_caches_multiplies_its_result() {
        let functions = |precision, [sizes, batch, capacity]: [usize; 3], kept: DType| {
            let (plan, mut works) =
                works_of(decoder(DECODERS[sizes], batch, capacity, kept).graph, precision);
            join_outputs(&plan, &mut works);
            let joined = works.iter().filter(|(_, w)| w.program.starts_with("attention_output"));
            joined.map(|(_, w)| w.function).collect::<Vec<_>>()
        };
        let (bf16, kept) = (Precision::Bf16, DType::BF16);
        assert_eq!(functions(bf16, [0, 3, 16], kept), ["attention_output_64"; 2]);
        assert_eq!(functions(bf16, [0, 8, 16], kept), ["attention_output_64"; 2]);
        assert_eq!(functions(bf16, [0, 16, 12], kept), ["attention_output_128"; 2]);
        for sizes in [[0, 2, 16], [0, 17, 16], [0, 16, 17], [1, 16, 16]] {
            assert_eq!(functions(bf16, sizes, kept), [""; 0], "{sizes:?}");
        }
        assert_eq!(functions(bf16, [0, 16, 16], DType::F32), [""; 0]);
        assert_eq!(functions(Precision::F16, [0, 16, 16], DType::F16), [""; 0]);
    }

    #[test]
    fn caches_of_a_run_that_only_attention_reads_are_bf16() {
        let stored = |precision, is_read: bool| {
            let mut g = Graph::new("run");
            let x = g.input("x", DType::F32, [3, 1, 128]).expect("declares");
            let q = g.concat(&[x, x], 2).expect("builds");
            let [keys, values] = ["keys", "values"].map(|name| {
                let cache = g.scratch(name, DType::F32, [3, 16, 128]).expect("declares");
                g.write_rows(cache, x, Rows::From(0)).expect("builds")
            });
            let mask = AttentionMask::Cached(First::Const(0));
            let (relative, bias, follows_weights) = (None, false, false);
            let op = Op::Attention { heads: 2, scale: 1.0, mask, relative, bias, follows_weights };
            let y = g.attention(op, q, keys, values, None).expect("builds");
            g.output("y", y).expect("declares");
            if is_read {
                let also = g.activate(keys, Activation::Relu).expect("builds");
                g.output("also", also).expect("declares");
            }
            let (plan, _) = works_of(g, precision);
            let buffers = plan.buffers().iter().filter(|b| b.kind == BufferKind::Scratch);
            buffers.map(|b| b.dtype).collect::<Vec<_>>()
        };
        assert_eq!(stored(Precision::Bf16, false), [DType::BF16; 2]);
        assert_eq!(stored(Precision::Bf16, true), [DType::F32, DType::BF16], "another op reads the keys");
        assert_eq!(stored(Precision::F16, false), [DType::F32; 2]);
    }
}
