//! What a model, a weight file or a voice file holds.

use orate::{
    CacheChoice, DeviceChoice, DeviceKind, Engine, EngineOptions, Family, ModelError, ModelSource, Precision,
    PrecisionChoice, PrecisionPolicy, Probes, Result, SpeechLength,
};
use orate_graph::{Graph, Op};
use orate_models::PlaceOptions;
use orate_weights::gguf::{GgufArray, GgufFile, GgufValue};
use orate_weights::{OnnxModel, SafeTensors, WeightSource};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// How to look at a model.
#[derive(Clone, Debug)]
pub struct Look {
    /// The second of two GGUF files, if it is named.
    pub codec: Option<std::path::PathBuf>,
    /// Families that the model may be of.
    pub families: &'static [&'static Family],
    /// Device to look with, whose memory is predicted. `None`: the CPU, and for [`PrecisionChoice::Auto`] the
    /// device that would speak.
    pub device: Option<DeviceChoice>,
    /// Format of weights in matmuls.
    pub precision: PrecisionChoice,
    /// Format of keys and values.
    pub kv: CacheChoice,
}

/// What was found.
pub struct Inspection {
    /// Path, or `built-in voice`.
    pub path: String,
    /// What it is, in two or three words.
    pub kind: String,
    /// Whether it is a model, and not a single file.
    pub is_model: bool,
    /// Name and value, in the order to print.
    pub facts: Vec<(&'static str, Value)>,
    /// What a precision was chosen by.
    pub probes: Option<Probes>,
    /// All tensors.
    pub tensors: Vec<Tensor>,
    families: Vec<&'static Family>,
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name.
    pub name: String,
    /// Element type in the file.
    pub dtype: &'static str,
    /// Shape.
    pub shape: Vec<usize>,
    /// Size in the file; `None` where the element type cannot be read.
    pub bytes: Option<usize>,
    /// Format in which a matmul keeps it; `None` for tensors that no matmul reads.
    pub matmul: Option<Precision>,
}

/// How many tensors, numbers and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Tensors.
    pub tensors: usize,
    /// Numbers in them.
    pub parameters: usize,
    /// Bytes in the file.
    pub bytes: usize,
}

impl Sum {
    fn add(&mut self, tensor: &Tensor) {
        self.tensors += 1;
        self.parameters += tensor.shape.iter().product::<usize>();
        self.bytes += tensor.bytes.unwrap_or(0);
    }
}

/// Tensors of all layers that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name with `*` for each number in which they differ.
    pub name: String,
    /// Tensors.
    pub count: usize,
    /// Shape of each.
    pub shape: Vec<usize>,
    /// Element type in the file.
    pub dtype: &'static str,
    /// Format in which a matmul keeps them.
    pub matmul: Precision,
}

impl Inspection {
    fn of_file(
        path: &Path,
        kind: &str,
        facts: Vec<(&'static str, Value)>,
        tensors: Vec<Tensor>,
    ) -> Inspection {
        let (path, kind) = (path.display().to_string(), kind.to_owned());
        Inspection { path, kind, is_model: false, facts, probes: None, tensors, families: vec![] }
    }

    /// Sum of all tensors.
    pub fn total(&self) -> Sum {
        let mut sum = Sum::default();
        self.tensors.iter().for_each(|t| sum.add(t));
        sum
    }

    /// Sums by element type.
    pub fn dtypes(&self) -> Vec<(&'static str, Sum)> {
        self.sums(|t| Some(t.dtype)).into_iter().collect()
    }

    /// Sums by network, in the order in which networks run; tensors of none are left out.
    pub fn networks(&self) -> Vec<(&'static str, Sum)> {
        let of = |t: &Tensor| self.families.iter().find_map(|family| (family.network_of)(&t.name));
        let sums = self.sums(of);
        let mut in_order = vec![];
        for name in self.families.iter().flat_map(|family| (family.networks)()) {
            if let Some(sum) = sums.get(name).filter(|_| !in_order.iter().any(|(other, _)| *other == name)) {
                in_order.push((name, *sum));
            }
        }
        in_order
    }

    /// Tensors that matmuls read. Those of one shape and format whose names differ in numbers are one group.
    pub fn groups(&self) -> Vec<Group> {
        // By pattern; the name is completed at the end.
        let mut groups: Vec<(Group, Vec<&str>)> = vec![];
        for t in &self.tensors {
            let Some(matmul) = t.matmul else { continue };
            let name = pattern(&t.name);
            let group = Group { name, count: 1, shape: t.shape.clone(), dtype: t.dtype, matmul };
            match groups.iter_mut().find(|(g, _)| Group { count: 1, ..g.clone() } == group) {
                Some((known, parts)) => {
                    known.count += 1;
                    for (part, other) in parts.iter_mut().zip(runs(&t.name)) {
                        *part = if *part == other { other } else { "*" };
                    }
                }
                None => groups.push((group, runs(&t.name))),
            }
        }
        groups.into_iter().map(|(group, parts)| Group { name: parts.concat(), ..group }).collect()
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

    /// Adds the format of each tensor that a matmul reads, and how many have each.
    fn add_matmuls(&mut self, formats: &BTreeMap<String, Precision>) {
        let mut counts = BTreeMap::<&str, usize>::new();
        formats.values().for_each(|p| *counts.entry(p.name()).or_default() += 1);
        self.facts.push(("matmuls", json!(counts)));
        self.tensors.iter_mut().for_each(|t| t.matmul = formats.get(&t.name).copied());
        // What is stored in blocks may be computed in others.
        let mut sources = BTreeMap::<&str, BTreeSet<&str>>::new();
        for t in self.tensors.iter().filter(|t| is_block(t.dtype)) {
            let Some(matmul) = t.matmul.filter(|m| !m.name().eq_ignore_ascii_case(t.dtype)) else { continue };
            sources.entry(matmul.name()).or_default().insert(t.dtype);
        }
        let said = |(matmul, from): (&str, BTreeSet<&str>)| {
            let how = if matmul.starts_with('q') { "requantized" } else { "expanded" };
            format!("{matmul} (from {}, {how})", from.into_iter().collect::<Vec<_>>().join(", "))
        };
        if !sources.is_empty() {
            let all: Vec<String> = sources.into_iter().map(said).collect();
            self.facts.push(("computed as", json!(all.join("; "))));
        }
    }
}

/// Whether a type of a file is a format of blocks.
fn is_block(dtype: &str) -> bool {
    dtype.starts_with('q') || dtype.starts_with("iq")
}

/// A name as runs of digits and of other characters. A component that is a number, such as a layer's, is `*`.
fn runs(name: &str) -> Vec<&str> {
    let mut runs = vec![];
    for (i, part) in name.split('.').enumerate() {
        if i > 0 {
            runs.push(".");
        }
        match part.bytes().all(|b| b.is_ascii_digit()) {
            true => runs.push("*"),
            false => {
                let mut rest = part;
                while let Some(first) = rest.chars().next() {
                    let is_other = |c: char| c.is_ascii_digit() != first.is_ascii_digit();
                    let (run, after) = rest.split_at(rest.find(is_other).unwrap_or(rest.len()));
                    runs.push(run);
                    rest = after;
                }
            }
        }
    }
    runs
}

/// Name with `*` for each number: equal for tensors that may form a group.
fn pattern(name: &str) -> String {
    let number = |run: &str| run.starts_with(|c: char| c.is_ascii_digit());
    runs(name).into_iter().map(|run| if number(run) { "*" } else { run }).collect()
}

fn tensors(source: &dyn WeightSource) -> Vec<Tensor> {
    let tensor = |name: &str| match source.info(name) {
        Some(info) => Tensor {
            name: name.to_owned(),
            dtype: info.dtype.name(),
            bytes: info.dtype.bytes_for(info.len()),
            shape: info.shape,
            matmul: None,
        },
        None => Tensor { name: name.to_owned(), dtype: "unknown", shape: vec![], bytes: None, matmul: None },
    };
    source.names().into_iter().map(tensor).collect()
}

// ---- models
// ----------------------------------------------------------------------------------------------------

/// Seconds of speech whose memory is predicted.
const SECONDS: f64 = 20.0;
/// Seconds of the references whose memory is predicted: of medium length, and as long as one may be.
const REFERENCES: [f64; 2] = [10.0, 60.0];

/// Looks at a model; `None` is the built-in voice.
///
/// # Errors
/// It cannot be opened, or could not speak.
pub fn model(path: Option<&Path>, look: &Look) -> Result<Inspection> {
    let (engine, policy) = open(path, look)?;
    let files = engine.model().files();
    let description = files.describe();
    let mut found = Inspection {
        path: engine.model_name().to_owned(),
        kind: description.kind,
        is_model: true,
        facts: description.facts,
        probes: engine.probes().cloned(),
        tensors: tensors(&**files.weights()),
        families: vec![files.family()],
    };
    if !engine.facts().can_speak {
        return Ok(found);
    }
    engine.model().check_defaults()?;
    found.facts.push(("precision", json!(policy.to_string())));
    found.facts.extend(engine.kv().map(|kv| ("keys and values", json!(kv.name()))));
    let networks =
        [files.graphs(&PlaceOptions { kv: engine.kv().unwrap_or_default() })?, files.encoder_graphs()?]
            .concat();
    found.add_matmuls(&formats(&networks, &policy));
    if policy == *engine.precision() {
        found.facts.extend(memory(&engine)?);
    }
    if engine.probes().is_some() {
        found.facts.push(("device", json!(engine.device())));
    }
    Ok(found)
}

/// The model on the device that was asked for, and the policy to explain.
fn open(path: Option<&Path>, look: &Look) -> Result<(Engine, PrecisionPolicy)> {
    let model = path.map_or(ModelSource::BuiltIn, |p| ModelSource::Path(p.to_owned()));
    let options = EngineOptions {
        model,
        codec: look.codec.clone(),
        families: look.families,
        device: look.device.unwrap_or_default(),
        precision: look.precision.clone(),
        kv: look.kv,
        ..Default::default()
    };
    let on_cpu = EngineOptions { device: DeviceChoice::Cpu, threads: Some(1), ..options.clone() };
    if let (PrecisionChoice::Stored { .. }, None) = (&look.precision, look.device) {
        let engine = Engine::with_options(on_cpu)?;
        let policy = engine.precision().clone();
        return Ok((engine, policy));
    }
    if let (PrecisionChoice::Exactly(policy), None) = (&look.precision, look.device) {
        let options = on_cpu;
        if let Ok(engine) = Engine::with_options(options.clone()) {
            let policy = engine.precision().clone();
            return Ok((engine, policy));
        }
        // A format that the CPU lacks can be explained all the same. Whatever else is wrong is found here,
        // too.
        let in_f32 = PrecisionPolicy { precision: Precision::F32, ..policy.clone() };
        return Ok((
            Engine::with_options(EngineOptions { precision: in_f32.into(), ..options })?,
            policy.clone(),
        ));
    }
    let engine = Engine::with_options(options)?;
    let policy = engine.precision().clone();
    Ok((engine, policy))
}

/// Bytes that the model takes on its device, if its family predicts them.
fn memory(engine: &Engine) -> Result<Vec<(&'static str, Value)>> {
    let of = |reference| engine.footprint(SpeechLength { speech: SECONDS, reference });
    let [Some(usual), Some(longest)] = [of(REFERENCES[0])?, of(REFERENCES[1])?] else { return Ok(vec![]) };
    let weights = match engine.device_info().kind {
        DeviceKind::Cpu => "bytes of weights on the CPU",
        _ => "bytes of weights on the GPU",
    };
    let mut facts =
        vec![(weights, json!(usual.weights)), ("bytes of 20 seconds of speech", json!(usual.utterance))];
    facts.push(("texts at once", json!(engine.texts_at_once())));
    if usual.cloning > 0 {
        facts.extend([
            ("bytes of 20 seconds of speech after a reference of 10", json!(usual.in_context)),
            ("bytes of 20 seconds of speech after a reference of 60", json!(longest.in_context)),
            ("more bytes while 10 seconds become a voice", json!(usual.cloning)),
            ("more bytes while 60 seconds become a voice", json!(longest.cloning)),
        ]);
    }
    Ok(facts)
}

/// The format in which a policy keeps each weight of a matmul, by name.
fn formats(graphs: &[Graph], policy: &PrecisionPolicy) -> BTreeMap<String, Precision> {
    let ops = graphs.iter().flat_map(Graph::nodes).map(|node| &node.op);
    let format = |op: &Op| Some((op.weights().first()?.first_name()?.to_owned(), policy.of_op(op)?));
    ops.filter_map(format).collect()
}

// ---- single files
// ----------------------------------------------------------------------------------------------

/// Prefix of the architectures of packed voices.
const OURS: &str = "orate-";

/// Looks at a file: a packed voice is a model, anything else is shown as it is.
///
/// # Errors
/// The file cannot be read, is damaged, or is of no known kind.
pub fn file(path: &Path, look: &Look) -> Result<Inspection> {
    let mut start = [0; 9];
    let length =
        read_start(path, &mut start).map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let found = match (&start[..length], ending.as_str()) {
        ([b'G', b'G', b'U', b'F', ..], _) | (_, "gguf") => {
            let file = GgufFile::open(path)?;
            if file.string("general.architecture").is_ok_and(|a| a.starts_with(OURS)) {
                drop(file);
                return model(Some(path), look);
            }
            let Some(layout) = orate_models::gguf::detect(&file) else {
                return Ok(named(path, gguf(path, &file), look));
            };
            match model(Some(path), look) {
                Ok(found) => return Ok(found),
                // What cannot be opened is listed all the same.
                Err(e) => {
                    let mut found = gguf(path, &file);
                    found.facts.insert(0, ("layout", json!(layout.port.name())));
                    found.facts.insert(1, ("cannot be opened", json!(e.to_string())));
                    found
                }
            }
        }
        (_, "onnx") => onnx(path, &OnnxModel::open(path)?),
        // The header's length, then JSON.
        ([_, _, _, _, _, _, _, _, b'{', ..], _) | (_, "safetensors") => {
            safetensors(path, &SafeTensors::open(path)?)
        }
        _ => match look.families.iter().find_map(|family| (family.describe_file)(path)) {
            Some(description) => {
                let description = description?;
                Inspection::of_file(path, &description.kind, description.facts, vec![])
            }
            None => {
                let problem = "neither a packed voice or GGUF (.gguf), nor safetensors (.safetensors), \
                               ONNX (.onnx) or a voice (.json)";
                let (path, problem) = (path.to_owned(), problem.to_owned());
                return Err(ModelError::Content { path, problem }.into());
            }
        },
    };
    Ok(named(path, found, look))
}

/// A file of a model's family, if the file or its folder is a model, or else of any.
fn named(path: &Path, found: Inspection, look: &Look) -> Inspection {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let family_of = |path: &Path| look.families.iter().copied().find(|family| (family.detect)(path));
    let family = family_of(path).or_else(|| family_of(folder));
    let knows = |family: &&Family| found.tensors.iter().any(|t| (family.network_of)(&t.name).is_some());
    let families = family.filter(knows).map_or_else(|| look.families.to_vec(), |family| vec![family]);
    Inspection { families, ..found }
}

/// Reads the first bytes of a file, and returns how many there are.
fn read_start(path: &Path, start: &mut [u8]) -> io::Result<usize> {
    let (mut file, mut length) = (File::open(path)?, 0);
    while length < start.len() {
        match file.read(&mut start[length..])? {
            0 => break,
            n => length += n,
        }
    }
    Ok(length)
}

fn gguf(path: &Path, file: &GgufFile) -> Inspection {
    let metadata: Map<String, Value> =
        file.metadata().map(|(key, value)| (key.to_owned(), gguf_value(value))).collect();
    Inspection::of_file(path, "GGUF", vec![("metadata", Value::Object(metadata))], tensors(file))
}

/// A value as JSON; of long texts and lists only the size.
fn gguf_value(value: &GgufValue) -> Value {
    /// Characters that fit a line.
    const MOST_CHARS: usize = 80;
    match value {
        GgufValue::String(s) if s.chars().count() > MOST_CHARS => json!(format!("text of {} bytes", s.len())),
        GgufValue::String(s) => json!(s),
        GgufValue::Array(GgufArray::String(all)) if all.len() <= 16 => json!(all),
        GgufValue::Array(_) => json!("list"),
        other => json!(format!("{other:?}").split_once('(').map_or("", |(_, v)| v.trim_end_matches(')'))),
    }
}

fn safetensors(path: &Path, file: &SafeTensors) -> Inspection {
    let facts = match file.metadata() {
        m if m.is_empty() => vec![],
        m => vec![("metadata", json!(m))],
    };
    Inspection::of_file(path, "safetensors", facts, tensors(file))
}

fn onnx(path: &Path, model: &OnnxModel) -> Inspection {
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
    Inspection::of_file(path, "ONNX", facts, tensors(model))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_layers_are_one_group() {
        let groups = |all: &[(&str, usize)]| {
            let tensor = |(name, width): &(&str, usize)| Tensor {
                name: (*name).to_owned(),
                dtype: "f32",
                shape: vec![*width],
                bytes: None,
                matmul: Some(Precision::F32),
            };
            let found = Inspection::of_file(Path::new("a"), "", vec![], all.iter().map(tensor).collect());
            found.groups().into_iter().map(|g| (g.name, g.count)).collect::<Vec<_>>()
        };
        let named = |name: &str, count: usize| (name.to_owned(), count);
        let up = "net.layers.12.mlp.up_proj.weight";
        assert_eq!(groups(&[(up, 1)]), [named("net.layers.*.mlp.up_proj.weight", 1)]);
        assert_eq!(groups(&[("linear_fc1.weight", 1)]), [named("linear_fc1.weight", 1)]);
        assert_eq!(
            groups(&[("linear_fc1.weight", 1), ("linear_fc2.weight", 2)]),
            [named("linear_fc1.weight", 1), named("linear_fc2.weight", 1)],
            "of other shapes"
        );
        let block = ["a.block3.1.conv1d2", "a.block3.2.conv1d3", "a.block4.9.conv1d12"].map(|name| (name, 1));
        assert_eq!(groups(&block), [named("a.block*.*.conv1d*", 3)]);
    }

    #[test]
    fn gguf_values_are_short() {
        assert_eq!(gguf_value(&GgufValue::U32(3)), json!("3"));
        assert_eq!(gguf_value(&GgufValue::String("x".repeat(100))), json!("text of 100 bytes"));
    }
}
