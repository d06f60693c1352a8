//! What JavaScript calls. There is one session for each instance of the module, since an instance has one
//! memory and a worker one instance.

use crate::Session;
use std::cell::RefCell;
use std::sync::atomic::AtomicBool;

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

#[derive(Default)]
struct State {
    session: Session,
    request: Vec<u8>,
    answer: String,
}

/// Prepares the module; called once, before anything else. Without it the linker would run the C library's
/// constructors and destructors around every call.
#[cfg(target_os = "wasi")]
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    unsafe extern "C" {
        #[cfg(feature = "threads")]
        fn __wasi_init_tp();
        fn __wasm_call_ctors();
    }
    // SAFETY: the C library and the linker make these functions for a start like this one: the first puts the
    // main thread into the list of threads. Neither was called before.
    unsafe {
        #[cfg(feature = "threads")]
        __wasi_init_tp();
        __wasm_call_ctors();
    }
}

/// Returns where to write a request of `length` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn orate_request(length: usize) -> *mut u8 {
    STATE.with_borrow_mut(|state| {
        state.request.clear();
        state.request.resize(length, 0);
        state.request.as_mut_ptr()
    })
}

/// Does what the request asks for, and returns the length of the answer in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn orate_call() -> usize {
    STATE.with_borrow_mut(|state| {
        let request = String::from_utf8_lossy(&state.request);
        state.answer = state.session.call(&request);
        state.answer.len()
    })
}

/// Returns where the answer is, until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn orate_answer() -> *const u8 {
    STATE.with_borrow(|state| state.answer.as_ptr())
}

/// Returns where the samples of the last chunk are, until the next call. The answer has their number.
#[unsafe(no_mangle)]
pub extern "C" fn orate_samples() -> *const f32 {
    STATE.with_borrow(|state| state.session.samples().as_ptr())
}

/// Returns where the bytes of the voice are that was cloned last, until the next call. The answer has their
/// number.
#[unsafe(no_mangle)]
pub extern "C" fn orate_voice() -> *const u8 {
    STATE.with_borrow(|state| state.session.voice().as_ptr())
}

/// Returns where a byte is that another thread sets to 1 to end a text, until the text is stopped; 0 if there
/// is no such text.
#[unsafe(no_mangle)]
pub extern "C" fn orate_cancelled(id: u32) -> *const AtomicBool {
    STATE.with_borrow(|state| state.session.cancelled(id).map_or(std::ptr::null(), std::ptr::from_ref))
}
