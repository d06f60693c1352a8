//! What goes wrong on a device, and how wgpu reports it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// What can go wrong on a device outside of the calls that ask for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Problem {
    /// There is no device any more.
    Lost(String),
    /// The driver had no room for something that has no size of its own, such as commands.
    NoRoom,
    /// Whatever else wgpu or the driver say.
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

/// The first thing that went wrong on a device, by whichever thread; but that the device is lost is why other
/// things go wrong, whichever is told first.
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

    /// Takes an error that wgpu reports, which it does on the thread that asked for what went wrong, unless
    /// that is an [`attempt`].
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
    /// What wgpu told of on this thread while it did something that this thread asked for.
    static TOLD: RefCell<Option<Vec<wgpu::Error>>> = const { RefCell::new(None) };
}

/// Does something on a device, and returns the errors that wgpu has with it beside the result; no one else is
/// told of them. Error scopes of wgpu do the same, but keep some bytes for every thread that ever had one.
pub(crate) fn attempt<T>(work: impl FnOnce() -> T) -> (T, Vec<wgpu::Error>) {
    /// What an attempt around this one was told so far, which goes on when this one has ended, be it by a
    /// panic.
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

/// Lets wgpu look at what the device has done, and wait if it shall. A driver that reports a failure
/// meanwhile makes wgpu panic, after all of its locks: that is an error here.
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

    /// wgpu panics where a driver reports a reset to a thread that waits.
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
