//! Rows of an utterance in the caches of a memory.

use super::network::MemorySizes;
use orate_graph::{Buffer, BufferKind, Part, Plan};
use std::ops::Range;

/// Where an utterance lies in a memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub row: usize,
    pub sizes: MemorySizes,
}

/// Rows that an utterance may need in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowLimits {
    /// Of each cache. A batch makes one more frame if others continue while the last one is under way.
    pub cache: usize,
    pub feed: usize,
    /// Frames that it has room for at first, unless it may not make as many.
    pub reserve: usize,
}

impl RowLimits {
    /// Rows of cache and of feed when it joins with `position` rows in its caches.
    pub fn at_first(&self, position: usize) -> (usize, usize) {
        (self.cache_for(position, self.reserve), self.feed)
    }

    /// Rows of cache with `position` rows in it and room for `frames` more.
    pub fn cache_for(&self, position: usize, frames: usize) -> usize {
        self.cache.min(position + frames)
    }
}

pub(super) fn bytes(plan: &Plan) -> usize {
    plan.buffers().iter().map(|b| b.dtype.bytes_of(&b.shape)).sum()
}

pub(super) fn caches(plan: &Plan) -> impl Iterator<Item = &Buffer> {
    plan.buffers().iter().filter(|b| b.kind == BufferKind::Cache)
}

/// Copies of some rows of all caches, in all lanes, to the same rows of another slot.
pub(super) fn cache_parts<'a>(
    plan: &'a Plan,
    lanes: usize,
    rows: &Range<usize>,
    (from, to): (Slot, Slot),
) -> Vec<Part<'a>> {
    if rows.is_empty() {
        return vec![];
    }
    let part = |b: &'a Buffer, lane: usize| {
        let width = b.shape.last();
        let first = |s: Slot| ((s.row * lanes + lane) * s.sizes.capacity + rows.start) * width;
        Part { from: (&*b.name, first(from)), to: (&*b.name, first(to)), len: rows.len() * width }
    };
    caches(plan).flat_map(|b| (0..lanes).map(move |lane| part(b, lane))).collect()
}
