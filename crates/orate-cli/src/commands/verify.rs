//! `orate verify`: the model beside recorded reference values.

use crate::args::EngineArgs;
use crate::failure::{Rejected, UsageError};
use crate::print;
use orate::verify::{self, Report, VerifyOptions};
use serde_json::json;
use std::path::PathBuf;

/// What to compare.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  orate verify --model oracle/supertonic/golden/tiny --goldens oracle/supertonic/golden/tiny

Errors are the largest difference, as a part of the tensor's largest magnitude. The exit status is 1 if \
one is past the tolerance.")]
pub struct Args {
    /// Folder with the reference values: golden.json and golden.safetensors, or one .safetensors file per sentence
    #[arg(long, value_name = "DIR")]
    goldens: PathBuf,

    /// Largest error that passes
    #[arg(long, value_name = "X", default_value_t = verify::F32_TOLERANCE, allow_negative_numbers = true)]
    tolerance: f64,

    /// Only this case; may be repeated
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,

    /// Only inputs and outputs of stages, not what lies between
    #[arg(long)]
    no_taps: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Compares and prints.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if !(args.tolerance.is_finite() && args.tolerance >= 0.0) {
        return Err(UsageError(format!("--tolerance is {}; it must be 0 or more", args.tolerance)).into());
    }
    let engine = args.engine.open()?;
    let options = VerifyOptions { cases: args.case.clone(), tolerance: args.tolerance, taps: !args.no_taps };
    let report = verify::run(&engine, &args.goldens, &options)?;
    if args.json {
        print::json(&as_json(&report, &engine, args.tolerance))?;
    } else {
        print::out(&as_text(&report, args.tolerance))?;
    }
    if report.passed() { Ok(()) } else { Err(Rejected.into()) }
}

fn as_text(report: &Report, tolerance: f64) -> String {
    let mut rows = vec![["case", "stage", "tensor", "error", ""].map(str::to_owned).to_vec()];
    rows.extend(report.rows.iter().map(|r| {
        let verdict = if r.passed { "" } else { "TOO LARGE" };
        let error = if r.error == 0.0 { "0".to_owned() } else { format!("{:.1e}", r.error) };
        vec![r.case.clone(), r.stage.to_owned(), r.tensor.clone(), error, verdict.to_owned()]
    }));
    let mut text = print::table(&rows, &[1, 2, 4]);
    for (tensor, why) in &report.skipped {
        text.push_str(&format!("not compared: {tensor}: {why}\n"));
    }
    let failed = report.rows.iter().filter(|r| !r.passed).count();
    text.push_str(&format!("{} compared, {} not compared", report.rows.len(), report.skipped.len()));
    if let Some(worst) = report.worst() {
        text.push_str(&format!(", worst {:.1e} ({}/{})", worst.error, worst.case, worst.tensor));
    }
    match failed {
        0 => text.push_str(&format!("; all within {tolerance:e}\n")),
        n => text.push_str(&format!("; {n} past {tolerance:e}\n")),
    }
    text
}

fn as_json(report: &Report, engine: &orate::Engine, tolerance: f64) -> serde_json::Value {
    let rows: Vec<_> = report
        .rows
        .iter()
        .map(|r| {
            // JSON has no infinity: null where shapes differ or a number is not finite.
            json!({ "case": r.case, "stage": r.stage, "tensor": r.tensor, "error": r.error, "passed": r.passed })
        })
        .collect();
    let skipped: Vec<_> =
        report.skipped.iter().map(|(tensor, why)| json!({ "tensor": tensor, "why": why })).collect();
    json!({
        "passed": report.passed(),
        "tolerance": tolerance,
        "worst": report.worst().map(|r| r.error),
        "model": engine.model_name(),
        "device": engine.device(),
        "rows": rows,
        "skipped": skipped,
    })
}
