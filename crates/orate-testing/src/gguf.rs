//! GGUF files in the layouts of other engines, made from our tiny checkpoints: what each engine's converter
//! would write, as far as a reader sees it. Names are made by replacing parts of official ones, as the
//! converters do, and not by the tables of the reader.
//!
//! Sizes that converters write as constants are read off the tensors, so that tiny models work.

mod chatterbox;
mod qwen3;
mod supertonic;

pub use chatterbox::{write_chatterbox_cpp, write_chatterbox_crispasr, write_turbo_audiocpp};
pub use qwen3::{write_qwen3_crispasr, write_qwen3_llamacpp, write_qwen3tts_cpp, write_qwentts_cpp};
pub use supertonic::{write_supertonic_audiocpp, write_supertonic_crispasr, write_supertonic_ttscpp};

use orate_weights::blocks::encode;
use orate_weights::gguf::{GgufArray, GgufValue};
use orate_weights::{DType, GgufWriter, SafeTensors, WeightSource};
use std::collections::BTreeMap;
use std::path::Path;

/// A tensor in memory.
#[derive(Clone, Debug)]
struct Array {
    shape: Vec<usize>,
    data: Vec<f32>,
}

impl Array {
    fn new(shape: &[usize], data: Vec<f32>) -> Array {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "shape {shape:?}");
        Array { shape: shape.to_vec(), data }
    }

    fn map(&self, f: impl Fn(f32) -> f32) -> Array {
        Array { shape: self.shape.clone(), data: self.data.iter().map(|x| f(*x)).collect() }
    }

    /// A matrix with rows and columns swapped.
    fn turned(&self) -> Array {
        let [rows, columns] = self.shape[..] else { panic!("{:?} is no matrix", self.shape) };
        let at = |i: usize| self.data[i % rows * columns + i / rows];
        Array::new(&[columns, rows], (0..rows * columns).map(at).collect())
    }
}

/// All tensors of a file by name.
fn arrays(path: &Path) -> BTreeMap<String, Array> {
    let file = SafeTensors::open(path).expect("a checkpoint");
    let read = |name: &str| {
        let t = file.get(name).expect("is listed");
        (name.to_owned(), Array { shape: t.shape.clone(), data: t.to_f32() })
    };
    file.names().into_iter().map(read).collect()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).expect("is there")).expect("JSON")
}

/// Adds a tensor: matrices in `dtype` as far as their rows are whole blocks, everything else in `f32`.
fn add(w: &mut GgufWriter<'_>, name: &str, x: &Array, dtype: DType) {
    let fits = x.shape.len() == 2 && x.shape[1].is_multiple_of(dtype.block_len());
    let (dtype, mut bytes) = (if fits { dtype } else { DType::F32 }, vec![]);
    match dtype {
        DType::F32 => bytes.extend(x.data.iter().flat_map(|x| x.to_le_bytes())),
        DType::F16 => bytes.extend(x.data.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes())),
        blocks => encode::quantize(blocks, &x.data, &mut bytes),
    }
    w.tensor(name, dtype, &x.shape, bytes);
}

fn add_integers(w: &mut GgufWriter<'_>, name: &str, shape: &[usize], all: impl IntoIterator<Item = i64>) {
    let bytes = all.into_iter().flat_map(|x| (x as i32).to_le_bytes()).collect();
    w.tensor(name, DType::I32, shape, bytes);
}

fn integers(all: impl IntoIterator<Item = i64>) -> GgufValue {
    GgufValue::Array(GgufArray::I32(all.into_iter().map(|x| x as i32).collect()))
}

/// A value of JSON as converters write it.
fn value(x: &serde_json::Value) -> GgufValue {
    use serde_json::Value;
    match x {
        Value::Bool(b) => GgufValue::Bool(*b),
        Value::Number(n) if n.is_u64() => GgufValue::U32(n.as_u64().expect("checked") as u32),
        Value::Number(n) => GgufValue::F32(n.as_f64().expect("a number") as f32),
        Value::String(s) => s.as_str().into(),
        Value::Array(all) => integers(all.iter().map(|n| n.as_i64().expect("an integer"))),
        other => panic!("{other} is no metadata"),
    }
}

/// Lines of `merges.txt` without those that begin with `#`, which most converters take for comments.
fn merges_kept(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("is there");
    text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned).collect()
}

/// Writes the tensors of a safetensors file under their own names, as converters that only change the
/// container.
pub fn write_official_names(from: &Path, out: &Path) {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "pig");
    arrays(from).iter().for_each(|(name, x)| add(&mut w, name, x, DType::F32));
    w.write(out).expect("room");
}

/// Writes a file of audio.cpp: official names behind prefixes, and the small files of the folder `root`.
pub fn write_audiocpp(out: &Path, family: &str, root: &Path, inputs: &[(&str, &Path)], files: &[&str]) {
    let of = |(prefix, path): &(&str, &Path)| -> Vec<(String, Values)> {
        arrays(path).into_iter().map(|(name, x)| (format!("{prefix}/{name}"), Values::Floats(x))).collect()
    };
    let all = inputs.iter().flat_map(of).collect();
    let read = |file: &&str| ((*file).to_owned(), std::fs::read(root.join(file)).expect("is there"));
    write_container(out, family, all, files.iter().map(read).collect());
}

/// Numbers of a tensor.
enum Values {
    Floats(Array),
    Integers(Vec<i64>),
}

/// Writes a container of audio.cpp with these tensors and files.
fn write_container(out: &Path, family: &str, all: Vec<(String, Values)>, files: Vec<(String, Vec<u8>)>) {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "audiocpp").set("audiocpp.model_spec.family", family);
    let (mut names, mut ranks, mut shapes, mut data, mut ends) =
        (vec![], vec![], vec![], vec![], vec![0_u64]);
    for (_, bytes) in &files {
        data.extend(bytes);
        ends.push(data.len() as u64);
    }
    for (name, x) in &all {
        let shape = match x {
            Values::Floats(x) => x.shape.clone(),
            Values::Integers(all) => vec![all.len()],
        };
        names.push(name.clone());
        ranks.push(shape.len() as i64);
        shapes.extend(shape.iter().map(|n| *n as i64));
    }
    w.set("audiocpp.tensor_names", names)
        .set("audiocpp.tensor_ranks", integers(ranks))
        .set("audiocpp.tensor_shapes", GgufValue::Array(GgufArray::I64(shapes)))
        .set("audiocpp.embedded_files.names", files.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        .set("audiocpp.embedded_files.offsets", GgufValue::Array(GgufArray::U64(ends)))
        .set("audiocpp.embedded_files.data", GgufValue::Array(GgufArray::U8(data.into())));
    for (i, (name, x)) in all.into_iter().enumerate() {
        let physical = if name.len() < 64 { name } else { format!("_audiocpp.{i}") };
        let x = match x {
            Values::Floats(x) => x,
            Values::Integers(all) => {
                add_integers(&mut w, &physical, &[all.len()], all);
                continue;
            }
        };
        // C tools drop slow axes of 1.
        let axes = x.shape.iter().take_while(|n| **n == 1).count().min(x.shape.len().saturating_sub(1));
        add(&mut w, &physical, &Array::new(&x.shape[axes..], x.data), DType::F32);
    }
    w.write(out).expect("room");
}
