/*
 * Orate: text-to-speech on the CPU and on any GPU.
 *
 * Strings are UTF-8 and end with a zero byte. What a function returns belongs to the library, unless
 * it says that you free it. Functions that get an engine may be called from any number of threads at
 * once, with the same engine. Calls block until their work is done.
 *
 * A function that fails returns NULL, or a status other than ORATE_STATUS_OK. orate_last_error() then
 * says in words what was wrong, and what to do; orate_last_status() says what kind of error it was.
 * NULL where it is not allowed, and strings that are not UTF-8, are errors like others.
 *
 * Options are an array of strings "name=value" that ends with NULL, or NULL for none:
 *
 *     const char *const options[] = {"voice=F1", "speed=1.1", NULL};
 *
 * They have the names and values of the program's flags, with `_` for `-`. Numbers have a decimal
 * point: mind the locale when you print them. If a name occurs twice, the last one counts.
 *
 * An engine belongs to the process that opened it. After fork(), calls with it fail in the child.
 *
 * This file is made from crates/orate-c/src by cbindgen; a test compares it.
 */


#ifndef ORATE_H
#define ORATE_H

#include <stddef.h>
#include <stdint.h>

// How a call ended.
typedef enum {
    // It did what was asked.
    ORATE_STATUS_OK = 0,
    // A text, option, voice, path or pointer is wrong.
    ORATE_STATUS_INVALID_INPUT = 1,
    // The model is missing, damaged, or of an unknown kind.
    ORATE_STATUS_INVALID_MODEL = 2,
    // Memory, threads, devices or files failed.
    ORATE_STATUS_SYSTEM = 3,
    // A token was cancelled, or a callback stopped the stream.
    ORATE_STATUS_CANCELLED = 4,
    // A bug of Orate: please report it. The engine can be used further.
    ORATE_STATUS_BUG = 5,
} orate_status;

// Stops calls from another thread.
typedef struct orate_cancel_token orate_cancel_token;

// A model on a device.
typedef struct orate_engine orate_engine;

// Audio of a text.
typedef struct {
    // Samples, about -1 to 1. You may change them.
    float *samples;
    // Number of samples.
    size_t length;
    // Samples per second.
    uint32_t sample_rate;
    // Channels; always 1.
    uint32_t channels;
    // What was asked for and has no effect with this model, and whether speech ran away and was cut, a line
    // each; "" if there is nothing.
    const char *warnings;
} orate_audio;

// A part of a text's audio. It and what it points to are valid until the callback returns.
typedef struct {
    // Samples, about -1 to 1.
    const float *samples;
    // Number of samples; 0 is possible.
    size_t length;
    // Samples per second.
    uint32_t sample_rate;
    // Channels; always 1.
    uint32_t channels;
    // Samples in the chunks before.
    size_t start;
    // Number of the piece of text, from 0. A piece may have several chunks.
    size_t piece;
    // The piece of text, as the model reads it.
    const char *text;
    // As in orate_audio, as far as it is known. The last chunk has all.
    const char *warnings;
} orate_chunk;

// Receives a chunk, on the thread that called orate_stream(). Return 0 to go on, anything else to stop. It
// may call other functions, and must return: no longjmp(), no C++ exception.
typedef int (*orate_on_chunk)(const orate_chunk *chunk, void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns what was wrong with the last call of this thread that failed, and what to do about it. A call
// that succeeds does not change it. Never NULL; "" if no call of this thread has failed.
//
// The text stays valid until the next call of this thread fails, or the thread ends.
const char *orate_last_error(void);

// Returns the status of the last call of this thread that failed; ORATE_STATUS_OK if none has. It is for
// functions that return NULL.
orate_status orate_last_status(void);

// Returns the version of the library, such as "0.1.0".
const char *orate_version(void);

// Opens a model, which takes milliseconds to seconds: keep the engine.
//
// `model` is the path of a folder or file, the name of a pulled model such as "supertonic-3", or NULL for
// the built-in English voice. Options are "device" (auto, cpu, gpu, cuda, vulkan, metal, dx12; GPUs may
// have a number: cuda:1), "threads" and "isa" of the CPU, "precision" of weights (stored, f32, tf32, f16,
// bf16, q8_0, q6_k, q5_k, q4_k, q4_0, auto), "kv" (f32, f16, bf16, q8_0, auto), "codec" (the second of two
// GGUF files), "cache" (a folder for compiled kernels) and "allow_fallback" (true: the CPU replaces a device
// that cannot run the model).
//
// Returns NULL if it fails. Free the engine with orate_close().
orate_engine *orate_open(const char *model,
                         const char *const *options);

// Frees an engine, and the strings that functions returned for it. NULL is allowed. No call with it may be
// running, or begin later. Audio and tokens live on.
void orate_close(orate_engine *engine);

// Returns samples per second of all audio of an engine; 0 if it is NULL.
uint32_t orate_sample_rate(const orate_engine *engine);

// Returns the path of the model, or "built-in voice"; NULL if the engine is NULL.
const char *orate_model(const orate_engine *engine);

// Returns what runs the model, such as "cpu (avx2, 8 threads)"; NULL if the engine is NULL.
const char *orate_device(const orate_engine *engine);

// Returns why devices were passed over, a line for each reason: those that "auto" prefers, or with
// "allow_fallback" the one that was named. "" if none was; NULL if the engine is NULL.
const char *orate_fallbacks(const orate_engine *engine);

// Returns the number of the model's voices; 0 if the engine is NULL.
size_t orate_voice_count(const orate_engine *engine);

// Returns the name of a voice, for the option "voice"; NULL if `index` is too large.
const char *orate_voice_name(const orate_engine *engine, size_t index);

// Returns the options that the model adds to those of orate_say(), a line for each: its name, what it
// does, its range and its default. NULL if the engine is NULL.
const char *orate_options(const orate_engine *engine);

// Loads weights and compiles plans, so that the first text is as fast as later ones: for texts with these
// options (see orate_say()), spoken by `threads` threads at once, at least 1.
orate_status orate_warm_up(const orate_engine *engine,
                           const char *const *options,
                           size_t threads);

// Makes a token for orate_say() and orate_stream(). Free it with orate_cancel_token_free().
orate_cancel_token *orate_cancel_token_new(void);

// Stops the calls that have the token, and those that get it later, from any thread or signal handler. They
// return within some tens of milliseconds, with ORATE_STATUS_CANCELLED. NULL is allowed, and does nothing.
void orate_cancel(const orate_cancel_token *token);

// Frees a token. No call with it may be running, or begin later. NULL is allowed.
void orate_cancel_token_free(orate_cancel_token *token);

// Speaks a text of any length, and returns all of its audio.
//
// Options are "voice" (a name of orate_voice_name(), a mix such as F1:0.7+M1:0.3 where the model has that,
// or a kept voice), "language" (en, pt-BR, english), "seed" (another one gives another reading), "silence"
// (seconds between pieces of text), "raw" (true: the model's own sound, without trimming and set
// loudness), "tags" or "ssml" (true: the text has markup), and those of orate_options(). `cancel` may be
// NULL.
//
// Returns NULL if it fails. Free the audio with orate_audio_free().
orate_audio *orate_say(const orate_engine *engine,
                       const char *text,
                       const char *const *options,
                       const orate_cancel_token *cancel);

// Frees audio that orate_say() returned. NULL is allowed.
void orate_audio_free(orate_audio *audio);

// Writes audio to a file in the format of its extension: .wav (16 bits), .flac, and where the library was
// built with them .mp3, .opus, .aac. The file appears whole or not at all. The audio may be your own: set
// samples, length, sample_rate and channels = 1.
orate_status orate_audio_write(const orate_audio *audio,
                               const char *path);

// Speaks a text chunk by chunk: computes a chunk, calls `on_chunk` with it, and goes on, so memory does not
// grow with the text. Options and `cancel` are as in orate_say(); `user` is given to the callback as it is.
//
// Returns ORATE_STATUS_OK once all chunks were received, and ORATE_STATUS_CANCELLED if the callback stopped
// it. Loudness goes by the first piece of the text, so samples differ from those of orate_say() by a gain.
orate_status orate_stream(const orate_engine *engine,
                          const char *text,
                          const char *const *options,
                          const orate_cancel_token *cancel,
                          orate_on_chunk on_chunk,
                          void *user);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ORATE_H */
