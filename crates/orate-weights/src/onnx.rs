//! ONNX models: their weights, and enough of the graph to find what a weight is for.
//!
//! The file is mapped; a tensor's `raw_data`, which is what exporters write, stays where it is. Initializers
//! and the outputs of `Constant` nodes are both tensors here, as exporters use either. Subgraphs (`If`,
//! `Loop`) are not read.

mod proto;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use bytes::Bytes;
use orate_files::quoted;

use self::proto::{AttributeProto, AttributeType, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use crate::error::{Fault, malformed, unsupported};
use crate::source::Named;
use crate::tensor::element_count;
use crate::{DType, TensorInfo, TensorRef, WeightError, WeightSource, file};

const FORMAT: &str = "ONNX";
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
    /// Usually the path of the exported module; may be empty.
    pub name: String,
    /// `Conv`, `MatMul` …
    pub op_type: String,
    /// Empty for standard operations.
    pub domain: String,
    /// Names of values; an empty name is an omitted input.
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
    /// A subgraph, strings, or a newer type.
    Other,
}

/// A tensor as stored in the file.
#[derive(Clone, Debug)]
pub struct OnnxTensor {
    /// Number of the element type in ONNX.
    onnx_type: i32,
    /// `None` for an unsupported element type.
    dtype: Option<DType>,
    shape: Vec<usize>,
    data: Bytes,
}

impl OnnxTensor {
    /// Borrows the tensor; `None` if its element type is not supported.
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

    /// Label for messages: the operation, and the name or else the first output.
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

    /// Reads a model that is in memory already. Error messages call it `origin`.
    pub fn from_bytes(origin: &str, bytes: impl Into<Bytes>) -> Result<Self, WeightError> {
        let model = proto::decode(bytes.into()).and_then(|model| Self::new(origin, model));
        model.map_err(|fault| fault.at(origin, FORMAT))
    }

    /// Version of the standard operator set.
    pub fn opset(&self) -> i64 {
        self.opset
    }

    /// All nodes but the constants, in the order of the file (which is one in which they can run).
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Names of the graph's inputs, without those that have an initializer.
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

    fn new(origin: &str, model: ModelProto) -> Result<Self, Fault> {
        let opset = model.opset_import.iter().rfind(|set| matches!(set.domain.as_str(), "" | "ai.onnx"));
        let opset = opset.map(|set| set.version);
        let mut graphs = model.graph.into_iter();
        let (graph, opset) = match (graphs.next(), graphs.next(), opset) {
            (Some(graph), None, Some(opset)) => (graph, opset),
            (None, ..) => return malformed!("it holds no graph"),
            (_, Some(_), _) => return malformed!("it holds two graphs"),
            (.., None) => return malformed!("it does not say which operator set it uses"),
        };
        if !graph.sparse_initializer.is_empty() {
            return unsupported!("sparse initializers");
        }
        let mut tensors = Named::new();
        for tensor in graph.initializer {
            if tensor.name.is_empty() {
                return malformed!("an initializer has no name");
            }
            if let Err(name) = tensors.insert(tensor.name.clone(), OnnxTensor::new(tensor)?) {
                return malformed!("two tensors are named {name}", name = quoted(&name));
            }
        }
        let mut nodes = Vec::with_capacity(graph.node.len());
        for node in graph.node {
            let mut node = Node::new(node)?;
            if node.op_type != "Constant" {
                nodes.push(node);
                continue;
            }
            if let [output] = node.outputs.as_mut_slice()
                && let Some((_, value)) = node.attributes.pop()
                && let Some(tensor) = constant_tensor(value)
            {
                if let Err(name) = tensors.insert(std::mem::take(output), tensor) {
                    return malformed!("two tensors are named {name}", name = quoted(&name));
                }
            } else {
                nodes.push(node); // not a tensor, such as a string
            }
        }
        let mut producers = HashMap::new();
        let mut consumers: HashMap<String, Vec<usize>> = HashMap::new();
        for (i, node) in nodes.iter().enumerate() {
            for output in node.outputs.iter().filter(|name| !name.is_empty()) {
                if tensors.get(output).is_some() || producers.insert(output.clone(), i).is_some() {
                    return malformed!("value {output} is computed twice", output = quoted(output));
                }
            }
            for input in node.inputs.iter().filter(|name| !name.is_empty()) {
                let readers = consumers.entry(input.clone()).or_default();
                if readers.last() != Some(&i) {
                    readers.push(i);
                }
            }
        }
        let inputs = names(graph.input).filter(|name| tensors.get(name).is_none()).collect();
        let outputs = names(graph.output).collect();
        Ok(Self { origin: origin.to_owned(), opset, nodes, tensors, inputs, outputs, producers, consumers })
    }
}

impl WeightSource for OnnxModel {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        let tensor = self.tensors.get(name).ok_or_else(|| self.missing(name))?;
        tensor.view().ok_or_else(|| WeightError::Unsupported {
            origin: self.origin.clone(),
            problem: format!(
                "tensor {name} has ONNX element type {}",
                type_name(tensor.onnx_type),
                name = quoted(name)
            ),
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

fn names(values: Vec<ValueInfoProto>) -> impl Iterator<Item = String> {
    values.into_iter().map(|value| value.name)
}

/// The tensor of a `Constant` node.
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

fn type_name(onnx_type: i32) -> String {
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

impl Node {
    fn new(node: NodeProto) -> Result<Self, Fault> {
        let NodeProto { input: inputs, output: outputs, name, op_type, attribute, domain } = node;
        let mut seen = HashSet::new();
        if let Some(twice) = attribute.iter().find(|attribute| !seen.insert(attribute.name.as_str())) {
            return malformed!(
                "node {name} has two attributes {}",
                quoted(&twice.name),
                name = quoted(&name)
            );
        }
        let attributes = attribute.into_iter().map(attribute_value).collect::<Result<_, _>>()?;
        Ok(Self { name, op_type, domain, inputs, outputs, attributes })
    }
}

/// An attribute's name and value.
fn attribute_value(attribute: AttributeProto) -> Result<(String, Attribute), Fault> {
    let AttributeProto { name, f, i, s, t, floats, ints, r#type } = attribute;
    let value = match AttributeType::try_from(r#type) {
        Ok(AttributeType::Float) => Attribute::Float(f),
        Ok(AttributeType::Int) => Attribute::Int(i),
        // A string need not be UTF-8; one that is not becomes `Other`.
        Ok(AttributeType::String) => match std::str::from_utf8(&s) {
            Ok(text) => Attribute::String(text.to_owned()),
            Err(_) => Attribute::Other,
        },
        Ok(AttributeType::Tensor) => match t {
            Some(tensor) => Attribute::Tensor(OnnxTensor::new(*tensor)?),
            None => {
                return malformed!(
                    "attribute {name} should hold a tensor, but does not",
                    name = quoted(&name)
                );
            }
        },
        Ok(AttributeType::Floats) => Attribute::Floats(floats),
        Ok(AttributeType::Ints) => Attribute::Ints(ints),
        Ok(AttributeType::Undefined) => {
            return malformed!("attribute {name} has no type", name = quoted(&name));
        }
        Err(_) => Attribute::Other,
    };
    Ok((name, value))
}

impl OnnxTensor {
    fn new(tensor: TensorProto) -> Result<Self, Fault> {
        let TensorProto { dims, data_type: onnx_type, name, raw_data, float_data, int32_data, .. } = &tensor;
        if tensor.segment.is_some() {
            return unsupported!("tensors in segments");
        }
        if tensor.data_location == 1 || !tensor.external_data.is_empty() {
            return unsupported!(
                "tensor {name} is in another file; save the model as one file",
                name = quoted(name)
            );
        }
        if dims.len() > MAX_AXES {
            return malformed!("tensor {name} has more than {MAX_AXES} axes", name = quoted(name));
        }
        let mut shape = Vec::with_capacity(dims.len());
        for &size in dims {
            match usize::try_from(size) {
                Ok(size) => shape.push(size),
                Err(_) => return malformed!("tensor {name} has an axis of {size}", name = quoted(name)),
            }
        }
        let onnx_type = *onnx_type;
        let dtype = match onnx_type {
            1 => DType::F32,
            2 | 9 => DType::U8, // UINT8, BOOL
            6 => DType::I32,
            7 => DType::I64,
            10 => DType::F16,
            16 => DType::BF16,
            0 => return malformed!("tensor {name} has no element type", name = quoted(name)),
            // Refused when it is read; a file may hold such tensors.
            _ => return Ok(Self { onnx_type, dtype: None, shape, data: Bytes::new() }),
        };
        let Some(size) = element_count(&shape).and_then(|n| dtype.bytes_for(n)) else {
            return malformed!("tensor {name} has the impossible shape {shape:?}", name = quoted(name));
        };
        let data = match (raw_data, dtype) {
            (Some(raw), _) => raw.clone(),
            (None, DType::F32) => little_endian(float_data, |v| v.to_le_bytes()),
            (None, DType::I64) => little_endian(&tensor.int64_data, |v| v.to_le_bytes()),
            (None, DType::I32) => little_endian(int32_data, |v| v.to_le_bytes()),
            (None, DType::F16 | DType::BF16) => little_endian(int32_data, |v| (v as u16).to_le_bytes()),
            (None, _) => little_endian(int32_data, |v| [v as u8]),
        };
        if data.len() != size {
            return malformed!(
                "tensor {name}, {dtype} {shape:?}, has {} bytes instead of {size}",
                data.len(),
                name = quoted(name)
            );
        }
        Ok(Self { onnx_type, dtype: Some(dtype), shape, data })
    }
}

fn little_endian<T: Copy, const N: usize>(values: &[T], encode: impl Fn(T) -> [u8; N]) -> Bytes {
    values.iter().flat_map(|&value| encode(value)).collect()
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
        for name in ["w", "truth"] {
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
        let empty_nodes = model(&[bytes(1, []).repeat(proto::MAX_FIELDS)]);
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
            ("many", initializer(tensor("w", 7, &[1], bytes(7, [1; 1000]))), "8000 bytes instead of 8"),
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
