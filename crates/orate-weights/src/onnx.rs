//! ONNX models: their weights, and enough of the graph to find out what a weight is for.
//!
//! The file is mapped; a tensor's `raw_data` stays where it is. Initialisers and the outputs of `Constant` nodes
//! are both tensors here, as exporters use either. Subgraphs (`If`, `Loop`) are not read.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use bytes::Bytes;

use crate::error::{Fault, malformed, unsupported};
use crate::protobuf::{Field, Message};
use crate::source::Named;
use crate::tensor::element_count;
use crate::{DType, TensorInfo, TensorRef, WeightError, WeightSource, file};

const FORMAT: &str = "ONNX";
/// Nodes, names, attributes and axes that one file may hold. The largest model here has about 6000 of them; the
/// limit keeps a file made of empty entries from growing a hundredfold in memory.
const MAX_ITEMS: usize = 1 << 18;
const MAX_AXES: usize = 16;

/// An open ONNX file.
#[derive(Debug)]
pub struct OnnxModel {
    origin: String,
    opset: i64,
    nodes: Vec<Node>,
    tensors: Named<OnnxTensor>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    producers: HashMap<String, usize>,
    consumers: HashMap<String, Vec<usize>>,
}

/// An operation of the graph.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Often the path of the module that was exported; may be empty.
    pub name: String,
    /// `Conv`, `MatMul` …
    pub op_type: String,
    /// Empty for standard operations.
    pub domain: String,
    /// Names of values; an empty name is an input left out.
    pub inputs: Vec<String>,
    /// Names of values.
    pub outputs: Vec<String>,
    attributes: Vec<(String, Attribute)>,
}

/// The value of a node's attribute.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Attribute {
    /// One float.
    Float(f32),
    /// One integer.
    Int(i64),
    /// A string.
    String(String),
    /// Several floats.
    Floats(Vec<f32>),
    /// Several integers.
    Ints(Vec<i64>),
    /// A tensor.
    Tensor(OnnxTensor),
    /// A subgraph, strings, or something newer.
    Other,
}

/// A tensor as stored in the file.
#[derive(Clone, Debug)]
pub struct OnnxTensor {
    /// ONNX's number for the element type.
    onnx_type: i64,
    /// `None` for element types that cannot be read.
    dtype: Option<DType>,
    shape: Vec<usize>,
    data: Bytes,
}

impl OnnxTensor {
    /// A view of the tensor, or `None` if its element type cannot be read.
    pub fn view(&self) -> Option<TensorRef<'_>> {
        TensorRef::new(self.dtype?, self.shape.clone(), &self.data)
    }
}

impl Node {
    /// The attribute called `name`.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    /// An integer attribute.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            Attribute::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// A float attribute.
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.attribute(name)? {
            Attribute::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// An attribute of several integers.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name)? {
            Attribute::Ints(values) => Some(values),
            _ => None,
        }
    }

    /// A string attribute.
    pub fn string(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            Attribute::String(value) => Some(value),
            _ => None,
        }
    }

    /// For messages: the name, or the first output if there is none, and the operation.
    pub fn label(&self) -> String {
        let name = if self.name.is_empty() { self.outputs.first().unwrap_or(&self.name) } else { &self.name };
        format!("{name} ({})", self.op_type)
    }
}

impl OnnxModel {
    /// Maps the file and reads its graph.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        let path = path.as_ref();
        Self::from_bytes(&path.display().to_string(), file::map(path)?)
    }

    /// Reads a model that is in memory already. `origin` names it in error messages.
    pub fn from_bytes(origin: &str, bytes: impl Into<Bytes>) -> Result<Self, WeightError> {
        let bytes = bytes.into();
        let parsed = Parser { file: &bytes, items: 0 }.model();
        let parsed = parsed.and_then(|(opset, graph)| Self::link(origin, opset, graph));
        parsed.map_err(|fault| fault.at(origin, FORMAT))
    }

    /// Version of the standard operator set.
    pub fn opset(&self) -> i64 {
        self.opset
    }

    /// All nodes but the constants, in the order of the file (which is one in which they can run).
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Names of the graph's inputs, without those that have an initialiser.
    pub fn inputs(&self) -> &[String] {
        &self.inputs
    }

    /// Names of the graph's outputs.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// The node that computes `value`. `None` for inputs and constants.
    pub fn producer(&self, value: &str) -> Option<&Node> {
        self.producers.get(value).map(|&i| &self.nodes[i])
    }

    /// The nodes that read `value`, each once, in order.
    pub fn consumers(&self, value: &str) -> impl Iterator<Item = &Node> {
        self.consumers.get(value).into_iter().flatten().map(|&i| &self.nodes[i])
    }

    fn link(origin: &str, opset: i64, graph: Graph) -> Result<Self, Fault> {
        let Graph { nodes: all, mut tensors, inputs, outputs } = graph;
        let mut nodes = Vec::with_capacity(all.len());
        for mut node in all {
            if node.op_type != "Constant" {
                nodes.push(node);
                continue;
            }
            if let [output] = node.outputs.as_mut_slice()
                && let Some((_, value)) = node.attributes.pop()
                && let Some(tensor) = constant_tensor(value)
            {
                if let Err(name) = tensors.insert(std::mem::take(output), tensor) {
                    return malformed!("two tensors are named `{name}`");
                }
            } else {
                nodes.push(node); // a string, say: nothing to do with weights
            }
        }
        let mut producers = HashMap::new();
        let mut consumers: HashMap<String, Vec<usize>> = HashMap::new();
        for (i, node) in nodes.iter().enumerate() {
            for output in node.outputs.iter().filter(|name| !name.is_empty()) {
                if tensors.get(output).is_some() || producers.insert(output.clone(), i).is_some() {
                    return malformed!("value `{output}` is computed twice");
                }
            }
            for input in node.inputs.iter().filter(|name| !name.is_empty()) {
                let readers = consumers.entry(input.clone()).or_default();
                if readers.last() != Some(&i) {
                    readers.push(i);
                }
            }
        }
        let inputs = inputs.into_iter().filter(|name| tensors.get(name).is_none()).collect();
        Ok(Self { origin: origin.to_owned(), opset, nodes, tensors, inputs, outputs, producers, consumers })
    }
}

impl WeightSource for OnnxModel {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        let tensor = self.tensors.get(name).ok_or_else(|| self.missing(name))?;
        tensor.view().ok_or_else(|| WeightError::Unsupported {
            origin: self.origin.clone(),
            problem: format!("tensor `{name}` has ONNX element type {}", type_name(tensor.onnx_type)),
        })
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.names()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        let tensor = self.tensors.get(name)?;
        Some(TensorInfo { dtype: tensor.dtype?, shape: tensor.shape.clone() })
    }

    fn describe(&self) -> String {
        self.origin.clone()
    }
}

/// The tensor that a `Constant` node stands for.
fn constant_tensor(value: Attribute) -> Option<OnnxTensor> {
    let tensor = |dtype, onnx_type, shape, data: Vec<u8>| OnnxTensor {
        onnx_type,
        dtype: Some(dtype),
        shape,
        data: data.into(),
    };
    let floats =
        |shape, v: &[f32]| tensor(DType::F32, 1, shape, v.iter().flat_map(|v| v.to_le_bytes()).collect());
    let ints =
        |shape, v: &[i64]| tensor(DType::I64, 7, shape, v.iter().flat_map(|v| v.to_le_bytes()).collect());
    match value {
        Attribute::Tensor(tensor) => Some(tensor),
        Attribute::Float(v) => Some(floats(vec![], &[v])),
        Attribute::Floats(v) => Some(floats(vec![v.len()], &v)),
        Attribute::Int(v) => Some(ints(vec![], &[v])),
        Attribute::Ints(v) => Some(ints(vec![v.len()], &v)),
        Attribute::String(_) | Attribute::Other => None,
    }
}

fn type_name(onnx_type: i64) -> String {
    const NAMES: [&str; 17] = [
        "UNDEFINED",
        "FLOAT",
        "UINT8",
        "INT8",
        "UINT16",
        "INT16",
        "INT32",
        "INT64",
        "STRING",
        "BOOL",
        "FLOAT16",
        "DOUBLE",
        "UINT32",
        "UINT64",
        "COMPLEX64",
        "COMPLEX128",
        "BFLOAT16",
    ];
    let known = usize::try_from(onnx_type).ok().and_then(|i| NAMES.get(i));
    known.map_or_else(|| onnx_type.to_string(), |name| (*name).to_owned())
}

// ---- the messages of onnx.proto --------------------------------------------------------------------------------

#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
    tensors: Named<OnnxTensor>,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

/// Reads messages. Field numbers are those of onnx.proto, with the field's name beside each.
struct Parser<'a> {
    file: &'a Bytes,
    items: usize,
}

impl<'a> Parser<'a> {
    /// Counts something that takes memory.
    fn count(&mut self) -> Result<(), Fault> {
        self.items += 1;
        if self.items > MAX_ITEMS {
            return unsupported!("more than {MAX_ITEMS} nodes, names and attributes");
        }
        Ok(())
    }

    fn text(&mut self, field: Field<'a>) -> Result<String, Fault> {
        self.count()?;
        Ok(field.text()?.to_owned())
    }

    /// ModelProto.
    fn model(mut self) -> Result<(i64, Graph), Fault> {
        let file: &'a [u8] = self.file;
        let mut message = Message::new(file);
        let (mut opset, mut graph) = (None, None);
        while let Some((number, field)) = message.next()? {
            match number {
                7 if graph.is_some() => return malformed!("it holds two graphs"),
                7 => graph = Some(self.graph(field.bytes()?)?),
                8 => {
                    // opset_import: domain, version
                    let mut set = Message::new(field.bytes()?);
                    let (mut domain, mut version) = ("", 0);
                    while let Some((number, field)) = set.next()? {
                        match number {
                            1 => domain = field.text()?,
                            2 => version = field.int()?,
                            _ => {}
                        }
                    }
                    if matches!(domain, "" | "ai.onnx") {
                        opset = Some(version);
                    }
                }
                _ => {}
            }
        }
        match (opset, graph) {
            (Some(opset), Some(graph)) => Ok((opset, graph)),
            (_, None) => malformed!("it holds no graph"),
            (None, _) => malformed!("it does not say which operator set it uses"),
        }
    }

    /// GraphProto.
    fn graph(&mut self, bytes: &'a [u8]) -> Result<Graph, Fault> {
        let mut message = Message::new(bytes);
        let mut graph = Graph::default();
        while let Some((number, field)) = message.next()? {
            match number {
                1 => graph.nodes.push(self.node(field.bytes()?)?), // node
                5 => {
                    // initializer
                    let (name, tensor) = self.tensor(field.bytes()?)?;
                    if name.is_empty() {
                        return malformed!("an initialiser has no name");
                    }
                    if let Err(name) = graph.tensors.insert(name, tensor) {
                        return malformed!("two tensors are named `{name}`");
                    }
                }
                11 => graph.inputs.push(self.value_name(field.bytes()?)?), // input
                12 => graph.outputs.push(self.value_name(field.bytes()?)?), // output
                15 => return unsupported!("sparse initialisers"),
                _ => {}
            }
        }
        Ok(graph)
    }

    /// ValueInfoProto, of which only the name is of interest.
    fn value_name(&mut self, bytes: &'a [u8]) -> Result<String, Fault> {
        let mut message = Message::new(bytes);
        let mut name = String::new();
        while let Some((number, field)) = message.next()? {
            if number == 1 {
                name = self.text(field)?;
            }
        }
        self.count()?;
        Ok(name)
    }

    /// NodeProto.
    fn node(&mut self, bytes: &'a [u8]) -> Result<Node, Fault> {
        self.count()?;
        let mut message = Message::new(bytes);
        let mut node = Node::default();
        let mut seen = HashSet::new();
        while let Some((number, field)) = message.next()? {
            match number {
                1 => node.inputs.push(self.text(field)?),
                2 => node.outputs.push(self.text(field)?),
                3 => node.name = self.text(field)?,
                4 => node.op_type = self.text(field)?,
                5 => {
                    let (name, value) = self.attribute(field.bytes()?)?;
                    if !seen.insert(name.clone()) {
                        return malformed!("node `{}` has two attributes `{name}`", node.name);
                    }
                    node.attributes.push((name, value));
                }
                7 => node.domain = self.text(field)?,
                _ => {}
            }
        }
        Ok(node)
    }

    /// AttributeProto.
    fn attribute(&mut self, bytes: &'a [u8]) -> Result<(String, Attribute), Fault> {
        self.count()?;
        let mut message = Message::new(bytes);
        let (mut name, mut kind) = (String::new(), None);
        let (mut float, mut int, mut string, mut tensor) = (0.0, 0, None, None);
        let (mut floats, mut ints) = (Vec::new(), Vec::new());
        while let Some((number, field)) = message.next()? {
            match number {
                1 => name = self.text(field)?,
                2 => float = field.float()?,
                3 => int = field.int()?,
                4 => string = Some(field.bytes()?),
                5 => tensor = Some(self.tensor(field.bytes()?)?.1),
                7 => floats.extend(field.words()?.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word))),
                8 => field.each_int(|value| {
                    self.count()?;
                    ints.push(value);
                    Ok(())
                })?,
                20 => kind = Some(field.int()?),
                _ => {}
            }
        }
        let value = match kind {
            Some(1) => Attribute::Float(float),
            Some(2) => Attribute::Int(int),
            // Strings need not be text; those that are not can only be looked at as "other".
            Some(3) => match std::str::from_utf8(string.unwrap_or_default()) {
                Ok(text) => Attribute::String(text.to_owned()),
                Err(_) => Attribute::Other,
            },
            Some(4) => match tensor {
                Some(tensor) => Attribute::Tensor(tensor),
                None => return malformed!("attribute `{name}` should hold a tensor, but does not"),
            },
            Some(6) => Attribute::Floats(floats),
            Some(7) => Attribute::Ints(ints),
            Some(_) => Attribute::Other,
            None => return malformed!("attribute `{name}` has no type"),
        };
        Ok((name, value))
    }

    /// TensorProto: its name and content.
    fn tensor(&mut self, bytes: &'a [u8]) -> Result<(String, OnnxTensor), Fault> {
        self.count()?;
        let mut message = Message::new(bytes);
        let (mut name, mut onnx_type, mut raw) = (String::new(), 0, None);
        let mut shape = Vec::new();
        let (mut floats, mut int32s, mut int64s): (Vec<&[u8]>, Vec<Field<'a>>, Vec<Field<'a>>) =
            Default::default();
        while let Some((number, field)) = message.next()? {
            match number {
                1 => field.each_int(|size| {
                    if shape.len() == MAX_AXES {
                        return malformed!("a tensor has more than {MAX_AXES} axes");
                    }
                    match usize::try_from(size) {
                        Ok(size) => shape.push(size),
                        Err(_) => return malformed!("a tensor has an axis of {size}"),
                    }
                    Ok(())
                })?,
                2 => onnx_type = field.int()?,
                3 => return unsupported!("tensors in segments"),
                4 => floats.push(field.words()?),
                5 => int32s.push(field),
                7 => int64s.push(field),
                8 => name = self.text(field)?,
                9 => raw = Some(field.bytes()?),
                13 => return unsupported!("tensor `{name}` is in another file; save the model as one file"),
                14 if field.int()? == 1 => {
                    return unsupported!("a tensor's data is in another file; save the model as one file");
                }
                _ => {}
            }
        }
        let dtype = match onnx_type {
            1 => DType::F32,
            2 | 9 => DType::U8, // UINT8, BOOL
            6 => DType::I32,
            7 => DType::I64,
            10 => DType::F16,
            16 => DType::BF16,
            0 => return malformed!("tensor `{name}` has no element type"),
            // Refused when somebody asks for it; until then it may sit in the file.
            _ => return Ok((name, OnnxTensor { onnx_type, dtype: None, shape, data: Bytes::new() })),
        };
        let Some(size) = element_count(&shape).and_then(|n| dtype.bytes_for(n)) else {
            return malformed!("tensor `{name}` has the impossible shape {shape:?}");
        };
        let data = match (raw, dtype) {
            (Some(raw), _) => self.file.slice_ref(raw),
            (None, DType::F32) => match floats.as_slice() {
                [all] => self.file.slice_ref(all),
                parts => parts.concat().into(),
            },
            (None, DType::I64) => numbers(&int64s, size, i64::to_le_bytes)?,
            (None, DType::I32) => numbers(&int32s, size, |v| (v as i32).to_le_bytes())?,
            (None, DType::F16 | DType::BF16) => numbers(&int32s, size, |v| (v as u16).to_le_bytes())?,
            (None, _) => numbers(&int32s, size, |v| [v as u8])?,
        };
        if data.len() != size {
            return malformed!(
                "tensor `{name}`, {dtype} {shape:?}, has {} bytes instead of {size}",
                data.len()
            );
        }
        Ok((name, OnnxTensor { onnx_type, dtype: Some(dtype), shape, data }))
    }
}

/// Varints as little-endian numbers. Stops soon after `size` bytes: there should not be more.
fn numbers<const N: usize>(
    fields: &[Field<'_>],
    size: usize,
    encode: fn(i64) -> [u8; N],
) -> Result<Bytes, Fault> {
    let mut out = Vec::new();
    for field in fields {
        field.each_int(|value| {
            if out.len() >= size {
                return malformed!("a tensor has more than {size} bytes of data");
            }
            out.extend(encode(value));
            Ok(())
        })?;
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WeightErrorKind;

    // A tiny writer of the wire format, for models made by hand.

    fn varint(mut value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
        out
    }

    fn int(number: u64, value: i64) -> Vec<u8> {
        [varint(number << 3), varint(value as u64)].concat()
    }

    fn bytes(number: u64, content: impl AsRef<[u8]>) -> Vec<u8> {
        let content = content.as_ref();
        [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn tensor(name: &str, onnx_type: i64, dims: &[i64], data: Vec<u8>) -> Vec<u8> {
        let dims = dims.iter().flat_map(|&d| int(1, d)).collect();
        [dims, int(2, onnx_type), data, bytes(8, name)].concat()
    }

    fn raw(values: &[f32]) -> Vec<u8> {
        bytes(9, f32s(values))
    }

    fn node(op: &str, name: &str, inputs: &[&str], output: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
        let inputs = inputs.iter().flat_map(|i| bytes(1, i)).collect();
        let attributes = attributes.iter().flat_map(|a| bytes(5, a)).collect();
        [inputs, bytes(2, output), bytes(3, name), bytes(4, op), attributes].concat()
    }

    fn model(graph: &[Vec<u8>]) -> Vec<u8> {
        [int(1, 9), bytes(8, int(2, 19)), bytes(7, graph.concat())].concat()
    }

    fn sample() -> Vec<u8> {
        let half = [varint(0x3c00), varint(0x4000)].concat();
        let epsilon = [bytes(1, "epsilon"), vec![0x15], f32s(&[1e-6]), int(20, 1)].concat();
        let perm = [bytes(1, "perm"), int(8, 0), bytes(8, [2, 1]), int(20, 7)].concat();
        let mode = [bytes(1, "mode"), bytes(4, "edge"), int(20, 3)].concat();
        let axis = [bytes(1, "axis"), int(3, -1), int(20, 2)].concat();
        let constant =
            [bytes(1, "value"), bytes(5, tensor("", 7, &[2], int(7, -1).repeat(2))), int(20, 4)].concat();
        let constant_float = [bytes(1, "value_float"), vec![0x15], f32s(&[16.0]), int(20, 1)].concat();
        let subgraph = [bytes(1, "then"), bytes(6, [0x0b; 40]), int(20, 5)].concat();
        model(&[
            bytes(5, tensor("w", 1, &[2, 3], raw(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))),
            bytes(5, tensor("typed", 1, &[2], bytes(4, f32s(&[7.0, 8.0])))),
            bytes(5, tensor("half", 10, &[2], bytes(5, half))),
            bytes(5, tensor("ints", 6, &[2], [int(5, -3), int(5, 4)].concat())),
            bytes(5, tensor("long", 7, &[2], bytes(7, [1, 2]))),
            bytes(5, tensor("double", 11, &[1], bytes(9, [0; 8]))),
            bytes(5, tensor("truth", 9, &[2], bytes(9, [0, 1]))),
            bytes(1, node("Constant", "/c", &[], "c", &[constant])),
            bytes(1, node("Constant", "/d", &[], "d", &[constant_float])),
            bytes(1, node("MatMul", "/a/MatMul", &["x", "w"], "y", &[])),
            bytes(1, node("Add", "/a/Add", &["y", "y"], "z", &[epsilon, perm, mode, axis])),
            bytes(1, node("If", "", &["z"], "out", &[subgraph])),
            bytes(11, bytes(1, "x")),
            bytes(11, bytes(1, "w")),
            bytes(12, bytes(1, "out")),
        ])
    }

    fn read(file: Vec<u8>) -> Result<OnnxModel, WeightError> {
        OnnxModel::from_bytes("test", file)
    }

    #[test]
    fn tensors_of_all_kinds() {
        let model = read(sample()).unwrap();
        assert_eq!(model.opset(), 19);
        let cases: [(&str, &[usize], &[f32]); 8] = [
            ("w", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            ("typed", &[2], &[7.0, 8.0]),
            ("half", &[2], &[1.0, 2.0]),
            ("ints", &[2], &[-3.0, 4.0]),
            ("long", &[2], &[1.0, 2.0]),
            ("truth", &[2], &[0.0, 1.0]),
            ("c", &[2], &[-1.0, -1.0]),
            ("d", &[], &[16.0]),
        ];
        for (name, shape, values) in cases {
            let tensor = model.get(name).unwrap();
            assert_eq!((tensor.shape.as_slice(), tensor.to_f32().as_slice()), (shape, values), "{name}");
        }
        let error = model.get("double").unwrap_err();
        assert!(
            error.kind() == WeightErrorKind::Unsupported && error.to_string().contains("DOUBLE"),
            "{error}"
        );
    }

    #[test]
    fn raw_data_is_not_copied() {
        let file = Bytes::from(sample());
        let range = file.as_ptr_range();
        let model = OnnxModel::from_bytes("test", file.clone()).unwrap();
        for name in ["w", "typed"] {
            assert!(range.contains(&model.get(name).unwrap().bytes.as_ptr()), "{name}");
        }
    }

    #[test]
    fn graph_can_be_walked() {
        let model = read(sample()).unwrap();
        assert_eq!((model.inputs(), model.outputs()), (&["x".to_owned()][..], &["out".to_owned()][..]));
        assert_eq!(model.nodes().len(), 3);
        let product = model.producer("y").unwrap();
        assert_eq!((product.op_type.as_str(), product.label().as_str()), ("MatMul", "/a/MatMul (MatMul)"));
        let sum: Vec<&Node> = model.consumers("y").collect();
        assert_eq!(sum.len(), 1, "a node that reads a value twice is one consumer");
        assert_eq!(sum[0].float("epsilon"), Some(1e-6));
        assert_eq!(sum[0].ints("perm"), Some(&[0, 2, 1][..]));
        assert_eq!(sum[0].string("mode"), Some("edge"));
        assert_eq!(sum[0].int("axis"), Some(-1));
        assert_eq!(sum[0].int("mode"), None);
        assert!(model.producer("x").is_none() && model.consumers("out").next().is_none());
        assert_eq!(model.producer("out").unwrap().label(), "out (If)");
    }

    #[test]
    fn cycles_are_only_data() {
        let file = model(&[
            bytes(1, node("Add", "a", &["q"], "p", &[])),
            bytes(1, node("Add", "b", &["p"], "q", &[])),
        ]);
        assert_eq!(read(file).unwrap().producer("p").unwrap().name, "a");
    }

    #[test]
    fn refuses_lies() {
        let initializer = |t: Vec<u8>| model(&[bytes(5, t)]);
        let twice = bytes(5, tensor("w", 1, &[1], raw(&[1.0]))).repeat(2);
        let mut bomb = vec![];
        for _ in 0..200 {
            bomb = bytes(7, bomb);
        }
        let empty_nodes = model(&[bytes(1, []).repeat(MAX_ITEMS + 1)]);
        let cases: Vec<(&str, Vec<u8>, &str)> = vec![
            ("nothing", vec![], "no graph"),
            ("no opset", bytes(7, []), "operator set"),
            ("two graphs", [model(&[]), bytes(7, [])].concat(), "two graphs"),
            ("short", initializer(tensor("w", 1, &[3], raw(&[1.0]))), "4 bytes instead of 12"),
            ("long", initializer(tensor("w", 1, &[1], raw(&[1.0, 2.0]))), "8 bytes instead of 4"),
            ("no data", initializer(tensor("w", 1, &[1], vec![])), "0 bytes instead of 4"),
            ("product", initializer(tensor("w", 1, &[1 << 40, 1 << 40], raw(&[1.0]))), "impossible"),
            ("hidden", initializer(tensor("w", 1, &[1 << 40, 1 << 40, 0], vec![])), "impossible"),
            ("negative", initializer(tensor("w", 1, &[-1], raw(&[1.0]))), "axis of -1"),
            ("axes", initializer(tensor("w", 1, &[1; 17], raw(&[1.0]))), "16 axes"),
            ("many", initializer(tensor("w", 7, &[1], bytes(7, [1; 1000]))), "more than 8 bytes"),
            ("external", initializer([tensor("w", 1, &[1], vec![]), int(14, 1)].concat()), "another file"),
            ("entries", initializer([tensor("w", 1, &[1], vec![]), bytes(13, [])].concat()), "another file"),
            ("untyped", initializer(tensor("w", 0, &[1], raw(&[1.0]))), "no element type"),
            ("nameless", initializer(tensor("", 1, &[1], raw(&[1.0]))), "no name"),
            ("twice", model(&[twice]), "two tensors"),
            ("computed twice", model(&[bytes(1, node("A", "a", &[], "y", &[])).repeat(2)]), "computed twice"),
            ("deep", bomb, "no graph|bytes|protobuf|operator"),
            ("empty nodes", empty_nodes, "more than"),
        ];
        for (case, file, expected) in cases {
            let message = read(file).expect_err(case).to_string();
            assert!(expected.split('|').any(|e| message.contains(e)), "{case}: {message}");
        }
    }

    #[test]
    fn survives_damage() {
        let valid = sample();
        crate::hostile::survives(&valid, valid.len(), 1, 20_000, |bytes| {
            let model = read(bytes)?;
            for name in model.names() {
                let _ = model.get(name).map(|tensor| tensor.to_f32());
            }
            for node in model.nodes() {
                let _ = (
                    node.label(),
                    node.ints("perm"),
                    node.inputs.iter().filter_map(|i| model.producer(i)).count(),
                );
            }
            Ok(())
        });
    }
}
