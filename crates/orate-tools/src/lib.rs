//! What the tools of the `orate` program compute, as functions that return data. The program parses and
//! prints.
//!
//! | module | question |
//! | --- | --- |
//! | [`inspect`] | what does a model or a weight file hold? |
//! | [`explain`] | which plans run, and how long must they take at least? |
//! | [`mod@bench`] | how long does a model take, and where does the time go? |
//! | [`verify`] | does it compute what its reference computes? |
//! | [`quantize`] | how does a model become one file, with weights in blocks? |
//! | [`pack`] | how does a voice folder become one file? |
//! | [`cache`] | which compiled kernels are kept? |
//!
//! No family of models is named here: what differs is asked of the model, by the traits that its family
//! implements.

pub mod bench;
pub mod cache;
pub mod explain;
pub mod inspect;
pub mod pack;
pub mod quantize;
pub mod verify;
