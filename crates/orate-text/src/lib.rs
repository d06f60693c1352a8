//! Text front ends: from typed text to the input of a network.
//!
//! - [`pieces`] splits a text into pieces of whole sentences, for every family.
//! - [`Traced`] is a text that knows which part of another text each of its parts was made of.
//! - [`words`] lists the words that captions show, and [`captions`] writes SRT, WebVTT and JSON.
//! - [`Script`] divides a text with SSML or tags into segments of one voice and rate. [`Lexicon`] has
//!   spellings of a user's words.
//! - [`languages`] finds what a model calls the language that people name by code, tag or English name.
//! - [`decode_text`] decodes text files: UTF-8 and UTF-16.
//! - [`TextSession`] cuts sentences off a text that arrives in parts.
//! - [`supertonic`] is the exact front end of the Supertonic 1, 2 and 3 models: normalization, language tags,
//!   token ids. Independent of the language; it never turns `5` into "five".
//! - [`english`] has reading rules for English: numbers, dates, money, units, abbreviations and symbols
//!   become words. An optional step before [`supertonic`], and required for voices that know only letters and
//!   a few marks.
//! - [`qwen`] is the tokenizer of the Qwen models: [`bpe`] and their rules for splitting text.
//! - [`chatterbox`] has the front ends of the Chatterbox models: English, 23 languages, and Turbo.
//!
//! Nothing here panics or slows down on strange input: every function is linear in the length of the text
//! (byte-pair encoding sorts, which is nearly linear), and every failure is a [`TextError`].
//!
//! ```
//! use orate_text::english;
//! use orate_text::supertonic::{self, Version};
//!
//! let read = english::read_aloud("Dr. Smith paid $3.50.");
//! assert_eq!(read, "Doctor Smith paid three dollars and fifty cents.");
//! assert_eq!(
//!     supertonic::prepare(&read, Version::V2, Some("en"))?,
//!     "<en>Doctor Smith paid three dollars and fifty cents.</en>",
//! );
//! # Ok::<(), orate_text::TextError>(())
//! ```

mod added;
pub mod bpe;
pub mod captions;
pub mod chatterbox;
mod cjk;
mod classes;
mod encoding;
pub mod english;
mod error;
mod invisible;
pub mod languages;
mod lexicon;
mod pictures;
pub mod pieces;
pub mod qwen;
pub mod script;
pub mod supertonic;
mod text_session;
mod traced;
pub mod words;

pub use captions::{Source, TimedWord};
pub use encoding::decode_text;
pub use error::TextError;
pub use invisible::is_invisible;
pub use lexicon::Lexicon;
pub use script::{Mark, Script, Segment, TimedMark};
pub use text_session::{Sentence, TextSession};
pub use traced::Traced;
