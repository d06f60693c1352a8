#!/usr/bin/env python3
"""Compare the speed of `orate` with PyTorch on one NVIDIA GPU: the networks of the built-in voice, whole chain.

    python benches/compare_pytorch.py --orate target/release/orate

PyTorch runs the modules of training/model.py with random weights (times do not depend on them), eagerly and with every
stage captured as a CUDA graph; `orate bench` runs the voice. Both use f32, without TF32, batch 1. The programs alternate
in rounds. Prints medians, and PyTorch's time divided by orate's (above 1: orate is faster).
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "training"))
import model as M


class Chain:
    """Duration predictor, text encoder, the denoising steps and the vocoder, as functions of fixed tensors."""

    def __init__(self, config, tokens, latents, steps, device):
        c = config
        chars = c["ttl"]["n_chars"] + 1
        build = lambda module: module.eval().to(device)
        self.ttl, self.dp, self.dec = build(M.TTL(c["ttl"], chars)), build(M.DP(c["dp"], chars)), build(M.Decoder(c["ae"]["decoder"]))
        self.width, self.compress = c["ttl"]["latent_dim"], c["ttl"]["chunk_compress_factor"]
        self.latents, self.steps = latents, steps
        self.ids = torch.ones(1, tokens, dtype=torch.long, device=device)
        self.tokens = torch.tensor([tokens], device=device)
        self.noise = torch.randn(1, latents, self.width * self.compress, device=device)
        self.times = [torch.tensor([k / steps], device=device) for k in range(steps)]

    @torch.no_grad()
    def durations(self):
        return self.dp(self.ids, None, None)

    @torch.no_grad()
    def speech(self):
        _, text = self.ttl.text(self.ids, None, None)
        z = self.noise
        for t in self.times:
            z = z + self.ttl.vector_field(z, t, text, None, self.tokens, self.ttl.style_key[0], self.ttl.style_value[0]) / self.steps
        x = z.transpose(1, 2).view(1, self.width, self.compress, self.latents).transpose(2, 3)
        return self.dec(x.reshape(1, self.width, self.latents * self.compress).transpose(1, 2))[0]


def captured(f):
    """Captures `f` as a CUDA graph after warm-up."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = f()

    def replay():
        graph.replay()
        return out

    return replay


def median_ms(durations, speech, runs):
    """From ids on the device to samples on the host, as `orate bench` times it."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        durations().cpu()
        speech().cpu()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--orate", default="target/release/orate")
    ap.add_argument("--device", default="cuda:0", help="orate's device")
    for name, value in [("tokens", 80), ("latents", 72), ("steps", 5), ("rounds", 3), ("runs", 30)]:
        ap.add_argument(f"--{name}", type=int, default=value)
    a = ap.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        make = Path(__file__).resolve().parent.parent / "training" / "make_config.py"
        subprocess.run([sys.executable, make, folder], check=True, cwd=make.parent, stdout=subprocess.DEVNULL)
        config = json.loads((Path(folder) / "tts.json").read_text())
    chain = Chain(config, a.tokens, a.latents, a.steps, "cuda")
    for _ in range(3):
        chain.durations(), chain.speech()
    graphs = captured(chain.durations), captured(chain.speech)
    sizes = [f"--{n}={getattr(a, n)}" for n in ("tokens", "latents", "steps", "runs")]
    rounds = {"PyTorch, eager": [], "PyTorch, CUDA graphs": [], "orate": []}
    for _ in range(a.rounds):
        rounds["PyTorch, eager"].append(median_ms(chain.durations, chain.speech, a.runs))
        rounds["PyTorch, CUDA graphs"].append(median_ms(*graphs, a.runs))
        out = subprocess.run([a.orate, "bench", "--device", a.device, "--json", *sizes], capture_output=True, text=True, check=True)
        rounds["orate"].append(json.loads(out.stdout)["total_ms"])
    ours = statistics.median(rounds["orate"])
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: {a.tokens} tokens, {a.latents} latent frames, {a.steps} steps, f32")
    for name, times in rounds.items():
        ms = statistics.median(times)
        print(f"| {name} | {ms:.2f} ms | {ms / ours:.2f} |")


if __name__ == "__main__":
    main()
