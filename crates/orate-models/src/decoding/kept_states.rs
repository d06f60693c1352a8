//! States on the device that are kept for what begins alike: what a prompt's fixed rows, or a reference's codes, leave behind.
//!
//! Kept by value, the least recently used going first when all together take more than some bytes. Going on from a kept state
//! is what making it anew would be, byte for byte: it is the same plans in the same order.

use crate::qwen3_tts::QwenError;
use orate_graph::{DType, Device, DeviceError, Memory, Part, Shape};
use std::sync::{Arc, Mutex, PoisonError};

/// Copies of some states of a memory, in a memory of their own.
pub(crate) struct KeptState {
    memory: Mutex<Box<dyn Memory>>,
    /// Names and elements.
    states: Vec<(String, usize)>,
    bytes: usize,
}

impl KeptState {
    /// Copies the first elements of states, as many as the shapes say.
    ///
    /// # Errors
    /// The device has no room.
    pub fn copy_of(
        source: &mut dyn Memory,
        device: &dyn Device,
        states: &[(&str, DType, Shape)],
    ) -> Result<KeptState, QwenError> {
        let mut memory = device.memory();
        for (name, dtype, shape) in states {
            memory.clear(name, *dtype, shape)?;
        }
        let bytes = states.iter().map(|(_, dtype, shape)| dtype.bytes_of(shape)).sum();
        let states: Vec<_> =
            states.iter().map(|(name, _, shape)| ((*name).to_owned(), shape.len())).collect();
        memory.copy_from(source, &parts(&states))?;
        Ok(KeptState { memory: Mutex::new(memory), states, bytes })
    }

    /// Copies them back, to states that are there and at least as large.
    ///
    /// # Errors
    /// They are not, or the device failed.
    pub fn restore(&self, to: &mut dyn Memory) -> Result<(), DeviceError> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        to.copy_from(memory.as_mut(), &parts(&self.states))
    }
}

fn parts(states: &[(String, usize)]) -> Vec<Part<'_>> {
    states.iter().map(|(name, len)| Part { from: (name, 0), to: (name, 0), len: *len }).collect()
}

/// Kept states by what they come from.
pub(crate) struct KeptStates<K> {
    kept: Mutex<Vec<(K, Arc<KeptState>)>>,
    most_bytes: usize,
}

impl<K: PartialEq> KeptStates<K> {
    /// Room for states of so many bytes.
    pub fn new(most_bytes: usize) -> Self {
        KeptStates { kept: Mutex::default(), most_bytes }
    }

    /// The state behind `key`, if it is kept.
    pub fn get(&self, key: &K) -> Option<Arc<KeptState>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let i = kept.iter().position(|(k, _)| k == key)?;
        let hit = kept.remove(i);
        let state = hit.1.clone();
        kept.push(hit);
        Some(state)
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Keeps a state, unless it is larger than all may be together.
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
