//! Allocates ranges of a session's buffer: first fit, in units that keep every range aligned.

/// Alignment of ranges in bytes.
pub(crate) const UNIT: u64 = 256;

/// Size of the range of `bytes` bytes.
pub(crate) fn size_of_range(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(UNIT)
}

/// Bytes `offset .. offset + size` of the buffer; both are multiples of [`UNIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub offset: u64,
    pub size: u64,
}

/// Allocated ranges of a buffer.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    size: u64,
    /// Sorted by offset.
    taken: Vec<Range>,
}

impl Allocator {
    pub fn new(size: u64) -> Self {
        Allocator { size, taken: vec![] }
    }

    /// Allocated bytes.
    pub fn used(&self) -> u64 {
        self.taken.iter().map(|r| r.size).sum()
    }

    /// Bytes that are not allocated, in one piece or several.
    pub fn free_bytes(&self) -> u64 {
        self.size - self.used()
    }

    /// Allocates `bytes` if there is a free range for them.
    pub fn take(&mut self, bytes: u64) -> Option<Range> {
        let size = size_of_range(bytes);
        let mut offset = 0;
        let mut at = self.taken.len();
        for (i, r) in self.taken.iter().enumerate() {
            if offset + size <= r.offset {
                at = i;
                break;
            }
            offset = r.offset + r.size;
        }
        if offset + size > self.size {
            return None;
        }
        let range = Range { offset, size };
        self.taken.insert(at, range);
        Some(range)
    }

    /// Frees a range.
    pub fn free(&mut self, range: Range) {
        self.taken.retain(|r| *r != range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_apart_and_reused() {
        let mut a = Allocator::new(4 * UNIT);
        let x = a.take(1).expect("empty");
        let y = a.take(UNIT + 1).expect("fits");
        let z = a.take(UNIT).expect("fits");
        assert_eq!([x.offset, y.offset, z.offset], [0, UNIT, 3 * UNIT]);
        assert_eq!(a.take(1), None);
        a.free(y);
        assert_eq!(a.used(), 2 * UNIT);
        assert_eq!(a.take(3 * UNIT), None);
        assert_eq!(a.take(2 * UNIT), Some(y));
        a.free(x);
        assert_eq!(a.take(0), Some(x));
    }
}
