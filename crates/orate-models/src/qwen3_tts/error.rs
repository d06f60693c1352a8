//! Errors of the family, which are those of all models.

pub use crate::ModelError as QwenError;
