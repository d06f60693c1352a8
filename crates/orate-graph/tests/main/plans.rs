//! What compiling makes of small graphs: launches, by what a target can fuse, and places of values; and what
//! it must leave alone. That results stay the same is tested with numbers, in `orate-testing`.

use crate::snapshots::Fusing;
use orate_graph::*;
use std::collections::{HashMap, HashSet};

/// What most kernels can do, with matmuls of one row.
fn usual() -> Fusions {
    Fusions {
        add_row: true,
        heads: true,
        rotate_queries: true,
        matmul_rows: 1,
        matmul_multiple: [4, 4],
        matmul_bytes: usize::MAX,
        views: true,
        ..Fusions::default()
    }
}

fn compile(g: Graph, fusions: Fusions) -> Plan {
    Plan::compile(g, &Fusing("any", fusions)).expect("everything runs")
}

fn plan(build: impl FnOnce(&mut Graph, Value)) -> Plan {
    let mut g = Graph::new("fuse");
    let x = g.input("x", DType::F32, [1, 6, 8]).expect("declares");
    build(&mut g, x);
    compile(g, usual())
}

fn names(p: &Plan) -> Vec<&'static str> {
    p.steps().iter().map(|s| s.node.op.name()).collect()
}

fn described(p: &Plan) -> Vec<String> {
    p.steps().iter().map(|s| s.describe()).collect()
}

fn matmul(g: &mut Graph, x: Value, name: &str) -> Value {
    g.matmul(x, Weight::named(name, [8, 8])).expect("builds")
}

#[test]
fn a_row_joins_its_matmul_if_nothing_else_reads_it() {
    for shared in [false, true] {
        let p = plan(|g, x| {
            let rows = g.input("rows", DType::F32, [3, 8]).expect("declares");
            let step = g.scalar("step");
            let y = matmul(g, x, "w");
            let row = g.select_row(rows, step).expect("builds");
            let z = g.add_row(y, row).expect("builds");
            let z = if shared { g.add(z, y).expect("builds") } else { matmul(g, z, "v") };
            g.output("z", z).expect("declares");
        });
        match shared {
            false => assert_eq!(described(&p), ["MatMul+row", "MatMul"]),
            true => assert_eq!(described(&p), ["MatMul", "SelectRow", "AddRow", "Add"]),
        }
        let (first, reader) = (&p.steps()[0], &p.steps()[if shared { 2 } else { 1 }]);
        assert_eq!(p.place(reader.node.inputs[0]), p.place(first.node.output), "the matmul's result is read");
    }
}

#[test]
fn attention_rotates_its_queries() {
    let p = plan(|g, x| {
        let table = g.input("table", DType::F32, [1, 2, 6, 2]).expect("declares");
        let q = matmul(g, x, "q");
        let q = g.rotary(q, table, 2).expect("builds");
        let k = matmul(g, x, "k");
        let k = g.rotary(k, table, 2).expect("builds");
        let op = Op::Attention {
            heads: 2,
            scale: 1.0,
            mask: AttentionMask::None,
            relative: None,
            bias: false,
            follows_weights: false,
        };
        let y = g.attention(op, q, k, x, None).expect("builds");
        g.output("y", y).expect("declares");
    });
    // Several rows are not one matmul here, and keys are rotated on their own.
    assert_eq!(described(&p), ["MatMul", "MatMul", "Rotary", "Attention+rotary"]);
    let places: HashSet<String> =
        p.steps()[3].node.inputs.iter().map(|v| format!("{:?}", p.place(*v))).collect();
    assert_eq!(places.len(), 3, "no operand lies on another");
}

#[test]
fn queries_that_are_normed_are_rotated_with_their_norm() {
    let p = plan(|g, x| {
        let table = g.rope_table(1e4, 6, 8, Rows::From(0)).expect("builds");
        let q = matmul(g, x, "q");
        let q = g.reshape(q, [1, 6, 1, 8]).expect("builds");
        let q = g.rms_norm(q, Weight::named("norm", [8]), 1e-6).expect("builds");
        let q = g.reshape(q, [1, 6, 8]).expect("builds");
        let q = g.rotary(q, table, 1).expect("builds");
        let op = Op::Attention {
            heads: 1,
            scale: 1.0,
            mask: AttentionMask::None,
            relative: None,
            bias: false,
            follows_weights: false,
        };
        let y = g.attention(op, q, x, x, None).expect("builds");
        g.output("y", y).expect("declares");
    });
    assert_eq!(described(&p), ["RopeTable", "MatMul", "Heads x1+norm1+rotary1", "Attention"]);
}

#[test]
fn whole_blocks_are_not_moved() {
    let p = plan(|g, x| {
        let a = matmul(g, x, "a");
        let b = matmul(g, x, "b");
        let both = g.concat(&[a, b], 0).expect("builds");
        let c = matmul(g, both, "c");
        let second = g.slice(c, 0, 1, 1).expect("builds");
        let y = matmul(g, second, "d");
        g.output("y", y).expect("declares");
    });
    assert_eq!(names(&p), ["MatMul"; 4]);
    assert_eq!(p.views().len(), 2);
    let (out, x) =
        (|i: usize| p.place(p.steps()[i].node.output), |i: usize| p.place(p.steps()[i].node.inputs[0]));
    assert_eq!((out(0), out(1), x(2)), (Place::Arena(0), Place::Arena(4 * 48), Place::Arena(0)));
    let (Place::Arena(whole), Place::Arena(part)) = (out(2), x(3)) else { panic!("arena") };
    assert_eq!(part, whole + 4 * 48);
}

#[test]
fn blocks_that_are_cut_or_used_twice_are_moved() {
    let p = plan(|g, x| {
        let a = matmul(g, x, "a");
        let twice = g.concat(&[a, a], 0).expect("builds");
        let wide = g.concat(&[twice, twice], 2).expect("builds");
        let cut = g.slice(wide, 2, 1, 8).expect("builds");
        g.output("cut", cut).expect("declares");
        let inputs = g.concat(&[x, x], 1).expect("builds");
        g.output("inputs", inputs).expect("declares");
    });
    assert_eq!(names(&p), ["MatMul", "Concat", "Concat", "Slice", "Concat"]);
}

/// A chain with a long-lived value needs three slots, however long it is.
#[test]
fn memory_is_reused() {
    let mut g = Graph::new("chain");
    let x = g.input("x", DType::F32, [16]).expect("declares");
    let keep = g.activate(x, Activation::Relu).expect("builds");
    let mut y = keep;
    for _ in 0..10 {
        y = g.activate(y, Activation::Tanh).expect("builds");
    }
    let z = g.add(y, keep).expect("builds");
    g.output("z", z).expect("declares");
    assert_eq!(compile(g, Fusions::default()).arena_bytes(), 3 * 64);
}

/// Stores read what states held before the run, whatever the order in which they happen.
#[test]
fn no_store_reads_a_state_that_another_replaces() {
    let mut g = Graph::new("states");
    let a = g.state("a", DType::F32, [2]).expect("declares");
    let b = g.state("b", DType::F32, [2]).expect("declares");
    let c = g.state("c", DType::F32, [1, 2]).expect("declares");
    let flat = g.reshape(c, [2]).expect("builds");
    g.update("a", b).expect("fits");
    g.update("b", a).expect("fits");
    g.output("old a", a).expect("declares");
    g.output("old c", flat).expect("declares");
    let p = compile(g, Fusions::default());
    // Nothing replaces c, so it needs no copy before it is copied.
    assert_eq!(names(&p), ["Concat"; 3]);
    for (_, v) in p.copies() {
        assert!(!matches!(p.place(*v), Place::Buffer(0 | 1, _)), "{v:?} is read from a or b");
    }
}

/// Lifetimes in a long random graph: nothing is overwritten before its last reader.
#[test]
fn live_values_never_overlap() {
    for fusions in [Fusions::default(), usual()] {
        let mut state = 3u64;
        let mut random = move |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let mut g = Graph::new("random");
        let mut all = vec![g.input("x", DType::F32, [1, 6, 8]).expect("declares")];
        for _ in 0..300 {
            let (a, b) = (all[random(all.len())], all[all.len() - 1 - random(all.len().min(3))]);
            let v = match random(5) {
                0 => g.concat(&[a, b], 0).and_then(|v| g.slice(v, 0, 0, 1)),
                1 => g.reshape(b, [6, 1, 8]).and_then(|v| g.reshape(v, [1, 6, 8])),
                2 => g.slice(b, 1, 2, 4).and_then(|v| g.concat(&[v, v], 1)).and_then(|v| g.slice(v, 1, 1, 6)),
                3 => g.concat(&[b], 0),
                _ => g.add(a, b),
            };
            all.push(v.expect("builds"));
        }
        g.output("y", all[300]).expect("declares");
        let has_views = fusions.views;
        let p = compile(g, fusions);
        let range = |v: Value| match p.place(v) {
            Place::Arena(start) => Some((start, start + 4 * p.info(v).shape.len())),
            _ => None,
        };
        // What a reshape is of, which is where it is.
        let reshapes = p.views().iter().filter(|n| n.op == Op::Reshape);
        let of: HashMap<Value, Value> = reshapes.map(|n| (n.output, n.inputs[0])).collect();
        // Who wrote each byte last, by replaying the steps.
        let mut content: Vec<usize> = vec![0; p.arena_bytes()];
        let mut expected: HashMap<Value, Vec<usize>> = HashMap::new();
        for (i, s) in p.steps().iter().enumerate() {
            for v in &s.node.inputs {
                let mut v = *v;
                while let Some(whole) = of.get(&v) {
                    v = *whole;
                }
                if let (Some((a, b)), Some(want)) = (range(v), expected.get(&v)) {
                    assert_eq!(&content[a..b], &want[..], "step {i} reads what was overwritten");
                }
            }
            if let Some((a, b)) = range(s.node.output) {
                content[a..b].fill(i + 1);
                expected.insert(s.node.output, content[a..b].to_vec());
            }
        }
        assert!(p.steps().len() > 50);
        assert_eq!(has_views, p.views().iter().any(|n| n.op != Op::Reshape));
    }
}

/// What happens to the heads of queries and keys.
#[derive(Clone, Copy, PartialEq)]
enum Heads {
    NormedAndRotated,
    Rotated,
    Plain,
}

/// Queries, keys and values of some rows, as a transformer that decodes has them.
fn decoding(rows: usize, fusions: Fusions) -> Plan {
    decoding_of(Heads::NormedAndRotated, rows, fusions)
}

fn decoding_of(what: Heads, rows: usize, fusions: Fusions) -> Plan {
    let mut g = Graph::new("decode");
    let x = g.input("x", DType::F32, [1, rows, 64]).expect("declares");
    let at = g.input("at", DType::I32, [1]).expect("declares");
    let [keys, values] = ["keys", "values"].map(|n| g.state(n, DType::F32, [1, 9, 32]).expect("declares"));
    let table = g.rope_table(1e4, rows, 16, Rows::At(at)).expect("builds");
    let w = |name: &str, n: usize| Weight::named(name, [64, n]);
    let v = g.matmul(x, w("v", 32)).expect("builds");
    let mut rotated = |name: &str, heads: usize| {
        let mut y = g.matmul(x, w(name, 16 * heads)).expect("builds");
        if what == Heads::NormedAndRotated {
            y = g.reshape(y, [1, rows, heads, 16]).expect("builds");
            y = g.rms_norm(y, Weight::named("norm", [16]), 1e-6).expect("builds");
            y = g.reshape(y, [1, rows, 16 * heads]).expect("builds");
        }
        if what == Heads::Plain { y } else { g.rotary(y, table, heads).expect("builds") }
    };
    let (q, k) = (rotated("q", 4), rotated("k", 2));
    let keys = g.write_rows(keys, k, Rows::At(at)).expect("builds");
    let values = g.write_rows(values, v, Rows::At(at)).expect("builds");
    let mask = AttentionMask::Cached(First::Operand);
    let op =
        Op::Attention { heads: 4, scale: 1.0, mask, relative: None, bias: false, follows_weights: false };
    let y = g.attention(op, q, keys, values, Some(at)).expect("builds");
    g.output("y", y).expect("declares");
    compile(g, fusions)
}

#[test]
fn a_row_takes_few_launches_to_its_attention() {
    let p = decoding(1, usual());
    assert_eq!(described(&p), ["RopeTable", "MatMul x3", "Heads x3+norm2+rotary2+write2", "Attention"]);
    let fused: Vec<bool> = p.steps().iter().map(|s| s.kernel.starts_with("fused")).collect();
    assert_eq!(fused, [false, true, true, false]);
    let heads = &p.steps()[2].fused.heads;
    let what: Vec<_> =
        heads.iter().map(|h| (h.count, h.norm.is_some(), h.table.is_some(), h.write.is_some())).collect();
    assert_eq!(what, [(4, true, true, false), (2, true, true, true), (2, false, false, true)]);
    // Values, queries, keys: one after the other, where the matmul writes them.
    let places: Vec<_> = [2, 0, 1].map(|i| p.place(heads[i].x)).to_vec();
    let Place::Arena(first) = places[0] else { panic!("{places:?}") };
    assert_eq!(places[1..], [Place::Arena(first + 4 * 32), Place::Arena(first + 4 * 96)]);
    assert!(matches!(p.place(heads[1].out), Place::Buffer(..)), "keys go to their state");
    assert_ne!(p.place(heads[0].out), places[1], "queries are not rotated where others read them");
    assert_eq!(groups(&p), [["v", "q", "k"]]);
}

#[test]
fn heads_of_one_row_need_no_norm() {
    let p = decoding_of(Heads::Rotated, 1, usual());
    assert_eq!(described(&p), ["RopeTable", "MatMul x3", "Heads x3+rotary2+write2", "Attention"]);
    let p = decoding_of(Heads::Plain, 1, usual());
    assert_eq!(described(&p), ["MatMul x3", "Heads x2+write2", "Attention"]);
    let heads = &p.steps()[1].fused.heads;
    assert_eq!(heads.iter().map(|h| (h.count, h.width)).collect::<Vec<_>>(), [(1, 32), (1, 32)]);
    // With more rows attention rotates its queries, and copies are as fast as heads.
    let p = decoding_of(Heads::Rotated, 2, usual());
    assert!(described(&p).iter().all(|step| !step.starts_with("Heads")), "{:?}", described(&p));
    let p = decoding_of(Heads::Plain, 2, usual());
    assert!(described(&p).iter().all(|step| !step.starts_with("Heads")), "{:?}", described(&p));
}

#[test]
fn attention_of_one_query_takes_the_heads_before_it() {
    let attended = || Fusions { attended_heads: &[1, 2], attended_width: 128, ..usual() };
    let p = decoding_of(Heads::NormedAndRotated, 1, attended());
    let all = ["RopeTable", "MatMul x3", "Attention+norm2+rotary2+write2"];
    assert_eq!(described(&p), all);
    let before = &p.steps()[2].fused.before;
    let what: Vec<_> =
        before.iter().map(|h| (h.count, h.norm.is_some(), h.table.is_some(), h.write.is_some())).collect();
    assert_eq!(what, [(4, true, true, false), (2, true, true, true), (2, false, false, true)]);
    assert_eq!(p.place(before[0].out), Place::Nowhere, "rotated queries are stored nowhere");
    assert_eq!(p.steps()[2].node.inputs[0], before[0].x);
    assert_ne!(p.place(p.steps()[2].node.output), p.place(before[0].x), "read while the result is written");
    // Heads that are only written have the width of those of attention.
    let p = decoding_of(Heads::Plain, 1, attended());
    assert_eq!(described(&p), ["MatMul x3", "Attention+write2"]);
    let before = &p.steps()[1].fused.before;
    assert_eq!(before.iter().map(|h| (h.count, h.width)).collect::<Vec<_>>(), [(4, 16), (2, 16), (2, 16)]);
    // Several queries, or more of them for each key than the kernel has.
    let p = decoding_of(Heads::NormedAndRotated, 2, attended());
    assert_eq!(described(&p).last().map(String::as_str), Some("Attention"));
    let p = decoding_of(
        Heads::NormedAndRotated,
        1,
        Fusions { attended_heads: &[1], attended_width: 128, ..usual() },
    );
    assert_eq!(described(&p).last().map(String::as_str), Some("Attention"));
}

/// Queries, keys and values that are slices of one matmul, of two sequences. `more` builds what else there is
/// between the writes and attention.
fn sliced(more: impl Fn(&mut Graph, [Value; 3], [Value; 2])) -> Vec<String> {
    let mut g = Graph::new("sliced");
    let x = g.input("x", DType::F32, [2, 1, 32]).expect("declares");
    let [at, other] = ["at", "other"].map(|name| g.input(name, DType::I32, [2]).expect("declares"));
    let states = ["keys", "values"].map(|n| g.state(n, DType::F32, [2, 9, 32]).expect("declares"));
    let y = g.linear(x, Weight::named("w", [32, 96]), Weight::named("b", [96])).expect("builds");
    let [q, k, v] = [0, 32, 64].map(|start| g.slice(y, 2, start, 32).expect("builds"));
    let keys = g.write_rows(states[0], k, Rows::At(at)).expect("builds");
    let values = g.write_rows(states[1], v, Rows::At(at)).expect("builds");
    more(&mut g, [q, keys, values], [at, other]);
    let p = compile(g, Fusions { attended_heads: &[1], attended_width: 128, ..usual() });
    described(&p)
}

fn attend(g: &mut Graph, [q, keys, values]: [Value; 3], at: Value) {
    let mask = AttentionMask::Cached(First::Operand);
    let op =
        Op::Attention { heads: 2, scale: 1.0, mask, relative: None, bias: false, follows_weights: false };
    let y = g.attention(op, q, keys, values, Some(at)).expect("builds");
    g.output("y", y).expect("declares");
}

#[test]
fn attention_reads_heads_where_they_are() {
    let steps = sliced(|g, values, [at, _]| attend(g, values, at));
    assert_eq!(steps, ["MatMul+bias", "Attention+write2"]);
    let apart = |steps: Vec<String>| steps.last().map(String::as_str) == Some("Attention");
    assert!(apart(sliced(|g, values, [_, other]| attend(g, values, other))), "sees other keys");
    assert!(apart(sliced(|g, values, [at, _]| {
        g.output("q", values[0]).expect("declares");
        attend(g, values, at);
    })));
    // The row before is written later: attention must not see it.
    let between = sliced(|g, values, [at, other]| {
        let keys = g.write_rows(values[1], values[0], Rows::At(other)).expect("builds");
        attend(g, [values[0], keys, values[2]], at);
    });
    assert!(apart(between));
}

#[test]
fn matmuls_norm_as_many_rows_as_they_can() {
    let steps = |rows: usize, fusions: Fusions| {
        let mut g = Graph::new("normed");
        let x = g.input("x", DType::F32, [rows, 1, 16]).expect("declares");
        let y = g.rms_norm(x, Weight::named("norm", [16]), 1e-5).expect("builds");
        let y = g.matmul(y, Weight::named("w", [16, 8])).expect("builds");
        g.output("y", y).expect("declares");
        described(&compile(g, fusions))
    };
    let few = || Fusions { norm_multiple: Some([4, 4]), norm_rows: 2, ..usual() };
    let (together, apart) = (["RmsNorm+MatMul"], ["RmsNorm", "MatMul"]);
    assert_eq!(steps(1, few()), together);
    assert_eq!(steps(2, few()), together);
    assert_eq!(steps(3, few()), apart);
    // Other kernels have more rows, but not with every weight.
    let many = |deny: &[&str]| {
        let deny = deny.iter().map(|name| (*name).to_owned()).collect();
        let precision = PrecisionPolicy { precision: Precision::F16, deny, ..PrecisionPolicy::default() };
        Fusions { many_norm_rows: Some([5, 7]), precision, ..few() }
    };
    assert_eq!([4, 8].map(|rows| steps(rows, many(&[]))), [apart, apart]);
    assert_eq!([1, 5, 7].map(|rows| steps(rows, many(&[]))), [together, together, together]);
    assert_eq!(steps(5, many(&["w"])), apart);
    assert_eq!(steps(2, many(&["w"])), together);
}

#[test]
fn matmuls_apply_layer_norms_with_all_else() {
    let with = |rows: usize, fusions: Fusions, residual: bool| {
        let mut g = Graph::new("normed");
        let x = g.input("x", DType::F32, [rows, 1, 16]).expect("declares");
        let norm =
            Norm { weight: Weight::named("gain", [16]), bias: Weight::named("shift", [16]), eps: 1e-5 };
        let y = g.layer_norm(x, norm).expect("builds");
        let z = g.linear(y, Weight::named("w", [16, 16]), Weight::named("b", [16])).expect("builds");
        let z = g.activate(z, Activation::GeluTanh).expect("builds");
        let z = if residual { g.add(y, z).expect("builds") } else { z };
        g.output("z", z).expect("declares");
        described(&compile(g, Fusions { norm_multiple: Some([4, 4]), ..fusions }))
    };
    let steps = |rows: usize, layer_norm_rows: usize, residual: bool| {
        with(rows, Fusions { layer_norm_rows, ..usual() }, residual)
    };
    assert_eq!(steps(1, 2, false), ["LayerNorm+MatMul+bias+gelu_tanh"]);
    assert_eq!(steps(3, 2, false), ["LayerNorm", "MatMul+bias+gelu_tanh"]);
    assert_eq!(steps(1, 0, false), ["LayerNorm", "MatMul+bias+gelu_tanh"]);
    assert_eq!(steps(1, 2, true), ["LayerNorm", "MatMul+bias+gelu_tanh+residual"], "others read it too");
    let late = |rows: usize, residual: bool| {
        let fusions = Fusions { layer_norm_rows: 2, late_layer_norm_rows: 4, ..usual() };
        with(rows, fusions, residual)
    };
    for rows in 1..=4 {
        assert_eq!(late(rows, false), ["LayerNorm+MatMul+bias+gelu_tanh"], "{rows} rows");
    }
    assert_eq!(late(5, false), ["LayerNorm", "MatMul+bias+gelu_tanh"]);
    assert_eq!(late(4, true), ["LayerNorm", "MatMul+bias+gelu_tanh+residual"], "others read it too");
    let many = |rows: usize, multiple: usize, widest: usize| {
        let norms = LayerNorms { rows: [5, 7], multiple, widest };
        with(rows, Fusions { many_layer_norms: Some(norms), ..usual() }, false)
    };
    assert_eq!(many(5, 8, 16), ["LayerNorm+MatMul+bias+gelu_tanh"]);
    for [rows, multiple, widest] in [[4, 8, 16], [8, 8, 16], [5, 3, 16], [5, 8, 15]] {
        assert_eq!(
            many(rows, multiple, widest),
            ["LayerNorm", "MatMul+bias+gelu_tanh"],
            "{rows} {multiple} {widest}"
        );
    }
}

/// Rotated keys that others read too are made before they are written.
#[test]
fn heads_are_not_written_by_the_launch_that_makes_them() {
    let mut g = Graph::new("watched");
    let x = g.input("x", DType::F32, [1, 1, 64]).expect("declares");
    let at = g.input("at", DType::I32, [1]).expect("declares");
    let keys = g.state("keys", DType::F32, [1, 9, 32]).expect("declares");
    let table = g.rope_table(1e4, 1, 16, Rows::At(at)).expect("builds");
    let k = g.matmul(x, Weight::named("k", [64, 32])).expect("builds");
    let k = g.rotary(k, table, 2).expect("builds");
    g.write_rows(keys, k, Rows::At(at)).expect("builds");
    let y = g.slice(k, 2, 16, 16).expect("builds");
    g.output("y", y).expect("declares");
    let p = compile(g, usual());
    assert_eq!(described(&p)[..4], ["RopeTable", "MatMul", "Heads x1+rotary1", "WriteRows"]);
}

fn groups(p: &Plan) -> Vec<Vec<&str>> {
    p.weight_groups().iter().map(|g| g.iter().filter_map(|w| w.first_name()).collect()).collect()
}

#[test]
fn parts_of_several_rows_are_matrices_one_after_the_other() {
    let p = decoding(3, Fusions { matmul_rows: 3, ..usual() });
    assert_eq!(described(&p), ["RopeTable", "MatMul x3", "Heads x3+norm2+rotary2+write2", "Attention"]);
    let heads = &p.steps()[2].fused.heads;
    let places: Vec<_> = [2, 0, 1].map(|i| p.place(heads[i].x)).to_vec();
    let Place::Arena(first) = places[0] else { panic!("{places:?}") };
    assert_eq!(places[1..], [Place::Arena(first + 4 * 3 * 32), Place::Arena(first + 4 * 3 * 96)]);
}

#[test]
fn too_many_rows_or_other_weights_are_matmuls_of_their_own() {
    let matmuls = |p: &Plan| names(p).into_iter().filter(|n| *n == "MatMul").count();
    let apart = decoding(3, Fusions { matmul_rows: 2, ..usual() });
    assert_eq!(matmuls(&apart), 3);
    assert_eq!(groups(&apart), [["v", "q", "k"]], "plans with fewer rows find them together");
    assert_eq!(matmuls(&decoding(1, Fusions { matmul_multiple: [1, 64], ..usual() })), 3, "of 32 columns");
    let policy = |deny: &str| PrecisionPolicy {
        precision: Precision::Bf16,
        deny: vec![deny.to_owned()],
        ..PrecisionPolicy::default()
    };
    let p = decoding(1, Fusions { precision: policy("q"), ..usual() });
    assert_eq!((matmuls(&p), groups(&p)), (2, vec![vec!["v", "k"]]), "formats differ");
    let p = decoding(1, Fusions { matmul_bytes: 4 * 64 * 96, ..usual() });
    assert_eq!((matmuls(&p), groups(&p)), (2, vec![vec!["v", "q"]]), "no room for keys");
}

/// Draws from logits that are made on the way, each with the rows that it selects and their sum so far.
fn drawn(fusions: Fusions) -> Plan {
    let mut g = Graph::new("draws");
    let rows = 4;
    let mut x = g.input("x", DType::F32, [rows, 1, 8]).expect("declares");
    let settings = g.input("settings", DType::F32, [rows, 4]).expect("declares");
    let seed = g.input("seed", DType::I32, [rows, 2]).expect("declares");
    let number = g.input("number", DType::I32, [rows]).expect("declares");
    let mut sum = x;
    for i in 0..4 {
        let logits = g.matmul(x, Weight::named(format!("w{i}"), [8, 16])).expect("builds");
        let logits = g.reshape(logits, [rows, 16]).expect("builds");
        let draw = Draw { settings, seed, number };
        let id = g.sample(Op::Sample(SampleRules::default()), logits, draw, None).expect("builds");
        x = g.embedding(id, Weight::named(format!("table{i}"), [16, 8])).expect("builds");
        sum = g.add(sum, x).expect("builds");
    }
    g.output("sum", sum).expect("declares");
    compile(g, fusions)
}

#[test]
fn a_draw_may_read_its_logits_until_sums_are_made() {
    let overlaps = |p: &Plan| {
        let span = |v: Value| p.place(v).span(p.info(v).dtype.bytes_of(&p.info(v).shape));
        let of = |name: &'static str| p.steps().iter().filter(move |s| s.node.op.name() == name);
        of("Sample").zip(of("Embedding")).zip(of("Add")).any(|((draw, rows), add)| {
            let logits = span(draw.node.inputs[0]).expect("in memory");
            [rows, add].iter().any(|s| span(s.node.output).expect("in memory").overlaps(&logits))
        })
    };
    let joins = drawn(Fusions { draws: true, ..usual() });
    assert_eq!(joins.runs().iter().map(|run| run.steps.len()).collect::<Vec<_>>(), [3; 4]);
    assert!(!overlaps(&joins));
    assert!(overlaps(&drawn(usual())), "the memory of logits is used again");
}

#[test]
fn a_state_is_read_where_the_plan_reads_it() {
    let p = plan(|g, x| {
        let cache = g.state("cache", DType::F32, [1, 9, 8]).expect("declares");
        let before = g.slice(cache, 1, 0, 6).expect("builds");
        g.write_rows(cache, x, Rows::From(0)).expect("builds");
        let y = g.add(before, x).expect("builds");
        g.output("y", y).expect("declares");
    });
    assert_eq!(names(&p), ["Slice", "WriteRows", "Add"], "the old rows are copied before they go");
}

/// Norm, gate and up of one row, and what else reads the normed row.
fn gated(rows: usize, shared: bool, norm: bool) -> Plan {
    let mut g = Graph::new("gated");
    let x = g.input("x", DType::F32, [1, rows, 8]).expect("declares");
    let y = g.rms_norm(x, Weight::named("norm", [8]), 1e-6).expect("builds");
    let gate = matmul(&mut g, y, "gate");
    let gate = g.activate(gate, Activation::Silu).expect("builds");
    let up = matmul(&mut g, y, "up");
    let z = g.mul(gate, up).expect("builds");
    let z = if shared { g.add(z, y).expect("builds") } else { z };
    let z = matmul(&mut g, z, "down");
    let z = g.add(z, x).expect("builds");
    g.output("z", z).expect("declares");
    let norm_multiple = norm.then_some([4, 4]);
    compile(g, Fusions { gated_rows: 16, norm_multiple, norm_rows: 1, ..usual() })
}

#[test]
fn matmuls_norm_their_row_and_multiply_what_they_make() {
    let p = gated(1, false, true);
    assert_eq!(described(&p), ["RmsNorm+MatMul+silu+gated", "MatMul+residual"]);
    let first = &p.steps()[0];
    assert_eq!(first.node.inputs, first.nodes[0].inputs, "the row is read before its norm");
    let ops: Vec<&str> = first.nodes.iter().map(|n| n.op.name()).collect();
    assert_eq!(ops, ["RmsNorm", "MatMul", "MatMul", "Mul"]);
    assert_eq!(p.place(first.node.output), p.place(p.steps()[1].node.inputs[0]));
    assert_eq!(p.arena_bytes(), ALIGNMENT, "only the product of both is kept");
    // Row, norm, two weights and the result; each once.
    assert_eq!(first.cost.bytes, 4 * (8 + 8 + 2 * 64 + 8));
    let down = "MatMul+residual";
    assert_eq!(described(&gated(1, false, false)), ["RmsNorm", "MatMul+silu+gated", down]);
    assert_eq!(described(&gated(1, true, true)), ["RmsNorm", "MatMul+silu+gated", "Add", down]);
    assert_eq!(described(&gated(2, false, true)), ["RmsNorm", "MatMul+silu", "MatMul", "Mul", down]);
}

#[test]
fn norms_activate_and_add_a_row() {
    let plan = |widest: usize, activation: Activation, shared: bool| {
        let mut g = Graph::new("fuse");
        let x = g.input("x", DType::F32, [1, 6, 8]).expect("declares");
        let rows = g.input("rows", DType::F32, [3, 8]).expect("declares");
        let step = g.scalar("step");
        let y = normed(&mut g, x);
        let z = g.activate(y, activation).expect("builds");
        let row = g.select_row(rows, step).expect("builds");
        let z = g.add_row(z, row).expect("builds");
        let z = if shared { g.mul(z, y).expect("builds") } else { matmul(&mut g, z, "w") };
        g.output("z", z).expect("declares");
        described(&compile(g, Fusions { norm_activations: widest, ..usual() }))
    };
    assert_eq!(plan(8, Activation::Mish, false), ["LayerNorm+mish+row", "MatMul"]);
    let apart = ["LayerNorm", "Activate mish", "SelectRow", "AddRow"];
    assert_eq!(plan(4, Activation::Mish, false)[..4], apart, "too wide");
    assert_eq!(plan(8, Activation::Mish, true)[..4], apart, "the norm is read");
    let slope = Activation::PRelu(Weight::named("slope", [1]));
    assert_eq!(plan(8, slope, false)[0], "LayerNorm", "no kernel has its slope");
}

/// Matmuls and attention round what they read, and store so what they make; norms do only the latter, in
/// either type. With a bias, attention rounds to f16.
struct Rounds;

impl Target for Rounds {
    fn name(&self) -> String {
        "rounds".to_owned()
    }

    fn kernel(&self, _: &Op, _: &[&ValueInfo]) -> std::result::Result<String, String> {
        Ok("any".to_owned())
    }

    fn fusions(&self) -> Fusions {
        Fusions { matmul_rows: 100, ..usual() }
    }

    fn rounding(&self, op: &Op, _: &[&ValueInfo], _: &ValueInfo, _: &Fused) -> Rounding {
        let reads = match op {
            Op::MatMul { .. } => Some((1, DType::BF16)),
            Op::Attention { bias, .. } => Some((3, if *bias { DType::F16 } else { DType::BF16 })),
            _ => None,
        };
        let writes: &[DType] = match op {
            Op::LayerNorm(_) => &[DType::F16, DType::BF16],
            _ if reads.is_some() => &[DType::BF16],
            _ => &[],
        };
        Rounding { reads, writes, widens: false }
    }
}

/// Types of the values of a plan's steps, in order.
fn stored(build: impl FnOnce(&mut Graph, Value)) -> Vec<DType> {
    let mut g = Graph::new("round");
    let x = g.input("x", DType::F32, [2, 6, 8]).expect("declares");
    build(&mut g, x);
    let p = Plan::compile(g, &Rounds).expect("everything runs");
    p.steps().iter().map(|s| p.info(s.node.output).dtype).collect()
}

fn normed(g: &mut Graph, x: Value) -> Value {
    let [weight, bias] = ["gain", "shift"].map(|name| Weight::named(name, [8]));
    g.layer_norm(x, Norm { weight, bias, eps: 1e-6 }).expect("builds")
}

#[test]
fn values_that_all_readers_round_are_stored_so() {
    use DType::{BF16, F32};
    let attention = |mask, heads| Op::Attention {
        heads,
        scale: 1.0,
        mask,
        relative: None,
        bias: false,
        follows_weights: true,
    };
    let types = stored(|g, x| {
        let y = normed(g, x);
        let [q, k, v] = ["q", "k", "v"].map(|name| matmul(g, y, name));
        let y = g.attention(attention(AttentionMask::None, 2), q, k, v, None).expect("builds");
        let y = matmul(g, y, "out");
        let y = g.add(y, x).expect("builds");
        g.output("y", y).expect("declares");
    });
    assert_eq!(types, [BF16, BF16, BF16, F32], "norm, joined matmuls, attention, matmul");
}

#[test]
fn a_value_is_f32_if_its_kernel_cannot_store_the_type_of_its_readers() {
    use DType::{BF16, F16, F32};
    let types = |is_projected: bool| {
        stored(|g, x| {
            let scores = g.input("scores", F32, [2, 2, 6, 6]).expect("declares");
            let y = normed(g, x);
            let q = if is_projected { matmul(g, y, "q") } else { y };
            let (mask, relative) = (AttentionMask::None, None);
            let op =
                Op::Attention { heads: 2, scale: 1.0, mask, relative, bias: true, follows_weights: true };
            let y = g.biased_attention(op, [q, q, q, scores], None).expect("builds");
            let y = matmul(g, y, "out");
            g.output("y", y).expect("declares");
        })
    };
    assert_eq!(types(false), [F16, BF16, F32], "norm, attention, matmul");
    assert_eq!(types(true), [BF16, F32, F32, F32], "a matmul stores bf16, and attention reads f16");
}

#[test]
fn a_value_that_some_reader_needs_in_full_is_f32() {
    use DType::{BF16, F32};
    let is_rounded = |also: &dyn Fn(&mut Graph, Value)| {
        let types = stored(|g, x| {
            let y = normed(g, x);
            also(g, y);
            let z = matmul(g, y, "w");
            g.output("z", z).expect("declares");
        });
        types[0] == BF16
    };
    assert!(is_rounded(&|_, _| {}));
    assert!(!is_rounded(&|g, y| g.output("y", y).expect("declares")), "it is read back");
    assert!(!is_rounded(&|g, y| {
        let y = g.activate(y, Activation::Silu).expect("builds");
        g.output("active", y).expect("declares");
    }));
    assert!(!is_rounded(&|g, y| {
        let z = matmul(g, y, "v");
        let z = g.add(z, y).expect("builds");
        g.output("sum", z).expect("declares");
    }));
    // A matmul whose rows stay f32 has no 16-bit result either, so what reads it does not round.
    let types = stored(|g, x| {
        let y = matmul(g, x, "first");
        let z = matmul(g, y, "second");
        g.output("z", z).expect("declares");
    });
    assert_eq!(types, [F32, F32]);
}

#[test]
fn rounded_values_take_half_the_memory_and_parts_stay_apart() {
    let mut g = Graph::new("round");
    let x = g.input("x", DType::F32, [2, 64, 8]).expect("declares");
    let y = normed(&mut g, x);
    let [q, k] = ["q", "k"].map(|name| matmul(&mut g, y, name));
    let [a, b] = [(q, "a"), (k, "b")].map(|(v, name)| matmul(&mut g, v, name));
    let sum = g.add(a, b).expect("builds");
    g.output("sum", sum).expect("declares");
    let rounded = Plan::compile(g.clone(), &Rounds).expect("everything runs");
    let full = compile(g, Rounds.fusions());
    let Place::Arena(first) = rounded.place(q) else { panic!("a temporary") };
    assert_eq!(rounded.place(k), Place::Arena(first + 2 * 64 * 8 * 2));
    assert!(rounded.arena_bytes() < full.arena_bytes());
}
