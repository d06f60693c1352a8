//! Cached locations of a plan's values in a memory, so that a run looks nothing up and allocates nothing.

use std::collections::HashMap;

/// Scalars of a memory.
#[derive(Default)]
pub(crate) struct Scalars {
    slots: HashMap<String, usize>,
    values: Vec<u64>,
}

impl Scalars {
    /// Sets a scalar. Its slot never changes.
    pub fn set(&mut self, name: &str, value: u64) {
        match self.slots.get(name) {
            Some(slot) => self.values[*slot] = value,
            None => {
                self.slots.insert(name.to_owned(), self.values.len());
                self.values.push(value);
            }
        }
    }

    /// Slot of a scalar that was set before.
    pub fn slot(&self, name: &str) -> Option<usize> {
        self.slots.get(name).copied()
    }

    pub fn value(&self, slot: usize) -> u64 {
        self.values[slot]
    }
}

/// Locations of everything that an executable reads and writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Places {
    /// Id of the executable.
    pub executable: u64,
    /// First element of the arena.
    pub arena: u32,
    /// First element of each buffer of the plan.
    pub buffers: Vec<u32>,
    /// Slot of each scalar of the plan.
    pub slots: Vec<usize>,
    /// Value of each scalar when the run began.
    pub scalars: Vec<u64>,
}

impl Places {
    /// Updates the values of the scalars.
    pub fn refresh(&mut self, scalars: &Scalars) {
        self.scalars.clear();
        self.scalars.extend(self.slots.iter().map(|slot| scalars.value(*slot)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_keep_their_slots() {
        let mut scalars = Scalars::default();
        assert_eq!(scalars.slot("a"), None);
        scalars.set("a", 1);
        scalars.set("b", 2);
        scalars.set("a", 3);
        let slots = ["b", "a"].map(|name| scalars.slot(name).expect("was set"));
        let mut places = Places { slots: slots.to_vec(), ..Default::default() };
        places.refresh(&scalars);
        assert_eq!(places.scalars, [2, 3]);
        scalars.set("b", 5);
        places.refresh(&scalars);
        assert_eq!(places.scalars, [5, 3]);
    }
}
