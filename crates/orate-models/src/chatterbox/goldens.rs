//! Compares Chatterbox with what the official package computed.
//!
//! The folder is `oracle/chatterbox/golden`. A model is compared with the cases of its variant:
//!
//! | case | what |
//! | --- | --- |
//! | `text` | ids of texts |
//! | `t3_VARIANT` | conditioning, prompt, layers, logits, codes |
//! | `analyzer` | what the alignment guard makes of made-up attention |
//! | `t3_mtl_analyzer` | codes under the alignment guard, and what it makes of the attention before each |
//! | `s3gen_standard`, `s3gen_meanflow`, `…_odd` | flow encoder, estimator, vocoder, samples |
//! | `reference_VARIANT` | the encoders, stage by stage |
//! | `e2e_VARIANT`, `e2e_vc` | codes and samples from a text, or a recording, and a reference |
//!
//! Codes are drawn on the host with the random numbers of the goldens, from logits of the device. The golden
//! codes are fed back in. In f32 all codes must be equal; in every format logits have limits (`forced`).

mod draw;
mod e2e;
mod forced;
mod guard;
mod reference;
mod s3gen;
mod stored;
mod t3;

use super::config::Variant;
use super::pipeline::Chatterbox;
use crate::ModelError;
use crate::hooks::{Comparison, Goldens, Limit};
use orate_graph::{CacheFormat, DeviceInfo, Precision, PrecisionPolicy};
use std::path::Path;
use std::sync::Arc;
use stored::Stored;

/// Name of weights of the estimator.
const ESTIMATOR: &str = "flow.decoder.estimator.";

/// The model beside its goldens.
pub(super) struct Comparer(pub Arc<Chatterbox>);

impl Goldens for Comparer {
    fn limit(&self, precision: &PrecisionPolicy, device: &DeviceInfo) -> Limit {
        let kv = self.0.facts.kv.unwrap_or_default();
        // What is compared with a limit that depends on the format is S3Gen.
        match precision.of_name(ESTIMATOR) {
            // Samples are made from golden codes, whatever the cache of T3 is.
            Precision::F32 if kv != CacheFormat::F32 => Limit::WaveformSnr(80.0),
            // Guidance multiplies rounding by 1.7 + 0.7 in each of ten steps; measured: 38.5 dB.
            Precision::Bf16 => Limit::WaveformSnr(35.0),
            // Measured on the CPU: 38.4 and 12.8 dB. Silence has 0.
            Precision::Q8_0 => Limit::WaveformSnr(32.0),
            // 37.4 dB: no row of the goldens' estimators is a multiple of 256, so these are q8_0.
            Precision::Q6K | Precision::Q5K | Precision::Q4K => Limit::WaveformSnr(32.0),
            Precision::Q4_0 => Limit::WaveformSnr(9.0),
            other => Limit::usual(other, device),
        }
    }

    fn compare(&self, folder: &Path, comparison: &mut dyn Comparison) -> Result<(), ModelError> {
        let stored = Stored::open(folder)?;
        let mut run = Run { model: &self.0, stored: &stored, out: comparison };
        for case in stored.cases() {
            if run.out.wants(&case) {
                run.case(&case)?;
            }
        }
        Ok(())
    }
}

struct Run<'a> {
    model: &'a Arc<Chatterbox>,
    stored: &'a Stored,
    out: &'a mut dyn Comparison,
}

/// Name of a variant in goldens.
fn code(variant: Variant) -> &'static str {
    match variant {
        Variant::English => "en",
        Variant::Multilingual => "mtl",
        Variant::Turbo => "turbo",
        Variant::Nano => "nano",
        Variant::Conversion => "vc",
    }
}

impl Run<'_> {
    fn case(&mut self, case: &str) -> Result<(), ModelError> {
        let variant = self.model.files().variant;
        let is_meanflow = self.model.files().s3gen.estimator.is_meanflow;
        let (kind, of) = case.split_once('_').unwrap_or((case, ""));
        match kind {
            "t3" if of.split('_').next() == Some(code(variant)) => self.t3(case),
            "analyzer" if variant == Variant::Multilingual => self.analyzer(case),
            "s3gen" if of.starts_with("meanflow") == is_meanflow => self.s3gen(case),
            "reference" if of == code(variant) => self.reference(case),
            "e2e" if of == "vc" && !is_meanflow => self.conversion(case),
            "e2e" if of == code(variant) && self.model.talking().is_ok() => self.utterance(case),
            "t3" | "analyzer" | "s3gen" | "reference" | "e2e" => {
                self.out.skip(case, "it was made with another model");
                Ok(())
            }
            _ => {
                self.out.skip(case, "a case that this program does not know");
                Ok(())
            }
        }
    }
}
