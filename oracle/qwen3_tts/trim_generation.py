"""Reduces the complete goldens to what the committed generation test reads.

    python3 trim_generation.py COMPLETE_GOLDEN_FOLDER golden

Writes `checkpoints/tiny-base/generation.safetensors`: the code predictor, the text projection, and from each embedding
table the rows that the chosen utterances read (`<name>.rows` are their indices). Writes
`cases/tiny-base/generation/<case>.safetensors`: all tensors of an utterance, with logits of the first and the last step
only (`steps`), and its arguments as `<case>.json`. Also writes the files by which `orate verify` finds these:
`checkpoints/tiny-base/trimmed.json` and `cases/manifest.json`. Needs only the standard library.
"""
import json
import struct
import sys
from pathlib import Path

WEIGHTS = ["talker.safetensors", "generation.safetensors", "speaker_encoder.safetensors",
           "speech_tokenizer/decoder.safetensors", "speech_tokenizer/encoder.safetensors"]
NETWORKS = ["sampling_chain", "speaker_encoder", "codec_encode", "codec_decode", "codec_decode_long"]
CASES = ["xvector_streaming", "icl_streaming_text_longer"]
SIZES = {"F32": 4, "BF16": 2, "I64": 8, "I32": 4}


def read(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    body = data[8 + n:]
    return {name: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])])
            for name, t in header.items() if name != "__metadata__"}


def write(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def integers(tensor):
    dtype, _, data = tensor
    return [x[0] for x in struct.iter_unpack({"I64": "<q", "I32": "<i"}[dtype], data)]


def rows(tensor, numbers):
    dtype, shape, data = tensor
    size = len(data) // shape[0]
    return dtype, [len(numbers), *shape[1:]], b"".join(data[n * size:(n + 1) * size] for n in numbers)


def main(complete, out):
    manifest = json.loads((complete / "cases/manifest.json").read_text())
    config = json.loads((complete / "checkpoints/tiny-base/config.json").read_text())
    talker = config["talker_config"]
    model = read(complete / "checkpoints/tiny-base/model.safetensors")
    text = {config[f"tts_{k}_token_id"] for k in ("pad", "bos", "eos")}
    codec = {v for k, v in talker.items() if k.startswith("codec_") and k.endswith("_id") and isinstance(v, int)}
    codec |= set(talker["codec_language_id"].values())
    books = [set() for _ in range(15)]
    for name in CASES:
        case = read(complete / f"cases/tiny-base/{name}.safetensors")
        for key in ("input_ids", "ref_ids"):
            text |= set(integers(case[key])) if key in case else set()
        codec |= set(integers(case["talker_tokens"]))
        for key in ("codes", "ref_codes"):
            codes = integers(case[key]) if key in case else []
            codec |= set(codes[::16])
            for book in range(15):
                books[book] |= set(codes[book + 1::16])
        steps = [0, case["talker_logits"][1][0] - 1]
        frames = [0, case["codes"][1][0] - 1]
        for key, kept in (("talker_logits", steps), ("predictor_logits", frames)):
            case[key] = rows(case[key], kept)
            case[f"{key}.steps"] = ("I32", [2], struct.pack("<2i", *kept))
        drop = [key for key in case if "layer" in key or key == "waveform"]
        for key in drop:
            del case[key]
        folder = out / "cases/tiny-base/generation"
        write(folder / f"{name}.safetensors", case)
        inputs = manifest[f"tiny-base/{name}"]["inputs"]
        (folder / f"{name}.json").write_text(json.dumps(inputs, ensure_ascii=False, indent=1) + "\n")

    cases = {"tokenizer": {"file": "tokenizer.json"}}
    cases |= {name: {"inputs": manifest[name]["inputs"]} for name in NETWORKS}
    for name in CASES:
        inputs = manifest[f"tiny-base/{name}"]["inputs"]
        cases[f"tiny-base/{name}"] = {"file": f"tiny-base/generation/{name}.safetensors", "inputs": inputs}
    (out / "cases/manifest.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")

    kept = {name: t for name, t in model.items()
            if name.startswith("talker.code_predictor.") and "codec_embedding" not in name
            or name.startswith("talker.text_projection.")}
    tables = {"talker.model.text_embedding.weight": text, "talker.model.codec_embedding.weight": codec}
    tables |= {f"talker.code_predictor.model.codec_embedding.{i}.weight": b for i, b in enumerate(books)}
    for name, used in tables.items():
        used = sorted(used)
        kept[name] = rows(model[name], used)
        kept[f"{name}.rows"] = ("I32", [len(used)], struct.pack(f"<{len(used)}i", *used))
    write(out / "checkpoints/tiny-base/generation.safetensors", kept)
    weights = json.dumps({"weights": WEIGHTS}, indent=1) + "\n"
    (out / "checkpoints/tiny-base/trimmed.json").write_text(weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
