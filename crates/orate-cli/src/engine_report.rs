//! Engine facts in reports: model, device, and how the precision was chosen.

use crate::print;
use orate::{Engine, MOST_PROBED_ERROR, Precision, Probes};
use serde_json::{Value, json};

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
