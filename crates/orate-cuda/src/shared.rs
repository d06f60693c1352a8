//! State shared by everything on a device: its context and its kernels.

use crate::driver::{Context, Driver};
use crate::machine_code::Kernels;
use orate_graph::PrecisionPolicy;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of the device that models, executables and memories share.
pub(crate) struct Core {
    pub kernels: Kernels,
    pub context: Arc<Context>,
    pub policy: PrecisionPolicy,
    pub driver: Driver,
    ids: AtomicU64,
}

impl Core {
    pub fn new(kernels: Kernels, context: Arc<Context>, policy: PrecisionPolicy, driver: Driver) -> Self {
        Core { kernels, context, policy, driver, ids: AtomicU64::new(0) }
    }

    /// Returns an id that is unique among executables of this device.
    pub fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }
}
