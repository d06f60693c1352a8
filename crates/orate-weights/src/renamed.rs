//! The tensors of files of another engine, under the names of the official checkpoint.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use crate::source::Named;
use crate::tensor::element_count;
use crate::{DType, TensorInfo, TensorRef, WeightError, WeightSource};

/// A source whose names are mapped to tensors of other sources, or to numbers that are known without them.
///
/// Shapes are those of the official checkpoint. Axes of extent 1, which some writers drop and others add, do
/// not count; a tensor that differs in another way keeps its own shape, so that a comparison with what
/// networks need finds it.
pub struct Renamed {
    origin: String,
    sources: Vec<Arc<dyn WeightSource>>,
    entries: Named<Entry>,
    used: HashSet<(usize, String)>,
}

/// What is read of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All of it.
    Same,
    /// One index of its first axis.
    Page(usize),
    /// Some rows: the first one, and their number.
    Rows(usize, usize),
    /// Its last two axes swapped. Blocks are decoded first, and the numbers kept in memory.
    Transposed,
}

enum Entry {
    Viewed { source: usize, tensor: String, view: View, shape: Vec<usize>, decoded: OnceLock<Vec<u8>> },
    Made { shape: Vec<usize>, bytes: Vec<u8> },
}

/// A shape without axes of extent 1.
fn significant(shape: &[usize]) -> impl Iterator<Item = usize> + '_ {
    shape.iter().copied().filter(|n| *n != 1)
}

impl Renamed {
    /// An empty map over `sources`. Error messages call it `origin`.
    pub fn new(origin: impl Into<String>, sources: Vec<Arc<dyn WeightSource>>) -> Self {
        Renamed { origin: origin.into(), sources, entries: Named::new(), used: HashSet::new() }
    }

    /// Maps `name`, of this shape, to a tensor of any source; returns whether there is one. A second mapping
    /// of the same name has no effect.
    pub fn add(&mut self, name: &str, shape: &[usize], tensor: &str, view: View) -> bool {
        let find = |(i, s): (usize, &Arc<dyn WeightSource>)| s.info(tensor).map(|info| (i, info));
        let Some((source, info)) = self.sources.iter().enumerate().find_map(find) else { return false };
        let viewed = match (view, &info.shape[..]) {
            (View::Same, _) => info.shape.clone(),
            (View::Page(n), [pages, rest @ ..]) if n < *pages => rest.to_vec(),
            (View::Rows(first, count), [rows, rest @ ..])
                if first.checked_add(count).is_some_and(|end| end <= *rows) =>
            {
                [&[count], rest].concat()
            }
            (View::Transposed, [outer @ .., a, b]) => [outer, &[*b, *a]].concat(),
            _ => return false,
        };
        let same = significant(&viewed).eq(significant(shape));
        let shape = if same { shape.to_vec() } else { viewed };
        self.used.insert((source, tensor.to_owned()));
        let entry =
            Entry::Viewed { source, tensor: tensor.to_owned(), view, shape, decoded: OnceLock::new() };
        let _ = self.entries.insert(name.to_owned(), entry);
        true
    }

    /// Gives `name` numbers of its own. There must be as many as its shape asks for; otherwise nothing is
    /// added.
    pub fn make(&mut self, name: &str, shape: &[usize], numbers: impl IntoIterator<Item = f32>) {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
        if element_count(shape).and_then(|n| n.checked_mul(4)) == Some(bytes.len()) {
            let _ = self.entries.insert(name.to_owned(), Entry::Made { shape: shape.to_vec(), bytes });
        }
    }

    /// A tensor of any source, under its own name.
    ///
    /// # Errors
    /// No source has it, or it cannot be read.
    pub fn original(&self, tensor: &str) -> Result<TensorRef<'_>, WeightError> {
        let source = self.sources.iter().find(|s| s.contains(tensor)).or(self.sources.first());
        source.ok_or_else(|| self.missing(tensor))?.get(tensor)
    }

    /// Type and shape of a tensor of any source, under its own name.
    pub fn original_info(&self, tensor: &str) -> Option<TensorInfo> {
        self.sources.iter().find_map(|s| s.info(tensor))
    }

    /// Says that a tensor of a source is known, though no network reads it.
    pub fn mark(&mut self, tensor: &str) {
        for source in 0..self.sources.len() {
            self.used.insert((source, tensor.to_owned()));
        }
    }

    /// Names of the tensors that nothing is mapped to, in the order of the files.
    pub fn unused(&self) -> Vec<&str> {
        let mut all = vec![];
        for (i, source) in self.sources.iter().enumerate() {
            let is_used = |name: &&str| self.used.contains(&(i, (*name).to_owned()));
            all.extend(source.names().into_iter().filter(|name| !is_used(name)));
        }
        all
    }

    /// How many bytes of matrices there are of each type of number.
    pub fn bytes_by_type(&self) -> HashMap<DType, usize> {
        let mut all = HashMap::new();
        for (_, entry) in self.entries.iter() {
            if let Entry::Viewed { source, tensor, .. } = entry
                && let Some(info) = self.sources[*source].info(tensor)
                && significant(&info.shape).count() > 1
            {
                *all.entry(info.dtype).or_default() += info.dtype.bytes_for(info.len()).unwrap_or(0);
            }
        }
        all
    }
}

impl WeightSource for Renamed {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        let damaged = |problem: &str| WeightError::Malformed {
            origin: self.origin.clone(),
            format: "GGUF",
            problem: format!("tensor {name}: {problem}"),
        };
        match self.entries.get(name).ok_or_else(|| self.missing(name))? {
            Entry::Made { shape, bytes } => {
                Ok(TensorRef::new(DType::F32, shape.clone(), bytes).expect("checked when it was made"))
            }
            Entry::Viewed { source, tensor, view, shape, decoded } => {
                let t = self.sources[*source].get(tensor)?;
                let viewed = match view {
                    View::Same => t.reshape(shape),
                    View::Page(n) => t.at(*n).and_then(|page| page.reshape(shape)),
                    View::Rows(first, count) => t.rows(*first, *count),
                    View::Transposed if t.dtype.is_quantized() => {
                        let kept = t.shape.clone();
                        let bytes =
                            decoded.get_or_init(|| t.to_f32().iter().flat_map(|x| x.to_le_bytes()).collect());
                        TensorRef::new(DType::F32, kept, bytes).map(TensorRef::transpose)
                    }
                    View::Transposed => Some(t.transpose()),
                };
                viewed.ok_or_else(|| damaged("a block straddles the rows that are read of it"))
            }
        }
    }

    fn names(&self) -> Vec<&str> {
        self.entries.names()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        Some(match self.entries.get(name)? {
            Entry::Made { shape, .. } => TensorInfo { dtype: DType::F32, shape: shape.clone() },
            Entry::Viewed { source, tensor, shape, view, .. } => {
                let dtype = self.sources[*source].info(tensor)?.dtype;
                let decoded = *view == View::Transposed && dtype.is_quantized();
                TensorInfo { dtype: if decoded { DType::F32 } else { dtype }, shape: shape.clone() }
            }
        })
    }

    fn describe(&self) -> String {
        self.origin.clone()
    }

    fn release(&self, name: &str) {
        if let Some(Entry::Viewed { source, tensor, .. }) = self.entries.get(name) {
            self.sources[*source].release(tensor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GgufFile, GgufWriter, q8_0};

    fn file() -> Arc<dyn WeightSource> {
        let ramp: Vec<f32> = (0..128).map(|i| i as f32).collect();
        let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
        let mut writer = GgufWriter::new();
        writer.tensor("plain", DType::F32, &[2, 3], bytes(&ramp[..6]));
        writer.tensor("blocks", DType::Q8_0, &[4, 32], q8_0::quantize(&ramp));
        writer.tensor("left", DType::F32, &[1], bytes(&[1.0]));
        let mut file = vec![];
        writer.write_to(&mut file).unwrap();
        Arc::new(GgufFile::from_bytes("test", file).unwrap())
    }

    #[test]
    fn views_are_what_they_say() {
        let mut map = Renamed::new("test", vec![file()]);
        assert!(map.add("kernel", &[1, 2, 3, 1], "plain", View::Same));
        assert!(map.add("turned", &[3, 2], "plain", View::Transposed));
        assert!(map.add("page", &[32], "blocks", View::Page(1)));
        assert!(map.add("rows", &[2, 32], "blocks", View::Rows(1, 2)));
        assert!(map.add("turned blocks", &[32, 4], "blocks", View::Transposed));
        assert!(map.add("other", &[5], "plain", View::Same), "the shape differs, which is found later");
        assert!(!map.add("none", &[5], "nothing", View::Same));
        assert!(!map.add("beyond", &[32], "blocks", View::Page(4)));
        map.make("ones", &[2], [1.0, 1.0]);
        map.make("too few", &[3], [1.0]);
        let floats = |name: &str| map.get(name).unwrap().to_f32();
        assert_eq!(map.get("kernel").unwrap().shape, [1, 2, 3, 1]);
        assert_eq!(floats("turned"), [0., 3., 1., 4., 2., 5.]);
        assert_eq!(map.get("page").unwrap().dtype, DType::Q8_0);
        assert!((floats("page")[31] - 63.0).abs() < 0.3 && (floats("rows")[0] - 32.0).abs() < 0.3);
        let [turned, plain] = [floats("turned blocks"), map.original("blocks").unwrap().to_f32()];
        assert_eq!((turned[1], turned[4]), (plain[32], plain[1]));
        assert_eq!(map.info("turned blocks").unwrap(), map.get("turned blocks").unwrap().info());
        assert_eq!(map.info("other").unwrap().shape, [2, 3]);
        assert_eq!(floats("ones"), [1.0; 2]);
        assert!(map.get("too few").is_err());
        assert_eq!(map.unused(), ["left"]);
        assert_eq!(map.bytes_by_type()[&DType::Q8_0], 3 * 136);
        map.mark("left");
        assert!(map.unused().is_empty());
    }
}
