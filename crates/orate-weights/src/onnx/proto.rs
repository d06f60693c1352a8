//! The messages of `onnx.proto`, as far as weights and their graph need them.
//!
//! Only fields that somebody reads are declared; prost skips the rest, subgraphs among them. Bytes stay in
//! the file that they were read from. Field numbers are the standard's.

use bytes::Bytes;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};

use crate::error::{Fault, malformed, unsupported};

/// Fields that the messages of one file may have. The largest model here has about 12,000. An empty message
/// takes two bytes in a file and a few hundred in memory, so this is what bounds the memory of a file made of
/// them.
pub(super) const MAX_FIELDS: usize = 1 << 18;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelProto {
    /// There is one. As a list, so that two are seen and not merged.
    #[prost(message, repeated, tag = "7")]
    pub graph: Vec<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OperatorSetIdProto {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Looked at for being there.
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub sparse_initializer: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    pub domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, tag = "2")]
    pub f: f32,
    #[prost(int64, tag = "3")]
    pub i: i64,
    #[prost(bytes = "bytes", tag = "4")]
    pub s: Bytes,
    #[prost(message, optional, boxed, tag = "5")]
    pub t: Option<Box<TensorProto>>,
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// An [`AttributeType`], or something newer.
    #[prost(enumeration = "AttributeType", tag = "20")]
    pub r#type: i32,
}

/// Which field of an [`AttributeProto`] holds its value. Kinds that are not read have no name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum AttributeType {
    Undefined = 0,
    Float = 1,
    Int = 2,
    String = 3,
    Tensor = 4,
    Floats = 6,
    Ints = 7,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Looked at for being there.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub segment: Option<Bytes>,
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Narrower integers and the bits of 16-bit floats, too.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub name: String,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    /// Looked at for being there.
    #[prost(bytes = "bytes", repeated, tag = "13")]
    pub external_data: Vec<Bytes>,
    /// 1 stands for "in another file".
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

/// Reads a model. A file with too many fields is refused before anything is built of it.
pub(super) fn decode(file: Bytes) -> Result<ModelProto, Fault> {
    count_fields(&MODEL, &file, &mut 0)?;
    Ok(ModelProto::decode(file)?)
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// The messages that a message may hold, by field number.
struct Inner(&'static [(u32, &'static Inner)]);

static MODEL: Inner = Inner(&[(7, &GRAPH), (8, &LEAF)]);
static GRAPH: Inner = Inner(&[(1, &NODE), (5, &LEAF), (11, &LEAF), (12, &LEAF)]);
static NODE: Inner = Inner(&[(5, &ATTRIBUTE)]);
static ATTRIBUTE: Inner = Inner(&[(5, &LEAF)]);
/// A message that holds no others: a tensor, a value's name, an operator set.
static LEAF: Inner = Inner(&[]);

/// Adds the fields of a message and of all within it to `count`, without building anything.
fn count_fields(message: &Inner, mut bytes: &[u8], count: &mut usize) -> Result<(), Fault> {
    while !bytes.is_empty() {
        let (tag, wire_type) = decode_key(&mut bytes)?;
        *count += 1;
        if *count > MAX_FIELDS {
            return unsupported!("more than {MAX_FIELDS} fields");
        }
        let inner = message.0.iter().find(|(field, _)| *field == tag);
        if let (Some((_, inner)), WireType::LengthDelimited) = (inner, wire_type) {
            let len = decode_varint(&mut bytes)?;
            let Some((field, rest)) = usize::try_from(len).ok().and_then(|len| bytes.split_at_checked(len))
            else {
                return malformed!("a field of {len} bytes, but only {} are left", bytes.len());
            };
            count_fields(inner, field, count)?;
            bytes = rest;
        } else {
            skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that repeats one field of two bytes inside the messages of `path`, outermost first.
    fn repeated(path: &[u8], field: u8, times: usize) -> Bytes {
        let mut bytes = [field << 3 | 2, 0].repeat(times);
        for tag in path.iter().rev() {
            let mut outer = vec![tag << 3 | 2];
            prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
            outer.extend(bytes);
            bytes = outer;
        }
        bytes.into()
    }

    #[test]
    fn fields_are_bounded_in_every_message() {
        let places: [(&[u8], u8); 9] = [
            (&[], 7),
            (&[], 8),
            (&[7], 1),
            (&[7], 5),
            (&[7], 11),
            (&[7, 1], 1),
            (&[7, 1], 5),
            (&[7, 5], 13),
            (&[7, 1, 5, 5], 13),
        ];
        for (path, field) in places {
            assert!(decode(repeated(path, field, MAX_FIELDS - path.len())).is_ok(), "{path:?} {field}");
            let error = decode(repeated(path, field, MAX_FIELDS + 1 - path.len())).unwrap_err();
            assert!(matches!(error, Fault::Unsupported(_)), "{path:?} {field}: {error:?}");
        }
    }

    #[test]
    fn damaged_fields_are_errors() {
        // Cut short, a group that does not end, wire type 7, field 0, a number without an end, a graph that
        // is a number.
        let cases: [&[u8]; 6] = [&[0x3a, 5, 0], &[0x0b], &[0x0f, 0], &[0x00, 1], &[0x08, 0x80], &[0x38, 1]];
        for bytes in cases {
            let error = decode(Bytes::from_static(bytes)).unwrap_err();
            assert!(matches!(error, Fault::Malformed(_)), "{bytes:?}: {error:?}");
        }
    }
}
