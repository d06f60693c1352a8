"""Reduces the complete goldens to what the cloning tests read.

    python3 trim_cloning.py COMPLETE_GOLDEN golden

Tensors keep their bytes; safetensors files are read and written here, so only NumPy is needed.
"""

import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np


def read(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for name, t in header.items()}


def write(path, tensors):
    header, body = {}, b""
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def ends(tensor, columns):
    """The first and last columns."""
    dtype, (rows, _), data = tensor
    x = np.frombuffer(data, "<f4").reshape(rows, -1)
    kept = np.concatenate([x[:, :columns], x[:, -columns:]], axis=1)
    return dtype, list(kept.shape), kept.tobytes()


def is_read(name):
    """Whether the codec encoder reads a tensor: no training flags, no decoder, only fifteen codebooks of the second quantizer."""
    if not name.startswith("encoder.") or name.endswith(("initialized", "output_proj.weight")):
        return False
    book = name.split("acoustic_residual_vector_quantizer.layers.")
    return len(book) == 1 or int(book[1].split(".")[0]) < 15


complete, golden = map(Path, sys.argv[1:])
base = "checkpoints/tiny-base"
model = read(complete / base / "model.safetensors")
write(golden / base / "speaker_encoder.safetensors", {n: t for n, t in model.items() if n.startswith("speaker_encoder.")})
codec = read(complete / base / "speech_tokenizer/model.safetensors")
write(golden / base / "speech_tokenizer/encoder.safetensors", {n: t for n, t in codec.items() if is_read(n)})
shutil.copyfile(complete / "cases/ref.wav", golden / "cases/ref.wav")
encode = read(complete / "cases/codec_encode.safetensors")
write(golden / "cases/codec_encode.safetensors", {n: t for n, t in encode.items() if n != "wav"})
speaker = read(complete / "cases/speaker_encoder.safetensors")
kept = {n: ends(t, 32) if n in ("log_mel", "mfa") else t for n, t in speaker.items() if n != "wav"}
write(golden / "cases/speaker_encoder.safetensors", kept)
