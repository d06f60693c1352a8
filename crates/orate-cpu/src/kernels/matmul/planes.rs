//! Layout of the bf16 planes of x for the matmul on AMX tiles.
//!
//! A tile is 16 rows of 32 values, 64 bytes each. Rows of a matrix are split tile by tile. The rows of a
//! convolution overlap: row t reads rows t, t + d, t + 2d … of the sequence. So each row of the sequence is
//! split once, and the tile of another tap is the same memory some rows further on. Seven taps then cost a
//! seventh of the splitting and of the cache.

use super::Taps;
use super::amx::{PLANES, ROW_STEP, SLICE};
use crate::arch::amx::{TILE_BYTES, TILE_K, TILE_ROWS};
use std::ops::Range;

/// Layout of the planes of a group of tiles.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layout {
    /// [slice][tile][step of the slice][plane][a tile]
    Tiles,
    /// [step of the channels][plane][row of the sequence]
    Sequence {
        taps: Taps,
        /// Steps of [`TILE_K`] in a row.
        channel_steps: usize,
    },
}

/// Layout of the planes of a slice along K, in bytes.
pub(super) struct PlaneShape {
    /// Start of the group's first tile.
    pub start: usize,
    /// Stride between tiles.
    pub tile: usize,
    /// Stride between planes.
    pub plane: usize,
    /// Start of each step.
    pub step: [usize; SLICE],
}

impl Layout {
    /// Layout for a convolution of one sequence; `None` if a step could hold two taps.
    pub fn of_sequence(taps: Taps, k: usize) -> Option<Layout> {
        let channels = k / taps.count;
        let whole = channels * taps.count == k && channels.is_multiple_of(TILE_K);
        (whole && taps.count > 1).then_some(Layout::Sequence { taps, channel_steps: channels / TILE_K })
    }

    /// Rows of the sequence that `tiles` tiles read, or the rows of these tiles.
    pub fn rows(self, tiles: usize) -> usize {
        match self {
            Layout::Tiles => tiles * TILE_ROWS,
            Layout::Sequence { taps, .. } => {
                let rows = tiles * TILE_ROWS + (taps.count - 1) * taps.dilation;
                // Planes a multiple of a page apart would share cache sets.
                if (rows * 64).is_multiple_of(4096) { rows + 1 } else { rows }
            }
        }
    }

    /// Number of result rows whose planes, with all channels, fit into `bytes`.
    pub fn rows_within(self, bytes: usize) -> usize {
        match self {
            Layout::Tiles => 0,
            Layout::Sequence { taps, channel_steps } => {
                let rows = bytes / (channel_steps * PLANES * 64);
                rows.saturating_sub((taps.count - 1) * taps.dilation + 1)
            }
        }
    }

    /// Bytes for the planes of `tiles` tiles and `steps` steps along K.
    pub fn bytes(self, tiles: usize, steps: usize) -> usize {
        match self {
            Layout::Tiles => tiles * steps * ROW_STEP,
            Layout::Sequence { channel_steps, .. } => self.rows(tiles) * channel_steps * PLANES * 64,
        }
    }

    /// Layout of the steps `slice` of the stretch `steps`, in a group of `tiles` tiles.
    pub fn slice(self, tiles: usize, steps: Range<usize>, slice: Range<usize>) -> PlaneShape {
        match self {
            Layout::Tiles => PlaneShape {
                start: (slice.start - steps.start) * tiles * ROW_STEP,
                tile: slice.len() * ROW_STEP,
                plane: TILE_BYTES,
                step: std::array::from_fn(|i| i * ROW_STEP),
            },
            Layout::Sequence { taps, channel_steps } => {
                let plane = self.rows(tiles) * 64;
                let step = |i: usize| {
                    let (tap, channels) =
                        ((slice.start + i) / channel_steps, (slice.start + i) % channel_steps);
                    channels * PLANES * plane + tap * taps.dilation * 64
                };
                PlaneShape { start: 0, tile: TILE_BYTES, plane, step: std::array::from_fn(step) }
            }
        }
    }
}
