//! Lists NVIDIA GPUs.

use crate::driver::{Context, Driver, Facts, facts};
use orate_graph::{DeviceClass, DeviceError, DeviceInfo, DeviceKind};

/// Returns all CUDA devices in the order of the driver.
///
/// # Errors
/// There is no NVIDIA driver, it is too old, or it finds no GPU. The message says which.
pub fn devices() -> Result<Vec<DeviceInfo>, DeviceError> {
    let driver = Driver::open()?;
    let count = driver.count()?;
    (0..count)
        .map(|index| {
            let (_, facts) = facts(driver, index)?;
            // Only a context can report free memory, and creating one takes long, so it is done only if there
            // are several devices. A device that refuses a context is still listed.
            let context = if count > 1 { Context::new(driver, index).ok() } else { None };
            let free = context.and_then(|c| c.memory().ok()).map(|(free, _)| free);
            Ok(info(driver, index, &facts, free))
        })
        .collect()
}

/// Converts facts to the form that all backends share.
pub(crate) fn info(driver: Driver, index: usize, facts: &Facts, free: Option<u64>) -> DeviceInfo {
    let mut features =
        vec![format!("sm_{}", facts.arch), format!("{} multiprocessors", facts.multiprocessors)];
    if facts.arch >= 80 {
        features.push("tensor cores".to_owned());
    }
    if facts.arch >= 90 {
        features.push("clusters".to_owned());
    }
    DeviceInfo {
        kind: DeviceKind::Cuda,
        index,
        name: facts.name.clone(),
        class: if facts.integrated { DeviceClass::Integrated } else { DeviceClass::Discrete },
        memory: Some(facts.memory),
        free_memory: free,
        driver: driver.describe(),
        features,
        card: facts.card.clone(),
    }
}
