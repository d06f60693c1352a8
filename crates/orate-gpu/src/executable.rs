//! A plan as a list of dispatches, encoded into one command buffer for each run.

use crate::dispatch::{Call, Late, WORDS};
use crate::exit::Inside;
use crate::gpu::Gpu;
use crate::kernels::{self, Abilities, Operands};
use crate::memory::{GpuMemory, read_back};
use crate::parallel;
use crate::places::Places;
use crate::variant::Variant;
use crate::weights::{Wanted, WeightBank};
use orate_graph::{AtHome, BufferKind, DeviceError, Executable, Memory, Place, Plan, WeightLoader};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use wgpu::{
    BindGroup, BufferUsages, CommandBuffer, CommandEncoder, CommandEncoderDescriptor, ComputePass,
    ComputePassDescriptor, ComputePassTimestampWrites, ComputePipeline, QuerySetDescriptor, QueryType,
};

/// Maximum steps per set of timestamps.
const TIMED: usize = 2048;

/// Maximum dispatches that one thread encodes. A frame of a talker has two thousand, and the device would
/// wait for all of them.
const CHUNK: usize = 256;

/// Maximum threads that encode a plan or a loop.
const MOST_ENCODERS: usize = 8;

/// A dispatch, complete except for the places of a session.
struct Ready {
    pipeline: ComputePipeline,
    /// `None` if it reads no weights.
    weights: Option<BindGroup>,
    words: Vec<u32>,
    late: Vec<(usize, Late)>,
    groups: [u32; 3],
    /// Step index, for messages.
    step: usize,
}

/// See [`Executable`].
pub(crate) struct GpuExecutable {
    gpu: Arc<Gpu>,
    /// Unique among executables of the device.
    id: u64,
    plan: Plan,
    ready: AtHome<Vec<Ready>>,
    /// Bind group of dispatches without weights.
    nothing: AtHome<BindGroup>,
    /// Dispatches of each step; the last range has the final copies.
    steps: Vec<Range<usize>>,
    /// Dispatches of each step as plans list them, before draws took what follows them.
    launches: Vec<usize>,
}

/// Weights of each step.
pub(crate) fn wanted(gpu: &Gpu, plan: &Plan, source: &dyn WeightLoader) -> Vec<Wanted> {
    let of = |step| kernels::weights(plan, step, Abilities::of(gpu), source);
    plan.steps().iter().map(of).collect()
}

/// Values that are filled into dispatches.
#[derive(Clone, Copy)]
struct Run<'a> {
    places: &'a Places,
    /// A scalar that the run sets itself, and its value.
    counter: Option<(usize, u64)>,
}

impl Run<'_> {
    fn scalar(self, i: usize) -> u64 {
        match self.counter {
            Some((counter, value)) if counter == i => value,
            _ => self.places.scalars[i],
        }
    }
}

impl GpuExecutable {
    pub fn new(
        gpu: Arc<Gpu>,
        plan: Plan,
        bank: &mut WeightBank,
        source: &dyn WeightLoader,
    ) -> Result<Self, DeviceError> {
        // Values that exceed one buffer also exceed the 32-bit indices of kernels.
        let values = plan.steps().iter().flat_map(|s| s.node.inputs.iter().chain([&s.node.output]));
        let infos = values.map(|v| plan.info(*v));
        let largest = infos.map(|i| i.dtype.bytes_of(&i.shape) as u64).max().unwrap_or(0);
        if largest > gpu.largest_buffer {
            return Err(gpu.out_of_memory(largest));
        }
        if plan.arena_bytes() as u64 > gpu.largest_buffer {
            return Err(gpu.out_of_memory(plan.arena_bytes() as u64));
        }
        let began = Instant::now();
        let can = Abilities::of(&gpu);
        let wanted = wanted(&gpu, &plan, source);
        let groups = plan.weight_groups().iter().map(|group| kernels::group(group, can)).collect::<Vec<_>>();
        bank.fill(&gpu, &groups, &wanted, source)?;
        let filled = began.elapsed();
        let mut calls: Vec<(usize, Call)> = vec![];
        for (i, (step, wanted)) in plan.steps().iter().zip(&wanted).enumerate() {
            let o = Operands { plan: &plan, step, weights: &bank.placed(wanted), can };
            calls.extend(kernels::calls(&o).into_iter().map(|c| (i, c)));
        }
        let launches = ranges_of_steps(&calls, plan.steps().len()).iter().map(Range::len).collect();
        kernels::join_rows(&mut calls);
        let steps = ranges_of_steps(&calls, plan.steps().len());
        for &(buffer, v) in plan.copies() {
            let (from, to, info) = (plan.place(v), Place::Buffer(buffer, 0), plan.info(v));
            let words = info.dtype.bytes_of(&info.shape) / 4;
            calls.push((plan.steps().len(), kernels::store(from, to, words)));
        }
        let variants: Vec<Variant> = calls.iter().map(|(_, c)| c.variant.clone()).collect();
        let pipelines =
            gpu.pipelines.get(&gpu.device, &variants).map_err(|problem| match gpu.check_alive() {
                Ok(()) => DeviceError::Setup { device: gpu.name.clone(), problem },
                // A lost device rejects all kernels.
                Err(lost) => lost,
            })?;
        tracing::debug!(plan = plan.name(), weights = ?filled, elapsed = ?began.elapsed(), "kernels are there");
        let ready = calls.into_iter().zip(pipelines).map(|((step, c), pipeline)| {
            debug_assert!(c.params.words.len() <= WORDS, "parameters of {}", c.variant.file);
            Ok(Ready {
                pipeline,
                weights: match c.weights {
                    [None, None] => None,
                    of => Some(bank.bind_group(&gpu, of)?),
                },
                words: c.params.words,
                late: c.params.late,
                groups: c.groups,
                step,
            })
        });
        let ready = ready.collect::<Result<Vec<_>, DeviceError>>()?;
        let nothing = bank.bind_group(&gpu, [None, None])?;
        gpu.check_alive()?;
        let id = gpu.next_executable();
        let (ready, nothing) = (AtHome::new(ready), AtHome::new(nothing));
        Ok(GpuExecutable { gpu, id, plan, ready, nothing, steps, launches })
    }

    /// Makes room for what the plan writes, checks what it reads, and takes the places of all values from the
    /// memory, which gets them back after use.
    fn bind(&self, m: &mut GpuMemory) -> Result<Places, DeviceError> {
        let mut places = match m.kept_places(self.id) {
            Some(places) => places,
            None => self.look_up(m)?,
        };
        places.refresh(&m.scalars);
        Ok(places)
    }

    fn look_up(&self, m: &mut GpuMemory) -> Result<Places, DeviceError> {
        let plan = &self.plan;
        for b in plan.buffers().iter().filter(|b| b.kind == BufferKind::Output) {
            m.ensure(&b.name, b.dtype, &b.shape)?;
        }
        m.ensure_arena(self.plan.arena_bytes())?;
        let mut buffers = Vec::with_capacity(plan.buffers().len());
        for b in plan.buffers() {
            match (m.stored(&b.name), m.element_of(&b.name)) {
                (Some(s), Some(element)) if s.shape == b.shape && s.dtype == b.dtype => buffers.push(element),
                (other, _) => {
                    return Err(DeviceError::Buffer {
                        name: b.name.clone(),
                        plan: plan.name().to_owned(),
                        got: other
                            .map_or("nothing was written".to_owned(), |s| format!("{} {}", s.dtype, s.shape)),
                        needed: format!("{} {}", b.dtype, b.shape),
                    });
                }
            }
        }
        let slot = |name: &String| {
            let unset = || DeviceError::Scalar { name: name.clone(), plan: plan.name().to_owned() };
            m.scalars.slot(name).ok_or_else(unset)
        };
        let slots = plan.scalars().iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        let scalars = Vec::with_capacity(slots.len());
        Ok(Places { executable: self.id, arena: m.arena_element(), buffers, slots, scalars })
    }

    fn own<'m>(&self, memory: &'m mut dyn Memory) -> Result<(&'m mut GpuMemory, Inside), DeviceError> {
        let mixed = |got: &str| DeviceError::Mixed {
            plan: self.plan.name().to_owned(),
            made_for: self.plan.device().to_owned(),
            got: got.to_owned(),
        };
        if !memory.as_any().is::<GpuMemory>() {
            return Err(mixed(memory.device()));
        }
        let m = memory.as_any().downcast_mut::<GpuMemory>().expect("checked above");
        if !Arc::ptr_eq(&m.gpu, &self.gpu) {
            return Err(mixed("another device of this name"));
        }
        Ok((m, self.gpu.enter()?))
    }

    /// Encodes dispatches.
    fn encode(
        &self,
        pass: &mut ComputePass<'_>,
        run: Run<'_>,
        which: Range<usize>,
    ) -> Result<(), DeviceError> {
        let mut pipeline: Option<&ComputePipeline> = None;
        // Kernels without weights keep the current bind group.
        let mut weights: Option<&BindGroup> = None;
        pass.set_bind_group(1, &*self.nothing, &[]);
        let mut words = [0u32; WORDS];
        for r in &self.ready[which] {
            if pipeline != Some(&r.pipeline) {
                pass.set_pipeline(&r.pipeline);
                pipeline = Some(&r.pipeline);
            }
            if let Some(own) = &r.weights
                && weights != Some(own)
            {
                pass.set_bind_group(1, own, &[]);
                weights = Some(own);
            }
            let n = r.words.len();
            words[..n].copy_from_slice(&r.words);
            for &(at, late) in &r.late {
                words[at] = words[at].wrapping_add(self.late(r, run, late)?);
            }
            pass.set_immediates(0, bytemuck::cast_slice(&words[..n]));
            let [x, y, z] = r.groups;
            pass.dispatch_workgroups(x, y, z);
        }
        Ok(())
    }

    fn late(&self, r: &Ready, run: Run<'_>, late: Late) -> Result<u32, DeviceError> {
        Ok(match late {
            Late::Place(Place::Arena(offset)) => run.places.arena + (offset / 4) as u32,
            Late::Place(Place::Buffer(i, offset)) => run.places.buffers[i] + (offset / 4) as u32,
            Late::Place(Place::Nowhere) => 0,
            Late::Float(i) | Late::Half { scalar: i, high: false } => run.scalar(i) as u32,
            Late::Half { scalar: i, high: true } => (run.scalar(i) >> 32) as u32,
            Late::Row { scalar, rows, stride } => {
                let row = run.scalar(scalar);
                if row >= rows as u64 {
                    return Err(DeviceError::Operand {
                        plan: self.plan.name().to_owned(),
                        step: r.step,
                        problem: format!("row {row} of {rows}"),
                    });
                }
                (row as usize * stride) as u32
            }
        })
    }

    /// Encodes dispatches into a command buffer.
    fn commands(
        &self,
        bind_group: &BindGroup,
        run: Run<'_>,
        which: Range<usize>,
    ) -> Result<CommandBuffer, DeviceError> {
        let mut encoder = self.encoder();
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        pass.set_bind_group(0, bind_group, &[]);
        self.encode(&mut pass, run, which)?;
        drop(pass);
        Ok(encoder.finish())
    }

    /// Submits the plan once for each value of `counter`, or once with scalars as they are.
    fn submit(&self, m: &mut GpuMemory, counter: Option<(usize, usize)>) -> Result<(), DeviceError> {
        let places = self.bind(m)?;
        let submitted = self.submit_at(m, &places, counter);
        m.keep_places(places);
        submitted
    }

    fn submit_at(
        &self,
        m: &mut GpuMemory,
        places: &Places,
        counter: Option<(usize, usize)>,
    ) -> Result<(), DeviceError> {
        let Some(bind_group) = m.bind_group() else { return Ok(()) };
        let run = Run { places, counter: None };
        match counter {
            None if self.ready.len() <= CHUNK => {
                self.gpu.queue.submit([self.commands(bind_group, run, 0..self.ready.len())?]);
            }
            None => {
                let count = self.ready.len().div_ceil(CHUNK);
                let each = self.ready.len().div_ceil(count);
                let one = |i: usize| {
                    let end = self.ready.len().min((i + 1) * each);
                    self.commands(bind_group, run, end.min(i * each)..end)
                };
                let all = parallel::map(count, MOST_ENCODERS, one).into_iter();
                self.gpu.queue.submit(all.collect::<Result<Vec<_>, _>>()?);
            }
            // Encoding a step takes a fifth of the time of running it, and the device would wait for all of
            // them.
            Some((scalar, times)) => {
                let one = |i: usize| {
                    let run = Run { counter: Some((scalar, i as u64)), ..run };
                    self.commands(bind_group, run, 0..self.ready.len())
                };
                let all = parallel::map(times, MOST_ENCODERS, one).into_iter();
                self.gpu.queue.submit(all.collect::<Result<Vec<_>, _>>()?);
            }
        }
        m.counters.submissions += 1;
        self.gpu.check()
    }

    fn encoder(&self) -> CommandEncoder {
        self.gpu.device.create_command_encoder(&CommandEncoderDescriptor { label: Some(self.plan.name()) })
    }

    /// Steps that have dispatches, with these; the last step includes the final copies.
    fn ranges(&self) -> Vec<(usize, Range<usize>)> {
        let mut ranges: Vec<_> = self.steps.iter().cloned().enumerate().collect();
        if let Some((_, last)) = ranges.last_mut() {
            last.end = self.ready.len();
        }
        ranges.retain(|(_, range)| !range.is_empty());
        ranges
    }

    /// Times each step in a pass of its own, between two timestamps.
    fn profile_on_device(
        &self,
        m: &mut GpuMemory,
        run: Run<'_>,
        ranges: &[(usize, Range<usize>)],
    ) -> Result<Vec<f64>, DeviceError> {
        let count = 2 * ranges.len() as u32;
        let device = &self.gpu.device;
        let queries =
            device.create_query_set(&QuerySetDescriptor { label: None, ty: QueryType::Timestamp, count });
        let bytes = 8 * u64::from(count);
        let usage = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let resolved = self.gpu.buffer("timestamps", bytes, usage)?;
        let mut encoder = self.encoder();
        for (i, (_, range)) in ranges.iter().enumerate() {
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(ComputePassTimestampWrites {
                    query_set: &queries,
                    beginning_of_pass_write_index: Some(2 * i as u32),
                    end_of_pass_write_index: Some(2 * i as u32 + 1),
                }),
            });
            if let Some(bind_group) = m.bind_group() {
                pass.set_bind_group(0, bind_group, &[]);
                self.encode(&mut pass, run, range.clone())?;
            }
        }
        encoder.resolve_query_set(&queries, 0..count, &resolved, 0);
        self.gpu.queue.submit([encoder.finish()]);
        m.counters.submissions += 1;
        let period = f64::from(self.gpu.queue.get_timestamp_period()) * 1e-9;
        let mut times = vec![];
        let made = read_back(&self.gpu, &mut None, (&resolved, 0, bytes), &mut |data| {
            let words: &[u64] = bytemuck::cast_slice(data);
            times = words.chunks_exact(2).map(|p| p[1].saturating_sub(p[0]) as f64 * period).collect();
        })?;
        m.counters.allocations += 1 + made;
        Ok(times)
    }

    /// Times each step in a submission of its own, by the host's clock.
    fn profile_on_host(
        &self,
        m: &mut GpuMemory,
        run: Run<'_>,
        ranges: &[(usize, Range<usize>)],
    ) -> Result<Vec<f64>, DeviceError> {
        self.gpu.wait()?;
        let mut times = vec![];
        for (_, range) in ranges {
            let start = Instant::now();
            let mut encoder = self.encoder();
            if let Some(bind_group) = m.bind_group() {
                let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
                pass.set_bind_group(0, bind_group, &[]);
                self.encode(&mut pass, run, range.clone())?;
            }
            self.gpu.queue.submit([encoder.finish()]);
            m.counters.submissions += 1;
            self.gpu.wait()?;
            times.push(start.elapsed().as_secs_f64());
        }
        Ok(times)
    }
}

impl Executable for GpuExecutable {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns when the work is submitted; reading a result waits for it.
    fn run(&self, memory: &mut dyn Memory) -> Result<(), DeviceError> {
        let (m, _inside) = self.own(memory)?;
        self.submit(m, None)
    }

    /// One submission. `go_on` is asked once, before it.
    fn run_times(
        &self,
        memory: &mut dyn Memory,
        counter: &str,
        times: usize,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), DeviceError> {
        if times == 0 || !go_on() {
            return Ok(());
        }
        memory.set_index(counter, times as u64 - 1);
        let scalar = self.plan.scalars().iter().position(|s| s == counter);
        let (m, _inside) = self.own(memory)?;
        // A plan that does not read the counter runs as often.
        match scalar {
            Some(scalar) => self.submit(m, Some((scalar, times))),
            None => (0..times).try_for_each(|_| self.submit(m, None)),
        }
    }

    fn launches(&self) -> Vec<usize> {
        let copies = self.ready.len() - self.steps.last().map_or(0, |range| range.end);
        self.launches.iter().copied().chain(std::iter::repeat_n(1, copies)).collect()
    }

    fn profile(&self, memory: &mut dyn Memory) -> Result<Vec<f64>, DeviceError> {
        let (m, _inside) = self.own(memory)?;
        let places = self.bind(m)?;
        let (run, ranges) = (Run { places: &places, counter: None }, self.ranges());
        let each = if self.gpu.timestamps && (1..TIMED).contains(&ranges.len()) {
            self.profile_on_device(m, run, &ranges)?
        } else {
            self.profile_on_host(m, run, &ranges)?
        };
        let mut times = vec![0.0; self.plan.steps().len()];
        ranges.iter().zip(each).for_each(|((step, _), time)| times[*step] = time);
        Ok(times)
    }
}

/// Dispatches of each step; those of copies at the end come after them.
fn ranges_of_steps(calls: &[(usize, Call)], steps: usize) -> Vec<Range<usize>> {
    let end = |i: usize| calls.partition_point(|(step, _)| *step < i);
    (0..steps).map(|i| end(i)..end(i + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GpuDevice;
    use orate_graph::{DType, DeviceKind, Draw, Graph, Op, PrecisionPolicy, SampleRules, Value, Weight};
    use orate_testing::{Counting, RandomWeights};

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    fn device() -> GpuDevice {
        GpuDevice::new(Some(DeviceKind::Vulkan), 0, PrecisionPolicy::default(), None)
            .expect("a GPU or a rasterizer; on Debian and Ubuntu: apt-get install mesa-vulkan-drivers")
    }

    fn loaded(device: &GpuDevice, g: Graph) -> GpuExecutable {
        let weights = RandomWeights::of_graph(&g, 1);
        let plan = Plan::compile(g, device).expect("compiles");
        GpuExecutable::new(device.gpu.clone(), plan, &mut WeightBank::default(), &weights).expect("loads")
    }

    fn model() -> (GpuDevice, GpuExecutable) {
        let device = device();
        let mut g = Graph::new("places");
        let row = g.scalar("row");
        let x = g.state("x", DType::F32, [4, 4]).expect("declares");
        let y = g.matmul(x, Weight::named("w", [4, 4])).expect("builds");
        g.update("x", y).expect("fits");
        let y = g.select_row(y, row).expect("builds");
        g.output("y", y).expect("declares");
        let executable = loaded(&device, g);
        (device, executable)
    }

    /// A draw reads the rows that it selects, and adds them; op cases check the results.
    #[test]
    fn a_draw_and_what_it_selects_are_one_dispatch() {
        let device = device();
        // Logits that were made on the way, too.
        let mut g = Graph::new("draws");
        let x = g.input("x", DType::F32, [64, 8]).expect("declares");
        let settings = g.input("settings", DType::F32, [64, 4]).expect("declares");
        let seed = g.input("seed", DType::I32, [64, 2]).expect("declares");
        let number = g.input("number", DType::I32, [64]).expect("declares");
        let (mut row, mut sum) = (x, x);
        for i in 0..4 {
            let logits = g.matmul(row, Weight::named(format!("w{i}"), [8, 50])).expect("builds");
            let draw = Draw { settings, seed, number };
            let id = g.sample(Op::Sample(SampleRules::default()), logits, draw, None).expect("builds");
            row = g.embedding(id, Weight::named(format!("table{i}"), [50, 8])).expect("builds");
            row = g.reshape(row, [64, 8]).expect("builds");
            sum = g.add(sum, row).expect("builds");
        }
        g.output("sum", sum).expect("declares");
        assert_eq!(loaded(&device, g).ready.len(), 8, "a matmul and a draw each");
        let dispatches = |rows: usize, sum: fn(&mut Graph, Value, Value) -> Value| {
            let mut g = Graph::new("draw");
            let logits = g.input("logits", DType::F32, [rows, 50]).expect("declares");
            let settings = g.input("settings", DType::F32, [rows, 4]).expect("declares");
            let seed = g.input("seed", DType::I32, [rows, 2]).expect("declares");
            let number = g.input("number", DType::I32, [rows]).expect("declares");
            let before = g.input("before", DType::F32, [rows, 1, 8]).expect("declares");
            let draw = Draw { settings, seed, number };
            let id = g.sample(Op::Sample(SampleRules::default()), logits, draw, None).expect("builds");
            let row = g.embedding(id, Weight::named("table", [50, 8])).expect("builds");
            let y = sum(&mut g, row, before);
            g.output("y", y).expect("declares");
            loaded(&device, g).ready.len()
        };
        assert_eq!(dispatches(1, |_, row, _| row), 1);
        assert_eq!(dispatches(1, |g, row, before| g.add(before, row).expect("builds")), 1);
        assert_eq!(dispatches(1, |g, row, _| g.add(row, row).expect("builds")), 2);
        assert_eq!(dispatches(3, |_, row, _| row), 1);
        assert_eq!(dispatches(3, |g, row, before| g.add(before, row).expect("builds")), 1);
    }

    /// Allocations inside wgpu calls cannot be avoided, but ours can.
    #[test]
    fn finding_the_places_of_values_allocates_nothing() {
        let (device, executable) = model();
        let mut m = GpuMemory::new(device.gpu.clone());
        m.write_f32("x", &[4, 4].into(), &[1.0; 16]).expect("writes");
        m.set_index("row", 1);
        executable.run(&mut m).expect("runs");
        let before = Counting::asked_here();
        for row in 0..4 {
            m.set_index("row", row);
            let places = executable.bind(&mut m).expect("is there");
            assert_eq!(places.scalars, [row]);
            m.keep_places(places);
        }
        assert_eq!(Counting::asked_here() - before, 0);
    }

    /// Cached places equal freshly computed ones, whatever happened to the memory.
    #[test]
    fn kept_places_are_right() {
        let (device, executable) = model();
        let mut m = GpuMemory::new(device.gpu.clone());
        let check = |m: &mut GpuMemory, what: &str| {
            m.write_f32("x", &[4, 4].into(), &[1.0; 16]).expect("writes");
            m.set_index("row", 2);
            executable.run(m).expect(what);
            let kept = executable.bind(m).expect(what);
            let mut fresh = executable.look_up(m).expect(what);
            fresh.refresh(&m.scalars);
            assert_eq!(kept, fresh, "{what}");
            m.keep_places(kept);
        };
        check(&mut m, "the first time");
        check(&mut m, "as before");
        m.write_f32("large", &[1 << 20].into(), &vec![0.0; 1 << 20]).expect("writes");
        check(&mut m, "after another buffer");
        m.forget("large");
        m.write_f32("small", &[64].into(), &[0.0; 64]).expect("writes");
        check(&mut m, "others came and went");
        m.forget("y");
        check(&mut m, "an output was forgotten");
        m.write_f32("x", &[2, 2].into(), &[1.0; 4]).expect("writes");
        assert!(executable.run(&mut m).is_err(), "of another shape");
        check(&mut m, "and back");
        m.ensure_arena(1 << 16).expect("room");
        check(&mut m, "another arena");
        m.extend(&[("x", &[4, 4].into())]).expect("room");
        check(&mut m, "moved");
        m.shrink_to(0);
        assert!(executable.run(&mut m).is_err(), "nothing is there");
        check(&mut m, "a new beginning");
    }
}
