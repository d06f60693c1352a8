//! What everything on a device shares: its context and its kernels.

use crate::driver::{Context, Driver};
use crate::kernels::Kernels;
use orate_graph::PrecisionPolicy;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What models, executables and memories share of their device.
pub(crate) struct Core {
    pub kernels: Kernels,
    pub context: Arc<Context>,
    pub policy: PrecisionPolicy,
    pub driver: Driver,
    /// Why compiled kernels could not be kept, if so.
    pub cache_problem: Option<String>,
    ids: AtomicU64,
}

impl Core {
    pub fn new(
        kernels: Kernels,
        context: Arc<Context>,
        policy: PrecisionPolicy,
        driver: Driver,
        cache_problem: Option<String>,
    ) -> Self {
        Core { kernels, context, policy, driver, cache_problem, ids: AtomicU64::new(0) }
    }

    /// A number that no other executable of this device has.
    pub fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }
}
