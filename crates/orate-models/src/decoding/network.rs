//! What decoding needs to know of a network: a trait that each family implements, and the buffers that its
//! graphs have.
//!
//! A plan for B utterances has B · L rows: L *lanes* for each utterance, one after the other. There are two
//! for classifier-free guidance, else one.
//!
//! Buffers have the names of the constants below; a frame also reads those of [`Facts::sampling`]. All other
//! states belong to the network. Their roles are said in the graph: [`orate_graph::Graph::cache`]
//! holds rows by position, [`orate_graph::Graph::scratch`] nothing that outlives a run, and
//! [`orate_graph::Graph::state`] all that is carried from frame to frame, such as logits and codes drawn
//! before. Outputs of prefill become states of that name.

use super::error::option_error;
use crate::ModelError;
use orate_graph::{Device, Executable, Memory, Shape};
use std::ops::Range;
use std::sync::Arc;

/// Prefill reads it: prompt rows, f32 `[B · L, T, D]`, made by [`Autoregressive::rows_plan`].
pub const ROWS: &str = "rows";
/// Prefill reads it: number of the last prompt row that is not padding, i32 `[B · L]`.
pub const LAST: &str = "last";
/// State of prefill and frame: number of rows before the next one, i32 `[B · L]`. A frame increments it.
pub const POSITION: &str = "position";
/// State of a frame: number of each utterance's frame, i32 `[B]`. A frame increments it.
pub const FRAME: &str = "frame";
/// A frame reads it: key of the random numbers, i32 `[B, 2]`.
pub const SEED: &str = "seed";
/// A frame may read it: a row for each frame, f32 `[B, N, D]`. The last one holds for all that follow.
pub const FEED: &str = "trailing";
/// A frame writes it: what was drawn, i32 `[B, Q]`.
pub const CODES: &str = "codes";
/// A frame of given codes reads it: codes in place of drawn ones, i32 `[B, Q]`.
pub const GIVEN: &str = "given_codes";

/// A frame of several utterances may read it: for each row, a row whose caches begin with the same rows, and
/// how many, i32 `[B · L, 2]` ([`orate_graph::Op::Attention`]).
pub const SHARED: &str = "shared";

/// Prompts in a pass at most.
pub(super) const MOST_PROMPTS: usize = 16;

/// Extents of the states of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemorySizes {
    /// Utterances side by side.
    pub batch: usize,
    /// Rows that a cache holds: prompt and frames.
    pub capacity: usize,
    /// Rows of [`FEED`]; 0 for networks without it.
    pub feed: usize,
}

/// Fixed properties of a network.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Codes of a frame.
    pub codes: usize,
    /// First code of the frame that ends an utterance.
    pub end: i32,
    /// Batch rows of an utterance: 2 for classifier-free guidance, else 1.
    pub lanes: usize,
    /// Prompt rows and frames at most.
    pub positions: usize,
    /// Names of the buffers of sampling settings, f32 `[B, S]` each ([`orate_graph::Op::Sample`]).
    pub sampling: &'static [&'static str],
}

/// How long a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Rows.
    pub rows: usize,
    /// Rows at the beginning that other prompts begin with too. Their state is kept. Fewer than `rows`.
    pub fixed: usize,
    /// Rows of [`FEED`].
    pub feed: usize,
}

/// Rows of a prompt that are read in one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Which rows.
    pub rows: Range<usize>,
    /// Number of rows with padding.
    pub padded: usize,
}

/// An autoregressive network on a device.
pub trait Autoregressive: Send + Sync + 'static {
    /// A request as the network reads it.
    type Prompt: Sync;
    /// Determines the state after the fixed rows of a prompt: equal ones leave equal states.
    type Prefix: PartialEq + Send;

    /// Fixed properties.
    fn facts(&self) -> Facts;

    /// Where it runs.
    fn device(&self) -> &Arc<dyn Device>;

    /// Length of a prompt.
    fn extent(&self, prompt: &Self::Prompt) -> Extent;

    /// The fixed rows of a prompt.
    fn prefix(&self, prompt: &Self::Prompt) -> Self::Prefix;

    /// The plan that makes [`ROWS`] of a pass.
    ///
    /// # Errors
    /// The device lacks an op, or room.
    fn rows_plan(
        &self,
        prompt: &Self::Prompt,
        pass: &Pass,
        taps: bool,
    ) -> Result<Arc<dyn Executable>, ModelError>;

    /// Writes the inputs of [`Autoregressive::rows_plan`].
    fn write_rows(
        &self,
        prompt: &Self::Prompt,
        pass: &Pass,
        memory: &mut dyn Memory,
    ) -> Result<(), ModelError>;

    /// A plan that runs once at the beginning of an utterance, when all states are zeros: it makes [`FEED`]
    /// of `feed` rows, or sets other states. `None` if there is nothing to do.
    fn begin_plan(&self, _feed: usize, _taps: bool) -> Result<Option<Arc<dyn Executable>>, ModelError> {
        Ok(None)
    }

    /// Writes the inputs of [`Autoregressive::begin_plan`], and [`FEED`] of `feed` rows where no plan makes
    /// it.
    fn write_begin(
        &self,
        _prompt: &Self::Prompt,
        _feed: usize,
        _memory: &mut dyn Memory,
    ) -> Result<(), ModelError> {
        Ok(())
    }

    /// The plan that reads `time` prompt rows. It leaves [`POSITION`] as it is: what padding leaves in a
    /// cache is overwritten before it is seen.
    fn prefill_plan(
        &self,
        sizes: MemorySizes,
        time: usize,
        taps: bool,
    ) -> Result<Arc<dyn Executable>, ModelError>;

    /// The plan of a frame.
    fn frame_plan(&self, sizes: MemorySizes, taps: bool) -> Result<Arc<dyn Executable>, ModelError>;

    /// The plan of a frame of [`GIVEN`] codes; an error for networks that have none.
    fn given_frame_plan(&self, _sizes: MemorySizes, _taps: bool) -> Result<Arc<dyn Executable>, ModelError> {
        Err(option_error("network", "asked for a frame of given codes", "it can only draw them"))
    }
}

/// The same number for each lane of an utterance.
pub(super) fn for_lanes(memory: &mut dyn Memory, name: &str, lanes: usize, x: i32) -> Result<(), ModelError> {
    // Without the heap: an allocation for each frame would be counted.
    const MOST_LANES: usize = 8;
    Ok(memory.write_i32(name, &Shape::from([lanes]), &[x; MOST_LANES][..lanes])?)
}
