//! Puts a model into one GGUF file: weights, most matrices in blocks, and all small files.
//!
//! | key | content |
//! | --- | --- |
//! | `general.architecture`, `orate.version` | `orate-model`, 1 |
//! | `orate.family`, `general.name`, `orate.weights` | tag of the family, name of the folder, format of blocks |
//! | `orate.files.{names, offsets, data}` | the small files: configuration, tokenizer, voices |
//!
//! Tensors have their official names after `part/`, and their official shapes. Those of matmuls in the
//! family's usual scope, and tables of embeddings, are in blocks as far as their rows are whole blocks;
//! kernels of one tap `[N, K, 1]` are then matrices `[N, K]`. Other matrices and kernels of 32 bits become
//! `f16` where that is exact enough; everything else stays as it is. A tensor is read, rounded and written
//! piece by piece, so memory does not grow with the model.

use orate::{
    CacheFormat, DeviceChoice, Engine, EngineOptions, Error, Family, ModelError, ModelSource, Precision,
    PrecisionPolicy, Result,
};
use orate_cpu::{CpuDevice, Isa, Moments};
use orate_graph::{DeviceError, Op, name_matches};
use orate_models::{PlaceOptions, gguf};
use orate_weights::blocks::encode;
use orate_weights::gguf::{GgufArray, GgufValue};
use orate_weights::{GgufWriter, TensorRef, WeightSource};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

pub use orate_weights::DType;

/// Numbers that are rounded at once.
const PIECE: usize = 1 << 20;

/// Most bytes of a small file.
const MOST_BYTES: u64 = 64 << 20;

/// Largest number that fits half precision.
const MOST_HALF: f32 = 65504.0;

/// What was written.
#[derive(Debug)]
pub struct Report {
    /// Size of the file.
    pub bytes: u64,
    /// Tensors and bytes by type, in the order of names.
    pub types: BTreeMap<&'static str, (usize, u64)>,
    /// Small files inside.
    pub files: Vec<String>,
    /// Tensors that were rounded by their importance for a text.
    pub calibrated: usize,
}

/// How a tensor is written.
struct Plan {
    dtype: DType,
    /// Whether its last two axes are swapped.
    turned: bool,
    /// Shape in the file.
    shape: Vec<usize>,
}

/// Shape of a tensor without axes of extent 1 after the second, so that a kernel of one tap is a matrix.
fn rows_of(shape: &[usize]) -> &[usize] {
    let matrix = &shape[..shape.len().min(2)];
    if shape[matrix.len()..].iter().all(|n| *n == 1) { matrix } else { shape }
}

/// The format called `name`, such as `q4_k`.
///
/// # Errors
/// There is none, in words that list those that there are.
pub fn format(name: &str) -> std::result::Result<DType, String> {
    let known = [&encode::WRITTEN[..], &[DType::F16, DType::BF16, DType::F32]].concat();
    let found = known.iter().find(|d| d.name().eq_ignore_ascii_case(name)).copied();
    let all = || known.iter().map(|d| d.name().to_ascii_lowercase()).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("unknown format `{name}`; choose one of {}", all()))
}

/// Whether a text for calibration has an effect on weights of this format.
pub fn can_calibrate(dtype: DType) -> bool {
    matches!(dtype, DType::Q4_0 | DType::Q4K | DType::Q5K | DType::Q6K)
}

/// Writes the model at `path` to the file `out`. The file appears when it is complete.
///
/// With `calibration`, the model first speaks that text, and weights that meet large inputs there are rounded
/// more exactly in `q4_0` and K types. That takes the memory and time of speech in `f32`.
///
/// # Errors
/// The model cannot be opened, is in one file already, cannot speak the text, or the file cannot be written.
pub fn quantize(
    families: &'static [&'static Family],
    path: &Path,
    dtype: DType,
    calibration: Option<&str>,
    out: &Path,
) -> Result<Report> {
    let options = EngineOptions {
        model: ModelSource::Path(path.to_owned()),
        families,
        device: DeviceChoice::Cpu,
        threads: Some(1),
        precision: PrecisionPolicy::uniform(Precision::F32).into(),
        kv: CacheFormat::F32.into(),
        ..Default::default()
    };
    let engine = Engine::with_options(options.clone())?;
    let files = engine.model().files();
    let packing = files.packing()?;
    let moments = calibration.map(|text| calibrate(&options, text)).transpose()?;
    let moments = moments.as_deref();
    let weights = &**files.weights();
    let place = PlaceOptions::default();
    let graphs = [files.graphs(&place)?, files.encoder_graphs()?].concat();
    let scope = files.facts().precision_scope;
    let in_scope = |name: &str| scope.is_empty() || scope.iter().any(|p| name_matches(p, name));

    // Matrices, of which blocks lie along the inputs, and tables.
    let (mut rows, mut tables) = (BTreeSet::new(), BTreeSet::new());
    for op in graphs.iter().flat_map(|g| g.nodes()).map(|node| &node.op) {
        match op {
            Op::MatMul { weight, .. } => {
                rows.extend(weight.columns_name().filter(|n| in_scope(n)));
                rows.extend(weight.name().filter(|n| in_scope(n) && (packing.is_turned)(n)));
            }
            Op::Embedding { table } => tables.extend(table.name()),
            _ => {}
        }
    }
    let plan = |name: &str| -> Result<Plan> {
        let info = weights.info(name).ok_or_else(|| ModelError::from(weights.missing(name)))?;
        let turned = (packing.is_turned)(name) && info.shape.len() == 2;
        let mut shape = info.shape;
        if turned {
            shape.swap(0, 1);
        }
        let is_matrix = rows.contains(name) && rows_of(&shape).len() == 2;
        let width = if is_matrix { rows_of(&shape).last() } else { shape.last() };
        let fits = |d: DType| width.is_some_and(|n| n.is_multiple_of(d.block_len()));
        let blocks = [dtype, DType::Q8_0].into_iter().find(|d| d.is_quantized() && fits(*d));
        let wanted = match () {
            () if is_matrix && dtype.is_quantized() => blocks,
            () if is_matrix => Some(dtype),
            () if tables.contains(name) && dtype.is_quantized() && fits(DType::Q8_0) => Some(DType::Q8_0),
            () => None,
        };
        let axes = shape.iter().filter(|n| **n > 1).count();
        let to_half = |name: &str| info.dtype == DType::F32 && axes > 1 && fits_half(weights, name);
        let dtype = match wanted {
            Some(dtype) => dtype,
            None if dtype != DType::F32 && to_half(name) => DType::F16,
            None => info.dtype,
        };
        if is_matrix && dtype.is_quantized() {
            shape = rows_of(&shape).to_vec();
        }
        Ok(Plan { dtype, turned, shape })
    };

    let (mut names, mut ends, mut data) = (vec![], vec![0_u64], vec![]);
    for (name, path) in &packing.files {
        let bytes = orate_files::read(path, MOST_BYTES)
            .map_err(|source| ModelError::Io { path: path.clone(), source })?;
        data.extend_from_slice(&bytes);
        names.push(name.clone());
        ends.push(data.len() as u64);
    }
    let mut writer = GgufWriter::new();
    let title = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    writer
        .set("general.architecture", gguf::ARCHITECTURE)
        .set("general.name", title)
        .set(gguf::VERSION.0, gguf::VERSION.1)
        .set(gguf::OURS, files.family().tag)
        .set("orate.weights", dtype.name());
    for (key, value) in packing.keys {
        writer.set(key, value);
    }
    writer
        .set("orate.files.names", names.clone())
        .set("orate.files.offsets", GgufValue::Array(GgufArray::U64(ends)))
        .set("orate.files.data", GgufValue::Array(GgufArray::U8(data.into())));
    if moments.is_some() {
        writer.set("orate.calibrated", GgufValue::Bool(true));
    }
    let mut types = BTreeMap::<_, (usize, u64)>::new();
    let mut calibrated = 0;
    for name in &packing.weights {
        let Plan { dtype, turned, shape } = plan(name)?;
        let count = types.entry(dtype.name()).or_default();
        *count = (count.0 + 1, count.1 + dtype.bytes_for(shape.iter().product()).unwrap_or(0) as u64);
        let full = format!("{}/{name}", (packing.prefix)(name));
        let wide = |importance: &Vec<f32>| can_calibrate(dtype) && shape.last() == Some(&importance.len());
        let importance = moments.and_then(|moments| moments.importance(name)).filter(wide);
        calibrated += usize::from(importance.is_some());
        writer.tensor_from(&full, dtype, &shape, move |out| {
            let read = |e: orate_weights::WeightError| io::Error::other(e.to_string());
            let tensor = weights.get(name).map_err(read)?;
            let tensor = if turned { tensor.transpose() } else { tensor };
            let written = write(&tensor, dtype, importance.as_deref(), out);
            weights.release(name);
            written
        });
    }
    let bytes = writer.write(out).map_err(|e| Error::from(ModelError::from(e)))?;
    Ok(Report { bytes, types, files: names, calibrated })
}

/// Speaks a text, and measures what the weights of matmuls are multiplied by.
fn calibrate(options: &EngineOptions, text: &str) -> Result<Arc<Moments>> {
    let setup = |e: orate_cpu::IsaError| {
        Error::from(DeviceError::Setup { device: "cpu".to_owned(), problem: e.to_string() })
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let moments = Arc::new(Moments::default());
    let device = CpuDevice::new(threads, Isa::detect().map_err(setup)?)?.with_moments(moments.clone());
    let engine = Engine::on_device(options, Arc::new(device))?;
    let mut speaking = engine.model().bench_options()?;
    for (name, most) in [("max_frames", MOST_FRAMES), ("max_codes", 2 * MOST_FRAMES), ("retries", 0)] {
        if engine.model().accepts().iter().any(|option| option.name == name) {
            speaking = speaking.set(name, most);
        }
    }
    engine.speak(text, &speaking)?;
    Ok(moments)
}

/// Threads that speak a text for calibration.
const MOST_THREADS: usize = 8;
/// Frames of 80 ms of a piece of that text, in case it does not end.
const MOST_FRAMES: usize = 250;

/// Whether all numbers of a tensor fit half precision, and none is so small that it would lose its digits.
/// Sums and counts of codebooks, which are divided by each other, stay as they are.
fn fits_half(weights: &dyn WeightSource, name: &str) -> bool {
    if name.contains("codebook") || name.contains("cluster_usage") || name.contains("_sum") {
        return false;
    }
    let Ok(t) = weights.get(name) else { return false };
    let fits = pieces(&t, &mut |piece| {
        piece.iter().all(|x| x.abs() <= MOST_HALF).then_some(()).ok_or_else(|| io::Error::other("too large"))
    });
    weights.release(name);
    fits.is_ok()
}

/// Calls `f` with the numbers of a tensor in logical order, some rows at a time.
fn pieces(t: &TensorRef<'_>, f: &mut dyn FnMut(&[f32]) -> io::Result<()>) -> io::Result<()> {
    let Some((&rows, rest)) = t.shape.split_first() else { return f(&t.to_f32()) };
    let width: usize = rest.iter().product();
    let step = (PIECE / width.max(1)).max(1);
    if !t.is_contiguous() {
        // A transposed matrix: columns of the stored one.
        return f(&t.to_f32());
    }
    for first in (0..rows).step_by(step) {
        let part = t.rows(first, step.min(rows - first));
        f(&part.ok_or_else(|| io::Error::other("a block straddles two rows"))?.to_f32())?;
    }
    Ok(())
}

/// Writes a tensor in a type, by the importance of its columns, if that is known.
fn write(t: &TensorRef<'_>, dtype: DType, importance: Option<&[f32]>, out: &mut dyn Write) -> io::Result<()> {
    if t.dtype == dtype && t.is_contiguous() {
        return out.write_all(t.bytes);
    }
    let mut bytes = vec![];
    pieces(t, &mut |piece| {
        bytes.clear();
        match dtype {
            DType::F32 => bytes.extend(piece.iter().flat_map(|x| x.to_le_bytes())),
            DType::F16 => bytes.extend(piece.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes())),
            DType::BF16 => bytes.extend(piece.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())),
            blocks => match importance {
                Some(importance) => encode::quantize_weighted(blocks, piece, importance, &mut bytes),
                None => encode::quantize(blocks, piece, &mut bytes),
            },
        }
        out.write_all(&bytes)
    })
}
