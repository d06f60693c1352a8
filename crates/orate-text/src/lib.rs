//! Text front ends: from what a person typed to what a network reads.
//!
//! [`supertonic`] is the exact front end of the Supertonic 1, 2 and 3 models.

mod error;
pub mod supertonic;

pub use error::TextError;
