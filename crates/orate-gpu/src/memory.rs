//! Memory of a session: one buffer, which contains named values and the arena of temporaries.

use crate::allocator::{Allocator, Range, UNIT, size_of_range};
use crate::gpu::Gpu;
use crate::places::{Places, Scalars};
use crate::staging::Staging;
use orate_graph::{
    AtHome, Counters, DType, DeviceError, Memory, Part, Pending, Shape, Ticket, extended, fitting,
};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use wgpu::{BindGroup, Buffer, BufferUsages, CommandEncoderDescriptor, SubmissionIndex};

/// Minimum size of a session's buffer in bytes.
const SMALLEST: u64 = 1 << 20;

/// Size from which a buffer is no longer made a power of two: only a quarter is to spare, and a multiple of
/// [`STEP_OF_LARGE`].
const LARGE: u64 = 256 << 20;
/// See [`LARGE`].
const STEP_OF_LARGE: u64 = 64 << 20;

/// Size of a buffer in which `needed` bytes are used.
fn roomy(needed: u64) -> u64 {
    match needed {
        0..LARGE => needed.next_power_of_two().max(SMALLEST),
        _ => (needed + needed / 4).next_multiple_of(STEP_OF_LARGE),
    }
}

/// Maximum plans whose places are cached; those of the least recently used are dropped.
const PLACES_KEPT: usize = 64;

/// A named value.
pub(crate) struct Stored {
    pub dtype: DType,
    pub shape: Shape,
    range: Range,
}

/// The buffer and its bind group.
struct Session {
    buffer: Buffer,
    bind_group: BindGroup,
    places: Allocator,
}

/// A value that gets more rows.
struct Extension<'a> {
    name: &'a str,
    /// Bytes of its old and new range.
    old_size: u64,
    size: u64,
    /// Batch rows, and bytes of one before and after.
    rows: (u64, u64, u64),
}

/// Destination of a copy to the host, and the submission that contains the copy.
struct Later {
    staging: Staging,
    copied: SubmissionIndex,
    shape: Shape,
}

/// See [`Memory`].
pub struct GpuMemory {
    pub(crate) gpu: Arc<Gpu>,
    session: Option<AtHome<Session>>,
    stored: HashMap<String, Stored>,
    pub(crate) scalars: Scalars,
    arena: Option<Range>,
    /// Cached places of plans. Valid until a value is moved or resized.
    places: Vec<Places>,
    staging: Option<Staging>,
    later: Pending<Later>,
    pub(crate) counters: Counters,
}

impl GpuMemory {
    pub(crate) fn new(gpu: Arc<Gpu>) -> Self {
        GpuMemory {
            gpu,
            session: None,
            stored: HashMap::new(),
            scalars: Scalars::default(),
            arena: None,
            places: vec![],
            staging: None,
            later: Pending::default(),
            counters: Counters::default(),
        }
    }

    /// Bind group of the session's buffer; `None` before anything is allocated.
    pub(crate) fn bind_group(&self) -> Option<&BindGroup> {
        self.session.as_ref().map(|s| &s.bind_group)
    }

    pub(crate) fn stored(&self, name: &str) -> Option<&Stored> {
        self.stored.get(name)
    }

    /// First element of a named value.
    pub(crate) fn element_of(&self, name: &str) -> Option<u32> {
        self.stored.get(name).map(|s| (s.range.offset / 4) as u32)
    }

    /// First element of the arena.
    pub(crate) fn arena_element(&self) -> u32 {
        self.arena.map_or(0, |r| (r.offset / 4) as u32)
    }

    /// Returns the cached places of an executable, to be given back by [`Self::keep_places`]. `None` if there
    /// are none, or they are outdated.
    pub(crate) fn kept_places(&mut self, executable: u64) -> Option<Places> {
        let i = self.places.iter().position(|p| p.executable == executable)?;
        Some(self.places.remove(i))
    }

    /// Caches places for the next run of the same executable.
    pub(crate) fn keep_places(&mut self, places: Places) {
        if self.places.len() >= PLACES_KEPT {
            self.places.remove(0);
        }
        self.places.push(places);
    }

    /// Enlarges the arena to at least `bytes`. Its content may be lost.
    pub(crate) fn ensure_arena(&mut self, bytes: usize) -> Result<(), DeviceError> {
        let bytes = (bytes as u64).max(UNIT);
        if self.arena.is_some_and(|r| r.size >= bytes) {
            return Ok(());
        }
        self.places.clear();
        if let (Some(old), Some(s)) = (self.arena.take(), &mut self.session) {
            s.places.free(old);
        }
        self.arena = Some(self.take(bytes)?);
        Ok(())
    }

    /// Creates the named value, or resizes it to fit. Its content is lost if the size changes.
    pub(crate) fn ensure(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<(), DeviceError> {
        if self.fits(name, dtype, shape) {
            return Ok(());
        }
        let range = self.take(dtype.bytes_of(shape) as u64)?;
        self.stored.insert(name.to_owned(), Stored { dtype, shape: shape.clone(), range });
        Ok(())
    }

    /// [`Self::ensure`] for several values: the buffer grows once for all of them.
    fn ensure_all(&mut self, values: &[(&str, DType, &Shape)]) -> Result<(), DeviceError> {
        let mut more = 0;
        for (name, dtype, shape) in values {
            if !self.fits(name, *dtype, shape) {
                more += size_of_range(dtype.bytes_of(shape) as u64);
            }
        }
        if more > self.session.as_ref().map_or(0, |s| s.places.free_bytes()) {
            self.rebuild(more, &[])?;
        }
        values.iter().try_for_each(|(name, dtype, shape)| self.ensure(name, *dtype, shape))
    }

    /// Whether the named value has a range of the right size, which gets the type and shape. If the size
    /// differs, the value is dropped.
    fn fits(&mut self, name: &str, dtype: DType, shape: &Shape) -> bool {
        let Some(s) = self.stored.get_mut(name) else { return false };
        let fits = size_of_range(dtype.bytes_of(shape) as u64) == s.range.size;
        if !fits || s.dtype != dtype || s.shape != *shape {
            (s.dtype, s.shape) = (dtype, shape.clone());
            self.places.clear();
        }
        if let (false, Some(session), Some(old)) = (fits, &mut self.session, self.stored.get(name)) {
            session.places.free(old.range);
            self.stored.remove(name);
        }
        fits
    }

    /// Allocates a range of the buffer, which grows if necessary.
    fn take(&mut self, bytes: u64) -> Result<Range, DeviceError> {
        if let Some(range) = self.session.as_mut().and_then(|s| s.places.take(bytes)) {
            return Ok(range);
        }
        self.rebuild(bytes, &[])?;
        let taken = self.session.as_mut().and_then(|s| s.places.take(bytes));
        taken.ok_or_else(|| self.gpu.out_of_memory(bytes))
    }

    /// Creates a buffer with room for `bytes` more and with some values extended. Values are copied; the
    /// content of the arena is lost.
    fn rebuild(&mut self, bytes: u64, extended: &[Extension<'_>]) -> Result<(), DeviceError> {
        let _inside = self.gpu.enter()?;
        let began = Instant::now();
        let used = self.session.as_ref().map_or(0, |s| s.places.used());
        let more = |e: &Extension<'_>| e.size.next_multiple_of(UNIT).saturating_sub(e.old_size);
        let needed = used + bytes.next_multiple_of(UNIT) + extended.iter().map(more).sum::<u64>();
        let largest = self.gpu.largest_buffer;
        if needed > largest {
            return Err(self.gpu.out_of_memory(needed - used));
        }
        let size = roomy(needed).min(largest);
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let buffer = self.gpu.buffer("session", size, usage)?;
        self.counters.allocations += 1;
        self.places.clear();
        let mut places = Allocator::new(size);
        let mut encoder = self.gpu.device.create_command_encoder(&CommandEncoderDescriptor { label: None });
        // Nothing changes before all values have a range.
        let full = || self.gpu.out_of_memory(needed - used);
        let mut moved = Vec::with_capacity(self.stored.len());
        for (name, s) in &self.stored {
            let extension = extended.iter().find(|e| e.name == name);
            let to = places.take(extension.map_or(s.range.size, |e| e.size)).ok_or_else(full)?;
            let (rows, from_row, to_row) = extension.map_or((1, to.size, to.size), |e| e.rows);
            for (old, i) in self.session.iter().flat_map(|old| (0..rows).map(move |i| (old, i))) {
                let (from, to) = (s.range.offset + i * from_row, to.offset + i * to_row);
                encoder.copy_buffer_to_buffer(&old.buffer, from, &buffer, to, from_row);
            }
            moved.push((name.clone(), to));
        }
        if let Some(arena) = self.arena {
            self.arena = Some(places.take(arena.size).ok_or_else(full)?);
        }
        for (name, to) in moved {
            if let Some(s) = self.stored.get_mut(&name) {
                s.range = to;
            }
        }
        self.gpu.queue.submit([encoder.finish()]);
        let bind_group = self.gpu.bind("session", &self.gpu.session_layout, &[&buffer]);
        self.session = Some(AtHome::new(Session { buffer, bind_group, places }));
        tracing::debug!(size, used, elapsed = ?began.elapsed(), "a session has another buffer");
        self.gpu.check()
    }

    fn write(&mut self, name: &str, dtype: DType, shape: &Shape, data: &[u8]) -> Result<(), DeviceError> {
        fitting(name, dtype, shape, data)?;
        let _inside = self.gpu.enter()?;
        self.ensure(name, dtype, shape)?;
        if let (Some(session), Some(s)) = (&self.session, self.stored.get(name))
            && !data.is_empty()
        {
            self.gpu.write(&session.buffer, s.range.offset, data)?;
        }
        self.counters.bytes_up += data.len() as u64;
        Ok(())
    }

    /// Copies a named buffer, optionally of a required type, to the host.
    fn download(
        &mut self,
        name: &str,
        dtype: Option<DType>,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(DType, Shape), DeviceError> {
        let _inside = self.gpu.enter()?;
        let (session, s) = readable(&self.session, &self.stored, name, dtype)?;
        let bytes = s.dtype.bytes_of(&s.shape) as u64;
        let from = (&session.buffer, s.range.offset, bytes);
        self.counters.allocations += read_back(&self.gpu, &mut self.staging, from, take)?;
        self.counters.read_backs += 1;
        self.counters.bytes_down += bytes;
        Ok((s.dtype, s.shape.clone()))
    }
}

/// Returns a value for the host to read, and the buffer that contains it.
fn readable<'a>(
    session: &'a Option<AtHome<Session>>,
    stored: &'a HashMap<String, Stored>,
    name: &str,
    wanted: Option<DType>,
) -> Result<(&'a Session, &'a Stored), DeviceError> {
    match (session, stored.get(name)) {
        (Some(session), Some(s)) if wanted.is_none_or(|dtype| s.dtype == dtype) => Ok((session, s)),
        (_, other) => Err(DeviceError::Buffer {
            name: name.to_owned(),
            plan: "read by the host".to_owned(),
            got: other.map_or("no such buffer".to_owned(), |b| format!("{} {}", b.dtype, b.shape)),
            needed: wanted.map_or("a buffer".to_owned(), |dtype| format!("a buffer of {dtype}")),
        }),
    }
}

/// Copies bytes of a buffer, from an offset on, to the host. Returns the number of staging buffers that were
/// created.
pub(crate) fn read_back(
    gpu: &Gpu,
    kept: &mut Option<Staging>,
    (from, offset, bytes): (&Buffer, u64, u64),
    take: &mut dyn FnMut(&[u8]),
) -> Result<u64, DeviceError> {
    if bytes == 0 {
        // An empty slice with the alignment of all element types.
        take(bytemuck::cast_slice::<u64, u8>(&[]));
        return Ok(0);
    }
    let (staging, made) = Staging::of(gpu, kept.take(), bytes)?;
    let mut encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor { label: None });
    encoder.copy_buffer_to_buffer(from, offset, staging.buffer(), 0, bytes);
    let copied = gpu.queue.submit([encoder.finish()]);
    staging.read(gpu, bytes, copied, take)?;
    *kept = Some(staging);
    gpu.check().map(|()| made)
}

impl Memory for GpuMemory {
    fn device(&self) -> &str {
        &self.gpu.name
    }

    fn shape_of(&self, name: &str) -> Option<&Shape> {
        self.stored.get(name).map(|s| &s.shape)
    }

    fn write_f32(&mut self, name: &str, shape: &Shape, data: &[f32]) -> Result<(), DeviceError> {
        self.write(name, DType::F32, shape, bytemuck::cast_slice(data))
    }

    fn write_i32(&mut self, name: &str, shape: &Shape, data: &[i32]) -> Result<(), DeviceError> {
        self.write(name, DType::I32, shape, bytemuck::cast_slice(data))
    }

    fn write_bytes(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &Shape,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.write(name, dtype, shape, bytes)
    }

    fn read_bytes(&mut self, name: &str, out: &mut Vec<u8>) -> Result<(DType, Shape), DeviceError> {
        self.download(name, None, &mut |data| {
            out.clear();
            out.extend_from_slice(data);
        })
    }

    fn read_f32(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, DeviceError> {
        let read = self.download(name, Some(DType::F32), &mut |data| {
            out.clear();
            out.extend_from_slice(bytemuck::cast_slice(data));
        });
        read.map(|(_, shape)| shape)
    }

    fn read_i32(&mut self, name: &str, out: &mut Vec<i32>) -> Result<Shape, DeviceError> {
        let read = self.download(name, Some(DType::I32), &mut |data| {
            out.clear();
            out.extend_from_slice(bytemuck::cast_slice(data));
        });
        read.map(|(_, shape)| shape)
    }

    fn read_later(&mut self, name: &str) -> Result<Ticket, DeviceError> {
        let _inside = self.gpu.enter()?;
        let (session, s) = readable(&self.session, &self.stored, name, Some(DType::I32))?;
        let shape = s.shape.clone();
        let bytes = 4 * shape.len() as u64;
        let free = self.later.free_place(name)?.map(|place| place.staging);
        let (staging, made) = Staging::of(&self.gpu, free, bytes)?;
        self.counters.allocations += made;
        let mut encoder = self.gpu.device.create_command_encoder(&CommandEncoderDescriptor { label: None });
        if bytes > 0 {
            encoder.copy_buffer_to_buffer(&session.buffer, s.range.offset, staging.buffer(), 0, bytes);
        }
        let copied = self.gpu.queue.submit([encoder.finish()]);
        self.gpu.check()?;
        self.counters.read_backs += 1;
        self.counters.bytes_down += bytes;
        Ok(self.later.begin(Later { staging, copied, shape }))
    }

    fn finish(&mut self, ticket: Ticket, out: &mut Vec<i32>) -> Result<Shape, DeviceError> {
        let _inside = self.gpu.enter()?;
        let place = self.later.end(ticket)?;
        out.clear();
        let shape = place.shape.clone();
        if !shape.is_empty() {
            let bytes = 4 * shape.len() as u64;
            let mut take = |data: &[u8]| out.extend_from_slice(bytemuck::cast_slice(data));
            place.staging.read(&self.gpu, bytes, place.copied.clone(), &mut take)?;
        }
        self.later.keep(place);
        self.gpu.check()?;
        Ok(shape)
    }

    fn discard(&mut self, ticket: Ticket) {
        // The copy may still be in progress; later copies to the same place come after it.
        if let Ok(place) = self.later.end(ticket) {
            self.later.keep(place);
        }
    }

    fn clear(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<(), DeviceError> {
        self.clear_all(&[(name, dtype, shape)])
    }

    /// One submission.
    fn clear_all(&mut self, buffers: &[(&str, DType, &Shape)]) -> Result<(), DeviceError> {
        let _inside = self.gpu.enter()?;
        // All values get their ranges before any is cleared, as the buffer may grow meanwhile.
        self.ensure_all(buffers)?;
        let mut encoder = self.gpu.device.create_command_encoder(&CommandEncoderDescriptor { label: None });
        for (name, ..) in buffers {
            if let (Some(session), Some(s)) = (&self.session, self.stored.get(*name)) {
                encoder.clear_buffer(&session.buffer, s.range.offset, Some(s.range.size));
            }
        }
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.check()
    }

    fn reserve(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<(), DeviceError> {
        self.reserve_all(&[(name, dtype, shape)])
    }

    fn reserve_all(&mut self, buffers: &[(&str, DType, &Shape)]) -> Result<(), DeviceError> {
        let _inside = self.gpu.enter()?;
        self.ensure_all(buffers)
    }

    fn extend(&mut self, buffers: &[(&str, &Shape)]) -> Result<(), DeviceError> {
        let mut extensions = Vec::with_capacity(buffers.len());
        for &(name, shape) in buffers {
            let found = self.stored.get(name);
            let (old, new) = extended(name, found.map(|s| (s.dtype, &s.shape)), shape)?;
            extensions.push(Extension {
                name,
                old_size: found.map_or(0, |s| s.range.size),
                size: found.map_or(0, |s| s.dtype.bytes_of(shape) as u64),
                rows: (shape.dims()[0] as u64, old as u64, new as u64),
            });
        }
        self.rebuild(0, &extensions)?;
        self.places.clear();
        for &(name, shape) in buffers {
            if let Some(s) = self.stored.get_mut(name) {
                s.shape = shape.clone();
            }
        }
        Ok(())
    }

    fn copy_from(&mut self, source: &mut dyn Memory, parts: &[Part<'_>]) -> Result<(), DeviceError> {
        let mixed = |got: &str| DeviceError::Mixed {
            plan: "a copy on the device".to_owned(),
            made_for: self.gpu.name.clone(),
            got: got.to_owned(),
        };
        if !source.as_any().is::<GpuMemory>() {
            return Err(mixed(source.device()));
        }
        let from = source.as_any().downcast_ref::<GpuMemory>().expect("checked above");
        if !Arc::ptr_eq(&self.gpu, &from.gpu) {
            return Err(mixed("another GPU device"));
        }
        let _inside = self.gpu.enter()?;
        let mut encoder = self.gpu.device.create_command_encoder(&CommandEncoderDescriptor { label: None });
        for part in parts {
            let (source, target) = (from.stored.get(part.from.0), self.stored.get(part.to.0));
            let info = |s: Option<&Stored>| s.map(|s| (s.dtype, s.shape.clone()));
            let (a, b) = (info(source), info(target));
            part.check(a.as_ref().map(|(d, s)| (*d, s)), b.as_ref().map(|(d, s)| (*d, s)))?;
            let (Some(source), Some(target)) = (source, target) else { continue };
            let (Some(there), Some(here)) = (&from.session, &self.session) else { continue };
            let [at, to, len] = part.bytes(source.dtype, &source.shape).map(|bytes| bytes as u64);
            let (at, to) = (source.range.offset + at, target.range.offset + to);
            encoder.copy_buffer_to_buffer(&there.buffer, at, &here.buffer, to, len);
        }
        // Earlier submissions are executed before, later ones after.
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.check()
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.gpu.wait()
    }

    fn forget(&mut self, prefix: &str) {
        let places = self.session.as_mut().map(|s| &mut s.places);
        let Some(places) = places else { return };
        self.places.clear();
        self.stored.retain(|name, s| {
            let goes = name.starts_with(prefix);
            if goes {
                places.free(s.range);
            }
            !goes
        });
    }

    fn set_scalar(&mut self, name: &str, value: f32) {
        self.set_index(name, u64::from(value.to_bits()));
    }

    fn set_index(&mut self, name: &str, value: u64) {
        self.scalars.set(name, value);
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn bytes(&self) -> usize {
        let later: u64 = self.later.places().map(|l| l.staging.bytes()).sum();
        let staging = self.staging.as_ref().map_or(0, Staging::bytes);
        (self.session.as_ref().map_or(0, |s| s.buffer.size()) + staging + later) as usize
    }

    fn shrink_to(&mut self, bytes: usize) {
        if self.bytes() > bytes {
            self.session = None;
            self.places.clear();
            self.staging = None;
            self.later.clear();
            self.arena = None;
            self.stored.clear();
        }
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
