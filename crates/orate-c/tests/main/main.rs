//! The C interface, as programs in C see it.

mod header;
mod programs;
