//! The program with models that never align text and speech, so times of words are estimates even for the
//! built-in voice. `training/word_times.py` compares them with references.
//!
//! ```sh
//! cargo build --release -p orate-cli --example estimated_times
//! python training/word_times.py teacher target/release/examples/estimated_times training/test.txt 61 160 \
//!   --model voices/orate-default/orate-default.gguf
//! ```

use orate::{
    Chunks, Description, Facts, Family, Model, ModelError, ModelFiles, Opening, Options, Runs, Size,
    supertonic,
};
use orate_graph::{Device, Graph};
use orate_models::PlaceOptions;
use orate_weights::WeightSource;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

static UNALIGNED: &Family = &Family {
    name: "Unaligned",
    tag: "unaligned",
    options: &[],
    expects: "a packed voice",
    detect: |path| (supertonic::FAMILY.detect)(path),
    open,
    networks: || (supertonic::FAMILY.networks)(),
    network_of: |name| (supertonic::FAMILY.network_of)(name),
    describe_voice: |voice| (supertonic::FAMILY.describe_voice)(voice),
    describe_file: |path| (supertonic::FAMILY.describe_file)(path),
};

fn open(path: &Path, opening: Opening<'_>) -> Result<Box<dyn ModelFiles>, ModelError> {
    Ok(Box::new(Files((supertonic::FAMILY.open)(path, opening)?)))
}

struct Files(Box<dyn ModelFiles>);

impl ModelFiles for Files {
    fn family(&self) -> &'static Family {
        UNALIGNED
    }

    fn facts(&self) -> Facts {
        self.0.facts()
    }

    fn weights(&self) -> &Arc<dyn WeightSource> {
        self.0.weights()
    }

    fn graphs(&self, options: &PlaceOptions) -> Result<Vec<Graph>, ModelError> {
        self.0.graphs(options)
    }

    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn place(
        self: Box<Self>,
        device: Arc<dyn Device>,
        options: &PlaceOptions,
    ) -> Result<Arc<dyn Model>, ModelError> {
        Ok(Arc::new(Unaligned(self.0.place(device, options)?)))
    }
}

struct Unaligned(Arc<dyn Model>);

impl Model for Unaligned {
    fn facts(&self) -> &Facts {
        self.0.facts()
    }

    fn files(&self) -> &dyn ModelFiles {
        self.0.files()
    }

    fn speak(self: Arc<Self>, text: &str, options: &Options) -> Result<Box<dyn Chunks>, ModelError> {
        // The model reads no times off its attention, and the engine estimates them.
        self.0.clone().speak(text, &Options { word_times: false, ..options.clone() })
    }

    fn plans(&self, size: Size, options: &Options) -> Result<Runs, ModelError> {
        self.0.plans(size, options)
    }

    fn plans_made(&self) -> usize {
        self.0.plans_made()
    }

    fn weight_bytes(&self) -> u64 {
        self.0.weight_bytes()
    }
}

fn main() -> ExitCode {
    static ALL: [&Family; 1] = [UNALIGNED];
    orate_cli::main(&ALL)
}
