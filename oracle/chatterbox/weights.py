"""Weights as formulas, and listings of them: what `golden/checkpoints` has in place of 3 GB of numbers.

Element i of a tensor is `base + scale * r_i`, where r_i is uniform with mean 0 and variance 1:
    key    = FNV-1a (64 bits) of the text "FILE/TENSOR", with offset basis CBF29CE484222325 xor seed
    word_i = mix(key + (i + 1) * 9E3779B97F4A7C15) mod 2^64, with `mix` as in noise.py
    u_i    = (word_i >> 11) / 2^53;  r_i = sqrt(3) * (2 u_i - 1)
in float64, then rounded to float32. FILE is the name of the weight file without its ending. No logarithm, no cosine:
every language computes the same bits. Integers are `base + floor(scale * u_i)`.

A listing has one line per tensor, sorted: `name dtype shape base scale`, shape as 96x48x7 or `-` for a scalar.
`{a..b}` in a name stands for every number from a to b, so one line may describe many tensors.
"""
import itertools
import math
import re
import zlib

import numpy as np

from noise import uniform

# Fixed buffers of S3Gen, which loaders compute: real files have both or lack them.
COMPUTED = ("_mel_filters", "window")
CHUNK = 1 << 22


def key(seed, text):
    h = 0xCBF29CE484222325 ^ seed
    for b in text.encode():
        h = (h ^ b) * 0x100000001B3 % 2**64
    return h


def floats(seed, text, shape, base, scale):
    out, k = np.empty(math.prod(shape), np.float32), key(seed, text)
    for at in range(0, out.size, CHUNK):
        u = uniform(k, min(CHUNK, out.size - at), at)
        out[at:at + CHUNK] = base + scale * (math.sqrt(3) * (2 * u - 1))
    return out.reshape(shape)


def integers(seed, text, shape, base, scale):
    u = uniform(key(seed, text), math.prod(shape))
    return (int(base) + np.floor(scale * u).astype(np.int64)).reshape(shape)


# ---------------------------------------------------------------- listings
DTYPES = {"torch.float32": "F32", "torch.int64": "I64"}


def line(name, tensor, base, scale):
    shape = "x".join(map(str, tensor.shape)) or "-"
    return f"{name} {DTYPES[str(tensor.dtype)]} {shape} {base:.4g} {scale:.4g}"


def expand(lines):
    """Names with ranges become single names."""
    for text in lines:
        name, rest = text.split(" ", 1)
        parts = re.split(r"\{(\d+)\.\.(\d+)\}", name)
        ranges = [range(int(a), int(b) + 1) for a, b in zip(parts[1::3], parts[2::3])]
        for numbers in itertools.product(*ranges):
            yield "".join(p + str(n) for p, n in zip(parts[::3], numbers)) + parts[-1] + " " + rest


def compact(lines):
    """Joins lines that differ in one number of the name, again and again."""
    lines, todo = sorted(set(lines)), True
    assert len(lines) == len({x.split(" ")[0] for x in lines})
    wanted = lines
    while todo:
        todo = False
        for position in itertools.count():
            groups, any_number = {}, False
            for text in lines:
                name, rest = text.split(" ", 1)
                # Numbers inside ranges stay as they are.
                spots = [m for m in re.finditer(r"\{[^}]*\}|\d+", name) if name[m.start()] != "{"]
                if position < len(spots):
                    any_number, m = True, spots[position]
                    at = (name[:m.start()], name[m.end():], rest)
                    groups.setdefault(at, []).append(int(m.group()))
                else:
                    groups.setdefault((name, "", rest), []).append(None)
            if not any_number:
                break
            joined = []
            for (head, tail, rest), numbers in groups.items():
                if numbers == [None]:
                    joined.append(f"{head}{tail} {rest}")
                    continue
                for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda p: p[1] - p[0]):
                    run = [n for _, n in run]
                    text = str(run[0]) if len(run) == 1 else "{%d..%d}" % (run[0], run[-1])
                    joined.append(f"{head}{text}{tail} {rest}")
            todo |= len(joined) < len(lines)
            lines = joined
    assert sorted(expand(lines)) == wanted
    return sorted(lines)


# ---------------------------------------------------------------- checksums
def stored_order(state):
    """Names in the order of safetensors files: wide elements first, then by name."""
    return sorted(state, key=lambda k: (-state[k].element_size(), k))


def checksum(state):
    """CRC-32 of the bytes of all tensors in that order: of what follows the header."""
    crc = 0
    for name in stored_order(state):
        crc = zlib.crc32(state[name].contiguous().numpy().tobytes(), crc)
    return f"{crc:08x}"
