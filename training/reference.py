"""Speaks 30 sentences of test.txt with PyTorch and records everything that another engine needs to repeat it with the
same noise: ids, duration, noise, latents, waveform.   python reference.py VOICE_FOLDER OUT [--count N]"""
import argparse, json, os
import torch
from safetensors.torch import save_file
import infer

ap = argparse.ArgumentParser()
ap.add_argument("voice"); ap.add_argument("out"); ap.add_argument("--count", type=int, default=30)
a = ap.parse_args()
os.makedirs(a.out, exist_ok=True)
voice = infer.Voice(a.voice)
index = json.load(open(os.path.join(a.voice, "unicode_indexer.json")))
known = lambda s: all(ord(c) < len(index) and index[ord(c)] >= 0 for c in s)
lines = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "test.txt")).read().split("\n")[:-1]
fit = [s for s in lines if known(s) and not any(c.isdigit() for c in s) and len(s) <= 168]
picked = [fit[i * len(fit) // a.count] for i in range(a.count)]
with open(os.path.join(a.out, "sentences.txt"), "w") as f:
    f.writelines(s + "\n" for s in picked)
for i, s in enumerate(picked):
    rec = {}
    wav = voice(s, rec=rec)
    infer.save_wav(os.path.join(a.out, f"{i:03d}.wav"), wav, voice.sr)
    save_file({k: v.contiguous() for k, v in rec.items()}, os.path.join(a.out, f"{i:03d}.safetensors"), metadata={"text": s})
    print(f"{i:03d} {rec['duration'].item():.2f} s  {s}")
