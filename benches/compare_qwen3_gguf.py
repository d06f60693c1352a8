#!/usr/bin/env python3
"""Compare `orate` on the CPU with qwentts.cpp (ggml), both with the same GGUF files of a CustomVoice model.

    python benches/compare_qwen3_gguf.py --orate target/release/orate --qwentts build/qwen-tts \\
        --file talker-Q8_0.gguf codec-Q8_0.gguf --file talker-Q4_K_M.gguf codec-Q4_K_M.gguf

Both run with two threads, the same text and number of frames, in turn, each in a process of its own. Prints medians over
the rounds, with the range in brackets: milliseconds a frame of 80 ms as the programs report them (`orate bench`; qwentts.cpp
writing a file), and figures of processes that write to a pipe: seconds from start until the model is open, to the first
sample, and to the end, and peak memory. `orate` packs weights on first use, which is part of the time to the first sample.
benches/README.md describes how to get qwentts.cpp and its files.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

WAV_HEADER = 44  # bytes that both programs write before the first sample

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--orate", required=True)
ap.add_argument("--qwentts", required=True, help="program qwen-tts, built for two threads")
ap.add_argument("--file", nargs=2, action="append", required=True, metavar=("TALKER", "CODEC"))
ap.add_argument("--speaker", default="vivian")
ap.add_argument("--frames", type=int, default=62)
ap.add_argument("--rounds", type=int, default=3)
ap.add_argument("--text", default="This is a sentence of some length that the machine has to say aloud, with a few more words at its end.")
a = ap.parse_args()


def process(args, text=None):
    """Runs a program that writes WAV to a pipe; returns its figures and its standard error."""
    start = time.perf_counter()
    p = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    opened, log = [], []

    def read_log():
        for line in p.stderr:
            if line.startswith(b"[Pipeline] Loaded"):
                opened.append(time.perf_counter() - start)
            log.append(line.decode())

    reader = threading.Thread(target=read_log)
    reader.start()
    p.stdin.write(text.encode() if text else b"")
    p.stdin.close()
    count, first = 0, None
    while part := os.read(p.stdout.fileno(), 1 << 16):
        count += len(part)
        if first is None and count > WAV_HEADER:
            first = time.perf_counter() - start
    reader.join()
    _, status, usage = os.wait4(p.pid, 0)
    end = time.perf_counter() - start
    p.returncode = os.waitstatus_to_exitcode(status)
    log = "".join(log)
    if p.returncode != 0 or first is None:
        sys.exit(f"{args[0]} ended with {p.returncode}, {count} bytes written:\n{log}")
    samples = (count - WAV_HEADER) // 2
    if samples != a.frames * 1920:
        sys.exit(f"{args[0]}: {samples} samples instead of {a.frames * 1920}; the speech must not end before --frames")
    return {"first": first, "end": end, "memory": usage.ru_maxrss * 1024 / 1e6, "open": opened[0] if opened else None}, log


def orate(talker, codec):
    model = ["--model", talker, "--codec", codec, "--device", "cpu", "--threads", "2", "--max-frames", str(a.frames), "--json"]
    d = json.loads(subprocess.run([a.orate, "bench", *model, "--runs", "1", "--text", a.text], stdout=subprocess.PIPE, check=True).stdout)
    result, log = process([a.orate, "say", a.text, *model, "--voice", a.speaker, "--lang", "english", "--raw", "-o", "-"])
    result["open"] = json.loads(log)["load_ms"] / 1e3
    return {"speech": d["frame_ms"], "codec": d["codec_frame_ms"], "prompt": d["prompt_ms"], **result}


def qwentts(talker, codec):
    args = [a.qwentts, "--model", talker, "--codec", codec, "--speaker", a.speaker, "--lang", "English", "--max-new", str(a.frames), "-o"]
    with tempfile.TemporaryDirectory() as folder:
        log = subprocess.run([*args, f"{folder}/o.wav"], input=a.text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             check=True).stdout
    find = lambda pattern: float(re.search(pattern, log)[1])
    speech = find(r"frames, ([\d.]+) ms/frame") + find(r"CodePredictor [\d.]+ ms \(([\d.]+) ms/frame")
    result, _ = process([*args, "-"], a.text)
    return {"speech": speech, "codec": find(r"CodecDecode ([\d.]+) ms") / a.frames, "prompt": find(r"Prefill ([\d.]+) ms"), **result}


programs = {(Path(file[0]).stem, name): (run, file) for file in a.file for name, run in [("Orate", orate), ("qwentts.cpp", qwentts)]}
results = {key: [] for key in programs}
for number in range(a.rounds):
    for key, (run, file) in programs.items():
        results[key].append(run(*file))
        print(f"round {number + 1}, {key}: {results[key][-1]}", file=sys.stderr)


def cell(key, figure, digits):
    values = sorted(r[figure] for r in results[key])
    return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f} to {values[-1]:.{digits}f})"


print("| Talker | Program | Talker and predictor, ms a frame | Codec, ms a frame | Frames a second | Prompt, ms "
      "| Open, s | First sound, s | End, s | Peak memory, MB |")
print("| --- " * 10 + "|")
for key in programs:
    speed = statistics.median(1e3 / (r["speech"] + r["codec"]) for r in results[key])
    figures = [cell(key, "speech", 1), cell(key, "codec", 1), f"{speed:.1f}", cell(key, "prompt", 0), cell(key, "open", 2),
               cell(key, "first", 2), cell(key, "end", 2), cell(key, "memory", 0)]
    print("| " + " | ".join([*key, *figures]) + " |")
