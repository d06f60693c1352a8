//! The part of Python's pickle format that `torch.save` writes for dictionaries of tensors.
//!
//! A pickle is a program for a machine with a stack and numbered notes (the memo). Python's machine calls any
//! function that the program names. This one knows six names, builds values of its own and calls nothing.

use std::collections::HashMap;

use orate_files::quoted;

use crate::DType;
use crate::error::{Fault, malformed, unsupported};
use crate::tensor::element_count;

/// Most values that a program may push. A tensor takes about 25, the largest published models 3000 tensors.
const MAX_VALUES: usize = 1 << 21;

/// Most axes of a tensor.
const MAX_AXES: usize = 16;

/// Object with this number in [`Pickle::objects`].
pub(super) type Id = usize;

/// What a program pushes. Values with parts are objects, which several others may share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// Where a list of values begins.
    Mark,
    /// `None`, booleans, floats and integers of more than 64 bits. Nothing here depends on them.
    Other,
    Int(i64),
    Text(&'a str),
    Name(Name),
    Object(Id),
}

/// The names of Python that a program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// `torch._utils._rebuild_tensor_v2`
    Tensor,
    /// `torch._utils._rebuild_parameter`
    Parameter,
    /// `collections.OrderedDict`
    OrderedDict,
    /// `torch.Size`
    Size,
    /// `torch.FloatStorage` and others.
    Storage(DType),
}

/// A value with parts.
#[derive(Debug)]
pub(super) enum Object<'a> {
    Tuple(Vec<Value<'a>>),
    List(Vec<Value<'a>>),
    Dict(Vec<(Value<'a>, Value<'a>)>),
    Storage { dtype: DType, key: &'a str, len: usize },
    Tensor(Tensor<'a>),
}

/// A view of a storage. All its elements are inside, and there are no more than the storage has.
#[derive(Clone, Debug)]
pub(super) struct Tensor<'a> {
    pub dtype: DType,
    /// Name of the storage.
    pub key: &'a str,
    /// Elements of the storage.
    pub storage: usize,
    /// First element.
    pub offset: usize,
    /// Elements from the first to the last one, both included.
    pub span: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// What a program made.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    pub root: Value<'a>,
    pub objects: Vec<Object<'a>>,
    /// Number of values that were pushed.
    pub pushed: usize,
}

/// Runs a program.
pub(super) fn read(program: &[u8]) -> Result<Pickle<'_>, Fault> {
    let (stack, memo, objects) = (vec![], HashMap::new(), vec![]);
    let mut machine = Machine { program, at: 0, stack, memo, objects, pushed: 0 };
    let result = machine.run();
    let at = machine.at;
    match result {
        Ok(root) => Ok(Pickle { root, objects: machine.objects, pushed: machine.pushed }),
        Err(Fault::Malformed(problem)) => malformed!("data.pkl, before byte {at}: {problem}"),
        Err(other) => Err(other),
    }
}

struct Machine<'a> {
    program: &'a [u8],
    /// Offset of the next instruction.
    at: usize,
    stack: Vec<Value<'a>>,
    memo: HashMap<u32, Value<'a>>,
    objects: Vec<Object<'a>>,
    pushed: usize,
}

impl<'a> Machine<'a> {
    /// Runs until the program stops, and returns its result.
    fn run(&mut self) -> Result<Value<'a>, Fault> {
        loop {
            let op = self.byte()?;
            match op {
                b'.' => return self.pop(),
                0x80 => match self.byte()? {
                    2..=5 => {}
                    version => return unsupported!("data.pkl has version {version} of the pickle format"),
                },
                0x95 => drop(self.number(8)?), // a frame, which only helps to buffer
                b'(' => self.push(Value::Mark)?,
                b'N' | 0x88 | 0x89 => self.push(Value::Other)?,
                b'G' => self.bytes(8).and_then(|_| self.push(Value::Other))?,
                b'K' => self.number(1).and_then(|n| self.push(Value::Int(n as i64)))?,
                b'M' => self.number(2).and_then(|n| self.push(Value::Int(n as i64)))?,
                b'J' => self.number(4).and_then(|n| self.push(Value::Int((n as u32 as i32).into())))?,
                0x8a => self.long()?,
                b'X' => self.text(4)?,
                0x8c => self.text(1)?,
                0x8d => self.text(8)?,
                b')' => self.object(Object::Tuple(vec![]))?,
                b']' => self.object(Object::List(vec![]))?,
                b'}' => self.object(Object::Dict(vec![]))?,
                0x85..=0x87 => {
                    let from = self.stack.len().checked_sub(usize::from(op - 0x84));
                    let Some(from) = from.filter(|n| !self.stack[*n..].contains(&Value::Mark)) else {
                        return malformed!("a tuple has too few values");
                    };
                    let values = self.stack.split_off(from);
                    self.object(Object::Tuple(values))?;
                }
                b't' => {
                    let values = self.pop_to_mark()?;
                    self.object(Object::Tuple(values))?;
                }
                b'a' => {
                    let value = self.pop()?;
                    self.top_list()?.push(value);
                }
                b'e' => {
                    let values = self.pop_to_mark()?;
                    self.top_list()?.extend(values);
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.top_dict()?.push((key, value));
                }
                b'u' => {
                    let values = self.pop_to_mark()?;
                    let (pairs, rest) = values.as_chunks::<2>();
                    if !rest.is_empty() {
                        return malformed!("a key has no value");
                    }
                    self.top_dict()?.extend(pairs.iter().map(|[key, value]| (*key, *value)));
                }
                b'q' => self.number(1).and_then(|n| self.remember(n as u32))?,
                b'r' => self.number(4).and_then(|n| self.remember(n as u32))?,
                0x94 => self.remember(self.memo.len() as u32)?,
                b'h' => self.number(1).and_then(|n| self.recall(n as u32))?,
                b'j' => self.number(4).and_then(|n| self.recall(n as u32))?,
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.name(module, name)?;
                }
                0x93 => match (self.pop()?, self.pop()?) {
                    (Value::Text(name), Value::Text(module)) => self.name(module, name)?,
                    _ => return malformed!("a name is not text"),
                },
                b'Q' => self.storage()?,
                b'R' => self.call()?,
                b'b' => {
                    // Attributes of an `OrderedDict`, such as the versions of modules.
                    self.pop()?;
                    self.top_dict()?;
                }
                other => {
                    return unsupported!(
                        "instruction 0x{other:02x} in data.pkl: only tensors, dictionaries and lists are read"
                    );
                }
            }
        }
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        match self.program[self.at..].get(..len) {
            Some(bytes) => {
                self.at += len;
                Ok(bytes)
            }
            None => malformed!("it ends inside an instruction; the file is damaged"),
        }
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        Ok(self.bytes(1)?[0])
    }

    /// A little-endian number of `len` bytes.
    fn number(&mut self, len: usize) -> Result<u64, Fault> {
        Ok(self.bytes(len)?.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
    }

    /// A signed number of any length.
    fn long(&mut self) -> Result<(), Fault> {
        let len = self.byte()?;
        let bytes = self.bytes(len.into())?;
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut full = [if negative { 0xff } else { 0 }; 8];
        let Some(part) = full.get_mut(..bytes.len()) else { return self.push(Value::Other) };
        part.copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(full)))
    }

    /// Pushes a text whose length has `width` bytes.
    fn text(&mut self, width: usize) -> Result<(), Fault> {
        let len = self.number(width)?;
        let bytes = self.bytes(usize::try_from(len).unwrap_or(usize::MAX))?;
        match std::str::from_utf8(bytes) {
            Ok(text) => self.push(Value::Text(text)),
            Err(e) => malformed!("a text is not UTF-8: {e}"),
        }
    }

    /// Text up to the end of the line.
    fn line(&mut self) -> Result<&'a str, Fault> {
        let rest = &self.program[self.at..];
        let Some(len) = rest.iter().position(|b| *b == b'\n') else {
            return malformed!("a name has no end");
        };
        self.at += len + 1;
        std::str::from_utf8(&rest[..len]).map_err(|e| Fault::Malformed(format!("a name is not UTF-8: {e}")))
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), Fault> {
        if self.pushed == MAX_VALUES {
            return unsupported!("more than {MAX_VALUES} values in data.pkl");
        }
        self.pushed += 1;
        self.stack.push(value);
        Ok(())
    }

    fn object(&mut self, object: Object<'a>) -> Result<(), Fault> {
        self.push(Value::Object(self.objects.len()))?;
        self.objects.push(object);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value<'a>, Fault> {
        match self.stack.pop() {
            None | Some(Value::Mark) => malformed!("a value is missing"),
            Some(value) => Ok(value),
        }
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value<'a>>, Fault> {
        let Some(mark) = self.stack.iter().rposition(|v| *v == Value::Mark) else {
            return malformed!("a mark is missing");
        };
        let values = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(values)
    }

    fn top_list(&mut self) -> Result<&mut Vec<Value<'a>>, Fault> {
        match self.top_object() {
            Some(Object::List(values)) => Ok(values),
            _ => malformed!("values are added to something that is not a list"),
        }
    }

    fn top_dict(&mut self) -> Result<&mut Vec<(Value<'a>, Value<'a>)>, Fault> {
        match self.top_object() {
            Some(Object::Dict(pairs)) => Ok(pairs),
            _ => malformed!("keys are added to something that is not a dictionary"),
        }
    }

    fn top_object(&mut self) -> Option<&mut Object<'a>> {
        let Some(Value::Object(id)) = self.stack.last() else { return None };
        Some(&mut self.objects[*id])
    }

    fn remember(&mut self, number: u32) -> Result<(), Fault> {
        let value = self.pop()?;
        self.stack.push(value);
        self.memo.insert(number, value);
        Ok(())
    }

    fn recall(&mut self, number: u32) -> Result<(), Fault> {
        match self.memo.get(&number) {
            Some(value) => self.push(*value),
            None => malformed!("value {number} was not kept"),
        }
    }

    /// Pushes a name of Python, if it is harmless.
    fn name(&mut self, module: &str, name: &str) -> Result<(), Fault> {
        let known = match (module, name) {
            ("torch._utils", "_rebuild_tensor_v2") => Name::Tensor,
            ("torch._utils", "_rebuild_parameter") => Name::Parameter,
            ("collections", "OrderedDict") => Name::OrderedDict,
            ("torch", "Size") => Name::Size,
            ("torch", "FloatStorage") => Name::Storage(DType::F32),
            ("torch", "HalfStorage") => Name::Storage(DType::F16),
            ("torch", "BFloat16Storage") => Name::Storage(DType::BF16),
            ("torch", "DoubleStorage") => Name::Storage(DType::F64),
            ("torch", "LongStorage") => Name::Storage(DType::I64),
            ("torch", "IntStorage") => Name::Storage(DType::I32),
            ("torch", "ByteStorage" | "BoolStorage") => Name::Storage(DType::U8),
            _ => {
                return unsupported!(
                    "{} in data.pkl: only tensors, dictionaries and lists are read, and no function is called",
                    quoted(&format!("{module}.{name}"))
                );
            }
        };
        self.push(Value::Name(known))
    }

    fn tuple(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match value {
            Value::Object(id) => match &self.objects[id] {
                Object::Tuple(values) => Some(values),
                _ => None,
            },
            _ => None,
        }
    }

    /// Replaces the description of a storage by the storage.
    fn storage(&mut self) -> Result<(), Fault> {
        let description = self.pop()?;
        let storage = match self.tuple(description) {
            Some(
                &[
                    Value::Text("storage"),
                    Value::Name(Name::Storage(dtype)),
                    Value::Text(key),
                    _,
                    Value::Int(n),
                ],
            ) => usize::try_from(n).ok().map(|len| Object::Storage { dtype, key, len }),
            _ => None,
        };
        match storage {
            Some(storage) => self.object(storage),
            None => malformed!("a storage is not described as torch.save does"),
        }
    }

    /// Calls a function with a tuple of arguments.
    fn call(&mut self) -> Result<(), Fault> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Some(arguments), Value::Name(function)) = (self.tuple(arguments), function) else {
            return malformed!("something is called that is not a function");
        };
        match (function, arguments) {
            (Name::OrderedDict, []) => self.object(Object::Dict(vec![])),
            (Name::Size, &[sizes @ Value::Object(_)]) => self.push(sizes),
            (Name::Parameter, &[Value::Object(tensor), _, _])
                if matches!(self.objects[tensor], Object::Tensor(_)) =>
            {
                self.push(Value::Object(tensor))
            }
            (Name::Tensor, &[Value::Object(storage), Value::Int(offset), sizes, strides, _, _, ..]) => {
                let Object::Storage { dtype, key, len } = self.objects[storage] else {
                    return malformed!("a tensor has no storage");
                };
                let axes = |values| {
                    let values = self.tuple(values).filter(|values| values.len() <= MAX_AXES)?;
                    values
                        .iter()
                        .map(|n| if let Value::Int(n) = n { (*n).try_into().ok() } else { None })
                        .collect()
                };
                let view =
                    Tensor::new(dtype, key, len, usize::try_from(offset).ok(), axes(sizes), axes(strides));
                match view {
                    Some(tensor) => self.object(Object::Tensor(tensor)),
                    None => malformed!("a tensor does not fit into its storage of {len} values"),
                }
            }
            _ => malformed!("{function:?} is called with other arguments than torch.save writes"),
        }
    }
}

impl<'a> Tensor<'a> {
    /// Checks that all elements are inside the storage, and that they are no more than it has: views that
    /// repeat elements would need far more memory than the file.
    fn new(
        dtype: DType,
        key: &'a str,
        storage: usize,
        offset: Option<usize>,
        shape: Option<Vec<usize>>,
        strides: Option<Vec<usize>>,
    ) -> Option<Self> {
        let (offset, shape, strides) = (offset?, shape?, strides?);
        let count =
            element_count(&shape).filter(|count| *count <= storage && shape.len() == strides.len())?;
        let mut span = usize::from(count > 0);
        if count > 0 {
            for (size, stride) in shape.iter().zip(&strides) {
                span = span.checked_add((size - 1).checked_mul(*stride)?)?;
            }
        }
        offset.checked_add(span).filter(|end| *end <= storage)?;
        Some(Self { dtype, key, storage, offset, span, shape, strides })
    }
}
