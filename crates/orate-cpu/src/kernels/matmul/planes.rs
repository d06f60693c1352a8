//! Where the bf16 planes of x lie for the product on AMX tiles.
//!
//! A tile is 16 rows of 32 numbers, 64 bytes each. Rows of a matrix are cut tile by tile. The rows of a
//! convolution overlap: row t reads rows t, t + d, t + 2d … of the sequence, so there each row of the
//! sequence is cut once, and the tile for another tap is the same memory some rows further on. Seven taps
//! then cost a seventh of the cutting, and a seventh of the cache.

use super::Taps;
use super::amx::{PLANES, ROW_STEP, SLICE};
use crate::arch::amx::{TILE_BYTES, TILE_K, TILE_ROWS};
use std::ops::Range;

/// How the planes of a group of tiles lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layout {
    /// [slice][tile][step of the slice][plane][a tile]
    Tiles,
    /// [step of the channels][plane][row of the sequence]
    Sequence {
        taps: Taps,
        /// Steps of [`TILE_K`] that a row has.
        channel_steps: usize,
    },
}

/// How the planes of a slice along K lie, in bytes.
pub(super) struct PlaneShape {
    /// Where the group's first tile begins.
    pub start: usize,
    /// From one tile to the next.
    pub tile: usize,
    /// From one plane to the next.
    pub plane: usize,
    /// Where each step begins.
    pub step: [usize; SLICE],
}

impl Layout {
    /// For a convolution of one sequence, if a step never holds two taps.
    pub fn of_sequence(taps: Taps, k: usize) -> Option<Layout> {
        let channels = k / taps.count;
        let whole = channels * taps.count == k && channels.is_multiple_of(TILE_K);
        (whole && taps.count > 1).then_some(Layout::Sequence { taps, channel_steps: channels / TILE_K })
    }

    /// Rows of the sequence that `tiles` tiles read, or those of the tiles.
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

    /// Rows of results whose planes, with all channels, fit into `bytes`.
    pub fn rows_within(self, bytes: usize) -> usize {
        match self {
            Layout::Tiles => 0,
            Layout::Sequence { taps, channel_steps } => {
                let rows = bytes / (channel_steps * PLANES * 64);
                rows.saturating_sub((taps.count - 1) * taps.dilation + 1)
            }
        }
    }

    /// Memory for the planes of `tiles` tiles and `steps` steps along K.
    pub fn bytes(self, tiles: usize, steps: usize) -> usize {
        match self {
            Layout::Tiles => tiles * steps * ROW_STEP,
            Layout::Sequence { channel_steps, .. } => self.rows(tiles) * channel_steps * PLANES * 64,
        }
    }

    /// The planes of the steps `slice` of the stretch `steps`, in a group of `tiles` tiles.
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
