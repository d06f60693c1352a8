//! Passes and the plans they leave.

mod passes;
mod plans;
mod snapshots;
