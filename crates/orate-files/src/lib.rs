//! What every crate needs to deal with files that somebody else wrote, or may be using.
//!
//! - [`quoted`], [`one_line`] and [`shown`] put names, texts and paths of unknown origin into messages. They
//!   escape line breaks, terminal controls and invisible characters, and shorten what is too long.
//! - [`open`] and [`read`] accept regular files only, so that a pipe cannot hang the program and a device
//!   cannot fill its memory.
//! - [`OutputFile`] writes a file that appears under its name whole or not at all.

mod display;
mod input;
mod output;

pub use display::{one_line, quoted, shown};
pub use input::{open, read};
pub use output::{OutputFile, Sink};
