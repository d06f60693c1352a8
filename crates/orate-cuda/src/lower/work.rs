//! One launch of a kernel, whose arguments name places until a session provides addresses.

use crate::driver::{DevicePointer, Tensor};
use crate::machine_code::Name;
use orate_graph::{DeviceError, Place, Span};

/// Threads per block of pointwise kernels.
const THREADS: u32 = 256;

/// Target of a kernel's pointer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pointer {
    /// Null: a missing optional operand.
    Null,
    /// A value of the plan.
    Place(Place),
    /// A weight, at a fixed address.
    Weight(DevicePointer),
    /// A run-time scalar, by its index in the plan.
    Scalar(usize),
}

impl Pointer {
    /// The range of some bytes from there on, if it is in the plan's memory.
    pub fn span(self, bytes: usize) -> Option<Span> {
        match self {
            Pointer::Place(place) => place.span(bytes),
            _ => None,
        }
    }

    /// Elements of four bytes from the beginning of a range, if it is inside.
    pub fn offset_in(self, span: &Span) -> Option<usize> {
        let at = self.span(4)?;
        span.overlaps(&at).then(|| (at.begin - span.begin) / 4)
    }

    /// The place `elements` f32 elements further on.
    pub fn after(self, elements: usize) -> Pointer {
        match self {
            Pointer::Place(Place::Arena(at)) => Pointer::Place(Place::Arena(at + 4 * elements)),
            Pointer::Place(Place::Buffer(i, at)) => Pointer::Place(Place::Buffer(i, at + 4 * elements)),
            other => other,
        }
    }
}

/// Addresses of one session: everything that the kernels of a plan receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub arena: DevicePointer,
    pub buffers: Vec<DevicePointer>,
    /// 0 for scalars that the plan does not read.
    pub scalars: Vec<DevicePointer>,
    /// Those of chains; 0 if there are none.
    pub slots: DevicePointer,
}

impl Addresses {
    pub(super) fn of(&self, pointer: Pointer) -> DevicePointer {
        match pointer {
            Pointer::Null | Pointer::Place(Place::Nowhere) => 0,
            Pointer::Place(Place::Arena(offset)) => self.arena + offset as u64,
            Pointer::Place(Place::Buffer(i, offset)) => self.buffers[i] + offset as u64,
            Pointer::Weight(at) => at,
            Pointer::Scalar(i) => self.scalars[i],
        }
    }
}

/// One launch of a kernel. The kernel takes a struct: descriptions of tensors, pointers, then 32-bit words.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    pub program: &'static str,
    pub function: &'static str,
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared: u32,
    pub cluster: u32,
    /// Tensors that it copies by hardware, each with the index of its pointer.
    pub tensors: Vec<(usize, Tensor)>,
    pub pointers: Vec<Pointer>,
    pub words: Vec<u32>,
    /// For a matmul: size of its weights in bytes.
    pub weight_bytes: u32,
}

impl Work {
    /// The kernel that is launched.
    pub fn kernel(&self) -> Name {
        (self.program, self.function)
    }

    /// Returns the struct that the kernel takes.
    pub fn arguments(&self, addresses: &Addresses) -> Result<Vec<u64>, DeviceError> {
        let mut all = vec![];
        for (pointer, tensor) in &self.tensors {
            all.extend(tensor.at(addresses.of(self.pointers[*pointer]))?);
        }
        all.extend(self.pointers.iter().map(|p| addresses.of(*p)));
        all.extend(
            self.words.chunks(2).map(|w| u64::from(w[0]) | u64::from(w.get(1).copied().unwrap_or(0)) << 32),
        );
        Ok(all)
    }

    /// A pointwise launch over `len` elements.
    pub(super) fn each(program: &'static str, function: &'static str, len: usize) -> Work {
        Work {
            program,
            function,
            grid: [(len as u32).div_ceil(THREADS).max(1), 1, 1],
            threads: THREADS,
            shared: 0,
            cluster: 1,
            tensors: vec![],
            pointers: vec![],
            words: vec![],
            weight_bytes: 0,
        }
    }

    /// Sets a scalar on the device.
    pub fn set_scalar(scalar: usize, value: u32) -> Work {
        Work {
            grid: [1, 1, 1],
            threads: 1,
            pointers: vec![Pointer::Scalar(scalar)],
            words: vec![value, 0],
            ..Work::each("copy", "set_scalar", 1)
        }
    }
}

/// Bits of a number, as a word for a kernel.
pub(super) fn bits(x: f32) -> u32 {
    x.to_bits()
}
