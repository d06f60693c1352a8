//! What every model on a device needs: compiled plans and memories, both kept for reuse.
//!
//! A [`PlanCache`] owns a network's weights on a device and compiles plans on demand. A [`MemoryPool`] lends
//! memories; a [`PooledMemory`] returns to its pool when it is dropped, also when a panic drops it.

use orate_graph::{
    Buffer, BufferKind, Counters, Device, DeviceError, Executable, Graph, Memory, ModelOnDevice, Plan,
    WeightLoader,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A plan, and the seconds that each of its steps took.
pub type Profile = (Arc<dyn Executable>, Vec<f64>);

/// Weights on a device, and the plans compiled for them. `K` is everything that a plan's graph depends on.
pub struct PlanCache<K> {
    device: Arc<dyn Device>,
    model: Box<dyn ModelOnDevice>,
    capacity: usize,
    /// The plan used last stands at the end.
    kept: Mutex<Vec<(K, Arc<dyn Executable>)>>,
    /// Held while a plan is compiled, so that two threads that want the same plan compile it once.
    compiling: Mutex<()>,
    made: AtomicUsize,
}

impl<K: PartialEq> PlanCache<K> {
    /// An empty cache of at most `capacity` plans. Weights are loaded when the first plan needs them.
    pub fn new(
        device: Arc<dyn Device>,
        weights: Arc<dyn WeightLoader + Send + Sync>,
        capacity: usize,
    ) -> PlanCache<K> {
        let model = device.open(weights);
        let (kept, compiling, made) = (Mutex::default(), Mutex::default(), AtomicUsize::new(0));
        PlanCache { device, model, capacity, kept, compiling, made }
    }

    /// Returns the plan of `key`. A plan that is not kept is compiled from `graph`, and replaces the least
    /// recently used one when the cache is full.
    ///
    /// # Errors
    /// `graph` failed, the device lacks an op, or it has no room for the weights.
    pub fn get<E: From<DeviceError>>(
        &self,
        key: K,
        graph: impl FnOnce(&K) -> Result<Graph, E>,
    ) -> Result<Arc<dyn Executable>, E> {
        if let Some(plan) = self.find(&key) {
            return Ok(plan);
        }
        let _compiling = lock(&self.compiling);
        if let Some(plan) = self.find(&key) {
            return Ok(plan);
        }
        let plan = self.compile(graph(&key)?)?;
        let mut kept = lock(&self.kept);
        if kept.len() >= self.capacity {
            kept.remove(0);
        }
        kept.push((key, plan.clone()));
        Ok(plan)
    }

    fn find(&self, key: &K) -> Option<Arc<dyn Executable>> {
        let mut kept = lock(&self.kept);
        let i = kept.iter().position(|(k, _)| k == key)?;
        let hit = kept.remove(i);
        let plan = hit.1.clone();
        kept.push(hit);
        Some(plan)
    }

    /// Compiles a plan that is not kept.
    ///
    /// # Errors
    /// As [`PlanCache::get`].
    pub fn compile(&self, graph: Graph) -> Result<Arc<dyn Executable>, DeviceError> {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.model.load(Plan::compile(graph, &*self.device)?)
    }

    /// Number of plans compiled so far, including those that are no longer kept.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Bytes of weights on the device so far.
    pub fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes()
    }

    /// The device that runs the plans.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
}

/// All large memories that a pool keeps, in units of its limit for each.
const LARGE_KEPT: usize = 4;

/// Memories of finished work, kept for reuse. The oldest one is taken first, so that devices that record
/// plans per memory do so for as few memories as are in use at once.
pub struct MemoryPool {
    make: Box<dyn Fn() -> Box<dyn Memory> + Send + Sync>,
    /// Memories kept at most, and bytes of each, unless it is one of a few large ones.
    limit: (usize, usize),
    /// By order of creation.
    kept: Mutex<BTreeMap<usize, Box<dyn Memory>>>,
    /// Number of memories created.
    made: AtomicUsize,
}

impl MemoryPool {
    /// A pool of memories of `device` that keeps at most `count` of them.
    pub fn new(device: Arc<dyn Device>, count: usize) -> Arc<MemoryPool> {
        let bytes = device.memory_kept();
        Self::with_limit(move || device.memory(), (count, bytes))
    }

    /// A pool that keeps at most `limit.0` memories of `limit.1` bytes each. Larger ones are kept while all
    /// of these together have no more than four times as many bytes: one caller of a wide model shall not
    /// wait for memory, and many shall not keep what a batch needs.
    pub fn with_limit(
        make: impl Fn() -> Box<dyn Memory> + Send + Sync + 'static,
        limit: (usize, usize),
    ) -> Arc<MemoryPool> {
        let (kept, made) = Default::default();
        Arc::new(MemoryPool { make: Box::new(make), limit, kept, made })
    }

    /// A kept memory, or a new one. It may hold buffers of earlier work.
    pub fn take(self: &Arc<Self>) -> PooledMemory {
        self.take_kept().unwrap_or_else(|| self.adopt(self.fresh()))
    }

    /// A kept memory, if there is one.
    pub fn take_kept(self: &Arc<Self>) -> Option<PooledMemory> {
        let kept = lock(&self.kept).pop_first();
        kept.map(|(number, memory)| self.adopt_as(number, memory))
    }

    /// A new memory, which belongs to the pool once it is adopted.
    pub fn fresh(&self) -> Box<dyn Memory> {
        (self.make)()
    }

    /// Makes a memory one of the pool's.
    pub fn adopt(self: &Arc<Self>, memory: Box<dyn Memory>) -> PooledMemory {
        self.adopt_as(self.made.fetch_add(1, Ordering::Relaxed), memory)
    }

    fn adopt_as(self: &Arc<Self>, number: usize, memory: Box<dyn Memory>) -> PooledMemory {
        let (pool, before) = (self.clone(), memory.counters());
        PooledMemory { memory: Some(memory), number, pool, before, elsewhere: Counters::default() }
    }
}

/// A memory taken from a [`MemoryPool`], which returns there when this is dropped.
pub struct PooledMemory {
    /// `None` while it is lent.
    memory: Option<Box<dyn Memory>>,
    /// In order of creation.
    number: usize,
    pool: Arc<MemoryPool>,
    /// Counters of the memory when it was taken.
    before: Counters,
    elsewhere: Counters,
}

impl PooledMemory {
    /// The memory. Where it was lent and lost to a panic this is a new, empty one: plans that need its states
    /// refuse it.
    pub fn get(&mut self) -> &mut dyn Memory {
        let (pool, before) = (&self.pool, &mut self.before);
        let memory = self.memory.get_or_insert_with(|| {
            let fresh = pool.fresh();
            *before = fresh.counters();
            fresh
        });
        memory.as_mut()
    }

    /// Moves the memory out, to be assigned back when the work that it was lent for is done.
    pub fn lend(&mut self) -> PooledMemory {
        let PooledMemory { number, before, elsewhere, .. } = *self;
        PooledMemory { memory: self.memory.take(), number, pool: self.pool.clone(), before, elsewhere }
    }

    /// Counts work that was done for this memory in another one.
    pub fn count(&mut self, elsewhere: Counters) {
        self.elsewhere += elsewhere;
    }

    /// Work asked of the device since the memory was taken, including what was done for it elsewhere.
    pub fn counters(&self) -> Counters {
        let mut all = self.memory.as_ref().map(|m| m.counters() - self.before).unwrap_or_default();
        all += self.elsewhere;
        all
    }

    /// Runs a plan once and measures its steps.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn profile(&mut self, plan: Arc<dyn Executable>) -> Result<Profile, DeviceError> {
        let seconds = plan.profile(self.get())?;
        Ok((plan, seconds))
    }
}

impl Drop for PooledMemory {
    fn drop(&mut self) {
        let Some(mut memory) = self.memory.take() else { return };
        let (count, bytes) = self.pool.limit;
        let large = |m: &dyn Memory| Some(m.bytes()).filter(|own| *own > bytes).unwrap_or(0);
        let others: usize = lock(&self.pool.kept).values().map(|m| large(m.as_ref())).sum();
        if large(memory.as_ref()) + others > bytes.saturating_mul(LARGE_KEPT) {
            memory.shrink_to(bytes);
        }
        let mut kept = lock(&self.pool.kept);
        if kept.len() < count {
            kept.insert(self.number, memory);
        }
    }
}

/// Compiles graphs for a device, whose weights are not read.
///
/// # Errors
/// The device lacks an op.
pub fn compile(device: &dyn Device, graphs: Vec<Graph>) -> Result<Vec<Plan>, DeviceError> {
    graphs.into_iter().map(|g| Ok(Plan::compile(g, device)?)).collect()
}

/// Bytes of a memory in which all of these plans run: buffers of a name are shared, and so are temporaries.
pub fn memory(plans: &[Plan]) -> u64 {
    let mut buffers = HashMap::new();
    for b in plans.iter().flat_map(Plan::buffers) {
        let largest = buffers.entry(&b.name).or_insert(0);
        *largest = b.dtype.bytes_of(&b.shape).max(*largest);
    }
    let temporaries = plans.iter().map(Plan::arena_bytes).max().unwrap_or(0);
    (buffers.values().sum::<usize>() + temporaries) as u64
}

/// Bytes that a row takes in the caches of these plans, which hold `capacity` rows.
pub fn row_bytes(plans: &[Plan], capacity: usize) -> usize {
    let of_plan = |p: &Plan| {
        let caches = p.buffers().iter().filter(|b| b.kind == BufferKind::Cache);
        caches.map(|b| b.dtype.bytes_of(&b.shape) / capacity).sum::<usize>()
    };
    plans.iter().map(of_plan).max().unwrap_or(0)
}

/// The states of a plan.
pub fn states(plan: &Plan) -> impl Iterator<Item = &Buffer> {
    plan.buffers().iter().filter(|b| b.kind.is_state())
}

/// Makes all states of a plan zeros.
///
/// # Errors
/// The device has no room, or failed.
pub fn clear_states(memory: &mut dyn Memory, plan: &Plan) -> Result<(), DeviceError> {
    let states: Vec<_> = states(plan).map(|b| (&*b.name, b.dtype, &b.shape)).collect();
    memory.clear_all(&states)
}

/// Locks also after a panic: what these mutexes guard is whole at every moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orate_graph::{DType, GraphError, Tensor};
    use orate_testing::ReferenceDevice;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    struct NoWeights;

    impl WeightLoader for NoWeights {
        fn load(&self, name: &str) -> Result<Tensor<'_>, GraphError> {
            Err(GraphError::Weight { name: name.to_owned(), problem: "there are none".to_owned() })
        }
    }

    fn graph(len: &usize) -> Result<Graph, DeviceError> {
        let mut g = Graph::new("sum");
        let x = g.input("x", DType::F32, [1, *len])?;
        let y = g.add(x, x)?;
        g.output("y", y)?;
        Ok(g)
    }

    #[test]
    fn plans_are_compiled_once_and_the_oldest_is_dropped() {
        let plans = PlanCache::new(Arc::new(ReferenceDevice), Arc::new(NoWeights), 2);
        for (len, made) in [(1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4)] {
            let plan = plans.get(len, graph).expect("compiles");
            assert_eq!(plan.plan().buffers()[0].shape.len(), len);
            assert_eq!(plans.made(), made, "after {len}");
        }
    }

    #[test]
    fn the_first_memory_is_used_most() {
        let pool = MemoryPool::with_limit(|| ReferenceDevice.memory(), (3, usize::MAX));
        let mut three = [1.0, 2.0, 3.0].map(|x| {
            let mut memory = pool.take();
            memory.get().write_f32("x", &[1].into(), &[x]).expect("has room");
            Some(memory)
        });
        // Whatever the order in which they return.
        [0, 2, 1].into_iter().for_each(|i| drop(three[i].take()));
        let [first, second] = [pool.take(), pool.take()];
        let mut x = vec![];
        for (mut memory, wanted) in [(first, 1.0), (second, 2.0)] {
            memory.get().read_f32("x", &mut x).expect("was written");
            assert_eq!(x, [wanted]);
        }
    }

    /// A wide model's session takes more than most.
    #[test]
    fn a_few_large_memories_are_kept() {
        let pool = MemoryPool::with_limit(|| ReferenceDevice.memory(), (4, 400));
        let of_words = |n: usize| {
            let mut memory = pool.take();
            memory.get().write_f32("x", &[n].into(), &vec![1.0; n]).expect("has room");
            memory
        };
        let all = [of_words(300), of_words(100), of_words(101), of_words(100)];
        all.into_iter().for_each(drop);
        let kept: Vec<usize> = lock(&pool.kept).values().map(|m| m.bytes()).collect();
        assert_eq!(kept, [1200, 400, 0, 400], "the third exceeds four times 400 with the first");
    }

    #[test]
    fn memories_return_after_a_panic() {
        let pool = MemoryPool::new(Arc::new(ReferenceDevice), 1);
        let mut memory = pool.take();
        memory.get().set_scalar("x", 1.0);
        let lent = memory.lend();
        let lost = catch_unwind(AssertUnwindSafe(|| {
            let _lent = lent;
            std::panic::panic_any("on purpose");
        }));
        assert!(lost.is_err());
        assert!(pool.take_kept().is_some());
        // The husk goes on with an empty memory.
        memory.get().write_f32("x", &[1].into(), &[1.0]).expect("a new memory");
        drop(memory);
        assert_eq!(lock(&pool.kept).len(), 1);
    }
}
