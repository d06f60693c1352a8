//! Memory of a session on the device: named buffers, scalars, the arena of temporaries, and recorded graphs.

use crate::copies::{self, Move};
use crate::driver::{DeviceBuffer, DevicePointer, Event, ExecutableGraph, Pinned, Stream};
use crate::lower::Addresses;
use crate::shared::Core;
use orate_graph::{
    Counters, DType, DeviceError, Memory, Part, Pending, Shape, SharedFloats, Ticket, extended, fitting,
};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Sizes of buffers are multiples of this.
const ALIGNMENT: usize = 1024;

/// Maximum scalars of a session.
const SCALARS: usize = 256;

/// Maximum recorded graphs; the least recently used is dropped. One utterance needs five.
const GRAPHS_KEPT: usize = 64;

/// A named buffer.
pub(crate) struct Stored {
    pub dtype: DType,
    pub shape: Shape,
    pub buffer: DeviceBuffer,
}

/// Key of a graph: the id of the executable, unique on this device, and the number of repetitions with a
/// counter, 0 for a single run.
pub(crate) type Recording = (u64, usize);

/// Work that ran here.
struct Known {
    what: Recording,
    /// Addresses that the kernels received.
    addresses: Addresses,
    /// `None` until it is recorded.
    graph: Option<ExecutableGraph>,
}

/// Run-time scalars: 8 bytes each on the device, and the values that the host has set.
struct Scalars {
    slots: HashMap<String, usize>,
    host: Vec<u64>,
    changed: bool,
    device: DeviceBuffer,
}

/// Destination of a copy to the host, and the event that signals its end.
struct Later {
    pinned: Pinned,
    /// Recorded after the copy.
    there: Event,
    shape: Shape,
}

/// Floats that were copied to the host for others to read.
struct Given {
    pinned: Pinned,
    floats: usize,
}

impl AsRef<[f32]> for Given {
    fn as_ref(&self) -> &[f32] {
        // SAFETY: `read_shared` sets the number when it has waited for the copy, and copies nothing here
        // while somebody else has this.
        unsafe { self.pinned.floats(self.floats) }
    }
}

/// See [`Memory`].
pub(crate) struct CudaMemory {
    pub core: Arc<Core>,
    /// Whether its work has priority over that of others.
    urgent: bool,
    /// For work that gives way, and for urgent work. Created on first use, as creating a memory cannot fail.
    streams: [Option<Stream>; 2],
    buffers: HashMap<String, Stored>,
    arena: DeviceBuffer,
    scalars: Scalars,
    graphs: Vec<Known>,
    /// Addresses for the run being started; kept here, so that a run allocates nothing.
    pub addresses: Addresses,
    pinned: Pinned,
    /// What [`Memory::read_shared`] gave out, and others may still have.
    given: Vec<Arc<Given>>,
    /// Whether a thread sleeps while it reads: many wait next to the few whose work is always urgent. Then
    /// the event on which it sleeps, once there is one.
    sleeps: bool,
    done: Option<Event>,
    /// The event of [`CudaMemory::reached`], once there is one.
    reached: Option<Event>,
    later: Pending<Later>,
    pub counters: Counters,
}

impl CudaMemory {
    pub fn new(core: &Arc<Core>, urgent: bool) -> Self {
        let context = &core.context;
        CudaMemory {
            core: core.clone(),
            urgent,
            streams: [None, None],
            buffers: HashMap::new(),
            arena: DeviceBuffer::empty(context),
            scalars: Scalars {
                slots: HashMap::new(),
                host: vec![],
                changed: false,
                device: DeviceBuffer::empty(context),
            },
            graphs: vec![],
            addresses: Addresses::default(),
            pinned: Pinned::empty(context),
            given: vec![],
            sleeps: !urgent,
            done: None,
            reached: None,
            later: Pending::default(),
            counters: Counters::default(),
        }
    }

    /// Returns the stream of this session.
    pub fn stream(&mut self) -> Result<&Stream, DeviceError> {
        let context = &self.core.context;
        let stream = &mut self.streams[usize::from(self.urgent)];
        if stream.is_none() {
            if self.sleeps && self.done.is_none() {
                self.done = Some(Event::to_sleep_for(context)?);
            }
            *stream = Some(if self.urgent { Stream::urgent(context)? } else { Stream::new(context)? });
        }
        Ok(stream.as_ref().expect("made above"))
    }

    /// The stream, if it was asked for before.
    fn made_stream(&self) -> Option<&Stream> {
        self.streams[usize::from(self.urgent)].as_ref()
    }

    /// Records an event after all work submitted so far. A stream that waits for an event waits for its last
    /// record at that time, so one event serves all copies.
    fn reached(&mut self) -> Result<&Event, DeviceError> {
        self.stream()?;
        let event = match self.reached.take() {
            Some(event) => event,
            None => Event::to_wait_for(&self.core.context)?,
        };
        event.record(self.made_stream().expect("made above"))?;
        Ok(self.reached.insert(event))
    }

    /// Allocates device memory and counts it.
    fn device_buffer(&mut self, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        let buffer = DeviceBuffer::new(&self.core.context, bytes)?;
        self.counters.allocations += 1;
        Ok(buffer)
    }

    /// Returns the buffer, created or enlarged to fit. New memory is zero; the content is lost if the size
    /// changes.
    pub fn ensure(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<DevicePointer, DeviceError> {
        let bytes = dtype.bytes_of(shape);
        if let Some(b) = self.buffers.get_mut(name)
            && b.buffer.bytes() >= bytes
        {
            if b.shape != *shape || b.dtype != dtype {
                (b.dtype, b.shape) = (dtype, shape.clone());
            }
            return Ok(b.buffer.pointer());
        }
        self.buffers.remove(name);
        let buffer = self.device_buffer(bytes.next_multiple_of(ALIGNMENT))?;
        let (pointer, size) = (buffer.pointer(), buffer.bytes());
        // SAFETY: just allocated with this size.
        unsafe { self.stream()?.clear(pointer, size)? };
        self.buffers.insert(name.to_owned(), Stored { dtype, shape: shape.clone(), buffer });
        Ok(pointer)
    }

    /// As [`CudaMemory::ensure`] for several buffers, with one allocation for those that are not there. If
    /// they are about to be cleared, they need no zeros.
    fn ensure_all(&mut self, buffers: &[(&str, DType, &Shape)], zeros: bool) -> Result<(), DeviceError> {
        let bytes_of =
            |(_, dtype, shape): &(&str, DType, &Shape)| dtype.bytes_of(shape).next_multiple_of(ALIGNMENT);
        let is_there = |b: &(&str, DType, &Shape)| {
            self.buffers.get(b.0).is_some_and(|s| s.buffer.bytes() >= b.1.bytes_of(b.2))
        };
        let missing: Vec<_> = buffers.iter().copied().filter(|b| !is_there(b)).collect();
        if missing.len() > 1 {
            missing.iter().for_each(|(name, ..)| drop(self.buffers.remove(*name)));
            let sizes: Vec<usize> = missing.iter().map(bytes_of).collect();
            let parts = DeviceBuffer::parts(&self.core.context, &sizes)?;
            self.counters.allocations += 1;
            if zeros {
                // SAFETY: just allocated with these sizes.
                unsafe { self.stream()?.clear(parts[0].pointer(), sizes.iter().sum())? };
            }
            for ((name, dtype, shape), buffer) in missing.into_iter().zip(parts) {
                self.buffers.insert(name.to_owned(), Stored { dtype, shape: shape.clone(), buffer });
            }
        }
        buffers.iter().try_for_each(|(name, dtype, shape)| self.ensure(name, *dtype, shape).map(drop))
    }

    /// Returns a buffer that was written before.
    pub fn buffer(&self, name: &str) -> Option<&Stored> {
        self.buffers.get(name)
    }

    /// Returns an arena of at least `bytes`.
    pub fn ensure_arena(&mut self, bytes: usize) -> Result<DevicePointer, DeviceError> {
        if self.arena.bytes() < bytes {
            self.arena = DeviceBuffer::empty(&self.core.context);
            // Graphs recorded with the old arena are invalid.
            self.graphs.clear();
            self.arena = self.device_buffer(bytes.next_multiple_of(1 << 20))?;
        }
        Ok(self.arena.pointer())
    }

    /// Value that the host last set a scalar to.
    pub fn scalar(&self, name: &str) -> Option<u64> {
        self.scalars.slots.get(name).map(|slot| self.scalars.host[*slot])
    }

    /// Address of a scalar on the device. It must have been set, or be set by the plan itself.
    pub fn scalar_pointer(&mut self, name: &str) -> Result<DevicePointer, DeviceError> {
        if self.scalars.device.bytes() == 0 {
            self.scalars.device = self.device_buffer(8 * SCALARS)?;
        }
        let slot = self.slot(name);
        if slot >= SCALARS {
            let problem = format!("a session has more than {SCALARS} scalars");
            return Err(DeviceError::Setup { device: self.core.context.name.clone(), problem });
        }
        Ok(self.scalars.device.pointer() + 8 * slot as u64)
    }

    fn slot(&mut self, name: &str) -> usize {
        if let Some(slot) = self.scalars.slots.get(name) {
            return *slot;
        }
        let slot = self.scalars.host.len();
        self.scalars.slots.insert(name.to_owned(), slot);
        self.scalars.host.push(0);
        slot
    }

    /// Records the value that a plan has given a scalar on the device.
    pub fn note_scalar(&mut self, name: &str, value: u64) {
        let slot = self.slot(name);
        self.scalars.host[slot] = value;
    }

    /// Uploads changed scalars, for all later launches.
    pub fn upload_scalars(&mut self) -> Result<(), DeviceError> {
        if !self.scalars.changed {
            return Ok(());
        }
        let count = self.scalars.host.len().min(SCALARS);
        let to = self.scalars.device.pointer();
        if to == 0 {
            return Ok(());
        }
        self.stream()?;
        let stream = self.made_stream().expect("made above");
        // Host and device have the same byte order.
        let bytes: &[u8] = bytemuck::cast_slice(&self.scalars.host[..count]);
        // SAFETY: the device has room for `SCALARS`.
        unsafe { stream.upload(to, bytes)? };
        self.scalars.changed = false;
        self.counters.bytes_up += bytes.len() as u64;
        Ok(())
    }

    /// Runs work that was given its addresses. What runs `again` is recorded as a graph, and so is what has
    /// run at these addresses before. Other work starts its kernels one by one: to record it takes longer,
    /// and the driver lets one thread at a time do it.
    pub fn launch(
        &mut self,
        (plan, what): (&str, Recording),
        addresses: &Addresses,
        again: bool,
        work: impl FnOnce(&Stream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.stream()?;
        let found = self.graphs.iter().position(|g| g.what == what && g.addresses == *addresses);
        let records = found.is_some() || again;
        let mut known = match found {
            Some(i) => self.graphs.remove(i),
            None => {
                // Graphs of the same plan with old pointers are invalid.
                self.graphs.retain(|g| g.what != what);
                if self.graphs.len() >= GRAPHS_KEPT {
                    self.graphs.remove(0);
                }
                Known { what, addresses: addresses.clone(), graph: None }
            }
        };
        let stream = self.made_stream().expect("asked for above");
        match &known.graph {
            Some(graph) => stream.launch(graph)?,
            None if !records => work(stream)?,
            None => {
                let start = Instant::now();
                let graph = stream.capture(|| work(stream))?;
                tracing::debug!(plan, elapsed = ?start.elapsed(), "a graph is recorded");
                stream.launch(&graph)?;
                known.graph = Some(graph);
            }
        }
        self.graphs.push(known);
        self.counters.submissions += 1;
        Ok(())
    }

    fn write(&mut self, name: &str, dtype: DType, shape: &Shape, bytes: &[u8]) -> Result<(), DeviceError> {
        fitting(name, dtype, shape, bytes)?;
        let to = self.ensure(name, dtype, shape)?;
        // SAFETY: the buffer was made for this shape.
        unsafe { self.stream()?.upload(to, bytes)? };
        self.counters.bytes_up += bytes.len() as u64;
        Ok(())
    }

    /// Address of a buffer for the host to read, optionally of a required type.
    fn readable(
        &self,
        name: &str,
        wanted: Option<DType>,
    ) -> Result<(DevicePointer, DType, Shape), DeviceError> {
        match self.buffers.get(name) {
            Some(b) if wanted.is_none_or(|dtype| b.dtype == dtype) => {
                Ok((b.buffer.pointer(), b.dtype, b.shape.clone()))
            }
            other => Err(DeviceError::Buffer {
                name: name.to_owned(),
                plan: "read by the host".to_owned(),
                got: other.map_or("no such buffer".to_owned(), |b| format!("{} {}", b.dtype, b.shape)),
                needed: wanted.map_or("a buffer".to_owned(), |dtype| format!("a buffer of {dtype}")),
            }),
        }
    }

    /// Copies a buffer, optionally of a required type, to the host as four-byte words.
    fn download(&mut self, name: &str, wanted: Option<DType>) -> Result<(DType, Shape, &[f32]), DeviceError> {
        let (from, dtype, shape) = self.readable(name, wanted)?;
        let n = dtype.bytes_of(&shape) / 4;
        self.stream()?;
        self.counters.allocations += u64::from(self.pinned.bytes() < 4 * n);
        let stream = self.streams[usize::from(self.urgent)].as_ref().expect("made above");
        // SAFETY: the buffer has the words of its shape; the copy is waited for, so they can be read.
        let words = unsafe {
            stream.download(from, &mut self.pinned, 4 * n, self.done.as_ref())?;
            self.pinned.floats(n)
        };
        self.counters.read_backs += 1;
        self.counters.bytes_down += 4 * n as u64;
        Ok((dtype, shape, words))
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        // Nothing may be freed while it is in use; a lost device uses nothing.
        for stream in self.streams.iter().flatten() {
            let _ = stream.synchronize();
        }
    }
}

impl Memory for CudaMemory {
    fn device(&self) -> &str {
        &self.core.context.name
    }

    fn shape_of(&self, name: &str) -> Option<&Shape> {
        self.buffers.get(name).map(|b| &b.shape)
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
        let (dtype, shape, words) = self.download(name, None)?;
        out.clear();
        out.extend_from_slice(bytemuck::cast_slice(words));
        Ok((dtype, shape))
    }

    fn read_f32(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, DeviceError> {
        let (_, shape, floats) = self.download(name, Some(DType::F32))?;
        out.clear();
        out.extend_from_slice(floats);
        Ok(shape)
    }

    fn read_shared(&mut self, name: &str) -> Result<(Shape, SharedFloats), DeviceError> {
        let (from, _, shape) = self.readable(name, Some(DType::F32))?;
        let (floats, bytes) = (shape.len(), 4 * shape.len());
        self.stream()?;
        let i = self.given.iter_mut().position(|given| Arc::get_mut(given).is_some());
        let i = i.unwrap_or_else(|| {
            self.given.push(Arc::new(Given { pinned: Pinned::empty(&self.core.context), floats: 0 }));
            self.given.len() - 1
        });
        let given = Arc::get_mut(&mut self.given[i]).expect("nobody else has it");
        self.counters.allocations += u64::from(given.pinned.bytes() < bytes);
        let stream = self.streams[usize::from(self.urgent)].as_ref().expect("made above");
        given.floats = 0;
        // SAFETY: the buffer has the elements of its shape.
        unsafe { stream.download(from, &mut given.pinned, bytes, self.done.as_ref())? };
        given.floats = floats;
        self.counters.read_backs += 1;
        self.counters.bytes_down += bytes as u64;
        Ok((shape, self.given[i].clone()))
    }

    fn read_i32(&mut self, name: &str, out: &mut Vec<i32>) -> Result<Shape, DeviceError> {
        let (_, shape, words) = self.download(name, Some(DType::I32))?;
        out.clear();
        out.extend(words.iter().map(|x| x.to_bits() as i32));
        Ok(shape)
    }

    fn read_later(&mut self, name: &str) -> Result<Ticket, DeviceError> {
        let (from, _, shape) = self.readable(name, Some(DType::I32))?;
        let bytes = 4 * shape.len();
        let mut to = match self.later.free_place(name)? {
            Some(place) => Later { shape, ..place },
            None => Later {
                pinned: Pinned::empty(&self.core.context),
                there: Event::to_sleep_for(&self.core.context)?,
                shape,
            },
        };
        if to.pinned.bytes() < bytes {
            // A discarded copy to this place may still be in progress.
            to.there.wait()?;
            to.pinned.reserve(bytes)?;
            self.counters.allocations += 1;
        }
        let stream = self.stream()?;
        // SAFETY: the buffer has the elements of its shape, and the place was made for them. The place is
        // read after the event; it is released after the event or, with the memory, after the end of the
        // stream.
        let queued = unsafe { stream.copy_to_host(from, &mut to.pinned, bytes) };
        if let Err(e) = queued.and_then(|()| to.there.record(stream)) {
            // No event signals when this place is free again.
            let _ = stream.synchronize();
            return Err(e);
        }
        self.counters.read_backs += 1;
        self.counters.bytes_down += bytes as u64;
        Ok(self.later.begin(to))
    }

    fn finish(&mut self, ticket: Ticket, out: &mut Vec<i32>) -> Result<Shape, DeviceError> {
        let place = self.later.end(ticket)?;
        if let Err(e) = place.there.wait() {
            // If the device is lost, nothing writes there any more once the driver returns.
            let _ = self.wait();
            return Err(e);
        }
        // SAFETY: the copy is done, as just waited for.
        let words = unsafe { place.pinned.floats(place.shape.len()) };
        out.clear();
        out.extend(words.iter().map(|x| x.to_bits() as i32));
        let shape = place.shape.clone();
        self.later.keep(place);
        Ok(shape)
    }

    fn discard(&mut self, ticket: Ticket) {
        // The copy may still be in progress; later copies to the same place come after it.
        if let Ok(place) = self.later.end(ticket) {
            self.later.keep(place);
        }
    }

    fn clear(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<(), DeviceError> {
        let to = self.ensure(name, dtype, shape)?;
        // SAFETY: the buffer was made for this shape.
        unsafe { self.stream()?.clear(to, dtype.bytes_of(shape)) }
    }

    /// What lies side by side is cleared at once.
    fn clear_all(&mut self, buffers: &[(&str, DType, &Shape)]) -> Result<(), DeviceError> {
        self.ensure_all(buffers, false)?;
        let range = |(name, ..): &(&str, DType, &Shape)| {
            let buffer = &self.buffers.get(*name)?.buffer;
            Some((buffer.allocation(), buffer.pointer(), buffer.pointer() + buffer.bytes() as u64))
        };
        let mut ranges: Vec<_> = buffers.iter().filter_map(range).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, before| {
            let joins = next.0 == before.0 && next.1 <= before.2;
            before.2 = before.2.max(if joins { next.2 } else { 0 });
            joins
        });
        for (_, begin, end) in ranges {
            // SAFETY: each range consists of whole buffers of one allocation.
            unsafe { self.stream()?.clear(begin, (end - begin) as usize)? };
        }
        Ok(())
    }

    fn reserve(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<(), DeviceError> {
        self.ensure(name, dtype, shape).map(drop)
    }

    fn reserve_all(&mut self, buffers: &[(&str, DType, &Shape)]) -> Result<(), DeviceError> {
        self.ensure_all(buffers, true)
    }

    fn extend(&mut self, buffers: &[(&str, &Shape)]) -> Result<(), DeviceError> {
        let mut moved = vec![];
        for &(name, shape) in buffers {
            let stored = self.buffers.get(name);
            let (old, new) = extended(name, stored.map(|b| (b.dtype, &b.shape)), shape)?;
            let Some(b) = stored else { continue };
            let (batch, bytes) = (shape.dims()[0], b.dtype.bytes_of(shape));
            // A single row stays in place if there is room after it.
            if batch != 1 || b.buffer.bytes() < bytes {
                moved.push((name, batch, [old, new], bytes.next_multiple_of(ALIGNMENT)));
            }
        }
        let sizes: Vec<usize> = moved.iter().map(|(.., bytes)| *bytes).collect();
        let parts = DeviceBuffer::parts(&self.core.context, &sizes)?;
        self.counters.allocations += u64::from(!parts.is_empty());
        self.stream()?;
        for ((name, batch, [old, new], _), buffer) in moved.into_iter().zip(parts) {
            let stream = self.streams[usize::from(self.urgent)].as_ref();
            let (Some(stream), Some(b)) = (stream, self.buffers.get_mut(name)) else { continue };
            for i in 0..batch {
                let (from, to) = ((i * old) as u64, (i * new) as u64);
                // SAFETY: both buffers have `batch` rows of their size.
                unsafe { stream.copy(b.buffer.pointer() + from, buffer.pointer() + to, old)? };
            }
            b.buffer = buffer;
        }
        for &(name, shape) in buffers {
            self.buffers.get_mut(name).into_iter().for_each(|b| b.shape = shape.clone());
        }
        Ok(())
    }

    fn copy_from(&mut self, source: &mut dyn Memory, parts: &[Part<'_>]) -> Result<(), DeviceError> {
        let mixed = |got: &str| DeviceError::Mixed {
            plan: "a copy on the device".to_owned(),
            made_for: self.core.context.name.clone(),
            got: got.to_owned(),
        };
        if !source.as_any().is::<CudaMemory>() {
            return Err(mixed(source.device()));
        }
        let from = source.as_any().downcast_mut::<CudaMemory>().expect("checked above");
        if !Arc::ptr_eq(&self.core.context, &from.core.context) {
            return Err(mixed("another CUDA device"));
        }
        for part in parts {
            let info = |b: Option<&Stored>| b.map(|b| (b.dtype, b.shape.clone()));
            let (a, b) = (info(from.buffers.get(part.from.0)), info(self.buffers.get(part.to.0)));
            part.check(a.as_ref().map(|(d, s)| (*d, s)), b.as_ref().map(|(d, s)| (*d, s)))?;
        }
        // Each stream waits for the other: this one for the source, and that one before it writes there
        // again.
        self.stream()?.wait_for(from.reached()?)?;
        let moves: Vec<Move> = parts
            .iter()
            .filter_map(|part| {
                let (source, target) = (from.buffers.get(part.from.0)?, self.buffers.get(part.to.0)?);
                let [at, to, bytes] = part.bytes(source.dtype, &source.shape);
                let (from, to) = (source.buffer.pointer() + at as u64, target.buffer.pointer() + to as u64);
                Some(Move { from, to, bytes })
            })
            .collect();
        let core = self.core.clone();
        // SAFETY: both buffers have these elements, and belong to different memories.
        unsafe { copies::copy(&core, self.stream()?, &moves)? };
        from.stream()?.wait_for(self.reached()?)
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.made_stream().map_or(Ok(()), Stream::synchronize)
    }

    fn forget(&mut self, prefix: &str) {
        self.buffers.retain(|name, _| !name.starts_with(prefix));
    }

    fn set_scalar(&mut self, name: &str, value: f32) {
        self.set_index(name, u64::from(value.to_bits()));
    }

    fn set_index(&mut self, name: &str, value: u64) {
        let known = self.scalars.slots.contains_key(name);
        let slot = self.slot(name);
        self.scalars.changed |= !known || self.scalars.host[slot] != value;
        self.scalars.host[slot] = value;
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn set_urgent(&mut self, urgent: bool) -> Result<(), DeviceError> {
        if self.urgent == urgent {
            return Ok(());
        }
        let before = usize::from(self.urgent);
        self.urgent = urgent;
        if self.streams[before].is_none() {
            return Ok(());
        }
        // What is under way comes first.
        let ready = Event::to_wait_for(&self.core.context)?;
        ready.record(self.streams[before].as_ref().expect("checked above"))?;
        self.stream()?.wait_for(&ready)
    }

    fn bytes(&self) -> usize {
        let buffers: usize = self.buffers.values().map(|b| b.buffer.bytes()).sum();
        let given: usize = self.given.iter().map(|given| given.pinned.bytes()).sum();
        buffers + self.arena.bytes() + self.pinned.bytes() + given
    }

    fn shrink_to(&mut self, bytes: usize) {
        if self.bytes() > bytes {
            if let Some(stream) = self.made_stream() {
                // An error is returned by the next use.
                let _ = stream.synchronize();
            }
            self.graphs.clear();
            self.buffers.clear();
            self.arena = DeviceBuffer::empty(&self.core.context);
            self.pinned.release();
            self.given.clear();
            self.later.clear();
        }
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
