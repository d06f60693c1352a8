//! Every op of every network at the sizes that ship, on every instruction set, against the reference
//! interpreter.
//!
//! The weights of Supertonic 2 and 3 are not here, and not needed: shapes are, in `data/*.shapes.txt`, and
//! the weights of the cases are random.

use crate::common::{self, golden, oracle};
use orate_cpu::{CpuDevice, Isa};
use orate_graph::{Graph, Op};
use orate_models::supertonic::{Config, Files, Padding, Sizes, graphs};
use orate_testing::{Case, OnDevice, ShapesOnly, check_all, harvest};
use orate_weights::WeightSource;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn table(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format!("{version}.shapes.txt"))
}

fn official(version: &str) -> (Config, ShapesOnly) {
    let json = std::fs::read(oracle("assets").join(version).join("tts.json")).expect("committed");
    (
        Config::from_json(&json).expect("as released"),
        ShapesOnly::parse(&std::fs::read_to_string(table(version)).expect("committed")),
    )
}

fn sizes(tokens: usize, frames: usize) -> Sizes {
    Sizes { batch: 1, tokens, frames, steps: 3, padding: Padding::None }
}

/// Two rows of unequal length.
fn padded(tokens: usize, frames: usize, padding: Padding) -> Sizes {
    Sizes { batch: 2, padding, ..sizes(tokens, frames) }
}

fn cases(graphs: &[Graph], wanted: impl Fn(&Op) -> bool) -> Vec<Case> {
    assert_eq!(graphs.len(), 5, "all networks");
    let all = graphs.iter().flat_map(harvest);
    all.filter(|c| c.graph.nodes().iter().all(|n| wanted(&n.op))).collect()
}

/// At least `least` cases, each on every instruction set. `threads` are those of the device.
fn check(what: &str, cases: &[Case], least: usize, threads: usize) {
    assert!(cases.len() >= least, "{what}: only {} cases were harvested", cases.len());
    for isa in Isa::available() {
        let device = CpuDevice::new(threads, isa).expect("threads start");
        let report = check_all(&OnDevice(&device), cases);
        println!("{what}, {isa}: {report}");
        report.assert();
    }
}

/// Everything but products: cheap at full length.
fn is_light(op: &Op) -> bool {
    !matches!(op, Op::MatMul { .. } | Op::Conv1d { .. } | Op::Attention { .. })
}

#[test]
fn committed_models() {
    for (model, least) in [("tiny", 80), ("tiny1", 80), ("tiny3", 100)] {
        let files = Files::open(&golden(model)).expect("committed");
        for s in [sizes(52, 9), sizes(1, 1), padded(13, 7, Padding::Cleared), padded(13, 7, Padding::Ignored)]
        {
            let graphs = graphs(&files.config, &*files.weights, s).expect("a whole model");
            check(&format!("{model} {s:?}"), &cases(&graphs, |_| true), least, 2);
        }
    }
}

#[test]
fn built_in_voice() {
    let engine = common::built_in(1);
    let model = engine.model_as::<orate::supertonic::Supertonic>().expect("Supertonic");
    let files = model.files();
    let all = |s| graphs(&files.config, &*files.weights, s).expect("a whole model");
    check("built-in", &cases(&all(sizes(21, 5)), |_| true), 75, 3);
    check("built-in, long", &cases(&all(sizes(300, 290)), is_light), 35, 2);
}

#[test]
fn supertonic_2_at_its_real_widths() {
    let (config, weights) = official("v2");
    let all = |s| graphs(&config, &weights, s).expect("a whole model");
    check("v2", &cases(&all(sizes(21, 5)), |_| true), 80, 3);
    check("v2, long", &cases(&all(sizes(300, 72)), is_light), 35, 2);
}

#[test]
fn supertonic_3_at_its_real_widths() {
    let (config, weights) = official("v3");
    let all = |s| graphs(&config, &weights, s).expect("a whole model");
    check("v3", &cases(&all(sizes(21, 5)), |_| true), 100, 3);
    check("v3, long", &cases(&all(sizes(300, 72)), is_light), 50, 2);
}

/// The cases are not a few left-overs: these ops are in the networks, and the tables are those of whole
/// models.
#[test]
fn all_ops_of_the_networks_are_harvested() {
    let name = |op: &Op| format!("{op:?}").split([' ', '(', '{']).next().expect("a name").to_owned();
    for (version, parameters) in [("v2", 65.5), ("v3", 99.2)] {
        let (config, weights) = official(version);
        let graphs = graphs(&config, &weights, sizes(21, 5)).expect("a whole model");
        let ops = cases(&graphs, |_| true);
        let ops = ops.iter().flat_map(|c| c.graph.nodes()).map(|n| name(&n.op));
        let mut wanted = BTreeSet::from([
            "Add",
            "AddRow",
            "Attention",
            "Combine",
            "Concat",
            "Constant",
            "Conv1d",
            "DepthwiseConv1d",
            "Embedding",
            "LayerNorm",
            "MatMul",
            "Permute",
            "RandomNormal",
            "Reshape",
            "Rotary",
            "RotaryTable",
            "SelectRow",
            "Slice",
            "TimeEmbedding",
        ]);
        if version == "v3" {
            wanted.insert("AddBias");
        }
        assert_eq!(
            ops.collect::<BTreeSet<_>>(),
            wanted.into_iter().map(str::to_owned).collect(),
            "{version}"
        );
        let millions = weights.parameters() as f64 / 1e6;
        assert!((millions - parameters).abs() < 1.0, "{version} has {millions} million parameters");
    }
}

/// Writes the tables from the presets `v2-full` and `v3-full` of `oracle/supertonic/make_model.py`:
///
/// ```sh
/// ORATE_FULL_MODELS=DIR cargo test -p orate --test main write_shape_tables -- --ignored
/// ```
#[test]
#[ignore = "writes the tables that the other tests read, from models that are not committed"]
fn write_shape_tables() {
    let folder = std::env::var_os("ORATE_FULL_MODELS").expect("the folder with v2-full and v3-full");
    for version in ["v2", "v3"] {
        let path = Path::new(&folder).join(format!("{version}-full/onnx"));
        let weights = orate_models::supertonic::onnx::open(&path).expect("a model of the oracle");
        let mut names = weights.names();
        names.sort_unstable();
        let mut text =
            format!("# Weights of Supertonic {version} under canonical names; see harvested_ops.rs.\n");
        for name in names {
            let shape = weights.info(name).expect("listed").shape;
            let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
            text += format!("{name} {}", dims.join("x")).trim_end();
            text.push('\n');
        }
        std::fs::write(table(version), text).expect("writable");
    }
}
