//! Failures of a device, and how wgpu reports them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// A failure that wgpu reports asynchronously.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Problem {
    /// The device is lost.
    Lost(String),
    /// The driver is out of memory for an object without a size, such as a command buffer.
    NoRoom,
    /// Any other error of wgpu or the driver.
    Refused(String),
}

impl Problem {
    pub fn of(error: &wgpu::Error) -> Problem {
        match error {
            wgpu::Error::OutOfMemory { .. } => Problem::NoRoom,
            error => Problem::Refused(error.to_string()),
        }
    }
}

/// First failure seen on a device, by any thread. A lost device replaces it, being the cause.
#[derive(Default)]
pub(crate) struct Failure(Mutex<Option<Problem>>);

impl Failure {
    pub fn set(&self, problem: Problem) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tells_more = match (&*known, &problem) {
            (None, _) | (Some(Problem::NoRoom | Problem::Refused(_)), Problem::Lost(_)) => true,
            (Some(Problem::Lost(old)), Problem::Lost(_)) => old.is_empty(),
            _ => false,
        };
        if tells_more {
            *known = Some(problem);
        }
    }

    /// Records an error. wgpu reports it on the thread whose call failed; during an [`attempt`] it is passed
    /// to that instead.
    pub fn hear(&self, error: wgpu::Error) {
        let unasked = TOLD.with_borrow_mut(|told| match told {
            Some(told) => {
                told.push(error);
                None
            }
            None => Some(error),
        });
        unasked.iter().for_each(|e| self.set(Problem::of(e)));
    }

    pub fn get(&self) -> Option<Problem> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

thread_local! {
    /// Errors that wgpu has reported on this thread during an [`attempt`].
    static TOLD: RefCell<Option<Vec<wgpu::Error>>> = const { RefCell::new(None) };
}

/// Runs `work` and returns its result with the errors that wgpu reported, which are not recorded elsewhere.
/// Error scopes of wgpu do the same, but leak some bytes for every thread that ever used one.
pub(crate) fn attempt<T>(work: impl FnOnce() -> T) -> (T, Vec<wgpu::Error>) {
    /// Errors of the enclosing attempt, restored when this one ends, also by a panic.
    struct Around(Option<Vec<wgpu::Error>>);
    impl Drop for Around {
        fn drop(&mut self) {
            TOLD.set(self.0.take());
        }
    }
    let _around = Around(TOLD.replace(Some(vec![])));
    let done = work();
    (done, TOLD.take().unwrap_or_default())
}

/// Polls wgpu, which may wait. If a driver reports a failure meanwhile, wgpu panics (without holding locks);
/// this converts the panic to an error.
pub(crate) fn polled<T, E: std::fmt::Display>(poll: impl FnOnce() -> Result<T, E>) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(done) => done.map(drop).map_err(|e| e.to_string()),
        Err(panic) => Err(match panic.downcast::<String>() {
            Ok(text) => text.trim_end().to_owned(),
            Err(panic) => panic.downcast::<&str>().map_or_else(|_| "unknown".to_owned(), |t| (*t).to_owned()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_the_reason_of_everything_else() {
        let failure = Failure::default();
        failure.set(Problem::NoRoom);
        failure.set(Problem::Refused("second".to_owned()));
        assert_eq!(failure.get(), Some(Problem::NoRoom), "the first counts");
        failure.set(Problem::Lost(String::new()));
        failure.set(Problem::Lost("reset".to_owned()));
        failure.set(Problem::Lost("again".to_owned()));
        failure.set(Problem::Refused("late".to_owned()));
        assert_eq!(failure.get(), Some(Problem::Lost("reset".to_owned())));
    }

    #[test]
    fn what_an_attempt_is_told_stays_on_its_thread() {
        let failures = [(); 3].map(|()| Failure::default());
        let [during, elsewhere, afterwards] = &failures;
        let tell = |of: &Failure| of.hear(wgpu::Error::OutOfMemory { source: "full".into() });
        let (inner, told) = attempt(|| {
            tell(during);
            std::thread::scope(|s| s.spawn(|| tell(elsewhere)).join()).expect("no panic");
            let ((), told) = attempt(|| tell(during));
            assert!(catch_unwind(|| attempt(|| panic!("on the way"))).is_err());
            tell(during);
            told.len()
        });
        tell(afterwards);
        assert_eq!((inner, told.len()), (1, 2), "errors belong to the innermost");
        let known = failures.each_ref().map(Failure::get);
        assert_eq!(known, [None, Some(Problem::NoRoom), Some(Problem::NoRoom)]);
    }

    /// wgpu panics if a driver reports a reset to a waiting thread.
    #[test]
    fn a_panic_of_the_driver_is_an_error() {
        let text = |f: fn() -> Result<(), String>| polled(f).expect_err("fails");
        assert_eq!(
            text(|| panic!("Error in Device::poll: {}", "Parent device is lost")),
            "Error in Device::poll: Parent device is lost"
        );
        assert_eq!(text(|| panic!("words")), "words");
        assert_eq!(text(|| std::panic::panic_any(7)), "unknown");
        assert_eq!(text(|| Err("refused".to_owned())), "refused");
        assert_eq!(polled(|| Ok::<_, String>(7)), Ok(()));
    }
}
