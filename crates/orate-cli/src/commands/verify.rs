//! `orate verify`: compares a model with goldens.

use crate::args::{EngineArgs, within};
use crate::engine_report::{engine_json, note_warnings, with};
use crate::failure::Rejected;
use crate::print;
use orate_tools::verify::{self, Limit, Report, VerifyOptions};
use serde_json::json;
use std::path::PathBuf;

/// Compare a model with recorded reference values
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate verify --model oracle/supertonic/golden/tiny --goldens oracle/supertonic/golden/tiny
  orate verify --model oracle/qwen3_tts/golden/checkpoints/tiny-base --goldens oracle/qwen3_tts/golden
  orate verify --model checkpoints/tiny-base --goldens cases --weights q8_0

An error is the largest difference, relative to the tensor's largest magnitude. In f32 each tensor must \
stay below an error; in lower precisions it must reach a signal-to-noise ratio. The limit depends on model, \
precision and device, and is printed with the result. The exit status is 1 if a tensor exceeds it.")]
pub struct Args {
    /// Folder with the reference values that the scripts in oracle/ write
    #[arg(long, value_name = "DIR")]
    goldens: PathBuf,

    /// Largest error that passes, instead of the model's limit
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = within(0.0..=1e9_f64))]
    tolerance: Option<f64>,

    /// Run only this case; may be repeated
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,

    /// Compare only inputs and outputs of stages, not the tensors between them
    #[arg(long)]
    no_taps: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Compares and prints the result.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let engine = args.engine.open_to_compare()?;
    let options = VerifyOptions {
        cases: args.case.clone(),
        limit: args.tolerance.map(Limit::Error),
        taps: !args.no_taps,
    };
    let report = verify::run(&engine, &args.goldens, &options)?;
    if args.json {
        print::json(&as_json(&report, &engine))?;
    } else {
        print::out(&as_text(&report))?;
    }
    note_warnings(&engine);
    if report.passed() { Ok(()) } else { Err(Rejected.into()) }
}

fn as_text(report: &Report) -> String {
    let mut rows = vec![["case", "stage", "tensor", "error", "SNR", ""].map(str::to_owned).to_vec()];
    rows.extend(report.rows.iter().map(|r| {
        let verdict = if r.passed { "" } else { "FAILED" };
        let error = if r.error == 0.0 { "0".to_owned() } else { format!("{:.1e}", r.error) };
        let snr = r.snr.map_or_else(String::new, |db| format!("{db:.1} dB"));
        vec![r.case.clone(), r.stage.to_owned(), r.tensor.clone(), error, snr, verdict.to_owned()]
    }));
    let mut text = print::table(&rows, &[1, 2, 5]);
    for (tensor, why) in &report.skipped {
        text.push_str(&(print::visible(&print::shorten(&format!("not compared: {tensor}: {why}"))) + "\n"));
    }
    let failed = report.rows.iter().filter(|r| !r.passed).count();
    text.push_str(&format!("{} compared, {} not compared", report.rows.len(), report.skipped.len()));
    if let Some(worst) = report.worst() {
        text.push_str(&format!(", worst {:.1e} ({}/{})", worst.error, worst.case, worst.tensor));
    }
    if let Some((row, snr)) = report.noisiest().and_then(|r| Some((r, r.snr?))) {
        text.push_str(&format!(", noisiest {snr:.1} dB ({}/{})", row.case, row.tensor));
    }
    let limit = match report.has_own_limits() {
        true => format!("their limits (usually {})", report.limit),
        false => report.limit.to_string(),
    };
    match failed {
        0 => text.push_str(&format!("; all within {limit}\n")),
        n => text.push_str(&format!("; {n} past {limit}\n")),
    }
    text
}

fn as_json(report: &Report, engine: &orate::Engine) -> serde_json::Value {
    let rows: Vec<_> = report
        .rows
        .iter()
        .map(|r| {
            // JSON has no infinity: null if shapes differ or a value is not finite.
            json!({
                "case": r.case, "stage": r.stage, "tensor": r.tensor,
                "error": r.error, "snr_db": r.snr, "passed": r.passed,
            })
        })
        .collect();
    let skipped: Vec<_> =
        report.skipped.iter().map(|(tensor, why)| json!({ "tensor": tensor, "why": why })).collect();
    let report = json!({
        "passed": report.passed(),
        "limit": report.limit.to_string(),
        "worst": report.worst().map(|r| r.error),
        "kv": engine.kv().map(orate::CacheFormat::name),
        "rows": rows,
        "skipped": skipped,
    });
    with(report, engine_json(engine))
}
