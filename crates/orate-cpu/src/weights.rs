//! Weights of a model in the layouts that kernels read, each packed once.

use crate::kernels::matmul::blocks::{BlockFormat, PackedBlocks};
use crate::kernels::matmul::{Columns, Element, PackedWeights, Strided};
use crate::{Isa, Moments, Team};
use orate_graph::{
    ConvGeometry, GraphError, Op, Plan, Precision, PrecisionPolicy, Shape, Tensor, Weight, WeightLoader,
};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Parts of the device that models and executables share.
#[derive(Clone)]
pub(crate) struct Core {
    pub isa: Isa,
    pub team: Arc<Team>,
    pub policy: Arc<PrecisionPolicy>,
    /// Where the inputs of matmuls are measured.
    pub moments: Option<Arc<Moments>>,
    /// Name of the device. Its address distinguishes devices with equal names.
    pub name: Arc<str>,
}

impl Core {
    /// Weight format of a matmul; `None` for other ops.
    pub fn format(&self, op: &Op) -> Option<Format> {
        match op {
            Op::MatMul { weight, .. } => Some(self.format_of(weight, None)),
            Op::Conv1d { weight, geometry, .. } => Some(self.format_of(weight, Some(geometry))),
            _ => None,
        }
    }

    /// Format of the right operand of a matmul or convolution.
    pub fn format_of(&self, weight: &Weight, conv: Option<&ConvGeometry>) -> Format {
        let precision = self.policy.of_matmul(weight, conv);
        if let Some(format) = BlockFormat::of(precision) {
            return Format::Blocks(format);
        }
        match precision {
            Precision::F16 => Format::Elements(Element::F16),
            Precision::Bf16 => Format::Elements(Element::Bf16),
            _ => Format::Elements(Element::F32),
        }
    }
}

/// Weight format of a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    Elements(Element),
    Blocks(BlockFormat),
}

/// The right operand of a matmul.
#[derive(Clone)]
pub(crate) enum Factor {
    Elements(Arc<PackedWeights>),
    Blocks(Arc<PackedBlocks>),
}

impl Factor {
    fn bytes(&self) -> usize {
        match self {
            Factor::Elements(w) => w.bytes(),
            Factor::Blocks(w) => w.bytes(),
        }
    }
}

/// An embedding table.
#[derive(Clone)]
pub(crate) enum Table {
    Memory(Arc<Vec<f32>>),
    /// Rows are read from the mapped model file. A text needs a few of the 150,000 rows of a large
    /// vocabulary.
    File {
        source: Arc<dyn WeightLoader + Send + Sync>,
        name: String,
        rows: usize,
    },
}

/// Tables with at least this many numbers stay in their file.
const LARGE_TABLE: usize = 16 << 20;

/// Matrices with at least this many numbers are read row by row if their file allows it.
const READ_BY_ROW: usize = 64 << 10;

/// Weights by the text of their expression; those of matmuls also by format.
#[derive(Default)]
pub(crate) struct WeightBank {
    dense: HashMap<String, Arc<Vec<f32>>>,
    packed: HashMap<(String, Format), Factor>,
    tables: HashMap<String, Table>,
}

/// Predicts [`WeightBank::bytes`] after loading these plans, if large tables can stay in their file.
pub(crate) fn bytes_of(plans: &[Plan], core: &Core) -> u64 {
    let mut seen = HashSet::new();
    let mut bytes = 0;
    for op in plans.iter().flat_map(|p| p.steps()).map(|step| &step.node.op) {
        let format = core.format(op);
        for (i, w) in op.weights().into_iter().enumerate() {
            let pack = format.filter(|_| i == 0);
            let in_file = matches!(op, Op::Embedding { .. }) && w.shape().len() >= LARGE_TABLE;
            if in_file || !seen.insert((w.key(), pack)) {
                continue;
            }
            bytes += match (pack, w.shape().dims()) {
                (Some(Format::Elements(e)), &[k, n]) => PackedWeights::bytes_for(core.isa, e, (k, n)),
                (Some(Format::Blocks(f)), &[k, n]) => PackedBlocks::bytes_for(f, (k, n)),
                _ => 4 * w.shape().len(),
            } as u64;
        }
    }
    bytes
}

/// A weight about to enter the bank.
enum Made {
    Dense(Arc<Vec<f32>>),
    Packed(Factor),
}

impl WeightBank {
    /// Memory of the weights in bytes.
    pub fn bytes(&self) -> u64 {
        let dense: usize = self.dense.values().map(|w| w.len() * 4).sum();
        let packed: usize = self.packed.values().map(|w| w.bytes()).sum();
        (dense + packed) as u64
    }

    /// Elements in logical order.
    pub fn dense(&self, w: &Weight) -> Arc<Vec<f32>> {
        self.dense.get(&w.key()).expect("`fill` made the weights of every step").clone()
    }

    /// The rows of an embedding.
    pub fn table(&self, w: &Weight) -> Table {
        self.tables.get(&w.key()).cloned().unwrap_or_else(|| Table::Memory(self.dense(w)))
    }

    /// `[K, N]`, packed for matmuls.
    pub fn packed(&self, w: &Weight, format: Format) -> Factor {
        self.packed.get(&(w.key(), format)).expect("`fill` made the weights of every step").clone()
    }

    /// Evaluates and packs all weights of a plan that are missing, one thread per weight: reading, expanding
    /// and packing a model is most of the time to the first sentence.
    pub fn fill(
        &mut self,
        plan: &Plan,
        core: &Core,
        loader: &Arc<dyn WeightLoader + Send + Sync>,
    ) -> Result<(), GraphError> {
        let source = &**loader;
        for step in plan.steps() {
            if let Op::Embedding { table } = &step.node.op
                && table.shape().len() >= LARGE_TABLE
                && let Some(name) = table.name()
                && source.read_row(name, 0, &mut vec![0.0; table.shape().last()])?
            {
                let rows = table.shape().dims()[0];
                let table_in_file = Table::File { source: loader.clone(), name: name.to_owned(), rows };
                self.tables.insert(table.key(), table_in_file);
            }
        }
        let mut wanted: Vec<(String, &Weight, Option<Format>)> = vec![];
        let mut seen = HashSet::new();
        for step in plan.steps() {
            let format = core.format(&step.node.op);
            for (i, w) in step.node.op.weights().into_iter().enumerate() {
                let (key, pack) = (w.key(), format.filter(|_| i == 0));
                let kept = match pack {
                    Some(format) => self.packed.contains_key(&(key.clone(), format)),
                    None if matches!(step.node.op, Op::Embedding { .. }) => {
                        self.dense.contains_key(&key) || self.tables.contains_key(&key)
                    }
                    None => self.dense.contains_key(&key),
                };
                if !kept && seen.insert((key.clone(), pack)) {
                    wanted.push((key, w, pack));
                }
            }
        }
        // The largest first, so that no thread still has one when the others are done.
        wanted.sort_by_key(|(_, w, _)| std::cmp::Reverse(w.shape().len()));
        let made: Vec<OnceLock<Result<Made, GraphError>>> = wanted.iter().map(|_| OnceLock::new()).collect();
        core.team.run(wanted.len(), &|_, i| {
            let (_, w, pack) = &wanted[i];
            made[i].get_or_init(|| make(core, source, w, *pack));
            w.release(source);
        });
        for ((key, _, format), made) in wanted.into_iter().zip(made) {
            match (made.into_inner().expect("every chunk ran")?, format) {
                (Made::Packed(w), Some(format)) => drop(self.packed.insert((key, format), w)),
                (Made::Dense(w), _) => drop(self.dense.insert(key, w)),
                (Made::Packed(_), None) => unreachable!("packed for its format"),
            }
        }
        Ok(())
    }
}

fn into_dense(t: Tensor<'_>) -> Arc<Vec<f32>> {
    Arc::new(t.contiguous().data.into_owned())
}

fn make(
    core: &Core,
    source: &dyn WeightLoader,
    w: &Weight,
    pack: Option<Format>,
) -> Result<Made, GraphError> {
    let Some(format) = pack else { return Ok(Made::Dense(into_dense(w.evaluate(source)?))) };
    let &[k, n] = w.shape().dims() else { unreachable!("factors of products are matrices") };
    if let Format::Blocks(f) = format
        && let Some(stored) = w.column_blocks(f.precision(), source)
    {
        return Ok(Made::Packed(Factor::Blocks(Arc::new(PackedBlocks::pack_stored(
            f,
            &core.team,
            (k, n),
            stored.bytes,
        )))));
    }
    // The columns of a large matrix are rows in its file: where these have to be converted, they are packed
    // as they are read, so the whole matrix is never in memory.
    if k * n >= READ_BY_ROW
        && let Some(name) = w.transposed_name()
        && source.lend(name).is_none()
        && source.shape(name).is_some_and(|shape| shape == Shape::from([n, k]))
        && source.read_row(name, n - 1, &mut vec![0.0; k])?
    {
        let failed = Mutex::new(None);
        let read = |row: usize, out: &mut [f32]| {
            if let Err(e) = source.read_row(name, row, out) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
        };
        let factor = pack_columns(core, format, (k, n), Columns::Each(&read));
        return match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(e) => Err(e),
            None => Ok(Made::Packed(factor)),
        };
    }
    let t = w.evaluate(source)?;
    let matrix = Strided { data: &t.data, k_stride: t.strides[0], n_stride: t.strides[1] };
    matrix.check(k, n);
    Ok(Made::Packed(pack_columns(core, format, (k, n), Columns::Matrix(matrix))))
}

fn pack_columns(core: &Core, format: Format, size: (usize, usize), w: Columns<'_>) -> Factor {
    let Core { isa, team, .. } = core;
    match format {
        Format::Elements(e) => {
            Factor::Elements(Arc::new(PackedWeights::pack_columns(*isa, team, e, size, w)))
        }
        Format::Blocks(f) => Factor::Blocks(Arc::new(PackedBlocks::pack_columns(*isa, f, team, size, w))),
    }
}
