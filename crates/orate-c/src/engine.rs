//! Engines: opening, closing, and what is known of them.

use crate::failure::{Failure, Result, Status, guard, status};
use crate::options::{self, Speech};
use crate::text::{self, c_string, pointed};
use std::ffi::{CString, c_char};

/// A model on a device.
pub struct Engine {
    pub engine: orate::Engine,
    model: CString,
    device: CString,
    fallbacks: CString,
    voices: Vec<CString>,
    options: CString,
}

impl Engine {
    fn open(model: Option<&str>, pairs: &[(&str, &str)]) -> Result<Engine> {
        let mut options = options::of_engine(pairs)?;
        if let Some(model) = model {
            #[cfg(feature = "hub")]
            let path = orate_hub::model_path(model.as_ref())?;
            #[cfg(not(feature = "hub"))]
            let path = model.into();
            options.model = orate::ModelSource::Path(path);
        }
        let engine = orate::Engine::with_options(options)?;
        Ok(Engine {
            model: c_string(engine.model_name()),
            device: c_string(engine.device()),
            fallbacks: c_string(engine.fallbacks().join("\n")),
            voices: engine.voices().iter().map(|voice| c_string(&*voice.name)).collect(),
            options: c_string(options::help(&engine)),
            engine,
        })
    }
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn orate_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Opens a model, which takes milliseconds to seconds: keep the engine.
///
/// `model` is the path of a folder or file, the name of a pulled model such as "supertonic-3", or NULL for
/// the built-in English voice. Options are "device" (auto, cpu, gpu, cuda, vulkan, metal, dx12; GPUs may
/// have a number: cuda:1), "threads" and "isa" of the CPU, "precision" of weights (stored, f32, tf32, f16,
/// bf16, q8_0, q6_k, q5_k, q4_k, q4_0, auto), "kv" (f32, f16, bf16, q8_0, auto), "codec" (the second of two
/// GGUF files), "cache" (a folder for compiled kernels) and "allow_fallback" (true: the CPU replaces a device
/// that cannot run the model).
///
/// Returns NULL if it fails. Free the engine with orate_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_open(model: *const c_char, options: *const *const c_char) -> *mut Engine {
    let opened = guard(|| {
        // SAFETY: strings and an array of the caller.
        let (model, pairs) = unsafe { (text::optional("model", model)?, options::pairs(options)?) };
        Engine::open(model, &pairs)
    });
    opened.map_or(std::ptr::null_mut(), |engine| Box::into_raw(Box::new(engine)))
}

/// Frees an engine, and the strings that functions returned for it. NULL is allowed. No call with it may be
/// running, or begin later. Audio and tokens live on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_close(engine: *mut Engine) {
    if !engine.is_null() {
        guard(|| {
            // SAFETY: it is from `orate_open`, and not used again.
            drop(unsafe { Box::from_raw(engine) });
            Ok(())
        });
    }
}

/// Returns samples per second of all audio of an engine; 0 if it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_sample_rate(engine: *const Engine) -> u32 {
    // SAFETY: an engine of the caller.
    guard(|| Ok(unsafe { pointed("engine", engine) }?.engine.sample_rate())).unwrap_or(0)
}

/// Returns the path of the model, or "built-in voice"; NULL if the engine is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_model(engine: *const Engine) -> *const c_char {
    // SAFETY: an engine of the caller.
    unsafe { string(engine, |engine| &engine.model) }
}

/// Returns what runs the model, such as "cpu (avx2, 8 threads)"; NULL if the engine is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_device(engine: *const Engine) -> *const c_char {
    // SAFETY: an engine of the caller.
    unsafe { string(engine, |engine| &engine.device) }
}

/// Returns why devices were passed over, a line for each reason: those that "auto" prefers, or with
/// "allow_fallback" the one that was named. "" if none was; NULL if the engine is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_fallbacks(engine: *const Engine) -> *const c_char {
    // SAFETY: an engine of the caller.
    unsafe { string(engine, |engine| &engine.fallbacks) }
}

/// Returns the number of the model's voices; 0 if the engine is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_voice_count(engine: *const Engine) -> usize {
    // SAFETY: an engine of the caller.
    guard(|| Ok(unsafe { pointed("engine", engine) }?.voices.len())).unwrap_or(0)
}

/// Returns the name of a voice, for the option "voice"; NULL if `index` is too large.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_voice_name(engine: *const Engine, index: usize) -> *const c_char {
    let name = guard(|| {
        // SAFETY: an engine of the caller.
        let voices = &unsafe { pointed("engine", engine) }?.voices;
        let count = voices.len();
        let name = voices.get(index).map(|name| name.as_ptr());
        name.ok_or_else(|| Failure::input(format!("voice {index}: the model has {count}, counted from 0")))
    });
    name.unwrap_or(std::ptr::null())
}

/// Returns the options that the model adds to those of orate_say(), a line for each: its name, what it
/// does, its range and its default. NULL if the engine is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_options(engine: *const Engine) -> *const c_char {
    // SAFETY: an engine of the caller.
    unsafe { string(engine, |engine| &engine.options) }
}

/// Loads weights and compiles plans, so that the first text is as fast as later ones: for texts with these
/// options (see orate_say()), spoken by `threads` threads at once, at least 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_warm_up(
    engine: *const Engine,
    options: *const *const c_char,
    threads: usize,
) -> Status {
    status(|| {
        // SAFETY: an engine and an array of the caller.
        let (Engine { engine, .. }, pairs) =
            unsafe { (pointed("engine", engine)?, options::pairs(options)?) };
        if threads == 0 {
            return Err(Failure::input("threads is 0; choose at least 1"));
        }
        Ok(engine.warm_up_for_callers(&Speech::read(engine, &pairs)?.options, threads)?)
    })
}

/// A string that an engine keeps.
///
/// # Safety
/// `engine` is NULL, or an engine that outlives the string.
unsafe fn string(engine: *const Engine, of: impl FnOnce(&Engine) -> &CString) -> *const c_char {
    // SAFETY: as the caller says.
    guard(|| Ok(of(unsafe { pointed("engine", engine) }?).as_ptr())).unwrap_or(std::ptr::null())
}
