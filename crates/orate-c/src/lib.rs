//! The C interface: what `include/orate.h` declares. `docs/c.md` is its guide.
//!
//! - Comments of exported functions and types are the documentation of the header, so they are written for
//!   callers in C.
//! - Every exported function that can fail runs in `failure::guard`: panics and errors become a status.
//! - Options come from the declarations of the families, so a new family needs no change here.

mod engine;
mod failure;
mod options;
mod speech;
mod text;
