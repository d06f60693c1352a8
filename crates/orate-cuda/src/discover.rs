//! Which NVIDIA GPUs there are.

use crate::driver::{Context, Driver, Facts, facts};
use orate_graph::{DeviceClass, DeviceError, DeviceInfo, DeviceKind};

/// All CUDA devices, in the order in which the driver numbers them.
///
/// # Errors
/// There is no NVIDIA driver, it is too old, or it sees no GPU. The message says which.
pub fn devices() -> Result<Vec<DeviceInfo>, DeviceError> {
    let driver = Driver::open()?;
    let count = driver.count()?;
    (0..count)
        .map(|index| {
            let (_, facts) = facts(driver, index)?;
            // Only a context knows what is free, and making one takes long: it is asked where there is a
            // choice. A device that refuses one is still listed.
            let context = if count > 1 { Context::new(driver, index).ok() } else { None };
            let free = context.and_then(|c| c.memory().ok()).map(|(free, _)| free);
            Ok(info(driver, index, &facts, free))
        })
        .collect()
}

/// Facts in the form that all backends share.
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
