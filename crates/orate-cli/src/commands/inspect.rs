//! `orate inspect`: what a model, a weight file or a voice file holds.

use crate::args::{PrecisionArgs, open_to_look};
use crate::engine_report::probes_json;
use crate::failure::UsageError;
use crate::print;
use anyhow::{Context, bail};
use orate::{
    CacheFormat, DeviceChoice, DeviceKind, Engine, EngineOptions, ModelSource, Precision, PrecisionChoice,
    PrecisionPolicy, Probes, SpeechLength,
};
use orate_graph::{Graph, Op};
use orate_models::qwen3_tts::{self, Network, Variant};
use orate_models::supertonic::{Sizes, Supertonic, TextRules, graphs};
use orate_weights::gguf::{GgufArray, GgufFile, GgufValue};
use orate_weights::{OnnxModel, SafeTensors, WeightSource, voice_pack};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What to look at.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orate inspect                                    the built-in voice
  orate inspect supertonic-2/
  orate inspect Qwen3-TTS-12Hz-0.6B-Base/ --device cuda --weights bf16
  orate inspect supertonic-2/onnx/vocoder.onnx --tensors
  orate inspect ada.gguf --json

A model is opened as for speaking, so that one that cannot speak is reported. A single file is shown as it is.")]
pub struct Args {
    /// Model folder, packed voice, or any .safetensors, .gguf, .onnx or voice file (.json); without it, the
    /// built-in voice
    pub path: Option<PathBuf>,

    /// List all tensors
    #[arg(long)]
    pub tensors: bool,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Device to look at the model with, whose memory is told; without it the CPU, and for --weights auto the one that would speak
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,

    #[command(flatten)]
    pub precision: PrecisionArgs,
}

/// Looks and prints.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let found = match &args.path {
        None => model(None, args)?,
        Some(path) if path.is_file() => file(path, args)?,
        Some(path) => model(Some(path), args)?,
    };
    if args.json {
        print::json(&found.as_json(args.tensors))
    } else {
        print::out(&found.as_text(args.tensors))
    }
}

/// Weights of a product that share a scale in `q8_0` and `q4_0`.
const BLOCK: usize = 32;

/// What was found.
struct Found {
    path: String,
    kind: String,
    /// Name and value, in the order to print.
    facts: Vec<(&'static str, Value)>,
    /// What a precision was chosen by.
    probes: Option<Probes>,
    tensors: Vec<Tensor>,
}

struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    /// `None` where the element type cannot be read.
    bytes: Option<usize>,
    /// Format in which it is kept and multiplied; `None` for what is no factor of a product.
    product: Option<Precision>,
}

/// How many tensors, numbers and bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    tensors: usize,
    parameters: usize,
    bytes: usize,
}

impl Sum {
    fn add(&mut self, tensor: &Tensor) {
        self.tensors += 1;
        self.parameters += tensor.shape.iter().product::<usize>();
        self.bytes += tensor.bytes.unwrap_or(0);
    }

    fn json(self) -> Value {
        json!({ "tensors": self.tensors, "parameters": self.parameters, "bytes": self.bytes })
    }

    fn row(self, name: &str) -> Vec<String> {
        vec![
            name.to_owned(),
            self.tensors.to_string(),
            self.parameters.to_string(),
            print::bytes(self.bytes as u64),
        ]
    }
}

impl Found {
    /// The device that a precision was chosen on, and by what, if it was chosen.
    fn add_probes(&mut self, engine: &Engine) {
        if let Some(probes) = engine.probes() {
            self.facts.push(("device", json!(engine.device())));
            self.probes = Some(probes.clone());
        }
    }

    /// Says of each tensor in which format it is multiplied, and of how many.
    fn add_products(&mut self, products: &BTreeMap<String, Precision>) {
        let mut formats = BTreeMap::<&str, usize>::new();
        products.values().for_each(|p| *formats.entry(p.name()).or_default() += 1);
        self.facts.push(("products", json!(formats)));
        self.tensors.iter_mut().for_each(|t| t.product = products.get(&t.name).copied());
    }

    /// Factors of products, equal ones of all layers together: name, how many, shape, type in the file and format on the device.
    fn groups(&self) -> Vec<Vec<String>> {
        let mut groups: Vec<(_, usize)> = vec![];
        for t in &self.tensors {
            let Some(product) = t.product else { continue };
            let key = (pattern(&t.name), &t.shape, t.dtype, product.name());
            match groups.iter_mut().find(|(other, _)| *other == key) {
                Some((_, count)) => *count += 1,
                None => groups.push((key, 1)),
            }
        }
        let row = |((name, shape, dtype, product), count): ((String, &Vec<usize>, &str, &str), usize)| {
            vec![name, count.to_string(), format!("{shape:?}"), dtype.to_owned(), product.to_owned()]
        };
        groups.into_iter().map(row).collect()
    }

    fn total(&self) -> Sum {
        let mut sum = Sum::default();
        self.tensors.iter().for_each(|t| sum.add(t));
        sum
    }

    /// Sums by a property of each tensor.
    fn sums(&self, of: impl Fn(&Tensor) -> Option<&'static str>) -> BTreeMap<&'static str, Sum> {
        let mut sums = BTreeMap::<_, Sum>::new();
        for tensor in &self.tensors {
            if let Some(key) = of(tensor) {
                sums.entry(key).or_default().add(tensor);
            }
        }
        sums
    }

    fn as_json(&self, with_tensors: bool) -> Value {
        let mut object = Map::new();
        object.insert("path".to_owned(), json!(self.path));
        object.insert("kind".to_owned(), json!(self.kind));
        for (name, value) in &self.facts {
            object.insert(name.replace(' ', "_"), value.clone());
        }
        if self.probes.is_some() {
            object.insert("precision_probes".to_owned(), probes_json(self.probes.as_ref()));
        }
        let sums = |of: fn(&Tensor) -> Option<&'static str>| -> Value {
            self.sums(of).into_iter().map(|(key, sum)| (key.to_owned(), sum.json())).collect()
        };
        object.insert("networks".to_owned(), sums(|t| network(&t.name)));
        object.insert("dtypes".to_owned(), sums(|t| Some(t.dtype)));
        object.insert("total".to_owned(), self.total().json());
        if with_tensors {
            let list = self.tensors.iter().map(|t| {
                json!({
                    "name": t.name, "dtype": t.dtype, "shape": t.shape, "bytes": t.bytes,
                    "product": t.product.map(Precision::name),
                })
            });
            object.insert("tensors".to_owned(), list.collect());
        }
        Value::Object(object)
    }

    fn as_text(&self, with_tensors: bool) -> String {
        let mut text = format!("{}\n", self.path);
        let mut rows = vec![vec!["  kind".to_owned(), self.kind.clone()]];
        rows.extend(self.facts.iter().map(|(name, value)| vec![format!("  {name}"), for_people(value)]));
        rows.extend(self.probes.iter().map(|p| vec!["  precision probes".to_owned(), p.to_string()]));
        text.push_str(&print::table(&rows, &[1]));
        if !self.tensors.is_empty() {
            let head = |name: &str| [name, "tensors", "parameters", "size"].map(str::to_owned).to_vec();
            let networks = self.sums(|t| network(&t.name));
            if !networks.is_empty() {
                let mut rows = vec![head("network")];
                let qwen = Network::ALL.map(Network::name);
                let in_order = NETWORKS.iter().chain(&qwen);
                rows.extend(in_order.filter_map(|n| Some(networks.get(n)?.row(n))));
                text.push('\n');
                text.push_str(&print::table(&rows, &[]));
            }
            let mut rows = vec![head("dtype")];
            rows.extend(self.sums(|t| Some(t.dtype)).into_iter().map(|(dtype, sum)| sum.row(dtype)));
            rows.push(self.total().row("total"));
            text.push('\n');
            text.push_str(&print::table(&rows, &[]));
        }
        let groups = self.groups();
        if !groups.is_empty() && !with_tensors {
            let head = ["product with", "tensors", "shape", "dtype", "kept as"].map(str::to_owned);
            let rows: Vec<_> = std::iter::once(head.to_vec()).chain(groups).collect();
            text.push('\n');
            text.push_str(&print::table(&rows, &[2, 3, 4]));
        }
        if with_tensors {
            let mut rows = vec![["tensor", "dtype", "shape", "bytes", "product"].map(str::to_owned).to_vec()];
            rows.extend(self.tensors.iter().map(|t| {
                let bytes = t.bytes.map_or_else(|| "?".to_owned(), |b| b.to_string());
                let product = t.product.map_or("", Precision::name).to_owned();
                vec![t.name.clone(), t.dtype.to_owned(), format!("{:?}", t.shape), bytes, product]
            }));
            text.push('\n');
            text.push_str(&print::table(&rows, &[1, 2, 4]));
        }
        text
    }
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

/// Names of the parts of a Supertonic model, in the order in which they run.
const NETWORKS: [&str; 5] = ["duration_predictor", "text_encoder", "vector_estimator", "vocoder", "shared"];

/// The network that a weight with a canonical name belongs to.
fn network(name: &str) -> Option<&'static str> {
    let Some(name) = name.strip_prefix("tts.") else { return Network::of(name).map(Network::name) };
    let [duration_predictor, text_encoder, vector_estimator, vocoder, shared] = NETWORKS;
    let prefixes = [
        ("dp.", duration_predictor),
        ("ttl.text_encoder.", text_encoder),
        ("ttl.speech_prompted_text_encoder.", text_encoder),
        ("ttl.vector_field.", vector_estimator),
        ("ttl.uncond_masker.", vector_estimator),
        ("ttl.normalizer.", vocoder),
        ("ae.", vocoder),
    ];
    Some(prefixes.iter().find(|(p, _)| name.starts_with(p)).map_or(shared, |(_, network)| network))
}

fn tensors(source: &dyn WeightSource) -> Vec<Tensor> {
    let tensor = |name: &str| match source.info(name) {
        Some(info) => Tensor {
            name: name.to_owned(),
            dtype: info.dtype.name(),
            bytes: info.dtype.bytes_for(info.len()),
            shape: info.shape,
            product: None,
        },
        None => Tensor { name: name.to_owned(), dtype: "unknown", shape: vec![], bytes: None, product: None },
    };
    source.names().into_iter().map(tensor).collect()
}

// ---- models ----------------------------------------------------------------------------------------------------

fn model(path: Option<&Path>, args: &Args) -> anyhow::Result<Found> {
    let (choice, kv) = (&args.precision.choice(), args.precision.kv);
    if let Some(path) = path
        && qwen3_tts::Files::detect(path)
    {
        let files = qwen3_tts::Files::open(path)?;
        if files.talking.is_none() {
            return Ok(describe_qwen3(&files)); // a codec alone, which no engine speaks with
        }
        let engine = match (choice, args.device) {
            (PrecisionChoice::Exactly(policy), None) => open_to_look(Some(path), policy, kv)?,
            (_, device) => open_on(device, Some(path), choice, kv)?,
        };
        let mut found = describe_qwen3(&files);
        let networks = [qwen3_tts::Files::graphs(&files, kv)?, files.listening_graphs()?].concat();
        found.add_products(&products(&networks, engine.precision()));
        let length = |reference| SpeechLength { speech: SECONDS, reference };
        let [footprint, longest] = REFERENCES.map(|seconds| engine.footprint(length(seconds)));
        let (Some(footprint), Some(longest)) = (footprint?, longest?) else { return Ok(found) };
        let weights = match engine.device_info().kind {
            DeviceKind::Cpu => "bytes of weights on the CPU",
            _ => "bytes of weights on the GPU",
        };
        found.facts.extend([
            ("precision", json!(engine.precision().to_string())),
            ("keys and values", json!(kv.name())),
            (weights, json!(footprint.weights)),
            ("bytes of 20 seconds of speech", json!(footprint.utterance)),
        ]);
        if footprint.cloning > 0 {
            found.facts.extend([
                ("bytes of 20 seconds of speech behind a reference of 10", json!(footprint.in_context)),
                ("bytes of 20 seconds of speech behind a reference of 60", json!(longest.in_context)),
                ("more bytes while 10 seconds become a voice", json!(footprint.cloning)),
                ("more bytes while 60 seconds become a voice", json!(longest.cloning)),
            ]);
        }
        found.add_probes(&engine);
        return Ok(found);
    }
    let policy = match (choice, args.device) {
        (PrecisionChoice::Exactly(policy), None) => policy,
        (_, device) => {
            let engine = open_on(device, path, choice, kv)?;
            let mut found = describe(engine.supertonic()?, engine.voices(), engine.precision())?;
            found.add_probes(&engine);
            return Ok(found);
        }
    };
    // Its patterns are checked; in which format products would be is told without a device that has it.
    let patterns = PrecisionPolicy { precision: Precision::F32, ..policy.clone() };
    let engine = open_to_look(path, &patterns, kv)?;
    describe(engine.supertonic()?, engine.voices(), policy)
}

/// The model on a device, or on the one that would be chosen to speak, with the precision that was asked for or that probes chose there.
fn open_on(
    device: Option<DeviceChoice>,
    path: Option<&Path>,
    choice: &PrecisionChoice,
    kv: CacheFormat,
) -> anyhow::Result<Engine> {
    let model = path.map_or(ModelSource::BuiltIn, |p| ModelSource::Path(p.to_owned()));
    let (device, precision) = (device.unwrap_or_default(), choice.clone());
    let options = EngineOptions { model, device, precision, kv, ..Default::default() };
    Ok(Engine::with_options(options)?)
}

/// In which format a policy has each factor of a product, by the name of the weight.
fn products(graphs: &[Graph], policy: &PrecisionPolicy) -> BTreeMap<String, Precision> {
    let mut all = BTreeMap::new();
    for op in graphs.iter().flat_map(Graph::nodes).map(|node| &node.op) {
        let (weight, in_blocks) = match op {
            Op::MatMul { weight, .. } => (weight, true),
            // A block does not straddle two taps.
            Op::Conv1d { weight, geometry, .. } => {
                (weight, (weight.shape().dims()[0] / geometry.taps).is_multiple_of(BLOCK))
            }
            _ => continue,
        };
        if let Some(name) = weight.first_name() {
            let asked = policy.of(weight);
            let fits = in_blocks || Precision::FLOATS.contains(&asked);
            all.insert(name.to_owned(), if fits { asked } else { Precision::F32 });
        }
    }
    all
}

/// A name with `*` in place of each number: equal tensors of all layers have one.
fn pattern(name: &str) -> String {
    let number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    name.split('.').map(|part| if number(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

fn describe(
    model: &Supertonic,
    voices: &[orate::VoiceInfo],
    policy: &PrecisionPolicy,
) -> anyhow::Result<Found> {
    let files = model.files();
    let config = &files.config;
    let (kind, languages) = match files.family {
        TextRules::Official(version) => (format!("Supertonic {version}"), version.languages()),
        TextRules::Own => ("Orate voice".to_owned(), &[] as &[_]),
    };
    // Models without language tags were trained on English.
    let languages = if languages.is_empty() { &["en"] } else { languages };
    let default_voice = voices.iter().find(|v| v.is_default).map(|v| json!(v.name));
    let voices: Vec<Value> = voices.iter().map(|v| json!(v.name)).collect();
    let mut facts = vec![
        ("version", json!(config.tts_version)),
        ("sample rate", json!(model.sample_rate())),
        ("samples per latent frame", json!(config.samples_per_latent())),
        ("languages", json!(languages)),
        ("voices", json!(voices)),
        ("default voice", default_voice.unwrap_or(Value::Null)),
        ("default speed", json!((f64::from(files.default_speed()) * 1e3).round() / 1e3)),
    ];
    if let Ok(steps) = orate_models::supertonic::SpeakOptions::default().check(config) {
        facts.push(("default steps", json!(steps)));
    }
    if let Some(onnx) = files.onnx() {
        let f = onnx.facts();
        facts.push(("ONNX opset", json!(f.opset)));
        if let Some(g) = &f.guidance {
            facts.push((
                "guidance",
                json!({ "conditional": g.conditional, "unconditional": g.unconditional }),
            ));
        }
    }
    let sizes = Sizes { batch: 1, tokens: 4, frames: 2, steps: 1, padded: false };
    let products = products(&graphs(config, &*files.weights, sizes)?, policy);
    facts.push(("precision", json!(policy.to_string())));
    let (path, tensors) = (files.origin.clone(), tensors(&*files.weights));
    let mut found = Found { path, kind, facts, probes: None, tensors };
    found.add_products(&products);
    Ok(found)
}

/// Seconds of speech whose memory is told.
const SECONDS: f64 = 20.0;
/// Seconds of the references whose memory is told: of medium length, and as long as one may be.
const REFERENCES: [f64; 2] = [10.0, 60.0];

fn describe_qwen3(files: &qwen3_tts::Files) -> Found {
    let codec = &files.codec;
    let sample_rate = ("sample rate", json!(codec.output_sample_rate));
    let frames = [
        ("frames per second", json!(codec.frame_rate())),
        ("samples per frame", json!(codec.decode_upsample_rate)),
        ("codes per frame", json!(codec.decoder_config.num_quantizers)),
    ];
    let (kind, mut facts) = match &files.talking {
        None => ("Qwen3-TTS codec (12 Hz)".to_owned(), vec![sample_rate]),
        Some(talking) => {
            let c = &talking.config;
            let speaker = match c.tts_model_type {
                Variant::Base => "reference audio",
                Variant::CustomVoice => "one of its own",
                Variant::VoiceDesign => "a description",
            };
            let mut facts = vec![
                ("variant", json!(c.tts_model_type.name())),
                ("size", json!(c.size())),
                sample_rate,
                ("speaker", json!(speaker)),
                ("languages", json!(c.languages())),
            ];
            for (name, all) in [("speakers", c.speakers()), ("dialects", c.dialects())] {
                if !all.is_empty() {
                    facts.push((name, json!(all)));
                }
            }
            facts.push(("text tokens", json!(talking.tokenizer.max_id() + 1)));
            (format!("Qwen3-TTS {} {}", c.size(), c.tts_model_type.name()), facts)
        }
    };
    facts.extend(frames);
    Found { path: files.origin.clone(), kind, facts, probes: None, tensors: tensors(&*files.weights) }
}

// ---- single files ----------------------------------------------------------------------------------------------

fn file(path: &Path, args: &Args) -> anyhow::Result<Found> {
    let name = path.display().to_string();
    let mut start = [0; 9];
    let cannot = || format!("{name}: cannot read this file");
    let mut file = File::open(path).with_context(cannot)?;
    let mut length = 0;
    while length < start.len() {
        match file.read(&mut start[length..]).with_context(cannot)? {
            0 => break,
            n => length += n,
        }
    }
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let found = match (&start[..length], ending.as_str()) {
        ([b'G', b'G', b'U', b'F', ..], _) | (_, "gguf") => {
            let file = GgufFile::open(path).map_err(orate::Error::from)?;
            if file.string("general.architecture").is_ok_and(|a| a == voice_pack::ARCHITECTURE) {
                drop(file);
                return model(Some(path), args);
            }
            gguf(name, &file)
        }
        (_, "onnx") => onnx(name, &OnnxModel::open(path).map_err(orate::Error::from)?),
        // The header's length, then JSON.
        ([_, _, _, _, _, _, _, _, b'{', ..], _) | (_, "safetensors") => {
            safetensors(name, &SafeTensors::open(path).map_err(orate::Error::from)?)
        }
        (_, "json") => voice_file(name, path)?,
        _ => bail!(
            "{name}: neither a packed voice or GGUF (.gguf), nor safetensors (.safetensors), ONNX (.onnx) or a voice (.json)"
        ),
    };
    if args.device.is_some() {
        let problem = format!("--device is for models, and {} is a single file; leave it out", found.path);
        return Err(UsageError(problem).into());
    }
    Ok(found)
}

fn gguf(path: String, file: &GgufFile) -> Found {
    let metadata: Map<String, Value> =
        file.metadata().map(|(key, value)| (key.to_owned(), gguf_value(value))).collect();
    let facts = vec![("metadata", Value::Object(metadata))];
    Found { path, kind: "GGUF".to_owned(), facts, probes: None, tensors: tensors(file) }
}

/// A value as JSON; long texts and lists only as their size.
fn gguf_value(value: &GgufValue) -> Value {
    /// As much as fits a line.
    const MOST_CHARS: usize = 80;
    match value {
        GgufValue::String(s) if s.chars().count() > MOST_CHARS => json!(format!("text of {} bytes", s.len())),
        GgufValue::String(s) => json!(s),
        GgufValue::Array(GgufArray::String(all)) if all.len() <= 16 => json!(all),
        GgufValue::Array(_) => json!("list"),
        other => json!(format!("{other:?}").split_once('(').map_or("", |(_, v)| v.trim_end_matches(')'))),
    }
}

fn safetensors(path: String, file: &SafeTensors) -> Found {
    let facts = match file.metadata() {
        m if m.is_empty() => vec![],
        m => vec![("metadata", json!(m))],
    };
    Found { path, kind: "safetensors".to_owned(), facts, probes: None, tensors: tensors(file) }
}

fn onnx(path: String, model: &OnnxModel) -> Found {
    let mut operations = BTreeMap::<&str, usize>::new();
    for node in model.nodes() {
        *operations.entry(&node.op_type).or_default() += 1;
    }
    let facts = vec![
        ("opset", json!(model.opset())),
        ("inputs", json!(model.inputs())),
        ("outputs", json!(model.outputs())),
        ("nodes", json!(model.nodes().len())),
        ("operations", json!(operations)),
    ];
    Found { path, kind: "ONNX".to_owned(), facts, probes: None, tensors: tensors(model) }
}

fn voice_file(name: String, path: &Path) -> anyhow::Result<Found> {
    let text = std::fs::read(path).with_context(|| format!("{name}: cannot read this file"))?;
    let json: Value = serde_json::from_slice(&text).with_context(|| format!("{name}: not valid JSON"))?;
    let (Some(ttl), Some(dp)) = (json.pointer("/style_ttl/dims"), json.pointer("/style_dp/dims")) else {
        bail!("{name}: JSON, but not a voice: it has no `style_ttl` and `style_dp` with `dims`");
    };
    let shape = |v: &Value| json!(format!("{v}"));
    let mut facts = vec![("style_ttl", shape(ttl)), ("style_dp", shape(dp))];
    if let Some(metadata) = json.get("metadata").filter(|m| m.is_object()) {
        facts.push(("metadata", metadata.clone()));
    }
    Ok(Found { path: name, kind: "voice file".to_owned(), facts, probes: None, tensors: vec![] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_belong_to_networks() {
        let cases = [
            ("tts.dp.predictor.layers.0.weight", Some("duration_predictor")),
            ("tts.ttl.speech_prompted_text_encoder.norm.weight", Some("text_encoder")),
            ("tts.ttl.uncond_masker.text_special_token", Some("vector_estimator")),
            ("tts.ttl.normalizer.scale", Some("vocoder")),
            ("tts.ttl.style_encoder.style_token_layer.style_key", Some("shared")),
            ("talker.model.layers.0.mlp.up_proj.weight", Some("talker")),
            ("talker.code_predictor.lm_head.0.weight", Some("code_predictor")),
            ("decoder.decoder.5.alpha", Some("codec_decoder")),
            ("model.layers.0.weight", None),
        ];
        for (name, expected) in cases {
            assert_eq!(network(name), expected, "{name}");
        }
    }

    #[test]
    fn tensors_of_layers_are_one_group() {
        let cases = [
            ("talker.model.layers.12.mlp.up_proj.weight", "talker.model.layers.*.mlp.up_proj.weight"),
            ("decoder.decoder.1.block.0.alpha", "decoder.decoder.*.block.*.alpha"),
            ("linear_fc1.weight", "linear_fc1.weight"),
        ];
        for (name, expected) in cases {
            assert_eq!(pattern(name), expected);
        }
    }

    #[test]
    fn gguf_values_are_short() {
        assert_eq!(gguf_value(&GgufValue::U32(3)), json!("3"));
        assert_eq!(gguf_value(&GgufValue::String("x".repeat(100))), json!("text of 100 bytes"));
    }
}
