//! Tests of the comparison itself: a correct executor passes, wrong ones are caught and named.

use orate_graph::{DType, Graph, WeightLoader, passes};
use orate_testing::*;

/// The interpreter on the graph after all passes.
struct Fused;

impl Executor for Fused {
    fn name(&self) -> String {
        "interpreter after passes".to_owned()
    }

    fn run(
        &self,
        mut graph: Graph,
        weights: &dyn WeightLoader,
        buffers: &Buffers,
        scalars: &Scalars,
    ) -> Result<Buffers, String> {
        passes::ALL.iter().for_each(|(_, run)| run(&mut graph));
        interpret(&graph, weights, buffers, scalars).map_err(|e| e.to_string())
    }
}

/// [`Fused`], followed by a change to the buffers.
struct Broken(fn(&mut Buffers));

impl Executor for Broken {
    fn name(&self) -> String {
        "broken".to_owned()
    }

    fn run(
        &self,
        graph: Graph,
        weights: &dyn WeightLoader,
        buffers: &Buffers,
        scalars: &Scalars,
    ) -> Result<Buffers, String> {
        let mut after = Fused.run(graph, weights, buffers, scalars)?;
        (self.0)(&mut after);
        Ok(after)
    }
}

fn first_output(b: &mut Buffers) -> &mut Vec<f32> {
    match b.get_mut("y") {
        Some(Data::F32(x)) => x,
        _ => panic!("the first hand-written cases have an output `y` of floats"),
    }
}

#[test]
fn fused_graphs_agree_on_every_case() {
    let report = check_all(&Fused, &op_cases());
    println!("{report}");
    report.assert();
}

/// Compiled, with all temporaries in one arena: the memory plan keeps every value until its last reader.
#[test]
fn plans_in_their_own_memory_agree_on_every_case() {
    let report = check_all(&OnDevice(&ReferenceDevice), &op_cases());
    println!("{report}");
    report.assert();
}

#[test]
fn a_small_error_in_one_element_is_found_in_every_case() {
    let mut cases = op_cases();
    // If a case rounds to a compact type, neighboring results may be correct too.
    let all = cases.len();
    cases.retain(|c| c.tolerance < tolerance::compact_step(DType::F16));
    assert!(all - cases.len() < 40, "{} cases of {all}", all - cases.len());
    // Limits are relative to the largest element, so that one is changed.
    let report = check_all(
        &Broken(|b| {
            if let Some(Data::I32(y)) = b.get_mut("y") {
                return y[0] = y[0].wrapping_add(1);
            }
            if let Some(Data::Compact(_, y)) = b.get_mut("y") {
                return y[0] = y[0].wrapping_add(1);
            }
            let y = first_output(b);
            let worst = y.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs())).expect("no output is empty");
            *worst = if *worst == 0.0 { 1.0 } else { *worst * 1.001 };
        }),
        &cases,
    );
    assert_eq!(report.passed, 0, "cases that accept an error of a thousandth");
    assert_eq!(report.failures.len(), cases.len());
}

#[test]
fn missing_and_odd_results_are_failures() {
    let cases = op_cases();
    let some = || cases.iter().take(3);
    for (breakage, word) in [
        (Broken(|b| drop(b.remove("y"))), "did not come back"),
        (Broken(|b| first_output(b).truncate(0)), "elements where"),
        (Broken(|b| first_output(b)[0] = f32::NAN), "only finite numbers"),
        (Broken(|b| drop(b.insert("y".into(), vec![1].into()))), "integers differ"),
    ] {
        let report = check_all(&breakage, some());
        assert_eq!(report.failures.len(), 3, "{word}: {report}");
        assert!(report.failures.iter().all(|f| f.problem.contains(word)), "{word}: {report}");
    }
}

#[test]
fn a_changed_input_is_a_failure() {
    let cases = op_cases();
    let case = cases.iter().find(|c| c.name.starts_with("Add [")).expect("there are sums");
    let change = Broken(|b| {
        let Some(Data::F32(x)) = b.get_mut("x") else { panic!("sums read `x`") };
        x[0] += 1.0;
    });
    assert!(check_all(&change, [case]).to_string().contains("input was changed"));
}

#[test]
#[should_panic(expected = "no cases were given")]
fn no_cases_is_no_success() {
    check_all(&Fused, []).assert();
}

#[test]
fn memory_is_copied_on_the_reference_device() {
    check_copies(&ReferenceDevice);
    check_shared_reads(&ReferenceDevice);
    check_extensions(&ReferenceDevice);
    check_compact_rows(&ReferenceDevice);
    check_later_reads(&ReferenceDevice);
    check_clearing(&ReferenceDevice);
}
