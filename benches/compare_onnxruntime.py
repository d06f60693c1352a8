#!/usr/bin/env python3
"""Compare the speed of `orate` with onnxruntime on the whole Supertonic chain.

    python benches/compare_onnxruntime.py --model DIR [--model DIR ...] --orate target/release/orate

The programs alternate: in every round each one is started as a separate process, pinned to the same cores,
warms up, and times the chain --runs times; the order changes from round to round.
The chain is: duration predictor once, text encoder once, vector estimator --steps times, vocoder once, with a
forced number of text tokens and latent frames, batch 1. Prints a Markdown table: medians over the rounds of each
round's median, and onnxruntime's time divided by orate's (above 1: orate is faster).

Exit status: 0 success; 1 a measurement failed; 3 a total ratio is below --require.
"""
import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

STAGES = ("duration_predictor", "text_encoder", "vector_estimator", "vocoder")
ENGINES = ("onnxruntime", "orate")


class Failure(Exception):
    pass


# ---- the onnxruntime process ----------------------------------------------------------------
def worker(a):
    """Prints the same as `orate bench --json`: {"total_ms": …, "stages": {stage: ms, …}}, medians over the runs."""
    import numpy as np
    import onnxruntime as ort

    onnx_dir = Path(a.model[0]) / "onnx"
    cfg = json.loads((onnx_dir / "tts.json").read_text())
    ttl, dp = cfg["ttl"], cfg["dp"]["predictor"]
    channels = ttl["latent_dim"] * ttl["chunk_compress_factor"]
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = a.threads[0], 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    sess = {s: ort.InferenceSession(str(onnx_dir / f"{s}.onnx"), options, providers=["CPUExecutionProvider"]) for s in STAGES}

    rng = np.random.default_rng(0)
    unit = lambda *shape: (lambda v: (v / np.linalg.norm(v, axis=-1, keepdims=True)).astype(np.float32))(rng.standard_normal(shape))
    ids = rng.integers(1, 60, (1, a.tokens))
    text_mask, latent_mask = np.ones((1, 1, a.tokens), np.float32), np.ones((1, 1, a.latents), np.float32)
    style_ttl = unit(1, ttl["style_encoder"]["style_token_layer"]["n_style"], ttl["speech_prompted_text_encoder"]["style_dim"])
    style_dp = unit(1, dp["n_style"], dp["style_dim"])
    noise = rng.standard_normal((1, channels, a.latents)).astype(np.float32)
    count = np.array([a.steps], np.float32)
    steps = [np.array([s], np.float32) for s in range(a.steps)]

    def chain():
        t = [time.perf_counter()]
        lap = lambda: t.append(time.perf_counter())
        sess["duration_predictor"].run(None, dict(text_ids=ids, style_dp=style_dp, text_mask=text_mask))
        lap()
        emb = sess["text_encoder"].run(None, dict(text_ids=ids, style_ttl=style_ttl, text_mask=text_mask))[0]
        lap()
        x = noise
        for s in steps:
            x = sess["vector_estimator"].run(None, dict(
                noisy_latent=x, text_emb=emb, style_ttl=style_ttl, latent_mask=latent_mask, text_mask=text_mask,
                current_step=s, total_step=count))[0]
        lap()
        wav = sess["vocoder"].run(None, dict(latent=x))[0]
        lap()
        assert np.isfinite(wav).all()
        return [1000 * v for v in (t[4] - t[0], *(b - a for a, b in zip(t, t[1:])))]

    for _ in range(a.warmup):
        chain()
    total, *stages = (statistics.median(v) for v in zip(*(chain() for _ in range(a.runs))))
    print(json.dumps(dict(total_ms=total, stages=dict(zip(STAGES, stages)), version=ort.__version__)))


# ---- running and comparing both ---------------------------------------------------------------
def cores_for(a, threads):
    cores = a.cores or sorted(os.sched_getaffinity(0))
    if len(cores) < threads:
        raise Failure(f"{threads} threads need {threads} cores, only {cores} may be used")
    return cores[:threads]


def start(cmd, cores, timeout):
    """Runs a command pinned to the cores and returns its standard output."""
    try:
        p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout,
                           preexec_fn=lambda: os.sched_setaffinity(0, cores))
    except (OSError, subprocess.SubprocessError) as e:
        raise Failure(f"{' '.join(cmd)}: {e}") from e
    if p.returncode:
        raise Failure(f"{' '.join(cmd)}: exit status {p.returncode}\n{p.stderr.strip()[-2000:]}")
    return p.stdout


def measure(engine, a, model, threads):
    """Runs one process and returns {stage or "total": ms}."""
    sizes = ["--model", str(model), "--tokens", str(a.tokens), "--latents", str(a.latents), "--steps", str(a.steps),
             "--threads", str(threads), "--runs", str(a.runs)]
    if engine == "orate":
        cmd = [a.orate, "bench", *sizes, "--json", *a.orate_arg]
    else:
        cmd = [sys.executable, os.path.abspath(__file__), "--worker", "--warmup", str(a.warmup), *sizes]
    out = start(cmd, cores_for(a, threads), a.timeout)
    try:
        r = json.loads(out)
        times = {"total": float(r["total_ms"]), **{s: float(r["stages"][s]) for s in STAGES}}
    except (ValueError, KeyError, TypeError) as e:
        raise Failure(f"{' '.join(cmd)}: no times for {', '.join(STAGES)} and total in its output ({e!r}):\n{out[:1000]}") from e
    if not all(t > 0 for t in times.values()):
        raise Failure(f"{' '.join(cmd)}: a time is not positive: {times}")
    return times


def machine():
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    field = lambda k: (re.search(rf"^{k}\s*:\s*(.*)$", text, re.M) or [None, ""])[1]
    flags = set((field("flags") or field("Features")).split())
    sets = [f for f in ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16", "asimd", "asimddp",
                        "i8mm", "sve") if f in flags]
    return (f"{field('model name') or platform.processor() or platform.machine()}, {os.cpu_count()} logical cores"
            f" ({', '.join(sets) or 'no known vector extension listed'}); {platform.system()} {platform.machine()}; Python {platform.python_version()}")


def versions(a, engines):
    out = []
    if "onnxruntime" in engines:
        import onnxruntime
        out.append(f"onnxruntime {onnxruntime.__version__} (CPU provider, all graph optimizations, default spinning)")
    if "orate" in engines:
        out.append(start([a.orate, "--version"], sorted(os.sched_getaffinity(0)), 60).strip())
    return out


def compare(a, engines):
    rounds = {}          # (model, threads, engine) -> list of {stage: ms}
    load = [os.getloadavg()[0]]
    for n in range(a.rounds):
        for model in a.model:
            for threads in a.threads:
                for engine in engines if n % 2 == 0 else engines[::-1]:
                    rounds.setdefault((model, threads, engine), []).append(t := measure(engine, a, model, threads))
                    print(f"round {n + 1}/{a.rounds} {Path(model).name} {threads} thread(s) {engine}: {t['total']:.1f} ms",
                          file=sys.stderr, flush=True)
        load.append(os.getloadavg()[0])
    print(f"Machine: {machine()}.")
    print(f"Programs: {'; '.join(versions(a, engines))}.")
    print(f"Task: {a.tokens} tokens, {a.latents} latent frames, {a.steps} steps, batch 1; {a.rounds} alternating rounds, {a.runs} timed runs "
          f"each after warm-up; pinned to core(s) {', '.join(map(str, cores_for(a, max(a.threads))))}; load average {min(load):.1f} to {max(load):.1f}.\n")
    if load[0] > 0.5:
        print(f"**The machine was busy before the first round (load average {load[0]:.1f}): these times are too high.**\n")
    both = len(engines) == 2
    head = ["Model", "Threads", "Stage", *(f"{e}, ms" for e in engines)] + ["onnxruntime / orate", "lowest to highest round"] * both
    if not both:
        head.append("lowest to highest round, ms")
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * 2 + " --- |" + " ---: |" * (len(head) - 3))
    below, result = [], []
    for model in a.model:
        for threads in a.threads:
            for stage in (*STAGES, "total"):
                per = {e: [r[stage] for r in rounds[model, threads, e]] for e in engines}
                med = {e: statistics.median(v) for e, v in per.items()}
                entry = dict(model=Path(model).name, threads=threads, stage=stage, ms=med, rounds_ms=per)
                label = f"{stage} x {a.steps}" if stage == "vector_estimator" else stage
                cells = [Path(model).name, str(threads), label, *(f"{med[e]:.2f}" for e in engines)]
                if both:
                    ratio = entry["ratio"] = med["onnxruntime"] / med["orate"]
                    pairs = [x / y for x, y in zip(per["onnxruntime"], per["orate"])]
                    cells += [f"{ratio:.2f}", f"{min(pairs):.2f} to {max(pairs):.2f}"]
                    if stage == "total" and ratio < a.require:
                        below.append(f"{Path(model).name}, {threads} thread(s): total ratio {ratio:.3f} is below {a.require}")
                else:
                    cells.append(f"{min(per[engines[0]]):.2f} to {max(per[engines[0]]):.2f}")
                if stage == "total":
                    cells = [f"**{c}**" for c in cells]
                print("| " + " | ".join(cells) + " |")
                result.append(entry)
    if a.json:
        Path(a.json).write_text(json.dumps(dict(
            machine=machine(), programs=versions(a, engines), tokens=a.tokens, latents=a.latents, steps=a.steps, rounds=a.rounds,
            runs=a.runs, load_average=load, results=result), indent=1))
    for line in below:
        print(line, file=sys.stderr)
    return 3 if below else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", action="append", required=True, help="model directory (with onnx/ inside); may be repeated")
    ap.add_argument("--orate", default="target/release/orate", help="the program (default: %(default)s)")
    ap.add_argument("--orate-arg", action="append", default=[], help="additional argument of `orate bench`, as in --orate-arg=--flag")
    ap.add_argument("--only", choices=ENGINES, help="measure only one program")
    ap.add_argument("--tokens", type=int, default=80)
    ap.add_argument("--latents", type=int, default=72)
    ap.add_argument("--steps", type=int, default=5)
    ap.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--runs", type=int, default=3, help="timed runs per process")
    ap.add_argument("--warmup", type=int, default=2, help="untimed runs of onnxruntime (orate warms up by itself)")
    ap.add_argument("--cores", type=lambda s: [int(c) for c in s.split(",")], help="cores to use, as in 0,1 (default: those allowed)")
    ap.add_argument("--timeout", type=float, default=600, help="time limit of a process in seconds")
    ap.add_argument("--require", type=float, default=0, help="exit with status 3 if a total ratio is below this")
    ap.add_argument("--json", help="also write all rounds to this file")
    ap.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    a = ap.parse_args()
    if a.worker:
        return worker(a)
    try:
        for m in a.model:
            if not (Path(m) / "onnx" / "tts.json").exists():
                raise Failure(f"{m}: no onnx/tts.json in it")
        return compare(a, [a.only] if a.only else list(ENGINES))
    except Failure as e:
        print(f"failed: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
