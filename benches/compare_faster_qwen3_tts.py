#!/usr/bin/env python3
"""Compare the speed of `orate` with faster-qwen3-tts (PyTorch with CUDA graphs) on one NVIDIA GPU, with a Qwen3-TTS
CustomVoice folder.

    pip install faster-qwen3-tts
    python benches/compare_faster_qwen3_tts.py --orate target/release/orate --model full-0.6b-custom_voice

Both use bf16, batch 1, the same text, the first speaker, and the settings of the model. The programs alternate in
rounds. Prints medians of the prefill and of one frame (talker, code predictor and sampling; no codec), and the peer's
time per frame divided by orate's (above 1: orate is faster). Random weights will do: utterances end at random, so times
are per frame.
"""
import argparse
import json
import statistics
import subprocess

import torch
from faster_qwen3_tts import FasterQwen3TTS
from faster_qwen3_tts.generate import fast_generate

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--orate", required=True, help="the program")
ap.add_argument("--model", required=True, help="folder of a CustomVoice model")
ap.add_argument("--text", default="The quick brown fox jumps over the lazy dog while nobody in the quiet village looks out of the window at all.")
ap.add_argument("--frames", type=int, default=100)
ap.add_argument("--rounds", type=int, default=5)
ap.add_argument("--device", default="cuda:0", help="of orate")
a = ap.parse_args()

model = FasterQwen3TTS.from_pretrained(a.model)
speaker = model.model.get_supported_speakers()[0]


@torch.inference_mode()
def peer():
    """Milliseconds of the prefill and of a frame, and the number of frames."""
    _, talker, config, rows, mask, trailing, pad = model._prepare_generation_custom(
        text=a.text, language="English", speaker=speaker, instruct=None, non_streaming_mode=True)
    codes, t = fast_generate(talker=talker, talker_input_embeds=rows, attention_mask=mask, trailing_text_hiddens=trailing,
                             tts_pad_embed=pad, config=config, predictor_graph=model.predictor_graph, talker_graph=model.talker_graph,
                             max_new_tokens=a.frames, min_new_tokens=a.frames, temperature=0.9, top_k=50, top_p=1.0, do_sample=True,
                             repetition_penalty=1.05)
    return t["prefill_ms"], t["ms_per_step"], t["steps"]


def own():
    args = ["bench", "--model", a.model, "--device", a.device, "--precision", "bf16", "--max-frames", str(a.frames), "--runs", "3",
            "--text", a.text, "--json"]
    run = subprocess.run([a.orate, *args], stdout=subprocess.PIPE, check=True)
    d = json.loads(run.stdout)
    return d["prompt_ms"], d["frame_ms"], d["frames"], d["first_audio_ms"], d["codec_frame_ms"]


model.warmup(prefill_len=100)
peer()
theirs, ours = [], []
for _ in range(a.rounds):
    theirs.append(peer())
    ours.append(own())
median = lambda runs, i: statistics.median(r[i] for r in runs)
print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, medians of {a.rounds} rounds, ms")
print(f"faster-qwen3-tts  prompt {median(theirs, 0):7.2f}   frame {median(theirs, 1):7.3f}   ({theirs[-1][2]} frames)")
print(f"orate             prompt {median(ours, 0):7.2f}   frame {median(ours, 1):7.3f}   ({ours[-1][2]} frames), first audio {median(ours, 3):.1f}, "
      f"codec {median(ours, 4):.2f} a frame")
print(f"ratio of a frame  {median(theirs, 1) / median(ours, 1):.2f}")
