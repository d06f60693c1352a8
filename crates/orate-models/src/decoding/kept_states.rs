//! States on the device that are kept for what begins alike: the state after a prompt's fixed rows, or after
//! the codes of a reference.
//!
//! Copies, of which the least recently used go first when all together exceed a limit. Continuing from a kept
//! state gives the same bytes as recomputing it: it is the same plans in the same order.

use orate_graph::{DType, Device, DeviceError, Memory, Part, Shape};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Copies of some states of a memory, in a memory of their own.
pub(crate) struct KeptState {
    memory: Mutex<Box<dyn Memory>>,
    bytes: usize,
    number: u64,
}

/// First rows of an utterance's caches. Those of equal ones have the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// [`KeptState::number`]
    pub state: u64,
    pub rows: usize,
}

impl KeptState {
    pub fn new(
        device: &dyn Device,
        source: &mut dyn Memory,
        buffers: &[(&str, DType, Shape)],
        parts: &[Part<'_>],
    ) -> Result<KeptState, DeviceError> {
        let mut memory = device.memory();
        for (name, dtype, shape) in buffers {
            memory.clear(name, *dtype, shape)?;
        }
        memory.copy_from(source, parts)?;
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let bytes = buffers.iter().map(|(_, dtype, shape)| dtype.bytes_of(shape)).sum();
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Ok(KeptState { memory: Mutex::new(memory), bytes, number })
    }

    /// Which state it is. No other one has this number.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn restore(&self, target: &mut dyn Memory, parts: &[Part<'_>]) -> Result<(), DeviceError> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        target.copy_from(memory.as_mut(), parts)
    }
}

/// Kept states by what they follow from.
pub(crate) struct KeptStates<K> {
    kept: Mutex<Vec<(K, Arc<KeptState>)>>,
    most_bytes: usize,
}

impl<K: PartialEq> KeptStates<K> {
    pub fn new(most_bytes: usize) -> Self {
        KeptStates { kept: Mutex::default(), most_bytes }
    }

    pub fn get(&self, key: &K) -> Option<Arc<KeptState>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let i = kept.iter().position(|(k, _)| k == key)?;
        let hit = kept.remove(i);
        let state = hit.1.clone();
        kept.push(hit);
        Some(state)
    }

    pub fn clear(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Keeps a state, unless it alone exceeds the limit.
    pub fn keep(&self, key: K, state: KeptState) {
        if state.bytes > self.most_bytes {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(k, _)| *k != key);
        let mut bytes: usize = kept.iter().map(|(_, s)| s.bytes).sum();
        while bytes + state.bytes > self.most_bytes {
            bytes -= kept.remove(0).1.bytes;
        }
        kept.push((key, Arc::new(state)));
    }
}
