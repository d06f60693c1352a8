//! The frame after those that were returned.
//!
//! Nothing of a frame depends on the host. So where look-ahead pays ([`orate_graph::Pacing::look_ahead`]),
//! the next frame is submitted before the host waits for the codes of the last one, and the device never
//! waits for the host. The frame after the last one of an utterance is discarded.

use super::error::option_error;
use super::network::CODES;
use crate::ModelError;
use orate_graph::{Executable, Memory, Ticket};

/// State of the next frame.
#[derive(Debug, Default)]
pub(super) enum Ahead {
    /// Not submitted.
    #[default]
    Nothing,
    /// Submitted; its codes are copied to the host when it is done.
    UnderWay(Ticket),
    /// Its codes are on the host.
    Made(Vec<i32>),
    /// It could not be submitted.
    Failed(ModelError),
    /// The utterance ended or failed before it: the state on the device is one frame past the end, or
    /// unknown.
    Discarded,
}

impl Ahead {
    /// Submits a frame. An error is returned with its codes.
    pub fn submit(plan: &dyn Executable, memory: &mut dyn Memory) -> Ahead {
        match plan.run(memory).and_then(|()| memory.read_later(CODES)) {
            Ok(ticket) => Ahead::UnderWay(ticket),
            Err(e) => Ahead::Failed(e.into()),
        }
    }

    /// Whether the state on the device is that of the frames which were returned.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Ahead::Nothing)
    }

    /// Whether it is known before it is finished that no frame follows: it failed, or its code is `end`.
    pub fn is_last(&self, end: i32) -> bool {
        match self {
            Ahead::Nothing | Ahead::UnderWay(_) => false,
            Ahead::Made(codes) => codes.first() == Some(&end),
            Ahead::Failed(_) | Ahead::Discarded => true,
        }
    }

    /// Waits for the codes, and replaces the content of `codes` by them: nothing if no frame was submitted.
    pub fn finish(self, memory: &mut dyn Memory, codes: &mut Vec<i32>) -> Result<(), ModelError> {
        codes.clear();
        match self {
            Ahead::Nothing => {}
            Ahead::Discarded => {
                let got = "asked for a frame after one that failed";
                return Err(option_error("session", got, "start another one"));
            }
            Ahead::UnderWay(ticket) => drop(memory.finish(ticket, codes)?),
            Ahead::Made(made) => codes.extend(made),
            Ahead::Failed(e) => return Err(e),
        }
        Ok(())
    }

    /// Waits for the codes and keeps them, so that nothing is under way any more.
    pub fn settle(&mut self, memory: &mut dyn Memory) -> Result<(), ModelError> {
        if let Ahead::UnderWay(_) | Ahead::Failed(_) = self {
            let mut codes = vec![];
            let made = std::mem::replace(self, Ahead::Discarded);
            made.finish(memory, &mut codes)?;
            *self = Ahead::Made(codes);
        }
        Ok(())
    }

    /// Discards the frame, if there is one, without waiting for it.
    pub fn discard(&mut self, memory: &mut dyn Memory) {
        match std::mem::replace(self, Ahead::Discarded) {
            Ahead::Nothing => *self = Ahead::Nothing,
            Ahead::UnderWay(ticket) => memory.discard(ticket),
            Ahead::Made(_) | Ahead::Failed(_) | Ahead::Discarded => {}
        }
    }
}
