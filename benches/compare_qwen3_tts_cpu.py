#!/usr/bin/env python3
"""Compare `orate` on the CPU with other engines for Qwen3-TTS: qwentts.cpp (ggml) and vox-tts, with a CustomVoice folder.

    python benches/compare_qwen3_tts_cpu.py --orate target/release/orate --model full-0.6b-custom_voice \\
        --qwentts build/qwen-tts talker-Q8_0.gguf codec-Q8_0.gguf --vox full-0.6b.q8.tmod

All use 8-bit weights for talker and code predictor, two threads, the same text and number of frames. Programs alternate,
each in a separate process. Prints medians over the rounds in ms per frame of 80 ms, as reported by the programs, and the
ratio to orate. benches/README.md describes how to get the other engines.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--orate", required=True)
ap.add_argument("--model", required=True, help="folder of a CustomVoice model")
ap.add_argument("--weights", nargs="+", default=["q8_0"], help="weight formats of orate; one table row for each")
ap.add_argument("--qwentts", nargs=3, metavar=("PROGRAM", "TALKER", "CODEC"))
ap.add_argument("--vox", metavar="TMOD")
ap.add_argument("--python", default=sys.executable, help="Python interpreter with vox-tts")
ap.add_argument("--frames", type=int, default=62)
ap.add_argument("--rounds", type=int, default=3)
ap.add_argument("--text", default="This is a sentence of some length that the machine has to say aloud, with a few more words at its end.")
a = ap.parse_args()

VOX = """
import json, sys, vox
engine = vox.Engine(sys.argv[1], device="cpu", threads=2)
voice = engine.speaker_voice("vivian")
def stats():
    s = engine.stats()["backend"]
    return s["frames"], s["seconds"]
engine.synthesize(sys.argv[3], voice=voice, seed=1, max_frames=4)
before, t0 = stats()
engine.synthesize(sys.argv[3], voice=voice, seed=2, max_frames=int(sys.argv[2]))
after, t1 = stats()
n = after - before
print(json.dumps({"frames": n, **{k: (t1[k] - t0[k]) / n * 1e3 for k in ("talker", "predictor", "codec")}}))
"""


def orate(weights):
    args = ["bench", "--model", a.model, "--device", "cpu", "--weights", weights, "--threads", "2", "--runs", "2", "--max-frames", str(a.frames),
            "--text", a.text, "--json"]
    d = json.loads(subprocess.run([a.orate, *args], stdout=subprocess.PIPE, check=True).stdout)
    return {"frames": d["frames"], "speech": d["frame_ms"], "codec": d["codec_frame_ms"]}


def qwentts():
    program, talker, codec = a.qwentts
    with tempfile.TemporaryDirectory() as folder:
        args = ["--model", talker, "--codec", codec, "--speaker", "vivian", "--lang", "English", "--max-new", str(a.frames), "-o", f"{folder}/o.wav"]
        log = subprocess.run([program, *args], input=a.text + "\n", text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True).stdout
    find = lambda pattern: re.search(pattern, log)
    frames = int(find(r"TalkerDecode [\d.]+ ms \((\d+) frames")[1])
    talker, predictor = float(find(r"frames, ([\d.]+) ms/frame")[1]), float(find(r"CodePredictor [\d.]+ ms \(([\d.]+) ms/frame")[1])
    return {"frames": frames, "speech": talker + predictor, "codec": float(find(r"CodecDecode ([\d.]+) ms")[1]) / frames}


def vox():
    run = subprocess.run([a.python, "-c", VOX, a.vox, str(a.frames), a.text], stdout=subprocess.PIPE, text=True, check=True)
    d = json.loads(run.stdout.strip().splitlines()[-1])
    return {"frames": d["frames"], "speech": d["talker"] + d["predictor"], "codec": d["codec"]}


programs = {f"orate {w}": (lambda w=w: orate(w)) for w in a.weights}
if a.qwentts:
    programs[Path(a.qwentts[0]).name + " (qwentts.cpp)"] = qwentts
if a.vox:
    programs["vox-tts"] = vox
results = {name: [] for name in programs}
for number in range(a.rounds):
    for name, measure in programs.items():
        results[name].append(measure())
        print(f"round {number + 1}, {name}: {results[name][-1]}", file=sys.stderr)

median = lambda name, key: statistics.median(r[key] for r in results[name])
first = next(iter(programs))
print("| | Frames | Talker and predictor | Ratio | Codec | Ratio | RTF |\n| --- | --- | --- | --- | --- | --- | --- |")
for name in programs:
    speech, codec = median(name, "speech"), median(name, "codec")
    print(f"| {name} | {results[name][0]['frames']} | {speech:.1f} | {speech / median(first, 'speech'):.2f} | {codec:.1f} | "
          f"{codec / median(first, 'codec'):.2f} | {(speech + codec) / 80:.2f} |")
