"""Supertonic in plain NumPy, written from a specification, not from the graphs.

It shares nothing with make_model.py except the file format, so agreement between this
module and onnxruntime checks both. Tensors are [batch, channels, time] unless noted.
"""
import json
import math
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

LN_EPS, BN_EPS, WINDOW = 1e-6, 1e-5, 4


# ---- loading ----------------------------------------------------------------------------
def load_weights(path):
    """Weights by module path. Anonymous ones are named after the node that reads them."""
    g = onnx.load(path).graph
    raw = {i.name: numpy_helper.to_array(i) for i in g.initializer}
    for n in g.node:                                   # v3 files keep scalars in Constant nodes
        if n.op_type == "Constant":
            raw[n.output[0]] = numpy_helper.to_array(n.attribute[0].t)
    w = {}
    for name, a in raw.items():
        if "tts." in name:
            w[name[name.index("tts."):]] = a          # drops v3's "vector_estimator." prefix
    for n in g.node:
        path_ = n.name.strip("/").removeprefix("vector_estimator/").replace("/", ".")
        mod = path_.rsplit(".", 1)[0]
        if n.op_type == "MatMul" and n.input[1] in raw and n.input[1].startswith("onnx::"):
            w[f"{mod}.weight"] = raw[n.input[1]]       # [in, out]
        elif n.op_type == "Conv":
            for i, s in ((1, "weight"), (2, "bias")):
                if len(n.input) > i and n.input[i].startswith("onnx::"):
                    w[f"{mod}.{s}"] = raw[n.input[i]]
        elif n.op_type == "PRelu" and n.input[1].startswith("onnx::"):
            w[f"{mod}.weight"] = raw[n.input[1]]
        elif n.op_type == "Div" and mod.endswith(("attn", "attention", "attention1", "attention2")):
            if n.input[1] in raw:
                w[f"{mod}.divisor"] = float(raw[n.input[1]])
    for name, a in raw.items():
        if name.endswith("/tanh/Tanh_output_0"):       # v1/v2 text encoder: folded keys
            w[name.strip("/").split("/tanh/")[0].replace("/", ".") + ".tanh_key"] = a
        if name in ("/Expand_output_0", "/vector_estimator/Expand_output_0"):
            w["style_key"] = a
    subs = {n.op_type: n for n in g.node if n.op_type == "Sub" and n.name == "/Sub"}
    if any("uncond_masker" in k for k in w):
        src = {o: n for n in g.node for o in n.output}
        scales = [next(float(raw[i]) for i in src[m].input if i in raw) for m in subs["Sub"].input]
        w["cfg_scales"] = scales                       # [4, 3]
    return w


class Sub(dict):
    """View of the weights under a prefix."""
    def __init__(self, w, prefix):
        p = prefix + "."
        super().__init__({k[len(p):]: v for k, v in w.items() if k.startswith(p)})


# ---- primitives -------------------------------------------------------------------------
def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def conv1d(x, w, b=None, dil=1, groups=1):
    """Valid 1-D convolution; w is [out, in/groups, k]."""
    k = w.shape[2]
    n = x.shape[2] - (k - 1) * dil
    if groups == 1:
        y = sum(np.einsum("oi,bit->bot", w[:, :, j], x[:, :, j * dil:j * dil + n]) for j in range(k))
    else:
        y = sum(w[None, :, 0, j, None] * x[:, :, j * dil:j * dil + n] for j in range(k))
    return y if b is None else y + b[None, :, None]


def norm_last(x, w):
    m = x.mean(-1, keepdims=True)
    v = ((x - m) ** 2).mean(-1, keepdims=True)
    return (x - m) / np.sqrt(v + LN_EPS) * w["norm.weight"] + w["norm.bias"]


def norm_ch(x, w):
    return norm_last(x.transpose(0, 2, 1), w).transpose(0, 2, 1)


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def linear(x, w):
    return x @ w["linear.weight"] + w["linear.bias"]


def heads_of(x, h):
    b, t, c = x.shape
    return x.reshape(b, t, h, c // h).transpose(0, 2, 1, 3)


def merge(x):
    b, h, t, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, t, h * d)


# ---- blocks -----------------------------------------------------------------------------
def convnext(x, w, dil, mask=None, causal=False):
    dw = "dwconv.net" if causal else "dwconv"
    k = w[f"{dw}.weight"].shape[2]
    if mask is not None:
        x = x * mask
    total = (k - 1) * dil
    left = total if causal else total // 2
    y = np.pad(x, ((0, 0), (0, 0), (left, total - left)), mode="edge")
    y = conv1d(y, w[f"{dw}.weight"], w[f"{dw}.bias"], dil, x.shape[1])
    if mask is not None:
        y = y * mask
    y = norm_ch(y, Sub(w, "norm"))
    y = conv1d(gelu(conv1d(y, w["pwconv1.weight"], w["pwconv1.bias"])), w["pwconv2.weight"], w["pwconv2.bias"])
    y = x + w["gamma"] * y
    return y if mask is None else y * mask


def rel_pos_attention(x, w, heads, mask):
    """mask: [B,1,T]. Offsets j - i outside -4..4 get no relative term."""
    q, k, v = (heads_of(conv1d(x, w[f"conv_{n}.weight"], w[f"conv_{n}.bias"]).transpose(0, 2, 1), heads)
               for n in "qkv")
    t, d = q.shape[2:]
    q = q / math.sqrt(d)
    off = np.arange(t)[None, :] - np.arange(t)[:, None] + WINDOW          # [i, j]
    ok = (off >= 0) & (off <= 2 * WINDOW)
    idx = np.clip(off, 0, 2 * WINDOW)
    rk, rv = (w[f"emb_rel_{n}"][0][idx] * ok[..., None] for n in "kv")     # [i, j, d]
    s = q @ k.swapaxes(2, 3) + np.einsum("bhid,ijd->bhij", q, rk)
    m = mask[:, :, :, None] * mask[:, :, None, :]
    p = softmax(np.where(m == 0, -1e4, s))
    y = merge(p @ v + np.einsum("bhij,ijd->bhid", p, rv)).transpose(0, 2, 1)
    return conv1d(y, w["conv_o.weight"], w["conv_o.bias"])


def attn_encoder(x, w, cfg, mask):
    x = x * mask
    for i in range(cfg["n_layers"]):
        x = norm_ch(x + rel_pos_attention(x, Sub(w, f"attn_layers.{i}"), cfg["n_heads"], mask),
                    Sub(w, f"norm_layers_1.{i}"))
        f = Sub(w, f"ffn_layers.{i}")
        y = np.maximum(conv1d(x * mask, f["conv_1.weight"], f["conv_1.bias"]), 0)
        y = conv1d(y * mask, f["conv_2.weight"], f["conv_2.bias"]) * mask
        x = norm_ch(x + y, Sub(w, f"norm_layers_2.{i}"))
    return x * mask


def style_attention(x, key_t, value, w, heads, qmask):
    """x [B,T,C]; key_t [.,H,D,N] after tanh; value [B,N,Cs] before W_value; qmask [B,T,1]."""
    q = heads_of(linear(x, Sub(w, "W_query")), heads)
    v = heads_of(linear(value, Sub(w, "W_value")), heads)
    p = softmax(q @ key_t / w["divisor"]) * qmask[:, None]
    return linear(merge(p @ v), Sub(w, "out_fc")) * qmask


def style_keys(key, w, heads):
    return np.tanh(heads_of(linear(key, Sub(w, "W_key")), heads)).swapaxes(2, 3)


# ---- networks ---------------------------------------------------------------------------
class Supertonic:
    def __init__(self, model_dir):
        d = Path(model_dir) / "onnx"
        self.cfg = json.loads((d / "tts.json").read_text())
        self.w = {n: load_weights(d / f"{n}.onnx") for n in
                  ("duration_predictor", "text_encoder", "vector_estimator", "vocoder")}

    def duration(self, ids, style_dp, mask):
        w, c = Sub(self.w["duration_predictor"], "tts.dp"), self.cfg["dp"]["sentence_encoder"]
        e = Sub(w, "sentence_encoder")
        x = e["text_embedder.char_embedder.weight"][ids].transpose(0, 2, 1) * mask
        b = x.shape[0]
        x = np.concatenate([np.repeat(e["sentence_token"], b, 0), x], 2)
        mask = np.concatenate([np.ones((b, 1, 1)), mask], 2)
        for i, dil in enumerate(c["convnext"]["dilation_lst"]):
            x = convnext(x, Sub(e, f"convnext.convnext.{i}"), dil, mask)
        x = x + attn_encoder(x, Sub(e, "attn_encoder"), c["attn_encoder"], mask)
        s = conv1d(x[:, :, :1], e["proj_out.net.weight"]).reshape(b, -1)
        h = np.concatenate([s, style_dp.reshape(b, -1)], 1)
        p = Sub(w, "predictor")
        h = h @ p["layers.0.weight"].T + p["layers.0.bias"]
        h = np.where(h >= 0, h, p["activation.weight"] * h)
        return np.exp(h @ p["layers.1.weight"].T + p["layers.1.bias"])[:, 0]

    def text_emb(self, ids, style_ttl, mask, tap=None):
        W = self.w["text_encoder"]
        w, c = Sub(W, "tts.ttl.text_encoder"), self.cfg["ttl"]["text_encoder"]
        x = w["text_embedder.char_embedder.weight"][ids].transpose(0, 2, 1) * mask
        for i, dil in enumerate(c["convnext"]["dilation_lst"]):
            x = convnext(x, Sub(w, f"convnext.convnext.{i}"), dil, mask)
        x = (x + attn_encoder(x, Sub(w, "attn_encoder"), c["attn_encoder"], mask)) * mask
        sp, h = Sub(W, "tts.ttl.speech_prompted_text_encoder"), self.cfg["ttl"]["speech_prompted_text_encoder"]["n_heads"]
        anon = Sub(W, "speech_prompted_text_encoder")
        x0, qm = x.transpose(0, 2, 1), mask.transpose(0, 2, 1)
        y = x0
        for n in (1, 2):
            a = Sub({**sp, **anon}, f"attention{n}")
            if "tanh_key" in a:
                key = a["tanh_key"].transpose(1, 0, 2, 3)
            else:
                key = style_keys(W["tts.ttl.style_encoder.style_token_layer.style_key"], a, h)
            y = x0 + style_attention(y, key, style_ttl, a, h, qm)
        return norm_last(y, Sub(sp, "norm")).transpose(0, 2, 1) * mask

    def velocity(self, x, text, style_key, style_value, lmask, tmask, t):
        W = self.w["vector_estimator"]
        w = {**Sub(W, "tts.ttl.vector_field"), **Sub(W, "vector_field")}
        for k, v in Sub(W, "tts.ttl.vector_field").items():
            w.setdefault(k, v)
        c = self.cfg["ttl"]["vector_field"]
        mb = c["main_blocks"]
        heads = mb["text_cond_layer"]["n_heads"]
        half = c["time_encoder"]["time_dim"] // 2
        ang = 1000 * t[:, None] * 10000.0 ** (-np.arange(half) / (half - 1))
        e = np.concatenate([np.sin(ang), np.cos(ang)], 1)
        m = Sub(w, "time_encoder.mlp")
        e = e @ m["0.linear.weight"].T + m["0.linear.bias"]
        e = e * np.tanh(np.logaddexp(e, 0))                                  # Mish
        e = e @ m["2.linear.weight"].T + m["2.linear.bias"]

        theta = w["main_blocks.3.attn.theta"].reshape(-1)

        def rope(z, mask):
            pos = np.arange(z.shape[2])[None, :] / mask.sum((1, 2))[:, None]  # length-normalized
            a = (pos[..., None] * theta)[:, None]
            cs, sn, n = np.cos(a), np.sin(a), z.shape[3] // 2
            return np.concatenate([z[..., :n] * cs - z[..., n:] * sn, z[..., :n] * sn + z[..., n:] * cs], -1)

        def stack(x, p, cc):
            for j, dil in enumerate(cc["dilation_lst"]):
                x = convnext(x, Sub(w, f"{p}.{j}"), dil, lmask)
            return x

        lm, tt = lmask.transpose(0, 2, 1), text.transpose(0, 2, 1)
        x = conv1d(x, w["proj_in.net.weight"]) * lmask
        for b in range(mb["n_blocks"]):
            i = 6 * b
            x = stack(x, f"main_blocks.{i}.convnext", mb["convnext_0"])
            x = (x + linear(e, Sub(w, f"main_blocks.{i + 1}.linear"))[:, :, None]) * lmask
            x = stack(x, f"main_blocks.{i + 2}.convnext", mb["convnext_1"])
            a = Sub(w, f"main_blocks.{i + 3}.attn")
            q = rope(heads_of(linear(x.transpose(0, 2, 1), Sub(a, "W_query")), heads), lmask)
            k = rope(heads_of(linear(tt, Sub(a, "W_key")), heads), tmask)
            v = heads_of(linear(tt, Sub(a, "W_value")), heads)
            s = np.where(tmask[:, None] == 0, -np.inf, q @ k.swapaxes(2, 3) / a["divisor"])
            y = linear(merge(softmax(s) * lm[:, None] @ v), Sub(a, "out_fc")) * lm
            x = norm_ch(x + y.transpose(0, 2, 1), Sub(w, f"main_blocks.{i + 3}.norm")) * lmask
            x = stack(x, f"main_blocks.{i + 4}.convnext", mb["convnext_2"])
            a = Sub(w, f"main_blocks.{i + 5}.attention")
            y = style_attention(x.transpose(0, 2, 1), style_keys(style_key, a, 2), style_value, a, 2, lm)
            x = norm_ch(x + y.transpose(0, 2, 1), Sub(w, f"main_blocks.{i + 5}.norm")) * lmask
        x = stack(x, "last_convnext.convnext", c["last_convnext"])
        return conv1d(x, w["proj_out.net.weight"]) * lmask

    def step(self, x, text, style, lmask, tmask, cur, tot):
        W = self.w["vector_estimator"]
        t = cur / tot
        v = self.velocity(x, text, W["style_key"], style, lmask, tmask, t)
        if "cfg_scales" in W:                                                 # v3 guidance
            u = Sub(W, "tts.ttl.uncond_masker")
            b = x.shape[0]
            vu = self.velocity(x, np.broadcast_to(u["text_special_token"], text.shape), u["style_key_special_token"],
                               np.repeat(u["style_value_special_token"], b, 0), lmask, tmask, t)
            v = W["cfg_scales"][0] * v - W["cfg_scales"][1] * vu
        return (x + v / tot[:, None, None]) * lmask

    def vocode(self, z):
        W, c = self.w["vocoder"], self.cfg["ae"]["decoder"]
        d, k = self.cfg["ttl"]["latent_dim"], self.cfg["ttl"]["chunk_compress_factor"]
        b, _, l = z.shape
        x = z / W["tts.ttl.normalizer.scale"]
        x = x.reshape(b, d, k, l).transpose(0, 1, 3, 2).reshape(b, d, l * k)
        x = x * W["tts.ae.latent_std"] + W["tts.ae.latent_mean"]
        w = {**Sub(W, "tts.ae.decoder"), **Sub(W, "decoder")}
        left = lambda x, n: np.pad(x, ((0, 0), (0, 0), (n, 0)), mode="edge")
        x = conv1d(left(x, c["ksz_init"] - 1), w["embed.net.weight"], w["embed.net.bias"])
        for i, dil in enumerate(c["dilation_lst"]):
            x = convnext(x, Sub(w, f"convnext.{i}"), dil, causal=True)
        n = Sub(w, "final_norm.norm")
        ch = lambda a: a[None, :, None]
        x = (x - ch(n["running_mean"])) / np.sqrt(ch(n["running_var"]) + BN_EPS) * ch(n["weight"]) + ch(n["bias"])
        x = conv1d(left(x, c["head"]["ksz"] - 1), w["head.layer1.net.weight"], w["head.layer1.net.bias"])
        x = np.where(x >= 0, x, w["head.act.weight"].reshape(()) * x)
        return conv1d(x, w["head.layer2.weight"]).transpose(0, 2, 1).reshape(b, -1)
