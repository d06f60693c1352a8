//! Books for Orate: what of a file is read aloud, in which parts, and how parts become one file.
//!
//! - [`read`] reads EPUB, HTML, Markdown and text into a [`Book`] of chapters.
//! - [`Plan`] divides a book into units. A unit is some paragraphs of a chapter, a minute or two of speech.
//! - [`WorkFolder`] keeps finished units on disk. Any number of processes claim and write them, and a killed
//!   one loses only the unit that it was speaking.
//! - [`assemble`] makes a file, or one for each chapter, of all units: levels each chapter, encodes, and
//!   writes chapter marks.
//!
//! The crate speaks nothing itself: the sound of a unit is a function of its text, its number and options, so
//! whoever speaks it gets the same samples.

mod assemble;
mod book;
mod epub;
mod html;
mod markdown;
mod plan;
mod text;
mod work;

pub use assemble::{AssembleError, Assembled, Container, Target, assemble};
pub use book::{Block, Book, BookError, BookFormat, Chapter, parse, read};
pub use plan::{Paragraph, Plan, PlannedChapter, Unit};
pub use work::{AssemblyLock, Claim, Opened, Progress, State, WorkError, WorkFolder};
