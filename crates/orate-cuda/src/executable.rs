//! A plan bound to weights. In a memory it is recorded as a CUDA graph, which then runs as a whole: at once,
//! or with many callers when it runs for the second time.

use crate::driver::{DeviceBuffer, Event, Facts, Launch, Stream};
use crate::kernels::CLUSTER_ARCH;
use crate::lower::{
    Addresses, Chain, Layer, Pointer, Work, chains, join_followers, join_norms, join_outputs, join_rows,
    layers, lower, read_early,
};
use crate::machine_code::Name;
use crate::memory::CudaMemory;
use crate::shared::Core;
use crate::weights::WeightBank;
use orate_graph::{BufferKind, DType, DeviceError, Executable, Memory, Op, Plan, PrecisionPolicy};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// First driver that can record programmatic dependent launches.
const EARLY_DRIVER: i32 = 12030;

/// Launches of a plan that is recorded once, and not for each time that it runs, if it runs several times: so
/// many take so long that launching the graph again costs nothing beside them, but recording takes
/// milliseconds, which a plan of a new length adds to the first sound.
const LONG: usize = 400;

/// Name of the buffer in which blocks of chains exchange values. It is zero at first.
const SLOTS: &str = "slots of chains";

/// Repetitions of a step for timing.
const TIMED: usize = 16;

/// See [`Executable`].
pub(crate) struct CudaExecutable {
    core: Arc<Core>,
    id: u64,
    plan: Plan,
    /// Launches, each with the index of its step.
    works: Vec<(usize, Work)>,
    /// Launches that run as one, in order.
    chains: Vec<Chain>,
    layers: Vec<Layer>,
    /// How many launches each step would have alone, then each copy at the end.
    launches: Vec<usize>,
    /// Scalars that some kernel reads.
    scalars: BTreeSet<usize>,
    /// Scalars that select a row: the scalar, the number of rows, the step.
    rows: Vec<(usize, usize, usize)>,
    /// Keeps the weights alive.
    _slabs: Vec<Arc<DeviceBuffer>>,
}

impl CudaExecutable {
    /// Binds a plan to the weights of `bank` and loads its kernels on the device.
    pub fn new(core: Arc<Core>, plan: Plan, bank: &WeightBank) -> Result<Self, DeviceError> {
        let start = Instant::now();
        let lowered = Lowered::new(&plan, bank, &core.policy, &core.context.facts, core.driver.version);
        core.kernels.load(&core.context, lowered.kernels())?;
        let Lowered { works, chains, layers, launches } = lowered;
        for chain in &chains {
            tracing::debug!(plan = plan.name(), launches = chain.works.len(), "run as one");
        }
        if !layers.is_empty() {
            tracing::debug!(
                plan = plan.name(),
                layers = layers.len(),
                "are one launch after their attention"
            );
        }
        tracing::debug!(plan = plan.name(), elapsed = ?start.elapsed(), "kernels are on the device");
        let pointers = works.iter().flat_map(|(_, w)| &w.pointers);
        let scalars =
            pointers.filter_map(|p| if let Pointer::Scalar(i) = p { Some(*i) } else { None }).collect();
        let nodes =
            plan.steps().iter().enumerate().flat_map(|(i, step)| step.nodes.iter().map(move |n| (i, n)));
        let rows = nodes.filter_map(|(i, node)| match &node.op {
            Op::SelectRow { index } => Some((index.index(), plan.info(node.inputs[0]).shape.dims()[0], i)),
            _ => None,
        });
        let rows = rows.collect();
        Ok(CudaExecutable {
            id: core.next_id(),
            works,
            chains,
            layers,
            launches,
            scalars,
            rows,
            _slabs: bank.slabs(),
            plan,
            core,
        })
    }

    /// Returns the memory if it belongs to this device.
    fn own<'m>(&self, memory: &'m mut dyn Memory) -> Result<&'m mut CudaMemory, DeviceError> {
        let mixed = |got: &str| DeviceError::Mixed {
            plan: self.plan.name().to_owned(),
            made_for: self.plan.device().to_owned(),
            got: got.to_owned(),
        };
        if !memory.as_any().is::<CudaMemory>() {
            return Err(mixed(memory.device()));
        }
        let m = memory.as_any().downcast_mut::<CudaMemory>().expect("checked above");
        self.core.context.bind()?;
        if Arc::ptr_eq(&m.core.context, &self.core.context) {
            Ok(m)
        } else {
            Err(mixed("another CUDA device"))
        }
    }

    /// Creates what the plan writes, checks what it reads, and stores all addresses in `to`. `counter` is a
    /// scalar that the plan sets itself, with its exclusive bound.
    fn bind(
        &self,
        m: &mut CudaMemory,
        counter: Option<(&str, usize)>,
        to: &mut Addresses,
    ) -> Result<(), DeviceError> {
        let plan = || self.plan.name().to_owned();
        to.buffers.clear();
        for b in self.plan.buffers() {
            if b.kind == BufferKind::Output {
                m.ensure(&b.name, b.dtype, &b.shape)?;
            }
            match m.buffer(&b.name) {
                Some(s) if s.shape == b.shape && s.dtype == b.dtype => to.buffers.push(s.buffer.pointer()),
                other => {
                    return Err(DeviceError::Buffer {
                        name: b.name.clone(),
                        plan: plan(),
                        got: other
                            .map_or("nothing was written".to_owned(), |s| format!("{} {}", s.dtype, s.shape)),
                        needed: format!("{} {}", b.dtype, b.shape),
                    });
                }
            }
        }
        to.scalars.clear();
        to.scalars.resize(self.plan.scalars().len(), 0);
        for (i, name) in self.plan.scalars().iter().enumerate() {
            let counts = counter.is_some_and(|(c, _)| c == name);
            if !self.scalars.contains(&i) && !counts {
                continue;
            }
            let value = match counter.filter(|_| counts) {
                Some((_, times)) => times as u64 - 1,
                None => {
                    m.scalar(name).ok_or_else(|| DeviceError::Scalar { name: name.clone(), plan: plan() })?
                }
            };
            if let Some((_, rows, step)) =
                self.rows.iter().find(|(s, rows, _)| *s == i && value >= *rows as u64)
            {
                let problem = format!("row {value} of {rows}");
                return Err(DeviceError::Operand { plan: plan(), step: *step, problem });
            }
            to.scalars[i] = m.scalar_pointer(name)?;
        }
        to.arena = m.ensure_arena(self.plan.arena_bytes())?;
        let slots = self.chains.iter().map(|chain| chain.slot_bytes).max();
        to.slots = match slots {
            Some(bytes) => m.ensure(SLOTS, DType::I32, &[bytes / 4].into())?,
            None => 0,
        };
        Ok(())
    }

    fn start(&self, stream: &Stream, work: &Work, addresses: &Addresses) -> Result<(), DeviceError> {
        self.start_with(stream, work, &work.arguments(addresses)?, false)
    }

    fn start_with(
        &self,
        stream: &Stream,
        work: &Work,
        arguments: &[u64],
        cooperative: bool,
    ) -> Result<(), DeviceError> {
        let early = self.core.context.facts.arch >= CLUSTER_ARCH && self.core.driver.version >= EARLY_DRIVER;
        let launch = Launch {
            function: self.core.kernels.get(&self.core.context, work.kernel())?,
            grid: work.grid,
            threads: work.threads,
            shared: work.shared,
            cluster: work.cluster,
            early: early && !cooperative,
            cooperative,
        };
        // SAFETY: lowering produces the struct of each kernel; `bind` allocated every place of the plan, and
        // the memory plan keeps a step's output apart from its inputs.
        unsafe { stream.start(&launch, arguments) }
    }

    /// Starts all launches, in order.
    fn start_all(&self, stream: &Stream, addresses: &Addresses) -> Result<(), DeviceError> {
        let (mut next, mut chains) = (0, self.chains.iter().peekable());
        let mut layers = self.layers.iter().peekable();
        while next < self.works.len() {
            if let Some(chain) = chains.next_if(|chain| chain.works.start == next) {
                self.start_with(stream, &chain.shape(), &chain.arguments(addresses), true)?;
                next = chain.works.end;
            } else if let Some(layer) = layers.next_if(|layer| layer.works.start == next) {
                self.start(stream, &layer.work, addresses)?;
                next = layer.works.end;
            } else {
                self.start(stream, &self.works[next].1, addresses)?;
                next += 1;
            }
        }
        Ok(())
    }

    /// Starts the plan, once or `times` times with a counter.
    fn start_times(
        &self,
        stream: &Stream,
        addresses: &Addresses,
        counter: Option<(usize, usize)>,
    ) -> Result<(), DeviceError> {
        for i in 0..counter.map_or(1, |(_, times)| times) {
            if let Some((scalar, _)) = counter {
                self.start(stream, &Work::set_scalar(scalar, i as u32), addresses)?;
            }
            self.start_all(stream, addresses)?;
        }
        Ok(())
    }

    fn submit(&self, m: &mut CudaMemory, counter: Option<(&str, usize)>) -> Result<(), DeviceError> {
        let mut addresses = std::mem::take(&mut m.addresses);
        let started = self.submit_at(m, counter, &mut addresses);
        m.addresses = addresses;
        started
    }

    fn submit_at(
        &self,
        m: &mut CudaMemory,
        counter: Option<(&str, usize)>,
        addresses: &mut Addresses,
    ) -> Result<(), DeviceError> {
        self.bind(m, counter, addresses)?;
        m.upload_scalars()?;
        let addresses = &*addresses;
        let times = counter.map_or(0, |(_, times)| times);
        let scalar = counter.and_then(|(c, times)| {
            // A plan that does not read the counter needs no update.
            Some((self.plan.scalars().iter().position(|s| s == c)?, times))
        });
        if times > 0 && (scalar.is_none() || self.works.len() >= LONG) {
            for i in 0..times {
                if let Some((scalar, _)) = scalar {
                    self.start(m.stream()?, &Work::set_scalar(scalar, i as u32), addresses)?;
                }
                let what = (self.plan.name(), (self.id, 0));
                m.launch(what, addresses, times > 1, |stream| self.start_times(stream, addresses, None))?;
            }
            m.counters.submissions -= times as u64 - 1;
            return Ok(());
        }
        let what = (self.plan.name(), (self.id, times));
        m.launch(what, addresses, false, |stream| self.start_times(stream, addresses, scalar))
    }
}

/// Launches of a plan; see the fields of [`CudaExecutable`].
pub(crate) struct Lowered {
    works: Vec<(usize, Work)>,
    chains: Vec<Chain>,
    layers: Vec<Layer>,
    launches: Vec<usize>,
}

impl Lowered {
    /// Lowers a plan for a driver of a version.
    pub fn new(
        plan: &Plan,
        bank: &WeightBank,
        policy: &PrecisionPolicy,
        facts: &Facts,
        version: i32,
    ) -> Lowered {
        let mut works = lower(plan, bank, policy, facts);
        let launches = launches_of_steps(&works, plan.steps().len());
        join_rows(&mut works);
        join_norms(plan, &mut works);
        join_followers(plan, &mut works, facts);
        read_early(&mut works);
        join_outputs(plan, &mut works);
        let chains = if version >= EARLY_DRIVER { chains(&works, facts) } else { vec![] };
        let layers = layers(plan, &works, facts);
        Lowered { works, chains, layers, launches }
    }

    /// Kernels that a run starts. Those of launches in chains and layers are not among them.
    pub fn kernels(&self) -> Vec<Name> {
        let Lowered { works, chains, layers, .. } = self;
        let joined: Vec<&Range<usize>> =
            chains.iter().map(|c| &c.works).chain(layers.iter().map(|l| &l.works)).collect();
        let alone = works.iter().enumerate().filter(|(i, _)| !joined.iter().any(|r| r.contains(i)));
        let alone = alone.map(|(_, (_, work))| work.kernel());
        let others = chains.iter().map(|c| c.shape().kernel()).chain(layers.iter().map(|l| l.work.kernel()));
        alone.chain(others).chain([Work::set_scalar(0, 0).kernel()]).collect()
    }
}

/// How many launches each step has, then each copy at the end.
fn launches_of_steps(works: &[(usize, Work)], steps: usize) -> Vec<usize> {
    let mut launches = vec![0; steps];
    works.iter().filter(|(step, _)| *step < steps).for_each(|(step, _)| launches[*step] += 1);
    launches.extend(works.iter().filter(|(step, _)| *step == steps).map(|_| 1));
    launches
}

impl Executable for CudaExecutable {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn run(&self, memory: &mut dyn Memory) -> Result<(), DeviceError> {
        let m = self.own(memory)?;
        self.submit(m, None)
    }

    fn run_times(
        &self,
        memory: &mut dyn Memory,
        counter: &str,
        times: usize,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), DeviceError> {
        let m = self.own(memory)?;
        if times == 0 || !go_on() {
            return Ok(());
        }
        self.submit(m, Some((counter, times)))?;
        m.note_scalar(counter, times as u64 - 1);
        Ok(())
    }

    /// Those before draws and chains join some.
    fn launches(&self) -> Vec<usize> {
        self.launches.clone()
    }

    /// Times a step as part of a chain of itself, so that the time includes the graph's overhead per kernel,
    /// and weights come from the cache. Results are those of one run, since steps do not write what they
    /// read.
    fn profile(&self, memory: &mut dyn Memory) -> Result<Vec<f64>, DeviceError> {
        let m = self.own(memory)?;
        // Steps in chains and layers have kernels that a run does not start.
        self.core.kernels.load(&self.core.context, self.works.iter().map(|(_, w)| w.kernel()))?;
        let mut addresses = Addresses::default();
        self.bind(m, None, &mut addresses)?;
        m.upload_scalars()?;
        let (begin, end) = (Event::new(&self.core.context)?, Event::new(&self.core.context)?);
        let stream = m.stream()?;
        let mut times = vec![0.0; self.plan.steps().len()];
        for (i, time) in times.iter_mut().enumerate() {
            let works: Vec<&Work> = self.works.iter().filter(|(s, _)| *s == i).map(|(_, w)| w).collect();
            if works.is_empty() {
                continue;
            }
            let graph = stream.capture(|| {
                (0..TIMED).try_for_each(|_| works.iter().try_for_each(|w| self.start(stream, w, &addresses)))
            })?;
            stream.launch(&graph)?;
            begin.record(stream)?;
            stream.launch(&graph)?;
            end.record(stream)?;
            *time = end.seconds_since(&begin)? / TIMED as f64;
        }
        let copies = self.works.iter().filter(|(s, _)| *s == self.plan.steps().len());
        copies.into_iter().try_for_each(|(_, w)| self.start(stream, w, &addresses))?;
        stream.synchronize()?;
        m.counters.submissions += 1;
        Ok(times)
    }
}
