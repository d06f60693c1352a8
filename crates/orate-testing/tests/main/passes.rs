//! Passes change steps, never results: random graphs give the same results before and after each pass.

use orate_graph::*;
use orate_testing::*;

const GRAPHS: u64 = 400;

/// A graph of 4 to 28 nodes on `[B, T, C]`, from the ops that passes match and a few others. Values are
/// reused, stored twice, and left unread.
fn random_graph(seed: u64) -> Graph {
    let mut r = Random::new(seed);
    let (b, t) = (1 + r.below(2), 1 + r.below(6));
    let widths = [4, 7];
    let mut g = Graph::new(format!("random {seed}"));
    let mut values: Vec<Value> = vec![];
    for (i, c) in widths.into_iter().enumerate() {
        values.push(g.input(&format!("x{i}"), DType::F32, [b, t, c]).expect("declares"));
    }
    let mut weights = 0;
    let mut outputs = 0;
    for _ in 0..4 + r.below(25) {
        // Mostly the last value, so that chains form.
        let x = if r.below(4) == 0 { values[r.below(values.len())] } else { values[values.len() - 1] };
        let c = g.shape(x).last();
        let mut named = |shape: &[usize]| {
            weights += 1;
            Weight::named(format!("w{weights}"), shape)
        };
        let like: Vec<Value> = values.iter().copied().filter(|v| g.shape(*v) == g.shape(x)).collect();
        let other = like[r.below(like.len())];
        let y = match r.below(12) {
            0 | 1 => g.matmul(x, named(&[c, widths[r.below(2)]])),
            2 => {
                let (taps, n) = (1 + r.below(3), widths[r.below(2)]);
                g.conv1d(x, named(&[taps * c, n]), ConvGeometry::causal(taps, 1 + r.below(2)))
            }
            3 => {
                let (w, bias) = (named(&[3, c]), named(&[c]));
                g.depthwise_conv1d(x, w, bias, ConvGeometry::symmetric(3, 1))
            }
            4 => {
                let (weight, bias) = (named(&[c]), named(&[c]));
                g.layer_norm(x, Norm { weight, bias, eps: 1e-2 })
            }
            5 | 6 => g.add_bias(x, named(&[c])),
            7 | 8 => {
                let slope = Activation::PRelu(named(&[1]));
                let f = [Activation::Relu, Activation::Gelu, Activation::Tanh, Activation::Mish, slope];
                g.activate(x, f[r.below(5)].clone())
            }
            9 | 10 => {
                // The product is either the first or the second operand.
                if r.below(2) == 0 { g.add(x, other) } else { g.add(other, x) }
            }
            _ => {
                // Reshape and back.
                let flat = g.reshape(x, [b * t * c]).expect("as many elements");
                let half = g.scale(flat, Factor::Const(0.5)).expect("builds");
                g.reshape(if r.below(2) == 0 { half } else { flat }, [b, t, c])
            }
        };
        values.push(y.expect("operands were chosen to fit"));
        if r.below(6) == 0 {
            g.output(&format!("y{outputs}"), values[r.below(values.len())]).expect("declares");
            outputs += 1;
        }
    }
    // The new state replaces an input, and the old one is stored as an output.
    let state = g.state("state", DType::F32, [b, t, widths[0]]).expect("declares");
    let like: Vec<Value> = values.iter().copied().filter(|v| g.shape(*v) == g.shape(state)).collect();
    let next = g.add(state, like[r.below(like.len())]).expect("one shape");
    g.update("state", next).expect("fits");
    if r.below(2) == 0 {
        g.output("old state", state).expect("declares");
    }
    g.output("last", values[values.len() - 1]).expect("declares");
    g
}

/// Asserts that all f32 buffers agree within rounding.
fn assert_same(what: &str, graph: &Graph, changed: &Graph) {
    let case = Case::new(what, graph.clone());
    let run = |g: &Graph| {
        interpret(g, &case.weights, &case.buffers, &case.scalars).unwrap_or_else(|e| panic!("{what}: {e}"))
    };
    let (before, after) = (run(graph), run(changed));
    assert_eq!(before.len(), after.len(), "{what}");
    for (name, data) in &before {
        let (Some(e), Some(g)) = (data.as_f32(), after[name].as_f32()) else {
            panic!("{what}: all are floats")
        };
        // Fused ops skip roundings, whose effect grows in deep graphs.
        assert_close(&format!("{what}, `{name}`"), g, e, tolerance::NETWORK);
    }
}

#[test]
fn each_pass_alone_keeps_the_meaning() {
    let mut changed = vec![0; passes::ALL.len()];
    for seed in 0..GRAPHS {
        let graph = random_graph(seed);
        for (i, (name, run)) in passes::ALL.iter().enumerate() {
            let mut g = graph.clone();
            run(&mut g);
            changed[i] += usize::from(g != graph);
            assert_same(&format!("{name} on {}", graph.name()), &graph, &g);
        }
    }
    for ((name, _), n) in passes::ALL.iter().zip(changed) {
        assert!(n >= 10, "{name} changed only {n} of {GRAPHS} graphs: the generator lost its pattern");
    }
}

#[test]
fn all_passes_keep_the_meaning_in_any_order() {
    for seed in 0..GRAPHS {
        let graph = random_graph(seed);
        let mut usual = graph.clone();
        passes::ALL.iter().for_each(|(_, run)| run(&mut usual));
        assert_same(&format!("all passes on {}", graph.name()), &graph, &usual);

        let mut odd = graph.clone();
        let mut r = Random::new(seed);
        for _ in 0..8 {
            passes::ALL[r.below(passes::ALL.len())].1(&mut odd);
        }
        assert_same(&format!("passes in odd order on {}", graph.name()), &graph, &odd);
    }
}

#[test]
fn passes_leave_nothing_to_do() {
    for seed in 0..GRAPHS {
        let mut g = random_graph(seed);
        passes::ALL.iter().for_each(|(_, run)| run(&mut g));
        // A dropped node may have been the second reader of a value, so another round may still find
        // something.
        passes::ALL.iter().for_each(|(_, run)| run(&mut g));
        let twice = g.clone();
        passes::ALL.iter().for_each(|(_, run)| run(&mut g));
        assert_eq!(g.nodes().len(), twice.nodes().len(), "{}", g.name());
    }
}

/// Compiled, in the memory of the plan: also tests lifetimes and final copies.
#[test]
fn plans_of_random_graphs_hold_their_values() {
    let cases: Vec<Case> = (0..GRAPHS)
        .map(|seed| {
            let graph = random_graph(seed);
            Case { tolerance: tolerance::NETWORK, ..Case::new(graph.name().to_owned(), graph) }
        })
        .collect();
    check_all(&OnDevice(&ReferenceDevice), &cases).assert();
}

/// Fused steps read and write at the planned places and give the same results as single ops.
#[test]
fn fusions_keep_the_meaning() {
    let cases = fused_cases(200);
    let mut fused = [0; 9];
    for case in &cases {
        let plan = Plan::compile(case.graph.clone(), &FusingDevice::all()).expect("compiles");
        layouts::assert_sound(&plan);
        for Step { fused: f, .. } in plan.steps() {
            let heads = |is: &dyn Fn(&Head) -> bool| f.heads.iter().any(is);
            let found = [
                f.norm.is_some(),
                !f.parts.is_empty(),
                f.gated,
                f.row.is_some(),
                f.rotary.is_some(),
                heads(&|h| h.norm.is_some()),
                heads(&|h| h.write.is_some()),
                heads(&|h| h.norm.is_none()),
            ];
            found.iter().zip(&mut fused).for_each(|(found, n)| *n += usize::from(*found));
        }
        fused[8] += plan.views().iter().filter(|n| n.op != Op::Reshape).count();
    }
    assert!(fused.iter().all(|n| *n >= 10), "the generator lost a pattern: {fused:?}");
    check_all(&OnDevice(&FusingDevice::all()), &cases).assert();
    let random: Vec<Case> = (0..GRAPHS)
        .map(|seed| {
            let graph = random_graph(seed);
            Case { tolerance: tolerance::NETWORK, ..Case::new(graph.name().to_owned(), graph) }
        })
        .collect();
    check_all(&OnDevice(&FusingDevice::all()), &random).assert();
    check_all(&OnDevice(&FusingDevice::all()), &op_cases()).assert();
}
