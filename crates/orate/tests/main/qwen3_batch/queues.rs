//! The CPU as a device whose memories have queues, so that frames are made ahead, and which knows how often
//! the host waits for a frame while the next one is queued already.

use orate_cpu::CpuDevice;
use orate_graph::{
    Counters, DType, Device, DeviceError, DeviceInfo, Memory, ModelOnDevice, Op, Pacing, Part, Plan, Shape,
    Target, Ticket, ValueInfo, WeightLoader,
};
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What the host has asked of the memories.
#[derive(Default)]
pub struct Record {
    /// Waits for copies that were asked for before.
    waits: AtomicUsize,
    /// Those during which a device would have nothing to do.
    idle: AtomicUsize,
    extensions: Mutex<Vec<Extension>>,
}

/// Rows and capacity of caches that were to be extended, and whether there was room.
type Extension = (usize, usize, bool);

impl Record {
    /// Number of waits, and of those during which a device would have nothing to do, since the last call.
    pub fn waits(&self) -> (usize, usize) {
        (self.waits.swap(0, Ordering::Relaxed), self.idle.swap(0, Ordering::Relaxed))
    }

    /// Extensions since the last call.
    pub fn extensions(&self) -> Vec<Extension> {
        std::mem::take(&mut self.extensions.lock().expect("no panic"))
    }
}

pub type HasRoom = fn(&str, &Shape) -> bool;

pub struct WithQueues {
    pub cpu: CpuDevice,
    pub record: Arc<Record>,
    /// Whether it has room for a state of this name and shape.
    pub has_room: HasRoom,
}

impl Target for WithQueues {
    fn name(&self) -> String {
        self.cpu.name()
    }

    fn kernel(&self, op: &Op, inputs: &[&ValueInfo]) -> Result<String, String> {
        self.cpu.kernel(op, inputs)
    }
}

impl Device for WithQueues {
    fn open(&self, weights: Arc<dyn WeightLoader + Send + Sync>) -> Box<dyn ModelOnDevice> {
        self.cpu.open(weights)
    }

    fn memory(&self) -> Box<dyn Memory> {
        let (record, has_room) = (self.record.clone(), self.has_room);
        Box::new(Queue { memory: self.cpu.memory(), under_way: 0, record, has_room })
    }

    fn threads(&self) -> usize {
        self.cpu.threads()
    }

    fn pacing(&self) -> Pacing {
        Pacing { shared_workspaces: true, ..Pacing::QUEUES }
    }

    fn memory_kept(&self) -> usize {
        256 << 20
    }

    fn weight_bytes(&self, plans: &[Plan], source: &dyn WeightLoader) -> u64 {
        self.cpu.weight_bytes(plans, source)
    }

    fn info(&self) -> DeviceInfo {
        self.cpu.info()
    }
}

/// A memory that counts copies under way.
struct Queue {
    memory: Box<dyn Memory>,
    under_way: usize,
    record: Arc<Record>,
    has_room: HasRoom,
}

impl Queue {
    fn check_room(&self, name: &str, shape: &Shape) -> Result<(), DeviceError> {
        if (self.has_room)(name, shape) {
            return Ok(());
        }
        let (device, what) = (self.device().to_owned(), format!("{name} of {shape}"));
        Err(DeviceError::OutOfMemory { device, what })
    }
}

impl Memory for Queue {
    fn device(&self) -> &str {
        self.memory.device()
    }

    fn shape_of(&self, name: &str) -> Option<&Shape> {
        self.memory.shape_of(name)
    }

    fn write_f32(&mut self, name: &str, shape: &Shape, data: &[f32]) -> Result<(), DeviceError> {
        self.memory.write_f32(name, shape, data)
    }

    fn write_i32(&mut self, name: &str, shape: &Shape, data: &[i32]) -> Result<(), DeviceError> {
        self.memory.write_i32(name, shape, data)
    }

    fn write_bytes(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &Shape,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.memory.write_bytes(name, dtype, shape, bytes)
    }

    fn read_bytes(&mut self, name: &str, out: &mut Vec<u8>) -> Result<(DType, Shape), DeviceError> {
        self.memory.read_bytes(name, out)
    }

    fn read_f32(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, DeviceError> {
        self.memory.read_f32(name, out)
    }

    fn read_i32(&mut self, name: &str, out: &mut Vec<i32>) -> Result<Shape, DeviceError> {
        self.memory.read_i32(name, out)
    }

    fn read_later(&mut self, name: &str) -> Result<Ticket, DeviceError> {
        self.under_way += 1;
        self.memory.read_later(name)
    }

    fn finish(&mut self, ticket: Ticket, out: &mut Vec<i32>) -> Result<Shape, DeviceError> {
        self.under_way -= 1;
        self.record.waits.fetch_add(1, Ordering::Relaxed);
        self.record.idle.fetch_add(usize::from(self.under_way == 0), Ordering::Relaxed);
        self.memory.finish(ticket, out)
    }

    fn discard(&mut self, ticket: Ticket) {
        self.under_way -= 1;
        self.memory.discard(ticket);
    }

    fn clear(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<(), DeviceError> {
        self.check_room(name, shape)?;
        self.memory.clear(name, dtype, shape)
    }

    fn extend(&mut self, buffers: &[(&str, &Shape)]) -> Result<(), DeviceError> {
        let room = buffers.iter().try_for_each(|(name, shape)| self.check_room(name, shape));
        if let Some((_, shape)) = buffers.iter().find(|(name, _)| name.contains("keys")) {
            let extension = (shape.dims()[0], shape.dims()[1], room.is_ok());
            self.record.extensions.lock().expect("no panic").push(extension);
        }
        room?;
        self.memory.extend(buffers)
    }

    fn copy_from(&mut self, source: &mut dyn Memory, parts: &[Part<'_>]) -> Result<(), DeviceError> {
        self.memory.copy_from(source, parts)
    }

    fn forget(&mut self, prefix: &str) {
        self.memory.forget(prefix);
    }

    fn set_scalar(&mut self, name: &str, value: f32) {
        self.memory.set_scalar(name, value);
    }

    fn set_index(&mut self, name: &str, value: u64) {
        self.memory.set_index(name, value);
    }

    fn counters(&self) -> Counters {
        self.memory.counters()
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn shrink_to(&mut self, bytes: usize) {
        assert_eq!(self.under_way, 0, "a memory is given back when nothing of it is under way");
        self.memory.shrink_to(bytes);
    }

    /// Executors look for their own memory.
    fn as_any(&mut self) -> &mut dyn Any {
        self.memory.as_any()
    }
}
