//! Copies many blocks on the device with one launch. Separate copies would cost the driver some microseconds
//! each, and a network has dozens of states.

use crate::driver::{DevicePointer, Launch, Stream};
use crate::shared::Core;
use orate_graph::DeviceError;

/// Maximum blocks per launch, as in `kernels/copy.cu`.
const BLOCKS: usize = 96;

/// Threads of a thread block.
const THREADS: u32 = 256;

/// Bytes per thread block: four times 16 for each thread.
const EACH: usize = 64 * THREADS as usize;

/// Maximum thread blocks per copied block.
const MOST: usize = 64;

/// A block of bytes to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub from: DevicePointer,
    pub to: DevicePointer,
    pub bytes: usize,
}

impl Move {
    /// Whether the kernel can copy it: it copies four-byte words and counts them in 32 bits.
    fn is_of_words(&self) -> bool {
        let bytes = self.bytes as u64;
        (self.from | self.to | bytes).is_multiple_of(4) && bytes / 4 <= u64::from(u32::MAX / 2)
    }
}

/// Enqueues copies of blocks.
///
/// # Safety
/// Both places of each block are valid for its number of bytes, and no destination overlaps another place.
pub(crate) unsafe fn copy(core: &Core, stream: &Stream, moves: &[Move]) -> Result<(), DeviceError> {
    let (words, others): (Vec<Move>, Vec<Move>) =
        moves.iter().filter(|m| m.bytes > 0).partition(|m| m.is_of_words());
    for m in others {
        // SAFETY: the caller guarantees it.
        unsafe { stream.copy(m.from, m.to, m.bytes)? };
    }
    if words.is_empty() {
        return Ok(());
    }
    let function = core.kernels.get(&core.context, ("copy", "copy_blocks"))?;
    for moves in words.chunks(BLOCKS) {
        let largest = moves.iter().map(|m| m.bytes).max().unwrap_or(0);
        let launch = Launch {
            function,
            grid: [moves.len() as u32, largest.div_ceil(EACH).clamp(1, MOST) as u32, 1],
            threads: THREADS,
            shared: 0,
            cluster: 1,
            early: false,
            cooperative: false,
        };
        // SAFETY: this is the struct of the kernel; the caller guarantees its pointers.
        unsafe { stream.start(&launch, &arguments(moves))? };
    }
    Ok(())
}

/// The kernel's `BlocksArgs`.
fn arguments(moves: &[Move]) -> Vec<u64> {
    let mut all = vec![0; 2 * BLOCKS + BLOCKS / 2];
    for (i, m) in moves.iter().enumerate() {
        (all[i], all[BLOCKS + i]) = (m.from, m.to);
        all[2 * BLOCKS + i / 2] |= (m.bytes as u64 / 4) << (32 * (i % 2));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_those_of_the_kernel() {
        let moves: Vec<Move> =
            (0..3).map(|i| Move { from: 100 + i, to: 200 + i, bytes: 4 * (i as usize + 1) }).collect();
        let all = arguments(&moves);
        assert_eq!(all.len() * 8, BLOCKS * (8 + 8 + 4));
        assert_eq!((&all[..3], &all[BLOCKS..BLOCKS + 3]), (&[100, 101, 102][..], &[200, 201, 202][..]));
        assert_eq!(all[2 * BLOCKS..][..2], [1 | 2 << 32, 3]);
    }

    #[test]
    fn odd_bytes_are_left_to_the_driver() {
        let of = |from, bytes| Move { from, to: 64, bytes }.is_of_words();
        assert!(of(64, 8) && !of(66, 8) && !of(64, 6) && !of(64, usize::MAX & !3));
    }
}
