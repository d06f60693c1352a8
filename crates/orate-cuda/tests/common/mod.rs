//! The networks of Supertonic 2 and 3 at their real widths, with random weights: the repository has their
//! shapes, not their weights.
#![allow(dead_code, reason = "each test program uses a part")]

use orate_graph::Graph;
use orate_models::supertonic::{Config, Files, Sizes, graphs};
use orate_testing::ShapesOnly;

/// Configuration and graphs of version `v2` or `v3`, or of the model at a path: duration predictor, text
/// encoder, prepare, step, vocoder.
pub fn official(version: &str, sizes: Sizes) -> (Config, Vec<Graph>) {
    let (json, shapes) = match version {
        "v2" => (
            include_bytes!("../../../../oracle/supertonic/assets/v2/tts.json").as_slice(),
            include_str!("../../../orate/tests/data/v2.shapes.txt"),
        ),
        "v3" => (
            include_bytes!("../../../../oracle/supertonic/assets/v3/tts.json").as_slice(),
            include_str!("../../../orate/tests/data/v3.shapes.txt"),
        ),
        path => {
            let files = Files::open(path.as_ref()).unwrap_or_else(|e| panic!("neither v2 nor v3: {e}"));
            let graphs = graphs(&files.config, &*files.weights, sizes).expect("a whole model");
            return (files.config, graphs);
        }
    };
    let config = Config::from_json(json).expect("as released");
    let graphs = graphs(&config, &ShapesOnly::parse(shapes), sizes).expect("a whole model");
    (config, graphs)
}
