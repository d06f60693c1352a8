//! Strings and pointers that callers give.

use crate::failure::{Failure, Result};
use std::ffi::{CStr, CString, c_char};

/// The string of a caller. `what` names it in errors.
///
/// # Safety
/// `text` is NULL, or ends with a zero byte and outlives the result.
pub unsafe fn given<'a>(what: &str, text: *const c_char) -> Result<&'a str> {
    // SAFETY: as the caller says.
    let text = unsafe { optional(what, text) }?;
    text.ok_or_else(|| Failure::input(format!("{what} is NULL; give a string")))
}

/// As [`given`], where NULL stands for nothing.
///
/// # Safety
/// As [`given`].
pub unsafe fn optional<'a>(what: &str, text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not NULL, and as the caller says.
    let bytes = unsafe { CStr::from_ptr(text) };
    let text = bytes.to_str().map_err(|e| {
        Failure::input(format!("{what} is not UTF-8: byte {} is wrong; convert it", e.valid_up_to()))
    })?;
    Ok(Some(text))
}

/// What a pointer of the caller points to. `what` names it in errors.
///
/// # Safety
/// `pointer` is NULL, or points to a value that outlives the result.
pub unsafe fn pointed<'a, T>(what: &str, pointer: *const T) -> Result<&'a T> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::input(format!("{what} is NULL")))
}

/// A string for C. Zero bytes, which no message or name has, become spaces.
pub fn c_string(text: impl Into<String>) -> CString {
    let text = text.into().replace('\0', " ");
    CString::new(text).unwrap_or_default()
}
