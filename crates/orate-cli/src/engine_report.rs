//! Engine facts in reports: model, device, and how the precision was chosen.

use crate::print;
use orate::{Engine, MOST_PROBED_ERROR, Precision, PrecisionPolicy, Probes};
use serde_json::{Value, json};
use std::path::Path;

/// Model, device with enabled features, precision and how it was chosen: part of every JSON report.
pub fn engine_json(engine: &Engine) -> Value {
    json!({
        "model": engine.model_name(),
        "device": engine.device(),
        "device_features": engine.device_info().features,
        "precision": engine.precision().to_string(),
        "precision_probes": probes_json(engine.probes()),
        "warnings": engine.warnings(),
    })
}

/// Prints the engine's warnings. Call it after the work, which may add some.
pub fn note_warnings(engine: &Engine) {
    engine.warnings().iter().for_each(|warning| print::note(&format!("warning: {warning}")));
}

/// Prints which devices were skipped and why.
pub fn note_fallbacks(engine: &Engine) {
    let used = engine.device();
    engine.fallbacks().iter().for_each(|why| print::note(&format!("{why}; {used} is used instead")));
}

/// Says that a file of `orate quantize` starts sooner, if weights of a large folder are packed in K types.
pub fn note_packing(engine: &Engine) {
    let files = engine.model().files();
    let is_folder = Path::new(&files.facts().origin).is_dir() && files.packing().is_ok();
    if let Some(format) = slow_format(engine.precision()).filter(|_| is_folder) {
        let weights = files.weights();
        let bytes = |name: &str| weights.info(name).and_then(|i| i.dtype.bytes_for(i.len())).unwrap_or(0);
        if weights.names().into_iter().map(bytes).sum::<usize>() > LARGE {
            print::note(&format!(
                "weights become {format} at every start; a file that `orate quantize --model {} --weights \
                 {format} -o FILE.gguf` writes starts sooner",
                files.facts().origin
            ));
        }
    }
}

/// Bytes of weights from which packing in K types takes a second or more.
const LARGE: usize = 512 << 20;

/// The format of a policy that takes long to pack.
fn slow_format(policy: &PrecisionPolicy) -> Option<&'static str> {
    let slow = [Precision::Q4K, Precision::Q5K, Precision::Q6K];
    slow.into_iter().find(|format| policy.formats().contains(format)).map(Precision::name)
}

/// Appends the entries of `other` to a report.
pub fn with(mut report: Value, other: Value) -> Value {
    if let (Value::Object(all), Value::Object(more)) = (&mut report, other) {
        all.extend(more);
    }
    report
}

/// Measured formats as JSON; null if the precision was given.
pub fn probes_json(probes: Option<&Probes>) -> Value {
    let Some(probes) = probes else { return Value::Null };
    let measured = probes.measured.iter();
    let measured =
        measured.map(|p| json!({ "precision": p.precision.name(), "us": p.microseconds, "error": p.error }));
    let refused = probes.refused.iter().map(|(p, why)| json!({ "precision": p.name(), "why": why }));
    json!({
        "chosen": probes.chosen.name(),
        "matmul": probes.product,
        "most_error": MOST_PROBED_ERROR,
        "measured": measured.collect::<Vec<_>>(),
        "refused": refused.collect::<Vec<_>>(),
    })
}

/// Device and enabled features, in two lines.
pub fn device_text(engine: &Engine) -> String {
    format!("{}\n{}", engine.device(), engine.device_info().features.join(", "))
}

/// Precision of the engine, with the measurements that chose it.
pub fn precision_text(engine: &Engine) -> String {
    match engine.probes() {
        None => engine.precision().to_string(),
        Some(probes) if probes.chosen == Precision::F32 => probes.to_string(),
        Some(probes) => format!("{} ({probes})", engine.precision()),
    }
}
