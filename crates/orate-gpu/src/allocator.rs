//! Places in a session's buffer: first fit, in units that keep every place aligned.

/// Every place starts at a multiple of this many bytes.
pub(crate) const UNIT: u64 = 256;

/// Bytes `offset … offset + size` of the buffer; both are multiples of [`UNIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub offset: u64,
    pub size: u64,
}

/// What is taken of a buffer of some size.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    size: u64,
    /// By offset.
    taken: Vec<Range>,
}

impl Allocator {
    pub fn new(size: u64) -> Self {
        Allocator { size, taken: vec![] }
    }

    /// Bytes that are taken.
    pub fn used(&self) -> u64 {
        self.taken.iter().map(|r| r.size).sum()
    }

    /// A free place for `bytes`, if there is one.
    pub fn take(&mut self, bytes: u64) -> Option<Range> {
        let size = bytes.max(1).next_multiple_of(UNIT);
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

    /// Gives a place back.
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
