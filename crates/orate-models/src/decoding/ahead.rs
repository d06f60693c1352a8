//! A frame behind those that were handed out.
//!
//! Nothing of a frame depends on the host, so that a device with a queue of its own gets the next frame before the host waits for
//! the codes of one: it never waits for the host. When an utterance ends, the frame behind its last one is thrown away.

use crate::qwen3_tts::error::QwenError;
use crate::qwen3_tts::frame::CODES;
use orate_graph::{Executable, Memory, Ticket};

/// What became of the next frame.
#[derive(Debug, Default)]
pub(crate) enum Ahead {
    /// Nothing yet.
    #[default]
    Nothing,
    /// It was submitted; its codes are copied to the host when it is done.
    UnderWay(Ticket),
    /// Its codes are here.
    Made(Vec<i32>),
    /// It could not be submitted.
    Failed(QwenError),
    /// The utterance had ended or failed before it: the state on the device is one frame beyond the end, or unknown.
    ThrownAway,
}

impl Ahead {
    /// Submits a frame. Why it cannot be is for whoever wants its codes.
    pub fn submit(plan: &dyn Executable, memory: &mut dyn Memory) -> Ahead {
        match plan.run(memory).and_then(|()| memory.read_later(CODES)) {
            Ok(ticket) => Ahead::UnderWay(ticket),
            Err(e) => Ahead::Failed(e.into()),
        }
    }

    /// Whether the state on the device is that of the frames which were handed out.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Ahead::Nothing)
    }

    /// Whether it is known before it is finished that no frame follows: it failed, or is the end of speech.
    pub fn is_last(&self, end: i32) -> bool {
        match self {
            Ahead::Nothing | Ahead::UnderWay(_) => false,
            Ahead::Made(codes) => codes.first() == Some(&end),
            Ahead::Failed(_) | Ahead::ThrownAway => true,
        }
    }

    /// Waits for the codes, and replaces the content of `codes` by them: nothing if no frame was submitted.
    ///
    /// # Errors
    /// The device failed, now or when the frame should have been submitted, or the frame was thrown away.
    pub fn finish(self, memory: &mut dyn Memory, codes: &mut Vec<i32>) -> Result<(), QwenError> {
        codes.clear();
        match self {
            Ahead::Nothing => {}
            Ahead::ThrownAway => {
                return Err(QwenError::Option {
                    option: "session",
                    got: "asked for a frame behind one that failed".to_owned(),
                    allowed: "call `start` again".to_owned(),
                });
            }
            Ahead::UnderWay(ticket) => drop(memory.finish(ticket, codes)?),
            Ahead::Made(made) => codes.extend(made),
            Ahead::Failed(e) => return Err(e),
        }
        Ok(())
    }

    /// Waits for the codes and keeps them, so that nothing is under way any more.
    ///
    /// # Errors
    /// As [`Ahead::finish`].
    pub fn settle(&mut self, memory: &mut dyn Memory) -> Result<(), QwenError> {
        if let Ahead::UnderWay(_) | Ahead::Failed(_) = self {
            let mut codes = vec![];
            let made = std::mem::replace(self, Ahead::ThrownAway);
            made.finish(memory, &mut codes)?;
            *self = Ahead::Made(codes);
        }
        Ok(())
    }

    /// Throws the frame away, if there is one. Nobody waits for it.
    pub fn throw_away(&mut self, memory: &mut dyn Memory) {
        match std::mem::replace(self, Ahead::ThrownAway) {
            Ahead::Nothing => *self = Ahead::Nothing,
            Ahead::UnderWay(ticket) => memory.discard(ticket),
            Ahead::Made(_) | Ahead::Failed(_) | Ahead::ThrownAway => {}
        }
    }
}
