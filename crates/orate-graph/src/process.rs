//! What does not survive a fork.
//!
//! A forked process has a copy of memory, but only the thread that forked: worker threads are not there, and
//! what GPU drivers know of the process belongs to the one that they were opened in. Locks stay as they were,
//! even those that a thread held which is not there any more. So devices remember their process, refuse to
//! run in another one, and there leave alone what belongs to the driver.

use crate::DeviceError;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// The process that something was opened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeProcess(u32);

impl HomeProcess {
    /// This process.
    pub fn current() -> HomeProcess {
        HomeProcess(id())
    }

    /// Whether this is still the process. Asks the system, which takes a tenth of a microsecond.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == id()
    }

    /// An error in every other process.
    ///
    /// # Errors
    /// [`DeviceError::Forked`] with the name `device`.
    #[inline]
    pub fn check(self, device: &str) -> Result<(), DeviceError> {
        match self.is_here() {
            true => Ok(()),
            false => Err(DeviceError::Forked { device: device.to_owned(), opened_in: self.0 }),
        }
    }
}

/// Number of this process. WebAssembly has no processes, and its standard library panics when asked.
#[inline]
fn id() -> u32 {
    if cfg!(target_family = "wasm") { 0 } else { std::process::id() }
}

/// A value that is dropped in the process that made it, and in others left alone.
///
/// ```
/// let mut list = orate_graph::AtHome::new(vec![1]);
/// list.push(2);
/// assert_eq!(list.len(), 2);
/// ```
#[derive(Debug)]
pub struct AtHome<T> {
    home: HomeProcess,
    value: ManuallyDrop<T>,
}

impl<T> AtHome<T> {
    /// A value of this process.
    pub fn new(value: T) -> AtHome<T> {
        AtHome { home: HomeProcess::current(), value: ManuallyDrop::new(value) }
    }

    /// The process that it belongs to.
    pub fn home(this: &AtHome<T>) -> HomeProcess {
        this.home
    }
}

impl<T> Deref for AtHome<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for AtHome<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for AtHome<T> {
    fn drop(&mut self) {
        if self.home.is_here() {
            // SAFETY: it is dropped nowhere else, and nothing can look at it after this.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn values_are_dropped_at_home_only() {
        let counted = Arc::new(());
        drop(AtHome::new(counted.clone()));
        assert_eq!(Arc::strong_count(&counted), 1);
        let mut elsewhere = AtHome::new(counted.clone());
        elsewhere.home = HomeProcess(0);
        let error = elsewhere.home.check("cpu").expect_err("not this process");
        drop(elsewhere);
        assert_eq!(Arc::strong_count(&counted), 2);
        assert!(error.to_string().contains("fork"), "{error}");
        assert_eq!(HomeProcess::current().check("cpu"), Ok(()));
    }
}
