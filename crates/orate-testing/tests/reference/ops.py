"""Writes ops.txt: small inputs and results of every op, computed without any of Orate's code.

    python3 ops.py > ops.txt

Plain Python floats (double precision), nested lists, and the formulas of papers and the PyTorch documentation.
Inputs are multiples of 1/64, so that they are the same numbers in f32. Lines are `case/kind/name shape = values`
where kind is in (input), w (weight) or out (result).
"""

import math
import random

rng = random.Random(20261121)


def tensor(*shape, scale=64):
    if not shape:
        return rng.randint(-scale, scale) / 64
    return [tensor(*shape[1:], scale=scale) for _ in range(shape[0])]


def flat(x):
    return [z for y in x for z in flat(y)] if isinstance(x, list) else [x]


def shape(x):
    return [len(x)] + shape(x[0]) if isinstance(x, list) else []


def write(case, kind, **tensors):
    for name, x in tensors.items():
        dims = " ".join(map(str, shape(x)))
        print(f"{case}/{kind}/{name} {dims} = {' '.join(repr(v) for v in flat(x))}")


def gelu(x):
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


ACTIVATIONS = {
    "relu": lambda x, s: x if x > 0 else 0.0,
    "prelu": lambda x, s: x if x > 0 else s * x,
    "gelu": lambda x, s: gelu(x),
    "mish": lambda x, s: x * math.tanh(math.log(1 + math.exp(x))),
    "tanh": lambda x, s: math.tanh(x),
    "exp": lambda x, s: math.exp(x),
}


def linear(x, w, b=None):
    return [[sum(r[k] * w[k][n] for k in range(len(w))) + (b[n] if b else 0) for n in range(len(w[0]))] for r in x]


def norm(row, w, b, eps):
    mu = sum(row) / len(row)
    var = sum((v - mu) ** 2 for v in row) / len(row)
    return [(v - mu) / math.sqrt(var + eps) * a + c for v, a, c in zip(row, w, b)]


def pad(rows, left, right):
    """torch.nn.functional.pad(mode='replicate') along time."""
    return [rows[0]] * left + rows + [rows[-1]] * right


# Matmuls, with every part of the epilogue.
x, w, bias, residual = tensor(2, 3, 5), tensor(5, 4), tensor(4), tensor(2, 3, 4)
write("matmul", "in", x=x)
write("matmul", "w", w=w)
write("matmul", "out", y=[linear(b, w) for b in x])
for name, f in ACTIVATIONS.items():
    slope = 0.171875
    case = f"matmul_{name}"
    write(case, "in", x=x, residual=residual)
    write(case, "w", w=w, bias=bias, slope=[slope])
    y = [[[f(v, slope) for v in row] for row in linear(b, w, bias)] for b in x]
    write(case, "out", y=[[[v + r for v, r in zip(*p)] for p in zip(*q)] for q in zip(y, residual)])

# Convolution: the PyTorch weight is [N, C, taps]; Orate's rows are tap-major.
for case, taps, dilation, left, right, time in [
    ("conv1d_causal", 3, 2, 4, 0, 6),
    ("conv1d_symmetric", 3, 1, 1, 1, 2),
]:
    x, torch = tensor(2, time, 3), tensor(4, 3, taps)
    write(case, "in", x=x)
    write(case, "w", w=[[torch[n][c][k] for n in range(4)] for k in range(taps) for c in range(3)])
    padded = [pad(b, left, right) for b in x]
    y = [
        [
            [sum(p[t + k * dilation][c] * torch[n][c][k] for c in range(3) for k in range(taps)) for n in range(4)]
            for t in range(time)
        ]
        for p in padded
    ]
    write(case, "out", y=y)

# Depthwise convolution, then with a layer norm.
x, torch, bias, nw, nb = tensor(2, 4, 3), tensor(3, 5), tensor(3), tensor(3), tensor(3)
padded = [pad(b, 4, 4) for b in x]
y = [[[sum(p[t + 2 * k][c] * torch[c][k] for k in range(5)) + bias[c] for c in range(3)] for t in range(4)] for p in padded]
for case, out in [("depthwise", y), ("depthwise_norm", [[norm(r, nw, nb, 1e-6) for r in b] for b in y])]:
    write(case, "in", x=x)
    write(case, "w", w=[[torch[c][k] for c in range(3)] for k in range(5)], bias=bias, norm_weight=nw, norm_bias=nb)
    write(case, "out", y=out)

x = tensor(2, 2, 6)
nw, nb = tensor(6), tensor(6)
write("layer_norm", "in", x=x)
write("layer_norm", "w", norm_weight=nw, norm_bias=nb)
write("layer_norm", "out", y=[[norm(r, nw, nb, 1e-5) for r in b] for b in x])

x, a, b = tensor(2, 2, 3), tensor(3), tensor(3)
write("affine", "in", x=x)
write("affine", "w", a=a, b=b)
write("affine", "out", y=[[[v * s + t for v, s, t in zip(r, a, b)] for r in m] for m in x])

# Scaled dot-product attention. Keys with seen(b, i, j) false are excluded from the softmax.
def attend(q, k, v, heads, scale, seen, rel_k=None, rel_v=None, window=0):
    out = []
    for b in range(len(q)):
        kb = k[b % len(k)]
        vb = v[b % len(v)]
        d = len(q[0][0]) // heads
        rows = []
        for i, row in enumerate(q[b]):
            y = []
            for h in range(heads):
                part = slice(h * d, (h + 1) * d)
                keys = [j for j in range(len(kb)) if seen(b, i, j)]
                score = {}
                for j in keys:
                    key = list(kb[j][part])
                    if rel_k and abs(j - i) <= window:
                        key = [s + t for s, t in zip(key, rel_k[j - i + window])]
                    score[j] = scale * sum(s * t for s, t in zip(row[part], key))
                total = sum(math.exp(s) for s in score.values())
                for e in range(d):
                    o = 0.0
                    for j in keys:
                        p = math.exp(score[j]) / total
                        o += p * vb[j][h * d + e]
                        if rel_v and abs(j - i) <= window:
                            o += p * rel_v[j - i + window][e]
                    y.append(o)
            rows.append(y)
        out.append(rows)
    return out


q, k, v = tensor(2, 3, 4), tensor(2, 5, 4), tensor(2, 5, 4)
lens = [3, 0]
write("attention", "in", q=q, k=k, v=v)
write("attention", "out", y=attend(q, k, v, 2, 0.5, lambda b, i, j: True))
write("attention_lens", "in", q=q, k=k, v=v, lens=lens)
write("attention_lens", "out", y=attend(q, k, v, 2, 0.5, lambda b, i, j: j < lens[b]))
# Three queries at the end of five keys: query 0 is at the position of key 2.
write("attention_causal", "in", q=q, k=k, v=v)
write("attention_causal", "out", y=attend(q, k, v, 2, 0.5, lambda b, i, j: j <= i + 2))
write("attention_shared", "in", q=q, k=k[:1], v=v[:1])
write("attention_shared", "out", y=attend(q, k[:1], v[:1], 1, 0.25, lambda b, i, j: True))
q, k, v = tensor(1, 4, 4), tensor(1, 4, 4), tensor(1, 4, 4)
rk, rv = tensor(3, 2), tensor(3, 2)
write("attention_relative", "in", q=q, k=k, v=v)
write("attention_relative", "w", rk=rk, rv=rv)
write("attention_relative", "out", y=attend(q, k, v, 2, 0.5, lambda b, i, j: True, rk, rv, 1))

# Rotary positions, by complex numbers: (a + bi) · e^(i·angle).
theta = [0.5, 2.75]
lens = [4, 3]
angles = [[[t / n * th for th in theta] for t in range(4)] for n in lens]
table = [[[[f(a) for a in r] for r in b] for f in (math.cos, math.sin)] for b in angles]
write("rotary_table", "in", lens=lens)
write("rotary_table", "w", theta=theta)
write("rotary_table", "out", y=table)
x = tensor(2, 4, 8)
y = []
for b in range(2):
    y.append([])
    for t in range(4):
        row = [0.0] * 8
        for h in range(2):
            for j in range(2):
                z = complex(x[b][t][h * 4 + j], x[b][t][h * 4 + 2 + j])
                z *= complex(math.cos(angles[b][t][j]), math.sin(angles[b][t][j]))
                row[h * 4 + j], row[h * 4 + 2 + j] = z.real, z.imag
        y[-1].append(row)
write("rotary", "in", x=x, lens=lens)
write("rotary", "w", theta=theta)
write("rotary", "out", y=y)

# Times are exact in f32.
times, dim = [0.0, 0.125, 0.75], 6
f = [math.exp(-math.log(10000) * j / 2) for j in range(3)]
write("time_embedding", "in", times=times)
write("time_embedding", "out", y=[[math.sin(1000 * t * w) for w in f] + [math.cos(1000 * t * w) for w in f] for t in times])


# Philox4x32-10 with Python's big integers, and Box-Muller.
def philox(counter, key):
    x, k = list(counter), list(key)
    for _ in range(10):
        p, q = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [(q // 2**32) ^ x[1] ^ k[0], q % 2**32, (p // 2**32) ^ x[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return x


assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], "Random123 kat_vectors"
seed, numbers = 0x0123456789ABCDEF, []
for block in range(3):
    w = philox([block, 0, 0, 0], [seed % 2**32, seed // 2**32])
    for a, b in [(w[0], w[1]), (w[2], w[3])]:
        r = math.sqrt(-2 * math.log((a // 256 + 1) / 2**24))
        numbers += [r * math.cos(2 * math.pi * (b // 256) / 2**24), r * math.sin(2 * math.pi * (b // 256) / 2**24)]
write("random_normal", "out", y=[0.5 * z for z in numbers[:10]])

# Ops added later, appended so that the numbers above do not change.

for name, f in {"silu": lambda v: v / (1 + math.exp(-v)), "clip": lambda v: min(max(v, -1.0), 1.0)}.items():
    x, w, bias, residual = tensor(2, 3, 5), tensor(5, 4), tensor(4), tensor(2, 3, 4)
    case = f"matmul_{name}"
    write(case, "in", x=x, residual=residual)
    write(case, "w", w=w, bias=bias)
    y = [[[f(v) for v in row] for row in linear(b, w, bias)] for b in x]
    write(case, "out", y=[[[v + r for v, r in zip(*p)] for p in zip(*q)] for q in zip(y, residual)])

# Ids index each table separately; the first id of a position is not for these tables.
ids, tables = [[[9, 2, 0], [9, 1, 2]], [[9, 0, 0], [9, 2, 1]]], tensor(2, 3, 4)
write("embedding_sum", "in", ids=ids)
write("embedding_sum", "w", tables=tables)
write("embedding_sum", "out", y=[[[a + b for a, b in zip(tables[0][t[1]], tables[1][t[2]])] for t in b] for b in ids])

x, w = tensor(2, 2, 6), tensor(6)
write("rms_norm", "in", x=x)
write("rms_norm", "w", w=w)
y = [[[v / math.sqrt(sum(z * z for z in r) / len(r) + 1e-5) * a for v, a in zip(r, w)] for r in b] for b in x]
write("rms_norm", "out", y=y)

# BigVGAN's SnakeBeta after its exponentials: x + (1/b) sin²(a x).
x, frequency, gain = tensor(2, 2, 3, scale=640), tensor(3), tensor(3)
write("snake", "in", x=x)
write("snake", "w", frequency=frequency, gain=gain)
y = [[[v + c * (1 - math.cos(2 * a * v)) / 2 for v, a, c in zip(r, frequency, gain)] for r in b] for b in x]
write("snake", "out", y=y)

x, z = tensor(2, 2, 3), tensor(2, 2, 3)
write("mul", "in", x=x, z=z)
write("mul", "out", y=[[[a * b for a, b in zip(*r)] for r in zip(*m)] for m in zip(x, z)])

# Row t of the table: position 5 + t, as Python's complex exponential has it.
angles = [[(5 + t) * 10000 ** (-2 * j / 6) for j in range(3)] for t in range(4)]
turns = [[complex(math.cos(a), math.sin(a)) for a in row] for row in angles]
write("rope_table", "out", y=[[[[z.real for z in r] for r in turns], [[z.imag for z in r] for r in turns]]])

# Convolutions after a history: the two sequences joined, without padding.
x, history, torch, bias = tensor(2, 3, 2), tensor(2, 4, 2), tensor(3, 2, 3), tensor(2)
joined = [h + b for h, b in zip(history, x)]
write("conv1d_history", "in", x=x, history=history)
write("conv1d_history", "w", w=[[torch[n][c][k] for n in range(3)] for k in range(3) for c in range(2)])
y = [
    [[sum(p[t + 2 * k][c] * torch[n][c][k] for c in range(2) for k in range(3)) for n in range(3)] for t in range(3)]
    for p in joined
]
write("conv1d_history", "out", y=y)
write("depthwise_history", "in", x=x, history=history)
write("depthwise_history", "w", w=[[torch[0][c][k] for c in range(2)] for k in range(3)], bias=bias)
y = [[[sum(p[t + 2 * k][c] * torch[0][c][k] for k in range(3)) + bias[c] for c in range(2)] for t in range(3)] for p in joined]
write("depthwise_history", "out", y=y)

# A transposed convolution of stride 3 without its last 3 samples, by adding the contributions of each input.
x, torch = tensor(1, 3, 2), tensor(2, 4, 6)
y = [[0.0] * 4 for _ in range(12)]
for t in range(3):
    for k in range(6):
        for n in range(4):
            y[3 * t + k][n] += sum(x[0][t][c] * torch[c][n][k] for c in range(2))
write("conv1d_transposed", "in", x=x, history=[[[0.0, 0.0]]])
write("conv1d_transposed", "w", w=torch)
write("conv1d_transposed", "out", y=[y[:9]])

# Queries at the end of the keys that see two keys: their own and the previous one.
q, k, v = tensor(1, 3, 4), tensor(1, 5, 4), tensor(1, 5, 4)
write("attention_window", "in", q=q, k=k, v=v)
write("attention_window", "out", y=attend(q, k, v, 2, 0.5, lambda b, i, j: i + 2 - 2 < j <= i + 2))

# Four heads of two channels on two key/value heads: 0 and 1 read the first, 2 and 3 the second. As in
# PyTorch's repeat_kv, each is repeated.
q, k, v = tensor(1, 3, 8), tensor(1, 4, 4), tensor(1, 4, 4)
repeated = lambda x: [[r[0:2] + r[0:2] + r[2:4] + r[2:4] for r in b] for b in x]
write("attention_grouped", "in", q=q, k=k, v=v)
write("attention_grouped", "out", y=attend(q, repeated(k), repeated(v), 4, 0.5, lambda b, i, j: j <= i + 1))

# Past the ends: zeros, the last row again, and numpy's "reflect".
x = tensor(2, 3, 2)
zero = [0.0, 0.0]
for name, y in [
    ("pad_zero", [[zero] + b + [zero, zero] for b in x]),
    ("pad_repeat", [[b[0]] + b + [b[2], b[2]] for b in x]),
    ("pad_reflect", [[b[1]] + b + [b[1], b[0]] for b in x]),
]:
    write(name, "in", x=x)
    write(name, "out", y=y)

# Rows multiplied by a row.
x, row = tensor(2, 3, 4), tensor(4)
write("mul_row", "in", x=x, row=row)
write("mul_row", "out", y=[[[a * b for a, b in zip(r, row)] for r in s] for s in x])

# Weighted statistics over time, E[x] and sqrt(E[x²] − E[x]²).
x, scores = tensor(2, 5, 3), tensor(2, 5, 3)


def moments(x, scores):
    out = []
    for s, score in zip(x, scores):
        means, deviations = [], []
        for c in range(3):
            e = [math.exp(r[c]) for r in score]
            p = [v / sum(e) for v in e]
            mean = sum(a * r[c] for a, r in zip(p, s))
            means.append(mean)
            deviations.append(math.sqrt(sum(a * r[c] ** 2 for a, r in zip(p, s)) - mean**2))
        out.append(means + deviations)
    return out


write("statistics", "in", x=x)
write("statistics", "out", y=moments(x, [[[0.0] * 3] * 5] * 2))
write("statistics_weighted", "in", x=x, scores=scores)
write("statistics_weighted", "out", y=moments(x, scores))

# Two codebooks: the second one encodes the residual of the first. Entry 3 of the first occurs twice.
x, books = tensor(1, 6, 3), tensor(2, 5, 3)
books[0][4] = books[0][3]
codes = []
for row in x[0]:
    left, ids = row, []
    for book in books:
        near = min(range(5), key=lambda i: sum((a - b) ** 2 for a, b in zip(left, book[i])))
        left = [a - b for a, b in zip(left, book[near])]
        ids.append(float(near))
    codes.append(ids)
write("residual_codes", "in", x=x)
write("residual_codes", "w", books=books)
write("residual_codes", "out", y=[codes])

# Functions of one number.
x = tensor(16, scale=512)
for name, f in [("sigmoid", lambda v: 1 / (1 + math.exp(-v))), ("elu", lambda v: v if v > 0 else math.exp(v) - 1)]:
    write(name, "in", x=x)
    write(name, "out", y=[f(v) for v in x])


# ---- overlap-add of an inverse STFT: torch.istft(center=True) after its irfft -------------------------
frames, window, hop = tensor(2, 5, 8), tensor(8), 3
samples = []
for row in frames:
    total, squares = [0.0] * (4 * hop + 8), [0.0] * (4 * hop + 8)
    for f, frame in enumerate(row):
        for j, v in enumerate(frame):
            total[f * hop + j] += v
            squares[f * hop + j] += window[j] ** 2
    samples.append([t / q for t, q in zip(total[4:-4], squares[4:-4])])
write("overlap_add", "in", x=frames)
write("overlap_add", "w", window=window)
write("overlap_add", "out", y=samples)


# Convolutions with zeros beyond the ends, one of them with all padding after the sequence.
for case, taps, left, right in [("conv1d_ahead", 4, 0, 3), ("conv1d_zeros", 3, 1, 1)]:
    x, torch = tensor(2, 3, 2), tensor(3, 2, taps)
    write(case, "in", x=x)
    write(case, "w", w=[[torch[n][c][k] for n in range(3)] for k in range(taps) for c in range(2)])
    padded = [[[0.0] * 2] * left + b + [[0.0] * 2] * right for b in x]
    y = [
        [[sum(p[t + k][c] * torch[n][c][k] for c in range(2) for k in range(taps)) for n in range(3)] for t in range(3)]
        for p in padded
    ]
    write(case, "out", y=y)
x, torch, bias = tensor(2, 3, 2), tensor(2, 5), tensor(2)
padded = [[[0.0] * 2] * 4 + b + [[0.0] * 2] * 4 for b in x]
write("depthwise_zeros", "in", x=x)
write("depthwise_zeros", "w", w=[[torch[c][k] for c in range(2)] for k in range(5)], bias=bias)
y = [[[sum(p[t + 2 * k][c] * torch[c][k] for k in range(5)) + bias[c] for c in range(2)] for t in range(3)] for p in padded]
write("depthwise_zeros", "out", y=y)

# More functions of one number.
x = tensor(16, scale=512)
for name, f in [
    ("gelu_tanh", lambda v: v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))),
    ("sin", math.sin),
    ("cos", math.cos),
]:
    write(name, "in", x=x)
    write(name, "out", y=[f(v) for v in x])

# Frequencies scaled as in Llama 3: the first stays, the second lies between, the third is divided by 8.
f = [500000 ** (-2 * j / 6) for j in range(3)]
s = (300 / (2 * math.pi / f[1]) - 0.5) / (4 - 0.5)
f[1:] = [(1 - s) * f[1] / 8 + s * f[1], f[2] / 8]
turns = [[complex(math.cos((5 + t) * v), math.sin((5 + t) * v)) for v in f] for t in range(4)]
write("rope_scaled", "out", y=[[[[z.real for z in r] for r in turns], [[z.imag for z in r] for r in turns]]])

# An LSTM by PyTorch's formulas; its weight is [4H, H].
gates, torch = tensor(2, 4, 12), tensor(12, 3)
logistic = lambda v: 1 / (1 + math.exp(-v))
y = []
for sequence in gates:
    h, c, steps = [0.0] * 3, [0.0] * 3, []
    for row in sequence:
        i, f, g, o = [[row[3 * k + u] + sum(a * b for a, b in zip(torch[3 * k + u], h)) for u in range(3)] for k in range(4)]
        c = [logistic(f[u]) * c[u] + logistic(i[u]) * math.tanh(g[u]) for u in range(3)]
        h = [logistic(o[u]) * math.tanh(c[u]) for u in range(3)]
        steps.append(h)
    y.append(steps)
write("lstm", "in", gates=gates)
write("lstm", "w", w=torch)
write("lstm", "out", y=y)

# Means of segments of three rows; the last one has two.
x = tensor(2, 5, 2)
mean = lambda rows: [[sum(r[c] for r in rows) / len(rows) for c in range(2)]] * len(rows)
write("segment_mean", "in", x=x)
write("segment_mean", "out", y=[mean(b[:3]) + mean(b[3:]) for b in x])

# Harmonics of a pitch: numbers are rounded to f32 by way of four bytes.
import struct

f32 = lambda v: struct.unpack("f", struct.pack("f", v))[0]
f0, phases, noise, hop = [[[200.25], [3.5], [97.75]], [[10.0], [440.0], [10.125]]], tensor(2, 2), tensor(2, 12, 2), 4
y = []
for b in range(2):
    sums, rows = [0.0, 0.0], []
    for n in range(12):
        pitch, row = f0[b][n // hop][0], []
        for h in range(2):
            sums[h] += f32(f32(pitch * (h + 1)) / 24000)
            wave = 0.1 * math.sin(2 * math.pi * (f32(sums[h]) % 1) + phases[b][h])
            row.append(wave + 0.003 * noise[b][n][h] if pitch > 10 else 0.1 / 3 * noise[b][n][h])
        rows.append(row)
    y.append(rows)
write("harmonic_source", "in", f0=f0, phases=phases, noise=noise)
write("harmonic_source", "out", y=y)

# Relative positions as in Transformer-XL's appendix: the shift of padded rows, not an index. Then attention
# with these scores as a bias.
q, k, v, p = tensor(1, 4, 6), tensor(1, 4, 6), tensor(1, 4, 6), tensor(1, 7, 6)
scores = []
for h in range(2):
    part = lambda row: row[3 * h : 3 * h + 3]
    rows = [[0.0] + [0.5 * sum(a * b for a, b in zip(part(r), part(s))) for s in p[0]] for r in q[0]]
    shifted = [z for r in rows for z in r][4:]
    scores.append([shifted[7 * i : 7 * i + 4] for i in range(4)])
write("relative_scores", "in", q=q, p=p)
write("relative_scores", "out", y=[scores])
out = [[0.0] * 6 for _ in range(4)]
for h in range(2):
    for i in range(4):
        dots = [sum(q[0][i][c] * k[0][j][c] for c in range(3 * h, 3 * h + 3)) for j in range(4)]
        e = [math.exp(0.5 * d + s) for d, s in zip(dots, scores[h][i])]
        for c in range(3 * h, 3 * h + 3):
            out[i][c] = sum(a * v[0][j][c] for j, a in enumerate(e)) / sum(e)
write("attention_bias", "in", q=q, k=k, v=v, bias=[scores])
write("attention_bias", "out", y=[out])
