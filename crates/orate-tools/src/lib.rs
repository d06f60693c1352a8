//! What the tools of the `orate` program compute, as functions that return data. The program parses and prints.
//!
//! | module | question |
//! | --- | --- |
//! | [`verify`] | does the model compute what its reference computes? |
//! | [`cache`] | which compiled kernels are kept? |
//! | [`bench`] | how long does it take, and where does the time go? |

pub mod bench;
pub mod cache;
pub mod verify;
