//! The interpreter as a [`Device`]: runs pipelines without kernels, and exposes errors in memory plans.
//!
//! Steps read and write one arena at the offsets of the plan. Before a run, arena and outputs hold NaN, and
//! so does each result before its step reads operands. Overlapping lifetimes, results placed over operands,
//! missing copies and reads of unwritten memory therefore show in the results. Unwritten integers are
//! `i32::MIN`.

use crate::cases::single_op;
use crate::interpreter::{Buffers, Data, ScalarValue, Scalars, interpret};
use orate_graph::{
    BufferKind, Counters, DType, Device, DeviceClass, DeviceError, DeviceInfo, DeviceKind, Executable,
    Fusions, Memory, ModelOnDevice, Op, Part, Pending, Place, Plan, Shape, Step, Target, Ticket, Value,
    ValueInfo, WeightLoader, extended, fitting,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

const NAME: &str = "reference";

/// Runs plans with the interpreter: slow, and correct by definition.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceDevice;

impl Target for ReferenceDevice {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn kernel(&self, _op: &Op, _inputs: &[&ValueInfo]) -> Result<String, String> {
        Ok("interpreter".to_owned())
    }
}

/// [`ReferenceDevice`] with the fusions of another device. A fused step reads all operands from the plan's
/// memory, runs op by op on temporary values, and writes its results at the end.
#[derive(Clone, Debug, Default)]
pub struct FusingDevice(pub Fusions);

impl FusingDevice {
    /// Enables every fusion.
    pub fn all() -> Self {
        FusingDevice(Fusions {
            add_row: true,
            heads: true,
            attended_heads: &[1, 2, 4],
            attended_width: 128,
            rotate_queries: true,
            matmul_rows: 32,
            matmul_multiple: [4, 4],
            matmul_bytes: usize::MAX,
            gated_rows: 16,
            norm_multiple: Some([4, 4]),
            norm_rows: 2,
            layer_norm_rows: 2,
            views: true,
            ..Fusions::default()
        })
    }
}

impl Target for FusingDevice {
    fn name(&self) -> String {
        ReferenceDevice.name()
    }

    fn kernel(&self, op: &Op, inputs: &[&ValueInfo]) -> Result<String, String> {
        ReferenceDevice.kernel(op, inputs)
    }

    fn fusions(&self) -> Fusions {
        self.0.clone()
    }
}

impl Device for FusingDevice {
    fn open(&self, weights: Arc<dyn WeightLoader + Send + Sync>) -> Box<dyn ModelOnDevice> {
        ReferenceDevice.open(weights)
    }

    fn memory(&self) -> Box<dyn Memory> {
        ReferenceDevice.memory()
    }

    fn threads(&self) -> usize {
        ReferenceDevice.threads()
    }

    fn memory_kept(&self) -> usize {
        ReferenceDevice.memory_kept()
    }

    fn weight_bytes(&self, plans: &[Plan], source: &dyn WeightLoader) -> u64 {
        ReferenceDevice.weight_bytes(plans, source)
    }

    fn info(&self) -> DeviceInfo {
        ReferenceDevice.info()
    }
}

impl Device for ReferenceDevice {
    fn open(&self, weights: Arc<dyn WeightLoader + Send + Sync>) -> Box<dyn ModelOnDevice> {
        Box::new(Model { weights })
    }

    fn memory(&self) -> Box<dyn Memory> {
        Box::new(HostMemory::default())
    }

    fn threads(&self) -> usize {
        1
    }

    fn memory_kept(&self) -> usize {
        0
    }

    /// Weights are re-evaluated whenever they are needed.
    fn weight_bytes(&self, _plans: &[Plan], _source: &dyn WeightLoader) -> u64 {
        0
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            kind: DeviceKind::Cpu,
            index: 0,
            name: NAME.to_owned(),
            class: DeviceClass::Cpu,
            memory: None,
            free_memory: None,
            driver: "interpreter".to_owned(),
            features: vec![],
            card: None,
        }
    }
}

struct Model {
    weights: Arc<dyn WeightLoader + Send + Sync>,
}

impl ModelOnDevice for Model {
    fn load(&self, plan: Plan) -> Result<Arc<dyn Executable>, DeviceError> {
        if plan.device() != NAME {
            return Err(DeviceError::Mixed {
                plan: plan.name().to_owned(),
                made_for: plan.device().to_owned(),
                got: NAME.to_owned(),
            });
        }
        for w in plan.steps().iter().flat_map(|s| s.weights()) {
            w.evaluate(self.weights.as_ref())?;
        }
        Ok(Arc::new(Loaded { plan, weights: self.weights.clone() }))
    }

    fn weight_bytes(&self) -> u64 {
        0 // re-evaluated in each step
    }
}

struct Loaded {
    plan: Plan,
    weights: Arc<dyn WeightLoader + Send + Sync>,
}

impl Loaded {
    fn run_steps(&self, memory: &mut dyn Memory, seconds: &mut Vec<f64>) -> Result<(), DeviceError> {
        let plan = &self.plan;
        let owner = memory.device().to_owned();
        let memory = memory.as_any().downcast_mut::<HostMemory>().ok_or_else(|| DeviceError::Mixed {
            plan: plan.name().to_owned(),
            made_for: NAME.to_owned(),
            got: owner,
        })?;
        memory.counters.submissions += 1;
        for b in plan.buffers() {
            if b.kind == BufferKind::Output {
                memory.buffers.insert(b.name.clone(), (b.shape.clone(), unwritten(b.dtype, &b.shape)));
            }
            let found = memory.buffers.get(&b.name);
            if !found.is_some_and(|(s, d)| *s == b.shape && d.dtype() == b.dtype) {
                return Err(DeviceError::Buffer {
                    name: b.name.clone(),
                    plan: plan.name().to_owned(),
                    got: found.map_or("nothing".to_owned(), |(s, d)| format!("{} {s}", d.dtype())),
                    needed: format!("{} {}", b.dtype, b.shape),
                });
            }
        }
        if let Some(name) = plan.scalars().iter().find(|s| !memory.scalars.contains_key(*s)) {
            return Err(DeviceError::Scalar { name: name.clone(), plan: plan.name().to_owned() });
        }
        memory.arena = vec![f32::NAN; plan.arena_bytes() / 4];
        for (i, step) in plan.steps().iter().enumerate() {
            let start = Instant::now();
            // NaN first, unless in place: this destroys an operand that shares memory with the result.
            for node in step.nodes.iter().filter(|n| !n.op.in_place()) {
                let info = plan.info(node.output);
                if plan.place(node.output) != Place::Nowhere {
                    memory.write(plan, plan.place(node.output), unwritten(info.dtype, &info.shape));
                }
            }
            let made = self.run_nodes(memory, i, step)?;
            for (v, data) in made.into_iter().filter(|(v, _)| plan.place(*v) != Place::Nowhere) {
                memory.write(plan, plan.place(v), data);
            }
            seconds.push(start.elapsed().as_secs_f64());
        }
        for (b, v) in plan.copies() {
            let data = memory.read(plan, *v);
            memory.write(plan, Place::Buffer(*b, 0), data);
        }
        Ok(())
    }

    /// Runs the ops of a step on operands in `memory` and on results of earlier ops of the step.
    fn run_nodes(
        &self,
        memory: &HostMemory,
        i: usize,
        step: &Step,
    ) -> Result<Vec<(Value, Data)>, DeviceError> {
        let plan = &self.plan;
        let mut made: Vec<(Value, Data)> = vec![];
        for node in &step.nodes {
            let infos: Vec<&ValueInfo> = node.inputs.iter().map(|v| plan.info(*v)).collect();
            let mut buffers = Buffers::new();
            for (n, v) in node.inputs.iter().enumerate() {
                let own = made.iter().rev().find(|(own, _)| own == v);
                let data = own.map_or_else(|| memory.read(plan, *v), |(_, data)| data.clone());
                buffers.insert(format!("in{n}"), data);
            }
            let out = &plan.info(node.output).shape;
            let graph = single_op(plan.name(), plan.scalars(), &node.op, &infos, out);
            let result = interpret(&graph, self.weights.as_ref(), &buffers, &memory.scalars);
            let mut result = result.map_err(|e| DeviceError::Operand {
                plan: plan.name().to_owned(),
                step: i,
                problem: e.to_string(),
            })?;
            made.push((node.output, result.remove("out").expect("single ops have an output `out`")));
        }
        Ok(made)
    }
}

/// Copies `len` bytes between elements of one type.
fn copy(from: &Data, at: usize, to: &mut Data, to_at: usize, len: usize) {
    match (from, to) {
        (Data::F32(x), Data::F32(y)) => y[to_at / 4..][..len / 4].copy_from_slice(&x[at / 4..][..len / 4]),
        (Data::I32(x), Data::I32(y)) => y[to_at / 4..][..len / 4].copy_from_slice(&x[at / 4..][..len / 4]),
        (Data::Compact(a, x), Data::Compact(b, y)) if a == b => {
            y[to_at..][..len].copy_from_slice(&x[at..][..len])
        }
        _ => panic!("elements of two types"),
    }
}

/// Content of memory before its first write.
fn unwritten(dtype: DType, shape: &Shape) -> Data {
    match dtype {
        DType::F32 => Data::F32(vec![f32::NAN; shape.len()]),
        DType::I32 => Data::I32(vec![i32::MIN; shape.len()]),
        // NaN as 16-bit floats and as q8_0 scales.
        _ => Data::Compact(dtype, vec![0xff; dtype.bytes_of(shape)]),
    }
}

impl Executable for Loaded {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn run(&self, memory: &mut dyn Memory) -> Result<(), DeviceError> {
        self.run_steps(memory, &mut vec![])
    }

    fn profile(&self, memory: &mut dyn Memory) -> Result<Vec<f64>, DeviceError> {
        let mut seconds = vec![];
        self.run_steps(memory, &mut seconds)?;
        Ok(seconds)
    }
}

#[derive(Default)]
struct HostMemory {
    buffers: BTreeMap<String, (Shape, Data)>,
    scalars: Scalars,
    arena: Vec<f32>,
    later: Pending<(Shape, Vec<i32>)>,
    counters: Counters,
}

impl HostMemory {
    fn read(&self, plan: &Plan, v: Value) -> Data {
        match plan.place(v) {
            Place::Buffer(b, offset) => {
                let range = offset / 4..offset / 4 + plan.info(v).shape.len();
                match &self.buffers[&plan.buffers()[b].name].1 {
                    Data::F32(x) => Data::F32(x[range].to_vec()),
                    Data::I32(x) => Data::I32(x[range].to_vec()),
                    whole => whole.clone(),
                }
            }
            Place::Arena(offset) => {
                let info = plan.info(v);
                let words = &self.arena[offset / 4..][..info.shape.len()];
                match info.dtype {
                    DType::F32 => Data::F32(words.to_vec()),
                    DType::I32 => Data::I32(words.iter().map(|x| x.to_bits() as i32).collect()),
                    dtype => panic!("plan `{}` has a temporary in {dtype}", plan.name()),
                }
            }
            Place::Nowhere => panic!("plan `{}` reads value {} that has no place", plan.name(), v.index()),
        }
    }

    fn write(&mut self, plan: &Plan, place: Place, data: Data) {
        match (place, data) {
            (Place::Buffer(b, offset), data) => {
                let b = &plan.buffers()[b];
                let old = self.buffers.get_mut(&b.name).map(|(_, data)| data);
                match (old, data) {
                    (Some(Data::F32(to)), Data::F32(x)) => to[offset / 4..][..x.len()].copy_from_slice(&x),
                    (Some(Data::I32(to)), Data::I32(x)) => to[offset / 4..][..x.len()].copy_from_slice(&x),
                    (_, data) => {
                        self.buffers.insert(b.name.clone(), (b.shape.clone(), data));
                    }
                }
            }
            (Place::Arena(offset), Data::F32(x)) => self.arena[offset / 4..][..x.len()].copy_from_slice(&x),
            (Place::Arena(offset), Data::I32(x)) => {
                let words = self.arena[offset / 4..].iter_mut();
                words.zip(x).for_each(|(word, x)| *word = f32::from_bits(x as u32));
            }
            (Place::Arena(_), Data::Compact(dtype, _)) => {
                panic!("plan `{}` has a temporary in {dtype}", plan.name())
            }
            (Place::Nowhere, _) => panic!("plan `{}` writes to a value that has no place", plan.name()),
        }
    }

    fn host_write(&mut self, name: &str, shape: &Shape, data: Data) {
        assert!(data.fills(data.dtype(), shape), "buffer `{name}` {shape}");
        self.counters.bytes_up += data.bytes() as u64;
        self.buffers.insert(name.to_owned(), (shape.clone(), data));
    }

    /// Reads a buffer of a given element type for the host.
    fn host_read<T: Clone>(
        &mut self,
        name: &str,
        dtype: DType,
        words: impl FnOnce(&Data) -> Option<&[T]>,
        out: &mut Vec<T>,
    ) -> Result<Shape, DeviceError> {
        let found = self.buffers.get(name);
        let Some((shape, x)) = found.and_then(|(shape, data)| Some((shape, words(data)?))) else {
            return Err(DeviceError::Buffer {
                name: name.to_owned(),
                plan: "read by the host".to_owned(),
                got: found.map_or("nothing".to_owned(), |(s, d)| format!("{} {s}", d.dtype())),
                needed: format!("a buffer of {dtype}"),
            });
        };
        x.clone_into(out);
        self.counters.read_backs += 1;
        self.counters.bytes_down += 4 * x.len() as u64;
        Ok(shape.clone())
    }
}

impl Memory for HostMemory {
    fn device(&self) -> &str {
        NAME
    }

    fn shape_of(&self, name: &str) -> Option<&Shape> {
        self.buffers.get(name).map(|(shape, _)| shape)
    }

    fn write_f32(&mut self, name: &str, shape: &Shape, data: &[f32]) -> Result<(), DeviceError> {
        self.host_write(name, shape, data.to_vec().into());
        Ok(())
    }

    fn write_i32(&mut self, name: &str, shape: &Shape, data: &[i32]) -> Result<(), DeviceError> {
        self.host_write(name, shape, data.to_vec().into());
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
        let words = bytes.as_chunks::<4>().0;
        let data = match dtype {
            DType::F32 => Data::F32(words.iter().map(|b| f32::from_le_bytes(*b)).collect()),
            DType::I32 => Data::I32(words.iter().map(|b| i32::from_le_bytes(*b)).collect()),
            _ => Data::Compact(dtype, bytes.to_vec()),
        };
        self.host_write(name, shape, data);
        Ok(())
    }

    fn read_bytes(&mut self, name: &str, out: &mut Vec<u8>) -> Result<(DType, Shape), DeviceError> {
        let Some((shape, data)) = self.buffers.get(name) else {
            return Err(DeviceError::Buffer {
                name: name.to_owned(),
                plan: "read by the host".to_owned(),
                got: "nothing".to_owned(),
                needed: "a buffer".to_owned(),
            });
        };
        out.clear();
        match data {
            Data::F32(x) => out.extend(x.iter().flat_map(|x| x.to_le_bytes())),
            Data::I32(x) => out.extend(x.iter().flat_map(|x| x.to_le_bytes())),
            Data::Compact(_, bytes) => out.extend_from_slice(bytes),
        }
        self.counters.read_backs += 1;
        self.counters.bytes_down += out.len() as u64;
        Ok((data.dtype(), shape.clone()))
    }

    fn read_f32(&mut self, name: &str, out: &mut Vec<f32>) -> Result<Shape, DeviceError> {
        self.host_read(name, DType::F32, Data::as_f32, out)
    }

    fn read_i32(&mut self, name: &str, out: &mut Vec<i32>) -> Result<Shape, DeviceError> {
        self.host_read(name, DType::I32, Data::as_i32, out)
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
        let zeros = match dtype {
            DType::F32 => Data::F32(vec![0.0; shape.len()]),
            DType::I32 => Data::I32(vec![0; shape.len()]),
            _ => Data::Compact(dtype, vec![0; dtype.bytes_of(shape)]),
        };
        self.buffers.insert(name.to_owned(), (shape.clone(), zeros));
        Ok(())
    }

    fn reserve(&mut self, name: &str, dtype: DType, shape: &Shape) -> Result<(), DeviceError> {
        self.buffers.insert(name.to_owned(), (shape.clone(), unwritten(dtype, shape)));
        Ok(())
    }

    fn extend(&mut self, buffers: &[(&str, &Shape)]) -> Result<(), DeviceError> {
        for &(name, shape) in buffers {
            let found = self.buffers.get_mut(name);
            let (old, new) = extended(name, found.as_ref().map(|(s, d)| (d.dtype(), s)), shape)?;
            let Some((old_shape, data)) = found else { continue };
            let mut larger = unwritten(data.dtype(), shape);
            for b in 0..shape.dims()[0] {
                copy(data, b * old, &mut larger, b * new, old);
            }
            (*old_shape, *data) = (shape.clone(), larger);
        }
        Ok(())
    }

    fn copy_from(&mut self, source: &mut dyn Memory, parts: &[Part<'_>]) -> Result<(), DeviceError> {
        let (made_for, got) = (NAME.to_owned(), source.device().to_owned());
        let Some(from) = source.as_any().downcast_ref::<HostMemory>() else {
            return Err(DeviceError::Mixed { plan: "a copy on the device".to_owned(), made_for, got });
        };
        for part in parts {
            let (source, target) = (from.buffers.get(part.from.0), self.buffers.get_mut(part.to.0));
            let info = |(shape, data): &(Shape, Data)| (data.dtype(), shape.clone());
            let (a, b) = (source.map(info), target.as_deref().map(info));
            part.check(a.as_ref().map(|(d, s)| (*d, s)), b.as_ref().map(|(d, s)| (*d, s)))?;
            if let (Some((shape, x)), Some((_, y))) = (source, target) {
                let [at, to, len] = part.bytes(x.dtype(), shape);
                copy(x, at, y, to, len);
            }
        }
        Ok(())
    }

    fn forget(&mut self, prefix: &str) {
        self.buffers.retain(|name, _| !name.starts_with(prefix));
    }

    fn set_scalar(&mut self, name: &str, value: f32) {
        self.scalars.insert(name.to_owned(), ScalarValue::F32(value));
    }

    fn set_index(&mut self, name: &str, value: u64) {
        self.scalars.insert(name.to_owned(), ScalarValue::U64(value));
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn bytes(&self) -> usize {
        4 * self.arena.len() + self.buffers.values().map(|(_, data)| data.bytes()).sum::<usize>()
    }

    fn shrink_to(&mut self, bytes: usize) {
        if self.bytes() > bytes {
            self.arena = vec![];
            self.buffers.clear();
        }
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
