//! `orate inspect`: contents of a model, weight file or voice file.

use crate::args::{PrecisionArgs, Wish};
use crate::engine_report::probes_json;
use crate::failure::UsageError;
use crate::model_path;
use crate::own_options::families;
use crate::print;
use orate::{CacheChoice, DeviceChoice, Precision};
use orate_tools::inspect::{self, Inspection, Look, Sum};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Show the contents of a model, weight file or voice file
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate inspect                                    the built-in voice
  orate inspect supertonic-2/
  orate inspect Qwen3-TTS-12Hz-0.6B-Base/ --device cuda --weights bf16
  orate inspect supertonic-2/onnx/vocoder.onnx --tensors
  orate inspect ada.gguf --json

A model is opened as by `say`, so a model that cannot speak is an error. The contents of a single file are \
shown unchanged.")]
pub struct Args {
    /// Model folder, packed voice, file or pulled model [default: the built-in voice]
    ///
    /// Files are .safetensors, .gguf, .onnx and voice files (.json). `orate models` lists names of
    /// models; `orate pull` downloads one.
    pub path: Option<PathBuf>,

    /// Codec or S3Gen of a model of two GGUF files [default: the one beside it]
    #[arg(long, value_name = "FILE")]
    pub codec: Option<PathBuf>,

    /// List all tensors
    #[arg(long)]
    pub tensors: bool,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Device to predict memory for [default: cpu]
    ///
    /// With --weights auto, the default is the device that `say` would choose.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,

    #[command(flatten)]
    pub precision: PrecisionArgs,
}

/// Reads the files and prints the result.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (precision, kv) = (args.precision.choice(), args.precision.kv);
    let codec = args.codec.clone();
    let look = Look { codec, families: families(), device: args.device, precision, kv };
    let path = args.path.as_deref().map(model_path).transpose()?;
    // A file that stands for a pulled model is opened as the model.
    let named = args.path.as_deref().is_some_and(Path::is_file);
    let found = match &path {
        Some(path) if named => inspect::file(path, &look)?,
        path => inspect::model(path.as_deref(), &look)?,
    };
    let given = [
        ("--device", args.device.is_some()),
        ("--codec", args.codec.is_some()),
        ("--precision", !matches!(args.precision.precision, Wish::Stored)),
        ("--kv", !matches!(kv, CacheChoice::Auto)),
    ];
    if let Some((flag, _)) = given.into_iter().find(|(_, is)| *is && !found.is_model) {
        let problem = format!("{flag} is for models, and {} is a single file; leave it out", found.path);
        return Err(UsageError(problem).into());
    }
    if args.json {
        print::json(&as_json(&found, args.tensors))
    } else {
        print::out(&as_text(&found, args.tensors))
    }
}

fn as_json(found: &Inspection, with_tensors: bool) -> Value {
    let mut object = Map::new();
    object.insert("path".to_owned(), json!(found.path));
    object.insert("kind".to_owned(), json!(found.kind));
    for (name, value) in &found.facts {
        object.insert(name.replace(' ', "_"), value.clone());
    }
    if found.probes.is_some() {
        object.insert("precision_probes".to_owned(), probes_json(found.probes.as_ref()));
    }
    let sum = |s: Sum| json!({ "tensors": s.tensors, "parameters": s.parameters, "bytes": s.bytes });
    let sums = |all: Vec<(&str, Sum)>| -> Value {
        all.into_iter().map(|(key, one)| (key.to_owned(), sum(one))).collect()
    };
    object.insert("networks".to_owned(), sums(found.networks()));
    object.insert("dtypes".to_owned(), sums(found.dtypes()));
    object.insert("total".to_owned(), sum(found.total()));
    if with_tensors {
        let list = found.tensors.iter().map(|t| {
            json!({
                "name": t.name, "dtype": t.dtype, "shape": t.shape, "bytes": t.bytes,
                "matmul": t.matmul.map(Precision::name),
            })
        });
        object.insert("tensors".to_owned(), list.collect());
    }
    Value::Object(object)
}

fn as_text(found: &Inspection, with_tensors: bool) -> String {
    let mut rows = vec![vec!["  kind".to_owned(), found.kind.clone()]];
    rows.extend(found.facts.iter().map(|(name, value)| match value.as_u64() {
        Some(n) if name.contains("bytes") => {
            vec![format!("  {}", name.replace("bytes", "memory")), print::bytes(n)]
        }
        _ => vec![format!("  {name}"), for_people(value)],
    }));
    rows.extend(found.probes.iter().map(|p| vec!["  precision probes".to_owned(), p.to_string()]));
    let mut parts = vec![format!("{}\n{}", print::visible(&found.path), print::table(&rows, &[1]))];
    if !found.tensors.is_empty() {
        let sums = |name: &str, sums: Vec<(&str, Sum)>| {
            let head = [name, "tensors", "parameters", "size"].map(str::to_owned).to_vec();
            let rows: Vec<_> = [head].into_iter().chain(sums.into_iter().map(sum_row)).collect();
            print::table(&rows, &[])
        };
        let networks = found.networks();
        if !networks.is_empty() {
            parts.push(sums("network", networks));
        }
        parts.push(sums("dtype", [found.dtypes(), vec![("total", found.total())]].concat()));
    }
    let groups = found.groups();
    if with_tensors {
        let head = ["tensor", "dtype", "shape", "bytes", "matmul"].map(str::to_owned).to_vec();
        let row = |t: &inspect::Tensor| {
            let bytes = t.bytes.map_or_else(|| "?".to_owned(), |b| b.to_string());
            let matmul = t.matmul.map_or("", Precision::name).to_owned();
            vec![t.name.clone(), t.dtype.to_owned(), format!("{:?}", t.shape), bytes, matmul]
        };
        let rows: Vec<_> = [head].into_iter().chain(found.tensors.iter().map(row)).collect();
        parts.push(print::table(&rows, &[1, 2, 4]));
    } else if !groups.is_empty() {
        let head = ["matmul by", "tensors", "shape", "dtype", "kept as"].map(str::to_owned).to_vec();
        let row = |g: inspect::Group| {
            let (dtype, kept) = (g.dtype.to_owned(), g.matmul.name().to_owned());
            vec![g.name, g.count.to_string(), format!("{:?}", g.shape), dtype, kept]
        };
        let rows: Vec<_> = [head].into_iter().chain(groups.into_iter().map(row)).collect();
        parts.push(print::table(&rows, &[2, 3, 4]));
    }
    parts.join("\n")
}

fn sum_row((name, sum): (&str, Sum)) -> Vec<String> {
    let size = print::bytes(sum.bytes as u64);
    vec![name.to_owned(), sum.tensors.to_string(), sum.parameters.to_string(), size]
}

fn for_people(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Array(all) => all.iter().map(for_people).collect::<Vec<_>>().join(", "),
        Value::Object(all) => {
            all.iter().map(|(k, v)| format!("{k} {}", for_people(v))).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}
