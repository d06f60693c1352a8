/*
 * Speaks a text with the built-in voice: to a file, as a stream, and a long one that is cancelled.
 *
 *     cc say.c $(pkg-config --cflags --libs orate) -pthread -o say
 *     ./say hello.wav "Hello from C." [NAME=VALUE...]       options of the engine, such as device=cpu
 */
#include <orate.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* Audio that a stream collects. */
struct sound {
    float *samples;
    size_t length;
};

/* Receives a chunk. A player would get it here. */
static int on_chunk(const orate_chunk *chunk, void *user)
{
    struct sound *sound = user;
    size_t length = sound->length + chunk->length;
    float *samples = realloc(sound->samples, (length + 1) * sizeof *samples);
    if (samples == NULL)
        return 1; /* stops the stream */
    for (size_t i = 0; i < chunk->length; i++)
        samples[sound->length + i] = chunk->samples[i];
    sound->samples = samples;
    sound->length = length;
    printf("piece %zu: %zu samples, \"%s\"\n", chunk->piece, chunk->length, chunk->text);
    return 0;
}

/* Speaks to a file. */
static int say(const orate_engine *engine, const char *text, const char *path)
{
    orate_audio *audio = orate_say(engine, text, NULL, NULL);
    if (audio == NULL)
        return 1;
    printf("%s: %zu samples, %.2f s\n", path, audio->length, (double)audio->length / audio->sample_rate);
    orate_status status = orate_audio_write(audio, path);
    orate_audio_free(audio);
    return status != ORATE_STATUS_OK;
}

/* Speaks the same chunk by chunk, faster, and without the finish that loudness needs. */
static int stream(const orate_engine *engine, const char *text)
{
    const char *const options[] = {"speed=1.2", "seed=7", "raw=true", NULL};
    struct sound sound = {NULL, 0};
    orate_status status = orate_stream(engine, text, options, NULL, on_chunk, &sound);
    printf("%zu samples in all\n", sound.length);
    free(sound.samples);
    return status != ORATE_STATUS_OK;
}

/* A thread that stops another one. */
static void *stop(void *token)
{
    orate_cancel(token);
    return NULL;
}

/* Starts the thread with the first chunk. */
struct job {
    orate_cancel_token *token;
    pthread_t thread;
    int started;
};

static int stop_soon(const orate_chunk *chunk, void *user)
{
    struct job *job = user;
    (void)chunk;
    if (!job->started)
        job->started = pthread_create(&job->thread, NULL, stop, job->token) == 0;
    return !job->started;
}

/* Begins to speak a long text, and is cancelled by another thread. */
static int cancel(const orate_engine *engine)
{
    static char text[100000];
    for (size_t i = 0; i + 16 < sizeof text; i += 16)
        snprintf(text + i, 17, "One more line.\n\n");
    struct job job = {orate_cancel_token_new(), 0, 0};
    orate_status status = orate_stream(engine, text, NULL, job.token, stop_soon, &job);
    if (job.started)
        pthread_join(job.thread, NULL);
    orate_cancel_token_free(job.token);
    if (status != ORATE_STATUS_CANCELLED)
        return 1;
    printf("stopped: %s\n", orate_last_error());
    return 0;
}

int main(int count, char **arguments)
{
    if (count < 3) {
        fprintf(stderr, "usage: %s FILE TEXT [NAME=VALUE...]\n", arguments[0]);
        return 2;
    }
    /* The arguments of a program end with NULL, as options do. */
    orate_engine *engine = orate_open(NULL, (const char *const *)&arguments[3]);
    int failed = engine == NULL;
    if (!failed)
        printf("orate %s: %s on %s\n", orate_version(), orate_model(engine), orate_device(engine));
    failed = failed || say(engine, arguments[2], arguments[1]) || stream(engine, arguments[2]) ||
             cancel(engine);
    if (failed)
        fprintf(stderr, "error: %s\n", orate_last_error());
    orate_close(engine);
    return failed;
}
