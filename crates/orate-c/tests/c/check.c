/*
 * Checks the C interface. Writes samples, for comparison with the Rust library, to FOLDER.
 *
 *     ./check FOLDER [quick]      quick, for valgrind: one thread computes, and little is spoken
 */
#include <orate.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 8
#define TEXT "One.\n\nTwo."

static orate_engine *engine;

#define CHECK(condition) check(condition, #condition, __LINE__)

static void check(int ok, const char *what, int line)
{
    if (ok)
        return;
    fprintf(stderr, "line %d: %s; the last error is: %s\n", line, what, orate_last_error());
    exit(1);
}

/* The last call failed with this status, and a message that has these words. */
#define FAILED(status, words)                                                                      \
    (CHECK(orate_last_status() == (status)), CHECK(strstr(orate_last_error(), words) != NULL))

static void write_samples(const char *folder, const char *name, const float *samples, size_t length)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK(fwrite(samples, sizeof *samples, length, file) == length);
    CHECK(fclose(file) == 0);
}

struct sound {
    float *samples;
    size_t length, chunks, most_chunks;
};

static int collect(const orate_chunk *chunk, void *user)
{
    struct sound *sound = user;
    CHECK(chunk->start == sound->length && chunk->piece == sound->chunks && chunk->channels == 1);
    CHECK(chunk->sample_rate == orate_sample_rate(engine) && *chunk->warnings == 0);
    CHECK(strcmp(chunk->text, chunk->piece == 0 ? "One." : "Two.") == 0);
    sound->samples = realloc(sound->samples, (sound->length + chunk->length + 1) * sizeof(float));
    CHECK(sound->samples != NULL);
    memcpy(sound->samples + sound->length, chunk->samples, chunk->length * sizeof(float));
    sound->length += chunk->length;
    return ++sound->chunks >= sound->most_chunks;
}

static void speak(const char *folder)
{
    const char *const options[] = {"seed=3", "speed=1.3", "speed=1.5", "raw=false", NULL};
    orate_audio *audio = orate_say(engine, TEXT, options, NULL);
    CHECK(audio != NULL && audio->sample_rate == 24000 && audio->channels == 1 && *audio->warnings == 0);
    write_samples(folder, "say.f32", audio->samples, audio->length);
    orate_audio_free(audio);

    struct sound sound = {NULL, 0, 0, 9};
    CHECK(orate_stream(engine, TEXT, options, NULL, collect, &sound) == ORATE_STATUS_OK);
    CHECK(sound.chunks == 2);
    write_samples(folder, "stream.f32", sound.samples, sound.length);
    free(sound.samples);

    sound = (struct sound){NULL, 0, 0, 1};
    CHECK(orate_stream(engine, TEXT, NULL, NULL, collect, &sound) == ORATE_STATUS_CANCELLED);
    FAILED(ORATE_STATUS_CANCELLED, "callback");
    CHECK(sound.chunks == 1);
    free(sound.samples);

    const char *const tags[] = {"tags=true", NULL};
    const char *const ssml[] = {"ssml=true", NULL};
    audio = orate_say(engine, "[pause:0.5s] A.", tags, NULL);
    CHECK(audio != NULL && audio->length > 12000 && audio->samples[6000] == 0);
    orate_audio_free(audio);
    audio = orate_say(engine, "<speak><audio src='a.wav'>A.</audio></speak>", ssml, NULL);
    CHECK(audio != NULL && strstr(audio->warnings, "audio") != NULL);
    orate_audio_free(audio);
}

/* Everything that callers get wrong. */
static void mistakes(const char *folder)
{
    CHECK(orate_last_status() == ORATE_STATUS_OK && *orate_last_error() == 0);
    static const struct {
        const char *engine[3], *say[4], *text, *words;
    } cases[] = {
        {{"devices=cpu"}, {NULL}, NULL, "choose codec, device"},
        {{"device=fridge"}, {NULL}, NULL, "device is `fridge`"},
        {{"threads=many"}, {NULL}, NULL, "threads is `many`"},
        {{"precision=f31"}, {NULL}, NULL, "precision is `f31`"},
        {{"kv=f31"}, {NULL}, NULL, "kv is `f31`"},
        {{"kv=f16"}, {NULL}, NULL, "kv is f16"},
        {{"allow_fallback=1"}, {NULL}, NULL, "true or false"},
        {{"device"}, {NULL}, NULL, "name=value"},
        {{"cache=\xff"}, {NULL}, NULL, "option 0 is not UTF-8: byte 6"},
        {{NULL}, {"sped=1"}, "A.", "`sped` is no option of speech; choose voice"},
        {{NULL}, {"speed=fast"}, "A.", "speed is `fast`; choose 0.7 to 2"},
        {{NULL}, {"speed=9"}, "A.", "speed is 9"},
        {{NULL}, {"exaggeration=1"}, "A.", "Chatterbox has it"},
        {{NULL}, {"seed=-1"}, "A.", "whole number"},
        {{NULL}, {"silence=99"}, "A.", "silence is 99"},
        {{NULL}, {"voice=Nobody"}, "A.", "Nobody"},
        {{NULL}, {"language=xx"}, "A.", "xx"},
        {{NULL}, {"raw=maybe"}, "A.", "true or false"},
        {{NULL}, {"tags=true", "ssml=true"}, "A.", "not both"},
        {{NULL}, {"ssml=true"}, "<speak>", "not well-formed"},
        {{NULL}, {NULL}, "", "text"},
        {{NULL}, {NULL}, NULL, "text is NULL"},
        {{NULL}, {NULL}, "abc\xc3", "text is not UTF-8: byte 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].engine[0] != NULL)
            CHECK(orate_open(NULL, cases[i].engine) == NULL);
        else
            CHECK(orate_say(engine, cases[i].text, cases[i].say, NULL) == NULL);
        FAILED(ORATE_STATUS_INVALID_INPUT, cases[i].words);
    }
    CHECK(orate_open("\xff", NULL) == NULL);
    FAILED(ORATE_STATUS_INVALID_INPUT, "model is not UTF-8");
    CHECK(orate_open("/no/such/model", NULL) == NULL);
    FAILED(ORATE_STATUS_INVALID_MODEL, "/no/such/model");
    CHECK(orate_say(NULL, "A.", NULL, NULL) == NULL);
    FAILED(ORATE_STATUS_INVALID_INPUT, "engine is NULL");
    CHECK(orate_stream(engine, "A.", NULL, NULL, NULL, NULL) == ORATE_STATUS_INVALID_INPUT);
    FAILED(ORATE_STATUS_INVALID_INPUT, "on_chunk is NULL");
    CHECK(orate_warm_up(NULL, NULL, 1) == ORATE_STATUS_INVALID_INPUT);
    CHECK(orate_warm_up(engine, NULL, 0) == ORATE_STATUS_INVALID_INPUT);
    CHECK(orate_sample_rate(NULL) == 0 && orate_voice_count(NULL) == 0);
    CHECK(orate_model(NULL) == NULL && orate_device(NULL) == NULL && orate_fallbacks(NULL) == NULL);
    CHECK(orate_options(NULL) == NULL && orate_voice_name(NULL, 0) == NULL);
    CHECK(orate_voice_name(engine, orate_voice_count(engine)) == NULL);
    FAILED(ORATE_STATUS_INVALID_INPUT, "counted from 0");
    orate_close(NULL);
    orate_audio_free(NULL);
    orate_cancel(NULL);
    orate_cancel_token_free(NULL);

    float samples[2400] = {0};
    char path[4096];
    orate_audio own = {samples, 2400, 24000, 1, NULL};
    snprintf(path, sizeof path, "%s/silence.wav", folder);
    CHECK(orate_audio_write(&own, path) == ORATE_STATUS_OK && access(path, F_OK) == 0);
    CHECK(orate_audio_write(&own, "silence.xyz") == ORATE_STATUS_INVALID_INPUT);
    CHECK(orate_audio_write(&own, "/no/such/folder/a.wav") == ORATE_STATUS_SYSTEM);
    CHECK(orate_audio_write(&own, NULL) == ORATE_STATUS_INVALID_INPUT);
    CHECK(orate_audio_write(NULL, path) == ORATE_STATUS_INVALID_INPUT);
    own.channels = 2;
    CHECK(orate_audio_write(&own, path) == ORATE_STATUS_INVALID_INPUT);
    own = (orate_audio){NULL, 2400, 24000, 1, NULL};
    CHECK(orate_audio_write(&own, path) == ORATE_STATUS_INVALID_INPUT);
}

static void facts(void)
{
    CHECK(strchr(orate_version(), '.') != NULL);
    CHECK(strcmp(orate_model(engine), "built-in voice") == 0);
    CHECK(strncmp(orate_device(engine), "cpu (", 5) == 0 && *orate_fallbacks(engine) == 0);
    CHECK(orate_voice_count(engine) == 1 && *orate_voice_name(engine, 0) != 0);
    CHECK(strstr(orate_options(engine), "\nspeed: ") != NULL ||
          !strncmp(orate_options(engine), "speed: ", 7));
    CHECK(orate_warm_up(engine, NULL, 2) == ORATE_STATUS_OK);
}

/* Eight threads in one engine: each gets what it gets alone, and has errors of its own. */
struct speaker {
    pthread_t thread;
    char seed[24];
    orate_audio *alone;
};

static void *speak_again(void *user)
{
    struct speaker *speaker = user;
    const char *const options[] = {speaker->seed, "steps=1", NULL};
    CHECK(orate_last_status() == ORATE_STATUS_OK && *orate_last_error() == 0);
    CHECK(orate_say(engine, speaker->seed, (const char *const[]){speaker->seed + 1, NULL}, NULL) == NULL);
    FAILED(ORATE_STATUS_INVALID_INPUT, "`eed`");
    orate_audio *audio = orate_say(engine, "A.", options, NULL);
    CHECK(audio != NULL && audio->length == speaker->alone->length);
    CHECK(memcmp(audio->samples, speaker->alone->samples, audio->length * sizeof(float)) == 0);
    orate_audio_free(audio);
    return NULL;
}

static void threads(void)
{
    struct speaker speakers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        snprintf(speakers[i].seed, sizeof speakers[i].seed, "seed=%d", i);
        const char *const options[] = {speakers[i].seed, "steps=1", NULL};
        speakers[i].alone = orate_say(engine, "A.", options, NULL);
        CHECK(speakers[i].alone != NULL);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&speakers[i].thread, NULL, speak_again, &speakers[i]) == 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(speakers[i].thread, NULL);
        orate_audio_free(speakers[i].alone);
    }
}

/* A call that waits for all of a long text, which another thread cancels while it computes. */
static void *cancel_soon(void *token)
{
    usleep(50 * 1000);
    orate_cancel(token);
    return NULL;
}

static void cancel(void)
{
    static char text[20000];
    for (size_t i = 0; i + 8 < sizeof text; i += 7)
        memcpy(text + i, "Line.\n\n", 8);
    orate_cancel_token *token = orate_cancel_token_new();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, cancel_soon, token) == 0);
    CHECK(orate_say(engine, text, NULL, token) == NULL);
    FAILED(ORATE_STATUS_CANCELLED, "cancelled");
    pthread_join(thread, NULL);
    struct sound sound = {NULL, 0, 0, 9};
    CHECK(orate_stream(engine, TEXT, NULL, token, collect, &sound) == ORATE_STATUS_CANCELLED);
    CHECK(sound.chunks == 0);
    orate_cancel_token_free(token);
}

/* A callback that speaks with the same engine. */
static int speak_inside(const orate_chunk *chunk, void *user)
{
    orate_audio *audio = orate_say(engine, chunk->text, NULL, NULL);
    *(size_t *)user += audio != NULL && audio->length > 0;
    orate_audio_free(audio);
    return 0;
}

int main(int count, char **arguments)
{
    CHECK(count == 2 || count == 3);
    int quick = count == 3;
    const char *const options[] = {"device=cpu", quick ? "threads=1" : "threads=2", "precision=stored", NULL};
    engine = orate_open(NULL, options);
    CHECK(engine != NULL);
    mistakes(arguments[1]);
    threads();
    cancel();
    if (quick) {
        orate_close(engine);
        return 0;
    }
    facts();
    speak(arguments[1]);
    size_t inside = 0;
    CHECK(orate_stream(engine, TEXT, NULL, NULL, speak_inside, &inside) == ORATE_STATUS_OK && inside == 2);
    orate_close(engine);
    printf("all checks of the C interface passed\n");
    return 0;
}
