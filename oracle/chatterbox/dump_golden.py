#!/usr/bin/env python3
"""Run the official Chatterbox code (CPU, float32) on tiny random checkpoints and store what every stage produced.

    python dump_golden.py --ckpt CKPT --out golden
"""
import argparse
import collections
import contextlib
import importlib.metadata
import itertools
import json
import os
import pathlib
import tempfile
import types
import warnings

warnings.filterwarnings("ignore")
for v in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[v] = "1"                       # fixed summation order
import numpy as np
import soundfile
import torch
from safetensors.torch import load_file, save_file
from transformers.generation import logits_process as lp

import librosa
import pyloudnorm
import torchaudio

import perth
import chatterbox.models.s3gen.xvector as xvector_mod
import chatterbox.models.t3.inference.alignment_stream_analyzer as analyzer_mod
import chatterbox.models.tokenizers.tokenizer as tok_mod
import chatterbox.models.voice_encoder.voice_encoder as ve_mod
import chatterbox.mtl_tts as mtl_tts
import chatterbox.tts as en_tts
import chatterbox.tts_turbo as turbo_tts
import chatterbox.vc as vc_mod
from chatterbox.models.s3gen.utils.mel import mel_spectrogram
from chatterbox.models.t3.modules.t3_config import T3Config

import presets as P
from noise import Noise, uniform

N_HIDDEN_STEPS, N_STEPS = 4, 24
# Likeliest codes that are stored of every frame.
N_LIKELY = 32
# A tensor with more values than this keeps the first and last EDGES positions of its longest axis.
WHOLE, EDGES = 2048, 16
FSQ_MARGIN, SAMPLING_MARGIN = 1e-3, 1e-2


# ---------------------------------------------------------------- helpers
class Capture:
    """Collects tensors under names; hooks record the first call of a module unless told otherwise."""

    def __init__(self):
        self.t, self.handles = collections.OrderedDict(), []

    def put(self, name, x, edges=EDGES):
        """Stores `x`; all of it if `edges` is None."""
        if isinstance(x, np.ndarray):
            x = torch.from_numpy(np.ascontiguousarray(x))
        x = x.detach().cpu()
        if edges and x.numel() > WHOLE:
            axis, n = int(np.argmax(x.shape)), max(x.shape)
            if n > 2 * edges:
                CUT[name] = list(x.shape)
                x = torch.cat([x.narrow(axis, 0, edges), x.narrow(axis, n - edges, edges)], axis)
        self.t[name] = (x.float() if x.dtype == torch.float64 else x).contiguous().clone()

    def hook(self, module, name, every=False, pick=None):
        calls = []

        def f(_m, _i, out):
            calls.append(1)
            if every or len(calls) == 1:
                x = out[0] if isinstance(out, tuple) else out
                self.put(f"{name}.{len(calls) - 1}" if every else name, x if pick is None else pick(x))
        self.handles.append(module.register_forward_hook(f))

    def close(self):
        for h in self.handles:
            h.remove()
        self.handles = []

    def save(self, path, about):
        save_file(self.t, str(path))
        MANIFEST["files"][path.name] = {"about": about, "cut": {k: CUT[k] for k in self.t if k in CUT}}
        CUT.clear()


MANIFEST = {"files": {}, "runs": {}}
CUT = {}                                      # complete shapes of tensors of which only edges are stored


@contextlib.contextmanager
def fsq_margins(tokenizer, found):
    """Collects how close the digits of all speech tokens came to an edge of rounding."""
    def f(_m, _i, h):
        found.append(float((h.abs() - np.arctanh(0.5 / 0.9990000128746033)).abs().min()))
    handle = tokenizer.quantizer._codebook.project_down.register_forward_hook(f)
    yield
    handle.remove()


def comfortable(run, seed):
    """Calls run(seed), with further seeds while a sampling decision is too close."""
    while True:
        if run(seed) >= SAMPLING_MARGIN:
            return
        print(f"seed {seed}: a sampling decision is close, trying another", flush=True)
        seed += 100


class NoWatermark:
    def apply_watermark(self, wav, sample_rate, **_):
        return wav


class FakeSegmenter:
    """Stands in for pkuseg, whose model cannot be downloaded: one word per character."""

    def cut(self, text):
        return list(text)


@contextlib.contextmanager
def offline(ckpt):
    perth.PerthImplicitWatermarker = NoWatermark

    def segmenter(self):
        self.segmenter = FakeSegmenter()
    with P.patched(tok_mod, hf_hub_download=lambda **kw: str(ckpt / "chatterbox" / "Cangjie5_TC.json")), \
            P.patched(tok_mod.ChineseCangjieConverter, _init_segmenter=segmenter):
        yield


def load(variant, ckpt, preset="tiny"):
    """The official from_local with module sizes swapped."""
    mod = {"en": en_tts, "mtl": mtl_tts, "turbo": turbo_tts, "nano": turbo_tts, "vc": vc_mod}[variant]
    swaps = {"S3Gen": lambda meanflow=False: P.build_s3gen(meanflow, preset)}
    if variant != "vc":
        swaps |= {"T3": lambda hp=None: P.build_t3(variant, preset), "VoiceEncoder": lambda: P.build_ve(preset)}
    if variant == "nano":                              # newer than the package: only the file has another name
        nano = P.T3_FILE["nano"]
        swaps["load_file"] = lambda path: load_file(str(path).replace(P.T3_FILE["turbo"], nano))
    folder = ckpt / P.FOLDER.get(variant, "chatterbox")
    cls = {"en": "ChatterboxTTS", "mtl": "ChatterboxMultilingualTTS", "vc": "ChatterboxVC"}.get(variant, "ChatterboxTurboTTS")
    with P.patched(mod, **swaps):
        return getattr(mod, cls).from_local(folder, "cpu")


def make_wav(path, seconds, seed, sr=24000):
    """Speech-like test signal: gliding harmonics with syllable envelope, noise bursts, silent head and tail."""
    n = int(seconds * sr)
    t = np.arange(n) / sr
    rng = np.random.default_rng(seed)
    f0 = 130 + 40 * np.sin(2 * np.pi * 0.7 * t + seed)
    ph = 2 * np.pi * np.cumsum(f0) / sr
    x = sum(np.sin(k * ph + k) * np.exp(-0.25 * k) for k in range(1, 20))
    env = np.clip(np.sin(2 * np.pi * 2.1 * t), 0, 1) ** 0.6
    x = 0.12 * x * env + 0.03 * rng.standard_normal(n) * np.clip(np.sin(2 * np.pi * 1.3 * t + 1), 0, 1)
    x[: int(0.12 * sr)] *= 0
    x[-int(0.15 * sr):] *= 0
    soundfile.write(path, np.clip(x, -0.99, 0.99), sr, subtype="PCM_16")


# ---------------------------------------------------------------- text and sampling
TEXTS = ["", "hello world", "Hello   there...  how are you", "wait — what? “quoted” text; and: more - dashes",
         "ends with comma,", "ellipsis… here", "tabs\tand\nnewlines ,", "ünïcode élan naïve", "123 apples & 45%"]
MTL = [("en", "Hello there, How are YOU?"), ("fr", "Ça va très bien, merci à l'été"), ("de", "Über die Straße"),
       ("es", "¿Qué tal, señor?"), ("tr", "İstanbul'da ILIK ırmak"), ("el", "Καλημέρα ΣΟΦΟΣ"), ("ar", "أعْلَنَ السلام"),
       ("ru", "Привет, Ёжик"), ("ko", "안녕하세요 세계"), ("ja", "今日は良い天気です。カタカナ がぎ"), ("zh", "你好，今天真不明冐"),
       ("hi", "नमस्ते दुनिया"), ("he", "שָׁלוֹם עולם"), ("en", "Hello [laughter] ok"), (None, "No language tag")]
TURBO = ["hello there", "Oh, that's hilarious! [chuckle] Um anyway [clear throat], we're done…", "a  b\tc 1234 é 你",
         "[laugh][sigh]x", "don't you'll I'm we've"]


def dump_text(models, out):
    res = {"punc_norm": [{"in": t, "en": en_tts.punc_norm(t), "mtl": mtl_tts.punc_norm(t), "turbo": turbo_tts.punc_norm(t)}
                         for t in TEXTS], "en": [], "mtl": [], "turbo": []}
    for t in TEXTS:
        s = en_tts.punc_norm(t)
        res["en"].append({"normalized": s, "ids": models["en"].tokenizer.encode(s)})
    for lang, t in MTL:
        s, seen = mtl_tts.punc_norm(t), []
        tk = models["mtl"].tokenizer
        real = tk.tokenizer

        class Spy:
            def encode(self, x):
                seen.append(x)
                return real.encode(x)
        tk.tokenizer = Spy()
        ids = tk.encode(s, language_id=lang)
        tk.tokenizer = real
        res["mtl"].append({"language": lang, "normalized": s, "tokenizer_input": seen[0], "ids": ids})
    for t in TURBO:
        s = turbo_tts.punc_norm(t)
        ids = models["turbo"].tokenizer(s, padding=True, truncation=True).input_ids
        res["turbo"].append({"normalized": s, "ids": list(ids)})
    (out / "text.json").write_text("{\n" + ",\n".join(
        f"{json.dumps(k)}: [\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in v) + "]"
        for k, v in res.items()) + "}\n", encoding="utf-8")


def dump_sampler(out):
    """Single-step sampling cases, both processor orders (en/mtl vs turbo)."""
    cap, cases, vocab = Capture(), [], 96
    for i, kw in enumerate([
        dict(order="en", temperature=0.8, min_p=0.05, top_p=1.0, penalty=1.2),
        dict(order="en", temperature=1.0, min_p=0.0, top_p=0.9, penalty=2.0),
        dict(order="en", temperature=0.5, min_p=0.2, top_p=0.7, penalty=1.0),
        dict(order="turbo", temperature=0.8, top_k=20, top_p=0.95, penalty=1.2),
        dict(order="turbo", temperature=1.3, top_k=1000, top_p=0.6, penalty=1.7),
        dict(order="turbo", temperature=0.8, top_k=1, top_p=0.95, penalty=1.2),
    ]):
        noise = Noise(900 + i)
        logits = noise.randn(1, vocab) * 3
        ids = torch.tensor([[5, 9, 9, int(logits.argmax()), 17]])
        temp, pen = lp.TemperatureLogitsWarper(kw["temperature"]), lp.RepetitionPenaltyLogitsProcessor(kw["penalty"])
        if kw["order"] == "en":
            x = pen(ids, logits.clone())
            x = x / kw["temperature"] if kw["temperature"] != 1.0 else x
            x = lp.TopPLogitsWarper(kw["top_p"])(ids, lp.MinPLogitsWarper(kw["min_p"])(ids, x))
        else:
            x = temp(ids, logits.clone())
            x = lp.TopKLogitsWarper(kw["top_k"])(ids, x)
            x = lp.TopPLogitsWarper(kw["top_p"])(ids, x)
            x = pen(ids, x) if kw["penalty"] != 1.0 else x
        probs = torch.softmax(x, -1)
        tok = noise.multinomial(probs, 1)
        for n, v in dict(logits=logits, ids=ids, processed=x, probs=probs, q=noise.draws[-1][1], token=tok).items():
            cap.put(f"case{i}.{n}", v)
        cases.append(kw)
    cap.save(out / "sampler.safetensors", "six single-step sampling cases; settings in runs.sampler")
    MANIFEST["runs"]["sampler"] = cases


# ---------------------------------------------------------------- reference audio
def dump_reference(model, wav, out, variant):
    cap, margins = Capture(), []
    tk, cam, ve = model.s3gen.tokenizer, model.s3gen.speaker_encoder, model.ve
    mels, waves = [], []
    real_mel, real_fb, real_vem = tk.log_mel_spectrogram, xvector_mod.extract_feature, ve_mod.melspectrogram

    def log_mel(audio, *a):
        waves.append(audio.clone())
        mels.append(real_mel(audio, *a))
        return mels[-1]

    def fbank(audio):
        cap.put("campplus.wav16_from_40000", audio[:, 40000:40800])
        r = real_fb(audio)
        cap.put("campplus.fbank_minus_mean", r[0], 64)
        return r

    def ve_mel(w, hp, **kw):
        m = real_vem(w, hp, **kw)
        cap.put("ve.mel", m, 64)
        return m
    tk.log_mel_spectrogram = log_mel
    cap.hook(cam.head, "campplus.head")
    cap.hook(cam.xvector.tdnn, "campplus.tdnn")
    for i in (1, 2, 3):
        cap.hook(getattr(cam.xvector, f"transit{i}"), f"campplus.transit{i}")
    cap.hook(cam.xvector.stats, "campplus.stats")
    cap.hook(ve, "ve.partial_embeds")
    cap.hook(tk.encoder.conv2, "s3tok.conv2")
    cap.hook(tk.encoder.blocks[0], "s3tok.block0")
    cap.hook(tk.encoder, "s3tok.encoder")
    cap.hook(tk.quantizer._codebook.project_down, "s3tok.project_down")
    with P.patched(xvector_mod, extract_feature=fbank), P.patched(ve_mod, melspectrogram=ve_mel), \
            fsq_margins(tk, margins):
        model.prepare_conditionals(str(wav), exaggeration=0.5)
    tk.log_mel_spectrogram = real_mel
    cap.close()
    # call 0 tokenizes the torchaudio-resampled S3Gen reference, call 1 the soxr-resampled T3 prompt
    cap.put("s3tok.log_mel", mels[0], 48)
    cap.put("s3tok.t3_wav16", waves[1], None)
    cap.put("ve.trim", librosa.effects.trim(waves[1][0].numpy(), top_db=20)[1])
    c = model.conds
    cap.put("t3.speaker_emb", c.t3.speaker_emb)
    cap.put("t3.cond_prompt_speech_tokens", c.t3.cond_prompt_speech_tokens)
    for k in ("prompt_token", "prompt_token_len", "prompt_feat", "embedding"):
        cap.put(f"gen.{k}", c.gen[k], 48)
    if variant == "turbo":            # same code on the loudness-normalized wave: keep results only
        cap.t = {k: v for k, v in cap.t.items() if k.startswith(("t3.", "gen."))}
    cap.save(out / f"reference_{variant}.safetensors",
             "prepare_conditionals(ref.wav): every intermediate" if variant == "en" else
             "prepare_conditionals(ref.wav) of Turbo (loudness-normalized, prompt 375, up to 15 s): results")
    MANIFEST["runs"][f"reference_{variant}"] = {"wav": wav.name, "fsq_margin": min(margins)}


def signal(seed, seconds, rate, gain=0.5):
    """Noise with a loud middle, a quiet half and a silent end: r_i of noise.py's stream of `seed`, in float32."""
    n = int(seconds * rate)
    x = gain * (2 * uniform(seed, n) - 1)
    x[: n // 8] *= 0.01
    x[n // 2:] *= 0.1
    x[-n // 8:] = 0
    return x.astype(np.float32)


def dump_front_ends(models, out):
    """Features of short signals, which are not stored: `signal(seed, seconds, rate)` makes them."""
    cap, runs = Capture(), {}
    tk, hp = models["en"].s3gen.tokenizer, models["en"].ve.hp
    for name, length in (("short", 0.06), ("odd", 0.28123)):
        wav = signal(1, length, 16000)
        cap.put(f"{name}.s3tok", tk.log_mel_spectrogram(torch.from_numpy(wav)[None])[0].T, None)
        cap.put(f"{name}.ve", ve_mod.melspectrogram(wav, hp).T, None)
        cap.put(f"{name}.campplus", xvector_mod.extract_feature(torch.from_numpy(wav)[None])[0][0], None)
        cap.put(f"{name}.prompt", mel_spectrogram(torch.from_numpy(signal(1, length, 24000)))[0].T, None)
    for a, b in ((24000, 16000), (16000, 24000), (44100, 24000)):
        x = torch.from_numpy(signal(2, 0.03, a))
        cap.put(f"resample.{a}_{b}", torchaudio.transforms.Resample(a, b)(x), None)
    loud = []
    for rate, seconds, gain in ((24000, 5.1, 0.5), (24000, 5.1, 0.01), (24000, 0.95, 0.9), (16000, 3.33, 0.2), (48000, 2.0, 0.2),
                                (24000, 1.0, 0.0001)):
        x = signal(3, seconds, rate, gain)
        loud.append([rate, seconds, gain, float(pyloudnorm.Meter(rate).integrated_loudness(x))])
    runs["loudness"] = loud
    runs["trim_20db"] = []
    for seed, seconds in ((4, 1.0), (5, 0.1), (6, 2.7), (7, 0.02)):
        _, (start, end) = librosa.effects.trim(signal(seed, seconds, 16000), top_db=20)
        runs["trim_20db"].append([seed, seconds, int(start), int(end)])
    step = ve_mod.get_frame_step(0.5, 1.3, hp)
    runs["ve_windows"] = [[n, *ve_mod.get_num_wins(n, step, 0.8, hp)] for n in (1, 82, 83, 159, 160, 161, 204, 205, 206, 236,
                                                                               237, 238, 281, 282, 283, 314, 1000, 3001)]
    cap.save(out / "front_ends.safetensors", "features and resampled audio of signals that signal() makes; see runs.front_ends")
    # Silence is minus infinity, which JSON lacks.
    MANIFEST["runs"]["front_ends"] = json.loads(json.dumps(runs).replace("-Infinity", "null"))


# ---------------------------------------------------------------- T3
def put_frames(cap, logits, w):
    """Stores the logits that each code was drawn from; w is the weight of guidance."""
    cap.put("logits", torch.stack(logits), 64)                 # (step, batch, vocab); batch 0 = cond, 1 = uncond
    guided = torch.stack([x[0] + w * (x[0] - x[1]) if len(x) == 2 else x[0] for x in logits])
    likely = guided.topk(N_LIKELY)
    cap.put("likely.codes", likely.indices.int())
    cap.put("likely.logits", likely.values)
    cap.put("spread", guided.std(-1))


def dump_t3(model, variant, out, name, text, keep=None, stop_after=N_STEPS, seed=11, **kw):
    cap, noise, t3, gpt2 = Capture(), Noise(seed, stop_after), model.t3, variant in P.GPT2
    logits, hidden = [], []
    cap.hook(t3.cond_enc, "cond_emb")
    if t3.cond_enc.perceiver is not None:
        cap.hook(t3.cond_enc.perceiver, "perceiver")
    for i, layer in enumerate(t3.tfmr.h if t3.is_gpt else t3.tfmr.layers):
        cap.hook(layer, f"prefill.layer{i}")

    def head(_m, inp, o):
        logits.append(o[:, -1].clone())
        hidden.append(inp[0][:, -1].clone())
    cap.handles.append(t3.speech_head.register_forward_hook(head))

    def embeds(_m, args, kwargs):
        x = kwargs["inputs_embeds"]
        if x.shape[1] > 1:
            cap.put("prefill.inputs_embeds", x)
        else:
            cap.t.setdefault("step1.inputs_embeds", x.clone())
    cap.handles.append(t3.tfmr.register_forward_pre_hook(embeds, with_kwargs=True))
    ids = []
    real = t3.inference_turbo if gpt2 else t3.inference

    def spy(**k):
        ids.append(k["text_tokens"])
        return real(**k)
    setattr(t3, real.__name__, spy)
    analysis = []
    real_step = analyzer_mod.AlignmentStreamAnalyzer.step

    def step(self, lg, next_token=None):
        before = lg.clone()
        res = real_step(self, lg, next_token)
        analysis.append({"text_position": int(self.text_position), "started": bool(self.started),
                         "complete": bool(self.complete), "forced_eos": bool((res[..., self.eos_idx] == 2**15).all()),
                         "suppressed_eos": bool((res[..., self.eos_idx] == -2**15).all()),
                         "rows": self.alignment.shape[0], "changed": not torch.equal(before, res)})
        if len(analysis) == 1:
            cap.put("alignment_first", self.alignment)
        cap.put("alignment", self.alignment)
        return res
    wav_in = []
    real_s3 = model.s3gen.inference
    model.s3gen.inference = lambda **k: (wav_in.append(k), (torch.zeros(1, 960 * 2), None))[1]
    with P.patched(analyzer_mod.AlignmentStreamAnalyzer, step=step), noise.active():
        model.generate(text, **kw)
    cap.close()
    model.s3gen.inference = real_s3
    delattr(t3, real.__name__)
    cap.put("text_tokens", ids[0])
    put_frames(cap, logits[:stop_after], kw.get("cfg_weight", 0.5))
    cap.put("hidden", torch.stack(hidden[:N_HIDDEN_STEPS]), None)
    cap.put("sampled_tokens", torch.tensor(noise.tokens))
    cap.put("s3gen_tokens", wav_in[0]["speech_tokens"])
    if keep:
        cap.t = {k: v for k, v in cap.t.items() if k in keep}
    cap.save(out / f"t3_{name}.safetensors",
             f"{variant} T3: {stop_after} sampled tokens" + (", alignment" if keep else
                                                             ", prefill, logits"))
    MANIFEST["runs"][f"t3_{name}"] = {"text": text, "kwargs": kw, "seed": seed, "forced_stop_at_step": stop_after,
                                      "sampling_margin": noise.margin,
                                      "alignment_analyzer": analysis or None}
    return noise.margin


# ---------------------------------------------------------------- alignment analyzer
def analyzer_cases():
    """(name, columns, column that each call attends to most, its weight, calls at which a code repeats)"""
    read = [c // 2 for c in range(22)]                 # two codes for each of the first 11 columns
    chance = (uniform(5, 300) * 40).astype(int)
    walk = np.clip(np.cumsum(np.where(chance < 30, chance % 4 - 1, 0)), 0, 23)
    return [
        ("in time", 12, read + [11, 11], 0.625, []),
        ("long tail", 12, read + [11] * 12, 159 / 256, []),
        ("tail of several columns", 12, read + [9, 10, 11] * 8, 0.625, []),
        ("repetition", 12, read + [11] + [2, 3] * 6, 159 / 256, []),
        ("late columns are no repetition", 12, read + [7, 8] * 8, 0.625, []),
        ("columns that are not reached yet", 12, [11, 11, 5, 5, 4, 3, 11, 11, 11, 11, 11, 11, 11], 0.625, []),
        ("far moves", 30, [0, 1, 8, 7, 8, 2, 12, 5, 9, 29, 29, 27, 26, 15, 16, 20, 24, 29], 0.625, []),
        ("repeated codes", 12, read, 0.625, [1, 2, 7, 8, 20]),
        ("five columns", 5, [0, 1, 1, 0, 1, 1], 0.625, [3]),
        ("six columns", 6, [0, 1, 2, 3, 3, 4] + [5] * 9, 0.625, []),
        ("faint", 12, read + [11] * 60, 0.0625, []),
        ("walk", 24, walk.tolist(), 0.375, [90]),
        ("chance", 40, chance.tolist(), 0.25, [200]),
    ]


def dump_analyzer():
    """Runs the analyzer on attention of which all sums are exact: 1/256 everywhere, and a weight more at one column. Each
    call returns `s` if the end is suppressed, `f` if it is forced, else `-`."""
    runs, self_attn = [], torch.nn.Identity()
    tfmr = types.SimpleNamespace(layers=[types.SimpleNamespace(self_attn=self_attn)] * 14)
    for name, columns, peaks, weight, repeats in analyzer_cases():
        analyzer = analyzer_mod.AlignmentStreamAnalyzer(tfmr, None, text_tokens_slice=(3, 3 + columns), eos_idx=1)
        made, positions, complete = "", [], []
        for call, peak in enumerate(peaks):
            rows = 5 + columns if call == 0 else 1         # the first call sees the prompt, which ends with two starts
            attention = torch.full((rows, 5 + columns + call), 1 / 256)
            attention[:, 3 + peak] += weight
            analyzer.last_aligned_attns = [attention] * 3
            code = call - len([r for r in repeats if r <= call])
            logits = analyzer.step(torch.zeros(1, 2), next_token=code)
            made += {(0.0, 0.0): "-", (0.0, -32768.0): "s", (-32768.0, 32768.0): "f"}[tuple(logits[0].tolist())]
            positions.append(int(analyzer.text_position))
            complete.append(bool(analyzer.complete))
        runs.append({"name": name, "columns": columns, "peaks": peaks, "weight": weight, "repeats": repeats, "end": made,
                     "positions": positions, "complete_at": complete.index(True) if any(complete) else None})
    MANIFEST["runs"]["analyzer"] = runs


# ---------------------------------------------------------------- S3Gen
def dump_s3gen(s3gen, conds, out, name, tokens, seed):
    cap, noise, flow, voc = Capture(), Noise(seed), s3gen.flow, s3gen.mel2wav
    enc, est = flow.encoder, flow.decoder.estimator
    cap.put("tokens", tokens)
    cap.hook(flow.spk_embed_affine_layer, "spks")
    cap.hook(flow.input_embedding, "enc.input_embedding")
    cap.hook(enc.embed, "enc.embed")
    cap.hook(enc.pre_lookahead_layer, "enc.pre_lookahead")
    for i, m in enumerate(enc.encoders):
        cap.hook(m, f"enc.block{i}")
    cap.hook(enc.up_layer, "enc.up_layer")
    cap.hook(enc.up_embed, "enc.up_embed")
    for i, m in enumerate(enc.up_encoders):
        cap.hook(m, f"enc.up_block{i}")
    cap.hook(enc, "enc.after_norm")
    # sub-blocks of the estimator, first call only
    cap.hook(est.time_mlp, "cfm0.time_mlp_t")
    if est.time_embed_mixer is not None:
        cap.hook(est.time_embed_mixer, "cfm0.time_embed_mixer")
    cap.hook(est.down_blocks[0][0].block1, "cfm0.down.block1")
    cap.hook(est.down_blocks[0][0], "cfm0.down.resnet")
    cap.hook(est.down_blocks[0][1][0].attn1, "cfm0.down.tfm0.attn1")
    cap.hook(est.down_blocks[0][1][0], "cfm0.down.tfm0")
    cap.hook(est.down_blocks[0][2], "cfm0.down.conv")
    cap.hook(est.mid_blocks[0][0], "cfm0.mid0.resnet")
    cap.hook(est.mid_blocks[-1][1][-1], "cfm0.mid_last")
    cap.hook(est.up_blocks[0][0], "cfm0.up.resnet")
    cap.hook(est.up_blocks[0][2], "cfm0.up.conv")
    cap.hook(est.final_block, "cfm0.final_block")
    real_fwd, calls, times = est.forward, [], []

    def fwd(x, mask, mu, t, spks=None, cond=None, r=None):
        o = real_fwd(x, mask, mu, t, spks, cond, r)
        i = len(calls)
        calls.append(1)
        times.append([float(t[0]), float(r[0]) if r is not None else None])
        if i == 0:
            cap.put("cfm.mu", mu[:1], None)
        cap.put(f"cfm.x{i}", x[:1])
        if i < 2:
            cap.put(f"cfm.dxdt{i}", o)               # row 0 conditional, row 1 unconditional (standard flow)
        return o
    est.forward = fwd
    cap.hook(voc.f0_predictor, "hift.f0")
    cap.hook(voc.conv_pre, "hift.conv_pre")
    for i in range(len(voc.ups)):
        cap.hook(voc.ups[i], f"hift.ups{i}")
        cap.hook(voc.source_downs[i], f"hift.source_down{i}")
        cap.hook(voc.source_resblocks[i], f"hift.source_resblock{i}")
        cap.hook(voc.resblocks[3 * i], f"hift.resblock{3 * i}")
    cap.hook(voc.conv_post, "hift.conv_post")
    real_stft, real_hift = voc._stft, s3gen.hift_inference

    def stft(x):
        r = real_stft(x)
        cap.put("hift.source_stft", torch.cat(r, 1))
        return r

    def hift(feat, cache=None):
        cap.put("mel", feat, None)
        w, s = real_hift(feat, cache)
        cap.put("source", s, None)
        return w, s
    voc._stft, s3gen.hift_inference = stft, hift
    with noise.active():
        wav, _ = s3gen.inference(speech_tokens=tokens, ref_dict=dict(conds),
                                 **({"n_cfm_timesteps": 2} if s3gen.meanflow else {}))
    cap.close()
    est.forward, voc._stft, s3gen.hift_inference = real_fwd, real_stft, real_hift
    cap.put("wav", wav, None)
    cap.save(out / f"s3gen_{name}.safetensors", "inference(tokens) with the voice of conds.pt: flow encoder, CFM steps, vocoder")
    MANIFEST["runs"][f"s3gen_{name}"] = {"seed": seed, "t_and_r_per_call": times,
                                        "draws": [[kind, list(t.shape)] for kind, t in noise.draws]}


def dump_odd_prompt(s3gen, conds, out, name, tokens, seed):
    """A prompt with an odd number of mel frames: 2n - 1 frames come out."""
    cap, frames = Capture(), conds["prompt_feat"].shape[1] - 1
    voice = dict(conds, prompt_feat=conds["prompt_feat"][:, :frames], prompt_token=conds["prompt_token"][:, :frames // 2],
                 prompt_token_len=torch.tensor([frames // 2]))
    real = s3gen.hift_inference
    s3gen.hift_inference = lambda feat, cache=None: (cap.put("mel", feat, None), real(feat, cache))[1]
    with Noise(seed).active():
        wav, _ = s3gen.inference(speech_tokens=tokens, ref_dict=voice)
    s3gen.hift_inference = real
    cap.put("tokens", tokens)
    cap.put("wav", wav, None)
    cap.save(out / f"s3gen_{name}_odd.safetensors", "as s3gen_*, with one prompt frame less: mel and waveform")
    MANIFEST["runs"][f"s3gen_{name}_odd"] = {"seed": seed, "prompt_frames": frames, "prompt_tokens": frames // 2}


# ---------------------------------------------------------------- end to end
def dump_e2e(model, variant, out, wav, text, seed, **kw):
    noise, cap, margins, logits = Noise(seed, N_STEPS), Capture(), [], []
    cap.handles.append(model.t3.speech_head.register_forward_hook(lambda _m, _i, o: logits.append(o[:, -1].clone())))
    with noise.active(), fsq_margins(model.s3gen.tokenizer, margins):
        y = model.generate(text, audio_prompt_path=str(wav), **kw)
    cap.close()
    put_frames(cap, logits[:N_STEPS], 0.5)
    cap.put("sampled_tokens", torch.tensor(noise.tokens))
    cap.put("wav", y, None)
    cap.save(out / f"e2e_{variant}.safetensors", "generate(text, audio_prompt_path=ref.wav); noise from the documented stream")
    MANIFEST["runs"][f"e2e_{variant}"] = {"text": text, "kwargs": kw, "seed": seed, "forced_stop_at_step": N_STEPS,
                                      "sampling_margin": noise.margin, "fsq_margin": min(margins)}
    return noise.margin


def dump_vc(model, out, source, target, seed):
    noise, cap, margins = Noise(seed), Capture(), []
    real = model.s3gen.inference
    model.s3gen.inference = lambda **k: (cap.put("s3_tokens", k["speech_tokens"]), real(**k))[1]
    with noise.active(), fsq_margins(model.s3gen.tokenizer, margins):
        y = model.generate(str(source), target_voice_path=str(target))
    cap.put("wav", y, None)
    cap.save(out / "e2e_vc.safetensors", "ChatterboxVC.generate(source.wav, target_voice_path=ref.wav)")
    MANIFEST["runs"]["e2e_vc"] = {"seed": seed, "source": source.name, "target": target.name, "fsq_margin": min(margins)}


# No digit of a speech token of any run is near an edge of rounding with these: see --find-seeds.
REF_SEED, SOURCE_SEED = 1, 11


def find_seeds(models):
    with tempfile.NamedTemporaryFile(suffix=".wav") as f:
        for seed in itertools.count(1):
            margins = []
            make_wav(f.name, 5.04, seed)
            for v in ("en", "turbo"):
                with fsq_margins(models[v].s3gen.tokenizer, margins):
                    if not margins or min(margins) > FSQ_MARGIN:
                        models[v].prepare_conditionals(f.name)
            if min(margins) > 1.2 * FSQ_MARGIN:
                print("reference", seed, min(margins), flush=True)
                break
        for seed in range(1, 40):
            margins = []
            make_wav(f.name, 0.9, seed)
            with fsq_margins(models["vc"].s3gen.tokenizer, margins):
                models["vc"].s3gen.tokenizer([librosa.load(f.name, sr=16000)[0]])
            print("source", seed, min(margins), flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--ckpt", type=pathlib.Path, required=True)
    ap.add_argument("--out", type=pathlib.Path, required=True)
    ap.add_argument("--find-seeds", action="store_true", help="print seeds for the wavs with comfortable FSQ margins")
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    out = a.out
    out.mkdir(parents=True, exist_ok=True)
    MANIFEST["versions"] = {p: importlib.metadata.version(p) for p in
                            ("chatterbox-tts", "torch", "torchaudio", "transformers", "diffusers", "s3tokenizer", "librosa",
                             "soxr", "numpy", "tokenizers", "pyloudnorm", "pykakasi")}
    ref, src = out / "ref.wav", out / "source.wav"
    make_wav(ref, 5.04, REF_SEED)
    make_wav(src, 0.9, SOURCE_SEED)
    with offline(a.ckpt):
        models = {v: load(v, a.ckpt) for v in ("en", "mtl", "turbo", "nano", "vc")}
        if a.find_seeds:
            return find_seeds(models)
        dump_text(models, out)
        dump_sampler(out)
        en, mtl, turbo = models["en"], models["mtl"], models["turbo"]
        builtin = {v: m.conds for v, m in models.items() if v != "vc"}
        g = torch.Generator().manual_seed(3)
        toks = torch.randint(0, 6561, (10,), generator=g)
        dump_s3gen(en.s3gen, builtin["en"].gen, out, "standard", toks, 21)
        dump_s3gen(turbo.s3gen, builtin["turbo"].gen, out, "meanflow", torch.cat([toks[:8], torch.tensor([4299] * 3)]), 22)
        dump_odd_prompt(en.s3gen, builtin["en"].gen, out, "standard", toks[:4], 23)
        dump_odd_prompt(turbo.s3gen, builtin["turbo"].gen, out, "meanflow", toks[:4], 24)
        dump_front_ends(models, out)
        dump_analyzer()
        comfortable(lambda seed: dump_t3(en, "en", out, "en", "Hello there, how are you today?", seed=seed, exaggeration=0.7,
                                         cfg_weight=0.5, top_p=0.95), 11)
        french = "Bonjour tout le monde, ceci est un modèle."
        with P.patched(T3Config, is_multilingual=False):              # repository HEAD: no alignment analyzer
            comfortable(lambda seed: dump_t3(mtl, "mtl", out, "mtl_head", french, seed=seed, language_id="fr",
                                             repetition_penalty=1.2), 12)
        # PyPI 0.1.7: analyzer, penalty 2.0
        comfortable(lambda seed: dump_t3(mtl, "mtl", out, "mtl_analyzer", french, seed=seed, language_id="fr", keep=(
            "alignment_first", "alignment", "sampled_tokens", "s3gen_tokens")), 13)
        for layer in mtl.t3.tfmr.layers:                              # the analyzer leaves its hooks behind
            layer.self_attn._forward_hooks.clear()
        laugh = "Oh, that's hilarious! [chuckle] Um anyway, we have a new model in store."
        for v, seed in (("turbo", 14), ("nano", 15)):
            comfortable(lambda seed: dump_t3(models[v], v, out, v, laugh, seed=seed), seed)
        dump_reference(en, ref, out, "en")
        dump_reference(turbo, ref, out, "turbo")
        fox = "The quick brown fox jumps over the lazy dog."
        comfortable(lambda seed: dump_e2e(en, "en", out, ref, fox, seed), 31)
        with P.patched(T3Config, is_multilingual=False):
            comfortable(lambda seed: dump_e2e(mtl, "mtl", out, ref, french, seed, language_id="fr", repetition_penalty=1.2), 32)
        comfortable(lambda seed: dump_e2e(turbo, "turbo", out, ref, fox.replace("fox", "fox [laugh]"), seed), 33)
        dump_vc(models["vc"], out, src, ref, 34)
    for name, run in MANIFEST["runs"].items():
        assert not isinstance(run, dict) or run.get("fsq_margin", 1) >= FSQ_MARGIN, f"{name}: find other seeds"
    lines = [f'"versions": {json.dumps(MANIFEST["versions"])}']
    for part in ("runs", "files"):
        lines.append(f'"{part}": {{\n' + ",\n".join(
            f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in MANIFEST[part].items()) + "}")
    (out / "manifest.json").write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
