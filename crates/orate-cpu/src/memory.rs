//! Memory of a session on the CPU: named buffers, scalars, and the arena of temporaries.

use crate::operands::Base;
use memmap2::MmapMut;
use orate_graph::{Counters, DType, DeviceError, Memory, Part, Pending, Shape, Ticket, extended, fitting};
use std::alloc::Layout;
use std::any::Any;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;

/// Size of a cache line and of the widest vector.
const ALIGNMENT: usize = orate_graph::ALIGNMENT;

/// Blocks of at least this size are mapped from the system, so that freeing returns them whole. With the
/// allocator, temporaries of changing sizes would leave holes in the heap of every thread.
const MAPPED_BYTES: usize = 64 * 1024;

/// A block of four-byte words, aligned to a cache line. Grows as needed and shrinks only in `release`.
pub(crate) struct Block {
    pointer: NonNull<f32>,
    len: usize,
    capacity: usize,
    mapping: Option<MmapMut>,
}

// SAFETY: the block owns its memory, like a Vec.
unsafe impl Send for Block {}

impl Block {
    pub fn new() -> Self {
        Block { pointer: NonNull::dangling(), len: 0, capacity: 0, mapping: None }
    }

    fn layout(elements: usize) -> Layout {
        Layout::from_size_align(elements * 4, ALIGNMENT)
            .expect("plans are far smaller than the address space")
    }

    /// Resizes to `len` elements. New elements are zero; if the block has to grow, old ones are lost.
    pub fn resize(&mut self, len: usize) {
        if len > self.capacity {
            self.release();
            let layout = Self::layout(len);
            if layout.size() >= MAPPED_BYTES
                && let Ok(mut mapping) = MmapMut::map_anon(layout.size())
            {
                // Mappings are zero and aligned to a page.
                self.pointer =
                    NonNull::new(mapping.as_mut_ptr().cast()).expect("mappings are not at address 0");
                self.mapping = Some(mapping);
            } else {
                // SAFETY: `len > capacity >= 0`, so the layout is not empty.
                let p = unsafe { std::alloc::alloc_zeroed(layout) };
                self.pointer =
                    NonNull::new(p.cast()).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
            }
            self.capacity = len;
        }
        self.len = len;
    }

    /// Frees all memory.
    pub fn release(&mut self) {
        if self.mapping.take().is_none() && self.capacity > 0 {
            // SAFETY: allocated with this layout in `resize`.
            unsafe { std::alloc::dealloc(self.pointer.as_ptr().cast(), Self::layout(self.capacity)) };
        }
        self.pointer = NonNull::dangling();
        (self.len, self.capacity) = (0, 0);
    }

    /// Whether the block is a mapping of its own.
    pub fn is_mapped(&self) -> bool {
        self.mapping.is_some()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> usize {
        self.capacity * 4
    }

    pub fn pointer(&self) -> *mut f32 {
        self.pointer.as_ptr()
    }

    pub fn floats(&self) -> &[f32] {
        // SAFETY: `len` elements were allocated and zeroed; every bit pattern is a float.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }

    pub fn content(&self) -> &[u8] {
        // SAFETY: `len` words of four bytes were allocated and zeroed; any bits are bytes.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().cast(), 4 * self.len) }
    }

    pub fn content_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` words of four bytes were allocated and zeroed, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr().cast(), 4 * self.len) }
    }

    pub fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: `len` floats were allocated and zeroed, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.release();
    }
}

/// A named buffer.
pub(crate) struct Stored {
    pub dtype: DType,
    pub shape: Shape,
    pub block: Block,
}

/// See [`Memory`].
pub struct CpuMemory {
    /// The device that made this memory, identified by the address of its name: devices with equal names are
    /// still different.
    pub(crate) device: Arc<str>,
    pub(crate) buffers: HashMap<String, Stored>,
    pub(crate) scalars: HashMap<String, u64>,
    pub(crate) arena: Block,
    pub(crate) scratch: Block,
    /// Base addresses of the buffers of the running plan; kept, so that a run allocates nothing.
    pub(crate) bases: Vec<Base>,
    /// Never pending: a copy is made at once when it is requested.
    later: Pending<(Shape, Vec<i32>)>,
    pub(crate) counters: Counters,
}

// SAFETY: `bases` points into this memory's own blocks and is only used while a run borrows it exclusively.
unsafe impl Send for CpuMemory {}

impl CpuMemory {
    pub(crate) fn new(device: Arc<str>) -> Self {
        CpuMemory {
            device,
            buffers: HashMap::new(),
            scalars: HashMap::new(),
            arena: Block::new(),
            scratch: Block::new(),
            bases: vec![],
            later: Pending::default(),
            counters: Counters::default(),
        }
    }

    /// Returns the buffer, created or resized to fit. Its content is lost if the size changes.
    pub(crate) fn ensure(&mut self, name: &str, dtype: DType, shape: &Shape) -> &mut Stored {
        if !self.buffers.contains_key(name) {
            self.buffers.insert(name.to_owned(), Stored { dtype, shape: shape.clone(), block: Block::new() });
        }
        let b = self.buffers.get_mut(name).expect("inserted above");
        let words = dtype.bytes_of(shape) / 4;
        if b.shape != *shape || b.dtype != dtype || b.block.len() != words {
            b.shape = shape.clone();
            b.dtype = dtype;
            b.block.resize(words);
        }
        b
    }

    /// Returns a buffer for the host to read; errors describe it as `needed`.
    fn host_read(&mut self, name: &str, dtype: DType, needed: &str) -> Result<&Stored, DeviceError> {
        match self.buffers.get(name) {
            Some(b) if b.dtype == dtype => {
                self.counters.read_backs += 1;
                self.counters.bytes_down += b.block.content().len() as u64;
                Ok(b)
            }
            other => Err(DeviceError::Buffer {
                name: name.to_owned(),
                plan: "read by the host".to_owned(),
                got: other.map_or("no such buffer".to_owned(), |b| format!("{} {}", b.dtype, b.shape)),
                needed: needed.to_owned(),
            }),
        }
    }
}

impl Memory for CpuMemory {
    fn device(&self) -> &str {
        &self.device
    }

    fn shape_of(&self, name: &str) -> Option<&Shape> {
        self.buffers.get(name).map(|b| &b.shape)
    }

    fn write_f32(&mut self, name: &str, shape: &Shape, data: &[f32]) -> Result<(), DeviceError> {
        self.ensure(name, DType::F32, shape).block.floats_mut().copy_from_slice(data);
        self.counters.bytes_up += 4 * data.len() as u64;
        Ok(())
    }

    fn write_i32(&mut self, name: &str, shape: &Shape, data: &[i32]) -> Result<(), DeviceError> {
        let to = self.ensure(name, DType::I32, shape).block.floats_mut();
        assert_eq!(to.len(), data.len(), "as many elements as the shape says");
        to.iter_mut().zip(data).for_each(|(t, x)| *t = f32::from_bits(*x as u32));
        self.counters.bytes_up += 4 * data.len() as u64;
        Ok(())
    }

    fn write_bytes(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &Shape,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        fitting(name, dtype, shape, bytes)?;
        self.ensure(name, dtype, shape).block.content_mut().copy_from_slice(bytes);
        self.counters.bytes_up += bytes.len() as u64;
        Ok(())
    }

    fn read_bytes(&mut self, name: &str, out: &mut Vec<u8>) -> Result<(DType, Shape), DeviceError> {
        let b = self.buffers.get(name).ok_or_else(|| DeviceError::Buffer {
            name: name.to_owned(),
            plan: "read by the host".to_owned(),
            got: "no such buffer".to_owned(),
            needed: "a buffer".to_owned(),
        })?;
        out.clear();
        out.extend_from_slice(b.block.content());
        self.counters.read_backs += 1;
        self.counters.bytes_down += out.len() as u64;
        Ok((b.dtype, b.shape.clone()))
    }

    fn read_f32(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, DeviceError> {
        let b = self.host_read(name, DType::F32, "a float buffer")?;
        out.clear();
        out.extend_from_slice(b.block.floats());
        Ok(b.shape.clone())
    }

    fn read_i32(&mut self, name: &str, out: &mut Vec<i32>) -> Result<Shape, DeviceError> {
        let b = self.host_read(name, DType::I32, "an integer buffer")?;
        out.clear();
        out.extend(b.block.floats().iter().map(|x| x.to_bits() as i32));
        Ok(b.shape.clone())
    }

    fn read_later(&mut self, name: &str) -> Result<Ticket, DeviceError> {
        let (_, mut words) = self.later.free_place(name)?.unwrap_or_default();
        let shape = self.read_i32(name, &mut words)?;
        Ok(self.later.begin((shape, words)))
    }

    fn finish(&mut self, ticket: Ticket, out: &mut Vec<i32>) -> Result<Shape, DeviceError> {
        self.later.finish(ticket, out)
    }

    fn discard(&mut self, ticket: Ticket) {
        self.later.discard(ticket);
    }

    fn clear(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<(), DeviceError> {
        // Fresh memory is zero and takes no space until it is touched: a cache may be much larger than its
        // content.
        if let Some(b) = self.buffers.get_mut(name)
            && b.block.is_mapped()
        {
            b.block.release();
        }
        let block = &mut self.ensure(name, dtype, shape).block;
        if !block.is_mapped() {
            block.floats_mut().fill(0.0);
        }
        Ok(())
    }

    fn extend(&mut self, buffers: &[(&str, &Shape)]) -> Result<(), DeviceError> {
        for &(name, shape) in buffers {
            let found = self.buffers.get_mut(name);
            let (old, new) = extended(name, found.as_ref().map(|b| (b.dtype, &b.shape)), shape)?;
            let Some(b) = found else { continue };
            let mut block = Block::new();
            block.resize(b.dtype.bytes_of(shape) / 4);
            let rows = block.content_mut().chunks_exact_mut(new.max(1));
            rows.zip(b.block.content().chunks_exact(old.max(1)))
                .for_each(|(to, x)| to[..old].copy_from_slice(x));
            (b.block, b.shape) = (block, shape.clone());
        }
        Ok(())
    }

    fn copy_from(&mut self, source: &mut dyn Memory, parts: &[Part<'_>]) -> Result<(), DeviceError> {
        let mixed = |got: &str| DeviceError::Mixed {
            plan: "a copy on the device".to_owned(),
            made_for: self.device.to_string(),
            got: got.to_owned(),
        };
        if !source.as_any().is::<CpuMemory>() {
            return Err(mixed(source.device()));
        }
        let from = source.as_any().downcast_ref::<CpuMemory>().expect("checked above");
        if !Arc::ptr_eq(&self.device, &from.device) {
            return Err(mixed("another CPU device"));
        }
        for part in parts {
            let (source, target) = (from.buffers.get(part.from.0), self.buffers.get_mut(part.to.0));
            part.check(source.map(|b| (b.dtype, &b.shape)), target.as_deref().map(|b| (b.dtype, &b.shape)))?;
            if let (Some(source), Some(target)) = (source, target) {
                let [at, to, len] = part.bytes(source.dtype, &source.shape);
                let to = &mut target.block.content_mut()[to..to + len];
                to.copy_from_slice(&source.block.content()[at..at + len]);
            }
        }
        Ok(())
    }

    fn forget(&mut self, prefix: &str) {
        self.buffers.retain(|name, _| !name.starts_with(prefix));
    }

    fn set_scalar(&mut self, name: &str, value: f32) {
        self.set_index(name, u64::from(value.to_bits()));
    }

    fn set_index(&mut self, name: &str, value: u64) {
        match self.scalars.get_mut(name) {
            Some(v) => *v = value,
            None => {
                self.scalars.insert(name.to_owned(), value);
            }
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn bytes(&self) -> usize {
        let buffers: usize = self.buffers.values().map(|b| b.block.bytes()).sum();
        buffers + self.arena.bytes() + self.scratch.bytes()
    }

    fn shrink_to(&mut self, bytes: usize) {
        if self.bytes() > bytes {
            self.arena.release();
            self.scratch.release();
            self.buffers.clear();
            self.later.clear();
        }
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
