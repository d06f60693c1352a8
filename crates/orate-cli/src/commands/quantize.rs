//! `orate quantize`: a model in one GGUF file.

use crate::own_options::families;
use crate::{model_path, outputs, print};
use orate_tools::quantize::{self, DType, Report};
use serde_json::json;
use std::path::PathBuf;

/// Put a model into one GGUF file, with weights in blocks
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate quantize --model Qwen3-TTS-12Hz-0.6B-Base/ --weights q8_0 -o qwen3-base-q8_0.gguf
  orate say \"Hello.\" --model qwen3-base-q8_0.gguf

The file holds everything: configuration, tokenizer, codec and voices. It appears when it is complete.")]
pub struct Args {
    /// Model folder or pulled model
    #[arg(long, short, value_name = "MODEL")]
    pub model: PathBuf,

    /// Weight format of matrices: q8_0, q6_k, q5_k, q4_k, q4_0, f16, bf16 or f32
    #[arg(long, value_name = "FORMAT", default_value = "q8_0", value_parser = quantize::format)]
    pub weights: DType,

    /// File to write
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Writes the file and prints what is in it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let model = model_path(&args.model)?;
    outputs::check("-o", &args.output, &[("the model", model.clone())])?;
    let Report { bytes, types, files } = quantize::quantize(families(), &model, args.weights, &args.output)?;
    if args.json {
        let types: serde_json::Map<_, _> = types
            .into_iter()
            .map(|(name, (tensors, bytes))| (name.to_owned(), json!({"tensors": tensors, "bytes": bytes})))
            .collect();
        return print::json(&json!({
            "path": args.output.display().to_string(), "bytes": bytes, "types": types, "files": files,
        }));
    }
    let types: Vec<String> = types
        .into_iter()
        .map(|(name, (n, bytes))| format!("{name}: {n} tensors, {:.1} MB", bytes as f64 / 1e6))
        .collect();
    let lines = [
        format!("{}  {:.1} MB", args.output.display(), bytes as f64 / 1e6),
        format!("  {}", types.join("\n  ")),
        format!("  files: {}", files.join(", ")),
        String::new(),
    ];
    print::out(&lines.join("\n"))
}
