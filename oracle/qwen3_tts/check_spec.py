"""Independent check: the model reimplemented in NumPy from a specification alone, compared with the goldens.

    python check_spec.py GOLDEN_DIR          # needs only numpy and safetensors

It shows that the specification is complete and that the goldens are not an accident of
one library. It is slow and simple, and reads the checkpoints exactly as our engine must.
"""
import json
import sys
import wave
from pathlib import Path

import numpy as np
from safetensors import safe_open

f32 = np.float32


# ------------------------------------------------------------------ loading

class Weights:
    def __init__(self, path, prefix=""):
        self.prefix, self.raw = prefix, Path(path).read_bytes()
        n = int.from_bytes(self.raw[:8], "little")
        self.head, self.base = json.loads(self.raw[8:8 + n]), 8 + n

    def __call__(self, name):
        info = self.head[self.prefix + name]
        a, b = info["data_offsets"]
        data = self.raw[self.base + a:self.base + b]
        if info["dtype"] == "BF16":
            x = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(f32)
        else:
            x = np.frombuffer(data, "<f4")
        return x.reshape(info["shape"])

    def at(self, prefix):
        w = object.__new__(Weights)
        w.__dict__ = dict(self.__dict__, prefix=self.prefix + prefix)
        return w

    def __contains__(self, name):
        return self.prefix + name in self.head


def read_wav(path):
    with wave.open(str(path)) as w:
        return np.frombuffer(w.readframes(w.getnframes()), "<i2").astype(f32) / f32(32768)


# ------------------------------------------------------------------- blocks

silu = lambda x: x / (1 + np.exp(-x))
elu = lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
relu = lambda x: np.maximum(x, 0)


def gelu(x):
    from math import erf
    return (x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))).astype(f32)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def rms_norm(x, w, eps):
    return w * (x / np.sqrt((x * x).mean(-1, keepdims=True) + eps))


def layer_norm(x, w, b, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w + b


def rope(x, pos, theta):                                     # [T, H, Dh], halves are rotated
    half = x.shape[-1] // 2
    angle = pos[:, None, None] * theta ** (-np.arange(half) / half)
    c, s = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, b * c + a * s], -1).astype(f32)


def attend(q, k, v, pos, window=None):                       # q [T, H, Dh], k/v [S, Hkv, Dh], pos of the q rows
    rep = q.shape[1] // k.shape[1]
    k, v = k.repeat(rep, 1), v.repeat(rep, 1)
    s = np.einsum("thd,shd->hts", q, k) / np.sqrt(q.shape[-1])
    j = np.arange(k.shape[0])
    bad = j[None] > pos[:, None]
    if window:
        bad |= j[None] <= pos[:, None] - window
    return np.einsum("hts,shd->thd", softmax(np.where(bad, -np.inf, s)), v)


class Decoder:
    """Qwen3-style decoder layers with a cache (talker and code predictor)."""

    def __init__(self, w, cfg):
        self.w, self.c, self.cache = w, cfg, None

    def reset(self):
        self.cache = [None] * self.c["num_hidden_layers"]

    def __call__(self, x, collect=None):
        c = self.c
        start = 0 if self.cache[0] is None else len(self.cache[0][0])
        pos = np.arange(start, start + len(x))
        eps, dh = c["rms_norm_eps"], c["head_dim"]
        for i in range(c["num_hidden_layers"]):
            w = self.w.at(f"layers.{i}.")
            a = w.at("self_attn.")
            n = rms_norm(x, w("input_layernorm.weight"), eps)
            split = lambda name: (n @ a(name + ".weight").T).reshape(len(x), -1, dh)
            q = rope(rms_norm(split("q_proj"), a("q_norm.weight"), eps), pos, c["rope_theta"])
            k = rope(rms_norm(split("k_proj"), a("k_norm.weight"), eps), pos, c["rope_theta"])
            v = split("v_proj")
            if self.cache[i] is not None:
                k, v = np.concatenate([self.cache[i][0], k]), np.concatenate([self.cache[i][1], v])
            self.cache[i] = k, v
            x = x + attend(q, k, v, pos).reshape(len(x), -1) @ a("o_proj.weight").T
            n = rms_norm(x, w("post_attention_layernorm.weight"), eps)
            m = w.at("mlp.")
            x = x + (silu(n @ m("gate_proj.weight").T) * (n @ m("up_proj.weight").T)) @ m("down_proj.weight").T
            if collect is not None:
                collect.append(x)
        return rms_norm(x, self.w("norm.weight"), eps)


def conv(x, w, b=None, stride=1, dilation=1, pad=None, mode="constant", groups=1):
    """x [C, T]. pad=None: causal, with the right side filled up to the stride."""
    k = (w.shape[2] - 1) * dilation + 1
    if pad is None:
        pad = (k - stride, -x.shape[1] % stride)
    x = np.pad(x, ((0, 0), pad), mode=mode) if max(pad) else x
    n = (x.shape[1] - k) // stride + 1
    cols = np.stack([x[:, j * dilation: j * dilation + (n - 1) * stride + 1: stride] for j in range(w.shape[2])], 1)
    if groups == 1:
        y = np.einsum("oik,ikt->ot", w, cols, optimize=True)
    else:
        y = np.einsum("ck,ckt->ct", w[:, 0], cols)
    return y if b is None else y + b[:, None]


def conv_transpose(x, w, b, stride):
    """w [in, out, taps]; the last taps - stride samples are dropped."""
    t = x.shape[1]
    y = np.zeros((w.shape[1], (t - 1) * stride + w.shape[2]), f32)
    for j in range(w.shape[2]):
        y[:, j: j + (t - 1) * stride + 1: stride] += w[:, :, j].T @ x
    return y[:, : t * stride] + b[:, None]


def centroids(w, name):
    return w(name) / np.maximum(w(name.rsplit(".", 1)[0] + ".cluster_usage"), f32(1e-5))[:, None]


# ----------------------------------------------------------- speaker encoder

def mel_filters(bands=128, n_fft=1024, rate=24000, fmax=12000.0):
    mel = lambda f: np.where(f < 1000, f * 3 / 200, 15 + np.log(np.maximum(f, 1e-9) / 1000) / (np.log(6.4) / 27))
    hz = lambda m: np.where(m < 15, m * 200 / 3, 1000 * np.exp((m - 15) * np.log(6.4) / 27))
    edges = hz(np.linspace(mel(np.array(0.0)), mel(np.array(fmax)), bands + 2))
    freqs = np.arange(n_fft // 2 + 1) * rate / n_fft
    up = (freqs - edges[:-2, None]) / np.diff(edges)[:-1, None]
    down = (edges[2:, None] - freqs) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))[:, None]


def log_mel(wav):
    x = np.pad(wav.astype(np.float64), 384, mode="reflect")
    n = (len(x) - 1024) // 256 + 1
    frames = np.stack([x[i * 256: i * 256 + 1024] for i in range(n)]) * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024))
    mag = np.sqrt(np.abs(np.fft.rfft(frames)) ** 2 + 1e-9)
    return np.log(np.maximum(mag @ mel_filters().T, 1e-5)).T.astype(f32)          # [128, T]


def speaker_embedding(w, cfg, mel):
    def tdnn(x, name, dilation=1):
        k = w(name + ".weight")
        side = dilation * (k.shape[2] - 1) // 2
        return conv(x, k, w(name + ".bias"), dilation=dilation, pad=(side, side), mode="reflect")

    outs = [relu(tdnn(mel, "blocks.0.conv", cfg["enc_dilations"][0]))]
    for i in range(1, len(cfg["enc_channels"]) - 1):
        b = f"blocks.{i}."
        parts = np.split(relu(tdnn(outs[-1], b + "tdnn1.conv")), cfg["enc_res2net_scale"])
        done = [parts[0]]
        for j, p in enumerate(parts[1:]):
            inp = p if j == 0 else p + done[-1]
            done.append(relu(tdnn(inp, f"{b}res2net_block.blocks.{j}.conv", cfg["enc_dilations"][i])))
        x = relu(tdnn(np.concatenate(done), b + "tdnn2.conv"))
        s = relu(tdnn(x.mean(1, keepdims=True), b + "se_block.conv1"))
        outs.append(outs[-1] + x / (1 + np.exp(-tdnn(s, b + "se_block.conv2"))))
    x = relu(tdnn(np.concatenate(outs[1:]), "mfa.conv"))

    def stats(p):
        m = (p * x).sum(1, keepdims=True)
        return m, np.sqrt(np.maximum((p * (x - m) ** 2).sum(1, keepdims=True), 1e-12))
    m, s = stats(np.full((1, x.shape[1]), 1 / x.shape[1]))
    a = np.concatenate([x, np.broadcast_to(m, x.shape), np.broadcast_to(s, x.shape)])
    p = softmax(tdnn(np.tanh(relu(tdnn(a, "asp.tdnn.conv"))), "asp.conv"), 1)
    return tdnn(np.concatenate(stats(p)), "fc")[:, 0]


# -------------------------------------------------------------------- codec

def codec_encode(w, cfg, wav):
    x = wav[None]
    layer = w.at("encoder.layers.")
    c = lambda x, name, **kw: conv(x, layer(name + ".conv.weight"), layer(name + ".conv.bias"), **kw)
    x = c(x, "0")
    for i, r in enumerate(reversed(cfg["upsampling_ratios"])):
        x = x + c(elu(c(elu(x), f"{3 * i + 1}.block.1")), f"{3 * i + 1}.block.3")
        x = c(elu(x), str(3 * i + 3), stride=r)
    seanet = x = c(elu(x), str(3 * len(cfg["upsampling_ratios"]) + 2))
    x = x.T
    pos, dh = np.arange(len(x)), cfg["head_dim"]
    for i in range(cfg["num_hidden_layers"]):
        l = w.at(f"encoder_transformer.layers.{i}.")
        n = layer_norm(x, l("input_layernorm.weight"), l("input_layernorm.bias"), cfg["norm_eps"])
        q, k, v = ((n @ l(f"self_attn.{p}_proj.weight").T).reshape(len(x), -1, dh) for p in "qkv")
        o = attend(rope(q, pos, cfg["rope_theta"]), rope(k, pos, cfg["rope_theta"]), v, pos).reshape(len(x), -1)
        x = x + l("self_attn_layer_scale.scale") * (o @ l("self_attn.o_proj.weight").T)
        n = layer_norm(x, l("post_attention_layernorm.weight"), l("post_attention_layernorm.bias"), cfg["norm_eps"])
        x = x + l("mlp_layer_scale.scale") * (gelu(n @ l("mlp.fc1.weight").T) @ l("mlp.fc2.weight").T)
    transformer = x
    down = conv(x.T, w("downsample.conv.weight"), stride=2, mode="edge")
    codes = []
    for side, n in (("semantic", 1), ("acoustic", 15)):
        s = w.at(f"quantizer.{side}_residual_vector_quantizer.")
        r = (s("input_proj.weight")[:, :, 0] @ down).T
        for k in range(n):
            table = centroids(s, f"layers.{k}.codebook.embed_sum")
            pick = ((r[:, None] - table[None]) ** 2).sum(-1).argmin(1)
            codes.append(pick)
            r = r - table[pick]
    return seanet, transformer, down, np.stack(codes, 1)


def codec_decode(w, cfg, codes, stages=None):
    keep = (lambda k, v: stages.__setitem__(k, v)) if stages is not None else (lambda k, v: None)
    x = 0
    for side, cols in (("rvq_first", [0]), ("rvq_rest", range(1, 16))):
        q = w.at(f"quantizer.{side}.")
        rows = sum(centroids(q, f"vq.layers.{k}._codebook.embedding_sum")[codes[:, c]] for k, c in enumerate(cols))
        x = x + q("output_proj.weight")[:, :, 0] @ rows.T
    keep("quantized", x)
    x = conv(x, w("pre_conv.conv.weight"), w("pre_conv.conv.bias"))
    keep("pre_conv", x)

    t = w.at("pre_transformer.")
    x = x.T @ t("input_proj.weight").T + t("input_proj.bias")
    pos, dh, eps = np.arange(len(x)), cfg["head_dim"], cfg["rms_norm_eps"]
    for i in range(cfg["num_hidden_layers"]):
        l = t.at(f"layers.{i}.")
        n = rms_norm(x, l("input_layernorm.weight"), eps)
        q, k, v = ((n @ l(f"self_attn.{p}_proj.weight").T).reshape(len(x), -1, dh) for p in "qkv")
        o = attend(rope(q, pos, cfg["rope_theta"]), rope(k, pos, cfg["rope_theta"]), v, pos, cfg["sliding_window"])
        x = x + l("self_attn_layer_scale.scale") * (o.reshape(len(x), -1) @ l("self_attn.o_proj.weight").T)
        n = rms_norm(x, l("post_attention_layernorm.weight"), eps)
        m = l.at("mlp.")
        y = (silu(n @ m("gate_proj.weight").T) * (n @ m("up_proj.weight").T)) @ m("down_proj.weight").T
        x = x + l("mlp_layer_scale.scale") * y
    x = rms_norm(x, t("norm.weight"), eps) @ t("output_proj.weight").T + t("output_proj.bias")
    keep("pre_transformer", x)
    x = x.T.astype(f32)

    for i, r in enumerate(cfg["upsampling_ratios"]):
        x = conv_transpose(x, w(f"upsample.{i}.0.conv.weight"), w(f"upsample.{i}.0.conv.bias"), r)
        keep(f"upsample{i}_conv", x)
        u = w.at(f"upsample.{i}.1.")
        y = conv(x, u("dwconv.conv.weight"), u("dwconv.conv.bias"), groups=len(x)).T
        y = layer_norm(y, u("norm.weight"), u("norm.bias"), 1e-6)
        y = gelu(y @ u("pwconv1.weight").T + u("pwconv1.bias")) @ u("pwconv2.weight").T + u("pwconv2.bias")
        x = x + (u("gamma") * y).T
        keep(f"upsample{i}", x)

    d = w.at("decoder.")
    c = lambda x, name, **kw: conv(x, d(name + ".conv.weight"), d(name + ".conv.bias"), **kw)

    def snake(x, name):
        a, b = np.exp(d(name + ".alpha"))[:, None], np.exp(d(name + ".beta"))[:, None]
        return x + np.sin(x * a) ** 2 / (b + 1e-9)
    x = c(x, "0")
    keep("decoder0", x)
    for i, r in enumerate(cfg["upsample_rates"], 1):
        x = conv_transpose(snake(x, f"{i}.block.0"), d(f"{i}.block.1.conv.weight"), d(f"{i}.block.1.conv.bias"), r)
        for j, dilation in enumerate((1, 3, 9), 2):
            b = f"{i}.block.{j}."
            x = x + c(snake(c(snake(x, b + "act1"), b + "conv1", dilation=dilation), b + "act2"), b + "conv2")
        x = x.astype(f32)
        keep(f"decoder{i}", x)
    x = snake(x, "5")
    keep("decoder5", x)
    x = c(x, "6")
    keep("decoder6", x)
    return np.clip(x[0], -1, 1)


def codec_decode_chunked(w, cfg, codes):
    out = []
    for start in range(0, len(codes), 300):
        context = 25 if start > 25 else start
        out.append(codec_decode(w, cfg, codes[start - context: start + 300])[context * 1920:])
    return np.concatenate(out)


# ------------------------------------------------------------------ talking

class Model:
    def __init__(self, folder):
        self.cfg = json.loads((folder / "config.json").read_text())
        self.t = self.cfg["talker_config"]
        self.codec_cfg = json.loads((folder / "speech_tokenizer/config.json").read_text())
        main = Weights(folder / "model.safetensors")
        self.w, self.spk = main.at("talker."), main.at("speaker_encoder.")
        self.codec = Weights(folder / "speech_tokenizer/model.safetensors")
        self.talker = Decoder(self.w.at("model."), self.t)
        self.cp = self.w.at("code_predictor.")
        self.predictor = Decoder(self.cp.at("model."), self.t["code_predictor_config"])

    def text(self, ids):
        p = self.w.at("text_projection.")
        x = silu(self.w("model.text_embedding.weight")[ids] @ p("linear_fc1.weight").T + p("linear_fc1.bias"))
        return x @ p("linear_fc2.weight").T + p("linear_fc2.bias")

    def code(self, ids):
        return self.w("model.codec_embedding.weight")[ids]

    def frame(self, codes):
        return self.code(codes[0]) + sum(
            self.cp(f"model.codec_embedding.{g - 1}.weight")[codes[g]] for g in range(1, 16))

    def prompt(self, ids, language, speaker, instruct, ref_ids, ref_codes, streaming):
        """speaker: None, a speaker name, or an x-vector. Returns (prompt rows, trailing rows, pad row)."""
        t = self.t
        pad, bos, eos = self.text([self.cfg[f"tts_{k}_token_id"] for k in ("pad", "bos", "eos")])
        language = (language or "auto").lower()
        lang_id = None if language == "auto" else t["codec_language_id"][language]
        row = speaker
        if isinstance(speaker, str):
            speaker = speaker.lower()
            row = self.code(t["spk_id"][speaker])
            if t["spk_is_dialect"][speaker] and language in ("auto", "chinese"):
                lang_id = t["codec_language_id"][t["spk_is_dialect"][speaker]]
        if lang_id is None:
            tags = [t["codec_nothink_id"], t["codec_think_bos_id"], t["codec_think_eos_id"]]
        else:
            tags = [t["codec_think_id"], t["codec_think_bos_id"], lang_id, t["codec_think_eos_id"]]
        prefix = list(self.code(tags)) + ([] if row is None else [row])
        prefix += list(self.code([t["codec_pad_id"], t["codec_bos_id"]]))
        rows = [] if instruct is None else list(self.text(instruct))
        rows += list(self.text(ids[:3]))
        rows += [p + pad for p in prefix[:-2]] + [prefix[-2] + bos]
        under, start = self.code(t["codec_pad_id"]), prefix[-1]
        text = self.text(ids[3:-5])
        if ref_codes is not None:
            x = list(self.text(np.concatenate([ref_ids[3:-2], ids[3:-5]]))) + [eos]
            y = [start] + [self.frame(f) for f in ref_codes]
            if streaming:
                tail = x[len(y):] or [pad]
                x += [pad] * (len(y) - len(x))
                rows += [a + b for a, b in zip(x, y)]
            else:
                rows += [a + under for a in x] + [b + pad for b in y]
                tail = [pad]
        elif streaming:
            rows += [text[0] + start]
            tail = list(text[1:]) + [eos]
        else:
            rows += [a + under for a in text] + [eos + under, pad + start]
            tail = [pad]
        return np.array(rows), np.array(tail), pad

    def predict(self, h, c0):
        def project(x):
            if "small_to_mtp_projection.weight" not in self.cp:
                return x
            return x @ self.cp("small_to_mtp_projection.weight").T + self.cp("small_to_mtp_projection.bias")
        self.predictor.reset()
        x, codes, logits = np.stack([h, self.code(c0)]), [c0], []
        for g in range(15):
            out = self.predictor(project(x))[-1]
            logits.append(self.cp(f"lm_head.{g}.weight") @ out)
            codes.append(int(logits[-1].argmax()))
            x = self.cp(f"model.codec_embedding.{g}.weight")[codes[-1]][None]
        return codes, logits

    def generate(self, rows, trailing, pad, limit):
        t, eos = self.t, self.t["codec_eos_token_id"]
        self.talker.reset()
        out = dict(talker_hidden=[], talker_logits=[], talker_tokens=[], predictor_logits=[], codes=[], layers=[])
        h = self.talker(rows, out["layers"])[-1]
        while True:
            logits = self.w("codec_head.weight") @ h
            out["talker_hidden"].append(h), out["talker_logits"].append(logits)
            s = logits.copy()
            for i in set(out["talker_tokens"]):
                s[i] = s[i] * 1.05 if s[i] < 0 else s[i] / 1.05
            end = -np.inf if len(out["talker_tokens"]) < 2 else s[eos]
            s[t["vocab_size"] - 1024:] = -np.inf
            s[eos] = end
            c0 = int(s.argmax())
            out["talker_tokens"].append(c0)
            if c0 == eos or len(out["talker_tokens"]) == limit:
                return out
            codes, heads = self.predict(h, c0)
            out["codes"].append(codes), out["predictor_logits"].append(heads)
            j = len(out["codes"]) - 1
            x = self.frame(codes) + (trailing[j] if j < len(trailing) else pad)
            h = self.talker(x[None])[-1]


# ------------------------------------------------------------------ compare

worst = {}


def same(case, name, got, want, limit=2e-4):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{case}/{name}: shape {got.shape}, expected {want.shape}"
    if want.dtype.kind in "iu":
        assert (got == want).all(), f"{case}/{name}: {np.argwhere(got != want)[:3]} differ"
        return
    err = float(np.abs(got - want).max() / max(1.0, float(np.abs(want).max())))
    worst[name] = max(worst.get(name, 0), err)
    assert err < limit, f"{case}/{name}: off by {err:.2e}"


def main():
    root = Path(sys.argv[1])
    cases, manifest = root / "cases", json.loads((root / "cases/manifest.json").read_text())

    def golden(name):
        with safe_open(str(cases / f"{name}.safetensors"), framework="np") as f:
            return {k: f.get_tensor(k) for k in f.keys()}

    base = Model(root / "checkpoints/tiny-base")
    dec, enc = base.codec.at("decoder."), base.codec.at("encoder.")
    dec_cfg, enc_cfg, spk_cfg = base.codec_cfg["decoder_config"], base.codec_cfg["encoder_config"], base.cfg["speaker_encoder_config"]

    g = golden("speaker_encoder")
    wav = read_wav(cases / "ref.wav")
    same("speaker", "wav", wav, g["wav"])
    same("speaker", "log_mel", log_mel(wav), g["log_mel"])
    same("speaker", "embedding", speaker_embedding(base.spk, spk_cfg, log_mel(wav)), g["embedding"])

    g = golden("codec_encode")
    for name, got in zip(("seanet", "transformer", "downsample", "codes"), codec_encode(enc, enc_cfg, wav)):
        same("codec_encode", name, got, g[name])

    g = golden("codec_decode")
    stages = {}
    same("codec_decode", "waveform", codec_decode(dec, dec_cfg, g["codes"], stages), g["waveform"])
    for name, got in stages.items():
        got = got if got.shape == g[name].shape else np.concatenate([got[:, :512], got[:, -512:]], 1)
        same("codec_decode", name, got, g[name])

    g = golden("codec_decode_long")
    a, b = manifest["codec_decode_long"]["inputs"]["window"]
    chunked = codec_decode_chunked(dec, dec_cfg, g["codes"])
    same("codec_decode_long", "chunked", chunked[a:b], g["chunked"])
    same("codec_decode_long", "tail", chunked[-1920:], g["tail"])

    for name, entry in manifest.items():
        if "/" not in name:
            continue
        g, inputs = golden(name), entry["inputs"]
        m = Model(root / "checkpoints" / name.split("/")[0])
        streaming = not inputs.get("non_streaming_mode", m.cfg["tts_model_type"] != "base")
        speaker, ref_codes = inputs.get("speaker"), None
        if "ref_audio" in inputs:
            wav = read_wav(cases / inputs["ref_audio"])
            speaker = speaker_embedding(m.spk, m.cfg["speaker_encoder_config"], log_mel(wav))
            same(name, "speaker_embedding", speaker, g["speaker_embedding"])
            if not inputs.get("x_vector_only_mode"):
                ref_codes = codec_encode(m.codec.at("encoder."), m.codec_cfg["encoder_config"], wav)[3]
                same(name, "ref_codes", ref_codes, g["ref_codes"])
        rows, trailing, pad = m.prompt(g["input_ids"], inputs.get("language"), speaker, g.get("instruct_ids"),
                                       g.get("ref_ids"), ref_codes, streaming)
        same(name, "prompt_embeds", rows, g["prompt_embeds"])
        same(name, "trailing_text", trailing, g["trailing_text"])
        out = m.generate(rows, trailing, pad, inputs["max_new_tokens"])
        for k in ("talker_tokens", "codes", "talker_hidden", "talker_logits", "predictor_logits"):
            same(name, k, out[k], g[k])
        for i, x in enumerate(out["layers"]):
            if f"prefill_layer{i}" in g:
                same(name, "prefill_layer", x, g[f"prefill_layer{i}"])
        codes = np.array(out["codes"])
        if ref_codes is not None:
            codes = np.concatenate([ref_codes, codes])
        wav = codec_decode_chunked(m.codec.at("decoder."), m.codec_cfg["decoder_config"], codes)
        if ref_codes is not None:
            wav = wav[int(len(ref_codes) / len(codes) * len(wav)):]
        same(name, "waveform", wav, g["waveform"])
        print(f"{name}: {len(out['codes'])} frames agree", flush=True)
    print("largest error relative to the largest value:",
          ", ".join(f"{k} {v:.1e}" for k, v in sorted(worst.items(), key=lambda kv: -kv[1])[:8]))


if __name__ == "__main__":
    main()
