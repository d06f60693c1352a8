"""Reproducible noise: every random draw of the official code is replaced by a counter-based stream.

Stream of draw number d (0-based, counted over all torch.rand / randn / randn_like / multinomial calls of one run)
with run seed S:  key = (S << 32) + d;  word_i = mix(key + (i + 1) * 0x9E3779B97F4A7C15) mod 2^64, where mix is SplitMix64's
finalizer (z ^= z >> 30, z *= BF58476D1CE4E5B9, z ^= z >> 27, z *= 94D049BB133111EB, z ^= z >> 31);  u_i = (word_i >> 11) / 2^53.
    uniform      u_i
    normal       Box-Muller on (u_2k, u_2k+1): r = sqrt(-2 ln(1 - u_2k)); r cos(2 pi u_2k+1), r sin(2 pi u_2k+1)
    multinomial  q_i = -ln(1 - u_i); token = argmax(p_i / q_i)   (exactly how torch samples one token, with its own q)
All in float64, then rounded to float32.
"""
import contextlib
import math

import numpy as np
import torch


def uniform(key, n, start=0):
    with np.errstate(over="ignore"):
        i = np.arange(start + 1, start + n + 1, dtype=np.uint64)
        z = np.uint64(key & 0xFFFFFFFFFFFFFFFF) + i * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _normal(key, n):
    u = uniform(key, n + n % 2).reshape(-1, 2)
    r, a = np.sqrt(-2 * np.log1p(-u[:, 0])), 2 * math.pi * u[:, 1]
    return np.stack([r * np.cos(a), r * np.sin(a)], 1).reshape(-1)[:n]


class Noise:
    """Patches torch's random functions while active and remembers what they returned."""

    def __init__(self, seed, stop_after=None, stop_token=6562):
        self.seed, self.draws = seed, []
        self.stop_after, self.stop_token = stop_after, stop_token
        self.tokens, self.probs, self.margin = [], [], math.inf

    def _next(self, kind, shape, sampler):
        key = (self.seed << 32) + len(self.draws)
        t = torch.from_numpy(sampler(key, math.prod(shape)).astype(np.float32)).reshape(shape)
        self.draws.append((kind, t))
        return t.clone()

    @staticmethod
    def _shape(size):
        return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)

    def randn(self, *size, **kw):
        return self._next("randn", self._shape(size), _normal)

    def randn_like(self, x, **kw):
        return self._next("randn_like", tuple(x.shape), _normal)

    def rand(self, *size, **kw):
        return self._next("rand", self._shape(size), uniform)

    def multinomial(self, probs, num_samples, **kw):
        assert num_samples == 1 and probs.shape[0] == 1
        q = self._next("multinomial", tuple(probs.shape), lambda k, n: -np.log1p(-uniform(k, n)))
        score = probs / q
        tok = score.argmax(-1, keepdim=True)
        best = score.topk(2).values[0]
        self.margin = min(self.margin, float(1 - best[1] / best[0]))     # how close the runner-up came
        self.probs.append(probs.clone())
        if self.stop_after is not None and len(self.probs) >= self.stop_after:
            tok = torch.full_like(tok, self.stop_token)          # the API has no step limit below 1000
        self.tokens.append(int(tok))
        return tok

    @contextlib.contextmanager
    def active(self):
        names = ("randn", "randn_like", "rand", "multinomial")
        old = {n: getattr(torch, n) for n in names}
        for n in names:
            setattr(torch, n, getattr(self, n))
        try:
            yield self
        finally:
            for n, f in old.items():
                setattr(torch, n, f)

    def take(self, kind):
        return [t for k, t in self.draws if k == kind]
