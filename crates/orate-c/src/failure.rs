//! Errors: a status, and a message that each thread keeps.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It did what was asked.
    Ok = 0,
    /// A text, option, voice, path or pointer is wrong.
    InvalidInput = 1,
    /// The model is missing, damaged, or of an unknown kind.
    InvalidModel = 2,
    /// Memory, threads, devices or files failed.
    System = 3,
    /// A token was cancelled, or a callback stopped the stream.
    Cancelled = 4,
    /// A bug of Orate: please report it. The engine can be used further.
    Bug = 5,
}

/// Why a call failed.
#[derive(Debug)]
pub struct Failure {
    pub status: Status,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// An error of the caller.
    pub fn input(message: impl Into<String>) -> Failure {
        Failure { status: Status::InvalidInput, message: message.into() }
    }
}

impl From<orate::Error> for Failure {
    fn from(error: orate::Error) -> Failure {
        use orate::ErrorKind;
        let status = match error.kind() {
            ErrorKind::InvalidInput => Status::InvalidInput,
            ErrorKind::InvalidModel => Status::InvalidModel,
            ErrorKind::Cancelled => Status::Cancelled,
            _ => Status::System,
        };
        Failure { status, message: message(&error) }
    }
}

#[cfg(feature = "hub")]
impl From<orate_hub::Error> for Failure {
    fn from(error: orate_hub::Error) -> Failure {
        Failure { status: Status::InvalidModel, message: message(&error) }
    }
}

/// The message with its causes, without those that it contains already.
fn message(error: &dyn std::error::Error) -> String {
    let mut all = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !all.contains(&text) {
            all += &format!(": {text}");
        }
        source = cause.source();
    }
    all
}

thread_local! {
    static LAST: RefCell<(Status, CString)> = RefCell::new((Status::Ok, CString::default()));
}

/// Runs a call. Errors and panics become what the thread's last error says, and `None`.
pub fn guard<T>(call: impl FnOnce() -> Result<T>) -> Option<T> {
    // What a panic leaves behind is behind locks that report it, or local to the call.
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(failure)) => failure,
        Err(panic) => Failure { status: Status::Bug, message: format!("a bug of Orate: {}", words(&*panic)) },
    };
    let message = crate::text::c_string(failure.message);
    // A thread that is ending keeps no error.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (failure.status, message));
    None
}

/// As [`guard`], for functions that return a status.
pub fn status(call: impl FnOnce() -> Result<()>) -> Status {
    match guard(call) {
        Some(()) => Status::Ok,
        None => last_status(),
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

fn last_status() -> Status {
    LAST.try_with(|last| last.borrow().0).unwrap_or(Status::System)
}

/// Returns what was wrong with the last call of this thread that failed, and what to do about it. A call
/// that succeeds does not change it. Never NULL; "" if no call of this thread has failed.
///
/// The text stays valid until the next call of this thread fails, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn orate_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the status of the last call of this thread that failed; ORATE_STATUS_OK if none has. It is for
/// functions that return NULL.
#[unsafe(no_mangle)]
pub extern "C" fn orate_last_status() -> Status {
    last_status()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> (Status, String) {
        // SAFETY: the text is valid until the next failure.
        let text = unsafe { std::ffi::CStr::from_ptr(orate_last_error()) };
        (orate_last_status(), text.to_string_lossy().into_owned())
    }

    #[test]
    fn panics_and_errors_stay_here_and_are_kept_by_thread() {
        assert_eq!(last(), (Status::Ok, String::new()));
        assert_eq!(status(|| panic!("row {}", 7)), Status::Bug);
        assert_eq!(last(), (Status::Bug, "a bug of Orate: row 7".to_owned()));
        assert_eq!(guard(|| Ok(1)), Some(1));
        assert_eq!(last().0, Status::Bug, "success changes nothing");
        let other = std::thread::spawn(|| {
            let before = last().0;
            let failed = guard(|| Err::<(), _>(Failure::input("a\0b")));
            (before, failed, last())
        });
        let (before, failed, after) = other.join().expect("no panic");
        assert_eq!((before, failed), (Status::Ok, None));
        assert_eq!(after, (Status::InvalidInput, "a b".to_owned()));
        assert_eq!(last().0, Status::Bug);
    }
}
