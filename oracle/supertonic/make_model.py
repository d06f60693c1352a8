#!/usr/bin/env python3
"""Write a random-weight Supertonic model directory in the official layout.

    python make_model.py --preset tiny  --out DIR     # v2 structure, small dimensions
    python make_model.py --preset tiny3 --out DIR     # v3 structure, small dimensions
    python make_model.py --preset tiny1 --out DIR     # v1: v2 structure, no language tags
    python make_model.py --preset v2-full --out DIR   # true Supertonic 2 sizes (about 265 MB)
    python make_model.py --preset v3-full --out DIR   # true Supertonic 3 sizes (about 400 MB)

DIR gets onnx/{duration_predictor,text_encoder,vector_estimator,vocoder}.onnx,
onnx/tts.json, onnx/unicode_indexer.json and voice_styles/*.json.
See README.md for what was checked against the published structure.
"""
import argparse
import copy
import json
import math
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import onnx

from graph import INT_MAX, INT_MIN, Graph

HERE = Path(__file__).resolve().parent
LN_EPS, BN_EPS, WINDOW = 1e-6, 1e-5, 4
COMPACT = (",", ":")
DW_GAIN = 0.05      # small inputs to LayerNorm, so that a wrong epsilon shows


# ======================================================================================
# Blocks shared by several networks
# ======================================================================================
def conv(g, path, tts, x, cout, cin, k=1, dil=1, groups=1, bias=True, wname=None, gain=1.0):
    fan = cin // groups * k
    w, b = (f"{tts}.weight", f"{tts}.bias") if wname is None else wname
    ins = [x, g.normal(w, (cout, cin // groups, k), gain / math.sqrt(fan))]
    if bias:
        ins.append(g.normal(b, (cout,), 0.05))
    return g.op("Conv", f"{path}/Conv", ins, dilations=[dil], group=groups,
                kernel_shape=[k], pads=[0, 0], strides=[1])


def layer_norm(g, path, tts, x, dim, transpose_in=True, transpose_out=True):
    """The Norm wrapper: [B,C,T] -> [B,T,C] -> LayerNorm -> back."""
    if transpose_in:
        x = g.op("Transpose", f"{path}/Transpose", [x], perm=[0, 2, 1])
    x = g.op("LayerNormalization", f"{path}/norm/LayerNormalization",
             [x, g.normal(f"{tts}.norm.weight", (dim,), 0.1, 1.0),
              g.normal(f"{tts}.norm.bias", (dim,), 0.1)], axis=-1, epsilon=LN_EPS)
    if transpose_out:
        name = f"{path}/Transpose_1" if transpose_in else f"{path}/Transpose"
        x = g.op("Transpose", name, [x], perm=[0, 2, 1])
    return x


def gelu(g, path, x):
    base = g.cache.setdefault("act", path)          # the first block owns the constants
    c = [g.const(f"{base}/{n}_output_0", v, np.float32)
         for n, v in (("Constant", math.sqrt(2)), ("Constant_1", 1.0), ("Constant_2", 0.5))]
    y = g.op("Erf", f"{path}/Erf", [g.op("Div", f"{path}/Div", [x, c[0]])])
    y = g.op("Add", f"{path}/Add", [y, c[1]])
    y = g.op("Mul", f"{path}/Mul", [x, y])
    return g.op("Mul", f"{path}/Mul_1", [y, c[2]])


def edge_pad(g, path, x, left, right):
    """Replicate padding along time; equal pad vectors share one constant."""
    owner = g.cache.setdefault(("pad", left, right), path)
    p = g.const(f"{owner}/Cast_output_0", [0, 0, left, 0, 0, right])
    return g.op("Pad", f"{path}/Pad", [x, p], mode="edge")


def convnext(g, path, tts, x, mask, dim, inter, k, dil):
    """Masked ConvNeXt block with symmetric replicate padding (all but the vocoder)."""
    x = g.op("Mul", f"{path}/Mul", [x, mask])
    half = (k - 1) * dil // 2
    y = edge_pad(g, f"{path}/dwconv", x, half, half)
    y = conv(g, f"{path}/dwconv", f"{tts}.dwconv", y, dim, dim, k, dil, dim, gain=DW_GAIN)
    y = g.op("Mul", f"{path}/Mul_1", [y, mask])
    y = pointwise(g, path, tts, y, dim, inter)
    y = g.op("Mul", f"{path}/Mul_2", [g.normal(f"{tts}.gamma", (1, dim, 1), 0.1, 0.4), y])
    y = g.op("Add", f"{path}/Add", [x, y])
    return g.op("Mul", f"{path}/Mul_3", [y, mask])


def convnext_causal(g, path, tts, x, dim, inter, k, dil):
    """Unmasked ConvNeXt block with left-only replicate padding (vocoder)."""
    y = edge_pad(g, f"{path}/dwconv", x, (k - 1) * dil, 0)
    y = conv(g, f"{path}/dwconv/net", f"{tts}.dwconv.net", y, dim, dim, k, dil, dim, gain=DW_GAIN)
    y = pointwise(g, path, tts, y, dim, inter)
    y = g.op("Mul", f"{path}/Mul", [g.normal(f"{tts}.gamma", (1, dim, 1), 0.1, 0.4), y])
    return g.op("Add", f"{path}/Add", [x, y])


def pointwise(g, path, tts, y, dim, inter):
    y = layer_norm(g, f"{path}/norm", f"{tts}.norm", y, dim)
    y = conv(g, f"{path}/pwconv1", f"{tts}.pwconv1", y, inter, dim)
    y = gelu(g, f"{path}/act", y)
    return conv(g, f"{path}/pwconv2", f"{tts}.pwconv2", y, dim, inter, gain=1.5)


def linear(g, path, tts, x, fin, fout, number, gain=1.0):
    """nn.Linear on [B,T,C]: MatMul with an anonymous [in,out] constant, then Add(bias, .)."""
    w = g.normal(f"onnx::MatMul_{number}", (fin, fout), gain / math.sqrt(fin))
    y = g.op("MatMul", f"{path}/linear/MatMul", [x, w])
    return g.op("Add", f"{path}/linear/Add", [g.normal(f"{tts}.linear.bias", (fout,), 0.1), y])


def rel_pos_attention(g, path, tts, x, mask_eq, dim, heads, c):
    """Self-attention with clipped relative positions, window 4 (pad/reshape formulation)."""
    d = dim // heads
    P = lambda s: f"{path}/{s}"
    q, k, v = (conv(g, P(f"conv_{n}"), f"{tts}.conv_{n}", x, dim, dim, gain=gn)
               for n, gn in (("q", 1.5), ("k", 1.5), ("v", 1.0)))
    o = c["layer0"]                                   # constants are owned by layer 0
    K = lambda n, val, dt=np.int64: g.const(f"{o}/{n}_output_0", val, dt)
    s0, v0, v1, v2, vm1 = c["s0"], c["v0"], c["v1"], c["v2"], c["vm1"]
    U = lambda n, t: g.op("Unsqueeze", P(n), [t, v0])
    sh, sh3 = g.op("Shape", P("Shape"), [k]), g.op("Shape", P("Shape_3"), [q])
    s2 = K("Constant_2", 2)
    ga = g.op("Gather", P("Gather"), [sh, s0], axis=0)
    g2 = g.op("Gather", P("Gather_2"), [sh, s2], axis=0)
    g3 = g.op("Gather", P("Gather_3"), [sh3, s2], axis=0)
    u, u1, u3 = U("Unsqueeze", ga), U("Unsqueeze_1", g3), U("Unsqueeze_3", g2)
    w1 = K("Constant_11", WINDOW + 1)
    sub = g.op("Sub", P("Sub"), [g2, w1])
    sub1 = g.op("Sub", P("Sub_1"), [w1, g2])
    mul = g.op("Mul", P("Mul"), [g2, s2])
    hh, hd = c["heads"] or K("Constant_4", [heads]), K("Constant_5", [d])
    cat = g.op("Concat", P("Concat"), [u, hh, hd, u1], axis=0)
    cat1 = g.op("Concat", P("Concat_1"), [u, hh, hd, u3], axis=0)
    clip = g.op("Clip", P("Clip"), [sub, s0, ""])
    clip1 = g.op("Clip", P("Clip_1"), [sub1, s0, ""])
    cat23 = g.op("Concat", P("Concat_23"), [u, K("Unsqueeze_43", [dim]), u1], axis=0)
    rq = g.op("Reshape", P("Reshape"), [q, cat])
    rk = g.op("Reshape", P("Reshape_1"), [k, cat1])
    rv = g.op("Reshape", P("Reshape_2"), [v, cat1])
    add = g.op("Add", P("Add"), [clip1, mul])
    u8, u14 = U("Unsqueeze_8", clip), U("Unsqueeze_14", clip1)
    T4 = dict(perm=[0, 1, 3, 2])
    tq = g.op("Transpose", P("Transpose"), [rq], **T4)
    tv = g.op("Transpose", P("Transpose_1"), [rv], **T4)
    s1 = K("Constant_16", 1)
    sub2 = g.op("Sub", P("Sub_2"), [add, s1])
    cat7 = g.op("Concat", P("Concat_7"), [v0, v0, u8, u8, v0, v0], axis=0)
    div = g.op("Div", P("Div"), [tq, K("Constant_10", math.sqrt(d), np.float32)])
    u15 = U("Unsqueeze_15", sub2)
    m1_2, vmin = K("Constant_35", [-1, 2]), K("Constant_38", [INT_MIN])

    def pads(reshape_name, cat_t, slice_n, tr_n, flat_n, out_n):
        """torch pad list (last dim first) -> ONNX pads (begins then ends)."""
        r = g.op("Reshape", P(reshape_name), [cat_t, m1_2])
        r = g.op("Slice", P(slice_n), [r, vm1, vmin, v0, vm1])
        r = g.op("Transpose", P(tr_n), [r], perm=[1, 0])
        return g.op("Reshape", P(flat_n), [r, vm1], out=f"{path}/{out_n}_output_0")

    r3 = g.op("Reshape", P("Reshape_3"), [cat7, m1_2])
    mm = g.op("MatMul", P("MatMul"), [div, rk])
    sl = g.op("Slice", P("Slice"), [r3, vm1, vmin, v0, vm1])
    tr2 = g.op("Transpose", P("Transpose_2"), [sl], perm=[1, 0])
    pad_k = g.op("Reshape", P("Reshape_4"), [tr2, vm1], out=f"{path}/Cast_1_output_0")
    emb = [g.normal(f"{tts}.emb_rel_{n}", (1, 2 * WINDOW + 1, d), 1.0) for n in "kv"]
    pk = g.op("Pad", P("Pad"), [emb[0], pad_k, ""], mode="constant")
    pv = g.op("Pad", P("Pad_5"), [emb[1], pad_k, ""], mode="constant")
    sk = g.op("Slice", P("Slice_1"), [pk, u14, u15, v1, v1])
    sv = g.op("Slice", P("Slice_10"), [pv, u14, u15, v1, v1])
    u16, u41 = U("Unsqueeze_16", sk), U("Unsqueeze_41", sv)
    mm1 = g.op("MatMul", P("MatMul_1"), [div, g.op("Transpose", P("Transpose_3"), [u16], **T4)])
    sh5 = g.op("Shape", P("Shape_5"), [mm1])
    pad1 = g.op("Pad", P("Pad_1"), [mm1, K("Cast_2", [0] * 7 + [1]), ""], mode="constant")
    g5, g6, g7 = (g.op("Gather", P(f"Gather_{i}"), [sh5, ix], axis=0)
                  for i, ix in ((5, s0), (6, s1), (7, s2)))
    mul1 = g.op("Mul", P("Mul_1"), [g7, s2])
    u17, u18 = U("Unsqueeze_17", g5), U("Unsqueeze_18", g6)
    sub4 = g.op("Sub", P("Sub_4"), [g7, s1])
    add1 = g.op("Add", P("Add_1"), [g7, s1])
    u26 = U("Unsqueeze_26", g7)
    mul2 = g.op("Mul", P("Mul_2"), [mul1, g7])
    u21 = U("Unsqueeze_21", sub4)
    sub6 = g.op("Sub", P("Sub_6"), [mul1, s1])
    u24, u19, u25 = U("Unsqueeze_24", add1), U("Unsqueeze_19", mul2), U("Unsqueeze_25", sub6)
    cat12 = g.op("Concat", P("Concat_12"), [v0, u21] + [v0] * 4, axis=0)
    cat9 = g.op("Concat", P("Concat_9"), [u17, u18, u19], axis=0)
    cat13 = g.op("Concat", P("Concat_13"), [u17, u18, u24, u25], axis=0)
    pad_r = pads("Reshape_8", cat12, "Slice_3", "Transpose_5", "Reshape_9", "Cast_4")
    r7 = g.op("Reshape", P("Reshape_7"), [pad1, cat9])
    pad2 = g.op("Pad", P("Pad_2"), [r7, pad_r, ""], mode="constant")
    r10 = g.op("Reshape", P("Reshape_10"), [pad2, cat13])
    s4 = g.op("Slice", P("Slice_4"), [r10, v0, u26, v2, v1])
    vmax, v3 = K("Constant_85", [INT_MAX]), K("Constant_83", [3])
    s5 = g.op("Slice", P("Slice_5"), [s4, u21, vmax, v3, v1])
    sc = g.op("Add", P("Add_2"), [mm, s5])
    sc = g.op("Where", P("Where"), [mask_eq, K("Constant_88", -1e4, np.float32), sc])
    p = g.op("Softmax", P("Softmax"), [sc], axis=-1)
    mm2 = g.op("MatMul", P("MatMul_2"), [p, tv])
    sh9 = g.op("Shape", P("Shape_9"), [p])
    g9, g10, g11 = (g.op("Gather", P(f"Gather_{i}"), [sh9, ix], axis=0)
                    for i, ix in ((9, s0), (10, s1), (11, s2)))
    sub7 = g.op("Sub", P("Sub_7"), [g11, s1])
    pw = g.op("Pow", P("Pow"), [g11, s2])
    u30, u31, u34 = U("Unsqueeze_30", g9), U("Unsqueeze_31", g10), U("Unsqueeze_34", g11)
    mul4 = g.op("Mul", P("Mul_4"), [g11, s2])
    u29 = U("Unsqueeze_29", sub7)
    mul3 = g.op("Mul", P("Mul_3"), [g11, sub7])
    u38 = U("Unsqueeze_38", mul4)
    cat20 = g.op("Concat", P("Concat_20"), [u34] + [v0] * 5, axis=0)
    add3 = g.op("Add", P("Add_3"), [pw, mul3])
    cat21 = g.op("Concat", P("Concat_21"), [u30, u31, u34, u38], axis=0)
    cat16 = g.op("Concat", P("Concat_16"), [v0, u29] + [v0] * 6, axis=0)
    u32 = U("Unsqueeze_32", add3)
    cat17 = g.op("Concat", P("Concat_17"), [u30, u31, u32], axis=0)
    pad_b = pads("Reshape_14", cat20, "Slice_7", "Transpose_7", "Reshape_15", "Cast_9")
    pad_a = pads("Reshape_11", cat16, "Slice_6", "Transpose_6", "Reshape_12", "Cast_7")
    pad3 = g.op("Pad", P("Pad_3"), [p, pad_a, ""], mode="constant")
    r13 = g.op("Reshape", P("Reshape_13"), [pad3, cat17])
    pad4 = g.op("Pad", P("Pad_4"), [r13, pad_b, ""], mode="constant")
    r16 = g.op("Reshape", P("Reshape_16"), [pad4, cat21])
    s8 = g.op("Slice", P("Slice_8"), [r16, v1, vmax, v3, v1])
    mm3 = g.op("MatMul", P("MatMul_3"), [s8, u41])
    y = g.op("Add", P("Add_4"), [mm2, mm3])
    y = g.op("Transpose", P("Transpose_9"), [y], **T4)
    y = g.op("Reshape", P("Reshape_19"), [y, cat23])
    return conv(g, P("conv_o"), f"{tts}.conv_o", y, dim, dim)


def attn_encoder(g, path, tts, x, mask, cfg, c):
    """Post-norm transformer: x = LN(x + attn(x)); x = LN(x + ffn(x)); mask only at the ends."""
    dim, heads, n = cfg["hidden_channels"], cfg["n_heads"], cfg["n_layers"]
    a = g.op("Unsqueeze", f"{path}/Unsqueeze", [mask, c["v2"]])
    b = g.op("Unsqueeze", f"{path}/Unsqueeze_1", [mask, c["vm1"]])
    m = g.op("Mul", f"{path}/Mul", [a, b])
    eq = g.op("Equal", f"{path}/attn_layers.0/Equal", [m, c["f0"]],
              out=f"{path}/attn_layers.{n - 1}/Cast_5_output_0")
    x = g.op("Mul", f"{path}/Mul_1", [x, mask])
    c = dict(c, layer0=f"{path}/attn_layers.0")
    for i in range(n):
        y = rel_pos_attention(g, f"{path}/attn_layers.{i}", f"{tts}.attn_layers.{i}", x, eq,
                              dim, heads, c)
        x = g.op("Add", f"{path}/Add" + (f"_{2 * i}" if i else ""), [x, y])
        x = layer_norm(g, f"{path}/norm_layers_1.{i}", f"{tts}.norm_layers_1.{i}", x, dim)
        f, F = f"{path}/ffn_layers.{i}", f"{tts}.ffn_layers.{i}"
        y = g.op("Mul", f"{f}/Mul", [x, mask])
        y = conv(g, f"{f}/conv_1", f"{F}.conv_1", y, cfg["filter_channels"], dim)
        y = g.op("Mul", f"{f}/Mul_1", [g.op("Relu", f"{f}/Relu", [y]), mask])
        y = conv(g, f"{f}/conv_2", f"{F}.conv_2", y, dim, cfg["filter_channels"], gain=1.4)
        y = g.op("Mul", f"{f}/Mul_2", [y, mask])
        x = g.op("Add", f"{path}/Add_{2 * i + 1}", [x, y])
        x = layer_norm(g, f"{path}/norm_layers_2.{i}", f"{tts}.norm_layers_2.{i}", x, dim)
    return g.op("Mul", f"{path}/Mul_2", [x, mask])


def embed(g, path, tts, ids, mask, vocab, dim):
    w = g.normal(f"{tts}.char_embedder.weight", (vocab, dim), 1.0)
    x = g.op("Gather", f"{path}/char_embedder/Gather", [w, ids], axis=0)
    x = g.op("Transpose", f"{path}/Transpose", [x], perm=[0, 2, 1])
    return g.op("Mul", f"{path}/Mul", [x, mask])


def split_heads(g, path, x, sizes, v0, i):
    """Split the channels, stack the heads in front: [B,T,C] -> [H,B,T,D]. i: 0=q 1=k 2=v."""
    h, sfx = sizes[1], "" if i == 0 else f"_{i}"
    parts = g.op("Split", f"{path}/Split{sfx}", [x, sizes[0]], n_out=h, axis=-1)
    un = [g.op("Unsqueeze", f"{path}/Unsqueeze" + (f"_{i * h + j}" if i * h + j else ""),
               [p, v0]) for j, p in enumerate(parts)]
    return g.op("Concat", f"{path}/Concat{sfx}", un, axis=0)


# ======================================================================================
# The four networks
# ======================================================================================
def duration_predictor(cfg, ver, vocab, seed):
    dp = cfg["dp"]
    se, pr = dp["sentence_encoder"], dp["predictor"]
    dim, S, T = se["char_emb_dim"], "/sentence_encoder", "tts.dp.sentence_encoder"
    g = Graph("dp", seed, constants_as_nodes=ver == 3)
    ids = g.input("text_ids", ["batch_size", "text_length"], np.int64)
    style = g.input("style_dp", ["batch_size", pr["n_style"], pr["style_dim"]])
    mask = g.input("text_mask", ["batch_size", 1, "text_length"])
    g.output("duration", ["Squeezeduration_dim_0"])

    v0, v1 = g.const(f"{S}/Constant_7_output_0", [0]), g.const(f"{S}/Constant_8_output_0", [1])
    v2, s0 = g.const(f"{S}/Constant_6_output_0", [2]), g.const("/predictor/Constant_2_output_0", 0)
    vm1 = g.const("/predictor/Constant_3_output_0", [-1])
    x = embed(g, f"{S}/text_embedder", f"{T}.text_embedder", ids, mask, vocab, dim)
    # learned sentence token and its mask are prepended
    m0 = g.op("Slice", f"{S}/Slice", [mask, v0, v1, v2, v1])
    ones = g.op("ConstantOfShape", f"{S}/ConstantOfShape_1", [g.op("Shape", f"{S}/Shape_2", [m0])],
                value=onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [1.0]))
    mask = g.op("Concat", f"{S}/Concat_2", [ones, mask], axis=2)
    b = g.op("Gather", f"{S}/Gather", [g.op("Shape", f"{S}/Shape", [x]), s0], axis=0)
    b = g.op("Unsqueeze", f"{S}/Unsqueeze", [b, v0])
    shape = g.op("Concat", f"{S}/Concat", [b, vm1, vm1], out=f"{S}/Reshape_output_0", axis=0)
    eq = g.op("Equal", f"{S}/Equal", [shape, g.const(f"{S}/Mul_output_0", [-1] * 3)])
    wh = g.op("Where", f"{S}/Where", [eq, g.const(f"{S}/ConstantOfShape_output_0", [1] * 3), shape])
    tok = g.op("Expand", f"{S}/Expand", [g.normal(f"{T}.sentence_token", (1, dim, 1), 1.0), wh])
    x = g.op("Concat", f"{S}/Concat_1", [tok, x], axis=2)

    cn = se["convnext"]
    for i, d in enumerate(cn["dilation_lst"]):
        x = convnext(g, f"{S}/convnext/convnext.{i}", f"{T}.convnext.convnext.{i}", x, mask,
                     dim, cn["intermediate_dim"], cn["ksz"], d)
    ae = se["attn_encoder"]
    c = dict(s0=s0, v0=v0, v1=v1, v2=v2, vm1=vm1, heads=v2 if ae["n_heads"] == 2 else None,
             f0=g.const(f"{S}/attn_encoder/attn_layers.0/Constant_87_output_0", 0.0, np.float32))
    y = attn_encoder(g, f"{S}/attn_encoder", f"{T}.attn_encoder", x, mask, ae, c)
    x = g.op("Add", f"{S}/Add", [y, x])
    x = g.op("Slice", f"{S}/Slice_1", [x, v0, v1, v2, v1])
    m0 = g.op("Slice", f"{S}/Slice_2", [mask, v0, v1, v2, v1])
    x = conv(g, f"{S}/proj_out/net", f"{T}.proj_out.net", x, se["proj_out"]["odim"], dim, bias=False)
    x = g.op("Mul", f"{S}/proj_out/Mul", [x, m0])

    def flat(t, sfx):
        n = g.op("Gather", f"/predictor/Gather{sfx}", [g.op("Shape", f"/predictor/Shape{sfx}", [t]), s0], axis=0)
        n = g.op("Unsqueeze", f"/predictor/Unsqueeze{sfx}", [n, v0])
        n = g.op("Concat", f"/predictor/Concat{sfx}", [n, vm1], axis=0)
        return g.op("Reshape", f"/predictor/Reshape{sfx}", [t, n])

    h = g.op("Concat", "/predictor/Concat_2", [flat(x, ""), flat(style, "_1")], axis=1)
    fin, hd = pr["sentence_dim"] + pr["n_style"] * pr["style_dim"], pr["hdim"]
    G = "tts.dp.predictor"
    h = g.op("Gemm", "/predictor/layers.0/Gemm",
             [h, g.normal(f"{G}.layers.0.weight", (hd, fin), 1.5 / math.sqrt(fin)),
              g.normal(f"{G}.layers.0.bias", (hd,), 0.1)], alpha=1.0, beta=1.0, transB=1)
    h = g.op("PRelu", "/predictor/activation/PRelu",
             [h, g.init(f"{G}.activation.weight", np.array([0.25], np.float32))])
    # the bias puts the median near 0.45 s for tiny models and 3.5 s for full-size ones
    bias = np.log(0.45 if dim < 64 else 3.5)
    h = g.op("Gemm", "/predictor/layers.1/Gemm",
             [h, g.normal(f"{G}.layers.1.weight", (1, hd), 0.8 / math.sqrt(hd)),
              g.init(f"{G}.layers.1.bias", np.array([bias], np.float32))],
             alpha=1.0, beta=1.0, transB=1)
    g.op("Squeeze", "/predictor/Squeeze", [g.op("Exp", "/predictor/Exp", [h]), v1], out="duration")
    return g.model()


def style_key(cfg, seed):
    """The learned style keys; the text encoder and the vector estimator use the same tensor."""
    st = cfg["ttl"]["style_encoder"]["style_token_layer"]
    a = Graph("style", seed).rng("style_key").standard_normal((1, st["n_style"], st["style_key_dim"]))
    return a.astype(np.float32)


def text_encoder(cfg, ver, vocab, seed):
    te, sp = cfg["ttl"]["text_encoder"], cfg["ttl"]["speech_prompted_text_encoder"]
    n_style = cfg["ttl"]["style_encoder"]["style_token_layer"]["n_style"]
    dim, E, T = te["text_embedder"]["char_emb_dim"], "/text_encoder", "tts.ttl.text_encoder"
    A, TA = "/speech_prompted_text_encoder", "tts.ttl.speech_prompted_text_encoder"
    g = Graph("te", seed, constants_as_nodes=ver == 3)
    ids = g.input("text_ids", ["batch_size", "text_length"], np.int64)
    style = g.input("style_ttl", ["batch_size", n_style, sp["style_dim"]])
    mask = g.input("text_mask", ["batch_size", 1, "text_length"])
    g.output("text_emb", ["Multext_emb_dim_0", dim, "Multext_emb_dim_2"])

    v0 = g.const(f"{A}/attention1/Constant_10_output_0", [0])
    f0 = g.const(f"{A}/attention1/Constant_11_output_0", 0.0, np.float32)
    x = embed(g, f"{E}/text_embedder", f"{T}.text_embedder", ids, mask, vocab, dim)
    cn = te["convnext"]
    for i, d in enumerate(cn["dilation_lst"]):
        x = convnext(g, f"{E}/convnext/convnext.{i}", f"{T}.convnext.convnext.{i}", x, mask,
                     dim, cn["intermediate_dim"], cn["ksz"], d)
    L0 = f"{E}/attn_encoder/attn_layers.0"
    c = dict(s0=g.const(f"{L0}/Constant_output_0", 0), v0=v0, f0=f0, heads=None,
             v1=g.const(f"{L0}/Constant_41_output_0", [1]),
             v2=g.const(f"{E}/attn_encoder/Constant_output_0", [2]),
             vm1=g.const(f"{E}/attn_encoder/Constant_1_output_0", [-1]))
    y = attn_encoder(g, f"{E}/attn_encoder", f"{T}.attn_encoder", x, mask, te["attn_encoder"], c)
    x = g.op("Add", f"{E}/Add", [y, x])
    x = g.op("Mul", f"{E}/proj_out/Mul", [x, mask])      # proj_out has no weights (idim == odim)

    # two style cross-attentions; keys are learned constants, values come from the voice
    units, heads = sp["n_units"], sp["n_heads"]
    d = units // heads
    x0 = g.op("Transpose", f"{A}/Transpose", [x], perm=[0, 2, 1])
    mt = g.op("Transpose", f"{A}/Transpose_1", [mask], perm=[0, 2, 1])
    sizes = (g.const(f"{A}/attention1/Constant_6_output_0", [d] * heads), heads)
    m4 = g.op("Unsqueeze", f"{A}/attention1/Unsqueeze_6", [mt, v0])
    eq = g.op("Equal", f"{A}/attention1/Equal", [m4, f0], out=f"{A}/attention2/Cast_output_0")
    one = g.const(f"{A}/attention1/Constant_13_output_0", [1] * heads)
    scale = g.const(f"{A}/attention1/Constant_9_output_0", math.sqrt(units), np.float32)
    skey = style_key(cfg, seed)
    if ver == 3:  # v3 keeps the key path alive: initializer -> Tile(B) -> W_key -> tanh
        sk = g.init("tts.ttl.style_encoder.style_token_layer.style_key", skey)
        nb = g.op("Gather", f"{A}/Gather", [g.op("Shape", f"{A}/Shape", [style]), c["s0"]], axis=0)
        nb = g.op("Unsqueeze", f"{A}/Unsqueeze", [nb, v0])
        nb = g.op("Concat", f"{A}/Concat", [nb, c["v1"], c["v1"]], axis=0)
        sk = g.op("Tile", f"{A}/Tile", [sk, nb])
    q_in = x0
    for n in (1, 2):
        B, TB = f"{A}/attention{n}", f"{TA}.attention{n}"
        num = (3678 if ver < 3 else 3680) + 4 * (n - 1)
        q = linear(g, f"{B}/W_query", f"{TB}.W_query", q_in, dim, units, num, 2.0)
        if ver == 3:
            kk = linear(g, f"{B}/W_key", f"{TB}.W_key", sk, sp["style_dim"], units, num + 1)
        v = linear(g, f"{B}/W_value", f"{TB}.W_value", style, sp["style_dim"], units, num + 2, 8.0)
        q = split_heads(g, B, q, sizes, v0, 0)
        if ver == 3:
            kk = split_heads(g, B, kk, sizes, v0, 1)
            kk = g.op("Transpose", f"{B}/Transpose", [kk], perm=[0, 1, 3, 2])
            kk = g.op("Tanh", f"{B}/tanh/Tanh", [kk])
        else:  # v1/v2: the same product, folded into one constant
            w = Graph("te", seed).rng(f"W_key{n}").standard_normal((sp["style_dim"], units))
            k_ = np.tanh(skey @ (w / math.sqrt(sp["style_dim"])).astype(np.float32))
            k_ = k_.reshape(1, n_style, heads, d).transpose(2, 0, 3, 1)
            kk = g.init(f"{B}/tanh/Tanh_output_0", k_.astype(np.float32))
        v = split_heads(g, B, v, sizes, v0, 2)
        s = g.op("Div", f"{B}/Div", [g.op("MatMul", f"{B}/MatMul", [q, kk]), scale])
        s = g.op("Softmax", f"{B}/Softmax", [s], axis=-1)
        s = g.op("Where", f"{B}/Where", [eq, f0, s])
        y = g.op("MatMul", f"{B}/MatMul_1", [s, v])
        y = g.op("Split", f"{B}/Split_3", [y, one], n_out=heads, axis=0)
        y = g.op("Concat", f"{B}/Concat_3", y, axis=-1)
        y = g.op("Squeeze", f"{B}/Squeeze", [y, v0])
        y = linear(g, f"{B}/out_fc", f"{TB}.out_fc", y, units, dim, num + 3)
        y = g.op("Mul", f"{B}/Mul", [y, mt])
        q_in = g.op("Add", f"{A}/Add" + ("_1" if n == 2 else ""), [y, x0])   # residual is x0 twice
    y = layer_norm(g, f"{A}/norm", f"{TA}.norm", q_in, dim, transpose_in=False)
    g.op("Mul", f"{A}/Mul", [y, mask], out="text_emb")
    return g.model()


def vector_estimator(cfg, ver, seed):
    vf = cfg["ttl"]["vector_field"]
    mb, tc = vf["main_blocks"], vf["main_blocks"]["text_cond_layer"]
    n_style = cfg["ttl"]["style_encoder"]["style_token_layer"]["n_style"]
    ch = cfg["ttl"]["latent_dim"] * cfg["ttl"]["chunk_compress_factor"]
    dim, tdim, heads = vf["proj_in"]["odim"], tc["text_dim"], tc["n_heads"]
    units = tc.get("n_units", tdim)
    sdim, time_dim = mb["style_cond_layer"]["style_dim"], vf["time_encoder"]["time_dim"]
    W = "/vector_estimator" if ver == 3 else ""             # v3 has one more module level
    V, T = f"{W}/vector_field", ("vector_estimator." if ver == 3 else "") + "tts.ttl.vector_field"
    g = Graph("ve", seed)
    x_in = g.input("noisy_latent", ["batch_size", ch, "latent_length"])
    text = g.input("text_emb", ["batch_size", tdim, "text_length"])
    style = g.input("style_ttl", ["batch_size", n_style, sdim])
    lmask = g.input("latent_mask", ["batch_size", 1, "latent_length"])
    tmask = g.input("text_mask", ["batch_size", 1, "text_length"])
    cur, tot = g.input("current_step", ["batch_size"]), g.input("total_step", ["batch_size"])
    g.output("denoised_latent", ["Muldenoised_latent_dim_0", ch, "Muldenoised_latent_dim_2"])

    A3 = f"{V}/main_blocks.3/attn"
    shift = 12 if ver == 3 else 0      # 8 heads unroll to 12 more constants before these
    v0 = g.const(f"{A3}/Constant_{40}_output_0" if ver < 3 else f"{W}/Constant_7_output_0", [0])
    v1 = g.const("/Constant_5_output_0" if ver < 3 else f"{W}/Constant_6_output_0", [1])
    vm1 = g.const(f"{V}/time_encoder/sinusoidal/Constant_output_0" if ver < 3
                  else f"{A3}/Constant_48_output_0", [-1])
    s0 = g.const("/Constant_2_output_0" if ver < 3 else f"{W}/Constant_output_0", 0)
    s1 = g.const(f"{A3}/Constant_{15 + shift}_output_0", 1)
    f0 = g.const(f"{A3}/Constant_{44 + shift}_output_0", 0.0, np.float32)
    m111 = g.const("/Constant_output_0", [-1, 1, 1])

    if ver < 3:
        nb = g.op("Gather", "/Gather", [g.op("Shape", "/Shape", [x_in]), s0], axis=0)
        nb = g.op("Unsqueeze", "/Unsqueeze_1", [nb, v0])
        nb = g.op("Concat", "/Concat_1", [nb, v1, v1], axis=0)
        key = g.op("Tile", "/Tile", [g.init("/Expand_output_0", style_key(cfg, seed)), nb])
        rt = g.op("Reshape", "/Reshape", [tot, m111])
        rc = g.op("Reshape", "/Reshape_1", [cur, m111])
        t = g.op("Div", "/Div", [rc, rt])
        step = g.op("Reciprocal", "/Reciprocal", [rt])
        x, txt, val, lm, tm = x_in, text, style, lmask, tmask
    else:
        t = g.op("Reshape", "/Reshape", [g.op("Div", "/Div", [cur, tot]), m111])
        step = g.op("Reshape", "/Reshape_1", [g.op("Reciprocal", "/Reciprocal", [tot]), m111])
        x, txt, key, val, lm, tm, t = cfg_rows(
            g, cfg, W, seed, x_in, text, style, lmask, tmask, t, s0, v0, v1, vm1)

    # ---- time embedding ----
    S = f"{V}/time_encoder/sinusoidal"
    half = time_dim // 2
    freqs = (10000.0 ** (-np.arange(half) / (half - 1))).astype(np.float32)[None]
    e = g.op("Unsqueeze", f"{S}/Unsqueeze", [g.op("Reshape", f"{S}/Reshape", [t, vm1]), v1])
    e = g.op("Mul", f"{S}/Mul", [e, g.const(f"{S}/Constant_2_output_0", 1000.0, np.float32)])
    e = g.op("Mul", f"{S}/Mul_1", [e, g.const(f"{S}/Constant_3_output_0", freqs, np.float32)])
    e = g.op("Concat", f"{S}/Concat", [g.op("Sin", f"{S}/Sin", [e]), g.op("Cos", f"{S}/Cos", [e])], axis=-1)
    M, TM, hid = f"{V}/time_encoder/mlp", f"{T}.time_encoder.mlp", vf["time_encoder"]["hdim"]

    def gemm(i, x, fin, fout):
        return g.op("Gemm", f"{M}/mlp.{i}/linear/Gemm",
                    [x, g.normal(f"{TM}.{i}.linear.weight", (fout, fin), 1.4 / math.sqrt(fin)),
                     g.normal(f"{TM}.{i}.linear.bias", (fout,), 0.1)], alpha=1.0, beta=1.0, transB=1)

    h = gemm(0, e, time_dim, hid)
    sp = g.op("Tanh", f"{M}/mlp.1/Tanh", [g.op("Softplus", f"{M}/mlp.1/Softplus", [h])])
    e = gemm(2, g.op("Mul", f"{M}/mlp.1/Mul", [h, sp]), hid, time_dim)
    e = g.op("Unsqueeze", f"{V}/time_encoder/Unsqueeze", [e, vm1])
    e = g.op("Transpose", f"{V}/main_blocks.1/Transpose", [e], perm=[0, 2, 1])

    # ---- tensors shared by all attention blocks ----
    tt = g.op("Transpose", f"{V}/main_blocks.3/Transpose_1", [txt], perm=[0, 2, 1])
    lt = g.op("Transpose", f"{V}/main_blocks.3/Transpose_2", [lm], perm=[0, 2, 1])
    mt = g.op("Transpose", f"{V}/main_blocks.3/Transpose_3", [tm], perm=[0, 2, 1])
    axes = g.const("onnx::ReduceSum_1279" if ver < 3 else "onnx::ReduceSum_1413", [1, 2])
    hd = units // heads
    half = hd // 2
    theta = (tc["rotary_scale"] * tc["rotary_base"] ** (-np.arange(half) / half)).astype(np.float32)
    theta = g.init(f"{T}.main_blocks.3.attn.theta", theta.reshape(1, 1, half))
    incr = g.init(f"{T}.main_blocks.3.attn.increments", np.arange(1000, dtype=np.int64).reshape(1, 1000, 1))

    def angles(mask_t, n, un, names):
        ln = g.op("ReduceSum", f"{A3}/ReduceSum{n}", [mask_t, axes], keepdims=0)
        ln = g.op("Reshape", f"{A3}/Reshape{n}", [ln, m111])
        cnt = g.op("Gather", f"{A3}/Gather{n}", [g.op("Shape", f"{A3}/Shape{n}", [mask_t]), s1], axis=0)
        cnt = g.op("Unsqueeze", f"{A3}/Unsqueeze_{un}", [cnt, v0])
        p = g.op("Slice", f"{A3}/{names[0]}", [incr, v0, cnt, v1, v1])
        p = g.op("Cast", f"{A3}/Cast{n}", [p], to=onnx.TensorProto.FLOAT)
        p = g.op("Div", f"{A3}/{names[1]}", [p, ln])
        p = g.op("Mul", f"{A3}/{names[2]}", [p, theta])
        return g.op("Cos", f"{A3}/Cos{n}", [p]), g.op("Sin", f"{A3}/Sin{n}", [p])

    u = 3 * heads
    q_rot = angles(lt, "", u, ("Slice", "Div", "Mul"))
    k_rot = angles(mt, "_1", u + 1, ("Slice_3", "Div_2", "Mul_7"))
    um = g.op("Unsqueeze", f"{A3}/Unsqueeze_{u + 2}", [mt, v0])
    ul = g.op("Unsqueeze", f"{A3}/Unsqueeze_{u + 3}", [lt, v0])
    n_b = mb["n_blocks"]
    key_eq = g.op("Equal", f"{A3}/Equal", [g.op("Transpose", f"{A3}/Transpose_1", [um], perm=[0, 1, 3, 2]), f0],
                  out=f"{V}/main_blocks.{6 * n_b - 3}/attn/Cast_2_output_0")
    qry_eq = g.op("Equal", f"{A3}/Equal_1", [ul, f0],
                  out=f"{V}/main_blocks.{6 * n_b - 1}/attention/Cast_output_0")
    # divisor: sqrt(text_dim), never sqrt(head_dim) nor sqrt(n_units)
    divisor = g.const(f"{A3}/Constant_{39 + shift}_output_0", math.sqrt(tdim), np.float32)
    neg = g.const(f"{A3}/Constant_{42 + shift}_output_0", -np.inf, np.float32)
    lo, hi = g.const(f"{A3}/Mul_8_output_0", [half]), g.const(f"{A3}/Mul_9_output_0", [hd])

    def rotate(P, x, rot, n):
        a = g.op("Slice", f"{P}/Slice_{n[0]}", [x, v0, lo, vm1])
        b = g.op("Slice", f"{P}/Slice_{n[0] + 1}", [x, lo, hi, vm1])
        ac, bs, as_, bc = (g.op("Mul", f"{P}/Mul_{n[1] + i}", [s, r]) for i, (s, r) in
                           enumerate(((a, rot[0]), (b, rot[1]), (a, rot[1]), (b, rot[0]))))
        return g.op("Concat", f"{P}/Concat_{n[2]}",
                    [g.op("Sub", f"{P}/Sub{n[3]}", [ac, bs]), g.op("Add", f"{P}/Add_{n[4]}", [as_, bc])], axis=-1)

    def text_attention(i, x, num):
        B, TB = f"{V}/main_blocks.{i}", f"{T}.main_blocks.{i}"
        P, TP = f"{B}/attn", f"{TB}.attn"
        x = g.op("Mul", f"{B}/Mul", [x, lm])
        xt = g.op("Transpose", f"{B}/Transpose", [x], perm=[0, 2, 1])
        q = linear(g, f"{P}/W_query", f"{TP}.W_query", xt, dim, units, num, 2.0)
        k = linear(g, f"{P}/W_key", f"{TP}.W_key", tt, tdim, units, num + 1, 2.0)
        v = linear(g, f"{P}/W_value", f"{TP}.W_value", tt, tdim, units, num + 2)
        if ver < 3:
            sizes = (g.const(f"{A3}/Constant_5_output_0", [hd] * heads), heads)
            q, k, v = (split_heads(g, P, t_, sizes, v0, j) for j, t_ in enumerate((q, k, v)))
        else:
            q, k, v = (webgpu_split(g, P, t_, heads, hd, j) for j, t_ in enumerate((q, k, v)))
        q = rotate(P, q, q_rot, (1, 3, 3, "", 1))
        k = rotate(P, k, k_rot, (4, 10, 4, "_1", 3))
        k = g.op("Transpose", f"{P}/Transpose", [k], perm=[0, 1, 3, 2])
        s = g.op("Div", f"{P}/Div_4", [g.op("MatMul", f"{P}/MatMul", [q, k]), divisor])
        s = g.op("Softmax", f"{P}/Softmax", [g.op("Where", f"{P}/Where", [key_eq, neg, s])], axis=-1)
        s = g.op("Where", f"{P}/Where_1", [qry_eq, f0, s])
        y = g.op("MatMul", f"{P}/MatMul_1", [s, v])
        if ver < 3:
            one = g.const(f"{A3}/Constant_46_output_0", [1] * heads)
            y = g.op("Concat", f"{P}/Concat_5", g.op("Split", f"{P}/Split_3", [y, one], n_out=heads, axis=0), axis=-1)
            y = g.op("Squeeze", f"{P}/Squeeze", [y, v0])
        else:
            y = webgpu_merge(g, P, y, units)
        y = linear(g, f"{P}/out_fc", f"{TP}.out_fc", y, units, dim, num + 9)
        y = g.op("Mul", f"{P}/Mul_14", [y, lt])
        y = g.op("Transpose", f"{B}/Transpose_{4 if i == 3 else 1}", [y], perm=[0, 2, 1])
        y = layer_norm(g, f"{B}/norm", f"{TB}.norm", g.op("Add", f"{B}/Add", [y, x]), dim)
        return g.op("Mul", f"{B}/Mul_1", [y, lm])

    def style_attention(i, x, num):
        B, TB = f"{V}/main_blocks.{i}", f"{T}.main_blocks.{i}"
        P, TP, h = f"{B}/attention", f"{TB}.attention", 2
        O = f"{V}/main_blocks.5/attention"
        sizes = (g.const(f"{O}/Constant_6_output_0", [sdim // h] * h), h)
        x = g.op("Mul", f"{B}/Mul", [x, lm])
        xt = g.op("Transpose", f"{B}/Transpose", [x], perm=[0, 2, 1])
        q = linear(g, f"{P}/W_query", f"{TP}.W_query", xt, dim, sdim, num, 2.0)
        k = linear(g, f"{P}/W_key", f"{TP}.W_key", key, sdim, sdim, num + 1)
        v = linear(g, f"{P}/W_value", f"{TP}.W_value", val, sdim, sdim, num + 2, 8.0)
        q, k, v = (split_heads(g, P, t_, sizes, v0, j) for j, t_ in enumerate((q, k, v)))
        k = g.op("Tanh", f"{P}/tanh/Tanh", [g.op("Transpose", f"{P}/Transpose", [k], perm=[0, 1, 3, 2])])
        scale = divisor if sdim == tdim else g.const(f"{O}/Constant_9_output_0", math.sqrt(sdim), np.float32)
        s = g.op("Div", f"{P}/Div", [g.op("MatMul", f"{P}/MatMul", [q, k]), scale])
        s = g.op("Where", f"{P}/Where", [qry_eq, f0, g.op("Softmax", f"{P}/Softmax", [s], axis=-1)])
        y = g.op("MatMul", f"{P}/MatMul_1", [s, v])
        one = g.const(f"{O}/Constant_11_output_0", [1] * h)
        y = g.op("Concat", f"{P}/Concat_3", g.op("Split", f"{P}/Split_3", [y, one], n_out=h, axis=0), axis=-1)
        y = g.op("Squeeze", f"{P}/Squeeze", [y, v0])
        y = linear(g, f"{P}/out_fc", f"{TP}.out_fc", y, sdim, dim, num + 3)
        y = g.op("Transpose", f"{B}/Transpose_1", [g.op("Mul", f"{P}/Mul", [y, lt])], perm=[0, 2, 1])
        y = layer_norm(g, f"{B}/norm", f"{TB}.norm", g.op("Add", f"{B}/Add", [y, x]), dim)
        return g.op("Mul", f"{B}/Mul_1", [y, lm])

    def stack(path, tts, x, c):
        for j, dl in enumerate(c["dilation_lst"]):
            x = convnext(g, f"{path}.{j}", f"{tts}.{j}", x, lm, dim, c["intermediate_dim"], c["ksz"], dl)
        return x

    x = conv(g, f"{V}/proj_in/net", f"{T}.proj_in.net", x, dim, ch, bias=False)
    x = g.op("Mul", f"{V}/proj_in/Mul", [x, lm])
    base = 3384 if ver == 3 else 3095
    for b in range(n_b):
        i, num = 6 * b, base + 45 * b
        blk = lambda j: (f"{V}/main_blocks.{i + j}/convnext", f"{T}.main_blocks.{i + j}.convnext")
        x = stack(*blk(0), x, mb["convnext_0"])
        L = f"{V}/main_blocks.{i + 1}"
        s = linear(g, f"{L}/linear", f"{T}.main_blocks.{i + 1}.linear", e, time_dim, dim, num)
        s = g.op("Transpose", f"{L}/Transpose" + ("_1" if b == 0 else ""), [s], perm=[0, 2, 1])
        x = g.op("Mul", f"{L}/Mul", [g.op("Add", f"{L}/Add", [x, s]), lm])
        x = stack(*blk(2), x, mb["convnext_1"])
        x = text_attention(i + 3, x, num + 6)
        x = stack(*blk(4), x, mb["convnext_2"])
        x = style_attention(i + 5, x, num + 21)
    x = stack(f"{V}/last_convnext/convnext", f"{T}.last_convnext.convnext", x, vf["last_convnext"])
    v = conv(g, f"{V}/proj_out/net", f"{T}.proj_out.net", x, ch, dim, bias=False, gain=0.6)
    v = g.op("Mul", f"{V}/proj_out/Mul", [v, lm])
    if ver < 3:
        y = g.op("Add", "/Add", [x_in, g.op("Mul", "/Mul", [step, v])])
        g.op("Mul", "/Mul_1", [y, lmask], out="denoised_latent")
        return g.model()
    # v3: guidance inside the graph, v = 4 * v_cond - 3 * v_uncond
    two = g.const(f"{W}/Constant_12_output_0", [2])
    half_b = g.op("Gather", "/Gather", [g.op("Shape", "/Shape", [v]), v0], axis=0)
    half_b = g.op("Div", "/Div_1", [g.op("Add", "/Add", [half_b, v1]), two])
    vc = g.op("Slice", "/Slice", [v, v0, half_b, v0])
    vu = g.op("Slice", "/Slice_1", [v, half_b, g.op("Mul", "/Mul", [half_b, two]), v0])
    vc = g.op("Mul", "/Mul_1", [vc, g.const("/Constant_3_output_0", 4.0, np.float32)])
    vu = g.op("Mul", "/Mul_2", [vu, g.const("/Constant_4_output_0", 3.0, np.float32)])
    v = g.op("Mul", "/Mul_3", [step, g.op("Sub", "/Sub", [vc, vu])])
    g.op("Mul", "/Mul_4", [g.op("Add", "/Add_1", [x_in, v]), lmask], out="denoised_latent")
    return g.model()


def cfg_rows(g, cfg, W, seed, x, text, style, lmask, tmask, t, s0, v0, v1, vm1):
    """v3: double the batch; rows 0..B-1 conditional, rows B..2B-1 unconditional."""
    um, TU = cfg["ttl"]["uncond_masker"], "vector_estimator.tts.ttl.uncond_masker"
    tok = {n: g.normal(f"{TU}.{n}_special_token", s, 1.0) for n, s in (
        ("text", (1, um["text_dim"], 1)),
        ("style_key", (1, um["n_style"], um["style_key_dim"])),
        ("style_value", (1, um["n_style"], um["style_value_dim"])))}
    rep2 = g.const("onnx::Tile_1065", [2, 1, 1])
    ones = g.const(f"{W}/ConstantOfShape_2_output_0", [1, 1, 1])
    neg = g.const(f"{W}/Mul_output_0", [-1, -1, -1])

    def dim_of(n_shape, src, n_gather, axis, n_un):
        sh = g.op("Shape", f"{W}/Shape{n_shape}", [src]) if isinstance(src, str) else src[0]
        d = g.op("Gather", f"{W}/Gather{n_gather}", [sh, axis], axis=0)
        return g.op("Unsqueeze", f"{W}/Unsqueeze{n_un}", [d, v0]), sh

    def expand(n, tensor, dims):
        """torch.expand with -1 for "keep": Concat, Equal, Where, Expand."""
        sh = g.op("Concat", f"{W}/Concat_{n}", dims, axis=0)
        eq = g.op("Equal", f"{W}/Equal_{n}", [sh, neg])
        return g.op("Expand", f"{W}/Expand_{n}", [tensor, g.op("Where", f"{W}/Where_{n}", [eq, ones, sh])])

    b, _ = dim_of("", x, "", s0, "")
    reps = g.op("Concat", f"{W}/Concat", [b, v1, v1], axis=0)
    key = g.op("Tile", f"{W}/Tile", [g.init(f"{W}/Expand_output_0", style_key(cfg, seed)), reps])
    bt, sh = dim_of("_3", text, "_1", s0, "_2")
    tl, _ = dim_of("_3", (sh,), "_2", g.const(f"{W}/Constant_10_output_0", 2), "_3")
    u_text = expand(1, tok["text"], [bt, vm1, tl])
    like = g.op("Shape", f"{W}/Shape_2", [g.op("Slice", f"{W}/Slice", [text, v0, v1, v1])])
    like = g.op("ConstantOfShape", f"{W}/ConstantOfShape_1", [like],
                value=onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [1.0]))
    u_text = g.op("Mul", f"{W}/Mul_1", [u_text, like])
    u_key = expand(2, tok["style_key"], [dim_of("_6", key, "_3", s0, "_4")[0], vm1, vm1])
    u_val = expand(3, tok["style_value"], [dim_of("_8", style, "_4", s0, "_5")[0], vm1, vm1])
    t = g.op("Expand", f"{W}/Expand_5", [t, reps])
    x2 = g.op("Tile", f"{W}/Tile_1", [x, rep2])
    t2 = g.op("Tile", f"{W}/Tile_2", [t, rep2])
    lm = g.op("Tile", f"{W}/Tile_3", [lmask, rep2])
    tm = g.op("Tile", f"{W}/Tile_4", [tmask, rep2])
    txt = g.op("Concat", f"{W}/Concat_5", [text, u_text], axis=0)
    key = g.op("Concat", f"{W}/Concat_6", [key, u_key], axis=0)
    val = g.op("Concat", f"{W}/Concat_7", [style, u_val], axis=0)
    return x2, txt, key, val, lm, tm, t2


def webgpu_split(g, P, x, heads, hd, i):
    """v3 splits heads by Reshape + Transpose: [B,T,C] -> [H,B,T,D]."""
    S = f"{P}/Split" + (f"_{i}" if i else "")
    sh = g.op("Shape", f"{S}/webgpu_shape", [x])
    sh = g.op("Slice", f"{S}/webgpu_slice_shape", [sh] + [
        g.const(f"{S}/webgpu_{n}", [v]) for n, v in (("starts", 0), ("ends", 2), ("axes", 0))])
    sh = g.op("Concat", f"{S}/webgpu_concat_shape", [sh, g.const(f"{S}/webgpu_head_shape", [heads, hd])], axis=0)
    x = g.op("Reshape", f"{S}/webgpu_reshape_heads", [x, sh])
    return g.op("Transpose", f"{S}/webgpu_transpose_heads", [x], perm=[2, 0, 1, 3])


def webgpu_merge(g, P, x, units):
    S = f"{P}/Split_3"
    sh = g.op("Shape", f"{S}/webgpu_shape", [x])
    sh = g.op("Slice", f"{S}/webgpu_slice_shape", [sh] + [
        g.const(f"{S}/webgpu_{n}", [v]) for n, v in (("starts", 1), ("ends", 3), ("axes", 0))])
    sh = g.op("Concat", f"{S}/webgpu_concat_shape", [sh, g.const(f"{S}/webgpu_width", [units])], axis=0)
    x = g.op("Transpose", f"{S}/webgpu_transpose_merge", [x], perm=[1, 2, 0, 3])
    return g.op("Reshape", f"{S}/webgpu_reshape_merge", [x, sh])


def vocoder(cfg, ver, seed):
    de, ttl = cfg["ae"]["decoder"], cfg["ttl"]
    hd, D, T = de["hdim"], "/decoder", "tts.ae.decoder"
    n = 1440 + (ver == 3)
    g = Graph("voc", seed, constants_as_nodes=ver == 3)
    x = g.input("latent", ["batch_size", ttl["latent_dim"] * ttl["chunk_compress_factor"], "latent_length"])
    g.output("wav_tts", ["Reshapewav_tts_dim_0", "Reshapewav_tts_dim_1"])
    s0 = g.const("/Constant_output_0", 0)
    v0, vm1 = g.const("/Constant_1_output_0", [0]), g.const("/Constant_2_output_0", [-1])
    scale = g.init("tts.ttl.normalizer.scale", np.array(ttl["normalizer"]["scale"], np.float32))
    # undo the ttl scaling, then un-chunk: [B, D*K, L] -> [B, D, L*K] with time = l*K + k
    x = g.op("Div", "/Div", [x, scale])
    sh = g.op("Shape", "/Shape", [x])
    b = g.op("Gather", "/Gather", [sh, s0], axis=0)
    l = g.op("Slice", "/Slice", [sh, vm1, g.const("/Constant_3_output_0", [INT_MAX]), v0])
    l = g.op("Squeeze", "/Squeeze", [l, v0])
    b, l = g.op("Unsqueeze", "/Unsqueeze", [b, v0]), g.op("Unsqueeze", "/Unsqueeze_1", [l, v0])
    sh = g.op("Concat", "/Concat", [b, vm1, g.const("/Constant_6_output_0", [ttl["chunk_compress_factor"]]), l], axis=0)
    x = g.op("Transpose", "/Transpose", [g.op("Reshape", "/Reshape", [x, sh])], perm=[0, 1, 3, 2])
    b = g.op("Gather", "/Gather_1", [g.op("Shape", "/Shape_2", [x]), s0], axis=0)
    b = g.op("Unsqueeze", "/Unsqueeze_2", [b, v0])
    sh = g.op("Concat", "/Concat_1", [b, g.const("/Unsqueeze_3_output_0", [de["idim"]]), vm1], axis=0)
    x = g.op("Reshape", "/Reshape_1", [x, sh])
    std = np.abs(g.rng("std").standard_normal((1, de["idim"], 1))) * 0.2 + 0.3
    x = g.op("Mul", "/Mul", [x, g.init("tts.ae.latent_std", std.astype(np.float32))])
    x = g.op("Add", "/Add", [x, g.normal("tts.ae.latent_mean", (1, de["idim"], 1), 0.3)])
    # stem, ConvNeXt stack, BatchNorm, head; all causal with replicated left edge
    x = edge_pad(g, f"{D}/embed", x, de["ksz_init"] - 1, 0)
    x = conv(g, f"{D}/embed/net", None, x, hd, de["idim"], de["ksz_init"],
             wname=(f"onnx::Conv_{n}", f"onnx::Conv_{n + 1}"))
    for i, d in enumerate(de["dilation_lst"]):
        x = convnext_causal(g, f"{D}/convnext.{i}", f"{T}.convnext.{i}", x, hd,
                            de["intermediate_dim"], de["ksz"], d)
    N = f"{T}.final_norm.norm"
    var = np.abs(g.rng("var").standard_normal(hd)) * 0.3 + 0.02      # small: a wrong epsilon shows
    x = g.op("BatchNormalization", f"{D}/final_norm/BatchNormalization",
             [x, g.normal(f"{N}.weight", (hd,), 0.1, 1.0), g.normal(f"{N}.bias", (hd,), 0.1),
              g.normal(f"{N}.running_mean", (hd,), 0.2), g.init(f"{N}.running_var", var.astype(np.float32))],
             epsilon=BN_EPS, momentum=0.9, training_mode=0)
    h = de["head"]
    x = edge_pad(g, f"{D}/head/layer1", x, h["ksz"] - 1, 0)
    x = conv(g, f"{D}/head/layer1/net", f"{T}.head.layer1.net", x, h["hdim"], h["idim"], h["ksz"])
    x = g.op("PRelu", f"{D}/head/act/PRelu",
             [x, g.init(f"onnx::PRelu_{n + 65}", np.array([[0.1]], np.float32))])
    x = conv(g, f"{D}/head/layer2", f"{T}.head.layer2", x, h["odim"], h["hdim"], bias=False, gain=0.04)
    x = g.op("Transpose", f"{D}/head/Transpose", [x], perm=[0, 2, 1])
    b = g.op("Gather", f"{D}/head/Gather", [g.op("Shape", f"{D}/head/Shape", [x]), s0], axis=0)
    b = g.op("Unsqueeze", f"{D}/head/Unsqueeze", [b, v0])
    g.op("Reshape", f"{D}/head/Reshape", [x, g.op("Concat", f"{D}/head/Concat", [b, vm1], axis=0)], out="wav_tts")
    return g.model()


# ======================================================================================
# Presets and the directory
# ======================================================================================
def set_chunk_factor(c, k):
    """The factor occurs throughout the config; that of ae is a different one."""
    for key, v in c.items():
        if key == "chunk_compress_factor":
            c[key] = k
        elif isinstance(v, dict):
            set_chunk_factor(v, k)


def shrink(cfg, v3):
    """Small dimensions; every number stays consistent with the real configs' relations."""
    c = copy.deepcopy(cfg)
    t, a, d = c["ttl"], c["ae"], c["dp"]
    ld, dim, td, units = 4, 24, 32, 64 if v3 else 32
    st = dict(n_style=10, style_key_dim=32, style_value_dim=32)
    t["latent_dim"] = ld
    for section in (t, d):
        set_chunk_factor(section, 5)
    te = t["text_encoder"]
    te["text_embedder"]["char_emb_dim"] = td
    dil = [1, 2, 4] if v3 else [1, 1, 1]
    te["convnext"].update(idim=td, intermediate_dim=48, num_layers=3, dilation_lst=dil)
    te["attn_encoder"].update(hidden_channels=td, filter_channels=48, n_heads=4, n_layers=2)
    te["proj_out"].update(idim=td, odim=td)
    t["style_encoder"]["proj_in"].update(ldim=ld, odim=32)
    t["style_encoder"]["convnext"].update(idim=32, intermediate_dim=64)
    t["style_encoder"]["style_token_layer"].update(input_dim=32, prototype_dim=32, n_units=32, **st)
    t["speech_prompted_text_encoder"].update(text_dim=td, style_dim=32, n_units=32)
    t["uncond_masker"].update(text_dim=td, **st)
    v = t["vector_field"]
    v["proj_in"].update(ldim=ld, odim=dim)
    v["proj_out"].update(ldim=ld, idim=dim)
    v["time_encoder"].update(time_dim=16, hdim=32)
    m = v["main_blocks"]
    m["n_blocks"] = 2
    m["time_cond_layer"].update(idim=dim, time_dim=16)
    m["style_cond_layer"].update(idim=dim, style_dim=32)
    m["text_cond_layer"].update(idim=dim, text_dim=td, n_heads=4 if v3 else 2)
    if v3:
        m["text_cond_layer"]["n_units"] = units
    for k in ("convnext_0", "convnext_1", "convnext_2"):
        m[k].update(idim=dim, intermediate_dim=40)
    v["last_convnext"].update(idim=dim, intermediate_dim=40, num_layers=2, dilation_lst=[1, 1])
    a.update(sample_rate=8000, base_chunk_size=64, ldim=ld)
    a["encoder"].update(hdim=16, odim=ld)
    a["decoder"].update(num_layers=4, dilation_lst=[1, 2, 4, 1], intermediate_dim=40, idim=ld, hdim=16)
    a["decoder"]["head"].update(idim=16, hdim=72, odim=64)
    d["latent_dim"] = ld
    se = d["sentence_encoder"]
    se["char_emb_dim"] = se["text_embedder"]["char_emb_dim"] = 16
    se["convnext"].update(idim=16, intermediate_dim=32, num_layers=2, dilation_lst=[1, 1])
    se["attn_encoder"].update(hidden_channels=16, filter_channels=32)
    se["proj_out"].update(idim=16, odim=16)
    d["style_encoder"]["style_token_layer"].update(n_style=4, style_value_dim=8)
    d["predictor"].update(sentence_dim=16, n_style=4, style_dim=8, hdim=24)
    return c


def random_voice(cfg, seed, name):
    """Rows of unit L2 norm, like the official voices."""
    def rows(key, n, d):
        a = Graph("voice", seed).rng(f"{name}:{key}").standard_normal((1, n, d))
        a = (a / np.linalg.norm(a, axis=-1, keepdims=True)).astype(np.float32)
        return dict(data=a.tolist(), dims=[1, n, d], type="float32")
    sp, pr = cfg["ttl"]["speech_prompted_text_encoder"], cfg["dp"]["predictor"]
    n = cfg["ttl"]["style_encoder"]["style_token_layer"]["n_style"]
    return dict(style_ttl=rows("ttl", n, sp["style_dim"]), style_dp=rows("dp", pr["n_style"], pr["style_dim"]),
                metadata=dict(source_file=f"{name}.wav", note="random"))


def build(preset, out, seed):
    ver = {"tiny": 2, "tiny1": 1, "tiny3": 3, "v2-full": 2, "v3-full": 3}[preset]
    assets = HERE / "assets" / ("v3" if ver == 3 else "v2")
    cfg = json.loads((assets / "tts.json").read_text())
    indexer = json.loads((assets / "unicode_indexer.json").read_text())
    full = preset.endswith("full")
    if not full:
        cfg = shrink(cfg, ver == 3)
    if ver == 1:   # no v1 file is available: keep ASCII letters/digits/punctuation, drop < > /
        cfg.update(tts_version="v1.5.0", split="opensource-en")
        keep = [i for i, v in enumerate(indexer) if v >= 0 and i < 127 and chr(i) not in "<>/"]
        indexer = [-1] * len(indexer)
        for n, i in enumerate(keep):
            indexer[i] = n
    if preset == "tiny3":   # 8321 characters would be most of the file: keep those that the samples need
        text = json.loads((HERE / "samples.json").read_text())
        used = {ord(c) for t in text["languages"].values() for c in unicodedata.normalize("NFKD", t)} | set(range(127))
        known = sorted((v, i) for i, v in enumerate(indexer) if v >= 0 and i in used)
        indexer = [-1] * len(indexer)
        for n, (_, i) in enumerate(known):
            indexer[i] = n
    if not full:   # a list may end early: what is past its end is unknown
        indexer = indexer[:max(i for i, v in enumerate(indexer) if v >= 0) + 1]
    vocab = max(indexer) + 2     # one spare last row (163 in v2, 8322 in v3): index -1 lands there
    models = dict(duration_predictor=duration_predictor(cfg, ver, vocab, seed),
                  text_encoder=text_encoder(cfg, ver, vocab, seed),
                  vector_estimator=vector_estimator(cfg, ver, seed),
                  vocoder=vocoder(cfg, ver, seed))
    out = Path(out)
    (out / "onnx").mkdir(parents=True, exist_ok=True)
    (out / "voice_styles").mkdir(exist_ok=True)
    for name, m in models.items():
        onnx.save(m, out / "onnx" / f"{name}.onnx")
    (out / "onnx" / "tts.json").write_text(json.dumps(cfg, separators=COMPACT))
    (out / "onnx" / "unicode_indexer.json").write_text(json.dumps(indexer, separators=COMPACT))
    for name in ("F1", "M1"):
        if full:
            shutil.copyfile(assets / "voice_styles" / f"{name}.json", out / "voice_styles" / f"{name}.json")
        else:
            (out / "voice_styles" / f"{name}.json").write_text(json.dumps(random_voice(cfg, seed, name), separators=COMPACT))
    for name, m in models.items():
        n = sum(int(np.prod(i.dims)) for i in m.graph.initializer if i.data_type == onnx.TensorProto.FLOAT)
        print(f"{preset:8s} {name:20s} nodes {len(m.graph.node):5d}  float params {n:>11,}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--preset", required=True, choices=["tiny", "tiny1", "tiny3", "v2-full", "v3-full"])
    ap.add_argument("--out", required=True)
    ap.add_argument("--seed", type=int, default=1234)
    a = ap.parse_args()
    build(a.preset, a.out, a.seed)
