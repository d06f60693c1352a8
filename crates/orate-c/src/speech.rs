//! Speaking: at once, as a stream, and until it is cancelled.

use crate::engine::Engine;
use crate::failure::{Failure, Result, Status, guard, status};
use crate::options::{self, Speech};
use crate::text::{c_string, given, pointed};
use orate::{AudioFormat, Cancel, EncoderSettings, FinishReason};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;

/// Stops calls from another thread.
pub struct CancelToken(Cancel);

/// Audio of a text.
#[repr(C)]
pub struct Audio {
    /// Samples, about -1 to 1. You may change them.
    samples: *mut f32,
    /// Number of samples.
    length: usize,
    /// Samples per second.
    sample_rate: u32,
    /// Channels; always 1.
    channels: u32,
    /// What was asked for and has no effect with this model, and whether speech ran away and was cut, a line
    /// each; "" if there is nothing.
    warnings: *const c_char,
}

/// Audio, and what it points to.
#[repr(C)]
struct Owned {
    /// First: its address is the one that C has.
    audio: Audio,
    samples: Vec<f32>,
    warnings: CString,
}

/// A part of a text's audio. It and what it points to are valid until the callback returns.
#[repr(C)]
pub struct Chunk {
    /// Samples, about -1 to 1.
    samples: *const f32,
    /// Number of samples; 0 is possible.
    length: usize,
    /// Samples per second.
    sample_rate: u32,
    /// Channels; always 1.
    channels: u32,
    /// Samples in the chunks before.
    start: usize,
    /// Number of the piece of text, from 0. A piece may have several chunks.
    piece: usize,
    /// The piece of text, as the model reads it.
    text: *const c_char,
    /// As in orate_audio, as far as it is known. The last chunk has all.
    warnings: *const c_char,
}

/// Receives a chunk, on the thread that called orate_stream(). Return 0 to go on, anything else to stop. It
/// may call other functions, and must return: no longjmp(), no C++ exception.
pub type OnChunk = Option<unsafe extern "C" fn(chunk: *const Chunk, user: *mut c_void) -> c_int>;

/// Makes a token for orate_say() and orate_stream(). Free it with orate_cancel_token_free().
#[unsafe(no_mangle)]
pub extern "C" fn orate_cancel_token_new() -> *mut CancelToken {
    Box::into_raw(Box::new(CancelToken(Cancel::new())))
}

/// Stops the calls that have the token, and those that get it later, from any thread or signal handler. They
/// return within some tens of milliseconds, with ORATE_STATUS_CANCELLED. NULL is allowed, and does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_cancel(token: *const CancelToken) {
    // SAFETY: a token of the caller. Nothing here panics or allocates: it stores a bool.
    if let Some(CancelToken(cancel)) = unsafe { token.as_ref() } {
        cancel.cancel();
    }
}

/// Frees a token. No call with it may be running, or begin later. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_cancel_token_free(token: *mut CancelToken) {
    if !token.is_null() {
        // SAFETY: it is from `orate_cancel_token_new`, and not used again.
        drop(unsafe { Box::from_raw(token) });
    }
}

/// Begins to speak. `whole` is for callers that wait for all of it.
///
/// # Safety
/// The pointers are NULL, or valid for the call.
unsafe fn begin(
    engine: *const Engine,
    text: *const c_char,
    options: *const *const c_char,
    cancel: *const CancelToken,
    whole: bool,
) -> Result<(orate::Stream, u32)> {
    // SAFETY: as the caller says.
    let (Engine { engine, .. }, text, pairs, cancel) = unsafe {
        (pointed("engine", engine)?, given("text", text)?, options::pairs(options)?, cancel.as_ref())
    };
    let mut speech = Speech::read(engine, &pairs)?;
    speech.options.whole = whole;
    speech.options.cancel = cancel.map(|token| token.0.clone());
    Ok((speech.stream(engine, text)?, engine.sample_rate()))
}

/// Speaks a text of any length, and returns all of its audio.
///
/// Options are "voice" (a name of orate_voice_name(), a mix such as F1:0.7+M1:0.3 where the model has that,
/// or a kept voice), "language" (en, pt-BR, english), "seed" (another one gives another reading), "silence"
/// (seconds between pieces of text), "raw" (true: the model's own sound, without trimming and set
/// loudness), "tags" or "ssml" (true: the text has markup), and those of orate_options(). `cancel` may be
/// NULL.
///
/// Returns NULL if it fails. Free the audio with orate_audio_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_say(
    engine: *const Engine,
    text: *const c_char,
    options: *const *const c_char,
    cancel: *const CancelToken,
) -> *mut Audio {
    let spoken = guard(|| {
        // SAFETY: pointers of the caller.
        let (stream, sample_rate) = unsafe { begin(engine, text, options, cancel, true) }?;
        let mut warnings = stream.warnings().to_vec();
        let mut samples = vec![];
        for chunk in stream {
            let mut chunk = chunk?;
            note_end(&mut warnings, chunk.finish);
            samples.append(&mut chunk.samples);
        }
        let warnings = c_string(warnings.join("\n"));
        let audio = Audio {
            samples: samples.as_mut_ptr(),
            length: samples.len(),
            sample_rate,
            channels: 1,
            warnings: warnings.as_ptr(),
        };
        Ok(Box::new(Owned { audio, samples, warnings }))
    });
    spoken.map_or(std::ptr::null_mut(), |owned| Box::into_raw(owned).cast())
}

/// Adds the warning of a piece that ended, once.
fn note_end(warnings: &mut Vec<String>, finish: Option<FinishReason>) {
    let warning = finish.and_then(FinishReason::warning);
    if let Some(warning) = warning.filter(|warning| !warnings.iter().any(|known| known == warning)) {
        warnings.push(warning.to_owned());
    }
}

/// Frees audio that orate_say() returned. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_audio_free(audio: *mut Audio) {
    if !audio.is_null() {
        // SAFETY: it is the address of an `Owned` from `orate_say`, and not used again.
        drop(unsafe { Box::from_raw(audio.cast::<Owned>()) });
    }
}

/// Writes audio to a file in the format of its extension: .wav (16 bits), .flac, and where the library was
/// built with them .mp3, .opus, .aac. The file appears whole or not at all. The audio may be your own: set
/// samples, length, sample_rate and channels = 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_audio_write(audio: *const Audio, path: *const c_char) -> Status {
    status(|| {
        // SAFETY: pointers of the caller.
        let (audio, path) = unsafe { (pointed("audio", audio)?, given("path", path)?) };
        if audio.channels != 1 {
            return Err(Failure::input(format!("audio has {} channels; give 1", audio.channels)));
        }
        // SAFETY: `length` samples of the caller.
        let samples = unsafe { samples(audio) }?;
        let refused = |e: orate::AudioError| Failure::input(e.to_string());
        let format = AudioFormat::from_extension(Path::new(path)).map_err(refused)?;
        let bytes = orate::encode(samples, audio.sample_rate, format, &EncoderSettings::default());
        orate::write_output(path, &bytes.map_err(refused)?).map_err(|e| orate::Error::from(e).into())
    })
}

/// Samples of audio.
///
/// # Safety
/// They are NULL, or as many as it says.
unsafe fn samples(audio: &Audio) -> Result<&[f32]> {
    match (audio.samples.is_null(), audio.length) {
        (_, 0) => Ok(&[]),
        (true, length) => {
            Err(Failure::input(format!("samples of the audio are NULL, and its length {length}")))
        }
        // SAFETY: as the caller says.
        (false, length) => Ok(unsafe { std::slice::from_raw_parts(audio.samples, length) }),
    }
}

/// Speaks a text chunk by chunk: computes a chunk, calls `on_chunk` with it, and goes on, so memory does not
/// grow with the text. Options and `cancel` are as in orate_say(); `user` is given to the callback as it is.
///
/// Returns ORATE_STATUS_OK once all chunks were received, and ORATE_STATUS_CANCELLED if the callback stopped
/// it. Loudness goes by the first piece of the text, so samples differ from those of orate_say() by a gain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orate_stream(
    engine: *const Engine,
    text: *const c_char,
    options: *const *const c_char,
    cancel: *const CancelToken,
    on_chunk: OnChunk,
    user: *mut c_void,
) -> Status {
    status(|| {
        let on_chunk = on_chunk.ok_or_else(|| Failure::input("on_chunk is NULL; give a function"))?;
        // SAFETY: pointers of the caller.
        let (stream, sample_rate) = unsafe { begin(engine, text, options, cancel, false) }?;
        let mut warnings = stream.warnings().to_vec();
        for spoken in stream {
            let spoken = spoken?;
            note_end(&mut warnings, spoken.finish);
            let warnings = c_string(warnings.join("\n"));
            let text = c_string(spoken.text.into_text());
            let chunk = Chunk {
                samples: spoken.samples.as_ptr(),
                length: spoken.samples.len(),
                sample_rate,
                channels: 1,
                start: spoken.start,
                piece: spoken.index,
                text: text.as_ptr(),
                warnings: warnings.as_ptr(),
            };
            // SAFETY: the caller's function, with a chunk that lives until it returns.
            if unsafe { on_chunk(&chunk, user) } != 0 {
                let message = "the callback stopped the stream".to_owned();
                return Err(Failure { status: Status::Cancelled, message });
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speech_that_was_cut_is_a_warning_once() {
        let mut warnings = vec!["`foo` is not supported".to_owned()];
        let reasons =
            [FinishReason::Stop, FinishReason::Length, FinishReason::Runaway, FinishReason::Runaway];
        for finish in reasons.map(Some).into_iter().chain([None]) {
            note_end(&mut warnings, finish);
        }
        assert_eq!(warnings.len(), 2);
        assert!(warnings[1].contains("was cut; another seed"), "{warnings:?}");
    }
}
