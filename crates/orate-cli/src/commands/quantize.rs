//! `orate quantize`: a model in one GGUF file.

use crate::failure::UsageError;
use crate::own_options::families;
use crate::{input, model_path, outputs, print};
use orate_tools::quantize::{self, DType, Report};
use serde_json::json;
use std::path::PathBuf;

/// Put a model into one GGUF file, with weights in blocks
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate quantize --model Qwen3-TTS-12Hz-0.6B-Base/ --weights q8_0 -o qwen3-base-q8_0.gguf
  orate say \"Hello.\" --model qwen3-base-q8_0.gguf
  orate quantize --model chatterbox-turbo --weights q4_k --calibrate sentences.txt -o turbo-q4_k.gguf

The file holds everything: configuration, tokenizer, codec and voices. It appears when it is complete.")]
pub struct Args {
    /// Model folder or pulled model
    #[arg(long, short, value_name = "MODEL")]
    pub model: PathBuf,

    /// Weight format of matrices: q8_0, q6_k, q5_k, q4_k, q4_0, f16, bf16 or f32
    #[arg(long, value_name = "FORMAT", default_value = "q8_0", value_parser = quantize::format)]
    pub weights: DType,

    /// Text to speak first, to round more exactly what counts most (q4_0, K types)
    ///
    /// The model speaks it in f32, which takes memory and time: give it some sentences of the kind that it
    /// will speak. Weights that meet large inputs there are rounded with smaller errors.
    #[arg(long, value_name = "FILE")]
    pub calibrate: Option<PathBuf>,

    /// File to write
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Writes the file and prints what is in it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.calibrate.is_some() && !quantize::can_calibrate(args.weights) {
        let format = args.weights.name().to_ascii_lowercase();
        let problem =
            format!("--calibrate changes q4_0, q4_k, q5_k and q6_k only, not {format}; leave it out");
        return Err(UsageError(problem).into());
    }
    // What reads the file goes by its content, but people and other programs by its name.
    if args.output.extension().is_some_and(|ending| !ending.eq_ignore_ascii_case("gguf")) {
        let name = args.output.with_extension("gguf");
        let problem = format!("the file is GGUF; name it {}", print::visible(&name.display().to_string()));
        return Err(UsageError(problem).into());
    }
    let model = model_path(&args.model)?;
    let text = args.calibrate.clone().map(|path| ("the text", path));
    let inputs: Vec<_> = [("the model", model.clone())].into_iter().chain(text).collect();
    outputs::check("-o", &args.output, &inputs)?;
    let text = args.calibrate.as_deref().map(|path| input::read(&[], Some(path))).transpose()?;
    if let (Some(path), Some("")) = (&args.calibrate, text.as_deref().map(str::trim)) {
        let problem = format!("--calibrate: {} has no text", print::visible(&path.display().to_string()));
        return Err(UsageError(problem).into());
    }
    let Report { bytes, types, files, calibrated } =
        quantize::quantize(families(), &model, args.weights, text.as_deref(), &args.output)?;
    if args.json {
        let types: serde_json::Map<_, _> = types
            .into_iter()
            .map(|(name, (tensors, bytes))| (name.to_owned(), json!({"tensors": tensors, "bytes": bytes})))
            .collect();
        return print::json(&json!({
            "path": args.output.display().to_string(), "bytes": bytes, "types": types, "files": files,
            "calibrated_tensors": calibrated,
        }));
    }
    let types: Vec<String> = types
        .into_iter()
        .map(|(name, (n, bytes))| {
            format!("{name}: {}, {:.1} MB", print::count(n, "tensor"), bytes as f64 / 1e6)
        })
        .collect();
    let mut lines = vec![
        format!("{}  {:.1} MB", args.output.display(), bytes as f64 / 1e6),
        format!("  {}", types.join("\n  ")),
        format!("  files: {}", files.join(", ")),
    ];
    if args.calibrate.is_some() {
        lines.push(format!("  calibrated: {}", print::count(calibrated, "tensor")));
    }
    print::out(&(lines.join("\n") + "\n"))
}
