//! Programs that run in child processes, which fork before this process opens anything. A child of a process
//! with an engine open is tested in `fork.rs`.
#![cfg(target_os = "linux")]

#[path = "../common/child.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;

mod closing;
mod codec_thread;
mod device_memory;
mod exit;
