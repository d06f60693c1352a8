//! Networks of first texts, whose kernels devices prepare.

use orate_graph::{Graph, Pacing, Plan};
use orate_models::{ModelFiles, PlaceOptions, chatterbox, qwen3_tts, supertonic};
use orate_testing::FusingDevice;
use orate_testing::checkpoints::{write_chatterbox, write_qwen3_tts};
use std::collections::BTreeSet;
use std::path::Path;

/// Names without sizes.
fn names(graphs: &[Graph]) -> BTreeSet<&str> {
    graphs.iter().filter_map(|g| g.name().split(" of ").next()).collect()
}

/// Every network that speaks is among them, and has a plan.
fn check(files: &dyn ModelFiles) {
    let options = PlaceOptions::default();
    let small = files.graphs(&options).expect("builds");
    for pacing in [Pacing::QUEUES, Pacing::SHARED_THREADS] {
        let usual = files.usual_graphs(pacing, &options).unwrap_or_else(|e| panic!("{e}"));
        let missing: Vec<_> = names(&small).difference(&names(&usual)).copied().collect();
        assert!(missing.is_empty(), "{missing:?}");
        for g in usual {
            Plan::compile(g, &FusingDevice::all()).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

#[test]
fn supertonic() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/supertonic/golden/tiny3");
    check(&supertonic::Files::open(&golden).expect("committed"));
}

#[test]
fn qwen3_tts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_qwen3_tts("custom_voice", folder.path()).expect("writable");
    check(&qwen3_tts::Files::open(folder.path()).expect("opens"));
}

#[test]
fn chatterbox() {
    for variant in ["en", "mtl", "turbo"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write_chatterbox(folder.path(), variant, "tiny").expect("writable");
        check(&chatterbox::Files::open(folder.path()).expect("opens"));
    }
}
