"""Errors of times of words against an aligner: starts of words by `orate say --captions` beside those of
PocketSphinx (pip install pocketsphinx scipy), in milliseconds.
python word_times.py ORATE sentences.txt FIRST LAST [OPTION OF SAY]..."""
import json, os, re, subprocess, sys, tempfile, wave
import numpy as np
from pocketsphinx import Decoder
from scipy.signal import resample_poly

FRAME = 0.01
orate, sentences, first, last, *options = sys.argv[1:]
decoder = Decoder(samprate=16000, loglevel="FATAL")


def samples(path):
    with wave.open(path) as f:
        x = np.frombuffer(f.readframes(f.getnframes()), "<i2").astype(np.float32) / 32768
        rate = f.getframerate()
    return resample_poly(x, 16000, rate)


def segments(x):
    decoder.start_utt()
    decoder.process_raw((np.clip(x, -1, 1) * 32767).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    found = [(s.word, s.start_frame * FRAME) for s in decoder.seg() or []]
    return [(re.sub(r"\(\d+\)$", "", w), at) for w, at in found if not w.startswith(("<", "["))]


errors, spoken, skipped = [], 0, 0
lines = open(sentences).read().split("\n")[int(first) - 1 : int(last)]
with tempfile.TemporaryDirectory() as folder:
    wav, captions = os.path.join(folder, "a.wav"), os.path.join(folder, "a.json")
    for line in lines:
        command = [orate, "say", line, "-o", wav, "--captions", captions, "--seed", "1", *options]
        subprocess.run(command, check=True, capture_output=True)
        words = [(re.sub(r"[^a-z']", "", w["word"].lower()), w["start"], w["source"]) for w in json.load(open(captions))["words"]]
        text = " ".join(word for word, *_ in words)
        # Sentences with words that the aligner does not know, or that it cannot align, say nothing.
        if any(decoder.lookup_word(word) is None for word, *_ in words):
            skipped += 1
            continue
        decoder.set_align_text(text)
        aligned = segments(samples(wav))
        if [w for w, _ in aligned] != [w for w, *_ in words]:
            skipped += 1
            continue
        spoken += 1
        errors += [1000 * (ours[1] - theirs[1]) for ours, theirs in zip(words, aligned)]
        source = words[0][2]
e, a = np.array(errors), np.abs(errors)
print(f"{source}: {len(e)} words of {spoken} sentences, {skipped} skipped; error in the median {np.median(a):.0f} ms, "
      f"at the 90th percentile {np.percentile(a, 90):.0f} ms; bias {np.median(e):+.0f} ms")
