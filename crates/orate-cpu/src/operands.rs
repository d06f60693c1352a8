//! Operands of a kernel in one step: slices of a session's memory. All unsafe code of the executor is here.
//!
//! A step's result is borrowed exclusively and its operands shared, so they must not overlap. The memory plan
//! separates values that are live at the same time, with one exception: the result of an op that works in
//! place (`WriteRows`, `Mark`) is the memory of its operand 0, a state. A kernel gets that memory only as
//! [`Operands::out`], never as an operand.
//!
//! [`Places::new`] checks this for each step when a plan is loaded, and each access is checked against the
//! size of its block, so a bug in the planner panics instead of aliasing.

use crate::memory::{Block, CpuMemory};
use crate::op::Problem;
use crate::{Isa, Team};
use orate_graph::{BufferKind, DType, DeviceError, Factor, Node, Place, Plan, Scalar, Value};
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;

/// Where a value is: `len` words of four bytes from `offset` on.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Index into [`View::bases`]: 0 is the arena; the buffers of the plan follow.
    block: usize,
    offset: usize,
    len: usize,
    dtype: DType,
}

impl Slot {
    fn new(plan: &Plan, v: Value) -> Slot {
        let info = plan.info(v);
        let (block, offset) = match plan.place(v) {
            Place::Arena(bytes) => (0, bytes / 4),
            Place::Buffer(i, bytes) => (1 + i, bytes / 4),
            Place::Nowhere => panic!("value {} of plan `{}` has no memory", v.index(), plan.name()),
        };
        Slot { block, offset, len: info.dtype.bytes_of(&info.shape) / 4, dtype: info.dtype }
    }

    fn overlaps(&self, other: &Slot) -> bool {
        self.block == other.block
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }

    /// The slot's first word.
    fn pointer(&self, bases: &[Base]) -> *mut f32 {
        let base = bases[self.block];
        assert!(
            self.offset <= base.len && self.len <= base.len - self.offset,
            "a value within its block: {self:?} of {} words",
            base.len
        );
        // SAFETY: the offset is within the block, as just checked.
        unsafe { base.pointer.add(self.offset) }
    }
}

/// Operands and result of a step.
struct Layout {
    /// Operands, without operand 0 if the op works in place.
    inputs: Vec<Slot>,
    out: Slot,
}

impl Layout {
    fn new(plan: &Plan, node: &Node) -> Layout {
        let out = Slot::new(plan, node.output);
        let read = &node.inputs[usize::from(node.op.in_place())..];
        let inputs: Vec<Slot> = read.iter().map(|v| Slot::new(plan, *v)).collect();
        for slot in &inputs {
            assert!(
                !slot.overlaps(&out),
                "{} of plan `{}` reads what it writes: {slot:?} and {out:?}",
                node.op.describe(),
                plan.name()
            );
        }
        Layout { inputs, out }
    }
}

/// A plan with the memory locations of all operands.
pub(crate) struct Places {
    plan: Plan,
    steps: Vec<Layout>,
    /// From and to: results that are copied to a buffer after the last step.
    copies: Vec<(Slot, Slot)>,
}

impl Places {
    /// # Panics
    /// The result of a step overlaps an operand that it reads, or two buffers have one name: a bug in the
    /// planner.
    pub fn new(plan: Plan) -> Places {
        let names: HashSet<&str> = plan.buffers().iter().map(|b| b.name.as_str()).collect();
        assert_eq!(names.len(), plan.buffers().len(), "buffers of a plan have distinct names");
        let steps = plan.steps().iter().map(|s| Layout::new(&plan, &s.node)).collect();
        let copy = |&(buffer, v): &(usize, Value)| {
            let from = Slot::new(&plan, v);
            (from, Slot { block: 1 + buffer, offset: 0, ..from })
        };
        let copies = plan.copies().iter().map(copy).collect();
        Places { steps, copies, plan }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// Start of a block of memory, and its length in words.
#[derive(Clone, Copy)]
pub(crate) struct Base {
    pointer: *mut f32,
    len: usize,
}

impl Base {
    fn of(block: &mut Block) -> Base {
        Base { pointer: block.pointer(), len: block.len() }
    }
}

/// Memory of a session while a plan runs in it, borrowed exclusively.
pub(crate) struct View<'a> {
    places: &'a Places,
    /// The arena, then the buffers of the plan: all different blocks.
    bases: &'a [Base],
    scratch: Base,
    scalars: Scalars<'a>,
    memory: PhantomData<&'a mut CpuMemory>,
}

impl<'a> View<'a> {
    /// Creates the buffers that the plan writes, checks those that it reads, and makes room for temporaries
    /// and for `scratch` floats.
    ///
    /// # Errors
    /// A buffer that the plan reads is missing, or has another type or shape.
    pub fn new(memory: &'a mut CpuMemory, places: &'a Places, scratch: usize) -> Result<Self, DeviceError> {
        let plan = &places.plan;
        for b in plan.buffers().iter().filter(|b| b.kind == BufferKind::Output) {
            memory.ensure(&b.name, b.dtype, &b.shape);
        }
        let CpuMemory { buffers, arena, scratch: scratch_block, bases, scalars, counters, .. } = memory;
        arena.resize(plan.arena_bytes() / 4);
        scratch_block.resize(scratch);
        bases.clear();
        bases.push(Base::of(arena));
        for b in plan.buffers() {
            match buffers.get_mut(&b.name) {
                Some(s) if s.shape == b.shape && s.dtype == b.dtype => bases.push(Base::of(&mut s.block)),
                other => {
                    let got = other.map(|s| format!("{} {}", s.dtype, s.shape));
                    return Err(DeviceError::Buffer {
                        name: b.name.clone(),
                        plan: plan.name().to_owned(),
                        got: got.unwrap_or_else(|| "nothing was written".to_owned()),
                        needed: format!("{} {}", b.dtype, b.shape),
                    });
                }
            }
        }
        counters.submissions += 1;
        Ok(View {
            places,
            bases,
            scratch: Base::of(scratch_block),
            scalars: Scalars { names: plan.scalars(), values: scalars },
            memory: PhantomData,
        })
    }

    /// Operands of step `i`.
    pub fn operands<'b>(&'b mut self, i: usize, isa: Isa, team: &'b Team) -> Operands<'b> {
        let layout = &self.places.steps[i];
        // SAFETY: the slot is within its block. `self` is borrowed exclusively for as long as the slice
        // lives, so there are no slices of other steps, and those of this one do not overlap it:
        // `Layout::new` has checked operands, and scratch is a block of its own. Any bits are a float.
        let out = unsafe { std::slice::from_raw_parts_mut(layout.out.pointer(self.bases), layout.out.len) };
        // SAFETY: the whole of a block that is not among `bases`, borrowed as exclusively as `out`.
        let scratch = unsafe { std::slice::from_raw_parts_mut(self.scratch.pointer, self.scratch.len) };
        let inputs = Inputs { slots: &layout.inputs, bases: self.bases };
        Operands { isa, team, inputs, scalars: self.scalars, out, scratch }
    }

    /// Copies results to the buffers that no step writes directly.
    pub fn copy_results(&mut self) {
        for (from, to) in &self.places.copies {
            // SAFETY: both ranges are within their blocks, have the same length, and nothing else borrows the
            // memory. They may overlap or be equal.
            unsafe { std::ptr::copy(from.pointer(self.bases), to.pointer(self.bases), from.len) };
        }
    }
}

/// Operands that a kernel gets in one step.
pub(crate) struct Operands<'a> {
    pub isa: Isa,
    pub team: &'a Team,
    pub inputs: Inputs<'a>,
    pub scalars: Scalars<'a>,
    /// The result as four-byte words: floats, or the bits of integers or compact rows. Contains the state if
    /// the op works in place; otherwise undefined values.
    pub out: &'a mut [f32],
    /// At least [`crate::op::Call::scratch`] floats of any content.
    pub scratch: &'a mut [f32],
}

/// Operands that a step reads. For an op that works in place, they are counted from operand 1 on.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    slots: &'a [Slot],
    bases: &'a [Base],
}

impl<'a> Inputs<'a> {
    /// Elements of four bytes, as `T`.
    ///
    /// # Safety
    /// `T` is a four-byte type for which all bits are valid.
    unsafe fn slice<T>(&self, i: usize) -> &'a [T] {
        let slot = &self.slots[i];
        // SAFETY: the slot is within its block, whose memory is borrowed for 'a, and `Layout::new` has
        // checked that this step writes elsewhere. The caller vouches for `T`.
        unsafe { std::slice::from_raw_parts(slot.pointer(self.bases).cast_const().cast(), slot.len) }
    }

    /// Number of operands.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Floats of operand `i`.
    pub fn floats(&self, i: usize) -> &'a [f32] {
        debug_assert_eq!(self.slots[i].dtype, DType::F32, "shape inference checks types");
        self.words(i)
    }

    /// Four-byte words of operand `i` of any type, to be copied.
    pub fn words(&self, i: usize) -> &'a [f32] {
        // SAFETY: all bits are valid floats.
        unsafe { self.slice(i) }
    }

    /// Integers of operand `i`.
    pub fn integers(&self, i: usize) -> &'a [i32] {
        debug_assert_eq!(self.slots[i].dtype, DType::I32, "shape inference checks types");
        // SAFETY: all bits are valid integers.
        unsafe { self.slice(i) }
    }

    /// Bytes of operand `i`.
    pub fn bytes(&self, i: usize) -> &'a [u8] {
        let words = self.words(i);
        // SAFETY: a word is four bytes, and all bits are valid bytes.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
    }

    /// Operand `i` as lengths or positions; a negative one is an error.
    pub fn lens(&self, i: usize) -> Result<&'a [u32], Problem> {
        match self.integers(i).iter().find(|n| **n < 0) {
            Some(bad) => Err(Problem::Operand(format!("a length is {bad}"))),
            // SAFETY: all bits are valid unsigned integers.
            None => Ok(unsafe { self.slice(i) }),
        }
    }

    /// Operand `i` as first positions of `rows` rows in each batch row; rows past `most` are an error.
    pub fn firsts(&self, i: usize, rows: usize, most: usize) -> Result<&'a [u32], Problem> {
        let firsts = self.lens(i)?;
        match firsts.iter().find(|first| **first as usize + rows > most) {
            Some(first) => {
                Err(Problem::Operand(format!("{rows} rows from {first} on do not fit into {most}")))
            }
            None => Ok(firsts),
        }
    }
}

/// Words as their bytes.
pub(crate) fn bytes_mut(words: &mut [f32]) -> &mut [u8] {
    // SAFETY: the same memory, borrowed as exclusively; all bits are valid bytes and floats.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

/// Values of the run-time scalars.
#[derive(Clone, Copy)]
pub(crate) struct Scalars<'a> {
    names: &'a [String],
    values: &'a HashMap<String, u64>,
}

impl Scalars<'_> {
    /// An index or a seed, or the bits of a float.
    pub fn get(&self, s: Scalar) -> Result<u64, Problem> {
        self.values.get(&self.names[s.index()]).copied().ok_or(Problem::NoScalar(s.index()))
    }

    /// The value of a factor.
    pub fn factor(&self, f: Factor) -> Result<f32, Problem> {
        match f {
            Factor::Const(x) => Ok(x),
            Factor::Scalar(s) => Ok(f32::from_bits(self.get(s)? as u32)),
        }
    }
}
