//! Orate for browsers. `npm/` wraps this module in JavaScript, `page/` is a demo, `docs/web.md` their guide.
//!
//! The target is `wasm32-wasip1`: the standard library then has files and clocks, which `npm/wasi.js`
//! provides. Model files are read from there, so no reader of a family is special here.
//!
//! - [`Session`] does the work, on any machine: requests and answers are JSON.
//! - `exports` is what JavaScript calls.

mod exports;
mod session;

pub use session::Session;
