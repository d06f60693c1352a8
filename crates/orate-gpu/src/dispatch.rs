//! One dispatch of a kernel, with everything known when a plan is loaded.

use crate::variant::Variant;
use orate_graph::Place;

/// Maximum bytes of parameters of a dispatch; every Vulkan driver supports them.
pub(crate) const IMMEDIATE_BYTES: u32 = 128;

/// Maximum words of parameters.
pub(crate) const WORDS: usize = IMMEDIATE_BYTES as usize / 4;

/// A value to add to a word of parameters when a run is encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Late {
    /// Place of a value, in elements from the beginning of the session's buffer.
    Place(Place),
    /// Bits of a float scalar.
    Float(usize),
    /// Low or high half of an integer scalar.
    Half { scalar: usize, high: bool },
    /// An integer scalar times `stride`; it must be below `rows`.
    Row { scalar: usize, rows: usize, stride: usize },
}

/// Parameters, in the order of the kernel's `Params`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Params {
    pub words: Vec<u32>,
    pub late: Vec<(usize, Late)>,
}

impl Params {
    pub fn number(mut self, n: usize) -> Self {
        debug_assert!(u32::try_from(n).is_ok(), "extents are checked before dispatches are made");
        self.words.push(n as u32);
        self
    }

    pub fn float(mut self, x: f32) -> Self {
        self.words.push(x.to_bits());
        self
    }

    pub fn late(mut self, late: Late) -> Self {
        self.late.push((self.words.len(), late));
        self.words.push(0);
        self
    }

    /// Adds `late` plus `offset` elements.
    pub fn late_after(mut self, late: Late, offset: usize) -> Self {
        self.late.push((self.words.len(), late));
        self.number(offset)
    }

    pub fn place(self, place: Place) -> Self {
        self.late(Late::Place(place))
    }

    /// The place at word `at`, if that word is one.
    pub fn place_at(&self, at: usize) -> Option<Place> {
        self.late.iter().find_map(|(word, late)| match late {
            Late::Place(place) if *word == at && self.words[at] == 0 => Some(*place),
            _ => None,
        })
    }
}

/// A dispatch before its pipeline and bind group are created.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub variant: Variant,
    pub params: Params,
    /// Number of workgroups.
    pub groups: [u32; 3],
    /// Buffers with the step's weights: of its matrix, of its vectors.
    pub weights: [Option<usize>; 2],
}

/// Workgroups for `n` threads in groups of `size`, in two dimensions, since one is limited to 65535. Kernels
/// number their threads row by row.
pub(crate) fn flat(n: usize, size: usize) -> [u32; 3] {
    let groups = n.div_ceil(size).max(1);
    let x = groups.min(32_768);
    [x as u32, groups.div_ceil(x) as u32, 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_packed_in_order() {
        let p = Params::default()
            .place(Place::Arena(64))
            .number(7)
            .float(1.5)
            .late_after(Late::Row { scalar: 2, rows: 3, stride: 4 }, 5);
        assert_eq!(p.words, [0, 7, 1.5f32.to_bits(), 5]);
        assert_eq!(
            p.late,
            [(0, Late::Place(Place::Arena(64))), (3, Late::Row { scalar: 2, rows: 3, stride: 4 })]
        );
    }

    #[test]
    fn grids_cover_all_threads() {
        for n in [0, 1, 255, 256, 257, 32_768 * 256, 32_768 * 256 + 1, 100_000_000] {
            let [x, y, z] = flat(n, 256);
            assert!(x <= 65_535 && y <= 65_535 && z == 1, "{n}");
            assert!(x as usize * y as usize * 256 >= n.max(1), "{n}");
        }
    }
}
