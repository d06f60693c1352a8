#!/usr/bin/env python3
"""Run a Supertonic model directory through onnxruntime and write reference tensors.

    python dump_golden.py --model golden/tiny  --version 2
    python dump_golden.py --model golden/tiny3 --version 3 --check     # compare, write nothing
    python dump_golden.py --model golden/tiny --version 2 --trim       # what is committed: fewer cases
    python dump_golden.py --text                                      # text front end only

Writes golden.safetensors and golden.json next to the model's onnx folder (or into --out).
Tensor names are "<case>/<what>"; golden.json lists every case and how it was made.
--check recomputes the cases that are stored, so it works for a trimmed set too.
"""
import argparse
import fnmatch
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from safetensors.numpy import load_file, save_file

import text_frontend as tf

HERE = Path(__file__).resolve().parent
STAGES = ("duration_predictor", "text_encoder", "vector_estimator", "vocoder")
TRIMMED = "main,batch,unknown_ids,long,shortest,one_step,eight_steps"
TOLERANCE = 2e-5     # float32 rounding between onnxruntime builds; relative to max|reference|


# ---- taps: intermediate tensors, named after the modules that make them -----------------
def taps(cfg):
    """Stage -> {tap name: suffix of the node whose first output is recorded}."""
    se, te, vf = cfg["dp"]["sentence_encoder"], cfg["ttl"]["text_encoder"], cfg["ttl"]["vector_field"]
    S, E, D = "/sentence_encoder", "/text_encoder", "/decoder"
    A, V = "/speech_prompted_text_encoder", "/vector_field"
    n = lambda c: range(c["num_layers"])
    layers = lambda c: range(c["n_layers"])
    t = {s: {} for s in STAGES}
    t["duration_predictor"] = {
        "embed_with_sentence_token": f"{S}/Concat_1",
        **{f"convnext.{i}": f"{S}/convnext/convnext.{i}/Mul_3" for i in n(se["convnext"])},
        **{f"attn_layer.{i}": f"{S}/attn_encoder/norm_layers_2.{i}/Transpose_1" for i in layers(se["attn_encoder"])},
        "sentence": f"{S}/proj_out/Mul", "mlp_hidden": "/predictor/activation/PRelu"}
    t["text_encoder"] = {
        "embed": f"{E}/text_embedder/Mul",
        **{f"convnext.{i}": f"{E}/convnext/convnext.{i}/Mul_3" for i in n(te["convnext"])},
        "attn_layer.0.self_attention": f"{E}/attn_encoder/attn_layers.0/conv_o/Conv",
        **{f"attn_layer.{i}": f"{E}/attn_encoder/norm_layers_2.{i}/Transpose_1" for i in layers(te["attn_encoder"])},
        "encoder_out": f"{E}/proj_out/Mul",
        "style_attention.1": f"{A}/attention1/Mul", "style_attention.2": f"{A}/attention2/Mul"}
    ve = {"time_embedding": f"{V}/time_encoder/mlp/mlp.2/linear/Gemm", "proj_in": f"{V}/proj_in/Mul",
          "rotated_query": f"{V}/main_blocks.3/attn/Concat_3", "rotated_key": f"{V}/main_blocks.3/attn/Concat_4",
          "text_probs": f"{V}/main_blocks.3/attn/Where_1", "style_probs": f"{V}/main_blocks.5/attention/Where"}
    mb = vf["main_blocks"]
    for b in range(mb["n_blocks"]):
        i = 6 * b
        ve |= {f"main_blocks.{i}": f"{V}/main_blocks.{i}/convnext.{mb['convnext_0']['num_layers'] - 1}/Mul_3",
               f"main_blocks.{i + 1}": f"{V}/main_blocks.{i + 1}/Mul",
               f"main_blocks.{i + 2}": f"{V}/main_blocks.{i + 2}/convnext.0/Mul_3",
               f"main_blocks.{i + 3}": f"{V}/main_blocks.{i + 3}/Mul_1",
               f"main_blocks.{i + 4}": f"{V}/main_blocks.{i + 4}/convnext.0/Mul_3",
               f"main_blocks.{i + 5}": f"{V}/main_blocks.{i + 5}/Mul_1"}
    for i in n(vf["last_convnext"]):
        ve[f"last_convnext.{i}"] = f"{V}/last_convnext/convnext.{i}/Mul_3"
    t["vector_estimator"] = {**ve, "velocity": f"{V}/proj_out/Mul"}     # v3: rows B.. are unconditional
    t["vocoder"] = {
        "denormalised": "/Add", "embed": f"{D}/embed/net/Conv",
        **{f"convnext.{i}": f"{D}/convnext.{i}/Add" for i in n(cfg["ae"]["decoder"])},
        "final_norm": f"{D}/final_norm/BatchNormalization", "head_act": f"{D}/head/act/PRelu"}
    return t


class Models:
    def __init__(self, model_dir):
        self.dir = Path(model_dir)
        self.cfg = json.loads((self.dir / "onnx" / "tts.json").read_text())
        self.indexer = json.loads((self.dir / "onnx" / "unicode_indexer.json").read_text())
        self.plain = {s: self.session((self.dir / "onnx" / f"{s}.onnx").read_bytes()) for s in STAGES}

    @staticmethod
    def session(model_bytes):
        o = ort.SessionOptions()
        o.intra_op_num_threads = o.inter_op_num_threads = 1
        return ort.InferenceSession(model_bytes, o, providers=["CPUExecutionProvider"])

    def run(self, stage, **feed):
        return self.plain[stage].run(None, feed)[0]

    def run_tapped(self, stage, **feed):
        """All tapped tensors of one stage, from a copy of the graph with additional outputs."""
        m = onnx.load(self.dir / "onnx" / f"{stage}.onnx")
        wanted = taps(self.cfg)[stage]
        found = {}
        for tap, node in wanted.items():
            names = {node, "/vector_estimator" + node} if stage == "vector_estimator" else {node}
            found[tap] = next(x.output[0] for x in m.graph.node if x.name in names)
            m.graph.output.append(onnx.ValueInfoProto(name=found[tap]))
        values = self.session(m.SerializeToString()).run(list(found.values()), feed)
        return dict(zip(found, values))

    def voice(self, name):
        v = json.loads((self.dir / "voice_styles" / f"{name}.json").read_text())
        return {k: np.array(v[k]["data"], np.float32).reshape(v[k]["dims"]) for k in ("style_ttl", "style_dp")}


def mask_of(lengths):
    lengths = np.asarray(lengths)
    return (np.arange(lengths.max())[None] < lengths[:, None]).astype(np.float32)[:, None]


# ---- one utterance -----------------------------------------------------------------------
def synthesise(m, out, name, ids, styles, speed, steps, seed, tapped=False):
    """ids: one list per batch row. Stores every boundary tensor under `name/` and returns a summary."""
    ae, ttl = m.cfg["ae"], m.cfg["ttl"]
    rate, chunk = ae["sample_rate"], ae["base_chunk_size"] * ttl["chunk_compress_factor"]
    tmask = mask_of([len(i) for i in ids])
    tokens = np.zeros((len(ids), tmask.shape[2]), np.int64)
    for row, i in zip(tokens, ids):
        row[:len(i)] = i
    ttl_s = np.concatenate([m.voice(s)["style_ttl"] for s in styles])
    dp_s = np.concatenate([m.voice(s)["style_dp"] for s in styles])

    feeds = {"duration_predictor": dict(text_ids=tokens, style_dp=dp_s, text_mask=tmask),
             "text_encoder": dict(text_ids=tokens, style_ttl=ttl_s, text_mask=tmask)}
    raw = m.run("duration_predictor", **feeds["duration_predictor"])
    dur = raw / np.asarray(speed, np.float32)
    samples = (dur * rate).astype(np.int64)                          # float32 product, truncated
    lengths = (samples + chunk - 1) // chunk
    lmask = mask_of(lengths)
    emb = m.run("text_encoder", **feeds["text_encoder"])
    noise = np.random.RandomState(seed).randn(len(ids), ttl["latent_dim"] * ttl["chunk_compress_factor"], lengths.max())
    x = noise.astype(np.float32) * lmask
    put = lambda k, v: out.__setitem__(f"{name}/{k}", np.ascontiguousarray(v))
    for k, v in (("text_ids", tokens), ("text_mask", tmask), ("style_ttl", ttl_s), ("style_dp", dp_s),
                 ("duration_raw", raw), ("duration", dur), ("text_emb", emb), ("latent_mask", lmask), ("latent.0", x)):
        put(k, v)
    total = np.full(len(ids), steps, np.float32)
    for s in range(steps):
        feed = dict(noisy_latent=x, text_emb=emb, style_ttl=ttl_s, latent_mask=lmask, text_mask=tmask,
                    current_step=np.full(len(ids), s, np.float32), total_step=total)
        feeds.setdefault("vector_estimator", feed)                   # taps look at step 0
        x = m.run("vector_estimator", **feed)
        put(f"latent.{s + 1}", x)
    feeds["vocoder"] = dict(latent=x)
    wav = m.run("vocoder", **feeds["vocoder"])
    put("wav", wav)
    if tapped:
        for stage in STAGES:
            for k, v in m.run_tapped(stage, **feeds[stage]).items():
                put(f"{stage}/{k}", v)
    return dict(speed=speed, steps=steps, noise_seed=seed, voices=styles, text_length=[len(i) for i in ids],
                samples_from_duration=samples.tolist(), latent_length=lengths.tolist(), wav_samples=wav.shape[1])


def run_cases(m, version, samples, wanted=lambda name: True):
    """All selected cases of one model."""
    out, cases, lang = {}, {}, samples["languages"]
    tok = lambda text, l: tf.token_ids(tf.prepare(text, version, l), m.indexer)

    def case(name, rows, styles, speed=1.05, steps=5, seed=0, tapped=False, **info):
        """rows: (text, language) pairs, or ready id lists."""
        if not wanted(name):
            return
        ids = [r if isinstance(r, list) else tok(*r) for r in rows]
        text = [None if isinstance(r, list) else dict(text=r[0], lang=r[1], prepared=tf.prepare(r[0], version, r[1])) for r in rows]
        cases[name] = dict(rows=text, **info, **synthesise(m, out, name, ids, styles, speed, steps, seed, tapped))

    en = lang["en"]
    case("main", [(en, "en")], ["F1"], tapped=True, note="with intermediates; vector estimator taps are of step 0")
    case("slow", [(en, "en")], ["M1"], speed=0.7, steps=2, seed=1)
    case("one_step", [(en, "en")], ["M1"], speed=2.0, steps=1, seed=2)
    case("eight_steps", [(en, "en")], ["F1"], steps=8, seed=3)
    case("shortest", [("", "en")], ["F1"], speed=2.0, steps=2, seed=4, note="empty text becomes a full stop")
    case("unknown_ids", [[tok("a b", "en")[0], -1, -1, tok("a b", "en")[1]]], ["F1"], steps=2, seed=5,
         note="id -1 reads the last embedding row")
    case("batch", [(en, "en"), ("Tea.", "en")], ["F1", "M1"], speed=[1.05, 1.6], steps=3, seed=6,
         note="two rows of unequal length (one speed per row): masks matter; row 1 differs from a run on its own")
    for n, l in enumerate(l for l in tf.LANGUAGES[version] if l != "en"):
        case(f"lang_{l}", [(lang[l], l)], ["F1"], steps=2, seed=100 + n)

    # long text: chunks, silence between them
    if not wanted("long"):
        return out, cases
    text = "One two three. Four five six! Seven eight nine? Ten.\n\nA new paragraph."
    parts, wav, rate = tf.chunks(text, 40), [], m.cfg["ae"]["sample_rate"]
    gap = np.zeros((1, int(tf.SILENCE_S * rate)), np.float32)
    dur = 0.0
    for n, p in enumerate(parts):
        case(f"long.{n}", [(p, "en")], ["M1"], steps=2, seed=20 + n)
        wav += [gap] * (n > 0) + [out[f"long.{n}/wav"]]
        dur += float(out[f"long.{n}/duration"][0]) + tf.SILENCE_S * (n > 0)
    out["long/wav"] = np.concatenate(wav, 1)
    cases["long"] = dict(text=text, max_chars=40, chunks=parts, silence_s=tf.SILENCE_S, silence_samples=gap.shape[1],
                         reported_duration_s=dur, note="joined as the pip package does: chunks are not trimmed")
    return out, cases


# ---- text only ---------------------------------------------------------------------------
def text_golden(samples):
    ix = {v: json.loads((HERE / "assets" / f"v{v}" / "unicode_indexer.json").read_text()) for v in (2, 3)}

    def entry(text, v, lang):
        p = tf.prepare(text, v, lang)
        return dict(version=v, lang=lang, text=text, prepared=p, ids=tf.token_ids(p, ix[v]),
                    unsupported=tf.unsupported(text, ix[v]))
    return dict(
        note="Ids use the real indexers of versions 2 and 3. `unsupported`: characters the pip package refuses.",
        languages=[entry(samples["languages"][l], v, l) for v in (2, 3) for l in tf.LANGUAGES[v]],
        normalise=[dict(text=t, normalised=tf.normalise(t), ids={str(v): tf.token_ids(tf.prepare(t, v, "en"), ix[v]) for v in (2, 3)})
                   for t in samples["normalise"]],
        chunk=[dict(c, chunks=tf.chunks(c["text"], c["max_chars"])) for c in samples["chunk"]])


def compare(old, new):
    bad = sorted(set(old) ^ set(new))
    for k in set(old) & set(new):
        a, b = old[k].astype(np.float64), new[k].astype(np.float64)
        if a.shape != b.shape or np.abs(a - b).max(initial=0) > TOLERANCE * max(1.0, np.abs(a).max(initial=0)):
            bad.append(k)
    print(f"{len(new)} tensors compared, {len(bad)} differ", *bad[:20])
    return not bad


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", help="model directory written by make_model.py")
    ap.add_argument("--version", type=int, choices=(1, 2, 3), default=2)
    ap.add_argument("--out", help="where to write; default: the model directory")
    ap.add_argument("--check", action="store_true", help="compare with the stored tensors instead of writing")
    ap.add_argument("--cases", help='only these, comma-separated, with wildcards ("main,lang_*"); "long" brings its chunks')
    ap.add_argument("--trim", dest="cases", action="store_const", const=TRIMMED, help=f"--cases {TRIMMED}")
    ap.add_argument("--text", action="store_true", help="write golden/text.json")
    a = ap.parse_args()
    samples = json.loads((HERE / "samples.json").read_text())
    if a.text:
        doc = json.dumps(text_golden(samples), ensure_ascii=False, indent=1)
        path = HERE / "golden" / "text.json"
        if a.check:
            sys.exit(0 if path.read_text() == doc else "golden/text.json differs")
        path.parent.mkdir(exist_ok=True)
        path.write_text(doc)
        return
    m = Models(a.model)
    out, patterns = Path(a.out or a.model), a.cases.split(",") if a.cases else ["*"]
    if a.check and not a.cases:
        patterns = list(json.loads((out / "golden.json").read_text())["cases"])
    if "long" in patterns:
        patterns.append("long.*")
    tensors, cases = run_cases(m, a.version, samples, lambda name: any(fnmatch.fnmatchcase(name, p) for p in patterns))
    if a.check:
        stored = {k: v for k, v in load_file(out / "golden.safetensors").items() if not a.cases or k.split("/")[0] in cases}
        sys.exit(0 if compare(stored, tensors) else 1)
    save_file(tensors, out / "golden.safetensors")
    info = dict(format=1, version=a.version, model=Path(a.model).name, onnxruntime=ort.__version__, numpy=np.__version__,
                noise="numpy.random.RandomState(noise_seed).randn(B, C, L) as float32, times latent_mask; stored as latent.0",
                cases=cases, tensors={k: dict(dtype=str(v.dtype), shape=list(v.shape), max_abs=float(np.abs(v).max(initial=0)))
                                      for k, v in sorted(tensors.items())})
    (out / "golden.json").write_text(json.dumps(info, ensure_ascii=False, separators=(",", ":")))
    print(f"{len(tensors)} tensors, {sum(v.nbytes for v in tensors.values()) / 1e6:.2f} MB, {len(cases)} cases -> {out}")


if __name__ == "__main__":
    main()
